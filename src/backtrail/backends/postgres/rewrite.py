"""Giving space back.

VACUUM gives back what is free at the end of a table's file; else the space is kept for what comes next. For that it
needs the table for itself, and waits five seconds for it: in vain while a long transaction, such as an export, has read
it. So it does not try to in the tables of those who are in the middle of one.

After much has gone there may be hardly anything left in files that are full of holes. To write such a table anew
(VACUUM FULL) locks it; if little is left, for a few hundredths of a second. So that is done to small tables alone, one
after the other, and not if others have the table right now: nobody waits for longer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import psycopg

from backtrail.backends.postgres.session import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backtrail.backends.postgres.session import Session

TABLES: Final = ("row", "chunk", "tag", "thread", "message", "indexed", "vocabulary")
"""Those that grow."""
_MOMENT: Final = 0.05
"""Seconds: a transaction that takes as long may take longer."""
SMALL: Final = 2 * 1024 * 1024
"""Bytes that may be left in a table that is written anew."""
_HOLES: Final = 512 * 1024
"""Bytes that there must be to give back."""
_OVERHEAD: Final = 400
"""Bytes of a row beside its payload, with its entries in the indexes, at most."""
_LOCK: Final = "SET lock_timeout = '10ms'"
_UNLOCK: Final = "RESET lock_timeout"


class Room:
    """The tables of one store, by the quoted name of its schema."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        namespace = f"""'{schema.replace("'", "''")}'::pg_catalog.regnamespace"""
        self._tables = Statement(
            f"""
            SELECT relname::text, pg_total_relation_size(oid) FROM pg_class
            WHERE relnamespace = {namespace} AND relkind = 'r'
            AND (relname ~ '^row_[0-9]+$' OR relname = 'chunk') ORDER BY relname""",  # noqa: S608 - quoted already
        )
        self._held = Statement(
            f"""
            SELECT pg_catalog.regexp_replace(c.relname, '^row_[0-9]+$', 'row'), l.virtualtransaction
            FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation
            WHERE c.relnamespace = {namespace} AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
            AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())""",  # noqa: S608
        )

    def give_back(self, session: Session) -> None:
        """Give back what is free, as far as nobody is in the way and nobody has to wait."""
        held = self._held_for_long(session)
        for how, tables in (
            ("SKIP_LOCKED", [name for name in TABLES if name not in held]),
            ("SKIP_LOCKED, TRUNCATE false", [name for name in TABLES if name in held]),
        ):
            if tables:
                self.vacuum(session, how, tables)
        self._write_anew(session)

    def vacuum(self, session: Session, how: str, tables: Sequence[str] = TABLES) -> None:
        """Let PostgreSQL use the space again."""
        named = ", ".join(f"{self._schema}.{name}" for name in tables)
        session.script(f"VACUUM ({how}) {named}", seconds=None)

    def _held_for_long(self, session: Session) -> set[str]:
        """Return the tables that transactions have which take more than a moment."""
        held = set(session.run(self._held))
        if held:
            time.sleep(_MOMENT)
            held &= set(session.run(self._held))
        return {table for table, _ in held}

    def _write_anew(self, session: Session) -> None:
        """Write anew what has become small."""
        hollow = [name for name, size in session.run(self._tables) if self._is_hollow(session, name, size)]
        if not hollow:
            return
        session.script(_LOCK)
        try:
            for name in hollow:
                try:
                    session.script(f"VACUUM (FULL) {self._schema}.{name}", seconds=None)
                except psycopg.errors.LockNotAvailable:
                    continue  # next time
        finally:
            session.script(_UNLOCK)

    def _is_hollow(self, session: Session, name: str, size: int) -> bool:
        """Tell whether little is left in a table, and less than a third of what it takes."""
        if size < _HOLES:
            return False
        counted = f"SELECT count(*), coalesce(sum(octet_length(payload)), 0)::bigint FROM {self._schema}.{name}"  # noqa: S608
        ((rows, held),) = session.run(Statement(counted, named=False))
        need = int(held) + int(rows) * _OVERHEAD
        return need <= SMALL and size >= _HOLES + 3 * need
