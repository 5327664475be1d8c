"""Compiled graphs with a `BacktrailSaver`: what they give is what they give with LangGraph's own saver in memory.

A script drives a graph and notes what it sees, without what is random (ids, times). It runs with both savers, in both
colours, and the notes have to be equal.
"""

import asyncio
import concurrent.futures
import operator
import os
import signal
import time
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

import backtrail
from backtrail.adapters.langgraph import BacktrailSaver


class Chat(TypedDict):
    messages: Annotated[list, add_messages]


@dataclass
class Plan:
    city: str
    days: int


class Trip(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    plan: Plan | None
    notes: Annotated[list, operator.add]
    approved: bool


def at(thread="t", **more):
    return {"configurable": {"thread_id": thread, **more}}


def shown(snapshot):
    """A snapshot without what is random."""
    tasks = [(task.name, [each.value for each in task.interrupts], task.error) for task in snapshot.tasks]
    meta = {key: snapshot.metadata.get(key) for key in ("source", "step")} if snapshot.metadata else None
    return plain(snapshot.values), snapshot.next, tasks, meta, snapshot.parent_config is not None


def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "content"):
        return type(value).__name__, value.content, getattr(value, "tool_calls", None)
    return value


# -- the graphs and their scripts: each gives (graph builder, script) ---------------------------------------


def chatting():
    def chat(state):
        return {"messages": [AIMessage(f"reply {len(state['messages'])}")]}

    builder = StateGraph(Chat).add_node("chat", chat).add_edge(START, "chat").add_edge("chat", END)

    async def script(run):
        for n in range(3):
            await run.invoke({"messages": [HumanMessage(f"question {n}")]})
        last = (await run.history())[0]
        removed = RemoveMessage(last.values["messages"][0].id)
        await run.update({"messages": [removed, HumanMessage("in its place")]})
        await run.invoke({"messages": [HumanMessage("and on")]})

    return builder, script


def with_tools():
    def model(state):
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("It is sunny.")]}
        call = {"name": "weather", "args": {"city": "Faro"}, "id": "call-1", "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[call])], "plan": Plan("Faro", 3)}

    def tools(state):
        call = state["messages"][-1].tool_calls[0]
        return {"messages": [ToolMessage("sunny", tool_call_id=call["id"])], "notes": [{"seen": {1, 2}}]}

    def route(state):
        return "tools" if state["messages"][-1].tool_calls else END

    builder = StateGraph(Trip).add_node("model", model).add_node("tools", tools)
    builder.add_edge(START, "model").add_conditional_edges("model", route, ["tools", END]).add_edge("tools", "model")

    async def script(run):
        await run.invoke({"messages": [("user", "How is the weather?")]})

    return builder, script


def interrupted():
    def ask(state):
        answer = interrupt({"question": "Book it?"})
        again = interrupt({"question": "Sure?"})
        return {"approved": answer and again, "notes": [f"{answer} {again}"]}

    builder = StateGraph(Trip).add_node("ask", ask).add_node("end", lambda state: {"notes": ["done"]})
    builder.add_edge(START, "ask").add_edge("ask", "end").add_edge("end", END)

    async def script(run):
        await run.invoke({"messages": [HumanMessage("Book")]})
        await run.invoke(Command(resume=True))
        await run.invoke(Command(resume=True, update={"notes": ["by the way"]}))
        await run.invoke({"messages": [HumanMessage("Another")]})
        await run.update({"approved": False}, as_node="ask")
        await run.invoke(None)

    return builder, script


def travelling():
    def step(state):
        return {"notes": [f"step {len(state['notes'])}"]}

    builder = StateGraph(Trip).add_node("one", step).add_node("two", step)
    builder.add_edge(START, "one").add_edge("one", "two").add_edge("two", END)

    async def script(run):
        await run.invoke({"notes": ["begin"]})
        await run.invoke({"notes": ["go on"]})
        old = (await run.history())[3]
        await run.invoke(None, old.config)  # replay from there: a fork
        await run.invoke({"notes": ["after the replay"]})
        older = (await run.history())[-2]
        changed = await run.update({"notes": ["another past"]}, config=older.config)
        await run.invoke(None, changed)
        await run.note(older.config)

    return builder, script


def parallel():
    def fan(state):
        return [Send("work", {"notes": [n]}) for n in range(3)]

    def work(state):
        return {"notes": [f"worked on {state['notes'][0]}"]}

    builder = StateGraph(Trip).add_node("left", lambda _: {"notes": ["left"]}).add_node("work", work)
    builder.add_node("right", lambda _: {"notes": ["right"]}).add_node("join", lambda _: {"notes": ["joined"]})
    builder.add_edge(START, "left").add_edge(START, "right").add_conditional_edges("left", fan, ["work"])
    builder.add_edge(["work", "right"], "join").add_edge("join", END)

    async def script(run):
        await run.invoke({"notes": ["begin"]})
        await run.invoke({"notes": ["again"]})

    return builder, script


def nested():
    inner = StateGraph(Trip).add_node("ask", lambda _: {"notes": [interrupt("inside?")]})
    inner.add_node("tell", lambda _: {"notes": ["told"]}).add_edge(START, "ask").add_edge("ask", "tell")
    builder = StateGraph(Trip).add_node("inner", inner.compile()).add_node("after", lambda _: {"notes": ["after"]})
    builder.add_edge(START, "inner").add_edge("inner", "after").add_edge("after", END)

    async def script(run):
        await run.invoke({"notes": ["begin"]})
        await run.note(subgraphs=True)
        await run.invoke(Command(resume="yes"))
        await run.invoke({"notes": ["again"]})
        old = next(each for each in await run.history() if each.next == ("inner",))
        await run.invoke(None, old.config)

    return builder, script


def failing():
    tries = []

    def good(_):
        return {"notes": ["good"]}

    def bad(_):
        time.sleep(0.05)  # until the other one has written
        tries.append(1)
        if len(tries) % 2:
            raise ValueError("the line is dead")
        return {"notes": ["better"]}

    builder = StateGraph(Trip).add_node("good", good).add_node("bad", bad)
    builder.add_edge(START, "good").add_edge(START, "bad")

    async def script(run):
        with pytest.raises(ValueError, match="the line is dead"):
            await run.invoke({"notes": ["begin"]})
        await run.note()
        await run.invoke(None)

    return builder, script


def with_deltas():
    def folded(state, writes):
        return [*state, *(each for write in writes for each in write)]

    class State(TypedDict):
        log: Annotated[list, DeltaChannel(folded, snapshot_frequency=3)]
        count: int

    def work(state):
        return {"log": [len(state["log"])], "count": len(state["log"])}

    builder = StateGraph(State).add_node("work", work).add_edge(START, "work").add_edge("work", END)

    async def script(run):
        for n in range(4):
            await run.invoke({"log": [f"in {n}"]})
        old = (await run.history())[4]
        await run.invoke({"log": ["a branch"]}, old.config)
        await run.update({"log": ["by hand"]})

    return builder, script


class Driver:
    """Drives a graph, synchronously or not, and notes what it sees."""

    def __init__(self, graph, awaited, durability):
        self.graph, self.awaited, self.seen, self.durability = graph, awaited, [], durability

    async def invoke(self, value, config=None):
        config = config or at()
        if self.awaited:
            found = await self.graph.ainvoke(value, config, durability=self.durability)
        else:
            found = self.graph.invoke(value, config, durability=self.durability)
        found.pop("__interrupt__", None)
        self.seen.append(plain(found))
        await self.note()

    async def note(self, config=None, *, subgraphs=False):
        config = config or at()
        if self.awaited:
            found = await self.graph.aget_state(config, subgraphs=subgraphs)
        else:
            found = self.graph.get_state(config, subgraphs=subgraphs)
        inner = [shown(task.state) for task in found.tasks if subgraphs and task.state]
        self.seen.append((shown(found), inner))

    async def history(self):
        if self.awaited:
            return [each async for each in self.graph.aget_state_history(at())]
        return list(self.graph.get_state_history(at()))

    async def update(self, values, *, config=None, **options):
        if self.awaited:
            return await self.graph.aupdate_state(config or at(), values, **options)
        return self.graph.update_state(config or at(), values, **options)


def played(make, saver, *, awaited, durability="sync"):
    builder, script = make()
    driver = Driver(builder.compile(checkpointer=saver), awaited, durability)

    async def play():
        await script(driver)
        driver.seen.append([shown(each) for each in await driver.history()])

    asyncio.run(play())
    return driver.seen


GRAPHS = [chatting, with_tools, interrupted, travelling, parallel, nested, failing, with_deltas]


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_graph_matches_in_memory_saver(make, awaited):
    expected = played(make, InMemorySaver(), awaited=awaited)
    with BacktrailSaver("memory://", types=[Plan]) as saver:
        assert played(make, saver, awaited=awaited) == expected
        assert saver.store.verify().ok


@pytest.mark.parametrize("durability", ["async", "exit"])
@pytest.mark.parametrize("make", [chatting, interrupted, with_deltas], ids=lambda make: make.__name__)
def test_graph_matches_in_memory_saver_for_every_durability(make, durability):
    expected = played(make, InMemorySaver(), awaited=False, durability=durability)
    with BacktrailSaver("memory://", types=[Plan]) as saver:
        assert played(make, saver, awaited=False, durability=durability) == expected


def test_graph_continues_in_another_process(tmp_path):
    builder, _ = chatting()
    for n in range(2):
        with BacktrailSaver(tmp_path / "a.db") as saver:
            found = builder.compile(checkpointer=saver).invoke({"messages": [HumanMessage(f"{n}")]}, at())
    assert [each.content for each in found["messages"]] == ["0", "reply 1", "1", "reply 3"]


def test_functional_graph_keeps_its_last_result():
    from langgraph.func import entrypoint, task

    @task
    def double(n):
        return 2 * n

    with BacktrailSaver("memory://") as saver:

        @entrypoint(checkpointer=saver)
        def add(n: int, *, previous: Any = None) -> int:
            return double(n).result() + (previous or 0)

        assert [add.invoke(n, at()) for n in (1, 2, 3)] == [2, 6, 12]


# -- its threads are ordinary ones ----------------------------------------------------------------------------


def test_graph_threads_are_searched_compared_and_rewound():
    builder, _ = chatting()
    with backtrail.open("memory://") as store:
        graph = builder.compile(checkpointer=BacktrailSaver(store))
        graph.invoke({"messages": [HumanMessage("Lisbon in May", id="m1")]}, at("trip"))
        thread = store.thread("trip")
        assert [info.id for info in store.threads()] == ["trip"]
        assert [(hit.message_id, hit.role) for hit in store.search("lisbon")] == [("m1", "human")]
        assert [change.op for change in thread.diff() if "messages" in str(change.path)] == ["+"]
        assert [each.metadata["source"] for each in thread.history()] == ["input", "loop", "loop"]
        first = thread.latest().label
        graph.invoke({"messages": [HumanMessage("And in June?")]}, at("trip"))
        thread.rewind(first)
        assert len(graph.get_state(at("trip")).values["messages"]) == 2
        found = graph.invoke({"messages": [HumanMessage("In July!")]}, at("trip"))
        assert [each.content for each in found["messages"]] == ["Lisbon in May", "reply 1", "In July!", "reply 3"]
        assert not [*store.search("june")]


def test_message_changed_in_place_is_saved():
    def chat(state):
        state["messages"][0].additional_kwargs["seen"] = len(state["messages"])
        return {"messages": [AIMessage("ok")]}

    builder = StateGraph(Chat).add_node("chat", chat).add_edge(START, "chat")
    with BacktrailSaver("memory://") as saver:
        graph = builder.compile(checkpointer=saver)
        for n in (1, 3):
            graph.invoke({"messages": [HumanMessage("hi", id=f"m{n}")]}, at())
            assert graph.get_state(at()).values["messages"][0].additional_kwargs == {"seen": n}


# -- races, clocks and crashes ---------------------------------------------------------------------------------


def kept_or_refused(saver):
    """20 at once on one thread: which messages are there in the end, and which were refused."""
    builder = StateGraph(Chat).add_node("chat", lambda _: time.sleep(0.002) or {"messages": [AIMessage("ok")]})
    graph = builder.add_edge(START, "chat").compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("first")]}, at())

    def one(n):
        try:
            graph.invoke({"messages": [HumanMessage(f"message {n}")]}, at())
        except backtrail.Conflict:
            return f"message {n}"
        return None

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        refused = {each for each in pool.map(one, range(20)) if each}
    said = [each.content for each in graph.get_state(at()).values["messages"]]
    return [each for each in said if each.startswith("message")], refused


def test_twenty_concurrent_turns_are_saved_or_refused(tmp_path):
    with BacktrailSaver(tmp_path / "a.db") as saver:
        kept, refused = kept_or_refused(saver)
        assert len(kept) == len(set(kept)) > 0
        assert {*kept, *refused} == {f"message {n}" for n in range(20)}
        graph = chatting()[0].compile(checkpointer=saver)
        assert graph.invoke({"messages": [HumanMessage("last")]}, at())["messages"][-2].content == "last"


def test_concurrent_first_turns_conflict():
    with BacktrailSaver("memory://") as saver:
        inside = []

        def chat(state):
            if not inside:
                inside.append(1)
                with pytest.raises(backtrail.Conflict):  # it read nothing: this run has saved its input meanwhile
                    second()
            return {"messages": [AIMessage("ok")]}

        graph = StateGraph(Chat).add_node("chat", chat).add_edge(START, "chat").compile(checkpointer=saver)
        plain_get = saver.get_tuple

        def second():
            saver.get_tuple = lambda _: None
            try:
                graph.invoke({"messages": [HumanMessage("two")]}, at())
            finally:
                saver.get_tuple = plain_get

        graph.invoke({"messages": [HumanMessage("one")]}, at(), durability="sync")
        assert [each.content for each in graph.get_state(at()).values["messages"]] == ["one", "ok"]


def test_latest_ignores_the_clock(monkeypatch):
    builder, _ = chatting()
    with BacktrailSaver("memory://") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("one")]}, at())
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 5_000_000_000)
        monkeypatch.setattr("langgraph.checkpoint.base.id._last_v6_timestamp", None)
        behind = graph.invoke({"messages": [HumanMessage("two")]}, at())
        ids = [each.config["configurable"]["checkpoint_id"] for each in saver.list(at())]
        assert ids[0] < ids[-1], "the clock was not behind"
        found = graph.invoke({"messages": [HumanMessage("three")]}, at())
        assert len(behind["messages"]) == 4
        assert [each.content for each in found["messages"]][::2] == ["one", "two", "three"]


def tools(saver, *, dies):
    """A graph of two nodes; the second may kill its process."""

    def second(state):
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"messages": [AIMessage("done")]}

    builder = StateGraph(Chat).add_node("first", lambda _: {"messages": [AIMessage("planned")]})
    builder.add_node("second", second).add_edge(START, "first").add_edge("first", "second")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("then", ["resume", "new"])
def test_finished_work_survives_a_kill(then, tmp_path):
    child = os.fork()
    if child == 0:
        tools(BacktrailSaver(tmp_path / "a.db"), dies=True).invoke({"messages": ["go"]}, at(), durability="sync")
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with BacktrailSaver(tmp_path / "a.db") as saver:
        graph = tools(saver, dies=False)
        there = graph.get_state(at())
        assert [each.content for each in there.values["messages"]] == ["go", "planned"]
        assert there.next == ("second",)
        found = graph.invoke(None if then == "resume" else {"messages": ["again"]}, at())
        more = ["done"] if then == "resume" else ["again", "planned", "done"]
        assert [each.content for each in found["messages"]] == ["go", "planned", *more]


# ---- what savers in memory do, and this one has to do, too ----------------------------------------------------------


class Notes(TypedDict, total=False):
    notes: Annotated[list, operator.add]
    last: Any


class Log(TypedDict):
    log: Annotated[
        list, DeltaChannel(lambda state, writes: [*state, *(e for w in writes for e in w)], snapshot_frequency=1000)
    ]


def noting(saver):
    def step(state):
        return {"notes": [f"n{len(state['notes'])}"]}

    builder = StateGraph(Notes).add_node("one", step).add_node("two", step)
    return builder.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=saver)


def logging(saver):
    return StateGraph(Log).add_node("w", lambda _: {"log": ["r"]}).add_edge(START, "w").compile(checkpointer=saver)


@pytest.mark.parametrize("saver", [InMemorySaver, lambda: BacktrailSaver("memory://")], ids=["theirs", "ours"])
def test_a_copy_of_a_checkpoint_has_its_values(saver):
    graph = noting(saver())
    graph.invoke({"notes": ["a"]}, at())
    graph.update_state(at(), None, as_node="__copy__")
    assert graph.get_state(at()).values["notes"] == ["a", "n1", "n2"]


@pytest.mark.parametrize("saver", [InMemorySaver, lambda: BacktrailSaver("memory://")], ids=["theirs", "ours"])
def test_unknown_channel_stays(saver):
    made = saver()

    def graph(*names):
        state = TypedDict("State", dict.fromkeys(names, int))
        return StateGraph(state).add_node("n", lambda _: {}).add_edge(START, "n").compile(checkpointer=made)

    graph("x", "y").invoke({"x": 1, "y": 2}, at())
    graph("x", "z").invoke({"x": 3, "z": 4}, at())
    assert graph("x", "y").get_state(at()).values == {"x": 3, "y": 2}


@pytest.mark.parametrize("saver", [InMemorySaver, lambda: BacktrailSaver("memory://")], ids=["theirs", "ours"])
def test_stateful_subgraph_replays_from_its_start(saver):
    inner = StateGraph(Notes).add_node("j", lambda _: {"notes": [f"j{interrupt('q')}"]}).add_edge(START, "j")
    outer = StateGraph(Notes).add_node("inner", inner.compile(checkpointer=True)).add_edge(START, "inner")
    graph = outer.compile(checkpointer=saver())
    for turn in "01":
        graph.invoke({"notes": [f"a{turn}"]}, at(), durability="sync")
        graph.invoke(Command(resume=f"r{turn}"), at(), durability="sync")
    first = [each for each in graph.get_state_history(at()) if each.next == ("inner",)][-1]
    graph.invoke(None, first.config, durability="sync")
    found = graph.invoke(Command(resume="again"), at(), durability="sync")
    assert found["notes"] == ["a0", "a0", "jagain"]


def test_first_update_does_not_overwrite():
    saver = BacktrailSaver("memory://")
    graph, real, once = noting(saver), saver.get_tuple, []

    def slowly(config):
        found = real(config)
        if not once:
            once.append(1)
            graph.invoke({"notes": ["a whole turn"]}, at())
        return found

    saver.get_tuple = slowly
    with pytest.raises(backtrail.Conflict):
        graph.update_state(at(), {"notes": ["U"]}, as_node="one")
    assert graph.get_state(at()).values["notes"][0] == "a whole turn"


def test_prune_spares_concurrent_checkpoints(monkeypatch):
    saver = BacktrailSaver("memory://")
    graph, prune, late = logging(saver), backtrail.Thread.prune, [1]
    graph.invoke({"log": ["one"]}, at())

    def slowly(thread, **options):
        if late and late.pop():
            graph.invoke({"log": ["two"]}, at(), durability="sync")
        return prune(thread, **options)

    monkeypatch.setattr(backtrail.Thread, "prune", slowly)
    saver.prune(["t"])
    assert graph.get_state(at()).values == {"log": ["one", "r", "two", "r"]}


def test_deleting_a_run_keeps_required_ancestors():
    saver = BacktrailSaver("memory://")
    graph = logging(saver)
    for number in range(3):
        graph.invoke({"log": [number]}, {**at(), "metadata": {"run_id": f"r{number}"}})
    saver.delete_for_runs(["r1"])
    assert graph.get_state(at()).values == {"log": [0, "r", 1, "r", 2, "r"]}


def test_delete_thread_spares_foreign_threads():
    saver = BacktrailSaver("memory://")
    saver.put(at(checkpoint_ns=""), {**empty_checkpoint(), "id": "1"}, {}, {})
    saver.put_writes(at(checkpoint_ns="sub:1", checkpoint_id="x"), [("a", "secret")], "task")
    saver.delete_thread("t")
    assert list(saver.store.thread("t|sub:1", aside=True).history()) == []
    saver.store.thread("mine").save({"x": 1})
    with pytest.raises(backtrail.Conflict):
        saver.delete_thread("mine")
    assert saver.store.thread("mine").load().state == {"x": 1}


def test_a_copy_is_all_or_nothing():
    saver = BacktrailSaver("memory://")
    for ns in ("", "sub"):
        saver.put(at(checkpoint_ns=ns), {**empty_checkpoint(), "id": "1"}, {}, {})
    saver.put(at("b", checkpoint_ns="sub"), {**empty_checkpoint(), "id": "2"}, {}, {})
    with pytest.raises(backtrail.Conflict):
        saver.copy_thread("t", "b")
    assert saver.get_tuple(at("b")) is None


def test_one_damaged_thread_does_not_hide_the_others():
    saver = BacktrailSaver("memory://")
    saver.put(at(checkpoint_ns=""), {**empty_checkpoint(), "id": "1"}, {}, {})
    for number, book in enumerate([5, {"parent": None, "rest": {}, "place": [1, 2]}]):
        saver.store.thread(f"evil {number}").save({}, label="1", metadata={"__langgraph__": book})
        with pytest.raises(backtrail.Corrupt):
            saver.get_tuple(at(f"evil {number}"))
    saver.store.thread("sly").save(
        {}, label="1", metadata={"__langgraph__": {"parent": None, "rest": {}, "place": ["t", ""]}}
    )
    assert saver.get_tuple(at("sly")).config["configurable"]["thread_id"] == "sly"
    assert [each.config["configurable"]["thread_id"] for each in saver.list(None)] == ["sly", "t"]
