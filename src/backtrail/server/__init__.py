"""A store in a browser and over HTTP: `backtrail serve`, or `app(store)` in another ASGI application.

The HTTP API (`/api/v1`) is made from the table of operations. `/events` sends new checkpoints as server-sent events,
`/v1/conversations` speaks OpenAI's Conversations API, `/mcp` speaks MCP (with the extra `mcp`), and all other paths are
the pages of the inspector. docs/server.md is the guide. It needs the extra `server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.models import MISSING
from backtrail.server.access import LOOPBACK, Access
from backtrail.server.application import Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backtrail.server.access import Tokens
    from backtrail.store import Store

__all__ = ["Access", "Server", "app"]


def app(
    store: Store,
    *,
    write: bool = False,
    tokens: Tokens = MISSING,
    scope: str | Iterable[str] | None = None,
    hosts: Iterable[str] | None = LOOPBACK,
    body_limit: int = 8 * 1024 * 1024,
    time_limit: float = 60.0,
    workers: int = 16,
    mcp: Mapping[str, Any] | None = None,
    only_mcp: bool = False,
) -> Server:
    """Return an ASGI application that serves a store. It can be mounted under any path of another application.

    `tokens` is a token, several, or a dict that maps tokens to agents (an id, several, or an `Access`). Without it, a
    random token is made, `app.token`. `tokens=None` needs no token: the application around it must check its users.
    `write` allows changes. `scope` is an agent, or several: only their things exist. `hosts` are the names under which
    the server is reached; None allows any. `mcp` has options of `backtrail.mcp.server` for `/mcp`: destructive,
    max_bytes, max_calls. With `only_mcp` there is no other path: the rest of the server knows none of these limits.
    """
    return Server(
        store,
        write=write,
        tokens=tokens,
        scope=scope,
        hosts=hosts,
        body_limit=body_limit,
        time_limit=time_limit,
        workers=workers,
        mcp=mcp,
        only_mcp=only_mcp,
    )
