"""`redact=` also finds what frameworks write through their adapters."""

import asyncio
import operator
import re
from typing import Annotated, TypedDict

import pytest

import backtrail
from backtrail import aio

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from backtrail.adapters.langgraph import BacktrailSaver, BacktrailStore
from backtrail.adapters.openai import BacktrailSession

CANARY = "canarytobeerased"


class State(TypedDict):
    messages: Annotated[list, add_messages]
    log: Annotated[list, operator.add]


def answer(state):
    return {"messages": [AIMessage(f"re: {state['messages'][-1].content}")], "log": [CANARY]}


@pytest.fixture
def store(tmp_path):
    with backtrail.open(tmp_path / "s.db", redact=re.compile(CANARY), compression=False) as store:
        yield store
        assert store.redactions
        found = [path.name for path in tmp_path.iterdir() if CANARY.encode() in path.read_bytes()]
        assert found == []


def test_langgraph_checkpoints_and_writes_are_redacted(store):
    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    app = graph.compile(checkpointer=BacktrailSaver(store))
    config = {"configurable": {"thread_id": "t"}, "metadata": {"who": CANARY}}
    for number in range(3):
        live = app.invoke({"messages": [HumanMessage(f"{CANARY} {number}")]}, config)
    assert live["messages"][-1].content == f"re: {CANARY} 2"
    values = app.get_state(config).values
    assert [each.content for each in values["messages"]][-2:] == ["[redacted] 2", "re: [redacted] 2"]
    assert values["log"] == ["[redacted]"] * 3
    assert all(type(each) in (HumanMessage, AIMessage) for each in values["messages"])
    assert len(list(app.get_state_history(config))) == 9


def test_items_of_langgraphs_store_are_redacted(store):
    items = BacktrailStore(store)
    items.put(("a",), "k", {"text": CANARY})
    assert items.get(("a",), "k").value == {"text": "[redacted]"}


def test_items_of_openai_sessions_are_redacted(store):
    async def main():
        session = BacktrailSession("s", store)
        await session.add_items([{"role": "user", "content": CANARY}])
        return await session.get_items()

    assert asyncio.run(main()) == [{"role": "user", "content": "[redacted]"}]


def test_tasks_write_redacted_values(tmp_path):
    async def main():
        async with aio.open(tmp_path / "a.db", redact="secrets", compression=False) as store:
            await store.thread("t").save({"key": "ghp_" + "a" * 36})
            assert (await store.thread("t").load()).id
            return store.redactions, await (await store.thread("t").load()).load_state()

    assert asyncio.run(main()) == (1, {"key": "[redacted]"})
