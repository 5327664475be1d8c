"""`BacktrailStorage`: the bytes that Strands keeps under keys, such as the snapshots of agents, in a store.

Each key is a thread, so each has a history. A read returns exactly the bytes that were written. JSON is kept as data
and text as text if the same bytes can be made of them again: then a write costs what changed, and `diff` and search
know the content. The messages of a snapshot are the state's `messages`, where search finds them.
"""

from __future__ import annotations

import copy
import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from strands.storage.search.keyword import KeywordSearchStrategy
from strands.storage.storage import _NAMESPACED, _normalize_key, _normalize_prefix
from strands.types.exceptions import StorageError

from backtrail.adapters.adapter_store import AdapterStore, RecentThreads
from backtrail.adapters.row_writes import save_checkpoint
from backtrail.adapters.thread_ids import id_prefixes, joined, joined_id, split_id
from backtrail.errors import Corrupt, Error, Invalid
from backtrail.validation import check_id

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

    from strands.storage.search.types import SearchStrategy
    from strands.storage.storage import StorageSearchResult

    from backtrail import Thread, aio
    from backtrail.adapters.adapter_store import StoreSource

AGENT: Final = "strands"
"""The agent that owns the keys if none is named."""
_KIND: Final = "strands-storage"
_KEY: Final = "key"
_ENCODING: Final = "encoding"
_DOCUMENT: Final = "document"
_MESSAGES: Final = "messages"
_DATA: Final = "data"
_JSON: Final = {"json": False, "json-ascii": True}
"""The encodings of JSON, with the option of `json.dumps` that each stands for."""
_TEXT: Final = "text"
_BYTES: Final = "bytes"


class BacktrailStorage:
    """A storage of Strands: `SnapshotSessionManager("trip", storage=BacktrailStorage("sqlite:///agents.db"))`.

    `source` is a synchronous or asynchronous store, or a URL: `close` or `aclose` closes the store of a URL. `agent` is
    the agent of the store that owns the keys. `search_strategy` is one of the framework's, as for its own storages.
    """

    def __init__(
        self,
        source: StoreSource,
        *,
        agent: str = AGENT,
        search_strategy: SearchStrategy[Any] | None = None,
    ) -> None:
        self.agent = check_id(agent, "an agent's id")
        self._adapter_store = AdapterStore(source)
        self._threads = RecentThreads(partial(self._adapter_store.sync.thread, agent=self.agent))
        self._search_strategy = search_strategy
        self._prefix = ""

    # -- the framework's interface ----------------------------------------------------------------------

    async def write(self, key: str, data: bytes) -> None:
        """Store data under a key, and replace its old data. The data is durable on return."""
        name, given = self._full(key), bytes(data)
        with _storage_errors():
            await self._adapter_store.write(partial(self._write, name, given), [given], surely=True)
        if self._search_strategy is not None:
            try:
                await self._search_strategy.index(self, _normalize_key(key), data)
            except Exception as error:
                raise StorageError(
                    f"the data of key {key!r} was stored, but search_strategy could not index it: {error}; write the "
                    "data again to index it"
                ) from error

    async def read(self, key: str) -> bytes | None:
        """Return the data of a key, or None."""
        name = self._full(key)
        with _storage_errors():
            return await self._adapter_store.read(partial(self._read, name))

    async def delete(self, key: str) -> None:
        """Delete a key, if it exists."""
        thread = self._thread(self._full(key))
        with _storage_errors():
            await self._adapter_store.write(thread.delete, [], surely=True)

    async def list(self, query: str = "") -> builtins.list[str]:
        """Return the keys that begin with `query`, sorted."""
        prefix = f"{self._prefix}{_normalize_prefix(query)}"
        with _storage_errors():
            keys = await self._adapter_store.read(partial(self._keys, prefix))
        return sorted(key[len(self._prefix) :] for key in keys)

    async def search(self, query: str) -> builtins.list[StorageSearchResult]:
        """Return the keys that match a query, the best first: by `search_strategy`, or by common words."""
        strategy = KeywordSearchStrategy() if self._search_strategy is None else self._search_strategy
        found: builtins.list[StorageSearchResult] = await strategy.search(self, query)
        return found

    def namespace(self, prefix: str) -> Self:
        """Return the same storage for the keys below a prefix."""
        normalized = _normalize_prefix(prefix).rstrip("/")
        scoped = copy.copy(self)
        scoped._prefix = f"{self._prefix}{normalized}/" if normalized else self._prefix  # noqa: SLF001 - our own
        scoped._namespaced = _NAMESPACED  # type: ignore[attr-defined]  # noqa: SLF001 - read by the framework
        return scoped

    # -- the user's API -----------------------------------------------------------------------------------

    @property
    def store(self) -> aio.Store:
        """The store: `await storage.store.search("ferry")`."""
        return self._adapter_store.aio

    def thread(self, key: str) -> aio.Thread[Any]:
        """Return a handle of the thread of a key: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        return self.store.thread(joined_id(_KIND, *self._full(key).split("/")))

    def close(self) -> None:
        """Close the store if it was opened from a URL. A second call does nothing."""
        self._adapter_store.close()

    async def aclose(self) -> None:
        """Wait for calls in progress, then close the store if it was opened from a URL."""
        await self._adapter_store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- parts --------------------------------------------------------------------------------------------

    def _full(self, key: str) -> str:
        if not isinstance(key, str):
            raise StorageError(f"a storage key must be a string, not {type(key).__name__}")
        return f"{self._prefix}{_normalize_key(key)}"

    def _thread(self, key: str) -> Thread[Any]:
        return self._threads(joined_id(_KIND, *key.split("/")))

    def _write(self, key: str, data: bytes) -> None:
        thread = self._thread(key)
        encoded = _encoded(data)
        try:
            save_checkpoint(thread, {_KEY: key, **encoded}, None, None)
        except Invalid:  # such as numbers of JSON that a state cannot hold
            if encoded[_ENCODING] == _BYTES:
                raise
            save_checkpoint(thread, {_KEY: key, _ENCODING: _BYTES, _DATA: data}, None, None)

    def _read(self, key: str) -> bytes | None:
        head = self._thread(key).latest()
        return None if head is None else _decoded(head.state, key)

    def _keys(self, prefix: str) -> builtins.list[str]:
        keys = []
        for id_prefix in id_prefixes(_KIND, joined(*prefix.split("/"))):
            for info in self._adapter_store.sync.threads(prefix=id_prefix):
                parts = split_id(_KIND, info.id)
                if parts is None:
                    head = self._threads(info.id).latest()
                    key = None if head is None else head.get(_KEY)
                else:
                    key = "/".join(parts)
                if key is not None and key.startswith(prefix):
                    keys.append(key)
        return keys


# -- data as states ---------------------------------------------------------------------------------------


def _encoded(data: bytes) -> dict[str, Any]:
    """Return data as JSON or text if the same bytes can be made of it again, else as bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {_ENCODING: _BYTES, _DATA: data}
    if text[:1] in ("{", "["):
        try:
            document = json.loads(text)
            for encoding, ascii_only in _JSON.items():
                if json.dumps(document, ensure_ascii=ascii_only) == text:
                    return {_ENCODING: encoding, **_lifted(document)}
        except (ValueError, RecursionError):
            pass
    return {_ENCODING: _TEXT, _MESSAGES: [text]}


def _lifted(document: Any) -> dict[str, Any]:
    """Return a document, and the messages of a snapshot apart from it."""
    inner: Any = document.get(_DATA) if isinstance(document, dict) else None
    messages = inner.get(_MESSAGES) if isinstance(inner, dict) else None
    if not isinstance(messages, list):
        return {_DOCUMENT: document}
    return {_DOCUMENT: {**document, _DATA: {**inner, _MESSAGES: None}}, _MESSAGES: messages}


def _decoded(state: Any, key: str) -> bytes:
    try:
        encoding = state[_ENCODING]
        if encoding == _BYTES:
            return bytes(state[_DATA])
        if encoding == _TEXT:
            (text,) = state[_MESSAGES]
            return str(text).encode()
        document = state[_DOCUMENT]
        if _MESSAGES in state:
            document[_DATA][_MESSAGES] = state[_MESSAGES]
        return json.dumps(document, ensure_ascii=_JSON[encoding]).encode()
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the data of {key!r} cannot be read: {error}", code="corrupt.state") from error


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Raise the framework's error for an error of the store."""
    try:
        yield
    except Error as error:
        raise StorageError(str(error)) from error
