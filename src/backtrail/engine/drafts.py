"""Drafts: a state to be changed in place, step after step, at a cost that goes by what changed.

A draft stands on one checkpoint. Its state is made of nodes (`tracked`), once; a step hands it out, finds what changed
(`stepping`), and when that was written, what was put in becomes part of the state (`owning`) and the draft stands on
the new checkpoint. If anything goes wrong, the draft is dropped, and the state is loaded anew.

References that the user keeps are live again in the next step. What they still hold stays marked, because they may
change it without a hook; such a change while no step is open is refused when the next one begins.
"""

from __future__ import annotations

import functools
import sys
from operator import is_
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize, getweakrefcount, ref

from backtrail.engine import changes
from backtrail.engine.codec import encode
from backtrail.engine.glances import Looker
from backtrail.engine.marks import STILL, Instance, Node, Scope, is_still
from backtrail.engine.owning import Owner, fields_of, inner_of, lent_of, parts_of
from backtrail.engine.schema import CUSTOM, Record
from backtrail.engine.stepping import Walk
from backtrail.engine.tracked import Top, TrackedDict, TrackedList
from backtrail.engine.writes import Proposal
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.heads import Standing
    from backtrail.engine.nodes import Nodes
    from backtrail.engine.schema import Types
    from backtrail.engine.tree import Tree
    from backtrail.engine.trying import Expect

KEPT_MAX: Final = 256 * 1024 * 1024
"""The logical size of a state above which its draft is not kept from one step to the next."""


class Draft:
    """A state that is changed in place."""

    def __init__(self, value: Any, tree: Tree, types: Types, scratch: Callable[[], Nodes], head: Expect) -> None:
        self.head = head
        self._types = types
        self._scratch = scratch
        self._walk: Walk | None = None
        self._scope = Scope(
            functools.partial(lent_of, types, scratch), functools.partial(fields_of, types, scratch), Looker(types).look
        )
        finalize(self, self._scope.let_go).atexit = False
        self._top = Top._make(self._scope, None)
        self._scope.top = ref(self._top)
        owner = Owner(self._scope, types, scratch, fresh=True)
        list.append(self._top, value)
        owner.put(self._top, 0, value, known=True)
        self._shared = owner.shared
        """Whether a change of one part may be one of another, too: then a step saves it all."""
        # A state saved by older code, or as another type, is not what it would be saved as: a step saves it all.
        self._exact = not owner.exotic or encode(self._state, scratch(), types).root == tree.root

    @property
    def _state(self) -> Any:
        return list.__getitem__(self._top, 0)

    def enter(self) -> Any:
        """Begin a step: return the state."""
        if Walk(self._types, self._scratch(), None).run(self._top).edits:
            raise Invalid(
                "the state was changed while no step was open, through a reference that was kept from an earlier step; "
                "that change is dropped. Change it inside `with thread.step() as state:`, or change a copy",
                code="invalid.draft",
            )
        for node in self._scope.marked:
            if isinstance(node, TrackedList) and node._glance is not None:
                node._glance.wake(node._mark_)
        self._scope.open = True
        return self._top[0]

    def propose(self, standing: Standing | None) -> Proposal:
        """Return what the step made of the state that it began with."""
        if standing is None or standing.chain is None:
            raise AssertionError("a draft stands on a checkpoint")
        tree = standing.chain.tree
        tree = tree._replace(nodes=tree.nodes.forked())
        self._walk = None
        if self._scope.broken:
            return changes.Replace(self._state, self._scratch(), self._types)(standing)
        self._walk = walk = Walk(self._types, tree.nodes, tree).run(self._top)
        if walk.whole or self._shared or not self._exact:
            return changes.Replace(self._state, self._scratch(), self._types)(standing)
        return Proposal(tree.apply(walk.ops), walk.ops)

    def close(self) -> None:
        """End the step."""
        self._scope.open = False

    def drop(self) -> None:
        """Let go of the state: what others still hold of it can be read, not changed."""
        self.close()
        self._scope.dropped = True
        self._scope.let_go()

    # -- after it was written

    def settle(self, head: Expect) -> None:
        """Stand on the checkpoint that was just written."""
        if self._scope.broken:
            raise AssertionError("marking was interrupted: this draft is not to be kept")
        placed: list[tuple[Node, Any]] = []
        if self._walk is not None:
            placed = self._take_in(self._walk)
            self._walk = None
        self.head, self._exact = head, True
        self._rest(placed)

    def _take_in(self, walk: Walk) -> list[tuple[Node, Any]]:
        owner = Owner(self._scope, self._types, self._scratch)
        self._free(owner, walk)
        for edit in walk.edits:
            put = [(at, _part(edit.node, at)) for at in edit.put]
            for at, part in put:
                owner.put(edit.node, at, part)
            for _, part in edit.changed:
                owner.renew(edit.node, part)
        self._untangle(owner)
        self._shared |= owner.shared
        for node in self._scope.marked:
            if not node._attached():
                node._up = None  # it is the caller's own, whatever becomes of what it stood in
        return owner.placed

    def _free(self, owner: Owner, walk: Walk) -> None:
        for edit in walk.edits:
            for part in edit.gone:
                owner.free(part, edit.node)
        for node in self._scope.marked:
            if id(node) not in walk.seen:  # taken out, or in something that was
                for part in _gone(node):
                    owner.free(part, node)

    def _untangle(self, owner: Owner) -> None:
        """Copy what was put into parts that are not nodes."""
        lent = [(node, t) for node in self._scope.marked for t in node._touched.values() if t.node is None]
        known = {id(part) for _, t in lent for part in t.inmates}
        standing = _Standing()
        parts = {id(part): (node, part) for node, part in owner.placed}
        parts.update((id(t.value), (node, t.value)) for node, t in lent if standing.here(node, t.value))
        seen = set(parts)
        for node, part in parts.values():
            owner.untangle(node, part, known, seen)

    def _rest(self, placed: list[tuple[Node, Any]]) -> None:
        """Take off all marks, but for what somebody else still holds."""
        marked, self._scope.marked = self._scope.marked, []
        lent: list[Any] = []
        holders: list[ref[Any]] = []  # weakly, for nodes are counted, too
        for node in marked:
            for touched in node._touched.values():
                if touched.node is None:
                    lent.append(touched.value)
                    holders.append(ref(node))
            if isinstance(node, TrackedList) and node._glance is not None:
                self._look_again(node)
            node._mark_, node._touched = None, {}
        while placed:
            holder, part = placed.pop()
            if not (holder._kin and id(part) in holder._kin):
                holders.append(ref(holder))
                lent.append(part)
        holder = part = None  # type: ignore[assignment]
        node = touched = None  # type: ignore[assignment]
        held = [node for node, count in zip(marked, _counts(marked), strict=True) if count > _AT_REST]
        records = [node.obj for node in marked if isinstance(node, Instance)]
        counts = dict(zip(map(id, records), _counts(records), strict=True))
        del records
        held += [
            node
            for node in marked
            if isinstance(node, Instance) and (counts[id(node.obj)] > _AT_REST + 1 or _is_held_inside(node.obj))
        ]
        kept = [
            (holder(), part)
            for holder, part, count in zip(holders, lent, _counts(lent), strict=True)
            if count > _AT_REST or self._is_deep(part) or _is_held_inside(part)
        ]
        del lent
        held += [node for node in marked if type(node) is TrackedDict and node._has_odd_keys()]
        held += [node for node in marked if isinstance(node, TrackedList) and node._others and _is_seen(node)]
        for node in held:
            if node._attached():
                node._mark()
        self._lend_again(kept)

    def _look_again(self, node: TrackedList) -> None:
        """Have a list know what the records in it hold now, and let go of them."""
        before = node._glance
        unmoved = len(node._mark_) == len(node) and all(map(is_, node._mark_, list.__iter__(node)))
        if not unmoved or not all(group.same for group in before.groups):
            node._glance = self._scope.look(list.copy(node), before)
            before.rest()
        node._glance = node._glance.rest()

    def _lend_again(self, kept: list[tuple[Node | None, Any]]) -> None:
        standing = _Standing()
        for holder, part in kept:
            if holder is not None and standing.here(holder, part):
                holder._lend_other(part, None)

    def _is_deep(self, part: Any) -> bool:
        """Tell whether somebody may hold a part of this part, and not the part itself."""
        if type(part) is bytearray:
            return False
        if type(part) not in (set, frozenset, tuple):
            record = self._types.dump(part)
            if type(record) is not Record or record.form == CUSTOM:
                return True
        names, parts = inner_of(part, self._types)
        return not all(map(is_still, parts_of(part, self._types) if names is None else parts))


class _Standing:
    """Tells what stands where."""

    def __init__(self) -> None:
        self._contents: dict[int, set[int]] = {}

    def here(self, holder: Node, part: Any) -> bool:
        """Tell whether a part stands in a node of the state."""
        if id(holder) not in self._contents:
            self._contents[id(holder)] = set(map(id, _parts(holder))) if holder._attached() else set()
        return id(part) in self._contents[id(holder)]


def _parts(node: Any) -> list[Any]:
    if isinstance(node, TrackedList):
        return list.copy(node)
    return node._shot()[1]  # type: ignore[no-any-return]


def _gone(node: Any) -> list[Any]:
    """Return the parts that stood in a marked node and do not now."""
    there = set(map(id, _parts(node)))
    return [
        part for part in (node._mark_ if isinstance(node, TrackedList) else node._mark_[1]) if id(part) not in there
    ]


def _part(node: Any, at: Any) -> Any:
    if isinstance(node, TrackedList):
        return list.__getitem__(node, at)
    if isinstance(node, TrackedDict):
        return dict.__getitem__(node, at)
    return node._scope.fields(node.obj).get(at)


_INSIDES: Final = ("__dict__", "__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__")


def _is_held_inside(part: Any) -> bool:
    """Tell whether somebody holds a part weakly, or what its attributes are in."""
    return getweakrefcount(part) > 0 or max((_inside(part, name) for name in _INSIDES), default=0) > _INSIDE


def _inside(part: Any, name: str) -> int:
    try:
        inside = object.__getattribute__(part, name)
    except AttributeError:
        return 0
    return 0 if inside is None else sys.getrefcount(inside)


def _is_seen(node: TrackedList) -> bool:
    """Tell whether somebody else holds a record that stands in a list."""
    counts, kin = list(map(sys.getrefcount, list.__iter__(node))), node._kin or {}
    groups = [] if node._glance is None else node._glance.groups
    if len(kin) == len(counts) or (not kin and len(groups) == 1 and groups[0].places is None):
        return max(counts, default=0) > _IN_PLACE + bool(kin)  # all are of one kind, which is quicker
    return any(
        count > _IN_PLACE + (id(part) in kin)
        for part, count in zip(list.__iter__(node), counts, strict=True)
        if type(part) not in STILL and not isinstance(part, Node)
    )


def _counts(parts: list[Any]) -> list[int]:
    """Return how often each part is referred to; a part that stands in one place and in this list, `_AT_REST`."""
    return [sys.getrefcount(part) for part in parts]


def _at_rest() -> int:
    place = [bytearray()]
    return _counts([place[0]])[0]


_AT_REST: Final = _at_rest()


def _in_place() -> int:
    place = [bytearray()]
    return max(map(sys.getrefcount, place))


_IN_PLACE: Final = _in_place()
"""How often something that stands in one place is referred to, when `map` looks at it there."""


class _Sample:
    """Has attributes."""


_INSIDE: Final = _inside(_Sample(), "__dict__")
"""How often what the attributes of an object are in is referred to."""
