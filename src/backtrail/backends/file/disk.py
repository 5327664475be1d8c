"""Wrappers of system calls on files, and the translation of their errors."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backtrail.errors import Error, Invalid, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "STORE",
    "created",
    "fcntl",
    "read_at",
    "remove",
    "synced",
    "synced_directory",
    "translated",
    "write_at",
    "write_new",
]

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STORE: Final = "backtrail.store"
"""The file that makes its directory a store."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def created(name: Path, flags: int) -> int:
    """Open a file of a store, create it if it does not exist, and return its descriptor.

    A new file gets the mode and the owner of `backtrail.store`, as far as the process may set them, so that the same
    users can use it. If there is no `backtrail.store` yet, only the owner can.
    """
    flags |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    try:
        like = (name.parent / STORE).stat()
    except OSError:  # the store is being made
        return os.open(name, flags, 0o600)
    fd = os.open(name, flags, 0o600)
    for owner in (like.st_uid, -1):
        with suppress(OSError):
            os.fchown(fd, owner, like.st_gid)
            break
    with suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(like.st_mode))
    return fd


def read_at(fd: int, at: int, length: int) -> bytes:
    """Return `length` bytes of a file from the offset `at`; fewer if the file ends before."""
    data = os.pread(fd, length, at)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(fd, length - got, at + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def write_at(fd: int, at: int, data: bytes) -> None:
    """Write all of the data at the offset `at`."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, at)
        view = view[done:]
        at += done


def write_new(name: Path, flags: int, data: bytes) -> None:
    """Write a small file of a store, and wait until its content is on disk."""
    fd = created(name, os.O_WRONLY | flags)
    try:
        write_at(fd, 0, data)
        synced(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove a file that is no longer needed; if that fails, a later sweep removes it."""
    with suppress(OSError):
        path.unlink()


def synced(fd: int) -> None:
    """Wait until the content of a file is on disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: its fsync() does not wait for the drive
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def synced_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def translated(error: OSError, path: object) -> Error:
    """Return the backtrail error for an OSError; `path` is the file or directory that the message names."""
    reason = f"{path}: {error.strerror or error}"
    if error.errno in _FULL:
        return Unavailable(f"{reason}: free some space and try again", code="unavailable.full")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Unavailable(
            f"{reason}: check the permissions of the directory and of its files", code="unavailable.open"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Unavailable(
            f"{reason}: too many files are open: close unused stores, or raise the limit (ulimit -n)",
            code="unavailable.open",
        )
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return Invalid(f"{reason}: pass another path", code="invalid.store")
    if error.errno == errno.EROFS:
        return Unavailable(
            f"{reason}: open the store with read_only=True, or use another path", code="unavailable.read_only"
        )
    return Unavailable(
        f"{reason}: the disk or its file system has failed: try again, or use another disk", code="unavailable.io"
    )
