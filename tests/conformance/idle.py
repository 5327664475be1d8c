"""Idle threads: a policy removes them as a whole, and says why others stay."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conversation, Invalid, Message, Policy
from tests.conformance.base import Clock, Suite, before_hiding, fill
from tests.support.scene import agent, conversation

if TYPE_CHECKING:
    from backtrail import Store
    from tests.conformance.base import Opener

DAY = 86400
IDLE = "idle for more than 30 days"


def _names(store: Store, kind: str) -> set[str]:
    return {info.id for info in store.threads(kind=kind)}


def _run(store: Store, session_id: str) -> None:
    with store.run(session_id, agent="planner") as run:
        for _ in run.iterations():
            run.message(Message("user", "Hello"))
            break


class Idling(Suite):
    """`Policy(idle=...)`."""

    def test_idle_threads_conversations_and_runs_go(self, store: Store) -> None:
        clock = Clock(store)
        store.agents.save(agent("planner"))
        for name in ("old", "new"):
            if name == "new":
                clock.advance(29 * DAY)
            fill(store.thread(name), 3)
            store.conversations.save(conversation(name, "Hello", agent_id="planner"))
            _run(store, name)
        clock.advance(2 * DAY)
        planned = store.prune(Policy(idle=30), dry_run=True)
        assert {(kind, name, why) for kind, name, why in planned.threads} == {
            ("thread", "old", IDLE),
            ("conversation", "old", IDLE),
            ("run", "old", IDLE),
        }
        assert _names(store, "thread") == {"old", "new"}
        report = store.prune(Policy(idle=dt.timedelta(days=30)))
        assert (report.threads, list(report.removed), int(report)) == (
            planned.threads,
            list(planned.removed),
            int(planned),
        )
        assert {why for _, why in report.removed} == {IDLE}
        assert [pair for pair in report.removed_from if pair[0] == "thread"] == [("thread", "old")] * 3
        for kind in ("thread", "conversation"):
            assert _names(store, kind) == {"new"}
        assert [run.session_id for run in store.runs.list()] == ["new"]
        assert store.agents.load("planner").agent_id == "planner"
        assert [len(store.thread(name)) for name in ("old", "new")] == [0, 3]
        assert store.prune(Policy(idle=30)).threads == ()
        store.gc()
        assert store.verify().ok

    def test_any_write_is_activity(self, store: Store) -> None:
        clock = Clock(store)
        made = fill(store.thread("a"), 2)
        clock.advance(40 * DAY)
        store.thread("a").rewind(made[0])
        assert store.prune(Policy(idle=30)).threads == ()
        assert store.prune(Policy(idle=30)).reasons == {"in use": 1}

    def test_idle_policy_keeps_checkpoints_of_active_threads(self, store: Store) -> None:
        clock = Clock(store)
        fill(store.thread("a"), 5)
        clock.advance(40 * DAY)
        store.thread("b").save({})
        fill(store.thread("c"), 5)
        report = store.prune(Policy(idle=30))
        assert ([name for _, name, _ in report.threads], report.untouched) == (["a"], 2)
        assert len(store.thread("c")) == 5

    def test_idle_and_other_rules_are_both_held(self, store: Store) -> None:
        clock = Clock(store)
        fill(store.thread("a"), 5)
        clock.advance(40 * DAY)
        fill(store.thread("c"), 5)
        report = store.prune(Policy(idle=30, keep_last=2))
        assert [name for _, name, _ in report.threads] == ["a"]
        assert len(store.thread("c")) == 2
        assert int(report) == 8
        assert {why for _, why in report.removed} == {IDLE, "not among the newest 2"}

    def test_an_idle_thread_with_a_tag_or_label_stays(self, store: Store) -> None:
        clock = Clock(store)
        store.thread("tagged").save({"n": 1}, tags=["good"])
        store.thread("labelled").save({"n": 1}, label="v1")
        fill(store.thread("tagged"), 1)
        clock.advance(40 * DAY)
        report = store.prune(Policy(idle=30))
        assert {(name, why) for _, name, why in report.kept} == {
            ("tagged", ("tagged good",)),
            ("labelled", ("labelled",)),
        }
        assert (report.threads, report.reasons) == ((), {"tagged": 1, "labelled": 1})
        report = store.prune(Policy(idle=30, keep_tagged=False, keep_labelled=False))
        assert len(report.threads) == 2

    def test_thread_pinned_by_an_agent_checkpoint_stays(self, store: Store) -> None:
        clock = Clock(store)
        store.agents.save(agent("planner"))
        store.conversations.save(conversation("held", "Hello", agent_id="planner"))
        made = store.agents.checkpoint("planner", "before")
        store.conversations.save(conversation("free", "Hello", agent_id="planner"))
        clock.advance(40 * DAY)
        report = store.prune(Policy(idle=30))
        assert [name for _, name, _ in report.threads] == ["free"]
        assert [(name, why) for _, name, why in report.kept] == [("held", ("held by a checkpoint of agent planner",))]
        assert report.reasons["held by a checkpoint of an agent"] == 1
        store.agents.delete_checkpoint(made)
        assert [name for _, name, _ in store.prune(Policy(idle=30)).threads] == ["held"]

    def test_a_run_without_checkpoints_goes(self, store: Store) -> None:
        import backtrail

        clock = Clock(store)
        with store.run("r", strategy=backtrail.Never()) as run:
            for _ in run.iterations():
                break
        clock.advance(40 * DAY)
        assert store.prune(Policy(idle=30), dry_run=True).threads == (("run", "r", IDLE),)
        assert store.prune(Policy(idle=30)).threads == (("run", "r", IDLE),)
        assert "r" not in store.runs

    def test_a_run_that_a_worker_has_stays(self, store: Store) -> None:
        clock = Clock(store)
        with store.run("r", lease=60) as run:
            for _ in run.iterations():
                run.message(Message("user", "Hello"))
                clock.advance(10)
                report = store.prune(Policy(idle=dt.timedelta(seconds=5)))
                assert (report.threads, [why for *_, why in report.kept]) == ((), [("a worker has it",)])
                break
        assert "r" in store.runs

    def test_a_conversation_of_a_leased_run_stays(self, store: Store) -> None:
        clock = Clock(store)
        for name in ("c", "other"):
            store.conversations.save(conversation(name, "Hello", agent_id="planner"))
        with store.run("ended", conversation="other") as run:
            run.message(Message("user", "Hello"))
        with store.run("r", lease=60, conversation="c") as run:
            for _ in run.iterations():
                clock.advance(10)
                report = store.prune(Policy(idle=dt.timedelta(seconds=5)))
                assert {name for _, name, _ in report.threads} == {"other", "ended"}
                assert [why for _, name, why in report.kept if name == "c"] == [("a worker has its run",)]
                break
        assert store.conversations.get("c") is not None
        clock.advance(10)
        assert "c" in {name for _, name, _ in store.prune(Policy(idle=dt.timedelta(seconds=5))).threads}

    def test_notes_aside_go_with_an_idle_thread(self, store: Store) -> None:
        clock = Clock(store)
        store.thread("t").save({"n": 1})
        store.thread("t", aside=True).save({"secret": 1}, label="x")
        clock.advance(40 * DAY)
        assert store.prune(Policy(idle=30)).threads == (("thread", "t", IDLE),)
        assert store.thread("t", aside=True).latest() is None

    def test_notes_aside_count_as_activity(self, store: Store) -> None:
        clock = Clock(store)
        store.thread("t").save({"n": 1})
        clock.advance(40 * DAY)
        store.thread("t", aside=True).save({"n": 2}, label="x")
        assert store.prune(Policy(idle=30)).threads == ()

    def test_a_thread_that_is_written_to_meanwhile_stays(self, opener: Opener) -> None:
        with opener() as store, opener() as other:
            clock = Clock(store)
            fill(store.thread("t"), 2)
            clock.advance(40 * DAY)
            Clock(other).now = clock.now
            with before_hiding(store, lambda: other.thread("t").save({"n": 3})):
                report = store.prune(Policy(idle=30))
            assert (report.threads, report.reasons) == ((), {"in use": 1})
            assert len(store.thread("t")) == 3

    def test_one_thread_is_removed_if_it_is_idle(self, store: Store) -> None:
        clock, thread = Clock(store), store.thread("t")
        fill(thread, 3)
        assert thread.prune(Policy(idle=30)).threads == ()
        clock.advance(40 * DAY)
        assert thread.prune(Policy(idle=30), dry_run=True).threads == (("thread", "t", IDLE),)
        report = thread.prune(Policy(idle=30))
        assert (int(report), report.threads, thread.latest()) == (3, (("thread", "t", IDLE),), None)
        assert thread.save({"n": 1}).step == 1

    def test_an_agent_and_named_threads_narrow_it_down(self, store: Store) -> None:
        clock = Clock(store)
        for name in ("a", "b"):
            store.thread(name, agent=name).save({})
            store.conversations.save(Conversation(name, id=name))
        clock.advance(40 * DAY)
        found = store.prune(Policy(idle=30), agent="a", dry_run=True).threads
        assert sorted(found) == [("conversation", "a", IDLE), ("thread", "a", IDLE)]
        found = store.prune(Policy(idle=30), threads=["b"], kind="thread").threads
        assert found == (("thread", "b", IDLE),)

    @pytest.mark.parametrize("idle", [0, -1, True, "30", dt.timedelta(0), float("nan")])
    def test_idle_is_a_time_above_zero(self, idle: Any) -> None:
        with pytest.raises(Invalid, match="days"):
            Policy(idle=idle)

    def test_pruning_says_why_nothing_goes(self, store: Store) -> None:
        clock = Clock(store)
        fill(store.thread("a"), 1)
        store.thread("b").save({}, label="x")
        store.thread("b").save({}, tags=["y"])
        clock.advance(40 * DAY)
        report = store.prune(Policy(older_than=30 * DAY))
        assert (int(report), report.untouched) == (0, 2)
        assert report.reasons == {"head": 2, "labelled": 1, "tagged": 1}
        assert store.prune(keep_last=5).reasons == {"newest 5": 3}
