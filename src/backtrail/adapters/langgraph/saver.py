"""`BacktrailSaver`: LangGraph's interface of checkpointers, in both colours. What it means is in `keeper`."""

from __future__ import annotations

import random
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from langgraph.checkpoint.base import BaseCheckpointSaver

from backtrail.adapters.langgraph.consent import Consent, classes_of, introduce
from backtrail.adapters.langgraph.keeper import Keeper
from backtrail.adapters.langgraph.values import settled
from backtrail.adapters.opening import Opened
from backtrail.engine.schema.annotations import reachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import TypeVar

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
    )

    from backtrail import Store
    from backtrail.adapters.opening import Source

    T = TypeVar("T")

_PAGE: Final = 8
"""So many checkpoints are loaded at once by an asynchronous listing."""


class BacktrailSaver(BaseCheckpointSaver[Any]):
    """Keeps the checkpoints of graphs in a backtrail store; docs/langgraph.md is the guide.

    It takes a store, of either colour, or the URL of one, which it opens and closes. `types` are the classes of yours
    that channels may hold, with those that their annotations name.
    """

    def __init__(self, store: Source, *, types: Iterable[Any] = ()) -> None:
        super().__init__()
        introduce()
        self._opened = Opened(store)
        self._keeper = Keeper(self._opened.sync, Consent(types))
        self._clones: weakref.WeakKeyDictionary[Any, BacktrailSaver] = weakref.WeakKeyDictionary()

    @property
    def store(self) -> Store:
        """The store that the checkpoints are in."""
        return self._opened.sync

    # -- LangGraph's interface ------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names by its id, else the latest of its thread; None if there is none."""
        return self._keeper.get_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Give checkpoints, newest first, out of view or not. The values of their channels are read when looked at."""
        return self._keeper.listed(config, filter, before, limit)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint on top of its parent; `Conflict` if somebody else did so meanwhile."""
        return self._keeper.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task has written on top of a checkpoint."""
        self._keeper.put_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread, with all its namespaces."""
        self._keeper.delete_thread(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that have one of these as `run_id` in their metadata."""
        self._keeper.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, with all its namespaces and its whole history, to a new one."""
        self._keeper.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the latest ("keep_latest"), or all of them ("delete")."""
        self._keeper.prune(thread_ids, strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are to be made from."""
        return self._keeper.delta_history(config, channels)

    # -- the same, awaited ------------------------------------------------------------------------------

    async def _apart(self, work: Callable[[], T]) -> T:
        return await self._opened.aio._crew.apart(work)  # noqa: SLF001 - its crew does what is awaited

    async def _write(self, work: Callable[[], T], *weighed: Any) -> T:
        """Do a write together with others, if what it is about is small."""
        return await self._opened.aio._crew.write(lambda *_: work(), *weighed)  # noqa: SLF001

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names by its id, else the latest of its thread; None if there is none."""
        return await self._apart(partial(self._keeper.get_tuple, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Give checkpoints, newest first, out of view or not, with the values of their channels."""
        found = self._keeper.listed(config, filter, before, limit, loaded=True)
        while page := await self._apart(partial(_some, found)):
            for each in page:
                yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint on top of its parent; `Conflict` if somebody else did so meanwhile."""
        values = checkpoint["channel_values"]
        now = {channel: settled(values[channel]) for channel in new_versions if channel in values}
        taken: Any = {**checkpoint, "channel_values": {**values, **now}}
        return await self._write(partial(self._keeper.put, config, taken, metadata, new_versions), now)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task has written on top of a checkpoint."""
        now = settled(list(writes))
        await self._write(partial(self._keeper.put_writes, config, now, task_id, task_path), now)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, with all its namespaces."""
        await self._apart(partial(self._keeper.delete_thread, thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that have one of these as `run_id` in their metadata."""
        await self._apart(partial(self._keeper.delete_for_runs, run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, with all its namespaces and its whole history, to a new one."""
        await self._apart(partial(self._keeper.copy_thread, source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the latest ("keep_latest"), or all of them ("delete")."""
        await self._apart(partial(self._keeper.prune, thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are to be made from."""
        return await self._apart(partial(self.get_delta_channel_history, config=config, channels=channels))

    # -- without I/O --------------------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002 - LangGraph's parameter
        """Return the version of a channel that follows another: numbers count up; those of other savers go on."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311 - as they were made
        return 1 if current is None else current + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BacktrailSaver:
        """Return a saver on the same store that also knows these classes: of (module, name), those that are loaded."""
        found = (_loaded(*name[:2]) for name in extra_allowlist if len(name) > 1)
        return self._knowing(cls for cls in found if cls is not None and reachable(cls))

    def _for_graph(self, graph: Any) -> BacktrailSaver:
        """Return a saver on the same store that also knows the classes that a graph names."""
        made = self._clones.get(graph)
        if made is None:
            made = self._clones[graph] = self._knowing(classes_of(graph))
        return made

    def _knowing(self, classes: Iterable[type]) -> BacktrailSaver:
        keeper = self._keeper.with_graph(classes)
        if keeper is self._keeper:
            return self
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone._keeper, clone._clones = keeper, weakref.WeakKeyDictionary()
        return clone

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store, if it was opened here; twice is allowed."""
        self._opened.close()

    async def aclose(self) -> None:
        """Close the store, if it was opened here, when all that was begun is done; twice is allowed."""
        await self._opened.aclose()

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


def _some(found: Iterator[T]) -> list[T]:
    return [each for _, each in zip(range(_PAGE), found, strict=False)]


def _loaded(module: str, name: str) -> type | None:
    """Return a class of a module that is loaded already: nothing is imported."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None
