"""The bytes of a log: files that hold frames, frames that hold records and bodies.

A frame is a commit, or several: all of it counts, or nothing. Its header says how long it is and is checked by itself,
so that the next frame is found even if this one is damaged; and it says up to which frame all were on disk when it was
written (`synced`), which tells damage from a write that was cut short. Each record is checked by itself, too, so that
damage does not go further than it reaches. All checks begin with the store's uid: frames of another store do not count.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import ormsgpack
from blake3 import blake3

from backtrail.backends.file.disk import read_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC = b"\xb7BTF"
"""What a frame begins with."""
FILE_MAGIC = b"BTRLFILE"
"""What a file begins with."""
FORMAT = 1
CHECK_BYTES = 8
_HEADER = struct.Struct(">4sIQQQ8s")  # and its CRC-32
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
    """Bytes of its records, behind the header."""
    bodies: int
    """Bytes of its bodies, behind the records."""
    check: bytes

    @property
    def bodies_at(self) -> int:
        """Where its bodies begin."""
        return self.at + HEADER + self.records

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.bodies_at + self.bodies


def _crc(uid: bytes, data: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(data, zlib.crc32(uid)))


def file_header(uid: bytes, file: int, first: int) -> bytes:
    """Return what a file begins with: its number, and that of its first frame."""
    header = _FILE_HEADER.pack(FILE_MAGIC, FORMAT, file, first, uid)
    return header + _crc(uid, header)


def first_frame(header: bytes, uid: bytes, file: int) -> int | None:
    """Return the number of the first frame of a file, None if its header is not good."""
    if len(header) < FILE_HEADER or header[_FILE_HEADER.size : FILE_HEADER] != _crc(uid, header[: _FILE_HEADER.size]):
        return None
    magic, form, number, first, _ = _FILE_HEADER.unpack(header[: _FILE_HEADER.size])
    return int(first) if (magic, form, number) == (FILE_MAGIC, FORMAT, file) else None


def belongs_to(header: bytes) -> tuple[bytes, int] | None:
    """Return the uid of the store that a file was made in, and its number there; None if its header is not good."""
    if len(header) < FILE_HEADER:
        return None
    magic, _, number, _, uid = _FILE_HEADER.unpack_from(header)
    good = magic == FILE_MAGIC and header[_FILE_HEADER.size : FILE_HEADER] == _crc(uid, header[: _FILE_HEADER.size])
    return (uid, number) if good else None


def frame(uid: bytes, number: int, synced: int, records: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of a frame: in one piece, or, if it is large, its bodies as they are, for `joined`."""
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


def check_of(header: bytes) -> bytes:
    """Return the check of a frame: of all that is in it."""
    return header[_HEADER.size - CHECK_BYTES : _HEADER.size]


def joined(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Give the pieces of a frame to be written one after the other, small ones together: never is all of it copied."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size > _WINDOW:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def records_of(data: bytes, *, check: bool = True) -> Iterator[list[Any] | None]:
    """Give the fields of records, one after the other, and None for each that is damaged."""
    at = 0
    while at + _RECORD.size <= len(data):
        length, crc = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        record = data[at : at + length]
        at += length
        if check and (not length or len(record) < length or zlib.crc32(record) != crc):  # zeros would pass
            yield None
            if len(record) < length:
                return  # the length itself is wrong: what follows cannot be told apart
            continue
        yield ormsgpack.unpackb(record)
    if at != len(data):
        yield None


def leading(data: bytes) -> int:
    """Return how many bytes at the beginning are good records."""
    at = 0
    while at + _RECORD.size <= len(data):
        length, crc = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + length
        if not length or end > len(data) or zlib.crc32(data[at + _RECORD.size : end]) != crc:
            break
        at = end
    return at


class Window:
    """A file, read from the front to the back in large pieces."""

    def __init__(self, fd: int, uid: bytes) -> None:
        self._fd = fd
        self._uid = uid
        self._start = 0
        self._held = b""
        self.size = os.fstat(fd).st_size

    def piece(self, at: int, length: int) -> bytes:
        """Return bytes of the file; fewer if it ends before."""
        if not self._start <= at <= at + length <= self._start + len(self._held):
            self._start = at
            self._held = read_at(self._fd, at, max(length, _WINDOW))
        return self._held[at - self._start : at - self._start + length]

    def frame_at(self, at: int) -> Frame | None:
        """Return the frame that begins there, None if there is no good header, or the file ends inside of the frame."""
        header = self.piece(at, HEADER)
        if len(header) < HEADER or header[:4] != MAGIC:
            return None
        if header[_HEADER.size :] != _crc(self._uid, header[: _HEADER.size]):
            return None
        _, records, bodies, number, synced, check = _HEADER.unpack(header[: _HEADER.size])
        found = Frame(at, number, synced, records, bodies, check)
        return found if found.end <= self.size else None

    def frames_behind(self, at: int) -> Iterator[Frame]:
        """Give the frames whose headers are good, wherever they begin, from there on.

        One that is not good itself may be within the body of another: somebody has saved a part of this log.
        """
        while at < self.size:
            held = self.piece(at, min(_WINDOW, self.size - at))
            here = held.find(MAGIC)
            if here < 0:
                if at + len(held) >= self.size or not held:
                    return
                at += max(len(held) - len(MAGIC) + 1, 1)
                continue
            found = self.frame_at(at + here)
            if found is not None:
                yield found
            at = found.end if found is not None and self.is_good(found) else at + here + 1

    def is_good(self, found: Frame) -> bool:
        """Tell whether the records and bodies of a frame are what was written."""
        hasher = blake3(self._uid)
        at = found.at + HEADER
        while at < found.end and (piece := self.piece(at, min(_WINDOW, found.end - at))):
            hasher.update(piece)
            at += len(piece)
        return at == found.end and hasher.digest(length=CHECK_BYTES) == found.check

    def content(self, found: Frame) -> bytes:
        """Return the records and bodies of a frame."""
        return self.piece(found.at + HEADER, found.records + found.bodies)
