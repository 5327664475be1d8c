"""Nodes: the pieces that a state is made of once it is too large to stand in one place.

A value's *representation* is its canonical bytes if they are short (`INLINE`), else a REF to a node. Which
of the two, where a long list is cut into chunks, what a node's bytes are: all of it is a function of the
content alone, so the same state has the same root however it came about.

Five kinds of node, each known by the BLAKE3 digest of its kind byte and its bytes:

    S  spine   a long container: its chunks, level by level, and the entries that no chunk holds yet
    L  leaf    a run of a container's entries, as one array (in a mapping: key, value, key, value ...)
    I  inner   a run of references to leaves, or to inner nodes one level down
    T  text    up to 64 KB of a str, bytes or bytearray
    P  pieces  a longer one: references to its texts

A `Nodes` is where nodes come from: fresh ones in memory, then a shared cache, then the backend. Every
node that comes from the backend is checked against its digest.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import ormsgpack
from blake3 import blake3

from backtrail.engine import throttle
from backtrail.engine.compression import unsqueeze
from backtrail.engine.tree import msgpack
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

INLINE: Final = 4096
"""A representation of at most this many bytes stands where the value stands."""
NODE_LIMIT: Final = 1 << 30
"""No node's bytes are ever longer than this; a stored one that says so is damaged."""

LEVELS_MAX: Final = 40
"""A spine never has more levels: each is a quarter of the one below, at most."""
DIGEST_BYTES: Final = 32
SPINE, LEAF, INNER, TEXT, PIECES = b"S", b"L", b"I", b"T", b"P"
_SLACK: Final = 1 << 16
_REF_HEADS: Final = frozenset({0xC7, 0xC8})


def digest_of(kind: bytes, data: bytes) -> bytes:
    """Return the digest of a node: BLAKE3-256 over its kind and its bytes."""
    return blake3(kind + data).digest()


class Ref(NamedTuple):
    """What stands for a value that has a node of its own: what it is, where, how many entries or bytes, its size."""

    code: int
    digest: bytes
    length: int
    size: int

    def encode(self) -> Rep:
        """Return the REF."""
        rep = Rep(msgpack.ext(msgpack.REF, msgpack.pack([self.code, self.digest, self.length, self.size])), self.size)
        rep.ref = self
        return rep


class Rep(bytes):
    """A representation that knows more than its bytes: the size of the value it stands for, if REFs are in it.

    What it was made from is kept where it is at hand, so that it need not be read again.
    """

    size: int
    ref: Ref | None = None
    """The reference that it is."""
    opened: Any = None
    """The spine that was closed into these bytes."""
    value: bytes | None = None
    """The value of the mapping's entry that it is."""

    def __new__(cls, data: bytes, size: int) -> Self:
        """Make one; bytes are immutable, so this is the place."""
        made = super().__new__(cls, data)
        made.size = size
        return made


def size_of(rep: bytes) -> int:
    """Return the logical size of what a representation stands for."""
    return rep.size if type(rep) is Rep else len(rep)


def most_of(size: int) -> int:
    """Return how many bytes may be read for something that says it has this size: what refers to parts takes some, too.

    A few nodes that refer to each other again and again can stand for more than any memory holds.
    """
    return 2 * size + _SLACK


def require_size(size: int, said: int) -> None:
    """Raise `Corrupt` if something is larger than what refers to it says."""
    if size > most_of(said):
        raise Corrupt(f"it says that it has {said} bytes, and has {size}", code="corrupt.encoding")


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
    """Return the Ref that a representation is, or None for an inline one."""
    if not rep or rep[0] not in _REF_HEADS:
        return None
    if type(rep) is Rep and rep.ref is not None:
        return rep.ref
    code, payload = msgpack.split_ext(rep)
    return decode_ref(payload) if code == msgpack.REF else None


def measured(data: bytes) -> bytes:
    """Return a representation read from a node with its size known: a Rep if there are REFs inside."""
    if not isinstance(data, bytes):
        raise Corrupt("there are no bytes where a value should be", code="corrupt.encoding")
    if not msgpack.may_hold_refs(data):  # no extension of code REF that begins with an array of four
        return data
    extra = 0
    for payload in msgpack.refs_in(data):
        ref = decode_ref(payload)
        extra += ref.size - len(ref.encode())
    return Rep(data, len(data) + extra) if extra else data


class Chunk(NamedTuple):
    """A reference to a leaf or an inner node: how many entries it holds, their size, and their keys' fingerprints."""

    digest: bytes
    length: int
    size: int
    keys: bytes | None
    """Two bytes per key of a mapping's leaf; None elsewhere."""
    data: bytes
    """The reference itself, encoded."""

    @classmethod
    def make(cls, digest: bytes, length: int, size: int, keys: bytes | None) -> Chunk:
        """Make a reference."""
        return cls(digest, length, size, keys, msgpack.pack([digest, length, size, keys]))


def fingerprint(key: bytes) -> bytes:
    """Return the two bytes by which a leaf says that it may hold a key."""
    return (zlib.crc32(key) & 0xFFFF).to_bytes(2, "big")


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
    """Read the references of a node of pieces: digests and sizes."""
    try:
        pieces = [(digest, size) for digest, size in ormsgpack.unpackb(data)]
    except (ValueError, TypeError) as error:
        raise Corrupt(f"a damaged node of pieces ({error})", code="corrupt.encoding") from error
    if not all(_is_digest(digest) and _is_count(size) for digest, size in pieces):
        raise Corrupt("a damaged reference to a piece", code="corrupt.encoding")
    return pieces


def read_levels(data: bytes) -> tuple[int, tuple[str, int, str] | None, list[list[Chunk]], bytes]:
    """Read a spine's bytes: its code, a record's attributes, its levels from the highest down, and its open entries."""
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
    """A node's kind and bytes, and what was read from them, where that is at hand."""

    __slots__ = ("data", "flat", "kind", "opened", "plain")

    def __init__(self, kind: bytes, data: bytes, opened: Any = None) -> None:
        self.kind = kind
        self.data = data
        self.opened = opened
        """A spine's `Spine`, an inner node's chunks, the digests of what a leaf refers to."""
        self.plain = False
        """Whether a leaf is known to hold nothing but what packs in one way only: see `scan`."""
        self.flat: Any = None
        """A leaf's records in another form, and the types that it is for: see `records`. Takes as much room again."""

    @property
    def weight(self) -> int:
        """About how much memory it takes, with what was read from it."""
        return len(self.data) * (3 if self.kind in (SPINE, INNER) else 1)

    def chunks(self) -> list[Chunk]:
        """Return the references of an inner node; not to be changed."""
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
            levels, found = self.opened.levels[1:], [d for entry in self.opened.levels[0] for d in digests_in(entry)]
        else:
            _, _, levels, tail = read_levels(self.data)
            found = digests_in(tail)
        return [chunk.digest for level in levels for chunk in level] + found


def digests_in(rep: bytes) -> list[bytes]:
    """Return the digests of the REFs in encoded values: in a representation, an entry, or the array of a leaf."""
    if type(rep) is Rep:
        if rep.ref is not None:
            return [rep.ref.digest]
        if rep.value is not None:
            return digests_in(rep.value)
        if rep.opened is not None:
            return [digest for entry in rep.opened.levels[0] for digest in digests_in(entry)]
    if not msgpack.may_hold_refs(rep):
        return []
    return [decode_ref(payload).digest for part in msgpack.values_in(rep) for payload in msgpack.refs_in(part)]


class Cache:
    """Nodes read lately, bounded by the memory they take; shared by all threads of a store."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()
        self._lock = threading.Lock()
        if limit:
            _watch_forks()
            _caches.add(self)

    def get(self, digest: bytes) -> Node | None:
        """Return a node that was read lately, or None."""
        with self._lock:
            node = self._nodes.get(digest)
            if node is not None:
                self._nodes.move_to_end(digest)
            return node

    def put(self, digest: bytes, node: Node) -> None:
        """Keep a node; the ones unused for longest make room."""
        if len(node.data) > self._limit // 8:
            return
        with self._lock:
            if digest in self._nodes:
                return
            self._nodes[digest] = node
            self._size += node.weight
            while self._size > self._limit:
                self._size -= self._nodes.popitem(last=False)[1].weight

    def renew_lock(self) -> None:
        """Forget who held the lock."""
        self._lock = threading.Lock()


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


@functools.cache
def _watch_forks() -> None:
    """Have a forked child forget locks that threads hold which it has not got."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew_locks)


def _renew_locks() -> None:
    for cache in _caches:
        cache.renew_lock()


class Nodes:
    """Where a tree's nodes come from. `fresh` holds those that no chunk in the backend holds yet."""

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
        return self.with_fresh(dict(self.fresh))

    def with_fresh(self, fresh: dict[bytes, Node]) -> Nodes:
        """Return the same source with these fresh nodes."""
        return Nodes(self._read, self._cache, fresh)

    def add(self, kind: bytes, data: bytes, opened: Any = None) -> bytes:
        """Put a fresh node and return its digest."""
        throttle.rest()
        digest = digest_of(kind, data)
        self.fresh[digest] = Node(kind, data, opened)
        return digest

    def at_hand(self, digest: bytes) -> Node | None:
        """Return a node if that takes no read of the backend."""
        return self.fresh.get(digest) or self._cache.get(digest)

    def keep(self, digest: bytes, node: Node) -> None:
        """Have a node at hand from now on, as long as there is room; it is known to have this digest."""
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
            raise Corrupt(f"chunk {name[:12]} is not what refers to it", code="corrupt.chunk", digest=name)
        return node

    def load(self, digests: Iterable[bytes]) -> dict[bytes, Node]:
        """Return nodes, verified, with at most one read of the backend."""
        found: dict[bytes, Node] = {}
        missing: list[bytes] = []
        for digest in dict.fromkeys(digests):
            node = self.at_hand(digest)
            if node is None:
                missing.append(digest)
            else:
                found[digest] = node
        if missing:
            stored = self._read(missing)
            for digest in missing:
                throttle.rest()
                found[digest] = node = check_chunk(digest, stored.get(digest))
                self._cache.put(digest, node)
        return found


def check_chunk(digest: bytes, stored: bytes | None) -> Node:
    """Unpack a chunk as the backend keeps it and hold it against its digest."""
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
