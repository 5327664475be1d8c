"""The command that calls a builtin: what a model would call, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import Column
from backtrail.cli.parameters import Failure, command, in_memory, read_json

if TYPE_CHECKING:
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Session

_WRITES: Final = ("agent_save", "conversation_save")
"""Those that have something to put into a store that is not there yet."""


@command(
    examples=(
        "backtrail call",
        "backtrail call persistence_stats",
        """backtrail call conversation_list '{"agent_id": "planner"}' --jsonl""",
    )
)
@click.argument("builtin", required=False)
@click.argument("arguments", required=False, default="{}", metavar="[JSON]")
def call(session: Session, *, out: Output, builtin: str | None, arguments: str) -> None:
    """Call a builtin with JSON, or list them.

    JSON is the object of its arguments, or - for stdin. What it answers is printed.
    """
    from backtrail import builtins

    if builtin is None:
        if out.human:
            rows = ((tool.name, tool.description) for tool in builtins.TOOLS.values())
            out.table((Column("BUILTIN", "yellow"), Column("WHAT IT DOES", wide=True)), rows)
        else:
            out.values(
                {"name": t.name, "description": t.description, "schema": t.schema} for t in builtins.TOOLS.values()
            )
        return
    given = read_json("-") if arguments == "-" else _parsed(arguments)
    if builtin not in builtins.TOOLS or (builtin in _WRITES and not session.is_there()):
        with in_memory() as store:
            builtins.call(store, builtin, given)  # what cannot be done makes no store, and needs none
    with session.write(create=builtin in _WRITES) as store:
        answer = builtins.call(store, builtin, given)
    out.value(answer)


def _parsed(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Failure(f"line {error.lineno}, column {error.colno}: no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise Failure(f"the arguments are no JSON: {error}") from error


COMMANDS: Final = (call,)
