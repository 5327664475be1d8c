"""An agent of Google's ADK whose process is killed inside a tool: another process goes on with the same session.

The model follows a script, so no key and no network is needed. ADK needs an environment of its own (its pins conflict
with those of other frameworks): `pip install 'backtrail[adk]'`, then `python examples/adk_session.py` runs everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from backtrail.adapters.adk import BacktrailSessionService

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SESSION = {"app_name": "planner", "user_id": "ann", "session_id": "lisbon"}


class Scripted(BaseLlm):
    """Calls the tool if the user asks for a room, and answers everything else."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - as ADK has it
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer the last message."""
        part = llm_request.contents[-1].parts[-1]
        if part.text and "room" in part.text:
            answer = types.Part.from_function_call(name="find_room", args={"city": "Lisbon"})
        elif part.function_response:
            answer = types.Part(text=f"I found {part.function_response.response['result']}.")
        else:
            answer = types.Part(text="As you like.")
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


def find_room(city: str) -> dict[str, Any]:
    """Find a room."""
    if sys.argv[2:] == ["crash"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"result": f"the Ritz in {city}"}


async def say(runner: Runner, text: str) -> None:
    """Send a message, and print the answers."""
    message = types.Content(role="user", parts=[types.Part(text=text)])
    session = {"user_id": SESSION["user_id"], "session_id": SESSION["session_id"]}
    async for event in runner.run_async(**session, new_message=message):
        for part in event.content.parts if event.content else ():
            print(f"{event.author}: {part.text or part.function_call or part.function_response}")


async def work(place: str, word: str) -> None:
    """Do one part."""
    async with BacktrailSessionService(place) as sessions:
        agent = LlmAgent(name="planner", model=Scripted(model="scripted"), tools=[find_room])
        runner = Runner(agent=agent, app_name="planner", session_service=sessions)
        if word == "crash":
            await sessions.create_session(**SESSION)
            await say(runner, "A room in Lisbon, please")
            return
        session = await sessions.get_session(**SESSION)
        print(f"stored: {[event.author for event in session.events]}")
        await say(runner, "Never mind")
        forked = await sessions.fork(**SESSION, at=session.events[0].id)
        print(f"forked: {len(forked.events)} event")
        print(f"found: {[hit.snippet for hit in await sessions.store.search('room')]}")


def main() -> None:
    """Run everything, or one part."""
    if len(sys.argv) > 2:
        asyncio.run(work(sys.argv[1], sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as directory:
        place = str(Path(directory) / "agents.db")
        for word in ("crash", "continue"):
            print(f"a new process: {word}", flush=True)
            done = subprocess.run([sys.executable, __file__, place, word], check=False)  # noqa: S603 - this file
            assert done.returncode == (-signal.SIGKILL if word == "crash" else 0)


if __name__ == "__main__":
    main()
