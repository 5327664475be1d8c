"""A fast way to encode and decode the common instances of registered classes.

Nearly all instances hold just their fields, in order, in their `__dict__`. The bytes of a record are a header, its
attributes, and its fields: name, value, name, value. The bytes of a dict are a header and the same fields. So a common
instance is packed and unpacked as its dict, with the start of the record replaced. For any other instance the
functions here return None, and the caller encodes or decodes it field by field. Both ways give equal bytes and equal
instances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack

from backtrail.engine.schema.class_forms import HIDDEN, Model, Models
from backtrail.engine.schema.upcast import RECORD_CACHES
from backtrail.engine.tree import msgpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.schema.registry import Types
    from backtrail.engine.schema.upcast import ClassSchema
    from backtrail.engine.tree.chunked import Spine
    from backtrail.engine.tree.nodes import Node

    Pack = Callable[[dict[str, Any]], bytes | None]
    Writer = Callable[[object, Pack], bytes | None]

_FIXMAP: Final = 15
"""A map of at most this many entries has a header of one byte; a longer one has three."""
_KEY: Final = 12
"""The number of a record's first bytes that are its key in the cache. They differ for most classes."""
_VARIANTS: Final = 16
_EXTENSIONS: Final = frozenset({*range(0xC7, 0xCA), *range(0xD4, 0xD9)})
"""The first bytes of extensions."""
_PAIR: Final = msgpack.array_head(2)
_NIL: Final = msgpack.pack(None)
_ARRAYS: Final = {0xDC: 3, 0xDD: 5}
"""The lengths of array headers that are longer than one byte."""


class RecordCache:
    """A cache of the writers and variants of a registry's classes. A new `schema` or `upcast` declaration clears it."""

    __slots__ = ("variants", "writers")

    def __init__(self) -> None:
        self.variants: dict[bytes, list[Variant]] = {}
        """The known variants by the first bytes of their records."""
        self.writers: dict[type, Writer | None] = {}


def record_cache(types: Types) -> RecordCache:
    """Return the cache of a registry."""
    cache: RecordCache = RECORD_CACHES.get(types) or RECORD_CACHES.setdefault(types, RecordCache())
    return cache


def writer(info: ClassSchema) -> Writer | None:
    """Return a function that encodes instances of a class as payloads of records; `pack` encodes their dicts."""
    shape = info.shape
    if shape is None:
        return None
    attrs = msgpack.pack_attrs(info.name, info.version, shape.form)
    count, fields_of = len(shape.names), shape.held
    skip = 1 if count <= _FIXMAP else 3
    whole, partly = msgpack.array_head(3 + 2 * count) + attrs, msgpack.array_head(5 + 2 * count) + attrs
    tails: dict[frozenset[str], bytes] = {}

    def write(value: object, pack: Pack) -> bytes | None:
        fields = fields_of(value)
        data = None if fields is None else pack(fields[0])
        if fields is None or data is None:
            return None
        was_set = fields[1]
        if was_set is None:
            return whole + data[skip:]
        tail = tails.get(was_set)
        if tail is None:
            tail = tails[was_set] = msgpack.pack(HIDDEN) + msgpack.pack({"set": sorted(was_set)})
        return partly + data[skip:] + tail

    return write


class Variant(NamedTuple):
    """The common start and end of the records of one class in which the same fields were set."""

    start: bytes
    end: bytes
    head: bytes
    """The MessagePack header of the dict of fields."""
    cls: type
    names: tuple[str, ...]
    take: Callable[[Any], dict[str, Any] | None]
    """Returns the dict of an instance if its record has this variant, else None."""
    make: Callable[[dict[str, Any]], object]
    """Makes an instance from the dict of its fields."""
    model: Model | None
    """What `Models` needs to know of the class, if it is a model."""

    def matches(self, payload: bytes) -> bool:
        """Tell whether the payload of a record is of this variant."""
        return payload.startswith(self.start) and payload.endswith(self.end)

    def fields(self, payload: bytes) -> bytes:
        """Return the bytes of the dict of fields in a payload."""
        return self.head + payload[len(self.start) : len(payload) - len(self.end)]


class RecordReader:
    """Makes instances from the payloads of records, fast if an earlier record had the same variant."""

    __slots__ = ("_known", "_types")

    def __init__(self, types: Types) -> None:
        self._types = types
        self._known = record_cache(types).variants

    def find(self, payload: bytes) -> Variant | None:
        """Return the known variant of a payload, or None."""
        for variant in self._known.get(payload[:_KEY], ()):
            if variant.matches(payload):
                return variant
        return None

    def read(self, payload: bytes, unpack: Callable[[bytes], Any]) -> object | None:
        """Return the instance of a payload of a known variant, or None; `unpack` decodes its dict."""
        known = self.find(payload)
        if known is None:
            return None
        fields, end = unpack(_PAIR + known.fields(payload) + _NIL)  # extra bytes would be before the nil
        return known.make(fields) if end is None and type(fields) is dict and tuple(fields) == known.names else None

    def meet(self, payload: bytes, parts: list[Any]) -> Variant | None:
        """Cache the variant of a decoded record. Its parts are schema, version, form, name, value, name, value ..."""
        target = self._types.made_as(*parts[:3]) if len(parts) > 2 and type(parts[0]) is str else None  # noqa: PLR2004
        count = len(target[1].names) if target is not None else 0
        fields, rest = parts[3 : 3 + 2 * count], parts[3 + 2 * count :]
        if target is None or not count or tuple(fields[::2]) != target[1].names:
            return None
        was_set, end = target[1].nameset, b""
        if rest:
            was_set_names = _set_names(rest)
            if was_set_names is None:
                return None
            was_set, end = frozenset(was_set_names), msgpack.pack(HIDDEN) + msgpack.pack({"set": was_set_names})
        cls, shape = target
        take, make = shape.opener(was_set), shape.maker(cls, was_set)
        if take is None or make is None:
            return None
        start = msgpack.array_head(len(parts)) + msgpack.pack_attrs(*parts[:3])
        head, model = msgpack.head(count, 0x80, _FIXMAP, 0xDE), shape.model(cls, was_set)
        variant = Variant(start, end, head, cls, shape.names, take, make, model)
        known = self._known.setdefault(payload[:_KEY], [])
        if not variant.matches(payload):
            return None
        if len(known) < _VARIANTS and not any(each[:2] == variant[:2] for each in known):
            known.append(variant)
        return variant


def _set_names(rest: list[Any]) -> list[str] | None:
    """Return the names of the fields that were set, if the reserved field holds nothing else."""
    if len(rest) != 2 or rest[0] != HIDDEN or type(rest[1]) is not dict or rest[1].keys() != {"set"}:  # noqa: PLR2004
        return None
    names = rest[1]["set"]
    return names if type(names) is list and all(type(name) is str for name in names) else None


_apart: Final = slice
"""An `ext_hook` that keeps an extension undecoded. It is a C type, so Ctrl-C cannot interrupt the call."""


class FlatLeaf(NamedTuple):
    """A leaf of common records as an array of their dicts, so that one call can decode or compare them all."""

    data: bytes
    """An array of the dicts."""
    variants: list[Variant]
    models: Models | None
    """The classes of the records, if all are models."""

    @classmethod
    def of(cls, leaf: bytes, types: Types) -> FlatLeaf | None:
        """Return the flat form of a leaf's bytes; None if the leaf holds other values than common records."""
        if leaf[_ARRAYS.get(leaf[0], 1)] not in _EXTENSIONS:
            return None
        try:
            entries = ormsgpack.unpackb(leaf, ext_hook=_apart)
        except ValueError:
            return None
        reader = RecordReader(types)
        variants: list[Variant] = []
        parts: list[bytes] = [msgpack.array_head(len(entries))]
        for entry in entries:
            if type(entry) is not slice or entry.start != msgpack.RECORD:
                return None
            payload: bytes = entry.stop
            known = reader.find(payload) or reader.meet(payload, msgpack.unpackb(payload, ext_hook=_apart))
            if known is None:
                return None
            variants.append(known)
            parts.append(known.fields(payload))
        flat = cls(b"".join(parts), variants, Models.of([each.model for each in variants]))
        return flat if flat.is_sound() else None

    def joined(self, more: FlatLeaf) -> FlatLeaf:
        """Return the flat form of these records and `more`."""
        heads = [len(msgpack.array_head(len(each.variants))) for each in (self, more)]
        variants = self.variants + more.variants
        data = msgpack.array_head(len(variants)) + self.data[heads[0] :] + more.data[heads[1] :]
        models = None if self.models is None or more.models is None else self.models.joined(more.models)
        return FlatLeaf(data, variants, models)

    def held(self, values: list[Any]) -> list[dict[str, Any]] | None:
        """Return the dicts of instances if their variants are those of the leaf, else None."""
        if len(values) != len(self.variants):
            return None
        if self.models is not None:
            return self.models.take(values)
        made = [
            variant.take(value) if type(value) is variant.cls else None
            for value, variant in zip(values, self.variants, strict=True)
        ]
        return None if None in made else made  # type: ignore[return-value]

    def made(self, dicts: list[Any]) -> list[Any]:
        """Turn each decoded dict into an instance of its class."""
        if self.models is not None:
            return self.models.make(dicts)
        return [variant.make(fields) for fields, variant in zip(dicts, self.variants, strict=True)]

    def is_sound(self) -> bool:
        """Tell whether the dicts have the fields of their variants, in order."""
        count = len(self.variants)
        body = self.data[len(msgpack.array_head(count)) :]
        try:  # extra bytes in the last dict would come before the nil
            *dicts, end = ormsgpack.unpackb(msgpack.array_head(count + 1) + body + _NIL, ext_hook=_apart)
        except ValueError:
            return False
        return end is None and all(
            type(fields) is dict and tuple(fields) == variant.names
            for fields, variant in zip(dicts, self.variants, strict=True)
        )


def flat_leaf(node: Node, types: Types, now: RecordCache | None = None) -> FlatLeaf | None:
    """Return a leaf's flat form, cached in the node; None if the leaf holds other values than common records.

    `now` is the cache of the registry, if the caller has it.
    """
    known, now = node.flat, now or record_cache(types)
    if known is None or known[0] is not now:
        known = node.flat = (now, FlatLeaf.of(node.data, types))
    flat: FlatLeaf | None = known[1]
    return flat


def flat_entries(spine: Spine, types: Types) -> FlatLeaf | None:
    """Return the flat form of a sequence's open entries; None if they are not common records.

    It is cached in the spine. After an append, only the new entries are read.
    """
    entries, known, now = spine.levels[0], spine.flat, record_cache(types)
    flat, count = (None, 0) if known is None or known[0] is not now else known[1:]
    if count < len(entries):
        if flat is not None or (count == 0 and entries[0][0] in _EXTENSIONS):
            more = FlatLeaf.of(msgpack.array_head(len(entries) - count) + b"".join(entries[count:]), types)
            flat = more if flat is None or more is None else flat.joined(more)
        spine.flat = now, flat, len(entries)
    return flat
