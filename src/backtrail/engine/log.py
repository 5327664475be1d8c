"""The log: the meaning of the rows of a thread, and the targets of undo and redo.

A thread is a list of rows that only grows. A row either *is* a checkpoint (`SAVE`, `FORK`) or moves the head.
Each row stores the head after it, the row that an undo goes back to, and the row that a redo goes forward to. So the
newest row is enough to undo and redo, also after a restart.

    SAVE    a new checkpoint on top of the head           undo = the row before, redo = none
    FORK    the first row of a thread made from another   undo = none, redo = none
    REWIND  the head is an older checkpoint again         undo = the row before, redo = none
    UNDO    the head is the head of row u = undo          undo = undo(u), redo = the row before
    REDO    the head is the head of row r = redo          undo = the row before, redo = redo(r)
    DROP    the head was deleted; an ancestor is the head undo and redo skip hidden checkpoints
    CLEAR   the thread was deleted; there is no head      undo = none, redo = none
    LEAVE   the thread is out of view; there is no head   undo = none, redo = none

*Views.* The checkpoints from the root to the head are a few ranges of seq. A row that moves the head stores them.
A checkpoint names the last row that moved the head (`view`): its path is the ranges of that row, then the range from
there to itself. So a range test tells whether a checkpoint is in view. gc drops leading ranges that have no rows left.

Restoring an agent takes later conversations out of view: `LEAVE` hides nothing, and undoing the restore brings the old
head back.

*Hidden and removed.* Deleting hides a checkpoint; gc may remove its row later. A gap in the log stands for a hidden
SAVE, whose undo is the row before, or a hidden FORK, before which there is no head.

*Erased.* Erasing a thread writes a CLEAR with a mark in its metadata. All rows before it are garbage, whether they are
pinned or not: gc removes them, and no restore, undo or import brings them back. The marked row itself always stays.

The functions of this module depend on rows alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import ormsgpack
from blake3 import blake3

from backtrail.backends.port import Row, new_tuple
from backtrail.engine.tree import msgpack
from backtrail.errors import Corrupt

SAVE: Final = 0
FORK: Final = 1
REWIND: Final = 2
UNDO: Final = 3
REDO: Final = 4
DROP: Final = 5
CLEAR: Final = 6
LEAVE: Final = 7
CHECKPOINTS: Final = frozenset({SAVE, FORK})

KINDS: Final = ("manual", "automatic", "pre_operation", "recovery")
AUTOMATIC: Final = 1

Ranges = tuple[tuple[int, int], ...]
_MIX: Final = 0x9E3779B1  # odd: multiplying by it permutes 32-bit numbers and spreads neighbours apart
_UNMIX: Final = pow(_MIX, -1, 1 << 32)
UID_BYTES: Final = 8
OP_BYTES: Final = 16
ID_LENGTH: Final = 8 + 2 * UID_BYTES
MAX_SEQ: Final = (1 << 32) - 1
_COLUMNS: Final = frozenset((*[int] * 12, label, int, int, bytes, bytes, bytes) for label in (str, type(None)))
_CHECK: Final = Row._fields.index("check")
_LABEL: Final = Row._fields.index("label")
LATEST: Final = 253_402_300_800_000_000
"""Microseconds from 1970 to the end of the year 9999."""


_MOST: Final = 1 << 53
"""The limit for the columns of bytes and steps. It fits into the integers of every backend."""
_NO_EXTRA: Final = msgpack.pack([b"", None, None])
"""The `extra` of most checkpoints: no metadata."""


# -- ids ----------------------------------------------------------------------------------------------


def checkpoint_id(uid: bytes, seq: int) -> str:
    """Return the id of a checkpoint: eight digits that spread a thread's checkpoints apart, then the thread's uid."""
    mixed = (seq * _MIX & MAX_SEQ) ^ int.from_bytes(uid[:4], "big")
    return f"{mixed:08x}{uid.hex()}"


def parse_id(text: str) -> tuple[bytes, int] | None:
    """Return the uid and the seq of an id, or None if the text is not an id."""
    if len(text) != ID_LENGTH or not set(text) <= set("0123456789abcdef"):
        return None
    uid = bytes.fromhex(text[8:])
    seq = ((int(text[:8], 16) ^ int.from_bytes(uid[:4], "big")) * _UNMIX) & MAX_SEQ
    return uid, seq


def seqs_of(uid: bytes, prefix: str) -> list[int]:
    """Return the seqs whose ids begin with the first eight digits of `prefix`; their rows need not exist."""
    digits = prefix[:8]
    first, last = int(digits.ljust(8, "0"), 16), int(digits.ljust(8, "f"), 16)
    return [((mixed ^ int.from_bytes(uid[:4], "big")) * _UNMIX) & MAX_SEQ for mixed in range(first, last + 1)]


# -- the extra column --------------------------------------------------------------


def pack_extra(metadata: bytes, ranges: Ranges | None, origin: str | None) -> bytes:
    """Return a row's `extra`: encoded metadata, the ranges of a row that moves the head, a fork's origin."""
    if not metadata and ranges is None and origin is None:
        return _NO_EXTRA
    return msgpack.pack([metadata, [list(pair) for pair in ranges] if ranges is not None else None, origin])


def unpack_extra(row: Row) -> tuple[bytes, Ranges | None, str | None]:
    """Return the encoded metadata, the ranges and the origin in a row's `extra`; `Corrupt` if they are damaged."""
    if row.extra == _NO_EXTRA:
        return b"", None, None
    try:
        metadata, listed, origin = ormsgpack.unpackb(row.extra)
        ranges = None if listed is None else tuple((low, high) for low, high in listed)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"row {row.seq} is damaged", code="corrupt.row") from error
    numbers = [seq for pair in ranges or () for seq in pair]
    if type(metadata) is not bytes or type(origin) not in (str, type(None)) or any(type(n) is not int for n in numbers):
        raise Corrupt(f"row {row.seq} is damaged", code="corrupt.row")
    return metadata, ranges, origin


def unreadable(checkpoint: str, thread: str, why: str) -> str:
    """Return the message for a damaged checkpoint, with what to do. `why` may be such a message."""
    start, hint = f"checkpoint {checkpoint} of thread {thread!r} cannot be read: ", "; verify() lists all damage"
    return start + why.removeprefix(start) + ("" if "verify(" in why else hint)


def check_of(columns: tuple[Any, ...], uid: bytes) -> bytes:
    """Return the checksum of a row of a thread, over its columns up to `extra`."""
    label = columns[_LABEL]
    if label is not None:
        columns = (*columns[:_LABEL], label.encode("utf-8", "surrogatepass"), *columns[_LABEL + 1 :])
    return blake3(uid + msgpack.pack(columns)).digest(length=8)


def checked(row: Row, uid: bytes) -> Row:
    """Return the row with its checksum."""
    return new_tuple(Row, (*row[:_CHECK], check_of(row[:_CHECK], uid), *row[_CHECK + 1 :]))


def is_sound(row: Row, uid: bytes) -> bool:
    """Tell whether a row is undamaged."""
    try:
        return row.check == check_of(row[:_CHECK], uid) and _is_row(row)
    except (TypeError, ValueError, AttributeError, OverflowError):  # a damaged column may have another type
        return False


def _is_row(row: Row) -> bool:
    """Tell whether each column has a valid type and value: a forged row can have a valid checksum."""
    return (
        tuple(map(type, row[:18])) in _COLUMNS
        and 0 < row.seq <= MAX_SEQ
        and 0 <= row.parent < row.seq
        and abs(row.created_at) < LATEST
        and min(row[1:10]) >= 0
        and max(row[4:10]) <= row.seq  # head, undo, redo, view, base, depth
        and row.op <= LEAVE
        and 0 <= row.kind < len(KINDS)
        and 0 <= row.size < _MOST
        and 0 <= row.stored < _MOST
        and row.step < _MOST
        and len(row.op_id) == OP_BYTES
    )


# -- erasure ----------------------------------------------------------------------------------------------

ERASED: Final = "erased"
"""The key of the mark in the metadata of a CLEAR that erases a thread: the number of erased checkpoints."""


def erasure_extra(checkpoints: int) -> bytes:
    """Return the `extra` of the CLEAR that erases a thread. It states how many checkpoints were erased."""
    return pack_extra(msgpack.pack({ERASED: checkpoints}), (), None)


def erased_count(row: Row) -> int | None:
    """Return how many checkpoints a row erased; None if it is not the row of an erasure."""
    if row.op != CLEAR:
        return None
    try:
        metadata = unpack_extra(row)[0]
        count = ormsgpack.unpackb(metadata)[ERASED] if metadata else None
    except (Corrupt, ValueError, TypeError, KeyError):
        return None
    return count if type(count) is int and count >= 0 else None


def last_erasure(rows: Iterable[Row]) -> int:
    """Return the seq of the newest erasure among the rows of a thread, or 0. The rows before it are erased."""
    return max((row.seq for row in rows if erased_count(row) is not None), default=0)


# -- views ----------------------------------------------------------------------------------------------

Read = Callable[[int], Row | None]
"""Returns the row with a seq; None if it was removed."""


def path_of(row: Row, read: Read) -> Ranges:
    """Return the ranges of seq from the root to a checkpoint."""
    if row.view == 0:
        return ((1, row.seq),)
    moved = read(row.view)
    ranges = unpack_extra(moved)[1] if moved is not None else None
    if ranges is None:
        raise Corrupt(f"row {row.view}, which stores the view, is damaged", code="corrupt.row")
    return (*ranges, (row.view + 1, row.seq))


def view_for(newest: Row) -> int:
    """Return the `view` of a checkpoint that is saved after the row `newest`."""
    return newest.view if newest.op in CHECKPOINTS else newest.seq


def clip(ranges: Ranges, low: int, high: int) -> Ranges:
    """Return the part of the ranges that lies between two seqs, both included."""
    return tuple((max(a, low), min(b, high)) for a, b in ranges if b >= low and a <= high)


def shortened(ranges: Ranges, seqs: Sequence[int]) -> Ranges:
    """Return the ranges of a view without the leading ranges that hold none of the existing, ascending `seqs`.

    The first range stays because it begins with the root, and the last range always stays. So the view holds the same
    checkpoints, and their steps, which are counted back from the head, do not change.
    """
    for at, (low, high) in enumerate(ranges):
        if at == len(ranges) - 1 or bisect_left(seqs, low) < bisect_right(seqs, high):
            return (ranges[0], *ranges[at:]) if at else ranges
    return ranges


def contains(ranges: Sequence[tuple[int, int]], seq: int) -> bool:
    """Tell whether a seq lies in one of the ranges."""
    return any(low <= seq <= high for low, high in ranges)


# -- undo and redo ----------------------------------------------------------------------------------------


def undo_target(nearest: Read, read: Read, *, head: int, start: int) -> Row | None:
    """Return the row whose head an undo restores, or None.

    `nearest(seq)` returns the newest existing row at or below a seq. Rows with a hidden head are skipped. After the
    first skipped row, rows with the current head are skipped, too: an undo to them would change nothing.
    """
    passed = False
    at = start
    while at:
        row = nearest(at)
        if row is None or row.head == 0:
            return None
        if row.seq == at:
            target = row if row.head == row.seq else read(row.head)
            if target is not None and not target.hidden and not (passed and row.head == head):
                return row
            if row.undo >= at:
                raise Corrupt(f"row {row.seq} is damaged: it undoes what comes later", code="corrupt.row")
            passed, at = True, row.undo
        else:  # a gap: hidden checkpoints, each undone to the row before it
            passed, at = True, row.seq
    return None


def redo_target(read: Read, *, head: int, start: int) -> Row | None:
    """Return the row whose head a redo restores; None if there is nothing to redo. Hidden heads are skipped."""
    passed = False
    row = read(start) if start else None
    while row is not None:
        target = row if row.head == row.seq else read(row.head)
        if target is not None and not target.hidden and not (passed and row.head == head):
            return row
        if row.redo >= row.seq:
            raise Corrupt(f"row {row.seq} is damaged: it redoes what comes later", code="corrupt.row")
        passed, row = True, read(row.redo) if row.redo else None
    return None
