"""A chat with LangGraph on a backtrail store: it is interrupted, continued, searched and forked.

Needs `pip install 'backtrail[langgraph]'` and no network: the model is scripted. A second run continues the first.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import backtrail
from backtrail.adapters.langgraph import BacktrailSaver


class State(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[AnyMessage], add_messages]


def model(state: State) -> dict[str, Any]:
    """Play a model that makes a proposal."""
    return {"messages": [AIMessage(f"For {state['messages'][-1].content!r} I would book the night train.")]}


def book(_state: State) -> dict[str, Any]:
    """Ask before paying."""
    answer = interrupt("Book it?")
    return {"messages": [AIMessage("Booked." if answer == "yes" else "Then not.")]}


builder = StateGraph(State).add_node("model", model).add_node("book", book)
builder.add_edge(START, "model").add_edge("model", "book").add_edge("book", END)

with backtrail.open("trips.db") as store:
    graph = builder.compile(checkpointer=BacktrailSaver(store))
    config: Any = {"configurable": {"thread_id": "trip"}}

    asked = graph.invoke({"messages": [HumanMessage("Lisbon in May")]}, config)
    print("interrupted:", asked["__interrupt__"][0].value)
    done = graph.invoke(Command(resume="yes"), config)
    print("said:       ", done["messages"][-1].content)

    # The chat is an ordinary thread.
    thread = store.thread("trip")
    print("found:      ", store.search("night train", limit=1)[0].snippet)
    print("saved:      ", thread.latest().size, "bytes of state in", thread.current_step, "checkpoints")

    # Another answer to the question makes a fork; the first branch stays.
    question = next(each for each in graph.get_state_history(config) if each.next == ("book",))
    graph.invoke(None, question.config)
    other = graph.invoke(Command(resume="no"), config)
    print("and now:    ", other["messages"][-1].content)
    print("out of view:", len(list(thread.history(everything=True))) - len(thread), "checkpoints")
