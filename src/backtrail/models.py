"""The plain values that calls return. All of them are frozen, and none of them does any I/O."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds, measured."""

    threads: int
    """Plain ones."""
    agents: int
    conversations: int
    runs: int
    checkpoints: int
    """Of all of these: those that can be loaded, in view or rewound away."""
    agent_checkpoints: int
    """The points to which an agent and its conversations can be brought back."""
    messages: int
    """In all conversations, as they are now."""
    chunks: int
    logical_bytes: int
    """The sizes of all visible checkpoints' states, added up: what whole copies would take."""
    payload_bytes: int
    """What they take instead: bytes of what is stored for states, compressed, and each once."""
    stored_bytes: int
    """Bytes on disk."""
    indexed: int = 0
    """Messages in the index of `search`, as of its last use."""
    index_bytes: int = 0
    """Bytes of that index: a part of the stored ones."""

    @property
    def sharing(self) -> float:
        """How many bytes of states there are for each byte that is stored for them; 1.0 if there are none."""
        return self.logical_bytes / self.payload_bytes if self.payload_bytes else 1.0


class PruneReport(int):
    """How many checkpoints went, or would go; `removed` says which, `kept` which stay, and both why."""

    removed: Sequence[tuple[str, str]]
    """(checkpoint id, reason)."""
    removed_from: Sequence[tuple[str, str]]
    """Of each in `removed`, its thread: (kind, thread id)."""
    kept: Sequence[tuple[str, str, tuple[str, ...]]]
    """(checkpoint id, thread id, reasons). When a store is pruned, only of threads of which something goes."""
    kinds: Sequence[str]
    """Of each in `kept`, what its thread is: thread, agent, conversation or run."""
    untouched: int
    """How many threads there were of which nothing goes."""
    damaged: tuple[str, ...]
    """The ids of threads that were passed over: it is not known where their heads are, until a repair."""
    threads: tuple[tuple[str, str, str], ...]
    """(kind, thread id, reason): those that went as a whole, because they were idle. Their checkpoints are removed."""
    reasons: dict[str, int]
    """How many checkpoints stay for each reason, in all threads, also in those of which nothing goes."""
    dry_run: bool

    def __new__(
        cls,
        removed: Sequence[tuple[str, str]],
        kept: Sequence[tuple[str, str, tuple[str, ...]]] = (),
        *,
        removed_from: Sequence[tuple[str, str]] = (),
        kinds: Sequence[str] = (),
        untouched: int = 0,
        damaged: tuple[str, ...] = (),
        threads: tuple[tuple[str, str, str], ...] = (),
        reasons: dict[str, int] | None = None,
        dry_run: bool,
    ) -> Self:
        """Make a report of what was removed and what was kept."""
        made = super().__new__(cls, len(removed))
        made.removed = removed
        made.removed_from = removed_from
        made.kept = kept
        made.kinds = kinds
        made.untouched = untouched
        made.damaged = damaged
        made.threads = threads
        made.reasons = reasons or {}
        made.dry_run = dry_run
        return made

    def __repr__(self) -> str:
        return f"PruneReport({int(self)} {'would go' if self.dry_run else 'went'})"


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection removed."""

    rows: int
    chunks: int
    bytes: int
    """Bytes of the chunks that went, as they were stored."""
    repacked: int = 0
    """Rows that were stored anew, because a chunk holds, or no longer holds, what they hold."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What is in the file of an export."""

    id: str
    """By which a later export can name it."""
    path: str
    since: str | None
    """The id of the export that it continues: whoever imports it needs that one first."""
    threads: int
    """Those that are in it; of an export that continues another, those that have changed since."""
    rows: int
    checkpoints: int
    """The same as `visible_rows`, an older name: `Stats.checkpoints` counts something else."""
    chunks: int
    bytes: int
    """The size of the file."""
    visible_rows: int = field(init=False)
    """Rows that are visible checkpoints of any thread, also of those that a store keeps for itself.

    Those are agents' checkpoints, journals of runs, and what stands beside threads.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "visible_rows", self.checkpoints)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import has added, and changed."""

    id: str
    """That of the export."""
    threads: int
    """Those in the file."""
    created: int
    """Those that were not here."""
    extended: int
    """Those that have gone on."""
    rows: int
    checkpoints: int
    """The same as `visible_rows`, an older name."""
    chunks: int
    marked: int
    """Rows that were here, and are hidden, shown again or tagged otherwise now."""
    visible_rows: int = field(init=False)
    """Rows that came and are visible checkpoints of any thread, as in `ExportReport`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "visible_rows", self.checkpoints)

    @property
    def changed(self) -> bool:
        """Whether anything did."""
        return bool(self.rows or self.marked)


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy has added, and what was compared."""

    threads: int
    """Those of the store that was copied."""
    created: int
    """Those that were not there."""
    extended: int
    """Those that have gone on."""
    checkpoints: int
    """Visible ones of the store that was copied, each with the same root in both; not what was pruned in the other."""


@dataclass(frozen=True, slots=True)
class MigrateReport:
    """What was brought up to date."""

    threads: int
    """Those that were looked at."""
    migrated: int
    """Those whose state was of an older version, and was saved anew."""
    failed: tuple[tuple[str, str, str], ...] = ()
    """(kind, thread id, reason): those that could not be; they are as they were."""

    @property
    def ok(self) -> bool:
        """Whether everything is up to date."""
        return not self.failed


@dataclass(frozen=True, slots=True)
class Damage:
    """A checkpoint that cannot be read, and why."""

    checkpoint_id: str
    thread_id: str
    reason: str
    kind: str = "thread"
    """The name space of its thread. Agents' checkpoints are "checkpoint", and what runs go on from is "journal"."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """What is left of a thread in which something is damaged."""

    thread_id: str
    kind: str
    lost: int
    """Checkpoints, and moves of the head, that cannot be read."""
    loads: int
    """Checkpoints that can."""
    head_id: str | None
    """The newest of these that was the head: where to rewind to, or to fork; a repair makes it the head."""
    head_lost: bool
    """Whether it is not the head."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at, and what is damaged."""

    threads: int
    """Threads of all kinds, also those that a store keeps for itself."""
    checkpoints: int
    """The same as `states_read`, an older name: `Stats.checkpoints` counts something else."""
    damaged: tuple[Damage, ...]
    misindexed: tuple[str, ...] = ()
    """The ids of threads whose messages `search` may miss; `reindex` mends that. No data is lost."""
    faults: tuple[str, ...] = ()
    """What is wrong with files, tables, indexes and pins, in words. What it means for checkpoints is in `damaged`."""
    chunks: tuple[str, ...] = ()
    """The digests of damaged chunks, those that nothing needs included."""
    salvage: tuple[Salvage, ...] = ()
    """For each thread in `damaged`, what still loads."""
    repairs: tuple[str, ...] = ()
    """What `repair=True` has done, or would do, in words."""
    repaired: bool = False
    """Whether it was done: then all of the above is what was found before, and is no longer so."""
    skipped: int = 0
    """Threads that were not looked at, since an interrupted call had found them sound; see `resume`."""
    states_read: int = field(init=False)
    """States that were read and checked: all visible ones but agents' checkpoints, journals of runs included."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "states_read", self.checkpoints)

    @property
    def ok(self) -> bool:
        """Whether nothing is, or was, damaged."""
        return not (self.damaged or self.misindexed or self.faults or self.chunks)
