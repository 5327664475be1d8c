"""Pieces of JSON Schema for the arguments and results of operations.

Arguments use the part of JSON Schema that `arguments` checks. A schema without a type takes any JSON value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

Schema = dict[str, Any]

LIMIT: Final = 20
LIMIT_MAX: Final = 200
MESSAGES: Final = 10
CHARS: Final = 20_000
CHARS_MAX: Final = 200_000


# -- arguments --------------------------------------------------------------------------------------------


def text(description: str) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", "description": description}


def name(description: str) -> Schema:
    """Return the schema of an id, a ref, a label or a tag: a text of 1 to 512 characters."""
    return {"type": "string", "description": description, "minLength": 1, "maxLength": 512}


def moment(description: str) -> Schema:
    """Return the schema of a time with a zone: a date-time of RFC 3339."""
    return {"type": "string", "format": "date-time", "description": description, "examples": ["2026-01-31T12:00:00Z"]}


def one_of(kind: type[StrEnum] | Iterable[str], description: str, default: str | None = None) -> Schema:
    """Return the schema of a text that is one of several words."""
    schema = text(description) | {"enum": [str(member) for member in kind]}
    return schema if default is None else schema | {"default": default}


def number(description: str, least: int, most: int | None = None, default: int | None = None) -> Schema:
    """Return the schema of a whole number."""
    bounds = {"minimum": least, "maximum": most, "default": default}
    present = {name: value for name, value in bounds.items() if value is not None}
    return {"type": "integer", "description": description, **present}


def flag(description: str) -> Schema:
    """Return the schema of true or false."""
    return {"type": "boolean", "description": description}


def texts(description: str) -> Schema:
    """Return the schema of a list of texts."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


def names(description: str) -> Schema:
    """Return the schema of a list of ids or tags that is not empty."""
    items = {"type": "string", "minLength": 1, "maxLength": 512}
    return {"type": "array", "items": items, "minItems": 1, "description": description}


def mapping(description: str, values: str | None = None) -> Schema:
    """Return the schema of an object with any keys."""
    return {"type": "object", "description": description, "additionalProperties": {"type": values} if values else True}


def value(description: str) -> Schema:
    """Return the schema of any JSON value."""
    return {"description": description}


def arguments(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


# -- results ----------------------------------------------------------------------------------------------

TEXT: Final[Schema] = {"type": "string"}
TIME: Final[Schema] = {"type": "string", "description": "A time in ISO 8601."}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {}
"""Any JSON value. A long value is a preview: `{"preview": ..., "truncated": true, "size": ...}`."""


def optional(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def result(absent: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of a result. All properties are present, except those in `absent`, which may be missing."""
    required = [name for name in properties if name not in absent]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def listing(name: str, entry: Schema) -> Schema:
    """Return the schema of a page: a list of entries and the cursor of the next page."""
    return result(**{name: {"type": "array", "items": entry}, "next_cursor": optional(TEXT)})


PAGE: Final = {
    "limit": number("At most this many entries.", 1, LIMIT_MAX, LIMIT),
    "cursor": text("The next_cursor of the previous page; omit it for the first page."),
}
"""The arguments of an operation that returns a page."""
PERIOD: Final = {
    "since": moment("Only from this time on, such as 2026-01-31T12:00:00Z."),
    "until": moment("Only before this time."),
}
"""The arguments of an operation that lists what happened in a time."""
PART: Final = {
    "max_chars": number("With path: at most this many characters of the value.", 1, CHARS_MAX, CHARS),
    "offset": number("With path: the first character to return; next_offset of the previous part.", 0, None, 0),
}
"""The arguments of an operation that returns a part of a long value."""
