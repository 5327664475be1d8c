"""Stores: where threads live. `open(url)` makes one; a `Store` hands out handles and does the upkeep."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from backtrail.engine import log, pins
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.reader import Options, Standing
from backtrail.engine.schema.registry import Types
from backtrail.engine.search import indexer
from backtrail.errors import Invalid, NotFound
from backtrail.listing import SPACES, known, listed, place_of, scope_of, uid_of
from backtrail.loading import loading
from backtrail.maintenance import stats as counting
from backtrail.thread import Thread
from backtrail.transaction import Engine, Transaction
from backtrail.urls import backend_at, check_url
from backtrail.validation import (
    LEASE,
    check_count,
    check_cursor,
    check_duration,
    check_id,
    check_progress,
    check_query,
    check_timeout,
    plain,
)
from backtrail.watch import AllThreads, Watch

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from backtrail.agents.repository import Agents
    from backtrail.backends.port import Backend, Row
    from backtrail.checkpoint import Checkpoint
    from backtrail.conversations.repository import Conversations
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
    from backtrail.runs.repository import Runs
    from backtrail.runs.run import Run
    from backtrail.runs.strategies import Strategy

P = TypeVar("P")
S = TypeVar("S")


def open(  # noqa: A001 - backtrail.open reads as it should
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
) -> Store:
    """Open a store, and create it if it is not there.

    `url` is a path, `sqlite:///path`, `file:///directory`, `postgresql://...` or `memory://`. `durability="relaxed"`
    may lose the newest writes in a power cut, never more. `max_checkpoints` keeps that many per thread, newest first;
    `ttl` those that are younger; labelled and tagged ones are exempt, and the head always stays. Of automatic
    checkpoints, one per `auto_interval` is kept.
    `types` are classes that stored states may come back as, with the classes that their annotations name.
    """
    if durability not in ("full", "relaxed"):
        raise Invalid(f'durability is "full" or "relaxed", not {durability!r}', code="invalid.argument")
    options = Options(
        compression=bool(compression),
        max_checkpoints=None if max_checkpoints is None else check_count(max_checkpoints, "max_checkpoints", least=1),
        ttl=None if ttl is None else check_duration(ttl, "ttl"),
        auto_interval=None if auto_interval is None else check_duration(auto_interval, "auto_interval"),
    )
    registry = Types(named := Types.named(types))
    for cls in named:
        registry = registry.for_state(cls) if isinstance(cls, type) else registry
    backend = backend_at(check_url(url), durability=durability, read_only=read_only, schema=schema)
    return Store(backend, registry, options)


class Store:
    """Keeps threads. Safe to share between threads, survives `fork()`, and is a context manager."""

    def __init__(self, backend: Backend, types: Types | None = None, options: Options | None = None) -> None:
        self._backend = backend
        self._engine = Engine(backend, types or Types(), options or Options())
        self._parts: dict[str, Any] = {}

    # -- threads --------------------------------------------------------------------------------------

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
        id: str,  # noqa: A002
        type: Any = None,  # noqa: A002
        *,
        agent: str | None = None,
        types: Iterable[Any] | None = None,
        aside: bool = False,
    ) -> Thread[Any]:
        """Return a handle; nothing is read or written until it is used.

        `types` are classes that its states may hold, beside those of the store; instances of others are refused. With
        `aside` it is not the thread of this id, but one that stands beside it: it is not listed, found or counted.
        """
        return Thread(self._engine, ASIDE if aside else THREAD, id, type, agent, types=types)

    def threads(
        self,
        *,
        agent: str | None = None,
        prefix: str | None = None,
        kind: str | None = None,
        forked_from: str | None = None,
        limit: int | None = None,
        after: ThreadInfo | str | None = None,
    ) -> Iterator[ThreadInfo]:
        """Give what is known of the threads, newest activity first, without loading states.

        `forked_from` is the id of a thread: those that were forked from a checkpoint of it. `after` goes on behind a
        thread: an info from an earlier listing, or an id.
        """
        scope = scope_of(kind, agent, prefix)
        if limit is not None:
            check_count(limit, "limit")
        place = None if after is None else place_of(self._engine.desk, scope.space, after)
        origin = None if forked_from is None else uid_of(self._engine.desk.heads, scope.space, forked_from)
        return listed(self._engine, scope, origin=origin, limit=limit, after=place)

    def info(self, id: str, *, kind: str | None = None) -> ThreadInfo | None:  # noqa: A002
        """Return what is known of one thread without loading its state, or None."""
        return known(self._engine.desk.heads, scope_of(kind).space, check_id(id, "a thread's id"))

    def checkpoint(self, id: str) -> Checkpoint[Any] | None:  # noqa: A002
        """Return the checkpoint with this id, whatever its thread, or None."""
        parsed = log.parse_id(check_id(id, "a checkpoint's id"))
        heads = self._engine.desk.heads
        record = heads.backend.thread_with_uid(parsed[0]) if parsed else None
        if parsed is None or record is None or record.space not in SPACES:
            return None
        thread: Thread[Any] = Thread(self._engine, record.space, record.name)
        try:
            heads.checkpoint_row(record, parsed[1])
        except NotFound:
            return None
        return thread.load(id)

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
        return Watch(self._watcher(agent, prefix, kind, timeout))

    def _watcher(
        self, agent: str | None, prefix: str | None, kind: str | None, timeout: dt.timedelta | float | None
    ) -> AllThreads[Checkpoint[Any]]:
        def made(standing: Standing, rows: list[Row]) -> list[Checkpoint[Any]]:
            thread: Thread[Any] = Thread(self._engine, standing.record.space, standing.record.name)
            return thread._checkpoints(standing, rows)  # noqa: SLF001 - a handle makes them, this one for itself

        scope, seconds = scope_of(kind, agent, prefix), check_timeout(timeout)
        return AllThreads(self._engine, **scope._asdict(), timeout=seconds, make=made)

    # -- agents, conversations and runs -------------------------------------------------------------------

    def _part(self, cls: Callable[[Engine], P]) -> P:
        """Return the store's own agents, conversations or runs: those that were made first."""
        part: P | None = self._parts.get(name := cls.__name__)
        return self._parts.setdefault(name, cls(self._engine)) if part is None else part

    @property
    def agents(self) -> Agents:
        """The agents, and the points to which each can be brought back."""
        with loading:
            from backtrail.agents.repository import Agents  # noqa: PLC0415 - not every program uses all of these

        return self._part(Agents)

    @property
    def conversations(self) -> Conversations:
        """The conversations of all agents."""
        with loading:
            from backtrail.conversations.repository import Conversations  # noqa: PLC0415

        return self._part(Conversations)

    @property
    def runs(self) -> Runs:
        """The runs of all agents."""
        with loading:
            from backtrail.runs.repository import Runs  # noqa: PLC0415

        return self._part(Runs)

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
        with loading:
            from backtrail.runs.run import Run  # noqa: PLC0415

        return Run(
            self._engine,
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

    # -- search -----------------------------------------------------------------------------------------

    def search(
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
        with loading:
            from backtrail.engine.search import search  # noqa: PLC0415

        sought = check_query(query, contains=contains)
        if order not in ("newest", "score"):
            raise Invalid(f'order is "newest" or "score", not {order!r}', code="invalid.argument")
        agent = None if agent is None else check_id(agent, "an agent's id")
        if kind is not None and kind not in SPACES:
            raise Invalid(f"kind is one of {', '.join(SPACES)}, not {kind!r}", code="invalid.argument")
        kind = None if kind is None else plain(kind)
        heads = self._engine.desk.heads
        threads = None
        if thread is not None:
            name = check_id(thread, "a thread's id")
            named = (heads.backend.find_thread(space, name) for space in SPACES)
            threads = tuple(record.no for record in named if record is not None)
        return (search.best if order == "score" else search.newest)(
            heads,
            sought,
            search.Where(kind, agent, threads),
            after=None if after is None else search.place_of(check_cursor(after)),
            limit=min(check_count(limit, "limit"), sys.maxsize),
            progress=check_progress(progress),
        )

    def reindex(self, *, progress: Callable[[str, int], None] | None = None) -> None:
        """Make the index of `search` anew, from what is stored."""
        told = check_progress(progress)
        heads = self._engine.desk.heads
        heads.backend.forget_index()
        indexer.catch_up(heads, progress=told)

    # -- several at once --------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Make the writes of a block one write: all of them, or none; until it ends, only the block sees them.

        It belongs to the calling thread or task. If somebody else writes to one of its threads meanwhile, its end is a
        `Conflict` and nothing was written.
        """
        return Transaction(self._engine)

    # -- upkeep -----------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return what the store holds, measured."""
        with loading:
            from backtrail.models import Stats  # noqa: PLC0415

        usage = self._backend.usage()
        heads = self._engine.desk.heads
        return Stats(
            threads=usage.threads.get(THREAD, 0),
            agents=usage.threads.get("agent", 0),
            conversations=usage.threads.get("conversation", 0),
            runs=usage.threads.get("journal", 0),
            checkpoints=sum(count for space, count in usage.checkpoints.items() if space in SPACES),
            agent_checkpoints=counting.count_checkpoints(heads) if usage.threads.get(pins.SPACE) else 0,
            messages=counting.count_messages(heads, usage) if usage.threads.get("conversation") else 0,
            chunks=usage.chunks,
            logical_bytes=sum(size for space, size in usage.logical_bytes.items() if space in SPACES),
            payload_bytes=usage.payload_bytes,
            stored_bytes=usage.stored_bytes,
            indexed=usage.entries,
            index_bytes=usage.index_bytes,
        )

    def migrate(self, *, progress: Callable[[str, int], None] | None = None) -> MigrateReport:
        """Save anew what was saved by older versions of its classes, as their upcasters make it.

        States are brought up to date whenever they are read; this does it once, for the heads of all threads: agents,
        and states of the classes that the store was opened with. Each thread is a write by itself: interrupted, it goes
        on where it was when it is called again. What cannot be brought up to date is in the report.
        """
        with loading:
            from backtrail.maintenance import migrate as migrating  # noqa: PLC0415 - few programs do it

        return migrating.migrate(self._engine, progress)

    def verify(
        self, *, repair: bool = False, resume: bool = False, progress: Callable[[str, int], None] | None = None
    ) -> VerifyReport:
        """Read and check everything; name what is damaged, what still loads, and what a repair would do.

        `repair` does that: what cannot be read is given up, heads that are lost move to what can be read, indexes are
        made anew; what is sound stays as it is. `resume` goes on where the last call was interrupted, and does not look
        again at what that had found sound.
        """
        with loading:
            from backtrail.maintenance import checkup  # noqa: PLC0415 - few programs do it

        return checkup.verify(self._engine, repair=repair, resume=resume, progress=progress)

    def gc(self, *, erase: bool = False, progress: Callable[[str, int], None] | None = None) -> GcReport:
        """Remove for good what was deleted, pruned or outlived, keep once what was kept twice, give the space back.

        Others go on writing meanwhile. `erase` also leaves no trace of what was removed in any file of the store: in
        SQLite and PostgreSQL all pages are written anew, and others wait for that.
        """
        with loading:
            from backtrail.maintenance import gc as upkeep  # noqa: PLC0415
            from backtrail.models import GcReport  # noqa: PLC0415

        return GcReport(*upkeep.collect(self._engine.desk.heads, check_progress(progress), erase=erase))

    def prune(
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
        with loading:
            from backtrail.maintenance import retention  # noqa: PLC0415
            from backtrail.maintenance.retention import check_policy  # noqa: PLC0415

        chosen = check_policy(policy, keep_last, older_than, keep_tagged)
        return retention.prune(
            self._engine, chosen, SPACES, agent=agent, threads=threads, kind=kind, dry_run=dry_run, progress=progress
        )

    # -- moving -----------------------------------------------------------------------------------------

    def export(
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
        with loading:
            from backtrail.archive import transfer  # noqa: PLC0415 - few programs move stores

        return transfer.export(
            self._engine, path, threads=threads, kind=kind, agent=agent, since=since, progress=progress
        )

    def import_(
        self, path: str | os.PathLike[str], *, progress: Callable[[str, int], None] | None = None
    ) -> ImportReport:
        """Add what an export holds to this store: all of it, or nothing; what is here already is not added twice.

        A thread that is here goes on, if the export goes on from where it is; one that has gone another way, or that is
        another one under the same id, is a `Conflict`. The file is read and verified before anything is written.

        `progress` does not use the store when it is told of "rows": all of it may still be taken back.
        """
        with loading:
            from backtrail.archive import transfer  # noqa: PLC0415

        return transfer.import_(self._engine, path, progress)

    def backup(self, path: str | os.PathLike[str], *, progress: Callable[[str, int], None] | None = None) -> int:
        """Make a store of its own of this one, as it is at this moment, while others write; return its size in bytes.

        It is one in files, in a new directory, if this one is; else a new file of SQLite.
        """
        with loading:
            from backtrail.archive import transfer  # noqa: PLC0415

        return transfer.backup(self._engine, path, progress)

    # -- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the store's resources; closing twice is allowed."""
        agents: Agents | None = self._parts.get("Agents")
        if agents is not None:
            agents._close()  # noqa: SLF001 - it is a part of the store
        self._backend.close()
        self._engine.hub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
