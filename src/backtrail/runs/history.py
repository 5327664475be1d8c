"""The checkpoints of a run as a thread. Rewinding the thread moves the run.

A rewind cannot undo the effects of the run's calls outside of the store. A warning names the calls that are marked
`irreversible`, before anything is written. A change of the head's state also changes the point from which the run
resumes, in the same commit. No other part of a checkpoint can be changed.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import journal
from backtrail.engine.tree import edits
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.models import Diff, when
from backtrail.runs.journal import forked, irreversible, journal_of, known_as
from backtrail.runs.lease import check_free
from backtrail.runs.recorder import JOURNAL, SPACE, JournalThread
from backtrail.runs.strategies import RunState, record_of
from backtrail.runs.values import RunValues
from backtrail.thread import Thread
from backtrail.validation import check_id

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.rows import Meta
    from backtrail.engine.writer import Expect, Propose
    from backtrail.models import Sentinel
    from backtrail.runs.strategies import ToolCallRecord
    from backtrail.thread import Ref
    from backtrail.transaction import Engine, Session

_PAGE: Final = 200
_TRIES: Final = 10


class Irreversible(UserWarning):
    """The warning that a run or an agent goes back to a moment before irreversible calls; `calls` lists them.

    The warning comes before anything is written. `warnings.simplefilter("error", backtrail.Irreversible)` makes it an
    error, so that nothing changes.
    """

    def __init__(self, calls: list[ToolCallRecord]) -> None:
        names = [f"{_printable(call.tool_name)} ({call.id}{'' if call.ended_at else ', in doubt'})" for call in calls]
        super().__init__(f"these calls stay done outside, whatever the store goes back to: {', '.join(names)}")
        self.calls = calls


def _printable(name: str) -> str:
    """Return a tool's name without control characters: a model may have chosen the name."""
    return name if name.isprintable() else repr(name)


class RunThread(Thread[Any]):
    """The thread of a run's checkpoints. A rewind moves the run; only the state of the head can be changed."""

    def __init__(self, engine: Engine, session_id: str) -> None:
        super().__init__(engine, SPACE, session_id)
        self._types = RunValues(engine).types

    def _write(
        self,
        propose: Propose,
        meta: Meta,
        expect: Checkpoint[Any] | str | Sentinel | None,
        *,
        default: Expect,
        onto: Ref | None = None,
    ) -> Checkpoint[Any]:
        """Write a checkpoint with a changed state, and change the point from which the run resumes, in one transaction.

        Raise `Invalid` if the change is not within the user's part of the checkpoint, its `state`.
        """
        if not isinstance(propose, edits.Append | edits.Put | edits.Cut) or propose.path[:1] != ("state",):
            raise Invalid(
                f"the checkpoints of run {self.id!r} are made by the run. To change its state and go on, use "
                'set("state.key", value), append("state.key", item) or delete_at("state.key")',
                code="invalid.run",
            )
        change, write = propose, super()._write

        def work(session: Session) -> Checkpoint[Any]:
            thread = JournalThread(self._engine, self.id)
            point = thread.settle(session)
            data = None if point is None else point.data
            if data is not None:
                check_free(self.id, data, session.reader.shared_time())
            try:
                made = write(edits.Several(self._everywhere(change)), meta, expect, default=default, onto=onto)
                if data is not None:
                    thread.edit(session, change, _edited(data, made.seq))
            except NotFound as error:
                if error.code != "not_found.path" or data is None:
                    raise
                raise Invalid(
                    f"{error}. Run {self.id!r} begins iteration {data['iteration']} again, with the state of its "
                    "beginning: change what that state has, or rewind to the end of an iteration first",
                    code="invalid.run",
                ) from error
            return made

        return self._engine.atomic(work)

    def _everywhere(self, change: edits.Append | edits.Put | edits.Cut) -> list[edits.Edit]:
        """Return a change of the state and, inside of an iteration, the same change of the state at its beginning."""
        tip = self._require_tip()
        tree = self._engine.session.reader.chain(tip.record, self._resolve(tip, "@")).tree
        try:
            begun, _ = locate(tree, Path(("journal", "begun")), self._types)
        except NotFound:  # a checkpoint of an older version
            return [change]
        is_over = Decoder(tree.nodes, self._types).value(begun) is None
        return [change] if is_over else [change, change.below("journal", "begun")]

    def fork(self, new_id: str, at: Ref = "@") -> RunThread:
        """Start a new run from a checkpoint of this run; `Conflict` if a run with that id exists."""
        new_id = check_id(new_id, "a session's id")

        def work(session: Session) -> None:
            tip = session.reader.tip(JOURNAL, new_id)
            if tip is not None and tip.head is not None:
                raise Conflict(f"there is a run {new_id!r} already", code="conflict.exists")
            head = super(RunThread, self).fork(new_id, at).load()
            point = {**forked(head.state), "lease": None, "at": head.seq}
            point["created_at"] = when(session.reader.shared_time())
            made = JournalThread(self._engine, new_id, point["agent"])
            made.read(session)
            made.put_whole(session, point)

        self._engine.atomic(work)
        return RunThread(self._engine, new_id)

    def delete_checkpoint(self, ref: Ref) -> bool:
        """Delete a checkpoint and tell whether it existed. The run resumes from the same point as before."""
        with suppress(NotFound):
            tip = self._tip()
            if tip is not None and tip.head is not None and tip.head.seq <= self._resolve(tip, ref).seq:
                self._settle()  # the head, or after a rewind a newer checkpoint: the journal may continue it
        return super().delete_checkpoint(ref)

    def delete(self) -> bool:
        """Delete all checkpoints and tell whether there were any. The run resumes from the same point as before."""
        self._settle()
        return super().delete()

    def _settle(self, *, moved: bool = True) -> None:
        """Write what the head has to the journal, so that the run does not need it. A worker may renew its lease.

        Without `moved`, a run that was moved stays as it is: an undo may bring it back.
        """
        work = partial(JournalThread(self._engine, self.id).settle, moved=moved)
        for _ in range(_TRIES):
            with suppress(Conflict):
                self._engine.atomic(work)
                return
        self._engine.atomic(work)

    def rewind(self, ref: Ref, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[Any]:
        """Make an older checkpoint the head again: the run resumes from it. The later checkpoints stay."""
        tell(self.passed(ref))
        self._settle(moved=False)  # later checkpoints may be pruned
        return super().rewind(ref, expect=expect)

    def undo(self, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[Any]:
        """Take back the last save, rewind or redo."""
        tip = self._tip()
        to = None if tip is None else self._engine.session.mover.before(tip)
        if to is not None:
            tell(self.passed(to))
        self._settle(moved=False)
        return super().undo(expect=expect)

    def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return the changes of the run from one checkpoint to another, without its journal."""
        return Diff(tuple(change for change in super().diff(a, b) if change.path[:1] != ("journal",)))

    def passed(self, ref: Ref) -> list[ToolCallRecord]:
        """Return the irreversible calls that the run made after this checkpoint."""
        tip = self._require_tip()
        session = self._engine.session
        tree = session.reader.chain(tip.record, self._resolve(tip, ref)).tree
        seen = Decoder(tree.nodes, self._types).value(tree.rep)
        point = JournalThread(self._engine, self.id).point(session, lenient=True)
        if point is None or not journal.is_seen(seen):
            return []
        known = {known_as(each) for each in irreversible({**seen, **journal_of(seen)})}
        return [record_of(each) for each in irreversible(point.data) if known_as(each) not in known]


def _edited(data: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """Return the fields of a point that change with its state: its entries become free to repeat or to leave out."""
    if data["status"][0] == RunState.COMPLETED:
        return {"at": seq}
    entries = data["calls"] if data["iteration"] else data["zero"]
    return {"at": seq, "free": len(entries), "own": True}


def since(engine: Engine, agent: str, moment: dt.datetime) -> list[ToolCallRecord]:
    """Return the irreversible calls that an agent's runs made after a moment, by the clocks of their workers."""
    calls: dict[tuple[Any, ...], ToolCallRecord] = {}
    backend = engine.session.reader.backend
    after: tuple[int, int] | None = None
    while page := backend.threads(space=JOURNAL, agent=agent, prefix=None, after=after, limit=_PAGE):
        after = (page[-1][1].created_at, page[-1][0].no)
        for record, newest in page:
            if when(newest.created_at) < moment:
                return [*calls.values()]
            with suppress(Corrupt, Invalid):  # a run that cannot be read lists no calls
                point = JournalThread(engine, record.name).point(engine.session)
                records = [] if point is None else irreversible(point.data)
                late = (each for each in records if each["ended_at"] is None or each["ended_at"] > moment)
                calls |= {known_as(each): record_of(each) for each in late}  # forks have the calls of their source
        if len(page) < _PAGE:  # the row that names the next page may be damaged
            break
    return [*calls.values()]


def tell(calls: list[ToolCallRecord]) -> None:
    """Warn of irreversible calls, if there are any."""
    if calls:
        warnings.warn(Irreversible(calls), stacklevel=3)
