# Made from src/backtrail/conversations/repository.py by tools/generate_aio.py: change it there, then `make aio`.
"""Conversations of the async mirror: each conversation is a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from backtrail.aio.blocks import called
from backtrail.aio.checkpoint import Checkpoint, plain
from backtrail.aio.thread import Thread
from backtrail.models import MISSING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from backtrail.aio.executor import Executor
    from backtrail.conversations import repository as sync
    from backtrail.conversations.convert import Model
    from backtrail.conversations.models import Conversation, Message
    from backtrail.conversations.repository import Hits, Infos, Messages
    from backtrail.models import ConversationInfo, ErasureReport, Sentinel
    from backtrail.thread import Ref


class Conversations:
    """The conversations of a store: `store.conversations`."""

    def __init__(self, executor: Executor, conversations: sync.Conversations) -> None:
        self._executor = executor
        self._sync = conversations

    @called
    async def save(self, conversation: Conversation, *, replace: bool = False) -> Conversation:
        """Save a conversation. `Conflict` if it was changed or deleted since this value was loaded or saved.

        A new conversation needs an id that does not exist yet. `replace` saves in both cases.
        """
        return await self._executor.write(self._sync.save, conversation, replace=replace)

    @called
    async def load(self, id: str, *, at: Ref = "@") -> Conversation:  # noqa: A002 - the name users know
        """Return a conversation, or raise `NotFound`; `at` names an older checkpoint of its thread or of its agent."""
        return await self._executor.apart(self._sync.load, id, at=plain(at))

    @called
    async def get(self, id: str) -> Conversation | None:  # noqa: A002 - the name users know
        """Return a conversation, or None."""
        return await self._executor.apart(self._sync.get, id)

    @called
    async def append(
        self,
        id: str,  # noqa: A002 - the name users know
        *messages: Message | Mapping[str, Any] | Model,
        agent_id: str | None = None,
    ) -> Checkpoint[Any]:
        """Append messages, all or none. If another writer is first, they come after its messages.

        With an `agent_id`, a missing conversation is created for that agent, with a title; without, it is `NotFound`. A
        message may be a `Message`, its `to_json`, a dict in the form of OpenAI or Anthropic, or an object of their
        clients. `metadata["formats"]` of the checkpoint lists the forms that were recognized.
        """
        found = await self._executor.write(self._sync.append, id, *messages, agent_id=agent_id)
        return Checkpoint(self._executor, found)

    @called
    async def pop(self, id: str, n: int = 1) -> Messages:  # noqa: A002 - the name users know
        """Remove the last n messages (or all, if there are fewer) in one write, and return them, oldest first.

        Never conflicts. Concurrent callers get different messages.
        """
        return await self._executor.write(self._sync.pop, id, n)

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
        """Change the given fields only; an empty title means none. Never conflicts."""
        return await self._executor.write(
            self._sync.update,
            id,
            title=title,
            tags=None if tags is None else tuple(tags),
            archived=archived,
            metadata=metadata,
        )

    @called
    async def info(self, id: str) -> ConversationInfo:  # noqa: A002 - the name users know
        """Return the info of a conversation without loading its messages."""
        return await self._executor.apart(self._sync.info, id)

    @called
    async def tail(self, id: str, n: int) -> Messages:  # noqa: A002 - the name users know
        """Return the last n messages, oldest first, without reading the others."""
        return await self._executor.apart(self._sync.tail, id, n)

    @called
    async def list(
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
        return await self._executor.apart(
            self._sync.list,
            agent_id,
            archived=archived,
            tag=tag,
            prefix=prefix,
            since=since,
            until=until,
            limit=limit,
            after=after,
        )

    @called
    async def search(self, query: str, *, agent_id: str | None = None, limit: int = 20, contains: bool = True) -> Hits:
        """Return one hit for each conversation with a message that contains the query; case is ignored.

        The newest hits come first. `contains=False` searches for words, as `Store.search` does.
        """
        return await self._executor.apart(self._sync.search, query, agent_id=agent_id, limit=limit, contains=contains)

    def thread(self, id: str, *, agent_id: str | None = None) -> Thread[Any]:  # noqa: A002 - the name users know
        """Return a handle of the thread: its states are plain data, the header and the list `messages`.

        `agent_id` is the owner if the handle starts the conversation.
        """
        made: Thread[Any] = Thread(self._executor, self._sync.thread(id, agent_id=agent_id))
        return made

    @called
    async def delete(self, id: str) -> bool:  # noqa: A002 - the name users know
        """Delete a conversation and return whether it existed. An agent checkpoint that pins it can restore it."""
        return await self._executor.apart(self._sync.delete, id)

    async def erase(
        self,
        id: str | Iterable[str],  # noqa: A002 - the name users know
        *,
        forks: bool = True,
        progress: Callable[[str, int], None] | None = None,
    ) -> ErasureReport:
        """Erase a conversation, or several, with every byte, also where agent checkpoints and forks have it.

        Unlike `delete`, nothing can bring it back: a restore of an agent skips it. Its forks have its messages, so they
        are erased as well, unless `forks=False`. The id can be used again. An interrupted call is finished by the next
        one. See docs/erasure.md.
        """
        work = partial(self._sync.erase, id, forks=forks)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    @called
    async def fork(self, id: str, *, at: str | Message | None = None, new_id: str | None = None) -> Conversation:  # noqa: A002 - the name users know
        """Start a new conversation with the messages of this one up to `at` (a message or its id), or with all."""
        return await self._executor.apart(self._sync.fork, id, at=at, new_id=new_id)

    @called
    async def rewind(self, id: str, at: str | Message) -> Conversation:  # noqa: A002 - the name users know
        """Make `at` (a message or its id) the last message again. Nothing is deleted: `thread(id).undo()` reverses it.

        The head becomes the newest checkpoint in view that ends with this message. A message that was saved together
        with later ones has no such checkpoint: `NotFound`; fork the conversation at this message instead.
        """
        return await self._executor.apart(self._sync.rewind, id, at)

    @called
    async def edit(self, id: str, message_id: str, content: str, *, new_id: str | None = None) -> Conversation:  # noqa: A002 - the name users know
        """Start a new conversation that ends with a message of this one, with new content."""
        return await self._executor.apart(self._sync.edit, id, message_id, content, new_id=new_id)

    @called
    async def branches(self, id: str) -> Infos:  # noqa: A002 - the name users know
        """Return the conversations that were forked from this one, oldest first."""
        return await self._executor.apart(self._sync.branches, id)
