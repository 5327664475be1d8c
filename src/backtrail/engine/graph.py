"""The graph of a log: the lane of each checkpoint, newest first.

Each checkpoint has one parent, so lines only join on the way down. The first lane is for checkpoints in view. Those
that a rewind left have lanes beside it, which join the first where they branched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class GraphNode(NamedTuple):
    """A checkpoint in the graph."""

    id: str
    parent: str | None
    in_view: bool
    is_head: bool


class GraphRow(NamedTuple):
    """A checkpoint, its lane, and the lines around it."""

    node: GraphNode
    lane: int
    lines: tuple[bool, ...]
    """For each lane: whether a line arrives from above."""
    joined: tuple[int, ...]
    """The other lanes whose lines end at this checkpoint."""


class Lanes:
    """The open lanes between two rows of a graph: each waits for a checkpoint."""

    def __init__(self, head: str | None, waiting: Iterable[str | None] = (), *, begun: bool = False) -> None:
        self.waiting: list[str | None] = [*waiting] or [head]
        self.begun = begun
        """Whether the first lane has a line: above the head it is empty."""

    def rows(self, nodes: Iterable[GraphNode]) -> Iterator[GraphRow]:
        """Give the rows of the next checkpoints."""
        lanes = self.waiting
        for node in nodes:
            lines = tuple(wanted is not None and (self.begun or at > 0) for at, wanted in enumerate(lanes))
            waiting = [at for at, wanted in enumerate(lanes) if wanted == node.id]
            for at in waiting[1:]:
                lanes[at] = None
            lane = waiting[0] if waiting else self._free()
            self.begun = self.begun or lane == 0
            lanes[lane] = node.parent
            yield GraphRow(node, lane, lines, tuple(waiting[1:]))
            while lanes[1:] and lanes[-1] is None:
                lanes.pop()

    def _free(self) -> int:
        """Return the position of an empty lane other than the first; add a lane if there is none."""
        for at in range(1, len(self.waiting)):
            if self.waiting[at] is None:
                return at
        self.waiting.append(None)
        return len(self.waiting) - 1


def connected(nodes: Sequence[GraphNode], *, below: str | None = None, more: bool = False) -> list[GraphNode]:
    """Return the nodes with parents in the graph. The next checkpoint in view replaces a pruned parent.

    `below` is the first checkpoint in view after the last node. `more`: there are further nodes, so that an unknown
    parent may be among them.
    """
    here = {node.id for node in nodes}
    result = []
    for node in reversed(nodes):
        parent = node.parent
        if parent not in here:
            parent = below if node.in_view and below is not None else parent if more else None
        result.append(node._replace(parent=parent))
        below = node.id if node.in_view else below
    return result[::-1]
