"""Which threads have moved: what a process can know of the commits of others.

SQLite tells nobody of a commit. But it says in a few microseconds whether another connection has committed since it was
last asked (`PRAGMA data_version`). Only if so are newest rows looked for, by key alone: a microsecond or two for each
thread that matters, and 100 to 200 ms for all of 100,000, in slices that let others in between. So whoever asks for all
of them does it seldom.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backtrail.backends.columns import MAX_SEQ
from backtrail.backends.sqlite.values import for_groups, select

if TYPE_CHECKING:
    from collections.abc import Collection

    from backtrail.backends.sqlite.connection import Guard

INTERVAL = 0.05
"""Seconds between two looks at what other processes did."""
_SLICE = 1000

_VERSION = "PRAGMA data_version"
_LAST = "SELECT coalesce(max(no), 0) FROM thread"
# ORDER BY keeps SQLite from going through the threads by an index, which would read the rows in a random order.
_SEQ = f"""
    SELECT no, coalesce((SELECT max(key) FROM row WHERE key BETWEEN no << 32 AND no << 32 | {MAX_SEQ}) & {MAX_SEQ}, 0)
    FROM thread"""
_SEQS = f"{_SEQ} WHERE no > ? ORDER BY no LIMIT {_SLICE}"
_SEQS_OF = for_groups(f"{_SEQ} WHERE no")


@dataclass(slots=True)
class Mark:
    """How the threads stood when they were last looked at."""

    last: int
    """The highest number of a thread."""
    some: object
    """The version of the store when `others` were last looked at."""
    whole: object
    """The version when all threads were."""
    newest: dict[int, int]
    """The seq of the newest row of each thread that was looked at."""


def moved(
    guard: Guard, mark: Mark | None, told: Collection[int], others: Collection[int] | None
) -> tuple[Mark, dict[int, int]]:
    """Do what the port says. The mark is changed at the very end, so that a call that fails can be made again."""
    with guard as connection:
        # a version is of its connection; it is read first, so that what comes later counts as not yet looked at
        version = (connection, connection.execute(_VERSION).get)
        last = mark.last if mark else connection.execute(_LAST).get
        changed = mark is None or version != (mark.whole if others is None else mark.some)
        wanted = {*told, *others} if changed and others else told
        found: dict[int, int] = dict(select(connection, _SEQS_OF, wanted)) if wanted else {}
    if changed:
        found.update(_seqs(guard, 0 if others is None else last))
    if mark is None:
        return Mark(max(last, *found, 0), version, version if others is None else None, found), {}
    known = mark.newest
    news = {no: known.get(no, 0 if no > last else seq) for no, seq in found.items() if seq != known.get(no)}
    known.update(found)
    mark.last = max(last, *found, 0)
    mark.some = version if changed else mark.some
    mark.whole = version if others is None else mark.whole
    return mark, news


def _seqs(guard: Guard, after: int) -> dict[int, int]:
    """Return the newest seqs of all threads above a number."""
    found: dict[int, int] = {}
    while True:
        with guard as connection:
            page: list[tuple[Any, ...]] = connection.execute(_SEQS, (after,)).fetchall()
        found.update(page)
        if len(page) < _SLICE:
            return found
        after = page[-1][0]
