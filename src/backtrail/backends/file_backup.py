"""A copy of a store in files as another directory, made while others write.

Files only grow at their end, and those that are open stay, though a collection removes them. So what there is up to one
place of the log is of one moment, and nobody has to wait.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backtrail.backends import file_directory as directory
from backtrail.backends.file_disk import STORE, created, read_at, synced, synced_directory, translated, write_at
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backtrail.backends.file_reading import Generation, Reader

_PIECE: Final = 1024 * 1024
"""Bytes that are copied at once."""


def copy(
    source: Reader, generation: Generation, place: Path, path: Path, progress: Callable[[str, int], None] | None
) -> int:
    """Copy all that was read of the store in a place to a new directory; return how many bytes that has."""
    total = 0
    try:
        path.mkdir(0o700)
        directory.switch(path, generation)
        _allow_as(path / STORE, place / STORE)  # who may not read the store may not read this
        for name, fd, size in source.files():
            into = created(path / name, os.O_WRONLY | os.O_EXCL)
            try:
                for at in range(0, size, _PIECE):
                    piece = _read(fd, at, min(_PIECE, size - at), place / name)
                    write_at(into, at, piece)
                    total += len(piece)
                    if progress:
                        progress("bytes", total)
                synced(into)
            finally:
                os.close(into)
        _allow_as(path, place)
        synced_directory(path)
        return directory.size(path)
    except OSError as error:
        raise translated(error, path) from error


def _read(fd: int, at: int, length: int, name: Path) -> bytes:
    try:
        piece = read_at(fd, at, length)
    except OSError as error:
        raise translated(error, name) from error
    if len(piece) < length:
        raise Corrupt(f"{name}: ends at {at + len(piece)}, and was longer: verify() tells more", code="corrupt.store")
    return piece


def _allow_as(path: Path, like: Path) -> None:
    with suppress(OSError):
        path.chmod(stat.S_IMODE(like.stat().st_mode))
