"""The backtrail threads of graphs: LangGraph's checkpoints found by id, by position, and in history.

The id of a LangGraph checkpoint is the label of its row, so an index finds it. The head of a thread is LangGraph's
latest checkpoint: the checkpoint that was put last, independent of clocks.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.adapters.langgraph.config import (
    GraphNamespace,
    checked_thread_id,
    configurable,
    label_of,
    namespace_of,
    subgraph_prefix,
)
from backtrail.adapters.langgraph.headers import CheckpointHeader, read_header
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from langchain_core.runnables import RunnableConfig

    from backtrail import Checkpoint, Store, Thread
    from backtrail.adapters.langgraph.allowed_types import AllowedTypes
    from backtrail.engine.namespaces import Above

_HANDLES: Final = 512
"""The number of handles that stay open. A handle knows what it wrote last, so the next call need not read it."""


class ThreadHandle(NamedTuple):
    """An open handle of a thread, and the classes that it was opened with."""

    thread: Thread[Any]
    types: tuple[Any, ...]
    lock: threading.Lock
    """For task writes: they never conflict, but waiting for this lock is faster than retries."""


class GraphCheckpoint(NamedTuple):
    """A checkpoint of a graph: its row and its header."""

    row: Checkpoint[Any]
    header: CheckpointHeader


class LatestCheckpoint(NamedTuple):
    """The latest checkpoint of a namespace."""

    checkpoint: GraphCheckpoint | None
    skipped: frozenset[str]
    """The graph runs that continued from the checkpoint before a rewind returned to it."""
    is_head: bool = True


class GraphThreads:
    """The threads of graphs in a store, read with the classes that a saver allows."""

    def __init__(self, store: Store, allowed: AllowedTypes) -> None:
        self.store = store
        self.allowed = allowed
        self._handles: dict[tuple[str, bool], ThreadHandle] = {}

    def with_classes(self, classes: Iterable[type]) -> GraphThreads:
        """Return the same threads with more allowed classes; the same object if all are allowed already."""
        allowed = self.allowed.with_classes(classes)
        if allowed is None:
            return self
        return GraphThreads(self.store, allowed)

    # -- handles --------------------------------------------------------------------------------------

    def thread(
        self, namespace: GraphNamespace, *, aside: bool = False, types: tuple[Any, ...] | None = None
    ) -> Thread[Any]:
        """Return the handle of a namespace's thread, which all callers share. Write with `row_writes`."""
        return self.handle(namespace.id, aside=aside, types=types).thread

    def handle(self, name: str, *, aside: bool, types: tuple[Any, ...] | None = None) -> ThreadHandle:
        """Return the shared handle of a thread. `types` are the allowed types, if the caller has them."""
        handles, types = self._handles, self.allowed.types if types is None else types
        handle = handles.get((name, aside))
        if handle is None or handle.types is not types:
            lock = threading.Lock() if handle is None else handle.lock
            handle = ThreadHandle(self.store.thread(name, types=types, aside=aside), types, lock)
            handles[name, aside] = handle
            if len(handles) > _HANDLES:
                with suppress(RuntimeError, StopIteration):  # another Python thread may change the dict meanwhile
                    handles.pop(next(iter(handles)), None)
        return handle

    # -- one checkpoint ---------------------------------------------------------------------------------

    def latest(self, namespace: GraphNamespace, outer: Above | None = None) -> LatestCheckpoint:
        """Return the latest checkpoint of a namespace.

        In a subgraph, checkpoints after a position to which the outer graph was rewound do not count. `outer` is the
        outer checkpoint on which a run of the subgraph began.
        """
        thread = self.thread(namespace)
        if namespace.ns:
            root = GraphNamespace(namespace.thread_id, "").id
            row, skipped, is_head = thread._latest_within(root, outer)  # noqa: SLF001 - one read
        else:
            row, skipped = thread._latest_after()  # noqa: SLF001 - one read
            is_head = True
        return LatestCheckpoint(_graph_checkpoint(namespace, row), skipped, is_head)

    def head(self, namespace: GraphNamespace) -> GraphCheckpoint | None:
        """Return the head of a namespace's thread, ignoring rewinds of the outer graph."""
        return _graph_checkpoint(namespace, self.thread(namespace).latest())

    def named(self, namespace: GraphNamespace, name: str) -> GraphCheckpoint | None:
        """Return a checkpoint by its LangGraph id; None if there is none."""
        label = label_of(name)
        try:
            row = self.thread(namespace).load(label)
        except (NotFound, Invalid):  # Invalid: the text is a prefix of several ids
            return None
        header = read_header(row) if row.label == label and row.thread_id == namespace.id else None
        return None if header is None else GraphCheckpoint(row, header)

    def named_with_skipped(self, namespace: GraphNamespace, name: str) -> LatestCheckpoint:
        """Return a checkpoint by its LangGraph id. If it is the head, `skipped` are the runs that a rewind left."""
        head, skipped = self.thread(namespace)._latest_after()  # noqa: SLF001 - one read
        header = None if head is None or head.label != label_of(name) else read_header(head)
        if head is None or header is None:
            return LatestCheckpoint(self.named(namespace, name), frozenset(), is_head=False)
        return LatestCheckpoint(GraphCheckpoint(head, header), skipped)

    # -- several ------------------------------------------------------------------------------------------

    def history(self, namespace: GraphNamespace, before: str | None = None) -> Iterator[GraphCheckpoint]:
        """Give the checkpoints of a namespace, newest first. Of two checkpoints with one id, give the later."""
        end = None if before is None else self.named(namespace, before)
        seen: set[str] = set()
        rows = self.thread(namespace).history(
            newest_first=True, everything=True, before=None if end is None else end.row
        )
        for row in rows:
            header = read_header(row)
            # if the checkpoint `before` is not in this namespace, compare ids: their order is the order of time
            if header is None or header.id in seen or (before is not None and end is None and header.id >= before):
                continue
            seen.add(header.id)
            yield GraphCheckpoint(row, header)

    def namespaces(self, config: RunnableConfig | None) -> list[GraphNamespace]:
        """Return the namespaces that a config names: one, all of a thread, or all in the store."""
        if config is None:
            namespaces = []
            for info in self.store.threads():
                with suppress(Corrupt):  # a damaged thread does not hide the others
                    namespaces.append(self._namespace(info.id))
            return [namespace for namespace in namespaces if namespace is not None]
        fields = configurable(config)
        if fields.get("checkpoint_ns") is not None:
            return [namespace_of(config)]
        return self.namespaces_of(checked_thread_id(fields.get("thread_id")))

    def namespaces_of(self, thread_id: str) -> list[GraphNamespace]:
        """Return all namespaces of a graph's thread, the root first."""
        inner = (self._namespace(info.id) for info in self.store.threads(prefix=subgraph_prefix(thread_id)))
        return [GraphNamespace(thread_id, ""), *(namespace for namespace in inner if namespace is not None)]

    def _namespace(self, name: str) -> GraphNamespace | None:
        """Return the namespace of a thread; None if LangGraph did not write the thread."""
        head = self.store.thread(name, types=self.allowed.types).latest()
        header = None if head is None else read_header(head)
        return None if header is None else header.namespace


def _graph_checkpoint(namespace: GraphNamespace, row: Checkpoint[Any] | None) -> GraphCheckpoint | None:
    if row is None:
        return None
    header = read_header(row)
    if header is None:
        text = (
            f"LangGraph did not save the head of thread {namespace.id!r}: rewind the thread to one of its checkpoints"
        )
        raise Conflict(text, code="conflict.stale", actual=row.id)
    return GraphCheckpoint(row, header)
