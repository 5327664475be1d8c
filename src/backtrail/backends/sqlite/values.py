"""How rows are kept in SQLite's columns, and lists of values bound to statements.

A row's key is its thread's number and its seq in one integer. For the rest, see `columns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.backends.columns import MAX_SEQ, encoded
from backtrail.backends.port import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import apsw

_MAX_THREAD = (1 << 31) - 1

# The fields of a row as columns, but for seq, which is the low half of `key`, and the last two.
COLUMNS = ", ".join(f'"{field}"' for field in Row._fields[1:-2])

# Threads that have a head, with their newest row.
WITH_HEAD = f"""
    FROM thread JOIN row ON key = (SELECT max(key) FROM row WHERE key BETWEEN no << 32 AND no << 32 | {MAX_SEQ})
    WHERE head > 0"""  # noqa: S608 - a constant


def key_of(thread: int, seq: int) -> int:
    """Return the key of a row; -1, which no row has, for what cannot be there."""
    return thread << 32 | seq if 0 < thread <= _MAX_THREAD and 0 <= seq <= MAX_SEQ else -1


def as_parameters(key: int, row: Row) -> tuple[Any, ...]:
    """Return a row's fields as parameters ?1, ?2 ... in their order, the key in place of the seq."""
    if row.label is None:
        return (key, *row[1:])
    return (key, *row[1:12], encoded(row.label), *row[13:])


# `x IN (?, ?, ...)` for lists of any length: a list is cut into groups, each padded with NULLs to one of these sizes,
# so that there are few statements to compile and few to run.
_GROUP_SIZES = (8, 64, 512)


def for_groups(statement: str) -> dict[int, str]:
    """Return the statement, which ends in a column's name, as `select` wants it."""
    return {size: f"{statement} IN ({', '.join('?' * size)})" for size in _GROUP_SIZES}


def select(
    connection: apsw.Connection, statements: dict[int, str], values: Iterable[Any], *before: Any
) -> Iterator[tuple[Any, ...]]:
    """Return what the statement finds for any of the values; `before` are its other parameters."""
    wanted = list(values)
    for start in range(0, len(wanted), _GROUP_SIZES[-1]):
        group = wanted[start : start + _GROUP_SIZES[-1]]
        size = next(size for size in _GROUP_SIZES if size >= len(group))
        yield from connection.execute(statements[size], (*before, *group, *[None] * (size - len(group))))
