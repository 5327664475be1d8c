"""`BacktrailConversationStore`: the conversations of Pydantic AI in a store.

Each conversation is a thread. Its list `messages` is the current history; entries of branches that the conversation
left are beside it, under `@pydantic_ai`. A fork has its own copy of the history that it shares: equal data is stored
once. So no conversation needs another one to be read, and deleting one leaves the others whole.

A write compares the stored revision and makes its changes in one edit. The framework asks for entries by their id
alone: the adapter remembers which conversation had an entry, and otherwise looks through the conversations.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

from backtrail.adapters.adapter_store import AdapterStore, RecentThreads
from backtrail.adapters.pydantic_ai.entries import FORMAT, entries_of, message_data, record_of, record_text
from backtrail.adapters.pydantic_ai.step_saver import StepSaver
from backtrail.conversations.models import Conversation, Message
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.validation import check_count, check_id, to_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_ai.conversation import Conversation as FrameworkConversation

    from backtrail import Checkpoint, Editor, Thread, aio
    from backtrail.adapters.adapter_store import StoreSource

AGENT: Final = "pydantic-ai"
"""The agent of conversations that name none."""
RECORD: Final = "pydantic_ai"
"""The key of the record in the metadata of a conversation."""
_RECORD: Final = ("metadata", RECORD)
_OWN: Final = "@pydantic_ai"
_LEFT: Final = (_OWN, "left")
_MESSAGES: Final = "messages"
_REMEMBERED: Final = 10_000
"""Entries whose conversation is remembered."""
_TRIES: Final = 20


class BacktrailConversationStore(ConversationStore):
    """A conversation store of Pydantic AI: `BacktrailConversationStore("sqlite:///agents.db")`.

    `source` is a synchronous or asynchronous store, or a URL: `aclose` closes the store of a URL. `agent` owns the
    conversations. Deleting a conversation deletes its entries, except those that forks of it share.
    """

    def __init__(self, source: StoreSource, *, agent: str = AGENT) -> None:
        self.agent = check_id(agent, "an agent's id")
        self._adapter_store = AdapterStore(source)
        self._conversations = self._adapter_store.sync.conversations
        self._threads = RecentThreads(partial(self._conversations.thread, agent_id=self.agent))
        self._places: OrderedDict[str, str] = OrderedDict()
        """The conversation that had an entry; the ones used last come last."""
        self._lock = threading.Lock()

    # -- the framework's primitives ---------------------------------------------------------------------

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None."""
        thread = self._thread(conversation_id)
        return await self._adapter_store.read(partial(self._stored_record, thread))

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope, newest `updated_at` first; at most `limit`."""
        if limit is not None:
            check_count(limit, "limit")
        records = [
            record for record in await self._adapter_store.read(self._all_records) if scope in (None, record.scope)
        ]
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record with its new entries, all or nothing; `ConversationConflict` if another writer was first."""
        write = _RecordWrite(self.agent, record, new_entries, expected_revision)
        thread = self._thread(record.conversation_id)
        await self._adapter_store.write(partial(self._write, thread, write), write.new, surely=True)
        self._remember(record)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with its entries; `ConversationConflict` if it is not at this revision."""
        thread = self._thread(conversation_id)
        work = partial(self._delete, thread, expected_revision)
        await self._adapter_store.write(work, [], surely=True)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry, or raise `NotFound`, which is a `KeyError`."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id`, oldest first; only the last `limit` of them are read, if possible."""
        if limit is not None:
            check_count(limit, "limit")
        if head_id is None or limit == 0:
            return []
        check_id(head_id, "an entry's id")
        messages = await self._adapter_store.read(partial(self._messages_to, head_id, limit))
        if messages is None:
            raise NotFound(f"there is no entry {head_id!r}", code="not_found.entry")
        return entries_of(messages)

    # -- the user's API -----------------------------------------------------------------------------------

    @property
    def store(self) -> aio.Store:
        """The store: `await conversations.store.search("ferry")`."""
        return self._adapter_store.aio

    def thread(self, conversation_id: str) -> aio.Thread[Any]:
        """Return a handle of the conversation's thread: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        return self.store.conversations.thread(conversation_id)

    def saving_steps(self, conversation: FrameworkConversation, *, scope: str | None = None) -> StepSaver:
        """Return a capability for one run of a conversation, which saves each step of the run when it has finished."""
        return StepSaver(self, conversation, scope=scope)

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

    # -- reading ------------------------------------------------------------------------------------------

    def _thread(self, conversation_id: str) -> Thread[Any]:
        return self._threads(check_id(conversation_id, "a conversation's id"))

    def _stored_record(self, thread: Thread[Any]) -> ConversationRecord | None:
        head = thread.latest()
        text = None if head is None or head.get("agent_id") != self.agent else head.get(_RECORD)
        if text is None:
            return None
        record = record_of(text, thread.id)
        self._remember(record)
        return record

    def _all_records(self) -> list[ConversationRecord]:
        infos = self._conversations.list(self.agent)
        return [record_of(info.metadata[RECORD], info.id) for info in infos if RECORD in info.metadata]

    def _messages_to(self, entry_id: str, limit: int | None) -> list[dict[str, Any]] | None:
        """Return the messages up to an entry, from any conversation that has it; None if there is none."""
        for conversation_id in self._candidates(entry_id):
            head = self._thread(conversation_id).latest()
            messages = None if head is None else _line(head, entry_id, limit)
            if messages is not None:
                self._remember_at(conversation_id, entry_id)
                return messages
        return None

    def _candidates(self, entry_id: str) -> Iterator[str]:
        """Give the conversations that may have an entry, the likeliest first."""
        with self._lock:
            known = self._places.get(entry_id)
        if known is not None:
            yield known
        records = self._all_records()
        named = [record for record in records if entry_id in (record.head_id, *record.branches)]
        for record in sorted(records, key=lambda each: each not in named):
            if record.conversation_id != known:
                yield record.conversation_id

    def _remember(self, record: ConversationRecord) -> None:
        self._remember_at(record.conversation_id, *(each for each in (record.head_id, *record.branches) if each))

    def _remember_at(self, conversation_id: str, *entry_ids: str) -> None:
        with self._lock:
            for entry_id in entry_ids:
                self._places[entry_id] = conversation_id
                self._places.move_to_end(entry_id)
            while len(self._places) > _REMEMBERED:
                self._places.popitem(last=False)

    # -- writing ------------------------------------------------------------------------------------------

    def _write(self, thread: Thread[Any], write: _RecordWrite) -> None:
        while True:
            try:
                thread.edit(write)
            except _EntryElsewhere as missing:
                shared = self._messages_to(missing.entry_id, None)
                if shared is None:  # it was deleted meanwhile
                    raise ConversationConflict(thread.id) from None
                write.shared |= {message["id"]: message for message in shared}
            else:
                return

    def _delete(self, thread: Thread[Any], expected_revision: str) -> None:
        for attempt in range(_TRIES):
            try:
                if self._stored_record(thread) is None:
                    raise ConversationConflict(thread.id)
                with self._adapter_store.sync.transaction():
                    thread.edit(partial(_end, thread.id, expected_revision))
                    thread.delete()
            except Conflict:  # another process wrote to it
                if attempt == _TRIES - 1:
                    raise
            else:
                return


def _end(conversation_id: str, expected_revision: str, editor: Editor) -> None:
    """Check the revision, and change the record, so that the deletion stands on this very checkpoint."""
    text = editor.get(_RECORD)
    if text is None or record_of(text, conversation_id).revision != expected_revision:
        raise ConversationConflict(conversation_id)
    editor.set(_RECORD, "deleted")


class _EntryElsewhere(Exception):  # noqa: N818 - it interrupts an edit
    """A history goes on in an entry that the conversation does not have."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(entry_id)
        self.entry_id = entry_id


class _RecordWrite:
    """An edit that puts a record and its new entries into a conversation. Each call decides again."""

    def __init__(
        self, agent: str, record: ConversationRecord, entries: Sequence[ConversationEntry], expected: str | None
    ) -> None:
        self._agent = agent
        self._record = record
        self._text = record_text(record)
        self._expected = expected
        self.new = [message_data(entry, f"new_entries[{at}]") for at, entry in enumerate(entries)]
        self.shared: dict[str, dict[str, Any]] = {}
        """Messages of other conversations that the history goes on in."""
        if len({message["id"] for message in self.new}) != len(self.new):
            raise Invalid("new_entries has two entries with one id", code="invalid.value", path="new_entries")

    def __call__(self, editor: Editor) -> None:
        record = self._stored(editor)
        if (None if record is None else record.revision) != self._expected:
            raise ConversationConflict(self._record.conversation_id)
        if record is None:
            self._create(editor)
            return
        if self._extends(record.head_id):
            editor.append(_MESSAGES, *self.new)
        else:
            self._replace(editor)
        editor.set(_RECORD, self._text)

    def _stored(self, editor: Editor) -> ConversationRecord | None:
        if not editor.exists:
            return None
        text, agent = editor.get(_RECORD), editor.get("agent_id")
        if agent != self._agent or text is None:
            what = f"agent {agent!r}" if agent != self._agent else "another framework"
            raise Conflict(
                f"conversation {self._record.conversation_id!r} exists already and belongs to {what}: use another id",
                code="conflict.exists",
            )
        return record_of(text, self._record.conversation_id)

    def _extends(self, head_id: str | None) -> bool:
        """Tell whether the new entries follow the stored head, one after the other."""
        for message in self.new:
            if message.get("parent_id") != head_id:
                return False
            head_id = message["id"]
        return head_id == self._record.head_id

    def _create(self, editor: Editor) -> None:
        new = {message["id"]: message for message in self.new}
        line = self._line(new)
        record = self._record
        value = Conversation(
            self._agent,
            id=record.conversation_id,
            messages=[Message.from_data(message) for message in line],
            metadata={RECORD: self._text},
            forked_from=record.forked_from,
            forked_at=record.forked_at,
        )
        left = {id_: message for id_, message in new.items() if message not in line}
        editor.set((), {**to_data(value.auto_title()), _OWN: {"left": left}})

    def _replace(self, editor: Editor) -> None:
        """Make another history the current one. The entries that it does not have stay with the conversation."""
        messages, left = editor.get(_MESSAGES), editor.get(_LEFT)
        own = {message["id"]: message for message in _own(messages)} | left
        for message in self.new:
            if own.setdefault(message["id"], message) != message:
                text = f"entry {message['id']!r} exists already and is different: entries never change"
                raise Invalid(text, code="invalid.value", path="new_entries")
        line = self._line(own)
        current = {message["id"] for message in line}
        editor.set(_MESSAGES, line)
        editor.set(_LEFT, {id_: message for id_, message in own.items() if id_ not in current})

    def _line(self, entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages up to the record's head, oldest first."""
        line: list[dict[str, Any]] = []
        seen: set[str] = set()
        entry_id = self._record.head_id
        while entry_id is not None:
            message = entries.get(entry_id) or self.shared.get(entry_id)
            if message is None:
                raise _EntryElsewhere(entry_id)
            if entry_id in seen:
                raise Invalid(f"entry {entry_id!r} follows itself", code="invalid.value", path="new_entries")
            seen.add(entry_id)
            line.append(message)
            entry_id = message.get("parent_id")
        return line[::-1]


def _own(messages: Any) -> list[dict[str, Any]]:
    """Return the messages that Pydantic AI wrote. Others, such as appended by hand, are not part of its history."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Corrupt("a conversation has no list of messages", code="corrupt.state")
    return [message for message in messages if message.get("raw_format") == FORMAT]


def _line(head: Checkpoint[Any], entry_id: str, limit: int | None) -> list[dict[str, Any]] | None:
    """Return the messages of a conversation up to an entry, at most `limit`; None if it does not have the entry."""
    if head.get(_RECORD) is None:
        return None
    if limit is not None:
        tail = head.tail(_MESSAGES, limit)
        is_whole = all(isinstance(each, dict) and each.get("raw_format") == FORMAT for each in tail)
        if tail and is_whole and tail[-1]["id"] == entry_id:
            return tail
    messages = _own(head.get(_MESSAGES))
    entries = {message["id"]: message for message in messages} | (head.get(_LEFT) or {})
    line: list[dict[str, Any]] = []
    at: str | None = entry_id
    while at is not None and (limit is None or len(line) < limit):
        message = entries.get(at)
        if message is None:
            if not line:
                return None
            raise Corrupt(f"entry {at!r} is missing in the history of {entry_id!r}", code="corrupt.state")
        line.append(message)
        at = message.get("parent_id")
    return line[::-1]
