"""Search: the messages of all heads that match a query.

The caller updates the index first, so a search finds all messages that were saved before. The backend returns entries
that may match. This module checks each of them, so a query means the same on every backend.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log, throttle
from backtrail.engine.search.indexer import Where, behind, catch_up, text_of
from backtrail.errors import Invalid, Unavailable
from backtrail.models import Hit, when

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import IndexHit
    from backtrail.engine.reader import StoreReader
    from backtrail.engine.search.query import Query, TextMatch
    from backtrail.models import Period

RANKED: Final = 1000
"""How many of the newest matches a search by score ranks."""
_PAGE: Final = 64
_PAGE_MAX: Final = 1024
_TOP: Final = 1 << 63
"""All numbers in a cursor are below this."""


class SearchCursor(NamedTuple):
    """The position of a match in the order of a search, which the next page continues after."""

    time: int
    no: int
    score: float

    @property
    def cursor(self) -> str:
        """The cursor as text."""
        return f"{self.time}:{self.no}:{self.score!r}"


def cursor_of(cursor: str) -> SearchCursor:
    """Return the cursor of a text."""
    parsed: SearchCursor | None
    try:
        time, no, score = cursor.split(":")
        parsed = SearchCursor(int(time), int(no), float(score))
    except ValueError:
        parsed = None
    if parsed is None or not (abs(parsed.time) < _TOP and 0 <= parsed.no < _TOP and 0 <= parsed.score <= 1):
        raise Invalid(f"after= must be a hit of this search or its cursor, not {cursor!r}", code="invalid.argument")
    return parsed


class _ScoredHit(NamedTuple):
    hit: IndexHit
    match: TextMatch

    @property
    def place(self) -> SearchCursor:
        return SearchCursor(self.hit.entry.time, self.hit.no, self.match.score)

    @property
    def rank(self) -> tuple[float, int, int]:
        return self.match.score, self.hit.entry.time, self.hit.no


def index_first(
    reader: StoreReader,
    where: Where,
    progress: Callable[[str, int], None] | None = None,
    *,
    way_out: str = "pass wait=False",
) -> None:
    """Index the messages that a search needs; the error of a read-only store that lacks some names the `way_out`."""
    try:
        catch_up(reader, where, progress=progress)
    except Unavailable as error:
        if error.code != "unavailable.read_only":
            raise
        behind(reader.backend)  # a store of an older format has no index, and says so
        text = f"the search index lacks new messages, and a read-only store cannot add them: {way_out}"
        raise Unavailable(f"{text}, or open the store for writing", code=error.code) from None


def newest(
    reader: StoreReader,
    query: Query,
    where: Where,
    period: Period,
    *,
    after: SearchCursor | None,
    limit: int,
) -> list[Hit]:
    """Return matching messages, newest first."""
    return list(map(_hit, islice(_matching(reader, query, where, period, after), limit)))


def best(
    reader: StoreReader,
    query: Query,
    where: Where,
    period: Period,
    *,
    after: SearchCursor | None,
    limit: int,
) -> list[Hit]:
    """Return matching messages, highest score first, from the newest `RANKED` matches."""
    ranked = sorted(
        islice(_matching(reader, query, where, period, None), RANKED), key=lambda each: each.rank, reverse=True
    )
    if after is not None:
        ranked = [each for each in ranked if each.rank < (after.score, after.time, after.no)]
    return list(map(_hit, ranked[:limit]))


def one_of_each(reader: StoreReader, query: Query, where: Where, *, limit: int) -> list[Hit]:
    """Return the newest matching message of each thread, newest first."""
    index_first(reader, where, way_out=f'store.search(query, kind="{where.space}", wait=False) searches without them')
    hits: dict[int, _ScoredHit] = {}
    place: tuple[int, int] | None = None
    while len(hits) < limit:
        left = where._replace(without=tuple(hits))  # a thread with many matches must not fill all pages
        page = reader.backend.find(query.phrases, **left._asdict(), after=place, limit=_PAGE)
        for each in page:
            match = query.match(text_of(each.entry)) if each.record.no not in hits and len(hits) < limit else None
            if match is not None:
                hits[each.record.no] = _ScoredHit(each, match)
        if len(page) < _PAGE:
            break
        place = (page[-1].entry.time, page[-1].no)
    return list(map(_hit, hits.values()))


def _matching(
    reader: StoreReader, query: Query, where: Where, period: Period, after: SearchCursor | None
) -> Iterator[_ScoredHit]:
    place = None if after is None else (after.time, after.no)
    if period.until is not None:
        place = (period.until, 0) if place is None else min(place, (period.until, 0))
    size = _PAGE
    while True:
        page = reader.backend.find(query.phrases, **where._asdict(), after=place, limit=size)
        for hit in page:
            throttle.rest()
            if period.since is not None and hit.entry.time < period.since:
                return
            match = query.match(text_of(hit.entry))
            if match is not None:
                yield _ScoredHit(hit, match)
        if len(page) < size:
            return
        place = (page[-1].entry.time, page[-1].no)
        size = min(2 * size, _PAGE_MAX)  # few entries of the page matched


def _hit(matching: _ScoredHit) -> Hit:
    record, seq, position, _, entry = matching.hit
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
