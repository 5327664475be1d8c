"""Pause backends while this process forks, so that the child does not inherit a half-done call.

Each connection and each file store registers itself. It is paused before the fork, and resumed in the parent and in the
child. A fork outside of Python calls no hooks: where that matters, backends compare pids, too.
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


class Pausable(Protocol):
    """An object whose calls a fork must not interrupt."""

    def pause(self) -> None:
        """Wait until no call is running, and let no call begin. Return early if a call takes too long."""

    def resume(self) -> None:
        """Allow calls again in the parent."""

    def resume_in_child(self) -> None:
        """Allow calls again in the child, and drop the locks and connections of the parent."""


R = TypeVar("R", bound=Pausable)
_all: weakref.WeakSet[Pausable] = weakref.WeakSet()
_registry = threading.RLock()


def watch(resting: Pausable) -> None:
    """Pause and resume an object at every fork. Only a weak reference to it is kept."""
    _register()
    with _registry:
        _all.add(resting)


@contextmanager
def watched(kind: type[R]) -> Iterator[list[R]]:
    """Yield all watched objects of a class. Until the block ends, no object is added and no fork happens."""
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
    global _registry  # noqa: PLW0603 - a thread of the parent may have it
    _registry = threading.RLock()
    for each in list(_all):
        each.resume_in_child()
