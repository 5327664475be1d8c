"""The builtins: 14 tools by which a model keeps and finds what a store holds, called by name, JSON in and JSON out.

`TOOLS` says what they are and what each takes, as JSON Schema; `call` does what one of them says. Arguments are checked
before anything happens: if they are wrong, nothing was written. Answers stay small: lists come in pages, long texts as
previews, and the whole of something only by its path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from backtrail.builtins.calls import CALLS
from backtrail.builtins.checking import checked, nearest, shown
from backtrail.builtins.tools import TOOLS, Builtin
from backtrail.errors import Error, Invalid
from backtrail.store import Store

__all__ = ["TOOLS", "Builtin", "call", "call_safely"]

_MESSAGE_MAX: Final = 1_000


def call(store: Store, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Call a builtin by name. `arguments` is a mapping or JSON text; what comes back is JSON, as Python has it.

    Whatever goes wrong is a `backtrail.Error`, whose text says what to do.
    """
    if not isinstance(store, Store):
        raise Invalid(
            f"builtins take a backtrail.Store, not {type(store).__module__}.{type(store).__qualname__}; "
            "in asyncio, open one beside it and say `await asyncio.to_thread(call, store, name, arguments)`",
            code="invalid.argument",
        )
    tool = TOOLS.get(str(name))
    if tool is None:
        known = ", ".join(nearest(name, TOOLS))
        raise Invalid(f"there is no builtin {shown(name)}; these are there: {known}", code="invalid.argument")
    given = checked(tool, _read(tool.name, arguments))
    return CALLS[tool.name](store, **given)


def call_safely(store: Store, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Call a builtin; give a `backtrail.Error` as an answer that a model can read: `{"error": {"code", "message"}}`."""
    try:
        return call(store, name, arguments)
    except Error as error:
        return {"error": {"code": error.code, "message": str(error)[:_MESSAGE_MAX]}}


def _read(name: str, arguments: Any) -> dict[str, Any]:
    """Return arguments as a dict; models that have none to give may send an empty text."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_number) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:  # among them what no JSON is, and numbers too long to read
            raise Invalid(
                f'the arguments of {name} cannot be read as JSON ({error}); send an object, such as {{"limit": 20}}',
                code="invalid.argument",
            ) from error
    if not isinstance(arguments, Mapping):
        raise Invalid(
            f"the arguments of {name} are an object, such as {{}}, not {shown(arguments)}", code="invalid.argument"
        )
    return dict(arguments)


def _no_number(text: str) -> None:
    raise ValueError(f"JSON has no number {text}")
