"""Runs under asyncio: the runs of `backtrail.runs.run`, whose calls may be coroutines.

Only the calls themselves are made in the event loop, by the task that asks for them; all that is read or written is
done by the crew. What the tasks of a run ask for is done in the order in which they asked, one by one: so calls that
are alike find the same results again, and one run with many tasks does not keep the crew from others. A call that came
to its end is recorded, however often its task is cancelled. The lease is renewed by a thread, even while the event loop
is busy.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.thread import Thread
from backtrail.engine.journal import Result
from backtrail.errors import InDoubt, Invalid
from backtrail.runs.calls import Options, current, failure_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from types import TracebackType

    from backtrail.aio.executor import Crew
    from backtrail.engine.journal import Call
    from backtrail.entities import Message
    from backtrail.runs import run as sync
    from backtrail.runs.calls import Asked
    from backtrail.runs.strategies import RunStatus, Strategy, ToolCallRecord

R = TypeVar("R")
T = TypeVar("T")


class Run:
    """One session of work. `async with`: who enters it has the run, until the block ends.

    Leaving the block completes the run; an exception fails it, a cancellation or `halt` halts it: all three can be gone
    on with later, by opening the same session again.
    """

    def __init__(self, crew: Crew, run: sync.Run) -> None:
        self._crew = crew
        self._sync = run
        self._turn = asyncio.Lock()  # first come, first served
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- how it stands --------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        """Its id."""
        return self._sync.session_id

    @property
    def agent(self) -> str | None:
        """The agent that it belongs to."""
        return self._sync.agent

    @property
    def conversation(self) -> str | None:
        """The conversation that its messages go to, too."""
        return self._sync.conversation

    @property
    def strategy(self) -> Strategy:
        """Says when it makes a checkpoint."""
        return self._sync.strategy

    @property
    def resumed(self) -> bool:
        """Whether it was there already."""
        return self._sync.resumed

    @property
    def status(self) -> RunStatus:
        """How the run stands."""
        return self._sync.status

    @property
    def iteration(self) -> int:
        """The number of the iteration; 0 before the first one."""
        return self._sync.iteration

    @property
    def messages(self) -> list[Message]:
        """The messages, those of this iteration included."""
        return self._sync.messages

    @property
    def repaired(self) -> list[Message]:
        """Answers that were put behind tool calls which had none, when the run was opened."""
        return self._sync.repaired

    @property
    def tool_calls(self) -> list[ToolCallRecord]:
        """The tool calls that came to an end, those of this iteration included."""
        return self._sync.tool_calls

    @property
    def partial_results(self) -> list[Any]:
        """What `partial` was given."""
        return self._sync.partial_results

    @property
    def state(self) -> Any:
        """The state: change it in place, inside of an iteration. It is kept when the iteration ends."""
        return self._sync.state

    @state.setter
    def state(self, value: Any) -> None:
        self._sync.state = value

    @property
    def in_doubt(self) -> list[Call]:
        """The calls of this iteration that were begun before the run was cut short, and whose result nobody knows."""
        return self._sync.in_doubt

    @property
    def thread(self) -> Thread[Any]:
        """The thread of the run's checkpoints."""
        return Thread(self._crew, self._sync.thread)

    # -- the block --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._crew.apart(self._sync._enter)  # noqa: SLF001 - the two are one
        except BaseException as error:
            if self._sync._open:  # noqa: SLF001 - it was cancelled, but it has the run
                await self._left(error)
            raise
        self._loop = asyncio.get_running_loop()
        self._outer = current.get()
        current.set(weakref.ref(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        current.set(self._outer)
        return await self._left(error)

    async def _left(self, error: BaseException | None) -> bool:
        if self._sync._pid != os.getpid():  # noqa: SLF001 - a fork of the process that has the run, without its threads
            return False
        leave = partial(self._sync._exit, error)  # noqa: SLF001
        if isinstance(error, GeneratorExit):  # a coroutine that is closed cannot wait
            self._crew.begin(leave, together=False, surely=True)
            return False
        return await self._surely(leave)

    def halt(self, reason: str) -> None:
        """Leave the block at once; the run is halted, and can be gone on with later.

        What is left of the block is skipped, a `return` in it included: put that behind the block.
        """
        self._sync.halt(reason)

    async def iterations(self) -> AsyncGenerator[int, None]:
        """Give the numbers of the iterations, without an end: leave the loop when the work is done.

        A resumed run begins with the one that was cut short.
        """
        numbers = self._sync.iterations()
        while (number := await self._next(numbers)) is not None:
            yield number

    async def _next(self, numbers: Any) -> int | None:
        async with self._turn:
            found: int | None = await self._crew.apart(next, numbers, None)
        return found

    async def checkpoint(
        self, label: str | None = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Checkpoint[Any]:
        """Make a checkpoint of the run as it is now, whatever its strategy says."""
        state = copy.deepcopy(self._sync.state)  # other tasks may change it meanwhile
        async with self._turn:
            found = await self._crew.apart(self._sync._checkpoint, label, state, metadata)  # noqa: SLF001
        return Checkpoint(self._crew, found)

    async def _surely(self, work: Callable[[], R]) -> R:
        """Do something when it is its turn, even if the task is cancelled meanwhile: then that is raised after it."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self._turn.acquire()
                break
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            return await self._crew.begin(work, together=False, surely=True).outcome()
        finally:
            self._turn.release()
            if cancelled is not None:
                raise cancelled

    # -- what is done through it ----------------------------------------------------------------------------

    def message(self, message: Message) -> Message:
        """Add a message; if the iteration had added it before it was cut short, that one is given."""
        return self._sync.message(message)

    def partial(self, value: Any) -> Any:
        """Add a partial result."""
        return self._sync.partial(value)

    async def tool(
        self,
        name: str,
        fn: Callable[..., Awaitable[T] | T],
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
        """Call a tool, once: if it had come to its end before the run was cut short, its result is given.

        `fn` and `verify` are called in the event loop, by the task that asks, and may be coroutine functions.

        If it was begun and nobody knows whether it was done, `policy` says what to do: "pure" and "idempotent" call it
        again, the latter with the same `key`; `verify` is asked; else it is `InDoubt`, which `store.runs.settle` ends.
        An exception is a result, too: raised again, unless `retry`. A cancellation is none: the call is in doubt then.
        """
        options = Options("tool", name, policy, verify, irreversible, key, retry, tool_call_id)
        found: T = await self._called(options, fn, args, kwargs)
        return found

    async def llm(
        self,
        name: str,
        fn: Callable[..., Awaitable[T] | T],
        /,
        *args: Any,
        policy: str = "ask",
        verify: Callable[[Call], Any] | None = None,
        irreversible: bool = False,
        key: str | None = None,
        retry: bool = False,
        **kwargs: Any,
    ) -> T:
        """Ask a model, once, as `tool` does; its answer is an event for the strategy."""
        options = Options("llm", name, policy, verify, irreversible, key, retry, None)
        found: T = await self._called(options, fn, args, kwargs)
        return found

    async def _called(
        self, options: Options, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        run = self._sync
        options.check(fn)
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            text = f"run {self.session_id!r} was opened in another event loop: its calls are made there"
            raise Invalid(text, code="invalid.run")
        arguments = run._arguments(args, kwargs)  # noqa: SLF001
        with suppress(Exception):  # what cannot even be copied is refused, with its path
            arguments = copy.deepcopy(arguments)
        asked = await self._begin(options, arguments)
        if asked.result is not None:
            return run._outcome(asked.call, asked.result)  # noqa: SLF001
        with run._under(asked):  # noqa: SLF001
            if asked.doubtful and options.verify is not None:
                found = run._verified(asked.call, await _awaited(options.verify(asked.call)))  # noqa: SLF001
                if found is not None:
                    return run._outcome(asked.call, await self._ended(asked.call, found, options))  # noqa: SLF001
            try:
                with run._making(asked.call):  # noqa: SLF001
                    value = await _awaited(fn(*args, **run._passed(asked.call, kwargs)))  # noqa: SLF001
            except InDoubt:  # of a run inside of this call, which is to be made again when that is settled
                raise
            except Exception as error:
                if run._pid == os.getpid():  # noqa: SLF001 - else it is a fork that the call made: not its end
                    failed = Result(good=False, value=failure_of(error, run._errors))  # noqa: SLF001
                    await self._ended(asked.call, failed, options)
                raise
            run._check_process()  # noqa: SLF001
            kept = await self._ended(asked.call, Result(good=True, value=value), options)
            return run._outcome(asked.call, kept)  # noqa: SLF001

    async def _begin(self, options: Options, arguments: dict[str, Any]) -> Asked:
        """Do what comes before a call. If the task is cancelled meanwhile, a new call is taken back."""
        async with self._turn:
            job = self._crew.begin(partial(self._sync._begin, options, arguments), together=False)  # noqa: SLF001
            try:
                return await job.outcome()
            except asyncio.CancelledError:
                if job.result is not None:
                    let_go = partial(self._sync._let_go, job.result)  # noqa: SLF001
                    await self._crew.begin(let_go, together=False, surely=True).outcome()
                raise

    async def _ended(self, call: Call, result: Result, options: Options) -> Result:
        """Do what comes after a call. The strategy is asked, and the state taken, here: they are the event loop's."""
        run = self._sync
        wanted, trouble = run._wish(options)  # noqa: SLF001
        state = run._state  # noqa: SLF001
        if wanted:
            with suppress(Exception):  # what cannot even be copied is refused, with its path
                state = copy.deepcopy(state)
        return await self._surely(partial(run._ended, call, result, wanted, trouble, state=state))  # noqa: SLF001


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
