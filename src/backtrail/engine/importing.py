"""Importing: what a file holds becomes part of a store, all of it or nothing.

First the file is read to its end (`archive_reader`), and its threads are held against what is here (`import_plans`).
Then every state that is to come is put together, from the file and from what is here already, and compared with its
root; what agents' checkpoints point at is looked up (`import_pins`). Only then is something written, in one group of
commits.

Rows keep their seqs. Where a collection had removed some, there is a gap, as there is where they come from.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from backtrail.backends.port import Batch, MissingChunks, Row, Stale, ThreadRecord, Undone, Vanished
from backtrail.engine import journal, log, pins, upkeep
from backtrail.engine.codec import Decoder
from backtrail.engine.heads import Heads
from backtrail.engine.import_pins import Holding
from backtrail.engine.import_plans import needed, plan_of, require_before
from backtrail.engine.reading import Reading
from backtrail.engine.squeeze import squeeze
from backtrail.engine.trying import PATIENCE
from backtrail.errors import Conflict, Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import Backend
    from backtrail.engine.archive_reader import Archive
    from backtrail.engine.import_plans import Plan
    from backtrail.engine.pins import Manifest, Note

    Progress = Callable[[str, int], None]

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
                self.needed.update(dict.fromkeys(upkeep.chunks_below(heads.nodes(), row, self.needed)))
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
