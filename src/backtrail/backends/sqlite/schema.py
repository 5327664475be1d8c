"""Recognise, create, migrate and open the database file of a SQLite store.

The `application_id` of the file says that it is a backtrail store, its `user_version` names the format. Format n is
made from format n - 1 by one step, in one transaction that also records it; an empty database is format 0. So an
interrupted step leaves the old format, and if several processes open a new file, each step is made once.

A file of another program, or of a newer format, is refused before anything in it or beside it is touched.

Only SQLite opens the database file: closing any other descriptor of it would drop the locks that this process holds on
it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from backtrail.backends.sql.statements import sections
from backtrail.backends.sqlite.connection import (
    Database,
    ImmutableFile,
    one_view,
    roll_back,
    translated,
    wait_for_others,
)
from backtrail.backends.sqlite.statements import SQL, run
from backtrail.backends.sqlite.wal_mark import (
    WriteAheadLog,
    format_in,
    mark_in,
    marked,
    refuse_foreign_journal,
    refuse_foreign_log,
)
from backtrail.errors import Conflict, Error, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

APPLICATION_ID = 0x42545231
_LEAST_SIZE = 512

_FORMATS: Final = [section.text for section in sections(__package__, "schema.sql").values()]


_TRIGGER: Final = re.compile(r"CREATE TRIGGER (\w+) .*?\bEND(?=;$)", re.DOTALL | re.MULTILINE)


def triggers(form: int) -> dict[str, str]:
    """Return the CREATE statements of a format's triggers, by name."""
    return {match[1]: match[0] for match in _TRIGGER.finditer("\n".join(_FORMATS[:form]))}


def _add(text: str, connection: apsw.Connection) -> None:
    run(connection, text)


# STEPS[n] makes format n + 1 from format n. Steps are only ever added.
STEPS: tuple[Callable[[apsw.Connection], None], ...] = tuple(partial(_add, text) for text in _FORMATS)
READABLE_FROM = 1
"""The oldest format that can be read without migration."""


def open_store(path: str, *, synchronous: str, read_only: bool, busy_timeout: float) -> Database:
    """Open the store in a file; create or migrate it if necessary and not `read_only`."""
    try:
        log = _size_of_log(path)  # before the file: another process that creates the store makes the file first
        size = _size(path, read_only=read_only)
        if size > 0:
            _refuse_foreign(path, size)
        elif log > 0:
            raise Conflict(
                f"{path}: is missing or empty, but its last commits are in {path}-wal, which a new store would delete: "
                "put the file back, or remove the -wal file, or pass another path",
                code="conflict.exists",
            )
        if read_only:
            return _open_read_only(path, busy_timeout)
        if size == 0:
            _make_private(path)
        return _open_writable(path, synchronous, busy_timeout)
    except apsw.NotADBError as error:
        raise _not_ours(path) from error
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        advice = "check the permissions of the file, of its directory and of the files next to it"
        if _has_no_descriptors():
            advice = "too many files are open: close unused stores, or raise the limit (ulimit -n)"
        raise Unavailable(f"{path}: {error}: {advice}", code="unavailable.open") from error
    except apsw.Error as error:
        raise translated(error, path) from error


# -- triggers and views ------------------------------------------------------------------------
class PlantedObject(NamedTuple):
    """A trigger or view in the file that differs from those of backtrail, or a trigger that is missing."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} was not made by backtrail"


def planted_objects(connection: apsw.Connection, path: str) -> tuple[PlantedObject, ...]:
    """Return the triggers and views that backtrail did not make, and its own triggers that were changed or removed."""
    with one_view(connection):
        ours = triggers(format_of(connection, path))
        objects = list(connection.execute(SQL["planted"]))
    sound = {name for kind, name, sql in objects if kind == "trigger" and ours.get(name) == sql}
    others = [PlantedObject(kind, name) for kind, name, _ in objects if kind == "view" or name not in sound]
    lost = set(ours) - {name for _, name, _ in objects}
    return (*others, *(PlantedObject("trigger", name) for name in ours if name in lost))


def restore_objects(connection: apsw.Connection, path: str) -> None:
    """Remove all triggers and views, and create those of backtrail, in the open transaction."""
    ours = triggers(format_of(connection, path))
    for kind, name, _ in connection.execute(SQL["planted"]).fetchall():
        quoted = str(name).replace('"', '""')
        run(connection, f'DROP {kind} IF EXISTS "{quoted}"')
    for sql in ours.values():
        run(connection, sql)


# -- the file -----------------------------------------------------------------------------------
def _size(path: str, *, read_only: bool) -> int:
    """Return the size of the file in bytes, 0 if it does not exist yet; raise if the path cannot be a store."""
    try:
        status = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if read_only:
            raise NotFound(f"{path}: this store does not exist", code="not_found.store") from error
        _make_directory(Path(path).parent)
        return 0
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", code="unavailable.open") from error
    if stat.S_ISDIR(status.st_mode):
        if Path(path, "backtrail.store").exists():
            raise Invalid(
                f"{path}: is a file store: use the URL {Path(path).absolute().as_uri()}", code="invalid.store"
            )
        raise Invalid(f"{path}: is a directory: pass the path of a file", code="invalid.store")
    if not stat.S_ISREG(status.st_mode):
        raise Invalid(f"{path}: is not a regular file: pass another path", code="invalid.store")
    return status.st_size


def _size_of_log(path: str) -> int:
    """Return the size of the write-ahead log beside the file in bytes, 0 if there is none."""
    try:
        return Path(path + "-wal").stat().st_size
    except OSError:
        return 0


def _make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, and sync them, so that they survive a power cut."""
    try:
        missing = [place for place in (directory, *directory.parents) if not place.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for place in missing:
            above = os.open(place.parent, os.O_RDONLY)
            try:
                os.fsync(above)
            finally:
                os.close(above)
    except (FileExistsError, NotADirectoryError) as error:
        raise Invalid(f"{directory}: is not a directory: pass another path", code="invalid.store") from error
    except OSError as error:
        raise Unavailable(f"{directory}: cannot be created: {error.strerror}", code="unavailable.open") from error


def _make_private(path: str) -> None:
    """Create an empty file that only its owner can use. SQLite gives the files next to it the same mode."""
    with suppress(OSError):  # another process was faster, or SQLite will report the error
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0), 0o600))


def _connect(path: str, options: str, flags: int, busy_timeout: float) -> apsw.Connection:
    # A URI can name any file, also one whose name is not UTF-8.
    connection = apsw.Connection(f"{Path(path).as_uri()}?{options}", flags=flags | apsw.SQLITE_OPEN_URI)
    wait_for_others(connection, busy_timeout)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)  # a store has none
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    return connection


# -- identity and format ------------------------------------------------------------------------
def format_of(connection: apsw.Connection, path: str) -> int:
    """Return the format of a store, 0 for an empty database; `Invalid` if it is of another program or too new."""
    if connection.pragma("application_id") == APPLICATION_ID:  # without the schema, which the statement reads
        version = connection.pragma("user_version")
    else:
        owner, version, tables = connection.execute(SQL["identity"]).get
        if owner != APPLICATION_ID:
            if owner or version or tables:
                raise _not_ours(path)
            return 0
    version = format_in(version)
    if version > len(STEPS):
        raise Invalid(
            f"{path}: has format {version}, but this version of backtrail knows only formats up to {len(STEPS)}: "
            "upgrade backtrail",
            code="invalid.format",
            format=version,
        )
    return int(version)


def _not_ours(path: str) -> Error:
    return Invalid(f"{path}: is not a backtrail store: pass another file", code="invalid.store")


def _refuse_foreign(path: str, size: int) -> None:
    """Raise if the file is not a store, or if the log or journal next to it belongs to another file.

    This reads the file alone: it takes no lock, creates no file, and replays no journal. So it may see a store in the
    middle of a change, and `format_of` checks the file again after opening it.
    """
    journal = Path(path + "-journal").exists()
    if size < _LEAST_SIZE and not journal:  # SQLite would take a file of one byte for an empty database
        raise _not_ours(path)
    connection = _connect(path, "immutable=1", apsw.SQLITE_OPEN_READONLY, 0)
    try:
        version = format_of(connection, path)
    except apsw.CorruptError:
        version = 0  # perhaps the WAL was copied into it only in part
    except (apsw.Error, Invalid):
        if not journal:
            raise
        return  # replaying the journal may make the file a database again
    finally:
        connection.close()
    if version and journal:
        refuse_foreign_journal(path)
    refuse_foreign_log(path)


def migrate(connection: apsw.Connection, path: str) -> None:
    """Migrate a store to the newest format, one transaction for each step."""
    while format_of(connection, path) < len(STEPS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = format_of(connection, path)  # again: another process may have been faster
            if version < len(STEPS):
                STEPS[version](connection)
                mark = mark_in(connection.pragma("user_version"))
                run(connection, f"PRAGMA user_version = {marked(version + 1, mark)}")
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise


# -- opening ------------------------------------------------------------------------------------
def _open_writable(path: str, synchronous: str, busy_timeout: float) -> Database:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = _connect(path, "mode=rwc", flags, busy_timeout)
    try:
        _refuse_unwritable(connection, path)
        version = format_of(connection, path)
        if connection.pragma("page_count") == 0:
            run(connection, "PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL")
        _enter_wal(connection, path, busy_timeout)
        # Deleted content is overwritten with zeros, on free pages, too. (Copies of rows that stay in a page after a
        # split are not: only VACUUM removes them.)
        run(connection, f"PRAGMA synchronous = {synchronous}; PRAGMA secure_delete = ON")
        run(connection, "PRAGMA temp_store = MEMORY")
        if version < len(STEPS):
            if version:  # mark the log before the schema changes
                WriteAheadLog(connection, path).prepare(connection)
            migrate(connection, path)
        return Database(connection, WriteAheadLog(connection, path), planted=planted_objects(connection, path))
    except BaseException:
        connection.close()
        raise


def _refuse_unwritable(connection: apsw.Connection, path: str) -> None:
    if connection.readonly("main"):
        raise Unavailable(
            f"{path}: is not writable: change its permissions, or open it with read_only=True", code="unavailable.open"
        )


def _enter_wal(connection: apsw.Connection, path: str, busy_timeout: float) -> None:
    deadline = time.monotonic() + busy_timeout
    mode = None
    while mode is None:
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            # Another process is creating the file. Only in this case SQLite does not wait, to avoid a deadlock.
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
    if mode != "wal":
        raise Unavailable(
            f"{path}: SQLite cannot use a write-ahead log on this file system: use a local one", code="unavailable.open"
        )


def _open_read_only(path: str, busy_timeout: float) -> Database:
    try:
        return Database(_checked(_connect(path, "mode=ro", apsw.SQLITE_OPEN_READONLY, busy_timeout), path))
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        # SQLite would have to create the files of the WAL, but has no permission. If there is no WAL, no process is
        # writing, so the file is complete until it changes. Otherwise the last commits may be in the WAL.
        if _has_no_descriptors():
            raise
        immutable = ImmutableFile(path)
        if _size_of_log(path) > 0:
            raise
        connection = _checked(_connect(path, "immutable=1", apsw.SQLITE_OPEN_READONLY, busy_timeout), path)
        return Database(connection, immutable=immutable)


def _has_no_descriptors() -> bool:
    """Tell whether the process can open no more files: SQLite does not report the reason."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _checked(connection: apsw.Connection, path: str) -> apsw.Connection:
    """Return the connection if its store can be read without migration; else close it and raise."""
    try:
        _refuse_other_formats(format_of(connection, path), path)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_other_formats(version: int, path: str) -> None:
    if version == 0:
        raise NotFound(f"{path}: is empty: open it once for writing to create a store in it", code="not_found.store")
    if version < READABLE_FROM:
        raise Unavailable(
            f"{path}: has the older format {version}: open it once for writing to convert it",
            code="unavailable.read_only",
            format=version,
        )
