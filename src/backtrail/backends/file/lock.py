"""The lock of a file store: one lock among the threads of a process, and one among processes, on a file.

A thread that needs both takes the lock among processes first, so that other threads can read while it waits.

The lock file contains the end of the log, published by the last writer. All frames up to it are as durable as their
writers asked for, so readers need no lock among processes. It also contains the last frame that was on disk then, so
the next writer need not sync it again. A log can be read without this information, too.

A forked child shares its parent's lock among processes. It closes that file without unlocking it, and opens its own. A
fork waits for running calls, so that the child's memory is consistent. It does not wait for calls that themselves wait
for another process.
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


class End(NamedTuple):
    """The end of a log: the file, the offset, the last frame; and the last frame that was on disk, 0 if unknown."""

    file: int
    at: int
    number: int
    synced: int = 0


class Lock:
    """The lock of one store. `after_fork` is called in a forked child."""

    def __init__(self, path: Path, wait: float, *, read_only: bool, after_fork: Callable[[], None]) -> None:
        if fcntl is None:
            raise Unavailable(
                "file stores need Unix file locks, which this system does not have: use sqlite:///path",
                code="unavailable.platform",
            )
        self._path = path
        self._name = str(path)
        self.wait = wait
        """Seconds to wait for another thread or process."""
        self._read_only = read_only
        self._after_fork = after_fork
        self._fd = -1
        self._inode = (0, 0)
        self._cached = b"", End(0, 0, 0)  # the bytes of the published end, and the end
        self._threads = threading.RLock()
        self.release = self._threads.release
        """Unlocks the threads' lock. This is the lock's own method in C, so Ctrl-C cannot interrupt its start."""
        self._processes = threading.RLock()  # its owner locks the file, or waits for that
        self._paused = False  # True during a fork
        forks.watch(self)

    # -- threads ----------------------------------------------------------------------------------
    def acquire(self) -> None:
        """Lock out the other threads of this process, until `release`."""
        if not self._threads.acquire(timeout=self.wait):
            raise self._busy("another thread has been using it")

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Lock out the other threads of this process."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    # -- processes --------------------------------------------------------------------------------
    @contextmanager
    def processes(self, *, shared: bool = False) -> Iterator[None]:
        """Lock out all other processes, or only their writers, and all other threads."""
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        with self.alone():
            try:
                while self._open():  # False: no process has written to this store yet
                    self._flock(mode)
                    if self._is_current():
                        break
                    with self._threads:
                        self.close()  # the path is another file now, which other processes lock
                self.acquire()
                try:
                    yield
                finally:
                    self.release()
            finally:  # not in a function, because Ctrl-C could interrupt its start
                if self._fd >= 0:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads of this process from taking the lock among processes."""
        if not self._processes.acquire(timeout=self.wait):
            raise self._busy("another thread has been writing")
        try:
            yield
        finally:
            self._processes.release()

    @contextmanager
    def if_idle(self) -> Iterator[bool]:
        """Lock out the writers of all processes and yield True; if a process is writing, yield False.

        The caller has locked the threads.
        """
        if not self._processes.acquire(blocking=False):
            yield False
            return
        try:
            yield self._open() and self._try_flock(fcntl.LOCK_SH)
        finally:
            try:
                if self._fd >= 0:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            finally:
                self._processes.release()

    def _flock(self, mode: int) -> None:
        pause, deadline = _FIRST_PAUSE, 0.0
        while not self._try_flock(mode):
            deadline = deadline or time.monotonic() + self.wait
            if time.monotonic() > deadline:
                raise self._busy("another process has been writing")
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _try_flock(self, mode: int) -> bool:
        try:
            fcntl.flock(self._fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise translated(error, self._path) from error
        return True

    def _busy(self, reason: str) -> Unavailable:
        text = f"{self._path.parent}: {reason} for {self.wait:g} s: try again"
        return Unavailable(text, code="unavailable.locked")

    # -- the end of the log -----------------------------------------------------------------------
    def publish(self, end: End) -> None:
        """Write the end of the log to the lock file. The caller has locked out all other writers."""
        try:
            try:
                write_at(self._fd, 0, end_bytes(end))
            except OSError:
                os.ftruncate(self._fd, 0)  # without a published end, readers take the lock
        except OSError as error:
            raise CommitUnknown(
                f"{self._path}: {error}: other processes may not see the write: read again before you repeat it",
                code="commit_unknown.io",
            ) from error

    def published(self) -> End | None:
        """Return the published end of the log, None if it cannot be read. The caller has locked the threads."""
        if not self._open() or os.fstat(self._fd).st_nlink == 0:
            return None
        data = os.pread(self._fd, _END_BYTES + _SYNCED.size + _CRC.size, 0)
        if data == self._cached[0] and data:
            return self._cached[1]
        if len(data) < _END_BYTES or data[_END.size : _END_BYTES] != _crc(data[: _END.size]):
            return None
        end = End(*_END.unpack_from(data))
        checked, check = data[: -_CRC.size], data[-_CRC.size :]
        if len(data) == _END_BYTES + _SYNCED.size + _CRC.size and check == _crc(checked):
            end = end._replace(synced=_SYNCED.unpack_from(data, _END_BYTES)[0])
        self._cached = data, end
        return end

    # -- the file ---------------------------------------------------------------------------------
    def _open(self) -> bool:
        if self._fd >= 0:
            return True
        with self._threads:
            try:
                if self._fd < 0:
                    fd = os.open(self._path, os.O_RDONLY) if self._read_only else created(self._path, os.O_RDWR)
                    self._inode = inode(os.fstat(fd))
                    self._fd = fd
            except FileNotFoundError as error:
                if self._read_only:
                    return False
                text = f"{self._path.parent}: the store was removed while it was open"
                raise NotFound(text, code="not_found.store") from error
            except OSError as error:
                raise translated(error, self._path) from error
        return True

    def _is_current(self) -> bool:
        """Tell whether the path of the lock file still names the open file."""
        try:
            return inode(os.stat(self._name)) == self._inode  # noqa: PTH116 - every write does it
        except FileNotFoundError:
            return False
        except OSError as error:
            raise translated(error, self._path) from error

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the file of a store that is dropped without being closed."""
        with suppress(Exception):
            self.close()

    # -- forks ------------------------------------------------------------------------------------
    def pause(self) -> None:
        """Wait for running calls, and let no other call begin."""
        self._paused = self._threads.acquire(timeout=2 * self.wait + 1)

    def resume(self) -> None:
        """End a pause: let other calls begin again."""
        if self._paused:
            self._paused = False
            self._threads.release()

    def resume_in_child(self) -> None:
        """Let calls begin again in the child, without the parent's lock."""
        if not self._paused:  # a thread of the parent had the lock
            self._threads = threading.RLock()
            self.release = self._threads.release
        if self._processes.acquire(blocking=False):
            self._processes.release()
        else:  # a thread of the parent had the lock
            self._processes = threading.RLock()
        self.close()
        self._after_fork()
        self.resume()


def end_bytes(end: End) -> bytes:
    """Return the content of a lock file that publishes an end."""
    file, at, number, synced = end
    data = _END.pack(file, at, number)
    data = b"".join((data, _crc(data), _SYNCED.pack(synced)))
    return data + _crc(data)


def inode(status: os.stat_result) -> tuple[int, int]:
    """Return the identity of a file: its device and inode."""
    return status.st_dev, status.st_ino


def _crc(data: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(data))
