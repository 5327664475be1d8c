"""Count messages and agent checkpoints without loading their states."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backtrail.engine import manifests
from backtrail.engine.search import extract
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from backtrail.backends.port import Usage
    from backtrail.engine.reader import LogReader, StoreReader

_PAGE: Final = 500


def count_messages(reader: StoreReader, usage: Usage) -> int:
    """Return the number of messages in all conversations. A head that is not indexed yet is read."""
    count = usage.items.get(manifests.CONVERSATION, 0)
    after = 0
    while numbers := reader.backend.unindexed(after, _PAGE):
        after = numbers[-1]
        for number in numbers:
            record = reader.backend.thread(number)
            if record is not None and record.space == manifests.CONVERSATION:
                with suppress(Corrupt, NotFound):  # an unreadable conversation is not counted
                    tip = reader.tip_of(record)
                    head = tip.head if tip else None
                    spine = None if head is None else extract.listed(reader.chain(record, head).tree)
                    count += 0 if spine is None else spine.length
    return count


def count_checkpoints(reader: LogReader) -> int:
    """Return the number of visible agent checkpoints."""
    count = 0
    after: tuple[int, int] | None = None
    while page := reader.backend.threads(space=manifests.SPACE, agent=None, prefix=None, after=after, limit=_PAGE):
        after = (page[-1][1].created_at, page[-1][0].no)
        for record, newest in page:
            rows = reader.backend.rows(record.no, [(1, newest.seq)], visible=True)
            for row in rows:
                with suppress(Corrupt):
                    count += manifests.info_of(row).role == manifests.CHECKPOINT
        if len(page) < _PAGE:  # a cursor from a damaged row could repeat a page forever
            break
    return count
