"""The file of an export: sections, each with a checksum, and one over all of them. docs/format.md has every byte.

A section is a kind, a length, stored bytes that hold MessagePack, and a hash. Threads and their rows come in order;
chunks stand anywhere. What rows and chunks hold is not compressed one by one, but a section at a time: whoever imports
it stores it as he likes.

This is what a file says and how it is written; `archive_reader` reads it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from blake3 import blake3

from backtrail.engine import log
from backtrail.engine.compression import squeeze
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backtrail.backends.port import NewThread, Row

MAGIC: Final = b"backtrail export "
VERSION: Final = 1
"""Of the sections ..."""
CONTINUING: Final = 2
"""... and of those of a file that continues another one: it says more of a thread."""
FORMAT: Final = 4
"""Of what rows and chunks hold: that of the stores they come from."""
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
"""About how many bytes are in a section, before they are compressed."""
HEAD_BYTES: Final = 9
"""Of a section: its kind and its length."""
ROW_WEIGHT: Final = 200
"""What a row counts in a section, beside its payload and its metadata."""
FIELDS: Final = 20
"""Of a row: those that its checksum covers, the checksum, the payload."""
LABEL: Final = 12
"""Which of them is the label."""


class Header(NamedTuple):
    """What a file says of itself."""

    id: bytes
    created_at: int
    since: bytes | None
    """The id of the export that it continues."""


class Entry(NamedTuple):
    """A thread of a file, as it was."""

    thread: NewThread
    start: int
    """Its rows behind this seq are in the file; 0: all of them. Before it, only what has become a base since ..."""
    start_op: bytes
    """... and the op_id of that row."""
    newest: int
    newest_op: bytes
    visible: log.Ranges
    """The seqs of rows that are not hidden; what is in no range is hidden, or gone."""
    tags: dict[int, tuple[str, ...]]
    near: int = 0
    """The newest row up to `start` that was not collected yet: whoever has it sees that the log is the same one ..."""
    near_op: bytes = b""
    """... by its op_id."""

    @property
    def uid(self) -> bytes:
        """That of the thread."""
        return self.thread.uid

    def shows(self, seq: int) -> bool:
        """Tell whether a row is there and not hidden."""
        at = bisect_right(self.visible, (seq, log.MAX_SEQ)) - 1
        return at >= 0 and self.visible[at][0] <= seq <= self.visible[at][1]

    def marks(self) -> bytes:
        """Return a hash of all that can change without a new row."""
        return blake3(msgpack.pack([_thread_fields(self.thread), *_mark_fields(self)])).digest(length=16)


class Known(NamedTuple):
    """How far a store has a thread once it has imported a file and those that it continues."""

    newest: int
    op_id: bytes
    marks: bytes
    """See `Entry.marks`."""
    base: int
    """What the newest head in a file is read from: what is saved on it says so, and finds a base there."""


class Totals(NamedTuple):
    """What is in a file."""

    threads: int = 0
    rows: int = 0
    checkpoints: int = 0
    chunks: int = 0


# -- writing --------------------------------------------------------------------------------------------


class Writer:
    """Writes a file, from its first byte to its last."""

    def __init__(self, file: BinaryIO, header: Header, scope: list[Any] | None) -> None:
        self._file = file
        self._hash = blake3()
        self._waiting: dict[bytes, list[Any]] = {ROWS: [], CHUNKS: []}
        self._weight = {ROWS: 0, CHUNKS: 0}
        self.totals = Totals()
        self._continues = header.since is not None
        self._write(MAGIC + b"%d\n" % (CONTINUING if self._continues else VERSION))
        self._section(HEADER, [FORMAT, *header, scope])

    def thread(self, entry: Entry) -> None:
        """Begin a thread: the rows that follow are its own."""
        self._flush(ROWS)
        bounds = [entry.start, entry.start_op, entry.newest, entry.newest_op]
        near = [entry.near, entry.near_op] if self._continues else []
        self._section(THREAD, [_thread_fields(entry.thread), *bounds, *_mark_fields(entry), *near])
        self.totals = self.totals._replace(threads=self.totals.threads + 1)

    def row(self, row: Row, plain: bytes) -> None:
        """Add a row, with its payload as it is before it is compressed."""
        fields: list[Any] = [*row[: FIELDS - 1], plain]
        fields[LABEL] = _bin(row.label)
        self._add(ROWS, fields, len(plain) + len(row.extra) + ROW_WEIGHT)
        saved = self.totals.checkpoints + (row.op in log.CHECKPOINTS and not row.hidden)
        self.totals = self.totals._replace(rows=self.totals.rows + 1, checkpoints=saved)

    def chunk(self, plain: bytes) -> None:
        """Add a chunk: its kind and its bytes."""
        self._add(CHUNKS, plain, len(plain))
        self.totals = self.totals._replace(chunks=self.totals.chunks + 1)

    def end(self, known: dict[bytes, Known], digests: Sequence[bytes]) -> None:
        """Say what is known of the store now, and end the file."""
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


def _mark_fields(entry: Entry) -> list[Any]:
    tags = [[seq, [_bin(tag) for tag in tags]] for seq, tags in sorted(entry.tags.items())]
    return [[list(pair) for pair in entry.visible], tags]
