"""Convert the port's values to columns of a database and back.

Text of users is stored as bytes, because databases cut text at a NUL or refuse it, and do not allow lone surrogates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.port import IndexEntry, IndexHit, Row, ThreadRecord, ThreadTip, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_SEQ: Final = (1 << 32) - 1
_RECORD: Final = len(ThreadRecord._fields)
_ROW: Final = len(Row._fields)


def encoded(text: str | None) -> bytes | None:
    """Return the stored bytes of a text, even of a lone surrogate. A prefix stays a prefix, and None stays None."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decoded(stored: bytes | None) -> str | None:
    """Return the text of stored bytes; None stays None. Damaged bytes become escapes, so the row's checksum fails."""
    return None if stored is None else text_of(stored)


def text_of(stored: bytes) -> str:
    """Return the text of stored bytes, with escapes for bytes that cannot be decoded."""
    try:
        return stored.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return stored.decode("utf-8", "backslashreplace")


def as_row(values: Sequence[Any]) -> Row:
    """Return the row from its columns in the order of its fields."""
    return Row._make((*values[:12], decoded(values[12]), *values[13:20], values[20] == 1))


def as_record(values: Sequence[Any]) -> ThreadRecord:
    """Return the thread from its columns in the order of its fields."""
    no, space, name, uid, agent, created_at, origin = values
    return ThreadRecord(no, space, decoded(name) or "", uid, decoded(agent), created_at, decoded(origin))


def as_tip(values: Sequence[Any]) -> ThreadTip:
    """Return a thread's tip from the columns of its record, of its newest row and of its head."""
    newest, head = values[_RECORD : _RECORD + _ROW], values[_RECORD + _ROW :]
    return ThreadTip(as_record(values[:_RECORD]), as_row(newest), None if head[0] is None else as_row(head))


def as_hit(values: Sequence[Any]) -> IndexHit:
    """Return a search hit from the columns of its thread's record and of its index entry."""
    seq, position, no, time, message_id, role, text = values[_RECORD:]
    entry = IndexEntry(time, decoded(message_id), decoded(role), "", text)
    return IndexHit(as_record(values[:_RECORD]), seq, position, no, entry)


def as_tags(rows: Iterable[Sequence[Any]]) -> dict[int, tuple[str, ...]]:
    """Return the tags of rows by seq from (seq, tag, ...) columns, in the same order."""
    tags: dict[int, tuple[str, ...]] = {}
    for seq, tag, *_ in rows:
        tags[seq] = (*tags.get(seq, ()), text_of(tag))
    return tags


def as_usage(
    threads: Iterable[tuple[str, int]],
    checkpoints: Iterable[tuple[str, int, int]],
    items: Iterable[tuple[str, int]],
    *,
    rows: tuple[int, int],
    chunks: tuple[int, int],
    entries: tuple[int, int],
    stored: int,
) -> Usage:
    """Return the usage from the results of the counting statements.

    `threads` and `items` are (name space, count), `checkpoints` (name space, count, bytes). `rows`, `chunks` and
    `entries` are (count, bytes); `stored` is the size on disk in bytes.
    """
    saved = list(checkpoints)
    return Usage(
        threads=dict(threads),
        rows=rows[0],
        checkpoints={space: count for space, count, _ in saved},
        logical_bytes={space: size for space, _, size in saved},
        items=dict(items),
        chunks=chunks[0],
        payload_bytes=rows[1] + chunks[1],
        stored_bytes=stored,
        entries=entries[0],
        index_bytes=entries[1],
    )


def names_between(prefix: str | None) -> tuple[bytes | None, bytes | None]:
    """Return the range of names with a prefix: the lowest name in it, and the lowest above it. None means no bound."""
    low = encoded(prefix or None)
    return low, None if low is None else above(low)


def above(prefix: bytes) -> bytes | None:
    """Return the lowest bytes above all bytes that begin with the prefix; None if there are none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, joined where they overlap or touch, and limited to valid seqs."""
    result: list[tuple[int, int]] = []
    for first, last in sorted((max(first, 1), min(last, MAX_SEQ)) for first, last in ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result
