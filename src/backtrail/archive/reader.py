"""Read the file of an export. `format` describes its content.

Always true:
- an open `Archive` has been read to its end once: it is complete, undamaged, valid and of a known format;
- each later read compares a section with its checksum, so a file that changes raises an error;
- memory holds a few sections, and the offsets of rows and chunks.

An encrypted export is opened by the caller's key or passphrase, and read through `envelope`. If a caller passes one,
an export that is not encrypted is refused: it could be forged.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Self

import ormsgpack
from blake3 import blake3

from backtrail.archive import envelope
from backtrail.archive.envelope import FrameReader
from backtrail.archive.format import (
    CHUNKS,
    CONTINUING,
    DIGESTS,
    END,
    FORMAT,
    HEAD_BYTES,
    HEADER,
    ID_BYTES,
    KNOWN,
    MAGIC,
    ROWS,
    SECTION,
    THREAD,
    VERSION,
    Header,
    KnownThread,
    ThreadEntry,
    Totals,
    entry_of,
    known_of,
    require_shape,
    row_fault,
    row_of,
)
from backtrail.atomic_file import translated
from backtrail.engine import log
from backtrail.engine.compression import RAW, unsqueeze
from backtrail.engine.tree.nodes import DIGEST_BYTES, NODE_LIMIT
from backtrail.errors import Corrupt, Error, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from backtrail.archive.envelope import Secret
    from backtrail.backends.port import Row

_LIMIT: Final = NODE_LIMIT + 2 * SECTION
_CHECK: Final = 32
_LINE: Final = 64
_CACHED: Final = 12
"""How many decoded sections are kept in memory."""
_RAW: Final = bytes([RAW])


class _Page(NamedTuple):
    """A section of rows: its offset in the file, and the seq of its first row."""

    offset: int
    first: int


class _Section(NamedTuple):
    """A section: its kind, and all of its bytes."""

    kind: bytes
    raw: bytes


class SectionFile:
    """An export file as a series of sections. The constructor reads and checks the header."""

    def __init__(self, path: Path, secret: Secret | None = None) -> None:
        self.path = path
        self.plain_bytes = 0
        """How many uncompressed bytes were read from sections; repeated reads count again."""
        self._shaped: set[bytes] = set()
        """The checksums of sections whose shape was checked. Sections are read several times."""
        self._file: BinaryIO | FrameReader = _open_file(path)
        try:
            self._file, self.size = _opened(self._file, path, secret)
            self.start, self._continuing = self._first_line()
            self.header = self._header(self.read(len(self.start)))
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise translated(error, path) from error
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def damaged(self, why: str) -> Corrupt:
        """Return the error for a damaged file."""
        return envelope.damaged(self.path, why)

    def read(self, offset: int) -> _Section:
        """Return the section at an offset; `Corrupt` if its checksum does not match."""
        head = self._bytes(offset, min(offset + HEAD_BYTES, self.size))
        length = int.from_bytes(head[1:], "big")
        end = offset + HEAD_BYTES + length + _CHECK
        if len(head) < HEAD_BYTES or end > self.size:
            raise self.damaged("it is truncated or damaged")
        raw = head + self._bytes(offset + HEAD_BYTES, end)
        if blake3(raw[:-_CHECK]).digest() != raw[-_CHECK:]:
            raise self.damaged(f"it is damaged between byte {offset} and byte {offset + len(raw)}")
        return _Section(head[:1], raw)

    def value(self, section: _Section) -> Any:
        """Return the unpacked content of a section; `Corrupt` unless it has the shape of its kind."""
        try:
            data = unsqueeze(section.raw[HEAD_BYTES:-_CHECK], limit=_LIMIT)
            self.plain_bytes += len(data)
            check = section.raw[-_CHECK:]
            if check not in self._shaped:
                require_shape(section.kind, data, continuing=self._continuing)
                self._shaped.add(check)
            return ormsgpack.unpackb(data)
        except (ValueError, Corrupt) as error:
            raise self.damaged(f"a section is damaged ({error})") from error

    def _first_line(self) -> tuple[bytes, bool]:
        """Return the first line, and whether it says that the file continues another export."""
        start = self._bytes(0, min(_LINE, self.size))
        line, newline, _ = start.partition(b"\n")
        number = line.removeprefix(MAGIC)
        if not line.startswith(MAGIC) or not newline or not number.isdigit():
            known = [MAGIC + b"%d\n" % each for each in (VERSION, CONTINUING)]
            cut = bool(start) and any(each.startswith(start) for each in known)
            raise self.damaged("it is truncated") if cut else _not_ours(self.path)
        if int(number) not in (VERSION, CONTINUING):
            raise self._newer(int(number))
        return line + newline, int(number) == CONTINUING

    def _newer(self, number: Any) -> Invalid:
        return Invalid(
            f"{self.path}: has export format {number}, which this version of backtrail cannot read: upgrade backtrail",
            code="invalid.format",
            format=number,
        )

    def _header(self, section: _Section) -> Header:
        value: Any = self.value(section) if section.kind == HEADER else None
        try:
            version, number, created_at, since, _ = value
        except (TypeError, ValueError) as error:
            raise self.damaged("its header is damaged") from error
        if type(version) is not int or version > FORMAT:
            raise self._newer(version)
        ids = (number,) if since is None else (number, since)
        timed = type(created_at) is int and abs(created_at) < log.LATEST
        if not timed or not all(type(each) is bytes and len(each) == ID_BYTES for each in ids):
            raise self.damaged("its header is damaged")
        return Header(number, created_at, since)

    def _bytes(self, start: int, end: int) -> bytes:
        try:
            self._file.seek(start)
            data = self._file.read(end - start)
        except OSError as error:
            raise translated(error, self.path) from error
        if len(data) != end - start:
            raise self.damaged("it is truncated")
        return data


class Archive:
    """An export file that was read to its end and checked; gives its threads, rows and chunks."""

    def __init__(
        self, path: Path, progress: Callable[[str, int], None] | None = None, *, secret: Secret | None = None
    ) -> None:
        self._file = SectionFile(path, secret)
        self.path = path
        self.header = self._file.header
        self.entries: list[ThreadEntry] = []
        self.known: dict[bytes, KnownThread] = {}
        self._pages: dict[bytes, list[_Page]] = {}
        self._names: set[tuple[str, ...]] = set()
        self._chunks: dict[bytes, tuple[int, int]] = {}
        self._digests: list[int] = []
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._last: Row | None = None
        """The last row that `_scan` has read of the current thread."""
        self.totals = Totals()
        try:
            self._scan(progress)
        except BaseException:
            self._file.close()
            raise

    @property
    def id(self) -> str:
        """The id of the export, in hex."""
        return self.header.id.hex()

    @property
    def since(self) -> str | None:
        """The id of the export that this one continues, in hex; None if it continues none."""
        return None if self.header.since is None else self.header.since.hex()

    @property
    def plain_bytes(self) -> int:
        """How many uncompressed bytes were read from the file."""
        return self._file.plain_bytes

    def damaged(self, why: str) -> Corrupt:
        """Return the error for a damaged file."""
        return self._file.damaged(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def rows(self, entry: ThreadEntry, low: int, high: int) -> Iterator[Row]:
        """Yield the rows of a thread with seqs from `low` to `high`, with uncompressed payloads."""
        pages = self._pages[entry.uid]
        at = max(bisect_right(pages, low, key=lambda page: page.first) - 1, 0)
        for page in pages[at:]:
            if page.first > high:
                return
            rows = self._decoded(page.offset, lambda listed: [row_of(fields, entry) for fields in listed])
            yield from (row for row in rows if low <= row.seq <= high)

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the uncompressed chunks by digest; chunks that the file lacks are left out."""
        found: dict[bytes, bytes] = {}
        for digest in digests:
            if digest in self._chunks:
                offset, at = self._chunks[digest]
                found[digest] = _RAW + self._decoded(offset, lambda listed: listed)[at]
        return found

    def digests(self) -> list[bytes]:
        """Return the digests of the chunks that a store has after importing this export and those it continues."""
        joined = b"".join(self._file.value(self._file.read(offset)) for offset in self._digests)
        digests = dict.fromkeys(joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES))
        if len(digests) * DIGEST_BYTES < len(joined):
            raise self.damaged("it lists a chunk twice")
        return list(digests)

    # -- the scan -----------------------------------------------------------------------------------------

    def _scan(self, progress: Callable[[str, int], None] | None) -> None:
        """Read the whole file, check it against the rules of the format, and note the offsets of rows and chunks."""
        whole = blake3(self._file.start)
        offset = len(self._file.start)
        while (section := self._file.read(offset)).kind != END:
            if section.kind != HEADER or offset != len(self._file.start):
                try:
                    self._take_section(section.kind, self._file.value(section), offset)
                except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
                    raise self.damaged(f"a section is damaged ({error})") from error
            whole.update(section.raw)
            offset += len(section.raw)
            if progress:
                progress("bytes", offset)
        if offset + len(section.raw) != self._file.size:
            raise self.damaged("it has data after its end")
        if self._file.value(section) != [list(self.totals), whole.digest()]:
            raise self.damaged("its checksum does not match")
        self._end_thread()
        for entry in self.entries:
            known = self.known.get(entry.uid)
            if known is None or known[:3] != (entry.newest, entry.newest_op, entry.marks()):
                raise self.damaged("its list of known threads is wrong")

    def _take_section(self, kind: bytes, value: Any, offset: int) -> None:
        """Check the content of a section, and note its offset."""
        if kind == THREAD:
            self._take_thread(entry_of(value))
        elif kind == ROWS:
            self._take_rows(value, offset)
        elif kind == CHUNKS:
            self._chunks.update({blake3(plain).digest(): (offset, at) for at, plain in enumerate(value)})
            if len(self._chunks) < self.totals.chunks + len(value):
                raise self.damaged("it has a chunk twice")
            self.totals = self.totals._replace(chunks=len(self._chunks))
        elif kind == KNOWN:
            known = known_of(value)
            if known.keys() & self.known.keys():
                raise self.damaged("it lists a known thread twice")
            self.known.update(known)
        elif kind == DIGESTS and type(value) is bytes and len(value) % DIGEST_BYTES == 0:
            self._digests.append(offset)
        else:
            raise self.damaged(f"it has a section {kind!r} in the wrong place")

    def _take_thread(self, entry: ThreadEntry) -> None:
        name = entry.thread[:2]
        if entry.uid in self._pages or name in self._names:
            raise self.damaged("it has a thread twice")
        if entry.start and self.header.since is None:
            raise self.damaged("it continues an export that it does not name")
        self._end_thread()
        self._names.add(name)
        self.entries.append(entry)
        self._pages[entry.uid] = []
        self.totals = self.totals._replace(threads=len(self.entries))

    def _take_rows(self, value: Any, offset: int) -> None:
        entry = self.entries[-1]
        rows = [row_of(fields, entry) for fields in value]
        for row in rows:
            fault = row_fault(row, entry, self._last.seq if self._last else 0)
            if fault is not None:
                raise self.damaged(f"row {row.seq} of thread {entry.thread.name!r} is damaged: {fault} is invalid")
            self._last = row
        self._pages[entry.uid].append(_Page(offset, rows[0].seq))
        self._keep(offset, rows)
        saved = sum(row.op in log.CHECKPOINTS and not row.hidden for row in rows)
        self.totals = self.totals._replace(
            rows=self.totals.rows + len(rows), checkpoints=self.totals.checkpoints + saved
        )

    def _end_thread(self) -> None:
        """Raise `Corrupt` if the rows of the last thread lack its newest row or its head."""
        if not self.entries:
            return
        entry, row = self.entries[-1], self._last
        if row is not None and row.head and not entry.shows(row.head):
            raise self.damaged(f"the head of thread {entry.thread.name!r} is missing")
        newest = (row.seq, row.op_id) if row else (entry.start, entry.start_op)
        if newest != (entry.newest, entry.newest_op):
            raise self.damaged(f"the newest row of thread {entry.thread.name!r} is missing")
        self._last = None

    def _decoded(self, offset: int, make: Callable[[Any], Any]) -> Any:
        """Return the section at an offset as `make` decodes it, from the cache if possible."""
        if offset not in self._cache:
            self._keep(offset, make(self._file.value(self._file.read(offset))))
        self._cache.move_to_end(offset)
        return self._cache[offset]

    def _keep(self, offset: int, value: Any) -> None:
        self._cache[offset] = value
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)


def id_of(path: Path) -> str | None:
    """Return the id of an export file, in hex; None if the file does not begin like an export."""
    try:
        head = head_of(path)
        if head is not None:
            return head.id.hex()
        file = SectionFile(path)
    except Error:
        return None
    file.close()
    return file.header.id.hex()


def head_of(path: Path) -> envelope.Head | None:
    """Return the head of an encrypted export; None if the file is not an encrypted export."""
    with _open_file(path) as file:
        try:
            return envelope.read_head(file, path)
        except OSError as error:
            raise translated(error, path) from error


def _opened(file: BinaryIO, path: Path, secret: Secret | None) -> tuple[BinaryIO | FrameReader, int]:
    """Return the plain bytes of an open file, and how many there are."""
    head = envelope.read_head(file, path)
    if head is not None:
        reader = FrameReader(file, path, head, secret)
        return reader, reader.size
    if secret is not None:
        raise Invalid(
            f"{path}: this export is not encrypted: read it without key= and passphrase=, if you trust the file",
            code="invalid.not_encrypted",
        )
    return file, path.stat().st_size


def _open_file(path: Path) -> BinaryIO:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise Invalid(f"{path}: is {what}: pass the path of an export file", code="invalid.export")
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path}: this file does not exist", code="not_found.export") from error
    except OSError as error:
        raise translated(error, path) from error


def _not_ours(path: Path) -> Invalid:
    return Invalid(f"{path}: is not an export of a backtrail store: pass another file", code="invalid.export")
