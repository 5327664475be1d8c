"""The lists and dicts of a draft: real ones, which notice who gets hold of them.

A container can only change if somebody has got hold of it. So whatever hands out a part of a node, and whatever
changes a node, *marks* it first: a mark is a copy of what the node holds at that moment, taken once. What was never
marked has not changed; what was is compared with its copy, by identity, when the step ends (`drafts`). There is no log of
what was done, so nothing has to be seen being done: `heapq`, `bisect` and `list.append(node, x)` change what somebody
has got hold of, and that is marked.

What always holds:

- Each node stands in one place and knows what it stands in (its `_up`, weakly). Marking a node marks all above it.
- What is put into a node stays the very object that it was until the step ends, and needs no mark.
- What cannot have hooks (a set, a tuple that holds a dict, a record) is *lent*: remembered with its encoding.
- Copies are plain data: `copy`, slices and `+` outside, `deepcopy` and `pickle` all through.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import pathlib
import threading
import uuid
from collections.abc import Iterable, Iterator
from collections.abc import ItemsView as _ItemsView
from collections.abc import ValuesView as _ValuesView
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

STILL: Final = frozenset(
    {
        *(type(None), bool, int, float, str, bytes, uuid.UUID, decimal.Decimal),
        *(dt.datetime, dt.date, dt.time, dt.timedelta),
        *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
    }
)
"""Types whose values never change."""
_FEW: Final = 2
"""`heapq` compares nothing in a heap this small, so its items are marked with it."""


def is_still(value: object) -> bool:
    """Tell whether a value can never change."""
    kind = type(value)
    if kind in STILL:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(is_still, value))  # type: ignore[call-overload]
    return isinstance(value, enum.Enum)


def is_ordered(value: object) -> bool:
    """Tell whether a value can be compared with `<`, so that `heapq` may hand it out behind a list's back."""
    return type(value).__lt__ is not object.__lt__


class Touched(NamedTuple):
    """A part of a node that somebody may have changed."""

    value: Any
    hint: Any
    """The index or key where it stood, if known."""
    node: Node | None
    shot: bytes | None
    """What is not a node: its encoding when it was lent; None if it had none."""


class Hidden(NamedTuple):
    """The reserved field of a record, which is made anew whenever the record is taken apart."""

    value: Any
    shot: bytes | None


class Scope:
    """What the nodes of one draft share."""

    def __init__(self, shot: Callable[[Any], bytes | None], fields: Callable[[Any], dict[str, Any]]) -> None:
        self.shot = shot
        self.fields = fields
        """The fields of a record."""
        self.open = False
        self.comparing = 0
        """The thread for which nodes equal nothing but themselves."""
        self.marked: list[Node] = []
        self.top: ref[Top] | None = None

    def same(self, ours: list[Any], theirs: list[Any]) -> bool:
        """Tell whether two lists of equal length, the first of them all nodes, hold the very same ones. Quickly."""
        self.comparing = threading.get_ident()
        try:
            return list.__eq__(ours, theirs)  # not `==`, which would ask a node first
        finally:
            self.comparing = 0


class Node:
    """What lists, dicts and records of a draft have in common. Other places in the engine read its fields."""

    __slots__ = ()
    _scope: Scope
    _up: ref[Any] | None
    """What it stands in; None once it was taken out."""
    _mark_: Any
    """The mark: a copy of what it held; None if it is not marked."""
    _touched: dict[int, Touched]
    """By id: the parts that somebody may have changed since."""
    _kin: dict[int, Node] | None
    """By id: the records in it that are nodes."""

    def _shot(self) -> Any:
        raise NotImplementedError

    def _expose(self) -> None:
        """Mark or lend the parts that can be got hold of without a hook."""

    def _value(self) -> Any:
        return self

    def _mark(self, hint: Any = None) -> None:
        if self._mark_ is not None:
            return
        self._mark_ = self._shot()
        self._touched = {}
        self._scope.marked.append(self)
        up = self._up and self._up()
        if up is not None:
            up._mark()
            value = self._value()
            up._touched[id(value)] = Touched(value, hint, self, None)
        self._expose()

    def _lend(self, part: Any, hint: Any = None) -> None:
        """Take note that a part is handed out."""
        kind = type(part)
        if kind is TrackedDict or kind is TrackedList:
            part._mark(hint)
        elif kind is not list and kind is not dict:  # those were put in during this step
            self._lend_other(part, hint)

    def _lend_other(self, part: Any, hint: Any) -> None:
        kin = self._kin.get(id(part)) if self._kin else None
        if kin is not None:
            kin._mark(hint)
        elif not is_still(part):
            self._mark()
            if id(part) not in self._touched:
                self._touched[id(part)] = Touched(part, hint, None, self._scope.shot(part))

    def _attached(self) -> bool:
        """Tell whether it is part of the state; what was taken out is the caller's own."""
        node: Any = self
        while type(node) is not Top:
            if node._up is None:
                return False
            node = node._up()
            if node is None:
                top = self._scope.top
                return top is None or top() is None  # the draft is gone, not the node
        return True

    def _change(self) -> None:
        """Get ready for a change."""
        if not self._scope.open and self._attached():
            raise Invalid(
                "this is part of a draft whose step has ended: change it inside `with thread.step() as state:`, "
                "or change a copy (copy.deepcopy)",
                code="invalid.draft",
            )
        if self._mark_ is None:
            self._mark()


class TrackedList(Node, list[Any]):
    """A list of a draft."""

    __slots__ = ("__weakref__", "_bared", "_kin", "_mark_", "_mixed", "_ordered", "_parts", "_scope", "_touched", "_up")
    _bared: bool
    """Whether the lists in it were marked since it was."""
    _parts: bool
    """Whether it may hold something that can change."""
    _ordered: bool
    """Whether it may hold something other than nodes that can change and can be compared with `<`."""
    _mixed: bool
    """Whether it may hold something other than lists and dicts."""

    def __new__(cls, *args: Any) -> Any:
        """Make a plain list: what copies by calling a list's type gets plain data."""
        return list(*args)

    @classmethod
    def _make(cls, scope: Scope, up: ref[Any] | None) -> TrackedList:
        made: TrackedList = list.__new__(cls)
        made._scope, made._up, made._mark_, made._kin = scope, up, None, None
        made._parts = made._ordered = made._mixed = False
        return made

    def _shot(self) -> list[Any]:
        self._bared = False
        return list.copy(self)

    def _expose(self) -> None:
        if self._parts and len(self) <= _FEW:
            self._lend_all()
        elif self._ordered:
            for at, part in enumerate(list.__iter__(self)):
                if type(part) not in STILL and not isinstance(part, Node) and is_ordered(part):
                    self._lend(part, at)

    def _lend_all(self) -> None:
        if self._parts:
            for at, part in enumerate(list.__iter__(self)):
                if type(part) not in STILL:
                    self._lend(part, at)

    def _given(self, part: Any) -> Any:
        if type(part) not in STILL:
            self._lend(part)
        return part

    def _compared(self) -> None:
        """Mark the lists beside this one: somebody orders them, and may be handed one of them without a hook."""
        up = self._up and self._up()
        if type(up) is TrackedList and up._mark_ is not None and not up._bared:
            up._bared = True
            for part in up._mark_:
                if type(part) is TrackedList:
                    part._mark()

    # -- comparing

    def __eq__(self, other: object) -> bool:
        if self._scope.comparing and self._scope.comparing == threading.get_ident():
            return self is other
        return list.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: list[Any]) -> bool:
        self._compared()
        return list.__lt__(self, other)

    def __gt__(self, other: list[Any]) -> bool:
        self._compared()
        return list.__gt__(self, other)

    # -- handing out

    def __getitem__(self, at: Any) -> Any:
        got = list.__getitem__(self, at)
        if isinstance(at, slice):
            for part in got:
                self._given(part)
        elif type(got) not in STILL:
            self._lend(got, at + len(self) if type(at) is int and at < 0 else at)
        return got

    def __iter__(self) -> Iterator[Any]:
        return map(self._given, list.__iter__(self)) if self._parts else list.__iter__(self)

    def __reversed__(self) -> Iterator[Any]:
        return map(self._given, list.__reversed__(self))

    def copy(self) -> list[Any]:
        self._lend_all()
        return list.copy(self)

    __copy__ = copy

    def __add__(self, other: Any) -> Any:
        if isinstance(other, TrackedList):
            other._lend_all()
        self._lend_all()
        return list.__add__(self, other)

    def __radd__(self, other: Any) -> Any:
        self._lend_all()
        return list.__add__(other, self) if isinstance(other, list) else NotImplemented

    def __mul__(self, times: Any) -> list[Any]:
        self._lend_all()
        return list.__mul__(self, times)

    __rmul__ = __mul__

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        made: list[Any] = []
        memo[id(self)] = made
        made.extend(copy.deepcopy(part, memo) for part in list.__iter__(self))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (), None, list.__iter__(self)

    # -- changing

    def __setitem__(self, at: Any, value: Any) -> None:
        self._change()
        list.__setitem__(self, at, value)

    def __delitem__(self, at: Any) -> None:
        self._change()
        list.__delitem__(self, at)

    def __iadd__(self, other: Iterable[Any]) -> TrackedList:  # type: ignore[override,misc]
        self._change()
        list.extend(self, other)
        return self

    def __imul__(self, times: Any) -> TrackedList:  # type: ignore[override,misc]
        self._change()
        list.__imul__(self, times)
        return self

    def append(self, value: Any) -> None:
        self._change()
        list.append(self, value)

    def extend(self, values: Iterable[Any]) -> None:
        self._change()
        list.extend(self, values)

    def insert(self, at: Any, value: Any) -> None:
        self._change()
        list.insert(self, at, value)

    def pop(self, at: Any = -1) -> Any:
        self._change()
        if self:
            self[at]  # handed out: it may come back changed
        return list.pop(self, at)

    def remove(self, value: Any) -> None:
        self._change()
        list.remove(self, value)

    def clear(self) -> None:
        self._change()
        list.clear(self)

    def reverse(self) -> None:
        self._change()
        list.reverse(self)

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._change()
        if key is not None:
            self._lend_all()
        list.sort(self, key=key, reverse=reverse)


class Top(TrackedList):
    """What a draft's state stands in: its one item."""

    __slots__ = ()


class TrackedDict(Node, dict[Any, Any]):
    """A dict of a draft."""

    __slots__ = ("__weakref__", "_kin", "_mark_", "_scope", "_touched", "_up")

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a plain dict: what copies by calling a dict's type gets plain data."""
        return dict(*args, **kwargs)

    @classmethod
    def _make(cls, scope: Scope, up: ref[Any] | None) -> TrackedDict:
        made: TrackedDict = dict.__new__(cls)
        made._scope, made._up, made._mark_, made._kin = scope, up, None, None
        return made

    def _shot(self) -> tuple[list[Any], list[Any]]:
        return list(dict.keys(self)), list(dict.values(self))

    def __eq__(self, other: object) -> bool:
        if self._scope.comparing and self._scope.comparing == threading.get_ident():
            return self is other
        return dict.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]

    # -- handing out

    def __getitem__(self, key: Any) -> Any:
        got = dict.__getitem__(self, key)
        if type(got) not in STILL:
            self._lend(got, key)
        return got

    def __iter__(self) -> Iterator[Any]:  # its own, or `{**node}` would copy without asking for the values
        return dict.__iter__(self)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default

    def values(self) -> Any:
        return _Values(self)

    def items(self) -> Any:
        return _Items(self)

    def copy(self) -> dict[Any, Any]:
        return {key: self[key] for key in self}

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        made = dict(other)
        made.update(self)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        memo[id(self)] = made
        for key, value in dict.items(self):
            made[copy.deepcopy(key, memo)] = copy.deepcopy(value, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (), None, None, iter(dict.items(self))

    # -- changing

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change()
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._change()
        dict.__delitem__(self, key)

    def __ior__(self, other: Any) -> TrackedDict:  # type: ignore[override,misc]
        self._change()
        dict.update(self, other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._change()
        dict.update(self, *args, **kwargs)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key in self:
            return self[key]
        self._change()
        return dict.setdefault(self, key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self._change()
        self.get(key)  # handed out: it may come back changed
        return dict.pop(self, key, *default)

    def popitem(self) -> tuple[Any, Any]:
        self._change()
        for key in dict.__reversed__(self):
            self.get(key)
            break
        return dict.popitem(self)

    def clear(self) -> None:
        self._change()
        dict.clear(self)


class _Values(_ValuesView[Any]):
    def __repr__(self) -> str:
        return f"dict_values({list(dict.values(self._mapping))!r})"  # type: ignore[arg-type]

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[key] for key in reversed(self._mapping))  # type: ignore[call-overload]


class _Items(_ItemsView[Any, Any]):
    def __repr__(self) -> str:
        return f"dict_items({list(dict.items(self._mapping))!r})"  # type: ignore[arg-type]

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self._mapping[key]) for key in reversed(self._mapping))  # type: ignore[call-overload]


class Instance(Node):
    """A record of a draft that holds nodes: an instance of a class, whose attributes have no hooks.

    Whoever has got hold of it has got hold of all its fields.
    """

    __slots__ = ("__weakref__", "_kin", "_mark_", "_scope", "_touched", "_up", "obj")

    def __init__(self, obj: Any, scope: Scope, up: ref[Any] | None) -> None:
        self.obj = obj
        self._scope, self._up, self._mark_, self._kin = scope, up, None, None

    def _value(self) -> Any:
        return self.obj

    def _shot(self) -> tuple[list[Any], list[Any]]:
        fields = self._scope.fields(self.obj)
        return list(fields), list(fields.values())

    def _expose(self) -> None:
        for name, part in zip(*self._mark_, strict=True):
            if type(part) in (list, dict):  # where no node could be put
                self._lend_other(part, name)
            elif type(part) not in STILL and type(part) is not Hidden:
                self._lend(part, name)
