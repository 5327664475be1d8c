"""The state of a store as plain dicts.

Every write is a list of `changes`. `whole` yields the changes that turn empty tables into the same state.

A batch is checked as a whole before its first change is made, and no change after the checks can fail. After `begin`
the tables keep a journal of old values. `undo` restores them, up to the beginning or to a position in between.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from backtrail.backends.columns import merged
from backtrail.backends.port import (
    REMOVED,
    Batch,
    IndexState,
    MissingChunks,
    NewThread,
    Row,
    Stale,
    ThreadRecord,
    Vanished,
    as_tagged,
    new_tuple,
)
from backtrail.backends.tables.changes import (
    DropList,
    Hide,
    Listed,
    LoseRow,
    Mark,
    PutChunk,
    PutList,
    PutRow,
    PutThread,
    RemoveChunks,
    RemoveRows,
    SetMeta,
    SetTags,
    Stamp,
    Touch,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from backtrail.backends.port import IndexEntry, Splice
    from backtrail.backends.tables.changes import Body, Change


_ABSENT = object()
_PAYLOAD = Row._fields.index("payload")
NO_LIST = IndexState(0, 0, 0)


class Tables:
    """Threads, rows, chunks, tags and index lists in dicts. Thread numbers and seqs count up from 1."""

    def __init__(self) -> None:
        self.threads: dict[int, ThreadRecord] = {}
        self.names: dict[tuple[str, str], int] = {}
        self.uids: dict[bytes, int] = {}
        self.agents: dict[str, dict[int, None]] = {}  # the threads of each agent
        self.touched: dict[str, dict[int, None]] = {}  # the touched threads of each agent
        self.logs: dict[int, dict[int, Row]] = {}  # by thread number, then by seq, ascending; without payloads
        self.payloads: dict[tuple[int, int], Body] = {}
        self.chunks: dict[bytes, tuple[Body, int]] = {}  # the stored bytes, the epoch
        self.tags: dict[tuple[int, int], tuple[str, ...]] = {}
        self.meta = {"epoch": 1, "entry": 0}
        self.marks: dict[int, None] = {}
        self.lists: dict[int, tuple[IndexState, list[Listed | None]]] = {}
        self.unlisted: dict[int, None] = {}
        """Threads whose index list was dropped or lost. They stay marked, and accept only a complete list."""
        self.adrift: set[tuple[int, int]] = set()
        """(thread, seq) of rows whose thread a damaged log has lost."""
        self.appended = 0
        """How many rows were added since these tables were made. If the count changes, a thread has a new row."""
        self.wasted = 0
        """How many removed or replaced values the log still contains."""
        self.changes: list[Change] = []
        """The changes since `begin`."""
        self._before: list[tuple[dict[Any, Any], Any, Any]] | None = None  # (the dict, the key, the value before)
        self._unsorted: dict[int, dict[Any, Any]] = {}  # by id: dicts to which `undo` has added a key at the end
        self._doing: dict[type, Callable[[Any], None]] = {
            PutThread: self._put_thread,
            PutRow: self._put_row,
            LoseRow: self._lose_row,
            RemoveRows: self._remove_rows,
            Hide: self._hide,
            SetTags: self._set_tags,
            PutChunk: self._put_chunk,
            Stamp: self._stamp,
            RemoveChunks: self._remove_chunks,
            Touch: self._touch,
            Mark: self._mark,
            PutList: self._put_list,
            DropList: self._drop_list,
            SetMeta: self._set_meta,
        }

    # -- changing ---------------------------------------------------------------------------------
    def begin(self) -> None:
        """Keep a journal of all changes from now on. Changes that an interrupted write left are undone first."""
        self.rollback()
        self._before = []

    def place(self) -> tuple[int, int]:
        """Return the current position in the journal, for `undo`."""
        return len(self._before or ()), len(self.changes)

    def undo(self, place: tuple[int, int] = (0, 0)) -> None:
        """Undo the changes after a position in the journal. If Ctrl-C interrupts it, the next `undo` does the rest."""
        before = self._before or []
        while len(before) > place[0]:
            mapping, key, old = before[-1]
            if old is _ABSENT:
                mapping.pop(key, None)
            else:
                if key not in mapping:
                    self._unsorted[id(mapping)] = mapping
                mapping[key] = old
            del before[-1]
        while self._unsorted:
            name = next(reversed(self._unsorted))
            _sort(self._unsorted[name])
            del self._unsorted[name]
        del self.changes[place[1] :]

    def rollback(self) -> None:
        """Undo all changes since `begin`, and end the journal."""
        if self._before is not None:
            self.undo()
            self.end()

    def end(self) -> None:
        """End the journal: the changes stay."""
        self._before = None
        self.changes = []

    def settle(self, placed: Iterable[Change]) -> None:
        """End the journal, and replace bodies by their places in the log, from the changes in `placed`."""
        self.end()
        for change in placed:
            if isinstance(change, PutRow):
                key = (change.thread, change.row.seq)
                if key in self.payloads:
                    self.payloads[key] = change.payload
            elif isinstance(change, PutChunk):
                if change.digest in self.chunks:
                    self.chunks[change.digest] = (change.body, self.chunks[change.digest][1])
            elif isinstance(change, PutList) and change.thread in self.lists:
                moved = {each.no: each for _, _, new in change.splices for each in new if each is not None}
                listed = self.lists[change.thread][1]
                listed[:] = [each if each is None else moved.get(each.no, each) for each in listed]

    def do(self, change: Change) -> None:
        """Make a change."""
        if self._before is not None:
            self.changes.append(change)
        self._doing[type(change)](change)

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Put a value, or remove the key if the value is _ABSENT. All changes use this method, so all can be undone."""
        if self._before is not None:
            self._before.append((mapping, key, mapping.get(key, _ABSENT)))
        if value is _ABSENT:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    def _put_thread(self, change: PutThread) -> None:
        record = change.record
        previous = self.threads.get(record.no)
        if previous is not None and previous.agent is not None and previous.agent != record.agent:
            for mapping in (self.agents, self.touched):
                self._set(mapping.setdefault(previous.agent, {}), record.no, _ABSENT)
        late = record.no < self.last_thread()
        self._set(self.threads, record.no, record)
        self.wasted += previous is not None
        if record.agent is not None:
            self._set(self.agents.setdefault(record.agent, {}), record.no, None)
        if previous is None:
            if late:  # the log has lost the thread's first record, and the thread was started again
                _sort(self.threads)
            self._set(self.names, (record.space, record.name), record.no)
            self._set(self.uids, record.uid, record.no)
            self._set(self.logs, record.no, {})

    def _put_row(self, change: PutRow) -> None:
        thread, row, payload, news = change
        log = self.logs.get(thread)
        if log is None:
            self.adrift.add((thread, row.seq))
            return
        self.wasted += row.seq in log
        self._set(log, row.seq, row)
        self._set(self.payloads, (thread, row.seq), payload)
        if news:
            self.appended += 1
            self._set(self.marks, thread, None)
            if self.threads[thread].agent is not None:
                self._touch(Touch(thread, touched=True))

    def _lose_row(self, change: LoseRow) -> None:
        thread, first, last = change
        log = self.logs.get(thread, {})
        behind = next(reversed(log), 0)
        for seq in range(first, max(first, last) + 1):
            if seq in log:
                continue
            # The lost row may have been the head. This row has a wrong checksum, so that readers find the damage.
            lost = Row(
                seq, 0, seq - 1, 0, seq, 0, 0, 0, seq, 0, 0, 0, None, 0, 0, bytes(32), b"", b"", b"", None, hidden=False
            )
            self._put_row(PutRow(thread, lost, b"", news=True))
        if first < behind:  # later rows were not lost
            _sort(log)

    def _remove_rows(self, change: RemoveRows) -> None:
        for seq in change.seqs:
            self.wasted += 1
            self.adrift.discard((change.thread, seq))
            self._set(self.logs.get(change.thread, {}), seq, _ABSENT)
            for mapping in (self.payloads, self.tags):
                self._set(mapping, (change.thread, seq), _ABSENT)

    def _hide(self, change: Hide) -> None:
        log = self.logs.get(change.thread, {})
        if change.seq in log:
            self._set(log, change.seq, log[change.seq]._replace(hidden=change.hidden))

    def _set_tags(self, change: SetTags) -> None:
        key = (change.thread, change.seq)
        self.wasted += key in self.tags
        self._set(self.tags, key, change.tags or _ABSENT)

    def _put_chunk(self, change: PutChunk) -> None:
        self.wasted += change.digest in self.chunks
        self._set(self.chunks, change.digest, (change.body, change.epoch))

    def _stamp(self, change: Stamp) -> None:
        for digest in change.digests:
            if digest in self.chunks:
                self._set(self.chunks, digest, (self.chunks[digest][0], change.epoch))

    def _remove_chunks(self, change: RemoveChunks) -> None:
        for digest in change.digests:
            self.wasted += 1
            self._set(self.chunks, digest, _ABSENT)

    def _touch(self, change: Touch) -> None:
        agent = self.threads[change.thread].agent if change.thread in self.threads else None
        if agent is not None:
            self._set(self.touched.setdefault(agent, {}), change.thread, None if change.touched else _ABSENT)

    def _mark(self, change: Mark) -> None:
        if not change.marked and change.thread in self.unlisted and change.thread in self.threads:
            return
        self._set(self.marks, change.thread, None if change.marked else _ABSENT)

    def _put_list(self, change: PutList) -> None:
        listed = list(self.lists.get(change.thread, (NO_LIST, []))[1])
        fits = True
        for at, removed, entries in change.splices:
            fits = fits and at + removed <= len(listed)
            self.wasted += removed
            listed[at : at + removed] = entries
        highest = max((each.no for _, _, entries in change.splices for each in entries if each is not None), default=0)
        if highest > self.meta["entry"]:
            self._set(self.meta, "entry", highest)
        if not fits or (change.thread in self.unlisted and len(listed) != change.now.items):
            self._drop_list(DropList(change.thread))
            return
        self._set(self.unlisted, change.thread, _ABSENT)
        self._set(self.lists, change.thread, (change.now, listed))

    def _drop_list(self, change: DropList) -> None:
        self.wasted += change.thread in self.lists
        self._set(self.lists, change.thread, _ABSENT)
        self._set(self.marks, change.thread, None)
        self._set(self.unlisted, change.thread, None)

    def _set_meta(self, change: SetMeta) -> None:
        self._set(self.meta, change.name, change.value)

    # -- a batch ----------------------------------------------------------------------------------
    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Apply all of a batch, or raise and change nothing; return the numbers of its new threads."""
        try:
            self._check(batch)
        except (Stale, Vanished, MissingChunks):
            # The rows of a repeated batch exist already. That is a success.
            numbers = self._committed(batch)
            if numbers is None:
                raise
            return numbers
        return self._apply(batch)

    def _check(self, batch: Batch) -> None:
        """Raise `Stale`, `Vanished` or `MissingChunks` unless the tables meet all requirements of the batch."""
        for thread, seq in batch.newest:
            if self.last(thread) != seq:
                raise Stale
        if batch.visible or batch.show:
            self._check_there(batch)
        if batch.threads:
            self._check_threads(batch.threads)
        last = {-(at + 1): 0 for at in range(len(batch.threads))}
        for thread, row in batch.rows:
            before = last.get(thread, self.last(thread))
            if before is None or not (before < row.seq if batch.gaps else row.seq == before + 1):
                raise Stale
            last[thread] = row.seq
        if batch.touch:
            missing = frozenset(batch.touch) - self.chunks.keys() - {digest for digest, _ in batch.chunks}
            if missing:
                raise MissingChunks(missing)
        if batch.tags and not as_tagged(batch, lambda *row: self.tags.get(row, ())):
            raise Stale

    def _check_there(self, batch: Batch) -> None:
        for thread, seq in batch.visible:
            row = self.logs.get(thread, {}).get(seq)
            if row is None or row.hidden:
                raise Vanished(thread, seq)
        for thread, seq in batch.show:
            if seq not in self.logs.get(thread, {}):
                raise Vanished(thread, seq)

    def _check_threads(self, threads: Sequence[NewThread]) -> None:
        names = {(new.space, new.name) for new in threads}
        uids = {new.uid for new in threads}
        if min(len(names), len(uids)) < len(threads) or names & self.names.keys() or uids & self.uids.keys():
            raise Stale

    def _committed(self, batch: Batch) -> tuple[int, ...] | None:
        """Return the numbers of the batch's new threads if the same batch was committed before, else None."""
        if not batch.threads and not batch.rows:
            return None
        numbers = tuple(self.uids.get(new.uid, 0) for new in batch.threads)
        for no, new in zip(numbers, batch.threads, strict=True):
            if self.names.get((new.space, new.name)) != no:
                return None
        for thread, row in batch.rows:
            stored = self.logs.get(_number(thread, numbers), {}).get(row.seq)
            if stored is None or stored.op_id != row.op_id:
                return None
        return numbers

    def _apply(self, batch: Batch) -> tuple[int, ...]:
        last = self.last_thread()
        numbers = tuple(range(last + 1, last + 1 + len(batch.threads)))
        for no, new in zip(numbers, batch.threads, strict=True):
            self.do(PutThread(ThreadRecord(no, *new)))
        for thread, new in batch.renew:
            self._renew(_number(thread, numbers), new)
        for thread, row in batch.rows:
            no = _number(thread, numbers)
            self.do(PutRow(no, new_tuple(Row, (*row[:_PAYLOAD], None, row.hidden)), row.payload or b"", news=True))
        self.put(batch.chunks)
        epoch = self.meta["epoch"]
        old = tuple([digest for digest in batch.touch if self.chunks[digest][1] != epoch])
        if old:
            self.do(Stamp(epoch, old))
        if batch.hide or batch.show or batch.tag or batch.untag:
            self._notice(batch, numbers)
        for thread, seq in batch.untouch:
            no = _number(thread, numbers)
            if self.last(no) == seq:
                self.do(Touch(no, touched=False))
        return numbers

    def _renew(self, no: int, new: NewThread) -> None:
        if no in self.threads:
            renewed = self.threads[no]._replace(agent=new.agent, created_at=new.created_at, origin=new.origin)
            self.do(PutThread(renewed))
            self.do(Touch(no, touched=True))

    def _notice(self, batch: Batch, numbers: Sequence[int]) -> None:
        """Hide, show, tag and untag the rows of a batch; rows that do not exist are skipped."""
        marks = [(*pair, True) for pair in batch.hide] + [(*pair, False) for pair in batch.show]
        for thread, seq, hidden in marks:
            no = _number(thread, numbers)
            row = self.logs.get(no, {}).get(seq)
            if row is not None and row.hidden != hidden:
                self.do(Hide(no, seq, hidden))
        for thread, seq, tag in batch.tag:
            no = _number(thread, numbers)
            tags = self.tags.get((no, seq), ())
            if seq in self.logs.get(no, {}) and tag not in tags:
                self.do(SetTags(no, seq, (*tags, tag)))
        for thread, seq, tag in batch.untag:
            no = _number(thread, numbers)
            tags = self.tags.get((no, seq), ())
            if tag in tags:
                self.do(SetTags(no, seq, tuple(word for word in tags if word != tag)))

    # -- other writes -----------------------------------------------------------------------------
    def put(self, chunks: Sequence[tuple[bytes, bytes]]) -> None:
        """Put the absent chunks, and set the epoch of the others to the current epoch."""
        epoch = self.meta["epoch"]
        for digest, stored in chunks:
            known = self.chunks.get(digest)
            if known is None:
                self.do(PutChunk(digest, epoch, stored))
            elif known[1] != epoch:
                self.do(Stamp(epoch, (digest,)))

    def rewrite(self, thread: int, row: Row) -> bool:
        """Replace a row if it still has the same op_id; tell whether it was replaced. See `Maintenance.rewrite`."""
        stored = self.logs.get(thread, {}).get(row.seq)
        if stored is None or stored.op_id != row.op_id or (stored.base == stored.seq and row.base != row.seq):
            return False
        # The stored mark and, if the new row brings no payload, the stored payload stay.
        payload = self.payloads[thread, row.seq] if row.payload is None else row.payload
        self.do(PutRow(thread, row._replace(hidden=stored.hidden, payload=None), payload, news=False))
        return True

    def index(self, thread: int, now: IndexState, splices: Sequence[Splice]) -> None:
        """Change the index list of a thread, and remove the thread's mark if the list is up to date."""
        no = self.meta["entry"]
        numbered: list[tuple[int, int, tuple[Listed | None, ...]]] = []
        for splice in splices:
            entries: list[Listed | None] = []
            for entry in splice.entries:
                no += entry is not None
                entries.append(None if entry is None else _listed(no, entry))
            numbered.append((splice.at, splice.removed, tuple(entries)))
        self.do(PutList(thread, now, tuple(numbered)))
        if self.last(thread) == now.as_of and thread in self.marks:
            self.do(Mark(thread, marked=False))

    def forget(self) -> None:
        """Drop all index lists, and touch all threads of agents, so that both are rebuilt."""
        self.forget_lists()
        for no, record in self.threads.items():
            if record.agent is not None:
                self.do(Touch(no, touched=True))

    def forget_lists(self) -> None:
        """Drop all index lists, and mark all threads."""
        for no in self.threads.keys() | self.lists.keys():
            self.do(DropList(no))
        for no in self.marks.keys() - self.threads.keys():
            self.do(Mark(no, marked=False))

    # -- reading ----------------------------------------------------------------------------------
    def last_thread(self) -> int:
        """Return the highest thread number, 0 if there is no thread. A damaged log may lack lower numbers."""
        return next(reversed(self.threads), 0)

    def newest(self, thread: int) -> Row | None:
        """Return the newest row of a thread; None if it has no row, or does not exist."""
        log = self.logs.get(thread)
        return log[next(reversed(log))] if log else None

    def last(self, thread: int) -> int | None:
        """Return the seq of a thread's newest row; 0 if it has no row, None if it does not exist."""
        log = self.logs.get(thread)
        return None if log is None else next(reversed(log), 0)

    def between(self, thread: int, ranges: Iterable[tuple[int, int]]) -> list[Row]:
        """Return the rows whose seq lies in one of the ranges, in order of seq."""
        log = self.logs.get(thread, {})
        last = next(reversed(log), 0)
        clipped = [(low, min(high, last)) for low, high in merged(ranges) if low <= last]
        if sum(high - low + 1 for low, high in clipped) > len(log):  # there may be wide gaps
            lows = [low for low, _ in clipped]
            places = ((bisect_right(lows, seq) - 1, seq, row) for seq, row in log.items())
            return [row for at, seq, row in places if at >= 0 and seq <= clipped[at][1]]
        return [log[seq] for low, high in clipped for seq in range(low, high + 1) if seq in log]

    def payload_bytes(self) -> int:
        """Return the size of all payloads and chunks in bytes."""
        bodies = (*self.payloads.values(), *(body for body, _ in self.chunks.values()))
        return sum(map(size_of, bodies))

    def whole(self) -> Iterator[Change]:  # noqa: C901 - one for each table
        """Yield the changes that turn empty tables into a copy of this one."""
        for record in self.threads.values():
            yield PutThread(record)
        for no, log in self.logs.items():
            for seq, row in log.items():
                yield PutRow(no, row, self.payloads[no, seq], news=False)
        for (no, seq), tags in self.tags.items():
            yield SetTags(no, seq, tags)
        for digest, (body, epoch) in self.chunks.items():
            yield PutChunk(digest, epoch, body)
        for no, (now, listed) in self.lists.items():
            yield PutList(no, now, ((0, 0, tuple(listed)),))
        for touched in self.touched.values():
            for no in touched:
                yield Touch(no, touched=True)
        for no in self.marks:
            yield Mark(no, marked=True)
        for name, value in self.meta.items():
            yield SetMeta(name, value)

    def copy(self) -> Tables:
        """Return a copy that later changes do not affect."""
        copied = Tables()
        for name in ("threads", "names", "uids", "payloads", "chunks", "tags", "meta", "marks", "lists", "unlisted"):
            setattr(copied, name, dict(getattr(self, name)))
        for name in ("agents", "touched", "logs"):
            outer: Mapping[Any, dict[Any, Any]] = getattr(self, name)
            setattr(copied, name, {key: dict(inner) for key, inner in outer.items()})
        return copied

    # -- orphans ----------------------------------------------------------------------------------
    def orphans(self) -> list[str]:
        """Return a message for each kind of orphan: data of threads that a damaged log lost, threads without rows."""
        counts = {
            f"rows belong to no thread{REMOVED}": len(self.adrift),
            f"threads have no rows{REMOVED}": sum(not log for log in self.logs.values()),
            "tags belong to no checkpoint": sum(seq not in self.logs.get(no, ()) for no, seq in self.tags),
            "lists of the index belong to no thread": len(self.lists.keys() - self.threads.keys()),
            "marks of the index belong to no thread": len(self.marks.keys() - self.threads.keys()),
        }
        return [f"{count} {what}" for what, count in counts.items() if count]

    def drop_orphans(self) -> None:
        """Drop all orphans, without a journal: for a copy of the tables that is then written to new files."""
        for no in [no for no, log in self.logs.items() if not log]:
            record = self.threads.pop(no)
            del self.logs[no], self.names[record.space, record.name], self.uids[record.uid]
            for mapping in (self.agents, self.touched):
                mapping.get(record.agent or "", {}).pop(no, None)
        self.adrift.clear()
        self.tags = {key: tags for key, tags in self.tags.items() if key[1] in self.logs.get(key[0], ())}
        self.lists = {no: listed for no, listed in self.lists.items() if no in self.threads}
        self.marks = {no: None for no in self.marks if no in self.threads}


def _sort(mapping: dict[Any, Any]) -> None:
    """Sort the keys in place. Ctrl-C may interrupt the loop between two steps; no entry is missing then."""
    for key, value in sorted(mapping.items(), key=lambda entry: entry[0]):
        del mapping[key]
        mapping[key] = value


def _listed(no: int, entry: IndexEntry) -> Listed:
    return Listed(no, entry._replace(text=b""), entry.text, zlib.crc32(entry.text))


def _number(thread: int, created: Sequence[int]) -> int:
    """Return the number of a thread in a batch: -1, -2 ... are the threads that the batch created."""
    return created[-thread - 1] if -len(created) <= thread < 0 else thread
