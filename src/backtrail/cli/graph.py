"""The graph of a log, drawn with characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine.graph import GraphNode, Lanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.engine.graph import GraphRow


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
    for row in Lanes(next((node.id for node in nodes if node.in_view), None)).rows(nodes):
        if row.joined:
            yield _joined(row, signs), None, 0
        node = row.node
        marks = [signs.line if line else " " for line in row.lines] + [" "] * (row.lane + 1 - len(row.lines))
        for at in row.joined:
            marks[at] = " "
        marks[row.lane] = signs.head if node.is_head else signs.in_view if node.in_view else signs.out_of_view
        yield " ".join(marks).rstrip(), node, 2 * row.lane


def _joined(row: GraphRow, signs: GraphSigns) -> str:
    """Return the line that joins the lanes that lead to the same checkpoint."""
    first, last = row.lane, row.joined[-1]
    drawing = ""
    for at, line in enumerate(row.lines):
        if at == first:
            sign = signs.tee if line else signs.beginning
        elif at in row.joined:
            sign = signs.corner if at == last else signs.meeting
        elif first < at < last:
            sign = signs.line if line else signs.across
        else:
            sign = signs.line if line else " "
        drawing += sign + (signs.across if first <= at < last else " ")
    return drawing.rstrip()
