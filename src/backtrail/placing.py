"""Files that are there whole, or not at all: written under another name, synced, and then given theirs.

What is there already is never replaced. Whoever is killed in the middle leaves a file whose name begins with
`.backtrail-` and ends with `.part`, which nobody reads.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backtrail.errors import Conflict, Error, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def path_of(path: Any) -> Path:
    """Return the path of a file that a caller names."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise Invalid(f"this is not the name of a file: {path!r}", code="invalid.argument")
    return Path(name).expanduser()


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """Give the name of a file to write; when the block ends well, it becomes `path`, and is on disk."""
    try:
        if path.is_dir():
            raise Invalid(f"{path}: is a directory: name a file in it", code="invalid.argument")
        _refuse_existing(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".backtrail-{os.urandom(8).hex()}.part")
        try:
            yield part
            _sync(part)
            _refuse_existing(path)
            part.rename(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        _sync(path.parent)
    except OSError as error:
        raise translated(error, path) from error


def translated(error: OSError, path: Path) -> Error:
    """Return backtrail's error for one of the system's."""
    if error.errno in _FULL:
        return Unavailable(f"{path}: {error.strerror}: free some space and try again", code="unavailable.full")
    if error.errno == errno.EIO:
        return Unavailable(f"{path}: {error.strerror}: the disk fails", code="unavailable.io")
    return Unavailable(f"{path}: {error.strerror or error}: check its name and permissions", code="unavailable.open")


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise Conflict(f"{path}: is there already: name another file, or remove it", code="conflict.exists")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
