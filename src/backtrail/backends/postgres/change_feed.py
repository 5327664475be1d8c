"""The change feed of a PostgreSQL store: notifications between processes, and polling.

With NOTIFY inside a save, all writers of the database would wait for each other. So a process sends it a moment later,
for many commits at once: a `Notifier` collects thread numbers and sends them at most every 50 ms. Each message begins
with a random word, by which the process recognises its own messages. A `Listener` has its own connection. It misses
commits if a process dies before it sends, or if a pooler does not forward notifications. So callers also poll
`changed_since`: seldom if notifications arrive, often if they do not.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg

from backtrail.backends.sql.change_feed import FeedCursor
from backtrail.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from backtrail.backends.postgres.pool import Pool
    from backtrail.backends.postgres.statements import Statements

SELDOM: Final = 5.0
"""Seconds between two polls if notifications arrive."""
OFTEN: Final = 0.5
"""Seconds between two polls if notifications do not arrive."""
_PAUSE: Final = 0.05
_AT_ONCE: Final = 350
"""The most thread numbers in one message, which must have less than 8,000 bytes."""
_LATE: Final = 256
"""How far thread numbers may become visible out of order: a lower number may be committed after a higher one."""


# -- sending --------------------------------------------------------------------------------------------


class Notifier:
    """Sends the numbers of changed threads to other processes, from its own thread."""

    def __init__(self, pool: Pool, sql: Statements, channel: str) -> None:
        self._pool = pool
        self._sql = sql
        self.channel = channel
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self.word = secrets.token_hex(8)
        self._news: deque[int] = deque()
        self._wakeup = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def send_soon(self, numbers: Collection[int]) -> None:
        """Queue thread numbers to be sent by the notifier's thread."""
        if self._pid != os.getpid():
            self._begin()
        self._news.extend(numbers)
        if self._thread is None:
            self._start()
        if not self._wakeup.is_set():
            self._wakeup.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="backtrail notifier", daemon=True)
            with suppress(RuntimeError):  # the interpreter is shutting down and starts no thread; other processes poll
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wakeup.wait()
            self._wakeup.clear()
            self._send_all()
            self._ended.wait(_PAUSE)  # `close` does not wait for that

    def _send_all(self) -> None:
        numbers: set[int] = set()
        with suppress(IndexError):
            while True:
                numbers.add(self._news.popleft())
        while numbers:
            numbers_text = ",".join(str(numbers.pop()) for _ in range(min(len(numbers), _AT_ONCE)))
            try:
                self.send(f"{self.word} {numbers_text}")
            except Error:
                return  # listeners poll, too

    def send(self, message: str) -> None:
        """Send a message to all current listeners of the channel."""
        self._pool.do(lambda session: session.run(self._sql["notify"], (self.channel, message)), patience=0)

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._ended.set()
        self._wakeup.set()

    def end(self) -> None:
        """End the thread, and send the queued numbers."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self.stop()
        if thread is not threading.current_thread():
            thread.join(2)
        self._send_all()


# -- receiving ------------------------------------------------------------------------------------------


class Listener:
    """Calls `wake` with the thread numbers that other processes send, until `end`."""

    def __init__(self, pool: Pool, notifier: Notifier, wake: Callable[[Collection[int]], None]) -> None:
        self._pool = pool
        self._notifier = notifier
        self._wake = wake
        self._ended = False

    def begin(self) -> float:
        """Start listening, and return the polling interval in seconds."""
        try:
            connection = self._connected()
        except (psycopg.Error, Error):
            connection = None
        if connection is not None and not self._receives(connection):
            connection.close()
            return OFTEN
        threading.Thread(target=self._run, args=(connection,), name="backtrail listener", daemon=True).start()
        return SELDOM if connection is not None else OFTEN

    def end(self) -> None:
        """Stop listening, within a second."""
        self._ended = True

    def _connected(self) -> psycopg.Connection[Any]:
        connection = self._pool.connect()
        try:
            connection.execute(f'LISTEN "{self._notifier.channel}"')
        except BaseException:
            connection.close()
            raise
        return connection

    def _receives(self, connection: psycopg.Connection[Any]) -> bool:
        """Tell whether notifications reach this connection; behind some poolers they do not."""
        try:
            self._notifier.send("")
            return any(True for _ in connection.notifies(timeout=1.0, stop_after=1))
        except (psycopg.Error, Error):
            return False

    def _run(self, connection: psycopg.Connection[Any] | None) -> None:
        while not self._ended:
            try:
                if connection is None:
                    connection = self._connected()
                    self._wake(())  # messages may have been missed
                self._wake_for_messages(connection)
            except (psycopg.Error, Error):
                connection = None
                time.sleep(OFTEN)
        if connection is not None:
            connection.close()

    def _wake_for_messages(self, connection: psycopg.Connection[Any]) -> None:
        """Call `wake` for the messages of other processes that arrive within a second."""
        try:
            for note in connection.notifies(timeout=1.0):
                word, _, numbers = note.payload.partition(" ")
                if numbers and word != self._notifier.word and not self._ended:
                    self._wake([int(number) for number in numbers.split(",") if number.isdecimal()])
        except psycopg.Error:
            connection.close()
            raise


# -- looking --------------------------------------------------------------------------------------------


def changed_since(
    read: Callable[..., list[tuple[Any, ...]]],
    cursor: FeedCursor | None,
    notified: Collection[int],
    others: Collection[int] | None,
) -> tuple[FeedCursor, dict[int, int]]:
    """See `ChangeFeed.changed_since`. `read` runs a named statement; `cursor.whole`: all threads were read before."""
    if cursor is None:
        if others is None:
            seqs = dict(read("newest_seqs"))
            return FeedCursor(max(seqs, default=0), seqs, whole=True), {}
        ((last,),) = read("last_thread")
        return FeedCursor(last, dict(read("newest_seqs_of", list(others), last - _LATE))), {}
    if others is None:
        seqs = dict(read("newest_seqs"))
    else:
        seqs = dict(read("newest_seqs_of", list({*notified, *others}), cursor.last - _LATE))
    news = dict(_news(cursor, seqs))
    cursor.newest.update(seqs)
    cursor.last = max(cursor.last, *seqs, 0)
    cursor.whole = cursor.whole or others is None
    return cursor, news


def _news(cursor: FeedCursor, seqs: dict[int, int]) -> Iterator[tuple[int, int]]:
    for no, seq in seqs.items():
        # An unknown thread is new if the cursor knows all threads, or if its number is too high to be old.
        known = cursor.newest.get(no, 0 if cursor.whole or no > cursor.last - _LATE else seq)
        if known != seq or no not in cursor.newest:
            yield no, known
