"""Leases of open runs, renewed: by one thread for all runs of a store, however many there are.

It holds no run: one that was dropped without leaving its block is not renewed any more, and so its lease ends.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from backtrail.transaction import Engine

_BUSY: Final = 0.02
"""Seconds after which a run that is writing just now is looked at again."""


class Leased(Protocol):
    """What has a lease."""

    def _renew(self) -> float | None:
        """Renew it, and return in how many seconds to do that again; None: never."""


class Beats:
    """Renews leases, in a thread that ends when there is none left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Leased]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, leased: Leased, seconds: float) -> None:
        """Renew a lease from now on, the first time in so many seconds."""
        with self._changed:
            self._put(weakref.ref(leased), seconds)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._beat, name="backtrail leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _put(self, leased: weakref.ref[Leased], seconds: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), leased))

    def _beat(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                wait = self._due[0][0] - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                reference = heapq.heappop(self._due)[2]
            leased = reference()
            again = None if leased is None else leased._renew()  # noqa: SLF001 - what it is here for
            del leased
            if again is not None:
                with self._changed:
                    self._put(reference, max(again, _BUSY))


class _All:
    """What renews the leases of each store."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.beats: weakref.WeakKeyDictionary[Any, Beats] = weakref.WeakKeyDictionary()


_all = [_All()]
os.register_at_fork(after_in_child=lambda: _all.__setitem__(0, _All()))  # whoever held the locks is not there


def beats_of(engine: Engine) -> Beats:
    """Return what renews the leases of a store."""
    every = _all[0]
    with every.lock:
        return every.beats.setdefault(engine, Beats())
