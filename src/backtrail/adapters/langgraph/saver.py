"""`BacktrailSaver`: LangGraph's checkpointer interface, synchronous and asynchronous.

- A checkpoint is put on its parent. If the parent is not the head, the config decides: a config that named the parent
  by its id makes a fork; one that asked for the latest checkpoint raises `Conflict`: another worker was faster.
- `put` looks only at the channels that LangGraph reports as new, and stores only what changed in them.
"""

from __future__ import annotations

import heapq
import random
import sys
import weakref
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from backtrail.adapters.adapter_store import AdapterStore
from backtrail.adapters.langgraph import thread_upkeep
from backtrail.adapters.langgraph.allowed_types import AllowedTypes, classes_of_graph, install_graph_hook
from backtrail.adapters.langgraph.channel_values import LazyValues, snapshot
from backtrail.adapters.langgraph.config import (
    ReadId,
    checkpoint_id_of,
    is_first,
    is_fork,
    label_of,
    outer_position_of,
    position_of,
)
from backtrail.adapters.langgraph.delta_channels import delta_history
from backtrail.adapters.langgraph.graph_threads import GraphThreads
from backtrail.adapters.langgraph.headers import KEY, channel_values, encode_header, read_header
from backtrail.adapters.langgraph.task_writes import GraphTask, save_writes, writes_on
from backtrail.adapters.row_writes import save_checkpoint
from backtrail.engine.schema.annotations import reachable
from backtrail.errors import Conflict, Invalid
from backtrail.models import MISSING, NEW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, DeltaChannelHistory

    from backtrail import Store
    from backtrail.adapters.adapter_store import StoreSource
    from backtrail.adapters.langgraph.config import GraphNamespace
    from backtrail.adapters.langgraph.graph_threads import GraphCheckpoint
    from backtrail.adapters.langgraph.headers import CheckpointHeader
    from backtrail.adapters.langgraph.task_writes import TaskWrites

T = TypeVar("T")
_PAGE: Final = 16
"""Checkpoints whose task writes a listing reads at once."""
_ASYNC_PAGE: Final = 8
"""Checkpoints that an asynchronous listing loads at once."""
_WRITES_TIMEOUT: Final = 0.5
"""Seconds that a task's writes wait for those of another task."""


class BacktrailSaver(BaseCheckpointSaver[Any]):
    """Keeps the checkpoints of graphs in a backtrail store; docs/langgraph.md is the guide.

    `store` is a synchronous or asynchronous store, or a URL: the saver opens and closes the store of a URL. `types` are
    your own classes that channels may hold. Classes that their annotations name are included.
    """

    def __init__(self, store: StoreSource, *, types: Iterable[Any] = ()) -> None:
        super().__init__()
        install_graph_hook()
        self._adapter_store = AdapterStore(store)
        self._threads = GraphThreads(self._adapter_store.sync, AllowedTypes(types))
        self._clones: weakref.WeakKeyDictionary[Any, BacktrailSaver] = weakref.WeakKeyDictionary()

    @property
    def store(self) -> Store:
        """The store of the checkpoints."""
        return self._adapter_store.sync

    # -- saving ---------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint on top of its parent; `Conflict` if another worker saved there first."""
        values = checkpoint["channel_values"]
        return self._learning(values, self._put, config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task on a checkpoint."""
        _, namespace, name, run, skipped = position_of(config)
        if name is None:
            raise Invalid("the config names no checkpoint: pass checkpoint_id with the writes", code="invalid.argument")
        pairs = list(writes)
        self._learning(pairs, self._put_writes, namespace, GraphTask(name, task_id, task_path, run, skipped), pairs)

    def _learning(self, value: Any, save: Callable[..., T], *args: Any) -> T:
        """Save a value with the allowed types. If the store refuses a class in it, allow that class and save again."""
        allowed = self._threads.allowed
        types = allowed.types
        try:
            return save(types, *args)
        except Invalid as error:
            if error.code == "invalid.value":
                allowed.learn(value)
            if allowed.types is types:  # no class was added, so a second save would fail, too
                raise
        return save(allowed.types, *args)

    def _put(
        self,
        types: tuple[Any, ...],
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        threads, position = self._threads, position_of(config)
        fields, namespace, parent, _, _ = position
        is_update = namespace.ns and parent is not None and metadata.get("source") in ("update", "fork")
        updated = threads.named(namespace, parent) if is_update and parent is not None else None
        name = checkpoint["id"]
        label, outer = label_of(name), None if updated is None else updated.header.outer
        row_metadata, large = encode_header(position, config, checkpoint, metadata, label=label, outer=outer)
        row: dict[str, Any] = {"label": label, "metadata": row_metadata}
        more = {} if large is None else {KEY: large}
        forks = parent is not None and is_fork(fields, metadata)
        base = threads.named(namespace, parent) if parent is not None and forks else None
        if parent is None or (forks and base is None):
            first = parent is None and is_first(fields, metadata)
            self._begin(namespace, {**checkpoint["channel_values"], **more}, row, first=first)
            return namespace.config(str(name))
        versions = None if base is None else base.header.fields.get("channel_versions")
        state, changed = _changed_channels(checkpoint, new_versions, versions)
        on: dict[str, Any] = {"expect": label_of(parent)} if base is None else {"onto": base.row}
        thread = threads.thread(namespace, types=types)
        save_checkpoint(thread, {**state, **more}, changed=[*changed, KEY], **on, **row)
        return namespace.config(str(name))

    def _begin(self, namespace: GraphNamespace, state: dict[str, Any], row: dict[str, Any], *, first: bool) -> None:
        """Save a checkpoint that has no parent, or whose parent was deleted; `first`: only into an empty thread."""
        thread = self._threads.thread(namespace)
        head = None if first else thread.latest()
        if head is not None and read_header(head) is None:
            text = f"thread {namespace.id!r} exists already and is not LangGraph's: use another thread_id"
            raise Conflict(text, code="conflict.exists", actual=head.id)
        save_checkpoint(thread, state, expect=NEW if first else None, **row)

    def _put_writes(
        self, types: tuple[Any, ...], namespace: GraphNamespace, task: GraphTask, writes: Sequence[tuple[str, Any]]
    ) -> None:
        aside, _, lock = self._threads.handle(namespace.id, aside=True, types=types)
        is_locked = lock.acquire(timeout=_WRITES_TIMEOUT)
        try:
            save_writes(aside, task, writes)
        finally:
            if is_locked:
                lock.release()

    # -- reading --------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names by its id, else the latest of its thread; None if there is none."""
        threads = self._threads
        fields, namespace, name, _, asked_without = position_of(config)
        if name is None:
            outer = outer_position_of(fields) if namespace.ns else None
            checkpoint, skipped, is_latest = threads.latest(namespace, outer)
        else:
            checkpoint, skipped, _ = threads.named_with_skipped(namespace, name)
            skipped, is_latest = skipped.union(asked_without), False
        if checkpoint is None:
            return None
        row, header = checkpoint
        writes = writes_on(threads.thread(namespace, aside=True), [header.id], skipped)[header.id]
        return _tuple(header, channel_values(row), writes, ReadId(header.id, is_latest=is_latest, skipped=skipped))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Give checkpoints, newest first, including those that a rewind left. Channel values load on first use."""
        return self._list(config, filter, before, limit, lambda row: LazyValues(partial(channel_values, row)))

    def _list(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None,
        limit: int | None,
        values: Callable[[Any], Any],
    ) -> Iterator[CheckpointTuple]:
        name = None if config is None else checkpoint_id_of(config)
        if limit is not None and limit <= 0:
            return
        listed = self._checkpoints(config, None if before is None else checkpoint_id_of(before), name)
        wanted = (filter or {}).items()
        every = (each for each in listed if all(each.header.metadata.get(k, MISSING) == v for k, v in wanted))
        matches = islice(every, limit)
        while page := [*islice(matches, _PAGE)]:
            writes = self._writes(page)
            for row, header in page:
                its = writes[header.namespace][header.id]
                yield _tuple(header, values(row), its, ReadId(header.id, is_latest=False))

    def _checkpoints(
        self, config: RunnableConfig | None, before: str | None, name: str | None
    ) -> Iterator[GraphCheckpoint]:
        namespaces = self._threads.namespaces(config)
        if name is not None:
            named = (self._threads.named(namespace, name) for namespace in namespaces)
            return (each for each in named if each is not None and (before is None or each.header.id < before))
        histories = [self._threads.history(namespace, before) for namespace in namespaces]
        if len(histories) == 1:
            return histories[0]
        return heapq.merge(*histories, key=lambda each: each.row.created_at, reverse=True)

    def _writes(self, page: Sequence[GraphCheckpoint]) -> dict[GraphNamespace, dict[str, TaskWrites]]:
        """Return the task writes on some checkpoints, by namespace and id."""
        ids: dict[GraphNamespace, Any] = {}
        for _, header in page:
            ids.setdefault(header.namespace, []).append(header.id)
        return {each: writes_on(self._threads.thread(each, aside=True), some) for each, some in ids.items()}

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return, for each delta channel, its last stored value and the writes since, for LangGraph to compute it."""
        _, namespace, name, _, _ = position_of(config)
        checkpoint = self._threads.head(namespace) if name is None else self._threads.named(namespace, name)
        return delta_history(self._threads, checkpoint, channels)

    # -- upkeep ---------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread and all its namespaces."""
        thread_upkeep.delete_thread(self._threads, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata have one of `run_ids` as `run_id`."""
        thread_upkeep.delete_for_runs(self._threads, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, all its namespaces and its whole history to a new thread."""
        thread_upkeep.copy_thread(self._threads, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads except the latest ("keep_latest"), or all of them ("delete")."""
        thread_upkeep.prune(self._threads, thread_ids, strategy)

    # -- asynchronous ---------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Await `get_tuple`."""
        return await self._adapter_store.read(partial(self.get_tuple, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Await `list`. The channel values are loaded."""
        listed = self._list(config, filter, before, limit, channel_values)
        while page := await self._adapter_store.read(lambda: [*islice(listed, _ASYNC_PAGE)]):
            for each in page:
                yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Await `put`. The saver copies the new channel values before the first await."""
        values = checkpoint["channel_values"]
        new = {channel: snapshot(values[channel]) for channel in new_versions if channel in values}
        copied: Any = {**checkpoint, "channel_values": {**values, **new}}
        return await self._adapter_store.write(partial(self.put, config, copied, metadata, new_versions), new)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Await `put_writes`. The saver copies the writes before the first await."""
        copied = snapshot([*writes])
        await self._adapter_store.write(partial(self.put_writes, config, copied, task_id, task_path), copied)

    async def adelete_thread(self, thread_id: str) -> None:
        """Await `delete_thread`."""
        await self._adapter_store.read(partial(self.delete_thread, thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Await `delete_for_runs`."""
        await self._adapter_store.read(partial(self.delete_for_runs, run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Await `copy_thread`."""
        await self._adapter_store.read(partial(self.copy_thread, source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Await `prune`."""
        await self._adapter_store.read(partial(self.prune, thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Await `get_delta_channel_history`."""
        return await self._adapter_store.read(partial(self.get_delta_channel_history, config=config, channels=channels))

    # -- versions and classes -------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002 - LangGraph's parameter
        """Return the next version of a channel: the next number, or the next string in the form of other savers."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311 - LangGraph's own form
        return 1 if current is None else current + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BacktrailSaver:
        """Return a saver on the same store that also allows classes, each a (module, name) of a loaded module."""
        classes = (_loaded_class(*name[:2]) for name in extra_allowlist if len(name) > 1)
        return self._with_classes(cls for cls in classes if cls is not None and reachable(cls))

    def _for_graph(self, graph: Any) -> BacktrailSaver:
        """Return a saver on the same store that also allows the classes that a graph names."""
        clone = self._clones.get(graph)
        if clone is None:
            clone = self._clones[graph] = self._with_classes(classes_of_graph(graph))
        return clone

    def _with_classes(self, classes: Iterable[type]) -> BacktrailSaver:
        threads = self._threads.with_classes(classes)
        if threads is self._threads:
            return self
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone._threads, clone._clones = threads, weakref.WeakKeyDictionary()
        return clone

    # -- closing --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store if the saver opened it. A second call does nothing."""
        self._adapter_store.close()

    async def aclose(self) -> None:
        """Wait for calls in progress, then close the store if the saver opened it. A second call does nothing."""
        await self._adapter_store.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _loaded_class(module: str, name: str) -> type | None:
    """Return a class of an already imported module; None if there is none. Imports nothing."""
    value = getattr(sys.modules.get(module), name, None)
    return value if isinstance(value, type) else None


def _changed_channels(
    checkpoint: Mapping[str, Any], new: Mapping[str, Any], parent_versions: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the state of a checkpoint relative to its parent's, and the keys whose values may differ.

    A channel with the parent's version keeps the parent's value, or stays absent. A channel with another version gets
    the given value, or none. LangGraph lists the changed channels in `new`, relative to the checkpoint that it loaded.
    If that is not the parent, `parent_versions` are the versions of the parent.
    """
    values, versions = checkpoint["channel_values"], checkpoint.get("channel_versions") or {}
    same = {
        each
        for each in versions
        if each not in new and (parent_versions is None or parent_versions.get(each) == versions[each])
    }
    if not new:  # the caller may not count versions: compare all given values
        same.difference_update(values)
    changed = [each for each in values if each not in same]
    return {each: values[each] for each in changed} | dict.fromkeys(same, MISSING), changed


def _tuple(header: CheckpointHeader, values: Any, writes: TaskWrites, name: ReadId) -> CheckpointTuple:
    parent = None if header.parent is None else ReadId(header.parent, is_latest=False, run=header.run)
    return CheckpointTuple(
        config=header.namespace.config(name),
        checkpoint={**header.fields, "id": name, "channel_values": values},  # type: ignore[typeddict-item]
        metadata=header.metadata,  # type: ignore[arg-type]
        parent_config=None if parent is None else header.namespace.config(parent),
        pending_writes=writes,
    )
