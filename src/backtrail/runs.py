"""The runs of a store: what is known of each, its checkpoints, and what an operator may do about it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail import pruning
from backtrail.arguments import check_count, check_id
from backtrail.engine import journal
from backtrail.engine.journal import Journal
from backtrail.entities import Message
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.policies import Policy
from backtrail.run_calls import record_of
from backtrail.run_history import RunThread
from backtrail.run_points import irreversible
from backtrail.run_threads import JOURNAL, SPACE, Work, leased
from backtrail.strategies import RunState, RunStatus, ToolCallRecord
from backtrail.threads import Thread
from backtrail.values import MISSING, when

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from backtrail.backends.port import ThreadRecord
    from backtrail.checkpoints import Checkpoint
    from backtrail.engine.engine import Desk, Engine
    from backtrail.engine.journal import Call

    Checkpoints = list[Checkpoint[Any]]
    Records = list["RunRecord"]
    Calls = list[ToolCallRecord]

_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it is stored: the beginning of the iteration that it is in, and what is in doubt."""

    session_id: str
    agent: str | None
    status: RunStatus
    iteration: int
    messages: tuple[Message, ...]
    tool_calls: tuple[ToolCallRecord, ...]
    partial_results: tuple[Any, ...]
    state: Any
    in_doubt: tuple[Call, ...]
    created_at: dt.datetime
    owner: str | None
    """Who works on it."""
    until: dt.datetime | None
    """Until when, if the lease is not renewed."""
    damaged: str | None = None
    """Why it cannot be read, in a listing of runs: the others are listed all the same."""


class Runs:
    """The runs of a store: `store.runs`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self, session_id: str) -> RunRecord:
        """Return a run, or `NotFound`."""
        data, _ = Work(self._engine, check_id(session_id, "a session's id"), None).point(self._engine.desk)
        if data is None:
            raise NotFound(f"there is no run {session_id!r}", code="not_found.run")
        return _record(session_id, data)

    def get(self, session_id: str) -> RunRecord | None:
        """Return a run, or None."""
        try:
            return self.load(session_id)
        except NotFound:
            return None

    def __contains__(self, session_id: object) -> bool:
        """Tell whether there is such a run."""
        if not isinstance(session_id, str) or not session_id:
            return False
        standing = self._engine.desk.heads.standing(JOURNAL, session_id)
        return standing is not None and standing.head is not None

    def list(self, *, agent: str | None = None, status: str | None = None, limit: int | None = None) -> Records:
        """Return the runs, newest activity first; no more than `limit` of them are read."""
        if limit is not None:
            check_count(limit, "limit")
        if status is not None and status not in [*RunState]:
            raise Invalid(f"status is one of {', '.join(RunState)}, not {status!r:.100}", code="invalid.argument")
        found = (self._told(record) for record in self._listed(JOURNAL, agent))
        wanted = (run for run in found if run is not None and (run.damaged or status in (None, run.status.name)))
        return [*islice(wanted, limit)]

    def _told(self, record: ThreadRecord) -> RunRecord | None:
        """Return a run; if it cannot be read, what is known of it."""
        try:
            return self.get(record.name)
        except (Corrupt, Invalid) as error:  # Invalid: its classes are not what they were
            status = RunStatus(str(RunState.FAILED), str(error))
            began = when(record.created_at)
            return RunRecord(
                record.name, record.agent, status, 0, (), (), (), None, (), began, None, None, damaged=str(error)
            )

    def _listed(self, space: str, agent: str | None) -> Iterator[ThreadRecord]:
        if agent is not None:
            check_id(agent, "an agent's id")
        after: tuple[int, int] | None = None
        while True:
            backend = self._engine.desk.heads.backend
            page = backend.threads(space=space, agent=agent, prefix=None, after=after, limit=_PAGE)
            yield from (record for record, _ in page)
            if len(page) < _PAGE:  # where to go on may be told by a row that is damaged
                return
            after = (page[-1][1].created_at, page[-1][0].no)

    # -- checkpoints ------------------------------------------------------------------------------------

    def thread(self, session_id: str) -> Thread[Any]:
        """Return the thread of a run's checkpoints: history, diff, fork, rewind ..."""
        return RunThread(self._engine, check_id(session_id, "a session's id"))

    def irreversible(self, session_id: str, ref: Any = None) -> Calls:
        """Return the calls of a run that cannot be undone outside; `ref`: those that this checkpoint is before."""
        if ref is not None:
            return RunThread(self._engine, check_id(session_id, "a session's id")).passed(ref)
        data, _ = Work(self._engine, check_id(session_id, "a session's id"), None).point(self._engine.desk)
        return [] if data is None else [record_of(each) for each in irreversible(data)]

    def steps(self, session_id: str) -> Checkpoints:
        """Return the checkpoints of a run, ascending."""
        return [*self.thread(session_id).history()]

    def checkpoints(self, agent: str) -> Checkpoints:
        """Return the checkpoints of all runs of an agent, newest first."""
        found = [c for record in self._listed(SPACE, agent) for c in self.thread(record.name).history()]
        return sorted(found, key=_age, reverse=True)

    def latest(self, agent: str) -> Checkpoint[Any] | None:
        """Return the newest checkpoint of an agent's runs, or None."""
        heads = (self.thread(record.name).latest() for record in self._listed(SPACE, agent))
        found = [head for head in heads if head is not None]
        return max(found, key=_age, default=None)

    def _all(self, session_id: str) -> Checkpoints:
        """Return all checkpoints of a run, those that are out of view, too."""
        return [*self.thread(session_id).history(everything=True)]

    def prune(self, agent: str, keep: int | Policy) -> int:
        """Hide all but the newest checkpoints of an agent's runs, and return how many went.

        A number is that of all its runs together; a `Policy` is held against each run by itself, and the answer is a
        `PruneReport`. No run needs them to go on.
        """
        if isinstance(keep, Policy):
            return pruning.prune(self._engine, keep, (SPACE,), agent=agent)
        check_count(keep, "keep")
        found = [c for record in self._listed(SPACE, agent) for c in self._all(record.name)]
        surplus = sorted(found, key=_age)[: max(len(found) - keep, 0)]  # the oldest first: heads go last
        return sum(self.thread(each.thread_id).delete_checkpoint(each) for each in surplus)

    def cleanup(self, session_id: str) -> int:
        """Delete a run, whoever works on it, and return how many checkpoints went with it."""
        steps = len(self._all(session_id))
        for space in (SPACE, JOURNAL):
            Thread(self._engine, space, session_id).delete()
        return steps

    # -- calls in doubt -----------------------------------------------------------------------------------

    def settle(self, session_id: str, call_id: str, *, result: Any = MISSING, not_done: bool = False) -> None:
        """Say what became of a call that is in doubt: its result, or that it was not done."""
        if type(call_id) is not str or (result is MISSING) != not_done:
            raise Invalid("settle takes the id of a call, and result=... or not_done=True", code="invalid.argument")
        when_told = self._engine.direct.heads.clock()
        entry = [journal.NOT_DONE, call_id] if not_done else [journal.RESULT, call_id, True, result, when_told]
        work = Work(self._engine, check_id(session_id, "a session's id"), None)

        def write(desk: Desk) -> None:
            work.settle_move(desk)  # from here on, it stands there
            data, _ = work.point(desk)
            if data is None:
                raise NotFound(f"there is no run {session_id!r}", code="not_found.run")
            lease = data["lease"]
            if lease is not None and lease[2] > desk.heads.shared_time():
                raise leased(session_id, lease)
            where = next((name for name in ("calls", "zero") if Journal(data[name]).call(call_id)), None)
            found = None if where is None else Journal(data[where]).call(call_id)
            if where is None or found is None:
                raise NotFound(f"run {session_id!r} has no call {call_id!r}", code="not_found.call")
            if found.result is not None:
                raise Conflict(f"call {call_id!r} of run {session_id!r} is not in doubt", code="conflict.settled")
            work.put(desk, work.added(where, [entry]))

        self._engine.atomic(write)


def _age(checkpoint: Checkpoint[Any]) -> tuple[Any, int]:
    return checkpoint.created_at, checkpoint.seq


def _record(session_id: str, data: dict[str, Any]) -> RunRecord:
    doubt = (call for name in ("zero", "calls") for call in Journal(data[name]).in_doubt())
    lease = data["lease"]
    return RunRecord(
        session_id=session_id,
        agent=data["agent"],
        status=RunStatus(*data["status"]),
        iteration=data["iteration"],
        messages=tuple(Message.from_data(each) for each in data["messages"]),
        tool_calls=tuple(record_of(each) for each in data["tool_calls"]),
        partial_results=tuple(data["partial_results"]),
        state=data["state"],
        in_doubt=tuple(doubt),
        created_at=data["created_at"],
        owner=None if lease is None else lease[0],
        until=None if lease is None else when(lease[2]),
    )
