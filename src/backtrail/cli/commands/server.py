"""The command that serves a store over HTTP and in a browser."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import say
from backtrail.cli.parameters import Failure, command, searchable

if TYPE_CHECKING:
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation


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
    session.take(url, None, debug=False)
    if not _is_loopback(host) and not tokens:
        raise click.UsageError(f"other machines can reach {host}: pass a --token, so that only its holders can read")
    try:
        import uvicorn

        from backtrail import server
        from backtrail.models import MISSING
        from backtrail.server.access import LOOPBACK
    except ModuleNotFoundError as error:
        raise Failure(f"serve needs {error.name}: `pip install 'backtrail[server]'`") from error
    with session.write() if write else searchable(session) as store:
        app = server.app(
            store,
            write=write,
            tokens=tokens or MISSING,
            scope=agents or None,
            hosts=(*LOOPBACK, host, *names),
        )
        try:
            config = uvicorn.Config(
                app, host, port, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3
            )
            running = _Announcing(config, lambda at: _announce(out, at, app.token, write=write))
            if dry_run:
                _announce(out, _link(host, port), app.token, write=write)
            else:
                with suppress(KeyboardInterrupt):
                    running.run()
        finally:
            app.close()


def _Announcing(config: Any, announce: Any) -> Any:  # noqa: N802 - makes an instance of a class of a lazy import
    """Return a uvicorn server that prints its link once it listens."""
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started and self.servers:
                host, port = self.servers[0].sockets[0].getsockname()[:2]
                announce(_link(host, port))

    return Announcing(config)


def _announce(out: Output, link: str, token: str | None, *, write: bool) -> None:
    shown = link if token is None else f"{link}?token={token}"
    if out.human:
        say(f"serving {'for reading and writing' if write else 'for reading'}; Ctrl-C ends it")
        click.echo(shown)
    else:
        out.value({"url": shown, "write": write})


def _link(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


COMMANDS: Final = (serve,)
