"""Reading a store in PostgreSQL as it was at one moment: one transaction, on a connection of its own.

It takes no lock that writers wait for. If the connection is lost, the moment is gone: what is read then is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import psycopg

from backtrail.backends.postgres.errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.postgres.pool import Pool
    from backtrail.backends.postgres.session import Session

T = TypeVar("T")

_BEGIN: Final = """
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL idle_in_transaction_session_timeout = 0;
    SELECT 1"""


class Snapshot:
    """The transaction that a view of the store reads in."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._session = pool.keep(lambda session: session.script(_BEGIN))

    def read(self, work: Callable[[Session], T]) -> T:
        """Read what was there."""
        try:
            return work(self._session)
        except psycopg.Error as error:
            raise translated(error, self._pool.where) from error

    def end(self) -> None:
        """Give the connection back."""
        try:
            if self._session.whole and not self._session.is_idle:
                self._session.script("ROLLBACK")
        except psycopg.Error:
            pass  # it is lost, and closed when it is given back
        finally:
            self._pool.give(self._session)
