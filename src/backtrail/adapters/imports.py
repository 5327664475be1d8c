"""What the imports of other programs' data share: reading a file, the times of what it holds, and the report.

An import reads one snapshot and never writes to it. It imports a thread or session completely, or skips it and reports
the reason. A second import adds only what is new. What is imported keeps its times.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from backtrail.engine.reader import now
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.models import micros
from backtrail.validation import check_progress

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from backtrail import Store

_MAGIC: Final = b"SQLite format 3\0"
_BUSY_TIMEOUT: Final = 10_000
"""Milliseconds."""


class Undecodable(Exception):  # noqa: N818 - named for what happened
    """The error for data that cannot be imported exactly, with the reason."""


# -- reports ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Skipped:
    """A thread or session that was not imported, or a part of one, and the reason."""

    thread_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SessionsReport:
    """The result of an import of sessions."""

    sessions: int
    """Sessions that the store now has, from this import or an earlier one."""
    messages: int
    """Messages that this import added."""
    skipped: tuple[Skipped, ...]


def import_sessions(
    sessions: Iterable[tuple[str, Callable[[list[Skipped]], int]]], progress: Callable[[str, int], None] | None
) -> SessionsReport:
    """Import sessions: each is its id, and a function that adds it and returns the number of new messages.

    The function gets a list for the parts that it leaves out.
    """
    check_progress(progress)
    count = messages = 0
    skipped: list[Skipped] = []
    for number, (session_id, add) in enumerate(sessions, 1):
        left_out: list[Skipped] = []
        try:
            messages += add(left_out)
            count += 1
        except (Undecodable, Invalid, Conflict) as error:
            left_out = [Skipped(session_id, str(error))]
        skipped += left_out
        if progress is not None:
            progress("sessions", number)
    return SessionsReport(count, messages, tuple(skipped))


def new_ones(in_file: list[Any], in_store: list[Any], what: str) -> list[Any]:
    """Return the entries of a file that the store lacks; `Conflict` if each has entries that the other lacks."""
    if in_file[: len(in_store)] == in_store:
        return in_file[len(in_store) :]
    if in_store[: len(in_file)] == in_file:
        return []
    raise Conflict(f"{what} has new messages both in the store and in the file", code="conflict.stale")


# -- times -----------------------------------------------------------------------------------------------------


@contextmanager
def dated_writes(store: Store) -> Iterator[Callable[[dt.datetime | int | None], None]]:
    """Begin a transaction, and give a function that sets the time of its next writes; None for the present."""
    with store.transaction():
        reader = store._engine.session.reader  # noqa: SLF001 - that of this transaction

        def set_time(time: dt.datetime | int | None) -> None:
            at = micros(time) if time is not None and not isinstance(time, int) else time
            reader.clock = now if at is None else lambda: at

        yield set_time


# -- files of SQLite -------------------------------------------------------------------------------------------


class SqliteSnapshot:
    """A snapshot of an SQLite file."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self._path = path
        self._connection = connection

    def columns(self, table: str) -> set[str]:
        """Return the names of a table's columns; empty if there is no table."""
        return {name for (name,) in self.select("SELECT name FROM pragma_table_info(?)", table)}

    def select(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Give the rows of a statement."""
        with _sqlite_errors(self._path):
            yield from self._connection.execute(statement, values)


@contextmanager
def sqlite_snapshot(
    path: str | os.PathLike[str], what: str, needed: Mapping[str, set[str]]
) -> Iterator[SqliteSnapshot]:
    """Open a snapshot of a file that must have these columns of tables; `what` names such a file in errors."""
    name = Path(path).expanduser().resolve()
    if not name.is_file():
        raise NotFound(f"there is no file {name}", code="not_found.store")
    with name.open("rb") as file:
        if file.read(len(_MAGIC)) not in (_MAGIC, b""):
            raise Invalid(f"{name} is not {what}: it is not an SQLite file", code="invalid.store")
    with _sqlite_errors(name):
        connection = apsw.Connection(str(name), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        with _sqlite_errors(name):
            connection.set_busy_timeout(_BUSY_TIMEOUT)
            connection.execute("BEGIN")
        snapshot = SqliteSnapshot(name, connection)
        if not all(columns <= snapshot.columns(table) for table, columns in needed.items()):
            raise Invalid(f"{name} is not {what}: its tables are missing", code="invalid.store")
        yield snapshot
    finally:
        connection.close()


def text_of(value: Any) -> str:
    """Return a text of a row; `Undecodable` if it is something else."""
    if not isinstance(value, str):
        raise Undecodable(f"its rows are damaged: {value!r:.100} is not a text")
    return value


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
