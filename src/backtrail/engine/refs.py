"""Refs: the ways to say which checkpoint of a thread is meant.

A ref is a checkpoint, an int (a step on the current path), or a string, tried in this order: `@` (the head), `@-`
and `@~3` (so many back in history), an id, a label, a tag (the newest in view, else the newest out of view), and a
prefix of an id that only one checkpoint of the thread has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import log
from backtrail.errors import Invalid, NotFound

if TYPE_CHECKING:
    from backtrail.backends.port import Row
    from backtrail.engine.reader import Heads, Standing

_BACK: Final = re.compile(r"@(?:-|~(\d{1,9}))")
_HEX: Final = re.compile(r"[0-9a-f]{1,24}")
_DIGITS: Final = 4
"""So many digits of an id leave ..."""
_MANY: Final = 1 << 16
"""... so many seqs, at most."""


def resolve(heads: Heads, standing: Standing, ref: Any) -> Row:
    """Return the row of the checkpoint that a ref means; `NotFound` if there is none, `Invalid` if it is unclear."""
    if isinstance(ref, int) and not isinstance(ref, bool):
        return _by_step(heads, standing, ref)
    op_id = getattr(ref, "op_id", None)
    if op_id is not None:
        row = _by_id(heads, standing, ref.id)
        return row if row is not None and row.op_id == op_id else _missing(standing, f"no checkpoint {ref.id}")
    if not isinstance(ref, str) or not ref:
        raise Invalid(
            f"a ref is a checkpoint, a step, or a string such as '@', '@~3', a label, a tag or an id; not {ref!r}",
            code="invalid.ref",
        )
    ref = str.__str__(ref)  # a subclass may have its own hash
    if ref == "@":
        return require_head(standing)
    back = _BACK.fullmatch(ref)
    return _back(heads, standing, int(back[1] or 1)) if back else _named(heads, standing, ref)


def steps_back(ref: Any) -> int | None:
    """Return how many checkpoints back in history a ref means; None if it is another kind of ref."""
    back = _BACK.fullmatch(ref) if isinstance(ref, str) else None
    return int(back[1] or 1) if back else None


def _named(heads: Heads, standing: Standing, text: str) -> Row:
    return (
        _by_id(heads, standing, text)
        or _newest(heads, standing, heads.backend.labelled(standing.record.no, text))
        or _newest(heads, standing, heads.backend.tagged(standing.record.no, text))
        or _by_prefix(heads, standing, text)
        or _missing(standing, f"no checkpoint, label, tag or id {text!r}")
    )


def require_head(standing: Standing) -> Row:
    """Return the head, or `NotFound`; `Corrupt` if it is not known."""
    if standing.lost is not None:
        raise standing.lost
    if standing.head is None:
        raise NotFound(f"there is no thread {standing.record.name!r}", code="not_found.thread")
    return standing.head


def _missing(standing: Standing, what: str) -> Row:
    require_head(standing)
    raise NotFound(f"thread {standing.record.name!r} has {what}", code="not_found.checkpoint")


def _back(heads: Heads, standing: Standing, count: int) -> Row:
    require_head(standing)
    rows = heads.visible(standing, heads.view(standing), newest_first=True, limit=count + 1)
    if len(rows) <= count:
        there = f"only {len(rows)} checkpoint{'s' * (len(rows) != 1)} in view"
        return _missing(standing, f"{there}, so nothing at @~{count}")
    return rows[count]


def _by_step(heads: Heads, standing: Standing, step: int) -> Row:
    """Steps count up by one along a path, so a step's place in the ranges can be computed."""
    head = require_head(standing)
    ranges = heads.view(standing)
    behind = head.step - step
    for low, high in reversed(ranges):
        if 0 <= behind <= high - low:
            rows = heads.visible(standing, ((high - behind, high - behind),))
            return rows[0] if rows else _missing(standing, f"no step {step} any more")
        behind -= high - low + 1
    return _missing(standing, f"no step {step} on its current path")


def _by_id(heads: Heads, standing: Standing, text: str) -> Row | None:
    parsed = log.parse_id(text)
    if parsed is None or parsed[0] != standing.record.uid:
        return None
    rows = heads.visible(standing, ((parsed[1], parsed[1]),))
    return rows[0] if rows else None


def _newest(heads: Heads, standing: Standing, seqs: list[int]) -> Row | None:
    if not seqs:
        return None
    view = heads.view(standing)
    seq = max((seq for seq in seqs if log.contains(view, seq)), default=max(seqs))
    return heads.sound_row(standing.record, seq)


def _begins(uid: bytes, seq: int, text: str) -> bool:
    return log.checkpoint_id(uid, seq).startswith(text)


def _by_prefix(heads: Heads, standing: Standing, text: str) -> Row | None:
    if not _HEX.fullmatch(text):
        return None
    uid = standing.record.uid
    last = standing.newest.seq
    if last <= _MANY:
        ranges: log.Ranges = tuple((seq, seq) for seq in range(1, last + 1) if _begins(uid, seq, text))
    elif len(text) >= _DIGITS:
        ranges = tuple((seq, seq) for seq in log.seqs_of(uid, text) if 0 < seq <= last and _begins(uid, seq, text))
    else:  # by what is there: most of a long log may be gone
        ranges = ((1, last),)
    rows = [row for row in (heads.visible(standing, ranges) if ranges else ()) if _begins(uid, row.seq, text)]
    if len(rows) > 1:
        names = ", ".join(log.checkpoint_id(uid, row.seq)[:12] for row in rows[:4])
        raise Invalid(
            f"{text!r} is the beginning of {len(rows)} checkpoint ids ({names} ...); give more digits",
            code="invalid.ambiguous",
        )
    return rows[0] if rows else None
