"""A store beside its model, and how the two are compared: heads, histories, and states to the last type."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from backtrail import NotFound
from tests.machine.model import Hand, Line, Point
from tests.support.exact import same

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from backtrail import Checkpoint, Store, Thread

    Opener = Callable[..., Store]
    Place = Callable[[], AbstractContextManager[Opener]]

NAMES: Final = ("a", "b", "a_b")


class Beside:
    """A store with three threads, each with two handles, and the model of the threads."""

    def __init__(self, place: Place) -> None:
        self.stack = ExitStack()
        self._open = self.stack.enter_context(place())
        self.random = random.Random(0)
        self.store: Store | None = None
        self.lines = {name: Line() for name in NAMES}
        self.options: dict[str, Any] = {}

    def start(self) -> None:
        """Open the store, with new handles."""
        store = self.store = self._open(**self.options)
        self.hands = {name: (Hand(name), Hand(name)) for name in NAMES}
        self.threads: dict[Hand, Thread[Any]] = {
            hand: store.thread(name) for name, pair in self.hands.items() for hand in pair
        }

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def agree(self, made: Checkpoint[Any], point: Point) -> None:
        """Compare a checkpoint with its point, all but the state."""
        assert made.id == point.id
        assert made.step == point.step
        assert made.parent_id == point.parent_id
        assert made.label == point.label
        assert sorted(made.tags) == sorted(point.tags)
        assert made.metadata == point.metadata
        assert made.kind == point.kind
        assert made.root == point.root

    def check_line(self, name: str) -> None:
        line = self.lines[name]
        thread: Thread[Any] = self.opened.thread(name)
        history = line.history()
        latest = thread.latest()
        assert (latest is None) is (line.head is None)
        if latest is not None and line.head is not None:
            self.agree(latest, line.head)
            assert same(latest.state, line.head.state)
        listed = list(thread.history())
        assert [made.id for made in listed] == [point.id for point in history]
        for made, point in zip(listed, history, strict=True):
            self.agree(made, point)
        assert len(thread) == len(history)
        assert thread.current_step == (line.head.step if line.head else 0)
        alive = line.alive()
        for point in self.random.sample(alive, min(2, len(alive))):
            assert same(thread.load(point.id).state, point.state)
        dead = [point for point in line.points if not point.alive]
        for point in self.random.sample(dead, min(1, len(dead))):
            with pytest.raises(NotFound):
                thread.load(point.id)

    def check_everything(self) -> None:
        store = self.opened
        for name, line in self.lines.items():
            self.check_line(name)
            for point in line.alive():
                made = store.checkpoint(point.id)
                assert made is not None
                self.agree(made, point)
                assert same(made.state, point.state)
        assert store.verify().ok
        assert store.stats().checkpoints == sum(len(line.alive()) for line in self.lines.values())
        assert {info.id: info.checkpoints for info in store.threads()} == {
            name: len(line.history()) for name, line in self.lines.items() if line.head
        }
