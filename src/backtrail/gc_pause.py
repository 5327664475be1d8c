"""Pause Python's garbage collector while many objects are made.

The collector runs after every few hundred new containers and visits all of them. That takes half of the time to read a
long list of messages, or the tables of a file store. So the collector pauses until they are made.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_uncollected: Final[set[object]] = set()
"""One token for each block that paused the collector. It has no lock, because a signal handler may run at any time."""


def _collect_in_child() -> None:
    if _uncollected:
        gc.enable()  # the threads that would enable it do not exist in the child
    _uncollected.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collect_in_child)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collector in a block that makes many objects, none of which is garbage.

    If blocks of several threads overlap, the first one that ends enables the collector: it is never off for good.
    """
    if not gc.isenabled():
        yield
        return
    token = object()
    try:
        _uncollected.add(token)
        gc.disable()
        yield
    finally:
        gc.enable()
        _uncollected.discard(token)
