"""A fake disk under the file backend: it records every call that changes something, and can let a call fail.

It replaces the functions of `os` that the backend uses. The recorded calls can be replayed as the states in which a
power cut may leave a disk: see `Platter`.
"""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

SECTOR = 512
_CALLS = ("open", "pread", "mkdir", "pwrite", "ftruncate", "fdatasync", "fsync", "unlink")


class Call(NamedTuple):
    """A call of the disk."""

    what: str
    """write, truncate, sync, create, rename, unlink, sync directory; open, read, mkdir."""
    file: Any
    """The number of the file, or the path of a directory."""
    name: str = ""
    to: str = ""
    at: int = 0
    data: bytes = b""


class Disk:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.before: Callable[[Call], None] = lambda _: None
        """Called before each of them; it may raise OSError, or never return."""
        self.reads = False
        """Whether calls that change nothing, or nothing in a file, are seen, too: open, read, mkdir."""
        self._numbers: dict[int, int] = {}
        self._made = itertools.count(1)

    def count(self, what: str) -> int:
        return sum(call.what == what for call in self.calls)

    def _see(self, call: Call) -> None:
        self.calls.append(call)
        self.before(call)

    def number(self, found: os.stat_result, *, made: bool = False) -> int:
        """Return the number of a file: its inode's, but a new file is another one, though it may have got the same."""
        if made or found.st_ino not in self._numbers:
            self._numbers[found.st_ino] = next(self._made)
        return self._numbers[found.st_ino]


@contextmanager
def traced() -> Iterator[Disk]:  # noqa: C901 - one function for each call
    """Replace the real disk by the fake one, which passes its calls on."""
    disk = Disk()
    with pytest.MonkeyPatch.context() as patch:
        real = {name: getattr(os, name) for name in _CALLS}
        replace = os.replace

        def opened(path, flags, mode=0o777, **rest):
            made = flags & os.O_CREAT and not os.path.lexists(path)
            if made:
                disk._see(Call("create", None, os.fspath(path)))
            elif disk.reads:
                disk._see(Call("open", None, os.fspath(path)))
            fd = real["open"](path, flags, mode, **rest)
            if made:
                disk.calls[-1] = disk.calls[-1]._replace(file=disk.number(os.fstat(fd), made=True))
            if flags & os.O_TRUNC and not made:
                disk._see(Call("truncate", disk.number(os.fstat(fd))))
            return fd

        def pread(fd, size, at):
            if disk.reads:
                disk._see(Call("read", None))
            return real["pread"](fd, size, at)

        def mkdir(path, mode=0o777, **rest):
            if disk.reads:
                disk._see(Call("mkdir", None, os.fspath(path)))
            return real["mkdir"](path, mode, **rest)

        def pwrite(fd, data, at):
            disk._see(Call("write", disk.number(os.fstat(fd)), at=at, data=bytes(data)))
            return real["pwrite"](fd, data, at)

        def ftruncate(fd, size):
            disk._see(Call("truncate", disk.number(os.fstat(fd)), at=size))
            return real["ftruncate"](fd, size)

        def sync(fd):
            if Path(f"/proc/self/fd/{fd}").is_dir():
                disk._see(Call("sync directory", str(Path(f"/proc/self/fd/{fd}").readlink())))
            else:
                disk._see(Call("sync", disk.number(os.fstat(fd))))

        def replaced(source, target, **_):
            disk._see(Call("rename", disk.number(Path(source).stat()), os.fspath(source), os.fspath(target)))
            return replace(source, target)

        def unlink(path, *, dir_fd=None):
            path = path if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / path
            if os.path.lexists(path):
                disk._see(Call("unlink", None, os.fspath(path)))
            return real["unlink"](path)

        patches = {"open": opened, "pwrite": pwrite, "ftruncate": ftruncate, "fdatasync": sync, "fsync": sync}
        patches |= {"pread": pread, "mkdir": mkdir}
        for name, function in {**patches, "replace": replaced, "unlink": unlink}.items():
            patch.setattr(os, name, function)
        yield disk


class Platter:
    """The data that has certainly reached the disk, and the data that may have.

    Synced calls have reached the disk. Each unsynced call may have reached it or not, independently of earlier calls;
    of a write, any of its sectors may have. The same holds for names in a directory.
    """

    def __init__(self) -> None:
        self._contents: dict[int, bytearray] = {}
        self._names: dict[str, int] = {}
        self._waiting: list[Call] = []

    def see(self, call: Call) -> None:
        if call.what in ("open", "mkdir", "read"):
            return
        if call.what not in ("sync", "sync directory"):
            self._waiting.append(call)
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if call.what == "sync":
                done = each.file == call.file and each.what in ("write", "truncate")
            else:
                done = str(Path(each.name).parent) == call.file and each.what not in ("write", "truncate")
            if done:
                _happen(self._contents, self._names, each, None)
            else:
                self._waiting.append(each)

    def image(self, rng: random.Random, kept: float = 0.5) -> dict[str, bytes]:
        """Return files as a power cut may leave them now, if a call that was not synced was done with this chance."""
        contents = {
            file: bytearray(held) if any(each.file == file for each in self._waiting) else held
            for file, held in self._contents.items()
        }
        names = dict(self._names)
        for call in self._waiting:
            if rng.random() < kept:
                _happen(contents, names, call, rng)
        return {name: bytes(contents.get(file, b"")) for name, file in names.items()}


def crash_states(calls: list[Call], rng: random.Random) -> dict[str, bytes]:
    """Return files as a power cut behind the last of these calls may leave them."""
    platter = Platter()
    for call in calls:
        platter.see(call)
    return platter.image(rng)


def _happen(contents: dict[int, bytearray], names: dict[str, int], call: Call, rng: random.Random | None) -> None:
    if call.what in ("write", "truncate"):
        _write(contents, call, rng)
    else:
        _move(names, call)


def _write(contents: dict[int, bytearray], call: Call, rng: random.Random | None) -> None:
    held = contents.setdefault(call.file, bytearray())
    if call.what == "truncate":
        del held[call.at :]
        return
    at = call.at
    data = call.data
    while data:
        room = SECTOR - at % SECTOR
        if rng is None or rng.random() < 0.7:
            held.extend(bytes(max(at + len(data[:room]) - len(held), 0)))
            held[at : at + len(data[:room])] = data[:room]
        at += len(data[:room])
        data = data[room:]


def _move(names: dict[str, int], move: Call) -> None:
    if move.what == "unlink":
        names.pop(move.name, None)
    elif move.what == "create":
        names[move.name] = move.file
    else:
        names.pop(move.name, None)
        names[move.to] = move.file


def put(files: dict[str, bytes], source: Path, target: Path) -> None:
    """Write such files into a directory, instead of where they were."""
    target.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if Path(name).is_relative_to(source):
            place = target / Path(name).relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
