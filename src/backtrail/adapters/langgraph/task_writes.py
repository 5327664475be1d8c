"""Task writes (LangGraph's pending writes): what tasks wrote on a checkpoint, before the next checkpoint exists.

Writes arrive at any time, from any number of workers, even before their checkpoint, and must not delay a save. So each
namespace has a second thread, aside of its own. One call of `put_writes` is one row there; the row's label is the
checkpoint's id, and no row ever changes or needs another row. Readers decide which writes count: the first of several
writes with the same task and index, and the last of those to LangGraph's special channels.

A row names the run that wrote it. A thread that was rewound to a checkpoint goes on without the runs that had continued
from there. A read of the latest checkpoint leaves their writes out, and the rows of the run that begins with this read
name the runs that it skipped: see `backtrail.engine.asides`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from backtrail.adapters.langgraph.config import label_of
from backtrail.adapters.plain_values import packed_plain, plain
from backtrail.adapters.row_writes import save_alone
from backtrail.engine.asides import RUN
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from backtrail import Checkpoint, Thread

_SKIPPED: Final = "without"
TaskWrites: TypeAlias = list[tuple[str, str, Any]]
"""(task, channel, value), in the order in which LangGraph applies them."""


class GraphTask(NamedTuple):
    """The task of a graph that made some writes, and the checkpoint that the task ran on."""

    checkpoint_id: str
    task_id: str
    path: str
    run: str = ""
    """The graph run of the task; "": the run that saved the checkpoint."""
    skipped: tuple[str, ...] = ()
    """The graph runs whose writes this run left out."""


class WriteRow(NamedTuple):
    """The row of one call of `put_writes`, the graph run that made it, and the runs that this run skipped."""

    row: Checkpoint[Any]
    run: str
    skipped: list[Any]


def save_writes(aside: Thread[Any], task: GraphTask, writes: Sequence[tuple[str, Any]]) -> None:
    """Save the writes of a task as one row of the second thread."""
    pairs = [[channel, value] for channel, value in writes]
    if not pairs:
        return
    metadata = {RUN: task.run, **({_SKIPPED: list(task.skipped)} if task.skipped else {})} if task.run else None
    path, channels = task.path if type(task.path) is str else plain(task.path), [channel for channel, _ in pairs]
    values = [value for _, value in pairs] if set(map(type, [path, *channels])) == {str} else None
    try:
        state = {plain(task.task_id): [path, pairs]}
        packed = packed_plain(metadata) if metadata else None
        save_alone(aside, state, label_of(task.checkpoint_id), packed, values=values)
    except Invalid as error:
        raise _with_channel(error, pairs) from error


def _with_channel(error: Invalid, pairs: list[list[Any]]) -> Invalid:
    """Return the error with a path that begins with the channel's name instead of the position in the row."""
    position = re.match(r"state.*?\[1\]\[(\d+)\]\[1\]", error.path or "", re.DOTALL)
    if position is None or error.path is None or int(position[1]) >= len(pairs):
        return error
    path = f"writes.{pairs[int(position[1])][0]}" + error.path[position.end() :]
    return Invalid(error.message.replace(error.path, path), code=error.code, path=path)


def writes_on(
    aside: Thread[Any], checkpoint_ids: Collection[str], skipped: Collection[str] = ()
) -> dict[str, TaskWrites]:
    """Return the task writes on each checkpoint, by its id.

    Leave out the writes of `skipped` runs, and of runs that another run on the same checkpoint skipped.
    """
    return {
        name: merged(
            [each for each in rows if each.run not in skipped and not any(each.run in other.skipped for other in rows)]
        )
        for name, rows in write_rows(aside, checkpoint_ids).items()
    }


def write_rows(aside: Thread[Any], checkpoint_ids: Collection[str]) -> dict[str, list[WriteRow]]:
    """Return the rows of task writes on each checkpoint, by its id, oldest first."""
    labels = {name: label_of(name) for name in checkpoint_ids}
    by_label: dict[str | None, list[WriteRow]] = {}
    for row in aside.find(label=labels.values()):
        metadata = row.metadata
        run, skipped = metadata.get(RUN, ""), metadata.get(_SKIPPED, [])
        if type(run) is not str or type(skipped) is not list:
            raise _damaged(row)
        by_label.setdefault(row.label, []).append(WriteRow(row, run, skipped))
    return {name: by_label.get(label, []) for name, label in labels.items()}


def merged(rows: Sequence[WriteRow]) -> TaskWrites:
    """Return the writes that count, from rows that are oldest first.

    Of several writes with the same task and index, the first counts; on LangGraph's special channels, the last.
    """
    writes: dict[tuple[str, int], tuple[str, str, Any]] = {}
    for row, *_ in rows:
        try:
            ((task, (path, pairs)),) = row.state.items()
            task, path = task + "", path + ""  # raise TypeError unless both are strings
            for at, (channel, value) in enumerate(pairs):
                index = WRITES_IDX_MAP.get(channel, at)
                if index < 0 or (task, index) not in writes:
                    writes[task, index] = (path, channel, value)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, Corrupt | Invalid):
                raise
            raise _damaged(row) from error
    ordered = sorted(writes, key=lambda key: writes_sort_key(writes[key][0], *key))
    return [(task, *writes[task, index][1:]) for task, index in ordered]


def _damaged(row: Checkpoint[Any]) -> Corrupt:
    text = f"task writes of thread {row.thread_id!r} are damaged"
    return Corrupt(text, code="corrupt.state", checkpoint_id=row.id)
