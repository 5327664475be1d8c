"""The command that calls a builtin, as a model does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from backtrail.cli.output import Column
from backtrail.cli.parameters import command, in_memory, parse_json, read_json

if TYPE_CHECKING:
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation

_WRITES: Final = ("agent_save", "conversation_save")
"""Builtins that create a missing store."""


@command(
    examples=(
        "backtrail call",
        "backtrail call persistence_stats",
        """backtrail call conversation_list '{"agent_id": "planner"}' --jsonl""",
        "backtrail call agent_list --agent cook --jsonl",
    )
)
@click.argument("builtin", required=False)
@click.argument("arguments", required=False, default="{}", metavar="[JSON]")
@click.option("--agent", "agents", multiple=True, metavar="ID", help="Only the things of this agent exist; repeatable.")
def call(session: Invocation, *, out: Output, builtin: str | None, arguments: str, agents: tuple[str, ...]) -> None:
    """Call a builtin with JSON, or list the builtins.

    JSON is the object of its arguments, or - for stdin. Prints the answer.
    """
    from backtrail import builtins

    if builtin is None:
        if out.human:
            rows = ((tool.name, tool.description) for tool in builtins.TOOLS.values())
            out.table((Column("BUILTIN", "yellow"), Column("DESCRIPTION", wide=True)), rows)
        else:
            out.values(
                {"name": t.name, "description": t.description, "schema": t.schema} for t in builtins.TOOLS.values()
            )
        return
    given = read_json("-") if arguments == "-" else parse_json(arguments, "JSON")
    if builtin not in builtins.TOOLS or (builtin in _WRITES and not session.exists()):
        with in_memory() as store:
            builtins.call(store, builtin, given, destructive=True)  # an error must not create a store
    with session.write(create=builtin in _WRITES) as store:
        answer = builtins.call(store.scoped(agents) if agents else store, builtin, given, destructive=True)
    out.value(answer)


COMMANDS: Final = (call,)
