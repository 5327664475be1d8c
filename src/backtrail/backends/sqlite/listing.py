"""Listings of threads, newest activity first.

The activity of a thread is the `created_at` of its newest row. To find the most active threads without a look at each,
the table `activity` has a time for each thread. A trigger sets it when a row is inserted, unless the old time is at
most `SLACK` away: so most saves of a series leave the table alone. A listing reads a little more than it returns,
and sorts that by the rows themselves.

A listing by agent, prefix or origin reads all threads that match.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.columns import as_record, as_row
from backtrail.backends.sqlite.connection import one_view
from backtrail.backends.sqlite.statements import SQL, fetch_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    import apsw

    from backtrail.backends.port import Row, ThreadRecord

SLACK: Final = 100_000
"""The most microseconds between the time in `activity` and that of the thread's newest row. Triggers contain it."""
_LAST: Final = (1 << 63) - 1
_MORE: Final = 16
Listed = tuple["ThreadRecord", "Row"]


def matching(
    connection: apsw.Connection, filters: Mapping[str, object], after: tuple[int, int] | None, limit: int
) -> list[Listed]:
    """Return a page of the threads that match all filters: {condition: its value, or None for no filter}."""
    wanted = {condition: value for condition, value in filters.items() if value is not None}
    conditions = [f"AND {condition}" for condition in wanted]
    values = [*wanted.values()]
    if after is not None:
        conditions.append("AND (row.created_at, no) < (?, ?)")
        values += after
    text = f"{SQL['threads']} {' '.join(conditions)} ORDER BY row.created_at DESC, no DESC LIMIT ?"
    return [_listed(entry) for entry in connection.execute(text, (*values, limit))]


def most_active(
    connection: apsw.Connection, space: str, after: tuple[int, int] | None, limit: int
) -> list[Listed] | None:
    """Return a page of all threads of a name space; None if the store's format has no activity."""
    with one_view(connection):
        if not connection.execute(SQL["has_activity"]).get:
            return None
        place = (_LAST if after is None else after[0] + SLACK, _LAST)
        size = limit + _MORE
        page: list[tuple[int, int]] = []  # (time, number), as `after`
        while True:
            read: Any = connection.execute(SQL["active_threads"], (space, *place, size)).fetchall()
            times = ((_time(recorded, created_at), no) for recorded, no, created_at, head in read if head)
            page = heapq.nlargest(limit, (*page, *(time for time in times if after is None or time < after)))
            # A thread that was not read is less active than the last one by the table, and at most SLACK off.
            if len(read) < size or (len(page) == limit and page[-1][0] > read[-1][0] + SLACK):
                break
            place, size = read[-1][:2], 2 * size
        threads = {entry[0]: entry for entry in fetch_each(connection, "threads_numbered", [no for _, no in page])}
    return [_at(time, *_listed(threads[no])) for time, no in page]


def _time(recorded: int, created_at: object) -> int:
    """Return the time by which a thread is sorted: its newest row's, unless that contradicts the table."""
    return created_at if type(created_at) is int and abs(created_at - recorded) <= SLACK else recorded


def _at(time: int, record: ThreadRecord, row: Row) -> Listed:
    """Return a thread with the time that it was sorted by. If that is not its row's, one of the two is damaged."""
    return record, row if row.created_at == time else row._replace(created_at=time, check=b"")


def _listed(entry: Any) -> Listed:
    return as_record(entry[:7]), as_row(entry[7:])
