"""`store.conversations`: each conversation is a thread.

The state of the thread is the conversation's header and its list of messages, as plain data; docs/agents.md has the
names. Adding messages is one append: it never conflicts, and its cost does not grow with the conversation.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any, Final

from backtrail.collection import Collection, cursor_of, is_field
from backtrail.conversations import convert
from backtrail.conversations.models import Conversation, Message
from backtrail.engine.manifests import CONVERSATION
from backtrail.engine.search import search
from backtrail.engine.search.extract import listed
from backtrail.engine.search.indexer import Where
from backtrail.engine.tree import chunked as spines
from backtrail.engine.tree import edits as changes
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import SPLICE, Op, Tree, locate
from backtrail.engine.writer import ANYTHING, ThreadKey
from backtrail.errors import Conflict, Invalid, NotFound
from backtrail.models import MISSING, ConversationInfo, Items, Sentinel, when
from backtrail.validation import check_count, check_id, check_period, check_query, plain, to_data

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.conversations.convert import Model
    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.models import ErasureReport, Hit
    from backtrail.thread import Ref, Thread
    from backtrail.transaction import Engine

    Edits = list[changes.Put | changes.Cut]
    Hits = list[Hit]
    Infos = list[ConversationInfo]
    Messages = list[Message]

_MESSAGES: Final = "messages"
_PAGE: Final = 200


class Conversations(Collection):
    """The conversations of a store: `store.conversations`."""

    _space = CONVERSATION
    _what = "a conversation"
    _missing = "not_found.conversation"

    def save(self, conversation: Conversation, *, replace: bool = False) -> Conversation:
        """Save a conversation. `Conflict` if it was changed or deleted since this value was loaded or saved.

        A new conversation needs an id that does not exist yet. `replace` saves in both cases.
        """
        if not isinstance(conversation, Conversation):
            raise Invalid(f"save() takes a Conversation, not {type(conversation).__name__}", code="invalid.value")
        data = to_data(conversation)
        self._put(conversation.id, conversation.agent_id, data, conversation._saved, replace=replace)  # noqa: SLF001
        return conversation

    def load(self, id: str, *, at: Ref = "@") -> Conversation:  # noqa: A002 - the name users know
        """Return a conversation, or raise `NotFound`; `at` names an older checkpoint of its thread or of its agent."""
        checkpoint = self._load(id, at)
        conversation = _value({**checkpoint.state, "id": id})  # the state of a fork has the id of its source
        self._set_head(conversation._saved, checkpoint)  # noqa: SLF001
        return conversation

    def get(self, id: str) -> Conversation | None:  # noqa: A002
        """Return a conversation, or None."""
        try:
            return self.load(id)
        except NotFound:
            return None

    def append(
        self,
        id: str,  # noqa: A002
        *messages: Message | Mapping[str, Any] | Model,
        agent_id: str | None = None,
    ) -> Checkpoint[Any]:
        """Append messages, all or none. If another writer is first, they come after its messages.

        With an `agent_id`, a missing conversation is created for that agent, with a title; without, it is `NotFound`. A
        message may be a `Message`, its `to_json`, a dict in the form of OpenAI or Anthropic, or an object of their
        clients. `metadata["formats"]` of the checkpoint lists the forms that were recognized.
        """
        checked = [_message(message) for message in messages]
        pairs = zip(checked, messages, strict=True)
        formats = sorted({each.raw_format or convert.OWN for each, old in pairs if each is not old})
        metadata = {"formats": formats} if formats else None
        agent_id = None if agent_id is None else check_id(agent_id, "an agent's id")
        data = [to_data(message) for message in checked]
        try:
            return self._thread(id).append(_MESSAGES, *data, metadata=metadata)
        except NotFound:
            if agent_id is None:
                text = f"there is no conversation {id!r}; pass agent_id= to create it for an agent"
                raise NotFound(text, code=self._missing) from None
        conversation = Conversation(agent_id, id=id, messages=checked).auto_title()
        try:
            return self._put(id, agent_id, to_data(conversation), conversation._saved, replace=False, metadata=metadata)  # noqa: SLF001
        except Conflict as error:
            if error.code != "conflict.exists":
                raise
        return self.append(id, *messages, agent_id=agent_id)  # another writer was first

    def pop(self, id: str, n: int = 1) -> Messages:  # noqa: A002
        """Remove the last n messages (or all, if there are fewer) in one write, and return them, oldest first.

        Never conflicts. Concurrent callers get different messages.
        """
        thread = self._thread(id)
        taking = _PopEdit(check_count(n, "n"), thread._types, id)  # noqa: SLF001 - our own handle
        meta = thread._meta(None, (), None, "manual")  # noqa: SLF001
        try:
            thread._write(taking, meta, None, default=ANYTHING)  # noqa: SLF001
        except _NoMessages:
            return []
        except NotFound:
            raise self._unknown(id) from None
        return taking.messages

    def update(
        self,
        id: str,  # noqa: A002
        *,
        title: str | None = None,
        tags: Iterable[str] | None = None,
        archived: bool | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ConversationInfo:
        """Change the given fields only; an empty title means none. Never conflicts."""
        fields = {"title": title, "tags": tags, "archived": archived, "metadata": metadata}
        changed = {name: value for name, value in fields.items() if value is not None}
        if not changed:
            raise Invalid("update() needs title=, tags=, archived= or metadata=", code="invalid.argument")
        data = to_data(Conversation("any", **changed))  # type: ignore[arg-type]  # a Conversation checks its fields
        data["title"] = data["title"] or None
        thread = self._thread(id)
        edits: Edits = [
            changes.Put(Path((name,)), thread._redacted(data[name]), thread._types, id)  # noqa: SLF001 - our own handle
            for name in changed
        ]
        meta = thread._meta(None, (), None, "manual")  # noqa: SLF001
        try:
            thread._write(changes.Several(edits), meta, None, default=ANYTHING)  # noqa: SLF001
        except NotFound:
            raise self._unknown(id) from None
        return self.info(id)

    def info(self, id: str) -> ConversationInfo:  # noqa: A002
        """Return the info of a conversation without loading its messages."""
        record = self._engine.session.reader.backend.find_thread(self._space, check_id(id, "the id of a conversation"))
        if record is None:
            raise self._unknown(id)
        newest = self._engine.session.reader.backend.newest(record.no)
        if newest is None:
            raise self._unknown(id)
        return _info(record, newest, self._header(record))

    def tail(self, id: str, n: int) -> Messages:  # noqa: A002
        """Return the last n messages, oldest first, without reading the others."""
        check_count(n, "n")
        items = self._load(id, "@").tail(_MESSAGES, n)
        return [Message.from_data(data) for data in items]

    def list(
        self,
        agent_id: str | Sentinel = MISSING,
        *,
        archived: bool | None = None,
        tag: str | None = None,
        prefix: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Infos:
        """List the conversations of an agent, or of all agents, latest activity first, without messages.

        `prefix` is the beginning of their ids. `since` and `until` list conversations whose last write was in that
        time. `after` continues after an entry of an earlier listing: its `cursor`.
        """
        agent = None if agent_id is MISSING else check_id(agent_id, "an agent's id")
        if limit is not None:
            check_count(limit, "limit")
        if not isinstance(archived, bool | None):
            raise Invalid(f"archived must be True, False or None, not {archived!r:.100}", code="invalid.argument")
        if not isinstance(tag, str | None):
            raise Invalid(f"tag must be a string, not {tag!r:.100}", code="invalid.argument")
        if not isinstance(prefix, str | None):
            raise Invalid(f"prefix must be the beginning of an id, not {prefix!r:.100}", code="invalid.argument")
        prefix = None if prefix is None else plain(prefix)
        period = check_period(since, until)
        infos: Infos = []
        for record, newest, header in self._headers(agent, after, prefix=prefix, period=period):
            if limit is not None and len(infos) >= limit:
                break
            info = _info(record, newest, header)
            if info.damaged or ((archived is None or info.archived == archived) and (tag is None or tag in info.tags)):
                infos.append(replaced(info, cursor=cursor_of(record, newest)))
        return infos

    def search(self, query: str, *, agent_id: str | None = None, limit: int = 20, contains: bool = True) -> Hits:
        """Return one hit for each conversation with a message that contains the query; case is ignored.

        The newest hits come first. `contains=False` searches for words, as `Store.search` does.
        """
        parsed = check_query(query, contains=contains)
        check_count(limit, "limit")
        agent_id = None if agent_id is None else check_id(agent_id, "an agent's id")
        return search.one_of_each(self._engine.outside(), parsed, Where(self._space, agent_id), limit=limit)

    def thread(self, id: str, *, agent_id: str | None = None) -> Thread[Any]:  # noqa: A002
        """Return a handle of the thread: its states are plain data, the header and the list `messages`.

        `agent_id` is the owner if the handle starts the conversation.
        """
        return self._thread(id, agent_id)

    def delete(self, id: str) -> bool:  # noqa: A002
        """Delete a conversation and return whether it existed. An agent checkpoint that pins it can restore it."""
        return self._thread(id).delete()

    def erase(
        self,
        id: str | Iterable[str],  # noqa: A002
        *,
        forks: bool = True,
        progress: Callable[[str, int], None] | None = None,
    ) -> ErasureReport:
        """Erase a conversation, or several, with every byte, also where agent checkpoints and forks have it.

        Unlike `delete`, nothing can bring it back: a restore of an agent skips it. Its forks have its messages, so they
        are erased as well, unless `forks=False`. The id can be used again. An interrupted call is finished by the next
        one. See docs/erasure.md.
        """
        return self._erase(id, forks=forks, progress=progress)

    # -- branches ---------------------------------------------------------------------------------------

    def fork(
        self,
        id: str,  # noqa: A002
        *,
        at: str | Message | None = None,
        new_id: str | None = None,
    ) -> Conversation:
        """Start a new conversation with the messages of this one up to `at` (a message or its id), or with all."""
        return self._branch(id, at.id if isinstance(at, Message) else at, new_id, None)

    def rewind(self, id: str, at: str | Message) -> Conversation:  # noqa: A002
        """Make `at` (a message or its id) the last message again. Nothing is deleted: `thread(id).undo()` reverses it.

        The head becomes the newest checkpoint in view that ends with this message. A message that was saved together
        with later ones has no such checkpoint: `NotFound`; fork the conversation at this message instead.
        """
        at = at.id if isinstance(at, Message) else at
        _check_message_id(at)
        thread = self._thread(self._load(id, "@").thread_id)
        for checkpoint in thread.history(newest_first=True):
            last = checkpoint.tail(_MESSAGES, 1)
            if last and isinstance(last[0], dict) and last[0].get("id") == at:
                thread.rewind(checkpoint)
                return self.load(id)
        raise NotFound(
            f"no checkpoint of conversation {id!r} ends with message {at!r}; if the conversation has this message, "
            f"fork there: store.conversations.fork({id!r}, at={at!r})",
            code="not_found.message",
        )

    def edit(self, id: str, message_id: str, content: str, *, new_id: str | None = None) -> Conversation:  # noqa: A002
        """Start a new conversation that ends with a message of this one, with new content."""
        if not isinstance(content, str):
            raise Invalid(f"content must be a string, not {content!r:.100}", code="invalid.value")
        redact = self._engine.options.redact
        return self._branch(id, message_id, new_id, content if redact is None else redact(content, self._engine.types))

    def branches(self, id: str) -> Infos:  # noqa: A002
        """Return the conversations that were forked from this one, oldest first."""
        record = self._engine.session.reader.backend.find_thread(self._space, check_id(id, "the id of a conversation"))
        if record is None:
            return []
        uid = record.uid.hex()
        headers = self._headers(record.agent, None, lambda other: (other.origin or "").endswith(uid))
        infos = [_info(*each) for each in sorted(headers, key=lambda each: each[0])]
        return [info for info in infos if info.forked_from == id or info.damaged]

    def _branch(self, id: str, at: str | None, new_id: str | None, content: str | None) -> Conversation:  # noqa: A002
        new_id = str(uuid.uuid4()) if new_id is None else check_id(new_id, "the id of a conversation")
        session = self._engine.session
        id = check_id(id, "the id of a conversation")  # noqa: A001
        tip = session.reader.tip(self._space, id)
        if tip is None or tip.head is None:
            raise self._unknown(id)
        edit = _BranchEdit(id, at, new_id, content, self._engine)
        key = ThreadKey(self._space, new_id, tip.record.agent)
        try:
            checkpoint = session.writer.fork(key, tip, tip.head, (), edit=edit)
        except Conflict as error:
            if error.code != "conflict.exists":
                raise
            text = f"conversation {new_id!r} exists already; choose another new_id"
            raise Conflict(text, code=error.code, actual=error.actual) from None
        branch = edit.branches[-1]
        self._set_head(branch._saved, self._thread(new_id)._moved(checkpoint))  # noqa: SLF001 - our own
        return branch


class _NoMessages(Exception):  # noqa: N818 - it ends a write that has nothing to do
    """Raised if a conversation has no message to remove."""


class _PopEdit(changes.Edit):
    """An edit that removes the last messages of a conversation. `messages` has the messages that it removes."""

    def __init__(self, n: int, types: Types, name: str) -> None:
        super().__init__(Path((_MESSAGES,)), types, name)
        self._n = n
        self.messages: Messages = []

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:
        """Return the ops that remove the messages; `_NoMessages` if there is none."""
        spine = listed(tree)
        n = min(self._n, 0 if spine is None else spine.length)
        if spine is None or n == 0:
            raise _NoMessages
        start = spine.length - n
        items = Decoder(nodes, self._types).values(spines.entries(nodes, spine, start, spine.length))
        self.messages = [Message.from_data(data) for data in items]  # a message that cannot be decoded is not removed
        return [[SPLICE, locate(tree, self._path, self._types)[1], start, n, []]]


class _BranchEdit:
    """An edit that makes the state of a branch from the state of a conversation."""

    def __init__(self, id: str, at: str | None, new_id: str, content: str | None, engine: Engine) -> None:  # noqa: A002
        self._id = id
        self._at = at
        self._new_id = new_id
        self._content = content
        self._engine = engine
        self.branches: list[Conversation] = []

    def __call__(self, tree: Tree) -> Tree:
        """Return the state of the branch, and add the branch as a `Conversation` to `branches`."""
        types, spine = self._engine.types, listed(tree)
        _, steps = locate(tree, Path((_MESSAGES,)), types)
        length = 0 if spine is None else spine.length
        place, message = self._place(tree, length)
        length_kept, added = place + 1, []
        if self._content is not None and message is not None:
            length_kept = place
            added = [Encoder(tree.nodes, types).part(length_kept, to_data(self._edited(message)))]
        tree = Tree(tree.rep, tree.nodes.forked()).apply([[SPLICE, steps, length_kept, length - length_kept, added]])
        last = self._ids(tree, length_kept - 1, length_kept)[0] if length_kept else None
        now = when(self._engine.session.reader.clock())
        header = {
            "id": self._new_id,
            "created_at": now,
            "last_message_at": now,
            "archived": False,
            "forked_from": self._id,
            "forked_at": last,
        }
        for name, value in header.items():
            tree, _ = changes.Put(Path((name,)), value, types, self._new_id).change(tree, tree.nodes)
        self.branches.append(_value(Decoder(tree.nodes, types).value(tree.rep)))
        return tree

    def _place(self, tree: Tree, length: int) -> tuple[int, Message | None]:
        """Return the position of the message `at`, and the message. Without `at`: the last position, and None."""
        if self._at is None:
            return length - 1, None
        _check_message_id(self._at)
        for end in range(length, 0, -_PAGE):
            start = max(end - _PAGE, 0)
            ids = self._ids(tree, start, end)
            if self._at in ids:
                place = end - 1 - ids[::-1].index(self._at)  # the last of several messages with this id
                return place, Message.from_data(self._read(tree, place, place + 1)[0])
        raise NotFound(f"conversation {self._id!r} has no message {self._at!r}", code="not_found.message")

    def _ids(self, tree: Tree, start: int, end: int) -> list[Any]:
        return [data.get("id") if isinstance(data, dict) else None for data in self._read(tree, start, end)]

    def _read(self, tree: Tree, start: int, end: int) -> list[Any]:
        spine = listed(tree)
        reps = [] if spine is None else spines.entries(tree.nodes, spine, start, end)
        return Decoder(tree.nodes, self._engine.types).values(reps)

    def _edited(self, message: Message) -> Message:
        """Return a copy of a message with the new content, a new id and the current time.

        It has no `raw` and no tokens: they belong to the old content.
        """
        now = when(self._engine.session.reader.clock())
        changed = replaced(message, content=self._content or "", id=str(uuid.uuid4()), timestamp=now)
        return replaced(changed, raw=None, raw_format=None, tokens=None)


def _check_message_id(at: Any) -> None:
    if not isinstance(at, str):
        raise Invalid(f"at= must be a message or the id of one, not {at!r:.100}", code="invalid.argument")


def _message(value: Any) -> Message:
    """Return a `Message` for an argument of `append`: a message, a dict, or an object of a provider's client."""
    if isinstance(value, Message):
        return value
    data = convert.unwrapped(value)
    if not isinstance(data, Mapping):
        raise Invalid(
            f"append() takes messages, not {type(value).__name__}: append(id, message, message, ...)",
            code="invalid.value",
        )
    provider = convert.provider_of(value)
    form = convert.check(data, provider) if provider else convert.format_of(data)
    if form is None:
        raise convert.unknown(data)
    if form != convert.OWN:
        return Message.from_anthropic(data) if form == convert.ANTHROPIC else Message.from_openai(data)
    try:
        return Message.from_json(data)
    except Invalid as error:
        text = f"{error}; append() takes {convert.KNOWN}"
        raise Invalid(text, code=error.code, path=error.path) from error


def _value(state: dict[str, Any]) -> Conversation:
    """Return the conversation in a thread's state. Other keys of the state are ignored."""
    return Conversation.from_data({key: value for key, value in state.items() if is_field(key)})


def _info(record: ThreadRecord, newest: Row, header: dict[str, Any] | str) -> ConversationInfo:
    name, agent, updated = record.name, record.agent, when(newest.created_at)
    if isinstance(header, str):
        damaged = ConversationInfo(name, agent, None, 0, None, None, archived=False, tags=(), metadata={})
        return replaced(damaged, damaged=header, updated_at=updated)
    last = header.get("last")
    last_at = last.get("timestamp") if isinstance(last, dict) else None
    return ConversationInfo(
        id=name,
        agent_id=agent,
        title=header.get("title"),
        message_count=header.get("count", 0),
        created_at=header.get("created_at"),
        last_message_at=last_at or header.get("last_message_at"),
        archived=bool(header.get("archived")),
        tags=Items(header.get("tags", ())),
        metadata=header.get("metadata", {}),
        forked_from=header.get("forked_from"),
        forked_at=header.get("forked_at"),
        updated_at=updated,
    )
