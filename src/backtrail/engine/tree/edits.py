"""The changes that callers ask for. Each turns the current state into a *proposal*: a new tree and its ops.

The writer asks for a new proposal in each attempt to commit, so a change such as an append applies to the newest state.
An `Editor` lets a function read and change parts of the state; its changes become one checkpoint. The function runs
again if another writer was first, so its decisions hold at the moment of the write. It loads only the parts that it
reads, so its cost does not depend on the size of the state.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, Self

from backtrail.engine import throttle
from backtrail.engine.tree import chunked, msgpack, scan, text
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.encode import MAX_NESTED, Encoder, flat_inline
from backtrail.engine.tree.path import Path, parse
from backtrail.engine.tree.tree import (
    CUT,
    PATCH,
    SET,
    SPLICE,
    Op,
    Place,
    Step,
    Tree,
    find_step,
    locate,
    missing,
    step_into,
    walk,
)
from backtrail.engine.writer import Unchanged
from backtrail.errors import Invalid, NotFound
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from backtrail.engine.reader import Tip
    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.writer import Proposal

OPS_MAX: Final = 256
"""The most ops of a delta. More ops take longer to apply at each load than a base takes to write once."""


class Replace:
    """Replace the state. A scan finds the unchanged parts, which are not written again.

    `changed` names the keys of a dict that may differ; the scan skips the others.
    """

    def __init__(self, state: Any, nodes: Nodes, types: Types, changed: Collection[Any] | None = None) -> None:
        self._state = state
        self._nodes = nodes
        self._types = types
        self._changed = changed

    def __call__(self, tip: Tip | None) -> Proposal:
        """Return the state as ops on the head's state, or as a whole if there would be too many ops."""
        chain = None if tip is None else tip.chain
        if chain is not None:
            before = chain.tree
            ops, nodes = scan.changes(before, self._state, self._types, self._changed)
            few = len(ops) <= OPS_MAX
            if few or (
                self._changed is not None and any(each is MISSING for each in self._state.values())
            ):  # a MISSING value stands for the old value, so the state cannot be encoded alone
                return before.apply(ops, nodes), ops if few else None
        return Tree.of(self._state, self._nodes.with_fresh({}), self._types), None


class Edit:
    """A change at a path."""

    _place: Place | None = None
    """Where the only op of the last `ops` leads, if that is known."""

    def __init__(self, path: Path, types: Types, name: str) -> None:
        self._path = path
        self._types = types
        self._name = name

    def __call__(self, tip: Tip | None) -> Proposal:
        """Return the proposal: the head's tree with this change; `NotFound` if the thread has no state."""
        chain = None if tip is None else tip.chain
        if chain is None:
            raise NotFound(f"there is no thread {self._name!r}; save a state first", code="not_found.thread")
        tree = chain.tree
        return self.change(tree, tree.nodes.forked())

    def change(self, tree: Tree, nodes: Nodes) -> tuple[Tree, list[Op]]:
        """Return the tree after this change, and the change as ops. `nodes` are the tree's, and get the new ones."""
        self._place = None
        ops = self.ops(tree, nodes)
        return tree.apply(ops, nodes, self._place), ops

    @property
    def path(self) -> Path:
        """The path of the change."""
        return self._path

    def below(self, *steps: Any) -> Self:
        """Return the same change with `steps` in front of its path."""
        moved = copy.copy(self)
        moved._path = type(self._path)((*steps, *self._path))  # noqa: SLF001 - a copy of this very one
        return moved

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:
        """Return the change as ops on the state `tree`."""
        raise NotImplementedError

    def _invalid(self, why: str) -> Invalid:
        where = str(self._path) or "the state"
        return Invalid(f"{where} {why}", code="invalid.path", path=str(self._path))

    def _parent(self, tree: Tree) -> tuple[chunked.Spine, list[Step], tuple[Step, int] | None]:
        """Return the container of the path's last step, the steps to it, and the last step with its position."""
        above = type(self._path)(self._path[:-1])
        rep, steps, around = walk(tree, above, self._types)
        spine = chunked.open_rep(rep, tree.nodes)
        if spine is None or spine.code in (msgpack.SET, msgpack.FROZENSET):
            raise NotFound(missing(self._path, len(above), spine), code="not_found.path", path=str(self._path))
        match = find_step(tree.nodes, spine, self._path[-1], self._types)
        if match is not None:
            rep = step_into(tree.nodes, spine, match[1], around)
            self._place = self._path, rep, [*steps, match[0]], around
        return spine, steps, match


class Append(Edit):
    """Append items to a list, or text to a str."""

    def __init__(self, path: Path, items: tuple[Any, ...], types: Types, name: str) -> None:
        self._path = path
        self._types = types
        self._name = name
        self._items = items

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:
        """Return the change as ops on the state `tree`."""
        place = tree.place
        if place is None or place[0] is not self._path:  # paths that are written as text are made once
            place = self._path, *walk(tree, self._path, self._types)
        self._place = place
        _, old, steps, _ = place
        spine = chunked.open_rep(old, nodes)
        if spine is None and text.code_of(old) in (msgpack.STR, msgpack.TEXT):
            return self._text(old, steps)
        if spine is None or spine.code != msgpack.LIST:
            raise self._invalid("is neither a list nor a str, so nothing can be appended to it; use set()")
        encoder: Encoder | None = None
        reps: list[bytes] = []
        for item in self._items:
            throttle.rest()
            rep = flat_inline(item) if len(steps) < MAX_NESTED else None
            if rep is None:
                encoder = Encoder(nodes, self._types, self._path) if encoder is None else encoder
                rep = encoder.part(spine.length + len(reps), item)
            reps.append(rep)
        return [[SPLICE, steps, spine.length, 0, reps]]

    def _text(self, rep: bytes, steps: list[Step]) -> list[Op]:
        if not all(type(item) is str for item in self._items):
            raise self._invalid("is a str: only str can be appended to it")
        if len(steps) > MAX_NESTED:
            raise self._invalid(f"is more than {MAX_NESTED} levels deep; set a value further up")
        return [[PATCH, steps, text.length_of(rep), 0, "".join(self._items).encode("utf-8", "surrogatepass")]]


class Put(Edit):
    """Set the value at a path: of a new or existing key, of an existing index, or the whole state."""

    def __init__(self, path: Path, value: Any, types: Types, name: str) -> None:
        super().__init__(path, types, name)
        self._value = value

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:
        """Return the change as ops on the state `tree`."""
        rep = Encoder(nodes, self._types, self._path).rep(self._value)
        if not self._path:
            return [[SET, [], rep]]
        if tree.place is not None and tree.place[0] is self._path:
            self._place = tree.place
            return [[SET, tree.place[2], rep]]
        spine, steps, match = self._parent(tree)
        if match is not None:
            return [[SET, [*steps, match[0]], rep]]
        if spine.code != msgpack.DICT:
            at = len(self._path) - 1
            raise NotFound(missing(self._path, at, spine), code="not_found.path", path=str(self._path))
        return [[SET, [*steps, self._new_key(nodes)], rep]]

    def _new_key(self, nodes: Nodes) -> bytes:
        try:
            hash(self._path[-1])
        except TypeError:
            raise self._invalid("ends with a step that is not hashable, so it cannot be a dict's key") from None
        return Encoder(nodes, self._types, type(self._path)(self._path[:-1])).key(self._path[-1])


class Assign(Put):
    """Set a value under keys of dicts that the caller knows to exist, without a check; the last key may be new."""

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:  # noqa: ARG002 - every edit takes it
        """Return the change as ops on the state `tree`."""
        rep = Encoder(nodes, self._types, self._path).rep(self._value)
        encoder = Encoder(nodes, self._types)
        return [[SET, [encoder.key(step) for step in self._path], rep]]


class Update(Edit):
    """Set keys of a dict: existing keys get new values, new keys go last."""

    def __init__(self, path: Path, entries: Mapping[Any, Any], types: Types, name: str) -> None:
        super().__init__(path, types, name)
        self._entries = entries

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:
        """Return the change as ops on the state `tree`: one op for all new keys."""
        rep, steps = locate(tree, self._path, self._types)
        spine = chunked.open_rep(rep, tree.nodes)
        if spine is None or spine.code != msgpack.DICT:
            raise self._invalid("is not a dict, so it has no keys to set; use set()")
        encoder = Encoder(nodes, self._types, self._path)
        ops: list[Op] = []
        new: list[bytes] = []
        for key, value in self._entries.items():
            match = find_step(tree.nodes, spine, key, self._types)
            rep = encoder.part(key, value)
            if match is None:
                new.append(chunked.join(encoder.key(key), rep))
            else:
                ops.append([SET, [*steps, match[0]], rep])
        return [*ops, [SPLICE, steps, spine.length, 0, new]] if new else ops


class Cut(Edit):
    """Remove a key of a dict, or an item of a list."""

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:  # noqa: ARG002 - every edit takes it
        """Return the change as ops on the state `tree`."""
        if not self._path:
            raise self._invalid("cannot be deleted; delete the thread, or save another state")
        spine, steps, match = self._parent(tree)
        if match is None:
            at = len(self._path) - 1
            raise NotFound(missing(self._path, at, spine), code="not_found.path", path=str(self._path))
        if spine.code not in (msgpack.DICT, msgpack.LIST):
            raise self._invalid("is a part of a tuple or of a typed value, and only dicts and lists can lose parts")
        self._place = None  # the op leads to the container, not to the part
        return [[CUT, [*steps, match[0]]]]


class Several:
    """Several changes at paths, in order."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    def __call__(self, tip: Tip | None) -> Proposal:
        """Return the proposal: the head's tree with all changes; `NotFound` if the thread has no state."""
        if tip is None or tip.chain is None:
            raise NotFound("there is no such thread; save a state first", code="not_found.thread")
        tree = tip.chain.tree
        nodes = tree.nodes.forked()
        ops: list[Op] = []
        sealed = False
        for edit in self._edits:
            tree, more = edit.change(tree, nodes)
            sealed |= tree.sealed
            ops += more
        return tree if tree.sealed is sealed else tree._replace(sealed=sealed), ops if len(ops) <= OPS_MAX else None


class Rescan(Edit):
    """Replace the value at a path. A scan finds the unchanged parts, which are not written again."""

    def __init__(self, path: Path, value: Any, types: Types, name: str) -> None:
        super().__init__(path, types, name)
        self._value = value

    def ops(self, tree: Tree, nodes: Nodes) -> list[Op]:
        """Return the difference as ops on the state `tree`."""
        return scan.below(tree, self._value, self._path, self._types, nodes)


# -- edits by a function ------------------------------------------------------------------------------


class Editor:
    """The argument of the function that `Thread.edit` calls: reads and changes parts of the state."""

    def __init__(
        self, tree: Tree, types: Types, name: str, *, exists: bool, redacted: Callable[[Any], Any] = lambda value: value
    ) -> None:
        self._tree = tree
        self._redacted = redacted
        self._types = types
        self._name = name
        self._ops: list[Op] = []
        self._sealed = False
        self.exists = exists
        """Whether the thread has a state. If not, call `set((), state)` first."""

    # -- reading ------------------------------------------------------------------------------------

    def get(self, path: str | tuple[Any, ...], default: Any = None) -> Any:
        """Return the value at a path, or `default`. Only the nodes that lead there are read."""
        try:
            rep, _ = locate(self._tree, parse(path), self._types)
        except NotFound:
            return default
        return Decoder(self._tree.nodes, self._types).value(rep)

    def count(self, path: str | tuple[Any, ...]) -> int:
        """Return the number of items or keys at a path, without reading them; 0 if the path leads nowhere."""
        try:
            rep, _ = locate(self._tree, parse(path), self._types)
        except NotFound:
            return 0
        spine = chunked.open_rep(rep, self._tree.nodes)
        if spine is None:
            raise Invalid(f"{parse(path) or 'the state'} has no parts to count", code="invalid.path", path=str(path))
        return spine.length

    # -- changing -----------------------------------------------------------------------------------

    def append(self, path: str | tuple[Any, ...], *items: Any) -> None:
        """Append items to the list at a path (or strings to a str)."""
        if items:
            self._apply(Append(parse(path), self._redacted(items), self._types, self._name))

    def set(self, path: str | tuple[Any, ...], value: Any) -> None:
        """Set the value at a path: of a key of a dict, of an index of a list, or of `()`, the state itself."""
        steps = parse(path)
        if not steps:
            self.exists = True
        self._apply(Put(steps, self._redacted(value), self._types, self._name))

    def update(self, path: str | tuple[Any, ...], entries: Mapping[Any, Any]) -> None:
        """Set keys of the dict at a path: existing keys get new values, new keys go last."""
        if entries:
            self._apply(Update(parse(path), self._redacted(entries), self._types, self._name))

    def delete_at(self, path: str | tuple[Any, ...]) -> None:
        """Remove a key of a dict, or an item of a list."""
        self._apply(Cut(parse(path), self._types, self._name))

    def _apply(self, change: Edit) -> None:
        if not self.exists:
            raise NotFound(f"there is no thread {self._name!r}; call set((), state) first", code="not_found.thread")
        self._tree, ops = change.change(self._tree, self._tree.nodes)
        self._sealed |= self._tree.sealed
        self._ops += ops

    def proposal(self, tip: Tip | None) -> Proposal:
        """Return the proposal with the changes made so far; `Unchanged` if there are none."""
        if not self._ops:
            raise Unchanged(tip)
        begun = tip is None or tip.chain is None
        ops = None if begun or len(self._ops) > OPS_MAX else self._ops
        return self._tree._replace(sealed=self._sealed), ops


class FunctionEdit:
    """The changes that a function makes with an `Editor`."""

    def __init__(
        self,
        fn: Callable[[Editor], object],
        nodes: Nodes,
        types: Types,
        name: str,
        redacted: Callable[[Any], Any],
    ) -> None:
        self._fn = fn
        self._redacted = redacted
        self._nodes = nodes
        self._types = types
        self._name = name

    def __call__(self, tip: Tip | None) -> Proposal:
        """Call the function with an editor of the head's state, and return the proposal with its changes."""
        chain = tip.chain if tip is not None else None
        if chain is None:
            tree = Tree.of(None, self._nodes.with_fresh({}), self._types)
        else:
            tree = Tree(chain.tree.rep, chain.tree.nodes.forked())
        editor = Editor(tree, self._types, self._name, exists=chain is not None, redacted=self._redacted)
        self._fn(editor)
        return editor.proposal(tip)
