"""Instances of classes that were named, as records in few steps: those that hold nothing unusual.

Nearly all instances have just their fields, in their order, in their `__dict__`. The bytes of a record are a header,
what it says about itself, and its fields: name, value, name, value. Those of a dict are a header and the same. So such
an instance is packed and unpacked as its dict, and the beginning is put before it or compared. Whatever is different is
None here, and is then done step by step; both ways give the same bytes, and the same instances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import wire
from backtrail.engine.shapes import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.schema import Types
    from backtrail.engine.shapes import Shape
    from backtrail.engine.versions import Plan

_FIXMAP: Final = 15
"""A map of so many entries, at most, has a header of one byte; that of a longer one has three."""
_KEY: Final = 12
"""By so many bytes of its beginning a record is told from those of most other classes."""


def writer(plan: Plan, pack: Callable[[dict[str, Any]], bytes | None]) -> Callable[[object], bytes | None] | None:
    """Return what encodes instances of a class as the payloads of records; `pack` encodes their dicts."""
    shape = plan.shape
    if shape is None:
        return None
    attrs = wire.pack_attrs(plan.name, plan.version, shape.form)
    count, held_of = len(shape.names), shape.held
    skip = 1 if count <= _FIXMAP else 3
    whole, partly = wire.array_head(3 + 2 * count) + attrs, wire.array_head(5 + 2 * count) + attrs
    tails: dict[frozenset[str], bytes] = {}

    def write(value: object) -> bytes | None:
        held = held_of(value)
        data = None if held is None else pack(held[0])
        if held is None or data is None:
            return None
        was_set = held[1]
        if was_set is None:
            return whole + data[skip:]
        tail = tails.get(was_set)
        if tail is None:
            tail = tails[was_set] = wire.pack(HIDDEN) + wire.pack({"set": sorted(was_set)})
        return partly + data[skip:] + tail

    return write


class Reader:
    """Makes instances of the payloads of records. What it has met once, it knows by its first bytes."""

    __slots__ = ("_known", "_types")

    def __init__(self, types: Types) -> None:
        self._types = types
        self._known: dict[bytes, tuple[bytes, bytes, bytes, type, Shape, frozenset[str]]] = {}

    def read(self, payload: bytes, unpack: Callable[[bytes], Any]) -> object | None:
        """Return the instance that a payload stands for, if one like it was met before; `unpack` decodes its dict."""
        known = self._known.get(payload[:_KEY])
        if known is None:
            return None
        start, end, head, cls, shape, was_set = known
        if not (payload.startswith(start) and payload.endswith(end)):
            return None
        fields = unpack(head + payload[len(start) : len(payload) - len(end)])
        return shape.revived(cls, fields, was_set) if type(fields) is dict and tuple(fields) == shape.names else None

    def meet(self, payload: bytes, schema: str, version: int, form: str, parts: list[Any]) -> None:
        """Take note of a record that was decoded step by step: name, value, name, value ..."""
        found = self._types.made_as(schema, version, form)
        count = len(found[1].names) if found is not None else 0
        if found is None or not count or tuple(parts[: 2 * count : 2]) != found[1].names:
            return
        rest = parts[2 * count :]
        was_set, end = found[1].nameset, b""
        if rest:
            if len(rest) != 2 or rest[0] != HIDDEN or type(rest[1]) is not dict or rest[1].keys() != {"set"}:  # noqa: PLR2004
                return
            listed = rest[1]["set"]
            if type(listed) is not list or not all(type(name) is str for name in listed):
                return
            was_set, end = frozenset(listed), wire.pack(HIDDEN) + wire.pack(rest[1])
        start = wire.array_head(3 + len(parts)) + wire.pack_attrs(schema, version, form)
        if payload.startswith(start) and payload.endswith(end):
            head = wire.head(count, 0x80, _FIXMAP, 0xDE)
            self._known[payload[:_KEY]] = (start, end, head, *found, was_set)
