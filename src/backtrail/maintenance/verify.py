"""Verification: read everything, compare it with its checksums, and name the damage.

Rows have checksums, states have roots, chunks have digests. The head of each thread, the names and listings of threads,
the search index and the pointers of agent checkpoints are checked, too.

Nothing in this module writes. `ThreadDamage` describes the damage of one thread. `repair` acts on it, so a report can
list the steps of a repair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from backtrail.backends.port import JUMP
from backtrail.engine import log, manifests
from backtrail.engine.search import indexer
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance import agent_pointers, gc
from backtrail.maintenance.readable import Reading, is_chunk_sound, read_below
from backtrail.models import Damage, Salvage, VerifyReport

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import StoreReader
    from backtrail.maintenance.agent_pointers import AgentDamage

    Progress = Callable[[str, int], None] | None

_PAGE: Final = 500
_LOOKS: Final = 5
"""The most scans of a thread that seems damaged while other processes write to it."""


@dataclass(slots=True)
class ThreadDamage:
    """The damage of one thread, and the checkpoints of it that still load."""

    record: ThreadRecord
    newest: Row
    lost: dict[int, str] = field(default_factory=dict)
    """The reasons why rows cannot be read, by seq."""
    unsound: set[int] = field(default_factory=set)
    """The seqs of the rows whose checksum does not match."""
    views: set[int] = field(default_factory=set)
    """The seqs of unsound rows that later checkpoints name as their view."""
    loads: int = 0
    """How many visible checkpoints can be read."""
    head: int = 0
    """The seq of the head, or of the newest readable head, which a repair makes the head; 0 if there is none."""
    head_lost: bool = False
    """Whether the head must be moved: the newest row is lost or unsound, or its head cannot be read."""
    head_hidden: bool = False
    """Whether the head can be read, but is marked as hidden."""
    last: int = 0
    """The seq of the newest row if the index has seen it and the row is missing; else 0."""
    created_at: int | None = None
    """The created_at for a repair to set, if the record's own is impossible: that of the first sound row, or now."""

    @property
    def sound(self) -> bool:
        """Whether the thread is undamaged."""
        return not (self.lost or self.head_lost or self.head_hidden) and self.created_at is None


@dataclass(slots=True)
class Findings:
    """The result of a verification: counts, and the damage that it found."""

    threads: int = 0
    checkpoints: int = 0
    damaged: list[ThreadDamage] = field(default_factory=list)
    held: list[AgentDamage] = field(default_factory=list)
    """The damage of agents whose checkpoints point at lost rows, or whose newest manifest misses a change."""
    chunks: list[bytes] = field(default_factory=list)
    """The digests of damaged chunks."""
    misindexed: list[ThreadRecord] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def examine(reader: StoreReader, progress: Progress = None) -> Findings:
    """Read everything in the store and return the damage that was found."""
    reader = reader.uncached()  # a cached node must not stand in for a damaged chunk
    findings = Findings()
    good: set[bytes] = set()
    _scan_threads(reader, findings, good, progress)
    lost = {(each.record.space, each.record.name): each.lost for each in findings.damaged}
    findings.held = list(agent_pointers.check(reader, lost))
    findings.misindexed = list(misindexed(reader))
    _scan_chunks(reader, findings, good, progress)
    return findings


# -- threads ------------------------------------------------------------------------------------------


def _scan_threads(reader: StoreReader, findings: Findings, good: set[bytes], progress: Progress) -> None:
    listed = _listed(reader)
    for record in gc.threads(reader):
        findings.threads += 1
        before = findings.checkpoints

        def report_count(count: int, before: int = before) -> None:
            if progress:
                progress("checkpoints", before + count)

        try:
            damage, count = scan_thread(reader, record, good, report_count)
        except Corrupt as error:  # the storage itself cannot be read there
            findings.faults.append(f"{record.space} {record.name!r}: {error}")
            continue
        findings.checkpoints += count if record.space != manifests.SPACE else 0
        if damage is not None:
            findings.damaged.append(damage)
        findings.faults += _misfiled(reader, record, listed)


def scan_thread(
    reader: StoreReader, record: ThreadRecord, good: set[bytes], report_count: Callable[[int], None] = lambda _: None
) -> tuple[ThreadDamage | None, int]:
    """Read a thread; return its damage, or None, and the number of its visible checkpoints.

    Add the digests of sound chunks to `good`; call `report_count` with the number of checkpoints read so far.
    """
    result: tuple[ThreadDamage | None, int] = (None, 0)
    for _ in range(_LOOKS):
        newest = reader.backend.newest(record.no)
        if newest is None:
            break
        scan = _ThreadScan(reader, record, newest, good, report_count)
        damage = scan.run()
        result = (None if damage.sound else damage, scan.count)
        if damage.sound or scan.is_current():
            break  # else another process wrote or collected meanwhile, which can look like damage
    return result


class _ThreadScan:
    """Reads the rows of a thread once, up to the newest, and collects its damage."""

    def __init__(
        self,
        reader: StoreReader,
        record: ThreadRecord,
        newest: Row,
        good: set[bytes],
        report_count: Callable[[int], None],
    ) -> None:
        self._reader = reader
        self._record = record
        self._good = good
        self._report_count = report_count
        self._reading = Reading(reader, record)
        self._heads: list[int] = []
        """The `head` of each sound row, oldest first."""
        self._views: set[int] = set()
        """The seqs that sound checkpoints name as their view."""
        self._loads: set[int] = set()
        """The seqs of visible checkpoints that can be read."""
        self._first_time: int | None = None
        """The created_at of the first sound row."""
        self._damage = ThreadDamage(record, newest)
        self.count = 0

    def run(self) -> ThreadDamage:
        """Read the thread and return its damage."""
        damage = self._damage
        for page in gc.row_pages(self._reader, self._record, damage.newest.seq):
            for row in page:
                self._check_row(row)
            self._report_count(self.count)
        damage.loads = len(self._loads)
        damage.views = damage.unsound & self._views
        self._check_head()
        self._check_last()
        if abs(self._record.created_at) >= log.LATEST:
            damage.created_at = self._reader.clock() if self._first_time is None else self._first_time
        return damage

    def is_current(self) -> bool:
        """Tell whether the thread still has the same newest row and pins: without its pin, a row may be collected."""
        newest = self._reader.backend.newest(self._record.no)
        same = newest is not None and newest.op_id == self._damage.newest.op_id
        return same and self._reading.pinned <= manifests.pinned_seqs(self._reader, self._record)

    def _check_row(self, row: Row) -> None:
        reason = self._reading.reason(row, self._good)
        if reason is not None:
            self._damage.lost[row.seq] = reason
        self.count += row.op in log.CHECKPOINTS and not row.hidden
        if not log.is_sound(row, self._record.uid):
            self._damage.unsound.add(row.seq)
            return
        self._heads.append(row.head)
        if self._first_time is None:
            self._first_time = row.created_at
        if row.op in log.CHECKPOINTS:
            self._views.add(row.view)
            if reason is None and not row.hidden:
                self._loads.add(row.seq)

    def _check_head(self) -> None:
        damage, newest = self._damage, self._damage.newest
        damage.head = next((head for head in reversed(self._heads) if head in self._loads), 0)
        if newest.seq in damage.unsound:
            damage.head_lost = True
        elif newest.head and newest.head not in self._loads:
            row = self._reader.row(self._record, newest.head)
            if row is None:
                damage.lost[newest.head] = "it is the head, and its row is missing"
            if row is not None and row.hidden and newest.head not in damage.lost and self._can_be_read(row):
                damage.head, damage.head_hidden = newest.head, True
            else:
                damage.head_lost = True

    def _check_last(self) -> None:
        """Record the newest row as lost if the index has seen a higher seq than the thread has."""
        last = self._reader.backend.last_seq(self._record.no)  # first: rows that are added meanwhile are not lost
        newest = self._reader.backend.newest(self._record.no)
        if newest is not None and newest.seq < last <= newest.seq + JUMP:
            self._damage.last, self._damage.head_lost = last, True
            self._damage.lost[last] = "the index has seen it as the newest row, and it is missing"

    def _can_be_read(self, row: Row) -> bool:
        try:
            read_below(self._reader, self._reader.chain(self._record, row).tree, self._good)
        except (Corrupt, NotFound):
            self._damage.lost[row.seq] = "it is the head, is hidden, and cannot be read"
            return False
        return True


def _listed(reader: StoreReader) -> set[tuple[int, int]]:
    """Return (number, newest seq) of every thread that `Reader.threads` lists."""
    found: set[tuple[int, int]] = set()
    after: tuple[int, int] | None = None
    while page := reader.backend.threads(space=None, agent=None, prefix=None, after=after, limit=_PAGE):
        listed = {(record.no, newest.seq) for record, newest in page}
        if listed <= found:
            break  # the cursor came from a damaged row and repeats a page: `_is_listed` looks up the other threads
        found |= listed
        after = (page[-1][1].created_at, page[-1][0].no)
    return found


def _misfiled(reader: StoreReader, record: ThreadRecord, listed: Container[tuple[int, int]]) -> list[str]:
    """Return a message for each way in which a thread is not found: by name, by uid, or in listings."""
    backend = reader.backend
    what = f"{record.space} {record.name!r}"
    found: list[str] = []
    for way, there in (
        ("by its name", backend.find_thread(record.space, record.name)),
        ("by the ids of its checkpoints", backend.thread_with_uid(record.uid)),
    ):
        if there is None or there.no != record.no:
            found.append(f"{what} is not found {way}")
    newest = backend.newest(record.no)
    if newest is not None and bool(newest.head) != ((record.no, newest.seq) in listed):
        found += [] if _is_listed(reader, record, newest) else [f"{what} is not listed as what it is"]
    return found


def _is_listed(reader: StoreReader, record: ThreadRecord, newest: Row) -> bool:
    """Tell whether a second lookup lists the thread correctly, or another process wrote to the thread meanwhile."""
    after = (newest.created_at, record.no + 1)  # the thread comes first behind this cursor, unless it has a newer row
    page = reader.backend.threads(space=record.space, agent=record.agent, prefix=record.name, after=after, limit=1)
    if bool(newest.head) == ([(each.no, row.seq) for each, row in page] == [(record.no, newest.seq)]):
        return True
    there, again = reader.backend.thread(record.no), reader.backend.newest(record.no)
    return again is None or again.op_id != newest.op_id or there != record


# -- the rest -----------------------------------------------------------------------------------------


def misindexed(reader: StoreReader) -> Iterator[ThreadRecord]:
    """Yield the threads whose list in the search index is wrong, or is out of date although the thread has no mark."""
    for record in gc.threads(reader):
        if not indexer.is_true(reader, record) or (not reader.backend.read_only and _unmarked(reader, record)):
            yield record


def _unmarked(reader: StoreReader, record: ThreadRecord) -> bool:
    """Tell whether the index list of a thread is out of date, and the thread has no mark."""
    backend = reader.backend
    newest = backend.newest(record.no)
    if newest is None or backend.unindexed(record.no - 1, 1) == [record.no]:
        return False
    seen = backend.indexed(record.no)
    head = newest.head if log.is_sound(newest, record.uid) else seen.seq
    if (seen.as_of, seen.seq) == (newest.seq, head) or backend.unindexed(record.no - 1, 1) == [record.no]:
        return False
    again = backend.newest(record.no)  # else another process wrote meanwhile
    return again is not None and again.op_id == newest.op_id


def _scan_chunks(reader: StoreReader, findings: Findings, good: set[bytes], progress: Progress) -> None:
    """Read the chunks that no state refers to: a later save of the same content would rely on them."""
    count = 0
    after = b""
    while page := reader.backend.chunk_page(after, _PAGE):
        findings.chunks += damaged_chunks(reader, [digest for digest, _ in page if digest not in good])
        after = page[-1][0]
        count += len(page)
        if progress:
            progress("chunks", count)


def damaged_chunks(reader: StoreReader, digests: Sequence[bytes]) -> list[bytes]:
    """Return the digests of the chunks whose stored bytes do not match their digest; absent chunks are left out."""
    return [digest for digest, stored in reader.backend.chunks(digests).items() if not is_chunk_sound(digest, stored)]


# -- the report ---------------------------------------------------------------------------------------


def report(findings: Findings, faults: list[str], repairs: tuple[str, ...], *, repaired: bool) -> VerifyReport:
    """Return the findings as the `VerifyReport` for callers."""
    times = [
        f"{each.record.space} {each.record.name!r}: its time of creation is damaged"
        for each in findings.damaged
        if each.created_at is not None
    ]
    return VerifyReport(
        threads=findings.threads,
        checkpoints=findings.checkpoints,
        damaged=(
            *(damage for each in findings.damaged for damage in _checkpoint_damage(each)),
            *(damage for each in findings.held for damage in _agent_damage(each)),
        ),
        misindexed=tuple(record.name for record in findings.misindexed),
        faults=(*faults, *times, *(fault for each in findings.held for fault in _agent_faults(each))),
        chunks=tuple(digest.hex() for digest in findings.chunks),
        salvage=tuple(_salvage(each) for each in findings.damaged),
        repairs=repairs,
        repaired=repaired,
    )


def _checkpoint_damage(damage: ThreadDamage) -> Iterator[Damage]:
    record = damage.record
    reasons = dict(damage.lost)
    if damage.head_hidden:
        reasons.setdefault(damage.head, "it loads; but it is the head, and is marked as deleted")
    for seq, reason in sorted(reasons.items()):
        yield Damage(log.checkpoint_id(record.uid, seq), record.name, reason, record.space)


def _agent_damage(held: AgentDamage) -> Iterator[Damage]:
    for seq in sorted(held.checkpoints):
        losses = "; ".join(f"{space} {name!r}: {why}" for (space, name), why in sorted(held.lost[seq].items()))
        checkpoint_id = log.checkpoint_id(held.record.uid, seq)
        yield Damage(checkpoint_id, held.record.name, f"what it holds is lost: {losses}", manifests.SPACE)


def _agent_faults(held: AgentDamage) -> Iterator[str]:
    agent = f"agent {held.record.name!r}"
    if held.stale:
        yield f"{agent}: its next checkpoint cannot build on the record of its threads: {held.stale}"
    if held.unpinned:
        yield f"{agent}: a collection may remove {len(held.unpinned)} checkpoints that its own checkpoints hold"
    if held.untouched:
        names = ", ".join(repr(record.name) for record in held.untouched[:5])
        yield f"{agent}: its next checkpoint would miss changes of {names}"


def _salvage(damage: ThreadDamage) -> Salvage:
    record = damage.record
    head = log.checkpoint_id(record.uid, damage.head) if damage.head else None
    return Salvage(record.name, record.space, len(damage.lost), damage.loads, head, damage.head_lost)
