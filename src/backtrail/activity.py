"""Activity: the checkpoints of all threads in one list, newest first.

The threads of a store are listed by their newest row. So the list is a merge: a thread is opened when its newest row is
next, and its checkpoints then take their places among those of the threads that are open.
"""

from __future__ import annotations

import heapq
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from backtrail.models import micros
from backtrail.thread import Thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.transaction import Engine

_PAGE = 200


def activity(
    engine: Engine,
    kinds: Sequence[str],
    *,
    agent: str | None,
    since: int | None,
    until: int | None,
    limit: int | None,
) -> Iterator[Checkpoint[Any]]:
    """Yield the checkpoints of threads of these kinds, newest first, without loading states.

    `since` and `until` are microseconds since 1970. A thread whose head is unknown is skipped.
    """
    threads = heapq.merge(*(_threads(engine, kind, agent, since) for kind in kinds), key=_age)
    return islice(_merged(engine, threads, since, until), limit)


def _threads(engine: Engine, kind: str, agent: str | None, since: int | None) -> Iterator[tuple[ThreadRecord, Row]]:
    """Yield the threads of a kind that were written to since a time, newest first."""
    after: tuple[int, int] | None = None
    while True:
        backend = engine.session.reader.backend
        page = backend.threads(space=kind, agent=agent, prefix=None, after=after, limit=_PAGE)
        yield from takewhile(lambda each: since is None or each[1].created_at >= since, page)
        if len(page) < _PAGE or (since is not None and page[-1][1].created_at < since):
            return
        after = page[-1][1].created_at, page[-1][0].no


def _age(entry: tuple[ThreadRecord, Row]) -> int:
    return -entry[1].created_at


def _merged(
    engine: Engine, threads: Iterator[tuple[ThreadRecord, Row]], since: int | None, until: int | None
) -> Iterator[Checkpoint[Any]]:
    opened: list[tuple[int, int, Checkpoint[Any], Iterator[Checkpoint[Any]]]] = []
    """A heap of the newest checkpoint of each open thread that was not yielded yet."""

    def push(number: int, checkpoints: Iterator[Checkpoint[Any]]) -> None:
        first = next(checkpoints, None)
        if first is not None and (since is None or micros(first.created_at) >= since):
            heapq.heappush(opened, (-micros(first.created_at), number, first, checkpoints))

    def pop() -> Iterator[Checkpoint[Any]]:
        _, number, checkpoint, rest = heapq.heappop(opened)
        if until is None or micros(checkpoint.created_at) < until:
            yield checkpoint
        push(number, rest)

    for record, newest in threads:
        while opened and opened[0][0] < -newest.created_at:
            yield from pop()
        thread: Thread[Any] = Thread(engine, record.space, record.name)
        push(record.no, thread.history(newest_first=True, everything=True))
    while opened:
        yield from pop()
