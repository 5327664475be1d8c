"""A store in a directory of plain files: tables in memory, and a log of their changes on disk.

A write is checked on the tables, appended to the log as one frame, synced, and done: one lock, one fsync, one point at
which it counts. Other processes append to the same log: before anything is read or written, what they wrote is done on
these tables, too. With durability "full" a commit is on disk when it returns; "relaxed" leaves that to the system, and
a power cut may take the last commits, never one without those behind it.

`tables` are what is held, `file_log` is how it is kept, `file_directory` what is where, `file_lock` whose turn it is.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backtrail.backends import file_base as base
from backtrail.backends import file_directory as directory
from backtrail.backends import file_snapshot as snapshot
from backtrail.backends.file_disk import remove, translated
from backtrail.backends.file_frames import FILE_HEADER
from backtrail.backends.file_lock import End, Turns
from backtrail.backends.file_log import Log
from backtrail.backends.file_reading import Generation
from backtrail.backends.table_backend import TableBackend
from backtrail.backends.table_view import TableView
from backtrail.backends.tables import Tables
from backtrail.errors import CommitUnknown, Corrupt, Error, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.changes import Body, Change
    from backtrail.backends.port import Backend, Usage

_MAX_TIMEOUT: Final = 1_000_000.0
_ATTEMPTS: Final = 3
_FAR: Final = 100
"""Whoever is to read more frames than this before it writes does so before it keeps others out."""
_SNAPSHOT_FRAMES: Final = 2000
"""A snapshot is made when so many frames have to be read without one."""


class FileBackend(TableBackend):
    """The port on files. `busy_timeout` bounds, in seconds, the wait for another thread's or process's turn."""

    interval = 0.05

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "full",
        read_only: bool = False,
        busy_timeout: float = 10.0,
    ) -> None:
        super().__init__(Tables())
        if durability not in ("full", "relaxed"):
            raise Invalid(f"durability is {durability!r}: say 'full' or 'relaxed'", code="invalid.option")
        if not 0 <= busy_timeout <= _MAX_TIMEOUT:
            raise Invalid(f"busy_timeout is {busy_timeout!r}: say how many seconds to wait", code="invalid.option")
        name = os.fspath(path)
        if not name or "\0" in name:
            raise Invalid(f"{name!r} is not the name of a directory: name one", code="invalid.store")
        self.path = Path(os.path.realpath(name))
        self.read_only = read_only
        self._durable = durability == "full"
        self._closed = False
        self._pid = 0
        """The process whose turn it is, if something is being written."""
        self._generation: Generation | None = None
        self._store_fd = -1
        """The file that says which generation it is: it has no name any more when that is over."""
        self._log: Log | None = None
        self._whole = False
        """Whether the tables are what the log says. If not, they are read anew."""
        self._doubtful = False
        """Whether a write of this process may be there, or not: only whoever keeps others out can tell."""
        self._covered = 0
        """How many frames of those that the log has read or written are in a snapshot."""
        self._unreachable: End | None = None
        """An end that was published, and is not there."""
        self._turns = Turns(
            self.path / directory.LOCK, busy_timeout, read_only=read_only, forked=self._part_from_parent
        )
        try:
            self._open()
        except BaseException:
            self._let_go()
            self._turns.close()
            raise

    def _open(self) -> None:
        if not directory.look(self.path):
            if self.read_only:
                raise NotFound(f"{self.path}: there is no such store", code="not_found.store")
            directory.make_directory(self.path)
            with self._locked():
                if not directory.look(self.path):  # else somebody else was faster
                    directory.make(self.path)
        if self.read_only:
            with self._read():
                return
        os.close(directory.read(self.path)[1])  # what is newer is refused before its lock is touched
        self._take(blind=True)
        try:
            log = self._at()
            if log.blind is not None:
                return  # it can be read, and mended
            log.sync()
            self._turns.publish(log.end())
            directory.sweep(self.path, self._now_in())
        finally:
            self._give()
        self._snapshot()

    # -- whose turn it is -------------------------------------------------------------------------
    def _lock(self, *, shared: bool = False) -> None:
        """Keep other processes out, and other threads, until `_give`."""
        while True:
            self._refuse_if_closed()
            self._turns.lock(shared=shared)
            try:
                if self._turns.took():
                    return
            except BaseException:
                self._turns.unlock()
                raise
            self._turns.unlock()  # a thread may be loading: other processes need not wait for that
            with self._turns.taken():
                pass

    def _give(self) -> None:
        try:
            self._turns.give()
        finally:
            self._turns.unlock()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock()
        try:
            yield
        finally:
            self._give()

    def _take(self, *, blind: bool = False) -> None:
        self._refuse_if_read_only()
        if not self._taken(at_once=False, blind=blind):
            with self._turns.taken():
                self._refuse_if_closed()
                self._caught_up()
            self._taken(at_once=True, blind=blind)

    def _taken(self, *, at_once: bool, blind: bool) -> bool:
        """Have one's turn to write; but not if others would have to wait while much is read, unless it is at once."""
        self._lock()
        try:
            self._refuse_if_closed()
            log = self._catch_up(at_once=at_once)
            if log is not None:
                if not blind:
                    _refuse_if_blind(log)
                if log.blind is None:
                    log.cut()
                self._pid = os.getpid()
                return True
        except BaseException:
            self._give()
            raise
        self._give()
        return False

    @contextmanager
    def _read(self) -> Iterator[Tables]:
        self._turns.take()
        try:
            self._refuse_if_closed()
            behind = not self._tables.began and self._is_behind() and not self._caught_up()
            if not behind:
                yield self._tables
        finally:
            self._turns.give()
        if behind:
            with self._read_in_turn() as tables:
                yield tables

    @contextmanager
    def _read_in_turn(self) -> Iterator[Tables]:
        """Have the tables to oneself, to read, after keeping writers out for as long as the log was read."""
        self._lock(shared=True)
        try:
            try:
                self._refuse_if_closed()
                self._catch_up()
            finally:
                self._turns.unlock()
            yield self._tables
        finally:
            self._turns.give()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.path}: this store is closed: open it again", code="unavailable.closed")

    def _refuse_if_read_only(self) -> None:
        if self.read_only and not self._closed:
            raise Unavailable(f"{self.path}: was opened read-only: open it for writing", code="unavailable.read_only")

    def _part_from_parent(self) -> None:
        """Be a process of its own: what its parent was writing is not this one's to finish."""
        if self._tables.began:
            self._tables.undo()
            self._tables.end()
        group = self._grouped.group
        if group is not None and group.taken:
            group.lost = self._forked()

    def _forked(self) -> Unavailable:
        return Unavailable(
            f"{self.path}: this process was forked in the middle of a write, which is its parent's: begin it again",
            code="unavailable.forked",
        )

    # -- what others wrote ------------------------------------------------------------------------
    def _is_behind(self) -> bool:
        if self._log is None or not self._whole:
            return True
        try:
            if os.fstat(self._store_fd).st_nlink == 0:
                return True
            end = self._turns.published()
            if end is None or end == self._unreachable:
                return self._log.has_news()
            return end.number > self._log.number
        except OSError as error:
            raise translated(error, self.path) from error

    def _caught_up(self) -> bool:
        """Do what others wrote, without a turn, as far as it is known to be good; return whether that is all."""
        for _ in range(_ATTEMPTS):
            try:
                end = self._turns.published()
                if end is None or end == self._unreachable or self._doubtful:
                    return False
                if self._is_over():
                    self._load(end)
                log = self._at()
                self._whole = False  # should this be interrupted, or another generation begin meanwhile
                log.read(self._tables, end, beyond=False)
                if os.fstat(self._store_fd).st_nlink:
                    self._whole = log.has_reached(end)
                    return self._whole
            except OSError:  # a file may be gone, if another generation began
                self._whole = False
        return False

    def _catch_up(self, *, at_once: bool = True) -> Log | None:
        """Do what others wrote on these tables; or nothing, if it is much and not to be done at once.

        Nobody writes meanwhile.
        """
        try:
            if self._is_over():
                if not at_once:
                    return None
                self._load()
            log = self._at()
            if log.has_news():
                end = self._turns.published()
                if not at_once and end is not None and end.number > log.number + _FAR:
                    return None
                self._whole = False  # should this be interrupted
                log.read(self._tables, end)
                self._unreachable = end if end is not None and end.number > log.number else None
                self._whole = True
        except FileNotFoundError as error:
            raise Corrupt(f"{error.filename}: is missing, and counts", code="corrupt.store") from error
        except OSError as error:
            raise translated(error, self.path) from error
        return log

    def _is_over(self) -> bool:
        """Tell whether what is in memory is of no use: nothing was read yet, or another generation has begun."""
        return self._log is None or not self._whole or os.fstat(self._store_fd).st_nlink == 0

    def _load(self, until: End | None = None) -> None:
        """Read all of it, or up to an end that was published: the snapshot, or the base, and the log behind."""
        self._let_go()
        was = self._generation
        now, self._store_fd = directory.read(self.path)
        if was is not None and was.uid != now.uid:
            raise NotFound(
                f"{self.path}: was removed, and there is another store now: open it again", code="not_found.store"
            )
        self._generation = now
        self._log = log = Log(self.path, now, read_only=self.read_only)
        tables = snapshot.read(self.path, now, log)
        self._covered = 0
        self._tables = tables or Tables()
        end = until or self._turns.published()
        log.read(self._tables, end, beyond=until is None)
        if until is None:
            self._unreachable = end if end is not None and end.number > log.number else None
            self._whole, self._doubtful = True, False

    def _let_go(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()
        fd, self._store_fd = self._store_fd, -1
        if fd >= 0:
            os.close(fd)

    def _now_in(self) -> Generation:
        if self._generation is None:
            raise AssertionError
        return self._generation

    def _at(self) -> Log:
        if self._log is None:
            raise AssertionError
        return self._log

    # -- what makes changes last --------------------------------------------------------------------
    def _keep(self, changes: Sequence[Change]) -> None:
        if self._pid != os.getpid():
            raise self._forked()
        if not changes:
            return
        tables, log = self._tables, self._at()
        self._whole, self._doubtful = False, True  # so that whoever reads next looks at what is there, if this fails
        try:
            placed = log.append(changes, durable=self._durable)
        except CommitUnknown:
            raise
        except Error:  # it is certainly not
            self._whole, self._doubtful = True, False
            raise
        self._turns.publish(log.end())
        tables.settle(placed)
        self._whole, self._doubtful = True, False

    def _bytes(self, bodies: Sequence[Body]) -> list[bytes]:
        log = self._at()
        try:
            return [body if isinstance(body, bytes) else log.body(body) for body in bodies]
        except OSError as error:
            raise translated(error, self.path) from error

    def _snapshot(self) -> None:
        """Make a snapshot if much has been read or written since the last one. Others write meanwhile."""
        with suppress(Error):  # it only saves time
            with self._turns.taken():
                log, now = self._log, self._generation
                if log is None or now is None or not self._whole or log.damage:
                    return
                if log.frames - self._covered < max(_SNAPSHOT_FRAMES, len(self._tables.payloads) // 4):
                    return
                log.sync()
                prepared = snapshot.prepare(self.path, now, log, self._tables)
                self._covered = log.frames
            try:
                with self._locked():
                    if self._generation == now and not self._is_over():  # or it would keep what was collected meanwhile
                        snapshot.put(self.path, prepared)
            finally:
                remove(prepared)

    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        self._refuse_in_group()
        with self._read() as tables:
            kept, log = tables.copy(), self._at().twin()

        def read(bodies: Sequence[Body]) -> list[bytes]:
            try:
                return [body if isinstance(body, bytes) else log.body(body) for body in bodies]
            except OSError as error:
                raise translated(error, self.path) from error

        try:
            yield TableView(kept, read)
        finally:
            log.close()

    # -- upkeep -------------------------------------------------------------------------------------
    def reclaim(self, *, erase: bool = False) -> None:
        """Write all that is left to new files, and remove the old ones. Others write meanwhile, but for two moments."""
        del erase  # nothing of what was removed is in the new files
        self._refuse_in_group()
        try:
            for _ in range(_ATTEMPTS):
                if self._renewed():
                    return
        except OSError as error:
            raise translated(error, self.path) from error

    def mend(self) -> None:
        """Begin another generation with all that can be read: what was in frames that are gone is given up."""
        self._refuse_in_group()
        with self._read():
            damaged = bool(self._at().damage)
        for _ in range(_ATTEMPTS if damaged else 0):
            if self._renewed(blind=True):
                return

    def _renewed(self, *, blind: bool = False) -> bool:
        """Begin another generation, unless nothing is to be gained; return False if somebody else did."""
        self._take(blind=blind)
        try:
            log, old = self._at(), self._now_in()
            if not self._tables.wasted and not log.damage:
                return True
            log.cut()
            if log.sealed or log.at > FILE_HEADER:
                log.roll()
            kept = self._tables.copy()
            if log.blind is not None:
                kept.forget()
            source = log.twin()
        finally:
            self._give()
        name = directory.new_base(old.generation + 1)
        try:
            tables, count = base.write(self.path / name, old.uid, kept, source.body)
            new = Generation(old.uid, old.generation + 1, name, count, source.file, source.number + 1)
            return self._switched(old, new, tables)
        finally:
            source.close()

    def _switched(self, old: Generation, new: Generation, tables: Tables) -> bool:
        try:
            log = Log(self.path, new, read_only=False)
            try:
                log.stand(new.file, FILE_HEADER, new.frame - 1, sealed=False, echo=[])
                large = len(tables.payloads) >= _SNAPSHOT_FRAMES
                prepared = snapshot.prepare(self.path, new, log, tables) if large else None
                self._take(blind=True)  # whether it may be was asked when this began
                try:
                    if self._now_in() == old:
                        log.read(tables, self._at().end())
                        directory.switch(self.path, new)
                        self._adopt(log, tables)
                        with suppress(Error):  # all of it only saves time; the snapshot may have been swept by somebody
                            self._turns.publish(log.end())
                            snapshot.put(self.path, None)
                            snapshot.put(self.path, prepared)
                    directory.sweep(self.path, self._now_in())
                    return self._now_in() == new
                finally:
                    self._give()
            finally:
                if log is not self._log:
                    log.close()
        except FileNotFoundError:
            return False  # swept by somebody who was faster
        except OSError as error:
            raise translated(error, self.path) from error

    def _adopt(self, log: Log, tables: Tables) -> None:
        """Go on with a new generation, whose tables these are."""
        self._whole = False
        self._let_go()
        self._generation, self._store_fd = directory.read(self.path)
        self._log, self._tables, self._covered = log, tables, log.frames
        self._whole = True

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        del progress  # what is wrong was noticed when it was read
        with self._read():
            return tuple(self._at().damage)

    def usage(self) -> Usage:
        found = super().usage()
        try:
            return found._replace(stored_bytes=directory.size(self.path))
        except OSError as error:
            raise translated(error, self.path) from error

    def close(self) -> None:
        """Release everything; closing twice is allowed."""
        self._refuse_in_group()
        if self._closed:
            return
        with suppress(Error):
            self._leave()
        with self._turns.alone(), self._turns.taken():
            self._closed = True
            self._let_go()
            self._turns.close()

    def _leave(self) -> None:
        """Do what is better done before one goes."""
        if self.read_only:
            return
        with self._turns.taken():
            log = self._log
            unsaid = log is not None and log.synced < log.number
            if log is not None:
                log.sync()
        if unsaid:
            with self._locked():
                log, end = self._log, self._turns.published()
                if log is not None and end is not None and end.number == log.number:  # nobody has written since
                    self._turns.publish(log.end())
        self._snapshot()


def _refuse_if_blind(log: Log) -> None:
    if log.blind is not None:
        raise Corrupt(
            f"{log.blind}; what was there is not known, so nothing can be written: verify(repair=True) gives up what "
            "is lost, and goes on with the rest; see docs/files.md",
            code="corrupt.store",
        )
