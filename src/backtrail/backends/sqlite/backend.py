"""The SQLite backend: a store in one SQLite file.

Every call is one transaction, or one statement, on one connection. Threads take the connection in turn; SQLite's locks
keep processes apart. With durability "full" a commit is on disk when it returns (WAL, synchronous=FULL); "relaxed" may
lose the last commits in a power cut, and nothing else.

`schema` opens the file, `connection` guards the connection, `commit` writes batches and groups of batches.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from backtrail.atomic_file import PARTS, FileAccess
from backtrail.backends.columns import MAX_SEQ, as_row, encoded, merged, names_between
from backtrail.backends.port import (
    Batch,
    IndexHit,
    IndexState,
    Phrase,
    Row,
    Splice,
    ThreadRecord,
    Usage,
)
from backtrail.backends.sql.backend import SqlBackend
from backtrail.backends.sql.change_feed import FeedCursor
from backtrail.backends.sqlite import listing, maintenance, search
from backtrail.backends.sqlite.change_feed import INTERVAL, changed_since
from backtrail.backends.sqlite.commit import SqliteGroup, commit, key_of
from backtrail.backends.sqlite.connection import SharedConnection, savepoint
from backtrail.backends.sqlite.schema import open_store, planted_objects, restore_objects
from backtrail.backends.sqlite.snapshot import copy
from backtrail.backends.sqlite.statements import SQL, fetch, fetch_each
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import apsw

P = ParamSpec("P")
T = TypeVar("T")

_SYNCHRONOUS: Final = {"full": "FULL", "relaxed": "NORMAL"}
_MAX_TIMEOUT: Final = 1_000_000.0

_RANGE: Final = {
    (payload, visible, newest_first): (
        f"SELECT key & 4294967295, {SQL['fields']}, {'payload' if payload else 'NULL'}, hidden FROM row"  # noqa: S608
        f" WHERE key BETWEEN ? AND ?{' AND hidden = 0 AND length(root) > 0' if visible else ''}"
        f" ORDER BY key{' DESC' if newest_first else ''} LIMIT ?"
    )
    for payload in (False, True)
    for visible in (False, True)
    for newest_first in (False, True)
}


class SqliteBackend(SqlBackend[SqliteGroup]):
    """The backend for SQLite. `busy_timeout` is the longest wait for other threads and processes, in seconds."""

    shows_texts = False
    undoes_groups = False
    beside = PARTS

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "full",
        read_only: bool = False,
        busy_timeout: float = 10.0,
    ) -> None:
        self._check_durability(durability)
        if not 0 <= busy_timeout <= _MAX_TIMEOUT:
            raise Invalid(f"busy_timeout must be a number of seconds, not {busy_timeout!r}", code="invalid.option")
        name = os.fspath(path)
        if not name or "\0" in name or name == ":memory:":
            raise Invalid(f"{name!r} is not a valid file name", code="invalid.store")
        # SQLite keeps the WAL beside the file itself, not beside a link to it.
        self.path = os.path.realpath(name)
        super().__init__(self.path, read_only=read_only)
        self._busy_timeout = busy_timeout
        connect = partial(
            open_store,
            self.path,
            synchronous=_SYNCHRONOUS[durability],
            read_only=read_only,
            busy_timeout=busy_timeout,
        )
        self._shared = SharedConnection(self.path, busy_timeout, connect)

    # -- running statements -------------------------------------------------------------------
    def _run(self, work: Callable[Concatenate[apsw.Connection, P], T], *values: P.args, **options: P.kwargs) -> T:
        """Return `work(connection, ...)`, which only reads; run it in the open group if there is one."""
        group = self._calling.group
        return (self._shared if group is None else group).run(work, *values, **options)

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(fetch, statement, values)

    def _read_each(self, statement: str, keys: Sequence[Any], *values: Any) -> list[tuple[Any, ...]]:
        return self._run(fetch_each, statement, keys, *values)

    def _write(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._transaction() as connection:
            return fetch(connection, statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        self._refuse_if_read_only()
        group = self._calling.group
        if group is not None:
            with group.writing() as connection, savepoint(connection):
                yield connection
            return
        with self._shared.use() as connection:
            self._shared.prepare_write()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def _commit(self, batch: Batch) -> tuple[int, ...]:
        return self._shared.write(commit, batch)

    def _new_group(self) -> SqliteGroup:
        return SqliteGroup(self._shared)

    # -- threads and rows ---------------------------------------------------------------------
    def threads(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None = None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[ThreadRecord, Row]]:
        low, high = names_between(prefix)
        uid = None if origin is None else origin.hex().encode()
        if space is not None and (agent, low, uid) == (None, None, None):
            page = self._run(listing.most_active, space, after, limit)
            if page is not None:
                return page
        filters = {
            "thread.space = ?": space,
            "agent = ?": encoded(agent),
            "name >= ?": low,
            "name < ?": high,
            "substr(origin, 9) = ?": uid,
        }
        return self._run(listing.matching, filters, after, limit)

    def rows(
        self,
        thread: int,
        ranges: Sequence[tuple[int, int]],
        *,
        payload: bool = False,
        visible: bool = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Row]:
        spans = merged(ranges)
        if newest_first:
            spans.reverse()
        return self._run(_rows, _RANGE[payload, visible, newest_first], thread, spans, limit)

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        numbers = [no for no in threads if key_of(no, 0) > 0]
        rows = self._read("newest_rows_of", json.dumps(numbers)) if numbers else []
        return {no: as_row(values) for no, *values in rows}

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        keys = [(key_of(no, max(low, 1)), key_of(no, min(high, MAX_SEQ))) for no, low, high in sorted(spans)]
        valid = [span for span in keys if min(span) > 0]
        rows = self._read("whole_rows_of" if payload else "rows_of", json.dumps(valid)) if valid else []
        return {(no, values[0]): as_row(values) for no, *values in rows}

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        spans = [(key_of(thread, low), key_of(thread, high)) for low, high in merged(ranges)]
        return int(self._read("count", json.dumps(spans))[0][0])

    def last_seq(self, thread: int) -> int:
        return self.indexed(thread).as_of

    # -- one moment -----------------------------------------------------------------------------
    @contextmanager
    def snapshot(self) -> Iterator[SqliteBackend]:
        self._refuse_in_group()
        self._shared.refuse_if_closed()
        view = SqliteBackend(self.path, read_only=True, busy_timeout=self._busy_timeout)
        try:
            self._shared.refuse_other(view._shared.file)
            view._shared.begin_snapshot()
            yield view
        finally:
            view.close()

    def access(self) -> FileAccess | None:
        with suppress(OSError):
            return FileAccess.to(Path(self.path))
        return None

    def backup(self, path: Path, progress: Callable[[str, int], None] | None) -> int:
        with self.snapshot() as view, view._shared.use() as connection:  # noqa: SLF001 - it is of the same class
            return copy(connection, path, self.access(), progress)

    # -- the change feed ------------------------------------------------------------------------
    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        with self._listener(wake):
            yield INTERVAL

    def changed_since(
        self, mark: object | None, notified: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        self._refuse_in_group()
        return changed_since(self._shared, mark if isinstance(mark, FeedCursor) else None, notified, others)

    # -- the index ------------------------------------------------------------------------------
    def unindexed(self, after: int, limit: int) -> list[int]:
        self._run(search.refuse_if_missing)
        return super().unindexed(after, limit)

    def indexed(self, thread: int) -> IndexState:
        if self.read_only and not self._run(search.has_index):
            return IndexState(0, 0, 0)
        return super().indexed(thread)

    def index(self, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]) -> bool:
        with self._transaction() as connection:
            return search.index(connection, thread, was, now, splices)

    def find(
        self,
        phrases: Sequence[Phrase],
        *,
        space: str | None,
        agent: str | None,
        threads: Sequence[int] | None,
        without: Sequence[int] = (),
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[IndexHit]:
        within = None if threads is None else json.dumps(list(threads))
        filters = (space, encoded(agent), within, *(after or search.TOP), json.dumps(list(without)))
        return self._run(search.find, phrases, filters, limit)

    def clear_index(self) -> None:
        with self._transaction() as connection:
            search.forget(connection)

    # -- maintenance ----------------------------------------------------------------------------
    def next_epoch(self) -> int:
        return int(self._write("next_epoch")[0][0])

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        with self._transaction() as connection:
            return maintenance.remove_chunks(connection, digests, before_epoch)

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        with self._transaction() as connection:
            return maintenance.remove_rows(connection, thread, seqs)

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        with self._transaction() as connection:
            return maintenance.rewrite(connection, thread, rows, chunks)

    def reclaim(self, *, erase: bool = False) -> None:
        self._refuse_if_read_only()
        self._refuse_in_group()
        maintenance.reclaim(self._shared, self._busy_timeout, erase=erase)

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        with self.snapshot() as view, view._shared.use() as connection:  # noqa: SLF001 - it is of the same class
            return maintenance.check(connection, self.path, progress)

    def repair(self) -> None:
        self._refuse_if_read_only()
        self._refuse_in_group()
        with self._shared.use() as connection:
            if self._shared.planted or planted_objects(connection, self.path):
                if self._shared.log is not None:
                    self._shared.log.prepare(connection)
                connection.execute("BEGIN IMMEDIATE")
                restore_objects(connection, self.path)
                connection.execute("COMMIT")
                self._shared.planted = ()
        with self._shared.use() as connection:
            connection.execute("BEGIN IMMEDIATE")  # the log need not be marked first: if this fails, nothing is written
            maintenance.repair(connection, self.path)
            connection.execute("COMMIT")

    def usage(self) -> Usage:
        return self._run(maintenance.usage, self.path)

    def now(self) -> int:
        return time.time_ns() // 1000

    def close(self) -> None:
        """Release everything; closing twice is allowed."""
        self._refuse_in_group()
        self._shared.close()


def _rows(
    connection: apsw.Connection, statement: str, thread: int, spans: Sequence[tuple[int, int]], limit: int | None
) -> list[Row]:
    """Return up to `limit` rows of the spans, in the order of the spans, from one transaction."""
    rows: list[Row] = []
    alone = len(spans) > 1 and not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    for first, last in spans:
        rest = -1 if limit is None else limit - len(rows)
        if rest == 0:
            break
        rows.extend(map(as_row, connection.execute(statement, (key_of(thread, first), key_of(thread, last), rest))))
    if alone:
        connection.execute("COMMIT")
    return rows
