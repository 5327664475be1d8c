"""Read one version of a PostgreSQL store: one transaction, on its own connection.

It takes no lock that writers wait for. If the connection is lost, the snapshot is lost, and later reads raise.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg

from backtrail.backends.postgres.errors import translated
from backtrail.backends.postgres.session import refuse_if_forked

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.postgres.pool import Pool
    from backtrail.backends.postgres.session import PgSession

T = TypeVar("T")

_BEGIN: Final = """
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL idle_in_transaction_session_timeout = 0;
    SELECT 1"""


class Snapshot:
    """The read transaction of a snapshot."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._pid = os.getpid()
        self._session = pool.keep(lambda session: session.script(_BEGIN))

    def read(self, work: Callable[[PgSession], T]) -> T:
        """Return `work(session)`, which reads the snapshot."""
        refuse_if_forked(self._pid)
        try:
            return work(self._session)
        except psycopg.Error as error:
            raise translated(error, self._pool.where) from error

    def end(self) -> None:
        """Return the connection to the pool. A forked child leaves it to its parent."""
        if self._pid != os.getpid():
            return
        try:
            if self._session.whole and not self._session.is_idle:
                self._session.script("ROLLBACK")
        except psycopg.Error:
            pass  # the connection is lost: the pool closes it
        finally:
            self._pool.give(self._session)
