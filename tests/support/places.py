"""Where tests make stores. A place is a context manager that gives a function which opens the same store each time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import backtrail
from backtrail.backends.memory import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def in_memory() -> Iterator[Callable[..., backtrail.Store]]:
    """Yield a memory store that can be closed and opened again; its content lives until the block ends."""
    kept = MemoryBackend()

    def opener(**options: Any) -> backtrail.Store:
        kept._storage.closed = False
        with mock.patch("backtrail.backends.memory.MemoryBackend", return_value=kept):
            return backtrail.open("memory://", **options)

    yield opener
