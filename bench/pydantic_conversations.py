"""A conversation of Pydantic AI: each turn loads it, appends a message and an answer, and saves it.

The framework has no store that survives the process: ours stands beside the one in memory, and beside what programs do
without one, which is to write the whole conversation as JSON into a row of SQLite. This module imports Pydantic AI.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, UserPromptPart

from backtrail.adapters.pydantic_ai import BacktrailConversationStore
from bench.raw import pages
from bench.sides import Calls, Compared, against, measure, script, size_of, turns_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.place import Place
    from bench.sides import Scale, Turn

ALONE, THEIRS, OURS = "InMemoryConversationStore", "a row of JSON in SQLite", "BacktrailConversationStore"


def conversations(directory: Path, _: Place | None, scale: Scale) -> Compared:
    """Measure all of them."""
    turns = script(scale.turns)
    (directory / "theirs").mkdir()
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        ours = BacktrailConversationStore(directory / "ours.db")
        stack.callback(ours.close)
        rows = stack.enter_context(closing(sqlite3.connect(directory / "theirs" / "s.db")))
        rows.execute("CREATE TABLE conversations (id TEXT PRIMARY KEY, messages BLOB)")
        chats = [
            _kept(ALONE, InMemoryConversationStore(), turns, runner.run),
            Calls(THEIRS, len(turns), partial(_row_turn, rows, turns), partial(size_of, directory / "theirs")),
            _kept(OURS, ours, turns, runner.run, partial(pages, directory / "ours.db")),
        ]
        sides = {side.name: side for side in measure(chats, scale)}
    figures = turns_of(sides[THEIRS], sides[OURS], scale, gated=False) + against(
        sides[THEIRS], sides[OURS], sides[ALONE], {}
    )
    return Compared(figures, sides=list(sides.values()))


def _messages(turn: Turn) -> list[Any]:
    return [ModelRequest(parts=[UserPromptPart(turn.said)]), ModelResponse(parts=[TextPart(turn.answer)])]


def _kept(
    name: str, store: Any, turns: list[Turn], run: Callable[[Any], Any], size: Callable[[], int] | None = None
) -> Calls:
    async def take(at: int) -> None:
        conversation = await store.load("chat") or Conversation(conversation_id="chat")
        assert len(conversation.messages) == 2 * at
        conversation.messages += _messages(turns[at])
        await store.save(conversation)

    reads = {
        "load": lambda: run(store.load("chat")),
        "load(limit=20)": lambda: run(store.load("chat", limit=20)),
    }
    return Calls(name, len(turns), lambda at: run(take(at)), size, reads)


def _row_turn(rows: sqlite3.Connection, turns: list[Turn], at: int) -> None:
    found = rows.execute("SELECT messages FROM conversations WHERE id = 'chat'").fetchone()
    messages = list(ModelMessagesTypeAdapter.validate_json(found[0])) if found else []
    messages += _messages(turns[at])
    data = ModelMessagesTypeAdapter.dump_json(messages)
    with rows:
        rows.execute("INSERT OR REPLACE INTO conversations VALUES ('chat', ?)", (data,))
