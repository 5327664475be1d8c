"""What is done through a run: messages, partial results, calls of tools and models; each once, however often it is run.

A call's intent is written before it, its result after it, with the checkpoint that the strategy asks for. Run again, an
iteration finds in its journal what it had done: `backtrail.engine.journal` says how.
"""

from __future__ import annotations

import inspect
import os
import uuid
from contextlib import contextmanager, suppress
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar

from backtrail.engine import journal
from backtrail.engine.journal import Call, Result
from backtrail.entities import Message, to_data
from backtrail.errors import Error, InDoubt, Invalid, NotFound
from backtrail.runs.calls import Asked, Halt, Options, as_record, failure_of, inside, keepable, replayed, said
from backtrail.runs.delivery import Owed
from backtrail.runs.strategies import Done, Event, NotDone, RunState
from backtrail.runs.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.transaction import Desk

T = TypeVar("T")


class _Span(dict[str, list[int]]):
    """Messages of the run that stand one behind the other."""


class Caller(Worker):
    """Says and calls, and takes note of it."""

    def message(self, message: Message) -> Message:
        """Add a message; if the iteration had added it before it was cut short, that one is given."""
        if not isinstance(message, Message):
            raise Invalid(f"this is {type(message).__name__}, not a Message", code="invalid.value")
        data = to_data(message)
        key = self._work.hash(said(data), "message")
        with self._saying:
            place, found = self._said(journal.MESSAGE, key, data)
            kept = message if place is None and id(message) not in self._places else Message.from_data(found)
            if self._is_live():
                self._marks[journal.MESSAGE].append(place)
                self._add(kept, found, key)
        return kept

    def partial(self, value: Any) -> Any:
        """Add a partial result."""
        key, kept = self._work.copied(value, "partial")
        with self._saying:
            place, found = self._said(journal.PARTIAL, key, kept)
            if self._is_live():
                self._marks[journal.PARTIAL].append(place)
                self._partials.append(found)
        return self._work.as_kept(found, "partial")

    def _said(self, kind: str, key: str, value: Any) -> tuple[tuple[str, int] | None, Any]:
        self._check_open()
        self._check_outside(f"say {'a message' if kind == journal.MESSAGE else 'a partial result'}")
        self._asked_for = True
        place, found = self._book.heard(kind, key)
        if place is not None:
            if kind == journal.MESSAGE and self._is_live() and self._book.is_free(place):
                self._writer.owed.append(Owed(found))  # it may have been said where the run was forked from
            return place, found
        if not self._is_live():
            text = value["content"] if kind == journal.MESSAGE else value
            raise self._too_late(f"{'message' if kind == journal.MESSAGE else 'partial result'} {text!r:.200}")
        if kind == journal.MESSAGE and self._unheard is not None:
            raise self._has_no_conversation(self._unheard)
        self._writer.buffer.append([kind, key, value])
        return None, value

    def _has_no_conversation(self, name: str) -> NotFound:
        return NotFound(
            f"the messages of run {self.session_id!r} go to conversation {name!r}, which is gone, and the run has no "
            f"agent whose conversation it could be: save Conversation(agent_id, id={name!r}), and open the run again",
            code="not_found.conversation",
        )

    def _too_late(self, what: str) -> Invalid:
        """Return the error of something new where only what is recorded can be had."""
        if self._status.name == RunState.COMPLETED:
            why = "is completed: it gives what is recorded"
        else:
            why = f"is in iteration {self._iteration}: before its loop it gives what is recorded of iteration 0"
        return Invalid(f"run {self.session_id!r} {why}, and {what} is none of that", code="invalid.replay")

    def _check_outside(self, what: str) -> None:
        """Refuse what is done inside of a call: that is not run again when its result is recorded."""
        around = inside.get()
        if around is not None and around[0] is self:
            raise Invalid(
                f"call {around[1]} of run {self.session_id!r} is being made: to {what} inside of it is not possible, "
                "because a call that came to its end is not made again. Do it behind the call",
                code="invalid.run",
            )

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
        """Call a tool, once: if it had come to its end before the run was cut short, its result is given.

        If it was begun and nobody knows whether it was done, `verify` is asked, if it is given; else `policy` says what
        to do: "pure" and "idempotent" call it again, the latter with the same `key`; "ask" is `InDoubt`, which
        `store.runs.settle` ends. An exception is a result, too: raised again, unless `retry`.
        """
        options = Options("tool", name, policy, verify, irreversible, key, retry, tool_call_id)
        return self._called(options, fn, args, kwargs)

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
        """Ask a model, once, as `tool` does; its answer is an event for the strategy."""
        options = Options("llm", name, policy, verify, irreversible, key, retry, None)
        return self._called(options, fn, args, kwargs)

    def _called(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        options.check(fn)
        if inspect.iscoroutinefunction(fn):
            text = f"{options.name!r:.100} is a coroutine function: it is called through a run of backtrail.aio"
            raise Invalid(text, code="invalid.argument")
        asked = self._begin(options, self._arguments(args, kwargs))
        if asked.result is not None:
            return self._outcome(asked.call, asked.result)  # type: ignore[no-any-return]
        with self._under(asked):
            if asked.doubtful and options.verify is not None:
                found = self._verified(asked.call, options.verify(asked.call))
                if found is not None:
                    kept = self._ended(asked.call, found, *self._wish(options), state=self._state)
                    return self._outcome(asked.call, kept)  # type: ignore[no-any-return]
            try:
                with self._making(asked.call):
                    value = fn(*args, **self._passed(asked.call, kwargs))
            except InDoubt:  # of a run inside of this call, which is to be made again when that is settled
                raise
            except Exception as error:
                if self._pid == os.getpid():  # else it is a fork that the call made: not its end
                    failed = Result(good=False, value=failure_of(error, self._errors))
                    self._ended(asked.call, failed, *self._wish(options), state=self._state)
                raise
            self._check_process()
            good = Result(good=True, value=value)
            kept = self._ended(asked.call, good, *self._wish(options), state=self._state)
            return self._outcome(asked.call, kept)  # type: ignore[no-any-return]

    def _outcome(self, call: Call, result: Result) -> Any:
        """Give what came of a call: the first time what a replay gives. An exception is raised."""
        if not result.good:
            raise replayed(call, result, self._errors)
        try:
            return self._work.as_kept(result.value, "result")
        except Invalid as error:
            raise self._unnamed(call, error) from error

    @contextmanager
    def _under(self, asked: Asked) -> Iterator[None]:
        """Hold a call that is being made, until it is known what came of it. If that is never, it stays in doubt."""
        try:
            yield
        except (Halt, InDoubt):  # one that was begun before stays in doubt
            if asked.new:
                self._withdraw(asked.call)
            raise
        finally:
            self._under_way.discard(asked.call.id)
            recorded = self._book.call(asked.call.id)
            if recorded is not None and recorded.result is None:
                self._book.unask(asked.call)

    def _let_go(self, asked: Asked) -> None:
        """Take back that something was asked for, by one who will not hear the answer."""
        self._under_way.discard(asked.call.id)
        if asked.new:
            self._withdraw(asked.call)
            return
        with self._lock:
            self._book.unask(asked.call)
            if asked.result is not None and asked.call.kind == "tool" and self._is_live():
                at = max(i for i, each in enumerate(self._calls) if each["id"] == asked.call.id)
                del self._calls[at]

    @contextmanager
    def _making(self, call: Call) -> Iterator[None]:
        """Take note of who makes a call, while it is being made."""
        token = inside.set((self, call.id))
        try:
            yield
        finally:
            inside.reset(token)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return arguments as they are recorded. The messages of the run are not recorded once more with every call."""
        return {
            "args": [self._told(arg) for arg in args],
            "kwargs": {name: self._told(arg) for name, arg in kwargs.items()},
        }

    def _told(self, arg: Any) -> Any:
        """Return a list of messages with those of the run as `{"run.messages": [from, to]}`: they are frozen."""
        if type(arg) is not list or not any(id(each) in self._places for each in arg):
            return arg
        told: list[Any] = []
        for each in arg:
            at = self._places.get(id(each))
            if at is None:
                told.append(each)
            elif told and type(told[-1]) is _Span and told[-1]["run.messages"][1] == at:
                told[-1]["run.messages"][1] += 1
            else:
                told.append(_Span({"run.messages": [at, at + 1]}))
        return [dict(each) if type(each) is _Span else each for each in told]

    def _begin(self, options: Options, arguments: dict[str, Any]) -> Asked:
        """Do what comes before a call: find what is known of it, else write its intent. With no result, it is held."""
        self._check_open()
        self._check_outside(f"call {options.name}")
        self._asked_for = True
        shape, kept = self._work.copied(arguments, "arguments")
        said_only = self._without_ids(arguments)
        if said_only is not arguments:
            shape = self._work.hash(said_only, "arguments")
        with self._lock:
            asked = self._asked(options, kept, f"{options.kind}:{options.tool_call_id or options.name}:{shape}")
            if asked.result is None:
                self._under_way.add(asked.call.id)
        return asked

    def _asked(self, options: Options, arguments: dict[str, Any], key: str) -> Asked:
        recorded = self._book.ask(key)
        if recorded is None:
            return Asked(self._begun(options, arguments, key), None, new=True)
        call, result = recorded
        if result is None:
            if options.verify is None and options.policy == "ask":
                self._book.unask(call)
                raise self._in_doubt(call)
            return Asked(call, None, doubtful=options.verify is not None)
        if options.retry and not result.good and self._is_live() and self._book.is_last(call):
            self._journal_only([[journal.AGAIN, call.id]])
            self._book.again(call.id)
            return Asked(call, None)
        self._replayed(call, result)
        return Asked(call, result)

    def _begun(self, options: Options, arguments: dict[str, Any], key: str) -> Call:
        """Write the intent of a call that is new."""
        main = self._engine.owner() is self._owner
        sent = None if options.policy != "idempotent" else options.key or uuid.uuid4().hex
        call = Call(
            f"{self._number}.{self._book.count + 1}",
            options.kind,
            options.name,
            key,
            arguments,
            options.policy,
            options.irreversible,
            main,
            options.tool_call_id,
            sent,
        )
        if not self._is_live():
            raise self._too_late(journal.described(call))
        expected = self._book.expected() if main else None
        if expected is not None:
            raise journal.diverged(expected, journal.described(call))
        self._journal_only([call.entry()])
        self._book.begin(call)
        return call

    def _without_ids(self, value: Any) -> Any:
        """Return arguments with messages as what they say: their ids and times differ whenever they are made anew.

        Of the run's own, all that it had when the iteration began is one thing. What has none comes back as it is.
        """
        kind = type(value)
        if kind is Message:
            return said(to_data(value))
        if kind is list or kind is tuple:
            items = [self._without_ids(each) for each in value]
            return value if all(map(is_, items, value)) else kind(items)
        if kind is dict:
            if value.keys() == {"run.messages"}:
                return self._span_says(*value["run.messages"])
            fields = {name: self._without_ids(each) for name, each in value.items()}
            return value if all(map(is_, fields.values(), value.values())) else fields
        return value

    def _span_says(self, start: int, stop: int) -> list[Any]:
        began = self._kept[0]
        old = ["all"] if start == 0 and stop >= began else [start, min(stop, began)] if start < began else []
        return [*old, *self._digests[max(start - began, 0) : max(stop - began, 0)]]

    def _passed(self, call: Call, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that a call gets by name."""
        return kwargs if call.sent is None else {**kwargs, "key": call.sent}

    def _wish(self, options: Options) -> tuple[bool, Exception | None]:
        """Ask the strategy whether the end of a call makes a checkpoint. What it raises must not take the result."""
        event = Event.TOOL_CALL_COMPLETE if options.kind == "tool" else Event.LLM_RESPONSE
        try:
            return bool(self.strategy.should_checkpoint(self._number, event)), None
        except Exception as error:  # noqa: BLE001 - it is raised when the result is recorded
            return False, error

    def _replayed(self, call: Call, result: Result) -> None:
        """Count a tool call that this iteration had made before it was cut short."""
        if call.kind == "tool" and self._is_live():
            with self._lock:
                self._calls.append(as_record(call, result))

    def _journal_only(self, entries: list[list[Any]]) -> None:
        """Write entries, and no checkpoint."""
        self._writer.write(lambda desk: self._writer.flush(desk, entries), several=self._writer.deliver is not None)
        self._writer.flushed(entries)

    def _ended(self, call: Call, result: Result, wanted: bool, trouble: Exception | None, *, state: Any) -> Result:  # noqa: FBT001
        """Do what comes after a call: write its result, and the checkpoint that is wanted, in one commit.

        Whatever else goes wrong, the result is recorded; then that is raised. Return the result as it is recorded.
        """
        result = self._recordable(call, result)._replace(when=self._engine.direct.heads.clock())
        entries = [[journal.RESULT, call.id, *result]]
        with self._lock:
            if call.kind == "tool":
                self._calls.append(as_record(call, result))
            try:
                if wanted:
                    self._writer.write(lambda desk: self._write_both(desk, entries, state))
                    self._writer.flushed(entries)
                    self._shown.settle()
                else:
                    self._journal_only(entries)
            except Exception as error:
                if isinstance(error, Error) and not isinstance(error, Invalid):
                    raise
                trouble = trouble or error  # the checkpoint had the state in it
                self._journal_only(entries)
            self._book.ended(call.id, result)
        if trouble is not None:
            raise trouble
        return result

    def _recordable(self, call: Call, result: Result) -> Result:
        """Return a result as data that can be kept; if there is none, `Invalid`, and the call is in doubt."""
        value = result.value
        with suppress(Invalid):
            return result._replace(value=self._work.as_kept(value, "result"))
        if not result.good:
            return result._replace(value=keepable(value, partial(self._work.as_kept, what="result")))
        try:  # instances of classes that the run does not name, yet: `_outcome` refuses these
            return result._replace(value=self._work.as_data(value, "result"))
        except Invalid as error:
            raise Invalid(
                f"{error}. {journal.described(call)} was called, and its result is not recorded: call {call.id} is in "
                f"doubt. Say store.runs.settle({self.session_id!r}, {call.id!r}, result=...), or not_done=True to call "
                "it again",
                code="invalid.value",
                **error.details,
            ) from error

    def _unnamed(self, call: Call, error: Invalid) -> Invalid:
        return Invalid(
            f"{error}. {journal.described(call)} (call {call.id}) was called and its result is recorded: resume run "
            f"{self.session_id!r} with that class named, and it is given",
            code="invalid.value",
            **error.details,
        )

    def _write_both(self, desk: Desk, entries: list[list[Any]], state: Any) -> None:
        """Write entries, and a checkpoint."""
        seen = self._seen(desk, self._status, state, self._writer.waiting(entries))
        made = self._shown.put(desk, seen, None, "automatic")
        self._writer.flush(desk, entries, at=made.seq)

    def _withdraw(self, call: Call) -> None:
        """Take back a call whose intent was written, and that was not made: the next write says so."""
        with self._lock, self._saying:
            self._book.not_done(call.id)
            self._writer.buffer.append([journal.NOT_DONE, call.id])

    def _verified(self, call: Call, found: Any) -> Result | None:
        """Return what `verify` says of a call that is in doubt: its result, or None: it is to be made."""
        if isinstance(found, Done):
            return Result(good=True, value=found.result)
        if found is NotDone:
            return None
        raise Invalid(
            f"verify of {call.name} returns Done(result) or NotDone, not {found!r:.100}", code="invalid.argument"
        )

    def _in_doubt(self, call: Call) -> InDoubt:
        told = journal.described(call)
        return InDoubt(
            f"run {self.session_id!r} has no result of {told}: it was cut short inside of that call, or could not keep "
            "what the call returned, so it does not know whether it was done. "
            f"Find out, and say store.runs.settle({self.session_id!r}, {call.id!r}, result=...) or not_done=True. "
            'Or give the call verify=, policy="pure" or policy="idempotent"',
            code="in_doubt.call",
            session_id=self.session_id,
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
        )
