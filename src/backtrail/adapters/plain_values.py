"""Plain values for instances of harmless subclasses.

Frameworks pass strings and numbers of their own classes, such as LangChain's `message.text` or numpy's numbers. Each
equals a plain value, and the adapter stores that plain value.
"""

from __future__ import annotations

import marshal
from enum import Enum
from typing import Any, Final

import ormsgpack

from backtrail.engine.tree.encode import may_hold_bytes

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


def plain(value: Any) -> Any:
    """Return the str, int, float, list or dict that an instance of a subclass equals; any other value unchanged."""
    if isinstance(value, bool | Enum):
        return value
    base: Any
    if isinstance(value, str):
        base = str.__str__(value)
    elif isinstance(value, int):
        base = int.__int__(value)
    elif isinstance(value, float):
        base = float.__float__(value)
    elif isinstance(value, list):
        base = list(list.__iter__(value))
    elif isinstance(value, dict):
        base = dict(zip(dict.keys(value), dict.values(value), strict=True))
    else:
        return value
    is_equal = bool(base == value) or bool(base != base and value != value)  # noqa: PLR0124 - nan differs from itself
    return base if is_equal else value


def plain_data(value: Any) -> Any:
    """Return data with plain values at every depth. Dicts, lists and tuples are copies."""
    if isinstance(value, dict):
        base = plain(value)
        return {plain(key): plain_data(each) for key, each in base.items()} if type(base) is dict else base
    if isinstance(value, list) or type(value) is tuple:
        base = plain(value)
        return type(base)(map(plain_data, base)) if type(base) in (list, tuple) else base
    return plain(value)


def packed_plain(value: Any) -> bytes | None:
    """Return the bytes of a value that holds only plain dicts, lists, strings, numbers and None; None for any other."""
    try:
        data = ormsgpack.packb(value, option=_OPTIONS)
        marshal.dumps(value)  # refuses ormsgpack's own classes, which carry ready-made bytes
    except (TypeError, ValueError):
        return None
    return None if may_hold_bytes(data) else data
