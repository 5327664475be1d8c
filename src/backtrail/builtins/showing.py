"""Answers: anything that a store holds as JSON, and no more of it than a model wants to read.

What is long is cut to a preview that says so: `{"preview": ..., "truncated": true, "size": ...}`. Sizes are in
characters, of the text or of the value's JSON. A page ends after so many entries, or when it is full.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine.schema.registry import Member
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

PREVIEW: Final = 200
"""Characters of a text, or of a value's JSON, that are shown unasked."""
OUTLINE: Final = 2_000
"""Bytes by which a mapping or list is outlined."""
ENTRY: Final = 900
"""Bytes that an entry of a page may have on average; a page with more ends early."""
_BITS: Final = 10_000
"""Readers of JSON refuse numbers that are much longer."""


def plain(value: Any) -> Any:  # noqa: PLR0911 - one line for each kind of value
    """Return a value as JSON has it; what JSON does not have, as text."""
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
    """Return JSON as text, for people and models to read."""
    return json.dumps(value, ensure_ascii=False)


def _weight(value: Any) -> int:
    """Return the bytes that JSON takes in UTF-8."""
    return len(_text(value).encode("utf-8", "surrogatepass"))


def brief(value: Any) -> Any:
    """Return a value as JSON: whole if it is short, else the beginning of it."""
    if isinstance(value, str):
        text, more = value, {}
    else:
        value = plain(value)
        text, more = _text(value), {"count": len(value)} if isinstance(value, dict | list) else {}
    if len(text) <= PREVIEW:
        return value
    return {"preview": text[:PREVIEW], "truncated": True, "size": len(text), **more}


def outline(held: Mapping[str, Any] | Iterable[Any]) -> Any:
    """Return a mapping or list as JSON, each of its values brief; if there are too many of them, the first ones."""
    whole: Any = plain(held)
    entries = [*whole.items()] if isinstance(whole, dict) else [*enumerate(whole)]
    kept: list[tuple[Any, Any]] = []
    left = OUTLINE
    for name, value in entries:
        kept.append((name, brief(value)))
        left -= _weight(kept[-1])
        if left < 0:
            kept.pop()
            break
    values = dict(kept) if isinstance(whole, dict) else [value for _, value in kept]
    if len(kept) == len(entries):
        return values
    return {"values": values, "truncated": True, "size": len(_text(whole)), "count": len(entries)}


def part(value: Any, *, max_chars: int, offset: int) -> dict[str, Any]:
    """Return the whole of a value if it has no more than so many characters, else a part of its text or JSON."""
    value = plain(value)
    text = value if isinstance(value, str) else _text(value)
    if offset == 0 and len(text) <= max_chars:
        return {"value": value, "truncated": False, "size": len(text), "next_offset": None}
    if offset > len(text):
        raise Invalid(
            f"offset is from 0 to {len(text)}, the size of what is there, not {offset}", code="invalid.argument"
        )
    end = offset + max_chars
    return {
        "part": text[offset:end],
        "part_of": "text" if isinstance(value, str) else "json",
        "truncated": True,
        "size": len(text),
        "next_offset": end if end < len(text) else None,
    }


def page(entries: Iterable[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the first entries, and whether there are more: at most `limit`, fewer if they are long, one at least."""
    kept: list[dict[str, Any]] = []
    left = limit * ENTRY
    for entry in entries:
        left -= _weight(entry)
        if len(kept) == limit or (kept and left < 0):
            return kept, True
        kept.append(entry)
    return kept, False


def cursor(tool: str, *place: Any) -> str:
    """Return a place in a listing as a text that only the listing itself can read."""
    return base64.urlsafe_b64encode(json.dumps([tool, *place]).encode()).decode()


def place(tool: str, text: str | None, count: int) -> list[Any]:
    """Return the place that a cursor stands for: so many texts; none if there is no cursor."""
    if text is None:
        return [None] * count
    found: Any
    try:
        found = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):  # what is no base64, no UTF-8, no JSON
        found = None
    if isinstance(found, list) and found[:1] == [tool] and [*map(type, found)] == [str] * (count + 1):
        return found[1:]
    raise Invalid(
        f"cursor is the next_cursor of an earlier {tool}; leave it out for the first page", code="invalid.argument"
    )
