"""The connections of one store, and the patience with which it uses them.

`pool.do(work)` runs `work(session)` and returns what it gives. Work may be done more than once: when the connection is
lost, another one is opened, for as long as the pool's patience lasts; when two transactions were in each other's way,
it is tried again. So all work must be such that a repetition counts once. If the server stays away after work that
writes was sent to it, nobody knows what became of that: `CommitUnknown`.

How many connections there are is counted by the sessions that exist, not by what was taken and given: one that somebody
was interrupted with, by Ctrl-C, and never gave back, counts no longer once it is forgotten.

A process that was forked off has the connections of its parent, which it must neither use nor close. It keeps them
untouched and opens its own.
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

from backtrail.backends.postgres.errors import is_in_the_way, is_lost, said, translated
from backtrail.backends.postgres.session import Naming, Seat, Session
from backtrail.errors import CommitUnknown, Error, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TURN_SECONDS: Final = 10.0
"""For how long a thread waits for a connection while others use them all."""
_LOOK_SECONDS: Final = 1.0

# What libpq does not do by itself: notice a server that is gone without a word.
_CONNECTING: Final = {
    "application_name": "backtrail",
    "client_encoding": "UTF8",
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
        self._free: deque[Session] = deque()  # the newest is taken first
        self._seats: weakref.WeakSet[Seat] = weakref.WeakSet()
        self._waiting = 0
        self._given = threading.Condition()
        weakref.finalize(self, _close, self._free, self._pid)

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
        began = 0.0
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
                began = began or time.monotonic()
                in_the_way = is_in_the_way(error)
                # The caller's patience is for a server that is away.
                limit = self._patience if patience is None or in_the_way else patience
                if not (in_the_way or is_lost(error)) or time.monotonic() >= began + limit:
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
            _inherited.extend(self._free)
            self._begin()
        if self._closed:
            raise Unavailable(f"{self.where}: this store is closed: open it again", code="unavailable.closed")
        try:
            return self._free.pop()
        except IndexError:
            found = self._wait_for_one()
        return found if isinstance(found, Session) else Session(self.connect(), self._naming, found)

    def _wait_for_one(self) -> Session | Seat:
        """Return a session that is free, or a seat for another one."""
        until = time.monotonic() + TURN_SECONDS
        with self._given:
            self._waiting += 1
            try:
                while True:
                    with suppress(IndexError):
                        return self._free.pop()
                    if len(self._seats) < self._size:
                        seat = Seat()
                        self._seats.add(seat)
                        return seat
                    left = until - time.monotonic()
                    if left <= 0:
                        raise Unavailable(
                            f"{self.where}: all {self._size} connections have been in use for {TURN_SECONDS:g} s: "
                            "use a larger pool_size, or fewer threads",
                            code="unavailable.locked",
                        )
                    if not self._given.wait(min(left, _LOOK_SECONDS)):
                        gc.collect()  # nobody tells of a session that was forgotten
            finally:
                self._waiting -= 1

    def give(self, session: Session) -> None:
        """Take a session back; one that is in the middle of something is closed."""
        if session.is_idle and not self._closed:
            self._free.append(session)
        else:
            session.close()
            if not self._closed:
                self._close_free()
        if self._waiting:
            with self._given:
                self._given.notify()

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection."""
        return psycopg.connect(autocommit=True, prepare_threshold=None, **self._options)

    def _close_free(self) -> None:
        """Close the sessions that nobody uses: where one has lost its connection, others mostly have, too."""
        with suppress(IndexError):
            for _ in range(self._size):
                self._free.pop().close()

    def close(self) -> None:
        """Close what is idle, and what is in use when it is given back."""
        self._closed = True
        if self._pid == os.getpid():
            self._close_free()


def _close(free: deque[Session], pid: int) -> None:
    for session in free:
        if pid == os.getpid():
            session.close()
        else:
            _inherited.append(session)
