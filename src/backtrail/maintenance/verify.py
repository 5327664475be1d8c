"""Verifying: everything is read and held against what says how it has to be; what is not so is found and named.

Rows by their checksums, states by their roots, chunks by their digests; the head of each thread; the rows that say what
is in view; threads by their names and in listings; the index of search; what agents' checkpoints point at.

Nothing here writes, but for the note of how far it got: `Note` keeps that when it is interrupted. What was found of a
thread is an `Ailing`: it is also what `repairing` goes by, so what a repair would do is known before.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from backtrail.backends.port import JUMP
from backtrail.engine import journal, log, pins
from backtrail.engine.search import indexer
from backtrail.engine.tree.nodes import check_chunk
from backtrail.errors import Corrupt, Error, NotFound
from backtrail.maintenance import agent_pointers, gc, journal_remnants
from backtrail.maintenance.readable import Reading, read_below

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.maintenance.agent_pointers import Held

    Progress = Callable[[str, int], None] | None

_PAGE: Final = 500
_LOOKS: Final = 5
"""A thread that is written to while it seems to be damaged is looked at again, so many times."""
_NOTED: Final = "verified"
_NOTE_SECONDS: Final = 10.0
_PREFIX: Final = 3
"""So many bytes of a chunk's digest are noted."""
_PLACES: Final = 1 << 8 * _PREFIX


@dataclass(slots=True)
class Ailing:
    """What is wrong with a thread, and what of it is not."""

    record: ThreadRecord
    newest: Row
    lost: dict[int, str] = field(default_factory=dict)
    """The rows that cannot be read, by their seqs, and why."""
    unsound: set[int] = field(default_factory=set)
    """Those of them that are not as they were written."""
    views: dict[int, int] = field(default_factory=dict)
    """Those of them that say what is in view, and can be made anew: each with the first checkpoint behind it."""
    cut: dict[int, int] = field(default_factory=dict)
    """Checkpoints before which nothing is in view any more: each with the row that said what is, and is lost."""
    loads: int = 0
    """How many checkpoints can be read."""
    head: int = 0
    """The checkpoint that is the head, or is to be: of the newest row whose head can be read. 0: none."""
    head_lost: bool = False
    """Whether the newest row does not lead to it."""
    head_hidden: bool = False
    """Whether nothing is wrong with the head but that it counts as deleted."""
    last: int = 0
    """The highest seq that is known to have been given, if no row has it any more; else 0."""
    born: int | None = None
    """When it was made, as far as the rows tell, if its record cannot be right about that."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.lost or self.views or self.cut or self.head_lost or self.head_hidden
        return not wrong and self.born is None


@dataclass(slots=True)
class Findings:
    """What a store is like."""

    threads: int = 0
    checkpoints: int = 0
    skipped: int = 0
    """Threads that were found sound before, by a call that was interrupted."""
    ailing: list[Ailing] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    """Agents whose checkpoints point at what is lost, or do not know what has changed."""
    chunks: list[bytes] = field(default_factory=list)
    """The digests of damaged ones."""
    misindexed: list[ThreadRecord] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Note:
    """How far a verification got: a number in the store, so that another one can go on there.

    0 and above: all threads up to that number are sound. Below, the chunks up to a digest are, too: -1 - it is that
    number, and then how the digest begins. It does not go beyond what is damaged, so that this is found again.
    """

    def __init__(self, heads: Heads, *, resume: bool) -> None:
        self._backend = heads.backend
        self._writes = not heads.backend.read_only
        self._before = heads.backend.recall(_NOTED) if self._writes else 0
        self._at = self._before if resume else 0
        self._stuck = False
        self._next = time.monotonic() + _NOTE_SECONDS

    @property
    def thread(self) -> int:
        """The number of the last thread that need not be looked at."""
        return self._at if self._at >= 0 else (-1 - self._at) // _PLACES

    @property
    def chunk(self) -> bytes:
        """The digest behind which chunks are to be looked at."""
        return ((-1 - self._at) % _PLACES).to_bytes(_PREFIX, "big") if self._at < 0 else b""

    def reached(self, number: int, *, sound: bool) -> None:
        """Say that this thread was looked at."""
        self._stuck = self._stuck or not sound
        if not self._stuck and number > self.thread:
            self._go(number, self.chunk)

    def passed(self, digest: bytes, *, sound: bool) -> None:
        """Say that all threads, and the chunks below this digest, were looked at."""
        self._stuck = self._stuck or not sound
        if not self._stuck:
            self._go(self.thread, digest[:_PREFIX])

    def _go(self, thread: int, chunk: bytes) -> None:
        self._at = -1 - (thread * _PLACES + int.from_bytes(chunk, "big")) if chunk else thread
        if time.monotonic() > self._next:  # whoever is killed goes on from here
            self.keep()
            self._next = time.monotonic() + _NOTE_SECONDS

    def keep(self) -> None:
        """Write it down."""
        if self._writes and self._at != self._before:
            with suppress(Error):
                self._backend.note(_NOTED, self._at)
                self._before = self._at

    def done(self) -> None:
        """All was looked at: the next one begins anew."""
        self._at = 0
        self.keep()


def verify(heads: Heads, progress: Progress = None, *, resume: bool = False) -> Findings:
    """Read everything there is, and say what is wrong."""
    heads = heads.anew()  # what was read before the damage must not speak for it
    note = Note(heads, resume=resume)
    findings = Findings()
    try:
        good: set[bytes] = set()
        _look_at_threads(heads, findings, good, note, progress)
        findings.held = list(agent_pointers.check(heads, {_name(each.record): each.lost for each in findings.ailing}))
        findings.misindexed = list(misindexed(heads))
        _look_at_chunks(heads, findings, good, note, progress)
    except BaseException:
        note.keep()
        raise
    note.done()
    return findings


def _name(record: ThreadRecord) -> tuple[str, str]:
    return record.space, record.name


# -- threads ------------------------------------------------------------------------------------------


def _look_at_threads(heads: Heads, findings: Findings, good: set[bytes], note: Note, progress: Progress) -> None:
    listed = _listed(heads)
    for record in gc.threads(heads):
        if record.no <= note.thread:
            findings.skipped += 1
            continue
        findings.threads += 1
        before = findings.checkpoints

        def told(count: int, before: int = before) -> None:
            if progress:
                progress("checkpoints", before + count)

        try:
            ailing, count = look_at(heads, record, good, told)
        except Corrupt as error:  # the storage itself cannot be read there
            findings.faults.append(f"{record.space} {record.name!r}: {error}")
            note.reached(record.no, sound=False)
            continue
        findings.checkpoints += count if record.space != pins.SPACE else 0
        if ailing is not None:
            findings.ailing.append(ailing)
        wrong = _misfiled(heads, record, listed)
        findings.faults += wrong
        note.reached(record.no, sound=ailing is None and not wrong)


def look_at(
    heads: Heads, record: ThreadRecord, good: set[bytes], told: Callable[[int], None] = lambda _: None
) -> tuple[Ailing | None, int]:
    """Read a thread; return what is wrong with it, if anything is, and how many visible checkpoints it has."""
    found: tuple[Ailing | None, int] = (None, 0)
    for _ in range(_LOOKS):
        before = heads.backend.newest(record.no)
        if before is None:
            break
        walk = _Walk(heads, record, before, good, told)
        ailing = walk.found()
        found = (None if ailing.sound else ailing, walk.count)
        if ailing.sound or walk.holds():
            break  # else somebody wrote or collected meanwhile: what seems to be wrong may be that
    return found


class _Walk:
    """Goes through the rows of a thread once, up to the newest, and takes note of what is wrong."""

    def __init__(
        self, heads: Heads, record: ThreadRecord, newest: Row, good: set[bytes], told: Callable[[int], None]
    ) -> None:
        self._heads = heads
        self._record = record
        self._good = good
        self._told = told
        self._reading = Reading(heads, record)
        self._stood: list[tuple[int, int]] = []
        """Of the sound rows, which checkpoint was the head."""
        self._sound: dict[int, tuple[int, int]] = {}
        """The sound checkpoints: the parent and the view of each."""
        self._firsts: dict[int, int] = {}
        """Rows that say what is in view, and the first sound checkpoint behind each, hidden or not."""
        self._views: set[int] = set()
        """Those of them that a checkpoint is in need of."""
        self._moves: set[int] = set()
        self._fixed: set[int] = set()
        """Unsound rows that no move can be written over: `rewrite` leaves a row its op_id, and lets a base be one."""
        self._loads: set[int] = set()
        self._first: int | None = None
        """When the first of the sound rows was written."""
        self._ailing = Ailing(record, newest)
        self.count = 0

    def found(self) -> Ailing:
        """Return what is wrong."""
        ailing = self._ailing
        low = 1
        while low <= ailing.newest.seq:
            ranges = [(low, ailing.newest.seq)]
            rows = self._heads.backend.rows(self._record.no, ranges, payload=True, limit=_PAGE)
            if not rows:
                break
            for row in rows:
                self._take(row)
            low = rows[-1].seq + 1
            self._told(self.count)
        ailing.loads = len(self._loads)
        self._see_views()
        self._see_head()
        self._see_last()
        if self._record.space == journal.SPACE and ailing.head_lost and journal_remnants.is_behind(self._heads, ailing):
            ailing.head = 0
        if abs(self._record.created_at) >= log.LATEST:
            ailing.born = self._heads.clock() if self._first is None else self._first
        return ailing

    def holds(self) -> bool:
        """Tell whether the thread still stands as it did, and what is pinned still is: what is not may be collected."""
        newest = self._heads.backend.newest(self._record.no)
        same = newest is not None and newest.op_id == self._ailing.newest.op_id
        return same and self._reading.pinned <= pins.pinned(self._heads, self._record)

    def _take(self, row: Row) -> None:
        reason = self._reading.reason(row, self._good)
        if reason is not None:
            self._ailing.lost[row.seq] = reason
        self.count += row.op in log.CHECKPOINTS and not row.hidden
        if not log.is_sound(row, self._record.uid):
            self._ailing.unsound.add(row.seq)
            if row.base == row.seq or type(row.op_id) is not bytes or len(row.op_id) != log.OP_BYTES:
                self._fixed.add(row.seq)
            return
        self._stood.append((row.seq, row.head))
        if self._first is None:
            self._first = row.created_at
        if row.op not in log.CHECKPOINTS:
            self._moves.add(row.seq)
            return
        self._sound[row.seq] = row.parent, row.view
        if reason is None and not row.hidden:
            self._loads.add(row.seq)
        self._firsts.setdefault(row.view, row.seq)
        if not row.hidden or row.seq in self._reading.pinned:
            self._views.add(row.view)

    def _see_views(self) -> None:
        """See what is in view where the rows are lost that say so, as `Heads.path` does."""
        ailing = self._ailing
        for view in sorted(self._views):
            if view in ailing.unsound and view not in self._fixed:
                ailing.views[view] = self._firsts[view]
            at = view
            while at and at not in self._moves:
                first = self._firsts[at]
                parent = self._sound[first][0]
                if parent > at or (parent and parent not in self._sound):
                    ailing.cut[first] = at
                    break
                at = self._sound[parent][1] if parent else 0

    def _see_head(self) -> None:
        ailing, newest = self._ailing, self._ailing.newest
        ailing.head = next((head for _, head in reversed(self._stood) if head in self._loads), 0)
        if newest.seq in ailing.unsound:
            ailing.head_lost = True
        elif newest.head and newest.head not in self._loads:
            row = self._heads.row(self._record, newest.head)
            if row is None:
                ailing.lost[newest.head] = "it is the head, and its row is missing"
            if row is not None and row.hidden and newest.head not in ailing.lost and self._can_be_read(row):
                ailing.head, ailing.head_hidden = newest.head, True
            else:
                ailing.head_lost = True

    def _see_last(self) -> None:
        """See whether there was a newer row: what is kept beside the rows says up to which it knows the thread."""
        seen = self._heads.backend.last_seq(self._record.no)  # first: what others add meanwhile is not taken for lost
        newest = self._heads.backend.newest(self._record.no)
        if newest is not None and newest.seq < seen <= newest.seq + JUMP:
            ailing = self._ailing
            ailing.last, ailing.head_lost = seen, True
            ailing.lost[seen] = "it was the newest row, as is known beside the rows, and is missing"

    def _can_be_read(self, row: Row) -> bool:
        try:
            read_below(self._heads, self._heads.chain(self._record, row).tree, self._good)
        except (Corrupt, NotFound):
            self._ailing.lost[row.seq] = "it is the head, is hidden, and cannot be read"
            return False
        return True


def _listed(heads: Heads) -> set[tuple[int, int]]:
    """Return the threads that are listed, each with its newest row."""
    found: set[tuple[int, int]] = set()
    after: tuple[int, int] | None = None
    while page := heads.backend.threads(space=None, agent=None, prefix=None, after=after, limit=_PAGE):
        listed = {(record.no, newest.seq) for record, newest in page}
        if listed <= found:
            break  # where to go on is told by a row that is damaged: those behind it are looked at one by one
        found |= listed
        after = (page[-1][1].created_at, page[-1][0].no)
    return found


def _misfiled(heads: Heads, record: ThreadRecord, listed: Container[tuple[int, int]]) -> list[str]:
    """Return what is wrong with how a thread is found."""
    backend = heads.backend
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
        found += [] if _is_listed(heads, record, newest) else [f"{what} is not listed as what it is"]
    return found


def _is_listed(heads: Heads, record: ThreadRecord, newest: Row) -> bool:
    """Look again: what was listed before may have been written to since."""
    after = (newest.created_at, record.no + 1)  # it comes first behind this place, unless it has moved on
    page = heads.backend.threads(space=record.space, agent=record.agent, prefix=record.name, after=after, limit=1)
    if bool(newest.head) == ([(each.no, row.seq) for each, row in page] == [(record.no, newest.seq)]):
        return True
    there, again = heads.backend.thread(record.no), heads.backend.newest(record.no)
    return again is None or again.op_id != newest.op_id or there != record


# -- the rest -----------------------------------------------------------------------------------------


def misindexed(heads: Heads) -> Iterator[ThreadRecord]:
    """Give the threads of whose messages the index does not hold what it says, or has no mark that it holds less."""
    for record in gc.threads(heads):
        if not indexer.is_true(heads, record) or (not heads.backend.read_only and _unmarked(heads, record)):
            yield record


def _unmarked(heads: Heads, record: ThreadRecord) -> bool:
    """Tell whether the index knows a thread as something else than it is, and has no mark that it may."""
    backend = heads.backend
    newest = backend.newest(record.no)
    if newest is None or backend.marked(record.no - 1, 1) == [record.no]:
        return False
    seen = backend.indexed(record.no)
    head = newest.head if log.is_sound(newest, record.uid) else seen.seq
    if (seen.as_of, seen.seq) == (newest.seq, head) or backend.marked(record.no - 1, 1) == [record.no]:
        return False
    again = backend.newest(record.no)  # else somebody wrote meanwhile
    return again is not None and again.op_id == newest.op_id


def _look_at_chunks(heads: Heads, findings: Findings, good: set[bytes], note: Note, progress: Progress) -> None:
    """Read the chunks that nothing led to: whoever saves the same content again would rely on them."""
    count = 0
    after = note.chunk
    while page := heads.backend.chunk_page(after, _PAGE):
        unread = [digest for digest, _ in page if digest not in good]
        damaged = damaged_chunks(heads, unread)
        findings.chunks += damaged
        after = page[-1][0]
        count += len(page)
        note.passed(after, sound=not damaged)
        if progress:
            progress("chunks", count)


def damaged_chunks(heads: Heads, digests: Sequence[bytes]) -> list[bytes]:
    """Return which of these chunks are there, and are not what their digests say."""
    return [digest for digest, stored in heads.backend.chunks(digests).items() if not _is_good(digest, stored)]


def _is_good(digest: bytes, stored: bytes) -> bool:
    try:
        check_chunk(digest, stored)
    except Corrupt:
        return False
    return True
