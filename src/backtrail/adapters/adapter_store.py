"""The store of an adapter: a store that the caller passes, or one that the adapter opens from a URL and closes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from backtrail import aio
from backtrail.engine import throttle
from backtrail.errors import Invalid
from backtrail.store import Store
from backtrail.store import open as open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.thread import Thread

T = TypeVar("T")
StoreSource: TypeAlias = "Store | aio.Store | str | os.PathLike[str]"
"""A synchronous or asynchronous store, or the URL of one."""


class AdapterStore:
    """A store with its synchronous and its asynchronous API. The adapter closes it only if the adapter opened it."""

    def __init__(self, source: StoreSource) -> None:
        if not isinstance(source, Store | aio.Store | str | os.PathLike):
            raise Invalid(f"an adapter takes a store or its URL, not {source!r:.100}", code="invalid.argument")
        self._is_own = isinstance(source, str | os.PathLike)
        if isinstance(source, aio.Store):
            self.sync: Store = source._sync  # noqa: SLF001 - both are the same store
            self.aio = source
        else:
            self.sync = source if isinstance(source, Store) else open_store(source)
            self.aio = aio.Store(self.sync)

    async def read(self, work: Callable[[], T]) -> T:
        """Do work that only reads, or that takes long, in a worker thread."""
        return await self.aio._executor.apart(work)  # noqa: SLF001 - the store's own worker threads

    async def write(self, work: Callable[[], T], *values: Any, surely: bool = False) -> T:
        """Make a write, grouped with others if its values are small.

        Cancelling the task withdraws a write that has not begun; with `surely`, the write is made in any case.
        """
        executor = self.aio._executor  # noqa: SLF001 - as above
        together = throttle.is_light(*values) and not executor.in_transaction
        return await executor.begin(work, together=together, surely=surely).outcome()

    def close(self) -> None:
        """Close the store if the adapter opened it. A second call does nothing."""
        if self._is_own:
            self.sync.close()

    async def aclose(self) -> None:
        """Wait for calls in progress, then close the store if the adapter opened it. A second call does nothing."""
        if self._is_own:
            await self.aio.close()


class RecentThreads:
    """Handles of the threads that were used last. A handle knows its last write, so the next call need not read it."""

    def __init__(self, make: Callable[..., Thread[Any]], limit: int = 128) -> None:
        self._make = make
        self._limit = limit
        self._handles: OrderedDict[tuple[str, ...], Thread[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *key: str) -> Thread[Any]:
        """Return a handle of a thread: the arguments are those of `make`."""
        with self._lock:
            handle = self._handles.get(key)
            if handle is None:
                handle = self._handles[key] = self._make(*key)
            self._handles.move_to_end(key)
            if len(self._handles) > self._limit:
                self._handles.popitem(last=False)
        return handle


def missing_extra(extra: str, error: ImportError) -> ImportError:
    """Return the error of an adapter whose framework is not installed."""
    text = f"backtrail.adapters.{extra} needs {error.name or extra}, which is not installed"
    return ImportError(f"{text}: pip install 'backtrail[{extra.replace('_', '-')}]'", name=error.name)
