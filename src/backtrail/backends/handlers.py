"""Signal handlers: they come in the middle of anything, and may use a store that the same thread is just using.

What a call has half done is not to be read, and not to be written on. Locks that know their thread do not keep such a
call out, so whoever has one already looks who is being run: if a call of the same backend is, the handler is refused;
if none is, Ctrl-C came when the lock was to be given back, and it is only left over.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from types import FrameType

_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - to be compared with names of files


def refuse_within(backend: object) -> None:
    """Refuse a call that comes in the middle of another one of the same backend, in the same thread."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    outside = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_HERE):
            if outside and frame.f_locals.get("self") is backend:
                raise Unavailable(
                    "a signal handler uses the store in the middle of a call of its own thread: let it set a flag, "
                    "and save when that call has ended",
                    code="unavailable.locked",
                )
        elif file != contextlib.__file__:
            outside = True  # what is beneath has called what called this
        frame = frame.f_back
