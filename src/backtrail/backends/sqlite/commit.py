"""Write batches, and groups of batches, to SQLite.

The requirements of a batch are checked inside the transaction that writes it. It is IMMEDIATE, so no other process
writes in between. A batch is recognised by the uids of its threads and the op_ids of its rows: repeating it after a
lost reply is a success, and after a failed COMMIT the backend can find out whether it was written.

A group is one transaction, begun by its first write. From then to its end the group has the connection alone: other
threads wait, and never see half of the group. Each of its commits is accepted or refused by itself: a single row is one
statement, which SQLite undoes alone; a larger batch has a savepoint. When the disk fails, SQLite may have dropped the
whole transaction: then the group has failed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import apsw

from backtrail.backends.columns import MAX_SEQ, encoded, text_of
from backtrail.backends.port import (
    Batch,
    MissingChunks,
    NewThread,
    Row,
    Stale,
    Vanished,
    as_tagged,
    is_one_row,
)
from backtrail.backends.sql.batch import number_of, thread_columns
from backtrail.backends.sqlite.connection import roll_back, savepoint, translated
from backtrail.backends.sqlite.statements import SQL, fetch_each
from backtrail.errors import CommitUnknown, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from backtrail.backends.sqlite.connection import SharedConnection
    from backtrail.errors import Error

P = ParamSpec("P")
T = TypeVar("T")

_MAX_THREAD: Final = (1 << 31) - 1
_MANY_MOVES: Final = 8
_APPEND_ROW: Final = SQL["append_row"]


def key_of(thread: int, seq: int) -> int:
    """Return the key of a row, made of its thread number and seq; -1, which no row has, if either is out of range."""
    return thread << 32 | seq if 0 < thread <= _MAX_THREAD and 0 <= seq <= MAX_SEQ else -1


def row_columns(key: int, row: Row) -> tuple[Any, ...]:
    """Return a row's fields as the parameters ?1, ?2 ..., with the key in place of the seq."""
    if row.label is None:
        return (key,) + row[1:]  # noqa: RUF005 - in half the time
    return (key, *row[1:12], encoded(row.label), *row[13:])


# -- one batch ----------------------------------------------------------------------------------
def commit(cursor: apsw.Cursor, batch: Batch) -> tuple[int, ...]:
    """Write the batch and return the numbers of its new threads, or write nothing and raise."""
    connection = cursor.connection
    try:
        if is_one_row(batch):  # the most common kind: one statement is its own transaction
            ((thread, row),) = batch.rows
            key = key_of(thread, row.seq)
            try:
                end(cursor, batch, _APPEND_ROW, row_columns(key, row))
            except apsw.ConstraintError as error:
                _refuse(connection, key, error)
            return ()
        if _is_row_after(batch):
            _append_after(cursor, batch)
            return ()
        connection.execute("BEGIN IMMEDIATE")
        _check(connection, batch)
        numbers = _write(connection, batch)
        _check_tags(connection, batch)
        end(cursor, batch, "COMMIT")
    except (Stale, Vanished, MissingChunks):
        roll_back(connection)
        # A repeated batch is refused because its own rows exist: that is a success.
        there = _committed(connection, batch)
        if there is None:
            raise
        return there
    return numbers


def _is_row_after(batch: Batch) -> bool:
    """Tell whether the batch is a single row that requires one newest row, like a checkpoint of a run."""
    return len(batch.newest) == 1 and batch.newest[0][1] > 0 and is_one_row(batch._replace(newest=()))


def _append_after(cursor: apsw.Cursor, batch: Batch) -> None:
    ((thread, row),) = batch.rows
    (required,) = batch.newest
    key, required_key = key_of(thread, row.seq), key_of(*required)
    try:
        end(cursor, batch, SQL["append_row_if_newest"], (*row_columns(key, row), required_key))
    except apsw.ConstraintError as error:
        if not cursor.execute(SQL["is_newest"], (required_key,)).get:
            raise Stale from error
        _refuse(cursor.connection, key, error)


def _take(connection: apsw.Connection, batch: Batch) -> tuple[tuple[int, ...], bool]:
    """Write the batch in the open transaction, or leave the transaction unchanged and raise.

    Return the numbers of its new threads, and whether the batch was not committed before.
    """
    try:
        if is_one_row(batch):  # SQLite undoes a failed statement alone, without a savepoint
            ((thread, row),) = batch.rows
            _insert(connection, key_of(thread, row.seq), row)
            return (), True
        with savepoint(connection):
            _check(connection, batch)
            numbers = _write(connection, batch)
            _check_tags(connection, batch)
    except (Stale, Vanished, MissingChunks):
        there = _committed(connection, batch)
        if there is None:
            raise
        return there, False
    return numbers, True


def _refuse(connection: apsw.Connection, key: int, error: apsw.ConstraintError, *, gaps: bool = False) -> NoReturn:
    """Raise `Stale` if the row does not follow the newest row of its thread, else the constraint error."""
    if connection.execute(SQL["is_above_newest"] if gaps else SQL["is_newest"], (key if gaps else key - 1,)).get:
        raise error
    raise Stale from error


def _check(connection: apsw.Connection, batch: Batch) -> None:
    """Raise `Stale` or `Vanished` unless the rows meet `newest`, `visible` and `show` of the batch."""
    for thread, seq in batch.newest:
        if not connection.execute(SQL["is_newest"], (key_of(thread, seq),)).get:
            raise Stale
    pairs = (*batch.visible, *batch.show)
    hidden = dict(connection.execute(SQL["hidden"], (_listed(key_of(*pair) for pair in pairs),))) if pairs else {}
    for thread, seq in batch.visible:
        if hidden.get(key_of(thread, seq)) != 0:
            raise Vanished(thread, seq)
    for thread, seq in batch.show:
        if key_of(thread, seq) not in hidden:
            raise Vanished(thread, seq)


def _write(connection: apsw.Connection, batch: Batch) -> tuple[int, ...]:
    numbers = tuple(_create(connection, new) for new in batch.threads)
    if batch.renew:
        renewed = {_key(no, 0, numbers): (_hex(new.agent), new.created_at, _hex(new.origin)) for no, new in batch.renew}
        connection.execute(SQL["renew_threads"], (_listed((key, *values) for key, values in renewed.items()),))
    _insert_all(connection, [(_key(no, row.seq, numbers), row) for no, row in batch.rows], gaps=batch.gaps)
    if batch.chunks:
        connection.executemany(SQL["put_chunk"], batch.chunks)
    if batch.touch:
        _touch(connection, batch.touch)
    for statement, pairs in (("hide", batch.hide), ("show", batch.show)):
        if pairs:
            connection.execute(SQL[statement], (_listed(_key(*pair, numbers) for pair in pairs),))
    for statement, marks in (("tag", batch.tag), ("untag", batch.untag)):
        if marks:
            listed = _listed((_key(no, seq, numbers), _hex(tag)) for no, seq, tag in marks)
            connection.execute(SQL[statement], (listed,))
    if batch.untouch:
        connection.execute(SQL["untouch_if_newest"], (_listed(_key(*pair, numbers) for pair in batch.untouch),))
    return numbers


def _hex(text: str | None) -> str | None:
    stored = encoded(text)
    return None if stored is None else stored.hex()


def _listed(values: Iterable[object]) -> str:
    return json.dumps(list(values))


def _check_tags(connection: apsw.Connection, batch: Batch) -> None:
    if not as_tagged(batch, lambda *row: [text_of(tag) for (tag,) in connection.execute(SQL["tags_of_row"], row)]):
        raise Stale


def _insert(connection: apsw.Connection, key: int, row: Row, *, gaps: bool = False) -> None:
    try:
        connection.execute(SQL["append_row_after_gap"] if gaps else SQL["append_row"], row_columns(key, row))
    except apsw.ConstraintError as error:
        _refuse(connection, key, error, gaps=gaps)


def _insert_all(connection: apsw.Connection, rows: Sequence[tuple[int, Row]], *, gaps: bool) -> None:
    """Insert the rows of a batch. A restore moves many heads: those rows are inserted by one statement."""
    moves: list[tuple[int, Row]] = []
    if not gaps and len(rows) >= _MANY_MOVES:
        counts = Counter(key >> 32 for key, _ in rows)
        moves = [(key, row) for key, row in rows if not row.payload and row.label is None and counts[key >> 32] == 1]
    if len(moves) < _MANY_MOVES:
        moves = []
    else:
        listed = _listed((key, *(bytes.hex(v) if type(v) is bytes else v for v in row[1:])) for key, row in moves)
        try:
            connection.execute(SQL["append_moves"], (listed,))
        except apsw.ConstraintError as error:
            for key, _ in moves:
                if not connection.execute(SQL["is_newest"], (key - 1,)).get:
                    raise Stale from error
            raise
    together = {key for key, _ in moves}
    for key, row in rows:
        if key not in together:
            _insert(connection, key, row, gaps=gaps)


def _key(thread: int, seq: int, created: Sequence[int]) -> int:
    """Return the key of a row in a thread of a batch, which may be -1, -2 ..."""
    return key_of(number_of(thread, created), seq)


def _create(connection: apsw.Connection, new: NewThread) -> int:
    no = connection.execute(SQL["create_thread"], thread_columns(new)).get
    if no is None:
        raise Stale
    return int(no)


def _touch(connection: apsw.Connection, digests: Sequence[bytes]) -> None:
    chunks = {digest: (no, old) for digest, no, old in fetch_each(connection, "chunk_ages", digests)}
    missing = frozenset(digests) - chunks.keys()
    if missing:
        raise MissingChunks(missing)
    connection.executemany(SQL["touch_chunk"], [(no,) for no, old in chunks.values() if old])


def _committed(connection: apsw.Connection, batch: Batch) -> tuple[int, ...] | None:
    """Return the numbers of the batch's new threads if the same batch was committed before, else None."""
    if not batch.threads and not batch.rows:
        return None
    numbers: list[int] = []
    for new in batch.threads:
        no = connection.execute(SQL["same_thread"], (new.space, encoded(new.name), new.uid)).get
        if no is None:
            return None
        numbers.append(no)
    for thread, row in batch.rows:
        if connection.execute(SQL["op_id"], (_key(thread, row.seq, numbers),)).get != row.op_id:
            return None
    return tuple(numbers)


def end(cursor: apsw.Cursor, batch: Batch, statement: str, parameters: Sequence[object] | None = None) -> None:
    """Run the statement that makes the batch durable; raise if it is not, `CommitUnknown` if that is unknown.

    When the WAL cannot be synced, SQLite reports an error and forgets the transaction, but its frames may have
    reached the disk: after a crash of the machine they would count. Another transaction overwrites them; when that one
    is durable, the failed one is certainly absent.
    """
    try:
        cursor.execute(statement, parameters)
    except apsw.IOError as failure:
        connection = cursor.connection
        try:
            roll_back(connection)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(SQL["settle"])
            there = _committed(connection, batch)
            connection.execute("COMMIT")
        except apsw.Error as error:
            raise CommitUnknown(
                f"the disk failed during a commit ({failure}), and again when asked for its outcome ({error}): "
                "read again before you repeat it",
                code="commit_unknown.io",
            ) from failure
        if there is None:
            raise


# -- groups ---------------------------------------------------------------------------------------
# Errors of one write, which do not affect other writes of the group.
_ALONE = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)


class SqliteGroup:
    """The open group of one thread: a transaction that its first write begins."""

    def __init__(self, shared: SharedConnection) -> None:
        self._shared = shared
        self._use: AbstractContextManager[apsw.Connection] | None = None
        """Holds the connection from the first write on. An ExitStack would keep it for a while after Ctrl-C."""
        self._pid = os.getpid()
        self._connection: apsw.Connection | None = None
        self._lost: Error | None = None
        self._sign = Batch()
        """Evidence that the group was committed: its last row, or a thread that it created."""

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Write a batch in the group and return the numbers of its new threads, or raise and write nothing."""
        connection = self._usable()
        try:
            numbers, new = _take(connection, batch)
        except apsw.Error as error:
            raise self._failure(error) from error
        if new and batch.rows:
            thread, row = batch.rows[-1]
            self._sign = Batch(rows=((number_of(thread, numbers), row),))
        elif new and batch.threads and not self._sign.rows:
            self._sign = Batch(threads=batch.threads)
        return numbers

    @contextmanager
    def writing(self) -> Iterator[apsw.Connection]:
        """Yield the connection for a write; the first write begins the transaction."""
        connection = self._usable()
        try:
            yield connection
        except apsw.Error as error:
            raise self._failure(error) from error

    def _usable(self) -> apsw.Connection:
        """Return the connection for a write; the first write begins the transaction."""
        if self._lost is not None:
            raise self._lost
        self._refuse_if_forked()
        try:
            return self._connection or self._begin()
        except apsw.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: apsw.Error) -> Error:
        """Return the error of a failed write. Unless the write failed alone, the group is rolled back."""
        if isinstance(error, _ALONE) and self._connection is not None and self._connection.in_transaction:
            return translated(error, self._shared.path)
        return self._lose(translated(error, self._shared.path))

    def _begin(self) -> apsw.Connection:
        """Begin the transaction. If it is refused, the group has no connection: a write would be durable by itself."""
        use = self._shared.use()
        connection = use.__enter__()
        try:
            self._shared.prepare_write()
            connection.execute("BEGIN IMMEDIATE")
            self._use, self._connection = use, connection
        except BaseException:
            use.__exit__(None, None, None)
            raise
        return connection

    def run(self, work: Callable[Concatenate[apsw.Connection, P], T], *values: P.args, **options: P.kwargs) -> T:
        """Return `work(connection, ...)`, which reads the store with the writes of the group."""
        if self._connection is None:
            return self._shared.run(work, *values, **options)
        self._refuse_if_forked()
        try:
            return work(self._connection, *values, **options)
        except apsw.Error as error:
            raise translated(error, self._shared.path) from error

    def _lose(self, error: Error) -> Error:
        """Roll back the group after an error, and return the error."""
        self._lost = error
        if self._connection is not None:
            roll_back(self._connection)
        return error

    def end(self) -> None:
        """Make all commits durable. After `CommitUnknown` that is unknown; after other errors none of them happened."""
        try:
            if self._lost is not None:
                raise self._lost
            if self._connection is not None:
                self._refuse_if_forked()
                end(self._connection.cursor(), self._sign, "COMMIT")
        except apsw.Error as error:
            raise translated(error, self._shared.path) from error
        finally:
            self.drop()

    def drop(self) -> None:
        """Roll back the commits that are not durable yet, and release the connection."""
        connection, self._connection = self._connection, None
        use, self._use = self._use, None
        try:
            if connection is not None and self._pid == os.getpid():
                roll_back(connection)
        finally:
            if use is not None:
                use.__exit__(None, None, None)

    def _refuse_if_forked(self) -> None:
        """Refuse to use the connection of a parent process, which is in the middle of its transaction."""
        if self._pid != os.getpid():
            raise Unavailable(
                f"{self._shared.path}: this process was forked in the middle of a write, which is its parent's: "
                "begin it again",
                code="unavailable.forked",
            )
