"""Garbage collection: remove rows and chunks that no state needs, and store once the bytes that were stored twice.

1. Rows. The collection hides checkpoints that are older than the store's ttl, and removes the rows of hidden
   checkpoints. Before it removes a row, visible delta rows that need it become base rows.
2. Repacking. An appended item is stored in its row, and later also in the leaf chunk that closes over it. In the same
   way the references in a base's spine are later stored in an inner node. Such rows are compressed again *beside* those
   chunks (see `compression`). Their payloads read as the same bytes, so roots, ids and states do not change. A row
   beside a chunk does not keep the chunk alive: only states do. Otherwise a leaf with deleted items would stay as long
   as a row is stored beside it. So before a chunk is removed, the rows beside it are stored without it.
3. Chunks. The collection removes chunks that no remaining row refers to, except those that were put or touched since it
   began. It begins a new epoch first, and writers stamp the chunks that they rely on. So a chunk that a writer is about
   to use stays.

Always true:
- if the collection cannot follow the references of a row, it stops before it removes any chunk;
- it writes in slices, with pauses between them: a writer waits for one slice, or for a group of short threads;
- it repacks a row only after it has tested that the row reads as the same bytes, and writes the row together with the
  chunks that it needs, which are put or touched;
- it leaves a damaged row, or a row that needs a damaged chunk, unchanged.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.backends.port import ERASED, Undone
from backtrail.engine import asides, log, manifests, payload, retention, throttle
from backtrail.engine.compression import BESIDE_MAX, Beside, squeeze, stands_beside, unsqueeze_beside
from backtrail.engine.head import HeadMover
from backtrail.engine.search import indexer
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import INNER, LEAF, NODE_LIMIT, SPINE, Node, read_levels
from backtrail.engine.tree.tree import SET, SPLICE
from backtrail.engine.writer import ThreadKey
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance.readable import is_chunk_sound
from backtrail.models import GcReport

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader, StoreReader
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.tree import Tree

_PAGE: Final = 500
_LONG: Final = 64
"""Rows that move the head are shortened if their `extra` field, with the ranges, has more bytes than this."""

PART_MIN: Final = 32
"""The smallest part of a row that is looked up in chunks, in bytes: the size of a digest, or of a line of text."""
PAYLOAD_MIN: Final = 96
"""The smallest payload that is repacked, in bytes: smaller payloads would hardly shrink."""
GAIN_MIN: Final = 24
"""The least number of bytes that repacking a row must save."""
WAITING_BYTES: Final = 4 * 1024 * 1024
"""The limit for the payload bytes of waiting rows in memory; above it, the oldest rows stop waiting."""
_TRIES: Final = 8
"""The number of attempts to make a waiting row smaller, each with other chunks."""
_BATCH: Final = throttle.SLICE
"""Rows per transaction: a writer waits for one transaction at most."""
_GROUP: Final = 8
"""The most threads that are changed in one durable commit, so that few commits wait for the disk."""
_SMALL: Final = 32 * 1024
"""The most bytes of the state of a thread in such a group: a writer waits until all of the group is read and packed."""


def threads(reader: LogReader) -> Iterator[ThreadRecord]:
    """Yield every thread of the store, deleted threads included, by number."""
    after = 0
    while numbers := reader.backend.thread_numbers(after, _PAGE):
        for number in numbers:
            record = reader.backend.thread(number)
            if record is not None:
                yield record
        after = numbers[-1]


def _thread_groups(reader: StoreReader) -> Iterator[list[ThreadRecord]]:
    """Yield every thread of the store, short threads of small states in groups of at most one slice of rows."""
    group: list[ThreadRecord] = []
    rows = 0
    for record in threads(reader):
        newest = reader.backend.newest(record.no)
        count, size = (newest.seq, newest.size) if newest is not None else (0, 0)
        if count > _BATCH or size > _SMALL:
            yield [record]
            continue
        if group and (len(group) == _GROUP or rows + count > _BATCH):
            yield group
            group, rows = [], 0
        group.append(record)
        rows += count
    if group:
        yield group


def _together(
    reader: StoreReader,
    records: list[ThreadRecord],
    paced: throttle.Upkeep,
    work: Callable[[ThreadRecord, throttle.Upkeep], int],
) -> int:
    """Return the sum of `work` for these threads. The writes of several threads are one commit."""
    if len(records) == 1:
        return work(records[0], paced)
    unpaced = throttle.Upkeep(longest=0.0)
    with paced.write():
        try:
            with reader.backend.group():
                return sum(work(record, unpaced) for record in records)
        except Undone:  # another writer was first
            return sum(work(record, unpaced) for record in records)


def row_pages(reader: StoreReader, record: ThreadRecord, last: int) -> Iterator[list[Row]]:
    """Yield the rows of a thread up to the seq `last`, with their payloads, in pages."""
    low = 1
    while low <= last and (rows := reader.backend.rows(record.no, [(low, last)], payload=True, limit=_PAGE)):
        yield rows
        low = rows[-1].seq + 1


def collect(
    reader: StoreReader, progress: Callable[[str, int], None] | None = None, *, erase: bool = False
) -> GcReport:
    """Remove unneeded rows and chunks, and repack the rest. With `erase`, no removed byte stays in the storage."""
    backend = reader.backend
    indexer.catch_up(reader, known=True)  # removes index entries of removed rows, before `reclaim` erases their pages
    epoch = backend.next_epoch()
    removed = 0
    live: set[bytes] = set()
    marked: dict[int, int] = {}
    pins = manifests.PinIndex(reader)
    paced = throttle.Upkeep()
    for record in threads(reader):
        if record.space == asides.THREAD:
            with suppress(Corrupt):  # keep the asides of a damaged thread
                asides.drop_orphans(reader, HeadMover(reader), record)

    def collect_one(record: ThreadRecord, pace: throttle.Upkeep) -> int:
        pins.unpin(record)
        _hide_expired(reader, record)
        count = collect_rows(reader, record, pace)
        if erase and count:
            with pace.write():
                indexer.outdate(backend, record.no)
        return count

    for group in _thread_groups(reader):
        removed += _together(reader, group, paced, collect_one)
        for record in group:
            marked[record.no] = _mark(reader, record, live)
            if progress:
                progress("threads", len(marked))
    for record in threads(reader):
        _mark_newer(reader, record, live, marked.get(record.no, 0))
    repacked = _repack(reader, live, paced, progress)
    chunks, size = _sweep(reader, live, epoch, paced, progress)
    if erase:
        indexer.catch_up(reader, known=True)  # a worker may have indexed meanwhile what it had read before
    backend.reclaim(erase=erase)
    return GcReport(removed, chunks, size, repacked)


def _hide_expired(reader: StoreReader, record: ThreadRecord) -> None:
    """Hide the checkpoints that are older than the store's ttl, as the next save to the thread would."""
    if reader.options.ttl is not None and record.space != manifests.SPACE:
        with suppress(Corrupt):  # the head of a damaged thread is unknown
            HeadMover(reader).hide(ThreadKey(record.space, record.name), partial(retention.outlived, reader))


def collect_rows(reader: StoreReader, record: ThreadRecord, paced: throttle.Upkeep | None = None) -> int:
    """Remove the hidden checkpoints of a thread that no visible or pinned state needs; return how many.

    Without `paced` there are no pauses: a caller that has just saved waits for this.
    """
    paced = paced or throttle.Upkeep(longest=0.0)
    rows = reader.backend.rows(record.no, [(1, log.MAX_SEQ)])  # one read: its hidden rows get no newer children
    if not rows:
        return 0
    erased = _remove_erased(reader, record, rows, paced)
    if erased:
        rows = reader.backend.rows(record.no, [(1, log.MAX_SEQ)])
    newest = rows[-1]
    by_seq = {row.seq: row for row in rows}
    kept = {row.seq for row in rows if not row.hidden} | manifests.pinned_seqs(
        reader, record
    )  # read pins last: a writer pins a row first, then hides it
    if any(not log.is_sound(row, record.uid) for row in rows):
        return 0  # the base of a damaged row is unknown
    for row in rows:
        if row.op == log.SAVE and row.seq in kept and row.base != row.seq and row.parent not in kept:
            with paced.write():
                by_seq[row.seq] = make_base(reader, record, row)
    rows = list(by_seq.values())
    cleared = max((row.seq for row in rows if row.op == log.CLEAR), default=0)
    needed = needed_by(rows, kept)
    needed |= {by_seq[seq].view for seq in needed}  # restoring a pinned checkpoint needs the row of its view
    unneeded = [
        row.seq
        for row in reversed(rows)  # newest first: after each removal, all remaining states can be read
        if row.seq not in needed
        and row.seq != newest.seq
        and log.erased_count(row) is None  # it says that older rows are gone for good
        and (row.seq < cleared or (row.op in log.CHECKPOINTS and row.hidden))
    ]
    removed = 0
    for part in throttle.slices(unneeded):
        with paced.write():
            removed += reader.backend.remove_rows(record.no, part)
    if removed == len(unneeded):  # else another process has made one of them visible again
        removed_seqs = set(unneeded)
        _shorten(reader, record, [row for row in rows[:-1] if row.seq not in removed_seqs], paced)
    return removed + erased


def _remove_erased(reader: StoreReader, record: ThreadRecord, rows: list[Row], paced: throttle.Upkeep) -> int:
    """Remove the rows before the erasure of a thread, also pinned and damaged ones; return how many."""
    upto = log.last_erasure(rows)
    seqs = [row.seq for row in rows if row.seq < upto and row.hidden and log.erased_count(row) is None]
    removed = 0
    for part in throttle.slices(seqs[::-1]):
        with paced.write():
            removed += reader.backend.remove_rows(record.no, part)
    return removed


def _shorten(reader: StoreReader, record: ThreadRecord, rows: list[Row], paced: throttle.Upkeep) -> None:
    """Rewrite rows that move the head: remove the ranges that have no checkpoints any more.

    Readers may use the old or the new row, because an old range never gets new rows.
    """
    remaining = [row.seq for row in rows if row.op in log.CHECKPOINTS]
    shorter: list[Row] = []
    for row in rows:
        if row.op not in log.CHECKPOINTS and len(row.extra) > _LONG:
            ranges = log.unpack_extra(row)[1] or ()
            remaining_ranges = log.shortened(ranges, remaining)
            if remaining_ranges != ranges:
                shorter.append(log.checked(row._replace(extra=log.pack_extra(b"", remaining_ranges, None)), record.uid))
    for part in throttle.slices(shorter):
        with paced.write():
            reader.backend.rewrite(record.no, part)


def make_base(reader: StoreReader, record: ThreadRecord, row: Row) -> Row:
    """Rewrite a delta row as a base row, so that its hidden parent can be removed; return the new row.

    Return the old row if the state cannot be read, or if another process changed the row.
    """
    try:
        tree = reader.chain(record, row).tree
    except (Corrupt, NotFound):
        return row
    based, chunks = as_base(reader, record, row, tree)
    return based if reader.backend.rewrite(record.no, [based], chunks) else row


def as_base(reader: StoreReader, record: ThreadRecord, row: Row, tree: Tree) -> tuple[Row, list[tuple[bytes, bytes]]]:
    """Return a checkpoint's row as a base row, and the chunks that it needs.

    All nodes become chunks, because a writer that knows this state may refer to any of them as a chunk.
    """
    compress = reader.options.compression
    data, nodes, _ = payload.base(tree, frozenset(tree.nodes.fresh), compress=compress)
    chunks = [(digest, squeeze(node.kind + node.data, enabled=compress)) for digest, node in nodes.items()]
    return log.checked(row._replace(base=row.seq, depth=0, payload=data), record.uid), chunks


def needed_by(rows: list[Row], kept: Container[int]) -> set[int]:
    """Return the seqs of all rows that reading the kept checkpoints needs, including their own rows."""
    by_seq = {row.seq: row for row in rows}
    return {seq for row in rows if row.op in log.CHECKPOINTS and row.seq in kept for seq in _chain(row, by_seq)}


def _chain(row: Row, by_seq: dict[int, Row]) -> Iterator[int]:
    """Yield the seqs of the rows that make up a checkpoint's state: its own, then its parents up to the base row."""
    while True:
        yield row.seq
        if row.base == row.seq or row.parent not in by_seq:
            return
        row = by_seq[row.parent]


def _mark(reader: StoreReader, record: ThreadRecord, live: set[bytes]) -> int:
    """Add to `live` the digests of all chunks that a thread's rows refer to; return the seq of the newest row."""
    newest = reader.backend.newest(record.no)
    last = newest.seq if newest is not None else 0
    for page in row_pages(reader, record, last):
        for row in page:
            if row.op in log.CHECKPOINTS:
                _mark_row(reader, record, row, live)
    return last


def _mark_newer(reader: StoreReader, record: ThreadRecord, live: set[bytes], since: int) -> None:
    """Mark the chunks of rows that were added after `_mark` read the thread, in one read.

    A new row may use chunks of its parent without touching them, and the parent may have been removed before it was
    marked. Rows that are added after this read have parents that are marked now.
    """
    for row in reader.backend.rows(record.no, [(since + 1, log.MAX_SEQ)], payload=True):
        if row.op in log.CHECKPOINTS:
            _mark_row(reader, record, row, live)


def _mark_row(reader: StoreReader, record: ThreadRecord, row: Row, live: set[bytes]) -> None:
    if row.check == ERASED:
        return  # no key can read the chunks that only this row refers to
    try:
        below = chunks_below(reader.nodes(), row, live)
    except Corrupt as error:
        current_rows = reader.backend.rows(record.no, [(row.seq, row.seq)], payload=True)
        if not current_rows:
            return  # another process has collected the row
        (current,) = current_rows
        if current.payload != row.payload:  # another process has rewritten the row
            _mark_row(reader, record, current, live)
            return
        raise reader.damaged(
            record, row.seq, f"{error}; nothing was collected, because the chunks of this checkpoint are unknown"
        ) from error
    live.update(below)  # not earlier: chunks below a digest in `live` are not read again


def chunks_below(nodes: Nodes, row: Row, known: Container[bytes]) -> dict[bytes, Node]:
    """Return the chunks below a checkpoint's row by digest, except `known` chunks and those below them."""
    if row.base == row.seq:
        tree, inlined = payload.read_base(row.payload or b"", nodes)
        refs = payload.refs_of(tree.rep) + [c for d in inlined for c in nodes.fresh[d].children()]
    else:
        refs = payload.refs_of_ops(payload.read_delta(row.payload or b"", nodes))
    below: dict[bytes, Node] = {}
    todo = [digest for digest in refs if digest not in known and digest not in nodes.fresh]
    while todo:
        loaded = nodes.load(todo)
        below.update(loaded)
        todo = [c for node in loaded.values() for c in node.children() if c not in known and c not in below]
    return below


def _repack(
    reader: StoreReader, live: set[bytes], paced: throttle.Upkeep, progress: Callable[[str, int], None] | None
) -> int:
    """Repack the rows of all threads; return how many changed.

    This must run before the sweep, so that no row is stored beside a chunk that the sweep removes.
    """
    repacked = 0
    for group in _thread_groups(reader):
        before = repacked

        def report_count(count: int, before: int = before) -> None:
            if progress:
                progress("repack", before + count)

        if len(group) == 1:
            repacked += repack(reader, group[0], live, report_count, paced)
        else:  # a callback may write, but not as part of the group
            repacked += _together(reader, group, paced, lambda each, pace: repack(reader, each, live, _ignore, pace))
            if repacked > before:
                report_count(repacked - before)
    return repacked


def _ignore(_: int) -> None:
    """Report nothing."""


def _sweep(
    reader: StoreReader,
    live: set[bytes],
    epoch: int,
    paced: throttle.Upkeep,
    progress: Callable[[str, int], None] | None,
) -> tuple[int, int]:
    chunks = size = seen = 0
    after = b""
    needed = reader.backend.addresses(live)
    while page := reader.backend.chunk_page(after, _PAGE):
        after = page[-1][0]
        dead = [address for address, stamped in page if stamped < epoch and address not in needed]
        for part in throttle.slices(dead):
            with paced.write():
                size += reader.backend.remove_chunks(part, epoch)
        chunks += len(dead)
        seen += len(page)
        if progress:
            progress("chunks", seen)
    return chunks, size


# -- repacking ------------------------------------------------------------------------------------------


class _Waiting(NamedTuple):
    """A row that waits for a chunk with the same parts. `parts` are hashes; `tried` counts failed attempts."""

    row: Row
    parts: frozenset[int]
    tried: int = 0


def repack(
    reader: StoreReader,
    record: ThreadRecord,
    live: set[bytes],
    report_count: Callable[[int], None],
    paced: throttle.Upkeep | None = None,
) -> int:
    """Compress the rows of a thread beside live chunks; return how many rows changed.

    `live` has the digests of the chunks that states refer to. This function adds the chunks that damaged rows need.
    `report_count` gets the number of changed rows so far.
    """
    repacker = _Repacker(reader, record, live, report_count, paced)
    newest = reader.backend.newest(record.no)
    for page in row_pages(reader, record, newest.seq if newest is not None else 0):
        for row in page:
            if row.op in log.CHECKPOINTS:
                repacker.take(row)
    repacker.write()
    return repacker.changed


class _Repacker:
    """Repacks one thread from its first row on. A row waits until a base row refers to chunks with the same parts."""

    def __init__(
        self,
        reader: StoreReader,
        record: ThreadRecord,
        live: set[bytes],
        report_count: Callable[[int], None],
        paced: throttle.Upkeep | None = None,
    ) -> None:
        self._reader = reader
        self._record = record
        self._live = live
        self._report_count = report_count
        self._paced = paced or throttle.Upkeep(longest=0.0)
        self._nodes = reader.nodes()
        self._seen: set[bytes] = set()
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._waiting_bytes = 0
        self._places: dict[int, list[int]] = {}
        """The seqs of the rows that wait for a part, by the hash of the part."""
        self._done: dict[int, tuple[Row, tuple[bytes, ...]]] = {}
        self.changed = 0

    def take(self, row: Row) -> None:
        """Process the next row: detach it from dead chunks, try a base's new chunks on waiting rows, let it wait."""
        stored = row.payload or b""
        beside: tuple[bytes, ...] = ()
        try:
            beside = stands_beside(stored)
            if not self._live.issuperset(beside):
                if not log.is_sound(row, self._record.uid):
                    self._live.update(beside)  # a damaged row is not rewritten, so its chunks must stay
                    return
                row = row._replace(payload=self._without_chunks(stored))
                self._write_later(row, ())
                beside = ()
            if row.base == row.seq and self._waiting:
                for group in self._new_nodes(row):
                    self._try_chunks(group)
            if not beside and len(row.payload or b"") >= PAYLOAD_MIN and self._reader.options.compression:
                self._wait(row)
        except Corrupt:  # reading the row raises this error, too
            self._live.update(beside)

    def _without_chunks(self, stored: bytes) -> bytes:
        return squeeze(payload.plain(stored, self._nodes), enabled=self._reader.options.compression)

    # -- waiting ------------------------------------------------------------------------------------

    def _wait(self, row: Row) -> None:
        parts = frozenset(hash(part) for part in _parts_of_row(row, self._nodes))
        if not parts:
            return
        self._waiting[row.seq] = _Waiting(row, parts)
        self._waiting_bytes += len(row.payload or b"")
        for part in parts:
            self._places.setdefault(part, []).append(row.seq)
        while self._waiting_bytes > WAITING_BYTES:
            self._give_up(next(iter(self._waiting)))

    def _give_up(self, seq: int) -> None:
        row, parts, _ = self._waiting.pop(seq)
        self._waiting_bytes -= len(row.payload or b"")
        for part in parts:
            self._places[part].remove(seq)
            if not self._places[part]:
                del self._places[part]

    # -- chunks -------------------------------------------------------------------------------------

    def _new_nodes(self, row: Row) -> Iterator[dict[bytes, Node]]:
        """Yield in groups the live leaf and inner chunks below a base row, without those of earlier base rows."""
        nodes = self._reader.nodes()
        tree, _ = payload.read_base(row.payload or b"", nodes)
        todo = payload.refs_of(tree.rep)
        while todo:
            group = [digest for digest in dict.fromkeys(todo[-_BATCH:]) if digest not in self._seen]
            del todo[-_BATCH:]
            loaded = nodes.load(group)
            todo += [child for node in loaded.values() for child in node.children() if child not in self._seen]
            chunks = loaded.keys() - nodes.fresh.keys()  # a node inside the row is not a chunk
            self._seen |= chunks
            yield {d: loaded[d] for d in group if d in chunks and d in self._live and loaded[d].kind in (LEAF, INNER)}

    def _try_chunks(self, group: dict[bytes, Node]) -> None:
        """Try to store waiting rows beside the chunks that have the same parts."""
        common_sizes: dict[int, dict[bytes, int]] = {}
        for digest, node in group.items():
            for part in _parts(msgpack.split(node.data), inside=node.kind == LEAF):
                for seq in self._places.get(hash(part), ()):
                    sizes = common_sizes.setdefault(seq, {})
                    sizes[digest] = sizes.get(digest, 0) + len(part)
        packers: dict[tuple[bytes, ...], tuple[Beside, list[bytes]]] = {}
        for seq, sizes in common_sizes.items():
            digests = tuple(sorted(sizes, key=lambda digest: -sizes[digest])[:BESIDE_MAX])
            if digests not in packers:
                contents = [group[digest].data for digest in digests]
                packers[digests] = (Beside(digests, contents), contents)
            self._put_beside(seq, digests, *packers[digests])

    def _put_beside(self, seq: int, digests: tuple[bytes, ...], packer: Beside, contents: list[bytes]) -> None:
        row, parts, tried = self._waiting[seq]
        old = row.payload or b""
        data = payload.plain(old, self._nodes)
        stored = packer.squeeze(data)
        smaller = len(stored) + GAIN_MIN <= len(old)
        if smaller and unsqueeze_beside(stored, contents, limit=NODE_LIMIT) == data:
            self._write_later(row._replace(payload=stored), digests)
        if smaller or tried + 1 >= _TRIES:
            self._give_up(seq)
        else:
            self._waiting[seq] = _Waiting(row, parts, tried + 1)

    # -- writing ------------------------------------------------------------------------------------

    def _write_later(self, row: Row, digests: tuple[bytes, ...]) -> None:
        if not log.is_sound(row, self._record.uid):
            return
        if digests and row.seq in self._done:
            self.write()  # write the version without dead chunks first: the second version may be dropped
        self._done[row.seq] = (row, digests)
        if len(self._done) >= _BATCH:
            self.write()

    def write(self) -> None:
        """Write the repacked rows, and put or touch the chunks that they refer to."""
        done, self._done = list(self._done.values()), {}
        if not done:
            return
        chunk_data = self._reader.backend.chunks(list({digest for _, digests in done for digest in digests}))
        stored = {
            digest: data for digest, data in chunk_data.items() if is_chunk_sound(digest, data)
        }  # a chunk may have been damaged since it was read
        rows = [row for row, digests in done if all(digest in stored for digest in digests)]
        needed = sorted({digest for _, digests in done for digest in digests if digest in stored})
        chunks = [(digest, stored[digest]) for digest in needed]
        with self._paced.write():
            self.changed += self._reader.backend.rewrite(self._record.no, rows, chunks)
        self._report_count(self.changed)


# -- the parts that rows and chunks share -----------------------------------------------------------


def _parts_of_row(row: Row, nodes: Nodes) -> Iterator[bytes]:
    """Yield the encoded values in a row that may also be in a chunk."""
    if row.base != row.seq:
        for op in payload.read_delta(row.payload or b"", nodes):
            if op[0] == SET:
                yield from _parts([op[2]])
            elif op[0] == SPLICE:
                yield from _parts(value for entry in op[4] for value in msgpack.values_in(entry))
        return
    own = nodes.forked()
    _, inlined = payload.read_base(row.payload or b"", own)
    for digest in inlined:
        node = own.fresh[digest]
        if node.kind == SPINE:
            _, _, levels, tail = read_levels(node.data)
            yield from _parts((chunk.data for level in levels for chunk in level), inside=False)
            yield from _parts(msgpack.split(tail))


def _parts(values: Iterable[bytes], *, inside: bool = True) -> Iterator[bytes]:
    """Yield the values of at least `PART_MIN` bytes; with `inside`, yield their entries, too.

    The entries matter: a changed message still shares its text with the old one.
    """
    for value in values:
        if len(value) < PART_MIN:
            continue
        yield value
        container = msgpack.take_apart(value) if inside else None
        if container is not None:
            yield from (entry for entry in container[2] if len(entry) >= PART_MIN)
