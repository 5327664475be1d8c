"""Sessions of the Claude Agent SDK in a store: `ClaudeAgentOptions(session_store=BacktrailSessionStore(url))`.

A session is a conversation of the agent that its project is; so is each of its subagents. An entry is a message: itself
as it came (`raw`), and what it says, for search. The state of the conversation also holds, under `@claude`, which uuids
there are and where, so that an append looks for those that it brings and no others. That index goes back with a rewind
and along with a fork. It is never trusted alone: a uuid that it names is looked at where it is to be, and if it is not
there, or the index is gone, it is made anew from the messages. The SDK's summary of a session is in the metadata of
the conversation, and made anew in the same way.

Appends to one session are made one after the other, in the order in which they were called: a short one does not
overtake a long one that is still being read.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakValueDictionary

from claude_agent_sdk import SessionStore, fold_session_summary

from backtrail.adapters.claude.entries import FORMAT, Entry, Key, last_part, owner_of, sessions_below
from backtrail.adapters.opening import Opened, Source
from backtrail.entities import TITLE_MAX, Conversation, to_data
from backtrail.errors import Conflict, Corrupt, Invalid

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

_KEPT: Final = "@claude"
_UUIDS: Final = (_KEPT, "uuids")
_RANK: Final = (_KEPT, "title")
_MESSAGES: Final = "messages"
_SUMMARY: Final = "summary"
_TRIES: Final = 10
_FEW: Final = 16
"""Entries that are read in no time."""
_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class BacktrailSessionStore(SessionStore):
    """A `SessionStore` with all its optional methods, on a store or its URL; docs/claude.md is the guide."""

    def __init__(self, source: Source) -> None:
        self._opened = Opened(source)
        self._turns: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = WeakValueDictionary()
        """Whose turn it is to append to a session; a lock is there as long as somebody holds it or waits for it."""

    # -- what the SDK calls -------------------------------------------------------------------------

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries behind what is there, all or none; those whose uuid is there already are left out."""
        where = Key.read(key)
        if not isinstance(entries, list | tuple):
            raise Invalid(f"entries are a list, not {type(entries).__name__}", code="invalid.argument")
        adding = _Adding(where, entries)
        async with self._turns.setdefault((asyncio.get_running_loop(), where.id), asyncio.Lock()):
            if len(entries) > _FEW:
                await asyncio.to_thread(adding.read)  # the event loop goes on meanwhile
            if entries:
                await self.thread(key).edit(adding)
            else:
                await self.thread(key).latest()  # nothing to add to a store that is closed is an error, too

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript as they came, oldest first; None if there is none."""
        head = await self.thread(key).latest()
        if head is None:
            return None
        return [entry.raw for _, entry in _entries(await head.get(_MESSAGES))]  # type: ignore[misc]

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, and when each was last written to, in milliseconds since 1970."""
        listed = await self._sessions(project_key)
        return [{"session_id": session, "mtime": _mtime(info)} for session, info in listed]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the SDK's summaries of the sessions of a project, without reading their entries."""
        found: list[SessionSummaryEntry] = []
        for session, info in await self._sessions(project_key):
            data = _summary(info.metadata.get(_SUMMARY))
            if data is not None:
                found.append({"session_id": session, "mtime": _mtime(info), "data": data})
        return found

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its subagents, or, if the key has a subpath, that subagent: all or nothing."""
        where = Key.read(key)
        conversations = self.store.conversations
        for attempt in range(_TRIES):
            try:
                async with self.store.transaction():
                    await conversations.delete(where.id)
                    below = [] if where.subpath else await conversations.list(where.owner, prefix=where.below)
                    for info in below:
                        await conversations.delete(info.id)
            except Conflict:  # somebody wrote to one of them meanwhile
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's subagents."""
        where = Key.read(key, sub=False)
        listed = await self.store.conversations.list(where.owner, prefix=where.below)
        found = (last_part(info, "subpath") for info in listed)
        return [subpath for subpath in found if subpath is not None]

    # -- what users call ----------------------------------------------------------------------------

    @property
    def store(self) -> aio.Store:
        """The store: `await sessions.store.search("ferry")`."""
        return self._opened.aio

    @staticmethod
    def conversation_id(key: SessionKey) -> str:
        """Return the id of the conversation that a session, or one of its subagents, is."""
        return Key.read(key).id

    def thread(self, key: SessionKey) -> aio.Thread[Any]:
        """Return a handle of a session's thread: `history`, `diff`, `rewind`, `undo`, `fork` ..."""
        where = Key.read(key)
        return self.store.conversations.thread(where.id, agent_id=where.owner)

    async def close(self) -> None:
        """Close the store if it was opened here, when all that was begun is done; twice is allowed."""
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _sessions(self, project_key: str) -> list[tuple[str, ConversationInfo]]:
        Key.read({"project_key": project_key, "session_id": "any"})
        prefix = sessions_below(project_key)
        listed = await self.store.conversations.list(owner_of(project_key), prefix=prefix)
        found = ((last_part(info, "session_id"), info) for info in listed)
        return [(session, info) for session, info in found if session is not None]


def _mtime(info: ConversationInfo) -> int:
    return 0 if info.updated_at is None else (info.updated_at - _EPOCH) // _MILLISECOND


def _summary(text: Any) -> dict[str, Any] | None:
    """Return what the SDK knows of a session, from the metadata; None if it is not there."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _entries(messages: Any) -> list[tuple[int, Entry]]:
    """Return the entries among the messages of a conversation, with their places; others may have added some."""
    found = []
    for at, message in enumerate(messages if isinstance(messages, list) else [None]):
        if not isinstance(message, dict):
            raise Corrupt(f"message {at} of a session is not what it should be", code="corrupt.state")
        if message.get("raw_format") == FORMAT:
            if type(message.get("raw")) is not dict:
                raise Corrupt(f"message {at} of a session holds no entry", code="corrupt.state")
            found.append((at, Entry.kept(message["raw"])))
    return found


# -- appending --------------------------------------------------------------------------------------


class _Adding:
    """Adds entries to a transcript. Called again, it decides again which of them are new."""

    def __init__(self, key: Key, entries: list[Any] | tuple[Any, ...]) -> None:
        self._key = key
        self._given = entries
        self._batch: list[tuple[Entry, dict[str, Any]]] = []

    def read(self) -> list[tuple[Entry, dict[str, Any]]]:
        """Return the entries as messages; `Invalid` if one is none."""
        if not self._batch:
            entries = [Entry.read(entry, f"entries[{at}]") for at, entry in enumerate(self._given)]
            self._batch = [(entry, entry.message()) for entry in entries]
        return self._batch

    def __call__(self, editor: Editor) -> None:
        batch = self.read()
        if not editor.exists:
            value = Conversation(self._key.owner, id=self._key.id, metadata=self._key.metadata)
            editor.set((), {**to_data(value), _KEPT: {"uuids": {}, "title": 0}})
        elif editor.get(_RANK) is None:
            self._index(editor)
        start = editor.count(_MESSAGES)
        new: list[tuple[Entry, dict[str, Any]]] = []
        places: dict[str, int] = {}
        for entry, message in batch:
            if entry.uuid is not None:
                if entry.uuid in places or self._has(editor, entry.uuid):
                    continue
                places[entry.uuid] = start + len(new)
            new.append((entry, message))
        if not new:
            return
        entries = [entry for entry, _ in new]
        if self._key.subpath is None:
            self._fold(editor, entries)
        self._describe(editor, entries)
        editor.append(_MESSAGES, *(message for _, message in new))
        editor.update(_UUIDS, places)

    def _has(self, editor: Editor, uuid: str) -> bool:
        place = editor.get((*_UUIDS, uuid))
        if place is None:
            return False
        if editor.get((_MESSAGES, place, "raw", "uuid")) == uuid:
            return True
        self._index(editor)  # messages were taken out, or put in between
        return editor.get((*_UUIDS, uuid)) is not None

    def _index(self, editor: Editor) -> None:
        """Make the index anew from the messages."""
        entries = _entries(editor.get(_MESSAGES))
        titles = [entry.title() for _, entry in entries]
        uuids = {entry.uuid: at for at, entry in reversed(entries) if entry.uuid is not None}
        editor.set((_KEPT,), {"uuids": uuids, "title": max((each[0] for each in titles if each), default=0)})

    def _fold(self, editor: Editor, entries: list[Entry]) -> None:
        """Bring the SDK's summary up to date."""
        kept = editor.get(("metadata", _SUMMARY))
        data = _summary(kept)
        if data is None:
            entries = [entry for _, entry in _entries(editor.get(_MESSAGES))] + entries
        key: Any = self._key.metadata
        before: Any = None if data is None else {"session_id": self._key.session_id, "mtime": 0, "data": data}
        folded = fold_session_summary(before, key, [entry.raw for entry in entries])  # type: ignore[misc]
        text = json.dumps(folded["data"])
        if text != kept:
            editor.set(("metadata", _SUMMARY), text)

    def _describe(self, editor: Editor, entries: list[Entry]) -> None:
        """Give the conversation its title and its tags, if an entry says so."""
        rank = before = editor.get(_RANK)
        title: str | None = None
        for entry in entries:
            found = entry.title()
            if found is not None and (found[0] > rank or found[0] == rank > 1):
                rank, title = found
            tags = entry.tags()
            if tags is not None:
                editor.set("tags", tags)
        if title is not None:
            editor.set("title", title if len(title) <= TITLE_MAX else title[: TITLE_MAX - 3] + "...")
        if rank != before:
            editor.set(_RANK, rank)
