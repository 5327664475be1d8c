"""The table of operations: what programs and models can do with a store, each described once.

`TABLE` has a row for each operation: its name, description, arguments and result as JSON Schema, whether it reads,
writes or destroys, and its HTTP route. The builtins, the HTTP API and the MCP server are made from it. `call` runs an
operation; wrong arguments raise `Invalid` and write nothing. Results stay small: lists have pages, long values are
previews, a path returns a whole value.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from backtrail.operations import agents, conversations, runs, storage, threads
from backtrail.operations.table import Effect, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backtrail.store import Store

__all__ = ["TABLE", "Effect", "Operation", "call"]

TABLE: Final[Mapping[str, Operation]] = MappingProxyType(
    {each.name: each for part in (threads, agents, conversations, runs, storage) for each in part.OPERATIONS}
)
"""The operations by name."""


def call(store: Store, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call an operation by its name."""
    return TABLE[name](store, arguments)
