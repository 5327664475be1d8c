"""States made up at random, and states made from them by small edits.

Everything comes from a `random.Random`, so a seed is all that an example needs to say. Edits touch any place: the
front, the middle and the end of containers at any depth, single characters of texts, types (1, True, 1.0), key order.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import math
import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_KEYS: Final = ("messages", "plan", "n", "name", "a.b", "", "\0", "é", 0, 1, 2.5, None, (1, "x"), b"k", -(1 << 70))
_ATOMS: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 1.0, 0.0, -0.0, 0.1, math.inf, math.nan, 1 << 64, -(1 << 63), 1 << 200),
    *("", "a", "\0", "é😀", "\ud800", b"", b"\x11\x94", b"\xff", bytearray(b"x"), (), (1, True), frozenset({1, "a"})),
    *(set(), {2, 3}, dt.date(2026, 1, 31), dt.timedelta(days=-1, microseconds=5), uuid.UUID(int=7)),
    *(dt.datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=dt.UTC), decimal.Decimal("1.10"), [], {}),
)
_WORDS: Final = ("lorem", "ipsum", "dolor\n", "sit", "amet", "\0", "Grüße\n", "😀", "x" * 30, "a\nb\nc\n")
_DEPTH: Final = 3
_DEEP: Final = 20
"""Levels from which on nothing is put into itself again: it would soon be deeper than states may be."""


def state(rnd: random.Random) -> Any:
    """Return a new state: most are dicts with a list and a text in them; some are anything at all."""
    if rnd.random() < 0.12:
        return value(rnd, 1)
    made: dict[Any, Any] = {"messages": [message(rnd) for _ in range(rnd.randrange(8))]}
    if rnd.random() < 0.6:
        made["plan"] = mapping(rnd, 1)
    if rnd.random() < 0.5:
        made["text"] = text(rnd)
    return made


def message(rnd: random.Random) -> Any:
    """Return the possible items of a list of messages. They are few, so that states share parts."""
    kind = rnd.random()
    if kind < 0.5:
        return {
            "role": rnd.choice(("user", "assistant")),
            "content": " ".join(rnd.choices(_WORDS, k=rnd.randrange(1, 5))),
        }
    return rnd.randrange(9) if kind < 0.8 else value(rnd, 2)


def value(rnd: random.Random, depth: int) -> Any:
    """Return any value."""
    kind = rnd.random()
    if depth >= _DEPTH or kind < 0.4:
        return copy.copy(rnd.choice(_ATOMS))
    if kind < 0.55:
        return text(rnd)
    if kind < 0.7:
        return mapping(rnd, depth)
    if kind < 0.76:
        return tuple(value(rnd, depth + 1) for _ in range(rnd.randrange(6)))
    if kind < 0.8:
        return {rnd.randrange(60) for _ in range(rnd.randrange(40))}
    return [value(rnd, depth + 1) for _ in range(rnd.choice((0, 1, 3, 12)))]


def mapping(rnd: random.Random, depth: int) -> dict[Any, Any]:
    """Return a dict."""
    made = {rnd.choice(_KEYS): value(rnd, depth + 1) for _ in range(rnd.randrange(5))}
    if rnd.random() < 0.2:
        made.update({f"key {i}": rnd.randrange(5) for i in rnd.sample(range(99), rnd.randrange(30))})
    return made


def text(rnd: random.Random) -> Any:
    """Return a str, or bytes, of any length."""
    made = "".join(rnd.choices(_WORDS, k=rnd.choice((0, 1, 4, 20, 60))))
    return made.encode() if rnd.random() < 0.2 else made


# -- edits --------------------------------------------------------------------------------------------


def edited(rnd: random.Random, old: Any) -> Any:
    """Return a copy of a state with a few edits; sometimes it is the state itself."""
    new = copy.deepcopy(old)
    for _ in range(rnd.choice((0, 1, 1, 1, 2, 4))):
        new = _edit(rnd, new)
    return new


def _edit(rnd: random.Random, root: Any) -> Any:
    places = list(containers(root))
    if not places:
        return state(rnd)
    path, place = rnd.choice(places)
    if rnd.random() < 0.15 and max(len(each) for each, _ in places) < _DEEP:
        _repeat(rnd, place, rnd.choice(places)[1])
    elif isinstance(place, dict):
        _edit_dict(rnd, place)
    elif isinstance(place, list):
        rnd.choice(_LIST_EDITS)(rnd, place)
    return replaced(root, path, place)


def containers(root: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return every list and dict in a state with its path, without those inside tuples and sets."""
    found: list[tuple[tuple[Any, ...], Any]] = []
    stack: list[tuple[tuple[Any, ...], Any]] = [((), root)]
    while stack:
        path, place = stack.pop()
        if isinstance(place, dict | list):
            found.append((path, place))
            items = place.items() if isinstance(place, dict) else enumerate(place)
            stack += [((*path, step), part) for step, part in items]
    return found


def at(root: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    for step in path:
        root = root[step]
    return root


def replaced(root: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Put a value at a path, in place; return the root."""
    if not path:
        return new
    at(root, path[:-1])[path[-1]] = new
    return root


def _repeat(rnd: random.Random, place: Any, part: Any) -> None:
    """Put a copy of a part of the state somewhere else in it."""
    if isinstance(place, dict):
        place[rnd.choice(_KEYS)] = copy.deepcopy(part)
    else:
        place.insert(rnd.randrange(len(place) + 1), copy.deepcopy(part))


def _edit_dict(rnd: random.Random, place: dict[Any, Any]) -> None:
    kind = rnd.random()
    if not place or kind < 0.35:
        place[rnd.choice(_KEYS)] = value(rnd, 1)
        return
    key = rnd.choice(list(place))
    if kind < 0.5:
        del place[key]
    elif kind < 0.6:
        place[key] = place.pop(key)  # the same, in another order
    else:
        place[key] = _varied(rnd, place[key])


def _varied(rnd: random.Random, old: Any) -> Any:
    """Return something close to a value: equal but of another type, a text with an insertion, or anything."""
    if isinstance(old, bool | int | float) and old in (0, 1) and rnd.random() < 0.7:
        return rnd.choice((bool, int, float))(old)
    if isinstance(old, str | bytes) and rnd.random() < 0.8:
        where = rnd.randrange(len(old) + 1)
        more = rnd.choice(_WORDS)
        skip = rnd.choice((0, 0, 1, 5))
        if isinstance(old, bytes):
            return old[:where] + more.encode("utf-8", "surrogatepass") + old[where + skip :]
        return old[:where] + more + old[where + skip :]
    if isinstance(old, list) and rnd.random() < 0.5:
        return rnd.choice((tuple, list, lambda items: dict(enumerate(items))))(old)
    return value(rnd, 1)


def _insert(rnd: random.Random, place: list[Any]) -> None:
    where = rnd.choice((0, len(place), rnd.randrange(len(place) + 1)))
    place[where:where] = [message(rnd) for _ in range(rnd.choice((1, 1, 2, 10)))]


def _remove(rnd: random.Random, place: list[Any]) -> None:
    where = rnd.randrange(len(place) + 1)
    del place[where : where + rnd.choice((1, 1, 3))]


def _vary(rnd: random.Random, place: list[Any]) -> None:
    if place:
        where = rnd.randrange(len(place))
        place[where] = _varied(rnd, place[where])


def _shuffle(rnd: random.Random, place: list[Any]) -> None:
    rnd.shuffle(place)


_LIST_EDITS: Final[tuple[Callable[[random.Random, list[Any]], None], ...]] = (
    _insert,
    _insert,
    _insert,
    _remove,
    _vary,
    _vary,
    _shuffle,
)
