"""Equality as a store must keep it: types, the order of keys, the sign of zero and nan included.

`==` says that 1, True and 1.0 are the same, and that nan is not itself; a store must not.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
from typing import Any, Final

_PLAIN: Final = frozenset((str, int, bool, bytes, type(None)))
"""Types of most values, for which `==` says all."""


def same(a: Any, b: Any) -> bool:  # noqa: PLR0911 - one answer for each kind of value
    """Tell whether two values are the same, exactly."""
    if type(a) is not type(b):
        return False
    if type(a) in _PLAIN:
        return bool(a == b)
    if isinstance(a, dict):
        ours, theirs = list(a.items()), list(b.items())
        return len(ours) == len(theirs) and all(
            same(x, y) and same(u, v) for (x, u), (y, v) in zip(ours, theirs, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        return sorted(map(_named, a)) == sorted(map(_named, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, decimal.Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    if isinstance(a, dt.datetime | dt.time):
        return repr(a) == repr(b) and a.fold == b.fold
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b)


def _named(item: object) -> str:
    return f"{type(item).__qualname__} {item!r}"
