"""What changed between two states: as ops that make one from the other, and as changes that people read.

Both walk the two trees together and go no deeper than where representations are equal: equal bytes are equal
values. Containers are aligned chunk by chunk first, then entry by entry where chunks differ, so what an
unchanged chunk holds is never read, and an insertion is an insertion.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import spine as spines
from backtrail.engine import texts, wire
from backtrail.engine.nodes import Chunk, Nodes
from backtrail.engine.paths import Path
from backtrail.engine.tree import CUT, PATCH, SET, SPLICE, Op, Step, Tree, value_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from backtrail.engine.spine import Entry, Spine

_PATCH_FROM: Final = 48
"""Shorter texts are replaced whole."""
_ALIGN_MAX: Final = 500_000
"""Stretches whose entries have more equal pairs than this are replaced whole: aligning them would take too long."""


class Block(NamedTuple):
    """A stretch where two containers differ: `old` stands at `at` in the old one, `new` at `to` in the new one."""

    at: int
    to: int
    old: list[Entry]
    new: list[Entry]


def blocks(old: Spine, new: Spine, old_nodes: Nodes, new_nodes: Nodes) -> list[Block]:
    """Align two containers and return where they differ, in order."""
    before, after = spines.leaves(old_nodes, old), spines.leaves(new_nodes, new)
    found: list[Block] = []
    at = to = 0
    for same, left, right in _aligned(before, after):
        if same:
            at += sum(map(_count, left))
            to += sum(map(_count, right))
            continue
        old_entries = _opened(old_nodes, left, mapping=old.is_mapping)
        new_entries = _opened(new_nodes, right, mapping=new.is_mapping)
        for equal, some, others in _aligned(old_entries, new_entries):
            if not equal:
                found.append(Block(at, to, list(some), list(others)))
            at += len(some)
            to += len(others)
    return found


def _count(element: Any) -> int:
    return element.length if type(element) is Chunk else 1


def _opened(nodes: Nodes, elements: Sequence[Any], *, mapping: bool) -> list[Entry]:
    nodes.load(element.digest for element in elements if type(element) is Chunk)
    listed: list[Entry] = []
    for element in elements:
        listed += spines.children(nodes, 1, element, mapping=mapping) if type(element) is Chunk else [element]
    return listed


def _aligned(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[bool, Sequence[Any], Sequence[Any]]]:
    """Cut two sequences into stretches that are equal or not."""
    start, shorter = 0, min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if start:
        yield True, old[:start], new[:start]
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    if left and right and _pairs(left, right) <= _ALIGN_MAX:
        for tag, i, j, k, n in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            yield tag == "equal", left[i:j], right[k:n]
    elif left or right:
        yield False, left, right
    if end:
        yield True, old[len(old) - end :], new[len(new) - end :]


def _pairs(old: Sequence[Any], new: Sequence[Any]) -> int:
    """Count the pairs of equal elements: what aligning them costs."""
    times = Counter(new)
    return sum(times[element] for element in old)


# -- ops ----------------------------------------------------------------------------------------------


def ops(old: Tree, new: Tree) -> list[Op] | None:
    """Return ops that turn `old` into `new`, or None if the root itself is to be replaced."""
    if old.rep == new.rep:
        return []
    return _Differ(old.nodes, new.nodes).inside(old.rep, new.rep, [])


class _Differ:
    def __init__(self, old: Nodes, new: Nodes) -> None:
        self._old = old
        self._new = new

    def inside(self, old: bytes, new: bytes, path: list[Step]) -> list[Op] | None:
        """Return ops for two different values of one kind; None if it takes a replacement."""
        code = texts.code_of(new)
        if code is not None:
            return self._text(old, new, path) if texts.code_of(old) == code else None
        before, after = spines.open_rep(old, self._old), spines.open_rep(new, self._new)
        if before is None or after is None or (before.code, before.attrs) != (after.code, after.attrs):
            return None
        differing = blocks(before, after, self._old, self._new)
        if after.is_mapping:
            return self._mapping(differing, path)
        # from the right, so that positions further left stay what they are
        return [op for block in reversed(differing) for op in self._sequence(block, path, after.code)]

    def _value(self, old: bytes, new: bytes, path: list[Step]) -> list[Op]:
        replace: Op = [SET, path, new]
        found = self.inside(old, new, path)
        if found is None or _weight(found) > _weight([replace]):
            return [replace]
        return found

    def _text(self, old: bytes, new: bytes, path: list[Step]) -> list[Op] | None:
        if len(new) < _PATCH_FROM:
            return None
        _, before = texts.open_rep(self._old, old)
        _, after = texts.open_rep(self._new, new)
        start = common_prefix(before, after)
        end = common_prefix(before[start:][::-1], after[start:][::-1])
        return [[PATCH, path, start, len(before) - start - end, after[start : len(after) - end]]]

    def _sequence(self, block: Block, path: list[Step], code: int) -> list[Op]:
        paired = min(len(block.old), len(block.new)) if code in (wire.LIST, wire.TUPLE) else 0
        found: list[Op] = []
        if len(block.old) > paired or len(block.new) > paired:
            found.append([SPLICE, path, block.at + paired, len(block.old) - paired, list(block.new[paired:])])
        for i in range(paired):
            found += self._value(block.old[i], block.new[i], [*path, block.at + i])
        whole: Op = [SPLICE, path, block.at, len(block.old), list(block.new)]
        return found if _weight(found) <= _weight([whole]) else [whole]

    def _mapping(self, differing: list[Block], path: list[Step]) -> list[Op]:
        """Removals come first, from the right, insertions last, from the left: so a key that moves is never there twice."""
        removed: list[Op] = []
        changed: list[Op] = []
        inserted: list[Op] = []
        for block in differing:
            old_keys = [spines.key_of(entry) for entry in block.old]
            new_keys = [spines.key_of(entry) for entry in block.new]
            for tag, i, j, k, n in SequenceMatcher(None, old_keys, new_keys, autojunk=False).get_opcodes():
                if tag == "equal":
                    for old, new in zip(block.old[i:j], block.new[k:n], strict=True):
                        if old != new:
                            changed += self._value(value_of(old), value_of(new), [*path, spines.key_of(old)])
                    continue
                if j > i:
                    removed.append([SPLICE, path, block.at + i, j - i, []])
                if n > k:
                    inserted.append([SPLICE, path, block.to + k, 0, list(block.new[k:n])])
        return [*reversed(removed), *changed, *inserted]


def _weight(found: list[Op]) -> int:
    """Estimate how many bytes ops take."""
    total = 0
    for op in found:
        total += 12 + sum(len(step) if isinstance(step, bytes) else 3 for step in op[1])
        if op[0] == SPLICE:
            total += sum(map(len, op[4])) + 2 * len(op[4])
        elif op[0] != CUT:
            total += len(op[-1])
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
    """Return what kind of container it is; a record is of its schema's kind, whatever the version."""
    return spine.code, spine.attrs[0] if spine.attrs else None


# -- changes ------------------------------------------------------------------------------------------


class Edit(NamedTuple):
    """One difference as people see it: what is at `path` in the old state (or None) and in the new one (or None)."""

    path: Path
    old: bytes | None
    new: bytes | None
    reordered: tuple[list[bytes], list[bytes]] | None = None
    """The keys of a dict, encoded, whose order is all that changed."""


def edits(old: Tree, new: Tree, decode_key: Any) -> Iterator[Edit]:
    """Give the differences between two states, in the order of the new one; `decode_key` makes keys readable."""
    yield from _Reader(old.nodes, new.nodes, decode_key).value(old.rep, new.rep, Path())


class _Reader:
    def __init__(self, old: Nodes, new: Nodes, decode_key: Any) -> None:
        self._old = old
        self._new = new
        self._decode_key = decode_key

    def value(self, old: bytes, new: bytes, path: Path) -> Iterator[Edit]:
        if old == new:
            return
        before = None if texts.code_of(old) is not None else spines.open_rep(old, self._old)
        after = None if texts.code_of(new) is not None else spines.open_rep(new, self._new)
        if before is None or after is None or _kind(before) != _kind(after):
            yield Edit(path, old, new)
            return
        found = blocks(before, after, self._old, self._new)
        if after.is_mapping:
            yield from self._mapping(found, path)
        elif after.code in (wire.SET, wire.FROZENSET):
            yield from self._set(found, path)
        else:
            for block in found:
                yield from self._sequence(block, path)

    def _sequence(self, block: Block, path: Path) -> Iterator[Edit]:
        paired = min(len(block.old), len(block.new))
        for i in range(paired):
            yield from self.value(block.old[i], block.new[i], path.child(block.to + i))
        for i, entry in enumerate(block.new[paired:], paired):
            yield Edit(path.child(block.to + i), None, entry)
        for i, entry in enumerate(block.old[paired:], paired):
            yield Edit(path.child(block.at + i), entry, None)

    def _set(self, found: list[Block], path: Path) -> Iterator[Edit]:
        for block in found:
            for entry in block.old:
                yield Edit(path, entry, None)
            for entry in block.new:
                yield Edit(path, None, entry)

    def _mapping(self, found: list[Block], path: Path) -> Iterator[Edit]:
        old = {spines.key_of(entry): value_of(entry) for block in found for entry in block.old}
        new = {spines.key_of(entry): value_of(entry) for block in found for entry in block.new}
        for key, rep in new.items():
            step: Hashable = self._decode_key(key)
            if key in old:
                yield from self.value(old[key], rep, path.child(step))
            else:
                yield Edit(path.child(step), None, rep)
        for key, rep in old.items():
            if key not in new:
                yield Edit(path.child(self._decode_key(key)), rep, None)
        before = [key for key in old if key in new]
        after = [key for key in new if key in old]
        if before != after:
            yield Edit(path, None, None, (before, after))
