"""Whether checkpoints can be read: their rows, the states that those lead to, and the values that can be made of these.

Hashes say that nothing has changed since it was written, not that a writer has written it: so what is read is also made
values of, piece by piece, without the classes that a caller may have named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.engine import log, payload, pins
from backtrail.engine.tree import unpacker
from backtrail.engine.tree.nodes import LEAF, SPINE, check_chunk, read_levels, require_size
from backtrail.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Container

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.engine.tree.nodes import Node
    from backtrail.engine.tree.tree import Op, Tree


class Reading:
    """Reads the checkpoints of a thread one after the other: the next one is mostly a change of the last."""

    def __init__(self, heads: Heads, record: ThreadRecord, weights: dict[bytes, int] | None = None) -> None:
        self._heads = heads
        self._weights = weights
        """How many bytes are read for a node and all below it, if that is to be held against what rows say."""
        self._record = record
        self._last: tuple[int, Tree] | None = None
        self.pinned = pins.pinned(heads, record)
        """The rows that are held when it begins, though they may be hidden."""
        self._unpack = _unpacker()
        self.read = self.size = 0
        """The seq of the row whose state was read last, and the size of that."""
        self._ops: list[Op] | None = None
        """Those of the row that is being read, if they were read already."""

    def reason(self, row: Row, good: set[bytes]) -> str | None:
        """Return why a checkpoint cannot be read, None if it can; add the chunks below it to the good ones.

        What cannot is looked at twice, the second time with nothing that was read before: a repair goes by it.
        """
        first = self._reason(row, good)
        return None if first is None else Reading(self._heads.anew(), self._record, self._weights)._reason(row, good)  # noqa: SLF001

    def _reason(self, row: Row, good: set[bytes]) -> str | None:
        if not log.is_sound(row, self._record.uid):
            return "its row is damaged"
        held = row.hidden and row.seq in self.pinned  # it was deleted, and may be brought back
        if (row.hidden and not held) or row.op not in log.CHECKPOINTS:
            return None
        try:
            tree = self._tree(row)
            self._require_values(row, tree)
            below = read_below(self._heads, tree, good, self._weights)
            if self._weights is not None:
                require_size(len(tree.rep) + sum(map(self._weights.__getitem__, payload.refs_of(tree.rep))), row.size)
        except NotFound as error:
            return str(error) if held else None
        except Corrupt as error:
            return str(error) if held or _still_shown(self._heads, self._record, row) else None
        self._last = row.seq, tree
        self.read, self.size = row.seq, tree.size
        good |= below
        return None

    def _tree(self, row: Row) -> Tree:
        self._ops = None
        if self._last is not None and row.parent == self._last[0] and row.base != row.seq:
            try:
                self._ops = payload.read_delta(row.payload or b"", self._heads.nodes())
                tree = self._last[1].apply(self._ops)
            except Corrupt:
                pass  # perhaps it was rewritten meanwhile
            else:
                if tree.root == row.root:
                    return tree
        self._ops = None
        return self._heads.chain(self._record, row).tree

    def _require_values(self, row: Row, tree: Tree) -> None:
        """Raise `Corrupt` unless what a row brings can be made values of: its hashes may be right all the same."""
        _require_value(self._unpack, tree.rep)
        if row.base == row.seq:
            for node in tree.nodes.fresh.values():
                _require_parts(self._unpack, node)
        else:
            for op in self._ops or payload.read_delta(row.payload or b"", self._heads.nodes()):
                for rep in payload.reps_of(op):
                    _require_value(self._unpack, rep)


def _unpacker() -> unpacker.Unpacker:
    return unpacker.Unpacker(pins.PLAIN, lambda _: None)  # what is in other nodes is looked at there


def _require_value(unpack: unpacker.Unpacker, data: bytes) -> Any:
    unpacker.require_height(data)
    try:
        return unpack(data)
    except Invalid:  # a time zone that is not known here, or what can only be hashed with its class: no damage
        return []


def _require_parts(unpack: unpacker.Unpacker, node: Node) -> None:
    """Raise `Corrupt` unless what stands in a node can be made values of."""
    if node.kind in (LEAF, SPINE):
        data = node.data if node.kind == LEAF else read_levels(node.data)[-1]
        if type(_require_value(unpack, data)) is not list:
            raise Corrupt("a node does not hold the parts of a container", code="corrupt.chunk")


def read_below(heads: Heads, tree: Tree, good: Container[bytes], weights: dict[bytes, int] | None = None) -> set[bytes]:
    """Read and check all chunks that a tree leads to, but for those below good ones; return their digests.

    Add to `weights` how many bytes are read for each node and all below it, each as often as it is referred to.
    """
    unpack = _unpacker()
    todo = payload.refs_of(tree.rep)
    below: set[bytes] = set()
    read: dict[bytes, Node] = {}
    while todo:
        stored = [d for d in todo if d not in tree.nodes.fresh]
        chunks = heads.backend.chunks(stored)
        nodes = {d: tree.nodes.fresh.get(d) or check_chunk(d, chunks.get(d)) for d in todo}
        for digest in stored:
            _require_parts(unpack, nodes[digest])
        below.update(stored)
        if weights is not None:
            read.update(nodes)
        todo = [c for node in nodes.values() for c in node.children() if c not in good and c not in below]
    if weights is not None:
        _weigh(read, weights)
    return below


def _weigh(nodes: dict[bytes, Node], weights: dict[bytes, int]) -> None:
    """Add the weights of nodes: what is below them is among them, or was weighed before."""
    todo = list(nodes)
    while todo:
        digest = todo[-1]
        children = nodes[digest].children()
        missing = [child for child in children if child not in weights]
        if missing:
            todo += missing
            continue
        weights[digest] = len(nodes[digest].data) + sum(map(weights.__getitem__, children))
        todo.pop()


def _still_shown(heads: Heads, record: ThreadRecord, row: Row) -> bool:
    """Tell whether a row is still what it was when it was read."""
    there = heads.row(record, row.seq)
    return there is not None and not there.hidden and there.base == row.base
