"""A store for MCP clients: `backtrail mcp`, or `server(store)` in a program.

Tools are rows of the table of operations. Resources are states of threads, conversations and runs; clients that
subscribe get a notification when one changes. The prompt `handoff` sums up where an agent got to. docs/mcp.md is the
guide. It needs the extra `mcp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backtrail.mcp.store_server import StoreServer
    from backtrail.mcp.tools import TOOLS
    from backtrail.store import Store

__all__ = ["TOOLS", "StoreServer", "server"]
MAX_BYTES: Final = 1_000_000


def server(
    store: Store,
    *,
    scope: str | Iterable[str] | None = None,
    read_only: bool = False,
    destructive: bool = False,
    max_bytes: int = MAX_BYTES,
    max_calls: int | None = None,
) -> StoreServer:
    """Return an `mcp.server.MCPServer` for a store. `server(store).run()` serves standard input and output.

    `scope` is an agent's id, or several: nothing else can be named, listed, counted, searched or changed. `read_only`
    leaves out the tools that write. Tools that remove data for good need `destructive=True`. A call has at most
    `max_bytes` bytes of arguments, and a minute at most `max_calls` calls; None: no limit.
    """
    from backtrail.mcp.store_server import StoreServer  # noqa: PLC0415 - it imports the SDK, which takes long

    if scope is not None or read_only:
        store = store.scoped(scope, read_only=read_only)
    return StoreServer(store, read_only=read_only, destructive=destructive, max_bytes=max_bytes, max_calls=max_calls)


def __getattr__(name: str) -> Any:
    if name == "StoreServer":
        from backtrail.mcp.store_server import StoreServer  # noqa: PLC0415 - as above

        return StoreServer
    if name == "TOOLS":
        from backtrail.mcp.tools import TOOLS  # noqa: PLC0415 - the handshake does not need it

        return TOOLS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
