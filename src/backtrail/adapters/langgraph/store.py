"""`BacktrailStore`: LangGraph's long-term memory in a backtrail store.

A namespace is a thread, whose state has the items by their keys. A put is one checkpoint, so each item has a history
and can be taken back. The time at which an item expires is part of the item; a read that puts it off notes that in an
aside thread, so reads leave no trace in the history.

A search looks at the items of the namespaces below its prefix, in each the latest first, until it has enough. Their
decoded states are kept in memory and used again while their heads are the same.

Calls of coroutines that are made in one round of the event loop are done together, as in LangGraph's own stores: first
all reads, then all puts as one write. Of several puts of one item in one round, the last one counts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import logging
import threading
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)
from langgraph.store.base import validate_op_namespace as check_namespace

from backtrail.adapters.adapter_store import AdapterStore, RecentThreads
from backtrail.adapters.langgraph import store_items
from backtrail.adapters.langgraph.store_calls import JoinedCalls
from backtrail.adapters.langgraph.store_items import StoredItem
from backtrail.adapters.plain_values import plain_data
from backtrail.engine.asides import THREAD
from backtrail.engine.log import checkpoint_id
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.validation import check_count, check_id, now

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from backtrail import Checkpoint, Editor, Thread, aio
    from backtrail.adapters.adapter_store import StoreSource
    from backtrail.backends.port import Row, ThreadRecord

_log: Final = logging.getLogger("backtrail.adapters")
_ITEMS: Final = "items"
_NAMESPACE: Final = "namespace"
_REFRESHED: Final = "refreshed"
_KEYS: Final = "keys"
_RESTORES: Final = "restores"
_NOTHING: Final = ""
"""Restores no version: there was no item before the first one."""
_TRIES: Final = 20
_KEYS_MAX: Final = 1_500
"""Characters of keys in the metadata of one checkpoint."""
_CACHED: Final = 4096
"""Namespaces whose decoded items are kept in memory."""
_PAGE: Final = 500
"""Threads that one read of a listing returns."""
_FRACTION: Final = 10
"""A namespace is decoded again unless less than this part of its items changed."""
_FEW: Final = 16
"""Up to this many reads are made in one thread."""
_JOBS: Final = 8
_SWEEP_MINUTES: Final = 5.0
_OFTEN: Final = 50
"""A read puts the expiry off only if that moves it by more than this part of its time to live."""


@dataclass(frozen=True, slots=True)
class ItemVersion:
    """One version of an item: `value` is None if the item was deleted."""

    checkpoint_id: str
    value: dict[str, Any] | None
    time: dt.datetime


class _Namespace:
    """The decoded items of a namespace at one head of its thread."""

    def __init__(self, head: Checkpoint[Any], labels: tuple[str, ...], items: list[StoredItem]) -> None:
        self.head_id = head.id
        self.step = head.step
        self.labels = labels
        self.latest = sorted(items, key=lambda each: each.data["updated_at"], reverse=True)
        self.may_expire = any("expires" in each.data for each in items)

    def after(self, head: Checkpoint[Any]) -> _Namespace | None:
        """Return the items at the next head, of which only those that it changed are read; None if that is unknown."""
        if head.parent_id != self.head_id or head.step != self.step + 1:
            return None
        keys = head.metadata.get(_KEYS)
        if not isinstance(keys, list) or len(keys) * _FRACTION > len(self.latest):
            return None
        read = ((key, head.get((_ITEMS, key), None)) for key in keys)
        changed = [StoredItem(self.labels, key, data) for key, data in read if data is not None]
        return _Namespace(head, self.labels, [*changed, *(each for each in self.latest if each.key not in keys)])


@dataclass(frozen=True, slots=True)
class _Put:
    """A put whose texts are embedded."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any] | None
    ttl: float | None
    vectors: list[bytes]


class _Call(NamedTuple):
    """A call of `abatch`."""

    ops: list[Op]
    asked: dict[str, list[float]]
    """The vectors of its queries."""
    puts: list[_Put]


class BacktrailStore(BaseStore):
    """Long-term memory for graphs: `builder.compile(store=BacktrailStore("sqlite:///agents.db"))`.

    `source` is a synchronous or asynchronous store, or a URL: `close` or `aclose` closes the store of a URL. `index`
    and `ttl` are LangGraph's own settings. `agent` owns the threads of the namespaces.
    """

    supports_ttl = True

    def __init__(
        self,
        source: StoreSource,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        agent: str | None = None,
    ) -> None:
        self._adapter_store = AdapterStore(source)
        self._agent = None if agent is None else check_id(agent, "an agent's id")
        sync = self._adapter_store.sync
        self._threads = RecentThreads(partial(sync.thread, agent=self._agent))
        self._refreshes = RecentThreads(partial(sync.thread, agent=self._agent, aside=True))
        self.index_config = index
        self.ttl_config = ttl
        self.embeddings = ensure_embeddings(index["embed"]) if index else None
        fields = (index or {}).get("fields") or (index or {}).get("text_fields") or ["$"]
        self._fields = [(path, _tokens(path)) for path in cast("list[str]", fields)]
        self._cache: OrderedDict[str, _Namespace] = OrderedDict()
        """By thread: its items at the head that was read last."""
        self._lock = threading.Lock()
        self._joined = JoinedCalls(self._do_calls)
        self._sweeper: threading.Thread | None = None
        self._stop = threading.Event()

    # -- the framework's interface ----------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do operations: first all reads, then all puts as one write, all or nothing."""
        listed = _checked(ops)
        texts, queries = self._texts(listed), _queries(listed)
        embedded = self.embeddings.embed_documents(texts) if self.embeddings and texts else []
        asked = {query: self.embeddings.embed_query(query) for query in queries} if self.embeddings else {}
        puts = self._puts(listed, dict(zip(texts, embedded, strict=True)))
        read: list[StoredItem] = []
        results = self._read(listed, asked, read)
        self._refresh(read)
        self._write(puts)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do operations as `batch` does, without blocking the event loop."""
        listed = _checked(ops)
        texts, queries = self._texts(listed), _queries(listed)
        embedded = await self.embeddings.aembed_documents(texts) if self.embeddings and texts else []
        asked = {query: await self.embeddings.aembed_query(query) for query in queries} if self.embeddings else {}
        call = _Call(listed, asked, self._puts(listed, dict(zip(texts, embedded, strict=True))))
        if self._adapter_store.aio._executor.in_transaction:  # noqa: SLF001 - not together with calls of other tasks
            (answer,) = await self._do_calls([call])
            if isinstance(answer, Exception):
                raise answer
            return answer
        return await self._joined(call)

    async def _do_calls(self, calls: list[_Call]) -> list[list[Result] | Exception]:
        """Do calls together: first all reads, then all puts as one write. Return a result or an exception for each."""
        read: list[StoredItem] = []
        answers = await self._read_calls(calls, read)
        if any("expires" in each.data for each in read):
            await self._adapter_store.write(partial(self._refresh, read), [], surely=True)  # in a group with others
        writing = [at for at, call in enumerate(calls) if call.puts and not isinstance(answers[at], Exception)]
        errors = await self._write_calls([calls[at].puts for at in writing])
        for at, error in zip(writing, errors, strict=True):
            if error is not None:
                answers[at] = error
        return answers

    async def _read_calls(self, calls: list[_Call], read: list[StoredItem]) -> list[list[Result] | Exception]:
        """Return the results of the reads of calls. Equal reads are made once, in several threads if there are many."""
        reads: list[tuple[Op, dict[str, list[float]]]] = []
        known: dict[Any, int] = {}
        places: list[list[int | None]] = []
        for call in calls:
            own: list[int | None] = []
            for op in call.ops:
                name = _name(op)
                place = None if isinstance(op, PutOp) else known.get(name, len(reads)) if name else len(reads)
                if place == len(reads):
                    reads.append((op, call.asked))
                    if name:
                        known[name] = place
                own.append(place)
            places.append(own)
        size = max(_FEW, -(-len(reads) // _JOBS))
        parts = [partial(self._read_some, reads[at : at + size], read) for at in range(0, len(reads), size)]
        if len(calls) == 1:  # in the caller's own task, which may have a transaction open
            groups = [await self._adapter_store.read(part) for part in parts]
        else:
            groups = await asyncio.gather(*map(self._adapter_store.read, parts))
        found = [each for group in groups for each in group]
        used: set[int] = set()
        return [_answer(own, found, used) for own in places]

    def _read_some(
        self, reads: list[tuple[Op, dict[str, list[float]]]], read: list[StoredItem]
    ) -> list[Result | Exception]:
        found: list[Result | Exception] = []
        for op, asked in reads:
            try:
                found.append(self._result(op, asked, read))
            except Exception as error:  # noqa: BLE001 - it belongs to the calls that made this read
                found.append(error)
        return found

    async def _write_calls(self, several: list[list[_Put]]) -> list[Exception | None]:
        """Make the puts of calls as one write; if one of them is refused, each call's by themselves."""
        if not several:
            return []
        puts = list({(put.namespace, put.key): put for each in several for put in each}.values())
        try:
            await self._adapter_store.write(partial(self._write, puts), [put.value for put in puts], surely=True)
        except Exception as error:  # noqa: BLE001 - it is the answer of the calls
            if len(several) == 1 or not isinstance(error, Invalid | Conflict):
                return [error] * len(several)
        else:
            return [None] * len(several)
        return [(await self._write_calls([each]))[0] for each in several]

    # -- history ------------------------------------------------------------------------------------------

    @property
    def store(self) -> aio.Store:
        """The store, with its asynchronous interface."""
        return self._adapter_store.aio

    def thread(self, namespace: tuple[str, ...]) -> Thread[Any]:
        """Return a handle of the thread of a namespace: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        check_namespace(GetOp(namespace, ""))
        return self._threads(store_items.thread_id(namespace))

    def history(self, namespace: tuple[str, ...], key: str, *, limit: int | None = None) -> list[ItemVersion]:
        """Return the versions of an item, newest first. A deletion is a version, too."""
        if limit is not None:
            check_count(limit, "limit")
        versions: list[ItemVersion] = []
        for checkpoint in self.thread(namespace).history(newest_first=True):
            if limit is not None and len(versions) >= limit:
                break
            if check_id(key, "an item's key") in checkpoint.metadata.get(_KEYS, ()):
                data = checkpoint.get((_ITEMS, key))
                value = None if data is None else data["value"]
                versions.append(ItemVersion(checkpoint.id, value, checkpoint.created_at))
        return versions

    async def ahistory(self, namespace: tuple[str, ...], key: str, *, limit: int | None = None) -> list[ItemVersion]:
        """Return the versions of an item as `history` does."""
        return await self._adapter_store.read(partial(self.history, namespace, key, limit=limit))

    def undo(self, namespace: tuple[str, ...], key: str) -> Item | None:
        """Take the last put or deletion of an item back, and return the item, or None if there was none before.

        A second call takes the one before it back. Other items of the namespace do not change. `NotFound` if there is
        nothing to take back.
        """
        thread = self.thread(namespace)
        for attempt in range(_TRIES):
            head = thread.latest()
            version, before = self._previous(thread, key)
            if head is None or version is None:
                raise NotFound(f"item {key!r} of {namespace!r} has nothing to undo", code="not_found.item")
            data = None if not before else thread.load(before).get((_ITEMS, key))
            if data is not None and "ttl" in data:
                data["expires"] = now() + dt.timedelta(minutes=data["ttl"])
            metadata = {_KEYS: [key], _RESTORES: before}
            try:
                if data is not None:
                    thread.set((_ITEMS, key), data, metadata=metadata, expect=head)
                elif head.get((_ITEMS, key)) is not None:
                    thread.delete_at((_ITEMS, key), metadata=metadata, expect=head)
                else:
                    thread.save(head.state, metadata=metadata, expect=head)
            except Conflict:
                if attempt == _TRIES - 1:
                    raise
            else:
                return None if data is None else _item(StoredItem(namespace, key, data))
        raise AssertionError

    async def aundo(self, namespace: tuple[str, ...], key: str) -> Item | None:
        """Take the last put or deletion of an item back as `undo` does."""
        return await self._adapter_store.write(partial(self.undo, namespace, key), [], surely=True)

    def _previous(self, thread: Thread[Any], key: str) -> tuple[str | None, str]:
        """Return the ids of the checkpoints of an item's current version and of the one before it."""
        before: dict[str, str] = {}
        current = _NOTHING
        for checkpoint in thread.history():
            if key not in checkpoint.metadata.get(_KEYS, ()):
                continue
            if _RESTORES in checkpoint.metadata:
                current = checkpoint.metadata[_RESTORES]
            else:
                before[checkpoint.id] = current
                current = checkpoint.id
        return (current, before.get(current, _NOTHING)) if current else (None, _NOTHING)

    # -- expiry -------------------------------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Delete the items whose time is over, and return their number."""
        return self._sweep_all()

    def _sweep_all(self) -> int:
        count = 0
        for namespace in self._namespaces(()):
            if namespace.may_expire:
                count += self._sweep(namespace)
        return count

    async def asweep_ttl(self) -> int:
        """Delete the items whose time is over, and return their number."""
        return await self._adapter_store.read(self._sweep_all)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> concurrent.futures.Future[None]:
        """Delete expired items now and then, in a thread; cancelling the returned future ends it."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        if not self.ttl_config or (self._sweeper is not None and self._sweeper.is_alive()):
            future.set_result(None)
            return future
        minutes = float(sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or _SWEEP_MINUTES)
        self._stop = stop = threading.Event()

        def sweep() -> None:
            while not stop.wait(minutes * 60):
                try:
                    self._sweep_all()
                except Exception:  # noqa: BLE001 - a sweep that failed is tried again
                    _log.exception("deleting expired items failed; it is tried again")
            if not future.cancelled():
                future.set_result(None)

        future.add_done_callback(lambda done: stop.set() if done.cancelled() else None)
        self._sweeper = threading.Thread(target=sweep, daemon=True, name="backtrail-store-sweeper")
        self._sweeper.start()
        return future

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """End the thread of `start_ttl_sweeper`, and tell whether it has ended."""
        return self._end_sweeper(timeout)

    def _end_sweeper(self, timeout: float | None = None) -> bool:
        self._stop.set()
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is None:
            return True
        sweeper.join(timeout)
        return not sweeper.is_alive()

    def close(self) -> None:
        """End the sweeper, and close the store if it was opened from a URL. A second call does nothing."""
        self._end_sweeper()
        self._adapter_store.close()

    async def aclose(self) -> None:
        """End the sweeper, wait for calls in progress, and close the store if it was opened from a URL."""
        await self._adapter_store.read(self._end_sweeper)
        await self._adapter_store.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- reading ------------------------------------------------------------------------------------------

    def _read(self, ops: list[Op], asked: dict[str, list[float]], read: list[StoredItem]) -> list[Result]:
        """Return the results of operations. `read` gets the items whose expiry they put off."""
        return [self._result(op, asked, read) for op in ops]

    def _result(self, op: Op, asked: dict[str, list[float]], read: list[StoredItem]) -> Result:
        if isinstance(op, GetOp):
            return self._get(op, read)
        if isinstance(op, SearchOp):
            return self._search(op, asked, read)
        return self._list(op) if isinstance(op, ListNamespacesOp) else None

    def _get(self, op: GetOp, read: list[StoredItem]) -> Item | None:
        head = _head(self.thread(op.namespace))
        data = None if head is None else head.get((_ITEMS, op.key), None)
        if data is None:
            return None
        stored = StoredItem(op.namespace, op.key, data)
        if self._alive([stored]):
            if op.refresh_ttl:
                read.append(stored)
            return _item(stored, copy=False)
        return None

    def _search(self, op: SearchOp, asked: dict[str, list[float]], read: list[StoredItem]) -> list[SearchItem]:
        test = store_items.filter_test(op.filter)
        is_ranked = bool(op.query) and op.query in asked
        enough = None if is_ranked else op.offset + op.limit
        found: list[StoredItem] = []
        for namespace in self._namespaces(op.namespace_prefix):
            latest = self._alive(namespace.latest) if namespace.may_expire else namespace.latest
            found += islice((each for each in latest if test(each.data["value"])), enough)
        found.sort(key=lambda each: each.updated_at, reverse=True)
        scores = _scores(asked[op.query], found) if is_ranked and op.query else {}
        order: Sequence[int] = range(len(found))
        if scores:
            order = sorted(order, key=lambda at: _rank(scores.get(at)))
        chosen = order[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            read += [found[at] for at in chosen]
        return [_search_item(found[at], scores.get(at)) for at in chosen]

    def _list(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        prefix: list[str] = []
        for label in next((each.path for each in conditions if each.match_type == "prefix"), ()):
            if label == "*":
                break
            prefix.append(label)
        found = set()
        for namespace in self._namespaces(prefix):
            labels = namespace.labels
            alive = self._alive(namespace.latest) if namespace.may_expire else namespace.latest
            if alive and all(store_items.matches_path(labels, each.path, each.match_type) for each in conditions):
                found.add(labels if op.max_depth is None else labels[: op.max_depth])
        return sorted(found)[op.offset : op.offset + op.limit]

    def _namespaces(self, prefix: Sequence[str]) -> Iterator[_Namespace]:
        """Give the namespaces that begin with these labels, those that changed last first."""
        for id_prefix in store_items.id_prefixes(prefix):
            for record, newest in self._listed(id_prefix):
                namespace = self._namespace(record, newest)
                if namespace is not None and namespace.labels[: len(prefix)] == tuple(prefix):
                    yield namespace

    def _listed(self, id_prefix: str) -> Iterator[tuple[ThreadRecord, Row]]:
        """Give the threads with a prefix, each with its newest row: `threads` without the counts."""
        after: tuple[int, int] | None = None
        while True:
            backend = self._adapter_store.sync._engine.session.reader.backend  # noqa: SLF001 - a part of Store.threads
            page = backend.threads(space=THREAD, agent=None, prefix=id_prefix, after=after, limit=_PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            after = (page[-1][1].created_at, page[-1][0].no)

    def _namespace(self, record: ThreadRecord, newest: Row) -> _Namespace | None:
        """Return the items of a thread with this newest row; None if it was deleted meanwhile."""
        thread_id, head_id = record.name, checkpoint_id(record.uid, newest.head)
        # a transaction's ids are used again if it is dropped
        is_final = self._adapter_store.sync._engine.session.overlay is None  # noqa: SLF001 - not known to the API
        with self._lock:
            cached = self._cache.get(thread_id) if is_final else None
            if cached is not None and cached.head_id == head_id:
                self._cache.move_to_end(thread_id)
                return cached
        head = _head(self._threads(thread_id), newest)
        if head is None:
            return None
        namespace = None if cached is None else cached.after(head)
        if namespace is None:
            state = head.state
            if not isinstance(state, dict) or not isinstance(state.get(_ITEMS), dict):
                raise Corrupt(f"thread {thread_id!r} is not a namespace of LangGraph's store", code="corrupt.state")
            labels = tuple(state[_NAMESPACE])
            items = [StoredItem(labels, key, data) for key, data in state[_ITEMS].items()]
            namespace = _Namespace(head, labels, items)
        with self._lock:
            if is_final:
                self._cache[thread_id] = namespace
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return namespace

    # -- writing ------------------------------------------------------------------------------------------

    def _puts(self, ops: list[Op], vectors: dict[str, list[float]]) -> list[_Put]:
        puts: dict[tuple[tuple[str, ...], str], _Put] = {}
        for op in ops:
            if isinstance(op, PutOp):
                value = None if op.value is None else plain_data(dict(op.value))
                texts = [] if value is None else self._texts_of(op)
                packed = [store_items.packed(vectors[text]) for text in texts]
                puts[op.namespace, op.key] = _Put(tuple(op.namespace), op.key, value, op.ttl, packed)
        return list(puts.values())

    def _texts(self, ops: list[Op]) -> list[str]:
        """Return the texts that puts need embedded, each once."""
        return list(dict.fromkeys(text for op in ops if isinstance(op, PutOp) for text in self._texts_of(op)))

    def _texts_of(self, op: PutOp) -> list[str]:
        if self.embeddings is None or op.value is None or op.index is False:
            return []
        fields = self._fields if op.index is None else [(path, _tokens(path)) for path in op.index]
        return [text for _, field in fields for text in get_text_at_path(dict(op.value), field)]

    def _write(self, puts: list[_Put]) -> None:
        """Make puts, all or nothing: several checkpoints if they are in several namespaces."""
        edits = list(_edits(puts))
        if len(edits) <= 1:
            for edit in edits:
                self._edit(edit)
            return
        for attempt in range(_TRIES):
            try:
                with self._adapter_store.sync.transaction():
                    for edit in edits:
                        self._edit(edit)
            except Conflict as error:  # another process wrote to one of them
                if error.code == "conflict.exists" or attempt == _TRIES - 1:
                    raise
            else:
                return

    def _edit(self, edit: _NamespaceEdit) -> None:
        thread = self.thread(edit.namespace)
        if edit.deletes_only and thread.latest() is None:
            return
        thread.edit(edit, metadata={_KEYS: edit.keys})

    # -- expiry -------------------------------------------------------------------------------------------

    def _refresh_thread(self, namespace: tuple[str, ...]) -> Thread[Any]:
        return self._refreshes(store_items.thread_id(namespace))

    def _alive(self, items: list[StoredItem]) -> list[StoredItem]:
        """Return the items without those whose time is over, if the settings say that reads leave them out."""
        if not (self.ttl_config or {}).get("omit_expired") or not any("expires" in each.data for each in items):
            return items
        present, times = now(), self._expiries(items)
        return [each for each, expires in zip(items, times, strict=True) if expires is None or expires >= present]

    def _expiries(self, items: list[StoredItem]) -> list[dt.datetime | None]:
        """Return the times at which items expire."""
        refreshed: dict[tuple[str, ...], dict[str, Any]] = {}
        for namespace in {each.namespace for each in items if "expires" in each.data}:
            head = self._refresh_thread(namespace).latest()
            refreshed[namespace] = {} if head is None else head.get(_REFRESHED, {})
        return [_expiry(each, refreshed.get(each.namespace, {})) for each in items]

    def _refresh(self, items: list[StoredItem]) -> None:
        """Put the expiry of items off that were read."""
        present = now()
        expiring = [each for each in items if "expires" in each.data and _is_old(each, each.data["expires"], present)]
        later: dict[tuple[str, ...], dict[str, Any]] = {}
        for each, expires in zip(expiring, self._expiries(expiring), strict=True):
            lifetime = dt.timedelta(minutes=each.data["ttl"])
            if expires is not None and _is_old(each, expires, present):
                later.setdefault(each.namespace, {})[each.key] = [each.updated_at, present + lifetime]
        for namespace, times in later.items():
            self._refresh_thread(namespace).edit(partial(_note, times))

    def _sweep(self, namespace: _Namespace) -> int:
        """Delete the expired items of a namespace."""
        present = now()
        times = zip(namespace.latest, self._expiries(namespace.latest), strict=True)
        expired = [each for each, expires in times if expires is not None and expires < present]
        for edit in _edits([_Put(namespace.labels, each.key, None, None, []) for each in expired]):
            edit.only = {each.key: each.updated_at for each in expired}  # not if it was put again meanwhile
            self._edit(edit)
        refreshed = self._refresh_thread(namespace.labels)
        if expired and refreshed.latest() is not None:
            refreshed.edit(partial(_forget, [each.key for each in expired]))
            refreshed.prune(keep_last=1)
        return len(expired)


class _NamespaceEdit:
    """An edit that makes puts in one namespace."""

    def __init__(self, puts: list[_Put]) -> None:
        self._puts = puts
        self.namespace = puts[0].namespace
        self.keys = [put.key for put in puts]
        self.deletes_only = all(put.value is None for put in puts)
        self.only: dict[str, dt.datetime] | None = None
        """The items to delete, each with the time of its last put; None for all."""

    def __call__(self, editor: Editor) -> None:
        if editor.exists and editor.get(_NAMESPACE) != list(self.namespace):
            text = (
                f"thread {store_items.thread_id(self.namespace)!r} exists and is not a namespace of LangGraph's store"
            )
            raise Conflict(text, code="conflict.exists")
        present = now()
        changed: dict[str, Any] = {}
        for put in self._puts:
            path = (_ITEMS, put.key)
            before = editor.get(path) if editor.exists else None
            if put.value is None:
                if before is not None and (self.only is None or self.only[put.key] == before["updated_at"]):
                    editor.delete_at(path)
                continue
            created = present if before is None else before["created_at"]
            data: dict[str, Any] = {"value": put.value, "created_at": created, "updated_at": present}
            if put.ttl is not None:
                data |= {"ttl": put.ttl, "expires": present + dt.timedelta(minutes=put.ttl)}
            if put.vectors:
                data["vectors"] = put.vectors
            changed[put.key] = data
        if editor.exists:
            editor.update(_ITEMS, changed)
        else:
            editor.set((), {_NAMESPACE: list(self.namespace), _ITEMS: changed})


def _edits(puts: list[_Put]) -> Iterator[_NamespaceEdit]:
    """Give the edits for puts: one for each namespace, or several if it has many keys."""
    groups: dict[tuple[str, ...], list[_Put]] = {}
    for put in puts:
        groups.setdefault(put.namespace, []).append(put)
    for group in groups.values():
        part: list[_Put] = []
        size = 0
        for put in group:
            length = len(put.key.encode("utf-8", "surrogatepass")) + 4
            if part and size + length > _KEYS_MAX:
                yield _NamespaceEdit(part)
                part, size = [], 0
            part.append(put)
            size += length
        yield _NamespaceEdit(part)


def _name(op: Op) -> Any:
    """Return a key under which equal reads are found; None if there is none, such as for a filter."""
    try:
        hash(op)
    except TypeError:
        return None
    return type(op), op


def _answer(places: list[int | None], found: list[Result | Exception], used: set[int]) -> list[Result] | Exception:
    """Return the results of one call. A value that another call has got is copied: two callers never share a value."""
    results: list[Result] = []
    for place in places:
        result = None if place is None else found[place]
        if isinstance(result, Exception):
            return result
        results.append(deepcopy(result) if place in used else result)
        if place is not None:
            used.add(place)
    return results


def _checked(ops: Iterable[Op]) -> list[Op]:
    """Return operations, or raise the framework's or our own error before any of them is done."""
    listed = list(ops)
    for op in listed:
        if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):
            raise Invalid(f"unknown operation: {type(op).__name__}", code="invalid.argument")
        check_namespace(op)
        if isinstance(op, GetOp | PutOp):
            check_id(op.key, "an item's key")
        if isinstance(op, PutOp):
            if not op.namespace:
                raise Invalid("an item needs a namespace", code="invalid.argument", path="namespace")
            if op.value is not None and not hasattr(op.value, "keys"):
                raise Invalid("an item's value is a dict", code="invalid.value", path="value")
        if isinstance(op, SearchOp):
            store_items.check_filter(op.filter)
        if isinstance(op, SearchOp | ListNamespacesOp):
            check_count(op.limit, "limit")
            check_count(op.offset, "offset")
    return listed


def _head(thread: Thread[Any], newest: Row | None = None) -> Checkpoint[Any] | None:
    """Return the head of a thread: `latest` without reading the tags, nor its newest row if that was just read."""
    tip = thread._tip(newest)  # noqa: SLF001 - a part of Thread.latest
    return None if tip is None or tip.head is None else thread._checkpoint(tip, tip.head, tags=())  # noqa: SLF001


def _queries(ops: list[Op]) -> list[str]:
    return list(dict.fromkeys(op.query for op in ops if isinstance(op, SearchOp) and op.query))


def _scores(query: list[float], items: list[StoredItem]) -> dict[int, float]:
    """Return the scores of items by their position: of the vector that is nearest to the query."""
    places = [at for at, each in enumerate(items) for _ in each.data.get("vectors", ())]
    vectors = [vector for each in items for vector in each.data.get("vectors", ())]
    scores: dict[int, float] = {}
    for at, score in zip(places, store_items.cosines(query, vectors) if vectors else (), strict=True):
        scores[at] = max(score, scores.get(at, score))
    return scores


def _tokens(path: str) -> Any:
    return path if path == "$" else tokenize_path(path)


def _rank(score: float | None) -> tuple[bool, float]:
    """Sort the best score first, and items without a score last."""
    return (score is None, 0.0 if score is None else -score)


def _item(stored: StoredItem, *, copy: bool = True) -> Item:
    value = deepcopy(stored.data["value"]) if copy else stored.data["value"]
    return Item(
        value=value,
        key=stored.key,
        namespace=stored.namespace,
        created_at=stored.data["created_at"],
        updated_at=stored.updated_at,
    )


def _search_item(stored: StoredItem, score: float | None) -> SearchItem:
    return SearchItem(
        stored.namespace,
        stored.key,
        deepcopy(stored.data["value"]),  # the cached one must not change
        stored.data["created_at"],
        stored.updated_at,
        score,
    )


def _expiry(stored: StoredItem, refreshed: dict[str, Any]) -> dt.datetime | None:
    """Return the time at which an item expires. A refresh counts for the put that it was made for."""
    expires: dt.datetime | None = stored.data.get("expires")
    put_at, later = refreshed.get(stored.key, (None, None))
    return later if expires is not None and put_at == stored.updated_at else expires


def _is_old(stored: StoredItem, expires: dt.datetime, present: dt.datetime) -> bool:
    """Tell whether putting the expiry off is worth a write."""
    lifetime = dt.timedelta(minutes=stored.data["ttl"])
    return present + lifetime - expires > lifetime / _OFTEN


def _note(times: dict[str, Any], editor: Editor) -> None:
    if not editor.exists:
        editor.set((), {_REFRESHED: {}})
    editor.update(_REFRESHED, times)


def _forget(keys: list[str], editor: Editor) -> None:
    for key in keys:
        if editor.get((_REFRESHED, key)) is not None:
            editor.delete_at((_REFRESHED, key))
