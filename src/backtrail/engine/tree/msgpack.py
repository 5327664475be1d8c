"""The canonical bytes of plain data: MessagePack, with extensions for the types that MessagePack does not tell apart.

Such types are tuple and list, bytearray and bytes, 1 and True as keys, str with lone surrogates; docs/format.md lists
the extensions. Two values have equal bytes if and only if they are equal and of equal types (dicts in order, sets
sorted). A `REF` extension stands for a value that has a node of its own (see `nodes`).

This module joins, splits and searches bytes without decoding them. `encode` makes them from values, `decode` makes
values from them.
"""

from __future__ import annotations

import functools
import operator
import struct
from typing import TYPE_CHECKING, Any, Final

import ormsgpack

from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Extension codes. LIST, STR and BYTES are MessagePack's own types; they have codes because a REF names its type.
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

_REF_MARK: Final = b"\x11\x94"
"""The bytes that every REF holds: its code, and the head of its array of four."""

SEQUENCES: Final = frozenset({LIST, TUPLE, SET, FROZENSET})
MAPPINGS: Final = frozenset({DICT, RECORD})
NESTED: Final = frozenset({TUPLE, SET, FROZENSET, DICT, RECORD, MEMBER})
"""Extensions whose payload is one MessagePack value that may hold further extensions."""

MAX_DEPTH: Final = 64
"""How deep extensions may be nested in a value that is packed in one call."""
_STR_HEADS: Final = frozenset([*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB])

PLAIN_HEADS: Final = frozenset([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
"""The first bytes of lists and dicts. Their headers depend on the number of entries alone."""
_first: Final = operator.itemgetter(0)

SUBCLASSES: Final = ormsgpack.OPT_PASSTHROUGH_SUBCLASS
pack = ormsgpack.packb
"""Pack plain MessagePack data that backtrail made (rows, refs), never a user's values."""


def unpackb(data: bytes, ext_hook: Callable[[int, bytes], Any] | None = None) -> Any:
    """Unpack bytes. ormsgpack takes no subclass of bytes; this function does."""
    return ormsgpack.unpackb(data if type(data) is bytes else memoryview(data), ext_hook=ext_hook)


def hook_failed(error: Exception) -> bool:
    """Tell whether ormsgpack reports that its hook failed, without a reason.

    If the hook raised no error, Ctrl-C interrupted the call of the hook. Then the bytes are not damaged.
    """
    return str(error) == "ext_hook failed"


def _hooked(data: bytes, hook: Callable[[int, bytes], Any]) -> None:
    """Unpack bytes and call `hook` for each extension. The hook must not raise: a failed hook means Ctrl-C."""
    try:
        unpackb(data, ext_hook=hook)
    except ValueError as error:
        if not hook_failed(error):
            raise
        raise KeyboardInterrupt from None


def head(count: int, fix: int, fix_max: int, wide: int) -> bytes:
    """Return the MessagePack header of an array or map of `count` elements."""
    if count <= fix_max:
        return bytes((fix | count,))
    if count <= 0xFFFF:
        return struct.pack(">BH", wide, count)
    return struct.pack(">BI", wide + 1, count)


@functools.lru_cache(maxsize=4096)
def array_head(count: int) -> bytes:
    """Return the MessagePack header of an array of `count` elements."""
    return head(count, 0x90, 15, 0xDC)


def bytes_head(count: int) -> bytes:
    """Return the MessagePack header of a bytes value of `count` bytes."""
    if count <= 0xFF:
        return bytes((0xC4, count))
    return (0xC50000 | count).to_bytes(3) if count <= 0xFFFF else struct.pack(">BI", 0xC6, count)


def ext(code: int, payload: bytes) -> bytes:
    """Return the bytes of an extension with this code and payload."""
    return pack(ormsgpack.Ext(code, payload))


@functools.lru_cache(maxsize=1024, typed=True)
def pack_attrs(schema: str, version: int, form: str) -> bytes:
    """Return the encoding of a record's attributes: its schema name, version and form."""
    try:
        return pack(schema) + pack(version) + pack(form)
    except TypeError as error:
        raise Invalid(f"the schema {schema!r} cannot be stored: {error}", code="invalid.value") from error


def is_plain_key(entry: bytes) -> bool:
    """Tell whether a mapping's entry (key bytes, value bytes) begins with an ordinary str."""
    return entry[0] in _STR_HEADS


def inline(code: int, attrs: tuple[str, int, str] | None, entries: Iterable[bytes]) -> bytes:
    """Return the encoding of a container from the encodings of its entries (of a mapping: key and value joined)."""
    entries = list(entries)
    body = b"".join(entries)
    if code == LIST:
        return array_head(len(entries)) + body
    if code == DICT and _STR_HEADS.issuperset(map(_first, entries)):
        return head(len(entries), 0x80, 15, 0xDE) + body
    if code == RECORD:
        if attrs is None:
            raise Corrupt("a stored record has no schema", code="corrupt.encoding")
        return ext(RECORD, array_head(3 + 2 * len(entries)) + pack_attrs(*attrs) + body)
    return ext(code, array_head(len(entries) * (2 if code == DICT else 1)) + body)


def split_ext(encoded: bytes) -> tuple[int, bytes]:
    """Return the code and the payload of one encoded extension."""
    extensions: list[tuple[int, bytes]] = []
    try:
        _hooked(encoded, lambda code, payload: extensions.append((code, payload)))
        return extensions[0]
    except (ValueError, TypeError, IndexError) as error:
        raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error


def split(array: bytes) -> list[bytes]:
    """Split an encoded array into the bytes of its elements."""
    try:
        values = unpackb(array, ext_hook=ormsgpack.Ext)
        parts = list(map(pack, values))
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not values ({error})", code="corrupt.encoding") from error
    if type(values) is not list or len(array_head(len(parts))) + sum(map(len, parts)) != len(array):
        raise Corrupt("the stored bytes are not in canonical form", code="corrupt.encoding")
    return parts


def pairs(parts: list[bytes]) -> list[bytes]:
    """Return the entries of a mapping from a list in which keys and values alternate: join each key and its value."""
    if len(parts) % 2:
        raise Corrupt("a stored mapping has a key without a value", code="corrupt.encoding")
    return [key + value for key, value in zip(parts[::2], parts[1::2], strict=True)]


def take_apart(data: bytes) -> tuple[int, tuple[str, int, str] | None, list[bytes]] | None:
    """Return an inline container's code, a record's attributes, and the bytes of the entries; None for an atom."""
    if not data:
        raise Corrupt("a value has no bytes", code="corrupt.encoding")
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
            raise Corrupt("a stored record has no schema", code="corrupt.encoding")
        schema, version, form = map(plain, parts[:3])
        return RECORD, (schema, version, form), pairs(parts[3:])
    return code, None, pairs(parts) if code == DICT else parts


def _map_head(data: bytes) -> tuple[int, int]:
    """Return the number of entries of a map, and the offset of the first."""
    first = data[0]
    if first & 0xF0 == 0x80:
        return first & 0x0F, 1
    if first == 0xDE:
        return int.from_bytes(data[1:3], "big"), 3
    return int.from_bytes(data[1:5], "big"), 5


def first_in(data: bytes) -> bytes:
    """Return the bytes of the first of several joined values."""
    try:
        return pack(unpackb(data, ext_hook=ormsgpack.Ext))
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error


def values_in(data: bytes) -> list[bytes]:
    """Return the bytes of one value, or of the key and the value of a mapping's entry."""
    first = first_in(data)
    return [first] if len(first) == len(data) else [first, data[len(first) :]]


def plain(data: bytes) -> Any:
    """Decode a value without extensions."""
    try:
        return unpackb(data)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not a value ({error})", code="corrupt.encoding") from error


def may_hold_refs(data: bytes) -> bool:
    """Tell quickly whether encoded values may hold a REF."""
    # A search for one byte first takes a tenth of the time; `in` with bytes first raises and clears a TypeError.
    return REF in data and data.find(_REF_MARK) >= 0


def refs_in(data: bytes) -> list[bytes]:
    """Return the payloads of all REFs in an encoded value, at any depth."""
    refs: list[bytes] = []
    todo = [data]

    def hook(code: int, payload: bytes) -> None:
        if code == REF:
            refs.append(payload)
        elif code in NESTED:
            todo.append(payload)

    try:
        while todo:
            _hooked(todo.pop(), hook)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"the stored bytes are not values ({error})", code="corrupt.encoding") from error
    return refs
