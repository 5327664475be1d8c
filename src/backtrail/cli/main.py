"""The command line's entry, and what holds for every command.

Data goes to stdout, everything else to stderr. What goes wrong is one line, never a stack trace unless `--debug` asks
for it, and the exit code says what kind of thing it was:

    0  done                      3  there is no such thing (NotFound)
    1  it did not work           4  somebody else was first (Conflict)
    2  the command is wrong      5  stored data is damaged (Corrupt)
    130  interrupted by Ctrl-C

A command is imported when it is called, and imports what it uses when it runs: so it begins quickly.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import clean, for_stderr, say
from backtrail.cli.parameters import DAMAGED, Failure, Session
from backtrail.cli.wording import spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.cli.parameters import Command
    from backtrail.errors import Error

_SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Look": {
        "inspect": "log show diff search watch",
        "listings": "threads agents conversations runs stats where",
    },
    "Change": {"change": "save fork rewind undo redo restore settle tag delete"},
    "Keep": {"maintain": "prune gc verify reindex migrate backup restore-backup"},
    "Move": {"transfer": "export import copy"},
    "Call": {"call": "call"},
}
"""The commands as `--help` shows them, and the modules that they are in."""
_HOMES: Final = {
    name: module for modules in _SECTIONS.values() for module, names in modules.items() for name in names.split()
}
_STOPS: Final = ("gc", "export", "copy")
"""Commands that follow all that a store holds, and stop where that is damaged."""
_USAGE: Final = ("invalid.url", "invalid.argument", "invalid.policy", "invalid.option", "invalid.id")


def load(name: str) -> Command:
    """Return a command."""
    commands: tuple[Command, ...] = importlib.import_module(f"backtrail.cli.commands.{_HOMES[name]}").COMMANDS
    return next(command for command in commands if command.name == name)


def sections() -> dict[str, list[Command]]:
    """Return all commands, by section."""
    return {title: [load(name) for name in " ".join(names.values()).split()] for title, names in _SECTIONS.items()}


@contextmanager
def _harmless() -> Iterator[None]:
    """Let what click says of a wrong command do nothing to a terminal: a word of it may be one that was stored."""
    try:
        yield
    except click.ClickException as error:
        error.message = "\n".join(for_stderr(error.message, less=len("Error: ")))  # type: ignore[misc]  # final in the types of new clicks only
        raise


def _warned(message: Warning | str, *_: Any) -> None:
    """Tell a warning like all else, not as Python does, with a line of code and whatever is in the text."""
    say(f"backtrail: warning: {message}")


class Commands(click.Group):
    """The commands, in sections; whatever they raise is told in one line."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read what is said in front of the command."""
        with _harmless():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        from backtrail.errors import Error

        try:
            with _harmless(), warnings.catch_warnings():
                warnings.showwarning = _warned  # type: ignore[assignment]  # it takes them all
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            session = ctx.ensure_object(Session)
            if session.debug:
                import traceback

                for each in traceback.format_exc().splitlines():
                    click.echo(clean(each), err=True)
            if isinstance(error, Error):
                code, said = exit_code(error), spoken(str(error), session)
                if code == DAMAGED and ctx.invoked_subcommand in _STOPS and error.code != "corrupt.export":
                    said = f"{said}; `{session.command('verify')}` says what is damaged"
                raise Failure(said, code) from error
            where = "" if session.debug else "; --debug shows where"
            raise Failure(f"{type(error).__name__}: {error}{where}") from error
        except KeyboardInterrupt as stop:
            raise Failure("interrupted", 130) from stop

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        """Return the command of this name, or None."""
        del ctx
        return load(cmd_name) if cmd_name in _HOMES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, section by section."""
        del ctx
        for title, commands in sections().items():
            with formatter.section(title):
                formatter.write_dl([(str(each.name), each.get_short_help_str(80)) for each in commands])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", metavar="URL", help="The store; else $BACKTRAIL_URL, else the user's own.")
@click.option("--schema", metavar="NAME", help="The schema of a store in PostgreSQL.")
@click.option("--debug", is_flag=True, help="Show the stack trace of an error.")
@click.version_option(package_name="backtrail", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, store: str | None, schema: str | None, *, debug: bool) -> None:
    """Save, resume, fork, diff and rewind the state of agents.

    A THREAD is an id. A REF is a checkpoint: trip (its head), trip@12 (a step), trip@~3 (three back), trip@label,
    trip@tag, trip@1f83 (the beginning of its id), or a whole id.
    """
    ctx.obj = Session()
    ctx.obj.take(store, schema, debug=debug)


def main() -> None:
    """Run the command line and exit: the console script's entry."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed before: there is nobody
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what the terminal cannot show
    try:
        try:
            cli(prog_name="backtrail")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


def exit_code(error: Error) -> int:
    """Return the exit code for an error."""
    from backtrail.errors import Conflict, Corrupt, NotFound

    match error:
        case NotFound():
            return 3
        case Conflict():
            return 4
        case Corrupt():
            return DAMAGED
        case _:
            return 2 if error.code in _USAGE else 1
