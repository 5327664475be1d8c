"""Marks: what the parts of a draft know of who got hold of them.

A container can only change if somebody has got hold of it. So whatever hands out a part of a node, and whatever
changes a node, *marks* it first: a mark is a copy of what the node holds at that moment, taken once. What was never
marked has not changed; what was is compared with its mark, by identity, when the step ends (`stepping`). There is no
log of what was done, so nothing has to be seen being done: `heapq`, `bisect` and `list.append(node, x)` change what
somebody has got hold of, and that is marked.

What always holds:

- Each node stands in one place and knows what it stands in (its `_up`, weakly). Marking a node marks all above it.
- What is put into a node stays the very object that it was until the step ends, and needs no mark.
- What cannot have hooks (a set, a tuple that holds a dict, a record) is *lent*: remembered with its encoding. Of the
  records in a list that is marked, the fields are remembered (`glances`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pathlib
import threading
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from weakref import ref

STILL: Final = frozenset(
    {
        *(type(None), bool, int, float, str, bytes, uuid.UUID, decimal.Decimal),
        *(dt.datetime, dt.date, dt.time, dt.timedelta),
        *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
    }
)
"""Types whose values never change."""


_ENDED: Final = (
    "this is part of a draft whose step has ended: change it inside `with thread.step() as state:`, "
    "or change a copy (copy.deepcopy)"
)
_DROPPED: Final = (
    "this is part of an earlier draft whose step has ended, and that was dropped (a step failed, somebody else saved, "
    "or it was not to be kept): take it from this step's state, or change a copy (copy.deepcopy)"
)


def is_still(value: object) -> bool:
    """Tell whether a value can never change."""
    kind = type(value)
    if kind in STILL:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(is_still, value))  # type: ignore[call-overload]
    return isinstance(value, enum.Enum)


class Touched(NamedTuple):
    """A part of a node that somebody may have changed."""

    value: Any
    hint: Any
    """The index or key where it stood, if known."""
    node: Node | None
    shot: bytes | None
    """What is not a node: its encoding when it was lent; None if it had none."""
    inmates: Sequence[Any] = ()
    """What is not a node: all that could change inside it when it was lent."""


class Hidden(NamedTuple):
    """The reserved field of a record, which is made anew whenever the record is taken apart."""

    value: Any
    shot: bytes | None


class Scope:
    """What the nodes of one draft share."""

    def __init__(
        self,
        shot: Callable[[Any], tuple[bytes | None, Sequence[Any]]],
        fields: Callable[[Any], dict[str, Any]],
        look: Callable[..., Any],
    ) -> None:
        self.shot = shot
        """The encoding of what is lent, and what can change inside it."""
        self.fields = fields
        """The fields of a record."""
        self.look = look
        """What the records in a list hold (`glances`)."""
        self.open = False
        self.dropped = False
        self.broken = False
        """Whether marking was interrupted, so that marks do not tell all that changed."""
        self.comparing = 0
        """The thread for which nodes equal nothing but themselves."""
        self.marking = threading.RLock()
        """Threads may change the state of one step together, and each node is marked once."""
        self.marked: list[Node] = []
        self.top: ref[Any] | None = None

    def let_go(self) -> None:
        """Forget what is marked, which would keep the nodes, and be kept by them."""
        self.marked.clear()

    def same(self, ours: list[Any], theirs: list[Any]) -> bool:
        """Tell whether two lists of equal length, the first of them all nodes, hold the very same ones. Quickly."""
        self.comparing = threading.get_ident()
        try:
            return list.__eq__(ours, theirs)  # not `==`, which would ask a node first
        finally:
            self.comparing = 0


class Node:
    """What lists, dicts and records of a draft have in common; underscored, for users hold them as lists and dicts."""

    if not TYPE_CHECKING:  # each kind of node has slots for what follows
        __slots__ = ()
    _is_top: ClassVar[bool] = False
    """Whether it is what the state stands in."""
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
        with self._scope.marking:
            if self._mark_ is None:
                self._mark_now(hint)

    def _mark_now(self, hint: Any) -> None:
        shot = self._shot()
        try:
            self._touched = {}
            self._mark_ = shot
            self._scope.marked.append(self)
            up: Node | None = None if self._up is None else self._up()
            if up is not None:
                up._mark()
                value = self._value()
                up._touched[id(value)] = Touched(value, hint, self, None)
                if up._up is None and not up._is_top:
                    self._up = None  # what it stands in was taken out: it is the caller's own, whatever becomes of that
            self._expose()
        except BaseException:  # it is marked, and not all that this takes may be done
            self._scope.broken = True
            raise

    def _lend(self, part: Any, hint: Any = None) -> None:
        """Take note that a part is handed out."""
        if isinstance(part, Node):
            part._mark(hint)
        elif type(part) is not list and type(part) is not dict:  # those were put in during this step
            self._lend_other(part, hint)

    def _lend_other(self, part: Any, hint: Any) -> None:
        kin = self._kin.get(id(part)) if self._kin else None
        if kin is not None:
            kin._mark(hint)
        elif not is_still(part):
            self._mark()
            if id(part) not in self._touched:
                self._touched[id(part)] = Touched(part, hint, None, *self._scope.shot(part))

    def _attached(self) -> bool:
        """Tell whether it is part of the state; what was taken out is the caller's own."""
        node: Any = self
        while not node._is_top:
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
            raise Invalid(_DROPPED if self._scope.dropped else _ENDED, code="invalid.draft")
        if self._mark_ is None:
            self._mark()


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
