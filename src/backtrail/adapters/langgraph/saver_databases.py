"""Databases of LangGraph's own savers: SQLite files of SqliteSaver, and PostgreSQL databases of PostgresSaver.

Both give the ids of their threads, and of each thread its checkpoints and task writes, from one snapshot. Values are
decoded by the caller.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from langgraph.checkpoint.serde.types import TASKS

from backtrail.adapters.imports import Undecodable, sqlite_snapshot, text_of
from backtrail.errors import Invalid, NotFound, Unavailable
from backtrail.urls import in_postgres, shown

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from backtrail.adapters.imports import SqliteSnapshot
    from backtrail.adapters.langgraph.decoder import SaverDecoder

Decode = Callable[["SaverDecoder"], Any]


class CheckpointData(NamedTuple):
    """A checkpoint of a database, not yet decoded."""

    ns: str
    id: str
    parent: str | None
    metadata: Any
    decode: Decode


class WriteData(NamedTuple):
    """A task write of a database, not yet decoded."""

    ns: str
    checkpoint_id: str
    task_id: str
    path: str
    channel: str
    kind: Any
    data: Any


class SaverDatabase(Protocol):
    """A snapshot of a saver's database."""

    def threads(self) -> Iterator[tuple[str, Undecodable | None]]:
        """Give the ids of the threads, each with the problem of an id that is damaged."""

    def ids(self, thread_id: str) -> dict[str, set[str]]:
        """Return the ids of a thread's checkpoints, by namespace."""

    def checkpoints(self, thread_id: str) -> Iterator[CheckpointData]:
        """Give the checkpoints of a thread in the order of their ids, which is LangGraph's own order."""

    def writes(self, thread_id: str) -> Iterator[list[WriteData]]:
        """Give the task writes of a thread, grouped by checkpoint and task."""


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[SaverDatabase]:
    """Open a snapshot of a file, or of the database of a URL."""
    if isinstance(path, str) and in_postgres(path):
        with _postgres_snapshot(path) as cursor:
            yield _PostgresDatabase(path, cursor)
        return
    needed = {"checkpoints": {"thread_id", "checkpoint_ns", "metadata"}, "writes": {"task_id"}}
    with sqlite_snapshot(path, "a database of LangGraph's SqliteSaver", needed) as snapshot:
        yield _SqliteDatabase(snapshot)


def _grouped(writes: Iterator[WriteData]) -> Iterator[list[WriteData]]:
    for _, group in itertools.groupby(writes, key=lambda each: each[:3]):
        yield list(group)


# -- SQLite ----------------------------------------------------------------------------------------------------

_THREADS: Final = """
    SELECT CAST(thread_id AS BLOB), typeof(thread_id) FROM checkpoints
    UNION SELECT CAST(thread_id AS BLOB), typeof(thread_id) FROM writes ORDER BY 1"""
_IDS: Final = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?"
_CHECKPOINTS: Final = """
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata, type, checkpoint FROM checkpoints
    WHERE thread_id = ? ORDER BY checkpoint_id"""
_WRITES: Final = """
    SELECT checkpoint_ns, checkpoint_id, task_id, {path}, channel, type, value FROM writes
    WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id, task_id, idx"""


class _SqliteDatabase:
    """A snapshot of a SqliteSaver's database."""

    def __init__(self, snapshot: SqliteSnapshot) -> None:
        self._select = snapshot.select
        has_path = "task_path" in snapshot.columns("writes")  # older versions lack the column
        self._writes = _WRITES.format(path="task_path" if has_path else "''")

    def threads(self) -> Iterator[tuple[str, Undecodable | None]]:
        for name, kind in list(self._select(_THREADS)):
            try:
                yield name.decode(), None if kind == "text" else Undecodable(f"its id is damaged: it is a {kind}")
            except UnicodeDecodeError as error:
                yield repr(name), Undecodable(f"its id is damaged: {error}")

    def ids(self, thread_id: str) -> dict[str, set[str]]:
        ids: dict[str, set[str]] = {}
        for ns, name in self._select(_IDS, thread_id):
            ids.setdefault(text_of(ns), set()).add(text_of(name))
        return ids

    def checkpoints(self, thread_id: str) -> Iterator[CheckpointData]:
        for ns, name, parent, metadata, kind, data in self._select(_CHECKPOINTS, thread_id):
            decode = partial(_decoded, kind, data)
            yield CheckpointData(text_of(ns), text_of(name), text_of(parent) if parent else None, metadata, decode)

    def writes(self, thread_id: str) -> Iterator[list[WriteData]]:
        rows = self._select(self._writes, thread_id)
        return _grouped(WriteData(*map(text_of, row[:5]), *row[5:]) for row in rows)


def _decoded(kind: Any, data: Any, decoder: SaverDecoder) -> Any:
    return decoder.value(kind, data)


# -- PostgreSQL ------------------------------------------------------------------------------------------------

_PG_THREADS: Final = "SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM checkpoint_writes ORDER BY 1"
_PG_IDS: Final = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = %s"
_PG_CHECKPOINTS: Final = """
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata, checkpoint FROM checkpoints
    WHERE thread_id = %s ORDER BY checkpoint_id COLLATE "C" """
_PG_BLOBS: Final = """
    SELECT b.channel, b.type, b.blob FROM jsonb_each_text(%s::jsonb) AS v
    JOIN checkpoint_blobs b ON b.channel = v.key AND b.version = v.value
    WHERE b.thread_id = %s AND b.checkpoint_ns = %s AND b.type <> 'empty'"""
_PG_SENDS: Final = """
    SELECT type, blob FROM checkpoint_writes
    WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s AND channel = %s
    ORDER BY {path} COLLATE "C", task_id COLLATE "C", idx"""
_PG_WRITES: Final = """
    SELECT checkpoint_ns, checkpoint_id, task_id, {path}, channel, type, blob FROM checkpoint_writes
    WHERE thread_id = %s ORDER BY checkpoint_ns, checkpoint_id COLLATE "C", task_id COLLATE "C", idx"""
_PG_COLUMNS: Final = """
    SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
_PG_TABLES: Final = {
    "checkpoints": {"thread_id", "checkpoint_ns", "metadata"},
    "checkpoint_blobs": {"channel", "version", "blob"},
    "checkpoint_writes": {"task_id", "blob"},
}
_WITH_TASKS: Final = 4
"""Checkpoints from this version of their format on have their pending sends in a channel."""


class _PostgresDatabase:
    """A snapshot of a PostgresSaver's database."""

    def __init__(self, url: str, cursor: Any) -> None:
        self._url = url
        self._cursor = cursor
        columns = {table: {name for (name,) in self._select(_PG_COLUMNS, table)} for table in _PG_TABLES}
        if not all(needed <= columns[table] for table, needed in _PG_TABLES.items()):
            text = f"{shown(url)} is not a database of LangGraph's PostgresSaver: its tables are missing"
            raise Invalid(text, code="invalid.store")
        self._path = "task_path" if "task_path" in columns["checkpoint_writes"] else "''"

    def threads(self) -> Iterator[tuple[str, Undecodable | None]]:
        for (name,) in self._select(_PG_THREADS):
            yield name, None

    def ids(self, thread_id: str) -> dict[str, set[str]]:
        ids: dict[str, set[str]] = {}
        for ns, name in self._select(_PG_IDS, thread_id):
            ids.setdefault(ns, set()).add(name)
        return ids

    def checkpoints(self, thread_id: str) -> Iterator[CheckpointData]:
        for ns, name, parent, metadata, value in self._select(_PG_CHECKPOINTS, thread_id):
            decode = partial(self._decoded, thread_id, ns, parent, value)
            yield CheckpointData(ns, name, parent or None, metadata, decode)

    def writes(self, thread_id: str) -> Iterator[list[WriteData]]:
        return _grouped(WriteData(*row) for row in self._select(_PG_WRITES.format(path=self._path), thread_id))

    def _decoded(self, thread_id: str, ns: str, parent: str | None, value: Any, decoder: SaverDecoder) -> Any:
        """Return a checkpoint with the values of its channels, most of which are in another table."""
        from psycopg.types.json import Jsonb  # noqa: PLC0415 - only this import needs PostgreSQL

        if not isinstance(value, dict) or not isinstance(value.get("channel_versions"), dict):
            raise Undecodable("its data are damaged: they are not a checkpoint")
        versions = value["channel_versions"]
        values = dict(value.get("channel_values") or {})
        for channel, kind, blob in self._select(_PG_BLOBS, Jsonb(versions), thread_id, ns):
            values[channel] = decoder.value(kind, blob)
        made = {**value, "channel_values": values}
        if isinstance(value.get("v"), int) and value["v"] < _WITH_TASKS and parent and versions:
            sends = self._select(_PG_SENDS.format(path=self._path), thread_id, ns, parent, TASKS)
            pending = [decoder.value(kind, blob) for kind, blob in sends]
            if pending:
                values[TASKS] = pending
                made["channel_versions"] = {**versions, TASKS: max(versions.values())}
        return made

    def _select(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        import psycopg  # noqa: PLC0415 - as above

        try:
            rows: list[tuple[Any, ...]] = self._cursor.execute(statement, values).fetchall()
        except psycopg.Error as error:
            raise Unavailable(f"{shown(self._url)}: {error}", code="unavailable.postgresql") from error
        return rows


@contextmanager
def _postgres_snapshot(url: str) -> Iterator[Any]:
    try:
        import psycopg  # noqa: PLC0415 - as above
    except ImportError as error:
        text = f"reading PostgreSQL needs {error.name}, which is not installed: pip install 'backtrail[postgres]'"
        raise ImportError(text, name=error.name) from error
    try:
        connection = psycopg.connect(url, autocommit=True)
    except psycopg.OperationalError as error:
        raise NotFound(f"{shown(url)}: {error}", code="not_found.store") from error
    with connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        with connection.cursor() as cursor:
            yield cursor
