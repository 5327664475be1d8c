"""`BacktrailStore`: LangGraph's long-term memory in a backtrail store.

A namespace is a thread, whose state has the items by their keys. A put is one checkpoint, so each item has a history
and can be taken back. The time at which an item expires is part of the item; a read that puts it off notes that in an
aside thread, so reads leave no trace in the history.

A search looks at all items of the namespaces below its prefix. Their decoded states are kept in memory and used again
while their heads are the same.
"""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import logging
import threading
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast

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
from backtrail.adapters.langgraph.store_items import StoredItem
from backtrail.adapters.plain_values import plain_data
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.validation import check_count, check_id, now

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from backtrail import Editor, Thread, aio
    from backtrail.adapters.adapter_store import StoreSource

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
_SWEEP_MINUTES: Final = 5.0
_OFTEN: Final = 50
"""A read puts the expiry off only if that moves it by more than this part of its time to live."""


@dataclass(frozen=True, slots=True)
class ItemVersion:
    """One version of an item: `value` is None if the item was deleted."""

    checkpoint_id: str
    value: dict[str, Any] | None
    time: dt.datetime


@dataclass(frozen=True, slots=True)
class _Put:
    """A put whose texts are embedded."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any] | None
    ttl: float | None
    vectors: list[bytes]


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
        self._cache: OrderedDict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = OrderedDict()
        """By thread: the id of its head, its namespace and its items."""
        self._lock = threading.Lock()
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
        puts = self._puts(listed, dict(zip(texts, embedded, strict=True)))
        results: list[Result] = [None] * len(listed)
        read: list[StoredItem] = []
        if not all(isinstance(op, PutOp) for op in listed):
            results = await self._adapter_store.read(partial(self._read, listed, asked, read))
        if any("expires" in each.data for each in read):
            await self._adapter_store.write(partial(self._refresh, read), [], surely=True)  # in a group with others
        if puts:
            await self._adapter_store.write(partial(self._write, puts), [put.value for put in puts], surely=True)
        return results

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
        for _, namespace, items in self._namespaces(()):
            if any("expires" in data for data in items.values()):
                count += self._sweep(namespace, items)
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
        head = self.thread(op.namespace).latest()
        data = None if head is None else head.get((_ITEMS, op.key))
        if data is None:
            return None
        stored = StoredItem(op.namespace, op.key, data)
        if self._alive([stored]):
            if op.refresh_ttl:
                read.append(stored)
            return _item(stored, copy=False)
        return None

    def _search(self, op: SearchOp, asked: dict[str, list[float]], read: list[StoredItem]) -> list[SearchItem]:
        found = []
        for _, namespace, items in self._namespaces(op.namespace_prefix):
            stored = (StoredItem(namespace, key, data) for key, data in items.items())
            found += self._alive([each for each in stored if store_items.passes(each.data["value"], op.filter)])
        found.sort(key=lambda each: each.updated_at, reverse=True)
        scores: dict[int, float] = {}
        if op.query and op.query in asked:
            scores = _scores(asked[op.query], found)
        order = sorted(range(len(found)), key=lambda at: _rank(scores.get(at)))
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
        for _, namespace, items in self._namespaces(prefix):
            alive = self._alive([StoredItem(namespace, key, data) for key, data in items.items()])
            if alive and all(store_items.matches_path(namespace, each.path, each.match_type) for each in conditions):
                found.add(namespace if op.max_depth is None else namespace[: op.max_depth])
        return sorted(found)[op.offset : op.offset + op.limit]

    def _namespaces(self, prefix: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
        """Give the thread's id, the namespace and the items of each namespace with a prefix."""
        for id_prefix in store_items.id_prefixes(prefix):
            for info in self._adapter_store.sync.threads(prefix=id_prefix):
                namespace, items = self._items(info.id, info.head_id)
                if namespace[: len(prefix)] == tuple(prefix):
                    yield info.id, namespace, items

    def _items(self, thread_id: str, head_id: str) -> tuple[tuple[str, ...], dict[str, Any]]:
        with self._lock:
            cached = self._cache.get(thread_id)
            if cached is not None and cached[0] == head_id:
                self._cache.move_to_end(thread_id)
                return cached[1:]
        head = self._threads(thread_id).latest()
        if head is None:  # deleted meanwhile
            return (), {}
        state = head.state
        if not isinstance(state, dict) or not isinstance(state.get(_ITEMS), dict):
            raise Corrupt(f"thread {thread_id!r} is not a namespace of LangGraph's store", code="corrupt.state")
        namespace = tuple(state[_NAMESPACE])
        with self._lock:
            self._cache[thread_id] = head.id, namespace, state[_ITEMS]
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return namespace, state[_ITEMS]

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

    def _sweep(self, namespace: tuple[str, ...], items: dict[str, Any]) -> int:
        """Delete the expired items of a namespace."""
        present = now()
        stored = [StoredItem(namespace, key, data) for key, data in items.items()]
        times = zip(stored, self._expiries(stored), strict=True)
        expired = [each for each, expires in times if expires is not None and expires < present]
        for edit in _edits([_Put(namespace, each.key, None, None, []) for each in expired]):
            edit.only = {each.key: each.updated_at for each in expired}  # not if it was put again meanwhile
            self._edit(edit)
        refreshed = self._refresh_thread(namespace)
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
        if not editor.exists:
            editor.set((), {_NAMESPACE: list(self.namespace), _ITEMS: {}})
        elif editor.get(_NAMESPACE) != list(self.namespace):
            text = (
                f"thread {store_items.thread_id(self.namespace)!r} exists and is not a namespace of LangGraph's store"
            )
            raise Conflict(text, code="conflict.exists")
        present = now()
        for put in self._puts:
            path = (_ITEMS, put.key)
            before = editor.get(path)
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
            editor.set(path, data)


def _edits(puts: list[_Put]) -> Iterator[_NamespaceEdit]:
    """Give the edits for puts: one for each namespace, or several if it has many keys."""
    groups: dict[tuple[str, ...], list[_Put]] = {}
    for put in puts:
        groups.setdefault(put.namespace, []).append(put)
    for group in groups.values():
        part: list[_Put] = []
        size = 0
        for put in group:
            size += len(put.key.encode("utf-8", "surrogatepass")) + 4
            if part and size > _KEYS_MAX:
                yield _NamespaceEdit(part)
                part, size = [], len(put.key)
            part.append(put)
        yield _NamespaceEdit(part)


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
