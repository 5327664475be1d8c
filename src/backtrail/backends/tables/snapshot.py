"""Tables that stay as they are, to be read: what a snapshot of a backend on tables gives."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from backtrail.backends.tables.backend import TableBackend
from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import Backend
    from backtrail.backends.tables.changes import Body
    from backtrail.backends.tables.tables import Tables


class TableView(TableBackend):
    """A copy of the tables, and a way to read the bodies that they name."""

    read_only = True

    def __init__(self, tables: Tables, read: Callable[[Sequence[Body]], list[bytes]]) -> None:
        super().__init__(tables)
        self._reading = read

    @contextmanager
    def _read(self) -> Iterator[Tables]:
        yield self._tables

    def _bytes(self, bodies: Sequence[Body]) -> list[bytes]:
        return self._reading(bodies)

    def _take(self) -> NoReturn:
        raise Unavailable("a snapshot can only be read: write to the store", code="unavailable.read_only")

    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        """Give itself: it is one."""
        yield self

    def reclaim(self, *, erase: bool = False) -> None:
        """Refuse: there is nothing to be had back."""
        del erase
        self._take()

    def close(self) -> None:
        """There is nothing to let go of: who made it does that."""
