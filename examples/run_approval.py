"""An agent that waits for a human: it halts, its process ends, and days later another one continues with the answer.

`python examples/run_approval.py` runs everything. By hand, with a store of your own:
`... agents.db` proposes, and `... agents.db yes` (or `no`) answers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import backtrail
from backtrail import Message, RunState


def propose() -> str:
    """Play a model."""
    return "Two nights in Porto, 90 euros"


def pay(amount: int, key: str) -> str:
    """Play a payment service that recognises a repeated request by its key."""
    return f"{amount} euros paid ({key})"


def work(store: backtrail.Store, answer: str | None) -> backtrail.Run:
    """Propose, wait, and follow the human's answer."""
    with store.run("porto", agent="planner", messages=[Message.user("Porto, please")]) as run:
        for number in run.iterations():
            if number == 1:
                run.message(Message.assistant(run.llm("propose", propose)))
            elif answer is None:
                run.halt("waiting for approval")  # leaves the block
            else:
                run.message(Message.user(answer))
                if answer == "yes":
                    run.partial(run.tool("pay", pay, 90, policy="idempotent", key="porto-1", irreversible=True))
                break
    return run


def main(url: str, answer: str | None) -> None:
    """Work until the run halts or ends, and print its status."""
    with backtrail.open(url) as store:
        run = work(store, answer)
        print(f"{run.status}, iteration {run.iteration}, {run.partial_results}")
        waiting = [(each.session_id, each.status.reason) for each in store.runs.list(status=RunState.HALTED)]
        print(f"waiting: {waiting}")
        for message in run.messages:
            print(f"  {message.role}: {message.content}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    else:
        with tempfile.TemporaryDirectory() as directory:
            store_path = str(Path(directory) / "agents.db")
            for words in ([store_path], [store_path, "yes"]):  # two processes, days apart
                command = [sys.executable, __file__, *words]
                done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - this file
                print(done.stdout, end="")
