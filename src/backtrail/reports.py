"""Reports: what a store holds, and what upkeep and moves have done. All of them are frozen, and none does any I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


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
