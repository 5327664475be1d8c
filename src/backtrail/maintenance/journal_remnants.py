"""Repair the journal of a run whose newest rows are lost: decide where the run continues.

A journal row names the last checkpoint of the run (`at`). If the run has a newer checkpoint, the remaining journal is
out of date: a worker that continued from it would repeat calls that ended before that checkpoint. Without a journal, a
run continues from its newest checkpoint. A journal row that is up to date may hold the lease of a worker that has since
left the run; `drop_lease` removes that lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.engine import journal, log, rows
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import edits
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import Expect, Key, LogWriter
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance.readable import read_below

if TYPE_CHECKING:
    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader
    from backtrail.engine.tree.tree import Tree
    from backtrail.maintenance.verify import ThreadDamage

_PLAIN: Final = Types()


def is_behind(reader: LogReader, damage: ThreadDamage) -> bool:
    """Tell whether a run has a newer checkpoint than the one that the new head of its journal names."""
    head_row = reader.row(damage.record, damage.head) if damage.head else None
    run = reader.backend.find_thread(journal.RUN, damage.record.name)
    if head_row is None or run is None:
        return False
    head_tree = _read(reader, damage.record, head_row)
    at_bytes = None if head_tree is None else _part(head_tree, "at")
    at = 0 if head_tree is None or at_bytes is None else Decoder(head_tree.nodes, _PLAIN).value(at_bytes)
    for row in reader.downwards(run):  # the repair of the run's thread chooses its head in the same way
        head = reader.row(run, row.head) if row.head and log.is_sound(row, run.uid) else None
        tree = None if head is None or head.hidden else _read(reader, run, head)
        if head is not None and tree is not None:
            return head.seq > at and all(_part(tree, name) is not None for name in journal.SEEN)
    return False


def _read(reader: LogReader, record: ThreadRecord, row: Row) -> Tree | None:
    """Return the tree of a row, or None if a part of it cannot be read. Values are not decoded."""
    try:
        tree = reader.chain(record, row).tree
        read_below(reader, tree, ())
    except (Corrupt, NotFound):
        return None
    return tree


def _part(tree: Tree, name: str) -> bytes | None:
    """Return the encoded value of a top-level key of a state; None if it has no such key."""
    try:
        return locate(tree, Path((name,)), _PLAIN)[0]
    except NotFound:
        return None


def drop_lease(reader: LogReader, record: ThreadRecord) -> None:
    """Remove the lease from the head of a journal."""
    tip = reader.tip_of(record)
    if tip is None or tip.head is None:
        return
    put = edits.Put(Path(("lease",)), None, _PLAIN, record.name)
    meta, expect = rows.Meta(log.AUTOMATIC), Expect(tip.head.seq, tip.head.op_id)
    LogWriter(reader).save(Key(record.space, record.name), edits.Several([put]), meta, expect=expect)
