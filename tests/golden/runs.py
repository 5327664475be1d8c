"""What the golden stores of runs hold: one killed inside of a call, one rewound, one fork; since runs3.db, one left.

`python tests/golden/runs.py PATH` writes it with the code at hand. One that has been checked in is never written again.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import backtrail
from backtrail import EveryN, Message, ToolCall

FIRST = Message.user("Zwei Nächte? 🙂", id="first")


class Killed(BaseException):
    """The end of the process."""


def work(store: backtrail.Store, session: str, *, dies: bool = False, hotel: str = "Alfama") -> backtrail.Run:
    """Three iterations; the last one dies inside of its call."""

    def book(name: str, number: int) -> dict[str, Any]:
        if dies and number == 3:
            raise Killed
        return {"name": name, "number": number, "nights": (1, 2)}

    with store.run(session, agent="golden", strategy=EveryN(1), messages=[FIRST], state={"booked": []}) as run:
        run.tool("begin", str.upper, "x")
        for number in run.iterations():
            call = ToolCall("book", {"n": number}, id=f"call {number}")
            run.message(Message.assistant("", tool_calls=[call], id=f"asked {number}"))
            plan = run.llm("plan", lambda messages: f"plan {len(messages)}", run.messages)
            found = run.tool("book", book, hotel, number, irreversible=number == 2, tool_call_id=call.id)
            with suppress(ValueError):
                run.tool("fail", int, "x")
            run.message(Message.tool_result(call.id, found["name"], id=f"answer {number}"))
            run.partial([number, plan])
            run.state["booked"].append(found)
            if number == 3:
                break
    return run


def leave(store: backtrail.Store) -> None:
    """Begin a run, and never leave its block, as a process that dies: its journal continues a checkpoint."""
    run = store.run("left", messages=[FIRST], state={"paid": []}, lease=0.001).__enter__()
    for number in run.iterations():
        run.message(Message.assistant(f"paying {number}", id=f"pay {number}"))
        run.state["paid"].append(run.tool("pay", abs, -number))
        if number == 2:
            run.tool("thank", str.upper, "thanks")
            with suppress(Killed):
                run.tool("tip", _die, 5)
            return


def _die(_: int) -> None:
    raise Killed


def go_on(store: backtrail.Store) -> backtrail.Run:
    """Resume the run that was left, and come to its end."""
    with store.run("left") as run:
        for number in run.iterations():
            run.message(Message.assistant(f"paying {number}"))
            run.state["paid"].append(run.tool("pay", _die, -number))
            run.tool("thank", _die, "thanks")
            run.tool("tip", _die, 5)
            break
    return run


def write(path: str) -> None:
    """Write the store."""
    with backtrail.open(path) as store:
        with suppress(Killed):
            work(store, "killed", dies=True)
        work(store, "rewound")
        store.runs.thread("rewound").fork("fork", at=2)
        store.runs.thread("rewound").rewind(1)
        store.gc()
        leave(store)


if __name__ == "__main__":
    write(*sys.argv[1:])
