"""Writing the rows of a namespace's threads, without the checks that the adapter's own values do not need.

A handle of a thread is shared by all callers, so no write expects the head that its caller saw last: a write names the
head that it expects, or goes on top of any head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from backtrail.engine.rows import Meta
from backtrail.engine.tree.edits import Replace
from backtrail.engine.writer import ANYTHING
from backtrail.validation import check_label

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from backtrail import Checkpoint, Thread

RowMetadata: TypeAlias = "Mapping[str, Any] | bytes | None"
"""The metadata of a row, or their bytes."""


def save_checkpoint(
    thread: Thread[Any],
    state: dict[str, Any],
    label: str | None,
    metadata: RowMetadata,
    *,
    changed: Collection[str] | None = None,
    expect: Any = None,
    onto: Any = None,
) -> Checkpoint[Any]:
    """Save a state as `Thread.save` does."""
    change = Replace(state, thread._nodes(), thread._types, changed)  # noqa: SLF001 - a part of Thread.save
    meta = _meta(thread, label, metadata)
    return thread._write(change, meta, expect, default=ANYTHING, onto=onto)  # noqa: SLF001 - a part of Thread.save


def save_alone(thread: Thread[Any], state: dict[str, Any], label: str | None, metadata: RowMetadata) -> Checkpoint[Any]:
    """Save a state that has nothing in common with the one before: neither is read to write or read the other."""
    proposal = Replace(state, thread._nodes(), thread._types)(None)  # noqa: SLF001 - a part of Thread.save
    meta = _meta(thread, label, metadata)
    return thread._write(lambda _: proposal, meta, None, default=ANYTHING)  # noqa: SLF001 - as above


def _meta(thread: Thread[Any], label: str | None, metadata: RowMetadata) -> Meta:
    packed = metadata if isinstance(metadata, bytes) else thread._metadata(metadata)  # noqa: SLF001 - as above
    return Meta(label=check_label(label), metadata=packed)
