"""The difference between two states: as ops that turn one into the other, and as differences for people to read.

Both walk the two trees together and stop where representations are equal, because equal bytes are equal values.
Containers are aligned by chunks first, then by entries where chunks differ. So unchanged chunks are never read, and
an insertion is reported as an insertion.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from difflib import SequenceMatcher
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine.tree import chunked, msgpack, text
from backtrail.engine.tree.nodes import Chunk, Nodes, size_of
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import CUT, PATCH, SET, SPLICE, Op, Step, Tree, value_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from backtrail.engine.tree.chunked import Entry, Spine

_PATCH_FROM: Final = 48
"""Shorter texts are replaced as a whole."""
_ALIGN_MAX: Final = 2_000_000
"""How many steps the alignment of repeated elements may take; the rest is replaced as a whole."""
_ALIGN_ROUNDS: Final = 4
DEPTH_MAX: Final = 64
"""At deeper paths, a different value is replaced as a whole."""
_TWIN: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|NaN|(?:[\xd4-\xd8]|\xc7.|\xc8..|\xc9....)\x05", re.DOTALL)
"""Keys that may occur twice in a dict: NaN differs from NaN, and so do instances whose class compares by identity."""


class Block(NamedTuple):
    """A range where two containers differ: `old` is at `at` in the old one, `new` is at `to` in the new one."""

    at: int
    to: int
    old: list[Entry]
    new: list[Entry]


def blocks(old: Spine, new: Spine, old_nodes: Nodes, new_nodes: Nodes) -> list[Block]:
    """Align two containers and return the ranges where they differ, in order."""
    before, after = chunked.leaves(old_nodes, old), chunked.leaves(new_nodes, new)
    result: list[Block] = []
    at = to = 0
    for same, left, right in aligned(before, after):
        if same:
            at += sum(map(_count, left))
            to += sum(map(_count, right))
            continue
        old_entries = _opened(old_nodes, left, mapping=old.is_mapping)
        new_entries = _opened(new_nodes, right, mapping=new.is_mapping)
        result += aligned_blocks(at, to, old_entries, new_entries)
        at += len(old_entries)
        to += len(new_entries)
    return result


def aligned_blocks(at: int, to: int, old: Sequence[Entry], new: Sequence[Entry]) -> list[Block]:
    """Align entries at `at` in the old container with entries at `to` in the new one; return the differing ranges."""
    result: list[Block] = []
    for equal, some, others in aligned(old, new):
        if not equal:
            result.append(Block(at, to, list(some), list(others)))
        at += len(some)
        to += len(others)
    return result


def _count(element: Any) -> int:
    return element.length if type(element) is Chunk else 1


def _opened(nodes: Nodes, elements: Sequence[Any], *, mapping: bool) -> list[Entry]:
    nodes.load(element.digest for element in elements if type(element) is Chunk)
    listed: list[Entry] = []
    for element in elements:
        listed += chunked.children(nodes, 1, element, mapping=mapping) if type(element) is Chunk else [element]
    return listed


def aligned(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[bool, Sequence[Any], Sequence[Any]]]:
    """Yield two sequences in stretches: whether the stretch is equal, its part of `old`, its part of `new`."""
    i = k = 0
    for at, to, length in sorted(_runs(old, new)):
        if at > i or to > k:
            yield False, old[i:at], new[k:to]
        i, k = at + length, to + length
        yield True, old[at:i], new[to:k]
    if i < len(old) or k < len(new):
        yield False, old[i:], new[k:]


def _runs(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Return the equal stretches of two sequences, as (position in old, position in new, length), in O(n log n).

    The common start and end come first. Between them, elements that occur exactly once in both sequences are anchors,
    as many as are in the same order. The parts between anchors are aligned in the same way. A part without anchors is
    aligned by difflib, while that is quick.
    """
    runs: list[tuple[int, int, int]] = []
    steps = _ALIGN_MAX
    todo = [(0, len(old), 0, len(new), 0)]
    while todo:
        i, j, k, n, rounds = todo.pop()
        start, stop = i, j
        while i < j and k < n and old[i] == new[k]:
            i, k = i + 1, k + 1
        while i < j and k < n and old[j - 1] == new[n - 1]:
            j, n = j - 1, n - 1
        runs += [(start, k - i + start, i - start)] if i > start else []
        runs += [(j, n, stop - j)] if stop > j else []
        if i == j or k == n:
            continue
        left, right = old[i:j], new[k:n]
        anchors = _anchors(left, right) if rounds < _ALIGN_ROUNDS else []
        if anchors:
            runs += [(i + a, k + b, 1) for a, b in anchors]
            edges = [(-1, -1), *anchors, (j - i, n - k)]
            todo += [(i + a + 1, i + c, k + b + 1, k + d, rounds + 1) for (a, b), (c, d) in pairwise(edges)]
            continue
        times = Counter(right)
        cost = sum(times[element] for element in left) * min(len(left), len(right))
        if 0 < cost <= steps:
            steps -= cost
            matches = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
            runs += [(i + a, k + b, length) for a, b, length in matches if length]
    return runs


def _anchors(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the positions (old, new) of the anchors: elements that occur exactly once in both sequences.

    If the sequences have them in different orders, return the most that are in the same order.
    """
    ours, theirs = Counter(old), Counter(new)
    where = {element: to for to, element in enumerate(new) if theirs[element] == 1}
    pairs = [(at, where[element]) for at, element in enumerate(old) if ours[element] == 1 and element in where]
    ends: list[int] = []  # the lowest `to` that ends an ordered list of each length, and whose pair it is
    whose: list[int] = []
    before: list[int] = []
    for pair, (_, to) in enumerate(pairs):
        length = bisect_left(ends, to)
        before.append(whose[length - 1] if length else -1)
        ends[length : length + 1] = [to]
        whose[length : length + 1] = [pair]
    chain: list[tuple[int, int]] = []
    pair = whose[-1] if whose else -1
    while pair >= 0:
        chain.append(pairs[pair])
        pair = before[pair]
    return chain[::-1]


# -- ops ----------------------------------------------------------------------------------------------


def between(old: bytes, new: bytes, nodes: Nodes, path: list[Step]) -> list[Op]:
    """Return ops that replace `old`, at `path`, by `new`; `nodes` has the nodes of both."""
    return [] if old == new else Differ(nodes, nodes).value(old, new, path)


def is_twin(key: bytes) -> bool:
    """Tell whether an encoded key may occur twice in a dict, as NaN may. It cannot be an op's step."""
    return not msgpack.is_plain_key(key) and _TWIN.search(key) is not None


class Differ:
    """Finds the ops that turn values of one tree into values of another."""

    def __init__(self, old: Nodes, new: Nodes) -> None:
        self._old = old
        self._new = new

    def inside(self, old: bytes, new: bytes, path: list[Step]) -> list[Op] | None:
        """Return ops for two different values of one kind; None if the value must be replaced."""
        if len(path) > DEPTH_MAX:
            return None
        code = text.code_of(new)
        if code is not None:
            return self._text(old, new, path) if text.code_of(old) == code else None
        before, after = chunked.open_rep(old, self._old), chunked.open_rep(new, self._new)
        if before is None or after is None or (before.code, before.attrs) != (after.code, after.attrs):
            return None
        differing = blocks(before, after, self._old, self._new)
        if after.is_mapping:
            return self._mapping(differing, path)
        # from the right, so that positions to the left stay valid
        return [op for block in reversed(differing) for op in self.sequence(block, path, after.code)]

    def value(self, old: bytes, new: bytes, path: list[Step]) -> list[Op]:
        """Return ops for two different values; one op that replaces the value, if that is shorter."""
        replace: Op = [SET, path, new]
        ops = self.inside(old, new, path)
        if ops is None or _weight(ops) > _weight([replace]):
            return [replace]
        return ops

    def _text(self, old: bytes, new: bytes, path: list[Step]) -> list[Op] | None:
        if size_of(new) < _PATCH_FROM:
            return None
        _, before = text.open_rep(self._old, old)
        _, after = text.open_rep(self._new, new)
        start = common_prefix(before, after)
        end = common_prefix(before[start:][::-1], after[start:][::-1])
        return [[PATCH, path, start, len(before) - start - end, after[start : len(after) - end]]]

    def sequence(self, block: Block, path: list[Step], code: int) -> list[Op]:
        """Return ops for a range of a sequence, from the right, so that positions to the left stay valid."""
        paired = min(len(block.old), len(block.new)) if code in (msgpack.LIST, msgpack.TUPLE) else 0
        ops: list[Op] = []
        if len(block.old) > paired or len(block.new) > paired:
            ops.append([SPLICE, path, block.at + paired, len(block.old) - paired, list(block.new[paired:])])
        for i in range(paired):
            ops += self.value(block.old[i], block.new[i], [*path, block.at + i])
        whole: Op = [SPLICE, path, block.at, len(block.old), list(block.new)]
        return ops if _weight(ops) <= _weight([whole]) else [whole]

    def _mapping(self, differing: list[Block], path: list[Step]) -> list[Op]:
        """Return ops: first removals, from the right; last insertions, from the left. So no key ever occurs twice."""
        removed: list[Op] = []
        changed: list[Op] = []
        inserted: list[Op] = []
        for block in differing:
            at = to = 0
            old_keys = [chunked.key_of(entry) for entry in block.old]
            new_keys = [chunked.key_of(entry) for entry in block.new]
            for same, some, others in aligned(old_keys, new_keys):
                olds, news = block.old[at : at + len(some)], block.new[to : to + len(others)]
                if same and not any(map(is_twin, some)):
                    for key, old, new in zip(some, olds, news, strict=True):
                        if old != new:
                            changed += self.value(value_of(old), value_of(new), [*path, key])
                elif olds != news:
                    removed += [[SPLICE, path, block.at + at, len(olds), []]] if olds else []
                    inserted += [[SPLICE, path, block.to + to, 0, news]] if news else []
                at, to = at + len(some), to + len(others)
        return [*reversed(removed), *changed, *inserted]


def _weight(ops: list[Op]) -> int:
    """Estimate the bytes of ops, with the nodes that they refer to, which are usually new."""
    total = 0
    for op in ops:
        total += 12 + sum(len(step) if isinstance(step, bytes) else 3 for step in op[1])
        if op[0] == SPLICE:
            total += sum(map(size_of, op[4])) + 2 * len(op[4])
        elif op[0] != CUT:
            total += size_of(op[-1])
    return total


def common_prefix(a: bytes, b: bytes) -> int:
    """Return how many bytes two strings have in common at the start."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        mid = (low + high + 1) // 2
        if a[low:mid] == b[low:mid]:
            low = mid
        else:
            high = mid - 1
    return low


def _kind(spine: Spine) -> tuple[int, str | None]:
    """Return the kind of a container; for a record, its schema belongs to the kind, its version does not."""
    return spine.code, spine.attrs[0] if spine.attrs else None


# -- changes ------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """One difference for people to read: the values at `path` in the old and in the new state, or None."""

    path: Path
    old: bytes | None
    new: bytes | None
    reordered: tuple[list[bytes], list[bytes]] | None = None
    """The encoded keys of a dict in their old and in their new order, if the order of shared keys has changed."""


def differences(old: Tree, new: Tree, decode_key: Any) -> Iterator[Difference]:
    """Yield the differences between two states, in the order of the new one; `decode_key` decodes keys."""
    yield from _Comparison(old.nodes, new.nodes, decode_key).value(old.rep, new.rep, Path())


class _Comparison:
    def __init__(self, old: Nodes, new: Nodes, decode_key: Any) -> None:
        self._old = old
        self._new = new
        self._decode_key = decode_key

    def value(self, old: bytes, new: bytes, path: Path) -> Iterator[Difference]:
        if old == new:
            return
        before = None if text.code_of(old) is not None else chunked.open_rep(old, self._old)
        after = None if text.code_of(new) is not None else chunked.open_rep(new, self._new)
        if before is None or after is None or _kind(before) != _kind(after) or len(path) > DEPTH_MAX:
            yield Difference(path, old, new)
            return
        differing = blocks(before, after, self._old, self._new)
        if after.is_mapping:
            yield from self._mapping(differing, path)
            if _moved(differing):
                yield Difference(path, None, None, (self._keys(self._old, before), self._keys(self._new, after)))
        elif after.code in (msgpack.SET, msgpack.FROZENSET):
            yield from self._set(differing, path)
        else:
            for block in differing:
                yield from self._sequence(block, path)

    def _sequence(self, block: Block, path: Path) -> Iterator[Difference]:
        paired = min(len(block.old), len(block.new))
        for i in range(paired):
            yield from self.value(block.old[i], block.new[i], path.child(block.to + i))
        for i, entry in enumerate(block.new[paired:], paired):
            yield Difference(path.child(block.to + i), None, entry)
        for i, entry in enumerate(block.old[paired:], paired):
            yield Difference(path.child(block.at + i), entry, None)

    def _set(self, differing: list[Block], path: Path) -> Iterator[Difference]:
        for block in differing:
            for entry in block.old:
                yield Difference(path, entry, None)
            for entry in block.new:
                yield Difference(path, None, entry)

    def _mapping(self, differing: list[Block], path: Path) -> Iterator[Difference]:
        old = {chunked.key_of(entry): value_of(entry) for block in differing for entry in block.old}
        new = {chunked.key_of(entry): value_of(entry) for block in differing for entry in block.new}
        for key, rep in new.items():
            step: Hashable = self._decode_key(key)
            if key in old:
                yield from self.value(old[key], rep, path.child(step))
            else:
                yield Difference(path.child(step), None, rep)
        for key, rep in old.items():
            if key not in new:
                yield Difference(path.child(self._decode_key(key)), rep, None)

    @staticmethod
    def _keys(nodes: Nodes, spine: Spine) -> list[bytes]:
        return [chunked.key_of(entry) for entry in chunked.entries(nodes, spine)]


def _moved(differing: list[Block]) -> bool:
    """Tell whether the keys that two mappings share have another order."""
    old = [(chunked.key_of(entry), at) for at, block in enumerate(differing) for entry in block.old]
    new = [(chunked.key_of(entry), at) for at, block in enumerate(differing) for entry in block.new]
    shared = {key for key, _ in old} & {key for key, _ in new}
    return [pair for pair in old if pair[0] in shared] != [pair for pair in new if pair[0] in shared]
