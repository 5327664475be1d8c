"""A task of an A2A server whose process is killed while it works: another process finds the task and finishes it.

No network is needed: `pip install 'backtrail[a2a]'`, then `python examples/a2a_tasks.py` runs everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import ListTasksRequest, Message, Part, Role, Task, TaskState

from backtrail.adapters.a2a import BacktrailTaskStore

CALL = ServerCallContext()
"""A call of a user without a name: each user has tasks of their own."""


def message(number: int, role: Role, text: str) -> Message:
    """Return a message with one text."""
    return Message(message_id=f"m{number}", role=role, parts=[Part(text=text)])


async def begin(path: str) -> None:
    """Begin a task, and die in the middle of the work."""
    tasks = BacktrailTaskStore(path)
    task = Task(id="t1", context_id="trip", history=[message(1, Role.ROLE_USER, "Book a ferry to Lisbon")])
    task.status.state = TaskState.TASK_STATE_WORKING
    await tasks.save(task, CALL)
    task.history.append(message(2, Role.ROLE_AGENT, "The ferry leaves at 9."))
    await tasks.save(task, CALL)
    print("working ...", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


async def finish(path: str) -> None:
    """Find tasks that no process works on any more, and finish them."""
    async with BacktrailTaskStore(path) as tasks:
        wanted = ListTasksRequest(status=TaskState.TASK_STATE_WORKING)
        for task in (await tasks.list(wanted, CALL)).tasks:
            found = await tasks.get(task.id, CALL)
            assert found is not None
            print(f"{found.id} was left with {len(found.history)} messages")
            found.history.append(message(3, Role.ROLE_AGENT, "Booked."))
            found.status.state = TaskState.TASK_STATE_COMPLETED
            await tasks.save(found, CALL)
            done = await tasks.get(task.id, CALL)
            assert done is not None
            print(f"{done.id}: {TaskState.Name(done.status.state).removeprefix('TASK_STATE_')}")
            for checkpoint in tasks.thread(task.id).history():
                print(f"  step {checkpoint.step}: {len(checkpoint.state['messages'])} messages")


def main() -> None:
    """Run both processes."""
    if len(sys.argv) > 1:
        asyncio.run(begin(sys.argv[1]))
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "agents.db")
        subprocess.run([sys.executable, __file__, path], check=False)  # noqa: S603 - this file
        asyncio.run(finish(path))


if __name__ == "__main__":
    main()
