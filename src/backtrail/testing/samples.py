"""Threads, rows and batches for tests of a backend, and functions that return its whole content."""

from __future__ import annotations

import itertools
from typing import Any

from backtrail.backends.port import Batch, NewThread, Row, ThreadRecord

ODD_TEXTS = ["", "a\0b", "\ud800", "\ud83d\ude00", "😀", "%", "_", "'; --", "\U0010ffff", "é"]
"""NUL, a lone surrogate, a pair of them that is not the character, that character, wildcards, the last character."""

HOLDERS = [bytes(8), b"holder 1", b"\xff" * 8]
"""Uids of threads that rows are pinned for."""

_CHUNKS = ("a", "b", "c", "new", "old", "there", "gone")
"""The names of the chunks that `contents` returns."""

_counter = itertools.count(1)


def unique(size: int = 16) -> bytes:
    """Return bytes that no other call returns."""
    return next(_counter).to_bytes(size, "big")


def row(seq: int, **fields: Any) -> Row:
    """Return a row that is a checkpoint and its thread's head, unless the fields say otherwise."""
    defaults: dict[str, Any] = {
        "op": 1,
        "parent": seq - 1,
        "step": seq,
        "head": seq,
        "undo": 0,
        "redo": 0,
        "view": 0,
        "base": 1,
        "depth": 0,
        "created_at": 1000 + seq,
        "kind": 0,
        "label": None,
        "size": 10,
        "stored": 7,
        "root": b"root %d" % seq,
        "op_id": unique(),
        "extra": b"",
        "check": b"check",
        "payload": b"payload %d" % seq,
        "hidden": False,
    }
    return Row(seq=seq, **(defaults | fields))


def new(name: str, **fields: Any) -> NewThread:
    """Return a thread to create."""
    defaults: dict[str, Any] = {"space": "thread", "uid": unique(8), "agent": None, "created_at": 5, "origin": None}
    return NewThread(name=name, **(defaults | fields))


def start(backend: Any, name: str = "x", rows: int = 1, **fields: Any) -> int:
    """Create a thread with that many rows and return its number."""
    batch = Batch(threads=(new(name, **fields),), rows=tuple((-1, row(seq)) for seq in range(1, rows + 1)))
    numbers: tuple[int] = backend.commit(batch)
    return numbers[0]


def digest(text: str) -> bytes:
    """Return the digest of a chunk, by a short text."""
    return text.encode().ljust(32, b".")


def listed(backend: Any, **filters: Any) -> list[tuple[ThreadRecord, Row]]:
    """Return a page of threads."""
    wanted = {"space": None, "agent": None, "prefix": None, "after": None, "limit": 100} | filters
    page: list[tuple[ThreadRecord, Row]] = backend.threads(**wanted)
    return page


def names(backend: Any, **filters: Any) -> list[str]:
    """Return the names of a page of threads."""
    return [record.name for record, _ in listed(backend, **filters)]


def owned(backend: Any, agent: str = "a") -> list[str]:
    """Return the names of an owner's threads."""
    return [tip.record.name for tip in backend.tips(agent, touched=False)]


def touched(backend: Any, agent: str = "a") -> list[str]:
    """Return the names of an owner's touched threads."""
    return [tip.record.name for tip in backend.tips(agent, touched=True)]


def untouch(backend: Any, no: int, seq: int) -> None:
    """Commit that a thread is untouched as of a row."""
    backend.commit(Batch(untouch=((no, seq),)))


def hidden(backend: Any, no: int) -> list[int]:
    """Return the seqs of the hidden rows of a thread."""
    return [each.seq for each in backend.rows(no, [(1, 99)]) if each.hidden]


def contents(backend: Any) -> dict[str, Any]:
    """Return all answers of a Reader; of chunks, only those with short names."""
    numbers = backend.thread_numbers(0, 1000)
    return {
        "threads": [backend.thread(no) for no in numbers],
        "rows": {no: backend.rows(no, [(1, 100)], payload=True) for no in numbers},
        "tags": {no: backend.tags(no) for no in numbers},
        "pins": {no: backend.pins(no) for no in numbers},
        "chunks": backend.chunks(list(map(digest, _CHUNKS))),
        "listed": listed(backend),
        "tips": [backend.tips(agent, touched=wanted) for agent in "ab" for wanted in (True, False)],
    }


def everything(backend: Any) -> dict[str, Any]:
    """Return the whole content of a backend, through all its read methods."""
    page = backend.chunk_page(b"", 1000)
    names = dict(zip(backend.addresses(list(map(digest, _CHUNKS))), _CHUNKS, strict=True))
    return contents(backend) | {
        "epochs": {name: epoch for address, epoch in page if (name := names.get(address))},
        "other epochs": sorted(epoch for address, epoch in page if address not in names),
        "usage": backend.usage()._replace(stored_bytes=0, index_bytes=0),
        "marked": backend.unindexed(0, 1000),
    }
