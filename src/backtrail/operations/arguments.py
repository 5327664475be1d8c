"""Validation of an operation's arguments against its schema: the part of JSON Schema that the schemas use.

That is type, enum, minimum, maximum, minLength, maxLength, minItems, items, properties, required and
additionalProperties, and the format date-time of an argument, which becomes a datetime. A schema without a type takes
any JSON value. An error names the path of the argument and describes a right value. Null means absent for an optional
argument.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.errors import Invalid
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Iterable

_REPR_MAX: Final = 60
_DATE_TIME: Final = re.compile(r"(?ai)\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class _JsonType(NamedTuple):
    """A JSON type: its Python classes, its description, and an example."""

    classes: tuple[type, ...]
    description: str
    example: Any


_TYPES: Final = {
    "string": _JsonType((str,), "a text", "text"),
    "integer": _JsonType((int,), "a whole number", 20),
    "boolean": _JsonType((bool,), "true or false", example=True),
    "object": _JsonType((dict,), "an object", {"key": "value"}),
    "array": _JsonType((list, tuple), "a list", ["one", "two"]),
}


def check_arguments(operation: str, schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Check the arguments of an operation against its schema; return those that are not null, or raise `Invalid`."""
    _check_object(arguments, schema, "", operation)
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        kind = schema["properties"][name].get("type")
        if value is not None and "format" in schema["properties"][name]:
            given[name] = _parsed_time(value, name)
        elif value is not None or kind is None:
            given[name] = int(value) if kind == "integer" else value  # 3.0 is a whole number in JSON Schema
    return given


def nearest_names(name: Any, known: Iterable[str]) -> list[str]:
    """Return the known names, sorted by their similarity to `name`, the most similar first."""
    with loading:
        from difflib import SequenceMatcher  # noqa: PLC0415 - only errors need it

    word = str(name)[:_REPR_MAX]
    return sorted(known, key=lambda each: SequenceMatcher(None, word, each).ratio(), reverse=True)


def short_repr(value: Any) -> str:
    """Return a short description of a value for an error message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _REPR_MAX else value[: _REPR_MAX - 3] + "...")
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < _REPR_MAX):
        return repr(value)
    return "a number with too many digits" if isinstance(value, int) else f"a value of type {type(value).__name__}"


def _check(value: Any, schema: dict[str, Any], path: str) -> None:
    if "type" not in schema:
        return
    wanted = _TYPES[schema["type"]]
    fits = isinstance(value, wanted.classes) and isinstance(value, bool) == (schema["type"] == "boolean")
    fits = fits or (schema["type"] == "integer" and isinstance(value, float) and value.is_integer())
    if not fits:  # True is an int in Python, but not in JSON
        example = json.dumps(schema.get("examples", [wanted.example])[0])
        raise _wrong(path, f"{wanted.description}, such as {example}", value)
    if "enum" in schema and value not in schema["enum"]:
        raise _wrong(path, f"one of {', '.join(schema['enum'])}", value)
    if "minimum" in schema and not schema["minimum"] <= value <= schema.get("maximum", value):
        limit = (
            f"from {schema['minimum']} to {schema['maximum']}"
            if "maximum" in schema
            else f"of at least {schema['minimum']}"
        )
        raise _wrong(path, f"a whole number {limit}", value)
    if not schema.get("minLength", 0) <= _length(value) <= schema.get("maxLength", _length(value)):
        raise _wrong(path, f"a text of {schema['minLength']} to {schema['maxLength']} characters", value)
    if _length(value) < schema.get("minItems", 0):
        raise _wrong(path, f"a list with at least {schema['minItems']} item{'s' * (schema['minItems'] != 1)}", value)
    if schema["type"] == "array":
        for at, item in enumerate(value):
            _check(item, schema["items"], f"{path}[{at}]")
    elif schema["type"] == "object":
        _check_object(value, schema, f"{path}.", path)


def _parsed_time(text: str, path: str) -> dt.datetime:
    """Return the time of a text: a date-time of RFC 3339, with a zone; otherwise `Invalid`."""
    try:
        parsed = dt.datetime.fromisoformat(text.upper()) if _DATE_TIME.fullmatch(text) else None
        if parsed is not None:
            return parsed.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        pass
    raise _wrong(path, "a time with a zone, such as 2026-01-31T12:00:00Z", text)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _check_object(value: dict[str, Any], schema: dict[str, Any], prefix: str, owner: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if value.get(name) is None and (name not in value or "type" in known[name]):
            needed = " and ".join(schema["required"])
            raise Invalid(f"{prefix}{name} is missing: {owner} needs {needed}", code="invalid.argument", path=name)
    for name, part in value.items():
        if name in known:
            if part is not None:
                _check(part, known[name], f"{prefix}{name}")
        elif others is False:
            listed = ", ".join(nearest_names(name, known)) or "nothing"
            raise Invalid(
                f"{owner} has no {short_repr(name)}; it takes {listed}",
                code="invalid.argument",
                path=str(name),
            )
        elif isinstance(others, dict):
            _check(part, others, f"{prefix}{short_repr(name)}")


def _wrong(path: str, wanted: str, value: Any) -> Invalid:
    return Invalid(f"{path} must be {wanted}, not {short_repr(value)}", code="invalid.argument", path=path)
