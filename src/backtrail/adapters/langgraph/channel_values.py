"""Channel values that load on first use, and snapshots of channel values that wait to be saved.

A listing has many checkpoints, and callers read the values of few. A value that waits to be saved may change: LangGraph
goes on with the next step, and some of its channels change the object that they returned.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

_PLAIN: Final = frozenset({list, dict, tuple})
_CONTAINERS: Final = _PLAIN | {set, bytearray, deque, defaultdict, OrderedDict, Counter}
"""Containers that a snapshot copies. Other objects that can change, such as messages, are the user's own."""


def snapshot(value: Any) -> Any:
    """Return a value whose containers no other code changes."""
    try:
        return _copied(value)
    except RecursionError:  # the value contains itself: the save refuses it
        return value


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind not in _CONTAINERS:
        return value
    if kind is dict:
        return {key: _copied(each) if type(each) in _CONTAINERS else each for key, each in value.items()}
    if kind in _PLAIN:
        items = [_copied(each) if type(each) in _CONTAINERS else each for each in value]
        return items if kind is list else tuple(items)
    return copy.copy(value)


class LazyValues(MutableMapping[str, Any]):
    """A mapping that loads its items on first use. Every copy of it is a dict.

    It is no dict itself: code that bypasses a dict's methods, as encoders do, would see it empty.
    """

    __slots__ = ("_items_or_none", "_load")

    def __init__(self, load: Callable[[], dict[str, Any]]) -> None:
        self._load = load
        self._items_or_none: dict[str, Any] | None = None

    @property
    def _items(self) -> dict[str, Any]:
        if self._items_or_none is None:
            self._items_or_none = self._load()
        return self._items_or_none

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
