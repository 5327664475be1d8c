"""A chat of an agent of Strands, kept message by message, or as snapshots, in Strands' own files and in our stores.

Strands has no store in SQLite: its own ones are files and S3. A turn is one call of an agent with a scripted model; the
agent stays in memory, as Strands has it. This module imports Strands, whose pins conflict: `bench.own_environment` runs
it.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model
from strands.session import FileSessionManager, RepositorySessionManager, SnapshotSessionManager
from strands.storage import LocalFileStorage

from backtrail.adapters.strands import BacktrailSessionRepository, BacktrailStorage
from bench.raw import pages
from bench.sides import Calls, Compared, against, measure, script, size_of, turns_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bench.sides import Scale, Turn

ALONE = "Strands itself"
FILES, OURS = "FileSessionManager", "BacktrailSessionRepository"
SNAPSHOTS, OUR_SNAPSHOTS = "snapshots in LocalFileStorage", "snapshots in BacktrailStorage"


class Script(Model):
    """Answers by the script."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns = turns

    def get_config(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def update_config(self, **_: Any) -> None:
        """Do nothing."""

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """Nothing is structured here."""
        raise NotImplementedError

    async def stream(self, messages: list[Any], *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        """Answer."""
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": self._turns[len(messages) // 2].answer}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def measured(directory: Path, scale: Scale) -> Compared:
    """Measure all of them."""
    turns = script(scale.turns)
    for name in ("files", "snapshots"):
        (directory / name).mkdir()
    with ExitStack() as stack:
        repository = stack.enter_context(BacktrailSessionRepository(directory / "ours.db"))
        storage = BacktrailStorage(directory / "storage.db")
        stack.callback(storage.close)
        local = LocalFileStorage(str(directory / "snapshots"))
        makers: dict[str, tuple[Callable[[], Any], Callable[[], int] | None]] = {
            ALONE: (lambda: None, None),
            FILES: (
                lambda: FileSessionManager("chat", storage_dir=str(directory / "files")),
                partial(size_of, directory / "files"),
            ),
            OURS: (lambda: RepositorySessionManager("chat", repository), partial(pages, directory / "ours.db")),
            SNAPSHOTS: (
                lambda: SnapshotSessionManager("chat", storage=local),
                partial(size_of, directory / "snapshots"),
            ),
            OUR_SNAPSHOTS: (
                lambda: SnapshotSessionManager("chat", storage=storage),
                partial(pages, directory / "storage.db"),
            ),
        }
        chats = [_chat(name, *each, turns) for name, each in makers.items()]
        sides = {side.name: side for side in measure(chats, scale)}
    figures = []
    for theirs, ours in {FILES: OURS, SNAPSHOTS: OUR_SNAPSHOTS}.items():
        figures += turns_of(sides[theirs], sides[ours], scale, gated=False)
        figures += against(sides[theirs], sides[ours], sides[ALONE], {})
    return Compared(figures, sides=list(sides.values()))


def _chat(name: str, manager: Callable[[], Any], size: Any, turns: list[Turn]) -> Calls:
    def agent() -> Agent:
        return Agent(
            model=Script(turns),
            session_manager=manager(),
            conversation_manager=NullConversationManager(),
            callback_handler=None,
        )

    first = agent()

    def turn(at: int) -> None:
        assert turns[at].answer in str(first(turns[at].said))

    reads = {} if name == ALONE else {"a new agent": lambda: _resumed(agent(), 2 * len(turns))}
    return Calls(name, len(turns), turn, size, reads)


def _resumed(agent: Agent, count: int) -> None:
    assert len(agent.messages) == count
