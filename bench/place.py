"""A server for stores, each in its own schema, and the lower limit of all times: plain inserts of rows.

Imported only where psycopg is installed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
from psycopg import sql

import backtrail
from bench.data import noise
from bench.server import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable


LOG_FILES = 6
"""More than a checkpoint keeps for reuse (min_wal_size, 80 MB, of 16 MB each)."""


class Place:
    """A PostgreSQL database, by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def open(self, name: str, **options: Any) -> backtrail.Store:
        """Open the store of this name."""
        return backtrail.open(**self.options(name), **options)

    def options(self, name: str) -> dict[str, Any]:
        """Return what a store of this name is opened with."""
        return {"url": self.url, "schema": name}

    def schema(self, name: str) -> str:
        """Make a schema, if there is none of this name; return a URL by which its tables are what one finds."""
        self._connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))
        return f"{self.url}&options={quote(f'-csearch_path={name}')}"

    def size(self, name: str) -> int:
        """Return how many bytes the tables of a schema take, with their indexes."""
        found = self._connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = %s",
            (name,),
        ).fetchone()
        assert found is not None
        return int(found[0])

    def sized(self, name: str) -> Callable[[], int]:
        """Return a function that tells the size of a schema."""
        return partial(self.size, name)

    def settle(self) -> None:
        """Bring the server where it is after a while: what it has in memory is written, and its log has files to reuse.

        To make a new one takes as long as many commits. A checkpoint keeps those that were used, up to a number.
        """
        for _ in range(LOG_FILES):
            self._connection.execute("SELECT pg_logical_emit_message(false, 'bench', 'used')")
            self._connection.execute("SELECT pg_switch_wal()")
        self._connection.execute("CHECKPOINT")

    def settings(self) -> str:
        """Say with what the server runs."""
        found = [
            self._connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
            for name in ("server_version", *SETTINGS)
        ]
        version, *values = (row[0] for row in found if row)
        pairs = (f"{name}={value}" for name, value in zip(SETTINGS, values, strict=True))
        return f"PostgreSQL {version}, {', '.join(pairs)}"

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Raw:
    """Rows of a table, by one connection: what psycopg users would write, prepared and in binary."""

    def __init__(self, url: str, size: int, thread: int = 0) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._payload = noise(size)
        self._thread = thread
        self._seq = 0

    def make(self) -> None:
        """Make the table."""
        self._connection.execute(
            "CREATE TABLE raw (thread bigint, seq bigint, payload bytea, PRIMARY KEY (thread, seq))"
        )

    def insert(self) -> None:
        """Insert one row, in one transaction."""
        self._seq += 1
        self._connection.execute(
            "INSERT INTO raw (thread, seq, payload) VALUES (%s, %s, %s)",
            (self._thread, self._seq, self._payload),
            prepare=True,
            binary=True,
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
