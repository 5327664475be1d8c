"""A graph that remembers across threads: the memory survives the process, and each item can be taken back.

No key and no network is needed: `python examples/langgraph_memory.py` runs everything.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TypedDict

from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore  # noqa: TC002 - LangGraph reads the annotations

from backtrail.adapters.langgraph import BacktrailSaver, BacktrailStore


class State(TypedDict):
    """What the graph works on."""

    text: str


def embed(texts: list[str]) -> list[list[float]]:
    """Return a vector for each text: how often it has which letter."""
    return [[float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


def remember(state: State, *, store: BaseStore) -> State:
    """Note what the user said."""
    store.put(("users", "ann"), "wish", {"text": state["text"]})
    store.put(("users", "ann", "log"), state["text"][:20], {"text": state["text"]})
    return state


def main() -> None:
    """Talk in two threads, and look at the memory from a third place."""
    with tempfile.TemporaryDirectory() as directory:
        place = f"sqlite:///{Path(directory) / 'agents.db'}"
        index = {"dims": 26, "embed": embed, "fields": ["text"]}
        with BacktrailSaver(place) as saver, BacktrailStore(place, index=index) as memory:
            builder = StateGraph(State)
            builder.add_node(remember)
            builder.add_edge(START, "remember")
            graph = builder.compile(checkpointer=saver, store=memory)
            for number, text in enumerate(["A room by the sea", "Better a house in the mountains"]):
                graph.invoke({"text": text}, {"configurable": {"thread_id": f"chat-{number}"}})

        with BacktrailStore(place, index=index) as memory:
            for version in memory.history(("users", "ann"), "wish"):
                print("version:", version.value)
            print("undone:", memory.undo(("users", "ann"), "wish"))
            for item in memory.search(("users", "ann", "log"), query="mountain house", limit=1):
                print("nearest:", item.value["text"])


if __name__ == "__main__":
    main()
