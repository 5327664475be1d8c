# Made from src/backtrail/conversations/repository.py by tools/generate_aio.py: change it there, then `make aio`.
"""Conversations of the async mirror: what was said, each in a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.aio.blocks import called
from backtrail.aio.checkpoint import Checkpoint, plain
from backtrail.aio.thread import Thread
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backtrail.aio.executor import Crew
    from backtrail.conversations import repository as sync
    from backtrail.conversations.convert import Model
    from backtrail.conversations.repository import Hits, Infos, Messages
    from backtrail.entities import Conversation, Message
    from backtrail.models import ConversationInfo, Sentinel
    from backtrail.thread import Ref


class Conversations:
    """The conversations of a store: `store.conversations`."""

    def __init__(self, crew: Crew, conversations: sync.Conversations) -> None:
        self._crew = crew
        self._sync = conversations

    @called
    async def save(self, conversation: Conversation, *, replace: bool = False) -> Conversation:
        """Save a conversation, on top of what it came from; a new one must be the first of its id, unless `replace`."""
        return await self._crew.write(self._sync.save, conversation, replace=replace)

    @called
    async def load(self, id: str, *, at: Ref = "@") -> Conversation:  # noqa: A002 - the name users know
        """Return a conversation, or `NotFound`; `at` a checkpoint of its thread, or of its agent, not the newest."""
        return await self._crew.apart(self._sync.load, id, at=plain(at))

    @called
    async def get(self, id: str) -> Conversation | None:  # noqa: A002 - the name users know
        """Return a conversation, or None."""
        return await self._crew.apart(self._sync.get, id)

    @called
    async def append(
        self,
        id: str,  # noqa: A002 - the name users know
        *messages: Message | Mapping[str, Any] | Model,
        agent_id: str | None = None,
    ) -> Checkpoint[Any]:
        """Add messages, all or none, behind what is there then. Never conflicts.

        With an `agent_id`, a conversation that is not there begins with them, as one of that agent's, with a title.
        A message may be a dict: what `Message.to_json` makes, or a message of OpenAI's or Anthropic's; or an object of
        their clients. Which formats these were taken for is `metadata["formats"]` of the checkpoint.
        """
        found = await self._crew.write(self._sync.append, id, *messages, agent_id=agent_id)
        return Checkpoint(self._crew, found)

    @called
    async def pop(self, id: str, n: int = 1) -> Messages:  # noqa: A002 - the name users know
        """Take the last n messages out, or as many as there are, in one write, and return them, oldest first.

        Never conflicts, and no message is taken out twice: those who pop at once get different ones.
        """
        return await self._crew.write(self._sync.pop, id, n)

    @called
    async def update(
        self,
        id: str,  # noqa: A002 - the name users know
        *,
        title: str | None = None,
        tags: Iterable[str] | None = None,
        archived: bool | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ConversationInfo:
        """Change what is given, and nothing else; an empty title means none. Never conflicts."""
        return await self._crew.write(
            self._sync.update,
            id,
            title=title,
            tags=None if tags is None else tuple(tags),
            archived=archived,
            metadata=metadata,
        )

    @called
    async def info(self, id: str) -> ConversationInfo:  # noqa: A002 - the name users know
        """Return what a listing shows of a conversation, without loading its messages."""
        return await self._crew.apart(self._sync.info, id)

    @called
    async def tail(self, id: str, n: int) -> Messages:  # noqa: A002 - the name users know
        """Return the last n messages, oldest first, without reading the others."""
        return await self._crew.apart(self._sync.tail, id, n)

    @called
    async def list(
        self,
        agent_id: str | Sentinel = MISSING,
        *,
        archived: bool | None = None,
        tag: str | None = None,
        prefix: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Infos:
        """Return the conversations of an agent, or of all if none is named, newest activity first, without messages.

        `prefix` is how their ids begin; `after` goes on behind an entry of an earlier listing: its `cursor`.
        """
        return await self._crew.apart(
            self._sync.list, agent_id, archived=archived, tag=tag, prefix=prefix, limit=limit, after=after
        )

    @called
    async def search(self, query: str, *, agent_id: str | None = None, limit: int = 20, contains: bool = True) -> Hits:
        """Return conversations in which a message has the query in it, case does not count: one hit for each.

        The newest hits come first. `contains=False` looks for words instead, as `Store.search` does.
        """
        return await self._crew.apart(self._sync.search, query, agent_id=agent_id, limit=limit, contains=contains)

    def thread(self, id: str, *, agent_id: str | None = None) -> Thread[Any]:  # noqa: A002 - the name users know
        """Return a handle of the thread: its states are plain data, the header and the list `messages`.

        `agent_id` is whose it is to be if the handle begins it.
        """
        made: Thread[Any] = Thread(self._crew, self._sync.thread(id, agent_id=agent_id))
        return made

    @called
    async def delete(self, id: str) -> bool:  # noqa: A002 - the name users know
        """Delete a conversation and say whether there was one. An agent checkpoint that holds it can bring it back."""
        return await self._crew.apart(self._sync.delete, id)

    @called
    async def fork(self, id: str, *, at: str | Message | None = None, new_id: str | None = None) -> Conversation:  # noqa: A002 - the name users know
        """Begin a new conversation that has the messages of this one up to `at`, one of them or its id, or all."""
        return await self._crew.apart(self._sync.fork, id, at=at, new_id=new_id)

    @called
    async def edit(self, id: str, message_id: str, content: str, *, new_id: str | None = None) -> Conversation:  # noqa: A002 - the name users know
        """Begin a new conversation in which a message says something else, and nothing follows it yet."""
        return await self._crew.apart(self._sync.edit, id, message_id, content, new_id=new_id)

    @called
    async def branches(self, id: str) -> Infos:  # noqa: A002 - the name users know
        """Return the conversations that branched from this one, oldest first; each says where it left."""
        return await self._crew.apart(self._sync.branches, id)
