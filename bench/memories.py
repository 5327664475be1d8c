"""LangGraph's long-term memory: an agent that puts one memory of 1 KB each turn, and looks for the latest ten.

This module imports LangGraph's SQLite store: it is only imported when that is installed.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from backtrail.adapters.langgraph import BacktrailStore
from bench.raw import pages
from bench.sides import Calls, Compared, against, measure, script, size_of, turns_of

if TYPE_CHECKING:
    from pathlib import Path

    from bench.place import Place
    from bench.sides import Scale, Turn

ALONE, THEIRS, OURS = "InMemoryStore", "SqliteStore", "BacktrailStore"
_USERS = 10
"""Users that take turns, each with a namespace."""


def memories(directory: Path, _: Place | None, scale: Scale) -> Compared:
    """Measure all of them."""
    turns = script(scale.turns)
    with ExitStack() as stack:
        (directory / "theirs").mkdir()
        theirs = stack.enter_context(SqliteStore.from_conn_string(str(directory / "theirs" / "s.db")))
        theirs.setup()
        ours = stack.enter_context(BacktrailStore(directory / "ours.db"))
        sizes = {THEIRS: partial(size_of, directory / "theirs"), OURS: partial(pages, directory / "ours.db")}
        stores: dict[str, Any] = {ALONE: InMemoryStore(), THEIRS: theirs, OURS: ours}
        chats = [_chat(name, store, turns, sizes.get(name)) for name, store in stores.items()]
        sides = {side.name: side for side in measure(chats, scale)}
    figures = turns_of(sides[THEIRS], sides[OURS], scale) + against(sides[THEIRS], sides[OURS], sides[ALONE], {})
    return Compared(figures, sides=list(sides.values()))


def _chat(name: str, store: Any, turns: list[Turn], size: Any) -> Calls:
    def turn(at: int) -> None:
        namespace = ("memories", f"user {at % _USERS}")
        store.put(namespace, f"memory {at}", {"text": turns[at].said, "number": at})
        assert len(store.search(namespace, limit=10)) == min(at // _USERS + 1, 10)

    reads = {
        "get": lambda: store.get(("memories", "user 0"), "memory 0"),
        "search of all users": lambda: store.search(("memories",), limit=10),
        "search with a filter": lambda: store.search(("memories",), filter={"number": {"$lt": 5}}, limit=10),
    }
    return Calls(name, len(turns), turn, size, reads)
