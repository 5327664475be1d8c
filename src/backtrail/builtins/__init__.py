"""Builtins: 14 tools with which a model uses a store. A caller names the tool, and passes and gets JSON.

The tools are rows of the table of operations (`backtrail.operations`). `TOOLS` describes each tool and its arguments as
JSON Schema; `call` runs one. `call` checks the arguments first: wrong arguments write nothing. Answers stay small:
lists have pages, long texts are previews, a path returns a whole value.

A model should get a scoped store, `store.scoped(agent="planner")`: its tools reach that agent's things only. Tools that
destroy data need `destructive=True`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from backtrail.errors import Error, Invalid
from backtrail.operations import TABLE, Effect, Operation
from backtrail.operations.arguments import nearest_names, short_repr
from backtrail.store import Store

__all__ = ["TOOLS", "Builtin", "call", "call_safely"]

Builtin = Operation
_NAMES: Final = (
    *("agent_save", "agent_load", "agent_delete", "agent_list"),
    *("conversation_save", "conversation_load", "conversation_delete", "conversation_list", "conversation_search"),
    *("checkpoint_create", "checkpoint_restore", "checkpoint_list", "checkpoint_delete"),
    "persistence_stats",
)
TOOLS: Final[Mapping[str, Builtin]] = MappingProxyType({name: TABLE[name] for name in _NAMES})
"""The builtins by name."""
_MESSAGE_MAX: Final = 1_000


def call(
    store: Store, name: str, arguments: Mapping[str, Any] | str, *, destructive: bool | None = None
) -> dict[str, Any]:
    """Call a builtin by name. `arguments` is a mapping or JSON text; the answer is JSON data.

    Raises a `backtrail.Error` whose text names the fix. Builtins that destroy data need `destructive=True`. Without it,
    a scoped store refuses them; a store without a scope still runs them, with a `DeprecationWarning`.
    """
    if not isinstance(store, Store):
        raise Invalid(
            f"builtins take a backtrail.Store, not {type(store).__module__}.{type(store).__qualname__}; "
            "in asyncio, open a second store and use `await asyncio.to_thread(call, store, name, arguments)`",
            code="invalid.argument",
        )
    tool = TOOLS.get(str(name))
    if tool is None:
        known = ", ".join(nearest_names(name, TOOLS))
        raise Invalid(f"there is no builtin {short_repr(name)}; the builtins are: {known}", code="invalid.argument")
    if tool.effect is Effect.DESTROY and not destructive:
        _check_destructive(store, tool, refused=destructive is False)
    return tool(store, _parsed(tool.name, arguments))


def call_safely(
    store: Store, name: str, arguments: Mapping[str, Any] | str, *, destructive: bool | None = None
) -> dict[str, Any]:
    """Call a builtin. A `backtrail.Error` becomes an answer for the model: `{"error": {"code", "message"}}`."""
    try:
        return call(store, name, arguments, destructive=destructive)
    except Error as error:
        return {"error": {"code": error.code, "message": str(error)[:_MESSAGE_MAX]}}


def _check_destructive(store: Store, tool: Builtin, *, refused: bool) -> None:
    """Refuse a builtin that destroys data, or warn where it used to run without being asked for."""
    if refused or store.scope is not None:
        raise Invalid(
            f"{tool.name} removes data for good and is off here: the program must pass destructive=True to allow it",
            code="invalid.destructive",
        )
    warnings.warn(
        f"{tool.name} removes data for good: pass destructive=True to allow it; a later version will refuse it",
        DeprecationWarning,
        stacklevel=4,
    )


def _parsed(name: str, arguments: Any) -> dict[str, Any]:
    """Return arguments as a dict. Some models send an empty text for no arguments."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_number) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:  # no JSON, or a number with too many digits
            raise Invalid(
                f'the arguments of {name} are not JSON ({error}); send an object, such as {{"limit": 20}}',
                code="invalid.argument",
            ) from error
    if not isinstance(arguments, Mapping):
        raise Invalid(
            f"the arguments of {name} must be an object, such as {{}}, not {short_repr(arguments)}",
            code="invalid.argument",
        )
    return dict(arguments)


def _no_number(text: str) -> None:
    raise ValueError(f"JSON has no number {text}")
