"""Verification: read everything, compare it with its checksums, and name the damage.

Rows have checksums, states have root hashes, chunks have digests. Verification also checks the head of each thread,
the lookups and listings of threads, the search index, and the pointers of agent checkpoints.

This module only reads. `ThreadDamage` and `AgentDamage` describe the damage of one thread and of one agent's
checkpoints. `repair` reads them to mend the damage, and `report` reads them to list the steps of a repair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.backends.port import JUMP
from backtrail.engine import log, manifests
from backtrail.engine.bulk import BulkReader
from backtrail.engine.search import indexer
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance import gc
from backtrail.maintenance.readable import Reading, is_chunk_sound, read_below
from backtrail.models import Damage, Salvage, VerifyReport

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

    from backtrail.backends.port import Row, ThreadRecord, ThreadTip
    from backtrail.engine.manifests import Manifest, ManifestInfo, Names, Pointer
    from backtrail.engine.reader import LogReader, StoreReader

    Progress = Callable[[str, int], None] | None

_PAGE: Final = 500
_LOOKS: Final = 5
"""How often a thread or agent that seems damaged is checked while other processes write to it."""
_ALL: Final = [(1, log.MAX_SEQ)]


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
    """The seqs of rows with wrong checksums that later checkpoints refer to in `view`."""
    loads: int = 0
    """How many visible checkpoints can be read."""
    head: int = 0
    """The seq of the head; if that cannot be read, of the newest readable head, for a repair; 0 if there is none."""
    head_lost: bool = False
    """Whether a repair must move the head: the newest row is lost or unsound, or its head cannot be read."""
    head_hidden: bool = False
    """Whether the head can be read, but is hidden."""
    last: int = 0
    """The seq of the newest row if the index knows it and the row is missing; else 0."""
    created_at: int | None = None
    """The creation time that a repair sets, if the record's is impossible: that of the first sound row, or now."""

    @property
    def sound(self) -> bool:
        """Whether the thread is undamaged."""
        return not (self.lost or self.head_lost or self.head_hidden) and self.created_at is None


@dataclass(slots=True)
class AgentDamage:
    """The damage of the checkpoints of one agent."""

    record: ThreadRecord
    newest: Row
    lost: dict[int, dict[Names, str]] = field(default_factory=dict)
    """For each manifest, by seq: the threads for which it points at a lost row, with the reasons."""
    checkpoints: set[int] = field(default_factory=set)
    """The seqs in `lost` that are checkpoints of the user, not internal manifests."""
    stale: str | None = None
    """Why the next manifest cannot build on the newest one, or None."""
    unpinned: list[tuple[int, int]] = field(default_factory=list)
    """(thread number, seq) of rows that a manifest points at and that have no pin."""
    untouched: list[ThreadRecord] = field(default_factory=list)
    """Threads whose head differs from the newest manifest, but that are not marked as touched."""

    @property
    def sound(self) -> bool:
        """Whether the checkpoints are undamaged."""
        return not (self.lost or self.stale or self.unpinned or self.untouched)


@dataclass(slots=True)
class Findings:
    """The result of a verification: counts, and the damage that it found."""

    threads: int = 0
    checkpoints: int = 0
    damaged: list[ThreadDamage] = field(default_factory=list)
    agents: list[AgentDamage] = field(default_factory=list)
    """The agents whose checkpoints point at lost rows, or whose newest manifest misses a change."""
    chunks: list[bytes] = field(default_factory=list)
    """The digests of damaged chunks."""
    misindexed: list[ThreadRecord] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def examine(reader: StoreReader, progress: Progress = None) -> Findings:
    """Read the whole store and return the damage."""
    reader = reader.uncached()  # a cached node would hide a damaged chunk
    findings = Findings()
    good: set[bytes] = set()
    _scan_threads(reader, findings, good, progress)
    lost = {(each.record.space, each.record.name): each.lost for each in findings.damaged}
    findings.agents = list(check_agents(reader, lost))
    findings.misindexed = list(misindexed(reader, progress))
    _scan_chunks(reader, findings, good, progress)
    return findings


# -- threads ------------------------------------------------------------------------------------------


def _scan_threads(reader: StoreReader, findings: Findings, good: set[bytes], progress: Progress) -> None:
    listed: dict[str, set[tuple[int, int]]] = {}
    for record in gc.threads(reader):
        if record.space not in listed:
            listed[record.space] = _listed(reader, record.space)
        findings.threads += 1
        before = findings.checkpoints

        def report_count(count: int, before: int = before) -> None:
            if progress:
                progress("checkpoints", before + count)

        try:
            damage, count = scan_thread(reader, record, good, report_count)
        except Corrupt as error:  # the storage itself is damaged
            findings.faults.append(f"{record.space} {record.name!r}: {error}")
            continue
        findings.checkpoints += count if record.space != manifests.SPACE else 0
        if damage is not None:
            findings.damaged.append(damage)
        findings.faults += _misfiled(reader, record, listed[record.space])


def scan_thread(
    reader: StoreReader, record: ThreadRecord, good: set[bytes], report_count: Callable[[int], None] = lambda _: None
) -> tuple[ThreadDamage | None, int]:
    """Read a thread; return its damage (None if it is sound) and the number of its visible checkpoints.

    The digests of sound chunks are added to `good`. `report_count` gets the number of checkpoints read so far.
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
            break  # else scan again: a write or collection by another process can look like damage
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
        """Tell whether the thread still has the same newest row and the same pins."""
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
                damage.lost[newest.head] = "its row is missing, and it is the head"
            if row is not None and row.hidden and newest.head not in damage.lost and self._can_be_read(row):
                damage.head, damage.head_hidden = newest.head, True
            else:
                damage.head_lost = True

    def _check_last(self) -> None:
        """Record the newest row as lost if the index knows a higher seq than the thread has."""
        last = self._reader.backend.last_seq(self._record.no)  # read this first: rows added later are not lost
        newest = self._reader.backend.newest(self._record.no)
        if newest is not None and newest.seq < last <= newest.seq + JUMP:
            self._damage.last, self._damage.head_lost = last, True
            self._damage.lost[last] = "its row is missing, and the index has it as the newest row"

    def _can_be_read(self, row: Row) -> bool:
        try:
            read_below(self._reader, self._reader.chain(self._record, row).tree, self._good)
        except (Corrupt, NotFound):
            self._damage.lost[row.seq] = "it is the head, but it is hidden and cannot be read"
            return False
        return True


def _listed(reader: StoreReader, space: str) -> set[tuple[int, int]]:
    """Return (number, newest seq) of every thread of a name space that `Reader.threads` lists."""
    entries: set[tuple[int, int]] = set()
    after: tuple[int, int] | None = None
    while page := reader.backend.threads(space=space, agent=None, prefix=None, after=after, limit=_PAGE):
        page_entries = {(record.no, newest.seq) for record, newest in page}
        if page_entries <= entries:
            break  # a damaged row made a cursor that repeats a page: `_is_listed` looks up the other threads
        entries |= page_entries
        after = (page[-1][1].created_at, page[-1][0].no)
    return entries


def _misfiled(reader: StoreReader, record: ThreadRecord, listed: Container[tuple[int, int]]) -> list[str]:
    """Return a message for each lookup that misses the thread: by name, by uid, or in listings."""
    backend = reader.backend
    what = f"{record.space} {record.name!r}"
    faults: list[str] = []
    for lookup, result in (
        ("by its name", backend.find_thread(record.space, record.name)),
        ("by the ids of its checkpoints", backend.thread_with_uid(record.uid)),
    ):
        if result is None or result.no != record.no:
            faults.append(f"{what} is not found {lookup}")
    newest = backend.newest(record.no)
    if newest is not None and bool(newest.head) != ((record.no, newest.seq) in listed):
        faults += (
            []
            if _is_listed(reader, record, newest)
            else [f"{what} is missing in listings, or listed although it has no head"]
        )
    return faults


def _is_listed(reader: StoreReader, record: ThreadRecord, newest: Row) -> bool:
    """Tell whether a second lookup lists the thread correctly, or another process has written to the thread."""
    after = (
        newest.created_at,
        record.no + 1,
    )  # a listing after this cursor begins with the thread, unless it has a newer row
    page = reader.backend.threads(space=record.space, agent=record.agent, prefix=record.name, after=after, limit=1)
    if bool(newest.head) == ([(each.no, row.seq) for each, row in page] == [(record.no, newest.seq)]):
        return True
    current, newest_now = reader.backend.thread(record.no), reader.backend.newest(record.no)
    return newest_now is None or newest_now.op_id != newest.op_id or current != record


# -- agent checkpoints ----------------------------------------------------------------------------------
#
# Each pointer of a manifest must lead to a pinned row that can be read. The newest manifest of an agent must be up to
# date: it points at the head of each untouched thread. `backtrail.engine.manifests` explains manifests and pins.


class _Pointee(NamedTuple):
    """The row that a pointer leads to."""

    reason: str | None
    """Why the row is lost, or None."""
    row: tuple[int, int]
    """(thread number, seq); number 0 if the thread is missing."""
    is_pinned: bool
    is_erased: bool = False
    """Whether the thread was erased after the row: then nothing is lost."""


def check_agents(reader: LogReader, lost: Mapping[Names, Mapping[int, str]]) -> Iterator[AgentDamage]:
    """Yield the damage of each agent with damaged checkpoints. `lost` has the lost rows of each thread, by seq."""
    for record in gc.threads(reader):
        if record.space == manifests.SPACE:
            damage = check_agent(reader, record, lost)
            if damage is not None:
                yield damage


def check_agent(reader: LogReader, record: ThreadRecord, lost: Mapping[Names, Mapping[int, str]]) -> AgentDamage | None:
    """Return the damage of one agent's checkpoints, or None."""
    damage: AgentDamage | None = None
    for _ in range(_LOOKS):
        newest = reader.backend.newest(record.no)
        if newest is None or not newest.head or not log.is_sound(newest, record.uid):
            return None  # it has no manifest, or its thread must be repaired first
        one = _ManifestCheck(reader, record, newest, lost)
        damage = one.damage()
        if damage.sound:
            return None
        if one.is_current():
            break  # else check again: another writer has made or deleted a manifest
    return damage


class _ManifestCheck:
    """Checks all manifests of an agent that are in use."""

    def __init__(
        self, reader: LogReader, record: ThreadRecord, newest: Row, lost: Mapping[Names, Mapping[int, str]]
    ) -> None:
        self._reader = reader
        self._backend = reader.backend
        self._record = record
        self._lost = lost
        self._own_lost = lost.get((manifests.SPACE, record.name), {})
        self._damage = AgentDamage(record, newest)
        self._seqs: list[int] = []

    def damage(self) -> AgentDamage:
        """Check the manifests and return their damage."""
        damage, head, agent = self._damage, self._damage.newest.head, self._record.name
        tips = self._backend.tips(agent, touched=False)
        rows = self._backend.rows(self._record.no, _ALL, visible=True)
        self._seqs = [row.seq for row in rows]
        read = {row.seq: each for row in rows if (each := self._read(row)) is not None}
        if head not in read:
            return damage  # its thread must be repaired first
        newest, manifest = read[head]
        if not {seq for pair in newest.undo for seq in pair} <= set(self._seqs) - self._own_lost.keys():
            damage.stale = "the data to undo its restores is lost"
        infos = {seq: info for seq, (info, _) in read.items() if manifests.in_use(seq, info, head, newest)}
        pointers = {seq: read[seq][1].pointers(agent) for seq in infos}
        pointees = self._follow({pointer for each in pointers.values() for pointer in each.items()})
        # Read this last, so that it includes threads that were written to during the check.
        touched = {tip.record.no for tip in self._backend.tips(agent, touched=True)}
        for seq, info in infos.items():
            exempt = touched if seq == head and info.role == manifests.AFTER else set()
            for names, pointer in pointers[seq].items():
                pointee = pointees[names, pointer]
                if pointee.row[0] not in exempt:
                    self._note(seq, info, names, pointee)
        affected = (damage.lost.keys() - damage.checkpoints) | (damage.lost.keys() & {head})
        if affected and damage.stale is None:
            damage.stale = "it points at lost data"
        damage.untouched = _changed(manifest.pointers(agent), [tip for tip in tips if tip.record.no not in touched])
        return damage

    def is_current(self) -> bool:
        """Tell whether the manifests are still those that were checked."""
        newest = self._backend.newest(self._record.no)
        rows = self._backend.rows(self._record.no, _ALL, visible=True)
        same = newest is not None and newest.op_id == self._damage.newest.op_id
        return same and [row.seq for row in rows] == self._seqs

    def _read(self, row: Row) -> tuple[ManifestInfo, Manifest] | None:
        """Return the info and the content of a manifest; None if its row is damaged or lost, which `verify` reports."""
        if row.seq in self._own_lost or not log.is_sound(row, self._record.uid):
            return None
        try:
            return manifests.info_of(row), manifests.manifest_of(self._reader, self._record, row)
        except (Corrupt, NotFound):
            return None

    def _follow(self, pointers: Collection[tuple[Names, Pointer]]) -> dict[tuple[Names, Pointer], _Pointee]:
        records = BulkReader(self._reader).records({names for names, _ in pointers})
        spans = [(records[names].no, at.seq, at.seq) for names, at in pointers if names in records]
        rows = self._backend.rows_of(spans)
        pins = {record.no: self._backend.pins(record.no) for record in records.values()}
        missing = [
            (names, at) for names, at in pointers if names in records and (records[names].no, at.seq) not in rows
        ]
        erased = {
            (names, at)
            for names, at in missing
            if manifests.erased_among(self._reader, {names: (records[names], at.seq)})
        }
        pointees: dict[tuple[Names, Pointer], _Pointee] = {}
        for names, at in pointers:
            record = records.get(names)
            if record is None:
                pointees[names, at] = _Pointee("its thread is missing", (0, at.seq), is_pinned=False)
                continue
            place = record.no, at.seq
            reason = self._lost.get(names, {}).get(at.seq)
            if place not in rows or rows[place].root != at.root:
                reason = reason or "its checkpoint is missing"
            is_pinned = self._record.uid in pins[record.no].get(at.seq, ())
            pointees[names, at] = _Pointee(reason, place, is_pinned=is_pinned, is_erased=(names, at) in erased)
        return pointees

    def _note(self, seq: int, info: ManifestInfo, names: Names, pointee: _Pointee) -> None:
        if pointee.is_erased:
            return
        if pointee.reason is not None:
            self._damage.lost.setdefault(seq, {})[names] = pointee.reason
            if info.role == manifests.CHECKPOINT:
                self._damage.checkpoints.add(seq)
        elif not pointee.is_pinned and pointee.row not in self._damage.unpinned:
            self._damage.unpinned.append(pointee.row)


def _changed(pointers: Mapping[Names, Pointer], tips: list[ThreadTip]) -> list[ThreadRecord]:
    """Return the agent and conversation threads whose head differs from the manifest's pointer."""
    changed: list[ThreadRecord] = []
    for tip in tips:
        pointer = pointers.get((tip.record.space, tip.record.name))
        if tip.record.space in (manifests.AGENT, manifests.CONVERSATION) and tip.newest.head != (
            pointer.seq if pointer else 0
        ):
            changed.append(tip.record)
    return changed


# -- the rest -----------------------------------------------------------------------------------------


def misindexed(reader: StoreReader, progress: Progress) -> Iterator[ThreadRecord]:
    """Yield the threads whose search index list is wrong, or is out of date without a mark that says so."""
    for count, record in enumerate(gc.threads(reader), 1):
        if progress:
            progress("index", count)
        if not indexer.is_correct(reader, record) or (not reader.backend.read_only and _unmarked(reader, record)):
            yield record


def _unmarked(reader: StoreReader, record: ThreadRecord) -> bool:
    """Tell whether the index list of a thread is out of date, and the thread has no mark."""
    backend = reader.backend
    newest = backend.newest(record.no)
    if newest is None or backend.unindexed(record.no - 1, 1) == [record.no]:
        return False
    indexed = backend.indexed(record.no)
    head = newest.head if log.is_sound(newest, record.uid) else indexed.seq
    if (indexed.as_of, indexed.seq) == (newest.seq, head) or backend.unindexed(record.no - 1, 1) == [record.no]:
        return False
    newest_now = backend.newest(record.no)  # another process may have written since
    return newest_now is not None and newest_now.op_id == newest.op_id


def _scan_chunks(reader: StoreReader, findings: Findings, good: set[bytes], progress: Progress) -> None:
    """Check the chunks that no state refers to, because a later save of the same content would reuse them."""
    count = 0
    after = b""
    read = reader.backend.addresses(good)
    while page := reader.backend.chunk_page(after, _PAGE):
        findings.chunks += damaged_chunks(reader, [address for address, _ in page if address not in read])
        after = page[-1][0]
        count += len(page)
        if progress:
            progress("chunks", count)


def damaged_chunks(reader: StoreReader, addresses: Sequence[bytes]) -> list[bytes]:
    """Return the addresses of the chunks whose stored bytes do not match their digest. Missing chunks are ignored."""
    return reader.backend.damaged_chunks(addresses, is_chunk_sound)


# -- the report ---------------------------------------------------------------------------------------


def report(findings: Findings, faults: list[str], repairs: tuple[str, ...], *, repaired: bool) -> VerifyReport:
    """Return the findings as the `VerifyReport` for callers."""
    times = [
        f"{each.record.space} {each.record.name!r}: its creation time is damaged"
        for each in findings.damaged
        if each.created_at is not None
    ]
    return VerifyReport(
        threads=findings.threads,
        checkpoints=findings.checkpoints,
        damaged=(
            *(damage for each in findings.damaged for damage in _checkpoint_damage(each)),
            *(damage for each in findings.agents for damage in _agent_damage(each)),
        ),
        misindexed=tuple(record.name for record in findings.misindexed),
        faults=(*faults, *times, *(fault for each in findings.agents for fault in _agent_faults(each))),
        chunks=tuple(address.hex() for address in findings.chunks),
        salvage=tuple(_salvage(each) for each in findings.damaged),
        repairs=repairs,
        repaired=repaired,
    )


def _checkpoint_damage(damage: ThreadDamage) -> Iterator[Damage]:
    record = damage.record
    reasons = dict(damage.lost)
    if damage.head_hidden:
        reasons.setdefault(damage.head, "it is the head and loads, but it is marked as deleted")
    for seq, reason in sorted(reasons.items()):
        yield Damage(log.checkpoint_id(record.uid, seq), record.name, reason, record.space)


def _agent_damage(damage: AgentDamage) -> Iterator[Damage]:
    for seq in sorted(damage.checkpoints):
        losses = "; ".join(f"{space} {name!r}: {reason}" for (space, name), reason in sorted(damage.lost[seq].items()))
        checkpoint_id = log.checkpoint_id(damage.record.uid, seq)
        yield Damage(checkpoint_id, damage.record.name, f"it points at lost data: {losses}", manifests.SPACE)


def _agent_faults(damage: AgentDamage) -> Iterator[str]:
    agent = f"agent {damage.record.name!r}"
    if damage.stale:
        yield f"{agent}: its next checkpoint cannot build on the last one: {damage.stale}"
    if damage.unpinned:
        yield f"{agent}: gc may remove {len(damage.unpinned)} checkpoints that the agent's checkpoints need"
    if damage.untouched:
        names = ", ".join(repr(record.name) for record in damage.untouched[:5])
        yield f"{agent}: its next checkpoint would miss changes of {names}"


def _salvage(damage: ThreadDamage) -> Salvage:
    record = damage.record
    head = log.checkpoint_id(record.uid, damage.head) if damage.head else None
    return Salvage(record.name, record.space, len(damage.lost), damage.loads, head, damage.head_lost)
