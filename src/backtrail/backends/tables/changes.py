"""All that can happen to the tables of a store.

A change says what is to be, not how it came to that. Payloads, chunks and the texts of the index are *bodies*: bytes,
or a place where the bytes are. Whoever reads them knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from backtrail.backends.port import Entry, Indexed, Row, ThreadRecord


class Place(NamedTuple):
    """Where bytes are: in which file, from where on, how many."""

    file: int
    at: int
    length: int


Body: TypeAlias = bytes | Place


def size_of(body: Body) -> int:
    """Return how many bytes it has."""
    return len(body) if isinstance(body, bytes) else body.length


class Listed(NamedTuple):
    """An entry in a thread's list: its number, what is known of it at once, and its text."""

    no: int
    entry: Entry
    """Without its text: that is empty."""
    text: Body
    check: int | None
    """The CRC-32 of the text; None if it is not known."""


class PutThread(NamedTuple):
    """A thread is made, or begins again; whether it is touched is another change."""

    record: ThreadRecord


class PutRow(NamedTuple):
    """A row is there, with this payload. If it is news, its thread is marked and touched."""

    thread: int
    row: Row
    """Without its payload."""
    payload: Body
    news: bool


class LoseRow(NamedTuple):
    """A row was there, or all up to a last one, and nothing is known of it: what stands there matches no checksum."""

    thread: int
    seq: int
    last: int = 0
    """The last of them, if there are several."""


class RemoveRows(NamedTuple):
    """Rows are gone, with their tags."""

    thread: int
    seqs: tuple[int, ...]


class Hide(NamedTuple):
    """A row is hidden, or it is not."""

    thread: int
    seq: int
    hidden: bool


class SetTags(NamedTuple):
    """The tags of a row are these."""

    thread: int
    seq: int
    tags: tuple[str, ...]


class PutChunk(NamedTuple):
    """A chunk is there."""

    digest: bytes
    epoch: int
    body: Body


class Stamp(NamedTuple):
    """Chunks that are there belong to an epoch."""

    epoch: int
    digests: tuple[bytes, ...]


class RemoveChunks(NamedTuple):
    """Chunks are gone."""

    digests: tuple[bytes, ...]


class Touch(NamedTuple):
    """A thread that has an agent is touched, or it is not."""

    thread: int
    touched: bool


class Mark(NamedTuple):
    """A thread is marked, or it is not."""

    thread: int
    marked: bool


class PutList(NamedTuple):
    """A thread's list is what these splices make of it."""

    thread: int
    now: Indexed
    splices: tuple[tuple[int, int, tuple[Listed | None, ...]], ...]
    """(at, removed, what stands there instead)."""


class DropList(NamedTuple):
    """There is no list of a thread, and it is marked."""

    thread: int


class SetMeta(NamedTuple):
    """A number of the store: "epoch", the present one, "entry", the highest of an entry, or what upkeep has noted."""

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
