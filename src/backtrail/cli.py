"""The command line: the library made visible.

Results go to stdout, everything else to stderr. What goes wrong is one line, never a stack trace, and the
exit code says what kind of thing it was:

    0  done                      3  there is no such thing (NotFound)
    1  it did not work           4  somebody else was first (Conflict)
    2  the command is wrong      5  stored data is damaged (Corrupt)

Commands import what they use when they run, so that `backtrail --help` stays quick.
"""

from __future__ import annotations

import io
import sys

import click

from backtrail.errors import Conflict, Corrupt, Error, NotFound


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="backtrail", message="%(prog)s %(version)s")
def cli() -> None:
    """Save, resume, fork, diff and rewind the state of agents."""


@cli.command()
def where() -> None:
    """Print the URL of the store that is used when none is named, without its password."""
    from backtrail.urls import default_url, shown

    click.echo(shown(default_url()))


def main() -> None:
    """Run the command line and exit: the console script's entry."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what the terminal cannot show
    try:
        cli(prog_name="backtrail")
    except Error as error:
        click.echo(f"backtrail: {' '.join(str(error).splitlines())}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: Error) -> int:
    """Return the exit code for an error."""
    match error:
        case NotFound():
            return 3
        case Conflict():
            return 4
        case Corrupt():
            return 5
        case _:
            return 1
