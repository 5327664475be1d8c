"""Listings of threads: a `ThreadInfo` for each, without loading its state, newest activity first, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.reader import Tip
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.models import ThreadInfo, micros, when
from backtrail.validation import check_id, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader
    from backtrail.transaction import Engine, Session

SPACES: Final = ("thread", "agent", "conversation", "run")
_PAGE: Final = 200


class ThreadFilter(NamedTuple):
    """A filter of threads: their name space, their agent, and a prefix of their ids. None: any."""

    space: str
    agent: str | None = None
    prefix: str | None = None


def scope_of(kind: str | None, agent: str | None = None, prefix: str | None = None) -> ThreadFilter:
    """Return the filter for a caller's arguments; `Invalid` if one is wrong. Without a kind: plain threads."""
    space = kind or THREAD
    if space not in (*SPACES, ASIDE):
        raise Invalid(f"kind must be one of {', '.join((*SPACES, ASIDE))}, not {kind!r}", code="invalid.argument")
    if prefix is not None and not isinstance(prefix, str):
        raise Invalid(f"prefix must be the beginning of an id, not {prefix!r}", code="invalid.argument")
    owner = None if agent is None else check_id(agent, "an agent's id")
    return ThreadFilter(plain(space), owner, None if prefix is None else plain(prefix))


def listed(
    engine: Engine,
    scope: ThreadFilter,
    *,
    origin: bytes | None,
    limit: int | None,
    after: tuple[int, int] | None,
    since: int | None = None,
) -> Iterator[ThreadInfo]:
    """Yield the infos of the threads in a scope, newest activity first.

    `origin` is the uid of a thread: yield only its forks. `after` is the (time, number) of the last thread on the page
    before. `since` ends the listing at a thread whose last write was before this time.
    """
    left = limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        backend = engine.session.reader.backend
        page = backend.threads(**scope._asdict(), origin=origin, after=after, limit=size)
        for record, newest in page:
            if since is not None and newest.created_at < since:
                return
            yield _info(engine.session.reader, record, newest)
        if len(page) < size:
            return
        after = (page[-1][1].created_at, page[-1][0].no)
        left = None if left is None else left - size


def known(reader: LogReader, space: str, name: str) -> ThreadInfo | None:
    """Return the info of one thread; None if it does not exist or has no head."""
    entry = _record_and_newest(reader, space, name)
    return None if entry is None or not entry[1].head else _info(reader, *entry)


def uid_of(reader: LogReader, space: str, name: str) -> bytes:
    """Return the uid of a thread, or `NotFound`."""
    record = reader.backend.find_thread(space, check_id(name, "a thread's id"))
    if record is None:
        raise NotFound(f"there is no thread {name!r}", code="not_found.thread")
    return record.uid


def place_of(session: Session, space: str, after: ThreadInfo | str) -> tuple[int, int]:
    """Return the (time, number) after which a listing continues. `after` is a thread's id, or its info in a listing."""
    name = after.id if isinstance(after, ThreadInfo) else after
    entry = _record_and_newest(session.reader, space, check_id(name, "a thread's id"))
    if entry is None:
        raise NotFound(f"there is no thread {name!r} to continue after", code="not_found.thread")
    record, newest = entry
    return micros(after.updated_at) if isinstance(after, ThreadInfo) else newest.created_at, record.no


def before(until: int | None, place: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the (time, number) after which a listing begins that shows only writes before a time."""
    if until is None:
        return place
    return (until, 0) if place is None else min(place, (until, 0))


def _record_and_newest(reader: LogReader, space: str, name: str) -> tuple[ThreadRecord, Row] | None:
    """Return a thread's record and its newest row, which may be damaged; None if the thread has no rows."""
    record = reader.backend.find_thread(space, name)
    newest = None if record is None else reader.backend.newest(record.no)
    return None if record is None or newest is None else (record, newest)


def _info(reader: LogReader, record: ThreadRecord, newest: Row) -> ThreadInfo:
    tip, damaged = _tip(reader, record, newest)
    return ThreadInfo(
        id=record.name,
        kind=record.space,
        agent=record.agent,
        created_at=when(record.created_at),
        updated_at=when(newest.created_at),
        step=tip.newest.step,
        checkpoints=reader.count(tip),
        head_id=log.checkpoint_id(record.uid, tip.newest.head),
        forked_from=record.origin,
        damaged=damaged,
    )


def _tip(reader: LogReader, record: ThreadRecord, newest: Row) -> tuple[Tip, str | None]:
    """Return the tip of a thread, and None; if its head is lost, return the newest readable tip, and the reason."""
    head = newest if newest.head == newest.seq else reader.row(record, newest.head)
    if head is not None and log.is_sound(newest, record.uid) and log.is_sound(head, record.uid):
        return Tip(record, newest, head), None
    try:
        tip = reader.readable(record)
    except Corrupt as error:
        return Tip(record, newest, None), str(error)
    if tip is None:  # gc has removed its rows
        return Tip(record, newest, None), None
    return tip, None if tip.lost is None else str(tip.lost)
