"""The commands that serve a store: in a browser and over HTTP, and to MCP clients."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import say
from backtrail.cli.parameters import Failure, command, searchable

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation
    from backtrail.store import Store


@command(examples=("backtrail serve --token example-token --dry-run",))
@click.argument("url", required=False, metavar="[STORE]")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="The port; 0: any free one."
)
@click.option("--write", is_flag=True, help="Allow changes.")
@click.option(
    "--token",
    "tokens",
    multiple=True,
    envvar="BACKTRAIL_TOKEN",
    help="A token of callers, of at least 8 characters. Default: $BACKTRAIL_TOKEN, else a random one.",
)
@click.option("--agent", "agents", multiple=True, metavar="ID", help="Serve only the things of this agent; repeatable.")
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="Another name of this server; repeatable.")
@click.option("--dry-run", is_flag=True, help="Check the options and the store, print the link, and end.")
def serve(
    session: Invocation,
    *,
    out: Output,
    url: str | None,
    host: str,
    port: int,
    write: bool,
    tokens: tuple[str, ...],
    agents: tuple[str, ...],
    names: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Serve a store in a browser and over HTTP.

    STORE is a URL, as for --store. The server prints a link with a random token, listens on this machine only, and
    changes nothing unless --write is given. Another --host needs a --token.
    """
    session.take(url)
    if not _is_loopback(host) and not tokens:
        raise click.UsageError(f"other machines can reach {host}: pass a --token, so that only its holders can read")
    with session.write() if write else searchable(session) as store:
        options: dict[str, Any] = {"write": write, "tokens": tokens, "scope": agents or None}
        announce = partial(_announce, out, write=write)
        _serve(store, host, port, names, announce=announce, options=options, dry_run=dry_run)


@command(examples=("backtrail mcp --read-only --dry-run",))
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
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="With --http: another name of this server; repeatable."
)
@click.option("--read-only", is_flag=True, help="Offer no tools that write.")
@click.option("--agent", "agents", multiple=True, metavar="ID", help="Offer only the things of this agent; repeatable.")
@click.option("--allow-destructive", is_flag=True, help="Offer tools that remove data for good.")
@click.option(
    "--max-bytes", type=click.IntRange(1), default=1_000_000, show_default=True, help="Of a call's arguments."
)
@click.option("--max-calls", type=click.IntRange(1), help="The most calls in a minute. Default: no limit.")
@click.option("--dry-run", is_flag=True, help="Check the options and the store, print the tools, and end.")
def mcp(
    session: Invocation,
    *,
    out: Output,
    url: str | None,
    http: bool,
    host: str,
    port: int,
    tokens: tuple[str, ...],
    names: tuple[str, ...],
    read_only: bool,
    agents: tuple[str, ...],
    allow_destructive: bool,
    max_bytes: int,
    max_calls: int | None,
    dry_run: bool,
) -> None:
    """Serve a store to coding agents and assistants by MCP.

    STORE is a URL, as for --store. The client starts this command and talks to it over standard input and output.
    With --http it is a server of its own, which prints its link and a random token.
    """
    session.take(url)
    if read_only and allow_destructive:
        raise click.UsageError("pass --read-only or --allow-destructive, not both")
    if http and not _is_loopback(host) and not tokens:
        raise click.UsageError(f"other machines can reach {host}: pass a --token, so that only its holders can read")
    if find_spec("mcp") is None:
        raise Failure("mcp needs the package mcp: `pip install 'backtrail[mcp]'`")
    from backtrail.mcp import server
    from backtrail.mcp.stdio import serve

    limits: dict[str, Any] = {"destructive": allow_destructive, "max_bytes": max_bytes, "max_calls": max_calls}
    with searchable(session) if read_only else session.write(create=True) as store:
        make = partial(server, store, scope=agents or None, read_only=read_only, **limits)
        if dry_run:
            made = make()
            if out.human:
                click.echo("\n".join(made.names))
            else:
                out.value([*made.names])
        elif http:
            options: dict[str, Any] = {"write": not read_only, "tokens": tokens, "scope": agents or None}
            options |= {"mcp": limits, "only_mcp": True}
            _serve(store, host, port, names, announce=partial(_announce_mcp, out), options=options)
        else:
            serve(make, read_only=read_only, destructive=allow_destructive)


def _serve(
    store: Store,
    host: str,
    port: int,
    names: tuple[str, ...],
    *,
    announce: Callable[[str, str | None], None],
    options: dict[str, Any],
    dry_run: bool = False,
) -> None:
    """Serve a store until Ctrl-C. `announce` gets the link and the random token once the server listens."""
    try:
        import uvicorn

        from backtrail import server
        from backtrail.models import MISSING
        from backtrail.server.access import LOOPBACK
    except ModuleNotFoundError as error:
        raise Failure(f"serve needs {error.name}: `pip install 'backtrail[server]'`") from error
    options["tokens"] = options["tokens"] or MISSING
    app = server.app(store, hosts=(*LOOPBACK, host, *names), **options)
    try:
        config = uvicorn.Config(
            app, host, port, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3
        )
        if dry_run:
            announce(_link(host, port), app.token)
        else:
            sockets = _sockets(host, port)
            with suppress(KeyboardInterrupt):
                _Announcing(config, lambda link: announce(link, app.token)).run(sockets)
    finally:
        app.close()


def _sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host."""
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address[:2]) for family, _, _, _, address in found):
            made.append(socket.create_server(address, family=family))
    except OSError as error:
        for each in made:
            each.close()
        reason = str(error.strerror).partition(" (")[0].lower()
        raise Failure(f"cannot listen on {host}:{port} ({reason}): pass another --port or --host") from error
    return made


def _Announcing(config: Any, announce: Any) -> Any:  # noqa: N802 - makes an instance of a class of a lazy import
    """Return a uvicorn server that prints its link once it listens, and that does not wait for open pages."""
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started and self.servers:
                host, port = self.servers[0].sockets[0].getsockname()[:2]
                announce(_link(host, port))

        async def shutdown(self, sockets: Any = None) -> None:
            config.app.end_streams()  # open pages follow them
            await super().shutdown(sockets)

    return Announcing(config)


def _announce(out: Output, link: str, token: str | None, *, write: bool) -> None:
    shown = link if token is None else f"{link}?token={token}"
    if out.human:
        say(f"serving {'for reading and writing' if write else 'for reading'}; Ctrl-C ends it")
        click.echo(shown)
    else:
        out.value({"url": shown, "write": write})


def _announce_mcp(out: Output, link: str, token: str | None) -> None:
    if out.human:
        say("serving MCP over HTTP; Ctrl-C ends it")
        click.echo(f"{link}mcp")
        if token is not None:
            click.echo(f"Authorization: Bearer {token}")
    else:
        out.value({"url": f"{link}mcp", "token": token})


def _link(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


COMMANDS: Final = (serve, mcp)
