"""Commits that are made durable together: one transaction, begun by the first of them, ended by the block.

Each commit is taken or refused by itself: what is refused has written nothing, and what fails is taken back to a
savepoint. If others are in the way, or the server goes away, all of it is given up: `Undone`. A group does not wait
for others: it has the turns of several threads, in no order, and two of them would soon wait for each other.

A transaction whose COMMIT got no reply may still be under way when the next connection asks for it. So every group
holds an advisory lock with a number of its own: who gets that lock knows that the transaction is over.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from backtrail.backends.port import Batch, Undone
from backtrail.backends.postgres.commit import is_one_row
from backtrail.backends.postgres.errors import AGAIN, is_alone, is_in_the_way, is_lost, translated
from backtrail.backends.postgres.session import Statement
from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.postgres.commit import Commit
    from backtrail.backends.postgres.pool import Pool
    from backtrail.backends.postgres.session import Session

T = TypeVar("T")

_LOCKED: Final = "55P03"
"""Somebody else has a lock."""
_LOCK: Final = Statement("SELECT pg_catalog.pg_advisory_xact_lock($1)", "i")


class Group:
    """The writes of one thread since its group began."""

    def __init__(self, pool: Pool, commit: Commit) -> None:
        self._pool = pool
        self._commit = commit
        self._session: Session | None = None
        self._lost: Exception | None = None
        self._lock = 0
        self._pid = os.getpid()
        self._sign: tuple[int, Any] | None = None
        """Something by which a group that was committed is known: a row of one of its threads."""

    def read(self, work: Callable[[Session], T]) -> T:
        """Read what is there for the group."""
        if self._lost is not None:
            raise self._lost
        if self._session is None:
            return self._pool.do(work)
        try:
            return work(self._session)
        except psycopg.Error as error:
            raise self._lose(error) from error

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Take a batch, or refuse it."""
        numbers = self.write(lambda session: self._commit.write(session, batch, alone=False), safe=is_one_row(batch))
        if batch.rows:
            thread, row = batch.rows[-1]
            self._sign = (numbers[-thread - 1] if numbers and thread < 0 else thread), row
        return numbers

    def write(self, work: Callable[[Session], T], *, safe: bool = False) -> T:
        """Do something, which counts if it ends well; `safe` if it raises nothing once it has written something."""
        if self._lost is not None:
            raise self._lost
        session = self._session or self._begin()
        try:
            if safe:
                return work(session)
            return self._part(session, work)
        except psycopg.Error as error:
            raise self._lose(error) from error

    def _part(self, session: Session, work: Callable[[Session], T]) -> T:
        while True:
            session.script("SAVEPOINT part")
            try:
                result = work(session)
            except psycopg.Error as error:
                if not is_alone(error) and error.sqlstate != AGAIN:
                    raise
                session.script("ROLLBACK TO part; RELEASE part")
                if error.sqlstate != AGAIN:
                    raise translated(error, self._pool.where) from error
            except BaseException:
                if session.whole:
                    session.script("ROLLBACK TO part; RELEASE part")
                raise
            else:
                session.script("RELEASE part")
                return result

    def _begin(self) -> Session:
        self._lock = secrets.randbits(63)

        def begin(session: Session) -> None:
            # If this process dies in silence, the server is not to wait for it.
            session.script(
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '20s';"
                # It holds what others wait for, so it does not wait for them until a deadlock is noticed.
                "SET LOCAL lock_timeout = '20ms';"
                f"SELECT pg_advisory_xact_lock({self._lock})"
            )

        self._session = self._pool.keep(begin)
        return self._session

    def _lose(self, error: psycopg.Error) -> Exception:
        """Give up all of it."""
        again = is_lost(error) or is_in_the_way(error) or error.sqlstate == _LOCKED
        self._lost = Undone(str(error)) if again else translated(error, self._pool.where)
        self._lost.__cause__ = error
        self.drop()
        return self._lost

    def end(self) -> None:
        """Make all of it durable, or raise: then none of it happened, or it is a `CommitUnknown`."""
        if self._lost is not None:
            raise self._lost
        session = self._session
        if session is None:
            return
        if self._pid != os.getpid():
            raise Unavailable("this process was forked in the middle of a group", code="unavailable.forked")
        try:
            session.script("COMMIT")
        except psycopg.Error as error:
            doubtful = error.sqlstate is None
            lost = self._lose(error)
            if not doubtful or not self._is_there(error):
                raise lost from error
        finally:
            self.drop()

    def _is_there(self, doubt: psycopg.Error) -> bool:
        """Wait until the group's transaction is over, and tell whether it was committed."""

        def look(session: Session) -> bool:
            session.run(_LOCK, (self._lock,))
            return self._sign is not None and self._commit.is_there(session, *self._sign)

        return self._pool.do(look, doubt=doubt)

    def drop(self) -> None:
        """Give up what is not durable yet, and give the session back."""
        session, self._session = self._session, None
        if session is None or self._pid != os.getpid():
            return
        if session.whole and not session.is_idle:
            with suppress(psycopg.Error):
                session.script("ROLLBACK")
        self._pool.give(session)
