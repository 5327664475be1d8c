"""Whether SQLite's write-ahead log belongs to the file that it lies beside.

SQLite does not ask: it replays the log `agents.db-wal` that a killed process left over whatever file is called
`agents.db` now. If that is a backup, the restore is undone, or its pages are mixed with others. So store and log carry
a *mark*, 23 bits of `PRAGMA user_version`, which stand in page 1 at a fixed place, and `refuse_foreign_log` compares
them before SQLite sees the log.

A mark is made for each new log. It is *begun* (its lowest bit is 0) and *settled* (1):

    1. one transaction writes the begun mark; it says which mark it follows;
    2. a checkpoint copies the log into the file, which now carries the begun mark, on disk;
    3. one transaction writes the settled mark, as the first one of the log that SQLite begins then.

So always true here:
- a log with a settled mark belongs to a file that has this mark, begun or settled, or another one of the log;
- a log with nothing but begun marks belongs to a file that has one of them, or that the first one follows;
- no write is acknowledged before its log has a settled mark, unless a reader keeps the log from being copied. Then it
  is tried again.

A copy of the file that was made before the log was begun has another mark: whether it was copied by `cp` or by
`Store.backup`, which gives each copy a mark of its own. Not told apart are a copy that other tools made while this log
was written, and a log without a settled mark, which a process began a moment ago or a reader kept from being copied.
They are let pass: to refuse a log that does belong would lock users out.

Nothing here opens the database file but SQLite itself. The log has no locks, so it is read as any file.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw
from blake3 import blake3

from backtrail.backends.sqlite.connection import roll_back
from backtrail.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAGES: Final = 1000
"""A log that has so many pages is copied into the file."""
_RETRY: Final = 50
"""If a reader keeps it from being copied, it is tried again after so many pages."""
_ATTEMPTS: Final = 50
_PAUSE: Final = 0.005

_FORMAT: Final = 0xFF
_SETTLED: Final = 1
_MARK: Final = 0x7FFFFF
"""With one bit less than there is room for, a user_version is never negative."""
_NONCE: Final = 0xFFE
_TAG: Final = 12

_HEADER: Final = 32
_FRAME: Final = 24
_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_PAGE_1: Final = b"\0\0\0\1"
_VERSION_AT: Final = 60
"""Where page 1 has the user_version."""


def _read(fd: int, length: int, at: int) -> bytes:
    os.lseek(fd, at, os.SEEK_SET)
    return os.read(fd, length)


_pread: Final = getattr(os, "pread", _read)  # Windows has none


# -- marks --------------------------------------------------------------------------------------
def format_in(version: int) -> int:
    """Return the format that a user_version names."""
    return version & _FORMAT


def mark_in(version: int) -> int:
    """Return the mark in a user_version; 0: there is none."""
    return version >> 8 & _MARK


def marked(version: int, mark: int) -> int:
    """Return a user_version with that mark."""
    return mark << 8 | version & _FORMAT


def make_another(connection: apsw.Connection) -> None:
    """Make a copy of a store a file of its own: no log of the other one belongs to it."""
    version = connection.pragma("user_version")
    connection.pragma("user_version", marked(version, secrets.randbits(22) << 1 | _SETTLED))


def next_mark(mark: int) -> int:
    """Return a begun mark that follows another."""
    while True:
        made = secrets.randbits(11) << 1
        made |= _tag(mark, made) << _TAG
        if made and not _same(made, mark):
            return made


def _tag(mark: int, nonce: int) -> int:
    said = b"%d %d" % (mark >> 1, nonce)
    return int.from_bytes(blake3(said).digest(length=2), "big") >> 5


def _same(one: int, other: int) -> bool:
    return one >> 1 == other >> 1


def fits(file: int, logged: Sequence[int]) -> bool:
    """Tell whether a file and a log with these marks, in their order, belong together."""
    if not logged or any(_same(file, each) for each in logged):
        return True
    if any(each & _SETTLED for each in logged):
        return False
    return logged[0] >> _TAG == _tag(file, logged[0] & _NONCE)


# -- files --------------------------------------------------------------------------------------
class _Logged(NamedTuple):
    """A log: what tells it from the one before, and its marks."""

    salts: bytes = b""
    marks: tuple[int, ...] = ()


def _logged(fd: int) -> _Logged:
    """Read the marks of a log. Nothing is checked, and what is behind its last commit is read, too."""
    header = _pread(fd, _HEADER, 0)
    if len(header) < _HEADER or header[:4] not in _MAGIC:
        return _Logged()
    salts = header[16:24]
    size = _FRAME + (int.from_bytes(header[8:12], "big") or 1)
    marks: list[int] = []
    at = _HEADER
    while len(frame := _pread(fd, _FRAME, at)) == _FRAME and frame[8:16] == salts:
        if frame[:4] == _PAGE_1:
            _add(marks, _pread(fd, _VERSION_AT + 4, at + _FRAME))
        at += size
    return _Logged(salts, tuple(marks))


def _logged_for_sure(fd: int) -> _Logged:
    """Read the marks of what SQLite would replay: by checksums, up to the last commit."""
    header = _pread(fd, _HEADER, 0)
    if len(header) < _HEADER or header[:4] not in _MAGIC:
        return _Logged()
    order = ">" if header[3] & 1 else "<"
    check = _sums(order, header[:24], (0, 0))
    if check != struct.unpack(">2I", header[24:]):
        return _Logged()
    salts = header[16:24]
    size = int.from_bytes(header[8:12], "big")
    marks: list[int] = []
    committed: tuple[int, ...] = ()
    at = _HEADER
    while len(frame := _pread(fd, _FRAME + size, at)) == _FRAME + size and frame[8:16] == salts:
        check = _sums(order, frame[:8] + frame[_FRAME:], check)
        if check != struct.unpack(">2I", frame[16:_FRAME]):
            break
        if frame[:4] == _PAGE_1:
            _add(marks, frame[_FRAME:])
        if frame[4:8] != bytes(4):  # the last one of a transaction
            committed = tuple(marks)
        at += len(frame)
    return _Logged(salts, committed)


def _sums(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum of a log, gone on from what is before."""
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = one + first + two & 0xFFFFFFFF
        two = two + second + one & 0xFFFFFFFF
    return one, two


def _add(marks: list[int], page: bytes) -> None:
    """Add what page 1 says, unless it was said just before."""
    if len(page) < _VERSION_AT + 4:
        return  # the log ends in the middle of it
    found = mark_in(int.from_bytes(page[_VERSION_AT : _VERSION_AT + 4], "big"))
    if found and marks[-1:] != [found]:
        marks.append(found)


def _logged_beside(path: str, read: Callable[[int], _Logged] = _logged) -> _Logged:
    try:
        fd = os.open(path + "-wal", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:  # it is not there, or SQLite will say what is wrong
        return _Logged()
    try:
        return read(fd)
    except (OSError, struct.error):
        return _Logged()
    finally:
        os.close(fd)


def mark_of(path: str) -> int:
    """Return the mark of the file itself, whatever its log says. Raises apsw.Error."""
    name = f"{Path(path).as_uri()}?immutable=1"
    connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        return _seen_by(connection)
    finally:
        connection.close()


def _seen_by(connection: apsw.Connection) -> int:
    return mark_in(connection.pragma("user_version"))


def belongs(path: str, seen: apsw.Connection | None = None) -> bool:
    """Tell whether the log beside a file belongs to it. Others may be writing: then it does.

    If there is no log, the file is to have the mark that a connection sees, which remembers what it has read.
    """
    for _ in range(_ATTEMPTS):
        logged = _logged_beside(path)
        marks = logged.marks or (() if seen is None else (_seen_by(seen),))
        if not marks:
            return True
        try:
            found = mark_of(path)
        except apsw.CorruptError:
            return True  # half of the log was copied into it, perhaps: SQLite will say
        if fits(found, marks):
            return True
        sure = _logged_beside(path, _logged_for_sure)  # what a power cut has left need not be what was written
        if logged.marks and fits(found, sure.marks):
            return True
        if _logged_beside(path) == logged:  # so all of it is of one moment
            return False
        time.sleep(_PAUSE)
    return True  # somebody who writes that much knows the file


def refuse_foreign_log(path: str) -> None:
    """Raise `Conflict` if the log beside a file, or the journal, is one of another file."""
    if not belongs(path):
        raise Conflict(_foreign(path, "-wal"), code="conflict.log")


def refuse_foreign_journal(path: str) -> None:
    """Raise `Conflict` if the journal beside a store was left when another one was being made: it would empty it."""
    try:
        with Path(path + "-journal").open("rb") as journal:
            head = journal.read(20)
    except OSError:
        return
    if head[:8] == _JOURNAL_MAGIC and head[16:20] == bytes(4):
        raise Conflict(_foreign(path, "-journal"), code="conflict.log")


def _foreign(path: str, ending: str) -> str:
    return (
        f"{path}: is not the file that {path}{ending} belongs to, which SQLite would replay over it: perhaps it was "
        "copied over a store that was not closed. To go back to a backup, say `backtrail restore-backup`; to use the "
        f"file as it is, move {path}{ending} away while no process has the store open"
    )


# -- the log of a connection ----------------------------------------------------------------------
class Log:
    """The log that a connection writes: marked, and copied into the file when it is long."""

    def __init__(self, connection: apsw.Connection, path: str, *, pages: int = PAGES) -> None:
        self._path = path
        self._pages = pages
        self._fd = -1
        self._salts = b""
        """Of the log that is known to have a settled mark."""
        self._next = 0
        """From so many pages on it is tried again to settle a mark, if a reader kept the log from being copied."""
        self._seen = 0
        """Pages of the log after the last commit."""
        self._busy = False
        self.replaced = False
        """Whether another file was put in the place of the one that is open."""
        connection.set_wal_hook(self._committed)
        # Whatever ends this connection but `close` leaves the file alone: it may be another one by then.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def prepare(self, connection: apsw.Connection) -> None:
        """See to it that the log has a mark, before something is written. No transaction is open.

        If another process has begun another log since, `_committed` marks that one.
        """
        if self._salts or self._next or self._busy:
            return
        with suppress(apsw.Error):  # if the disk fails, so will what is to be written
            now = self._logged()
            if any(mark & _SETTLED for mark in now.marks):
                self._salts = now.salts
            else:
                self._settle(connection)

    def _is_marked(self) -> bool:
        """Tell whether the log is still the one that is known to have a settled mark."""
        try:
            return bool(self._salts) and _pread(self._fd, 8, 16) == self._salts
        except OSError:  # the disk fails: so will what is to be written
            return False

    def forget(self) -> None:
        """Mark the log again before the next write: it was emptied."""
        self._salts = b""

    def close(self, connection: apsw.Connection) -> None:
        """Leave the file alone if it is another one now."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        if self.is_same_file(connection):
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def _committed(self, connection: apsw.Connection, _: str, pages: int) -> int:
        """Look at the log behind each commit, before it is acknowledged: SQLite may have begun another one."""
        if self._busy:
            return 0
        if pages < self._seen:  # SQLite has begun another log
            self._next = 0
        self._seen = pages
        due = max(self._next, self._pages if self._is_marked() else 0)
        if pages >= due:
            try:
                self._settle(connection)
            except apsw.Error:
                self._salts = b""
                self._next = pages + max(_RETRY, pages // 4)
        return 0

    def _settle(self, connection: apsw.Connection) -> None:
        """Give the log another mark, and copy it into the file."""
        self._busy = True
        try:
            if not self.is_same_file(connection):
                return
            self._salts = b""
            begun = self._move(connection, None)
            kept, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if kept == copied and self._move(connection, begun) == begun:
                self._salts = self._logged().salts
            self._next = 0 if self._salts else self._seen + max(_RETRY, self._seen // 4)
        finally:
            self._busy = False

    def is_same_file(self, connection: apsw.Connection) -> bool:
        """Tell whether the file has a mark that the connection sees, or that its log has; else it was replaced."""
        with suppress(apsw.Error):  # of a disk that fails, nothing can be told
            same = _same(mark_of(self._path), _seen_by(connection)) or belongs(self._path, connection)
            self.replaced = self.replaced or not same
        return not self.replaced

    def _move(self, connection: apsw.Connection, begun: int | None) -> int:
        """Begin another mark, unless there is one that is not settled yet; or settle the one that was begun.

        Returns which one it is, as it was begun.
        """
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.pragma("user_version")
            now = mark = mark_in(version)
            if begun is None and (mark & _SETTLED or not mark):
                mark = next_mark(mark)
            elif now == begun:
                mark |= _SETTLED
            if mark != now:
                connection.pragma("user_version", marked(version, mark))
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise
        return mark & ~_SETTLED

    def _logged(self) -> _Logged:
        try:
            if self._fd < 0:
                self._fd = os.open(self._path + "-wal", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            return _logged(self._fd)
        except (OSError, struct.error):
            return _Logged()

    def __del__(self) -> None:
        """Close what was opened."""
        if self._fd >= 0:
            os.close(self._fd)
