"""An agent of Pydantic AI whose process is killed inside a tool: another process goes on with the same conversation.

The model is a function, so no key and no network is needed. `python examples/pydantic_ai_chat.py` runs everything. By
hand, with a store of your own: `... agents.db crash`, then `... agents.db continue`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from backtrail.adapters.pydantic_ai import BacktrailConversationStore


def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Call the tool for a user's message, and answer with its result."""
    last = messages[-1].parts[0]
    if last.part_kind == "user-prompt":
        return ModelResponse(parts=[ToolCallPart("find_room", {"city": "Lisbon"}, "call-1")])
    return ModelResponse(parts=[TextPart(f"I found {getattr(last, 'content', None)}.")])


agent = Agent(FunctionModel(model))


@agent.tool_plain
def find_room(city: str) -> str:
    """Find a room."""
    if sys.argv[2] == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"the Ritz in {city}, 90 euros"


async def crash(conversations: BacktrailConversationStore) -> None:
    """Run the agent; each step is saved when it has finished."""
    conversation = Conversation(conversation_id="lisbon")
    saving = conversations.saving_steps(conversation)
    await agent.run("A room in Lisbon, please", conversation=conversation, capabilities=[saving])


async def go_on(conversations: BacktrailConversationStore) -> None:
    """Make the call that was cut short; then look at what is stored."""
    conversation = await conversations.load("lisbon")
    assert conversation is not None
    print(f"stored: {[message.kind for message in conversation.messages]}")
    result = await agent.run(conversation=conversation)  # no prompt: it makes the open call
    await conversations.save(result)
    print(result.output)
    forked = await conversations.fork("lisbon", at=1)
    print(f"forked: {len(forked.messages)} message")
    for hit in await conversations.store.search("ritz"):
        print(f"found: {hit.role}: {hit.snippet}")


async def work(place: str, word: str) -> None:
    """Do one part."""
    async with BacktrailConversationStore(place, agent="planner") as conversations:
        await (crash if word == "crash" else go_on)(conversations)


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
