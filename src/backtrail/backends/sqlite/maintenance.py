"""Maintenance of a SQLite store: remove, rewrite and count data, free space, check and repair damage.

Damaged indexes are rebuilt from their tables by REINDEX. Orphans (tags without their row, rows without their thread,
messages without a thread) cannot be reached by readers, and are removed. Damaged pages of a table cannot be repaired in
place.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from backtrail.backends.columns import as_usage
from backtrail.backends.sql.damage import INDEX_WITHOUT_OWNER, WITHOUT_OWNER
from backtrail.backends.sqlite import search
from backtrail.backends.sqlite.commit import key_of, row_columns
from backtrail.backends.sqlite.connection import one_view, wait_for_others
from backtrail.backends.sqlite.schema import planted_objects
from backtrail.backends.sqlite.statements import SQL, run
from backtrail.errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backtrail.backends.port import Row, Usage
    from backtrail.backends.sqlite.connection import SharedConnection

_VACUUM_PAGES: Final = 64
_VACUUM_PAUSE: Final = 0.005
_TRUNCATE_WAIT: Final = 0.02
_LINES: Final = 20
"""The most lines of SQLite's integrity check that are returned."""
_STEPS: Final = 500_000
"""The number of SQLite's virtual machine steps between two calls of `progress`."""


def remove_chunks(connection: apsw.Connection, digests: Sequence[bytes], before_epoch: int) -> int:
    """Remove the given chunks whose epoch is below `before_epoch`; return the removed bytes."""
    removed = connection.executemany(SQL["remove_chunk"], [(digest, before_epoch) for digest in digests])
    return sum(size for (size,) in removed)


def remove_rows(connection: apsw.Connection, thread: int, seqs: Sequence[int]) -> int:
    """Remove the given rows that are hidden and not the newest, with their tags; return the number removed."""
    count = 0
    for seq in seqs:
        connection.execute(SQL["remove_row"], (key_of(thread, seq),))
        if connection.changes():
            connection.execute(SQL["remove_tags"], (thread, seq))
            count += 1
    return count


def rewrite(
    connection: apsw.Connection, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]]
) -> int:
    """Put the chunks and replace the rows, see `Maintenance.rewrite`; return the number replaced."""
    connection.executemany(SQL["put_chunk"], chunks)
    # Delete all rows before inserting them again: an UPDATE would leave partly empty pages behind.
    replacements: list[tuple[Any, ...]] = []
    for row in rows:
        values = row_columns(key_of(thread, row.seq), row)
        for hidden, payload in connection.execute(SQL["take_row_out"], (values[0], row.op_id, row.base)).fetchall():
            replacements.append((*values[:-2], payload if row.payload is None else row.payload, hidden))
    marked = connection.execute(SQL["is_marked"], (thread,)).get
    touched = connection.execute(SQL["is_touched"], (thread,)).get
    connection.executemany(SQL["put_row_back"], replacements)
    if not marked:  # triggers mark and touch the thread for each inserted row, but these rows are not new
        connection.execute(SQL["unmark"], (thread,))
    if not touched:
        connection.execute(SQL["untouch"], (thread,))
    connection.execute(SQL["activity_of"], (thread,))
    return len(replacements)


def reclaim(shared: SharedConnection, busy_timeout: float, *, erase: bool) -> None:
    """Return free pages to the file system in slices, with pauses for other writers, and empty the WAL.

    `erase` runs VACUUM first: when SQLite splits a page, copies of the moved rows stay in its gaps.
    """
    search.clean(shared)
    with shared.use() as connection:
        shared.prepare_write()
        if erase:
            run(connection, "VACUUM")
        free = int(connection.pragma("freelist_count"))
    for _ in range(0, free, _VACUUM_PAGES):
        with shared.use() as connection:
            run(connection, f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        time.sleep(_VACUUM_PAUSE)
    busy: object = 0
    for mode in ("PASSIVE", "TRUNCATE"):  # PASSIVE blocks no other process, and leaves little work for TRUNCATE
        with shared.use() as connection:
            # Writers wait while TRUNCATE waits for readers. So keep the wait short: an export may read for long.
            wait_for_others(connection, busy_timeout if erase else _TRUNCATE_WAIT)
            try:
                ((busy, *_),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            finally:
                wait_for_others(connection, busy_timeout)
                if shared.log is not None:
                    shared.log.forget()
    if erase and busy:
        raise Unavailable(
            f"{shared.path}: other connections are reading, so removed data is still in the log: close them, then "
            "run gc again",
            code="unavailable.locked",
        )


def usage(connection: apsw.Connection, path: str) -> Usage:
    """Return the counts and sizes of the stored data; `path` is the database file."""
    with one_view(connection):
        has_index = search.has_index(connection)
        threads: Any = connection.execute(SQL["count_threads"]).fetchall()
        checkpoints: Any = connection.execute(SQL["count_checkpoints"]).fetchall()
        items: Any = connection.execute(SQL["count_items"]).fetchall() if has_index else ()
        rows, row_bytes, chunks, chunk_bytes, pages = connection.execute(SQL["count_storage"]).get
        entries, *index_bytes = connection.execute(SQL["count_index"]).get if has_index else (0,)
    wal = Path(path + "-wal")
    return as_usage(
        threads,
        checkpoints,
        items,
        rows=(rows, row_bytes),
        chunks=(chunks, chunk_bytes),
        entries=(entries, sum(index_bytes)),
        stored=pages + (wal.stat().st_size if wal.exists() else 0),
    )


# -- damage -------------------------------------------------------------------------------------
def check(connection: apsw.Connection, path: str, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
    """Return a message for each damage of the file: planted triggers, integrity errors, orphans."""
    count = 0

    def alive() -> bool:  # an exception from `progress` ends the statement
        nonlocal count
        count += 1
        if progress:
            progress("file", count)
        return False

    connection.set_progress_handler(alive, _STEPS)
    try:
        damage = [str(each) for each in planted_objects(connection, path)] + _integrity_errors(connection)
        with suppress(apsw.CorruptError):  # the integrity check has reported it already
            damage += [f"{number} {words}" for words, number in _without_owner(connection) if number]
    finally:
        connection.set_progress_handler(None)
    if progress:
        progress("file", count + 1)
    return tuple(damage)


def _integrity_errors(connection: apsw.Connection) -> list[str]:
    try:
        lines = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check({_LINES})")]
    except apsw.CorruptError as error:
        return [str(error)]
    return [] if lines == ["ok"] else [line for text in lines for line in text.splitlines()][:_LINES]


def _without_owner(connection: apsw.Connection) -> list[tuple[str, int]]:
    """Return a message for each kind of orphan, with the number of orphans."""
    names = WITHOUT_OWNER | (INDEX_WITHOUT_OWNER if search.has_index(connection) else {})
    if connection.execute(SQL["has_activity"]).get:
        names |= {"threads_without_activity": "threads have a wrong time in the table for listings"}
    return [(words, connection.execute(f"SELECT count(*) {SQL[name]}").get) for name, words in names.items()]


def repair(connection: apsw.Connection, path: str) -> None:
    """Rebuild all indexes and remove orphans, in the open transaction. Raise `Corrupt` if damage remains."""
    try:
        run(connection, "REINDEX")
        for name in WITHOUT_OWNER:
            connection.execute(f"DELETE {SQL[name]}")
        connection.execute(SQL["activity_of"], (None,))
        if any(number for _, number in _without_owner(connection)) or _integrity_errors(connection):
            search.forget(connection)
        errors = _integrity_errors(connection)
    except (apsw.CorruptError, apsw.ConstraintError) as error:
        errors = [str(error)]
    if errors:
        raise Corrupt(
            f"{path}: pages of its tables are damaged ({errors[0]}), which cannot be repaired in place; nothing was "
            "changed: restore a backup; or export the readable threads one by one, with export(path, threads=[id]), "
            "and import them into a new store",
            code="corrupt.store",
        )
