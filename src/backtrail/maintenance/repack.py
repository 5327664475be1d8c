"""Repacking: what a row holds and a chunk holds, too, is kept once.

An item that was appended stands in its row first, and later also in the leaf that closed over it; the references of
a base's spine stand later in an inner node. Upkeep stores such rows anew, *beside* those chunks (see `squeeze`). The
bytes of the payload are the same when they are read, so roots, ids and every state are.

To stand beside a chunk does not keep it: a chunk lives as long as some state leads to it. Otherwise what was deleted
would live on in a leaf that it shares with what was not. So before a chunk goes, the rows beside it are stored
without it.

Always true here:
- a row is written only if it reads back as the bytes that it held, which was tried;
- it is written together with the chunks that it needs, which are put or touched: nobody else's collection takes them;
- a row that is damaged, or that needs something that is, stays as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log, payload
from backtrail.engine.compression import BESIDE_MAX, Beside, squeeze, stands_beside, unsqueeze_beside
from backtrail.engine.throttle import SLICE, Upkeep
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import INNER, LEAF, NODE_LIMIT, SPINE, Node, check_chunk, read_levels
from backtrail.engine.tree.tree import SET, SPLICE
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.engine.tree.nodes import Nodes

PART_MIN: Final = 32
"""What is looked for in chunks is at least this long: a digest, or a line of text."""
PAYLOAD_MIN: Final = 96
"""Shorter payloads stay as they are: beside a chunk, they would take most of that."""
GAIN_MIN: Final = 24
"""A row is written anew if it gets smaller by this much."""
WAITING_BYTES: Final = 4 * 1024 * 1024
"""The rows that wait for a chunk hold no more than this together; the oldest give up."""
_TRIES: Final = 8
"""A row that was beside this many chunks in vain gives up."""
_PAGE: Final = 256
_BATCH: Final = SLICE
"""Rows per transaction: a writer waits for one of them at most."""


class _Waiting(NamedTuple):
    """A row that a chunk may cover."""

    row: Row
    parts: frozenset[int]
    tried: int = 0


def repack(
    heads: Heads, record: ThreadRecord, live: set[bytes], told: Callable[[int], None], paced: Upkeep | None = None
) -> int:
    """Store the rows of a thread as small as can be beside chunks that states lead to; return how many were changed.

    `live` are those chunks, as a collection has marked them; chunks that damaged rows stand beside are added. `told` is
    called with the count as it grows.
    """
    walk = _Walk(heads, record, live, told, paced)
    newest = heads.backend.newest(record.no)
    low = 1
    while newest is not None and low <= newest.seq:
        rows = heads.backend.rows(record.no, [(low, newest.seq)], payload=True, limit=_PAGE)
        if not rows:
            break
        for row in rows:
            if row.op in log.CHECKPOINTS:
                walk.take(row)
        low = rows[-1].seq + 1
    walk.write()
    return walk.changed


class _Walk:
    """Goes through a thread from its first row on: rows wait until a base shows the chunks that closed over them."""

    def __init__(
        self,
        heads: Heads,
        record: ThreadRecord,
        live: set[bytes],
        told: Callable[[int], None],
        paced: Upkeep | None = None,
    ) -> None:
        self._heads = heads
        self._record = record
        self._live = live
        self._told = told
        self._paced = paced or Upkeep(longest=0.0)
        self._nodes = heads.nodes()
        self._seen: set[bytes] = set()
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._waiting_bytes = 0
        self._places: dict[int, list[int]] = {}
        """Which rows wait for a part, by its hash."""
        self._done: dict[int, tuple[Row, tuple[bytes, ...]]] = {}
        self.changed = 0

    def take(self, row: Row) -> None:
        """Look at the next row."""
        stored = row.payload or b""
        beside: tuple[bytes, ...] = ()
        try:
            beside = stands_beside(stored)
            if not self._live.issuperset(beside):
                if not log.is_sound(row, self._record.uid):
                    self._live.update(beside)  # it stays as it is, and what it stands beside stays with it
                    return
                row = row._replace(payload=self._alone(stored))
                self._write_later(row, ())
                beside = ()
            if row.base == row.seq and self._waiting:
                for shown in self._new_nodes(row):
                    self._show(shown)
            if not beside and len(row.payload or b"") >= PAYLOAD_MIN and self._heads.options.compression:
                self._wait(row)
        except Corrupt:  # reading it says so, too
            self._live.update(beside)

    def _alone(self, stored: bytes) -> bytes:
        return squeeze(payload.plain(stored, self._nodes), enabled=self._heads.options.compression)

    # -- waiting ------------------------------------------------------------------------------------

    def _wait(self, row: Row) -> None:
        parts = frozenset(hash(part) for part in _parts_of_row(row, self._nodes))
        if not parts:
            return
        self._waiting[row.seq] = _Waiting(row, parts)
        self._waiting_bytes += len(row.payload or b"")
        for part in parts:
            self._places.setdefault(part, []).append(row.seq)
        while self._waiting_bytes > WAITING_BYTES:
            self._give_up(next(iter(self._waiting)))

    def _give_up(self, seq: int) -> None:
        row, parts, _ = self._waiting.pop(seq)
        self._waiting_bytes -= len(row.payload or b"")
        for part in parts:
            self._places[part].remove(seq)
            if not self._places[part]:
                del self._places[part]

    # -- chunks -------------------------------------------------------------------------------------

    def _new_nodes(self, row: Row) -> Iterator[dict[bytes, Node]]:
        """Give the leaves and inner nodes that a base leads to and none before it did, some at a time."""
        nodes = self._heads.nodes()
        tree, _ = payload.read_base(row.payload or b"", nodes)
        todo = payload.refs_of(tree.rep)
        while todo:
            group = [digest for digest in dict.fromkeys(todo[-_BATCH:]) if digest not in self._seen]
            del todo[-_BATCH:]
            found = nodes.load(group)
            todo += [child for node in found.values() for child in node.children() if child not in self._seen]
            chunks = found.keys() - nodes.fresh.keys()  # what stands in a base's row is no chunk, and soon another
            self._seen |= chunks
            yield {d: found[d] for d in group if d in chunks and d in self._live and found[d].kind in (LEAF, INNER)}

    def _show(self, shown: dict[bytes, Node]) -> None:
        """Let the rows that wait for what these chunks hold be stored beside them."""
        covered: dict[int, dict[bytes, int]] = {}
        for digest, node in shown.items():
            for part in _parts(msgpack.split(node.data), inside=node.kind == LEAF):
                for seq in self._places.get(hash(part), ()):
                    sizes = covered.setdefault(seq, {})
                    sizes[digest] = sizes.get(digest, 0) + len(part)
        packers: dict[tuple[bytes, ...], tuple[Beside, list[bytes]]] = {}
        for seq, sizes in covered.items():
            digests = tuple(sorted(sizes, key=lambda digest: -sizes[digest])[:BESIDE_MAX])
            if digests not in packers:
                contents = [shown[digest].data for digest in digests]
                packers[digests] = (Beside(digests, contents), contents)
            self._put_beside(seq, digests, *packers[digests])

    def _put_beside(self, seq: int, digests: tuple[bytes, ...], packer: Beside, contents: list[bytes]) -> None:
        row, parts, tried = self._waiting[seq]
        old = row.payload or b""
        data = payload.plain(old, self._nodes)
        stored = packer.squeeze(data)
        smaller = len(stored) + GAIN_MIN <= len(old)
        if smaller and unsqueeze_beside(stored, contents, limit=NODE_LIMIT) == data:
            self._write_later(row._replace(payload=stored), digests)
        if smaller or tried + 1 >= _TRIES:
            self._give_up(seq)
        else:
            self._waiting[seq] = _Waiting(row, parts, tried + 1)

    # -- writing ------------------------------------------------------------------------------------

    def _write_later(self, row: Row, digests: tuple[bytes, ...]) -> None:
        if not log.is_sound(row, self._record.uid):
            return
        if digests and row.seq in self._done:
            self.write()  # stored without what it stood beside, first: this one may yet be dropped
        self._done[row.seq] = (row, digests)
        if len(self._done) >= _BATCH:
            self.write()

    def write(self) -> None:
        """Write what was stored anew, with the chunks that it stands beside."""
        done, self._done = list(self._done.values()), {}
        if not done:
            return
        there = self._heads.backend.chunks(list({digest for _, digests in done for digest in digests}))
        stored = {digest: data for digest, data in there.items() if _is_sound(digest, data)}
        rows = [row for row, digests in done if all(digest in stored for digest in digests)]
        needed = sorted({digest for _, digests in done for digest in digests if digest in stored})
        chunks = [(digest, stored[digest]) for digest in needed]
        with self._paced.write():
            self.changed += self._heads.backend.rewrite(self._record.no, rows, chunks)
        self._told(self.changed)


def _is_sound(digest: bytes, stored: bytes) -> bool:
    """Tell whether a chunk is what its digest says: it may have been damaged since it was last read."""
    try:
        check_chunk(digest, stored)
    except Corrupt:
        return False
    return True


# -- what is looked for -----------------------------------------------------------------------------


def _parts_of_row(row: Row, nodes: Nodes) -> Iterator[bytes]:
    """Give what a row holds that a chunk may hold, too."""
    if row.base != row.seq:
        for op in payload.read_delta(row.payload or b"", nodes):
            if op[0] == SET:
                yield from _parts([op[2]])
            elif op[0] == SPLICE:
                yield from _parts(value for entry in op[4] for value in msgpack.values_in(entry))
        return
    own = nodes.forked()
    _, inlined = payload.read_base(row.payload or b"", own)
    for digest in inlined:
        node = own.fresh[digest]
        if node.kind == SPINE:
            _, _, levels, tail = read_levels(node.data)
            yield from _parts((chunk.data for level in levels for chunk in level), inside=False)
            yield from _parts(msgpack.split(tail))


def _parts(values: Iterable[bytes], *, inside: bool = True) -> Iterator[bytes]:
    """Give values, and what is directly inside them: of a message that was changed, its text is still the same."""
    for value in values:
        if len(value) < PART_MIN:
            continue
        yield value
        opened = msgpack.take_apart(value) if inside else None
        if opened is not None:
            yield from (entry for entry in opened[2] if len(entry) >= PART_MIN)
