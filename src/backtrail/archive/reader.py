"""Reading the file of an export. docs/format.md has every byte.

Always true here:
- an `Archive` that was opened has been read to its end: nothing in it is cut short, damaged, or of a newer format;
- what is read from it later is checked again, so that a file which changes meanwhile is noticed;
- no more than a few sections of it are in memory, and where things are.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Self

import ormsgpack
from blake3 import blake3

from backtrail.archive.fields import entry_of, is_written, known_of, require_shape, row_of
from backtrail.archive.layout import (
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
    Entry,
    Header,
    Known,
    Totals,
)
from backtrail.atomic_file import translated
from backtrail.engine import log
from backtrail.engine.compression import RAW, unsqueeze
from backtrail.engine.tree.nodes import DIGEST_BYTES, NODE_LIMIT
from backtrail.errors import Corrupt, Error, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from backtrail.backends.port import Row

_LIMIT: Final = NODE_LIMIT + 2 * SECTION
_CHECK: Final = 32
_LINE: Final = 64
_KEPT: Final = 12
"""Sections that are kept in memory."""
_RAW: Final = bytes([RAW])


class _Page(NamedTuple):
    """A section of rows: where it is, and its first seq."""

    offset: int
    first: int


class _Section(NamedTuple):
    """A section: its kind, and all of its bytes."""

    kind: bytes
    raw: bytes


class _File:
    """A file that is cut into sections."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plain_bytes = 0
        """How many bytes were read from its sections, before they were compressed; some of them twice."""
        self._file = _opened(path)
        try:
            self._size = path.stat().st_size
            self._start, self._continuing = self._first_line()
            self.header = self._header(self._read(len(self._start)))
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise translated(error, path) from error
            raise

    @property
    def id(self) -> str:
        """Its id, as people write it."""
        return self.header.id.hex()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def damaged(self, why: str) -> Corrupt:
        """Return the error of a file that cannot be used."""
        return Corrupt(f"{self.path}: {why}; nothing of it was used: make the export again", code="corrupt.export")

    def _first_line(self) -> tuple[bytes, bool]:
        """Return the first line, and whether it is that of a file which continues another one."""
        start = self._bytes(0, min(_LINE, self._size))
        line, newline, _ = start.partition(b"\n")
        number = line.removeprefix(MAGIC)
        if not line.startswith(MAGIC) or not newline or not number.isdigit():
            known = [MAGIC + b"%d\n" % each for each in (VERSION, CONTINUING)]
            cut = bool(start) and any(each.startswith(start) for each in known)
            raise self.damaged("it is cut short") if cut else _not_ours(self.path)
        if int(number) not in (VERSION, CONTINUING):
            raise self._newer(int(number))
        return line + newline, int(number) == CONTINUING

    def _newer(self, number: Any) -> Invalid:
        return Invalid(
            f"{self.path}: has format {number} of exports, which this version of backtrail does not know: upgrade it",
            code="invalid.format",
            format=number,
        )

    def _header(self, section: _Section) -> Header:
        value: Any = self._value(section) if section.kind == HEADER else None
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

    def _read(self, offset: int) -> _Section:
        """Return a section, checked."""
        head = self._bytes(offset, min(offset + HEAD_BYTES, self._size))
        length = int.from_bytes(head[1:], "big")
        end = offset + HEAD_BYTES + length + _CHECK
        if len(head) < HEAD_BYTES or end > self._size:
            raise self.damaged("it is cut short, or damaged")
        raw = head + self._bytes(offset + HEAD_BYTES, end)
        if blake3(raw[:-_CHECK]).digest() != raw[-_CHECK:]:
            raise self.damaged(f"it is damaged, somewhere in the {len(raw)} bytes from byte {offset} on")
        return _Section(head[:1], raw)

    def _value(self, section: _Section) -> Any:
        try:
            data = unsqueeze(section.raw[HEAD_BYTES:-_CHECK], limit=_LIMIT)
            self.plain_bytes += len(data)
            require_shape(section.kind, data, continuing=self._continuing)
            return ormsgpack.unpackb(data)
        except (ValueError, Corrupt) as error:
            raise self.damaged(f"a section is damaged ({error})") from error

    def _bytes(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        data = self._file.read(end - start)
        if len(data) != end - start:
            raise self.damaged("it is cut short")
        return data


class Archive(_File):
    """A file, read and checked."""

    def __init__(self, path: Path, progress: Callable[[str, int], None] | None = None) -> None:
        super().__init__(path)
        self.entries: list[Entry] = []
        self.known: dict[bytes, Known] = {}
        self._pages: dict[bytes, list[_Page]] = {}
        self._names: set[tuple[str, ...]] = set()
        self._chunks: dict[bytes, tuple[int, int]] = {}
        self._digests: list[int] = []
        self._cache: OrderedDict[int, Any] = OrderedDict()
        try:
            self.totals = self._scan(progress)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise translated(error, path) from error
            raise

    @property
    def since(self) -> str | None:
        """The id of the export that it continues."""
        return None if self.header.since is None else self.header.since.hex()

    def rows(self, entry: Entry, low: int, high: int) -> Iterator[Row]:
        """Give the rows of a thread from one seq to another; their payloads are stored without compression."""
        pages = self._pages[entry.uid]
        at = max(bisect_right(pages, low, key=lambda page: page.first) - 1, 0)
        for page in pages[at:]:
            if page.first > high:
                return
            yield from (row for row in self._rows(entry, page.offset) if low <= row.seq <= high)

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return those of these chunks that are in the file, stored without compression."""
        found: dict[bytes, bytes] = {}
        for digest in digests:
            if digest in self._chunks:
                offset, at = self._chunks[digest]
                found[digest] = _RAW + self._decoded(offset, lambda listed: listed)[at]
        return found

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._chunks

    def digests(self) -> list[bytes]:
        """Return the digests of all chunks that a store has once it has imported this and what it continues."""
        found: dict[bytes, None] = {}
        count = 0
        for offset in self._digests:
            joined = self._value(self._read(offset))
            count += len(joined) // DIGEST_BYTES
            found.update(dict.fromkeys(joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)))
            if len(found) < count:
                raise self.damaged("it names a chunk twice")
        return list(found)

    # -- the first look ---------------------------------------------------------------------------------

    def _scan(self, progress: Callable[[str, int], None] | None) -> Totals:
        """Read all of it, check it, and take note of where things are; return what is in it."""
        whole = blake3(self._start)
        offset = len(self._start)
        counted = Totals()
        while (section := self._read(offset)).kind != END:
            if section.kind != HEADER or offset != len(self._start):
                counted = self._note(section.kind, self._value(section), offset, counted)
            whole.update(section.raw)
            offset += len(section.raw)
            if progress:
                progress("bytes", offset)
        if offset + len(section.raw) != self._size:
            raise self.damaged("there is something behind its end")
        if self._value(section) != [list(counted), whole.digest()]:
            raise self.damaged("its checksum does not match")
        self._require_last()
        if not all(self._knows(entry) for entry in self.entries):
            raise self.damaged("it does not know its own threads")
        return counted

    def _knows(self, entry: Entry) -> bool:
        known = self.known.get(entry.uid)
        return known is not None and known[:3] == (entry.newest, entry.newest_op, entry.marks())

    def _note(self, kind: bytes, value: Any, offset: int, counted: Totals) -> Totals:
        """Take note of a section."""
        try:
            if kind == THREAD:
                self._note_thread(value)
                return counted._replace(threads=counted.threads + 1)
            if kind == ROWS:
                rows = self._note_rows(value, offset)
                saved = sum(row.op in log.CHECKPOINTS and not row.hidden for row in rows)
                return counted._replace(rows=counted.rows + len(rows), checkpoints=counted.checkpoints + saved)
            if kind == CHUNKS:
                before = len(self._chunks)
                self._chunks.update({blake3(plain).digest(): (offset, at) for at, plain in enumerate(value)})
                if len(self._chunks) - before < len(value):
                    raise self.damaged("it has a chunk twice")
                return counted._replace(chunks=counted.chunks + len(value))
            if kind == KNOWN:
                known = known_of(value)
                if known.keys() & self.known.keys():
                    raise self.damaged("it knows a thread twice")
                self.known.update(known)
            elif kind == DIGESTS and type(value) is bytes and len(value) % DIGEST_BYTES == 0:
                self._digests.append(offset)
            else:
                raise self.damaged(f"it has a section {kind!r}, which is not known")
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise self.damaged(f"a section is damaged ({error})") from error
        return counted

    def _note_thread(self, value: Any) -> None:
        entry = entry_of(value)
        name = entry.thread[:2]
        if entry.uid in self._pages or name in self._names:
            raise self.damaged("it has a thread twice")
        if entry.start and self.header.since is None:
            raise self.damaged("it continues an export that it does not name")
        self._names.add(name)
        self._require_last()
        self.entries.append(entry)
        self._pages[entry.uid] = []

    def _note_rows(self, value: Any, offset: int) -> list[Row]:
        entry = self.entries[-1]
        pages = self._pages[entry.uid]
        rows = [row_of(fields, entry) for fields in value]
        last = self._rows(entry, pages[-1].offset)[-1].seq if pages else 0
        for row in rows:
            in_order = last < row.seq <= entry.newest and (row.seq > entry.start or row.base == row.seq)
            if not in_order or not is_written(row, entry):
                raise self.damaged(f"row {row.seq} of thread {entry.thread.name!r} is damaged")
            last = row.seq
        pages.append(_Page(offset, rows[0].seq))
        self._cache[offset] = rows
        self._trim()
        return rows

    def _require_last(self) -> None:
        """Raise unless the last thread has come to its end."""
        if not self.entries:
            return
        entry = self.entries[-1]
        pages = self._pages[entry.uid]
        there = (entry.start, entry.start_op)
        if pages:
            row = self._rows(entry, pages[-1].offset)[-1]
            there = (row.seq, row.op_id)
            if row.head and not entry.shows(row.head):
                raise self.damaged(f"the head of thread {entry.thread.name!r} is missing")
        if there != (entry.newest, entry.newest_op):
            raise self.damaged(f"the newest row of thread {entry.thread.name!r} is missing")

    # -- sections ---------------------------------------------------------------------------------------

    def _rows(self, entry: Entry, offset: int) -> list[Row]:
        rows: list[Row] = self._decoded(offset, lambda listed: [row_of(fields, entry) for fields in listed])
        return rows

    def _decoded(self, offset: int, make: Callable[[Any], Any]) -> Any:
        """Return what is in a section, from memory if it was read lately."""
        if offset not in self._cache:
            try:
                self._cache[offset] = make(self._value(self._read(offset)))
            except OSError as error:
                raise translated(error, self.path) from error
            self._trim()
        self._cache.move_to_end(offset)
        return self._cache[offset]

    def _trim(self) -> None:
        while len(self._cache) > _KEPT:
            self._cache.popitem(last=False)


def id_of(path: Path) -> str | None:
    """Return the id of a file that begins as an export does, None if it does not."""
    try:
        with _File(path) as file:
            return file.id
    except Error:
        return None


def _opened(path: Path) -> BinaryIO:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise Invalid(f"{path}: is {what}: name the file of an export", code="invalid.export")
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path}: there is no such file", code="not_found.export") from error
    except OSError as error:
        raise translated(error, path) from error


def _not_ours(path: Path) -> Invalid:
    return Invalid(f"{path}: is not an export of a backtrail store: name another file", code="invalid.export")
