"""A store in memory: `tables` and `table_backend`, to be read as the specification of the port, and nothing else.

Nothing outlives the process; after `os.fork()` the child has a copy of its own, taken between two calls.
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backtrail.backends.tables.backend import TableBackend
from backtrail.backends.tables.snapshot import TableView
from backtrail.backends.tables.tables import Tables
from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.backends.port import Backend
    from backtrail.backends.tables.changes import Body, Change

# One for all stores in memory, so that a single hook keeps a fork out of the middle of a call. It is re-entrant
# because a signal handler may fork, too.
_LOCK = threading.RLock()


@functools.cache
def _fork_between_calls() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class MemoryBackend(TableBackend):
    """The port in dicts. Nobody else writes: all that happens is told, and looking finds nothing."""

    def __init__(self) -> None:
        _fork_between_calls()
        super().__init__(Tables())
        self._closed = False
        # The lock's own, in C: Ctrl-C cannot come at its entry, and leave it to a thread that has ended its call.
        self._give = _LOCK.release  # type: ignore[method-assign]

    def _take(self) -> None:
        self._refuse_if_closed()
        if _LOCK._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            self._refuse_within()
        _LOCK.acquire()

    @contextmanager
    def _read(self) -> Iterator[Tables]:
        self._refuse_if_closed()
        if _LOCK._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            self._refuse_within()
        with _LOCK:
            self._take_back_what_was_left()
            yield self._tables

    def _keep(self, changes: Sequence[Change]) -> None:
        pass  # they are where they will be

    def _bytes(self, bodies: Sequence[Body]) -> list[bytes]:
        return [body for body in bodies if isinstance(body, bytes)]  # there are no others

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed: open it again", code="unavailable.closed")

    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        self._refuse_in_group()
        with self._read() as tables:
            kept = tables.copy()
        yield TableView(kept, self._bytes)

    def reclaim(self, *, erase: bool = False) -> None:
        del erase  # what was removed is nowhere
        with self._read():
            self._refuse_in_group()  # what was removed is free already

    def close(self) -> None:
        self._refuse_in_group()
        self._closed = True
