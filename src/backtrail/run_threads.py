"""The two threads of a run, as its worker holds them: what it goes on from, and its checkpoints.

Each remembers how its thread stood after the last write, so that nothing needs to be read again; the first of them
writes on top of that and nothing else, which is what keeps a worker out that was taken over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.port import Batch
from backtrail.engine import changes, upkeep
from backtrail.engine.codec import Decoder
from backtrail.engine.paths import Path
from backtrail.engine.writes import NOTHING, Expect
from backtrail.errors import Conflict, Corrupt, Error
from backtrail.handles import Handle
from backtrail.values import when

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from backtrail.checkpoints import Checkpoint
    from backtrail.engine.engine import Desk, Engine
    from backtrail.engine.heads import Standing
    from backtrail.engine.writes import Proposal, Propose

SPACE: Final = "run"
JOURNAL: Final = "journal"
_TRIM_EVERY: Final = 32
_LISTS: Final = ("messages", "tool_calls", "partial_results")
"""What only grows."""


class Work(Handle[Any]):
    """The thread that a run goes on from: written only by who has the lease."""

    def __init__(self, engine: Engine, session_id: str, agent: str | None) -> None:
        super().__init__(engine, JOURNAL, session_id, None, agent)
        self.standing: Standing | None = None
        self._ended = 0

    def read(self, desk: Desk) -> dict[str, Any] | None:
        """Look at how it stands."""
        standing = desk.heads.standing(JOURNAL, self.id)
        if standing is None or standing.head is None:
            self.standing = standing
            return None
        self.standing = desk.heads.with_chain(standing)
        tree = self.standing.chain.tree if self.standing.chain else None
        found = None if tree is None else Decoder(tree.nodes, self._types).value(tree.rep)
        if not isinstance(found, dict):
            raise Corrupt(f"the journal of run {self.id!r} is damaged", code="corrupt.state")
        return found

    def put(self, desk: Desk, propose: Propose) -> None:
        """Write on top of what was last read or written, and nothing else."""
        head = self.standing.head if self.standing else None
        expect = Expect(head.seq, head.op_id) if head else Expect(NOTHING)
        known = self.standing if head else None
        self.standing = desk.writes.save(
            self._key, propose, self._meta(None, (), None, "automatic"), expect=expect, known=known
        )

    def begin_anew(self, desk: Desk) -> None:
        """Hide all but the newest row: nothing of an iteration that is over is needed to go on."""
        if self.standing is not None and self.standing.record.no > 0:
            no, newest = self.standing.record.no, self.standing.newest.seq
            shown = desk.heads.backend.rows(no, [(1, newest - 1)], visible=True)
            desk.heads.backend.commit(Batch(hide=tuple((no, row.seq) for row in shown)))

    def trim(self) -> None:
        """Now and then remove what was hidden. The run goes on, whatever goes wrong here."""
        self._ended += 1
        if self._ended % _TRIM_EVERY == 0 and self.standing is not None:
            with suppress(Error):
                upkeep.collect_rows(self._engine.direct.heads, self.standing.record)

    def edits(self, given: dict[str, Any]) -> list[changes.Put | changes.Cut]:
        """Return edits that put values at paths of one step."""
        return [changes.Put(Path((name,)), value, self._types, self.id) for name, value in given.items()]


class Shown(Handle[Any]):
    """The thread of a run's checkpoints."""

    def __init__(self, engine: Engine, session_id: str, agent: str | None) -> None:
        super().__init__(engine, SPACE, session_id, None, agent)
        self.standing: Standing | None = None
        self._counts: dict[str, int] | None = None
        """How many items the lists of the last checkpoint have."""

    def put(
        self,
        desk: Desk,
        state: dict[str, Any],
        label: str | None,
        kind: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> Checkpoint[Any]:
        """Write a checkpoint of the run: what was added since the last one, if that was made here and is the head."""
        whole = changes.Replace(state, desk.heads.nodes(), self._types)
        last = self.standing.head if self.standing else None
        added = None if last is None or self._counts is None else changes.Several([*self._edits(state, self._counts)])

        def change(standing: Standing | None) -> Proposal:  # others may have rewound or deleted it
            head = standing.head if standing else None
            same = head is not None and last is not None and (head.seq, head.op_id) == (last.seq, last.op_id)
            return added(standing) if added is not None and same else whole(standing)

        meta = self._meta(label, (), metadata, kind)
        self.standing = desk.writes.save(self._key, change, meta, known=self.standing)
        if self.standing.head is None:
            raise Corrupt(f"run {self.id!r} has lost its head", code="corrupt.row")
        self._counts = {name: len(state[name]) for name in _LISTS}
        return self._make(self.standing, self.standing.head, (), written=True)

    def _edits(self, state: dict[str, Any], counts: dict[str, int]) -> Iterator[changes.Edit]:
        for name, value in state.items():
            path = Path((name,))
            if name not in _LISTS:
                yield changes.Match(path, value, self._types, self.id)
            elif len(value) > counts[name]:
                yield changes.Append(path, tuple(value[counts[name] :]), self._types, self.id)

    def forget(self) -> None:
        """Write the next checkpoint whole: what the last one had is not known."""
        self._counts = None

    def settle(self) -> None:
        """Forget a standing that was made in a transaction which made the thread, too: its number was not known."""
        if self.standing is not None and self.standing.record.no < 0:
            self.standing = self._counts = None


def leased(session_id: str, held: list[Any]) -> Conflict:
    """Return the error of one who wants a run that somebody else has."""
    until = when(held[2])
    return Conflict(
        f"run {session_id!r} is being worked on by {held[0]}, until {until:%Y-%m-%d %H:%M:%S} UTC at least; wait, or "
        "take it over with takeover=True if that worker is gone",
        code="conflict.lease",
        owner=held[0],
        until=until,
    )
