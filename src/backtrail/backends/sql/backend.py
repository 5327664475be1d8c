"""The part of the port that is the same on SQLite and PostgreSQL.

Both databases have statements of the same names (`statements.sql`), with the same parameters and result columns. A
subclass runs the statements, writes batches, and makes groups and snapshots.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from backtrail.backends.columns import as_record, as_row, as_tags, as_tip, encoded
from backtrail.backends.port import IndexState, PlainChunks, pins_as_tags, pins_of_rows, tags_in, tags_of_rows, written
from backtrail.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from backtrail.backends.port import Batch, Row, ThreadRecord, ThreadTip


class CommitGroup(Protocol):
    """The commits of one thread that become durable together."""

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Write a batch in the group and return the numbers of its new threads, or raise and write nothing."""

    def end(self) -> None:
        """Make all commits durable. After `CommitUnknown` that is unknown; after other errors none of them happened."""

    def drop(self) -> None:
        """Roll back the commits that are not durable yet."""


G = TypeVar("G", bound=CommitGroup)


class CallingThread(threading.local, Generic[G]):
    """The state of the calling thread."""

    group: G | None = None
    """The open group of the calling thread."""
    changed: frozenset[int] = frozenset()
    """The threads of the store that the group has written to."""


class SqlBackend(PlainChunks, ABC, Generic[G]):
    """A backend on a database; `where` is the name of the store in error messages."""

    def __init__(self, where: str, *, read_only: bool) -> None:
        self.read_only = read_only
        self._where = where
        self._calling = CallingThread[G]()
        self._listeners: dict[object, Callable[[Collection[int]], None]] = {}

    @staticmethod
    def _check_durability(durability: str) -> None:
        if durability not in ("full", "relaxed"):
            raise Invalid(f"durability must be 'full' or 'relaxed', not {durability!r}", code="invalid.option")

    @abstractmethod
    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run the named statement and return its rows."""

    @abstractmethod
    def _read_each(self, statement: str, keys: Sequence[Any], *values: Any) -> list[tuple[Any, ...]]:
        """Run the named statement for a list of keys and return all rows; `values` are parameters before the keys."""

    @abstractmethod
    def _write(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run the named statement, which writes, in its own transaction or in the open group; return its rows."""

    @abstractmethod
    def _commit(self, batch: Batch) -> tuple[int, ...]:
        """Write a batch in its own transaction; return the numbers of its new threads."""

    @abstractmethod
    def _new_group(self) -> G:
        """Return a new, empty group."""

    # -- threads ------------------------------------------------------------------------------
    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        return self._one_thread("thread_by_name", space, encoded(name))

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        return self._one_thread("thread_by_uid", uid)

    def thread(self, no: int) -> ThreadRecord | None:
        return self._one_thread("thread_by_number", no)

    def _one_thread(self, statement: str, *values: Any) -> ThreadRecord | None:
        rows = self._read(statement, *values)
        return as_record(rows[0]) if rows else None

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        return [no for (no,) in self._read("thread_numbers", after, limit)]

    def tips(self, agent: str, *, touched: bool) -> list[ThreadTip]:
        if touched and self.read_only and not self._read("has_touched")[0][0]:
            touched = False  # in a store of an older format, which is only read, all threads are touched
        return [as_tip(values) for values in self._read("touched_tips" if touched else "tips", encoded(agent))]

    def threads_named(self, space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
        records = map(as_record, self._read_each("threads_named", [encoded(name) for name in names], space))
        return {record.name: record for record in records}

    # -- rows, tags, chunks -------------------------------------------------------------------
    def newest(self, thread: int) -> Row | None:
        rows = self._read("newest_row", thread)
        return as_row(rows[0]) if rows else None

    def labelled(self, thread: int, labels: Collection[str]) -> list[int]:
        return sorted(seq for (seq,) in self._read_each("labelled", [encoded(label) for label in labels], thread))

    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        return tags_of_rows(self._stored_tags(thread, seqs))

    def pins(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
        return pins_of_rows(self._stored_tags(thread, seqs))

    def _stored_tags(self, thread: int, seqs: Iterable[int] | None) -> dict[int, tuple[str, ...]]:
        if seqs is None:
            return as_tags(self._read("tags", thread))
        return as_tags(sorted(self._read_each("tags_of", list(seqs), thread), key=lambda tag: (tag[0], tag[2])))

    def tagged(self, thread: int, tag: str) -> list[int]:
        return [seq for (seq,) in self._read("tagged", thread, encoded(tag))] if tags_in((tag,)) else []

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return dict(self._read_each("chunks", digests))

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        return {digest for (digest,) in self._read_each("present", digests)}

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        return [(digest, epoch) for digest, epoch in self._read("chunk_page", after, limit)]

    # -- the index ----------------------------------------------------------------------------
    def unindexed(self, after: int, limit: int) -> list[int]:
        return [no for (no,) in self._read("marked", after, limit)]

    def indexed(self, thread: int) -> IndexState:
        rows = self._read("indexed", thread)
        return IndexState(*rows[0]) if rows else IndexState(0, 0, 0)

    # -- the one way to write -----------------------------------------------------------------
    def commit(self, batch: Batch) -> tuple[int, ...]:
        if self.read_only:
            self._refuse_if_read_only()
        if batch.pins or batch.pin or batch.unpin:
            batch = pins_as_tags(batch)
        commit = self._commit if self._calling.group is None else self._calling.group.commit
        if not self._listeners:
            return commit(batch)
        numbers: tuple[int, ...] = ()
        try:
            numbers = commit(batch)
        finally:  # a commit that raised CommitUnknown may be in the store
            if batch.rows:
                self._announce(written(batch, numbers))
        return numbers

    @contextmanager
    def group(self) -> Iterator[None]:
        self._refuse_in_group()
        calling = self._calling
        group = calling.group = self._new_group()
        try:
            yield
        except BaseException:
            group.drop()
            raise
        else:
            group.end()
        finally:
            calling.group = None
            changed, calling.changed = calling.changed, frozenset()
            if changed:
                self._announce(changed)

    def _announce(self, numbers: Collection[int]) -> None:
        """Call the listeners with the numbers of changed threads; in a group, after the group has ended."""
        if self._calling.group is not None:
            self._calling.changed = self._calling.changed.union(numbers)
            return
        for wake in tuple(self._listeners.values()):
            wake(numbers)

    @contextmanager
    def _listener(self, wake: Callable[[Collection[int]], None]) -> Iterator[None]:
        """Register `wake` as a listener for the commits of this backend until the block ends."""
        token = object()
        self._listeners[token] = wake  # without a lock, which a forked child might inherit
        try:
            yield
        finally:
            del self._listeners[token]

    # -- refusals -----------------------------------------------------------------------------
    def _refuse_in_group(self) -> None:
        if self._calling.group is not None:
            raise Invalid("a group is open in this thread: end it first", code="invalid.transaction")

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise Unavailable(f"{self._where}: was opened read-only: open it for writing", code="unavailable.read_only")
