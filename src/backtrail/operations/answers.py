"""Answers: values of a store as JSON, in sizes that a model can read.

A long value becomes a preview: `{"preview": ..., "truncated": true, "size": ...}`. Sizes count the characters of the
text, or of the value's JSON. A page ends at its limit of entries or of bytes.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine.schema.registry import Member
from backtrail.errors import CommitUnknown, Corrupt, Invalid, NotFound, Unavailable
from backtrail.operations.schema import CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backtrail.errors import Error

PREVIEW: Final = 200
"""The length of a preview in characters."""
OUTLINE: Final = 2_000
"""The largest outline of a mapping or list, in bytes."""
ENTRY: Final = 900
"""Bytes for each entry of a page: a page of n entries ends early at n times this size."""
_DIGITS: Final = 18
"""The longest number in a text: Python refuses to convert much longer ones."""
_PLACE: Final = re.compile(r"^(?:[a-z]+:)?(?:[A-Za-z]:)?[~.]{0,2}[/\\].*?: ", re.DOTALL)
"""The path or URL that the messages of backends begin with."""
_BITS: Final = 10_000
"""The longest number in bits: JSON parsers refuse much longer ones."""


def plain(value: Any) -> Any:  # noqa: PLR0911 - one line for each kind of value
    """Return a value as JSON data. A value that JSON lacks becomes text."""
    if isinstance(value, Enum | Member):
        return plain(value.value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _BITS else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value)


def _text(value: Any) -> str:
    """Return JSON data as text."""
    return json.dumps(value, ensure_ascii=False)


def _weight(value: Any) -> int:
    """Return the size of JSON data in bytes of UTF-8."""
    return len(_text(value).encode("utf-8", "surrogatepass"))


def brief(value: Any) -> Any:
    """Return a value as JSON data; a preview if its text is longer than `PREVIEW`."""
    if isinstance(value, str):
        text, more = value, {}
    else:
        value = plain(value)
        text, more = _text(value), {"count": len(value)} if isinstance(value, dict | list) else {}
    if len(text) <= PREVIEW:
        return value
    return {"preview": text[:PREVIEW], "truncated": True, "size": len(text), **more}


def outline(value: Mapping[str, Any] | Iterable[Any]) -> Any:
    """Return a mapping or list as JSON data with brief values; only the first entries if all exceed `OUTLINE` bytes."""
    whole: Any = plain(value)
    entries = [*whole.items()] if isinstance(whole, dict) else [*enumerate(whole)]
    first: list[tuple[Any, Any]] = []
    left = OUTLINE
    for name, item in entries:
        first.append((name, brief(item)))
        left -= _weight(first[-1])
        if left < 0:
            first.pop()
            break
    values = dict(first) if isinstance(whole, dict) else [item for _, item in first]
    if len(first) == len(entries):
        return values
    return {"values": values, "truncated": True, "size": len(_text(whole)), "count": len(entries)}


def part(value: Any, *, max_chars: int, offset: int) -> dict[str, Any]:
    """Return a whole value of at most `max_chars` characters; of a longer value, a part of its text or JSON."""
    value = plain(value)
    text = value if isinstance(value, str) else _text(value)
    if offset == 0 and len(text) <= max_chars:
        return {"value": value, "truncated": False, "size": len(text), "next_offset": None}
    if offset > len(text):
        raise Invalid(
            f"offset must be from 0 to {len(text)}, the size of the value, not {offset}", code="invalid.argument"
        )
    end = offset + max_chars
    return {
        "part": text[offset:end],
        "part_of": "text" if isinstance(value, str) else "json",
        "truncated": True,
        "size": len(text),
        "next_offset": end if end < len(text) else None,
    }


def page(
    entries: Iterable[dict[str, Any]], limit: int, *, bytes_each: int = ENTRY
) -> tuple[list[dict[str, Any]], bool]:
    """Return the first entries, and whether there are more.

    A page has at most `limit` entries, fewer if they are long, but at least one.
    """
    first: list[dict[str, Any]] = []
    left = limit * bytes_each
    for entry in entries:
        left -= _weight(entry)
        if len(first) == limit or (first and left < 0):
            return first, True
        first.append(entry)
    return first, False


def encode_cursor(tool: str, *position: Any) -> str:
    """Return a position in the listing of a tool as an opaque text."""
    return base64.urlsafe_b64encode(json.dumps([tool, *position]).encode()).decode()


def decode_cursor(tool: str, text: str | None, count: int) -> list[Any]:
    """Return the position in a cursor as a list of `count` texts; without a cursor, a list of None."""
    if text is None:
        return [None] * count
    position: Any
    try:
        position = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):  # not base64, UTF-8 or JSON
        position = None
    if isinstance(position, list) and position[:1] == [tool] and [*map(type, position)] == [str] * (count + 1):
        return position[1:]
    raise Invalid(
        f"cursor is the next_cursor of an earlier {tool}; leave it out for the first page", code="invalid.argument"
    )


def whole_number(text: str | None) -> int | None:
    """Return the number in a text of at most 18 digits; None for any other text."""
    return int(text) if text and text.isdecimal() and len(text) <= _DIGITS else None


# -- errors -----------------------------------------------------------------------------------------------


def message_of(error: Error) -> str:
    """Return the message of an error, without the place of the store: callers elsewhere have no use for it."""
    text = str(error)
    if isinstance(error, Unavailable | Corrupt | CommitUnknown) or error.code == "not_found.store":
        return _PLACE.sub("the store: ", text, count=1)
    return text


# -- parts of answers -------------------------------------------------------------------------------------


def listed(
    operation: str, name: str, values: list[Any], entry: Callable[[Any], dict[str, Any]], limit: int
) -> dict[str, Any]:
    """Return an answer with a page of values under `name`, and the cursor of the next page."""
    entries, more = page(map(entry, values), limit)
    return {name: entries, "next_cursor": encode_cursor(operation, values[len(entries) - 1].cursor) if more else None}


def value_part(path: str, value: Any, max_chars: int | None, offset: int | None) -> dict[str, Any]:
    """Return the whole value at a path, or a part of its text or JSON."""
    return {"path": path, **part(value, max_chars=CHARS if max_chars is None else max_chars, offset=offset or 0)}


def only_with_path(max_chars: int | None, offset: int | None) -> None:
    """Refuse the arguments that require a path."""
    if max_chars is not None or offset is not None:
        raise Invalid("max_chars and offset require path", code="invalid.argument")


def nothing_at(path: str, operation: str) -> NotFound:
    """Return the error for a path without a value."""
    message = f"there is no value at {path:.200}; {operation} without path lists the fields"
    return NotFound(message, code="not_found.path")


def deleted(ids: dict[str, Any], subject: str, *, existed: bool, verb: str, undo: str) -> dict[str, Any]:
    """Return the answer of a deletion. It says what was deleted, and how to undo it."""
    if not existed:
        return {**ids, "deleted": False, "message": f"There is no {subject}: nothing was deleted."}
    return {**ids, "deleted": True, "message": f"{subject[0].upper()}{subject[1:]}{verb} deleted.", "undo": undo}


def damage(reason: str | None) -> dict[str, Any]:
    """Return the part of an entry that names its damage, if it has any."""
    return {} if reason is None else {"damaged": brief(reason)}
