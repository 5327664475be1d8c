"""What does not fit together in the tables of a store in PostgreSQL, and how it is made to fit again.

PostgreSQL itself answers for its pages and indexes (`pg_amcheck` looks into them). What is looked at here is what the
tables say of each other: a thread repeats its newest row, so that threads are listed without reading rows.

If that row is lost, the thread is all that knows of it. Then a row is put there that says what the thread says of it,
and is not sound: it is found damaged, as the lost one is, and nobody gets its seq.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

from typing import Final

from backtrail.backends.columns import MAX_SEQ
from backtrail.backends.port import JUMP, REMOVED, Row
from backtrail.backends.postgres.heads import TRIGGER
from backtrail.backends.postgres.session import Statement
from backtrail.backends.postgres.tables import COLUMNS, LETTERS, SECOND

_SAID: Final = {
    "seq": "t.newest",
    "created_at": "t.updated_at",
    "head": "CASE WHEN t.alive THEN t.newest ELSE 0 END",
    "op": "-1",
    "label": "NULL",
}
"""What a thread t says of its newest row, and that nothing else is known of it."""
_NOTHING: Final = {"i": "0", "b": "''", "o": "false"}
_ROW: Final = [_SAID.get(name, _NOTHING[letter]) for name, letter in zip(Row._fields, LETTERS, strict=True)]


class Checks:
    """Statements that count what does not fit, and those that mend it, in a schema (its quoted name)."""

    def __init__(self, schema: str) -> None:
        astray = {  # in this order: without rows, what belongs to them goes
            f"rows belong to no thread{REMOVED}": (
                "row",
                f"NOT EXISTS (SELECT FROM {schema}.thread t WHERE t.no = x.thread)",
            ),
            f"rows have no place in their thread{REMOVED}": ("row", f"x.seq NOT BETWEEN 1 AND {MAX_SEQ}"),
            f"threads have no row{REMOVED}": (
                "thread",
                f"NOT EXISTS (SELECT FROM {schema}.row r WHERE r.thread = x.no AND r.seq BETWEEN 1 AND {MAX_SEQ})",
            ),
            "tags belong to no checkpoint": (
                "tag",
                f"NOT EXISTS (SELECT FROM {schema}.row r WHERE r.thread = x.thread AND r.seq = x.seq)",
            ),
            "lists of the index belong to no thread": (
                "indexed",
                f"NOT EXISTS (SELECT FROM {schema}.thread t WHERE t.no = x.thread)",
            ),
            "messages of the index belong to no list": (
                "message",
                f"NOT EXISTS (SELECT FROM {schema}.indexed i WHERE i.thread = x.thread)",
            ),
        }
        newest = f"""
            SELECT DISTINCT ON (r.thread) r.thread, r.seq, r.created_at, r.head FROM {schema}.row r
            WHERE r.seq BETWEEN 1 AND {MAX_SEQ} ORDER BY r.thread, r.seq DESC"""
        differs = f"(t.newest, t.updated_at, t.second, t.alive) IS DISTINCT FROM ({_said()})"
        self.counts = {
            what: Statement(f"SELECT count(*) FROM {schema}.{table} x WHERE {condition}")
            for what, (table, condition) in astray.items()
        } | {
            "threads do not say which row is their newest": Statement(
                f"SELECT count(*) FROM {schema}.thread t JOIN ({newest}) n ON n.thread = t.no WHERE {differs}"
            )
        }
        literal = "'" + schema.replace("'", "''") + "'"
        planted = f"""
            SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) AS removal
            FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
            WHERE c.relnamespace = {literal}::regnamespace AND NOT t.tgisinternal AND t.tgparentid = 0
                AND t.tgname <> '{TRIGGER}'
            UNION ALL
            SELECT format('DROP RULE %I ON %s', r.rulename, r.ev_class::regclass)
            FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
            WHERE c.relnamespace = {literal}::regnamespace AND r.rulename <> '_RETURN'"""
        self.counts["triggers or rules are not ones that backtrail has made"] = Statement(
            f"SELECT count(*) FROM ({planted}) AS planted"
        )
        lost = f"""
            INSERT INTO {schema}.row (thread, {", ".join(COLUMNS)}) SELECT t.no, {", ".join(_ROW)}
            FROM {schema}.thread t JOIN ({newest}) n ON n.thread = t.no
            WHERE t.newest > n.seq AND t.newest <= least(n.seq + {JUMP}, {MAX_SEQ})"""
        deleted = [f"DELETE FROM {schema}.{table} x WHERE {condition}" for table, condition in astray.values()]
        self.mending = ";\n".join(
            [
                f"LOCK TABLE {schema}.thread IN SHARE ROW EXCLUSIVE MODE",
                f"""
                DO $planted$ DECLARE removal text; BEGIN
                    FOR removal IN {planted} LOOP EXECUTE removal; END LOOP;
                END $planted$""",
                *deleted,
                lost,
                f"""
                UPDATE {schema}.thread t SET newest = n.seq, updated_at = n.created_at,
                    second = n.created_at / {SECOND}, alive = n.head > 0
                FROM ({newest}) n WHERE n.thread = t.no AND {differs}""",
            ]
        )


def _said() -> str:
    return f"n.seq, n.created_at, n.created_at / {SECOND}, n.head > 0"
