"""Aside threads: notes on the checkpoints of the thread with the same name. LangGraph's pending writes are such notes.

A note is a row of the aside thread, with the label of its checkpoint. A fork copies the notes of the forked checkpoint.
Deleting or collecting a checkpoint hides its notes.

The rows of both threads may name, in their metadata, the graph *run* that wrote them. When a run saves a checkpoint on
top of another checkpoint, its notes on the older checkpoint are *used*. A rewind to the older checkpoint, or a fork of
it, returns to the moment before the run, so it ignores the used notes. They stay in the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import log, manifests
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import decode as unpacker
from backtrail.engine.writer import ThreadKey

if TYPE_CHECKING:
    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.head import HeadMover
    from backtrail.engine.reader import LogReader, Tip

THREAD: Final = "thread"
ASIDE: Final = "aside"
RUN: Final = "__run__"
"""The metadata key for the run that wrote a row. All rows without the key belong to one run, ""."""


def run_of(row: Row) -> str:
    """Return the id of the run that wrote a row; "" if the row does not name one."""
    packed, _, _ = log.unpack_extra(row)
    metadata: Any = unpacker.Unpacker(Types())(packed) if packed else None
    run = metadata.get(RUN, "") if type(metadata) is dict else ""
    return run if type(run) is str else ""


def used(reader: LogReader, tip: Tip, row: Row) -> frozenset[str]:
    """Return the ids of the LangGraph runs that saved a checkpoint on top of `row`.

    Checkpoints that are hidden or out of view count, too.
    """
    later = reader.backend.rows(tip.record.no, [(row.seq + 1, tip.newest.seq)])
    return frozenset(run_of(each) for each in later if each.op in log.CHECKPOINTS and each.parent == row.seq)


def left(reader: LogReader, tip: Tip, row: Row) -> list[int]:
    """Return the seqs of the notes on a checkpoint that are not used."""
    aside = _aside_of(reader, tip.record)
    if aside is None or row.label is None:
        return []
    seqs = reader.backend.labelled(aside.record.no, [row.label])
    notes = reader.backend.rows(aside.record.no, [(seq, seq) for seq in seqs], visible=True) if seqs else []
    used_runs = used(reader, tip, row) if notes else frozenset()
    return [note.seq for note in notes if run_of(note) not in used_runs]


def _aside_of(reader: LogReader, record: ThreadRecord) -> Tip | None:
    """Return the tip of a thread's aside thread; None if it does not exist or has no head."""
    tip = reader.tip(ASIDE, record.name) if record.space == THREAD else None
    return None if tip is None or tip.head is None else tip


def drop_orphans(reader: LogReader, mover: HeadMover, record: ThreadRecord) -> None:
    """Hide the notes on hidden checkpoints, and the used notes of runs whose checkpoints are all hidden."""
    aside = _aside_of(reader, record)
    if aside is None:
        return
    rows = [row for row in reader.backend.rows(record.no, [(1, log.MAX_SEQ)]) if row.op in log.CHECKPOINTS]
    pinned = manifests.pinned_seqs(reader, record)
    stays = {row.seq: row for row in rows if not row.hidden or row.seq in pinned}
    labels = {row.label for row in stays.values()}
    live = {(row.parent, run_of(row)) for row in stays.values()}
    doomed: set[int] = set()
    for row in rows:
        if row.seq in stays:
            continue
        if row.label is not None and row.label not in labels:
            doomed.update(reader.backend.labelled(aside.record.no, [row.label]))
        parent, run = stays.get(row.parent), run_of(row)
        if parent is not None and parent.label is not None and (row.parent, run) not in live:
            doomed.update(_by(reader, aside.record, parent.label, run))
    _hide(reader, mover, aside.record, doomed)


def _by(reader: LogReader, aside: ThreadRecord, label: str, run: str) -> list[int]:
    """Return the seqs of the notes that a run wrote on the checkpoint with this label."""
    ranges = [(seq, seq) for seq in reader.backend.labelled(aside.no, [label])]
    notes = reader.backend.rows(aside.no, ranges, visible=True) if ranges else []
    return [note.seq for note in notes if run_of(note) == run]


def _hide(reader: LogReader, mover: HeadMover, aside: ThreadRecord, doomed: set[int]) -> None:
    """Hide notes by seq. The head goes last, so that the aside thread has a head as long as it has notes."""
    key = ThreadKey(ASIDE, aside.name)
    mover.hide(key, lambda _: dict.fromkeys(sorted(doomed), ()))
    tip = reader.tip_of(aside)
    head = tip.head if tip is not None else None
    if head is not None and head.seq in doomed:
        mover.delete_checkpoint(key, lambda _: head)
