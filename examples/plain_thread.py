"""An agent that keeps its state in a thread of plain data: it plans, fails, and goes back.

A second run continues the first. `python examples/plain_thread.py [store]`
"""

from __future__ import annotations

import sys

import backtrail


def book(state: dict) -> None:
    """Book a room if the budget allows."""
    state["messages"].append({"role": "assistant", "content": "Booked a room for 90."})
    state["budget"] -= 90
    if state["budget"] < 0:
        raise RuntimeError("this is more than there is")


def main(url: str) -> None:
    """Take one turn."""
    with backtrail.open(url) as store:
        plan = store.thread("trip")
        if plan.latest() is None:
            plan.save({"turn": 0, "budget": 120, "messages": []})

        # An append costs its own size, however long the list is.
        turn = plan.load().get("turn") + 1
        plan.set("turn", turn)
        before = plan.append("messages", {"role": "user", "content": f"Turn {turn}: Lisbon in May"}, tags=["asked"])
        print(f"step {before.step}, turn {turn}, {len(plan)} checkpoints")

        # A step is all or nothing: an exception leaves the thread unchanged.
        try:
            with plan.step("booked") as state:
                book(state)
        except RuntimeError as error:
            print(f"not booked: {error}")
            assert plan.latest() == before
        else:
            print(plan.diff(before, "@"))

        # Try something else on a fork, and compare.
        name = f"trip-without-booking-{turn}"
        other = plan.fork(name, at=before)
        other.append("messages", {"role": "assistant", "content": "Let us wait for a better price."})
        print(f"{name}: {[message['role'] for message in other.load().tail('messages', 2)]}")

        # Read the history, and undo.
        if plan.latest().label == "booked":
            plan.rewind(before)
            print(f"rewound: budget {plan.load().get('budget')}")
            plan.undo()
            print(f"undone: budget {plan.load().get('budget')}")
        print([info.id for info in store.threads()])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agents.db")
