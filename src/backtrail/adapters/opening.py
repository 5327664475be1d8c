"""The store of an adapter: one that it is given, or one that it opens by its URL and closes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from backtrail import aio
from backtrail.errors import Invalid
from backtrail.store import Store
from backtrail.store import open as open_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

Source: TypeAlias = "Store | aio.Store | str | os.PathLike[str]"
"""What an adapter is made of: a store, of either kind, or the URL of one."""


class Opened:
    """A store in both colours; closed by the adapter only if the adapter opened it."""

    def __init__(self, source: Source, *, types: Iterable[Any] = ()) -> None:
        if not isinstance(source, Store | aio.Store | str | os.PathLike):
            raise Invalid(f"an adapter takes a store or its URL, not {source!r:.100}", code="invalid.argument")
        self._own = isinstance(source, str | os.PathLike)
        if isinstance(source, aio.Store):
            self.sync: Store = source._sync  # noqa: SLF001 - the two are one
            self.aio = source
        else:
            self.sync = source if isinstance(source, Store) else open_store(source, types=types)
            self.aio = aio.Store(self.sync)

    def close(self) -> None:
        """Close the store if it was opened here; twice is allowed."""
        if self._own:
            self.sync.close()

    async def aclose(self) -> None:
        """Close the store if it was opened here, when all that was begun is done; twice is allowed."""
        if self._own:
            await self.aio.close()


def missing(extra: str, error: ImportError) -> ImportError:
    """Return the error of an adapter whose framework is not installed."""
    text = f"backtrail.adapters.{extra} needs {error.name or extra}, which is not installed"
    return ImportError(f"{text}: pip install 'backtrail[{extra}]'", name=error.name)
