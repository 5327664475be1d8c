"""One connection to PostgreSQL, used by one thread at a time: statements go out, and rows come back.

It speaks to libpq by way of `psycopg.pq`, below psycopg's cursors, which take as long as the insert of a row. Values
travel in binary. A statement is prepared, once per connection, under a name that is made of its text: behind a pooler
that mixes up the sessions of its clients, a name may turn out to be unknown, or known already, but it never means
something else. From then on statements are sent with their text.

Errors are psycopg's; one without an `sqlstate` means that the connection was lost. After an exception a session may be
in the middle of something: `is_idle` tells.
"""

from __future__ import annotations

import select
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from psycopg.pq.abc import PGresult

REPLY_SECONDS: Final = 60.0
"""For how long a server may be silent before the connection counts as lost."""

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


# By code: the number of the type in PostgreSQL, and how a value of it is written.
_TYPES: Final[dict[str, tuple[int, Callable[[Any], bytes]]]] = {
    "i": (20, _int8),
    "b": (17, bytes),
    "t": (25, str.encode),
    "o": (16, _bool),
}
_ARRAYS: Final = {"i": 1016, "b": 1001, "t": 1009, "o": 1000}


def _array(code: str) -> tuple[int, Callable[[Any], bytes]]:
    """Return the type of arrays of a type: one dimension, and NULLs where there is None."""
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

    i: bigint, b: bytea, t: text, o: boolean; in capitals, an array of them. One that is not `named` is not prepared,
    but planned for its values each time.
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
        """Return values as they are sent."""
        return [None if value is None else encode(value) for encode, value in zip(self._encoders, values, strict=True)]


class Given:
    """Values for a statement that is put together: each is given with its type, and named by its number."""

    __slots__ = ("types", "values")

    def __init__(self) -> None:
        self.types = ""
        self.values: list[Any] = []

    def __call__(self, letter: str, value: Any) -> str:
        """Take a value, and return how the statement names it."""
        self.types += letter
        self.values.append(value)
        return f"${len(self.values)}"


# -- sessions -------------------------------------------------------------------------------------------


class Naming:
    """Whether the sessions of a pool may give names to statements."""

    __slots__ = ("allowed",)

    def __init__(self) -> None:
        self.allowed = True


class Seat:
    """What a session has as long as it exists and is open: there are so many of them in a pool."""

    __slots__ = ("__weakref__",)


class Session:
    """A connection that runs statements."""

    __slots__ = ("_naming", "_pg", "_poll", "_prepared", "_reading", "_seat", "connection", "whole")

    def __init__(self, connection: psycopg.Connection[Any], naming: Naming, seat: Seat | None = None) -> None:
        self.connection = connection
        self._seat = seat
        self.whole = True
        """Whether every statement was followed by its reply."""
        self._pg = connection.pgconn
        self._naming = naming
        self._prepared: set[bytes] = set()
        self._reading = Transformer(connection)
        self._poll = _poller(self._pg.socket)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a statement, outside of any transaction."""
        return self.whole and self._pg.transaction_status == pq.TransactionStatus.IDLE

    def run(
        self, statement: Statement, values: Sequence[Any] = (), *, seconds: float | None = REPLY_SECONDS
    ) -> list[tuple[Any, ...]]:
        """Run a statement and return the rows that it gives; wait so long for each sign of life."""
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
        if self._naming.allowed and statement.named:
            try:
                if statement.name not in self._prepared:
                    self._prepare(statement)
                self.whole = False
                self._pg.send_query_prepared(statement.name, parameters, statement.formats, _BINARY)
                return self._reply(seconds)
            except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement):
                # There is a pooler in between, and it does not keep a session for us.
                self._naming.allowed = False
                if not self.is_idle:
                    raise  # the transaction is spoilt
        self.whole = False
        self._pg.send_query_params(statement.text, parameters, statement.oids, statement.formats, _BINARY)
        return self._reply(seconds)

    def script(self, text: str, *, seconds: float | None = REPLY_SECONDS) -> None:
        """Run statements without parameters, which are one transaction unless they say otherwise."""
        self.whole = False
        self._pg.send_query(text.encode())
        self._reply(seconds)

    def close(self) -> None:
        """Close the connection."""
        self._seat = None
        self.connection.close()

    def _prepare(self, statement: Statement) -> None:
        self.whole = False
        self._pg.send_prepare(statement.name, statement.text, statement.oids)
        self._reply(REPLY_SECONDS)
        self._prepared.add(statement.name)

    def _reply(self, seconds: float | None) -> PGresult:
        """Return the last result of what was sent; raise if one of them is an error."""
        results = self._results(seconds)
        self.whole = True
        for result in results:
            if result.status not in _FINE:
                raise psycopg.errors.error_from_result(result)
        return results[-1]

    def _results(self, seconds: float | None) -> list[PGresult]:
        """Send what is to be sent and wait for the whole reply."""
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
        found = self._poll(events, seconds)
        if not found:
            raise psycopg.OperationalError(f"the server has been silent for {seconds:g} s")
        return found


def _poller(socket: int) -> Callable[[int, float | None], int]:
    """Return a function that waits until something can be read or written, and tells which; 0 if nothing came."""
    if hasattr(select, "poll"):
        poll = select.poll()

        def wait(events: int, seconds: float | None) -> int:
            poll.register(socket, events)
            found = poll.poll(None if seconds is None else seconds * 1000)
            return found[0][1] if found else 0

        return wait

    def wait_otherwise(events: int, seconds: float | None) -> int:
        wanted = [socket] if events & _WRITABLE else []
        readable, writable, _ = select.select([socket], wanted, [], seconds)
        return (_READABLE if readable else 0) | (_WRITABLE if writable else 0)

    return wait_otherwise
