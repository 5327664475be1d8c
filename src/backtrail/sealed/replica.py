"""Copy the sealed bytes of a store into another backend, as they are: for backups of stores that are not files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.backends.columns import MAX_SEQ
from backtrail.backends.port import Batch, NewThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.port import Backend, Row, ThreadRecord

_PAGE: Final = 500
_PAGE_BYTES: Final = 4 << 20


def replicate(source: Backend, target: Backend, progress: Callable[[str, int], None] | None) -> None:
    """Copy all threads, rows, tags, pins and chunks of a snapshot into an empty backend. Its index is made later."""
    after = b""
    while page := [address for address, _ in source.chunk_page(after, _PAGE)]:
        target.commit(Batch(chunks=tuple(source.chunks(page).items())))
        after = page[-1]
    count = last = 0
    while numbers := source.thread_numbers(last, _PAGE):
        for record in filter(None, map(source.thread, numbers)):
            count += _copy_thread(source, target, record)
            if progress:
                progress("rows", count)
        last = numbers[-1]


def _copy_thread(source: Backend, target: Backend, record: ThreadRecord) -> int:
    (no,) = target.commit(Batch(threads=(NewThread(*record[1:]),)))
    count, low = 0, 1
    tags, pins = source.tags(record.no), source.pins(record.no)
    while rows := _page(source, record.no, low):
        seqs = [row.seq for row in rows]
        target.commit(
            Batch(
                rows=tuple((no, row) for row in rows),
                gaps=True,
                tag=tuple((no, seq, tag) for seq in seqs for tag in tags.get(seq, ())),
                pin=tuple((no, seq, pin) for seq in seqs for pin in pins.get(seq, ())),
            )
        )
        count += len(rows)
        low = seqs[-1] + 1
    return count


def _page(source: Backend, no: int, low: int) -> list[Row]:
    """Return the next rows, with their payloads, up to a number of bytes."""
    rows = source.rows(no, [(low, MAX_SEQ)], payload=True, limit=_PAGE)
    size = 0
    for at, row in enumerate(rows):
        size += len(row.payload or b"")
        if size > _PAGE_BYTES and at:
            return rows[:at]
    return rows
