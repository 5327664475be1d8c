"""Long str, bytes and bytearray values: kept in pieces that are cut by content.

A piece ends behind a line end or NUL whose surroundings hash low, so an insertion changes the pieces around
it and no others; where there is none, it ends at `PIECE_MAX`. A str is kept as UTF-8; one with lone surrogates
has a code of its own, because its bytes are not.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import INLINE, PIECES, TEXT, Cache, Nodes, Ref, as_ref, read_pieces, require_size
from backtrail.errors import Corrupt

PIECE_MAX: Final = 64 * 1024
_PIECE_MIN: Final = 16 * 1024
_PIECE_MASK: Final = 0xFF
_CUTS: Final = re.compile(rb"[\n\x00]+")  # behind the last of several: a run of zeros is one place to cut, not many

_NOWHERE: Final = Nodes(lambda _: {}, Cache(0))
TEXTS: Final = frozenset({msgpack.STR, msgpack.TEXT, msgpack.BYTES, msgpack.BYTEARRAY})


def cut(data: bytes) -> list[bytes]:
    """Cut a long text into its pieces."""
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
    """Return what represents a text: its inline bytes, or a REF to nodes that are then fresh in `nodes`."""
    if len(data) <= INLINE:
        rep = _inline(code, data)
        if len(rep) <= INLINE:
            return rep
    if len(data) <= PIECE_MAX:
        digest = nodes.add(TEXT, data)
    else:
        listing = [[nodes.add(TEXT, piece), len(piece)] for piece in cut(data)]
        digest = nodes.add(PIECES, msgpack.pack(listing))
    return Ref(code, digest, len(data), len(data) + 5).encode()


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
        raise Corrupt("the pieces of a text are not what refers to them", code="corrupt.chunk")
    return b"".join([loaded[digest].data for digest, _ in listing])


def code_of(rep: bytes) -> int | None:
    """Return which kind of text a representation is, or None if it is none."""
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
    """Return the kind and the bytes of a text."""
    code = code_of(rep)
    if code is None:
        raise Corrupt("a stored change points into a value that is no text", code="corrupt.row")
    ref = as_ref(rep)
    if ref is not None:
        return code, load(nodes, ref)
    if code in (msgpack.TEXT, msgpack.BYTEARRAY):
        return code, msgpack.split_ext(rep)[1]
    value = msgpack.plain(rep)
    return code, value.encode() if isinstance(value, str) else value


def beginning(nodes: Nodes, rep: bytes, limit: int) -> bytes:
    """Return the first bytes of a text, at least `limit` if it has as many, reading no more pieces than that takes."""
    ref = as_ref(rep)
    if ref is None or ref.length <= PIECE_MAX:
        return open_rep(nodes, rep)[1]
    found = b""
    for digest, _ in read_pieces(nodes.get(ref.digest, PIECES)):
        found += nodes.get(digest, TEXT)
        if len(found) >= limit:
            break
    return found


def length_of(rep: bytes) -> int:
    """Return how many bytes a text has, without reading it if it has nodes of its own."""
    ref = as_ref(rep)
    return ref.length if ref is not None else len(open_rep(_NOWHERE, rep)[1])


def _appended(nodes: Nodes, ref: Ref, data: bytes) -> bytes:
    """Return the representation of a text of many pieces with more at its end: only its last piece is cut anew."""
    *listing, (end, _) = read_pieces(nodes.get(ref.digest, PIECES))
    listing += [(nodes.add(TEXT, piece), len(piece)) for piece in cut(nodes.get(end, TEXT) + data)]
    digest = nodes.add(PIECES, msgpack.pack([list(pair) for pair in listing]))
    length = ref.length + len(data)
    return Ref(ref.code, digest, length, length + 5).encode()


def patched(nodes: Nodes, rep: bytes, start: int, removed: int, data: bytes) -> bytes:
    """Return the representation of a text in which some bytes are replaced."""
    ref = as_ref(rep)
    if ref is not None and ref.length > PIECE_MAX and start == ref.length and not removed:
        kept = ref.code in (msgpack.BYTES, msgpack.BYTEARRAY) or ref.code == str_code(data) == msgpack.STR
        if kept and ref.code in TEXTS:
            return _appended(nodes, ref, data)
    code, text = open_rep(nodes, rep)
    if not 0 <= start <= start + removed <= len(text):
        raise Corrupt("a stored change goes beyond its text", code="corrupt.row")
    text = text[:start] + data + text[start + removed :]
    if code in (msgpack.STR, msgpack.TEXT):
        code = str_code(text)
    return close(nodes, code, text)


def str_code(data: bytes) -> int:
    """Return the code of a str with these bytes: TEXT if there are lone surrogates in it."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return msgpack.TEXT
    return msgpack.STR
