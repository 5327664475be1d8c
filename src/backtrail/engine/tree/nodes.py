"""Nodes: the pieces of a state that is too large for one piece.

A value's *representation* is its canonical bytes if they are short (`INLINE`), else a REF to a node. The choice
between the two, the cuts of a long list and the bytes of a node depend on the content alone. So equal states have
equal roots, even if different changes led to them.

There are five kinds of node. The BLAKE3 digest of its kind byte and its bytes names a node:

    S  spine   a long container: its chunks, level by level, and the entries that are in no chunk yet
    L  leaf    a run of a container's entries, as one array (of a mapping: key, value, key, value ...)
    I  inner   a run of references to leaves, or to inner nodes one level down
    T  text    up to 64 KB of a str, bytes or bytearray
    P  pieces  a longer one: references to its texts

A `Nodes` finds nodes: among the fresh ones in memory, then in a shared cache, then in the backend. It checks each
node from the backend against its digest.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
import weakref
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack
from blake3 import blake3

from backtrail.engine import throttle
from backtrail.engine.compression import unsqueeze
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.msgpack import pack
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

INLINE: Final = 4096
"""The most bytes of an inline representation. A longer value becomes a node, and a REF stands in its place."""
NODE_LIMIT: Final = 1 << 30
"""The most bytes of a node. A stored node that claims more is damaged."""

LEVELS_MAX: Final = 40
"""The most levels of a spine. Each level has at most a quarter of the elements of the level below."""
DIGEST_BYTES: Final = 32
SPINE, LEAF, INNER, TEXT, PIECES = b"S", b"L", b"I", b"T", b"P"
_SLACK: Final = 1 << 16
_REF_HEADS: Final = frozenset({0xC7, 0xC8})
_REF_STARTS: Final = tuple([bytes((0xC7, length, msgpack.REF)) for length in range(0x100)])
"""The first bytes of a REF, by the length of its payload: an extension of 38 to 64 bytes."""


def digest_of(kind: bytes, data: bytes) -> bytes:
    """Return the digest of a node: BLAKE3-256 over its kind and its bytes."""
    return blake3(kind + data).digest()


class Ref(NamedTuple):
    """A reference to the node of a value: the value's code, the digest, the number of entries or bytes, the size."""

    code: int
    digest: bytes
    length: int
    size: int


def encode_ref(code: int, digest: bytes, length: int, size: int) -> Rep:
    """Return the REF of a reference with these fields."""
    payload = pack((code, digest, length, size))
    rep = Rep(_REF_STARTS[len(payload)] + payload)
    rep.size = size
    return rep


class Rep(bytes):
    """A representation with the logical size of its value, which differs from its length if it holds REFs.

    It may also carry the objects that its bytes were made from, so that they need not be read again.
    """

    size: int
    opened: Any = None
    """The spine, if the bytes are a container."""
    value: bytes | None = None
    """The entry's value, if the bytes are an entry of a mapping."""


def sized(data: bytes, size: int) -> Rep:
    """Return a representation with its size."""
    rep = Rep(data)
    rep.size = size
    return rep


def size_of(rep: bytes) -> int:
    """Return the logical size of a representation's value."""
    return rep.size if type(rep) is Rep else len(rep)


def most_of(size: int) -> int:
    """Return the most bytes that may be read for a value whose stated size is `size`, references included.

    Without this limit, a few forged nodes that refer to each other could stand for more than any memory holds.
    """
    return 2 * size + _SLACK


def require_size(size: int, stated: int) -> None:
    """Raise `Corrupt` if a value is larger than the size that its reference states."""
    if size > most_of(stated):
        raise Corrupt(f"a value of {size} bytes has a reference that states {stated}", code="corrupt.encoding")


def decode_ref(payload: bytes) -> Ref:
    """Read the payload of a REF."""
    try:
        code, digest, count, size = ormsgpack.unpackb(payload)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"a damaged reference ({error})", code="corrupt.encoding") from error
    if not (type(code) is int and _is_digest(digest) and _is_count(count) and _is_count(size)):
        raise Corrupt("a damaged reference", code="corrupt.encoding")
    return Ref(code, digest, count, size)


def _is_digest(value: object) -> bool:
    return type(value) is bytes and len(value) == DIGEST_BYTES


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def as_ref(rep: bytes) -> Ref | None:
    """Return the Ref of a representation; None for an inline one."""
    if not rep or rep[0] not in _REF_HEADS:
        return None
    code, payload = msgpack.split_ext(rep)
    return decode_ref(payload) if code == msgpack.REF else None


def measured(data: bytes) -> bytes:
    """Return stored bytes as a representation that knows its size: a Rep if it holds REFs."""
    if type(data) is Rep:
        return data
    if not isinstance(data, bytes):
        raise Corrupt("a value has no bytes", code="corrupt.encoding")
    if not msgpack.may_hold_refs(data):
        return data
    extra = 0
    for payload in msgpack.refs_in(data):
        ref = decode_ref(payload)
        extra += ref.size - len(encode_ref(*ref))
    return sized(data, len(data) + extra) if extra else data


class Chunk(NamedTuple):
    """A reference to a leaf or an inner node: the number of its entries, their size, the fingerprints of the keys."""

    digest: bytes
    length: int
    size: int
    keys: bytes | None
    """The fingerprints of the keys in a mapping's leaf, two bytes each; None for other chunks."""
    data: bytes
    """The encoded reference."""

    @classmethod
    def make(cls, digest: bytes, length: int, size: int, keys: bytes | None) -> Chunk:
        """Make a reference."""
        return cls(digest, length, size, keys, msgpack.pack([digest, length, size, keys]))


def fingerprints(keys: Iterable[bytes]) -> bytes:
    """Return the two bytes per key that a leaf's reference holds."""
    marks = [zlib.crc32(key) & 0xFFFF for key in keys]
    return struct.pack(f">{len(marks)}H", *marks)


def read_chunks(data: bytes | list[Any]) -> list[Chunk]:
    """Read the references of an inner node, or of one level of a spine."""
    try:
        items: list[Any] = ormsgpack.unpackb(data) if isinstance(data, bytes) else data
        chunks = [Chunk.make(*item) for item in items]
    except (ValueError, TypeError) as error:
        raise Corrupt(f"a damaged inner node ({error})", code="corrupt.encoding") from error
    for digest, length, size, keys, _ in chunks:
        if not (_is_digest(digest) and _is_count(length) and _is_count(size) and (keys is None or type(keys) is bytes)):
            raise Corrupt("a damaged reference to a chunk", code="corrupt.encoding")
    return chunks


def read_pieces(data: bytes) -> list[tuple[bytes, int]]:
    """Read the digests and sizes in a node of pieces."""
    try:
        pieces = [(digest, size) for digest, size in ormsgpack.unpackb(data)]
    except (ValueError, TypeError) as error:
        raise Corrupt(f"a damaged node of pieces ({error})", code="corrupt.encoding") from error
    if not all(_is_digest(digest) and _is_count(size) for digest, size in pieces):
        raise Corrupt("a damaged reference to a piece", code="corrupt.encoding")
    return pieces


def read_levels(data: bytes) -> tuple[int, tuple[str, int, str] | None, list[list[Chunk]], bytes]:
    """Read a spine's bytes: code, a record's attributes, levels from the highest down, and open entries."""
    try:
        code, attrs, levels, tail = ormsgpack.unpackb(data)
        if attrs is not None:
            schema, version, form = attrs
            attrs = (schema, version, form)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"a damaged spine ({error})", code="corrupt.encoding") from error
    known = type(code) is int and code in msgpack.SEQUENCES | msgpack.MAPPINGS
    listed = type(levels) is list and len(levels) <= LEVELS_MAX and all(type(level) is list for level in levels)
    if not (known and listed and type(tail) is bytes) or (attrs is None) == (code == msgpack.RECORD):
        raise Corrupt("a damaged spine", code="corrupt.encoding")
    return code, attrs, [read_chunks(level) for level in levels], tail


class Node:
    """A node's kind and bytes, and objects that were read from them."""

    __slots__ = ("bounds", "data", "exact", "flat", "kind", "opened")

    def __init__(self, kind: bytes, data: bytes) -> None:
        self.kind = kind
        self.data = data
        self.opened: Any = None
        """A spine's `Spine`, an inner node's chunks, or the digests of the nodes that a leaf refers to."""
        self.exact: tuple[bytes, int] | None = None
        """The bytes of a leaf without bytes values, and the number of its extensions, after a check: see `scan`."""
        self.bounds: tuple[bool, Sequence[int]] | None = None
        """Where the entries of a leaf begin and end, if it is a mapping's (or is not): see `chunked`."""
        self.flat: Any = None
        """A leaf's records as a `FlatLeaf`, with the cache that it was made for: see `records`."""

    @property
    def memory(self) -> int:
        """About how much memory the node takes, with the objects that were read from it."""
        return len(self.data) * (3 if self.kind in (SPINE, INNER) else 1)

    def chunks(self) -> list[Chunk]:
        """Return the references of an inner node. The caller must not change the list."""
        if self.opened is None:
            self.opened = read_chunks(self.data)
        chunks: list[Chunk] = self.opened
        return chunks

    def children(self) -> list[bytes]:
        """Return the digests of the nodes that this one refers to."""
        if self.kind == TEXT:
            return []
        if self.kind == PIECES:
            return [digest for digest, _ in read_pieces(self.data)]
        if self.kind == INNER:
            return [chunk.digest for chunk in self.chunks()]
        if self.kind == LEAF:
            if self.opened is None:
                self.opened = digests_in(self.data)
            below: list[bytes] = self.opened
            return below
        if self.kind != SPINE:
            raise Corrupt(f"a node of an unknown kind ({self.kind!r})", code="corrupt.encoding")
        if self.opened is not None:
            levels, digests = self.opened.levels[1:], digests_among(self.opened.levels[0])
        else:
            _, _, levels, tail = read_levels(self.data)
            digests = digests_in(tail)
        return [chunk.digest for level in levels for chunk in level] + digests


def digests_among(entries: list[bytes]) -> list[bytes]:
    """Return the digests of the REFs in the entries of a container."""
    return [d for entry in entries for d in digests_in(entry)] if msgpack.may_hold_refs(b"".join(entries)) else []


def digests_in(rep: bytes) -> list[bytes]:
    """Return the digests of the REFs in a representation, an entry, or the array of a leaf."""
    if type(rep) is Rep:
        if rep.value is not None:
            return digests_in(rep.value)
        ref = as_ref(rep)
        if ref is not None:
            return [ref.digest]
        if rep.opened is not None:
            return digests_among(rep.opened.levels[0])
    if not msgpack.may_hold_refs(rep):
        return []
    return [decode_ref(payload).digest for part in msgpack.values_in(rep) for payload in msgpack.refs_in(part)]


class Cache:
    """The nodes that were used last, within a limit of memory. All threads of a store share it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()
        self._lock = threading.Lock()
        if limit:
            _watch_forks()
            _caches.add(self)

    def get(self, digest: bytes) -> Node | None:
        """Return a cached node, or None."""
        with self._lock:
            node = self._nodes.get(digest)
            if node is not None:
                self._nodes.move_to_end(digest)
            return node

    def put(self, digest: bytes, node: Node) -> None:
        """Cache a node, and drop the least recently used nodes beyond the limit."""
        if len(node.data) > self._limit // 8:
            return
        with self._lock:
            if digest in self._nodes:
                return
            self._nodes[digest] = node
            self._size += node.memory
            while self._size > self._limit:
                self._size -= self._nodes.popitem(last=False)[1].memory

    def clear(self) -> None:
        """Drop all nodes."""
        with self._lock:
            self._nodes.clear()
            self._size = 0

    def renew_lock(self) -> None:
        """Replace the lock, which a thread of the parent process may have locked before a fork."""
        self._lock = threading.Lock()


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


@functools.cache
def _watch_forks() -> None:
    """Give caches new locks in forked child processes, which lack the threads that may have locked the old ones."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_locks)


def _renew_locks() -> None:
    for cache in _caches:
        cache.renew_lock()


class Nodes:
    """The source of a tree's nodes. `fresh` holds nodes that are not in the backend yet."""

    __slots__ = ("_cache", "_read", "fresh")

    def __init__(
        self,
        read: Callable[[Sequence[bytes]], Mapping[bytes, bytes]],
        cache: Cache,
        fresh: dict[bytes, Node] | None = None,
    ) -> None:
        self._read = read
        self._cache = cache
        self.fresh: dict[bytes, Node] = {} if fresh is None else fresh

    def forked(self) -> Nodes:
        """Return the same source with a copy of the fresh nodes."""
        return Nodes(self._read, self._cache, self.fresh.copy())

    def with_fresh(self, fresh: dict[bytes, Node]) -> Nodes:
        """Return the same source with `fresh` as its fresh nodes."""
        return Nodes(self._read, self._cache, fresh)

    def add(self, kind: bytes, data: bytes) -> bytes:
        """Add a fresh node and return its digest."""
        throttle.rest()
        digest = digest_of(kind, data)
        self.fresh[digest] = Node(kind, data)
        return digest

    def at_hand(self, digest: bytes) -> Node | None:
        """Return a fresh or cached node; None if it takes a read of the backend."""
        return self.fresh.get(digest) or self._cache.get(digest)

    def keep(self, digest: bytes, node: Node) -> None:
        """Add a node to the cache under its digest."""
        if digest not in self.fresh:
            self._cache.put(digest, node)

    def get(self, digest: bytes, kind: bytes) -> bytes:
        """Return the bytes of a node, verified; `Corrupt` if it is missing, damaged or of another kind."""
        return self.node(digest, kind).data

    def node(self, digest: bytes, kind: bytes) -> Node:
        """Return a node, verified; `Corrupt` if it is missing, damaged or of another kind."""
        node = self.fresh.get(digest) or self.load([digest])[digest]
        if node.kind != kind:
            name = digest.hex()
            raise Corrupt(
                f"chunk {name[:12]} is of another kind than its reference states", code="corrupt.chunk", digest=name
            )
        return node

    def load(self, digests: Iterable[bytes]) -> dict[bytes, Node]:
        """Return nodes by digest, verified, with at most one read of the backend; `Corrupt` if one is missing."""
        nodes: dict[bytes, Node] = {}
        missing: list[bytes] = []
        for digest in dict.fromkeys(digests):
            node = self.at_hand(digest)
            if node is None:
                missing.append(digest)
            else:
                nodes[digest] = node
        if missing:
            stored = self._read(missing)
            for digest in missing:
                throttle.rest()
                nodes[digest] = node = check_chunk(digest, stored.get(digest))
                self._cache.put(digest, node)
        return nodes


def check_chunk(digest: bytes, stored: bytes | None) -> Node:
    """Decompress a chunk from the backend and check it against its digest."""
    name = digest.hex()[:12]
    if stored is None:
        raise Corrupt(f"chunk {name} is missing", code="corrupt.chunk", digest=digest.hex())
    try:
        plain = unsqueeze(stored, limit=NODE_LIMIT)
    except Corrupt as error:
        raise Corrupt(f"chunk {name} is damaged: {error}", code="corrupt.chunk", digest=digest.hex()) from error
    if blake3(plain).digest() != digest:
        raise Corrupt(f"chunk {name} is damaged: its hash differs", code="corrupt.chunk", digest=digest.hex())
    return Node(plain[:1], plain[1:])
