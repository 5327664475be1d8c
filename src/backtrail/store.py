"""`open(url)` and `Store`: handles, transactions, search, maintenance, exports."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from backtrail.backends.port import KEYRING, SEALED
from backtrail.engine import log, manifests
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.reader import Options, Tip
from backtrail.engine.schema.registry import Types
from backtrail.engine.search import indexer
from backtrail.engine.search.indexer import Where
from backtrail.errors import Corrupt, Invalid, NotFound, Unavailable
from backtrail.listing import SPACES, before, known, listed, place_of, scope_of, uid_of
from backtrail.loading import loading
from backtrail.maintenance import stats as counting
from backtrail.thread import Thread
from backtrail.transaction import Engine, Transaction
from backtrail.urls import backend_at, check_url, keyring_at
from backtrail.validation import (
    LEASE,
    check_count,
    check_cursor,
    check_duration,
    check_id,
    check_period,
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

    from opentelemetry.trace import TracerProvider

    from backtrail.agents.repository import Agents
    from backtrail.backends.port import Backend, Row
    from backtrail.checkpoint import Checkpoint
    from backtrail.conversations.models import Message
    from backtrail.conversations.repository import Conversations
    from backtrail.engine.redact import Redact, Redactor
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
    from backtrail.runs.repository import Runs
    from backtrail.runs.run import Run
    from backtrail.runs.strategies import Strategy
    from backtrail.scope import Scope
    from backtrail.sealed.keys import Key
    from backtrail.sealed.rotation import Keys

P = TypeVar("P")
S = TypeVar("S")


def open(  # noqa: A001 - users write backtrail.open
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
) -> Store:
    """Open a store; create it if it does not exist.

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
    if durability not in ("full", "relaxed"):
        raise Invalid(f'durability must be "full" or "relaxed", not {durability!r}', code="invalid.argument")
    options = Options(
        compression=bool(compression),
        max_checkpoints=None if max_checkpoints is None else check_count(max_checkpoints, "max_checkpoints", least=1),
        ttl=None if ttl is None else check_duration(ttl, "ttl"),
        auto_interval=None if auto_interval is None else check_duration(auto_interval, "auto_interval"),
        redact=None if redact is None else _redactor(redact),
    )
    registry = Types(named := Types.named(types))
    for cls in named:
        registry = registry.for_state(cls) if isinstance(cls, type) else registry
    place = check_url(url)
    _check_key(key, keyring)
    backend = backend_at(place, durability=durability, read_only=read_only, schema=schema)
    try:
        backend = _traced(backend, telemetry, spans)
        if key is None:
            _refuse_encrypted(backend)
        else:
            backend = _sealed(backend, key, partial(keyring_at, place, schema, keyring, read_only=read_only))
    except BaseException:
        backend.close()
        raise
    return Store(backend, registry, options)


def _check_key(key: object, keyring: object) -> None:
    if key is None and keyring is not None:
        raise Invalid("keyring= requires key=", code="invalid.argument")
    if key is not None:
        with loading:
            from backtrail.sealed.keys import check_key  # noqa: PLC0415 - only encrypted stores need it

        check_key(key)


def _refuse_encrypted(backend: Backend) -> None:
    with suppress(Corrupt):  # a damaged store is opened to be repaired
        marks = backend.present([SEALED, KEYRING])
        if KEYRING in marks:
            raise Invalid(
                "this is the keyring of an encrypted store: open the store itself; store.keys.backup(path) copies the "
                "keyring",
                code="invalid.keyring",
            )
        if marks:
            raise Unavailable(
                "this store is encrypted: open it with key= (Key.from_file, Key.from_env); commands take --key-file "
                "or $BACKTRAIL_KEY_FILE",
                code="unavailable.encrypted",
            )


def _sealed(backend: Backend, key: Key, open_keyring: Callable[..., Backend | None]) -> Backend:
    with loading:
        from backtrail.sealed.opening import missing_keyring, sealed  # noqa: PLC0415 - only encrypted stores need it

    def opened(must_exist: bool) -> Backend:  # noqa: FBT001 - private
        found = open_keyring(must_exist=must_exist)
        if found is None:
            raise missing_keyring()
        return found

    return sealed(backend, key, opened)


def _redactor(redact: Redact) -> Redactor | None:
    with loading:
        from backtrail.engine.redact import redactor_of  # noqa: PLC0415 - few programs use it

    return redactor_of(redact)


def _traced(backend: Backend, telemetry: bool | TracerProvider, spans: str) -> Backend:  # noqa: FBT001 - private
    if spans not in ("slow", "all"):
        raise Invalid(f'spans must be "slow" or "all", not {spans!r}', code="invalid.argument")
    if not telemetry:
        if spans == "all":
            raise Invalid('spans="all" requires telemetry=', code="invalid.argument")
        return backend
    with loading:
        from backtrail.telemetry import traced  # noqa: PLC0415 - few stores need it

    return traced(backend, None if telemetry is True else telemetry, every=spans == "all")


class Store:
    """An open store. Safe to share between threads, survives `fork()`, and is a context manager."""

    def __init__(
        self,
        backend: Backend,
        types: Types | None = None,
        options: Options | None = None,
        *,
        scope: Scope | None = None,
    ) -> None:
        self.scope = scope
        """What the store may see and do; None for everything."""
        self._backend = backend
        self._engine = Engine(backend, types or Types(), options or Options())
        self._parts: dict[str, Any] = {}

    @property
    def redactions(self) -> int:
        """How many texts `redact=` has replaced since the store was opened."""
        redact = self._engine.options.redact
        return 0 if redact is None else redact.count

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
        """Return a handle of a thread; nothing is read or written until it is used.

        `types` are classes that its states may hold, in addition to the store's; instances of other classes are
        refused. `aside` means the aside thread of this id: it is not listed, found or counted.
        """
        return Thread(self._engine, ASIDE if aside else THREAD, id, type, self._owner(agent), types=types)

    def _owner(self, agent: str | None) -> str | None:
        """Return the owner of a new thread: in the scope of one agent, that agent."""
        return self.scope.agent if agent is None and self.scope is not None else agent

    def threads(
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
    ) -> Iterator[ThreadInfo]:
        """List the threads, latest activity first, without loading states.

        `forked_from` is the id of a thread: list its forks. `since` and `until` list threads whose last write was in
        that time. `after` continues after a thread: an info from an earlier listing, or an id.
        """
        scope = scope_of(kind, agent, prefix)
        if limit is not None:
            check_count(limit, "limit")
        start, end = check_period(since, until)
        place = None if after is None else place_of(self._engine.session, scope.space, after)
        origin = None if forked_from is None else uid_of(self._engine.session.reader, scope.space, forked_from)
        return listed(self._engine, scope, origin=origin, limit=limit, after=before(end, place), since=start)

    def activity(
        self,
        *,
        agent: str | None = None,
        kind: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[Checkpoint[Any]]:
        """Give the checkpoints of all threads, agents, conversations and runs, newest first, without loading states.

        Checkpoints that a rewind took out of view are included. `kind` and `agent` restrict the list. Times are those
        of the writers' clocks; the checkpoints of one thread are in the order in which they were saved.
        """
        with loading:
            from backtrail.activity import activity  # noqa: PLC0415

        kinds = SPACES if kind is None else (scope_of(kind).space,)
        owner = None if agent is None else check_id(agent, "an agent's id")
        if limit is not None:
            check_count(limit, "limit")
        start, end = check_period(since, until)
        return activity(self._engine, kinds, agent=owner, since=start, until=end, limit=limit)

    def info(self, id: str, *, kind: str | None = None) -> ThreadInfo | None:  # noqa: A002
        """Return the info of one thread without loading its state, or None."""
        return known(self._engine.session.reader, scope_of(kind).space, check_id(id, "a thread's id"))

    def checkpoint(self, id: str) -> Checkpoint[Any] | None:  # noqa: A002
        """Return the checkpoint with this id, of any thread, or None."""
        parsed = log.parse_id(check_id(id, "a checkpoint's id"))
        reader = self._engine.session.reader
        record = reader.backend.thread_with_uid(parsed[0]) if parsed else None
        if parsed is None or record is None or record.space not in SPACES:
            return None
        thread: Thread[Any] = Thread(self._engine, record.space, record.name)
        try:
            reader.checkpoint_row(record, parsed[1])
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
        """Yield each new head of any thread, from any process. The heads of one thread come in order.

        See `Thread.watch`.
        """
        return Watch(self._watcher(agent, prefix, kind, timeout))

    def _watcher(
        self, agent: str | None, prefix: str | None, kind: str | None, timeout: dt.timedelta | float | None
    ) -> AllThreads[Checkpoint[Any]]:
        def made(tip: Tip, rows: list[Row]) -> list[Checkpoint[Any]]:
            thread: Thread[Any] = Thread(self._engine, tip.record.space, tip.record.name)
            return thread._checkpoints(tip, rows)  # noqa: SLF001 - the handle is this function's own

        scope, seconds = scope_of(kind, agent, prefix), check_timeout(timeout)
        return AllThreads(self._engine, **scope._asdict(), timeout=seconds, make=made)

    # -- agents, conversations and runs -------------------------------------------------------------------

    def _part(self, cls: Callable[[Engine], P]) -> P:
        """Return the store's agents, conversations or runs, made at the first use."""
        part: P | None = self._parts.get(name := cls.__name__)
        return self._parts.setdefault(name, cls(self._engine)) if part is None else part

    @property
    def agents(self) -> Agents:
        """The agents and their checkpoints."""
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

    @property
    def keys(self) -> Keys:
        """The keys of an encrypted store."""
        with loading:
            from backtrail.sealed.rotation import Keys  # noqa: PLC0415

        return self._part(Keys)

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
        with loading:
            from backtrail.runs.run import Run  # noqa: PLC0415

        return Run(
            self._engine,
            session_id,
            agent=self._owner(agent),
            strategy=strategy,
            messages=messages,
            state=state,
            takeover=takeover,
            lease=lease,
            errors=errors,
            types=types,
            conversation=conversation,
        )

    # -- scopes -----------------------------------------------------------------------------------------

    def scoped(self, agent: str | Iterable[str] | None = None, *, read_only: bool = False) -> Store:
        """Return a store that sees and touches the things of one agent, or of several, and nothing else.

        All other threads do not exist in it: they are not listed, found, counted or searched, and cannot be changed.
        New threads belong to the agent. `read_only` refuses every change; without an agent, that is all that the scope
        does. Maintenance of the whole store is refused. The scoped store uses this store's connection: close this one.
        """
        with loading:
            from backtrail.scope import backend_for, scope_for  # noqa: PLC0415 - not every program uses scopes

        scope = scope_for(agent, self.scope, read_only=read_only)
        return Store(backend_for(self._backend, scope), self._engine.types, self._engine.options, scope=scope)

    # -- search -----------------------------------------------------------------------------------------

    def search(
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
        with loading:
            from backtrail.engine.search import search  # noqa: PLC0415
            from backtrail.models import Hits  # noqa: PLC0415

        parsed = check_query(query, contains=contains)
        if order not in ("newest", "score"):
            raise Invalid(f'order must be "newest" or "score", not {order!r}', code="invalid.argument")
        agent = None if agent is None else check_id(agent, "an agent's id")
        if kind is not None and kind not in SPACES:
            raise Invalid(f"kind must be one of {', '.join(SPACES)}, not {kind!r}", code="invalid.argument")
        kind = None if kind is None else plain(kind)
        reader = self._engine.outside()
        threads = None
        if thread is not None:
            name = check_id(thread, "a thread's id")
            named = (reader.backend.find_thread(space, name) for space in SPACES)
            threads = tuple(record.no for record in named if record is not None)
        callback, where = check_progress(progress), Where(kind, agent, threads)
        period = check_period(since, until)
        place = None if after is None else search.cursor_of(check_cursor(after))
        most = min(check_count(limit, "limit"), sys.maxsize)
        if wait:
            search.index_first(reader, where, callback)
        behind = 0 if wait else indexer.behind(reader.backend)
        find = search.best if order == "score" else search.newest
        hits = Hits(find(reader, parsed, where, period, after=place, limit=most))
        hits.behind = behind
        return hits

    def index(self, *, progress: Callable[[str, int], None] | None = None) -> int:
        """Bring the search index up to date, so that the next search need not; return how many threads had changed.

        `backtrail index --follow` does this in the background.
        """
        return indexer.catch_up(self._engine.outside(), progress=check_progress(progress))

    def reindex(self, *, progress: Callable[[str, int], None] | None = None) -> None:
        """Rebuild the search index from the stored checkpoints."""
        callback = check_progress(progress)
        reader = self._engine.outside()
        reader.backend.clear_index()
        indexer.catch_up(reader, progress=callback)

    # -- several at once --------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Make the writes of a block one atomic write. Until the block ends, only the block sees them.

        The transaction belongs to the calling thread or task. If another writer changes one of its threads meanwhile,
        the end of the block raises `Conflict` and nothing is written.
        """
        return Transaction(self._engine)

    def bulk(self) -> Transaction:
        """Write the checkpoints of a block many at a time, which is several times as fast as one by one.

        The writes of the block are stored in pieces of about 1,000 checkpoints, in their order. When the block ends,
        all of them are durable. If an exception leaves the block, or the process dies, the store has only the pieces
        that were complete before. The block belongs to the calling thread or task. If another writer changes one of
        its threads meanwhile, a write or the end of the block raises `Conflict`, and the piece is not stored. The
        block refuses the same calls as a transaction, such as a search.
        """
        return Transaction(self._engine, bulk=True)

    # -- maintenance -----------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return the numbers of threads, checkpoints, messages and bytes in the store."""
        with loading:
            from backtrail.models import Stats  # noqa: PLC0415

        usage = self._backend.usage()
        reader = self._engine.session.reader
        return Stats(
            threads=usage.threads.get(THREAD, 0),
            agents=usage.threads.get("agent", 0),
            conversations=usage.threads.get("conversation", 0),
            runs=usage.threads.get("journal", 0),
            checkpoints=sum(count for space, count in usage.checkpoints.items() if space in SPACES),
            agent_checkpoints=counting.count_checkpoints(reader) if usage.threads.get(manifests.SPACE) else 0,
            messages=counting.count_messages(self._engine.outside(), usage) if usage.threads.get("conversation") else 0,
            chunks=usage.chunks,
            logical_bytes=sum(size for space, size in usage.logical_bytes.items() if space in SPACES),
            payload_bytes=usage.payload_bytes,
            stored_bytes=usage.stored_bytes,
            indexed=usage.entries,
            index_bytes=usage.index_bytes,
        )

    def migrate(self, *, progress: Callable[[str, int], None] | None = None) -> MigrateReport:
        """Upcast the heads that older versions of their classes wrote, and save them in the newest version.

        Upcasters run at every read; this runs them once, for all agents and for the states of the classes that the
        store was opened with. Each thread is a separate write; an interrupted migration continues at the next call. The
        report names the states that could not be upcast.
        """
        with loading:
            from backtrail.maintenance import migrate as migrating  # noqa: PLC0415 - few programs do it

        return migrating.migrate(self._engine, progress)

    def verify(
        self, *, repair: bool = False, resume: bool = False, progress: Callable[[str, int], None] | None = None
    ) -> VerifyReport:
        """Read and check everything; report the damage, the checkpoints that still load, and the possible repairs.

        `repair` makes the repairs: it gives up unreadable checkpoints, moves lost heads to readable checkpoints, and
        rebuilds indexes; sound data does not change. `resume` is deprecated and does nothing.
        """
        with loading:
            from backtrail.maintenance import repair as repairs  # noqa: PLC0415 - few programs do it

        if resume:
            warnings.warn("resume= is deprecated: verify() reads everything", DeprecationWarning, stacklevel=2)
        return repairs.verify(self._engine, repair=repair, progress=progress)

    def gc(self, *, erase: bool = False, progress: Callable[[str, int], None] | None = None) -> GcReport:
        """Remove deleted, pruned and expired checkpoints for good, deduplicate, and free the space.

        It finishes interrupted erasures: in an encrypted store, it destroys their keys. Other processes can write
        meanwhile. `erase` also leaves no trace of removed data in any file of the store: SQLite and PostgreSQL rewrite
        all pages, and other processes wait for that.
        """
        with loading:
            from backtrail.maintenance import erase as erasing  # noqa: PLC0415
            from backtrail.maintenance import gc as upkeep  # noqa: PLC0415

        reader = self._engine.outside()
        report = upkeep.collect(reader, check_progress(progress), erase=erase)
        erasing.finish(reader)
        return report

    def erase(
        self,
        id: str | Iterable[str],  # noqa: A002
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
        with loading:
            from backtrail.maintenance import erase as erasing  # noqa: PLC0415 - few programs do it

        if kind not in erasing.KINDS:
            raise Invalid(f"kind must be one of {', '.join(erasing.KINDS)}, not {kind!r}", code="invalid.argument")
        return erasing.erase_all(self._engine, plain(kind), id, forks=forks, force=force, progress=progress)

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
        """Prune every thread by a `Policy`, or by the same options as `Thread.prune`.

        `agent` restricts it to one agent, `threads` to a list of ids, of every kind or of one `kind`: thread, agent,
        conversation or run. Agent checkpoints and the checkpoints that they pin stay. Each thread is a separate write;
        an interrupted prune continues at the next call.
        """
        with loading:
            from backtrail.maintenance import retention  # noqa: PLC0415
            from backtrail.maintenance.retention import check_policy  # noqa: PLC0415

        chosen = check_policy(policy, keep_last, older_than, keep_tagged)
        return retention.prune(
            self._engine, chosen, SPACES, agent=agent, threads=threads, kind=kind, dry_run=dry_run, progress=progress
        )

    # -- exports and backups -----------------------------------------------------------------------------------------

    def export(
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
        with loading:
            from backtrail.archive import envelope, export  # noqa: PLC0415 - few programs move stores

        secret = envelope.secret_of(key, passphrase)
        if secret is not None and plain:
            raise Invalid("pass plain=True without key= and passphrase=", code="invalid.argument")
        if secret is None and not plain and self._engine.outside().backend.present([SEALED]):
            raise Invalid(
                "this store is encrypted: pass key= or passphrase= to encrypt the export, or plain=True",
                code="invalid.plain_export",
            )

        return export.export(
            self._engine, path, threads=threads, kind=kind, agent=agent, since=since, secret=secret, progress=progress
        )

    def import_(
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
        with loading:
            from backtrail.archive import envelope, import_  # noqa: PLC0415

        return import_.import_(self._engine, path, progress, secret=envelope.secret_of(key, passphrase))

    def backup(self, path: str | os.PathLike[str], *, progress: Callable[[str, int], None] | None = None) -> int:
        """Copy a snapshot of the store to a new store while other processes write; return its size in bytes.

        A file store becomes a new directory; any other store becomes an SQLite file.
        """
        with loading:
            from backtrail.archive import backup  # noqa: PLC0415

        return backup.backup(self._engine, path, progress)

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
