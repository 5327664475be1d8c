"""One process works, another follows: it sees each checkpoint as soon as it is saved.

`python examples/follow.py [store]` starts both; the worker is the same file, run with `--work`.
"""

from __future__ import annotations

import subprocess
import sys
import time

import backtrail

STEPS = 5


def work(url: str) -> None:
    """Play the agent: take some steps, and undo one."""
    with backtrail.open(url) as store:
        plan = store.thread("trip")
        plan.save({"budget": 120, "done": []}, label="begin")
        for n in range(1, STEPS + 1):
            time.sleep(0.03)  # the model works
            with plan.step(f"step {n}") as state:
                state["budget"] -= 10
                state["done"].append(n)
        plan.rewind("step 3")
        plan.save(plan.load().state | {"note": "that is enough"}, label="end")


def follow(url: str) -> None:
    """Play an observer: a dashboard, a test, another agent."""
    with backtrail.open(url) as store:
        watch = store.thread("trip").watch(timeout=30)  # misses nothing from here on; the thread may be new
        command = [sys.executable, __file__, "--work", url]
        with subprocess.Popen(command) as worker:  # noqa: S603 - this very file
            for checkpoint in watch:
                print(f"{checkpoint.label}: {checkpoint.get('budget')} left, {checkpoint.get('done')} done")
                if checkpoint.label == "end":
                    break
        print(f"the worker has ended with {worker.returncode}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        follow(sys.argv[1] if len(sys.argv) > 1 else "follow.db")
