"""Deleting, copying and pruning the threads of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.adapters.langgraph.config import GraphNamespace, checked_thread_id, label_of, subgraph_prefix
from backtrail.adapters.langgraph.delta_channels import required_ancestors
from backtrail.adapters.langgraph.graph_threads import GraphCheckpoint
from backtrail.adapters.langgraph.headers import KEY, read_header
from backtrail.adapters.row_writes import save_alone, save_checkpoint
from backtrail.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backtrail import Checkpoint, Thread
    from backtrail.adapters.langgraph.graph_threads import GraphThreads


def delete_thread(threads: GraphThreads, thread_id: str) -> None:
    """Delete a graph's thread and all its namespaces: the root last, so that an interrupted call can be repeated."""
    name = checked_thread_id(thread_id)
    root = GraphNamespace(name, "")
    if threads.thread(root).latest() is not None and next(threads.history(root), None) is None:
        raise Conflict(
            f"LangGraph did not write thread {root.id!r}: delete it with store.thread(...).delete()",
            code="conflict.exists",
            actual=None,
        )
    prefix = subgraph_prefix(name)
    inner = {info.id for kind in (None, "aside") for info in threads.store.threads(prefix=prefix, kind=kind)}
    for each in (*sorted(inner), root.id):
        for aside in (True, False):
            threads.handle(each, aside=aside).thread.delete()


def delete_for_runs(threads: GraphThreads, run_ids: Iterable[str]) -> None:
    """Delete the checkpoints that some runs saved. Reads the rows of all threads."""
    wanted = set(run_ids)
    for namespace in threads.namespaces(None) if wanted else ():
        thread, aside = threads.thread(namespace), threads.thread(namespace, aside=True)
        rows = [
            GraphCheckpoint(row, header)
            for row in thread.history(everything=True)
            if (header := read_header(row)) is not None
        ]
        doomed = {header.id for _, header in rows if _is_one_of(header.metadata.get("run_id"), wanted)}
        for each in rows:  # later checkpoints need some of them
            if each.header.id not in doomed and each.header.parent in doomed:
                doomed -= {row.label or "" for row in required_ancestors(threads, each)}
        for row, header in rows:
            if header.id in doomed:
                for write in aside.find(label=label_of(header.id)):
                    aside.delete_checkpoint(write)
                thread.delete_checkpoint(row)


def _is_one_of(value: Any, texts: set[str]) -> bool:
    return isinstance(value, str) and value in texts


def copy_thread(threads: GraphThreads, source_id: str, target_id: str) -> None:
    """Copy all namespaces, checkpoints, branches and writes of a graph's thread, all or nothing."""
    source_id, target_id = checked_thread_id(source_id), checked_thread_id(target_id)
    with threads.store.transaction():
        for source in threads.namespaces_of(source_id):
            _copy_namespace(threads, source, GraphNamespace(target_id, source.ns))


def _copy_namespace(threads: GraphThreads, source: GraphNamespace, target: GraphNamespace) -> None:
    thread, copy = threads.thread(source), threads.thread(target)
    if copy.latest() is not None:
        text = f"thread {target.id!r} exists already: copy to another thread id"
        raise Conflict(text, code="conflict.exists", actual=None)
    head = thread.latest()
    rows = list(thread.history(everything=True))
    for row in rows:
        _copy_row(row, copy, target)
    if head is not None and rows and rows[-1] != head:
        copy.rewind(head.label)
    aside = threads.thread(target, aside=True)
    for write in threads.thread(source, aside=True).history():
        save_alone(aside, write.state, write.label, write.metadata)


def _copy_row(row: Checkpoint[Any], copy: Thread[Any], target: GraphNamespace) -> None:
    header = read_header(row)
    if header is None or row.label is None:
        return
    metadata = row.metadata
    metadata[KEY].pop("place", None)
    if not target.is_in_id:
        metadata[KEY]["place"] = list(target)
    onto = None if header.parent is None else label_of(header.parent)
    try:
        save_checkpoint(copy, row.state, row.label, metadata, onto=onto)
    except NotFound:
        save_checkpoint(copy, row.state, row.label, metadata)


def prune(threads: GraphThreads, thread_ids: Iterable[str], strategy: str) -> None:
    """Delete threads ("delete"), or all but the latest checkpoint of each namespace ("keep_latest").

    The ancestors that the delta channels of the latest checkpoint need stay, too.
    """
    if strategy not in ("keep_latest", "delete"):
        raise Invalid(f'strategy is "keep_latest" or "delete", not {strategy!r}', code="invalid.argument")
    for thread_id in thread_ids:
        if strategy == "delete":
            delete_thread(threads, thread_id)
            continue
        for namespace in threads.namespaces_of(checked_thread_id(thread_id)):
            _keep_latest(threads, namespace)


def _keep_latest(threads: GraphThreads, namespace: GraphNamespace) -> None:
    latest = threads.latest(namespace).checkpoint
    if latest is None:
        return
    thread, aside = threads.thread(namespace), threads.thread(namespace, aside=True)
    rows = [latest.row, *required_ancestors(threads, latest)]
    labels = {row.label for row in rows}
    writes = list(aside.history())
    thread.prune(keep_last=0, keep_tagged=False, keep=rows, until=latest.row)  # a run may add more meanwhile
    if writes:
        needed = [write for write in writes if write.label in labels]
        aside.prune(keep_last=0, keep_tagged=False, keep=needed, until=writes[-1])
