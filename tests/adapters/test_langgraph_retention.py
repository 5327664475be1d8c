"""Retention of LangGraph's threads: its labels exempt nothing, and idle threads go with all that belongs to them."""

import datetime as dt
import operator
from typing import Annotated, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.base")
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import backtrail
from backtrail import Policy
from backtrail.adapters.langgraph import BacktrailSaver
from tests.conformance.base import Clock, rows_read

DAY = 86400


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def ask(state):
    return {"said": [interrupt("go on?")]}


def say(state):
    return {"said": ["hello"]}


def graph_of(saver):
    graph = StateGraph(State)
    graph.add_node("say", say)
    graph.add_node("ask", ask)
    graph.add_edge(START, "say")
    graph.add_edge("say", "ask")
    return graph.compile(checkpointer=saver)


@pytest.fixture(params=["memory", "sqlite", "file"])
def opener(request, tmp_path):
    url = {"memory": "memory://", "sqlite": tmp_path / "s.db", "file": (tmp_path / "s").as_uri()}[request.param]
    return lambda **options: backtrail.open(url, **options)


def config(name):
    return {"configurable": {"thread_id": name}}


def test_pruning_removes_checkpoints_that_langgraph_labelled(opener):
    with opener() as store:
        graph = graph_of(BacktrailSaver(store))
        for _ in range(3):
            graph.invoke({"said": ["a"]}, config("t"))
        before = graph.get_state(config("t"))
        assert len(store.thread("t")) > 2
        assert store.prune(keep_last=2) > 0
        assert len(store.thread("t")) == 2
        assert graph.get_state(config("t")).values == before.values
        assert graph.invoke(Command(resume="yes"), config("t"))["said"][-1] == "yes"
        assert store.verify().ok


def test_a_tag_keeps_a_checkpoint_of_langgraph(opener):
    with opener() as store:
        graph = graph_of(BacktrailSaver(store))
        graph.invoke({"said": ["a"]}, config("t"))
        first = next(iter(store.thread("t").history()))
        store.thread("t").tag(first, "good")
        store.prune(keep_last=1)
        assert next(store.thread("t").history()).id == first.id


def test_max_checkpoints_holds_for_langgraph(opener):
    with opener(max_checkpoints=3) as store:
        graph = graph_of(BacktrailSaver(store))
        for _ in range(4):
            graph.invoke({"said": ["a"]}, config("t"))
            assert graph.invoke(Command(resume="yes"), config("t"))["said"][-1] == "yes"
        assert len(store.thread("t")) == 3
        assert graph.get_state(config("t")).values["said"] == ["a", "hello", "yes"] * 4


def test_ttl_holds_for_langgraph(opener):
    with opener(ttl=DAY) as store:
        clock = Clock(store)
        graph = graph_of(BacktrailSaver(store))
        graph.invoke({"said": ["a"]}, config("t"))
        clock.advance(2 * DAY)
        assert len(store.thread("t")) == 1
        assert graph.get_state(config("t")).values["said"] == ["a", "hello"]


class Deltas(TypedDict):
    log: Annotated[list, DeltaChannel(lambda state, writes: [*state, *(each for write in writes for each in write)])]


def test_idle_thread_stays_while_a_fork_needs_it(opener):
    with opener() as store:
        clock = Clock(store)
        inner = StateGraph(State).add_node("say", say).add_edge(START, "say").compile(checkpointer=True)
        builder = StateGraph(Deltas).add_node("say", lambda _: {"log": inner.invoke({"said": []})["said"][:1]})
        builder.add_edge(START, "say")
        graph = builder.compile(checkpointer=BacktrailSaver(store))
        for said in ("a", "b"):
            graph.invoke({"log": [said]}, config("t"))
        store.thread("t").fork("f")
        clock.advance(40 * DAY)
        before = graph.invoke({"log": ["c"]}, config("f"))
        for dry_run in (True, False):
            report = store.prune(Policy(idle=30), dry_run=dry_run)
            assert report.threads == ()
            assert {why for *_, why in report.kept} == {("deltas of a fork need it",)}
        store.gc(erase=True)
        assert graph.get_state(config("f")).values == before
        clock.advance(40 * DAY)
        for _ in range(2):  # the fork first
            store.prune(Policy(idle=30))
        assert list(store.threads()) == []


def test_idle_thread_goes_if_no_fork_needs_it(opener):
    with opener() as store:
        clock = Clock(store)
        graph = graph_of(BacktrailSaver(store))
        graph.invoke({"said": ["a"]}, config("t"))
        store.thread("t").fork("f")
        clock.advance(40 * DAY)
        graph.invoke(Command(resume="yes"), config("f"))
        assert [name for _, name, _ in store.prune(Policy(idle=30)).threads] == ["t"]
        assert graph.get_state(config("f")).values["said"] == ["a", "hello", "yes"]


def test_idle_threads_of_langgraph_go_with_their_writes(opener):
    with opener() as store:
        clock = Clock(store)
        saver = BacktrailSaver(store)
        graph = graph_of(saver)
        graph.invoke({"said": ["secret"]}, config("old"))
        clock.advance(40 * DAY)
        graph.invoke({"said": ["a"]}, config("new"))
        report = store.prune(Policy(idle=30))
        assert [(kind, name) for kind, name, _ in report.threads] == [("thread", "old")]
        assert saver.get_tuple(config("old")) is None
        assert [info.id for info in store.threads(kind="aside")] == ["new"]
        assert graph.get_state(config("new")).values["said"] == ["a", "hello"]


def test_a_namespace_of_a_thread_in_use_stays(opener):
    with opener() as store:
        clock = Clock(store)
        inner = StateGraph(State)
        inner.add_node("say", say)
        inner.add_edge(START, "say")
        outer = StateGraph(State)
        outer.add_node("inner", inner.compile(checkpointer=True))
        outer.add_edge(START, "inner")
        saver = BacktrailSaver(store)
        outer.compile(checkpointer=saver).invoke({"said": ["a"]}, config("t|u"))
        names = {info.id for info in store.threads()}
        assert len(names) == 2
        clock.advance(40 * DAY)
        graph_of(saver).update_state(config("t|u"), {"said": ["later"]}, as_node="say")
        report = store.prune(Policy(idle=30))
        assert (report.threads, report.reasons) == ((), {"in use": 2})
        clock.advance(40 * DAY)
        assert {name for _, name, _ in store.prune(Policy(idle=dt.timedelta(days=30))).threads} == names


def delta_step(saver, n):
    """Put a checkpoint whose channel `log` is a snapshot every third time, and made from older ones otherwise."""
    snapshot = n % 3 == 0
    meta = {"source": "loop", "step": n} | ({} if snapshot else {"counters_since_delta_snapshot": {"log": (n, n)}})
    values = {"count": n} | ({"log": _DeltaSnapshot([n])} if snapshot else {})
    made = {**empty_checkpoint(), "id": f"{n}", "channel_values": values, "channel_versions": dict.fromkeys(values, n)}
    place = {"thread_id": "t", "checkpoint_ns": ""}
    saver.put(
        {"configurable": place | ({"checkpoint_id": f"{n - 1}"} if n else {})}, made, meta, made["channel_versions"]
    )
    saver.put_writes({"configurable": {**place, "checkpoint_id": f"{n}"}}, [("log", [n])], "task")


def logs(saver, last):
    """What the channel is made from, at each checkpoint."""
    place = {"thread_id": "t", "checkpoint_ns": ""}
    return [
        saver.get_delta_channel_history(config={"configurable": {**place, "checkpoint_id": f"{n}"}}, channels=["log"])
        for n in range(last)
    ]


@pytest.mark.parametrize("options", [{}, {"max_checkpoints": 2}, {"ttl": 5}])
def test_checkpoints_that_delta_channels_are_made_from_stay(opener, options):
    with backtrail.open("memory://") as whole, opener(**options) as store:
        clock, saver, kept = Clock(store), BacktrailSaver(store), BacktrailSaver(whole)
        for n in range(8):
            delta_step(saver, n)
            delta_step(kept, n)
            clock.advance(2)
        before = logs(kept, 8)
        assert [each["log"].get("seed") for each in before].count(None) <= 1
        store.prune(keep_last=1)
        assert logs(saver, 8) == before
        assert len(store.thread("t")) == 8


def test_thread_is_scanned_once_for_deltas(opener):
    with opener(max_checkpoints=3) as store:
        graph = graph_of(BacktrailSaver(store))
        graph.invoke({"said": ["a"]}, config("t"))
        with rows_read(store) as counts:
            for _ in range(20):
                graph.invoke({"said": ["a"]}, config("t"))
        assert max(counts) <= 8


def test_a_fork_gives_no_checkpoints_of_its_source(opener):
    with opener() as store:
        saver = BacktrailSaver(store)
        graph = graph_of(saver)
        graph.invoke({"said": ["a"]}, config("t"))
        first = next(store.thread("t").history())
        store.thread("t").fork("u")
        assert store.thread("u").load(first.label).thread_id == "t"
        there = {"configurable": {"thread_id": "u", "checkpoint_ns": "", "checkpoint_id": first.label}}
        assert saver.get_tuple(there) is None
