"""One SQLite connection, used by one thread at a time, in the process that opened it.

This module handles locking, forks and the translation of SQLite's errors. It does not know the stored data.

After `os.fork()` the child has the parent's connection, but none of the parent's POSIX locks, and SQLite does not
notice: a connection that the child opens beside it believes that the process holds those locks already. Nothing
then keeps the parent from deleting the WAL when it closes, with the child's commits in it. So the child closes the
inherited connections before it opens its own, without a checkpoint and without reading the files. That is safe if no
call was running at the fork, which is why a fork waits for running calls.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar

import apsw

from backtrail.backends import forks
from backtrail.errors import Corrupt, Error, NotFound, Unavailable
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.sqlite.wal_mark import WriteAheadLog

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


class ImmutableFile:
    """A database file that is read with `immutable=1`, because SQLite may not create files beside it.

    That is safe while no process writes to it. A writer creates a log first, and changes the file only by copying the
    log into it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._opened = self._state()

    def has_changed(self) -> bool:
        """Tell whether another process has begun to write to the file, or has written to it."""
        return self._state() != self._opened

    def _state(self) -> tuple[object, ...]:
        with loading:
            from backtrail.backends.sqlite.wal_mark import mark_of  # noqa: PLC0415 - few stores are read so

        try:
            stat = os.stat(self._path)  # noqa: PTH116
            log = os.path.exists(self._path + "-wal")  # noqa: PTH110
            return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, log, mark_of(self._path)
        except (OSError, apsw.Error):
            return (time.monotonic(),)


class Database(NamedTuple):
    """An open database: the result of `schema.open_store`."""

    connection: apsw.Connection
    log: WriteAheadLog | None = None
    """The log that the connection writes."""
    immutable: ImmutableFile | None = None
    planted: tuple[object, ...] = ()
    """Triggers and views that backtrail did not make: they would run with each write."""


class SharedConnection:
    """The connection of a store, which threads take in turn by `with shared.use() as connection:`.

    A thread waits up to `wait` seconds for its turn. A thread that has the connection already, as when its signal
    handler uses the store in the middle of a call, gets `unavailable.locked`. An exception rolls back the transaction
    of the block. SQLite's exceptions leave the block as backtrail's.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_connect",
        "_connection",
        "_cursor",
        "_idle",
        "_immutable",
        "_lock",
        "_pid",
        "_snapshot",
        "_stamp",
        "_wait",
        "file",
        "log",
        "path",
        "planted",
    )

    def __init__(self, path: str, wait: float, connect: Callable[[], Database]) -> None:
        self.path = path
        self.file: tuple[int, int] | None = None
        """Device and inode of the file that was opened."""
        self.log: WriteAheadLog | None = None
        """The log that the connection writes."""
        self.planted: tuple[object, ...] = ()
        """Triggers and views that backtrail did not make. If there are any, `prepare_write` raises."""
        self._wait = wait
        self._connect = connect
        self._connection: apsw.Connection | None = None
        self._immutable: ImmutableFile | None = None
        self._stamp = (0, 0, 0, 0)
        """Device, inode, size and modification time of the file when it was last checked."""
        self._lock = threading.RLock()  # never taken twice by one thread: an RLock knows its owner
        self._snapshot = False
        """Whether a transaction stays open between two uses."""
        self._idle = False
        """Whether a fork is under way, and this object's lock is held for it."""
        self._closed = False
        self._pid = os.getpid()
        _close_inherited()
        forks.watch(self)
        with self.use():
            pass  # raises the error if the file cannot be opened

    # -- use ----------------------------------------------------------------------------------
    @contextmanager
    def use(self) -> Iterator[apsw.Connection]:
        """Give the connection to the calling thread until the block ends."""
        connection, lock = self._acquire(), self._lock  # a child forked in the block gets another lock
        try:
            yield connection
        except apsw.Error as error:
            raise self._failure(connection, error) from error
        except BaseException:
            self._undo(connection)
            raise
        else:
            if self._immutable is not None and self._immutable.has_changed():
                raise self._changed()
        finally:
            lock.release()

    def run(self, work: Callable[Concatenate[apsw.Connection, P], T], *values: P.args, **options: P.kwargs) -> T:
        """Return `work(connection, ...)`, which reads: what `use` does, at the cost of fewer calls."""
        connection, lock = self._acquire(), self._lock
        try:
            result = work(connection, *values, **options)
        except apsw.Error as error:
            raise self._failure(connection, error) from error
        except BaseException:
            self._undo(connection)
            raise
        else:
            if self._immutable is not None and self._immutable.has_changed():
                raise self._changed()
            return result
        finally:
            lock.release()

    def write(self, work: Callable[[apsw.Cursor, V], T], value: V) -> T:
        """Return `work(cursor, value)`, which writes. The cursor is the same each time: to make one takes longer."""
        connection, lock = self._acquire(), self._lock
        try:
            if self.planted or self.log is None or not self.log.is_prepared:
                self.prepare_write()
            return work(self._cursor, value)
        except apsw.Error as error:
            raise self._failure(connection, error) from error
        except BaseException:
            self._undo(connection)
            raise
        finally:
            lock.release()

    def _acquire(self) -> apsw.Connection:
        if self._pid != os.getpid():
            _close_inherited()
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition asks
            self._refuse_owner()
        try:
            if not self._lock.acquire(False):  # noqa: FBT003 - by position it takes half the time
                self._wait_for_turn()
            connection = self._connection
            if connection is None:
                return self._open()
            self._refuse_if_moved()
            if self._immutable is not None and self._immutable.has_changed():
                return self._reopen(connection)
            if connection.in_transaction and not self._snapshot:
                roll_back(connection)  # Ctrl-C kept the previous block from doing this
        except BaseException:
            if self._is_mine():
                self._lock.release()
            raise
        return connection

    def _undo(self, connection: apsw.Connection) -> None:
        """Roll back what a block had begun, unless a forked child has it from its parent."""
        if not self._snapshot and connection is self._connection:
            roll_back(connection)

    def _failure(self, connection: apsw.Connection, error: apsw.Error) -> Error:
        """Roll back the transaction of a failed block, and return the translated error."""
        self._undo(connection)
        if self._immutable is not None and self._immutable.has_changed():
            return self._changed()
        return translated(error, self.path)

    def _is_mine(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001

    def _refuse_owner(self) -> NoReturn:
        raise Unavailable(
            f"{self.path}: this thread is in the middle of another call, which a signal handler has interrupted: "
            "let the handler set a flag, and use the store when that call has ended",
            code="unavailable.locked",
        )

    def _wait_for_turn(self) -> None:
        if not self._lock.acquire(timeout=self._wait):
            raise Unavailable(
                f"{self.path}: another thread has been using it for {self._wait:g} s: try again",
                code="unavailable.locked",
            )

    def begin_snapshot(self) -> None:
        """Begin a read transaction that sees the present store, and stays open until the connection is closed."""
        with self.use() as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM meta").get  # noqa: B018 - the first read fixes the moment
            self._snapshot = True

    def close(self) -> None:
        """Close the connection; later uses raise `Unavailable`. Closing twice is allowed."""
        if self._pid != os.getpid():
            _close_inherited()
        if self._is_mine():
            self._refuse_owner()
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

    # -- refusals -----------------------------------------------------------------------------
    def refuse_if_closed(self) -> None:
        """Raise `Unavailable` if the connection is closed, without waiting for a turn."""
        if self._closed:
            raise Unavailable(f"{self.path}: this store is closed: open it again", code="unavailable.closed")

    def refuse_other(self, file: tuple[int, int] | None) -> None:
        """Raise `NotFound` if `file`, the device and inode at the path, is not the opened file."""
        if self.file is not None and file != self.file:
            now = "there is another store now: open it again" if file else "there is none now"
            raise NotFound(f"{self.path}: was moved or removed, and {now}", code="not_found.store")

    def _refuse_if_moved(self) -> None:
        """Raise `NotFound` if the path no longer leads to the opened file: a write to that file would be lost."""
        try:
            stat = os.stat(self.path)  # noqa: PTH116 - every read and write does it
        except (FileNotFoundError, NotADirectoryError):
            self.refuse_other(None)
        except OSError:
            return  # a process that gave up its rights may still use its open file
        else:
            stamp = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
            if stamp != self._stamp:  # a log was copied into it, or another file was put in its place or over it
                self.refuse_other(stamp[:2])
                self._stamp = stamp
                if self.log is not None and self._connection is not None:
                    self.log.is_same_file(self._connection)
        if self.log is not None and self.log.replaced:
            self.refuse_other((0, 0))

    def prepare_write(self) -> None:
        """Mark the log before a write, and raise `Corrupt` if there are planted triggers or views.

        The caller has the connection, and no transaction is open.
        """
        if self.planted:
            raise Corrupt(
                f"{self.path}: {self.planted[0]}, and would run with each save, so nothing is written: find out how "
                "it came there; verify(repair=True) removes it",
                code="corrupt.schema",
            )
        log = self.log
        if log is not None and not log.is_prepared and self._connection is not None:
            log.prepare(self._connection)
            if log.replaced:
                self.refuse_other((0, 0))

    # -- opening ------------------------------------------------------------------------------
    def _open(self) -> apsw.Connection:
        self.refuse_if_closed()
        if self.path in _abandoned:
            raise Unavailable(
                f"{self.path}: this process was forked in the middle of a call, so it cannot use the store: "
                "fork when nothing is being written",
                code="unavailable.forked",
            )
        stamp = _stamp_at(self.path)
        self.refuse_other(stamp and stamp[:2])  # a child process opens it again
        opened = self._connect()
        self._cursor = opened.connection.cursor()
        self._connection, self.log, self._immutable, self.planted = opened
        self._stamp = stamp or (0, 0, 0, 0)  # of before: a file put in its place since then is noticed
        self.file = self.file or ((stamp := _stamp_at(self.path)) and stamp[:2])
        return self._connection

    def _reopen(self, connection: apsw.Connection) -> apsw.Connection:
        """Open an immutable file again that has changed, and return the new connection."""
        if connection.in_transaction:  # a snapshot must not see two versions
            raise self._changed()
        self._connection = None
        connection.close()
        return self._open()

    def _changed(self) -> Unavailable:
        return Unavailable(
            f"{self.path}: was written to while it was read, and this process may make no files beside it, which "
            "SQLite needs to keep the two apart: try again, or let it write to the directory",
            code="unavailable.locked",
        )

    # -- forks --------------------------------------------------------------------------------
    def pause(self) -> None:
        """Wait for running calls, and let no other begin."""
        self._idle = not self._is_mine() and self._lock.acquire(timeout=2 * self._wait + 1)

    def resume(self) -> None:
        """Let calls begin again."""
        if self._idle:
            self._idle = False
            self._lock.release()

    def resume_in_child(self) -> None:
        """Let calls begin again in the child. The parent's connection is closed later, by `close_inherited`."""
        self._pid = 0  # never equal to the pid of this process, even if pids are reused
        if not self._idle and (self._is_mine() or not self._lock.acquire(blocking=False)):
            self._abandon()
            return
        self._idle = False
        if self._connection is not None:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._lock.release()

    def _abandon(self) -> None:
        """Forget a connection that was in use when this process was forked.

        Closing it would roll back, which would affect the parent's transaction. So it is never closed, not even when
        the interpreter ends, and this process opens no other connection to the file.
        """
        if self._connection is not None:  # else the process was forked while it opened the store
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._cursor))  # it refers to its connection
        self._connection = self.log = None
        self._lock = threading.RLock()
        _abandoned.add(self.path)

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._connection is not None

    def close_inherited(self, pid: int) -> None:
        """Close the connection if a parent process opened it; `pid` is this process."""
        if self._pid == pid:
            return
        self.resume_in_child()  # again, in case the fork was not by Python, and called no hooks
        connection, self._connection, self.log = self._connection, None, None
        if connection is not None:
            connection.close()
        self._pid = pid


def is_open(path: str) -> bool:
    """Tell whether this process has an open connection to a file."""
    with forks.watched(SharedConnection) as opened:
        return any(shared.path == path and shared.is_open for shared in opened)


def _stamp_at(path: str) -> tuple[int, int, int, int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


# Files whose connection was in use when this process was forked off.
_abandoned: set[str] = set()


def _close_inherited() -> None:
    """Close all connections that a parent process had opened: connections to one file share their locks."""
    with forks.watched(SharedConnection) as opened:
        pid = os.getpid()
        for shared in opened:
            shared.close_inherited(pid)


def roll_back(connection: apsw.Connection) -> None:
    """End a transaction, if there is one, without its changes."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except apsw.Error:
        pass  # SQLite has rolled back by itself, or will when the connection is closed


@contextmanager
def savepoint(connection: apsw.Connection) -> Iterator[None]:
    """Make the block a savepoint of the open transaction: an exception rolls back the block, and nothing else."""
    connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        with suppress(apsw.Error):  # keep the error of the block; SQLite may have rolled back everything already
            connection.execute("ROLLBACK TO part")
            connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")


_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.004


def wait_for_others(connection: apsw.Connection, seconds: float) -> None:
    """Make a connection wait up to `seconds` for the file locks of other connections, with short pauses.

    SQLite's own busy timeout tries only every 100 ms after a while: a process that writes often, with short pauses,
    would keep all others out for long.
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


# The backtrail errors for SQLite's errors; the first match counts.
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
    """Return the backtrail error for an error of SQLite."""
    _, kind, code, advice = next(meaning for meaning in _MEANINGS if isinstance(error, meaning[0]))
    if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE:  # there was no room for the WAL's index
        code, advice = "unavailable.full", "free some space and try again"
    reason = str(error)
    if reason == "not an error":  # SQLite's text where it has none of its own, as for a backup
        reason = "the disk is full" if code == "unavailable.full" else "SQLite failed"
    return kind(f"{path}: {reason}: {advice}", code=code)


@contextmanager
def one_view(connection: apsw.Connection) -> Iterator[None]:
    """Make all reads of the block see the same version of the store."""
    alone = not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    yield
    if alone:
        connection.execute("COMMIT")
