"""Small chunks: lower limits for splitting states into chunks.

So a state of a few hundred bytes has leaves, inner nodes, pieces and chains of several bases, and a listing of a few
entries has pages.

The limits affect the root of a state, so data that was written inside `small_chunks()` must be read inside it, too.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final
from unittest import mock

from backtrail import collection, listing, thread, transaction
from backtrail.conversations import repository
from backtrail.engine import payload, retention, writer
from backtrail.engine.tree import chunked as spine
from backtrail.engine.tree import decode, diff, text
from backtrail.maintenance import gc, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_INLINE: Final = 64

_SIZES: Final[tuple[tuple[ModuleType, str, int], ...]] = (
    (spine, "LEAF_TARGET", 64),
    (spine, "LEAF_ENTRIES", 12),
    (spine, "INNER_MIN", 90),
    (spine, "INNER_TARGET", 60),
    (spine, "INNER_MAX", 240),
    (spine, "INNER_WIDTH", 2),
    (text, "PIECE_MAX", 96),
    (text, "_PIECE_MIN", 24),
    (text, "_PIECE_MASK", 0x1),
    (diff, "_PATCH_FROM", 8),
    (payload, "DEPTH_MAX", 5),
    (payload, "DELTA_MAX", 400),
    (payload, "CHAIN_MAX", 800),
    (payload, "INLINE_NODE", 160),
    (payload, "INLINE_TOTAL", 300),
    (decode, "_BATCH", 2),
    (writer, "_FRESH_MAX", 3),
    (transaction, "_TRIM_EVERY", 4),
    (thread, "_PAGE", 3),
    (retention, "_PAGE", 2),
    (listing, "_PAGE", 2),
    (collection, "_PAGE", 2),
    (repository, "_PAGE", 2),
    (gc, "_PAGE", 3),
    (verify, "_PAGE", 3),
    (gc, "_BATCH", 3),
    (gc, "PART_MIN", 6),
    (gc, "PAYLOAD_MIN", 8),
    (gc, "GAIN_MIN", -200),  # to name a chunk is longer than most rows then are
    (gc, "WAITING_BYTES", 2000),
)


def _with_inline() -> list[ModuleType]:
    """Return the modules of the engine that have the limit, each under a name of its own."""
    engine = [module for name, module in sys.modules.items() if name.startswith("backtrail.engine.")]
    return [module for module in engine if hasattr(module, "INLINE")]


@contextmanager
def small_chunks(inline: int = _INLINE) -> Iterator[None]:
    """Cut states into chunks of a hundred bytes or so while the block runs.

    A value of up to `inline` bytes is not a separate chunk. Metadata never is one, and may need more.
    """
    sizes = (
        *((module, "INLINE", inline) for module in _with_inline()),
        (spine, "LEAF_MIN", inline + 16),  # above INLINE: a container with a leaf is never inline
        (spine, "LEAF_MAX", inline + 176),
        *_SIZES,
    )
    with ExitStack() as stack:
        for module, name, size in sizes:
            if not isinstance(getattr(module, name), int):
                raise TypeError(f"{module.__name__}.{name} is not a size")
            stack.enter_context(mock.patch.object(module, name, size))
        yield
