"""The recorder of a run: it writes the run's two threads, until another worker takes the run over.

The thread in the name space `journal` holds the point from which the run resumes. The thread in the name space `run`
holds its checkpoints. The recorder keeps the tip of each thread after a write, so it need not read it again. It writes
to the journal only if the journal's newest row is the one that it knows. A worker that takes the run over adds a row
first; after that, no write of the former worker succeeds.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from backtrail.backends.port import Batch, Stale
from backtrail.engine import journal, log
from backtrail.engine.reader import LogReader
from backtrail.engine.rows import Meta
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import decode as unpacker
from backtrail.engine.tree import edits
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import NOTHING, Expect, LogWriter, ThreadKey
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Error, NotFound
from backtrail.maintenance import gc
from backtrail.models import MISSING
from backtrail.runs.journal import continued, rewound, unfolded
from backtrail.runs.strategies import RunState
from backtrail.runs.values import RunValues
from backtrail.thread import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from backtrail.backends.port import LogStore, Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.reader import Tip
    from backtrail.engine.writer import Proposal, Propose
    from backtrail.runs.delivery import Delivery
    from backtrail.runs.journal import Pending, Picture, RunJournal
    from backtrail.runs.strategies import RunStatus
    from backtrail.transaction import Engine, Session

SPACE: Final = journal.RUN
JOURNAL: Final = journal.SPACE
INTERRUPTED: Final = (str(RunState.HALTED), "interrupted")
"""The status of a run that Ctrl-C or a cancellation ended."""
MOVES: Final = (log.REWIND, log.UNDO, log.REDO)
_TRIES: Final = 100
_TRIM_EVERY: Final = 32
_PLAIN: Final = Types()
_EMPTIED: Final = (*journal.LISTS, "zero", "past")
"""The lists of a journal that are empty when it continues a checkpoint."""
_LASTING: Final = ("agent", "created_at", "conversation", "status", "lease", "upto", "own", "free")


@cache
def _path(*steps: str) -> Path:
    """Return a path, the same object each time: a tree knows the place of its last change by the path."""
    return Path(steps)


class Show(NamedTuple):
    """A checkpoint to be written in the same commit as journal entries."""

    state: Any
    status: RunStatus
    is_over: bool = False
    """Whether the checkpoint is at the end of its iteration."""
    label: str | None = None
    kind: str = "automatic"
    metadata: Mapping[str, Any] | None = None


class Recorder:
    """The writer of a run's journal and checkpoints. A write fails if another worker has written to the journal."""

    def __init__(
        self, engine: Engine, session_id: str, agent: str | None, values: RunValues, delivery: Delivery
    ) -> None:
        self._engine = engine
        self.journal = JournalThread(engine, session_id, agent, values)
        self.checkpoints = CheckpointThread(engine, session_id, agent, values)
        self.delivery = delivery
        self._guard = Fence(engine.direct.reader)
        self.lock = threading.RLock()
        """Held during each write."""
        self.token = uuid.uuid4().hex
        """A random text that identifies the lease of this worker."""
        self.lost: Conflict | None = None
        """The error of a run that was deleted or that another worker has taken over."""
        self.unsure: CommitUnknown | None = None
        """The error if it is unknown whether the last write was committed. The caller has to open the run again."""
        self._stale = False
        """Whether a renewal of the lease may have added a row: then the next write reads the journal first."""

    @property
    def is_broken(self) -> bool:
        """Whether this recorder can no longer write."""
        return self.lost is not None or self.unsure is not None

    @property
    def last(self) -> int:
        """The seq of the newest checkpoint that this worker knows; 0 if it knows none."""
        return max(self.checkpoints.last, self.journal.place.at)

    def check(self) -> None:
        """Raise the error after which this recorder can no longer write, if there is one."""
        if self.lost is not None:
            raise self.lost
        if self.unsure is not None:
            raise self.unsure

    # -- entries, iterations, leases ----------------------------------------------------------------------

    def record(
        self,
        run: RunJournal,
        entries: Sequence[list[Any]] = (),
        *,
        fields: Mapping[str, Any] | None = None,
        show: Show | None = None,
    ) -> Checkpoint[Any] | None:
        """Write the queued entries, then `entries`, with `fields` of the journal and a checkpoint, in one commit.

        Return the checkpoint, None without `show`. A checkpoint has the entries in it: the journal gets a row only if
        its fields change, or with the first checkpoint, before which a new worker has no thread to rely on. A status
        means that the worker leaves the run before its end: then the journal gets all that the run needs to resume, so
        that a run without a worker needs none of its checkpoints.
        """
        pending = run.pending(entries)
        items, given = pending.items, {**(fields or {}), **self.delivery.fields()}
        made: Checkpoint[Any] | None = None
        is_first = show is not None and not self.last

        def write(session: Session) -> None:
            nonlocal made
            self.delivery.send(items)
            if show is not None:
                made = self._show(session, run, pending, show)
            if "status" in given and (show is not None or self.journal.place.checkpoint):
                point = run.point(pending, self.journal.began_with(session))
                self.journal.put_whole(session, {**self.journal.fields, **point, "at": self.last, **given})
            elif given or is_first or (items and show is None):
                self.journal.extend(session, () if show else items, given, self.checkpoints.last)
            if "status" in given:
                self.journal.hide_older(session)

        with self.uninterrupted():
            if items or given or show:
                several = "status" in given or is_first or (show is not None and bool(given))
                self.write(write, several=several or self.delivery.is_due(items))
                self.delivery.sent()
            run.wrote(items, entries)
        return made

    def end_iteration(self, run: RunJournal, show: Show | None, status: RunStatus | None) -> None:
        """Write the end of an iteration; with a status, also the end of the run."""
        ending, thread = run.ending(), self.journal
        fields: dict[str, Any] = {"iteration": run.iteration + 1, "free": 0, **self.delivery.fields()}
        calls: list[Any] = []
        if status is not None:  # the calls of the last iteration can be replayed
            fields |= {"iteration": run.iteration, "status": [status.name, status.reason], "lease": None}
            calls = [*run.entries, *ending.items] if run.iteration else []

        def write(session: Session) -> None:
            self.delivery.send(ending.items)
            if show is not None:
                self._show(session, run, ending, show)
                thread.extend(session, calls, fields, self.checkpoints.last, state=run.state)
            else:
                self._end_without_checkpoint(session, run, ending, fields, calls)
            if status is not None:
                thread.hide_older(session)

        with self.uninterrupted():
            several = show is not None or status is not None or self.delivery.is_due(ending.items)
            self.write(write, several=several)
            self.delivery.sent()
            run.end_iteration(ending, status)
        thread.trim()

    def _end_without_checkpoint(
        self, session: Session, run: RunJournal, ending: Pending, fields: dict[str, Any], calls: list[Any]
    ) -> None:
        """Write the end of an iteration to the journal: its entries if they are enough, else the complete point."""
        thread, last, ends_run = self.journal, self.last, "status" in fields
        if ends_run:  # the end of the run cancels a rewind that came while it was open
            fields = {**fields, "upto": self.checkpoints.newest(session)}
        stands_on_checkpoint = last > thread.place.at or thread.place.checkpoint
        if not run.iteration or run.is_replay or (ends_run and stands_on_checkpoint):
            point = {**run.point(ending), "calls": calls}
            thread.put_whole(session, {**thread.fields, **point, "at": last, **fields})
        else:
            thread.extend(session, ending.items, fields, last, state=run.state, past=ending.past, ends=True)

    def _show(self, session: Session, run: RunJournal, pending: Pending, show: Show) -> Checkpoint[Any]:
        """Write a checkpoint of the run."""
        began = partial(self.journal.began_with, session)
        picture = run.picture(show.state, show.status, pending, began, over=show.is_over)
        return self.checkpoints.put(picture, show, self._fence(session))

    def _fence(self, session: Session) -> LogWriter:
        """Return a writer whose commits also require that no other worker has written to the journal."""
        tip = self.journal.place.tip
        if tip is None:
            raise Corrupt(f"the journal of run {self.journal.id!r} is gone", code="corrupt.state")
        if session.overlay is not None:
            session.overlay.rely_on(tip.record.no, tip.newest)
            return session.writer
        self._guard.required = tip.record.no, tip.newest
        return self._guard.writer

    def renew(self, term: list[Any]) -> None:
        """Write a later end of the lease to the journal; `term` is the new lease."""
        self.write(lambda session: self.journal.extend(session, (), {"lease": term}), several=False)

    def doubt_renewal(self) -> None:
        """Record that a renewal may or may not be committed: the next write reads the journal first."""
        self.unsure, self._stale = None, True

    def let_go(self, fields: Mapping[str, Any]) -> None:
        """Release the lease after a write whose outcome is unknown, unless that write released it."""
        data = self.journal.read(self._engine.direct)
        if data is not None and data["lease"] is not None:
            self._look_again()
            self._attempt(lambda session: self.journal.extend(session, (), fields), several=False)

    # -- writing and retrying -----------------------------------------------------------------------------

    def write(self, write: Callable[[Session], None], *, several: bool = True) -> None:
        """Call `write` and commit; retry if others moved the run's checkpoints meanwhile.

        Raise `Conflict` if another worker wrote to the journal: the run is lost. `several` tells that `write` writes
        more than one row: then it runs in a transaction.
        """
        self.check()
        if self._stale:
            self._look_again()
        tries = 0
        while True:
            try:
                self._attempt(write, several=several)
                return
            except Conflict as error:  # another worker wrote to the journal, or a user changed the checkpoints
                self._look_again(error)
                if tries == _TRIES or error.code == "conflict.agent":
                    raise
            tries += 1
            time.sleep(random.random() * 0.001 * tries)  # noqa: S311 - jitter

    def _attempt(self, write: Callable[[Session], None], *, several: bool) -> None:
        """Call `write` once. After an error, restore the known tips; if the commit is uncertain, set `unsure`."""
        place, tip, last = self.journal.place, self.checkpoints.tip, self.checkpoints.last
        try:
            if several:
                self._engine.at_once(write)
                self.checkpoints.refresh()
            else:  # one row is atomic without a transaction
                write(self._engine.direct)
        except BaseException as error:
            # The transaction rolled its rows back.
            self.journal.place, self.checkpoints.tip, self.checkpoints.last = place, tip, last
            self.checkpoints.forget()
            if isinstance(error, CommitUnknown) or not isinstance(error, Exception):  # it may have been written
                self._doubt()
            raise

    def uninterrupted(self) -> Self:
        """If Ctrl-C interrupts the block, refuse further writes: the known state may differ from the stored one."""
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self._doubt()

    def _doubt(self) -> None:
        self.unsure = CommitUnknown(
            f"it is unknown whether the last write of run {self.journal.id!r} was committed: leave its block, and open "
            "it again; it continues from what was written",
            code="commit_unknown.run",
        )

    def _look_again(self, error: Conflict | None = None) -> None:
        """Read the journal again; raise `Conflict` if its lease does not have the token of this worker."""
        data = self.journal.read(self._engine.direct)
        if data is None or data["lease"] is None or data["lease"][1] != self.token:
            raise self._taken_over(gone=data is None) from error
        self.checkpoints.tip = None
        self.checkpoints.forget()
        self._stale = False

    def _taken_over(self, *, gone: bool = False) -> Conflict:
        """Record that the run is lost, and return the error for that; `gone`: the run was deleted."""
        what = "deleted" if gone else "taken over by another worker"
        text = f"run {self.journal.id!r} was {what}: this worker can no longer write to it"
        self.lost = Conflict(text, code="conflict.lease")
        return self.lost


class Fence:
    """A backend whose commits also require that a row is still the newest row of the run's journal."""

    def __init__(self, reader: LogReader) -> None:
        self._backend = reader.backend
        self.required: tuple[int, Row]
        """The number of the journal's thread, and its row."""
        fenced = LogReader(cast("LogStore", self), reader.types, reader.options, reader.clock)
        fenced.cache, fenced.examined, fenced.deltas = reader.cache, reader.examined, reader.deltas
        self.writer = LogWriter(fenced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Commit the batch; `Conflict` if the journal has a newer row."""
        thread, row = self.required
        newest, after = (*batch.newest, (thread, row.seq)), (*batch.after, (thread, row.op_id))
        try:
            return self._backend.commit(batch._replace(newest=newest, after=after))
        except Stale:
            there = self._backend.newest(thread)
            if there is not None and there.op_id == row.op_id:
                raise  # the thread of the checkpoints has a newer row
            raise Conflict("another writer wrote to the journal of this run", code="conflict.stale") from None


class JournalTip(NamedTuple):
    """The journal's thread after the last read or write, as far as the next write depends on it."""

    tip: Tip | None = None
    status: list[Any] = [str(RunState.IN_PROGRESS), None]  # noqa: RUF012 - never changed in place
    at: int = 0
    """The seq of the last checkpoint that the journal knows."""
    checkpoint: int = 0
    """The seq of the checkpoint that the journal continues; 0 if the journal is complete by itself."""
    ended: tuple[int, int] = (0, 0)
    size: int = 0
    """The number of entries."""
    filled: tuple[str, ...] = ()
    """The lists of the journal that are not empty."""


class JournalThread:
    """The thread with the point of a run. While a worker has the lease, only that worker writes to it."""

    def __init__(
        self, engine: Engine, session_id: str, agent: str | None = None, values: RunValues | None = None
    ) -> None:
        self.id = session_id
        self._engine = engine
        self._key = ThreadKey(JOURNAL, session_id, agent)
        self._values = values = values or RunValues(engine)
        self._types, self._exact = values.types, values.exact
        self.place = JournalTip()
        self.fields: dict[str, Any] = {}
        """The fields that outlast iterations: agent, lease, conversation ..."""
        self._iterations = 0

    def belongs_to(self, agent: str) -> None:
        """Set the agent that owns the thread. The agent of a fork is known only when the fork is opened."""
        self._key = self._key._replace(agent=agent)

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, session: Session) -> dict[str, Any] | None:
        """Return the journal as it is stored; None if the run does not exist."""
        tip = session.reader.tip(JOURNAL, self.id)
        if tip is None or tip.head is None:
            self.place = JournalTip(tip)
            return None
        tip = session.reader.with_chain(tip)
        tree = tip.chain.tree if tip.chain else None
        data = None if tree is None else Decoder(tree.nodes, self._types).value(tree.rep)
        if not isinstance(data, dict) or not journal.is_point(data):
            raise Corrupt(f"the journal of run {self.id!r} is damaged", code="corrupt.state")
        self._take(tip, data)
        return data

    def _take(self, tip: Tip, data: Mapping[str, Any]) -> None:
        """Remember a journal that was read, or written whole."""
        checkpoint = journal.checkpoint_of(data)
        filled = tuple(name for name in _EMPTIED if data.get(name))
        at, ended = max(checkpoint, data.get("at", 0)), tuple(data.get("ended", (0, 0)))
        self.place = JournalTip(tip, data["status"], at, checkpoint, ended, len(journal.entries_of(data)), filled)
        self.fields = {name: data[name] for name in _LASTING if name in data}

    def point(self, session: Session, *, lenient: bool = False) -> Point | None:
        """Return the point from which the run resumes; None if the run does not exist.

        If the checkpoint that the journal continues is lost, raise `Corrupt`, or (`lenient`) return what is left.

        The newest checkpoint, if it is newer than the journal's last row, has the entries that the journal lacks. A
        rewind, undo or redo of the checkpoints moves the run: then it resumes from the checkpoints' head, and later
        entries do not count.
        """
        data = self.read(session)
        if data is None:
            return None
        tip = session.reader.tip(SPACE, self.id)
        upto, at, is_old = data.get("upto", 0), self.place.at, "entries" not in data
        last = None if tip is None else self._newest_checkpoint(session, tip, max(at, upto))
        seen = None if tip is None or last is None else self._seen(session, tip, last.seq)
        if last is not None and seen is not None:
            at, data = last.seq, continued(data, last.seq, seen)
        else:
            seen = None if tip is None else self._seen(session, tip, self.place.checkpoint)
        head = tip.head if tip is not None else None
        moved = self._moved(session, tip, head, at, upto) if tip and head else None
        if seen is None and journal.checkpoint_of(data):
            if moved is None and not lenient:
                raise Corrupt(
                    f"run {self.id!r} continues a checkpoint that is lost: rewind it to one that is left",
                    code="corrupt.state",
                )
            data = {**data, "entries": data["entries"][1:], "ended": [0, 0]}
        stored = {**unfolded(data, seen), "at": at}
        if moved is None or tip is None or head is None:
            newer = at if at > self.place.at else 0
            return Point(stored, stored, newer, is_whole="entries" in data and seen is None, is_old=is_old)
        return Point({**rewound(moved, stored), "at": head.seq, "upto": tip.newest.seq}, stored, is_moved=True)

    def _newest_checkpoint(self, session: Session, tip: Tip, at: int) -> Row | None:
        """Return the newest checkpoint above the seq `at`; None if there is none."""
        if tip.newest.op in log.CHECKPOINTS or tip.newest.seq <= at:
            return tip.newest if tip.newest.seq > at else None
        rows = session.reader.backend.rows(tip.record.no, [(at + 1, tip.newest.seq)], newest_first=True)
        return next((row for row in rows if row.op in log.CHECKPOINTS), None)

    def _seen(self, session: Session, tip: Tip, seq: int) -> dict[str, Any] | None:
        """Return the state of a checkpoint of the run; None if it is gone, or not a checkpoint of a run."""
        row = session.reader.row(tip.record, seq) if seq else None
        try:
            tree = None if row is None else session.reader.chain(tip.record, row).tree
        except NotFound:
            return None
        seen = None if tree is None else Decoder(tree.nodes, self._types).value(tree.rep)
        return seen if journal.is_seen(seen) else None

    def _moved(self, session: Session, tip: Tip, head: Row, at: int, upto: int) -> dict[str, Any] | None:
        """Return the checkpoint to which a rewind, undo or redo has moved the run; None if it was not moved."""
        newest = tip.newest
        if newest.op not in MOVES or newest.seq <= max(at, upto):
            return None
        if head.seq == at and newest.op != log.REWIND:  # an undo or redo brought the head back
            return None
        return self._seen(session, tip, head.seq)

    def began_with(self, session: Session) -> Any:
        """Return the state at the beginning of the current iteration, read from the journal."""
        tip = None if self.place.tip is None else session.reader.with_chain(self.place.tip)
        if tip is None or tip.chain is None:
            raise Corrupt(f"the journal of run {self.id!r} is gone", code="corrupt.state")
        tree = tip.chain.tree
        return Decoder(tree.nodes, self._types).value(locate(tree, _path("state"), self._types)[0])

    # -- writing ------------------------------------------------------------------------------------------

    def extend(
        self,
        session: Session,
        entries: Sequence[Any],
        fields: Mapping[str, Any],
        last: int = 0,
        *,
        state: Any = MISSING,
        past: Sequence[Any] = (),
        ends: bool = False,
    ) -> None:
        """Write entries and fields, and what else is given.

        `ends`: the iteration ends, so that all entries count in the lists of the run. If a status ends the run, the
        entries of its last iteration can be replayed, too.

        If `last`, the newest checkpoint, is newer than the journal, the journal continues that checkpoint: it has all
        entries before these.
        """
        tip, status, at, checkpoint, ended, count, filled = self.place
        several: list[edits.Edit] = []
        if last > at:
            at = checkpoint = last
            count, ended = len(entries) + 1, (1, 1)
            several.append(self._assign("entries", [[journal.CHECKPOINT, last], *entries]))
            several += [self._assign(name, []) for name in filled]
            filled = ()
        elif entries:
            several.append(self._added("entries", entries))
            count += len(entries)
        if past:
            several.append(self._added("past", past))
            filled = (*filled, "past")
        if ends:
            ended = (ended[0] if "status" in fields else count, count)
        if ended != self.place.ended:
            several.append(self._assign("ended", list(ended)))
        if state is not MISSING:
            several.append(edits.Rescan(_path("state"), self._values.redacted(state), self._exact, self.id))
        several += [self._assign(name, value) for name, value in fields.items()]
        status = fields.get("status", status)
        tip = self._save(session, several[0] if len(several) == 1 else edits.Several(several), status)
        self.place = JournalTip(tip, status, at, checkpoint, ended, count, filled)
        self.fields |= {name: value for name, value in fields.items() if name in _LASTING}

    def put_whole(self, session: Session, point: Mapping[str, Any]) -> None:
        """Write a complete point."""
        data = {name: value for name, value in point.items() if name != "calls"}
        data |= {"entries": point["calls"], "ended": [0, 0]}
        tip = self._save(session, edits.Replace(data, session.reader.nodes(), self._types), data["status"])
        self._take(tip, data)

    def edit(self, session: Session, change: edits.Edit, fields: Mapping[str, Any]) -> None:
        """Write a change of the state, with fields."""
        several = [change, *(self._assign(name, value) for name, value in fields.items())]
        self.place = self.place._replace(tip=self._save(session, edits.Several(several), self.place.status))

    def settle(self, session: Session, *, moved: bool = True) -> Point | None:
        """Write the complete point of the run to the journal, unless the journal has it. Return the point.

        After that, the run needs none of its checkpoints to resume. Without `moved`, do nothing if the run was moved.
        """
        point = self.point(session, lenient=not moved)
        if point is not None and (moved if point.is_moved else not point.is_whole):
            self.put_whole(session, point.data)
        return point

    def _save(self, session: Session, propose: Propose, status: list[Any]) -> Tip:
        """Write a row on the head of the last read or write; `Conflict` if the journal has another head."""
        known = self.place.tip
        head = known.head if known else None
        expect = Expect(head.seq, head.op_id) if head else Expect(NOTHING)
        note = _note(*status)
        packed = b"" if note is None else bytes(Encoder(session.reader.nodes(), _PLAIN).rep(note))
        meta = Meta(log.AUTOMATIC, None, (), packed)
        return session.writer.save(self._key, propose, meta, expect=expect, known=known if head else None)

    def refresh(self, session: Session) -> None:
        """Read the tip again if the last transaction created the thread: the tip's number is valid only inside it."""
        known = self.place.tip
        if known is not None and known.record.no < 0:
            tip = session.reader.tip(JOURNAL, self.id)
            if tip is None:
                raise Corrupt(f"the journal of run {self.id!r} is gone", code="corrupt.state")
            self.place = self.place._replace(tip=tip._replace(chain=known.chain))

    def hide_older(self, session: Session) -> None:
        """Hide all rows but the newest, from which the run resumes. gc removes them."""
        tip = self.place.tip
        if tip is not None and tip.record.no > 0:
            shown = session.reader.backend.rows(tip.record.no, [(1, tip.newest.seq - 1)], visible=True)
            session.reader.backend.commit(Batch(hide=tuple((tip.record.no, row.seq) for row in shown)))

    def trim(self) -> None:
        """At every 32nd iteration, remove older rows. Errors are ignored: gc removes the rows later."""
        self._iterations += 1
        if self._iterations % _TRIM_EVERY == 0 and self.place.tip is not None:
            with suppress(Error):
                self.hide_older(self._engine.direct)
                gc.collect_rows(self._engine.reader, self.place.tip.record)

    def _added(self, name: str, items: Sequence[Any]) -> edits.Edit:
        return edits.Append(_path(name), tuple(items), self._types, self.id)

    def _assign(self, name: str, value: Any) -> edits.Edit:
        if name == "entries":  # written so often that its place in the tree is known
            return edits.Put(_path(name), value, self._types, self.id)
        return edits.Assign(_path(name), value, self._types, self.id)


class Point(NamedTuple):
    """The point from which a run resumes."""

    data: dict[str, Any]
    stored: dict[str, Any]
    """The point without the last move of the checkpoints' head."""
    newer: int = 0
    """The seq of the checkpoint that is newer than the journal's last row; 0 without one."""
    is_moved: bool = False
    """Whether a rewind, undo or redo has moved the run."""
    is_whole: bool = False
    """Whether the journal has the complete point, so that the run needs none of its checkpoints."""
    is_old: bool = False
    """Whether the journal has an older layout."""


def _note(name: str, reason: str | None) -> dict[str, Any] | None:
    """Return the metadata of a journal row: the status, so that a listing need not read the run.

    None while the run is in progress.
    """
    if name == RunState.IN_PROGRESS:
        return None
    return {"status": name, "interrupted": True} if (name, reason) == INTERRUPTED else {"status": name}


def status_note(record: ThreadRecord, row: Row) -> dict[str, Any]:
    """Return the status in the metadata of a journal's newest row; {} if a caller has to read the run."""
    with suppress(Error):  # if the row is damaged, reading the run raises the error
        packed = log.unpack_extra(log.checked(row, record.uid))[0]
        note = unpacker.Unpacker(_PLAIN)(packed) if packed else None
        if isinstance(note, dict):
            return note
    return {}


class CheckpointThread(Handle[Any]):
    """The thread of a run's checkpoints."""

    def __init__(self, engine: Engine, session_id: str, agent: str | None, values: RunValues) -> None:
        super().__init__(engine, SPACE, session_id, None, agent)
        self._types, self._exact = values.types, values.exact
        self.tip: Tip | None = None
        self.last = 0
        """The seq of the last checkpoint of this worker; 0 without one."""
        self._last: Picture | None = None
        """That checkpoint; None if the next one has to be written whole."""

    def put(self, picture: Picture, show: Show, writer: LogWriter) -> Checkpoint[Any]:
        """Write a checkpoint of the run and return it.

        It writes only the changes since the last checkpoint of this worker, if that is still the head.
        """
        known, last, nodes = self.tip.head if self.tip else None, self._last, self._engine.direct.reader.nodes()
        several = None if known is None or last is None else edits.Several(self._edits(picture, last))

        def change(tip: Tip | None) -> Proposal:  # a user may have rewound or deleted the last checkpoint
            head = tip.head if tip else None
            same = head is not None and known is not None and (head.seq, head.op_id) == (known.seq, known.op_id)
            if several is not None and same:
                return several(tip)
            Encoder(nodes, self._exact).rep(picture.state)  # refuse a state that would not load equal
            return edits.Replace(picture.whole(), nodes, self._types)(tip)

        meta = self._meta(show.label, (), show.metadata, show.kind)
        self.tip = writer.save(self._key, change, meta, known=self.tip)
        if self.tip.head is None:
            raise Corrupt(f"run {self.id!r} has lost its head", code="corrupt.row")
        self._last, self.last = picture, self.tip.head.seq
        return self._make(self.tip, self.tip.head, (), written=True)

    def _edits(self, picture: Picture, last: Picture) -> list[edits.Edit]:
        """Return the edits from the last checkpoint to this one."""
        several = [self._assign((name,), value) for name, value in picture.fields.items() if value != last.fields[name]]
        for name, items, start, stop in zip(journal.LISTS, picture.lists, last.lengths, picture.lengths, strict=True):
            self._append(several, (name,), items[start:stop])
        if picture.state_bytes is None or picture.state_bytes != last.state_bytes:
            several.append(edits.Rescan(_path("state"), picture.state, self._exact, self.id))
        records = picture.lists[1][last.lengths[1] : picture.lengths[1]]
        self._append(several, ("journal", "past"), picture.past[last.counts[2] :])
        self._append(several, ("journal", "zero"), picture.short(picture.zero[last.counts[0] :], records))
        begun, calls = picture.begun, picture.calls
        if begun is not None and last.begun is not None and picture.fields["iteration"] == last.fields["iteration"]:
            self._append(several, ("journal", "entries"), picture.short(calls[last.counts[1] :], records))
            return several
        entries = picture.short(calls, records)
        if entries or last.counts[1]:
            several.append(self._assign(("journal", "entries"), entries))
        if begun is None or last.begun is None:
            several.append(self._assign(("journal", "begun"), begun))
            return several
        several += [self._assign(("journal", "begun", name), begun[name]) for name in journal.LISTS]
        several.append(edits.Rescan(_path("journal", "begun", "state"), begun["state"], self._types, self.id))
        return several

    def _assign(self, steps: tuple[str, ...], value: Any) -> edits.Edit:
        return edits.Assign(_path(*steps), value, self._types, self.id)

    def _append(self, several: list[edits.Edit], steps: tuple[str, ...], items: Sequence[Any]) -> None:
        if items:
            several.append(edits.Append(_path(*steps), tuple(items), self._types, self.id))

    def newest(self, session: Session) -> int:
        """Return the seq of the newest row, including rewinds and undos; 0 if there is none."""
        tip = session.reader.tip(SPACE, self.id)
        return 0 if tip is None else tip.newest.seq

    def rely_on_newest(self, session: Session) -> None:
        """Make the end of the transaction fail if another worker adds a checkpoint, or a user moves the run."""
        tip = session.reader.tip(SPACE, self.id)
        if tip is not None and session.overlay is not None:
            session.overlay.rely_on(tip.record.no, tip.newest)

    def forget(self) -> None:
        """Forget the last checkpoint, so that the next one is written whole."""
        self._last = None

    def refresh(self) -> None:
        """Forget the tip if the last transaction created the thread: the tip's number is valid only inside it."""
        if self.tip is not None and self.tip.record.no < 0:
            self.tip = self._last = None
