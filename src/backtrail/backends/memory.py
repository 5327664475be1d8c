"""The memory backend: tables with a lock. With `tables` it is the reference implementation of the port.

Nothing outlives the process. After `os.fork()` the child has its own copy, taken between two calls.
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backtrail.backends.tables.backend import TableBackend
from backtrail.backends.tables.tables import Tables
from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.backends.tables.changes import Body

# One lock for all stores in memory, so that one hook keeps a fork out of the middle of a call. It is re-entrant
# because a group reads its own writes, and a signal handler may fork.
_LOCK = threading.RLock()


@functools.cache
def _fork_between_calls() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class _MemoryStorage:
    """The storage of a memory store: tables, and the lock of all memory stores."""

    def __init__(self) -> None:
        _fork_between_calls()
        self.tables = Tables()
        self.unlock_tables = _LOCK.release
        self.closed = False

    def lock_tables(self, *, in_group: bool) -> Tables:
        self._refuse_if_closed()
        _LOCK.acquire()
        try:
            if not in_group:
                self.tables.rollback()  # undo a write that Ctrl-C interrupted
        except BaseException:
            _LOCK.release()
            raise
        return self.tables

    @contextmanager
    def write(self) -> Iterator[Tables]:
        self._refuse_if_closed()
        with _LOCK:
            try:
                self.tables.begin()
                yield self.tables
                self.tables.end()
            finally:
                self.tables.rollback()

    def bytes_of(self, bodies: Sequence[Body]) -> list[bytes]:
        return [body for body in bodies if isinstance(body, bytes)]  # in memory, every body is bytes

    def close(self) -> None:
        self.closed = True

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise Unavailable("this store is closed: open it again", code="unavailable.closed")


class MemoryBackend(TableBackend):
    """The port in dicts. No other process writes, so listeners hear of every commit and polling finds no more."""

    def __init__(self) -> None:
        super().__init__(_MemoryStorage())
