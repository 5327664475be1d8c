"""What changes how a thread is seen, and no state: moves of its head, hiding, tags.

A move is a row, too. Nothing is removed here: what is hidden goes when upkeep collects it, and the log of a deleted
thread goes on, so that nobody who still holds it can bring it back by accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from backtrail.backends.port import Batch, NewThread, Stale, Vanished
from backtrail.engine import log, rows, throttle
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.reader import Standing
from backtrail.engine.refs import require_head
from backtrail.engine.writer import patiently
from backtrail.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.engine.writer import Key

T = TypeVar("T")
Tagged = dict[int, tuple[str, ...]]
"""Checkpoints of a thread, by seq, with their tags."""


class Moves:
    """Moves the heads of threads, and hides and tags what is in them."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._backend = heads.backend

    # -- the head ---------------------------------------------------------------------------------

    def rewind(self, key: Key, find: Callable[[Standing], Row]) -> Standing:
        """Make an older checkpoint the head again; `find` says which, given how the thread stands."""

        def attempt(standing: Standing) -> Standing:
            target = find(standing)
            return self._move(standing, log.REWIND, target, undo=standing.newest.seq, redo=0)

        return self._moving(key, attempt)

    def undo(self, key: Key) -> Standing:
        """Take the last change back."""

        def attempt(standing: Standing) -> Standing:
            newest = standing.newest
            to = self._undo_target(standing, head=newest.head, start=newest.undo)
            if to is None:
                require_head(standing)
                raise Invalid(f"thread {key.name!r} has nothing left to undo", code="invalid.undo")
            return self._move(standing, log.UNDO, self._head_of(standing, to), undo=to.undo, redo=newest.seq)

        return self._moving(key, attempt)

    def before(self, standing: Standing) -> str | None:
        """Return the id of the checkpoint that an undo would make the head; None if there is nothing to undo."""
        newest = standing.newest
        to = self._undo_target(standing, head=newest.head, start=newest.undo)
        return None if to is None else log.checkpoint_id(standing.record.uid, to.head)

    def redo(self, key: Key) -> Standing:
        """Take the last undo back."""

        def attempt(standing: Standing) -> Standing:
            newest = standing.newest
            to = self._redo_target(standing, head=newest.head, start=newest.redo)
            if to is None:
                require_head(standing)
                raise Invalid(f"thread {key.name!r} has nothing to redo", code="invalid.redo")
            return self._move(standing, log.REDO, self._head_of(standing, to), undo=newest.seq, redo=to.redo)

        return self._moving(key, attempt)

    def _head_of(self, standing: Standing, row: Row) -> Row:
        head = row if row.head == row.seq else self._heads.sound_row(standing.record, row.head)
        if head is None:
            raise Stale
        return head

    def _undo_target(self, standing: Standing, *, head: int, start: int, gone: int = 0) -> Row | None:
        """Return what an undo goes back to; `gone` is a checkpoint that is about to be hidden."""
        record = standing.record

        def nearest(seq: int) -> Row | None:
            return self._as_seen(standing, self._heads.nearest(record, seq), gone)

        def read(seq: int) -> Row | None:
            return self._as_seen(standing, self._heads.sound_row(record, seq), gone)

        return log.undo_target(nearest, read, head=head, start=start)

    def _as_seen(self, standing: Standing, row: Row | None, gone: int) -> Row | None:
        """Return a row, hidden if it is about to be or if its time has run out."""
        if row is None or row.op not in log.CHECKPOINTS:
            return row
        over = row.seq == gone or bool(self._heads.expired(standing.record, [row], standing.newest.head))
        return row._replace(hidden=row.hidden or over)

    def _redo_target(self, standing: Standing, *, head: int, start: int, gone: int = 0) -> Row | None:
        """Return what a redo goes forward to; `gone` as for an undo."""

        def read(seq: int) -> Row | None:
            return self._as_seen(standing, self._heads.sound_row(standing.record, seq), gone)

        return log.redo_target(read, head=head, start=start)

    def bring_back(self, key: Key, row: Row, was: int) -> Standing:
        """Make a checkpoint the head again, even if it was deleted; `was` is the seq of the head that it replaces."""

        def attempt(standing: Standing) -> Standing:
            record = self._replacing(standing, was)
            ranges = self._heads.path(record, row)
            undo = standing.newest.seq if was else 0
            move = rows.move(standing, log.REWIND, row, ranges, undo=undo, redo=0, at=self._heads.clock())
            move = log.checked(move, record.uid)
            begun = self._heads.view(standing)
            same = bool(begun) and begun[0][0] == ranges[0][0]
            again = () if same else ((record.no, self._as_it_was(record, ranges)),)
            try:
                self._backend.commit(Batch(rows=((record.no, move),), show=((record.no, row.seq),), renew=again))
            except Vanished as error:  # whoever chose the row has to choose again: to try once more would not help
                text = f"a checkpoint of thread {record.name!r} was removed meanwhile"
                raise Conflict(text, code="conflict.transaction") from error
            return Standing(record, move, row)

        return self._moving(key, attempt)

    def _as_it_was(self, record: ThreadRecord, ranges: log.Ranges) -> NewThread:
        """Return what a thread was before another one began under its name, as far as its first row is still there."""
        root = self._heads.sound_row(record, ranges[0][0])
        if root is None:
            return NewThread(*record[1:])
        return NewThread(*record[1:5], root.created_at, log.unpack_extra(root)[2])

    def leave(self, key: Key, was: int) -> Standing:
        """Take a thread out of view, without hiding anything; `was` is the seq of its head."""

        def attempt(standing: Standing) -> Standing:
            record = self._replacing(standing, was)
            move = rows.move(standing, log.LEAVE, None, (), undo=0, redo=0, at=self._heads.clock())
            move = log.checked(move, record.uid)
            self._backend.commit(Batch(rows=((record.no, move),)))
            return Standing(record, move, None)

        return self._moving(key, attempt)

    def _replacing(self, standing: Standing, was: int) -> ThreadRecord:
        if standing.newest.head != was:
            raise Conflict(f"thread {standing.record.name!r} moved on meanwhile", code="conflict.transaction")
        return standing.record

    def _move(self, standing: Standing, op: int, head: Row, *, undo: int, redo: int) -> Standing:
        record = standing.record
        ranges = self._heads.path(record, head)
        row = rows.move(standing, op, head, ranges, undo=undo, redo=redo, at=self._heads.clock())
        row = log.checked(row, record.uid)
        self._backend.commit(Batch(rows=((record.no, row),), visible=((record.no, head.seq),)))
        return Standing(record, row, head)

    # -- deleting ---------------------------------------------------------------------------------

    def delete_checkpoint(self, key: Key, find: Callable[[Standing], Row | None]) -> tuple[bool, Standing | None]:
        """Hide a checkpoint; if it is the head, its nearest surviving ancestor becomes the head."""

        def attempt(standing: Standing) -> tuple[bool, Standing | None]:
            target = find(standing)
            if target is None:
                return False, standing
            record, newest = standing.record, standing.newest
            hide = ((record.no, target.seq),)
            if target.seq != newest.head:
                self._backend.commit(Batch(newest=((record.no, newest.seq),), hide=hide))
                return True, None
            above = log.clip(self._heads.view(standing), 1, target.seq - 1)
            survivors = self._heads.visible(standing, above, newest_first=True, limit=1) if above else []
            head = survivors[0] if survivors else None
            ranges = self._heads.path(record, head) if head else ()
            # from the newest row on, which stands on what goes: so both pass over what would change nothing
            onto, gone = head.seq if head else 0, target.seq
            undo = self._undo_target(standing, head=onto, start=newest.seq, gone=gone)
            redo = self._redo_target(standing, head=onto, start=newest.seq, gone=gone)
            back, forth = undo.seq if undo else 0, redo.seq if redo else 0
            row = rows.move(standing, log.DROP, head, ranges, undo=back, redo=forth, at=self._heads.clock())
            row = log.checked(row, record.uid)
            self._backend.commit(Batch(rows=((record.no, row),), hide=hide))
            return True, Standing(record, row, head)

        nothing: tuple[bool, Standing | None] = (False, None)
        return self._existing(key, attempt, nothing)

    def delete_thread(self, key: Key) -> tuple[bool, Standing | None]:
        """Hide all of a thread, and of the one aside of it; their logs go on, so that no handle brings them back."""

        def attempt(standing: Standing | None) -> tuple[bool, Standing | None]:
            aside = self._heads.standing(ASIDE, key.name) if key.space == THREAD else None
            doomed = [(each, self._shown(each)) for each in (standing, aside) if each is not None]
            doomed = [(each, shown) for each, shown in doomed if each.head is not None or any(r.root for r in shown)]
            cleared: dict[int, Row] = {}
            for each, _ in doomed:
                row = rows.move(each, log.CLEAR, None, (), undo=0, redo=0, at=self._heads.clock())
                cleared[each.record.no] = log.checked(row, each.record.uid)
            if doomed:
                hide = tuple((each.record.no, r.seq) for each, shown in doomed for r in shown)
                self._backend.commit(Batch(rows=tuple(cleared.items()), hide=hide))
            last = None if standing is None else cleared.get(standing.record.no)
            after = standing if standing is None or last is None else Standing(standing.record, last, None)
            return bool(doomed), after

        return patiently(self._heads, key, attempt)

    def _shown(self, standing: Standing) -> list[Row]:
        return [r for r in self._backend.rows(standing.record.no, [(1, standing.newest.seq)]) if not r.hidden]

    def hide(self, key: Key, choose: Callable[[Standing], Tagged]) -> Tagged:
        """Hide the checkpoints that `choose` names (never the head) with the tags that they have; return which went.

        Many are hidden a slice at a time. If somebody else writes, or tags one of them, meanwhile, `choose` is asked
        again about the rest.
        """
        hidden: Tagged = {}
        paced = throttle.Upkeep()

        def attempt(standing: Standing) -> Tagged:
            no, newest = standing.record.no, standing.newest
            for part in throttle.slices([(seq, tags) for seq, tags in choose(standing).items() if seq != newest.head]):
                hide, tags = tuple((no, seq) for seq, _ in part), tuple((no, *each) for each in part)
                with paced.write():
                    self._backend.commit(Batch(newest=((no, newest.seq),), tags=tags, hide=hide))
                hidden.update(part)
            return hidden

        return self._existing(key, attempt, hidden)

    def tag(self, record: ThreadRecord, seq: int, add: Iterable[str], remove: Iterable[str]) -> None:
        """Put tags on a checkpoint, take others off."""
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
            self._heads.examined[no] = None

    # -- trying -----------------------------------------------------------------------------------

    def _moving(self, key: Key, attempt: Callable[[Standing], Standing]) -> Standing:
        def existing(standing: Standing | None) -> Standing:
            if standing is None:
                raise NotFound(f"there is no thread {key.name!r}", code="not_found.thread")
            try:
                return attempt(standing)
            except Vanished:
                raise Stale from None

        return patiently(self._heads, key, existing)

    def _existing(self, key: Key, attempt: Callable[[Standing], T], otherwise: T) -> T:
        def maybe(standing: Standing | None) -> T:
            return otherwise if standing is None else attempt(standing)

        return patiently(self._heads, key, maybe)
