# Made from src/backtrail/runs/repository.py by tools/generate_aio.py: change it there, then `make aio`.
"""Runs of the async mirror: operators list, read, settle and erase them here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from backtrail.aio.blocks import called
from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.run import Run
from backtrail.aio.thread import Thread
from backtrail.models import MISSING
from backtrail.validation import LEASE

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from backtrail.aio.executor import Executor
    from backtrail.maintenance.retention import Policy
    from backtrail.models import ErasureReport
    from backtrail.runs import repository as sync
    from backtrail.runs.repository import Calls, Records, RunRecord
    from backtrail.runs.strategies import Strategy

    Checkpoints = list[Checkpoint[Any]]
    Opened = list[Run]


class Runs:
    """The runs of a store: `store.runs`."""

    def __init__(self, executor: Executor, runs: sync.Runs) -> None:
        self._executor = executor
        self._sync = runs

    @called
    async def load(self, session_id: str) -> RunRecord:
        """Return a run, or `NotFound`."""
        return await self._executor.apart(self._sync.load, session_id)

    @called
    async def get(self, session_id: str) -> RunRecord | None:
        """Return a run, or None."""
        return await self._executor.apart(self._sync.get, session_id)

    @called
    async def has(self, session_id: object) -> bool:
        """Tell whether a run with this id exists."""
        return await self._executor.apart(self._sync.__contains__, session_id)

    @called
    async def list(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
    ) -> Records:
        """Return the runs, newest activity first, at most `limit` of them.

        `since` and `until` list runs whose last write was in that time.
        """
        return await self._executor.apart(
            self._sync.list, agent=agent, status=status, since=since, until=until, limit=limit
        )

    @called
    async def recover(
        self,
        *,
        agent: str | None = None,
        strategy: Strategy | None = None,
        lease: dt.timedelta | float = LEASE,
        errors: Iterable[type[Exception]] | Mapping[type[Exception], Iterable[str]] = (),
        types: Iterable[Any] = (),
    ) -> Opened:
        """Return the interrupted runs, newest activity first, each to be entered: `with run:`.

        A run is interrupted if its worker is gone, so that the lease has ended, or if Ctrl-C or a cancellation ended
        it. The other arguments are those of `store.run`.
        """
        found = await self._executor.apart(
            self._sync.recover, agent=agent, strategy=strategy, lease=lease, errors=errors, types=types
        )
        return [Run(self._executor, each) for each in found]

    def thread(self, session_id: str) -> Thread[Any]:
        """Return the thread of a run's checkpoints: history, diff, fork, rewind ..."""
        made: Thread[Any] = Thread(self._executor, self._sync.thread(session_id))
        return made

    @called
    async def irreversible(self, session_id: str, ref: Any = None) -> Calls:
        """Return the irreversible calls of a run; with `ref`, only those that were made after that checkpoint."""
        return await self._executor.apart(self._sync.irreversible, session_id, ref)

    @called
    async def steps(self, session_id: str) -> Checkpoints:
        """Return the checkpoints of a run, ascending."""
        found = await self._executor.apart(self._sync.steps, session_id)
        return [Checkpoint(self._executor, each) for each in found]

    @called
    async def checkpoints(self, agent: str) -> Checkpoints:
        """Return the checkpoints of all runs of an agent, newest first."""
        found = await self._executor.apart(self._sync.checkpoints, agent)
        return [Checkpoint(self._executor, each) for each in found]

    @called
    async def latest(self, agent: str) -> Checkpoint[Any] | None:
        """Return the newest checkpoint of an agent's runs, or None."""
        found = await self._executor.apart(self._sync.latest, agent)
        return None if found is None else Checkpoint(self._executor, found)

    @called
    async def prune(self, agent: str, keep: int | Policy) -> int:
        """Hide all but the newest checkpoints of an agent's runs, and return the number of hidden checkpoints.

        A number counts the checkpoints of all its runs together. A `Policy` applies to each run separately; then the
        return value is a `PruneReport`. No run needs its checkpoints to resume.
        """
        return await self._executor.apart(self._sync.prune, agent, keep)

    @called
    async def cleanup(self, session_id: str) -> int:
        """Delete a run, even if a worker has it, and return the number of deleted checkpoints."""
        return await self._executor.apart(self._sync.cleanup, session_id)

    async def erase(
        self,
        session_id: str | Iterable[str],
        *,
        forks: bool = True,
        force: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> ErasureReport:
        """Erase a run, or several, with its journal, its checkpoints and every byte of them; see docs/erasure.md.

        `Conflict` if a worker has the run, unless `force` is set. Runs that were forked from it are erased as well,
        unless `forks=False`. Messages that the run delivered to a conversation stay there.
        """
        work = partial(self._sync.erase, session_id, forks=forks, force=force)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)

    @called
    async def settle(self, session_id: str, call_id: str, *, result: Any = MISSING, not_done: bool = False) -> None:
        """Settle a call that is in doubt: with its result, or as not done."""
        return await self._executor.apart(self._sync.settle, session_id, call_id, result=result, not_done=not_done)
