"""The log of a file store: a sequence of frames, in a base file and in numbered log files behind it.

A `Log` has a position: all frames up to it were applied to tables. `read` applies the frames behind it, `append` writes
one more frame. A process that appends has the store's lock, and has read to the end. A process that reads has the lock,
or reads only up to the published end, so that it sees durable frames only.

There are two kinds of bad frames. If nothing shows that the frame was on disk, its write was interrupted: the log ends
before it (`torn`). Otherwise the frame is damaged: its readable records are applied, and the next frame repeats its
changes in short form, so that lost rows are known. If several frames in a row are lost, the changes of the first ones
are unknown (`fatal_damage`): nothing is appended until a repair.

A durable frame is written after all frames before it are on disk, and its header says so. For frames of another process
the published end says that they are on disk; otherwise this process syncs again. A file is on disk before the next file
is begun.

A base has the whole state of a store, without removed data, in the form of a log: frames with the changes that make the
tables. Readers apply it before the log of its generation. A collection writes a base beside the current files, from a
copy of the tables, while other processes write (`write_base`).
"""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack

from backtrail.backends.file import frames
from backtrail.backends.file.directory import begin_file, log_name, log_numbers
from backtrail.backends.file.disk import created, read_at, remove, synced, synced_directory, translated, write_at
from backtrail.backends.file.lock import End
from backtrail.backends.file.records import ECHO, SEAL, change_of, echo, fields_of
from backtrail.backends.tables.changes import DropList, Place, PutList, PutThread, bodies_of, size_of
from backtrail.backends.tables.tables import Tables
from backtrail.errors import CommitUnknown, Corrupt, Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from backtrail.backends.file.directory import LogGeneration
    from backtrail.backends.tables.changes import Body, Change

LOG: Final = logging.getLogger("backtrail.backends")
BASE: Final = 0
"""The file number of the base; log files count from 1."""
SYNC_FRAMES: Final = 1000
SYNC_SECONDS: Final = 10.0
"""With durability "relaxed", a writer syncs after `SYNC_FRAMES` frames or `SYNC_SECONDS` seconds."""
FILE_BYTES: Final = 128 * 1024 * 1024
"""The most bytes of a log file. Before a file would grow larger, it is sealed, and the next file begins."""
_COPY_BYTES: Final = 1024 * 1024
_FRAME_CHANGES: Final = 32
_FRAME_BYTES: Final = 64 * 1024
_LIST_ENTRIES: Final = 256
"""The size of a base's frames, and of the parts of an index list in them."""
_ECHO_BYTES: Final = bytes((0x92, ECHO))  # an array of two items; the first is ECHO
_SEAL_RECORD: Final = ormsgpack.packb([SEAL])


class NewFrame(NamedTuple):
    """A frame, ready to be written."""

    pieces: list[bytes]
    size: int
    records: list[bytes]
    bodies: int
    """The offset of its bodies from its beginning."""

    def changes(self, file: int, at: int) -> list[Change]:
        """Return the changes with the places of their bodies, for a frame at the offset `at` of a file."""
        return [change_of(ormsgpack.unpackb(record), file, at + self.bodies) for record in self.records]


def build(
    uid: bytes,
    number: int,
    changes: Sequence[Change],
    *,
    on_disk: int,
    repeated: list[list[Any]],
    read: Callable[[Place], bytes],
) -> NewFrame:
    """Return a frame of changes.

    `on_disk` is the last frame that is on disk, `repeated` the echo of the frame before; `read` returns the bytes at a
    place.
    """
    bodies: list[bytes] = []
    size = 0

    def put(body: Body) -> tuple[int, int]:
        nonlocal size
        data = body if isinstance(body, bytes) else read(body)
        bodies.append(data)
        size += len(data)
        return size - len(data), len(data)

    records = [ormsgpack.packb(fields_of(change, put)) for change in changes]
    pieces = frames.frame(uid, number, on_disk, [ormsgpack.packb([ECHO, repeated]), *records], bodies)
    whole = sum(map(len, pieces))
    return NewFrame(pieces, whole, records, whole - size)


class Log:
    """The log of one generation, with a position in it."""

    def __init__(self, directory: Path, generation: LogGeneration, *, read_only: bool) -> None:
        """Open the first file. The position is before its first frame: of the base if there is one, else of the log."""
        self.uid = generation.uid
        self._directory = directory
        self._generation = generation
        self._flags = (os.O_RDONLY if read_only else os.O_RDWR) | getattr(os, "O_CLOEXEC", 0)
        self._fds: dict[int, int] = {}
        self.file, self.number = (generation.file, generation.frame - 1) if generation.base is None else (BASE, 0)
        """The position: the number of the file, and the number of the last frame that was applied."""
        self.at = frames.FILE_HEADER
        self.synced = self.number
        """The last frame that is known to be on disk."""
        self.sealed = False
        """Whether the file has ended with a seal, and the log continues in the next file."""
        self.torn = 0
        """How many bytes of an interrupted write are behind the end."""
        self._torn_status: tuple[int, int] | None = None
        """The size and mtime of the file when its torn end was found."""
        self.damage: list[str] = []
        self.fatal_damage: str | None = None
        """The damage that makes the changes of lost frames unknown, or None. While it is set, nothing is appended."""
        self._missing_end: End | None = None
        """A published end that the log does not reach."""
        self._echo: list[list[Any]] = []
        """The records of the last frame in short, which the next frame repeats."""
        self._lost = 0
        """How many frames just before the position were lost or damaged in part."""
        self._remains: list[Change] = []
        """The readable changes of the last lost frame."""
        self._on_disk = 0
        """The last frame that was on disk, according to the published end."""
        self._sync_due = 0.0
        self._open(self.file)

    # -- files ------------------------------------------------------------------------------------
    def name(self, file: int) -> Path:
        """Return the path of a file of the log."""
        base = self._generation.base
        return self._directory / (base if file == BASE and base is not None else log_name(file))

    def _open(self, file: int) -> None:
        """Open a file; `Corrupt` if it belongs to another store, because its frames would be cut off as torn."""
        if file in self._fds:
            return
        fd = os.open(self.name(file), self._flags)
        self._fds[file] = fd
        header = frames.parse_file_header(read_at(fd, 0, frames.FILE_HEADER))
        if header is not None and header[:2] != (self.uid, file):
            other = "of another store" if header[0] != self.uid else f"number {header[1]} of the log"
            raise Corrupt(
                f"{self.name(file)}: is the file {other}, not the one that backtrail.store names; nothing was changed: "
                "put the right file back",
                code="corrupt.store",
            )

    def close(self) -> None:
        """Close all open files."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __del__(self) -> None:
        """Close the files of a store that is dropped without being closed."""
        with suppress(Exception):
            self.close()

    def duplicate(self) -> Log:
        """Return a copy with its own file descriptors, which can be read even after gc has removed the files."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), _fds={})
        try:
            for file, fd in self._fds.items():
                other._fds[file] = os.dup(fd)
        except OSError as error:
            other.close()
            raise translated(error, self._directory) from error
        return other

    def copy_to(self, directory: Path, progress: Callable[[str, int], None] | None) -> None:
        """Copy the files up to the position of the log to another directory. Raises OSError."""
        total = 0
        for file, fd in sorted(self._fds.items()):
            # With fatal damage, the bytes behind the position may be lost frames: copy the whole file.
            size = self.at if file == self.file and self.fatal_damage is None else os.fstat(fd).st_size
            into = created(directory / self.name(file).name, os.O_WRONLY | os.O_EXCL)
            try:
                for at in range(0, size, _COPY_BYTES):
                    piece = self._read_piece(file, at, min(_COPY_BYTES, size - at))
                    write_at(into, at, piece)
                    total += len(piece)
                    if progress:
                        progress("bytes", total)
                synced(into)
            finally:
                os.close(into)

    def _read_piece(self, file: int, at: int, length: int) -> bytes:
        try:
            piece = read_at(self._fds[file], at, length)
        except OSError as error:
            raise translated(error, self.name(file)) from error
        if len(piece) < length:
            raise Corrupt(
                f"{self.name(file)}: is truncated at {at + len(piece)}: verify() lists the damage",
                code="corrupt.store",
            )
        return piece

    def body(self, place: Place) -> bytes:
        """Return the bytes at a place; fewer if the file is too short or missing."""
        fd = self._fds.get(place.file)
        return read_at(fd, place.at, place.length) if fd is not None and place.length else b""

    def end(self) -> End:
        """Return the position of the log as an end that can be published."""
        return End(self.file, self.at, self.number, self.synced)

    # -- reading ----------------------------------------------------------------------------------
    def has_news(self) -> bool:
        """Tell whether a process has appended since the last read."""
        status = os.fstat(self._fds[self.file])
        if self.sealed:
            return self.name(self.file + 1).exists()
        return status.st_size != self.at and (status.st_size, status.st_mtime_ns) != self._torn_status

    def has_reached(self, end: End) -> bool:
        """Tell whether all frames up to an end were applied, and none is torn or lost."""
        return self.number >= end.number and not self.torn and not self._lost

    def read(self, tables: Tables, published: End | None = None, *, beyond: bool = True) -> None:
        """Apply the frames behind the position to the tables, and move the position behind them.

        Unless `beyond`, stop at the published end.
        """
        self._on_disk = published.synced if published is not None else 0
        until = None if beyond else published
        if until is None or until.number > self.number:
            self._read_files(tables, until)
        if until is None and self._lost:
            self._apply_remains(tables, None)
        if published is not None and until is None and published.synced > self.number:
            self._note_missing(published)
        self.synced = max(self.synced, min(self._on_disk, self.number))

    def _read_files(self, tables: Tables, until: End | None) -> None:
        self.torn, self._torn_status = 0, None
        while True:
            fd = self._fds[self.file]
            window = frames.Window(fd, self.uid)
            last_file = until is not None and until.file == self.file
            if until is not None and last_file:
                window.size = min(window.size, until.at)
            try:
                self._read_file(tables, window)
            except (OSError, Error):
                raise
            except Exception as error:
                raise Corrupt(
                    f"{self.name(self.file)}: frame {self.number + 1} at {self.at} is complete, but this version of "
                    f"backtrail cannot decode it ({error!r}): upgrade backtrail, or restore a backup",
                    code="corrupt.store",
                ) from error
            if self.torn:
                name = self.name(self.file)
                LOG.warning("%s: a write was interrupted: %d bytes at %d are ignored", name, self.torn, self.at)
                status = os.fstat(fd)
                self._torn_status = (status.st_size, status.st_mtime_ns)
                break
            if last_file:
                break
            if until is not None and self.file != BASE and self._first_frame(self.file + 1) is None:
                raise FileNotFoundError(errno.ENOENT, "another process removed it", self.name(self.file + 1))
            if not self._next_file(tables):
                break

    def _read_file(self, tables: Tables, window: frames.Window) -> None:
        changes: list[Change] | None = None
        while self.at < window.size and not self.sealed:
            frame = window.frame_at(self.at)
            if frame is not None and frame.number == self.number + 1:
                records = window.piece(frame.at + frames.HEADER, frame.records)
                good = window.is_good(frame)
                if good or self._was_on_disk(window, frame.end) or self._has_records(records):
                    changes = self._apply(tables, frame, records, good=good)
                    continue
            elif self._was_on_disk(window, self.at + 1) or self._lacks_header(window):
                self._skip(tables, window)
                continue
            self.torn = window.size - self.at
            break
        if changes is not None:
            self._echo = echo(changes)

    def _apply(self, tables: Tables, frame: frames.Frame, records: bytes, *, good: bool) -> list[Change]:
        """Apply the readable records of a frame, and return their changes."""
        changes: list[Change] = []
        repeated: list[Change] | None = None
        whole = True
        for record in frames.records_of(records, checked=good):
            if record is None:
                whole = False
            elif record[:2] == _ECHO_BYTES:
                lost = ormsgpack.unpackb(record)[1] if self._lost else ()
                repeated = [change_of(each, self.file, 0) for each in lost]
            elif record == _SEAL_RECORD:
                self.sealed = True
            else:
                changes.append(change_of(ormsgpack.unpackb(record), self.file, frame.bodies_at))
        if self._lost:
            self._apply_remains(tables, repeated)
        if not good:
            what = "payloads, chunks or the header" if whole else "some records are lost"
            self._note(f"frame {frame.number} at {frame.at} is damaged: {what}")
            changes = [DropList(change.thread) if isinstance(change, PutList) else change for change in changes]
        if whole:
            for change in changes:
                tables.do(change)
        else:  # the next frame repeats the missing records in short form
            self._lost, self._remains = 1, changes
        self.number, self.at, self.synced = frame.number, frame.end, max(self.synced, frame.synced)
        return changes

    def _apply_remains(self, tables: Tables, repeated: list[Change] | None) -> None:
        """Apply the readable changes of a damaged frame, and its changes that the next frame repeats."""
        if self._lost > 1 or repeated is None:
            self._set_fatal_damage()
        threads = [change for change in repeated or () if isinstance(change, PutThread)]
        for change in (*threads, *self._remains, *(repeated or ())):
            tables.do(change)
        self._lost, self._remains = 0, []

    # -- damage -----------------------------------------------------------------------------------
    def _note_missing(self, published: End) -> None:
        """Report that the log ends before a frame that was on disk."""
        self._on_disk = 0
        if published != self._missing_end:
            self._missing_end = published
            self._note(f"ends with frame {self.number} at {self.at}, but frame {published.synced} was on disk")
            if published.file > self.file or self.torn:  # do not cut off the rest of the missing frames
                self._set_fatal_damage()

    def _was_on_disk(self, window: frames.Window, behind: int) -> bool:
        """Tell whether a later frame or file shows that the next frame was on disk."""
        if self.file == BASE:
            return True
        if any(max(frame.synced, self._on_disk) > self.number for frame in window.frames_behind(behind)):
            return True
        following = self._following(far=True)
        return following is not None and following[1] > self.number + 1  # a file is synced before the next one begins

    def _has_records(self, records: bytes) -> bool:
        """Tell whether the next frame was on disk and all its records are good, so that it can be applied."""
        return self._on_disk > self.number and frames.leading(records) == len(records)

    def _lacks_header(self, window: frames.Window) -> bool:
        """Tell whether the last frame was on disk and only its header is damaged, so that it can be applied."""
        return self._on_disk == self.number + 1 and self._without_header(window, window.size) is not None

    def _skip(self, tables: Tables, window: frames.Window) -> None:
        """Move the position to the next readable frame. If only a header is damaged, apply its frame."""
        frame = next((each for each in window.frames_behind(self.at + 1) if each.number > self.number), None)
        end = window.size if frame is None else frame.at
        if frame is None or frame.number == self.number + 2:
            between = self._without_header(window, end)
            if between is not None:
                records = window.piece(self.at + frames.HEADER, between.records)
                self._apply(tables, between, records, good=False)
                return
        self._note(f"there is no frame at {self.at}: the next one is {end - self.at} bytes later")
        self.at = end
        if frame is not None:
            self._lost += frame.number - 1 - self.number
            self.number = frame.number - 1

    def _without_header(self, window: frames.Window, end: int) -> frames.Frame | None:
        """Return the frame from the position to an offset; None unless good records and their bodies fill the space."""
        start = self.at + frames.HEADER
        content = window.piece(start, end - start)
        size = frames.leading(content)
        records = [each for each in frames.records_of(content[:size], checked=True) if each is not None]
        fields = [ormsgpack.unpackb(each) for each in records if each[:2] != _ECHO_BYTES and each != _SEAL_RECORD]
        changes = [change_of(each, self.file, 0) for each in fields]
        places = [body for change in changes for body in bodies_of(change) if isinstance(body, Place)]
        bodies_size = max((place.at + place.length for place in places), default=0)
        if not size or size + bodies_size != len(content):
            return None
        return frames.Frame(self.at, self.number + 1, self.number, size, start + size, end, b"")

    def _note(self, what: str) -> None:
        self.damage.append(f"{self.name(self.file)}: {what}")
        LOG.warning("%s", self.damage[-1])

    def _set_fatal_damage(self) -> None:
        self.fatal_damage = self.damage[-1] if self.damage else f"{self.name(self.file)}: is damaged"

    # -- the next file ----------------------------------------------------------------------------
    def leave_base(self) -> None:
        """Move the position to the beginning of the first log file behind the base."""
        self._lost, self._remains, self._echo = 0, [], []
        self.number = self.synced = self._generation.frame - 1  # frames of a base have numbers of their own
        self._enter(self._generation.file)

    def _enter(self, file: int) -> None:
        self._open(file)
        self.file, self.at, self.sealed = file, frames.FILE_HEADER, False
        self.synced = max(self.synced, self.number)

    def _next_file(self, tables: Tables) -> bool:
        """Move the position to the next file; return False if there is none."""
        if self.file == BASE:
            last = self._generation.frames
            if self.number != last:
                self._note(f"ends with frame {self.number}, but should end with frame {last}")
            if self.number < last - 1 or (self.number < last and self._lost):  # the last frame only repeats changes
                self._apply_remains(tables, None)
            self.leave_base()
            return True
        following = self._following(far=self.sealed or bool(self.damage))  # the seal may be lost
        if following is None:
            return False
        file, first = following
        if first != self.number + 1:
            what = "which was its last" if file == self.file + 1 else f"behind which {self.name(file)} begins"
            self._note(f"it ends at {self.at}, before frame {first - 1}, {what}")
            self._lost += first - 1 - self.number
            self.number = first - 1
        self._enter(file)
        return True

    def _following(self, *, far: bool) -> tuple[int, int] | None:
        """Return the number of the next file and of its first frame, or None; `far` also accepts a later file."""
        first = self._first_frame(self.file + 1)
        if first is not None:
            return self.file + 1, first
        for file in log_numbers(self._directory) if far else ():
            first = self._first_frame(file) if file > self.file + 1 else None
            if first is not None:
                return file, first
        return None

    def _first_frame(self, file: int) -> int | None:
        """Return the number of the first frame of a file; None if there is no such file, or it is not finished."""
        try:
            fd = os.open(self.name(file), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            data = read_at(fd, 0, frames.FILE_HEADER)
            header = frames.parse_file_header(data)
            if header is not None and header[:2] == (self.uid, file):
                return header[2]
            if len(data) < frames.FILE_HEADER:
                return None
            behind = frames.Window(fd, self.uid).frames_behind(frames.FILE_HEADER)  # the header is damaged
            return next((frame.number for frame in behind if frame.number > self.number), None)
        finally:
            os.close(fd)

    # -- appending --------------------------------------------------------------------------------
    def cut(self) -> None:
        """Truncate the file at its last good frame, if its end is torn."""
        if self.torn:
            self._truncate()
            self.torn, self._torn_status = 0, None

    def append(self, changes: Sequence[Change], *, durable: bool) -> list[Change]:
        """Write a frame; return the changes with the places of their bodies.

        When it returns, the frame is in the log, and on disk if `durable`. If it raises `CommitUnknown`, the frame may
        be in the log or not; after any other exception it is not.
        """
        if self.sealed:
            self._begin_file()
        if durable or self._is_sync_due():
            self.sync()
        frame = self._new_frame(changes)
        if self.at + frame.size > FILE_BYTES and self.at > frames.FILE_HEADER:
            self.roll()
            frame = self._new_frame(changes)
        placed, repeated = frame.changes(self.file, self.at), echo(changes)
        self._write(frame.pieces, durable=durable)
        self._echo = repeated
        return placed

    def _is_sync_due(self) -> bool:
        """Tell whether a relaxed writer must sync now, to limit the loss after damage or a power cut.

        If nothing shows that a frame was on disk, damage to it counts as an interrupted write.
        """
        now = time.monotonic()
        if self.synced == self.number:
            self._sync_due = now + SYNC_SECONDS
        return self.number - self.synced >= SYNC_FRAMES or now > self._sync_due

    def _new_frame(self, changes: Sequence[Change]) -> NewFrame:
        number = self.number + 1
        return build(self.uid, number, changes, on_disk=self.synced, repeated=self._echo, read=self.body)

    def _write(self, pieces: list[bytes], *, durable: bool) -> None:
        fd, end = self._fds[self.file], self.at
        try:
            for piece in frames.joined(pieces):
                write_at(fd, end, piece)
                end += len(piece)
        except BaseException as error:
            with suppress(Error):
                self._truncate()  # if it fails, readers ignore half a frame
            if isinstance(error, OSError):
                raise translated(error, self.name(self.file)) from error
            raise
        if durable:
            self._sync_or_cut(fd)
        self.at = end
        self.number += 1
        if durable:
            self.synced = self.number

    def _sync_or_cut(self, fd: int) -> None:
        try:
            synced(fd)
        except BaseException as error:
            # The frame may be on disk. After a truncation and a sync, it is certainly not.
            try:
                self._truncate()
                synced(fd)
            except (Error, OSError) as again:
                raise CommitUnknown(
                    f"the disk failed during a commit ({error}), and again when undoing it ({again}): "
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
        """Wait until all frames are on disk."""
        if self.synced < self.number:
            try:
                synced(self._fds[self.file])
            except OSError as error:
                raise translated(error, self.name(self.file)) from error
            self.synced = self.number

    def roll(self) -> None:
        """Seal this file, and begin the next one."""
        if not self.sealed and self.at > frames.FILE_HEADER:
            seal = [ormsgpack.packb([ECHO, self._echo]), _SEAL_RECORD]
            self._write(frames.frame(self.uid, self.number + 1, self.synced, seal, ()), durable=True)
            self.sealed = True
            self._echo = []
        if self.sealed:
            self._begin_file()

    def _begin_file(self) -> None:
        self.sync()  # another process may have sealed this file
        begin_file(self._directory, self.uid, self.file + 1, self.number + 1)
        try:
            self._enter(self.file + 1)
        except OSError as error:
            raise translated(error, self.name(self.file + 1)) from error


# -- bases ------------------------------------------------------------------------------------------


def write_base(name: Path, uid: bytes, tables: Tables, read: Callable[[Place], bytes]) -> tuple[Tables, int]:
    """Write a base of the tables and sync it; return tables whose bodies are in the base, and its number of frames.

    `read` returns the bytes at a place of the old files.
    """
    copy = Tables()
    number = 0
    repeated: list[list[object]] = []
    try:
        fd = created(name, os.O_WRONLY | os.O_EXCL)
        try:
            header = frames.file_header(uid, BASE, 1)
            write_at(fd, 0, header)
            at = len(header)
            for changes in _base_slices(tables):  # the last slice is empty: its frame repeats the one before
                number += 1
                frame = build(uid, number, changes, on_disk=number - 1, repeated=repeated, read=read)
                for change in frame.changes(BASE, at):
                    copy.do(change)
                for piece in frames.joined(frame.pieces):
                    write_at(fd, at, piece)
                    at += len(piece)
                repeated = echo(changes)
            synced(fd)
        finally:
            os.close(fd)
        synced_directory(name.parent)
    except OSError as error:
        remove(name)
        raise translated(error, name) from error
    except BaseException:
        remove(name)
        raise
    copy.wasted = 0
    return copy, number


def _base_slices(tables: Tables) -> Iterator[list[Change]]:
    """Yield the changes that make the tables in slices of moderate size, then an empty slice."""
    changes: list[Change] = []
    size = 0
    for change in _base_parts(tables):
        changes.append(change)
        size += sum(map(size_of, bodies_of(change)))
        if len(changes) >= _FRAME_CHANGES or size >= _FRAME_BYTES:
            yield changes
            changes, size = [], 0
    if changes:
        yield changes
    yield []


def _base_parts(tables: Tables) -> Iterator[Change]:
    """Yield the changes that make the tables, with long index lists in parts."""
    for change in tables.whole():
        if isinstance(change, PutList):
            ((_, _, listed),) = change.splices
            for start in range(0, max(len(listed), 1), _LIST_ENTRIES):
                part = listed[start : start + _LIST_ENTRIES]
                yield PutList(change.thread, change.now, ((start, 0, part),))
        else:
            yield change
