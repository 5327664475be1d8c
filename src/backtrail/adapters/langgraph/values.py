"""Channel values on their way: those that are loaded when somebody looks at them, and those that are to be saved.

A listing has many checkpoints, and most are not read. What is handed over to be saved may be changed while it waits for
its turn: LangGraph goes on with the next step, and some of its channels hand out what they go on to change.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

_PLAIN: Final = frozenset({list, dict, tuple})
_OPEN: Final = _PLAIN | {set, bytearray, deque, defaultdict, OrderedDict, Counter}
"""Containers that are taken along as they are now. What else can change, such as a message, is the user's own."""


def settled(value: Any) -> Any:
    """Return a value whose containers nobody else changes."""
    try:
        return _settled(value)
    except RecursionError:  # it contains itself: to save it says so
        return value


def _settled(value: Any) -> Any:
    kind = type(value)
    if kind not in _OPEN:
        return value
    if kind is dict:
        return {key: _settled(each) if type(each) in _OPEN else each for key, each in value.items()}
    if kind in _PLAIN:
        parts = [_settled(each) if type(each) in _OPEN else each for each in value]
        return parts if kind is list else tuple(parts)
    return copy.copy(value)


class Values(MutableMapping[str, Any]):
    """A mapping that gets its items when it is first used. A copy of it, of whatever kind, is a dict.

    It is no dict itself: code that reads one past its methods, as encoders do, would find it empty.
    """

    __slots__ = ("_found", "_load")

    def __init__(self, load: Callable[[], dict[str, Any]]) -> None:
        self._load = load
        self._found: dict[str, Any] | None = None

    @property
    def _items(self) -> dict[str, Any]:
        if self._found is None:
            self._found = self._load()
        return self._found

    def copy(self) -> dict[str, Any]:
        """Return a dict with the same items."""
        return dict(self._items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._items, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self._items}

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return dict, (self._items,)
