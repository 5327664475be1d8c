"""Notifications of changed resources, fed by `store.watch`.

`ChangeBus` is the bus of `subscriptions/listen` (protocol 2026-07-28). `Subscribers` serves `resources/subscribe` of
the protocols before it. The store is watched while there is a listener.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.subscriptions import ResourceUpdated

from backtrail.errors import Error
from backtrail.mcp.resources import KINDS, uri_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server import Server, ServerRequestContext
    from mcp.server.connection import Connection
    from mcp.shared.subscriptions import ServerEvent

    from backtrail.checkpoint import Checkpoint
    from backtrail.store import Store
    from backtrail.watch import Watch

_PAUSE: Final = 1.0
"""Seconds before a failed watch begins again."""


class ChangeBus:
    """Tells listeners which resources changed. Listeners are called in the event loop that subscribed first."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: dict[object, Callable[[ServerEvent], None]] = {}
        self._watches: list[Watch[Checkpoint[Any]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def publish(self, event: ServerEvent) -> None:
        """Deliver an event to all listeners."""
        self._deliver(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Add a listener, and return a function that removes it."""
        token = object()
        if not self._listeners:
            self._loop = asyncio.get_running_loop()
            for kind in KINDS:
                watch = self._store.watch(kind=kind)
                self._watches.append(watch)
                threading.Thread(target=self._follow, args=(kind, watch), name="backtrail mcp", daemon=True).start()
        self._listeners[token] = listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)
            if not self._listeners:
                watches, self._watches = self._watches, []
                for watch in watches:
                    watch.close()

        return unsubscribe

    def _follow(self, kind: str, watch: Watch[Checkpoint[Any]]) -> None:
        while watch in self._watches:
            try:
                for checkpoint in watch:
                    self._announce(ResourceUpdated(uri=uri_of(kind, checkpoint.thread_id)))
                return  # the watch or the store was closed
            except Error:  # the store is unavailable for a while; a watch continues where it was
                time.sleep(_PAUSE)

    def _announce(self, event: ServerEvent) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: ServerEvent) -> None:
        for listener in [*self._listeners.values()]:
            listener(event)


class Subscribers:
    """The connections that asked for `notifications/resources/updated`, with the URIs that they asked for."""

    def __init__(self, bus: ChangeBus) -> None:
        self._bus = bus
        self._uris: dict[Connection, set[str]] = {}
        self._unsubscribe: Callable[[], None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def register(self, server: Server[Any]) -> None:
        """Serve `resources/subscribe` and `resources/unsubscribe`."""
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._add)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._remove)

    async def _add(self, ctx: ServerRequestContext[Any], params: types.SubscribeRequestParams) -> types.EmptyResult:
        connection = _connection_of(ctx)
        if connection not in self._uris:
            connection.exit_stack.callback(self._forget, connection)
        self._uris.setdefault(connection, set()).add(str(params.uri))
        if self._unsubscribe is None:
            self._unsubscribe = self._bus.subscribe(self._notify)
        return types.EmptyResult()

    async def _remove(
        self, ctx: ServerRequestContext[Any], params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        self._uris.get(_connection_of(ctx), set()).discard(str(params.uri))
        self._end_if_unused()
        return types.EmptyResult()

    def _forget(self, connection: Connection) -> None:
        self._uris.pop(connection, None)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._unsubscribe is not None and not any(self._uris.values()):
            unsubscribe, self._unsubscribe = self._unsubscribe, None
            unsubscribe()

    def _notify(self, event: ServerEvent) -> None:
        if not isinstance(event, ResourceUpdated):
            return
        for connection, uris in self._uris.items():
            if event.uri in uris:
                task = asyncio.ensure_future(connection.notify("notifications/resources/updated", {"uri": event.uri}))
                self._sending.add(task)  # the event loop holds tasks weakly
                task.add_done_callback(self._sending.discard)


def _connection_of(ctx: ServerRequestContext[Any]) -> Connection:
    return ctx.session._connection  # noqa: SLF001 - `session` is one request's; nothing public lasts longer
