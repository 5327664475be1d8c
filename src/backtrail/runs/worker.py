"""A worker of a run: it opens the run, goes through its iterations, and leaves it.

A worker has a lease, a recorder and a journal. It reads the run when the run is opened. After it leaves the run, its
last values stay readable. Users see a worker through the handles `backtrail.runs.run` and `backtrail.aio.run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from backtrail.conversations.models import Message
from backtrail.engine.journal import Journal
from backtrail.errors import Conflict, Error, Invalid
from backtrail.models import MISSING, when
from backtrail.runs.calls import CallContext, Halt, Named, name_of, text_of
from backtrail.runs.delivery import Delivery
from backtrail.runs.history import RunThread
from backtrail.runs.journal import RunJournal, beginning, forked
from backtrail.runs.lease import Lease
from backtrail.runs.recorder import INTERRUPTED, Recorder, Show
from backtrail.runs.strategies import AfterToolCall, Event, Never, RunState, RunStatus
from backtrail.runs.unanswered_calls import repaired
from backtrail.runs.values import RunValues
from backtrail.validation import LEASE, check_id, plain, to_data

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from backtrail.checkpoint import Checkpoint
    from backtrail.runs.strategies import Strategy
    from backtrail.transaction import Engine, Session


class Worker:
    """The worker of one run, from entering the run's block to leaving it."""

    def __init__(
        self,
        engine: Engine,
        session_id: str,
        *,
        agent: str | None = None,
        strategy: Strategy | None = None,
        messages: Sequence[Message] = (),
        state: Any = None,
        takeover: bool = False,
        lease: dt.timedelta | float = LEASE,
        errors: Iterable[type[Exception]] | Mapping[type[Exception], Iterable[str]] = (),
        types: Iterable[Any] = (),
        conversation: str | None = None,
    ) -> None:
        self.session_id = check_id(session_id, "a session's id")
        self.strategy = _strategy(strategy)
        self.resumed = False
        self.repaired: list[Message] = []
        agent = None if agent is None else check_id(agent, "an agent's id")
        conversation = None if conversation is None else check_id(conversation, "the id of a conversation")
        self._engine = engine
        self._given = _as_data(messages), {} if state is None else state
        self._values = RunValues(engine, _classes(types))
        self.delivery = Delivery(engine, self.session_id, conversation)
        self.recorder = Recorder(engine, self.session_id, agent, self._values, self.delivery)
        self.lease = Lease(engine, self.recorder, self.session_id, lease, takeover=takeover)
        self.journal = RunJournal(self.session_id, self._values)
        self.journal.agent = agent
        self.calls = CallContext(
            engine, self.journal, self.recorder, self.lease, self._values, self.strategy, _named(errors)
        )
        self._messages: list[Message] = []
        """The messages of the run when it was opened, with repaired tool calls."""
        self._is_entered = False
        self._state_hash: str | None = None
        """The hash of the state if the caller read it before the loop, where the caller must not change it."""
        self._status_before: list[Any] | None = None
        """The status of the run when it was opened; None for a new run."""
        self._point_before: dict[str, Any] | None = None
        """The point of the run when it was opened, if opening the run wrote another point."""

    @property
    def thread(self) -> RunThread:
        """The thread of the run's checkpoints."""
        return RunThread(self._engine, self.session_id)

    # -- opening ------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Take the lease, and load the point from which the run resumes."""
        self.lease.check_no_transaction()
        if self._is_entered:
            raise Invalid(
                "the block of a run is entered once: ask for another, with store.run(...)", code="invalid.run"
            )
        self._is_entered = True
        self.lease.prepare()
        data: dict[str, Any] | None = None
        while data is None:
            try:
                data = self._engine.atomic(self._acquire)
            except Conflict as error:
                if error.code not in ("conflict.stale", "conflict.exists"):
                    raise  # otherwise another worker was faster: read the run again
        self.recorder.journal.refresh(self._engine.direct)
        self.stand(data)
        self.lease.begin()
        if not self.journal.is_completed:
            try:
                self.lease.keep()
            except BaseException as error:
                self.leave(error)
                raise

    def stand(self, data: dict[str, Any]) -> None:
        """Set the run to a point: to the beginning of the iteration to run next."""
        self.delivery.settle(data)
        self.journal.conversation = self.delivery.conversation
        self.journal.begin(data, self._messages)
        self.calls.owner = self._engine.owner()

    def _acquire(self, session: Session) -> dict[str, Any]:
        """Write the lease and return the point from which the run resumes; `Conflict` if another worker has it.

        A completed run gets no lease.
        """
        thread = self.recorder.journal
        self.recorder.checkpoints.rely_on_newest(session)  # a former worker may write one until the lease is written
        point = thread.point(session)
        now = session.reader.shared_time()
        fields: dict[str, Any] = {"lease": self.lease.term(now), "status": [str(RunState.IN_PROGRESS), None]}
        if point is None:
            return self._begin(session, fields, now)
        data = point.data
        self.resumed = True
        if self.journal.agent is not None and data["agent"] != self.journal.agent:
            raise self._others(data["agent"])
        self.lease.check_free(data, now)
        self._check_classes(data)
        mended = self._repair(data)
        if data["status"][0] == RunState.COMPLETED:
            return data
        self._status_before, self._point_before = data["status"], None
        fields |= self.delivery.join(mended, resumed=True)
        if point.is_moved or point.is_old or mended is not data:
            self._point_before = point.stored  # a later read might find a newer point
            thread.put_whole(session, {**mended, **fields})
        else:
            thread.extend(session, (), fields, point.newer, state=data["state"] if point.newer else MISSING)
        return {**mended, **fields}

    def _begin(self, session: Session, fields: dict[str, Any], now: int) -> dict[str, Any]:
        """Write the journal of a run that has none, and return its point. A run with checkpoints only is a fork."""
        thread = self.recorder.journal
        data = self._repair({**self._beginning(), "lease": None, "created_at": when(now)})
        self._check_classes(data)
        whole = {**data, **fields, **self.delivery.join(data, resumed=self.resumed)}
        thread.put_whole(session, whole)
        if self.resumed:
            self._status_before = data["status"]
        return {**whole, "state": thread.began_with(session)}  # a copy: the caller may change the given object

    def _beginning(self) -> dict[str, Any]:
        """Return the point of a new run; if the run has checkpoints, the point of their head."""
        head, agent = self.thread.latest(), self.journal.agent
        if head is None:
            return beginning(agent, *self._values.redacted(self._given))
        point = forked(head.state)
        self.resumed = True
        if agent is None and point["agent"] is not None:  # the journal gets the agent of the checkpoint
            agent = self.journal.agent = point["agent"]
            self.recorder.journal.belongs_to(point["agent"])
        if agent != point["agent"]:
            raise self._others(point["agent"])
        return {**point, "agent": agent, "at": head.seq}

    def _others(self, agent: str | None) -> Conflict:
        whose = "to no agent" if agent is None else f"to agent {agent!r}"
        return Conflict(f"run {self.session_id!r} belongs {whose}, not {self.journal.agent!r}", code="conflict.agent")

    def _check_classes(self, data: dict[str, Any]) -> None:
        """Raise `Invalid` for an instance of a class that is not in `types=`: it would load as plain data."""
        self._values.hash(data["state"], "state")
        self._values.hash(data["partial_results"], "partial_results")
        if not self.resumed:
            self._values.hash(data["messages"], "messages")

    def _repair(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the point with an answer after each tool call in its messages that can no longer get one.

        Return the same object if no answer is missing.
        """
        messages = [Message.from_data(each) for each in data["messages"]]
        self._messages = messages
        if data["status"][0] == RunState.COMPLETED or not any("tool_calls" in each for each in data["messages"]):
            return data
        results = {each["tool_call_id"]: _answer(each) for each in data["tool_calls"] if each.get("tool_call_id")}
        asked = {each.call.tool_call_id for each in Journal(data["calls"]).recorded()}
        mended = repaired(messages, results=results, last=False, leave=asked)
        before = {each.id for each in messages}
        self.repaired = [each for each in mended if each.id not in before]
        if not self.repaired:
            return data
        self._messages = mended
        return {**data, "messages": [to_data(each) for each in mended]}

    # -- leaving ------------------------------------------------------------------------------------------

    def leave(self, error: BaseException | None) -> bool:
        """Release the run and write its status. Tell whether the error is a halt of this run and nothing else."""
        self.lease.is_open = False
        if not self.lease.is_mine:  # a fork of the process that has the run
            return False
        halt = self._halt_in(error)
        error = error if halt is None else halt
        if self.journal.is_completed:
            if error is None:
                self._check_untouched()
            return halt is not None
        recorder = self.recorder
        try:
            with recorder.lock:  # a renewal of the lease, or a call of another thread, may be writing
                if halt is None and recorder.unsure is None and self._is_only_read():
                    self._put_back()
                    if error is None:
                        self._check_state()
                elif error is None and recorder.unsure is None:
                    self._complete()
                else:
                    self._interrupt(self._status_of(error or recorder.unsure or Halt("interrupted", self)))
        except Conflict:
            if error is None or halt is not None:
                raise
        if error is None and recorder.unsure is not None:
            raise recorder.unsure
        return halt is not None

    def _halt_in(self, error: BaseException | None) -> Halt | None:
        """Return this run's `Halt` if the exception is one, or is a group of nothing else; otherwise None.

        Task groups raise exceptions in groups.
        """
        if isinstance(error, BaseExceptionGroup):
            halts = [self._halt_in(each) for each in error.exceptions]
            return halts[0] if all(each is not None for each in halts) else None
        return error if isinstance(error, Halt) and error.args[1] is self else None

    def _is_only_read(self) -> bool:
        """Tell whether the caller only read a resumed run: no iteration was entered and nothing was recorded."""
        run = self.journal
        return self._status_before is not None and not run.is_looping and not (run.iteration == 0 and run.is_used)

    def _put_back(self) -> None:
        """Release a run that was only read: write back its previous status and point."""
        status, point, thread = self._status_before, self._point_before, self.recorder.journal
        fields = {"status": status, "lease": None}

        def write(session: Session) -> None:
            if point is None:
                thread.extend(session, (), fields)
            else:
                thread.put_whole(session, {**point, "lease": None})

        self.recorder.write(write, several=False)
        self.journal.status = RunStatus(*(status or ()))
        self.delivery.leave()

    def _complete(self) -> None:
        """Write that the run is completed. If its last iteration cannot end, write that the run failed, and raise."""
        try:
            self._check_state()
            self._end_iteration(RunStatus(str(RunState.COMPLETED)))
        except Conflict:
            raise
        except Exception as error:
            self._interrupt(self._status_of(error))
            raise

    def _interrupt(self, status: RunStatus) -> None:
        """Write that the run failed or was halted. The journal keeps the entries of the iteration."""
        run, recorder = self.journal, self.recorder
        fields = {"status": [status.name, status.reason], "lease": None}
        if recorder.unsure is not None:  # the run will resume from the rows that were committed
            recorder.let_go(fields)
            run.status = status
            return
        show = None if isinstance(self.strategy, Never) else Show(run.state, status)
        try:
            recorder.record(run, fields=fields, show=show)
        except Exception as error:  # the state cannot be stored: write the status without a checkpoint
            if isinstance(error, Error) and not isinstance(error, Invalid):
                raise
            recorder.record(run, fields=fields)
        run.status = status

    def halt(self, reason: str) -> None:
        """Raise the exception that leaves the block of the run and halts the run."""
        self.lease.check_open()
        if not isinstance(reason, str):
            raise Invalid(f"a reason must be a string, not {reason!r:.100}", code="invalid.argument")
        raise Halt(plain(reason), self)

    # -- the state ----------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The state of the run. The caller must not change it before the loop; a kept hash detects that."""
        self.lease.check_entered()
        if self.lease.is_open and not self.journal.is_looping and self._state_hash is None:
            self._state_hash = self._values.hash(self.journal.state)
        return self.journal.state

    @state.setter
    def state(self, value: Any) -> None:
        self.lease.check_open()
        if not self.journal.is_looping:
            raise _too_early()
        self.journal.state = value

    def _is_changed(self) -> bool:
        return self._state_hash is not None and self._state_hash != self._values.hash(self.journal.state)

    def _check_state(self) -> None:
        """Raise `Invalid` if the caller changed the state before the loop: a resumed run would repeat the change."""
        if self._is_changed():
            raise _too_early()
        self._state_hash = None

    def _check_untouched(self) -> None:
        """Raise `Invalid` if the caller changed the state of a completed run."""
        if self._is_changed():
            text = f"run {self.session_id!r} is completed: its state was changed, and that is not kept"
            raise Invalid(text, code="invalid.run")

    # -- iterations ---------------------------------------------------------------------------------------

    def iterations(self) -> Iterator[int]:
        """Give the numbers of the iterations, without end. A resumed run starts with the interrupted iteration."""
        run = self.journal
        self.lease.check_open()
        if run.is_looping:
            raise Invalid("the iterations of a run are gone through once", code="invalid.run")
        if run.is_completed:
            run.is_looping = True
            return
        self._check_state()
        if run.iteration == 0:
            self._next_iteration()
        run.is_looping = True
        while True:
            yield run.iteration
            self.lease.check_open()
            self._next_iteration()

    def _next_iteration(self) -> None:
        with self.recorder.lock:
            self._end_iteration(None)

    def _end_iteration(self, status: RunStatus | None) -> None:
        """Write the end of the iteration and, with a status, the end of the run, in one commit."""
        run, recorder = self.journal, self.recorder
        self.calls.check_ended()
        if run.restore_unsaid():
            recorder.checkpoints.forget()  # the lists changed in the middle: the next checkpoint cannot just append
        wanted = run.iteration > 0 and self.strategy.should_checkpoint(run.iteration, Event.ITERATION)
        last = status is not None and not isinstance(self.strategy, Never)
        show = Show(run.state, status or run.status, is_over=True) if wanted or last else None
        recorder.end_iteration(run, show, status)

    def checkpoint(self, label: str | None, state: Any, metadata: Mapping[str, Any] | None = None) -> Checkpoint[Any]:
        """Make a checkpoint of the run with this state, without asking the strategy."""
        self.lease.check_open()
        run = self.journal
        if run.is_completed:
            raise Invalid(f"run {self.session_id!r} is completed: it stays as it is", code="invalid.run")
        with self.recorder.lock:
            show = Show(state, run.status, label=label, kind="manual", metadata=metadata)
            made = self.recorder.record(run, show=show)
            self._point_before = None  # the rewind that moved the run came before this checkpoint
        return cast("Checkpoint[Any]", made)

    # -- messages and partial results ---------------------------------------------------------------------

    def message(self, message: Message) -> Message:
        """Add a message and return it; if the iteration recorded one with the same content, return that message."""
        if not isinstance(message, Message):
            raise Invalid(f"this is {type(message).__name__}, not a Message", code="invalid.value")
        self.calls.check("say a message")
        with self.recorder.uninterrupted():
            return self.journal.add_message(message, self.delivery)

    def _status_of(self, error: BaseException) -> RunStatus:
        """Return the status that an exception leaves, with its reason as it may be recorded."""
        status = _status_of(error)
        return RunStatus(status.name, self._values.redacted(status.reason))

    def partial(self, value: Any) -> Any:
        """Add a partial result and return a copy of it."""
        self.calls.check("say a partial result")
        with self.recorder.uninterrupted():
            return self.journal.add_partial(value)


def _status_of(error: BaseException) -> RunStatus:
    if isinstance(error, BaseExceptionGroup):
        bugs = error.subgroup(Exception)
        error = error if bugs is None else bugs
    if isinstance(error, Halt):
        return RunStatus(str(RunState.HALTED), str(error.args[0]))
    if not isinstance(error, Exception):  # Ctrl-C, cancellation, the end of a generator
        return RunStatus(*INTERRUPTED)
    return RunStatus(str(RunState.FAILED), f"{type(error).__name__}: {text_of(error)}"[:500])


def _too_early() -> Invalid:
    return Invalid(
        "before the first iteration the state of a run is not changed: a resumed run would change it again. "
        "Give it with store.run(..., state=...), or change it in the loop",
        code="invalid.run",
    )


def _answer(record: Mapping[str, Any]) -> Any:
    return record["result"] if record["success"] else f"failed: {record['result']}"


# -- checks of the caller's options -----------------------------------------------------------------------


def _strategy(given: Strategy | None) -> Strategy:
    if given is None:
        return AfterToolCall()
    if isinstance(given, type) or not callable(getattr(given, "should_checkpoint", None)):
        raise Invalid(
            f"a strategy has should_checkpoint(iteration, event), as AfterToolCall() has, not {given!r}",
            code="invalid.argument",
        )
    return given


def _as_data(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise Invalid(f"messages must be a list of messages, not {messages!r:.100}", code="invalid.argument")
    items = list(messages)
    wrong = [each for each in items if not isinstance(each, Message)]
    if wrong:
        raise Invalid(f"this is {type(wrong[0]).__name__}, not a Message", code="invalid.value")
    return [to_data(each) for each in items]


def _named(errors: Any) -> dict[str, Named]:
    classes = [*errors] if isinstance(errors, Iterable) else [errors]
    wrong = [each for each in classes if not (isinstance(each, type) and issubclass(each, Exception))]
    if wrong:
        raise Invalid(f"errors are classes of exceptions, not {wrong[0]!r:.100}", code="invalid.argument")
    attributes = errors if isinstance(errors, Mapping) else {}
    return {name_of(each): Named(each, _attributes(attributes.get(each, ()))) for each in classes}


def _attributes(names: Any) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise Invalid(
            f"errors={{X: [names of attributes]}} takes a list of names, not {names!r:.100}", code="invalid.argument"
        )
    items = [*names]
    wrong = [each for each in items if type(each) is not str]
    if wrong:
        raise Invalid(f"the name of an attribute must be a string, not {wrong[0]!r:.100}", code="invalid.argument")
    return frozenset(items)


def _classes(types: Any) -> tuple[Any, ...]:
    if isinstance(types, type) or not isinstance(types, Iterable):
        name = getattr(types, "__name__", "Class")
        raise Invalid(f"types= takes a list of classes: types=[{name}]", code="invalid.argument")
    return tuple(types)
