"""An agent that keeps its state in a thread of plain data: it plans, tries something, and goes back when that fails.

Run it twice: the second time it goes on where the first one ended. `python examples/plain_thread.py [store]`
"""

from __future__ import annotations

import sys

import backtrail


def book(state: dict) -> None:
    """Book a room, if there is money left."""
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

        # Named changes cost what changed, however long the talk is.
        turn = plan.load().get("turn") + 1
        plan.set("turn", turn)
        before = plan.append("messages", {"role": "user", "content": f"Turn {turn}: Lisbon in May"}, tags=["asked"])
        print(f"step {before.step}, turn {turn}, {len(plan)} checkpoints")

        # A step is all or nothing: after an exception the thread is as it was.
        try:
            with plan.step("booked") as state:
                book(state)
        except RuntimeError as error:
            print(f"not booked: {error}")
            assert plan.latest() == before
        else:
            print(plan.diff(before, "@"))

        # Try something else on a fork, and see what the two have in common.
        name = f"trip-without-booking-{turn}"
        other = plan.fork(name, at=before)
        other.append("messages", {"role": "assistant", "content": "Let us wait for a better price."})
        print(f"{name}: {[message['role'] for message in other.load().tail('messages', 2)]}")

        # Look back, and undo.
        if plan.latest().label == "booked":
            plan.rewind(before)
            print(f"rewound: budget {plan.load().get('budget')}")
            plan.undo()
            print(f"undone: budget {plan.load().get('budget')}")
        print([info.id for info in store.threads()])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agents.db")
