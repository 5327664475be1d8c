"""Automatic checkpoints under asyncio: the rounds of `backtrail.agents.scheduler`, made by a task.

Between two rounds it occupies no thread. Its task never ends with an exception: what goes wrong in a round is told by
the round, and a store that is closed stops it.
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
    from backtrail.aio.executor import Crew

    OnError = Callable[[str, Exception], None]


class AutoCheckpoint:
    """A scheduler of automatic checkpoints, running as a task. An async context manager: its end stops it."""

    def __init__(
        self,
        crew: Crew,
        make: Callable[[OnError], scheduler.AutoCheckpoint],
        on_error: OnError | None,
        *,
        enabled: bool,
    ) -> None:
        self._crew = crew
        self._sync = make(self._tell)
        self._on_error = on_error
        self._run: _Run | None = None
        if enabled:
            self._begin()

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self._run is not None and not self._run.stop.is_set()

    def _begin(self) -> _Run:
        if self.running:
            raise Invalid("these automatic checkpoints are being made already", code="invalid.running")
        self._run = _Run(self._crew, self._sync)
        return self._run

    async def start(self) -> None:
        """Make the first checkpoints, and begin to make more."""
        await asyncio.shield(self._begin().first)

    async def first(self) -> None:
        """Wait until the first checkpoints have been made; not at all, if it was never started."""
        if self._run is not None:
            await asyncio.shield(self._run.first)

    async def stop(self) -> None:
        """Stop; checkpoints that are being made are finished first. Stopping twice is allowed."""
        if self._run is not None:
            self._run.stop.set()
            await asyncio.wait({self._run.task})

    def _tell(self, agent_id: str, error: Exception) -> None:
        """Tell of an error, from the thread that met it, in the event loop."""
        if self._run is not None and self._on_error is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody is there to be told
                self._run.loop.call_soon_threadsafe(self._told, self._on_error, agent_id, error)

    @staticmethod
    def _told(on_error: OnError, agent_id: str, error: Exception) -> None:
        try:
            on_error(agent_id, error)
        except Exception:  # noqa: BLE001 - in the loop nobody would see it
            LOG.exception("on_error failed, too")

    async def __aenter__(self) -> Self:
        try:
            await self.first()
        except BaseException:
            if self._run is not None:
                self._run.stop.set()  # nobody else will
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class _Run:
    """A scheduler from its start to its end."""

    def __init__(self, crew: Crew, made: scheduler.AutoCheckpoint) -> None:
        self._crew = crew
        self._made = made
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        self.first: asyncio.Future[None] = self.loop.create_future()
        self.task = self.loop.create_task(self._serve(), name="backtrail checkpoints")
        crew.bells.add(self._ring)

    async def _serve(self) -> None:
        try:
            await self._rounds()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            LOG.error("there are no more automatic checkpoints: %s", error)
            if not self.first.done():
                self.first.set_exception(error)
                self.first.exception()  # whoever waits for it gets it; if nobody does, the log has it
        finally:
            self.stop.set()
            if not self.first.done():
                self.first.cancel()
            self._crew.bells.discard(self._ring)

    async def _rounds(self) -> None:
        """Make rounds until it is stopped, one at least."""
        while True:
            await self._crew.apart(self._made._rounds.run)  # noqa: SLF001 - the two are one
            if not self.first.done():
                self.first.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._made._interval):  # noqa: SLF001
                    await self.stop.wait()
            if self.stop.is_set():
                return

    def _ring(self) -> None:
        """Stop it, from whichever thread."""
        with suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(self.stop.set)
