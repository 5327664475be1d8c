"""The Claude Agent SDK on a backtrail store: a session is searched, rewound and compared, without a model.

`ScriptedClaude` replaces the program that the SDK talks to. Everything else is as in a real agent, which has no
`transport=`. Needs `pip install 'backtrail[claude]'`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, Transport, list_sessions_from_store, query
from claude_agent_sdk import project_key_for_directory as project_key_for

from backtrail.adapters.claude import BacktrailSessionStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backtrail import Message

SESSION = "7c9f0c1e-5d0a-4c7e-9a55-2f1f6f3f0001"
ANSWERS = {
    "Find a ferry to Naxos": "The Blue Star leaves at 7:25 and costs 42 euros.",
    "Book it": "Booked for the wrong day, sorry.",
    "Book it for Friday": "Booked for Friday.",
}


class ScriptedClaude(Transport):
    """Answers prompts from a script, and mirrors the transcript as the real program does."""

    def __init__(self, config: str) -> None:
        self._file = f"{config}/projects/{project_key_for('.')}/{SESSION}.jsonl"
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def connect(self) -> None:
        """Connect."""

    async def write(self, data: str) -> None:
        """Receive a message of the SDK."""
        said = json.loads(data)
        if said["type"] == "control_request":
            reply = {"subtype": "success", "request_id": said["request_id"], "response": {}}
            self._out.put_nowait({"type": "control_response", "response": reply})
        elif said["type"] == "user":
            prompt = said["message"]["content"]
            answer = {"role": "assistant", "content": [{"type": "text", "text": ANSWERS[prompt]}], "model": "scripted"}
            entries = [self._entry("user", {"role": "user", "content": prompt}), self._entry("assistant", answer)]
            self._out.put_nowait({"type": "transcript_mirror", "filePath": self._file, "entries": entries})
            self._out.put_nowait({"type": "assistant", "message": answer})
            self._out.put_nowait(
                {
                    "type": "result",
                    "subtype": "success",
                    "duration_ms": 1,
                    "duration_api_ms": 1,
                    "is_error": False,
                    "num_turns": 1,
                    "session_id": SESSION,
                    "result": ANSWERS[prompt],
                }
            )
            self._out.put_nowait(None)

    @staticmethod
    def _entry(kind: str, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": kind,
            "uuid": str(uuid.uuid4()),
            "sessionId": SESSION,
            "timestamp": "2026-01-31T12:00:00.000Z",
            "message": message,
        }

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Give the answers."""
        while (message := await self._out.get()) is not None:
            yield message

    async def close(self) -> None:
        """Close."""

    def is_ready(self) -> bool:
        """Tell that it is ready."""
        return True

    async def end_input(self) -> None:
        """End the input."""


async def ask(sessions: BacktrailSessionStore, prompt: str) -> None:
    """Run one turn of the agent."""
    options = ClaudeAgentOptions(session_store=sessions, env={"CLAUDE_CONFIG_DIR": "claude"})
    async for message in query(prompt=prompt, options=options, transport=ScriptedClaude("claude")):
        if isinstance(message, ResultMessage):
            print(f"> {prompt}\n  {message.result}")


async def main() -> None:
    """Run an agent, search its session, rewind a turn, and continue."""
    key: Any = {"project_key": project_key_for("."), "session_id": SESSION}
    async with BacktrailSessionStore("sessions.db") as sessions:
        await ask(sessions, "Find a ferry to Naxos")
        await ask(sessions, "Book it")

    async with BacktrailSessionStore("sessions.db") as sessions:  # another process, another day
        (hit,) = await sessions.store.search("euros")
        print("found:", hit.snippet)
        thread = sessions.thread(key)
        said = [change.new["content"] for change in await thread.diff() if change.path[0] == "messages"]
        print("the last turn:", said)
        wrong = await thread.latest()
        await thread.rewind("@-")
        print("taken back:", len(await sessions.load(key) or []), "entries left")
        await ask(sessions, "Book it for Friday")
        for info in await list_sessions_from_store(sessions):
            print("session:", info.summary, info.session_id)
        print("what was said:", *[message.content for message in await said_in(sessions, key)], sep="\n  ")
        if wrong is not None:
            print("what was taken back is still there:", (await wrong.get("messages[-1]"))["content"])


async def said_in(sessions: BacktrailSessionStore, key: Any) -> list[Message]:
    """Return a session as the messages of a conversation."""
    talk = await sessions.store.conversations.load(sessions.conversation_id(key))
    return list(talk.messages)


if __name__ == "__main__":
    asyncio.run(main())
