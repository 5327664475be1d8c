"""The graph of a log: which checkpoint stands on which, drawn beside them, newest first.

Each checkpoint has one parent, so lines only join on the way down. What is in view is in the first lane, all the way;
what was rewound away is in lanes beside it, which join where it left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Node(NamedTuple):
    """A checkpoint, as far as it is drawn."""

    id: str
    parent: str | None
    in_view: bool
    is_head: bool


class Signs(NamedTuple):
    """What a graph is drawn with."""

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


LINES: Final = Signs("@", "●", "○", "│", "├", "─", "╯", "┴", "╭", "├─▶")
ASCII: Final = Signs("@", "*", "o", "|", "|", "_", "/", "/", " ", "|->")


def drawn(nodes: Sequence[Node], signs: Signs) -> Iterator[tuple[str, Node | None, int]]:
    """Give the lines of a graph: what is drawn, the checkpoint that it is beside, if any, and its place in the line."""
    lanes: list[str | None] = [next((node.id for node in nodes if node.in_view), None)]
    begun = False  # the first lane is kept for what is in view, and empty above the head
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


def _mark(lane: str | None, signs: Signs, *, shown: bool) -> str:
    return signs.line if lane is not None and shown else " "


def _free(lanes: list[str | None]) -> int:
    """Return a lane that nothing is in, beside the first one."""
    for at in range(1, len(lanes)):
        if lanes[at] is None:
            return at
    lanes.append(None)
    return len(lanes) - 1


def _joined(lanes: Sequence[str | None], waiting: Sequence[int], signs: Signs, *, begun: bool) -> str:
    """Return the line in which lanes become one: the first of those that wait for the same checkpoint."""
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
