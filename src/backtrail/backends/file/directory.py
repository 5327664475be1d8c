"""The directory of a file store: create it, recognise it, and switch it to another generation.

`backtrail.store` makes the directory a store, and names its current files: a base, if there is one, and the first log
file behind it. It has one line, written twice, each with a checksum. A rename replaces it as a whole: at that moment
another generation begins, and processes with the old file open see another inode. If gc was interrupted, files of older
generations are left; the next process that opens the store removes them.

A directory with other files, or of a newer format, is refused before anything in it is changed.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from backtrail.backends.file import frames
from backtrail.backends.file.disk import (
    STORE,
    created,
    read_at,
    remove,
    synced,
    synced_directory,
    translated,
    write_at,
    write_new,
)
from backtrail.errors import Corrupt, Invalid, NotFound, Unavailable

LOCK: Final = "backtrail.lock"
NEW: Final = ".new"
"""The suffix of an unfinished file."""
_LOG_NAME: Final = re.compile(r"log-\d{12}")
_WORD: Final = "backtrail-files"
_LINE: Final = re.compile(
    rf"{_WORD} (?P<format>\d+) uid=(?P<uid>[0-9a-f]{{16}}) generation=(?P<generation>\d+) base=(?P<base>\S+) "
    r"frames=(?P<frames>\d+) file=(?P<file>\d+) frame=(?P<frame>\d+)"
)
_UNFINISHED: Final = re.compile(rf"{LOCK}|{STORE}\{NEW}|log-0{{11}}1")
"""The files that an interrupted creation of a store leaves."""
_SNAPSHOT: Final = "snapshot"
"""The file to which earlier versions wrote a copy of their tables, to open a store faster."""
_OURS: Final = re.compile(rf"log-\d{{12}}|base-\d{{12}}-[0-9a-f]{{8}}|{_SNAPSHOT}")


class LogGeneration(NamedTuple):
    """The content of `backtrail.store`: the current files of a store."""

    uid: bytes
    """The random id of the store."""
    generation: int
    base: str | None
    """The file name of the base, or None."""
    frames: int
    """The number of frames in the base."""
    file: int
    """The number of the first log file behind the base."""
    frame: int
    """The number of the first frame in that log file."""


def _line(generation: LogGeneration) -> str:
    uid, number, base, count, file, frame = generation
    text = f"{_WORD} {frames.FORMAT} uid={uid.hex()} generation={number} base={base or '-'} frames={count} "
    text += f"file={file} frame={frame}"
    return f"{text} check={_check(text)}\n"


def _check(text: str) -> str:
    return blake3(text.encode()).hexdigest(length=frames.CHECK_BYTES)


def new_uid() -> bytes:
    """Return a random id for a new store, 8 bytes."""
    return secrets.token_bytes(8)


def log_name(file: int) -> str:
    """Return the name of a log file by its number."""
    return f"log-{file:012d}"


def log_numbers(path: Path) -> list[int]:
    """Return the numbers of the log files in a directory, ascending. Raises OSError."""
    return sorted(int(entry.name[4:]) for entry in os.scandir(path) if _LOG_NAME.fullmatch(entry.name))


def new_base(generation: int) -> str:
    """Return a new base file name, random so that no other process uses it."""
    return f"base-{generation:012d}-{secrets.token_hex(4)}"


# -- recognised -----------------------------------------------------------------------------------
def look(path: Path) -> bool:
    """Tell whether a directory has a store; `Invalid` or `Corrupt` if no store can be created there."""
    try:
        entries = {entry.name for entry in os.scandir(path)}
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise Invalid(f"{path}: is not a directory: pass another path", code="invalid.store") from error
    except OSError as error:
        raise translated(error, path) from error
    if STORE in entries:
        return True
    if all(_UNFINISHED.fullmatch(name) for name in entries) and not _has_frames(path / log_name(1)):
        return False
    if (path / STORE).exists():
        return True  # another process has just created the store
    if any(_OURS.fullmatch(name) for name in entries):
        raise Corrupt(
            f"{path}: the file {STORE} is missing: docs/format.md shows how to write it by hand", code="corrupt.store"
        )
    raise Invalid(f"{path}: contains other files: pass an empty directory", code="invalid.store")


def is_store(path: Path) -> bool:
    """Tell whether a directory has only files of a store, damaged or not."""
    names = [entry.name for entry in os.scandir(path)]
    ours = (name for name in names if _OURS.fullmatch(name) or name.startswith((STORE, LOCK, _SNAPSHOT)))
    return [*ours] == names


def _has_frames(log: Path) -> bool:
    try:
        return log.stat().st_size > frames.FILE_HEADER
    except FileNotFoundError:
        return False
    except OSError as error:
        raise translated(error, log) from error


def read(path: Path) -> tuple[LogGeneration, int]:
    """Return the current generation, and the descriptor of the open `backtrail.store`."""
    name = path / STORE
    try:
        fd = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path}: this store does not exist", code="not_found.store") from error
    except OSError as error:
        raise translated(error, name) from error
    try:
        text = read_at(fd, 0, 4096).decode("latin-1")
        for line in (text[: len(text) // 2], text[len(text) // 2 :], text):  # all of it, if written by hand
            content, _, check = line.rpartition(" check=")
            if content and check[:-1] == _check(content):
                return _parsed(content, path), fd
    except OSError as error:
        os.close(fd)
        raise translated(error, name) from error
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise Corrupt(
        f"{name} is damaged: restore a backup, or write it by hand as docs/format.md shows", code="corrupt.store"
    )


def _parsed(line: str, path: Path) -> LogGeneration:
    form = int(line.split()[1])
    if form > frames.FORMAT:
        raise Invalid(
            f"{path}: has format {form}, but this version of backtrail knows only formats up to {frames.FORMAT}: "
            "upgrade backtrail",
            code="invalid.format",
            format=form,
        )
    fields = _LINE.fullmatch(line)
    if fields is None:
        text = f"{path / STORE}: this file is damaged, so the store cannot be opened; restore a backup"
        raise Corrupt(text, code="corrupt.store")
    base = fields["base"]
    return LogGeneration(
        bytes.fromhex(fields["uid"]),
        int(fields["generation"]),
        None if base == "-" else base,
        int(fields["frames"]),
        int(fields["file"]),
        int(fields["frame"]),
    )


# -- made -----------------------------------------------------------------------------------------
def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, and sync them."""
    try:
        missing = [place for place in (path, *path.parents) if not place.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(0o700, exist_ok=True)
        for place in missing:
            synced_directory(place.parent)
    except (FileExistsError, NotADirectoryError) as error:
        raise Invalid(f"{path}: is not a directory: pass another path", code="invalid.store") from error
    except OSError as error:
        raise translated(error, path) from error


def make(path: Path) -> None:
    """Create a store in an empty directory. The caller holds the lock of the store."""
    first = LogGeneration(new_uid(), 1, None, 0, 1, 1)
    begin_file(path, first.uid, 1, 1)
    switch(path, first)


def begin_file(path: Path, uid: bytes, file: int, first: int) -> None:
    """Create a log file without frames, and sync it and the directory; `first` is the number of its first frame."""
    name = path / log_name(file)
    empty = False
    try:
        fd = created(name, os.O_RDWR)
        try:
            empty = os.fstat(fd).st_size <= frames.FILE_HEADER
            if not empty:
                raise Corrupt(f"{name}: already has frames, but the file before it has not ended", code="corrupt.store")
            write_at(fd, 0, frames.file_header(uid, file, first))
            synced(fd)
        finally:
            os.close(fd)
        synced_directory(path)
    except OSError as error:
        if empty:
            remove(name)
        raise translated(error, name) from error


def switch(path: Path, to: LogGeneration) -> None:
    """Replace `backtrail.store` by another generation, whose files are on disk. The caller holds the lock."""
    name = path / STORE
    new = name.with_name(STORE + NEW)
    try:
        write_new(new, os.O_TRUNC, _line(to).encode() * 2)
        new.replace(name)
        synced_directory(path)
    except OSError as error:
        raise translated(error, name) from error


def sweep(path: Path, now: LogGeneration) -> None:
    """Remove the files of older generations. The caller holds the lock.

    The base of the next generation stays, because another process may be writing it. If it is not used, a later sweep
    removes it.
    """
    try:
        left = [Path(entry.path) for entry in os.scandir(path) if _is_leftover(entry.name, now) and not entry.is_dir()]
        if left:
            synced_directory(path)  # the process that switched may have been killed before
        for each in left:
            each.unlink(missing_ok=True)
    except OSError as error:
        raise translated(error, path) from error


def _is_leftover(name: str, now: LogGeneration) -> bool:
    """Tell whether a file is left over from an older generation or an interrupted write."""
    if name == _SNAPSHOT or name.startswith((STORE + NEW, _SNAPSHOT + NEW)):
        return True
    kind, _, rest = name.partition("-")
    if not rest or not _OURS.fullmatch(name):
        return False
    number = int(rest[:12])
    return number < now.file if kind == "log" else number <= now.generation and name != now.base


def refuse_if_full(path: Path, size: int) -> None:
    """Raise `Unavailable` if the disk has fewer than `size` bytes for gc. An attempt that fails leaves a log file."""
    try:
        disk = os.statvfs(path)
    except OSError as error:
        raise translated(error, path) from error
    if disk.f_bavail * disk.f_frsize < size:
        raise Unavailable(
            f"{path}: gc needs {size} free bytes on the disk: free some space and try again",
            code="unavailable.full",
        )


def size(path: Path) -> int:
    """Return the size of all files in a directory, in bytes."""
    total = 0
    for entry in os.scandir(path):
        with suppress(FileNotFoundError):
            total += entry.stat().st_size
    return total
