"""`BacktrailSession`: a session of the OpenAI Agents SDK that is a conversation of a store.

A session returns items unchanged, in the order in which the store received them. Each protocol call that changes
something is one write, and cancelling its task does not interrupt it. No write removes anything, so `session.thread`
can go back. A paused run is stored in a thread of its own, beside the conversation.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from agents.memory import Session, SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.run_state import RunState

from backtrail.adapters.adapter_store import AdapterStore
from backtrail.adapters.openai import turns
from backtrail.adapters.openai.call_repair import awaited_calls, repair_of, unanswered_calls, with_outputs
from backtrail.adapters.openai.items import message_of
from backtrail.aio.blocks import called
from backtrail.conversations.items import items_of
from backtrail.conversations.models import Role
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.validation import check_count, check_id, to_data

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from agents import Agent, RunResultBase
    from agents.items import TResponseInputItem

    from backtrail import aio
    from backtrail.adapters.adapter_store import StoreSource
    from backtrail.adapters.openai.call_repair import Repair
    from backtrail.conversations.items import Item
    from backtrail.conversations.models import Message
    from backtrail.models import ConversationInfo, Hit

T = TypeVar("T")
AGENT: Final = "openai-agents"
"""The agent of sessions that name none."""
_RUN: Final = "openai-run:"
"""The prefix of the id of a paused run's thread; the session's id follows."""
_MAX_ID: Final = 500
_TAIL: Final = 64
"""Messages that the first search for the last turn reads."""


class BacktrailSession(Session):
    """A session in a store: `Runner.run(agent, "hello", session=BacktrailSession("trip", "sqlite:///agents.db"))`.

    `store` is a synchronous or asynchronous store, or a URL: `close` or `aclose` closes the store of a URL. `agent`
    owns the conversation. With `repair=False`, `get_items` returns calls without an output unchanged.
    """

    def __init__(
        self,
        session_id: str,
        store: StoreSource,
        *,
        agent: str = AGENT,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        repair: bool = True,
    ) -> None:
        self.session_id = session_id = check_id(session_id, "a session's id")
        if len(session_id) > _MAX_ID:
            raise Invalid(f"a session's id has 1 to {_MAX_ID} characters", code="invalid.id")
        self.agent = check_id(agent, "an agent's id")
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._repair = repair
        self._adapter_store = AdapterStore(store)
        self._store = self._adapter_store.aio
        self._conversations = self._store.conversations
        self._messages = self._adapter_store.sync.conversations.thread(session_id)
        """A handle that stays open: it knows the tip after the last write, so the next call need not read it."""
        self._awaited = awaited_calls(self._adapter_store.sync)
        self._run: aio.Thread[Any] = self._store.thread(_RUN + session_id, agent=agent)

    def __repr__(self) -> str:
        return f"<BacktrailSession {self.session_id!r} of {self.agent!r}>"

    @property
    def thread(self) -> aio.Thread[Any]:
        """The thread of the conversation: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        return self._conversations.thread(self.session_id)

    # -- the protocol -----------------------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the latest items, oldest first: at most `limit`, else `session_settings.limit`, else all."""
        limit = resolve_session_limit(limit, self.session_settings)
        if limit is not None:
            check_count(limit, "limit")
        before = self._awaited.of(self.session_id)
        items = await self._items(limit)
        if self._repair:
            items = with_outputs(items, await self._unanswered(items, before))
        return cast("list[TResponseInputItem]", items if limit is None else items[max(len(items) - limit, 0) :])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items to the end, all or none."""
        messages = [message_of(item, f"items[{at}]") for at, item in enumerate(items)]
        if messages:
            raw = [message.raw for message in messages]
            self._awaited.add_calls(self.session_id, raw)
            await self._adapter_store.write(partial(self._append, messages), raw, surely=True)
            self._awaited.add_answers(self.session_id, raw)
        else:
            await self.thread.latest()  # on a closed store, adding nothing is an error, too

    def _append(self, messages: list[Message]) -> None:
        try:
            self._messages.append("messages", *map(to_data, messages))
        except NotFound:  # the first items: they begin the conversation
            self._adapter_store.sync.conversations.append(self.session_id, *messages, agent_id=self.agent)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the newest item, or None. Concurrent calls get different items."""
        try:
            popped = await _uninterrupted(self._pop())
        except NotFound:
            return None
        items = [item for message in popped for item in items_of(to_data(message), "the popped message")]
        return cast("TResponseInputItem", items[-1]) if items else None

    async def clear_session(self) -> None:
        """Remove all items and the paused run. The conversation and its history stay."""

        async def clear(head: aio.Checkpoint[Any]) -> None:
            await self.thread.set("messages", [], expect=cast("Any", head))

        await _uninterrupted(self._change(clear))
        await self.drop_run()

    # -- turns ------------------------------------------------------------------------------------------

    async def turns(self) -> list[turns.Turn]:
        """Return the turns, oldest first."""
        conversation = await self._conversations.get(self.session_id)
        return turns.turns_of(conversation.messages) if conversation is not None else []

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Store the usage of a run in the last turn."""
        usage = turns.usage_of(result)

        async def set_usage(head: aio.Checkpoint[Any]) -> None:
            at, message = await self._last_user_message(head)
            metadata = {**message.get("metadata", {}), turns.USAGE: usage}
            await self.thread.set(("messages", at, "metadata"), metadata, expect=cast("Any", head))

        if not await _uninterrupted(self._change(set_usage)):
            raise NotFound(f"session {self.session_id!r} has no turn yet", code="not_found.message")

    async def usage(self) -> dict[str, int]:
        """Return the sum of the usage of all turns."""
        return turns.total(await self.turns())

    # -- branches, search -------------------------------------------------------------------------------

    async def fork(self, new_session_id: str, *, at: int | str | None = None) -> BacktrailSession:
        """Return a new session with the items up to `at`: the end of a turn, or the id of a message.

        It uses the store of this session, which must stay open.
        """
        forked = BacktrailSession(
            new_session_id,
            self._store,
            agent=self.agent,
            session_settings=self.session_settings,
            repair=self._repair,
        )
        last = await self._end_of(at) if isinstance(at, int) else at
        await _uninterrupted(self._conversations.fork(self.session_id, at=last, new_id=new_session_id))
        return forked

    async def branches(self) -> list[ConversationInfo]:
        """Return the sessions that were forked from this one, oldest first."""
        return await self._conversations.branches(self.session_id)

    async def search(self, query: str, *, limit: int = 20, contains: bool = False) -> list[Hit]:
        """Return the matching messages of this session, newest first; `store.search` searches all sessions."""
        kind = "conversation"
        return await self._store.search(query, thread=self.session_id, kind=kind, limit=limit, contains=contains)

    # -- repairs ----------------------------------------------------------------------------------------

    async def repairs(self) -> list[Repair]:
        """Return the calls for which `get_items` returns an output, oldest first."""
        before = self._awaited.of(self.session_id)
        items = await self._items(None)
        return [repair_of(items[at]) for at in await self._unanswered(items, before)] if self._repair else []

    # -- paused runs ------------------------------------------------------------------------------------

    async def save_run(self, paused: RunResultBase | RunState[Any, Any], **options: Any) -> None:
        """Save a run that waits for approvals; `options` are those of `RunState.to_json`.

        If this task loaded the run before and another worker saved it since, the save raises `Conflict`.
        """
        state = paused if isinstance(paused, RunState) else cast("Any", paused).to_state()
        waiting = [_call_id(item) for item in state.get_interruptions()]
        await _uninterrupted(self._run.save({"run": state.to_json(**options), "waiting": waiting}))

    async def load_run(self, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """Return the saved run, or None; `options` are those of `RunState.from_json`."""
        paused = await self._paused_run()
        return None if paused is None else await RunState.from_json(agent, paused["run"], **options)

    async def drop_run(self) -> bool:
        """Delete the saved run and tell whether there was one. Of concurrent calls, one returns True."""
        return await _uninterrupted(self._run.delete())

    # -- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store if the session opened it. A second call does nothing."""
        self._adapter_store.close()

    async def aclose(self) -> None:
        """Wait for calls in progress, then close the store if the session opened it. A second call does nothing."""
        await self._adapter_store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- reading ----------------------------------------------------------------------------------------

    async def _items(self, limit: int | None) -> list[Item]:
        """Return the items of the last `limit` messages, or of all messages; `Corrupt` if they are damaged."""
        return await self._adapter_store.read(partial(self._read_items, limit))

    def _read_items(self, limit: int | None) -> list[Item]:
        handle = self._messages
        tip = handle._tip()  # noqa: SLF001 - `latest` without reading the tags
        if tip is None or tip.head is None:
            return []
        head = handle._checkpoint(tip, tip.head, tags=())  # noqa: SLF001 - as above
        try:
            stored = head.get("messages") if limit is None else head.tail("messages", limit)
        except (NotFound, Invalid) as error:
            raise self._corrupt("has no list of messages") from error
        if not isinstance(stored, list):
            raise self._corrupt("has no list of messages")
        return [item for message in stored for item in items_of(message, f"a message of session {self.session_id!r}")]

    async def _unanswered(self, items: list[Item], before: frozenset[str]) -> list[int]:
        """Return the positions of calls that need a repair: calls without an answer whose tool does not run.

        `before` are the calls whose tools ran before the items were read. Tools that run now count as running, too: a
        call may have been answered, or added, while the items were read.
        """
        awaited = before | self._awaited.of(self.session_id)
        positions = [at for at in unanswered_calls(items) if items[at]["call_id"] not in awaited]
        paused = await self._paused_run() if positions else None
        return (
            positions if paused is None else [at for at in positions if items[at]["call_id"] not in paused["waiting"]]
        )

    async def _paused_run(self) -> dict[str, Any] | None:
        head = await self._run.latest()
        if head is None:
            return None
        state = await head.load_state()
        is_run = isinstance(state, dict) and isinstance(state.get("waiting"), list) and type(state.get("run")) is dict
        if not is_run:
            raise self._corrupt("has a damaged paused run")
        return cast("dict[str, Any]", state)

    def _corrupt(self, what: str) -> Corrupt:
        return Corrupt(f"session {self.session_id!r} {what}", code="corrupt.state")

    async def _last_user_message(self, head: aio.Checkpoint[Any]) -> tuple[int, dict[str, Any]]:
        """Return the position of the last user message, counted from the end, and the message."""
        count = _TAIL
        while True:
            messages = await head.tail("messages", count)
            for back, message in enumerate(reversed(messages), 1):
                if isinstance(message, dict) and message.get("role") == Role.USER:
                    return -back, message
            if len(messages) < count:
                raise NotFound(f"session {self.session_id!r} has no turn yet", code="not_found.message")
            count *= 8

    async def _end_of(self, number: int) -> str:
        for turn in await self.turns():
            if turn.number == number:
                return turn.last_id
        raise NotFound(f"session {self.session_id!r} has no turn {number}", code="not_found.message")

    @called
    async def _pop(self) -> list[Message]:
        await self._items(1)  # a damaged item raises before the pop
        return await self._conversations.pop(self.session_id)

    @called
    async def _change(self, change: Callable[[aio.Checkpoint[Any]], Awaitable[None]]) -> bool:
        """Call `change` with the conversation's head, again after each conflict; False if there is no conversation."""
        while (head := await self.thread.latest()) is not None:
            try:
                await change(head)
            except Conflict:
                continue
            return True
        return False


def _call_id(item: Any) -> str | None:
    """Return the call id of an approval item; None if it has none."""
    raw = item.raw_item
    return raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine to its end even if the caller's task is cancelled; then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
