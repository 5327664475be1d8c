"""How much work something is, and how to do much of it without keeping others from theirs.

Python runs one thread at a time and takes the turn from a busy one every 5 ms, no sooner. A thread that works for an
event loop slows down: it gives its turn away by itself, many times as often.

Upkeep writes much, and has time: it writes in slices, and leaves the store to others between them.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

LIGHT: Final = 64 * 1024
"""Bytes of text, roughly, that a value may have to be light."""
_PARTS: Final = 400
"""Parts that it may have."""
_PLAIN: Final = frozenset({int, float, bool, type(None), complex})
_STRETCH: Final = 0.001
_REST: Final = 0.00005
SLICE: Final = 128
"""Rows or chunks that upkeep changes in one write, at most: whoever else writes waits for one of these."""
_SPELL: Final = 0.002
_LONGEST_BREAK: Final = 0.02


class _Pace(threading.local):
    until: float = 0.0
    """When to rest; 0: never."""


_pace = _Pace()


def slow_down() -> None:
    """Make the calling thread rest now and then, where it calls `rest`."""
    _pace.until = time.monotonic() + _STRETCH


def is_slow() -> bool:
    """Tell whether the calling thread rests now and then."""
    return _pace.until > 0


def rest() -> None:
    """Let others go on, if this thread is a slow one and has worked for a while."""
    if _pace.until and time.monotonic() > _pace.until:
        time.sleep(_REST)
        _pace.until = time.monotonic() + _STRETCH


class Upkeep:
    """Writes of upkeep: after some, others have the store for as long as these have taken."""

    def __init__(self, longest: float = _LONGEST_BREAK) -> None:
        self._longest = longest
        self._taken = 0.0

    @contextmanager
    def write(self) -> Iterator[None]:
        """Write one slice in the block; then pause, if it is time."""
        begun = time.monotonic()
        yield
        self._taken += time.monotonic() - begun
        if self._taken >= _SPELL:
            time.sleep(min(self._taken, self._longest))
            self._taken = 0.0


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Give items, a slice at a time."""
    return (items[start : start + SLICE] for start in range(0, len(items), SLICE))


def is_light(*values: Any) -> bool:
    """Tell whether values are surely small, without looking at more than a few hundred parts of them."""
    todo: list[Any] = list(values)
    size = parts = 0
    while todo:
        value = todo.pop()
        kind = type(value)
        parts += 1
        if kind in _PLAIN:
            continue
        if isinstance(value, str | bytes | bytearray):
            size += len(value)
        elif isinstance(value, dict | list | tuple | set | frozenset):
            if parts + len(value) > _PARTS:
                return False
            if isinstance(value, dict):
                todo += value.keys()
                todo += value.values()
            else:
                todo += value
        else:
            inner = getattr(value, "__dict__", None)
            todo += inner.values() if inner else ()
            todo += [getattr(value, name, None) for name in _fields(kind)]
        if size > LIGHT or parts > _PARTS:
            return False
    return True


def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of what instances hold outside of a `__dict__`."""
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)
