"""Reading: how a thread stands, and the state of any of its checkpoints, verified.

A `Standing` is what is known of a thread at one moment: its newest row, the checkpoint that is its head, and the
head's tree with the length of the chain it was read from. Standings are immutable and safe to share.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import adapter_labels, log, payload
from backtrail.engine.compression import stands_beside
from backtrail.engine.pins import SPACE
from backtrail.engine.tree.nodes import Cache, Nodes, require_size
from backtrail.engine.tree.tree import Tree, merged
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping, Sequence

    from backtrail.backends.port import Backend, Row, ThreadRecord
    from backtrail.engine.schema.registry import Types

CACHE_BYTES: Final = 64 * 1024 * 1024
_WAYS_OUT: Final = (
    "; what is older can be read by id, label or tag, and verify(repair=True) makes the newest that is whole the head"
)


class Chain(NamedTuple):
    """A tree, and what it took to read it."""

    tree: Tree
    depth: int
    weight: int
    """Bytes of the deltas since the base, as stored."""
    settled: frozenset[bytes]
    """Nodes that stand in the base's row."""


class Standing(NamedTuple):
    """How a thread stood when its newest row was read or written."""

    record: ThreadRecord
    newest: Row
    head: Row | None
    chain: Chain | None = None
    """None until the head's state was needed."""
    before: Row | None = None
    """The newest row that is written, if `newest` is yet to be."""
    lost: Corrupt | None = None
    """Why the head is not known, if it is not: `readable` says what the rest is then."""


class Examined(NamedTuple):
    """What the store's options have looked at in a thread: of that, what stayed is exempt, and not looked at again."""

    view: int
    """The row that says what is in view."""
    upto: int
    """Of what is in view, all up to this seq; and all that is out of view."""
    aged: int
    """All up to this seq is older than the ttl."""


class Options(NamedTuple):
    """What the user chose for a store."""

    compression: bool = True
    max_checkpoints: int | None = None
    ttl: int | None = None
    """Microseconds."""
    auto_interval: int | None = None
    """Microseconds."""

    @property
    def retires(self) -> bool:
        """Whether saving a checkpoint may hide others."""
        return not (self.max_checkpoints is None and self.ttl is None and self.auto_interval is None)


def now() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


class Heads:
    """Reads threads from a backend."""

    def __init__(self, backend: Backend, types: Types, options: Options, clock: Callable[[], int] = now) -> None:
        self.backend = backend
        self.types = types
        self.options = options
        self.clock = clock
        self.cache = Cache(CACHE_BYTES)
        self.examined: MutableMapping[int, Examined | None] = {}
        """By the number of a thread; None if it is to be looked at again, as after a tag was taken off."""
        self.deltas: MutableMapping[int, tuple[int, bool]] = {}
        """By the number of a thread: up to which seq its rows were looked at, and whether one has deltas."""

    def shared_time(self) -> int:
        """Return the time by a clock that all who use the store share: what leases go by."""
        return self.backend.now() if self.clock is now else self.clock()

    def anew(self) -> Heads:
        """Return the same with an empty cache: what it reads is what is stored now."""
        made = Heads(self.backend, self.types, self.options, self.clock)
        made.examined = self.examined
        return made

    def nodes(self) -> Nodes:
        """Return a source of nodes with nothing fresh in it."""
        return Nodes(self.backend.chunks, self.cache)

    # -- rows ---------------------------------------------------------------------------------

    def standing(self, space: str, name: str) -> Standing | None:
        """Return how a thread stands now; None if it never was."""
        record = self.backend.find_thread(space, name)
        return self.standing_of(record) if record else None

    def standing_of(self, record: ThreadRecord) -> Standing | None:
        """Return how this thread stands now; None if it has no rows."""
        newest = self.backend.newest(record.no)
        if newest is None:
            return None
        if not log.is_sound(newest, record.uid):
            raise self.damaged(record, newest.seq, f"its row is damaged{_WAYS_OUT}")
        if newest.head == 0:
            return Standing(record, newest, None)
        head = newest if newest.head == newest.seq else self.row(record, newest.head)
        if head is not None and not log.is_sound(head, record.uid):
            raise self.damaged(record, head.seq, f"its row is damaged{_WAYS_OUT}")
        if head is None:
            again = self.backend.newest(record.no)
            if again is not None and again.op_id != newest.op_id:
                return self.standing_of(record)
            raise Corrupt(f"the head of thread {record.name!r} is missing{_WAYS_OUT}", code="corrupt.row")
        return Standing(record, newest, head)

    def readable(self, record: ThreadRecord) -> Standing | None:
        """Return how this thread stands now, or what can be read of it if it is not known where its head is.

        That is how it stood at the newest row that is sound and whose head is: `before`. `newest` is the same but for
        its seq, which is that of the newest row, so that what is damaged is in view. Nothing is to be written to it.
        """
        try:
            return self.standing_of(record)
        except Corrupt as error:
            for row in self.downwards(record):
                head = row if row.head == row.seq else self.row(record, row.head)
                if head is not None and log.is_sound(row, record.uid) and log.is_sound(head, record.uid):
                    newest = self.backend.newest(record.no) or row
                    return Standing(record, row._replace(seq=newest.seq), head, before=row, lost=error)
            raise

    def downwards(self, record: ThreadRecord) -> Iterator[Row]:
        """Give all rows of a thread, the newest first."""
        last, page = log.MAX_SEQ, 8
        while rows := self.backend.rows(record.no, [(1, last)], newest_first=True, limit=page):
            yield from rows
            last, page = rows[-1].seq - 1, 2 * page

    def row(self, record: ThreadRecord, seq: int) -> Row | None:
        """Return a row as it is stored, damaged or not; None if it is gone."""
        found = self.backend.rows(record.no, [(seq, seq)])
        return found[0] if found else None

    def nearest(self, record: ThreadRecord, seq: int) -> Row | None:
        """Return the newest row at or below a seq."""
        found = self.backend.rows(record.no, [(1, seq)], newest_first=True, limit=1)
        return found[0] if found else None

    def sound_row(self, record: ThreadRecord, seq: int) -> Row | None:
        """Return a row; None if it is gone, `Corrupt` if it is damaged."""
        row = self.row(record, seq)
        if row is not None:
            self.require_sound(record, row)
        return row

    def require_sound(self, record: ThreadRecord, row: Row) -> None:
        """Raise `Corrupt` if a row is not as it was written."""
        if not log.is_sound(row, record.uid):
            raise self.damaged(record, row.seq, f"row {row.seq} of thread {record.name!r} is damaged")

    def damaged(self, record: ThreadRecord, seq: int, why: str, code: str = "corrupt.row") -> Corrupt:
        """Return the error that names a checkpoint."""
        name = log.checkpoint_id(record.uid, seq)
        told = f"checkpoint {name} of thread {record.name!r} cannot be read: "
        return Corrupt(told + why.removeprefix(told), code=code, checkpoint_id=name)

    def path(self, record: ThreadRecord, row: Row) -> log.Ranges:
        """Return the ranges from the root to a checkpoint.

        If the row that holds them is damaged or gone, what the first checkpoint behind it was made on tells them.
        """
        behind: log.Ranges = ()
        while True:
            moved = self.row(record, row.view) if row.view else None
            if row.view == 0 or (moved is not None and log.is_sound(moved, record.uid)):
                return *log.path_of(row, {row.view: moved}.get), *behind
            behind = ((row.view + 1, row.seq), *behind)
            first = next(iter(self.backend.rows(record.no, behind[:1], limit=1)), None)
            if first is None or not log.is_sound(first, record.uid) or not 0 < first.parent < row.view:
                return behind
            above = self.row(record, first.parent)
            if above is None or not log.is_sound(above, record.uid):
                return (first.parent, first.parent), *behind
            row = above

    # -- states ---------------------------------------------------------------------------------

    def chain(self, record: ThreadRecord, row: Row) -> Chain:
        """Read the tree of a checkpoint and hold it against its root; `NotFound` if it was deleted meanwhile."""
        self.require_sound(record, row)
        before: list[Row] | None = None
        while True:
            try:
                rows = self.chain_rows(record, row)
            except Corrupt as error:
                raise self._unreadable(record, row, error) from error
            try:
                return self._read_chain(row, rows)
            except Corrupt as error:
                if rows == before:
                    raise self._unreadable(record, row, error) from error
                before = rows  # upkeep may have rewritten them, and taken what they stood beside: only twice counts

    def at_hand(self, row: Row) -> Chain | None:
        """Read the tree of a checkpoint, a sound row, if it was read with all that this takes; None if it was not."""
        with suppress(Corrupt):  # such as for a chunk that upkeep has taken: whoever reads the row again is told
            return self._read_chain(row, [row]) if row.payload and row.base == row.seq else None
        return None

    def _unreadable(self, record: ThreadRecord, row: Row, error: Corrupt) -> Corrupt | NotFound:
        name = log.checkpoint_id(record.uid, row.seq)
        there = self.row(record, row.seq)
        if there is None or there.hidden:
            return NotFound(f"checkpoint {name} was deleted meanwhile", code="not_found.checkpoint")
        return self.damaged(record, row.seq, str(error), error.code)

    def chain_rows(self, record: ThreadRecord, row: Row) -> list[Row]:
        """Return the rows that a checkpoint's state is read from, the base first."""
        if row.view < row.base:
            ranges: log.Ranges = ((row.base, row.seq),)
        else:
            ranges = log.clip(self.path(record, row), row.base, row.seq)
        rows = _from_base(self.backend.rows(record.no, ranges, payload=True))
        if not rows or rows[-1].seq != row.seq:
            raise Corrupt("a row that it stands on is missing", code="corrupt.row")
        if rows[-1].op_id != row.op_id:
            name = log.checkpoint_id(record.uid, row.seq)
            raise NotFound(
                f"checkpoint {name} was never stored: its transaction was dropped", code="not_found.checkpoint"
            )
        return rows

    def _read_chain(self, row: Row, rows: list[Row]) -> Chain:
        nodes = self.nodes()
        nodes.load([digest for part in rows for digest in stands_beside(part.payload or b"")])  # in one read
        tree, settled = payload.read_base(rows[0].payload or b"", nodes)
        weight = sum(len(above.payload or b"") for above in rows[1:])
        ops = [op for above in rows[1:] for op in payload.read_delta(above.payload or b"", nodes)]
        tree = tree.apply(merged(ops)) if ops else tree
        if tree.root != row.root:
            raise Corrupt("what is stored does not match its root hash", code="corrupt.root")
        require_size(tree.size, row.size)
        return Chain(tree, len(rows) - 1, weight, settled)

    def with_chain(self, standing: Standing) -> Standing:
        """Return the standing with its head's tree read."""
        if standing.chain is not None or standing.head is None:
            return standing
        return standing._replace(chain=self.chain(standing.record, standing.head))

    # -- what is in view --------------------------------------------------------------------------

    def view(self, standing: Standing) -> log.Ranges:
        """Return the ranges of seq from the root to the head; if that is lost, also what came after what is known."""
        if standing.head is None:
            return ()
        path = self.path(standing.record, standing.head)
        if standing.lost is None or standing.before is None:
            return path
        return *path, *log.clip(((1, standing.newest.seq),), standing.before.seq + 1, log.MAX_SEQ)

    def exempt_by_label(self, record: ThreadRecord, row: Row) -> bool:
        """Tell whether a row stays for its label: one that a user gave, or any if rows are made from those before."""
        if row.label is None:
            return False
        return adapter_labels.mark_of(row, self.types) is None or self.has_deltas(record)

    def has_deltas(self, record: ThreadRecord) -> bool:
        """Tell whether an adapter's checkpoints in a thread may be made from others; each row is looked at once."""
        upto, found = self.deltas.get(record.no, (0, False))
        newest = None if found else self.backend.newest(record.no)
        if newest is not None and newest.seq > upto:
            rows = self.backend.rows(record.no, [(upto + 1, newest.seq)], visible=True)
            found = any(adapter_labels.has_deltas(row, self.types) for row in rows)
            self.deltas[record.no] = newest.seq, found
        return found

    def expired(self, record: ThreadRecord, rows: Sequence[Row], head: int) -> set[int]:
        """Return the seqs of checkpoints that the ttl has ended: not the head, nothing users labelled or tagged."""
        if self.options.ttl is None or record.space == SPACE:
            return set()
        oldest = self.clock() - self.options.ttl
        aged = [row for row in rows if row.created_at < oldest and row.seq != head]
        old = {row.seq for row in aged if not self.exempt_by_label(record, row)}
        return old - set(self.backend.tags(record.no, old)) if old else old

    def visible(
        self,
        standing: Standing,
        ranges: log.Ranges,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        payload: bool = False,
    ) -> list[Row]:
        """Return the checkpoints in these ranges that are to be seen, damaged ones included."""
        record, ttl = standing.record, self.options.ttl
        asked = limit if ttl is None else None  # what has expired must not count
        rows = self.backend.rows(
            record.no, ranges, payload=payload, visible=True, newest_first=newest_first, limit=asked
        )
        gone = self.expired(record, rows, standing.newest.head)
        return [row for row in rows if row.seq not in gone][:limit]

    def count(self, standing: Standing) -> int:
        """Return how many checkpoints in view are to be seen."""
        view = self.view(standing)
        if self.options.ttl is not None:
            return len(self.visible(standing, view))
        return self.backend.count(standing.record.no, view)

    def checkpoint_row(self, record: ThreadRecord, seq: int) -> Row:
        """Return the row of a checkpoint that is to be seen, or `NotFound`."""
        rows = self.backend.rows(record.no, [(seq, seq)], visible=True)
        newest = self.backend.newest(record.no)
        if not rows or self.expired(record, rows, newest.head if newest else 0):
            name = log.checkpoint_id(record.uid, seq)
            raise NotFound(f"there is no checkpoint {name} in thread {record.name!r}", code="not_found.checkpoint")
        return rows[0]


def _from_base(rows: list[Row]) -> list[Row]:
    """Return the rows of a chain from the last base on, or nothing if one of them is missing.

    A row may have become a base after the ones above it were written: they need not know.
    """
    starts = [at for at, row in enumerate(rows) if row.base == row.seq]
    chain = rows[starts[-1] :] if starts else []
    linked = all(above.parent == below.seq for below, above in itertools.pairwise(chain))
    return chain if linked else []
