"""Write batches, and groups of batches, to PostgreSQL.

A batch of a single row, the most common kind, is an UPDATE of its thread and an INSERT in one statement. The writer
that moves the thread's `newest` from seq - 1 to seq wins. A second writer waits for it, finds `newest` moved, and
writes nothing. All other batches are one call of the store's function `commit_1`, which checks all requirements before
it writes, or of `commit_2`, which also shows and untouches.

A batch that is too large for one message, or has gaps, is sent in pieces, in one transaction. So is a batch that
requires tags: it hides the rows first, and then compares the tags. The reason: a writer that tags a row locks it until
its commit, and a writer that hides the row waits for that lock. The statement that waited does not see the new tag, but
the next statement does.

A batch is recognised by the uids of its threads and the op_ids of its rows, so repeating it after a lost reply is a
success. If the first attempt is still running, the second waits for it: both update the same thread.

A server may lose rows that it has acknowledged (a failover to a standby without them), and other rows may get their
numbers. So after a lost connection, a write also requires the op_ids in `Batch.after`. And a batch that is found in the
store, because an earlier attempt got no reply, may have reached only this server. A transaction then writes a message
to the WAL: its COMMIT waits for the synchronous standbys, and so for everything before it.

A group is one transaction, which its first write begins. Each commit in it is accepted or refused separately: a refused
commit has written nothing, and a failed one is rolled back to a savepoint. If other writers hold a lock that it needs,
or the connection is lost, the whole group is rolled back: `Undone`. A group does not wait for locks: it locks several
threads in any order, so two groups could wait for each other. If COMMIT gets no reply, the transaction may still be
running. So every group holds an advisory lock with a random number: when another session gets that lock, the
transaction has ended.
"""

from __future__ import annotations

import itertools
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from backtrail.backends.columns import encoded, text_of
from backtrail.backends.port import Batch, MissingChunks, Row, Stale, Undone, Vanished, as_tagged, is_one_row
from backtrail.backends.postgres.errors import AGAIN, is_conflict, is_lost, is_single_write, translated
from backtrail.backends.postgres.session import refuse_if_forked
from backtrail.backends.sql.batch import number_of, thread_columns
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from backtrail.backends.postgres.pool import Pool
    from backtrail.backends.postgres.session import PgSession
    from backtrail.backends.postgres.statements import Statements

T = TypeVar("T")

PIECE: Final = 16 * 1024 * 1024
"""The approximate size of a message, in bytes."""
_MAX_VALUE: Final = (1 << 30) - 1024
"""The largest value that PostgreSQL accepts, in bytes."""
_LOCKED: Final = "55P03"
"""The SQLSTATE of a lock that another transaction holds."""

_LABEL: Final = Row._fields.index("label")
_PAYLOAD: Final = Row._fields.index("payload")
_WIDTH: Final = len(Row._fields)


class CommitWriter:
    """Writes batches and rewritten rows through a session."""

    def __init__(self, sql: Statements, pool: Pool, *, durable: bool) -> None:
        self._sql = sql
        self._pool = pool
        self._durable = durable

    def write(self, session: PgSession, batch: Batch, *, alone: bool) -> tuple[int, ...]:
        """Write the batch and return the numbers of its new threads, or write nothing and raise.

        `alone`: no transaction is open, so the batch gets its own.
        """
        compares = bool(self._pool.losses and batch.after)
        if is_one_row(batch):
            self._append_row(session, *batch.rows[0], batch.after[0][1] if compares else None)
            return ()
        if _weight(batch) <= PIECE and not batch.gaps and not batch.tags and not compares:
            numbers, already = self._write_piece(session, batch)
            if already:
                self.settle(session)
            return numbers
        if not alone:
            return self._write_steps(session, batch)
        session.script("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            numbers = self._write_steps(session, batch)
        except (Stale, Vanished, MissingChunks):
            session.script("ROLLBACK")
            raise
        session.script("COMMIT")
        return numbers

    def _write_steps(self, session: PgSession, batch: Batch) -> tuple[int, ...]:
        """Write a batch that takes more than one statement, in the open transaction; return its new thread numbers."""
        if self._pool.losses and batch.after and not self._follows(session, batch):
            committed = self._committed(session, batch)
            if committed is None:
                raise Stale
            self.settle(session)
            return committed
        if batch.gaps:
            numbers, already = self._write_sparse(session, batch)
        elif _weight(batch) > PIECE:
            numbers, already = self._write_pieces(session, batch)
        else:
            numbers, already = self._write_piece(session, batch)
        if already:
            self.settle(session)
        elif batch.tags:
            tags: dict[tuple[int, int], list[str]] = {}
            for no, seq, tag in session.run(self._sql["tags_of_rows"], _columns(batch.tags, 3)[:2]):
                tags.setdefault((no, seq), []).append(text_of(tag))
            if not as_tagged(batch, lambda *row: tags.get(row, ())):
                raise Stale
        return numbers

    def _follows(self, session: PgSession, batch: Batch) -> bool:
        """Lock the threads of `batch.after`, and tell whether their newest rows have these op_ids."""
        threads = [no for no, _ in batch.after]
        session.run(self._sql["lock_threads"], (threads,))
        stored = dict(session.run(self._sql["newest_op_ids"], (threads,)))
        return all(stored.get(no) == op_id for no, op_id in batch.after)

    def settle(self, session: PgSession) -> None:
        """Wait until all earlier commits are as durable as their own replies would have told."""
        session.run(self._sql["settle"])

    def _append_row(self, session: PgSession, thread: int, row: Row, after: bytes | None) -> None:
        _check_sizes((row.payload,))
        if after is None:
            count = session.count(self._sql["append_row"], (thread, *_values(row)))
        else:
            count = session.count(self._sql["append_row_after"], (thread, *_values(row), after))
        if not count:
            if not self.has_row(session, thread, row):
                raise Stale
            self.settle(session)

    def _append_rows(self, session: PgSession, rows: Sequence[tuple[int, Row]]) -> None:
        """Append rows to their threads; their seqs may leave gaps. `Stale` if a seq is not above the newest."""
        by_thread: dict[int, list[Row]] = {}
        for no, row in rows:
            by_thread.setdefault(no, []).append(row)
        for no, listed in by_thread.items():
            _check_sizes(row.payload for row in listed)
            if any(a.seq >= b.seq for a, b in itertools.pairwise(listed)):
                raise Stale
            place = (no, listed[0].seq, listed[-1].seq, listed[-1].created_at, listed[-1].head)
            columns = _columns([_values(row) for row in listed], _WIDTH)
            if not session.count(self._sql["append_rows_after_gap"], (*place, *columns)):
                raise Stale

    def has_row(self, session: PgSession, thread: int, row: Row) -> bool:
        """Tell whether the thread has this row, with the same op_id."""
        rows = session.run(self._sql["op_id"], (thread, row.seq))
        return bool(rows) and bool(rows[0][0] == row.op_id)

    def _write_piece(self, session: PgSession, batch: Batch) -> tuple[tuple[int, ...], bool]:
        """Write a small batch; return the numbers of its new threads, and whether it was committed before."""
        _check_sizes(itertools.chain((row.payload for _, row in batch.rows), (data for _, data in batch.chunks)))
        if batch.untouch or batch.show:
            more = (*_columns(batch.show, 2), *_columns(batch.untouch, 2))
            (answer,) = session.run(self._sql["commit_and_show"], (*self._arguments(batch), *more))
            if answer[0] == "vanished":  # commit_1 also recognises a batch that was committed before
                required = batch._replace(visible=(*batch.visible, answer[-2:]))
                (answer,) = session.run(self._sql["commit"], tuple(self._arguments(required)))
        else:
            (answer,) = session.run(self._sql["commit"], tuple(self._arguments(batch)))
        refused, already, numbers, missing, thread, seq = answer
        if refused == "stale":
            raise Stale
        if refused == "vanished":
            raise Vanished(thread, seq)
        if refused == "missing":
            raise MissingChunks(frozenset(missing))
        return tuple(numbers), bool(already)

    def _write_pieces(self, session: PgSession, batch: Batch) -> tuple[tuple[int, ...], bool]:
        """Write a large batch as several batches; the first has all requirements. Return as `_write_piece`."""
        for chunks in _pieces(batch.chunks, lambda chunk: len(chunk[1])):
            self.put(session, chunks)
        pieces = list(_pieces(batch.rows, lambda row: len(row[1].payload or b""))) or [[]]
        first = batch._replace(chunks=(), rows=tuple(pieces[0]), hide=(), show=(), tag=(), untag=(), untouch=())
        numbers, already = self._write_piece(session, first)
        if already:  # then all pieces were committed: they are one transaction
            return numbers, True
        for rows in pieces[1:]:
            self._write_piece(session, Batch(rows=tuple((number_of(no, numbers), row) for no, row in rows)))
        self._write_marks(session, batch, numbers)
        return numbers, False

    def _write_sparse(self, session: PgSession, batch: Batch) -> tuple[tuple[int, ...], bool]:
        """Write a batch with gaps: its requirements and threads first, then its rows, then the rest."""
        committed = self._committed(session, batch)
        if committed is not None:
            return committed, True
        first = batch._replace(rows=(), chunks=(), touch=(), hide=(), tag=(), untag=(), untouch=(), gaps=False)
        numbers, already = self._write_piece(session, first)
        if already:
            raise Stale  # another writer has created the threads, with other rows
        for rows in _pieces(batch.rows, lambda row: len(row[1].payload or b"")):
            self._append_rows(session, [(number_of(no, numbers), row) for no, row in rows])
        for chunks in _pieces(batch.chunks, lambda chunk: len(chunk[1])):
            self.put(session, chunks)
        self._write_marks(session, batch, numbers)
        return numbers, False

    def _committed(self, session: PgSession, batch: Batch) -> tuple[int, ...] | None:
        """Return the numbers of the batch's new threads if the same batch was committed before, else None."""
        if not batch.threads and not batch.rows:
            return None
        new_threads = [(new.space, encoded(new.name), new.uid) for new in batch.threads]
        numbers = (
            tuple(no for (no,) in session.run(self._sql["same_threads"], _columns(new_threads, 3)))
            if new_threads
            else ()
        )
        if len(numbers) < len(new_threads):
            return None
        rows = [(number_of(no, numbers), row.seq, row.op_id) for no, row in batch.rows]
        ((count,),) = session.run(self._sql["same_rows"], _columns(rows, 3))
        return numbers if count == len(rows) else None

    def _write_marks(self, session: PgSession, batch: Batch, numbers: Sequence[int]) -> None:
        touch = batch.touch if batch.gaps else ()
        if touch or batch.hide or batch.show or batch.tag or batch.untag or batch.untouch:
            marks = Batch(
                touch=touch,
                hide=tuple((number_of(no, numbers), seq) for no, seq in batch.hide),
                show=batch.show,
                tag=tuple((number_of(no, numbers), seq, tag) for no, seq, tag in batch.tag),
                untag=tuple((number_of(no, numbers), seq, tag) for no, seq, tag in batch.untag),
                untouch=tuple((number_of(no, numbers), seq) for no, seq in batch.untouch),
            )
            self._write_piece(session, marks)

    def put(self, session: PgSession, chunks: Sequence[tuple[bytes, bytes]]) -> None:
        """Put chunks in the open transaction."""
        _check_sizes(data for _, data in chunks)
        session.run(self._sql["put_chunks"], (*_columns(chunks, 2), ()))

    def rewrite(
        self,
        session: PgSession,
        thread: int,
        rows: Sequence[Row],
        chunks: Sequence[tuple[bytes, bytes]],
        *,
        alone: bool,
    ) -> int:
        """Put the chunks and replace the rows, see `Maintenance.rewrite`; return the number replaced."""
        large = sum(len(data) for _, data in chunks) > PIECE
        if large:
            if alone:
                session.script("BEGIN ISOLATION LEVEL READ COMMITTED")
            for piece in _pieces(chunks, lambda chunk: len(chunk[1])):
                self.put(session, piece)
        replaced = 0
        for piece in _pieces(rows, lambda row: len(row.payload or b"")):
            _check_sizes(row.payload for row in piece)
            values = _columns([_values(row, keep=True) for row in piece], _WIDTH)
            now = () if large else chunks
            ((count,),) = session.run(self._sql["rewrite"], (self._durable, thread, *values, *_columns(now, 2)))
            replaced += count
        if not rows and chunks and not large:
            self.put(session, chunks)
        if large and alone:
            session.script("COMMIT")
        return replaced

    def _arguments(self, batch: Batch) -> Iterator[Any]:
        yield self._durable
        yield from _columns([thread_columns(new) for new in batch.threads], 6)
        renew = [(no, encoded(new.agent), new.created_at, encoded(new.origin)) for no, new in batch.renew]
        yield from _columns(renew, 4)
        yield from _columns([(no, *_values(row)) for no, row in batch.rows], 1 + _WIDTH)
        yield from _columns(batch.chunks, 2)
        yield batch.touch
        yield from _columns(batch.visible, 2)
        yield from _columns(batch.newest, 2)
        yield from _columns(batch.hide, 2)
        for marks in (batch.tag, batch.untag):
            yield from _columns([(no, seq, encoded(tag)) for no, seq, tag in marks], 3)


def _values(row: Row, *, keep: bool = False) -> Sequence[Any]:
    """Return a row's fields as parameters. A payload of None becomes b"", unless `keep`."""
    if row.label is None and row.payload is not None:
        return row
    values = list(row)
    values[_LABEL] = encoded(row.label)
    if row.payload is None and not keep:
        values[_PAYLOAD] = b""
    return values


def _columns(records: Sequence[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    """Return a list of records as columns; `width` is the number of columns."""
    return list(zip(*records, strict=True)) if records else [()] * width


def _weight(batch: Batch) -> int:
    chunks = sum(len(data) for _, data in batch.chunks)
    return chunks + sum(len(row.payload or b"") + 300 for _, row in batch.rows)


def _pieces(items: Sequence[Any], size: Any) -> Iterator[list[Any]]:
    """Yield the items in lists of about `PIECE` bytes; `size` returns the bytes of an item."""
    piece: list[Any] = []
    weight = 0
    for item in items:
        if piece and weight + size(item) > PIECE:
            yield piece
            piece, weight = [], 0
        piece.append(item)
        weight += size(item) + 300
    if piece:
        yield piece


def _check_sizes(payloads: Iterable[bytes | None]) -> None:
    for payload in payloads:
        if payload is not None and len(payload) > _MAX_VALUE:
            raise Invalid(
                f"one value has {len(payload)} bytes, which is more than PostgreSQL can store: split it",
                code="invalid.size",
            )


class PostgresGroup:
    """The open group of one thread: a transaction that its first write begins."""

    def __init__(self, pool: Pool, writer: CommitWriter, sql: Statements) -> None:
        self._pool = pool
        self._writer = writer
        self._sql = sql
        self._session: PgSession | None = None
        self._lost: Exception | None = None
        self._lock = 0
        self._pid = os.getpid()
        self._last_row: tuple[int, Any] | None = None
        """(thread number, row) of the group's last row. If the store has this row, the group was committed."""

    def read(self, work: Callable[[PgSession], T]) -> T:
        """Return `work(session)`, which reads the store with the writes of the group."""
        if self._lost is not None:
            raise self._lost
        if self._session is None:
            return self._pool.do(work)
        refuse_if_forked(self._pid)
        try:
            return work(self._session)
        except psycopg.Error as error:
            raise self._lose(error) from error

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Write a batch in the group and return the numbers of its new threads, or raise and write nothing."""
        numbers = self.write(lambda session: self._writer.write(session, batch, alone=False), safe=is_one_row(batch))
        if batch.rows:
            thread, row = batch.rows[-1]
            self._last_row = number_of(thread, numbers), row
        return numbers

    def write(self, work: Callable[[PgSession], T], *, safe: bool = False) -> T:
        """Return `work(session)`, which writes, inside a savepoint.

        `safe` work needs no savepoint: if it raises, it has written nothing. An error other than a refusal makes the
        whole group fail.
        """
        if self._lost is not None:
            raise self._lost
        refuse_if_forked(self._pid)
        session = self._session or self._begin()
        try:
            if safe:
                return work(session)
            return self._part(session, work)
        except psycopg.Error as error:
            raise self._lose(error) from error

    def _part(self, session: PgSession, work: Callable[[PgSession], T]) -> T:
        while True:
            session.script("SAVEPOINT part")
            try:
                result = work(session)
            except psycopg.Error as error:
                if not is_single_write(error) and error.sqlstate != AGAIN:
                    raise
                session.script("ROLLBACK TO part; RELEASE part")
                if error.sqlstate != AGAIN:
                    raise translated(error, self._pool.where) from error
            except BaseException:
                if session.whole:
                    session.script("ROLLBACK TO part; RELEASE part")
                raise
            else:
                session.script("RELEASE part")
                return result

    def _begin(self) -> PgSession:
        self._lock = secrets.randbits(63)

        def begin(session: PgSession) -> None:
            # The timeout ends the transaction if this process dies without closing the connection.
            session.script(
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '20s';"
                # The group has locks that other writers wait for, so it must not wait for their locks.
                "SET LOCAL lock_timeout = '20ms';"
                f"SELECT pg_advisory_xact_lock({self._lock})"
            )

        self._session = self._pool.keep(begin)
        return self._session

    def _lose(self, error: psycopg.Error) -> Exception:
        """Roll back the group after an error, and return the exception to raise: `Undone` if a retry may succeed."""
        again = is_lost(error) or is_conflict(error) or error.sqlstate == _LOCKED
        self._lost = Undone(str(error)) if again else translated(error, self._pool.where)
        self._lost.__cause__ = error
        self.drop()
        return self._lost

    def end(self) -> None:
        """Make all commits durable. `CommitUnknown`: the outcome is unknown. Any other error: nothing is written."""
        if self._lost is not None:
            raise self._lost
        session = self._session
        if session is None:
            return
        refuse_if_forked(self._pid)
        try:
            session.script("COMMIT")
            self._pool.refuse_older(session)
        except psycopg.Error as error:
            no_reply = error.sqlstate is None
            lost = self._lose(error)
            if not no_reply or not self._was_committed(error):
                raise lost from error
        finally:
            self.drop()

    def _was_committed(self, doubt: psycopg.Error) -> bool:
        """Wait until the group's transaction is over, and tell whether it was committed."""

        def look(session: PgSession) -> bool:
            session.run(self._sql["wait_for_group"], (self._lock,))
            if self._last_row is None or not self._writer.has_row(session, *self._last_row):
                return False
            self._writer.settle(session)
            return True

        return self._pool.do(look, doubt=doubt)

    def drop(self) -> None:
        """Roll back the commits that are not durable yet, and give the session back to the pool."""
        session, self._session = self._session, None
        if session is None or self._pid != os.getpid():
            return
        if session.whole and not session.is_idle:
            with suppress(psycopg.Error):
                session.script("ROLLBACK")
        self._pool.give(session)
