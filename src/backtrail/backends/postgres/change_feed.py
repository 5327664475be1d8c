"""Which threads have moved: what a process tells others of its commits, and hears of theirs.

NOTIFY inside a save would make all writers of the database queue up for it. So a process tells others a moment later,
and of many commits at once: a `Crier` collects the numbers of threads and sends them at most every 50 ms, after a word
by which it knows its own. Whoever listens has a connection for it (a `Listening`) and may still miss something: when a
process dies in that moment, or behind a pooler that passes nothing on. So it also looks: seldom if telling works, often
if it does not.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from backtrail.backends.postgres.session import Statement
from backtrail.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from backtrail.backends.postgres.pool import Pool

SELDOM: Final = 5.0
"""Seconds between two looks at what others did, if they tell."""
OFTEN: Final = 0.5
"""The same, if they cannot."""
_PAUSE: Final = 0.05
_AT_ONCE: Final = 350
"""Numbers in one message, which has less than 8,000 bytes."""
_LATE: Final = 256
"""A thread may be seen only after one with a number that is higher by so many."""

_TELL: Final = Statement(
    "SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1, $2)", "tt"
)


# -- telling --------------------------------------------------------------------------------------------


class Crier:
    """Tells other processes which threads were written to."""

    def __init__(self, pool: Pool, channel: str) -> None:
        self._pool = pool
        self.channel = channel
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self.word = secrets.token_hex(8)
        self._news: deque[int] = deque()
        self._bell = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def tell(self, numbers: Collection[int]) -> None:
        """Have it told, soon."""
        if self._pid != os.getpid():
            self._begin()
        self._news.extend(numbers)
        if self._thread is None:
            self._start()
        if not self._bell.is_set():
            self._bell.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="backtrail crier", daemon=True)
            with suppress(RuntimeError):  # an interpreter that ends starts no thread: what was written is written
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while not self._ended.is_set():
            self._bell.wait()
            self._bell.clear()
            self._send()
            self._ended.wait(_PAUSE)  # whoever closes the store does not wait for that

    def _send(self) -> None:
        numbers: set[int] = set()
        with suppress(IndexError):
            while True:
                numbers.add(self._news.popleft())
        while numbers:
            told = ",".join(str(numbers.pop()) for _ in range(min(len(numbers), _AT_ONCE)))
            try:
                self.say(f"{self.word} {told}")
            except Error:
                return  # those who listen look by themselves, too

    def say(self, message: str) -> None:
        """Tell all who listen now."""
        self._pool.do(lambda session: session.run(_TELL, (self.channel, message)), patience=0)

    def stop(self) -> None:
        """Let the thread end, without waiting for it."""
        self._ended.set()
        self._bell.set()

    def end(self) -> None:
        """Tell what was not told yet, and nothing more."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self.stop()
        if thread is not threading.current_thread():
            thread.join(2)
        self._send()


# -- hearing --------------------------------------------------------------------------------------------


class Listening:
    """Calls `wake` with the numbers of threads that other processes tell of, until it is ended."""

    def __init__(self, pool: Pool, crier: Crier, wake: Callable[[Collection[int]], None]) -> None:
        self._pool = pool
        self._crier = crier
        self._wake = wake
        self._ended = False

    def begin(self) -> float:
        """Begin, and return after how many seconds to look without having heard anything."""
        try:
            connection = self._connected()
        except (psycopg.Error, Error):
            connection = None
        if connection is not None and not self._hears(connection):
            connection.close()
            return OFTEN
        threading.Thread(target=self._run, args=(connection,), name="backtrail listener", daemon=True).start()
        return SELDOM if connection is not None else OFTEN

    def end(self) -> None:
        """End, within a second."""
        self._ended = True

    def _connected(self) -> psycopg.Connection[Any]:
        connection = self._pool.connect()
        try:
            connection.execute(f'LISTEN "{self._crier.channel}"')
        except BaseException:
            connection.close()
            raise
        return connection

    def _hears(self, connection: psycopg.Connection[Any]) -> bool:
        """Tell whether what is told reaches this connection, which it does not behind some poolers."""
        try:
            self._crier.say("")
            return any(True for _ in connection.notifies(timeout=1.0, stop_after=1))
        except (psycopg.Error, Error):
            return False

    def _run(self, connection: psycopg.Connection[Any] | None) -> None:
        while not self._ended:
            try:
                if connection is None:
                    connection = self._connected()
                    self._wake(())  # whatever was told meanwhile
                self._pass_on(connection)
            except (psycopg.Error, Error):
                connection = None
                time.sleep(OFTEN)
        if connection is not None:
            connection.close()

    def _pass_on(self, connection: psycopg.Connection[Any]) -> None:
        """Wait for a second, and pass on what is told in it."""
        try:
            for note in connection.notifies(timeout=1.0):
                word, _, numbers = note.payload.partition(" ")
                if numbers and word != self._crier.word and not self._ended:
                    self._wake([int(number) for number in numbers.split(",") if number.isdecimal()])
        except psycopg.Error:
            connection.close()
            raise


# -- looking --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Mark:
    """How threads stood when they were last looked at."""

    last: int
    """The highest number of a thread."""
    whole: bool
    """Whether all threads were looked at."""
    newest: dict[int, int] = field(default_factory=dict)
    """The seq of the newest row of each thread that was."""


class Moves:
    """Which threads have moved, in a schema (its quoted name)."""

    def __init__(self, schema: str) -> None:
        self._all = Statement(f"SELECT no, newest FROM {schema}.thread")
        self._some = Statement(
            f"SELECT no, newest FROM {schema}.thread WHERE no = ANY ($1) "
            f"UNION ALL SELECT no, newest FROM {schema}.thread WHERE no > $2",
            "Ii",
        )
        self._last = Statement(f"SELECT coalesce(max(no), 0) FROM {schema}.thread")

    def moved(
        self,
        read: Callable[..., list[tuple[Any, ...]]],
        mark: object | None,
        told: Collection[int],
        others: Collection[int] | None,
    ) -> tuple[Mark, dict[int, int]]:
        """Do what the port says."""
        if not isinstance(mark, Mark):
            if others is None:
                found = dict(read(self._all))
                return Mark(max(found, default=0), whole=True, newest=found), {}
            ((last,),) = read(self._last)
            return Mark(last, whole=False, newest=dict(read(self._some, list(others), last - _LATE))), {}
        if others is None:
            found = dict(read(self._all))
        else:
            found = dict(read(self._some, list({*told, *others}), mark.last - _LATE))
        news = dict(self._news(mark, found))
        mark.newest.update(found)
        mark.last = max(mark.last, *found, 0)
        mark.whole = mark.whole or others is None
        return mark, news

    def _news(self, mark: Mark, found: dict[int, int]) -> Iterator[tuple[int, int]]:
        for no, seq in found.items():
            # Of a thread that was not known, it is known that it was not there, if all that were there are known.
            known = mark.newest.get(no, 0 if mark.whole or no > mark.last - _LATE else seq)
            if known != seq or no not in mark.newest:
                yield no, known
