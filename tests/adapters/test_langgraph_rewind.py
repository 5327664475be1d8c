"""Threads of graphs, rewound, forked and deleted as threads: the writes of tasks go where their checkpoints go."""

import json
import operator
from typing import Annotated, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import backtrail
from backtrail.adapters.langgraph import BacktrailSaver

SECRET = "the secret of the trip"


def at(thread="t"):
    return {"configurable": {"thread_id": thread}}


class State(TypedDict, total=False):
    notes: Annotated[list, operator.add]
    log: Annotated[list, DeltaChannel(lambda state, writes: [*state, *(each for write in writes for each in write)])]


@pytest.fixture(params=["memory", "sqlite", "file"])
def saver(request, tmp_path):
    urls = {"memory": "memory://", "sqlite": tmp_path / "s.db", "file": (tmp_path / "dir").as_uri()}
    with BacktrailSaver(urls[request.param]) as made:
        yield made


@pytest.fixture
def ran():
    return []


@pytest.fixture
def graph(saver, ran):
    """Two parallel nodes, one of them asks; a node before, and one after."""

    def also(_):
        ran.append("also")
        return {"notes": ["also"], "log": ["also"]}

    def ask(_):
        answer = interrupt("Book it?")
        return {"notes": [answer], "log": [answer]}

    builder = StateGraph(State).add_node("first", lambda _: {"notes": ["first"], "log": ["first"]})
    builder.add_node("also", also).add_node("ask", ask).add_node("last", lambda _: {"notes": ["last"], "log": ["last"]})
    builder.add_edge(START, "first").add_edge("first", "also").add_edge("first", "ask").add_edge("ask", "last")
    return builder.compile(checkpointer=saver)


def asked(graph, config):
    return [each.value for each in graph.get_state(config).interrupts]


def before_answer(saver, thread="t"):
    """The checkpoint on which the question was asked: the one before the last two."""
    return list(saver.store.thread(thread).history(newest_first=True))[2]


def test_a_rewind_takes_an_answer_back(graph, saver, ran):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    waiting = graph.get_state(at())
    graph.invoke(Command(resume="yes"), at(), durability="sync")
    saver.store.thread("t").rewind(before_answer(saver))
    found = graph.get_state(at())
    assert (found.values, found.next, asked(graph, at())) == (waiting.values, waiting.next, ["Book it?"])
    assert [task.result for task in found.tasks] == [task.result for task in waiting.tasks]
    done = graph.invoke(Command(resume="no"), at(), durability="sync")
    assert done == {"notes": ["in", "first", "also", "no", "last"], "log": ["first", "also", "no", "last"]}
    assert ran == ["also"]  # it had finished before the question was answered
    again = graph.get_state(waiting.config)
    assert {task.name: (task.result or {}).get("notes") for task in again.tasks} == {
        "also": ["also"],
        "ask": ["no"],
    }


@pytest.mark.parametrize("sent", ["as it is", "through JSON"])
def test_named_snapshot_keeps_an_answer_taken_back(graph, saver, sent):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    graph.invoke(Command(resume="yes"), at(), durability="sync")
    saver.store.thread("t").rewind(before_answer(saver))
    config = graph.get_state(at()).config
    config = json.loads(json.dumps(config)) if sent == "through JSON" else config
    assert asked(graph, config) == ["Book it?"]
    assert {task.name: task.result is None for task in graph.get_state(config).tasks} == {"also": False, "ask": True}
    assert graph.invoke(Command(resume="no"), config)["notes"] == ["in", "first", "also", "no", "last"]


def test_old_snapshot_keeps_out_a_later_answer(graph, saver):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    graph.invoke(Command(resume="yes"), at(), durability="sync")
    thread = saver.store.thread("t")
    thread.rewind(before_answer(saver))
    config = graph.get_state(at()).config
    thread.rewind("@-")
    assert asked(graph, config) == ["Book it?"]
    assert graph.invoke(Command(resume="no"), config)["notes"] == ["in", "first", "also", "no", "last"]


def test_rewind_takes_back_the_last_of_two_answers(saver):
    builder = StateGraph(State).add_node("first", lambda _: {"notes": ["first"]}).add_edge(START, "first")
    builder.add_node("ask", lambda _: {"notes": [interrupt("Who?") + interrupt("When?")]}).add_edge("first", "ask")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"notes": []}, at())
    thread = saver.store.thread("t")
    waiting = thread.latest()
    graph.invoke(Command(resume="Ann "), at())
    graph.invoke(Command(resume="today"), at())
    thread.rewind(waiting)
    assert asked(graph, at()) == ["When?"]
    assert graph.invoke(Command(resume="tomorrow"), at())["notes"] == ["first", "Ann tomorrow"]
    thread.rewind(waiting)
    thread.rewind("@-")
    graph.invoke(None, at())
    assert asked(graph, at()) == ["Who?"]


def test_undo_reverts_a_rewind(graph, saver):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    yes = graph.invoke(Command(resume="yes"), at(), durability="sync")
    saver.store.thread("t").rewind(before_answer(saver))
    no = graph.invoke(Command(resume="no"), at(), durability="sync")
    assert graph.get_state(at()).values == no
    for _ in range(3):
        saver.store.thread("t").undo()
    assert graph.get_state(at()).values == yes


def test_after_a_rewind_finished_nodes_run_again(graph, saver, ran):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    graph.invoke(Command(resume="yes"), at(), durability="sync")
    first = list(saver.store.thread("t").history())[1]
    saver.store.thread("t").rewind(first)
    assert graph.get_state(at()).next == ("first",)
    assert [task.result for task in graph.get_state(at()).tasks] == [None]
    graph.invoke(None, at(), durability="sync")
    assert ran == ["also", "also"]
    assert asked(graph, at()) == ["Book it?"]
    assert graph.get_state(at()).values == {"notes": ["in", "first", "also"], "log": ["first", "also"]}


def test_deleting_the_latest_checkpoint_takes_its_run_back_for_good(graph, saver):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    graph.invoke(Command(resume="yes"), at(), durability="sync")
    thread = saver.store.thread("t")
    for _ in range(2):
        thread.delete_checkpoint("@")
    for _ in range(2):
        assert asked(graph, at()) == ["Book it?"]
        saver.store.gc()
    assert graph.invoke(Command(resume="no"), at())["notes"] == ["in", "first", "also", "no", "last"]


@pytest.mark.parametrize("answered", [False, True])
def test_a_fork_waits_for_the_same_answer(graph, saver, ran, answered):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    if answered:
        graph.invoke(Command(resume="yes"), at(), durability="sync")
    thread = saver.store.thread("t")
    thread.fork("other", at=before_answer(saver) if answered else "@")
    if not answered:
        graph.invoke(Command(resume="yes"), at(), durability="sync")
    assert asked(graph, at("other")) == ["Book it?"]
    done = graph.invoke(Command(resume="no"), at("other"), durability="sync")
    assert done == {"notes": ["in", "first", "also", "no", "last"], "log": ["first", "also", "no", "last"]}
    assert graph.get_state(at()).values["notes"] == ["in", "first", "also", "yes", "last"]
    assert ran == ["also"]
    assert saver.store.verify().ok


def test_a_fork_keeps_its_question_when_its_origin_is_gone():
    class Plain(TypedDict):
        notes: Annotated[list, operator.add]

    with BacktrailSaver("memory://") as saver:
        builder = StateGraph(Plain).add_node("ask", lambda _: {"notes": [interrupt("Book it?")]}).add_edge(START, "ask")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"notes": ["in"]}, at())
        saver.store.thread("t").fork("other")
        saver.store.thread("t").delete()
        saver.store.gc(erase=True)
        assert asked(graph, at("other")) == ["Book it?"]
        assert graph.invoke(Command(resume="no"), at("other")) == {"notes": ["in", "no"]}


def test_fork_with_deltas_names_its_deleted_origin(graph, saver):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    saver.store.thread("t").fork("other")
    assert graph.get_state(at("other")).values["log"] == ["first", "also"]
    saver.delete_thread("t")
    saver.store.gc()
    with pytest.raises(backtrail.NotFound, match="was forked from a checkpoint that was deleted"):
        graph.get_state(at("other"))


def test_a_fork_in_a_transaction_is_taken_back_with_it(graph, saver):
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    with pytest.raises(ZeroDivisionError), saver.store.transaction():
        saver.store.thread("t").fork("other")
        raise ZeroDivisionError
    assert saver.store.thread("other", aside=True).latest() is None
    assert saver.store.thread("other").latest() is None
    saver.store.thread("t").fork("other")
    assert asked(graph, at("other")) == ["Book it?"]


# -- deleting ---------------------------------------------------------------------------------------------------


def held(saver, tmp_path):
    """Whether the secret is in anything that the store holds, or in a file of it."""
    store, found = saver.store, []
    for kind in ("thread", "aside"):
        for info in store.threads(kind=kind):
            thread = store.thread(info.id, aside=kind == "aside")
            found += [repr(each.state) for each in thread.history(everything=True)]
    data = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    return any(SECRET in each for each in found) or SECRET.encode() in data


def saying(saver):
    builder = (
        StateGraph(State).add_node("say", lambda _: {"notes": [SECRET]}).add_node("ask", lambda _: interrupt(SECRET))
    )
    return builder.add_edge(START, "say").add_edge("say", "ask").compile(checkpointer=saver)


def test_a_deleted_thread_leaves_no_writes(saver, tmp_path):
    saying(saver).invoke({"notes": []}, at(), durability="sync")
    assert held(saver, tmp_path)
    assert saver.store.thread("t").delete()
    assert not list(saver.store.threads(kind="aside"))
    saver.store.gc(erase=True)
    assert not held(saver, tmp_path)
    assert saver.store.stats().checkpoints == 0


def test_a_deleted_checkpoint_leaves_no_writes(saver, tmp_path):
    graph = saying(saver)
    graph.invoke({"notes": []}, at(), durability="sync")
    graph.invoke(Command(resume={"notes": ["done"]}), at(), durability="sync")
    thread = saver.store.thread("t")
    assert thread.load("@-").label == thread.latest().metadata["__langgraph__"]["parent"]
    thread.prune(keep_last=1, keep_tagged=False)
    saver.store.gc(erase=True)
    assert [each.label for each in saver.store.thread("t", aside=True).history()] == []


def test_writes_that_come_before_their_checkpoint_survive_a_collection(saver):
    saver.put_writes({"configurable": {"thread_id": "t", "checkpoint_id": "soon"}}, [("x", 1)], "task")
    saver.store.gc()
    assert len(list(saver.store.thread("t", aside=True).history())) == 1
    assert saver.store.thread("t").delete()
    assert saver.store.thread("t", aside=True).latest() is None
    assert not saver.store.thread("t").delete()


def test_deleting_an_agent_deletes_task_writes(saver, tmp_path):
    store = saver.store
    store.thread("mine", agent="bob").save({"n": 1}, label="one")
    store.thread("mine", aside=True).save({"said": SECRET}, label="one")
    assert store.agents.delete("bob")
    store.gc(erase=True)
    assert not held(saver, tmp_path)


def test_rows_that_older_versions_wrote_are_read(graph, saver):
    """They do not say which run wrote them: then all are taken for one."""
    graph.invoke({"notes": ["in"]}, at(), durability="sync")
    graph.invoke(Command(resume="yes"), at(), durability="sync")
    old = backtrail.open("memory://")
    for aside in (False, True):
        theirs, ours = saver.store.thread("t", aside=aside), old.thread("t", aside=aside)
        for each in theirs.history():
            about = {key: value for key, value in each.metadata.items() if key not in ("__run__", "without")}
            ours.save(each.state, label=each.label, metadata=about)
    again = graph.builder.compile(checkpointer=BacktrailSaver(old))
    assert again.get_state(at()).values == graph.get_state(at()).values
    old.thread("t").rewind("@~2")
    assert again.get_state(at()).next == ("also", "ask")
    again.invoke(None, at(), durability="sync")
    assert again.invoke(Command(resume="no"), at())["notes"] == ["in", "first", "also", "no", "last"]
