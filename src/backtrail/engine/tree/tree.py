"""A state as a tree of nodes, which can be read and changed in parts.

A `Tree` is immutable: the representation of its root value, and the source of its nodes. A change is an *op*, plain
data that a row stores and that gives the same result each time it is applied:

    [SET, path, rep]                       set the value of a key (new keys go last) or of an index
    [CUT, path]                            remove a key or an index
    [SPLICE, path, start, removed, reps]   replace entries of a container (in a mapping: key and value joined)
    [PATCH, path, start, removed, bytes]   replace bytes of a str, bytes or bytearray

The steps of an op's path are positions in a sequence and encoded keys in a mapping. The empty path is the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine.tree import chunked, msgpack, text
from backtrail.engine.tree.decode import Unpacker
from backtrail.engine.tree.encode import Encoder, atom
from backtrail.engine.tree.nodes import SPINE, Nodes, Rep, as_ref, digest_of, measured, size_of
from backtrail.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backtrail.engine.schema.registry import Types
    from backtrail.engine.tree.path import Path

SET: Final = 0
CUT: Final = 1
SPLICE: Final = 2
PATCH: Final = 3

Op = list[Any]
Step = int | bytes

_ARGUMENTS: Final[dict[int, tuple[type, ...]]] = {
    SET: (bytes,),
    CUT: (),
    SPLICE: (int, int, list),
    PATCH: (int, int, bytes),
}


def is_op(op: Any) -> bool:
    """Tell whether data from a row has the form of an op."""
    kind, path, *arguments = op if type(op) is list and op[1:] else (None, None)
    if type(kind) is not int or type(path) is not list:
        return False
    return (
        tuple(map(type, arguments)) == _ARGUMENTS.get(kind)
        and all(type(step) is int or type(step) is bytes for step in path)
        and (kind != SET or arguments[0] != b"")
        and (kind != SPLICE or all(type(entry) is bytes and entry for entry in arguments[2]))
    )


def merged(ops: Iterable[Op]) -> list[Op]:
    """Return fewer ops with the same result: an insertion right after the previous insertion joins it.

    Most changes of a chain are appends, and a tree is closed and hashed after each op.
    """
    result: list[Op] = []
    for op in ops:
        last = result[-1] if result else None
        if (
            last is not None
            and op[0] == last[0]
            and op[0] in (SPLICE, PATCH)
            and op[3] == 0
            and op[1] == last[1]
            and op[2] == last[2] + len(last[4])
        ):
            result[-1] = [*last[:4], last[4] + op[4]]
        else:
            result.append(op)
    return result


class Tree(NamedTuple):
    """A state: the representation of its root, and the nodes below."""

    rep: bytes
    nodes: Nodes
    sealed: bool = False
    """Whether the last change closed a chunk at the end of a container."""

    @classmethod
    def of(cls, value: object, nodes: Nodes, types: Types) -> Tree:
        """Return a state as a tree. All its nodes are fresh in `nodes`, even those that the backend has."""
        return cls(Encoder(nodes, types).rep(value), nodes)

    @property
    def root(self) -> bytes:
        """The digest of the whole state."""
        return digest_of(b"V", self.rep)

    @property
    def size(self) -> int:
        """The logical size of the whole state."""
        return size_of(self.rep)

    def apply(self, ops: Iterable[Op], *, own: bool = False) -> Tree:
        """Return the tree after these ops; `Corrupt` if one does not fit. `own`: no other tree has these `nodes`."""
        editor = _Applier(self.nodes if own else self.nodes.forked())
        rep = self.rep
        for op in ops:
            try:
                rep = editor.edit(rep, op[1], 0, op)
            except (ValueError, TypeError, IndexError) as error:
                if isinstance(error, Invalid | Corrupt):
                    raise
                raise Corrupt(f"a stored change does not fit its state ({error})", code="corrupt.row") from error
        return Tree(rep, editor.nodes, editor.sealed)


class _Applier:
    """Applies ops to representations; adds the new nodes to `nodes`."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.sealed = False

    def edit(self, rep: bytes, path: list[Step], at: int, op: Op) -> bytes:
        kind = op[0]
        if at == len(path):
            if kind == SET:
                return measured(op[2])
            return text.patched(self.nodes, rep, *op[2:]) if kind == PATCH else self._splice(rep, op)
        spine = self._open(rep)
        step = path[at]
        pos = position(self.nodes, spine, step)
        if at == len(path) - 1 and kind == CUT and pos is not None:
            return self._close(spine, pos, pos + 1, [])
        if at == len(path) - 1 and kind == SET and pos is None:
            return self._close(spine, spine.length, spine.length, [self._entry(spine, step, op[2])])
        if pos is None:
            raise Corrupt("a stored change names a missing key", code="corrupt.row")
        (entry,) = chunked.entries(self.nodes, spine, pos, pos + 1)
        changed = self.edit(value_of(entry) if spine.is_mapping else entry, path, at + 1, op)
        new = [chunked.join(chunked.key_of(entry), changed) if spine.is_mapping else changed]
        return self._close(spine, pos, pos + 1, new)

    def _open(self, rep: bytes) -> chunked.Spine:
        spine = chunked.open_rep(rep, self.nodes)
        if spine is None:
            raise Corrupt("a stored change leads into a value without parts", code="corrupt.row")
        return spine

    def _entry(self, spine: chunked.Spine, step: Step, rep: bytes) -> bytes:
        if isinstance(step, int) or not spine.is_mapping:
            raise Corrupt("a stored change names a missing index", code="corrupt.row")
        return chunked.join(step, measured(rep))

    def _splice(self, rep: bytes, op: Op) -> bytes:
        spine = self._open(rep)
        _, _, start, removed, reps = op
        if not 0 <= start <= start + removed <= spine.length:
            raise Corrupt("a stored change extends beyond the end of its container", code="corrupt.row")
        if spine.is_mapping:
            entries = [chunked.join(chunked.key_of(e), measured(value_of(e))) for e in reps]
        else:
            entries = [measured(e) for e in reps]
        return self._close(spine, start, start + removed, entries)

    def _close(self, spine: chunked.Spine, start: int, stop: int, new: list[bytes]) -> bytes:
        changed, sealed = chunked.splice(self.nodes, spine, start, stop, new)
        self.sealed |= sealed
        return changed.close(self.nodes)


def grown(nodes: Nodes, rep: bytes, key: bytes, make: Callable[[int], bytes]) -> tuple[bytes, int, bytes] | None:
    """Append one item to a list that is the value of a short mapping's key: the case of most appends.

    `make` returns the item's representation, given its index. Returns the new representation of the mapping, the index
    and the item; None in all other cases. `apply` gives the same result.
    """
    top = rep.opened if type(rep) is Rep else None
    if top is None or not top.is_mapping or len(top.levels) > 1:
        return None
    at = next((at for at, entry in enumerate(top.levels[0]) if entry.startswith(key)), None)
    value = getattr(top.levels[0][at], "value", None) if at is not None else None
    ref = None if value is None else as_ref(value)
    node = nodes.at_hand(ref.digest) if ref is not None and ref.code == msgpack.LIST else None
    if at is None or node is None or node.kind != SPINE or node.opened is None:
        return None
    item = make(node.opened.length)
    longer = chunked.with_one_more(node.opened, measured(item))
    if longer is None:
        return None
    changed = chunked.with_one_replaced(top, at, at + 1, chunked.join(key, longer.close(nodes)))
    return None if changed is None else (changed.close(nodes), node.opened.length, item)


def value_of(entry: bytes) -> bytes:
    """Return the value of a mapping's entry."""
    if type(entry) is Rep and entry.value is not None:
        return entry.value
    key = len(chunked.key_of(entry))
    return Rep(entry[key:], entry.size - key) if type(entry) is Rep else entry[key:]


def position(nodes: Nodes, spine: chunked.Spine, step: Step) -> int | None:
    """Return the position of an op's step; None for a missing key."""
    if isinstance(step, bytes):
        return chunked.find_key(nodes, spine, step) if spine.is_mapping else None
    if spine.is_mapping or not 0 <= step < spine.length:
        raise Corrupt("a stored change names a missing index", code="corrupt.row")
    return step


# -- users' paths -------------------------------------------------------------------------------------


def locate(tree: Tree, path: Path, types: Types) -> tuple[bytes, list[Step]]:
    """Return the representation at a user's path, and the path as an op's steps; `NotFound` if a step is missing."""
    rep = tree.rep
    steps: list[Step] = []
    for at, step in enumerate(path):
        spine = chunked.open_rep(rep, tree.nodes)
        match = find_step(tree.nodes, spine, step, types)
        if spine is None or match is None:
            raise NotFound(missing(path, at, spine), code="not_found.path", path=str(path))
        op_step, pos = match
        steps.append(op_step)
        (entry,) = chunked.entries(tree.nodes, spine, pos, pos + 1)
        rep = value_of(entry) if spine.is_mapping else entry
    return rep, steps


def find_step(nodes: Nodes, spine: chunked.Spine | None, step: Any, types: Types) -> tuple[Step, int] | None:
    """Return an op's step for a user's key or index, and its position; None if it is missing."""
    if spine is None or spine.code in (msgpack.SET, msgpack.FROZENSET):
        return None
    if not spine.is_mapping:
        if type(step) is not int or not -spine.length <= step < spine.length:
            return None
        return step % spine.length, step % spine.length
    if type(step) in (str, bytes):
        key = atom(step, types)
        pos = None if key is None else chunked.find_key(nodes, spine, key)
        return None if pos is None or key is None else (key, pos)
    # 1, 1.0 and True are one key of a dict: compare with ==, as Python does
    unpack = Unpacker(types)
    for pos, entry in enumerate(chunked.entries(nodes, spine)):
        stored = chunked.key_of(entry)
        if unpack(stored) == step:
            return stored, pos
    return None


def missing(path: Path, at: int, spine: chunked.Spine | None) -> str:
    """Return the message that names the missing step of a path."""
    step, above = path[at], str(type(path)(path[:at])) or "the state"
    if spine is None:
        return f"there is nothing at {path}: {above} has no parts"
    if spine.code in (msgpack.SET, msgpack.FROZENSET):
        return f"there is nothing at {path}: {above} is a set, whose items have no keys or indexes"
    if spine.is_mapping:
        return f"there is nothing at {path}: {above} has no key {step!r}"
    return f"there is nothing at {path}: {above} has {spine.length} items and no index {step!r}"
