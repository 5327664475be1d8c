"""One connection to PostgreSQL, used by one thread at a time, that runs statements and returns rows.

It uses libpq through `psycopg.pq`, because a psycopg cursor takes as much time as the insert of a row. Values are sent
in binary. A statement is prepared once per connection, under a name made from its text. A pooler may give one session
to several clients. Then the name may be unknown, or exist already, but it never means another statement. After such an
error, all statements are sent with their text.

Errors are psycopg's; an error without an `sqlstate` means that the connection was lost. After an exception a session
may be inside a transaction: see `is_idle`.
"""

from __future__ import annotations

import os
import select
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from backtrail.errors import Unavailable

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from psycopg.pq.abc import PGresult

READ_ONLY: Final = "25006"
"""The SQLSTATE of a write that the server refuses because it is a standby."""
REPLY_SECONDS: Final = 60.0
"""If the server is silent for this many seconds, the connection counts as lost."""

_BINARY: Final = pq.Format.BINARY
_FINE: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_READABLE: Final = select.POLLIN if hasattr(select, "poll") else 1
_WRITABLE: Final = select.POLLOUT if hasattr(select, "poll") else 4


# -- values ---------------------------------------------------------------------------------------------

_int8: Final = struct.Struct("!q").pack
_int4: Final = struct.Struct("!i").pack
_head: Final = struct.Struct("!iii ii").pack
_NULL: Final = _int4(-1)


def _bool(value: bool) -> bytes:  # noqa: FBT001 - it is the value
    return b"\1" if value else b"\0"


# By letter: the OID of the type in PostgreSQL, and the function that encodes a value.
_TYPES: Final[dict[str, tuple[int, Callable[[Any], bytes]]]] = {
    "i": (20, _int8),
    "b": (17, bytes),
    "t": (25, str.encode),
    "o": (16, _bool),
}
_ARRAYS: Final = {"i": 1016, "b": 1001, "t": 1009, "o": 1000}


def _array(code: str) -> tuple[int, Callable[[Any], bytes]]:
    """Return the OID and the encoder of one-dimensional arrays of a type; None becomes NULL."""
    oid, encode = _TYPES[code]

    def written(values: Sequence[Any]) -> bytes:
        if not values:
            return _head(0, 0, oid, 0, 0)[:12]
        parts = [_head(1, None in values, oid, len(values), 1)]
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                data = encode(value)
                parts += (_int4(len(data)), data)
        return b"".join(parts)

    return _ARRAYS[code], written


_ALL_TYPES: Final = {**_TYPES, **{code.upper(): _array(code) for code in _TYPES}}


class Statement:
    """A statement and the types of its parameters, one letter each.

    i: bigint, b: bytea, t: text, o: boolean; a capital letter is an array of the type. A statement that is not `named`
    is not prepared: the server plans it for its values each time.
    """

    __slots__ = ("_encoders", "formats", "name", "named", "oids", "text")

    def __init__(self, text: str, types: str = "", *, named: bool = True) -> None:
        self.text = text.encode()
        self.named = named
        self.name = b"backtrail_" + blake2b(self.text + b"\0" + types.encode(), digest_size=12).hexdigest().encode()
        self.oids = [_ALL_TYPES[code][0] for code in types]
        self.formats = [_BINARY] * len(types)
        self._encoders = [_ALL_TYPES[code][1] for code in types]

    def parameters(self, values: Iterable[Any]) -> list[bytes | None]:
        """Return the values encoded for the server."""
        return [None if value is None else encode(value) for encode, value in zip(self._encoders, values, strict=True)]


class Parameters:
    """The parameters of a statement that is built at run time."""

    __slots__ = ("types", "values")

    def __init__(self) -> None:
        self.types = ""
        self.values: list[Any] = []

    def add(self, letter: str, value: Any) -> str:
        """Add a value with the letter of its type, and return its placeholder: $1, $2 ..."""
        self.types += letter
        self.values.append(value)
        return f"${len(self.values)}"


# -- sessions -------------------------------------------------------------------------------------------


class PgSession:
    """A connection that runs statements.

    All sessions of a pool share `unnamed`. It is set when a pooler has lost a prepared statement.
    """

    __slots__ = ("__weakref__", "_pg", "_poll", "_prepared", "_reading", "_unnamed", "connection", "timeline", "whole")

    def __init__(self, connection: psycopg.Connection[Any], unnamed: threading.Event) -> None:
        self.connection = connection
        self.whole = True
        """Whether the reply to the last statement was read completely, and the server accepts writes."""
        self.timeline: tuple[int, int] | None = None
        """The identifier of the database system and its timeline, if they are known; see `Pool`."""
        self._pg = connection.pgconn
        self._unnamed = unnamed
        self._prepared: set[bytes] = set()
        self._reading = Transformer(connection)
        self._poll = _poller(self._pg.socket)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open, and the session waits for no reply."""
        return self.whole and self._pg.transaction_status == pq.TransactionStatus.IDLE

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed, the server did not reply, or it no longer accepts writes."""
        return not self.whole or self._pg.transaction_status == pq.TransactionStatus.UNKNOWN

    def run(
        self, statement: Statement, values: Sequence[Any] = (), *, seconds: float | None = REPLY_SECONDS
    ) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; `seconds` is the longest silence of the server, None means no limit."""
        result = self._result(statement, values, seconds)
        if not result.ntuples:
            return []
        self._reading.set_pgresult(result)
        return self._reading.load_rows(0, result.ntuples, tuple)

    def count(self, statement: Statement, values: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it wrote."""
        return self._result(statement, values, REPLY_SECONDS).command_tuples or 0

    def _result(self, statement: Statement, values: Sequence[Any], seconds: float | None) -> PGresult:
        parameters = statement.parameters(values)
        if statement.named and not self._unnamed.is_set():
            try:
                if statement.name not in self._prepared:
                    self._prepare(statement)
                self.whole = False
                self._pg.send_query_prepared(statement.name, parameters, statement.formats, _BINARY)
                return self._reply(seconds)
            except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement):
                # A pooler is in between, and does not keep one session for this client.
                self._unnamed.set()
                if not self.is_idle:
                    raise  # the error has aborted the transaction
        self.whole = False
        self._pg.send_query_params(statement.text, parameters, statement.oids, statement.formats, _BINARY)
        return self._reply(seconds)

    def script(self, text: str, *, seconds: float | None = REPLY_SECONDS) -> None:
        """Run a script of statements without parameters: one transaction, unless the script has BEGIN or COMMIT."""
        self.whole = False
        self._pg.send_query(text.encode())
        self._reply(seconds)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _prepare(self, statement: Statement) -> None:
        self.whole = False
        self._pg.send_prepare(statement.name, statement.text, statement.oids)
        self._reply(REPLY_SECONDS)
        self._prepared.add(statement.name)

    def _reply(self, seconds: float | None) -> PGresult:
        """Read the reply and return its last result; raise if a result is an error."""
        results = self._results(seconds)
        self.whole = True
        for result in results:
            if result.status not in _FINE:
                error = psycopg.errors.error_from_result(result)
                self.whole = error.sqlstate != READ_ONLY  # the primary has become a standby
                raise error
        return results[-1]

    def _results(self, seconds: float | None) -> list[PGresult]:
        """Send the buffered statements, wait for the whole reply, and return its results."""
        connection = self._pg
        while connection.flush():
            if self._wait(_READABLE | _WRITABLE, seconds) & ~_WRITABLE:
                connection.consume_input()
        results: list[PGresult] = []
        while True:
            while connection.is_busy():
                self._wait(_READABLE, seconds)
                connection.consume_input()
            result = connection.get_result()
            if result is None:
                break
            results.append(result)
        if not results:
            raise psycopg.OperationalError("the connection was lost")
        return results

    def _wait(self, events: int, seconds: float | None) -> int:
        ready = self._poll(events, seconds)
        if not ready:
            raise psycopg.OperationalError(f"the server has been silent for {seconds:g} s")
        return ready


def refuse_if_forked(pid: int) -> None:
    """Raise `Unavailable` if the transaction of a connection belongs to the parent process."""
    if pid != os.getpid():
        raise Unavailable(
            "this process was forked in the middle of a group or an export, which is its parent's: begin it again",
            code="unavailable.forked",
        )


def _poller(socket: int) -> Callable[[int, float | None], int]:
    """Return a function that waits until the socket is readable or writable, and returns the events; 0 on timeout."""
    if hasattr(select, "poll"):
        poll = select.poll()

        def wait(events: int, seconds: float | None) -> int:
            poll.register(socket, events)
            ready = poll.poll(None if seconds is None else seconds * 1000)
            return ready[0][1] if ready else 0

        return wait

    def wait_otherwise(events: int, seconds: float | None) -> int:
        writers = [socket] if events & _WRITABLE else []
        readable, writable, _ = select.select([socket], writers, [], seconds)
        return (_READABLE if readable else 0) | (_WRITABLE if writable else 0)

    return wait_otherwise
