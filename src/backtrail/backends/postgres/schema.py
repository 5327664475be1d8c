"""Recognise, create, migrate and open the schema of a PostgreSQL store.

A store is one schema; `schema.sql` has its tables, functions and views. Its table `meta` says that it is a backtrail
store, and names the format. Format n is made from format n - 1 by one step, in one transaction that also records it,
under an advisory lock. So an interrupted step leaves the old format, and if several processes open a new store, each
step is made once. Names that a later format may replace end in the number of their format, so that code of two versions
can use a store side by side.

A thread's row in the table `thread` names the newest row of its log, so writers queue for it: a writer extends a log by
moving `newest` from seq - 1 to seq, and only one writer can. No index has a column that a save changes. Else each save
would write to all indexes of the table. So a trigger copies what listings and the search index look for into two narrow
tables: `activity` has the time of the newest row in whole seconds (`second`), and `unindexed` the threads that are
`dirty`.

A transaction that puts or touches chunks holds a shared advisory lock to its end; a new epoch is begun under the same
lock, exclusively. So no transaction stamps chunks with an old epoch.

A schema of another program, or of a newer format, is refused before anything in it is touched.
"""

# ruff: noqa: S608 - the statements are made from constants of this package and a quoted name

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import psycopg

from backtrail.backends.postgres.statements import Statements
from backtrail.backends.sql.statements import sections
from backtrail.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from backtrail.backends.postgres.session import PgSession

DEFAULT_SCHEMA: Final = "backtrail"
OLDEST_SERVER: Final = 140000
MARK: Final = 0x42545231
_MAX_NAME: Final = 63

# STEPS[n] makes format n + 1 from format n, with {schema} and {lock} in it. Steps are only ever added.
STEPS: Final = tuple(section.text for section in sections(__package__, "schema.sql").values())
READABLE_FROM: Final = 1
"""The oldest format that can be read without migration."""


class SchemaName:
    """The schema of a store: its name quoted for statements, its advisory locks and its notification channel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.quoted = '"' + name.replace('"', '""') + '"'
        self.literal = self.quoted.replace("'", "''")
        """The quoted name, escaped for use inside a string."""
        self.lock = _number("epoch", name)
        """The number of the advisory lock of epochs."""
        self.steps_lock = _number("steps", name)
        """The number of the advisory lock for creating and migrating the store."""
        self.channel = f"backtrail_{self.lock & (1 << 64) - 1:016x}"
        """The NOTIFY channel on which processes announce commits."""


def _number(what: str, name: str) -> int:
    digest = blake2b(f"backtrail {what} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def schema_name(schema: object) -> SchemaName:
    """Return the schema of this name, or the default schema for None; `Invalid` if the name cannot be used."""
    name = DEFAULT_SCHEMA if schema is None else schema
    if not isinstance(name, str) or not name or "\0" in name:
        raise Invalid(f"schema must be the name of a schema, not {schema!r}", code="invalid.argument")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{schema!r} is not a valid name of a schema", code="invalid.argument") from error
    if size > _MAX_NAME:
        raise Invalid(f"schema {schema!r} is longer than {_MAX_NAME} bytes", code="invalid.argument")
    if "$$" in name:  # which is how the bodies of our functions are quoted
        raise Invalid(f"schema {schema!r} has $$ in its name: choose another name", code="invalid.argument")
    if name.startswith("pg_") or name == "information_schema":
        raise Invalid(f"schema {schema!r} belongs to PostgreSQL: choose another name", code="invalid.argument")
    return SchemaName(name)


def prepare(session: PgSession, schema: SchemaName, where: str, *, read_only: bool) -> int:
    """Check the server, create or migrate the store if necessary and not `read_only`, and return its format."""
    server = session.connection.info.server_version
    if server < OLDEST_SERVER:
        raise Unavailable(
            f"{where}: PostgreSQL {server // 10000} is too old: backtrail needs {OLDEST_SERVER // 10000} or later",
            code="unavailable.server",
        )
    encoding = session.connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise Unavailable(
            f"{where}: the database has the encoding {encoding}, but backtrail needs UTF8: use another database",
            code="unavailable.server",
        )
    version = format_of(session, schema, where)
    if version < len(STEPS) and read_only:
        _refuse_other_formats(version, schema, where)
        return version
    while version < len(STEPS):
        version = _step(session, schema, where)
    return version


def format_of(session: PgSession, schema: SchemaName, where: str) -> int:
    """Return the format of a store, 0 if there is none; `Invalid` if the schema is of another program or too new."""
    sql = Statements(schema)
    ((exists, tables),) = session.run(sql["tables"], (schema.name,))
    if not exists or not tables:
        return 0
    if "meta" not in tables:
        raise _not_ours(schema, where)
    try:
        meta = dict(session.run(sql["meta"]))
    except psycopg.errors.UndefinedColumn as error:
        raise _not_ours(schema, where) from error
    if meta.get("backtrail") != MARK:
        raise _not_ours(schema, where)
    version = int(meta.get("format", 0))
    if version > len(STEPS):
        raise Invalid(
            f"{where}: has format {version}, but this version of backtrail knows only formats up to {len(STEPS)}: "
            "upgrade backtrail",
            code="invalid.format",
            format=version,
        )
    return version


def _step(session: PgSession, schema: SchemaName, where: str) -> int:
    """Make one migration step, unless another process has made it; return the new format."""
    sql = Statements(schema)
    session.script("BEGIN ISOLATION LEVEL READ COMMITTED")  # READ COMMITTED: statements after the lock see new commits
    try:
        session.run(sql["lock_steps"], (schema.steps_lock,), seconds=None)
        version = format_of(session, schema, where)
        if version < len(STEPS):
            if version == 0:
                _create(session, schema, where)
            session.script(sql.filled(STEPS[version], lock=str(schema.lock)))
            session.run(sql["set_format"], (version + 1,))
            version += 1
        session.script("COMMIT")
    except BaseException:
        if session.whole:
            session.script("ROLLBACK")
        raise
    return version


def _create(session: PgSession, schema: SchemaName, where: str) -> None:
    """Create the schema, if necessary, and its table `meta`, which marks it as a backtrail store."""
    ((exists, _),) = session.run(Statements(schema)["tables"], (schema.name,))
    try:
        if not exists:
            session.script(f"CREATE SCHEMA {schema.quoted}")
        session.script(
            f"CREATE TABLE {schema.quoted}.meta (name text PRIMARY KEY, value bigint NOT NULL);"
            f"INSERT INTO {schema.quoted}.meta VALUES ('backtrail', {MARK}), ('format', 0), ('epoch', 1)"
        )
    except psycopg.errors.InsufficientPrivilege as error:
        user = session.connection.info.user
        raise Unavailable(
            f"{where}: there is no store in schema {schema.name!r}, and role {user!r} may not create one: "
            f'let its owner run: CREATE SCHEMA {schema.quoted} AUTHORIZATION "{user}"',
            code="unavailable.permission",
        ) from error


def _refuse_other_formats(version: int, schema: SchemaName, where: str) -> None:
    if version == 0:
        raise NotFound(f"{where}: there is no store in schema {schema.name!r}", code="not_found.store")
    if version < READABLE_FROM:
        raise Unavailable(
            f"{where}: has the older format {version}: open it once for writing to convert it",
            code="unavailable.read_only",
            format=version,
        )


def _not_ours(schema: SchemaName, where: str) -> Invalid:
    return Invalid(
        f"{where}: schema {schema.name!r} has tables of another program under the names that backtrail uses: "
        "name another one with schema=",
        code="invalid.store",
    )
