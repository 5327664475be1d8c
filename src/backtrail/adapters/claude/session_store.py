"""Sessions of the Claude Agent SDK in a store: `ClaudeAgentOptions(session_store=BacktrailSessionStore(url))`.

The agent of a project owns a conversation for each session and each subagent. Each entry is a message: the entry
unchanged (`raw`), and fields for search. The conversation's state also has an index of uuids under `@claude`, so that
an append checks only the uuids that it brings. A rewind and a fork take the index along. An append checks each hit
against the message at that position. If they differ, or the index is missing, it rebuilds the index from the messages.
The SDK's summary of a session is in the conversation's metadata, and is rebuilt in the same way.

Appends to one session run in the order in which they were called: a short append does not overtake a long one.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakValueDictionary

from claude_agent_sdk import SessionStore, fold_session_summary

from backtrail.adapters.adapter_store import AdapterStore, StoreSource
from backtrail.adapters.claude.entries import (
    FORMAT,
    TranscriptEntry,
    TranscriptKey,
    last_part,
    owner_of,
    session_prefix,
)
from backtrail.conversations.models import TITLE_MAX, Conversation
from backtrail.errors import Conflict, Corrupt, Invalid
from backtrail.validation import now, to_data

if TYPE_CHECKING:
    from types import TracebackType

    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

    from backtrail import Editor, aio
    from backtrail.models import ConversationInfo

_INDEX: Final = "@claude"
_UUIDS: Final = (_INDEX, "uuids")
_RANK: Final = (_INDEX, "title")
_MESSAGES: Final = "messages"
_SUMMARY: Final = "summary"
_TRIES: Final = 10
_FEW: Final = 16
"""Up to this many entries are converted in the event loop, more in a worker thread."""
_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class BacktrailSessionStore(SessionStore):
    """A `SessionStore` with all its optional methods, on a store or its URL; docs/claude.md is the guide."""

    def __init__(self, source: StoreSource) -> None:
        self._adapter_store = AdapterStore(source)
        self._locks: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = WeakValueDictionary()
        """Orders the appends to a session. A lock exists as long as a task holds it or waits for it."""

    # -- the SDK's protocol -------------------------------------------------------------------------

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries to the end, all or none, without those whose uuid the transcript has already."""
        place = TranscriptKey.read(key)
        if not isinstance(entries, list | tuple):
            raise Invalid(f"entries must be a list, not {type(entries).__name__}", code="invalid.argument")
        append = EntryAppend(place, entries)
        async with self._locks.setdefault((asyncio.get_running_loop(), place.id), asyncio.Lock()):
            if len(entries) > _FEW:
                await asyncio.to_thread(append.read)
            if entries:
                await self.thread(key).edit(append)
            else:
                await self.thread(key).latest()  # on a closed store, adding nothing is an error, too

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript unchanged, oldest first; None if there is no transcript."""
        head = await self.thread(key).latest()
        if head is None:
            return None
        return [entry.raw for _, entry in _entries(await head.get(_MESSAGES))]  # type: ignore[misc]

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, each with the time of its last write in milliseconds since 1970."""
        listed = await self._sessions(project_key)
        return [{"session_id": session, "mtime": _mtime(info)} for session, info in listed]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the SDK's summaries of the sessions of a project, without reading their entries."""
        summaries: list[SessionSummaryEntry] = []
        for session, info in await self._sessions(project_key):
            data = _summary(info.metadata.get(_SUMMARY))
            if data is not None:
                summaries.append({"session_id": session, "mtime": _mtime(info), "data": data})
        return summaries

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its subagents, or the subagent of a key with a subpath: all or nothing."""
        place = TranscriptKey.read(key)
        conversations = self.store.conversations
        for attempt in range(_TRIES):
            try:
                async with self.store.transaction():
                    await conversations.delete(place.id)
                    below = [] if place.subpath else await conversations.list(place.owner, prefix=place.subagent_prefix)
                    for info in below:
                        await conversations.delete(info.id)
            except Conflict:  # another task wrote to one of them
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's subagents."""
        place = TranscriptKey.read(key, sub=False)
        listed = await self.store.conversations.list(place.owner, prefix=place.subagent_prefix)
        subpaths = (last_part(info, "subpath") for info in listed)
        return [subpath for subpath in subpaths if subpath is not None]

    # -- the user's API -----------------------------------------------------------------------------

    @property
    def store(self) -> aio.Store:
        """The store: `await sessions.store.search("ferry")`."""
        return self._adapter_store.aio

    @staticmethod
    def conversation_id(key: SessionKey) -> str:
        """Return the id of the conversation of a session or subagent."""
        return TranscriptKey.read(key).id

    def thread(self, key: SessionKey) -> aio.Thread[Any]:
        """Return a handle of the conversation's thread: `history`, `diff`, `rewind`, `undo`, `fork` ..."""
        place = TranscriptKey.read(key)
        return self.store.conversations.thread(place.id, agent_id=place.owner)

    async def close(self) -> None:
        """Wait for calls in progress, then close the store if it was opened from a URL. A second call does nothing."""
        await self._adapter_store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _sessions(self, project_key: str) -> list[tuple[str, ConversationInfo]]:
        TranscriptKey.read({"project_key": project_key, "session_id": "any"})
        prefix = session_prefix(project_key)
        listed = await self.store.conversations.list(owner_of(project_key), prefix=prefix)
        sessions = ((last_part(info, "session_id"), info) for info in listed)
        return [(session, info) for session, info in sessions if session is not None]


def _mtime(info: ConversationInfo) -> int:
    return 0 if info.updated_at is None else (info.updated_at - _EPOCH) // _MILLISECOND


def _summary(text: Any) -> dict[str, Any] | None:
    """Return the SDK's summary of a session from its JSON; None if it is missing or not a JSON object."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _entries(messages: Any) -> list[tuple[int, TranscriptEntry]]:
    """Return the entries among the messages of a conversation, with their positions. Other messages are skipped."""
    entries = []
    for at, message in enumerate(messages if isinstance(messages, list) else [None]):
        if not isinstance(message, dict):
            raise Corrupt(f"message {at} of a session is not an object", code="corrupt.state")
        if message.get("raw_format") == FORMAT:
            if type(message.get("raw")) is not dict:
                raise Corrupt(f"message {at} of a session holds no entry", code="corrupt.state")
            entries.append((at, TranscriptEntry.stored(message["raw"])))
    return entries


# -- appending --------------------------------------------------------------------------------------


class EntryAppend:
    """An edit that appends entries to a transcript. Each call decides again which entries are new."""

    def __init__(
        self, key: TranscriptKey, entries: list[Any] | tuple[Any, ...], *, created_at: dt.datetime | None = None
    ) -> None:
        self._key = key
        self._given = entries
        self._created_at = created_at
        self._batch: list[tuple[TranscriptEntry, dict[str, Any]]] = []

    def read(self) -> list[tuple[TranscriptEntry, dict[str, Any]]]:
        """Return the entries with their messages, or raise `Invalid`."""
        if not self._batch:
            entries = [TranscriptEntry.read(entry, f"entries[{at}]") for at, entry in enumerate(self._given)]
            self._batch = [(entry, entry.message()) for entry in entries]
        return self._batch

    def __call__(self, editor: Editor) -> None:
        """Append the entries whose uuid the transcript does not have; create the conversation if it is missing."""
        batch = self.read()
        if not editor.exists:
            created = now() if self._created_at is None else self._created_at
            value = Conversation(self._key.owner, id=self._key.id, metadata=self._key.metadata, created_at=created)
            editor.set((), {**to_data(value), _INDEX: {"uuids": {}, "title": 0}})
        elif editor.get(_RANK) is None:
            self._rebuild_index(editor)
        start = editor.count(_MESSAGES)
        new: list[tuple[TranscriptEntry, dict[str, Any]]] = []
        positions: dict[str, int] = {}
        for entry, message in batch:
            if entry.uuid is not None:
                if entry.uuid in positions or self._has(editor, entry.uuid):
                    continue
                positions[entry.uuid] = start + len(new)
            new.append((entry, message))
        if not new:
            return
        entries = [entry for entry, _ in new]
        if self._key.subpath is None:
            self._fold(editor, entries)
        self._describe(editor, entries)
        editor.append(_MESSAGES, *(message for _, message in new))
        editor.update(_UUIDS, positions)

    def _has(self, editor: Editor, uuid: str) -> bool:
        at = editor.get((*_UUIDS, uuid))
        if at is None:
            return False
        if editor.get((_MESSAGES, at, "raw", "uuid")) == uuid:
            return True
        self._rebuild_index(editor)  # messages were removed or inserted
        return editor.get((*_UUIDS, uuid)) is not None

    def _rebuild_index(self, editor: Editor) -> None:
        """Rebuild the index of uuids from the messages."""
        entries = _entries(editor.get(_MESSAGES))
        titles = [entry.title() for _, entry in entries]
        uuids = {entry.uuid: at for at, entry in reversed(entries) if entry.uuid is not None}
        editor.set((_INDEX,), {"uuids": uuids, "title": max((each[0] for each in titles if each), default=0)})

    def _fold(self, editor: Editor, entries: list[TranscriptEntry]) -> None:
        """Update the SDK's summary with new entries; without a stored summary, with all entries."""
        stored = editor.get(("metadata", _SUMMARY))
        data = _summary(stored)
        if data is None:
            entries = [entry for _, entry in _entries(editor.get(_MESSAGES))] + entries
        key: Any = self._key.metadata
        before: Any = None if data is None else {"session_id": self._key.session_id, "mtime": 0, "data": data}
        folded = fold_session_summary(before, key, [entry.raw for entry in entries])  # type: ignore[misc]
        text = json.dumps(folded["data"])
        if text != stored:
            editor.set(("metadata", _SUMMARY), text)

    def _describe(self, editor: Editor, entries: list[TranscriptEntry]) -> None:
        """Set the conversation's title and tags from new entries. A title never replaces one of a higher rank."""
        rank = before = editor.get(_RANK)
        title: str | None = None
        for entry in entries:
            ranked = entry.title()
            if ranked is not None and (ranked[0] > rank or ranked[0] == rank > 1):
                rank, title = ranked
            tags = entry.tags()
            if tags is not None:
                editor.set("tags", tags)
        if title is not None:
            editor.set("title", title if len(title) <= TITLE_MAX else title[: TITLE_MAX - 3] + "...")
        if rank != before:
            editor.set(_RANK, rank)
