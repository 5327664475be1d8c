"""Repair the journal of a run whose newest rows are lost.

The run continues from its newest checkpoint, if that is newer than the rest of the journal, else from the rest. A row
of the rest may hold the lease of a worker that has left the run since; `let_go` removes that lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.engine import log, rows
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import edits
from backtrail.engine.tree.path import Path
from backtrail.engine.writer import Expect, Key, LogWriter

if TYPE_CHECKING:
    from backtrail.backends.port import ThreadRecord
    from backtrail.engine.reader import LogReader

_PLAIN: Final = Types()


def let_go(reader: LogReader, record: ThreadRecord) -> None:
    """Remove the lease from the head of a journal."""
    tip = reader.tip_of(record)
    if tip is None or tip.head is None:
        return
    put = edits.Put(Path(("lease",)), None, _PLAIN, record.name)
    meta, expect = rows.Meta(log.AUTOMATIC), Expect(tip.head.seq, tip.head.op_id)
    LogWriter(reader).save(Key(record.space, record.name), edits.Several([put]), meta, expect=expect)
