# Made from src/backtrail/agents/repository.py by tools/generate_aio.py: change it there, then `make aio`.
"""Agents of the async mirror, and the points to which each can be brought back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from backtrail.aio.blocks import Guard, called
from backtrail.aio.checkpoint import plain
from backtrail.aio.scheduler import AutoCheckpoint
from backtrail.aio.thread import Thread

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from backtrail.agents import repository as sync
    from backtrail.agents.repository import AgentCheckpoints, AgentInfos, AgentVersions, PastCalls
    from backtrail.aio.executor import Crew
    from backtrail.entities import AgentState
    from backtrail.models import AgentCheckpoint
    from backtrail.thread import Ref


class Agents:
    """The agents of a store: `store.agents`."""

    def __init__(self, crew: Crew, agents: sync.Agents) -> None:
        self._crew = crew
        self._sync = agents

    @called
    async def save(self, state: AgentState, *, replace: bool = False) -> AgentState:
        """Save an agent's state, on top of what it came from; a new one must be the first of its id, or `replace`."""
        return await self._crew.write(self._sync.save, state, replace=replace)

    @called
    async def load(self, agent_id: str, *, at: Ref = "@") -> AgentState:
        """Return an agent's state, or `NotFound`; `at` a checkpoint of its thread, or of the agent, not the newest."""
        return await self._crew.apart(self._sync.load, agent_id, at=plain(at))

    @called
    async def get(self, agent_id: str) -> AgentState | None:
        """Return an agent's state, or None."""
        return await self._crew.apart(self._sync.get, agent_id)

    @called
    async def list(self, *, limit: int | None = None, after: str | None = None) -> AgentInfos:
        """Return the agents that have a state, newest activity first; one whose state is damaged says so.

        `after` goes on behind an entry of an earlier listing: its `cursor`.
        """
        return await self._crew.apart(self._sync.list, limit=limit, after=after)

    @called
    async def history(self, agent_id: str, *, newest_first: bool = False, limit: int | None = None) -> AgentVersions:
        """Return the versions of an agent's state that are in view, each with what changed in it."""
        return await self._crew.apart(self._sync.history, agent_id, newest_first=newest_first, limit=limit)

    def thread(self, agent_id: str) -> Thread[Any]:
        """Return a handle of the agent's thread: its states are plain data."""
        made: Thread[Any] = Thread(self._crew, self._sync.thread(agent_id))
        return made

    @called
    async def delete(self, agent_id: str) -> bool:
        """Delete an agent with all that belongs to it: conversations, runs, threads, checkpoints. Say if there was any.

        Nothing brings it back. `gc` then removes what it held.
        """
        return await self._crew.apart(self._sync.delete, agent_id)

    @called
    async def checkpoint(
        self,
        agent_id: str,
        name: str,
        *,
        description: str | None = None,
        kind: str = "manual",
        keep: int | None = None,
    ) -> AgentCheckpoint:
        """Make a point to which the agent and all its conversations can be brought back; it costs what changed.

        `keep` keeps so many automatic ones of this agent, the newest.
        """
        return await self._crew.apart(
            self._sync.checkpoint, agent_id, name, description=description, kind=kind, keep=keep
        )

    @called
    async def checkpoints(self, agent_id: str) -> AgentCheckpoints:
        """Return an agent's checkpoints, newest first."""
        return await self._crew.apart(self._sync.checkpoints, agent_id)

    @called
    async def get_checkpoint(self, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return an agent's checkpoint, or None."""
        return await self._crew.apart(self._sync.get_checkpoint, checkpoint_id)

    @called
    async def restore(self, checkpoint_id: str | AgentCheckpoint, *, agent_id: str | None = None) -> AgentState:
        """Bring an agent and all its conversations back to a checkpoint, exactly, all or nothing.

        It is verified first. Conversations that were made later go out of view, deleted ones are back; `undo` takes it
        back. If `agent_id` is given, it must be that agent's.
        """
        return await self._crew.apart(self._sync.restore, plain(checkpoint_id), agent_id=agent_id)

    @called
    async def irreversible(self, checkpoint_id: str | AgentCheckpoint) -> PastCalls:
        """Return the calls of the agent's runs that were made after a checkpoint and cannot be undone outside."""
        return await self._crew.apart(self._sync.irreversible, plain(checkpoint_id))

    @called
    async def undo(self, agent_id: str, *, force: bool = False) -> AgentState | None:
        """Take back the last restore, everything as it was before it; return the agent's state, if it had one.

        `Conflict` if the agent or conversations of it have moved on since, which it names; `force` goes back all the
        same.
        """
        return await self._crew.apart(self._sync.undo, agent_id, force=force)

    @called
    async def forget_undos(self, agent_id: str) -> int:
        """Let go of what restores could be undone to, for good, and say how many restores that were.

        What an undo can bring back is kept; after this, only checkpoints keep what was deleted.
        """
        return await self._crew.apart(self._sync.forget_undos, agent_id)

    @called
    async def delete_checkpoint(self, checkpoint_id: str | AgentCheckpoint) -> bool:
        """Delete an agent's checkpoint and say whether there was one."""
        return await self._crew.apart(self._sync.delete_checkpoint, plain(checkpoint_id))

    def guard(self, agent_id: str, name: str, *, rollback: bool = False) -> Guard:
        """Make a checkpoint before a block that may go wrong.

        With `rollback`, an exception brings the agent back to it, and a checkpoint of kind recovery says so.
        """
        return Guard(self._crew, self._sync, agent_id, name, rollback=rollback)

    def autocheckpoint(
        self,
        agent_ids: str | Iterable[str],
        *,
        enabled: bool = True,
        interval: dt.timedelta | float = 300,
        keep: int = 10,
        on_error: Callable[[str, Exception], None] | None = None,
    ) -> AutoCheckpoint:
        """Make a checkpoint of each of these agents now and every `interval` seconds, until it is stopped.

        It is a task and needs a running event loop, in which `on_error` is called.

        Agents that are not there are skipped. Errors go to the log and to `on_error`, with the agent's id. It keeps the
        newest `keep` automatic checkpoints of each agent. Not `enabled`, it does nothing.
        """
        make = partial(self._sync.autocheckpoint, agent_ids, interval=interval, keep=keep, enabled=False)
        return AutoCheckpoint(self._crew, lambda tell: make(on_error=tell), on_error, enabled=enabled)
