"""Lineage: what a fork was forked from, and that from, as far as it is there.

The first row of a fork has the state, the step and the label of the checkpoint that it was forked from, and stands in
its place. So its ancestors are those of that checkpoint, and steps go on counting down by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import log, refs
from backtrail.engine.reader import Standing
from backtrail.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads

_NOTHING: Final = log.pack_extra(b"", None, None)


class Part(NamedTuple):
    """A part of a lineage: a thread as it stood at the checkpoint that was forked, and what came before that one."""

    standing: Standing
    ranges: log.Ranges


def parts(heads: Heads, standing: Standing) -> Iterator[Part]:
    """Give the threads that a thread comes from, the nearest first, as long as they are there."""
    record, head = standing.record, standing.head
    seen: set[str] = set()
    while head is not None:
        path = heads.path(record, head)
        origin = _origin(heads, record, path[0][0])
        root = heads.row(record, path[0][0])
        step = head.step - sum(high - low + 1 for low, high in path) + 1 if root is None else root.step
        parsed = None if origin is None or origin in seen else log.parse_id(origin)
        above = None if parsed is None else heads.backend.thread_with_uid(parsed[0])
        if origin is None or parsed is None or above is None:
            return
        seen.add(origin)  # forged rows may name each other
        record, head = above, _forked(heads, above, parsed[1], step)
        if head is not None:
            part = Part(Standing(record, head, head), log.clip(heads.path(record, head), 1, head.seq - 1))
            if head.hidden and not (part.ranges and heads.visible(part.standing, part.ranges, limit=1)):
                return  # all of it was deleted
            yield part


def _origin(heads: Heads, record: ThreadRecord, root: int) -> str | None:
    """Return the id of what a thread was forked from, whose first row has this seq."""
    row = heads.row(record, root)
    if row is not None:
        return log.unpack_extra(row)[2] if log.is_sound(row, record.uid) else None
    now = heads.readable(record)  # the first row is gone: what is known of the thread counts if it has not begun again
    view = () if now is None else heads.view(now)
    return record.origin if view and view[0][0] == root else None


def _forked(heads: Heads, record: ThreadRecord, seq: int, step: int) -> Row | None:
    """Return the checkpoint that was forked, or one in its place that stands on the same: it may be gone."""
    row = heads.nearest(record, seq)
    if row is None or not log.is_sound(row, record.uid):
        return None
    if row.seq == seq:
        return row
    # a gap: what stood there were checkpoints, each on top of the one before
    return row._replace(
        seq=seq, op=log.SAVE, head=seq, step=step, view=log.view_for(row), label=None, extra=_NOTHING, hidden=True
    )


def resolve(heads: Heads, standing: Standing, ref: Any) -> tuple[Standing, Row]:
    """Return the checkpoint that a ref means, in this thread or in what it was forked from, and how that stands."""
    try:
        return standing, refs.resolve(heads, standing, ref)
    except NotFound as error:
        if error.code != "not_found.checkpoint" or standing.lost is not None:
            raise
        missing = error
    back = refs.steps_back(ref)
    if back is not None:
        back -= len(heads.visible(standing, heads.view(standing)))
    last = standing
    for part in parts(heads, standing):
        if back is None:
            row = _found(heads, part, ref)
        else:
            rows = heads.visible(part.standing, part.ranges, newest_first=True, limit=back + 1) if part.ranges else []
            row = rows[back] if len(rows) > back else None
            back -= len(rows)
        if row is not None:
            return part.standing, row
        last = part.standing
    raise _ended(heads, standing, last, missing)


def _found(heads: Heads, part: Part, ref: Any) -> Row | None:
    """Return what a ref means among the ancestors in one thread."""
    try:
        row = refs.resolve(heads, part.standing, ref)
    except NotFound:
        return None
    except Invalid as error:
        if error.code != "invalid.ambiguous":
            raise
        row = None
    if row is not None and log.contains(part.ranges, row.seq):
        return row
    uid = part.standing.record.uid  # something else of that thread was meant, or several: only ancestors count
    rows = heads.visible(part.standing, part.ranges) if part.ranges and isinstance(ref, str) else []
    begin = [each for each in rows if log.checkpoint_id(uid, each.seq).startswith(ref)]
    return begin[0] if len(begin) == 1 else None


def _ended(heads: Heads, standing: Standing, last: Standing, missing: NotFound) -> NotFound:
    """Return the error of a ref that means nothing in a whole lineage; it says where that ends if a thread is gone."""
    if standing.head is None or last.head is None:
        return missing
    origin = _origin(heads, last.record, heads.path(last.record, last.head)[0][0])
    text = str(missing)
    if last is not standing:
        text += f", nor has thread {last.record.name!r}, which it comes from"
    if origin is not None:
        text += f"; what that was forked from, checkpoint {origin}, is not there"
    return NotFound(text, code=missing.code)
