"""Bases: all that a store holds, written anew, without what was removed.

A base has the form of a log: frames with changes that make the tables. It stands before the log of its generation. It
is made beside the present one, from tables that stay as they were, while others go on writing behind them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from backtrail.backends.file import frames
from backtrail.backends.file.disk import created, remove, synced, synced_directory, translated, write_at
from backtrail.backends.file.log import build
from backtrail.backends.file.reader import BASE
from backtrail.backends.file.records import echo
from backtrail.backends.tables.changes import Listed, PutChunk, PutList, PutRow, size_of
from backtrail.backends.tables.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from backtrail.backends.tables.changes import Body, Change, Place

_FRAME_CHANGES: Final = 32
_FRAME_BYTES: Final = 64 * 1024
_LIST_ENTRIES: Final = 256


def write(name: Path, uid: bytes, tables: Tables, read: Callable[[Place], bytes]) -> tuple[Tables, int]:
    """Write a base of these tables, durably; return tables that have all that is in it, and how many frames it has."""
    made = Tables()
    number = 0
    repeated: list[list[object]] = []
    try:
        fd = created(name, os.O_WRONLY | os.O_EXCL)
        try:
            header = frames.file_header(uid, BASE, 1)
            write_at(fd, 0, header)
            at = len(header)
            for changes in _slices(tables):  # the last one is empty: it repeats the one before
                number += 1
                built = build(uid, number, changes, on_disk=number - 1, repeated=repeated, read=read)
                for change in built.placed(BASE, at):
                    made.do(change)
                for piece in frames.joined(built.pieces):
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
    made.wasted = 0
    return made, number


def _slices(tables: Tables) -> Iterator[list[Change]]:
    """Give all that makes the tables in slices of moderate size, and an empty one."""
    held: list[Change] = []
    size = 0
    for change in _parts(tables):
        held.append(change)
        size += sum(map(size_of, _bodies(change)))
        if len(held) >= _FRAME_CHANGES or size >= _FRAME_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held
    yield []


def _parts(tables: Tables) -> Iterator[Change]:
    """Give all that makes the tables; long lists in parts."""
    for change in tables.whole():
        if isinstance(change, PutList):
            ((_, _, listed),) = change.splices
            for start in range(0, max(len(listed), 1), _LIST_ENTRIES):
                part = listed[start : start + _LIST_ENTRIES]
                yield PutList(change.thread, change.now, ((start, 0, part),))
        else:
            yield change


def _bodies(change: Change) -> list[Body]:
    match change:
        case PutRow():
            return [change.payload]
        case PutChunk():
            return [change.body]
        case PutList():
            entries = (each for _, _, new in change.splices for each in new)
            return [each.text for each in entries if isinstance(each, Listed)]
    return []
