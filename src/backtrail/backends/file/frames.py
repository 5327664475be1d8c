"""The binary format of a log: files contain frames, frames contain records and bodies.

A frame is one commit or a group of commits: it is applied as a whole. Its header has its own checksum and the length of
the frame, so that readers find the next frame even if this one is damaged. The header also names the last frame that
was on disk when it was written (`synced`). So readers can distinguish damage from an interrupted write. Each record has
a checksum, too, so that damage affects only the damaged records. The checksums of headers and frames include the
store's uid, so that frames of another store are not accepted.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from blake3 import blake3

from backtrail.backends.file.disk import read_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC = b"\xb7BTF"
"""The first bytes of a frame."""
FILE_MAGIC = b"BTRLFILE"
"""The first bytes of a file."""
FORMAT = 1
CHECK_BYTES = 8
_HEADER = struct.Struct(">4sIQQQ8s")  # and its CRC-32
_CHECKED_HEADER = struct.Struct(_HEADER.format + "I")
_FILE_HEADER = struct.Struct(">8sIQQ8s")  # and its CRC-32
_RECORD = struct.Struct(">II")
_CRC = struct.Struct(">I")
HEADER = _HEADER.size + _CRC.size
FILE_HEADER = _FILE_HEADER.size + _CRC.size
_WINDOW = 1 << 20


class Frame(NamedTuple):
    """A frame whose header is good."""

    at: int
    number: int
    synced: int
    records: int
    """The size of its records in bytes."""
    bodies_at: int
    end: int
    check: bytes


def _crc(uid: bytes, data: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(data, zlib.crc32(uid)))


def file_header(uid: bytes, file: int, first: int) -> bytes:
    """Return the header of a file: its number, and the number of its first frame."""
    header = _FILE_HEADER.pack(FILE_MAGIC, FORMAT, file, first, uid)
    return header + _crc(uid, header)


def parse_file_header(header: bytes) -> tuple[bytes, int, int] | None:
    """Return the uid of the store, the number of the file and of its first frame; None if the header is damaged."""
    if len(header) < FILE_HEADER:
        return None
    magic, form, number, first, uid = _FILE_HEADER.unpack_from(header)
    checked = header[_FILE_HEADER.size : FILE_HEADER] == _crc(uid, header[: _FILE_HEADER.size])
    return (uid, number, first) if checked and (magic, form) == (FILE_MAGIC, FORMAT) else None


def frame(uid: bytes, number: int, synced: int, records: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of a frame in pieces, for `joined`: one piece, or in a large frame the records and each body."""
    parts = [part for record in records for part in (_RECORD.pack(len(record), zlib.crc32(record)), record)]
    length = sum(map(len, parts))
    size = sum(map(len, bodies))
    pieces = [b"".join((*parts, *bodies))] if length + size <= _WINDOW else [b"".join(parts), *bodies]
    hasher = blake3(uid)
    for piece in pieces:
        hasher.update(piece)
    header = _HEADER.pack(MAGIC, length, size, number, synced, hasher.digest(length=CHECK_BYTES))
    pieces[0] = b"".join((header, _crc(uid, header), pieces[0]))
    return pieces


def joined(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a frame in order, with small pieces joined; a large frame is never copied as a whole."""
    small: list[bytes] = []
    size = 0
    for piece in pieces:
        small.append(piece)
        size += len(piece)
        if size > _WINDOW:
            yield b"".join(small)
            small, size = [], 0
    if small:
        yield b"".join(small)


def records_of(data: bytes, *, checked: bool) -> list[bytes | None]:
    """Return the records of a frame, with None for each damaged record; `checked` skips the checksums."""
    records: list[bytes | None] = []
    at, size = 0, len(data)
    while at + 8 <= size:
        length, crc = _RECORD.unpack_from(data, at)
        at += 8 + length
        record = data[at - length : at]
        if checked or (length and at <= size and zlib.crc32(record) == crc):  # zeros would match
            records.append(record)
            continue
        records.append(None)
        if at > size:
            return records  # the length is wrong, so the next record cannot be found
    if at != size:
        records.append(None)
    return records


def leading(data: bytes) -> int:
    """Return the length of the good records at the beginning of the data, in bytes."""
    at = 0
    while at + _RECORD.size <= len(data):
        length, crc = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + length
        if not length or end > len(data) or zlib.crc32(data[at + _RECORD.size : end]) != crc:
            break
        at = end
    return at


class Window:
    """A buffered reader of a log file, for reads that mostly move forward."""

    def __init__(self, fd: int, uid: bytes) -> None:
        self._fd = fd
        self._uid = uid
        self._seed = zlib.crc32(uid)
        self._start = 0
        self._data = b""
        self.size = os.fstat(fd).st_size

    def piece(self, at: int, length: int) -> bytes:
        """Return `length` bytes from the offset `at`; fewer if the file ends before."""
        begin = at - self._start
        if begin < 0 or begin + length > len(self._data):
            self._start, begin = at, 0
            self._data = read_at(self._fd, at, max(length, _WINDOW))
        return self._data[begin : begin + length]

    def frame_at(self, at: int) -> Frame | None:
        """Return the frame at an offset; None if there is no good header, or the file ends inside of the frame."""
        header = self.piece(at, HEADER)
        if len(header) < HEADER:
            return None
        magic, records, bodies, number, synced, check, crc = _CHECKED_HEADER.unpack(header)
        if magic != MAGIC or zlib.crc32(header[: _HEADER.size], self._seed) != crc:
            return None
        bodies_at = at + HEADER + records
        end = bodies_at + bodies
        return Frame(at, number, synced, records, bodies_at, end, check) if end <= self.size else None

    def frames_behind(self, at: int) -> Iterator[Frame]:
        """Yield the frames with good headers from an offset on, at any byte.

        A frame with a wrong content checksum may be data inside another frame, if a user saved a part of a log.
        """
        while at < self.size:
            data = self.piece(at, min(_WINDOW, self.size - at))
            here = data.find(MAGIC)
            if here < 0:
                if at + len(data) >= self.size or not data:
                    return
                at += max(len(data) - len(MAGIC) + 1, 1)
                continue
            frame = self.frame_at(at + here)
            if frame is not None:
                yield frame
            at = frame.end if frame is not None and self.is_good(frame) else at + here + 1

    def is_good(self, frame: Frame) -> bool:
        """Tell whether the records and bodies of a frame match its checksum."""
        at, end = frame.at + HEADER, frame.end
        if end - at <= _WINDOW:  # faster, and most frames are good
            return blake3(self._uid + self.piece(at, end - at)).digest(CHECK_BYTES) == frame.check
        hasher = blake3(self._uid)
        while at < end and (piece := self.piece(at, min(_WINDOW, end - at))):
            hasher.update(piece)
            at += len(piece)
        return at == end and hasher.digest(CHECK_BYTES) == frame.check
