"""Async code that needs more than one job of the executor: `async with` blocks, watches, opening a store, updates."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar

from backtrail import transaction
from backtrail.aio.executor import detached
from backtrail.engine import throttle
from backtrail.errors import Conflict, Invalid, Unavailable
from backtrail.models import NEW
from backtrail.validation import check_count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from backtrail import checkpoint
    from backtrail import thread as threads
    from backtrail.agents.repository import Agents
    from backtrail.aio.executor import Executor, Job
    from backtrail.models import AgentCheckpoint
    from backtrail.watch import Watcher

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def called(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make an async method act in the transaction of the task that calls it, even if another task awaits it.

    `asyncio.wait_for(thread.save(x), 5)` may await the call in another task.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return _for(transaction.current(), method, *args, **kwargs)

    return call


async def _for(caller: object, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    if transaction.current() is caller:
        return await method(*args, **kwargs)
    before = transaction.asked.set((caller, asyncio.current_task()))  # the caller, while it runs in this task
    try:
        return await method(*args, **kwargs)
    finally:
        transaction.asked.reset(before)


class Step(Generic[S]):
    """`async with thread.step() as state:`. Entering the block reads the state; leaving it writes the state."""

    def __init__(self, executor: Executor, make: Callable[[], AbstractContextManager[S]]) -> None:
        self._executor = executor
        self._make = make

    async def __aenter__(self) -> S:
        self._block = self._make()
        job = self._executor.begin(self._block.__enter__, together=False)
        try:
            self._state = await job.outcome()
        except asyncio.CancelledError as error:
            if not job.withdrawn:
                _drop(self._block, error)
            raise
        return self._state

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            _drop(self._block, error)
            return
        together = throttle.is_light(self._state) and not self._executor.in_transaction
        await _leave(self._executor, self._block, together=together)


class Transaction:
    """`async with store.transaction():`. It belongs to the task that enters it; leaving the block writes it."""

    def __init__(self, executor: Executor, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._executor = executor
        self._make = make

    async def __aenter__(self) -> None:
        self._block = self._make()
        self._block.__enter__()  # reads nothing yet

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            _drop(self._block, error)
            return
        await _leave(self._executor, self._block, together=True)


async def _leave(executor: Executor, block: AbstractContextManager[Any], *, together: bool) -> None:
    """Leave a block in an executor thread; if the job is withdrawn, leave the block without writing."""
    try:
        job = executor.begin_once(lambda: block.__exit__(None, None, None), together=together)
    except BaseException as error:
        _drop(block, error)
        raise
    try:
        await job.outcome()
    except asyncio.CancelledError as cancelled:
        if job.withdrawn:
            _drop(block, cancelled)
        raise


def _drop(block: AbstractContextManager[Any], error: BaseException) -> None:
    """Leave a block with an exception, so that it writes nothing."""
    with suppress(type(error)):
        block.__exit__(type(error), error, error.__traceback__)


class Guard:
    """`async with store.agents.guard(id, name) as checkpoint:`. An exception in the block may roll the agent back."""

    def __init__(self, executor: Executor, agents: Agents, agent_id: str, name: str, *, rollback: bool) -> None:
        self._executor = executor
        self._agents = agents
        self._agent_id = agent_id
        self._name = name
        self._rollback = rollback

    async def __aenter__(self) -> AgentCheckpoint:
        make = self._agents.checkpoint
        self._made = await self._executor.apart(make, self._agent_id, self._name, kind="pre_operation")
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._rollback:
            return
        back = functools.partial(self._agents._roll_back, self._made, error)  # noqa: SLF001 - its synchronous half
        job = self._executor.begin(back, together=False, surely=True)  # a second cancellation must not stop it
        if not isinstance(error, GeneratorExit):  # a coroutine that is closed cannot wait
            await job.outcome()


class Watch(Generic[T]):
    """`async for checkpoint in thread.watch():`. A watch begins when the object is made.

    It occupies no thread while it waits. A task that is cancelled while it waits misses no checkpoint: the next call
    continues. `aclose()`, or the end of an `async with` block, ends the watch.
    """

    def __init__(self, executor: Executor, watcher: Watcher[Any], wrap: Callable[[Executor, Any], T]) -> None:
        self._executor = executor
        self._watcher = watcher
        self._wrap = wrap
        self._event = event = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(event.set)

        watcher.bell = ring
        self._beginning: Job[None] | None = executor.lead(watcher.begin)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        watcher = self._watcher
        watcher.check()
        if self._beginning is not None:
            await self._beginning.outcome()
            self._beginning = None
        loop = asyncio.get_running_loop()
        until = None if watcher.timeout is None else loop.time() + watcher.timeout
        last = False
        while not watcher.ended:
            self._event.clear()
            if not watcher.ready:
                await self._fetch(last=last)
            if watcher.ready:
                return self._wrap(self._executor, watcher.ready.popleft())
            if last:
                watcher.end()
                break
            if not watcher.ended:
                last = not await self._rung(until)
        raise StopAsyncIteration

    async def _fetch(self, *, last: bool) -> None:
        try:
            await self._executor.apart(self._watcher.fetch, last=last)
        except Unavailable as error:
            if error.code != "unavailable.closed":
                raise
            self._watcher.end()

    async def _rung(self, until: float | None) -> bool:
        """Wait for a signal of new checkpoints; return False after the timeout."""
        try:
            async with asyncio.timeout_at(until):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        """End the watch. Closing twice is allowed."""
        self._watcher.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Store(Protocol):
    async def close(self) -> None: ...


O = TypeVar("O", bound=_Store)  # noqa: E741 - a store that was opened


class Opening(Generic[T, O]):
    """`async with open(...) as store:`, or `store = await open(...)` and, later, `await store.close()`."""

    def __init__(self, make: Callable[[], T], wrap: Callable[[T], O], close: Callable[[T], None]) -> None:
        self._make = make
        self._wrap = wrap
        self._close = close

    def __await__(self) -> Generator[Any, None, O]:
        return self._opened().__await__()

    async def _opened(self) -> O:
        job = detached().begin(self._make, together=False)
        try:
            return self._wrap(await job.outcome())
        except asyncio.CancelledError:
            if job.result is not None:
                self._close(job.result)
            raise

    async def __aenter__(self) -> O:
        self._store = await self
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.close()


async def updated(
    executor: Executor, thread: threads.Thread[S], fn: Callable[[Any], S | Awaitable[S | None] | None], retries: int
) -> checkpoint.Checkpoint[S]:
    """Load the state, call `fn` in the event loop, and save its result; retry if another writer saved meanwhile."""

    def read() -> tuple[checkpoint.Checkpoint[S] | None, Any]:
        head = thread.latest()
        return head, head.state if head else None

    for attempt in range(check_count(retries, "retries") + 1):
        head, state = await executor.apart(read)
        result = fn(state)
        if inspect.isawaitable(result):
            result = await result
        if result is None and state is None:
            raise Invalid("update(fn): there was no state, and fn returned none", code="invalid.argument")
        try:
            return await executor.write(thread.save, state if result is None else result, expect=head or NEW)
        except Conflict:
            if attempt == retries:
                raise
            await asyncio.sleep(random.random() * min(0.002 * 2**attempt, 0.25))  # noqa: S311 - jitter
    raise AssertionError
