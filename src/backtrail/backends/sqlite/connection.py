"""One SQLite connection, used by one thread at a time, in the process that opened it, to one file, whatever its name.

It knows locking, forking and what SQLite's errors mean to a caller; it does not know what is stored.

After `os.fork()` the child has the parent's connection, but none of the parent's POSIX locks, and SQLite does not
notice: a connection that the child opens beside it believes that the process holds those locks already. Nothing
then keeps the parent from deleting the WAL when it closes, with the child's commits in it. So the child closes what
it inherited before it opens anything: without a checkpoint, without a look at the files. That is safe as long as
no call was under way when the fork happened, which is why a fork waits for the calls to end.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw

from backtrail.backends import forks
from backtrail.errors import Corrupt, Error, NotFound, Unavailable
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

    from backtrail.backends.sqlite.wal_mark import Log


class Still:
    """A file that is read as if it never changed, since SQLite may make no files beside it: as long as that is so.

    A process that writes to it makes a log first, and changes the file only by copying that into it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._was = self._now()

    def is_over(self) -> bool:
        """Tell whether somebody has begun to write to it, or has written to it."""
        return self._now() != self._was

    def _now(self) -> tuple[object, ...]:
        with loading:
            from backtrail.backends.sqlite.wal_mark import mark_of  # noqa: PLC0415 - few stores are read so

        try:
            found = os.stat(self._path)  # noqa: PTH116
            log = os.path.exists(self._path + "-wal")  # noqa: PTH110
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, log, mark_of(self._path)
        except (OSError, apsw.Error):
            return (time.monotonic(),)


class Opened(NamedTuple):
    """A connection that was opened."""

    connection: apsw.Connection
    log: Log | None = None
    """What it writes."""
    still: Still | None = None
    strange: tuple[object, ...] = ()
    """What would run with each write, and is not ours."""


class Guard:
    """`with guard as connection:` has the connection to itself; an exception rolls back what it had begun.

    Waits for the connection no longer than `wait` seconds. SQLite's exceptions come out as backtrail's.

    A thread may `keep` the connection over several such blocks, until it lets go of it; the blocks then leave its
    transaction as it is.

    Ctrl-C may come between any two steps, also those of `__enter__` and `__exit__`. If a block was left without its
    end, the thread that was in it ends it when it comes back: nothing of it runs any more.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_connect",
        "_connection",
        "_frame",
        "_idle",
        "_keeper",
        "_lock",
        "_pid",
        "_stamp",
        "_still",
        "_wait",
        "file",
        "log",
        "path",
        "strange",
    )

    def __init__(self, path: str, wait: float, connect: Callable[[], Opened]) -> None:
        self.path = path
        self.file: tuple[int, int] | None = None
        """What tells the file that was opened from all others."""
        self.log: Log | None = None
        """The log that the connection writes."""
        self._wait = wait
        self._connect = connect
        self._connection: apsw.Connection | None = None
        self._still: Still | None = None
        self.strange: tuple[object, ...] = ()
        """What would run with each write, and is not ours: nothing is written."""
        self._stamp = (0, 0)
        """The size of the file and when it last changed, when that was looked at."""
        self._lock = threading.RLock()  # because it knows whose it is
        self._frame: FrameType | None = None
        """Whose block it is that has the connection."""
        self._keeper = 0
        self._idle = False  # while a fork is under way: no call is, and none will begin
        self._closed = False
        self._pid = os.getpid()
        _part_from_parent()
        forks.watch(self)
        with self:
            pass  # whatever keeps it from being opened is to be known now

    def __enter__(self) -> apsw.Connection:
        if self._pid != os.getpid():
            _part_from_parent()
        if self._keeper and self._keeper == threading.get_ident() and self._connection is not None:
            return self._connection
        if self._frame is not None:
            self._end_what_was_left()
        try:
            if not self._lock.acquire(False):  # noqa: FBT003 - by position it takes half the time
                self._wait_for_turn()
            self._frame = sys._getframe(1)  # noqa: SLF001 - of whoever says `with`
            if self._connection is None:
                self._connection = self._opened()
            else:
                self._refuse_if_moved()
                if self._still is not None and self._still.is_over():
                    self._connection = self._opened_again(self._connection)
        except BaseException:
            if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - if that came just behind
                self._release()
            raise
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        still = self._still
        if not self._keeper:  # else it is the caller: nobody else gets here while the connection is kept
            if error is not None and self._connection is not None:
                roll_back(self._connection)
            self._frame = None
            self._lock.release()
        if still is not None and (error is None or isinstance(error, apsw.Error)) and still.is_over():
            raise self._changed() from error
        if isinstance(error, apsw.Error):
            raise translated(error, self.path) from error

    def keep(self) -> apsw.Connection:
        """Have the connection to oneself until `let_go`."""
        connection = self.__enter__()
        self._keeper = threading.get_ident()
        return connection

    def let_go(self) -> None:
        """End what `keep` began."""
        self._keeper = 0
        self._release()

    def _release(self) -> None:
        self._frame = None
        self._lock.release()

    def _end_what_was_left(self) -> None:
        """End a block of this thread that an interrupt has thrown out of it; `Unavailable` if it is still in one."""
        if not self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            return  # it is another thread's
        block, frame = self._frame, sys._getframe(1)  # noqa: SLF001
        while frame is not block and frame.f_back is not None:
            frame = frame.f_back
        if frame is block or block is None or block.f_code.co_flags & inspect.CO_GENERATOR:
            raise Unavailable(
                f"{self.path}: this thread is using it already: let that end first", code="unavailable.locked"
            )
        if self._connection is not None:
            roll_back(self._connection)
        self._release()

    def close(self) -> None:
        """Close the connection, after which every use is refused. Closing twice is allowed."""
        if self._pid != os.getpid():
            _part_from_parent()
        if self._frame is not None:
            self._end_what_was_left()
        self._wait_for_turn()
        try:
            connection, self._connection, self._closed = self._connection, None, True
            log, self.log = self.log, None
            if connection is not None:
                if log is not None:
                    log.close(connection)
                connection.close()
        except apsw.Error as error:
            raise translated(error, self.path) from error
        finally:
            self._lock.release()

    def _wait_for_turn(self) -> None:
        if not self._lock.acquire(timeout=self._wait):
            raise Unavailable(
                f"{self.path}: another thread has been using it for {self._wait:g} s: try again",
                code="unavailable.locked",
            )

    def refuse_if_closed(self) -> None:
        """Raise if it is closed, without waiting for a turn."""
        if self._closed:
            raise Unavailable(f"{self.path}: this store is closed: open it again", code="unavailable.closed")

    def refuse_other(self, file: tuple[int, int] | None) -> None:
        """Raise if the file that is there now is another one than the one that was opened."""
        if self.file is not None and file != self.file:
            now = "there is another store now: open it again" if file else "there is none now"
            raise NotFound(f"{self.path}: was moved or removed, and {now}", code="not_found.store")

    def _refuse_if_moved(self) -> None:
        """Raise if the file has another name now, or none: nobody would find what is written to it."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - whoever reads or writes does it
        except (FileNotFoundError, NotADirectoryError):
            self.refuse_other(None)
        except OSError:
            return  # of a process that gave up its rights, perhaps: it may still use what it has open
        else:
            self.refuse_other((found.st_dev, found.st_ino))
            stamp = found.st_size, found.st_mtime_ns
            if stamp != self._stamp:  # a log was copied into it, or another file over it
                self._stamp = stamp
                if self.log is not None and self._connection is not None:
                    self.log.is_same_file(self._connection)
        if self.log is not None and self.log.replaced:
            self.refuse_other((0, 0))

    def prepare(self) -> None:
        """Get ready to write; who calls has the connection, and no transaction."""
        if self.strange:
            raise Corrupt(
                f"{self.path}: {self.strange[0]}, and would run with each save, so nothing is written: find out who "
                "put it there; verify(repair=True) removes it",
                code="corrupt.schema",
            )
        if self.log is not None and self._connection is not None:
            self.log.prepare(self._connection)
            if self.log.replaced:
                self.refuse_other((0, 0))

    def _opened(self) -> apsw.Connection:
        self.refuse_if_closed()
        if self.path in _abandoned:
            raise Unavailable(
                f"{self.path}: this process was forked in the middle of a call, so it cannot use the store: "
                "fork when nothing is being written",
                code="unavailable.forked",
            )
        self.refuse_other(_file_at(self.path))  # a child process has to open it anew
        connection, self.log, self._still, self.strange = self._connect()
        self.file = self.file or _file_at(self.path)
        return connection

    def _opened_again(self, connection: apsw.Connection) -> apsw.Connection:
        """Return another connection to a file that was taken for one that does not change, and has."""
        if connection.in_transaction:  # which is to see one moment
            raise self._changed()
        self._connection = None
        connection.close()
        return self._opened()

    def _changed(self) -> Unavailable:
        return Unavailable(
            f"{self.path}: was written to while it was read, and this process may make no files beside it, which "
            "SQLite needs to keep the two apart: try again, or let it write to the directory",
            code="unavailable.locked",
        )

    # -- forks --------------------------------------------------------------------------------
    def pause(self) -> None:
        """Wait for the calls that are under way."""
        mine = self._lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 - it forks in the middle of a call
        self._idle = not mine and self._lock.acquire(timeout=2 * self._wait + 1)

    def resume(self) -> None:
        """Let others begin again."""
        if self._idle:
            self._idle = False
            self._lock.release()

    def resume_in_child(self) -> None:
        """Let go of what is the parent's."""
        self._pid = 0  # not this process, even if it has got the number of the one that opened it
        mine = self._lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001
        if not self._idle and (mine or not self._lock.acquire(blocking=False)):
            self._abandon()
            return
        self._idle = False
        if self._connection is not None:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._lock.release()

    def _abandon(self) -> None:
        """Forget a connection that was in use when this process was forked off.

        To close it would roll back, which reaches into the parent's transaction. So it is not even closed when the
        interpreter ends, and no other connection can be trusted beside it.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self._connection = self.log = None
        self._keeper = 0
        self._frame = None
        self._lock = threading.RLock()
        _abandoned.add(self.path)

    def _part(self, pid: int) -> None:
        """Give up the connection of a parent process."""
        self.resume_in_child()  # again, in case it was not forked by Python, and so without its hooks
        connection, self._connection, self.log = self._connection, None, None
        if connection is not None:
            connection.close()
        self._pid = pid


def is_open(path: str) -> bool:
    """Tell whether this process has a connection to a file."""
    with forks.watched(Guard) as guards:
        return any(guard.path == path and guard._connection is not None for guard in guards)  # noqa: SLF001


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Files whose connection was in use when this process was forked off.
_abandoned: set[str] = set()


def _part_from_parent() -> None:
    """Give up whatever a parent process had opened: all of it, since connections to one file share their locks."""
    with forks.watched(Guard) as guards:
        pid = os.getpid()
        for guard in guards:
            if guard._pid != pid:  # noqa: SLF001
                guard._part(pid)  # noqa: SLF001


def roll_back(connection: apsw.Connection) -> None:
    """End a transaction, if there is one, without its changes."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except apsw.Error:
        pass  # SQLite has rolled back by itself, or will when the connection is closed


@contextmanager
def savepoint(connection: apsw.Connection) -> Iterator[None]:
    """Make a block one part of the open transaction: an exception takes that part back, and nothing else."""
    connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        with suppress(apsw.Error):  # what went wrong in the block is to be known; SQLite may have rolled back all
            connection.execute("ROLLBACK TO part")
            connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")


_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.004


def wait_for_others(connection: apsw.Connection, seconds: float) -> None:
    """Have a connection wait so long for others who have the file locked, and look often whether they still do.

    SQLite's own way of waiting looks once in 100 ms after a while: whoever writes much, with short pauses, would keep
    all others out for long.
    """
    until = 0.0

    def wait(tried: int) -> bool:
        nonlocal until
        now = time.monotonic()
        if tried == 0:
            until = now + seconds
        if now >= until:
            return False
        time.sleep(min(_FIRST_PAUSE * 1.5 ** min(tried, 10), _LONGEST_PAUSE, until - now))
        return True

    connection.set_busy_handler(wait)


# What SQLite's errors mean to a caller: the first that fits.
_MEANINGS: tuple[tuple[type[apsw.Error], type[Error], str, str], ...] = (
    (apsw.BusyError, Unavailable, "unavailable.locked", "another process is writing: try again"),
    (apsw.LockedError, Unavailable, "unavailable.locked", "another process is writing: try again"),
    (apsw.FullError, Unavailable, "unavailable.full", "free some space and try again"),
    (apsw.IOError, Unavailable, "unavailable.io", "the disk or its file system fails: try again, or elsewhere"),
    (
        apsw.ReadOnlyError,
        Unavailable,
        "unavailable.read_only",
        "open it with read_only=True, or elsewhere",
    ),
    (apsw.CantOpenError, Unavailable, "unavailable.open", "check the permissions of the file and its directory"),
    (apsw.CorruptError, Corrupt, "corrupt.store", "the file is damaged: restore a backup"),
    (apsw.NotADBError, Corrupt, "corrupt.store", "the file is damaged: restore a backup"),
    (apsw.Error, Unavailable, "unavailable.sqlite", "SQLite refused"),
)


def translated(error: apsw.Error, path: str) -> Error:
    """Return backtrail's error for one of SQLite's."""
    _, kind, code, advice = next(meaning for meaning in _MEANINGS if isinstance(error, meaning[0]))
    if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE:  # there was no room for the WAL's index
        code, advice = "unavailable.full", "free some space and try again"
    reason = str(error)
    if reason == "not an error":  # SQLite says so where it has no words of its own, as of a backup
        reason = "the disk is full" if code == "unavailable.full" else "SQLite failed"
    return kind(f"{path}: {reason}: {advice}", code=code)


@contextmanager
def one_view(connection: apsw.Connection) -> Iterator[None]:
    """Make the reads of a block see one moment of the store."""
    alone = not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    yield
    if alone:
        connection.execute("COMMIT")
