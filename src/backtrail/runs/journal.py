"""The journal of a run in memory: its messages, calls, partial results and state, and the point where it resumes.

`RunJournal` holds the run while its block is open. A *point* is the data of the journal's thread: the run at the
beginning of the current iteration, and the entries that the iteration has written since. A checkpoint shows the run at
one moment; its `journal` holds the data for the point of that moment. So a run resumes from a checkpoint as it does
after a crash: the iteration starts again, and recorded calls return their recorded results. After a crash, the code
must ask for every recorded call again. After a rewind or a fork, it may make other calls: those entries are *free*.

This module neither reads nor writes a store.
"""

from __future__ import annotations

import datetime as dt
import threading
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.conversations.models import Message
from backtrail.engine import journal
from backtrail.engine.journal import LISTS, Journal
from backtrail.engine.tree.encode import Packer
from backtrail.errors import Corrupt, Invalid
from backtrail.models import MISSING
from backtrail.runs.strategies import RunState, RunStatus, as_record
from backtrail.validation import EPOCH, to_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from backtrail.runs.delivery import Delivery
    from backtrail.runs.values import RunValues

OVER: Final[dict[str, Any]] = {"zero": [], "calls": [], "begun": None, "past": []}
"""The `journal` of a checkpoint at the end of an iteration, with empty lists."""


class RunJournal:
    """A run in the memory of its worker: status, iteration, messages, calls, partial results and state."""

    def __init__(self, session_id: str, values: RunValues) -> None:
        self.session_id = session_id
        self._values = values
        self.agent: str | None = None
        self.conversation: str | None = None
        self.status = RunStatus(str(RunState.IN_PROGRESS))
        self.iteration = 0
        self.is_looping = False
        """Whether the loop over `iterations()` has begun: from then on, calls and messages belong to an iteration."""
        self.is_used = False
        """Whether the caller has made a call or added a message or partial result in this block."""
        self.state: Any = None
        self.messages: list[Message] = []
        self.calls: list[dict[str, Any]] = []
        """The records of tool calls that have ended."""
        self.partials: list[Any] = []
        self.zero = self.current = Journal()
        """The journal of the code before the loop, and the journal of the current iteration."""
        self.lock = threading.Lock()
        """Held while a message or partial result is added; never during I/O, so that no caller waits for I/O."""
        self._message_data: list[dict[str, Any]] = []
        self._positions: dict[int, int] = {}
        """The position of each message, by its identity: the messages live as long as the run does."""
        self._digests: list[str] = []
        """The content hashes of the messages of this iteration."""
        self._marks: dict[str, list[tuple[str, int] | None]] = {journal.MESSAGE: [], journal.PARTIAL: []}
        self._counts = (0, 0, 0)
        """How many messages, calls and partial results there were when the iteration began."""
        self.is_replay = False
        """Whether the iteration was interrupted before: its entries may be replayed in another order, or not at all."""
        self._began: Any = MISSING
        """The state at the beginning of the iteration; MISSING until a checkpoint needs it."""
        self._past: list[dict[str, Any]] = []
        self._own = self._is_free = False
        self._written: dict[str, list[Any]] = {"zero": [], "calls": []}
        self._waiting: list[list[Any]] = []
        """Entries for the next write."""

    def begin(self, data: dict[str, Any], messages: list[Message]) -> None:
        """Load a point: the run is then at the beginning of the iteration to run next."""
        self.agent = data["agent"]
        self.status = RunStatus(*data["status"])
        self.iteration = data["iteration"]
        self.state = data["state"]
        self._message_data = list(data["messages"])
        self._take(messages)
        self.calls = list(data["tool_calls"])
        self.partials = list(data["partial_results"])
        self._counts = self._lengths()
        self._past, self._own = list(data.get("past", ())), bool(data.get("own", False))
        self._written = {"zero": list(data["zero"]), "calls": list(data["calls"])}
        self.is_replay = bool(data["calls"] if self.iteration else data["zero"])
        free = data.get("free", 0)
        self._is_free = bool(free)
        self.zero = Journal(data["zero"], 0 if self.iteration else free)
        self.current = self.zero if self.iteration == 0 else Journal(data["calls"], free)

    def _take(self, messages: list[Message]) -> None:
        """Set the messages of the run, and index their positions."""
        self.messages = messages
        self._positions = {id(each): at for at, each in enumerate(messages)}

    def _lengths(self) -> tuple[int, int, int]:
        return len(self.messages), len(self.calls), len(self.partials)

    # -- position in the run ------------------------------------------------------------------------------

    @property
    def book(self) -> Journal:
        """The journal for new calls and messages: of the current iteration, or of the code before the loop."""
        return self.current if self.is_looping else self.zero

    @property
    def number(self) -> int:
        """The number of the iteration of new calls; 0 before the loop."""
        return self.iteration if self.is_looping else 0

    @property
    def is_completed(self) -> bool:
        """Whether the run is completed."""
        return self.status.name == RunState.COMPLETED

    @property
    def is_live(self) -> bool:
        """Whether new entries are allowed: not in a completed run, nor before the loop of a run that passed it."""
        return not self.is_completed and (self.is_looping or self.iteration == 0)

    def too_late(self, what: str) -> Invalid:
        """Return the error for a new call or message at a place where only recorded entries can be replayed."""
        if self.is_completed:
            why = "is completed"
        else:
            why = f"is in iteration {self.iteration}, and this comes before its loop"
        return Invalid(
            f"run {self.session_id!r} {why}: {what} was not recorded, so it cannot be replayed", code="invalid.replay"
        )

    # -- messages and partial results ---------------------------------------------------------------------

    def add_message(self, message: Message, delivery: Delivery) -> Message:
        """Add a message and return it; if the iteration recorded one with the same content, return that message."""
        data = to_data(message)
        key = self._values.hash(_content(data), "message")
        with self.lock:
            what = f"message {data['content']!r:.200}"
            place, recorded = self._say(journal.MESSAGE, key, self._values.redacted(data), what, delivery.check)
            if place is not None and self.is_live and self.book.is_free(place):
                delivery.owe(recorded)  # the entry may come from the source of a fork, so this conversation may lack it
            if place is not None or id(message) in self._positions:
                message = Message.from_data(recorded)
            if self.is_live:
                self._marks[journal.MESSAGE].append(place)
                self._digests.append(key)
                self._positions[id(message)] = len(self.messages)
                self.messages.append(message)
                self._message_data.append(recorded)
        return message

    def add_partial(self, value: Any) -> Any:
        """Add a partial result and return a copy; if the iteration recorded an equal one, return a copy of that."""
        key, copy = self._values.hash_and_copy(value, "partial")
        with self.lock:
            copy = self._values.redacted(copy)
            place, recorded = self._say(journal.PARTIAL, key, copy, f"partial result {copy!r:.200}")
            if self.is_live:
                self._marks[journal.PARTIAL].append(place)
                self.partials.append(recorded)
        return self._values.copy(recorded, "partial")

    def _say(
        self, kind: str, key: str, value: Any, what: str, check: Callable[[], None] | None = None
    ) -> tuple[tuple[str, int] | None, Any]:
        """Find a recorded message or partial result, or queue a new entry for the next write.

        Return the place in the journal (None for a new entry) and the recorded or new value.
        """
        self.is_used = True
        place, recorded = self.book.heard(kind, key)
        if place is not None:
            return place, recorded
        if not self.is_live:
            raise self.too_late(what)
        if check is not None:
            check()
        self._waiting.append([kind, key, value])
        return None, value

    def restore_unsaid(self) -> bool:
        """Put back recorded messages and partial results that the repeated iteration left out.

        Tell whether the lists changed. Recorded values come first, then the new ones.
        """
        changed = False
        with self.lock:
            for kind, items, start in (
                (journal.MESSAGE, self._message_data, self._counts[0]),
                (journal.PARTIAL, self.partials, self._counts[2]),
            ):
                recorded, marks = self.current.said(kind), self._marks[kind]
                if {place for place, _ in recorded} - set(marks):
                    new = [each for each, place in zip(items[start:], marks, strict=True) if place is None]
                    items[start:] = [*(value for _, value in recorded), *new]
                    marks[:] = [*(place for place, _ in recorded), *(None for _ in new)]
                    changed = True
            if len(self._message_data) > len(self.messages):
                self._take([Message.from_data(each) for each in self._message_data])
        return changed

    # -- calls --------------------------------------------------------------------------------------------

    def add_call(self, call: journal.Call, result: journal.Result) -> None:
        """Add the record of a finished tool call to `calls`. Calls of models are not listed there."""
        if call.kind == "tool":
            self.calls.append(as_record(call, result))

    def remove_call(self, call: journal.Call) -> None:
        """Remove the last record of a replayed tool call from `calls`."""
        if call.kind == "tool" and self.is_live:
            at = max(i for i, each in enumerate(self.calls) if each["id"] == call.id)
            del self.calls[at]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call for its intent. The run's own messages become `{"run.messages": [from, to]}`.

        So an intent does not repeat messages that the journal already has.
        """
        return {
            "args": [self._spans(arg) for arg in args],
            "kwargs": {name: self._spans(arg) for name, arg in kwargs.items()},
        }

    def _spans(self, arg: Any) -> Any:
        """Return a list argument with ranges instead of the run's own messages; any other argument unchanged."""
        if type(arg) is not list or not any(id(each) in self._positions for each in arg):
            return arg
        items: list[Any] = []
        for each in arg:
            at = self._positions.get(id(each))
            if at is None:
                items.append(each)
            elif items and type(items[-1]) is _Span and items[-1]["run.messages"][1] == at:
                items[-1]["run.messages"][1] += 1
            else:
                items.append(_Span({"run.messages": [at, at + 1]}))
        return [dict(each) if type(each) is _Span else each for each in items]

    def key_of(self, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the hash by which a repeated call finds its result, and a copy of the arguments to record.

        The hash leaves out the ids and times of messages: they differ each time the code makes the message.
        """
        key, copy = self._values.hash_and_copy(arguments, "arguments")
        copy = self._values.redacted(copy)
        content = self._contents(arguments)
        return key if content is arguments else self._values.hash(content, "arguments"), copy

    def _contents(self, value: Any) -> Any:
        """Return arguments with each message replaced by its content; the same object if there is no message."""
        kind = type(value)
        if kind is Message:
            return _content(to_data(value))
        if kind is list or kind is tuple:
            items = [self._contents(each) for each in value]
            return value if all(map(is_, items, value)) else kind(items)
        if kind is dict:
            if value.keys() == {"run.messages"}:
                return self._span_contents(*value["run.messages"])
            fields = {name: self._contents(each) for name, each in value.items()}
            return value if all(map(is_, fields.values(), value.values())) else fields
        return value

    def _span_contents(self, start: int, stop: int) -> list[Any]:
        """Return data that identify a range of the run's messages, for the hash of a call.

        Messages of this iteration count by their content hashes, older messages by position. The list of all older
        messages counts as "all", so an answer that a repair inserts among them does not change the hash.
        """
        began = self._counts[0]
        old = ["all"] if start == 0 and stop >= began else [start, min(stop, began)] if start < began else []
        return [*old, *self._digests[max(start - began, 0) : max(stop - began, 0)]]

    def defer(self, call: journal.Call) -> None:
        """Queue the intent of a call for the next write."""
        with self.lock:
            self._waiting.append(call.entry())

    def withdraw(self, call: journal.Call) -> None:
        """Mark a call whose intent was written as not made. The next write records that."""
        with self.lock:
            self.book.not_done(call.id)
            self._waiting.append([journal.NOT_DONE, call.id])

    # -- data for the recorder ----------------------------------------------------------------------------

    def pending(self, entries: Sequence[Any] = ()) -> Pending:
        """Return the data of the next write: queued entries, then `entries`."""
        with self.lock:
            return Pending([*self._waiting, *entries], self._lengths())

    def wrote(self, items: list[Any], entries: Sequence[Any] = ()) -> None:
        """Record that `items` (from `pending`) were written. Entries queued since then stay for the next write."""
        self._written["calls" if self.iteration else "zero"] += items
        del self._waiting[: len(items) - len(entries)]

    @property
    def entries(self) -> list[Any]:
        """The written entries of the current iteration."""
        return self._written["calls"]

    def ending(self) -> Pending:
        """Return the data that the end of the iteration writes."""
        return self.pending()._replace(past=self._passing())

    def point(self, pending: Pending, began: Any = MISSING) -> dict[str, Any]:
        """Return the fields of a point with the pending entries, without those that outlast iterations.

        `began` is the state at the beginning of the iteration; MISSING if the iteration ends.
        """
        is_over = began is MISSING
        lists, stops = (self._message_data, self.calls, self.partials), pending.lengths if is_over else self._counts
        return {
            **{name: each[:stop] for name, each, stop in zip(LISTS, lists, stops, strict=True)},
            "iteration": self.iteration,
            "state": self.state if is_over else began,
            "zero": [*self._written["zero"], *(() if self.iteration else pending.items)],
            "calls": [*self._written["calls"], *pending.items] if self.iteration else [],
            "past": [*self._past, *pending.past],
        }

    def end_iteration(self, ending: Pending, status: RunStatus | None) -> None:
        """Take note that the end of the iteration was written, and of the run if there is a status."""
        self.wrote(ending.items)
        for kind, at in ((journal.MESSAGE, 0), (journal.PARTIAL, 2)):
            del self._marks[kind][: ending.lengths[at] - self._counts[at]]
        self._counts = ending.lengths
        self._past += ending.past
        self._began = MISSING
        self._digests.clear()
        if status is None:
            self._next_iteration()
        else:
            self.status = status

    def _next_iteration(self) -> None:
        self._written["calls"] = []
        self.is_replay = self._is_free = False
        self.iteration += 1
        self.current = Journal()

    def _passing(self) -> list[dict[str, Any]]:
        """Return the records of irreversible calls that the end of this iteration moves to `past`.

        `calls` does not list them: they are calls of models, and calls that the run made before a rewind and did not
        repeat.
        """
        calls = [each for each in self.current.recorded() if each.call.kind == "llm"]
        calls += [each for each in self.current.left_out() if each.call.kind == "tool"] if self._own else []
        return _irreversible(calls)

    def picture(
        self, state: Any, status: RunStatus, pending: Pending, began: Callable[[], Any], *, over: bool = False
    ) -> Picture:
        """Return the data of a checkpoint that has the pending entries.

        `began` returns the state at the beginning of the iteration. `over` tells that the checkpoint is at the end of
        its iteration.
        """
        begun: dict[str, Any] | None = None
        if not over:
            if self._began is MISSING:
                self._began = began()
            begun = {**dict(zip(LISTS, self._counts, strict=True)), "state": self._values.redacted(self._began)}
        fields = {"status": status.name, "reason": status.reason, "iteration": self.iteration}
        zero, calls, past = self._written["zero"], self._written["calls"], self._past
        if not self.iteration:
            zero = [*zero, *pending.items]
        calls = [] if over or not self.iteration else [*calls, *pending.items]
        past = [*past, *self._passing()] if over else past
        lasting = {"session_id": self.session_id, "agent": self.agent}
        if self.conversation is not None:
            lasting["conversation"] = self.conversation
        lists = self._message_data, self.calls, self.partials
        counts = len(zero), len(calls), len(past)
        return Picture(
            lasting,
            fields,
            lists,
            pending.lengths,
            self._values.redacted(state),
            Packer(self._values.exact).fast(state),
            zero,
            calls,
            past,
            counts,
            begun,
            self._is_free,
        )


class Pending(NamedTuple):
    """The data of the next write."""

    items: list[Any]
    """Entries that are not yet written."""
    lengths: tuple[int, int, int]
    """The numbers of messages, tool calls and partial results of the run, with these entries."""
    past: Sequence[dict[str, Any]] = ()
    """Records of irreversible calls that no list of the run has."""


class Picture(NamedTuple):
    """The run at the moment of a checkpoint. Lists may grow later; `lengths` and `counts` are those of then."""

    lasting: dict[str, Any]
    fields: dict[str, Any]
    lists: tuple[list[Any], ...]
    lengths: tuple[int, int, int]
    state: Any
    state_bytes: bytes | None
    """Bytes that only an equal state has; None if there are none."""
    zero: list[Any]
    calls: list[Any]
    past: list[dict[str, Any]]
    counts: tuple[int, int, int]
    begun: dict[str, Any] | None
    """How the iteration began; None at its end."""
    is_free: bool
    """Whether the iteration has free entries."""

    def short(self, entries: Sequence[Any], records: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return entries without what the records of the checkpoint hold."""
        return abridged(entries, records, free=self.is_free)

    def whole(self) -> dict[str, Any]:
        """Return the state of the checkpoint."""
        lists = {name: items[:stop] for name, items, stop in zip(LISTS, self.lists, self.lengths, strict=True)}
        records = lists["tool_calls"]
        zero, entries = self.short(self.zero, records), self.short(self.calls, records)
        journaled = {"zero": zero, "entries": entries, "begun": self.begun, "past": list(self.past)}
        return {**self.lasting, **self.fields, **lists, "state": self.state, "journal": journaled}


class _Span(dict[str, list[int]]):
    """A range of consecutive messages of the run, in the arguments of a call."""


def _content(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a message without its id and time."""
    return {name: value for name, value in data.items() if name not in ("id", "timestamp")}


# -- points ---------------------------------------------------------------------------------------------


def beginning(agent: str | None, messages: list[Any], state: Any) -> dict[str, Any]:
    """Return the point of a new run."""
    return {
        "agent": agent,
        "status": [str(RunState.IN_PROGRESS), None],
        "iteration": 0,
        "messages": messages,
        "tool_calls": [],
        "partial_results": [],
        "state": state,
        "zero": [],
        "calls": [],
        "free": 0,
        "own": False,
        "past": [],
    }


def continued(data: Mapping[str, Any], seq: int, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored journal that continues the checkpoint `seq`, which the run made after the journal's last row."""
    point = _point(seen)
    same = point["iteration"] == journal.iteration_of(data)
    return {
        **{name: value for name, value in data.items() if name != "calls"},
        **{name: [] for name in (*LISTS, "zero", "past")},
        "iteration": point["iteration"],
        "state": data["state"] if same else point["state"],
        "free": data.get("free", 0) if same else 0,
        "entries": [[journal.CHECKPOINT, seq]],
        "ended": [1, 1],
    }


def unfolded(data: Mapping[str, Any], seen: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the point of a stored journal. `seen` is the checkpoint that the journal continues; None without one.

    The journal's thread keeps the entries since that checkpoint, instead of the lists that they add to: `ended` is
    where the entries of this iteration begin, and where those end that count in the lists.
    """
    entries, iteration = journal.entries_of(data), journal.iteration_of(data)
    start, stop = data.get("ended", (0, 0))
    lists = {name: list(data[name]) for name in LISTS}
    zero, past, calls = data["zero"], data.get("past", []), entries[start:]
    if seen is not None:
        fields = journal_of(seen)
        begun = fields["begun"] if seen["iteration"] == iteration else None
        counts = dict.fromkeys(LISTS) if begun is None else begun
        lists = {name: seen[name][: counts[name]] + lists[name] for name in LISTS}
        zero, past = fields["zero"] + zero, fields.get("past", []) + past
        calls = calls if begun is None else fields["calls"] + calls
    if iteration == 0:
        zero, calls = zero + calls, []
    _fold(entries[:stop], lists, {} if seen is None else {each.call.id: each.call for each in _recorded(seen)})
    point = {name: value for name, value in data.items() if name != "entries"}
    return {**point, **lists, "iteration": iteration, "zero": zero, "calls": calls, "past": past, "ended": [0, 0]}


def _recorded(seen: Mapping[str, Any]) -> list[journal.Recorded]:
    return Journal(journal_of(seen)["calls"]).recorded()


def _fold(entries: Sequence[Any], lists: dict[str, list[Any]], calls: dict[str, journal.Call]) -> None:
    """Add the messages, tool calls and partial results of ended iterations to the lists of a run."""
    try:
        for kind, *entry in entries:
            if kind == journal.INTENT:
                calls[entry[0]] = journal.Call(*entry)
            elif kind == journal.RESULT and calls[entry[0]].kind == "tool":
                lists["tool_calls"].append(as_record(calls[entry[0]], journal.Result(*entry[1:])))
            elif kind == journal.MESSAGE:
                lists["messages"].append(entry[1])
            elif kind == journal.PARTIAL:
                lists["partial_results"].append(entry[1])
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise Corrupt("an entry of a run's journal is damaged", code="corrupt.state") from error


def forked(seen: Any) -> dict[str, Any]:
    """Return the point of a checkpoint for a fork: another run that continues from it.

    The fork makes its own calls: a call that was in progress at the checkpoint counts as not made.
    """
    if not journal.is_seen(seen):
        raise Invalid(f"{seen!r:.100} is no checkpoint of a run", code="invalid.run")
    point = _point(seen)
    zero, calls = journal.finished(point["zero"]), journal.finished(point["calls"])
    return _free({**point, "zero": zero, "calls": calls, "past": [], "own": False}, seen, "forked")


def rewound(seen: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point of a run that is rewound to its checkpoint `seen`; `data` is the run's point before the rewind.

    A call that was in progress at the checkpoint keeps the result that was recorded later. Irreversible calls after
    the checkpoint stay listed in `past`.
    """
    point = _point(seen)
    if point["iteration"] == data["iteration"]:
        point["zero"] = journal.known(point["zero"], data["zero"])
        point["calls"] = journal.known(point["calls"], data["calls"])
    elif point["iteration"] < data["iteration"]:  # the iteration has ended since, so all its calls have results
        point["zero"], point["calls"] = (_ended(point[name], data["tool_calls"]) for name in ("zero", "calls"))
    lasting = {name: data[name] for name in ("agent", "lease", "created_at", "conversation") if name in data}
    known = {known_as(each) for each in irreversible({**point, "past": journal_of(seen).get("past", ())})}
    past = [each for each in irreversible(data) if known_as(each) not in known]
    return _free({**point, **lasting, "past": past, "own": True}, seen, "rewound")


def abridged(entries: Sequence[Any], records: Sequence[Mapping[str, Any]], *, free: bool = False) -> list[Any]:
    """Return entries without the data that `records`, the tool calls of the same checkpoint, already hold.

    An intent with its successful result is left out: `journal_of` makes both from the record. `free`: some entries are
    free, so their order must stay. A result alone keeps its id only.
    """
    known = {each["id"] for each in records if each["success"] and "replay" in each}
    results = {entry[1] for entry in entries if entry[0] == journal.RESULT and entry[2]} & known
    again = {entry[1] for entry in entries if entry[0] == journal.AGAIN}
    both = {entry[1] for entry in entries if entry[0] == journal.INTENT and not free} & results - again
    return [
        entry[:2] if entry[0] == journal.RESULT and entry[1] in results and entry[2] else entry
        for entry in entries
        if entry[0] not in (journal.INTENT, journal.RESULT) or entry[1] not in both
    ]


def journal_of(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `journal` of a checkpoint with complete entries: the reverse of `abridged`.

    In older layouts, the entries of the iteration are under `calls`, and an intent without arguments has those of its
    record.
    """
    fields: dict[str, Any] = seen.get("journal") or OVER
    records = seen["tool_calls"]
    try:
        begun = fields["begun"]
        calls = fields["entries"] if "entries" in fields else fields["calls"]
        zero = [each for each in records if each["iteration"] == 0] if "entries" in fields else []
        own = records[begun["tool_calls"] :] if "entries" in fields and begun and seen["iteration"] else []
        return {**fields, "zero": _whole(fields["zero"], zero, records), "calls": _whole(calls, own, records)}
    except (KeyError, IndexError, TypeError) as error:
        text = "the calls that a checkpoint of a run records are damaged; verify() lists all damage"
        raise Corrupt(text, code="corrupt.state") from error


def _whole(entries: list[Any], own: list[dict[str, Any]], records: list[dict[str, Any]]) -> list[Any]:
    """Return abridged entries complete; `own` are the records of their iteration."""
    known = {each["id"]: each for each in records}
    whole: list[Any] = []
    for entry in entries:
        if entry[0] == journal.INTENT and entry[5] is None:
            whole.append([*entry[:5], known[entry[1]]["arguments"], *entry[6:]])
        elif entry[0] == journal.RESULT and len(entry) == 2:  # noqa: PLR2004
            whole.append(result_entry(known[entry[1]]))
        else:
            whole.append(entry)
    there = {entry[1] for entry in entries if entry[0] == journal.INTENT}
    left_out = [each for each in own if each["success"] and "replay" in each and each["id"] not in there]
    if not left_out:
        return whole
    intents = [entry for entry in whole if entry[0] == journal.INTENT] + [_intent(each) for each in left_out]
    rest = [entry for entry in whole if entry[0] != journal.INTENT]
    intents.sort(key=lambda entry: int(entry[1].partition(".")[2]))
    return [*intents, *map(result_entry, left_out), *rest]


def _intent(record: Mapping[str, Any]) -> list[Any]:
    """Return the intent of a tool call, made from the call's record."""
    key, policy, main, sent = record["replay"]
    about = policy, record["irreversible"], main, record["tool_call_id"], sent
    return [journal.INTENT, record["id"], "tool", record["tool_name"], key, record["arguments"], *about]


def _point(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point of a checkpoint, without status: of its iteration, or of the next if its iteration is over."""
    fields = journal_of(seen)
    begun, point = fields["begun"], {"agent": seen["agent"], "zero": fields["zero"]}
    if begun is None:
        lists = {name: seen[name] for name in LISTS}
        return {**point, "iteration": seen["iteration"] + 1, **lists, "state": seen["state"], "calls": []}
    lists = {name: seen[name][: begun[name]] for name in LISTS}
    return {**point, "iteration": seen["iteration"], **lists, "state": begun["state"], "calls": fields["calls"]}


def _free(point: dict[str, Any], seen: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the point as halted with this reason, and its entries as free: the code may leave them out."""
    entries = point["calls"] if point["iteration"] else point["zero"]
    over = point["iteration"] != seen["iteration"]
    return {**point, "status": [str(RunState.HALTED), why], "free": 0 if over else len(entries)}


def _ended(entries: list[Any], calls: list[dict[str, Any]]) -> list[Any]:
    """Return entries in which each call in doubt has the result of its record.

    A call without a record, such as a call of a model, is marked as not made.
    """
    ended = list(entries)
    for call in journal.Journal(entries).in_doubt():
        same = [each for each in calls if (each["id"], each["arguments"]) == (call.id, call.arguments)]
        ended.append(result_entry(same[0]) if same else [journal.NOT_DONE, call.id])
    return ended


def result_entry(record: Mapping[str, Any]) -> list[Any]:
    """Return the result entry of a tool call, made from the call's record."""
    value = record["result"] if record["success"] else ["CallError", None, record["result"]]
    when = (record["ended_at"] - EPOCH) // dt.timedelta(microseconds=1) if record.get("ended_at") else 0
    return [journal.RESULT, record["id"], record["success"], value, when]


# -- irreversible calls ---------------------------------------------------------------------------------


def irreversible(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a run's irreversible calls, including calls in doubt; `data` is a point."""
    records = [each for each in data["tool_calls"] if each["irreversible"]]
    records += data.get("past", ())
    known = {known_as(each) for each in records}
    entries = data["calls"] if data["iteration"] else data["zero"]
    more = _irreversible(journal.Journal(entries).recorded())
    return records + [each for each in more if known_as(each) not in known]


def _irreversible(calls: list[journal.Recorded]) -> list[dict[str, Any]]:
    """Return the records of the irreversible calls among `calls`."""
    return [as_record(call, result) for call, result in calls if call.irreversible]


def known_as(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a key that identifies a call across all runs."""
    return record["id"], record["tool_name"], record.get("ended_at")
