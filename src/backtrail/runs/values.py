"""Values of a run: a value loads equal, with the same types, or is refused before anything is written.

A run has two registries of its classes. `exact` refuses instances of classes that are not in `types=`: it checks the
values that callers pass and get. `types` loads instances of unnamed classes as plain data: it reads the run's threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from blake3 import blake3

from backtrail.conversations.models import Message
from backtrail.engine.schema.registry import Member, Record, Types
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.encode import Encoder
from backtrail.errors import Invalid
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backtrail.transaction import Engine

_SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None)})
_TEXT: Final = frozenset({str})
_WIDTH: Final = 32
_DEPTH: Final = 4


class RunValues:
    """The codec of one run's values: it copies and hashes them with the classes of the run."""

    def __init__(self, engine: Engine, named: Sequence[Any] = ()) -> None:
        self._engine = engine
        self.types, self.exact = _registries(engine, named)

    def redacted(self, value: Any) -> Any:
        """Return a value as it may be recorded: see `redact=` of `open`."""
        redact = self._engine.options.redact
        return value if redact is None else redact(value, self.types)

    def hash(self, value: Any, what: str = "state") -> str:
        """Return the hash of a value; `Invalid` if the value would not load equal."""
        return _digest(Encoder(self._engine.direct.reader.nodes(), self.exact, what=what).rep(value))

    def hash_and_copy(self, value: Any, what: str) -> tuple[str, Any]:
        """Return the hash of a value, and a copy as the store would load it."""
        nodes = self._engine.direct.reader.nodes()
        rep = bytes(Encoder(nodes, self.exact, what=what).rep(value))
        copy = plain_copy(value)
        return _digest(rep), Decoder(nodes, self.exact).value(rep) if copy is MISSING else copy

    def copy(self, value: Any, what: str) -> Any:
        """Return a copy of a value as the store would load it; `Invalid` if the copy would not be equal."""
        copy = plain_copy(value)
        return self.hash_and_copy(value, what)[1] if copy is MISSING else copy

    def data(self, value: Any, what: str) -> Any:
        """Return a copy of a value in which instances of unnamed classes are plain data."""
        nodes = self._engine.direct.reader.nodes()
        return Decoder(nodes, self.types).value(bytes(Encoder(nodes, self.types, what=what).rep(value)))


def plain_copy(value: Any, depth: int = _DEPTH) -> Any:
    """Return a copy of a small, shallow value of plain data; MISSING for any other value.

    The limit of depth leaves values that contain themselves to the codec, which refuses them.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if not depth:
        return MISSING
    if kind is list and len(value) <= _WIDTH:
        items = [each if type(each) in _SCALARS else plain_copy(each, depth - 1) for each in value]
        return MISSING if MISSING in items else items
    if kind is dict and len(value) <= _WIDTH and _TEXT.issuperset(map(type, value)):
        fields = {name: each if type(each) in _SCALARS else plain_copy(each, depth - 1) for name, each in value.items()}
        return MISSING if MISSING in fields.values() else fields
    return MISSING


def _digest(rep: Any) -> str:
    return blake3(bytes(rep)).hexdigest(length=12)


class ExactTypes(Types):
    """A registry of classes that refuses instances of other classes instead of loading them as plain data."""

    __slots__ = ()

    def dump(self, obj: object) -> Record | Member | None:
        """Return the fields of an instance; `Invalid` if its class is not registered."""
        dumped = super().dump(obj)
        if dumped is not None and dumped.schema not in self._entries:
            cls = type(obj)
            raise _unnamed(dumped.schema if cls in (Record, Member) else f"{cls.__module__}.{cls.__qualname__}")
        return dumped

    def load(self, value: Record | Member) -> object:
        """Return the instance of a record; `Invalid` if its class is not registered."""
        if value.schema not in self._entries:
            raise _unnamed(value.schema)
        return super().load(value)


def _unnamed(name: str) -> Invalid:
    return Invalid(
        f"{name} is not among the classes that were named, and would come back as plain data: add "
        f"types=[{name.rpartition('.')[2]}] to store.run(...) or backtrail.open(...)",
        code="invalid.value",
    )


class _Registries(NamedTuple):
    types: Types
    exact: ExactTypes


_cache: WeakKeyDictionary[Types, dict[tuple[Any, ...], _Registries]] = WeakKeyDictionary()


def _registries(engine: Engine, named: Sequence[Any]) -> _Registries:
    """Return the two registries of a run: of the store's classes, `Message` and the named classes.

    Classes in the annotations of those are included. Equal arguments share one pair of registries.
    """
    known = _cache.setdefault(engine.types, {})
    key = tuple(named)
    registries = known.get(key)
    if registries is None:
        classes = [*engine.types.closed((Message, *key))]
        registries = known[key] = _Registries(Types(classes), ExactTypes(classes))
    return registries
