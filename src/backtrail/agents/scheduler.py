"""Automatic checkpoints: a scheduler that makes them now and at every interval, until it is stopped.

It calls `Agents.checkpoint`, as users do. It reports the error of one agent and continues with the others.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol, Self

from backtrail.errors import Invalid, NotFound
from backtrail.models import when

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

LOG: Final = logging.getLogger("backtrail.agents")
DESCRIPTION: Final = "Automatic checkpoint"


class _Agents(Protocol):
    def checkpoint(
        self, agent_id: str, name: str, *, description: str | None = None, kind: str = "manual", keep: int | None = None
    ) -> object: ...


class Rounds:
    """The work at every interval: a checkpoint of each agent."""

    def __init__(
        self,
        agents: _Agents,
        agent_ids: Sequence[str],
        keep: int,
        on_error: Callable[[str, Exception], None] | None,
    ) -> None:
        self._agents = agents
        self._agent_ids = agent_ids
        self._keep = keep
        self._on_error = on_error

    def run(self) -> None:
        """Make a checkpoint of each agent that has a state. Report an error and continue with the next agent."""
        now = when(time.time_ns() // 1000)
        name = f"Auto checkpoint {now:%Y-%m-%d %H:%M:%S}"
        for agent_id in self._agent_ids:
            try:
                self._agents.checkpoint(agent_id, name, description=DESCRIPTION, kind="automatic", keep=self._keep)
            except NotFound:
                continue
            except Exception as error:  # noqa: BLE001 - any error is reported
                self._report(agent_id, error)

    def _report(self, agent_id: str, error: Exception) -> None:
        LOG.error("the automatic checkpoint of agent %r failed: %s", agent_id, error)
        if self._on_error is not None:
            try:
                self._on_error(agent_id, error)
            except Exception:
                LOG.exception("on_error failed, too")


class AutoCheckpoint:
    """A scheduler of automatic checkpoints with its own thread. As a context manager, it stops at the end."""

    def __init__(
        self,
        agents: _Agents,
        agent_ids: Sequence[str],
        interval: float,
        keep: int,
        on_error: Callable[[str, Exception], None] | None,
    ) -> None:
        self._rounds = Rounds(agents, agent_ids, keep, on_error)
        self._interval = interval
        self._turn = threading.Lock()
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the scheduler is running."""
        return self._stop is not None

    def start(self) -> None:
        """Make the first checkpoints, then start the thread that makes further checkpoints."""
        with self._turn:
            if self._stop is not None:
                raise Invalid("this scheduler is running already: stop it first", code="invalid.running")
            stop = self._stop = threading.Event()
        self._rounds.run()
        thread = threading.Thread(target=self._serve, args=(stop,), name="backtrail checkpoints", daemon=True)
        with self._turn:
            if not stop.is_set():
                self._thread = thread
                thread.start()

    def _serve(self, stop: threading.Event) -> None:
        while not stop.wait(min(self._interval, threading.TIMEOUT_MAX)):
            self._rounds.run()

    def stop(self) -> None:
        """Stop after the current round of checkpoints. Stopping twice is allowed."""
        with self._turn:
            stop, thread = self._stop, self._thread
            self._stop = self._thread = None
            if stop is not None:
                stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
