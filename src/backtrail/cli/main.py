"""The entry point of the command line, and the rules of all commands.

Data goes to stdout, everything else to stderr. An error is one line; `--debug` adds the stack trace. The exit code
tells the kind of error:

    0  success                   3  not found (NotFound)
    1  failure                   4  another writer was faster (Conflict)
    2  wrong usage               5  stored data is damaged (Corrupt)
    130  interrupted by Ctrl-C

A command's module is imported when the command is called, and imports its needs when it runs, so that it starts fast.
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
from backtrail.cli.parameters import DAMAGED, Failure, Invocation, store_options, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.cli.parameters import Command
    from backtrail.errors import Error

_SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Look": {
        "inspection": "log show diff search activity watch",
        "catalog": "threads agents conversations runs stats where",
    },
    "Change": {"edits": "save fork rewind undo redo restore settle tag delete erase"},
    "Keep": {
        "maintenance": "prune gc verify index reindex migrate backup restore-backup",
        "keys": "keys",
        "doctor": "doctor",
    },
    "Move": {"archives": "export import copy"},
    "Call": {"builtins": "call", "server": "serve mcp"},
}
"""The sections of `--help`: modules and their commands."""
_MODULES: Final = {
    name: module for modules in _SECTIONS.values() for module, names in modules.items() for name in names.split()
}
_WHOLE_STORE: Final = ("gc", "export", "copy")
"""Commands that read the whole store and stop at damage."""
_USAGE: Final = ("invalid.key", "invalid.url", "invalid.argument", "invalid.policy", "invalid.option", "invalid.id")


def load(name: str) -> Command:
    """Return a command."""
    commands: tuple[Command, ...] = importlib.import_module(f"backtrail.cli.commands.{_MODULES[name]}").COMMANDS
    return next(command for command in commands if command.name == name)


def sections() -> dict[str, list[Command]]:
    """Return all commands by section."""
    return {title: [load(name) for name in " ".join(names.values()).split()] for title, names in _SECTIONS.items()}


@contextmanager
def _clean_usage_errors() -> Iterator[None]:
    """Escape control characters in click's errors: a word of the command may come from stored text."""
    try:
        yield
    except click.ClickException as error:
        error.message = "\n".join(for_stderr(error.message, less=len("Error: ")))  # type: ignore[misc]  # final in the types of new clicks only
        raise


def _print_warning(message: Warning | str, *_: Any) -> None:
    """Print a warning in one line, without Python's line of code."""
    say(f"backtrail: warning: {message}")


class Commands(click.Group):
    """The commands, in sections. Every error becomes one line."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Parse the options before the command."""
        with _clean_usage_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        from backtrail.errors import Error

        try:
            with _clean_usage_errors(), warnings.catch_warnings():
                warnings.showwarning = _print_warning  # type: ignore[assignment]  # it takes all arguments
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            session = ctx.ensure_object(Invocation)
            if session.debug:
                import traceback

                for each in traceback.format_exc().splitlines():
                    click.echo(clean(each), err=True)
            if isinstance(error, Error):
                code, text = exit_code(error), translated(str(error), session)
                if code == DAMAGED and ctx.invoked_subcommand in _WHOLE_STORE and error.code != "corrupt.export":
                    text = f"{text}; `{session.command('verify')}` lists the damage"
                elif error.code == "not_found.store" and session.url is None:
                    text = f"{text}; name another with --store or BACKTRAIL_URL"
                raise Failure(text, code) from error
            hint = "" if session.debug else "; --debug shows the stack trace"
            raise Failure(f"{type(error).__name__}: {error}{hint}") from error
        except KeyboardInterrupt as stop:
            raise Failure("interrupted", 130) from stop

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        """Return the command of this name, or None."""
        del ctx
        return load(cmd_name) if cmd_name in _MODULES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        del ctx
        for title, commands in sections().items():
            with formatter.section(title):
                formatter.write_dl([(str(each.name), each.get_short_help_str(80)) for each in commands])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@store_options
@click.version_option(package_name="backtrail", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, /, store: str | None, **options: Any) -> None:
    """Save, resume, fork, diff and rewind the state of agents.

    A THREAD is an id. A REF names a checkpoint: trip (the head), trip@12 (step 12), trip@~3 (three before the head),
    trip@label, trip@tag, trip@1f83 (the first digits of its id), or a full id.
    """
    ctx.obj = Invocation()
    ctx.obj.take(store, **options)


def main() -> None:
    """Run the command line and exit: the entry point of the console script."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # stored text may have characters that the terminal lacks
    try:
        try:
            cli(prog_name="backtrail")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


def exit_code(error: Error) -> int:
    """Return the exit code of an error."""
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
