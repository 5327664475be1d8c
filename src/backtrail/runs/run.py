"""Runs: work in iterations that goes on where it was cut short, without repeating what it had done.

A run is two threads. The one in the name space `run` has its checkpoints: those that its strategy asks for. The one in
`journal` is what it goes on from: the state at the beginning of the iteration, the journal of that iteration, and the
lease of whoever works on it. `run_worker` has the lease, `run_writing` writes, `run_calling` is what is done through a
run; here are its block and its iterations.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Self

from backtrail.engine import journal
from backtrail.engine.journal import Journal
from backtrail.engine.tree import edits as changes
from backtrail.entities import Message
from backtrail.errors import Conflict, Error, Invalid
from backtrail.loading import loading
from backtrail.models import MISSING
from backtrail.runs.caller import Caller
from backtrail.runs.calls import Halt, current, text_of
from backtrail.runs.lease import beats_of
from backtrail.runs.recorder import INTERRUPTED
from backtrail.runs.strategies import Event, Never, RunState, RunStatus
from backtrail.validation import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from backtrail.checkpoint import Checkpoint
    from backtrail.transaction import Desk


class Run(Caller):
    """One session of work. A context manager: who enters it has the run, until the block ends.

    Leaving the block completes the run; an exception fails it, and `halt` halts it: both can be gone on with later, by
    opening the same session again. A run that was there already and whose iterations are not entered stays as it was.
    """

    # -- the block --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._enter()
        self._outer = current.get()
        current.set(weakref.ref(self))
        return self

    def _enter(self) -> None:
        """Get the run."""
        if self._engine.desk.overlay is not None:
            raise Invalid("a run writes by itself: use it outside of a transaction", code="invalid.transaction")
        if self._entered:
            raise Invalid(
                "the block of a run is entered once: ask for another, with store.run(...)", code="invalid.run"
            )
        self._entered = True
        with loading:
            import socket  # noqa: PLC0415 - who only looks at a store does without

        self._owner_name = f"{socket.gethostname()}:{os.getpid()}"
        data: dict[str, Any] | None = None
        while data is None:
            try:
                data = self._engine.atomic(self._acquire)
            except Conflict as error:
                if error.code not in ("conflict.stale", "conflict.exists"):
                    raise  # else somebody was faster: look at what is there now
        self._work.settle(self._engine.direct)
        self._take(data)
        self._pid = os.getpid()
        self._open = True
        if self._status.name != RunState.COMPLETED:
            try:
                beats_of(self._engine).add(self, self._seconds / 3)
            except BaseException as error:
                self._exit(error)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        current.set(self._outer)
        return self._exit(error)

    def _exit(self, error: BaseException | None) -> bool:
        """Let go of the run, and say whether that was all that the error was for."""
        self._open = False
        if self._pid != os.getpid():  # a fork of the process that has the run
            return False
        halt = self._halted_by(error)
        error = error if halt is None else halt
        if self._status.name == RunState.COMPLETED:
            if error is None:
                self._check_untouched()
            return halt is not None
        try:
            with self._lock:  # the lease may be being renewed, and calls of others come to their end
                if halt is None and self._writer.unsure is None and self._is_only_looked_at():
                    self._put_back()
                    if error is None:
                        self._check_state()
                elif error is None and self._writer.unsure is None:
                    self._complete()
                else:
                    self._leave(_status_of(error or self._writer.unsure or Halt("interrupted", self)))
        except Conflict:
            if error is None or halt is not None:
                raise
        if error is None and self._writer.unsure is not None:
            raise self._writer.unsure
        return halt is not None

    def _halted_by(self, error: BaseException | None) -> Halt | None:
        """Return the halt of this run that an exception is, alone or in a group of nothing else, as task groups do."""
        if isinstance(error, BaseExceptionGroup):
            found = [self._halted_by(each) for each in error.exceptions]
            return found[0] if all(each is not None for each in found) else None
        return error if isinstance(error, Halt) and error.args[1] is self else None

    def _is_only_looked_at(self) -> bool:
        """Tell whether nothing was done that the run goes on from."""
        return self._before is not None and not self._looping and not (self._iteration == 0 and self._asked_for)

    def _put_back(self) -> None:
        """Let go of a run that was looked at, and leave it as it was."""
        before, stored = self._before or {}, self._moved_from

        def write(desk: Desk) -> None:
            if stored is None:
                self._work.put(desk, changes.Several(self._work.edits(before)), before["status"])
            else:
                self._work.put(desk, self._work.whole(desk, {**stored, "lease": None}), stored["status"])

        self._writer.write(write, several=False)
        self._status = RunStatus(*before["status"])
        self.conversation = None if self._writer.joining else self.conversation

    def _complete(self) -> None:
        """End the run; if its last iteration cannot end, it has failed."""
        try:
            self._check_state()
            self._end(RunStatus(str(RunState.COMPLETED)))
        except Conflict:
            raise
        except Exception as error:
            self._leave(_status_of(error))
            raise

    def _check_untouched(self) -> None:
        """Refuse a state that was changed although the run is completed."""
        if self._lent is not None and self._lent != self._work.hash(self._state):
            text = f"run {self.session_id!r} is completed: its state was changed, and that is not kept"
            raise Invalid(text, code="invalid.run")

    def halt(self, reason: str) -> None:
        """Leave the block at once; the run is halted, and can be gone on with later.

        What is left of the block is skipped, a `return` in it included: put that behind the block.
        """
        self._check_open()
        if not isinstance(reason, str):
            raise Invalid(f"a reason is a text, not {reason!r:.100}", code="invalid.argument")
        raise Halt(plain(reason), self)

    # -- iterations ---------------------------------------------------------------------------------------

    def iterations(self) -> Iterator[int]:
        """Give the numbers of the iterations, without an end: leave the loop when the work is done.

        A resumed run begins with the one that was cut short.
        """
        self._check_open()
        if self._looping:
            raise Invalid("the iterations of a run are gone through once", code="invalid.run")
        if self._status.name == RunState.COMPLETED:
            self._loop()
            return
        self._check_state()
        if self._iteration == 0:
            self._next_iteration()
        self._loop()
        while True:
            yield self._iteration
            self._check_open()
            self._next_iteration()

    def _loop(self) -> None:
        """From here on, what is done belongs to an iteration."""
        self._looping = True
        self._writer.where = "calls"

    def _next_iteration(self) -> None:
        with self._lock:
            self._end(None)
            self._iteration += 1
            self._journal = Journal()

    def _end(self, status: RunStatus | None) -> None:
        """End the iteration, and the run if there is a status; both in one commit."""
        self._check_done()
        over = self._iteration
        self._keep_unsaid()
        messages, calls, partials = self._kept
        with self._saying:
            kept = len(self._messages), len(self._calls), len(self._partials)
            waiting = self._writer.waiting()
        added = {
            "messages": self._said_data[messages : kept[0]],
            "tool_calls": self._calls[calls : kept[1]],
            "partial_results": self._partials[partials : kept[2]],
            "zero" if over == 0 else "calls": waiting if over == 0 or status is not None else [],
            "past": self._passing(),
        }
        edits = [self._work.added(where, items) for where, items in added.items() if items]
        edits.append(self._work.matched("state", self._state))
        if status is None:
            given: dict[str, Any] = {"iteration": over + 1, "free": 0, **({} if over == 0 else {"calls": []})}
        else:
            given = {"status": [status.name, status.reason], "lease": None}
        wanted = over > 0 and self.strategy.should_checkpoint(over, Event.ITERATION)

        def write(desk: Desk) -> None:
            self._writer.send(waiting)
            at: dict[str, Any] = {}
            if wanted or (status is not None and not isinstance(self.strategy, Never)):
                seen = self._seen(desk, status or self._status, self._state, waiting, over=True)
                at = {"at": self._shown.put(desk, seen, None, "automatic").seq}
            elif status is not None:
                at = {"upto": self._shown.newest(desk)}  # whoever moved the checkpoints meanwhile was too early
            self._work.put(
                desk,
                changes.Several([*edits, *self._work.edits({**given, **at, **self._writer.joined()})]),
                given.get("status"),
            )
            if status is None:
                self._work.begin_anew(desk)

        self._writer.write(write)
        self._writer.flushed()
        self._shown.settle()
        self._work.trim()
        self._kept = kept
        self._past += added["past"]
        self._started = MISSING
        self._digests.clear()
        if status is None:
            self._writer.logs["calls"] = []
        else:
            self._status = status

    def _check_done(self) -> None:
        """Refuse to end an iteration that has not done all it had begun."""
        forgotten = self._journal.forgotten()
        doubts = [call for call in self.in_doubt if call.policy != "pure"]
        if doubts:
            raise self._in_doubt(doubts[0])
        if forgotten is not None:
            newest = self._journal.newest
            raise journal.diverged(forgotten, "nothing of the kind" if newest is None else journal.described(newest))
        if self._under_way:
            raise Invalid(
                f"call {min([*self._under_way])!r} of run {self.session_id!r} is still being made: wait for it "
                "before the iteration ends",
                code="invalid.run",
            )

    def _keep_unsaid(self) -> None:
        """Put what the iteration had said before it was cut short, and now did not say, where it stood."""
        with self._saying:
            for kind, said, start in (
                (journal.MESSAGE, self._said_data, self._kept[0]),
                (journal.PARTIAL, self._partials, self._kept[2]),
            ):
                recorded, marks = self._journal.said(kind), self._marks[kind]
                if {place for place, _ in recorded} - set(marks):
                    new = [each for each, place in zip(said[start:], marks, strict=True) if place is None]
                    said[start:] = [*(value for _, value in recorded), *new]
                    self._shown.forget()  # they do not only grow at their ends
                marks.clear()
            if len(self._said_data) > len(self._messages):
                self._messages = [Message.from_data(each) for each in self._said_data]
                self._places = {id(each): at for at, each in enumerate(self._messages)}

    def _leave(self, status: RunStatus) -> None:
        """Record that the run failed or was halted. What the iteration had done stays in its journal."""
        given = {"status": [status.name, status.reason], "lease": None}
        if self._writer.unsure is not None:  # what is there is what it goes on from
            there = self._work.read(self._engine.direct)
            if there is not None and there["lease"] is not None:  # else it was left already, as it turns out
                self._writer.look_again()
                edits = changes.Several(self._work.edits(given))
                self._writer.attempt(lambda desk: self._work.put(desk, edits, given["status"]), several=False)
            self._status = status
            return

        def write(desk: Desk) -> None:
            at: int | None = None
            if not isinstance(self.strategy, Never):
                seen = self._seen(desk, status, self._state, self._writer.waiting())
                at = self._shown.put(desk, seen, None, "automatic").seq
            self._writer.flush(desk, [], given, at)

        try:
            self._writer.write(write)
        except Exception as error:  # the state cannot be kept as it is now: what was kept before stays
            if isinstance(error, Error) and not isinstance(error, Invalid):
                raise
            self._writer.write(lambda desk: self._writer.flush(desk, [], given))
        self._writer.flushed()
        self._status = status

    def checkpoint(self, label: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> Checkpoint[Any]:
        """Make a checkpoint of the run as it is now, whatever its strategy says."""
        self._check_open()
        return self._checkpoint(label, self._state, metadata)

    def _checkpoint(self, label: str | None, state: Any, metadata: Mapping[str, Any] | None = None) -> Checkpoint[Any]:
        self._check_open()
        if self._status.name == RunState.COMPLETED:
            raise Invalid(f"run {self.session_id!r} is completed: it stays as it is", code="invalid.run")
        made: list[Checkpoint[Any]] = []

        def write(desk: Desk) -> None:
            seen = self._seen(desk, self._status, state, self._writer.waiting())
            made[:] = [self._shown.put(desk, seen, label, "manual", metadata)]
            self._writer.flush(desk, [], at=made[0].seq)

        with self._lock:
            self._writer.write(write)
            self._writer.flushed()
            self._shown.settle()
            self._moved_from = None  # what moved the run was before this checkpoint
        return made[0]


def _status_of(error: BaseException) -> RunStatus:
    if isinstance(error, BaseExceptionGroup):
        bugs = error.subgroup(Exception)
        error = error if bugs is None else bugs
    if isinstance(error, Halt):
        return RunStatus(str(RunState.HALTED), str(error.args[0]))
    if not isinstance(error, Exception):  # Ctrl-C, cancellation, the end of a generator
        return RunStatus(*INTERRUPTED)
    return RunStatus(str(RunState.FAILED), f"{type(error).__name__}: {text_of(error)}"[:500])
