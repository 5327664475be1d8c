"""`store.runs`: listing and reading runs, their checkpoints, and settling calls in doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.conversations.models import Message
from backtrail.engine import journal
from backtrail.engine.journal import Journal
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.loading import loading
from backtrail.maintenance import retention
from backtrail.maintenance.retention import Policy
from backtrail.models import MISSING, when
from backtrail.runs.history import RunThread
from backtrail.runs.journal import irreversible
from backtrail.runs.lease import check_free
from backtrail.runs.recorder import INTERRUPTED, JOURNAL, MOVES, SPACE, JournalThread, status_note
from backtrail.runs.strategies import RunState, RunStatus, ToolCallRecord, record_of
from backtrail.thread import Thread
from backtrail.validation import LEASE, check_count, check_id, check_period, plain

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.journal import Call
    from backtrail.models import ErasureReport
    from backtrail.runs.run import Run
    from backtrail.runs.strategies import Strategy
    from backtrail.transaction import Engine, Session

    Checkpoints = list[Checkpoint[Any]]
    Records = list["RunRecord"]
    Calls = list[ToolCallRecord]
    Opened = list[Run]

_PAGE: Final = 200
_MANY: Final = 10_000
"""The page size of a listing that reads all threads: each page costs a query over all threads."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A stored run: its data at the beginning of the current iteration, and its calls in doubt."""

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
    """The worker that has the run; None if no worker has it."""
    until: dt.datetime | None
    """The end of the worker's lease, unless the worker renews it."""
    conversation: str | None = None
    """The conversation to which the run's messages are delivered."""
    damaged: str | None = None
    """In a listing of runs: the reason why this run cannot be read."""


class Runs:
    """The runs of a store: `store.runs`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self, session_id: str) -> RunRecord:
        """Return a run, or `NotFound`."""
        session_id = check_id(session_id, "a session's id")
        point = JournalThread(self._engine, session_id).point(self._engine.session)
        if point is None:
            raise NotFound(f"there is no run {session_id!r}", code="not_found.run")
        return _record(session_id, point.data)

    def get(self, session_id: str) -> RunRecord | None:
        """Return a run, or None."""
        try:
            return self.load(session_id)
        except NotFound:
            return None

    def __contains__(self, session_id: object) -> bool:
        """Tell whether a run with this id exists."""
        if not isinstance(session_id, str) or not session_id:
            return False
        tip = self._engine.session.reader.tip(JOURNAL, plain(session_id))
        return tip is not None and tip.head is not None

    def list(
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
        if limit is not None:
            check_count(limit, "limit")
        if status is not None and status not in [*RunState]:
            raise Invalid(f"status is one of {', '.join(RunState)}, not {status!r:.100}", code="invalid.argument")
        start, end = check_period(since, until)
        runs = (
            self._read(record)
            for record, written in self._candidates(status, agent)
            if (start is None or written >= start) and (end is None or written < end)
        )
        wanted = (run for run in runs if run is not None and (run.damaged or status in (None, run.status.name)))
        return [*islice(wanted, limit)]

    def _candidates(self, status: str | None, agent: str | None) -> Iterator[tuple[ThreadRecord, int]]:
        """Give the runs that may have a status, judged by the newest rows of their journals; None: all runs.

        Each comes with the time of its last write to the journal.
        """
        if status is None:
            yield from ((record, newest.created_at) for record, newest in self._listed(JOURNAL, agent))
            return
        checkpoints = self._listed(SPACE, agent, _MANY)
        moved = {record.name for record, newest in checkpoints if newest.op in MOVES}
        for record, newest in self._listed(JOURNAL, agent, _MANY):
            if status_note(record, newest).get("status", status) == status or record.name in moved:
                yield record, newest.created_at

    def recover(
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
        from backtrail.runs.run import Run  # noqa: PLC0415 - listings do not need it

        rows = self._listed(JOURNAL, agent, _MANY)
        left = [record for record, newest in rows if self._may_be_cut_short(record, newest)]
        runs = [run for record in left if (run := self._read(record)) is not None and self._is_cut_short(run)]
        named, classes = ([*each] if isinstance(each, Iterator) else each for each in (errors, types))
        opened = partial(Run, self._engine, strategy=strategy, lease=lease, errors=named, types=classes)
        return [opened(run.session_id) for run in runs]

    def _may_be_cut_short(self, record: ThreadRecord, newest: Row) -> bool:
        note = status_note(record, newest)
        return "status" not in note or "interrupted" in note

    def _is_cut_short(self, run: RunRecord) -> bool:
        now = when(self._engine.session.reader.shared_time())
        gone = run.status.name == RunState.IN_PROGRESS and (run.until is None or run.until <= now)
        return not run.damaged and (gone or (run.status.name, run.status.reason) == INTERRUPTED)

    def _read(self, record: ThreadRecord) -> RunRecord | None:
        """Return a run, or a record with `damaged` if it cannot be read; None if it was deleted meanwhile."""
        try:
            return self.get(record.name)
        except (Corrupt, Invalid) as error:  # Invalid: a class changed, so that stored instances do not load
            status = RunStatus(str(RunState.FAILED), str(error))
            began = when(record.created_at)
            return RunRecord(
                record.name, record.agent, status, 0, (), (), (), None, (), began, None, None, damaged=str(error)
            )

    def _listed(self, space: str, agent: str | None, size: int = _PAGE) -> Iterator[tuple[ThreadRecord, Row]]:
        agent = None if agent is None else check_id(agent, "an agent's id")
        after: tuple[int, int] | None = None
        while True:
            backend = self._engine.session.reader.backend
            page = backend.threads(space=space, agent=agent, prefix=None, after=after, limit=size)
            yield from page
            if len(page) < size:  # the row that names the next page may be damaged
                return
            after = (page[-1][1].created_at, page[-1][0].no)

    # -- checkpoints ------------------------------------------------------------------------------------

    def thread(self, session_id: str) -> Thread[Any]:
        """Return the thread of a run's checkpoints: history, diff, fork, rewind ..."""
        return RunThread(self._engine, check_id(session_id, "a session's id"))

    def irreversible(self, session_id: str, ref: Any = None) -> Calls:
        """Return the irreversible calls of a run; with `ref`, only those that were made after that checkpoint."""
        if ref is not None:
            return RunThread(self._engine, check_id(session_id, "a session's id")).passed(ref)
        point = JournalThread(self._engine, check_id(session_id, "a session's id")).point(self._engine.session)
        return [] if point is None else [record_of(each) for each in irreversible(point.data)]

    def steps(self, session_id: str) -> Checkpoints:
        """Return the checkpoints of a run, ascending."""
        return [*self.thread(session_id).history()]

    def checkpoints(self, agent: str) -> Checkpoints:
        """Return the checkpoints of all runs of an agent, newest first."""
        checkpoints = [c for record, _ in self._listed(SPACE, agent) for c in self.thread(record.name).history()]
        return sorted(checkpoints, key=_age, reverse=True)

    def latest(self, agent: str) -> Checkpoint[Any] | None:
        """Return the newest checkpoint of an agent's runs, or None."""
        heads = (self.thread(record.name).latest() for record, _ in self._listed(SPACE, agent))
        return max((head for head in heads if head is not None), key=_age, default=None)

    def _all(self, session_id: str) -> Checkpoints:
        """Return all checkpoints of a run, including those that a rewind left."""
        return [*self.thread(session_id).history(everything=True)]

    def prune(self, agent: str, keep: int | Policy) -> int:
        """Hide all but the newest checkpoints of an agent's runs, and return the number of hidden checkpoints.

        A number counts the checkpoints of all its runs together. A `Policy` applies to each run separately; then the
        return value is a `PruneReport`. No run needs its checkpoints to resume.
        """
        if isinstance(keep, Policy):
            return retention.prune(self._engine, keep, (SPACE,), agent=agent)
        check_count(keep, "keep")
        checkpoints = [c for record, _ in self._listed(SPACE, agent) for c in self._all(record.name)]
        surplus = sorted(checkpoints, key=_age)[: max(len(checkpoints) - keep, 0)]  # the oldest first: heads go last
        return sum(self.thread(each.thread_id).delete_checkpoint(each) for each in surplus)

    def cleanup(self, session_id: str) -> int:
        """Delete a run, even if a worker has it, and return the number of deleted checkpoints."""
        steps = len(self._all(session_id))
        for space in (SPACE, JOURNAL):
            Thread(self._engine, space, session_id).delete()
        return steps

    def erase(
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
        with loading:
            from backtrail.maintenance.erase import erase_all  # noqa: PLC0415 - few programs do it

        return erase_all(self._engine, SPACE, session_id, forks=forks, force=force, progress=progress)

    # -- calls in doubt -----------------------------------------------------------------------------------

    def settle(self, session_id: str, call_id: str, *, result: Any = MISSING, not_done: bool = False) -> None:
        """Settle a call that is in doubt: with its result, or as not done."""
        if type(call_id) is not str or (result is MISSING) != not_done:
            raise Invalid("settle takes the id of a call, and result=... or not_done=True", code="invalid.argument")
        now = self._engine.direct.reader.clock()
        redact = self._engine.options.redact
        if redact is not None and not not_done:
            result = redact(result, self._engine.types)
        entry = [journal.NOT_DONE, call_id] if not_done else [journal.RESULT, call_id, True, result, now]
        thread = JournalThread(self._engine, check_id(session_id, "a session's id"))

        def write(session: Session) -> None:
            point = thread.settle(session)
            if point is None:
                raise NotFound(f"there is no run {session_id!r}", code="not_found.run")
            check_free(session_id, point.data, session.reader.shared_time())
            recorded = next((r for name in ("calls", "zero") if (r := Journal(point.data[name]).call(call_id))), None)
            if recorded is None:
                raise NotFound(f"run {session_id!r} has no call {call_id!r}", code="not_found.call")
            if recorded.result is not None:
                raise Conflict(f"call {call_id!r} of run {session_id!r} is not in doubt", code="conflict.settled")
            thread.extend(session, [entry], {})

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
