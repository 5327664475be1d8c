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

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPACE: Final = "journal"
"""The name space of the threads that runs go on from: nobody's to look at."""
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
        self._by_key: dict[str, list[str]] = {}
        self._said: dict[str, list[Any]] = {}
        self._order: list[tuple[str, int]] = []
        self._asked: dict[str, int] = {}
        self._claimed: set[str] = set()
        """Calls that were asked for, as far as they are known to whoever asked."""
        self._let_go: set[str] = set()
        self._free: dict[str, int] = {}
        self.newest: Call | None = None
        """The last call that was begun, not read."""
        self.count = 0
        """Calls that were ever begun, those that were not done included."""
        for at, entry in enumerate(entries):
            try:
                self._read(entry)
                if at < free:
                    self._let(entry)
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise Corrupt(
                    f"an entry of a run's journal is damaged: {entry!r:.200}", code="corrupt.state"
                ) from error

    def _read(self, entry: list[Any]) -> None:
        kind = entry[0]
        if kind == INTENT:
            self.began(Call(*entry[1:]))
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
            said.append(entry[2])

    def _let(self, entry: list[Any]) -> None:
        """Take note that what an entry says need not be said again."""
        if entry[0] == INTENT:
            self._let_go.add(entry[1])
        elif entry[0] in (MESSAGE, PARTIAL):
            name = f"{entry[0]}:{entry[1]}"
            self._free[name] = self._free.get(name, 0) + 1

    def began(self, call: Call) -> None:
        """Take note of an intent."""
        self.count += 1
        self._calls[call.id] = Recorded(call, None)
        self._by_key.setdefault(call.key, []).append(call.id)

    def begin(self, call: Call) -> None:
        """Take note of an intent that is asked for now: the next one alike is another."""
        self.began(call)
        self._claimed.add(call.id)
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
        self._by_key[call.key].remove(call_id)

    def ask(self, key: str) -> Recorded | None:
        """Return the next recorded call that asks for this, None if there is none."""
        found = next((each for each in self._by_key.get(key, ()) if each not in self._claimed), None)
        if found is None:
            return None
        self._claimed.add(found)
        return self._calls[found]

    def unask(self, call: Call) -> None:
        """Take note that whoever asked for a call got no answer: whoever asks next is to get the same."""
        self._claimed.discard(call.id)
        self._let_go.add(call.id)

    def is_last(self, call: Call) -> bool:
        """Tell whether no call alike was begun after this one."""
        return self._by_key[call.key][-1] == call.id

    def heard(self, kind: str, key: str) -> tuple[bool, Any]:
        """Return whether a message or partial result was said before, and as what."""
        name = f"{kind}:{key}"
        at = self._asked.get(name, 0)
        self._asked[name] = at + 1
        said = self._said.get(name, [])
        return (True, said[at]) if at < len(said) else (False, None)

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
        return next((call for call in self._unclaimed() if call.main), None)

    def forgotten(self) -> Call | None:
        """Return a recorded call that was not asked for again, if there is one."""
        return next(self._unclaimed(), None)

    def _unclaimed(self) -> Iterator[Call]:
        done = self._claimed | self._let_go
        return (each.call for each in self._calls.values() if each.call.id not in done)

    def said(self, kind: str) -> list[Any]:
        """Return the recorded messages, or partial results, in their order; free ones only if they were said again."""
        found = []
        for name, at in self._order:
            heard, free = self._asked.get(name, 0), self._free.get(name, 0)
            if name[0] == kind and (at < heard or at >= free):
                found.append(self._said[name][at])
        return found


def finished(entries: Sequence[Any]) -> list[Any]:
    """Return entries without the calls that nobody knows the end of."""
    doubtful = {call.id for call in Journal(entries).in_doubt()}
    return [entry for entry in entries if entry[0] in (MESSAGE, PARTIAL) or entry[1] not in doubtful]


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
