"""The payload of a checkpoint's row: a *base*, which is a whole state, or a *delta*, ops on the state of its parent.

The size of a delta depends on the change alone. A base is written if there is no parent, if a chunk has just closed
(then the spine is at its smallest), and if the deltas since the last base have too many rows or bytes. Both are
compressed. The nodes that they refer to are chunks in the backend, except for small spines, which a base includes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.engine import throttle
from backtrail.engine.compression import squeeze, stands_beside, unsqueeze, unsqueeze_beside
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import NODE_LIMIT, SPINE, Node, Nodes, digest_of, digests_in, measured
from backtrail.engine.tree.tree import SET, SPLICE, Op, Tree, is_op
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

DEPTH_MAX: Final = 64
DELTA_MAX: Final = 16 * 1024
CHAIN_MAX: Final = 32 * 1024
INLINE_NODE: Final = 8 * 1024
"""The most bytes of a spine that a base includes."""
INLINE_TOTAL: Final = 16 * 1024
"""The most bytes of all spines that a base includes."""


Stored = tuple[bytes, dict[bytes, Node], "frozenset[bytes] | None"]
"""A payload ready to be written, the nodes that must be stored as chunks with it, and the digests of the nodes that a
base includes; None for a delta."""


def refs_of(rep: bytes) -> list[bytes]:
    """Return the digests of the nodes that a representation refers to."""
    return digests_in(rep)


def reachable(nodes: Nodes, digests: Iterable[bytes]) -> dict[bytes, Node]:
    """Return the fresh nodes that can be reached from nodes with these digests through fresh nodes."""
    found: dict[bytes, Node] = {}
    stack = list(digests)
    while stack:
        digest = stack.pop()
        node = nodes.fresh.get(digest)
        if node is not None and digest not in found:
            throttle.rest()
            found[digest] = node
            stack += node.children()
    return found


def packed(ops: list[Op]) -> bytes:
    """Return ops as the uncompressed bytes of a delta."""
    return msgpack.pack(ops, default=bytes, option=msgpack.SUBCLASSES)


def delta(ops: list[Op], data: bytes, nodes: Nodes, *, compress: bool) -> Stored:
    """Return the payload of a delta. `data` must be `packed(ops)`."""
    chunks = reachable(nodes, refs_of_ops(ops)) if msgpack.may_hold_refs(data) else {}
    return squeeze(data, enabled=compress), chunks, None


def refs_of_ops(ops: list[Op]) -> list[bytes]:
    """Return the digests of the nodes that ops refer to."""
    return [digest for op in ops for rep in reps_of(op) for digest in refs_of(rep)]


def reps_of(op: Op) -> list[bytes]:
    """Return the representations in an op. Of a mapping's entry, only the value can hold references."""
    if op[0] == SET:
        return [op[2]]
    if op[0] == SPLICE:
        return [part for entry in op[4] for part in msgpack.values_in(entry)]
    return []


def base(tree: Tree, settled: frozenset[bytes], *, compress: bool) -> Stored:
    """Return the payload of a base.

    It includes small spines, up to INLINE_TOTAL bytes. Nodes in `settled` were included in the base before and did not
    change since: they become chunks, so that the next base need not write them again. A chunk refers to chunks only,
    never to included nodes.
    """
    if not msgpack.may_hold_refs(tree.rep):
        data = msgpack.pack([bytes(tree.rep), []])
        return squeeze(data, enabled=compress), {}, frozenset()
    nodes = tree.nodes
    inlined: dict[bytes, Node] = {}
    chunks: dict[bytes, Node] = {}
    budget = INLINE_TOTAL
    queue = deque(refs_of(tree.rep))
    while queue:
        digest = queue.popleft()
        node = nodes.fresh.get(digest)
        if node is None or digest in inlined or digest in chunks:
            continue
        size = len(node.data)
        if node.kind == SPINE and size <= min(INLINE_NODE, budget) and digest not in settled:
            inlined[digest] = node
            budget -= size
            queue += node.children()
        else:
            chunks[digest] = node
    below = [child for node in chunks.values() for child in node.children()]
    chunks.update(reachable(nodes, below))
    inlined = {digest: node for digest, node in inlined.items() if digest not in chunks}
    data = msgpack.pack([bytes(tree.rep), [[node.kind, node.data] for node in inlined.values()]])
    return squeeze(data, enabled=compress), chunks, frozenset(inlined)


def plain(payload: bytes, nodes: Nodes | None) -> bytes:
    """Return a payload, decompressed. `nodes` reads the chunks that codec 3 needs; without nodes codec 3 is refused."""
    digests = stands_beside(payload) if nodes else ()
    if nodes is None or not digests:
        return unsqueeze(payload, limit=NODE_LIMIT)
    found = nodes.load(digests)
    return unsqueeze_beside(payload, [found[digest].data for digest in digests], limit=NODE_LIMIT)


def read_base(payload: bytes, nodes: Nodes) -> tuple[Tree, frozenset[bytes]]:
    """Return the tree of a base, and the digests of the nodes that it includes; `Corrupt` if it is damaged."""
    data = plain(payload, nodes)
    try:
        rep, listed = ormsgpack.unpackb(data)
        kinds: list[tuple[bytes, bytes]] = [(kind, data) for kind, data in listed]
    except (ValueError, TypeError) as error:
        raise Corrupt("its row is damaged", code="corrupt.row") from error
    if not isinstance(rep, bytes) or not rep or not all(type(part) is bytes for pair in kinds for part in pair):
        raise Corrupt("its row is damaged", code="corrupt.row")
    inlined = {digest_of(kind, data): Node(kind, data) for kind, data in kinds}
    nodes.fresh.update(inlined)
    return Tree(measured(rep), nodes), frozenset(inlined)


def read_delta(payload: bytes, nodes: Nodes | None = None) -> list[Op]:
    """Return the ops of a delta; `Corrupt` if it is damaged."""
    data = plain(payload, nodes)
    try:
        ops: Any = ormsgpack.unpackb(data)
    except (ValueError, TypeError) as error:
        raise Corrupt("its row is damaged", code="corrupt.row") from error
    if not isinstance(ops, list) or not all(map(is_op, ops)):
        raise Corrupt("its row is damaged", code="corrupt.row")
    return ops
