"""How the port's values are kept in SQLite's columns, and lists of them bound to statements.

A row's key is its thread's number and its seq in one integer. Text that users choose is kept as bytes, since SQLite's
text ends at a NUL and knows no lone surrogates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.backends.port import Row, ThreadRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import apsw

MAX_SEQ = (1 << 32) - 1
_MAX_THREAD = (1 << 31) - 1

# The fields of a row as columns, but for seq, which is the low half of `key`, and the last two.
COLUMNS = ", ".join(f'"{field}"' for field in Row._fields[1:-2])


def key_of(thread: int, seq: int) -> int:
    """Return the key of a row; -1, which no row has, for what cannot be there."""
    return thread << 32 | seq if 0 < thread <= _MAX_THREAD and 0 <= seq <= MAX_SEQ else -1


def encoded(text: str | None) -> bytes | None:
    """Return text as it is stored: any str goes, and a prefix stays a prefix."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decoded(stored: bytes | None) -> str | None:
    """Return stored text as it was."""
    return None if stored is None else stored.decode("utf-8", "surrogatepass")


def as_row(values: Sequence[Any]) -> Row:
    """Return the row from its seq, COLUMNS, payload and hidden."""
    return Row._make((*values[:12], decoded(values[12]), *values[13:20], values[20] == 1))


def as_parameters(key: int, row: Row) -> tuple[Any, ...]:
    """Return a row's fields as parameters ?1, ?2 ... in their order, the key in place of the seq."""
    if row.label is None:
        return (key, *row[1:])
    return (key, *row[1:12], encoded(row.label), *row[13:])


def as_record(values: Sequence[Any]) -> ThreadRecord:
    """Return the thread from the columns of its table."""
    no, space, name, uid, agent, created_at, origin = values
    return ThreadRecord(no, space, decoded(name) or "", uid, decoded(agent), created_at, decoded(origin))


def above(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that begin with the prefix, None if nothing is."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same seqs as ascending ranges that do not overlap."""
    result: list[tuple[int, int]] = []
    for first, last in sorted((max(first, 1), min(last, MAX_SEQ)) for first, last in ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


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
