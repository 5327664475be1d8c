"""The plain values that calls return. All of them are frozen, and none of them does any I/O."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sentinel(Enum):
    """Values that mean what None cannot."""

    MISSING = "MISSING"
    NEW = "NEW"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__

    def __bool__(self) -> bool:
        return False


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST: Final = (dt.datetime.min.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
_LAST: Final = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)

MISSING: Final = Sentinel.MISSING
"""Where there is no value."""
NEW: Final = Sentinel.NEW
"""The expectation that a thread does not exist yet."""

_SHOWN: Final = 60

T = TypeVar("T")


class Items(tuple[T, ...]):
    """What a list becomes inside of a frozen value: a tuple that also equals a list of the same items."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return tuple.__ne__(self, tuple(other) if isinstance(other, list) else other)

    __hash__ = tuple.__hash__

    def __getitem__(self, at: Any) -> Any:
        found = tuple.__getitem__(self, at)
        return Items(found) if isinstance(at, slice) else found


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: `op` is "+" (added), "-" (removed) or "~" (changed); where there is no value, it is MISSING."""

    op: str
    path: Any
    old: Any
    new: Any

    def __str__(self) -> str:
        where = str(self.path) or "state"
        if self.op == "~":
            return f"~ {where}: {_short(self.old)} -> {_short(self.new)}"
        return f"{self.op} {where}: {_short(self.new if self.op == '+' else self.old)}"


@dataclass(frozen=True, slots=True)
class Reordered(Change):
    """A dict in which keys have moved; `old` and `new` are its keys in their order."""

    def __str__(self) -> str:
        return f"~ {str(self.path) or 'state'}: keys in another order"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed between two checkpoints; prints as one line per change."""

    changes: tuple[Change, ...]

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __getitem__(self, index: int) -> Change:
        return self.changes[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "no change"


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread in a listing."""

    id: str
    kind: str
    agent: str | None
    created_at: dt.datetime
    updated_at: dt.datetime
    step: int
    checkpoints: int
    """The same as `in_view`, an older name."""
    head_id: str
    forked_from: str | None
    """The id of the checkpoint it was forked from."""
    damaged: str | None = None
    """Why the head is not known, if it is not: `step` and `head_id` are then the last that are known."""
    in_view: int = field(init=False)
    """How many checkpoints `history()` gives: not what was rewound away."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_view", self.checkpoints)


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found."""

    conversation_id: str
    """The id of its thread."""
    message_id: str | None
    """The message's own `id`, if it has one."""
    snippet: str
    """The text around what was found."""
    role: str | None
    created_at: dt.datetime
    """When it was made, if it says so itself; else when the checkpoint was saved that brought it."""
    score: float
    """From 0 to 1: how much it is about what was looked for."""
    kind: str
    """The name space of its thread."""
    agent: str | None
    """The agent that its thread belongs to."""
    position: int
    """Its place in `messages` ..."""
    checkpoint_id: str
    """... of this checkpoint, which is the head of its thread."""
    cursor: str
    """Where to go on: `search(..., after=hit.cursor)`, or `after=hit`."""


def when(micros: int) -> dt.datetime:
    """Return an aware datetime in UTC; what is beyond the years 1 to 9999, as in a damaged row, is their end."""
    return _EPOCH + dt.timedelta(microseconds=min(max(micros, _FIRST), _LAST))


def micros(moment: dt.datetime) -> int:
    """Return microseconds since 1970."""
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


@dataclass(slots=True, eq=False)
class Saved:
    """What a value knows of where it is stored: the id of the checkpoint it was loaded from or saved as, if any."""

    head: str | None = None

    @classmethod
    def of(cls, other: object) -> Saved:
        """Return another one that knows the same; what `dataclasses.asdict` made of one knows nothing."""
        return Saved(other.head if isinstance(other, Saved) else None)


# -- agents and conversations ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent in a listing."""

    agent_id: str
    name: str | None
    """This and what follows is None if the agent's state is damaged."""
    agent_type: str | None
    version: int | None
    created_at: dt.datetime | None
    modified_at: dt.datetime | None
    damaged: str | None = None
    """What is damaged, if anything is."""
    cursor: str | None = field(default=None, compare=False)
    """Where to go on: `list(after=info.cursor)`."""


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """A conversation in a listing, without its messages."""

    id: str
    agent_id: str | None
    title: str | None
    message_count: int
    created_at: dt.datetime | None
    last_message_at: dt.datetime | None
    archived: bool
    tags: tuple[str, ...]
    metadata: dict[str, str]
    forked_from: str | None = None
    """The id of the conversation that it branched from ..."""
    forked_at: str | None = None
    """... and of the last message that both have; None if it left before the first one."""
    damaged: str | None = None
    """What is damaged, if anything is; then only the id and the agent are sure."""
    updated_at: dt.datetime | None = field(default=None, compare=False)
    """When it was last written to, by the clock of who did."""
    cursor: str | None = field(default=None, compare=False)
    """Where to go on: `list(..., after=info.cursor)`. None outside of a listing."""


@dataclass(frozen=True, slots=True)
class AgentCheckpoint:
    """A point to which an agent and all its conversations can be brought back."""

    id: str
    agent_id: str
    name: str
    description: str | None
    kind: str
    """One of manual, automatic, pre_operation, recovery."""
    created_at: dt.datetime
    size_bytes: int
    """Bytes of all the states that it holds."""
    checksum: str
    """The hash of the hashes of those states."""
    conversations: int
    """How many it holds."""
    damaged: bool = False
    """Whether its row is; then only its id is sure."""

    @property
    def checkpoint_type(self) -> str:
        """The same as `kind`."""
        return self.kind
