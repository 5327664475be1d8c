"""Sessions of the OpenAI Agents SDK, its own beside ours: `python -m bench.openai_sessions [turns ...]` measures them.

Each turn does what the runner does: read the history, add what the user said, add what came of it: 1 KB each. The
sessions take turns, all in one process, each durable as it comes. What is printed are medians of one call, in
milliseconds: as the clock has it, and in brackets what the processor spent on it, in all threads.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession

from backtrail.adapters.openai import BacktrailSession
from bench.data import Messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agents.memory import Session

SAMPLES = 15
LAST = 20
Times = dict[str, list[tuple[float, float]]]


def sessions(directory: Path) -> dict[str, Session]:
    """Return the sessions to compare, each in a file of its own."""
    url = f"sqlite+aiosqlite:///{directory}/sqlalchemy.db"
    return {
        "SQLiteSession": SQLiteSession("s", directory / "sqlite.db"),
        "SQLAlchemySession": SQLAlchemySession.from_url("s", url=url, create_tables=True),
        "BacktrailSession": BacktrailSession("s", directory / "backtrail.db"),
    }


def turn(messages: Messages) -> tuple[list[Any], list[Any]]:
    """Return what a user says, and what comes of it."""
    said, answered = messages.many(2)
    part = {"type": "output_text", "text": answered["content"], "annotations": []}
    answer = {"type": "message", "role": "assistant", "id": answered["id"], "status": "completed", "content": [part]}
    return [{"role": "user", "content": said["content"]}], [answer]


async def timed(times: Times, what: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Take the time of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    times.setdefault(what, []).append((time.perf_counter() - wall, time.process_time() - cpu))


async def take_turn(session: Session, said: list[Any], answer: list[Any], times: Times) -> None:
    """Do what the runner does in one turn without tools."""
    await timed(times, "read all", session.get_items)
    await timed(times, "add", lambda: session.add_items(said))
    await timed(times, "add", lambda: session.add_items(answer))
    await timed(times, f"read {LAST}", lambda: session.get_items(LAST))


def line(name: str, times: Times) -> str:
    """Return what is printed of one session at one length."""
    parts = []
    for what in ("add", "read all", f"read {LAST}"):
        wall, cpu = (statistics.median(each) * 1000 for each in zip(*times[what], strict=True))
        parts.append(f"{what} {wall:7.2f} ({cpu:6.2f})")
    return f"  {name:18} " + "   ".join(parts)


async def main(lengths: list[int]) -> None:
    """Measure at each length."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        found = sessions(directory)
        messages = Messages(7)
        taken = 0
        for length in lengths:
            for _ in range(taken, length):
                said, answer = turn(messages)
                for session in found.values():
                    await session.add_items(said)
                    await session.add_items(answer)
            times: dict[str, Times] = {each: {} for each in found}
            for _ in range(SAMPLES):
                said, answer = turn(messages)
                for each, session in found.items():
                    await take_turn(session, said, answer, times[each])
            taken = length + SAMPLES
            print(f"{length} turns")
            print("\n".join(line(each, times[each]) for each in found))


if __name__ == "__main__":
    asyncio.run(main([int(each) for each in sys.argv[1:]] or [10, 100, 1000]))
