"""Search: the messages of all heads that match a query, newest first.

The index is brought up to date first, so what was saved before is found. The backend then names entries that may match,
and each of them is held against the query here, so that a query means the same on every backend.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log, throttle
from backtrail.engine.search.indexer import catch_up, text_of
from backtrail.errors import Invalid
from backtrail.models import Hit, when

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import Found
    from backtrail.engine.reader import Heads
    from backtrail.engine.search.query import Match, Query

    Progress = Callable[[str, int], None] | None

RANKED: Final = 1000
"""By score, so many of the newest messages that match are put in order."""
_PAGE: Final = 64
_PAGE_MAX: Final = 1024
_TOP: Final = 1 << 63
"""Numbers are below this."""


class Place(NamedTuple):
    """Where a message stands among others that match: what to go on behind."""

    time: int
    no: int
    score: float

    @property
    def cursor(self) -> str:
        """The same as text."""
        return f"{self.time}:{self.no}:{self.score!r}"


def place_of(cursor: str) -> Place:
    """Return the place that a cursor names."""
    found: Place | None
    try:
        time, no, score = cursor.split(":")
        found = Place(int(time), int(no), float(score))
    except ValueError:
        found = None
    if found is None or not (abs(found.time) < _TOP and 0 <= found.no < _TOP and 0 <= found.score <= 1):
        raise Invalid(f"after= is a hit of this search, or its cursor, not {cursor!r}", code="invalid.argument")
    return found


class Where(NamedTuple):
    """What the messages must belong to; `None` means any."""

    space: str | None = None
    agent: str | None = None
    threads: tuple[int, ...] | None = None
    without: tuple[int, ...] = ()
    """Threads that are left out."""


class _Matching(NamedTuple):
    found: Found
    match: Match

    @property
    def place(self) -> Place:
        return Place(self.found.entry.time, self.found.no, self.match.score)

    @property
    def rank(self) -> tuple[float, int, int]:
        return self.match.score, self.found.entry.time, self.found.no


def newest(
    heads: Heads, query: Query, where: Where, *, after: Place | None, limit: int, progress: Progress = None
) -> list[Hit]:
    """Return messages that match, the newest first."""
    catch_up(heads, progress=progress)
    return list(map(_hit, islice(_matching(heads, query, where, after), limit)))


def best(
    heads: Heads, query: Query, where: Where, *, after: Place | None, limit: int, progress: Progress = None
) -> list[Hit]:
    """Return messages that match, those with the highest score first: of the newest `RANKED`."""
    catch_up(heads, progress=progress)
    ranked = sorted(islice(_matching(heads, query, where, None), RANKED), key=lambda each: each.rank, reverse=True)
    if after is not None:
        ranked = [each for each in ranked if each.rank < (after.score, after.time, after.no)]
    return list(map(_hit, ranked[:limit]))


def one_of_each(heads: Heads, query: Query, where: Where, *, limit: int) -> list[Hit]:
    """Return the newest message that matches of each thread, the newest first."""
    catch_up(heads)
    found: dict[int, _Matching] = {}
    place: tuple[int, int] | None = None
    while len(found) < limit:
        left = where._replace(without=tuple(found))  # one thread may have any number of them
        page = heads.backend.find(query.phrases, **left._asdict(), after=place, limit=_PAGE)
        for each in page:
            match = query.match(text_of(each.entry)) if each.record.no not in found and len(found) < limit else None
            if match is not None:
                found[each.record.no] = _Matching(each, match)
        if len(page) < _PAGE:
            break
        place = (page[-1].entry.time, page[-1].no)
    return list(map(_hit, found.values()))


def _matching(heads: Heads, query: Query, where: Where, after: Place | None) -> Iterator[_Matching]:
    place = None if after is None else (after.time, after.no)
    size = _PAGE
    while True:
        page = heads.backend.find(query.phrases, **where._asdict(), after=place, limit=size)
        for found in page:
            throttle.rest()
            match = query.match(text_of(found.entry))
            if match is not None:
                yield _Matching(found, match)
        if len(page) < size:
            return
        place = (page[-1].entry.time, page[-1].no)
        size = min(2 * size, _PAGE_MAX)  # few matched


def _hit(matching: _Matching) -> Hit:
    record, seq, position, _, entry = matching.found
    return Hit(
        conversation_id=record.name,
        message_id=entry.message_id,
        snippet=matching.match.snippet,
        role=entry.role,
        created_at=when(entry.time),
        score=matching.match.score,
        kind=record.space,
        agent=record.agent,
        position=position,
        checkpoint_id=log.checkpoint_id(record.uid, seq),
        cursor=matching.place.cursor,
    )
