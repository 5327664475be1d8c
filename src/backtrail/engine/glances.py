"""Glances: what the records in a list held, to tell which of them changed.

The attributes of a record have no hooks, and a list can be read without any: by pydantic, by `heapq`, by `list.pop`. So
whoever has got hold of a list has got hold of the records in it. To encode each of them would cost far too much; a
glance is the list of all their fields, compared by identity by a function made for their class.

What always holds: every field in a glance is a node or can never change. What is not a record of that kind is *odd*,
and is lent instead.
"""

from __future__ import annotations

import inspect
import keyword
import types as pytypes
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine.forms import DATACLASS, PYDANTIC, STRUCT
from backtrail.engine.marks import STILL, Node, is_still
from backtrail.engine.schema import Record
from backtrail.engine.versions import plan_of
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.engine.schema import Types

_FIELDS_MAX: Final = 64
"""A class with more fields is odd."""


class Sight(NamedTuple):
    """How to look at the records of one class."""

    names: list[str]
    width: int
    take: Callable[[list[Any]], list[Any]]
    """Returns the fields of records, one record after the other."""
    differing: Callable[[list[Any], Iterator[Any]], list[Any]]
    """Returns which records no longer hold those fields."""


def sight_of(cls: type, sample: Any, types: Types) -> Sight | None:
    """Return how to look at records of a class; None if it cannot be done without running its code."""
    try:
        record = types.dump(sample)
    except Invalid:
        return None
    plan = plan_of(cls) if type(record) is Record and type(sample) is not Record else None
    if plan is None or plan.shape is None or record.form not in (DATACLASS, STRUCT, PYDANTIC):  # type: ignore[union-attr]
        return None
    names = list(plan.shape.names)
    terms = [f"r.{name}" for name in names]
    if record.form == PYDANTIC:  # type: ignore[union-attr]
        if cls.model_config.get("extra") == "allow" or cls.__private_attributes__:  # type: ignore[attr-defined]
            return None
        terms.append("len(r.__pydantic_fields_set__)")
    if not terms or len(terms) > _FIELDS_MAX or not all(_is_plain(cls, name) for name in names):
        return None
    olds = [f"v{at}" for at in range(len(terms))]
    tests = " or ".join(f"{term} is not {old}" for term, old in zip(terms, olds, strict=True))
    its = ", ".join(["it"] * len(terms))
    # Made of names that are identifiers, checked above: a loop over getattr would take four times as long.
    take = eval(f"lambda rs: [v for r in rs for v in ({', '.join(terms)},)]")  # noqa: S307
    source = f"lambda rs, it: [r for r, {', '.join(olds)} in zip(rs, {its}) if {tests}]"
    return Sight(names, len(terms), take, eval(source))  # noqa: S307


def _is_plain(cls: Any, name: str) -> bool:
    """Tell whether reading a field runs no code of its class."""
    if not name.isidentifier() or keyword.iskeyword(name) or cls.__getattribute__ is not object.__getattribute__:
        return False
    found = inspect.getattr_static(cls, name, None)
    return not inspect.isdatadescriptor(found) or isinstance(found, pytypes.MemberDescriptorType)


class Group:
    """The records of one class in a list, and what they held."""

    __slots__ = ("kinds", "places", "records", "same", "sight", "values")

    def __init__(
        self, sight: Sight, places: list[int] | None, records: list[Any], values: list[Any], kinds: set[type]
    ) -> None:
        self.sight = sight
        self.places = places
        """Where in the list they stand; None if there is nothing else in it."""
        self.records = records
        """None of them while the list is not marked: what is kept here would count as held by somebody."""
        self.values = values
        self.kinds = kinds
        """The types of what they held, but for those that never change."""
        self.same = False
        """Whether they were all found to hold what they held."""

    def differing(self) -> list[int]:
        """Return which records do not hold what they held."""
        try:
            found = set(map(id, self.sight.differing(self.records, iter(self.values))))
        except AttributeError:  # one of them has lost a field
            found = set(map(id, self.records))
        self.same = not found
        return [at for at, record in enumerate(self.records) if id(record) in found] if found else []

    def held(self, at: int) -> list[Any]:
        """Return what a record held."""
        width = self.sight.width
        return self.values[at * width : (at + 1) * width]


class Glance(NamedTuple):
    """What the records in a list held."""

    groups: list[Group]
    odd: list[int]
    """The places of what can change and is no such record."""

    def wake(self, parts: list[Any]) -> None:
        """Get hold of the records again: the list is marked, and this is what it holds."""
        for group in self.groups:
            group.records = parts if group.places is None else [parts[at] for at in group.places]
            group.same = False

    def rest(self) -> Glance | None:
        """Let go of the records; return None if nodes are among their fields, which would count as held."""
        for group in self.groups:
            group.records = []
        return None if any(issubclass(kind, Node) for group in self.groups for kind in group.kinds) else self


class Looker:
    """Looks at lists."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._sights: dict[type, Sight | None] = {}

    def look(self, parts: list[Any], before: Glance | None = None) -> Glance:
        """Return what the records in a list hold; `before` is a glance at it, which saves looking at all again."""
        glance = Glance([], [])
        known = {} if before is None else {type(g.records[0]): g for g in before.groups if g.same and g.records}
        kinds = set(map(type, parts))
        for kind in kinds:
            if kind in STILL or issubclass(kind, Node):
                continue
            places = None if len(kinds) == 1 else [at for at, part in enumerate(parts) if type(part) is kind]
            records = parts if places is None else [parts[at] for at in places]
            if kind not in self._sights:
                self._sights[kind] = sight_of(kind, records[0], self._types)
            sight = self._sights[kind]
            group = None if sight is None else _group(sight, places, records, known.get(kind))
            if group is None:
                where = range(len(parts)) if places is None else places
                glance.odd.extend(at for at in where if not is_still(parts[at]))
            else:
                _sort_out(group, glance)
        return glance


def _group(sight: Sight, places: list[int] | None, records: list[Any], before: Group | None) -> Group | None:
    count = 0 if before is None else len(before.records)
    try:
        if before is not None and count <= len(records) and all(map(is_, before.records, records)):
            new = sight.take(records[count:])
            kinds = before.kinds | set(map(type, new)).difference(STILL)
            return Group(sight, places, records, before.values + new, kinds)
        values = sight.take(records)
    except AttributeError:  # one of them has lost a field
        return None
    return Group(sight, places, records, values, set(map(type, values)).difference(STILL))


def _sort_out(group: Group, glance: Glance) -> None:
    """Add a group to a glance, without the records in it that hold something else than nodes and what never changes."""
    strange = {kind for kind in group.kinds if not issubclass(kind, Node)}
    if strange:
        places = list(range(len(group.records))) if group.places is None else group.places
        kept = Group(group.sight, [], [], [], group.kinds)
        for at, (place, record) in enumerate(zip(places, group.records, strict=True)):
            held = group.held(at)
            if all(type(value) not in strange or is_still(value) for value in held):
                kept.places.append(place)  # type: ignore[union-attr]
                kept.records.append(record)
                kept.values.extend(held)
            else:
                glance.odd.append(place)
        group = kept
    if group.records:
        glance.groups.append(group)
