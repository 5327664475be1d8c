"""Connection pool with retries.

`pool.do(work)` runs `work(session)` and returns its result. If the connection is lost, it runs the work again with
another connection, for up to `patience` seconds. It also repeats the work if two transactions conflicted. So all work
must be idempotent. If the server is unreachable after a write was sent to it, the outcome is unknown: `CommitUnknown`.

A former primary that comes back after a failover may take itself for the primary for some seconds. It lacks the newest
rows, so a pool refuses a server whose timeline is older than one that it has seen: PostgreSQL counts the timeline up
with each failover.

The pool counts its sessions by weak references. If Ctrl-C prevented the return of a session, the session counts until
Python has collected it.

A forked process inherits the connections of its parent. It must neither use nor close them. So it keeps references to
them, and opens its own.

`psycopg_pool` is not used: it connects in its own threads, which a fork does not copy, and reports a refused login only
by a timeout; each use takes 3 to 6 us of CPU instead of 1.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from backtrail.backends.postgres.errors import is_conflict, is_lost, message_of, translated
from backtrail.backends.postgres.session import PgSession, Statement
from backtrail.errors import CommitUnknown, Error, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TURN_SECONDS: Final = 10.0
"""The longest wait of a thread for a free connection, in seconds."""
_LOOK_SECONDS: Final = 1.0

_TIMELINE: Final = Statement(
    "SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint "
    "FROM pg_control_system()",
    named=False,
)

# With these options, libpq notices that a server is gone without having closed the connection.
_CONNECTING: Final = {
    "application_name": "backtrail",
    "client_encoding": "UTF8",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 40_000,
}
# The sessions of a parent process. These references keep Python from closing them.
_inherited: Final[list[PgSession]] = []


class Pool:
    """Up to `size` sessions, opened when needed. `where` is the name of the store in error messages."""

    def __init__(self, options: dict[str, Any], where: str, *, size: int, patience: float) -> None:
        self._options = {**_CONNECTING, **options}
        self.where = where
        self._size = size
        self._patience = patience
        self._no_prepare = threading.Event()
        self._closed = False
        self.losses = 0
        """How many connections were lost: the server of the next one may lack what this process knows."""
        self._timeline: tuple[int, int] | None = None
        """The identifier of the database system, and its newest timeline so far."""
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free: deque[PgSession] = deque()  # used as a stack
        self._sessions: weakref.WeakSet[PgSession] = weakref.WeakSet()
        self._connecting = 0
        self._waiting = 0
        self._returned = threading.Condition()
        weakref.finalize(self, _close_all, self._free, self._pid)

    # -- work ---------------------------------------------------------------------------------------

    def do(
        self,
        work: Callable[[PgSession], T],
        *,
        writes: bool = False,
        patience: float | None = None,
        doubt: psycopg.Error | None = None,
    ) -> T:
        """Return `work(session)`, with retries. The work must be idempotent. Set `writes` if it changes the store.

        `doubt` is the error of an earlier write that got no reply; this work finds out its outcome.
        """
        return self._retry(work, writes=writes, patience=patience, doubt=doubt)[0]

    def keep(self, work: Callable[[PgSession], None]) -> PgSession:
        """Run work with retries, and return its session, which belongs to the caller until `give`."""
        return self._retry(work, keep=True)[1]

    def _retry(
        self,
        work: Callable[[PgSession], T],
        *,
        writes: bool = False,
        patience: float | None = None,
        doubt: psycopg.Error | None = None,
        keep: bool = False,
    ) -> tuple[T, PgSession]:
        began = 0.0
        tries = 0
        while True:
            try:
                session = self.take()
                try:
                    result = work(session)
                    self.refuse_older(session)
                except BaseException as error:
                    self.give(session)
                    if writes and doubt is None and isinstance(error, psycopg.Error) and error.sqlstate is None:
                        doubt = error
                    raise
                if not keep:
                    self.give(session)
            except psycopg.Error as error:
                began = began or time.monotonic()
                conflicted = is_conflict(error)
                # The caller's limit is for an unreachable server, not for conflicts.
                limit = self._patience if patience is None or conflicted else patience
                if not (conflicted or is_lost(error)) or time.monotonic() >= began + limit:
                    raise self._failure(translated(error, self.where), doubt) from error
                tries += 1
                time.sleep(random.random() * min(0.005 * 2**tries, 0.25))  # noqa: S311 - only to get out of step
            except Unavailable as error:  # no session was free
                if doubt is None:
                    raise
                raise self._failure(error, doubt) from error
            else:
                return result, session

    def _failure(self, error: Error, doubt: psycopg.Error | None) -> Error:
        """Return the error to raise: `CommitUnknown` if `doubt` is the error of a write without a reply."""
        if doubt is None:
            return error
        return CommitUnknown(
            f"{self.where}: the connection was lost during a write ({message_of(doubt)}), and its outcome is unknown "
            f"({error}): read again before you repeat it",
            code="commit_unknown.connection",
        )

    # -- sessions -----------------------------------------------------------------------------------

    def take(self) -> PgSession:
        """Return a session that belongs to the caller until `give`."""
        if self._pid != os.getpid():
            _inherited.extend(self._free)
            self._begin()
        if self._closed:
            raise Unavailable(f"{self.where}: this store is closed: open it again", code="unavailable.closed")
        try:
            return self._free.pop()
        except IndexError:
            return self._wait_for_one() or self._open()

    def _wait_for_one(self) -> PgSession | None:
        """Wait for a free session and return it; return None if the caller may open another session."""
        until = time.monotonic() + TURN_SECONDS
        with self._returned:
            self._waiting += 1
            try:
                while True:
                    with suppress(IndexError):
                        return self._free.pop()
                    if len(self._sessions) + self._connecting < self._size:
                        self._connecting += 1
                        return None
                    left = until - time.monotonic()
                    if left <= 0:
                        raise Unavailable(
                            f"{self.where}: all {self._size} connections have been in use for {TURN_SECONDS:g} s: "
                            "use a larger pool_size, or fewer threads",
                            code="unavailable.locked",
                        )
                    if not self._returned.wait(min(left, _LOOK_SECONDS)):
                        gc.collect()  # collects sessions that an interrupt kept from being returned
            finally:
                self._waiting -= 1

    def _open(self) -> PgSession:
        """Open a session and return it. `_wait_for_one` has counted it in `_connecting`."""
        try:
            session = PgSession(self.connect(), self._no_prepare)
            self._refuse_former_primary(session)
            self._sessions.add(session)
        finally:
            with self._returned:
                self._connecting -= 1
        return session

    def _refuse_former_primary(self, session: PgSession) -> None:
        try:
            ((system, timeline),) = session.run(_TIMELINE)
        except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InsufficientPrivilege):
            return  # a standby, or a role that may not know
        session.timeline = system, timeline
        try:
            self.refuse_older(session)
        except psycopg.OperationalError:
            session.close()
            raise
        self._timeline = session.timeline

    def refuse_older(self, session: PgSession) -> None:
        """Raise `psycopg.OperationalError` if the server of a session was the primary before a failover."""
        known, own = self._timeline, session.timeline
        if known is not own and known is not None and own is not None and own[0] == known[0] and own[1] < known[1]:
            session.whole = False  # it is not used again
            raise psycopg.OperationalError("this server was the primary before a failover, and lacks the newest rows")

    def give(self, session: PgSession) -> None:
        """Return a session to the pool; close it if it is inside a transaction or waits for a reply."""
        if session.is_idle and not self._closed:
            self._free.append(session)
        else:
            self.losses += session.is_lost
            self._close(session)
            if not self._closed:
                self._close_free()
        if self._waiting:
            with self._returned:
                self._returned.notify()

    def _close(self, session: PgSession) -> None:
        self._sessions.discard(session)
        session.close()

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection."""
        return psycopg.connect(autocommit=True, prepare_threshold=None, **self._options)

    def _close_free(self) -> None:
        """Close the free sessions: if one session has lost its connection, the others probably have, too."""
        with suppress(IndexError):
            for _ in range(self._size):
                self._close(self._free.pop())

    def close(self) -> None:
        """Close the free sessions now, and each other session when it is given back."""
        self._closed = True
        if self._pid == os.getpid():
            self._close_free()


def _close_all(free: deque[PgSession], pid: int) -> None:
    for session in free:
        if pid == os.getpid():
            session.close()
        else:
            _inherited.append(session)
