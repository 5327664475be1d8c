"""Runs: no completed call is repeated, even after many interruptions."""

from __future__ import annotations

import enum
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import InDoubt, Invalid, Message
from backtrail.runs.calls import CallError, current
from tests.conformance.base import Suite

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store
    from backtrail.runs.run import Run


class Verdict(enum.Enum):
    """Possible answers of a tool."""

    ALLOW = "allow"
    DENY = "deny"


class Killed(BaseException):
    """The end of a process, as one test can have it many times."""


class Killing:
    """A block of work on a run that ends with `Killed`; of what comes then, nothing is written."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> Run:
        return self._run.__enter__()

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> bool:
        self._run._worker.lease.is_open = False
        current.set(None)
        assert error is not None, "it was to be killed"
        return isinstance(error, Killed)


class Tools:
    """Tools that record their effects outside of the store."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def book(self, city: str, **more: Any) -> dict[str, Any]:
        self.done.append((city, more) if more else city)
        return {"city": city, "number": len(self.done)}

    def die_after(self, city: str, **more: Any) -> dict[str, Any]:
        self.book(city, **more)
        raise Killed

    def die_before(self, city: str) -> dict[str, Any]:
        raise Killed(city)

    def fail(self, city: str) -> None:
        self.done.append(city)
        raise ValueError("full", city)


def texts(run: Any) -> list[str]:
    """Return the contents of a run's messages."""
    return [message.content for message in run.messages]


class Running(Suite):
    """From the beginning of a run to its end, with and without cuts."""

    def test_new_run_starts_with_given_messages_and_state(self, store: Store) -> None:
        with store.run("s", agent="a", messages=[Message.user("go")], state={"n": 1}) as run:
            assert (run.resumed, run.iteration, run.status.name, run.agent) == (False, 0, "in_progress", "a")
            assert (texts(run), run.state) == (["go"], {"n": 1})
            assert (run.tool_calls, run.partial_results, run.in_doubt) == ([], [], [])
        assert (run.status.name, run.status.reason) == ("completed", None)
        found = store.runs.load("s")
        assert (found.status.name, found.agent, found.iteration) == ("completed", "a", 0)
        assert (texts(found), found.state, found.owner, found.until) == (["go"], {"n": 1}, None, None)

    def test_initial_arguments_count_only_for_a_new_run(self, store: Store) -> None:
        with store.run("s", messages=[Message.user("go")], state={"n": 1}) as run:
            run.halt("later")
        with store.run("s", messages=[Message.user("other")], state={"n": 2}) as run:
            assert (run.resumed, texts(run), run.state) == (True, ["go"], {"n": 1})

    def test_iterations_keep_messages_partial_results_and_the_state(self, store: Store) -> None:
        with store.run("s", state={"n": 0}) as run:
            for i in run.iterations():
                run.message(Message.assistant(f"m{i}"))
                run.partial({"p": i})
                run.state["n"] += i
                if i == 3:
                    break
        found = store.runs.load("s")
        assert (found.iteration, texts(found), found.state) == (3, ["m1", "m2", "m3"], {"n": 6})
        assert found.partial_results == ({"p": 1}, {"p": 2}, {"p": 3})

    def test_interrupted_iteration_restarts_with_its_first_state(self, store: Store) -> None:
        with Killing(store.run("s", state={"n": 0})) as run:
            for i in run.iterations():
                run.message(Message.assistant(f"m{i}"))
                run.partial(i)
                run.state["n"] += 1
                if i == 3:
                    raise Killed
        with store.run("s", takeover=True) as run:
            assert (run.resumed, run.iteration) == (True, 3)
            assert (texts(run), run.partial_results, run.state) == (["m1", "m2"], [1, 2], {"n": 2})
            assert next(run.iterations()) == 3
            run.message(Message.assistant("m3"))
            assert texts(run) == ["m1", "m2", "m3"]

    def test_a_state_that_is_another_value_is_kept(self, store: Store) -> None:
        with store.run("s") as run:
            for _ in run.iterations():
                run.state = ["another"]
                break
        assert store.runs.load("s").state == ["another"]

    def test_replayed_messages_keep_their_ids(self, store: Store) -> None:
        ids: list[list[str]] = []
        for _ in range(3):
            with Killing(store.run("s", takeover=True)) as run:
                for _ in run.iterations():
                    ids.append([run.message(Message.assistant(text)).id for text in ("x", "x", "y")])
                    assert [message.id for message in run.messages] == ids[-1]
                    run.tool("book", lambda: None)
                    raise Killed
        assert ids[0] == ids[1] == ids[2]
        assert len(set(ids[0])) == 3

    def test_work_before_the_loop_is_done_once(self, store: Store) -> None:
        tools = Tools()
        for last in (1, 2, 2, 3):
            with Killing(store.run("s", takeover=True)) as run:
                assert run.tool("book", tools.book, "Lisbon") == {"city": "Lisbon", "number": 1}
                run.message(Message.user("begin"))
                run.partial(0)
                for i in run.iterations():
                    run.message(Message.assistant(f"m{i}"))
                    if i == last:
                        raise Killed
        found = store.runs.load("s")
        assert tools.done == ["Lisbon"]
        assert (texts(found), found.partial_results) == (["begin", "m1", "m2"], (0,))
        assert [call.iteration for call in found.tool_calls] == [0]

    def test_a_completed_run_stays_completed_and_does_nothing_again(self, store: Store) -> None:
        tools = Tools()
        for _ in range(2):
            with store.run("s") as run:
                assert run.tool("book", tools.book, "Lisbon")["number"] == 1
                for _ in run.iterations():
                    run.tool("book", tools.book, "Porto")
                    break
                assert run.tool("book", tools.book, "Faro")["number"] == 3
            assert run.status.name == "completed"
        assert tools.done == ["Lisbon", "Porto", "Faro"]
        assert len(store.runs.load("s").tool_calls) == 3

    def test_the_state_is_not_changed_before_the_first_iteration(self, store: Store) -> None:
        with pytest.raises(Invalid) as error, store.run("s", state={"n": 0}) as run:
            run.state = {"n": 1}
        assert error.value.code == "invalid.run"
        with pytest.raises(Invalid) as error, store.run("s") as run:
            run.state["n"] += 1
            next(run.iterations())
        assert error.value.code == "invalid.run"
        with pytest.raises(Invalid) as error, store.run("s") as run:
            run.state["n"] += 1
        assert error.value.code == "invalid.run"
        assert store.runs.load("s").state == {"n": 0}
        assert store.runs.load("s").status.name == "failed"

    def test_halted_run_has_its_reason_and_resumes(self, store: Store) -> None:
        with store.run("s") as run:
            for _ in run.iterations():
                run.message(Message.assistant("may I?"))
                run.halt("approval")
        assert str(run.status) == "halted(approval)"
        assert store.runs.load("s").status == run.status
        with store.run("s") as run:
            assert run.status.name == "in_progress"
            for _ in run.iterations():
                run.message(Message.assistant("may I?"))
                break
        assert texts(store.runs.load("s")) == ["may I?"]
        with pytest.raises(Invalid):
            run.halt("over")

    def test_exception_fails_and_interrupt_halts_a_run(self, store: Store) -> None:
        with pytest.raises(RuntimeError), store.run("s"):
            raise RuntimeError("no luck")
        assert str(store.runs.load("s").status) == "failed(RuntimeError: no luck)"
        with pytest.raises(KeyboardInterrupt), store.run("s") as run:
            next(run.iterations())
            raise KeyboardInterrupt
        assert str(store.runs.load("s").status) == "halted(interrupted)"
        with store.run("s") as run:
            assert run.resumed
            next(run.iterations())
        assert store.runs.load("s").status.name == "completed"

    @pytest.mark.parametrize("end", ["halted", "failed", "rewound", "forked"])
    def test_run_that_is_only_read_stays_unchanged(self, store: Store, end: str) -> None:
        with suppress(RuntimeError), store.run("s", state={"n": 0}) as run:
            for i in run.iterations():
                run.tool("t", abs, -i)
                run.state["n"] = i
                if i == 2 and end == "failed":
                    raise RuntimeError("the reason")
                if i == 2:
                    run.halt("the reason")
        thread, name = store.runs.thread("s"), "s"
        if end == "rewound":
            thread.rewind(1)
        if end == "forked":
            name = thread.fork("other", at=1).id
        before, steps = store.runs.load(name), len(store.runs.steps(name))
        with store.run(name) as run:
            assert run.state == before.state
        assert run.status == before.status
        with pytest.raises(KeyError), store.run(name) as run:
            run.state["typo"]
        after = store.runs.load(name)
        assert (after, len(store.runs.steps(name))) == (before, steps)
        if end == "rewound":
            thread.undo()
            assert str(store.runs.load("s").status) == "halted(the reason)"
        with store.run(name) as run:
            for i in run.iterations():
                assert run.tool("t", abs, -i) == i
                break
        assert store.runs.load(name).status.name == "completed"

    def test_checkpoint_of_a_read_run_completes_nothing(self, store: Store) -> None:
        with store.run("s", state={"n": 0}) as run:
            next(run.iterations())
            run.halt("later")
        with store.run("s") as run:
            run.checkpoint("before the upgrade")
        assert str(store.runs.load("s").status) == "halted(later)"
        store.runs.thread("s").rewind("before the upgrade")
        assert str(store.runs.load("s").status) == "halted(rewound)"

    def test_a_run_without_iterations_ends_when_it_is_resumed(self, store: Store) -> None:
        with suppress(RuntimeError), store.run("s") as run:
            run.tool("t", abs, -1)
            raise RuntimeError("after the last call")
        with store.run("s") as run:
            run.tool("t", abs, -1)
        assert store.runs.load("s").status.name == "completed"

    def test_halting_a_run_that_is_only_looked_at_counts(self, store: Store) -> None:
        with store.run("s") as run:
            next(run.iterations())
            run.halt("one")
        with store.run("s") as run:
            run.halt("two")
        assert str(store.runs.load("s").status) == "halted(two)"

    def test_a_run_that_cannot_end_fails_and_is_free(self, store: Store) -> None:
        with pytest.raises(Invalid), store.run("s", state={"n": 0}) as run:
            for _ in run.iterations():
                run.state["n"] = object()
                break
        found = store.runs.load("s")
        assert (found.status.name, found.owner, found.state) == ("failed", None, {"n": 0})
        with store.run("s") as run:
            assert run.resumed

    def test_run_is_used_inside_its_block_once(self, store: Store) -> None:
        run = store.run("s")
        uses: list[Callable[[], Any]] = [
            lambda: run.tool("x", len, "x"),
            lambda: run.message(Message.user("x")),
            lambda: run.partial(1),
            lambda: next(run.iterations()),
            run.checkpoint,
        ]
        for use in uses:
            with pytest.raises(Invalid):
                use()
        with run:
            next(run.iterations())
            with pytest.raises(Invalid):
                next(run.iterations())
        for use in uses:
            with pytest.raises(Invalid):
                use()

    def test_a_run_inside_of_a_transaction_is_refused(self, store: Store) -> None:
        with pytest.raises(Invalid) as error, store.transaction(), store.run("s"):
            pass
        assert error.value.code == "invalid.transaction"
        assert "s" not in store.runs


class Calling(Suite):
    """Calls of tools and models: once, with their results."""

    @pytest.fixture
    def tools(self) -> Tools:
        return Tools()

    def test_results_are_given_again_and_nothing_is_done_again(self, store: Store, tools: Tools) -> None:
        def work(run: Run, *, last: bool) -> None:
            for i in run.iterations():
                reply = run.llm("plan", tools.book, f"model {i}", depth=i)
                assert run.tool("book", tools.book, f"{reply['city']}!")["city"] == f"model {i}!"
                run.state["cities"].append(reply["city"])
                if i == 2:
                    break
            if not last:
                raise Killed

        with Killing(store.run("s", state={"cities": []})) as run:
            work(run, last=False)
        assert len(tools.done) == 4
        for _ in range(2):
            with Killing(store.run("s", takeover=True)) as run:
                work(run, last=False)
        with store.run("s", takeover=True) as run:
            work(run, last=True)
        assert tools.done == [("model 1", {"depth": 1}), "model 1!", ("model 2", {"depth": 2}), "model 2!"]
        found = store.runs.load("s")
        assert found.state == {"cities": ["model 1", "model 2"]}
        assert [(c.tool_name, c.arguments, c.success, c.iteration) for c in found.tool_calls] == [
            ("book", {"args": ["model 1!"], "kwargs": {}}, True, 1),
            ("book", {"args": ["model 2!"], "kwargs": {}}, True, 2),
        ]

    def test_equal_calls_are_matched_by_order(self, store: Store, tools: Tools) -> None:
        with Killing(store.run("s")) as run:
            for _ in run.iterations():
                assert [run.tool("book", tools.book, "x")["number"] for _ in range(2)] == [1, 2]
                raise Killed
        with store.run("s", takeover=True) as run:
            for _ in run.iterations():
                assert [run.tool("book", tools.book, "x")["number"] for _ in range(3)] == [1, 2, 3]
                break
        assert len(tools.done) == 3

    def test_an_iteration_that_ended_is_not_replayed(self, store: Store, tools: Tools) -> None:
        with Killing(store.run("s")) as run:
            for i in run.iterations():
                if i == 2:
                    raise Killed
                run.tool("book", tools.book, "same")
        with store.run("s", takeover=True) as run:
            for _ in run.iterations():
                run.tool("book", tools.book, "same")
                break
        assert tools.done == ["same", "same"]

    def test_replayed_result_ignores_later_changes(self, store: Store) -> None:
        def work(run: Run) -> None:
            for _ in run.iterations():
                hits = run.tool("search", lambda: ["a"])
                assert hits == ["a"]
                hits.append("b")
                raise Killed

        for _ in range(3):
            with Killing(store.run("s", takeover=True)) as run:
                work(run)

    def test_an_exception_is_recorded_and_raised_again(self, store: Store, tools: Tools) -> None:
        for _ in range(2):
            with Killing(store.run("s", takeover=True)) as run:
                for _ in run.iterations():
                    with pytest.raises(ValueError, match="full") as error:
                        run.tool("book", tools.fail, "Lisbon")
                    assert error.value.args == ("full", "Lisbon")
                    assert [(call.success, call.result) for call in run.tool_calls] == [(False, str(error.value))]
                    raise Killed
        assert tools.done == ["Lisbon"]

    def test_unnamed_exception_is_replayed_as_call_error(self, store: Store) -> None:
        class Full(Exception):  # noqa: N818 - named as it would be
            pass

        def fail() -> None:
            raise Full("no bed")

        with Killing(store.run("s")) as run:
            with pytest.raises(Full):
                run.tool("book", fail)
            raise Killed
        with store.run("s", takeover=True) as run, pytest.raises(CallError, match="no bed") as error:
            run.tool("book", fail)
        assert error.value.type_name == "Full"

    def test_retry_calls_failed_tool_and_records_it(self, store: Store, tools: Tools) -> None:
        with Killing(store.run("s")) as run:
            with pytest.raises(ValueError, match="full"):
                run.tool("book", tools.fail, "Lisbon", retry=True)
            raise Killed
        for _ in range(2):
            with Killing(store.run("s", takeover=True)) as run:
                assert run.tool("book", tools.book, "Lisbon", retry=True)["number"] == 2
                raise Killed
        assert tools.done == ["Lisbon", "Lisbon"]

    def test_a_retry_that_is_cut_short_is_in_doubt(self, store: Store, tools: Tools) -> None:
        with Killing(store.run("s")) as run:
            with pytest.raises(ValueError, match="full"):
                run.tool("book", tools.fail, "Lisbon", retry=True)
            raise Killed
        with Killing(store.run("s", takeover=True)) as run:
            run.tool("book", tools.die_after, "Lisbon", retry=True)
        with pytest.raises(InDoubt), store.run("s", takeover=True) as run:
            run.tool("book", tools.book, "Lisbon", retry=True)
        assert tools.done == ["Lisbon", "Lisbon"]

    def test_unstorable_argument_is_refused_first(self, store: Store, tools: Tools) -> None:
        with store.run("s") as run, pytest.raises(Invalid, match=r"kwargs\.deep\[0\]"):
            run.tool("book", tools.book, "x", deep=[object()])
        assert tools.done == []
        assert store.runs.load("s").in_doubt == ()

    def test_unstorable_result_is_no_failure_of_the_call(self, store: Store, tools: Tools) -> None:
        def odd(city: str) -> Any:
            tools.book(city)
            return {"x": [object()]}

        with Killing(store.run("s")) as run:
            with pytest.raises(Invalid, match=r"\bx\[0\]"):
                run.tool("odd", odd, "Lisbon")
            raise Killed
        with pytest.raises(InDoubt), store.run("s", takeover=True) as run:
            assert [call.name for call in run.in_doubt] == ["odd"]
            run.tool("odd", odd, "Lisbon")
        store.runs.settle("s", "0.1", result="booked")
        with store.run("s") as run:
            assert run.tool("odd", odd, "Lisbon") == "booked"
        assert tools.done == ["Lisbon"]
        assert [call.success for call in store.runs.load("s").tool_calls] == [True]

    def test_result_of_unnamed_class_waits_for_its_name(self, store: Store, tools: Tools) -> None:
        def judge(city: str) -> Verdict:
            tools.book(city)
            return Verdict.DENY

        for named in ((), (), (Verdict,)):
            refusal = nullcontext() if named else pytest.raises(Invalid, match=r"types=\[Verdict\]")
            with refusal, store.run("s", types=named) as run:
                for _ in run.iterations():
                    assert run.tool("judge", judge, "Lisbon") is Verdict.DENY
                    break
        assert tools.done == ["Lisbon"]

    def test_unstorable_state_costs_no_result(self, store: Store, tools: Tools) -> None:
        with Killing(store.run("s")) as run:
            for _ in run.iterations():
                run.state["odd"] = object()
                with pytest.raises(Invalid, match=r"state\.odd"):
                    run.tool("book", tools.book, "Lisbon")
                run.state["odd"] = None
                assert run.tool("book", tools.book, "Porto")["number"] == 2
                raise Killed
        with store.run("s", takeover=True) as run:
            for _ in run.iterations():
                assert [run.tool("book", tools.book, city)["number"] for city in ("Lisbon", "Porto")] == [1, 2]
                break
        assert tools.done == ["Lisbon", "Porto"]

    def test_bad_arguments_are_refused_before_anything_happens(self, store: Store, tools: Tools) -> None:
        with store.run("s") as run:
            for name, more in [("", {}), (3, {}), ("x", {"policy": "hope"})]:
                with pytest.raises(Invalid):
                    run.tool(name, tools.book, "x", **more)  # type: ignore[arg-type]
            with pytest.raises(Invalid):
                run.message({"role": "user"})  # type: ignore[arg-type]
            with pytest.raises(Invalid):
                run.partial(object())
        assert tools.done == []

    @pytest.mark.parametrize("cut", [False, True])
    def test_threads_get_their_own_results_in_any_order(self, store: Store, *, cut: bool) -> None:
        done: list[int] = []
        turns = [threading.Event() for _ in range(5)]
        turns[4].set()

        def slow(n: int) -> int:
            """Finish in the opposite order; the one that finishes fourth is killed if there is to be a cut."""
            turns[n].wait(10)
            done.append(n)
            if n:
                turns[n - 1].set()
            if cut and n == 1:
                raise Killed
            return n * n

        def work(run: Run, fn: Callable[[int], int], order: list[int]) -> list[int]:
            found: list[int] = []
            for _ in run.iterations():
                with ThreadPoolExecutor(5) as pool:
                    asked = {n: pool.submit(run.tool, "slow", fn, n, policy="pure") for n in order}
                found = [asked[n].result() for n in range(5)]
                run.state["sum"] += sum(found)
                break
            return found

        with Killing(store.run("s", state={"sum": 0})) as run:
            work(run, slow, [0, 1, 2, 3, 4])
            raise Killed
        assert done == [4, 3, 2, 1, 0]

        def again(n: int) -> int:
            done.append(n)
            return n * n

        with store.run("s", takeover=True) as run:
            assert work(run, again, [3, 1, 4, 0, 2]) == [0, 1, 4, 9, 16]
        assert done == [4, 3, 2, 1, 0, *([1] if cut else [])]
        assert store.runs.load("s").state == {"sum": 30}
        assert len(store.runs.load("s").tool_calls) == 5
