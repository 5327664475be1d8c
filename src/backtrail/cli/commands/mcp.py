"""The command that serves a store to MCP clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from backtrail.cli.commands.server import serve_app
from backtrail.cli.parameters import Failure, command, searchable

if TYPE_CHECKING:
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation


@command(examples=())
@click.argument("url", required=False, metavar="[STORE]")
@click.option("--http", is_flag=True, help="Serve streamable HTTP at /mcp instead of standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --http: the address to listen on.")
@click.option(
    "--port",
    default=8765,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="With --http: the port; 0: any free one.",
)
@click.option(
    "--token",
    "tokens",
    multiple=True,
    envvar="BACKTRAIL_TOKEN",
    help="With --http: a token of clients. Default: $BACKTRAIL_TOKEN, else a random one.",
)
@click.option("--read-only", is_flag=True, help="Offer no tools that write.")
@click.option("--agent", "agents", multiple=True, metavar="ID", help="Offer only the things of this agent; repeatable.")
@click.option("--allow-destructive", is_flag=True, help="Offer tools that remove data for good.")
@click.option("--max-bytes", type=click.IntRange(1), default=1_000_000, show_default=True, help="Of a call's arguments.")
@click.option("--max-calls", type=click.IntRange(1), help="The most calls in a minute. Default: no limit.")
def mcp(
    session: Invocation,
    *,
    out: Output,
    url: str | None,
    http: bool,
    host: str,
    port: int,
    tokens: tuple[str, ...],
    read_only: bool,
    agents: tuple[str, ...],
    allow_destructive: bool,
    max_bytes: int,
    max_calls: int | None,
) -> None:
    """Serve a store to MCP clients: coding agents and desktop assistants.

    STORE is a URL, as for --store. The client starts this command and talks to it over standard input and output.
    With --http it is a server of its own, which prints its link and a random token.
    """
    session.take(url, None, debug=False)
    if read_only and allow_destructive:
        raise click.UsageError("pass --read-only or --allow-destructive, not both")
    try:
        from backtrail.mcp import server
    except ModuleNotFoundError as error:
        raise Failure(f"mcp needs {error.name}: `pip install 'backtrail[mcp]'`") from error
    with searchable(session) if read_only else session.write() as store:
        limits = {"destructive": allow_destructive, "max_bytes": max_bytes, "max_calls": max_calls}
        if http:
            serve_app(store, out, host, port, tokens, write=not read_only, scope=agents or None, path="mcp", mcp=limits)
        else:
            server(store, scope=agents or None, read_only=read_only, **limits).run("stdio")


COMMANDS: Final = (mcp,)
