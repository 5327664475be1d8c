"""Tables that processes share: whose turn it is, and what others wrote.

Before anything is read or written, what others appended to the log is done on these tables, too. Whoever reads waits
for nobody: up to the end that was published, the log is known to be good. Whoever writes keeps others out, and reads no
more than the tail meanwhile.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from backtrail.backends.file import directory, snapshot
from backtrail.backends.file.disk import STORE, translated
from backtrail.backends.file.lock import End, Turns, inode
from backtrail.backends.file.log import Log
from backtrail.backends.tables.backend import TableBackend
from backtrail.backends.tables.tables import Tables
from backtrail.errors import Corrupt, Error, NotFound, Unavailable
from backtrail.gc_pause import uncollected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from backtrail.backends.file.reader import Generation

ATTEMPTS: Final = 3
_PAUSES: Final = (0.0, 0.002, 0.005, 0.01, 0.02)
_FAR: Final = 100
"""Whoever is to read more frames than this before it writes does so before it keeps others out."""


class SharedTables(TableBackend):
    """The tables of a directory, as new as can be."""

    def __init__(self, path: Path, *, read_only: bool, busy_timeout: float) -> None:
        super().__init__(Tables())
        self.path = path
        self.read_only = read_only
        self._closed = False
        self._has_opened = False
        """Whether anything was ever read: who only tries to, and is overtaken by a repair, tries again."""
        self._pid = 0
        """The process whose turn it is, if something is being written."""
        self._generation: Generation | None = None
        self._store_fd = -1
        """The file that says which generation it is: when that is over, another one has its name."""
        self._store = str(path / STORE), (0, 0)
        """Its name, and what it is by number: kept open, so that no other file gets that number."""
        self._log: Log | None = None
        self._whole = False
        """Whether the tables are what the log says. If not, they are read anew."""
        self._doubtful = False
        """Whether a write of this process may be there, or not: only whoever keeps others out can tell."""
        self._covered = 0
        """How many changes of those that the log has read or written are in a snapshot."""
        self._from_snapshot = False
        """Whether there was a snapshot that counts when all was read."""
        self._unreachable: End | None = None
        """An end that was published, and is not there."""
        self._turns = Turns(
            self.path / directory.LOCK,
            busy_timeout,
            read_only=read_only,
            forked=self._part_from_parent,
            within=self._refuse_within,
        )

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

    def _give_what_is_left(self) -> None:
        self._turns.give_what_is_left()

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
            self._take_back_what_was_left()  # before anything is done on the tables
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
                log = self._catch_up()
                if log is not None:
                    self._tell_of(log)
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
            if self._is_replaced():
                return True
            end = self._turns.published()
            if end is None or end == self._unreachable:
                return self._log.has_news()
            return end.number > self._log.number or self._log.has_news()
        except OSError as error:
            raise translated(error, self.path) from error

    def _caught_up(self) -> bool:
        """Do what others wrote, without a turn, as far as it is known to be good; return whether that is all."""
        self._take_back_what_was_left()
        for _ in range(ATTEMPTS):
            try:
                end = self._turns.published()
                if end is None or end == self._unreachable or self._doubtful:
                    return False
                first = self._is_over()
                if first:
                    self._load(end)
                log = self._at()
                self._whole = False  # should this be interrupted, or another generation begin meanwhile
                log.read(self._tables, end, beyond=False)
                if not self._is_replaced():
                    self._whole = log.has_reached(end)
                    if self._whole and (first or log.has_news()):
                        self._look_beyond(_PAUSES if first else _PAUSES[:1])
                    return self._whole
            except OSError:  # a file may be gone, if another generation began
                self._whole = False
        return False

    def _look_beyond(self, pauses: Sequence[float]) -> None:
        """Do what is behind the end that was published, if nobody is writing.

        After a power cut the log may have more than that: it was synced, and what was published was not. So it may when
        whoever wrote was killed, or interrupted, in between. Whoever opens the store for writing publishes it anew; so
        if somebody is writing for a while, it is known to be new.
        """
        for pause in pauses:
            time.sleep(pause)
            with self._turns.kept_quiet() as quiet:
                if quiet:
                    log = self._catch_up()
                    if log is not None:
                        self._tell_of(log)
                    return

    def _tell_of(self, log: Log) -> None:
        """Let others see what was found behind the end that was published. Nobody writes meanwhile."""
        end = self._turns.published()
        if log.blind is not None or (end is not None and end.number >= log.number):
            return
        with suppress(Error):  # of files that can only be read
            log.sync()  # nobody is to see what a power cut may still take
            if end is not None and not self.read_only:
                self._turns.publish(log.end())

    def _catch_up(self, *, at_once: bool = True) -> Log | None:
        """Do what others wrote on these tables; or nothing, if it is much and not to be done at once.

        Nobody writes meanwhile.
        """
        self._take_back_what_was_left()
        try:
            if self._is_over():
                if not at_once:
                    return None
                self._load()
            log = self._at()
            end = self._turns.published()
            told = end is not None and end != self._unreachable and end.number > log.number
            if told or log.has_news():
                if not at_once and end is not None and end.number > log.number + _FAR:
                    return None
                self._whole = False  # should this be interrupted
                log.read(self._tables, end)
                self._unreachable = end if end is not None and end.number > log.number else None
                self._whole = True
        except FileNotFoundError as error:
            raise Corrupt(
                f"{error.filename}: is missing, and the store needs it: put it back, or restore a backup",
                code="corrupt.store",
            ) from error
        except OSError as error:
            raise translated(error, self.path) from error
        return log

    def _is_over(self) -> bool:
        """Tell whether what is in memory is of no use: nothing was read yet, or another generation has begun."""
        return self._log is None or not self._whole or self._is_replaced()

    def _is_replaced(self) -> bool:
        """Tell whether the file that says which generation it is has been replaced, or removed with its directory.

        That it has a name somewhere says nothing: the directory may have been moved, or copied by links.
        """
        name, known = self._store
        try:
            return inode(os.stat(name)) != known  # noqa: PTH116 - whoever reads does it
        except (FileNotFoundError, NotADirectoryError):
            return True

    def _load(self, until: End | None = None) -> None:
        """Read all of it, or up to an end that was published: the snapshot, or the base, and the log behind."""
        self._whole = False  # should this be interrupted: the tables are not of this log
        self._let_go()
        self._stand_in(*self._named_now())
        now = self._now_in()
        self._log = log = Log(self.path, now, read_only=self.read_only)
        with uncollected():  # all of it stays
            tables = snapshot.read(self.path, now, log)
            self._covered, self._from_snapshot = 0, tables is not None
            self._tables = tables or Tables()
            end = until or self._turns.published()
            log.read(self._tables, end, beyond=until is None)
        if until is None:
            self._unreachable = end if end is not None and end.number > log.number else None
            self._whole, self._doubtful = True, False

    def _named_now(self) -> tuple[Generation, int]:
        """Return which files count now, and the file that says so, open. Refuse those of another store, or of a copy.

        A collection counts generations up. If it is another file, and not a later generation, then somebody has put it
        there: what is known of it need not be so.
        """
        was, (_, known) = self._generation if self._has_opened else None, self._store
        now, fd = directory.read(self.path)
        other = inode(os.fstat(fd)) != known
        if was is not None and (was.uid != now.uid or (other and now.generation <= was.generation)):
            os.close(fd)
            what = "another store now, or what is left of it" if was.uid != now.uid else "another copy of it now"
            raise NotFound(
                f"{self.path}: was removed, or repaired, and there is {what}: open it again", code="not_found.store"
            )
        return now, fd

    def _stand_in(self, generation: Generation, fd: int) -> None:
        """Go on in that generation; the file says so."""
        self._generation, self._store_fd = generation, fd
        self._store = self._store[0], inode(os.fstat(fd))

    def _let_go(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()
        fd, self._store_fd = self._store_fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Do so for a store that is dropped without being closed."""
        with suppress(Exception):
            self._let_go()

    def _now_in(self) -> Generation:
        if self._generation is None:
            raise AssertionError
        return self._generation

    def _at(self) -> Log:
        if self._log is None:
            raise AssertionError
        return self._log


def _refuse_if_blind(log: Log) -> None:
    if log.blind is not None:
        raise Corrupt(
            f"{log.blind}; what was there is not known, so nothing can be written: verify(repair=True) gives up what "
            "is lost, and goes on with the rest; see docs/files.md",
            code="corrupt.store",
        )
