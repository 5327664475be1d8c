"""Atomic creation of files and directories: they are made under a temporary name, synced, then renamed.

An existing file is never replaced, not even one that another process has just created. A name is refused if SQLite
would treat the new file as the WAL, shared memory or journal of an existing database, or an existing file as one of
these for the new file. New parent directories are synced, too. A process that is killed leaves a file named
`.backtrail-<random>.part`, which no process reads.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from backtrail.errors import Conflict, Error, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""The errors of `os.link` on file systems without hard links."""
PARTS: Final = ("-wal", "-shm", "-journal")
"""The endings of the files that SQLite creates and removes next to a database file."""


def path_of(path: Any) -> Path:
    """Return a caller's file name as a path, with `~` expanded; `Invalid` if it is not a file name."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise Invalid(f"a file name must be a str or a path without NUL, not {path!r}", code="invalid.argument")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise Invalid(f"{name}: the user after ~ does not exist: {error}", code="invalid.argument") from error


@contextmanager
def temporary() -> Iterator[Path]:
    """Yield a new temporary directory, which is removed when the block ends."""
    try:
        folder = TemporaryDirectory(prefix="backtrail-", ignore_cleanup_errors=True)  # must not mask the block's error
    except OSError as error:
        raise translated(error, Path(error.filename or "a temporary directory")) from error
    with folder as name:
        yield Path(name)


@contextmanager
def placed(path: Path, *, beside: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield a temporary path, where the block creates a file or directory; then rename it to `path` and sync it.

    If the block raises, the file is removed. A caller that creates a directory must sync the files in it.

    Raises `Conflict` if `path` exists, if a file with the name of `path` and one of the endings `beside` exists, or if
    SQLite would take `path` for a file that belongs to an existing database.
    """
    try:
        if path.is_dir():
            raise Invalid(f"{path}: is a directory: pass the path of a new file", code="invalid.argument")
        _refuse_existing(path)
        _refuse_beside(path, beside)
        _make(path.parent)
        part = path.with_name(f".backtrail-{os.urandom(8).hex()}.part")
        try:
            yield part
            sync(part)
            _refuse_beside(path, beside)
            _give_name(part, path)
        except BaseException:
            remove(part)
            raise
        sync(path.parent)
    except OSError as error:
        raise translated(error, path) from error


class FileAccess(NamedTuple):
    """The mode and the group of a file or directory."""

    mode: int
    group: int

    @classmethod
    def to(cls, path: Path) -> FileAccess:
        """Return the mode and the group of a path. Raises OSError."""
        status = path.stat()
        return cls(stat.S_IMODE(status.st_mode), status.st_gid)

    def give(self, path: Path) -> None:
        """Set the mode and group of a path. If the process may not set the group, the group gets no rights."""
        mode = self.mode
        with suppress(OSError):
            if path.stat().st_gid != self.group:
                try:
                    os.chown(path, -1, self.group)
                except OSError:  # a process can set only a group of its own
                    mode &= ~stat.S_IRWXG
            path.chmod(mode)


def opened(part: Path, access: FileAccess | None) -> BinaryIO:
    """Create a file and open it for writing. Only its owner may read it, unless `access` says otherwise."""
    file = open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - Path has none
    if access is not None:
        access.give(part)
    return file


def translated(error: OSError, path: Path) -> Error:
    """Return the backtrail error for an OSError at a path."""
    if error.errno in _FULL:
        return Unavailable(f"{path}: {error.strerror}: free some space and try again", code="unavailable.full")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "too many files are open: close unused stores, or raise the limit (ulimit -n)"
        return Unavailable(f"{path}: {error.strerror}: {advice}", code="unavailable.open")
    if error.errno == errno.EIO:
        return Unavailable(f"{path}: {error.strerror}: the disk has failed", code="unavailable.io")
    return Unavailable(f"{path}: {error.strerror or error}: check its name and permissions", code="unavailable.open")


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise _existing(path)


def _refuse_beside(path: Path, endings: tuple[str, ...]) -> None:
    """Raise `Conflict` if SQLite would take `path` for a part of an existing database, or the reverse."""
    for ending in PARTS:
        whole = path.with_name(path.name.removesuffix(ending) or path.name)
        if whole != path and whole.is_file():
            raise Conflict(
                f"{path}: SQLite would take this file for a part of {whole.name} and remove it: choose another name",
                code="conflict.exists",
            )
    for ending in endings:
        other = path.with_name(path.name + ending)
        if other.exists() or other.is_symlink():
            raise Conflict(
                f"{other}: is left from another {path.name}, and SQLite would take it for a part of the new file: "
                "choose another name, or remove it if it is not in use",
                code="conflict.exists",
            )


def _existing(path: Path) -> Conflict:
    return Conflict(f"{path}: exists already: choose another name, or remove it", code="conflict.exists")


def _make(directory: Path) -> None:
    """Create a directory and its missing parents, and sync the parent of each new directory."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync(each.parent)


def _give_name(part: Path, path: Path) -> None:
    """Rename `part` to `path`; `Conflict` if `path` exists. Uses a link, because a rename would replace a file."""
    try:
        try:
            os.link(part, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:  # directories cannot be linked: EPERM
                raise
            _rename(part, path)
            return
    except FileExistsError as error:
        raise _existing(path) from error
    remove(part)


def _rename(part: Path, path: Path) -> None:
    """Rename where hard links are missing: create `path` empty, which fails if it exists, then replace it.

    A process that is killed between the two leaves an empty file.
    """
    if part.is_dir():
        _rename_directory(part, path)
        return
    path.touch(0o600, exist_ok=False)
    try:
        part.rename(path)
    except BaseException:
        path.unlink()
        raise


def _rename_directory(part: Path, path: Path) -> None:
    try:
        path.mkdir()
        part.rename(path)
    except FileExistsError:
        raise
    except BaseException as error:
        with suppress(OSError):  # it is not empty if another process has put files into it
            path.rmdir()
        if isinstance(error, OSError) and error.errno == errno.ENOTEMPTY:
            raise FileExistsError from error
        raise


def remove(part: Path) -> None:
    """Remove a file or directory. Errors are ignored."""
    with suppress(OSError):
        if part.is_dir():
            rmtree(part)
        else:
            part.unlink()


def sync(path: Path) -> None:
    """Sync a file's content, or a directory's list of files, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
