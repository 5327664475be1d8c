"""A store in memory: the port in plain dicts, to be read as its specification.

One lock is held during every call, so a call sees all of a batch or none of it. A batch is checked as a whole
before the first change is made, and nothing after the checks can fail. A group keeps the lock from its first write to
its end, and the values that it replaced, to put them back. Nothing outlives the process; after `os.fork()` the child
has a copy of its own, taken between two calls.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backtrail.backends.port import (
    Batch,
    Entry,
    Found,
    Indexed,
    MissingChunks,
    NewThread,
    Phrase,
    Row,
    Splice,
    Stale,
    Stand,
    ThreadRecord,
    Usage,
    Vanished,
    written,
)
from backtrail.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from backtrail.backends.port import Entry, NewThread, Phrase, Splice

# One for all stores in memory, so that a single hook keeps a fork out of the middle of a call. It is re-entrant
# because a signal handler may fork, too.
_LOCK = threading.RLock()


@functools.cache
def _fork_between_calls() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


_ABSENT = object()
_INTERVAL = 60.0
"""Seconds. Nothing is found by looking that was not told."""


class _Grouped(threading.local):
    """What the calling thread's open group has replaced: (the dict, the key, the value before)."""

    before: list[tuple[dict[Any, Any], Any, Any]] | None = None


def _put_back(before: list[tuple[dict[Any, Any], Any, Any]]) -> None:
    for mapping, key, old in reversed(before):
        if old is _ABSENT:
            mapping.pop(key, None)
        elif key in mapping:
            mapping[key] = old
        else:  # it stands in its old place again
            there = sorted([*mapping.items(), (key, old)], key=lambda entry: entry[0])
            mapping.clear()
            mapping.update(there)


def _is_checkpoint(row: Row) -> bool:
    return bool(row.root) and not row.hidden


class MemoryBackend:
    """Threads, rows, chunks and tags in dicts. Thread numbers and seqs count up from 1."""

    shows_texts = False
    undoes_groups = False

    def __init__(self) -> None:
        _fork_between_calls()
        self._threads: dict[int, ThreadRecord] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._uids: dict[bytes, int] = {}
        self._agents: dict[str, dict[int, None]] = {}  # the threads of each agent
        self._touched: dict[str, dict[int, None]] = {}  # those of them that are touched
        self._logs: dict[int, dict[int, Row]] = {}  # by thread number, then by seq, ascending
        self._chunks: dict[bytes, tuple[bytes, int]] = {}  # the stored bytes, the epoch
        self._tags: dict[tuple[int, int], tuple[str, ...]] = {}
        self._meta = {"epoch": 1, "entry": 0}
        self._marks: dict[int, None] = {}
        self._lists: dict[int, tuple[Indexed, list[tuple[int, Entry] | None]]] = {}  # by thread, numbered, in order
        self._grouped = _Grouped()
        self._listening: dict[object, Callable[[Collection[int]], None]] = {}
        self._closed = False

    def _use(self) -> AbstractContextManager[object]:
        if self._closed:
            raise Unavailable("this store is closed: open it again", code="unavailable.closed")
        return _LOCK

    # -- threads ------------------------------------------------------------------------------
    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        with self._use():
            return self._threads.get(self._names.get((space, name), 0))

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        with self._use():
            return self._threads.get(self._uids.get(uid, 0))

    def threads(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[ThreadRecord, Row]]:
        with self._use():
            found = [
                (record, newest)
                for record in self._threads.values()
                if (newest := self._newest(record.no)) is not None
                and newest.head
                and (space is None or record.space == space)
                and (agent is None or record.agent == agent)
                and (prefix is None or record.name.startswith(prefix))
                and (after is None or (newest.created_at, record.no) < after)
            ]
        found.sort(key=lambda entry: (entry[1].created_at, entry[0].no), reverse=True)
        return [(record, newest._replace(payload=None)) for record, newest in found[:limit]]

    def standings(self, agent: str, *, touched: bool) -> list[Stand]:
        with self._use():
            numbers = sorted((self._touched if touched else self._agents).get(agent, ()))
            found = [(self._threads[no], newest) for no in numbers if (newest := self._newest(no)) is not None]
            return [
                Stand(record, newest._replace(payload=None), None if head is None else head._replace(payload=None))
                for record, newest in found
                for head in [self._logs[record.no].get(newest.head)]
            ]

    # -- rows ---------------------------------------------------------------------------------
    def newest(self, thread: int) -> Row | None:
        with self._use():
            row = self._newest(thread)
            return None if row is None else row._replace(payload=None)

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
        with self._use():
            found = [
                row if payload else row._replace(payload=None)
                for seq, row in self._logs.get(thread, {}).items()
                if any(first <= seq <= last for first, last in ranges) and (_is_checkpoint(row) or not visible)
            ]
        if newest_first:
            found.reverse()
        return found[:limit]

    def labelled(self, thread: int, label: str) -> list[int]:
        with self._use():
            return [row.seq for row in self._logs.get(thread, {}).values() if row.label == label and not row.hidden]

    # -- tags ---------------------------------------------------------------------------------
    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        with self._use():
            wanted = self._logs.get(thread, {}).keys() & (self._logs.get(thread, {}) if seqs is None else set(seqs))
            return {seq: self._tags[thread, seq] for seq in sorted(wanted) if self._tags.get((thread, seq))}

    def tagged(self, thread: int, tag: str) -> list[int]:
        with self._use():
            log = self._logs.get(thread, {})
            return [seq for seq, row in log.items() if not row.hidden and tag in self._tags.get((thread, seq), ())]

    # -- chunks -------------------------------------------------------------------------------
    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._use():
            return {digest: self._chunks[digest][0] for digest in digests if digest in self._chunks}

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        with self._use():
            return {digest for digest in digests if digest in self._chunks}

    # -- the one way to write -------------------------------------------------------------------
    @contextmanager
    def group(self) -> Iterator[None]:
        self._refuse_in_group()
        before: list[tuple[dict[Any, Any], Any, Any]] = []
        self._grouped.before = before
        try:
            yield
        except BaseException:
            _put_back(before)
            raise
        finally:
            self._grouped.before = None
            if before:
                _LOCK.release()

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Put a value, or take it out if it is _ABSENT: every write does it here, so that a group can undo it."""
        before = self._grouped.before
        if before is not None:
            if not before:
                _LOCK.acquire()  # once more than the call does: until the group ends
            before.append((mapping, key, mapping.get(key, _ABSENT)))
        if value is _ABSENT:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    def commit(self, batch: Batch) -> tuple[int, ...]:
        with self._use():
            try:
                self._check(batch)
            except (Stale, Vanished, MissingChunks):
                # A batch that is there already is refused by its own traces: that is a success.
                numbers = self._committed(batch)
                if numbers is None:
                    raise
                return numbers
            numbers = self._apply(batch)
            for wake in self._listening.values():  # whoever looks waits for the lock, and so for the end of a group
                wake(written(batch, numbers))
            return numbers

    def _check(self, batch: Batch) -> None:
        """Refuse the batch unless all it requires holds. Whatever it adds itself does not count, but for rows."""
        for thread, seq in batch.newest:
            if self._last(thread) != seq:
                raise Stale
        for thread, seq in batch.visible:
            row = self._logs.get(thread, {}).get(seq)
            if row is None or row.hidden:
                raise Vanished(thread, seq)
        for thread, seq in batch.show:
            if seq not in self._logs.get(thread, {}):
                raise Vanished(thread, seq)
        self._check_threads(batch.threads)
        last = {-(at + 1): 0 for at in range(len(batch.threads))}
        for thread, row in batch.rows:
            before = last.get(thread, self._last(thread))
            if before is None or row.seq != before + 1:
                raise Stale
            last[thread] = row.seq
        missing = frozenset(batch.touch) - self._chunks.keys() - {digest for digest, _ in batch.chunks}
        if missing:
            raise MissingChunks(missing)

    def _check_threads(self, threads: Sequence[NewThread]) -> None:
        names = {(new.space, new.name) for new in threads}
        uids = {new.uid for new in threads}
        if min(len(names), len(uids)) < len(threads) or names & self._names.keys() or uids & self._uids.keys():
            raise Stale

    def _committed(self, batch: Batch) -> tuple[int, ...] | None:
        """Return the numbers of the batch's threads if this very batch was committed before, else None."""
        if not batch.threads and not batch.rows:
            return None
        numbers = tuple(self._uids.get(new.uid, 0) for new in batch.threads)
        for no, new in zip(numbers, batch.threads, strict=True):
            if self._names.get((new.space, new.name)) != no:
                return None
        for thread, row in batch.rows:
            there = self._logs.get(_number(thread, numbers), {}).get(row.seq)
            if there is None or there.op_id != row.op_id:
                return None
        return numbers

    def _apply(self, batch: Batch) -> tuple[int, ...]:
        numbers = tuple(len(self._threads) + at for at in range(1, len(batch.threads) + 1))
        for no, new in zip(numbers, batch.threads, strict=True):
            self._set(self._threads, no, ThreadRecord(no, *new))
            self._belong(self._agents, no)
            self._set(self._names, (new.space, new.name), no)
            self._set(self._uids, new.uid, no)
            self._set(self._logs, no, {})
        for thread, new in batch.renew:
            self._renew(_number(thread, numbers), new)
        for thread, row in batch.rows:
            no = _number(thread, numbers)
            self._set(self._logs[no], row.seq, row._replace(payload=row.payload or b""))
            self._set(self._marks, no, None)
            self._belong(self._touched, no)
        self._put(batch.chunks)
        for digest in batch.touch:
            self._set(self._chunks, digest, (self._chunks[digest][0], self._meta["epoch"]))
        self._mark(batch, numbers)
        for thread, seq in batch.untouch:
            no = _number(thread, numbers)
            if self._last(no) == seq:
                self._belong(self._touched, no, _ABSENT)
        return numbers

    def _renew(self, no: int, new: NewThread) -> None:
        if no in self._threads:
            for mapping in (self._agents, self._touched):
                self._belong(mapping, no, _ABSENT)
            renewed = self._threads[no]._replace(agent=new.agent, created_at=new.created_at, origin=new.origin)
            self._set(self._threads, no, renewed)
            for mapping in (self._agents, self._touched):
                self._belong(mapping, no)

    def _belong(self, mapping: dict[str, dict[int, None]], no: int, value: object = None) -> None:
        """Put a thread into what a mapping has of its agent, or take it out if the value is _ABSENT."""
        agent = self._threads[no].agent
        if agent is not None:
            self._set(mapping.setdefault(agent, {}), no, value)

    def _put(self, chunks: Sequence[tuple[bytes, bytes]]) -> None:
        for digest, stored in chunks:
            self._set(self._chunks, digest, (self._chunks.get(digest, (stored,))[0], self._meta["epoch"]))

    def _mark(self, batch: Batch, numbers: Sequence[int]) -> None:
        """Hide, show, tag and untag. What is not there is passed over."""
        marks = [(*pair, True) for pair in batch.hide] + [(*pair, False) for pair in batch.show]
        for thread, seq, hidden in marks:
            log = self._logs.get(_number(thread, numbers), {})
            if seq in log:
                self._set(log, seq, log[seq]._replace(hidden=hidden))
        for thread, seq, tag in batch.tag:
            no = _number(thread, numbers)
            tags = self._tags.get((no, seq), ())
            if seq in self._logs.get(no, {}) and tag not in tags:
                self._set(self._tags, (no, seq), (*tags, tag))
        for thread, seq, tag in batch.untag:
            no = _number(thread, numbers)
            tags = self._tags.get((no, seq), ())
            if tag in tags:
                self._set(self._tags, (no, seq), tuple(word for word in tags if word != tag))

    # -- one moment -----------------------------------------------------------------------------
    @contextmanager
    def snapshot(self) -> Iterator[MemoryBackend]:
        self._refuse_in_group()
        view = MemoryBackend()
        with self._use():
            for name, held in vars(self).items():
                if isinstance(held, dict) and name != "_listening":
                    inner = {key: dict(each) if isinstance(each, dict) else each for key, each in held.items()}
                    setattr(view, name, inner)
        yield view

    # -- hearing of commits ---------------------------------------------------------------------
    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        token = object()
        with self._use():
            self._listening[token] = wake
        try:
            yield _INTERVAL
        finally:
            with _LOCK:
                del self._listening[token]

    def moved(
        self, mark: object | None, told: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        del others  # nobody else writes: all that happens is told
        with self._use():
            known: dict[int, int] = mark if isinstance(mark, dict) else {}
            looked_at = self._threads if mark is None else told
            newest = {no: self._last(no) or 0 for no in looked_at}
        news = {} if mark is None else {no: known.get(no, 0) for no, seq in newest.items() if seq != known.get(no, 0)}
        known.update(newest)
        return known, news

    # -- the index ------------------------------------------------------------------------------
    def marked(self, after: int, limit: int) -> list[int]:
        with self._use():
            return sorted(no for no in self._marks if no > after)[:limit]

    def indexed(self, thread: int) -> Indexed:
        with self._use():
            return self._lists[thread][0] if thread in self._lists else Indexed(0, 0, 0)

    def index(self, thread: int, was: Indexed, now: Indexed, splices: Sequence[Splice]) -> bool:
        with self._use():
            there, listed = self._lists.get(thread, (Indexed(0, 0, 0), []))
            if there != was:
                return False
            listed = list(listed)
            for splice in splices:
                listed[splice.at : splice.at + splice.removed] = map(self._numbered, splice.entries)
            self._set(self._lists, thread, (now, listed))
            if self._last(thread) == now.as_of:
                self._set(self._marks, thread, _ABSENT)
            return True

    def _numbered(self, entry: Entry | None) -> tuple[int, Entry] | None:
        if entry is None:
            return None
        self._set(self._meta, "entry", self._meta["entry"] + 1)
        return self._meta["entry"], entry

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
        with self._use():
            found = [
                Found(record, indexed.seq, position, no, entry._replace(words=""))
                for record, indexed, listed in [(self._threads[no], *held) for no, held in self._lists.items()]
                if (space is None or record.space == space)
                and (agent is None or record.agent == agent)
                and (threads is None or record.no in threads)
                and record.no not in without
                for position, (no, entry) in [(at, held) for at, held in enumerate(listed) if held is not None]
                if all(phrase.sought in f" {entry.words} " for phrase in phrases)
                and (after is None or (entry.time, no) < after)
            ]
        return sorted(found, key=lambda each: (each.entry.time, each.no), reverse=True)[:limit]

    def forget_index(self) -> None:
        with self._use():
            for no in self._threads:
                self._set(self._lists, no, _ABSENT)
                self._set(self._marks, no, None)

    # -- upkeep -------------------------------------------------------------------------------
    def thread_numbers(self, after: int, limit: int) -> list[int]:
        with self._use():
            return [no for no in self._threads if no > after][:limit]

    def thread(self, no: int) -> ThreadRecord | None:
        with self._use():
            return self._threads.get(no)

    def next_epoch(self) -> int:
        with self._use():
            self._set(self._meta, "epoch", self._meta["epoch"] + 1)
            return self._meta["epoch"]

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        with self._use():
            found = sorted((digest, epoch) for digest, (_, epoch) in self._chunks.items() if digest > after)
        return found[:limit]

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        with self._use():
            old = {digest for digest in digests if digest in self._chunks and self._chunks[digest][1] < before_epoch}
            size = sum(len(self._chunks[digest][0]) for digest in old)
            for digest in old:
                self._set(self._chunks, digest, _ABSENT)
            return size

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        with self._use():
            log = self._logs.get(thread, {})
            gone = {seq for seq in seqs if seq in log and log[seq].hidden and seq != self._last(thread)}
            for seq in gone:
                self._set(log, seq, _ABSENT)
                self._set(self._tags, (thread, seq), _ABSENT)
            return len(gone)

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        replaced = 0
        with self._use():
            self._put(chunks)
            log = self._logs.get(thread, {})
            for row in rows:
                there = log.get(row.seq)
                stays_a_base = there is None or there.base != there.seq or row.base == row.seq
                if there is not None and there.op_id == row.op_id and stays_a_base:
                    # Whoever hid the row meanwhile is right, and a row without a payload has none to give.
                    payload = there.payload if row.payload is None else row.payload
                    self._set(log, row.seq, row._replace(hidden=there.hidden, payload=payload))
                    replaced += 1
        return replaced

    def reclaim(self) -> None:
        with self._use():
            self._refuse_in_group()  # what was removed is free already

    def usage(self) -> Usage:
        with self._use():
            spaces = [(record.space, self._logs[no], self._newest(no), no) for no, record in self._threads.items()]
            alive = [(space, no) for space, _, newest, no in spaces if newest is not None and newest.head]
            checkpoints = [(space, row) for space, log, *_ in spaces for row in log.values() if _is_checkpoint(row)]
            lists = [(space, self._lists[no][0]) for space, no in alive if no in self._lists and no not in self._marks]
            rows = [row for log in self._logs.values() for row in log.values()]
            payloads = [row.payload or b"" for row in rows] + [stored for stored, _ in self._chunks.values()]
            bytes_held = sum(map(len, payloads))
            entries = [held[1] for _, listed in self._lists.values() for held in listed if held is not None]
            indexed = sum(len(entry.words) + len(entry.text) for entry in entries)
            return Usage(
                threads=_by_space((space, 1) for space, _ in alive),
                rows=len(rows),
                checkpoints=_by_space((space, 1) for space, _ in checkpoints),
                logical_bytes=_by_space((space, row.size) for space, row in checkpoints),
                items=_by_space((space, listed.items) for space, listed in lists),
                chunks=len(self._chunks),
                payload_bytes=bytes_held,
                stored_bytes=bytes_held + indexed,
                entries=len(entries),
                index_bytes=indexed,
            )

    def now(self) -> int:
        return time.time_ns() // 1000

    def close(self) -> None:
        self._refuse_in_group()
        self._closed = True

    def _refuse_in_group(self) -> None:
        if self._grouped.before is not None:
            raise Invalid("a group is open in this thread: end it first", code="invalid.transaction")

    # -- what several of them ask ---------------------------------------------------------------
    def _newest(self, thread: int) -> Row | None:
        log = self._logs.get(thread)
        return log[next(reversed(log))] if log else None

    def _last(self, thread: int) -> int | None:
        """Return the seq of the newest row, 0 if there is none yet, None if there is no such thread."""
        log = self._logs.get(thread)
        return None if log is None else next(reversed(log), 0)


def _number(thread: int, created: Sequence[int]) -> int:
    """Return the number of a thread that a batch names: -1, -2 ... are those that it creates."""
    return created[-thread - 1] if -len(created) <= thread < 0 else thread


def _by_space(counted: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return what was counted in each name space, added up."""
    total: dict[str, int] = {}
    for space, count in counted:
        total[space] = total.get(space, 0) + count
    return total
