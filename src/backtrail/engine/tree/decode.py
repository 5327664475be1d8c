"""Canonical bytes to values: plain data, and instances of the classes in `Types`.

Decoding never imports a module and never runs stored code. Damaged bytes raise `Corrupt`, also where decoding them
would take too much memory or stack. `Unpacker` decodes one value from its bytes; `Decoder` also reads nodes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.engine import throttle
from backtrail.engine.schema import records
from backtrail.engine.schema.registry import Member, Record, Types
from backtrail.engine.tree import chunked, msgpack, text
from backtrail.engine.tree.encode import INNER, PATHS, SHALLOW
from backtrail.engine.tree.nodes import LEAF, Nodes, Rep, decode_ref, measured, most_of, size_of
from backtrail.errors import Corrupt, Error, Invalid
from backtrail.gc_pause import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backtrail.engine.tree.nodes import Node

_UNPACKED: Final = 1022
_DEEPEST: Final = 2 * msgpack.MAX_DEPTH + 2
"""Extensions and nodes are never nested deeper: MAX_DEPTH encoded one by one, and as many packed in one call."""
_LEVELS: Final = 5000
"""How many levels of lists and dicts may be open below SHALLOW: they take less than three megabytes of stack."""
_HIGHEST: Final = msgpack.MAX_DEPTH + 255
"""How many levels a writer nests: MAX_DEPTH encoded one by one, and 255 packed in one call."""
_NO_HEADS: Final = bytes(set(range(256)) - {*range(0x80, 0xA0), *range(0xDC, 0xE0)})


def _load_zone(spec: Any) -> dt.tzinfo | None:
    if spec is None:
        return None
    if spec is True:
        return dt.UTC
    if isinstance(spec, str):
        try:
            return zoneinfo.ZoneInfo(spec)
        except zoneinfo.ZoneInfoNotFoundError as error:
            raise Invalid(
                f"this machine does not know the time zone {spec!r}; install the tzdata package",
                code="invalid.zone",
            ) from error
    days, seconds, micros, name = spec
    offset = dt.timedelta(days, seconds, micros)
    return dt.timezone(offset) if name is None else dt.timezone(offset, name)


def _load_datetime(payload: bytes) -> dt.datetime:
    year, month, day, hour, minute, second, micro, fold, zone = ormsgpack.unpackb(payload)
    return dt.datetime(year, month, day, hour, minute, second, micro, _load_zone(zone), fold=fold)


def _load_time(payload: bytes) -> dt.time:
    hour, minute, second, micro, fold, zone = ormsgpack.unpackb(payload)
    return dt.time(hour, minute, second, micro, _load_zone(zone), fold=fold)


def _load_path(payload: bytes) -> pathlib.PurePath:
    text = payload[1:].decode("utf-8", "surrogatepass")
    kind = PATHS[payload[0]]
    foreign = pathlib.WindowsPath if isinstance(pathlib.Path(), pathlib.PosixPath) else pathlib.PosixPath
    if kind is foreign:  # a concrete path of the other operating system becomes a pure one
        kind = PATHS[payload[0] + 2]
    return kind(text)


_LOADERS: Final[dict[int, Callable[[bytes], Any]]] = {
    msgpack.INT: lambda p: int.from_bytes(p, "big", signed=True),
    msgpack.TEXT: lambda p: p.decode("utf-8", "surrogatepass"),
    msgpack.BYTEARRAY: bytearray,
    msgpack.DATETIME: _load_datetime,
    msgpack.DATE: lambda p: dt.date(*ormsgpack.unpackb(p)),
    msgpack.TIME: _load_time,
    msgpack.TIMEDELTA: lambda p: dt.timedelta(*ormsgpack.unpackb(p)),
    msgpack.UUID: lambda p: uuid.UUID(bytes=bytes(p)),
    msgpack.DECIMAL: lambda p: decimal.Decimal(p.decode()),
    msgpack.PATH: _load_path,
}


def build_container(code: int, attrs: tuple[str, int, str] | None, parts: list[Any], types: Types) -> Any:
    """Build a container from its decoded parts (of a mapping: key, value, key, value ...)."""
    if code == msgpack.LIST:
        return parts
    if code == msgpack.TUPLE:
        return tuple(parts)
    try:
        if code == msgpack.SET:
            return set(parts)
        if code == msgpack.FROZENSET:
            return frozenset(parts)
        mapping = dict(zip(parts[::2], parts[1::2], strict=True))
    except TypeError as error:
        name = _record_in(parts if code in (msgpack.SET, msgpack.FROZENSET) else parts[::2])
        if name is None:
            raise
        raise Invalid(
            f"an instance of {name!r} is a dict key or in a set, and is not hashable without its class; "
            "pass the class in types=[...]",
            code="invalid.schema",
            schema=name,
        ) from error
    if code == msgpack.DICT:
        return mapping
    if attrs is None:
        raise Corrupt("a stored object does not name its class", code="corrupt.encoding")
    return types.load(Record(*attrs, mapping))


def _record_in(values: Iterable[Any]) -> str | None:
    """Return the schema name of the first Record among the values, or in tuples among them; None if there is none."""
    for value in values:
        schema = value.schema if type(value) is Record else _record_in(value) if type(value) is tuple else None
        if schema is not None:
            return str(schema)
    return None


def _height(data: bytes) -> int:
    """Return an upper bound on the nesting of lists and dicts outside extensions; `Corrupt` if it is too deep."""
    bound = len(data.translate(None, _NO_HEADS))
    if bound <= INNER:
        return bound
    for limit in (INNER, _HIGHEST):
        try:  # nested so that ormsgpack has only `limit` levels left; `slice` replaces extensions
            ormsgpack.unpackb(b"\x91" * (_UNPACKED - limit) + data, ext_hook=slice)
        except ValueError:
            continue
        return limit
    raise Corrupt("the stored bytes are nested deeper than a value can be", code="corrupt.encoding")


def require_height(data: bytes) -> None:
    """Raise `Corrupt` if lists and dicts are nested deeper than any writer nests them."""
    if len(data.translate(None, _NO_HEADS)) > _HIGHEST:
        _height(data)


class Unpacker:
    """Decodes values; `resolve` returns the value of a REF. Not shared by threads."""

    __slots__ = ("_depth", "_failed", "_failure", "_levels", "_reader", "_resolve", "_types")

    def __init__(self, types: Types, resolve: Callable[[bytes], Any] | None = None) -> None:
        self._types = types
        self._resolve = resolve
        self._failure: BaseException | None = None
        self._failed = False
        """Whether a hook raised an error. If ormsgpack reports a failed hook and this is False, it was Ctrl-C."""
        self._depth = 0
        self._levels = 0
        self._reader = records.RecordReader(types)

    def __call__(self, data: bytes) -> Any:
        """Decode one value; `Corrupt` if the bytes are damaged."""
        try:
            return self._value(data)
        except Corrupt as error:
            if self._failed or error.__cause__ is None or not msgpack.hook_failed(error.__cause__):  # type: ignore[arg-type]
                raise
            self._value(data)  # raises again if the bytes are nested too deep
        raise KeyboardInterrupt

    def _value(self, data: bytes) -> Any:
        self._failure, self._failed = None, False
        try:
            return msgpack.unpackb(data, ext_hook=self._ext)
        except (ValueError, TypeError, RecursionError, OverflowError, IndexError, KeyError) as error:
            if self._failure is not None:
                raise self._failure from None
            if isinstance(error, Error):
                raise
            raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error

    def array(self, data: bytes) -> list[Any]:
        """Decode the parts of a container, from inside `resolve` or an extension."""
        self._depth += 1
        levels = self._levels
        try:
            if self._depth > SHALLOW:
                self._levels += _height(data)
                if self._levels > _LEVELS or self._depth > _DEEPEST:
                    raise Corrupt("the stored bytes are nested deeper than a value can be", code="corrupt.encoding")
            parts = ormsgpack.unpackb(data, ext_hook=self._ext)
        finally:
            self._depth -= 1
            self._levels = levels
        if type(parts) is not list:
            raise Corrupt("the stored bytes are not a container's parts", code="corrupt.encoding")
        return parts

    def _ext(self, code: int, payload: bytes) -> Any:
        try:
            return self._load(code, payload)
        except (Error, MemoryError, RecursionError) as error:  # ormsgpack replaces the exception
            self._failure = self._failure or error
            raise
        except Exception as error:
            self._failed = self._failed or not msgpack.hook_failed(error)
            raise
        except BaseException as error:  # such as Ctrl-C
            self._failure = error
            raise

    def _load(self, code: int, payload: bytes) -> Any:
        if code == msgpack.RECORD and self._depth < SHALLOW:
            made = self._reader.read(payload, self._fields)
            if made is not None:
                return made
        loader = _LOADERS.get(code)
        if loader is not None:
            return loader(payload)
        if code == msgpack.REF:
            if self._resolve is None:
                raise Corrupt("the stored bytes have a reference where none is allowed", code="corrupt.encoding")
            return self._resolve(payload)
        if code not in msgpack.NESTED:
            raise Corrupt(
                f"unknown extension {code}; a newer version of backtrail may have written it", code="corrupt.encoding"
            )
        parts = self.array(payload)
        if code == msgpack.MEMBER:
            return self._types.load(Member(*parts))
        if code == msgpack.RECORD:
            schema, version, form, *fields = parts
            self._reader.meet(payload, parts)
            return build_container(msgpack.RECORD, (schema, version, form), fields, self._types)
        return build_container(code, None, parts, self._types)

    def _fields(self, data: bytes) -> Any:
        """Decode the dict of an instance, from inside a shallow extension."""
        self._depth += 1
        try:
            return ormsgpack.unpackb(data, ext_hook=self._ext)
        except ValueError as error:
            if self._failure is not None or (msgpack.hook_failed(error) and not self._failed):
                raise
            self._failed = False
            return None  # not of the variant: the record only begins and ends like it
        finally:
            self._depth -= 1


# -- decoding -----------------------------------------------------------------------------------------

_MANY: Final = 200
"""From this many parts on, decoding pauses Python's garbage collector."""
_BATCH: Final = 256
"""How many leaves are read at once, which bounds the memory of a load."""


class Decoder:
    """Turns representations back into values, reading nodes in batches."""

    def __init__(self, nodes: Nodes, types: Types) -> None:
        self._nodes = nodes
        self._types = types
        self._unpacker = Unpacker(types, self._resolve)
        self._rep = b""
        self._left: int | None = None
        """How many more bytes may be read for the current value."""

    def value(self, rep: bytes) -> Any:
        """Return the value of a representation; `Corrupt` if it is much larger than its stated size."""
        self._rep, self._left = rep, None
        return self._unpacker(rep)

    def _spend(self, size: int) -> None:
        """Count decoded bytes; `Corrupt` if there are many more than the stated size of the value."""
        if self._left is None:
            self._left = most_of(size_of(self._rep if type(self._rep) is Rep else measured(self._rep)))
        self._left -= size
        if self._left < 0:
            raise Corrupt("the value is larger than its stated size", code="corrupt.encoding")

    def values(self, reps: Sequence[bytes]) -> list[Any]:
        """Return the values of several representations."""
        return [self.value(rep) for rep in reps]

    def _resolve(self, payload: bytes) -> Any:
        ref = decode_ref(payload)
        if ref.code in text.TEXTS:
            self._spend(ref.length)
        if ref.code == msgpack.STR:
            return text.load(self._nodes, ref).decode()
        if ref.code == msgpack.TEXT:
            return text.load(self._nodes, ref).decode("utf-8", "surrogatepass")
        if ref.code == msgpack.BYTES:
            return text.load(self._nodes, ref)
        if ref.code == msgpack.BYTEARRAY:
            return bytearray(text.load(self._nodes, ref))
        spine = chunked.read_spine(self._nodes, ref)
        if spine.code != ref.code:
            raise Corrupt("a reference and its container are of different kinds", code="corrupt.encoding")
        if spine.length < _MANY:
            return build_container(spine.code, spine.attrs, self._parts(spine), self._types)
        with uncollected():
            return build_container(spine.code, spine.attrs, self._parts(spine), self._types)

    def _items(self, node: Node, spine: chunked.Spine) -> list[Any]:
        """Return the values of a leaf's entries."""
        flat = None if spine.is_mapping else records.flat_leaf(node, self._types)
        if flat is not None:
            return flat.made(self._unpacker.array(flat.data))
        return self._unpacker.array(node.data)

    def _parts(self, spine: chunked.Spine) -> list[Any]:
        chunks = chunked.leaf_chunks(self._nodes, spine)
        parts: list[Any] = []
        for at in range(0, len(chunks), _BATCH):
            batch = chunks[at : at + _BATCH]
            nodes = self._nodes.load(chunk.digest for chunk in batch)
            self._nodes.load(digest for node in nodes.values() for digest in node.children())  # warms the cache
            for chunk in batch:
                throttle.rest()
                node = nodes[chunk.digest]
                if node.kind != LEAF:
                    raise Corrupt("a chunk that should be a leaf is of another kind", code="corrupt.chunk")
                self._spend(len(node.data))
                parts += self._items(node, spine)
        tail = chunked.tail_array(spine)
        self._spend(len(tail))
        flat = None if spine.is_mapping else records.flat_entries(spine, self._types)
        parts += self._unpacker.array(tail) if flat is None else flat.made(self._unpacker.array(flat.data))
        return parts
