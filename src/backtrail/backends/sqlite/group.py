"""Commits that are made durable together: one IMMEDIATE transaction, begun by the first of them, ended by the block.

From its first write to its end a group has the connection to itself, so others wait for as long and never see half of
it. Each commit is taken or refused by itself: a single row is one statement, which SQLite takes back alone; anything
longer has a savepoint. When the disk fails, SQLite may have dropped the whole transaction, so then the group is lost.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

from backtrail.backends.port import Batch
from backtrail.backends.sqlite.commit import end, taken
from backtrail.backends.sqlite.connection import roll_back, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.sqlite.connection import Guard
    from backtrail.errors import Error

# What is wrong with one write, and says nothing about the others.
_ALONE = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)


class Group:
    """The writes of one thread since its group began."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._connection: apsw.Connection | None = None
        self._lost: Error | None = None
        self._sign = Batch()
        """Something by which a group that was committed is known: the newest row of one of its threads."""

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Take a batch, or refuse it."""
        with self.writing() as connection:
            numbers, new = taken(connection, batch)
        if new and batch.rows:
            thread, row = batch.rows[-1]
            no = numbers[-thread - 1] if numbers and thread < 0 else thread
            self._sign = Batch(rows=((no, row),))
        elif new and batch.threads and not self._sign.rows:
            self._sign = Batch(threads=batch.threads)
        return numbers

    @contextmanager
    def writing(self) -> Iterator[apsw.Connection]:
        """Give the connection to write something, which counts if the block ends well."""
        if self._lost is not None:
            raise self._lost
        try:
            if self._connection is None:
                connection = self._guard.keep()
                self._connection = connection
                self._guard.prepare()
                connection.execute("BEGIN IMMEDIATE")
            yield self._connection
        except apsw.Error as error:
            if isinstance(error, _ALONE) and self._connection is not None and self._connection.in_transaction:
                raise translated(error, self._guard.path) from error
            raise self._lose(translated(error, self._guard.path)) from error

    def _lose(self, error: Error) -> Error:
        """Give up all of it."""
        self._lost = error
        if self._connection is not None:
            roll_back(self._connection)
        return error

    def end(self) -> None:
        """Make all of it durable, or raise: then none of it happened, or it is a `CommitUnknown`."""
        try:
            if self._lost is not None:
                raise self._lost
            if self._connection is not None:
                end(self._connection, self._sign, "COMMIT")
        except apsw.Error as error:
            raise translated(error, self._guard.path) from error
        finally:
            self.drop()

    def drop(self) -> None:
        """Give up what is not durable yet, and let others have the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            roll_back(connection)
            self._guard.let_go()
