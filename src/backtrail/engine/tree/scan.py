"""Plain saves: compares a state with the head's tree and returns the changes as ops.

The items of a leaf are packed in one call. The result is compared with the leaf's bytes if those are in memory, else
its digest with the leaf's digest, so an unchanged leaf is never read. Items of a changed leaf are encoded and compared
entry by entry. Objects are not compared by identity, which misses changes in place, nor by ==, for which True is 1.

Equal bytes are equal values, except where ormsgpack packs two types alike: a bytearray like bytes, and its own `Ext`
and `Fragment` like the values whose bytes they carry. So the first comparison of a leaf also checks the types. Later
ones skip that check if the leaf holds no bytes and the packer made as many extensions as in the first one. A `Fragment`
with the bytes of a stored value then counts as that value: nothing is written.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import throttle
from backtrail.engine.schema import records
from backtrail.engine.tree import chunked, diff, encode, msgpack, text
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.nodes import LEAF, Chunk, Node, Nodes, Rep, as_ref, digest_of
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import CUT, SET, SPLICE, Op, Step, Tree, locate, value_of
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.chunked import Entry, Spine

_DIFFERING_MAX: Final = 2
"""If more leaves of a container differ, items were inserted or removed: then all of it is encoded and aligned."""


_PACKED_MAX: Final = 2 * chunked.LEAF_MAX
"""A leaf whose values have more bytes holds REFs to some of them, so its values are not packed in one call."""
_STRETCH: Final = 8
"""Up to this many entries of a mapping are compared one by one."""


def changes(tree: Tree, value: object, types: Types, only: Collection[Any] | None = None) -> tuple[list[Op], Nodes]:
    """Return the ops that turn a tree into a state, and the tree's nodes with the nodes that the ops need.

    `only` names the keys of a dict that may differ; the values of the others are not compared.
    """
    scan = _Scan(tree, types)
    ops = scan.some(tree.rep, value, only) if only is not None and type(value) is dict else None
    return scan.value(tree.rep, value, [], ()) if ops is None else ops, scan.nodes


def below(tree: Tree, value: object, path: Path, types: Types, nodes: Nodes) -> list[Op]:
    """Return the ops that replace the value at a path. `nodes` are the tree's, and get those that the ops need."""
    rep, steps = locate(tree, path, types)
    return _Scan(tree, types, nodes).value(rep, value, steps, tuple(path))


class _Scan:
    def __init__(self, tree: Tree, types: Types, nodes: Nodes | None = None) -> None:
        self.nodes = tree.nodes.forked() if nodes is None else nodes
        self._types = types
        self._packer = encode.Packer(types)
        self._records = records.record_cache(types)
        self._differ = diff.Differ(tree.nodes, self.nodes)

    def value(self, old: bytes, value: object, path: list[Step], where: tuple[Any, ...]) -> list[Op]:
        """Return the ops for a value at a path; `where` is the path in the user's steps."""
        if type(old) is not Rep and as_ref(old) is None:
            data = self._packer.fast(value)
            return [] if data == old else self._whole(old, value, path, where)
        spine = chunked.open_rep(old, self.nodes)
        opened = None if spine is None or len(path) >= diff.DEPTH_MAX else self._open(value)
        if spine is None or opened is None or opened[:2] != (spine.code, spine.attrs):
            return self._whole(old, value, path, where)
        if spine.is_mapping:
            ops = self._mapping(spine, opened[2], path, where)
        else:
            items = opened[2] if spine.code == msgpack.LIST else list(opened[2])
            ops = self._sequence(spine, items, path, where) if spine.code in (msgpack.LIST, msgpack.TUPLE) else None
        return self._whole(old, value, path, where) if ops is None else ops

    def some(self, old: bytes, value: dict[Any, Any], only: Collection[Any]) -> list[Op] | None:
        """Return the ops for a state of which only some keys may have changed; None if the old state is not a dict.

        A key whose value is MISSING stays unchanged.
        """
        spine = chunked.open_rep(old, self.nodes) if text.code_of(old) is None else None
        if spine is None or spine.code != msgpack.DICT:
            return None
        entries = chunked.entries(self.nodes, spine) if spine.levels[1:] else spine.levels[0]
        before = dict(zip(chunked.keys_of(entries), entries, strict=True))
        ops: list[Op] = []
        kept: set[bytes] = set()
        for step, part in value.items():
            key = self._key(step, ())
            kept.add(key)
            if part is MISSING:
                continue
            if key not in before:
                ops.append([SET, [key], self._packer.inline(part) or self._encoder(()).part(step, part)])
            elif step in only:
                ops += self.value(value_of(before[key]), part, [key], (step,))
        return [[CUT, [key]] for key in before if key not in kept] + ops

    def _open(self, value: object) -> encode.Opened | None:
        try:
            return encode.open_container(value, self._types)
        except ValueError:  # the encoder will raise `Invalid` with the path
            return None

    def _whole(self, old: bytes, value: object, path: list[Step], where: tuple[Any, ...]) -> list[Op]:
        """Encode the whole value, and compare it with the old one."""
        rep = self._encoder(where).rep(value)
        return [] if rep == old else self._differ.value(old, rep, path)

    def _encoder(self, where: Iterable[Any], nodes: Nodes | None = None) -> Encoder:
        return Encoder(nodes or self.nodes, self._types, Path(where))

    # -- leaves -----------------------------------------------------------------------------------

    def _is_unchanged(self, chunk: Chunk, code: int, parts: list[Any], pos: int, where: tuple[Any, ...]) -> bool:
        """Tell whether a leaf at `pos` holds exactly `parts`: items, or pairs of key and value.

        False also if its entries must be compared one by one.
        """
        throttle.rest()
        mapping = code in msgpack.MAPPINGS
        values = list(chain.from_iterable(parts)) if mapping else parts
        node = self.nodes.at_hand(chunk.digest)
        if node is None:
            return self._is_unread_leaf(chunk, values, partial(self._leaf, code, parts, pos, where))
        if chunk.size > _PACKED_MAX or node.kind != LEAF:  # a node of another kind is damage, which a read reports
            return False
        if not mapping and (node.exact is None or node.exact[0] is not node.data):
            flat = records.flat_leaf(node, self._types, self._records)
            fields = None if flat is None else flat.held(values)
            if flat is not None and fields is not None and self._is_same(node, flat.data, fields):
                return True
        return self._is_same(node, node.data, values)

    def _is_same(self, node: Node, data: bytes, values: list[Any]) -> bool:
        """Tell whether a leaf holds exactly `values`. `data` is the leaf's bytes, or the bytes of its flat form."""
        before = self._packer.extensions
        if self._packer.alone(values) != data:
            return False
        extensions = self._packer.extensions - before
        if node.exact is not None and node.exact[0] is data and node.exact[1] == extensions:
            return True
        exact = self._packer.is_exact(data, values)
        if exact and encode.is_without_bytes(data, values):
            node.exact = data, extensions
        return exact

    def _is_unread_leaf(self, chunk: Chunk, values: list[Any], encode_leaf: Callable[[], bytes]) -> bool:
        """Tell whether a leaf that is not in memory holds exactly `values`; if so, cache its bytes."""
        data = (chunk.size <= _PACKED_MAX and self._packer.alone(values)) or b""
        same = digest_of(LEAF, data) == chunk.digest and self._packer.is_exact(data, values)
        if not same:  # its entries may hold REFs
            data = encode_leaf()
            same = digest_of(LEAF, data) == chunk.digest
        if same:
            self.nodes.keep(chunk.digest, Node(LEAF, data))
        return same

    def _leaf(self, code: int, parts: list[Any], pos: int, where: tuple[Any, ...]) -> bytes:
        mapping = code in msgpack.MAPPINGS
        encoder = self._encoder(where, self.nodes.with_fresh({}))
        return chunked.array_of(encoder.entries(code, dict(parts) if mapping else parts, pos), mapping=mapping)

    # -- lists and tuples -------------------------------------------------------------------------

    def _sequence(self, spine: Spine, value: list[Any], path: list[Step], where: tuple[Any, ...]) -> list[Op] | None:
        """Return the ops for a list or tuple; None if too many leaves differ for a change in place."""
        blocks: list[diff.Block] = []
        differing = pos = 0
        for chunk in chunked.leaf_chunks(self.nodes, spine):
            end = pos + chunk.length
            if end > len(value):
                break
            items = value[pos:end]
            if not self._is_unchanged(chunk, spine.code, items, pos, where):
                more = self._blocks(chunked.children(self.nodes, 1, chunk, mapping=False), items, pos, where)
                differing += bool(more)
                if differing > _DIFFERING_MAX:
                    return None
                blocks += more
            pos = end
        rest = self._rest(spine, value, pos, where)
        if not blocks and len(rest) == 1 and not rest[0].old:  # the case of most saves: new items at the end
            return [[SPLICE, path, rest[0].at, 0, rest[0].new]]
        ops = [op for block in reversed(blocks + rest) for op in self._differ.sequence(block, path, spine.code)]
        if pos < spine.length - len(spine.levels[0]):  # the value has fewer items than the leaves
            ops.insert(0, [SPLICE, path, len(value), spine.length - len(value), []])
        return ops

    def _rest(self, spine: Spine, value: list[Any], pos: int, where: tuple[Any, ...]) -> list[diff.Block]:
        """Return the differing ranges among the items from `pos` on, after the compared leaves."""
        old = spine.levels[0]
        if pos < spine.length - len(old):
            old = chunked.entries(self.nodes, spine, pos, len(value)) if pos < len(value) else []
        shared = min(len(old), len(value) - pos)
        if shared and self._are_open(spine, old, value[pos : pos + shared]):
            pos, old = pos + shared, old[shared:]
        return self._blocks(old, value[pos:], pos, where)

    def _are_open(self, spine: Spine, old: list[Entry], values: list[Any]) -> bool:
        """Tell whether `values` are the first of the entries `old`, which are usually the spine's open entries."""
        whole = old is spine.levels[0] and len(values) == len(old)
        flat = records.flat_entries(spine, self._types) if whole else None
        fields = None if flat is None else flat.held(values)
        if flat is not None and fields is not None and self._packer.alone(fields) == flat.data:
            return self._packer.is_exact(flat.data, fields)
        return self._packer.fast(values) == chunked.array_of(old[: len(values)], mapping=False)

    def _blocks(self, old: list[Entry], items: list[Any], pos: int, where: tuple[Any, ...]) -> list[diff.Block]:
        """Return the ranges where items from position `pos` on differ from the old entries."""
        scratch = self.nodes.with_fresh({})
        encoder = self._encoder(where, scratch)
        new = [encoder.part(pos, items[0])] if len(items) == 1 else encoder.entries(msgpack.LIST, items, pos)
        if new == old:
            return []
        self.nodes.fresh.update(scratch.fresh)
        return diff.aligned_blocks(pos, pos, old, new) if old else [diff.Block(pos, pos, old, new)]

    # -- dicts and records ------------------------------------------------------------------------

    def _mapping(
        self, spine: Spine, parts: dict[Any, Any], path: list[Step], where: tuple[Any, ...]
    ) -> list[Op] | None:
        """Return the ops for a mapping; None if the order of keys changed, or if a key such as NaN may occur twice."""
        items = list(parts.items())
        ops: list[Op] = []
        pos = 0
        for chunk in chunked.leaf_chunks(self.nodes, spine):
            some = items[pos : pos + chunk.length]
            if len(some) == chunk.length and self._is_unchanged(chunk, spine.code, some, pos, where):
                pos += chunk.length
                continue
            run = self._run(chunked.children(self.nodes, 1, chunk, mapping=True), some, path, where)
            if run is None:
                return None
            ops += run[0]
            pos += run[1]
        run = self._run(spine.levels[0], items[pos:], path, where)
        if run is None:
            return None
        ops += run[0]
        pos += run[1]
        if pos < len(items):
            new = self._encoder(where).entries(msgpack.DICT, dict(items[pos:]))
            ops.append([SPLICE, path, pos, 0, new])
        return ops

    def _run(
        self, old: list[Entry], items: list[tuple[Any, Any]], path: list[Step], where: tuple[Any, ...]
    ) -> tuple[list[Op], int] | None:
        """Return the ops for a run of entries, and how many of the items belong to it; None as for `_mapping`."""
        ops: list[Op] = []
        length = len(old)
        pairs = self._differing(old, items, where)
        if pairs is None:
            before = dict(zip(chunked.keys_of(old), old, strict=True))
            after = {self._key(step, where): (step, part) for step, part in items}
            kept = [key for key in before if key in after]
            removed = [key for key in before if key not in after]
            unique = len(before) == len(old) and len(after) == len(items) and not any(map(diff.is_twin, removed))
            if not unique or kept != list(islice(after, len(kept))):
                return None
            ops += [[CUT, [*path, key]] for key in removed]
            pairs, length = [(key, before[key], *after[key]) for key in kept], len(kept)
        for key, entry, step, part in pairs:
            more = self.value(value_of(entry), part, [*path, key], (*where, step))
            if more and diff.is_twin(key):
                return None
            ops += more
        return ops, length

    def _differing(
        self, old: list[Entry], items: list[tuple[Any, Any]], where: tuple[Any, ...]
    ) -> list[tuple[bytes, Entry, Any, Any]] | None:
        """Return the entries that may differ from their items, as (key, entry, step, part); None if a key differs."""
        if len(items) < len(old):
            return None
        pairs: list[tuple[bytes, Entry, Any, Any]] = []
        for at in self._positions(old, items):
            step, part = items[at]
            key = self._key(step, where)
            if not old[at].startswith(key):
                return None
            pairs.append((key, old[at], step, part))
        return pairs

    def _positions(self, old: list[Entry], items: list[tuple[Any, Any]]) -> Iterable[int]:
        """Return the positions of entries that may differ from their items.

        A stretch of entries is packed in one call and compared. The first byte that differs is in the first entry that
        does; what comes after that entry is divided.
        """
        if len(old) <= _STRETCH:
            return range(len(old))
        positions: list[int] = []

        def divide(at: int, stop: int, *, checked: bool) -> None:
            if stop - at <= _STRETCH:
                positions.extend(range(at, stop))
                return
            few, entries = items[at:stop], old[at:stop]
            data = chunked.array_of(entries, mapping=True)
            packed = self._packer.alone(list(chain.from_iterable(few))) or b""
            if not (checked or self._packer.are_exact(entries, few)):
                positions.extend(range(at, stop))
            elif packed != data:
                if packed:
                    _, bounds = chunked.bounds_of(entries, mapping=True)
                    at += bisect_right(bounds, _common(packed, data)) - 1
                    positions.append(at)
                    at += 1
                divide(at, (at + stop) // 2, checked=True)
                divide((at + stop) // 2, stop, checked=True)

        # Long values are compared part by part.
        refs = [at for at, entry in enumerate(old) if type(entry) is Rep] if Rep in set(map(type, old)) else []
        for before, at in pairwise([-1, *refs, len(old)]):
            divide(before + 1, at, checked=False)
            positions.append(at)
        positions.pop()
        return positions

    def _key(self, step: Any, where: tuple[Any, ...]) -> bytes:
        return self._packer.fast(step) or self._encoder(where).key(step)


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes two values have in common at their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
