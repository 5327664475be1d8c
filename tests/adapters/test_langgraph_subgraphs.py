"""Rewinding and forking the thread of a graph takes the threads of its subgraphs along."""

import asyncio
import operator
from typing import Annotated, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import backtrail
from backtrail.adapters.langgraph import BacktrailSaver, import_database


def at(thread="t"):
    return {"configurable": {"thread_id": thread}}


class State(TypedDict):
    log: Annotated[list, operator.add]


@pytest.fixture(params=["memory", "sqlite", "file"])
def saver(request, tmp_path):
    urls = {"memory": "memory://", "sqlite": tmp_path / "s.db", "file": (tmp_path / "dir").as_uri()}
    with BacktrailSaver(urls[request.param]) as made:
        yield made


@pytest.fixture
def ran():
    return []


def built(saver, ran, *, memory=None, depth=1):
    """A graph whose subgraph pays, then asks; `memory` as LangGraph's checkpointer= of the subgraph."""

    def pay(_):
        ran.append("pay")
        return {"log": ["pay"]}

    def ask(_):
        return {"log": [interrupt("ok?")]}

    inner = StateGraph(State).add_node("pay", pay).add_node("ask", ask).add_edge(START, "pay").add_edge("pay", "ask")
    sub = inner.compile(checkpointer=memory)
    for _ in range(depth - 1):
        sub = StateGraph(State).add_node("mid", sub).add_edge(START, "mid").compile(checkpointer=memory)
    outer = StateGraph(State).add_node("sub", sub).add_node("end", lambda _: {"log": ["end"]})
    return outer.add_edge(START, "sub").add_edge("sub", "end").compile(checkpointer=saver)


both = pytest.mark.parametrize("memory", [None, True])
nested = pytest.mark.parametrize("depth", [1, 2])


def inner_log(graph, thread="t"):
    (task,) = graph.get_state(at(thread), subgraphs=True).tasks
    return task.state.values["log"]


@both
@nested
def test_a_rewind_takes_back_the_answer_in_a_subgraph(saver, ran, memory, depth):
    graph = built(saver, ran, memory=memory, depth=depth)
    graph.invoke({"log": []}, at())
    thread = saver.store.thread("t")
    asked = thread.latest()
    yes = graph.invoke(Command(resume="yes"), at())
    for answer in ("no", "maybe"):
        thread.rewind(asked)
        if depth == 1:
            assert inner_log(graph) == ["pay"]
        assert graph.invoke(Command(resume=answer), at())["log"][-2:] == [answer, "end"]
    assert ran == ["pay"]
    thread.rewind(asked)
    while graph.get_state(at()).values["log"] != yes["log"]:
        thread.undo()
    assert graph.get_state(at()).next == ()
    assert saver.store.verify().ok


@both
@nested
@pytest.mark.parametrize("answered", [False, True])
def test_a_fork_does_not_repeat_what_a_subgraph_has_done(saver, ran, memory, depth, answered):
    graph = built(saver, ran, memory=memory, depth=depth)
    graph.invoke({"log": []}, at())
    thread = saver.store.thread("t")
    asked = thread.latest()
    if answered:
        graph.invoke(Command(resume="yes"), at())
    thread.fork("f", asked)
    if depth == 1:
        assert inner_log(graph, "f") == ["pay"]
    assert graph.invoke(Command(resume="no"), at("f"))["log"] == ["pay", "no", "end"]
    if not answered:
        assert graph.invoke(Command(resume="yes"), at())["log"] == ["pay", "yes", "end"]
    assert graph.get_state(at()).values["log"] == ["pay", "yes", "end"]
    assert ran == ["pay"]
    thread = saver.store.thread("f")
    thread.rewind(next(iter(thread.history())))
    assert graph.invoke(Command(resume="maybe"), at("f"))["log"] == ["pay", "maybe", "end"]
    assert ran == ["pay"]
    assert saver.store.verify().ok


def test_a_fork_of_a_fork_keeps_its_subgraphs(saver, ran):
    graph = built(saver, ran)
    graph.invoke({"log": []}, at())
    saver.store.thread("t").fork("f")
    saver.store.thread("f").fork("g")
    assert graph.invoke(Command(resume="no"), at("g"))["log"] == ["pay", "no", "end"]
    assert ran == ["pay"]


def test_a_fork_that_fails_takes_its_subgraphs_back(saver, ran):
    graph = built(saver, ran)
    graph.invoke({"log": []}, at())
    with pytest.raises(ZeroDivisionError), saver.store.transaction():
        saver.store.thread("t").fork("f")
        raise ZeroDivisionError
    assert [info.id for info in saver.store.threads(prefix="f")] == []


def test_the_memory_of_a_subgraph_goes_back_with_its_graph(saver):
    """A subgraph that keeps its state from turn to turn."""
    inner = StateGraph(State).add_node("say", lambda state: {"log": [len(state["log"])]}).add_edge(START, "say")
    outer = StateGraph(State).add_node("sub", inner.compile(checkpointer=True)).add_edge(START, "sub")
    graph = outer.compile(checkpointer=saver)
    kept = saver.store.thread("t|sub")
    thread = saver.store.thread("t")
    graph.invoke({"log": ["a"]}, at(), durability="sync")
    after_a = thread.latest()
    for turn in ("b", "c"):
        graph.invoke({"log": [turn]}, at(), durability="sync")
    thread.rewind(after_a)
    graph.invoke({"log": ["d"]}, at(), durability="sync")
    assert not {"b", "c"} & set(kept.latest().get("log"))
    graph.invoke({"log": ["e"]}, at(), durability="sync")
    assert {"a", "d", "e"} <= set(kept.latest().get("log"))
    assert not {"b", "c"} & set(kept.latest().get("log"))


def test_deleted_outer_checkpoint_reverts_a_subgraph_answer(saver, ran):
    graph = built(saver, ran)
    graph.invoke({"log": []}, at(), durability="sync")
    graph.invoke(Command(resume="yes"), at(), durability="sync")
    thread = saver.store.thread("t")
    for _ in range(2):
        thread.delete_checkpoint("@")
    assert graph.invoke(Command(resume="no"), at())["log"] == ["pay", "no", "end"]
    assert ran == ["pay"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_rewind_takes_back_answers_whenever_they_were_saved(saver, ran, durability):
    graph = built(saver, ran)
    graph.invoke({"log": []}, at(), durability=durability)
    asked = saver.store.thread("t").latest()
    graph.invoke(Command(resume="yes"), at(), durability=durability)
    saver.store.thread("t").rewind(asked)
    assert graph.invoke(Command(resume="no"), at(), durability=durability)["log"] == ["pay", "no", "end"]
    assert ran == ["pay"]


def test_awaited_runs_take_answers_in_subgraphs_back_too(saver, ran):
    async def run():
        graph = built(saver, ran)
        await graph.ainvoke({"log": []}, at())
        asked = saver.store.thread("t").latest()
        await graph.ainvoke(Command(resume="yes"), at())
        saver.store.thread("t").rewind(asked)
        config = (await graph.aget_state(at())).config
        assert (await graph.ainvoke(Command(resume="no"), config))["log"] == ["pay", "no", "end"]

    asyncio.run(run())
    assert ran == ["pay"]


def test_a_subgraph_that_was_pruned_refuses_to_run_again(saver, ran):
    graph = built(saver, ran)
    graph.invoke({"log": []}, at())
    asked = saver.store.thread("t").latest()
    graph.invoke(Command(resume="yes"), at())
    saver.store.thread("t").rewind(asked)
    saver.store.prune(backtrail.Policy(keep_last=1))
    with pytest.raises(backtrail.Invalid, match="was pruned") as caught:
        graph.invoke(Command(resume="no"), at())
    assert caught.value.code == "invalid.rewind"
    with pytest.raises(backtrail.Invalid, match="was pruned"):
        saver.store.thread("t").fork("f")
    assert ran == ["pay"]


def test_an_imported_subgraph_refuses_an_ambiguous_rewind(tmp_path, ran):
    with SqliteSaver.from_conn_string(str(tmp_path / "old.sqlite")) as old:
        graph = built(old, ran)
        graph.invoke({"log": []}, at())
        asked = graph.get_state(at()).config["configurable"]["checkpoint_id"]
        graph.invoke(Command(resume="yes"), at())
    with backtrail.open("memory://") as store:
        import_database(tmp_path / "old.sqlite", store)
        graph = built(BacktrailSaver(store), ran)
        assert graph.get_state(at()).values["log"] == ["pay", "yes", "end"]
        store.thread("t").rewind(asked)
        with pytest.raises(backtrail.Invalid, match="which run saved them") as caught:
            graph.invoke(Command(resume="no"), at())
        assert caught.value.code == "invalid.rewind"
        with pytest.raises(backtrail.Invalid, match="which run saved them"):
            store.thread("t").fork("f", asked)
    assert ran == ["pay"]


def test_erasing_a_graphs_thread_erases_its_subgraphs(saver, ran):
    graph = built(saver, ran, depth=2)
    graph.invoke({"log": ["begin"]}, at())
    graph.invoke({"log": ["begin"]}, at("other"))
    saver.store.thread("t|mine").save({"n": 1})
    inner = {info.id for info in saver.store.threads(prefix="t|")} - {"t|mine"}
    assert len(inner) >= 2
    report = saver.store.thread("t").erase()
    assert {each.id for each in report.threads} == {"t", *inner}
    assert not any(each.fork for each in report.threads)
    left = {info.id for info in saver.store.threads()}
    assert "t|mine" in left
    assert {name.partition("|")[0] for name in left} == {"other", "t"}
    assert saver.store.verify().ok
    graph.invoke({"log": ["again"]}, at())
    assert inner_log(graph)
