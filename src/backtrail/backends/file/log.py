"""The log of a store in files: what `file_reading` reads, and how frames are appended to it.

Whoever appends has the store's lock, and has read to the end. Who appends a durable frame makes sure first that all
frames before it are on disk, and says so in it: of frames that others wrote it knows by the end that they published,
or waits for the disk once more. A file is on disk before the next one is begun.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack

from backtrail.backends.file import frames
from backtrail.backends.file.disk import created, remove, synced, synced_directory, translated, write_at
from backtrail.backends.file.reader import Reader
from backtrail.backends.file.records import ECHO, SEAL, echo, pack, unpack
from backtrail.backends.tables.changes import Place, PutChunk, PutRow
from backtrail.errors import CommitUnknown, Corrupt, Error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from backtrail.backends.tables.changes import Body, Change

SYNC_FRAMES: Final = 1000
SYNC_SECONDS: Final = 10.0
"""Whoever need not wait for the disk does so after so many frames, or so many seconds, even so."""
FILE_BYTES: Final = 128 * 1024 * 1024
"""A file that would grow beyond this is sealed, and the log goes on in the next one."""


class Built(NamedTuple):
    """A frame, ready to be written."""

    pieces: list[bytes]
    size: int
    changes: list[tuple[Change, bytes, tuple[int, int]]]
    """Each with its record, and where its last body is among the bodies."""
    bodies: int
    """Where the bodies begin, counted from where the frame does."""

    def placed(self, file: int, at: int) -> list[Change]:
        """Return the changes as they are read from where the frame was written."""
        start = at + self.bodies

        def place(wire: Any) -> Place:
            return Place(file, start + wire[0], wire[1])

        made: list[Change] = []
        for change, record, body in self.changes:
            if isinstance(change, PutRow):
                made.append(PutRow(change.thread, change.row, place(body), change.news))
            elif isinstance(change, PutChunk):
                made.append(PutChunk(change.digest, change.epoch, place(body)))
            else:
                made.append(unpack(ormsgpack.unpackb(record), place))
        return made


def build(
    uid: bytes,
    number: int,
    changes: Sequence[Change],
    *,
    on_disk: int,
    repeated: list[list[Any]],
    read: Callable[[Place], bytes],
) -> Built:
    """Return a frame of these changes; what it repeats is of the frame before."""
    bodies: list[bytes] = []
    size = 0
    last = (0, 0)

    def put(body: Body) -> tuple[int, int]:
        nonlocal size, last
        data = body if isinstance(body, bytes) else read(body)
        bodies.append(data)
        last = size, len(data)
        size += len(data)
        return last

    packed = [(change, pack(change, put), last) for change in changes]
    records = [ormsgpack.packb([ECHO, repeated]), *(record for _, record, _ in packed)]
    pieces = frames.frame(uid, number, on_disk, records, bodies)
    whole = sum(map(len, pieces))
    return Built(pieces, whole, packed, whole - size)


class Log(Reader):
    """The log of one generation, and a place in it."""

    _due = 0.0
    """When it is next made sure, by the clock, that all is on disk."""

    def cut(self) -> None:
        """Cut off what is behind the end."""
        if self.torn:
            self._truncate()
            self.torn, self.seen = 0, None

    def append(self, changes: Sequence[Change], *, durable: bool) -> list[Change]:
        """Write a frame; return the changes with their bodies where they are now.

        It is there, and durable if that was asked for; or it is certainly not, or it is a `CommitUnknown`.
        """
        if self.sealed:
            self._begin_file()
        if durable or self._is_due():
            self.sync()
        built = self._built(changes)
        if self.at + built.size > FILE_BYTES and self.at > frames.FILE_HEADER:
            self.roll()
            built = self._built(changes)
        placed, repeated = built.placed(self.file, self.at), echo(changes)
        self._write(built.pieces, durable=durable)
        self.changes += len(changes)
        self.echo = repeated
        return placed

    def _is_due(self) -> bool:
        """Tell whether it is time to make sure of what was written: so much is lost by damage, or a power cut, at most.

        Damage to a frame of which nothing says that it was on disk is taken for a write that was cut short.
        """
        now = time.monotonic()
        if self.synced == self.number:
            self._due = now + SYNC_SECONDS
        return self.number - self.synced >= SYNC_FRAMES or now > self._due

    def _built(self, changes: Sequence[Change]) -> Built:
        number = self.number + 1
        return build(self.uid, number, changes, on_disk=self.synced, repeated=self.echo, read=self.body)

    def _write(self, pieces: list[bytes], *, durable: bool) -> None:
        fd, end = self._fds[self.file], self.at
        try:
            for piece in pieces if len(pieces) == 1 else frames.joined(pieces):
                write_at(fd, end, piece)
                end += len(piece)
        except BaseException as error:
            with suppress(Error):
                self._truncate()  # if not, half a frame is as good as none
            if isinstance(error, OSError):
                raise translated(error, self.name(self.file)) from error
            raise
        if durable:
            self._sync(fd)
        self.last = self.file, self.at, frames.check_of(pieces[0])
        self.at = end
        self.number += 1
        if durable:
            self.synced = self.number

    def _sync(self, fd: int) -> None:
        try:
            synced(fd)
        except BaseException as error:
            # The frame may have reached the disk, or not. Once it is cut off, and that is on disk, it is not there.
            try:
                self._truncate()
                synced(fd)
            except (Error, OSError) as again:
                raise CommitUnknown(
                    f"the disk failed during a commit ({error}), and again when that was to be undone ({again}): "
                    "read again before you repeat it",
                    code="commit_unknown.io",
                ) from error
            if isinstance(error, OSError):
                raise translated(error, self.name(self.file)) from error
            raise

    def _truncate(self) -> None:
        try:
            os.ftruncate(self._fds[self.file], self.at)
        except OSError as error:
            raise translated(error, self.name(self.file)) from error

    def sync(self) -> None:
        """Make all that was written durable."""
        if self.synced < self.number:
            try:
                synced(self._fds[self.file])
            except OSError as error:
                raise translated(error, self.name(self.file)) from error
            self.synced = self.number

    def roll(self) -> None:
        """Seal this file, and go on in the next one."""
        if not self.sealed:
            seal = [ormsgpack.packb([ECHO, self.echo]), ormsgpack.packb([SEAL])]
            self._write(frames.frame(self.uid, self.number + 1, self.synced, seal, ()), durable=True)
            self.sealed = True
            self.echo = []
        self._begin_file()

    def _begin_file(self) -> None:
        self.sync()  # it may be another one's who sealed it
        name = self.name(self.file + 1)
        begin_file(name, self.uid, self.file + 1, self.number + 1)
        try:
            self._open(self.file + 1)
        except OSError as error:
            raise translated(error, name) from error
        self.file += 1
        self.at, self.sealed = frames.FILE_HEADER, False


def begin_file(name: Path, uid: bytes, file: int, first: int) -> None:
    """Make a file of a log, without a frame, durable in its directory."""
    made = False
    try:
        fd = created(name, os.O_RDWR)
        try:
            if os.fstat(fd).st_size > frames.FILE_HEADER:
                raise Corrupt(
                    f"{name}: has frames already, and what is before it does not end there", code="corrupt.store"
                )
            made = True
            write_at(fd, 0, frames.file_header(uid, file, first))
            synced(fd)
        finally:
            os.close(fd)
        synced_directory(name.parent)
    except OSError as error:
        if made:
            remove(name)
        raise translated(error, name) from error
