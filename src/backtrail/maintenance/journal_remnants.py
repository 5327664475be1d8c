"""What is left of the journal of a run when its newest rows are lost, and what the run goes on from then.

A row of the journal says which checkpoint of the run was the last (`at`). If the run has made a newer one, the rest of
the journal is out of date: who went on from it would make calls again that had ended before that checkpoint.
Without a journal, a run goes on from its newest checkpoint. A row that is not out of date may say that somebody has the
run who has left it since: that does not count any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.engine import journal, log, rows
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import edits
from backtrail.engine.tree.codec import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import Expect, Key, Writes
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance.readable import read_below

if TYPE_CHECKING:
    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.engine.tree.tree import Tree
    from backtrail.maintenance.verify import Ailing

_PLAIN: Final = Types()


def is_behind(heads: Heads, ailing: Ailing) -> bool:
    """Tell whether a run has made a checkpoint since what is to be the head of its journal was written."""
    left = heads.row(ailing.record, ailing.head) if ailing.head else None
    run = heads.backend.find_thread(journal.RUN, ailing.record.name)
    if left is None or run is None:
        return False
    point = _read(heads, ailing.record, left)
    told = None if point is None else _part(point, "at")
    at = 0 if point is None or told is None else Decoder(point.nodes, _PLAIN).value(told)
    for row in heads.downwards(run):  # as a repair of these checkpoints finds their head
        head = heads.row(run, row.head) if row.head and log.is_sound(row, run.uid) else None
        seen = None if head is None or head.hidden else _read(heads, run, head)
        if head is not None and seen is not None:
            return head.seq > at and all(_part(seen, name) is not None for name in journal.SEEN)
    return False


def _read(heads: Heads, record: ThreadRecord, row: Row) -> Tree | None:
    """Return a state of which everything can be read, without making its values: their classes are not known here."""
    try:
        tree = heads.chain(record, row).tree
        read_below(heads, tree, ())
    except (Corrupt, NotFound):
        return None
    return tree


def _part(tree: Tree, name: str) -> bytes | None:
    """Return what a key of a state leads to; None if it has no such key."""
    try:
        return locate(tree, Path((name,)), _PLAIN)[0]
    except NotFound:
        return None


def let_go(heads: Heads, record: ThreadRecord) -> None:
    """Say that nobody has a run: whoever had it when the head of its journal was written."""
    standing = heads.standing_of(record)
    if standing is None or standing.head is None:
        return
    put = edits.Put(Path(("lease",)), None, _PLAIN, record.name)
    meta, expect = rows.Meta(log.AUTOMATIC), Expect(standing.head.seq, standing.head.op_id)
    Writes(heads).save(Key(record.space, record.name), edits.Several([put]), meta, expect=expect)
