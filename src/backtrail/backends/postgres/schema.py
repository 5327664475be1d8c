"""How a store in PostgreSQL is recognised, created, migrated and opened.

A store is one schema. Its table `meta` says that it is ours and which format it has. Format n is made from format n - 1
by one step, in one transaction that also records it, under an advisory lock. So whatever is interrupted leaves the
format it began with, and of several processes that open a new store one makes each step.

What is not ours, or newer than this code, is refused before anything in it is touched.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import psycopg

from backtrail.backends.postgres.heads import format_2
from backtrail.backends.postgres.session import Statement
from backtrail.backends.postgres.tables import format_1
from backtrail.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.postgres.session import Session

DEFAULT_SCHEMA: Final = "backtrail"
OLDEST_SERVER: Final = 140000
MARK: Final = 0x42545231
_MAX_NAME: Final = 63

# STEPS[n] makes format n + 1 from format n. Steps are only ever added.
STEPS: Final[tuple[Callable[[str, int], str], ...]] = (format_1, format_2)
READABLE_FROM: Final = 1
"""The oldest format that can be read as it is, without its steps."""

_TABLES: Final = Statement(
    """
    SELECT n.oid IS NOT NULL, array(
        SELECT c.relname::text FROM pg_catalog.pg_class c
        WHERE c.relnamespace = n.oid AND c.relname IN ('meta', 'thread', 'row', 'chunk', 'tag') ORDER BY 1)
    FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1""",
    "t",
)


class Place:
    """The schema that a store has for itself: its name as it is written in statements, and its lock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.quoted = '"' + name.replace('"', '""') + '"'
        self.lock = _number("epoch", name)
        """The advisory lock of the epochs."""
        self.steps_lock = _number("steps", name)
        """The advisory lock of those who create or migrate."""
        self.channel = f"backtrail_{self.lock & (1 << 64) - 1:016x}"
        """Where processes tell each other of commits."""


def _number(what: str, name: str) -> int:
    digest = blake2b(f"backtrail {what} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def place_of(schema: object) -> Place:
    """Return the place of a schema that a user named, or of the default one."""
    name = DEFAULT_SCHEMA if schema is None else schema
    if not isinstance(name, str) or not name or "\0" in name:
        raise Invalid(f"schema is the name of a schema, not {schema!r}", code="invalid.argument")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{schema!r} cannot be the name of a schema", code="invalid.argument") from error
    if size > _MAX_NAME:
        raise Invalid(f"schema {schema!r} is longer than {_MAX_NAME} bytes", code="invalid.argument")
    if "$$" in name:  # which is how the bodies of our functions are quoted
        raise Invalid(f"schema {schema!r} has $$ in its name: name another", code="invalid.argument")
    if name.startswith("pg_") or name == "information_schema":
        raise Invalid(f"schema {schema!r} belongs to PostgreSQL: name another", code="invalid.argument")
    return Place(name)


def prepare(session: Session, place: Place, where: str, *, read_only: bool) -> None:
    """Make sure that the store is there and has the format that this code writes; create or migrate it if need be."""
    version = session.connection.info.server_version
    if version < OLDEST_SERVER:
        raise Unavailable(
            f"{where}: this is PostgreSQL {version // 10000}: backtrail needs {OLDEST_SERVER // 10000} or later",
            code="unavailable.server",
        )
    encoding = session.connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise Unavailable(
            f"{where}: the encoding of this database is {encoding}: backtrail needs one whose encoding is UTF8",
            code="unavailable.server",
        )
    found = format_of(session, place, where)
    if found == len(STEPS):
        return
    if read_only:
        _refuse_other_formats(found, place, where)
        return
    while found < len(STEPS):
        found = _step(session, place, where)


def format_of(session: Session, place: Place, where: str) -> int:
    """Return the format of a store, 0 if there is none; refuse what is not ours, and newer formats."""
    ((exists, tables),) = session.run(_TABLES, (place.name,))
    if not exists or not tables:
        return 0
    if "meta" not in tables:
        raise _not_ours(place, where)
    try:
        found = dict(session.run(Statement(f"SELECT name, value FROM {place.quoted}.meta")))
    except psycopg.errors.UndefinedColumn as error:
        raise _not_ours(place, where) from error
    if found.get("backtrail") != MARK:
        raise _not_ours(place, where)
    version = int(found.get("format", 0))
    if version > len(STEPS):
        raise Invalid(
            f"{where}: has format {version}, and this version of backtrail knows formats up to {len(STEPS)}: "
            "upgrade backtrail",
            code="invalid.format",
            format=version,
        )
    return version


def _step(session: Session, place: Place, where: str) -> int:
    """Make one step, unless somebody else has made it; return the format then."""
    session.script("BEGIN ISOLATION LEVEL READ COMMITTED")  # who has waited for the lock sees what was done under it
    try:
        session.run(Statement("SELECT pg_catalog.pg_advisory_xact_lock($1)", "i"), (place.steps_lock,), seconds=None)
        found = format_of(session, place, where)
        if found < len(STEPS):
            if found == 0:
                _create(session, place, where)
            session.script(STEPS[found](place.quoted, place.lock))
            session.run(
                Statement(f"UPDATE {place.quoted}.meta SET value = $1 WHERE name = 'format'", "i"), (found + 1,)
            )
            found += 1
        session.script("COMMIT")
    except BaseException:
        if session.whole:
            session.script("ROLLBACK")
        raise
    return found


def _create(session: Session, place: Place, where: str) -> None:
    """Make the schema, if need be, and say that it is ours."""
    ((exists, _),) = session.run(_TABLES, (place.name,))
    try:
        if not exists:
            session.script(f"CREATE SCHEMA {place.quoted}")
        session.script(
            f"CREATE TABLE {place.quoted}.meta (name text PRIMARY KEY, value bigint NOT NULL);"
            f"INSERT INTO {place.quoted}.meta VALUES ('backtrail', {MARK}), ('format', 0), ('epoch', 1)"
        )
    except psycopg.errors.InsufficientPrivilege as error:
        user = session.connection.info.user
        raise Unavailable(
            f"{where}: there is no store in schema {place.name!r}, and role {user!r} may not create one: "
            f'let its owner run: CREATE SCHEMA {place.quoted} AUTHORIZATION "{user}"',
            code="unavailable.permission",
        ) from error


def _refuse_other_formats(found: int, place: Place, where: str) -> None:
    if found == 0:
        raise NotFound(f"{where}: there is no store in schema {place.name!r}", code="not_found.store")
    if found < READABLE_FROM:
        raise Unavailable(
            f"{where}: has the older format {found}: open it once for writing, which converts it",
            code="unavailable.read_only",
            format=found,
        )


def _not_ours(place: Place, where: str) -> Invalid:
    return Invalid(
        f"{where}: schema {place.name!r} has tables of somebody else's under the names that backtrail uses: "
        "name another one with schema=",
        code="invalid.store",
    )
