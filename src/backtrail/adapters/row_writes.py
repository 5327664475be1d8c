"""Writing the rows of a namespace's threads, without the checks that the adapter's own values do not need.

A handle of a thread is shared by all callers, so no write expects the head that its caller saw last: a write names the
head that it expects, or goes on top of any head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from backtrail.engine.adapter_labels import MARK
from backtrail.engine.asides import RUN
from backtrail.engine.rows import Meta
from backtrail.engine.tree.decode import Unpacker
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
    state = thread._redacted(state)  # noqa: SLF001 - a part of Thread.save
    change = Replace(state, thread._nodes(), thread._types, changed)  # noqa: SLF001 - a part of Thread.save
    meta = _meta(thread, label, metadata)
    return thread._write(change, meta, expect, default=ANYTHING, onto=onto)  # noqa: SLF001 - a part of Thread.save


def save_alone(thread: Thread[Any], state: dict[str, Any], label: str | None, metadata: RowMetadata) -> Checkpoint[Any]:
    """Save a state that has nothing in common with the one before: neither is read to write or read the other."""
    state = thread._redacted(state)  # noqa: SLF001 - a part of Thread.save
    proposal = Replace(state, thread._nodes(), thread._types)(None)  # noqa: SLF001 - a part of Thread.save
    meta = _meta(thread, label, metadata)
    return thread._write(lambda _: proposal, meta, None, default=ANYTHING)  # noqa: SLF001 - as above


def _meta(thread: Thread[Any], label: str | None, metadata: RowMetadata) -> Meta:
    if metadata and thread._redact is not None:  # noqa: SLF001 - as above
        given = Unpacker(thread._types)(metadata) if isinstance(metadata, bytes) else metadata  # noqa: SLF001
        own = {MARK, RUN}  # ids that lead from checkpoint to checkpoint
        metadata = {key: value if key in own else thread._redacted(value) for key, value in given.items()}  # noqa: SLF001
    packed = metadata if isinstance(metadata, bytes) else thread._metadata(metadata)  # noqa: SLF001 - as above
    return Meta(label=check_label(label), metadata=packed)
