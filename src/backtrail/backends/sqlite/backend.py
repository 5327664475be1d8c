"""A store in one SQLite file.

Every call is one transaction, or one statement, on one connection that threads take in turn and processes share by
SQLite's own locks. With durability "full" a commit is on disk when it returns (WAL, synchronous=FULL); "relaxed" may
lose the last commits in a power cut, and never more than that.

The statements are constants: SQLite compiles each of them once for a connection. Values are bound, never spliced.
`sqlite_schema` opens the file, `sqlite_connection` guards the connection, `sqlite_commit` writes one batch and
`sqlite_group` several at once.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backtrail.atomic_file import PARTS, Access
from backtrail.backends.columns import MAX_SEQ, above, as_record, as_row, encoded, merged, text_of
from backtrail.backends.port import (
    Batch,
    Found,
    Indexed,
    Phrase,
    Row,
    Splice,
    Stand,
    ThreadRecord,
    Usage,
    written,
)
from backtrail.backends.sqlite import backup as sqlite_backup
from backtrail.backends.sqlite import check as sqlite_check
from backtrail.backends.sqlite import heads, maintenance, search
from backtrail.backends.sqlite.change_feed import INTERVAL, Mark, moved
from backtrail.backends.sqlite.commit import commit
from backtrail.backends.sqlite.connection import Guard, one_view, savepoint
from backtrail.backends.sqlite.group import Group
from backtrail.backends.sqlite.schema import open_store, put_right, run, strangers
from backtrail.backends.sqlite.values import COLUMNS, WITH_HEAD, for_groups, key_of, select
from backtrail.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import apsw

_SYNCHRONOUS = {"full": "FULL", "relaxed": "NORMAL"}
_MAX_TIMEOUT = 1_000_000.0

_THREAD = "no, space, name, uid, agent, thread.created_at, origin"
_BY_NAME = f"SELECT {_THREAD} FROM thread WHERE space = ? AND name = ?"
_BY_UID = f"SELECT {_THREAD} FROM thread WHERE uid = ?"
_BY_NUMBER = f"SELECT {_THREAD} FROM thread WHERE no = ?"
_NUMBERS = "SELECT no FROM thread WHERE no > ? ORDER BY no LIMIT ?"

_ROW = f"key & {MAX_SEQ}, {COLUMNS}"
_NEWEST = f"SELECT {_ROW}, NULL, hidden FROM row WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1"
_RANGE = {
    (payload, visible, newest_first): (
        f"SELECT {_ROW}, {'payload' if payload else 'NULL'}, hidden FROM row WHERE key BETWEEN ? AND ?"
        f"{' AND hidden = 0 AND length(root) > 0' if visible else ''}"
        f" ORDER BY key{' DESC' if newest_first else ''} LIMIT ?"
    )
    for payload in (False, True)
    for visible in (False, True)
    for newest_first in (False, True)
}
_COUNT = """
    SELECT count(*) FROM json_each(?) AS span CROSS JOIN row ON row.key BETWEEN span.value ->> 0 AND span.value ->> 1
    WHERE hidden = 0 AND length(row.root) > 0
"""
_LABELLED = f"SELECT key & {MAX_SEQ} FROM row WHERE key >> 32 = ? AND label = ? AND hidden = 0 ORDER BY key"

_THREADS = f"""
    SELECT {_THREAD}, {_ROW.replace('"created_at"', "row.created_at")}, NULL, hidden {WITH_HEAD}
    AND (?1 IS NULL OR space = ?1) AND (?2 IS NULL OR agent = ?2)
    AND (?3 IS NULL OR name >= ?3) AND (?4 IS NULL OR name < ?4)
    AND (?5 IS NULL OR (row.created_at, no) < (?5, ?6)) AND (?7 IS NULL OR substr(origin, 9) = ?7)
    ORDER BY row.created_at DESC, no DESC LIMIT ?8"""

_TAGS = "SELECT seq, tag FROM tag WHERE thread = ? ORDER BY seq, id"
_TAGS_OF = for_groups("SELECT seq, tag, id FROM tag WHERE thread = ? AND seq")
_TAGGED = """
    SELECT seq FROM tag JOIN row ON key = thread << 32 | seq
    WHERE thread = ? AND tag = ? AND hidden = 0 ORDER BY seq"""

_CHUNKS = for_groups("SELECT digest, payload FROM chunk WHERE digest")
_PRESENT = for_groups("SELECT digest FROM chunk WHERE digest")
_CHUNK_PAGE = "SELECT digest, epoch FROM chunk WHERE digest > ? ORDER BY digest LIMIT ?"


class _Grouped(threading.local):
    """The calling thread's open group."""

    group: Group | None = None
    told: set[int] | None = None
    """The threads that it wrote to, if somebody listens."""


class SqliteBackend:
    """The port on SQLite. `busy_timeout` bounds, in seconds, the wait for another thread's or process's turn."""

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
        if durability not in _SYNCHRONOUS:
            raise Invalid(f"durability is {durability!r}: say 'full' or 'relaxed'", code="invalid.option")
        if not 0 <= busy_timeout <= _MAX_TIMEOUT:
            raise Invalid(f"busy_timeout is {busy_timeout!r}: say how many seconds to wait", code="invalid.option")
        name = os.fspath(path)
        if not name or "\0" in name or name == ":memory:":
            raise Invalid(f"{name!r} is not the name of a file: name one", code="invalid.store")
        # SQLite keeps the WAL beside the file itself, not beside a link to it.
        self.path = os.path.realpath(name)
        self.read_only = read_only
        self._busy_timeout = busy_timeout
        connect = partial(
            open_store,
            self.path,
            synchronous=_SYNCHRONOUS[durability],
            read_only=read_only,
            busy_timeout=busy_timeout,
        )
        self._guard = Guard(self.path, busy_timeout, connect)
        self._grouped = _Grouped()
        self._listening: dict[object, Callable[[Collection[int]], None]] = {}

    # -- threads ------------------------------------------------------------------------------
    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        return self._one_thread(_BY_NAME, space, encoded(name))

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        return self._one_thread(_BY_UID, uid)

    def thread(self, no: int) -> ThreadRecord | None:
        return self._one_thread(_BY_NUMBER, no)

    def _one_thread(self, statement: str, *values: Any) -> ThreadRecord | None:
        with self._guard as connection:
            found = connection.execute(statement, values).fetchall()
        return as_record(found[0]) if found else None

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
        low = encoded(prefix or None)
        high = None if low is None else above(low)
        uid = None if origin is None else origin.hex().encode()
        values = (space, encoded(agent), low, high, *(after or (None, None)), uid, limit)
        with self._guard as connection:
            found = connection.execute(_THREADS, values).fetchall()
        return [(as_record(entry[:7]), as_row(entry[7:])) for entry in found]

    def standings(self, agent: str, *, touched: bool) -> list[Stand]:
        with self._guard as connection:
            return heads.standings(connection, agent, touched=touched)

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        with self._guard as connection:
            return [no for (no,) in connection.execute(_NUMBERS, (after, limit))]

    # -- rows ---------------------------------------------------------------------------------
    def newest(self, thread: int) -> Row | None:
        with self._guard as connection:
            found = connection.execute(_NEWEST, (key_of(thread, 0), key_of(thread, MAX_SEQ))).fetchall()
        return as_row(found[0]) if found else None

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
        statement = _RANGE[payload, visible, newest_first]
        spans = merged(ranges)
        if newest_first:
            spans.reverse()
        found: list[Row] = []
        with self._guard as connection:
            alone = len(spans) > 1 and not connection.in_transaction
            if alone:
                connection.execute("BEGIN")  # one view of them all
            for first, last in spans:
                rest = -1 if limit is None else limit - len(found)
                if rest == 0:
                    break
                values = (key_of(thread, first), key_of(thread, last), rest)
                found.extend(map(as_row, connection.execute(statement, values)))
            if alone:
                connection.execute("COMMIT")
        return found

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        spans = json.dumps([(key_of(thread, low), key_of(thread, high)) for low, high in merged(ranges)])
        with self._guard as connection:
            ((found,),) = connection.execute(_COUNT, (spans,))
        return int(found)

    def labelled(self, thread: int, label: str) -> list[int]:
        with self._guard as connection:
            return [seq for (seq,) in connection.execute(_LABELLED, (thread, encoded(label)))]

    # -- tags ---------------------------------------------------------------------------------
    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        with self._guard as connection:
            if seqs is None:
                found = list(connection.execute(_TAGS, (thread,)))
            else:
                found = sorted(select(connection, _TAGS_OF, seqs, thread), key=lambda entry: (entry[0], entry[2]))
        tags: dict[int, list[str]] = {}
        for seq, tag, *_ in found:
            tags.setdefault(seq, []).append(text_of(tag))
        return {seq: tuple(given) for seq, given in tags.items()}

    def tagged(self, thread: int, tag: str) -> list[int]:
        with self._guard as connection:
            return [seq for (seq,) in connection.execute(_TAGGED, (thread, encoded(tag)))]

    # -- chunks -------------------------------------------------------------------------------
    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._guard as connection:
            return dict(select(connection, _CHUNKS, digests))

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        with self._guard as connection:
            return {digest for (digest,) in select(connection, _PRESENT, digests)}

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        with self._guard as connection:
            return [(digest, epoch) for digest, epoch in connection.execute(_CHUNK_PAGE, (after, limit))]

    # -- the one way to write -------------------------------------------------------------------
    def commit(self, batch: Batch) -> tuple[int, ...]:
        self._refuse_if_read_only()
        group = self._grouped.group
        numbers: tuple[int, ...] = ()
        try:
            if group is not None:
                numbers = group.commit(batch)
            else:
                with self._guard as connection:
                    self._guard.prepare()
                    numbers = commit(connection, batch)
        finally:  # also if it failed: it may be there all the same
            if self._listening:
                self._tell(written(batch, numbers))
        return numbers

    @contextmanager
    def group(self) -> Iterator[None]:
        self._refuse_in_group()
        group = self._grouped.group = Group(self._guard)
        try:
            yield
        except BaseException:
            group.drop()
            raise
        else:
            group.end()
        finally:
            self._grouped.group = None
            told, self._grouped.told = self._grouped.told, None
            if told:
                self._tell(told)

    def _tell(self, numbers: set[int]) -> None:
        """Let those who listen know of a commit; in a group, when it has ended."""
        if self._grouped.group is not None:
            self._grouped.told = numbers | (self._grouped.told or set())
            return
        for wake in tuple(self._listening.values()):
            wake(numbers)

    # -- one moment -----------------------------------------------------------------------------
    @contextmanager
    def snapshot(self) -> Iterator[SqliteBackend]:
        self._refuse_in_group()
        self._guard.refuse_if_closed()
        view = SqliteBackend(self.path, read_only=True, busy_timeout=self._busy_timeout)
        try:
            self._guard.refuse_other(view._guard.file)
            with view._guard as connection:
                connection.execute("BEGIN")
                run(connection, "SELECT count(*) FROM meta")  # the first read says which moment it is
            yield view
        finally:
            view.close()

    def access(self) -> Access | None:
        with suppress(OSError):
            return Access.to(Path(self.path))
        return None

    def backup(self, path: Path, progress: Callable[[str, int], None] | None) -> int:
        with self.snapshot() as view, view._guard as connection:  # noqa: SLF001 - it is another of the same class
            return sqlite_backup.copy(connection, path, self.access(), progress)

    # -- hearing of commits ---------------------------------------------------------------------
    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        token = object()
        self._listening[token] = wake  # without a lock, which a forked child might inherit
        try:
            yield INTERVAL
        finally:
            del self._listening[token]

    def moved(
        self, mark: object | None, told: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        self._refuse_in_group()
        return moved(self._guard, mark if isinstance(mark, Mark) else None, told, others)

    def _refuse_in_group(self) -> None:
        if self._grouped.group is not None:
            raise Invalid("a group is open in this thread: end it first", code="invalid.transaction")

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise Unavailable(f"{self.path}: was opened read-only: open it for writing", code="unavailable.read_only")

    # -- the index ------------------------------------------------------------------------------
    def marked(self, after: int, limit: int) -> list[int]:
        with self._guard as connection:
            return search.marked(connection, after, limit)

    def indexed(self, thread: int) -> Indexed:
        with self._guard as connection:
            if self.read_only and not search.is_there(connection):
                return Indexed(0, 0, 0)
            return search.indexed(connection, thread)

    def index(self, thread: int, was: Indexed, now: Indexed, splices: Sequence[Splice]) -> bool:
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
    ) -> list[Found]:
        within = None if threads is None else json.dumps(list(threads))
        fitting = (space, encoded(agent), within, *(after or search.TOP), json.dumps(list(without)))
        with self._guard as connection, one_view(connection):
            return search.find(connection, phrases, fitting, limit)

    def forget_index(self) -> None:
        with self._transaction() as connection:
            search.forget(connection)

    # -- upkeep -------------------------------------------------------------------------------
    @contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        self._refuse_if_read_only()
        group = self._grouped.group
        if group is not None:
            with group.writing() as connection, savepoint(connection):
                yield connection
            return
        with self._guard as connection:
            self._guard.prepare()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def next_epoch(self) -> int:
        with self._transaction() as connection:
            return maintenance.next_epoch(connection)

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
        maintenance.reclaim(self._guard, self._busy_timeout, erase=erase)

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        self._refuse_in_group()
        with self.snapshot() as view, view._guard as connection:  # noqa: SLF001 - it is another of the same class
            return sqlite_check.check(connection, self.path, progress)

    def mend(self) -> None:
        self._refuse_if_read_only()
        self._refuse_in_group()
        with self._guard as connection:
            if self._guard.strange or strangers(connection, self.path):
                if self._guard.log is not None:
                    self._guard.log.prepare(connection)
                connection.execute("BEGIN IMMEDIATE")
                put_right(connection, self.path)
                connection.execute("COMMIT")
                self._guard.strange = ()
        with self._guard as connection:
            connection.execute("BEGIN IMMEDIATE")  # the log is not marked first: if this fails, nothing is written
            sqlite_check.mend(connection, self.path)
            connection.execute("COMMIT")

    def last_seq(self, thread: int) -> int:
        return self.indexed(thread).as_of

    def recall(self, name: str) -> int:
        with self._guard as connection:
            return maintenance.recall(connection, name)

    def note(self, name: str, value: int) -> None:
        with self._transaction() as connection:
            maintenance.note(connection, name, value)

    def usage(self) -> Usage:
        with self._guard as connection:
            return maintenance.usage(connection, self.path)

    def now(self) -> int:
        return time.time_ns() // 1000

    def close(self) -> None:
        """Release everything; closing twice is allowed."""
        self._refuse_in_group()
        self._guard.close()
