"""The connections of one store, and the patience with which it uses them.

`pool.do(work)` runs `work(session)` and returns what it gives. Work may be done more than once: when the connection is
lost, another one is opened, for as long as the pool's patience lasts; when two transactions were in each other's way,
it is tried again. So all work must be such that a repetition counts once. If the server stays away after work that
writes was sent to it, nobody knows what became of that: `CommitUnknown`.

A process that was forked off has the connections of its parent, which it must neither use nor close. It keeps them
untouched and opens its own.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from backtrail.backends.postgres_errors import is_in_the_way, is_lost, said, translated
from backtrail.backends.postgres_session import Naming, Session
from backtrail.errors import CommitUnknown, Error, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TURN_SECONDS: Final = 10.0
"""For how long a thread waits for a connection while others use them all."""

# What libpq does not do by itself: notice a server that is gone without a word.
_CONNECTING: Final = {
    "application_name": "backtrail",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 40_000,
}
# What a parent process had opened: kept, so that nothing closes it.
_inherited: Final[list[Session]] = []


class Pool:
    """Up to `size` sessions, opened when they are needed. `where` is how errors name the store."""

    def __init__(self, options: dict[str, Any], where: str, *, size: int, patience: float) -> None:
        self._options = {**_CONNECTING, **options}
        self.where = where
        self._size = size
        self._patience = patience
        self._naming = Naming()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._turns = threading.BoundedSemaphore(self._size)
        self._idle: deque[Session] = deque()
        weakref.finalize(self, _close, self._idle, self._pid)

    # -- work ---------------------------------------------------------------------------------------

    def do(
        self,
        work: Callable[[Session], T],
        *,
        writes: bool = False,
        patience: float | None = None,
        doubt: psycopg.Error | None = None,
    ) -> T:
        """Do work that counts once, however often it is done; `writes` if it changes something.

        `doubt` is what came instead of the reply to a write that this work is to find out about.
        """
        return self._patiently(work, writes=writes, patience=patience, doubt=doubt)[0]

    def keep(self, work: Callable[[Session], None]) -> Session:
        """Do work, and return the session, which is the caller's until it is given back."""
        return self._patiently(work, keep=True)[1]

    def _patiently(
        self,
        work: Callable[[Session], T],
        *,
        writes: bool = False,
        patience: float | None = None,
        doubt: psycopg.Error | None = None,
        keep: bool = False,
    ) -> tuple[T, Session]:
        until = 0.0
        tries = 0
        while True:
            try:
                session = self.take()
                try:
                    result = work(session)
                except BaseException as error:
                    self.give(session)
                    if writes and doubt is None and isinstance(error, psycopg.Error) and error.sqlstate is None:
                        doubt = error
                    raise
                if not keep:
                    self.give(session)
            except psycopg.Error as error:
                until = until or time.monotonic() + (self._patience if patience is None else patience)
                if not (is_lost(error) or is_in_the_way(error)) or time.monotonic() >= until:
                    raise self._given_up(translated(error, self.where), doubt) from error
                tries += 1
                time.sleep(random.random() * min(0.005 * 2**tries, 0.25))  # noqa: S311 - only to get out of step
            except Unavailable as error:  # no session was to be had
                if doubt is None:
                    raise
                raise self._given_up(error, doubt) from error
            else:
                return result, session

    def _given_up(self, error: Error, doubt: psycopg.Error | None) -> Error:
        """Return the error to raise; after a write without a reply no other says what became of it."""
        if doubt is None:
            return error
        return CommitUnknown(
            f"{self.where}: the connection was lost during a write ({said(doubt)}), and what became of it cannot be "
            f"found out ({error}): read again before you repeat it",
            code="commit_unknown.connection",
        )

    # -- sessions -----------------------------------------------------------------------------------

    def take(self) -> Session:
        """Return a session for the caller alone, until it is given back."""
        if self._pid != os.getpid():
            _inherited.extend(self._idle)
            self._begin()
        if self._closed:
            raise Unavailable(f"{self.where}: this store is closed: open it again", code="unavailable.closed")
        if not self._turns.acquire(blocking=False) and not self._turns.acquire(timeout=TURN_SECONDS):
            raise Unavailable(
                f"{self.where}: all {self._size} connections have been in use for {TURN_SECONDS:g} s: "
                "use a larger pool_size, or fewer threads",
                code="unavailable.locked",
            )
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return Session(self.connect(), self._naming)
        except BaseException:
            self._turns.release()
            raise

    def give(self, session: Session) -> None:
        """Take a session back; one that is in the middle of something is closed."""
        if session.is_idle and not self._closed:
            self._idle.append(session)
        else:
            session.close()
            if not self._closed:
                self._drop_the_dead()
        self._turns.release()

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection."""
        return psycopg.connect(autocommit=True, prepare_threshold=None, **self._options)

    def _drop_the_dead(self) -> None:
        """Close idle sessions, which have mostly lost their connection with the one that did."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        """Close what is idle, and what is in use when it is given back."""
        self._closed = True
        if self._pid == os.getpid():
            self._drop_the_dead()


def _close(idle: deque[Session], pid: int) -> None:
    if pid == os.getpid():
        for session in idle:
            session.close()
    else:
        _inherited.extend(idle)
