"""Plain saves: finds what changed in a state by holding it against the head's tree, and says it as ops.

The items that a leaf holds are packed in one call and compared with the leaf's bytes, if those are at hand, else by
their digest: what did not change is never read. Whatever differs is encoded, and compared with what was there entry by
entry. Objects are never compared by identity, which misses what was changed in place, nor by ==, to which True is 1.

Equal bytes are equal values, but for what ormsgpack packs like something else: a bytearray like bytes, an `Ext` like
one of ours. A leaf that is known to be *plain*, without bytes and extensions, is not equal to such a thing. Of any
other leaf, the values are looked at.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import throttle
from backtrail.engine.schema import records
from backtrail.engine.tree import diff, msgpack, text
from backtrail.engine.tree import packer as packing
from backtrail.engine.tree import spine as spines
from backtrail.engine.tree.codec import Encoder
from backtrail.engine.tree.nodes import LEAF, Chunk, Node, Nodes, Rep, as_ref, digest_of
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import CUT, SET, SPLICE, Op, Step, Tree, locate, value_of
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.spine import Entry, Spine

_DIFFERING_MAX: Final = 2
"""If more leaves of a container differ, something was put in or taken out: then all of it is encoded and aligned."""


def changes(tree: Tree, value: object, types: Types, only: Collection[Any] | None = None) -> tuple[list[Op], Nodes]:
    """Return the ops that make a state from a tree, and the tree's nodes with those that the ops need.

    With `only`, the values of the other keys of a dict are taken to be what they were.
    """
    scan = _Scan(tree, types)
    found = scan.some(tree.rep, value, only) if only is not None and type(value) is dict else None
    return scan.value(tree.rep, value, [], ()) if found is None else found, scan.nodes


def below(tree: Tree, value: object, path: Path, types: Types) -> list[Op]:
    """Return the ops that make a value of what a path leads to; the tree's own nodes get those that the ops need."""
    rep, steps = locate(tree, path, types)
    return _Scan(tree, types, tree.nodes).value(rep, value, steps, tuple(path))


class _Scan:
    def __init__(self, tree: Tree, types: Types, nodes: Nodes | None = None) -> None:
        self.nodes = tree.nodes.forked() if nodes is None else nodes
        self._types = types
        self._packer = packing.Packer(types)
        self._differ = diff.Differ(tree.nodes, self.nodes)

    def value(self, old: bytes, value: object, path: list[Step], where: tuple[Any, ...]) -> list[Op]:
        """Return the ops for a value at a path; `where` is the path as users know it."""
        if type(old) is not Rep and as_ref(old) is None:
            data = self._packer.fast(value)
            return [] if data == old else self._whole(old, value, path, where)
        spine = spines.open_rep(old, self.nodes)
        opened = None if spine is None or len(path) >= diff.DEPTH_MAX else self._open(value)
        if spine is None or opened is None or opened[:2] != (spine.code, spine.attrs):
            return self._whole(old, value, path, where)
        if spine.is_mapping:
            found = self._mapping(spine, opened[2], path, where)
        else:
            found = (
                self._sequence(spine, opened[2], path, where) if spine.code in (msgpack.LIST, msgpack.TUPLE) else None
            )
        return self._whole(old, value, path, where) if found is None else found

    def some(self, old: bytes, value: dict[Any, Any], only: Collection[Any]) -> list[Op] | None:
        """Return the ops for a state of which only some keys may have changed; None if it was no dict.

        What is MISSING is left as it was, there or not.
        """
        spine = spines.open_rep(old, self.nodes) if text.code_of(old) is None else None
        if spine is None or spine.code != msgpack.DICT:
            return None
        before = {spines.key_of(entry): value_of(entry) for entry in spines.entries(self.nodes, spine, 0)}
        encoder = self._encoder(())
        found: list[Op] = []
        kept: set[bytes] = set()
        for step, part in value.items():
            key = encoder.key(step)
            kept.add(key)
            if part is MISSING:
                continue
            if key not in before:
                found.append([SET, [key], encoder.part(step, part)])
            elif step in only:
                found += self.value(before[key], part, [key], (step,))
        return [[CUT, [key]] for key in before if key not in kept] + found

    def _open(self, value: object) -> packing.Opened | None:
        try:
            return packing.open_container(value, self._types)
        except ValueError:  # encoding it will say what is wrong, and where
            return None

    def _whole(self, old: bytes, value: object, path: list[Step], where: tuple[Any, ...]) -> list[Op]:
        """Encode all of a value, and align it with what was there."""
        rep = self._encoder(where).rep(value)
        return [] if rep == old else self._differ.value(old, rep, path)

    def _encoder(self, where: Iterable[Any], nodes: Nodes | None = None) -> Encoder:
        return Encoder(nodes or self.nodes, self._types, Path(where))

    # -- leaves -----------------------------------------------------------------------------------

    def _leaf(
        self, chunk: Chunk, parts: list[Any], keyed: Iterable[tuple[Any, Any]], where: tuple[Any, ...], *, mapping: bool
    ) -> list[Entry] | None:
        """Return None if a leaf holds these parts, else their entries; `keyed` pairs the values with their steps."""
        throttle.rest()
        packer, node = self._packer, self.nodes.at_hand(chunk.digest)
        flat = None if node is None or mapping else records.flat_of(node, self._types)
        if node is not None and flat is not None and self._is_flat(node, flat, parts):
            return None
        handed = packer.handed
        data = packer.nested(parts)
        if data is not None:
            if node is not None:
                same = len(data) == len(node.data) + packing.MARGIN and data.endswith(node.data)
            else:
                node = Node(LEAF, data[packing.MARGIN :])
                same = digest_of(LEAF, node.data) == chunk.digest
            if same and node.plain and packer.is_surely_exact():
                return None
            if same:
                node.plain = handed == packer.handed and packer.is_plain(data, parts)
                if node.plain or packer.is_exact(data, parts):
                    self.nodes.keep(chunk.digest, node)
                    return None
        return self._entries_unless_same(chunk, keyed, where, mapping=mapping)

    def _is_flat(self, node: Node, flat: records.Flat, parts: list[Any]) -> bool:
        """Tell whether a leaf of records holds these parts."""
        packer, handed = self._packer, self._packer.handed
        held = flat.held(parts)
        data = None if held is None else packer.nested(held)
        if data is None or len(data) != len(flat.data) + packing.MARGIN or not data.endswith(flat.data):
            return False
        if node.plain and packer.is_surely_exact():
            return True
        node.plain = handed == packer.handed and packer.is_plain(data, held)
        return node.plain or packer.is_exact(data, held)

    def _entries_unless_same(
        self, chunk: Chunk, keyed: Iterable[tuple[Any, Any]], where: tuple[Any, ...], *, mapping: bool
    ) -> list[Entry] | None:
        """Encode entries one by one; None if they are the leaf's: some may be too long to stand in it."""
        scratch = self.nodes.with_fresh({})
        encoder = self._encoder(where, scratch)
        if mapping:
            entries = [spines.join(encoder.key(key), encoder.part(key, part)) for key, part in keyed]
        else:
            entries = [encoder.part(at, part) for at, part in keyed]
        data = spines.array(entries, mapping=mapping)
        if digest_of(LEAF, data) == chunk.digest:
            self.nodes.keep(chunk.digest, Node(LEAF, data))
            return None
        self.nodes.fresh.update(scratch.fresh)
        return entries

    def _chunks(self, spine: Spine) -> list[Chunk]:
        if not spine.levels[2:]:
            return [chunk for level in spine.levels[1:] for chunk in level]
        return [element for element in spines.leaves(self.nodes, spine) if type(element) is Chunk]

    # -- lists and tuples -------------------------------------------------------------------------

    def _sequence(
        self, spine: Spine, value: Sequence[Any], path: list[Step], where: tuple[Any, ...]
    ) -> list[Op] | None:
        """Return the ops, or None if too many leaves differ for a change in place."""
        found: list[diff.Block] = []
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
                found += diff.aligned_blocks(pos, pos, spines.children(self.nodes, 1, chunk, mapping=False), entries)
            pos = end
        rest = self._rest(spine, value, pos, where)
        if not found and len(rest) == 1 and not rest[0].old:  # what most saves are: more at the end
            return [[SPLICE, path, rest[0].at, 0, rest[0].new]]
        ops = [op for block in reversed(found + rest) for op in self._differ.sequence(block, path, spine.code)]
        if pos < spine.length - len(spine.levels[0]):  # the value ends before the last leaf does
            ops.insert(0, [SPLICE, path, len(value), spine.length - len(value), []])
        return ops

    def _rest(self, spine: Spine, value: Sequence[Any], pos: int, where: tuple[Any, ...]) -> list[diff.Block]:
        """Compare what comes behind the last leaf that the value is long enough for."""
        old = spine.levels[0]
        if pos < spine.length - len(old):
            old = spines.entries(self.nodes, spine, pos, len(value)) if pos < len(value) else []
        shared = min(len(old), len(value) - pos)
        if shared and self._packer.fast(list(value[pos : pos + shared])) == spines.array(old[:shared], mapping=False):
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
        """Return the ops, or None if keys have changed their order (or may be there twice, as NaN may)."""
        items = iter(parts.items())
        found: list[Op] = []
        differing = 0
        for chunk in self._chunks(spine):
            keyed = list(islice(items, chunk.length))
            if len(keyed) < chunk.length:
                return None
            entries = self._leaf(chunk, [part for pair in keyed for part in pair], keyed, where, mapping=True)
            if entries is None:
                continue
            differing += 1
            old = spines.children(self.nodes, 1, chunk, mapping=True)
            keys = [spines.key_of(entry) for entry in old]
            if differing > _DIFFERING_MAX or keys != [spines.key_of(entry) for entry in entries] or _twins(keys):
                return None
            for key, before, after in zip(keys, old, entries, strict=True):
                if before != after:
                    found += self._differ.value(value_of(before), value_of(after), [*path, key])
        rest = self._open_entries(spine.levels[0], list(items), path, where)
        return None if rest is None else found + rest

    def _open_entries(
        self, old: list[Entry], items: list[tuple[Any, Any]], path: list[Step], where: tuple[Any, ...]
    ) -> list[Op] | None:
        before = {spines.key_of(entry): value_of(entry) for entry in old}
        after = {self._packer.fast(key) or self._encoder(where).key(key): (key, part) for key, part in items}
        if len(before) < len(old) or len(after) < len(items) or _twins(before) or _twins(after):
            return None
        kept = [key for key in before if key in after]
        if kept != list(islice(after, len(kept))):
            return None
        found: list[Op] = [[CUT, [*path, key]] for key in before if key not in after]
        for key, (step, part) in after.items():
            if key in before:
                found += self.value(before[key], part, [*path, key], (*where, step))
            else:
                found.append([SET, [*path, key], self._encoder(where).part(step, part)])
        return found


def _twins(keys: Iterable[bytes]) -> bool:
    """Tell whether among the keys is one that may be in a dict twice."""
    return any(map(diff.is_twin, keys))
