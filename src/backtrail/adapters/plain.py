"""Plain values in the place of instances of harmless subclasses: what an adapter keeps of them.

Frameworks hand over strings that are instances of classes of their own, such as what `message.text` of LangChain
returns, or numbers of numpy. They equal plain values, and these are kept in their place.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """Return the str, int, float, list or dict that an instance of a subclass equals; anything else as it is."""
    if isinstance(value, bool | Enum):
        return value
    made: Any
    if isinstance(value, str):
        made = str.__str__(value)
    elif isinstance(value, int):
        made = int.__int__(value)
    elif isinstance(value, float):
        made = float.__float__(value)
    elif isinstance(value, list):
        made = list(list.__iter__(value))
    elif isinstance(value, dict):
        made = dict(zip(dict.keys(value), dict.values(value), strict=True))
    else:
        return value
    return made if _equal(made, value) else value


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124 - a nan is not equal to itself


def plain_data(value: Any) -> Any:
    """Return data with plain values at every depth; dicts, lists and tuples are copied."""
    if isinstance(value, dict):
        made = plain(value)
        return {plain(key): plain_data(each) for key, each in made.items()} if type(made) is dict else made
    if isinstance(value, list) or type(value) is tuple:
        made = plain(value)
        return type(made)(map(plain_data, made)) if type(made) in (list, tuple) else made
    return plain(value)
