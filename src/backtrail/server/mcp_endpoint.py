"""`/mcp`: the MCP server of `backtrail.mcp` over streamable HTTP, behind the tokens of this server.

Each access has an MCP server of its own, so a session never reaches another caller's part of the store. It starts with
the first request, in the event loop of that request, because a mounted application gets no lifespan events.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from backtrail.server.problems import Problem
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from backtrail.server.access import Access
    from backtrail.server.context import Context


class _Running(NamedTuple):
    """The sessions of one access, and the task that runs them."""

    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None]
    manager: StreamableHTTPSessionManager
    started: asyncio.Event


class McpSessions:
    """The MCP servers of an application, by access."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._running: dict[Access, _Running] = {}

    async def manager_for(self, ctx: Context) -> StreamableHTTPSessionManager:
        """Return the sessions of the caller's access; start them if they do not run in this event loop."""
        running = self._running.get(ctx.access)
        loop = asyncio.get_running_loop()
        if running is None or running.loop is not loop or running.task.done():
            try:
                from backtrail.mcp import server  # noqa: PLC0415 - needs another extra

                made = server(ctx.store, read_only=not ctx.access.write, **self._options)
            except ModuleNotFoundError as error:
                raise Problem(
                    501, "unavailable.extra", f"/mcp needs {error.name}: pip install 'backtrail[mcp]'"
                ) from error
            made.streamable_http_app(host="", max_request_body_size=ctx.server.body_limit)  # makes the manager
            started = asyncio.Event()
            task = asyncio.create_task(_run(made.session_manager, started))
            running = self._running[ctx.access] = _Running(loop, task, made.session_manager, started)
        await running.started.wait()
        return running.manager

    def close(self) -> None:
        """End all sessions."""
        for running in self._running.values():
            if not running.loop.is_closed():
                running.loop.call_soon_threadsafe(running.task.cancel)
        self._running.clear()


async def _run(manager: StreamableHTTPSessionManager, started: asyncio.Event) -> None:
    async with manager.run():
        started.set()
        await asyncio.Event().wait()  # until it is cancelled


async def _endpoint(ctx: Context) -> Response:
    manager = await ctx.server.mcp.manager_for(ctx)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        await manager.handle_request(scope, receive, send)

    return cast("Response", respond)  # an ASGI application, which is all that is done with a response


ROUTES: Final = tuple(Route(f"{method} /mcp", _endpoint) for method in ("GET", "POST", "DELETE"))
