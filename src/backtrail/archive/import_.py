"""What an import is to do: each thread of a file, held against what is in the store.

A thread is the same one if it has the same uid. Its log here and the one in the file must be the same up to where the
shorter one ends, which the row there shows; else they have gone different ways, and that is a `Conflict`. (If that row
was collected where a file comes from that continues another one, the newest one before it shows that.) If the file has
more, the rest is to come, and what is tagged will be as the file says. If both end at the same row, its tags are added;
nothing is taken back. Either way, what the file has hidden is hidden here. If there is more here, nothing is to be
done.

What was hidden here stays so, unless the file goes back to it: it is the head, or was made the head by a rewind.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from backtrail.backends.port import Batch, MissingChunks, Row, Stale, ThreadRecord, Undone, Vanished
from backtrail.engine import journal, log, pins
from backtrail.engine.compression import squeeze
from backtrail.engine.reader import Heads
from backtrail.engine.tree.codec import Decoder
from backtrail.engine.writer import PATIENCE
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.maintenance import gc
from backtrail.maintenance.readable import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from backtrail.archive.layout import Entry
    from backtrail.archive.reader import Archive
    from backtrail.backends.port import Backend, Row
    from backtrail.engine.pins import Manifest, Needs, Note

    Progress = Callable[[str, int], None]


class Plan(NamedTuple):
    """What is to be done for one thread."""

    entry: Entry
    record: ThreadRecord | None
    """The thread as it is here, None if it is new."""
    newest: int
    """The seq of its newest row here: those behind are to come."""
    hide: tuple[int, ...] = ()
    show: tuple[int, ...] = ()
    tag: tuple[tuple[int, str], ...] = ()
    untag: tuple[tuple[int, str], ...] = ()
    rebased: tuple[Row, ...] = ()
    """Rows that are here already and have to become bases, because the new ones take them for such."""

    @property
    def does(self) -> bool:
        """Whether there is anything to do."""
        return self.grows or self.marked > 0

    @property
    def marked(self) -> int:
        """How many rows that are here are hidden, shown or tagged otherwise."""
        return len({*self.hide, *self.show, *(seq for seq, _ in self.tag + self.untag)})

    @property
    def grows(self) -> bool:
        """Whether rows are to come."""
        return self.newest < self.entry.newest

    @property
    def renewed(self) -> bool:
        """Whether it has begun anew since."""
        return self.record is not None and self.grows and self.record[4:] != self.entry.thread[3:]


def plan_of(backend: Backend, archive: Archive, entry: Entry) -> Plan:
    """Hold a thread against what is here."""
    thread = entry.thread
    # Somebody else may import it between the two: whatever is found is held against what it should be.
    record = backend.find_thread(thread.space, thread.name) or backend.thread_with_uid(thread.uid)
    if record is None:
        if entry.start:
            raise _needs(archive, entry)
        return Plan(entry, None, 0)
    if (record.space, record.name, record.uid) != (thread.space, thread.name, thread.uid):
        raise Conflict(
            f"the {thread.space} {thread.name!r} that is here is another one than that of the import (even if it was "
            "deleted, it keeps its id): import into another store",
            code="conflict.exists",
            thread=thread.name,
            kind=thread.space,
        )
    newest = backend.newest(record.no)
    here = newest.seq if newest is not None else 0
    _require_same_log(backend, archive, entry, record, newest)
    if here > entry.newest:
        return Plan(entry, record, here)  # it has gone on from there
    return _marks(backend, archive, entry, record, here)


def _require_same_log(
    backend: Backend, archive: Archive, entry: Entry, record: ThreadRecord, newest: Row | None
) -> None:
    """Raise unless one of the two logs is the beginning of the other: the same row where the shorter one ends."""
    here = newest.seq if newest is not None else 0
    if here < entry.start:
        raise _needs(archive, entry)
    if here > entry.newest:
        there, op_id = _op_ids(backend.rows(record.no, [(entry.newest, entry.newest)])), entry.newest_op
    else:
        op_id = newest.op_id if newest is not None else b""
        there = [entry.start_op] if here == entry.start else _op_ids(archive.rows(entry, here, here))
    near = _op_ids(backend.rows(record.no, [(entry.near, entry.near)])) if entry.near else []
    if there != [op_id] or (near and near != [entry.near_op]):
        raise Conflict(
            f"{record.space} {record.name!r} has gone another way here than in the import"
            + ("" if there else ", as far as can be told: the rows that would show it were removed")
            + "; nothing was imported: import into a new store",
            code="conflict.import",
            thread=record.name,
            kind=record.space,
        )


def _op_ids(rows: Iterable[Row]) -> list[bytes]:
    return [row.op_id for row in rows]


def _needs(archive: Archive, entry: Entry) -> NotFound:
    return needed(archive, f"{entry.thread.space} {entry.thread.name!r} is not here up to row {entry.start}")


def needed(archive: Archive, why: str) -> NotFound:
    """Return the error of a file that continues one which is not here."""
    return NotFound(
        f"{archive.path} continues export {archive.since}: import that one first ({why})",
        code="not_found.export",
        needs=archive.since,
    )


def require_before(backend: Backend, archive: Archive) -> None:
    """Raise `NotFound` unless all that the file takes for known is here, or was."""
    own = {entry.uid for entry in archive.entries}
    for uid, known in archive.known.items() if archive.since is not None else ():
        record = None if uid in own else backend.thread_with_uid(uid)
        newest = backend.newest(record.no) if record else None
        if uid not in own and (newest is None or newest.seq < known.newest):
            raise needed(archive, "a thread that is not in this file, and that it knows, is not here as far")


def _marks(backend: Backend, archive: Archive, entry: Entry, record: ThreadRecord, here: int) -> Plan:
    """Find what is hidden, shown or tagged otherwise; what goes on from here is right, else nothing is taken back."""
    grows = here < entry.newest
    heads = {
        row.head
        for row in archive.rows(entry, here + 1, entry.newest)
        if row.op == log.REWIND or row.seq == entry.newest
    }
    rows = backend.rows(record.no, [(1, here)])
    tags = backend.tags(record.no)
    both = [(row.seq, set(tags.get(row.seq, ())), entry.tags.get(row.seq, ())) for row in rows]
    return Plan(
        entry,
        record,
        here,
        hide=tuple(row.seq for row in rows if not row.hidden and not entry.shows(row.seq)),
        show=tuple(row.seq for row in rows if row.hidden and row.seq in heads and entry.shows(row.seq)),
        tag=tuple((seq, word) for seq, has, wanted in both for word in wanted if word not in has),
        untag=tuple(
            (seq, word)
            for seq, has, wanted in both
            for word in sorted(has.difference(wanted, pins.pins_in(has)))
            if grows
        ),
        rebased=_rebased(archive, entry, rows) if grows else (),
    )


def _rebased(archive: Archive, entry: Entry, rows: list[Row]) -> tuple[Row, ...]:
    """Return the rows that are bases in the file, and are not here, and that new ones may be read from."""
    here = {row.seq: row for row in rows}
    last = rows[-1].seq if rows else 0
    lowest = min((row.base for row in archive.rows(entry, last + 1, entry.newest) if row.base), default=last + 1)
    if lowest > last:
        return ()
    return tuple(
        row
        for row in archive.rows(entry, lowest, last)
        if row.base == row.seq and row.seq in here and here[row.seq].base != row.seq
    )


class Holding:
    """What the manifests of one agent need that are to come."""

    def __init__(self, record: ThreadRecord) -> None:
        self._record = record
        self._needs: Needs = {}
        self._others: list[tuple[int, Note, Manifest]] = []
        """Those whose use is not known yet: few, beside the checkpoints."""

    def add(self, row: Row, note: Note, manifest: Manifest) -> None:
        """Take note of a manifest."""
        if note.role == pins.CHECKPOINT:
            self._need(manifest)
        else:
            self._others.append((row.seq, note, manifest))

    def end(self, head: int, newest: Note) -> None:
        """Take note of the newest one: it says which of the others are in use."""
        for seq, note, manifest in self._others:
            # one that is what the next is made from keeps nothing that was touched: all that has come is
            if note.role != pins.AFTER and pins.in_use(seq, note, head, newest):
                self._need(manifest)
        self._others.clear()

    def _need(self, manifest: Manifest) -> None:
        for names, pointer in manifest.pointers(self._record.name).items():
            self._needs.setdefault(names, {})[pointer.seq] = pointer.root

    def require(self, backend: Backend, archive: Archive, plans: dict[tuple[str, str], Plan]) -> None:
        """Raise unless each row is in the file, or here."""
        for (space, name), needs in self._needs.items():
            plan = plans.get((space, name))
            record = plan.record if plan else backend.find_thread(space, name)
            there = {} if record is None else _roots(backend, record, needs)
            if plan is not None:
                low, high = max(min(needs), plan.newest + 1), max(needs)
                there |= {row.seq: row.root for row in archive.rows(plan.entry, low, high)}
            lost = next((seq for seq, root in needs.items() if there.get(seq) != root), None)
            if lost is None:
                continue
            agent = self._record.name
            if record is None:
                raise archive.damaged(f"a checkpoint of agent {agent!r} cannot be used: it has no {space} {name!r}")
            raise Conflict(
                f"a checkpoint of agent {agent!r} holds {log.checkpoint_id(record.uid, lost)} of {space} {name!r}, "
                "which is not here any more: import it into another store",
                code="conflict.import",
                thread=name,
                kind=space,
            )

    def pin(self, backend: Backend) -> None:
        """Put the pins that are not there, once all rows are; `Stale` if one went meanwhile."""
        pin = pins.pin_of(self._record.uid)
        for names, needs in self._needs.items():
            record = backend.find_thread(*names)
            if record is None or len(_roots(backend, record, needs)) < len(needs):
                raise Stale
            tags = backend.tags(record.no, needs)
            bare = [seq for seq in sorted(needs) if pin not in tags.get(seq, ())]
            if bare:
                backend.commit(Batch(tag=tuple((record.no, seq, pin) for seq in bare)))


def _roots(backend: Backend, record: ThreadRecord, seqs: Iterable[int]) -> dict[int, bytes]:
    """Return the roots of those of these rows that are here."""
    return {row.seq: row.root for row in backend.rows(record.no, [(seq, seq) for seq in sorted(seqs)])}


_PAGE_ROWS: Final = 500
_PAGE_BYTES: Final = 4 << 20


class Imported(NamedTuple):
    """What came of a file."""

    created: int = 0
    extended: int = 0
    rows: int = 0
    checkpoints: int = 0
    chunks: int = 0
    marked: int = 0


def import_(heads: Heads, archive: Archive, progress: Progress | None, writing: Progress) -> Imported:
    """Make a file's threads part of a store; if somebody else writes to one of them meanwhile, look again.

    `writing` tells of progress while a group is open: whoever is told must not use the store.
    """
    until = time.monotonic() + PATIENCE
    tries = 0
    while True:
        try:
            require_before(heads.backend, archive)
            plans = [plan for entry in archive.entries if (plan := plan_of(heads.backend, archive, entry)).does]
            check = _Check(heads, archive)
            check.check(plans, progress)
            return _write(heads, archive, plans, check, writing) if plans else Imported()
        except (Stale, Vanished, MissingChunks, Undone) as error:
            if time.monotonic() > until:
                raise Unavailable(
                    "others write to what is to be imported without pause: try again", code="unavailable.contended"
                ) from error
            tries += 1
            time.sleep(random.random() * min(0.01 * tries, 0.5))  # noqa: S311 - only to get out of step


# -- whether it is sound --------------------------------------------------------------------------------


class _View:
    """What the store will be, as far as it is looked at: one thread of the file, on top of what is here."""

    def __init__(self, backend: Backend, archive: Archive, plan: Plan) -> None:
        self._backend = backend
        self._archive = archive
        self._plan = plan
        self._rebased = {row.seq: row for row in plan.rebased}
        self.missing: set[bytes] = set()
        """Chunks that were asked for, and are neither in the file nor here."""

    def rows(self, thread: int, ranges: Sequence[tuple[int, int]], **_: object) -> list[Row]:
        """Return rows with their payloads."""
        last, entry = self._plan.newest, self._plan.entry
        found: list[Row] = []
        for low, high in ranges:
            if low <= last and self._plan.record is not None:
                old = self._backend.rows(thread, [(low, min(high, last))], payload=True)
                found += [self._rebased.get(row.seq, row) for row in old]
            if high > last:
                found += self._archive.rows(entry, max(low, last + 1), high)
        return found

    def tags(self, thread: int, seqs: object = None) -> dict[int, tuple[str, ...]]:
        """Return the tags that will be there."""
        del thread, seqs
        return self._plan.entry.tags

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return chunks."""
        found = self._archive.chunks(digests)
        rest = [digest for digest in digests if digest not in found]
        if rest:
            found |= self._backend.chunks(rest)
            self.missing.update(digest for digest in rest if digest not in found)
        return found


_LARGE: Final = 1 << 30
_DENSEST: Final = 1024
"""A state that is larger than the first holds at most so many times the bytes that it is read from."""


class _Check:
    """Puts the states together that are to come."""

    def __init__(self, heads: Heads, archive: Archive) -> None:
        self._heads = heads
        self._archive = archive
        self._good: set[bytes] = set()
        self._weights: dict[bytes, int] = {}
        self.needed: dict[bytes, None] = {}
        """The digests of all chunks that the new rows lead to."""
        self.holdings: list[Holding] = []
        """What agents' checkpoints need that are to come."""
        self._viewed = (b"", 0)
        """The thread and the view that were looked at last: what follows mostly has the same."""

    def check(self, plans: list[Plan], progress: Progress | None) -> None:
        """Do it; `Corrupt` if a state is not what it should be."""
        for count, plan in enumerate(plans, 1):
            self._thread(plan)
            if progress:
                progress("threads", count)
        by_name = {(plan.entry.thread.space, plan.entry.thread.name): plan for plan in plans}
        for holding in self.holdings:
            holding.require(self._heads.backend, self._archive, by_name)

    def _thread(self, plan: Plan) -> None:
        entry = plan.entry
        record = plan.record or ThreadRecord(0, *entry.thread)
        view = _View(self._heads.backend, self._archive, plan)
        backend = cast("Backend", view)  # all that is asked of it here
        heads = Heads(backend, self._heads.types, self._heads.options, self._heads.clock)
        reading = Reading(heads, record, self._weights)
        holding = Holding(record)
        for row in itertools.chain(plan.rebased, self._archive.rows(entry, plan.newest + 1, entry.newest)):
            if row.op not in log.CHECKPOINTS:
                continue
            why = reading.reason(row, self._good) or self._too_large(row, reading)
            try:
                self.needed.update(dict.fromkeys(gc.chunks_below(heads.nodes(), row, self.needed)))
            except Corrupt as error:
                why = why or str(error)
            if why is not None and plan.record is None and self._archive.since is not None and view.missing:
                raise needed(
                    self._archive,
                    f"thread {record.name!r} stands on what that one holds; if it was imported "
                    "and collected since, export without since=",
                )
            if why is not None:
                raise self._unsound(plan, record, row, why)
            self._require_written(heads, record, row)
            if record.space == pins.SPACE and not row.hidden and row.seq > plan.newest:
                holding.add(row, *self._manifest(heads, record, row))
        last = heads.backend.rows(record.no, [(entry.newest, entry.newest)])[0]
        head = heads.row(record, last.head) if last.head else None
        if last.head and (head is None or head.op not in log.CHECKPOINTS):
            raise self._unsound(plan, record, last._replace(seq=last.head), "it is missing")
        if head is not None and record.space == journal.SPACE:
            self._require_point(heads, record, head)
        if head is not None and record.space == pins.SPACE:
            holding.end(head.seq, pins.note_of(head))
            self.holdings.append(holding)

    def _too_large(self, row: Row, reading: Reading) -> str | None:
        """Return why a state that can be read is not to be: a few bytes may stand for more than any memory holds."""
        if reading.read != row.seq:
            return None
        size = reading.size
        if size != row.size:
            return f"it says that it has {row.size} bytes, and has {size}"
        if size <= _LARGE or size <= _LARGE + _DENSEST * self._archive.plain_bytes:
            return None
        stored = self._heads.backend.usage().payload_bytes
        if size <= _LARGE + _DENSEST * (self._archive.plain_bytes + stored):
            return None
        return f"its {size} bytes are made of few that repeat, which no writer does"

    def _require_written(self, heads: Heads, record: ThreadRecord, row: Row) -> None:
        """Raise unless a checkpoint that can be read is one that a writer makes in such a thread."""
        if row.view != self._viewed[1] or record.uid != self._viewed[0]:
            moved = heads.row(record, row.view) if row.view else None
            if moved is not None and moved.op in log.CHECKPOINTS:
                raise self._made_up(record, row, "what it names as its view is none")
            self._viewed = record.uid, row.view

    def _manifest(self, heads: Heads, record: ThreadRecord, row: Row) -> tuple[Note, Manifest]:
        """Return a manifest, and what is said beside it."""
        try:
            return pins.note_of(row), pins.manifest_of(heads, record, row)
        except Corrupt as error:
            raise self._made_up(record, row, str(error)) from error

    def _require_point(self, heads: Heads, record: ThreadRecord, head: Row) -> None:
        """Raise unless a run can go on from the head of its journal."""
        tree = heads.chain(record, head).tree
        try:
            found = Decoder(tree.nodes, pins.PLAIN).value(tree.rep)
            sound = journal.is_point(found) and [journal.Journal(found[name]) for name in ("zero", "calls")]
        except Invalid:  # a time zone that is not known here
            return
        except Corrupt:
            sound = False
        if not sound:
            raise self._made_up(record, head, "it is no journal of a run")

    def _made_up(self, record: ThreadRecord, row: Row, why: str) -> Corrupt:
        name = log.checkpoint_id(record.uid, row.seq)
        return self._archive.damaged(f"checkpoint {name} of {record.space} {record.name!r} cannot be used: {why}")

    def _unsound(self, plan: Plan, record: ThreadRecord, row: Row, why: str) -> Conflict | Corrupt:
        name = log.checkpoint_id(record.uid, row.seq)
        if plan.record is None:
            return self._archive.damaged(f"checkpoint {name} of thread {record.name!r} cannot be read: {why}")
        helps = "import the whole thread into another store"
        if self._archive.since is not None:
            helps = f"export without since=, and import that; if it is refused as well, {helps}"
        return Conflict(
            f"checkpoint {name} of {record.space} {record.name!r} stands on what is not here any more ({why}): {helps}",
            code="conflict.import",
            thread=record.name,
            kind=record.space,
        )


# -- writing --------------------------------------------------------------------------------------------


def _write(
    heads: Heads,
    archive: Archive,
    plans: list[Plan],
    check: _Check,
    writing: Progress,
) -> Imported:
    """Write all of it, in one group."""
    with heads.backend.group():
        chunks = _put(heads, archive, list(check.needed))
        rows = checkpoints = 0
        for plan in plans:
            written, saved = _Thread(heads, archive, plan).write()
            rows, checkpoints = rows + written, checkpoints + saved
            writing("rows", rows)
        for holding in check.holdings:
            holding.pin(heads.backend)
    created = sum(plan.record is None for plan in plans)
    extended = sum(plan.grows for plan in plans) - created
    return Imported(created, extended, rows, checkpoints, chunks, sum(plan.marked for plan in plans))


def _put(heads: Heads, archive: Archive, needed: list[bytes]) -> int:
    """Put the chunks that are not here, and touch those that are; return how many were put."""
    count = 0
    for start in range(0, len(needed), _PAGE_ROWS):
        page = needed[start : start + _PAGE_ROWS]
        present = heads.backend.present(page)
        if present:
            heads.backend.commit(Batch(touch=tuple(sorted(present))))
        waiting: list[tuple[bytes, bytes]] = []
        weight = 0
        for digest in page:
            if digest in present:
                continue
            plain = archive.chunks([digest]).get(digest)
            if plain is None:  # it was here when the states were put together
                raise MissingChunks(frozenset((digest,)))
            stored = squeeze(plain[1:], enabled=heads.options.compression)
            waiting.append((digest, stored))
            weight += len(stored)
            count += 1
            if weight > _PAGE_BYTES:
                heads.backend.commit(Batch(chunks=tuple(waiting)))
                waiting, weight = [], 0
        if waiting:
            heads.backend.commit(Batch(chunks=tuple(waiting)))
    return count


class _Thread:
    """Writes what is to come of one thread."""

    def __init__(self, heads: Heads, archive: Archive, plan: Plan) -> None:
        self._backend = heads.backend
        self._compress = heads.options.compression
        self._archive = archive
        self._plan = plan
        self._no = plan.record.no if plan.record else 0
        self._last = plan.newest
        """The seq of the newest row that is written."""
        self._rows = 0
        self._checkpoints = 0

    def write(self) -> tuple[int, int]:
        """Write it; return how many rows and how many visible checkpoints came."""
        plan = self._plan
        if plan.record is not None:
            self._change()
        elif self._backend.thread_with_uid(plan.entry.uid) is not None:
            raise Stale  # somebody else has imported it meanwhile; the same rows would count once, and as new
        for page in self._pages():
            self._append(page)
        return self._rows, self._checkpoints

    def _change(self) -> None:
        """Change what is here: if nobody else has meanwhile."""
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
            )
        )
        if rebased and self._backend.rewrite(no, rebased) != len(rebased):
            raise Stale

    def _pages(self) -> Iterator[list[Row]]:
        """Give the rows to come."""
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
        created = self._backend.commit(
            Batch(
                threads=new,
                rows=tuple((no, row) for row in page),
                tag=tuple((no, row.seq, word) for row in page for word in tags.get(row.seq, ())),
                newest=() if new else ((no, self._last),),
                gaps=page[-1].seq - self._last > len(page),
            )
        )
        self._last = page[-1].seq
        if new:
            self._no = created[0]
