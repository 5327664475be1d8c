"""The PostgreSQL backend: a store in one schema of a database, which many processes and machines may share.

Each read is one statement, so it sees one consistent version of the store. `commit` writes, `schema` creates the
tables, `pool` has the connections and retries lost ones.
"""

from __future__ import annotations

import time
import weakref
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.backends.columns import as_record, as_row, as_usage, encoded, merged, names_between
from backtrail.backends.port import IndexState
from backtrail.backends.postgres import maintenance
from backtrail.backends.postgres.change_feed import Listener, Notifier, changed_since
from backtrail.backends.postgres.commit import CommitWriter, PostgresGroup
from backtrail.backends.postgres.pool import Pool
from backtrail.backends.postgres.schema import prepare, schema_name
from backtrail.backends.postgres.search import TextIndex
from backtrail.backends.postgres.session import Parameters, PgSession, Statement
from backtrail.backends.postgres.snapshot import Snapshot
from backtrail.backends.postgres.statements import Statements
from backtrail.backends.postgres.url import read_url
from backtrail.backends.sql.backend import SqlBackend
from backtrail.backends.sql.change_feed import FeedCursor
from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from backtrail.backends.port import (
        Batch,
        IndexHit,
        NewList,
        Phrase,
        Row,
        Splice,
        ThreadRecord,
        Usage,
    )

T = TypeVar("T")

_MANY: Final = 512
"""The most keys per statement."""
_SECOND: Final = 1_000_000
_EPOCH_WAIT: Final = "50ms"
"""How long an attempt to begin an epoch waits for its lock. Writers may wait as long."""
_EPOCH_SECONDS: Final = 60.0


class PostgresBackend(SqlBackend[PostgresGroup]):
    """The backend for PostgreSQL. `patience` is the longest wait for an unreachable server, in seconds."""

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
        self._check_durability(durability)
        self._schema = name = schema_name(schema)
        target = read_url(url)
        super().__init__(target.shown, read_only=read_only)
        self._sql = Statements(name, durable=durability == "full")
        options = target.options if read_only else {"target_session_attrs": "read-write", **target.options}
        self._pool = Pool(options, target.shown, size=target.pool_size, patience=patience)
        self._writer = CommitWriter(self._sql, self._pool, durable=durability == "full")
        self._search = TextIndex(self._sql)
        self._snapshot: Snapshot | None = None
        self._ranges: dict[tuple[bool, bool, bool, bool], Statement] = {}
        self._listings: dict[str, Statement] = {}
        self._notifier = Notifier(self._pool, self._sql, name.channel)
        weakref.finalize(self, self._notifier.stop).atexit = False
        self._listeners[self._notifier] = self._notifier.send_soon
        try:
            found = self._pool.do(lambda session: prepare(session, name, target.shown, read_only=read_only), patience=0)
        except BaseException:
            self._pool.close()
            raise
        self._sql.use_format(found)

    # -- running statements -------------------------------------------------------------------
    def _run(self, statement: Statement, *values: Any) -> list[tuple[Any, ...]]:
        if self._snapshot is not None:
            return self._snapshot.read(lambda session: session.run(statement, values))
        group = self._calling.group
        if group is not None:
            return group.read(lambda session: session.run(statement, values))
        return self._pool.do(lambda session: session.run(statement, values))

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(self._sql[statement], *values)

    def _read_each(self, statement: str, keys: Sequence[Any], *values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(keys), _MANY):
            rows += self._read(statement, *values, keys[start : start + _MANY])
        return rows

    def _do(self, work: Callable[[PgSession], T], *, safe: bool = False) -> T:
        """Return `work(session)`, which writes, in its own transaction or in the open group.

        `safe`: if it raises, it has written nothing; see `PostgresGroup.write`.
        """
        self._refuse_if_read_only()
        group = self._calling.group
        return self._pool.do(work, writes=True) if group is None else group.write(work, safe=safe)

    def _write(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._do(lambda session: session.run(self._sql[statement], values))

    def _commit(self, batch: Batch) -> tuple[int, ...]:
        return self._pool.do(lambda session: self._writer.write(session, batch, alone=True), writes=True)

    def _new_group(self) -> PostgresGroup:
        return PostgresGroup(self._pool, self._writer, self._sql)

    # -- threads and rows ---------------------------------------------------------------------
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
        statement, values = self._listing(space, agent, prefix, origin, after, limit)
        return [(as_record(entry[:7]), _newest(entry[7:])) for entry in self._run(statement, *values)]

    def _listing(  # noqa: PLR0917 - as `threads` has them
        self,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> tuple[Statement, list[Any]]:
        """Return the statement that lists threads, and its values.

        The statement has only the conditions that are given: one statement for all cases would use no index. LATERAL
        and LIMIT 1 keep the planner from reading all newest rows at once: it does not know how few threads match.
        Threads of a name space or an agent come in the order of the table `activity`; those of some names, which an
        index finds, and all threads at once are sorted.
        """
        parameters = Parameters()
        add = parameters.add
        low, high = names_between(prefix)
        some = space is not None or agent is not None
        by_activity = self._sql.has_activity and some and low is None and origin is None
        listed = "a" if by_activity else "t"
        conditions = ["true"]
        if space is not None:
            conditions.append(f"{listed}.space = {add('t', space)}")
        if agent is not None:
            conditions.append(f"{listed}.agent = {add('b', encoded(agent))}")
        if low is not None:
            conditions.append(f"t.name >= {add('b', low)}")
        if high is not None:
            conditions.append(f"t.name < {add('b', high)}")
        if origin is not None:
            conditions.append(f"substring(t.origin FROM 9) = {add('b', origin.hex().encode())}")
        if after is not None:
            conditions.append(f"(t.updated_at, t.no) < ({add('i', after[0])}, {add('i', after[1])})")
            conditions.append(f"{listed}.second <= {add('i', after[0] // _SECOND + 1)}")
        text = self._sql.text(
            "threads",
            source=self._sql.text("active_threads" if by_activity else "all_threads"),
            conditions=" AND ".join(conditions),
            second=f"{listed}.second",
            limit=add("i", limit),
        )
        statement = self._listings.get(text) or self._listings.setdefault(text, Statement(text, parameters.types))
        return statement, parameters.values

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
        one = len(spans) == 1
        shape = (one, payload, visible, newest_first)
        statement = self._ranges.get(shape) or self._ranges.setdefault(shape, _range(self._sql, *shape))
        places = spans[0] if one else ([low for low, _ in spans], [high for _, high in spans])
        return [as_row(values) for values in self._run(statement, thread, *places, limit)]

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        rows = self._read("newest_rows_of", list(threads)) if threads else []
        return {no: as_row(values) for no, *values in rows}

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        columns = [list(column) for column in zip(*sorted(spans), strict=True)]
        rows = self._read("whole_rows_of" if payload else "rows_of", *columns) if columns else []
        return {(no, values[0]): as_row(values) for no, *values in rows}

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        spans = merged(ranges)
        return int(self._read("count", thread, [low for low, _ in spans], [high for _, high in spans])[0][0])

    def last_seq(self, thread: int) -> int:
        rows = self._read("last_seq", thread)
        return int(rows[0][0]) if rows else 0

    # -- one moment -----------------------------------------------------------------------------
    @contextmanager
    def snapshot(self) -> Iterator[PostgresBackend]:
        self._refuse_in_group()
        view = copy(self)
        view.read_only = True
        view._snapshot = snapshot = Snapshot(self._pool)  # noqa: SLF001 - it is another of the same class
        try:
            yield view
        finally:
            snapshot.end()

    # -- the change feed ------------------------------------------------------------------------
    @contextmanager
    def listen(self, wake: Callable[[Collection[int]], None]) -> Iterator[float]:
        listener = Listener(self._pool, self._notifier, wake)
        with self._listener(wake):
            try:
                yield listener.begin()
            finally:
                listener.end()

    def changed_since(
        self, mark: object | None, notified: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        self._refuse_in_group()
        return changed_since(self._read, mark if isinstance(mark, FeedCursor) else None, notified, others)

    # -- the index ------------------------------------------------------------------------------
    def index(self, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]) -> bool:
        return self._do(lambda session: self._search.index(session, thread, was, now, splices), safe=True)

    def marked(self, after: int, limit: int) -> list[tuple[ThreadRecord, IndexState]]:
        rows = self._read("marked_threads", after, limit)
        return [(as_record(row[:7]), IndexState(*row[7:])) for row in rows]

    def index_new(self, lists: Sequence[NewList]) -> set[int]:
        return self._do(lambda session: self._search.index_new(session, lists), safe=True)

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
    ) -> list[IndexHit]:
        return self._search.find(
            self._run, phrases, space=space, agent=agent, threads=threads, without=without, after=after, limit=limit
        )

    def clear_index(self) -> None:
        self._do(lambda session: session.script(self._sql.text("clear_index"), seconds=None))

    # -- maintenance ----------------------------------------------------------------------------
    def next_epoch(self) -> int:
        """Begin an epoch while no transaction writes chunks. Each attempt is short, so that writers hardly wait."""

        def begin(session: PgSession) -> int:
            wait = _EPOCH_WAIT if self._calling.group is None else "0"
            ((epoch,),) = session.run(self._sql["next_epoch"], (wait,), seconds=None)
            return int(epoch)

        until = time.monotonic() + _EPOCH_SECONDS
        while True:
            try:
                return self._do(begin)
            except Unavailable as error:
                if error.code != "unavailable.locked" or time.monotonic() > until or self._calling.group is not None:
                    raise
                time.sleep(0.1)

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        return int(self._write("remove_chunks", digests, before_epoch)[0][0])

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        return int(self._write("remove_rows", thread, list(seqs))[0][0])

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        alone = self._calling.group is None
        return self._do(lambda session: self._writer.rewrite(session, thread, rows, chunks, alone=alone))

    def reclaim(self, *, erase: bool = False) -> None:
        self._refuse_if_read_only()
        self._refuse_in_group()
        self._pool.do(self._search.clean)
        self._pool.do(lambda session: maintenance.vacuum(session, self._sql, erase=erase))

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        damage: list[str] = []
        for at, (words, statement) in enumerate(maintenance.checks(self._sql), 1):
            ((number,),) = self._run(statement)
            damage += [f"{number} {words}"] if number else []
            if progress:
                progress("tables", at)
        return tuple(damage)

    def repair(self) -> None:
        self._refuse_in_group()
        self._do(lambda session: session.script(maintenance.repair(self._sql), seconds=None))

    def usage(self) -> Usage:
        (values,) = self._read("usage")
        return as_usage(
            zip(*values[0:2], strict=True),
            zip(*values[2:5], strict=True),
            zip(*values[5:7], strict=True),
            rows=values[7:9],
            chunks=values[9:11],
            entries=values[11:13],
            stored=values[13],
        )

    def now(self) -> int:
        return int(self._read("now")[0][0])

    def close(self) -> None:
        """Release everything; closing twice is allowed."""
        self._refuse_in_group()
        self._notifier.end()
        self._pool.close()


def _range(sql: Statements, one: bool, payload: bool, visible: bool, newest_first: bool) -> Statement:  # noqa: FBT001
    """Return the statement that reads the rows of one range (`one`) or of several ranges."""
    text = sql.text(
        "rows_in_range" if one else "rows_in_ranges",
        columns=sql.text("row_columns" if payload else "bare_columns"),
        visible="AND NOT r.hidden AND r.root <> ''" if visible else "",
        order="DESC" if newest_first else "",
    )
    return Statement(text, "iiii" if one else "iIIi")


def _newest(values: Sequence[Any]) -> Row:
    """Return the newest row of a thread, with the time by which the thread is listed: the last column.

    If the row has another time, it is damaged. It then gets the time of the listing and an empty checksum: it stays
    damaged for readers, and is still a valid cursor for the next page.
    """
    row, updated_at = as_row(values), values[-1]
    return row if row.created_at == updated_at else row._replace(created_at=updated_at, check=b"")
