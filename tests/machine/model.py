"""The model of threads in plain Python, with which stores are compared.

A `Line` is a thread: every point that was ever saved to it, in order, each with its parent; which of them is the
head; and two stacks of heads, for undo and redo. Nothing here knows about rows, chunks or views.

    save    the old head goes on the undo stack, redo is emptied, the new point is the head
    rewind  likewise, and an old point is the head
    undo    the head goes on the redo stack, and the top of the undo stack is the head
    redo    the other way round

Deleted points stay in the stacks, and are passed over; behind one, so is the head itself, for that would be no undo.
If the head is deleted and none of its ancestors is left, there is no head; what was out of view is still there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Point:
    """A checkpoint."""

    id: str
    step: int
    parent: Point | None
    state: Any
    root: str
    label: str | None = None
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    kind: str = "manual"
    origin: str | None = None
    """The id of the checkpoint that it was forked from."""
    alive: bool = True

    @property
    def parent_id(self) -> str | None:
        return self.origin or (self.parent.id if self.parent else None)

    @property
    def exempt(self) -> bool:
        return self.label is not None or bool(self.tags)

    def path(self) -> list[Point]:
        """Return this point and its ancestors, from the root on, deleted ones included."""
        above = [] if self.parent is None else self.parent.path()
        return [*above, self]


@dataclass(eq=False)
class Line:
    """A thread."""

    head: Point | None = None
    undone: list[Point] = field(default_factory=list)
    """What undo goes back to, the last one first."""
    redone: list[Point] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    limit: int | None = None
    """How many checkpoints are kept, in view and out of view."""

    def copy(self) -> Line:
        return Line(self.head, list(self.undone), list(self.redone), list(self.points), self.limit)

    def alive(self) -> list[Point]:
        return [point for point in self.points if point.alive]

    def path(self) -> list[Point]:
        """Return the head and its ancestors, from the root on, deleted ones included."""
        return [] if self.head is None else self.head.path()

    def history(self) -> list[Point]:
        return [point for point in self.path() if point.alive]

    # -- changes ----------------------------------------------------------------------------------

    def save(self, point: Point) -> None:
        self.points.append(point)
        self.rewind(point)
        if self.limit is not None and point.origin is None:
            for old in self.prunable(self.limit, keep_tagged=True):
                old.alive = False

    def rewind(self, point: Point) -> None:
        self._leave()
        self.redone.clear()
        self.head = point

    def undo(self) -> Point | None:
        """Make the last head the head again and return it; None if there is none."""
        left = self._passed(self.undone, passed=False)
        if not left:
            return None
        if self.head is not None:
            self.redone.append(self.head)
        self.head = left.pop()
        self.undone = left
        return self.head

    def redo(self) -> Point | None:
        """Take the last undo back and return the head; None if there is none."""
        left = self._passed(self.redone, passed=False)
        if not left:
            return None
        self._leave()
        self.head = left.pop()
        self.redone = left
        return self.head

    def _leave(self) -> None:
        """Keep the head for undo. Where there is none, nothing can be gone back to."""
        self.undone = [] if self.head is None else [*self.undone, self.head]

    def _passed(self, stack: list[Point], *, passed: bool) -> list[Point]:
        """Return a stack without the points on its top that cannot become the head."""
        left = list(stack)
        while left and (not left[-1].alive or (passed and left[-1] is self.head)):
            passed = True
            left.pop()
        return left

    def delete_checkpoint(self, point: Point) -> None:
        point.alive = False
        if point is not self.head:
            return
        history = self.history()
        self.head = history[-1] if history else None
        self.undone = self._passed(self.undone, passed=True)
        self.redone = self._passed(self.redone, passed=True)

    def delete(self) -> None:
        for point in self.points:
            point.alive = False
        self.head, self.undone, self.redone = None, [], []

    def prunable(self, keep_last: int, *, keep_tagged: bool) -> list[Point]:
        """Return what pruning hides: behind the newest ones in view, and behind the newest ones out of view."""
        inside = self.history()
        outside = [point for point in self.alive() if point not in inside]
        gone = [point for group in (inside, outside) for point in group[: max(len(group) - keep_last, 0)]]
        return [point for point in gone if point is not self.head and not (keep_tagged and point.exempt)]

    # -- refs ---------------------------------------------------------------------------------------

    def newest(self, points: list[Point]) -> Point | None:
        """Return the newest of these in view, else the newest of them."""
        inside = [point for point in points if point in self.path()]
        found = inside or points
        return found[-1] if found else None

    def with_label(self, label: str) -> Point | None:
        return self.newest([point for point in self.alive() if point.label == label])

    def with_tag(self, tag: str) -> Point | None:
        return self.newest([point for point in self.alive() if tag in point.tags])

    def with_prefix(self, prefix: str) -> list[Point]:
        return [point for point in self.alive() if point.id.startswith(prefix)]


UNKNOWN: Any = object()
"""What a handle expects that has neither read nor written."""


@dataclass(eq=False)
class Hand:
    """A handle: its thread, and the head that it last read or wrote (None: it read that the thread has no head)."""

    name: str
    expected: Any = UNKNOWN
    settled: Any = UNKNOWN
    """What it expects again if the open transaction is given up: what it read in it counts, what it wrote does not."""
