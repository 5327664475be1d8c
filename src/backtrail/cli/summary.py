"""Summaries of a checkpoint, as JSON or in a few words; and the progress of work on a whole store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.cli.output import Progress, brief, clean, cut, line, width
from backtrail.cli.transcript import one_line
from backtrail.conversations.transcript import answered_call

if TYPE_CHECKING:
    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.output import Output
    from backtrail.store import Store

_SMALL: Final = 65_536
"""Bytes of the largest state that is loaded for its first words."""
_CALLS: Final = 8
"""Messages that are searched for the call of the last tool result."""
_PAGE: Final = 4096
"""Bytes of an SQLite page."""


def checkpoint_data(checkpoint: Checkpoint[Any]) -> dict[str, Any]:
    """Return the fields of a checkpoint without its state."""
    return {
        "id": checkpoint.id,
        "thread_id": checkpoint.thread_id,
        "seq": checkpoint.seq,
        "step": checkpoint.step,
        "parent_id": checkpoint.parent_id,
        "label": checkpoint.label,
        "tags": sorted(checkpoint.tags),
        "kind": checkpoint.kind,
        "metadata": checkpoint.metadata,
        "created_at": checkpoint.created_at,
        "size": checkpoint.size,
        "stored": checkpoint.stored,
        "root": checkpoint.root,
        "damaged": checkpoint.damaged,
    }


def first_words(checkpoint: Checkpoint[Any], most: int) -> str:
    """Return the first words of a checkpoint's last message, or of a small state."""
    from backtrail.errors import Corrupt, Invalid, NotFound

    try:
        try:
            last = checkpoint.tail("messages", 1)
        except (Invalid, NotFound):
            last = []
        if last:
            before = checkpoint.tail("messages", _CALLS) if answered_call(last[0]) else ()
            return brief(one_line(last[0], before), most)
        return brief(checkpoint.state, most) if checkpoint.size <= _SMALL else ""
    except Corrupt:
        return "(damaged)"


def print_checkpoint(out: Output, checkpoint: Checkpoint[Any], **more: Any) -> None:
    """Print the checkpoint that a change made, in one line."""
    if not out.human:
        out.value({**checkpoint_data(checkpoint), **more})
        return
    label = f"  {clean(checkpoint.label)}" if checkpoint.label is not None else ""
    rest = f"@{checkpoint.id[:8]}  step {checkpoint.step}"
    name = clean(checkpoint.thread_id)
    name = name if out.room is None else cut(name, max(out.room - width(rest), 1))
    text = f"{name}{rest}{label}"
    text = text if out.room is None else cut(text, out.room)
    end = len(name) + 9
    line(f"{out.paint(text[:end], 'yellow')}{text[end:]}")


def progress_in(store: Store) -> Progress:
    """Return the progress of work on a whole store."""
    from backtrail.errors import Error

    def totals() -> dict[str, int]:
        try:
            stats = store.stats()
        except Error:  # a damaged store gets numbers without a bar
            return {}
        threads = stats.threads + stats.agents + stats.conversations + stats.runs
        pages = stats.stored_bytes // _PAGE
        return {
            "threads": threads,
            "checkpoints": stats.checkpoints,
            "chunks": stats.chunks,
            "pages": pages,
            "index": threads,
        }

    return Progress(totals)
