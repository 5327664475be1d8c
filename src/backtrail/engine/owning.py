"""How values become part of a draft.

Lists and dicts become nodes. A record (a dataclass, a Struct, a pydantic model) stays an instance of its class, with
nodes in its fields, put there past any validation. Everything else that can change stays as it is.

What always holds: a value that was put into a draft by its user is copied when its step ends, as if it had been saved
and loaded; a node that only moved stays itself. So every node stands in one place, and nobody outside holds a part of
the state that they did not get from it.
"""

from __future__ import annotations

import functools
import inspect
import types as pytypes
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from backtrail.engine import packing
from backtrail.engine.codec import Decoder, Encoder
from backtrail.engine.forms import DATACLASS, PYDANTIC, STRUCT, loaded
from backtrail.engine.marks import STILL, Hidden, Instance, Node, Scope, is_still
from backtrail.engine.schema import CUSTOM, Record, Types
from backtrail.engine.shapes import HIDDEN
from backtrail.engine.tracked import TrackedDict, TrackedList
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from backtrail.engine.nodes import Nodes

_NODES: Final = (TrackedList, TrackedDict)
_TRACKED_FORMS: Final = (DATACLASS, STRUCT, PYDANTIC)
_PLAIN: Final = frozenset({tuple, set, frozenset, bytearray})


def shot_of(types: Types, scratch: Callable[[], Nodes], value: Any) -> bytes | None:
    """Return the encoding of a value; None if it has none."""
    try:
        return Encoder(scratch(), types).rep(value)
    except Invalid:
        return None


def lent_of(types: Types, scratch: Callable[[], Nodes], value: Any) -> tuple[bytes | None, list[Any]]:
    """Return the encoding of a value that is lent, and all that can change inside it."""
    shot = shot_of(types, scratch, value)
    return shot, [] if shot is None else inmates(value, types)


def fields_of(types: Types, scratch: Callable[[], Nodes], obj: Any) -> dict[str, Any]:
    """Return the fields of a record."""
    record = types.dump(obj)
    if type(record) is not Record:
        raise Invalid(f"{type(obj).__qualname__} has no fields", code="invalid.value")
    fields = dict(record)
    if HIDDEN in fields:
        fields[HIDDEN] = Hidden(fields[HIDDEN], shot_of(types, scratch, fields[HIDDEN]))
    return fields


@functools.lru_cache(maxsize=256)
def _settable(cls: Hashable, name: str) -> bool:
    """Tell whether a field can be set without running code of its class."""
    found = inspect.getattr_static(cls, name, None)
    return not inspect.isdatadescriptor(found) or isinstance(found, pytypes.MemberDescriptorType)


def put_field(obj: Any, name: str, value: Any) -> bool:
    """Set a field past validation and frozenness; say whether it could be."""
    struct, model = loaded("msgspec", "Struct"), loaded("pydantic.main", "BaseModel")
    if struct is not None and isinstance(obj, struct):
        loaded("msgspec.structs", "force_setattr")(obj, name, value)
    elif model is not None and isinstance(obj, model):
        private = getattr(obj, "__pydantic_private__", None)
        for held in (obj.__dict__, obj.__pydantic_extra__, private):
            if held and name in held:
                held[name] = value
                return True
        return False
    elif _settable(type(obj), name):  # type: ignore[arg-type]
        object.__setattr__(obj, name, value)
    else:
        return False
    return True


class Owner:
    """Takes values into a draft."""

    def __init__(self, scope: Scope, types: Types, scratch: Callable[[], Nodes], *, fresh: bool = False) -> None:
        self._scope = scope
        self._fresh = fresh
        """Whether all that is taken in was just loaded, and is nobody else's."""
        self._types = types
        self._scratch = scratch
        self.exotic = False
        """Whether a value was met that may have been saved as something else than it would be now."""
        self.shared = False
        """Whether a part stands in two places because loading it gives the same object each time."""
        self._freed: dict[int, Any] = {}
        """By id: parts that are not lists or dicts and were taken out: the record's node, or the part itself."""
        self._claimed: set[int] = set()
        self.placed: list[tuple[Node, Any]] = []
        """What is not a node and stands somewhere else now, and what it stands in."""

    # -- taking out

    def free(self, part: Any, holder: Node) -> None:
        """Let go of a part that no longer stands where it stood."""
        if type(part) in _NODES:
            if part._up is not None and part._up() is holder:
                part._up = None
        elif holder._kin and id(part) in holder._kin:
            instance = holder._kin.pop(id(part))
            instance._up = None
            self._freed[id(part)] = instance
        elif type(part) not in STILL:
            self._freed[id(part)] = part

    # -- taking in

    def own(self, value: Any, holder: Node, *, known: bool) -> Any:
        """Return a value as the part of a node that it is to be; `known` if it is the draft's already."""
        kind = type(value)
        if kind in STILL or kind is Hidden:
            return value
        if kind is list or kind is dict:
            return self._built(value, holder, known=known)
        if kind in _NODES:
            here = known and value._up is not None and value._up() is holder
            ours = value._scope is self._scope and id(value) not in self._claimed
            if ours and (here or not value._attached()):
                return self._claim(value, holder)
            return self._built(value, holder, known=False)
        self.exotic |= kind not in _PLAIN or (kind is not bytearray and not STILL.issuperset(map(type, value)))
        return value if is_still(value) else self._other(value, holder, known=known)

    def _built(self, value: Any, holder: Node, *, known: bool) -> Node:
        """Make a node of a list or dict."""
        if isinstance(value, list):
            made = TrackedList._make(self._scope, ref(holder))
            if STILL.issuperset(map(type, list.__iter__(value))):
                list.extend(made, list.__iter__(value))
                made._mixed = True
            else:
                for part in list.copy(value):
                    owned = self.own(part, made, known=known)
                    list.append(made, owned)
                    note(made, owned)
            return made
        node = TrackedDict._make(self._scope, ref(holder))
        self.exotic |= not STILL.issuperset(map(type, dict.keys(value)))
        if type(value) is dict and STILL.issuperset(map(type, value.values())):
            dict.update(node, value)
        else:
            for key, part in list(dict.items(value)):
                dict.__setitem__(node, key, self.own(part, node, known=known))
        return node

    def _claim(self, node: Any, holder: Node) -> Any:
        """Let a node stand here: it moved, or what it stands in did. What was put into it becomes its own."""
        self._claimed.add(id(node))
        node._up = ref(holder)
        old = None if node._mark_ is None else node._mark_ if type(node) is TrackedList else node._mark_[1]
        before = None if old is None else set(map(id, old))
        if type(node) is TrackedList:
            for at, part in enumerate(list.copy(node)):
                self.put(node, at, part, known=before is None or id(part) in before)
        else:
            for key, part in list(dict.items(node)):
                self.put(node, key, part, known=before is None or id(part) in before)
        return node

    def put(self, node: Any, at: Any, part: Any, *, known: bool = False) -> None:
        """Make a part that stands in a node the node's own."""
        owned = self.own(part, node, known=known)
        if type(node) is TrackedDict:
            if owned is not part:
                dict.__setitem__(node, at, owned)
        elif isinstance(node, TrackedList):
            if owned is not part:
                list.__setitem__(node, at, owned)
                if node._mark_ is None:  # else it is looked at again anyway
                    node._glance = None
            note(node, owned)
        elif owned is not part:
            put_field(node.obj, at, owned)

    def _other(self, value: Any, holder: Node, *, known: bool) -> Any:
        instance: Instance | None = None
        ours = self._fresh
        if id(value) in self._claimed or not (known or id(value) in self._freed):
            value = self._copied(value)
            ours = True
            self.shared |= id(value) in self._claimed
        elif id(value) in self._freed:
            freed = self._freed.pop(id(value))
            instance = freed if isinstance(freed, Instance) else None
        elif holder._kin:
            found = holder._kin.get(id(value))
            instance = found if isinstance(found, Instance) else None
        self._claimed.add(id(value))
        if not self._fresh:
            self.placed.append((holder, value))
        self.adopt(value, holder, instance, known=ours or instance is not None)
        return value

    def _copied(self, value: Any) -> Any:
        nodes = self._scratch()
        return Decoder(nodes, self._types).value(Encoder(nodes, self._types).rep(value))

    # -- records

    def adopt(self, value: Any, holder: Node, instance: Instance | None = None, *, known: bool) -> None:
        """Put nodes into the fields of a record; it becomes a node itself if it then holds any."""
        if packing.open_container(value, self._types) is None or type(value) in _PLAIN or type(value) is Record:
            return
        try:
            record = self._types.dump(value)
        except Invalid:
            return
        if type(record) is not Record or record.form not in _TRACKED_FORMS:
            return
        made = instance or Instance(value, self._scope, None)
        made._up = ref(holder)
        before = None if made._mark_ is None else set(map(id, made._mark_[1]))
        holds = instance is not None
        for name, part in record.items():
            if type(part) in STILL or name == HIDDEN:
                continue
            ours = known and (before is None or id(part) in before)
            owned = self.own(part, made, known=ours)
            if owned is part or put_field(value, name, owned):
                holds |= not is_still(owned)
        if holds:
            holder._kin = holder._kin or {}
            holder._kin[id(value)] = made

    def renew(self, node: Any, part: Any) -> None:
        """Look again at a part that changed in place and is not a node: if it is a record, it may have got parts."""
        self._claimed.add(id(part))
        if type(self._dumped(part)) is Record and type(part) is not Record:
            instance = node._kin.get(id(part)) if node._kin else None
            self.adopt(part, node, instance, known=instance is not None)

    def untangle(self, node: Any, part: Any, known: set[int], seen: set[int]) -> None:
        """Copy what was put into a part that is not a node: `known` are the ids of what was in such parts before.

        `seen` are the ids of what stands somewhere already. What was there stays itself, for others may hold it.
        """
        if node._kin and id(part) in node._kin:
            return
        fresh = self._inside(part, known, seen)
        if fresh is part:
            return
        self.placed.append((node, fresh))
        self.adopt(fresh, node, known=True)
        self._swap(node, part, fresh)

    def _swap(self, node: Any, part: Any, fresh: Any) -> None:
        if isinstance(node, TrackedList):
            for at, each in enumerate(list.copy(node)):
                if each is part:
                    list.__setitem__(node, at, fresh)
        elif isinstance(node, TrackedDict):
            for key, each in list(dict.items(node)):
                if each is part:
                    dict.__setitem__(node, key, fresh)
        else:
            for name, each in self._scope.fields(node.obj).items():
                if each is part:
                    put_field(node.obj, name, fresh)

    def _straight(self, value: Any, known: set[int], seen: set[int]) -> Any:
        if is_still(value):
            return value
        if type(value) in _NODES or id(value) not in known or id(value) in seen:
            return self._copied(value)
        seen.add(id(value))
        return self._inside(value, known, seen)

    def _inside(self, value: Any, known: set[int], seen: set[int]) -> Any:
        """Return a value in which nothing stands that stands elsewhere: itself, if it can be changed."""
        kind = type(value)
        names, parts = inner_of(value, self._types)
        if names is None:
            return self._copied(value) if tangled(value, self._types, seen) else value
        straight = [self._straight(part, known, seen) for part in parts]
        changed = [(name, new) for name, old, new in zip(names, parts, straight, strict=True) if new is not old]
        if not changed:
            return value
        if isinstance(value, tuple):
            return tuple(straight) if kind is tuple else kind(*straight)
        for name, new in changed:
            if kind is list or kind is dict:
                value[name] = new
            elif not put_field(value, name, new):
                return self._copied(value)
        return value

    def _dumped(self, part: Any) -> Any:
        return None if type(part) in _PLAIN else self._types.dump(part)


def note(node: TrackedList, part: Any) -> None:
    """Keep what a list has to know of its parts."""
    if type(part) in _NODES:
        node._parts = True
        node._nests |= type(part) is TrackedList
        return
    node._mixed = True
    if not is_still(part):
        node._parts = True
        node._others = True


def parts_of(value: Any, types: Types) -> Iterable[Any]:
    """Return the parts of a value that is not a node, one level down."""
    opened = packing.open_container(value, types)
    if opened is None:
        return ()
    return opened[2].values() if isinstance(opened[2], dict) else opened[2]


def inner_of(value: Any, types: Types) -> tuple[list[Any] | None, list[Any]]:
    """Return the names and the parts of a value that is not a node, if each is in its place; no names if none is."""
    if isinstance(value, list | dict) and type(value) is not Record:
        return (list(range(len(value))) if isinstance(value, list) else list(value)), list(
            value if isinstance(value, list) else value.values()
        )
    if type(value) is tuple:
        return list(range(len(value))), list(value)
    record = None if type(value) in _PLAIN else types.dump(value)
    if type(record) is Record and record.form != CUSTOM and type(value) is not Record:
        names = [name for name in record if name != HIDDEN]
        return names, [record[name] for name in names]
    return None, []


def inmates(value: Any, types: Types) -> list[Any]:
    """Return all that can change inside a value that is not a node."""
    found: list[Any] = []
    todo = [value]
    while todo:
        parts = [part for part in inner_of(todo.pop(), types)[1] if not is_still(part)]
        found += parts
        todo += [part for part in parts if not isinstance(part, Node)]
    return found


def tangled(value: Any, types: Types, seen: set[int]) -> bool:
    """Tell whether a value that is not a node holds nodes, or something that is held elsewhere, too."""
    for part in parts_of(value, types):
        if is_still(part):
            continue
        if type(part) in _NODES or id(part) in seen:
            return True
        seen.add(id(part))
        if tangled(part, types, seen):
            return True
    return False
