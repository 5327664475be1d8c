"""What is wrong with the file of a store in SQLite, and what of it can be mended in place.

Indexes are made from tables, so damage to an index is mended by making it anew. What belongs to nothing (a tag without
its row, rows without their thread, messages of no thread) cannot be reached by anybody, and is removed. Damage to the
pages of a table cannot be mended in place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import apsw

from backtrail.backends.columns import MAX_SEQ
from backtrail.backends.port import REMOVED
from backtrail.backends.sqlite import search
from backtrail.backends.sqlite.schema import run, strangers
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable

_LINES: Final = 20
"""So much of what is wrong is told."""
_STEPS: Final = 500_000
"""SQLite's steps between two signs of life."""
_INTEGRITY: Final = f"PRAGMA integrity_check({_LINES})"

# What there is, where it is, and the condition that makes it belong to nothing; tags last: they go with their rows.
_ASTRAY: Final = (
    (f"rows belong to no thread{REMOVED}", "row", "NOT EXISTS (SELECT 1 FROM thread WHERE no = key >> 32)"),
    (f"rows have no place in their thread{REMOVED}", "row", f"key & {MAX_SEQ} = 0"),
    (
        f"threads have no row{REMOVED}",
        "thread",
        f"NOT EXISTS (SELECT 1 FROM row WHERE key BETWEEN no << 32 | 1 AND no << 32 | {MAX_SEQ})",  # noqa: S608
    ),
    ("tags belong to no checkpoint", "tag", "NOT EXISTS (SELECT 1 FROM row WHERE key = thread << 32 | seq)"),
)
_ASTRAY_INDEXED: Final = (
    ("messages of the index belong to no thread", "message", "thread NOT IN (SELECT no FROM thread)"),
    ("lists of the index belong to no thread", "indexed", "thread NOT IN (SELECT no FROM thread)"),
    ("messages of the index belong to no list", "message", "thread NOT IN (SELECT thread FROM indexed)"),
)


def check(connection: apsw.Connection, path: str, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
    """Return what is wrong, in words."""
    count = 0

    def alive() -> bool:  # an exception from it ends the statement
        nonlocal count
        count += 1
        if progress:
            progress("file", count)
        return False

    connection.set_progress_handler(alive, _STEPS)
    try:
        found = [str(each) for each in strangers(connection, path)] + _unsound(connection)
        with suppress(apsw.CorruptError):  # that has been told
            found += [f"{number} {what}" for what, number in _astray(connection) if number]
    finally:
        connection.set_progress_handler(None)
    if progress:
        progress("file", count + 1)
    return tuple(found)


def _unsound(connection: apsw.Connection) -> list[str]:
    try:
        said = [str(line) for (line,) in connection.execute(_INTEGRITY)]
    except apsw.CorruptError as error:
        return [str(error)]
    return [] if said == ["ok"] else [line for text in said for line in text.splitlines()][:_LINES]


def _astray(connection: apsw.Connection) -> list[tuple[str, int]]:
    there = _ASTRAY + (_ASTRAY_INDEXED if search.is_there(connection) else ())
    return [
        (what, connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").get)  # noqa: S608 - constants
        for what, table, condition in there
    ]


def mend(connection: apsw.Connection, path: str) -> None:
    """Make all indexes anew and remove what belongs to nothing, in the transaction that is open; else `Corrupt`."""
    try:
        run(connection, "REINDEX")
        for _, table, condition in _ASTRAY:
            connection.execute(f"DELETE FROM {table} WHERE {condition}")  # noqa: S608 - constants
        if any(number for _, number in _astray(connection)) or _unsound(connection):
            search.forget(connection)
        left = _unsound(connection)
    except (apsw.CorruptError, apsw.ConstraintError) as error:
        left = [str(error)]
    if left:
        raise Corrupt(
            f"{path}: pages of its tables are damaged ({left[0]}), which cannot be mended in place, and nothing was "
            "changed: restore a backup; or export the threads that can be read, one by one, with export(path, "
            "threads=[id]), and import them into a new store",
            code="corrupt.store",
        )
