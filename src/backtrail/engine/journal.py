"""The journal of a run: what was asked for in an iteration, and what came of it.

An *intent* is written before a call, its *result* after it; an intent without a result is in doubt. When an iteration
is run again, each call finds its own result by what it asks for: its name (or the id that a model gave it), its
arguments, and how many alike were asked for before it. So calls may come in any order, as those of several threads do.

Entries are short lists, in the order in which they were written:

    ["i", id, kind, name, key, arguments, policy, irreversible, main, tool_call_id, sent]    an intent
    ["r", id, good, value, when]                       its result: a value, or an error's
    ["a", id]                                          it had failed, and is tried again
    ["n", id]                                          it was not done, as somebody settled
    ["m", key, message], ["p", key, value]             a message, a partial result

`main` is whether a call was not asked for beside others, `sent` the key that an idempotent tool is given. Entries that
a run has from the checkpoint that it goes on from are *free*: code may ask for them again, and need not.

Everything here is plain data in, plain data out.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

SPACE: Final = "journal"
"""The name space of the threads that runs go on from: nobody's to look at."""
RUN: Final = "run"
"""That of the threads of their checkpoints."""
INTENT: Final = "i"
RESULT: Final = "r"
AGAIN: Final = "a"
NOT_DONE: Final = "n"
MESSAGE: Final = "m"
PARTIAL: Final = "p"


class Result(NamedTuple):
    """What came of a call: a value, or what is known of an exception."""

    good: bool
    value: Any
    when: int = 0
    """Microseconds since 1970, by the clock of whoever wrote it."""


class Call(NamedTuple):
    """A call that was asked for."""

    id: str
    kind: str
    name: str
    key: str
    arguments: dict[str, Any]
    policy: str
    irreversible: bool
    main: bool
    tool_call_id: str | None = None
    sent: str | None = None

    def entry(self) -> list[Any]:
        """Return its intent."""
        return [INTENT, *self]


class Recorded(NamedTuple):
    """A call of the journal."""

    call: Call
    result: Result | None
    """None: it is in doubt."""


class Journal:
    """The entries of one iteration, and which of them were asked for again."""

    def __init__(self, entries: Sequence[Any] = (), free: int = 0) -> None:
        self._calls: dict[str, Recorded] = {}
        self._alike: dict[str, list[str]] = {}
        """The ids of calls that ask for the same, by their key."""
        self._open: dict[str, list[str]] = {}
        """Those of them that nobody has been answered yet."""
        self._required: dict[str, Call] = {}
        """Calls that must be asked for again."""
        self._free: dict[str, Call] = {}
        """Calls that may be."""
        self._said: dict[str, list[Any]] = {}
        self._order: list[tuple[str, int]] = []
        """What was said, as its name and which of that name."""
        self._optional: set[tuple[str, int]] = set()
        self._heard: dict[str, int] = {}
        self.newest: Call | None = None
        """The last call that was begun, not read."""
        self.count = 0
        """Calls that were ever begun, those that were not done included."""
        for at, entry in enumerate(entries):
            try:
                self._read(entry, free=at < free)
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise Corrupt(
                    f"an entry of a run's journal is damaged: {entry!r:.200}", code="corrupt.state"
                ) from error

    def _read(self, entry: list[Any], *, free: bool) -> None:
        kind = entry[0]
        if kind == INTENT:
            call = Call(*entry[1:])
            self._add(call)
            self._open.setdefault(call.key, []).append(call.id)
            (self._free if free else self._required)[call.id] = call
        elif kind == RESULT:
            self.ended(entry[1], Result(*entry[2:]))
        elif kind == AGAIN:
            self.again(entry[1])
        elif kind == NOT_DONE:
            self.not_done(entry[1])
        else:
            name = f"{kind}:{entry[1]}"
            said = self._said.setdefault(name, [])
            self._order.append((name, len(said)))
            if free:
                self._optional.add(self._order[-1])
            said.append(entry[2])

    def _add(self, call: Call) -> None:
        self.count += 1
        self._calls[call.id] = Recorded(call, None)
        self._alike.setdefault(call.key, []).append(call.id)

    # -- calls ----------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """Take note of an intent that is asked for now: the next one alike is another."""
        self._add(call)
        self.newest = call

    def ended(self, call_id: str, result: Result) -> None:
        """Take note of a result."""
        self._calls[call_id] = self._calls[call_id]._replace(result=result)

    def again(self, call_id: str) -> None:
        """Take note that a call which had failed is tried again."""
        self._calls[call_id] = self._calls[call_id]._replace(result=None)

    def not_done(self, call_id: str) -> None:
        """Take note that a call which was begun was not done: the next one alike is new."""
        call = self._calls.pop(call_id).call
        self._alike[call.key].remove(call_id)
        if call_id in self._open.get(call.key, ()):
            self._open[call.key].remove(call_id)
        self._required.pop(call_id, None)
        self._free.pop(call_id, None)

    def ask(self, key: str) -> Recorded | None:
        """Return the next recorded call that asks for this, None if there is none."""
        waiting = self._open.get(key)
        if not waiting:
            return None
        found = self._calls[waiting.pop(0)]
        self._required.pop(found.call.id, None)
        self._free.pop(found.call.id, None)
        return found

    def unask(self, call: Call) -> None:
        """Take note that whoever asked for a call got no answer: whoever asks next is to get the same."""
        self._open.setdefault(call.key, []).insert(0, call.id)

    def is_last(self, call: Call) -> bool:
        """Tell whether no call alike was begun after this one."""
        return self._alike[call.key][-1] == call.id

    def in_doubt(self) -> list[Call]:
        """Return the calls that were begun and have no result."""
        calls = [*self._calls.values()]  # others may begin some meanwhile
        return [each.call for each in calls if each.result is None]

    def recorded(self) -> list[Recorded]:
        """Return all calls, in the order in which they were begun."""
        return [*self._calls.values()]

    def call(self, call_id: str) -> Recorded | None:
        """Return a call by its id."""
        return self._calls.get(call_id)

    def expected(self) -> Call | None:
        """Return the first recorded call that was not asked for again, of those that came one after the other."""
        return next((call for call in self._required.values() if call.main), None)

    def forgotten(self) -> Call | None:
        """Return a recorded call that was not asked for again, if there is one."""
        return next(iter(self._required.values()), None)

    def left_out(self) -> list[Recorded]:
        """Return the free calls that were not asked for again."""
        return [self._calls[call_id] for call_id in self._free]

    # -- what was said --------------------------------------------------------------------------------

    def heard(self, kind: str, key: str) -> tuple[tuple[str, int] | None, Any]:
        """Return where a message or partial result stands that was said before, and as what; None: it was not."""
        name = f"{kind}:{key}"
        at = self._heard.get(name, 0)
        self._heard[name] = at + 1
        said = self._said.get(name, [])
        return ((name, at), said[at]) if at < len(said) else (None, None)

    def is_free(self, place: tuple[str, int]) -> bool:
        """Tell whether what stands there need not be said again."""
        return place in self._optional

    def said(self, kind: str) -> list[tuple[tuple[str, int], Any]]:
        """Return what was recorded, where it stands, in its order; what is free only if it was said again."""
        return [
            ((name, at), self._said[name][at])
            for name, at in self._order
            if name[0] == kind and (at < self._heard.get(name, 0) or (name, at) not in self._optional)
        ]


_LISTS: Final = ("messages", "tool_calls", "partial_results", "zero", "calls")
SEEN: Final = frozenset({"session_id", "iteration", *_LISTS[:3]})
"""The keys that every checkpoint of a run has."""


def is_point(data: Any) -> bool:
    """Tell whether this is what a run goes on from, as the journal's thread has it."""
    if (
        not isinstance(data, dict)
        or not {"agent", "status", "iteration", "state", "lease", "created_at"} <= data.keys()
    ):
        return False
    status, lease = data["status"], data["lease"]
    return (
        isinstance(data["agent"], str | None)
        and type(data["iteration"]) is int
        and type(status) is list
        and [*map(type, status)] in ([str, str], [str, type(None)])
        and all(type(data.get(name)) is list for name in _LISTS)
        and (lease is None or (type(lease) is list and [*map(type, lease)] == [str, str, int]))
        and isinstance(data["created_at"], dt.datetime)
    )


def is_seen(state: Any) -> bool:
    """Tell whether this is what a checkpoint of a run shows."""
    return isinstance(state, dict) and state.keys() >= SEEN


def finished(entries: Sequence[Any]) -> list[Any]:
    """Return entries, with the calls that nobody knows the end of as not done."""
    return [*entries, *([NOT_DONE, call.id] for call in Journal(entries).in_doubt())]


def known(entries: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Return entries, with the results that later entries of the same calls have."""
    doubtful = {call.id: call.entry() for call in Journal(entries).in_doubt()}
    same = {entry[1] for entry in later if entry[0] == INTENT and doubtful.get(entry[1]) == entry}
    return [*entries, *(entry for entry in later if entry[0] == RESULT and entry[1] in same)]


def diverged(recorded: Call, asked: str) -> Invalid:
    """Return the error of code that asks for something else than it did before."""
    return Invalid(
        f"iteration {recorded.id.partition('.')[0]} was cut short after it had asked for {described(recorded)}; now it "
        f"asks for {asked} instead. Within an iteration, the same results must lead to the same calls",
        code="invalid.replay",
        recorded=recorded.id,
    )


def described(call: Call) -> str:
    """Return a call as people read it."""
    args = [*(repr(arg) for arg in call.arguments.get("args", ()))]
    args += [f"{name}={value!r}" for name, value in call.arguments.get("kwargs", {}).items()]
    text = f"{call.kind} {call.name}({', '.join(args)})"
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004 - enough to see which it is
