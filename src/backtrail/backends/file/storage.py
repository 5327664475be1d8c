"""The storage of a file store: tables in memory, which processes share through a log.

A write is checked against the tables, appended to the log as one frame, synced, and published: one lock, one fsync, one
commit point. Before each call, the storage applies the frames of other processes to its tables. Readers do not wait for
other processes, because the log is known to be good up to the published end. A writer locks out other processes, and
reads only the tail of the log while it has the lock.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from backtrail.backends.file import directory
from backtrail.backends.file.disk import STORE, translated
from backtrail.backends.file.lock import End, Lock, inode
from backtrail.backends.file.log import Log
from backtrail.backends.tables.tables import Tables
from backtrail.errors import CommitUnknown, Corrupt, Error, NotFound, Unavailable
from backtrail.gc_pause import uncollected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from backtrail.backends.file.directory import LogGeneration
    from backtrail.backends.tables.changes import Body

_ATTEMPTS: Final = 3
_PAUSES: Final = (0.0, 0.002, 0.005, 0.01, 0.02)
_FAR: Final = 100
"""If the tables lack more frames than this, a writer reads them before it locks out other processes."""


class FileStorage:
    """The tables of a file store, with the log and the lock of its directory."""

    def __init__(self, path: Path, *, durable: bool, read_only: bool, busy_timeout: float) -> None:
        self.path = path
        self._name = str(path / STORE)
        self.tables = Tables()
        self.lock = Lock(path / directory.LOCK, busy_timeout, read_only=read_only, after_fork=self._after_fork)
        self.unlock_tables = self.lock.release
        """Ends `lock_tables`. It is the lock's own method in C, so Ctrl-C cannot interrupt its start."""
        self._durable = durable
        self._read_only = read_only
        self._closed = False
        self._opened = False
        """Whether `open` has returned. Before that, a repair by another process is not an error: read again."""
        self._log: Log | None = None
        """None if the tables must be read from the files: at first, and after an interrupt or a failure."""
        self._in_doubt = False
        """Whether the log may have an unpublished write of this process. Then reads need the lock."""
        self._generation: LogGeneration | None = None
        self._store = -1, (0, 0)
        """The descriptor and the inode of `backtrail.store`. While it is open, no other file can get its inode."""
        self._missing_end: End | None = None
        """A published end that the log does not reach."""

    @property
    def log(self) -> Log:
        """The log, positioned at the last frame that the tables have. The caller has locked the tables."""
        if self._log is None:
            raise AssertionError
        return self._log

    @property
    def generation(self) -> LogGeneration:
        """The generation of the tables. The caller has locked the tables."""
        if self._generation is None:
            raise AssertionError
        return self._generation

    # -- opened and closed --------------------------------------------------------------------------
    def open(self) -> None:
        """Open the store; create it if it does not exist, unless it is opened read-only."""
        try:
            if not directory.look(self.path):
                self._make()
            os.close(directory.read(self.path)[1])  # refuses a newer format before the lock file is changed
            if self._read_only:
                self.lock_tables(in_group=False)
                self.unlock_tables()
            else:
                with self.locked(even_damaged=True):
                    if self.log.fatal_damage is None:  # else the store can only be read and repaired
                        self.log.sync()
                        self.lock.publish(self.log.end())
                        directory.sweep(self.path, self.generation)
        except BaseException:
            self._let_go()
            self.lock.close()
            raise
        self._opened = True

    def _make(self) -> None:
        if self._read_only:
            raise NotFound(f"{self.path}: this store does not exist", code="not_found.store")
        directory.make_directory(self.path)
        with self.lock.processes():
            if not directory.look(self.path):  # else another process has made it
                directory.make(self.path)

    def close(self) -> None:
        """Sync the frames of a relaxed writer, and close all files."""
        if self._closed:
            return
        with suppress(Error, OSError):
            self._leave()
        with self.lock.alone(), self.lock.threads():
            self._closed = True
            self._let_go()
            self.lock.close()

    def _leave(self) -> None:
        with self.lock.threads():
            log = self._log
            if self._read_only or log is None or log.synced == log.number:
                return
            log.sync()
        with self.lock.processes():
            end = self.lock.published()
            if log is self._log and end is not None and end.number == log.number:  # no process has written since
                self.lock.publish(log.end())

    def _let_go(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()
        (fd, _), self._store = self._store, (-1, self._store[1])
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the files of a store that is dropped without being closed."""
        with suppress(Exception):
            self._let_go()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.path}: this store is closed: open it again", code="unavailable.closed")

    # -- reading ------------------------------------------------------------------------------------
    def lock_tables(self, *, in_group: bool) -> Tables:
        """Lock the tables until `unlock_tables`, and bring them up to date; in a group, leave them unchanged."""
        self.lock.acquire()
        try:
            self._refuse_if_closed()
            if in_group:
                return self.tables
            self.tables.rollback()  # undo a write that Ctrl-C interrupted
            if not self._is_behind() or self._read_published():
                return self.tables
        except BaseException:
            self.lock.release()
            raise
        self.lock.release()
        acquired = False
        try:
            with self.lock.processes(shared=True):
                self._refuse_if_closed()
                self._catch_up()
                self._publish_news()
                self.lock.acquire()
                acquired = True
        except BaseException:
            if acquired:  # Ctrl-C interrupted the end of the block
                self.lock.release()
            raise
        return self.tables

    def bytes_of(self, bodies: Sequence[Body]) -> list[bytes]:
        """Return the contents of payloads, chunks or texts. The caller must hold the lock of the tables."""
        try:
            return [body if isinstance(body, bytes) else self.log.body(body) for body in bodies]
        except OSError as error:
            raise translated(error, self.path) from error

    # -- writing ------------------------------------------------------------------------------------
    @contextmanager
    def write(self) -> Iterator[Tables]:
        """Lock the tables for changes, and append the changes to the log at the end of the block."""
        with self.locked():
            try:
                self.tables.begin()
                yield self.tables
                self._keep()
            finally:
                self.tables.rollback()

    @contextmanager
    def locked(self, *, even_damaged: bool = False) -> Iterator[None]:
        """Lock out all other processes and threads, and apply all frames of the log to the tables.

        Raise `Corrupt` if the log has lost frames whose changes are unknown, unless `even_damaged`.
        """
        if self._read_only and not self._closed:
            raise Unavailable(f"{self.path}: was opened read-only: open it for writing", code="unavailable.read_only")
        for at_once in (False, True):
            with self.lock.threads():  # do not lock out other processes while another thread reads the log
                self._refuse_if_closed()
            with self.lock.processes():
                self._refuse_if_closed()
                if self._catch_up(at_once=at_once):
                    damage = self.log.fatal_damage
                    if damage is None:
                        self.log.cut()
                    elif not even_damaged:
                        raise _fatal_damage_error(damage)
                    yield
                    return
            with self.lock.threads():
                self._refuse_if_closed()
                self._read_published()

    def _keep(self) -> None:
        """Append the changes of the tables to the log, and publish its new end."""
        changes = self.tables.changes
        if not changes:
            self.tables.end()
            return
        log, self._log, self._in_doubt = self.log, None, True
        try:
            placed = log.append(changes, durable=self._durable)
        except CommitUnknown:
            raise
        except Error:  # the frame is certainly not in the log
            self._log, self._in_doubt = log, False
            raise
        self.lock.publish(log.end())
        self.tables.settle(placed)
        self._log, self._in_doubt = log, False

    def _after_fork(self) -> None:
        """Undo the parent's unfinished write in a forked child."""
        self.unlock_tables = self.lock.release  # a new lock, if a thread of the parent had the old one
        self.tables.undo()

    # -- frames of other processes ------------------------------------------------------------------
    def _is_behind(self) -> bool:
        """Tell whether the log may have frames that the tables lack."""
        if self._log is None:
            return True
        try:
            return self._is_replaced() or self._new_end() is not None or self._log.has_news()
        except OSError as error:
            raise translated(error, self.path) from error

    def _new_end(self) -> End | None:
        """Return the published end if it is after the position of the log and not known to be missing; else None."""
        end = self.lock.published()
        if end is None or end == self._missing_end or (self._log is not None and end.number <= self._log.number):
            return None
        return end

    def _read_published(self) -> bool:
        """Read up to the published end, without the lock among processes; tell whether the tables are up to date."""
        for _ in range(_ATTEMPTS):
            try:
                end = self.lock.published()
                if end is None or end == self._missing_end or self._in_doubt:
                    return False
                first = self._log is None or self._is_replaced()
                if first:
                    self._load()
                log, self._log = self.log, None  # in case of an interrupt
                with uncollected():
                    log.read(self.tables, end, beyond=False)
                if self._is_replaced():
                    log.close()
                    continue
                if not log.has_reached(end):
                    log.close()
                    return False
                self._log = log
                if first or log.has_news():
                    self._look_beyond(_PAUSES if first else _PAUSES[:1])
                return True
            except OSError:  # gc may have removed a file
                self._log = None
        return False

    def _look_beyond(self, pauses: Sequence[float]) -> None:
        """Read the frames after the published end, unless a process is writing.

        There may be such frames after a power cut, if the log was synced and the lock file was not, or if a writer was
        killed between the two. A process that opens the store for writing publishes all frames. So while a process is
        writing, the published end is up to date.
        """
        for pause in pauses:
            time.sleep(pause)
            with self.lock.if_idle() as idle:
                if idle:
                    self._catch_up()
                    self._publish_news()
                    return

    def _publish_news(self) -> None:
        """Publish the frames that were read after the published end. The caller has locked out all writers."""
        log, end = self.log, self.lock.published()
        if log.fatal_damage is not None or (end is not None and end.number >= log.number):
            return
        with suppress(Error):  # the files may be read-only
            log.sync()  # a power cut must not remove frames that readers see
            if end is not None and not self._read_only:
                self.lock.publish(log.end())

    def _catch_up(self, *, at_once: bool = True) -> bool:
        """Apply the rest of the log to the tables and return True.

        Unless `at_once`, apply nothing and return False if more than `_FAR` frames are missing. The caller has locked
        out all writers.
        """
        self.tables.rollback()  # undo a write that Ctrl-C interrupted
        try:
            first = self._log is None or self._is_replaced()
            if first and not at_once:
                return False
            if first:
                self._load()
            log, end = self.log, self._new_end()
            if first or end is not None or log.has_news():
                if not at_once and end is not None and end.number > log.number + _FAR:
                    return False
                self._read_rest(log)
        except FileNotFoundError as error:
            raise Corrupt(
                f"{error.filename}: this file of the store is missing: put it back, or restore a backup",
                code="corrupt.store",
            ) from error
        except OSError as error:
            raise translated(error, self.path) from error
        return True

    def _read_rest(self, log: Log) -> None:
        end = self.lock.published()
        self._log = None  # in case of an interrupt
        with uncollected():
            log.read(self.tables, end)
        self._missing_end = end if end is not None and end.number > log.number else None
        self._log, self._in_doubt = log, False

    def _is_replaced(self) -> bool:
        """Tell whether another generation has begun, or the store was moved or removed.

        The link count of the open file is not enough: its directory may have been moved, or copied by hard links.
        """
        try:
            return inode(os.stat(self._name)) != self._store[1]  # noqa: PTH116 - every read does it
        except (FileNotFoundError, NotADirectoryError):
            return True

    def _load(self) -> None:
        """Open the log of the current generation at its beginning, with empty tables."""
        self._log = None  # in case of an interrupt
        self._use_generation(*self._present())
        self.tables = Tables()
        self._log = Log(self.path, self.generation, read_only=self._read_only)

    def adopt(self, log: Log, tables: Tables) -> None:
        """Use the log and the tables of a generation that this process has begun."""
        self._log = None  # in case of an interrupt
        self._use_generation(*directory.read(self.path))
        self._log, self.tables = log, tables

    def _present(self) -> tuple[LogGeneration, int]:
        """Return the current generation and the descriptor of `backtrail.store`; `NotFound` if the store was replaced.

        gc increments the generation. If the file has another inode but no later generation, a user has put another
        store or a copy there, and the tables of this process may not match it.
        """
        before, (_, known) = self._generation if self._opened else None, self._store
        now, fd = directory.read(self.path)
        replaced = inode(os.fstat(fd)) != known
        if before is not None and (before.uid != now.uid or (replaced and now.generation <= before.generation)):
            os.close(fd)
            what = "another store" if before.uid != now.uid else "another copy of it"
            raise NotFound(
                f"{self.path}: the store was replaced by {what}: open it again",
                code="not_found.store",
            )
        return now, fd

    def _use_generation(self, generation: LogGeneration, fd: int) -> None:
        self._let_go()
        self._generation, self._store = generation, (fd, inode(os.fstat(fd)))


def _fatal_damage_error(damage: str) -> Corrupt:
    return Corrupt(
        f"{damage}; the lost changes are unknown, so the store is read-only: verify(repair=True) gives up the lost "
        "data and keeps the rest; see docs/files.md",
        code="corrupt.store",
    )
