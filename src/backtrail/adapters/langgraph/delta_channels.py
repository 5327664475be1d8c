"""Delta channels: LangGraph stores their value now and then, and computes it from task writes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backtrail.adapters.langgraph.headers import DELTA_COUNTERS, read_header
from backtrail.adapters.langgraph.task_writes import merged, write_rows
from backtrail.errors import NotFound
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from langgraph.checkpoint.base import DeltaChannelHistory

    from backtrail import Checkpoint
    from backtrail.adapters.langgraph.config import GraphNamespace
    from backtrail.adapters.langgraph.graph_threads import GraphCheckpoint, GraphThreads
    from backtrail.adapters.langgraph.headers import CheckpointHeader


class Ancestor(NamedTuple):
    """An ancestor of a checkpoint, with the graph runs that branch off from it (`other_runs`)."""

    row: Checkpoint[Any]
    header: CheckpointHeader
    namespace: GraphNamespace
    other_runs: frozenset[str]


class _Step(NamedTuple):
    """An ancestor, and the channels that are computed from the writes on it."""

    id: str
    namespace: GraphNamespace
    other_runs: frozenset[str]
    wanted: frozenset[str]


def delta_history(
    threads: GraphThreads, checkpoint: GraphCheckpoint | None, channels: Sequence[str]
) -> dict[str, DeltaChannelHistory]:
    """Return, for each channel, the last value that was stored before a checkpoint, and the writes since then."""
    seeds: dict[str, Any] = {}
    path: list[_Step] = []
    """Newest first. Rows and headers are dropped at once: many of them would keep the garbage collector busy."""
    wanted = frozenset(channels)
    for row, header, namespace, other_runs in _ancestors(threads, checkpoint.header) if checkpoint and wanted else ():
        path.append(_Step(header.id, namespace, other_runs, wanted))
        seeds.update(_stored_values(row, header, wanted))
        wanted -= seeds.keys()
        if not wanted:
            break
    ids: dict[GraphNamespace, list[str]] = {}
    for step in path:
        ids.setdefault(step.namespace, []).append(step.id)
    rows = {namespace: write_rows(threads.thread(namespace, aside=True), some) for namespace, some in ids.items()}
    writes: dict[str, list[Any]] = {channel: [] for channel in channels}
    for step in reversed(path):
        its = [each for each in rows[step.namespace][step.id] if each.run not in step.other_runs]
        for write in merged(its):
            if write[1] in step.wanted:
                writes[write[1]].append(write)
    return {
        channel: {"writes": writes[channel], **({"seed": seeds[channel]} if channel in seeds else {})}  # type: ignore[typeddict-item]
        for channel in channels
    }


def required_ancestors(threads: GraphThreads, checkpoint: GraphCheckpoint) -> list[Checkpoint[Any]]:
    """Return the ancestors that LangGraph needs to compute the delta channels of a checkpoint, newest first."""
    wanted = set(checkpoint.header.metadata.get(DELTA_COUNTERS) or ())
    wanted -= _stored_values(*checkpoint, wanted).keys()
    required: list[Checkpoint[Any]] = []
    for each in _ancestors(threads, checkpoint.header) if wanted else ():
        required.append(each.row)
        wanted -= _stored_values(each.row, each.header, wanted).keys()
        if not wanted:
            break
    return required


def _stored_values(row: Checkpoint[Any], header: CheckpointHeader, channels: Collection[str]) -> dict[str, Any]:
    """Return the values that a checkpoint stores for some channels.

    Does not read the state for channels that the header lists as absent.
    """
    values = {channel: row.get((channel,), MISSING) for channel in channels if channel not in header.absent}
    return {channel: value for channel, value in values.items() if value is not MISSING}


def _ancestors(threads: GraphThreads, header: CheckpointHeader) -> Iterator[Ancestor]:
    """Give the ancestors of a checkpoint, its parent first. A parent comes before its child in the log.

    The ancestors of a forked thread's first checkpoint are in the thread that it was forked from.
    """
    child, namespace = header, header.namespace
    while True:
        runs: dict[str | None, set[str]] = {}
        """The graph runs that continued from each checkpoint. Their rows come after it in the log."""
        for row, its in threads.history(namespace):
            runs.setdefault(its.parent, set()).add(its.run)
            if its.id == child.parent:
                yield Ancestor(row, its, namespace, frozenset(runs.get(its.id, ())) - {child.run})
                child = its
        origin = None if child.parent is None else _origin(threads, namespace)
        if origin is None or origin.id != child.id:
            return
        child, namespace = origin, origin.namespace


def _origin(threads: GraphThreads, namespace: GraphNamespace) -> CheckpointHeader | None:
    """Return the header of the checkpoint that a thread was forked from; None if the thread is not a fork."""
    info = threads.store.info(namespace.id)
    if info is None or info.forked_from is None:
        return None
    row = threads.store.checkpoint(info.forked_from)
    if row is None:
        raise NotFound(
            f"thread {namespace.id!r} was forked from a checkpoint that was deleted, and its delta channels need it",
            code="not_found.checkpoint",
        )
    return read_header(row)
