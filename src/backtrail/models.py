"""The values and reports that calls return. They are frozen and do no I/O."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Sentinel(Enum):
    """The sentinels MISSING and NEW, for arguments and fields in which None would be ambiguous."""

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
"""Marks an absent value where None could be a value."""
NEW: Final = Sentinel.NEW
"""The expectation that a thread does not exist yet."""

_SHOWN: Final = 60

T = TypeVar("T")


class Items(tuple[T, ...]):
    """A list inside a frozen value: a tuple that also equals a list of the same items."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return tuple.__ne__(self, tuple(other) if isinstance(other, list) else other)

    __hash__ = tuple.__hash__

    def __getitem__(self, at: Any) -> Any:
        item = tuple.__getitem__(self, at)
        return Items(item) if isinstance(at, slice) else item


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: `op` is "+" (added), "-" (removed) or "~" (changed). An absent `old` or `new` is MISSING."""

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
    """A change in the order of a dict's keys; `old` and `new` are the keys in order."""

    def __str__(self) -> str:
        return f"~ {str(self.path) or 'state'}: keys in another order"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


@dataclass(frozen=True, slots=True)
class Diff:
    """The changes between two checkpoints; prints as one line per change."""

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
    """An older name of `in_view`."""
    head_id: str
    forked_from: str | None
    """The id of the checkpoint that the thread was forked from."""
    damaged: str | None = None
    """Why the head is unknown; None if it is known. If unknown, `step` and `head_id` are the last known values."""
    in_view: int = field(init=False)
    """The number of checkpoints that `history()` returns. Checkpoints that a rewind took out of view do not count."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_view", self.checkpoints)


class Hits(list["Hit"]):
    """The hits of a search."""

    behind: int = 0
    """How many threads of the store have changes that the index lacks, if the search did not wait; 10,000 at most."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that matches a search."""

    conversation_id: str
    """The id of the message's thread."""
    message_id: str | None
    """The message's own `id`, if it has one."""
    snippet: str
    """The text around the match."""
    role: str | None
    created_at: dt.datetime
    """The message's own time, if it has one; else the time of the checkpoint that added the message."""
    score: float
    """How well the message matches, from 0 to 1."""
    kind: str
    """The name space of the message's thread."""
    agent: str | None
    """The agent of the message's thread."""
    position: int
    """The message's index in `messages` of the checkpoint `checkpoint_id`."""
    checkpoint_id: str
    """The head of the message's thread."""
    cursor: str
    """Continue the search after this hit with `search(..., after=hit.cursor)` or `after=hit`."""


def when(micros: int) -> dt.datetime:
    """Return an aware datetime in UTC, clipped to the years 1 to 9999: a damaged row may hold any number."""
    return _EPOCH + dt.timedelta(microseconds=min(max(micros, _FIRST), _LAST))


def micros(moment: dt.datetime) -> int:
    """Return the microseconds from 1970 to a moment."""
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


class Period(NamedTuple):
    """A time in microseconds since 1970: from `since` on, before `until`. None: no limit."""

    since: int | None = None
    until: int | None = None


ALWAYS: Final = Period()


@dataclass(slots=True, eq=False)
class Saved:
    """The id of the checkpoint that an agent or conversation was loaded from or saved as; None for a new value."""

    head: str | None = None

    @classmethod
    def of(cls, other: object) -> Saved:
        """Return a copy of a `Saved`; for any other value, such as a dict from `dataclasses.asdict`, an empty one."""
        return Saved(other.head if isinstance(other, Saved) else None)


@dataclass(frozen=True, slots=True)
class StatePart:
    """A value in a state, without its large parts: see `Checkpoint.part`."""

    type: str
    """One of object, array, set, text, bytes, number, boolean, null, other."""
    size: int
    """The bytes of the whole value."""
    count: int | None = None
    """The entries of a container, or the bytes of a long text; None for other values."""
    value: Any = MISSING
    """The whole value, if it is small; else `MISSING`."""
    entries: tuple[tuple[Any, StatePart], ...] = ()
    """Entries of a large container: their keys or positions, and their values without further entries."""


# -- agents and conversations ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent in a listing."""

    agent_id: str
    name: str | None
    """None if the agent's state is damaged, as are the fields that follow."""
    agent_type: str | None
    version: int | None
    created_at: dt.datetime | None
    modified_at: dt.datetime | None
    damaged: str | None = None
    """What is damaged, if anything is."""
    cursor: str | None = field(default=None, compare=False)
    """Continue the listing after this agent with `list(after=info.cursor)`."""


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
    """The id of the conversation that this one was forked from."""
    forked_at: str | None = None
    """The id of the last message that both conversations share; None if they share none."""
    damaged: str | None = None
    """What is damaged, if anything is. Then only the id and the agent are reliable."""
    updated_at: dt.datetime | None = field(default=None, compare=False)
    """The time of the last write, by the writer's clock."""
    cursor: str | None = field(default=None, compare=False)
    """Continue the listing after this conversation with `list(..., after=info.cursor)`. None outside a listing."""


@dataclass(frozen=True, slots=True)
class AgentCheckpoint:
    """A point to which an agent and all its conversations can be restored."""

    id: str
    agent_id: str
    name: str
    description: str | None
    kind: str
    """One of manual, automatic, pre_operation, recovery."""
    created_at: dt.datetime
    size_bytes: int
    """The bytes of all its states."""
    checksum: str
    """The hash of the hashes of its states."""
    conversations: int
    """The number of its conversations."""
    damaged: bool = False
    """Whether its row is damaged. Then only the id is reliable."""
    erased: tuple[str, ...] = ()
    """The ids of its conversations that were erased since. `conversations` counts them; a restore skips them."""

    @property
    def checkpoint_type(self) -> str:
        """Another name of `kind`."""
        return self.kind


@dataclass(frozen=True, slots=True)
class Stats:
    """The contents of a store in numbers."""

    threads: int
    """Plain threads: not those of agents, conversations and runs."""
    agents: int
    conversations: int
    runs: int
    checkpoints: int
    """The visible checkpoints of all threads, agents, conversations and runs, also those out of view."""
    agent_checkpoints: int
    """The points to which an agent and its conversations can be restored."""
    messages: int
    """The messages of the heads of all conversations."""
    chunks: int
    logical_bytes: int
    """The sum of the sizes of all visible checkpoints' states: the size if each checkpoint were a copy."""
    payload_bytes: int
    """The bytes that are stored for these states, compressed and shared."""
    stored_bytes: int
    """The bytes on disk."""
    indexed: int = 0
    """The messages in the search index, as of its last update."""
    index_bytes: int = 0
    """The bytes of the search index, a part of `stored_bytes`."""

    @property
    def sharing(self) -> float:
        """The ratio of logical bytes to payload bytes; 1.0 for an empty store."""
        return self.logical_bytes / self.payload_bytes if self.payload_bytes else 1.0


class PruneReport(int):
    """The number of checkpoints that a prune removes, as an int. `removed` and `kept` list them with the reasons."""

    removed: Sequence[tuple[str, str]]
    """(checkpoint id, reason)."""
    removed_from: Sequence[tuple[str, str]]
    """The thread of each checkpoint in `removed`: (kind, thread id)."""
    kept: Sequence[tuple[str, str, tuple[str, ...]]]
    """(checkpoint id, thread id, reasons). A prune of a store lists only threads that lose checkpoints."""
    kinds: Sequence[str]
    """The kind of the thread of each checkpoint in `kept`: thread, agent, conversation or run."""
    untouched: int
    """The number of threads that lose no checkpoint."""
    damaged: tuple[str, ...]
    """The ids of threads whose heads are unknown. They are skipped until a repair."""
    threads: tuple[tuple[str, str, str], ...]
    """(kind, thread id, reason) of threads that were removed as a whole, because they were idle."""
    reasons: dict[str, int]
    """The number of checkpoints that stay for each reason, in all threads."""
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
        """Make a report from the removed and the remaining checkpoints."""
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
    """The result of a garbage collection: the numbers of removed rows and chunks."""

    rows: int
    chunks: int
    bytes: int
    """The stored bytes of the removed chunks."""
    repacked: int = 0
    """The number of rows that were compressed again, to share the bytes of a chunk or to no longer need one."""


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """The keys of an encrypted store, counted."""

    store_id: str
    wrapped_by: str
    """The id of the caller's key that wraps the store's key."""
    generation: int
    """The number of the store's newest key."""
    generations: int
    """How many keys of the store are in use: more than one until a rotation of the data is complete."""
    threads: int
    """Threads that have a key."""
    older: int
    """Threads that have more than one key, or a key that an older key of the store wraps."""
    destroyed: int
    """Keys of threads that were destroyed, by erasing or by rotation."""
    orphans: int
    """Keys of threads that the store does not have. They do no harm."""


@dataclass(frozen=True, slots=True)
class KeyReport:
    """The result of a rotation of keys."""

    rows: int
    """Rows that were sealed with new keys."""
    chunks: int
    """Chunks that were sealed with new keys."""
    destroyed: int
    """Keys of threads that were destroyed."""


@dataclass(frozen=True, slots=True)
class ErasedThread:
    """A thread that was erased. Its id and its uid stay known; nothing of its content does."""

    kind: str
    """thread, conversation, run or agent; and of what belongs to them: journal, aside, checkpoint (of an agent)."""
    id: str
    agent: str | None
    uid: str
    """The end of the ids of its checkpoints. A new thread with the same id has the same uid."""
    checkpoints: int
    """The checkpoints that the store had of it, deleted ones included."""
    erased_at: dt.datetime
    fork: bool = False
    """Whether it was erased because it was forked from another thread that was erased."""


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """The evidence of an erasure: what was erased, what referred to it, and whether the bytes are overwritten."""

    threads: tuple[ErasedThread, ...]
    agent_checkpoints: tuple[tuple[str, str], ...]
    """(agent id, checkpoint id) of the agents' checkpoints that held an erased conversation. A restore skips it."""
    kept_forks: tuple[tuple[str, str], ...] = ()
    """(kind, thread id) of forks that stay, and hold messages of the erased thread: all, with `forks=False`.

    Otherwise only those whose id was used again: an agent's checkpoint still holds the older conversation.
    """
    remains: str | None = None
    """Why bytes may still be in the storage, and what to do. None if nothing is left in it."""
    keys_destroyed: int = 0
    """How many keys of an encrypted store were destroyed. Copies from before cannot be read without them."""

    @property
    def complete(self) -> bool:
        """Whether the storage has removed the bytes and overwritten them, as far as it can."""
        return self.remains is None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data, with times in ISO 8601."""
        return {
            "threads": [
                {
                    "kind": each.kind,
                    "id": each.id,
                    "agent": each.agent,
                    "uid": each.uid,
                    "checkpoints": each.checkpoints,
                    "erased_at": each.erased_at.isoformat(),
                    "fork": each.fork,
                }
                for each in self.threads
            ],
            "agent_checkpoints": [
                {"agent": agent, "checkpoint": checkpoint} for agent, checkpoint in self.agent_checkpoints
            ],
            "kept_forks": [{"kind": kind, "id": name} for kind, name in self.kept_forks],
            "complete": self.complete,
            "remains": self.remains,
            "keys_destroyed": self.keys_destroyed,
        }


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The contents of an export's file."""

    id: str
    """The id of the export, which a later export can continue."""
    path: str
    since: str | None
    """The id of the earlier export that this export continues, and that must be imported first; None for a full one."""
    threads: int
    """The threads in the file; in an export that continues another, the threads that have changed since."""
    rows: int
    checkpoints: int
    """An older name of `visible_rows`. `Stats.checkpoints` counts other things."""
    chunks: int
    bytes: int
    """The size of the file."""
    visible_rows: int = field(init=False)
    """The visible checkpoints of all threads, internal ones included.

    Internal threads hold agents' checkpoints, journals of runs, and notes on checkpoints of other threads.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "visible_rows", self.checkpoints)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import: the threads and rows that it added and changed."""

    id: str
    """The id of the export."""
    threads: int
    """The threads in the file."""
    created: int
    """The threads that the store did not have."""
    extended: int
    """The threads that the store had, and that got more rows."""
    rows: int
    checkpoints: int
    """An older name of `visible_rows`."""
    chunks: int
    marked: int
    """The existing rows that the import hid, made visible again, or tagged differently."""
    erased: tuple[tuple[str, str], ...] = ()
    """(kind, id) of threads that the exporting store has erased: the import erased them here, too."""
    refused: tuple[tuple[str, str], ...] = ()
    """(kind, id) of threads in the file that were erased in this store: they were not imported."""
    remains: str | None = None
    """If threads were erased: why bytes of them may still be in the storage, and what to do. See `ErasureReport`."""
    visible_rows: int = field(init=False)
    """The imported rows that are visible checkpoints of any thread, as in `ExportReport`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "visible_rows", self.checkpoints)

    @property
    def changed(self) -> bool:
        """Whether the import changed the store."""
        return bool(self.rows or self.marked)


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of a copy: the threads that it added, and the checkpoints that it compared."""

    threads: int
    """The threads of the source store."""
    created: int
    """The threads that the target store did not have."""
    extended: int
    """The threads that the target store had, and that got more rows."""
    checkpoints: int
    """The visible checkpoints of the source that the target has with the same root hash. Pruned ones do not count."""
    erased: tuple[tuple[str, str], ...] = ()
    """(kind, id) of threads that the source has erased: the copy erased them in the target, too."""
    refused: tuple[tuple[str, str], ...] = ()
    """(kind, id) of threads that were erased in the target: they were not copied."""
    remains: str | None = None
    """If threads were erased: why bytes of them may still be in the target, and what to do."""


@dataclass(frozen=True, slots=True)
class MigrateReport:
    """The result of a migration."""

    threads: int
    """The threads that were read."""
    migrated: int
    """The threads whose state was of an older version, and was saved in the newest."""
    failed: tuple[tuple[str, str, str], ...] = ()
    """(kind, thread id, reason) of threads that could not be migrated. They are unchanged."""

    @property
    def ok(self) -> bool:
        """Whether all threads are up to date."""
        return not self.failed


@dataclass(frozen=True, slots=True)
class Damage:
    """A checkpoint that cannot be read, and why."""

    checkpoint_id: str
    thread_id: str
    reason: str
    kind: str = "thread"
    """The name space of its thread: "checkpoint" for agents' checkpoints, "journal" for journals of runs."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """The readable part of a damaged thread."""

    thread_id: str
    kind: str
    lost: int
    """The checkpoints and moves of the head that cannot be read."""
    loads: int
    """The checkpoints that can be read."""
    head_id: str | None
    """The newest readable checkpoint that was the head. Rewind to it or fork it; a repair makes it the head."""
    head_lost: bool
    """Whether the current head cannot be read."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification: the data that it checked, and the damage that it found."""

    threads: int
    """The threads of all kinds, internal ones included."""
    checkpoints: int
    """An older name of `states_read`. `Stats.checkpoints` counts other things."""
    damaged: tuple[Damage, ...]
    misindexed: tuple[str, ...] = ()
    """The ids of threads whose messages `search` may miss. No data is lost; `reindex` repairs the index."""
    faults: tuple[str, ...] = ()
    """Descriptions of damage in files, tables, indexes and pins. `damaged` lists the checkpoints that it affects."""
    chunks: tuple[str, ...] = ()
    """The digests of damaged chunks, unused ones included."""
    salvage: tuple[Salvage, ...] = ()
    """The readable part of each thread in `damaged`."""
    repairs: tuple[str, ...] = ()
    """Descriptions of the repairs that `repair=True` made, or would make."""
    repaired: bool = False
    """Whether the repairs were made. The other fields then describe the store before them."""
    skipped: int = 0
    """Always 0: a verification reads every thread."""
    states_read: int = field(init=False)
    """The states that were read and checked: all visible ones except agents' checkpoints, with journals of runs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "states_read", self.checkpoints)

    @property
    def ok(self) -> bool:
        """Whether the verification found no damage."""
        return not (self.damaged or self.misindexed or self.faults or self.chunks)
