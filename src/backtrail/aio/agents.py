# Made from src/backtrail/agents/repository.py by tools/generate_aio.py: change it there, then `make aio`.
"""Agents of the async mirror, and their checkpoints."""

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
    from backtrail.agents.models import AgentState
    from backtrail.agents.repository import AgentCheckpoints, AgentInfos, AgentVersions, PastCalls
    from backtrail.aio.executor import Executor
    from backtrail.models import AgentCheckpoint, ErasureReport
    from backtrail.thread import Ref


class Agents:
    """The agents of a store: `store.agents`."""

    def __init__(self, executor: Executor, agents: sync.Agents) -> None:
        self._executor = executor
        self._sync = agents

    @called
    async def save(self, state: AgentState, *, replace: bool = False) -> AgentState:
        """Save an agent's state on top of the version it was loaded from; `Conflict` if there is a newer version.

        A new state needs an id that does not exist yet. `replace` saves in both cases.
        """
        return await self._executor.write(self._sync.save, state, replace=replace)

    @called
    async def load(self, agent_id: str, *, at: Ref = "@") -> AgentState:
        """Return an agent's state, or raise `NotFound`.

        `at` names an older state: by a checkpoint of the state's own thread, or by a checkpoint of the agent.
        """
        return await self._executor.apart(self._sync.load, agent_id, at=plain(at))

    @called
    async def get(self, agent_id: str) -> AgentState | None:
        """Return an agent's state, or None."""
        return await self._executor.apart(self._sync.get, agent_id)

    @called
    async def list(
        self,
        *,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AgentInfos:
        """Return the agents that have a state, newest activity first. A damaged state is listed with its error.

        `since` and `until` list agents whose state was last written in that time. `after` continues after an entry of
        an earlier listing: its `cursor`.
        """
        return await self._executor.apart(self._sync.list, since=since, until=until, limit=limit, after=after)

    @called
    async def history(self, agent_id: str, *, newest_first: bool = False, limit: int | None = None) -> AgentVersions:
        """Return the visible versions of an agent's state, each with its changes."""
        return await self._executor.apart(self._sync.history, agent_id, newest_first=newest_first, limit=limit)

    def thread(self, agent_id: str) -> Thread[Any]:
        """Return a handle of the agent's thread. Its states are plain data."""
        made: Thread[Any] = Thread(self._executor, self._sync.thread(agent_id))
        return made

    async def erase(
        self,
        agent_id: str | Iterable[str],
        *,
        forks: bool = True,
        force: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> ErasureReport:
        """Erase an agent, or several, with their conversations, runs, threads and checkpoints, and every byte of them.

        Unlike `delete`, nothing can bring it back. `forks=False` keeps what was forked from its threads and belongs to
        other agents. A run with a worker is a `Conflict`, unless `force` is set. An interrupted call is finished by the
        next one. See docs/erasure.md.
        """
        work = partial(self._sync.erase, agent_id, forks=forks, force=force)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    @called
    async def delete(self, agent_id: str) -> bool:
        """Delete an agent with its conversations, runs, threads and checkpoints; return whether anything existed.

        This cannot be undone. `gc` then frees the space.
        """
        return await self._executor.apart(self._sync.delete, agent_id)

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
        """Make a checkpoint of the agent with all its conversations. Its cost depends on the changes since the last.

        With `keep`, hide all but the newest `keep` automatic checkpoints of this agent.
        """
        return await self._executor.apart(
            self._sync.checkpoint, agent_id, name, description=description, kind=kind, keep=keep
        )

    @called
    async def checkpoints(self, agent_id: str) -> AgentCheckpoints:
        """Return an agent's checkpoints, newest first."""
        return await self._executor.apart(self._sync.checkpoints, agent_id)

    @called
    async def get_checkpoint(self, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return an agent's checkpoint, or None."""
        return await self._executor.apart(self._sync.get_checkpoint, checkpoint_id)

    @called
    async def restore(self, checkpoint_id: str | AgentCheckpoint, *, agent_id: str | None = None) -> AgentState:
        """Restore an agent and all its conversations from a checkpoint, all or nothing; return the agent's state.

        The checkpoint is verified first. Later conversations go out of view, and deleted ones return. Erased ones do
        not: the warning `Erased` names them. `undo` reverts the restore. `agent_id`, if given, must be the agent of the
        checkpoint.
        """
        return await self._executor.apart(self._sync.restore, plain(checkpoint_id), agent_id=agent_id)

    @called
    async def irreversible(self, checkpoint_id: str | AgentCheckpoint) -> PastCalls:
        """Return the irreversible calls that the agent's runs made after a checkpoint."""
        return await self._executor.apart(self._sync.irreversible, plain(checkpoint_id))

    @called
    async def undo(self, agent_id: str, *, force: bool = False) -> AgentState | None:
        """Undo the last restore; return the agent's state from before the restore, if it had one.

        `Conflict` if the agent or its conversations have changed since the restore; the error names them. `force`
        undoes the restore anyway.
        """
        return await self._executor.apart(self._sync.undo, agent_id, force=force)

    @called
    async def forget_undos(self, agent_id: str) -> int:
        """Make all restores permanent, and return how many could be undone before.

        Until this call, the store keeps the data that an undo needs. After it, only checkpoints keep deleted data.
        """
        return await self._executor.apart(self._sync.forget_undos, agent_id)

    @called
    async def delete_checkpoint(self, checkpoint_id: str | AgentCheckpoint) -> bool:
        """Delete an agent's checkpoint and return whether it existed."""
        return await self._executor.apart(self._sync.delete_checkpoint, plain(checkpoint_id))

    def guard(self, agent_id: str, name: str, *, rollback: bool = False) -> Guard:
        """Make a checkpoint before a block that may fail.

        With `rollback`, an exception in the block restores the agent, and makes a checkpoint of kind "recovery".
        """
        return Guard(self._executor, self._sync, agent_id, name, rollback=rollback)

    def autocheckpoint(
        self,
        agent_ids: str | Iterable[str],
        *,
        enabled: bool = True,
        interval: dt.timedelta | float = 300,
        keep: int = 10,
        on_error: Callable[[str, Exception], None] | None = None,
    ) -> AutoCheckpoint:
        """Make a checkpoint of each agent now and every `interval` seconds, until the returned scheduler is stopped.

        The scheduler is a task. It needs a running event loop, and calls `on_error` there.

        It skips agents without a state. Errors go to the log and to `on_error`, with the agent's id. It keeps the
        newest `keep` automatic checkpoints of each agent. With `enabled=False`, it does not start.
        """
        make = partial(self._sync.autocheckpoint, agent_ids, interval=interval, keep=keep, enabled=False)
        return AutoCheckpoint(self._executor, lambda tell: make(on_error=tell), on_error, enabled=enabled)
