"""The graph of a log: lines from each checkpoint to its parent, newest first.

Each checkpoint has one parent, so lines only join on the way down. The first lane is for checkpoints in view. Those
that a rewind left have lanes beside it, which join the first where they branched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class GraphNode(NamedTuple):
    """A checkpoint in the graph."""

    id: str
    parent: str | None
    in_view: bool
    is_head: bool


class GraphSigns(NamedTuple):
    """The characters of a graph."""

    head: str
    in_view: str
    out_of_view: str
    line: str
    tee: str
    across: str
    corner: str
    meeting: str
    beginning: str
    branch: str


LINES: Final = GraphSigns("@", "●", "○", "│", "├", "─", "╯", "┴", "╭", "├─▶")
ASCII: Final = GraphSigns("@", "*", "o", "|", "|", "_", "/", "/", " ", "|->")


def graph_lines(nodes: Sequence[GraphNode], signs: GraphSigns) -> Iterator[tuple[str, GraphNode | None, int]]:
    """Give the lines of a graph: the drawing, the checkpoint of the line (or None), and the column of its sign."""
    lanes: list[str | None] = [next((node.id for node in nodes if node.in_view), None)]
    begun = False  # the first lane is for checkpoints in view, and empty above the head
    for node in nodes:
        waiting = [at for at, wanted in enumerate(lanes) if wanted == node.id]
        if len(waiting) > 1:
            yield _joined(lanes, waiting, signs, begun=begun), None, 0
            for at in waiting[1:]:
                lanes[at] = None
        at = waiting[0] if waiting else _free(lanes)
        begun = begun or at == 0
        lanes[at] = node.id
        sign = signs.head if node.is_head else signs.in_view if node.in_view else signs.out_of_view
        marks = [_mark(lane, signs, shown=begun or place > 0) for place, lane in enumerate(lanes)]
        marks[at] = sign
        yield " ".join(marks).rstrip(), node, 2 * at
        lanes[at] = node.parent
        while lanes[1:] and lanes[-1] is None:
            lanes.pop()


def _mark(lane: str | None, signs: GraphSigns, *, shown: bool) -> str:
    return signs.line if lane is not None and shown else " "


def _free(lanes: list[str | None]) -> int:
    """Return the position of an empty lane other than the first; add a lane if there is none."""
    for at in range(1, len(lanes)):
        if lanes[at] is None:
            return at
    lanes.append(None)
    return len(lanes) - 1


def _joined(lanes: Sequence[str | None], waiting: Sequence[int], signs: GraphSigns, *, begun: bool) -> str:
    """Return the line that joins the lanes at the positions `waiting`, which lead to the same checkpoint."""
    first, last = waiting[0], waiting[-1]
    drawing = ""
    for at, lane in enumerate(lanes):
        if at == first:
            sign = signs.tee if begun or first > 0 else signs.beginning
        elif at in waiting:
            sign = signs.corner if at == last else signs.meeting
        elif first < at < last:
            sign = signs.across if lane is None else signs.line
        else:
            sign = _mark(lane, signs, shown=begun or at > 0)
        drawing += sign + (signs.across if first <= at < last else " ")
    return drawing.rstrip()
