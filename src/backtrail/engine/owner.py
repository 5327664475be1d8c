"""Who is calling: the asyncio task, or else the thread. Expectations and transactions belong to one of them."""

from __future__ import annotations

import sys
import threading


def current() -> object:
    """Return the calling task or thread, as an object that a weak dictionary can hold."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the cheap way to ask
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.current_thread()
