"""What is done through a run: messages, partial results, calls of tools and models; each once, however often it is run.

A call's intent is written before it, its result after it, with the checkpoint that the strategy asks for. Run again, an
iteration finds in its journal what it had done: `backtrail.engine.journal` says how.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from contextvars import ContextVar
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.engine import journal
from backtrail.engine.journal import Call, Recorded, Result
from backtrail.entities import Message, to_data
from backtrail.errors import InDoubt, Invalid
from backtrail.run_calls import Asked, Options, as_record, failure_of, given
from backtrail.run_worker import Worker
from backtrail.strategies import Done, Event, NotDone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.engine.engine import Desk

T = TypeVar("T")

_inside: Final[ContextVar[tuple[object, str] | None]] = ContextVar("inside", default=None)
"""The run and the call that is being made here."""


class Caller(Worker):
    """Says and calls, and takes note of it."""

    def message(self, message: Message) -> Message:
        """Add a message; if the iteration had added it before it was cut short, that one is given."""
        if not isinstance(message, Message):
            raise Invalid(f"this is {type(message).__name__}, not a Message", code="invalid.value")
        data = to_data(message)
        shape = {name: value for name, value in data.items() if name not in ("id", "timestamp")}
        key = self._hash(shape, "message")
        with self._saying:
            found = self._said(journal.MESSAGE, key, data)
            kept = message if found is data else Message.from_data(found)
            if self._is_live():
                self._messages.append(kept)
                self._said_data.append(found)
        return kept

    def partial(self, value: Any) -> Any:
        """Add a partial result."""
        key, kept = self._copied(value, "partial")
        with self._saying:
            found = self._said(journal.PARTIAL, key, kept)
            if self._is_live():
                self._partials.append(found)
        return value if found is kept else copy.deepcopy(found)

    def _said(self, kind: str, key: str, value: Any) -> Any:
        self._check_open()
        self._check_outside(f"say {'a message' if kind == journal.MESSAGE else 'a partial result'}")
        heard, found = self._book.heard(kind, key)
        if heard:
            return found
        if not self._is_live():
            raise Invalid(
                f"run {self.session_id!r} is in iteration {self._iteration}: before its loop it now says another "
                f"thing than when it began ({value!r:.200})",
                code="invalid.replay",
            )
        self._buffer.append([kind, key, value])
        return value

    def _check_outside(self, what: str) -> None:
        """Refuse what is done inside of a call: that is not run again when its result is recorded."""
        inside = _inside.get()
        if inside is not None and inside[0] is self:
            raise Invalid(
                f"call {inside[1]} of run {self.session_id!r} is being made: to {what} inside of it is not possible, "
                "because a call that came to its end is not made again. Do it behind the call",
                code="invalid.run",
            )

    def tool(
        self,
        name: str,
        fn: Callable[..., T],
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

        If it was begun and nobody knows whether it was done, `policy` says what to do: "pure" and "idempotent" call it
        again, the latter with the same `key`; `verify` is asked; else it is `InDoubt`, which `store.runs.settle` ends.
        An exception is a result, too: raised again, unless `retry`.
        """
        options = Options("tool", name, policy, verify, irreversible, key, retry, tool_call_id)
        return self._called(options, fn, args, kwargs)

    def llm(
        self,
        name: str,
        fn: Callable[..., T],
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
        asked = self._begin(options, self._arguments(args, kwargs))
        result = asked.result
        if asked.doubtful and options.verify is not None:
            result = self._verified(asked.call, options.verify(asked.call))
            if result is not None:
                self._ended(asked.call, result, wanted=self._wants(options), state=self._state)
        if result is not None:
            return given(result)  # type: ignore[no-any-return]
        try:
            with self._making(asked.call):
                value = fn(*args, **self._passed(options, asked.call, kwargs))
        except Exception as error:
            failed = Result(good=False, value=failure_of(error))
            self._ended(asked.call, failed, wanted=self._wants(options), state=self._state)
            raise
        else:
            self._ended(asked.call, Result(good=True, value=value), wanted=self._wants(options), state=self._state)
            return value
        finally:
            self._under_way.discard(asked.call.id)

    @contextmanager
    def _making(self, call: Call) -> Iterator[None]:
        """Take note that a call is being made, by whoever asked for it."""
        self._under_way.add(call.id)
        token = _inside.set((self, call.id))
        try:
            yield
        finally:
            _inside.reset(token)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return arguments as they are recorded. The messages of the run are not recorded once more with every call."""
        return {
            "args": [self._messages_as(arg) for arg in args],
            "kwargs": {name: self._messages_as(arg) for name, arg in kwargs.items()},
        }

    def _messages_as(self, arg: Any) -> Any:
        """Return how many messages of the run an argument is, if it is its first ones: they are frozen."""
        own = self._messages
        if type(arg) is not list or not arg or len(arg) > len(own) or not all(map(is_, arg, own)):
            return arg
        return {"run.messages": len(arg)}

    def _begin(self, options: Options, arguments: dict[str, Any]) -> Asked:
        """Do what comes before a call: find what is known of it, else write its intent."""
        self._check_open()
        self._check_outside(f"call {options.name}")
        call, recorded = self._begun(options, arguments)
        if recorded is None:
            return Asked(call, None, new=True)
        result = recorded.result
        if result is None:
            if options.verify is None and options.policy == "ask":
                raise self._in_doubt(call)
            return Asked(call, None, doubtful=options.policy == "ask")
        if options.retry and not result.good:
            self._begun_again(call)
            return Asked(call, None)
        self._replayed(call, result)
        return Asked(call, result)

    def _passed(self, options: Options, call: Call, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that a call gets by name."""
        if options.policy != "idempotent":
            return kwargs
        return {**kwargs, "key": options.key or f"{self.session_id}/{call.id}/{call.key}"}

    def _wants(self, options: Options) -> bool:
        """Tell whether the end of a call makes a checkpoint."""
        event = Event.TOOL_CALL_COMPLETE if options.kind == "tool" else Event.LLM_RESPONSE
        return self.strategy.should_checkpoint(self._number, event)

    def _replayed(self, call: Call, result: Result) -> None:
        """Count a tool call that this iteration had made before it was cut short."""
        if call.kind == "tool" and self._is_live():
            with self._lock:
                self._calls.append(as_record(call, result, self._number))

    def _begun(self, options: Options, arguments: dict[str, Any]) -> tuple[Call, Recorded | None]:
        """Find the call in the journal, else write its intent."""
        digest, kept = self._copied(arguments, "arguments")
        key = f"{options.kind}:{options.tool_call_id or options.name}:{digest}"
        main = self._engine.owner() is self._owner
        with self._lock:
            book = self._book
            recorded = book.ask(key)
            if recorded is not None:
                return recorded.call, recorded
            asked = Call(
                f"{self._number}.{book.count + 1}",
                options.kind,
                options.name,
                key,
                kept,
                options.policy,
                options.irreversible,
                main,
                options.tool_call_id,
            )
            expected = book.expected() if main else None
            if expected is not None or not self._is_live():
                raise journal.diverged(expected or asked, journal.described(asked))
            self._journal_only([asked.entry()])
            book.asked(key)
            book.began(asked, claimed=True)
            return asked, None

    def _begun_again(self, call: Call) -> None:
        """Write that a call which had failed is tried again: from now on it is in doubt."""
        with self._lock:
            self._journal_only([[journal.AGAIN, call.id]])
            self._book.again(call.id)

    def _journal_only(self, entries: list[list[Any]]) -> None:
        """Write entries, and no checkpoint."""
        self._write(lambda desk: self._flush(desk, entries), several=False)
        self._flushed(entries)

    def _ended(self, call: Call, result: Result, *, wanted: bool, state: Any) -> None:
        """Do what comes after a call: write its result, and the checkpoint that is wanted, in one commit."""
        error: Invalid | None = None
        try:
            value = self._copied(result.value, "result")[1]  # whoever is given it may change it
        except Invalid as refused:  # what came of the call cannot be kept: that it failed is kept
            error, value = refused, failure_of(refused)
        result = Result(result.good and error is None, value, self._engine.direct.heads.clock())
        entries = [[journal.RESULT, call.id, *result]]
        with self._lock:
            if call.kind == "tool":
                self._calls.append(as_record(call, result, self._number))
            try:
                if wanted:
                    self._write(lambda desk: self._write_both(desk, entries, state))
                    self._flushed(entries)
                    self._shown.settle()
                else:
                    self._journal_only(entries)
            except Invalid as refused:  # the checkpoint had the state in it
                error = error or refused
                self._journal_only(entries)
            self._book.ended(call.id, result)
        if error is not None:
            raise error

    def _write_both(self, desk: Desk, entries: list[list[Any]], state: Any) -> None:
        """Write entries, and a checkpoint."""
        seen = self._seen(desk, self._status, state, self._waiting(entries))
        made = self._shown.put(desk, seen, None, "automatic")
        self._flush(desk, entries, at=made.seq)

    def _withdraw(self, call: Call) -> None:
        """Take back a call whose intent was written, and that was not made: the next write says so."""
        with self._lock, self._saying:
            self._book.not_done(call.id)
            self._buffer.append([journal.NOT_DONE, call.id])

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
            f"run {self.session_id!r} was cut short inside of {told}: nobody knows whether it was done. "
            f"Find out, and say store.runs.settle({self.session_id!r}, {call.id!r}, result=...) or not_done=True. "
            'Or give the call verify=, policy="pure" or policy="idempotent"',
            code="in_doubt.call",
            session_id=self.session_id,
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
        )
