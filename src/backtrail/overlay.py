"""A transaction: a `LogStore` that collects batches in memory on top of another store, and writes them as one batch.

Reads combine the store with the batches, so the transaction sees its own writes, and other readers do not. The
conditions of each batch are checked at once against the transaction, and again against the store at the end.

A bulk block is a transaction that is written in pieces: when it holds many rows, `flush` writes them as one batch, and
the overlay begins the next piece.
"""

# ruff: noqa: D102 - the port documents its methods

from __future__ import annotations

import threading
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.backends.defaults import matches, page, resolve, select, settle
from backtrail.backends.port import Batch, MissingChunks, Row, Stale, ThreadRecord, ThreadTip, Vanished, is_one_row
from backtrail.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from backtrail.backends.port import LogStore, NewThread

T = TypeVar("T")

_FIRST: Final = -(1 << 32)
"""The number of the first thread that a transaction creates; later threads count up. In a batch they are -1, -2 ..."""


PIECE_ROWS: Final = 1000
"""A bulk block writes a piece when it holds this many rows."""
PIECE_BYTES: Final = 8 * 1024 * 1024
"""A bulk block writes a piece when it holds this many bytes of payloads and chunks."""


class Overlay:
    """The writes of one transaction on top of the store `below`; of a `bulk` block, those of one piece."""

    def __init__(self, below: LogStore, *, bulk: bool = False) -> None:
        self._below = below
        self.bulk = bulk
        self.after_pieces: list[Callable[[], None]] = []
        """The actions to run after each commit: of the transaction, or of a piece."""
        self._first = _FIRST
        """The number of the first thread that the transaction, or the piece, creates."""
        self._parts = 0
        self._done = False
        self._failed: BaseException | None = None
        """Why a piece of a bulk block was not written: then the block cannot go on."""
        self.turn = threading.RLock()
        """The lock for callers that use one transaction from several Python threads."""
        self._begin()

    def _begin(self) -> None:
        """Begin the transaction, or the next piece: it has no writes yet."""
        self._created: list[NewThread] = []
        self._by_name: dict[tuple[str, str], int] = {}
        """The numbers of created threads, by name space and name."""
        self._by_uid: dict[bytes, int] = {}
        self._renewed: dict[int, NewThread] = {}
        self._rows: dict[int, list[Row]] = {}
        self._chunks: dict[bytes, bytes] = {}
        self._touched: set[bytes] = set()
        self._spare: dict[bytes, Callable[[], bytes]] = {}
        self._visible: set[tuple[int, int]] = set()
        self._newest: dict[int, int] = {}
        self._after: dict[int, bytes] = {}
        self._tagged: dict[tuple[int, int], tuple[str, ...]] = {}
        self._pinned: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._hidden: set[tuple[int, int]] = set()
        self._shown: set[tuple[int, int]] = set()
        self._tags: dict[tuple[int, int, str], bool] = {}
        self._pins: dict[tuple[int, int, bytes], bool] = {}
        self._untouched: dict[int, int] = {}
        self._gaps = False
        self._held_rows = self._held_bytes = 0
        self.known_tips: dict[Any, Any] = {}
        """The tips of threads after the transaction's last write to them, by the `Known` of the thread: hints."""
        self.after_commit: list[Callable[[], None]] = []
        self.after_drop: list[Callable[[], None]] = []

    @contextmanager
    def part(self) -> Iterator[None]:
        """Drop the writes of the block if the block raises an exception; earlier writes of the transaction stay."""
        before = {name: copy(value) for name, value in vars(self).items() if isinstance(value, list | dict | set)}
        before["_rows"] = {no: rows.copy() for no, rows in self._rows.items()}
        self._parts += 1
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise
        finally:
            self._parts -= 1

    # -- the end ------------------------------------------------------------------------------------

    def finish(self, *, commit: bool) -> dict[Any, Any]:
        """End the transaction: write all its changes as one batch, or drop them. Return the tips of written threads."""
        if self._failed is not None and commit:
            raise self._failed
        self._done = True
        if not commit:
            self._drop()
            return {}
        return self._settle()

    @property
    def is_full(self) -> bool:
        """Whether the overlay holds a piece of a bulk block that is to be written now."""
        full = self._held_rows >= PIECE_ROWS or self._held_bytes >= PIECE_BYTES
        return full and self.bulk and not self._parts

    def flush(self) -> dict[Any, Any]:
        """Write the piece of a bulk block, and begin the next one. Return the tips of written threads."""
        try:
            return self._settle()
        except BaseException as error:
            self._done, self._failed = True, error
            self._begin()  # what the block still reads is the store: the writes of the piece are gone
            raise

    def _settle(self) -> dict[Any, Any]:
        """Write all changes as one batch, then forget them; return the tips, with the real numbers of new threads."""
        changes = (self._rows, self._renewed, self._hidden, self._shown, self._tags, self._pins, self._untouched)
        numbers: tuple[int, ...] = ()
        if any(changes):
            try:
                numbers = self._write()
            except BaseException:
                self._drop()
                raise
        for action in (*self.after_pieces, *self.after_commit):
            action()
        tips = {known: self._real(tip, numbers) for known, tip in self.known_tips.items()}
        self._first += len(self._created)
        self._begin()
        return tips

    def _real(self, tip: Any, numbers: tuple[int, ...]) -> Any:
        record: ThreadRecord = tip.record
        if record.no >= 0:
            return tip
        return tip._replace(record=record._replace(no=numbers[record.no - self._first]))

    def _write(self) -> tuple[int, ...]:
        batch = Batch(
            threads=tuple(self._created),
            renew=tuple((self._in_batch(no), new) for no, new in self._renewed.items()),
            rows=tuple((self._in_batch(no), row) for no, rows in self._rows.items() for row in rows),
            gaps=self._gaps,
            chunks=tuple(self._chunks.items()),
            touch=tuple(self._touched - self._chunks.keys()),
            visible=tuple(self._visible),
            newest=tuple(self._newest.items()),
            tags=tuple((no, seq, tags) for (no, seq), tags in self._tagged.items()),
            pins=tuple((no, seq, holders) for (no, seq), holders in self._pinned.items()),
            hide=tuple((self._in_batch(no), seq) for no, seq in self._hidden),
            show=tuple(self._shown),
            tag=tuple((self._in_batch(no), seq, tag) for (no, seq, tag), there in self._tags.items() if there),
            untag=tuple((self._in_batch(no), seq, tag) for (no, seq, tag), there in self._tags.items() if not there),
            pin=tuple((self._in_batch(no), seq, holder) for (no, seq, holder), there in self._pins.items() if there),
            unpin=tuple((self._in_batch(no), seq, each) for (no, seq, each), there in self._pins.items() if not there),
            untouch=tuple((self._in_batch(no), seq) for no, seq in self._untouched.items()),
            after=tuple(self._after.items()),
        )
        while True:
            try:
                return self._below.commit(batch)
            except MissingChunks as error:
                missing = {digest: self._spare[digest] for digest in error.digests if digest in self._spare}
                if len(missing) < len(error.digests):
                    raise self._refused("garbage collection removed chunks that this transaction refers to") from error
                chunks = tuple((digest, stored()) for digest, stored in missing.items())
                touch = tuple(digest for digest in batch.touch if digest not in missing)
                batch = batch._replace(chunks=(*batch.chunks, *chunks), touch=touch)
            except (Stale, Vanished) as error:
                raise self._refused("another writer wrote to a thread of this transaction") from error

    def _refused(self, why: str) -> Conflict:
        if self.bulk:
            text = f"{why}: the last piece of this bulk block was not stored; earlier pieces were stored"
        else:
            text = f"{why}: nothing was written; run it again"
        return Conflict(text, code="conflict.transaction")

    def _in_batch(self, no: int) -> int:
        """Return the number of a thread in the transaction's batch: -1, -2 ... for threads that it creates."""
        return self._first - no - 1 if no < 0 else no

    def spare(self, chunks: Mapping[bytes, Callable[[], bytes]]) -> None:
        """Add functions that make the bytes of chunks that the store has, in case gc removes them before the end."""
        self._spare.update(chunks)

    def _drop(self) -> None:
        for action in reversed(self.after_drop):
            action()

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Add a batch to the transaction and return the numbers of its new threads.

        The conditions of the batch are checked against the store as the transaction sees it.
        """
        if self._failed is not None:
            raise self._failed
        if self._done:
            raise Unavailable("this transaction has ended", code="unavailable.closed")
        if is_one_row(batch) and self._append(*batch.rows[0]):
            return ()
        settled = settle(self, batch, self._is_taken)
        if settled is not None:
            return settled
        first = self._first + len(self._created)
        numbers = tuple(range(first, first + len(batch.threads)))
        own = resolve(batch, numbers)
        self._gaps |= batch.gaps
        for no, new in zip(numbers, batch.threads, strict=True):
            self._created.append(new)
            self._by_name[new.space, new.name] = self._by_uid[new.uid] = no
        self._renewed.update(own.renew)
        for no, op_id in batch.after:
            self._follow(no, op_id)
        for no, row in own.rows:
            self._hold(self._rows.setdefault(no, []), row)
        for digest, data in batch.chunks:
            self._held_bytes += len(data)
            self._chunks.setdefault(digest, data)
        self._touched.update(batch.touch)
        self._visible.update(pair for pair in batch.visible if pair not in self._shown and not self._own(*pair))
        for no, seq in batch.newest:
            self._require_newest(no, seq)
        self._tagged.update(((no, seq), tags) for no, seq, tags in batch.tags if not self._own(no, seq))
        self._pinned.update(((no, seq), holders) for no, seq, holders in batch.pins if not self._own(no, seq))
        self._mark(own)
        self._untouch(own)
        return numbers

    def _is_taken(self, new: NewThread) -> bool:
        """Tell whether the transaction has created a thread with this name or uid. The store is asked at the end."""
        return (new.space, new.name) in self._by_name or new.uid in self._by_uid

    def _append(self, no: int, row: Row) -> bool:
        """Add a row to a thread that the transaction has written to; False if it has not, or the row does not follow.

        Most writes of a transaction are like this, so they need no other checks.
        """
        rows = self._rows.get(no)
        if not rows or rows[-1].seq + 1 != row.seq:
            return False
        self._hold(rows, row)
        return True

    def _hold(self, rows: list[Row], row: Row) -> None:
        payload = row.payload or b""
        self._held_rows += 1
        self._held_bytes += len(payload)
        rows.append(row if row.payload is not None else row._replace(payload=payload))

    def _mark(self, batch: Batch) -> None:
        """Apply the rows that a batch hides, shows, tags and pins."""
        hidden = set(batch.hide)
        self._hidden |= hidden
        self._hidden.difference_update(batch.show)
        self._shown.update(pair for pair in batch.show if not self._own(*pair))
        self._shown -= hidden
        _remember(self._tags, batch.tag, batch.untag)
        _remember(self._pins, batch.pin, batch.unpin)

    def _untouch(self, batch: Batch) -> None:
        """Record the threads that a batch marks as untouched, each with the seq of its newest row."""
        for no, _ in batch.renew:
            self._untouched.pop(no, None)
        newest = self.newest_of([no for no, _ in batch.untouch]) if batch.untouch else {}
        for no, seq in batch.untouch:
            if no in newest and newest[no].seq == seq:
                self._untouched[no] = seq

    def rely_on(self, no: int, newest: Row) -> None:
        """Make the end of the transaction fail unless this row is still the newest row of the thread in the store.

        Callers use it if they made a decision by reading the thread.
        """
        self._follow(no, newest.op_id)
        self._require_newest(no, newest.seq)

    def _require_newest(self, no: int, seq: int) -> None:
        if no >= 0 and no not in self._rows:
            self._newest.setdefault(no, seq)

    def _follow(self, no: int, op_id: bytes) -> None:
        """Remember the newest row of a thread in the store, as the first write to the thread knew it."""
        if no >= 0 and no not in self._rows:
            self._after.setdefault(no, op_id)

    def overtaken(self) -> bool:
        """Tell whether another writer wrote to a thread of the transaction, so that its end would raise `Conflict`."""
        expected = {no: rows[0].seq - 1 for no, rows in self._rows.items() if no >= 0} | self._newest
        newest = self._below.newest_of(expected)
        return any(no not in newest or newest[no].seq != seq for no, seq in expected.items())

    def wrote(self, no: int) -> bool:
        """Tell whether the transaction has written rows to a thread."""
        return no in self._rows

    def _own(self, no: int, seq: int) -> bool:
        return any(row.seq == seq for row in self._rows.get(no, ()))

    # -- reading through ------------------------------------------------------------------------------

    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        no = self._by_name.get((space, name))
        return self._renew(self._below.find_thread(space, name)) if no is None else self.thread(no)

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        no = self._by_uid.get(uid)
        return self._renew(self._below.thread_with_uid(uid)) if no is None else self.thread(no)

    def thread(self, no: int) -> ThreadRecord | None:
        if no >= 0:
            return self._renew(self._below.thread(no))
        own = no - self._first
        return self._renew(ThreadRecord(no, *self._created[own])) if 0 <= own < len(self._created) else None

    def _renew(self, record: ThreadRecord | None) -> ThreadRecord | None:
        new = self._renewed.get(record.no) if record else None
        if record is None or new is None:
            return record
        return record._replace(agent=new.agent, created_at=new.created_at, origin=new.origin)

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
        filters: dict[str, Any] = {"space": space, "agent": agent, "prefix": prefix, "origin": origin}
        listed = [
            (record, newest)
            for no in self._rows
            if (record := self.thread(no))
            and (newest := self.newest(no))
            and newest.head
            and matches(record, **filters)
        ]
        others: list[tuple[ThreadRecord, Row]] = []
        last = after
        while len(others) < limit and (below := self._below.threads(**filters, after=last, limit=limit)):
            others += [pair for pair in below if pair[0].no not in self._rows]
            last = (below[-1][1].created_at, below[-1][0].no)
        return page([*listed, *others], after, limit)

    def tips(self, agent: str, *, touched: bool) -> list[ThreadTip]:
        tips = {tip.record.no: tip for tip in self._below.tips(agent, touched=touched)}
        own = self.newest_of(self._rows.keys() | self._renewed.keys())
        heads = self.rows_of([(no, newest.head, newest.head) for no, newest in own.items()])
        for no, newest in own.items():
            tips.pop(no, None)
            record = self.thread(no)
            if record is not None and record.agent == agent:
                tips[no] = ThreadTip(record, newest, heads.get((no, newest.head)))
        if touched:
            tips = {no: tip for no, tip in tips.items() if self._untouched.get(no) != tip.newest.seq}
        order = sorted(tips, key=lambda no: (no < 0, no))  # new threads will get the highest numbers
        return [
            ThreadTip(record, self._as_seen(no, newest), head and self._as_seen(no, head))
            for no, (record, newest, head) in ((no, tips[no]) for no in order)
        ]

    def _as_seen(self, no: int, row: Row) -> Row:
        if (no, row.seq) in self._hidden or (no, row.seq) in self._shown:
            return row._replace(hidden=(no, row.seq) in self._hidden)
        return row

    def threads_named(self, space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
        records = [*self._below.threads_named(space, names).values()]
        records += [ThreadRecord(self._first + at, *new) for at, new in enumerate(self._created) if new.space == space]
        wanted = set(names)
        return {record.name: self._renew(record) or record for record in records if record.name in wanted}

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        below = self._below.newest_of([no for no in threads if no >= 0 and no not in self._rows])
        return below | {no: self._rows[no][-1]._replace(payload=None) for no in threads if no in self._rows}

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        below = self._below.rows_of([span for span in spans if span[0] >= 0], payload=payload)
        rows = {
            (no, seq): row for (no, seq), row in below.items() if no not in self._rows or seq < self._rows[no][0].seq
        }
        for no, low, high in spans:
            own = select(self._rows.get(no, ()), [(low, high)], payload=payload)
            rows |= {(no, row.seq): row for row in own}
        return {(no, seq): self._as_seen(no, rows[no, seq]) for no, seq in sorted(rows)}

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        below = self._below.thread_numbers(after, limit) if after >= 0 else []
        own = range(self._first, self._first + len(self._created))  # last: they will get the highest numbers
        return [*below, *(no for no in own if after >= 0 or no > after)][:limit]

    def newest(self, thread: int) -> Row | None:
        rows = self._rows.get(thread)
        if rows:
            return rows[-1]._replace(payload=None)
        return self._below.newest(thread) if thread >= 0 else None

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
        shown = visible and not any(no == thread for no, _ in self._shown)
        below = self._below.rows(thread, ranges, payload=payload, visible=shown) if thread >= 0 else []
        written = self._rows.get(thread)
        if written:  # ignore rows that other writers have added since: the commit will raise Conflict
            below = [row for row in below if row.seq < written[0].seq]
        own = select(written or (), ranges, payload=payload)
        rows = [self._as_seen(thread, row) for row in (*below, *own)]
        if visible:
            rows = [row for row in rows if row.root and not row.hidden]
        return rows[:: -1 if newest_first else 1][:limit]

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        return len(self.rows(thread, ranges, visible=True))

    def labelled(self, thread: int, labels: Collection[str]) -> list[int]:
        below = self._below.labelled(thread, labels) if thread >= 0 else []
        own = [row.seq for row in self._rows.get(thread, ()) if row.label in labels]
        own += [row.seq for row in self._shown_rows(thread) if row.label in labels and row.seq not in below]
        return [seq for seq in sorted([*below, *own]) if (thread, seq) not in self._hidden]

    def _shown_rows(self, thread: int) -> list[Row]:
        """Return the rows of a thread that are hidden in the store and that the transaction shows again."""
        return self.rows(thread, [(seq, seq) for no, seq in self._shown if no == thread])

    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        wanted = None if seqs is None else set(seqs)
        return _changed(self._below.tags(thread, wanted) if thread >= 0 else {}, self._tags, thread, wanted)

    def pins(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
        wanted = None if seqs is None else set(seqs)
        return _changed(self._below.pins(thread, wanted) if thread >= 0 else {}, self._pins, thread, wanted)

    def tagged(self, thread: int, tag: str) -> list[int]:
        seqs = set(self._below.tagged(thread, tag)) if thread >= 0 else set()
        shown = [row.seq for row in self._shown_rows(thread)]
        seqs.update(seq for seq, words in self.tags(thread, shown).items() if tag in words)
        for (no, seq, word), there in self._tags.items():
            if no == thread and word == tag:
                (seqs.add if there else seqs.discard)(seq)
        return sorted(seq for seq in seqs if (thread, seq) not in self._hidden)

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        own = {digest: self._chunks[digest] for digest in digests if digest in self._chunks}
        rest = [digest for digest in digests if digest not in own]
        return {**own, **(self._below.chunks(rest) if rest else {})}

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        own = {digest for digest in digests if digest in self._chunks}
        rest = [digest for digest in digests if digest not in own]
        return own | (self._below.present(rest) if rest else set())

    def now(self) -> int:
        return self._below.now()


def _remember(
    marks: dict[tuple[int, int, T], bool], put: Iterable[tuple[int, int, T]], taken: Iterable[tuple[int, int, T]]
) -> None:
    """Record in `marks` the tags or pins that a batch adds to rows (True) and removes (False)."""
    for keys, there in ((put, True), (taken, False)):
        for key in keys:
            if marks.get(key) is not there:
                marks.pop(key, None)  # added again at the end: the order of the keys is the order of the tags
                marks[key] = there


def _changed(
    below: dict[int, tuple[T, ...]], marks: dict[tuple[int, int, T], bool], thread: int, wanted: set[int] | None
) -> dict[int, tuple[T, ...]]:
    """Return the tags or pins of a thread's rows, by seq: those of the store (`below`), changed by the transaction."""
    for (no, seq, mark), there in marks.items():
        if no == thread and (wanted is None or seq in wanted):
            others = below.get(seq, ())
            if there and mark not in others:
                below[seq] = (*others, mark)
            elif not there:
                below[seq] = tuple(other for other in others if other != mark)
    return {seq: each for seq, each in below.items() if each}
