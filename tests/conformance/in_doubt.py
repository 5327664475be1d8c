"""Runs that were cut short: calls in doubt, and code that asks for other things than it did before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conflict, InDoubt, Invalid, Message, NotFound
from backtrail.runs.strategies import Done, NotDone
from tests.conformance.base import Suite
from tests.conformance.runs import Killed, Killing, Tools, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store
    from backtrail.engine.journal import Call
    from backtrail.runs.run import Run


class Doubting(Suite):
    """Calls that were begun and have no result."""

    @pytest.fixture
    def doubted(self, store: Store) -> Tools:
        """Return tools, of a run that was killed after one of them had done its work."""
        tools = Tools()
        with Killing(store.run("s")) as run:
            for _ in run.iterations():
                run.tool("book", tools.die_after, "Lisbon", irreversible=True)
        assert tools.done == ["Lisbon"]
        return tools

    def again(self, store: Store, fn: Callable[..., Any], **options: Any) -> Any:
        """Resume the run, which asks for the same call."""
        found = None
        with store.run("s", takeover=True) as run:
            for _ in run.iterations():
                found = run.tool("book", fn, "Lisbon", irreversible=True, **options)
                break
        return found

    def test_call_in_doubt_raises_and_runs_nothing(self, store: Store, doubted: Tools) -> None:
        for _ in range(2):
            with pytest.raises(InDoubt) as error:
                self.again(store, doubted.book)
            details = error.value.details
            assert (error.value.code, details["session_id"], details["name"]) == ("in_doubt.call", "s", "book")
            assert f"then call store.runs.settle('s', '{details['call_id']}', result=...)" in str(error.value)
            assert details["arguments"] == {"args": ["Lisbon"], "kwargs": {}}
            (call,) = store.runs.load("s").in_doubt
            assert (call.id, call.name, call.irreversible) == (details["call_id"], "book", True)
            assert store.runs.load("s").status.name == "failed"
        assert doubted.done == ["Lisbon"]
        with Killing(store.run("s")) as run:
            assert run.in_doubt == [*store.runs.load("s").in_doubt]
            raise Killed

    def test_pure_is_called_again(self, store: Store, doubted: Tools) -> None:
        assert self.again(store, doubted.book, policy="pure")["number"] == 2
        assert doubted.done == ["Lisbon", "Lisbon"]
        assert store.runs.load("s").in_doubt == ()

    def test_idempotent_is_called_again_with_the_same_key(self, store: Store) -> None:
        tools = Tools()
        for fn in (tools.die_after, tools.die_after):
            with Killing(store.run("i", takeover=True)) as run:
                run.tool("book", fn, "Lisbon", policy="idempotent")
        with store.run("i", takeover=True) as run:
            run.tool("book", tools.book, "Lisbon", policy="idempotent")
            run.tool("book", tools.book, "Lisbon", policy="idempotent")
            run.tool("book", tools.book, "Lisbon", policy="idempotent", key="mine")
        keys = [more["key"] for _, more in tools.done]
        assert keys[0] == keys[1] == keys[2]
        assert len(set(keys)) == 3
        assert keys[4] == "mine"

    def test_verify_says_done_with_its_result(self, store: Store, doubted: Tools) -> None:
        asked: list[Call] = []

        def verify(call: Call) -> Done:
            asked.append(call)
            return Done({"found": call.arguments["args"][0]})

        assert self.again(store, doubted.book, verify=verify) == {"found": "Lisbon"}
        assert [call.name for call in asked] == ["book"]
        assert doubted.done == ["Lisbon"]
        assert [call.result for call in store.runs.load("s").tool_calls] == [{"found": "Lisbon"}]

    def test_verify_says_not_done_and_it_is_done(self, store: Store, doubted: Tools) -> None:
        assert self.again(store, doubted.book, verify=lambda _: NotDone)["number"] == 2
        assert doubted.done == ["Lisbon", "Lisbon"]

    def test_verify_says_anything_else_and_nothing_is_done(self, store: Store, doubted: Tools) -> None:
        for answer in (None, True, Done):
            with pytest.raises(Invalid):
                self.again(store, doubted.book, verify=lambda _, answer=answer: answer)
        assert doubted.done == ["Lisbon"]
        assert len(store.runs.load("s").in_doubt) == 1

    def test_settled_with_a_result_it_is_given(self, store: Store, doubted: Tools) -> None:
        with pytest.raises(InDoubt) as error:
            self.again(store, doubted.book)
        call_id = error.value.details["call_id"]
        store.runs.settle("s", call_id, result={"number": "by phone"})
        assert store.runs.load("s").in_doubt == ()
        with pytest.raises(Conflict) as settled:
            store.runs.settle("s", call_id, not_done=True)
        assert settled.value.code == "conflict.settled"
        assert self.again(store, doubted.book) == {"number": "by phone"}
        assert doubted.done == ["Lisbon"]

    def test_settled_with_none_it_is_none(self, store: Store, doubted: Tools) -> None:
        with pytest.raises(InDoubt) as error:
            self.again(store, doubted.book)
        store.runs.settle("s", error.value.details["call_id"], result=None)
        assert self.again(store, doubted.book) is None
        assert doubted.done == ["Lisbon"]

    def test_call_settled_as_not_done_is_made_again(self, store: Store, doubted: Tools) -> None:
        with pytest.raises(InDoubt) as error:
            self.again(store, doubted.book)
        call_id = error.value.details["call_id"]
        store.runs.settle("s", call_id, not_done=True)
        assert self.again(store, doubted.book)["number"] == 2
        (call,) = store.runs.load("s").tool_calls
        assert call.id != call_id

    def test_settling_is_refused_where_there_is_nothing_to_settle(self, store: Store, doubted: Tools) -> None:
        (call,) = store.runs.load("s").in_doubt
        with pytest.raises(Conflict) as held:
            store.runs.settle("s", call.id, not_done=True)
        assert held.value.code == "conflict.lease"
        with pytest.raises(InDoubt):
            self.again(store, doubted.book)
        for arguments in ({}, {"result": 1, "not_done": True}, {"result": object()}):
            with pytest.raises(Invalid):
                store.runs.settle("s", call.id, **arguments)
        with pytest.raises(NotFound):
            store.runs.settle("s", "9.9", not_done=True)
        with pytest.raises(NotFound):
            store.runs.settle("nobody", call.id, not_done=True)
        assert store.runs.load("s").in_doubt == (call,)

    def test_interrupted_call_is_in_doubt(self, store: Store) -> None:
        def interrupted() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), store.run("k") as run:
            run.tool("x", interrupted)
        assert str(store.runs.load("k").status) == "halted(interrupted)"
        assert [call.name for call in store.runs.load("k").in_doubt] == ["x"]


class Replaying(Suite):
    """Code that asks for something else than it did before it was cut short."""

    @pytest.fixture
    def replayed(self, store: Store) -> Tools:
        """Return tools, of a run that was killed after two calls of its first iteration."""
        tools = Tools()
        with Killing(store.run("s")) as run:
            run.message(Message.user("hello"))
            for _ in run.iterations():
                run.tool("book", tools.book, "Lisbon")
                run.tool("book", tools.book, "Porto")
                raise Killed
        return tools

    def differ(self, store: Store, work: Callable[[Run], Any]) -> str:
        """Resume the run with other work; return the error message."""
        with pytest.raises(Invalid) as error, store.run("s", takeover=True) as run:
            for _ in run.iterations():
                work(run)
                break
        assert error.value.code == "invalid.replay"
        found = store.runs.load("s")
        assert (found.status.name, found.owner) == ("failed", None)
        return str(error.value)

    def test_another_call_is_refused_and_both_are_shown(self, store: Store, replayed: Tools) -> None:
        said = self.differ(store, lambda run: run.tool("pay", replayed.book, "Lisbon"))
        assert "book('Lisbon')" in said
        assert "pay('Lisbon')" in said

    def test_another_argument_is_refused_and_both_are_shown(self, store: Store, replayed: Tools) -> None:
        def work(run: Run) -> None:
            run.tool("book", replayed.book, "Lisbon")
            run.tool("book", replayed.book, "Faro", nights=2)

        said = self.differ(store, work)
        assert "book('Porto')" in said
        assert "book('Faro', nights=2)" in said

    def test_a_model_in_place_of_a_tool_is_refused(self, store: Store, replayed: Tools) -> None:
        said = self.differ(store, lambda run: run.llm("book", replayed.book, "Lisbon"))
        assert "tool book" in said
        assert "llm book" in said

    def test_fewer_calls_are_refused_when_the_iteration_ends(self, store: Store, replayed: Tools) -> None:
        said = self.differ(store, lambda run: run.tool("book", replayed.book, "Lisbon"))
        assert "book('Porto')" in said

    def test_another_message_before_the_loop_is_refused(self, store: Store, replayed: Tools) -> None:
        with pytest.raises(Invalid, match="good day") as error, store.run("s", takeover=True) as run:
            run.message(Message.user("good day"))
        assert error.value.code == "invalid.replay"
        with pytest.raises(Invalid) as error, store.run("s") as run:
            run.tool("book", replayed.book, "Faro")
        assert error.value.code == "invalid.replay"

    def test_refused_settle_changes_nothing(self, store: Store, replayed: Tools) -> None:
        self.differ(store, lambda run: run.tool("pay", replayed.book, "Lisbon"))
        with store.run("s") as run:
            run.message(Message.user("hello"))
            for _ in run.iterations():
                assert [run.tool("book", replayed.book, city)["number"] for city in ("Lisbon", "Porto", "Faro")] == [
                    1,
                    2,
                    3,
                ]
                break
        assert replayed.done == ["Lisbon", "Porto", "Faro"]
        assert texts(store.runs.load("s")) == ["hello"]
