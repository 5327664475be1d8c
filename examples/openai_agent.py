"""An agent of the OpenAI Agents SDK that books a room: its process ends while it waits for a human; another continues.

The model follows a script, so no key and no network is needed. `python examples/openai_agent.py` runs everything. By
hand, with a store of your own: `... agents.db` asks, and `... agents.db yes` (or `no`) answers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from backtrail.adapters.openai import BacktrailSession

QUIET = RunConfig(tracing_disabled=True)


@function_tool
def find(city: str) -> str:
    """Find a room."""
    return f"The Ritz in {city}, 90 euros"


@function_tool(needs_approval=True)
def book(hotel: str) -> str:
    """Book a room."""
    return f"{hotel} is booked"


def planner(*steps: object) -> Agent:
    """Return the agent with a scripted model."""
    return Agent(name="planner", model=ScriptedModel(steps), tools=[find, book])


async def ask(session: BacktrailSession) -> None:
    """Run the agent until it needs a human."""
    agent = planner(
        [function_call("find", {"city": "Lisbon"}, call_id="call_1")],
        [function_call("book", {"hotel": "The Ritz"}, call_id="call_2")],
    )
    result = await Runner.run(agent, "A room in Lisbon, please", session=session, run_config=QUIET)
    await session.save_run(result)
    for waiting in result.interruptions:
        print(f"may it call {waiting.name}({waiting.arguments})?")


async def answer(session: BacktrailSession, word: str) -> None:
    """Continue with the human's answer."""
    agent = planner([assistant_message("Done." if word == "yes" else "Then not.")])
    state = await session.load_run(agent)
    if state is None or not await session.drop_run():
        print("nothing waits")
        return
    for waiting in state.get_interruptions():
        (state.approve if word == "yes" else state.reject)(waiting)
    result = await Runner.run(agent, state, session=session, run_config=QUIET)
    await session.store_run_usage(result)
    print(result.final_output)


async def work(place: str, word: str | None) -> None:
    """Ask or answer; then fork from the first turn."""
    async with BacktrailSession("lisbon", place, agent="planner") as session:
        if word is None:
            await ask(session)
            return
        await answer(session, word)
        for turn in await session.turns():
            print(f"turn {turn.number}: {turn.content} -> {', '.join(turn.tools)}")
        if not await session.branches():
            branch = await session.fork("lisbon, cheaper", at=1)
            agent = planner([assistant_message("A hostel, 20 euros.")])
            await Runner.run(agent, "Something cheaper?", session=branch, run_config=QUIET)
        for hit in await session.search("ritz"):
            print(f"found: {hit.role}: {hit.snippet}")


def main() -> None:
    """Run everything, or one part."""
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
        return
    with tempfile.TemporaryDirectory() as directory:
        place = str(Path(directory) / "agents.db")
        for words in ([], ["yes"]):
            print(f"a new process: {' '.join(words) or 'ask'}", flush=True)
            subprocess.run([sys.executable, __file__, place, *words], check=True)  # noqa: S603 - this file


if __name__ == "__main__":
    main()
