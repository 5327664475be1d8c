"""A store in a directory of plain files: tables in memory, and a log of their changes on disk.

A write is checked on the tables, appended to the log as one frame, synced, and done: one lock, one fsync, one point at
which it counts. Other processes append to the same log: before anything is read or written, what they wrote is done on
these tables, too. With durability "full" a commit is on disk when it returns; "relaxed" waits for that only now and
then, and a power cut may take the last commits, never one without those behind it.

`tables` are what is held, `file_shared` keeps them up with what others write, `file_log` is how they are kept,
`file_directory` what is where, `file_lock` whose turn it is.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backtrail.atomic_file import Access
from backtrail.backends.file import backup as file_backup
from backtrail.backends.file import base, directory, snapshot
from backtrail.backends.file.disk import STORE, remove, translated
from backtrail.backends.file.frames import FILE_HEADER
from backtrail.backends.file.log import Log, begin_file
from backtrail.backends.file.reader import Generation, log_name
from backtrail.backends.file.shared import ATTEMPTS, SharedTables
from backtrail.backends.tables.orphans import astray, tidy
from backtrail.backends.tables.snapshot import TableView
from backtrail.errors import CommitUnknown, Error, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import Backend, Usage
    from backtrail.backends.tables.changes import Body, Change
    from backtrail.backends.tables.tables import Tables

_MAX_TIMEOUT: Final = 1_000_000.0
_SNAPSHOT_CHANGES: Final = 2000
"""A snapshot is made when so many changes have to be read without one."""


class FileBackend(SharedTables):
    """The port on files. `busy_timeout` bounds, in seconds, the wait for another thread's or process's turn."""

    interval = 0.05
    beside = ()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "full",
        read_only: bool = False,
        busy_timeout: float = 10.0,
    ) -> None:
        if durability not in ("full", "relaxed"):
            raise Invalid(f"durability is {durability!r}: say 'full' or 'relaxed'", code="invalid.option")
        if not 0 <= busy_timeout <= _MAX_TIMEOUT:
            raise Invalid(f"busy_timeout is {busy_timeout!r}: say how many seconds to wait", code="invalid.option")
        name = os.fspath(path)
        if not name or "\0" in name:
            raise Invalid(f"{name!r} is not the name of a directory: name one", code="invalid.store")
        super().__init__(Path(os.path.realpath(name)), read_only=read_only, busy_timeout=busy_timeout)
        self._durable = durability == "full"
        try:
            self._open()
            self._has_opened = True
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
            if not self._from_snapshot:
                remove(self.path / directory.SNAPSHOT)  # it does not count, and may hold what was erased
        finally:
            self._give()
        self._snapshot()

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
                if log.changes - self._covered < max(_SNAPSHOT_CHANGES, len(self._tables.payloads) // 4):
                    return
                log.sync()
                prepared = snapshot.prepare(self.path, now, log, self._tables)
                self._covered = log.changes
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

    def access(self) -> Access | None:
        with suppress(OSError):
            place, found = Access.to(self.path), Access.to(self.path / STORE)
            return found._replace(mode=found.mode & (place.mode | stat.S_IRWXU))  # who may not look into it has none
        return None

    def backup(self, path: Path, progress: Callable[[str, int], None] | None) -> int:
        self._refuse_in_group()
        if self.path in (place := Path(os.path.realpath(path.parent)), *place.parents):
            raise Invalid(f"{place}: is a part of the store: name another place", code="invalid.argument")
        with self._read():
            log, now = self._at().twin(), self._now_in()
            end = log.end()._replace(synced=log.number) if log.blind is None else self._turns.published()
        try:
            return file_backup.copy(file_backup.Source(self.path, now, log, end), path, progress)
        finally:
            log.close()

    # -- upkeep -------------------------------------------------------------------------------------
    def reclaim(self, *, erase: bool = False) -> None:
        """Write all that is left to new files, and remove the old ones. Others write meanwhile, but for two moments."""
        del erase  # nothing of what was removed is in the new files
        self._refuse_in_group()
        try:
            for _ in range(ATTEMPTS):
                if self._renewed():
                    return
        except OSError as error:
            raise translated(error, self.path) from error

    def mend(self) -> None:
        """Begin another generation with all that can be read: what was in frames that are gone is given up.

        If it is not known what that was, it is another store from then on: numbers that were lost are given again, and
        whoever had it open knows them.
        """
        self._refuse_in_group()
        with self._read():
            damaged = bool(self._at().damage or astray(self._tables))
        try:
            for _ in range(ATTEMPTS if damaged else 0):
                if self._renewed(blind=True):
                    return
        except OSError as error:
            raise translated(error, self.path) from error

    def _renewed(self, *, blind: bool = False) -> bool:
        """Begin another generation, unless nothing is to be gained; return False if somebody else did."""
        self._take(blind=blind)
        try:
            log, old = self._at(), self._now_in()
            if not (self._tables.wasted or log.damage or astray(self._tables)):
                directory.sweep(self.path, old)  # whoever collected last may have been killed before it did
                return True
            directory.refuse_if_full(self.path, self._tables.held())
            if log.blind is not None:
                self._begin_anew()
                return True
            log.cut()
            if log.sealed or log.at > FILE_HEADER:
                log.roll()
            kept = self._tables.copy()
            tidy(kept)
            source = log.twin()
        finally:
            self._give()
        name = directory.new_base(old.generation + 1)
        try:
            tables, count = base.write(self.path / name, old.uid, kept, source.body)
            new = Generation(old.uid, old.generation + 1, name, count, source.file, source.number + 1)
            return self._switched(old, new, tables)
        except BaseException:
            self._discard(name)
            raise
        finally:
            source.close()

    def _begin_anew(self) -> None:
        """Be another store with what is left. Whoever does keeps all others out: nobody is to write to the old one."""
        log, old, end = self._at(), self._now_in(), self._turns.published()
        kept = self._tables.copy()
        tidy(kept)
        kept.forget()
        uid, name, file = directory.new_uid(), directory.new_base(old.generation + 1), directory.new_file(self.path)
        frame = max(log.number, end.number if end is not None else 0, end.synced if end is not None else 0) + 1
        try:
            tables, count = base.write(self.path / name, uid, kept, log.body)
            begin_file(self.path / log_name(file), uid, file, frame)
            new = Generation(uid, old.generation + 1, name, count, file, frame)
            behind = Log(self.path, new, read_only=False)
            _stand_behind_base(behind, new)
            self._go_over(new, behind, tables, None)
        except BaseException:
            self._discard(name)
            raise
        directory.sweep(self.path, new)

    def _discard(self, base: str) -> None:
        """Remove a base that is not the present one; if that is not certain, it stays until the next generation."""
        with suppress(Error, OSError):
            now, fd = directory.read(self.path)
            os.close(fd)
            if now.base != base:
                remove(self.path / base)

    def _switched(self, old: Generation, new: Generation, tables: Tables) -> bool:
        prepared: Path | None = None
        try:
            log = Log(self.path, new, read_only=False)
            try:
                _stand_behind_base(log, new)
                large = len(tables.payloads) >= _SNAPSHOT_CHANGES
                prepared = snapshot.prepare(self.path, new, log, tables) if large else None
                self._take(blind=True)  # whether it may be was asked when this began
                try:
                    if self._now_in() == old:
                        log.read(tables, self._at().end())
                        self._go_over(new, log, tables, prepared)
                    directory.sweep(self.path, self._now_in())
                    return self._now_in() == new
                finally:
                    self._give()
            finally:
                if prepared is not None:
                    remove(prepared)
                if log is not self._log:
                    log.close()
        except FileNotFoundError:
            return False  # swept by somebody who was faster
        except OSError as error:
            raise translated(error, self.path) from error

    def _go_over(self, new: Generation, log: Log, tables: Tables, prepared: Path | None) -> None:
        """Let a new generation begin, whose tables these are, and go on with it."""
        snapshot.put(self.path, None)  # it has what was removed
        directory.switch(self.path, new)
        self._adopt(log, tables)
        with suppress(Error):  # all of it only saves time; the snapshot may have been swept by somebody
            self._turns.publish(log.end())
            if prepared is not None:
                snapshot.put(self.path, prepared)

    def _adopt(self, log: Log, tables: Tables) -> None:
        self._whole = False
        self._let_go()
        self._stand_in(*directory.read(self.path))
        self._log, self._tables, self._covered = log, tables, log.changes
        self._whole = True

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        del progress  # what is wrong was noticed when it was read
        with self._read() as tables:
            return (*self._at().damage, *astray(tables))

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
        with suppress(Error, OSError):
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


def _stand_behind_base(log: Log, generation: Generation) -> None:
    log.stand(generation.file, FILE_HEADER, generation.frame - 1, sealed=False, echo=[], last=None)
