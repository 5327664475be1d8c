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

from itertools import islice
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
    from collections.abc import Collection, Iterable, Sequence

    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.chunked import Entry, Spine

_DIFFERING_MAX: Final = 2
"""If more leaves of a container differ, items were inserted or removed: then all of it is encoded and aligned."""


def changes(tree: Tree, value: object, types: Types, only: Collection[Any] | None = None) -> tuple[list[Op], Nodes]:
    """Return the ops that turn a tree into a state, and the tree's nodes with the nodes that the ops need.

    `only` names the keys of a dict that may differ; the values of the others are not compared.
    """
    scan = _Scan(tree, types)
    ops = scan.some(tree.rep, value, only) if only is not None and type(value) is dict else None
    return scan.value(tree.rep, value, [], ()) if ops is None else ops, scan.nodes


def below(tree: Tree, value: object, path: Path, types: Types) -> list[Op]:
    """Return the ops that replace the value at a path. The nodes that the ops need are added to the tree's nodes."""
    rep, steps = locate(tree, path, types)
    return _Scan(tree, types, tree.nodes).value(rep, value, steps, tuple(path))


class _Scan:
    def __init__(self, tree: Tree, types: Types, nodes: Nodes | None = None) -> None:
        self.nodes = tree.nodes.forked() if nodes is None else nodes
        self._types = types
        self._packer = encode.Packer(types)
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
            ops = self._sequence(spine, opened[2], path, where) if spine.code in (msgpack.LIST, msgpack.TUPLE) else None
        return self._whole(old, value, path, where) if ops is None else ops

    def some(self, old: bytes, value: dict[Any, Any], only: Collection[Any]) -> list[Op] | None:
        """Return the ops for a state of which only some keys may have changed; None if the old state is not a dict.

        A key whose value is MISSING stays unchanged.
        """
        spine = chunked.open_rep(old, self.nodes) if text.code_of(old) is None else None
        if spine is None or spine.code != msgpack.DICT:
            return None
        before = {chunked.key_of(entry): value_of(entry) for entry in chunked.entries(self.nodes, spine, 0)}
        encoder = self._encoder(())
        ops: list[Op] = []
        kept: set[bytes] = set()
        for step, part in value.items():
            key = encoder.key(step)
            kept.add(key)
            if part is MISSING:
                continue
            if key not in before:
                ops.append([SET, [key], encoder.part(step, part)])
            elif step in only:
                ops += self.value(before[key], part, [key], (step,))
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

    def _leaf(
        self, chunk: Chunk, parts: list[Any], keyed: Iterable[tuple[Any, Any]], where: tuple[Any, ...], *, mapping: bool
    ) -> list[Entry] | None:
        """Return None if a leaf holds exactly `parts`, else the entries of `keyed`, which pairs steps with values."""
        throttle.rest()
        node = self.nodes.at_hand(chunk.digest)
        flat = None if node is None or mapping else records.flat_leaf(node, self._types)
        held = None if flat is None else flat.held(parts)
        if node is not None and flat is not None and held is not None and self._is_same(node, flat.data, held):
            return None
        same = self._is_same(node, node.data, parts) if node is not None else self._is_unread_leaf(chunk, parts)
        return None if same else self._entries_unless_same(chunk, keyed, where, mapping=mapping)

    def _is_same(self, node: Node, data: bytes, values: list[Any]) -> bool:
        """Tell whether a leaf holds exactly `values`. `data` is the leaf's bytes, or the bytes of its flat form."""
        before = self._packer.extensions
        packed = self._packer.nested(values)
        if packed is None or len(packed) != len(data) + encode.MARGIN or not packed.endswith(data):
            return False
        extensions = self._packer.extensions - before
        if node.exact is not None and node.exact[0] is data and node.exact[1] == extensions:
            return True
        exact = self._packer.is_exact(data, values)
        if exact and encode.is_without_bytes(data, values):
            node.exact = data, extensions
        return exact

    def _is_unread_leaf(self, chunk: Chunk, values: list[Any]) -> bool:
        """Tell whether a leaf that is not in memory holds exactly `values`; if so, cache its bytes."""
        packed = self._packer.nested(values)
        data = b"" if packed is None else packed[encode.MARGIN :]
        same = digest_of(LEAF, data) == chunk.digest and self._packer.is_exact(data, values)
        if same:
            self.nodes.keep(chunk.digest, Node(LEAF, data))
        return same

    def _entries_unless_same(
        self, chunk: Chunk, keyed: Iterable[tuple[Any, Any]], where: tuple[Any, ...], *, mapping: bool
    ) -> list[Entry] | None:
        """Encode entries one by one and return them; None if they equal the leaf's entries, which may include REFs."""
        scratch = self.nodes.with_fresh({})
        encoder = self._encoder(where, scratch)
        if mapping:
            entries = [chunked.join(encoder.key(key), encoder.part(key, part)) for key, part in keyed]
        else:
            entries = [encoder.part(at, part) for at, part in keyed]
        data = chunked.array_of(entries, mapping=mapping)
        if digest_of(LEAF, data) == chunk.digest:
            self.nodes.keep(chunk.digest, Node(LEAF, data))
            return None
        self.nodes.fresh.update(scratch.fresh)
        return entries

    def _chunks(self, spine: Spine) -> list[Chunk]:
        if not spine.levels[2:]:
            return [chunk for level in spine.levels[1:] for chunk in level]
        return [element for element in chunked.leaves(self.nodes, spine) if type(element) is Chunk]

    # -- lists and tuples -------------------------------------------------------------------------

    def _sequence(
        self, spine: Spine, value: Sequence[Any], path: list[Step], where: tuple[Any, ...]
    ) -> list[Op] | None:
        """Return the ops for a list or tuple; None if too many leaves differ for a change in place."""
        blocks: list[diff.Block] = []
        differing = pos = 0
        for chunk in self._chunks(spine):
            end = pos + chunk.length
            if end > len(value):
                break
            items = list(value[pos:end])
            entries = self._leaf(chunk, items, enumerate(items, pos), where, mapping=False)
            if entries is not None:
                differing += 1
                if differing > _DIFFERING_MAX:
                    return None
                blocks += diff.aligned_blocks(pos, pos, chunked.children(self.nodes, 1, chunk, mapping=False), entries)
            pos = end
        rest = self._rest(spine, value, pos, where)
        if not blocks and len(rest) == 1 and not rest[0].old:  # the case of most saves: new items at the end
            return [[SPLICE, path, rest[0].at, 0, rest[0].new]]
        ops = [op for block in reversed(blocks + rest) for op in self._differ.sequence(block, path, spine.code)]
        if pos < spine.length - len(spine.levels[0]):  # the value has fewer items than the leaves
            ops.insert(0, [SPLICE, path, len(value), spine.length - len(value), []])
        return ops

    def _rest(self, spine: Spine, value: Sequence[Any], pos: int, where: tuple[Any, ...]) -> list[diff.Block]:
        """Return the differing ranges among the items from `pos` on, after the compared leaves."""
        old = spine.levels[0]
        if pos < spine.length - len(old):
            old = chunked.entries(self.nodes, spine, pos, len(value)) if pos < len(value) else []
        shared = min(len(old), len(value) - pos)
        if shared and self._packer.fast(list(value[pos : pos + shared])) == chunked.array_of(old[:shared], mapping=False):
            pos, old = pos + shared, old[shared:]
        if pos == len(value) and not old:
            return []
        encoder = self._encoder(where)
        new = [encoder.part(at, item) for at, item in enumerate(value[pos:], pos)]
        return diff.aligned_blocks(pos, pos, old, new) if old else [diff.Block(pos, pos, old, new)]

    # -- dicts and records ------------------------------------------------------------------------

    def _mapping(
        self, spine: Spine, parts: dict[Any, Any], path: list[Step], where: tuple[Any, ...]
    ) -> list[Op] | None:
        """Return the ops for a mapping; None if the order of keys changed, or if a key such as NaN may occur twice."""
        items = iter(parts.items())
        ops: list[Op] = []
        differing = 0
        for chunk in self._chunks(spine):
            keyed = list(islice(items, chunk.length))
            if len(keyed) < chunk.length:
                return None
            entries = self._leaf(chunk, [part for pair in keyed for part in pair], keyed, where, mapping=True)
            if entries is None:
                continue
            differing += 1
            old = chunked.children(self.nodes, 1, chunk, mapping=True)
            keys = [chunked.key_of(entry) for entry in old]
            if differing > _DIFFERING_MAX or keys != [chunked.key_of(entry) for entry in entries] or _twins(keys):
                return None
            for key, before, after in zip(keys, old, entries, strict=True):
                if before != after:
                    ops += self._differ.value(value_of(before), value_of(after), [*path, key])
        rest = self._open_entries(spine.levels[0], list(items), path, where)
        return None if rest is None else ops + rest

    def _open_entries(
        self, old: list[Entry], items: list[tuple[Any, Any]], path: list[Step], where: tuple[Any, ...]
    ) -> list[Op] | None:
        before = {chunked.key_of(entry): value_of(entry) for entry in old}
        after = {self._packer.fast(key) or self._encoder(where).key(key): (key, part) for key, part in items}
        if len(before) < len(old) or len(after) < len(items) or _twins(before) or _twins(after):
            return None
        kept = [key for key in before if key in after]
        if kept != list(islice(after, len(kept))):
            return None
        ops: list[Op] = [[CUT, [*path, key]] for key in before if key not in after]
        for key, (step, part) in after.items():
            if key in before:
                ops += self.value(before[key], part, [*path, key], (*where, step))
            else:
                ops.append([SET, [*path, key], self._encoder(where).part(step, part)])
        return ops


def _twins(keys: Iterable[bytes]) -> bool:
    """Tell whether one of the keys may occur twice in a dict."""
    return any(map(diff.is_twin, keys))
