"""Giving space back: tables of which little is left are written anew.

VACUUM gives back what is free at the end of a table's file; else the space is kept for what comes next. After much has
gone there may be hardly anything left in files that are full of holes. To write such a table anew (VACUUM FULL) locks
it; if little is left, for a few hundredths of a second. So that is done to small tables alone, one after the other, and
not if others have the table right now: nobody waits for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from backtrail.backends.postgres_session import Statement

if TYPE_CHECKING:
    from backtrail.backends.postgres_session import Session

SMALL: Final = 2 * 1024 * 1024
"""Bytes that may be left in a table that is written anew."""
_HOLES: Final = 512 * 1024
"""Bytes that there must be to give back."""
_OVERHEAD: Final = 400
"""Bytes of a row beside its payload, with its entries in the indexes, at most."""
_LOCK: Final = "SET lock_timeout = '10ms'"
_UNLOCK: Final = "RESET lock_timeout"


class Room:
    """The tables of one store that hold payloads."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._tables = Statement(
            f"""
            SELECT relname::text, pg_total_relation_size(oid) FROM pg_class
            WHERE relnamespace = '{schema.replace("'", "''")}'::regnamespace AND relkind = 'r'
            AND (relname ~ '^row_[0-9]+$' OR relname = 'chunk') ORDER BY relname""",  # noqa: S608 - quoted already
        )

    def give_back(self, session: Session) -> None:
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
