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
from array import array
from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

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
    encode_ref,
    fingerprints,
    measured,
    most_of,
    read_levels,
    require_size,
    size_of,
    sized,
)
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
_Measures = tuple[int, int, int, bytes | None]


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


def _closes_leaf(entry: bytes, size: int, count: int) -> bool:
    """Tell whether an entry closes its leaf, given the size and the number of the leaf's entries with it."""
    if size < LEAF_MIN:
        return False
    if size >= LEAF_MAX or count >= LEAF_ENTRIES:
        return True
    return zlib.crc32(entry) * LEAF_TARGET < len(entry) << (34 if size >= LEAF_TARGET else 30)


class Spine(Node):
    """A container of any length: its open entries, and references to its chunks.

    It is its own node, and makes the bytes when they are asked for: most spines are replaced by the next change and
    never written.
    """

    kind = SPINE
    __slots__ = ("_start", "attrs", "code", "flat", "is_mapping", "last_key", "length", "levels", "size", "weight")

    def __init__(
        self, code: int, attrs: Attrs, levels: tuple[list[Any], ...], measures: _Measures | None = None
    ) -> None:
        self.code = code
        self.attrs = attrs
        self.levels = levels
        self.is_mapping = code in msgpack.MAPPINGS
        self.last_key: tuple[bytes, int | None] | None = None
        """The key that was looked for last, and its position: an edit looks for it before the edit is applied."""
        self.flat: tuple[Any, Any, int] | None = None
        """A `FlatLeaf` of the first open entries, with the cache that it was made for, and their number."""
        if measures is None:
            closed = [chunk for level in levels[1:] for chunk in level]
            weight = sum(map(len, levels[0]))
            length: int = len(levels[0]) + sum([chunk.length for chunk in closed])
            size: int = weight + hidden_size(levels[0]) + sum([chunk.size for chunk in closed]) + 5
            measures = length, size, weight, None
        self.length, self.size, self.weight, self._start = measures
        """The number of entries, their size, the bytes of the open entries, and the start of the node."""

    @property
    def opened(self) -> Spine:
        """The spine itself, as of a node that was read."""
        return self

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes of the spine's node."""
        return self.encode()

    @property
    def room(self) -> int:
        """The number of bytes by which the open entries may grow, so that a container without chunks stays inline."""
        return INLINE - self.weight

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
        return b"".join([kind, self._start or self.start, msgpack.bytes_head(len(head) + self.weight), head, *entries])

    def with_one_more(self, entry: Entry) -> Spine | None:
        """Return the spine with one more entry at its end; None if that closes a chunk."""
        levels, length = self.levels, len(entry)
        weight = self.weight + length
        if _closes_leaf(entry, weight, len(levels[0]) + 1):
            return None
        size = self.size + (entry.size if type(entry) is Rep else length)
        measures = self.length + 1, size, weight, self._start or self.start
        spine = Spine(self.code, self.attrs, ([*levels[0], entry], *levels[1:]), measures)
        spine.flat, self.flat = self.flat, None  # the old spine is hardly read again, and may live on for a while
        return spine

    def close(self, nodes: Nodes) -> bytes:
        """Return the container's representation: inline bytes, or a REF to this spine, which `nodes` then holds."""
        if len(self.levels) == 1 and self.weight <= INLINE:
            data = msgpack.inline(self.code, self.attrs, self.levels[0])
            rep = sized(data, len(data) + self.size - 5 - self.weight)
        else:
            digest = blake3(self.encode(SPINE)).digest()
            nodes.fresh[digest] = self
            rep = encode_ref(self.code, digest, self.length, self.size)
        rep.opened = self
        return rep


def hidden_size(entries: Iterable[Entry]) -> int:
    """Return by how much the logical size of entries exceeds their length: the sizes behind their REFs."""
    return sum([entry.size - len(entry) for entry in entries if type(entry) is Rep])


def array_of(entries: Sequence[Entry], *, mapping: bool) -> bytes:
    """Return entries as one encoded array, the bytes of a leaf."""
    return msgpack.array_head(len(entries) * (2 if mapping else 1)) + b"".join(entries)


def tail_array(spine: Spine) -> bytes:
    """Return the open entries as one encoded array."""
    return array_of(spine.levels[0], mapping=spine.is_mapping)


def _entries(data: bytes, *, mapping: bool) -> list[Entry]:
    """Return the entries of an encoded array: of a leaf, or of a spine's open entries."""
    parts = msgpack.split(data)
    if not msgpack.may_hold_refs(data):
        return msgpack.pairs(parts) if mapping else parts
    return list(map(_measured_entry, msgpack.pairs(parts))) if mapping else list(map(measured, parts))


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
        entries = _entries(array_of(entries, mapping=mapping), mapping=mapping)
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

    def __init__(self, nodes: Nodes, code: int, attrs: Attrs = None, levels: Sequence[Sequence[Any]] = ((),)) -> None:
        self._nodes = nodes
        self._code = code
        self._attrs = attrs
        self._mapping = code in msgpack.MAPPINGS
        self._levels: list[list[Any]] = list(map(list, levels))
        entries, *chunks = levels
        self._weights = [sum(map(len, entries)), *(sum([len(each.data) for each in level]) for level in chunks)]
        self.sealed = False
        """Whether the builder closed a leaf."""

    def spine(self) -> Spine:
        """Return the spine of all entries so far."""
        return Spine(self._code, self._attrs, tuple(self._levels))

    def at_boundary(self, level: int) -> bool:
        """Tell whether the builder can take a whole chunk of this level: all lower levels are empty."""
        return not any(self._levels[:level])

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add entries, and close the leaf behind each entry whose hash says so."""
        run, weight, crc32 = self._levels[0], self._weights[0], zlib.crc32
        for entry in entries:
            run.append(entry)
            weight += len(entry)
            if weight >= LEAF_MIN and (  # `_closes`, without a call for each entry
                weight >= LEAF_MAX
                or len(run) >= LEAF_ENTRIES
                or crc32(entry) * LEAF_TARGET < len(entry) << (34 if weight >= LEAF_TARGET else 30)
            ):
                self._seal_leaf(weight)
                run, weight = self._levels[0], 0
        self._weights[0] = weight

    def begin(self, entries: list[Entry]) -> None:
        """Add entries from the start of a leaf, but not its last one: they close nothing."""
        self._levels[0], self._weights[0] = entries, sum(map(len, entries))

    def put(self, level: int, chunk: Chunk) -> None:
        """Add a whole chunk at the end of a level, and close the level if the chunk's hash says so.

        The builder must be `at_boundary(level)`.
        """
        while len(self._levels) <= level:
            self._levels.append([])
            self._weights.append(0)
        chunks = self._levels[level]
        chunks.append(chunk)
        self._weights[level] += len(chunk.data)
        if len(chunks) >= INNER_WIDTH and _closes(chunk.data, self._weights[level], INNER_MIN, INNER_TARGET, INNER_MAX):
            self._seal_inner(level)

    def _seal_leaf(self, weight: int) -> None:
        entries = self._levels[0]
        keys = fingerprints(keys_of(entries)) if self._mapping else None
        digest = self._nodes.add(LEAF, array_of(entries, mapping=self._mapping))
        self._nodes.fresh[digest].bounds = bounds_of(entries, mapping=self._mapping)
        self._levels[0], self._weights[0] = [], 0
        self.sealed = True
        self.put(1, Chunk.make(digest, len(entries), weight + hidden_size(entries), keys))

    def _seal_inner(self, level: int) -> None:
        chunks = self._levels[level]
        digest = self._nodes.add(INNER, msgpack.array_head(len(chunks)) + b"".join([chunk.data for chunk in chunks]))
        self._levels[level], self._weights[level] = [], 0
        length, size = sum([chunk.length for chunk in chunks]), sum([chunk.size for chunk in chunks])
        self.put(level + 1, Chunk.make(digest, length, size, None))


def key_of(entry: Entry) -> bytes:
    """Return the bytes of the key of a mapping's entry."""
    first = entry[0]
    if 0xA0 <= first <= 0xBF:  # a str of up to 31 bytes
        return entry[: first - 0x9F]
    if type(entry) is Rep and entry.value is not None:
        return entry[: -len(entry.value)]
    return msgpack.first_in(entry)


def keys_of(entries: Iterable[Entry]) -> list[bytes]:
    """Return the bytes of the keys of a mapping's entries."""
    return [entry[: entry[0] - 0x9F] if 0xA0 <= entry[0] <= 0xBF else key_of(entry) for entry in entries]


def build(nodes: Nodes, code: int, attrs: Attrs, entries: Iterable[Entry]) -> Spine:
    """Return a new spine with the given entries."""
    builder = Builder(nodes, code, attrs)
    builder.extend(entries)
    return builder.spine()


# -- reading ----------------------------------------------------------------------------------------


def elements(spine: Spine) -> Iterator[tuple[int, Any]]:
    """Yield the spine's own elements with their levels, in the order of the container."""
    for level in range(len(spine.levels) - 1, -1, -1):
        for element in spine.levels[level]:
            yield level, element


def children(nodes: Nodes, level: int, chunk: Chunk, *, mapping: bool) -> list[Any]:
    """Return the entries of a leaf, or the chunks of an inner node. The caller must not change the list."""
    if level > 1:
        return nodes.node(chunk.digest, INNER).chunks()
    return leaf_entries(nodes.node(chunk.digest, LEAF), mapping=mapping)


def leaf_entries(node: Node, start: int = 0, stop: int | None = None, *, mapping: bool) -> list[Entry]:
    """Return the entries of a leaf from `start` to `stop`."""
    data, bounds = node.data, _bounds(node, mapping=mapping)
    entries = [data[at:end] for at, end in pairwise(bounds[start:] if stop is None else bounds[start : stop + 1])]
    if not node.children():
        return entries
    return list(map(_measured_entry if mapping else measured, entries))


def _bounds(node: Node, *, mapping: bool) -> Sequence[int]:
    """Return where the entries of a leaf begin, and where the last one ends."""
    if node.bounds is None or node.bounds[0] is not mapping:
        parts = msgpack.split(node.data)
        node.bounds = bounds_of(msgpack.pairs(parts) if mapping else parts, mapping=mapping)
    return node.bounds[1]


def bounds_of(entries: Sequence[Entry], *, mapping: bool) -> tuple[bool, Sequence[int]]:
    """Return the bounds of a leaf's entries, for `Node.bounds`."""
    head = msgpack.array_head(len(entries) * (2 if mapping else 1))
    return mapping, array("I", accumulate(map(len, entries), initial=len(head)))


def _measured_entry(entry: bytes) -> Entry:
    key = key_of(entry)
    return join(key, measured(entry[len(key) :]))


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


def leaf_chunks(nodes: Nodes, spine: Spine) -> list[Chunk]:
    """Return the references to the leaves of a container, with one read per level."""
    if spine.levels[2:]:
        return [element for element in leaves(nodes, spine) if type(element) is Chunk]
    return spine.levels[1] if spine.levels[1:] else []


def entries(nodes: Nodes, spine: Spine, start: int = 0, stop: int | None = None) -> list[Entry]:
    """Return the entries from `start` to `stop`. Only the chunks that hold them are read."""
    wanted: list[Entry] = []
    end = spine.length if stop is None else stop
    closed = spine.length - len(spine.levels[0])
    for first, chunk in _leaves_between(nodes, spine, start, end) if start < closed else ():
        leaf = nodes.node(chunk.digest, LEAF)
        wanted += leaf_entries(leaf, max(start - first, 0), min(end - first, chunk.length), mapping=spine.is_mapping)
    return wanted + spine.levels[0][max(start - closed, 0) : max(end - closed, 0)]


def _leaves_between(nodes: Nodes, spine: Spine, start: int, end: int) -> Iterator[tuple[int, Chunk]]:
    """Yield the leaves that hold the entries from `start` to `end`, with the positions of their first entries."""
    first, todo = (
        0,
        [(level, chunk) for level in range(1, len(spine.levels)) for chunk in reversed(spine.levels[level])],
    )
    while todo and first < end:
        level, chunk = todo.pop()
        if first + chunk.length <= start:
            first += chunk.length
        elif level > 1:
            todo += [(level - 1, child) for child in reversed(nodes.node(chunk.digest, INNER).chunks())]
        else:
            yield first, chunk
            first += chunk.length


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
    last = spine.last_key
    if last is None or last[0] != key:
        last = spine.last_key = key, _find_key(nodes, spine, key)
    return last[1]


def _find_key(nodes: Nodes, spine: Spine, key: bytes) -> int | None:
    pos = 0
    mark = fingerprints([key]) if len(spine.levels) > 1 else b""
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
        return _key_in(nodes.node(chunk.digest, LEAF), key) if _has(chunk.keys, mark) else None
    pos = 0
    for child in children(nodes, level, chunk, mapping=True):
        offset = _key_below(nodes, level - 1, child, key, mark)
        if offset is not None:
            return pos + offset
        pos += child.length
    return None


def _key_in(node: Node, key: bytes) -> int | None:
    """Return the position of a key in a mapping's leaf, or None."""
    at = node.data.find(key)
    while at >= 0:
        bounds = _bounds(node, mapping=True)
        pos = bisect_left(bounds, at)
        if bounds[pos] == at:
            return pos
        at = node.data.find(key, at + 1)
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
    """Replace the entries from `start` to `stop`; return the new spine and whether an append closed a leaf.

    The chunks before the change stay. After it, chunks are opened until a new cut falls on an old cut. From there on
    whole chunks are taken again, at the highest level that fits.
    """
    append, leaf = start == stop == spine.length, None
    if len(new) == 1 and (append or stop == start + 1):
        changed = spine.with_one_more(new[0]) if append else _with_one_replaced(spine, start, new[0])
        if changed is not None:
            return changed, False
        leaf = None if append else _leaf_with(nodes, spine, start, new[0])
    builder = Builder(nodes, spine.code, spine.attrs, spine.levels if append else ((),))
    if append:
        builder.extend(new)
        return builder.spine(), builder.sealed
    first, last, chunk = leaf or (start, stop, None)
    _copy(nodes, spine, builder, 0, first)
    if chunk is None:
        builder.extend(new)
    else:
        builder.put(1, chunk)
    _copy(nodes, spine, builder, last, spine.length)
    return builder.spine(), False


def _leaf_with(nodes: Nodes, spine: Spine, pos: int, entry: Entry) -> tuple[int, int, Chunk] | None:
    """Return a leaf with one entry replaced, between the positions where the old leaf begins and ends.

    None if the old entry is in no leaf, or if the leaf would be cut elsewhere.
    """
    found = next(_leaves_between(nodes, spine, pos, pos + 1), None)
    if found is None:
        return None
    first, (digest, length, size, keys, _) = found
    node, at = nodes.node(digest, LEAF), pos - first
    data, bounds = node.data, _bounds(node, mapping=spine.is_mapping)
    more = len(entry) - bounds[at + 1] + bounds[at]
    if not _keeps_cuts(bounds, at, entry, lambda pos: data[bounds[pos] : bounds[pos + 1]], closing=length - 1):
        return None
    (old,) = leaf_entries(node, at, at + 1, mapping=spine.is_mapping)
    digest = nodes.add(LEAF, data[: bounds[at]] + entry + data[bounds[at + 1] :])
    moved = [bound + more for bound in bounds[at + 1 :]]
    nodes.fresh[digest].bounds = spine.is_mapping, array("I", [*bounds[: at + 1], *moved])
    keys = keys and keys[: 2 * at] + fingerprints([key_of(entry)]) + keys[2 * at + 2 :]
    return first, first + length, Chunk.make(digest, length, size + size_of(entry) - size_of(old), keys)


def _copy(nodes: Nodes, spine: Spine, builder: Builder, first: int, last: int) -> None:
    """Add the entries of a spine from `first` to `last`, as whole chunks where the builder can take them."""

    def copy(level: int, chunks: list[Chunk], pos: int) -> int:
        for chunk in chunks:
            end = pos + chunk.length
            if first <= pos and end <= last and builder.at_boundary(level):
                builder.put(level, chunk)
            elif first < end and pos < last and level > 1:
                copy(level - 1, nodes.node(chunk.digest, INNER).chunks(), pos)
            elif first < end and pos < last:
                node = nodes.node(chunk.digest, LEAF)
                some = leaf_entries(node, max(first - pos, 0), min(last, end) - pos, mapping=spine.is_mapping)
                add(some, pos)
            pos = end
        return pos

    def add(entries: list[Entry], pos: int) -> None:
        if first <= pos and builder.at_boundary(1):
            builder.begin(entries)
        else:
            builder.extend(entries)

    pos = 0
    for level in range(len(spine.levels) - 1, 0, -1):
        pos = copy(level, spine.levels[level], pos)
    add(spine.levels[0][max(first - pos, 0) : max(last - pos, 0)], pos)


def _keeps_cuts(
    bounds: Sequence[int], at: int, entry: Entry, entry_at: Callable[[int], Entry], *, closing: int | None
) -> bool:
    """Tell whether the cuts stay if `entry` replaces the one at `at` in a leaf, or among open entries.

    `bounds` tell where the entries begin, and where the last one ends. `closing` is the entry that closes the leaf.
    Only the new entry, and entries whose end moves past a limit of `_closes_leaf`, can change a cut.
    """
    start, more = bounds[0], len(entry) - bounds[at + 1] + bounds[at]
    doubtful = {at}
    for limit in (LEAF_MIN, LEAF_TARGET, LEAF_MAX):
        low, high = sorted((start + limit, start + limit - more))
        doubtful.update(range(max(bisect_left(bounds, low) - 1, at), bisect_left(bounds, high) - 1))
    return all(
        _closes_leaf(entry if pos == at else entry_at(pos), bounds[pos + 1] - start + more, pos + 1) is (pos == closing)
        for pos in doubtful
    )


def _with_one_replaced(spine: Spine, start: int, entry: Entry) -> Spine | None:
    """Return the spine with one of its open entries replaced; None if that closes a chunk, or if it is in a leaf."""
    entries, *closed = spine.levels
    at = start - spine.length + len(entries)
    if at < 0:
        return None
    old = entries[at]
    size, weight = spine.size - size_of(old) + size_of(entry), spine.weight - len(old) + len(entry)
    if weight >= LEAF_MIN:
        bounds = list(accumulate(map(len, entries), initial=0))
        if not _keeps_cuts(bounds, at, entry, entries.__getitem__, closing=None):
            return None
    return Spine(
        spine.code,
        spine.attrs,
        ([*entries[:at], entry, *entries[at + 1 :]], *closed),
        (spine.length, size, weight, spine.start),
    )
