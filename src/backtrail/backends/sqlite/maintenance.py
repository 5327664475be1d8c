"""Upkeep of a store in SQLite: what is removed, stored anew, given back and counted."""

# ruff: noqa: S608 - what the statements are made of are constants of this package

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.columns import MAX_SEQ
from backtrail.backends.port import Row, Usage
from backtrail.backends.sqlite import heads, search
from backtrail.backends.sqlite.commit import PUT_CHUNK
from backtrail.backends.sqlite.connection import one_view, wait_for_others
from backtrail.backends.sqlite.schema import run
from backtrail.backends.sqlite.values import COLUMNS, WITH_HEAD, as_parameters, key_of
from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from backtrail.backends.sqlite.connection import Guard

_VACUUM_PAGES: Final = 64
_VACUUM_PAUSE: Final = 0.005
_TRUNCATE_WAIT: Final = 0.02

_NEXT_EPOCH = "UPDATE meta SET value = value + 1 WHERE name = 'epoch' RETURNING value"
_REMOVE_CHUNK = "DELETE FROM chunk WHERE digest = ? AND epoch < ? RETURNING length(payload)"
_REMOVE_ROW = f"""
    DELETE FROM row WHERE key = ?1 AND hidden = 1
    AND key < (SELECT max(key) FROM row WHERE key BETWEEN ?1 & ~{MAX_SEQ} AND ?1 | {MAX_SEQ})"""
_REMOVE_TAGS = "DELETE FROM tag WHERE thread = ? AND seq = ?"
# Whoever hid the row meanwhile is right, a row without a payload has none to give, and a base stays one.
_TAKE_OUT = f"""
    DELETE FROM row WHERE key = ?1 AND op_id = ?2 AND (base <> key & {MAX_SEQ} OR base = ?3)
    RETURNING hidden, payload"""
_PUT_BACK = f"INSERT INTO row (key, {COLUMNS}, payload, hidden) VALUES ({', '.join('?' * len(Row._fields))})"

_RECALL = "SELECT coalesce((SELECT value FROM meta WHERE name = ?), 0)"
_NOTE = "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"

_COUNT_THREADS = f"SELECT space, count(*) {WITH_HEAD} GROUP BY space"
_COUNT_CHECKPOINTS = """
    SELECT space, count(*), sum(size) FROM row JOIN thread ON no = key >> 32
    WHERE hidden = 0 AND length(root) > 0 GROUP BY space"""
_COUNT = """
    SELECT * FROM
    (SELECT count(*), coalesce(sum(length(payload)), 0) FROM row),
    (SELECT count(*), coalesce(sum(length(payload)), 0) FROM chunk),
    (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)"""


def next_epoch(connection: apsw.Connection) -> int:
    """Begin another epoch."""
    return int(connection.execute(_NEXT_EPOCH).get)


def remove_chunks(connection: apsw.Connection, digests: Sequence[bytes], before_epoch: int) -> int:
    """Remove chunks that nobody has put or touched since an epoch; return their bytes."""
    removed = connection.executemany(_REMOVE_CHUNK, [(digest, before_epoch) for digest in digests])
    return sum(size for (size,) in removed)


def remove_rows(connection: apsw.Connection, thread: int, seqs: Sequence[int]) -> int:
    """Remove hidden rows, with their tags; return how many."""
    gone = 0
    for seq in seqs:
        connection.execute(_REMOVE_ROW, (key_of(thread, seq),))
        if connection.changes():
            connection.execute(_REMOVE_TAGS, (thread, seq))
            gone += 1
    return gone


def rewrite(
    connection: apsw.Connection, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]]
) -> int:
    """Store rows in another form; return how many."""
    connection.executemany(PUT_CHUNK, chunks)
    # All are taken out before they are put back: an UPDATE would leave their pages as empty as they became.
    kept: list[tuple[Any, ...]] = []
    for row in rows:
        values = as_parameters(key_of(thread, row.seq), row)
        for hidden, payload in connection.execute(_TAKE_OUT, (values[0], row.op_id, row.base)).fetchall():
            kept.append((*values[:-2], payload if row.payload is None else row.payload, hidden))
    marked = search.is_marked(connection, thread)
    touched = heads.is_touched(connection, thread)
    connection.executemany(_PUT_BACK, kept)
    if not marked:  # these rows are not new
        search.unmark(connection, thread)
    if not touched:
        heads.untouch(connection, thread)
    return len(kept)


def reclaim(guard: Guard, busy_timeout: float, *, erase: bool) -> None:
    """Give free pages back in slices, letting others in between, and empty the WAL; or write all pages anew.

    When a page is split, SQLite leaves what has moved behind, in the gap between what is left: to be erased, too.
    """
    search.clean(guard)
    with guard as connection:
        guard.prepare()
        if erase:
            run(connection, "VACUUM")
        free = int(connection.pragma("freelist_count"))
    for _ in range(0, free, _VACUUM_PAGES):
        with guard as connection:
            run(connection, f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        time.sleep(_VACUUM_PAUSE)
    kept: object = 0
    for mode in ("PASSIVE", "TRUNCATE"):  # the first, which blocks nobody, leaves the second little to do
        with guard as connection:
            # Writers wait while it waits for those who read: not for an export, which may read for long.
            wait_for_others(connection, busy_timeout if erase else _TRUNCATE_WAIT)
            try:
                ((kept, *_),) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            finally:
                wait_for_others(connection, busy_timeout)
                if guard.log is not None:
                    guard.log.forget()
    if erase and kept:
        text = f"{guard.path}: others read it, so what was removed is still in its log: end that, and collect again"
        raise Unavailable(text, code="unavailable.locked")


def recall(connection: apsw.Connection, name: str) -> int:
    """Return what was noted under a name, 0 if nothing was."""
    return int(connection.execute(_RECALL, (name,)).get)


def note(connection: apsw.Connection, name: str, value: int) -> None:
    """Note a number under a name."""
    connection.execute(_NOTE, (name, value))


def usage(connection: apsw.Connection, path: str) -> Usage:
    """Count what is there."""
    with one_view(connection):
        threads = dict(iter(connection.execute(_COUNT_THREADS)))
        checkpoints: list[Any] = connection.execute(_COUNT_CHECKPOINTS).fetchall()
        rows, row_bytes, chunks, chunk_bytes, pages = connection.execute(_COUNT).get
        items = search.items(connection)
        entries, index_bytes = search.usage(connection)
    wal = Path(path + "-wal")
    return Usage(
        threads=threads,
        rows=rows,
        checkpoints={space: count for space, count, _ in checkpoints},
        logical_bytes={space: size for space, _, size in checkpoints},
        items=items,
        chunks=chunks,
        payload_bytes=row_bytes + chunk_bytes,
        stored_bytes=pages + (wal.stat().st_size if wal.exists() else 0),
        entries=entries,
        index_bytes=index_bytes,
    )
