"""Ready-made parts for a small backend: the rules of a batch, a search index, a change feed, some maintenance.

Each part uses only the port's `Reader`. A backend derives from the classes that it wants, and overrides the methods
that its storage can do better. The parts store nothing: each process makes its own index in memory.

docs/backends.md shows a backend that is built from them.
"""

from __future__ import annotations

import functools
import heapq
import os
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from backtrail.backends.port import (
    Batch,
    IndexHit,
    IndexState,
    MissingChunks,
    PlainChunks,
    Reader,
    Stale,
    Usage,
    Vanished,
    as_tagged,
    pin_tag,
    pins_as_tags,
    pins_of_rows,
    tags_of_rows,
)
from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from backtrail.backends.port import IndexEntry, NewThread, Phrase, Row, Splice, ThreadRecord

T = TypeVar("T", bound=tuple[Any, ...])
_PAGE = 1000
_ALL = [(1, (1 << 63) - 1)]


# -- the rules of a batch -----------------------------------------------------------------------------


def settle(store: Reader, batch: Batch, is_taken: Callable[[NewThread], bool] | None = None) -> tuple[int, ...] | None:
    """Return None if the batch must be written; if it was written before, return the result of that `commit`.

    Raise `Stale`, `Vanished` or `MissingChunks` if the batch is refused. The caller must lock out other writers.
    `is_taken` tells whether a new thread's name or uid is taken; None: the store is asked.
    """
    try:
        check(store, batch, is_taken)
    except (Stale, Vanished, MissingChunks):
        numbers = _repeated(store, batch)
        if numbers is None:
            raise
        return numbers
    return None


def resolve(batch: Batch, created: Sequence[int]) -> Batch:
    """Return the batch with the numbers of its new threads instead of -1, -2 ..."""
    if not created:
        return batch

    def real(entries: tuple[T, ...]) -> tuple[T, ...]:
        return tuple((_number(entry[0], created), *entry[1:]) for entry in entries)  # type: ignore[misc]

    return batch._replace(
        renew=real(batch.renew),
        rows=real(batch.rows),
        hide=real(batch.hide),
        show=real(batch.show),
        tag=real(batch.tag),
        untag=real(batch.untag),
        pin=real(batch.pin),
        unpin=real(batch.unpin),
        untouch=real(batch.untouch),
    )


def _number(no: int, created: Sequence[int]) -> int:
    return created[-no - 1] if -len(created) <= no < 0 else no


def check(store: Reader, batch: Batch, is_taken: Callable[[NewThread], bool] | None = None) -> None:
    """Raise `Stale`, `Vanished` or `MissingChunks` unless the store meets all requirements of the batch."""
    last = _last_seqs(store, {no for no, _ in (*batch.newest, *batch.rows)})
    if any(last.get(no) != seq for no, seq in batch.newest):
        raise Stale
    if batch.visible or batch.show:
        _check_shown(store, batch)
    if batch.threads:
        _check_threads(store, batch, is_taken)
    _check_rows(batch, last)
    missing = frozenset(batch.touch) - {digest for digest, _ in batch.chunks} if batch.touch else frozenset()
    if missing and (missing := missing - store.present(tuple(missing))):
        raise MissingChunks(missing)
    tagged = pins_as_tags(batch)
    if tagged.tags and not as_tagged(tagged, lambda no, seq: _stored_tags(store, no, seq)):
        raise Stale


def _stored_tags(store: Reader, no: int, seq: int) -> tuple[str, ...]:
    return (*store.tags(no, [seq]).get(seq, ()), *map(pin_tag, store.pins(no, [seq]).get(seq, ())))


def _check_shown(store: Reader, batch: Batch) -> None:
    rows = store.rows_of([(no, seq, seq) for no, seq in (*batch.visible, *batch.show)])
    for place in batch.visible:
        if place not in rows or rows[place].hidden:
            raise Vanished(*place)
    for place in batch.show:
        if place not in rows:
            raise Vanished(*place)


def _check_threads(store: Reader, batch: Batch, is_taken: Callable[[NewThread], bool] | None) -> None:
    names, uids = {(new.space, new.name) for new in batch.threads}, {new.uid for new in batch.threads}
    if min(len(names), len(uids)) < len(batch.threads):
        raise Stale
    if is_taken is not None:
        if any(map(is_taken, batch.threads)):
            raise Stale
    elif any(store.find_thread(*name) for name in names) or any(map(store.thread_with_uid, uids)):
        raise Stale


def _check_rows(batch: Batch, last: dict[int, int]) -> None:
    last |= {-at: 0 for at in range(1, len(batch.threads) + 1)}
    for no, row in batch.rows:
        before = last.get(no)
        if before is None or not (before < row.seq if batch.gaps else row.seq == before + 1):
            raise Stale
        last[no] = row.seq


def _last_seqs(store: Reader, threads: Collection[int]) -> dict[int, int]:
    """Return the seq of the newest row of each existing thread, by number; 0 for a thread without rows."""
    last = {no: row.seq for no, row in store.newest_of(threads).items()}
    return last | {no: 0 for no in threads if no not in last and store.thread(no) is not None}


def _repeated(store: Reader, batch: Batch) -> tuple[int, ...] | None:
    """Return the numbers of the batch's threads if the batch was written before, else None."""
    if not batch.threads and not batch.rows:
        return None
    records = [store.thread_with_uid(new.uid) for new in batch.threads]
    created = tuple(record.no for record in records if record is not None)
    names = [record and (record.space, record.name) for record in records]
    if names != [(new.space, new.name) for new in batch.threads]:
        return None
    op_ids = {(_number(no, created), row.seq): row.op_id for no, row in batch.rows}
    stored = store.rows_of([(no, seq, seq) for no, seq in op_ids])
    return created if {place: row.op_id for place, row in stored.items()} == op_ids else None


# -- reading ------------------------------------------------------------------------------------------


def matches(
    record: ThreadRecord,
    *,
    space: str | None = None,
    agent: str | None = None,
    prefix: str | None = None,
    origin: bytes | None = None,
) -> bool:
    """Tell whether a thread matches the filters of `Reader.threads`."""
    return (
        (space is None or record.space == space)
        and (agent is None or record.agent == agent)
        and (prefix is None or record.name.startswith(prefix))
        and (origin is None or (record.origin or "")[8:] == origin.hex())
    )


def page(
    threads: Iterable[tuple[ThreadRecord, Row]], after: tuple[int, int] | None, limit: int
) -> list[tuple[ThreadRecord, Row]]:
    """Return the page of `Reader.threads` behind `after`; `threads` are all matching threads with their newest rows."""
    placed = [((newest.created_at, record.no), (record, newest)) for record, newest in threads]
    behind = [each for each in placed if after is None or each[0] < after]
    return [pair for _, pair in heapq.nlargest(limit, behind, key=lambda each: each[0])]


def select(
    rows: Iterable[Row],
    ranges: Sequence[tuple[int, int]],
    *,
    payload: bool = False,
    visible: bool = False,
    newest_first: bool = False,
    limit: int | None = None,
) -> list[Row]:
    """Return the result of `Reader.rows` from all rows of a thread, which have their payloads."""
    chosen = [row for row in rows if any(low <= row.seq <= high for low, high in ranges)]
    chosen = [row for row in chosen if not visible or (row.root and not row.hidden)]
    chosen.sort(key=lambda row: row.seq, reverse=newest_first)
    return [row if payload else row._replace(payload=None) for row in chosen[:limit]]


class SimpleReader(Reader):
    """A slow `Reader` that derives most methods from a few others.

    The backend implements stored_tags, thread, thread_numbers, threads, tips, rows and chunks. It stores pins as tags;
    see `port.pins_as_tags`.
    """

    def stored_tags(self, thread: int, seqs: Iterable[int] | None) -> Mapping[int, Iterable[str]]:
        """Return the stored tags of a thread's rows by seq, pins included; `seqs` None means all rows."""
        raise NotImplementedError

    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        """See `Reader.find_thread`."""
        records = (self.thread(no) for no in _numbers(self))
        return next((record for record in records if record and (record.space, record.name) == (space, name)), None)

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        """See `Reader.thread_with_uid`."""
        records = (self.thread(no) for no in _numbers(self))
        return next((record for record in records if record and record.uid == uid), None)

    def threads_named(self, space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
        """See `Reader.threads_named`."""
        records = [record for no in _numbers(self) if (record := self.thread(no)) and record.space == space]
        by_name = {record.name: record for record in records}
        return {name: by_name[name] for name in names if name in by_name}

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        """See `Reader.newest_of`."""
        return {no: row for no in threads if (row := self.newest(no))}

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        """See `Reader.rows_of`."""
        rows = [(no, row) for no, low, high in spans for row in self.rows(no, [(low, high)], payload=payload)]
        return {(no, row.seq): row for no, row in sorted(rows, key=lambda each: (each[0], each[1].seq))}

    def newest(self, thread: int) -> Row | None:
        """See `Reader.newest`."""
        return next(iter(self.rows(thread, _ALL, newest_first=True, limit=1)), None)

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        """See `Reader.count`."""
        return len(self.rows(thread, ranges, visible=True))

    def labelled(self, thread: int, labels: Collection[str]) -> list[int]:
        """See `Reader.labelled`."""
        return [row.seq for row in self.rows(thread, _ALL) if row.label in labels and not row.hidden]

    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        """See `Reader.tags`."""
        return tags_of_rows(self.stored_tags(thread, seqs))

    def pins(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
        """See `Reader.pins`."""
        return pins_of_rows(self.stored_tags(thread, seqs))

    def tagged(self, thread: int, tag: str) -> list[int]:
        """See `Reader.tagged`."""
        tags = self.tags(thread)
        return [row.seq for row in self.rows(thread, _ALL) if tag in tags.get(row.seq, ()) and not row.hidden]

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        """See `Reader.present`."""
        return set(self.chunks(digests))

    def now(self) -> int:
        """See `Reader.now`: by the clock of this machine."""
        return time.time_ns() // 1000


# -- search -------------------------------------------------------------------------------------------


class _List(NamedTuple):
    """The index list of a thread: its version, and its entries, each with its number."""

    state: IndexState = IndexState(0, 0, 0)
    op_id: bytes | None = None
    """The op_id of the row `state.as_of`. If the thread now has another row with that seq, the list is invalid."""
    entries: tuple[tuple[int, IndexEntry] | None, ...] = ()


_NO_LIST = _List()
_LOCK = threading.Lock()
"""Protects the lists of all indexes in memory, for a moment and during a fork."""


@functools.cache
def _fork_between_changes() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class MemoryIndex(Reader):
    """A `SearchIndex` in memory. A thread is marked if its newest row is not the one that its list was made from.

    So the backend's commits need not mark threads, and a failed group needs no cleanup.
    """

    shows_texts = False

    def __init__(self) -> None:
        super().__init__()
        _fork_between_changes()
        self._lists: dict[int, _List] = {}
        self._entries = 0

    def _current(self, thread: int) -> _List:
        """Return the list of a thread, or an empty list if the row that it was made from was removed."""
        index_list = self._lists.get(thread, _NO_LIST)
        return index_list if index_list.op_id == self._op_id(thread, index_list.state.as_of) else _NO_LIST

    def _op_id(self, thread: int, seq: int) -> bytes | None:
        rows = self.rows(thread, [(seq, seq)])
        return rows[0].op_id if rows else None

    def unindexed(self, after: int, limit: int) -> list[int]:
        """See `SearchIndex.unindexed`."""
        marked: list[int] = []
        while len(marked) < limit and (page := self.thread_numbers(after, _PAGE)):
            newest = ((no, self.newest(no)) for no in page)
            marked += [no for no, row in newest if row is not None and row.seq != self._current(no).state.as_of]
            after = page[-1]
        return marked[:limit]

    def indexed(self, thread: int) -> IndexState:
        """See `SearchIndex.indexed`."""
        return self._current(thread).state

    def index(self, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]) -> bool:
        """See `SearchIndex.index`."""
        stored, current, op_id = self._lists.get(thread), self._current(thread), self._op_id(thread, now.as_of)
        with _LOCK:
            if current.state != was or self._lists.get(thread) is not stored:
                return False
            entries = list(current.entries)
            for at, removed, added in splices:
                numbers = range(self._entries + 1, self._entries + len(added) + 1)
                self._entries += len(added)
                entries[at : at + removed] = [entry and (no, entry) for no, entry in zip(numbers, added, strict=True)]
            self._lists[thread] = _List(now, op_id, tuple(entries))
        return True

    def find(
        self,
        phrases: Sequence[Phrase],
        *,
        space: str | None,
        agent: str | None,
        threads: Sequence[int] | None,
        without: Sequence[int] = (),
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[IndexHit]:
        """See `SearchIndex.find`."""
        hits: list[IndexHit] = []
        numbers = set(self._lists if threads is None else threads).difference(without)
        for thread in numbers:
            record, current = self.thread(thread), self._current(thread)
            if record is None or space not in (None, record.space) or agent not in (None, record.agent):
                continue
            hits += [
                IndexHit(record, current.state.seq, position, each[0], each[1]._replace(words=""))
                for position, each in enumerate(current.entries)
                if each is not None
                and all(phrase.sought in f" {each[1].words} " for phrase in phrases)
                and (after is None or (each[1].time, each[0]) < after)
            ]
        return heapq.nlargest(limit, hits, key=lambda hit: (hit.entry.time, hit.no))

    def clear_index(self) -> None:
        """See `SearchIndex.clear_index`."""
        self.thread_numbers(0, 1)  # Unavailable if the store is closed
        self._lists.clear()


# -- changes ------------------------------------------------------------------------------------------


class PollingFeed(Reader):
    """A `ChangeFeed` that compares the newest rows. The backend calls `tell` after each commit, or after its group."""

    interval = 1.0
    """Seconds between two polls for commits of other processes."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: dict[object, Callable[[Collection[int]], None]] = {}

    def tell(self, numbers: Collection[int]) -> None:
        """Call every listener with the numbers of threads that have new rows; see `port.written`."""
        if numbers:
            for wake in tuple(self._listeners.values()):
                wake(numbers)

    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        """See `ChangeFeed.listen`."""
        self.thread_numbers(0, 1)  # Unavailable if the store is closed
        token = object()
        self._listeners[token] = wake
        try:
            yield self.interval
        finally:
            del self._listeners[token]

    def changed_since(
        self, mark: object | None, notified: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        """See `ChangeFeed.changed_since`. A mark is the seq of the newest row of each thread."""
        if not isinstance(mark, dict):
            return self._newest_seqs(_numbers(self)), {}
        new = _numbers(self, after=max(mark, default=0))
        seqs = self._newest_seqs({*notified, *new, *(_numbers(self) if others is None else others)})
        return mark | seqs, {no: mark.get(no, 0) for no, seq in seqs.items() if seq != mark.get(no, 0)}

    def _newest_seqs(self, numbers: Collection[int]) -> dict[int, int]:
        return {no: row.seq for no, row in self.newest_of(numbers).items()}


def _numbers(store: Reader, after: int = 0) -> list[int]:
    """Return the numbers of all threads above `after`."""
    numbers: list[int] = []
    while page := store.thread_numbers(after, _PAGE):
        numbers += page
        after = page[-1]
    return numbers


# -- maintenance --------------------------------------------------------------------------------------


class MinimalMaintenance(PlainChunks, MemoryIndex):
    """A `Maintenance` that does nothing: it removes, rewrites and repairs nothing, and reports no damage.

    Garbage collection changes nothing in a store with this class. A backend that frees space overrides next_epoch,
    chunk_page, remove_chunks, remove_rows, rewrite and reclaim.
    """

    def next_epoch(self) -> int:
        """Return 1, the only epoch: no chunk is ever removed."""
        return 1

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Offer no chunk for removal."""
        del after, limit
        return []

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        """Remove nothing."""
        del digests, before_epoch
        return 0

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        """Remove nothing."""
        del thread, seqs
        return 0

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """Replace nothing."""
        del thread, rows, chunks
        return 0

    def reclaim(self, *, erase: bool = False) -> None:
        """Free nothing; `Unavailable` if `erase` is True, because nothing was removed."""
        if erase:
            raise Unavailable("this kind of store never removes data, so it cannot erase it", code="unavailable.erase")

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        """Return no damage."""
        del progress
        return ()

    def repair(self) -> None:
        """Repair nothing: `check` finds nothing."""

    def last_seq(self, thread: int) -> int:
        """Return the seq of the newest row: no other table knows a higher seq."""
        newest = self.newest(thread)
        return newest.seq if newest else 0

    def usage(self) -> Usage:
        """Return the counts and sizes, by reading everything. Only the chunks that `chunk_page` returns count."""
        threads: Counter[str] = Counter()
        checkpoints: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        items: Counter[str] = Counter()
        numbers, marked = _numbers(self), set(self.unindexed(0, 1 << 62))
        row_count = payload_bytes = 0
        for no in numbers:
            record, newest = self.thread(no), self.newest(no)
            if record is None or newest is None:
                continue
            rows = self.rows(no, [(1, newest.seq)], payload=True)
            visible = [row for row in rows if row.root and not row.hidden]
            row_count += len(rows)
            payload_bytes += sum(len(row.payload or b"") for row in rows)
            threads[record.space] += bool(newest.head)
            checkpoints[record.space] += len(visible)
            sizes[record.space] += sum(row.size for row in visible)
            items[record.space] += self.indexed(no).items if newest.head and no not in marked else 0
        chunks = self._chunk_sizes()
        entries = [each[1] for no in numbers for each in self._current(no).entries if each is not None]
        index_bytes = sum(len(entry.words) + len(entry.text) for entry in entries)
        payload_bytes += sum(chunks)
        return Usage(
            *(+threads, row_count, +checkpoints, +sizes, +items),  # + leaves out counts of 0
            chunks=len(chunks),
            payload_bytes=payload_bytes,
            stored_bytes=payload_bytes + index_bytes,
            entries=len(entries),
            index_bytes=index_bytes,
        )

    def _chunk_sizes(self) -> list[int]:
        sizes: list[int] = []
        after = b""
        while page := [digest for digest, _ in self.chunk_page(after, _PAGE)]:
            sizes += [len(stored) for stored in self.chunks(page).values()]
            after = page[-1]
        return sizes
