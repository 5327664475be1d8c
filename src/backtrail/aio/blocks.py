"""What is more than one call: blocks that are entered and left, stores that are opened, updates that begin again."""

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
    from backtrail.aio.executor import Crew, Job
    from backtrail.models import AgentCheckpoint
    from backtrail.watch import Watcher

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def called(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a method act for the task that calls it, whichever awaits it: `wait_for(thread.save(state), 5)` is ours."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return _for(transaction.current(), method, *args, **kwargs)

    return call


async def _for(who: object, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    if transaction.current() is who:
        return await method(*args, **kwargs)
    with transaction.asked_by(who):
        return await method(*args, **kwargs)


class Step(Generic[S]):
    """`async with thread.step() as state:`. The state is read when the block is entered, and written when it ends."""

    def __init__(self, crew: Crew, make: Callable[[], AbstractContextManager[S]]) -> None:
        self._crew = crew
        self._make = make

    async def __aenter__(self) -> S:
        self._block = self._make()
        job = self._crew.begin(self._block.__enter__, together=False)
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
        together = throttle.is_light(self._state) and not self._crew.in_transaction
        await _leave(self._crew, self._block, together=together)


class Transaction:
    """`async with store.transaction():`. It belongs to the task that enters it, and is written when the block ends."""

    def __init__(self, crew: Crew, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._crew = crew
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
        await _leave(self._crew, self._block, together=True)


async def _leave(crew: Crew, block: AbstractContextManager[Any], *, together: bool) -> None:
    """Leave a block, and have done what its end does; if that never begins, drop it."""
    try:
        job = crew.begin_once(lambda: block.__exit__(None, None, None), together=together)
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
    """Leave a block as an exception does. Nothing is read or written then."""
    with suppress(type(error)):
        block.__exit__(type(error), error, error.__traceback__)


class Guard:
    """`async with store.agents.guard(id, name) as checkpoint:`. An exception that leaves the block may roll it back."""

    def __init__(self, crew: Crew, agents: Agents, agent_id: str, name: str, *, rollback: bool) -> None:
        self._crew = crew
        self._agents = agents
        self._agent_id = agent_id
        self._name = name
        self._rollback = rollback

    async def __aenter__(self) -> AgentCheckpoint:
        make = self._agents.checkpoint
        self._made = await self._crew.apart(make, self._agent_id, self._name, kind="pre_operation")
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._rollback:
            return
        back = functools.partial(self._agents._roll_back, self._made, error)  # noqa: SLF001 - the two are one
        job = self._crew.begin(back, together=False, surely=True)  # a task may be cancelled twice
        if not isinstance(error, GeneratorExit):  # a coroutine that is closed cannot wait
            await job.outcome()


class Watch(Generic[T]):
    """`async for checkpoint in thread.watch():`. It begins when it is made; what is asked for after that comes later.

    An async iterator that occupies no thread while it waits. A task that is cancelled while it waits has missed
    nothing: the next one who asks goes on. `aclose()`, or the end of an `async with` block, ends it.
    """

    def __init__(self, crew: Crew, watcher: Watcher[Any], wrap: Callable[[Crew, Any], T]) -> None:
        self._crew = crew
        self._watcher = watcher
        self._wrap = wrap
        self._event = event = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)

        watcher.bell = ring
        self._beginning: Job[None] | None = crew.lead(watcher.begin)

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
                return self._wrap(self._crew, watcher.ready.popleft())
            if last:
                watcher.end()
                break
            if not watcher.ended:
                last = not await self._rung(until)
        raise StopAsyncIteration

    async def _fetch(self, *, last: bool) -> None:
        try:
            await self._crew.apart(self._watcher.fetch, last=last)
        except Unavailable as error:
            if error.code != "unavailable.closed":
                raise
            self._watcher.end()

    async def _rung(self, until: float | None) -> bool:
        """Wait for news; tell whether there may be any."""
        try:
            async with asyncio.timeout_at(until):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        """End it. Closing twice is allowed."""
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
    crew: Crew, thread: threads.Thread[S], fn: Callable[[Any], S | Awaitable[S | None] | None], retries: int
) -> checkpoint.Checkpoint[S]:
    """Load, call `fn` in the event loop, and save; again if somebody else saved meanwhile."""

    def read() -> tuple[checkpoint.Checkpoint[S] | None, Any]:
        head = thread.latest()
        return head, head.state if head else None

    for attempt in range(check_count(retries, "retries") + 1):
        head, state = await crew.apart(read)
        result = fn(state)
        if inspect.isawaitable(result):
            result = await result
        if result is None and state is None:
            raise Invalid("update(fn): there was no state, and fn returned none", code="invalid.argument")
        try:
            return await crew.write(thread.save, state if result is None else result, expect=head or NEW)
        except Conflict:
            if attempt == retries:
                raise
            await asyncio.sleep(random.random() * min(0.002 * 2**attempt, 0.25))  # noqa: S311 - to get out of step
    raise AssertionError
