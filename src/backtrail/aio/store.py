# Made from src/backtrail/store.py by tools/generate_aio.py: change it there, then `make aio`.
"""Stores of the async mirror: `open(url)`, and `Store`, which makes handles and maintains the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from backtrail import store as sync
from backtrail.aio.agents import Agents
from backtrail.aio.blocks import Opening, Transaction, Watch, called
from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.conversations import Conversations
from backtrail.aio.executor import Executor
from backtrail.aio.keys import Keys
from backtrail.aio.run import Run
from backtrail.aio.runs import Runs
from backtrail.aio.thread import Thread
from backtrail.validation import LEASE

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from opentelemetry.trace import TracerProvider

    from backtrail.conversations.models import Message
    from backtrail.engine.redact import Redact
    from backtrail.maintenance.retention import Policy
    from backtrail.models import (
        ErasureReport,
        ExportReport,
        GcReport,
        Hit,
        Hits,
        ImportReport,
        MigrateReport,
        PruneReport,
        Stats,
        ThreadInfo,
        VerifyReport,
    )
    from backtrail.runs.strategies import Strategy
    from backtrail.sealed.keys import Key

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
    key: Key | None = None,
    keyring: str | os.PathLike[str] | None = None,
    redact: Redact | None = None,
    telemetry: bool | TracerProvider = False,
    spans: str = "slow",
) -> Opening[sync.Store, Store]:
    """Open a store; create it if it does not exist.

    Use `async with aio.open(...) as store:`, or `await aio.open(...)`.

    `url` is a path, `sqlite:///path`, `file:///directory`, `postgresql://...` or `memory://`. With
    `durability="relaxed"` a power cut may lose the newest writes, never older ones. `max_checkpoints` keeps that many
    of the newest checkpoints of each thread; `ttl` keeps the checkpoints that are younger. Labelled and tagged
    checkpoints and the head always stay. Of automatic checkpoints, one per `auto_interval` stays. `types` are the
    classes that loading may construct, with the classes that their annotations name. `redact` is applied to every text
    before it is written: a function that returns the text to write, or patterns (`re.compile(...)`, or "secrets" for
    common tokens) whose matches become "[redacted]". `telemetry` makes metrics and spans for OpenTelemetry, with the
    process's tracer provider or the given one: a span for each slow or failed read and write, or for all with
    `spans="all"`; see docs/telemetry.md.

    `key` is the `Key` of an encrypted store; a new store becomes encrypted. `keyring` is the URL of its keyring, if
    that is not beside the store. See docs/encryption.md.
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
        key=key,
        keyring=keyring,
        redact=redact,
        telemetry=telemetry,
        spans=spans,
    )
    return Opening(make, Store, sync.Store.close)


class Store:
    """Keeps threads, as the store that it is made of does. Tasks, event loops and threads may share it."""

    def __init__(self, store: sync.Store) -> None:
        self._sync = store
        self._executor = Executor(store._engine)  # noqa: SLF001 - the two are one
        self._agents = Agents(self._executor, store.agents)
        self._conversations = Conversations(self._executor, store.conversations)
        self._runs = Runs(self._executor, store.runs)
        self._keys = Keys(self._executor, store.keys)

    @property
    def redactions(self) -> int:
        """How many texts `redact=` has replaced since the store was opened."""
        return self._sync.redactions

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
        """Return a handle of a thread; nothing is read or written until it is used.

        `types` are classes that its states may hold, in addition to the store's; instances of other classes are
        refused. `aside` means the aside thread of this id: it is not listed, found or counted.
        """
        made: Thread[Any] = Thread(self._executor, self._sync.thread(id, type, agent=agent, types=types, aside=aside))
        return made

    async def threads(
        self,
        *,
        agent: str | None = None,
        prefix: str | None = None,
        kind: str | None = None,
        forked_from: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
        after: ThreadInfo | str | None = None,
    ) -> AsyncGenerator[ThreadInfo, None]:
        """List the threads, latest activity first, without loading states.

        `forked_from` is the id of a thread: list its forks. `since` and `until` list threads whose last write was in
        that time. `after` continues after a thread: an info from an earlier listing, or an id.
        """
        pages = self._executor.pages(
            self._sync.threads,
            agent=agent,
            prefix=prefix,
            kind=kind,
            forked_from=forked_from,
            since=since,
            until=until,
            limit=limit,
            after=after,
        )
        async for found in pages:
            yield found

    async def activity(
        self,
        *,
        agent: str | None = None,
        kind: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Checkpoint[Any], None]:
        """Give the checkpoints of all threads, agents, conversations and runs, newest first, without loading states.

        Checkpoints that a rewind took out of view are included. `kind` and `agent` restrict the list. Times are those
        of the writers' clocks; the checkpoints of one thread are in the order in which they were saved.
        """
        pages = self._executor.pages(self._sync.activity, agent=agent, kind=kind, since=since, until=until, limit=limit)
        async for found in pages:
            yield Checkpoint(self._executor, found)

    @called
    async def info(self, id: str, *, kind: str | None = None) -> ThreadInfo | None:  # noqa: A002 - the name users know
        """Return the info of one thread without loading its state, or None."""
        return await self._executor.apart(self._sync.info, id, kind=kind)

    @called
    async def checkpoint(self, id: str) -> Checkpoint[Any] | None:  # noqa: A002 - the name users know
        """Return the checkpoint with this id, of any thread, or None."""
        found = await self._executor.apart(self._sync.checkpoint, id)
        return None if found is None else Checkpoint(self._executor, found)

    def watch(
        self,
        *,
        agent: str | None = None,
        prefix: str | None = None,
        kind: str | None = None,
        timeout: dt.timedelta | float | None = None,
    ) -> Watch[Checkpoint[Any]]:
        """Yield each new head of any thread, from any process. The heads of one thread come in order.

        See `Thread.watch`.
        """
        watcher = self._sync._watcher(agent, prefix, kind, timeout)  # noqa: SLF001 - the two are one
        return Watch(self._executor, watcher, Checkpoint)

    @property
    def agents(self) -> Agents:
        """The agents and their checkpoints."""
        return self._agents

    @property
    def conversations(self) -> Conversations:
        """The conversations of all agents."""
        return self._conversations

    @property
    def runs(self) -> Runs:
        """The runs of all agents."""
        return self._runs

    @property
    def keys(self) -> Keys:
        """The keys of an encrypted store."""
        return self._keys

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
        """Return a run: work that continues where it was interrupted. See docs/runs.md.

        `messages` and `state` are for a new run. `takeover` takes the run from a dead worker before its lease ends.
        `errors` are exception classes that a replayed failure raises again; a dict names their attributes. `types` are
        classes that results, arguments and the state may hold, in addition to the store's; instances of other classes
        are refused. Each message is also appended to `conversation`, once.
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
        return Run(self._executor, made)

    def scoped(self, agent: str | Iterable[str] | None = None, *, read_only: bool = False) -> Store:
        """Return a store that sees and touches the things of one agent, or of several, and nothing else.

        All other threads do not exist in it: they are not listed, found, counted or searched, and cannot be changed.
        New threads belong to the agent. `read_only` refuses every change; without an agent, that is all that the scope
        does. Maintenance of the whole store is refused. The scoped store uses this store's connection: close this one.
        """
        return Store(self._sync.scoped(agent, read_only=read_only))

    async def search(
        self,
        query: str,
        *,
        contains: bool = False,
        agent: str | None = None,
        thread: str | None = None,
        kind: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        order: str = "newest",
        limit: int = 20,
        after: Hit | str | None = None,
        wait: bool = True,
        progress: Callable[[str, int], None] | None = None,
    ) -> Hits:
        """Search the list `messages` of the heads of all threads; return the matching messages, newest first.

        A message matches if it has all words; "quoted words" must follow each other, and star* matches the beginning of
        a word. Case and accents are ignored. `contains` searches for the query as one text, also inside words. `agent`,
        `thread` and `kind` restrict the search, `since` and `until` the time of a message. `order="score"` sorts the
        newest 1,000 matches by score. `after` continues after a hit or its cursor. New messages are indexed first;
        `progress` reports that. `wait=False` searches the index as it is; `behind` of the result says how many threads
        have changed since. Not inside a transaction.
        """
        work = partial(
            self._sync.search,
            query,
            contains=contains,
            agent=agent,
            thread=thread,
            kind=kind,
            since=since,
            until=until,
            order=order,
            limit=limit,
            after=after,
            wait=wait,
        )
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    async def index(self, *, progress: Callable[[str, int], None] | None = None) -> int:
        """Bring the search index up to date, so that the next search need not; return how many threads had changed.

        `backtrail index --follow` does this in the background.
        """
        return await self._executor.watched(lambda tell: self._sync.index(progress=tell), progress)

    async def reindex(self, *, progress: Callable[[str, int], None] | None = None) -> None:
        """Rebuild the search index from the stored checkpoints."""
        return await self._executor.watched(lambda tell: self._sync.reindex(progress=tell), progress)

    def transaction(self) -> Transaction:
        """Make the writes of a block one atomic write. Until the block ends, only the block sees them.

        The transaction belongs to the calling task. If another writer changes one of its threads meanwhile,
        the end of the block raises `Conflict` and nothing is written.
        """
        return Transaction(self._executor, self._sync.transaction)

    def bulk(self) -> Transaction:
        """Write the checkpoints of a block many at a time, which is several times as fast as one by one.

        The writes of the block are stored in pieces of about 1,000 checkpoints, in their order. When the block ends,
        all of them are durable. If an exception leaves the block, or the process dies, the store has only the pieces
        that were complete before. The block belongs to the calling task. If another writer changes one of
        its threads meanwhile, a write or the end of the block raises `Conflict`, and the piece is not stored. The
        block refuses the same calls as a transaction, such as a search.
        """
        return Transaction(self._executor, self._sync.bulk)

    @called
    async def stats(self) -> Stats:
        """Return the numbers of threads, checkpoints, messages and bytes in the store."""
        return await self._executor.apart(self._sync.stats)

    async def migrate(self, *, progress: Callable[[str, int], None] | None = None) -> MigrateReport:
        """Upcast the heads that older versions of their classes wrote, and save them in the newest version.

        Upcasters run at every read; this runs them once, for all agents and for the states of the classes that the
        store was opened with. Each thread is a separate write; an interrupted migration continues at the next call. The
        report names the states that could not be upcast.
        """
        return await self._executor.watched(lambda tell: self._sync.migrate(progress=tell), progress)

    async def verify(
        self,
        *,
        repair: bool = False,
        resume: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> VerifyReport:
        """Read and check everything; report the damage, the checkpoints that still load, and the possible repairs.

        `repair` makes the repairs: it gives up unreadable checkpoints, moves lost heads to readable checkpoints, and
        rebuilds indexes; sound data does not change. `resume` is deprecated and does nothing.
        """
        work = partial(self._sync.verify, repair=repair, resume=resume)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    async def gc(self, *, erase: bool = False, progress: Callable[[str, int], None] | None = None) -> GcReport:
        """Remove deleted, pruned and expired checkpoints for good, deduplicate, and free the space.

        It finishes interrupted erasures: in an encrypted store, it destroys their keys. Other processes can write
        meanwhile. `erase` also leaves no trace of removed data in any file of the store: SQLite and PostgreSQL rewrite
        all pages, and other processes wait for that.
        """
        work = partial(self._sync.gc, erase=erase)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    async def erase(
        self,
        id: str | Iterable[str],  # noqa: A002 - the name users know
        *,
        kind: str = "thread",
        forks: bool = True,
        force: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> ErasureReport:
        """Erase a thread, or several, with every byte, also where agent checkpoints and forks have it.

        `kind` is thread, conversation, run, or agent with everything of it. Unlike a deletion, nothing can bring it
        back: a restore of an agent skips it, and an import refuses it. Its forks are erased as well, unless
        `forks=False`. A run with a worker is a `Conflict`, unless `force` is set. An interrupted call is finished by
        the next one, or by `gc`. The report is evidence: it says what was erased, and whether all bytes are
        overwritten.
        """
        work = partial(self._sync.erase, id, kind=kind, forks=forks, force=force)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

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
        """Prune every thread by a `Policy`, or by the same options as `Thread.prune`.

        `agent` restricts it to one agent, `threads` to a list of ids, of every kind or of one `kind`: thread, agent,
        conversation or run. Agent checkpoints and the checkpoints that they pin stay. Each thread is a separate write;
        an interrupted prune continues at the next call.
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
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        threads: Iterable[str] | None = None,
        kind: str | None = None,
        agent: str | None = None,
        since: str | os.PathLike[str] | None = None,
        key: Key | None = None,
        passphrase: str | None = None,
        plain: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> ExportReport:
        """Write a snapshot of the store to a new file; other processes can write meanwhile.

        `threads` restricts it to ids of threads, conversations and runs, or of one `kind` of these; `agent` to one
        agent. `since` names an earlier export, by its path, or by its id if it is in the same directory: then only
        changes are written.

        `key` or `passphrase` encrypts the file, and opens the earlier one. An encrypted store writes an export that is
        not encrypted only with `plain=True`.
        """
        work = partial(
            self._sync.export,
            path,
            threads=None if threads is None else tuple(threads),
            kind=kind,
            agent=agent,
            since=since,
            key=key,
            passphrase=passphrase,
            plain=plain,
        )
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        key: Key | None = None,
        passphrase: str | None = None,
        progress: Callable[[str, int], None] | None = None,
    ) -> ImportReport:
        """Import an export: all of it, or nothing. Importing a file twice adds nothing.

        A thread that exists is extended if the export continues it. If the two have diverged, or are different threads
        with one id, the import raises `Conflict`. The file is verified before anything is written.

        `key` or `passphrase` opens an encrypted export. With either, an export that is not encrypted is refused.
        `progress` must not use the store while it reports "rows": the import may still be rolled back.
        """
        work = partial(self._sync.import_, path, key=key, passphrase=passphrase)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    async def backup(self, path: str | os.PathLike[str], *, progress: Callable[[str, int], None] | None = None) -> int:
        """Copy a snapshot of the store to a new store while other processes write; return its size in bytes.

        A file store becomes a new directory; any other store becomes an SQLite file.
        """
        work = partial(self._sync.backup, path)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    async def close(self) -> None:
        """Wait for the calls in progress, then release the store's resources. A second call does nothing."""
        await self._executor.close(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
