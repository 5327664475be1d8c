"""Canonical bytes to values: plain data, and instances of what `Types` has registered.

Decoding never imports and never runs stored code. Whatever is wrong with the bytes is `Corrupt`, also where it would
have taken too much memory or stack to find out.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.engine.schema import records
from backtrail.engine.schema.registry import Member, Record, Types
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.packer import INNER, PATHS, SHALLOW
from backtrail.errors import Corrupt, Error, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_UNPACKED: Final = 1022
_DEEPEST: Final = 2 * msgpack.MAX_DEPTH + 2
"""Extensions and nodes are never nested deeper: so many taken apart one by one, then as many packed in one call."""
_LEVELS: Final = 5000
"""How many levels of lists and dicts may be open beyond what is shallow: less than three megabytes of stack."""
_HIGHEST: Final = msgpack.MAX_DEPTH + 255
"""How many levels a writer nests: so many taken apart one by one, and what is packed in one call."""
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
    if kind is foreign:  # a concrete path of the other system: keep it, as a pure one
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
    """Put a container together from its decoded parts (in a mapping: key, value, key, value ...)."""
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
            f"an instance of {name!r} is a key or in a set, and is not hashable without its class: name or register it",
            code="invalid.schema",
            schema=name,
        ) from error
    if code == msgpack.DICT:
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
    if bound <= INNER:
        return bound
    for limit in (INNER, _HIGHEST):
        try:  # whether ormsgpack can read it so many levels down
            ormsgpack.unpackb(
                b"\x91" * (_UNPACKED - limit) + data, ext_hook=slice
            )  # which stands in for what is not read
        except ValueError:
            continue
        return limit
    raise Corrupt("the stored bytes are nested deeper than any value", code="corrupt.encoding")


def require_height(data: bytes) -> None:
    """Raise `Corrupt` if lists and dicts are nested deeper than a writer nests them."""
    if len(data.translate(None, _NO_HEADS)) > _HIGHEST:
        _height(data)


class Unpacker:
    """Decodes values; `resolve` gives the value that a REF's payload stands for. Not shared by threads."""

    __slots__ = ("_depth", "_failed", "_failure", "_levels", "_reader", "_resolve", "_types")

    def __init__(self, types: Types, resolve: Callable[[bytes], Any] | None = None) -> None:
        self._types = types
        self._resolve = resolve
        self._failure: BaseException | None = None
        self._failed = False
        """Whether anything was wrong in a hook: if not, and one has failed, it was interrupted."""
        self._depth = 0
        self._levels = 0
        self._reader = records.Reader(types)

    def __call__(self, data: bytes) -> Any:
        """Decode one value. Whatever is wrong with the bytes is `Corrupt`."""
        try:
            return self._value(data)
        except Corrupt as error:
            if self._failed or error.__cause__ is None or not msgpack.hook_failed(error.__cause__):  # type: ignore[arg-type]
                raise
            self._value(data)  # if it is too deep, that is so again
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
                raise Corrupt("a reference where none may stand", code="corrupt.encoding")
            return self._resolve(payload)
        if code not in msgpack.NESTED:
            raise Corrupt(f"unknown extension {code}; it may come from a newer backtrail", code="corrupt.encoding")
        parts = self.array(payload)
        if code == msgpack.MEMBER:
            return self._types.load(Member(*parts))
        if code == msgpack.RECORD:
            schema, version, form, *fields = parts
            self._reader.meet(payload, parts)
            return build_container(msgpack.RECORD, (schema, version, form), fields, self._types)
        return build_container(code, None, parts, self._types)

    def _fields(self, data: bytes) -> Any:
        """Decode the dict of an instance, from inside an extension that is not deep."""
        self._depth += 1
        try:
            return ormsgpack.unpackb(data, ext_hook=self._ext)
        except ValueError as error:
            if self._failure is not None or (msgpack.hook_failed(error) and not self._failed):
                raise
            self._failed = False
            return None  # it only began and ended like others
        finally:
            self._depth -= 1
