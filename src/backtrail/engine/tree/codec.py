"""Python values to trees and back.

Encoding is exact or refused, with the path of the culprit, before anything is written. A value is encoded in
one fast call where that is sure to be exact and short enough to stand inline; else it is taken apart, and its
parts are encoded one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import throttle
from backtrail.engine.schema import records
from backtrail.engine.tree import msgpack, packer, text, unpacker
from backtrail.engine.tree import spine as spines
from backtrail.engine.tree.nodes import INLINE, LEAF, Chunk, Nodes, Rep, decode_ref, measured, most_of, size_of
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import Tree
from backtrail.errors import Corrupt, Invalid
from backtrail.gc_pause import uncollected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.nodes import Node

MAX_NESTED: Final = msgpack.MAX_DEPTH
"""How deep containers that need nodes of their own, or the exact path, may be nested, and how deep a change may go."""
_TEXT_CODES: Final[dict[type, int]] = {str: msgpack.STR, bytes: msgpack.BYTES, bytearray: msgpack.BYTEARRAY}
_SIZED: Final = frozenset({list, dict, tuple, set, frozenset, str, bytes, bytearray})
_FEW: Final = 64
_MANY: Final = 200
"""So many parts are worth it to let Python's collector wait."""
_BATCH: Final = 256
"""How many leaves are read at once: bounds the memory of a load."""


class Encoder:
    """Encodes values into representations; what needs a node goes into `nodes`."""

    def __init__(self, nodes: Nodes, types: Types, root: Path | None = None, *, what: str = "state") -> None:
        self.nodes = nodes
        self._types = types
        self._path: list[Any] = list(root or ())
        self._what = what
        self._packer = packer.Packer(types)
        self._slow = throttle.is_slow()
        self._open: set[int] = set()
        """The ids of the containers around the present one."""

    def rep(self, value: object) -> bytes:
        """Return the representation of a value, or raise `Invalid` naming what in it cannot be kept exactly."""
        depth = len(self._path)
        if depth > MAX_NESTED:
            raise self._refuse(f"nested deeper than {MAX_NESTED} levels")
        try:
            return self._rep(value)
        except RecursionError:
            del self._path[depth:]
            self._open.clear()
            raise self._refuse("nested too deep") from None

    def part(self, step: object, value: object) -> bytes:
        """Return the representation of a part of the value at the root path."""
        if self._slow:
            throttle.rest()
        if not _is_long(value) and (0 < len(self._path) < MAX_NESTED or not (self._path or _holds_long(value))):
            data = self._packer.fast(value)
            if data is not None and len(data) <= INLINE:
                return data
        self._path.append(step)
        rep = self.rep(value)
        self._path.pop()
        return rep

    def key(self, key: object) -> bytes:
        """Return the bytes of a key, or raise `Invalid`."""
        try:
            return self._whole(key, key)
        except RecursionError:
            raise self._refuse("nested too deep") from None

    def _rep(self, value: object) -> bytes:
        if not _is_long(value) and (self._path or not _holds_long(value)):
            data = self._packer.fast(value)
            if data is not None and len(data) <= INLINE:
                return data
        return self._apart(value)

    def _apart(self, value: object) -> bytes:
        value = packer.simplified(value, self._types)
        return self._text(value) or self._atom(value) or self._container(value)

    def _text(self, value: Any) -> bytes | None:
        code = _TEXT_CODES.get(type(value))
        if code is None:
            return None
        if code != msgpack.STR:
            return text.close(self.nodes, code, bytes(value))
        data = value.encode("utf-8", "surrogatepass")
        return text.close(self.nodes, text.str_code(data), data)

    def _atom(self, value: object) -> bytes | None:
        try:
            return packer.atom(value, self._types)
        except Invalid as error:
            raise self._refuse(str(error)) from error

    def _opened(self, value: object) -> packer.Opened:
        try:
            opened = packer.open_container(value, self._types)
        except Invalid as error:
            raise self._refuse(str(error)) from error
        if opened is None:
            raise self._refuse(_why(value))
        if id(value) in self._open:
            raise self._refuse("a value that contains itself")
        if len(self._path) >= MAX_NESTED:
            raise self._refuse(f"nested deeper than {MAX_NESTED} levels")
        self._open.add(id(value))
        return opened

    def _container(self, value: object) -> bytes:
        code, attrs, parts = self._opened(value)
        if code in msgpack.MAPPINGS:
            entries = [spines.join(self._whole(key, key), self._part(key, part)) for key, part in parts.items()]
        elif code in (msgpack.SET, msgpack.FROZENSET):
            entries = sorted(self._part("{}", part) for part in parts)
        else:
            entries = [self._part(at, part) for at, part in enumerate(parts)]
        self._open.discard(id(value))
        return spines.build(self.nodes, code, attrs, entries).close(self.nodes)

    def _part(self, step: object, value: object) -> bytes:
        if self._slow:
            throttle.rest()
        if not _is_long(value) and (self._path or not _holds_long(value)):
            data = self._packer.fast(value)  # first, without touching the path: the common case
            if data is not None and len(data) <= INLINE:
                return data
        self._path.append(step)
        rep = self._apart(value)
        self._path.pop()
        return rep

    def _whole(self, step: object, value: object) -> bytes:
        """Return the canonical bytes of a key or of a part of one, however long: no REF stands in a key."""
        data = self._packer.fast(value)
        if data is not None:
            return data
        self._path.append(step)
        data = self._atom(value)
        if data is None:
            code, attrs, parts = self._opened(value)
            if code in msgpack.MAPPINGS:
                entries = [self._whole(key, key) + self._whole(key, part) for key, part in parts.items()]
            elif code in (msgpack.SET, msgpack.FROZENSET):
                entries = sorted(self._whole("{}", part) for part in parts)
            else:
                entries = [self._whole(at, part) for at, part in enumerate(parts)]
            self._open.discard(id(value))
            data = msgpack.inline(code, attrs, entries)
        self._path.pop()
        return data

    def _refuse(self, why: str) -> Invalid:
        try:
            below = str(Path(self._path))
        except Exception:  # noqa: BLE001 - a key that cannot even be printed
            below = str(Path(step if type(step) in (str, int) else type(step).__name__ for step in self._path))
        path = self._what + (f".{below}" if below and not below.startswith("[") else below)
        return Invalid(f"{path}: {why}", code="invalid.value", path=path)


def _is_long(value: Any) -> bool:
    """Tell whether a value surely takes more than INLINE bytes: there is a byte to each part, at least."""
    return type(value) in _SIZED and len(value) > INLINE


def _holds_long(value: Any, levels: int = 3) -> bool:
    """Tell whether a short container surely has a long value in it: then one fast call for all of it is in vain.

    It would not only be slow, but also keep every other thread waiting, as long as it takes.
    """
    kind = type(value)
    if kind not in (dict, list) or len(value) > _FEW:
        return False
    parts = value.values() if kind is dict else value
    return any(_is_long(part) or (levels > 1 and _holds_long(part, levels - 1)) for part in parts)


def _why(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, dict | list | tuple | set | frozenset | str | bytes | int | float):
        return (
            f"{name} is a subclass of a plain type and would come back as that; save it as plain data, "
            "or register it with types=[backtrail.Type(...)]"
        )
    return (
        f"{name} cannot be kept exactly; save plain data in its place, or register it with types=[backtrail.Type(...)]"
    )


def encode(value: object, nodes: Nodes, types: Types) -> Tree:
    """Return a state as a tree. Its nodes are fresh, even those that the backend has already."""
    return Tree(Encoder(nodes, types).rep(value), nodes)


# -- decoding ---------------------------------------------------------------------------------------


class Decoder:
    """Turns representations back into values, reading nodes in batches."""

    def __init__(self, nodes: Nodes, types: Types) -> None:
        self._nodes = nodes
        self._types = types
        self._unpacker = unpacker.Unpacker(types, self._resolve)
        self._rep = b""
        self._left: int | None = None
        """How many bytes may still be read for it."""

    def value(self, rep: bytes) -> Any:
        """Return the value that a representation stands for; `Corrupt` if that is much larger than it says."""
        self._rep, self._left = rep, None
        return self._unpacker(rep)

    def _spend(self, size: int) -> None:
        """Count bytes that are made values of."""
        if self._left is None:
            self._left = most_of(size_of(self._rep if type(self._rep) is Rep else measured(self._rep)))
        self._left -= size
        if self._left < 0:
            raise Corrupt("it holds more than it says", code="corrupt.encoding")

    def values(self, reps: Sequence[bytes]) -> list[Any]:
        """Return the values of several representations."""
        return [self.value(rep) for rep in reps]

    def _resolve(self, payload: bytes) -> Any:
        ref = decode_ref(payload)
        if ref.code in text.TEXTS:
            self._spend(ref.length)
        if ref.code == msgpack.STR:
            return text.load(self._nodes, ref).decode()
        if ref.code == msgpack.TEXT:
            return text.load(self._nodes, ref).decode("utf-8", "surrogatepass")
        if ref.code == msgpack.BYTES:
            return text.load(self._nodes, ref)
        if ref.code == msgpack.BYTEARRAY:
            return bytearray(text.load(self._nodes, ref))
        spine = spines.read_spine(self._nodes, ref)
        if spine.code != ref.code:
            raise Corrupt("a reference names another kind of container than it leads to", code="corrupt.encoding")
        if spine.length < _MANY:
            return unpacker.build_container(spine.code, spine.attrs, self._parts(spine), self._types)
        with uncollected():
            return unpacker.build_container(spine.code, spine.attrs, self._parts(spine), self._types)

    def _items(self, node: Node, spine: spines.Spine) -> list[Any]:
        """Return what a leaf holds."""
        flat = None if spine.is_mapping else records.flat_of(node, self._types)
        if flat is not None:
            return flat.made(self._unpacker.array(flat.data))
        return self._unpacker.array(node.data)

    def _parts(self, spine: spines.Spine) -> list[Any]:
        listed = spines.leaves(self._nodes, spine)
        chunks = [element for element in listed if type(element) is Chunk]
        parts: list[Any] = []
        for at in range(0, len(chunks), _BATCH):
            batch = chunks[at : at + _BATCH]
            nodes = self._nodes.load(chunk.digest for chunk in batch)
            self._nodes.load(digest for node in nodes.values() for digest in node.children())  # warms the cache
            for chunk in batch:
                throttle.rest()
                node = nodes[chunk.digest]
                if node.kind != LEAF:
                    raise Corrupt("a leaf is not what refers to it", code="corrupt.chunk")
                self._spend(len(node.data))
                parts += self._items(node, spine)
        tail = spines.tail_array(spine)
        self._spend(len(tail))
        parts += self._unpacker.array(tail)
        return parts
