"""A store in PostgreSQL: the port on one schema of a database, for as many processes and machines as like to share it.

Reads are one statement each, so each sees one moment. `postgres_commit` has the writing, `postgres_tables` the tables,
`postgres_pool` the connections and what happens when they break.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.backends.columns import as_record, as_row, encoded, merged, text_of
from backtrail.backends.port import (
    Batch,
    Found,
    Indexed,
    Phrase,
    Row,
    Splice,
    Stand,
    ThreadRecord,
    Usage,
    written,
)
from backtrail.backends.postgres.change_feed import Crier, Listening, Moves
from backtrail.backends.postgres.check import Checks
from backtrail.backends.postgres.commit import Commit
from backtrail.backends.postgres.group import Group
from backtrail.backends.postgres.heads import Standings
from backtrail.backends.postgres.pool import Pool
from backtrail.backends.postgres.rewrite import Room
from backtrail.backends.postgres.schema import place_of, prepare
from backtrail.backends.postgres.search import Search
from backtrail.backends.postgres.snapshot import Snapshot
from backtrail.backends.postgres.statements import Statements
from backtrail.backends.postgres.url import read_url
from backtrail.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from backtrail.backends.postgres.session import Session, Statement

T = TypeVar("T")

_MANY: Final = 512
"""Chunks that are read at once."""
_EPOCH_WAIT: Final = "50ms"
"""For how long others may have to wait for a new epoch that cannot begin."""
_EPOCH_SECONDS: Final = 60.0


class _Grouped(threading.local):
    """The calling thread's open group."""

    group: Group | None = None
    told: set[int] | None = None
    """The threads that it wrote to."""


class PostgresBackend:
    """The port on PostgreSQL. `patience` bounds, in seconds, the wait for a server that is away."""

    shows_texts = True
    undoes_groups = True

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        durability: str = "full",
        read_only: bool = False,
        patience: float = 30.0,
    ) -> None:
        if durability not in ("full", "relaxed"):
            raise Invalid(f"durability is {durability!r}: say 'full' or 'relaxed'", code="invalid.option")
        self._place = place_of(schema)
        target = read_url(url)
        self.read_only = read_only
        self._pool = Pool(target.options, target.shown, size=target.pool_size, patience=patience)
        self._commit = Commit(self._place.quoted, durable=durability == "full")
        self._sql = Statements(self._place.quoted)
        self._grouped = _Grouped()
        self._moment: Snapshot | None = None
        self._moves = Moves(self._place.quoted)
        self._search = Search(self._place.quoted)
        self._standings = Standings(self._place.quoted)
        self._crier = Crier(self._pool, self._place.channel)
        weakref.finalize(self, self._crier.stop).atexit = False
        self._listening: dict[object, Callable[[Collection[int]], None]] = {}
        try:
            self._pool.do(lambda session: prepare(session, self._place, target.shown, read_only=read_only), patience=0)
        except BaseException:
            self._pool.close()
            raise

    def _read(self, statement: Statement, *values: Any) -> list[tuple[Any, ...]]:
        if self._moment is not None:
            return self._moment.read(lambda session: session.run(statement, values))
        group = self._grouped.group
        if group is not None:
            return group.read(lambda session: session.run(statement, values))
        return self._pool.do(lambda session: session.run(statement, values))

    def _write(self, work: Callable[[Session], T]) -> T:
        self._refuse_if_read_only()
        group = self._grouped.group
        return self._pool.do(work, writes=True) if group is None else group.write(work)

    # -- threads ------------------------------------------------------------------------------
    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        return self._one_thread(self._sql.by_name, space, encoded(name))

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        return self._one_thread(self._sql.by_uid, uid)

    def thread(self, no: int) -> ThreadRecord | None:
        return self._one_thread(self._sql.by_number, no)

    def _one_thread(self, statement: Statement, *values: Any) -> ThreadRecord | None:
        found = self._read(statement, *values)
        return as_record(found[0]) if found else None

    def threads(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None = None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[ThreadRecord, Row]]:
        statement, values = self._sql.listing(
            space=space, agent=agent, prefix=prefix, origin=origin, after=after, limit=limit
        )
        return [(as_record(found[:7]), _newest(found[7:])) for found in self._read(statement, *values)]

    def standings(self, agent: str, *, touched: bool) -> list[Stand]:
        return self._standings.read(self._read, agent, touched=touched, read_only=self.read_only)

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        return [no for (no,) in self._read(self._sql.numbers, after, limit)]

    # -- rows ---------------------------------------------------------------------------------
    def newest(self, thread: int) -> Row | None:
        found = self._read(self._sql.newest, thread)
        return as_row(found[0]) if found else None

    def rows(
        self,
        thread: int,
        ranges: Sequence[tuple[int, int]],
        *,
        payload: bool = False,
        visible: bool = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Row]:
        spans = merged(ranges)
        if not spans:
            return []
        if newest_first:
            spans.reverse()
        if len(spans) == 1:
            one = self._sql.range[payload, visible, newest_first]
            found = self._read(one, thread, *spans[0], limit)
        else:
            many = self._sql.ranges[payload, visible, newest_first]
            found = self._read(many, thread, [low for low, _ in spans], [high for _, high in spans], limit)
        return [as_row(values) for values in found]

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        spans = merged(ranges)
        ((found,),) = self._read(self._sql.count, thread, [low for low, _ in spans], [high for _, high in spans])
        return int(found)

    def labelled(self, thread: int, label: str) -> list[int]:
        return [seq for (seq,) in self._read(self._sql.labelled, thread, encoded(label))]

    # -- tags ---------------------------------------------------------------------------------
    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        wanted = None if seqs is None else list(seqs)
        if wanted == []:
            return {}
        tags: dict[int, list[str]] = {}
        for seq, tag in self._read(self._sql.tags, thread, wanted):
            tags.setdefault(seq, []).append(text_of(tag))
        return {seq: tuple(given) for seq, given in tags.items()}

    def tagged(self, thread: int, tag: str) -> list[int]:
        return [seq for (seq,) in self._read(self._sql.tagged, thread, encoded(tag))]

    # -- chunks -------------------------------------------------------------------------------
    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(digests), _MANY):
            found.update(self._read(self._sql.chunks, digests[start : start + _MANY]))
        return found

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        return {digest for (digest,) in self._read(self._sql.present, digests)} if digests else set()

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        return [(digest, epoch) for digest, epoch in self._read(self._sql.chunk_page, after, limit)]

    # -- the one way to write -------------------------------------------------------------------
    def commit(self, batch: Batch) -> tuple[int, ...]:
        self._refuse_if_read_only()
        group = self._grouped.group
        numbers: tuple[int, ...] = ()
        try:
            if group is not None:
                numbers = group.commit(batch)
            else:
                numbers = self._pool.do(lambda session: self._commit.write(session, batch, alone=True), writes=True)
        finally:  # also if it failed: it may be there all the same
            if batch.rows:
                self._tell(written(batch, numbers))
        return numbers

    @contextmanager
    def group(self) -> Iterator[None]:
        self._refuse_in_group()
        group = self._grouped.group = Group(self._pool, self._commit)
        try:
            yield
        except BaseException:
            group.drop()
            raise
        else:
            group.end()
        finally:
            self._grouped.group = None
            told, self._grouped.told = self._grouped.told, None
            if told:
                self._tell(told)

    def _tell(self, numbers: set[int]) -> None:
        """Let those who listen know of a commit; in a group, when it has ended."""
        if self._grouped.group is not None:
            self._grouped.told = numbers | (self._grouped.told or set())
            return
        self._crier.tell(numbers)
        for wake in tuple(self._listening.values()):
            wake(numbers)

    # -- one moment -----------------------------------------------------------------------------
    @contextmanager
    def snapshot(self) -> Iterator[PostgresBackend]:
        self._refuse_in_group()
        view = copy(self)
        view.read_only = True
        view._moment = moment = Snapshot(self._pool)  # noqa: SLF001 - it is another of the same class
        try:
            yield view
        finally:
            moment.end()

    # -- hearing of commits ---------------------------------------------------------------------
    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        listening = Listening(self._pool, self._crier, wake)
        token = object()
        self._listening[token] = wake  # without a lock, which a forked child might inherit
        try:
            yield listening.begin()
        finally:
            listening.end()
            del self._listening[token]

    def moved(
        self, mark: object | None, told: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        self._refuse_in_group()
        return self._moves.moved(self._read, mark, told, others)

    # -- the index ------------------------------------------------------------------------------
    def marked(self, after: int, limit: int) -> list[int]:
        return [no for (no,) in self._read(self._search.marked, after, limit)]

    def indexed(self, thread: int) -> Indexed:
        found = self._read(self._search.indexed, thread)
        return Indexed(*found[0]) if found else Indexed(0, 0, 0)

    def index(self, thread: int, was: Indexed, now: Indexed, splices: Sequence[Splice]) -> bool:
        return self._write(lambda session: self._search.index(session, thread, was, now, splices))

    def find(
        self,
        phrases: Sequence[Phrase],
        *,
        space: str | None,
        agent: str | None,
        threads: Sequence[int] | None,
        without: Sequence[int] = (),
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[Found]:
        return self._search.find(
            self._read, phrases, space=space, agent=agent, threads=threads, without=without, after=after, limit=limit
        )

    def forget_index(self) -> None:
        self._write(lambda session: session.script(self._search.forget, seconds=None))

    def _refuse_in_group(self) -> None:
        if self._grouped.group is not None:
            raise Invalid("a group is open in this thread: end it first", code="invalid.transaction")

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise Unavailable(
                f"{self._pool.where}: was opened read-only: open it for writing", code="unavailable.read_only"
            )

    # -- upkeep -------------------------------------------------------------------------------
    def next_epoch(self) -> int:
        """Begin an epoch when no transaction that writes chunks is under way, without making others wait for long."""

        def begin(session: Session) -> int:
            wait = _EPOCH_WAIT if self._grouped.group is None else "0"
            ((epoch,),) = session.run(self._sql.next_epoch, (wait,), seconds=None)
            return int(epoch)

        until = time.monotonic() + _EPOCH_SECONDS
        while True:
            try:
                return self._write(begin)
            except Unavailable as error:
                if error.code != "unavailable.locked" or time.monotonic() > until or self._grouped.group is not None:
                    raise
                time.sleep(0.1)

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        ((size,),) = self._write(lambda session: session.run(self._sql.remove_chunks, (digests, before_epoch)))
        return int(size)

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        ((count,),) = self._write(lambda session: session.run(self._sql.remove_rows, (thread, list(seqs))))
        return int(count)

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        alone = self._grouped.group is None
        return self._write(lambda session: self._commit.rewrite(session, thread, rows, chunks, alone=alone))

    def reclaim(self, *, erase: bool = False) -> None:
        """Let PostgreSQL use the space again, and give back what is free at the ends of its files, or nearly all."""
        self._refuse_if_read_only()
        self._refuse_in_group()
        self._pool.do(self._search.clean)
        room = Room(self._place.quoted)
        self._pool.do((lambda session: room.vacuum(session, "FULL")) if erase else room.give_back)

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        found: list[str] = []
        for at, (what, statement) in enumerate(Checks(self._place.quoted).counts.items(), 1):
            ((number,),) = self._read(statement)
            found += [f"{number} {what}"] if number else []
            if progress:
                progress("tables", at)
        return tuple(found)

    def mend(self) -> None:
        self._refuse_in_group()
        self._write(lambda session: session.script(Checks(self._place.quoted).mending, seconds=None))

    def last_seq(self, thread: int) -> int:
        found = self._read(self._sql.last_seq, thread)
        return int(found[0][0]) if found else 0

    def recall(self, name: str) -> int:
        ((value,),) = self._read(self._sql.recall, name)
        return int(value)

    def note(self, name: str, value: int) -> None:
        self._write(lambda session: session.run(self._sql.note, (name, value)))

    def usage(self) -> Usage:
        ((*spaces, rows, row_bytes, chunks, chunk_bytes, entries, index_bytes, stored),) = self._read(self._sql.usage)
        alive, alive_count, indexed, items, saved, checkpoints, logical = spaces
        return Usage(
            threads=dict(zip(alive, alive_count, strict=True)),
            rows=rows,
            checkpoints=dict(zip(saved, checkpoints, strict=True)),
            logical_bytes=dict(zip(saved, logical, strict=True)),
            items=dict(zip(indexed, items, strict=True)),
            chunks=chunks,
            payload_bytes=row_bytes + chunk_bytes,
            stored_bytes=stored,
            entries=entries,
            index_bytes=index_bytes,
        )

    def now(self) -> int:
        ((now,),) = self._read(self._sql.now)
        return int(now)

    def close(self) -> None:
        """Release everything; closing twice is allowed."""
        self._refuse_in_group()
        self._crier.end()
        self._pool.close()


def _newest(values: Sequence[Any]) -> Row:
    """Return a row that is the newest of its thread, with the time by which the thread is listed, which stands behind.

    If it has another one, it is damaged, and stays so: but whoever goes on behind it in a listing finds the place.
    """
    row, updated_at = as_row(values), values[-1]
    return row if row.created_at == updated_at else row._replace(created_at=updated_at, check=b"")
