"""Agents and conversations: a long conversation beside a short one, checkpoints and restores of an agent, search.

Names of figures do not depend on the scale: their notes say how long "long" is, and how many "many" is. Each side of a
comparison has its own store. Values are medians; the cost of rare saves, such as one that seals a chunk, is in `saves`.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from itertools import chain, cycle, pairwise, repeat
from typing import TYPE_CHECKING, Any

import backtrail
from backtrail import AgentState, Conversation, Message
from backtrail.validation import to_data
from bench.clock import take_turns
from bench.data import Messages, noise
from bench.figures import Figure, Result
from bench.raw import WAL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backtrail.models import AgentCheckpoint
    from bench.clock import Action, Times
    from bench.scale import Agents, Scale

LONG, SHORT, THREAD = "long", "short", "thread"
MANY, FEW = "many", "few"
AGENT = "agent"
APPENDED = 50
"""So many of a conversation's first messages, or half of them if that is less, were appended one by one."""
TAIL = 20
GONE_ON = 10
"""One conversation in so many has gone on when its agent is restored."""
RARE, RARE_COUNT = "zanzibar", 10
"""A word, and how many of the messages have it."""


def agents(directory: Path, scale: Scale) -> Result:
    """Measure conversations, then agents, then search in the messages of the larger one."""
    sizes = scale.agents
    messages = _messages(max(sizes.long, sizes.many * sizes.each))
    figures = []
    with ExitStack() as stack:
        figures += _conversations(directory, messages, scale, stack)
    with ExitStack() as stack:
        used = {
            name: Agent(directory / f"{name}.db", count, sizes.each, messages)
            for name, count in ((MANY, sizes.many), (FEW, sizes.few))
        }
        for agent in used.values():
            stack.callback(agent.close)
        figures += _checkpoints(used, scale)
        figures += _restores(used[MANY], sizes)
        figures.append(_statements(used[MANY]))
        figures += _searches(used[MANY], scale)
    return Result(figures)


def _messages(count: int) -> list[Message]:
    """Make messages; a few of them, all over, have the rare word."""
    made = [message["content"] for message in Messages(1).many(count)]
    for at in range(RARE_COUNT):
        place = at * count // RARE_COUNT
        made[place] = f"{RARE} {made[place]}"
    return [Message.user(content) for content in made]


def _opened(path: Path) -> backtrail.Store:
    """Open a store whose WAL has its full size."""
    store = backtrail.open(path)
    store.thread("filler").save(noise(WAL_BYTES))
    return store


def _figure(name: str, one: Times, other: Times, note: str, *, gate: float | None = None) -> Figure:
    wall, cpu = one.median.over(other.median)
    return Figure(name, wall, cpu, samples=len(one.taken), note=note, gate=gate)


def _time(name: str, times: Times, note: str) -> Figure:
    wall, cpu = times.median
    return Figure(name, wall * 1e3, cpu * 1e3, unit="ms", samples=len(times.taken), note=note)


# -- conversations ----------------------------------------------------------------------------------


class Talks:
    """Conversations that begin with the same messages, in a store of their own. Calling it appends a message.

    Each is used as often as it had messages, then comes the next one. With `plain` they are threads that hold the same.
    """

    def __init__(self, path: Path, history: list[Message], appends: int, *, plain: bool = False) -> None:
        self.path = path
        self.ids = [f"c{at}" for at in range(-(-(appends + 1) // len(history)))]
        appended = min(APPENDED, len(history) // 2)
        with backtrail.open(path, durability="relaxed") as store:
            for name in self.ids:
                value = Conversation(AGENT, id=name, messages=history[:-appended])
                if plain:
                    store.thread(name).save(to_data(value))
                else:
                    store.conversations.save(value)
                append = _appender(store, name, plain=plain)
                for message in history[-appended:]:
                    append(to_data(message) if plain else message)
        self.store = _opened(path)
        new = [Message.user(message["content"]) for message in Messages(2).many(appends + 1 + len(self.ids))]
        self._messages = iter([to_data(message) for message in new] if plain else new)
        appenders = [_appender(self.store, name, plain=plain) for name in self.ids]
        for append in appenders:  # what a store reads when it first meets a conversation is read here
            append(next(self._messages))
        self._turns = chain.from_iterable(repeat(append, len(history)) for append in appenders)

    def __call__(self) -> None:
        """Append one more message."""
        next(self._turns)(next(self._messages))

    def warm(self) -> list[Message]:
        """Return the last messages of the first conversation."""
        return self.store.conversations.tail(self.ids[0], TAIL)

    def cold(self) -> list[Message]:
        """Return them from a store that was just opened."""
        with backtrail.open(self.path) as store:
            return store.conversations.tail(self.ids[0], TAIL)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def _appender(store: backtrail.Store, name: str, *, plain: bool) -> Callable[[Any], Any]:
    if plain:
        thread: backtrail.Thread[Any] = store.thread(name)
        return lambda data: thread.append("messages", data)
    return lambda message: store.conversations.append(name, message)


def _conversations(directory: Path, messages: list[Message], scale: Scale, stack: ExitStack) -> list[Figure]:
    """Read the last messages before any append, so that both conversations end in the same way."""
    sizes = scale.agents
    history = messages[: sizes.long]
    talks = {
        THREAD: Talks(directory / "thread.db", history[-sizes.short :], scale.rounds, plain=True),
        LONG: Talks(directory / "long.db", history, scale.rounds),
        SHORT: Talks(directory / "short.db", history[-sizes.short :], scale.rounds),
    }
    for talk in talks.values():
        stack.callback(talk.close)
    pair = {name: talks[name] for name in (LONG, SHORT)}
    assert [m.content for m in pair[LONG].cold()] == [m.content for m in pair[SHORT].warm()]
    warm = take_turns({name: talk.warm for name, talk in pair.items()}, scale.rounds, scale.budget)
    cold = take_turns({name: talk.cold for name, talk in pair.items()}, scale.load_rounds, scale.budget)
    appends = take_turns({**talks}, scale.rounds, scale.budget)
    note = f"{sizes.long:,} and {sizes.short:,} messages"
    last = f"last {TAIL} of a long conversation / of a short one"
    return [
        _figure("append to a long conversation / to a short one", appends[LONG], appends[SHORT], note, gate=1.5),
        _figure("append to a conversation / to a thread that holds the same", appends[SHORT], appends[THREAD], ""),
        _figure(f"warm {last}", warm[LONG], warm[SHORT], note, gate=1.5),
        _figure(f"cold {last}", cold[LONG], cold[SHORT], note),
    ]


# -- agents -----------------------------------------------------------------------------------------


class Agent:
    """An agent with this many conversations and messages, in its own store, with one checkpoint."""

    def __init__(self, path: Path, count: int, each: int, messages: list[Message]) -> None:
        self.path = path
        self.ids = [f"c{at}" for at in range(count)]
        self.note = f"{count:,} conversations of {each:,} messages"
        self.said = 0
        """Bytes that were stored because conversations went on."""
        self._next = cycle(self.ids)
        self._source = Messages(3)
        with backtrail.open(path, durability="relaxed") as store:
            store.agents.save(AgentState(AGENT, "An agent", "bench"))
            for at, name in enumerate(self.ids):
                value = Conversation(AGENT, id=name, messages=messages[at * each : (at + 1) * each])
                store.conversations.save(value)
        self.store = _opened(path)
        self.checkpoint()

    def go_on(self, count: int = 1) -> None:
        """Append a message to each of so many conversations, those whose turn it is."""
        for message in self._source.many(count):
            made = self.store.conversations.append(next(self._next), Message.user(message["content"]))
            self.said += made.stored

    def checkpoint(self) -> AgentCheckpoint:
        """Make a checkpoint."""
        return self.store.agents.checkpoint(AGENT, "a point")

    def load(self) -> int:
        """Load all conversations, one by one, with a store that was just opened; return how many messages they have."""
        with backtrail.open(self.path) as store:
            return sum(store.conversations.load(name).message_count for name in self.ids)

    def payload(self) -> int:
        """Return how many bytes are stored for states."""
        return self.store.stats().payload_bytes

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def _checkpoints(used: dict[str, Agent], scale: Scale) -> list[Figure]:
    """Time checkpoints of both agents, after one conversation of each has changed."""
    many = used[MANY]
    actions: dict[str, Action] = {}
    for name, agent in used.items():
        actions |= {f"{name} goes on": agent.go_on, name: agent.checkpoint}
    before, said = many.payload(), many.said
    times = take_turns(actions, scale.rounds, scale.budget, always=frozenset(actions), in_order=True)
    count = len(times[MANY].taken) + 1
    stored = (many.payload() - before - (many.said - said)) / count
    what = "checkpoint of an agent with many conversations"
    note = f"{len(many.ids):,} and {used[FEW].note}"
    return [
        _figure(f"{what} / with few", times[MANY], times[FEW], note, gate=3.0),
        Figure(f"bytes of a {what}", stored, unit="B", samples=count, note=many.note),
    ]


def _restores(agent: Agent, sizes: Agents) -> list[Figure]:
    """Time restores of one checkpoint after some conversations have changed, and loads of all conversations."""
    point = agent.checkpoint()
    weighed: list[int] = []
    moved = max(len(agent.ids) // GONE_ON, 1)
    actions: dict[str, Action] = {
        "some go on": lambda: agent.go_on(moved),
        "before": lambda: weighed.append(agent.payload()),
        "restore": lambda: agent.store.agents.restore(point.id),
        "after": lambda: weighed.append(agent.payload()),
        "load": agent.load,
    }
    times = take_turns(actions, sizes.restores, 0, always=frozenset(actions), in_order=True)
    added = [after - before for before, after in list(pairwise(weighed))[::2]]
    what, note = "restore of an agent with many conversations", f"{moved:,} of {agent.note} had gone on"
    return [
        _time(what, times["restore"], note),
        _figure(f"{what} / loading them one by one", times["restore"], times["load"], note),
        Figure(f"bytes of a {what}", statistics.fmean(added), unit="B", samples=len(added), note=note),
    ]


def _statements(agent: Agent) -> Figure:
    """Count the SQL statements of a restore after some conversations have changed."""
    point = agent.checkpoint()
    agent.go_on(max(len(agent.ids) // GONE_ON, 1))
    count = len(agent.ids)
    statements: list[str] = []
    with agent.store._backend._shared.use() as connection:  # type: ignore[attr-defined]  # noqa: SLF001 - to count them
        connection.exec_trace = lambda _, statement, __: not statements.append(statement)
    agent.store.agents.restore(point.id)
    with agent.store._backend._shared.use() as connection:  # type: ignore[attr-defined]  # noqa: SLF001
        connection.exec_trace = None
    name = "SQL statements of a restore of an agent with many conversations"
    return Figure(name, len(statements), gate=60 + count, goal=60, unit="statements", note=f"{count:,} conversations")


# -- search -----------------------------------------------------------------------------------------


def _searches(agent: Agent, scale: Scale) -> list[Figure]:
    """Queries for 20 hits in all messages of an agent, the index being up to date, and one message behind."""
    store = agent.store
    queries: dict[str, Callable[[], list[backtrail.Hit]]] = {
        "a rare word": lambda: store.search(RARE),
        "a common word": lambda: store.search("hotel"),
        "a phrase": lambda: store.search('"small place"'),
        "a piece of a word": lambda: store.search("useu", contains=True),
        "a piece of a word, one hit per conversation": lambda: store.conversations.search("useu"),
    }
    for name, query in queries.items():  # the first of them makes the index
        assert query(), name
    late = "a rare word, right after an append"
    actions: dict[str, Action] = {"append": agent.go_on, late: queries["a rare word"], **queries}
    times = take_turns(actions, scale.load_rounds, scale.budget, always=frozenset(("append", late)), in_order=True)
    note = f"{store.stats().indexed:,} messages"
    return [_time(f"search for {name}", times[name], note) for name in (*queries, late)]
