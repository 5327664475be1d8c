"""What is done through a run: messages, partial results, calls of tools and models; each once, however often it is run.

A call's intent is written before it, its result after it, with the checkpoint that the strategy asks for. Run again, an
iteration finds in its journal what it had done: `backtrail.engine.journal` says how.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from backtrail.engine import journal
from backtrail.engine.journal import Call, Recorded, Result
from backtrail.entities import Message, to_data
from backtrail.errors import InDoubt, Invalid
from backtrail.run_calls import Asked, Options, as_record, failure_of, given
from backtrail.run_worker import Worker
from backtrail.strategies import Done, Event, NotDone

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.engine import Desk

T = TypeVar("T")


class Caller(Worker):
    """Says and calls, and takes note of it."""

    def message(self, message: Message) -> Message:
        """Add a message; if the iteration had added it before it was cut short, that one is given."""
        if not isinstance(message, Message):
            raise Invalid(f"this is {type(message).__name__}, not a Message", code="invalid.value")
        data = to_data(message)
        shape = {name: value for name, value in data.items() if name not in ("id", "timestamp")}
        with self._saying:
            found = self._said(journal.MESSAGE, shape, data)
            kept = message if found is data else Message.from_data(found)
            if self._is_live():
                self._messages.append(kept)
        return kept

    def partial(self, value: Any) -> Any:
        """Add a partial result."""
        with self._saying:
            found = self._said(journal.PARTIAL, value, value)
            if self._is_live():
                self._partials.append(found)
        return found

    def _said(self, kind: str, shape: Any, value: Any) -> Any:
        self._check_open()
        key = self._hash(shape)
        heard, found = self._book.heard(kind, key)
        if heard:
            return found
        if not self._is_live():
            raise Invalid(
                f"run {self.session_id!r} is in iteration {self._iteration}: before its loop it now says another "
                f"thing than when it began ({value!r:.200})",
                code="invalid.replay",
            )
        self._buffer.append([kind, key, copy.deepcopy(value)])
        return value

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
        asked = self._begin(options, {"args": list(args), "kwargs": kwargs})
        result = asked.result
        if asked.doubtful and options.verify is not None:
            result = self._verified(asked.call, options.verify(asked.call))
            if result is not None:
                self._ended(asked.call, result, wanted=self._wants(options), state=self._state)
        if result is not None:
            return given(result)  # type: ignore[no-any-return]
        self._under_way.add(asked.call.id)
        try:
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

    def _begin(self, options: Options, arguments: dict[str, Any]) -> Asked:
        """Do what comes before a call: find what is known of it, else write its intent."""
        self._check_open()
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
        key = f"{options.kind}:{options.tool_call_id or options.name}:{self._hash(arguments, 'arguments')}"
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
                copy.deepcopy(arguments),
                options.policy,
                options.irreversible,
                main,
            )
            expected = book.expected() if main else None
            if expected is not None or not self._is_live():
                raise journal.diverged(expected or asked, journal.described(asked))
            self._write(lambda desk: self._flush(desk, [asked.entry()]), several=False)
            self._flushed()
            book.asked(key)
            book.began(asked, claimed=True)
            return asked, None

    def _begun_again(self, call: Call) -> None:
        """Write that a call which had failed is tried again: from now on it is in doubt."""
        with self._lock:
            self._write(lambda desk: self._flush(desk, [[journal.AGAIN, call.id]]), several=False)
            self._flushed()
            self._book.again(call.id)

    def _ended(self, call: Call, result: Result, *, wanted: bool, state: Any) -> None:
        """Do what comes after a call: write its result, and the checkpoint that is wanted, in one commit."""
        entry = [journal.RESULT, call.id, result.good, result.value]
        with self._lock:
            if call.kind == "tool":
                self._calls.append(as_record(call, result, self._number))
            try:
                self._write(lambda desk: self._write_result(desk, entry, state, wanted=wanted), several=wanted)
            except Invalid:
                self._write_alone(call, result)
                raise
            self._over(call, result)

    def _write_alone(self, call: Call, result: Result) -> None:
        """Write a result without a checkpoint, which had the state in it; if it is the result, that it failed."""
        try:
            self._write(lambda desk: self._flush(desk, [[journal.RESULT, call.id, *result]]), several=False)
        except Invalid as error:
            result = Result(good=False, value=failure_of(error))
            if call.kind == "tool":
                self._calls[-1] = as_record(call, result, self._number)
            self._write(lambda desk: self._flush(desk, [[journal.RESULT, call.id, *result]]), several=False)
        self._over(call, result)

    def _over(self, call: Call, result: Result) -> None:
        self._flushed()
        self._shown.settle()
        self._book.ended(call.id, result)

    def _write_result(self, desk: Desk, entry: list[Any], state: Any, *, wanted: bool) -> None:
        self._flush(desk, [entry])
        if wanted:
            self._shown.put(desk, self._seen(self._status, state), None, "automatic")

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
