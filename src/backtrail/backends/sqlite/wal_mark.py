"""The mark that ties a write-ahead log to its database file.

SQLite replays `agents.db-wal` over any file with the name `agents.db`. The salts in a log identify its generation, not
its database. So if a process is killed, and a user then copies a backup over `agents.db`, the next open replays the old
log into the backup. That undoes the restore, or mixes pages of two databases.

So the file and its log carry a *mark*: 23 bits of `PRAGMA user_version`, above the 8 bits of the format. SQLite
keeps `user_version` in page 1, at offset 60, so every frame of page 1 in the log has a copy. `refuse_foreign_log`
compares the mark of the file with those of the log before SQLite opens the log.

    bit 0        settled: 0 when the mark is begun, 1 when it is settled
    bits 1-11    a random nonce
    bits 12-22   a hash of the nonce and of the previous mark, which it follows

Each generation of the log gets a mark, in three steps:

    1. a transaction writes a begun mark into the log;
    2. a checkpoint copies the log into the file, which then has the begun mark, on disk;
    3. a transaction settles the mark. It is the first one of the log's next generation, which SQLite begins then.

So these always hold:

- a log with a settled mark belongs to a file that has this mark, begun or settled, or another mark of the log;
- a log with only begun marks belongs to a file that has one of them, or the mark that the first one follows;
- no write is acknowledged before its log has a settled mark, except if a reader prevents the checkpoint from
  completing. Then the three steps are tried again later.

A copy of the file from before the log began has another mark, and `Store.backup` gives each copy its own mark. Two
cases are not detected: a copy that another tool made while this log was written, and a log without a settled mark. The
check accepts these, because refusing a log that belongs to its file would lock users out.

Only SQLite opens the database file: closing another descriptor of it would drop the process's POSIX locks. The log has
no locks, so it is read like any file.
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
    from collections.abc import Sequence

PAGES: Final = 1000
"""The length of the log, in pages, at which it is copied into the file."""
_RETRY: Final = 50
"""If a reader prevented copying the log, the next attempt is after at least this many new pages."""
_ATTEMPTS: Final = 50
_PAUSE: Final = 0.005

_FORMAT: Final = 0xFF
_SETTLED: Final = 1
_MARK: Final = 0x7FFFFF
"""One bit stays unused, so that a user_version is never negative."""
_NONCE: Final = 0xFFE
_TAG: Final = 12

_HEADER: Final = 32
_FRAME: Final = 24
_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_PAGE_1: Final = b"\0\0\0\1"
_VERSION_AT: Final = 60
"""The offset of the user_version in page 1."""


def _read(fd: int, length: int, at: int) -> bytes:
    os.lseek(fd, at, os.SEEK_SET)
    return os.read(fd, length)


_pread: Final = getattr(os, "pread", _read)  # Windows has none


# -- marks --------------------------------------------------------------------------------------
def format_in(version: int) -> int:
    """Return the format number in a user_version."""
    return version & _FORMAT


def mark_in(version: int) -> int:
    """Return the mark in a user_version; 0: there is none."""
    return version >> 8 & _MARK


def marked(version: int, mark: int) -> int:
    """Return a user_version with the format of `version` and the given mark."""
    return mark << 8 | version & _FORMAT


def make_another(connection: apsw.Connection) -> None:
    """Give a copy of a store a new, settled mark, so that no log of the original belongs to it."""
    version = connection.pragma("user_version")
    connection.pragma("user_version", marked(version, secrets.randbits(22) << 1 | _SETTLED))


def next_mark(mark: int) -> int:
    """Return a new begun mark that follows the given mark."""
    while True:
        candidate = secrets.randbits(11) << 1
        candidate |= _tag(mark, candidate) << _TAG
        if candidate and not _same(candidate, mark):
            return candidate


def _tag(mark: int, nonce: int) -> int:
    text = b"%d %d" % (mark >> 1, nonce)
    return int.from_bytes(blake3(text).digest(length=2), "big") >> 5


def _same(one: int, other: int) -> bool:
    return one >> 1 == other >> 1


def fits(file: int, logged: Sequence[int]) -> bool:
    """Tell whether a file with the mark `file` and a log with the marks `logged`, in their order, belong together."""
    if not logged or any(_same(file, each) for each in logged):
        return True
    if any(each & _SETTLED for each in logged):
        return False
    return logged[0] >> _TAG == _tag(file, logged[0] & _NONCE)


# -- files --------------------------------------------------------------------------------------
class LogMarks(NamedTuple):
    """The marks of a log, in their order, and the salts of its generation."""

    salts: bytes = b""
    marks: tuple[int, ...] = ()


def _read_marks(fd: int, *, verify: bool = False) -> LogMarks:
    """Return the marks of a log. `verify` reads only frames that SQLite would replay: sound, up to the last commit."""
    header = _pread(fd, _HEADER, 0)
    if len(header) < _HEADER or header[:4] not in _MAGIC:
        return LogMarks()
    order = ">" if header[3] & 1 else "<"
    checksum = _checksum(order, header[:24], (0, 0))
    if verify and checksum != struct.unpack(">2I", header[24:]):
        return LogMarks()
    salts = header[16:24]
    page_size = int.from_bytes(header[8:12], "big") or 1
    read = _FRAME + (page_size if verify else 0)
    marks: list[int] = []
    committed = 0
    at = _HEADER
    while len(frame := _pread(fd, read, at)) == read and frame[8:16] == salts:
        if verify:
            checksum = _checksum(order, frame[:8] + frame[_FRAME:], checksum)
            if checksum != struct.unpack(">2I", frame[16:_FRAME]):
                break
        if frame[:4] == _PAGE_1:
            _add(marks, frame[_FRAME:] if verify else _pread(fd, _VERSION_AT + 4, at + _FRAME))
        if not verify or frame[4:8] != bytes(4):  # the last frame of a transaction has the size of the database
            committed = len(marks)
        at += _FRAME + page_size
    return LogMarks(salts, tuple(marks[:committed]))


def _checksum(order: str, data: bytes, checksum: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum of log data, continued from the checksum of the data before."""
    one, two = checksum
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = one + first + two & 0xFFFFFFFF
        two = two + second + one & 0xFFFFFFFF
    return one, two


def _add(marks: list[int], page: bytes) -> None:
    """Add the mark in a copy of page 1, unless it equals the last mark."""
    if len(page) < _VERSION_AT + 4:
        return  # the log ends inside the page
    mark = mark_in(int.from_bytes(page[_VERSION_AT : _VERSION_AT + 4], "big"))
    if mark and marks[-1:] != [mark]:
        marks.append(mark)


def _marks_beside(path: str, *, verify: bool = False) -> LogMarks:
    try:
        fd = os.open(path + "-wal", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:  # there is no log, or SQLite will report the error
        return LogMarks()
    try:
        return _read_marks(fd, verify=verify)
    except (OSError, struct.error):
        return LogMarks()
    finally:
        os.close(fd)


def mark_of(path: str) -> int:
    """Return the mark in the database file itself, without its log. Raises apsw.Error."""
    name = f"{Path(path).as_uri()}?immutable=1"
    connection = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        return _seen_by(connection)
    finally:
        connection.close()


def _seen_by(connection: apsw.Connection) -> int:
    return mark_in(connection.pragma("user_version"))


def belongs(path: str, connection: apsw.Connection | None = None) -> bool:
    """Tell whether the log next to a file belongs to it; True if constant writes make it impossible to find out.

    If there is no log, the file must have the mark that the connection sees, which may come from its page cache.
    """
    for _ in range(_ATTEMPTS):
        log = _marks_beside(path)
        marks = log.marks or (() if connection is None else (_seen_by(connection),))
        if not marks:
            return True
        try:
            mark = mark_of(path)
        except apsw.CorruptError:
            return True  # perhaps the log was copied into the file only in part: SQLite will report damage
        if fits(mark, marks):
            return True
        if log.marks and fits(mark, _marks_beside(path, verify=True).marks):  # ignore frames that a power cut left
            return True
        if _marks_beside(path) == log:  # the log did not change while the file was read
            return False
        time.sleep(_PAUSE)
    return True


def refuse_foreign_log(path: str) -> None:
    """Raise `Conflict` if the log beside a file belongs to another file."""
    if not belongs(path):
        raise Conflict(_foreign(path, "-wal"), code="conflict.log")


def refuse_foreign_journal(path: str) -> None:
    """Raise `Conflict` if the journal next to a store comes from another store: replaying it would empty the store."""
    try:
        with Path(path + "-journal").open("rb") as journal:
            head = journal.read(20)
    except OSError:
        return
    if head[:8] == _JOURNAL_MAGIC and head[16:20] == bytes(4):
        raise Conflict(_foreign(path, "-journal"), code="conflict.log")


def _foreign(path: str, ending: str) -> str:
    return (
        f"{path}: {path}{ending} belongs to another file, and SQLite would replay it into this one: perhaps this file "
        "was copied over a store that was not closed. To restore a backup, use `backtrail restore-backup`; to use this "
        f"file as it is, move {path}{ending} away while no process has the store open"
    )


# -- the log of a connection ----------------------------------------------------------------------
class WriteAheadLog:
    """The write-ahead log of a connection: marks it, and copies it into the file when it is long."""

    def __init__(self, connection: apsw.Connection, path: str, *, pages: int = PAGES) -> None:
        self._path = path
        self._pages = pages
        self._fd = -1
        self._salts = b""
        """The salts of the log that is known to have a settled mark."""
        self._next = 0
        """The length of the log, in pages, at which to try again, if a reader prevented copying the log."""
        self._seen = 0
        """The length of the log after the last commit, in pages."""
        self._busy = False
        self.replaced = False
        """Whether another file has replaced the open one."""
        connection.set_wal_hook(self._committed)
        # SQLite must not copy the log into the file by itself when it closes: the file may have been replaced.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def prepare(self, connection: apsw.Connection) -> None:
        """Mark the log before a write, unless it has a settled mark. No transaction may be open.

        If another process begins another log later, `_committed` marks that log.
        """
        if self.is_prepared:
            return
        with suppress(apsw.Error):  # if the disk fails, the write itself will raise
            log = self._marks()
            if any(mark & _SETTLED for mark in log.marks):
                self._salts = log.salts
            else:
                self._settle(connection)

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has nothing to do."""
        return bool(self._salts or self._next or self._busy)

    def _is_marked(self) -> bool:
        """Tell whether the log is still the one that is known to have a settled mark."""
        try:
            return self._salts != b"" and _pread(self._fd, 8, 16) == self._salts
        except OSError:  # if the disk fails, the write itself will raise
            return False

    def forget(self) -> None:
        """Forget the mark after the log was emptied, so that the next write marks it again."""
        self._salts = b""

    def close(self, connection: apsw.Connection) -> None:
        """Close the log's descriptor, and let SQLite copy the log into the file on close, unless it was replaced."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        if self.is_same_file(connection):
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def _committed(self, connection: apsw.Connection, _: str, pages: int) -> int:
        """A hook of SQLite after a commit, before it is acknowledged: mark the log if it is new or long."""
        if self._busy:
            return 0
        if pages < self._seen:  # SQLite has begun another log
            self._next = 0
        self._seen = pages
        if pages >= self._next and (pages >= self._pages or not self._is_marked()):
            try:
                self._settle(connection)
            except apsw.Error:
                self._salts = b""
                self._next = pages + max(_RETRY, pages // 4)
        return 0

    def _settle(self, connection: apsw.Connection) -> None:
        """Give the log a new mark by the three steps of the module docstring, which copy it into the file."""
        self._busy = True
        try:
            if not self.is_same_file(connection):
                return
            self._salts = b""
            begun = self._move(connection, None)
            total, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if total == copied and self._move(connection, begun) == begun:
                self._salts = self._marks().salts
            self._next = 0 if self._salts else self._seen + max(_RETRY, self._seen // 4)
        finally:
            self._busy = False

    def is_same_file(self, connection: apsw.Connection) -> bool:
        """Tell whether the file has the mark that the connection sees, or a mark of its log. If not, set `replaced`."""
        with suppress(apsw.Error):  # if the disk fails, nothing is known
            same = _same(mark_of(self._path), _seen_by(connection)) or belongs(self._path, connection)
            self.replaced = self.replaced or not same
        return not self.replaced

    def _move(self, connection: apsw.Connection, begun: int | None) -> int:
        """Begin a new mark, unless the current one is not settled yet; with `begun`, settle that mark.

        Return the current mark in its begun form.
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

    def _marks(self) -> LogMarks:
        try:
            if self._fd < 0:
                self._fd = os.open(self._path + "-wal", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            return _read_marks(self._fd)
        except (OSError, struct.error):
            return LogMarks()

    def __del__(self) -> None:
        """Close the log's descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
