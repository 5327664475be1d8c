"""A worker of a run: it has the lease, and knows how the run stands.

Nothing is known before the run is entered; what was known last stays known when its block is left.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from backtrail.conversations.repository import Conversations
from backtrail.engine import journal
from backtrail.engine.journal import Call, Journal
from backtrail.engine.tree import edits as changes
from backtrail.entities import Message, to_data
from backtrail.errors import CommitUnknown, Conflict, Error, Invalid, NotFound
from backtrail.models import MISSING, when
from backtrail.runs.calls import Named, name_of, record_of
from backtrail.runs.delivery import Delivery, owed_of
from backtrail.runs.history import RunThread
from backtrail.runs.points import LISTS, beginning, left
from backtrail.runs.recorder import Shown, Work, forked_from, leased
from backtrail.runs.strategies import AfterToolCall, RunState, RunStatus, ToolCallRecord
from backtrail.runs.unanswered_calls import repaired
from backtrail.runs.writer import Writer
from backtrail.validation import LEASE, check_duration, check_id

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from backtrail.runs.strategies import Strategy
    from backtrail.thread import Thread
    from backtrail.transaction import Desk, Engine

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
        errors: Iterable[type[Exception]] | Mapping[type[Exception], Iterable[str]] = (),
        types: Iterable[Any] = (),
        conversation: str | None = None,
    ) -> None:
        self.session_id = check_id(session_id, "a session's id")
        self.agent = None if agent is None else check_id(agent, "an agent's id")
        self.strategy = _strategy(strategy)
        if type(takeover) is not bool:
            raise Invalid(f"takeover is True or False, not {takeover!r:.100}", code="invalid.argument")
        self.conversation = None if conversation is None else check_id(conversation, "the id of a conversation")
        """The conversation that its messages go to, too."""
        self.resumed = False
        self._engine = engine
        self._given = _as_data(messages), {} if state is None else state
        self._takeover = takeover
        self._seconds = _seconds(lease)
        self._errors = _named(errors)
        classes = _classes(types)
        self._work = Work(engine, session_id, agent, classes)
        self._shown = Shown(engine, session_id, agent, classes)
        self._writer = Writer(engine, self._work, self._shown)
        self._owner_name = ""
        self._lock = threading.RLock()
        """Held while something is written."""
        self._saying = threading.Lock()
        """Held while something is said; never while anything is read or written, so that nobody waits for it."""
        self._pid = 0
        """The process that has the run, or had it; 0 until then."""
        self._open = False
        self._looping = False
        self._entered = False
        self._lent: str | None = None
        """The hash of the state, if it was read before the loop, where it is not to be changed."""
        self._places: dict[int, int] = {}
        """Where each message stands, by its identity: they are kept as long as the run is."""
        self._before: dict[str, Any] | None = None
        """What opening the run has changed, as it was, to be put back if it is only looked at; None: it is new."""
        self._moved_from: dict[str, Any] | None = None
        """What was stored when the run was opened, if it had been rewound since: that is put back then."""
        self._unheard: str | None = None
        """The conversation of the run, if it is gone and there is no agent to begin it again."""
        self._asked_for = False
        """Whether a call, a message or a partial result was asked for in this block."""
        self._repaired: list[Message] = []
        self._started: Any = MISSING
        """The state with which the iteration began, once that was needed."""
        self._under_way: set[str] = set()
        """Calls that are being made."""

    # -- how it stands --------------------------------------------------------------------------------

    @property
    def status(self) -> RunStatus:
        """How the run stands."""
        self._check_entered()
        return self._status

    @property
    def iteration(self) -> int:
        """The number of the iteration; 0 before the first one."""
        self._check_entered()
        return self._iteration

    @property
    def messages(self) -> list[Message]:
        """The messages, those of this iteration included."""
        self._check_entered()
        return list(self._messages)

    @property
    def repaired(self) -> list[Message]:
        """Answers that were put behind tool calls which had none, when the run was opened."""
        self._check_entered()
        return list(self._repaired)

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """The tool calls that came to an end, those of this iteration included."""
        self._check_entered()
        return [record_of(each) for each in self._calls]

    @property
    def partial_results(self) -> list[Any]:
        """What `partial` was given."""
        self._check_entered()
        return copy.deepcopy(self._partials)

    @property
    def state(self) -> Any:
        """The state: change it in place, inside of an iteration. It is kept when the iteration ends."""
        self._check_entered()
        if self._open and not self._looping and self._lent is None:
            self._lent = self._work.hash(self._state)
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._check_open()
        if not self._looping:
            raise _early()
        self._state = value

    def _check_state(self) -> None:
        """Refuse a state that was changed before the loop: a resumed run would change it again."""
        if self._lent is not None and self._lent != self._work.hash(self._state):
            raise _early()
        self._lent = None

    @property
    def in_doubt(self) -> list[Call]:
        """The calls of this iteration whose result nobody knows, and that are not being made just now."""
        self._check_entered()
        return [call for call in self._journal.in_doubt() if call.id not in self._under_way]

    @property
    def thread(self) -> Thread[Any]:
        """The thread of the run's checkpoints."""
        return RunThread(self._engine, self.session_id)

    def _check_entered(self) -> None:
        if not self._pid:
            text = f"run {self.session_id!r} is not open: enter it first, with store.run(...) as run:"
            raise Invalid(text, code="invalid.run")

    def _check_open(self) -> None:
        if not self._open:
            raise Invalid("a run is used inside of its block: with store.run(...) as run:", code="invalid.run")
        self._writer.check()
        self._check_process()
        if self._engine.desk.overlay is not None:
            raise Invalid("a run writes by itself: use it outside of a transaction", code="invalid.transaction")

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            text = f"run {self.session_id!r} was opened by another process: this one is a fork of it"
            raise Invalid(text, code="invalid.run")

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
        zero = [*self._writer.logs["zero"], *(entries if first else ())]
        calls = [] if over or first else [*self._writer.logs["calls"], *entries]
        past = [*self._past, *(self._passing() if over else ())]
        begun: dict[str, Any] | None = None
        if not over:
            if self._started is MISSING:
                self._started = self._work.began_with(desk)
            begun = {**dict(zip(LISTS, self._kept, strict=True)), "state": self._started}
        return {
            "session_id": self.session_id,
            "agent": self.agent,
            **({} if self.conversation is None else {"conversation": self.conversation}),
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
        self._writer.joining = self._unheard = None  # it may be asked for again
        data, moved = self._work.point(desk)
        now = desk.heads.shared_time()
        lease = [self._owner_name, self._writer.token, now + int(self._seconds * 1_000_000)]
        going = {"lease": lease, "status": [str(RunState.IN_PROGRESS), None]}
        if data is not None and "past" not in data:
            going["past"] = []
        if data is None:
            begun = self._repair({**self._beginning(), "lease": None, "created_at": when(now)})
            self._check_classes(begun)
            fresh = {**begun, **going, **self._join(begun)}
            self._work.put(desk, self._work.whole(desk, fresh), fresh["status"])
            if self.resumed:  # a fork that was never opened
                self._before = {"status": begun["status"], "lease": None}
            return {**fresh, "state": self._work.began_with(desk)}  # not the object that was given
        self.resumed = True
        if self.agent is not None and data["agent"] != self.agent:
            raise self._others(data["agent"])
        held = data["lease"]
        if held is not None and held[2] > now and not self._takeover:
            raise leased(self.session_id, held)
        self._check_classes(data)
        repaired = self._repair(data)
        if data["status"][0] == RunState.COMPLETED:
            return data
        self._before = {"status": data["status"], "lease": None}
        if repaired is not data:
            self._before["messages"] = data["messages"]
        self._moved_from = self._work.stored if moved else None  # to read it again might find a newer one
        going |= self._join(repaired)
        whole = {**repaired, **going}
        if moved or repaired is not data:
            self._work.put(desk, self._work.whole(desk, whole), whole["status"])
        else:
            self._work.put(desk, changes.Several(self._work.edits(going)), whole["status"])
        return whole

    def _join(self, data: dict[str, Any]) -> dict[str, Any]:
        """Find the conversation that the messages go to. A new run joins it now, another one with its next write."""
        known = data.get("conversation")
        name = self.conversation = self.conversation or known
        if name is None:
            return {}
        if known not in (None, name):
            text = f"the messages of run {self.session_id!r} go to conversation {known!r}, not {name!r}"
            raise Conflict(text, code="conflict.conversation")
        agent: str | None = data["agent"]
        if agent is None:
            try:
                agent = Conversations(self._engine).info(name).agent_id
            except NotFound:  # nobody is known whose it could be
                if known is None:
                    raise
                self._unheard = name
                return {}
        self._writer.deliver = Delivery(self._engine, name, agent)
        messages: list[dict[str, Any]] = data["messages"]
        if not self.resumed:
            self._writer.deliver((), owed_of(messages))
            return {"conversation": name}
        if known is None:
            entries = (data["calls"] if data["iteration"] else data["zero"])[data.get("free", 0) :]
            self._writer.owed = owed_of([*messages, *(each[2] for each in entries if each[0] == journal.MESSAGE)])
            self._writer.joining = name
        else:
            self._writer.owed = [each for each in owed_of(messages) if each.behind is not None]
        return {}

    def _check_classes(self, data: dict[str, Any]) -> None:
        """Refuse to give what holds instances of classes that are not named: it would not be what was kept."""
        self._work.hash(data["state"], "state")
        self._work.hash(data["partial_results"], "partial_results")
        if not self.resumed:
            self._work.hash(data["messages"], "messages")

    def _beginning(self) -> dict[str, Any]:
        """Return how a new run begins: as it was told, or, if it is a fork, at its checkpoint."""
        forked = self.thread.latest()
        if forked is None:
            return beginning(self.agent, *self._given)
        point = forked_from(forked.state)
        self.resumed = True
        if self.agent is None and point["agent"] is not None:  # its journal belongs to that agent, too
            self.agent = point["agent"]
            self._work.belongs_to(point["agent"])
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
        self.conversation = data.get("conversation", self._writer.joining)
        self._status = RunStatus(*data["status"])
        self._iteration: int = data["iteration"]
        self._said_data: list[dict[str, Any]] = list(data["messages"])
        self._places = {id(each): at for at, each in enumerate(self._messages)}
        self._calls: list[dict[str, Any]] = list(data["tool_calls"])
        self._partials: list[Any] = list(data["partial_results"])
        self._state = data["state"]
        self._kept = len(self._messages), len(self._calls), len(self._partials)
        self._started = MISSING
        self._writer.logs = {"zero": list(data["zero"]), "calls": list(data["calls"])}
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
            if (
                not self._open
                or self._writer.lost is not None
                or self._writer.unsure is not None
                or self._pid != os.getpid()
            ):
                return None
            until = self._engine.direct.heads.shared_time() + int(self._seconds * 1_000_000)
            edits = changes.Several(self._work.edits({"lease": [self._owner_name, self._writer.token, until]}))
            self._writer.write(partial(self._work.put, propose=edits), several=False)
        except Conflict:
            return None
        except CommitUnknown:
            self._writer.unsure, self._writer.stale = None, True
        except Error as error:  # the store is away: the next beat, or the next write, will tell
            if error.code == "unavailable.closed":
                return None
        finally:
            self._lock.release()
        return self._seconds / 3


def _strategy(given: Strategy | None) -> Strategy:
    if given is None:
        return AfterToolCall()
    if isinstance(given, type) or not callable(getattr(given, "should_checkpoint", None)):
        raise Invalid(
            f"a strategy has should_checkpoint(iteration, event), as AfterToolCall() has, not {given!r}",
            code="invalid.argument",
        )
    return given


def _seconds(lease: dt.timedelta | float) -> float:
    seconds = check_duration(lease, "lease") / 1_000_000
    if seconds > LEASE_MAX:
        raise Invalid(f"a lease is {LEASE_MAX} seconds at most; it is renewed", code="invalid.argument")
    return seconds


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


def _named(errors: Any) -> dict[str, Named]:
    found = [*errors] if isinstance(errors, Iterable) else [errors]
    wrong = [each for each in found if not (isinstance(each, type) and issubclass(each, Exception))]
    if wrong:
        raise Invalid(f"errors are classes of exceptions, not {wrong[0]!r:.100}", code="invalid.argument")
    told = errors if isinstance(errors, Mapping) else {}
    return {name_of(each): Named(each, _attributes(told.get(each, ()))) for each in found}


def _attributes(names: Any) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise Invalid(
            f"errors={{X: [names of attributes]}} takes a list of names, not {names!r:.100}", code="invalid.argument"
        )
    found = [*names]
    wrong = [each for each in found if type(each) is not str]
    if wrong:
        raise Invalid(f"the name of an attribute is a text, not {wrong[0]!r:.100}", code="invalid.argument")
    return frozenset(found)


def _classes(types: Any) -> tuple[Any, ...]:
    if isinstance(types, type) or not isinstance(types, Iterable):
        name = getattr(types, "__name__", "Class")
        raise Invalid(f"types= takes a list of classes: types=[{name}]", code="invalid.argument")
    return tuple(types)


def _early() -> Invalid:
    return Invalid(
        "before the first iteration the state of a run is not changed: a resumed run would change it again. "
        "Give it with store.run(..., state=...), or change it in the loop",
        code="invalid.run",
    )
