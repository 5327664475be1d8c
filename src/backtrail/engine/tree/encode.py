"""Values to canonical bytes, exact or refused: a value that cannot be kept exactly raises `Invalid` with its path.

`Packer.fast` packs a value in one call of ormsgpack. ormsgpack hands back the types that it does not know. It also
packs three things that it should not: it turns bytearray and memoryview into bytes, and it copies the bytes of its own
`Ext` and `Fragment` objects. `Packer.is_exact` finds those by their types. `Encoder` packs a value in one call if the
result is exact and short enough to stand inline; otherwise it encodes the parts one by one.

Decoding uses half a kilobyte of the machine's stack per level, and ormsgpack counts levels from zero in each
extension. To bound the stack, nested extensions hold only a few levels of their own.
"""

from __future__ import annotations

import datetime as dt
import decimal
import marshal
import pathlib
import pickle
import uuid
import zoneinfo
from itertools import chain, count, islice, repeat
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.engine import throttle
from backtrail.engine.schema import records
from backtrail.engine.schema.registry import Member, Record, Types
from backtrail.engine.tree import chunked, msgpack, text
from backtrail.engine.tree.nodes import INLINE, Nodes
from backtrail.engine.tree.path import Path
from backtrail.errors import Invalid
from backtrail.models import Items

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from backtrail.engine.tree.chunked import Entry

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# ormsgpack packs 255 levels of lists and dicts and unpacks 1022. A value is packed inside this many lists, which
# reserves levels for the containers around it that are encoded one by one (MAX_DEPTH), for chunks and for rows.
MARGIN: Final = msgpack.MAX_DEPTH + 16
SHALLOW: Final = 4
"""Extensions and nodes nested up to here may hold lists and dicts as deep as ormsgpack packs them."""
INNER: Final = 16
"""Deeper extensions hold at most this many levels."""
_INNER_MARGIN: Final = 255 - INNER

PATHS: Final[tuple[type[pathlib.PurePath], ...]] = (
    pathlib.PosixPath,
    pathlib.WindowsPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
)
_DECIMALS: Final = decimal.Context(capitals=1)


def _zone(zone: dt.tzinfo | None) -> Any:
    """Return plain data for a time zone; `Invalid` if decoding could not rebuild the zone."""
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
        f"the time zone {zone!r} cannot be stored; use datetime.timezone or a zoneinfo.ZoneInfo with a key",
        code="invalid.value",
    )


def _has_key(zone: zoneinfo.ZoneInfo) -> bool:
    """Tell whether a zone was made from its key. A zone that was read from a file may also have a key."""
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
_SIZED: Final = frozenset({list, dict, tuple, set, frozenset, str, bytes, bytearray})
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes, *_ATOMS} - {bytearray})


def simplified(value: Any, types: Types) -> Any:
    """Return the value; for an instance of an unknown class, its plain value from the registry's `PlainFallback`."""
    kind = type(value)
    return value if kind in _ATOMS or kind in _CONTAINERS or kind in (Record, Member) else types.plain(value)


def atom(value: object, types: Types) -> bytes | None:
    """Return the encoding of a value without parts; None for a container or an unknown class."""
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
        member = f"Enum member {dumped.name!a:.60} of {dumped.schema!a:.60}"
        inner = Packer(types).fast(dumped.value)
        if inner is None:
            raise Invalid(
                f"the value of {member} cannot be stored exactly; give the members of that Enum plain values",
                code="invalid.value",
            )
        try:
            about = msgpack.pack(dumped.schema) + msgpack.pack(dumped.version) + msgpack.pack(dumped.name)
        except TypeError as error:
            raise Invalid(f"the name of {member} cannot be stored: {error}", code="invalid.value") from error
        return msgpack.ext(msgpack.MEMBER, msgpack.array_head(4) + about + inner)
    return None


Opened = tuple[int, tuple[str, int, str] | None, Any]
"""A container: its code, a record's (schema, version, form), and the list or dict of its parts."""


def open_container(value: object, types: Types) -> Opened | None:
    """Return a container's code and parts; None if the value is not a container of a known class."""
    value = simplified(value, types)
    code = _CONTAINERS.get(type(value))
    if code is not None:
        return code, None, value
    record = types.dump(value)
    if type(record) is Record:
        attrs = (record.schema, record.version, record.form)
        msgpack.pack_attrs(*attrs)  # `Invalid` if they cannot be stored
        return msgpack.RECORD, attrs, dict(record)
    return None


def may_hold_bytes(data: bytes) -> bool:
    """Tell whether packed data may hold bytes, which may come from a bytearray or a memoryview."""
    return 0xC4 in data or 0xC5 in data or 0xC6 in data


def _consists_of(value: object, kinds: frozenset[type] | set[type]) -> bool:
    """Tell whether a value holds nothing but plain containers and instances of exactly these classes."""
    level: list[Any] = [value]
    while level:
        below: list[Any] = []
        for kind in set(map(type, level)) - kinds:
            same: list[Any] = [item for item in level if type(item) is kind]
            if kind is dict:
                below.extend(chain.from_iterable(map(dict.values, same)))
            elif kind in _CONTAINERS:
                below.extend(chain.from_iterable(same))
            else:
                return False
        level = below
    return True


def _is_builtin(value: Any) -> bool:
    """Tell whether a value holds objects of Python's own types alone: marshal refuses all others."""
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True


def is_long(value: Any) -> bool:
    """Tell whether a value certainly takes more than INLINE bytes: it has more parts, of at least one byte each."""
    return type(value) in _SIZED and len(value) > INLINE


def is_without_bytes(data: bytes, value: object) -> bool:
    """Tell whether a value that packs to `data` holds neither bytes nor instances that pack like other values."""
    return not may_hold_bytes(data) or _consists_of(value, _PLAIN)


def _inside(cell: list[Any], levels: int) -> list[Any]:
    """Return a list nested in other lists: `levels` lists, itself included."""
    for _ in range(levels - 1):
        cell = [cell]
    return cell


def _new_cell() -> tuple[list[Any], list[Any]]:
    cell: list[Any] = [None]
    return cell, _inside(cell, MARGIN)


# Nested lists to pack a value in, each with its innermost list. `nested` takes one out while it packs.
_cells: list[tuple[list[Any], list[Any]]] = []


def flat(value: Any) -> bytes | None:
    """Encode an atom, or a dict of atoms as most messages are, in one call; None for other values."""
    if type(value) in _PLAIN or (type(value) is dict and _PLAIN.issuperset(map(type, value.values()))):
        try:
            return msgpack.pack(value)
        except TypeError:  # a str with lone surrogates, an int beyond 64 bits, or a key that is no str
            pass
    return None


def flat_inline(value: Any) -> bytes | None:
    """Encode a value as `flat` does; None also if it takes more than INLINE bytes."""
    data = flat(value)
    return data if data is not None and len(data) <= INLINE else None


class Packer:
    """Encodes each value in one call of ormsgpack, and is the `default` hook of that call. Not shared by threads."""

    _depth = 0
    _interrupt: BaseException | None = None
    extensions = 0
    """How many values that ormsgpack handed back have become extensions."""
    _kinds = _SCALARS
    """Classes whose instances ormsgpack packs exactly, or hands back to this object."""
    _writers: dict[type, records.Writer | None] | None = None
    """Functions that encode the instances of a class quickly; None until ormsgpack hands back a value."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self._inner: dict[int, tuple[list[Any], list[Any]]] = {}

    def _accept(self, kind: type) -> None:
        """Add a class whose instances this object encodes exactly."""
        if kind not in self._kinds:
            self._kinds |= {kind}

    def fast(self, value: object) -> bytes | None:
        """Encode a value in one call; None if the result may not be exact."""
        data = flat(value)
        if data is not None:
            return data
        before = self.extensions
        data = self.nested(value)
        if data is None:
            return None
        exact = self.is_exact(data, value) if self.extensions == before else _consists_of(value, self._kinds)
        return data[MARGIN:] if exact else None

    def inline_with(self, value: object, parts: list[Any]) -> bytes | None:
        """Do what `inline` does, if only `parts` of the value may be other than plain strings, lists and dicts."""
        data = self.nested(value)
        if data is None or len(data) > MARGIN + INLINE or not self.is_exact(data, parts):
            return None
        return data[MARGIN:]

    def short(self, values: list[Any]) -> list[bytes | None]:
        """Encode each value; None for one that takes more than INLINE bytes, or that one call cannot encode exactly.

        One check for all values is much faster than a check for each.
        """
        try:
            packed = [None if is_long(v) else msgpack.pack(v, default=self, option=_OPTIONS) for v in values]
        except (TypeError, RecursionError):
            self._raise_interrupt()
            return [self.inline(value) for value in values]
        packed = [data if data is not None and len(data) <= INLINE else None for data in packed]
        short = values if None not in packed else [v for v, data in zip(values, packed, strict=True) if data]
        whole = self.nested(short)
        if whole is None or not self.is_exact(whole, short):
            return [self.inline(value) for value in values]
        return packed

    def inline(self, value: object) -> bytes | None:
        """Encode a value in one call; None if that takes more than INLINE bytes, or may not be exact."""
        data = None if type(value) in _SIZED and len(value) > INLINE else self.fast(value)  # type: ignore[arg-type]
        return data if data is not None and len(data) <= INLINE else None

    def nested(self, value: object) -> bytes | None:
        """Encode a value inside MARGIN lists; None if one call cannot do that. The result may not be exact."""
        cell, nested = _cells.pop() if _cells else _new_cell()
        cell[0] = value
        try:
            return self.alone(nested)
        finally:
            cell[0] = None
            _cells.append((cell, nested))

    def alone(self, value: object) -> bytes | None:
        """Encode a value of any depth that one call can encode, to compare it; else None. It may not be exact."""
        try:
            return msgpack.pack(value, default=self, option=_OPTIONS)
        except (TypeError, RecursionError):
            self._raise_interrupt()
            return None

    def _raise_interrupt(self) -> None:
        """Raise the exception, such as Ctrl-C, that interrupted the hook and that ormsgpack replaced."""
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt from None

    def is_exact(self, data: bytes, value: Any) -> bool:
        """Tell whether `data`, packed in one call, stands for this value and no other."""
        if not (0xC4 in data or 0xC5 in data or 0xC6 in data):  # `may_hold_bytes`, without a call
            try:
                marshal.dumps(value)
            except ValueError:  # it holds objects of other types than Python's own
                pass
            else:
                return True
        return _consists_of(value, self._kinds)

    def are_exact(self, encodings: list[bytes], values: list[Any]) -> bool:
        """Tell whether values that pack to `encodings` in one call are exact, as `is_exact` does."""
        if not _is_builtin(values):
            return _consists_of(values, self._kinds)
        suspects = [
            value
            for data, value in zip(encodings, values, strict=True)
            if 0xC4 in data or 0xC5 in data or 0xC6 in data  # `may_hold_bytes`, without a call
        ]
        return _consists_of(suspects, self._kinds)

    def __call__(self, value: object) -> Any:
        """Encode a value that ormsgpack hands back; TypeError if that is not possible in one call."""
        try:
            if self._writers is None:
                self._writers = records.record_cache(self._types).writers
            write = self._writers.get(type(value))
            data = None if write is None else write(value, self._quick)
            if data is None:
                return self._extension(value)
            self._accept(type(value))
            self.extensions += 1
            return ormsgpack.Ext(msgpack.RECORD, data)
        except Exception:
            raise
        except BaseException as error:  # such as Ctrl-C: ormsgpack replaces the exception
            self._interrupt = error
            raise

    def _extension(self, value: object) -> Any:
        kind = type(value)
        if kind in (tuple, Items, set, frozenset):
            self.extensions += 1
            return ormsgpack.Ext(_CONTAINERS[kind], self._array(kind, value))
        plain = simplified(value, self._types)
        if plain is not value:
            if type(plain) not in _PLAIN:  # its parts may not be exact: encode them one by one
                raise TypeError
            self._accept(kind)
            return plain
        self.extensions += 1
        encoded = atom(value, self._types)
        if encoded is not None:
            if kind not in _ATOMS:
                self._accept(kind)
            return ormsgpack.Ext(*msgpack.split_ext(encoded))
        opened = open_container(value, self._types)
        if opened is None or opened[0] != msgpack.RECORD:
            raise TypeError
        _, attrs, fields = opened
        parts = [*(attrs or ()), *(part for pair in fields.items() for part in pair)]
        data = self._deeper(parts)
        if not self.is_exact(data, parts):
            raise TypeError
        self._accept(kind)
        if self._writers is not None and kind not in self._writers:
            plan = self._types.fielded(kind)
            self._writers[kind] = None if plan is None else records.writer(plan)
        return ormsgpack.Ext(msgpack.RECORD, data)

    def _quick(self, fields: dict[str, Any]) -> bytes | None:
        """Encode the dict of an instance; None if the result may not be exact."""
        if self._depth >= SHALLOW:
            return None
        self._depth += 1
        try:
            data = msgpack.pack(fields, default=self, option=_OPTIONS)
        finally:
            self._depth -= 1
        return data if self.is_exact(data, fields) else None

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
        """Pack a value inside lists that leave room for INNER levels."""
        if self._depth not in self._inner:
            cell: list[Any] = [None]
            self._inner[self._depth] = cell, _inside(cell, _INNER_MARGIN)
        cell, nested = self._inner[self._depth]
        cell[0] = value
        try:
            return msgpack.pack(nested, default=self, option=_OPTIONS)[_INNER_MARGIN:]
        finally:
            cell[0] = None


# -- encoding -----------------------------------------------------------------------------------------

MAX_NESTED: Final = msgpack.MAX_DEPTH
"""The most levels of containers that are encoded one by one, and of the path of a change."""
_TEXT_CODES: Final[dict[type, int]] = {str: msgpack.STR, bytes: msgpack.BYTES, bytearray: msgpack.BYTEARRAY}
_FEW: Final = 64
"""The number of parts that are packed before they are checked together."""


class Encoder(Packer):
    """Encodes values into representations; adds the nodes of long values to `nodes`."""

    def __init__(self, nodes: Nodes, types: Types, root: Path | None = None, *, what: str = "state") -> None:
        self._types = types
        self._inner = {}
        self.nodes = nodes
        self._path: list[Any] = [*root] if root else []
        self._what = what
        self._open: dict[int, object] = {}
        """The containers around the current one, by their ids."""

    def rep(self, value: object) -> bytes:
        """Return the representation of a value; `Invalid` with the path of a part that cannot be stored exactly."""
        if len(self._path) > MAX_NESTED:
            raise self._refuse(f"nested deeper than {MAX_NESTED} levels")
        depth = len(self._path)
        try:
            return self._inline(value) or self._apart(value)
        except RecursionError:
            raise self._too_deep(depth) from None

    def part(self, step: object, value: object) -> bytes:
        """Return the representation of a part of the value at the root path."""
        throttle.rest()
        path = self._path
        rep = self.inline(value) if 0 < len(path) < MAX_NESTED else None
        if rep is None:
            path.append(step)
            rep = self.rep(value)
            self._path.pop()
        return rep

    def entries(self, code: int, parts: Any, start: int = 0) -> list[Entry]:
        """Return the entries of a container: of its items, which begin at index `start`, or of a mapping's dict."""
        depth = len(self._path)
        try:
            return self._entries(code, parts, start)
        except RecursionError:
            raise self._too_deep(depth) from None

    def key(self, key: object) -> bytes:
        """Return the bytes of a key; `Invalid` if they would not be exact."""
        depth = len(self._path)
        try:
            return self._whole(key, key)
        except RecursionError:
            raise self._too_deep(depth) from None

    def _too_deep(self, depth: int) -> Invalid:
        """Return the error for a value that needs too much of the stack; `depth` is the length of its path."""
        del self._path[depth:]
        self._open.clear()
        return self._refuse("nested too deep")

    def _inline(self, value: object) -> bytes | None:
        """Return the representation of a value that one call can encode inline, else None."""
        return self.inline(value) if self._path or not _holds_long(value) else None

    def _apart(self, value: object) -> bytes:
        value = simplified(value, self._types)
        return self._text(value) or self._atom(value) or self._container(value)

    def _text(self, value: Any) -> bytes | None:
        code = _TEXT_CODES.get(type(value))
        if code is None:
            return None
        if code != msgpack.STR:
            return text.close(self.nodes, code, bytes(value))
        data = value.encode("utf-8", "surrogatepass")
        return text.close(self.nodes, text.str_code(data), data)

    def _atom(self, value: object) -> bytes | None:
        try:
            return atom(value, self._types)
        except Invalid as error:
            raise self._refuse(str(error)) from error

    def _opened(self, value: object) -> Opened:
        try:
            opened = open_container(value, self._types)
        except Invalid as error:
            raise self._refuse(str(error)) from error
        if opened is None:
            raise self._refuse(_why(value))
        if id(value) in self._open:
            raise self._refuse("a value that contains itself")
        if len(self._path) >= MAX_NESTED:
            raise self._refuse(f"nested deeper than {MAX_NESTED} levels")
        self._open[id(value)] = value
        return opened

    def _container(self, value: object) -> bytes:
        code, attrs, parts = self._opened(value)
        entries = self._entries(code, parts)
        del self._open[id(value)]
        return chunked.build(self.nodes, code, attrs, entries).close(self.nodes)

    def _entries(self, code: int, parts: Any, start: int = 0) -> list[Entry]:
        if code in msgpack.MAPPINGS:
            keys = [data or self._whole(key, key) for key, data in self._packed(parts)]
            reps = self._reps(parts, parts.values())
            return [
                key + rep if type(rep) is bytes else chunked.join(key, rep) for key, rep in zip(keys, reps, strict=True)
            ]
        if code in (msgpack.SET, msgpack.FROZENSET):
            return sorted(self._reps(repeat("{}"), parts))
        return self._reps(count(start), parts)

    def _reps(self, steps: Iterable[object], values: Collection[object]) -> list[bytes]:
        """Return the representations of a container's parts."""
        at_root = not self._path and len(values) <= _FEW and any(map(_holds_long, values))
        packed = ((value, self._inline(value)) for value in values) if at_root else self._packed(values)
        return [data or self._part(step, value) for step, (value, data) in zip(steps, packed, strict=False)]

    def _part(self, step: object, value: object) -> bytes:
        self._path.append(step)
        rep = self._apart(value)
        self._path.pop()
        return rep

    def _packed(self, values: Iterable[object]) -> Iterator[tuple[object, bytes | None]]:
        """Yield each value with its encoding, if that is short and exact."""
        values = iter(values)
        while batch := list(islice(values, _FEW)):
            throttle.rest()
            yield from zip(batch, self.short(batch), strict=True)

    def _whole(self, step: object, value: object) -> bytes:
        """Return the canonical bytes of a key or of its part, of any length: a key holds no REF."""
        data = self.fast(value)
        if data is not None:
            return data
        self._path.append(step)
        data = self._atom(value)
        if data is None:
            code, attrs, parts = self._opened(value)
            if code in msgpack.MAPPINGS:
                entries = [self._whole(key, key) + self._whole(key, part) for key, part in parts.items()]
            elif code in (msgpack.SET, msgpack.FROZENSET):
                entries = sorted(self._whole("{}", part) for part in parts)
            else:
                entries = [self._whole(at, part) for at, part in enumerate(parts)]
            del self._open[id(value)]
            data = msgpack.inline(code, attrs, entries)
        self._path.pop()
        return data

    def _refuse(self, why: str) -> Invalid:
        try:
            below = str(Path(self._path))
        except Exception:  # noqa: BLE001 - the repr of a key may raise anything
            below = str(Path(step if type(step) in (str, int) else type(step).__name__ for step in self._path))
        path = self._what + (f".{below}" if below and not below.startswith("[") else below)
        return Invalid(f"{path}: {why}", code="invalid.value", path=path)


def _holds_long(value: Any) -> bool:
    """Tell whether a short container holds a long value, up to three levels down, so that one call would be wasted.

    A wasted call is slow, and blocks all other threads of the process while it runs.
    """
    level: list[Any] = [value]
    for _ in range(3):
        below: list[Any] = []
        for item in level:
            if type(item) in (dict, list) and len(item) <= _FEW:
                below += item.values() if type(item) is dict else item
        for part in below:
            if type(part) in _SIZED and len(part) > INLINE:
                return True
        level = below
    return False


def _why(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, dict | list | tuple | set | frozenset | str | bytes | int | float):
        return (
            f"{name} is a subclass of a plain type and would be loaded as that type; save it as plain data, "
            "or register it with types=[backtrail.Type(...)]"
        )
    return f"{name} cannot be stored exactly; save plain data instead, or register it with types=[backtrail.Type(...)]"
