"""The change feed of a SQLite store: find the threads that other processes have written to.

SQLite does not announce commits. But `PRAGMA data_version` tells in a few microseconds whether another connection has
committed since the last call. Only then the newest seqs are read, from keys alone: 1 to 2 microseconds for each thread
that the caller watches, and 100 to 200 ms for 100,000 threads, in slices that let others in between. So a caller that
watches all threads should ask seldom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.backends.sql.change_feed import FeedCursor
from backtrail.backends.sqlite.statements import SQL, fetch_each

if TYPE_CHECKING:
    from collections.abc import Collection

    from backtrail.backends.sqlite.connection import SharedConnection

INTERVAL = 0.05
"""Seconds between two polls for commits of other processes."""
_SLICE = 1000


def changed_since(
    shared: SharedConnection, cursor: FeedCursor | None, notified: Collection[int], others: Collection[int] | None
) -> tuple[FeedCursor, dict[int, int]]:
    """See `ChangeFeed.changed_since`. The cursor changes only at the end, so that a failed call can be repeated."""
    with shared.use() as connection:
        # The data_version belongs to its connection. It is read first, so that the next call finds later commits.
        version = (connection, connection.execute(SQL["data_version"]).get)
        last = cursor.last if cursor else connection.execute(SQL["last_thread"]).get
        changed = cursor is None or version != (cursor.whole if others is None else cursor.some)
        numbers = {*notified, *others} if changed and others else notified
        seqs: dict[int, int] = dict(fetch_each(connection, "newest_seqs_of", numbers)) if numbers else {}
    if changed:
        seqs.update(_seqs(shared, 0 if others is None else last))
    if cursor is None:
        return FeedCursor(max(last, *seqs, 0), seqs, version, version if others is None else None), {}
    known = cursor.newest
    news = {no: known.get(no, 0 if no > last else seq) for no, seq in seqs.items() if seq != known.get(no)}
    known.update(seqs)
    cursor.last = max(last, *seqs, 0)
    cursor.some = version if changed else cursor.some
    cursor.whole = version if others is None else cursor.whole
    return cursor, news


def _seqs(shared: SharedConnection, after: int) -> dict[int, int]:
    """Return the newest seq of each thread above the number `after`, by thread number."""
    seqs: dict[int, int] = {}
    while True:
        with shared.use() as connection:
            page: list[tuple[Any, ...]] = connection.execute(SQL["newest_seqs"], (after, _SLICE)).fetchall()
        seqs.update(page)
        if len(page) < _SLICE:
            return seqs
        after = page[-1][0]
