"""A transaction: a backend that keeps writes in memory on top of another one until they are written as one batch.

It reads through: what was written in the transaction is seen in it, and nowhere else. Whatever a write required of
the backend is required again, of the backend itself, when the transaction is written.
"""

# ruff: noqa: D102, ARG002 - the port says what its methods do and which arguments they have

from __future__ import annotations

import threading
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.port import Batch, MissingChunks, Row, Stale, Stand, ThreadRecord, Vanished, as_tagged
from backtrail.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from backtrail.backends.port import Backend, Found, Indexed, NewThread, Phrase, Splice, Usage

_FIRST: Final = -(1 << 32)
"""The number of the first thread that a transaction creates; the next ones are below. A batch's -1, -2 ... are not."""


class Overlay:
    """The writes of one transaction, as a backend: `port.Backend` says what each method does."""

    shows_texts = False
    undoes_groups = False
    read_only = False

    def __init__(self, below: Backend) -> None:
        self._below = below
        self._created: list[NewThread] = []
        self._renewed: dict[int, NewThread] = {}
        self._rows: dict[int, list[Row]] = {}
        self._chunks: dict[bytes, bytes] = {}
        self._touched: set[bytes] = set()
        self._spare: dict[bytes, Callable[[], bytes]] = {}
        self._visible: set[tuple[int, int]] = set()
        self._newest: dict[int, int] = {}
        self._tagged: dict[tuple[int, int], tuple[str, ...]] = {}
        self._hidden: set[tuple[int, int]] = set()
        self._shown: set[tuple[int, int]] = set()
        self._tags: dict[tuple[int, int, str], bool] = {}
        self._untouched: dict[int, int] = {}
        self._done = False
        self.turn = threading.RLock()
        """For whoever uses it from several threads."""
        self.after_commit: list[Callable[[], None]] = []
        self.after_drop: list[Callable[[], None]] = []
        self.expected: dict[object, Any] = {}
        """The heads that handles last read or wrote in this transaction."""

    @contextmanager
    def part(self) -> Iterator[None]:
        """Take back what a block wrote if it fails: whoever catches that may go on with the transaction."""
        before = {name: copy(held) for name, held in vars(self).items() if isinstance(held, list | dict | set)}
        before["_rows"] = {no: rows.copy() for no, rows in self._rows.items()}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    # -- the end ------------------------------------------------------------------------------------

    def finish(self, *, commit: bool) -> None:
        """Write everything as one batch, or drop it."""
        self._done = True
        if not commit:
            self._drop()
            return
        if self._rows or self._renewed or self._hidden or self._shown or self._tags or self._untouched:
            try:
                self._write()
            except BaseException:
                self._drop()
                raise
        for action in self.after_commit:
            action()

    def _write(self) -> None:
        batch = Batch(
            threads=tuple(self._created),
            renew=tuple((_in_batch(no), new) for no, new in self._renewed.items()),
            rows=tuple((_in_batch(no), row) for no, rows in self._rows.items() for row in rows),
            chunks=tuple(self._chunks.items()),
            touch=tuple(self._touched - self._chunks.keys()),
            visible=tuple(self._visible),
            newest=tuple(self._newest.items()),
            tags=tuple((no, seq, tags) for (no, seq), tags in self._tagged.items()),
            hide=tuple((_in_batch(no), seq) for no, seq in self._hidden),
            show=tuple(self._shown),
            tag=tuple((_in_batch(no), seq, tag) for (no, seq, tag), there in self._tags.items() if there),
            untag=tuple((_in_batch(no), seq, tag) for (no, seq, tag), there in self._tags.items() if not there),
            untouch=tuple((_in_batch(no), seq) for no, seq in self._untouched.items()),
        )
        while True:
            try:
                self._below.commit(batch)
            except MissingChunks as error:  # they were collected meanwhile
                missing = {digest: self._spare[digest] for digest in error.digests if digest in self._spare}
                if len(missing) < len(error.digests):
                    raise _refused("what it relied on was collected meanwhile") from error
                chunks = tuple((digest, stored()) for digest, stored in missing.items())
                touch = tuple(digest for digest in batch.touch if digest not in missing)
                batch = batch._replace(chunks=(*batch.chunks, *chunks), touch=touch)
            except (Stale, Vanished) as error:
                raise _refused("somebody else wrote to a thread of this transaction") from error
            else:
                return

    def spare(self, chunks: Mapping[bytes, Callable[[], bytes]]) -> None:
        """Take what makes chunks that a batch touches, in case that they are collected before the end."""
        self._spare.update(chunks)

    def _drop(self) -> None:
        for action in self.after_drop:
            action()

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Take a batch into the transaction, on the conditions that the backend would set."""
        if self._done:
            raise Unavailable("this transaction has ended", code="unavailable.closed")
        self._check(batch)
        numbers = tuple(_FIRST - len(self._created) - i for i in range(len(batch.threads)))

        def real(no: int) -> int:
            return numbers[-no - 1] if -len(numbers) <= no < 0 else no

        self._created += batch.threads
        self._renewed.update((real(no), new) for no, new in batch.renew)
        for no, row in batch.rows:
            self._rows.setdefault(real(no), []).append(row)
        self._chunks.update(batch.chunks)
        self._touched.update(batch.touch)
        self._visible.update(pair for pair in batch.visible if pair not in self._shown and not self._own(*pair))
        for no, seq in batch.newest:
            self.rely_on(no, seq)
        self._tagged.update(((no, seq), tags) for no, seq, tags in batch.tags if not self._own(no, seq))
        self._mark(batch, real)
        self._untouch(batch, real)
        return numbers

    def _mark(self, batch: Batch, real: Callable[[int], int]) -> None:
        """Hide, show, tag and untag."""
        hidden = {(real(no), seq) for no, seq in batch.hide}
        self._hidden |= hidden
        self._hidden.difference_update(batch.show)
        self._shown.update(pair for pair in batch.show if not self._own(*pair))
        self._shown -= hidden
        self._tags.update({(real(no), seq, tag): True for no, seq, tag in batch.tag})
        self._tags.update({(real(no), seq, tag): False for no, seq, tag in batch.untag})

    def _untouch(self, batch: Batch, real: Callable[[int], int]) -> None:
        """Note which threads are touched no more, as of which row. A newer row touches them again; so does renewing."""
        for no, _ in batch.renew:
            self._untouched.pop(real(no), None)
        for no, seq in batch.untouch:
            newest = self.newest(real(no))
            if newest is not None and newest.seq == seq:
                self._untouched[real(no)] = seq

    def _check(self, batch: Batch) -> None:
        if any(self.find_thread(new.space, new.name) for new in batch.threads):
            raise Stale
        expected: dict[int, int] = {}
        for no, row in batch.rows:
            if -len(batch.threads) <= no < 0:
                continue
            newest = self.newest(no)
            expected.setdefault(no, newest.seq if newest else 0)
            expected[no] += 1
            if row.seq != expected[no]:
                raise Stale
        for no, seq in batch.newest:
            newest = self.newest(no)
            if newest is None or newest.seq != seq:
                raise Stale
        if not as_tagged(batch, lambda no, seq: self.tags(no, [seq]).get(seq, ())):
            raise Stale
        self._check_there(batch)
        missing = frozenset(batch.touch) - self.present(batch.touch)
        if missing:
            raise MissingChunks(missing)

    def _check_there(self, batch: Batch) -> None:
        """Refuse the batch if rows that it points at are not there."""
        for pairs, hidden_ones in ((batch.visible, False), (batch.show, True)):
            for no, seq in pairs:
                if not any(hidden_ones or not row.hidden for row in self.rows(no, [(seq, seq)])):
                    raise Vanished(no, seq)

    def rely_on(self, no: int, seq: int) -> None:
        """Require, at the end, that a row is still the newest of a thread: something was decided on it."""
        if no >= 0 and no not in self._rows:
            self._newest.setdefault(no, seq)

    def overtaken(self) -> bool:
        """Tell whether somebody else wrote to a thread of the transaction, so that its end would be a `Conflict`."""
        expected = {no: rows[0].seq - 1 for no, rows in self._rows.items() if no >= 0} | self._newest
        found = ((self._below.newest(no), seq) for no, seq in expected.items())
        return any(newest is None or newest.seq != seq for newest, seq in found)

    def wrote(self, no: int) -> bool:
        """Tell whether the transaction has written to a thread."""
        return no in self._rows

    def _own(self, no: int, seq: int) -> bool:
        return any(row.seq == seq for row in self._rows.get(no, ()))

    # -- reading through ------------------------------------------------------------------------------

    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        for at, new in enumerate(self._created):
            if (new.space, new.name) == (space, name):
                return self._renew(ThreadRecord(_FIRST - at, *new))
        return self._renew(self._below.find_thread(space, name))

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        for at, new in enumerate(self._created):
            if new.uid == uid:
                return self._renew(ThreadRecord(_FIRST - at, *new))
        return self._renew(self._below.thread_with_uid(uid))

    def thread(self, no: int) -> ThreadRecord | None:
        return self._renew(ThreadRecord(no, *self._created[_FIRST - no]) if no < 0 else self._below.thread(no))

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
        listed: list[tuple[ThreadRecord, Row]] = []
        page_after: tuple[int, int] | None = None
        while page := self._below.threads(
            space=space, agent=agent, prefix=prefix, origin=origin, after=page_after, limit=1000
        ):
            listed += [(record, row) for record, row in page if record.no not in self._rows]
            page_after = (page[-1][1].created_at, page[-1][0].no)
        for no, rows in self._rows.items():
            record = self.thread(no)
            if record is not None and rows[-1].head and _matches(record, space, agent, prefix, origin):
                listed.append((record, rows[-1]))
        listed.sort(key=lambda pair: (pair[1].created_at, pair[0].no), reverse=True)
        return [pair for pair in listed if after is None or (pair[1].created_at, pair[0].no) < after][:limit]

    def standings(self, agent: str, *, touched: bool) -> list[Stand]:
        found = {stand.record.no: stand for stand in self._below.standings(agent, touched=touched)}
        for no in self._rows.keys() | self._renewed.keys():
            found.pop(no, None)
            record, newest = self.thread(no), self.newest(no)
            if record is not None and newest is not None and record.agent == agent:
                found[no] = Stand(record, newest, next(iter(self.rows(no, [(newest.head, newest.head)])), None))
        if touched:
            found = {no: stand for no, stand in found.items() if self._untouched.get(no) != stand.newest.seq}
        order = sorted(found, key=lambda no: (no < 0, abs(no)))  # those that are new will have the highest numbers
        return [
            Stand(record, self._seen(no, newest), head and self._seen(no, head))
            for no, (record, newest, head) in ((no, found[no]) for no in order)
        ]

    def _seen(self, no: int, row: Row) -> Row:
        if (no, row.seq) in self._hidden or (no, row.seq) in self._shown:
            return row._replace(hidden=(no, row.seq) in self._hidden)
        return row

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        below = self._below.thread_numbers(after, limit) if after >= 0 else []
        own = range(min(after - 1, _FIRST), _FIRST - len(self._created), -1)  # last: they will have the highest numbers
        return [*below, *own[: limit - len(below)]]

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
        if written:  # what others have written there meanwhile is not what this stands on: its end will be a Conflict
            below = [row for row in below if row.seq < written[0].seq]
        own = [row for row in written or () if any(low <= row.seq <= high for low, high in ranges)]
        found = [self._seen(thread, row) for row in [*below, *own]]
        if visible:
            found = [row for row in found if row.root and not row.hidden]
        if not payload:
            found = [row._replace(payload=None) for row in found]
        found.sort(key=lambda row: row.seq, reverse=newest_first)
        return found[:limit] if limit is not None else found

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        return len(self.rows(thread, ranges, visible=True))

    def labelled(self, thread: int, label: str) -> list[int]:
        below = self._below.labelled(thread, label) if thread >= 0 else []
        own = [row.seq for row in self._rows.get(thread, ()) if row.label == label]
        own += [row.seq for row in self._back(thread) if row.label == label and row.seq not in below]
        return [seq for seq in sorted([*below, *own]) if (thread, seq) not in self._hidden]

    def _back(self, thread: int) -> list[Row]:
        """Return the rows of a thread that the transaction shows again."""
        return self.rows(thread, [(seq, seq) for no, seq in self._shown if no == thread])

    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        wanted = None if seqs is None else set(seqs)
        found = self._below.tags(thread, wanted) if thread >= 0 else {}
        for (no, seq, tag), there in self._tags.items():
            if no == thread and (wanted is None or seq in wanted):
                others = tuple(word for word in found.get(seq, ()) if word != tag)
                found[seq] = (*others, tag) if there else others
        return {seq: words for seq, words in found.items() if words}

    def tagged(self, thread: int, tag: str) -> list[int]:
        seqs = set(self._below.tagged(thread, tag)) if thread >= 0 else set()
        back = [row.seq for row in self._back(thread)]
        seqs.update(seq for seq, words in self.tags(thread, back).items() if tag in words)
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

    # -- not in a transaction ---------------------------------------------------------------------------

    def group(self) -> AbstractContextManager[None]:
        raise _outside()

    def snapshot(self) -> AbstractContextManager[Backend]:
        raise _outside()

    def listen(self, wake: Callable[[Collection[int]], None]) -> AbstractContextManager[float]:
        raise _outside()

    def moved(
        self, mark: object | None, told: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        raise _outside()

    def marked(self, after: int, limit: int) -> list[int]:
        raise _outside()

    def indexed(self, thread: int) -> Indexed:
        raise _outside()

    def index(self, thread: int, was: Indexed, now: Indexed, splices: Sequence[Splice]) -> bool:
        raise _outside()

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
        raise _outside()

    def forget_index(self) -> None:
        raise _outside()

    def next_epoch(self) -> int:
        raise _outside()

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        raise _outside()

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        raise _outside()

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        raise _outside()

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        raise _outside()

    def reclaim(self, *, erase: bool = False) -> None:
        raise _outside()

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        raise _outside()

    def mend(self) -> None:
        raise _outside()

    def last_seq(self, thread: int) -> int:
        raise _outside()

    def recall(self, name: str) -> int:
        raise _outside()

    def note(self, name: str, value: int) -> None:
        raise _outside()

    def usage(self) -> Usage:
        raise _outside()

    def now(self) -> int:
        return self._below.now()

    def close(self) -> None:
        self._done = True


def _refused(why: str) -> Conflict:
    return Conflict(f"{why}; nothing of it was written: run it again", code="conflict.transaction")


def _in_batch(no: int) -> int:
    """Return the number by which the transaction's batch names a thread."""
    return no - _FIRST - 1 if no < 0 else no


def _matches(
    record: ThreadRecord, space: str | None, agent: str | None, prefix: str | None, origin: bytes | None
) -> bool:
    return (
        (space is None or record.space == space)
        and (agent is None or record.agent == agent)
        and (prefix is None or record.name.startswith(prefix))
        and (origin is None or (record.origin or "")[8:] == origin.hex())
    )


def _outside() -> Unavailable:
    return Unavailable("not inside a transaction; do it before or after", code="unavailable.transaction")
