"""An MCP client: it starts `backtrail mcp`, saves a conversation, finds it, and takes a rewind back.

A desktop assistant or a coding agent does the same, from one entry in its configuration; see docs/mcp.md.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters


async def main(store: Path) -> None:
    """Use a store through its MCP server."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "backtrail", "mcp", str(store)])
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        print(f"{len(tools)} tools, {sum(bool(tool.annotations.read_only_hint) for tool in tools)} of them only read")

        async def call(name: str, **arguments: Any) -> dict[str, Any]:
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result.content
            return result.structured_content

        chat = {"agent_id": "planner", "conversation_id": "trip"}
        await call("conversation_save", **chat, messages=[{"role": "user", "content": "A week in Lisbon, please"}])
        await call("conversation_save", **chat, messages=[{"role": "assistant", "content": "Booked: 3 to 10 May"}])
        (hit,) = (await call("search", query="Lisbon"))["hits"]
        print("found:", hit["snippet"])

        await call("thread_rewind", thread_id="trip", kind="conversation", ref="@-")
        print(
            "after the rewind:", (await call("conversation_load", conversation_id="trip"))["message_count"], "message"
        )
        await call("thread_undo", thread_id="trip", kind="conversation")
        print("after the undo:", (await call("conversation_load", conversation_id="trip"))["message_count"], "messages")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory) / "agents.db"))
