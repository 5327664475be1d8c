"""The statements by which a store in PostgreSQL is read, and by which upkeep writes."""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

from typing import Any, Final

from backtrail.backends.columns import above, encoded
from backtrail.backends.postgres.session import Given, Statement
from backtrail.backends.postgres.tables import BARE, COLUMNS, SECOND, THREAD

_WHOLE: Final = ", ".join(f"r.{column}" for column in COLUMNS)


class Statements:
    """Those of one schema (its quoted name)."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._listings: dict[str, Statement] = {}
        threads = f"SELECT {THREAD} FROM {schema}.thread t"
        self.by_name = Statement(f"{threads} WHERE space = $1 AND name = $2", "tb")
        self.by_uid = Statement(f"{threads} WHERE uid = $1", "b")
        self.by_number = Statement(f"{threads} WHERE no = $1", "i")
        self.now = Statement("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        self.numbers = Statement(f"SELECT no FROM {schema}.thread WHERE no > $1 ORDER BY no LIMIT $2", "ii")
        self.newest = Statement(
            f"SELECT {BARE} FROM {schema}.row r WHERE r.thread = $1 ORDER BY r.seq DESC LIMIT 1", "i"
        )
        shapes = [(p, v, n) for p in (False, True) for v in (False, True) for n in (False, True)]
        self.range = {shape: Statement(_range(schema, *shape), "iiii") for shape in shapes}
        self.ranges = {shape: Statement(_ranges(schema, *shape), "iIIi") for shape in shapes}
        self.count = Statement(_count(schema), "iII")
        self.labelled = Statement(
            f"SELECT seq FROM {schema}.row WHERE thread = $1 AND label = $2 AND NOT hidden ORDER BY seq", "ib"
        )
        self.tags = Statement(
            f"SELECT seq, tag FROM {schema}.tag WHERE thread = $1 AND ($2 IS NULL OR seq = ANY ($2)) ORDER BY seq, id",
            "iI",
        )
        self.tagged = Statement(
            f"""
            SELECT t.seq FROM {schema}.tag t JOIN {schema}.row r ON r.thread = t.thread AND r.seq = t.seq
            WHERE t.thread = $1 AND t.tag = $2 AND NOT r.hidden ORDER BY t.seq""",
            "ib",
        )
        self.chunks = Statement(f"SELECT digest, payload FROM {schema}.chunk WHERE digest = ANY ($1)", "B")
        self.present = Statement(f"SELECT digest FROM {schema}.chunk WHERE digest = ANY ($1)", "B")
        self.chunk_page = Statement(
            f"SELECT digest, epoch FROM {schema}.chunk WHERE digest > $1 ORDER BY digest LIMIT $2", "bi"
        )
        self.last_seq = Statement(
            f"""
            SELECT greatest(t.newest, i.as_of) FROM {schema}.thread t LEFT JOIN {schema}.indexed i ON i.thread = t.no
            WHERE t.no = $1""",
            "i",
        )
        self.recall = Statement(f"SELECT coalesce((SELECT value FROM {schema}.meta WHERE name = $1), 0)", "t")
        self.note = Statement(
            f"INSERT INTO {schema}.meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value", "ti"
        )
        self.next_epoch = Statement(f"SELECT {schema}.next_epoch_1($1)", "t")
        self.remove_chunks = Statement(
            f"""
            WITH gone AS (DELETE FROM {schema}.chunk WHERE digest IN (
                SELECT digest FROM {schema}.chunk WHERE digest = ANY ($1) AND epoch < $2 ORDER BY digest FOR UPDATE)
                AND epoch < $2 RETURNING octet_length(payload) AS size)
            SELECT coalesce(sum(size), 0)::bigint FROM gone""",
            "Bi",
        )
        self.remove_rows = Statement(
            f"""
            WITH gone AS (DELETE FROM {schema}.row r USING {schema}.thread t
                WHERE r.thread = $1 AND t.no = $1 AND r.seq = ANY ($2) AND r.hidden AND r.seq < t.newest
                RETURNING r.seq),
            untagged AS (DELETE FROM {schema}.tag USING gone WHERE tag.thread = $1 AND tag.seq = gone.seq)
            SELECT count(*) FROM gone""",
            "iI",
        )
        self.usage = Statement(_usage(schema))

    def listing(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> tuple[Statement, list[Any]]:
        """Return the statement that lists threads under these conditions, and its values.

        It names only the conditions that there are: one for all would use no index. LATERAL and LIMIT 1 keep the newest
        rows from being looked for all at once: how few threads there will be is not known to whoever plans this.
        """
        given = Given()
        low = encoded(prefix or None)
        high = None if low is None else above(low)
        conditions = ["t.alive"]
        if space is not None:
            conditions.append(f"t.space = {given('t', space)}")
        if agent is not None:
            conditions.append(f"t.agent = {given('b', encoded(agent))}")
        if low is not None:
            conditions.append(f"t.name >= {given('b', low)}")
        if high is not None:
            conditions.append(f"t.name < {given('b', high)}")
        if origin is not None:
            conditions.append(f"substring(t.origin FROM 9) = {given('b', origin.hex().encode())}")
        if after is not None:
            conditions.append(f"(t.updated_at, t.no) < ({given('i', after[0])}, {given('i', after[1])})")
            conditions.append(f"t.second <= {given('i', after[0] // SECOND + 1)}")
        order = "t.second DESC, t.updated_at DESC, t.no DESC"
        text = f"""
            SELECT {THREAD}, r.*, t.updated_at FROM (
                SELECT * FROM {self._schema}.thread t WHERE {" AND ".join(conditions)}
                ORDER BY {order} LIMIT {given("i", limit)}) t,
            LATERAL (SELECT {BARE} FROM {self._schema}.row r WHERE r.thread = t.no AND r.seq = t.newest LIMIT 1) r
            ORDER BY {order}"""
        statement = self._listings.get(text) or self._listings.setdefault(text, Statement(text, given.types))
        return statement, given.values


def _range(schema: str, payload: bool, visible: bool, newest_first: bool) -> str:  # noqa: FBT001 - as the port has them
    return f"""
        SELECT {_WHOLE if payload else BARE} FROM {schema}.row r WHERE r.thread = $1 AND r.seq BETWEEN $2 AND $3
        {"AND NOT r.hidden AND r.root <> ''" if visible else ""}
        ORDER BY r.seq {"DESC" if newest_first else ""} LIMIT $4"""


def _ranges(schema: str, payload: bool, visible: bool, newest_first: bool) -> str:  # noqa: FBT001
    """Return what reads several ranges, each from its index, and no more of any than is asked for in all."""
    return f"""
        SELECT r.* FROM unnest($2, $3) WITH ORDINALITY AS span(low, high, at), LATERAL (
            SELECT {_WHOLE if payload else BARE}
            FROM {schema}.row r WHERE r.thread = $1 AND r.seq BETWEEN span.low AND span.high
            {"AND NOT r.hidden AND r.root <> ''" if visible else ""}
            ORDER BY r.seq {"DESC" if newest_first else ""} LIMIT $4) r
        ORDER BY span.at, r.seq {"DESC" if newest_first else ""} LIMIT $4"""


def _count(schema: str) -> str:
    return f"""
        SELECT count(*) FROM unnest($2, $3) AS span(low, high)
        JOIN {schema}.row r ON r.thread = $1 AND r.seq BETWEEN span.low AND span.high
        WHERE NOT r.hidden AND r.root <> ''"""


def _usage(schema: str) -> str:
    return f"""
        SELECT threads.*, items.*, checkpoints.*, rows.*, chunks.*, entries.*, (
            SELECT coalesce(sum(pg_catalog.pg_total_relation_size(c.oid)), 0)::bigint FROM pg_catalog.pg_class c
            WHERE c.relnamespace = '{schema.replace("'", "''")}'::regnamespace AND c.relkind = 'r')
        FROM
        (SELECT {_arrays("space", "n")} FROM (
            SELECT space, count(*) AS n FROM {schema}.thread WHERE alive GROUP BY space) s) threads,
        (SELECT {_arrays("space", "n")} FROM (
            SELECT space, sum(i.items)::bigint AS n FROM {schema}.thread t JOIN {schema}.indexed i ON i.thread = t.no
            WHERE t.alive AND NOT t.dirty GROUP BY space) s) items,
        (SELECT {_arrays("space", "n", "size")} FROM (
            SELECT space, sum(n)::bigint AS n, sum(size)::bigint AS size FROM (
                SELECT thread, count(*) AS n, sum(size) AS size FROM {schema}.row
                WHERE NOT hidden AND root <> '' GROUP BY thread) r
            JOIN {schema}.thread t ON t.no = r.thread GROUP BY space) s) checkpoints,
        (SELECT count(*), coalesce(sum(octet_length(payload)), 0)::bigint FROM {schema}.row) rows,
        (SELECT count(*), coalesce(sum(octet_length(payload)), 0)::bigint FROM {schema}.chunk) chunks,
        (SELECT count(*), coalesce(sum(octet_length(text) + pg_column_size(words)), 0)::bigint
            FROM {schema}.message) entries"""


def _arrays(*columns: str) -> str:
    return ", ".join(f"coalesce(array_agg({column}), '{{}}') AS {column}" for column in columns)
