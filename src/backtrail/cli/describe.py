"""What is told of checkpoints, to programs as JSON, to people in a few words; and of work on all of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.cli.output import Progress, brief, clean, cut, line, width
from backtrail.cli.transcript import answered, sentence

if TYPE_CHECKING:
    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.output import Output
    from backtrail.store import Store

_SMALL: Final = 65_536
"""Bytes of a state that is loaded only to show how it begins."""
_CALLS: Final = 8
"""So many messages are looked at for the call that the last one is the result of."""
_PAGE: Final = 4096
"""Bytes of a page of SQLite's."""


def checkpoint_data(checkpoint: Checkpoint[Any]) -> dict[str, Any]:
    """Return what is known of a checkpoint without loading its state."""
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


def words(checkpoint: Checkpoint[Any], most: int) -> str:
    """Return the first words of a checkpoint: of its last message, else of its state if that is small."""
    from backtrail.errors import Corrupt, Invalid, NotFound

    try:
        try:
            last = checkpoint.tail("messages", 1)
        except (Invalid, NotFound):
            last = []
        if last:
            before = checkpoint.tail("messages", _CALLS) if answered(last[0]) else ()
            return brief(sentence(last[0], before), most)
        return brief(checkpoint.state, most) if checkpoint.size <= _SMALL else ""
    except Corrupt:
        return "(damaged)"


def made(out: Output, checkpoint: Checkpoint[Any], **more: Any) -> None:
    """Print the checkpoint that came of a change, in one line."""
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
    """Return what tells how far work on all of a store is."""
    from backtrail.errors import Error

    def totals() -> dict[str, int]:
        try:
            held = store.stats()
        except Error:  # whoever has a damaged store sees numbers, and no bar
            return {}
        threads = held.threads + held.agents + held.conversations + held.runs
        pages = held.stored_bytes // _PAGE
        return {
            "threads": threads,
            "checkpoints": held.checkpoints,
            "chunks": held.chunks,
            "pages": pages,
            "index": threads,
        }

    return Progress(totals)
