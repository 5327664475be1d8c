"""Listings of threads: what is known of each without loading its state, newest activity first, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.reader import Standing
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.models import ThreadInfo, micros, when
from backtrail.validation import check_id, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.transaction import Desk, Engine

SPACES: Final = ("thread", "agent", "conversation", "run")
_PAGE: Final = 200


class Scope(NamedTuple):
    """Which threads are meant: those of a name space, an agent's, those whose ids begin so."""

    space: str
    agent: str | None = None
    prefix: str | None = None


def scope_of(kind: str | None, agent: str | None = None, prefix: str | None = None) -> Scope:
    """Return which threads are meant by what a caller says."""
    space = kind or THREAD
    if space not in (*SPACES, ASIDE):
        raise Invalid(f"kind is one of {', '.join((*SPACES, ASIDE))}, not {kind!r}", code="invalid.argument")
    if prefix is not None and not isinstance(prefix, str):
        raise Invalid(f"prefix is the beginning of an id, not {prefix!r}", code="invalid.argument")
    owner = None if agent is None else check_id(agent, "an agent's id")
    return Scope(plain(space), owner, None if prefix is None else plain(prefix))


def listed(
    engine: Engine,
    scope: Scope,
    *,
    origin: bytes | None,
    limit: int | None,
    after: tuple[int, int] | None,
) -> Iterator[ThreadInfo]:
    """Give what is known of threads, newest activity first, behind a place if there is one."""
    left = limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        backend = engine.desk.heads.backend
        page = backend.threads(**scope._asdict(), origin=origin, after=after, limit=size)
        for record, newest in page:
            yield _info(engine.desk.heads, record, newest)
        if len(page) < size:
            return
        after = (page[-1][1].created_at, page[-1][0].no)
        left = None if left is None else left - size


def known(heads: Heads, space: str, name: str) -> ThreadInfo | None:
    """Return what is known of one thread; None if there is none, or it has no head."""
    found = _found(heads, space, name)
    return None if found is None or not found[1].head else _info(heads, *found)


def uid_of(heads: Heads, space: str, name: str) -> bytes:
    """Return the uid of a thread, or `NotFound`."""
    record = heads.backend.find_thread(space, check_id(name, "a thread's id"))
    if record is None:
        raise NotFound(f"there is no thread {name!r}", code="not_found.thread")
    return record.uid


def place_of(desk: Desk, space: str, after: ThreadInfo | str) -> tuple[int, int]:
    """Return where a listing goes on."""
    name = after.id if isinstance(after, ThreadInfo) else after
    found = _found(desk.heads, space, check_id(name, "a thread's id"))
    if found is None:
        raise NotFound(f"there is no thread {name!r} to go on behind", code="not_found.thread")
    record, newest = found
    return micros(after.updated_at) if isinstance(after, ThreadInfo) else newest.created_at, record.no


def _found(heads: Heads, space: str, name: str) -> tuple[ThreadRecord, Row] | None:
    """Return a thread and its newest row, damaged or not."""
    record = heads.backend.find_thread(space, name)
    newest = None if record is None else heads.backend.newest(record.no)
    return None if record is None or newest is None else (record, newest)


def _info(heads: Heads, record: ThreadRecord, newest: Row) -> ThreadInfo:
    standing, damaged = _standing(heads, record, newest)
    return ThreadInfo(
        id=record.name,
        kind=record.space,
        agent=record.agent,
        created_at=when(record.created_at),
        updated_at=when(newest.created_at),
        step=standing.newest.step,
        checkpoints=heads.count(standing),
        head_id=log.checkpoint_id(record.uid, standing.newest.head),
        forked_from=record.origin,
        damaged=damaged,
    )


def _standing(heads: Heads, record: ThreadRecord, newest: Row) -> tuple[Standing, str | None]:
    """Return how a thread stands, or the last that is known of that, and why it is not known."""
    head = newest if newest.head == newest.seq else heads.row(record, newest.head)
    if head is not None and log.is_sound(newest, record.uid) and log.is_sound(head, record.uid):
        return Standing(record, newest, head), None
    try:
        standing = heads.readable(record)
    except Corrupt as error:
        return Standing(record, newest, None), str(error)
    if standing is None:  # it was collected meanwhile
        return Standing(record, newest, None), None
    return standing, None if standing.lost is None else str(standing.lost)
