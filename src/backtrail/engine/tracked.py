"""The lists and dicts of a draft: real ones, which notice who gets hold of what they hold.

Each method that hands out a part, or that changes something, tells `marks` first; the rest is what `list` and `dict`
do. Copies are plain data: `copy`, slices and `+` on the outside, `deepcopy` and `pickle` all through.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import ItemsView, Iterable, Iterator, ValuesView
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from backtrail.engine.marks import STILL, Node, Scope, is_still

if TYPE_CHECKING:
    from weakref import ref

_FEW: Final = 2
"""`heapq` compares nothing in a heap this small, so its items are marked with it."""


class TrackedList(Node, list[Any]):
    """A list of a draft."""

    __slots__ = (
        "__weakref__",
        "_bared",
        "_glance",
        "_kin",
        "_mark_",
        "_mixed",
        "_nests",
        "_others",
        "_parts",
        "_scope",
        "_touched",
        "_up",
    )
    _bared: bool
    """Whether the lists in it were marked since it was."""
    _parts: bool
    """Whether it may hold something that can change."""
    _others: bool
    """Whether it may hold something other than nodes that can change."""
    _nests: bool
    """Whether it may hold lists."""
    _glance: Any
    """What the records in it held (`glances`); None if it has to be looked at."""
    _mixed: bool
    """Whether it may hold something other than lists and dicts."""

    def __new__(cls, *args: Any) -> Any:
        """Make a plain list: what copies by calling a list's type gets plain data."""
        return list(*args)

    @classmethod
    def _make(cls, scope: Scope, up: ref[Any] | None) -> Self:
        made = list.__new__(cls)
        made._scope, made._up, made._mark_, made._kin = scope, up, None, None
        made._parts = made._others = made._mixed = made._nests = False
        made._glance = None
        return made

    def _shot(self) -> list[Any]:
        self._bared = False
        return list.copy(self)

    def _expose(self) -> None:
        if self._parts and len(self) <= _FEW:
            self._lend_all()
        if self._others:
            if self._glance is None:
                self._glance = self._scope.look(self._mark_)
            else:
                self._glance.wake(self._mark_)
            for at in self._glance.odd:
                self._lend(self._mark_[at], at)
        if self._nests:  # what reads a list without a hook reads the lists in it likewise
            for at, part in enumerate(self._mark_):
                if type(part) is TrackedList and (part._others or part._nests):
                    part._mark(at)

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
        up = None if self._up is None else self._up()
        if type(up) is TrackedList and up._mark_ is not None and not up._bared:
            for part in up._mark_:
                if type(part) is TrackedList:
                    part._mark()
            up._bared = True

    # -- comparing

    def __eq__(self, other: object) -> bool:
        if self._scope.comparing and self._scope.comparing == threading.get_ident():
            return self is other
        return list.__eq__(self, other)

    __hash__ = None

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
        if not isinstance(other, list):
            return NotImplemented
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
        for part in list.copy(self):
            made.append(copy.deepcopy(part, memo))
            if made[-1] is part:  # it says itself how it is copied
                self._given(part)
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

    def __iadd__(self, other: Iterable[Any]) -> Self:  # type: ignore[misc]
        self._change()
        list.extend(self, other)
        return self

    def __imul__(self, times: Any) -> Self:
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
    _is_top: ClassVar[bool] = True


class TrackedDict(Node, dict[Any, Any]):
    """A dict of a draft."""

    __slots__ = ("__weakref__", "_kin", "_mark_", "_scope", "_touched", "_up")

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a plain dict: what copies by calling a dict's type gets plain data."""
        return dict(*args, **kwargs)

    @classmethod
    def _make(cls, scope: Scope, up: ref[Any] | None) -> Self:
        made = dict.__new__(cls)
        made._scope, made._up, made._mark_, made._kin = scope, up, None, None
        return made

    def _shot(self) -> tuple[list[Any], list[Any]]:
        return list(dict.keys(self)), list(dict.values(self))

    def _has_odd_keys(self) -> bool:
        """Tell whether a key can change: whoever has got hold of the dict has got hold of it."""
        return not STILL.issuperset(map(type, dict.keys(self))) and not all(map(is_still, dict.keys(self)))

    def __eq__(self, other: object) -> bool:
        if self._scope.comparing and self._scope.comparing == threading.get_ident():
            return self is other
        return dict.__eq__(self, other)

    __hash__ = None

    # -- handing out

    def __getitem__(self, key: Any) -> Any:
        got = dict.__getitem__(self, key)
        if type(got) not in STILL:
            self._lend(got, key)
        return got

    def __iter__(self) -> Iterator[Any]:  # its own, or `{**node}` would copy without asking for the values
        return dict.__iter__(self)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is what get is

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
        for key, value in list(dict.items(self)):
            copied = made[copy.deepcopy(key, memo)] = copy.deepcopy(value, memo)
            if copied is value and type(value) not in STILL:
                self._lend(value, key)
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

    def __ior__(self, other: Any) -> Self:
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


class _Values(ValuesView[Any]):
    _mapping: TrackedDict

    def __repr__(self) -> str:
        return f"dict_values({list(dict.values(self._mapping))!r})"

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[key] for key in reversed(self._mapping))


class _Items(ItemsView[Any, Any]):
    _mapping: TrackedDict

    def __repr__(self) -> str:
        return f"dict_items({list(dict.items(self._mapping))!r})"

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self._mapping[key]) for key in reversed(self._mapping))
