"""Upkeep: what keeps a store small. `verifying` tells whether it is sound, `repairing` gives up what is not.

Collecting has three parts. A hidden checkpoint's row goes, after what the store's ttl has ended is hidden, too: a
visible one that was stored as its change is given a base of its own first. What rows hold and chunks hold, too, is then
kept once (see `repack`). Then every chunk that no remaining row leads to goes, except those put or touched since the
collection began: a new epoch is begun first, and writers stamp what they rely on, so a chunk that a writer is about to
use is never taken from under it.
A collection that cannot read something it needs to follow stops before it removes any chunk.
It writes in slices, with pauses between them: nobody who writes waits for more than one.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import asides, log, payload, pins, retention, throttle
from backtrail.engine.compression import squeeze
from backtrail.engine.moves import Moves
from backtrail.engine.search import indexer
from backtrail.engine.writer import Key
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance.repack import repack

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.engine.tree.nodes import Node, Nodes

_PAGE: Final = 500
_LONG: Final = 64
"""Bytes that a row may say about what is in view without being looked at."""


class Collected(NamedTuple):
    """What a collection removed."""

    rows: int
    chunks: int
    bytes: int
    repacked: int


def threads(heads: Heads) -> Iterator[ThreadRecord]:
    """Give every thread there is, deleted ones included."""
    after = 0
    while numbers := heads.backend.thread_numbers(after, _PAGE):
        for number in numbers:
            record = heads.backend.thread(number)
            if record is not None:
                yield record
        after = numbers[-1]


def collect(heads: Heads, progress: Callable[[str, int], None] | None = None, *, erase: bool = False) -> Collected:
    """Remove what nothing needs any more; `erase` leaves no trace of it."""
    backend = heads.backend
    indexer.catch_up(heads, known=True)  # what goes now is not found any more, and leaves the index's pages with it
    epoch = backend.next_epoch()
    removed = 0
    live: set[bytes] = set()
    marked: dict[int, int] = {}
    loosening = pins.Loosening(heads)
    paced = throttle.Upkeep()
    for record in threads(heads):
        if record.space == asides.THREAD:
            with suppress(Corrupt):  # what stands aside of a damaged thread stays
                asides.drop_orphans(heads, Moves(heads), record)
    for count, record in enumerate(threads(heads), 1):
        loosening.loosen(record)
        _hide_outlived(heads, record)
        removed += collect_rows(heads, record, paced)
        marked[record.no] = _mark(heads, record, live)
        if progress:
            progress("threads", count)
    for record in threads(heads):
        _mark_newer(heads, record, live, marked.get(record.no, 0))
    repacked = _repack(heads, live, paced, progress)
    chunks, size = _sweep(heads, live, epoch, paced, progress)
    backend.reclaim(erase=erase)
    return Collected(removed, chunks, size, repacked)


def _hide_outlived(heads: Heads, record: ThreadRecord) -> None:
    """Hide what is too old, as the next save to the thread would."""
    if heads.options.ttl is not None and record.space != pins.SPACE:
        with suppress(Corrupt):  # how a damaged thread stands is not known
            Moves(heads).hide(Key(record.space, record.name), partial(retention.outlived, heads))


def collect_rows(heads: Heads, record: ThreadRecord, paced: throttle.Upkeep | None = None) -> int:
    """Remove the rows of a thread's hidden checkpoints that no visible or pinned one stands on.

    Without pauses, if it is not said how it is `paced`: then somebody waits for it, such as after a save.
    """
    paced = paced or throttle.Upkeep(longest=0.0)
    rows = heads.backend.rows(record.no, [(1, log.MAX_SEQ)])  # in one read: what is hidden in it has no newer child
    if not rows:
        return 0
    newest = rows[-1]
    by_seq = {row.seq: row for row in rows}
    kept = {row.seq for row in rows if not row.hidden} | pins.pinned(
        heads, record
    )  # pins last: they come before hiding
    if any(not log.is_sound(row, record.uid) for row in rows):
        return 0  # what a damaged row stands on is not known
    for row in rows:
        if row.op == log.SAVE and row.seq in kept and row.base != row.seq and row.parent not in kept:
            with paced.write():
                by_seq[row.seq] = on_its_own(heads, record, row)
    rows = list(by_seq.values())
    cleared = max((row.seq for row in rows if row.op == log.CLEAR), default=0)
    needed = stood_on(rows, kept)
    needed |= {by_seq[seq].view for seq in needed}  # whoever restores what is pinned sees what was in view before it
    gone = [
        row.seq
        for row in reversed(rows)  # the newest first: what is left at any time can still be read
        if row.seq not in needed
        and row.seq != newest.seq
        and (row.seq < cleared or (row.op in log.CHECKPOINTS and row.hidden))
    ]
    removed = 0
    for part in throttle.slices(gone):
        with paced.write():
            removed += heads.backend.remove_rows(record.no, part)
    if removed == len(gone):  # else one was shown again meanwhile
        went = set(gone)
        _shorten(heads, record, [row for row in rows[:-1] if row.seq not in went], paced)
    return removed


def _shorten(heads: Heads, record: ThreadRecord, rows: list[Row], paced: throttle.Upkeep) -> None:
    """Shorten rows that move the head: each has all the ranges of its path, of most of which nothing may be left.

    Whoever reads one meanwhile may read either: no row is ever put into a range that has passed.
    """
    left = [row.seq for row in rows if row.op in log.CHECKPOINTS]
    shorter: list[Row] = []
    for row in rows:
        if row.op not in log.CHECKPOINTS and len(row.extra) > _LONG:
            ranges = log.unpack_extra(row)[1] or ()
            fewer = log.shortened(ranges, left)
            if fewer != ranges:
                shorter.append(log.checked(row._replace(extra=log.pack_extra(b"", fewer, None)), record.uid))
    for part in throttle.slices(shorter):
        with paced.write():
            heads.backend.rewrite(record.no, part)


def on_its_own(heads: Heads, record: ThreadRecord, row: Row) -> Row:
    """Make a checkpoint that was stored as a change of a hidden one a base, so that the hidden one can go."""
    try:
        tree = heads.chain(record, row).tree
    except (Corrupt, NotFound):
        return row
    compress = heads.options.compression
    # All its nodes become chunks: a writer that knows this state may count on any of them to be one.
    stored = payload.base(tree, frozenset(tree.nodes.fresh), compress=compress)
    chunks = [(digest, squeeze(node.kind + node.data, enabled=compress)) for digest, node in stored.chunks.items()]
    based = log.checked(row._replace(base=row.seq, depth=0, payload=stored.payload), record.uid)
    return based if heads.backend.rewrite(record.no, [based], chunks) else row


def stood_on(rows: list[Row], kept: Container[int]) -> set[int]:
    """Return the seqs of the rows that the states of those to be kept are read from, their own included."""
    by_seq = {row.seq: row for row in rows}
    return {seq for row in rows if row.op in log.CHECKPOINTS and row.seq in kept for seq in _chain(row, by_seq)}


def _chain(row: Row, by_seq: dict[int, Row]) -> Iterator[int]:
    """Give the seqs of the rows that a checkpoint's state is read from."""
    while True:
        yield row.seq
        if row.base == row.seq or row.parent not in by_seq:
            return
        row = by_seq[row.parent]


def _mark(heads: Heads, record: ThreadRecord, live: set[bytes]) -> int:
    """Add the digests of all chunks that a thread's rows lead to; return the seq of the newest row."""
    newest = heads.backend.newest(record.no)
    low = 1
    while newest is not None and low <= newest.seq:
        rows = heads.backend.rows(record.no, [(low, newest.seq)], payload=True, limit=_PAGE)
        if not rows:
            break
        for row in rows:
            if row.op in log.CHECKPOINTS:
                _mark_row(heads, record, row, live)
        low = rows[-1].seq + 1
    return newest.seq if newest is not None else 0


def _mark_newer(heads: Heads, record: ThreadRecord, live: set[bytes], since: int) -> None:
    """Mark the rows that came after a thread was marked, in one read.

    They stand on chunks that they did not touch, of rows that may have gone before they were marked. What is written
    after this read stands on rows that are marked now.
    """
    for row in heads.backend.rows(record.no, [(since + 1, log.MAX_SEQ)], payload=True):
        if row.op in log.CHECKPOINTS:
            _mark_row(heads, record, row, live)


def _mark_row(heads: Heads, record: ThreadRecord, row: Row, live: set[bytes]) -> None:
    try:
        below = chunks_below(heads.nodes(), row, live)
    except Corrupt as error:
        found_now = heads.backend.rows(record.no, [(row.seq, row.seq)], payload=True)
        if not found_now:
            return  # somebody else collected it meanwhile
        (there,) = found_now
        if there.payload != row.payload:  # somebody else repacked it meanwhile, or made it a base
            _mark_row(heads, record, there, live)
            return
        raise heads.damaged(
            record, row.seq, f"{error}; nothing was collected, because what this one stands on is not known"
        ) from error
    live.update(below)  # only once all of it was followed: who finds a digest in `live` goes no further


def chunks_below(nodes: Nodes, row: Row, known: Container[bytes]) -> dict[bytes, Node]:
    """Return the chunks that a checkpoint's row leads to, but for those that are known, and what they lead to."""
    if row.base == row.seq:
        tree, inlined = payload.read_base(row.payload or b"", nodes)
        found = payload.refs_of(tree.rep) + [c for d in inlined for c in nodes.fresh[d].children()]
    else:
        found = payload.refs_of_ops(payload.read_delta(row.payload or b"", nodes))
    below: dict[bytes, Node] = {}
    todo = [digest for digest in found if digest not in known and digest not in nodes.fresh]
    while todo:
        loaded = nodes.load(todo)
        below.update(loaded)
        todo = [c for node in loaded.values() for c in node.children() if c not in known and c not in below]
    return below


def _repack(heads: Heads, live: set[bytes], paced: throttle.Upkeep, progress: Callable[[str, int], None] | None) -> int:
    """Keep once what rows and chunks hold. It comes before the sweep: no row is left beside a chunk that goes."""
    repacked = 0
    for record in threads(heads):
        before = repacked

        def told(count: int, before: int = before) -> None:
            if progress:
                progress("repack", before + count)

        repacked += repack(heads, record, live, told, paced)
    return repacked


def _sweep(
    heads: Heads, live: set[bytes], epoch: int, paced: throttle.Upkeep, progress: Callable[[str, int], None] | None
) -> tuple[int, int]:
    chunks = size = seen = 0
    after = b""
    while page := heads.backend.chunk_page(after, _PAGE):
        after = page[-1][0]
        dead = [digest for digest, stamped in page if stamped < epoch and digest not in live]
        for part in throttle.slices(dead):
            with paced.write():
                size += heads.backend.remove_chunks(part, epoch)
        chunks += len(dead)
        seen += len(page)
        if progress:
            progress("chunks", seen)
    return chunks, size
