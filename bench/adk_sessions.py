"""A session of Google's ADK: each turn does what a Runner does with its session service.

It gets the session with all its events, and appends the user's event and the answer. This module imports ADK, whose
pins conflict: `bench.own_environment` runs it.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from backtrail.adapters.adk import BacktrailSessionService
from bench.raw import pages
from bench.sides import Calls, Compared, Race, against, measure, raced, script, size_of, turns_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.sides import Scale, Turn

ALONE, OURS = "InMemorySessionService", "BacktrailSessionService"
SQLITE, DATABASE = "SqliteSessionService", "DatabaseSessionService, SQLite"
KEY = {"app_name": "app", "user_id": "ann", "session_id": "chat"}
RACE = "append_event at once, on one revision"


def measured(directory: Path, scale: Scale) -> Compared:
    """Measure all of them."""
    turns = script(scale.turns)
    for name in ("sqlite", "database"):
        (directory / name).mkdir()
    with ExitStack() as stack:
        run = stack.enter_context(asyncio.Runner()).run
        ours = BacktrailSessionService(directory / "ours.db")
        stack.callback(lambda: run(ours.close()))
        services: dict[str, tuple[Any, Callable[[], int] | None]] = {
            ALONE: (InMemorySessionService(), None),
            SQLITE: (SqliteSessionService(str(directory / "sqlite" / "s.db")), partial(size_of, directory / "sqlite")),
            DATABASE: (
                DatabaseSessionService(f"sqlite+aiosqlite:///{directory / 'database' / 's.db'}"),
                partial(size_of, directory / "database"),
            ),
            OURS: (ours, partial(pages, directory / "ours.db")),
        }
        chats = [_chat(name, each, turns, scale, run) for name, each in services.items()]
        sides = {side.name: side for side in measure(chats, scale)}
    figures = []
    for theirs in (SQLITE, DATABASE):
        figures += turns_of(sides[theirs], sides[OURS], scale)
        figures += against(sides[theirs], sides[OURS], sides[ALONE], {})
    for name in (SQLITE, DATABASE, OURS):
        figures += raced(sides[name], gated=name == OURS)
    return Compared(figures, sides=list(sides.values()))


def _event(author: str, text: str) -> Event:
    return Event(author=author, content=types.Content(role=author, parts=[types.Part(text=text)]))


def _chat(
    name: str, service_and_size: tuple[Any, Any], turns: list[Turn], scale: Scale, run: Callable[[Any], Any]
) -> Calls:
    service, size = service_and_size

    async def take(at: int) -> None:
        if at == 0:
            await service.create_session(**KEY)
        session = await service.get_session(**KEY)
        assert len(session.events) == 2 * at
        await service.append_event(session, _event("user", turns[at].said))
        await service.append_event(session, _event("planner", turns[at].answer))

    async def race() -> Race:
        key = {**KEY, "session_id": "race"}
        await service.create_session(**key)
        held = [await service.get_session(**key) for _ in range(scale.writers)]
        work = (service.append_event(each, _event("user", f"w{at}")) for at, each in enumerate(held))
        ends = await asyncio.gather(*work, return_exceptions=True)
        errors = [end if isinstance(end, BaseException) else None for end in ends]
        there = {event.content.parts[0].text for event in (await service.get_session(**key)).events}
        return Race.judge([f"w{at}" in there for at in range(scale.writers)], errors)

    recent = GetSessionConfig(num_recent_events=20)
    reads = {
        "get_session": lambda: run(service.get_session(**KEY)),
        "its last 20 events": lambda: run(service.get_session(**KEY, config=recent)),
    }
    return Calls(name, len(turns), lambda at: run(take(at)), size, reads, {RACE: lambda: run(race())})
