"""How the threads of an agent stand in SQLite, and which of them are touched.

`touched` names them by agent and number. Triggers fill it, so a statement that puts rows back where they were has to
take out again what it touched by that.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.backends.columns import MAX_SEQ, as_record, as_row, encoded
from backtrail.backends.port import Row, Stand

if TYPE_CHECKING:
    import apsw


def _bare(row: str) -> str:
    """Return the columns of a row (its name in a statement) in the order of its fields, without its payload."""
    columns = ", ".join(f'{row}."{field}"' for field in Row._fields[1:-2])
    return f"{row}.key & {MAX_SEQ}, {columns}, NULL, {row}.hidden"


_WIDTH = len(Row._fields)
# A CROSS JOIN is done in its order: first the threads that are wanted.
_STANDING = f"""
    CROSS JOIN row newest ON newest.key = (
        SELECT max(key) FROM row WHERE key BETWEEN no << 32 AND no << 32 | {MAX_SEQ})
    LEFT JOIN row head ON newest.head > 0 AND head.key = no << 32 | newest.head"""
_SELECT = f"""
    SELECT no, space, name, uid, thread.agent, thread.created_at, origin, {_bare("newest")}, {_bare("head")}"""
_TOUCHED = f"""
    {_SELECT} FROM touched CROSS JOIN thread ON no = touched.thread {_STANDING}
    WHERE touched.agent = ? ORDER BY touched.thread"""
_OF_AGENT = f"{_SELECT} FROM thread {_STANDING} WHERE thread.agent = ? ORDER BY no"

_IS_THERE = "SELECT count(*) FROM sqlite_schema WHERE name = 'touched'"
_IS_TOUCHED = "SELECT count(*) FROM touched JOIN thread USING (agent) WHERE no = ?1 AND thread = ?1"
_UNTOUCH = "DELETE FROM touched WHERE (agent, thread) = (SELECT agent, no FROM thread WHERE no = ?)"


def standings(connection: apsw.Connection, agent: str, *, touched: bool) -> list[Stand]:
    """Return how the threads of an agent stand. In a store of an older format, which is only read, all are touched."""
    statement = _TOUCHED if touched and connection.execute(_IS_THERE).get else _OF_AGENT
    return [_stand(*values) for values in connection.execute(statement, (encoded(agent),))]


def _stand(*values: Any) -> Stand:
    head = values[7 + _WIDTH :]
    return Stand(as_record(values[:7]), as_row(values[7 : 7 + _WIDTH]), None if head[0] is None else as_row(head))


def is_touched(connection: apsw.Connection, thread: int) -> bool:
    """Tell whether a thread is touched."""
    return bool(connection.execute(_IS_TOUCHED, (thread,)).get)


def untouch(connection: apsw.Connection, thread: int) -> None:
    """Make a thread touched no more, as a part of the transaction that is open."""
    connection.execute(_UNTOUCH, (thread,))
