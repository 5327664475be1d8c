"""The calls of a run: each is made once, however often the run is interrupted and resumed.

An `Attempt` is one call. Before the call, it finds the call's result in the journal, or writes the call's intent. After
the call, it writes the result, together with a checkpoint if the strategy asks for one. The function itself is called
by `backtrail.runs.run` or, in an event loop, by `backtrail.aio.run`.

An exception is recorded as data: the name of its class and its text. If the class is Python's own or listed in
`errors=`, its args are recorded, too, so that a replay can make the exception again. Other attributes are not recorded:
they may hold requests with credentials. A replay raises an exception of an unknown class as `CallError` with the class
name; it imports nothing.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import uuid
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from backtrail.engine import journal
from backtrail.engine.journal import Call, Result, described
from backtrail.errors import Error, InDoubt, Invalid
from backtrail.models import MISSING, when
from backtrail.runs.recorder import Show
from backtrail.runs.strategies import Done, Event, NotDone

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from backtrail.runs.journal import RunJournal
    from backtrail.runs.lease import Lease
    from backtrail.runs.recorder import Recorder
    from backtrail.runs.strategies import Strategy
    from backtrail.runs.values import RunValues
    from backtrail.transaction import Engine


class Current(NamedTuple):
    """The run whose block the caller is in. It holds the run weakly, so that a dropped run can be collected."""

    calls: weakref.ref[CallContext]
    make: weakref.WeakMethod[Callable[..., Any]]
    """The method of the run that makes a call: it takes the options, a function, and the function's arguments."""
    is_async: bool


current: Final[ContextVar[Current | None]] = ContextVar("current", default=None)
inside: Final[ContextVar[tuple[CallContext, str] | None]] = ContextVar("inside", default=None)
"""The run and the id of the call inside of which the current code runs; None outside of calls."""
POLICIES: Final = ("ask", "pure", "idempotent")
_TEXT_MAX: Final = 2000
_HARMLESS: Final = frozenset({int, float, bool, type(None)})
_OWN: Final = {
    f"builtins.{name}": cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, BaseExceptionGroup)
}
"""Python's own exception classes, by recorded name."""


class Halt(BaseException):
    """The exception by which `halt` leaves the block of a run. Its arguments are the reason and the worker."""


class CallError(RuntimeError):
    """The error of a replayed call that failed with an exception that cannot be made again from its record.

    The exception's class is neither Python's own nor listed in `store.run(..., errors=...)`, or making it from the
    recorded data failed. `type_name` is the name of the original class.
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name


class Named(NamedTuple):
    """An exception class that the caller of a run listed in `errors=`; a replay raises it again."""

    cls: type[Exception]
    attributes: frozenset[str] = frozenset()

    def keeps(self, attribute: str, value: Any) -> bool:
        """Tell whether an attribute is recorded: if the caller listed it, or if its value is a number or None."""
        return attribute in self.attributes or type(value) in _HARMLESS


class CallOptions(NamedTuple):
    """The options of one call: its kind ("tool" or "llm"), its name, and the keyword options of `run.tool`."""

    kind: str
    name: str
    policy: str
    verify: Callable[[Call], Any] | None
    irreversible: bool
    key: str | None
    retry: bool
    tool_call_id: str | None

    def check(self, fn: Any) -> None:
        """Raise `Invalid` for wrong options, before the call has any effect."""
        if not callable(fn):
            text = f"{self.kind} {self.name!r:.100} takes a function and its arguments, not {fn!r:.100}"
            raise Invalid(text, code="invalid.argument")
        if self.policy == "idempotent" and not _takes_key(fn):
            text = f"the function of an idempotent {self.kind} gets key=, and {self.name!r:.100} does not take it"
            raise Invalid(text, code="invalid.argument")
        if type(self.name) is not str or not self.name:
            raise Invalid(
                f"the name of a call must be a non-empty string, not {self.name!r:.100}", code="invalid.argument"
            )
        if self.policy not in POLICIES:
            raise Invalid(
                f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r:.100}", code="invalid.argument"
            )
        if self.key is not None and self.policy != "idempotent":
            text = "key= requires policy='idempotent'; to pass an argument named key, use functools.partial"
            raise Invalid(text, code="invalid.argument")
        if self.verify is not None and not callable(self.verify):
            raise Invalid(f"verify must be a function, not {self.verify!r:.100}", code="invalid.argument")
        for name, kind in (("irreversible", bool), ("retry", bool), ("key", str), ("tool_call_id", str)):
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise Invalid(f"{name} must be a {kind.__name__}, not {value!r:.100}", code="invalid.argument")


def _takes_key(fn: Callable[..., Any]) -> bool:
    """Tell whether a function accepts `key=`; True if its signature is unknown."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return True
    return "key" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


@dataclass(eq=False)
class CallContext:
    """The parts of a run that each of its calls needs, and the ids of the calls in progress."""

    engine: Engine
    run: RunJournal
    recorder: Recorder
    lease: Lease
    values: RunValues
    strategy: Strategy
    errors: Mapping[str, Named]
    owner: object = None
    """The thread or task that opened the run."""
    under_way: set[str] = field(default_factory=set)
    """The ids of calls in progress."""

    def check(self, what: str) -> None:
        """Raise `Invalid` outside of the run's block, or inside of a call: a replay would skip the action there."""
        self.lease.check_open()
        around = inside.get()
        if around is not None and around[0] is self:
            raise Invalid(
                f"call {around[1]} of run {self.run.session_id!r} is in progress, and its function cannot {what}: a "
                "replay skips the function, and would skip that, too. Do it after the call",
                code="invalid.run",
            )

    def in_doubt(self) -> list[Call]:
        """Return the calls of this iteration that have an intent and no result, and are not in progress."""
        return [call for call in self.run.current.in_doubt() if call.id not in self.under_way]

    def check_ended(self) -> None:
        """Raise unless the iteration can end: no call is in doubt, left out or in progress.

        A call in doubt whose policy is "pure" does not count.
        """
        forgotten = self.run.current.forgotten()
        doubts = [call for call in self.in_doubt() if call.policy != "pure"]
        if doubts:
            raise self.doubt(doubts[0])
        if forgotten is not None:
            newest = self.run.current.newest
            raise journal.diverged(forgotten, "nothing of the kind" if newest is None else described(newest))
        if self.under_way:
            raise Invalid(
                f"call {min([*self.under_way])!r} of run {self.run.session_id!r} is still in progress: wait for it "
                "before the iteration ends",
                code="invalid.run",
            )

    def doubt(self, call: Call) -> InDoubt:
        """Return the error for a call in doubt."""
        session_id = self.run.session_id
        return InDoubt(
            f"run {session_id!r} has no result of {described(call)}: it stopped during that call, or could not store "
            "the result. Find out whether the call was made, then call "
            f"store.runs.settle({session_id!r}, {call.id!r}, result=...), or not_done=True if it was not. "
            'A call with verify=, policy="pure" or policy="idempotent" needs no such answer',
            code="in_doubt.call",
            session_id=session_id,
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
        )


class Attempt:
    """One call of a run, from its intent to its result.

        try:
            attempt.begin()                           # before the call: what the journal has of it, else its intent
            while attempt.is_open:
                with attempt:
                    attempt.outcome = attempt.work()  # outside of the store: the call, or `verify` before it
                attempt.record()                      # after the call: its result
            return attempt.answer()
        finally:
            attempt.close()                           # Ctrl-C may come between any two of these

    An exception of the function is a result: the `with` block suppresses it, and `answer` raises it.
    """

    call: Call

    def __init__(
        self,
        calls: CallContext,
        options: CallOptions,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        detached: bool = False,
    ) -> None:
        """Prepare a call. `detached`: copy its arguments and the state, because other tasks may change them."""
        options.check(fn)
        self._calls = calls
        self._run = calls.run
        self._options = options
        self._work = partial(fn, *args), kwargs
        self._detached = detached
        self._arguments = self._own(calls.run.arguments(args, kwargs))
        self._is_new = self._is_begun = self._verifies = False
        self._result: Result | None = None
        """The recorded result; None: the function is still to be called."""
        self.outcome: Any = None
        self._pending: Result | None = None
        """The result for the next `record`."""
        self._error: Exception | None = None
        self._show: Show | None = None
        self._trouble: Exception | None = None
        """Raised when the result is recorded: an error of the strategy, or of the checkpoint."""
        self._around = inside.get()

    def _own(self, value: Any) -> Any:
        """Return a deep copy of a value for a detached call, and the value itself otherwise."""
        if self._detached:
            with suppress(Exception):  # the store will refuse a value that cannot be copied, with a better error
                return copy.deepcopy(value)
        return value

    # -- before the call ----------------------------------------------------------------------------------

    def begin(self) -> Self:
        """Find the call in the journal, or write its intent."""
        calls, run, options = self._calls, self._run, self._options
        calls.check(f"call {options.name}")
        run.is_used = True
        shape, arguments = run.key_of(self._arguments)
        with calls.recorder.lock, calls.recorder.uninterrupted():
            self._ask(f"{options.kind}:{options.tool_call_id or options.name}:{shape}", arguments)
            if self._result is None:
                calls.under_way.add(self.call.id)
                self._is_begun = True
        return self

    def _ask(self, key: str, arguments: dict[str, Any]) -> None:
        """Find a recorded call with this key, to replay, verify or repeat it; if there is none, write an intent.

        A call in doubt raises `InDoubt`, unless `verify` or the policy allows to repeat it.
        """
        run, options = self._run, self._options
        recorded = run.book.ask(key)
        if recorded is None:
            self._write_intent(key, arguments)
            return
        self.call, result = recorded
        if result is None:
            if options.verify is None and options.policy == "ask":
                run.book.unask(self.call)
                raise self._calls.doubt(self.call)
            self._verifies = options.verify is not None
        elif options.retry and not result.good and run.is_live and run.book.is_last(self.call):
            try:
                self._calls.recorder.record(run, [[journal.AGAIN, self.call.id]])
            except Exception:
                run.book.unask(self.call)
                raise
            run.book.again(self.call.id)
        else:
            self._result = result
            if run.is_live:
                run.add_call(self.call, result)

    def _write_intent(self, key: str, arguments: dict[str, Any]) -> None:
        """Write the intent of a new call; `Invalid` if the code has to repeat another recorded call first."""
        run, options, calls = self._run, self._options, self._calls
        main = calls.engine.owner() is calls.owner
        self.call = Call(
            f"{run.number}.{run.book.count + 1}",
            options.kind,
            options.name,
            key,
            arguments,
            options.policy,
            options.irreversible,
            main,
            options.tool_call_id,
            None if options.policy != "idempotent" else options.key or uuid.uuid4().hex,
        )
        if not run.is_live:
            raise run.too_late(described(self.call))
        expected = run.book.expected() if main else None
        if expected is not None:
            raise journal.diverged(expected, described(self.call))
        if options.policy == "pure" and options.verify is None and not options.irreversible:
            run.defer(self.call)  # it may be made again: its intent can wait for its result
        else:
            calls.recorder.record(run, [self.call.entry()])
        run.book.begin(self.call)
        self._is_new = True

    def abandon(self) -> None:
        """Undo what `begin` did, because the calling task was cancelled and gets no answer."""
        self._is_begun = False
        self._calls.under_way.discard(self.call.id)
        if self._is_new:
            self._withdraw()
            return
        with self._calls.recorder.lock:
            self._run.book.unask(self.call)
            if self._result is not None:
                self._run.remove_call(self.call)
                self._calls.recorder.checkpoints.forget()  # a list got shorter: the next checkpoint cannot just append

    # -- the call -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the function, or `verify`, is still to be called."""
        return self._result is None

    def work(self) -> Any:
        """Call `verify`, or the function, and return its value."""
        if self._verifies and self._options.verify is not None:
            return self._options.verify(self.call)
        make, kwargs = self._work
        return make(**kwargs) if self.call.sent is None else make(**{**kwargs, "key": self.call.sent})

    def __enter__(self) -> Self:
        if not self._verifies:
            inside.set((self._calls, self.call.id))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        inside.set(self._around)
        lease = self._calls.lease
        # InDoubt comes from another run inside of this call: the call is repeated after that run is settled. If the
        # call forked the process, the child does not end the call.
        failed = (
            isinstance(error, Exception) and not isinstance(error, InDoubt) and not self._verifies and lease.is_mine
        )
        if error is not None and not failed:
            self._release()
            if self._is_new and isinstance(error, Halt | InDoubt):  # a call of an earlier attempt stays in doubt
                self._withdraw()
            return False
        try:
            if isinstance(error, Exception):
                self._error = error
                self._pending = Result(good=False, value=failure_of(error, self._calls.errors))
            elif self._verifies:
                self._pending = self._verified()
            else:
                lease.check_process()
                self._pending = Result(good=True, value=self.outcome)
            self._ask_strategy()
        except BaseException:
            self._release()
            raise
        return True

    def _verified(self) -> Result | None:
        """Return the result that `verify` reports; None if the function is to be called."""
        self._verifies = False
        if isinstance(self.outcome, Done):
            return Result(good=True, value=self.outcome.result)
        if self.outcome is NotDone:
            return None
        raise Invalid(
            f"verify of {self.call.name} must return Done(result) or NotDone, not {self.outcome!r:.100}",
            code="invalid.argument",
        )

    def _ask_strategy(self) -> None:
        """Ask the strategy for a checkpoint after the call. Its error is kept for later, so that no result is lost."""
        run, event = self._run, Event.TOOL_CALL_COMPLETE if self._options.kind == "tool" else Event.LLM_RESPONSE
        if self._pending is None:
            return
        try:
            if self._calls.strategy.should_checkpoint(run.number, event):
                self._show = Show(self._own(run.state), run.status)
        except Exception as error:  # noqa: BLE001 - it is raised when the result is recorded
            self._trouble = error

    # -- after the call -----------------------------------------------------------------------------------

    def record(self) -> None:
        """Write the result, and the checkpoint that the strategy asked for, in one commit.

        If the strategy or the checkpoint fails, write the result alone, then raise that error.
        """
        if self._pending is None:
            return
        try:
            self._result = self._write_result(self._pending)
        finally:
            self._pending = None
            self._release()
        if self._trouble is not None:
            raise self._trouble from self._error

    def _write_result(self, result: Result) -> Result:
        """Write the result with the checkpoint; if the checkpoint is refused, without it. Return the result."""
        recorder, run = self._calls.recorder, self._run
        result = self._recordable(result)._replace(when=self._calls.engine.direct.reader.clock())
        stored = self._redacted(result)
        entries = [[journal.RESULT, self.call.id, *stored]]
        with recorder.lock, recorder.uninterrupted():
            run.add_call(self.call, stored)
            try:
                self._write_entries(entries)
            except Exception:
                run.remove_call(self.call)
                raise
            run.book.ended(self.call.id, stored)
        return result

    def _redacted(self, result: Result) -> Result:
        """Return a result as it may be stored. The caller of this call gets it as it is; a replay gets this one."""
        redacted = self._calls.values.redacted
        if result.good or not isinstance(result.value, list):
            return result._replace(value=redacted(result.value))
        return result._replace(value=[*result.value[:1], *redacted(result.value[1:])])  # the first is the class's name

    def _write_entries(self, entries: list[list[Any]]) -> None:
        recorder, run = self._calls.recorder, self._run
        try:
            recorder.record(run, entries, show=self._show)
        except Exception as error:
            if isinstance(error, Error) and not isinstance(error, Invalid):
                raise
            self._trouble = self._trouble or error  # the checkpoint had the state in it
            recorder.record(run, entries)

    def _recordable(self, result: Result) -> Result:
        """Return a result in a form that can be stored; `Invalid` if there is none: then the call stays in doubt."""
        values = self._calls.values
        with suppress(Invalid):
            return result._replace(value=values.copy(result.value, "result"))
        if not result.good:
            return result._replace(value=_storable(result.value, partial(values.copy, what="result")))
        try:  # store instances of unnamed classes as plain data; `answer` refuses to return them
            return result._replace(value=values.data(result.value, "result"))
        except Invalid as error:
            raise Invalid(
                f"{error}. {described(self.call)} was called, and its result is not recorded: call {self.call.id} is "
                f"in doubt. Use store.runs.settle({self._run.session_id!r}, {self.call.id!r}, result=...), or "
                "not_done=True to call it again",
                code="invalid.value",
                **error.details,
            ) from error

    def _release(self) -> None:
        """Record that the call is no longer in progress. Without a result, it stays in doubt."""
        with self._calls.recorder.uninterrupted():
            self._is_begun = False
            self._calls.under_way.discard(self.call.id)
            recorded = self._run.book.call(self.call.id)
            if recorded is not None and recorded.result is None:
                self._run.book.unask(self.call)

    def close(self) -> None:
        """Record that the call is no longer in progress, if Ctrl-C prevented the code before from recording it."""
        if self._is_begun:
            inside.set(self._around)
            self._release()

    def _withdraw(self) -> None:
        with self._calls.recorder.lock, self._calls.recorder.uninterrupted():
            self._run.withdraw(self.call)

    def answer(self) -> Any:
        """Return a copy of the result, or raise the exception of the call. A replay returns an equal copy."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame: a cycle would wait for the garbage collector
        result = self._result
        if result is None or not result.good:
            raise replayed(self.call, result or Result(good=False, value=[]), self._calls.errors)
        try:
            return self._calls.values.copy(result.value, "result")
        except Invalid as invalid:
            raise Invalid(
                f"{invalid}. {described(self.call)} (call {self.call.id}) was called, and its result is recorded. To "
                f"get the result, name that class in types= and resume run {self._run.session_id!r}",
                code="invalid.value",
                **invalid.details,
            ) from invalid


# -- exceptions as data ---------------------------------------------------------------------------------


def failure_of(error: Exception, errors: Mapping[str, Named]) -> list[Any]:
    """Return an exception as data: the name of its class, its args, its text, and its attributes.

    Args are None unless the class is Python's own or listed in `errors=`. Attributes are recorded only for a listed
    class: those that `Named.keeps`.
    """
    cls, text = type(error), text_of(error)[:_TEXT_MAX]
    name = name_of(cls)
    named = errors.get(name)
    if named is None or named.cls is not cls:
        return [name, _args_of(error) if _OWN.get(name) is cls else None, text]
    return [name, _args_of(error), text, {key: value for key, value in vars(error).items() if named.keeps(key, value)}]


def _args_of(error: Exception) -> list[Any]:
    """Return the arguments that make the exception again. The args of an OSError lack its file names."""
    if isinstance(error, OSError) and error.filename is not None:
        return [error.errno, error.strerror, error.filename, None, error.filename2]
    return list(error.args)


def _storable(failure: list[Any], keep: Callable[[Any], Any]) -> list[Any]:
    """Return the data of an exception without the args and attributes for which `keep` raises `Invalid`."""

    def copy_or_missing(value: Any) -> Any:
        try:
            return keep(value)
        except Invalid:
            return MISSING

    name, args, text, *more = failure
    args = None if args is None else copy_or_missing(args)
    copies = {key: copy_or_missing(value) for each in more for key, value in each.items()}
    attributes = {key: value for key, value in copies.items() if value is not MISSING}
    return [name, None if args is MISSING else args, text, *([attributes] if more else [])]


def name_of(cls: type) -> str:
    """Return the name of an exception class in records: module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or a substitute if its `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the user's code
        return "(it cannot say what)"


class _Text(str):
    """The recorded text of an exception whose args were not recorded. It is the only arg of the exception made again.

    Its repr has no quotes. `KeyError` prints the repr of its arg, so it prints the recorded text.
    """

    __slots__ = ()
    __repr__ = str.__str__


def replayed(call: Call, result: Result, errors: Mapping[str, Named]) -> Exception:
    """Return the exception of a recorded result, with a note that it is a replay; `CallError` if it cannot be made."""
    error = _made(result.value, errors)
    if error is None:
        error = CallError(result.value[0].rpartition(".")[2], result.value[2])
    failed = f"failed at {when(result.when):%Y-%m-%d %H:%M:%S} UTC" if result.when else "failed"
    error.add_note(
        f"replayed: {described(call)} (call {call.id}) {failed}, before the run was resumed, and was not called again. "
        "To call it again, pass retry=True"
    )
    return error


def _made(failure: list[Any], errors: Mapping[str, Named]) -> Exception | None:
    """Make an exception from its data without calling the class's own constructor.

    Return None if the class is unknown, or if the exception's text differs from the recorded text.
    """
    name, args, text, *more = copy.deepcopy(failure)
    args = [_Text(text)] if args is None else args
    named = errors.get(name)
    cls = _OWN.get(name) or (None if named is None else named.cls)
    if cls is None:
        return None
    with suppress(Exception):  # the recorded args may not fit the class
        base = next(each for each in cls.__mro__ if each.__module__ == "builtins")
        error: Exception = base.__new__(cls, *args)
        base.__init__(error, *args)  # type: ignore[misc]
        vars(error).update(more[0] if more else {})
        if str(error)[:_TEXT_MAX] == text:
            return error
    return None
