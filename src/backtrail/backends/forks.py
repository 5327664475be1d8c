"""What has to be at rest while this process forks, so that the child has none of it half done.

A fork waits for whatever holds a connection or a file: the lock of each is taken before, and let go afterwards, by the
parent and by the child. A process that was not forked by Python had no such hooks: what can, looks at its pid, too.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class Resting(Protocol):
    """What is told of a fork."""

    def pause(self) -> None:
        """Wait until no call is under way, and let none begin. If one takes too long, the fork happens all the same."""

    def resume(self) -> None:
        """Go on, in the process that forked."""

    def resume_in_child(self) -> None:
        """Go on in the child, without what belongs to its parent."""


R = TypeVar("R", bound=Resting)
_all: weakref.WeakSet[Resting] = weakref.WeakSet()
_registry = threading.RLock()


def watch(resting: Resting) -> None:
    """Tell it of forks, as long as it is there."""
    _register()
    with _registry:
        _all.add(resting)


@contextmanager
def watched(kind: type[R]) -> Iterator[list[R]]:
    """Give all of a kind that are there; no other comes, and no fork happens, until the block ends."""
    with _registry:
        yield [each for each in list(_all) if isinstance(each, kind)]


@functools.cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)


def _before() -> None:
    _registry.acquire()
    for each in list(_all):
        each.pause()


def _after() -> None:
    for each in list(_all):
        each.resume()
    _registry.release()


def _after_in_child() -> None:
    global _registry  # noqa: PLW0603 - if it is held, then by a thread that this process has not got
    _registry = threading.RLock()
    for each in list(_all):
        each.resume_in_child()
