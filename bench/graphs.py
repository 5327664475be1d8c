"""A chat in a compiled LangGraph graph, kept by its own savers and by `BacktrailSaver`.

The graph is one node, a scripted model, with a `messages` channel: `add_messages`, or a delta channel with LangGraph's
reducer for it. A turn is one `invoke`. Savers are made as their documentation does. Two more say what LangGraph takes
by itself: the graph without a checkpointer, whose caller hands all messages over each time, and a saver that keeps a
reference.

This module imports LangGraph and its savers: it is only imported when all of them are installed.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Barrier
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages  # LangGraph's documentation names both

from backtrail.adapters.langgraph import BacktrailSaver
from bench.langgraph import on_postgres, on_sqlite, size_on_sqlite, synchronous
from bench.raw import pages
from bench.sides import Compared, Race, against, measure, raced, script, share, turns_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.figures import Figure
    from bench.place import Place
    from bench.sides import Scale, Side, Turn

ALONE, ITSELF, MEMORY = "no checkpointer", "LangGraph itself", "InMemorySaver"
SQLITE, POSTGRES = "SqliteSaver", "PostgresSaver"
OURS, OURS_POSTGRES = "BacktrailSaver", "BacktrailSaver, PostgreSQL"
DELTA = ", delta channel"
LOAD, LIST, VALUES = "load latest", "list(limit=10)", "list(limit=10), values read"
RACE, AGAIN = "invokes at once", "invokes at once, again after an error"
TRIES = 200
MARKS: dict[str, dict[str, float]] = {"bytes": {"gate": 300}, LIST: {"gate": 50}}
"""Beside SqliteSaver, after this many turns."""
TURNS: dict[str, dict[int, dict[str, float]]] = {
    SQLITE: {10: {"gate": 1.0, "goal": 0.7}, 100: {"gate": 0.7, "goal": 0.5}, 1_000: {"gate": 0.2, "goal": 0.1}},
    SQLITE + DELTA: {10: {"gate": 1.0, "goal": 0.7}, 1_000: {"gate": 0.4, "goal": 0.25}},
}
"""Of a turn, beside each of these savers, in a full run."""
MARKED = 1_000


class State(TypedDict):
    """What the graph keeps."""

    messages: Annotated[list[AnyMessage], add_messages]


class Delta(TypedDict):
    """The same in a delta channel."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class Reference(BaseCheckpointSaver[Any]):
    """Keeps a reference to the latest checkpoint of each thread and nothing else: the least that a saver can do."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, CheckpointTuple] = {}

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return the latest."""
        return self._latest.get(config["configurable"]["thread_id"])

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:  # noqa: ARG002
        """Keep it in the place of the one before."""
        thread = config["configurable"]["thread_id"]
        made: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}}
        self._latest[thread] = CheckpointTuple(made, checkpoint, metadata, config, [])
        return made

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Keep nothing: no task is cut short here."""


def compiled(state: type, saver: Any, turns: list[Turn], pause: float = 0) -> Any:
    """Compile the graph: its model answers by the script."""

    def model(state: Any) -> dict[str, Any]:
        time.sleep(pause)
        at = len(state["messages"]) // 2
        return {"messages": [AIMessage(turns[at % len(turns)].answer)]}

    builder = StateGraph(state).add_node("model", model).add_edge(START, "model").add_edge("model", END)
    return builder.compile(checkpointer=saver)


def config(thread: str = "chat") -> Any:
    """Return the config of a thread, with a namespace, as graphs do: without one SqliteSaver sorts all to list ten."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


class Graph:
    """A chat that a saver keeps."""

    def __init__(
        self,
        name: str,
        saver: BaseCheckpointSaver[Any],
        turns: list[Turn],
        scale: Scale,
        *,
        size: Callable[[], int] | None = None,
        close: Callable[[], None] = lambda: None,
        note: str = "",
    ) -> None:
        self.name, self.size, self.close, self.note = name, size, close, note
        self.turns = len(turns)
        self._saver, self._script, self._scale = saver, turns, scale
        self._state: type = Delta if name.endswith(DELTA) else State
        self._graph = compiled(self._state, saver, turns)
        self.reads: dict[str, Callable[[], Any]] = {}
        self.races: dict[str, Callable[[], Race]] = {}
        if size is not None:
            self.reads = {LOAD: self._load, LIST: self._list, VALUES: self._values}
            self.races = {RACE: partial(self._race, "race", tries=1)}
        if name in (OURS, OURS_POSTGRES):
            self.races[AGAIN] = partial(self._race, "again", tries=TRIES)

    def turn(self, at: int) -> None:
        """Invoke the graph."""
        said = HumanMessage(self._script[at].said)
        state = self._graph.invoke({"messages": [said]}, config())
        assert len(state["messages"]) == 2 * (at + 1), self.name

    def _load(self) -> Any:
        """Load the newest checkpoint; for a delta channel what it is to be made from, the replay itself left out."""
        found = self._saver.get_tuple(config())
        assert found is not None
        if self._state is Delta:
            return self._saver.get_delta_channel_history(config=found.config, channels=["messages"])["messages"]
        messages = found.checkpoint["channel_values"]["messages"]
        assert len(messages) == 2 * self.turns, self.name
        return messages

    def _list(self) -> list[CheckpointTuple]:
        found = list(self._saver.list(config(), limit=10))
        assert len(found) == 10
        return found

    def _values(self) -> list[dict[str, Any]]:
        """List, and look at every value: what is loaded late is loaded then."""
        return [dict(each.checkpoint["channel_values"]) for each in self._list()]

    def _race(self, thread: str, *, tries: int) -> Race:
        """Invoke one thread from many at the same moment; each model takes a while, as models do."""
        count = self._scale.writers
        graph = compiled(self._state, self._saver, self._script, self._scale.pause)
        graph.invoke({"messages": [HumanMessage("first", id="first")]}, config(thread))
        barrier = Barrier(count)

        def write(number: int) -> BaseException | None:
            barrier.wait()
            error = None
            for _ in range(tries):
                try:
                    graph.invoke({"messages": [HumanMessage("mine", id=f"w{number}")]}, config(thread))
                except Exception as raised:  # noqa: BLE001 - whatever it is, the writer is told
                    error = raised
                    time.sleep(random.uniform(0, self._scale.pause * count * (tries > 1)))
                else:
                    return None
            return error

        with ThreadPoolExecutor(count) as pool:
            errors = list(pool.map(write, range(count)))
        kept = {message.id for message in graph.get_state(config(thread)).values["messages"]}
        return Race.judge([f"w{number}" in kept for number in range(count)], errors)


class Alone(Graph):
    """The graph without a checkpointer: its caller keeps the messages and hands all of them over each time."""

    def __init__(self, turns: list[Turn], scale: Scale) -> None:
        super().__init__(ALONE, None, turns, scale)  # type: ignore[arg-type]
        self._messages: list[AnyMessage] = []

    def turn(self, at: int) -> None:
        """Invoke the graph."""
        said = HumanMessage(self._script[at].said)
        self._messages = self._graph.invoke({"messages": [*self._messages, said]})["messages"]
        assert len(self._messages) == 2 * (at + 1)


def graphs(directory: Path, place: Place | None, scale: Scale) -> Compared:
    """Measure all of them."""
    with ExitStack() as stack:
        turns = script(scale.turns)
        chats = [*_floors(turns, scale), *_on_sqlite(directory, turns, scale, stack)]
        if place is not None:
            chats += _on_postgres(place, turns[: scale.fewer], scale, stack)
            place.settle()
        sides = measure(chats, scale)
    return Compared(_figures({side.name: side for side in sides}, scale), sides=sides)


def _floors(turns: list[Turn], scale: Scale) -> Iterator[Graph]:
    yield Alone(turns, scale)
    yield Graph(ITSELF, Reference(), turns, scale)
    yield Graph(MEMORY, InMemorySaver(), turns[: scale.fewer], scale)  # every version of the list stays in memory


def _on_sqlite(directory: Path, turns: list[Turn], scale: Scale, stack: ExitStack) -> Iterator[Graph]:
    for name in (SQLITE, SQLITE + DELTA):
        saver = stack.enter_context(on_sqlite(directory / f"{name}.db"))
        note = f"synchronous={synchronous(saver)}"
        yield Graph(name, saver, turns, scale, size=partial(size_on_sqlite, saver), note=note)
    for name, some in ((OURS, turns), (OURS + DELTA, turns[: scale.fewer])):
        path = directory / f"{name}.db"
        ours = BacktrailSaver(path)
        yield Graph(name, ours, some, scale, size=partial(pages, path), close=ours.close)


def _on_postgres(place: Place, turns: list[Turn], scale: Scale, stack: ExitStack) -> Iterator[Graph]:
    for name, schema in ((POSTGRES, "graph_default"), (POSTGRES + DELTA, "graph_delta")):
        saver = stack.enter_context(on_postgres(place.schema(schema)))
        saver.setup()
        yield Graph(name, saver, turns, scale, size=place.sized(schema))
    store = stack.enter_context(place.open("graph_ours"))
    yield Graph(OURS_POSTGRES, BacktrailSaver(store), turns, scale, size=place.sized("graph_ours"))


def _figures(sides: dict[str, Side], scale: Scale) -> list[Figure]:
    """Hold each of their savers against ours on the same database, and both with a delta channel."""
    pairs = {SQLITE: OURS, SQLITE + DELTA: OURS, POSTGRES: OURS_POSTGRES, POSTGRES + DELTA: OURS_POSTGRES}
    figures = []
    for theirs, ours in pairs.items():
        if theirs in sides:
            marks = MARKS if theirs == SQLITE and scale.turns == MARKED else {}
            figures += against(sides[theirs], sides[ours], sides[ITSELF], marks)
            turns = TURNS.get(theirs, {}) if scale.turns == MARKED else {}
            figures += turns_at(sides[ours], sides[theirs], scale, turns)
    figures += against(sides[SQLITE + DELTA], sides[OURS + DELTA], sides[ITSELF], {})
    for name in (OURS, SQLITE):
        figures.append(share(sides[ITSELF], sides[name]))
    for name, side in sides.items():
        figures += raced(side, gated=name.startswith(OURS))
    return figures
