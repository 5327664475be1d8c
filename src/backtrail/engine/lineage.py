"""Lineage: the threads that a thread was forked from, directly or through other forks, as far as they still exist.

The first row of a fork has the state, the step and the label of the forked checkpoint, and takes its place. So the
ancestors of the forked checkpoint are also the ancestors of the fork, and each has a step that is one lower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import log, refs
from backtrail.engine.reader import Tip
from backtrail.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader

_NOTHING: Final = log.pack_extra(b"", None, None)


class Part(NamedTuple):
    """One thread of a lineage: its tip, with the forked checkpoint as head, and the seq ranges of ancestors in it."""

    tip: Tip
    ranges: log.Ranges


def parts(reader: LogReader, tip: Tip) -> Iterator[Part]:
    """Yield the threads that a thread was forked from, the nearest first, up to a thread that no longer exists."""
    record, head = tip.record, tip.head
    seen: set[str] = set()
    while head is not None:
        path = reader.path(record, head)
        origin = _origin(reader, record, path[0][0])
        root = reader.row(record, path[0][0])
        step = head.step - sum(high - low + 1 for low, high in path) + 1 if root is None else root.step
        parsed = None if origin is None or origin in seen else log.parse_id(origin)
        above = None if parsed is None else reader.backend.thread_with_uid(parsed[0])
        if origin is None or parsed is None or above is None:
            return
        seen.add(origin)  # forged rows may refer to each other
        record, head = above, _forked(reader, above, parsed[1], step)
        if head is not None:
            part = Part(Tip(record, head, head), log.clip(reader.path(record, head), 1, head.seq - 1))
            if head.hidden and not (part.ranges and reader.visible(part.tip, part.ranges, limit=1)):
                return  # the whole thread was deleted
            yield part


def _origin(reader: LogReader, record: ThreadRecord, root: int) -> str | None:
    """Return the id of the checkpoint that a thread was forked from; None if unknown. `root` is its first row's seq."""
    row = reader.row(record, root)
    if row is not None:
        return log.unpack_extra(row)[2] if log.is_sound(row, record.uid) else None
    now = reader.readable(record)  # the first row was removed: use the record, unless the thread has a new root
    view = () if now is None else reader.view(now)
    return record.origin if view and view[0][0] == root else None


def _forked(reader: LogReader, record: ThreadRecord, seq: int, step: int) -> Row | None:
    """Return the forked checkpoint; if it was removed, a hidden row in its place with the same ancestors."""
    row = reader.nearest(record, seq)
    if row is None or not log.is_sound(row, record.uid):
        return None
    if row.seq == seq:
        return row
    # a gap in the log: the removed rows were checkpoints, each on top of the row before
    return row._replace(
        seq=seq, op=log.SAVE, head=seq, step=step, view=log.view_for(row), label=None, extra=_NOTHING, hidden=True
    )


def resolve(reader: LogReader, tip: Tip, ref: Any) -> tuple[Tip, Row]:
    """Return the checkpoint of a ref and the tip of its thread: this thread, or one that it was forked from."""
    try:
        return tip, refs.resolve(reader, tip, ref)
    except NotFound as error:
        if error.code != "not_found.checkpoint" or tip.lost is not None:
            raise
        missing = error
    back = refs.steps_back(ref)
    if back is not None:
        back -= len(reader.visible(tip, reader.view(tip)))
    last = tip
    for part in parts(reader, tip):
        if back is None:
            row = _ancestor(reader, part, ref)
        else:
            rows = reader.visible(part.tip, part.ranges, newest_first=True, limit=back + 1) if part.ranges else []
            row = rows[back] if len(rows) > back else None
            back -= len(rows)
        if row is not None:
            return part.tip, row
        last = part.tip
    raise _lineage_end_error(reader, tip, last, missing)


def _ancestor(reader: LogReader, part: Part, ref: Any) -> Row | None:
    """Return the checkpoint of a ref among the ancestors in one thread of the lineage; None if none matches."""
    try:
        row = refs.resolve(reader, part.tip, ref)
    except NotFound:
        return None
    except Invalid as error:
        if error.code != "invalid.ambiguous":
            raise
        row = None
    if row is not None and log.contains(part.ranges, row.seq):
        return row
    if not part.ranges or not isinstance(ref, str):
        return None
    # The ref is ambiguous, or its checkpoint is not an ancestor: look at the ancestors only.
    record, backend = part.tip.record, reader.backend
    for named in (backend.labelled(record.no, [ref]), backend.tagged(record.no, ref)):
        seqs = [seq for seq in named if log.contains(part.ranges, seq)]
        if seqs:
            return reader.sound_row(record, max(seqs))
    rows = reader.visible(part.tip, part.ranges)
    begin = [each for each in rows if log.checkpoint_id(record.uid, each.seq).startswith(ref)]
    return begin[0] if len(begin) == 1 else None


def _lineage_end_error(reader: LogReader, tip: Tip, last: Tip, missing: NotFound) -> NotFound:
    """Return the error for a ref that matches no checkpoint of a lineage. It names the checkpoint where that ends."""
    if tip.head is None or last.head is None:
        return missing
    origin = _origin(reader, last.record, reader.path(last.record, last.head)[0][0])
    text = str(missing)
    if last is not tip:
        text += f", and neither has thread {last.record.name!r}, which it was forked from"
    if origin is not None:
        text += f"; the origin of that thread, checkpoint {origin}, was deleted"
    return NotFound(text, code=missing.code)
