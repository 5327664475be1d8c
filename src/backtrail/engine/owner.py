"""Who is calling: the asyncio task, or else the thread. Expectations and transactions belong to one of them.

A thread that does something for a task acts for it: then the task is the one who calls.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Acting(threading.local):
    """For whom the calling thread acts, if not for itself."""

    who: object | None = None


_acting = _Acting()


def current() -> object:
    """Return the calling task or thread, as an object that a weak dictionary can hold."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the cheap way to ask
        task = asyncio.current_task()
        if task is not None:
            return task
    return _acting.who or threading.current_thread()


@contextmanager
def acting_for(who: object) -> Iterator[None]:
    """Call as somebody else, in the calling thread, until the block ends."""
    before, _acting.who = _acting.who, who
    try:
        yield
    finally:
        _acting.who = before
