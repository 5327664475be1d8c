"""Import of a database of LangGraph's SqliteSaver. A `BacktrailSaver` then returns what SqliteSaver returned.

The import reads one snapshot of the file and never writes to it. It imports a thread with all its namespaces,
checkpoints and writes, or skips it and reports the reason. A second import adds only what is new. Checkpoints keep the
times that LangGraph recorded; task writes get the times of their checkpoints.
"""

from __future__ import annotations

import datetime as dt
import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw
from langgraph.checkpoint.base import WRITES_IDX_MAP

from backtrail.adapters.langgraph.allowed_types import AllowedTypes
from backtrail.adapters.langgraph.config import GraphNamespace, label_of
from backtrail.adapters.langgraph.decoder import SaverDecoder, Undecodable, metadata_of
from backtrail.adapters.langgraph.headers import KEY, encode_header, read_header
from backtrail.adapters.langgraph.task_writes import GraphTask, save_writes, writes_on
from backtrail.adapters.row_writes import save_checkpoint
from backtrail.engine.reader import now
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.models import micros
from backtrail.validation import check_progress

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from backtrail import Store, Thread

_MAGIC: Final = b"SQLite format 3\0"
_BUSY_TIMEOUT: Final = 10_000
"""Milliseconds."""
_THREADS: Final = """
    SELECT CAST(thread_id AS BLOB), typeof(thread_id) FROM checkpoints
    UNION SELECT CAST(thread_id AS BLOB), typeof(thread_id) FROM writes ORDER BY 1"""
_IDS: Final = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?"
_CHECKPOINTS: Final = """
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints
    WHERE thread_id = ? ORDER BY checkpoint_id"""
_WRITES: Final = """
    SELECT checkpoint_ns, checkpoint_id, task_id, {path}, channel, type, value FROM writes
    WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id, task_id, idx"""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A thread that was not imported, and the reason."""

    thread_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """The result of an import."""

    threads: int
    """Threads of the file that the store now has, from this import or an earlier one."""
    checkpoints: int
    """Checkpoints that this import added."""
    skipped: tuple[Skipped, ...]


def import_database(
    path: str | os.PathLike[str],
    store: Store,
    *,
    types: Iterable[Any] = (),
    progress: Callable[[str, int], None] | None = None,
) -> DatabaseReport:
    """Import all threads of a database of LangGraph's SqliteSaver. A second import adds only what is new.

    `types` are your own classes that channels hold, as for `BacktrailSaver`. The import skips a thread that holds other
    classes, is damaged, or has new checkpoints both in the store and in the file. The report lists skipped threads.
    """
    check_progress(progress)
    threads = checkpoints = 0
    skipped: list[Skipped] = []
    allowed = AllowedTypes(types).types
    decoder = SaverDecoder(store.thread("t", types=allowed)._types)  # noqa: SLF001 - with the classes that annotations name
    with _opened(path) as database:
        for count, (thread_id, problem) in enumerate(database.threads(), 1):
            try:
                if problem is not None:
                    raise problem
                checkpoints += _ThreadImport(store, allowed, decoder, database, thread_id).add()
                threads += 1
            except (Undecodable, Invalid, Conflict) as error:
                skipped.append(Skipped(thread_id, str(error)))
            if progress is not None:
                progress("threads", count)
    return DatabaseReport(threads, checkpoints, tuple(skipped))


def check_database(path: str | os.PathLike[str]) -> None:
    """Raise an error unless a file is a readable database of LangGraph's SqliteSaver."""
    with _opened(path) as database:
        for _ in database.threads():
            pass


# -- the file --------------------------------------------------------------------------------------------------


class _CheckpointData(NamedTuple):
    """A checkpoint of the file, not yet decoded."""

    ns: str
    id: str
    parent: str | None
    kind: Any
    data: Any
    metadata: Any


class _WriteData(NamedTuple):
    """A task write of the file, not yet decoded."""

    ns: str
    checkpoint_id: str
    task_id: str
    path: str
    channel: str
    kind: Any
    data: Any


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_SaverDatabase]:
    """Open a snapshot of a file."""
    name = Path(path).resolve()
    if not name.is_file():
        raise NotFound(f"there is no file {name}", code="not_found.store")
    with name.open("rb") as file:
        if file.read(len(_MAGIC)) not in (_MAGIC, b""):
            raise Invalid(
                f"{name} is not a database of LangGraph's SqliteSaver: it is not an SQLite file", code="invalid.store"
            )
    with _sqlite_errors(name):
        connection = apsw.Connection(str(name), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        with _sqlite_errors(name):
            connection.set_busy_timeout(_BUSY_TIMEOUT)
            connection.execute("BEGIN")
            columns = {
                table: {each for (each,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
                for table in ("checkpoints", "writes")
            }
        if not {"thread_id", "checkpoint_ns", "metadata"} <= columns["checkpoints"] or not columns["writes"]:
            raise Invalid(
                f"{name} is not a database of LangGraph's SqliteSaver: its tables are missing", code="invalid.store"
            )
        yield _SaverDatabase(name, connection, has_path="task_path" in columns["writes"])
    finally:
        connection.close()


class _SaverDatabase:
    """A snapshot of a SqliteSaver's database."""

    def __init__(self, path: Path, connection: apsw.Connection, *, has_path: bool) -> None:
        self._path = path
        self._connection = connection
        self._writes = _WRITES.format(path="task_path" if has_path else "''")  # older versions lack the column

    def threads(self) -> Iterator[tuple[str, Undecodable | None]]:
        """Give the ids of the threads, each with the problem of an id that is damaged."""
        for name, kind in list(self._select(_THREADS)):
            try:
                yield name.decode(), None if kind == "text" else Undecodable(f"its id is damaged: it is a {kind}")
            except UnicodeDecodeError as error:
                yield repr(name), Undecodable(f"its id is damaged: {error}")

    def ids(self, thread_id: str) -> dict[str, set[str]]:
        """Return the ids of a thread's checkpoints, by namespace."""
        ids: dict[str, set[str]] = {}
        for ns, name in self._select(_IDS, thread_id):
            ids.setdefault(_text(ns), set()).add(_text(name))
        return ids

    def checkpoints(self, thread_id: str) -> Iterator[_CheckpointData]:
        """Give the checkpoints of a thread in the order of their ids, which is LangGraph's own order."""
        for ns, name, parent, *data in self._select(_CHECKPOINTS, thread_id):
            yield _CheckpointData(_text(ns), _text(name), _text(parent) if parent else None, *data)

    def writes(self, thread_id: str) -> Iterator[list[_WriteData]]:
        """Give the task writes of a thread, grouped by checkpoint and task."""
        rows = (_WriteData(*map(_text, row[:5]), *row[5:]) for row in self._select(self._writes, thread_id))
        for _, group in itertools.groupby(rows, key=lambda each: each[:3]):
            yield list(group)

    def _select(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        with _sqlite_errors(self._path):
            yield from self._connection.execute(statement, values)


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into errors of this package."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise Undecodable(f"its rows are damaged: {error}") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise Corrupt(f"{path}: {error}: the file is damaged or not a database", code="corrupt.store") from error
    except apsw.Error as error:
        raise Unavailable(f"{path}: {error}", code="unavailable.sqlite") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Undecodable(f"its rows are damaged: {value!r:.100} is not a text")
    return value


# -- the store -------------------------------------------------------------------------------------------------


class _ThreadImport:
    """The import of one thread."""

    def __init__(
        self, store: Store, types: tuple[Any, ...], decoder: SaverDecoder, database: _SaverDatabase, thread_id: str
    ) -> None:
        self._store = store
        self._types = types
        self._decoder = decoder
        self._database = database
        self._thread_id = thread_id
        self._times: dict[tuple[str, str], int] = {}
        """The times of checkpoints, by namespace and id."""

    def _set_clock(self, ns: str, name: str) -> None:
        """Set the time of the next write to the time of a checkpoint."""
        at = self._times.get((ns, name))
        self._reader.clock = now if at is None else lambda: at

    def _thread(self, ns: str, *, aside: bool = False) -> Thread[Any]:
        return self._store.thread(GraphNamespace(self._thread_id, ns).id, types=self._types, aside=aside)

    def add(self) -> int:
        """Add the checkpoints and writes that the store lacks, all or nothing; return the number of new checkpoints.

        Raise `Conflict` if both the file and the store have new checkpoints.
        """
        in_file = self._database.ids(self._thread_id)
        in_store = {ns: self._ids(ns) for ns in in_file}
        missing = {ns: ids - in_store[ns] for ns, ids in in_file.items() if ids - in_store[ns]}
        if any(in_store[ns] - ids for ns, ids in in_file.items()):
            if missing:
                text = f"thread {self._thread_id!r} has new checkpoints both in the store and in the file"
                raise Conflict(text, code="conflict.stale")
            return 0
        with self._store.transaction():
            self._reader = self._store._engine.session.reader  # noqa: SLF001 - that of this transaction
            for each in self._database.checkpoints(self._thread_id) if missing else ():
                if each.id not in in_store[each.ns]:
                    self._save(each, in_store[each.ns])
            for ns in missing:
                self._set_head(ns, max(in_file[ns]))
            for group in self._database.writes(self._thread_id):
                self._write(group)
        return sum(map(len, missing.values()))

    def _ids(self, ns: str) -> set[str]:
        """Return the LangGraph ids of a namespace's checkpoints in the store, and record their times."""
        ids: set[str] = set()
        for row in self._thread(ns).history(everything=True):
            header = read_header(row)
            if header is None:
                text = f"the store has a thread {self._thread_id!r} that is not LangGraph's"
                raise Conflict(text, code="conflict.exists")
            ids.add(header.id)
            self._times[ns, header.id] = micros(row.created_at)
        return ids

    def _save(self, each: _CheckpointData, in_store: set[str]) -> None:
        """Save a checkpoint on top of its parent; if the store does not have the parent, on top of the head."""
        with _described(f"checkpoint {each.id}"):
            value = self._decoder.value(each.kind, each.data)
            metadata = metadata_of(each.metadata)
            if type(value) is not dict or value.get("id") != each.id or type(value.get("channel_values")) is not dict:
                raise Undecodable("its data are damaged: they are not a checkpoint of this id")
        if (at := _time(value.get("ts"))) is not None:
            self._times[each.ns, each.id] = at
        self._set_clock(each.ns, each.id)
        namespace = GraphNamespace(self._thread_id, each.ns)
        row_metadata, large = encode_header(namespace, namespace.config(each.id), value, metadata, each.parent)
        state = dict(value["channel_values"])
        if large is not None:
            state[KEY] = large
        onto = None if each.parent is None or each.parent not in in_store else label_of(each.parent)
        save_checkpoint(self._thread(each.ns), state, label_of(each.id), row_metadata, onto=onto)
        in_store.add(each.id)

    def _set_head(self, ns: str, name: str) -> None:
        """Make the checkpoint with the greatest id the head: LangGraph takes it for the latest."""
        thread = self._thread(ns)
        head = thread.latest()
        if head is not None and head.label != label_of(name):
            self._set_clock(ns, name)
            thread.rewind(label_of(name))

    def _write(self, group: list[_WriteData]) -> None:
        """Add the writes of a task, unless the store has all of them, or has more writes of this task."""
        ns, name, task, path, *_ = group[0]
        with _described(f"the writes of task {task} on checkpoint {name}"):
            writes = [(each.channel, self._decoder.value(each.kind, each.data)) for each in group]
        aside = self._thread(ns, aside=True)
        in_store = [each[1:] for each in writes_on(aside, [name])[name] if each[0] == task]
        if len(in_store) <= len(writes) and not all(_is_among(each, in_store) for each in writes):
            # writes to special channels have indexes of their own, so they go last
            writes.sort(key=lambda each: each[0] in WRITES_IDX_MAP)
            self._set_clock(ns, name)
            save_writes(aside, GraphTask(name, task, path), writes)


def _time(text: Any) -> int | None:
    """Return the time that LangGraph recorded for a checkpoint; None if it is not a time."""
    try:
        time = dt.datetime.fromisoformat(text)
        return micros(time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC))
    except (TypeError, ValueError, OverflowError):
        return None


@contextmanager
def _described(what: str) -> Iterator[None]:
    """Put the name of the part of the file before the text of an `Undecodable` that the block raises."""
    try:
        yield
    except Undecodable as error:
        raise Undecodable(f"{what}: {error}") from error


def _is_among(write: tuple[str, Any], others: list[tuple[str, Any]]) -> bool:
    return any(write == each or repr(write) == repr(each) for each in others)  # a nan is not equal to itself
