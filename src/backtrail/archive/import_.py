"""Import: the threads of a file become part of a store, all of them or none.

1. `plan_of` compares each thread of the file with the thread of the same uid in the store. One log must be the
   beginning of the other: at the seq where the shorter log ends, both have a row with the same op_id. (If the exporting
   store had collected that row, the newest row before it is compared.) Otherwise the logs have diverged: `Conflict`.
   - If the file has more rows, they are added, and the tags become those of the file.
   - If both logs end at the same row, tags are added, and none is removed.
   - If the store has more rows, the thread stays unchanged.
   In the first two cases, rows that the file hides become hidden in the store. Rows that the store hides stay hidden,
   unless one of the added rows makes them the head: the newest row, or a rewind.
   A thread that was erased in this store is not imported, unless the file has that erasure, too. If the exporting store
   has erased a thread, the import erases it here.
2. `_StateCheck` reads each new state from the file and the store, and compares it with its root. `_AgentNeeds` requires
   that the file or the store has every row that agent checkpoints point at.
3. The import writes everything in one group. If another process writes to one of the threads meanwhile, it starts over.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from backtrail.archive.reader import Archive
from backtrail.atomic_file import path_of
from backtrail.backends.port import (
    Batch,
    MissingChunks,
    Row,
    Stale,
    ThreadRecord,
    Undone,
    Vanished,
    pins_in,
    pins_of_rows,
    tags_in,
)
from backtrail.engine import journal, log, manifests
from backtrail.engine.bulk import BulkReader
from backtrail.engine.compression import squeeze
from backtrail.engine.reader import StoreReader
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.writer import PATIENCE
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.maintenance import erase, gc
from backtrail.maintenance.readable import Reading
from backtrail.models import ImportReport
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from backtrail.archive.envelope import Secret
    from backtrail.archive.format import ThreadEntry
    from backtrail.backends.port import Backend, NewThread
    from backtrail.engine.manifests import Manifest, ManifestInfo, Needs
    from backtrail.transaction import Engine

    Progress = Callable[[str, int], None]

_PAGE_ROWS: Final = 1000
_PAGE_BYTES: Final = 4 << 20
_LARGE: Final = 1 << 30
_DENSEST: Final = 1024
"""For states larger than `_LARGE`: the largest allowed ratio of a state's size to the bytes that it is read from."""
_WRITING: Final = "progress callbacks must not use the store during an import: use it before or after it"


def import_(engine: Engine, path: Any, progress: Progress | None, *, secret: Secret | None = None) -> ImportReport:
    """Import all threads of an export file into a store, or raise and write nothing. `secret` opens the file."""
    check_progress(progress)
    engine.outside()  # raises inside of a transaction, before the file is opened
    with Archive(path_of(path), progress, secret=secret) as archive:
        return import_archive(engine, archive, progress)


def import_archive(
    engine: Engine, archive: Archive, progress: Progress | None, *, verified: bool = False
) -> ImportReport:
    """Import all threads of an opened archive into a store, or raise and write nothing.

    `verified`: this process has just written the file, and checked every state of it. So the states of new threads
    are not checked again.
    """
    reader = engine.outside()

    def writing(what: str, count: int) -> None:
        if progress:
            with engine.barred(_WRITING):
                progress(what, count)

    counts = _import(reader, archive, progress, writing, verified=verified)
    remains = None
    if counts.erased:
        engine.forget()
        remains = erase.remove(reader, progress)
        records = [reader.backend.find_thread(*names) for names in counts.erased]
        erase.destroy_keys(reader, [record for record in records if record is not None])
    return ImportReport(archive.id, archive.totals.threads, *counts, remains)


def check(path: Any, progress: Progress | None, *, secret: Secret | None = None) -> str | None:
    """Read an export file to its end and raise if it is damaged. No store is needed.

    Return the id of the export that the file continues, or None.
    """
    with Archive(path_of(path), progress, secret=secret) as archive:
        return archive.since


class _Counts(NamedTuple):
    """The counts of an `ImportReport`: threads created and extended, items added, older rows changed (`marked`)."""

    created: int = 0
    extended: int = 0
    rows: int = 0
    checkpoints: int = 0
    chunks: int = 0
    marked: int = 0
    erased: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def _import(
    reader: StoreReader, archive: Archive, progress: Progress | None, writing: Progress, *, verified: bool
) -> _Counts:
    """Import an opened archive: an optimistic retry loop. `writing` reports progress while the group is open."""
    until = time.monotonic() + PATIENCE
    tries = 0
    while True:
        try:
            _require_known(reader.backend, archive)
            records = BulkReader(reader).records([entry.thread[:2] for entry in archive.entries])
            plans = [plan_of(reader.backend, archive, e, records.get(e.thread[:2])) for e in archive.entries]
            every = _with_refused_forks(reader.backend, plans)
            refused = [plan for plan in every if plan.refused]
            plans = [plan for plan in every if plan.has_changes]
            shared = _Shared(verified)
            for count, plan in enumerate(plans, 1):
                _StateCheck(reader, archive, plan, shared).run()
                if progress:
                    progress("threads", count)
            by_name = {(plan.entry.thread.space, plan.entry.thread.name): plan for plan in plans}
            gone = {plan.names: plan.entry.newest + 1 for plan in refused if plan.record is None}
            for needs in shared.agents:
                needs.require(reader.backend, archive, by_name, gone)
            return (
                _write(reader, archive, plans, shared, writing, refused=refused) if plans or gone else _refusal(refused)
            )
        except (Stale, Vanished, MissingChunks, Undone) as error:
            if time.monotonic() > until:
                raise Unavailable(
                    "other processes keep writing to the imported threads: try again later",
                    code="unavailable.contended",
                ) from error
            tries += 1
            time.sleep(random.random() * min(0.01 * tries, 0.5))  # noqa: S311 - only to get out of step


# -- the plan -------------------------------------------------------------------------------------------


class ThreadPlan(NamedTuple):
    """The changes that an import makes to one thread of the store."""

    entry: ThreadEntry
    record: ThreadRecord | None
    """The thread in the store, None if the import creates it."""
    newest: int
    """The seq of the newest row in the store, 0 if it has none. The import adds the rows above it."""
    hide: tuple[int, ...] = ()
    show: tuple[int, ...] = ()
    tag: tuple[tuple[int, str], ...] = ()
    untag: tuple[tuple[int, str], ...] = ()
    pin: tuple[tuple[int, bytes], ...] = ()
    rebased: tuple[Row, ...] = ()
    """Base rows of the file that replace delta rows of the store, because imported delta rows need them."""
    erases: bool = False
    """Whether the file has an erasure above the rows of the store: the import erases them."""
    refused: bool = False
    """Whether the thread was erased in the store, and the file does not know it: nothing of it is imported."""

    @property
    def names(self) -> tuple[str, str]:
        """The name space and the name of the thread."""
        return self.entry.thread.space, self.entry.thread.name

    @property
    def has_changes(self) -> bool:
        """Whether the import changes the thread."""
        return not self.refused and (self.grows or self.marked > 0)

    @property
    def marked(self) -> int:
        """The number of existing rows that the import hides, makes visible, tags, untags or pins."""
        return len({*self.hide, *self.show, *(seq for seq, _ in (*self.tag, *self.untag, *self.pin))})

    @property
    def grows(self) -> bool:
        """Whether the import adds rows to the thread."""
        return self.newest < self.entry.newest

    @property
    def renewed(self) -> bool:
        """Whether the exporting store deleted the thread and started it again, after the rows that this store has."""
        return self.record is not None and self.grows and self.record[4:] != self.entry.thread[3:]


def plan_of(backend: Backend, archive: Archive, entry: ThreadEntry, record: ThreadRecord | None) -> ThreadPlan:
    """Compare a thread of the file with the thread of its name in the store, and return the plan.

    `Conflict` if the two have diverged.
    """
    thread = entry.thread
    # Another process may have imported the thread since the record was read. So the record is compared below.
    record = record or backend.thread_with_uid(thread.uid)
    if record is None:
        if entry.start:
            raise _needs(archive, entry)
        return ThreadPlan(entry, None, 0)
    if (record.space, record.name, record.uid) != (thread.space, thread.name, thread.uid):
        raise Conflict(
            f"this store already has another {thread.space} with the id {thread.name!r} (deleted ones keep their ids): "
            "import into another store",
            code="conflict.exists",
            thread=thread.name,
            kind=thread.space,
        )
    newest = backend.newest(record.no)
    here = newest.seq if newest is not None else 0
    rows = backend.rows(record.no, [(1, here)]) if here else []
    erased = next((row for row in reversed(rows) if log.erased_count(row) is not None), None)
    if erased is not None and entry.start < erased.seq:
        same = _op_ids(archive.rows(entry, erased.seq, erased.seq)) if erased.seq <= entry.newest else []
        if same != [erased.op_id]:
            return ThreadPlan(entry, record, here, refused=True)
    erases = here < entry.newest and log.last_erasure(archive.rows(entry, here + 1, entry.newest)) > 0
    if not (erases and here > entry.start and not _op_ids(archive.rows(entry, here, here))):
        _require_same_log(backend, archive, entry, record, newest)  # else the row to compare was erased
    if here > entry.newest:
        return ThreadPlan(entry, record, here)  # the store has newer rows than the file
    return _marks(backend, archive, entry, record, rows)._replace(erases=erases and here > 0)


def _require_same_log(
    backend: Backend, archive: Archive, entry: ThreadEntry, record: ThreadRecord, newest: Row | None
) -> None:
    """Raise `Conflict` unless both logs have the same row at the seq where the shorter log ends."""
    here = newest.seq if newest is not None else 0
    if here < entry.start:
        raise _needs(archive, entry)
    if here > entry.newest:
        op_ids, op_id = _op_ids(backend.rows(record.no, [(entry.newest, entry.newest)])), entry.newest_op
    else:
        op_id = newest.op_id if newest is not None else b""
        op_ids = [entry.start_op] if here == entry.start else _op_ids(archive.rows(entry, here, here))
    near = _op_ids(backend.rows(record.no, [(entry.near, entry.near)])) if entry.near else []
    if op_ids != [op_id] or (near and near != [entry.near_op]):
        erased = log.last_erasure(archive.rows(entry, entry.start + 1, entry.newest)) > 0
        raise Conflict(
            f"{record.space} {record.name!r} has diverged: this store and the file have different rows"
            + ("" if op_ids else ", or the rows to compare were removed")
            + "; nothing was imported: "
            + ("the exporting store has erased it, so erase it here, too" if erased else "import into a new store"),
            code="conflict.import",
            thread=record.name,
            kind=record.space,
        )


def _op_ids(rows: Iterable[Row]) -> list[bytes]:
    return [row.op_id for row in rows]


def _needs(archive: Archive, entry: ThreadEntry) -> NotFound:
    return _needed(archive, f"{entry.thread.space} {entry.thread.name!r} lacks rows up to {entry.start} in this store")


def _needed(archive: Archive, why: str) -> NotFound:
    """Return the error for a file that continues an export which the store has not imported."""
    return NotFound(
        f"{archive.path} continues export {archive.since}: import that one first ({why})",
        code="not_found.export",
        needs=archive.since,
    )


def _require_known(backend: Backend, archive: Archive) -> None:
    """Raise `NotFound` if the store lacks rows that a continuing file relies on."""
    own = {entry.uid for entry in archive.entries}
    for uid, known in archive.known.items() if archive.since is not None else ():
        record = None if uid in own else backend.thread_with_uid(uid)
        newest = backend.newest(record.no) if record else None
        if uid not in own and (newest is None or newest.seq < known.newest):
            raise _needed(archive, "this store lacks rows of a thread that the earlier export has")


def _with_refused_forks(backend: Backend, plans: list[ThreadPlan]) -> list[ThreadPlan]:
    """Refuse new threads that were forked from a thread that was erased in this store: they hold its data."""
    refused = {plan.entry.uid for plan in plans if plan.refused}
    size = -1
    while size < len(refused):
        size = len(refused)
        names = {plan.names for plan in plans if plan.entry.uid in refused}
        refused |= {
            plan.entry.uid
            for plan in plans
            if plan.record is None and (_is_fork(backend, plan, refused) or erase.partner(plan.names) in names)
        }
    return [plan._replace(refused=True) if plan.entry.uid in refused else plan for plan in plans]


def _is_fork(backend: Backend, plan: ThreadPlan, refused: set[bytes]) -> bool:
    """Tell whether a thread was forked from a refused one, or from one whose rows were erased in this store."""
    parsed = log.parse_id(plan.entry.thread.origin or "")
    if parsed is None or parsed[0] in refused:
        return parsed is not None
    record = backend.thread_with_uid(parsed[0])
    return record is not None and log.last_erasure(backend.rows(record.no, [(parsed[1] + 1, log.MAX_SEQ)])) > 0


def _holds_erased(backend: Backend, plans: list[ThreadPlan]) -> bool:
    """Tell whether another process has erased what one of the new threads was forked from.

    Threads that the import itself writes do not count: the file knows of their erasures.
    """
    written = {plan.entry.uid for plan in plans}
    for plan in plans:
        parsed = log.parse_id(plan.entry.thread.origin or "") if plan.record is None else None
        if parsed is not None and parsed[0] not in written and _is_fork(backend, plan, set()):
            return True
    return False


def _marks(backend: Backend, archive: Archive, entry: ThreadEntry, record: ThreadRecord, rows: list[Row]) -> ThreadPlan:
    """Return the plan with the changes to existing rows: what to hide, show, tag, untag, pin and rewrite as a base.

    `rows` are all rows of the store. Tags are removed only if the file adds rows.
    """
    here = rows[-1].seq if rows else 0
    grows = here < entry.newest
    new_heads = {
        row.head
        for row in archive.rows(entry, here + 1, entry.newest)
        if row.op == log.REWIND or row.seq == entry.newest
    }
    tags, pinned = backend.tags(record.no), backend.pins(record.no)
    both = [(row.seq, set(tags.get(row.seq, ())), entry.tags.get(row.seq, ())) for row in rows]
    return ThreadPlan(
        entry,
        record,
        here,
        hide=tuple(row.seq for row in rows if not row.hidden and not entry.shows(row.seq)),
        show=tuple(row.seq for row in rows if row.hidden and row.seq in new_heads and entry.shows(row.seq)),
        tag=tuple(
            (seq, word) for seq, store_tags, file_tags in both for word in tags_in(file_tags) if word not in store_tags
        ),
        untag=tuple(
            (seq, word)
            for seq, store_tags, file_tags in both
            for word in sorted(store_tags.difference(file_tags))
            if grows
        ),
        pin=tuple(
            (seq, holder)
            for seq, _, file_tags in both
            for holder in pins_in(file_tags)
            if holder not in pinned.get(seq, ())
        ),
        rebased=_rebased(archive, entry, rows) if grows else (),
    )


def _rebased(archive: Archive, entry: ThreadEntry, rows: list[Row]) -> tuple[Row, ...]:
    """Return the base rows of the file that are delta rows in this store and that imported delta rows need."""
    by_seq = {row.seq: row for row in rows}
    last = rows[-1].seq if rows else 0
    lowest = min((row.base for row in archive.rows(entry, last + 1, entry.newest) if row.base), default=last + 1)
    if lowest > last:
        return ()
    return tuple(
        row
        for row in archive.rows(entry, lowest, last)
        if row.base == row.seq and row.seq in by_seq and by_seq[row.seq].base != row.seq
    )


class _AgentNeeds:
    """The rows that the imported manifests of one agent point at. They must exist, and the import pins them."""

    def __init__(self, record: ThreadRecord) -> None:
        self._record = record
        self._needs: Needs = {}
        self._others: list[tuple[int, ManifestInfo, Manifest]] = []
        """Internal manifests. `end` decides which of them are in use."""

    def add(self, row: Row, note: ManifestInfo, manifest: Manifest) -> None:
        """Add the pointers of a manifest."""
        if note.role == manifests.CHECKPOINT:
            self._need(manifest)
        else:
            self._others.append((row.seq, note, manifest))

    def end(self, head: int, newest: ManifestInfo) -> None:
        """Add the internal manifests that are in use. `newest` is the info of the newest manifest, `head` its seq."""
        for seq, note, manifest in self._others:
            # An AFTER manifest does not count for touched threads, and an import touches each thread that it writes.
            if note.role != manifests.AFTER and manifests.in_use(seq, note, head, newest):
                self._need(manifest)
        self._others.clear()

    def _need(self, manifest: Manifest) -> None:
        for names, pointer in manifest.pointers(self._record.name).items():
            self._needs.setdefault(names, {})[pointer.seq] = pointer.root

    def require(
        self,
        backend: Backend,
        archive: Archive,
        plans: dict[tuple[str, str], ThreadPlan],
        gone: dict[tuple[str, str], int],
    ) -> None:
        """Raise `Conflict` or `Corrupt` if neither the file nor the store has a row with the right root hash.

        Rows that were erased are not needed. `gone` has the threads that the import creates as erased ones, each with
        the seq of its erasure.
        """
        for (space, name), needs in self._needs.items():
            plan = plans.get((space, name))
            record = plan.record if plan else backend.find_thread(space, name)
            roots = {} if record is None else _roots(backend, record, needs)
            if plan is not None:
                low, high = max(min(needs), plan.newest + 1), max(needs)
                roots |= {row.seq: row.root for row in archive.rows(plan.entry, low, high)}
            lost = {seq for seq, root in needs.items() if roots.get(seq) != root}
            erased = gone.get((space, name), 0) or (_erased_upto(backend, archive, record, plan) if lost else 0)
            for seq in [seq for seq in lost if seq < erased]:
                del needs[seq]  # a restore skips it
                lost.discard(seq)
            missing = min(lost, default=None)
            if missing is None:
                continue
            agent = self._record.name
            if record is None:
                raise archive.damaged(f"a checkpoint of agent {agent!r} is invalid: its {space} {name!r} is missing")
            raise Conflict(
                f"a checkpoint of agent {agent!r} needs {log.checkpoint_id(record.uid, missing)} of {space} {name!r}, "
                "which this store has removed: import into another store",
                code="conflict.import",
                thread=name,
                kind=space,
            )

    def pin(self, backend: Backend) -> None:
        """Add the missing pins, after all rows are written; `Stale` if another process removed one of the rows."""
        holder = self._record.uid
        for names, needs in self._needs.items():
            record = backend.find_thread(*names) if needs else None
            if not needs:
                continue
            if record is None or len(_roots(backend, record, needs)) < len(needs):
                raise Stale
            pinned = backend.pins(record.no, needs)
            unpinned = [seq for seq in sorted(needs) if holder not in pinned.get(seq, ())]
            if unpinned:
                backend.commit(Batch(pin=tuple((record.no, seq, holder) for seq in unpinned)))


def _erased_upto(backend: Backend, archive: Archive, record: ThreadRecord | None, plan: ThreadPlan | None) -> int:
    """Return the seq of the newest erasure of a thread, in the store or in the file, or 0."""
    here = [] if record is None else backend.rows(record.no, [(1, log.MAX_SEQ)])
    there = [] if plan is None else archive.rows(plan.entry, plan.newest + 1, plan.entry.newest)
    return log.last_erasure([*here, *there])


def _roots(backend: Backend, record: ThreadRecord, seqs: Iterable[int]) -> dict[int, bytes]:
    """Return the roots of the rows with these seqs, by seq; missing rows are left out."""
    return {row.seq: row.root for row in backend.rows(record.no, [(seq, seq) for seq in sorted(seqs)])}


# -- the states -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Shared:
    """The results that the state checks of all threads share."""

    verified: bool
    """Whether the states of the file were checked before."""
    good: set[bytes] = field(default_factory=set)
    """The digests of chunks that were read and are sound."""
    weights: dict[bytes, int] = field(default_factory=dict)
    """The bytes of a node and all nodes below it, by its digest."""
    chunks: dict[bytes, None] = field(default_factory=dict)
    """The digests of all chunks that the imported rows refer to."""
    agents: list[_AgentNeeds] = field(default_factory=list)


class _MergedThread:
    """A read-only backend with one thread as it will be after the import: the rows of the store, then of the file."""

    def __init__(self, backend: Backend, archive: Archive, plan: ThreadPlan) -> None:
        self._backend = backend
        self._archive = archive
        self._plan = plan
        self._rebased = {row.seq: row for row in plan.rebased}
        self.missing: set[bytes] = set()
        """The digests of requested chunks that neither the file nor the store has."""

    def rows(self, thread: int, ranges: Sequence[tuple[int, int]], **_: object) -> list[Row]:
        """Return the rows of the ranges with payloads: from the store up to its newest row, then from the file."""
        last, entry = self._plan.newest, self._plan.entry
        merged: list[Row] = []
        for low, high in ranges:
            if low <= last and self._plan.record is not None:
                old = self._backend.rows(thread, [(low, min(high, last))], payload=True)
                merged += [self._rebased.get(row.seq, row) for row in old]
            if high > last:
                merged += self._archive.rows(entry, max(low, last + 1), high)
        return merged

    def pins(self, thread: int, seqs: object = None) -> dict[int, tuple[bytes, ...]]:
        """Return the pins of the thread in the file."""
        del thread, seqs
        return pins_of_rows(self._plan.entry.tags)

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the chunks from the file or the store; add the digests that both lack to `missing`."""
        chunks = self._archive.chunks(digests)
        rest = [digest for digest in digests if digest not in chunks]
        if rest:
            chunks |= self._backend.chunks(rest)
            self.missing.update(digest for digest in rest if digest not in chunks)
        return chunks


class _StateCheck:
    """Checks the states that the import adds to one thread; `Corrupt` if a state is invalid."""

    def __init__(self, reader: StoreReader, archive: Archive, plan: ThreadPlan, shared: _Shared) -> None:
        self._backend = reader.backend
        self._archive = archive
        self._plan = plan
        self._shared = shared
        self._record = plan.record or ThreadRecord(0, *plan.entry.thread)
        self._merged = _MergedThread(reader.backend, archive, plan)
        merged = cast("Backend", self._merged)  # the checks call no other methods
        self._reader = StoreReader(merged, reader.types, reader.options, reader.clock)
        self._reading = Reading(self._reader, self._record, shared.weights)

    def run(self) -> None:
        """Check all new states and the head; collect the chunks and the pointers of manifests in `_Shared`."""
        entry, space = self._plan.entry, self._record.space
        needs = _AgentNeeds(self._record)
        view = 0
        for row in itertools.chain(self._plan.rebased, self._archive.rows(entry, self._plan.newest + 1, entry.newest)):
            if row.op not in log.CHECKPOINTS:
                continue
            self._require_state(row)
            if row.view not in (0, view):
                self._require_view(row)
                view = row.view
            if space == manifests.SPACE and not row.hidden and row.seq > self._plan.newest:
                needs.add(row, *self._manifest(row))
        last = self._reader.backend.rows(self._record.no, [(entry.newest, entry.newest)])[0]
        head = self._reader.row(self._record, last.head) if last.head else None
        if last.head and (head is None or head.op not in log.CHECKPOINTS):
            raise self._unreadable(last._replace(seq=last.head), "it is missing")
        if head is not None and space == journal.SPACE:
            self._require_journal(head)
        if head is not None and space == manifests.SPACE:
            needs.end(head.seq, manifests.info_of(head))
            self._shared.agents.append(needs)

    def _require_state(self, row: Row) -> None:
        chunks = self._shared.chunks
        trusted = self._shared.verified and self._plan.record is None
        why = None if trusted else self._reading.reason(row, self._shared.good) or self._too_large(row)
        try:
            chunks.update(dict.fromkeys(gc.chunks_below(self._reader.nodes(), row, chunks)))
        except Corrupt as error:
            why = why or str(error)
        if why is None:
            return
        if self._plan.record is None and self._archive.since is not None and self._merged.missing:
            raise _needed(
                self._archive,
                f"thread {self._record.name!r} needs its chunks; if that export was imported and gc removed them, "
                "export without since=",
            )
        raise self._unreadable(row, why)

    def _too_large(self, row: Row) -> str | None:
        """Return why a state is too large, or None. A forged file can expand to more data than the memory holds."""
        size = self._reading.size
        if self._reading.read != row.seq:
            return None
        if size != row.size:
            return f"its row says {row.size} bytes, but it has {size}"
        if size <= _LARGE + _DENSEST * self._archive.plain_bytes:
            return None
        if size <= _LARGE + _DENSEST * (self._archive.plain_bytes + self._backend.usage().payload_bytes):
            return None
        return f"its {size} bytes repeat too few stored bytes; the file may be forged"

    def _require_view(self, row: Row) -> None:
        view_row = self._reader.row(self._record, row.view)
        if view_row is not None and view_row.op in log.CHECKPOINTS:
            raise self._forged(row, "its view is not a row that moves the head")

    def _manifest(self, row: Row) -> tuple[ManifestInfo, Manifest]:
        """Return the info and the content of a manifest row; `Corrupt` if it is not a manifest."""
        try:
            return manifests.info_of(row), manifests.manifest_of(self._reader, self._record, row)
        except Corrupt as error:
            raise self._forged(row, str(error)) from error

    def _require_journal(self, head: Row) -> None:
        """Raise `Corrupt` if the run of a journal cannot continue from its head."""
        tree = self._reader.chain(self._record, head).tree
        try:
            state = Decoder(tree.nodes, manifests.PLAIN).value(tree.rep)
            sound = journal.is_point(state)
            if sound:
                journal.check_entries(state)
        except Invalid:  # a time zone that is not known here
            return
        except Corrupt:
            sound = False
        if not sound:
            raise self._forged(head, "it is not the journal of a run")

    def _forged(self, row: Row, why: str) -> Corrupt:
        name = log.checkpoint_id(self._record.uid, row.seq)
        what = f"checkpoint {name} of {self._record.space} {self._record.name!r}"
        return self._archive.damaged(f"{what} is invalid: {why}")

    def _unreadable(self, row: Row, why: str) -> Conflict | Corrupt:
        record = self._record
        name = log.checkpoint_id(record.uid, row.seq)
        if self._plan.record is None:
            return self._archive.damaged(f"checkpoint {name} of thread {record.name!r} cannot be read: {why}")
        fix = "import the whole thread into another store"
        if self._archive.since is not None:
            fix = f"export without since= and import that file; if that fails, too, {fix}"
        return Conflict(
            f"checkpoint {name} of {record.space} {record.name!r} needs data that this store removed ({why}): {fix}",
            code="conflict.import",
            thread=record.name,
            kind=record.space,
        )


# -- writing --------------------------------------------------------------------------------------------


def _refusal(refused: list[ThreadPlan]) -> _Counts:
    return _Counts(refused=tuple(plan.names for plan in refused))


def _write(
    reader: StoreReader,
    archive: Archive,
    plans: list[ThreadPlan],
    shared: _Shared,
    writing: Progress,
    *,
    refused: list[ThreadPlan],
) -> _Counts:
    """Write chunks, rows, marks and pins in one group; refused threads that the store lacks become erased ones."""
    with reader.backend.group():
        for plan in refused:
            if plan.record is None:
                erase.create_erased(reader, plan.entry.thread, plan.entry.newest + 1)
        chunks = _put(reader, archive, list(shared.chunks))
        rows = checkpoints = 0
        batches = _Batches(reader.backend)
        for plan in plans:
            written, saved = _ThreadWriter(reader, archive, plan, batches).write()
            rows, checkpoints = rows + written, checkpoints + saved
            writing("rows", rows)
        batches.flush()
        for needs in shared.agents:
            needs.pin(reader.backend)
        erase.tag_holders(reader, [plan.names for plan in refused])
        if _holds_erased(reader.backend, plans):
            raise Stale
    created = sum(plan.record is None for plan in plans)
    extended = sum(plan.grows for plan in plans) - created
    erased = tuple(plan.names for plan in plans if plan.erases)
    counts = _Counts(created, extended, rows, checkpoints, chunks, sum(plan.marked for plan in plans), erased)
    return counts._replace(refused=_refusal(refused).refused)


def _put(reader: StoreReader, archive: Archive, needed: list[bytes]) -> int:
    """Put the chunks that the store lacks and touch the others; return how many were put."""
    count = 0
    for start in range(0, len(needed), _PAGE_ROWS):
        page = needed[start : start + _PAGE_ROWS]
        present = reader.backend.present(page)
        if present:
            reader.backend.commit(Batch(touch=tuple(sorted(present))))
        waiting: list[tuple[bytes, bytes]] = []
        weight = 0
        for digest in page:
            if digest in present:
                continue
            plain = archive.chunks([digest]).get(digest)
            if plain is None:  # the store has removed it since the states were checked
                raise MissingChunks(frozenset((digest,)))
            stored = squeeze(plain[1:], enabled=reader.options.compression)
            waiting.append((digest, stored))
            weight += len(stored)
            count += 1
            if weight > _PAGE_BYTES:
                reader.backend.commit(Batch(chunks=tuple(waiting)))
                waiting, weight = [], 0
        if waiting:
            reader.backend.commit(Batch(chunks=tuple(waiting)))
    return count


class _Batches:
    """Joins the batches of small threads, so that one commit writes the rows of many threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: list[Batch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Write a batch later. It creates at most one thread, and has no gaps."""
        self._waiting.append(batch)
        self._rows += len(batch.rows)
        self._bytes += sum(len(row.payload or b"") for _, row in batch.rows)
        if self._rows >= _PAGE_ROWS or self._bytes > _PAGE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting batches as one."""
        threads: list[NewThread] = []
        rows, tag, pin = [], [], []
        newest: list[tuple[int, int]] = []
        for batch in self._waiting:
            threads += batch.threads
            no = -len(threads) if batch.threads else batch.rows[0][0]
            rows += [(no, row) for _, row in batch.rows]
            tag += [(no, seq, word) for _, seq, word in batch.tag]
            pin += [(no, seq, holder) for _, seq, holder in batch.pin]
            newest += batch.newest
        _require_absent(self._backend, threads)
        if rows:
            self._backend.commit(
                Batch(threads=tuple(threads), rows=tuple(rows), tag=tuple(tag), pin=tuple(pin), newest=tuple(newest))
            )
        self._waiting, self._rows, self._bytes = [], 0, 0


def _require_absent(backend: Backend, threads: Sequence[NewThread]) -> None:
    """Raise `Stale` if another process has imported one of the threads, so that it counts as that process's work."""
    names: dict[str, list[str]] = {}
    for new in threads:
        names.setdefault(new.space, []).append(new.name)
    if any(backend.threads_named(space, listed) for space, listed in names.items()):
        raise Stale


class _ThreadWriter:
    """Writes the plan of one thread."""

    def __init__(self, reader: StoreReader, archive: Archive, plan: ThreadPlan, batches: _Batches) -> None:
        self._backend = reader.backend
        self._batches = batches
        self._compress = reader.options.compression
        self._archive = archive
        self._plan = plan
        self._no = plan.record.no if plan.record else 0
        self._last = plan.newest
        """The seq of the newest row in the store, including the rows written so far."""
        self._rows = 0
        self._checkpoints = 0

    def write(self) -> tuple[int, int]:
        """Write the plan; return how many rows and how many visible checkpoints were added."""
        plan = self._plan
        if plan.record is not None:
            self._change()
        for page in self._pages():
            self._append(page)
        return self._rows, self._checkpoints

    def _change(self) -> None:
        """Change the existing rows of the thread; `Stale` if another process has written to the thread."""
        plan, no = self._plan, self._no
        renewed = ((no, plan.entry.thread),) if plan.renewed else ()
        rebased = [
            row._replace(payload=squeeze((row.payload or b"")[1:], enabled=self._compress)) for row in plan.rebased
        ]
        self._backend.commit(
            Batch(
                newest=((no, plan.newest),),
                renew=renewed,
                hide=tuple((no, seq) for seq in plan.hide),
                show=tuple((no, seq) for seq in plan.show),
                tag=tuple((no, *each) for each in plan.tag),
                untag=tuple((no, *each) for each in plan.untag),
                pin=tuple((no, *each) for each in plan.pin),
            )
        )
        if rebased and self._backend.rewrite(no, rebased) != len(rebased):
            raise Stale

    def _pages(self) -> Iterator[list[Row]]:
        """Yield the rows to add in pages, with payloads compressed by the options of the store."""
        entry = self._plan.entry
        page: list[Row] = []
        weight = 0
        for row in self._archive.rows(entry, self._plan.newest + 1, entry.newest):
            page.append(self._stored(row))
            weight += len(page[-1].payload or b"")
            if len(page) >= _PAGE_ROWS or weight > _PAGE_BYTES:
                yield page
                page, weight = [], 0
        if page:
            yield page

    def _stored(self, row: Row) -> Row:
        self._rows += 1
        if row.op not in log.CHECKPOINTS:
            return row
        self._checkpoints += not row.hidden
        return row._replace(payload=squeeze((row.payload or b"")[1:], enabled=self._compress))

    def _append(self, page: list[Row]) -> None:
        new = () if self._no else (self._plan.entry.thread,)
        no = self._no or -1
        tags = self._plan.entry.tags
        batch = Batch(
            threads=new,
            rows=tuple((no, row) for row in page),
            tag=tuple((no, row.seq, word) for row in page for word in tags_in(tags.get(row.seq, ()))),
            pin=tuple((no, row.seq, holder) for row in page for holder in pins_in(tags.get(row.seq, ()))),
            newest=() if new else ((no, self._last),),
            gaps=page[-1].seq - self._last > len(page),
        )
        self._last = page[-1].seq
        if self._last == self._plan.entry.newest and not batch.gaps:
            self._batches.add(batch)
            return
        _require_absent(self._backend, new)
        created = self._backend.commit(batch)
        if new:
            self._no = created[0]
