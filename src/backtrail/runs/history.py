"""The checkpoints of a run as a thread: how one goes back, or changes the state, and what stays done outside then.

To move the head of these checkpoints is to move the run. What its calls did outside of the store does not move: those
that are marked `irreversible` are told before anything is written, as a warning. To change the state of the head is to
change what the run goes on with, in the same commit; nothing else of a checkpoint is changed.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import journal
from backtrail.engine.tree import edits
from backtrail.engine.tree.codec import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.models import Diff, when
from backtrail.runs.calls import record_of
from backtrail.runs.points import OVER, irreversible, known_as
from backtrail.runs.recorder import JOURNAL, SPACE, Work, forked_from, leased, registries
from backtrail.runs.strategies import RunState
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
    from backtrail.transaction import Desk, Engine

_PAGE: Final = 200


class Irreversible(UserWarning):
    """A run or an agent goes back behind calls that cannot be undone outside: `calls`.

    It is given before anything is written; `warnings.simplefilter("error", backtrail.Irreversible)` refuses to go back.
    """

    def __init__(self, calls: list[ToolCallRecord]) -> None:
        told = [f"{_shown(call.tool_name)} ({call.id}{'' if call.ended_at else ', in doubt'})" for call in calls]
        super().__init__(f"these calls stay done outside, whatever the store goes back to: {', '.join(told)}")
        self.calls = calls


def _shown(name: str) -> str:
    """Return a name that a model may have chosen as text that does nothing to the terminal a warning is printed to."""
    return name if name.isprintable() else repr(name)


class RunThread(Thread[Any]):
    """The checkpoints of a run."""

    def __init__(self, engine: Engine, session_id: str) -> None:
        super().__init__(engine, SPACE, session_id)
        self._types = registries(engine).open

    def _write(
        self,
        propose: Propose,
        meta: Meta,
        expect: Checkpoint[Any] | str | Sentinel | None,
        *,
        default: Expect,
        onto: Ref | None = None,
    ) -> Checkpoint[Any]:
        """Change the state of the run: of its newest checkpoint, as a new one, and of what it goes on from."""
        if not isinstance(propose, edits.Append | edits.Put | edits.Cut) or propose.path[:1] != ("state",):
            raise Invalid(
                f"the checkpoints of run {self.id!r} are made by the run. To change its state and go on, use "
                'set("state.key", value), append("state.key", item) or delete_at("state.key")',
                code="invalid.run",
            )
        change, write = propose, super()._write

        def work(desk: Desk) -> Checkpoint[Any]:
            point = Work(self._engine, self.id, None)
            point.settle_move(desk)  # from here on, it stands there
            data = point.read(desk)
            if data is not None and data["lease"] is not None and data["lease"][2] > desk.heads.shared_time():
                raise leased(self.id, data["lease"])
            try:
                made = write(edits.Several(self._everywhere(change)), meta, expect, default=default, onto=onto)
                if data is not None:
                    point.put(desk, edits.Several([change, *point.edits(_edited(data, made.seq))]))
            except NotFound as error:
                if error.code != "not_found.path" or data is None:
                    raise
                raise Invalid(
                    f"{error}. Run {self.id!r} begins iteration {data['iteration']} again, with the state of its "
                    "beginning: change what was there then, or rewind to the end of an iteration first",
                    code="invalid.run",
                ) from error
            return made

        return self._engine.atomic(work)

    def _everywhere(self, change: edits.Append | edits.Put | edits.Cut) -> list[edits.Edit]:
        """Return a change of the state, and the same of the state with which the iteration began that it is in."""
        standing = self._require_standing()
        tree = self._engine.desk.heads.chain(standing.record, self._resolve(standing, "@")).tree
        try:
            begun, _ = locate(tree, Path(("journal", "begun")), self._types)
        except NotFound:  # of an older version
            return [change]
        is_over = Decoder(tree.nodes, self._types).value(begun) is None
        return [change] if is_over else [change, change.below("journal", "begun")]

    def fork(self, new_id: str, at: Ref = "@") -> RunThread:
        """Begin a new run at a checkpoint of this one; `Conflict` if there is a run of that id."""
        new_id = check_id(new_id, "a session's id")

        def work(desk: Desk) -> None:
            standing = desk.heads.standing(JOURNAL, new_id)
            if standing is not None and standing.head is not None:
                raise Conflict(f"there is a run {new_id!r} already", code="conflict.exists")
            head = super(RunThread, self).fork(new_id, at).load()
            point = {**forked_from(head.state), "lease": None, "at": head.seq}
            point["created_at"] = when(desk.heads.shared_time())
            made = Work(self._engine, new_id, point["agent"])
            made.read(desk)
            made.put(desk, edits.Replace(point, desk.heads.nodes(), self._types), point["status"])

        self._engine.atomic(work)
        return RunThread(self._engine, new_id)

    def delete_checkpoint(self, ref: Ref) -> bool:
        """Delete a checkpoint and say whether there was one. The run stays where it is."""

        def settle(desk: Desk) -> None:
            standing = self._standing()
            head = standing.head if standing else None
            with suppress(NotFound):
                if standing and head and head.seq == self._resolve(standing, ref).seq:  # without others, a move stands
                    Work(self._engine, self.id, None).settle_move(desk)

        self._engine.atomic(settle)
        return super().delete_checkpoint(ref)

    def delete(self) -> bool:
        """Delete all checkpoints and say whether there were any. The run stays where it is."""
        self._engine.atomic(Work(self._engine, self.id, None).settle_move)
        return super().delete()

    def rewind(self, ref: Ref) -> Checkpoint[Any]:
        """Make an older checkpoint the head again: the run goes on from there. What came after is not gone."""
        tell(self.passed(ref))
        return super().rewind(ref)

    def undo(self) -> Checkpoint[Any]:
        """Take back the last save, rewind or redo."""
        standing = self._standing()
        to = None if standing is None else self._engine.desk.moves.before(standing)
        if to is not None:
            tell(self.passed(to))
        return super().undo()

    def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return what changed in the run from one checkpoint to another."""
        return Diff(tuple(change for change in super().diff(a, b) if change.path[:1] != ("journal",)))

    def passed(self, ref: Ref) -> list[ToolCallRecord]:
        """Return the irreversible calls that the run has made and that this checkpoint does not know of."""
        standing = self._require_standing()
        desk = self._engine.desk
        tree = desk.heads.chain(standing.record, self._resolve(standing, ref)).tree
        seen = Decoder(tree.nodes, self._types).value(tree.rep)
        data, _ = Work(self._engine, self.id, None).point(desk)
        if data is None or not journal.is_seen(seen):
            return []
        there = {known_as(each) for each in irreversible({**OVER, **seen, **(seen.get("journal") or OVER)})}
        return [record_of(each) for each in irreversible(data) if known_as(each) not in there]


def _edited(data: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """Return what else changes with the state of a run: what it had done may be asked for again, and need not."""
    if data["status"][0] == RunState.COMPLETED:
        return {"at": seq}
    entries = data["calls"] if data["iteration"] else data["zero"]
    return {"at": seq, "free": len(entries), "own": True}


def since(engine: Engine, agent: str, moment: dt.datetime) -> list[ToolCallRecord]:
    """Return the irreversible calls that runs of an agent have made after a moment, by the clocks of their workers."""
    found: dict[tuple[Any, ...], ToolCallRecord] = {}
    backend = engine.desk.heads.backend
    after: tuple[int, int] | None = None
    while page := backend.threads(space=JOURNAL, agent=agent, prefix=None, after=after, limit=_PAGE):
        after = (page[-1][1].created_at, page[-1][0].no)
        for record, newest in page:
            if when(newest.created_at) < moment:
                return [*found.values()]
            with suppress(Corrupt, Invalid):  # of a run that cannot be read, nothing can be told
                data, _ = Work(engine, record.name, None).point(engine.desk)
                calls = [] if data is None else irreversible(data)
                late = (each for each in calls if each["ended_at"] is None or each["ended_at"] > moment)
                found |= {known_as(each): record_of(each) for each in late}  # forks have the calls of their source
        if len(page) < _PAGE:  # where to go on may be told by a row that is damaged
            break
    return [*found.values()]


def tell(calls: list[ToolCallRecord]) -> None:
    """Warn of calls that stay done outside."""
    if calls:
        warnings.warn(Irreversible(calls), stacklevel=3)
