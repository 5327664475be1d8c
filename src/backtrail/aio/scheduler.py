"""Automatic checkpoints under asyncio: a task makes the rounds of `backtrail.agents.scheduler`.

It occupies no thread between two rounds. Its task never ends with an exception: a round reports its own errors, and
closing the store stops the task.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from backtrail.agents.scheduler import LOG
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from backtrail.agents import scheduler
    from backtrail.aio.executor import Executor

    OnError = Callable[[str, Exception], None]


class AutoCheckpoint:
    """A scheduler of automatic checkpoints, running as a task. As an async context manager, it stops at the end."""

    def __init__(
        self,
        executor: Executor,
        make: Callable[[OnError], scheduler.AutoCheckpoint],
        on_error: OnError | None,
        *,
        enabled: bool,
    ) -> None:
        self._executor = executor
        self._sync = make(self._tell)
        self._on_error = on_error
        self._run: _Run | None = None
        if enabled:
            self._begin()

    @property
    def running(self) -> bool:
        """Whether the scheduler is running."""
        return self._run is not None and not self._run.stop.is_set()

    def _begin(self) -> _Run:
        if self.running:
            raise Invalid("this scheduler is running already: stop it first", code="invalid.running")
        self._run = _Run(self._executor, self._sync)
        return self._run

    async def start(self) -> None:
        """Start the scheduler, and wait for the first checkpoints."""
        await asyncio.shield(self._begin().first)

    async def first(self) -> None:
        """Wait for the first checkpoints; return at once if the scheduler was never started."""
        if self._run is not None:
            await asyncio.shield(self._run.first)

    async def stop(self) -> None:
        """Stop after the current round of checkpoints. Stopping twice is allowed."""
        if self._run is not None:
            self._run.stop.set()
            await asyncio.wait({self._run.task})

    def _tell(self, agent_id: str, error: Exception) -> None:
        """Call `on_error` in the event loop. The executor thread of the round calls this."""
        if self._run is not None and self._on_error is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._run.loop.call_soon_threadsafe(self._told, self._on_error, agent_id, error)

    @staticmethod
    def _told(on_error: OnError, agent_id: str, error: Exception) -> None:
        try:
            on_error(agent_id, error)
        except Exception:  # noqa: BLE001 - the event loop would hide it
            LOG.exception("on_error failed, too")

    async def __aenter__(self) -> Self:
        try:
            await self.first()
        except BaseException:
            if self._run is not None:
                self._run.stop.set()  # the block is not entered, so __aexit__ will not stop it
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class _Run:
    """One run of the scheduler, from start to stop."""

    def __init__(self, executor: Executor, made: scheduler.AutoCheckpoint) -> None:
        self._executor = executor
        self._made = made
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        self.first: asyncio.Future[None] = self.loop.create_future()
        self.task = self.loop.create_task(self._serve(), name="backtrail checkpoints")
        executor.bells.add(self._ring)

    async def _serve(self) -> None:
        try:
            await self._rounds()
        except Exception as error:  # noqa: BLE001 - any error is logged
            LOG.error("there are no more automatic checkpoints: %s", error)
            if not self.first.done():
                self.first.set_exception(error)
                self.first.exception()  # without a waiting task, asyncio would report it as never retrieved
        finally:
            self.stop.set()
            if not self.first.done():
                self.first.cancel()
            self._executor.bells.discard(self._ring)

    async def _rounds(self) -> None:
        """Make rounds of checkpoints until the scheduler is stopped, at least one."""
        while True:
            await self._executor.apart(self._made._rounds.run)  # noqa: SLF001 - the two are one
            if not self.first.done():
                self.first.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._made._interval):  # noqa: SLF001
                    await self.stop.wait()
            if self.stop.is_set():
                return

    def _ring(self) -> None:
        """Stop the scheduler. Any thread may call this."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.stop.set)
