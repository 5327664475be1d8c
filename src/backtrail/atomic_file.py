"""Files and directories that are there whole, or not at all: made under another name, synced, then given theirs.

What is there already is never replaced, not even if it came a moment ago, nor is a file put beside others that would be
taken for a part of it, or of which it would be taken for a part. New directories are synced, too. Whoever is killed in
the middle leaves something whose name begins with `.backtrail-` and ends with `.part`, which nobody reads.
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
"""What file systems say that have no hard links."""
PARTS: Final = ("-wal", "-shm", "-journal")
"""Endings of what SQLite keeps beside a file, and removes."""


def path_of(path: Any) -> Path:
    """Return the path of a file that a caller names."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise Invalid(f"this is not the name of a file: {path!r}", code="invalid.argument")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise Invalid(f"{name}: there is no such user: {error}", code="invalid.argument") from error


@contextmanager
def temporary() -> Iterator[Path]:
    """Give a new directory for what is needed for a while."""
    try:
        folder = TemporaryDirectory(prefix="backtrail-", ignore_cleanup_errors=True)  # what went wrong is to be known
    except OSError as error:
        raise translated(error, Path(error.filename or "a temporary directory")) from error
    with folder as name:
        yield Path(name)


@contextmanager
def placed(path: Path, *, beside: tuple[str, ...] = ()) -> Iterator[Path]:
    """Give the name of a file or directory to make; when the block ends well, it becomes `path`, and is on disk.

    Who makes a directory has synced what is in it.

    Nothing may be there whose name is that of `path` and one of the endings `beside`, nor a file of which SQLite would
    take it for a part.
    """
    try:
        if path.is_dir():
            raise Invalid(f"{path}: is a directory: name something new in it", code="invalid.argument")
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


class Access(NamedTuple):
    """Who may use a file or directory, beside its owner."""

    mode: int
    group: int

    @classmethod
    def to(cls, path: Path) -> Access:
        """Return who may use that one. Raises OSError."""
        found = path.stat()
        return cls(stat.S_IMODE(found.st_mode), found.st_gid)

    def give(self, path: Path) -> None:
        """Let them, and nobody else, use another one, as far as that may be done."""
        mode = self.mode
        with suppress(OSError):
            if path.stat().st_gid != self.group:
                try:
                    os.chown(path, -1, self.group)
                except OSError:  # only who belongs to a group may give it something
                    mode &= ~stat.S_IRWXG
            path.chmod(mode)


def opened(part: Path, access: Access | None) -> BinaryIO:
    """Open a new file to be written, for its owner alone; `access` says who else may read it."""
    file = open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - Path has none
    if access is not None:
        access.give(part)
    return file


def translated(error: OSError, path: Path) -> Error:
    """Return backtrail's error for one of the system's."""
    if error.errno in _FULL:
        return Unavailable(f"{path}: {error.strerror}: free some space and try again", code="unavailable.full")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "close stores that are not needed, or let the process open more (ulimit -n)"
        return Unavailable(f"{path}: {error.strerror}: {advice}", code="unavailable.open")
    if error.errno == errno.EIO:
        return Unavailable(f"{path}: {error.strerror}: the disk fails", code="unavailable.io")
    return Unavailable(f"{path}: {error.strerror or error}: check its name and permissions", code="unavailable.open")


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise _existing(path)


def _refuse_beside(path: Path, endings: tuple[str, ...]) -> None:
    """Raise `Conflict` if it would be taken for a part of another file, or another one for a part of it."""
    for ending in PARTS:
        whole = path.with_name(path.name.removesuffix(ending) or path.name)
        if whole != path and whole.is_file():
            raise Conflict(
                f"{path}: would be taken for a part of {whole.name}, and removed when that is used: name another file",
                code="conflict.exists",
            )
    for ending in endings:
        other = path.with_name(path.name + ending)
        if other.exists() or other.is_symlink():
            raise Conflict(
                f"{other}: is left of another {path.name}, and would be taken for a part of the new one: "
                "name another file, or remove it if nobody uses it any more",
                code="conflict.exists",
            )


def _existing(path: Path) -> Conflict:
    return Conflict(f"{path}: is there already: name another file, or remove it", code="conflict.exists")


def _make(directory: Path) -> None:
    """Make a directory, and those that it is to be in: each is on disk once its own directory is synced."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync(each.parent)


def _give_name(part: Path, path: Path) -> None:
    """Give it its name, unless another one has it: a link, unlike a rename, replaces nothing."""
    try:
        try:
            os.link(part, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:  # as for any directory: that is EPERM
                raise
            _rename(part, path)
            return
    except FileExistsError as error:
        raise _existing(path) from error
    remove(part)


def _rename(part: Path, path: Path) -> None:
    """Take the name first, and then put in its place what it is for; who is killed in between leaves it empty."""
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
        with suppress(OSError):  # somebody has put something there
            path.rmdir()
        if isinstance(error, OSError) and error.errno == errno.ENOTEMPTY:
            raise FileExistsError from error
        raise


def remove(part: Path) -> None:
    """Remove a file or a directory that is of no use; if that fails, it stays."""
    with suppress(OSError):
        if part.is_dir():
            rmtree(part)
        else:
            part.unlink()


def sync(path: Path) -> None:
    """Return when a file, or which files a directory has, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
