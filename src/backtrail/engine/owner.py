"""Who is calling: the asyncio task, or else the thread. Expectations and transactions belong to one of them.

A thread that does something for a task acts for it: then the task is the one who calls. And whoever calls a coroutine
function is the one who calls, even if another task awaits what it gave, as `wait_for` and `gather` have it done.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Acting(threading.local):
    """For whom the calling thread acts, if not for itself."""

    who: object | None = None


acting: Final = _Acting()
_asked: Final[ContextVar[tuple[object, Any] | None]] = ContextVar("backtrail asked", default=None)
"""Who asked for what the task beside it does. Tasks that this one makes inherit it: it is not for them."""


def current() -> object:
    """Return the calling task or thread, as an object that a weak dictionary can hold."""
    if acting.who is not None:
        return acting.who
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the cheap way to ask
        task = asyncio.current_task()
        if task is not None:
            asked = _asked.get()
            return task if asked is None or asked[1] is not task else asked[0]
    return threading.current_thread()


@contextmanager
def asked_by(who: object) -> Iterator[None]:
    """Call as somebody else, in the calling task, until the block ends."""
    asyncio = sys.modules["asyncio"]
    before = _asked.set((who, asyncio.current_task()))
    try:
        yield
    finally:
        _asked.reset(before)


@contextmanager
def acting_for(who: object) -> Iterator[None]:
    """Call as somebody else, in the calling thread, until the block ends."""
    before, acting.who = acting.who, who
    try:
        yield
    finally:
        acting.who = before
