"""An editor: the head of a thread, read in parts and changed in parts, and all of it one checkpoint.

What is read is what the changes before it made of the state, and no more of it is loaded than leads there. A function
that is given an editor is called again if somebody else was first: it decides anew on what is there then. So what it
decides holds in the very moment of the write, and takes what it takes however large the state is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.engine.tree import edits
from backtrail.engine.tree import spine as spines
from backtrail.engine.tree.codec import Decoder, encode
from backtrail.engine.tree.path import parse
from backtrail.engine.tree.tree import Tree, locate
from backtrail.engine.writer import Proposal, Unchanged
from backtrail.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backtrail.engine.reader import Standing
    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.tree import Op

    Path = str | tuple[Any, ...]


class Editor:
    """What a function is given to edit a state: `Thread.edit`."""

    def __init__(self, tree: Tree, types: Types, name: str, *, exists: bool) -> None:
        self._tree = tree
        self._types = types
        self._name = name
        self._ops: list[Op] = []
        self._sealed = False
        self.exists = exists
        """Whether there is a state; if not, `set((), state)` comes first."""

    # -- reading ------------------------------------------------------------------------------------

    def get(self, path: Path, default: Any = None) -> Any:
        """Return what is at a path, reading only what leads there; `default` if there is nothing."""
        try:
            rep, _ = locate(self._tree, parse(path), self._types)
        except NotFound:
            return default
        return Decoder(self._tree.nodes, self._types).value(rep)

    def count(self, path: Path) -> int:
        """Return how many items or keys there are at a path, without reading them; 0 if there is nothing."""
        try:
            rep, _ = locate(self._tree, parse(path), self._types)
        except NotFound:
            return 0
        spine = spines.open_rep(rep, self._tree.nodes)
        if spine is None:
            raise Invalid(f"{parse(path) or 'the state'} has no parts to count", code="invalid.path", path=str(path))
        return spine.length

    # -- changing -----------------------------------------------------------------------------------

    def append(self, path: Path, *items: Any) -> None:
        """Append items to the list at a path (or strings to a str)."""
        if items:
            self._apply(edits.Append(parse(path), items, self._types, self._name))

    def set(self, path: Path, value: Any) -> None:
        """Put a value at a path: a key of a dict, there or new, an index of a list, or `()`: the state itself."""
        steps = parse(path)
        if not steps:
            self.exists = True
        self._apply(edits.Put(steps, value, self._types, self._name))

    def update(self, path: Path, entries: Mapping[Any, Any]) -> None:
        """Put keys into the dict at a path: those that are there get other values, new ones go last."""
        if entries:
            self._apply(edits.Update(parse(path), entries, self._types, self._name))

    def delete_at(self, path: Path) -> None:
        """Take a key out of a dict, or an item out of a list."""
        self._apply(edits.Cut(parse(path), self._types, self._name))

    def _apply(self, change: edits.Edit) -> None:
        if not self.exists:
            raise NotFound(f"there is no thread {self._name!r}; set((), state) first", code="not_found.thread")
        ops = change.ops(self._tree)
        self._tree = self._tree.apply(ops, own=True)
        self._sealed |= self._tree.sealed
        self._ops += ops

    def proposal(self, standing: Standing | None) -> Proposal:
        """Return what is to be written; `Unchanged` if there is nothing."""
        if not self._ops:
            raise Unchanged(standing)
        begun = standing is None or standing.chain is None
        ops = None if begun or len(self._ops) > edits.OPS_MAX else self._ops
        return Proposal(self._tree._replace(sealed=self._sealed), ops)


class Editing:
    """A change that a function makes of the state as it stands."""

    def __init__(self, fn: Callable[[Editor], object], nodes: Nodes, types: Types, name: str) -> None:
        self._fn = fn
        self._nodes = nodes
        self._types = types
        self._name = name

    def __call__(self, standing: Standing | None) -> Proposal:
        """Return what the function made of it."""
        chain = standing.chain if standing is not None else None
        if chain is None:
            tree = encode(None, self._nodes.with_fresh({}), self._types)
        else:
            tree = Tree(chain.tree.rep, chain.tree.nodes.forked())
        editor = Editor(tree, self._types, self._name, exists=chain is not None)
        self._fn(editor)
        return editor.proposal(standing)
