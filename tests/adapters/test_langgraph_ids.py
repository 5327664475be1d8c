"""The configs that LangGraph's users see: they hold a checkpoint's id, and nothing of ours."""

import copy
import json
import operator
import pickle
from typing import Annotated, TypedDict

import ormsgpack
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import backtrail
from backtrail.adapters.langgraph import BacktrailSaver

AT = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    notes: Annotated[list, operator.add]


def noting(saver):
    builder = (
        StateGraph(State).add_node("one", lambda _: {"notes": ["one"]}).add_node("two", lambda _: {"notes": ["two"]})
    )
    return builder.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=saver)


def ran(saver=None):
    graph = noting(saver or BacktrailSaver("memory://"))
    graph.invoke({"notes": ["in"]}, AT)
    return graph


def test_configs_have_the_keys_of_in_memory_saver():
    ours, theirs = ran(), ran(InMemorySaver())
    for one, other in zip(ours.get_state_history(AT), theirs.get_state_history(AT), strict=True):
        assert one.config["configurable"].keys() == other.config["configurable"].keys()
        parents = [each.parent_config and each.parent_config["configurable"].keys() for each in (one, other)]
        assert parents[0] == parents[1]
    assert ours.get_state(AT).config["configurable"].keys() == theirs.get_state(AT).config["configurable"].keys()


def test_checkpoint_id_is_a_string():
    name = ran().get_state(AT).config["configurable"]["checkpoint_id"]
    assert isinstance(name, str)
    assert repr(name) == repr(str(name))
    assert hash(name) == hash(str(name))
    assert name == str(name)
    assert str(name) == name
    assert {name: 1}[str(name)] == 1
    assert (name != str(name), name == "other", name == 7) == (False, False, False)
    assert json.loads(json.dumps([name])) == [name]
    assert ormsgpack.unpackb(ormsgpack.packb({"id": name})) == {"id": name}


@pytest.mark.parametrize(
    "through",
    [
        copy.copy,
        copy.deepcopy,
        lambda config: pickle.loads(pickle.dumps(config)),
        lambda config: json.loads(json.dumps(config)),
    ],
    ids=["copy", "deepcopy", "pickle", "json"],
)
def test_serialized_config_keeps_its_meaning(through):
    graph = ran()
    first = list(graph.get_state_history(AT))[-2]
    config = through(first.config)
    assert graph.get_state(config).values == first.values
    graph.update_state(config, {"notes": ["branch"]}, as_node="one")
    assert graph.get_state(AT).values["notes"] == ["in", "branch"]
    latest = through(graph.get_state(AT).config)
    graph.invoke(None, latest)
    assert graph.get_state(AT).values["notes"] == ["in", "branch", "two"]


def test_pickled_config_needs_no_backtrail():
    config = ran().get_state(AT).config
    assert b"backtrail" not in pickle.dumps(config)
    assert type(pickle.loads(pickle.dumps(config))["configurable"]["checkpoint_id"]) is str


def test_channel_may_hold_a_checkpoint_id():
    graph = ran()
    name = graph.get_state(AT).config["configurable"]["checkpoint_id"]
    graph.update_state(AT, {"notes": [name]}, as_node="two")
    found = graph.get_state(AT).values["notes"][-1]
    assert (found, type(found)) == (name, str)


@pytest.mark.parametrize("through", [dict, copy.deepcopy, lambda config: json.loads(json.dumps(config))])
def test_stale_latest_conflicts(through):
    """The read that counts is the graph's own, whatever became of an older config."""
    saver = BacktrailSaver("memory://")
    graph = ran(saver)
    stale = saver.get_tuple(AT)
    graph.update_state(AT, {"notes": ["meanwhile"]}, as_node="one")
    config = through({"configurable": dict(stale.config["configurable"])})
    made = {**stale.checkpoint, "id": "3"}
    if type(config["configurable"]["checkpoint_id"]) is str:  # a plain id is one that the caller names: a fork
        saver.put(config, made, {"source": "loop", "step": 5}, {})
        assert saver.get_tuple(AT).config["configurable"]["checkpoint_id"] == "3"
    else:
        with pytest.raises(backtrail.Conflict):
            saver.put(config, made, {"source": "loop", "step": 5}, {})


def test_continued_run_conflicts_with_a_faster_one():
    """After its first checkpoint a run hands over ids of its own, which no read returned."""
    saver = BacktrailSaver("memory://")
    graph = noting(saver)

    def meddle(_):
        noting(saver).update_state(AT, {"notes": ["meanwhile"]}, as_node="two")
        return {"notes": ["late"]}

    builder = StateGraph(State).add_node("a", lambda _: {"notes": ["a"]}).add_node("b", meddle)
    slow = builder.add_edge(START, "a").add_edge("a", "b").compile(checkpointer=saver)
    with pytest.raises(backtrail.Conflict):
        slow.invoke({"notes": ["in"]}, AT, durability="sync")
    assert graph.get_state(AT).values["notes"] == ["in", "a", "meanwhile"]


def test_run_at_a_missing_checkpoint_begins():
    for saver in (InMemorySaver(), BacktrailSaver("memory://")):
        graph = noting(saver)
        found = graph.invoke({"notes": ["in"]}, {"configurable": {**AT["configurable"], "checkpoint_id": "never was"}})
        assert found == {"notes": ["in", "one", "two"]}


def test_run_does_not_revive_a_deleted_thread():
    saver = BacktrailSaver("memory://")
    builder = StateGraph(State).add_node("a", lambda _: (saver.delete_thread("t"), {"notes": ["a"]})[1])
    graph = builder.add_edge(START, "a").compile(checkpointer=saver)
    with pytest.raises(backtrail.Error):
        graph.invoke({"notes": ["in"]}, AT, durability="sync")
    assert saver.get_tuple(AT) is None
