"""Arguments, held against the schema of a builtin: as much of JSON Schema as the schemas use, and no more.

That is type, enum, minimum, maximum, items, properties, required and additionalProperties. An error names the argument
by its path, and says what to send instead. Null means not given, where that is allowed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.errors import Invalid
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backtrail.builtins.tools import Builtin

_SHOWN: Final = 60


class _Type(NamedTuple):
    """A type of JSON: what it is in Python, what it is called, and an example."""

    classes: tuple[type, ...]
    called: str
    example: Any


_TYPES: Final = {
    "string": _Type((str,), "a text", "text"),
    "integer": _Type((int,), "a whole number", 20),
    "boolean": _Type((bool,), "true or false", example=True),
    "object": _Type((dict,), "an object", {"key": "value"}),
    "array": _Type((list, tuple), "a list", ["one", "two"]),
}


def checked(tool: Builtin, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what is given of a builtin's arguments, or raise `Invalid`."""
    _check_object(arguments, tool.schema, "", tool.name)
    return {name: value for name, value in arguments.items() if value is not None}


def nearest(name: Any, known: Iterable[str]) -> list[str]:
    """Return known names, the most similar one first."""
    with loading:
        from difflib import SequenceMatcher  # noqa: PLC0415 - only those who get a name wrong need it

    word = str(name)[:_SHOWN]
    return sorted(known, key=lambda each: SequenceMatcher(None, word, each).ratio(), reverse=True)


def shown(value: Any) -> str:
    """Return what was given, short enough for a message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "...")
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < _SHOWN):
        return repr(value)
    return "a number of that size" if isinstance(value, int) else f"something of type {type(value).__name__}"


def _check(value: Any, schema: dict[str, Any], path: str) -> None:
    wanted = _TYPES[schema["type"]]
    fits = isinstance(value, wanted.classes) and isinstance(value, bool) == (schema["type"] == "boolean")
    if not fits:  # True is an int to Python, and none to JSON
        example = json.dumps(schema.get("examples", [wanted.example])[0])
        raise _wrong(path, f"{wanted.called}, such as {example}", value)
    if "enum" in schema and value not in schema["enum"]:
        raise _wrong(path, f"one of {', '.join(schema['enum'])}", value)
    if "minimum" in schema and not schema["minimum"] <= value <= schema.get("maximum", value):
        most = f"to {schema['maximum']}" if "maximum" in schema else "on"
        raise _wrong(path, f"a whole number from {schema['minimum']} {most}", value)
    if schema["type"] == "array":
        for at, item in enumerate(value):
            _check(item, schema["items"], f"{path}[{at}]")
    elif schema["type"] == "object":
        _check_object(value, schema, f"{path}.", path)


def _check_object(value: dict[str, Any], schema: dict[str, Any], prefix: str, called: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if value.get(name) is None:
            needed = " and ".join(schema["required"])
            raise Invalid(f"{prefix}{name} is missing: {called} needs {needed}", code="invalid.argument", path=name)
    for name, part in value.items():
        if name in known:
            if part is not None:
                _check(part, known[name], f"{prefix}{name}")
        elif others is False:
            listed = ", ".join(nearest(name, known)) or "nothing"
            raise Invalid(f"{called} has no {shown(name)}; it takes {listed}", code="invalid.argument", path=str(name))
        elif isinstance(others, dict):
            _check(part, others, f"{prefix}{shown(name)}")


def _wrong(path: str, wanted: str, value: Any) -> Invalid:
    return Invalid(f"{path} is {wanted}, not {shown(value)}", code="invalid.argument", path=path)
