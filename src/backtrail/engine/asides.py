"""Threads aside: notes on the checkpoints of another thread, of the same name.

A note is a row of such a thread, with the label of the checkpoint that it is about. It goes where its checkpoint goes:
a fork takes it along, and what is deleted or collected takes it away.

The rows of both threads may say, in their metadata, which *run* wrote them. A checkpoint that a run saved on top of
another is what became of the run's notes on that one. So these are *used*: who goes back to the older checkpoint, or
forks it, goes back to before the run, and has the notes that were there then. They stay for who looks at what was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import log, pins
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import unpacker
from backtrail.engine.writer import Key

if TYPE_CHECKING:
    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.moves import Moves
    from backtrail.engine.reader import Heads, Standing

THREAD: Final = "thread"
ASIDE: Final = "aside"
RUN: Final = "__run__"
"""The key of a row's metadata under which it says which run wrote it. Rows that do not say are all of one."""


def run_of(row: Row) -> str:
    """Return which run wrote a row."""
    packed, _, _ = log.unpack_extra(row)
    metadata: Any = unpacker.Unpacker(Types())(packed) if packed else None
    run = metadata.get(RUN, "") if type(metadata) is dict else ""
    return run if type(run) is str else ""


def used(heads: Heads, standing: Standing, row: Row) -> frozenset[str]:
    """Return the runs that have saved a checkpoint on top of this one, be it out of view or deleted."""
    later = heads.backend.rows(standing.record.no, [(row.seq + 1, standing.newest.seq)])
    return frozenset(run_of(each) for each in later if each.op in log.CHECKPOINTS and each.parent == row.seq)


def left(heads: Heads, standing: Standing, row: Row) -> list[int]:
    """Return the notes on a checkpoint that are not used, by their seqs."""
    aside = _aside_of(heads, standing.record)
    if aside is None or row.label is None:
        return []
    seqs = heads.backend.labelled(aside.record.no, row.label)
    notes = heads.backend.rows(aside.record.no, [(seq, seq) for seq in seqs], visible=True) if seqs else []
    gone = used(heads, standing, row) if notes else frozenset()
    return [note.seq for note in notes if run_of(note) not in gone]


def _aside_of(heads: Heads, record: ThreadRecord) -> Standing | None:
    """Return how the thread aside of another one stands; None if there is none, or nothing in it."""
    found = heads.standing(ASIDE, record.name) if record.space == THREAD else None
    return None if found is None or found.head is None else found


def drop_orphans(heads: Heads, moves: Moves, record: ThreadRecord) -> None:
    """Hide the notes on checkpoints that are hidden, and those whose runs have left nothing but hidden ones."""
    aside = _aside_of(heads, record)
    if aside is None:
        return
    rows = [row for row in heads.backend.rows(record.no, [(1, log.MAX_SEQ)]) if row.op in log.CHECKPOINTS]
    pinned = pins.pinned(heads, record)
    stays = {row.seq: row for row in rows if not row.hidden or row.seq in pinned}
    labels = {row.label for row in stays.values()}
    live = {(row.parent, run_of(row)) for row in stays.values()}
    doomed: set[int] = set()
    for row in rows:
        if row.seq in stays:
            continue
        if row.label is not None and row.label not in labels:
            doomed.update(heads.backend.labelled(aside.record.no, row.label))
        parent, run = stays.get(row.parent), run_of(row)
        if parent is not None and parent.label is not None and (row.parent, run) not in live:
            doomed.update(_by(heads, aside.record, parent.label, run))
    _hide(heads, moves, aside.record, doomed)


def _by(heads: Heads, aside: ThreadRecord, label: str, run: str) -> list[int]:
    ranges = [(seq, seq) for seq in heads.backend.labelled(aside.no, label)]
    notes = heads.backend.rows(aside.no, ranges, visible=True) if ranges else []
    return [note.seq for note in notes if run_of(note) == run]


def _hide(heads: Heads, moves: Moves, aside: ThreadRecord, doomed: set[int]) -> None:
    """Hide notes; the head last, so that there is one as long as there are others."""
    key = Key(ASIDE, aside.name)
    moves.hide(key, lambda _: dict.fromkeys(sorted(doomed), ()))
    standing = heads.standing_of(aside)
    head = standing.head if standing is not None else None
    if head is not None and head.seq in doomed:
        moves.delete_checkpoint(key, lambda _: head)
