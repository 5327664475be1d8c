"""Watching: how threads and processes learn of checkpoints that others make.

A watcher knows how far it has read the log of a thread, or of every thread that moved since it began. It gives what
stands behind that place, in order of seq: so nothing is missed and nothing comes twice, however late it wakes. A row
that is a checkpoint gives that one; a row that moves the head gives the checkpoint that it made the head. What was
hidden meanwhile is passed over.

Watchers only read, and they stand outside of transactions. They end when the store is closed. A forked child refuses
those of its parent, and may begin its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from backtrail.engine import log, refs
from backtrail.engine.reader import Standing
from backtrail.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.transaction import Engine


T = TypeVar("T")

_PAGE: Final = 100
_LONGEST: Final = 3600.0
"""Seconds to wait at a stretch."""


class Watcher(Generic[T]):
    """What one watch has read, and what is ready to be given. `make` turns rows of a thread into what users hold."""

    name: tuple[str, str] | None = None
    """Space and name of the only thread it reads."""
    no: int | None = None
    """The number of that thread, once it is there."""

    def __init__(self, engine: Engine, timeout: float | None, make: Callable[[Standing, list[Row]], list[T]]) -> None:
        self.timeout = timeout
        self.ready: deque[T] = deque()
        self.bell: Callable[[], None] = _silent
        self.joined = False
        self.ended = False
        self._engine = engine
        self._hub = engine.hub
        self._make = make
        self._rung = False
        self._cursors: dict[int, int] = {}
        """The seq up to which a thread was read."""
        self._ahead: deque[tuple[Standing, int]] = deque()
        """Heads that rows behind that tell of: how the thread stood, and the seq."""
        self.check()

    # -- from the hub, in any thread ----------------------------------------------------------------

    def ring(self) -> None:
        """Have it read."""
        if not self._rung:
            self._rung = True
            self.bell()

    def tell(self, news: Mapping[int, int], born: Mapping[tuple[str, str], int]) -> None:
        """Take note of threads that moved, each with the seq it had before, and of the names of new ones."""
        raise NotImplementedError

    # -- from whoever watches -----------------------------------------------------------------------

    def begin(self) -> None:
        """Find out where it begins, which is now."""
        raise NotImplementedError

    def _load(self) -> bool:
        """Read more of what was written; tell whether there was something."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse to go on where it cannot."""
        if self._hub.pid != os.getpid():
            raise Unavailable(
                "this watch was begun before the process was forked: begin another", code="unavailable.forked"
            )
        if self._engine.desk.overlay is not None:
            raise Unavailable(
                "a watch sees what is written, not what is in a transaction: watch before or after it",
                code="unavailable.transaction",
            )

    def fetch(self, *, last: bool = False) -> None:
        """Make the next one ready, if there is any; `last`: also if nobody has told of it yet."""
        self._rung = False
        try:
            if self._hub.failed or (last and self.name is None):
                self._hub.look()
            while not self.ready and (self._ahead or self._load()):
                while self._ahead and not self.ready:
                    standing, seq = self._ahead[0]
                    self.ready.extend(self._make(standing, self._hub.heads.visible(standing, ((seq, seq),))))
                    self._ahead.popleft()
        except Unavailable as failure:
            if failure.code != "unavailable.closed":
                raise
            self.end()
        if self._hub.closed and not self.ready:
            self.end()

    def end(self) -> None:
        """Give nothing more."""
        self.ended = True
        self.ready.clear()
        self._hub.leave(self)
        self.bell()  # for whoever waits for it, in another thread or task

    def __del__(self) -> None:
        self._hub.wake()  # which may be the last thing it has to do

    def _read(self, record: ThreadRecord) -> bool:
        """Read rows of a thread behind its cursor; tell whether there were any."""
        heads, cursor = self._hub.heads, self._cursors[record.no]
        newest = heads.backend.newest(record.no)
        if newest is None or newest.seq <= cursor:
            return False
        standing = Standing(record, newest, None)
        rows = heads.backend.rows(record.no, [(cursor + 1, log.MAX_SEQ)], limit=_PAGE)
        for row in rows:
            head = row.head if log.is_sound(row, record.uid) else row.seq  # a damaged one may be a checkpoint
            if head:
                self._ahead.append((standing, head))
        self._cursors[record.no] = rows[-1].seq if rows else newest.seq
        return True


def _silent() -> None:
    """Ring for nobody: whoever waits says how."""


class OneThread(Watcher[T]):
    """Watches a thread, which need not exist yet."""

    def __init__(
        self,
        engine: Engine,
        name: tuple[str, str],
        after: Any,
        timeout: float | None,
        make: Callable[[Standing, list[Row]], list[T]],
    ) -> None:
        super().__init__(engine, timeout, make)
        self.name = name
        self._after = after
        self._record: ThreadRecord | None = None

    def tell(self, news: Mapping[int, int], born: Mapping[tuple[str, str], int]) -> None:
        """Have it read if its thread is among them."""
        if self.no is None and self.name is not None:
            self.no = born.get(self.name)
        if self.no in news:
            self.ring()

    def begin(self) -> None:
        """Begin behind the newest row, or behind the checkpoint that was named."""
        self._hub.join(self, whole=False)
        try:
            record = self._find()
            newest = self._hub.heads.backend.newest(record.no) if record else None
            start = newest.seq if newest else 0
            if self._after is not None:
                start = self._place(record, newest, self._after)
        except BaseException:
            self._hub.leave(self)
            raise
        if record is not None:
            self._cursors[record.no] = start

    def _find(self) -> ThreadRecord | None:
        if self._record is None and self.name is not None:
            self._record = self._hub.heads.backend.find_thread(*self.name)
            self.no = self._record.no if self._record else self.no
        return self._record

    def _load(self) -> bool:
        record = self._find()
        if record is None:
            return False
        self._cursors.setdefault(record.no, 0)
        return self._read(record)

    def _place(self, record: ThreadRecord | None, newest: Row | None, after: Any) -> int:
        """Return the seq that a ref means. An id is enough, even if its checkpoint was deleted since."""
        unknown = Invalid(f"after={after!r} is no checkpoint of thread {(self.name or '?')[1]!r}", code="invalid.ref")
        if record is None or newest is None:
            raise unknown
        op_id = getattr(after, "op_id", None)
        text = after if op_id is None else after.id
        parsed = log.parse_id(text) if isinstance(text, str) else None
        if parsed is not None and parsed[0] == record.uid and 0 < parsed[1] <= newest.seq:
            row = self._hub.heads.row(record, parsed[1])
            if op_id is not None and row is not None and row.op_id != op_id:
                raise unknown
            return parsed[1]
        standing = self._hub.heads.standing_of(record)
        try:
            if standing is None:
                raise unknown
            return refs.resolve(self._hub.heads, standing, after).seq
        except NotFound as error:
            raise unknown from error


class AllThreads(Watcher[T]):
    """Watches all threads of a kind, of an agent, or with a prefix, new ones included."""

    def __init__(
        self,
        engine: Engine,
        *,
        space: str,
        agent: str | None,
        prefix: str | None,
        timeout: float | None,
        make: Callable[[Standing, list[Row]], list[T]],
    ) -> None:
        super().__init__(engine, timeout, make)
        self._space = space
        self._agent = agent
        self._prefix = prefix or ""
        self._moved: deque[int] = deque()
        self._waiting: set[int] = set()
        """The numbers in `_moved`."""

    def tell(self, news: Mapping[int, int], born: Mapping[tuple[str, str], int]) -> None:  # noqa: ARG002
        """Have it read them all."""
        if not self.joined:
            return
        for no, before in news.items():
            self._cursors.setdefault(no, before)
            if no not in self._waiting:
                self._waiting.add(no)
                self._moved.append(no)
        self.ring()

    def begin(self) -> None:
        """Begin behind what was written until now."""
        self._hub.join(self, whole=True)

    def _load(self) -> bool:
        while self._moved:
            no = self._moved.popleft()
            self._waiting.discard(no)  # before it is read: what is told from now on is another time
            record = self._hub.heads.backend.thread(no)
            if record is None or not self._wants(record):
                self._cursors.pop(no, None)
            elif self._read(record):
                self._waiting.add(no)
                self._moved.append(no)  # there may be more, after the others have had their turn
                return True
        return False

    def _wants(self, record: ThreadRecord) -> bool:
        return (
            record.space == self._space
            and (self._agent is None or record.agent == self._agent)
            and record.name.startswith(self._prefix)
        )


# -- waiting ------------------------------------------------------------------------------------------


class Watch(Generic[T]):
    """`for checkpoint in thread.watch():`. An iterator that waits; `close()`, or the end of a `with` block, ends it."""

    def __init__(self, watcher: Watcher[T]) -> None:
        self._watcher = watcher
        self._event = threading.Event()
        watcher.bell = self._event.set
        watcher.begin()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        watcher = self._watcher
        until = None if watcher.timeout is None else time.monotonic() + watcher.timeout
        last = False
        while not watcher.ended:
            watcher.check()
            self._event.clear()
            watcher.fetch(last=last)
            if watcher.ready:
                return watcher.ready.popleft()
            if last:
                watcher.end()
                break
            left = _LONGEST if until is None else until - time.monotonic()
            if left > 0 and not watcher.ended:
                self._event.wait(min(left, _LONGEST))
            last = until is not None and time.monotonic() >= until
        raise StopIteration

    def close(self) -> None:
        """End it. Closing twice is allowed."""
        self._watcher.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
