"""Server-sent events: each new head of a thread, as `store.watch` gives it.

One feed for each access watches the store and hands the events to its readers. A reader has a short queue. If it does
not read, it loses its queue, gets one `reset` event, and goes on from there: it never holds up the others.

The id of an event names the feed, the number of the event, and the time of its checkpoint. A reader that comes back
with `Last-Event-ID` gets what it missed: from the feed's last events, or, if the server was restarted, from the store.
Then events of the last seconds before the interruption may come twice; each has the id of its checkpoint.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.responses import Response, StreamingResponse

from backtrail.errors import Error, Invalid
from backtrail.models import micros, when
from backtrail.operations.answers import brief
from backtrail.operations.threads import KINDS, handle
from backtrail.server.problems import Problem
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from backtrail.checkpoint import Checkpoint
    from backtrail.server.access import Access
    from backtrail.server.context import Context
    from backtrail.store import Store
    from backtrail.watch import Watch

_TYPE: Final = "text/event-stream"
_QUEUE: Final = 256
"""Events that wait for a reader."""
_KEPT: Final = 2_000
"""Events that a feed keeps for readers that come back."""
_MISSED: Final = 2_000
"""The most events that a reader gets from the store when it comes back; beyond it gets a reset."""
_READERS: Final = 1_000
_SLACK: Final = dt.timedelta(seconds=5)
"""Clocks of writers may differ by this much."""
_BEAT: Final = 15.0
"""Seconds between comments that keep a connection open."""
_PAUSE: Final = 1.0
"""Seconds before a failed watch begins again."""


class ServerEvent(NamedTuple):
    """A new head of a thread; `data` is None for a reset."""

    number: int
    time: int
    data: dict[str, Any] | None

    def encode(self, feed: str) -> bytes:
        """Return the event in the format of server-sent events."""
        name, data = ("reset", {}) if self.data is None else ("checkpoint", self.data)
        text = f"id: {feed}.{self.number}.{self.time}\nevent: {name}\ndata: {json.dumps(data)}\n\n"
        return text.encode()


class EventReader:
    """The queue of one reader, in its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.events: deque[ServerEvent] = deque()
        self.news = asyncio.Event()
        self.closed = False

    def put(self, event: ServerEvent) -> None:
        """Add an event, from any thread."""
        with suppress(RuntimeError):  # its event loop has ended
            self._loop.call_soon_threadsafe(self._put, event)

    def close(self) -> None:
        """End the stream of the reader, from any thread."""
        self.closed = True
        with suppress(RuntimeError):  # its event loop has ended
            self._loop.call_soon_threadsafe(self.news.set)

    def _put(self, event: ServerEvent) -> None:
        if len(self.events) >= _QUEUE:
            self.events.clear()
            event = event._replace(data=None)
        self.events.append(event)
        self.news.set()


class Feed:
    """Watches a store, and hands its events to readers."""

    def __init__(self, store: Store) -> None:
        self.name = secrets.token_hex(4)
        self._store = store
        self._lock = threading.Lock()
        self._readers: set[EventReader] = set()
        self._last: deque[ServerEvent] = deque(maxlen=_KEPT)
        self._number = 0
        self._watches: dict[str, Watch[Checkpoint[Any]]] = {}
        self._closed = False

    def start(self) -> None:
        """Begin to watch; nothing that is written after this call is missed."""
        with self._lock:
            for kind in KINDS:
                if kind not in self._watches:
                    self._watches[kind] = self._store.watch(kind=kind)
                    threading.Thread(target=self._run, args=(kind,), name="backtrail events", daemon=True).start()

    def _run(self, kind: str) -> None:
        while not self._closed:
            try:
                for checkpoint in self._watches[kind]:
                    self._publish(micros(checkpoint.created_at), event_data(kind, checkpoint))
                return  # the watch was closed
            except Error:  # the store is unavailable: readers must look again, once it is back
                time.sleep(_PAUSE)
            try:
                self._watches[kind] = self._store.watch(kind=kind)
                self._publish(self._last[-1].time if self._last else 0, None)
            except Error:
                continue

    def _publish(self, moment: int, data: dict[str, Any] | None) -> None:
        with self._lock:
            self._number += 1
            event = ServerEvent(self._number, moment, data)
            self._last.append(event)
            for reader in self._readers:
                reader.put(event)

    def join(self, reader: EventReader) -> None:
        """Add a reader."""
        with self._lock:
            if len(self._readers) >= _READERS:
                raise Problem(503, "unavailable.readers", f"the server has {_READERS} readers of events already")
            self._readers.add(reader)

    def leave(self, reader: EventReader) -> None:
        """Remove a reader."""
        with self._lock:
            self._readers.discard(reader)

    def missed(self, last_id: str) -> list[ServerEvent]:
        """Return the events after the one with this id, oldest first. If the feed no longer has them: one `reset`."""
        feed, number, moment = _parsed(last_id)
        with self._lock:
            kept = list(self._last)
            newest = self._number
        if feed == self.name and 0 < number <= newest and number >= kept[0].number - 1:
            return [event for event in kept if event.number > number]
        found = sorted(self._since(when(moment) - _SLACK), key=lambda event: event.time)
        return [ServerEvent(newest, moment, None)] if len(found) > _MISSED else found

    def _since(self, moment: dt.datetime) -> Iterator[ServerEvent]:
        """Give the checkpoints since a moment, of all threads that were written to since then."""
        count = 0
        for kind in KINDS:
            for info in self._store.threads(kind=kind):
                if info.updated_at < moment or count > _MISSED:
                    break
                thread = handle(self._store, kind, info.id)
                last = None
                for each in thread.history(everything=True, newest_first=True):
                    if each.created_at < moment or count > _MISSED:
                        break
                    count += 1
                    last = last or each
                    yield ServerEvent(0, micros(each.created_at), event_data(kind, each))
                if (last is None or last.id != info.head_id) and not info.damaged:  # a rewind is no checkpoint
                    count += 1
                    yield ServerEvent(0, micros(info.updated_at), event_data(kind, thread.load()))

    def close(self) -> None:
        """End the watches and the streams of the readers."""
        self._closed = True
        with self._lock:
            for reader in self._readers:
                reader.close()
            for watch in self._watches.values():
                watch.close()


def event_data(kind: str, checkpoint: Checkpoint[Any]) -> dict[str, Any]:
    """Return the data of an event."""
    return {
        "thread_id": checkpoint.thread_id,
        "kind": kind,
        "checkpoint_id": checkpoint.id,
        "parent_id": checkpoint.parent_id,
        "step": checkpoint.step,
        "label": brief(checkpoint.label),
        "created_at": checkpoint.created_at.isoformat(),
    }


def _parsed(last_id: str) -> tuple[str, int, int]:
    feed, _, rest = last_id.partition(".")
    number, _, moment = rest.partition(".")
    if not (number.isdecimal() and moment.isdecimal()) or max(len(number), len(moment)) > 18:  # noqa: PLR2004
        raise Invalid("Last-Event-ID is the id of an earlier event", code="invalid.argument")
    return feed, int(number), int(moment)


class Events:
    """The feeds of a server, by access."""

    def __init__(self) -> None:
        self._feeds: dict[Access, Feed] = {}
        self._lock = threading.Lock()

    def feed(self, access: Access, store: Store) -> Feed:
        """Return the feed of an access."""
        with self._lock:
            if access not in self._feeds:
                self._feeds[access] = Feed(store)
            return self._feeds[access]

    def close(self) -> None:
        """Stop the watchers and end the streams. A later reader begins new ones."""
        with self._lock:
            for feed in self._feeds.values():
                feed.close()
            self._feeds.clear()


async def stream(ctx: Context) -> Response:
    """Answer with events until the reader goes away."""
    query = dict(ctx.request.query_params)
    last_id = ctx.request.headers.get("last-event-id") or query.pop("last_event_id", None)
    unknown = sorted(query.keys() - {"kind", "thread_id"})
    if unknown or query.get("kind", "thread") not in KINDS:
        raise Invalid(f"events take kind ({', '.join(KINDS)}) and thread_id", code="invalid.argument")
    if ctx.request.method == "HEAD":
        return Response(media_type=_TYPE)
    feed = ctx.server.events.feed(ctx.access, ctx.store)
    await ctx.run(feed.start)
    reader = EventReader()
    feed.join(reader)
    try:
        missed = [] if last_id is None else await ctx.run(feed.missed, last_id)
    except BaseException:
        feed.leave(reader)
        raise
    body = _body(feed, reader, missed, query)
    return StreamingResponse(body, media_type=_TYPE, headers={"X-Accel-Buffering": "no"})


async def _body(
    feed: Feed, reader: EventReader, missed: list[ServerEvent], wanted: dict[str, str]
) -> AsyncIterator[bytes]:
    known = {event.data["checkpoint_id"] for event in missed if event.data}
    try:
        yield b"retry: 2000\n\n"
        for event in missed:
            if _matches(event, wanted):
                yield event.encode(feed.name)
        while not reader.closed:
            while reader.events:
                event = reader.events.popleft()
                if event.data is not None and event.data["checkpoint_id"] in known:
                    known.discard(event.data["checkpoint_id"])  # it came from the store already
                elif _matches(event, wanted):
                    yield event.encode(feed.name)
            reader.news.clear()
            try:
                await asyncio.wait_for(reader.news.wait(), _BEAT)
            except TimeoutError:
                yield b":\n\n"
    finally:
        feed.leave(reader)


def _matches(event: ServerEvent, wanted: dict[str, str]) -> bool:
    return event.data is None or all(event.data[name] == value for name, value in wanted.items())


ROUTES: Final[tuple[Route, ...]] = (Route("GET /events", stream),)
