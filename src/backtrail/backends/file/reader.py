"""Reading the log of a store in files: frames, one after the other, in a base and in numbered files behind it.

A `Reader` stands at a place in it: all frames up to there were done on the tables, and it reads what comes behind.
Whoever reads has the store's lock, or shares it, or reads only up to the end that was published, so that nothing is
seen that was not yet made durable.

A frame that is not good is one of two things. If all frames behind it, too, were written before anything said that it
is on disk, then a write was cut short: the log ends before it (`torn`). Else it is damaged: what can be read of it
counts, the frame behind it repeats in short what it changed, and rows that were in it are known to be lost. If several
frames in a row are gone, nobody knows what was in the first of them (`blind`): then nothing is appended any more.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.backends.file import frames
from backtrail.backends.file.disk import read_at, translated
from backtrail.backends.file.lock import End
from backtrail.backends.file.records import ECHO, SEAL, echo, unpack
from backtrail.backends.tables.changes import DropList, Place, PutList, PutThread
from backtrail.errors import Corrupt, Error

if TYPE_CHECKING:
    from pathlib import Path

    from backtrail.backends.tables.changes import Change
    from backtrail.backends.tables.tables import Tables

LOG: Final = logging.getLogger("backtrail")
BASE: Final = 0
"""The number of the base among the files."""
LOG_NAME: Final = re.compile(r"log-\d{12}")


class Generation(NamedTuple):
    """Which files count."""

    uid: bytes
    """Of the store, at random."""
    generation: int
    base: str | None
    """The name of the base."""
    frames: int
    """How many frames the base has."""
    file: int
    """The first file of the log behind the base."""
    frame: int
    """The number of its first frame."""


class Reader:
    """The log of one generation, and a place in it, to be read."""

    def __init__(self, directory: Path, generation: Generation, *, read_only: bool) -> None:
        """Stand at the beginning: before the base, if there is one."""
        self.uid = generation.uid
        self._directory = directory
        self._generation = generation
        self._flags = (os.O_RDONLY if read_only else os.O_RDWR) | getattr(os, "O_CLOEXEC", 0)
        self._fds: dict[int, int] = {}
        self.file, self.number = (generation.file, generation.frame - 1) if generation.base is None else (BASE, 0)
        """The file that it stands in, and the last frame that was done."""
        self.at = frames.FILE_HEADER
        self.synced = self.number
        """The last frame that is known to be on disk."""
        self.sealed = False
        """Whether the log goes on in the next file."""
        self.torn = 0
        """Bytes behind the end that are none of the log's."""
        self.seen: tuple[int, int] | None = None
        """What the file was like (size, mtime) when a torn end was found in it."""
        self.damage: list[str] = []
        self.blind: str | None = None
        self._missed: End | None = None
        """An end that was published, and is not there."""
        self.changes = 0
        """How many were read or written."""
        self.echo: list[list[Any]] = []
        """What the next frame is to repeat."""
        self.last: tuple[int, int, bytes] | None = None
        """The last frame that was done, by which this history of the log is known: its file, its place, its check."""
        self._hurt = 0
        """How many frames just before this place were lost, or in part."""
        self._saved: list[Change] = []
        """What can be read of the last of them."""
        self._known = 0
        """The last frame that was on disk, as was published; nothing if this is another history of the log."""
        self._open(self.file)

    def name(self, file: int) -> Path:
        """Return the path of a file of the log."""
        base = self._generation.base
        return self._directory / (base if file == BASE and base is not None else log_name(file))

    def _open(self, file: int) -> None:
        if file not in self._fds:
            fd = os.open(self.name(file), self._flags)
            try:
                self._require_own(file, frames.belongs_to(read_at(fd, 0, frames.FILE_HEADER)))
            except BaseException:
                os.close(fd)
                raise
            self._fds[file] = fd

    def _require_own(self, file: int, found: tuple[bytes, int] | None) -> None:
        """Refuse a file of another store: none of its frames would count, and it would be taken for a torn one."""
        if found is not None and found != (self.uid, file):
            other = "of another store" if found[0] != self.uid else f"number {found[1]} of the log"
            raise Corrupt(
                f"{self.name(file)}: is the file {other}, and not what backtrail.store names: nothing was changed; "
                "put back what belongs together",
                code="corrupt.store",
            )

    def close(self) -> None:
        """Let go of the files."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __del__(self) -> None:
        """Do so for a store that is dropped without being closed."""
        with suppress(Exception):
            self.close()

    def twin(self) -> Reader:
        """Return one that reads the same files, and goes on to when they are closed here, or have no name any more."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), _fds={})  # at once: files that it has in `_fds` it closes when it goes
        try:
            for file, fd in self._fds.items():
                made._fds[file] = os.dup(fd)
        except OSError as error:
            made.close()
            raise translated(error, self._directory) from error
        return made

    def files(self) -> list[tuple[str, int, int]]:
        """Return the files that it has open, in their order: the name, the descriptor, how many bytes of it count.

        All of them count if it is not known what was there: so no more is lost.
        """
        return [
            (
                self.name(file).name,
                fd,
                self.at if file == self.file and self.blind is None else os.fstat(fd).st_size,
            )
            for file, fd in sorted(self._fds.items())
        ]

    def fd(self) -> int:
        """Return the file that it stands in."""
        return self._fds[self.file]

    def stand(
        self,
        file: int,
        at: int,
        number: int,
        *,
        sealed: bool,
        echo: list[list[Any]],
        last: tuple[int, int, bytes] | None,
    ) -> None:
        """Stand at a place to which somebody else has read, behind that frame. Raises OSError if that is not there."""
        for each in range(self._generation.file, file + 1):
            self._open(each)
        if os.fstat(self._fds[file]).st_size < at or not self._has(last):
            raise FileNotFoundError
        self.file, self.at, self.number, self.synced, self.sealed, self.echo = file, at, number, number, sealed, echo
        self.last = last

    def _has(self, last: tuple[int, int, bytes] | None) -> bool:
        """Tell whether a frame is there: in a copy of the store, the log may have gone on in another way."""
        if last is None:
            return True
        file, at, check = last
        fd = self._fds.get(file)
        return fd is not None and frames.check_of(read_at(fd, at, frames.HEADER)) == check

    def end(self) -> End:
        """Return where it stands, as others are told."""
        return End(self.file, self.at, self.number, self.synced)

    # -- reading ----------------------------------------------------------------------------------
    def body(self, place: Place) -> bytes:
        """Return the bytes at a place; fewer, or none, if they are not there any more."""
        fd = self._fds.get(place.file)
        return read_at(fd, place.at, place.length) if fd is not None and place.length else b""

    def has_news(self) -> bool:
        """Tell whether somebody has written since it was last read."""
        found = os.fstat(self._fds[self.file])
        if self.sealed:
            return self.name(self.file + 1).exists()
        return found.st_size != self.at and (found.st_size, found.st_mtime_ns) != self.seen

    def read(self, tables: Tables, said: End | None = None, *, beyond: bool = True) -> None:
        """Do all frames behind this place, or only those up to the end that was published, and stand behind them."""
        self._known = said.synced if said is not None else 0
        until = None if beyond else said
        if until is None or until.number > self.number:
            self._read_on(tables, until)
        if until is None and self._hurt:
            self._make_up(tables, None)
        if said is not None and until is None and said.synced > self.number:
            self._miss(said)
        self.synced = max(self.synced, min(self._known, self.number))

    def _read_on(self, tables: Tables, until: End | None) -> None:
        self.torn, self.seen = 0, None
        while True:
            fd = self._fds[self.file]
            window = frames.Window(fd, self.uid)
            if until is not None and until.file == self.file:
                window.size = min(window.size, until.at)
            last = self._read_file(tables, window)
            if last is not None:
                self.echo = echo(last)
            if self.torn:
                name = self.name(self.file)
                LOG.warning("%s: a write was cut short: %d bytes at %d do not count", name, self.torn, self.at)
                found = os.fstat(fd)
                self.seen = (found.st_size, found.st_mtime_ns)
                break
            if until is not None and until.file == self.file:
                break
            if until is not None and self.file != BASE and self._first_of(self.file + 1) is None:
                raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", self.name(self.file + 1))
            if not self._next_file(tables):
                break

    def has_reached(self, end: End) -> bool:
        """Tell whether all up to that end was done, and nothing that came before it is waited for."""
        return self.number >= end.number and not self.torn and not self._hurt

    def _miss(self, said: End) -> None:
        """Take note that frames are missing which were on disk."""
        self._known = 0
        if said != self._missed:
            self._missed = said
            self._note(f"ends with frame {self.number} at {self.at}, and frame {said.synced} was on disk")
            if said.file > self.file or self.torn:  # what is there of them is not to be cut off
                self._lose_sight()

    def _read_file(self, tables: Tables, window: frames.Window) -> list[Change] | None:
        last: list[Change] | None = None
        while self.at < window.size and not self.sealed:
            found = window.frame_at(self.at)
            if found is not None and found.number == self.number + 1:
                records = window.piece(found.at + frames.HEADER, found.records)
                good = window.is_good(found)
                if good or self._was_on_disk(window, found.end) or self._only_bodies(records):
                    last = self._understood(tables, found, records, good=good)
                    continue
            elif self._was_on_disk(window, self.at + 1) or self._only_header(window):
                self._skip(tables, window)
                continue
            self.torn = window.size - self.at
            break
        return last

    def _understood(self, tables: Tables, found: frames.Frame, records: bytes, *, good: bool) -> list[Change]:
        try:
            return self._do(tables, found, records, good=good)
        except (OSError, Error):
            raise
        except Exception as error:
            raise Corrupt(
                f"{self.name(self.file)}: frame {found.number} at {found.at} is whole, and says what this version of "
                f"backtrail does not understand ({error!r}): upgrade backtrail, or restore a backup",
                code="corrupt.store",
            ) from error

    def _do(self, tables: Tables, found: frames.Frame, records: bytes, *, good: bool) -> list[Change]:
        """Do what can be read of a frame."""
        done: list[Change] = []
        repeated: list[Change] | None = None
        whole = True

        def place(wire: Any) -> Place:
            return Place(self.file, found.bodies_at + wire[0], wire[1])

        for fields in frames.records_of(records, check=not good):
            if fields is None:
                whole = False
            elif fields[0] == ECHO:
                repeated = [unpack(each, place) for each in fields[1]] if self._hurt else []
            elif fields[0] == SEAL:
                self.sealed = True
            else:
                done.append(unpack(fields, place))
        if self._hurt:
            self._make_up(tables, repeated)
        if not good:
            what = "what it says is lost in part" if not whole else "bytes that rows or chunks hold, or its header"
            self._note(f"frame {found.number} at {found.at} is damaged: {what}")
            done = [DropList(change.thread) if isinstance(change, PutList) else change for change in done]
        if whole:
            for change in done:
                tables.do(change)
        else:  # the next frame tells what is missing
            self._hurt, self._saved = 1, done
        self.number, self.at, self.synced = found.number, found.end, max(self.synced, found.synced)
        self.last = self.file, found.at, found.check
        self.changes += len(done)
        return done

    def _make_up(self, tables: Tables, repeated: list[Change] | None) -> None:
        """Do what is left of a frame that was damaged, and what the next one repeats of it."""
        if self._hurt > 1 or repeated is None:
            self._lose_sight()
        heard = repeated or []
        threads = [change for change in heard if isinstance(change, PutThread)]
        for change in (*threads, *self._saved, *heard):
            tables.do(change)
        self._hurt, self._saved = 0, []

    def _was_on_disk(self, window: frames.Window, behind: int) -> bool:
        """Tell whether anything says that the frame behind this place was on disk."""
        if self.file == BASE:
            return True
        if any(max(found.synced, self._known) > self.number for found in window.frames_behind(behind)):
            return True
        following = self._following(far=True)
        return following is not None and following[1] > self.number + 1  # a file is on disk before the next is begun

    def _only_bodies(self, records: bytes) -> bool:
        """Tell whether the last frame of all was on disk, and its records are good: it can be done."""
        return self._known > self.number and frames.leading(records) == len(records)

    def _only_header(self, window: frames.Window) -> bool:
        """Tell whether the last frame of all was on disk, and lacks its header: it can be done."""
        return self._known == self.number + 1 and self._headless(window, window.size) is not None

    def _skip(self, tables: Tables, window: frames.Window) -> None:
        """Go on at the next frame that can be read. If only a header is damaged, what was behind it counts."""
        found = next((each for each in window.frames_behind(self.at + 1) if each.number > self.number), None)
        end = window.size if found is None else found.at
        if found is None or found.number == self.number + 2:
            between = self._headless(window, end)
            if between is not None:
                self._do(tables, between, window.content(between)[: between.records], good=False)
                return
        self._note(f"there is no frame at {self.at}: the next one is {end - self.at} bytes further on")
        self.at = end
        if found is not None:
            self._hurt += found.number - 1 - self.number
            self.number = found.number - 1

    def _headless(self, window: frames.Window, end: int) -> frames.Frame | None:
        """Return the frame between here and there, if its records are good and its bodies fill the rest."""
        content = window.piece(self.at + frames.HEADER, end - self.at - frames.HEADER)
        size = frames.leading(content)
        reach = 0

        def place(wire: Any) -> Place:
            nonlocal reach
            reach = max(reach, wire[0] + wire[1])
            return Place(self.file, *wire)

        for fields in frames.records_of(content[:size]):
            if fields is not None and fields[0] not in (ECHO, SEAL):
                unpack(fields, place)
        if not size or size + reach != len(content):
            return None
        return frames.Frame(self.at, self.number + 1, self.number, size, reach, b"")

    def _next_file(self, tables: Tables) -> bool:
        """Go on in the next file, if there is one."""
        if self.file == BASE:
            last = self._generation.frames
            if self.number != last:
                self._note(f"ends with frame {self.number}, and should with frame {last}")
            if self.number < last - 1 or (self.number < last and self._hurt):  # the last one only repeats
                self._make_up(tables, None)
            self._hurt, self._saved = 0, []
            self.file, self.number = self._generation.file, self._generation.frame - 1
            self.echo, self.synced = [], self.number  # those of the base have numbers of their own
        else:
            following = self._following(far=self.sealed or bool(self.damage))  # what sealed it may be lost
            if following is None:
                return False
            file, first = following
            if first != self.number + 1:
                what = "which was its last" if file == self.file + 1 else f"behind which {self.name(file)} begins"
                self._note(f"it ends at {self.at}, before frame {first - 1}, {what}")
                self._hurt += first - 1 - self.number
                self.number = first - 1
            self.file = file
        self._open(self.file)
        self.at, self.sealed = frames.FILE_HEADER, False
        self.synced = max(self.synced, self.number)
        return True

    def _following(self, *, far: bool) -> tuple[int, int] | None:
        """Return the next file that is there, or, if it is far, one behind it, and the number of its first frame.

        None if there is none, or not yet.
        """
        first = self._first_of(self.file + 1)
        if first is not None:
            return self.file + 1, first
        if not far:
            return None
        names = (each.name for each in self._directory.iterdir())
        for file in sorted(int(name[4:]) for name in names if LOG_NAME.fullmatch(name)):
            first = self._first_of(file) if file > self.file + 1 else None
            if first is not None:
                return file, first
        return None

    def _first_of(self, file: int) -> int | None:
        """Return the number of the first frame of a file, None if that is not there, or not yet."""
        try:
            fd = os.open(self.name(file), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            header = read_at(fd, 0, frames.FILE_HEADER)
            first = frames.first_frame(header, self.uid, file)
            if first is None and len(header) == frames.FILE_HEADER:  # the beginning is damaged, or nothing is there
                behind = frames.Window(fd, self.uid).frames_behind(frames.FILE_HEADER)
                return next((found.number for found in behind if found.number > self.number), None)
            return first
        finally:
            os.close(fd)

    def _note(self, what: str) -> None:
        self.damage.append(f"{self.name(self.file)}: {what}")
        LOG.warning("%s", self.damage[-1])

    def _lose_sight(self) -> None:
        self.blind = self.damage[-1] if self.damage else f"{self.name(self.file)}: is damaged"


def log_name(file: int) -> str:
    """Return the name of a file of the log."""
    return f"log-{file:012d}"
