"""Check whether a checkpoint can be read: its row, its state, and the values of that state.

A correct hash proves that bytes did not change, not that backtrail wrote them. So every value is also decoded, but
without the classes that a caller may have registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.engine import log, manifests, payload
from backtrail.engine.tree import decode as unpacker
from backtrail.engine.tree.nodes import LEAF, SPINE, check_chunk, read_levels, require_size
from backtrail.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader
    from backtrail.engine.tree.nodes import Node
    from backtrail.engine.tree.tree import Op, Tree


class Reading:
    """Reads the checkpoints of a thread in order. It keeps the last tree, to apply the next delta to it."""

    def __init__(self, reader: LogReader, record: ThreadRecord, weights: dict[bytes, int] | None = None) -> None:
        self._reader = reader
        self._weights = weights
        """The bytes of each node with all nodes below it, by digest; None if `Row.size` is not checked."""
        self._record = record
        self._last: tuple[int, Tree] | None = None
        self.pinned = manifests.pinned_seqs(reader, record)
        """The seqs of the rows that were pinned at the start. They must be readable even if they are hidden."""
        self._unpack = _unpacker()
        self.read = self.size = 0
        """The seq and the size in bytes of the last state that was read."""
        self._ops: list[Op] | None = None
        """The delta of the current row, if `_tree` has decoded it; else None."""

    def reason(self, row: Row, good: set[bytes]) -> str | None:
        """Return why a checkpoint cannot be read, or None; add the digests of the chunks below it to `good`.

        If the first read fails, the checkpoint is read again without caches, because a repair relies on the answer.
        """
        first = self._reason(row, good)
        if first is None:
            return None
        second = Reading(self._reader.uncached(), self._record, self._weights)
        return second._reason(row, good)

    def _reason(self, row: Row, good: set[bytes]) -> str | None:
        if not log.is_sound(row, self._record.uid):
            return "its row is damaged"
        restorable = (
            row.hidden and row.seq in self.pinned
        )  # a deleted row, which restoring an agent may make visible again
        if (row.hidden and not restorable) or row.op not in log.CHECKPOINTS:
            return None
        try:
            tree = self._tree(row)
            self._require_values(row, tree)
            below = read_below(self._reader, tree, good, self._weights)
            if self._weights is not None:
                require_size(len(tree.rep) + sum(map(self._weights.__getitem__, payload.refs_of(tree.rep))), row.size)
        except NotFound as error:
            return str(error) if restorable else None
        except Corrupt as error:
            return str(error) if restorable or _still_shown(self._reader, self._record, row) else None
        self._last = row.seq, tree
        self.read, self.size = row.seq, tree.size
        good |= below
        return None

    def _tree(self, row: Row) -> Tree:
        self._ops = None
        if self._last is not None and row.parent == self._last[0] and row.base != row.seq:
            try:
                self._ops = payload.read_delta(row.payload or b"", self._reader.nodes())
                tree = self._last[1].apply(self._ops)
            except Corrupt:
                pass  # another process may have rewritten the row
            else:
                if tree.root == row.root:
                    return tree
        self._ops = None
        return self._reader.chain(self._record, row).tree

    def _require_values(self, row: Row, tree: Tree) -> None:
        """Raise `Corrupt` if a value in a row's payload cannot be decoded."""
        _require_value(self._unpack, tree.rep)
        if row.base == row.seq:
            for node in tree.nodes.fresh.values():
                _require_parts(self._unpack, node)
        else:
            for op in self._ops or payload.read_delta(row.payload or b"", self._reader.nodes()):
                for rep in payload.reps_of(op):
                    _require_value(self._unpack, rep)


def _unpacker() -> unpacker.Unpacker:
    return unpacker.Unpacker(manifests.PLAIN, lambda _: None)  # `read_below` checks the nodes that a value refers to


def _require_value(unpack: unpacker.Unpacker, data: bytes) -> Any:
    unpacker.require_height(data)
    try:
        return unpack(data)
    except Invalid:  # not damage: an unknown time zone, or a value that needs its class to be hashable
        return []


def _require_parts(unpack: unpacker.Unpacker, node: Node) -> None:
    """Raise `Corrupt` if the content of a node cannot be decoded."""
    if node.kind in (LEAF, SPINE):
        data = node.data if node.kind == LEAF else read_levels(node.data)[-1]
        if type(_require_value(unpack, data)) is not list:
            raise Corrupt("a node does not contain a list of parts", code="corrupt.chunk")


def read_below(
    reader: LogReader, tree: Tree, good: Container[bytes], weights: dict[bytes, int] | None = None
) -> set[bytes]:
    """Read and check all chunks below a tree, except chunks in `good` and those below them; return their digests.

    `weights` gets the bytes of each node with all nodes below it. A node counts once per reference.
    """
    unpack = _unpacker()
    todo = payload.refs_of(tree.rep)
    below: set[bytes] = set()
    read: dict[bytes, Node] = {}
    while todo:
        stored = [d for d in todo if d not in tree.nodes.fresh]
        chunks = reader.backend.chunks(stored)
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


def read_below_all(reader: LogReader, trees: Iterable[Tree], good: set[bytes]) -> set[bytes]:
    """Read and check all chunks below several trees, like `read_below`, with one backend call per level."""
    unpack = _unpacker()
    todo = {digest for tree in trees for digest in _chunks_of(tree)} - good
    below: set[bytes] = set()
    while todo:
        chunks = reader.backend.chunks(list(todo))
        nodes = [check_chunk(digest, chunks.get(digest)) for digest in todo]
        for node in nodes:
            _require_parts(unpack, node)
        below |= todo
        todo = {child for node in nodes for child in node.children()} - good - below
    return below


def _chunks_of(tree: Tree) -> Iterator[bytes]:
    """Yield the digests of the chunks that a tree refers to, directly or through nodes inside its rows."""
    todo = payload.refs_of(tree.rep)
    while todo:
        digest = todo.pop()
        node = tree.nodes.fresh.get(digest)
        if node is None:
            yield digest
        else:
            todo += node.children()


def _weigh(nodes: dict[bytes, Node], weights: dict[bytes, int]) -> None:
    """Add the weights of nodes; each child is in `nodes` or already in `weights`."""
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


def is_chunk_sound(digest: bytes, stored: bytes) -> bool:
    """Tell whether the stored bytes of a chunk match its digest."""
    try:
        check_chunk(digest, stored)
    except Corrupt:
        return False
    return True


def _still_shown(reader: LogReader, record: ThreadRecord, row: Row) -> bool:
    """Tell whether a row is still visible and has the same base. If not, another process has changed it."""
    current = reader.row(record, row.seq)
    return current is not None and not current.hidden and current.base == row.base
