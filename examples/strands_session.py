"""An agent of Strands whose process is killed inside a tool: another process goes on with the same session.

The model follows a script, so no key and no network is needed. Strands needs an environment of its own (its pins
conflict with those of other frameworks): `pip install 'backtrail[strands]'`, then `python examples/strands_session.py`
runs everything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands import Agent, tool
from strands.models import Model
from strands.session import RepositorySessionManager

from backtrail.adapters.strands import BacktrailSessionRepository

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Scripted(Model):
    """Calls the tool if the user asks for a room, and answers everything else."""

    def get_config(self) -> dict[str, Any]:
        """Return nothing: there is nothing to configure."""
        return {}

    def update_config(self, **_: Any) -> None:
        """Do nothing."""

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """Refuse: this model answers with text only."""
        raise NotImplementedError

    async def stream(self, messages: list[Any], *_: Any, **__: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Answer the last message."""
        last = messages[-1]["content"][-1]
        yield {"messageStart": {"role": "assistant"}}
        if "room" in last.get("text", ""):
            call = {"toolUseId": f"call-{len(messages)}", "name": "find_room"}
            yield {"contentBlockStart": {"start": {"toolUse": call}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"city": "Lisbon"}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
            return
        answer = f"I found {last['toolResult']['content'][0]['text']}." if "toolResult" in last else "As you like."
        yield {"contentBlockDelta": {"delta": {"text": answer}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


@tool
def find_room(city: str) -> str:
    """Find a room."""
    if sys.argv[2:] == ["crash"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"the Ritz in {city}"


def work(place: str, word: str) -> None:
    """Do one part."""
    with BacktrailSessionRepository(place) as repository:
        manager = RepositorySessionManager("lisbon", repository)
        agent = Agent(model=Scripted(), tools=[find_room], session_manager=manager, callback_handler=None)
        if word == "crash":
            agent("A room in Lisbon, please")
            return
        print(f"stored: {[message['role'] for message in agent.messages]}")
        print(f"planner: {str(agent('Never mind')).strip()}")
        repository.fork("lisbon", "porto", agent_id="default", at=0)
        print(f"forked: {len(repository.list_messages('porto', 'default'))} message")
        print(f"found: {[hit.snippet for hit in repository.store.search('room')]}")


def main() -> None:
    """Run everything, or one part."""
    if len(sys.argv) > 2:
        work(sys.argv[1], sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as directory:
        place = str(Path(directory) / "agents.db")
        for word in ("crash", "continue"):
            print(f"a new process: {word}", flush=True)
            done = subprocess.run([sys.executable, __file__, place, word], check=False)  # noqa: S603 - this file
            assert done.returncode == (-signal.SIGKILL if word == "crash" else 0)


if __name__ == "__main__":
    main()
