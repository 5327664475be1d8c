"""A copy of a store in files as another directory, made while others write.

Files only grow at their end, and those that are open stay, though a collection removes them. So what there is up to one
place of the log is of one moment, and nobody has to wait. The copy says where its log ends: all of it is on disk.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.atomic_file import Access
from backtrail.backends.file import directory
from backtrail.backends.file.disk import (
    STORE,
    created,
    read_at,
    synced,
    synced_directory,
    translated,
    write_at,
    write_new,
)
from backtrail.backends.file.lock import end_bytes
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backtrail.backends.file.lock import End
    from backtrail.backends.file.reader import Generation, Reader

_PIECE: Final = 1024 * 1024
"""Bytes that are copied at once."""


class Source(NamedTuple):
    """A store, as it is at one moment."""

    place: Path
    generation: Generation
    log: Reader
    end: End | None
    """Where the log of the copy is to end; None if nobody knows."""


def copy(source: Source, path: Path, progress: Callable[[str, int], None] | None) -> int:
    """Copy all that was read of a store to a new directory; return how many bytes that has."""
    total = 0
    try:
        path.mkdir(0o700)
        directory.switch(path, source.generation)
        _allow_as(path / STORE, source.place / STORE)  # who may not read the store may not read this
        for name, fd, size in source.log.files():
            into = created(path / name, os.O_WRONLY | os.O_EXCL)
            try:
                for at in range(0, size, _PIECE):
                    piece = _read(fd, at, min(_PIECE, size - at), source.place / name)
                    write_at(into, at, piece)
                    total += len(piece)
                    if progress:
                        progress("bytes", total)
                synced(into)
            finally:
                os.close(into)
        if source.end is not None:
            write_new(path / directory.LOCK, os.O_EXCL, end_bytes(source.end))
        _allow_as(path, source.place)
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
        Access.to(like).give(path)
