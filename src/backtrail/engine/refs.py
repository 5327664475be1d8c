"""Refs: the ways to name a checkpoint of a thread.

A ref is a checkpoint, an int (a step on the current path), or a string. A string is tried in this order: `@` (the
head), `@-` and `@~3` (one and three checkpoints before the head), an id, a label, a tag, and a prefix of an id that
only one checkpoint of the thread has. If several checkpoints have the label or tag, the newest in view is meant, or the
newest if none is in view.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import log
from backtrail.errors import Invalid, NotFound

if TYPE_CHECKING:
    from backtrail.backends.port import Row
    from backtrail.engine.reader import LogReader, Tip

_BACK: Final = re.compile(r"@(?:-|~(\d{1,9}))")
_HEX: Final = re.compile(r"[0-9a-f]{1,24}")
_DIGITS: Final = 4
"""From this many digits of an id on, the matching seqs are computed: there are at most `_MANY`."""
_MANY: Final = 1 << 16
"""In a thread of at most this many rows, the id of each seq is compared with the prefix."""


def resolve(reader: LogReader, tip: Tip, ref: Any) -> Row:
    """Return the row of the checkpoint of a ref; `NotFound` if there is none, `Invalid` if the ref is ambiguous."""
    if isinstance(ref, int) and not isinstance(ref, bool):
        return _by_step(reader, tip, ref)
    op_id = getattr(ref, "op_id", None)
    if op_id is not None:
        row = _by_id(reader, tip, ref.id)
        return row if row is not None and row.op_id == op_id else _missing(tip, f"no checkpoint {ref.id}")
    if not isinstance(ref, str) or not ref:
        raise Invalid(
            f"a ref must be a checkpoint, a step, or a string such as '@', '@~3', a label, a tag or an id, not {ref!r}",
            code="invalid.ref",
        )
    ref = str.__str__(ref)  # a subclass of str may have its own hash
    if ref == "@":
        return require_head(tip)
    back = _BACK.fullmatch(ref)
    return _back(reader, tip, int(back[1] or 1)) if back else _named(reader, tip, ref)


def steps_back(ref: Any) -> int | None:
    """Return the number of checkpoints that a ref such as `@~3` goes back; None for any other ref."""
    back = _BACK.fullmatch(ref) if isinstance(ref, str) else None
    return int(back[1] or 1) if back else None


def _named(reader: LogReader, tip: Tip, text: str) -> Row:
    return (
        _by_id(reader, tip, text)
        or _newest(reader, tip, reader.backend.labelled(tip.record.no, [text]))
        or _newest(reader, tip, reader.backend.tagged(tip.record.no, text))
        or _by_prefix(reader, tip, text)
        or _missing(tip, f"no checkpoint, label, tag or id {text!r}")
    )


def require_head(tip: Tip) -> Row:
    """Return the head; `NotFound` if the thread has none, `Corrupt` if the head is lost."""
    if tip.lost is not None:
        raise tip.lost
    if tip.head is None:
        raise NotFound(f"there is no thread {tip.record.name!r}", code="not_found.thread")
    return tip.head


def _missing(tip: Tip, what: str) -> Row:
    require_head(tip)
    raise NotFound(f"thread {tip.record.name!r} has {what}", code="not_found.checkpoint")


def _back(reader: LogReader, tip: Tip, count: int) -> Row:
    require_head(tip)
    rows = reader.visible(tip, reader.view(tip), newest_first=True, limit=count + 1)
    if len(rows) <= count:
        view = f"only {len(rows)} checkpoint{'s' * (len(rows) != 1)} in view"
        return _missing(tip, f"{view}, so @~{count} does not exist")
    return rows[count]


def _by_step(reader: LogReader, tip: Tip, step: int) -> Row:
    """Return the row of a step on the current path. Steps count up by one, so the seq of a step can be computed."""
    head = require_head(tip)
    ranges = reader.view(tip)
    behind = head.step - step
    for low, high in reversed(ranges):
        if 0 <= behind <= high - low:
            rows = reader.visible(tip, ((high - behind, high - behind),))
            return rows[0] if rows else _missing(tip, f"no step {step} any more")
        behind -= high - low + 1
    return _missing(tip, f"no step {step} on its current path")


def _by_id(reader: LogReader, tip: Tip, text: str) -> Row | None:
    parsed = log.parse_id(text)
    if parsed is None or parsed[0] != tip.record.uid:
        return None
    rows = reader.visible(tip, ((parsed[1], parsed[1]),))
    return rows[0] if rows else None


def _newest(reader: LogReader, tip: Tip, seqs: list[int]) -> Row | None:
    if not seqs:
        return None
    view = reader.view(tip)
    seq = max((seq for seq in seqs if log.contains(view, seq)), default=max(seqs))
    return reader.sound_row(tip.record, seq)


def _begins(uid: bytes, seq: int, text: str) -> bool:
    return log.checkpoint_id(uid, seq).startswith(text)


def _by_prefix(reader: LogReader, tip: Tip, text: str) -> Row | None:
    if not _HEX.fullmatch(text):
        return None
    uid = tip.record.uid
    last = tip.newest.seq
    if last <= _MANY:
        ranges: log.Ranges = tuple((seq, seq) for seq in range(1, last + 1) if _begins(uid, seq, text))
    elif len(text) >= _DIGITS:
        ranges = tuple((seq, seq) for seq in log.seqs_of(uid, text) if 0 < seq <= last and _begins(uid, seq, text))
    else:  # a long log with a short prefix: compare the existing rows, most rows may be removed
        ranges = ((1, last),)
    rows = [row for row in (reader.visible(tip, ranges) if ranges else ()) if _begins(uid, row.seq, text)]
    if len(rows) > 1:
        names = ", ".join(log.checkpoint_id(uid, row.seq)[:12] for row in rows[:4])
        raise Invalid(
            f"{text!r} is the beginning of {len(rows)} checkpoint ids ({names} ...); give more digits",
            code="invalid.ambiguous",
        )
    return rows[0] if rows else None
