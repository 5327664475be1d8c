"""A chat of an agent of the OpenAI Agents SDK, kept by its own sessions and by `BacktrailSession`.

A turn is one `Runner.run` with a scripted model. It reads the whole session, and adds the user's message and the
answer. Sessions are made as in their documentation. The baseline of the SDK alone is the same run without a session:
the caller passes all items each time.

This module imports the SDK, SQLAlchemy and aiosqlite: it is only imported when all of them are installed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from agents import Agent, ModelResponse, Runner, SQLiteSession, Usage, set_tracing_disabled
from agents.extensions.memory import SQLAlchemySession
from agents.models.interface import Model
from agents.testing import assistant_message
from sqlalchemy.ext.asyncio import create_async_engine

import backtrail
from backtrail.adapters.openai import BacktrailSession
from bench.figures import Figure
from bench.raw import pages
from bench.sides import FULL, Compared, Race, against, measure, raced, script, share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from agents.memory import Session

    from bench.place import Place
    from bench.sides import Scale, Side, Turn

ITSELF = "the SDK itself"
SQLITE, ALCHEMY, ALCHEMY_POSTGRES = "SQLiteSession", "SQLAlchemySession", "SQLAlchemySession, PostgreSQL"
OURS, OURS_POSTGRES = "BacktrailSession", "BacktrailSession, PostgreSQL"
ALL, LAST = "get_items()", "get_items(20)"
RACE = "add_items at once"


class Script(Model):
    """Answers by the script. The SDK's own scripted model would keep a copy of all that it was ever asked."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns = turns

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # noqa: A002, ARG002
        """Answer."""
        at = len(input) // 2
        output = [assistant_message(self._turns[at].answer, item_id=f"msg_{at}")]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Nothing is streamed here."""
        raise NotImplementedError


class Talk:
    """A chat that a session keeps; `opened` gives a session by its id, one more of the same store each time."""

    def __init__(
        self,
        name: str,
        opened: Callable[[str], Session],
        turns: list[Turn],
        scale: Scale,
        *,
        runner: asyncio.Runner,
        size: Callable[[], int],
        note: str = "",
    ) -> None:
        self.name, self.size, self.note = name, size, note
        self.turns = len(turns)
        self._run, self._scale, self._opened = runner.run, scale, opened
        self._session = opened("chat")
        self._script = turns
        self._agent = Agent(name="planner", model=Script(turns))
        self.reads: dict[str, Callable[[], Any]] = {
            ALL: partial(self._read, None, 2 * self.turns),
            LAST: partial(self._read, 20, min(20, 2 * self.turns)),
        }
        self.races: dict[str, Callable[[], Race]] = {RACE: self._race}

    def turn(self, at: int) -> None:
        """Run the agent."""
        result = self._run(Runner.run(self._agent, self._script[at].said, session=self._session))
        assert result.final_output == self._script[at].answer, self.name

    def close(self) -> None:
        """Do nothing: the owner of the store closes it."""

    def _read(self, limit: int | None, count: int) -> Any:
        items = self._run(self._session.get_items(limit))
        assert len(items) == count, self.name
        return items

    def _race(self) -> Race:
        """Add to one session from many tasks at once, each with its own session object, like requests of a server."""
        count = self._scale.writers

        async def write() -> tuple[list[Any], list[Any]]:
            sessions = [self._opened("race") for _ in range(count)]
            await sessions[0].add_items([{"role": "user", "content": "first"}])
            adds = (each.add_items([{"role": "user", "content": f"w{at}"}]) for at, each in enumerate(sessions))
            errors = await asyncio.gather(*adds, return_exceptions=True)
            items = await sessions[0].get_items()
            for each in sessions:
                if isinstance(each, SQLiteSession):
                    each.close()
            return errors, items

        errors, items = self._run(write())
        kept = {item["content"] for item in items}
        return Race.judge([f"w{number}" in kept for number in range(count)], errors)


class Alone:
    """The agent without a session: its caller keeps the items and hands all of them over each time."""

    name, note, size = ITSELF, "", None

    def __init__(self, turns: list[Turn], runner: asyncio.Runner) -> None:
        self.turns = len(turns)
        self.reads: dict[str, Callable[[], Any]] = {}
        self.races: dict[str, Callable[[], Race]] = {}
        self._run, self._script = runner.run, turns
        self._agent = Agent(name="planner", model=Script(turns))
        self._items: list[Any] = []

    def turn(self, at: int) -> None:
        """Run the agent."""
        items = [*self._items, {"role": "user", "content": self._script[at].said}]
        result = self._run(Runner.run(self._agent, items))
        self._items = result.to_input_list()
        assert len(self._items) == 2 * (at + 1)

    def close(self) -> None:
        """Nothing is open."""


def sessions(directory: Path, place: Place | None, scale: Scale) -> Compared:
    """Measure all of them."""
    set_tracing_disabled(disabled=True)
    with asyncio.Runner() as runner, ExitStack() as stack:
        turns = script(scale.turns)
        chats: list[Any] = [Alone(turns, runner), *_on_sqlite(directory, turns, scale, runner, stack)]
        if place is not None:
            chats += _on_postgres(place, turns[: scale.fewer], scale, runner, stack)
            place.settle()
        sides = measure(chats, scale)
    return Compared(_figures({side.name: side for side in sides}, scale), sides=sides)


def _on_sqlite(
    directory: Path, turns: list[Turn], scale: Scale, runner: asyncio.Runner, stack: ExitStack
) -> Iterator[Talk]:
    make = partial(Talk, turns=turns, scale=scale, runner=runner)
    path = directory / "sqlite.db"
    yield make(SQLITE, lambda name: SQLiteSession(name, path), size=partial(_pages, path))
    other = directory / "sqlalchemy.db"
    alchemy = _alchemy(f"sqlite+aiosqlite:///{other}", runner, stack)
    yield make(ALCHEMY, alchemy, size=partial(_pages, other))
    ours = directory / "backtrail.db"
    store = stack.enter_context(backtrail.open(ours))
    yield make(OURS, lambda name: BacktrailSession(name, store), size=partial(pages, ours))


def _on_postgres(
    place: Place, turns: list[Turn], scale: Scale, runner: asyncio.Runner, stack: ExitStack
) -> Iterator[Talk]:
    make = partial(Talk, turns=turns, scale=scale, runner=runner)
    url = place.schema("sessions_alchemy").replace("postgresql:", "postgresql+psycopg:", 1)
    yield make(ALCHEMY_POSTGRES, _alchemy(url, runner, stack), size=place.sized("sessions_alchemy"))
    store = stack.enter_context(place.open("sessions_ours"))
    yield make(OURS_POSTGRES, lambda name: BacktrailSession(name, store), size=place.sized("sessions_ours"))


def _alchemy(url: str, runner: asyncio.Runner, stack: ExitStack) -> Callable[[str], Session]:
    """Sessions on one engine, as its documentation has it for applications."""
    engine = create_async_engine(url)
    stack.callback(lambda: runner.run(engine.dispose()))
    return lambda name: SQLAlchemySession(name, engine=engine, create_tables=True)


def _pages(path: Path) -> int:
    """Return how many bytes a database of Python's own SQLite has: another SQLite would break the locks of this one."""
    with closing(sqlite3.connect(path)) as connection:
        (count,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return int(count) * int(size)


def _figures(sides: dict[str, Side], scale: Scale) -> list[Figure]:
    """Hold each of their sessions against ours on the same database."""
    figures = []
    for theirs, ours in {SQLITE: OURS, ALCHEMY: OURS, ALCHEMY_POSTGRES: OURS_POSTGRES}.items():
        if theirs in sides:
            figures += against(sides[theirs], sides[ours], sides[ITSELF], {})
    marks = {"gate": 1.0, "goal": 0.8} if scale.turns == FULL.turns else {}
    turns = min(len(sides[name].taken) for name in (OURS, SQLITE))
    alone = sides[ITSELF].total(turns).wall
    one, other = (sides[name].total(turns).wall - alone for name in (OURS, SQLITE))
    figures.append(Figure(f"{OURS} / {SQLITE}: a turn without {ITSELF}", one / other, samples=turns, **marks))
    figures.append(share(sides[ITSELF], sides[OURS]))
    for name, side in sides.items():
        figures += raced(side, gated=name.startswith(OURS))
    return figures
