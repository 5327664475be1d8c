"""Watches: iterators over new checkpoints of all writers and processes.

A watcher has a cursor in the log of each thread that it follows. It yields the checkpoints of the rows after the
cursor, in order of seq, so it misses none and repeats none, however late it wakes. A row that is a checkpoint yields
itself; a row that moves the head yields the new head. Hidden checkpoints are skipped.

A failover of a server, or a crash with durability="relaxed", can lose the newest rows. Others then get their numbers.
So a watcher remembers the rows that it read last, and goes back to the last one that the store still has.

Watchers only read, and see no open transaction. They end when the store is closed. A forked child process cannot use
the watchers of its parent; it starts its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from backtrail.engine import log, refs
from backtrail.engine.reader import Tip
from backtrail.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import StoreReader
    from backtrail.transaction import Engine


T = TypeVar("T")

_PAGE: Final = 100
_ROWS: Final = 16
"""How many of the rows that it read last a watcher remembers of a thread."""
_THREADS: Final = 1000
"""Of how many threads it remembers rows: of those that it read last."""
_LONGEST: Final = 3600.0
"""The longest single wait, in seconds."""


class Watcher(Generic[T]):
    """The cursors of one watch, and the checkpoints that it has ready. `make` turns rows into checkpoints."""

    name: tuple[str, str] | None = None
    """The name space and name of the watched thread; None if the watch follows several threads."""
    no: int | None = None
    """The number of the watched thread; None if it does not exist yet, or if there are several."""

    def __init__(self, engine: Engine, timeout: float | None, make: Callable[[Tip, list[Row]], list[T]]) -> None:
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
        """The seq up to which the watcher has read each thread, by the thread's number."""
        self._read_last: OrderedDict[int, deque[tuple[int, bytes]]] = OrderedDict()
        """The seq and the op_id of the rows that the watcher read last, by the thread's number."""
        self._ahead: deque[tuple[Tip, int]] = deque()
        """The heads after the cursors: the thread's tip, and the seq."""
        self.check()

    # -- for the hub, in any thread -----------------------------------------------------------------

    def ring(self) -> None:
        """Wake the reader of this watch."""
        if not self._rung:
            self._rung = True
            self.bell()

    def tell(self, news: Mapping[int, int], born: Mapping[tuple[str, str], int]) -> None:
        """Handle news: threads with new rows, each with its previous seq, and the numbers of new threads by name."""
        raise NotImplementedError

    # -- for the reader of the watch ----------------------------------------------------------------

    def begin(self) -> None:
        """Set the cursors to the newest rows."""
        raise NotImplementedError

    def _load(self) -> bool:
        """Read a page of rows after the cursors; tell whether there were any."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `Unavailable` in a forked child process, and in a transaction."""
        if self._hub.pid != os.getpid():
            raise Unavailable(
                "the watch was started before the process was forked; start another one in the child",
                code="unavailable.forked",
            )
        self._engine.outside()

    def fetch(self, *, last: bool = False) -> None:
        """Put the next checkpoint into `ready`, if there is one. `last`: look for new rows first, in all threads."""
        self._rung = False
        try:
            if self._hub.failed or (last and self.name is None):
                self._hub.look()
            while not self.ready and (self._ahead or self._load()):
                while self._ahead and not self.ready:
                    tip, seq = self._ahead[0]
                    self.ready.extend(self._make(tip, self._hub.reader.visible(tip, ((seq, seq),))))
                    self._ahead.popleft()
        except Unavailable as failure:
            if failure.code != "unavailable.closed":
                raise
            self.end()
        if self._hub.closed and not self.ready:
            self.end()

    def end(self) -> None:
        """End the watch: it yields nothing more."""
        self.ended = True
        self.ready.clear()
        self._hub.leave(self)
        self.bell()  # wakes a reader that waits in another thread or task

    def __del__(self) -> None:
        self._hub.wake()  # its thread ends if this was the last watcher

    def _read(self, record: ThreadRecord) -> bool:
        """Read rows of a thread after its cursor; tell whether there were any."""
        backend, no = self._hub.reader.backend, record.no
        newest = backend.newest(no)
        if newest is None:
            return False
        if newest.seq <= self._cursors[no]:
            self._go_back(no, newest)
        if newest.seq <= self._cursors[no]:
            return False
        rows = backend.rows(no, [(self._cursors[no], log.MAX_SEQ)], limit=_PAGE)
        if rows and self._go_back(no, rows[0]):
            rows = backend.rows(no, [(self._cursors[no], log.MAX_SEQ)], limit=_PAGE)
        rows = [row for row in rows if row.seq > self._cursors[no]]
        tip = Tip(record, newest, None)
        for row in rows:
            head = row.head if log.is_sound(row, record.uid) else row.seq  # a damaged row may be a checkpoint
            if head:
                self._ahead.append((tip, head))
        self._cursors[no] = rows[-1].seq if rows else newest.seq
        self._remember(no, rows or [newest])
        return True

    def _remember(self, no: int, rows: list[Row]) -> None:
        """Remember the rows that were read last."""
        self._read_last.setdefault(no, deque(maxlen=_ROWS)).extend((row.seq, row.op_id) for row in rows[-_ROWS:])
        self._read_last.move_to_end(no)
        if len(self._read_last) > _THREADS:
            self._read_last.popitem(last=False)

    def _go_back(self, no: int, row: Row) -> bool:
        """Set the cursor to the last of the remembered rows that the store still has, if `row` shows that one is lost.

        `row` is the newest row, or the first row from the cursor on. Tell whether the cursor was set.
        """
        last = self._read_last.get(no)
        if not last or row.seq > last[-1][0] or (row.seq, row.op_id) == last[-1]:
            return False
        rows = self._hub.reader.backend.rows(no, [(last[0][0], last[-1][0])])
        stored = {(row.seq, row.op_id) for row in rows}
        kept = [each for each in last if each in stored]
        self._cursors[no] = kept[-1][0] if kept else last[0][0] - 1
        self._read_last[no] = deque(kept, maxlen=_ROWS)
        return True


def _silent() -> None:
    """Do nothing: the bell of a watch without a waiting reader."""


class OneThread(Watcher[T]):
    """Watches one thread, which may not exist yet."""

    def __init__(
        self,
        engine: Engine,
        name: tuple[str, str],
        after: Any,
        timeout: float | None,
        make: Callable[[Tip, list[Row]], list[T]],
    ) -> None:
        super().__init__(engine, timeout, make)
        self.name = name
        self._after = after
        self._record: ThreadRecord | None = None

    def tell(self, news: Mapping[int, int], born: Mapping[tuple[str, str], int]) -> None:
        """Wake the reader if its thread has new rows."""
        if self.no is None and self.name is not None:
            self.no = born.get(self.name)
        if self.no in news:
            self.ring()

    def begin(self) -> None:
        """Set the cursor to the newest row, or to the checkpoint of `after`."""
        self._hub.join(self, whole=False)
        try:
            record = self._find()
            newest = self._hub.reader.backend.newest(record.no) if record else None
            start = newest.seq if newest else 0
            if self._after is not None:
                start = self._place(record, newest, self._after)
        except BaseException:
            self._hub.leave(self)
            raise
        if record is not None:
            self._cursors[record.no] = start
            if newest is not None and start == newest.seq:
                self._remember(record.no, [newest])

    def _find(self) -> ThreadRecord | None:
        if self._record is None and self.name is not None:
            self._record = self._hub.reader.backend.find_thread(*self.name)
            self.no = self._record.no if self._record else self.no
        return self._record

    def _load(self) -> bool:
        record = self._find()
        if record is None:
            return False
        self._cursors.setdefault(record.no, 0)
        return self._read(record)

    def _place(self, record: ThreadRecord | None, newest: Row | None, after: Any) -> int:
        """Return the seq of a ref. The id of a deleted checkpoint is valid, too."""
        unknown = Invalid(
            f"after={after!r} is not a checkpoint of thread {(self.name or '?')[1]!r}", code="invalid.ref"
        )
        if record is None or newest is None:
            raise unknown
        op_id = getattr(after, "op_id", None)
        text = after if op_id is None else after.id
        parsed = log.parse_id(text) if isinstance(text, str) else None
        if parsed is not None and parsed[0] == record.uid and 0 < parsed[1] <= newest.seq:
            row = self._hub.reader.row(record, parsed[1])
            if op_id is not None and row is not None and row.op_id != op_id:
                raise unknown
            return parsed[1]
        if parsed is not None and parsed[0] == record.uid and parsed[1] > newest.seq:
            return newest.seq  # its row was lost
        tip = self._hub.reader.tip_of(record)
        try:
            if tip is None:
                raise unknown
            return refs.resolve(self._hub.reader, tip, after).seq
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
        make: Callable[[Tip, list[Row]], list[T]],
    ) -> None:
        super().__init__(engine, timeout, make)
        self._space = space
        self._agent = agent
        self._prefix = prefix or ""
        self._moved: deque[int] = deque()
        self._waiting: set[int] = set()
        """The numbers in `_moved`, for a fast test."""

    def tell(self, news: Mapping[int, int], born: Mapping[tuple[str, str], int]) -> None:  # noqa: ARG002
        """Queue all threads with new rows, and wake the reader."""
        if not self.joined:
            return
        for no, before in news.items():
            self._cursors.setdefault(no, before)
            if no not in self._waiting:
                self._waiting.add(no)
                self._moved.append(no)
        self.ring()

    def begin(self) -> None:
        """Set the cursors of all threads to their newest rows."""
        self._hub.join(self, whole=True)

    def _load(self) -> bool:
        while self._moved:
            no = self._moved.popleft()
            self._waiting.discard(no)  # before the read: later news queue the thread again
            record = self._hub.reader.backend.thread(no)
            if record is None or not self._wants(record):
                self._cursors.pop(no, None)
            elif self._read(record):
                self._waiting.add(no)
                self._moved.append(no)  # it may have more rows: read them after the rows of other threads
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
    """An iterator that waits for checkpoints: `for checkpoint in thread.watch():`.

    `close()`, or the end of a `with` block, ends it.
    """

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
        """End the watch. A second call does nothing."""
        self._watcher.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SHARE: Final = 10
"""After a look at all threads, the hub pauses for this many times its duration."""
_REST: Final = 0.002
"""Seconds between two looks, so that the hub does not interrupt a busy writer at each commit."""
_LATELY: Final = 64
"""The number of recently written threads that each look includes."""


class Hub:
    """Wakes the watchers of a store when threads get new rows.

    Its Python thread runs while there are watchers. A *look* asks the backend which threads have new rows. The hub
    looks after each commit of this process, after each notification of the backend, and at regular intervals, for
    commits of other processes.
    """

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self.pid = os.getpid()
        self.closed = False
        self.failed = False
        """Whether the last look failed. Each waiting reader then looks itself, and gets the error."""
        self._backend = reader.backend
        self._watchers: weakref.WeakSet[Watcher[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()
        """Guards `_watchers` and `_thread`. Never locked during I/O."""
        self._looking = threading.Lock()
        """Guards the mark. Locked during a look."""
        self._mark: object | None = None
        """The backend's mark of the last look."""
        self._whole = False
        """Whether the mark covers all threads."""
        self._due = 0.0
        """The time of the next look at all threads."""
        self._watched: set[int] | None = None
        """The numbers of the watched threads; None if any thread may matter."""
        self._lately: deque[int] = deque(maxlen=_LATELY)
        self._told: deque[int] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- for writers --------------------------------------------------------------------------------

    def wake(self, numbers: Collection[int] = ()) -> None:
        """Wake the hub after writes to the threads with these numbers. Never waits, so a finalizer may call it."""
        watched = self._watched
        if numbers and watched is not None and watched.isdisjoint(numbers):
            return
        if self.pid == os.getpid():  # a forked child has no thread to wake
            self._told.extend(numbers)
            self._bell.put(None)

    # -- for watchers -------------------------------------------------------------------------------

    def join(self, watcher: Watcher[Any], *, whole: bool) -> None:
        """Add a watcher; `whole`: report new rows of all threads to it from now on."""
        with self._looking:
            with self._lock:
                self._watchers.add(watcher)  # from here on the hub's thread does not end
                running = self._thread is not None
            try:
                if not running:
                    self._start()
                if whole and self._whole:
                    self._look(whole=True)
                elif whole:
                    self._mark, _ = self._backend.changed_since(None, (), None)
                    self._whole = True
                    for other in self._all():  # the new mark skips rows since the last look: have them read now
                        other.ring()
            except BaseException:
                self.leave(watcher)
                raise
            watcher.joined = True
            self._watched = None

    def leave(self, watcher: Watcher[Any]) -> None:
        """Remove a watcher."""
        if self.pid == os.getpid():
            with self._lock:
                self._watchers.discard(watcher)
            self.wake()

    def look(self) -> None:
        """Look for new rows now: in all threads if a watcher follows all of them, else in the watched threads."""
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
            self._mark, news = self._backend.changed_since(
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
            self._mark, _ = self._backend.changed_since(None, (), ())
            self._whole = False
            thread = threading.Thread(target=self._run, args=(listening, interval), name="backtrail watch", daemon=True)
            thread.start()  # does not end at once, because there is a watcher
            with self._lock:
                self._thread = thread
        except BaseException:
            listening.__exit__(None, None, None)
            raise

    def _run(self, listening: AbstractContextManager[float], interval: float) -> None:
        """Look repeatedly until there are no watchers."""
        try:
            while self._wait(interval):
                try:
                    self._turn(interval)
                except Exception as error:  # noqa: BLE001 - the waiting readers get it
                    if isinstance(error, Unavailable) and error.code == "unavailable.locked":
                        continue  # another process has the store locked: look later
                    self.failed = True
                    for watcher in self._all():
                        watcher.ring()
        finally:
            listening.__exit__(None, None, None)

    def _wait(self, interval: float) -> bool:
        """Wait for the bell or the interval; tell whether there are watchers."""
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
