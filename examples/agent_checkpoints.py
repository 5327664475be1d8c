"""An agent that fails at a risky task: a checkpoint brings back its state and all its conversations."""

from __future__ import annotations

import tempfile
from pathlib import Path

import backtrail
from backtrail import AgentState, Conversation, Message


def book(store: backtrail.Store) -> None:
    """Change the agent and two conversations, and fail."""
    agent = store.agents.load("planner")
    store.agents.save(agent.set_state("booked", "the wrong hotel"))
    store.conversations.append("trip", Message.assistant("Booked!"))
    store.conversations.save(Conversation("planner", id="complaints"))
    raise RuntimeError("the card was refused")


def main() -> None:
    """Run the task in a new store."""
    with tempfile.TemporaryDirectory() as directory, backtrail.open(Path(directory) / "agents.db") as store:
        store.agents.save(AgentState("planner", "Trip planner", "some-model"))
        store.conversations.save(Conversation("planner", id="trip"))
        store.conversations.append("trip", Message.user("A hotel in Porto, please"))

        try:
            with store.agents.guard("planner", "booking", rollback=True):
                book(store)
        except RuntimeError as error:
            print(f"failed: {error}")

        print("booked:", store.agents.load("planner").get_state("booked"))
        print("conversations:", [info.id for info in store.conversations.list("planner")])
        print("last message:", store.conversations.tail("trip", 1)[0].content)
        print("checkpoints:", [(each.name, each.kind) for each in store.agents.checkpoints("planner")])

        store.agents.undo("planner", force=True)  # the failed attempt still exists
        print("undone:", store.agents.load("planner").get_state("booked"))


if __name__ == "__main__":
    main()
