"""The runs of a store: what is known of each, its checkpoints, and what an operator may do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import journal
from backtrail.engine.journal import Journal
from backtrail.entities import Message
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.maintenance import retention
from backtrail.maintenance.retention import Policy
from backtrail.models import MISSING, when
from backtrail.runs.calls import record_of
from backtrail.runs.history import RunThread
from backtrail.runs.points import irreversible
from backtrail.runs.recorder import INTERRUPTED, JOURNAL, MOVES, SPACE, Work, leased, noted
from backtrail.runs.strategies import RunState, RunStatus, ToolCallRecord
from backtrail.thread import Thread
from backtrail.validation import LEASE, check_count, check_id, plain

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.journal import Call
    from backtrail.runs.run import Run
    from backtrail.runs.strategies import Strategy
    from backtrail.transaction import Desk, Engine

    Checkpoints = list[Checkpoint[Any]]
    Records = list["RunRecord"]
    Calls = list[ToolCallRecord]
    Opened = list[Run]

_PAGE: Final = 200
_MANY: Final = 10_000
"""Rows of a listing that is gone through to its end: each page takes a look at all threads."""


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
    conversation: str | None = None
    """The conversation that its messages go to, too."""
    damaged: str | None = None
    """Why it cannot be read, in a listing of runs: the others are listed all the same."""


class Runs:
    """The runs of a store: `store.runs`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self, session_id: str) -> RunRecord:
        """Return a run, or `NotFound`."""
        session_id = check_id(session_id, "a session's id")
        data, _ = Work(self._engine, session_id, None).point(self._engine.desk)
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
        standing = self._engine.desk.heads.standing(JOURNAL, plain(session_id))
        return standing is not None and standing.head is not None

    def list(self, *, agent: str | None = None, status: str | None = None, limit: int | None = None) -> Records:
        """Return the runs, newest activity first; no more than `limit` of them are read."""
        if limit is not None:
            check_count(limit, "limit")
        if status is not None and status not in [*RunState]:
            raise Invalid(f"status is one of {', '.join(RunState)}, not {status!r:.100}", code="invalid.argument")
        found = (self._told(record) for record in self._standing_as(status, agent))
        wanted = (run for run in found if run is not None and (run.damaged or status in (None, run.status.name)))
        return [*islice(wanted, limit)]

    def _standing_as(self, status: str | None, agent: str | None) -> Iterator[ThreadRecord]:
        """Give the runs that may have a status, by what the newest rows of their journals say; None: any."""
        if status is None:
            yield from (record for record, _ in self._listed(JOURNAL, agent))
            return
        checkpoints = self._listed(SPACE, agent, _MANY)
        moved = {record.name for record, newest in checkpoints if newest.op in MOVES}
        for record, newest in self._listed(JOURNAL, agent, _MANY):
            if noted(record, newest).get("status", status) == status or record.name in moved:
                yield record

    def recover(
        self,
        *,
        agent: str | None = None,
        strategy: Strategy | None = None,
        lease: dt.timedelta | float = LEASE,
        errors: Iterable[type[Exception]] | Mapping[type[Exception], Iterable[str]] = (),
        types: Iterable[Any] = (),
    ) -> Opened:
        """Return the runs that were cut short, newest activity first, each to be entered: `with run:`.

        Those are the ones whose worker is gone, so that its lease has ended, and those that Ctrl-C or a cancellation
        left. The other arguments are those of `store.run`.
        """
        from backtrail.runs.run import Run  # noqa: PLC0415 - who only looks at runs does without

        rows = self._listed(JOURNAL, agent, _MANY)
        left = [record for record, newest in rows if self._may_be_cut_short(record, newest)]
        found = [run for record in left if (run := self._told(record)) is not None and self._is_cut_short(run)]
        named, classes = ([*each] if isinstance(each, Iterator) else each for each in (errors, types))
        opened = partial(Run, self._engine, strategy=strategy, lease=lease, errors=named, types=classes)
        return [opened(run.session_id) for run in found]

    def _may_be_cut_short(self, record: ThreadRecord, newest: Row) -> bool:
        note = noted(record, newest)
        return "status" not in note or "interrupted" in note

    def _is_cut_short(self, run: RunRecord) -> bool:
        now = when(self._engine.desk.heads.shared_time())
        gone = run.status.name == RunState.IN_PROGRESS and (run.until is None or run.until <= now)
        return not run.damaged and (gone or (run.status.name, run.status.reason) == INTERRUPTED)

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

    def _listed(self, space: str, agent: str | None, size: int = _PAGE) -> Iterator[tuple[ThreadRecord, Row]]:
        agent = None if agent is None else check_id(agent, "an agent's id")
        after: tuple[int, int] | None = None
        while True:
            backend = self._engine.desk.heads.backend
            page = backend.threads(space=space, agent=agent, prefix=None, after=after, limit=size)
            yield from page
            if len(page) < size:  # where to go on may be told by a row that is damaged
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
        found = [c for record, _ in self._listed(SPACE, agent) for c in self.thread(record.name).history()]
        return sorted(found, key=_age, reverse=True)

    def latest(self, agent: str) -> Checkpoint[Any] | None:
        """Return the newest checkpoint of an agent's runs, or None."""
        heads = (self.thread(record.name).latest() for record, _ in self._listed(SPACE, agent))
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
            return retention.prune(self._engine, keep, (SPACE,), agent=agent)
        check_count(keep, "keep")
        found = [c for record, _ in self._listed(SPACE, agent) for c in self._all(record.name)]
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
        conversation=data.get("conversation"),
    )
