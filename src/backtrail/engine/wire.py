"""The canonical bytes of plain data: one value, one encoding, and back to an equal value of the same type.

The encoding is MessagePack with extension types (docs/format.md lists them). It is exact or it is
refused: what MessagePack would blur (tuple and list, bytearray and bytes, 1 and True as keys, lone
surrogates ...) has an extension of its own, and what has none raises `Invalid`.

Always true here:
- equal bytes mean equal values of equal types, and the other way round (dict order included, sets sorted);
- decoding builds plain data and whatever `Types` has registered; it never imports and never runs stored code;
- a `REF` extension stands for a value that is kept in a node of its own (see `nodes`).

ormsgpack does the work in one call where it can (`Packer.fast`). It hands back what it does not know,
except for bytearray and memoryview, which it silently turns into bytes, and its own `Ext` and `Fragment`: those are
looked for.

It goes down on the machine's stack, half a kilobyte per level when it reads, and an extension begins to count anew. So
that no bytes can overflow the stack, extensions in extensions hold little nesting of their own, as written and as read.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import pathlib
import pickle
import struct
import sys
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.engine.schema import Member, Record, Types
from backtrail.errors import Corrupt, Error, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Extension codes. LIST, STR and BYTES are MessagePack's own types; they have codes because REFs name what they are.
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

MAX_DEPTH: Final = 64
"""How deep extensions may be nested in what is packed in one call."""
_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# ormsgpack packs lists and dicts 255 levels deep and unpacks 1022. Packing inside this many lists leaves room for the
# levels of containers around it that were taken apart one by one (MAX_DEPTH), of chunks and of rows.
_MARGIN: Final = MAX_DEPTH + 16
_SHALLOW: Final = 4
"""Extensions and nodes nested up to here may hold lists and dicts as deep as ormsgpack takes them."""
# Further down only this many levels are packed in one call.
_INNER: Final = 16
_INNER_MARGIN: Final = 255 - _INNER
_UNPACKED: Final = 1022
_DEEPEST: Final = 2 * MAX_DEPTH + 2
"""Extensions and nodes are never nested deeper: so many taken apart one by one, then as many packed in one call."""
_LEVELS: Final = 5000
"""How many levels of lists and dicts may be open beyond what is shallow: less than three megabytes of stack."""
_NO_HEADS: Final = bytes(set(range(256)) - {*range(0x80, 0xA0), *range(0xDC, 0xE0)})

_PATHS: Final[tuple[type[pathlib.PurePath], ...]] = (
    pathlib.PosixPath,
    pathlib.WindowsPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
)
_DECIMALS: Final = decimal.Context(capitals=1)
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
    """Return the header of an array."""
    return head(count, 0x90, 15, 0xDC)


def ext(code: int, payload: bytes) -> bytes:
    """Return one extension value."""
    return pack(ormsgpack.Ext(code, payload))


@functools.lru_cache(maxsize=1024, typed=True)
def _attrs(schema: str, version: int, form: str) -> bytes:
    """Return the encoding of what a record says about itself."""
    try:
        return pack(schema) + pack(version) + pack(form)
    except TypeError as error:
        raise Invalid(f"the schema {schema!r} cannot be kept: {error}", code="invalid.value") from error


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
        return ext(RECORD, array_head(3 + 2 * len(entries)) + _attrs(*attrs) + body)
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
        if not named or (type(name) is str and not _has_surrogates(name)):
            return [offset.days, offset.seconds, offset.microseconds, name if named else None]
    if type(zone) is zoneinfo.ZoneInfo and _has_key(zone):
        return zone.key
    raise Invalid(
        f"the time zone {zone!r} cannot be kept; use datetime.timezone or a zoneinfo.ZoneInfo with a key",
        code="invalid.value",
    )


def _has_key(zone: zoneinfo.ZoneInfo) -> bool:
    """Tell whether a zone was made from its key alone, not from a file."""
    try:
        zone.__reduce__()
    except pickle.PicklingError:
        return False
    return True


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


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
    decimal.Decimal: lambda v: ext(DECIMAL, _DECIMALS.to_sci_string(v).encode()),
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
            raise Invalid(
                "this Enum's value cannot be kept exactly; give its members plain values", code="invalid.value"
            )
        try:
            about = pack(dumped.schema) + pack(dumped.version) + pack(dumped.name)
        except TypeError as error:
            raise Invalid(f"this Enum's name cannot be kept: {error}", code="invalid.value") from error
        return ext(MEMBER, array_head(4) + about + inner)
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
        attrs = (record.schema, record.version, record.form)
        _attrs(*attrs)  # refuses what cannot be kept
        return RECORD, attrs, dict(record)
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


def _only_known(value: object, others: set[type]) -> bool:
    """Tell whether a value consists of exact plain types that ormsgpack keeps apart or hands back, and of others."""
    stack: list[Any] = [value]
    pop, extend = stack.pop, stack.extend
    while stack:
        item = pop()
        kind = type(item)
        if kind in _SCALARS or kind in others:
            continue
        if kind is dict:
            extend(item.values())
        elif kind in _CONTAINERS:
            extend(item)
        else:
            return False
    return True


class _Fragments:
    """Notices that somebody made an `ormsgpack.Fragment`, whose bytes ormsgpack would put in as they are.

    Each instance counts as a reference to its type. Other references only cost time: then values are looked at.
    """

    fewest = sys.getrefcount(ormsgpack.Fragment)

    @classmethod
    def may_exist(cls) -> bool:
        count = sys.getrefcount(ormsgpack.Fragment)
        cls.fewest = min(cls.fewest, count)
        return count > cls.fewest


def _inside(cell: list[Any], levels: int) -> list[Any]:
    """Put a list into this many lists, itself counted."""
    for _ in range(levels - 1):
        cell = [cell]
    return cell


class Packer:
    """Encodes values in one call of ormsgpack each; as its `default`, what it hands back. Not shared by threads."""

    __slots__ = ("_cell", "_depth", "_inner", "_interrupt", "_kinds", "_nested_cell", "_types")

    def __init__(self, types: Types) -> None:
        self._types = types
        self._depth = 0
        self._interrupt: BaseException | None = None
        self._kinds: set[type] = set()
        """Classes whose instances are handed back, and looked at then."""
        self._cell: list[Any] = [None]
        self._nested_cell = _inside(self._cell, _MARGIN)
        self._inner: dict[int, tuple[list[Any], list[Any]]] = {}

    def fast(self, value: object) -> bytes | None:
        """Encode a value, or return None if that is not sure to be exact (then take the value apart)."""
        self._cell[0] = value
        try:
            data = pack(self._nested_cell, default=self, option=_OPTIONS)[_MARGIN:]
        except (TypeError, RecursionError):
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                raise interrupt from None
            return None
        finally:
            self._cell[0] = None
        return data if self._is_exact(data, value) else None

    def _is_exact(self, data: bytes, value: object) -> bool:
        return not (_suspicious(data) or _Fragments.may_exist()) or _only_known(value, self._kinds)

    def __call__(self, value: object) -> ormsgpack.Ext:
        """Encode what ormsgpack hands back, or raise TypeError."""
        try:
            return self._extension(value)
        except Exception:
            raise
        except BaseException as error:  # such as Ctrl-C: ormsgpack replaces what is raised here
            self._interrupt = error
            raise

    def _extension(self, value: object) -> ormsgpack.Ext:
        kind = type(value)
        if kind in (tuple, set, frozenset):
            return ormsgpack.Ext(_CONTAINERS[kind], self._array(kind, value))
        encoded = atom(value, self._types)
        if encoded is not None:
            if kind not in _ATOMS:
                self._kinds.add(kind)
            return ormsgpack.Ext(*split_ext(encoded))
        opened = open_container(value, self._types)
        if opened is None or opened[0] != RECORD:
            raise TypeError
        _, attrs, fields = opened
        parts = [*(attrs or ()), *(part for pair in fields.items() for part in pair)]
        data = self._deeper(parts)
        if not self._is_exact(data, parts):
            raise TypeError
        self._kinds.add(kind)
        return ormsgpack.Ext(RECORD, data)

    def _array(self, kind: type, value: Any) -> bytes:
        if kind is tuple:
            return self._deeper(list(value))
        entries = sorted(self._deeper(item) for item in value)
        return array_head(len(entries)) + b"".join(entries)

    def _deeper(self, value: object) -> bytes:
        if self._depth >= MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        try:
            return pack(value, default=self, option=_OPTIONS) if self._depth <= _SHALLOW else self._deepest(value)
        finally:
            self._depth -= 1

    def _deepest(self, value: object) -> bytes:
        """Pack a value inside so many lists that it can hold only a few levels of its own."""
        if self._depth not in self._inner:
            cell: list[Any] = [None]
            self._inner[self._depth] = cell, _inside(cell, _INNER_MARGIN)
        cell, nested = self._inner[self._depth]
        cell[0] = value
        try:
            return pack(nested, default=self, option=_OPTIONS)[_INNER_MARGIN:]
        finally:
            cell[0] = None


def split_ext(encoded: bytes) -> tuple[int, bytes]:
    """Return the code and the payload of one encoded extension."""
    found: list[tuple[int, bytes]] = []
    try:
        _unpackb(encoded, ext_hook=lambda code, payload: found.append((code, payload)))
        return found[0]
    except (ValueError, TypeError, IndexError) as error:
        raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error


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
    try:
        if code == SET:
            return set(parts)
        if code == FROZENSET:
            return frozenset(parts)
        mapping = dict(zip(parts[::2], parts[1::2], strict=True))
    except TypeError as error:
        name = _record_in(parts if code in (SET, FROZENSET) else parts[::2])
        if name is None:
            raise
        raise Invalid(
            f"an instance of {name!r} is a key or in a set, and is not hashable without its class: name or register it",
            code="invalid.schema",
            schema=name,
        ) from error
    if code == DICT:
        return mapping
    if attrs is None:
        raise Corrupt("a record without a schema", code="corrupt.encoding")
    return types.load(Record(*attrs, mapping))


def _record_in(values: Iterable[Any]) -> str | None:
    """Return the schema of a record among these values, or in tuples among them."""
    for value in values:
        found = value.schema if type(value) is Record else _record_in(value) if type(value) is tuple else None
        if found is not None:
            return str(found)
    return None


def _height(data: bytes) -> int:
    """Return a bound on how deep lists and dicts are nested in what is not inside extensions. `Corrupt` if too deep."""
    bound = len(data.translate(None, _NO_HEADS))
    if bound <= _INNER:
        return bound
    for limit in (_INNER, MAX_DEPTH + 255):
        try:  # whether ormsgpack can read it so many levels down
            ormsgpack.unpackb(b"\x91" * (_UNPACKED - limit) + data, ext_hook=_nothing)
        except ValueError:
            continue
        return limit
    raise Corrupt("the stored bytes are nested deeper than any value", code="corrupt.encoding")


def _nothing(_code: int, _payload: bytes) -> None:
    """Stand in for an extension that is not looked at."""


class Unpacker:
    """Decodes values; `resolve` gives the value that a REF's payload stands for. Not shared by threads."""

    __slots__ = ("_depth", "_failure", "_levels", "_resolve", "_types")

    def __init__(self, types: Types, resolve: Callable[[bytes], Any] | None = None) -> None:
        self._types = types
        self._resolve = resolve
        self._failure: BaseException | None = None
        self._depth = 0
        self._levels = 0

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

    def array(self, data: bytes) -> list[Any]:
        """Decode the parts of a container, from inside `resolve` or an extension."""
        self._depth += 1
        levels = self._levels
        try:
            if self._depth > _SHALLOW:
                self._levels += _height(data)
                if self._levels > _LEVELS or self._depth > _DEEPEST:
                    raise Corrupt("the stored bytes are nested deeper than any value", code="corrupt.encoding")
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
        except (Error, MemoryError, RecursionError) as error:  # ormsgpack replaces what its hook raises
            self._failure = self._failure or error
            raise
        except Exception:
            raise
        except BaseException as error:  # such as Ctrl-C
            self._failure = error
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
        parts = self.array(payload)
        if code == MEMBER:
            return self._types.load(Member(*parts))
        if code == RECORD:
            schema, version, form, *fields = parts
            return build_container(RECORD, (schema, version, form), fields, self._types)
        return build_container(code, None, parts, self._types)


def split(array: bytes) -> list[bytes]:
    """Cut an encoded array into the bytes of its elements, without interpreting them."""
    try:
        values = _unpackb(array, ext_hook=ormsgpack.Ext)
        parts = [pack(value) for value in values]
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not values ({error})", code="corrupt.encoding") from error
    if type(values) is not list or len(array_head(len(parts))) + sum(map(len, parts)) != len(array):
        raise Corrupt("the stored bytes are not in canonical form", code="corrupt.encoding")
    return parts


def pairs(parts: list[bytes]) -> list[bytes]:
    """Join key, value, key, value ... to entries of a mapping."""
    if len(parts) % 2:
        raise Corrupt("a key without a value", code="corrupt.encoding")
    return [key + value for key, value in zip(parts[::2], parts[1::2], strict=True)]


def take_apart(data: bytes) -> tuple[int, tuple[str, int, str] | None, list[bytes]] | None:
    """Open an inline container: its code, a record's attributes, and its entries' bytes; None for an atom."""
    if not data:
        raise Corrupt("there are no bytes where a value should be", code="corrupt.encoding")
    first = data[0]
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        return LIST, None, split(data)
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        count, offset = _map_head(data)
        if count > len(data):
            raise Corrupt("the stored bytes are not values (they end too early)", code="corrupt.encoding")
        return DICT, None, pairs(split(array_head(2 * count) + data[offset:]))
    if first not in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8):
        return None
    code, payload = split_ext(data)
    if code not in NESTED or code == MEMBER:
        return None
    parts = split(payload)
    if code == RECORD:
        if len(parts) < 3:
            raise Corrupt("a record without a schema", code="corrupt.encoding")
        schema, version, form = map(plain, parts[:3])
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
    try:
        return pack(_unpackb(data, ext_hook=ormsgpack.Ext))
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error


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
    todo = [data]

    def hook(code: int, payload: bytes) -> None:
        if code == REF:
            found.append(payload)
        elif code in NESTED:
            todo.append(payload)

    try:
        while todo:
            _unpackb(todo.pop(), ext_hook=hook)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not values ({error})", code="corrupt.encoding") from error
    return found
