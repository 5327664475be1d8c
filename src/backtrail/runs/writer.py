"""Writing to the two threads of a run: on top of what was written last, or not at all.

Whoever takes a run over adds a row to its journal. So one that was taken over finds another row there than its own, and
cannot write any more, whatever it does.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import journal
from backtrail.engine.tree import edits as changes
from backtrail.errors import CommitUnknown, Conflict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backtrail.runs.delivery import Delivery, Owed
    from backtrail.runs.recorder import Shown, Work
    from backtrail.transaction import Desk, Engine

_TRIES: Final = 100


class Writer:
    """Writes to the journal and the checkpoints of a run, as long as nobody else does."""

    def __init__(self, engine: Engine, work: Work, shown: Shown) -> None:
        self._engine = engine
        self._work = work
        self._shown = shown
        self.token = uuid.uuid4().hex
        """What its lease is told from others by."""
        self.lost: Conflict | None = None
        self.unsure: CommitUnknown | None = None
        """Why nobody knows if the last write was done: the run is to be opened again, then."""
        self.stale = False
        """Whether the lease may have been renewed: the journal is looked at before the next write."""
        self.where = "zero"
        """Which entries of the journal are written: those of iteration 0, or "calls", of this one."""
        self.logs: dict[str, list[Any]] = {}
        """Entries that are written: of iteration 0, and of this one."""
        self.buffer: list[list[Any]] = []
        """Entries that wait for the next write."""
        self._flushing = 0
        self.deliver: Delivery | None = None
        """Takes messages, as data, that are written: in the same transaction, to a conversation."""
        self.owed: list[Owed] = []
        """Messages of the run that the conversation may not have: they go there with the next write."""
        self._paying = 0
        self.joining: str | None = None
        """The conversation that the run joins with its next write: a run that is only looked at joins none."""

    def check(self) -> None:
        """Raise why nothing can be written any more, if that is so."""
        if self.lost is not None:
            raise self.lost
        if self.unsure is not None:
            raise self.unsure

    def write(self, write: Callable[[Desk], None], *, several: bool = True) -> None:
        """Write on top of what was written last; if that is not the newest, the run is lost."""
        self.check()
        if self.stale:
            self.look_again()
        tries = 0
        while True:
            try:
                self.attempt(write, several=several)
                return
            except Conflict as error:  # of the journal, or of the checkpoints, which others may move
                head = self._work.standing.head if self._work.standing else None
                self.look_again(error)
                now = self._work.standing.head if self._work.standing else None
                if head is None or now is None or head.op_id != now.op_id:
                    raise self._taken_over() from error
                if tries == _TRIES or error.code == "conflict.agent":
                    raise
            tries += 1
            time.sleep(random.random() * 0.001 * tries)  # noqa: S311 - only to get out of step

    def attempt(self, write: Callable[[Desk], None], *, several: bool) -> None:
        """Write once, without a second look; `several` rows are one transaction."""
        stood, status = (self._work.standing, self._shown.standing), self._work.status
        try:
            if several:
                self._engine.at_once(write)
            else:  # one row is a transaction by itself
                write(self._engine.direct)
        except BaseException as error:
            self._work.standing, self._shown.standing = stood  # what was written in a transaction went with it
            self._work.status = status
            self._shown.forget()
            if isinstance(error, CommitUnknown) or not isinstance(error, Exception):  # it may have been written
                self.unsure = CommitUnknown(
                    f"nobody knows whether the last write of run {self._work.id!r} was done: leave its block, and "
                    "open it again; it goes on from what was written",
                    code="commit_unknown.run",
                )
            raise

    def look_again(self, error: Conflict | None = None) -> None:
        """See how the journal stands; it is this worker's as long as it has its token."""
        data = self._work.read(self._engine.direct)
        if data is None or data["lease"] is None or data["lease"][1] != self.token:
            raise self._taken_over(gone=data is None) from error
        self._shown.standing = None
        self._shown.forget()
        self.stale = False

    def _taken_over(self, *, gone: bool = False) -> Conflict:
        what = "deleted" if gone else "taken over by another worker"
        text = f"run {self._work.id!r} was {what}: what this one does is not kept any more"
        self.lost = Conflict(text, code="conflict.lease")
        return self.lost

    # -- entries of the journal -----------------------------------------------------------------------------

    def waiting(self, entries: Sequence[Any] = ()) -> list[Any]:
        """Return entries, behind those that were waiting for company."""
        waiting = list(self.buffer)
        self._flushing = len(waiting)
        return [*waiting, *entries]

    def flush(
        self, desk: Desk, entries: list[list[Any]], given: dict[str, Any] | None = None, at: int | None = None
    ) -> None:
        """Write entries, and those that were waiting for company; `at` is the checkpoint that is made with them."""
        items = self.waiting(entries)
        self.send(items)
        edits: list[changes.Edit] = []
        if items:
            edits.append(self._work.added(self.where, items))
        edits += self._work.edits({**(given or {}), **({} if at is None else {"at": at}), **self.joined()})
        if edits:
            self._work.put(desk, edits[0] if len(edits) == 1 else changes.Several(edits), (given or {}).get("status"))

    def send(self, entries: Sequence[Any]) -> None:
        """Hand on the messages among entries that are written just now, for the first and the last time."""
        messages = [entry[2] for entry in entries if entry[0] == journal.MESSAGE]
        self._paying = len(self.owed)
        if self.deliver is not None and (messages or self.owed):
            self.deliver(messages, self.owed[: self._paying])

    def joined(self) -> dict[str, Any]:
        """Return what is written of a conversation that the run joins just now."""
        return {} if self.joining is None else {"conversation": self.joining}

    def flushed(self, entries: Sequence[Any] = ()) -> None:
        """Take note of what was written; what was said meanwhile waits for the next write."""
        self.logs[self.where] += [*self.buffer[: self._flushing], *entries]
        del self.buffer[: self._flushing]
        self._flushing = 0
        del self.owed[: self._paying]
        self._paying, self.joining = 0, None
