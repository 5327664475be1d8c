"""A raw agent loop that dies and continues: it repeats no model call and no booking."""

from __future__ import annotations

from typing import Any

import backtrail
from backtrail import Message

CITIES = ["Lisbon", "Porto", "Faro"]
booked: list[str] = []
asked: list[int] = []


class PowerCutError(Exception):
    """Plays the end of a process."""


def model(messages: list[Message]) -> dict[str, Any]:
    """Play a model: one city after the other."""
    asked.append(len(messages))
    visited = sum(message.role == "tool" for message in messages)
    return {"city": CITIES[visited], "done": False} if visited < len(CITIES) else {"city": None, "done": True}


def book(city: str) -> str:
    """Have an effect outside that must not happen twice."""
    booked.append(city)
    return f"a bed in {city}"


def agent(store: backtrail.Store, session: str, *, cut_in: int | None = None) -> backtrail.Run:
    """Start or continue a session."""
    first = [Message.user("Three cities, please")]
    with store.run(session, agent="planner", messages=first, state={"beds": []}) as run:
        print(f"{'going on with' if run.resumed else 'beginning'} {session}, iteration {run.iteration}")
        for number in run.iterations():
            reply = run.llm("next", model, run.messages)
            if reply["done"]:
                run.message(Message.assistant("Have a nice trip."))
                break
            bed = run.tool("book", book, reply["city"])
            run.message(Message.tool_result(f"call-{number}", bed))
            run.state["beds"].append(bed)
            if number == cut_in:
                raise PowerCutError
    return run


def main() -> None:
    """Interrupt the second iteration after the booking, and start again."""
    with backtrail.open("memory://") as store:
        try:
            agent(store, "trip", cut_in=2)
        except PowerCutError:
            print(f"cut short: {store.runs.load('trip').status}; booked {booked}")
        run = agent(store, "trip")
        print(f"{run.status}: {run.state['beds']}")
        print(f"booked {booked}, and asked the model {len(asked)} times")
        assert booked == CITIES
        assert len(asked) == 4
        for checkpoint in store.runs.steps("trip"):
            print(checkpoint.step, checkpoint.state["status"], len(checkpoint.state["tool_calls"]), "calls")


if __name__ == "__main__":
    main()
