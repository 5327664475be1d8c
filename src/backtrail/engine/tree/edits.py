"""The changes that users name: each becomes ops on the state as it stands.

A *proposal* is made anew for every attempt, because a change such as an append says what it adds, not what the
result is.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, Self

from backtrail.engine.tree import msgpack, packer, scan, text
from backtrail.engine.tree import spine as spines
from backtrail.engine.tree.codec import MAX_NESTED, Encoder, encode
from backtrail.engine.tree.tree import CUT, PATCH, SET, SPLICE, Op, Step, Tree, find_step, grown, locate, missing
from backtrail.engine.writer import Proposal
from backtrail.errors import Invalid, NotFound
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from backtrail.engine.reader import Standing
    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.path import Path

OPS_MAX: Final = 256
"""More ops than this take longer to apply, now and at every load, than a base takes to write."""


class Replace:
    """Make this the state, whatever was there. What did not change is found by a scan, and not written again.

    If it is said which keys of a dict may have `changed`, the others are not scanned.
    """

    def __init__(self, state: Any, nodes: Nodes, types: Types, changed: Collection[Any] | None = None) -> None:
        self._state = state
        self._nodes = nodes
        self._types = types
        self._changed = changed

    def __call__(self, standing: Standing | None) -> Proposal:
        """Return the state as a change of the head's, unless that would take more than writing it anew."""
        if standing is not None and standing.chain is not None:
            before = standing.chain.tree
            ops, nodes = scan.changes(before, self._state, self._types, self._changed)
            few = len(ops) <= OPS_MAX
            if few or (
                self._changed is not None and any(each is MISSING for each in self._state.values())
            ):  # what is left as it was
                return Proposal(Tree(before.rep, nodes).apply(ops), ops if few else None)
        return Proposal(encode(self._state, self._nodes.with_fresh({}), self._types), None)


class _Edit:
    """A change at a path."""

    def __init__(self, path: Path, types: Types, name: str) -> None:
        self._path = path
        self._types = types
        self._name = name

    def __call__(self, standing: Standing | None) -> Proposal:
        if standing is None or standing.chain is None:
            raise NotFound(f"there is no thread {self._name!r}; save a first state", code="not_found.thread")
        rep, nodes, _ = standing.chain.tree
        tree = Tree(rep, nodes.forked())
        ops = self.ops(tree)
        return Proposal(tree.apply(ops, own=True), ops)

    @property
    def path(self) -> Path:
        """Where the change is."""
        return self._path

    def below(self, *steps: Any) -> Self:
        """Return the same change of a state that stands at these steps of another one."""
        moved = copy.copy(self)
        moved._path = type(self._path)((*steps, *self._path))  # noqa: SLF001 - a copy of this very one
        return moved

    def ops(self, tree: Tree) -> list[Op]:
        """Return what the change is, given the state."""
        raise NotImplementedError

    def _encoder(self, tree: Tree, path: Path) -> Encoder:
        return Encoder(tree.nodes, self._types, path)

    def _invalid(self, why: str) -> Invalid:
        where = str(self._path) or "the state"
        return Invalid(f"{where} {why}", code="invalid.path", path=str(self._path))

    def _parent(self, tree: Tree) -> tuple[spines.Spine, list[Step], tuple[Step, int] | None]:
        """Return the container that the path's last step is in, the way there, and what the step leads to."""
        above = type(self._path)(self._path[:-1])
        rep, steps = locate(tree, above, self._types)
        spine = spines.open_rep(rep, tree.nodes)
        if spine is None or spine.code in (msgpack.SET, msgpack.FROZENSET):
            raise NotFound(missing(self._path, len(above), spine), code="not_found.path", path=str(self._path))
        return spine, steps, find_step(tree.nodes, spine, self._path[-1], self._types)


class Append(_Edit):
    """Add items at the end of a list, or text at the end of a str."""

    def __init__(self, path: Path, items: tuple[Any, ...], types: Types, name: str) -> None:
        super().__init__(path, types, name)
        self._items = items

    def __call__(self, standing: Standing | None) -> Proposal:
        """Return what is to be written."""
        chain = standing.chain if standing is not None else None
        quick = self._quickly(chain.tree) if chain is not None and len(self._items) == len(self._path) == 1 else None
        return super().__call__(standing) if quick is None else quick

    def _quickly(self, tree: Tree) -> Proposal | None:
        """Do the common case with fewer steps; None if this is another."""
        step = self._path[0]
        key = packer.atom(step, self._types) if type(step) is str else None
        if key is None:
            return None
        nodes = tree.nodes.forked()
        encoder = Encoder(nodes, self._types, self._path)
        found = grown(nodes, tree.rep, key, lambda at: encoder.part(at, self._items[0]))
        if found is None:
            return None
        rep, at, item = found
        return Proposal(Tree(rep, nodes), [[SPLICE, [key], at, 0, [item]]])

    def ops(self, tree: Tree) -> list[Op]:
        """Return what is added, as ops."""
        rep, steps = locate(tree, self._path, self._types)
        if text.code_of(rep) in (msgpack.STR, msgpack.TEXT):
            return self._text(rep, steps)
        spine = spines.open_rep(rep, tree.nodes)
        if spine is None or spine.code != msgpack.LIST:
            raise self._invalid("is neither a list nor a str, so nothing can be appended to it; use set()")
        encoder = self._encoder(tree, self._path)
        reps = [encoder.part(at, item) for at, item in enumerate(self._items, spine.length)]
        return [[SPLICE, steps, spine.length, 0, reps]]

    def _text(self, rep: bytes, steps: list[Step]) -> list[Op]:
        if not all(type(item) is str for item in self._items):
            raise self._invalid("is a str: only str can be appended to it")
        if len(steps) > MAX_NESTED:
            raise self._invalid(f"is more than {MAX_NESTED} levels deep; set a value further up")
        return [[PATCH, steps, text.length_of(rep), 0, "".join(self._items).encode("utf-8", "surrogatepass")]]


class Put(_Edit):
    """Put a value at a path: a key that is there or new, an index that is there, or the whole state."""

    def __init__(self, path: Path, value: Any, types: Types, name: str) -> None:
        super().__init__(path, types, name)
        self._value = value

    def ops(self, tree: Tree) -> list[Op]:
        """Return what is put, as ops."""
        rep = self._encoder(tree, self._path).rep(self._value)
        if not self._path:
            return [[SET, [], rep]]
        spine, steps, found = self._parent(tree)
        if found is not None:
            return [[SET, [*steps, found[0]], rep]]
        if spine.code != msgpack.DICT:
            at = len(self._path) - 1
            raise NotFound(missing(self._path, at, spine), code="not_found.path", path=str(self._path))
        return [[SET, [*steps, self._new_key(tree)], rep]]

    def _new_key(self, tree: Tree) -> bytes:
        try:
            hash(self._path[-1])
        except TypeError:
            raise self._invalid("has a last step that cannot be a dict's key") from None
        return self._encoder(tree, type(self._path)(self._path[:-1])).key(self._path[-1])


class Assign(Put):
    """Put a value under keys of dicts that are known to be there, without looking; the last key may be new."""

    def ops(self, tree: Tree) -> list[Op]:
        """Return what is put, as ops."""
        rep = self._encoder(tree, self._path).rep(self._value)
        encoder = self._encoder(tree, type(self._path)(()))
        return [[SET, [encoder.key(step) for step in self._path], rep]]


class Update(_Edit):
    """Put keys into a dict: those that are there get other values, new ones go last."""

    def __init__(self, path: Path, entries: Mapping[Any, Any], types: Types, name: str) -> None:
        super().__init__(path, types, name)
        self._entries = entries

    def ops(self, tree: Tree) -> list[Op]:
        """Return what is put, as ops: one for all that is new."""
        rep, steps = locate(tree, self._path, self._types)
        spine = spines.open_rep(rep, tree.nodes)
        if spine is None or spine.code != msgpack.DICT:
            raise self._invalid("is not a dict, so no keys can be put into it; use set()")
        encoder = self._encoder(tree, self._path)
        ops: list[Op] = []
        new: list[bytes] = []
        for key, value in self._entries.items():
            found = find_step(tree.nodes, spine, key, self._types)
            rep = encoder.part(key, value)
            if found is None:
                new.append(spines.join(encoder.key(key), rep))
            else:
                ops.append([SET, [*steps, found[0]], rep])
        return [*ops, [SPLICE, steps, spine.length, 0, new]] if new else ops


class Cut(_Edit):
    """Take what is at a path out of its dict or list."""

    def ops(self, tree: Tree) -> list[Op]:
        """Return what is taken out, as ops."""
        if not self._path:
            raise self._invalid("cannot be deleted from itself; delete the thread, or save another state")
        spine, steps, found = self._parent(tree)
        if found is None:
            at = len(self._path) - 1
            raise NotFound(missing(self._path, at, spine), code="not_found.path", path=str(self._path))
        if spine.code not in (msgpack.DICT, msgpack.LIST):
            raise self._invalid("is a part of a tuple or of a typed value, whose parts cannot be deleted")
        return [[CUT, [*steps, found[0]]]]


Edit = _Edit


class Several:
    """Several changes at paths, one after the other."""

    def __init__(self, edits: Sequence[_Edit]) -> None:
        self._edits = edits

    def __call__(self, standing: Standing | None) -> Proposal:
        """Return what is to be written."""
        if standing is None or standing.chain is None:
            raise NotFound("there is no such thread; save a first state", code="not_found.thread")
        rep, nodes, _ = standing.chain.tree
        tree = Tree(rep, nodes.forked())
        ops: list[Op] = []
        sealed = False
        for edit in self._edits:
            more = edit.ops(tree)
            tree = tree.apply(more, own=True)
            sealed |= tree.sealed
            ops += more
        return Proposal(tree._replace(sealed=sealed), ops if len(ops) <= OPS_MAX else None)


class Match(_Edit):
    """Make what is at a path equal to a value. What did not change is found by a scan, and not written again."""

    def __init__(self, path: Path, value: Any, types: Types, name: str) -> None:
        super().__init__(path, types, name)
        self._value = value

    def ops(self, tree: Tree) -> list[Op]:
        """Return what differs, as ops."""
        return scan.below(tree, self._value, self._path, self._types)
