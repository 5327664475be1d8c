"""Values to canonical bytes, exact or refused: what cannot be kept as it is raises `Invalid`.

ormsgpack does the work in one call where it can (`Packer.fast`). It hands back what it does not know,
except for bytearray and memoryview, which it silently turns into bytes, and its own `Ext` and `Fragment`: those are
looked for, if there is any sign of them.

Reading goes down on the machine's stack, half a kilobyte per level, and an extension begins to count anew. So that no
bytes can overflow the stack, extensions in extensions hold little nesting of their own, as written and as read.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import pickle
import sys
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.engine.schema import records
from backtrail.engine.schema.registry import Member, Record, Types
from backtrail.engine.tree import msgpack
from backtrail.errors import Invalid
from backtrail.models import Items

if TYPE_CHECKING:
    from collections.abc import Callable

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
# levels of containers around it that were taken apart one by one (wire.MAX_DEPTH), of chunks and of rows.
MARGIN: Final = msgpack.MAX_DEPTH + 16
SHALLOW: Final = 4
"""Extensions and nodes nested up to here may hold lists and dicts as deep as ormsgpack takes them."""
# Further down only this many levels are packed in one call.
INNER: Final = 16
_INNER_MARGIN: Final = 255 - INNER

PATHS: Final[tuple[type[pathlib.PurePath], ...]] = (
    pathlib.PosixPath,
    pathlib.WindowsPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
)
_DECIMALS: Final = decimal.Context(capitals=1)


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
        return msgpack.pack(value)
    return msgpack.ext(msgpack.INT, value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))


def _pack_str(value: str) -> bytes:
    try:
        return msgpack.pack(value)
    except TypeError:
        return msgpack.ext(msgpack.TEXT, value.encode("utf-8", "surrogatepass"))


def _pack_datetime(v: dt.datetime) -> bytes:
    fields = [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold, _zone(v.tzinfo)]
    return msgpack.ext(msgpack.DATETIME, msgpack.pack(fields))


def _pack_time(v: dt.time) -> bytes:
    return msgpack.ext(msgpack.TIME, msgpack.pack([v.hour, v.minute, v.second, v.microsecond, v.fold, _zone(v.tzinfo)]))


def _pack_path(v: pathlib.PurePath) -> bytes:
    return msgpack.ext(msgpack.PATH, bytes((PATHS.index(type(v)),)) + str(v).encode("utf-8", "surrogatepass"))


_ATOMS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): msgpack.pack,
    bool: msgpack.pack,
    int: _pack_int,
    float: msgpack.pack,
    str: _pack_str,
    bytes: msgpack.pack,
    bytearray: lambda v: msgpack.ext(msgpack.BYTEARRAY, bytes(v)),
    dt.datetime: _pack_datetime,
    dt.date: lambda v: msgpack.ext(msgpack.DATE, msgpack.pack([v.year, v.month, v.day])),
    dt.time: _pack_time,
    dt.timedelta: lambda v: msgpack.ext(msgpack.TIMEDELTA, msgpack.pack([v.days, v.seconds, v.microseconds])),
    uuid.UUID: lambda v: msgpack.ext(msgpack.UUID, v.bytes),
    decimal.Decimal: lambda v: msgpack.ext(msgpack.DECIMAL, _DECIMALS.to_sci_string(v).encode()),
    **dict.fromkeys(PATHS, _pack_path),
}
_CONTAINERS: Final[dict[type, int]] = {
    list: msgpack.LIST,
    tuple: msgpack.TUPLE,
    Items: msgpack.TUPLE,
    set: msgpack.SET,
    frozenset: msgpack.FROZENSET,
    dict: msgpack.DICT,
}
_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes, *_ATOMS} - {bytearray})


def simplified(value: Any, types: Types) -> Any:
    """Return what a value is kept as: itself, unless it is of a class that is not known, and it was said how."""
    kind = type(value)
    return value if kind in _ATOMS or kind in _CONTAINERS or kind in (Record, Member) else types.plain(value)


def atom(value: object, types: Types) -> bytes | None:
    """Return the encoding of a value that has no parts, or None for one that has (or that is unknown)."""
    encoder = _ATOMS.get(type(value))
    if encoder is None:
        value = simplified(value, types)
        encoder = _ATOMS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if type(value) in _CONTAINERS or type(value) is Record:
        return None
    dumped = types.dump(value)
    if type(dumped) is Member:
        inner = Packer(types).fast(dumped.value)
        if inner is None:
            raise Invalid(
                "this Enum's value cannot be kept exactly; give its members plain values", code="invalid.value"
            )
        try:
            about = msgpack.pack(dumped.schema) + msgpack.pack(dumped.version) + msgpack.pack(dumped.name)
        except TypeError as error:
            raise Invalid(f"this Enum's name cannot be kept: {error}", code="invalid.value") from error
        return msgpack.ext(msgpack.MEMBER, msgpack.array_head(4) + about + inner)
    return None


Opened = tuple[int, tuple[str, int, str] | None, Any]
"""A container taken apart: its code, a record's (schema, version, form), and the list or dict of its parts."""


def open_container(value: object, types: Types) -> Opened | None:
    """Take a container apart by one level; None if it is not a container that can be kept."""
    value = simplified(value, types)
    code = _CONTAINERS.get(type(value))
    if code is not None:
        return code, None, value
    record = types.dump(value)
    if type(record) is Record:
        attrs = (record.schema, record.version, record.form)
        msgpack.pack_attrs(*attrs)  # refuses what cannot be kept
        return msgpack.RECORD, attrs, dict(record)
    return None


def _may_hold_bytes(data: bytes) -> bool:
    """Tell whether packed data could hold bytes, which may have been a bytearray or a memoryview."""
    return 0xC4 in data or 0xC5 in data or 0xC6 in data


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


def _only_plain(value: object) -> bool:
    """Tell whether a value consists of what MessagePack has a form of its own for, bytes excepted."""
    stack: list[Any] = [value]
    pop, extend = stack.pop, stack.extend
    while stack:
        item = pop()
        kind = type(item)
        if kind in _PLAIN:
            continue
        if kind is dict:
            extend(item.values())
        elif kind is list:
            extend(item)
        else:
            return False
    return True


class _Foreign:
    """Notices that somebody made an `ormsgpack.Fragment` or `Ext`, whose bytes ormsgpack would put in as they are.

    Each instance counts as a reference to its type. Other references only cost time: then values are looked at. Both
    types are referred to equally often at first, but for whoever holds one of them while this is imported.
    """

    fewest = (min(sys.getrefcount(ormsgpack.Fragment), sys.getrefcount(ormsgpack.Ext)),) * 2

    @classmethod
    def may_exist(cls) -> bool:
        fragments, extensions = sys.getrefcount(ormsgpack.Fragment), sys.getrefcount(ormsgpack.Ext)
        few, some = cls.fewest
        if fragments <= few and extensions <= some:
            cls.fewest = fragments, extensions
            return False
        return True


def _inside(cell: list[Any], levels: int) -> list[Any]:
    """Put a list into this many lists, itself counted."""
    for _ in range(levels - 1):
        cell = [cell]
    return cell


def _new_cell() -> tuple[list[Any], list[Any]]:
    cell: list[Any] = [None]
    return cell, _inside(cell, MARGIN)


# Lists in lists to pack a value in, each with its innermost: whoever packs takes one out meanwhile.
_cells: list[tuple[list[Any], list[Any]]] = []


class Packer:
    """Encodes values in one call of ormsgpack each; as its `default`, what it hands back. Not shared by threads."""

    __slots__ = ("_depth", "_foreign", "_inner", "_interrupt", "_kinds", "_types", "_writers", "handed")

    def __init__(self, types: Types) -> None:
        self._types = types
        self._depth = 0
        self._interrupt: BaseException | None = None
        self.handed = 0
        """How many values ormsgpack has handed back."""
        self._kinds: set[type] = set()
        """Classes whose instances are handed back, and looked at then."""
        self._inner: dict[int, tuple[list[Any], list[Any]]] = {}
        self._foreign = True
        self._writers = records.learned(types).writers
        """What encodes instances of a class in few steps."""

    def fast(self, value: object) -> bytes | None:
        """Encode a value, or return None if that is not sure to be exact (then take the value apart)."""
        data = self.nested(value)
        return data[MARGIN:] if data is not None and self.is_exact(data, value) else None

    def nested(self, value: object) -> bytes | None:
        """Encode a value inside of MARGIN lists; None if that cannot be done in one call. See `is_exact`."""
        cell, nested = _cells.pop() if _cells else _new_cell()
        cell[0] = value
        self._foreign = _Foreign.may_exist()
        try:
            return msgpack.pack(nested, default=self, option=_OPTIONS)
        except (TypeError, RecursionError):
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                raise interrupt from None
            return None
        finally:
            cell[0] = None
            _cells.append((cell, nested))

    def is_exact(self, data: bytes, value: object) -> bool:
        """Tell whether what was packed in one call stands for this value and no other."""
        return not (_may_hold_bytes(data) or _Foreign.may_exist()) or _only_known(value, self._kinds)

    @staticmethod
    def is_plain(data: bytes, value: object) -> bool:
        """Tell whether a value that was packed with nothing `handed` back holds no bytes either."""
        return not _Foreign.may_exist() and (not _may_hold_bytes(data) or _only_plain(value))

    @staticmethod
    def is_surely_exact() -> bool:
        """Tell whether bytes that are equal to those of plain data come from nothing else."""
        return not _Foreign.may_exist()

    def __call__(self, value: object) -> Any:
        """Encode what ormsgpack hands back, or raise TypeError."""
        self.handed += 1
        try:
            write = self._writers.get(type(value))
            data = None if write is None else write(value, self._quick)
            if data is None:
                return self._extension(value)
            self._kinds.add(type(value))
            return ormsgpack.Ext(msgpack.RECORD, data)
        except Exception:
            raise
        except BaseException as error:  # such as Ctrl-C: ormsgpack replaces what is raised here
            self._interrupt = error
            raise

    def _extension(self, value: object) -> Any:
        kind = type(value)
        if kind in (tuple, Items, set, frozenset):
            return ormsgpack.Ext(_CONTAINERS[kind], self._array(kind, value))
        plain = simplified(value, self._types)
        if plain is not value:
            if type(plain) not in _PLAIN:  # what is in it may be blurred: take it apart
                raise TypeError
            self._kinds.add(kind)
            return plain
        encoded = atom(value, self._types)
        if encoded is not None:
            if kind not in _ATOMS:
                self._kinds.add(kind)
            return ormsgpack.Ext(*msgpack.split_ext(encoded))
        opened = open_container(value, self._types)
        if opened is None or opened[0] != msgpack.RECORD:
            raise TypeError
        _, attrs, fields = opened
        parts = [*(attrs or ()), *(part for pair in fields.items() for part in pair)]
        data = self._deeper(parts)
        if not self.is_exact(data, parts):
            raise TypeError
        self._kinds.add(kind)
        if kind not in self._writers:
            plan = self._types.fielded(kind)
            self._writers[kind] = None if plan is None else records.writer(plan)
        return ormsgpack.Ext(msgpack.RECORD, data)

    def _quick(self, fields: dict[str, Any]) -> bytes | None:
        """Encode the dict of an instance; None if that is not sure to be exact."""
        if self._depth >= SHALLOW:
            return None
        self._depth += 1
        try:
            data = msgpack.pack(fields, default=self, option=_OPTIONS)
        finally:
            self._depth -= 1
        if self._foreign or 0xC4 in data or 0xC5 in data or 0xC6 in data:
            return data if self.is_exact(data, fields) else None
        return data

    def _array(self, kind: type, value: Any) -> bytes:
        if kind is tuple or kind is Items:
            return self._deeper(list(value))
        entries = sorted(self._deeper(item) for item in value)
        return msgpack.array_head(len(entries)) + b"".join(entries)

    def _deeper(self, value: object) -> bytes:
        if self._depth >= msgpack.MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        try:
            return (
                msgpack.pack(value, default=self, option=_OPTIONS) if self._depth <= SHALLOW else self._deepest(value)
            )
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
            return msgpack.pack(nested, default=self, option=_OPTIONS)[_INNER_MARGIN:]
        finally:
            cell[0] = None
