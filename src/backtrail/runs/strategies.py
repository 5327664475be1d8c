"""When a run is to make a checkpoint, how it stands, and what becomes of a call that is in doubt: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from backtrail.errors import Invalid

if TYPE_CHECKING:
    import datetime as dt


class Event(StrEnum):
    """What has just happened in a run."""

    TOOL_CALL_COMPLETE = "tool_call_complete"
    LLM_RESPONSE = "llm_response"
    ITERATION = "iteration"
    """An iteration has ended."""


class Strategy(Protocol):
    """Says when a run makes a checkpoint."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:
        """Tell whether one is to be made, after an event of an iteration."""


@dataclass(frozen=True, slots=True)
class AfterToolCall:
    """After each tool call."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:  # noqa: ARG002 - as the protocol has it
        """Tell whether a tool call has come to its end."""
        return event == Event.TOOL_CALL_COMPLETE


@dataclass(frozen=True, slots=True)
class AfterLlmResponse:
    """After each response of a model."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:  # noqa: ARG002
        """Tell whether a model has answered."""
        return event == Event.LLM_RESPONSE


@dataclass(frozen=True, slots=True)
class EveryN:
    """At the end of every n-th iteration."""

    n: int

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n < 1:
            raise Invalid(f"EveryN takes a whole number, 1 or more, not {self.n!r}", code="invalid.argument")

    def should_checkpoint(self, iteration: int, event: str) -> bool:
        """Tell whether an iteration has ended whose number is a multiple of n."""
        return event == Event.ITERATION and iteration >= 1 and iteration % self.n == 0


@dataclass(frozen=True, slots=True)
class Never:
    """Never. What was done is recorded all the same."""

    def should_checkpoint(self, iteration: int, event: str) -> bool:  # noqa: ARG002
        """Say no."""
        return False


class RunState(StrEnum):
    """What a run's status is called."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run stands: in_progress, completed, failed or halted, and the reason of the last two."""

    name: str
    reason: str | None = None

    def __str__(self) -> str:
        return self.name if self.reason is None else f"{self.name}({self.reason})"


@dataclass(frozen=True, slots=True)
class Done:
    """What `verify` says of a call that was done: its result."""

    result: Any = None


class _NotDone:
    """What `verify` says of a call that was not done."""

    def __repr__(self) -> str:
        return "NotDone"


NotDone: Final = _NotDone()


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """A tool call of a run: what was asked for, and what came of it."""

    id: str
    tool_name: str
    arguments: dict[str, Any]
    """`args` and `kwargs`."""
    result: Any
    success: bool
    iteration: int
    irreversible: bool = False
    tool_call_id: str | None = None
    """The id that the model gave the call, if the run was told."""
    ended_at: dt.datetime | None = None
    """None: nobody knows whether it was done."""
