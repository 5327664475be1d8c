"""The tools of a server: rows of the table of operations, described as the protocol wants them. No SDK is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.builtins import TOOLS as BUILTINS
from backtrail.operations import TABLE, Effect

if TYPE_CHECKING:
    from backtrail.operations import Operation

TOOLS: Final = (
    *BUILTINS,
    *("thread_list", "thread_show", "thread_log", "thread_state", "thread_diff"),
    *("thread_fork", "thread_rewind", "thread_undo", "thread_redo"),
    *("activity", "search", "run_list", "run_status", "run_settle", "agent_undo", "erase"),
)
"""The operations that are tools, by name."""


def offered(*, read_only: bool, destructive: bool) -> dict[str, Operation]:
    """Return the tools of a server by name."""
    return {
        name: TABLE[name]
        for name in TOOLS
        if TABLE[name].effect is Effect.READ
        or (not read_only and (destructive or TABLE[name].effect is not Effect.DESTROY))
    }


def described(operation: Operation) -> dict[str, Any]:
    """Return a tool as the JSON of `tools/list`."""
    destroys = operation.effect is Effect.DESTROY
    return {
        "name": operation.name,
        "description": operation.description,
        "inputSchema": operation.schema,
        "outputSchema": {"type": "object", **operation.result},  # older protocols require the type
        "annotations": {
            "title": operation.name.replace("_", " ").capitalize(),
            "readOnlyHint": operation.effect is Effect.READ,
            "destructiveHint": destroys,
            "idempotentHint": destroys or operation.effect is Effect.READ,
            "openWorldHint": False,
        },
    }
