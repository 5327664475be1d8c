"""How many messages and agent checkpoints there are, counted without loading them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backtrail.engine import pins
from backtrail.engine.search import extract
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from backtrail.backends.port import Usage
    from backtrail.engine.reader import Heads

_PAGE: Final = 500


def count_messages(heads: Heads, usage: Usage) -> int:
    """Return how many messages the conversations have: as the index knows, and for the rest, as their heads say."""
    found = usage.items.get(pins.CONVERSATION, 0)
    after = 0
    while numbers := heads.backend.marked(after, _PAGE):
        after = numbers[-1]
        for number in numbers:
            record = heads.backend.thread(number)
            if record is not None and record.space == pins.CONVERSATION:
                with suppress(Corrupt, NotFound):  # what cannot be read is not counted
                    standing = heads.standing_of(record)
                    head = standing.head if standing else None
                    spine = None if head is None else extract.listed(heads.chain(record, head).tree)
                    found += 0 if spine is None else spine.length
    return found


def count_checkpoints(heads: Heads) -> int:
    """Return how many agent checkpoints there are."""
    found = 0
    after: tuple[int, int] | None = None
    while page := heads.backend.threads(space=pins.SPACE, agent=None, prefix=None, after=after, limit=_PAGE):
        after = (page[-1][1].created_at, page[-1][0].no)
        for record, newest in page:
            rows = heads.backend.rows(record.no, [(1, newest.seq)], visible=True)
            for row in rows:
                with suppress(Corrupt):
                    found += pins.note_of(row).role == pins.CHECKPOINT
        if len(page) < _PAGE:  # where to go on may be told by a row that is damaged
            break
    return found
