"""A workflow of Microsoft Agent Framework whose process is killed: another process goes on from the last checkpoint.

No model and no network is needed: `pip install 'backtrail[agent-framework]'`, then
`python examples/agent_framework_workflow.py` runs everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agent_framework import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler

from backtrail.adapters.agent_framework import BacktrailCheckpointStorage


@dataclass
class Trip:
    """What the steps hand on to each other."""

    booked: list[str]


class Book(Executor):
    """Books what its id says."""

    @handler
    async def book(self, trip: Trip, ctx: WorkflowContext[Trip, Trip]) -> None:
        """Book, and hand the trip on."""
        if self.id == "room" and "--kill" in sys.argv:
            print("booking a room ... killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"booking a {self.id}", flush=True)
        done = Trip([*trip.booked, self.id])
        await (ctx.yield_output(done) if self.id == "room" else ctx.send_message(done))


def workflow(storage: BacktrailCheckpointStorage) -> Workflow:
    """Return the workflow: first the ferry, then the room."""
    ferry, room = Book(id="ferry"), Book(id="room")
    builder = WorkflowBuilder(start_executor=ferry, checkpoint_storage=storage, name="trip")
    return builder.add_edge(ferry, room).build()


async def run(path: str) -> None:
    """Begin, or go on from the last checkpoint."""
    async with BacktrailCheckpointStorage(path, types=[Trip]) as storage:
        latest = await storage.get_latest(workflow_name="trip")
        made = workflow(storage)
        result = await (made.run(checkpoint_id=latest.checkpoint_id) if latest else made.run(Trip([])))
        (trip,) = result.get_outputs()
        print("booked:", ", ".join(trip.booked))


def main() -> None:
    """Run both processes."""
    if len(sys.argv) > 1:
        asyncio.run(run(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "agents.db")
        for words in ([path, "--kill"], [path]):
            subprocess.run([sys.executable, __file__, *words], check=False)  # noqa: S603 - this file


if __name__ == "__main__":
    main()
