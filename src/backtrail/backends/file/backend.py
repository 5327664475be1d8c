"""The file backend: a directory of plain files, with tables in memory and a log of their changes on disk.

With durability "full" a commit is on disk when it returns. "relaxed" syncs only from time to time: a power cut may lose
the last commits. If a commit is lost, all later commits are lost, too.

`tables` has the state, `log` the changes, `lock` keeps processes apart, and `storage` combines the three. This module
adds snapshots, backups, collections and repairs.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backtrail.atomic_file import FileAccess
from backtrail.backends.file import directory
from backtrail.backends.file.directory import LogGeneration, begin_file
from backtrail.backends.file.disk import STORE, remove, synced_directory, translated, write_new
from backtrail.backends.file.lock import end_bytes
from backtrail.backends.file.log import Log, write_base
from backtrail.backends.file.storage import FileStorage
from backtrail.backends.tables.backend import TableBackend, TableView
from backtrail.errors import Error, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import Backend, Usage
    from backtrail.backends.tables.changes import Body
    from backtrail.backends.tables.tables import Tables

_MAX_TIMEOUT: Final = 1_000_000.0
_ATTEMPTS: Final = 3


class FileBackend(TableBackend):
    """The backend for file stores. `busy_timeout` is the longest wait for another thread or process, in seconds."""

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
            raise Invalid(f"durability must be 'full' or 'relaxed', not {durability!r}", code="invalid.option")
        if not 0 <= busy_timeout <= _MAX_TIMEOUT:
            raise Invalid(f"busy_timeout must be a number of seconds, not {busy_timeout!r}", code="invalid.option")
        name = os.fspath(path)
        if not name or "\0" in name:
            raise Invalid(f"{name!r} is not a valid directory name", code="invalid.store")
        self.path = Path(os.path.realpath(name))
        self.read_only = read_only
        self._files = FileStorage(
            self.path, durable=durability == "full", read_only=read_only, busy_timeout=busy_timeout
        )
        super().__init__(self._files)
        self._files.open()

    # -- one moment ---------------------------------------------------------------------------------
    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        self._refuse_in_group()
        with self._read() as tables:
            copy, log = tables.copy(), self._files.log.duplicate()

        def bytes_of(bodies: Sequence[Body]) -> list[bytes]:
            try:
                return [body if isinstance(body, bytes) else log.body(body) for body in bodies]
            except OSError as error:
                raise translated(error, self.path) from error

        try:
            yield TableView(copy, bytes_of)
        finally:
            log.close()

    def access(self) -> FileAccess | None:
        with suppress(OSError):
            place, store = FileAccess.to(self.path), FileAccess.to(self.path / STORE)
            return store._replace(mode=store.mode & (place.mode | stat.S_IRWXU))  # no more rights than the directory
        return None

    def backup(self, path: Path, progress: Callable[[str, int], None] | None) -> int:
        """Copy the files up to the current end of the log. Other processes may write: files only grow at the end."""
        self._refuse_in_group()
        if self.path in (place := Path(os.path.realpath(path.parent)), *place.parents):
            raise Invalid(f"{place}: is inside the store: pass another path", code="invalid.argument")
        with self._read():
            log, generation = self._files.log.duplicate(), self._files.generation
            end = log.end()._replace(synced=log.number) if log.fatal_damage is None else self._files.lock.published()
        try:
            path.mkdir(0o700)
            directory.switch(path, generation)
            _give_access(path / STORE, self.path / STORE)
            log.copy_to(path, progress)
            if end is not None:
                write_new(path / directory.LOCK, os.O_EXCL, end_bytes(end))
            _give_access(path, self.path)
            synced_directory(path)
            return directory.size(path)
        except OSError as error:
            raise translated(error, path) from error
        finally:
            log.close()

    # -- upkeep -------------------------------------------------------------------------------------
    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        del progress  # damage was found when the log was read
        with self._read() as tables:
            return (*self._files.log.damage, *tables.orphans())

    def usage(self) -> Usage:
        counted = super().usage()
        try:
            return counted._replace(stored_bytes=directory.size(self.path))
        except OSError as error:
            raise translated(error, self.path) from error

    def reclaim(self, *, erase: bool = False) -> None:
        """Write the state to new files, and remove the old ones. Other processes wait only twice, for a moment."""
        self._refuse_in_group()
        if not self._rewrite(repair=False) and erase:  # only new files are free of removed data
            raise Unavailable(
                f"{self.path}: other processes run gc at the same time, so removed data may still be in their files: "
                "wait until they end, then run gc again",
                code="unavailable.locked",
            )

    def repair(self) -> None:
        """Begin another generation with all readable data, without the lost frames.

        If the changes of lost frames are unknown, the store gets a new uid. The reason: thread numbers and seqs of lost
        frames are used again, and other processes may still know the old ones.
        """
        self._refuse_in_group()
        if self.check(None):
            self._rewrite(repair=True)

    def _rewrite(self, *, repair: bool) -> bool:
        """Begin another generation if that frees or repairs something; return False if others were always first."""
        try:
            return any(self._try_rewrite(repair=repair) for _ in range(_ATTEMPTS))
        except OSError as error:
            raise translated(error, self.path) from error

    def _try_rewrite(self, *, repair: bool) -> bool:
        """Begin another generation if the files have waste or damage; return False if another process was first."""
        files = self._files
        with files.locked(even_damaged=repair):
            log, old = files.log, files.generation
            if not (files.tables.wasted or log.damage or (repair and files.tables.orphans())):
                directory.sweep(self.path, old)  # the last collection may have been killed before its sweep
                return True
            directory.refuse_if_full(self.path, files.tables.payload_bytes())
            copy = files.tables.copy()
            if repair:
                copy.drop_orphans()
            if log.fatal_damage is not None:
                self._begin_store(copy)
                return True
            log.roll()
            source = log.duplicate()
        name = directory.new_base(old.generation + 1)
        try:
            tables, count = write_base(self.path / name, old.uid, copy, source.body)
            new = LogGeneration(old.uid, old.generation + 1, name, count, source.file, source.number + 1)
            return self._switch(old, new, tables)
        except BaseException:
            self._discard(name)
            raise
        finally:
            source.close()

    def _switch(self, old: LogGeneration, new: LogGeneration, tables: Tables) -> bool:
        """Switch to a new generation, whose base has the tables; return False if another process was first."""
        try:
            log = Log(self.path, new, read_only=False)
            try:
                log.leave_base()
                with self._files.locked(even_damaged=True):
                    if self._files.generation == old:
                        log.read(tables, self._files.log.end())
                        self._begin(new, log, tables)
                    directory.sweep(self.path, self._files.generation)
                    return self._files.generation == new
            finally:
                if self._files.generation != new:
                    log.close()
        except FileNotFoundError:
            return False  # another process was first, and its sweep removed the files

    def _begin_store(self, copy: Tables) -> None:
        """Begin a new store, with a new uid, from a copy of the tables. The caller has locked out other processes."""
        files = self._files
        log, old, end = files.log, files.generation, files.lock.published()
        copy.forget()
        uid, name = directory.new_uid(), directory.new_base(old.generation + 1)
        file = max(directory.log_numbers(self.path), default=0) + 1
        frame = max(log.number, *end[2:]) + 1 if end is not None else log.number + 1
        try:
            tables, count = write_base(self.path / name, uid, copy, log.body)
            begin_file(self.path, uid, file, frame)
            new = LogGeneration(uid, old.generation + 1, name, count, file, frame)
            new_log = Log(self.path, new, read_only=False)
            new_log.leave_base()
            self._begin(new, new_log, tables)
        except BaseException:
            self._discard(name)
            raise
        directory.sweep(self.path, new)

    def _begin(self, new: LogGeneration, log: Log, tables: Tables) -> None:
        """Switch the directory to a new generation, and use its log and tables."""
        directory.switch(self.path, new)
        self._files.adopt(log, tables)
        with suppress(Error):  # readers work without the published end, only slower
            self._files.lock.publish(log.end())

    def _discard(self, name: str) -> None:
        """Remove a base file unless the current generation uses it; if that is unknown, a later sweep removes it."""
        with suppress(Error, OSError):
            present, fd = directory.read(self.path)
            os.close(fd)
            if present.base != name:
                remove(self.path / name)


def _give_access(path: Path, like: Path) -> None:
    """Give a file the access rights of the file `like`, as far as possible."""
    with suppress(OSError):
        FileAccess.to(like).give(path)
