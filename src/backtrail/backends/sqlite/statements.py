"""The statements of `statements.sql`, and functions that run them.

SQLite compiles each statement once per connection. Values are bound as parameters, never inserted into the text.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.sql.statements import statements

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

SQL: Final = {name: section.text for name, section in statements(__package__, "statements.sql").items()}

_SIZES: Final = (8, 64, 512)
"""The lengths of key lists: a list is cut into parts, each padded with NULLs, so that few statements are compiled."""


def fetch(connection: apsw.Connection, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Run the named statement and return all its rows."""
    return connection.execute(SQL[statement], values).fetchall()


def fetch_each(connection: apsw.Connection, statement: str, keys: Iterable[Any], *values: Any) -> list[tuple[Any, ...]]:
    """Run the named statement, which ends in the name of a column, and return all rows whose column is in `keys`."""
    wanted = list(keys)
    rows: list[tuple[Any, ...]] = []
    for start in range(0, len(wanted), _SIZES[-1]):
        part = wanted[start : start + _SIZES[-1]]
        size = next(size for size in _SIZES if size >= len(part))
        rows += connection.execute(_padded(statement, size), (*values, *part, *[None] * (size - len(part))))
    return rows


@cache
def _padded(statement: str, size: int) -> str:
    return f"{SQL[statement]} IN ({', '.join('?' * size)})"


def run(connection: apsw.Connection, sql: str) -> None:
    """Run statements to their end; apsw alone would stop at the first row."""
    for _ in connection.execute(sql):
        pass
