"""Threads of LangGraph's SqliteSaver, taken over: what a `BacktrailSaver` then gives is what that saver gave.

The file is read, never written to, as it is at one moment. A thread comes whole, with all its namespaces, checkpoints
and writes, or not at all; what is here already does not come again. One that cannot come is named, with the reason.
What comes has the times that LangGraph gave it: writes those of their checkpoints, as they have none of their own.
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

from backtrail.adapters.langgraph import books, pending
from backtrail.adapters.langgraph.consent import Consent
from backtrail.adapters.langgraph.decoding import Decoder, Undecodable, metadata_of
from backtrail.adapters.langgraph.places import Place, label_of
from backtrail.engine.reader import now
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.models import micros
from backtrail.validation import check_progress

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from backtrail import Store, Thread

_MAGIC: Final = b"SQLite format 3\0"
_PATIENCE: Final = 10_000
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
    """A thread that was not taken over."""

    thread_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """What has come of a database of LangGraph's."""

    threads: int
    """Those that are here now, whole, whether they came just now or before."""
    checkpoints: int
    """Those that came just now."""
    skipped: tuple[Skipped, ...]


def import_database(
    path: str | os.PathLike[str],
    store: Store,
    *,
    types: Iterable[Any] = (),
    progress: Callable[[str, int], None] | None = None,
) -> DatabaseReport:
    """Take over all threads of a file that LangGraph's SqliteSaver wrote; done again, only what is new comes.

    `types` are the classes of yours that channels hold, as for `BacktrailSaver`. A thread that holds others, that is
    damaged, or that has gone on in the store since it came, is skipped, and named in the report.
    """
    check_progress(progress)
    whole = came = 0
    skipped: list[Skipped] = []
    known = Consent(types).types
    decoder = Decoder(store.thread("t", types=known)._types)  # noqa: SLF001 - with those that annotations name
    with _opened(path) as source:
        for count, (thread_id, problem) in enumerate(source.threads(), 1):
            try:
                if problem is not None:
                    raise problem
                came += _Taking(store, known, decoder, source, thread_id).add()
                whole += 1
            except (Undecodable, Invalid, Conflict) as error:
                skipped.append(Skipped(thread_id, str(error)))
            if progress is not None:
                progress("threads", count)
    return DatabaseReport(whole, came, tuple(skipped))


def check_database(path: str | os.PathLike[str]) -> None:
    """See whether a file is a database of LangGraph's, before anything is done with it."""
    with _opened(path) as source:
        for _ in source.threads():
            pass


# -- the file --------------------------------------------------------------------------------------------------


class _Checkpoint(NamedTuple):
    """A row of the file: not decoded yet."""

    ns: str
    id: str
    parent: str | None
    kind: Any
    data: Any
    metadata: Any


class _Write(NamedTuple):
    """What a task wrote on a checkpoint: not decoded yet."""

    ns: str
    checkpoint_id: str
    task_id: str
    path: str
    channel: str
    kind: Any
    data: Any


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_Source]:
    """Open a file, to be read as it is at one moment."""
    name = Path(path).resolve()
    if not name.is_file():
        raise NotFound(f"there is no file {name}", code="not_found.store")
    with name.open("rb") as file:
        if file.read(len(_MAGIC)) not in (_MAGIC, b""):
            raise Invalid(
                f"{name} is no database of LangGraph's SqliteSaver: it is none of SQLite's", code="invalid.store"
            )
    with _understood(name):
        connection = apsw.Connection(str(name), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        with _understood(name):
            connection.set_busy_timeout(_PATIENCE)
            connection.execute("BEGIN")
            columns = {
                table: {each for (each,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
                for table in ("checkpoints", "writes")
            }
        if not {"thread_id", "checkpoint_ns", "metadata"} <= columns["checkpoints"] or not columns["writes"]:
            raise Invalid(f"{name} is no database of LangGraph's SqliteSaver", code="invalid.store")
        yield _Source(name, connection, has_path="task_path" in columns["writes"])
    finally:
        connection.close()


class _Source:
    """A file, as it is at one moment."""

    def __init__(self, path: Path, connection: apsw.Connection, *, has_path: bool) -> None:
        self._path = path
        self._connection = connection
        self._writes = _WRITES.format(path="task_path" if has_path else "''")  # older ones have none

    def threads(self) -> Iterator[tuple[str, Undecodable | None]]:
        """Give the ids of the threads, and what is wrong with each, if it is no id."""
        for name, kind in list(self._select(_THREADS)):
            try:
                yield name.decode(), None if kind == "text" else Undecodable(f"its id is damaged: it is a {kind}")
            except UnicodeDecodeError as error:
                yield repr(name), Undecodable(f"its id is damaged: {error}")

    def ids(self, thread_id: str) -> dict[str, set[str]]:
        """Return the ids of the checkpoints of a thread, by their namespaces."""
        found: dict[str, set[str]] = {}
        for ns, name in self._select(_IDS, thread_id):
            found.setdefault(_text(ns), set()).add(_text(name))
        return found

    def checkpoints(self, thread_id: str) -> Iterator[_Checkpoint]:
        """Give the checkpoints of a thread, in the order of their ids: LangGraph's own."""
        for ns, name, parent, *data in self._select(_CHECKPOINTS, thread_id):
            yield _Checkpoint(_text(ns), _text(name), _text(parent) if parent else None, *data)

    def writes(self, thread_id: str) -> Iterator[list[_Write]]:
        """Give the writes on the checkpoints of a thread, those of one task together."""
        rows = (_Write(*map(_text, row[:5]), *row[5:]) for row in self._select(self._writes, thread_id))
        for _, group in itertools.groupby(rows, key=lambda each: each[:3]):
            yield list(group)

    def _select(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        with _understood(self._path):
            yield from self._connection.execute(statement, values)


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Make SQLite's errors ours."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise Undecodable(f"its rows are damaged: {error}") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise Corrupt(f"{path}: {error}: the file is damaged, or no database", code="corrupt.store") from error
    except apsw.Error as error:
        raise Unavailable(f"{path}: {error}", code="unavailable.sqlite") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Undecodable(f"its rows are damaged: there is {value!r:.100} where a text should be")
    return value


# -- the store -------------------------------------------------------------------------------------------------


class _Taking:
    """A thread of the file on its way into the store."""

    def __init__(self, store: Store, types: tuple[Any, ...], decoder: Decoder, source: _Source, thread_id: str) -> None:
        self._store = store
        self._types = types
        self._decoder = decoder
        self._source = source
        self._thread_id = thread_id
        self._times: dict[tuple[str, str], int] = {}
        """When checkpoints were made, by their namespaces and ids."""

    def _date(self, ns: str, name: str) -> None:
        """Give what is saved next the time of a checkpoint."""
        at = self._times.get((ns, name))
        self._heads.clock = now if at is None else lambda: at

    def _thread(self, ns: str, *, aside: bool = False) -> Thread[Any]:
        return self._store.thread(Place(self._thread_id, ns).id, types=self._types, aside=aside)

    def add(self) -> int:
        """Add what is not here, all of it or nothing; return how many checkpoints that were."""
        there = self._source.ids(self._thread_id)
        here = {ns: self._ids(ns) for ns in there}
        missing = {ns: ids - here[ns] for ns, ids in there.items() if ids - here[ns]}
        if any(here[ns] - ids for ns, ids in there.items()):
            if missing:
                text = f"thread {self._thread_id!r} has gone on in the store, and another way in the file"
                raise Conflict(text, code="conflict.stale")
            return 0
        with self._store.transaction():
            self._heads = self._store._engine.desk.heads  # noqa: SLF001 - those of this transaction, and of no other
            for each in self._source.checkpoints(self._thread_id) if missing else ():
                if each.id not in here[each.ns]:
                    self._save(each, here[each.ns])
            for ns in missing:
                self._turn(ns, max(there[ns]))
            for group in self._source.writes(self._thread_id):
                self._write(group)
        return sum(map(len, missing.values()))

    def _ids(self, ns: str) -> set[str]:
        """Return the ids of the checkpoints of a namespace that are here."""
        found: set[str] = set()
        for row in self._thread(ns).history(everything=True):
            book = books.read(row)
            if book is None:
                text = f"there is a thread {self._thread_id!r} already that is not LangGraph's"
                raise Conflict(text, code="conflict.exists")
            found.add(book.id)
            self._times[ns, book.id] = micros(row.created_at)
        return found

    def _save(self, each: _Checkpoint, here: set[str]) -> None:
        """Save a checkpoint on its parent, if that is here."""
        with _about(f"checkpoint {each.id}"):
            value = self._decoder.value(each.kind, each.data)
            metadata = metadata_of(each.metadata)
            if type(value) is not dict or value.get("id") != each.id or type(value.get("channel_values")) is not dict:
                raise Undecodable("its data are damaged: they are no checkpoint of this id")
        if (at := _time(value.get("ts"))) is not None:
            self._times[each.ns, each.id] = at
        self._date(each.ns, each.id)
        place = Place(self._thread_id, each.ns)
        about, large = books.written(place, place.config(each.id), value, metadata, each.parent)
        state = dict(value["channel_values"])
        if large is not None:
            state[books.KEY] = large
        onto = None if each.parent is None or each.parent not in here else label_of(each.parent)
        self._thread(each.ns).save(state, label=label_of(each.id), metadata=about, onto=onto)
        here.add(each.id)

    def _turn(self, ns: str, name: str) -> None:
        """Make the checkpoint the head that LangGraph takes for the latest: the one with the greatest id."""
        thread = self._thread(ns)
        head = thread.latest()
        if head is not None and head.label != label_of(name):
            self._date(ns, name)
            thread.rewind(label_of(name))

    def _write(self, group: list[_Write]) -> None:
        """Add the writes of a task, unless they are here, or more of them."""
        ns, name, task, path, *_ = group[0]
        with _about(f"what task {task} wrote on checkpoint {name}"):
            writes = [(each.channel, self._decoder.value(each.kind, each.data)) for each in group]
        aside = self._thread(ns, aside=True)
        here = [each[1:] for each in pending.read(aside, [name])[name] if each[0] == task]
        if len(here) <= len(writes) and not all(_is_among(each, here) for each in writes):
            # those to special channels have places of their own: behind the others, they are in nobody's way
            writes.sort(key=lambda each: each[0] in WRITES_IDX_MAP)
            self._date(ns, name)
            pending.put(aside, pending.Note(name, task, path), writes)


def _time(text: Any) -> int | None:
    """Return what LangGraph says of when a checkpoint was made; None if it says nothing that is a time."""
    try:
        found = dt.datetime.fromisoformat(text)
        return micros(found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC))
    except (TypeError, ValueError, OverflowError):
        return None


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Say what it is that cannot be decoded."""
    try:
        yield
    except Undecodable as error:
        raise Undecodable(f"{what}: {error}") from error


def _is_among(write: tuple[str, Any], others: list[tuple[str, Any]]) -> bool:
    return any(write == each or repr(write) == repr(each) for each in others)  # a nan is not equal to itself
