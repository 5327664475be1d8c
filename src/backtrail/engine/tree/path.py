"""Paths into a state: `"messages"`, `"plan.days[3].city"`, `'prices["1.5"]'`, or a tuple of keys and indexes.

A path is a tuple of steps that prints in the form of the examples. In a dict or record a step is a key, in a list or
tuple an index (negative ones count from the end). The empty path is the state itself.
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any, Final

from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Hashable

_STEP: Final = re.compile(r'\.?(?P<name>[^.\[\]"]+)|\[(?P<index>-?\d+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]')
_NAME: Final = re.compile(r'[^.\[\]"\s][^.\[\]"]*')


class Path(tuple[Any, ...]):
    """A tuple of steps. It equals a tuple with the same steps, and the text that it prints as."""

    __slots__ = ()

    def __str__(self) -> str:
        parts: list[str] = []
        for step in self:
            if isinstance(step, str) and _NAME.fullmatch(step):
                parts.append(f".{step}" if parts else step)
            elif isinstance(step, str):
                parts.append(f"[{json.dumps(step)}]")
            else:
                parts.append(f"[{step!r}]")
        return "".join(parts)

    def __repr__(self) -> str:
        return f"Path({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str(self) == other
        return tuple.__eq__(self, other) if isinstance(other, tuple) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def child(self, step: Hashable) -> Path:
        """Return the path one step further."""
        return Path((*self, step))


def parse(path: Any) -> Path:
    """Return the path that a caller wrote as text or as a tuple."""
    if type(path) is str:
        return _read(path)
    if isinstance(path, tuple | list):
        return Path(path)
    if not isinstance(path, str):
        kind = type(path).__name__
        raise Invalid(f"a path must be a string or a tuple of keys and indexes, not {kind}", code="invalid.path")
    return _read(path)


@functools.lru_cache(maxsize=256)
def _read(path: str) -> Path:
    steps: list[Any] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or (at == 0 and path[0] == ".") or (at > 0 and match["name"] and path[at] != "."):
            raise _unreadable(path, at)
        if match["name"] is not None:
            steps.append(match["name"])
        else:
            try:
                steps.append(int(match["index"]) if match["index"] is not None else json.loads(match["quoted"]))
            except ValueError as error:  # too many digits for int(), or an escape that JSON does not know
                raise _unreadable(path, at) from error
        at = match.end()
    return Path(steps)


def _unreadable(path: str, at: int) -> Invalid:
    return Invalid(
        f"cannot read the path {path!r} at character {at + 1}; write it like messages[3].content, "
        'with odd keys quoted as prices["1.5"], or give a tuple of keys and indexes',
        code="invalid.path",
        path=path,
    )
