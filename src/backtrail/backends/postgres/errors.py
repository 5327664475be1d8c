"""Classify PostgreSQL's errors by their SQLSTATE, and translate them.

libpq does not report the SQLSTATE of a refused connection. This module recognises such errors by the English text of
the message; in other languages it treats them all alike.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from backtrail.errors import Corrupt, Error, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    import psycopg

AGAIN: Final = "BT001"
"""The SQLSTATE that our own functions raise if another writer was first between a read and a write."""

# The server shuts down, starts, has closed the connection, or has become a standby.
_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006"})
# Two transactions conflicted; or a pooler has mixed up sessions in the middle of a transaction.
_IN_THE_WAY: Final = frozenset({"40001", "40P01", AGAIN, "26000", "42P05"})
# A value is invalid: other writes are not affected.
_ALONE: Final = ("22", "23", "54")

_BUSY: Final = "53300"
_REFUSALS: Final = (
    (re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|to log in"), "28000"),
    (re.compile(r"database .* does not exist"), "3D000"),
    (re.compile(r"session is read-only|server is in hot standby mode"), "25006"),
    (re.compile(r"too many clients|too many connections|connection slots"), _BUSY),
)


def state_of(error: psycopg.Error) -> str | None:
    """Return the SQLSTATE of an error; None if the connection was lost, or the server cannot be reached."""
    if error.sqlstate is not None:
        return error.sqlstate
    return next((state for words, state in _REFUSALS if words.search(str(error))), None)


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether the connection was lost or refused for now, so that another connection may succeed."""
    state = state_of(error)
    return state is None or state.startswith("08") or state in _AWAY or state == _BUSY


def is_conflict(error: psycopg.Error) -> bool:
    """Tell whether the transaction conflicted with another one, so that a retry may succeed."""
    return error.sqlstate in _IN_THE_WAY


def is_single_write(error: psycopg.Error) -> bool:
    """Tell whether the error concerns a single write, and not the other writes of its group."""
    return (error.sqlstate or "").startswith(_ALONE)


# By SQLSTATE, or its first two letters: the error class, its code, and the advice.
_MEANINGS: Final[dict[str, tuple[type[Error], str, str]]] = {
    "08": (Unavailable, "unavailable.connection", "check that the server runs and can be reached from here"),
    "28": (Unavailable, "unavailable.login", "check the user, the password and the server's pg_hba.conf"),
    "3D000": (Unavailable, "unavailable.open", "create the database, or use another one"),
    "25006": (Unavailable, "unavailable.read_only", "the server is read-only: use the primary, or read_only=True"),
    "42501": (Unavailable, "unavailable.permission", "grant the role the rights in docs/postgresql.md"),
    "3F000": (NotFound, "not_found.store", "the schema of this store was removed"),
    "42P01": (NotFound, "not_found.store", "the tables of this store were removed"),
    "42883": (NotFound, "not_found.store", "the functions of this store were removed"),
    "53100": (Unavailable, "unavailable.full", "the server's disk is full: free some space and try again"),
    "53300": (Unavailable, "unavailable.connections", "the server has no free connection: use a smaller pool_size"),
    "53": (Unavailable, "unavailable.resources", "the server lacks a resource: try again later"),
    "54": (Invalid, "invalid.size", "this value is too large"),
    "55P03": (Unavailable, "unavailable.locked", "another transaction holds a lock on it: try again"),
    "57014": (Unavailable, "unavailable.cancelled", "the server canceled the statement: raise its statement_timeout"),
    "57": (Unavailable, "unavailable.connection", "the server is shutting down or starting: try again"),
    "58030": (Unavailable, "unavailable.io", "the server's disk has failed"),
    "XX001": (Corrupt, "corrupt.store", "the database is damaged: restore a backup"),
    "XX002": (Corrupt, "corrupt.store", "an index of the database is damaged: reindex it, or restore a backup"),
}  # fmt: skip


def translated(error: psycopg.Error, where: str) -> Error:
    """Return the backtrail error for an error of PostgreSQL; `where` names the store, without its password."""
    state = state_of(error) or "08"
    kind, code, advice = _MEANINGS.get(state) or _MEANINGS.get(state[:2]) or _OTHER
    return kind(f"{where}: {message_of(error)}: {advice}", code=code)


_OTHER: Final = (Unavailable, "unavailable.postgresql", "PostgreSQL refused")


def message_of(error: psycopg.Error) -> str:
    """Return the message of the server or of libpq, in one line."""
    text = error.diag.message_primary or str(error) or "the connection failed"
    return " ".join(text.split())
