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

from blake3 import blake3

from backtrail.backends.port import new_tuple
from backtrail.engine.tree import chunked, msgpack, text
from backtrail.engine.tree.decode import Unpacker
from backtrail.engine.tree.encode import Encoder, atom
from backtrail.engine.tree.nodes import Nodes, Rep, measured, size_of, sized
from backtrail.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Return fewer ops with the same result: join insertions of which each begins where the previous one ends.

    Most ops of a chain are appends. Joined ops are faster, because each op closes and hashes the tree.
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


Around = list[tuple[chunked.Spine, int, bytes | None]]
"""The containers around a value, from the root down: the spine, the position in it, the key if it is a mapping."""


class Surroundings(NamedTuple):
    """A tree around a value, as bytes, if all containers around it are short lists and dicts."""

    before: bytes
    after: bytes
    rest: int
    """The size of the state without the value."""
    room: int
    """The most bytes that the value may have: with more, the containers are no longer short."""


Place = tuple["Path", bytes, list[Step], "Around | Surroundings"]
"""A user's path in a tree: the value there, the path as an op's steps, and what is around the value."""


class Tree(NamedTuple):
    """A state: the representation of its root, and the nodes below."""

    rep: bytes
    nodes: Nodes
    sealed: bool = False
    """Whether the last change closed a chunk at the end of a container."""
    place: Place | None = None
    """The place of the last change. The next change often has the same path, so it need not be found again."""

    @classmethod
    def of(cls, value: object, nodes: Nodes, types: Types) -> Tree:
        """Return a state as a tree. All its nodes are fresh in `nodes`, even those that the backend has."""
        return cls(Encoder(nodes, types).rep(value), nodes)

    @property
    def root(self) -> bytes:
        """The digest of the whole state."""
        return blake3(b"V" + self.rep).digest()

    @property
    def size(self) -> int:
        """The logical size of the whole state."""
        rep = self.rep
        return rep.size if type(rep) is Rep else len(rep)

    def apply(self, ops: Iterable[Op], nodes: Nodes | None = None, place: Place | None = None) -> Tree:
        """Return the tree after these ops; `Corrupt` if one does not fit.

        `nodes` are the new tree's: those of this tree, in an object that it alone has. `place` is the place that the
        only op changes, if the caller has found it in this tree.
        """
        rep, nodes, sealed = self.rep, nodes or self.nodes.forked(), False
        try:
            if place is None and type(ops) is list and len(ops) > 1:
                together = _applied_together(nodes, rep, ops)
                if together is not None:
                    return new_tuple(Tree, (*together, None))
            for op in ops:
                if place is None:
                    rep, closed = _applied(nodes, rep, op)
                else:
                    rep, closed, place = _applied_at(nodes, rep, op, place)
                sealed |= closed
        except (ValueError, TypeError, IndexError) as error:
            if isinstance(error, Invalid | Corrupt):
                raise
            raise Corrupt(f"a stored change does not fit its state ({error})", code="corrupt.row") from error
        return new_tuple(Tree, (rep, nodes, sealed, place))


def _applied_together(nodes: Nodes, rep: bytes, ops: list[Op]) -> tuple[bytes, Nodes, bool] | None:
    """Apply several ops to the entries of a short dict, which is closed once; None if an op needs `_applied`.

    A save of a state with few keys has such ops: each sets, removes or changes the value of one key.
    """
    spine = chunked.open_rep(rep, nodes)
    if spine is None or spine.code != msgpack.DICT or len(spine.levels) > 1:
        return None
    entries: dict[bytes, bytes] = dict(zip(chunked.keys_of(spine.levels[0]), spine.levels[0], strict=True))
    if len(entries) < len(spine.levels[0]):  # a key such as NaN may occur twice
        return None
    sealed = False
    for op in ops:
        kind, path = op[0], op[1]
        if not path or type(path[0]) is not bytes:
            return None
        key: bytes = path[0]
        entry = entries.get(key)
        if len(path) == 1 and kind == SET:
            entries[key] = chunked.join(key, measured(op[2]))
        elif entry is None:
            return None
        elif len(path) == 1 and kind == CUT:
            del entries[key]
        else:
            changed, closed = _applied(nodes, value_of(entry), [kind, path[1:], *op[2:]])
            entries[key], sealed = chunked.join(key, changed), sealed or closed
    left = list(entries.values())
    weight = sum(map(len, left))
    if weight >= chunked.LEAF_MIN:  # one of them may close a leaf
        return None
    measures = len(left), weight + chunked.hidden_size(left) + 5, weight, None
    return chunked.Spine(spine.code, spine.attrs, (left,), measures).close(nodes), nodes, sealed


def _applied_at(nodes: Nodes, rep: bytes, op: Op, place: Place) -> tuple[bytes, bool, Place | None]:
    """Return what `_applied` does for an op whose place is known, and the place after the op."""
    path, value, steps, around = place
    changed, sealed = _changed(nodes, value, op)
    if isinstance(around, Surroundings):
        before, after, rest, room = around
        if len(changed) > room:  # the containers around it change their form: begin at the root
            return *_applied(nodes, rep, op), None
        root = Rep(before + changed + after)
        root.size = rest + (changed.size if type(changed) is Rep else len(changed))
        return root, sealed, (path, changed, steps, around)
    rep, around = _put_back(nodes, changed, around)
    return rep, sealed, (path, changed, steps, _frame(rep, around, changed) or around)


def _frame(rep: bytes, around: Around, value: bytes) -> Surroundings | None:
    """Return the tree around a value as bytes; None unless all containers are short lists and dicts."""
    if not around:
        return None
    before = after = b""
    room = min([spine.room for spine, _, _ in around]) + len(value)
    rest = size_of(rep) - size_of(value)
    for at, (spine, pos, key) in enumerate(around):
        if rep[0] not in msgpack.PLAIN_HEADS:
            return None
        entries, last = spine.levels[0], at == len(around) - 1
        inner = value if last else (value_of(entries[pos]) if spine.is_mapping else entries[pos])
        start = len(rep) - spine.weight + sum(map(len, entries[:pos])) + len(key or b"")
        before, after = before + rep[:start], rep[start + len(inner) :] + after
        rep = inner
    return Surroundings(before, after, rest, room)


def _applied(nodes: Nodes, rep: bytes, op: Op) -> tuple[bytes, bool]:
    """Return the representation after an op, and whether the op closed a chunk at the end of a container."""
    kind, path = op[0], op[1]
    around: Around = []
    last = len(path) - 1
    for at, step in enumerate(path):
        spine = _open(rep, nodes)
        pos = position(nodes, spine, step)
        if at == last and kind == CUT and pos is not None:
            changed, sealed = chunked.splice(nodes, spine, pos, pos + 1, [])
            return _put_back(nodes, changed.close(nodes), around)[0], sealed
        if at == last and kind == SET and pos is None:
            changed, sealed = chunked.splice(nodes, spine, spine.length, spine.length, [_entry(spine, step, op[2])])
            return _put_back(nodes, changed.close(nodes), around)[0], sealed
        if pos is None:
            raise Corrupt("a stored change names a missing key", code="corrupt.row")
        rep = step_into(nodes, spine, pos, around)
    rep, sealed = _changed(nodes, rep, op)
    return _put_back(nodes, rep, around)[0], sealed


def _changed(nodes: Nodes, rep: bytes, op: Op) -> tuple[bytes, bool]:
    """Return the value that an op leads to, after the op, and whether the op closed a chunk at its end."""
    kind = op[0]
    if kind == SET:
        return measured(op[2]), False
    if kind == PATCH:
        return text.patched(nodes, rep, *op[2:]), False
    _, _, start, removed, reps = op
    spine = chunked.open_rep(rep, nodes) or _open(rep, nodes)
    if not 0 <= start <= start + removed <= spine.length:
        raise Corrupt("a stored change extends beyond the end of its container", code="corrupt.row")
    if spine.is_mapping:
        entries = [chunked.join(chunked.key_of(e), measured(value_of(e))) for e in reps]
    else:
        entries = list(map(measured, reps)) if msgpack.may_hold_refs(b"".join(reps)) else reps
    changed, sealed = chunked.splice(nodes, spine, start, start + removed, entries)
    return changed.close(nodes), sealed


def _open(rep: bytes, nodes: Nodes) -> chunked.Spine:
    spine = chunked.open_rep(rep, nodes)
    if spine is None:
        raise Corrupt("a stored change leads into a value without parts", code="corrupt.row")
    return spine


def _entry(spine: chunked.Spine, step: Step, rep: bytes) -> bytes:
    if isinstance(step, int) or not spine.is_mapping:
        raise Corrupt("a stored change names a missing index", code="corrupt.row")
    return chunked.join(step, measured(rep))


def _put_back(nodes: Nodes, rep: bytes, around: Around) -> tuple[bytes, Around]:
    """Put a changed value into the containers around it; return the root, and the containers after the change."""
    changed: Around = []
    for spine, pos, key in reversed(around):
        entry = rep if key is None else chunked.join(key, rep)
        after, _ = chunked.splice(nodes, spine, pos, pos + 1, [entry])
        changed.append((after, pos, key))
        rep = after.close(nodes)
    changed.reverse()
    return rep, changed


def value_of(entry: bytes) -> bytes:
    """Return the value of a mapping's entry."""
    if type(entry) is Rep and entry.value is not None:
        return entry.value
    key = len(chunked.key_of(entry))
    return sized(entry[key:], entry.size - key) if type(entry) is Rep else entry[key:]


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
    rep, steps, _ = walk(tree, path, types)
    return rep, steps


def walk(tree: Tree, path: Path, types: Types) -> tuple[bytes, list[Step], Around]:
    """Return the value at a user's path, the path as an op's steps, and the containers around the value."""
    nodes, rep = tree.nodes, tree.rep
    steps: list[Step] = []
    around: Around = []
    for step in path:
        spine = chunked.open_rep(rep, nodes)
        match = find_step(nodes, spine, step, types)
        if spine is None or match is None:
            raise NotFound(missing(path, len(steps), spine), code="not_found.path", path=str(path))
        op_step, pos = match
        steps.append(op_step)
        rep = step_into(nodes, spine, pos, around)
    return rep, steps, around


def step_into(nodes: Nodes, spine: chunked.Spine, pos: int, around: Around) -> bytes:
    """Return the value at a position of a container, which is added to those around the value."""
    entry = chunked.entry_at(nodes, spine, pos)
    if not spine.is_mapping:
        around.append((spine, pos, None))
        return entry
    value = value_of(entry)
    around.append((spine, pos, entry[: -len(value)]))
    return value


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
