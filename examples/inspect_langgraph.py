"""A LangGraph agent, and what the server of its store shows of it: over HTTP, and on the page for a browser.

Needs `pip install 'backtrail[langgraph,server]' httpx2` and no network: the model is scripted, and the script calls the
server itself. `backtrail serve trips.db` opens the same store in a browser.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from starlette.testclient import TestClient

import backtrail
from backtrail import server
from backtrail.adapters.langgraph import BacktrailSaver


class State(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[AnyMessage], add_messages]


def model(state: State) -> dict[str, Any]:
    """Play a model that makes a proposal."""
    return {"messages": [AIMessage(f"For {state['messages'][-1].content!r} I would book the night train.")]}


builder = StateGraph(State).add_node("model", model).add_edge(START, "model").add_edge("model", END)


def talk(store: backtrail.Store) -> None:
    """Run two turns, then another second turn: a fork, which leaves the first one out of view."""
    graph = builder.compile(checkpointer=BacktrailSaver(store))
    config: Any = {"configurable": {"thread_id": "trip"}}
    graph.invoke({"messages": [HumanMessage("Lisbon in May")]}, config)
    graph.invoke({"messages": [HumanMessage("Two people")]}, config)
    first_turn = next(
        each for each in graph.get_state_history(config) if not each.next and len(each.values["messages"]) == 2
    )
    graph.invoke({"messages": [HumanMessage("Three people")]}, first_turn.config)


def look(store: backtrail.Store) -> None:
    """Print what the API and the page of the thread show."""
    memory = server.app(store)  # for reading, with a random token
    api = TestClient(memory, headers={"Authorization": f"Bearer {memory.token}"})

    for thread in api.get("/api/v1/threads").json()["threads"]:
        print("thread:", thread["thread_id"])
    print("log, newest first:")
    for entry in api.get("/api/v1/threads/trip/log").json()["checkpoints"]:
        place = "head" if entry["head"] else "in view" if entry["in_view"] else "out of view"
        print(f"  step {entry['step']}  {entry['metadata']['source']:5}  {place}")
    last = api.get("/api/v1/threads/trip/state?path=messages[-1].content").json()
    print("last message:", last["value"])

    page = api.get("/threads/thread/trip").text
    title, rows = re.findall(r"<title>(.*?)</title>", page)[0], page.count("data-item")
    print(f"page: {title}, {rows} checkpoints, {page.count('>out of view<')} of them out of view")


if __name__ == "__main__":
    with backtrail.open("trips.db") as trips:
        talk(trips)
        look(trips)
