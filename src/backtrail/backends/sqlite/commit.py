"""One batch, one transaction: the only way into a store in SQLite.

What a batch requires is looked at inside the transaction that writes it, which is IMMEDIATE: nobody else writes in
between. A batch is recognised by the uids of its threads and the op_ids of its rows, so one that comes again after a
lost reply is a success, and one whose COMMIT failed halfway can be looked for.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import apsw

from backtrail.backends.columns import MAX_SEQ, encoded, text_of
from backtrail.backends.port import Batch, MissingChunks, NewThread, Row, Stale, Vanished, as_tagged
from backtrail.backends.sqlite.connection import roll_back, savepoint
from backtrail.backends.sqlite.values import COLUMNS, as_parameters, for_groups, key_of, select
from backtrail.errors import CommitUnknown

if TYPE_CHECKING:
    from collections.abc import Sequence

# The key of the newest row of the thread that ?1 belongs to; that of its row 0, which never exists, if it has no rows
# yet; NULL if there is no such thread.
_LAST_KEY = f"""
    coalesce((SELECT max(key) FROM row WHERE key BETWEEN ?1 & ~{MAX_SEQ} AND ?1 | {MAX_SEQ}),
             (SELECT no << 32 FROM thread WHERE no = ?1 >> 32))"""
_IS_NEWEST = f"SELECT {_LAST_KEY} = ?1"
_HIDDEN = "SELECT hidden FROM row WHERE key = ?"
_TAGS = "SELECT tag FROM tag WHERE thread = ? AND seq = ?"
# Unless the predecessor is the newest row, `op` becomes NULL, which the table refuses. INSERT ... SELECT ... WHERE
# would say the same, but since that reads the table it writes, SQLite goes through a temporary one, for 2 us in 10.
_INSERT_ROW = f"""
    INSERT INTO row (key, {COLUMNS}, payload, hidden)
    VALUES (?1, CASE WHEN {_LAST_KEY} = ?1 - 1 THEN ?2 END,
            {", ".join(f"?{at}" for at in range(3, 20))}, coalesce(?20, x''), ?21)"""
_INSERT_BEHIND = _INSERT_ROW.replace(f"{_LAST_KEY} = ?1 - 1", f"{_LAST_KEY} < ?1")
_IS_BEHIND = f"SELECT {_LAST_KEY} < ?1"
_INSERT_THREAD = """
    INSERT INTO thread (space, name, uid, agent, created_at, origin) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING RETURNING no"""
_RENEW = "UPDATE thread SET agent = ?2, created_at = ?3, origin = ?4 WHERE no = ?1 >> 32"
_EPOCH = "(SELECT value FROM meta WHERE name = 'epoch')"
PUT_CHUNK = f"""
    INSERT INTO chunk (digest, epoch, payload) VALUES (?, {_EPOCH}, ?)
    ON CONFLICT (digest) DO UPDATE SET epoch = excluded.epoch WHERE epoch < excluded.epoch"""
_EPOCHS = for_groups(f"SELECT digest, id, epoch < {_EPOCH} FROM chunk WHERE digest")
_TOUCH = f"UPDATE chunk SET epoch = {_EPOCH} WHERE id = ?"
_HIDE = "UPDATE row SET hidden = 1 WHERE key = ? AND hidden = 0"
_SHOW = "UPDATE row SET hidden = 0 WHERE key = ? AND hidden = 1"
_TAG = "INSERT INTO tag (thread, seq, tag) SELECT key >> 32, ?2, ?3 FROM row WHERE key = ?1 ON CONFLICT DO NOTHING"
_UNTAG = "DELETE FROM tag WHERE thread = ?1 >> 32 AND seq = ?2 AND tag = ?3"
_UNTOUCH = f"""
    DELETE FROM touched WHERE (agent, thread) = (SELECT agent, no FROM thread WHERE no = ?1 >> 32)
    AND {_LAST_KEY} = ?1"""
_SAME_THREAD = "SELECT no FROM thread WHERE space = ? AND name = ? AND uid = ?"
_OP_ID = "SELECT op_id FROM row WHERE key = ?"
_SETTLE = "UPDATE meta SET value = value + 1 WHERE name = 'settled'"


def commit(connection: apsw.Connection, batch: Batch) -> tuple[int, ...]:
    """Write the batch and return the numbers of its new threads, or write nothing and raise."""
    try:
        if _is_one_row(batch):
            return _append(connection, batch)
        connection.execute("BEGIN IMMEDIATE")
        _check(connection, batch)
        numbers = _write(connection, batch)
        _check_tags(connection, batch)
        end(connection, batch, "COMMIT")
    except (Stale, Vanished, MissingChunks):
        roll_back(connection)
        # A batch that is there already is refused by its own traces: that is a success.
        there = _committed(connection, batch)
        if there is None:
            raise
        return there
    return numbers


def taken(connection: apsw.Connection, batch: Batch) -> tuple[tuple[int, ...], bool]:
    """Write the batch as a part of the transaction that is open, or leave that as it is and raise.

    Returns the numbers of its new threads, and whether it is new itself.
    """
    try:
        if _is_one_row(batch):  # a statement is taken back alone, without a savepoint
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


def _is_one_row(batch: Batch) -> bool:
    return len(batch.rows) == 1 and not (
        batch.threads
        or batch.renew
        or batch.chunks
        or batch.touch
        or batch.visible
        or batch.newest
        or batch.tags
        or batch.hide
        or batch.show
        or batch.tag
        or batch.untag
        or batch.untouch
        or batch.gaps
    )


def _append(connection: apsw.Connection, batch: Batch) -> tuple[int, ...]:
    """Write the batch that most are, a single row: one statement is a transaction by itself."""
    ((thread, row),) = batch.rows
    key = key_of(thread, row.seq)
    try:
        end(connection, batch, _INSERT_ROW, as_parameters(key, row))
    except apsw.ConstraintError as error:
        _refuse(connection, key, error)
    return ()


def _refuse(connection: apsw.Connection, key: int, error: apsw.ConstraintError, *, gaps: bool = False) -> NoReturn:
    """Tell a row whose turn it is not from one that the table does not take."""
    if connection.execute(_IS_BEHIND if gaps else _IS_NEWEST, (key if gaps else key - 1,)).get:
        raise error
    raise Stale from error


def _check(connection: apsw.Connection, batch: Batch) -> None:
    """Refuse the batch unless the rows that it points at are as it requires."""
    for thread, seq in batch.newest:
        if not connection.execute(_IS_NEWEST, (key_of(thread, seq),)).get:
            raise Stale
    for thread, seq in batch.visible:
        if connection.execute(_HIDDEN, (key_of(thread, seq),)).get != 0:
            raise Vanished(thread, seq)
    for thread, seq in batch.show:
        if connection.execute(_HIDDEN, (key_of(thread, seq),)).get is None:
            raise Vanished(thread, seq)


def _write(connection: apsw.Connection, batch: Batch) -> tuple[int, ...]:
    numbers = tuple(_create(connection, new) for new in batch.threads)
    for thread, new in batch.renew:
        values = (_key(thread, 0, numbers), encoded(new.agent), new.created_at, encoded(new.origin))
        connection.execute(_RENEW, values)
    for thread, row in batch.rows:
        _insert(connection, _key(thread, row.seq, numbers), row, gaps=batch.gaps)
    if batch.chunks:
        connection.executemany(PUT_CHUNK, batch.chunks)
    if batch.touch:
        _touch(connection, batch.touch)
    for thread, seq in batch.hide:
        connection.execute(_HIDE, (_key(thread, seq, numbers),))
    for thread, seq in batch.show:
        connection.execute(_SHOW, (_key(thread, seq, numbers),))
    for thread, seq, tag in batch.tag:
        connection.execute(_TAG, (_key(thread, seq, numbers), seq, encoded(tag)))
    for thread, seq, tag in batch.untag:
        connection.execute(_UNTAG, (_key(thread, seq, numbers), seq, encoded(tag)))
    for thread, seq in batch.untouch:
        connection.execute(_UNTOUCH, (_key(thread, seq, numbers),))
    return numbers


def _check_tags(connection: apsw.Connection, batch: Batch) -> None:
    if not as_tagged(batch, lambda *row: [text_of(tag) for (tag,) in connection.execute(_TAGS, row)]):
        raise Stale


def _insert(connection: apsw.Connection, key: int, row: Row, *, gaps: bool = False) -> None:
    try:
        connection.execute(_INSERT_BEHIND if gaps else _INSERT_ROW, as_parameters(key, row))
    except apsw.ConstraintError as error:
        _refuse(connection, key, error, gaps=gaps)


def _key(thread: int, seq: int, created: Sequence[int]) -> int:
    """Return the key of a row in a thread that a batch names: -1, -2 ... are those that it creates."""
    return key_of(created[-thread - 1] if -len(created) <= thread < 0 else thread, seq)


def _create(connection: apsw.Connection, new: NewThread) -> int:
    values = (new.space, encoded(new.name), new.uid, encoded(new.agent), new.created_at, encoded(new.origin))
    no = connection.execute(_INSERT_THREAD, values).get
    if no is None:
        raise Stale
    return int(no)


def _touch(connection: apsw.Connection, digests: Sequence[bytes]) -> None:
    found = {digest: (no, old) for digest, no, old in select(connection, _EPOCHS, digests)}
    missing = frozenset(digests) - found.keys()
    if missing:
        raise MissingChunks(missing)
    connection.executemany(_TOUCH, [(no,) for no, old in found.values() if old])


def _committed(connection: apsw.Connection, batch: Batch) -> tuple[int, ...] | None:
    """Return the numbers of the batch's threads if this very batch was committed before, else None."""
    if not batch.threads and not batch.rows:
        return None
    numbers: list[int] = []
    for new in batch.threads:
        no = connection.execute(_SAME_THREAD, (new.space, encoded(new.name), new.uid)).get
        if no is None:
            return None
        numbers.append(no)
    for thread, row in batch.rows:
        if connection.execute(_OP_ID, (_key(thread, row.seq, numbers),)).get != row.op_id:
            return None
    return tuple(numbers)


def end(connection: apsw.Connection, batch: Batch, statement: str, parameters: Sequence[object] | None = None) -> None:
    """Run the statement that makes the batch durable; return only if it did, raise CommitUnknown if nobody knows.

    When the WAL cannot be synced, SQLite reports an error and forgets the transaction, but its frames may have
    reached the disk: should the machine go down now, they count. Another transaction overwrites them; once that
    one is durable, the failed one is certainly absent.
    """
    try:
        connection.execute(statement, parameters)
    except apsw.IOError as failure:
        try:
            roll_back(connection)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SETTLE)
            there = _committed(connection, batch)
            connection.execute("COMMIT")
        except apsw.Error as error:
            raise CommitUnknown(
                f"the disk failed during a commit ({failure}), and again when asked what became of it ({error}): "
                "read again before you repeat it",
                code="commit_unknown.io",
            ) from failure
        if there is None:
            raise
