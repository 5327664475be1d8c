"""A loop of tool calls with the builtins of a store. The model is a script, so no network is needed.

A real model gets `TOOLS` (`.openai()`, `.anthropic()`) and the same answers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backtrail
from backtrail.builtins import TOOLS, call_safely

if TYPE_CHECKING:
    from collections.abc import Generator

Ask = tuple[str, dict[str, Any]]


def scripted() -> Generator[Ask, dict[str, Any], str]:
    """Play a model: call tools, read their answers, and answer the user."""
    yield "agent_save", {"agent_id": "planner", "name": "Planner", "agent_type": "scripted"}
    found = yield "conversation_search", {"query": "hotel", "agent_id": "planner", "limits": 3}
    assert "it takes limit" in found["error"]["message"]  # a wrong argument: the answer names the fix
    found = yield "conversation_search", {"query": "hotel", "agent_id": "planner", "limit": 3}
    assert found["hits"] == []

    said = [{"role": "user", "content": "I need a hotel in Lisbon"}, {"role": "assistant", "content": "Hotel Tejo?"}]
    made = yield "conversation_save", {"agent_id": "planner", "messages": said}
    point = yield "checkpoint_create", {"agent_id": "planner", "name": "before booking"}
    yield "agent_save", {"agent_id": "planner", "custom_state": {"booked": "Hotel Tejo"}}
    yield "conversation_delete", {"conversation_id": made["conversation_id"]}  # a mistake
    yield "checkpoint_restore", {"checkpoint_id": point["checkpoint_id"]}

    state = yield "agent_load", {"agent_id": "planner"}
    found = yield "conversation_search", {"query": "hotel"}
    stats = yield "persistence_stats", {}
    return f"{len(found['hits'])} messages, state {state['custom_state']}, {stats['checkpoints']} checkpoints"


def main() -> None:
    """Run the loop: every call gets a JSON answer."""
    with tempfile.TemporaryDirectory() as folder, backtrail.open(Path(folder) / "agents.db") as store:
        print("tools:", len([tool.openai() for tool in TOOLS.values()]))
        model = scripted()
        name, arguments = next(model)
        while True:
            answer = json.dumps(call_safely(store, name, json.dumps(arguments), destructive=True))
            print(f"{name}: {answer[:100]}")
            try:
                name, arguments = model.send(json.loads(answer))
            except StopIteration as end:
                print(end.value)
                break
        assert store.agents.load("planner").custom_state == {}


if __name__ == "__main__":
    main()
