"""Bases: files with the whole state of a store, without removed data.

A base has the format of a log: frames with the changes that make the tables. Readers apply it before the log of its
generation. A collection writes a base beside the current files, from a copy of the tables, while other processes write.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from backtrail.backends.file import frames
from backtrail.backends.file.disk import created, remove, synced, synced_directory, translated, write_at
from backtrail.backends.file.log import BASE, build
from backtrail.backends.file.records import echo
from backtrail.backends.tables.changes import PutList, bodies_of, size_of
from backtrail.backends.tables.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from backtrail.backends.tables.changes import Change, Place

_FRAME_CHANGES: Final = 32
_FRAME_BYTES: Final = 64 * 1024
_LIST_ENTRIES: Final = 256


def write(name: Path, uid: bytes, tables: Tables, read: Callable[[Place], bytes]) -> tuple[Tables, int]:
    """Write a base of the tables and sync it; return tables whose bodies are in the base, and its number of frames.

    `read` returns the bytes at a place of the old files.
    """
    copy = Tables()
    number = 0
    repeated: list[list[object]] = []
    try:
        fd = created(name, os.O_WRONLY | os.O_EXCL)
        try:
            header = frames.file_header(uid, BASE, 1)
            write_at(fd, 0, header)
            at = len(header)
            for changes in _slices(tables):  # the last slice is empty: its frame repeats the one before
                number += 1
                frame = build(uid, number, changes, on_disk=number - 1, repeated=repeated, read=read)
                for change in frame.changes(BASE, at):
                    copy.do(change)
                for piece in frames.joined(frame.pieces):
                    write_at(fd, at, piece)
                    at += len(piece)
                repeated = echo(changes)
            synced(fd)
        finally:
            os.close(fd)
        synced_directory(name.parent)
    except OSError as error:
        remove(name)
        raise translated(error, name) from error
    except BaseException:
        remove(name)
        raise
    copy.wasted = 0
    return copy, number


def _slices(tables: Tables) -> Iterator[list[Change]]:
    """Yield the changes that make the tables in slices of moderate size, then an empty slice."""
    changes: list[Change] = []
    size = 0
    for change in _parts(tables):
        changes.append(change)
        size += sum(map(size_of, bodies_of(change)))
        if len(changes) >= _FRAME_CHANGES or size >= _FRAME_BYTES:
            yield changes
            changes, size = [], 0
    if changes:
        yield changes
    yield []


def _parts(tables: Tables) -> Iterator[Change]:
    """Yield the changes that make the tables, with long index lists in parts."""
    for change in tables.whole():
        if isinstance(change, PutList):
            ((_, _, listed),) = change.splices
            for start in range(0, max(len(listed), 1), _LIST_ENTRIES):
                part = listed[start : start + _LIST_ENTRIES]
                yield PutList(change.thread, change.now, ((start, 0, part),))
        else:
            yield change
