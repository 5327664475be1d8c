"""Long containers: a list, tuple, set, dict or record as a tree of chunks with content-defined cuts.

A container is a sequence of *entries* (an entry of a mapping is key and value joined). From the left, an entry whose
hash is low enough, in proportion to its length, closes a chunk; references to chunks form chunks in the same way,
level upon level. Entries and references that no chunk holds yet stay in the spine. So the cuts depend on the entries
alone, an edit changes only the chunks around it, and an append changes only the spine.

A `Spine` is immutable. `levels[0]` holds open entries, `levels[1]` references to leaves, `levels[2]` references to
inner nodes over leaves, and so on; the highest level comes first in the order of the container.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from backtrail.backends.port import new_tuple
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import (
    INLINE,
    INNER,
    LEAF,
    SPINE,
    Chunk,
    Node,
    Nodes,
    Ref,
    Rep,
    as_ref,
    fingerprint,
    measured,
    most_of,
    read_levels,
    require_size,
    size_of,
)
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# A leaf has at least MIN bytes (more than INLINE: a container with a leaf is never inline) and at most MAX plus one
# entry. An entry closes the leaf with a probability of its length over TARGET: a quarter of that below TARGET, four
# times that above. This keeps sizes near TARGET and open entries near half of it (14 KB on average for 24 KB; with a
# constant probability, 21 KB). The same holds for inner nodes, which have at least WIDTH references.
LEAF_TARGET: Final = 24 * 1024
LEAF_MIN: Final = INLINE + 512
LEAF_MAX: Final = 64 * 1024
LEAF_ENTRIES: Final = 1024
"""The most entries of a leaf of at least LEAF_MIN bytes. The limit exists because an append copies the open entries."""
INNER_TARGET: Final = 3 * 1024
INNER_MIN: Final = 512
INNER_MAX: Final = 12 * 1024
INNER_WIDTH: Final = 4

Attrs = tuple[str, int, str] | None
Entry = bytes
_Measures = tuple[int, int, tuple[int, ...], bytes | None]


def join(key: bytes, value: bytes) -> Entry:
    """Return the entry of a mapping, made from the bytes of its key and value."""
    if type(value) is not Rep:
        return key + value
    entry = Rep(key + value)
    entry.size = len(key) + value.size
    entry.value = value
    return entry


def _closes(entry: bytes, size: int, low: int, target: int, high: int) -> bool:
    """Tell whether an entry closes its chunk, given the size of the chunk with it."""
    if size < low:
        return False
    return size >= high or zlib.crc32(entry) * target < len(entry) << (34 if size >= target else 30)


class Spine:
    """A container of any length: its open entries, and references to its chunks."""

    __slots__ = ("_start", "attrs", "code", "is_mapping", "length", "levels", "size", "weights")

    def __init__(
        self, code: int, attrs: Attrs, levels: tuple[list[Any], ...], measures: _Measures | None = None
    ) -> None:
        self.code = code
        self.attrs = attrs
        self.levels = levels
        self.is_mapping = code in msgpack.MAPPINGS
        if measures is None:
            closed = [chunk for level in levels[1:] for chunk in level]
            length: int = len(levels[0]) + sum([chunk.length for chunk in closed])
            size: int = sum(map(size_of, levels[0])) + sum([chunk.size for chunk in closed]) + 5
            weights = (sum(map(len, levels[0])), *(sum([len(chunk.data) for chunk in level]) for level in levels[1:]))
            measures = length, size, weights, None
        self.length, self.size, self.weights, self._start = measures
        """The number of entries, their size, the bytes of each level's elements, and the start of the node."""

    @property
    def room(self) -> int:
        """The number of bytes by which the open entries may grow, so that a container without chunks stays inline."""
        return INLINE - self.weights[0]

    @property
    def start(self) -> bytes:
        """The bytes of the spine's node before the open entries. An append that closes no chunk keeps them."""
        if self._start is None:
            levels = b"".join(
                msgpack.array_head(len(level)) + b"".join([chunk.data for chunk in level])
                for level in self.levels[:0:-1]
            )
            about = b"\x94" + msgpack.pack(self.code) + msgpack.pack(self.attrs and list(self.attrs))
            self._start = about + msgpack.array_head(len(self.levels) - 1) + levels
        return self._start

    def encode(self, kind: bytes = b"") -> bytes:
        """Return the bytes of the spine's node: code, attributes, levels from the top, open entries as an array.

        `kind` stands before them: the digest of a node covers its kind, too.
        """
        entries = self.levels[0]
        head = msgpack.array_head(len(entries) * (2 if self.is_mapping else 1))
        return b"".join([kind, self.start, msgpack.bytes_head(len(head) + self.weights[0]), head, *entries])

    def close(self, nodes: Nodes) -> bytes:
        """Return the container's representation: inline bytes, or a REF to this spine, which `nodes` then holds."""
        if len(self.levels) == 1 and self.weights[0] <= INLINE:
            rep = Rep(msgpack.inline(self.code, self.attrs, self.levels[0]))
            rep.size = len(rep) + self.size - 5 - self.weights[0]
        else:
            digest = blake3(self.encode(SPINE)).digest()
            nodes.fresh[digest] = Node(SPINE, None, self)
            rep = new_tuple(Ref, (self.code, digest, self.length, self.size)).encode()
        rep.opened = self
        return rep


def array(entries: Sequence[Entry], *, mapping: bool) -> bytes:
    """Return entries as one encoded array, the bytes of a leaf."""
    return msgpack.array_head(len(entries) * (2 if mapping else 1)) + b"".join(entries)


def tail_array(spine: Spine) -> bytes:
    """Return the open entries as one encoded array."""
    return array(spine.levels[0], mapping=spine.is_mapping)


def _entries(data: bytes, *, mapping: bool) -> list[Entry]:
    """Return the entries of an encoded array: of a leaf, or of a spine's open entries."""
    parts = msgpack.split(data)
    if not msgpack.may_hold_refs(data):
        return msgpack.pairs(parts) if mapping else parts
    if not mapping:
        return [measured(part) for part in parts]
    msgpack.pairs(parts)  # `Corrupt` if a key has no value
    return [join(key, measured(value)) for key, value in zip(parts[::2], parts[1::2], strict=True)]


def open_rep(rep: bytes, nodes: Nodes) -> Spine | None:
    """Return the spine of a representation; None if its value is not a container."""
    if type(rep) is Rep and rep.opened is not None:
        known: Spine = rep.opened
        return known
    ref = as_ref(rep)
    if ref is not None:
        return read_spine(nodes, ref) if ref.code in msgpack.SEQUENCES | msgpack.MAPPINGS else None
    parts = msgpack.take_apart(rep)
    if parts is None:
        return None
    code, attrs, entries = parts
    if type(rep) is Rep or msgpack.may_hold_refs(rep):
        mapping = code in msgpack.MAPPINGS
        entries = _entries(array(entries, mapping=mapping), mapping=mapping)
    spine = Spine(code, attrs, (entries,))
    if type(rep) is Rep:
        rep.opened = spine
    return spine


def read_spine(nodes: Nodes, ref: Ref) -> Spine:
    """Read the spine of a REF."""
    node = nodes.node(ref.digest, SPINE)
    if node.opened is not None:
        opened: Spine = node.opened
        require_size(opened.size, ref.size)
        return opened
    code, attrs, levels, tail = read_levels(node.data)
    spine = Spine(code, attrs, (_entries(tail, mapping=code in msgpack.MAPPINGS), *reversed(levels)))
    require_size(spine.size, ref.size)
    node.opened = spine
    return spine


class Builder:
    """Builds a spine from entries and whole chunks, from the left, and closes chunks by their content."""

    def __init__(self, nodes: Nodes, code: int, attrs: Attrs = None) -> None:
        self._nodes = nodes
        self._code = code
        self._attrs = attrs
        self._mapping = code in msgpack.MAPPINGS
        self._levels: list[list[Any]] = [[]]  # spines share the lists above level 0: replace them, never change them
        self._weights = [0]
        self._length = 0
        self._size = 5
        self._start: bytes | None = None
        self.sealed = False
        """Whether the builder closed a leaf."""

    @classmethod
    def onto(cls, nodes: Nodes, spine: Spine) -> Builder:
        """Return a builder that begins with the entries of a spine."""
        builder = cls(nodes, spine.code, spine.attrs)
        builder._levels = [list(spine.levels[0]), *spine.levels[1:]]
        builder._weights = list(spine.weights)
        builder._length, builder._size = spine.length, spine.size
        builder._start = spine.start
        return builder

    def spine(self) -> Spine:
        """Return the spine of all entries so far."""
        measures = self._length, self._size, tuple(self._weights), self._start
        return Spine(self._code, self._attrs, tuple(self._levels), measures)

    def at_boundary(self, level: int) -> bool:
        """Tell whether the builder can take a whole chunk of this level: all lower levels are empty."""
        return not any(self._levels[:level])

    def push(self, entry: Entry) -> None:
        """Add one entry, and close the leaf if the entry's hash says so."""
        entries, length = self._levels[0], len(entry)
        entries.append(entry)
        self._length += 1
        self._size += entry.size if type(entry) is Rep else length
        self._weights[0] = weight = self._weights[0] + length
        if weight < LEAF_MIN:
            return
        if len(entries) >= LEAF_ENTRIES or _closes(entry, weight, LEAF_MIN, LEAF_TARGET, LEAF_MAX):
            self._seal_leaf()

    def push_chunk(self, level: int, chunk: Chunk) -> None:
        """Add a whole chunk of a level. The builder must be `at_boundary(level)`."""
        self._length += chunk.length
        self._size += chunk.size
        self._put(level, chunk)

    def _put(self, level: int, chunk: Chunk) -> None:
        """Add a chunk at the end of its level, and close the level into an inner node if the chunk's hash says so."""
        while len(self._levels) <= level:
            self._levels.append([])
            self._weights.append(0)
        chunks = self._levels[level] = [*self._levels[level], chunk]
        self._weights[level] += len(chunk.data)
        self._start = None
        if len(chunks) >= INNER_WIDTH and _closes(chunk.data, self._weights[level], INNER_MIN, INNER_TARGET, INNER_MAX):
            self._seal_inner(level)

    def _seal_leaf(self) -> None:
        entries = self._levels[0]
        keys = b"".join(fingerprint(key_of(entry)) for entry in entries) if self._mapping else None
        digest = self._nodes.add(LEAF, array(entries, mapping=self._mapping))
        self._levels[0], self._weights[0] = [], 0
        self.sealed = True
        self._put(1, Chunk.make(digest, len(entries), sum(map(size_of, entries)), keys))

    def _seal_inner(self, level: int) -> None:
        chunks = self._levels[level]
        digest = self._nodes.add(INNER, msgpack.array_head(len(chunks)) + b"".join([chunk.data for chunk in chunks]))
        self._levels[level], self._weights[level] = [], 0
        count, size = sum(chunk.length for chunk in chunks), sum(chunk.size for chunk in chunks)
        self._put(level + 1, Chunk.make(digest, count, size, None))


def key_of(entry: Entry) -> bytes:
    """Return the bytes of the key of a mapping's entry."""
    if type(entry) is Rep and entry.value is not None:
        return bytes(entry[: -len(entry.value)])
    first = entry[0]
    if 0xA0 <= first <= 0xBF:
        return bytes(entry[: first - 0x9F])
    return msgpack.first_in(entry)


def build(nodes: Nodes, code: int, attrs: Attrs, entries: Iterable[Entry]) -> Spine:
    """Return a new spine with the given entries."""
    builder = Builder(nodes, code, attrs)
    for entry in entries:
        builder.push(entry)
    return builder.spine()


# -- reading ----------------------------------------------------------------------------------------


def elements(spine: Spine) -> Iterator[tuple[int, Any]]:
    """Yield the spine's own elements with their levels, in the order of the container."""
    for level in range(len(spine.levels) - 1, -1, -1):
        for element in spine.levels[level]:
            yield level, element


def children(nodes: Nodes, level: int, chunk: Chunk, *, mapping: bool) -> list[Any]:
    """Return the entries of a leaf, or the chunks of an inner node."""
    if level > 1:
        return nodes.node(chunk.digest, INNER).chunks()
    return _entries(nodes.get(chunk.digest, LEAF), mapping=mapping)


def leaves(nodes: Nodes, spine: Spine) -> list[Any]:
    """Return the container as leaves (chunks of level 1) and open entries, with one read per level."""
    listed = list(elements(spine))
    most = len(listed) + most_of(spine.size) // LEAF_MIN
    for top in range(len(spine.levels) - 1, 1, -1):
        nodes.load(chunk.digest for level, chunk in listed if level == top)
        listed = [
            pair
            for level, element in listed
            for pair in (
                [(level - 1, child) for child in children(nodes, level, element, mapping=False)]
                if level == top
                else [(level, element)]
            )
        ]
        if len(listed) > most:
            raise Corrupt("a container has more parts than its size allows", code="corrupt.encoding")
    return [element for _, element in listed]


def entries(nodes: Nodes, spine: Spine, start: int = 0, stop: int | None = None) -> list[Entry]:
    """Return the entries from `start` to `stop`. Only the chunks that hold them are read."""
    wanted: list[Entry] = []
    end = spine.length if stop is None else stop
    closed = spine.length - len(spine.levels[0])
    if start >= closed:
        return spine.levels[0][start - closed : end - closed]

    def walk(pos: int, level: int, element: Any) -> int:
        count = 1 if level == 0 else int(element.length)
        if pos + count > start and pos < end:
            below = [element] if level == 0 else children(nodes, level, element, mapping=spine.is_mapping)
            if level <= 1:
                wanted.extend(below[max(start - pos, 0) : end - pos])
            else:
                inner = pos
                for child in below:
                    inner = walk(inner, level - 1, child)
        return pos + count

    pos = 0
    for level, element in elements(spine):
        if pos >= end:
            break
        pos = walk(pos, level, element)
    return wanted


def entry_at(nodes: Nodes, spine: Spine, pos: int) -> Entry:
    """Return the entry at a position."""
    open_pos = pos - spine.length + len(spine.levels[0])
    if open_pos >= 0:
        entry: Entry = spine.levels[0][open_pos]
        return entry
    (entry,) = entries(nodes, spine, pos, pos + 1)
    return entry


def find_key(nodes: Nodes, spine: Spine, key: bytes) -> int | None:
    """Return the position of a key in a mapping, or None. Only inner nodes and likely leaves are read."""
    pos = 0
    mark = fingerprint(key) if len(spine.levels) > 1 else b""
    for level in range(len(spine.levels) - 1, 0, -1):
        for chunk in spine.levels[level]:
            offset = _key_below(nodes, level, chunk, key, mark)
            if offset is not None:
                return pos + offset
            pos += chunk.length
    offset = _key_among(spine.levels[0], key)
    return None if offset is None else pos + offset


def _key_below(nodes: Nodes, level: int, chunk: Chunk, key: bytes, mark: bytes) -> int | None:
    if level == 1:
        if not _has(chunk.keys, mark) or key not in nodes.get(chunk.digest, LEAF):
            return None
        return _key_among(children(nodes, 1, chunk, mapping=True), key)
    pos = 0
    for child in children(nodes, level, chunk, mapping=True):
        offset = _key_below(nodes, level - 1, child, key, mark)
        if offset is not None:
            return pos + offset
        pos += child.length
    return None


def _key_among(entries: Sequence[Entry], key: bytes) -> int | None:
    for pos, entry in enumerate(entries):
        if entry.startswith(key):
            return pos
    return None


def _has(keys: bytes | None, mark: bytes) -> bool:
    """Tell whether a leaf's fingerprints include `mark`. Fingerprints have two bytes, so offsets are even."""
    if keys is None:
        return True
    at = keys.find(mark)
    while at >= 0 and at % 2:
        at = keys.find(mark, at + 1)
    return at >= 0


# -- changing ---------------------------------------------------------------------------------------


def splice(nodes: Nodes, spine: Spine, start: int, stop: int, new: Sequence[Entry]) -> tuple[Spine, bool]:
    """Replace the entries from `start` to `stop`; return the new spine and whether an append closed a leaf."""
    open_entries = spine.levels[0]
    length = spine.length
    if start == length and len(new) == 1:
        longer = with_one_more(spine, new[0])
        if longer is not None:
            return longer, False
    closed = length - len(open_entries)
    if start < closed:
        return _Splice(nodes, spine, start, stop, new).run(), False
    if len(spine.levels) == 1 and start < length:
        same = with_one_replaced(spine, start, new[0]) if stop == start + 1 and len(new) == 1 else None
        if same is not None:
            return same, False
        short = [*open_entries[:start], *new, *open_entries[stop:]]
        if sum(map(len, short)) < LEAF_MIN:
            return Spine(spine.code, spine.attrs, (short,)), False
    if start < length:
        spine = Spine(spine.code, spine.attrs, (open_entries[: start - closed], *spine.levels[1:]))
    builder = Builder.onto(nodes, spine)
    for entry in (*new, *open_entries[stop - closed :]):
        builder.push(entry)
    return builder.spine(), builder.sealed and start == stop == length


_new: Final = object.__new__


def replaced(nodes: Nodes, spine: Spine, at: int, entry: Entry) -> Spine:
    """Return the spine with one entry replaced."""
    short = with_one_replaced(spine, at, entry) if len(spine.levels) == 1 else None
    return short or splice(nodes, spine, at, at + 1, [entry])[0]


def with_one_replaced(spine: Spine, at: int, entry: Entry) -> Spine | None:
    """Return a spine without chunks with one entry replaced; None if the result would need a chunk."""
    entries = spine.levels[0].copy()
    old, entries[at] = entries[at], entry
    weight = spine.weights[0] - len(old) + len(entry)
    if weight >= LEAF_MIN:
        return None
    before = old.size if type(old) is Rep else len(old)
    after = entry.size if type(entry) is Rep else len(entry)
    measures = spine.length, spine.size - before + after, (weight,), None
    return Spine(spine.code, spine.attrs, (entries,), measures)


def with_one_more(spine: Spine, entry: Entry) -> Spine | None:
    """Return the spine with one more entry at its end; None if that closes a chunk."""
    levels, weights, length = spine.levels, spine.weights, len(entry)
    weight = weights[0] + length
    if weight >= LEAF_MIN and (
        len(levels[0]) + 1 >= LEAF_ENTRIES or _closes(entry, weight, LEAF_MIN, LEAF_TARGET, LEAF_MAX)
    ):
        return None
    longer = _new(Spine)
    longer.code, longer.attrs, longer.is_mapping = spine.code, spine.attrs, spine.is_mapping
    longer.levels = ([*levels[0], entry], *levels[1:])
    longer.length = spine.length + 1
    longer.size = spine.size + (entry.size if type(entry) is Rep else length)
    longer.weights = (weight, *weights[1:])
    longer._start = spine.start  # noqa: SLF001 - its own class
    return longer


class _Splice:
    """A splice that changes closed chunks.

    The chunks before the change stay. After it, chunks are opened until a new cut falls on an old cut. From there on
    whole chunks are taken again, at the highest level that fits.
    """

    def __init__(self, nodes: Nodes, spine: Spine, start: int, stop: int, new: Sequence[Entry]) -> None:
        self._nodes = nodes
        self._spine = spine
        self._start = start
        self._stop = stop
        self._pending = list(new)
        self._builder = Builder(nodes, spine.code, spine.attrs)

    def run(self) -> Spine:
        pos = 0
        for level, element in elements(self._spine):
            pos = self._walk(pos, level, element)
        self._insert()
        return self._builder.spine()

    def _insert(self) -> None:
        for entry in self._pending:
            self._builder.push(entry)
        self._pending.clear()

    def _walk(self, pos: int, level: int, element: Any) -> int:
        """Add the parts of an element at position `pos` that stay, and return the position of its end."""
        end = pos + (1 if level == 0 else int(element.length))
        if pos >= self._start:
            self._insert()
        if pos >= self._start and end <= self._stop:
            return end
        if (end <= self._start or pos >= self._stop) and self._take(level, element):
            return end
        for child in children(self._nodes, level, element, mapping=self._spine.is_mapping):
            pos = self._walk(pos, level - 1, child)
        return pos

    def _take(self, level: int, element: Any) -> bool:
        """Add a whole element, if the builder is at a boundary of its level."""
        if level == 0:
            self._builder.push(element)
        elif self._builder.at_boundary(level):
            self._builder.push_chunk(level, element)
        else:
            return False
        return True
