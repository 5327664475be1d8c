"""Throttling: long work pauses now and then, so that other threads and other writers are not kept waiting.

Python runs one thread at a time, and interrupts a busy thread only every 5 ms. A worker thread of an event loop is
*slow*: after each millisecond of work it sleeps for a moment, so that the event loop can run.

Upkeep (gc, prune and similar) writes a lot and is not urgent. It writes in slices, and pauses between them so that
other writers can use the store.
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
"""The most characters and bytes that a light value may hold."""
_PARTS: Final = 400
"""The most parts that a light value may have."""
_PLAIN: Final = frozenset({int, float, bool, type(None), complex})
_TEXT_TYPES: Final = (str, bytes, bytearray)
_TEXTS: Final = frozenset(_TEXT_TYPES)
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_STRETCH: Final = 0.001
"""Seconds that a slow thread works between two rests."""
_REST: Final = 0.00005
"""Seconds of a rest."""
SLICE: Final = 128
"""The most rows or chunks that upkeep changes in one write. Another writer waits for at most one slice."""
_SPELL: Final = 0.002
"""Seconds of writing after which upkeep pauses."""
_LONGEST_BREAK: Final = 0.02
"""The most seconds of a pause of upkeep."""


class _Pace(threading.local):
    until: float = 0.0
    """The time of the next rest, by `time.monotonic()`; 0 in a thread that is not slow."""


_pace = _Pace()
_slowed = False
"""Whether the process ever had a slow thread. Most have none, and the attribute of a thread takes longer to read."""


def slow_down() -> None:
    """Make the calling thread a slow one: its calls of `rest` take effect."""
    global _slowed  # noqa: PLW0603 - one assignment is atomic
    _slowed = True
    _pace.until = time.monotonic() + _STRETCH


def rest() -> None:
    """Sleep for a moment if the calling thread is a slow one and has worked for a millisecond. Long loops call it."""
    if _slowed and _pace.until and time.monotonic() > _pace.until:
        time.sleep(_REST)
        _pace.until = time.monotonic() + _STRETCH


class Upkeep:
    """Paces the writes of upkeep: after some milliseconds of writing it pauses for as long, up to `longest` seconds."""

    def __init__(self, longest: float = _LONGEST_BREAK) -> None:
        self._longest = longest
        self._taken = 0.0

    @contextmanager
    def write(self) -> Iterator[None]:
        """Measure the write of one slice in the block; then pause, if it is time."""
        begun = time.monotonic()
        yield
        self._taken += time.monotonic() - begun
        if self._taken >= _SPELL:
            time.sleep(min(self._taken, self._longest))
            self._taken = 0.0


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in slices of at most SLICE."""
    return (items[start : start + SLICE] for start in range(0, len(items), SLICE))


def is_light(*values: Any) -> bool:
    """Tell whether values are certainly small. Looks at no more than a few hundred parts of them."""
    todo: list[Any] = list(values)
    size = 0
    for value in todo:  # it grows meanwhile
        kind = type(value)
        if kind in _TEXTS:
            size += len(value)
        elif kind not in _PLAIN:
            if isinstance(value, _TEXT_TYPES):
                size += len(value)
            elif isinstance(value, _CONTAINERS):
                if len(todo) + len(value) > _PARTS:
                    return False
                todo += value
                if isinstance(value, dict):
                    todo += value.values()
            else:
                inner = getattr(value, "__dict__", None)
                todo += inner.values() if inner else ()
                todo += [getattr(value, name, None) for name in _fields(kind)]
            if len(todo) > _PARTS:
                return False
    return size <= LIGHT


def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of the attributes that instances have outside of their `__dict__`: msgspec fields and slots."""
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)
