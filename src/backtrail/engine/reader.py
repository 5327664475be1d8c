"""Reading: the tip of a thread, and the verified state of any of its checkpoints.

A `Tip` is a thread at one moment: its newest row, its head, and the head's tree with the chain that it was read from.
Tips are immutable and safe to share.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.backends.port import ERASED, Row
from backtrail.engine import adapter_labels, log, payload
from backtrail.engine.compression import stands_beside
from backtrail.engine.manifests import SPACE, pinned_seqs
from backtrail.engine.tree.nodes import Cache, Nodes, require_size
from backtrail.engine.tree.tree import Tree, merged
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping, Sequence
    from typing import Self

    from backtrail.backends.port import Backend, LogStore, ThreadRecord
    from backtrail.engine.redact import Redactor
    from backtrail.engine.schema.registry import Types

CACHE_BYTES: Final = 24 * 1024 * 1024
_WAYS_OUT: Final = (
    "; older checkpoints can be read by id, label or tag; verify(repair=True) makes the newest readable one the head"
)


_STORED: Final = Row._fields.index("payload")
"""The number of columns that a row is read with."""


class Chain(NamedTuple):
    """A tree, and measures of the rows that it was read from: a base and the deltas after it."""

    tree: Tree
    depth: int
    """The number of deltas since the base."""
    weight: int
    """The stored bytes of the deltas since the base."""
    settled: frozenset[bytes]
    """The digests of the nodes that the base includes."""


class Tip(NamedTuple):
    """A thread at the moment when its newest row was read or written."""

    record: ThreadRecord
    newest: Row
    head: Row | None
    chain: Chain | None = None
    """None until the head's state is needed."""
    before: Row | None = None
    """The newest stored row, if `newest` is not stored yet."""
    lost: Corrupt | None = None
    """Why the head is unknown, if it is: see `LogReader.readable`."""


class Examined(NamedTuple):
    """How far the store's retention options have checked the rows of a thread. Checked rows are not checked again."""

    view: int
    """The seq of the row that stores the view. After a move of the head all rows are checked again."""
    upto: int
    """All rows in view up to this seq were checked, and all rows out of view."""
    aged: int
    """All rows up to this seq are older than the ttl."""


class Options(NamedTuple):
    """The options of a store."""

    compression: bool = True
    max_checkpoints: int | None = None
    ttl: int | None = None
    """Microseconds."""
    auto_interval: int | None = None
    """Microseconds."""
    redact: Redactor | None = None
    """Redacts values before they are written."""

    @property
    def retires(self) -> bool:
        """Whether saving a checkpoint may hide others."""
        return not (self.max_checkpoints is None and self.ttl is None and self.auto_interval is None)


def now() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


class LogReader:
    """Reads threads from a store, or from a store as a transaction sees it."""

    def __init__(self, backend: LogStore, types: Types, options: Options, clock: Callable[[], int] = now) -> None:
        self.backend = backend
        self.types = types
        self.options = options
        self.clock = clock
        self.cache = Cache(CACHE_BYTES)
        self.examined: MutableMapping[int, Examined | None] = {}
        """By thread number. None: check all rows of the thread again, for example after a tag was removed."""
        self.deltas: MutableMapping[int, tuple[int, bool]] = {}
        """By thread number: the seq up to which `has_deltas` has checked the rows, and whether a row has deltas."""

    def shared_time(self) -> int:
        """Return the time of the clock that all processes with this store share. Leases use it."""
        return self.backend.now() if self.clock is now else self.clock()

    def uncached(self) -> Self:
        """Return a reader with an empty cache, so that it reads the stored bytes again."""
        made = type(self)(self.backend, self.types, self.options, self.clock)
        made.examined = self.examined
        return made

    def nodes(self) -> Nodes:
        """Return a source of nodes without fresh nodes."""
        return Nodes(self.backend.chunks, self.cache)

    # -- rows ---------------------------------------------------------------------------------

    def tip(self, space: str, name: str) -> Tip | None:
        """Return the current tip of a thread; None if there is no such thread."""
        record = self.backend.find_thread(space, name)
        return self.tip_of(record) if record else None

    def is_current(self, tip: Tip, newest: Row | None = None) -> bool:
        """Tell whether the newest row of a tip is still the newest row of its thread, unchanged.

        One read, unless the caller has just read the newest row.
        """
        newest = newest or self.backend.newest(tip.record.no)
        return newest is not None and newest[:_STORED] == tip.newest[:_STORED]

    def tip_of(self, record: ThreadRecord) -> Tip | None:
        """Return the current tip of this thread; None if it has no rows."""
        newest = self.backend.newest(record.no)
        if newest is None:
            return None
        if not log.is_sound(newest, record.uid):
            raise self.damaged(record, newest.seq, f"its row is damaged{_WAYS_OUT}")
        if newest.head == 0:
            return Tip(record, newest, None)
        head = newest if newest.head == newest.seq else self.row(record, newest.head)
        if head is not None and not log.is_sound(head, record.uid):
            raise self.damaged(record, head.seq, f"its row is damaged{_WAYS_OUT}")
        if head is None:
            again = self.backend.newest(record.no)
            if again is not None and again.op_id != newest.op_id:
                return self.tip_of(record)
            raise Corrupt(f"the head of thread {record.name!r} is missing{_WAYS_OUT}", code="corrupt.row")
        return Tip(record, newest, head)

    def readable(self, record: ThreadRecord) -> Tip | None:
        """Return the current tip of a thread; if its head is damaged or missing, a readable older tip.

        The older tip has `lost` set. Its `before` is the newest sound row with a sound head. Its `newest` is the same
        row with the seq of the newest row, so that the damaged rows are in view. Do not write on an older tip.
        """
        try:
            return self.tip_of(record)
        except Corrupt as error:
            for row in self.downwards(record):
                head = row if row.head == row.seq else self.row(record, row.head)
                if head is not None and log.is_sound(row, record.uid) and log.is_sound(head, record.uid):
                    newest = self.backend.newest(record.no) or row
                    return Tip(record, row._replace(seq=newest.seq), head, before=row, lost=error)
            raise

    def downwards(self, record: ThreadRecord) -> Iterator[Row]:
        """Yield all rows of a thread, the newest first."""
        last, page = log.MAX_SEQ, 8
        while rows := self.backend.rows(record.no, [(1, last)], newest_first=True, limit=page):
            yield from rows
            last, page = rows[-1].seq - 1, 2 * page

    def row(self, record: ThreadRecord, seq: int) -> Row | None:
        """Return a row unchecked, so it may be damaged; None if it was removed."""
        found = self.backend.rows(record.no, [(seq, seq)])
        return found[0] if found else None

    def nearest(self, record: ThreadRecord, seq: int) -> Row | None:
        """Return the newest row at or below a seq; None if there is none."""
        found = self.backend.rows(record.no, [(1, seq)], newest_first=True, limit=1)
        return found[0] if found else None

    def sound_row(self, record: ThreadRecord, seq: int) -> Row | None:
        """Return a row; None if it was removed. Raises `Corrupt` if it is damaged."""
        row = self.row(record, seq)
        if row is not None:
            self.require_sound(record, row)
        return row

    def require_sound(self, record: ThreadRecord, row: Row) -> None:
        """Raise `Corrupt` if a row is damaged."""
        if not log.is_sound(row, record.uid):
            raise self.damaged(record, row.seq, f"row {row.seq} of thread {record.name!r} is damaged")

    def damaged(self, record: ThreadRecord, seq: int, why: str, code: str = "corrupt.row") -> Corrupt:
        """Return the error for a checkpoint that cannot be read. `why` may be the text of another such error."""
        name = log.checkpoint_id(record.uid, seq)
        if code == "corrupt.row" and (there := self.row(record, seq)) is not None and there.check == ERASED:
            text = f"checkpoint {name} of thread {record.name!r} cannot be read: its key was destroyed: it was erased"
            text += ", or this is a copy from before the keys were rotated"
            return Corrupt(text, code="corrupt.erased", checkpoint_id=name)
        return Corrupt(log.unreadable(name, record.name, why), code=code, checkpoint_id=name)

    def path(self, record: ThreadRecord, row: Row) -> log.Ranges:
        """Return the ranges of seq from the root to a checkpoint.

        If the row that stores them is damaged or missing, the parent of the first checkpoint after it leads further
        back. If that is unreadable, too, the ranges begin there instead of at the root.
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
        """Read the tree of a checkpoint and compare it with its root hash; `NotFound` if it was deleted meanwhile."""
        self.require_sound(record, row)
        before: list[Row] | None = None
        while True:
            try:
                rows = self.chain_rows(record, row)
            except Corrupt as error:
                raise self._unreadable(record, row, error) from error
            try:
                return self.read_chain(row, rows)
            except Corrupt as error:
                if rows == before:
                    raise self._unreadable(record, row, error) from error
                before = rows  # gc may have rewritten the rows meanwhile: read them again before reporting damage

    def at_hand(self, row: Row) -> Chain | None:
        """Return the tree of a sound row without reading other rows; None unless it is a base with its payload read."""
        with suppress(Corrupt):  # gc may have removed a chunk: the caller then reads the row again, which reports it
            return self.read_chain(row, [row]) if row.payload and row.base == row.seq else None
        return None

    def _unreadable(self, record: ThreadRecord, row: Row, error: Corrupt) -> Corrupt | NotFound:
        name = log.checkpoint_id(record.uid, row.seq)
        there = self.row(record, row.seq)
        if there is None or there.hidden:
            return NotFound(f"checkpoint {name} was deleted meanwhile", code="not_found.checkpoint")
        return self.damaged(record, row.seq, str(error), error.code)

    def chain_rows(self, record: ThreadRecord, row: Row) -> list[Row]:
        """Read the rows of a checkpoint's chain, with payloads, the base first."""
        path = () if row.view < row.base else self.path(record, row)
        return self.chain_from(record, row, self.backend.rows(record.no, self.chain_ranges(row, path), payload=True))

    def chain_ranges(self, row: Row, path: log.Ranges) -> log.Ranges:
        """Return the ranges of seq of a checkpoint's chain. `path` is needed only if the head moved since the base."""
        return ((row.base, row.seq),) if row.view < row.base else log.clip(path, row.base, row.seq)

    def chain_from(self, record: ThreadRecord, row: Row, rows: list[Row]) -> list[Row]:
        """Return the rows of a checkpoint's chain, the base first. `rows` are the rows in its ranges."""
        rows = _from_base(rows)
        if not rows or rows[-1].seq != row.seq:
            raise Corrupt("a row of its chain is missing", code="corrupt.row")
        if rows[-1].op_id != row.op_id:
            name = log.checkpoint_id(record.uid, row.seq)
            raise NotFound(
                f"checkpoint {name} was never stored: its transaction was dropped", code="not_found.checkpoint"
            )
        return rows

    def read_chain(self, row: Row, rows: list[Row]) -> Chain:
        """Return the tree of a checkpoint, made from the rows of its chain; `Corrupt` if its root hash is wrong."""
        nodes = self.nodes()
        nodes.load([digest for part in rows for digest in stands_beside(part.payload or b"")])  # in one read
        tree, settled = payload.read_base(rows[0].payload or b"", nodes)
        weight = sum(len(above.payload or b"") for above in rows[1:])
        ops = [op for above in rows[1:] for op in payload.read_delta(above.payload or b"", nodes)]
        tree = tree.apply(merged(ops)) if ops else tree
        if tree.root != row.root:
            raise Corrupt("the stored state does not match its root hash", code="corrupt.root")
        require_size(tree.size, row.size)
        return Chain(tree, len(rows) - 1, weight, settled)

    def with_chain(self, tip: Tip) -> Tip:
        """Return the tip with its `chain`: the head's tree is read if the tip does not have it yet."""
        if tip.chain is not None or tip.head is None:
            return tip
        return tip._replace(chain=self.chain(tip.record, tip.head))

    # -- views --------------------------------------------------------------------------

    def view(self, tip: Tip) -> log.Ranges:
        """Return the ranges of seq from the root to the head. If the head is lost, the damaged rows are included."""
        if tip.head is None:
            return ()
        path = self.path(tip.record, tip.head)
        if tip.lost is None or tip.before is None:
            return path
        return *path, *log.clip(((1, tip.newest.seq),), tip.before.seq + 1, log.MAX_SEQ)

    def exempt_by_label(self, record: ThreadRecord, row: Row) -> bool:
        """Tell whether retention keeps a row for its label: a user's label, or any label in a thread with deltas."""
        if row.label is None:
            return False
        return adapter_labels.mark_of(row, self.types) is None or self.has_deltas(record)

    def has_deltas(self, record: ThreadRecord) -> bool:
        """Tell whether a thread has a checkpoint with delta channels (see `adapter_labels`). Checks each row once."""
        upto, found = self.deltas.get(record.no, (0, False))
        newest = None if found else self.backend.newest(record.no)
        if newest is not None and newest.seq > upto:
            rows = self.backend.rows(record.no, [(upto + 1, newest.seq)], visible=True)
            found = any(adapter_labels.has_deltas(row, self.types) for row in rows)
            self.deltas[record.no] = newest.seq, found
        return found

    def expired(self, record: ThreadRecord, rows: Sequence[Row], head: int) -> set[int]:
        """Return the seqs of the rows older than the ttl, except the head and labelled, tagged and pinned rows."""
        if self.options.ttl is None or record.space == SPACE:
            return set()
        oldest = self.clock() - self.options.ttl
        aged = [row for row in rows if row.created_at < oldest and row.seq != head]
        old = {row.seq for row in aged if not self.exempt_by_label(record, row)}
        return old - self.backend.tags(record.no, old).keys() - pinned_seqs(self, record, old) if old else old

    def visible(
        self,
        tip: Tip,
        ranges: log.Ranges,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        payload: bool = False,
    ) -> list[Row]:
        """Return the checkpoints in the ranges that are neither hidden nor expired, damaged checkpoints included."""
        record, ttl = tip.record, self.options.ttl
        asked = limit if ttl is None else None  # expired rows must not count towards the limit
        rows = self.backend.rows(
            record.no, ranges, payload=payload, visible=True, newest_first=newest_first, limit=asked
        )
        gone = self.expired(record, rows, tip.newest.head)
        return [row for row in rows if row.seq not in gone][:limit]

    def count(self, tip: Tip) -> int:
        """Return the number of visible checkpoints in view."""
        view = self.view(tip)
        if self.options.ttl is not None:
            return len(self.visible(tip, view))
        return self.backend.count(tip.record.no, view)

    def checkpoint_row(self, record: ThreadRecord, seq: int) -> Row:
        """Return the row of a visible checkpoint, or raise `NotFound`."""
        rows = self.backend.rows(record.no, [(seq, seq)], visible=True)
        newest = self.backend.newest(record.no)
        if not rows or self.expired(record, rows, newest.head if newest else 0):
            name = log.checkpoint_id(record.uid, seq)
            raise NotFound(f"there is no checkpoint {name} in thread {record.name!r}", code="not_found.checkpoint")
        return rows[0]


class StoreReader(LogReader):
    """Reads threads from the store itself; its backend also has search, the change feed and maintenance."""

    backend: Backend

    def __init__(self, backend: Backend, types: Types, options: Options, clock: Callable[[], int] = now) -> None:
        super().__init__(backend, types, options, clock)


def _from_base(rows: list[Row]) -> list[Row]:
    """Return the rows from the last base on; an empty list if a row is missing.

    There may be several bases: gc may turn a row into a base after later rows were written.
    """
    starts = [at for at, row in enumerate(rows) if row.base == row.seq]
    chain = rows[starts[-1] :] if starts else []
    linked = all(above.parent == below.seq for below, above in itertools.pairwise(chain))
    return chain if linked else []
