"""Repair: write off rows and chunks that cannot be read, and make the rest work without them.

The backend repairs its storage first, because a broken table or index may only hide rows. Then everything is read, and
only the data that still cannot be read is written off:

- Threads: rows with a wrong checksum are removed, and checkpoints that cannot be read are hidden. If the head is among
  them, a new row makes the newest readable head the head again. A run stays at the point that its journal names. If the
  newest rows of the journal are lost, the run continues from its newest checkpoint or from the rest of the journal,
  whichever is newer.
- Agents: checkpoints drop their pointers to lost rows.
- Chunks: damaged chunks are removed, so that the next save of the same content stores them again.
- Search index: it is rebuilt if it is wrong.

Sound rows are not written to. Another process may store a missing chunk again, so the repair reads each thread and each
chunk again just before it changes it. Each step is one write that fails if another process wrote meanwhile. An
interrupted repair continues when it is called again.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backtrail.backends.port import Batch, NewThread, Stale, Vanished
from backtrail.engine import journal, log, manifests, rows
from backtrail.engine.reader import Tip
from backtrail.engine.search import indexer
from backtrail.engine.tree import edits
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.path import Path
from backtrail.engine.writer import Expect, LogWriter, ThreadKey
from backtrail.errors import Conflict, Corrupt, NotFound, Unavailable
from backtrail.maintenance import gc
from backtrail.maintenance.verify import (
    Findings,
    check_agent,
    check_agents,
    damaged_chunks,
    examine,
    report,
    scan_thread,
)
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.manifests import ManifestInfo
    from backtrail.engine.reader import StoreReader
    from backtrail.maintenance.verify import AgentDamage, ThreadDamage
    from backtrail.models import VerifyReport
    from backtrail.transaction import Engine

    Progress = Callable[[str, int], None] | None

_TRIES: Final = 20
_PAGE: Final = 500
_STORAGE_STEP: Final = (
    "the storage is repaired: files, tables and indexes are rebuilt in place, and orphaned rows are removed for good; "
    "if that fails, nothing is changed"
)
_MANIFEST_STEP: Final = "agent {!r}: the list of its threads is rebuilt, and its restores can no longer be undone"


def verify(engine: Engine, *, repair: bool, progress: Progress) -> VerifyReport:
    """Read and check the whole store, and repair it if `repair` is True; return the report."""
    check_progress(progress)
    reader = engine.outside()
    if repair and reader.backend.read_only:
        raise Unavailable(
            "this store was opened read-only: open it for writing to repair it", code="unavailable.read_only"
        )
    faults = list(reader.backend.check(progress))
    if repair and faults:
        _repair_storage(engine)
    findings = _examined(reader, progress)
    faults += findings.faults
    if repair and findings.faults:  # this may fix threads that lookups or listings miss
        _repair_storage(engine)
        findings = _examined(reader, progress)
    repairs = (*([_STORAGE_STEP] if faults else []), *steps(findings, reindex=bool(faults)))
    if repair:
        write_off(reader, findings, progress, reindex=bool(faults))
    return report(findings, faults, repairs, repaired=repair and bool(repairs))


def _repair_storage(engine: Engine) -> None:
    """Let the backend repair its storage, and drop the caches of the engine."""
    if engine.opened:
        raise Unavailable("this store has open transactions: end them, then repair it", code="unavailable.transaction")
    try:
        engine.outside().backend.repair()
    finally:
        engine.forget()


def _examined(reader: StoreReader, progress: Progress) -> Findings:
    """Return the findings; if the storage cannot be read at all, its error is the only fault."""
    try:
        return examine(reader, progress)
    except Corrupt as error:
        if error.code != "corrupt.store":
            raise
        return Findings(faults=[str(error)])


# -- the steps of a repair, for the report ---------------------------------------------------------------


def steps(findings: Findings, *, reindex: bool = False) -> Iterator[str]:
    """Yield a sentence for each step of a repair. With `reindex`, the search index is rebuilt in any case."""
    if findings.chunks:
        count = len(findings.chunks)
        what = "1 damaged chunk is" if count == 1 else f"{count} damaged chunks are"
        yield f"{what} removed: the next save of the same content stores {'it' if count == 1 else 'them'} again"
    for damage in findings.damaged:
        yield from _thread_steps(damage)
    for agent in findings.agents:
        yield from _agent_steps(agent)
    if findings.misindexed or reindex:
        yield "the search index is rebuilt"


def _thread_steps(damage: ThreadDamage) -> Iterator[str]:
    record = damage.record
    what = f"{record.space} {record.name!r}"
    if damage.lost:
        lost = "1 checkpoint or move is" if len(damage.lost) == 1 else f"{len(damage.lost)} checkpoints or moves are"
        stay = "1 checkpoint stays" if damage.loads == 1 else f"{damage.loads} checkpoints stay"
        yield f"{what}: {lost} lost, {stay}"
    if damage.views:
        yield f"{what}: a rewind or undo is lost: older checkpoints may be missing in its history; they load by id"
    if damage.created_at is not None:
        yield f"{what}: its creation time is reset to that of its first row"
    if damage.head_hidden:
        yield f"{what}: its hidden head {log.checkpoint_id(record.uid, damage.head)} becomes visible again"
    if damage.head_lost:
        head = log.checkpoint_id(record.uid, damage.head) if damage.head else None
        yield f"{what}: {f'its head moves back to {head}' if head else 'it has no head any more'}"
        if record.space == journal.SPACE:
            since = "that point" if damage.head else "its newest checkpoint, where it continues,"
            yield f"run {record.name!r}: calls after {since} may be repeated: check the run before you resume it"
        if record.space == manifests.SPACE:
            yield _MANIFEST_STEP.format(record.name)


def _agent_steps(damage: AgentDamage) -> Iterator[str]:
    name = f"agent {damage.record.name!r}"
    for seq, lost in damage.lost.items():
        if seq in damage.checkpoints:
            checkpoint_id = log.checkpoint_id(damage.record.uid, seq)
            if (manifests.AGENT, damage.record.name) in lost:
                yield f"{name}: its checkpoint {checkpoint_id} is removed, because its agent state is lost"
            else:
                names = ", ".join(sorted(repr(conversation) for _, conversation in lost))
                yield f"{name}: its checkpoint {checkpoint_id} loses the conversations {names}"
    if damage.stale:
        yield _MANIFEST_STEP.format(damage.record.name)
    if damage.unpinned or damage.untouched:
        yield f"{name}: {len(damage.unpinned)} pins are restored, {len(damage.untouched)} threads are marked as changed"


# -- the repair ------------------------------------------------------------------------------------------


def write_off(reader: StoreReader, findings: Findings, progress: Progress = None, *, reindex: bool = False) -> None:
    """Repair the threads, agents, chunks and search index that are still damaged; `reindex` as for `steps`.

    Rows that were lost after `examine` are added to the findings.
    """
    reader = reader.uncached()
    count = itertools.count(1)

    def report_step() -> None:
        done = next(count)
        if progress:
            progress("repairs", done)

    if findings.chunks:
        _remove_chunks(reader, findings.chunks)
        report_step()
    repaired: list[ThreadDamage] = []
    new_losses = False
    for finding in findings.damaged:
        damage = _ThreadRepair(reader, finding.record).run()
        if damage is not None:
            new_losses = new_losses or not damage.lost.keys() <= finding.lost.keys()
            finding.lost = damage.lost | finding.lost
            repaired.append(damage)
        report_step()
    lost = {(each.record.space, each.record.name): each.lost for each in repaired}
    without_head = {each.record.no for each in repaired if each.head_lost}
    agents = check_agents(reader, lost) if new_losses else findings.agents
    records = [each.record for each in repaired] + [each.record for each in agents]
    for record in {record.no: record for record in records}.values():
        if record.space == manifests.SPACE:
            _AgentRepair(reader, record, lost).run(rebuild=record.no in without_head)
            report_step()
    _unpin(reader, repaired)
    if findings.misindexed or reindex:
        reader.backend.clear_index()
        indexer.catch_up(reader, progress=progress)


def _remove_chunks(reader: StoreReader, addresses: Sequence[bytes]) -> None:
    """Remove the chunks that are still damaged; repeat until each chunk is gone or sound.

    Each round begins a new epoch before it reads the chunks, and chunks that are put or touched in that epoch stay. So
    a chunk that another process removed and put again is not removed. A damaged chunk that a writer touches meanwhile
    is removed in the next round. The checkpoint of that writer then misses a chunk instead of having a damaged one: a
    read and the next `verify` name it, and saving the same content completes it. A writer that commits after the
    removal gets `MissingChunks`, and puts the chunk.
    """
    for start in range(0, len(addresses), _PAGE):
        page = addresses[start : start + _PAGE]
        for _ in range(_TRIES):
            epoch = reader.backend.next_epoch()
            page = damaged_chunks(reader, page)
            if not page:
                break
            reader.backend.remove_chunks(page, epoch)
        else:
            raise Unavailable(
                "other processes keep writing damaged chunks; stop them and repair again", code="unavailable.contended"
            )


def _unpin(reader: StoreReader, repaired: list[ThreadDamage]) -> None:
    """Remove the pins of lost rows, so that a collection can remove the rows: no checkpoint points at them now."""
    for each in repaired:
        pins = reader.backend.pins(each.record.no, each.lost)
        unpin = tuple((each.record.no, seq, holder) for seq, holders in pins.items() for holder in holders)
        if unpin:
            reader.backend.commit(Batch(unpin=unpin))


class _ThreadRepair:
    """Repairs one thread."""

    def __init__(self, reader: StoreReader, record: ThreadRecord) -> None:
        self._reader = reader
        self._record = record

    def run(self) -> ThreadDamage | None:
        """Scan the thread and repair it; return the repaired damage, or None if the thread is sound now."""
        for _ in range(_TRIES):
            self._reader = self._reader.uncached()
            damage, _ = scan_thread(self._reader, self._record, set())
            if damage is None:
                return None
            try:
                self._repair(damage)
            except (Stale, Vanished):
                continue  # another process wrote to the thread
            if self._record.space == journal.SPACE and damage.head_lost:
                with suppress(Conflict):  # a worker opened the run
                    self._drop_lease()
            return damage
        raise Unavailable(
            f"thread {self._record.name!r} keeps changing; stop the processes that write to it, then repair again",
            code="unavailable.contended",
        )

    def _repair(self, damage: ThreadDamage) -> None:
        no = self._record.no
        if damage.unsound:
            self._make_bases(damage.unsound)
        move = self._move(damage) if damage.head_lost else None
        renewed = None if damage.created_at is None else self._record._replace(created_at=damage.created_at)
        batch = Batch(
            newest=((no, damage.newest.seq),),
            rows=() if move is None else ((no, move),),
            gaps=bool(damage.last),
            renew=() if renewed is None else (_touched(renewed),),
            visible=((no, damage.head),) if move is not None and damage.head and not damage.head_hidden else (),
            show=((no, damage.head),) if damage.head_hidden else (),
            hide=tuple((no, seq) for seq in damage.lost),
        )
        self._reader.backend.commit(batch)
        if damage.unsound:
            self._reader.backend.remove_rows(no, sorted(damage.unsound))

    def _drop_lease(self) -> None:
        """Remove the lease from the head of a run's journal: its worker may have left the run since."""
        tip = self._reader.tip_of(self._record)
        if tip is None or tip.head is None:
            return
        put = edits.Put(Path(("lease",)), None, manifests.PLAIN, self._record.name)
        meta, expect = rows.Meta(log.AUTOMATIC), Expect(tip.head.seq, tip.head.op_id)
        key = ThreadKey(self._record.space, self._record.name)
        LogWriter(self._reader).save(key, edits.Several([put]), meta, expect=expect)

    def _make_bases(self, unsound: set[int]) -> None:
        """Rewrite readable delta rows as base rows if their parent is unsound and will be removed."""
        for row in self._reader.backend.rows(self._record.no, [(min(unsound), log.MAX_SEQ)]):
            if row.op in log.CHECKPOINTS and row.parent in unsound and row.base != row.seq and row.seq not in unsound:
                gc.make_base(self._reader, self._record, row)

    def _move(self, damage: ThreadDamage) -> Row:
        """Return the row that moves the head to `damage.head`; if that is 0, the thread has no head afterwards.

        The row is a DROP, as for a deleted head. A REWIND would rewind the run of this thread, too.
        """
        head = self._reader.sound_row(self._record, damage.head) if damage.head else None
        if damage.head and head is None:
            raise Stale
        ranges = self._reader.path(self._record, head) if head else ()
        last = max(damage.last, damage.newest.seq)  # no seq is used twice
        tip = Tip(self._record, damage.newest._replace(seq=last), head)
        undo = damage.newest.seq if head else 0
        row = rows.move(tip, log.DROP, head, ranges, undo=undo, redo=0, at=self._reader.clock())
        return log.checked(row, self._record.uid)


class _AgentRepair:
    """Repairs the checkpoints of one agent."""

    def __init__(self, reader: StoreReader, record: ThreadRecord, lost: dict[tuple[str, str], dict[int, str]]) -> None:
        self._reader = reader
        self._backend = reader.backend
        self._record = record
        self._lost = lost

    def run(self, *, rebuild: bool) -> None:
        """Repair the checkpoints until no damage is left. Set `rebuild` if the newest manifest is lost."""
        for _ in range(_TRIES):
            damage = check_agent(self._reader, self._record, self._lost)
            if damage is None and not rebuild:
                return
            try:
                if damage is not None:
                    self._restore_pins(damage)
                if rebuild or (damage is not None and damage.stale):
                    self._rebuild_manifest(damage)
                if damage is not None:
                    self._write_off(damage)
            except (Stale, Vanished, Conflict):
                continue
            rebuild = False
        raise Unavailable(
            f"agent {self._record.name!r} keeps changing; stop the processes that write to it, then repair again",
            code="unavailable.contended",
        )

    def _restore_pins(self, damage: AgentDamage) -> None:
        """Pin the rows that have lost their pins, and mark changed threads as touched."""
        pin = tuple((no, seq, self._record.uid) for no, seq in damage.unpinned)
        if pin or damage.untouched:
            self._backend.commit(Batch(pin=pin, renew=tuple(map(_touched, damage.untouched))))

    def _rebuild_manifest(self, damage: AgentDamage | None) -> None:
        """Save an AFTER manifest without lost rows, as the base of the next one; touch all threads of the agent."""
        tip = self._reader.tip_of(self._record)
        tips = self._backend.tips(self._record.name, touched=False)
        self._backend.commit(Batch(renew=tuple(_touched(each.record) for each in tips)))
        if tip is None or tip.head is None:
            return  # no manifest can be read: the next one is made from all threads
        manifest = manifests.manifest_of(self._reader, self._record, tip.head)
        manifest = manifests.without(manifest, self._record.name, damage.lost.get(tip.head.seq, {}) if damage else {})
        tree = edits.Replace(manifest.state(), self._reader.nodes(), manifests.PLAIN)(None)[0]
        note = manifests.ManifestInfo(manifests.AFTER, size=manifest.size, conversations=len(manifest.conversations))
        meta = rows.Meta(log.AUTOMATIC, metadata=self._packed(note))
        expect = Expect(tip.head.seq, tip.head.op_id)
        after = LogWriter(self._reader).save(
            ThreadKey(manifests.SPACE, self._record.name), lambda _: (tree, None), meta, expect=expect
        )
        visible_rows = self._backend.rows(self._record.no, [(1, tip.newest.seq)], visible=True)
        obsolete = [
            row.seq for row in visible_rows if self._role(row) != manifests.CHECKPOINT and row.seq != after.newest.seq
        ]
        if obsolete:
            self._backend.commit(Batch(hide=tuple((self._record.no, seq) for seq in obsolete)))

    def _role(self, row: Row) -> str:
        try:
            return manifests.info_of(row).role
        except Corrupt:
            return ""

    def _write_off(self, damage: AgentDamage) -> None:
        """Hide checkpoints whose agent state is lost, and rewrite the others without pointers to lost rows."""
        own = (manifests.AGENT, self._record.name)
        hide = [seq for seq in damage.checkpoints if own in damage.lost[seq]]
        if hide:
            self._backend.commit(Batch(hide=tuple((self._record.no, seq) for seq in hide)))
        reduced = {seq: damage.lost[seq] for seq in damage.checkpoints if own not in damage.lost[seq]}
        if not reduced:
            return
        later = self._backend.rows(self._record.no, [(min(reduced), log.MAX_SEQ)], payload=True, visible=True)
        rewritten = [
            self._without_lost(row, reduced[row.seq]) if row.seq in reduced else self._as_base(row) for row in later
        ]
        changed = [each for each in rewritten if each is not None]
        put = {digest: stored for _, chunks in changed for digest, stored in chunks}
        self._backend.rewrite(self._record.no, [row for row, _ in changed], list(put.items()))

    def _without_lost(self, row: Row, lost: dict[tuple[str, str], str]) -> tuple[Row, list[tuple[bytes, bytes]]]:
        manifest = manifests.without(manifests.manifest_of(self._reader, self._record, row), self._record.name, lost)
        tree = edits.Replace(manifest.state(), self._reader.nodes(), manifests.PLAIN)(None)[0]
        note = manifests.info_of(row)._replace(size=manifest.size, conversations=len(manifest.conversations))
        extra = log.pack_extra(self._packed(note), None, None)
        return gc.as_base(self._reader, self._record, row._replace(root=tree.root, size=tree.size, extra=extra), tree)

    def _as_base(self, row: Row) -> tuple[Row, list[tuple[bytes, bytes]]] | None:
        """Return a manifest's row as a base row, with its chunks, because its parent may be rewritten.

        Return None if the row is a base row already, or cannot be read.
        """
        if row.base == row.seq or not log.is_sound(row, self._record.uid):
            return None
        try:
            return gc.as_base(self._reader, self._record, row, self._reader.chain(self._record, row).tree)
        except (Corrupt, NotFound):
            return None

    def _packed(self, note: ManifestInfo) -> bytes:
        return bytes(Encoder(self._reader.nodes(), manifests.PLAIN, what="metadata").rep(note.metadata()))


def _touched(record: ThreadRecord) -> tuple[int, NewThread]:
    """Return a `Batch.renew` entry that leaves a thread's record unchanged and touches the thread."""
    return record.no, NewThread(*record[1:])
