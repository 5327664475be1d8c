"""The checkpoints of a run as a thread, and what stays done outside when one goes back.

Whoever moves the head of these checkpoints moves the run. What its calls did outside of the store does not move: those
that are marked `irreversible` are told before anything is written, as a warning.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from backtrail.arguments import check_id
from backtrail.engine import log
from backtrail.engine.codec import Decoder
from backtrail.engine.journal import Journal
from backtrail.errors import Conflict, Invalid
from backtrail.run_calls import as_record, doubtful, record_of
from backtrail.run_threads import JOURNAL, SPACE, Work, types_of
from backtrail.threads import Thread
from backtrail.values import Diff, when

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping

    from backtrail.checkpoints import Checkpoint
    from backtrail.engine.engine import Engine
    from backtrail.handles import Ref
    from backtrail.strategies import ToolCallRecord

_PAGE: Final = 200


class Irreversible(UserWarning):
    """A run or an agent goes back behind calls that cannot be undone outside: `calls`.

    It is given before anything is written; `warnings.simplefilter("error", backtrail.Irreversible)` refuses to go back.
    """

    def __init__(self, calls: list[ToolCallRecord]) -> None:
        told = [f"{call.tool_name} ({call.id}{'' if call.ended_at else ', in doubt'})" for call in calls]
        super().__init__(f"these calls stay done outside, whatever the store goes back to: {', '.join(told)}")
        self.calls = calls


class RunThread(Thread[Any]):
    """The checkpoints of a run."""

    def __init__(self, engine: Engine, session_id: str) -> None:
        super().__init__(engine, SPACE, session_id)
        self._types = types_of(engine)

    def fork(self, new_id: str, at: Ref = "@") -> RunThread:
        """Begin a new run at a checkpoint of this one; `Conflict` if there is a run of that id."""
        standing = self._engine.desk.heads.standing(JOURNAL, check_id(new_id, "a session's id"))
        if standing is not None and standing.head is not None:
            raise Conflict(f"there is a run {new_id!r} already", code="conflict.exists")
        made = super().fork(new_id, at)
        return RunThread(self._engine, made.id)

    def rewind(self, ref: Ref) -> Checkpoint[Any]:
        """Make an older checkpoint the head again: the run goes on from there. What came after is not gone."""
        tell(self.passed(ref))
        return super().rewind(ref)

    def undo(self) -> Checkpoint[Any]:
        """Take back the last save, rewind or redo."""
        standing = self._standing()
        to = None if standing is None else self._engine.desk.writes.before(standing)
        if to is not None:
            tell(self.passed(to))
        return super().undo()

    def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return what changed in the run from one checkpoint to another."""
        return Diff(tuple(change for change in super().diff(a, b) if change.path[:1] != ("journal",)))

    def everything(self) -> list[Checkpoint[Any]]:
        """Return all checkpoints that were not deleted, oldest first: those that are out of view, too."""
        standing = self._standing()
        if standing is None:
            return []
        rows = self._engine.desk.heads.visible(standing, ((1, standing.newest.seq),))
        return self._checkpoints(standing, [row for row in rows if row.op in log.CHECKPOINTS])

    def passed(self, ref: Ref) -> list[ToolCallRecord]:
        """Return the irreversible calls that the run has made and that this checkpoint does not know of."""
        standing = self._require_standing()
        desk = self._engine.desk
        tree = desk.heads.chain(standing.record, self._resolve(standing, ref)).tree
        seen = Decoder(tree.nodes, self._types).value(tree.rep)
        data, _ = Work(self._engine, self.id, None).point(desk)
        if not isinstance(seen, dict) or not isinstance(seen.get("tool_calls"), list):
            raise Invalid("this is no checkpoint of a run", code="invalid.run")
        known = {(each["id"], each.get("ended_at")) for each in seen["tool_calls"]}
        return [] if data is None else [call for call in made(data) if (call.id, call.ended_at) not in known]


def made(data: Mapping[str, Any]) -> Iterator[ToolCallRecord]:
    """Give the irreversible calls of a run, by what it goes on from; those in doubt, too."""
    told = set()
    for each in map(record_of, data["tool_calls"]):
        told.add(each.id)
        if each.irreversible:
            yield each
    for recorded in Journal(data["calls"] if data["iteration"] else data["zero"]).recorded():
        call, result = recorded
        if call.kind == "tool" and call.irreversible and call.id not in told:
            yield doubtful(call) if result is None else record_of(as_record(call, result, data["iteration"]))


def since(engine: Engine, agent: str, moment: dt.datetime) -> list[ToolCallRecord]:
    """Return the irreversible calls that runs of an agent have made after a moment, by the clocks of their workers."""
    found: list[ToolCallRecord] = []
    backend = engine.desk.heads.backend
    after: tuple[int, int] | None = None
    while page := backend.threads(space=JOURNAL, agent=agent, prefix=None, after=after, limit=_PAGE):
        after = (page[-1][1].created_at, page[-1][0].no)
        for record, newest in page:
            if when(newest.created_at) < moment:
                return found
            data, _ = Work(engine, record.name, None).point(engine.desk)
            calls = [] if data is None else made(data)
            found += [call for call in calls if call.ended_at is None or call.ended_at > moment]
    return found


def tell(calls: list[ToolCallRecord]) -> None:
    """Warn of calls that stay done outside."""
    if calls:
        warnings.warn(Irreversible(calls), stacklevel=3)
