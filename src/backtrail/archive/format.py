"""The file of an export: sections, each with a checksum, and one checksum over all. docs/format.md has every byte.

A section is a kind, a length, compressed MessagePack, and a hash. The rows of a thread follow its thread section;
sections of chunks may come anywhere. A section is compressed as a whole. The importing store compresses rows and chunks
again, with its own options.

A forged file can have correct checksums. So an import accepts only content that a writer could have written.
`require_shape` checks the bytes of a section before they are unpacked, because a few compressed bytes can expand to a
million empty lists. `entry_of` and `row_fault` check the fields of threads and rows.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from blake3 import blake3

from backtrail.backends.port import NewThread, Row, pins_in
from backtrail.engine import log, manifests
from backtrail.engine.compression import RAW, squeeze
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.decode import Unpacker
from backtrail.engine.tree.nodes import DIGEST_BYTES, INLINE
from backtrail.errors import Error, Invalid
from backtrail.validation import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from backtrail.archive.envelope import FrameWriter

MAGIC: Final = b"backtrail export "
VERSION: Final = 1
"""The version of the section layout in a full export."""
CONTINUING: Final = 2
"""The version in a file that continues another export: its thread sections have two more fields."""
FORMAT: Final = 4
"""The version of the content of rows and chunks, which is the format of the exporting store."""
HEADER: Final = b"H"
THREAD: Final = b"T"
ROWS: Final = b"R"
CHUNKS: Final = b"C"
KNOWN: Final = b"K"
DIGESTS: Final = b"D"
END: Final = b"E"
SPACES: Final = ("thread", "agent", "conversation", "run", "aside", "checkpoint", "journal")

ID_BYTES: Final = 16
SECTION: Final = 1 << 20
"""The approximate size of a section in bytes, uncompressed."""
HEAD_BYTES: Final = 9
"""The size of a section's kind and length, in bytes."""
ROW_WEIGHT: Final = 200
"""How many bytes a row adds to the size of a section, besides its payload and its metadata."""
FIELDS: Final = 20
"""How many fields a row has in the file: the fields that its checksum covers, the checksum, the payload."""
LABEL: Final = 12
"""The index of the label among the fields of a row."""

_RAW: Final = bytes([RAW])
_MARKS_BYTES: Final = 16


class Header(NamedTuple):
    """The header section of a file."""

    id: bytes
    created_at: int
    since: bytes | None
    """The id of the export that this file continues, or None."""


class ThreadEntry(NamedTuple):
    """A thread in an export file, without its rows."""

    thread: NewThread
    start: int
    """The file has all rows above this seq, and those up to it that became base rows since the earlier export."""
    start_op: bytes
    """The op_id of the row `start`, empty if `start` is 0."""
    newest: int
    newest_op: bytes
    visible: log.Ranges
    """The ranges of seqs that are not hidden; a row outside of all ranges is hidden or removed."""
    tags: dict[int, tuple[str, ...]]
    near: int = 0
    """The seq of the newest row up to `start` that the exporting store still had, or 0. An import compares this row."""
    near_op: bytes = b""
    """The op_id of the row `near`, empty if `near` is 0."""

    @property
    def uid(self) -> bytes:
        """The uid of the thread."""
        return self.thread.uid

    def shows(self, seq: int) -> bool:
        """Tell whether a row is in a visible range."""
        at = bisect_right(self.visible, (seq, log.MAX_SEQ)) - 1
        return at >= 0 and self.visible[at][0] <= seq <= self.visible[at][1]

    def marks(self) -> bytes:
        """Return a hash of the fields that can change without a new row: record, visible ranges and tags."""
        fields = [_thread_fields(self.thread), *_mark_fields(self)]
        return blake3(msgpack.pack(fields)).digest(length=_MARKS_BYTES)


class KnownThread(NamedTuple):
    """The newest row of a thread in a store that has imported this export and all exports that it continues."""

    newest: int
    op_id: bytes
    marks: bytes
    """See `ThreadEntry.marks`."""
    base: int
    """The seq of the base row of the newest exported head. Rows that are saved on that head have the same base."""


class Totals(NamedTuple):
    """The numbers of items in a file; `checkpoints` counts visible checkpoints."""

    threads: int = 0
    rows: int = 0
    checkpoints: int = 0
    chunks: int = 0


# -- writing --------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes an export file section by section: threads with their rows, chunks, and the end."""

    def __init__(self, file: BinaryIO | FrameWriter, header: Header, scope: list[Any] | None) -> None:
        self._file = file
        self._hash = blake3()
        self._waiting: dict[bytes, list[Any]] = {ROWS: [], CHUNKS: []}
        self._weight = {ROWS: 0, CHUNKS: 0}
        self.totals = Totals()
        self._continues = header.since is not None
        self._write(MAGIC + b"%d\n" % (CONTINUING if self._continues else VERSION))
        self._section(HEADER, [FORMAT, *header, scope])

    def thread(self, entry: ThreadEntry) -> None:
        """Begin a thread: the rows added next belong to it."""
        self._flush(ROWS)
        bounds = [entry.start, entry.start_op, entry.newest, entry.newest_op]
        near = [entry.near, entry.near_op] if self._continues else []
        self._section(THREAD, [_thread_fields(entry.thread), *bounds, *_mark_fields(entry), *near])
        self.totals = self.totals._replace(threads=self.totals.threads + 1)

    def row(self, row: Row, plain: bytes) -> None:
        """Add a row with its uncompressed payload."""
        fields: list[Any] = [*row[: FIELDS - 1], plain]
        fields[LABEL] = _bin(row.label)
        self._add(ROWS, fields, len(plain) + len(row.extra) + ROW_WEIGHT)
        saved = self.totals.checkpoints + (row.op in log.CHECKPOINTS and not row.hidden)
        self.totals = self.totals._replace(rows=self.totals.rows + 1, checkpoints=saved)

    def chunk(self, plain: bytes) -> None:
        """Add an uncompressed chunk: the byte of its kind, then its data."""
        self._add(CHUNKS, plain, len(plain))
        self.totals = self.totals._replace(chunks=self.totals.chunks + 1)

    def end(self, known: dict[bytes, KnownThread], digests: Sequence[bytes]) -> None:
        """Write the known threads, the digests of the chunks that later exports may rely on, and the end section."""
        self._flush(ROWS)
        self._flush(CHUNKS)
        listed = [[uid, *each] for uid, each in known.items()]
        for at in range(0, len(listed), SECTION // 64):
            self._section(KNOWN, listed[at : at + SECTION // 64])
        for at in range(0, len(digests), SECTION // DIGEST_BYTES):
            self._section(DIGESTS, b"".join(digests[at : at + SECTION // DIGEST_BYTES]))
        self._section(END, [list(self.totals), self._hash.digest()])

    def _add(self, kind: bytes, item: Any, weight: int) -> None:
        if self._weight[kind] + weight > SECTION:
            self._flush(kind)
        self._waiting[kind].append(item)
        self._weight[kind] += weight

    def _flush(self, kind: bytes) -> None:
        if self._waiting[kind]:
            self._section(kind, self._waiting[kind])
            self._waiting[kind], self._weight[kind] = [], 0

    def _section(self, kind: bytes, value: Any) -> None:
        stored = squeeze(msgpack.pack(value))
        head = kind + len(stored).to_bytes(HEAD_BYTES - 1, "big")
        self._write(head + stored + blake3(head + stored).digest())

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)


def _bin(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _thread_fields(thread: NewThread) -> list[Any]:
    return [thread.space, _bin(thread.name), thread.uid, _bin(thread.agent), thread.created_at, _bin(thread.origin)]


def _mark_fields(entry: ThreadEntry) -> list[Any]:
    tags = [[seq, [_bin(tag) for tag in tags]] for seq, tags in sorted(entry.tags.items())]
    return [[list(pair) for pair in entry.visible], tags]


# -- reading: check the shape of a section before it is unpacked ------------------------------------------

_SCALARS: Final = {
    **dict.fromkeys((*range(0x80), *range(0xE0, 0x100), 0xC0), 1),  # small numbers, nil
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1), 3),
    **dict.fromkeys((0xCE, 0xD2), 5),
    **dict.fromkeys((0xCF, 0xD3), 9),
    **{0xA0 | size: 1 + size for size in range(32)},  # short texts
}
"""The size of a msgpack number, nil or short text in bytes, by its first byte."""
_LENGTHS: Final = {0xC4: 1, 0xD9: 1, 0xC5: 2, 0xDA: 2, 0xC6: 4, 0xDB: 4}
"""The size of the length field of a msgpack bin or text in bytes, by its first byte."""
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}

# None means a number, a text, a bin or nil. A tuple means an array of exactly its items, a list an array of any number
# of its item. Any array may be nil.
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
"""The most items in a section of more than 2 * SECTION bytes: one large item, or rows with a large one among them."""


def require_shape(kind: bytes, data: bytes, *, continuing: bool) -> None:
    """Raise `ValueError` unless the bytes of a section have the shape of its kind.

    `continuing` selects the shapes of a file that continues another export.
    """
    shapes = _CONTINUING if continuing else _SHAPES
    if kind not in shapes:
        raise ValueError(f"its kind {kind!r} is unknown")
    try:
        if len(data) > 2 * SECTION and kind in _MOST and _array(data, 0)[0] > _MOST[kind]:
            raise ValueError("it has too many items")
        end = _end(data, 0, shapes[kind])
    except IndexError:
        end = -1
    if end != len(data):
        raise ValueError("its length is wrong")


def _end(data: bytes, at: int, shape: Any) -> int:
    """Return the offset behind the value at `at`; `ValueError` if it does not have this shape."""
    head = data[at]
    if shape is None:
        size = _SCALARS.get(head)
        if size is not None:
            return at + size
        width = _LENGTHS.get(head)
        if width is None:
            raise ValueError("a value is not a number, text, bin or nil")
        start = at + 1 + width
        return start + int.from_bytes(data[at + 1 : start], "big")
    if head == 0xC0:  # noqa: PLR2004 - nil
        return at + 1
    count, at = _array(data, at)
    if type(shape) is tuple:
        if count != len(shape):
            raise ValueError("an array has the wrong length")
        for each in shape:
            at = _end(data, at, each)
        return at
    for _ in range(count):
        at = _end(data, at, shape[0])
    return at


def _array(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items the array at `at` has, and the offset of the first item."""
    head = data[at]
    if head & 0xF0 == 0x90:  # noqa: PLR2004 - a short one
        return head & 0x0F, at + 1
    width = _ARRAYS.get(head)
    if width is None:
        raise ValueError("a value is not an array")
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width


# -- reading: the rules for threads and rows --------------------------------------------------------------

_FARTHEST: Final = log.MAX_SEQ >> 1
"""The largest newest seq of an imported thread, so that the thread has seqs left for new rows."""


def entry_of(value: Any) -> ThreadEntry:
    """Return the thread entry of a section; `ValueError` names the field that no writer could have written."""
    (space, name, uid, agent, created_at, origin), start, start_op, newest, newest_op, visible, tags, *rest = value
    near, near_op = rest or (0, b"")
    thread = NewThread(space, _text(name) or "", uid, _text(agent), created_at, _text(origin))
    ranges = tuple((low, high) for low, high in visible)
    by_seq = {seq: tuple(_text(tag) or "" for tag in words) for seq, words in tags}
    owner = {manifests.AGENT: thread.name, manifests.SPACE: None}.get(space, thread.agent)
    op_ids = ((1, newest_op), (start, start_op), (near, near_op))
    rules = {
        "its kind": space in SPACES,
        "its id": _is_id(thread.name),
        "its uid": _is_bin(uid, log.UID_BYTES),
        "its agent": thread.agent == owner and (thread.agent is None or _is_id(thread.agent)),
        "its time": type(created_at) is int and abs(created_at) < log.LATEST,
        "its origin": thread.origin is None or log.parse_id(thread.origin) is not None,
        "the first or last row": _are_seqs((start, newest), _FARTHEST) and start <= newest,
        "the row before the first": _are_seqs((near,), start),
        "an op_id": all(_is_bin(op_id, log.OP_BYTES if seq else 0) for seq, op_id in op_ids),
        "the list of visible rows": _are_seqs([seq for pair in ranges for seq in pair], newest) and _ascend(ranges),
        "its tags": _are_seqs(by_seq, newest) and len(by_seq) == len(tags) and all(map(_are_tags, by_seq.values())),
    }
    for what, holds in rules.items():
        if not holds:
            raise ValueError(f"a thread is damaged: {what} is invalid")
    return ThreadEntry(thread, start, start_op, newest, newest_op, ranges, by_seq, near, near_op)


def row_of(fields: Any, entry: ThreadEntry) -> Row:
    """Return the row of a thread from its fields in the file, with an uncompressed payload."""
    if len(fields) != FIELDS or type(fields[-1]) is not bytes:
        raise ValueError("a row is damaged")
    label = _text(fields[LABEL])
    stored = _RAW + fields[-1] if fields[1] in log.CHECKPOINTS else b""
    return Row._make((*fields[:LABEL], label, *fields[LABEL + 1 : -1], stored, not entry.shows(fields[0])))


def row_fault(row: Row, entry: ThreadEntry, last: int) -> str | None:
    """Return the name of the part of a row that no writer could have written, or None.

    `last` is the seq of the row before it in the file.
    """
    if not log.is_sound(row, entry.uid):
        return "the checksum, or a field,"
    try:
        packed, ranges, origin = log.unpack_extra(row)
        metadata = _metadata(packed, entry) if packed else {}
    except (Error, ValueError):
        return "its metadata"
    rules = {
        "its place": last < row.seq <= entry.newest and (row.seq > entry.start or row.base == row.seq),
        "its metadata": len(packed) <= INLINE and type(metadata) is dict and all(type(key) is str for key in metadata),
    }
    if row.op in log.CHECKPOINTS:
        rules |= {
            "its root": len(row.root) == DIGEST_BYTES,
            "its head": (row.head, row.redo, ranges) == (row.seq, 0, None),
            "the base or parent": max(row.undo, row.view) < row.seq and row.base > 0,
            "its label": row.label is None or (_is_id(row.label) and not row.label.startswith("@")),
            "its origin": origin is None if row.op == log.SAVE else log.parse_id(origin or "") is not None,
        }
    else:
        empty = (row.parent, row.base, row.depth, row.kind, row.label, row.size, row.stored, row.root, origin)
        is_plain = not packed or (log.erased_count(row) is not None and metadata.keys() == {log.ERASED})
        rules |= {
            "a field that only checkpoints have": is_plain and empty == (0, 0, 0, 0, None, 0, 0, b"", None),
            "the new head": row.view == row.seq > max(row.head, row.undo, row.redo),
            "its ranges": ranges is not None and _ascend(ranges) and (ranges[-1][1] if ranges else 0) == row.head,
        }
    return next((what for what, holds in rules.items() if not holds), None)


def known_of(value: Any) -> dict[bytes, KnownThread]:
    """Return the known threads of a section by uid; `ValueError` if a field is invalid."""
    known = {uid: KnownThread(*rest) for uid, *rest in value}
    for uid, (newest, op_id, marks, base) in known.items():
        bins = _is_bin(uid, log.UID_BYTES) and _is_bin(op_id, log.OP_BYTES) and _is_bin(marks, _MARKS_BYTES)
        if not bins or not _are_seqs((newest,), log.MAX_SEQ) or not _are_seqs((base,), newest):
            raise ValueError("the entry of a known thread is damaged")
    if len(known) < len(value):
        raise ValueError("a known thread is listed twice")
    return known


def _metadata(packed: bytes, entry: ThreadEntry) -> Any:
    """Return the metadata of a row. If it needs an unknown class or time zone, extension values are left out."""
    try:
        return Unpacker(manifests.PLAIN)(packed)
    except Invalid:
        if entry.thread.space == manifests.SPACE:  # the metadata of manifests needs no classes
            raise
    return msgpack.unpackb(packed, ext_hook=lambda code, _: {} if code == msgpack.DICT else None)


def _text(data: Any) -> str | None:
    return None if data is None else bytes(memoryview(data)).decode("utf-8", "surrogatepass")


def _is_id(text: str | None) -> bool:
    return text is not None and 0 < len(text) <= MAX_ID


def _is_bin(data: Any, size: int) -> bool:
    return type(data) is bytes and len(data) == size


def _are_seqs(numbers: Iterable[Any], most: int) -> bool:
    return all(type(each) is int and 0 <= each <= most for each in numbers)


def _are_tags(words: tuple[str, ...]) -> bool:
    pins_are_whole = all(len(holder) == log.UID_BYTES for holder in pins_in(words))
    return len({*words}) == len(words) and all(map(_is_id, words)) and pins_are_whole


def _ascend(ranges: log.Ranges) -> bool:
    flat = [0, *(seq for pair in ranges for seq in pair)]
    return all(a < b for a, b in zip(flat[::2], flat[1::2], strict=False)) and all(a <= b for a, b in ranges)
