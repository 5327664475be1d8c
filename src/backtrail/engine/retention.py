"""Which checkpoints may go: by the store's options when one is saved, and by a policy when a thread is pruned.

The head never goes. Labelled and tagged checkpoints are exempt, and so are the checkpoints of agents. What was rewound
away is counted apart from what is in view, so neither crowds the other out.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log, pins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row
    from backtrail.engine.heads import Heads, Standing


_PAGE: Final = 50


class Policy(NamedTuple):
    """What stays: the newest `keep_last`, and what is younger than `older_than` (microseconds); None: not asked."""

    keep_last: int | None
    older_than: int | None
    keep_tagged: bool = True

    @property
    def reason(self) -> str:
        """Why something goes under this policy."""
        parts = [f"not among the newest {self.keep_last}"] if self.keep_last is not None else []
        if self.older_than is not None:
            parts.append(f"older than {dt.timedelta(microseconds=self.older_than)}")
        return " and ".join(parts)


def _places(heads: Heads, standing: Standing, rows: list[Row], first: int = 0) -> Iterator[tuple[int, Row]]:
    """Give checkpoints with their places, newest first, in view (counted from `first`) and out of view apart."""
    view = heads.view(standing)
    yield from enumerate((row for row in rows if log.contains(view, row.seq)), first)
    yield from enumerate(row for row in rows if not log.contains(view, row.seq))


def _all(heads: Heads, standing: Standing) -> list[Row]:
    return heads.backend.rows(standing.record.no, [(1, standing.newest.seq)], visible=True, newest_first=True)


def _exempt(heads: Heads, standing: Standing, rows: list[Row]) -> set[int]:
    tagged = heads.backend.tags(standing.record.no, [row.seq for row in rows])
    return {row.seq for row in rows if row.label is not None or row.seq in tagged}


def prunable(heads: Heads, standing: Standing, policy: Policy) -> list[int]:
    """Return the seqs of the checkpoints that a policy lets go."""
    rows = _all(heads, standing)
    kept = _exempt(heads, standing, rows) if policy.keep_tagged else set()
    kept.add(standing.newest.head)
    if policy.keep_last is not None:
        kept.update(row.seq for place, row in _places(heads, standing, rows) if place < policy.keep_last)
    if policy.older_than is not None:
        oldest = heads.clock() - policy.older_than
        kept.update(row.seq for row in rows if row.created_at >= oldest)
    return sorted(row.seq for row in rows if row.seq not in kept)


def retired(heads: Heads, standing: Standing, new: Row) -> tuple[int, ...]:
    """Return the seqs of what the store's options hide when a new checkpoint is written."""
    options = heads.options
    if not options.retires or standing.record.space == pins.SPACE:
        return ()
    gone: dict[int, Row] = {}
    if options.max_checkpoints is not None:
        rows = _all(heads, standing)
        placed = _places(heads, standing, rows, first=1)  # the new one is the newest in view
        gone.update({row.seq: row for place, row in placed if place >= options.max_checkpoints})
    if options.ttl is not None:
        gone.update({row.seq: row for row in _older_than(heads, standing, new.created_at - options.ttl)})
    head = standing.head
    if options.auto_interval is not None and head is not None and head.kind == new.kind == log.AUTOMATIC:
        every = options.auto_interval
        if head.created_at // every == new.created_at // every:
            gone[head.seq] = head
    exempt = _exempt(heads, standing, list(gone.values())) if gone else set()
    return tuple(sorted(gone.keys() - exempt))


def _older_than(heads: Heads, standing: Standing, oldest: int) -> Iterator[Row]:
    """Give the checkpoints older than a time, from the first on, until a whole page of them is younger."""
    low = 1
    while rows := heads.backend.rows(standing.record.no, [(low, standing.newest.seq)], visible=True, limit=_PAGE):
        old = [row for row in rows if row.created_at < oldest]
        yield from old
        if not old or len(rows) < _PAGE:
            return
        low = rows[-1].seq + 1
