"""The hub: hears of commits for all who watch a store, and tells them when to read.

It listens to the backend as long as there are watchers, in a thread of its own. Writers do no more than take note that
they have written, and only while somebody watches; nobody holds a lock while waiting. What others did is looked for
again and again: the threads that are watched, or have moved lately, each time; all of them, if somebody watches them
all, for at most a tenth of the time.

To tell a watcher twice, or of nothing, does no harm: it knows what it has read. A hub belongs to its process.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from backtrail.engine.heads import Heads
    from backtrail.engine.watching import Watcher

_SHARE: Final = 10
"""A look at all threads is followed by a pause of so many times what it took."""
_REST: Final = 0.002
"""Seconds between two looks: so a busy writer is not interrupted at each commit."""
_LATELY: Final = 64
"""How many of the threads that moved last are looked at each time."""


class Hub:
    """Wakes the watchers of a store."""

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.pid = os.getpid()
        self.closed = False
        self.failed = False
        """Whether the last look did: whoever waits takes one himself then, and sees why."""
        self._backend = heads.backend
        self._watchers: weakref.WeakSet[Watcher[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()
        """For the watchers and for the thread: held for a moment."""
        self._looking = threading.Lock()
        """For the mark: held while somebody looks."""
        self._mark: object | None = None
        self._whole = False
        """Whether the mark says how all threads stood."""
        self._due = 0.0
        """When to look at all threads again."""
        self._watched: set[int] | None = None
        """The threads that matter; None: any of them may."""
        self._lately: deque[int] = deque(maxlen=_LATELY)
        self._told: deque[int] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- for writers --------------------------------------------------------------------------------

    def wake(self, numbers: Collection[int] = ()) -> None:
        """Take note that threads were written to. Waits for nothing, not even where a finalizer calls it."""
        watched = self._watched
        if numbers and watched is not None and watched.isdisjoint(numbers):
            return
        if self.pid == os.getpid():  # what a forked child writes is no news to its parent
            self._told.extend(numbers)
            self._bell.put(None)

    # -- for watchers -------------------------------------------------------------------------------

    def join(self, watcher: Watcher[Any], *, whole: bool) -> None:
        """Wake a watcher from now on; `whole`: tell it of all threads that move after this, and how they stood."""
        with self._looking:
            with self._lock:
                self._watchers.add(watcher)  # from here on the thread does not end
                running = self._thread is not None
            try:
                if not running:
                    self._start()
                if whole and self._whole:
                    self._look(whole=True)
                elif whole:
                    self._mark, _ = self._backend.moved(None, (), None)
                    self._whole = True
                    for other in self._all():  # what has moved since the last look is theirs to find
                        other.ring()
            except BaseException:
                self.leave(watcher)
                raise
            watcher.joined = True
            self._watched = None

    def leave(self, watcher: Watcher[Any]) -> None:
        """Wake a watcher no more."""
        if self.pid == os.getpid():
            with self._lock:
                self._watchers.discard(watcher)
            self.wake()

    def look(self) -> None:
        """Look now, at all threads if anybody watches all of them."""
        with self._looking:
            self._look(whole=self._whole)

    def close(self) -> None:
        """End all watchers."""
        self.closed = True
        for watcher in self._all():
            watcher.ring()
        self.wake()

    def _all(self) -> list[Watcher[Any]]:
        with self._lock:
            return list(self._watchers)

    # -- looking --------------------------------------------------------------------------------------

    def _look(self, *, whole: bool) -> None:
        told: list[int] = []
        while self._told:
            told.append(self._told.popleft())
        watchers = self._all()
        watched = {watcher.no for watcher in watchers if watcher.no is not None}
        unborn = any(watcher.no is None and watcher.name is not None for watcher in watchers)
        self._watched = None if self._whole or unborn else watched
        try:
            self._mark, news = self._backend.moved(
                self._mark, set(told), None if whole else watched.union(self._lately) if self._whole else watched
            )
        except BaseException:
            self._told.extendleft(told)
            raise
        self.failed = False
        if not news:
            return
        if self._whole:
            self._lately.extend(news)
        records = [self._backend.thread(no) for no, before in news.items() if not before] if unborn else []
        born = {(record.space, record.name): record.no for record in records if record is not None}
        for watcher in watchers:
            watcher.tell(news, born)

    def _start(self) -> None:
        listening = self._backend.listen(self.wake)
        interval = listening.__enter__()
        try:
            self._mark, _ = self._backend.moved(None, (), ())
            self._whole = False
            thread = threading.Thread(target=self._run, args=(listening, interval), name="backtrail watch", daemon=True)
            thread.start()  # there is a watcher, so it does not end at once
            with self._lock:
                self._thread = thread
        except BaseException:
            listening.__exit__(None, None, None)
            raise

    def _run(self, listening: AbstractContextManager[float], interval: float) -> None:
        """Look again and again, until nobody watches any more."""
        try:
            while self._wait(interval):
                try:
                    self._turn(interval)
                except Exception as error:  # noqa: BLE001 - it belongs to those who wait
                    if isinstance(error, Unavailable) and error.code == "unavailable.locked":
                        continue  # somebody has the store to himself: another time
                    self.failed = True
                    for watcher in self._all():
                        watcher.ring()
        finally:
            listening.__exit__(None, None, None)

    def _wait(self, interval: float) -> bool:
        """Wait for the bell; tell whether anybody watches."""
        try:
            self._bell.get(timeout=interval)
            while True:
                self._bell.get_nowait()
        except Empty:
            pass
        with self._lock:
            if self.closed or not self._watchers:
                self._thread = None
                return False
        return True

    def _turn(self, interval: float) -> None:
        began = time.monotonic()
        with self._looking:
            whole = self._whole and began >= self._due
            self._look(whole=whole)
        took = time.monotonic() - began
        if whole:
            self._due = began + max(interval, _SHARE * took)
        time.sleep(_REST)
