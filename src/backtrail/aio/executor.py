"""The thread pool behind `backtrail.aio`: one writer thread and a few others serve any number of event loops.

The writer does small writes in groups: all operations that arrive while one group becomes durable form the next one.
So many coroutines share one wait for the disk, and each gets its result only after that wait. An operation that fails
fails alone. If the end of a group fails, the whole group fails. If the backend gives a group up because of other
writers (`Undone`), its operations are repeated one by one. The other threads do long operations and reads.

Every operation acts for the task that asked for it. An operation that has not begun when its task is cancelled never
happens; one that has begun is finished first. The threads are daemons and refer to nothing but their queue, so neither
a dropped executor nor the end of the interpreter waits for them.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import os
import threading
import time
import weakref
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from backtrail import transaction
from backtrail.backends.port import Undone
from backtrail.engine import throttle
from backtrail.errors import Error, Unavailable
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from backtrail.transaction import Engine

P = ParamSpec("P")
T = TypeVar("T")

GROUP_MAX: Final = 500
"""The largest number of operations in one group."""
GROUP_SECONDS: Final = 0.01
"""Seconds after which an open group takes no more operations."""
_OTHERS: Final = 4
_PAGE: Final = 100


class Job(Generic[T]):
    """One operation, and the coroutine that waits for it. Only the thread of its event loop touches `future`."""

    __slots__ = (
        "_claimed",
        "_context",
        "_done",
        "_error",
        "_loop",
        "_owner",
        "_work",
        "future",
        "result",
        "unwanted",
        "withdrawn",
    )

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._context = contextvars.copy_context()  # the spans of the work belong to the task
        self._owner = transaction.current()
        self._loop = asyncio.get_running_loop()
        self._claimed = threading.Lock()
        self._done = False
        self._error: BaseException | None = None
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.result: T | None = None
        self.unwanted = False
        """Whether the waiting task was cancelled after the job had begun."""
        self.withdrawn = False
        """Whether the waiting task was cancelled before the job had begun: the job is not done."""

    # -- in a worker thread --------------------------------------------------------------------

    def begin(self) -> bool:
        """Do the work unless the job was withdrawn; return whether the work was done."""
        if not self._claimed.acquire(blocking=False):
            return False
        self.repeat()
        return True

    def repeat(self) -> None:
        """Do the work, and keep its result or error. Also called to repeat the work."""
        self.result = self._error = None
        acting = transaction.acting
        before, acting.caller = acting.caller, self._owner
        try:
            self.result = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - raised in the task that waits
            self._error = error
        finally:
            acting.caller = before

    @property
    def locked_out(self) -> Unavailable | None:
        """The error of the job if another process held the store's lock for too long; otherwise None."""
        error = self._error
        if error is None:
            return None
        return error if isinstance(error, Unavailable) and error.code == "unavailable.locked" else None

    def give_up(self, error: BaseException) -> bool:
        """Set the error without doing the work, unless the job was withdrawn; return whether the error was set."""
        if not self._claimed.acquire(blocking=False):
            return False
        self._error = _alike(error)
        return True

    def fail(self, error: BaseException) -> None:
        """Set the error of a job whose group was not committed."""
        self._claimed.acquire(blocking=False)  # if the group did not even begin
        self._error = _alike(error)

    @staticmethod
    def deliver(jobs: Iterable[Job[Any]]) -> None:
        """Wake the tasks that wait for these jobs: one call for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
        for job in jobs:
            by_loop.setdefault(job._loop, []).append(job)  # noqa: SLF001 - its own
        for loop, done in by_loop.items():
            try:
                loop.call_soon_threadsafe(Job._wake, done)
            except RuntimeError:  # the loop was closed
                continue

    # -- in the thread of the loop ------------------------------------------------------------------

    @staticmethod
    def _wake(jobs: list[Job[Any]]) -> None:
        for job in jobs:
            job._done = True  # noqa: SLF001
            if not job.future.done():
                job.future.set_result(None)

    async def outcome(self) -> T:
        """Wait for the result. A cancelled task withdraws the job; if the job has begun, the task waits for its end."""
        cancelled: BaseException | None = None
        while not self._done:
            try:
                await self.future
            except (asyncio.CancelledError, GeneratorExit) as error:
                if self._claimed.acquire(blocking=False):
                    self.withdrawn = True
                    raise
                if isinstance(error, GeneratorExit):
                    raise  # a coroutine that is closed cannot wait
                cancelled = error
                self.unwanted = True
                if not self._done:
                    self.future = self._loop.create_future()
        if cancelled is not None:
            raise cancelled from self._error
        if self._error is not None:
            raise self._error
        return self.result  # type: ignore[return-value]


def _alike(error: BaseException) -> BaseException:
    """Return a copy of an error: one error raised in many tasks would collect all their tracebacks."""
    if not isinstance(error, Error):
        return error
    made = type(error)(error.message, **{"code": error.code, **error.details})
    made.__cause__ = error.__cause__
    return made


class _Lead(Job[T]):
    """A job that cannot be withdrawn."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(work)
        self._claimed.acquire()

    def begin(self) -> bool:
        """Do the work."""
        self.repeat()
        return True


# -- threads ------------------------------------------------------------------------------------------

_Jobs = SimpleQueue["Job[Any] | None"]
"""A queue of jobs; None ends the thread that gets it."""


def _write(jobs: _Jobs, group: Callable[[], AbstractContextManager[None]]) -> None:
    """Do the jobs of a queue in groups until None arrives: the loop of the writer thread."""
    while (job := jobs.get()) is not None:
        _write_group(jobs, job, group)
        del job  # a waiting thread must not keep the job alive


def _write_group(jobs: _Jobs, job: Job[Any], group: Callable[[], AbstractContextManager[None]]) -> None:
    """Do a job and the jobs queued after it as one group, then wake the waiting tasks."""
    done: list[Job[Any]] = []
    waiting = jobs.qsize()
    until = 0.0
    try:
        with group():
            for more in _arriving(jobs, job):
                if more.begin():
                    done.append(more)
                    if more.locked_out:
                        break
                now = time.monotonic()
                until = until or now + GROUP_SECONDS  # the wait for the lock does not count
                if len(done) == GROUP_MAX or now >= until:
                    break
    except Undone:
        for each in done:
            each.repeat()
    except BaseException as error:  # noqa: BLE001 - raised in the tasks that wait
        done = done or [job]
        for each in done:
            each.fail(error)
    locked_out = done[-1].locked_out if done else None
    if locked_out is not None:  # the queued jobs have waited for the lock as long
        done += [each for each in _queued(jobs, waiting) if each.give_up(locked_out)]
    Job.deliver(done)


def _queued(jobs: _Jobs, count: int) -> Iterator[Job[Any]]:
    """Give at most `count` jobs from the queue, without waiting."""
    return itertools.islice(_arriving(jobs, jobs.get_nowait()), count) if count and not jobs.empty() else iter(())


def _arriving(jobs: _Jobs, first: Job[Any] | None) -> Iterator[Job[Any]]:
    """Give `first`, then the jobs in the queue, until the queue is empty or None arrives."""
    job = first
    while job is not None:
        yield job
        try:
            job = jobs.get_nowait()
        except Empty:
            return
    jobs.put(None)  # it ends the thread after this group


def _serve(jobs: _Jobs) -> None:
    """Do the jobs of a queue one by one until None arrives. Long jobs give way to other threads."""
    throttle.slow_down()
    while (job := jobs.get()) is not None:
        if job.begin():
            Job.deliver([job])
        del job


class _Threads:
    """A number of threads with one queue. A thread starts with each of the first jobs, and again after a fork."""

    def __init__(self, name: str, count: int, target: Callable[..., None], *args: Any) -> None:
        self._name = name
        self._count = count
        self._target = target
        self._args = args
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._jobs: _Jobs = SimpleQueue()
        self._running: list[threading.Thread] = []
        weakref.finalize(self, _end, self._jobs, self._count)

    def put(self, job: Job[Any]) -> None:
        """Queue a job."""
        if self._pid != os.getpid():
            self._renew()
        if len(self._running) < self._count:
            args = (self._jobs, *self._args)
            thread = threading.Thread(target=self._target, args=args, name=self._name, daemon=True)
            thread.start()
            self._running.append(thread)
        self._jobs.put(job)

    def end(self) -> list[threading.Thread]:
        """Tell the threads to end after the queued jobs, and return the threads."""
        if self._pid != os.getpid():
            self._renew()
        _end(self._jobs, self._count)
        return self._running


def _end(jobs: _Jobs, count: int) -> None:
    for _ in range(count):
        jobs.put(None)


# -- the executor --------------------------------------------------------------------------------------------


class Executor:
    """The threads of one store. Without an engine there is no writer thread."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._writer = _Threads("backtrail writer", 1, _write, engine.group) if engine else None
        self._others = _Threads("backtrail", _OTHERS, _serve)
        self._first = _Threads("backtrail first", 1, _serve)
        self._leading = 0
        """The number of running `lead` jobs, for which later jobs wait."""
        self._held: list[tuple[_Threads, Job[Any]]] = []
        """The jobs that wait for a `lead` job, each with the threads that will do it."""
        self.bells: set[Callable[[], None]] = set()
        """Functions that are called once when the executor is closed."""

    async def write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a write in a group with others; alone if it is large or in the caller's transaction."""
        together = throttle.is_light(*args) and not self.in_transaction
        return await self.begin(functools.partial(work, *args, **kwargs), together=together).outcome()

    async def apart(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work in a thread other than the writer."""
        return await self.begin(functools.partial(work, *args, **kwargs), together=False).outcome()

    async def watched(
        self, work: Callable[[Callable[[str, int], None]], T], progress: Callable[[str, int], None] | None
    ) -> T:
        """Do long work that reports progress in the event loop; a cancelled task stops it at the next report."""
        check_progress(progress)
        loop = asyncio.get_running_loop()

        def tell(what: str, count: int) -> None:
            if job.unwanted:
                raise asyncio.CancelledError
            if progress is not None:
                loop.call_soon_threadsafe(progress, what, count)

        job = self.begin(lambda: work(tell), together=False)
        return await job.outcome()

    async def pages(self, work: Callable[P, Iterator[T]], *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """Give the items of an iterator, which is advanced in an executor thread, a page at a time."""
        items = await self.apart(work, *args, **kwargs)
        while page := await self.apart(_page, items):
            for item in page:
                yield item

    @property
    def in_transaction(self) -> bool:
        """Whether the calling task has a transaction open."""
        return self._engine is not None and self._engine.session.overlay is not None

    def begin_once(self, work: Callable[[], T], *, together: bool) -> Job[T]:
        """Queue work that must not be repeated: outside of groups if the backend may undo groups."""
        undone = self._engine is not None and self._engine.backend.undoes_groups
        return self.begin(work, together=together and not undone)

    def begin(self, work: Callable[[], T], *, together: bool, surely: bool = False) -> Job[T]:
        """Queue work and return its job. `together`: in a group of the writer thread, if there is one.

        Jobs of one transaction are done one at a time. With `surely`, a cancellation does not withdraw the job.
        """
        overlay = self._engine.session.overlay if self._engine else None
        if overlay is not None:
            work = functools.partial(_in_turn, overlay.turn, work)
        job = _Lead(work) if surely else Job(work)
        with self._turn():
            self._refuse_if_closed()
            threads = self._writer if together and self._writer else self._others
            if self._leading:
                self._held.append((threads, job))
            else:
                threads.put(job)
        return job

    def lead(self, work: Callable[[], None]) -> Job[None]:
        """Start work at once, in a separate thread. All later jobs wait for its end."""

        def first() -> None:
            try:
                work()
            finally:
                with self._turn():
                    self._leading -= 1
                    if not self._leading:
                        self._release()

        job = _Lead(first)
        with self._turn():
            self._refuse_if_closed()
            self._leading += 1
            self._first.put(job)
        return job

    def _release(self) -> None:
        held, self._held = self._held, []
        for threads, job in held:
            threads.put(job)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Unavailable("this store is closed: open it again", code="unavailable.closed")

    def _turn(self) -> threading.Lock:
        if self._pid != os.getpid():  # a thread of the parent process may hold the lock
            self._lock = threading.Lock()
            self._pid = os.getpid()
            self._leading, self._held = 0, []
            self.bells = set()
        return self._lock

    async def close(self, after: Callable[[], None]) -> None:
        """Refuse new jobs, wait for the queued jobs, then call `after`. Closing twice is allowed."""
        with self._turn():
            self._closed = True
            self._release()
            parts = (self._first, self._writer, self._others)
            threads = [thread for part in parts if part for thread in part.end()]
            bells, self.bells = self.bells, set()
        for ring in bells:
            ring()

        def wait() -> None:
            for thread in threads:
                thread.join()
            after()

        last: _Jobs = SimpleQueue()
        job = Job(wait)
        last.put(job)
        last.put(None)
        threading.Thread(target=_serve, args=(last,), name="backtrail close", daemon=True).start()
        await job.outcome()


def _in_turn(turn: AbstractContextManager[Any], work: Callable[[], T]) -> T:
    with turn:
        return work()


def _page(items: Iterator[T]) -> list[T]:
    return list(itertools.islice(items, _PAGE))


@functools.cache
def detached() -> Executor:
    """Return the executor for work that belongs to no store."""
    return Executor(None)
