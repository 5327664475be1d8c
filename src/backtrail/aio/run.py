"""Runs under asyncio: the runs of `backtrail.runs.run`, whose calls may be coroutines.

The event loop only calls the functions, each in the task that asks for the call. The executor does all reading and
writing. It serves the tasks of one run in order, one at a time. So equal calls find the same results in a replay, and a
run with many tasks does not block the executor for others. A result is recorded even if its task is cancelled. A thread
renews the lease, even while the event loop is busy.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.thread import Thread
from backtrail.errors import Invalid
from backtrail.runs.calls import Attempt, CallOptions, current
from backtrail.runs.run import BaseRun

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from types import TracebackType

    from backtrail.aio.executor import Executor
    from backtrail.engine.journal import Call
    from backtrail.runs import run as sync

R = TypeVar("R")
T = TypeVar("T")


class Run(BaseRun):
    """One session of work, as an async context manager. The task that enters it has the run until the block ends.

    Leaving the block completes the run. An exception fails it, and a cancellation or `halt` halts it: all three can be
    resumed later by opening the same session again.
    """

    def __init__(self, executor: Executor, run: sync.Run) -> None:
        super().__init__(run)
        self._executor = executor
        self._turn = asyncio.Lock()  # first come, first served
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def thread(self) -> Thread[Any]:
        """The thread of the run's checkpoints."""
        return Thread(self._executor, self._worker.thread)

    async def __aenter__(self) -> Self:
        try:
            await self._executor.apart(self._worker.enter)
        except BaseException as error:
            if self._worker.lease.is_open:  # the task was cancelled after it got the run
                await self._leave(error)
            raise
        self._loop = asyncio.get_running_loop()
        self._make_current(self._call, is_async=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        current.set(self._outer)
        return await self._leave(error)

    async def _leave(self, error: BaseException | None) -> bool:
        if not self._worker.lease.is_mine:  # a forked child has no executor threads
            return False
        leave = partial(self._worker.leave, error)
        if isinstance(error, GeneratorExit):  # a coroutine that is closed cannot wait
            self._executor.begin(leave, together=False, surely=True)
            return False
        return await self._surely(leave)

    async def iterations(self) -> AsyncGenerator[int, None]:
        """Give the numbers of the iterations, without end: leave the loop when the work is done.

        A resumed run starts with the interrupted iteration.
        """
        numbers = self._worker.iterations()
        while (number := await self._next(numbers)) is not None:
            yield number

    async def _next(self, numbers: Any) -> int | None:
        async with self._turn:
            return cast("int | None", await self._executor.apart(next, numbers, None))

    async def checkpoint(
        self, label: str | None = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Checkpoint[Any]:
        """Make a checkpoint of the run now, without asking its strategy."""
        state = copy.deepcopy(self._worker.state)  # other tasks may change it meanwhile
        async with self._turn:
            return Checkpoint(
                self._executor, await self._executor.apart(self._worker.checkpoint, label, state, metadata)
            )

    async def tool(
        self,
        name: str,
        fn: Callable[..., Awaitable[T] | T],
        /,
        *args: Any,
        policy: str = "ask",
        verify: Callable[[Call], Any] | None = None,
        irreversible: bool = False,
        key: str | None = None,
        retry: bool = False,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> T:
        """Call a tool once, as `backtrail.Run.tool` does. A cancellation leaves the call in doubt.

        `fn` and `verify` may be coroutine functions. The calling task runs them in the event loop.
        """
        options = CallOptions("tool", name, policy, verify, irreversible, key, retry, tool_call_id)
        return cast("T", await self._call(options, fn, args, kwargs))

    async def llm(
        self,
        name: str,
        fn: Callable[..., Awaitable[T] | T],
        /,
        *args: Any,
        policy: str = "ask",
        verify: Callable[[Call], Any] | None = None,
        irreversible: bool = False,
        key: str | None = None,
        retry: bool = False,
        **kwargs: Any,
    ) -> T:
        """Call a model once, as `tool` calls a tool. The response is an event for the strategy."""
        options = CallOptions("llm", name, policy, verify, irreversible, key, retry, None)
        return cast("T", await self._call(options, fn, args, kwargs))

    async def _call(
        self, options: CallOptions, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            text = f"run {self.session_id!r} was opened in another event loop: its calls are made there"
            raise Invalid(text, code="invalid.run")
        attempt = Attempt(self._worker.calls, options, fn, args, kwargs, detached=True)
        await self._begin(attempt)
        while attempt.is_open:
            with attempt:
                outcome = attempt.work()
                attempt.outcome = await outcome if inspect.isawaitable(outcome) else outcome
            await self._surely(attempt.record)
        return attempt.answer()

    async def _begin(self, attempt: Attempt) -> None:
        """Begin an attempt in the executor. If the task is cancelled meanwhile, abandon the attempt."""
        async with self._turn:
            job = self._executor.begin(attempt.begin, together=False)
            try:
                await job.outcome()
            except asyncio.CancelledError:
                if job.result is not None:
                    await self._executor.begin(attempt.abandon, together=False, surely=True).outcome()
                raise

    async def _surely(self, work: Callable[[], R]) -> R:
        """Do work in the executor after the earlier jobs of this run, even if the task is cancelled meanwhile.

        A cancellation is raised after the work.
        """
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self._turn.acquire()
                break
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            return await self._executor.begin(work, together=False, surely=True).outcome()
        finally:
            self._turn.release()
            if cancelled is not None:
                raise cancelled
