"""When the messages of a thread came: the time of the checkpoint with which the list last grew past each of them.

That is told by the length of the list at each checkpoint on the way to the head, from the head backwards. A change says
by how much the list grew, so states are not read for it, but for those that are stored whole.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import messages, packing, payload
from backtrail.engine import spine as spines
from backtrail.engine.nodes import as_ref
from backtrail.engine.schema import Types
from backtrail.engine.squeeze import stands_beside
from backtrail.engine.tree import CUT, SET, SPLICE
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.heads import Heads
    from backtrail.engine.nodes import Nodes
    from backtrail.engine.tree import Op, Tree

_KEY: Final = packing.atom("messages", Types())


class Arrivals:
    """When the messages of a head came, from the one at `lowest` on, as far as it is behind the row `since`."""

    def __init__(self, heads: Heads, record: ThreadRecord, head: Row, *, lowest: int, since: int) -> None:
        found: list[tuple[int, int]] = []  # from here on, they came then; from the right
        low: int | None = None  # the least length of the list so far
        time = head.created_at
        for row, length in _lengths(heads, record, head):
            if low is None:
                low = length
            elif length < low:
                found.append((length, time))
                low = length
            if row.seq == since:
                break
            time = row.created_at
            if low <= lowest:
                break
        found.append((0, time))
        self._starts = [start for start, _ in reversed(found)]
        self._times = [time for _, time in reversed(found)]

    def __call__(self, position: int) -> int:
        """Return when the message at this place came."""
        return self._times[bisect_right(self._starts, position) - 1]


def _lengths(heads: Heads, record: ThreadRecord, head: Row) -> Iterator[tuple[Row, int]]:
    """Give the checkpoints on the way to a head, the newest first, each with the length of its list of messages.

    It ends where checkpoints were removed, or cannot be read.
    """
    row: Row | None = head
    while row is not None:
        try:
            rows = heads.chain_rows(record, row)
            yield from reversed(_along(heads, record, rows))
        except (Corrupt, NotFound):
            return
        row = heads.row(record, rows[0].parent) if rows[0].parent else None


def _along(heads: Heads, record: ThreadRecord, rows: list[Row]) -> list[tuple[Row, int]]:
    """Return the lengths along a base and the changes behind it."""
    nodes = heads.nodes()
    nodes.load([digest for row in rows for digest in stands_beside(row.payload or b"")])  # in one read
    tree, _ = payload.read_base(rows[0].payload or b"", nodes)
    found = [(rows[0], _length(tree))]
    for row in rows[1:]:
        length: int | None = found[-1][1]
        for op in payload.read_delta(row.payload or b"", nodes):
            length = None if length is None else _grown(length, op, nodes)
        found.append((row, _length(heads.chain(record, row).tree) if length is None else length))
    return found


def _length(tree: Tree) -> int:
    listed = messages.listed(tree)
    return 0 if listed is None else listed.length


def _grown(length: int, op: Op, nodes: Nodes) -> int | None:
    """Return the length of the list after a change; None if that takes a look at the state."""
    kind, path, *arguments = op
    if not path:
        return None
    if path[0] != _KEY:
        return length
    if len(path) == 1:
        if kind == SPLICE:
            _, removed, entries = arguments
            return length + len(entries) - int(removed)
        return _length_of(arguments[0], nodes) if kind == SET else None
    return length - 1 if kind == CUT and len(path) == 2 else length  # noqa: PLR2004 - an item of the list


def _length_of(rep: Any, nodes: Nodes) -> int | None:
    ref = as_ref(rep)
    listed = spines.open_rep(rep, nodes) if ref is None else None
    return ref.length if ref is not None else listed.length if listed is not None else None
