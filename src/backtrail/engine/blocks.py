"""Whether the block of a `with` is still being run.

Ctrl-C may come at the entry of `__exit__`, before anything in it is run: then the block has been left, and nothing says
so. Whatever the block has opened would stay open for all that follows it. So who goes by what is open asks, each time,
whether the block is still there: in a function that is being run, at a place from which an exception would lead to
the end of the block. Where that cannot be told, as in a generator, which may wait while its block goes on, or if
`__enter__` was called by other means than `with`, the block counts as being run.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

_WITH: Final = dis.opmap.get("BEFORE_WITH", -1)
"""What calls `__enter__`; later versions of Python do it in another way, and there nothing can be told."""
_SUSPENDED: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Block(NamedTuple):
    """The block of a `with` statement, and the function that it is in."""

    frame: FrameType
    handler: int
    """Where an exception in the block leads to."""

    @classmethod
    def entered_by(cls, frame: FrameType) -> Block | None:
        """Return the block that a frame is about to enter; None if whether that is being run cannot be told."""
        code, at = frame.f_code, frame.f_lasti
        if code.co_flags & _SUSPENDED or code.co_code[at] != _WITH:
            return None
        handler = _handler(code, at + 2)
        return None if handler is None else cls(frame, handler)

    def is_over(self) -> bool:
        """Tell whether it has been left, however; by a function that is called in it, if it has not."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None or not _leads_to(frame.f_code, frame.f_lasti, self.handler)


@functools.lru_cache(maxsize=256)
def _leads_to(code: CodeType, at: int, handler: int) -> bool:
    """Tell whether an exception that nobody catches before leads from a place of a function to a handler."""
    seen: set[int] = set()
    found = _handler(code, at)
    while found not in (None, handler) and found not in seen:
        seen.add(found)
        found = _handler(code, found)
    return found == handler


def _handler(code: CodeType, at: int) -> int | None:
    """Return where an exception at a place of a function leads to first."""
    return next((entry.target for entry in _entries(code) if entry.start <= at < entry.end), None)


@functools.lru_cache(maxsize=64)
def _entries(code: CodeType) -> list[Any]:
    return dis.Bytecode(code).exception_entries  # type: ignore[attr-defined,no-any-return]
