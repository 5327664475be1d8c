"""Moving heads, hiding checkpoints, tagging: changes of the log that save no state.

A move is a row of the log. This module hides rows and never removes them: gc removes hidden rows later. The log of a
deleted thread continues with the next seq, so an old handle cannot bring the thread back by accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from backtrail.backends.port import Batch, Stale, Vanished
from backtrail.engine import log, rows, throttle
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.reader import Tip
from backtrail.engine.refs import require_head
from backtrail.engine.writer import with_retries
from backtrail.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader
    from backtrail.engine.writer import ThreadKey

T = TypeVar("T")
Tagged = dict[int, tuple[str, ...]]
"""Checkpoints of a thread, by seq, with their tags."""


class Doomed(NamedTuple):
    """Checkpoints of a thread that are to be hidden."""

    tip: Tip
    pins: dict[int, tuple[bytes, ...]]
    """The pins of the thread, read before the choice: a pin that is added later makes the commit fail."""
    seqs: Tagged


class HeadMover:
    """Moves the heads of threads; hides and tags their checkpoints."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._backend = reader.backend

    # -- the head ---------------------------------------------------------------------------------

    def rewind(self, key: ThreadKey, find: Callable[[Tip], Row]) -> Tip:
        """Make the checkpoint that `find` returns the head; return the new tip."""

        def attempt(tip: Tip) -> Tip:
            target = find(tip)
            return self._move(tip, log.REWIND, target, undo=tip.newest.seq, redo=0)

        return self._moving(key, attempt)

    def undo(self, key: ThreadKey) -> Tip:
        """Undo the last save or move of the head; return the new tip. `Invalid` if there is nothing to undo."""

        def attempt(tip: Tip) -> Tip:
            newest = tip.newest
            to = self._undo_target(tip, head=newest.head, start=newest.undo)
            if to is None:
                require_head(tip)
                raise Invalid(f"thread {key.name!r} has nothing left to undo", code="invalid.undo")
            return self._move(tip, log.UNDO, self._head_of(tip, to), undo=to.undo, redo=newest.seq)

        return self._moving(key, attempt)

    def before(self, tip: Tip) -> str | None:
        """Return the id of the checkpoint that an undo would make the head; None if there is nothing to undo."""
        newest = tip.newest
        to = self._undo_target(tip, head=newest.head, start=newest.undo)
        return None if to is None else log.checkpoint_id(tip.record.uid, to.head)

    def redo(self, key: ThreadKey) -> Tip:
        """Redo the last undo; return the new tip. `Invalid` if there is nothing to redo."""

        def attempt(tip: Tip) -> Tip:
            newest = tip.newest
            to = self._redo_target(tip, head=newest.head, start=newest.redo)
            if to is None:
                require_head(tip)
                raise Invalid(f"thread {key.name!r} has nothing to redo", code="invalid.redo")
            return self._move(tip, log.REDO, self._head_of(tip, to), undo=newest.seq, redo=to.redo)

        return self._moving(key, attempt)

    def _head_of(self, tip: Tip, row: Row) -> Row:
        head = row if row.head == row.seq else self._reader.sound_row(tip.record, row.head)
        if head is None:
            raise Stale
        return head

    def _undo_target(self, tip: Tip, *, head: int, start: int, gone: int = 0) -> Row | None:
        """Return the row whose head an undo restores, or None. The row `gone` counts as hidden: it will be."""
        record = tip.record

        def nearest(seq: int) -> Row | None:
            return self._as_seen(tip, self._reader.nearest(record, seq), gone)

        def read(seq: int) -> Row | None:
            return self._as_seen(tip, self._reader.sound_row(record, seq), gone)

        return log.undo_target(nearest, read, head=head, start=start)

    def _as_seen(self, tip: Tip, row: Row | None, gone: int) -> Row | None:
        """Return the row as readers will see it: marked hidden if its seq is `gone`, or if its ttl has passed."""
        if row is None or row.op not in log.CHECKPOINTS:
            return row
        over = row.seq == gone or bool(self._reader.expired(tip.record, [row], tip.newest.head))
        return row._replace(hidden=row.hidden or over)

    def _redo_target(self, tip: Tip, *, head: int, start: int, gone: int = 0) -> Row | None:
        """Return the row whose head a redo restores, or None. The row `gone` counts as hidden: it will be."""

        def read(seq: int) -> Row | None:
            return self._as_seen(tip, self._reader.sound_row(tip.record, seq), gone)

        return log.redo_target(read, head=head, start=start)

    def _move(self, tip: Tip, op: int, head: Row, *, undo: int, redo: int) -> Tip:
        record = tip.record
        ranges = self._reader.path(record, head)
        row = rows.move(tip, op, head, ranges, undo=undo, redo=redo, at=self._reader.clock())
        row = log.checked(row, record.uid)
        after = ((record.no, tip.newest.op_id),)
        self._backend.commit(Batch(rows=((record.no, row),), visible=((record.no, head.seq),), after=after))
        return Tip(record, row, head)

    # -- deleting ---------------------------------------------------------------------------------

    def delete_checkpoint(self, key: ThreadKey, find: Callable[[Tip], Row | None]) -> tuple[bool, Tip | None]:
        """Hide the checkpoint that `find` returns; if it is the head, its nearest visible ancestor becomes the head.

        Returns whether a checkpoint was hidden, and the tip; None instead of the tip if another row than the head was.
        """

        def attempt(tip: Tip) -> tuple[bool, Tip | None]:
            target = find(tip)
            if target is None:
                return False, tip
            record, newest = tip.record, tip.newest
            hide = ((record.no, target.seq),)
            if target.seq != newest.head:
                self._backend.commit(Batch(newest=((record.no, newest.seq),), hide=hide))
                return True, None
            above = log.clip(self._reader.view(tip), 1, target.seq - 1)
            survivors = self._reader.visible(tip, above, newest_first=True, limit=1) if above else []
            head = survivors[0] if survivors else None
            ranges = self._reader.path(record, head) if head else ()
            # start at the newest row, whose head is about to be hidden: both searches then skip moves without effect
            onto, gone = head.seq if head else 0, target.seq
            undo = self._undo_target(tip, head=onto, start=newest.seq, gone=gone)
            redo = self._redo_target(tip, head=onto, start=newest.seq, gone=gone)
            back, forth = undo.seq if undo else 0, redo.seq if redo else 0
            row = rows.move(tip, log.DROP, head, ranges, undo=back, redo=forth, at=self._reader.clock())
            row = log.checked(row, record.uid)
            self._backend.commit(Batch(rows=((record.no, row),), hide=hide))
            return True, Tip(record, row, head)

        nothing: tuple[bool, Tip | None] = (False, None)
        return self._existing(key, attempt, nothing)

    def delete_thread(self, key: ThreadKey) -> tuple[bool, Tip | None]:
        """Hide all checkpoints of a thread and of its aside thread; their logs stay.

        Returns whether there was a visible checkpoint, and the new tip; None instead of the tip if there is no thread.
        """

        def attempt(tip: Tip | None) -> tuple[bool, Tip | None]:
            aside = self._reader.tip(ASIDE, key.name) if key.space == THREAD else None
            doomed = [(each, self._shown(each)) for each in (tip, aside) if each is not None]
            doomed = [(each, shown) for each, shown in doomed if each.head is not None or any(r.root for r in shown)]
            cleared: dict[int, Row] = {}
            for each, _ in doomed:
                row = rows.move(each, log.CLEAR, None, (), undo=0, redo=0, at=self._reader.clock())
                cleared[each.record.no] = log.checked(row, each.record.uid)
            if doomed:
                hide = tuple((each.record.no, r.seq) for each, shown in doomed for r in shown)
                self._backend.commit(Batch(rows=tuple(cleared.items()), hide=hide))
            last = None if tip is None else cleared.get(tip.record.no)
            after = tip if tip is None or last is None else Tip(tip.record, last, None)
            return bool(doomed), after

        return with_retries(self._reader, key, attempt)

    def _shown(self, tip: Tip) -> list[Row]:
        return [r for r in self._backend.rows(tip.record.no, [(1, tip.newest.seq)]) if not r.hidden]

    def hide(self, key: ThreadKey, choose: Callable[[Tip], Tagged]) -> Tagged:
        """Hide the checkpoints that `choose` returns, except the head; return the hidden checkpoints with their tags.

        Each slice is one commit. If another writer saves or tags meanwhile, `choose` is called again for the rest.
        """
        hidden: Tagged = {}
        paced = throttle.Upkeep()

        def attempt(tip: Tip) -> Tagged:
            newest = tip.newest
            pins = self._backend.pins(tip.record.no)  # read first: a pin added after `choose` makes the commit fail
            for part in throttle.slices([(seq, tags) for seq, tags in choose(tip).items() if seq != newest.head]):
                with paced.write():
                    self.hide_all([Doomed(tip, pins, dict(part))])
                hidden.update(part)
            return hidden

        return self._existing(key, attempt, hidden)

    def hide_all(self, doomed: Sequence[Doomed]) -> None:
        """Hide checkpoints of several threads in one commit; `Stale` if one of the threads or tags has changed."""
        each = [
            (tip.record.no, seq, tags, pins.get(seq, ())) for tip, pins, seqs in doomed for seq, tags in seqs.items()
        ]
        batch = Batch(
            newest=tuple((tip.record.no, tip.newest.seq) for tip, _, _ in doomed),
            tags=tuple((no, seq, tags) for no, seq, tags, _ in each),
            pins=tuple((no, seq, pins) for no, seq, _, pins in each),
            hide=tuple((no, seq) for no, seq, _, _ in each),
        )
        self._backend.commit(batch)

    def tag(self, record: ThreadRecord, seq: int, add: Iterable[str], remove: Iterable[str]) -> None:
        """Add tags to a checkpoint and remove others."""
        no = record.no
        batch = Batch(
            visible=((no, seq),),
            tag=tuple((no, seq, tag) for tag in add),
            untag=tuple((no, seq, tag) for tag in remove),
        )
        try:
            self._backend.commit(batch)
        except Vanished:
            name = log.checkpoint_id(record.uid, seq)
            raise NotFound(f"checkpoint {name} was deleted", code="not_found.checkpoint") from None
        if batch.untag:
            self._reader.examined[no] = None

    # -- retries -----------------------------------------------------------------------------------

    def _moving(self, key: ThreadKey, attempt: Callable[[Tip], Tip]) -> Tip:
        def existing(tip: Tip | None) -> Tip:
            if tip is None:
                raise NotFound(f"there is no thread {key.name!r}", code="not_found.thread")
            try:
                return attempt(tip)
            except Vanished:
                raise Stale from None

        return with_retries(self._reader, key, existing)

    def _existing(self, key: ThreadKey, attempt: Callable[[Tip], T], otherwise: T) -> T:
        def maybe(tip: Tip | None) -> T:
            return otherwise if tip is None else attempt(tip)

        return with_retries(self._reader, key, maybe)
