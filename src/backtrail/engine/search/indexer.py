"""Brings the search index of messages up to date with the heads of threads.

Every commit marks the threads that it writes to. `catch_up` compares, for each marked thread, the messages that the
index holds with the messages of the head, and changes the index where they differ.

A message without its own time gets the time of the checkpoint that added it. `ArrivalTimes` finds that checkpoint from
the lengths of the list at the checkpoints before the head. The ops of a delta show by how much the list grew, so only
base rows are read as states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from backtrail.backends.defaults import select
from backtrail.backends.port import IndexEntry, IndexesMany, IndexState, NewList, Splice, Undone
from backtrail.engine import bulk, journal, payload, throttle
from backtrail.engine.asides import ASIDE
from backtrail.engine.bulk import BulkReader
from backtrail.engine.compression import squeeze, stands_beside, unsqueeze
from backtrail.engine.reader import StoreReader
from backtrail.engine.schema.registry import Types
from backtrail.engine.search import extract, normalize
from backtrail.engine.tree import chunked, diff, encode
from backtrail.engine.tree.nodes import as_ref
from backtrail.engine.tree.tree import CUT, SET, SPLICE
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from backtrail.backends.port import Backend, IndexHit, Row, ThreadRecord
    from backtrail.engine.reader import Tip
    from backtrail.engine.tree.chunked import Spine
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.tree import Op, Tree

    _Marked = list[tuple[ThreadRecord, IndexState]]


_KEY: Final = encode.atom("messages", Types())
_UNSEARCHED: Final = (journal.SPACE, ASIDE)
"""Name spaces whose messages are not found: a run has those of its journal, and an aside thread is found by its id."""


class ArrivalTimes:
    """The times at which checkpoints added the head's messages, from position `lowest` on, after the row `since`.

    They are read when the first is asked for: messages that have a time of their own need none.
    """

    def __init__(
        self,
        reader: StoreReader,
        record: ThreadRecord,
        head: Row,
        *,
        lowest: int,
        since: int,
        chain: list[Row] | None = None,
    ) -> None:
        self._read = partial(self._starts_of, reader, record, head, lowest, since, chain)
        self._starts: list[tuple[int, int]] | None = None

    @staticmethod
    def _starts_of(  # noqa: PLR0917 - the arguments of the constructor
        reader: StoreReader, record: ThreadRecord, head: Row, lowest: int, since: int, chain: list[Row] | None
    ) -> list[tuple[int, int]]:
        """Return pairs of a first position and the time of the checkpoint that added it, ascending."""
        starts: list[tuple[int, int]] = []
        low: int | None = None  # the shortest length of the list so far
        time = head.created_at
        for row, length in _lengths(reader, record, head, chain):
            if low is None:
                low = length
            elif length < low:
                starts.append((length, time))
                low = length
            if row.seq == since:
                break
            time = row.created_at
            if low <= lowest:
                break
        return [(0, time), *reversed(starts)]

    def __call__(self, position: int) -> int:
        """Return the arrival time of the message at a position."""
        if self._starts is None:
            self._starts = self._read()
        return self._starts[bisect_right(self._starts, position, key=itemgetter(0)) - 1][1]


def _lengths(
    reader: StoreReader, record: ThreadRecord, head: Row, chain: list[Row] | None
) -> Iterator[tuple[Row, int]]:
    """Yield the checkpoints that led to a head, newest first, each with the length of its list of messages.

    The iteration ends at a checkpoint that was removed or cannot be read. `chain` has the rows of the head's chain, if
    the caller has read them.
    """
    row: Row | None = head
    while row is not None:
        try:
            rows = chain or reader.chain_rows(record, row)
            chain = None
            yield from reversed(_chain_lengths(reader, record, rows))
        except (Corrupt, NotFound):
            return
        row = reader.row(record, rows[0].parent) if rows[0].parent else None


def _chain_lengths(reader: StoreReader, record: ThreadRecord, rows: list[Row]) -> list[tuple[Row, int]]:
    """Return the rows of a chain, each with the length of its list of messages."""
    nodes = reader.nodes()
    nodes.load([digest for row in rows for digest in stands_beside(row.payload or b"")])  # in one read
    tree, _ = payload.read_base(rows[0].payload or b"", nodes)
    lengths = [(rows[0], _length(tree))]
    for row in rows[1:]:
        length: int | None = lengths[-1][1]
        for op in payload.read_delta(row.payload or b"", nodes):
            length = None if length is None else _grown(length, op, nodes)
        lengths.append((row, _length(reader.chain(record, row).tree) if length is None else length))
    return lengths


def _length(tree: Tree) -> int:
    spine = extract.listed(tree)
    return 0 if spine is None else spine.length


def _grown(length: int, op: Op, nodes: Nodes) -> int | None:
    """Return the length of the list after an op; None if the op does not show it, so that the state must be read."""
    kind, path, *arguments = op
    if not path:
        return None
    if path[0] != _KEY:
        return length
    if len(path) == 1:
        if kind == SPLICE:
            _, removed, entries = arguments
            return length + len(entries) - int(removed)
        return _length_of(arguments[0], nodes) if kind == SET else None
    return length - 1 if kind == CUT and len(path) == 2 else length  # noqa: PLR2004 - an item of the list


def _length_of(rep: Any, nodes: Nodes) -> int | None:
    ref = as_ref(rep)
    spine = chunked.open_rep(rep, nodes) if ref is None else None
    return ref.length if ref is not None else spine.length if spine is not None else None


_PAGE: Final = 500
_LOOKS: Final = 3
"""The number of attempts to read a thread while other processes delete its checkpoints."""
_GROUP: Final = 64
"""The most threads that one group of commits updates."""
_BEHIND: Final = 10_000
"""The largest number of marked threads that is counted."""
_NEW: Final = 128
"""How many threads without a list are read at a time."""
_SLICE: Final = 128
"""The most messages that one change adds."""
_SLICE_BYTES: Final = 1024 * 1024
"""A change adds no further message after this many bytes."""
_MOST: Final = 1 << 24
"""The most messages of a thread; an index with more is damaged."""


class Where(NamedTuple):
    """A filter: the threads whose messages a search looks at. A field that is None filters nothing."""

    space: str | None = None
    agent: str | None = None
    threads: tuple[int, ...] | None = None
    without: tuple[int, ...] = ()
    """Threads that the search skips."""

    def has(self, record: ThreadRecord) -> bool:
        """Tell whether a thread is one of them."""
        return self.space in (None, record.space) and self.agent in (None, record.agent)


ANYWHERE: Final = Where()


def catch_up(
    reader: StoreReader,
    where: Where = ANYWHERE,
    *,
    known: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> int:
    """Bring the index up to date with the marked threads in `where`; with `known`, with those that are in the index.

    Deleted threads are known, too: another process may be about to index what it has read of them. Their new lists make
    the index refuse that. Return how many threads were indexed; those whose heads cannot be read do not count.
    """
    backend = reader.backend
    count = indexed = 0
    pages = _all_marked(backend) if where.threads is None else _marked_among(backend, where.threads)
    for page in pages:
        listed = [(record, state) for record, state in page if where.has(record)]
        listed = _known(backend, listed) if known else listed
        source = reader
        if isinstance(backend, IndexesMany):
            done = _NewLists(reader, backend).add(listed)
            indexed += len(done)
            listed = [each for each in listed if each[0].no not in done]
            source = _prefetched(reader, listed)
        indexers = [_ThreadIndexer(source, record, reader) for record, _ in listed]
        _process(backend, deque(indexers))
        indexed += sum(each.is_readable for each in indexers)
        count += len(page)
        if progress:
            progress("index", count)
    return indexed


def _known(backend: Backend, listed: _Marked) -> _Marked:
    """Return those of the threads that are in the index, or were deleted."""
    newest = backend.newest_of([record.no for record, state in listed if state.seq == 0])
    deleted = {no for no, row in newest.items() if row.head == 0}
    return [(record, state) for record, state in listed if state.seq or record.no in deleted]


def outdate(backend: Backend, thread: int) -> None:
    """Make the index refuse the list of a thread that another process has read from rows which are removed now.

    Only a thread without a list needs this: it gets an empty one, and stays marked.
    """
    was, newest = backend.indexed(thread), backend.newest(thread)
    if newest is not None and was.seq == 0 and was.as_of < newest.seq - 1:
        backend.index(thread, was, IndexState(0, 0, newest.seq - 1), ())


def behind(backend: Backend) -> int:
    """Return how many threads have changes that the index lacks, at most `_BEHIND`."""
    return len(backend.unindexed(0, _BEHIND))


def _all_marked(backend: Backend) -> Iterator[_Marked]:
    """Yield the marked threads in pages, each with the version of its list."""
    after = 0
    while page := _marked(backend, after):
        after = page[-1][0].no
        yield page


def _marked_among(backend: Backend, threads: Sequence[int]) -> Iterator[_Marked]:
    """Yield those of the threads that are marked, however many others are."""
    for no in threads:
        record = backend.thread(no) if backend.unindexed(no - 1, 1) == [no] else None
        if record is not None:
            yield [(record, backend.indexed(no))]


def _marked(backend: Backend, after: int) -> _Marked:
    """Return the next marked threads, each with the version of its list."""
    if isinstance(backend, IndexesMany):
        return backend.marked(after, _PAGE)
    while numbers := backend.unindexed(after, _PAGE):
        records = [record for record in map(backend.thread, numbers) if record is not None]
        if records:
            return [(record, backend.indexed(record.no)) for record in records]
        after = numbers[-1]
    return []


class _NewLists:
    """Makes the lists of threads that have none, many at a time. It leaves long lists and damaged threads alone."""

    def __init__(self, reader: StoreReader, backend: IndexesMany) -> None:
        self._reader = reader
        self._backend = backend
        self._bulk = BulkReader(reader)

    def add(self, listed: Sequence[tuple[ThreadRecord, IndexState]]) -> set[int]:
        """Index the threads without a list; return the numbers of the threads that are done."""
        records = {(record.space, record.name): record for record, state in listed if state == IndexState(0, 0, 0)}
        done: set[int] = set()
        try:
            tips = list(self._bulk.tips(records).values())
            heads = [tip for tip in tips if tip.head is not None and tip.record.space not in _UNSEARCHED]
            others = [tip for tip in tips if tip.head is None or tip.record.space in _UNSEARCHED]
            done |= self._write([NewList(tip.record.no, _state(tip, 0), ()) for tip in others])
            newest = {tip.record.no: tip for tip in heads}
            for page in bulk.pages([(tip.record, tip.head) for tip in heads if tip.head is not None]):
                for start in range(0, len(page), _NEW):
                    places = page[start : start + _NEW]
                    chains = self._bulk.chains(places)
                    pairs = zip(places, chains, strict=True)
                    lists = [self._list(newest[record.no], chain) for (record, _), chain in pairs]
                    done |= self._write([each for each in lists if each is not None])
        except (Corrupt, NotFound):
            return done  # the others are read one by one
        return done

    def _list(self, tip: Tip, chain: list[Row]) -> NewList | None:
        """Return the list of a thread; None if it is too long for one change."""
        indexer = _ThreadIndexer(self._reader, tip.record)
        entries = indexer.whole_list(tip, chain)
        return None if entries is None else NewList(tip.record.no, _state(tip, len(entries)), tuple(entries))

    def _write(self, lists: list[NewList]) -> set[int]:
        """Write the lists in slices of about `_SLICE` messages, so that a save of one of the threads waits briefly."""
        done: set[int] = set()
        waiting: list[NewList] = []
        for each in lists:
            waiting.append(each)
            if sum(len(waits.entries) for waits in waiting) >= _SLICE:
                done |= self._backend.index_new(waiting)
                waiting = []
        return done | self._backend.index_new(waiting) if waiting else done


class _PrefetchedRows:
    """A read-only backend that has read the newest rows, the heads' chains and the lists' versions of some threads."""

    def __init__(self, backend: Backend, states: Mapping[int, IndexState]) -> None:
        self._backend = backend
        self._states = states
        self._newest: dict[int, Row] = {}
        self._chains: dict[int, list[Row]] = {}

    def add(self, tip: Tip, chain: list[Row]) -> None:
        """Add a thread. Its chain counts only if no row is missing between its first and its last row."""
        if chain[-1].seq - chain[0].seq + 1 == len(chain):
            self._newest[tip.record.no] = tip.newest
            self._chains[tip.record.no] = chain

    def indexed(self, thread: int) -> IndexState:
        """Return the version of a thread's list."""
        return self._states.get(thread) or self._backend.indexed(thread)

    def newest(self, thread: int) -> Row | None:
        """Return the newest row of a thread."""
        return self._newest.get(thread) or self._backend.newest(thread)

    def rows(self, thread: int, ranges: Sequence[tuple[int, int]], **options: Any) -> list[Row]:
        """Return rows of a thread, from its chain if that has all of them."""
        chain = self._chains.get(thread)
        if chain and all(chain[0].seq <= low and high <= chain[-1].seq for low, high in ranges):
            return select(chain, ranges, **options)
        return self._backend.rows(thread, ranges, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def _prefetched(reader: StoreReader, listed: _Marked) -> StoreReader:
    """Return a reader that has read what `_ThreadIndexer` needs of these threads, in a few calls."""
    rows = _PrefetchedRows(reader.backend, {record.no: state for record, state in listed})
    bulk_reader = BulkReader(reader)
    try:
        tips = bulk_reader.tips({(record.space, record.name): record for record, _ in listed})
        heads = {tip.record.no: tip for tip in tips.values() if tip.head and tip.record.space not in _UNSEARCHED}
        places = [(tip.record, tip.head) for tip in heads.values() if tip.head is not None]
        page = next(bulk.pages(places), [])  # as many as fit into memory
        for (record, _), chain in zip(page, bulk_reader.chains(page) if page else [], strict=True):
            rows.add(heads[record.no], chain)
    except (Corrupt, NotFound):
        return reader
    made = StoreReader(cast("Backend", rows), reader.types, reader.options, reader.clock)
    made.cache = reader.cache
    return made


def _state(tip: Tip, items: int) -> IndexState:
    return IndexState(tip.head.seq if tip.head else 0, items, tip.newest.seq)


def _process(backend: Backend, queue: deque[_ThreadIndexer]) -> None:
    """Update the index for the threads in the queue. Several changes become one durable write of about one slice."""
    while queue:
        changes: list[tuple[_ThreadIndexer, _IndexChange]] = []
        size = 0
        while queue and size < _SLICE and len(changes) < _GROUP:
            indexer = queue.popleft()
            change = indexer.next_change()
            if change is not None:
                changes.append((indexer, change))
                size += sum(len(splice.entries) for splice in change.splices)
        if changes:
            try:
                with backend.group():
                    accepted = [backend.index(each.record.no, *change) for each, change in changes]
            except Undone:  # repeat one by one; a change that was made is refused, and its thread is read again
                accepted = [backend.index(each.record.no, *change) for each, change in changes]
            for (each, change), good in zip(reversed(changes), reversed(accepted), strict=True):
                each.settle(change, taken=good)
                queue.appendleft(each)


class _MessageList(NamedTuple):
    """The list of messages of a checkpoint."""

    row: Row
    spine: Spine
    nodes: Nodes


class _IndexChange(NamedTuple):
    """The arguments of `Backend.index`."""

    was: IndexState
    now: IndexState
    splices: list[Splice]


class _ThreadIndexer:
    """Updates the index for one thread, change by change."""

    def __init__(self, reader: StoreReader, record: ThreadRecord, later: StoreReader | None = None) -> None:
        self.record = record
        self._reader = reader
        self._later = later or reader
        """The reader to use if the first reader's data turns out to be old."""
        self._was: IndexState | None = None
        """The state of the thread's list in the index, once it was read."""
        self._seq = 0
        """The seq of the head."""
        self._target: _MessageList | None = None
        """The head's list of messages."""
        self._newest: int | None = None
        """The seq of the thread's newest row; None if it cannot be read."""
        self._arrivals: Callable[[int], int] = int
        self._done = False

    @property
    def is_readable(self) -> bool:
        """Whether the head of the thread could be read. If not, the thread stays marked."""
        return self._newest is not None

    def next_change(self) -> _IndexChange | None:
        """Return the next change, or None. The caller then calls `settle` with the answer of the backend."""
        if self._done:
            return None
        was = self._was or self._reader.backend.indexed(self.record.no)  # read before the head
        with suppress(Corrupt, NotFound):
            if self._was is not None and self._target is not None:
                return self._slice(self._target, was, [], was.items)
            self._look()
            if self._target is not None:
                return self._slice(self._target, was, *self._plan(was, self._target))
        if self._target is not None:  # a part of the list is damaged, or was deleted
            self._seq, self._target, self._newest = 0, None, None
        now = IndexState(0, 0, 0) if self._newest is None else IndexState(self._seq, 0, self._newest)
        if now == was and self._newest is None:
            return None
        return _IndexChange(was, now, [Splice(0, was.items, ())] if was.items else [])

    def _slice(self, target: _MessageList, was: IndexState, splices: list[Splice], start: int) -> _IndexChange:
        """Return a change with the splices, and a splice that adds the next slice of the target's messages."""
        entries = self._entries(target, start)
        if entries:
            splices = [*splices, Splice(start, 0, tuple(entries))]
        end = start + len(entries)
        newest = self._newest if end == target.spine.length else None
        return _IndexChange(was, IndexState(self._seq, end, was.as_of if newest is None else newest), splices)

    def settle(self, change: _IndexChange, *, taken: bool) -> None:
        """Record whether the backend accepted a change (`taken`). If not, the index is read again next."""
        self._was = change.now if taken else None
        self._reader = self._reader if taken else self._later
        self._done = taken and (self._target is None or change.now.items == self._target.spine.length)

    def _look(self) -> None:
        """Read the head of the thread. A thread whose head cannot be read leaves the index and stays marked."""
        self._seq, self._target, self._newest = 0, None, None
        for _ in range(_LOOKS):
            with suppress(Corrupt, NotFound):
                tip = self._reader.tip_of(self.record)
                head = tip.head if tip else None
                self._target = None if head is None else self._listed(head)
                self._seq = head.seq if head else 0
                self._newest = tip.newest.seq if tip else 0
                return

    def _listed(self, row: Row, tree: Tree | None = None) -> _MessageList | None:
        if self.record.space in _UNSEARCHED:
            return None
        if tree is None:
            tree = self._reader.chain(self.record, row).tree
        if self.record.space == journal.RUN and extract.has(tree, "conversation"):  # it has the same messages
            return None
        spine = extract.listed(tree)
        return None if spine is None else _MessageList(row, spine, tree.nodes)

    # -- differences ----------------------------------------------------------------------------

    def whole_list(self, tip: Tip, chain: list[Row]) -> list[IndexEntry | None] | None:
        """Return the entries of a thread's list, from the chain of its head; None if one change cannot add them all."""
        head = tip.head
        target = None if head is None else self._listed(head, self._reader.read_chain(head, chain).tree)
        if head is None or target is None:
            return []
        if target.spine.length > _SLICE:
            return None
        self._arrivals = ArrivalTimes(self._reader, self.record, head, lowest=0, since=0, chain=chain)
        entries = self._entries(target, 0)
        return entries if len(entries) == target.spine.length else None

    def _plan(self, was: IndexState, target: _MessageList) -> tuple[list[Splice], int]:
        """Return splices that make the index's list a prefix of the target's, and the length of that prefix."""
        if not 0 < was.items <= _MOST:
            self._arrivals = ArrivalTimes(self._reader, self.record, target.row, lowest=0, since=0)
            return [Splice(0, was.items, ())] if was.items else [], 0
        before: _MessageList | None = None
        with suppress(Corrupt, NotFound):
            row = self._reader.sound_row(self.record, was.seq)
            before = None if row is None else self._listed(row)
        if before is None or before.spine.length < was.items:
            length, blocks = was.items, self._by_content(was, target)
        else:
            length = before.spine.length
            blocks = diff.blocks(before.spine, target.spine, before.nodes, target.nodes)
        inner, cut, start = _divided(blocks, was.items, was.items + target.spine.length - length)
        lowest = min([start, *(block.to for block in inner[:1])])
        if lowest < target.spine.length:
            self._arrivals = ArrivalTimes(self._reader, self.record, target.row, lowest=lowest, since=was.seq)
        splices = [Splice(cut, was.items - cut, ())] if cut < was.items else []
        for block in reversed(inner):  # from the right, so that positions to the left stay valid
            entries = tuple(self._entry(target.nodes, rep, block.to + at) for at, rep in enumerate(block.new))
            splices.append(Splice(block.at, len(block.old), entries))
        return splices, start

    def _by_content(self, was: IndexState, target: _MessageList) -> list[diff.Block]:
        """Compare the entries of the index with the head's messages, because the indexed checkpoint was deleted."""
        indexed: list[Any] = [None] * was.items
        for hit in _index_entries(self._reader, self.record):
            if 0 <= hit.position < was.items:
                indexed[hit.position] = _entry_content(hit.entry)
        reps = chunked.entries(target.nodes, target.spine)
        contents = [_content(extract.read(target.nodes, rep)) for rep in reps]
        blocks = diff.aligned_blocks(0, 0, indexed, contents)
        return [block._replace(new=reps[block.to : block.to + len(block.new)]) for block in blocks]

    # -- entries --------------------------------------------------------------------------------

    def _entries(self, target: _MessageList, start: int) -> list[IndexEntry | None]:
        """Return the next slice of the target's messages."""
        entries: list[IndexEntry | None] = []
        size = 0
        for rep in chunked.entries(target.nodes, target.spine, start, min(start + _SLICE, target.spine.length)):
            entry = self._entry(target.nodes, rep, start + len(entries))
            entries.append(entry)
            size += 0 if entry is None else len(entry.words)
            if size > _SLICE_BYTES:
                break
        return entries

    def _entry(self, nodes: Nodes, rep: bytes, position: int) -> IndexEntry | None:
        throttle.rest()
        message = extract.read(nodes, rep)
        if message is None:
            return None
        words = " ".join(normalize.words(normalize.composed(message.text)))
        time = self._arrivals(position) if message.time is None else message.time
        text = message.text.encode("utf-8", "surrogatepass")
        compress = self._reader.options.compression and not self._reader.backend.shows_texts
        return IndexEntry(time, message.id, message.role, words, squeeze(text, enabled=compress))


def _divided(blocks: list[diff.Block], items: int, end: int) -> tuple[list[diff.Block], int, int]:
    """Divide the differences into those to change in place, and a rest of the list to remove and add again.

    Returns the blocks to change in place, the position at which to cut the index's list of `items`, and the position in
    the target's list that corresponds to it (`end`, if nothing differs there). The cut is at the first block that
    reaches the end of the index's list, or that adds too much for one slice.
    """
    inner: list[diff.Block] = []
    added = 0
    for block in blocks:
        added += len(block.new)
        if block.at > items:
            return inner, items, items + block.to - block.at
        if block.at + len(block.old) >= items or added > _SLICE:
            return inner, block.at, block.to
        inner.append(block)
    return inner, items, end


def is_correct(reader: StoreReader, record: ThreadRecord) -> bool:
    """Tell whether the index of a thread has exactly the messages of its checkpoint; True if that cannot be read."""
    indexed = reader.backend.indexed(record.no)
    if indexed.seq == 0:
        return True
    try:
        row = reader.sound_row(record, indexed.seq)
        tree = None if row is None else reader.chain(record, row).tree
        spine = None if tree is None else extract.listed(tree)
        if row is not None and not 0 <= indexed.items <= (0 if spine is None else spine.length):
            return reader.backend.indexed(record.no) != indexed
        reps = chunked.entries(tree.nodes, spine, 0, indexed.items) if tree is not None and spine is not None else []
        expected = [_content(extract.read(tree.nodes, rep)) for rep in reps] if tree is not None else []
    except (Corrupt, NotFound):
        return True
    contents: list[Any] = [None] * len(expected)
    try:
        for hit in _index_entries(reader, record):
            if 0 <= hit.position < len(expected):
                contents[hit.position] = _entry_content(hit.entry)
            else:
                contents.append(hit)
    except Corrupt:
        return False
    return row is None or contents == expected or reader.backend.indexed(record.no) != indexed


def _index_entries(reader: StoreReader, record: ThreadRecord) -> Iterator[IndexHit]:
    """Yield the entries of the index for a thread, newest first."""
    after: tuple[int, int] | None = None
    while page := reader.backend.find((), space=None, agent=None, threads=[record.no], after=after, limit=_PAGE):
        yield from page
        if len(page) < _PAGE:
            break
        after = (page[-1].entry.time, page[-1].no)


def _content(message: extract.MessageText | None) -> Any:
    """Return the id, the role and the text of a message, by which entries are compared."""
    throttle.rest()
    return None if message is None else (message.id, message.role, message.text.encode("utf-8", "surrogatepass"))


def _entry_content(entry: IndexEntry) -> Any:
    return entry.message_id, entry.role, text_of(entry).encode("utf-8", "surrogatepass")


def text_of(entry: IndexEntry) -> str:
    """Return the text of an entry."""
    try:
        return unsqueeze(entry.text, limit=extract.TEXT_MAX).decode("utf-8", "surrogatepass")
    except (Corrupt, UnicodeDecodeError) as error:
        text = f"the search index is damaged ({error}); `reindex` rebuilds it"
        raise Corrupt(text, code="corrupt.index") from error
