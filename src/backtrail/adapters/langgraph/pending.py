"""Pending writes: what tasks have written on top of a checkpoint, before the next one is made of it.

They come at any time, from any number of workers, even before their checkpoint does, and must not be in the way of
a save. So they stand in a thread of their own, aside of the one of their place: each call is one row there, with the id
of the checkpoint as its label, and rows are never compared or changed. What counts is settled when they are read: of
several writes with one index of one task the first does, of those to LangGraph's special channels the last.

A row says which run wrote it. A thread that was rewound to a checkpoint goes on from before the runs that had gone on
from there: their writes are left out when the checkpoint is read as the latest, and the rows of a run that begins with
such a read say so. See `backtrail.engine.asides`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from backtrail.adapters.langgraph.places import label_of
from backtrail.adapters.plain import plain
from backtrail.engine.asides import RUN
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from backtrail import Checkpoint, Thread


_WITHOUT: Final = "without"


class Note(NamedTuple):
    """Whose writes they are, and on what."""

    checkpoint_id: str
    task_id: str
    path: str
    run: str = ""
    """The run that made them; "": the one that saved the checkpoint."""
    without: tuple[str, ...] = ()
    """The runs whose writes this one was not shown."""


def put(aside: Thread[Any], note: Note, writes: Sequence[tuple[str, Any]]) -> None:
    """Keep the writes of a task."""
    listed = [[channel, value] for channel, value in writes]
    if not listed:
        return
    task = plain(note.task_id)
    about = {RUN: note.run, **({_WITHOUT: list(note.without)} if note.without else {})} if note.run else None
    try:
        # by its task, so that a row has next to nothing in common with the one before: there is nothing to compare
        state = {task: [plain(note.path), listed]}
        aside.save(state, changed=[task], label=label_of(note.checkpoint_id), metadata=about)
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


def read(aside: Thread[Any], checkpoint_ids: Collection[str], gone: Collection[str] = ()) -> dict[str, Writes]:
    """Return the writes on these checkpoints, but for those of runs that are gone, or that a later run lacks."""
    found = all_on(aside, checkpoint_ids)
    return {
        name: merged([row for row in rows if row.run not in gone and not any(row.run in each.without for each in rows)])
        for name, rows in found.items()
    }


def all_on(aside: Thread[Any], checkpoint_ids: Collection[str]) -> dict[str, list[Noted]]:
    """Return the rows on each of these checkpoints, oldest first."""
    labels = {name: label_of(name) for name in checkpoint_ids}
    found: dict[str | None, list[Noted]] = {}
    for row in aside.find(label=labels.values()):
        about = row.metadata
        run, without = about.get(RUN, ""), about.get(_WITHOUT, [])
        if type(run) is not str or type(without) is not list:
            raise _damaged(row)
        found.setdefault(row.label, []).append(Noted(row, run, without))
    return {name: found.get(label, []) for name, label in labels.items()}


class Noted(NamedTuple):
    """A row, the run that wrote it, and those that this one was not shown."""

    row: Checkpoint[Any]
    run: str
    without: list[Any]


def _damaged(row: Checkpoint[Any]) -> Corrupt:
    text = f"writes of LangGraph's tasks in thread {row.thread_id!r} are damaged"
    return Corrupt(text, code="corrupt.state", checkpoint_id=row.id)


def merged(rows: Sequence[Noted]) -> Writes:
    """Return the writes in these rows, oldest first."""
    found: dict[tuple[str, int], tuple[str, str, Any]] = {}
    for row, *_ in rows:
        try:
            ((task, (path, listed)),) = row.state.items()
            task, path = task + "", path + ""  # texts, or a TypeError
            for at, (channel, value) in enumerate(listed):
                index = WRITES_IDX_MAP.get(channel, at)
                if index < 0 or (task, index) not in found:
                    found[task, index] = (path, channel, value)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, Corrupt | Invalid):
                raise
            raise _damaged(row) from error
    ordered = sorted(found, key=lambda key: writes_sort_key(found[key][0], *key))
    return [(task, *found[task, index][1:]) for task, index in ordered]
