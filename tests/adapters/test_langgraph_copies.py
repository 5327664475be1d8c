"""Graphs driven at random, with copies of checkpoints and forks: they give what they give with `InMemorySaver`."""

import operator
import os
import random
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from backtrail.adapters.langgraph import BacktrailSaver

SEEDS = int(os.environ.get("BACKTRAIL_LANGGRAPH_SEEDS", "20"))
AT = {"configurable": {"thread_id": "t"}}


def joined(before, writes):
    return [*before, *(each for write in writes for each in write)]


class State(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    notes: Annotated[list, operator.add]
    log: Annotated[list, DeltaChannel(joined)]
    last: str


def asking(saver):
    """A node, a question, and two nodes at once that follow it; a channel keeps only what was added."""

    def a(state):
        return {"notes": ["a"], "log": [f"a{len(state.get('log', []))}"], "messages": [AIMessage("ok", id="ok")]}

    def ask(state):
        answer = interrupt(f"with {len(state['notes'])}?")
        return {"notes": [f"ask {answer}"], "log": ["ask"], "last": answer}

    builder = StateGraph(State).add_node("a", a).add_node("ask", ask)
    builder.add_node("b", lambda state: {"notes": [f"b after {state.get('last')}"], "log": ["b"]})
    builder.add_node("c", lambda _: {"notes": ["c"]})
    builder.add_edge(START, "a").add_edge("a", "ask").add_edge("ask", "b").add_edge("ask", "c")
    return builder.add_edge(["b", "c"], END).compile(checkpointer=saver)


def seen(snapshot):
    """What a snapshot says, without what is random."""
    tasks = [(task.name, [each.value for each in task.interrupts], task.result) for task in snapshot.tasks]
    values = {
        key: [str(each) for each in value] if key == "messages" else value for key, value in snapshot.values.items()
    }
    meta = snapshot.metadata or {}
    return values, snapshot.next, tasks, meta.get("source"), meta.get("step")


def drive(saver, seed):
    """Do what a seed says; return all that was seen."""
    chance, graph, told = random.Random(seed), asking(saver), []
    graph.invoke({"messages": [HumanMessage("hi", id="hi")]}, AT)
    for n in range(chance.randint(2, 6)):
        deed, modes = (
            chance.choice(["go on", "answer", "copy", "copy", "update", "fork", "new", "both"]),
            ["sync", "exit"],
        )
        place, mode, amount = chance.random(), chance.choice(modes), chance.randint(1, 2)
        history = list(graph.get_state_history(AT))
        then = history[int(place * len(history))].config
        try:
            if deed == "go on":
                graph.invoke(None, AT, durability=mode)
            elif deed == "answer":
                graph.invoke(Command(resume=f"yes {n}"), AT, durability=mode)
            elif deed == "copy":
                made = graph.update_state(then, None, as_node="__copy__")
                told.append(seen(graph.get_state(made)))
            elif deed == "both":
                graph.update_state(then, [({"notes": ["both"]}, "a")] * amount, as_node="__copy__")
            elif deed == "update":
                graph.update_state(AT, {"notes": ["updated"], "log": ["updated"]}, as_node="a")
            elif deed == "fork":
                graph.invoke(None, then, durability=mode)
            else:
                graph.invoke({"notes": ["new"], "last": "new"}, AT, durability=mode)
        except Exception as error:  # noqa: BLE001 - what LangGraph refuses, it refuses with either saver
            told.append((deed, type(error).__name__))
        told.append((deed, seen(graph.get_state(AT))))
    return [*told, *map(seen, graph.get_state_history(AT))]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_copies_and_forks_match_in_memory_saver(seed):
    assert drive(BacktrailSaver("memory://"), seed) == drive(InMemorySaver(), seed)
