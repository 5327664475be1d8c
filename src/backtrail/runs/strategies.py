"""Plain values of runs: strategies, statuses, answers of `verify`, and records of tool calls."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from backtrail.errors import Invalid
from backtrail.models import when

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from backtrail.engine.journal import Call, Result


class Event(StrEnum):
    """An event of a run that is passed to its strategy."""

    TOOL_CALL_COMPLETE = "tool_call_complete"
    LLM_RESPONSE = "llm_response"
    ITERATION = "iteration"
    """An iteration has ended."""


class Strategy(Protocol):
    """Decides when a run makes a checkpoint."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:
        """Tell whether the run makes a checkpoint after this event of this iteration."""


@dataclass(frozen=True, slots=True)
class AfterToolCall:
    """The strategy to make a checkpoint after each tool call."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:  # noqa: ARG002 - as the protocol has it
        """Tell whether the event is the end of a tool call."""
        return event == Event.TOOL_CALL_COMPLETE


@dataclass(frozen=True, slots=True)
class AfterLlmResponse:
    """The strategy to make a checkpoint after each response of a model."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:  # noqa: ARG002
        """Tell whether the event is a response of a model."""
        return event == Event.LLM_RESPONSE


@dataclass(frozen=True, slots=True)
class EveryN:
    """The strategy to make a checkpoint at the end of every n-th iteration."""

    n: int

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n < 1:
            raise Invalid(f"EveryN takes a whole number, 1 or more, not {self.n!r}", code="invalid.argument")

    def should_checkpoint(self, iteration: int, event: str) -> bool:
        """Tell whether the event is the end of an iteration whose number is a multiple of n."""
        return event == Event.ITERATION and iteration >= 1 and iteration % self.n == 0


@dataclass(frozen=True, slots=True)
class Never:
    """The strategy to make no checkpoints. Calls are still recorded, so the run can resume."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:  # noqa: ARG002
        """Return False."""
        return False


class RunState(StrEnum):
    """The names of a run's statuses."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run: in_progress, completed, failed or halted; the last two with a reason."""

    name: str
    reason: str | None = None

    def __str__(self) -> str:
        return self.name if self.reason is None else f"{self.name}({self.reason})"


@dataclass(frozen=True, slots=True)
class Done:
    """The answer of `verify` that a call was made, with its result."""

    result: Any = None


class _NotDone:
    """The answer of `verify` that a call was not made: the run makes it again."""

    def __repr__(self) -> str:
        return "NotDone"


NotDone: Final = _NotDone()


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """A tool call of a run: its arguments and its result."""

    id: str
    tool_name: str
    arguments: dict[str, Any]
    """`args` and `kwargs`."""
    result: Any
    success: bool
    iteration: int
    irreversible: bool = False
    tool_call_id: str | None = None
    """The id that the model gave the call, if the caller passed it."""
    ended_at: dt.datetime | None = None
    """None: the call is in doubt, so it is unknown whether it was made."""


def as_record(call: Call, result: Result | None) -> dict[str, Any]:
    """Return the record of a call as plain data; without a result, the call is in doubt."""
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
        "replay": [call.key, call.policy, call.main, call.sent],
    }


def record_of(data: Mapping[str, Any]) -> ToolCallRecord:
    """Return the `ToolCallRecord` of a call's data. It is a deep copy."""
    return ToolCallRecord(**copy.deepcopy({name: value for name, value in data.items() if name != "replay"}))
