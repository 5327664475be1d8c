"""Pending writes: what tasks have written on top of a checkpoint, before the next one is made of it.

They come at any time, from any number of workers, even before their checkpoint does, and must not be in the way of
whoever saves. So they stand in a thread of their own, beside the one of their place: each call is one row there, with
the id of the checkpoint as its label, and rows are never compared or changed. What counts is settled when they are
read: of several writes with one index of one task the first does, of those to LangGraph's special channels the last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from backtrail.adapters.langgraph.places import label_of
from backtrail.adapters.plain import plain
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from backtrail import Checkpoint, Thread


class Note(NamedTuple):
    """Whose writes they are, and on what."""

    checkpoint_id: str
    task_id: str
    path: str
    run: str
    """The run that made them; "": the one that saved the checkpoint."""


def put(aside: Thread[Any], note: Note, writes: Sequence[tuple[str, Any]]) -> None:
    """Keep the writes of a task."""
    listed = [[channel, value] for channel, value in writes]
    if not listed:
        return
    task, kept = plain(note.task_id), [plain(note.path), listed, *([note.run] if note.run else ())]
    try:
        # by its task, so that a row has next to nothing in common with the one before: there is nothing to compare
        aside.save({task: kept}, changed=[task], label=label_of(note.checkpoint_id))
    except Invalid as error:
        raise _named(error, listed) from error


def _named(error: Invalid, listed: list[list[Any]]) -> Invalid:
    """Return an error that says which channel it is about, in place of where that stands in the row."""
    found = re.match(r"state.*?\[1\]\[(\d+)\]\[1\]", error.path or "", re.DOTALL)
    if found is None or error.path is None or int(found[1]) >= len(listed):
        return error
    where = f"writes.{listed[int(found[1])][0]}"
    path = where + error.path[found.end() :]
    return Invalid(error.message.replace(error.path, path), code=error.code, path=path)


Writes = list[tuple[str, str, Any]]
"""(task, channel, value), in the order in which LangGraph applies them."""


def read(aside: Thread[Any], checkpoint_ids: Collection[str]) -> dict[str, Writes]:
    """Return the writes on each of these checkpoints."""
    labels = {name: label_of(name) for name in checkpoint_ids}
    found: dict[str | None, list[Checkpoint[Any]]] = {}
    for row in aside.find(label=labels.values()):
        found.setdefault(row.label, []).append(row)
    return {name: _merged(found.get(label, ())) for name, label in labels.items()}


def _merged(rows: Sequence[Checkpoint[Any]]) -> Writes:
    """Return the writes in these rows, oldest first."""
    found: dict[tuple[str, int], tuple[str, str, Any]] = {}
    for row in rows:
        try:
            ((task, (path, listed, *_)),) = row.state.items()
            task, path = task + "", path + ""  # texts, or a TypeError
            for at, (channel, value) in enumerate(listed):
                index = WRITES_IDX_MAP.get(channel, at)
                if index < 0 or (task, index) not in found:
                    found[task, index] = (path, channel, value)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, Corrupt | Invalid):
                raise
            text = f"writes of LangGraph's tasks in thread {row.thread_id!r} are damaged"
            raise Corrupt(text, code="corrupt.state", checkpoint_id=row.id) from error
    ordered = sorted(found, key=lambda key: writes_sort_key(found[key][0], *key))
    return [(task, *found[task, index][1:]) for task, index in ordered]
