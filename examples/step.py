"""A work queue that is changed in place. Each step is saved completely or not at all, and stores only its changes."""

from __future__ import annotations

import heapq
import tempfile
from pathlib import Path
from typing import Any

import backtrail


def work(job: dict[str, Any]) -> None:
    """Do a job; some jobs fail the first time."""
    job["tries"] += 1
    if job["name"] == "book" and job["tries"] == 1:
        raise ConnectionError("no answer")


def main() -> None:
    """Work through a queue, most urgent first."""
    with tempfile.TemporaryDirectory() as folder, backtrail.open(Path(folder) / "agents.db") as store:
        agent = store.thread("agent")
        agent.save({"todo": [], "done": [], "log": ["line"] * 1_000})

        with agent.step("planned") as state:
            for urgency, name in [(2, "pack"), (1, "book"), (3, "travel")]:
                heapq.heappush(state["todo"], (urgency, {"name": name, "tries": 0}))

        while agent.load().get("todo"):
            try:
                with agent.step() as state:
                    urgency, job = heapq.heappop(state["todo"])
                    work(job)
                    state["done"].append(job["name"])
                    state["log"].append(f"{job['name']} is done")
            except ConnectionError as error:  # the step did not happen: the job is still in the queue
                with agent.step() as state:
                    state["log"].append(f"{error}; put off")
                    urgency, job = heapq.heappop(state["todo"])
                    heapq.heappush(state["todo"], (urgency + 3, {**job, "tries": 1}))

        state = agent.load().state
        print(state["done"], state["log"][1_000:])
        print("bytes stored by each step:", [checkpoint.stored for checkpoint in agent.history()][1:])
        assert state["done"] == ["pack", "travel", "book"]


if __name__ == "__main__":
    main()
