"""Long str, bytes and bytearray values: pieces with content-defined cuts.

A piece ends after a line end or NUL whose preceding bytes have a low hash, so an insertion changes only the pieces
around it. Without such a place it ends at `PIECE_MAX`. A str is stored as UTF-8. A str with lone surrogates has a code
of its own, because its bytes are not UTF-8.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import (
    INLINE,
    PIECES,
    TEXT,
    Cache,
    Nodes,
    Ref,
    as_ref,
    encode_ref,
    read_pieces,
    require_size,
)
from backtrail.errors import Corrupt

PIECE_MAX: Final = 64 * 1024
_PIECE_MIN: Final = 16 * 1024
_PIECE_MASK: Final = 0xFF
_CUTS: Final = re.compile(rb"[\n\x00]+")  # a run of zeros is one place to cut, after the last zero

_NOWHERE: Final = Nodes(lambda _: {}, Cache(0))
TEXTS: Final = frozenset({msgpack.STR, msgpack.TEXT, msgpack.BYTES, msgpack.BYTEARRAY})


def cut(data: bytes) -> list[bytes]:
    """Return the pieces of a long text."""
    pieces: list[bytes] = []
    start = 0
    while len(data) - start > PIECE_MAX:
        end = start + PIECE_MAX
        for match in _CUTS.finditer(data, start + _PIECE_MIN, end):
            at = match.end()
            if not zlib.crc32(data[at - 32 : at]) & _PIECE_MASK:
                end = at
                break
        pieces.append(data[start:end])
        start = end
    pieces.append(data[start:])
    return pieces


def close(nodes: Nodes, code: int, data: bytes) -> bytes:
    """Return the representation of a text: inline bytes, or a REF to nodes, which are added to `nodes`."""
    if len(data) <= INLINE:
        rep = _inline(code, data)
        if len(rep) <= INLINE:
            return rep
    if len(data) <= PIECE_MAX:
        digest = nodes.add(TEXT, data)
    else:
        listing = [[nodes.add(TEXT, piece), len(piece)] for piece in cut(data)]
        digest = nodes.add(PIECES, msgpack.pack(listing))
    return encode_ref(code, digest, len(data), len(data) + 5)


def _inline(code: int, data: bytes) -> bytes:
    if code == msgpack.STR:
        return msgpack.pack(data.decode())
    return msgpack.pack(data) if code == msgpack.BYTES else msgpack.ext(code, data)


def load(nodes: Nodes, ref: Ref) -> bytes:
    """Return the bytes of a text that has nodes of its own."""
    if ref.length <= PIECE_MAX:
        data = nodes.get(ref.digest, TEXT)
        require_size(len(data), ref.length)
        return data
    listing = read_pieces(nodes.get(ref.digest, PIECES))
    loaded = nodes.load(digest for digest, _ in listing)
    fitting = all(loaded[digest].kind == TEXT and len(loaded[digest].data) == size for digest, size in listing)
    if not fitting or sum(size for _, size in listing) != ref.length:
        raise Corrupt("the pieces of a text do not have the kinds and sizes of their references", code="corrupt.chunk")
    return b"".join([loaded[digest].data for digest, _ in listing])


def code_of(rep: bytes) -> int | None:
    """Return the code of a representation of a text; None for any other value."""
    ref = as_ref(rep)
    if ref is not None:
        return ref.code if ref.code in TEXTS else None
    first = rep[0] if rep else 0
    if 0xA0 <= first <= 0xBF or first in (0xD9, 0xDA, 0xDB):
        return msgpack.STR
    if first in (0xC4, 0xC5, 0xC6):
        return msgpack.BYTES
    if first in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8):
        code, _ = msgpack.split_ext(rep)
        return code if code in TEXTS else None
    return None


def open_rep(nodes: Nodes, rep: bytes) -> tuple[int, bytes]:
    """Return the code and the bytes of a text."""
    code = code_of(rep)
    if code is None:
        raise Corrupt("a stored change of a text leads to another value", code="corrupt.row")
    ref = as_ref(rep)
    if ref is not None:
        return code, load(nodes, ref)
    if code in (msgpack.TEXT, msgpack.BYTEARRAY):
        return code, msgpack.split_ext(rep)[1]
    value = msgpack.plain(rep)
    return code, value.encode() if isinstance(value, str) else value


def beginning(nodes: Nodes, rep: bytes, limit: int) -> bytes:
    """Return at least the first `limit` bytes of a text. Only the pieces that hold them are read."""
    ref = as_ref(rep)
    if ref is None or ref.length <= PIECE_MAX:
        return open_rep(nodes, rep)[1]
    data = b""
    for digest, _ in read_pieces(nodes.get(ref.digest, PIECES)):
        data += nodes.get(digest, TEXT)
        if len(data) >= limit:
            break
    return data


def length_of(rep: bytes) -> int:
    """Return how many bytes a text has. No node is read."""
    ref = as_ref(rep)
    return ref.length if ref is not None else len(open_rep(_NOWHERE, rep)[1])


def _appended(nodes: Nodes, ref: Ref, data: bytes) -> bytes:
    """Return the representation of a text of several pieces with more at its end. Only the last piece is cut again."""
    *listing, (end, _) = read_pieces(nodes.get(ref.digest, PIECES))
    listing += [(nodes.add(TEXT, piece), len(piece)) for piece in cut(nodes.get(end, TEXT) + data)]
    digest = nodes.add(PIECES, msgpack.pack([list(pair) for pair in listing]))
    length = ref.length + len(data)
    return encode_ref(ref.code, digest, length, length + 5)


def patched(nodes: Nodes, rep: bytes, start: int, removed: int, data: bytes) -> bytes:
    """Return the representation of a text in which some bytes are replaced."""
    ref = as_ref(rep)
    if ref is not None and ref.length > PIECE_MAX and start == ref.length and not removed:
        same_code = ref.code in (msgpack.BYTES, msgpack.BYTEARRAY) or ref.code == str_code(data) == msgpack.STR
        if same_code and ref.code in TEXTS:
            return _appended(nodes, ref, data)
    code, text = open_rep(nodes, rep)
    if not 0 <= start <= start + removed <= len(text):
        raise Corrupt("a stored change extends beyond the end of its text", code="corrupt.row")
    text = text[:start] + data + text[start + removed :]
    if code in (msgpack.STR, msgpack.TEXT):
        code = str_code(text)
    return close(nodes, code, text)


def str_code(data: bytes) -> int:
    """Return the code of a str with these bytes: TEXT if it has lone surrogates."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return msgpack.TEXT
    return msgpack.STR
