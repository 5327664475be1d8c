"""`BacktrailSession`: the session of an agent, which is a conversation of a store.

What always holds: the items come back as they were added, in the order that the store gave them. A call of the protocol
that changes something is one write, which is done even if its task is cancelled; nothing is removed, so
`session.thread` can go back. What a paused run needs to go on is a thread of its own, beside the conversation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from agents.memory import Session, SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.run_state import RunState

from backtrail.adapters.openai import turns
from backtrail.adapters.openai.items import items_of, message_of
from backtrail.adapters.openai.repair import awaited_in, orphans, repair_of, repaired
from backtrail.adapters.opening import Opened
from backtrail.aio.blocks import called
from backtrail.entities import Role, to_data
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.validation import check_count, check_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from agents import Agent, RunResultBase
    from agents.items import TResponseInputItem

    from backtrail import aio
    from backtrail.adapters.openai.items import Item
    from backtrail.adapters.openai.repair import Repair
    from backtrail.adapters.opening import Source
    from backtrail.entities import Message
    from backtrail.models import ConversationInfo, Hit

T = TypeVar("T")
AGENT: Final = "openai-agents"
"""The owner of sessions that name none."""
_RUN: Final = "openai-run:"
"""How the thread of a session's paused run is called, with the session's id."""
_MAX_ID: Final = 500
_LOOK: Final = 64
"""So many messages are read at first to find the one that began the last turn."""


class BacktrailSession(Session):
    """A session in a store: `Runner.run(agent, "hello", session=BacktrailSession("trip", "sqlite:///agents.db"))`.

    `store` is a store, of either kind, or a URL; what is opened here is closed by `close` or `aclose`. `agent` is whom
    the conversation belongs to. Without `repair`, calls that have no output are given as they are.
    """

    def __init__(
        self,
        session_id: str,
        store: Source,
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
        self._opened = Opened(store)
        self._store = self._opened.aio
        self._conversations = self._store.conversations
        self._awaited = awaited_in(self._opened.sync)
        self._run: aio.Thread[Any] = self._store.thread(_RUN + session_id, agent=agent)

    def __repr__(self) -> str:
        return f"<BacktrailSession {self.session_id!r} of {self.agent!r}>"

    @property
    def thread(self) -> aio.Thread[Any]:
        """The thread underneath: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        return self._conversations.thread(self.session_id)

    # -- the protocol -----------------------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the latest items, oldest first: as many as `limit`, or else `session_settings.limit`, or all."""
        limit = resolve_session_limit(limit, self.session_settings)
        if limit is not None:
            check_count(limit, "limit")
        before = self._awaited(self.session_id)
        items = await self._items(limit)
        found = repaired(items, await self._orphans(items, before)) if self._repair else items
        return cast("list[TResponseInputItem]", found if limit is None else found[max(len(found) - limit, 0) :])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items, all or none, behind what is there then."""
        messages = [message_of(item, f"items[{place}]") for place, item in enumerate(items)]
        if messages:
            raw = [message.raw for message in messages]
            self._awaited.calls(self.session_id, raw)
            await _done(self._conversations.append(self.session_id, *messages, agent_id=self.agent))
            self._awaited.answers(self.session_id, raw)
        else:
            await self.thread.latest()  # nothing to add to a store that is closed is an error, too

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item out and return it, or None. Those who pop at once get different ones."""
        try:
            taken = await _done(self._popped())
        except NotFound:
            return None
        items = [item for message in taken for item in items_of(to_data(message), "what was popped")]
        return cast("TResponseInputItem", items[-1]) if items else None

    async def clear_session(self) -> None:
        """Take all items out, and forget the run that was kept. The conversation stays, and so does its history."""

        async def clear(head: aio.Checkpoint[Any]) -> None:
            await self.thread.set("messages", [], expect=cast("Any", head))

        await _done(self._change(clear))
        await self.drop_run()

    # -- turns ------------------------------------------------------------------------------------------

    async def turns(self) -> list[turns.Turn]:
        """Return the turns, oldest first."""
        found = await self._conversations.get(self.session_id)
        return turns.turns_of(found.messages) if found is not None else []

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Keep what a run used with the turn that is the last one now."""
        usage = turns.usage_of(result)

        async def keep(head: aio.Checkpoint[Any]) -> None:
            place, message = await self._last_of_user(head)
            metadata = {**message.get("metadata", {}), turns.USAGE: usage}
            await self.thread.set(("messages", place, "metadata"), metadata, expect=cast("Any", head))

        if not await _done(self._change(keep)):
            raise NotFound(f"session {self.session_id!r} has no turn yet", code="not_found.message")

    async def usage(self) -> dict[str, int]:
        """Return what all turns used together, as far as it was kept."""
        return turns.total(await self.turns())

    # -- branches, search -------------------------------------------------------------------------------

    async def fork(self, new_session_id: str, *, at: int | str | None = None) -> BacktrailSession:
        """Begin a session that has all of this one up to `at`: a turn, all of it, or the id of a message.

        It shares the store of this one, which must stay open.
        """
        made = BacktrailSession(
            new_session_id,
            self._store,
            agent=self.agent,
            session_settings=self.session_settings,
            repair=self._repair,
        )
        last = await self._end_of(at) if isinstance(at, int) else at
        await _done(self._conversations.fork(self.session_id, at=last, new_id=new_session_id))
        return made

    async def branches(self) -> list[ConversationInfo]:
        """Return the sessions that were forked from this one, oldest first."""
        return await self._conversations.branches(self.session_id)

    async def search(self, query: str, *, limit: int = 20, contains: bool = False) -> list[Hit]:
        """Return the messages of this session that match, newest first; `store.search` looks at all sessions."""
        kind = "conversation"
        return await self._store.search(query, thread=self.session_id, kind=kind, limit=limit, contains=contains)

    # -- repairs ----------------------------------------------------------------------------------------

    async def repairs(self) -> list[Repair]:
        """Return the calls without an output that `get_items` answers, oldest first."""
        before = self._awaited(self.session_id)
        items = await self._items(None)
        return [repair_of(items[place]) for place in await self._orphans(items, before)] if self._repair else []

    # -- paused runs ------------------------------------------------------------------------------------

    async def save_run(self, paused: RunResultBase | RunState[Any, Any], **options: Any) -> None:
        """Keep a run that waits for approvals; `options` are those of `RunState.to_json`.

        On top of what this task has loaded, if it has: when somebody else has saved since, it is a `Conflict`.
        """
        state = paused if isinstance(paused, RunState) else cast("Any", paused).to_state()
        waiting = [_call_id(item) for item in state.get_interruptions()]
        await _done(self._run.save({"run": state.to_json(**options), "waiting": waiting}))

    async def load_run(self, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """Return the run that was kept, or None; `options` are those of `RunState.from_json`."""
        kept = await self._kept()
        return None if kept is None else await RunState.from_json(agent, kept["run"], **options)

    async def drop_run(self) -> bool:
        """Forget the run that was kept, and say whether there was one: of several who call, one is told so."""
        return await _done(self._run.delete())

    # -- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store if it was opened here; twice is allowed."""
        self._opened.close()

    async def aclose(self) -> None:
        """Close the store if it was opened here, when all that was begun is done; twice is allowed."""
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- reading ----------------------------------------------------------------------------------------

    async def _items(self, limit: int | None) -> list[Item]:
        """Return the items of the last messages, or of all, as they were added."""
        head = await self.thread.latest()
        if head is None:
            return []
        try:
            stored = await (head.get("messages") if limit is None else head.tail("messages", limit))
        except (NotFound, Invalid) as error:
            raise self._corrupt("has no list of messages") from error
        if not isinstance(stored, list):
            raise self._corrupt("has no list of messages")
        return [item for message in stored for item in items_of(message, f"a message of session {self.session_id!r}")]

    async def _orphans(self, items: list[Item], before: frozenset[str]) -> list[int]:
        """Return the places of calls that nobody will answer; `before` were awaited before the items were read.

        One that was answered since is not there yet, and one that was added since is awaited only now.
        """
        awaited = before | self._awaited(self.session_id)
        found = [place for place in orphans(items) if items[place]["call_id"] not in awaited]
        kept = await self._kept() if found else None
        return found if kept is None else [place for place in found if items[place]["call_id"] not in kept["waiting"]]

    async def _kept(self) -> dict[str, Any] | None:
        head = await self._run.latest()
        if head is None:
            return None
        kept = await head.load_state()
        if not isinstance(kept, dict) or not isinstance(kept.get("waiting"), list) or type(kept.get("run")) is not dict:
            raise self._corrupt("has a paused run that is none")
        return kept

    def _corrupt(self, what: str) -> Corrupt:
        return Corrupt(f"session {self.session_id!r} {what}", code="corrupt.state")

    async def _last_of_user(self, head: aio.Checkpoint[Any]) -> tuple[int, dict[str, Any]]:
        """Return the place, from the end, of the message that began the last turn, and the message."""
        look = _LOOK
        while True:
            found = await head.tail("messages", look)
            for back, message in enumerate(reversed(found), 1):
                if isinstance(message, dict) and message.get("role") == Role.USER:
                    return -back, message
            if len(found) < look:
                raise NotFound(f"session {self.session_id!r} has no turn yet", code="not_found.message")
            look *= 8

    async def _end_of(self, number: int) -> str:
        for turn in await self.turns():
            if turn.number == number:
                return turn.last_id
        raise NotFound(f"session {self.session_id!r} has no turn {number}", code="not_found.message")

    @called
    async def _popped(self) -> list[Message]:
        await self._items(1)  # one that is damaged is told before it is taken out
        return await self._conversations.pop(self.session_id)

    @called
    async def _change(self, change: Callable[[aio.Checkpoint[Any]], Awaitable[None]]) -> bool:
        """Change the conversation as it stands, again if somebody else was quicker; False if there is none."""
        while (head := await self.thread.latest()) is not None:
            try:
                await change(head)
            except Conflict:
                continue
            return True
        return False


def _call_id(item: Any) -> str | None:
    """Return the id of a call that waits for an approval."""
    raw = item.raw_item
    return raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)


async def _done(work: Coroutine[Any, Any, T]) -> T:
    """Wait until something is done, however often the caller is cancelled meanwhile; then the cancellation goes on."""
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
