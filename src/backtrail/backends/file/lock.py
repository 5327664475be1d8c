"""Turns: of the threads of a process by a lock, of processes by another, on a file.

Whoever needs both has the one on the file first: while it waits there for other processes, the threads beside it read.

The file holds the end of the log as whoever wrote last has left it. Up to there all is as durable as was asked for, so
others may read it without a turn: nobody who reads waits for one who writes. It also says up to which frame all was on
disk then, which is so for ever: whoever writes next need not make sure of it. The log can do without it.

A forked child shares its parent's lock on the file: it closes that file, without unlocking it, and opens its own. A
fork waits for the calls that are under way, so that what the child has in memory is whole. It does not wait for those
that wait for another process themselves.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.backends import forks
from backtrail.backends.file.disk import created, fcntl, translated, write_at
from backtrail.errors import CommitUnknown, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_END: Final = struct.Struct(">QQQ")
_CRC: Final = struct.Struct(">I")
_SYNCED: Final = struct.Struct(">Q")
_END_BYTES: Final = _END.size + _CRC.size
_FIRST_PAUSE: Final = 0.0002
_LONGEST_PAUSE: Final = 0.004
_SOON: Final = 0.01


class End(NamedTuple):
    """Where the log ended: in which file, where, with which frame; and the last frame that was on disk, if known."""

    file: int
    at: int
    number: int
    synced: int = 0


class Turns:
    """The lock of one store, as one backend has it.

    `forked` is called in a child, before anything else is; `within` when a thread has its turn that wants it, to refuse
    that if it is in the middle of a call: else Ctrl-C came when the turn was to be given back.
    """

    def __init__(
        self, path: Path, wait: float, *, read_only: bool, forked: Callable[[], None], within: Callable[[], None]
    ) -> None:
        if fcntl is None:
            raise Unavailable(
                "a store in files needs the file locks of Unix, which this system has not: use sqlite:///path",
                code="unavailable.platform",
            )
        self._path = path
        self._wait = wait
        self._read_only = read_only
        self._forked = forked
        self._within = within
        self._fd = -1
        self._inode = (0, 0)
        self._read = b"", End(0, 0, 0)  # what was last read, and what it means
        self._lock = threading.RLock()
        self.give = self._lock.release
        """Let the next one have its turn. It is the lock's own, in C: Ctrl-C cannot come before it is done."""
        self._locking = threading.RLock()  # had by the thread that has the lock on the file, or waits for it
        self._idle = False  # while a fork is under way: no call is, and none will begin
        forks.watch(self)

    # -- threads ----------------------------------------------------------------------------------
    def take(self) -> None:
        """Wait for one's turn among the threads of this process. It may be taken several times."""
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            self._within()
        if not _acquired(self._lock, self._wait):
            raise self._locked("another thread has been using it")

    def took(self) -> bool:
        """Take one's turn if it can be had soon, and tell whether it was."""
        return _acquired(self._lock, min(_SOON, self._wait))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have one's turn among the threads."""
        self.take()
        try:
            yield
        finally:
            self.give()

    # -- processes --------------------------------------------------------------------------------
    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads from locking the file."""
        if not _acquired(self._locking, self._wait):
            raise self._locked("another thread has been writing")
        try:
            yield
        finally:
            self._locking.release()

    def lock(self, *, shared: bool = False) -> None:
        """Keep all others out, or only those who write, until `unlock`. Its caller has not got a turn yet."""
        for each in (self._lock, self._locking):
            if each._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
                self._within()
            while each._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - it was to be given back
                each.release()
        if not _acquired(self._locking, self._wait):
            raise self._locked("another thread has been writing")
        try:
            while self._open():  # else nobody has ever written here who would lock
                self._flock(fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
                if self._is_there():
                    break
                with self._lock:
                    self.close()  # that was not the one which others lock
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Let others in."""
        try:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._locking.release()

    def give_what_is_left(self) -> None:
        """Let others have their turn, and in, if Ctrl-C came before that was done."""
        while self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            self._lock.release()
        if self._locking._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            self.unlock()

    @contextmanager
    def kept_quiet(self) -> Iterator[bool]:
        """Keep out those who write, unless somebody does: tell whether nobody does. Its caller has a turn."""
        if self._locking._is_owned() or not self._locking.acquire(blocking=False):  # type: ignore[attr-defined]  # noqa: SLF001
            yield False
            return
        try:
            yield self._open() and self._flocked(fcntl.LOCK_SH)
        finally:
            self.unlock()

    def publish(self, end: End) -> None:
        """Say where the log ends now. Its caller has locked all others out."""
        try:
            try:
                write_at(self._fd, 0, end_bytes(end))
            except OSError:
                os.ftruncate(self._fd, 0)  # then nobody reads without a turn
        except OSError as error:
            raise CommitUnknown(
                f"{self._path}: {error}: others may not see what was written: read again before you repeat it",
                code="commit_unknown.io",
            ) from error

    def published(self) -> End | None:
        """Return where the log ended when somebody last said so; None if that cannot be read. Its caller has a turn."""
        if not self._open() or os.fstat(self._fd).st_nlink == 0:
            return None
        data = os.pread(self._fd, _END_BYTES + _SYNCED.size + _CRC.size, 0)
        if data == self._read[0] and data:
            return self._read[1]
        if len(data) < _END_BYTES or data[_END.size : _END_BYTES] != _crc(data[: _END.size]):
            return None
        end = End(*_END.unpack_from(data))
        known, check = data[: -_CRC.size], data[-_CRC.size :]
        if len(data) == _END_BYTES + _SYNCED.size + _CRC.size and check == _crc(known):
            end = end._replace(synced=_SYNCED.unpack_from(data, _END_BYTES)[0])
        self._read = data, end
        return end

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Do so for a store that is dropped without being closed."""
        with suppress(Exception):
            self.close()

    def _open(self) -> bool:
        if self._fd >= 0:
            return True
        with self._lock:
            try:
                if self._fd < 0:
                    fd = self._opened()
                    self._inode = inode(os.fstat(fd))
                    self._fd = fd
            except FileNotFoundError as error:
                if self._read_only:
                    return False
                text = f"{self._path.parent}: there is no such store any more"
                raise NotFound(text, code="not_found.store") from error
            except OSError as error:
                raise translated(error, self._path) from error
        return True

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDONLY) if self._read_only else created(self._path, os.O_RDWR)

    def _is_there(self) -> bool:
        """Tell whether the file that is open is still the one of that name."""
        try:
            return inode(self._path.stat()) == self._inode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise translated(error, self._path) from error

    def _flock(self, how: int) -> None:
        pause, end = _FIRST_PAUSE, 0.0
        while True:
            if self._flocked(how):
                return
            end = end or time.monotonic() + self._wait
            if time.monotonic() > end:
                raise self._locked("another process has been writing")
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _flocked(self, how: int) -> bool:
        """Lock the file if that can be done at once, and tell whether it was."""
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise translated(error, self._path) from error
        return True

    def _locked(self, why: str) -> Unavailable:
        text = f"{self._path.parent}: {why} for {self._wait:g} s: try again"
        return Unavailable(text, code="unavailable.locked")

    # -- forks ------------------------------------------------------------------------------------
    def pause(self) -> None:
        """Wait for the calls that are under way."""
        self._idle = self._lock.acquire(timeout=2 * self._wait + 1)

    def resume(self) -> None:
        """Let others begin again."""
        if self._idle:
            self._idle = False
            self._lock.release()

    def resume_in_child(self) -> None:
        """Let go of what is the parent's."""
        if not self._idle:  # a thread has it that this process has not got
            self._lock = threading.RLock()
            self.give = self._lock.release
        if self._locking.acquire(blocking=False):
            self._locking.release()
        else:  # so is this one
            self._locking = threading.RLock()
        self.close()
        self._forked()
        self.resume()


def _acquired(lock: threading.RLock, seconds: float) -> bool:
    """Have a lock; if Ctrl-C comes just behind, do not have it."""
    mine = lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        return lock.acquire(timeout=seconds)
    except BaseException:
        if not mine and lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            lock.release()
        raise


def end_bytes(end: End) -> bytes:
    """Return what the lock file says of an end."""
    file, at, number, synced = end
    data = _END.pack(file, at, number)
    data = b"".join((data, _crc(data), _SYNCED.pack(synced)))
    return data + _crc(data)


def inode(found: os.stat_result) -> tuple[int, int]:
    """Return what a file is, whatever its name."""
    return found.st_dev, found.st_ino


def _crc(data: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(data))
