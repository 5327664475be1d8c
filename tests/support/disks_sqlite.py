"""A fake disk under SQLite: a VFS that records every call that changes a file, and can let a call fail.

It records calls in the form of `disks`, so that they can be replayed as the states in which a power cut may leave a
disk. The index of the WAL (`-shm`) is not recorded: it is memory, and lost in a power cut.
"""

# ruff: noqa: N802 - SQLite's names

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from tests.support.disks import Call, Disk

if TYPE_CHECKING:
    from collections.abc import Iterator

# SQLite's own VFS syncs the directory when it first syncs one of these.
_NEW_JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class SqliteDisk(Disk):
    def __init__(self) -> None:
        super().__init__()
        self.syncs = True
        """Whether syncs work. If not, the disk ignores them without an error."""
        self._files: dict[str, int] = {}

    def opened(self, name: str, flags: int, *, existed: bool) -> int:
        """Return the number of a file that is about to be used."""
        if name not in self._files:
            self._files[name] = len(self.calls)
            if existed:  # it was there, on disk, before anything was asked of this one
                number = self._files[name]
                self.calls += [
                    Call("create", number, name),
                    Call("write", number, data=Path(name).read_bytes()),
                    Call("sync", number),
                    Call("sync directory", str(Path(name).parent)),
                ]
            elif flags & apsw.SQLITE_OPEN_CREATE:
                self.calls.append(Call("create", self._files[name], name))
        return self._files[name]

    def gone(self, name: str, *, synced: bool) -> None:
        self._files.pop(name, None)
        self.calls.append(Call("unlink", None, name))
        if synced:
            self.synced(Call("sync directory", str(Path(name).parent)))

    def synced(self, call: Call) -> None:
        if self.syncs:
            self.calls.append(call)


def _file(disk: SqliteDisk) -> type[apsw.VFSFile]:
    class File(apsw.VFSFile):
        def __init__(self, name, flags):
            where = name.filename() if isinstance(name, apsw.URIFilename) else name
            existed = bool(where) and Path(where).exists()
            if disk.reads:
                disk.before(Call("open", None, where or ""))
            super().__init__("unix", name, flags)
            self.number = -1
            if where:
                self.number = disk.opened(where, flags[0], existed=existed)
            self.new = flags[0] & _NEW_JOURNALS and flags[0] & apsw.SQLITE_OPEN_CREATE
            self.where = where or ""
            self.directory = str(Path(where).parent) if where else ""

        def xRead(self, amount, offset):
            if disk.reads:
                disk.before(Call("read", self.number, self.where, at=offset))
            return super().xRead(amount, offset)

        def xWrite(self, data, offset):
            call = Call("write", self.number, self.where, at=offset, data=bytes(data))
            disk.before(call)
            super().xWrite(data, offset)
            disk.calls.append(call)

        def xTruncate(self, size):
            call = Call("truncate", self.number, self.where, at=size)
            disk.before(call)
            super().xTruncate(size)
            disk.calls.append(call)

        def xSync(self, flags):
            call = Call("sync", self.number, self.where)
            disk.before(call)
            disk.synced(call)
            if self.new:
                self.new = False
                disk.synced(Call("sync directory", self.directory))

    return File


@contextmanager
def traced_sqlite() -> Iterator[SqliteDisk]:
    """Replace the real disk by the fake one, which passes its calls on."""
    disk = SqliteDisk()
    file = _file(disk)

    class Vfs(apsw.VFS):
        def xOpen(self, name, flags):
            return file(name, flags)

        def xDelete(self, name, sync):
            disk.before(Call("unlink", None, name))
            there = Path(name).exists()
            super().xDelete(name, sync)
            if there:
                disk.gone(name, synced=sync)

    vfs = Vfs("lab", "unix", makedefault=True)
    try:
        yield disk
    finally:
        vfs.unregister()
