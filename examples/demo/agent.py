"""`python examples/demo/agent.py SESSION STOP TOOL:THING ...`: the agent of the demo, in a process of its own.

It works on a run of the store `agents.db`, with a model that reads its answers from the command line and tools that
write to the file `outside.txt`. Where STOP says so, it says "at STOP" and stands still, to be killed:
`effect TOOL:THING`, when the tool has written and its result is not recorded, or `result TOOL:THING`, when it is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import backtrail
from backtrail import EveryN, Message

if TYPE_CHECKING:
    from collections.abc import Callable

OUTSIDE: Final = Path("outside.txt")


class Agent:
    """Does what it is told, one thing in each iteration."""

    def __init__(self, stop: str, things: list[str]) -> None:
        self._stop = stop
        self._things = things

    def work(self, session: str) -> str:
        """Begin the run, or go on with it, and return how it stands at the end."""
        first = [Message.user("Plan a trip to Lisbon")]
        # takeover: whoever starts this knows that the last one is dead, and does not wait for its lease to end
        with (
            backtrail.open("agents.db") as store,
            store.run(
                session, agent="planner", strategy=EveryN(1), messages=first, state={"done": []}, takeover=True
            ) as run,
        ):
            for number in run.iterations():
                if number > len(self._things):
                    break
                asked = run.llm("next", self._model, number)
                run.message(Message.assistant(asked))
                name, _, thing = asked.partition(":")
                tools: dict[str, Callable[[str], str]] = {"find": self._find, "book": self._book, "mail": self._book}
                result = run.tool(name, tools[name], asked, irreversible=name == "mail")
                self._stand_still(f"result {asked}")
                run.state["done"].append(thing)
                print(f"iteration {number}: {asked} gave {result!r}", flush=True)
        return str(run.status)

    def _model(self, number: int) -> str:
        return self._things[number - 1]

    def _find(self, asked: str) -> str:
        return f"found by {asked}"

    def _book(self, asked: str) -> str:
        with OUTSIDE.open("a") as file:
            file.write(f"{asked}\n")
        self._stand_still(f"effect {asked}")
        return f"ticket {len(OUTSIDE.read_text().splitlines())}"

    def _stand_still(self, point: str) -> None:
        if point == self._stop:
            print(f"at {point}", flush=True)
            time.sleep(60)


def main() -> int:
    """Work, and return the exit code: 3 if a call is in doubt."""
    session, stop, *things = sys.argv[1:]
    try:
        print(Agent(stop, things).work(session), flush=True)
    except backtrail.InDoubt as error:
        print(f"InDoubt: {error}", flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
