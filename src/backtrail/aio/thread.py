# Made from src/backtrail/thread.py by tools/generate_aio.py: change it there, then `make aio`.
"""Threads of the async mirror: handles by which tasks save states and travel in time.

Tasks may share a handle. It remembers for each task what that task last read or wrote through it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backtrail.aio.blocks import Step, Watch, called, updated
from backtrail.aio.checkpoint import Checkpoint, plain

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping

    from backtrail import thread as sync
    from backtrail.aio.executor import Executor
    from backtrail.engine.tree.edits import Editor
    from backtrail.maintenance.retention import Policy
    from backtrail.models import Diff, ErasureReport, PruneReport, Sentinel
    from backtrail.thread import Ref

S = TypeVar("S")


class Thread(Generic[S]):
    """An append-only log of checkpoints; docs/threads.md is the guide, docs/async.md says what differs."""

    def __init__(self, executor: Executor, thread: sync.Thread[S]) -> None:
        self.id = thread.id
        self._executor = executor
        self._sync = thread

    def __repr__(self) -> str:
        return repr(self._sync)

    @called
    async def save(
        self,
        state: S,
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
        changed: Collection[Any] | None = None,
        onto: Ref | None = None,
    ) -> Checkpoint[S]:
        """Save a state as a new checkpoint, even if nothing changed.

        The head must be the one that this handle last read or wrote in the calling task, else `Conflict`; the
        first write goes on top of any head. `expect` names another head: a checkpoint, its id or label, or `NEW`.
        `changed` names the keys of a dict state that may differ from the head: the other keys are not compared. `onto`
        makes another checkpoint the head first, in the same write; the old head is then out of view.
        """
        found = await self._executor.write(
            self._sync.save,
            state,
            label=label,
            tags=tags,
            metadata=metadata,
            kind=kind,
            expect=plain(expect),
            changed=changed,
            onto=plain(onto),
        )
        return Checkpoint(self._executor, found)

    @called
    async def append(
        self,
        path: str | tuple[Any, ...],
        *items: Any,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Append items to the list at a path (or strings to a str). Never conflicts, unless `expect` is given."""
        found = await self._executor.write(
            self._sync.append, path, *items, label=label, tags=tags, metadata=metadata, kind=kind, expect=plain(expect)
        )
        return Checkpoint(self._executor, found)

    @called
    async def set(
        self,
        path: str | tuple[Any, ...],
        value: Any,
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Put a value at a path: a key of a dict, existing or new, or an index of a list."""
        found = await self._executor.write(
            self._sync.set, path, value, label=label, tags=tags, metadata=metadata, kind=kind, expect=plain(expect)
        )
        return Checkpoint(self._executor, found)

    @called
    async def delete_at(
        self,
        path: str | tuple[Any, ...],
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Remove a key from a dict, or an item from a list."""
        found = await self._executor.write(
            self._sync.delete_at, path, label=label, tags=tags, metadata=metadata, kind=kind, expect=plain(expect)
        )
        return Checkpoint(self._executor, found)

    def step(
        self,
        label: str | None = None,
        *,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Step[S]:
        """Give a copy of the state to change in place, and save it when the block ends.

        An exception drops the changes. Changing the copy after the block has no effect.
        """
        make = partial(self._sync.step, label, tags=tags, metadata=metadata, kind=kind)
        return Step(self._executor, make)

    @called
    async def edit(
        self,
        fn: Callable[[Editor], object],
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Checkpoint[S]:
        """Call `fn` with an `Editor` of the head, and save the changes that it names as one checkpoint.

        Never conflicts: `fn` is called again if another writer saved meanwhile, so it should only edit. If `fn` changes
        nothing, nothing is written, and the head is returned.
        """
        found = await self._executor.write(self._sync.edit, fn, label=label, tags=tags, metadata=metadata, kind=kind)
        return Checkpoint(self._executor, found)

    @called
    async def update(self, fn: Callable[[Any], S | Awaitable[S | None] | None], *, retries: int = 10) -> Checkpoint[S]:
        """Call `fn` with the state (None if there is none), and save the state that it returns.

        `fn` runs in the event loop, and may be a coroutine function.

        If `fn` returns None, the given state is saved, with the changes that `fn` made in it. If another writer saves
        first, `fn` is called again with the new state, up to `retries` times; then `Conflict` is raised.
        """
        found = await updated(self._executor, self._sync, fn, retries)
        return Checkpoint(self._executor, found)

    @called
    async def latest(self) -> Checkpoint[S] | None:
        """Return the head, or None if the thread does not exist."""
        found = await self._executor.apart(self._sync.latest)
        return None if found is None else Checkpoint(self._executor, found)

    @called
    async def load(self, ref: Ref = "@") -> Checkpoint[S]:
        """Return the checkpoint of a ref, in this thread or in the threads it was forked from, or raise `NotFound`."""
        found = await self._executor.apart(self._sync.load, plain(ref))
        return Checkpoint(self._executor, found)

    async def history(
        self,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        before: Ref | None = None,
        label: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        everything: bool = False,
        ancestors: bool = False,
    ) -> AsyncGenerator[Checkpoint[S], None]:
        """Give the checkpoints from the root to the head, without loading their states.

        `before` leaves out a checkpoint and all later ones. `label`, `tag`, `kind` and `metadata` keep the checkpoints
        that match; `since` and `until` keep those that were saved in that time, by the writers' clocks. `everything`
        includes checkpoints that are out of view, in the order in which they were saved. `ancestors` includes the
        history of the threads that this thread was forked from, as far as they exist: the oldest checkpoint then has a
        `parent_id` only if an older thread was deleted.
        """
        pages = self._executor.pages(
            self._sync.history,
            newest_first=newest_first,
            limit=limit,
            before=plain(before),
            label=label,
            tag=tag,
            kind=kind,
            metadata=metadata,
            since=since,
            until=until,
            everything=everything,
            ancestors=ancestors,
        )
        async for found in pages:
            yield Checkpoint(self._executor, found)

    @called
    async def find(self, *, label: str | Collection[str] | None = None, tag: str | None = None) -> list[Checkpoint[S]]:
        """Return the checkpoints in view with a label (or one of several labels) and a tag, oldest first."""
        found = await self._executor.apart(self._sync.find, label=label, tag=tag)
        return [Checkpoint(self._executor, each) for each in found]

    @called
    async def current_step(self) -> int:
        """Return the head's step; 0 if the thread does not exist."""
        return await self._executor.apart(lambda: self._sync.current_step)

    @called
    async def count(self) -> int:
        """Return how many checkpoints `history` shows; 0 if the thread does not exist."""
        return await self._executor.apart(self._sync.__len__)

    @called
    async def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return what changed from one checkpoint to another."""
        return await self._executor.apart(self._sync.diff, plain(a), plain(b))

    def watch(self, *, after: Ref | None = None, timeout: dt.timedelta | float | None = None) -> Watch[Checkpoint[S]]:
        """Give each new head as it is made, by any process.

        `after` starts after a checkpoint instead of now. Ends if there is no news for `timeout` seconds; None: never. A
        watched checkpoint does not change the head that the next save expects.
        """
        watcher = self._sync._watcher(plain(after), timeout)  # noqa: SLF001 - the two are one
        return Watch(self._executor, watcher, Checkpoint)

    @called
    async def fork(self, new_id: str, at: Ref = "@") -> Thread[S]:
        """Start a new thread at a checkpoint of this one; `Conflict` if the id is taken."""
        found = await self._executor.write(self._sync.fork, new_id, plain(at))
        return Thread(self._executor, found)

    @called
    async def rewind(self, ref: Ref, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[S]:
        """Make an older checkpoint the head again. Later checkpoints are out of view, not deleted.

        `expect` is the head that the caller knows, or its id: `Conflict` if another checkpoint is the head.
        """
        found = await self._executor.write(self._sync.rewind, plain(ref), expect=plain(expect))
        return Checkpoint(self._executor, found)

    @called
    async def undo(self, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[S]:
        """Undo the last save, rewind, restore or redo. `expect` is as for `rewind`."""
        found = await self._executor.write(self._sync.undo, expect=plain(expect))
        return Checkpoint(self._executor, found)

    @called
    async def redo(self, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[S]:
        """Redo the last undo. `expect` is as for `rewind`."""
        found = await self._executor.write(self._sync.redo, expect=plain(expect))
        return Checkpoint(self._executor, found)

    @called
    async def tag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Add tags to a checkpoint."""
        found = await self._executor.write(self._sync.tag, plain(ref), *tags)
        return Checkpoint(self._executor, found)

    @called
    async def untag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Remove tags from a checkpoint."""
        found = await self._executor.write(self._sync.untag, plain(ref), *tags)
        return Checkpoint(self._executor, found)

    @called
    async def prune(
        self,
        policy: Policy | None = None,
        *,
        keep_last: int | None = None,
        older_than: dt.timedelta | float | None = None,
        keep_tagged: bool | Collection[str] = True,
        keep: Collection[Ref] | Ref = (),
        until: Ref | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Hide the checkpoints that a `Policy` does not keep; the report says which, and why the others stay.

        Without a policy: hide checkpoints before the newest `keep_last` and older than `older_than` (each if given).
        Labelled and tagged checkpoints stay unless `keep_tagged` is False; if it is a list of tags, only those tags
        count. The head always stays, and so do checkpoints in `keep`, checkpoints saved after `until`, and checkpoints
        that an agent checkpoint pins. Checkpoints out of view are counted separately: their newest `keep_last` stay.
        """
        return await self._executor.apart(
            self._sync.prune,
            policy,
            keep_last=keep_last,
            older_than=older_than,
            keep_tagged=keep_tagged,
            keep=plain(keep),
            until=plain(until),
            dry_run=dry_run,
        )

    @called
    async def delete_checkpoint(self, ref: Ref) -> bool:
        """Delete a checkpoint; return whether it existed. If it was the head, its nearest ancestor becomes the head."""
        return await self._executor.write(self._sync.delete_checkpoint, plain(ref))

    async def erase(
        self,
        *,
        forks: bool = True,
        force: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> ErasureReport:
        """Erase the thread with every byte of it, also where agent checkpoints and forks have it.

        Unlike `delete`, nothing can bring it back. Its forks are erased as well, unless `forks=False`. A run with a
        worker is a `Conflict`, unless `force` is set. The id can be used again. See docs/erasure.md.
        """
        work = partial(self._sync.erase, forks=forks, force=force)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    @called
    async def delete(self) -> bool:
        """Delete the thread and return whether it existed. A new thread of this id starts at step 1."""
        return await self._executor.write(self._sync.delete)
