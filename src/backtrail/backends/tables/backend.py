"""The port on tables in memory: the base class of the memory backend and the file backend.

A `Storage` has the tables: it locks them for a call, and makes changes durable. Each call has the lock, so it sees all
of a batch or none of it. A group has the lock from its first write to its end.

A signal handler that uses the store during a call of the same thread gets `Unavailable` (`unavailable.locked`): the
lock is re-entrant, so the handler would see half of a change.
"""

from __future__ import annotations

import heapq
import os
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, Protocol

from backtrail.backends.port import (
    Batch,
    IndexHit,
    IndexState,
    Phrase,
    PlainChunks,
    Row,
    Splice,
    ThreadRecord,
    ThreadTip,
    Usage,
    pins_as_tags,
    pins_of_rows,
    tags_in,
    tags_of_rows,
    written,
)
from backtrail.backends.tables.changes import RemoveChunks, RemoveRows, SetMeta, size_of
from backtrail.backends.tables.tables import NO_LIST, Tables
from backtrail.errors import Corrupt, Error, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from backtrail.backends.port import Backend
    from backtrail.backends.tables.changes import Body


class Storage(Protocol):
    """The owner of the tables: it locks them, and makes their changes durable."""

    def lock_tables(self, *, in_group: bool) -> Tables:
        """Lock the tables for a read and return them, with all commits and, in a group, the group's writes."""

    def unlock_tables(self) -> None:
        """Unlock the tables. This should be a lock's own method: it is in C, so Ctrl-C cannot interrupt its start."""

    def write(self) -> AbstractContextManager[Tables]:
        """Lock the tables for changes, which become durable at the end of the block, or are undone if it fails."""

    def bytes_of(self, bodies: Sequence[Body]) -> list[bytes]:
        """Return the bytes of bodies: payloads, chunks or texts. The caller has locked the tables."""

    def close(self) -> None:
        """Release everything; closing twice is allowed."""


class _Group:
    """The open group of one thread."""

    def __init__(self) -> None:
        self.write: AbstractContextManager[Tables] | None = None
        """The write of the storage, since the first write of the group."""
        self.pid = os.getpid()
        self.tables: Tables | None = None
        """The locked tables, since the first write."""
        self.error: Error | None = None
        """The error that made the group fail; later writes raise it again."""
        self.threads: set[int] = set()
        """The threads whose listeners are called when the group ends."""

    def refuse_if_lost(self) -> None:
        """Raise if the group has failed, or if a parent process began it."""
        if self.error is not None:
            raise self.error
        _refuse_if_forked(self.pid)


class _Local(threading.local):
    """The state of the calling thread: its open group, and whether it is inside a call."""

    group: _Group | None = None
    busy = False


class _Mark:
    """The newest rows of threads when `changed_since` was last called."""

    def __init__(self, newest: dict[int, int], version: object) -> None:
        self.newest = newest
        """The seq of the newest row of each thread."""
        self.some = version
        """The version of the tables when `changed_since` last looked at `others`."""
        self.whole = version
        """The version of the tables when it last looked at all threads."""
        self.last = max(newest, default=0)
        """The highest number of a thread at that time."""


class TableBackend(PlainChunks):
    """The port on the tables of a storage."""

    shows_texts = False
    undoes_groups = False
    read_only = False
    interval = 60.0
    """Seconds between two polls for commits of other processes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._local = _Local()
        self._listeners: dict[object, Callable[[Collection[int]], None]] = {}

    # -- one call -----------------------------------------------------------------------------------
    @contextmanager
    def _read(self) -> Iterator[Tables]:
        local = self._local
        _refuse_within(local)
        try:
            local.busy = True
            group = local.group
            tables = self._storage.lock_tables(in_group=group is not None and group.tables is not None)
            try:
                yield tables
            finally:
                self._storage.unlock_tables()
        finally:
            local.busy = False

    @contextmanager
    def _write(self) -> Iterator[Tables]:
        """Yield the tables, so that the block can change them. All of its changes are kept, or none."""
        local = self._local
        _refuse_within(local)
        try:
            local.busy = True
            if local.group is None:
                pid = os.getpid()
                with self._storage.write() as tables:
                    yield tables
                    _refuse_if_forked(pid)
            else:
                tables = self._tables_of(local.group)
                place = tables.place()
                try:
                    yield tables
                except BaseException:
                    tables.undo(place)
                    raise
        finally:
            local.busy = False

    def _tables_of(self, group: _Group) -> Tables:
        """Return the tables, which the group locks at its first write."""
        group.refuse_if_lost()
        if group.tables is None:
            try:
                write = self._storage.write()
                tables = write.__enter__()
                group.write, group.tables = write, tables
            except Error as error:
                group.error = error
                raise
        return group.tables

    @contextmanager
    def group(self) -> Iterator[None]:
        self._refuse_in_group()
        group = self._local.group = _Group()
        try:
            yield
            group.refuse_if_lost()
        except BaseException:
            # No ExitStack: after an interrupted exit it would keep the exception, and so the lock, in a cycle.
            if group.write is not None:
                group.write.__exit__(*sys.exc_info())
            raise
        else:
            if group.write is not None:
                group.write.__exit__(None, None, None)
        finally:
            self._local.group = None
            self._tell(group.threads)

    def _refuse_in_group(self) -> None:
        if self._local.group is not None:
            raise Invalid("this thread has an open group: end it first", code="invalid.transaction")

    def commit(self, batch: Batch) -> tuple[int, ...]:
        numbers: tuple[int, ...] = ()
        try:
            with self._write() as tables:
                numbers = tables.commit(pins_as_tags(batch))
        finally:  # a commit that raised CommitUnknown may be in the store
            if self._listeners:
                self._tell(written(batch, numbers))
        return numbers

    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        self._refuse_in_group()
        with self._read() as tables:
            copy = tables.copy()
        yield TableView(copy, self._storage.bytes_of)

    # -- news of commits ----------------------------------------------------------------------------
    def _tell(self, numbers: set[int]) -> None:
        """Call the listeners after a commit; in a group, after the group has ended."""
        group = self._local.group
        if group is not None:
            group.threads |= numbers
        elif numbers:
            for wake in tuple(self._listeners.values()):
                wake(numbers)

    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        with self._read():
            pass  # a closed store is refused
        token = object()
        self._listeners[token] = wake  # without a lock, which a forked child might inherit
        try:
            yield self.interval
        finally:
            del self._listeners[token]

    def changed_since(
        self, mark: object | None, notified: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        with self._read() as tables:
            version = (tables, tables.appended)
            if not isinstance(mark, _Mark):
                return _Mark({no: tables.last(no) or 0 for no in tables.threads}, version), {}
            changed = version != (mark.whole if others is None else mark.some)
            checked: Iterable[int] = notified
            if changed:
                new = range(mark.last + 1, tables.last_thread() + 1)
                mark.last = tables.last_thread()
                checked = tables.threads if others is None else {*notified, *others, *new}
            newest = {no: seq for no in checked if (seq := tables.last(no)) is not None}
        news = {no: mark.newest.get(no, 0) for no, seq in newest.items() if seq != mark.newest.get(no, 0)}
        mark.newest.update(newest)
        mark.some = version
        if others is None:
            mark.whole = version
        return mark, news

    # -- threads ------------------------------------------------------------------------------------
    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        with self._read() as tables:
            return tables.threads.get(tables.names.get((space, name), 0))

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        with self._read() as tables:
            return tables.threads.get(tables.uids.get(uid, 0))

    def thread(self, no: int) -> ThreadRecord | None:
        with self._read() as tables:
            return tables.threads.get(no)

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        with self._read() as tables:
            return [no for no in tables.threads if no > after][:limit]

    def threads(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None = None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[ThreadRecord, Row]]:
        with self._read() as tables:
            matches = [
                (record, newest)
                for record in tables.threads.values()
                if (space is None or record.space == space)
                and (agent is None or record.agent == agent)
                and (prefix is None or record.name.startswith(prefix))
                and (origin is None or (record.origin or "")[8:] == origin.hex())
                and (newest := tables.newest(record.no)) is not None
                and newest.head
                and (after is None or (newest.created_at, record.no) < after)
            ]
        return heapq.nlargest(limit, matches, key=lambda entry: (entry[1].created_at, entry[0].no))

    def tips(self, agent: str, *, touched: bool) -> list[ThreadTip]:
        with self._read() as tables:
            numbers = sorted((tables.touched if touched else tables.agents).get(agent, ()))
            tips = [(tables.threads[no], newest) for no in numbers if (newest := tables.newest(no)) is not None]
            return [ThreadTip(record, newest, tables.logs[record.no].get(newest.head)) for record, newest in tips]

    # -- many threads at once -----------------------------------------------------------------------
    def threads_named(self, space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
        with self._read() as tables:
            return {name: tables.threads[tables.names[space, name]] for name in names if (space, name) in tables.names}

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        with self._read() as tables:
            return {no: newest for no in threads if (newest := tables.newest(no)) is not None}

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        with self._read() as tables:
            rows = {
                (no, row.seq): row for no, *span in sorted(spans) for row in tables.between(no, [(span[0], span[1])])
            }
            if not payload:
                return rows
            bodies = self._storage.bytes_of([tables.payloads[place] for place in rows])
        return {place: row._replace(payload=body) for (place, row), body in zip(rows.items(), bodies, strict=True)}

    # -- rows ---------------------------------------------------------------------------------------
    def newest(self, thread: int) -> Row | None:
        with self._read() as tables:
            return tables.newest(thread)

    def rows(
        self,
        thread: int,
        ranges: Sequence[tuple[int, int]],
        *,
        payload: bool = False,
        visible: bool = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Row]:
        with self._read() as tables:
            rows = tables.between(thread, ranges)
            if visible:
                rows = [row for row in rows if _is_checkpoint(row)]
            if newest_first:
                rows.reverse()
            rows = rows[:limit]
            if not payload:
                return rows
            bodies = self._storage.bytes_of([tables.payloads[thread, row.seq] for row in rows])
        return [row._replace(payload=body) for row, body in zip(rows, bodies, strict=True)]

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        with self._read() as tables:
            return sum(map(_is_checkpoint, tables.between(thread, ranges)))

    def labelled(self, thread: int, labels: Collection[str]) -> list[int]:
        wanted = frozenset(labels)
        with self._read() as tables:
            return [row.seq for row in tables.logs.get(thread, {}).values() if row.label in wanted and not row.hidden]

    # -- tags and pins ------------------------------------------------------------------------------
    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        return tags_of_rows(self._stored_tags(thread, seqs))

    def pins(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
        return pins_of_rows(self._stored_tags(thread, seqs))

    def _stored_tags(self, thread: int, seqs: Iterable[int] | None) -> dict[int, tuple[str, ...]]:
        with self._read() as tables:
            numbers = sorted(tables.logs.get(thread, {}) if seqs is None else set(seqs))
            return {seq: tables.tags[thread, seq] for seq in numbers if (thread, seq) in tables.tags}

    def tagged(self, thread: int, tag: str) -> list[int]:
        with self._read() as tables:
            log = tables.logs.get(thread, {})
            tagged = [seq for seq, row in log.items() if not row.hidden and tag in tables.tags.get((thread, seq), ())]
        return tagged if tags_in((tag,)) else []

    # -- chunks -------------------------------------------------------------------------------------
    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._read() as tables:
            bodies = {digest: tables.chunks[digest][0] for digest in digests if digest in tables.chunks}
            return dict(zip(bodies, self._storage.bytes_of(list(bodies.values())), strict=True))

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        with self._read() as tables:
            return {digest for digest in digests if digest in tables.chunks}

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        with self._read() as tables:
            digests = heapq.nsmallest(limit, (digest for digest in tables.chunks if digest > after))
            return [(digest, tables.chunks[digest][1]) for digest in digests]

    # -- the index ----------------------------------------------------------------------------------
    def unindexed(self, after: int, limit: int) -> list[int]:
        with self._read() as tables:
            return heapq.nsmallest(limit, (no for no in tables.marks if no > after))

    def indexed(self, thread: int) -> IndexState:
        with self._read() as tables:
            return tables.lists[thread][0] if thread in tables.lists else NO_LIST

    def index(self, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]) -> bool:
        with self._write() as tables:
            if tables.lists.get(thread, (NO_LIST,))[0] != was:
                return False
            tables.index(thread, now, splices)
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
        sought = [phrase.sought for phrase in phrases]
        left_out = set(without)
        with self._read() as tables:
            matching = [
                (record, indexed.seq, position, listed_entry)
                for record, indexed, listed in [
                    (tables.threads[no], *tables.lists[no])
                    for no in (tables.lists if threads is None else tables.lists.keys() & set(threads))
                    if no in tables.threads  # a damaged log may have lost the thread
                ]
                if (space is None or record.space == space)
                and (agent is None or record.agent == agent)
                and record.no not in left_out
                for position, listed_entry in enumerate(listed)
                if listed_entry is not None
                and all(words in f" {listed_entry.entry.words} " for words in sought)
                and (after is None or (listed_entry.entry.time, listed_entry.no) < after)
            ]
            best = heapq.nlargest(limit, matching, key=lambda each: (each[3].entry.time, each[3].no))
            texts = self._storage.bytes_of([listed_entry.text for *_, listed_entry in best])
        if any(
            listed_entry.check not in (None, zlib.crc32(text))
            for (*_, listed_entry), text in zip(best, texts, strict=True)
        ):
            raise Corrupt("the search index is damaged: `reindex` rebuilds it", code="corrupt.index")
        return [
            IndexHit(record, seq, position, listed_entry.no, listed_entry.entry._replace(words="", text=text))
            for (record, seq, position, listed_entry), text in zip(best, texts, strict=True)
        ]

    def clear_index(self) -> None:
        with self._write() as tables:
            tables.forget_lists()

    # -- upkeep -------------------------------------------------------------------------------------
    def next_epoch(self) -> int:
        with self._write() as tables:
            tables.do(SetMeta("epoch", tables.meta["epoch"] + 1))
            return tables.meta["epoch"]

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        with self._write() as tables:
            old = tuple(
                digest
                for digest in dict.fromkeys(digests)
                if digest in tables.chunks and tables.chunks[digest][1] < before_epoch
            )
            size = sum(size_of(tables.chunks[digest][0]) for digest in old)
            if old:
                tables.do(RemoveChunks(old))
            return size

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        with self._write() as tables:
            log = tables.logs.get(thread, {})
            removed = tuple(
                seq for seq in dict.fromkeys(seqs) if seq in log and log[seq].hidden and seq != tables.last(thread)
            )
            if removed:
                tables.do(RemoveRows(thread, removed))
            return len(removed)

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        with self._write() as tables:
            tables.put(chunks)
            return sum(tables.rewrite(thread, row) for row in rows)

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        del progress
        with self._read() as tables:
            return tuple(tables.orphans())

    def repair(self) -> None:
        self._refuse_in_group()

    def last_seq(self, thread: int) -> int:
        return self.indexed(thread).as_of

    def usage(self) -> Usage:
        with self._read() as tables:
            spaces = [(record.space, tables.logs[no], tables.newest(no), no) for no, record in tables.threads.items()]
            alive = [(space, no) for space, _, newest, no in spaces if newest is not None and newest.head]
            checkpoints = [(space, row) for space, log, *_ in spaces for row in log.values() if _is_checkpoint(row)]
            lists = [
                (space, tables.lists[no][0]) for space, no in alive if no in tables.lists and no not in tables.marks
            ]
            payloads = tables.payload_bytes()
            entries = [each for _, listed in tables.lists.values() for each in listed if each is not None]
            indexed = sum(len(each.entry.words) + size_of(each.text) for each in entries)
            return Usage(
                threads=_by_space((space, 1) for space, _ in alive),
                rows=sum(map(len, tables.logs.values())),
                checkpoints=_by_space((space, 1) for space, _ in checkpoints),
                logical_bytes=_by_space((space, row.size) for space, row in checkpoints),
                items=_by_space((space, listed.items) for space, listed in lists),
                chunks=len(tables.chunks),
                payload_bytes=payloads,
                stored_bytes=payloads + indexed,
                entries=len(entries),
                index_bytes=indexed,
            )

    def now(self) -> int:
        return time.time_ns() // 1000

    def reclaim(self, *, erase: bool = False) -> None:
        del erase  # tables contain no removed data
        self._refuse_in_group()
        with self._read():
            pass  # a closed store is refused

    def close(self) -> None:
        self._refuse_in_group()
        self._storage.close()


class _Frozen:
    """The storage of a snapshot: a copy of the tables, and a function that reads bodies."""

    def __init__(self, tables: Tables, bytes_of: Callable[[Sequence[Body]], list[bytes]]) -> None:
        self._tables = tables
        self.bytes_of = bytes_of

    def lock_tables(self, *, in_group: bool) -> Tables:
        del in_group
        return self._tables

    def unlock_tables(self) -> None:
        """Do nothing: there is no lock."""

    def write(self) -> NoReturn:
        raise Unavailable("a snapshot can only be read: write to the store", code="unavailable.read_only")

    def close(self) -> None:
        """Do nothing: the backend that made the snapshot closes its files."""


class TableView(TableBackend):
    """A read-only snapshot of a `TableBackend`."""

    read_only = True

    def __init__(self, tables: Tables, bytes_of: Callable[[Sequence[Body]], list[bytes]]) -> None:
        super().__init__(_Frozen(tables, bytes_of))

    def reclaim(self, *, erase: bool = False) -> None:
        del erase
        with self._write():
            pass  # a snapshot raises `Unavailable`


def _refuse_within(local: _Local) -> None:
    """Raise `Unavailable` for a call inside another call of the same thread."""
    if local.busy:
        raise Unavailable(
            "a signal handler uses the store in the middle of a call of its own thread: let the handler set a flag, "
            "and save when that call has ended",
            code="unavailable.locked",
        )


def _refuse_if_forked(pid: int) -> None:
    """Raise `Unavailable` if this process is a fork of the process that began the write."""
    if pid != os.getpid():
        raise Unavailable(
            "this process was forked in the middle of a write, which is its parent's: begin it again",
            code="unavailable.forked",
        )


def _is_checkpoint(row: Row) -> bool:
    return bool(row.root) and not row.hidden


def _by_space(counted: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the sum of the counts in each name space."""
    total: dict[str, int] = {}
    for space, count in counted:
        total[space] = total.get(space, 0) + count
    return total
