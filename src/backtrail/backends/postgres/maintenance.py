"""Maintenance of a PostgreSQL store: free space, check the tables against each other, and repair them.

PostgreSQL itself takes care of its pages and indexes (`pg_amcheck` checks them). This module compares the tables with
each other. If the newest row of a thread is lost, only the table `thread` still has its seq.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.backends.postgres.session import Statement
from backtrail.backends.sql.damage import INDEX_WITHOUT_OWNER, WITHOUT_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.postgres.session import PgSession
    from backtrail.backends.postgres.statements import Statements

_WITHOUT_OWNER: Final = {
    **WITHOUT_OWNER,
    **{name: words for name, words in INDEX_WITHOUT_OWNER.items() if name != "messages_without_thread"},
}


def vacuum(session: PgSession, sql: Statements, *, erase: bool) -> None:
    """Make free space reusable, and return free space at the ends of files to the operating system.

    `erase` rewrites the tables (VACUUM FULL). All other sessions wait for that.
    """
    session.script(sql.text("vacuum", options="FULL" if erase else "SKIP_LOCKED"), seconds=None)


def checks(sql: Statements) -> Iterator[tuple[str, Statement]]:
    """Yield a message for each kind of damage, with the statement that counts it."""
    for name, words in _WITHOUT_OWNER.items():
        yield words, Statement(f"SELECT count(*) {sql.text(name)}")
    tables = {"threads_that_differ": "threads do not say which row is their newest"}
    if sql.has_activity:
        tables["threads_without_activity"] = "threads have a wrong time in the table for listings"
        tables["threads_without_mark"] = "threads have a wrong mark in the table for indexing"
    for name, words in tables.items():
        yield words, Statement(f"SELECT count(*) {sql.text(name)}")
    planted = f"SELECT count(*) FROM ({sql.text('planted')}) AS planted"  # noqa: S608
    yield "triggers or rules are not ones that backtrail has made", Statement(planted)


def repair(sql: Statements) -> str:
    """Return the script that removes orphans and makes the tables consistent again."""
    removals = (f"DELETE {sql.text(name)}" for name in _WITHOUT_OWNER)
    return ";\n".join([sql.text("begin_repair"), *removals, sql.text("end_repair")])
