"""A worker of a run: it has the lease, knows how the run stands, and writes on top of what it wrote last.

Every write adds a row to the run's journal, on top of the last one that the worker knows; whoever takes the run over
adds one, too. So a worker that was taken over cannot write any more, whatever it does.
"""

from __future__ import annotations

import copy
import os
import random
import threading
import time
import uuid
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from backtrail.arguments import check_duration, check_id
from backtrail.engine import changes, journal
from backtrail.engine.codec import Decoder, Encoder
from backtrail.engine.journal import Call, Journal
from backtrail.engine.paths import Path
from backtrail.entities import Message, to_data
from backtrail.errors import CommitUnknown, Conflict, Error, Invalid
from backtrail.repairs import repaired
from backtrail.run_calls import copied, name_of, record_of
from backtrail.run_history import RunThread
from backtrail.run_points import LISTS, beginning, left
from backtrail.run_threads import Shown, Work, forked_from, leased
from backtrail.strategies import AfterToolCall, RunState, RunStatus, ToolCallRecord
from backtrail.values import MISSING, when

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from backtrail.engine.engine import Desk, Engine
    from backtrail.strategies import Strategy
    from backtrail.threads import Thread

LEASE: Final = 60.0
"""Seconds for which a worker has a run, if it does not renew its lease; it does at every third of that."""
LEASE_MAX: Final = 30 * 86400
_TRIES: Final = 100


class Worker:
    """Has a run, and writes to its two threads."""

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
        errors: Iterable[type[Exception]] = (),
    ) -> None:
        self.session_id = check_id(session_id, "a session's id")
        self.agent = None if agent is None else check_id(agent, "an agent's id")
        self.strategy: Strategy = AfterToolCall() if strategy is None else strategy
        if isinstance(self.strategy, type) or not callable(getattr(self.strategy, "should_checkpoint", None)):
            raise Invalid(
                f"a strategy has should_checkpoint(iteration, event), as AfterToolCall() has, not {strategy!r}",
                code="invalid.argument",
            )
        if type(takeover) is not bool:
            raise Invalid(f"takeover is True or False, not {takeover!r:.100}", code="invalid.argument")
        self._engine = engine
        self._given = _as_data(messages), {} if state is None else state
        self._takeover = takeover
        self._seconds = check_duration(lease, "lease") / 1_000_000
        if self._seconds > LEASE_MAX:
            raise Invalid(f"a lease is {LEASE_MAX} seconds at most; it is renewed", code="invalid.argument")
        self._errors = _named(errors)
        self._work = Work(engine, session_id, agent)
        self._shown = Shown(engine, session_id, agent)
        self._token = uuid.uuid4().hex
        self._owner_name = ""
        self._lock = threading.RLock()
        """Held while something is written."""
        self._saying = threading.Lock()
        """Held while something is said; never while anything is read or written, so that nobody waits for it."""
        self._lost: Conflict | None = None
        self._unsure: CommitUnknown | None = None
        """Why nobody knows if the last write was done: the run is to be opened again, then."""
        self._stale = False
        """Whether the lease may have been renewed: the journal is looked at before the next write."""
        self._pid = 0
        self._open = False
        self._looping = False
        self._entered = False
        self._lent: str | None = None
        """The hash of the state, if it was read before the loop, where it is not to be changed."""
        self._buffer: list[list[Any]] = []
        """Entries of the journal that wait for the next write."""
        self._flushing = 0
        self._places: dict[int, int] = {}
        """Where each message stands, by its identity: they are kept as long as the run is."""
        self._repaired: list[Message] = []
        self._logs: dict[str, list[Any]] = {}
        """Entries of the journal that are written: of iteration 0, and of this one."""
        self._started: Any = MISSING
        """The state with which the iteration began, once that was needed."""
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
    def repaired(self) -> list[Message]:
        """Answers that were put behind tool calls which had none, when the run was opened."""
        return list(self._repaired)

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """The tool calls that came to an end, those of this iteration included."""
        return [record_of(each) for each in self._calls]

    @property
    def partial_results(self) -> list[Any]:
        """What `partial` was given."""
        return copy.deepcopy(self._partials)

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
        """The calls of this iteration whose result nobody knows, and that are not being made just now."""
        return [call for call in self._journal.in_doubt() if call.id not in self._under_way]

    @property
    def thread(self) -> Thread[Any]:
        """The thread of the run's checkpoints."""
        return RunThread(self._engine, self.session_id)

    def _check_open(self) -> None:
        if not self._open:
            raise Invalid("a run is used inside of its block: with store.run(...) as run:", code="invalid.run")
        if self._lost is not None:
            raise self._lost
        if self._unsure is not None:
            raise self._unsure
        if self._pid != os.getpid():
            text = f"run {self.session_id!r} was opened by another process: this one is a fork of it"
            raise Invalid(text, code="invalid.run")
        if self._engine.desk.overlay is not None:
            raise Invalid("a run writes by itself: use it outside of a transaction", code="invalid.transaction")

    @property
    def _where(self) -> str:
        """Where the journal of what is done now is."""
        return "calls" if self._looping else "zero"

    @property
    def _book(self) -> Journal:
        """The journal of what is done now."""
        return self._journal if self._looping else self._zero

    @property
    def _number(self) -> int:
        """The iteration that calls belong to."""
        return self._iteration if self._looping else 0

    def _is_live(self) -> bool:
        """Tell whether what is said now is not in the run yet: what comes before the loop of a resumed run is."""
        return self._status.name != RunState.COMPLETED and (self._looping or self._iteration == 0)

    def _seen(
        self, desk: Desk, status: RunStatus, state: Any, entries: Sequence[Any] = (), *, over: bool = False
    ) -> dict[str, Any]:
        """Return what a checkpoint of the run shows; `entries` are written with it, `over` if its iteration is."""
        first = self._iteration == 0
        zero = [*self._logs["zero"], *(entries if first else ())]
        calls = [] if over or first else [*self._logs["calls"], *entries]
        past = [*self._past, *(self._passing() if over else ())]
        begun: dict[str, Any] | None = None
        if not over:
            if self._started is MISSING:
                self._started = self._work.began_with(desk)
            begun = {**dict(zip(LISTS, self._kept, strict=True)), "state": self._started}
        return {
            "session_id": self.session_id,
            "agent": self.agent,
            "status": status.name,
            "reason": status.reason,
            "iteration": self._iteration,
            "messages": list(self._said_data),
            "tool_calls": list(self._calls),
            "partial_results": list(self._partials),
            "state": state,
            "journal": {"zero": zero, "calls": calls, "begun": begun, "past": past},
        }

    # -- the lease --------------------------------------------------------------------------------------

    def _acquire(self, desk: Desk) -> dict[str, Any]:
        """Take the lease, or say who has it; begin the run if it is new. Return what it goes on from."""
        data, moved = self._work.point(desk)
        now = desk.heads.shared_time()
        lease = [self._owner_name, self._token, now + int(self._seconds * 1_000_000)]
        going = {"lease": lease, "status": [str(RunState.IN_PROGRESS), None]}
        if data is not None and "past" not in data:
            going["past"] = []
        if data is None:
            fresh = self._repair({**self._beginning(), **going, "created_at": when(now)})
            self._work.put(desk, changes.Replace(fresh, desk.heads.nodes(), self._work._types))  # noqa: SLF001
            return {**fresh, "state": self._work.began_with(desk)}  # not the object that was given
        self.resumed = True
        if self.agent is not None and data["agent"] != self.agent:
            raise self._others(data["agent"])
        held = data["lease"]
        if held is not None and held[2] > now and not self._takeover:
            raise leased(self.session_id, held)
        repaired = self._repair(data)
        if data["status"][0] == RunState.COMPLETED:
            return data
        whole = {**repaired, **going}
        if moved or repaired is not data:
            self._work.put(desk, changes.Replace(whole, desk.heads.nodes(), self._work._types))  # noqa: SLF001
        else:
            self._work.put(desk, changes.Several(self._work.edits(going)))
        return whole

    def _beginning(self) -> dict[str, Any]:
        """Return how a new run begins: as it was told, or, if it is a fork, at its checkpoint."""
        forked = self.thread.latest()
        if forked is None:
            return beginning(self.agent, *self._given)
        point = forked_from(forked.state)
        self.resumed = True
        if self.agent is None and point["agent"] is not None:  # its journal belongs to that agent, too
            self.agent = point["agent"]
            self._work = Work(self._engine, self.session_id, self.agent)
        if self.agent != point["agent"]:
            raise self._others(point["agent"])
        return {**point, "agent": self.agent, "at": forked.seq}

    def _others(self, agent: str | None) -> Conflict:
        whose = "to no agent" if agent is None else f"to agent {agent!r}"
        return Conflict(f"run {self.session_id!r} belongs {whose}, not {self.agent!r}", code="conflict.agent")

    def _repair(self, data: dict[str, Any]) -> dict[str, Any]:
        """Put answers behind tool calls of messages that can get none any more."""
        messages = [Message.from_data(each) for each in data["messages"]]
        self._messages = messages
        if data["status"][0] == RunState.COMPLETED or not any("tool_calls" in each for each in data["messages"]):
            return data
        results = {each["tool_call_id"]: _answer(each) for each in data["tool_calls"] if each.get("tool_call_id")}
        asked = {each.call.tool_call_id for each in Journal(data["calls"]).recorded()}
        found = repaired(messages, results=results, last=False, leave=asked)
        there = {each.id for each in messages}
        self._repaired = [each for each in found if each.id not in there]
        if not self._repaired:
            return data
        self._messages = found
        return {**data, "messages": [to_data(each) for each in found]}

    def _take(self, data: dict[str, Any]) -> None:
        """Stand where the iteration begins that is to be run."""
        self.agent = data["agent"]
        self._status = RunStatus(*data["status"])
        self._iteration: int = data["iteration"]
        self._said_data: list[dict[str, Any]] = list(data["messages"])
        self._places = {id(each): at for at, each in enumerate(self._messages)}
        self._calls: list[dict[str, Any]] = list(data["tool_calls"])
        self._partials: list[Any] = list(data["partial_results"])
        self._state = data["state"]
        self._kept = len(self._messages), len(self._calls), len(self._partials)
        self._started = MISSING
        self._logs = {"zero": list(data["zero"]), "calls": list(data["calls"])}
        free = data.get("free", 0)
        self._past: list[dict[str, Any]] = list(data.get("past", ()))
        self._own = bool(data.get("own", False))
        self._digests: list[str] = []
        """What the messages of this iteration say, hashed."""
        self._marks: dict[str, list[tuple[str, int] | None]] = {journal.MESSAGE: [], journal.PARTIAL: []}
        self._zero = Journal(data["zero"], 0 if self._iteration else free)
        self._journal = self._zero if self._iteration == 0 else Journal(data["calls"], free)
        self._owner = self._engine.owner()

    def _passing(self) -> list[dict[str, Any]]:
        """Return calls that cannot be undone and would be forgotten with this iteration.

        Those are calls of models, and those that this run had made before it was rewound, and now did not ask for.
        """
        calls = [each for each in self._journal.recorded() if each.call.kind == "llm"]
        calls += [each for each in self._journal.left_out() if each.call.kind == "tool"] if self._own else []
        return left(calls)

    def _add(self, message: Message, data: dict[str, Any], digest: str) -> None:
        """Take note of a message that is said."""
        self._digests.append(digest)
        self._places[id(message)] = len(self._messages)
        self._messages.append(message)
        self._said_data.append(data)

    def _renew(self) -> float | None:
        """Renew the lease, until the block ends or somebody else has the run; return when to do so again."""
        if not self._lock.acquire(blocking=False):
            return 0.0  # it is writing just now
        try:
            if not self._open or self._lost is not None or self._unsure is not None or self._pid != os.getpid():
                return None
            until = self._engine.direct.heads.shared_time() + int(self._seconds * 1_000_000)
            edits = changes.Several(self._work.edits({"lease": [self._owner_name, self._token, until]}))
            self._write(partial(self._work.put, propose=edits), several=False)
        except Conflict:
            return None
        except CommitUnknown:
            self._unsure, self._stale = None, True
        except Error as error:  # the store is away: the next beat, or the next write, will tell
            if error.code == "unavailable.closed":
                return None
        finally:
            self._lock.release()
        return self._seconds / 3

    # -- writing ------------------------------------------------------------------------------------------

    def _write(self, write: Callable[[Desk], None], *, several: bool = True) -> None:
        """Write to the journal, on top of what this worker wrote last; if that is not the newest, the run is lost."""
        if self._lost is not None:
            raise self._lost
        if self._unsure is not None:
            raise self._unsure
        if self._stale:
            self._look_again()
        tries = 0
        while True:
            try:
                self._try(write, several=several)
                return
            except Conflict as error:  # of the journal, or of the checkpoints, which others may move
                head = self._work.standing.head if self._work.standing else None
                self._look_again(error)
                now = self._work.standing.head if self._work.standing else None
                if head is None or now is None or head.op_id != now.op_id:
                    raise self._taken_over() from error
                if tries == _TRIES or error.code == "conflict.agent":
                    raise
            tries += 1
            time.sleep(random.random() * 0.001 * tries)  # noqa: S311 - only to get out of step

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
            if isinstance(error, CommitUnknown) or not isinstance(error, Exception):  # it may have been written
                self._unsure = CommitUnknown(
                    f"nobody knows whether the last write of run {self.session_id!r} was done: leave its block, and "
                    "open it again; it goes on from what was written",
                    code="commit_unknown.run",
                )
            raise

    def _look_again(self, error: Conflict | None = None) -> None:
        """See how the journal stands; it is this worker's as long as it has its token."""
        data = self._work.read(self._engine.direct)
        if data is None or data["lease"] is None or data["lease"][1] != self._token:
            raise self._taken_over(gone=data is None) from error
        self._shown.standing = None
        self._shown.forget()
        self._stale = False

    def _taken_over(self, *, gone: bool = False) -> Conflict:
        what = "deleted" if gone else "taken over by another worker"
        text = f"run {self.session_id!r} was {what}: what this one does is not kept any more"
        self._lost = Conflict(text, code="conflict.lease")
        return self._lost

    def _flush(
        self, desk: Desk, entries: list[list[Any]], given: dict[str, Any] | None = None, at: int | None = None
    ) -> None:
        """Write entries, and those that were waiting for company; `at` is the checkpoint that is made with them."""
        items = self._waiting(entries)
        types = self._work._types  # noqa: SLF001 - its other half
        edits: list[changes.Edit] = []
        if items:
            edits.append(changes.Append(Path((self._where,)), tuple(items), types, self.session_id))
        if given or at is not None:
            edits += self._work.edits({**(given or {}), **({} if at is None else {"at": at})})
        if edits:
            self._work.put(desk, edits[0] if len(edits) == 1 else changes.Several(edits))

    def _waiting(self, entries: Sequence[Any] = ()) -> list[Any]:
        """Return entries, behind those that were waiting for company."""
        waiting = list(self._buffer)
        self._flushing = len(waiting)
        return [*waiting, *entries]

    def _flushed(self, entries: Sequence[Any] = ()) -> None:
        """Take note of what was written; what was said meanwhile waits for the next write."""
        self._logs[self._where] += [*self._buffer[: self._flushing], *entries]
        del self._buffer[: self._flushing]
        self._flushing = 0

    def _hash(self, value: Any, what: str = "state") -> str:
        encoder = Encoder(self._engine.direct.heads.nodes(), self._work._types, what=what)  # noqa: SLF001
        return blake3(bytes(encoder.rep(value))).hexdigest(length=12)

    def _copied(self, value: Any, what: str) -> tuple[str, Any]:
        """Return the hash of a value, and the value as it will come back from the store; `Invalid` if it cannot."""
        nodes, types = self._engine.direct.heads.nodes(), self._work._types  # noqa: SLF001
        rep = bytes(Encoder(nodes, types, what=what).rep(value))
        kept = copied(value)
        return blake3(rep).hexdigest(length=12), Decoder(nodes, types).value(rep) if kept is MISSING else kept

    def _as_kept(self, value: Any, what: str) -> Any:
        """Return a value as it will come back from the store; `Invalid` if it cannot."""
        kept = copied(value)
        return self._copied(value, what)[1] if kept is MISSING else kept


def _as_data(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise Invalid(f"messages is a list of them, not {messages!r:.100}", code="invalid.argument")
    found = list(messages)
    wrong = [each for each in found if not isinstance(each, Message)]
    if wrong:
        raise Invalid(f"this is {type(wrong[0]).__name__}, not a Message", code="invalid.value")
    return [to_data(each) for each in found]


def _answer(record: Mapping[str, Any]) -> Any:
    return record["result"] if record["success"] else f"failed: {record['result']}"


def _named(errors: Any) -> dict[str, type[Exception]]:
    found = [*errors] if isinstance(errors, Iterable) else [errors]
    wrong = [each for each in found if not (isinstance(each, type) and issubclass(each, Exception))]
    if wrong:
        raise Invalid(f"errors are classes of exceptions, not {wrong[0]!r:.100}", code="invalid.argument")
    return {name_of(each): each for each in found}


def _early() -> Invalid:
    return Invalid(
        "before the first iteration the state of a run is not changed: a resumed run would change it again. "
        "Give it with store.run(..., state=...), or change it in the loop",
        code="invalid.run",
    )
