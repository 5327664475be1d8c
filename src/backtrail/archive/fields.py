"""What the sections of an export may say, down to each field. docs/format.md has every byte.

Whoever makes up a file can make up its checksums, too. So what is taken over from one has to be what a writer could
have written: `entry_of`, `row_of` and `known_of` give that, or raise `ValueError`. Before anything is made of a
section, `require_shape` looks at its bytes: a few of them, compressed, can say "a million empty lists".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.archive.layout import (
    CHUNKS,
    DIGESTS,
    END,
    FIELDS,
    HEADER,
    KNOWN,
    LABEL,
    ROW_WEIGHT,
    ROWS,
    SECTION,
    SPACES,
    THREAD,
    Entry,
    Known,
)
from backtrail.backends.port import NewThread, Row
from backtrail.engine import log, pins
from backtrail.engine.compression import RAW
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import DIGEST_BYTES, INLINE
from backtrail.engine.tree.unpacker import Unpacker
from backtrail.errors import Error, Invalid
from backtrail.validation import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

_RAW: Final = bytes([RAW])
_MARKS_BYTES: Final = 16
_FARTHEST: Final = log.MAX_SEQ >> 1
"""No thread that is imported ends behind this seq: it is to go on."""

# -- sections, as bytes -----------------------------------------------------------------------------------

_SCALARS: Final = {
    **dict.fromkeys((*range(0x80), *range(0xE0, 0x100), 0xC0), 1),  # small numbers, nil
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1), 3),
    **dict.fromkeys((0xCE, 0xD2), 5),
    **dict.fromkeys((0xCF, 0xD3), 9),
    **{0xA0 | size: 1 + size for size in range(32)},  # short texts
}
"""How many bytes a value takes that begins so."""
_LENGTHS: Final = {0xC4: 1, 0xD9: 1, 0xC5: 2, 0xDA: 2, 0xC6: 4, 0xDB: 4}
"""Of bins and texts: how many bytes say how long they are."""
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}

# None is a number, a text, a bin or nil; a tuple is an array of just these, a list one of any number of such. Where an
# array may stand, nil may.
_SHAPES: Final[dict[bytes, Any]] = {
    HEADER: (None, None, None, None, (None, [None])),
    THREAD: ((None,) * 6, None, None, None, None, [(None, None)], [(None, [None])]),
    ROWS: [(None,) * FIELDS],
    CHUNKS: [None],
    KNOWN: [(None,) * 5],
    DIGESTS: None,
    END: ([None], None),
}
_CONTINUING: Final = {**_SHAPES, THREAD: (*_SHAPES[THREAD], None, None)}
_MOST: Final = {ROWS: SECTION // ROW_WEIGHT, CHUNKS: 1}
"""Of those that are larger than usual: how many items are in them."""


def require_shape(kind: bytes, data: bytes, *, continuing: bool) -> None:
    """Raise `ValueError` unless a section has the shape that those of its kind have, in such a file."""
    shapes = _CONTINUING if continuing else _SHAPES
    if kind not in shapes:
        raise ValueError(f"the kind {kind!r} is not known")
    try:
        if len(data) > 2 * SECTION and kind in _MOST and _array(data, 0)[0] > _MOST[kind]:
            raise ValueError("there is too much in it")
        end = _end(data, 0, shapes[kind])
    except IndexError:
        end = -1
    if end != len(data):
        raise ValueError("it ends too early, or too late")


def _end(data: bytes, at: int, shape: Any) -> int:
    """Return where a value of this shape ends."""
    head = data[at]
    if shape is None:
        size = _SCALARS.get(head)
        if size is not None:
            return at + size
        width = _LENGTHS.get(head)
        if width is None:
            raise ValueError("this is no number, text, bin or nil")
        start = at + 1 + width
        return start + int.from_bytes(data[at + 1 : start], "big")
    if head == 0xC0:  # noqa: PLR2004 - nil
        return at + 1
    count, at = _array(data, at)
    if type(shape) is tuple:
        if count != len(shape):
            raise ValueError("an array has another length")
        for each in shape:
            at = _end(data, at, each)
        return at
    for _ in range(count):
        at = _end(data, at, shape[0])
    return at


def _array(data: bytes, at: int) -> tuple[int, int]:
    """Return how many elements an array has, and where they begin."""
    head = data[at]
    if head & 0xF0 == 0x90:  # noqa: PLR2004 - a short one
        return head & 0x0F, at + 1
    width = _ARRAYS.get(head)
    if width is None:
        raise ValueError("this is no array")
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width


# -- what they say ----------------------------------------------------------------------------------------


def _text(data: Any) -> str | None:
    return None if data is None else bytes(memoryview(data)).decode("utf-8", "surrogatepass")


def _is_id(text: str | None) -> bool:
    return text is not None and 0 < len(text) <= MAX_ID


def _is_bin(data: Any, *sizes: int) -> bool:
    return type(data) is bytes and len(data) in sizes


def _are_seqs(numbers: Iterable[Any], most: int) -> bool:
    return all(type(each) is int and 0 <= each <= most for each in numbers)


def entry_of(value: Any) -> Entry:
    """Return a thread."""
    (space, name, uid, agent, created_at, origin), start, start_op, newest, newest_op, visible, tags, *rest = value
    near, near_op = rest or (0, b"")
    thread = NewThread(space, _text(name) or "", uid, _text(agent), created_at, _text(origin))
    ranges = tuple((low, high) for low, high in visible)
    listed = {seq: tuple(_text(tag) or "" for tag in words) for seq, words in tags}
    if (
        not _is_thread(thread)
        or not _are_seqs((start, newest), _FARTHEST)
        or not _are_seqs((near,), start)
        or not _is_bin(near_op, log.OP_BYTES if near else 0)
        or not _is_bin(start_op, log.OP_BYTES if start else 0)
        or not _is_bin(newest_op, log.OP_BYTES)
        or not 0 <= start <= newest
        or not _are_seqs([*(seq for pair in ranges for seq in pair), *listed], newest)
        or not _ascend(ranges)
        or len(listed) < len(tags)
        or not all(_are_tags(words) for words in listed.values())
    ):
        raise ValueError("a thread is damaged")
    return Entry(thread, start, start_op, newest, newest_op, ranges, listed, near, near_op)


def _is_thread(thread: NewThread) -> bool:
    owner = {pins.AGENT: thread.name, pins.SPACE: None}.get(thread.space, thread.agent)
    return (
        thread.space in SPACES
        and _is_id(thread.name)
        and _is_bin(thread.uid, log.UID_BYTES)
        and (thread.agent is None or _is_id(thread.agent))
        and thread.agent == owner
        and type(thread.created_at) is int
        and abs(thread.created_at) < log.LATEST
        and (thread.origin is None or log.parse_id(thread.origin) is not None)
    )


def _ascend(ranges: log.Ranges) -> bool:
    flat = [0, *(seq for pair in ranges for seq in pair)]
    return all(a < b for a, b in zip(flat[::2], flat[1::2], strict=False)) and all(a <= b for a, b in ranges)


def _are_tags(words: tuple[str, ...]) -> bool:
    own = pins.pins_in(words)
    return len({*words}) == len(words) and all(map(_is_id, words)) and all(map(pins.is_pin, own))


def row_of(fields: Any, entry: Entry) -> Row:
    """Return a row of a thread."""
    if len(fields) != FIELDS or type(fields[-1]) is not bytes:
        raise ValueError("a row is damaged")
    label = _text(fields[LABEL])
    stored = _RAW + fields[-1] if fields[1] in log.CHECKPOINTS else b""
    return Row._make((*fields[:LABEL], label, *fields[LABEL + 1 : -1], stored, not entry.shows(fields[0])))


def is_written(row: Row, entry: Entry) -> bool:
    """Tell whether a row is one that a writer makes."""
    if not log.is_sound(row, entry.uid):
        return False
    try:
        metadata, ranges, origin = log.unpack_extra(row)
        found = _metadata(metadata, entry) if metadata else {}
    except (Error, ValueError):
        return False
    if len(metadata) > INLINE or type(found) is not dict or not all(type(key) is str for key in found):
        return False
    if row.op in log.CHECKPOINTS:
        return (
            len(row.root) == DIGEST_BYTES
            and (row.head, row.redo, ranges) == (row.seq, 0, None)
            and max(row.undo, row.view) < row.seq
            and row.base > 0
            and (row.label is None or (_is_id(row.label) and not row.label.startswith("@")))
            and (origin is None if row.op == log.SAVE else log.parse_id(origin or "") is not None)
        )
    empty = (row.parent, row.base, row.depth, row.kind, row.label, row.size, row.stored, row.root, metadata, origin)
    return (
        empty == (0, 0, 0, 0, None, 0, 0, b"", b"", None)
        and row.view == row.seq > max(row.head, row.undo, row.redo)
        and ranges is not None
        and _ascend(ranges)
        and (ranges[-1][1] if ranges else 0) == row.head
    )


def _metadata(packed: bytes, entry: Entry) -> Any:
    """Return metadata; if it takes a class or a time zone that is not here, without what is in extensions."""
    try:
        return Unpacker(pins.PLAIN)(packed)
    except Invalid:
        if entry.thread.space == pins.SPACE:  # where it is plain
            raise
    return msgpack.unpackb(packed, ext_hook=lambda code, _: {} if code == msgpack.DICT else None)


def known_of(value: Any) -> dict[bytes, Known]:
    """Return what is known of threads."""
    found = {uid: Known(*rest) for uid, *rest in value}
    for uid, (newest, op_id, marks, base) in found.items():
        known = _is_bin(uid, log.UID_BYTES) and _is_bin(op_id, log.OP_BYTES) and _is_bin(marks, _MARKS_BYTES)
        if not known or not _are_seqs((newest,), log.MAX_SEQ) or not _are_seqs((base,), newest):
            raise ValueError("what is known of a thread is damaged")
    if len(found) < len(value):
        raise ValueError("a thread is known twice")
    return found
