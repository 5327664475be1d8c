"""Calls of a run as they are asked for, and what comes of them as it is recorded.

An exception is recorded as data: the name of its class, its text and, if it is one of Python's own or the run names its
class, what it takes to make it again. Other attributes are not recorded: they may hold requests with their credentials.
Replayed, an exception whose class is not known is a `CallError` that says which it was: nothing is imported.
"""

from __future__ import annotations

import builtins
import copy
import inspect
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine.journal import described
from backtrail.errors import Invalid
from backtrail.models import MISSING, when
from backtrail.runs.strategies import ToolCallRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backtrail.engine.journal import Call, Result

current: Final[ContextVar[Any]] = ContextVar("current", default=None)
"""The run whose block this is, as a weak reference: one that is dropped is not held by having been entered."""
inside: Final[ContextVar[tuple[object, str] | None]] = ContextVar("inside", default=None)
"""The run and the call that is being made here."""
POLICIES: Final = ("ask", "pure", "idempotent")
_TEXT_MAX: Final = 2000
_SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None)})
_HARMLESS: Final = frozenset({int, float, bool, type(None)})
_OWN: Final = {
    f"builtins.{name}": cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, BaseExceptionGroup)
}
"""Python's own exceptions."""


class Halt(BaseException):
    """Leaves the block of a run: its arguments are the reason, and the run."""


class CallError(RuntimeError):
    """A call that had failed before the run was cut short, with an exception that cannot be made anew.

    That is one that is not Python's own and that `store.run(..., errors=...)` does not name, or that cannot be made.
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name


class Named(NamedTuple):
    """A class of exceptions that a run names."""

    cls: type[Exception]
    attributes: frozenset[str] = frozenset()

    def keeps(self, attribute: str, value: Any) -> bool:
        """Tell whether an attribute is recorded."""
        return attribute in self.attributes or type(value) in _HARMLESS


class Options(NamedTuple):
    """How a call is to be made."""

    kind: str
    name: str
    policy: str
    verify: Callable[[Call], Any] | None
    irreversible: bool
    key: str | None
    retry: bool
    tool_call_id: str | None

    def check(self, fn: Any) -> None:
        """Refuse what means nothing, before anything happens."""
        if not callable(fn):
            text = f"{self.kind} {self.name!r:.100} is a function and its arguments, not {fn!r:.100}"
            raise Invalid(text, code="invalid.argument")
        if self.policy == "idempotent" and not _takes_key(fn):
            text = f"an idempotent {self.kind} is given key=, and {self.name!r:.100} does not take it"
            raise Invalid(text, code="invalid.argument")
        if type(self.name) is not str or not self.name:
            raise Invalid(f"the name of a call is a text, not {self.name!r:.100}", code="invalid.argument")
        if self.policy not in POLICIES:
            raise Invalid(f"policy is one of {', '.join(POLICIES)}, not {self.policy!r:.100}", code="invalid.argument")
        if self.key is not None and self.policy != "idempotent":
            text = "key= is what an idempotent tool is given; for an argument of that name use functools.partial"
            raise Invalid(text, code="invalid.argument")
        if self.verify is not None and not callable(self.verify):
            raise Invalid(f"verify is a function, not {self.verify!r:.100}", code="invalid.argument")
        for name, kind in (("irreversible", bool), ("retry", bool), ("key", str), ("tool_call_id", str)):
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise Invalid(f"{name} is a {kind.__name__}, not {value!r:.100}", code="invalid.argument")


def _takes_key(fn: Callable[..., Any]) -> bool:
    """Tell whether a function can be given a key; of some nobody can tell."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return True
    return "key" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


class Asked(NamedTuple):
    """What is known of a call when it is asked for."""

    call: Call
    result: Result | None
    """What came of it before the run was cut short; None: it is to be made, or `doubtful`."""
    doubtful: bool = False
    """It was begun, nobody knows whether it was done, and `verify` is to be asked."""
    new: bool = False
    """Its intent was written now."""


def failure_of(error: Exception, errors: Mapping[str, Named]) -> list[Any]:
    """Return what is recorded of an exception: its name, its args, its text, and its attributes.

    Args and attributes are those of classes that are known when it is replayed. Numbers are harmless attributes; others
    are kept if the run names them. Arguments of its constructor that are not among these are not recorded.
    """
    cls, text = type(error), text_of(error)[:_TEXT_MAX]
    name = name_of(cls)
    named = errors.get(name)
    if named is None or named.cls is not cls:
        return [name, _args_of(error) if _OWN.get(name) is cls else None, text]
    return [name, _args_of(error), text, {key: value for key, value in vars(error).items() if named.keeps(key, value)}]


def _args_of(error: Exception) -> list[Any]:
    if isinstance(error, OSError) and error.filename is not None:
        return [error.errno, error.strerror, error.filename, None, error.filename2]
    return list(error.args)


def keepable(failure: list[Any], keep: Callable[[Any], Any]) -> list[Any]:
    """Return a recorded exception without the args and attributes that `keep` refuses: the others stay."""

    def kept(value: Any) -> Any:
        try:
            return keep(value)
        except Invalid:
            return MISSING

    name, args, text, *more = failure
    args = None if args is None else kept(args)
    attributes = {key: kept(value) for each in more for key, value in each.items()}
    held = {key: value for key, value in attributes.items() if value is not MISSING}
    return [name, None if args is MISSING else args, text, *([held] if more else [])]


def name_of(cls: type) -> str:
    """Return the name by which an exception is recorded."""
    return f"{cls.__module__}.{cls.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return what an exception says, whatever it does when it is asked."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is somebody else's
        return "(it cannot say what)"


class _Text(str):
    """The text of an exception whose args are not known: `KeyError` shows the repr of its argument."""

    __slots__ = ()
    __repr__ = str.__str__


def replayed(call: Call, result: Result, errors: Mapping[str, Named]) -> Exception:
    """Return a recorded exception, with a note that it is not a new one."""
    error = _made(result.value, errors)
    if error is None:
        error = CallError(result.value[0].rpartition(".")[2], result.value[2])
    failed = f"failed at {when(result.when):%Y-%m-%d %H:%M:%S} UTC" if result.when else "failed"
    error.add_note(
        f"replayed: {described(call)} (call {call.id}) {failed}, before the run was resumed, and was not called again. "
        "To call it again, pass retry=True"
    )
    return error


def _made(failure: list[Any], errors: Mapping[str, Named]) -> Exception | None:
    """Make a recorded exception, without a constructor of its own; None if that does not say what was recorded."""
    name, args, text, *more = copy.deepcopy(failure)
    args = [_Text(text)] if args is None else args
    named = errors.get(name)
    cls = _OWN.get(name) or (None if named is None else named.cls)
    if cls is None:
        return None
    with suppress(Exception):  # what is recorded may not be what it is made of
        base = next(each for each in cls.__mro__ if each.__module__ == "builtins")
        error: Exception = base.__new__(cls, *args)
        base.__init__(error, *args)  # type: ignore[misc]
        vars(error).update(more[0] if more else {})
        if str(error)[:_TEXT_MAX] == text:
            return error
    return None


def as_record(call: Call, result: Result | None) -> dict[str, Any]:
    """Return a call as data; without a result, nobody knows whether it was done."""
    good = result is not None and result.good
    value = None if result is None else result.value if good else result.value[2]
    return {
        "id": call.id,
        "tool_name": call.name,
        "arguments": call.arguments,
        "result": value,
        "success": good,
        "iteration": int(call.id.partition(".")[0]),
        "irreversible": call.irreversible,
        "tool_call_id": call.tool_call_id,
        "ended_at": None if result is None else when(result.when),
    }


def record_of(data: Mapping[str, Any]) -> ToolCallRecord:
    """Return a call as a value, of which nothing is shared with the data."""
    return ToolCallRecord(**copy.deepcopy(dict(data)))


_ROOM: Final = 32
_DEPTH: Final = 4


def copied(value: Any, depth: int = _DEPTH) -> Any:
    """Return a copy of a small value of plain data; MISSING if it is another, which takes the codec.

    Small means shallow, too: one that holds itself or is nested too deeply is for the codec to refuse.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if not depth:
        return MISSING
    if kind is list and len(value) <= _ROOM:
        items = [copied(each, depth - 1) for each in value]
        return MISSING if MISSING in items else items
    if kind is dict and len(value) <= _ROOM and all(type(name) is str for name in value):
        fields = {name: copied(each, depth - 1) for name, each in value.items()}
        return MISSING if MISSING in fields.values() else fields
    return MISSING


def said(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message says: all but its id and its time."""
    return {name: value for name, value in data.items() if name not in ("id", "timestamp")}
