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
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.backends.port import Batch
from backtrail.engine import journal, log
from backtrail.engine.rows import Meta
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import decode as unpacker
from backtrail.engine.tree import edits
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import NOTHING, Expect, Key
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Error
from backtrail.maintenance import gc
from backtrail.runs.journal import LISTS, abridged, rewound, unfolded
from backtrail.runs.strategies import RunState
from backtrail.runs.values import RunValues
from backtrail.thread import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.reader import Tip
    from backtrail.engine.writer import Proposal, Propose
    from backtrail.runs.delivery import Delivery
    from backtrail.runs.journal import RunJournal
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
        self.lock = threading.RLock()
        """Held during each write."""
        self.token = uuid.uuid4().hex
        """A random text that identifies the lease of this worker."""
        self.lost: Conflict | None = None
        """The error of a run that was deleted or that another worker has taken over."""
        self.unsure: CommitUnknown | None = None
        """The error of a last write that may or may not be committed. The caller has to open the run again."""
        self._stale = False
        """Whether a renewal of the lease may have added a row: then the next write reads the journal first."""

    @property
    def is_broken(self) -> bool:
        """Whether this recorder can no longer write."""
        return self.lost is not None or self.unsure is not None

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
        """Write the queued entries, then `entries`, with `fields` of the point and a checkpoint, in one commit.

        Return the checkpoint, None without `show`.
        """
        items = run.pending(entries)
        added = [self.journal.added(run.place, items)] if items else []
        with self.uninterrupted():
            made = self._record(run, items, added, fields or {}, show)
            run.wrote(items, entries)
        return made

    def end_iteration(self, run: RunJournal, show: Show | None, status: RunStatus | None) -> None:
        """Write the end of an iteration; with a status, also the end of the run."""
        ending, thread = run.ending(), self.journal
        fields: dict[str, Any] = {"iteration": run.iteration + 1, "free": 0}
        if status is not None:
            fields = {"iteration": run.iteration, "status": [status.name, status.reason], "lease": None}
        start, changes = thread.start, [thread.matched("state", run.state)]
        if ending.past:
            changes.append(thread.added("past", ending.past))
        if run.iteration == 0:
            lists = {**run.lists(ending, whole=False), "zero": ending.items}
            changes += [thread.added(name, each) for name, each in lists.items() if each]
        elif run.is_replay:  # the lists do not follow from the entries: some may have been left out
            changes += [thread.matched(name, each) for name, each in run.lists(ending, whole=True).items()]
            start, fields["ended"] = 0, [0, 0]
            fields["calls"] = [] if status is None else [*run.entries, *ending.items]
        else:
            changes += [thread.added("calls", ending.items)] if ending.items else []
            stop = start + len(run.entries) + len(ending.items)
            fields["ended"] = [start if status is not None else stop, stop]
            fields["iteration"] = [fields["iteration"]]  # versions that do not know `ended` refuse a list
            start = fields["ended"][0]
        with self.uninterrupted():
            self._record(run, ending.items, changes, fields, show, ends=True)
            thread.start = start
            run.end_iteration(ending, status)
        thread.trim()

    def _record(
        self,
        run: RunJournal,
        items: list[Any],
        changes: list[edits.Edit],
        fields: Mapping[str, Any],
        show: Show | None,
        *,
        ends: bool = False,
    ) -> Checkpoint[Any] | None:
        """Write messages to the conversation, a checkpoint, and changes of the journal, in one commit.

        `ends` tells that the iteration ends: then older rows of the journal are hidden.
        """
        made: Checkpoint[Any] | None = None
        status = fields.get("status")

        def write(session: Session) -> None:
            nonlocal made
            self.delivery.send(items)
            given = {**fields, **self.delivery.fields()}
            if show is not None:
                began = partial(self.journal.began_with, session)
                made = self.checkpoints.put(
                    session, run.picture(show.state, show.status, items, began, over=show.is_over), show
                )
                given["at"] = made.seq
            elif ends and status is not None:  # the end of the run cancels a rewind that came while it was open
                given["upto"] = self.checkpoints.newest(session)
            several = [*changes, *self.journal.puts(given)]
            if several:
                self.journal.put(session, several[0] if len(several) == 1 else edits.Several(several), status)
            if ends and status is None:
                self.journal.hide_older(session)

        self.write(write, several=ends or show is not None or self.delivery.is_active)
        self.delivery.sent()
        self.checkpoints.settle()
        return made

    def renew(self, term: list[Any]) -> None:
        """Write a later end of the lease to the journal; `term` is the new lease."""
        change = edits.Several(self.journal.puts({"lease": term}))
        self.write(lambda session: self.journal.put(session, change), several=False)

    def doubt_renewal(self) -> None:
        """Record that a renewal may or may not be committed: the next write reads the journal first."""
        self.unsure, self._stale = None, True

    def let_go(self, fields: Mapping[str, Any]) -> None:
        """Release the lease after a write whose outcome is unknown, unless that write released it."""
        data = self.journal.read(self._engine.direct)
        if data is not None and data["lease"] is not None:
            self._look_again()
            change = edits.Several(self.journal.puts(fields))
            self._attempt(lambda session: self.journal.put(session, change, fields["status"]), several=False)

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
            except Conflict as error:  # another worker wrote to the journal, or a user moved the checkpoints
                head = self.journal.head
                self._look_again(error)
                now = self.journal.head
                if head is None or now is None or head.op_id != now.op_id:
                    raise self._taken_over() from error
                if tries == _TRIES or error.code == "conflict.agent":
                    raise
            tries += 1
            time.sleep(random.random() * 0.001 * tries)  # noqa: S311 - jitter

    def _attempt(self, write: Callable[[Session], None], *, several: bool) -> None:
        """Call `write` once. After an error, restore the known tips; if the commit is uncertain, set `unsure`."""
        tips, status = (self.journal.tip, self.checkpoints.tip), self.journal.status
        try:
            if several:
                self._engine.at_once(write)
            else:  # one row is atomic without a transaction
                write(self._engine.direct)
        except BaseException as error:
            self.journal.tip, self.checkpoints.tip = tips  # the transaction rolled its rows back
            self.journal.status = status
            self.checkpoints.forget()
            if isinstance(error, CommitUnknown) or not isinstance(error, Exception):  # it may have been written
                self._doubt()
            raise

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Stop using the run if Ctrl-C cuts the block short: what is known of the run may not be what was written."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                self._doubt()
            raise

    def _doubt(self) -> None:
        self.unsure = CommitUnknown(
            f"it is unknown whether the last write of run {self.journal.id!r} was committed: leave its block, and open "
            "it again; it goes on from what was written",
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
        text = f"run {self.journal.id!r} was {what}: nothing that this worker does is recorded any more"
        self.lost = Conflict(text, code="conflict.lease")
        return self.lost


class JournalThread:
    """The thread with the point of a run. While a worker has the lease, only that worker writes to it."""

    def __init__(
        self, engine: Engine, session_id: str, agent: str | None = None, values: RunValues | None = None
    ) -> None:
        self.id = session_id
        self._engine = engine
        self._key = Key(JOURNAL, session_id, agent)
        values = values or RunValues(engine)
        self._types, self._exact = values.types, values.exact
        self.tip: Tip | None = None
        self.stored: dict[str, Any] | None = None
        """The point that was last read from the journal, without a later move of the checkpoints' head."""
        self.status: list[Any] = [str(RunState.IN_PROGRESS), None]
        """The status of the run at the last read or write."""
        self.start = 0
        """The position in `calls` of the first entry of the current iteration; ended iterations come before it."""
        self._iterations = 0

    @property
    def head(self) -> Row | None:
        """The head at the last read or write; None without one."""
        return self.tip.head if self.tip else None

    def belongs_to(self, agent: str) -> None:
        """Set the agent that owns the thread. The agent of a fork is known only when the fork is opened."""
        self._key = self._key._replace(agent=agent)

    def read(self, session: Session) -> dict[str, Any] | None:
        """Return the stored point; None if the run does not exist."""
        tip = session.reader.tip(JOURNAL, self.id)
        if tip is None or tip.head is None:
            self.tip = tip
            return None
        self.tip = session.reader.with_chain(tip)
        tree = self.tip.chain.tree if self.tip.chain else None
        data = None if tree is None else Decoder(tree.nodes, self._types).value(tree.rep)
        if not isinstance(data, dict) or not journal.is_point(data):
            raise Corrupt(f"the journal of run {self.id!r} is damaged", code="corrupt.state")
        self.status = data["status"]
        self.start = data.get("ended", [0, 0])[0]
        self.stored = unfolded(data)
        return self.stored

    def point(self, session: Session) -> tuple[dict[str, Any] | None, bool]:
        """Return the point from which the run resumes, and whether that is a checkpoint instead of the journal.

        A rewind, undo or redo of the checkpoints moves the run: then it resumes from the checkpoints' head, and later
        entries of the journal do not count. The point is None if the run does not exist.
        """
        data = self.read(session)
        tip = session.reader.tip(SPACE, self.id)
        if data is None or tip is None or tip.head is None:
            return data, False
        at, newest, head = data.get("at", 0), tip.newest, tip.head
        if newest.op not in MOVES or newest.seq <= max(at, data.get("upto", 0)):
            return data, False
        if head.seq == at and newest.op != log.REWIND:  # an undo or redo brought the head back
            return data, False
        tree = session.reader.chain(tip.record, head).tree
        seen = Decoder(tree.nodes, self._types).value(tree.rep)
        if not journal.is_seen(seen):  # not a checkpoint of a run
            return data, False
        return {**rewound(seen, data), "at": head.seq, "upto": newest.seq}, True

    def settle_move(self, session: Session) -> None:
        """If a rewind, undo or redo moved the run, write its new point to the journal.

        After that, the run no longer needs its checkpoints to resume.
        """
        data, moved = self.point(session)
        if data is not None and moved:
            self.put(session, self.whole(session, data), data["status"])

    def began_with(self, session: Session) -> Any:
        """Return the state at the beginning of the current iteration, read from the journal."""
        tip = None if self.tip is None else session.reader.with_chain(self.tip)
        if tip is None or tip.chain is None:
            raise Corrupt(f"the journal of run {self.id!r} is gone", code="corrupt.state")
        tree = tip.chain.tree
        return Decoder(tree.nodes, self._types).value(locate(tree, Path(("state",)), self._types)[0])

    def put(self, session: Session, propose: Propose, status: list[Any] | None = None) -> None:
        """Write a row on the head of the last read or write; `Conflict` if the journal has another head.

        `status` is the new status of the run; None if it does not change.
        """
        head = self.head
        expect = Expect(head.seq, head.op_id) if head else Expect(NOTHING)
        self.status = self.status if status is None else status
        note = _note(*self.status)
        packed = b"" if note is None else bytes(Encoder(session.reader.nodes(), _PLAIN).rep(note))
        meta = Meta(log.AUTOMATIC, None, (), packed)
        self.tip = session.writer.save(self._key, propose, meta, expect=expect, known=self.tip if head else None)

    def settle(self, session: Session) -> None:
        """Read the tip again after the transaction that created the thread: inside, the thread has no number yet."""
        if self.tip is not None and self.tip.record.no < 0:
            tip = session.reader.tip(JOURNAL, self.id)
            if tip is None:
                raise Corrupt(f"the journal of run {self.id!r} is gone", code="corrupt.state")
            self.tip = tip._replace(chain=self.tip.chain)

    def hide_older(self, session: Session) -> None:
        """Hide all rows but the newest. A run needs no rows of ended iterations to resume."""
        if self.tip is not None and self.tip.record.no > 0:
            no, newest = self.tip.record.no, self.tip.newest.seq
            shown = session.reader.backend.rows(no, [(1, newest - 1)], visible=True)
            session.reader.backend.commit(Batch(hide=tuple((no, row.seq) for row in shown)))

    def trim(self) -> None:
        """Remove hidden rows at every 32nd call. Errors are ignored: gc removes the rows later."""
        self._iterations += 1
        if self._iterations % _TRIM_EVERY == 0 and self.tip is not None:
            with suppress(Error):
                gc.collect_rows(self._engine.reader, self.tip.record)

    # -- changes ------------------------------------------------------------------------------------------

    def whole(self, session: Session, data: dict[str, Any]) -> edits.Replace:
        """Return the edit that writes a complete point."""
        self.start = 0
        return edits.Replace(data, session.reader.nodes(), self._types)

    def puts(self, fields: Mapping[str, Any]) -> list[edits.Put | edits.Cut]:
        """Return the edits that set these fields of the point."""
        return [edits.Put(Path((name,)), value, self._types, self.id) for name, value in fields.items()]

    def added(self, name: str, items: Sequence[Any]) -> edits.Edit:
        """Return the edit that appends items to a list of the point."""
        return edits.Append(Path((name,)), tuple(items), self._types, self.id)

    def matched(self, name: str, value: Any) -> edits.Edit:
        """Return the edit that makes a field of the point equal to a value and writes only the differences."""
        return edits.Match(Path((name,)), value, self._exact if name == "state" else self._types, self.id)


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
        self._last: dict[str, Any] | None = None
        """The `_shape` of the last checkpoint; None if the next checkpoint has to be written whole."""

    def put(self, session: Session, state: dict[str, Any], show: Show) -> Checkpoint[Any]:
        """Write a checkpoint of the run and return it.

        It writes only the changes since the last checkpoint of this process, if that is still the head.
        """
        last = self.tip.head if self.tip else None
        added = None if last is None or self._last is None else edits.Several([*self._edits(state, self._last)])

        def change(tip: Tip | None) -> Proposal:  # a user may have rewound or deleted the last checkpoint
            head = tip.head if tip else None
            same = head is not None and last is not None and (head.seq, head.op_id) == (last.seq, last.op_id)
            if added is not None and same:
                return added(tip)
            Encoder(session.reader.nodes(), self._exact).rep(state["state"])  # refuse a state that would not load equal
            fields, records = state["journal"], state["tool_calls"]
            short = {name: abridged(fields[name], records) for name in ("zero", "calls")}
            whole = {**state, "journal": {**fields, **short}}
            return edits.Replace(whole, session.reader.nodes(), self._types)(tip)

        meta = self._meta(show.label, (), show.metadata, show.kind)
        self.tip = session.writer.save(self._key, change, meta, known=self.tip)
        if self.tip.head is None:
            raise Corrupt(f"run {self.id!r} has lost its head", code="corrupt.row")
        self._last = _shape(state)
        return self._make(self.tip, self.tip.head, (), written=True)

    def _edits(self, state: dict[str, Any], last: dict[str, Any]) -> Iterator[edits.Edit]:
        """Give the edits from the last checkpoint, whose shape is `last`, to a checkpoint with this data."""
        now = _shape(state)
        for name, value in state.items():
            if name in LISTS:
                yield from self._added(Path((name,)), value, last[name])
            elif name == "journal":
                again = now["began"] is not None and now["began"] == last["began"]
                yield from self._journaled(value, state["tool_calls"], last, again=again)
            elif name == "state":
                yield edits.Match(Path((name,)), value, self._exact, self.id)
            elif now[name] != last[name]:
                yield self._put((name,), value)

    def _journaled(
        self, fields: dict[str, Any], records: list[Any], last: dict[str, Any], *, again: bool
    ) -> Iterator[edits.Edit]:
        """Give the edits of a checkpoint's `journal`; `again`: the last checkpoint is of the same iteration."""
        begun = fields["begun"]
        records = records[begun["tool_calls"] :] if begun else []
        yield from self._added(Path(("journal", "past")), fields["past"], last["past"])
        yield from self._added(Path(("journal", "zero")), abridged(fields["zero"][last["zero"] :], records), 0)
        if again:
            yield from self._added(Path(("journal", "calls")), abridged(fields["calls"][last["calls"] :], records), 0)
            return
        if fields["calls"] or last["calls"]:
            yield self._put(("journal", "calls"), abridged(fields["calls"], records))
        if begun is None or last["began"] is None:
            yield self._put(("journal", "begun"), begun)
            return
        for name in LISTS:
            yield self._put(("journal", "begun", name), begun[name])
        yield edits.Match(Path(("journal", "begun", "state")), begun["state"], self._types, self.id)

    def _put(self, steps: tuple[str, ...], value: Any) -> edits.Edit:
        return edits.Assign(Path(steps), value, self._types, self.id)

    def _added(self, path: Path, items: list[Any], count: int) -> Iterator[edits.Edit]:
        """Give the edit that appends the items after the first `count`; nothing if there are no more."""
        if len(items) > count:
            yield edits.Append(path, tuple(items[count:]), self._types, self.id)

    def newest(self, session: Session) -> int:
        """Return the seq of the newest row, including rewinds and undos; 0 if there is none."""
        tip = session.reader.tip(SPACE, self.id)
        return 0 if tip is None else tip.newest.seq

    def forget(self) -> None:
        """Forget the last checkpoint, so that the next one is written whole."""
        self._last = None

    def settle(self) -> None:
        """Forget the tip after the transaction that created the thread: inside, the thread has no number yet."""
        if self.tip is not None and self.tip.record.no < 0:
            self.tip = self._last = None


def _shape(seen: dict[str, Any]) -> dict[str, Any]:
    """Return a summary of a checkpoint to compare the next one with: scalar fields, and the lengths of lists."""
    fields = seen["journal"]
    lists = {name: len(seen[name]) for name in LISTS}
    entries = {name: len(fields[name]) for name in ("zero", "calls", "past")}
    began = None if fields["begun"] is None else seen["iteration"]
    return {**seen, **lists, **entries, "began": began, "journal": None, "state": None}
