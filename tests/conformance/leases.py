"""Runs from outside: leases, checkpoint strategies, and listings of runs."""

from __future__ import annotations

import datetime as dt
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import backtrail
from backtrail import AgentState, Conflict, Invalid, Message, NotFound
from backtrail.runs.strategies import AfterLlmResponse, AfterToolCall, EveryN, Never
from tests.conformance.base import Suite, ids, steps
from tests.conformance.runs import Killed, Killing, Tools, texts

if TYPE_CHECKING:
    from backtrail import Store
    from backtrail.runs.strategies import Strategy
    from tests.conformance.base import Opener


def work(store: Store, session_id: str, count: int = 1, **options: Any) -> None:
    """Do a whole run, with two tool calls and one of a model in each iteration."""
    with store.run(session_id, **options) as run:
        for i in run.iterations():
            for n in range(2):
                run.tool("t", lambda n, i: n + i, n, i)
            run.llm("m", lambda i: i, i)
            run.message(Message.assistant(f"m{i}"))
            if i == count:
                break


def _plans() -> tuple[Any, Any]:
    """Return a class, and the same one as newer code has it."""

    @backtrail.schema("conformance.Leased", version=1)
    @dataclass
    class Old:
        city: str

    @backtrail.schema("conformance.Leased", version=2)
    @dataclass
    class New:
        cities: list[str]

    @backtrail.upcast(New, from_version=1)
    def renew(fields: dict[str, Any]) -> dict[str, Any]:
        return {"cities": [fields["city"]]}

    return Old, New


class Leases(Suite):
    """One worker has a run at a time."""

    def test_second_worker_gets_owner_and_end_of_lease(self, store: Store) -> None:
        with store.run("s", lease=dt.timedelta(minutes=5)):
            before = store.runs.load("s")
            with pytest.raises(Conflict) as error, store.run("s"):
                pass
            assert error.value.code == "conflict.lease"
            assert str(error.value.details["owner"]).endswith(f":{os.getpid()}")
            left = error.value.details["until"] - dt.datetime.now(dt.UTC)
            assert dt.timedelta(minutes=4) < left < dt.timedelta(minutes=6)
            assert (before.owner, before.until) == (error.value.details["owner"], error.value.details["until"])
            assert store.runs.load("s") == before
        assert store.runs.load("s").status.name == "completed"

    def test_run_with_a_worker_is_not_migrated(self, opener: Opener) -> None:
        old, new = _plans()
        with opener(types=[old]) as store, opener(types=[new]) as other:
            store.thread("t").save(old("Porto"))
            asked = {Message.user("Where?")}
            with store.run("s", state={"plan": old("Lisbon"), "asked": asked}, lease=60) as run:
                for i in run.iterations():
                    run.tool("t", int, i)
                    if i == 2:
                        report = other.migrate()
                        assert report.migrated == 1
                        assert [failed[:2] for failed in report.failed] == [("journal", "s"), ("run", "s")]
                        assert all("leased by worker" in reason and "again" in reason for *_, reason in report.failed)
                    run.tool("u", int, i)
                    if i == 3:
                        break
            assert store.runs.load("s").status.name == "completed"
            report = other.migrate()
            assert (report.migrated, report.ok) == (2, True)
            assert other.runs.steps("s")[-1].state["state"] == {"plan": new(["Lisbon"]), "asked": asked}

    def test_unreadable_run_is_listed_as_damaged(self, opener: Opener) -> None:
        old, _ = _plans()

        @backtrail.schema("conformance.Leased", version=1)
        @dataclass
        class Other:  # the same name and version, and other fields
            town: str

        with opener(types=[old]) as store, opener(types=[Other]) as other:
            store.thread("t").save({"plan": old("Porto")})
            work(store, "broken", agent="a", state={"plan": old("Lisbon")})
            work(store, "sound", agent="a")
            found = {record.session_id: record.damaged for record in other.runs.list()}
            assert found["sound"] is None
            assert "Other" in (found["broken"] or "")
            assert [record.session_id for record in other.runs.list(status="completed")] == ["sound", "broken"]
            assert [record.session_id for record in other.runs.list(agent="a", limit=1)] == ["sound"]
            with pytest.raises(Invalid):
                other.runs.load("broken")
            report = other.migrate()
            assert sorted(failed[:2] for failed in report.failed) == [
                ("journal", "broken"),
                ("run", "broken"),
                ("thread", "t"),
            ]
            assert not report.ok

    def test_rewound_run_is_migrated_where_it_is(self, opener: Opener) -> None:
        old, new = _plans()
        with opener(types=[old]) as store, opener(types=[new]) as other:
            with store.run("s", strategy=EveryN(1), state={"plan": old("Lisbon")}, lease=60) as run:
                for i in run.iterations():
                    run.state["n"] = i
                    if i == 4:
                        run.thread.rewind(2)
                        assert not other.migrate().migrated
                        run.halt("enough")
            run.thread.rewind(2)
            assert other.migrate().ok
            assert other.runs.load("s").state == {"plan": new(["Lisbon"]), "n": 2}
            other.runs.thread("s").undo()  # takes back that it was migrated, and nothing else
            with other.run("s") as run:
                assert next(run.iterations()) == 3

    def test_worker_writes_nothing_after_a_takeover(self, store: Store) -> None:
        tools = Tools()
        new = store.run("s", takeover=True)
        with pytest.raises(Conflict) as error, store.run("s", state={"n": 0}) as old:
            for _ in old.iterations():
                old.tool("book", tools.book, "Lisbon")
                new.__enter__()
                old.state["n"] = 1
                old.message(Message.assistant("old"))
                with pytest.raises(Conflict) as refused:
                    old.tool("book", tools.book, "Porto")
                assert refused.value.code == "conflict.lease"
                with pytest.raises(Conflict):
                    old.checkpoint("late")
                break
        assert error.value.code == "conflict.lease"
        for _ in new.iterations():
            assert new.tool("book", tools.book, "Lisbon")["number"] == 1
            new.message(Message.assistant("new"))
            break
        new.__exit__(None, None, None)
        found = store.runs.load("s")
        assert (texts(found), found.state, found.status.name) == (["new"], {"n": 0}, "completed")
        assert tools.done == ["Lisbon"]
        assert store.runs.thread("s").find(label="late") == []

    def test_replaced_worker_cannot_end_the_run(self, store: Store) -> None:
        for reason in (None, "halt"):
            with pytest.raises(Conflict), store.run("s") as old:
                new = store.run("s", takeover=True)
                new.__enter__()
                next(new.iterations())
                if reason is not None:
                    old.halt(reason)
            assert store.runs.load("s").status.name == "in_progress"
            with pytest.raises(Invalid), new:  # a block is entered once
                pass
            new.__exit__(Killed, Killed(), None)
            assert store.runs.load("s").status.name == "halted"

    def test_replaced_worker_raises_its_own_exception(self, store: Store) -> None:
        with pytest.raises(RuntimeError, match="mine"), store.run("s"):
            store.run("s", takeover=True).__enter__()
            raise RuntimeError("mine")
        assert store.runs.load("s").status.name == "in_progress"

    def test_a_lease_that_ended_is_free(self, store: Store) -> None:
        with Killing(store.run("s", lease=0.3)):
            raise Killed
        with pytest.raises(Conflict), store.run("s"):
            pass
        time.sleep(0.4)
        with store.run("s") as run:
            assert run.resumed

    def test_renewal_does_not_disturb_the_worker(self, store: Store) -> None:
        tools = Tools()
        with store.run("s", lease=0.3) as run:
            for i in run.iterations():
                run.tool("book", tools.book, str(i))
                time.sleep(0.25)
                with pytest.raises(Conflict), store.run("s"):
                    pass
                if i == 3:
                    break
        assert tools.done == ["1", "2", "3"]
        assert store.runs.load("s").status.name == "completed"

    def test_worker_notices_a_takeover(self, store: Store) -> None:
        with pytest.raises(Conflict) as error, store.run("s", lease=0.15) as old:
            with Killing(store.run("s", takeover=True)):
                raise Killed
            time.sleep(0.3)
            with pytest.raises(Conflict):
                old.message(Message.user("too late"))
        assert error.value.code == "conflict.lease"
        assert store.runs.load("s").status.name == "in_progress"

    def test_run_of_another_agent_is_refused(self, store: Store) -> None:
        work(store, "s", agent="a")
        with pytest.raises(Conflict) as error, store.run("s", agent="b"):
            pass
        assert error.value.code == "conflict.agent"
        with store.run("s") as run:
            assert run.agent == "a"

    def test_run_continues_in_another_store_object(self, opener: Opener) -> None:
        tools = Tools()
        with opener() as store, Killing(store.run("s", agent="a")) as run:
            run.tool("book", tools.book, "Lisbon")
            raise Killed
        with opener() as store, store.run("s", takeover=True) as run:
            assert (run.resumed, run.agent) == (True, "a")
            assert run.tool("book", tools.book, "Lisbon")["number"] == 1

    def test_invalid_lease_or_strategy_is_refused(self, store: Store) -> None:
        for options in ({"lease": 0}, {"lease": -1}, {"lease": "x"}, {"strategy": "often"}, {"agent": ""}):
            with pytest.raises(Invalid):
                store.run("s", **options)
        assert "s" not in store.runs


class RunCheckpoints(Suite):
    """The checkpoints of runs, as their strategies ask for them."""

    @pytest.mark.parametrize(
        ("strategy", "seen"),
        [
            (AfterToolCall(), [1, 1, 2, 2, 3, 3, 4, 4, 4]),
            (AfterLlmResponse(), [1, 2, 3, 4, 4]),
            (EveryN(1), [1, 2, 3, 4]),
            (EveryN(2), [2, 4]),
            (EveryN(3), [3, 4]),
            (Never(), []),
        ],
        ids=str,
    )
    def test_strategy_decides_checkpoints_besides_the_last(
        self, store: Store, strategy: Strategy, seen: list[int]
    ) -> None:
        work(store, "s", 4, strategy=strategy)
        found = store.runs.steps("s")
        assert [checkpoint.state["iteration"] for checkpoint in found] == seen
        assert steps(found) == list(range(1, len(seen) + 1))
        for checkpoint in found[-1:]:
            assert checkpoint.state["status"] == "completed"
            assert [m["content"] for m in checkpoint.state["messages"]] == ["m1", "m2", "m3", "m4"]
            assert len(checkpoint.state["tool_calls"]) == 8
        assert len(store.runs.load("s").tool_calls) == 8

    @pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
    def test_every_n_is_a_whole_number_from_one_on(self, n: Any) -> None:
        with pytest.raises(Invalid):
            EveryN(n)

    def test_every_n_saves_each_nth_iteration(self) -> None:
        asked = [(i, e) for i in range(7) for e in ("iteration", "llm_response", "tool_call_complete")]
        assert [a for a in asked if EveryN(3).should_checkpoint(*a)] == [(3, "iteration"), (6, "iteration")]

    def test_a_cut_makes_no_checkpoint_twice(self, store: Store) -> None:
        for _ in range(3):
            with Killing(store.run("s", takeover=True)) as run:
                for _ in run.iterations():
                    run.tool("t", lambda: 1)
                    raise Killed
        assert len(store.runs.steps("s")) == 1

    def test_manual_checkpoint_shows_the_run(self, store: Store) -> None:
        made = None
        with store.run("s", strategy=Never(), state={"n": 1}) as run:
            for _ in run.iterations():
                run.message(Message.user("x"))
                run.state["n"] = 2
                made = run.checkpoint("here")
                break
        assert made is not None
        assert ids(store.runs.steps("s")) == [made.id]
        assert (made.label, made.kind, made.state["state"]) == ("here", "manual", {"n": 2})
        assert run.thread.load("here").state["messages"][0]["content"] == "x"

    def test_run_thread_can_be_used_during_the_run(self, store: Store) -> None:
        with store.run("s", agent="a") as run:
            for i in run.iterations():
                for n in range(3):
                    run.tool("t", lambda *both: both, n, i)
                thread = store.runs.thread("s")
                if i == 1:
                    thread.tag("@", "tagged")
                elif i == 2:
                    thread.rewind("tagged")
                elif i == 3:
                    assert store.runs.prune("a", 1) > 0
                else:
                    break
        assert len(store.runs.load("s").tool_calls) == 12
        assert store.runs.thread("s").load().state["status"] == "completed"
        assert len(store.runs.thread("s").load().state["tool_calls"]) == 12
        assert store.verify().ok

    def test_run_continues_with_an_edited_state(self, store: Store) -> None:
        def book(at: int | None) -> Any:
            with store.run("s", state={"city": "Lisbon", "booked": []}) as run:
                for i in run.iterations():
                    run.state["booked"].append(run.tool("book", str.upper, run.state["city"]))
                    if i == at:
                        run.halt("look at it")
                    if i == 3:
                        break
            return store.runs.load("s").state["booked"]

        book(2)
        thread = store.runs.thread("s")
        thread.set("state.city", "Porto")
        assert book(None) == ["LISBON", "PORTO", "PORTO"]
        thread.rewind(1)
        thread.set("state.city", "Faro")
        assert book(None) == ["FARO", "FARO", "FARO"]
        with pytest.raises(Invalid, match="made by the run"):
            thread.set("iteration", 1)

    def test_thread_of_finished_run_forks_and_diffs(self, store: Store) -> None:
        work(store, "s", 3, agent="a", state={"n": 1})
        before = store.runs.load("s")
        at = store.runs.steps("s")[3]
        assert at.state["iteration"] == 2
        fork = store.runs.thread("s").fork("other", at=at)
        assert fork.load().state == at.state
        assert ("messages", 1) in [change.path for change in store.runs.thread("s").diff(at, "@")]
        work(store, "other", 3, agent="a")
        assert steps(store.runs.steps("other")) == [4, 5, 6, 7]
        assert store.runs.load("other").messages[:1] == before.messages[:1]
        store.runs.thread("s").rewind(at)
        store.runs.thread("s").undo()
        assert store.runs.load("s") == before
        assert len(store.runs.steps("s")) == 7


class RunListing(Suite):
    """`store.runs`."""

    def test_misses(self, store: Store) -> None:
        assert store.runs.get("s") is None
        assert "s" not in store.runs
        assert 3 not in store.runs
        assert "" not in store.runs
        with pytest.raises(NotFound) as error:
            store.runs.load("s")
        assert error.value.code == "not_found.run"
        assert (store.runs.steps("s"), store.runs.list(), store.runs.checkpoints("a")) == ([], [], [])
        assert store.runs.latest("a") is None
        assert (store.runs.cleanup("s"), store.runs.prune("a", 1)) == (0, 0)

    def test_listings_are_exact(self, store: Store) -> None:
        work(store, "one", agent="a")
        work(store, "two", agent="b")
        with store.run("three", agent="a") as run:
            run.halt("x")
        work(store, "alone")
        assert [run.session_id for run in store.runs.list()] == ["alone", "three", "two", "one"]
        assert [run.session_id for run in store.runs.list(agent="a")] == ["three", "one"]
        assert [run.session_id for run in store.runs.list(status="halted")] == ["three"]
        assert [run.session_id for run in store.runs.list(agent="b", status="halted")] == []
        assert [run.session_id for run in store.runs.list(limit=2)] == ["alone", "three"]
        assert [run.session_id for run in store.runs.list(status="completed", limit=2)] == ["alone", "two"]
        assert store.runs.list(limit=0) == []
        with pytest.raises(Invalid):
            store.runs.list(status="odd")
        assert ("one" in store.runs, "on" in store.runs) == (True, False)
        assert store.runs.get("one") == store.runs.load("one")
        assert store.stats().runs == 4
        assert {info.id for info in store.threads()} == set()

    def test_status_filter_equals_a_filtered_listing(self, store: Store) -> None:
        for end in ("completed", "failed", "halted"):
            for what in ("", " rewound", " undone", " forked", " looked at"):
                with suppress(RuntimeError), store.run(end + what, state={"n": 0}) as run:
                    for i in run.iterations():
                        run.tool("t", abs, -i)
                        if end == "failed":
                            raise RuntimeError("x")
                        if end == "halted":
                            run.halt("x")
                        break
            for what in (" rewound", " undone"):
                store.runs.thread(end + what).rewind(1)
            store.runs.thread(f"{end} undone").undo()
            store.runs.thread(f"{end} forked").fork(f"{end} fork", at=1)
            with store.run(f"{end} looked at"):
                pass
        everything = store.runs.list()
        for status in ("completed", "failed", "halted", "in_progress"):
            assert store.runs.list(status=status) == [run for run in everything if run.status.name == status]
        assert len(everything) == 18

    def test_runs_that_were_cut_short_are_recovered(self, store: Store) -> None:
        work(store, "completed")
        with pytest.raises(KeyboardInterrupt), store.run("interrupted") as run:
            next(run.iterations())
            raise KeyboardInterrupt
        with store.run("halted") as run:
            run.halt("x")
        dead = store.run("dead", lease=0.01)
        dead.__enter__()
        next(dead.iterations())
        dead._worker.lease.is_open = False
        time.sleep(0.05)
        with store.run("alive"):
            found = store.runs.recover()
            assert {run.session_id for run in found} == {"dead", "interrupted"}
            for run in found:
                with run:
                    next(run.iterations())
            assert store.runs.recover() == []

    def test_run_messages_reach_the_conversation_once(self, store: Store) -> None:
        for cut in (1, 1, 2, None):
            with suppress(RuntimeError), store.run("s", agent="a", conversation="c") as run:
                for i in run.iterations():
                    run.message(Message.assistant(f"thought {i}"))
                    run.tool("t", abs, -i)
                    run.message(Message.assistant(f"answer {i}"))
                    if i == cut:
                        raise RuntimeError("cut short")
                    if i == 2:
                        break
        found = store.conversations.load("c")
        assert [each.content for each in found.messages] == ["thought 1", "answer 1", "thought 2", "answer 2"]
        assert found.messages == store.runs.load("s").messages
        assert [(hit.kind, hit.conversation_id) for hit in store.search("thought 2")] == [("conversation", "c")]

    def test_checkpoints_of_an_agent_newest_first_and_its_latest(self, store: Store) -> None:
        for name in ("x", "y", "z"):
            work(store, name, agent="b" if name == "y" else "a")
        found = store.runs.checkpoints("a")
        assert ids(found) == ids([*reversed(store.runs.steps("z")), *reversed(store.runs.steps("x"))])
        assert store.runs.latest("a") == found[0]
        assert store.runs.latest("b") == store.runs.steps("y")[-1]

    def test_prune_counts_and_keeps_the_newest_of_an_agent(self, store: Store) -> None:
        for name in ("x", "y", "z"):
            work(store, name, 3, agent="b" if name == "y" else "a")
        before = store.runs.checkpoints("a")
        gone = store.runs.prune("a", 4)
        after = store.runs.checkpoints("a")
        assert ids(after) == ids(before[:4])
        assert gone == len(before) - 4
        assert store.runs.prune("a", 4) == 0
        assert len(store.runs.steps("y")) == 7
        assert store.runs.load("x").status.name == "completed"
        with pytest.raises(Invalid):
            store.runs.prune("a", -1)

    def test_cleanup_removes_only_the_named_run(self, store: Store) -> None:
        names = ["a", "a_b", "A", "a/b", "a%", "ab", "latest"]
        for name in names:
            work(store, name, agent="x")
        assert store.runs.cleanup("a") == 3
        assert store.runs.cleanup("a") == 0
        assert "a" not in store.runs
        assert store.runs.steps("a") == []
        assert {run.session_id for run in store.runs.list()} == {*names} - {"a"}
        assert all(len(store.runs.steps(name)) == 3 for name in names[1:])
        work(store, "a", agent="y")
        assert steps(store.runs.steps("a")) == [1, 2, 3]

    def test_cleanup_ends_the_worker_of_a_run(self, store: Store) -> None:
        with pytest.raises(Conflict), store.run("s") as run:
            run.tool("t", lambda: 1)
            assert store.runs.cleanup("s") == 1
            run.tool("t", lambda: 2)
        assert "s" not in store.runs
        assert store.runs.steps("s") == []

    @pytest.mark.parametrize("name", ["latest", "@", "a\0b", "x" * 512, "ü/..", " ", "\ud800"], ids=ascii)
    def test_a_session_may_have_any_id(self, store: Store, name: str) -> None:
        work(store, name, agent=name)
        assert name in store.runs
        assert store.runs.load(name).session_id == name
        assert len(store.runs.checkpoints(name)) == 3
        assert store.runs.cleanup(name) == 3

    @pytest.mark.parametrize("name", ["", "x" * 513, None, 3], ids=ascii)
    def test_invalid_run_id_is_refused(self, store: Store, name: Any) -> None:
        for use in (store.run, store.runs.load, store.runs.get, store.runs.steps, store.runs.cleanup):
            with pytest.raises(Invalid):
                use(name)
        assert name not in store.runs

    def test_an_agent_takes_its_runs_with_it(self, store: Store) -> None:
        store.agents.save(AgentState("a", "Ada", "a-model"))
        work(store, "s", agent="a")
        work(store, "t", agent="b")
        assert store.agents.delete("a")
        assert "s" not in store.runs
        assert [run.session_id for run in store.runs.list()] == ["t"]
        assert store.runs.checkpoints("a") == []
        assert store.stats().runs == 1

    def test_a_store_with_runs_is_whole_after_a_collection(self, opener: Opener) -> None:
        with opener() as store:
            work(store, "s", 3, agent="a")
            with Killing(store.run("t")) as run:
                for i in run.iterations():
                    run.tool("t", lambda: "x" * 5000)
                    if i == 3:
                        raise Killed
            work(store, "gone", 3)
            store.runs.cleanup("gone")
            store.gc()
            assert store.verify().ok
        with opener() as store:
            assert len(store.runs.steps("s")) == 7
            with store.run("t", takeover=True) as run:
                for _ in run.iterations():
                    assert run.tool("t", lambda: "again") == "x" * 5000
                    break
