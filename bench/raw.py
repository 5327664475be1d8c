"""What nothing can be faster than: one row per insert with SQLite, and one sync of the disk."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

import apsw

from bench.data import noise

if TYPE_CHECKING:
    from pathlib import Path

WAL_BYTES = 6_000_000
"""More than a WAL holds before SQLite checkpoints it (1,000 pages of 4 KB).

A WAL that still grows makes commits slower. Whatever is timed has written this much before, so that its WAL has its
full size and is written over from its beginning, as in a store that has been in use for a while.
"""


class Raw:
    """Rows of a table in a separate database, as durable as a store: WAL, synchronous=FULL."""

    def __init__(self, path: Path, size: int) -> None:
        self._payload = noise(size)
        self._connection = apsw.Connection(str(path))
        for setting in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 1000"):
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        self._connection.execute("CREATE TABLE row (key INTEGER PRIMARY KEY, payload BLOB)")
        self._connection.execute("INSERT INTO row (payload) VALUES (?)", (noise(WAL_BYTES),))

    def insert(self) -> None:
        """Insert one row, in one transaction."""
        self._connection.execute("INSERT INTO row (payload) VALUES (?)", (self._payload,))

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


def pages(path: Path) -> int:
    """Return how many bytes a database has, those in its WAL included."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.pragma("page_count")) * int(connection.pragma("page_size"))
    finally:
        connection.close()


def sync_latency(directory: Path, count: int = 100) -> float:
    """Return the median time, in seconds, of overwriting 4 KB of a file and syncing it."""
    path = directory / "sync"
    sync = getattr(os, "fdatasync", os.fsync)
    block, taken = noise(4096), []
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(file, block)
        os.fsync(file)
        for _ in range(count):
            begun = time.perf_counter()
            os.lseek(file, 0, os.SEEK_SET)
            os.write(file, block)
            sync(file)
            taken.append(time.perf_counter() - begun)
    finally:
        os.close(file)
        path.unlink()
    return statistics.median(taken)
