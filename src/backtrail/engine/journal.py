"""The journal of an iteration: the calls that it asked for and their results, its messages and partial results.

An *intent* is written before a call, its *result* after it; a call without a result is in doubt. When an iteration is
replayed, a call finds its recorded result by its *key*: its name (or the id that a model gave it) and its arguments. If
several calls have the same key, the first call gets the first result, and so on. So calls with different keys may come
in any order, also from several threads.

Entries are short lists, in the order in which they were written:

    ["i", id, kind, name, key, arguments, policy, irreversible, main, tool_call_id, sent]    an intent
    ["r", id, good, value, when]                       its result: a value, or an exception as data
    ["a", id]                                          the failed call is tried again
    ["n", id]                                          the call was not done
    ["m", key, message], ["p", key, value]             a message, a partial result

The first entry of a stored journal may be ["c", seq]: the checkpoint with that seq has everything before it.

`main` tells whether the thread or task that opened the run made the call. `sent` is the idempotency key that the tool
got. *Free* entries come from the checkpoint that the run continues from: a replay may repeat them, but need not. All
other entries must be repeated. The functions of this module take plain data and return plain data.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPACE: Final = "journal"
"""The name space of the threads that hold the journals of runs. Listings leave them out."""
RUN: Final = "run"
"""The name space of the threads that hold the checkpoints of runs."""
INTENT: Final = "i"
RESULT: Final = "r"
AGAIN: Final = "a"
NOT_DONE: Final = "n"
MESSAGE: Final = "m"
PARTIAL: Final = "p"
CHECKPOINT: Final = "c"


class Result(NamedTuple):
    """The result of a call: a value, or an exception as data."""

    good: bool
    value: Any
    when: int = 0
    """Microseconds since 1970, by the clock of the process that wrote the result."""


class Call(NamedTuple):
    """The intent of a call: its fields are those of the journal entry."""

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
        """Return the call as a journal entry."""
        return [INTENT, *self]


class Recorded(NamedTuple):
    """A call of the journal, with its result."""

    call: Call
    result: Result | None
    """None if the call is in doubt."""


class Journal:
    """The entries of one iteration, and which of them the replayed code has repeated."""

    def __init__(self, entries: Sequence[Any] = (), free: int = 0) -> None:
        self._calls: dict[str, Recorded] = {}
        self._alike: dict[str, list[str]] = {}
        """The ids of all calls, by key."""
        self._open: dict[str, list[str]] = {}
        """The ids of the recorded calls that the replay has not repeated yet, by key."""
        self._required: dict[str, Call] = {}
        """The recorded calls that the replay must still repeat, by id."""
        self._free: dict[str, Call] = {}
        """The recorded calls that the replay may still repeat, but need not, by id."""
        self._said: dict[str, list[Any]] = {}
        self._order: list[tuple[str, int]] = []
        """The places of messages and partial results: a name ("kind:key") and an index into the values of that name."""
        self._optional: set[tuple[str, int]] = set()
        self._heard: dict[str, int] = {}
        self.newest: Call | None = None
        """The last call that began in this process."""
        self.count = 0
        """The number of calls that ever began, calls that were not done included."""
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
        """Add the intent of a new call. A replayed caller never gets it: the next call with its key is new, too."""
        self._add(call)
        self.newest = call

    def ended(self, call_id: str, result: Result) -> None:
        """Set the result of a call."""
        self._calls[call_id] = self._calls[call_id]._replace(result=result)

    def again(self, call_id: str) -> None:
        """Remove the result of a failed call, which is tried again."""
        self._calls[call_id] = self._calls[call_id]._replace(result=None)

    def not_done(self, call_id: str) -> None:
        """Remove a call that began and was not done. The next call with its key is new."""
        call = self._calls.pop(call_id).call
        self._alike[call.key].remove(call_id)
        if call_id in self._open.get(call.key, ()):
            self._open[call.key].remove(call_id)
        self._required.pop(call_id, None)
        self._free.pop(call_id, None)

    def ask(self, key: str) -> Recorded | None:
        """Return the next recorded call with this key, and count it as repeated; None if the call is new."""
        waiting = self._open.get(key)
        if not waiting:
            return None
        recorded = self._calls[waiting.pop(0)]
        self._required.pop(recorded.call.id, None)
        self._free.pop(recorded.call.id, None)
        return recorded

    def unask(self, call: Call) -> None:
        """Take back an `ask` whose caller got no result: the next caller with this key gets the same recorded call."""
        self._open.setdefault(call.key, []).insert(0, call.id)

    def is_last(self, call: Call) -> bool:
        """Tell whether `call` is the newest call with its key."""
        return self._alike[call.key][-1] == call.id

    def in_doubt(self) -> list[Call]:
        """Return the calls that began and have no result."""
        calls = [*self._calls.values()]  # a copy: other threads may begin calls meanwhile
        return [each.call for each in calls if each.result is None]

    def recorded(self) -> list[Recorded]:
        """Return all calls, in the order in which they began."""
        return [*self._calls.values()]

    def call(self, call_id: str) -> Recorded | None:
        """Return the call with this id; None if the journal does not have it."""
        return self._calls.get(call_id)

    def expected(self) -> Call | None:
        """Return the first call of the main thread or task that the replay must still repeat; None if there is none."""
        return next((call for call in self._required.values() if call.main), None)

    def forgotten(self) -> Call | None:
        """Return the first call, of any thread, that the replay must still repeat; None if there is none."""
        return next(iter(self._required.values()), None)

    def left_out(self) -> list[Recorded]:
        """Return the free calls that the replay has not repeated."""
        return [self._calls[call_id] for call_id in self._free]

    # -- messages and partial results -----------------------------------------------------------------

    def heard(self, kind: str, key: str) -> tuple[tuple[str, int] | None, Any]:
        """Return the place and value of the next recorded message or partial result with this key, or (None, None)."""
        name = f"{kind}:{key}"
        at = self._heard.get(name, 0)
        self._heard[name] = at + 1
        said = self._said.get(name, [])
        return ((name, at), said[at]) if at < len(said) else (None, None)

    def is_free(self, place: tuple[str, int]) -> bool:
        """Tell whether the message or partial result at this place is free: the replay need not repeat it."""
        return place in self._optional

    def said(self, kind: str) -> list[tuple[tuple[str, int], Any]]:
        """Return the places and values of all messages, or of all partial results, in the order of the journal.

        Free entries that the replay has not repeated are left out.
        """
        return [
            ((name, at), self._said[name][at])
            for name, at in self._order
            if name[0] == kind and (at < self._heard.get(name, 0) or (name, at) not in self._optional)
        ]


LISTS: Final = ("messages", "tool_calls", "partial_results")
"""The lists of a run to which an iteration only appends."""
SEEN: Final = frozenset({"session_id", "iteration", *LISTS})
"""The keys that every checkpoint of a run has."""
_POINT: Final = frozenset({"agent", "status", "iteration", "state", "lease", "created_at", "zero", *LISTS})


def is_point(data: Any) -> bool:
    """Tell whether `data` is a valid state of a journal thread, from which a run can continue."""
    if not isinstance(data, dict) or not data.keys() >= _POINT:
        return False
    status, lease, entries = data["status"], data["lease"], entries_of(data)
    return (
        isinstance(data["agent"], str | None)
        and type(iteration_of(data)) is int
        and type(status) is list
        and [*map(type, status)] in ([str, str], [str, type(None)])
        and all(type(each) is list for each in (entries, data["zero"], *(data[name] for name in LISTS)))
        and _is_span(data.get("ended", [0, 0]), len(entries))
        and (lease is None or (type(lease) is list and [*map(type, lease)] == [str, str, int]))
        and isinstance(data["created_at"], dt.datetime)
    )


def _is_span(span: Any, size: int) -> bool:
    return type(span) is list and [*map(type, span)] == [int, int] and 0 <= span[0] <= span[1] <= size


def entries_of(data: Mapping[str, Any]) -> Any:
    """Return the entries of a stored journal. Older layouts have them under `calls`; those of iteration 0 in `zero`."""
    return data.get("entries", data.get("calls"))


def iteration_of(data: Mapping[str, Any]) -> Any:
    """Return the number of the iteration of a stored journal. An older layout has it in a list of one item."""
    number = data["iteration"]
    return number[0] if type(number) is list and len(number) == 1 else number


def checkpoint_of(data: Mapping[str, Any]) -> int:
    """Return the seq of the checkpoint that a stored journal continues; 0 if the journal is complete by itself."""
    first: Any = next(iter(entries_of(data)), None)
    is_checkpoint = type(first) is list and [*map(type, first)] == [str, int] and first[0] == CHECKPOINT
    return int(first[1]) if is_checkpoint else 0


def check_entries(data: Mapping[str, Any]) -> None:
    """Raise `Corrupt` if entries of a stored journal are damaged. The rest may depend on the journal's checkpoint."""
    zero: list[Any] = data["zero"]
    entries: list[Any] = [] if checkpoint_of(data) else entries_of(data)[data.get("ended", (0, 0))[0] :]
    if iteration_of(data):
        Journal(zero)
        Journal(entries)
    else:  # the entries continue those in `zero`
        Journal([*zero, *entries])


def is_seen(state: Any) -> bool:
    """Tell whether `state` is the state of a run's checkpoint."""
    return isinstance(state, dict) and state.keys() >= SEEN


def finished(entries: Sequence[Any]) -> list[Any]:
    """Return the entries, with a "not done" entry for each call in doubt."""
    return [*entries, *([NOT_DONE, call.id] for call in Journal(entries).in_doubt())]


def known(entries: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Return the entries, with results from `later` for the calls in doubt that both have."""
    doubtful = {call.id: call.entry() for call in Journal(entries).in_doubt()}
    same = {entry[1] for entry in later if entry[0] == INTENT and doubtful.get(entry[1]) == entry}
    return [*entries, *(entry for entry in later if entry[0] == RESULT and entry[1] in same)]


def diverged(recorded: Call, asked: str) -> Invalid:
    """Return the error for a replay that makes another call (`asked`) than the recorded one."""
    return Invalid(
        f"iteration {recorded.id.partition('.')[0]} was cut short after it had asked for {described(recorded)}; now it "
        f"asks for {asked} instead. Within an iteration, the same results must lead to the same calls",
        code="invalid.replay",
        recorded=recorded.id,
    )


def described(call: Call) -> str:
    """Return a call as text for people, in at most 200 characters."""
    args = [*(repr(arg) for arg in call.arguments.get("args", ()))]
    args += [f"{name}={value!r}" for name, value in call.arguments.get("kwargs", {}).items()]
    text = f"{call.kind} {call.name}({', '.join(args)})"
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004 - enough to see which it is
