"""How the threads of an agent stand in PostgreSQL, and which of them are touched: what format 2 has brought.

`thread.touched` is set by a trigger, so the saves of every version count. It is in the condition of an index, and what
changes that cannot be a HOT update: so a thread that is touched already is left alone, which is what most saves find.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.columns import as_record, as_row, encoded
from backtrail.backends.port import Row, Stand
from backtrail.backends.postgres.session import Statement
from backtrail.backends.postgres.tables import BARE, COMMIT_ANSWER, COMMIT_PARAMETERS, THREAD, checkpoints_view

if TYPE_CHECKING:
    from collections.abc import Callable

_WIDTH: Final = len(Row._fields)
_ALL: Final = (1 << 63) - 1
TRIGGER: Final = "thread_touched"
"""The only trigger of a store."""


def format_2(schema: str, lock: int) -> str:
    """Return the statements that make format 2 from format 1; `schema` is quoted.

    The view comes first: who reads it locks it before the tables that it is made of.
    """
    del lock
    names = ", ".join(parameter.split()[0] for parameter in COMMIT_PARAMETERS.split(","))
    refused = names.replace("newest_thread, newest_seq", "newest_thread || 0::bigint, newest_seq || -1::bigint")
    return f"""
-- While this waits for somebody who reads for long, all others would wait for it.
SET LOCAL lock_timeout = '3s';
-- Tags that begin so are the library's own.
CREATE OR REPLACE VIEW {checkpoints_view(schema, "AND substring(g.tag FROM 1 FOR 1) <> '@'")};

ALTER TABLE {schema}.thread ADD touched boolean NOT NULL DEFAULT true;
CREATE INDEX thread_touched ON {schema}.thread (agent, no) WHERE touched AND agent IS NOT NULL;
CREATE INDEX thread_without_head ON {schema}.thread (agent, no) WHERE NOT alive AND agent IS NOT NULL;

CREATE FUNCTION {schema}.touch_2() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.thread SET touched = true WHERE no = NEW.no;
    RETURN NULL;
END $$;
-- Who adds a row sets `newest`, and who renews a thread sets `agent`. To ask BEFORE the update, PostgreSQL would
-- lock the row first, and log that, at each save.
CREATE TRIGGER {TRIGGER} AFTER UPDATE OF newest, agent ON {schema}.thread FOR EACH ROW
    WHEN (NOT NEW.touched AND NEW.agent IS NOT NULL) EXECUTE FUNCTION {schema}.touch_2();

-- Write a batch as `commit_1` does, show rows again, and untouch threads. All of its threads are locked at once, in
-- their order, and then the rows, so that nobody removes them meanwhile.
CREATE FUNCTION {schema}.commit_2(
    {COMMIT_PARAMETERS},
    show_thread bigint[], show_seq bigint[], untouch_thread bigint[], untouch_seq bigint[],
    {COMMIT_ANSWER}
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM {schema}.thread
        WHERE no = ANY (row_thread || newest_thread || renew_thread || hide_thread || untouch_thread)
        ORDER BY no FOR NO KEY UPDATE;
    PERFORM FROM {schema}.row r JOIN unnest(show_thread, show_seq) AS w(thread, seq)
        ON r.thread = w.thread AND r.seq = w.seq ORDER BY r.thread, r.seq FOR NO KEY UPDATE OF r;
    SELECT 'vanished', w.thread, w.seq INTO refused, gone_thread, gone_seq
        FROM unnest(show_thread, show_seq) WITH ORDINALITY AS w(thread, seq, at)
        WHERE NOT EXISTS (SELECT FROM {schema}.row r WHERE r.thread = w.thread AND r.seq = w.seq)
        ORDER BY w.at LIMIT 1;
    IF refused IS NOT NULL THEN  -- unless it is there already, as `commit_1` tells of one that it refuses
        SELECT c.already, c.numbers INTO already, numbers FROM {schema}.commit_1({refused}) c;
        refused := CASE WHEN already THEN NULL ELSE 'vanished' END;
        RETURN;
    END IF;
    SELECT * INTO refused, already, numbers, missing, gone_thread, gone_seq FROM {schema}.commit_1({names});
    IF refused IS NULL AND already IS NULL THEN
        UPDATE {schema}.row r SET hidden = false FROM unnest(show_thread, show_seq) AS w(thread, seq)
            WHERE r.thread = w.thread AND r.seq = w.seq AND r.hidden;
        UPDATE {schema}.thread t SET touched = false FROM unnest(untouch_thread, untouch_seq) AS w(no, seq)
            WHERE t.no = CASE WHEN w.no < 0 THEN numbers[-w.no] ELSE w.no END AND t.newest = w.seq
            AND t.touched AND t.agent IS NOT NULL;
    END IF;
END $$;
"""


class Standings:
    """The statements that list the threads of an agent, in a schema (its quoted name)."""

    def __init__(self, schema: str) -> None:
        # The LIMIT, of which it is not known that it is none, makes a scan of the index in order more likely than a
        # bitmap: only that takes note of entries which are dead, as those of threads that were untouched are, so that
        # the next one does not look at them again.
        touched = _standings(schema, f"t.touched ORDER BY t.no LIMIT (SELECT {_ALL})")
        self.touched = Statement(f"{touched} ORDER BY 1", "b")
        alive, others = _standings(schema, "t.alive"), _standings(schema, "NOT t.alive")
        self.all = Statement(f"{alive} UNION ALL {others} ORDER BY 1", "b")
        self._is_there = Statement(
            f"""
            SELECT count(*) FROM pg_catalog.pg_attribute
            WHERE attrelid = '{schema.replace("'", "''")}.thread'::regclass AND attname = 'touched'"""
        )

    def read(
        self, read: Callable[..., list[tuple[Any, ...]]], agent: str, *, touched: bool, read_only: bool
    ) -> list[Stand]:
        """Return how the threads of an agent stand. In a store of format 1, which is only read, all are touched."""
        everything = not touched or (read_only and not read(self._is_there)[0][0])
        statement = self.all if everything else self.touched
        return [_stand(*values) for values in read(statement, encoded(agent))]


def _standings(schema: str, condition: str) -> str:
    """Return what lists threads. LATERAL and LIMIT 1 keep the rows from being looked for all at once."""
    return f"""
        SELECT {THREAD}, newest.*, head.* FROM (
            SELECT * FROM {schema}.thread t WHERE t.agent = $1 AND {condition}) t
        CROSS JOIN LATERAL (
            SELECT {BARE} FROM {schema}.row r WHERE r.thread = t.no AND r.seq = t.newest LIMIT 1) newest
        LEFT JOIN LATERAL (
            SELECT {BARE} FROM {schema}.row r WHERE r.thread = t.no AND r.seq = newest.head AND newest.head > 0
            LIMIT 1) head ON true"""


def _stand(*values: Any) -> Stand:
    head = values[7 + _WIDTH :]
    return Stand(as_record(values[:7]), as_row(values[7 : 7 + _WIDTH]), None if head[0] is None else as_row(head))
