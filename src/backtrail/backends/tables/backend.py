"""The port on tables in memory: what every backend does that keeps its tables there.

One lock is held during every call, so a call sees all of a batch or none of it. What a call writes counts when it ends;
if it fails, it is taken back. A group keeps the lock from its first write to its end.

Who derives from it says how the lock is had (`_take`, `_give`, `_read`), how bodies are read (`_bytes`), and what makes
changes last (`_keep`).
"""

from __future__ import annotations

import heapq
import threading
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backtrail.backends.handlers import refuse_within
from backtrail.backends.port import Batch, Found, Indexed, Phrase, Row, Splice, Stand, ThreadRecord, Usage, written
from backtrail.backends.tables.changes import RemoveChunks, RemoveRows, SetMeta, size_of
from backtrail.backends.tables.orphans import astray
from backtrail.backends.tables.tables import NO_LIST, Tables
from backtrail.errors import Corrupt, Error, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from backtrail.backends.tables.changes import Body, Change


class _Group:
    """The writes of one thread since its group began."""

    def __init__(self) -> None:
        self.taken = False
        """Whether it has the lock: since its first write."""
        self.lost: Error | None = None
        self.told: set[int] = set()


class _Grouped(threading.local):
    """The calling thread's open group."""

    group: _Group | None = None


class _Known:
    """A mark: how the threads stood when they were last looked at."""

    def __init__(self, newest: dict[int, int], version: object) -> None:
        self.newest = newest
        """The seq of the newest row of each thread."""
        self.some = version
        """The version of the tables when `others` were last looked at."""
        self.whole = version
        """The version when all threads were."""
        self.last = max(newest, default=0)
        """The highest number of a thread that there was then."""


class TableBackend:
    """Threads, rows, chunks, tags and lists in tables."""

    shows_texts = False
    undoes_groups = False
    read_only = False
    interval = 60.0
    """Seconds between two looks at what others did."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._grouped = _Grouped()
        self._listening: dict[object, Callable[[Collection[int]], None]] = {}

    # -- what a backend says of itself ------------------------------------------------------------
    def _take(self) -> None:
        """Have the tables to oneself, to write; the tables are as new as can be. Once for each `_give`."""
        raise NotImplementedError

    def _give(self) -> None:
        """Let others have them."""
        raise NotImplementedError

    def _give_what_is_left(self) -> None:
        """Do so if Ctrl-C came before it was done. Who cannot be interrupted in that has nothing to do."""

    def _read(self) -> AbstractContextManager[Tables]:
        """Have the tables to oneself, to read."""
        raise NotImplementedError

    def _keep(self, changes: Sequence[Change]) -> None:
        """Make changes last, or raise: then they are taken back."""
        raise NotImplementedError

    def _bytes(self, bodies: Sequence[Body]) -> list[bytes]:
        """Return the bytes of bodies."""
        raise NotImplementedError

    # -- writing ----------------------------------------------------------------------------------
    @contextmanager
    def _write(self) -> Iterator[Tables]:
        """Give the tables to change them: all that the block does counts, or nothing."""
        group = self._grouped.group
        if group is not None:
            with self._write_in(group) as tables:
                yield tables
            return
        self._take()
        try:
            self._take_back_what_was_left()
            tables = self._tables
            tables.begin()
            try:
                yield tables
                self._keep(tables.changes)
            except BaseException:
                tables.undo()
                raise
            finally:
                tables.end()
        finally:
            try:
                self._give()
            except KeyboardInterrupt:
                self._give_what_is_left()
                raise

    def _refuse_within(self) -> None:
        """Refuse a call in the middle of another one, but in a group. Its thread has the tables already."""
        group = self._grouped.group
        if group is None or not group.taken:
            refuse_within(self)

    def _take_back_what_was_left(self) -> None:
        """Take back what was done in a block that Ctrl-C has ended, before it could. Its caller has the tables."""
        group = self._grouped.group
        if self._tables.began and (group is None or not group.taken):
            self._tables.undo()
            self._tables.end()

    @contextmanager
    def _write_in(self, group: _Group) -> Iterator[Tables]:
        if group.lost is not None:
            raise group.lost
        if not group.taken:
            try:
                self._take()
            except Error as error:
                group.lost = error
                raise
            try:
                self._take_back_what_was_left()
                self._tables.begin()
                group.taken = True
            except BaseException:
                group.taken = False
                self._give()
                raise
        tables = self._tables
        place = tables.place()
        try:
            yield tables
        except BaseException:
            tables.undo(place)
            raise

    @contextmanager
    def group(self) -> Iterator[None]:
        self._refuse_in_group()
        group = self._grouped.group = _Group()
        try:
            yield
        except BaseException:
            self._end(group, keep=False)
            raise
        else:
            self._end(group, keep=True)
        finally:
            self._grouped.group = None
            if group.taken:  # Ctrl-C came before it could be ended: what it did is taken back by whoever comes next
                self._give()
            self._tell(group.told)

    def _end(self, group: _Group, *, keep: bool) -> None:
        if group.taken:
            self._end_taken(group, keep=keep)
        if keep and group.lost is not None:
            raise group.lost

    def _end_taken(self, group: _Group, *, keep: bool) -> None:
        tables = self._tables
        try:
            if keep and group.lost is None:
                self._keep(tables.changes)
            else:
                tables.undo()
        except BaseException:
            tables.undo()
            raise
        finally:
            tables.end()
            group.taken = False
            self._give()

    def _refuse_in_group(self) -> None:
        if self._grouped.group is not None:
            raise Invalid("a group is open in this thread: end it first", code="invalid.transaction")

    def commit(self, batch: Batch) -> tuple[int, ...]:
        numbers: tuple[int, ...] = ()
        try:
            with self._write() as tables:
                numbers = tables.commit(batch)
        finally:  # also if it failed: it may be there all the same
            if self._listening:
                self._tell(written(batch, numbers))
        return numbers

    # -- hearing of commits -------------------------------------------------------------------------
    def _tell(self, numbers: set[int]) -> None:
        """Let those who listen know of a commit; in a group, when it has ended."""
        group = self._grouped.group
        if group is not None:
            group.told |= numbers
        elif numbers:
            for wake in tuple(self._listening.values()):
                wake(numbers)

    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        with self._read():
            pass  # who listens to a store that is closed is told so
        token = object()
        self._listening[token] = wake  # without a lock, which a forked child might inherit
        try:
            yield self.interval
        finally:
            del self._listening[token]

    def moved(
        self, mark: object | None, told: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        with self._read() as tables:
            version = (tables, tables.appended)
            if not isinstance(mark, _Known):
                return _Known({no: tables.last(no) or 0 for no in tables.threads}, version), {}
            changed = version != (mark.whole if others is None else mark.some)
            looked_at: Iterable[int] = told
            if changed:
                new = range(mark.last + 1, tables.last_thread() + 1)
                mark.last = tables.last_thread()
                looked_at = tables.threads if others is None else {*told, *others, *new}
            newest = {no: seq for no in looked_at if (seq := tables.last(no)) is not None}
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
            found = [
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
        return heapq.nlargest(limit, found, key=lambda entry: (entry[1].created_at, entry[0].no))

    def standings(self, agent: str, *, touched: bool) -> list[Stand]:
        with self._read() as tables:
            numbers = sorted((tables.touched if touched else tables.agents).get(agent, ()))
            found = [(tables.threads[no], newest) for no in numbers if (newest := tables.newest(no)) is not None]
            return [Stand(record, newest, tables.logs[record.no].get(newest.head)) for record, newest in found]

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
            found = tables.between(thread, ranges)
            if visible:
                found = [row for row in found if _is_checkpoint(row)]
            if newest_first:
                found.reverse()
            found = found[:limit]
            if not payload:
                return found
            bodies = self._bytes([tables.payloads[thread, row.seq] for row in found])
        return [row._replace(payload=body) for row, body in zip(found, bodies, strict=True)]

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        with self._read() as tables:
            return sum(map(_is_checkpoint, tables.between(thread, ranges)))

    def labelled(self, thread: int, label: str) -> list[int]:
        with self._read() as tables:
            return [row.seq for row in tables.logs.get(thread, {}).values() if row.label == label and not row.hidden]

    # -- tags ---------------------------------------------------------------------------------------
    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        with self._read() as tables:
            wanted = sorted(tables.logs.get(thread, {}) if seqs is None else set(seqs))
            return {seq: tables.tags[thread, seq] for seq in wanted if (thread, seq) in tables.tags}

    def tagged(self, thread: int, tag: str) -> list[int]:
        with self._read() as tables:
            log = tables.logs.get(thread, {})
            return [seq for seq, row in log.items() if not row.hidden and tag in tables.tags.get((thread, seq), ())]

    # -- chunks -------------------------------------------------------------------------------------
    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._read() as tables:
            there = {digest: tables.chunks[digest][0] for digest in digests if digest in tables.chunks}
            return dict(zip(there, self._bytes(list(there.values())), strict=True))

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        with self._read() as tables:
            return {digest for digest in digests if digest in tables.chunks}

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        with self._read() as tables:
            found = heapq.nsmallest(limit, (digest for digest in tables.chunks if digest > after))
            return [(digest, tables.chunks[digest][1]) for digest in found]

    # -- the index ----------------------------------------------------------------------------------
    def marked(self, after: int, limit: int) -> list[int]:
        with self._read() as tables:
            return heapq.nsmallest(limit, (no for no in tables.marks if no > after))

    def indexed(self, thread: int) -> Indexed:
        with self._read() as tables:
            return tables.lists[thread][0] if thread in tables.lists else NO_LIST

    def index(self, thread: int, was: Indexed, now: Indexed, splices: Sequence[Splice]) -> bool:
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
    ) -> list[Found]:
        sought = [phrase.sought for phrase in phrases]
        left_out = set(without)
        with self._read() as tables:
            matching = [
                (record, indexed.seq, position, held)
                for record, indexed, listed in [
                    (tables.threads[no], *tables.lists[no])
                    for no in (tables.lists if threads is None else tables.lists.keys() & set(threads))
                    if no in tables.threads  # else it was lost
                ]
                if (space is None or record.space == space)
                and (agent is None or record.agent == agent)
                and record.no not in left_out
                for position, held in enumerate(listed)
                if held is not None
                and all(words in f" {held.entry.words} " for words in sought)
                and (after is None or (held.entry.time, held.no) < after)
            ]
            best = heapq.nlargest(limit, matching, key=lambda each: (each[3].entry.time, each[3].no))
            texts = self._bytes([held.text for *_, held in best])
        if any(held.check not in (None, zlib.crc32(text)) for (*_, held), text in zip(best, texts, strict=True)):
            raise Corrupt("the index of search is damaged: `reindex` makes it anew", code="corrupt.index")
        return [
            Found(record, seq, position, held.no, held.entry._replace(words="", text=text))
            for (record, seq, position, held), text in zip(best, texts, strict=True)
        ]

    def forget_index(self) -> None:
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
            gone = tuple(
                seq for seq in dict.fromkeys(seqs) if seq in log and log[seq].hidden and seq != tables.last(thread)
            )
            if gone:
                tables.do(RemoveRows(thread, gone))
            return len(gone)

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        with self._write() as tables:
            tables.put(chunks)
            return sum(tables.rewrite(thread, row) for row in rows)

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        del progress
        with self._read() as tables:
            return tuple(astray(tables))

    def mend(self) -> None:
        self._refuse_in_group()

    def last_seq(self, thread: int) -> int:
        return self.indexed(thread).as_of

    def recall(self, name: str) -> int:
        with self._read() as tables:
            return tables.meta.get(name, 0)

    def note(self, name: str, value: int) -> None:
        with self._write() as tables:
            tables.do(SetMeta(name, value))

    def usage(self) -> Usage:
        with self._read() as tables:
            spaces = [(record.space, tables.logs[no], tables.newest(no), no) for no, record in tables.threads.items()]
            alive = [(space, no) for space, _, newest, no in spaces if newest is not None and newest.head]
            checkpoints = [(space, row) for space, log, *_ in spaces for row in log.values() if _is_checkpoint(row)]
            lists = [
                (space, tables.lists[no][0]) for space, no in alive if no in tables.lists and no not in tables.marks
            ]
            held = tables.held()
            entries = [each for _, listed in tables.lists.values() for each in listed if each is not None]
            indexed = sum(len(each.entry.words) + size_of(each.text) for each in entries)
            return Usage(
                threads=_by_space((space, 1) for space, _ in alive),
                rows=sum(map(len, tables.logs.values())),
                checkpoints=_by_space((space, 1) for space, _ in checkpoints),
                logical_bytes=_by_space((space, row.size) for space, row in checkpoints),
                items=_by_space((space, listed.items) for space, listed in lists),
                chunks=len(tables.chunks),
                payload_bytes=held,
                stored_bytes=held + indexed,
                entries=len(entries),
                index_bytes=indexed,
            )

    def now(self) -> int:
        return time.time_ns() // 1000


def _is_checkpoint(row: Row) -> bool:
    return bool(row.root) and not row.hidden


def _by_space(counted: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return what was counted in each name space, added up."""
    total: dict[str, int] = {}
    for space, count in counted:
        total[space] = total.get(space, 0) + count
    return total
