"""What a store in SQLite looks like, and how one is recognised, created, migrated and opened.

The file says by its `application_id` that it is ours and by its `user_version` which format it has. Format n is made
from format n - 1 by one step, in one transaction that also records it; an empty database is format 0. So whatever
is interrupted leaves the format it began with, and of several processes that open a new file one makes each step.

A file that is not ours, or newer than this code, is refused before anything in it or beside it is touched.

Nothing here opens the database file but SQLite itself: closing any other descriptor of it would drop the locks that
this process holds on it.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from backtrail.backends.sqlite.connection import Opened, Still, one_view, roll_back, translated, wait_for_others
from backtrail.backends.sqlite.wal_mark import (
    Log,
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

# `sqlite_values` says how the values are kept.
_FORMAT_1 = f"""
CREATE TABLE thread (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    space      TEXT NOT NULL,
    name       BLOB NOT NULL,
    uid        BLOB NOT NULL UNIQUE,
    agent      BLOB,
    created_at INTEGER NOT NULL,
    origin     BLOB,
    UNIQUE (space, name)
) STRICT;

-- key is (thread number << 32) | seq, which keeps the rows of a thread together and in order.
-- payload stands last, so that reading the rest of a row never follows its overflow pages.
CREATE TABLE row (
    key        INTEGER PRIMARY KEY,
    op         INTEGER NOT NULL,
    parent     INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    head       INTEGER NOT NULL,
    undo       INTEGER NOT NULL,
    redo       INTEGER NOT NULL,
    "view"     INTEGER NOT NULL,
    base       INTEGER NOT NULL,
    depth      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    label      BLOB,
    size       INTEGER NOT NULL,
    stored     INTEGER NOT NULL,
    root       BLOB NOT NULL,
    op_id      BLOB NOT NULL,
    extra      BLOB NOT NULL,
    "check"    BLOB NOT NULL,
    hidden     INTEGER NOT NULL,
    payload    BLOB NOT NULL
) STRICT;
CREATE INDEX row_label ON row (key >> 32, label) WHERE label IS NOT NULL;

CREATE TABLE chunk (
    id      INTEGER PRIMARY KEY,
    digest  BLOB NOT NULL UNIQUE,
    epoch   INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;

-- id gives the order in which a row's tags were given.
CREATE TABLE tag (
    id     INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    tag    BLOB NOT NULL,
    UNIQUE (thread, seq, tag)
) STRICT;
CREATE INDEX tag_tag ON tag (thread, tag, seq);

-- epoch: the current one. settled: see `sqlite_commit._end`.
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 1), ('settled', 0);

PRAGMA application_id = {APPLICATION_ID};
"""

# What search needs, all of it made from the rows. Every row that is added marks its thread, whichever version adds it.
_FORMAT_3 = """
CREATE TABLE mark (thread INTEGER PRIMARY KEY) STRICT;
INSERT INTO mark SELECT no FROM thread;
CREATE TRIGGER row_marks AFTER INSERT ON row BEGIN INSERT OR IGNORE INTO mark VALUES (new.key >> 32); END;

CREATE TABLE indexed (
    thread INTEGER PRIMARY KEY,
    seq    INTEGER NOT NULL,
    items  INTEGER NOT NULL,
    as_of  INTEGER NOT NULL
) STRICT;

CREATE TABLE message (
    no       INTEGER PRIMARY KEY AUTOINCREMENT,
    thread   INTEGER NOT NULL,
    position INTEGER NOT NULL,
    time     INTEGER NOT NULL,
    id       BLOB,
    role     BLOB,
    text     BLOB NOT NULL
) STRICT;
CREATE INDEX message_place ON message (thread, position);
CREATE INDEX message_time ON message (time);

CREATE VIRTUAL TABLE word USING fts5 (words, content = '', contentless_delete = 1, tokenize = 'ascii');
CREATE VIRTUAL TABLE term USING fts5vocab (word, 'row');
CREATE TABLE vocabulary (word BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;

-- unindexed: entries that were taken out of `word`, and are still in its pages.
INSERT INTO meta VALUES ('unindexed', 0);
"""

# Which threads of an agent were written to. Again, whichever version adds a row, or renews a thread.
_FORMAT_4 = """
CREATE TABLE touched (agent BLOB NOT NULL, thread INTEGER NOT NULL, PRIMARY KEY (agent, thread)) STRICT, WITHOUT ROWID;
INSERT INTO touched SELECT agent, no FROM thread WHERE agent IS NOT NULL;
CREATE INDEX thread_agent ON thread (agent) WHERE agent IS NOT NULL;

DROP TRIGGER row_marks;
CREATE TRIGGER row_marks AFTER INSERT ON row BEGIN
    INSERT OR IGNORE INTO mark VALUES (new.key >> 32);
    INSERT OR IGNORE INTO touched SELECT agent, no FROM thread WHERE no = new.key >> 32 AND agent IS NOT NULL;
END;
CREATE TRIGGER thread_renewed AFTER UPDATE OF agent ON thread BEGIN
    DELETE FROM touched WHERE agent = old.agent AND thread = old.no;
    INSERT OR IGNORE INTO touched SELECT new.agent, new.no WHERE new.agent IS NOT NULL;
END;
"""


def _step_1(connection: apsw.Connection) -> None:
    run(connection, _FORMAT_1)


def _step_2(_: apsw.Connection) -> None:
    """Change nothing: the tables are those of format 1. What is new is a codec that older code cannot read."""


def _step_3(connection: apsw.Connection) -> None:
    run(connection, _FORMAT_3)


def _step_4(connection: apsw.Connection) -> None:
    run(connection, _FORMAT_4)


_TRIGGER: Final = re.compile(r"CREATE TRIGGER (\w+) .*?\bEND(?=;\n)", re.DOTALL)


def triggers(form: int) -> dict[str, str]:
    """Return the triggers of a format, by their names."""
    made = "".join((_FORMAT_1, "", _FORMAT_3, _FORMAT_4)[:form])
    return {found[1]: found[0] for found in _TRIGGER.finditer(made)}


# STEPS[n] makes format n + 1 from format n. Steps are only ever added.
STEPS: tuple[Callable[[apsw.Connection], None], ...] = (_step_1, _step_2, _step_3, _step_4)
READABLE_FROM = 1
"""The oldest format that can be read as it is, without its steps."""


def open_store(path: str, *, synchronous: str, read_only: bool, busy_timeout: float) -> Opened:
    """Open the store in that file, ready for use; create or migrate it if need be."""
    try:
        log = _size_of_log(path)  # first: a store that others are making has none before it is there
        size = _size(path, read_only=read_only)
        if size > 0:
            _refuse_foreign(path, size)
        elif log > 0:
            raise Conflict(
                f"{path}: is gone or empty, and what was committed to it last is in {path}-wal, which a new store "
                "would remove: put the two together again, or remove that one, too, or name another file",
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
        advice = "check the permissions of the file, of its directory and of what is beside it"
        if _has_no_descriptors():
            advice = (
                "too many files are open: close stores that are not needed, or let the process open more (ulimit -n)"
            )
        raise Unavailable(f"{path}: {error}: {advice}", code="unavailable.open") from error
    except apsw.Error as error:
        raise translated(error, path) from error


# -- what is in the file and runs with each write ----------------------------------------------
class Strange(NamedTuple):
    """Something in the schema that this version did not make, or has made otherwise."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} is not one that backtrail has made"


def strangers(connection: apsw.Connection, path: str) -> tuple[Strange, ...]:
    """Return the triggers and views that are not ours, or that somebody has changed, or removed."""
    with one_view(connection):
        ours = triggers(format_of(connection, path))
        found = list(connection.execute(_RUNNING))
    there = {name for kind, name, sql in found if kind == "trigger" and ours.get(name) == sql}
    others = [Strange(kind, name) for kind, name, _ in found if kind == "view" or name not in there]
    return (*others, *(Strange("trigger", name) for name in ours if name not in {each[1] for each in found}))


_RUNNING = "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('trigger', 'view') ORDER BY type, name"


def put_right(connection: apsw.Connection, path: str) -> None:
    """Remove triggers and views that are not ours, and make ours again, in the transaction that is open."""
    ours = triggers(format_of(connection, path))
    for kind, name, _ in connection.execute(_RUNNING).fetchall():
        quoted = str(name).replace('"', '""')
        run(connection, f'DROP {kind} IF EXISTS "{quoted}"')
    for sql in ours.values():
        run(connection, sql)


def run(connection: apsw.Connection, sql: str) -> None:
    """Run statements to their end; apsw stops at the first row otherwise."""
    for _ in connection.execute(sql):
        pass


# -- the file -----------------------------------------------------------------------------------
def _size(path: str, *, read_only: bool) -> int:
    """Return the size of the file, 0 if it is not there yet; refuse what cannot be a store."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if read_only:
            raise NotFound(f"{path}: there is no such store", code="not_found.store") from error
        _make_directory(Path(path).parent)
        return 0
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", code="unavailable.open") from error
    if stat.S_ISDIR(found.st_mode):
        if Path(path, "backtrail.store").exists():
            raise Invalid(f"{path}: is a store in files: say {Path(path).absolute().as_uri()}", code="invalid.store")
        raise Invalid(f"{path}: is a directory: name a file in it", code="invalid.store")
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(f"{path}: is not a regular file: name another", code="invalid.store")
    return found.st_size


def _size_of_log(path: str) -> int:
    """Return the size of the write-ahead log beside the file, 0 if there is none."""
    try:
        return Path(path + "-wal").stat().st_size
    except OSError:
        return 0


def _make_directory(directory: Path) -> None:
    """Make a directory and those above it, so that they survive a power cut as the file in them will."""
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
        raise Invalid(f"{directory}: is not a directory: name another", code="invalid.store") from error
    except OSError as error:
        raise Unavailable(f"{directory}: cannot be made: {error.strerror}", code="unavailable.open") from error


def _make_private(path: str) -> None:
    """Make an empty file that only its owner may use; what SQLite keeps beside it gets its mode."""
    with suppress(OSError):  # somebody else was faster, or SQLite will say what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0), 0o600))


def _connect(path: str, options: str, flags: int, busy_timeout: float) -> apsw.Connection:
    # As a URI, any file name goes: one that is not UTF-8, too.
    connection = apsw.Connection(f"{Path(path).as_uri()}?{options}", flags=flags | apsw.SQLITE_OPEN_URI)
    wait_for_others(connection, busy_timeout)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)  # a store has none
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    return connection


# -- identity and format ------------------------------------------------------------------------
# One statement, so that it is one moment: somebody else may be creating the store.
_IDENTITY = """
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
    FROM pragma_application_id, pragma_user_version"""


def format_of(connection: apsw.Connection, path: str) -> int:
    """Return the format of a store, 0 for an empty database; refuse a database of somebody else and newer formats."""
    owner, version, tables = connection.execute(_IDENTITY).get
    if owner != APPLICATION_ID:
        if owner or version or tables:
            raise _not_ours(path)
        return 0
    version = format_in(version)
    if version > len(STEPS):
        raise Invalid(
            f"{path}: has format {version}, and this version of backtrail knows formats up to {len(STEPS)}: "
            "upgrade backtrail",
            code="invalid.format",
            format=version,
        )
    return int(version)


def _not_ours(path: str) -> Error:
    return Invalid(f"{path}: is not a backtrail store: name another file", code="invalid.store")


def _refuse_foreign(path: str, size: int) -> None:
    """Look at the file alone: no lock is taken, no file is made, no journal is played back.

    So our own file may be seen in the middle of a change: what passes here is looked at again.
    """
    journal = Path(path + "-journal").exists()
    if size < _LEAST_SIZE and not journal:  # SQLite itself would take a single byte for nothing
        raise _not_ours(path)
    connection = _connect(path, "immutable=1", apsw.SQLITE_OPEN_READONLY, 0)
    try:
        found = format_of(connection, path)
    except apsw.CorruptError:
        found = 0  # half of the WAL was copied into it, perhaps
    except (apsw.Error, Invalid):
        if not journal:
            raise
        return  # it may have to be played back to make a database of the file
    finally:
        connection.close()
    if found and journal:
        refuse_foreign_journal(path)
    refuse_foreign_log(path)


def migrate(connection: apsw.Connection, path: str) -> None:
    """Bring a store to the newest format, one transaction for each step."""
    while format_of(connection, path) < len(STEPS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = format_of(connection, path)  # again: somebody else may have been faster
            if found < len(STEPS):
                STEPS[found](connection)
                mark = mark_in(connection.pragma("user_version"))
                run(connection, f"PRAGMA user_version = {marked(found + 1, mark)}")
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise


# -- opening ------------------------------------------------------------------------------------
def _open_writable(path: str, synchronous: str, busy_timeout: float) -> Opened:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = _connect(path, "mode=rwc", flags, busy_timeout)
    try:
        _refuse_unwritable(connection, path)
        found = format_of(connection, path)
        if connection.pragma("page_count") == 0:
            run(connection, "PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL")
        _enter_wal(connection, path, busy_timeout)
        # Deleted content is overwritten with zeros, on free pages too. (What a page kept of rows that moved to another
        # when it was split is not: only VACUUM gets rid of that.)
        run(connection, f"PRAGMA synchronous = {synchronous}; PRAGMA secure_delete = ON")
        run(connection, "PRAGMA temp_store = MEMORY")
        if found < len(STEPS):
            if found:  # a log in which the schema changes begins with a mark
                Log(connection, path).prepare(connection)
            migrate(connection, path)
        return Opened(connection, Log(connection, path), strange=strangers(connection, path))
    except BaseException:
        connection.close()
        raise


def _refuse_unwritable(connection: apsw.Connection, path: str) -> None:
    if connection.readonly("main"):
        raise Unavailable(
            f"{path}: may not be written: change its permissions or open it read-only", code="unavailable.open"
        )


def _enter_wal(connection: apsw.Connection, path: str, busy_timeout: float) -> None:
    deadline = time.monotonic() + busy_timeout
    mode = None
    while mode is None:
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            # Somebody else is creating the file. SQLite does not wait in this one case, for fear of a deadlock.
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
    if mode != "wal":
        raise Unavailable(
            f"{path}: SQLite cannot keep a write-ahead log there: use a local file system", code="unavailable.open"
        )


def _open_read_only(path: str, busy_timeout: float) -> Opened:
    try:
        return Opened(_checked(_connect(path, "mode=ro", apsw.SQLITE_OPEN_READONLY, busy_timeout), path))
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        # SQLite wants to make the WAL's files and may not. If there is none, nobody is writing now, so the file alone
        # says it all, until it changes; otherwise what was committed last may be in the WAL.
        if _has_no_descriptors():
            raise
        still = Still(path)
        if _size_of_log(path) > 0:
            raise
        connection = _checked(_connect(path, "immutable=1", apsw.SQLITE_OPEN_READONLY, busy_timeout), path)
        return Opened(connection, still=still)


def _has_no_descriptors() -> bool:
    """Tell whether the process can open no more files: SQLite does not say why it cannot."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _checked(connection: apsw.Connection, path: str) -> apsw.Connection:
    """Return the connection if there is a store that can be read as it is."""
    try:
        _refuse_other_formats(format_of(connection, path), path)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_other_formats(found: int, path: str) -> None:
    if found == 0:
        raise NotFound(f"{path}: is empty: there is no store in it yet", code="not_found.store")
    if found < READABLE_FROM:
        raise Unavailable(
            f"{path}: has the older format {found}: open it once for writing, which converts it",
            code="unavailable.read_only",
            format=found,
        )
