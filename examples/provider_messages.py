"""Messages of OpenAI's client in a conversation: appended unchanged, and sent again exactly.

A small local server plays the model, so no key and no network is needed; the client is the real one.
"""

from __future__ import annotations

import json
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from openai import OpenAI

import backtrail
from backtrail import Message

CALL = {"id": "call_1", "type": "function", "function": {"name": "ferry", "arguments": '{"to": "Naxos"}'}}
TOOLS = [{"type": "function", "function": {"name": "ferry", "parameters": {"type": "object", "properties": {}}}}]
SYSTEM = {"role": "developer", "content": "You plan trips."}


class Model(BaseHTTPRequestHandler):
    """Plays the model: it calls the tool, then it reports the result."""

    def do_POST(self) -> None:
        """Answer a request for a completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = asked["messages"][-1]
        said = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        if last["role"] == "tool":
            said = {"role": "assistant", "content": f"The ferry costs {last['content']}."}
        choice = {"index": 0, "finish_reason": "stop", "message": said}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "stub", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def turn(store: backtrail.Store, client: OpenAI) -> Message:
    """Send the whole conversation, and append the reply."""
    messages = [message.to_openai() for message in store.conversations.load("trip").messages]
    reply = client.chat.completions.create(model="stub", messages=messages, tools=TOOLS)
    made = store.conversations.append("trip", reply.choices[0].message)
    print(f"step {made.step}: {len(messages)} messages sent, one of {made.metadata['formats'][0]} came back")
    return store.conversations.tail("trip", 1)[0]


def main() -> None:
    """Ask, call the tool, and ask again, each time with the stored messages."""
    server = HTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = OpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.server_port}/v1")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "agents.db"
        with backtrail.open(place) as store:
            asked = {"role": "user", "content": [{"type": "text", "text": "What is the ferry to Naxos?"}]}
            store.conversations.append("trip", SYSTEM, asked, agent_id="planner")
            for call in turn(store, client).tool_calls:
                print(f"calls {call.name}({call.arguments})")
                store.conversations.append("trip", {"role": "tool", "tool_call_id": call.id, "content": "42 euros"})
        with backtrail.open(place) as store:  # as in another process
            print(turn(store, client).content)
            for message in store.conversations.load("trip").messages[1:]:
                print(json.dumps(message.to_anthropic()))
    client.close()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
