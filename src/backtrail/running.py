"""Runs: work in iterations that goes on where it was cut short, without repeating what it had done.

A run is two threads. The one in the name space `run` has its checkpoints: those that its strategy asks for. The one in
`journal` is what it goes on from: the state at the beginning of the iteration, the journal of that iteration, and the
lease of whoever works on it. Every write of a run adds a row to its journal, on top of the last one that its worker
knows; whoever takes a run over adds one, too. So a worker that was taken over cannot write any more, whatever it does.
"""

from __future__ import annotations

import copy
import os
import socket
import threading
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from blake3 import blake3

from backtrail.arguments import check_duration, check_id
from backtrail.engine import changes, journal
from backtrail.engine.codec import encode
from backtrail.engine.journal import Call, Journal, Recorded, Result
from backtrail.engine.paths import Path
from backtrail.entities import Message, to_data
from backtrail.errors import Conflict, Corrupt, Error, InDoubt, Invalid
from backtrail.run_calls import Asked, Options, as_record, failure_of, given, record_of
from backtrail.run_threads import SPACE, Shown, Work, leased
from backtrail.strategies import AfterToolCall, Done, Event, Never, NotDone, RunState, RunStatus, ToolCallRecord
from backtrail.threads import Thread
from backtrail.values import when

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from backtrail.checkpoints import Checkpoint
    from backtrail.engine.engine import Desk, Engine
    from backtrail.strategies import Strategy

T = TypeVar("T")
LEASE: Final = 60.0
"""Seconds for which a worker has a run, if it does not renew its lease; it does at every third of that."""


class _Halt(BaseException):
    """Leaves the block of a run."""


class Run:
    """One session of work. A context manager: who enters it has the run, until the block ends.

    Leaving the block completes the run; an exception fails it, and `halt` halts it: both can be gone on with later, by
    opening the same session again.
    """

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
    ) -> None:
        self.session_id = check_id(session_id, "a session's id")
        self.agent = None if agent is None else check_id(agent, "an agent's id")
        self.strategy: Strategy = AfterToolCall() if strategy is None else strategy
        if not callable(getattr(self.strategy, "should_checkpoint", None)):
            raise Invalid(
                f"a strategy has should_checkpoint(iteration, event), not {strategy!r}", code="invalid.argument"
            )
        self._engine = engine
        self._given = [to_data(message) for message in messages], {} if state is None else state
        self._takeover = takeover
        self._seconds = check_duration(lease, "lease") / 1_000_000
        self._work = Work(engine, session_id, agent)
        self._shown = Shown(engine, session_id, agent)
        self._token = uuid.uuid4().hex
        self._lock = threading.RLock()
        """Held while something is written."""
        self._saying = threading.Lock()
        """Held while something is said; never while anything is read or written, so that nobody waits for it."""
        self._beat: threading.Event | None = None
        self._lost: Conflict | None = None
        self._unsure = False
        """Whether nobody knows if the last write was done."""
        self._open = False
        self._looping = False
        self._entered = False
        self._lent: str | None = None
        """The hash of the state, if it was read before the loop, where it is not to be changed."""
        self._buffer: list[list[Any]] = []
        self._flushing = 0
        self._under_way: set[str] = set()
        """Calls that are being made."""
        self.resumed = False

    # -- how it stands --------------------------------------------------------------------------------

    @property
    def status(self) -> RunStatus:
        """How the run stands."""
        return self._status

    @property
    def iteration(self) -> int:
        """The number of the iteration; 0 before the first one."""
        return self._iteration

    @property
    def messages(self) -> list[Message]:
        """The messages, those of this iteration included."""
        return list(self._messages)

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """The tool calls that came to an end, those of this iteration included."""
        return [record_of(each) for each in self._calls]

    @property
    def partial_results(self) -> list[Any]:
        """What `partial` was given."""
        return list(self._partials)

    @property
    def state(self) -> Any:
        """The state: change it in place, inside of an iteration. It is kept when the iteration ends."""
        if self._open and not self._looping and self._lent is None:
            self._lent = self._hash(self._state)
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._check_open()
        if not self._looping:
            raise _early()
        self._state = value

    def _check_state(self) -> None:
        """Refuse a state that was changed before the loop: a resumed run would change it again."""
        if self._lent is not None and self._lent != self._hash(self._state):
            raise _early()
        self._lent = None

    @property
    def in_doubt(self) -> list[Call]:
        """The calls of this iteration that were begun before the run was cut short, and whose result nobody knows."""
        return self._journal.in_doubt()

    @property
    def thread(self) -> Thread[Any]:
        """The thread of the run's checkpoints."""
        return Thread(self._engine, SPACE, self.session_id)

    # -- the block --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._engine.desk.overlay is not None:
            raise Invalid("a run writes by itself: open it outside of a transaction", code="invalid.transaction")
        if self._entered:
            raise Invalid(
                "the block of a run is entered once: ask for another, with store.run(...)", code="invalid.run"
            )
        self._entered = True
        self._owner_name = f"{socket.gethostname()}:{os.getpid()}"
        while True:
            try:
                self._engine.atomic(self._acquire)
                break
            except Conflict as error:
                if error.code not in ("conflict.stale", "conflict.exists"):
                    raise  # else somebody was faster: look at what is there now
        data = self._work.read(self._engine.desk)
        if data is None:
            raise Corrupt(f"the journal of run {self.session_id!r} is gone", code="corrupt.state")
        self._take(data)
        self._open = True
        if self._status.name != RunState.COMPLETED:
            self._beat = threading.Event()
            threading.Thread(target=self._heart, args=(self._beat,), name="backtrail lease", daemon=True).start()
        return self

    def _acquire(self, desk: Desk) -> None:
        """Take the lease, or say who has it; begin the run if it is new."""
        data = self._work.read(desk)
        now = desk.heads.shared_time()
        lease = [self._owner_name, self._token, now + int(self._seconds * 1_000_000)]
        if data is None:
            fresh = {**self._beginning(desk), "lease": lease, "created_at": when(now)}
            self._work.put(desk, changes.Replace(fresh, desk.heads.nodes(), self._work._types))  # noqa: SLF001
            return
        self.resumed = True
        if self.agent is not None and data["agent"] != self.agent:
            raise Conflict(
                f"run {self.session_id!r} belongs to agent {data['agent']!r}, not {self.agent!r}", code="conflict.agent"
            )
        held = data["lease"]
        if held is not None and held[2] > now and not self._takeover:
            raise leased(self.session_id, held)
        if data["status"][0] != RunState.COMPLETED:
            given = {"lease": lease, "status": [str(RunState.IN_PROGRESS), None]}
            self._work.put(desk, changes.Several(self._work.edits(given)))

    def _beginning(self, desk: Desk) -> dict[str, Any]:
        """Return how a new run begins: as it was told, or, if it is a fork, after the iteration of its checkpoint."""
        messages, state = self._given
        fresh = {
            "agent": self.agent,
            "status": [str(RunState.IN_PROGRESS), None],
            "iteration": 0,
            "tool_calls": [],
            "partial_results": [],
            "zero": [],
            "calls": [],
            "messages": messages,
            "state": state,
        }
        forked = self.thread.latest()
        if forked is None:
            return fresh
        seen = forked.state
        try:
            fresh |= {name: seen[name] for name in ("tool_calls", "partial_results", "messages", "state")}
            fresh |= {"agent": self.agent or seen["agent"], "iteration": seen["iteration"] + 1}
            source = Work(self._engine, seen["session_id"], None).read(desk)
        except (KeyError, TypeError) as error:
            raise Invalid(f"{forked.id} is no checkpoint of a run", code="invalid.run") from error
        self.resumed = True
        return {**fresh, "zero": source["zero"] if source else []}

    def _take(self, data: dict[str, Any]) -> None:
        """Stand where the iteration begins that is to be run."""
        self.agent = data["agent"]
        self._status = RunStatus(*data["status"])
        self._iteration: int = data["iteration"]
        self._messages = [Message.from_data(each) for each in data["messages"]]
        self._calls: list[dict[str, Any]] = list(data["tool_calls"])
        self._partials: list[Any] = list(data["partial_results"])
        self._state = data["state"]
        self._kept = len(self._messages), len(self._calls), len(self._partials)
        self._zero = Journal(data["zero"])
        self._journal = self._zero if self._iteration == 0 else Journal(data["calls"])
        self._owner = self._engine.owner()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._stop_beating()
        self._open = False
        if self._status.name == RunState.COMPLETED:
            return isinstance(error, _Halt)
        try:
            with self._lock:  # the lease may be being renewed, and calls of others come to their end
                if error is None:
                    self._complete()
                else:
                    self._leave(_status_of(error))
        except Conflict:
            if error is None or isinstance(error, _Halt):
                raise
        return isinstance(error, _Halt)

    def _complete(self) -> None:
        """End the run; if its last iteration cannot end, it has failed."""
        try:
            self._check_state()
            self._end(RunStatus(str(RunState.COMPLETED)))
        except Invalid as error:
            self._leave(_status_of(error))
            raise

    def halt(self, reason: str) -> None:
        """Leave the block; the run is halted, and can be gone on with later."""
        self._check_open()
        if not isinstance(reason, str):
            raise Invalid(f"a reason is a text, not {reason!r:.100}", code="invalid.argument")
        raise _Halt(reason)

    def _check_open(self) -> None:
        if not self._open:
            raise Invalid("a run is used inside of its block: with store.run(...) as run:", code="invalid.run")
        if self._lost is not None:
            raise self._lost

    # -- the lease --------------------------------------------------------------------------------------

    def _heart(self, stop: threading.Event) -> None:
        """Renew the lease, until the block ends or somebody else has the run."""
        while not stop.wait(self._seconds / 3):
            with self._lock:
                if stop.is_set() or self._lost is not None:
                    return
                try:
                    until = self._engine.direct.heads.shared_time() + int(self._seconds * 1_000_000)
                    edits = changes.Several(self._work.edits({"lease": [self._owner_name, self._token, until]}))
                    self._write(partial(self._work.put, propose=edits), several=False)
                except Conflict:
                    return
                except Error as error:  # the store is away: the next beat, or the next write, will tell
                    if error.code == "unavailable.closed":
                        return

    def _stop_beating(self) -> None:
        if self._beat is not None:
            self._beat.set()

    def _write(self, write: Callable[[Desk], None], *, several: bool = True) -> None:
        """Write to the journal, on top of what this worker wrote last; if that is not the newest, the run is lost."""
        if self._lost is not None:
            raise self._lost
        if self._unsure:
            self._look_again()
        for last in (False, True):
            try:
                self._try(write, several=several)
                return
            except Conflict as error:
                head = self._work.standing.head if self._work.standing else None
                self._look_again(error)
                now = self._work.standing.head if self._work.standing else None
                if last or head is None or now is None or head.op_id != now.op_id:
                    raise self._taken_over() from error
                # else others wrote to its checkpoints at that moment: once more, on what is there

    def _try(self, write: Callable[[Desk], None], *, several: bool) -> None:
        stood = self._work.standing, self._shown.standing
        try:
            if several:
                self._engine.at_once(write)
            else:  # one row is a transaction by itself
                write(self._engine.direct)
        except BaseException as error:
            self._work.standing, self._shown.standing = stood  # what was written in a transaction went with it
            self._shown.forget()
            self._unsure = not isinstance(error, Conflict | Invalid)  # it may have been written all the same
            raise

    def _look_again(self, error: Conflict | None = None) -> None:
        """See how the journal stands; it is this worker's as long as it has its token."""
        data = self._work.read(self._engine.direct)
        if data is None or data["lease"] is None or data["lease"][1] != self._token:
            raise self._taken_over() from error
        self._shown.standing = None
        self._shown.forget()
        self._unsure = False

    def _taken_over(self) -> Conflict:
        self._lost = Conflict(
            f"run {self.session_id!r} was taken over by another worker: what this one does is not kept any more",
            code="conflict.lease",
        )
        return self._lost

    # -- iterations ---------------------------------------------------------------------------------------

    def iterations(self) -> Iterator[int]:
        """Give the numbers of the iterations, without an end: leave the loop when the work is done.

        A resumed run begins with the one that was cut short.
        """
        self._check_open()
        if self._looping:
            raise Invalid("the iterations of a run are gone through once", code="invalid.run")
        if self._status.name == RunState.COMPLETED:
            self._looping = True
            return
        self._check_state()
        if self._iteration == 0:
            self._next_iteration()
        self._looping = True
        while True:
            yield self._iteration
            self._check_open()
            self._next_iteration()

    def _next_iteration(self) -> None:
        with self._lock:
            self._end(None)
            self._iteration += 1
            self._journal = Journal()

    def _end(self, status: RunStatus | None) -> None:
        """End the iteration, and the run if there is a status; both in one commit."""
        forgotten = self._journal.forgotten()
        if forgotten is not None:
            raise journal.diverged(forgotten, "nothing of the kind")
        if self._under_way:
            raise Invalid(
                f"call {min([*self._under_way])!r} of run {self.session_id!r} is still being made: wait for it "
                "before the iteration ends",
                code="invalid.run",
            )
        over = self._iteration
        messages, calls, partials = self._kept
        with self._saying:
            kept = len(self._messages), len(self._calls), len(self._partials)
            waiting = list(self._buffer)
        added = {
            "messages": [to_data(each) for each in self._messages[messages : kept[0]]],
            "tool_calls": self._calls[calls : kept[1]],
            "partial_results": self._partials[partials : kept[2]],
            "zero" if over == 0 else "calls": waiting if over == 0 or status is not None else [],
        }
        types, name = self._work._types, self.session_id  # noqa: SLF001 - its other half
        edits: list[changes.Edit] = [
            changes.Append(Path((where,)), tuple(items), types, name) for where, items in added.items() if items
        ]
        edits.append(changes.Match(Path(("state",)), self._state, types, name))
        if status is None:
            given: dict[str, Any] = {"iteration": over + 1, **({} if over == 0 else {"calls": []})}
        else:
            given = {"status": [status.name, status.reason], "lease": None}
        edits += self._work.edits(given)
        wanted = over > 0 and self.strategy.should_checkpoint(over, Event.ITERATION)

        def write(desk: Desk) -> None:
            self._work.put(desk, changes.Several(edits))
            if status is None:
                self._work.begin_anew(desk)
            if wanted or (status is not None and not isinstance(self.strategy, Never)):
                self._shown.put(desk, self._seen(status or self._status, self._state), None, "automatic")

        self._write(write)
        self._shown.settle()
        self._work.trim()
        self._kept = kept
        del self._buffer[: len(waiting)]
        if status is not None:
            self._status = status

    def _leave(self, status: RunStatus) -> None:
        """Record that the run failed or was halted. What the iteration had done stays in its journal."""
        entries = tuple(self._buffer)
        types, name = self._work._types, self.session_id  # noqa: SLF001
        edits: list[changes.Edit] = [changes.Append(self._where, entries, types, name)] if entries else []
        edits += self._work.edits({"status": [status.name, status.reason], "lease": None})

        def write(desk: Desk) -> None:
            self._work.put(desk, changes.Several(edits))
            if not isinstance(self.strategy, Never):
                self._shown.put(desk, self._seen(status, self._state), None, "automatic")

        try:
            self._write(write)
        except Invalid:  # the state cannot be kept as it is now: what was kept before stays
            self._write(lambda desk: self._work.put(desk, changes.Several(edits)))
        self._status = status

    @property
    def _where(self) -> Path:
        """Where the journal of what is done now is."""
        return Path(("calls" if self._looping else "zero",))

    def _seen(self, status: RunStatus, state: Any) -> dict[str, Any]:
        """Return what a checkpoint of the run shows."""
        return {
            "session_id": self.session_id,
            "agent": self.agent,
            "status": status.name,
            "reason": status.reason,
            "iteration": self._iteration,
            "messages": [to_data(each) for each in self._messages],
            "tool_calls": list(self._calls),
            "partial_results": list(self._partials),
            "state": state,
        }

    def checkpoint(self, label: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> Checkpoint[Any]:
        """Make a checkpoint of the run as it is now, whatever its strategy says."""
        self._check_open()
        return self._checkpoint(label, self._state, metadata)

    def _checkpoint(self, label: str | None, state: Any, metadata: Mapping[str, Any] | None = None) -> Checkpoint[Any]:
        self._check_open()
        made: list[Checkpoint[Any]] = []

        def write(desk: Desk) -> None:
            self._flush(desk, [])
            made.append(self._shown.put(desk, self._seen(self._status, state), label, "manual", metadata))

        with self._lock:
            self._write(write)
            self._flushed()
            self._shown.settle()
        return made[0]

    # -- what is done through it ----------------------------------------------------------------------------

    def message(self, message: Message) -> Message:
        """Add a message; if the iteration had added it before it was cut short, that one is given."""
        if not isinstance(message, Message):
            raise Invalid(f"this is {type(message).__name__}, not a Message", code="invalid.value")
        data = to_data(message)
        shape = {name: value for name, value in data.items() if name not in ("id", "timestamp")}
        with self._saying:
            found = self._said(journal.MESSAGE, shape, data)
            kept = message if found is data else Message.from_data(found)
            if self._is_live():
                self._messages.append(kept)
        return kept

    def partial(self, value: Any) -> Any:
        """Add a partial result."""
        with self._saying:
            found = self._said(journal.PARTIAL, value, value)
            if self._is_live():
                self._partials.append(found)
        return found

    def _is_live(self) -> bool:
        """Tell whether what is said now is not in the run yet: what comes before the loop of a resumed run is."""
        return self._status.name != RunState.COMPLETED and (self._looping or self._iteration == 0)

    def _said(self, kind: str, shape: Any, value: Any) -> Any:
        self._check_open()
        key = self._hash(shape)
        heard, found = self._book.heard(kind, key)
        if heard:
            return found
        if not self._is_live():
            raise Invalid(
                f"run {self.session_id!r} is in iteration {self._iteration}: before its loop it now says another "
                f"thing than when it began ({value!r:.200})",
                code="invalid.replay",
            )
        self._buffer.append([kind, key, copy.deepcopy(value)])
        return value

    @property
    def _book(self) -> Journal:
        """The journal of what is done now."""
        return self._journal if self._looping else self._zero

    def _hash(self, value: Any) -> str:
        tree = encode(value, self._engine.desk.heads.nodes(), self._work._types)  # noqa: SLF001
        return blake3(tree.root).hexdigest(length=12)

    def tool(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        policy: str = "ask",
        verify: Callable[[Call], Any] | None = None,
        irreversible: bool = False,
        key: str | None = None,
        retry: bool = False,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> T:
        """Call a tool, once: if it had come to its end before the run was cut short, its result is given.

        If it was begun and nobody knows whether it was done, `policy` says what to do: "pure" and "idempotent" call it
        again, the latter with the same `key`; `verify` is asked; else it is `InDoubt`, which `store.runs.settle` ends.
        An exception is a result, too: raised again, unless `retry`.
        """
        options = Options("tool", name, policy, verify, irreversible, key, retry, tool_call_id)
        return self._called(options, fn, args, kwargs)

    def llm(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        policy: str = "ask",
        verify: Callable[[Call], Any] | None = None,
        irreversible: bool = False,
        key: str | None = None,
        retry: bool = False,
        **kwargs: Any,
    ) -> T:
        """Ask a model, once, as `tool` does; its answer is an event for the strategy."""
        options = Options("llm", name, policy, verify, irreversible, key, retry, None)
        return self._called(options, fn, args, kwargs)

    def _called(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        asked = self._begin(options, {"args": list(args), "kwargs": kwargs})
        result = asked.result
        if asked.doubtful and options.verify is not None:
            result = self._verified(asked.call, options.verify(asked.call))
            if result is not None:
                self._ended(asked.call, result, wanted=self._wants(options), state=self._state)
        if result is not None:
            return given(result)  # type: ignore[no-any-return]
        self._under_way.add(asked.call.id)
        try:
            value = fn(*args, **self._passed(options, asked.call, kwargs))
        except Exception as error:
            failed = Result(good=False, value=failure_of(error))
            self._ended(asked.call, failed, wanted=self._wants(options), state=self._state)
            raise
        else:
            self._ended(asked.call, Result(good=True, value=value), wanted=self._wants(options), state=self._state)
            return value
        finally:
            self._under_way.discard(asked.call.id)

    def _begin(self, options: Options, arguments: dict[str, Any]) -> Asked:
        """Do what comes before a call: find what is known of it, else write its intent."""
        options.check()
        self._check_open()
        call, recorded = self._begun(options, arguments)
        if recorded is None:
            return Asked(call, None, new=True)
        result = recorded.result
        if result is None:
            if options.verify is None and options.policy == "ask":
                raise self._in_doubt(call)
            return Asked(call, None, doubtful=options.policy == "ask")
        if options.retry and not result.good:
            self._begun_again(call)
            return Asked(call, None)
        self._replayed(call, result)
        return Asked(call, result)

    def _passed(self, options: Options, call: Call, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that a call gets by name."""
        if options.policy != "idempotent":
            return kwargs
        return {**kwargs, "key": options.key or f"{self.session_id}/{call.id}/{call.key}"}

    def _wants(self, options: Options) -> bool:
        """Tell whether the end of a call makes a checkpoint."""
        event = Event.TOOL_CALL_COMPLETE if options.kind == "tool" else Event.LLM_RESPONSE
        return self.strategy.should_checkpoint(self._number, event)

    @property
    def _number(self) -> int:
        """The iteration that calls belong to."""
        return self._iteration if self._looping else 0

    def _replayed(self, call: Call, result: Result) -> None:
        """Count a tool call that this iteration had made before it was cut short."""
        if call.kind == "tool" and self._is_live():
            with self._lock:
                self._calls.append(as_record(call, result, self._number))

    def _begun(self, options: Options, arguments: dict[str, Any]) -> tuple[Call, Recorded | None]:
        """Find the call in the journal, else write its intent."""
        key = f"{options.kind}:{options.tool_call_id or options.name}:{self._hash(arguments)}"
        main = self._engine.owner() is self._owner
        with self._lock:
            book = self._book
            recorded = book.ask(key)
            if recorded is not None:
                return recorded.call, recorded
            asked = Call(
                f"{self._number}.{book.count + 1}",
                options.kind,
                options.name,
                key,
                copy.deepcopy(arguments),
                options.policy,
                options.irreversible,
                main,
            )
            expected = book.expected() if main else None
            if expected is not None or not self._is_live():
                raise journal.diverged(expected or asked, journal.described(asked))
            self._write(lambda desk: self._flush(desk, [asked.entry()]), several=False)
            self._flushed()
            book.asked(key)
            book.began(asked, claimed=True)
            return asked, None

    def _begun_again(self, call: Call) -> None:
        """Write that a call which had failed is tried again: from now on it is in doubt."""
        with self._lock:
            self._write(lambda desk: self._flush(desk, [[journal.AGAIN, call.id]]), several=False)
            self._flushed()
            self._book.again(call.id)

    def _flush(self, desk: Desk, entries: list[list[Any]]) -> None:
        """Write entries, and those that were waiting for company."""
        waiting = list(self._buffer)
        self._flushing = len(waiting)
        items = (*waiting, *entries)
        if items:
            self._work.put(desk, changes.Append(self._where, items, self._work._types, self.session_id))  # noqa: SLF001

    def _flushed(self) -> None:
        """Forget what was written; what was said meanwhile waits for the next write."""
        del self._buffer[: self._flushing]
        self._flushing = 0

    def _ended(self, call: Call, result: Result, *, wanted: bool, state: Any) -> None:
        """Do what comes after a call: write its result, and the checkpoint that is wanted, in one commit."""
        entry = [journal.RESULT, call.id, result.good, result.value]
        with self._lock:
            if call.kind == "tool":
                self._calls.append(as_record(call, result, self._number))
            try:
                self._write(lambda desk: self._write_result(desk, entry, state, wanted=wanted), several=wanted)
            except Invalid:
                self._write_alone(call, result)
                raise
            self._over(call, result)

    def _write_alone(self, call: Call, result: Result) -> None:
        """Write a result without a checkpoint, which had the state in it; if it is the result, that it failed."""
        try:
            self._write(lambda desk: self._flush(desk, [[journal.RESULT, call.id, *result]]), several=False)
        except Invalid as error:
            result = Result(good=False, value=failure_of(error))
            if call.kind == "tool":
                self._calls[-1] = as_record(call, result, self._number)
            self._write(lambda desk: self._flush(desk, [[journal.RESULT, call.id, *result]]), several=False)
        self._over(call, result)

    def _over(self, call: Call, result: Result) -> None:
        self._flushed()
        self._shown.settle()
        self._book.ended(call.id, result)

    def _write_result(self, desk: Desk, entry: list[Any], state: Any, *, wanted: bool) -> None:
        self._flush(desk, [entry])
        if wanted:
            self._shown.put(desk, self._seen(self._status, state), None, "automatic")

    def _withdraw(self, call: Call) -> None:
        """Take back a call whose intent was written, and that was not made: the next write says so."""
        with self._lock, self._saying:
            self._book.not_done(call.id)
            self._buffer.append([journal.NOT_DONE, call.id])

    def _verified(self, call: Call, found: Any) -> Result | None:
        """Return what `verify` says of a call that is in doubt: its result, or None: it is to be made."""
        if isinstance(found, Done):
            return Result(good=True, value=found.result)
        if found is NotDone:
            return None
        raise Invalid(
            f"verify of {call.name} returns Done(result) or NotDone, not {found!r:.100}", code="invalid.argument"
        )

    def _in_doubt(self, call: Call) -> InDoubt:
        told = journal.described(call)
        return InDoubt(
            f"run {self.session_id!r} was cut short inside of {told}: nobody knows whether it was done. "
            f"Find out, and say store.runs.settle({self.session_id!r}, {call.id!r}, result=...) or not_done=True. "
            'Or give the call verify=, policy="pure" or policy="idempotent"',
            code="in_doubt.call",
            session_id=self.session_id,
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
        )


def _early() -> Invalid:
    return Invalid(
        "before the first iteration the state of a run is not changed: a resumed run would change it again. "
        "Give it with store.run(..., state=...), or change it in the loop",
        code="invalid.run",
    )


def _status_of(error: BaseException) -> RunStatus:
    if isinstance(error, _Halt):
        return RunStatus(str(RunState.HALTED), str(error.args[0]))
    if not isinstance(error, Exception):  # Ctrl-C, cancellation, the end of a generator
        return RunStatus(str(RunState.HALTED), "interrupted")
    return RunStatus(str(RunState.FAILED), f"{type(error).__name__}: {error}"[:500])
