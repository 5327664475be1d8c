"""Runs: work in iterations that resumes after an interruption without repeating finished calls.

A run is two threads: its checkpoints, which its strategy asks for, and the journal from which it resumes. A `Run` is
the user's handle of a worker: it calls functions, and the worker does the rest. `backtrail.aio.run` is the same for
coroutines.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from backtrail.errors import Invalid
from backtrail.runs.calls import Attempt, CallOptions, Current, current
from backtrail.runs.strategies import record_of
from backtrail.runs.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from backtrail.checkpoint import Checkpoint
    from backtrail.conversations.models import Message
    from backtrail.engine.journal import Call
    from backtrail.runs.strategies import RunStatus, Strategy, ToolCallRecord
    from backtrail.thread import Thread
    from backtrail.transaction import Engine

T = TypeVar("T")


class BaseRun:
    """The common part of synchronous and asynchronous runs: properties, and methods without I/O."""

    def __init__(self, source: Worker | BaseRun) -> None:
        self._worker: Worker = source._worker if isinstance(source, BaseRun) else source  # noqa: SLF001 - of this class
        self._outer: Current | None = None

    @property
    def session_id(self) -> str:
        """The id of the run."""
        return self._worker.session_id

    @property
    def agent(self) -> str | None:
        """The agent that owns the run; None without one."""
        return self._worker.journal.agent

    @property
    def conversation(self) -> str | None:
        """The conversation to which the run's messages are delivered; None without one."""
        return self._worker.delivery.conversation

    @property
    def strategy(self) -> Strategy:
        """The strategy that decides when the run makes a checkpoint."""
        return self._worker.strategy

    @property
    def resumed(self) -> bool:
        """Whether the run existed before this block was entered, or is a fork."""
        return self._worker.resumed

    @property
    def status(self) -> RunStatus:
        """The status of the run: in_progress, completed, failed or halted."""
        self._worker.lease.check_entered()
        return self._worker.journal.status

    @property
    def iteration(self) -> int:
        """The number of the iteration; 0 before the first one."""
        self._worker.lease.check_entered()
        return self._worker.journal.iteration

    @property
    def messages(self) -> list[Message]:
        """The messages of the run, including those of this iteration."""
        self._worker.lease.check_entered()
        return list(self._worker.journal.messages)

    @property
    def repaired(self) -> list[Message]:
        """The answers that opening the run inserted after tool calls without an answer."""
        self._worker.lease.check_entered()
        return list(self._worker.repaired)

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """The finished tool calls of the run, including those of this iteration."""
        self._worker.lease.check_entered()
        return [record_of(each) for each in self._worker.journal.calls]

    @property
    def partial_results(self) -> list[Any]:
        """The partial results of the run: the values that were passed to `partial`."""
        self._worker.lease.check_entered()
        return copy.deepcopy(self._worker.journal.partials)

    @property
    def state(self) -> Any:
        """The state of the run. Change it in place, inside of an iteration; the end of the iteration saves it."""
        return self._worker.state

    @state.setter
    def state(self, value: Any) -> None:
        self._worker.state = value

    @property
    def in_doubt(self) -> list[Call]:
        """The calls in doubt: calls of this iteration that began, have no result, and are not in progress."""
        self._worker.lease.check_entered()
        return self._worker.calls.in_doubt()

    def message(self, message: Message) -> Message:
        """Add a message and return it; if the interrupted iteration had added it before, return that message."""
        return self._worker.message(message)

    def partial(self, value: Any) -> Any:
        """Add a partial result and return a copy of it."""
        return self._worker.partial(value)

    def halt(self, reason: str) -> None:
        """Leave the block of the run at once. The run is halted, and can be resumed later.

        The rest of the block is skipped, including a `return`: put a `return` after the block.
        """
        self._worker.halt(reason)

    def _make_current(self, make: Callable[..., Any], *, is_async: bool) -> None:
        self._outer = current.get()
        current.set(Current(weakref.ref(self._worker.calls), weakref.WeakMethod(make), is_async))


class Run(BaseRun):
    """One session of work, as a context manager. The process that enters it has the run until the block ends.

    Leaving the block completes the run. An exception fails it, and `halt` halts it: both can be resumed later by
    opening the same session again. A resumed run whose iterations are not entered does not change.
    """

    def __init__(self, engine: Engine, session_id: str, **options: Any) -> None:
        """Prepare a run; the options are those of `store.run`."""
        super().__init__(Worker(engine, session_id, **options))

    @property
    def thread(self) -> Thread[Any]:
        """The thread of the run's checkpoints."""
        return self._worker.thread

    def __enter__(self) -> Self:
        self._worker.enter()
        self._make_current(self._call, is_async=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        current.set(self._outer)
        return self._worker.leave(error)

    def iterations(self) -> Iterator[int]:
        """Give the numbers of the iterations, without end: leave the loop when the work is done.

        A resumed run starts with the interrupted iteration.
        """
        return self._worker.iterations()

    def checkpoint(self, label: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> Checkpoint[Any]:
        """Make a checkpoint of the run now, without asking its strategy."""
        self._worker.lease.check_open()
        return self._worker.checkpoint(label, self._worker.journal.state, metadata)

    def tool(
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        policy: str = "ask",
        verify: Callable[[Call], Any] | None = None,
        irreversible: bool = False,
        key: str | None = None,
        retry: bool = False,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> T:
        """Call a tool once. If the call finished before the run was interrupted, return its recorded result.

        If the call began and has no result, `verify` decides, if given. Otherwise `policy` decides: "pure" and
        "idempotent" call the tool again, "idempotent" with the same `key`; "ask" raises `InDoubt` until a caller
        settles the call with `store.runs.settle`. An exception is a result, too: a replay raises it again, and with
        `retry` calls the tool again.
        """
        options = CallOptions("tool", name, policy, verify, irreversible, key, retry, tool_call_id)
        return cast("T", self._call(options, fn, args, kwargs))

    def llm(
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        policy: str = "ask",
        verify: Callable[[Call], Any] | None = None,
        irreversible: bool = False,
        key: str | None = None,
        retry: bool = False,
        **kwargs: Any,
    ) -> T:
        """Call a model once, as `tool` calls a tool. The response is an event for the strategy."""
        options = CallOptions("llm", name, policy, verify, irreversible, key, retry, None)
        return cast("T", self._call(options, fn, args, kwargs))

    def _call(self, options: CallOptions, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(fn):
            text = f"{options.name!r:.100} is a coroutine function: it is called through a run of backtrail.aio"
            raise Invalid(text, code="invalid.argument")
        attempt = Attempt(self._worker.calls, options, fn, args, kwargs)
        try:
            attempt.begin()
            while attempt.is_open:
                with attempt:
                    attempt.outcome = attempt.work()
                attempt.record()
            return attempt.answer()
        finally:
            attempt.close()
