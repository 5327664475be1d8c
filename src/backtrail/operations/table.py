"""`Operation`: one row of the table of operations.

A row describes an operation once. The builtins, the HTTP API with its OpenAPI document, and the MCP server are made
from the rows. The function of a row takes a store and the checked arguments, and returns JSON data.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from backtrail.operations.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backtrail.operations.schema import Schema
    from backtrail.store import Store

Answer = dict[str, Any]


class Effect(StrEnum):
    """What an operation does to the store."""

    READ = "read"
    WRITE = "write"
    DESTROY = "destroy"
    """It removes data for good."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on a store. `schema` and `result` are the JSON Schemas of its arguments and its result."""

    name: str
    description: str
    schema: dict[str, Any] = field(hash=False)
    result: dict[str, Any] = field(default_factory=dict, hash=False)
    effect: Effect = Effect.READ
    route: str = ""
    """The HTTP method and path, such as "GET /agents/{agent_id}". Names in braces are arguments."""
    scope: str = "agent"
    """"agent" if the operation works in the scope of an agent; "store" if it needs the whole store."""
    job: bool = False
    """Whether the operation takes long and reports its progress. Its function takes `progress`."""
    immutable: tuple[str, ...] = ()
    """Arguments that name checkpoints. If all of them are ids, the result never changes."""
    function: Callable[..., Answer] = field(default=lambda *_, **__: {}, hash=False, compare=False, repr=False)

    def __call__(self, store: Store, arguments: Mapping[str, Any], **options: Any) -> Answer:
        """Check the arguments and call the function. Wrong arguments raise `Invalid` and write nothing."""
        return self.function(store, **check_arguments(self.name, self.schema, dict(arguments)), **options)

    def openai(self) -> dict[str, Any]:
        """Return the tool in the form of OpenAI's chat completions, which many servers take."""
        function = {"name": self.name, "description": self.description, "parameters": deepcopy(self.schema)}
        return {"type": "function", "function": {**function, "strict": False}}  # most arguments are optional

    def anthropic(self) -> dict[str, Any]:
        """Return the tool in the form of Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": deepcopy(self.schema)}


def operation(
    route: str,
    description: str,
    schema: Schema,
    result: Schema,
    *,
    effect: Effect = Effect.READ,
    scope: str = "agent",
    job: bool = False,
    immutable: tuple[str, ...] = (),
) -> Callable[[Callable[..., Answer]], Operation]:
    """Make a row of the table from a function, whose name is the operation's."""

    def made(function: Callable[..., Answer]) -> Operation:
        return Operation(function.__name__, description, schema, result, effect, route, scope, job, immutable, function)

    return made
