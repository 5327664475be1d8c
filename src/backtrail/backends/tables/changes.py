"""The kinds of changes to a store's tables.

A change names the resulting values, so applying it twice gives the same tables. Payloads, chunks and the texts of the
index are *bodies*: bytes, or the place of the bytes in a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from backtrail.backends.port import IndexEntry, IndexState, Row, ThreadRecord


class Place(NamedTuple):
    """The place of bytes in a log: the number of the file, the offset, the length."""

    file: int
    at: int
    length: int


Body: TypeAlias = bytes | Place


def size_of(body: Body) -> int:
    """Return the length of a body in bytes."""
    return len(body) if isinstance(body, bytes) else body.length


class Listed(NamedTuple):
    """An entry in a thread's index list."""

    no: int
    entry: IndexEntry
    """The entry with an empty text; `text` has the text as a body."""
    text: Body
    check: int | None
    """The CRC-32 of the text; older logs have None."""


class PutThread(NamedTuple):
    """A change: create a thread, or replace its record. This does not touch the thread."""

    record: ThreadRecord


class PutRow(NamedTuple):
    """A change: add or replace a row. `news`: the row is new, so its thread is marked for the index and touched."""

    thread: int
    row: Row
    """The row without its payload."""
    payload: Body
    news: bool


class LoseRow(NamedTuple):
    """A change: fill lost seqs with rows that have a wrong checksum, so that readers find the damage."""

    thread: int
    seq: int
    last: int = 0
    """The last lost seq, if several are lost; 0 if only `seq` is lost."""


class RemoveRows(NamedTuple):
    """A change: remove rows and their tags."""

    thread: int
    seqs: tuple[int, ...]


class Hide(NamedTuple):
    """A change: set or clear the hidden flag of a row."""

    thread: int
    seq: int
    hidden: bool


class SetTags(NamedTuple):
    """A change: replace the tags of a row."""

    thread: int
    seq: int
    tags: tuple[str, ...]


class PutChunk(NamedTuple):
    """A change: add or replace a chunk."""

    digest: bytes
    epoch: int
    body: Body


class Stamp(NamedTuple):
    """A change: set the epoch of chunks."""

    epoch: int
    digests: tuple[bytes, ...]


class RemoveChunks(NamedTuple):
    """A change: remove chunks."""

    digests: tuple[bytes, ...]


class Touch(NamedTuple):
    """A change: mark a thread of an agent as touched or untouched."""

    thread: int
    touched: bool


class Mark(NamedTuple):
    """A change: set or remove the mark of a thread whose index list is out of date."""

    thread: int
    marked: bool


class PutList(NamedTuple):
    """A change: apply splices to the index list of a thread; its version becomes `now`."""

    thread: int
    now: IndexState
    splices: tuple[tuple[int, int, tuple[Listed | None, ...]], ...]
    """(position, number of removed entries, new entries)."""


class DropList(NamedTuple):
    """A change: remove the index list of a thread, and mark the thread."""

    thread: int


class SetMeta(NamedTuple):
    """A change: set a number of the store.

    "epoch" is the current epoch, "entry" the highest number of an index entry. Only earlier versions wrote "verified".
    """

    name: str
    value: int


Change: TypeAlias = (
    PutThread
    | PutRow
    | LoseRow
    | RemoveRows
    | Hide
    | SetTags
    | PutChunk
    | Stamp
    | RemoveChunks
    | Touch
    | Mark
    | PutList
    | DropList
    | SetMeta
)


def bodies_of(change: Change) -> list[Body]:
    """Return the bodies that a change contains."""
    match change:
        case PutRow():
            return [change.payload]
        case PutChunk():
            return [change.body]
        case PutList():
            return [each.text for _, _, new in change.splices for each in new if each is not None]
    return []
