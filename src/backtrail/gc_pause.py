"""When Python looks for garbage, and when it should wait.

It does so whenever some hundreds of containers were made, and goes through all new ones each time: for a long list of
messages, or the tables of a store in files, that is half of what it takes to read it. So it waits until they are made.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_uncollected: Final[set[object]] = set()
"""One for each block that has stopped Python's collector. No lock: a handler of signals may come in between."""


def _collect_in_child() -> None:
    if _uncollected:
        gc.enable()  # the threads that would do so are not there
    _uncollected.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collect_in_child)


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's collector wait until a block has made its many objects, none of which is garbage.

    Where blocks of several threads overlap, the first that ends lets it go on: never does it wait for good.
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
