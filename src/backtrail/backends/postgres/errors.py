"""What PostgreSQL's errors mean to a caller. They are told apart by their SQLSTATE.

Only libpq knows the SQLSTATE of an error that a server gives instead of a connection, and does not tell. What is to be
told apart of those is by the server's words; from a server that speaks another language they are all the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from backtrail.errors import Corrupt, Error, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    import psycopg

AGAIN: Final = "BT001"
"""What our own functions raise when somebody else was first between a look and a write."""

# The server goes down, starts up, or has cut the connection.
_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
# Two transactions were in each other's way; or a pooler has mixed up sessions in the middle of one.
_IN_THE_WAY: Final = frozenset({"40001", "40P01", AGAIN, "26000", "42P05"})
# Something is wrong with a value, and says nothing about what else is written.
_ALONE: Final = ("22", "23", "54")

_BUSY: Final = "53300"
_REFUSALS: Final = (
    (re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|to log in"), "28000"),
    (re.compile(r"database .* does not exist"), "3D000"),
    (re.compile(r"too many clients|too many connections|connection slots"), _BUSY),
)


def state_of(error: psycopg.Error) -> str | None:
    """Return the SQLSTATE of an error, None if the connection was lost or there is no server."""
    if error.sqlstate is not None:
        return error.sqlstate
    return next((state for words, state in _REFUSALS if words.search(str(error))), None)


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether the connection is gone or could not be had, and another one may go on."""
    state = state_of(error)
    return state is None or state.startswith("08") or state in _AWAY or state == _BUSY


def is_in_the_way(error: psycopg.Error) -> bool:
    """Tell whether the same may go well when it is tried again."""
    return error.sqlstate in _IN_THE_WAY


def is_alone(error: psycopg.Error) -> bool:
    """Tell whether the error concerns one write of several."""
    return (error.sqlstate or "").startswith(_ALONE)


# By SQLSTATE, or its first two letters: the error, its code, and what to do.
_MEANINGS: Final[dict[str, tuple[type[Error], str, str]]] = {
    "08": (Unavailable, "unavailable.connection", "check that it runs and can be reached from here"),
    "28": (Unavailable, "unavailable.login", "check the user, the password and the server's pg_hba.conf"),
    "3D000": (Unavailable, "unavailable.open", "create the database, or name another"),
    "25006": (Unavailable, "unavailable.read_only", "it takes no writes: use the primary, or say read_only=True"),
    "42501": (Unavailable, "unavailable.permission", "grant the role what it needs: docs/postgresql.md says what"),
    "3F000": (NotFound, "not_found.store", "the schema of this store is gone"),
    "42P01": (NotFound, "not_found.store", "the tables of this store are gone"),
    "42883": (NotFound, "not_found.store", "the functions of this store are gone"),
    "53100": (Unavailable, "unavailable.full", "the server's disk is full: free some space and try again"),
    "53300": (Unavailable, "unavailable.connections", "no connection is left: use a smaller pool_size, or a pooler"),
    "53": (Unavailable, "unavailable.resources", "the server is short of something: try again later"),
    "54": (Invalid, "invalid.size", "this is too large for one value"),
    "55P03": (Unavailable, "unavailable.locked", "somebody else holds a lock on it: try again"),
    "57014": (Unavailable, "unavailable.cancelled", "the server ended the statement: its statement_timeout is short"),
    "57": (Unavailable, "unavailable.connection", "the server is going down or starting: try again"),
    "58030": (Unavailable, "unavailable.io", "the server's disk fails"),
    "XX001": (Corrupt, "corrupt.store", "the database is damaged: restore a backup"),
    "XX002": (Corrupt, "corrupt.store", "an index of the database is damaged: reindex it, or restore a backup"),
}  # fmt: skip


def translated(error: psycopg.Error, where: str) -> Error:
    """Return backtrail's error for one of PostgreSQL's; `where` names the store, without its password."""
    state = state_of(error) or "08"
    kind, code, advice = _MEANINGS.get(state) or _MEANINGS.get(state[:2]) or _OTHER
    return kind(f"{where}: {said(error)}: {advice}", code=code)


_OTHER: Final = (Unavailable, "unavailable.postgresql", "PostgreSQL refused")


def said(error: psycopg.Error) -> str:
    """Return what the server or libpq said, in one line."""
    text = error.diag.message_primary or str(error) or "the connection failed"
    return " ".join(text.split())
