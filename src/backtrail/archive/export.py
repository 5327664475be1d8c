"""Exporting: what is in a store at one moment, or a part of it, as one file.

All that is written was read and checked: a checkpoint that cannot be read is named, and no file is made. Rows come as
they are, hidden ones, too, as long as no collection has removed them; and with them every chunk that they lead to. A
hidden one that cannot be read, and that no other is read from, is left out, as if it had been collected. An export that
continues another one has the rows and chunks that are new since, and what was hidden, tagged or begun anew.

What it relies on is what a collection leaves to whoever imported the others: a chunk that only hidden rows lead to at
the end of an export is not known to the next one, which has it again if a new row leads to it.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.archive.layout import ID_BYTES, Entry, Header, Known, Writer
from backtrail.archive.reader import Archive, id_of
from backtrail.atomic_file import opened, path_of, placed
from backtrail.backends.port import NewThread
from backtrail.engine import journal, log, payload, pins
from backtrail.engine.reader import Heads
from backtrail.errors import Conflict, Corrupt, NotFound
from backtrail.maintenance import gc
from backtrail.maintenance.readable import Reading, read_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from backtrail.archive.layout import Totals
    from backtrail.atomic_file import Access
    from backtrail.backends.port import Row, ThreadRecord

_PAGE: Final = 200
NAMED: Final = {"thread": ("thread", "aside"), pins.CONVERSATION: (pins.CONVERSATION,), "run": ("run", journal.SPACE)}
"""The kinds of which a thread that is named may be, and their name spaces: a run has its journal with it."""


class Scope(NamedTuple):
    """What is to be exported: everything, all of an agent, or the threads with these ids, of these kinds."""

    agent: str | None = None
    threads: tuple[str, ...] | None = None
    kinds: tuple[str, ...] = tuple(NAMED)

    def has(self, record: ThreadRecord) -> bool:
        """Tell whether a thread is meant."""
        if self.agent is not None:
            own = record.name == self.agent and record.space in (pins.AGENT, pins.SPACE)
            return own or record.agent == self.agent
        if self.threads is None:
            return True
        return record.name in self.threads and any(record.space in NAMED[kind] for kind in self.kinds)

    def require(self, records: list[ThreadRecord]) -> None:
        """Raise `NotFound` if something that was named is not there."""
        if self.agent is not None and not records:
            raise NotFound(f"there is no agent {self.agent!r}, and nothing of it", code="not_found.agent")
        missing = [name for name in self.threads or () if not any(record.name == name for record in records)]
        if missing:
            what = self.kinds[0] if len(self.kinds) == 1 else "thread"
            raise NotFound(f"there is no {what} {missing[0]!r}", code="not_found.thread")

    def stated(self) -> list[Any] | None:
        """Return it as a file says it."""
        if self.agent is None and self.threads is None:
            return None
        names = None if self.threads is None else [name.encode("utf-8", "surrogatepass") for name in self.threads]
        return [None if self.agent is None else self.agent.encode("utf-8", "surrogatepass"), names]


class Exported(NamedTuple):
    """What a file holds."""

    id: str
    since: str | None
    totals: Totals
    size: int


def export(
    heads: Heads,
    path: Path,
    scope: Scope,
    since: Any,
    progress: Callable[[str, int], None] | None,
    *,
    access: Access | None = None,
) -> Exported:
    """Write what is in the store now to a new file; `access` says who may read it."""
    with _before(since, path) as before, placed(path) as part, heads.backend.snapshot() as view:
        seen = Heads(view, heads.types, heads.options, heads.clock)
        with opened(part, access) as file:
            number = os.urandom(ID_BYTES)
            header = Header(number, heads.clock(), before.header.id if before else None)
            totals = _Export(seen, Writer(file, header, scope.stated()), before).write(scope, progress)
        size = part.stat().st_size
    return Exported(number.hex(), before.id if before else None, totals, size)


def _before(since: Any, path: Path) -> AbstractContextManager[Archive | None]:
    """Open an earlier export: it is named by its path, or by its id if it lies beside the new one."""
    if since is None:
        return nullcontext()
    named = path_of(since)
    if not named.exists() and isinstance(since, str) and len(since) == 2 * ID_BYTES:
        beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
        named = next((each for each in beside if each.is_file() and id_of(each) == since), named)
    return Archive(named)


class _Export:
    """One export, from a store that stands still."""

    def __init__(self, heads: Heads, writer: Writer, before: Archive | None) -> None:
        self._heads = heads
        self._writer = writer
        self._before = before
        self._known = dict(before.known) if before else {}
        self._digests = dict.fromkeys(before.digests() if before else ())
        """Chunks that need not be written: this export has them already, or who imports it does."""
        self._lasting = set(self._digests)
        """Those that rows of the earlier export lead to which were visible then, and still are ..."""
        self._shown = {entry.uid: entry.visible for entry in before.entries} if before else {}
        self._shrunk = False
        """... as long as none of these was hidden."""
        self._good: set[bytes] = set()
        """Chunks that were read and found good, below visible rows ..."""
        self._held: set[bytes] = set()
        """... and below hidden ones that are pinned: who imports them may have no such pin."""

    def write(self, scope: Scope, progress: Callable[[str, int], None] | None) -> Totals:
        """Write all threads that are meant."""
        everything = list(gc.threads(self._heads))
        records = [record for record in everything if scope.has(record)]
        scope.require(records)
        if not self._known.keys() <= {record.uid for record in everything}:  # no thread ever leaves a store
            raise Conflict(
                "the earlier export is of another store, or of threads that this one has lost: export without since=",
                code="conflict.export",
            )
        manifests = {pins.pin_of(record.uid) for record in records if record.space == pins.SPACE}
        for count, record in enumerate(records, 1):
            self._thread(record, manifests)
            if progress:
                progress("threads", count)
        if self._shrunk:
            self._lasting = self._below_heads(records)
        kept = self._lasting | self._good
        self._writer.end(self._known, [digest for digest in self._digests if digest in kept])
        return self._writer.totals

    def _below_heads(self, records: list[ThreadRecord]) -> set[bytes]:
        """Return the chunks that the heads of threads lead to: what new rows share with old ones, mostly.

        Threads that are not exported do not count: how they are stored may have changed here, and only here.
        """
        below: set[bytes] = set()
        for record in records:
            known = self._known.get(record.uid)
            newest = self._heads.row(record, known.newest) if known else None
            head = self._heads.row(record, newest.head) if newest and newest.head else None
            if head is not None and not head.hidden:
                with suppress(Corrupt, NotFound):  # what cannot be read is not relied on
                    below |= read_below(self._heads, self._heads.chain(record, head).tree, below)
        return below

    def _thread(self, record: ThreadRecord, manifests: set[str]) -> None:
        rows = self._heads.backend.rows(record.no, [(1, log.MAX_SEQ)])
        if not rows:
            return
        for row in rows:
            self._heads.require_sound(record, row)
        tags = {seq: _kept(words, manifests) for seq, words in self._heads.backend.tags(record.no).items()}
        known = self._known.get(record.uid)
        start = self._continued(record, rows, known)
        near = next((row for row in reversed(rows) if row.seq <= start), None)
        entry = Entry(
            thread=NewThread(*record[1:]),
            start=start,
            start_op=known.op_id if known else b"",
            newest=rows[-1].seq,
            newest_op=rows[-1].op_id,
            visible=_ranges(row.seq for row in rows if not row.hidden),
            tags={seq: words for seq, words in tags.items() if words},
            near=near.seq if near else 0,
            near_op=near.op_id if near else b"",
        )
        base = next((row.base for row in rows if row.seq == rows[-1].head > start), known.base if known else 0)
        now = Known(entry.newest, entry.newest_op, entry.marks(), base)
        if known is not None and now[:3] == known[:3]:
            return
        self._shrunk = self._shrunk or (known is not None and not self._only_grew(entry, known))
        if record.space == pins.SPACE:
            self._require_held(record)
        self._writer.thread(entry)
        self._rows(record, [*_rebased(rows, known), *(row.seq for row in rows if row.seq > start)])
        self._known[record.uid] = now

    def _continued(self, record: ThreadRecord, rows: list[Row], known: Known | None) -> int:
        """Return behind which row the thread is new; `Conflict` if it is not what the earlier export had."""
        if known is None:
            return 0
        here = {row.seq: row.op_id for row in rows if row.seq <= known.newest}
        same = rows[-1].seq >= known.newest and here.get(known.newest, known.op_id) == known.op_id
        if same and known.newest not in here:  # it was collected: others of that export may still be there
            same = all(here.get(seq, op_id) == op_id for seq, op_id in self._exported(record))
        if not same:
            raise Conflict(
                f"thread {record.name!r} does not go on from what the earlier export holds: export without since=",
                code="conflict.export",
            )
        return known.newest

    def _only_grew(self, entry: Entry, known: Known) -> bool:
        """Tell whether all is still visible that was so in the earlier export; False also if that is not known."""
        visible = tuple((low, min(high, known.newest)) for low, high in entry.visible if low <= known.newest)
        if entry.uid in self._shown:
            return visible == self._shown[entry.uid]
        tags = {seq: words for seq, words in entry.tags.items() if seq <= known.newest}
        return entry._replace(visible=visible, tags=tags).marks() == known.marks

    def _exported(self, record: ThreadRecord) -> Iterator[tuple[int, bytes]]:
        """Give the rows of a thread that are in the earlier export itself: the seq and the op_id of each."""
        if self._before is not None:
            for entry in self._before.entries:
                if entry.uid == record.uid:
                    yield from ((row.seq, row.op_id) for row in self._before.rows(entry, 1, entry.newest))

    def _require_held(self, record: ThreadRecord) -> None:
        """Raise unless all is there that an agent's checkpoints hold: who imports them looks for it, too."""
        for (space, name), needs in pins.needed(self._heads, record)[1].items():
            found = self._heads.backend.find_thread(space, name)
            ranges = _ranges(sorted(needs))
            there = self._heads.backend.rows(found.no, ranges) if found else []
            if {row.seq: row.root for row in there} != needs:
                raise Corrupt(
                    f"what checkpoints of agent {record.name!r} hold of {space} {name!r} is lost; nothing was exported",
                    code="corrupt.row",
                )

    def _rows(self, record: ThreadRecord, seqs: list[int]) -> None:
        reading = Reading(self._heads, record)
        needed: set[int] = set()
        for at in range(0, len(seqs), _PAGE):
            ranges = _ranges(seqs[at : at + _PAGE])
            for row in self._heads.backend.rows(record.no, ranges, payload=True):
                try:
                    self._row(record, row, reading)
                except Corrupt as error:
                    if not row.hidden or row.seq in reading.pinned:
                        raise
                    needed = needed or self._needed(record, reading.pinned)
                    if row.seq in needed:
                        why = f"{error}: it is hidden, and others are stored as changes of it: collect first (gc)"
                        raise self._heads.damaged(record, row.seq, why, error.code) from error

    def _needed(self, record: ThreadRecord, pinned: set[int]) -> set[int]:
        """Return the rows of a thread that have to be in the file, or were in the earlier one."""
        rows = self._heads.backend.rows(record.no, [(1, log.MAX_SEQ)])
        return {rows[-1].seq} | gc.stood_on(rows, {row.seq for row in rows if not row.hidden} | pinned)

    def _row(self, record: ThreadRecord, row: Row, reading: Reading) -> None:
        if row.op not in log.CHECKPOINTS:
            self._writer.row(row, b"")
            return
        why = reading.reason(row, self._held if row.hidden else self._good)
        if why is not None:
            raise self._heads.damaged(record, row.seq, f"{why}; nothing was exported")
        nodes = self._heads.nodes()
        try:
            plain = payload.plain(row.payload or b"", nodes)
            below = gc.chunks_below(nodes, row, self._digests)
        except Corrupt as error:
            raise self._heads.damaged(record, row.seq, f"{error}; nothing was exported", error.code) from error
        for digest, node in below.items():
            self._writer.chunk(node.kind + node.data)
            self._digests[digest] = None
        self._writer.row(row, plain)


def _rebased(rows: list[Row], known: Known | None) -> list[int]:
    """Return the seqs of rows that were exported before, and that new ones may find to be bases only since then."""
    if known is None:
        return []
    bases = [row.base for row in rows if row.seq > known.newest and 0 < row.base <= known.newest]
    lowest = min((base for base in bases if base != known.base), default=log.MAX_SEQ)
    return [row.seq for row in rows if lowest <= row.seq <= known.newest and row.base == row.seq]


def _kept(tags: Iterable[str], manifests: set[str]) -> tuple[str, ...]:
    """Return tags, without the pins of agent checkpoints that are not exported."""
    return tuple(tag for tag in tags if tag in manifests or not pins.pins_in((tag,)))


def _ranges(seqs: Iterable[int]) -> log.Ranges:
    """Return ascending seqs as ranges."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)
