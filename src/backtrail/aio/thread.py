# Made from src/backtrail/thread.py by tools/generate_aio.py: change it there, then `make aio`.
"""Threads of the async mirror: handles by which tasks save states and travel in time.

A handle may be shared by tasks: what each of them last read or wrote through it is remembered for each apart.
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
    from backtrail.aio.executor import Crew
    from backtrail.engine.tree.editor import Editor
    from backtrail.maintenance.retention import Policy
    from backtrail.models import Diff, PruneReport, Sentinel
    from backtrail.thread import Ref

S = TypeVar("S")


class Thread(Generic[S]):
    """An append-only log of checkpoints; docs/threads.md is the guide, docs/async.md says what differs."""

    def __init__(self, crew: Crew, thread: sync.Thread[S]) -> None:
        self.id = thread.id
        self._crew = crew
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

        It goes on top of what this handle last read or wrote in the calling task, else it is a `Conflict`; a
        first write goes on top of whatever is there. `expect` says so instead: a checkpoint, its id or label, or `NEW`.
        `changed` names the keys of the state, a dict, that may have other values than before: the others are not looked
        at. `onto` makes another checkpoint the head first, in the same write: what was the head is then out of view.
        """
        found = await self._crew.write(
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
        return Checkpoint(self._crew, found)

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
        found = await self._crew.write(
            self._sync.append, path, *items, label=label, tags=tags, metadata=metadata, kind=kind, expect=plain(expect)
        )
        return Checkpoint(self._crew, found)

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
        """Put a value at a path: a key of a dict, there or new, or an index of a list."""
        found = await self._crew.write(
            self._sync.set, path, value, label=label, tags=tags, metadata=metadata, kind=kind, expect=plain(expect)
        )
        return Checkpoint(self._crew, found)

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
        """Take a key out of a dict, or an item out of a list."""
        found = await self._crew.write(
            self._sync.delete_at, path, label=label, tags=tags, metadata=metadata, kind=kind, expect=plain(expect)
        )
        return Checkpoint(self._crew, found)

    def step(
        self,
        label: str | None = None,
        *,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Step[S]:
        """Give the state to be changed in place, and save what changed when the block ends.

        An exception drops all of it. The block gets plain data of its own: changing it after the block has no effect.
        """
        make = partial(self._sync.step, label, tags=tags, metadata=metadata, kind=kind)
        return Step(self._crew, make)

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

        Never conflicts: `fn` is called again when somebody else saved meanwhile, so it should do nothing but edit. If
        it changes nothing, nothing is written, and the head is returned.
        """
        found = await self._crew.write(self._sync.edit, fn, label=label, tags=tags, metadata=metadata, kind=kind)
        return Checkpoint(self._crew, found)

    @called
    async def update(self, fn: Callable[[Any], S | Awaitable[S | None] | None], *, retries: int = 10) -> Checkpoint[S]:
        """Load the state (None if there is none), call `fn` with it, and save what it returns, else what it changed.

        `fn` runs in the event loop, and may be a coroutine function.
        Begins again when somebody else saved meanwhile, up to `retries` times.
        """
        found = await updated(self._crew, self._sync, fn, retries)
        return Checkpoint(self._crew, found)

    @called
    async def latest(self) -> Checkpoint[S] | None:
        """Return the head, or None if the thread does not exist."""
        found = await self._crew.apart(self._sync.latest)
        return None if found is None else Checkpoint(self._crew, found)

    @called
    async def load(self, ref: Ref = "@") -> Checkpoint[S]:
        """Return the checkpoint that a ref means, in this thread or in what it was forked from, or `NotFound`."""
        found = await self._crew.apart(self._sync.load, plain(ref))
        return Checkpoint(self._crew, found)

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
        everything: bool = False,
        ancestors: bool = False,
    ) -> AsyncGenerator[Checkpoint[S], None]:
        """Give the checkpoints from the root to the head, without loading their states.

        `before` leaves out a checkpoint and all that follow it; the others keep those that match. `everything` gives
        those that are out of view, too, all in the order in which they were saved. `ancestors` goes on into what the
        thread was forked from, and that from, as long as it is there: the first checkpoint then has a `parent_id` only
        if something is gone.
        """
        pages = self._crew.pages(
            self._sync.history,
            newest_first=newest_first,
            limit=limit,
            before=plain(before),
            label=label,
            tag=tag,
            kind=kind,
            metadata=metadata,
            everything=everything,
            ancestors=ancestors,
        )
        async for found in pages:
            yield Checkpoint(self._crew, found)

    @called
    async def find(self, *, label: str | Collection[str] | None = None, tag: str | None = None) -> list[Checkpoint[S]]:
        """Return the checkpoints in view with this label, or one of these, and this tag, oldest first."""
        found = await self._crew.apart(self._sync.find, label=label, tag=tag)
        return [Checkpoint(self._crew, each) for each in found]

    @called
    async def current_step(self) -> int:
        """Return the head's step; 0 if the thread does not exist."""
        return await self._crew.apart(lambda: self._sync.current_step)

    @called
    async def count(self) -> int:
        """Return how many checkpoints `history` shows; 0 if the thread does not exist."""
        return await self._crew.apart(self._sync.__len__)

    @called
    async def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return what changed from one checkpoint to another."""
        return await self._crew.apart(self._sync.diff, plain(a), plain(b))

    def watch(self, *, after: Ref | None = None, timeout: dt.timedelta | float | None = None) -> Watch[Checkpoint[S]]:
        """Give the checkpoints that become the head from now on, as they come, whoever makes them.

        `after` begins behind a checkpoint instead. Ends when `timeout` passes without news; None: never. Reading them
        says nothing about what the next save is to stand on.
        """
        watcher = self._sync._watcher(plain(after), timeout)  # noqa: SLF001 - the two are one
        return Watch(self._crew, watcher, Checkpoint)

    @called
    async def fork(self, new_id: str, at: Ref = "@") -> Thread[S]:
        """Begin a new thread at a checkpoint of this one; `Conflict` if there is a thread of that id."""
        found = await self._crew.write(self._sync.fork, new_id, plain(at))
        return Thread(self._crew, found)

    @called
    async def rewind(self, ref: Ref) -> Checkpoint[S]:
        """Make an older checkpoint the head again. What came after is out of view, not gone."""
        found = await self._crew.write(self._sync.rewind, plain(ref))
        return Checkpoint(self._crew, found)

    @called
    async def undo(self) -> Checkpoint[S]:
        """Take back the last save, rewind, restore or redo."""
        found = await self._crew.write(self._sync.undo)
        return Checkpoint(self._crew, found)

    @called
    async def redo(self) -> Checkpoint[S]:
        """Take back the last undo."""
        found = await self._crew.write(self._sync.redo)
        return Checkpoint(self._crew, found)

    @called
    async def tag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Put tags on a checkpoint."""
        found = await self._crew.write(self._sync.tag, plain(ref), *tags)
        return Checkpoint(self._crew, found)

    @called
    async def untag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Take tags off a checkpoint."""
        found = await self._crew.write(self._sync.untag, plain(ref), *tags)
        return Checkpoint(self._crew, found)

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

        Without one: those behind the newest `keep_last` and older than `older_than` (each if given), but not labelled
        and tagged ones unless `keep_tagged` is False; if it is names, what has one of these tags counts as tagged. The
        head stays, and so do those that `keep` names, all that were saved after `until`, and what a checkpoint of an
        agent holds.
        What was rewound away is counted apart: the newest `keep_last` of it stay too. Nothing that stays is harmed.
        """
        return await self._crew.apart(
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
        """Delete a checkpoint and say whether there was one. If it was the head, its nearest ancestor left is now."""
        return await self._crew.write(self._sync.delete_checkpoint, plain(ref))

    @called
    async def delete(self) -> bool:
        """Delete the thread, and what stands aside of it, and say whether there was one. It starts again at step 1."""
        return await self._crew.write(self._sync.delete)
