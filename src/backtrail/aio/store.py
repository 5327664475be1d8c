# Made from src/backtrail/store.py by tools/generate_aio.py: change it there, then `make aio`.
"""Stores of the async mirror: `open(url)`, and a `Store` that hands out handles and does the upkeep."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from backtrail import store as sync
from backtrail.aio.agents import Agents
from backtrail.aio.blocks import Opening, Transaction, Watch, called
from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.conversations import Conversations
from backtrail.aio.executor import Crew
from backtrail.aio.run import Run
from backtrail.aio.runs import Runs
from backtrail.aio.thread import Thread
from backtrail.validation import LEASE

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from backtrail.entities import Message
    from backtrail.maintenance.retention import Policy
    from backtrail.models import (
        ExportReport,
        GcReport,
        Hit,
        ImportReport,
        MigrateReport,
        PruneReport,
        Stats,
        ThreadInfo,
        VerifyReport,
    )
    from backtrail.runs.strategies import Strategy

S = TypeVar("S")


def open(  # noqa: A001 - as backtrail.open
    url: str | os.PathLike[str] | None = None,
    *,
    durability: str = "full",
    read_only: bool = False,
    max_checkpoints: int | None = None,
    ttl: dt.timedelta | float | None = None,
    auto_interval: dt.timedelta | float | None = None,
    compression: bool = True,
    schema: str | None = None,
    types: Iterable[Any] = (),
) -> Opening[sync.Store, Store]:
    """Open a store, and create it if it is not there.

    Say `async with aio.open(...) as store:`, or `await aio.open(...)`.

    `url` is a path, `sqlite:///path`, `file:///directory`, `postgresql://...` or `memory://`. `durability="relaxed"`
    may lose the newest writes in a power cut, never more. `max_checkpoints` keeps that many per thread, newest first;
    `ttl` those that are younger; labelled and tagged ones are exempt, and the head always stays. Of automatic
    checkpoints, one per `auto_interval` is kept.
    `types` are classes that stored states may come back as, with the classes that their annotations name.
    """
    make = partial(
        sync.open,
        url,
        durability=durability,
        read_only=read_only,
        max_checkpoints=max_checkpoints,
        ttl=ttl,
        auto_interval=auto_interval,
        compression=compression,
        schema=schema,
        types=types,
    )
    return Opening(make, Store, sync.Store.close)


class Store:
    """Keeps threads, as the store that it is made of does. Tasks, event loops and threads may share it."""

    def __init__(self, store: sync.Store) -> None:
        self._sync = store
        self._crew = Crew(store._engine)  # noqa: SLF001 - the two are one
        self._agents = Agents(self._crew, store.agents)
        self._conversations = Conversations(self._crew, store.conversations)
        self._runs = Runs(self._crew, store.runs)

    @overload
    def thread(
        self,
        id: str,
        type: None = None,
        *,
        agent: str | None = None,
        types: Iterable[Any] | None = None,
        aside: bool = False,
    ) -> Thread[Any]: ...
    @overload
    def thread(
        self,
        id: str,
        type: type[S],
        *,
        agent: str | None = None,
        types: Iterable[Any] | None = None,
        aside: bool = False,
    ) -> Thread[S]: ...
    def thread(
        self,
        id: str,  # noqa: A002 - the name users know
        type: Any = None,  # noqa: A002 - the name users know
        *,
        agent: str | None = None,
        types: Iterable[Any] | None = None,
        aside: bool = False,
    ) -> Thread[Any]:
        """Return a handle; nothing is read or written until it is used.

        `types` are classes that its states may hold, beside those of the store; instances of others are refused. With
        `aside` it is not the thread of this id, but one that stands beside it: it is not listed, found or counted.
        """
        made: Thread[Any] = Thread(self._crew, self._sync.thread(id, type, agent=agent, types=types, aside=aside))
        return made

    async def threads(
        self,
        *,
        agent: str | None = None,
        prefix: str | None = None,
        kind: str | None = None,
        forked_from: str | None = None,
        limit: int | None = None,
        after: ThreadInfo | str | None = None,
    ) -> AsyncGenerator[ThreadInfo, None]:
        """Give what is known of the threads, newest activity first, without loading states.

        `forked_from` is the id of a thread: those that were forked from a checkpoint of it. `after` goes on behind a
        thread: an info from an earlier listing, or an id.
        """
        pages = self._crew.pages(
            self._sync.threads, agent=agent, prefix=prefix, kind=kind, forked_from=forked_from, limit=limit, after=after
        )
        async for found in pages:
            yield found

    @called
    async def info(self, id: str, *, kind: str | None = None) -> ThreadInfo | None:  # noqa: A002 - the name users know
        """Return what is known of one thread without loading its state, or None."""
        return await self._crew.apart(self._sync.info, id, kind=kind)

    @called
    async def checkpoint(self, id: str) -> Checkpoint[Any] | None:  # noqa: A002 - the name users know
        """Return the checkpoint with this id, whatever its thread, or None."""
        found = await self._crew.apart(self._sync.checkpoint, id)
        return None if found is None else Checkpoint(self._crew, found)

    def watch(
        self,
        *,
        agent: str | None = None,
        prefix: str | None = None,
        kind: str | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> Watch[Checkpoint[Any]]:
        """Give the checkpoints that become the head of a thread from now on, as they come, whoever makes them.

        Those of one thread come in their order. See `Thread.watch`.
        """
        watcher = self._sync._watcher(agent, prefix, kind, timeout)  # noqa: SLF001 - the two are one
        return Watch(self._crew, watcher, Checkpoint)

    @property
    def agents(self) -> Agents:
        """The agents, and the points to which each can be brought back."""
        return self._agents

    @property
    def conversations(self) -> Conversations:
        """The conversations of all agents."""
        return self._conversations

    @property
    def runs(self) -> Runs:
        """The runs of all agents."""
        return self._runs

    def run(
        self,
        session_id: str,
        *,
        agent: str | None = None,
        strategy: Strategy | None = None,
        messages: Sequence[Message] = (),
        state: Any = None,
        takeover: bool = False,
        lease: dt.timedelta | float = LEASE,
        errors: Iterable[type[Exception]] | Mapping[type[Exception], Iterable[str]] = (),
        types: Iterable[Any] = (),
        conversation: str | None = None,
    ) -> Run:
        """Return a run: work that goes on where it was cut short. See docs/runs.md.

        `messages` and `state` count only when it is new. `takeover` takes it from a worker that is gone, before its
        lease ends. Exceptions of `errors` come back as what they are when a call that had failed is replayed; a dict
        says with which attributes. `types` are classes that results, arguments and the state may hold, beside those of
        the store; instances of others are refused. Each message goes to `conversation`, too, once.
        """
        made = self._sync.run(
            session_id,
            agent=agent,
            strategy=strategy,
            messages=messages,
            state=state,
            takeover=takeover,
            lease=lease,
            errors=errors,
            types=types,
            conversation=conversation,
        )
        return Run(self._crew, made)

    async def search(
        self,
        query: str,
        *,
        contains: bool = False,
        agent: str | None = None,
        thread: str | None = None,
        kind: str | None = None,
        order: str = "newest",
        limit: int = 20,
        after: Hit | str | None = None,
        progress: Callable[[str, int], None] | None = None,
    ) -> list[Hit]:
        """Return the messages that match, newest first: those in the list `messages` of the heads of all threads.

        Words must all be there, "quoted" ones in a row, and star* is the beginning of a word; case and accents do not
        count. `contains` looks for the query as it is, inside of words, too. `agent`, `thread` and `kind` narrow it
        down; `order="score"` puts the newest 1,000 that match in order of their score; `after` goes on behind a hit,
        or its cursor. What was saved before is found: it is put into the index first, which `progress` is told about.
        Not inside a transaction.
        """
        work = partial(
            self._sync.search,
            query,
            contains=contains,
            agent=agent,
            thread=thread,
            kind=kind,
            order=order,
            limit=limit,
            after=after,
        )
        return await self._crew.watched(lambda tell: work(progress=tell), progress)

    async def reindex(self, *, progress: Callable[[str, int], None] | None = None) -> None:
        """Make the index of `search` anew, from what is stored."""
        return await self._crew.watched(lambda tell: self._sync.reindex(progress=tell), progress)

    def transaction(self) -> Transaction:
        """Make the writes of a block one write: all of them, or none; until it ends, only the block sees them.

        It belongs to the calling task. If somebody else writes to one of its threads meanwhile, its end is a
        `Conflict` and nothing was written.
        """
        return Transaction(self._crew, self._sync.transaction)

    @called
    async def stats(self) -> Stats:
        """Return what the store holds, measured."""
        return await self._crew.apart(self._sync.stats)

    async def migrate(self, *, progress: Callable[[str, int], None] | None = None) -> MigrateReport:
        """Save anew what was saved by older versions of its classes, as their upcasters make it.

        States are brought up to date whenever they are read; this does it once, for the heads of all threads: agents,
        and states of the classes that the store was opened with. Each thread is a write by itself: interrupted, it goes
        on where it was when it is called again. What cannot be brought up to date is in the report.
        """
        return await self._crew.watched(lambda tell: self._sync.migrate(progress=tell), progress)

    async def verify(
        self,
        *,
        repair: bool = False,
        resume: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> VerifyReport:
        """Read and check everything; name what is damaged, what still loads, and what a repair would do.

        `repair` does that: what cannot be read is given up, heads that are lost move to what can be read, indexes are
        made anew; what is sound stays as it is. `resume` goes on where the last call was interrupted, and does not look
        again at what that had found sound.
        """
        work = partial(self._sync.verify, repair=repair, resume=resume)
        return await self._crew.watched(lambda tell: work(progress=tell), progress)

    async def gc(self, *, erase: bool = False, progress: Callable[[str, int], None] | None = None) -> GcReport:
        """Remove for good what was deleted, pruned or outlived, keep once what was kept twice, give the space back.

        Others go on writing meanwhile. `erase` also leaves no trace of what was removed in any file of the store: in
        SQLite and PostgreSQL all pages are written anew, and others wait for that.
        """
        work = partial(self._sync.gc, erase=erase)
        return await self._crew.watched(lambda tell: work(progress=tell), progress)

    async def prune(
        self,
        policy: Policy | None = None,
        *,
        keep_last: int | None = None,
        older_than: dt.timedelta | float | None = None,
        keep_tagged: bool | Iterable[str] = True,
        agent: str | None = None,
        threads: Iterable[str] | None = None,
        kind: str | None = None,
        dry_run: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> PruneReport:
        """Prune every thread by a `Policy`, or by these words; see `Thread.prune`.

        `agent` narrows it down to what belongs to one, `threads` to these ids: all that have them, or of a `kind`,
        which is thread, agent, conversation or run. Agent checkpoints stay, and with them what they hold. Each thread
        is a write by itself: interrupted, it goes on when it is called again.
        """
        work = partial(
            self._sync.prune,
            policy,
            keep_last=keep_last,
            older_than=older_than,
            keep_tagged=keep_tagged,
            agent=agent,
            threads=None if threads is None else tuple(threads),
            kind=kind,
            dry_run=dry_run,
        )
        return await self._crew.watched(lambda tell: work(progress=tell), progress)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        threads: Iterable[str] | None = None,
        kind: str | None = None,
        agent: str | None = None,
        since: str | os.PathLike[str] | None = None,
        progress: Callable[[str, int], None] | None = None,
    ) -> ExportReport:
        """Write all of the store, as it is at this moment, to one new file; others may go on writing.

        `threads` are ids of threads, conversations and runs, or of one `kind` of these; `agent` is all that belongs to
        one. `since` names an earlier export, by its path, or by its id if it lies beside the new one: then only what
        has changed is written.
        """
        work = partial(
            self._sync.export,
            path,
            threads=None if threads is None else tuple(threads),
            kind=kind,
            agent=agent,
            since=since,
        )
        return await self._crew.watched(lambda tell: work(progress=tell), progress)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Callable[[str, int], None] | None = None,
    ) -> ImportReport:
        """Add what an export holds to this store: all of it, or nothing; what is here already is not added twice.

        A thread that is here goes on, if the export goes on from where it is; one that has gone another way, or that is
        another one under the same id, is a `Conflict`. The file is read and verified before anything is written.

        `progress` does not use the store when it is told of "rows": all of it may still be taken back.
        """
        work = partial(self._sync.import_, path)
        return await self._crew.watched(lambda tell: work(progress=tell), progress)

    async def backup(self, path: str | os.PathLike[str], *, progress: Callable[[str, int], None] | None = None) -> int:
        """Make a store of its own of this one, as it is at this moment, while others write; return its size in bytes.

        It is one in files, in a new directory, if this one is; else a new file of SQLite.
        """
        work = partial(self._sync.backup, path)
        return await self._crew.watched(lambda tell: work(progress=tell), progress)

    async def close(self) -> None:
        """Wait until all that was begun is done, and release the store's resources; twice is allowed."""
        await self._crew.close(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
