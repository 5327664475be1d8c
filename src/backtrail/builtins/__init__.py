"""Builtins: 14 tools with which a model uses a store. A caller names the tool, and passes and gets JSON.

`TOOLS` describes each tool and its arguments as JSON Schema; `call` runs one. `call` checks the arguments first: wrong
arguments write nothing. Answers stay small: lists have pages, long texts are previews, a path returns a whole value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from backtrail.builtins.arguments import check_arguments, nearest_names, short_repr
from backtrail.builtins.definitions import TOOLS, Builtin
from backtrail.builtins.functions import FUNCTIONS
from backtrail.errors import Error, Invalid
from backtrail.store import Store

__all__ = ["TOOLS", "Builtin", "call", "call_safely"]

_MESSAGE_MAX: Final = 1_000


def call(store: Store, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Call a builtin by name. `arguments` is a mapping or JSON text; the answer is JSON data.

    Raises a `backtrail.Error` whose text names the fix.
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
    return FUNCTIONS[tool.name](store, **check_arguments(tool, _parsed(tool.name, arguments)))


def call_safely(store: Store, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Call a builtin. A `backtrail.Error` becomes an answer for the model: `{"error": {"code", "message"}}`."""
    try:
        return call(store, name, arguments)
    except Error as error:
        return {"error": {"code": error.code, "message": str(error)[:_MESSAGE_MAX]}}


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
            f"the arguments of {name} are an object, such as {{}}, not {short_repr(arguments)}", code="invalid.argument"
        )
    return dict(arguments)


def _no_number(text: str) -> None:
    raise ValueError(f"JSON has no number {text}")
