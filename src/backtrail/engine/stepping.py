"""What a step did: the marked nodes of a draft, compared with their marks, as ops on the state that it began with.

Only marked nodes are looked at, from the top down. Parts are compared by identity: whatever is another object than it
was counts as replaced, so that 1 -> True and 0.0 -> -0.0 are changes; whether the bytes differ is for `diff` to say.

Ops are made in the order in which they apply: in a list from the right, so that positions further left stay what they
are; in a mapping removals first and insertions last, so that a key that moves is never there twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import diff
from backtrail.engine import spine as spines
from backtrail.engine.changes import OPS_MAX
from backtrail.engine.codec import Encoder
from backtrail.engine.marks import Hidden, Instance, Node, Touched
from backtrail.engine.paths import Path
from backtrail.engine.tracked import Top, TrackedDict, TrackedList
from backtrail.engine.tree import SPLICE, Op, Step, Tree, position, value_of
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from backtrail.engine.nodes import Nodes
    from backtrail.engine.schema import Types

_PAIRS: Final = 4
"""A stretch of a list that is replaced by one this long is compared item by item."""
_FEW: Final = 64
"""Up to so many parts that differ are looked up one by one; more are aligned as a whole."""
_DEEP: Final = 48
"""A change this many levels down is left to the comparison of whole states."""


_Same = Callable[[list[Any], list[Any]], bool]


class Edit(NamedTuple):
    """What happened to the parts of one node."""

    node: Node
    gone: list[Any]
    """Parts that no longer stand where they stood."""
    put: list[Any]
    """The indexes or keys of parts that were put in."""
    changed: list[tuple[Any, Any]]
    """Indexes or keys, and parts that are not nodes and have changed in place."""


class _Stretch(NamedTuple):
    same: bool
    at: int
    old: int
    to: int
    new: int


class _Parts(NamedTuple):
    old: list[Any]
    new: list[Any]
    keys: list[Any]
    places: dict[int, Touched]
    order: list[int]
    """The places, in order."""


class Walk:
    """Looks at what is marked. `whole` says that the ops are not to be used: encode the whole state instead."""

    def __init__(self, types: Types, nodes: Nodes, tree: Tree | None) -> None:
        self.ops: list[Op] = []
        self.edits: list[Edit] = []
        self.whole = tree is None
        self.seen: set[int] = set()
        """The ids of the nodes that were compared."""
        self._types = types
        self._nodes = nodes
        self._tree = tree

    def run(self, top: Top) -> Walk:
        """Look at a draft."""
        if top._mark_ is not None:
            self.seen.add(id(top))
            for touched in top._touched.values():
                self._part(top, touched, 0, [], Path())
        return self

    def _part(self, holder: Node, touched: Touched, at: Any, steps: list[Step], path: Path) -> None:
        node = touched.node
        if node is None:
            rep = self._rep(touched.value, path)
            if rep != touched.shot:
                self.edits.append(Edit(holder, [], [], [(at, touched.value)]))
                self._put(steps, rep)
            return
        self.seen.add(id(node))
        if len(steps) > _DEEP:
            self.whole = True
        if type(node) is TrackedList:
            self._list(node, steps, path)
        elif type(node) is TrackedDict:
            self.whole |= node._has_odd_keys()
            self._mapping(node, node._shot(), steps, path)
        elif isinstance(node, Instance):
            self._mapping(node, self._fields(node, path), steps, path)

    # -- lists

    def _list(self, node: TrackedList, steps: list[Step], path: Path) -> None:
        old, new = node._mark_, node
        same = _are_same if node._mixed else node._scope.same
        stretches = _stretches(old, new, same)
        places = _places({**node._touched, **_glanced(node)}, old)
        below = sorted(places)
        for stretch in reversed(stretches):
            if not stretch.same:
                self._replaced(stretch, new, steps, path)
                continue
            while below and below[-1] >= stretch.at:
                at = below.pop()
                if at < stretch.at + stretch.old:
                    to = stretch.to + at - stretch.at
                    self._part(node, places[at], to, [*steps, at], path.child(to))
        differing = [stretch for stretch in stretches if not stretch.same]
        if differing:
            gone = [part for s in differing for part in old[s.at : s.at + s.old]]
            put = [at for s in differing for at in range(s.to, s.to + s.new)]
            self.edits.append(Edit(node, gone, put, []))

    def _replaced(self, stretch: _Stretch, node: TrackedList, steps: list[Step], path: Path) -> None:
        if self.whole:
            return
        _, at, old, to, count = stretch
        new = _cut(node, to, to + count)
        paired = min(old, count) if min(old, count) <= _PAIRS else 0
        if old > paired or count > paired:
            reps = [self._rep(new[i], path.child(to + i)) for i in range(paired, count)]
            self._add([SPLICE, steps, at + paired, old - paired, reps])
        for i in range(paired):
            self._put([*steps, at + i], self._rep(new[i], path.child(to + i)))

    # -- dicts and records

    def _fields(self, node: Instance, path: Path) -> tuple[list[Any], list[Any]]:
        try:
            names, values = node._shot()
        except Invalid:
            self._rep(node.obj, path)  # says where it is
            raise
        old = dict(zip(*node._mark_, strict=True)).get("")
        if "" in names and old is not None and old.shot == values[names.index("")].shot:
            values[names.index("")] = old
        return names, values

    def _mapping(self, node: Node, now: tuple[list[Any], list[Any]], steps: list[Step], path: Path) -> None:
        (old_keys, old), (keys, new) = node._mark_, now
        if len(keys) == len(old_keys) and _are_same(old_keys, keys):
            stretches = [_same(0, len(keys), 0)]
        else:
            stretches = _aligned(list(map(_token, old_keys)), list(map(_token, keys)))
        places = _places(node._touched, old, old_keys)
        order = sorted(places)
        edit = Edit(node, [], [], [])
        inserted: list[Op] = []
        for _, at, count, to, added in reversed([s for s in stretches if not s.same]):
            edit.gone.extend(old[at : at + count])
            edit.put.extend(keys[to : to + added])
            if count and not self.whole:
                self._add([SPLICE, steps, at, count, []])
            if added and not self.whole:
                entries = [self._entry(keys[i], new[i], path) for i in range(to, to + added)]
                inserted.insert(0, [SPLICE, steps, to, 0, entries])
        for stretch in stretches:
            if stretch.same:
                self._kept(stretch, _Parts(old, new, keys, places, order), edit, steps, path)
        for op in inserted:
            self._add(op)
        if edit.gone or edit.put:
            self.edits.append(edit)

    def _kept(
        self,
        stretch: _Stretch,
        parts: _Parts,
        edit: Edit,
        steps: list[Step],
        path: Path,
    ) -> None:
        """Look at the values of keys that stayed in order."""
        old, new, keys, places, order = parts
        _, at, count, to, _ = stretch
        if _are_same(old[at : at + count], new[to : to + count]):
            wanted = order[bisect_left(order, at) : bisect_left(order, at + count)]
        else:
            wanted = [i for i in range(at, at + count) if i in places or old[i] is not new[to + i - at]]
        for i in wanted:
            key, value = keys[to + i - at], new[to + i - at]
            step = self._key(key, path)
            if step is not None and diff.is_twin(step):
                self.whole, step = True, None
            below = [] if step is None else [*steps, step]
            if old[i] is value:
                self._part(edit.node, places[i], key, below, path.child(key))
                continue
            edit.gone.append(old[i])
            edit.put.append(key)
            if not self.whole:
                self._put(below, self._rep(value, path.child(key)))

    def _entry(self, key: Any, value: Any, path: Path) -> bytes:
        return spines.join(self._key(key, path) or b"", self._rep(value, path.child(key)))

    # -- ops

    def _key(self, key: Any, path: Path) -> bytes | None:
        return None if self.whole else Encoder(self._nodes, self._types, path).key(key)

    def _rep(self, value: Any, path: Path) -> bytes:
        plain = value.value if type(value) is Hidden else value
        return Encoder(self._nodes, self._types, path).rep(plain)

    def _put(self, steps: list[Step], rep: bytes) -> None:
        if self.whole or self._tree is None:
            return
        for op in diff.between(self._at(self._tree, steps), rep, self._nodes, steps):
            self._add(op)

    def _add(self, op: Op) -> None:
        self.ops.append(op)
        self.whole |= len(self.ops) > OPS_MAX

    def _at(self, tree: Tree, steps: list[Step]) -> bytes:
        """Return what the state that the step began with has at these steps."""
        rep = tree.rep
        for step in steps:
            spine = spines.open_rep(rep, self._nodes)
            pos = None if spine is None else position(self._nodes, spine, step)
            if spine is None or pos is None:
                raise Corrupt("a draft is not what its checkpoint is", code="corrupt.row")
            (entry,) = spines.entries(self._nodes, spine, pos, pos + 1)
            rep = value_of(entry) if spine.is_mapping else entry
        return rep


def _same(at: int, count: int, to: int) -> _Stretch:
    return _Stretch(same=True, at=at, old=count, to=to, new=count)


def _token(key: Any) -> Any:
    """Return what two keys have in common if they are the same: equal strings are, 1 and True are not."""
    return key if type(key) is str else id(key)


def _are_same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(map(is_, list.__iter__(ours), list.__iter__(theirs)))


def _cut(parts: list[Any], start: int, stop: int) -> list[Any]:
    """Return a part of a list, without telling it if it is a node."""
    return list.__getitem__(parts, slice(start, stop))


def _glanced(node: TrackedList) -> dict[int, Touched]:
    """Return the records in a list that changed and were not handed out by it."""
    if node._glance is None:
        return {}
    found: dict[int, Touched] = {}
    for group in node._glance.groups:
        for at in group.differing():
            record = group.records[at]
            if id(record) in node._touched:
                continue
            found[id(record)] = Touched(record, None, None, None)
            instance = node._kin.get(id(record)) if node._kin else None
            if instance is not None and instance._mark_ is None:  # so that what was put into it is told apart
                instance._mark_, instance._touched = (group.sight.names, group.held(at)), {}
                node._scope.marked.append(instance)
    return found


def _places(touched: dict[int, Touched], old: list[Any], keys: list[Any] | None = None) -> dict[int, Touched]:
    """Return where touched parts stood. Those that did not stand here are not the node's own."""
    found: dict[int, Touched] = {}
    lost: list[Touched] = []
    for each in touched.values():
        at = each.hint
        if keys is not None:  # looking a few up is quicker than listing all
            at = keys.index(at) if type(at) is str and len(touched) <= _PAIRS and at in keys else None
        if type(at) is int and at < len(old) and old[at] is each.value:
            found[at] = each
        else:
            lost.append(each)
    if lost:
        where = {id(part): at for at, part in enumerate(old)}
        found.update({where[id(each.value)]: each for each in lost if id(each.value) in where})
    return found


def _stretches(old: list[Any], new: list[Any], same: _Same) -> list[_Stretch]:
    """Cut two lists into stretches that are the same or not."""
    start = _prefix(old, new, same)
    if start == len(old) == len(new):
        return [_same(0, start, 0)]
    left, right = _cut(old, start, len(old)), _cut(new, start, len(new))
    end = _prefix(left[::-1], right[::-1], same)
    i, k = len(left) - end, len(right) - end
    found = [_same(0, start, 0)] if start else []
    if i == 0 or k == 0:
        found.append(_Stretch(same=False, at=start, old=i, to=start, new=k))
    else:
        left, right = left[:i], right[:k]
        middle = _few(left, right, same) or _aligned(list(map(id, left)), list(map(id, right)))
        found += [s._replace(at=s.at + start, to=s.to + start) for s in middle]
    return [*found, _same(start + i, end, start + k)] if end else found


def _few(old: list[Any], new: list[Any], same: _Same) -> list[_Stretch]:
    """Cut two lists into stretches if few parts differ, as when one is taken out and another appended; else into none.

    Where they differ, go on at the nearest part that both have: its place in the other list is looked up.
    """
    there = {id(part): at for at, part in enumerate(old)}
    here = {id(part): to for to, part in enumerate(new)}
    at = to = differing = 0
    found: list[_Stretch] = []
    while at < len(old) or to < len(new):
        start, begin = at, to
        while at < len(old) and to < len(new) and old[at] is not new[to]:
            skipped, added = there.get(id(new[to]), -1) - at, here.get(id(old[at]), -1) - to
            if skipped < 0 and added < 0:
                at, to = at + 1, to + 1
            elif added < 0 or 0 <= skipped <= added:
                at += skipped
            else:
                to += added
            if differing + at - start + to - begin > _FEW:
                return []
        if at == len(old) or to == len(new):
            at, to = len(old), len(new)
        differing += at - start + to - begin
        if differing > _FEW:
            return []
        if at > start or to > begin:
            found.append(_Stretch(same=False, at=start, old=at - start, to=begin, new=to - begin))
        count = _prefix(_cut(old, at, len(old)), _cut(new, to, len(new)), same)
        if count:
            found.append(_same(at, count, to))
            at, to = at + count, to + count
    return found


def _aligned(old: list[Any], new: list[Any]) -> list[_Stretch]:
    at = to = 0
    found: list[_Stretch] = []
    for same, some, others in diff.aligned(old, new):
        found.append(_Stretch(same, at, len(some), to, len(others)))
        at, to = at + len(some), to + len(others)
    return found


def _prefix(old: list[Any], new: list[Any], same: _Same) -> int:
    """Return how many parts two lists have in common at the start: by halves, each compared at once."""
    low, high = 0, min(len(old), len(new))
    ours = old if len(old) == high else _cut(old, 0, high)
    if same(ours, new if len(new) == high else _cut(new, 0, high)):
        return high
    while high - low > 1:
        mid = (low + high) // 2
        if same(_cut(old, low, mid), _cut(new, low, mid)):
            low = mid
        else:
            high = mid
    return low
