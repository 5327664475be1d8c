"""The canonical bytes of plain data: one value, one encoding, and back to an equal value of the same type.

The encoding is MessagePack with extension types (docs/format.md lists them). It is exact or it is
refused: what MessagePack would blur (tuple and list, bytearray and bytes, 1 and True as keys, lone
surrogates ...) has an extension of its own, and what has none raises `Invalid`.

Always true here:
- equal bytes mean equal values of equal types, and the other way round (dict order included, sets sorted);
- decoding builds plain data and whatever `Types` has registered; it never imports and never runs stored code;
- a `REF` extension stands for a value that is kept in a node of its own (see `nodes`).

ormsgpack does the work in one call where it can (`Packer.fast`). It hands back what it does not know,
except for bytearray and memoryview, which it silently turns into bytes, and its own `Ext`: those are looked for.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import struct
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.engine.schema import Member, Record, Types
from backtrail.errors import Corrupt, Error, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Extension codes. LIST, STR and BYTES are MessagePack's own types; they have a code because REFs name what they stand for.
LIST: Final = 0
TUPLE: Final = 1
SET: Final = 2
FROZENSET: Final = 3
DICT: Final = 4
RECORD: Final = 5
MEMBER: Final = 6
INT: Final = 7
TEXT: Final = 8  # str with lone surrogates
BYTEARRAY: Final = 9
DATETIME: Final = 10
DATE: Final = 11
TIME: Final = 12
TIMEDELTA: Final = 13
UUID: Final = 14
DECIMAL: Final = 15
PATH: Final = 16
REF: Final = 17
STR: Final = 18
BYTES: Final = 19

SEQUENCES: Final = frozenset({LIST, TUPLE, SET, FROZENSET})
MAPPINGS: Final = frozenset({DICT, RECORD})
NESTED: Final = frozenset({TUPLE, SET, FROZENSET, DICT, RECORD, MEMBER})
"""Extensions whose payload is one MessagePack value that may hold further extensions."""

MAX_DEPTH: Final = 200
_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# ormsgpack nests 254 levels deep both ways. Packing inside this many lists leaves room for the levels
# that chunks and rows add, so that whatever could be packed can be unpacked.
_MARGIN: Final = 54
_MARGIN_BYTES: Final = b"\x91" * _MARGIN

_PATHS: Final[tuple[type[pathlib.PurePath], ...]] = (
    pathlib.PosixPath,
    pathlib.WindowsPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
)
_STR_HEADS: Final = frozenset([*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB])

SUBCLASSES: Final = ormsgpack.OPT_PASSTHROUGH_SUBCLASS
pack = ormsgpack.packb
"""Pack plain MessagePack data of our own making (rows, refs): no user values."""


def _unpackb(data: bytes, ext_hook: Callable[[int, bytes], Any] | None = None) -> Any:
    """Unpack bytes, also those of a subclass, which ormsgpack does not take."""
    return ormsgpack.unpackb(data if type(data) is bytes else memoryview(data), ext_hook=ext_hook)


def head(count: int, fix: int, fix_max: int, wide: int) -> bytes:
    """Return the MessagePack header of an array or map of `count` elements."""
    if count <= fix_max:
        return bytes((fix | count,))
    if count <= 0xFFFF:
        return struct.pack(">BH", wide, count)
    return struct.pack(">BI", wide + 1, count)


def array_head(count: int) -> bytes:
    return head(count, 0x90, 15, 0xDC)


def ext(code: int, payload: bytes) -> bytes:
    """Return one extension value."""
    return pack(ormsgpack.Ext(code, payload))


def is_plain_key(entry: bytes) -> bool:
    """Tell whether a mapping's entry (key bytes, value bytes) begins with an ordinary str."""
    return entry[0] in _STR_HEADS


def inline(code: int, attrs: tuple[str, int, str] | None, entries: Iterable[bytes]) -> bytes:
    """Return the encoding of a container from the encodings of its entries (in a mapping: key then value)."""
    entries = list(entries)
    body = b"".join(entries)
    if code == LIST:
        return array_head(len(entries)) + body
    if code == DICT and all(is_plain_key(entry) for entry in entries):
        return head(len(entries), 0x80, 15, 0xDE) + body
    if code == RECORD:
        if attrs is None:
            raise Corrupt("a record without a schema", code="corrupt.encoding")
        return ext(RECORD, array_head(3 + 2 * len(entries)) + b"".join(map(pack, attrs)) + body)
    return ext(code, array_head(len(entries) * (2 if code == DICT else 1)) + body)


# -- encoding ---------------------------------------------------------------------------------------


def _zone(zone: dt.tzinfo | None) -> Any:
    """Return a plain description of a time zone, or refuse one that could not be rebuilt."""
    if zone is None:
        return None
    if zone is dt.UTC:
        return True
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        named = name != dt.timezone(offset).tzname(None)
        return [offset.days, offset.seconds, offset.microseconds, name if named else None]
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return zone.key
    raise Invalid(
        f"the time zone {zone!r} cannot be kept; use datetime.timezone or a zoneinfo.ZoneInfo with a key",
        code="invalid.value",
    )


def _pack_int(value: int) -> bytes:
    if -(2**63) <= value < 2**64:
        return pack(value)
    return ext(INT, value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))


def _pack_str(value: str) -> bytes:
    try:
        return pack(value)
    except TypeError:
        return ext(TEXT, value.encode("utf-8", "surrogatepass"))


def _pack_datetime(v: dt.datetime) -> bytes:
    fields = [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold, _zone(v.tzinfo)]
    return ext(DATETIME, pack(fields))


def _pack_time(v: dt.time) -> bytes:
    return ext(TIME, pack([v.hour, v.minute, v.second, v.microsecond, v.fold, _zone(v.tzinfo)]))


def _pack_path(v: pathlib.PurePath) -> bytes:
    return ext(PATH, bytes((_PATHS.index(type(v)),)) + str(v).encode("utf-8", "surrogatepass"))


_ATOMS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): pack,
    bool: pack,
    int: _pack_int,
    float: pack,
    str: _pack_str,
    bytes: pack,
    bytearray: lambda v: ext(BYTEARRAY, bytes(v)),
    dt.datetime: _pack_datetime,
    dt.date: lambda v: ext(DATE, pack([v.year, v.month, v.day])),
    dt.time: _pack_time,
    dt.timedelta: lambda v: ext(TIMEDELTA, pack([v.days, v.seconds, v.microseconds])),
    uuid.UUID: lambda v: ext(UUID, v.bytes),
    decimal.Decimal: lambda v: ext(DECIMAL, str(v).encode()),
    **dict.fromkeys(_PATHS, _pack_path),
}
_CONTAINERS: Final[dict[type, int]] = {list: LIST, tuple: TUPLE, set: SET, frozenset: FROZENSET, dict: DICT}
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes, *_ATOMS} - {bytearray})


def atom(value: object, types: Types) -> bytes | None:
    """Return the encoding of a value that has no parts, or None for one that has (or that is unknown)."""
    encoder = _ATOMS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if type(value) in _CONTAINERS or type(value) is Record:
        return None
    dumped = value if type(value) is Member else types.dump(value)
    if type(dumped) is Member:
        inner = Packer(types).fast(dumped.value)
        if inner is None:
            raise Invalid("this Enum's value cannot be kept exactly; give its members plain values", code="invalid.value")
        head_part = array_head(4) + pack(dumped.schema) + pack(dumped.version) + pack(dumped.name)
        return ext(MEMBER, head_part + inner)
    return None


Opened = tuple[int, tuple[str, int, str] | None, Any]
"""A container taken apart: its code, a record's (schema, version, form), and the list or dict of its parts."""


def open_container(value: object, types: Types) -> Opened | None:
    """Take a container apart by one level; None if it is not a container that can be kept."""
    code = _CONTAINERS.get(type(value))
    if code is not None:
        return code, None, value
    record = value if type(value) is Record else types.dump(value)
    if type(record) is Record:
        return RECORD, (record.schema, record.version, record.form), dict(record)
    return None


def _suspicious(data: bytes) -> bool:
    """Tell whether the bytes could hold a bin or an ext, which may have been a bytearray or a foreign Ext."""
    return (
        0xC4 in data
        or 0xC5 in data
        or 0xC6 in data
        or 0xC7 in data
        or 0xD4 in data
        or 0xD5 in data
        or 0xD6 in data
        or 0xD7 in data
        or 0xD8 in data
        or 0xC8 in data
        or 0xC9 in data
    )


def _only_known(value: object) -> bool:
    """Tell whether a value consists of exact plain types that ormsgpack keeps apart or hands back."""
    stack: list[Any] = [value]
    pop, extend = stack.pop, stack.extend
    while stack:
        item = pop()
        kind = type(item)
        if kind in _SCALARS:
            continue
        if kind is dict:
            extend(item.values())
        elif kind in _CONTAINERS:
            extend(item)
        else:
            return False
    return True


class Packer:
    """Encodes values in one call of ormsgpack each; as its `default`, what ormsgpack hands back. Not shared by threads."""

    __slots__ = ("_cell", "_depth", "_nested_cell", "_types")

    def __init__(self, types: Types) -> None:
        self._types = types
        self._depth = 0
        self._cell: list[Any] = [None]
        nested: list[Any] = self._cell
        for _ in range(_MARGIN - 1):
            nested = [nested]
        self._nested_cell = nested

    def fast(self, value: object) -> bytes | None:
        """Encode a value, or return None if that is not sure to be exact (then take the value apart)."""
        self._cell[0] = value
        try:
            data = pack(self._nested_cell, default=self, option=_OPTIONS)[_MARGIN:]
        except (TypeError, RecursionError):
            return None
        finally:
            self._cell[0] = None
        if _suspicious(data) and not _only_known(value):
            return None
        return data

    def __call__(self, value: object) -> ormsgpack.Ext:
        kind = type(value)
        if kind in (tuple, set, frozenset):
            return ormsgpack.Ext(_CONTAINERS[kind], self._array(kind, value))
        encoded = atom(value, self._types)
        if encoded is not None:
            return ormsgpack.Ext(*split_ext(encoded))
        opened = open_container(value, self._types)
        if opened is None or opened[0] != RECORD:
            raise TypeError
        _, attrs, fields = opened
        parts = [*(attrs or ()), *(part for pair in fields.items() for part in pair)]
        return ormsgpack.Ext(RECORD, self._deeper(parts))

    def _array(self, kind: type, value: Any) -> bytes:
        if kind is tuple:
            return self._deeper(list(value))
        entries = sorted(self._deeper(item) for item in value)
        return array_head(len(entries)) + b"".join(entries)

    def _deeper(self, value: object) -> bytes:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        try:
            return pack(value, default=self, option=_OPTIONS)
        finally:
            self._depth -= 1


def split_ext(encoded: bytes) -> tuple[int, bytes]:
    """Return the code and the payload of one encoded extension."""
    found: list[tuple[int, bytes]] = []
    _unpackb(encoded, ext_hook=lambda code, payload: found.append((code, payload)))
    return found[0]


# -- decoding ---------------------------------------------------------------------------------------


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
    kind = _PATHS[payload[0]]
    foreign = pathlib.WindowsPath if isinstance(pathlib.Path(), pathlib.PosixPath) else pathlib.PosixPath
    if kind is foreign:  # a concrete path of the other system: keep it, as a pure one
        kind = _PATHS[payload[0] + 2]
    return kind(text)


_LOADERS: Final[dict[int, Callable[[bytes], Any]]] = {
    INT: lambda p: int.from_bytes(p, "big", signed=True),
    TEXT: lambda p: p.decode("utf-8", "surrogatepass"),
    BYTEARRAY: bytearray,
    DATETIME: _load_datetime,
    DATE: lambda p: dt.date(*ormsgpack.unpackb(p)),
    TIME: _load_time,
    TIMEDELTA: lambda p: dt.timedelta(*ormsgpack.unpackb(p)),
    UUID: lambda p: uuid.UUID(bytes=bytes(p)),
    DECIMAL: lambda p: decimal.Decimal(p.decode()),
    PATH: _load_path,
}


def build_container(code: int, attrs: tuple[str, int, str] | None, parts: list[Any], types: Types) -> Any:
    """Put a container together from its decoded parts (in a mapping: key, value, key, value ...)."""
    if code == LIST:
        return parts
    if code == TUPLE:
        return tuple(parts)
    if code == SET:
        return set(parts)
    if code == FROZENSET:
        return frozenset(parts)
    mapping = dict(zip(parts[::2], parts[1::2], strict=True))
    if code == DICT:
        return mapping
    if attrs is None:
        raise Corrupt("a record without a schema", code="corrupt.encoding")
    return types.load(Record(*attrs, mapping))


class Unpacker:
    """Decodes values; `resolve` gives the value that a REF's payload stands for."""

    __slots__ = ("_failure", "_resolve", "_types")

    def __init__(self, types: Types, resolve: Callable[[bytes], Any] | None = None) -> None:
        self._types = types
        self._resolve = resolve
        self._failure: Error | None = None

    def __call__(self, data: bytes) -> Any:
        """Decode one value. Whatever is wrong with the bytes is `Corrupt`."""
        self._failure = None
        try:
            return _unpackb(data, ext_hook=self._ext)
        except (ValueError, TypeError, RecursionError, OverflowError, IndexError, KeyError) as error:
            if self._failure is not None:
                raise self._failure from None
            if isinstance(error, Error):
                raise
            raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error

    def _ext(self, code: int, payload: bytes) -> Any:
        try:
            return self._load(code, payload)
        except Error as error:  # ormsgpack replaces what its hook raises
            self._failure = self._failure or error
            raise

    def _load(self, code: int, payload: bytes) -> Any:
        loader = _LOADERS.get(code)
        if loader is not None:
            return loader(payload)
        if code == REF:
            if self._resolve is None:
                raise Corrupt("a reference where none may stand", code="corrupt.encoding")
            return self._resolve(payload)
        if code not in NESTED:
            raise Corrupt(f"unknown extension {code}; it may come from a newer backtrail", code="corrupt.encoding")
        parts: list[Any] = ormsgpack.unpackb(payload, ext_hook=self._ext)
        if code == MEMBER:
            return self._types.load(Member(*parts))
        if code == RECORD:
            schema, version, form, *fields = parts
            return build_container(RECORD, (schema, version, form), fields, self._types)
        return build_container(code, None, parts, self._types)


def split(array: bytes) -> list[bytes]:
    """Cut an encoded array into the bytes of its elements, without interpreting them."""
    try:
        parts = [pack(value) for value in _unpackb(array, ext_hook=ormsgpack.Ext)]
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not values ({error})", code="corrupt.encoding") from error
    if len(array_head(len(parts))) + sum(map(len, parts)) != len(array):
        raise Corrupt("the stored bytes are not in canonical form", code="corrupt.encoding")
    return parts


def pairs(parts: list[bytes]) -> list[bytes]:
    """Join key, value, key, value ... to entries of a mapping."""
    return [key + value for key, value in zip(parts[::2], parts[1::2], strict=True)]


def take_apart(data: bytes) -> tuple[int, tuple[str, int, str] | None, list[bytes]] | None:
    """Open an inline container: its code, a record's attributes, and its entries' bytes; None for an atom."""
    first = data[0]
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        return LIST, None, split(data)
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        count, offset = _map_head(data)
        return DICT, None, pairs(split(array_head(2 * count) + data[offset:]))
    if first not in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8):
        return None
    code, payload = split_ext(data)
    if code not in NESTED or code == MEMBER:
        return None
    parts = split(payload)
    if code == RECORD:
        schema, version, form = (ormsgpack.unpackb(part) for part in parts[:3])
        return RECORD, (schema, version, form), pairs(parts[3:])
    return code, None, pairs(parts) if code == DICT else parts


def _map_head(data: bytes) -> tuple[int, int]:
    """Return how many entries a map has, and where they begin."""
    first = data[0]
    if first & 0xF0 == 0x80:
        return first & 0x0F, 1
    if first == 0xDE:
        return int.from_bytes(data[1:3], "big"), 3
    return int.from_bytes(data[1:5], "big"), 5


def first_in(data: bytes) -> bytes:
    """Return the bytes of the first of the values that stand one after the other."""
    return pack(_unpackb(data, ext_hook=ormsgpack.Ext))


def values_in(data: bytes) -> list[bytes]:
    """Return the parts of one value, or of a mapping's entry (a key and a value), that stand one after the other."""
    first = first_in(data)
    return [first] if len(first) == len(data) else [first, data[len(first) :]]


def plain(data: bytes) -> Any:
    """Decode a value that holds no extensions."""
    try:
        return _unpackb(data)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error


def refs_in(data: bytes) -> list[bytes]:
    """Return the payloads of all REFs in an encoded value, at any depth."""
    found: list[bytes] = []

    def hook(code: int, payload: bytes) -> None:
        if code == REF:
            found.append(payload)
        elif code in NESTED:
            ormsgpack.unpackb(payload, ext_hook=hook)

    try:
        _unpackb(data, ext_hook=hook)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not values ({error})", code="corrupt.encoding") from error
    return found
