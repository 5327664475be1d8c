"""Calls of a run as they are asked for, and what comes of them as it is recorded.

An exception is recorded as data: its name, its arguments and its text. Raised again, one of Python's own is made anew;
any other is a `CallError` that says which it was, because nothing is imported or made that the data names.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.errors import Invalid
from backtrail.strategies import ToolCallRecord
from backtrail.values import when

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backtrail.engine.journal import Call, Result

POLICIES: Final = ("ask", "pure", "idempotent")
_TEXT_MAX: Final = 2000
_REBUILT: Final = {
    cls.__name__: cls
    for cls in (
        *(ArithmeticError, AssertionError, AttributeError, BufferError, ConnectionError, EOFError, FileExistsError),
        *(FileNotFoundError, IndexError, InterruptedError, IsADirectoryError, KeyError, LookupError, NameError),
        *(NotADirectoryError, NotImplementedError, OSError, OverflowError, PermissionError, ProcessLookupError),
        *(RecursionError, RuntimeError, TimeoutError, TypeError, ValueError, ZeroDivisionError, Exception),
    )
}


class CallError(RuntimeError):
    """A call that had failed before the run was cut short, with an exception that is not one of Python's own."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name


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


def failure_of(error: Exception) -> list[Any]:
    """Return what is recorded of an exception."""
    args = [arg for arg in error.args if isinstance(arg, str | int | float | bool | None)]
    return [type(error).__name__, args if len(args) == len(error.args) else [], str(error)[:_TEXT_MAX]]


def given(result: Result) -> Any:
    """Return a recorded value, or raise a recorded exception: one of Python's own is made anew."""
    if result.good:
        return copy.deepcopy(result.value)
    name, args, text = result.value
    cls = _REBUILT.get(name)
    raise cls(*args) if cls is not None and (args or not text) else CallError(name, text)


def as_record(call: Call, result: Result, iteration: int) -> dict[str, Any]:
    """Return a call that came to its end, as data."""
    return {
        "id": call.id,
        "tool_name": call.name,
        "arguments": call.arguments,
        "result": result.value if result.good else result.value[2],
        "success": result.good,
        "iteration": iteration,
        "irreversible": call.irreversible,
        "tool_call_id": call.tool_call_id,
        "ended_at": when(result.when),
    }


def record_of(data: Mapping[str, Any]) -> ToolCallRecord:
    """Return a call that came to its end, as a value."""
    return ToolCallRecord(**data)


def doubtful(call: Call) -> ToolCallRecord:
    """Return a call of which nobody knows whether it was done, as a value."""
    iteration = int(call.id.partition(".")[0])
    return ToolCallRecord(
        call.id,
        call.name,
        call.arguments,
        result=None,
        success=False,
        iteration=iteration,
        irreversible=call.irreversible,
        tool_call_id=call.tool_call_id,
    )
