"""Calls of coroutines that are done together: those that are made in one round of the event loop.

LangGraph's own stores do the same. Ten thousand calls at once are then a few reads and one write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Work = TypeVar("Work")
Answer = TypeVar("Answer")


class JoinedCalls(Generic[Work, Answer]):
    """Collects calls and passes them on: `do` returns an answer or an exception for each."""

    def __init__(self, do: Callable[[list[Work]], Awaitable[list[Answer | Exception]]]) -> None:
        self._do = do
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[Work, asyncio.Future[Answer]]]] = (
            WeakKeyDictionary()
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, work: Work) -> Answer:
        """Do work together with other calls, and return its answer or raise its exception."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(loop, [])
        future: asyncio.Future[Answer] = loop.create_future()
        waiting.append((work, future))
        if len(waiting) == 1:
            loop.call_soon(self._begin, loop)
        return await future

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        calls = self._waiting.pop(loop, [])
        task = loop.create_task(self._finish([call for call in calls if not call[1].done()]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, calls: list[tuple[Work, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._do([work for work, _ in calls])
        except Exception as error:  # noqa: BLE001 - it is raised in each of the calls
            answers = [error] * len(calls)
        for (_, future), answer in zip(calls, answers, strict=True):
            if future.done():  # its task was cancelled
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
