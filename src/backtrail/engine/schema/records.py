"""Instances of classes that were named, as records in few steps: those that hold nothing unusual.

Nearly all instances have just their fields, in their order, in their `__dict__`. The bytes of a record are a header,
what it says about itself, and its fields: name, value, name, value. Those of a dict are a header and the same. So such
an instance is packed and unpacked as its dict, and the beginning is put before it or compared. Whatever is different is
None here, and is then done step by step; both ways give the same bytes, and the same instances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack

from backtrail.engine.schema.class_forms import HIDDEN
from backtrail.engine.schema.versions import LEARNED
from backtrail.engine.tree import msgpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.schema.registry import Types
    from backtrail.engine.schema.versions import Plan
    from backtrail.engine.tree.nodes import Node

    Pack = Callable[[dict[str, Any]], bytes | None]
    Writer = Callable[[object, Pack], bytes | None]

_FIXMAP: Final = 15
"""A map of so many entries, at most, has a header of one byte; that of a longer one has three."""
_KEY: Final = 12
"""By so many bytes of its beginning a record is told from those of most other classes."""
_VARIANTS: Final = 16
_EXTENSIONS: Final = frozenset({*range(0xC7, 0xCA), *range(0xD4, 0xD9)})
"""What extensions begin with."""
_PAIR: Final = msgpack.array_head(2)
_NIL: Final = msgpack.pack(None)
_ARRAYS: Final = {0xDC: 3, 0xDD: 5}
"""How long the header of an array is, if it is not one byte."""


class Learned:
    """What is known of the classes of a registry, until something else is declared about a class."""

    __slots__ = ("variants", "writers")

    def __init__(self) -> None:
        self.variants: dict[bytes, list[Variant]] = {}
        """By the first bytes of records."""
        self.writers: dict[type, Writer | None] = {}


def learned(types: Types) -> Learned:
    """Return what is known of the classes of a registry; whoever learns more adds to it."""
    found: Learned = LEARNED.get(types) or LEARNED.setdefault(types, Learned())
    return found


def writer(plan: Plan) -> Writer | None:
    """Return what encodes instances of a class as the payloads of records; `pack` encodes their dicts."""
    shape = plan.shape
    if shape is None:
        return None
    attrs = msgpack.pack_attrs(plan.name, plan.version, shape.form)
    count, held_of = len(shape.names), shape.held
    skip = 1 if count <= _FIXMAP else 3
    whole, partly = msgpack.array_head(3 + 2 * count) + attrs, msgpack.array_head(5 + 2 * count) + attrs
    tails: dict[frozenset[str], bytes] = {}

    def write(value: object, pack: Pack) -> bytes | None:
        held = held_of(value)
        data = None if held is None else pack(held[0])
        if held is None or data is None:
            return None
        was_set = held[1]
        if was_set is None:
            return whole + data[skip:]
        tail = tails.get(was_set)
        if tail is None:
            tail = tails[was_set] = msgpack.pack(HIDDEN) + msgpack.pack({"set": sorted(was_set)})
        return partly + data[skip:] + tail

    return write


class Variant(NamedTuple):
    """Records that begin and end alike: those of one class, of which the same fields were set."""

    start: bytes
    end: bytes
    head: bytes
    """The header of their dict."""
    cls: type
    names: tuple[str, ...]
    take: Callable[[Any], dict[str, Any] | None]
    """Gives the dict of an instance, if it would be such a record."""
    make: Callable[[dict[str, Any]], object]
    """Makes an instance of such a dict."""

    def matches(self, payload: bytes) -> bool:
        """Tell whether a payload begins and ends so."""
        return payload.startswith(self.start) and payload.endswith(self.end)

    def fields(self, payload: bytes) -> bytes:
        """Return the bytes of its dict."""
        return self.head + payload[len(self.start) : len(payload) - len(self.end)]


class Reader:
    """Makes instances of the payloads of records. What it has met once, it knows by its first bytes."""

    __slots__ = ("_known", "_types")

    def __init__(self, types: Types) -> None:
        self._types = types
        self._known = learned(types).variants

    def find(self, payload: bytes) -> Variant | None:
        """Return what is known of records like this one."""
        for variant in self._known.get(payload[:_KEY], ()):
            if variant.matches(payload):
                return variant
        return None

    def read(self, payload: bytes, unpack: Callable[[bytes], Any]) -> object | None:
        """Return the instance that a payload stands for, if one like it was met before; `unpack` decodes its dict."""
        known = self.find(payload)
        if known is None:
            return None
        fields, end = unpack(_PAIR + known.fields(payload) + _NIL)  # what is left over would stand before the end
        return known.make(fields) if end is None and type(fields) is dict and tuple(fields) == known.names else None

    def meet(self, payload: bytes, parts: list[Any]) -> Variant | None:
        """Take note of a record whose parts were decoded: schema, version, form, name, value, name, value ..."""
        found = self._types.made_as(*parts[:3]) if len(parts) > 2 and type(parts[0]) is str else None  # noqa: PLR2004
        count = len(found[1].names) if found is not None else 0
        fields, rest = parts[3 : 3 + 2 * count], parts[3 + 2 * count :]
        if found is None or not count or tuple(fields[::2]) != found[1].names:
            return None
        was_set, end = found[1].nameset, b""
        if rest:
            listed = _listed(rest)
            if listed is None:
                return None
            was_set, end = frozenset(listed), msgpack.pack(HIDDEN) + msgpack.pack({"set": listed})
        cls, shape = found
        take, make = shape.opener(was_set), shape.maker(cls, was_set)
        if take is None or make is None:
            return None
        start = msgpack.array_head(len(parts)) + msgpack.pack_attrs(*parts[:3])
        made = Variant(start, end, msgpack.head(count, 0x80, _FIXMAP, 0xDE), cls, shape.names, take, make)
        known = self._known.setdefault(payload[:_KEY], [])
        if not made.matches(payload):
            return None
        if len(known) < _VARIANTS and not any(each[:2] == made[:2] for each in known):
            known.append(made)
        return made


def _listed(rest: list[Any]) -> list[str] | None:
    """Return which fields were set, if that is all that the reserved field says."""
    if len(rest) != 2 or rest[0] != HIDDEN or type(rest[1]) is not dict or rest[1].keys() != {"set"}:  # noqa: PLR2004
        return None
    listed = rest[1]["set"]
    return listed if type(listed) is list and all(type(name) is str for name in listed) else None


_apart: Final = slice
"""Stands in for an extension, as its code and its payload. It is made in C, where no interrupt comes in between."""


class Flat(NamedTuple):
    """A leaf of nothing but such records, as their dicts: read and compared in one call, not in one for each."""

    data: bytes
    """An array of the dicts."""
    variants: list[Variant]

    @classmethod
    def of(cls, leaf: bytes, types: Types) -> Flat | None:
        """Return a leaf so; None if it holds anything else."""
        if leaf[_ARRAYS.get(leaf[0], 1)] not in _EXTENSIONS:
            return None
        try:
            entries = ormsgpack.unpackb(leaf, ext_hook=_apart)
        except ValueError:
            return None
        reader = Reader(types)
        found: list[Variant] = []
        parts: list[bytes] = [msgpack.array_head(len(entries))]
        for entry in entries:
            if type(entry) is not slice or entry.start != msgpack.RECORD:
                return None
            payload: bytes = entry.stop
            known = reader.find(payload) or reader.meet(payload, msgpack.unpackb(payload, ext_hook=_apart))
            if known is None:
                return None
            found.append(known)
            parts.append(known.fields(payload))
        flat = cls(b"".join(parts), found)
        return flat if flat.is_sound() else None

    def held(self, values: list[Any]) -> list[dict[str, Any]] | None:
        """Return the dicts of instances, if they are like those of the leaf in all but their fields."""
        if len(values) != len(self.variants):
            return None
        made = [
            variant.take(value) if type(value) is variant.cls else None
            for value, variant in zip(values, self.variants, strict=True)
        ]
        return None if None in made else made  # type: ignore[return-value]

    def made(self, dicts: list[Any]) -> list[Any]:
        """Return the instances of the dicts that were decoded."""
        return [variant.make(fields) for fields, variant in zip(dicts, self.variants, strict=True)]

    def is_sound(self) -> bool:
        """Tell whether the dicts have the fields that they should, each in its place."""
        count = len(self.variants)
        body = self.data[len(msgpack.array_head(count)) :]
        try:  # what is left over in the last one would stand before the end
            *dicts, end = ormsgpack.unpackb(msgpack.array_head(count + 1) + body + _NIL, ext_hook=_apart)
        except ValueError:
            return False
        return end is None and all(
            type(fields) is dict and tuple(fields) == variant.names
            for fields, variant in zip(dicts, self.variants, strict=True)
        )


def flat_of(node: Node, types: Types) -> Flat | None:
    """Return a leaf in this form, which is kept with it; None if it holds anything but records of named classes."""
    known, now = node.flat, learned(types)
    if known is None or known[0] is not now:
        known = node.flat = (now, Flat.of(node.data, types))
    flat: Flat | None = known[1]
    return flat
