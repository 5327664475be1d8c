"""Time filters of listings, histories and searches, and the activity of a whole store."""

from __future__ import annotations

import datetime as dt
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import AgentState, Conversation, Invalid, Message
from backtrail.models import when
from tests.conformance.base import Clock, Suite

if TYPE_CHECKING:
    from backtrail import Store


def moment(clock: Clock, seconds: float = 0) -> dt.datetime:
    """Return the time of a clock, or some seconds later."""
    return when(clock.now) + dt.timedelta(seconds=seconds)


class Activity(Suite):
    """`since` is included, `until` is not. Times are those of the writers' clocks."""

    def test_threads_are_listed_by_the_time_of_their_last_write(self, store: Store) -> None:
        clock = Clock(store)
        start = moment(clock)
        for name in ("a", "b", "c", "d"):
            store.thread(name).save({})
            clock.advance(10)

        def listed(**filters: Any) -> list[str]:
            return [info.id for info in store.threads(**filters)]

        assert listed(since=start + dt.timedelta(seconds=10)) == ["d", "c", "b"]
        assert listed(until=start + dt.timedelta(seconds=10)) == ["a"]
        assert listed(since=start + dt.timedelta(seconds=5), until=start + dt.timedelta(seconds=30)) == ["c", "b"]
        assert listed(since=start + dt.timedelta(seconds=5), until=start + dt.timedelta(seconds=30), limit=1) == ["c"]
        assert listed(until=start + dt.timedelta(seconds=30), after="c") == ["b", "a"]
        assert listed(since=moment(clock)) == []

    def test_history_is_filtered_by_time(self, store: Store) -> None:
        clock, thread = Clock(store), store.thread("t")
        start = moment(clock)
        for n in range(5):
            thread.save({"n": n})
            clock.advance(10)
        since, until = start + dt.timedelta(seconds=10), start + dt.timedelta(seconds=30)
        assert [each.step for each in thread.history(since=since, until=until)] == [2, 3]
        assert [each.step for each in thread.history(since=since, newest_first=True, limit=2)] == [5, 4]

    def test_runs_are_filtered_by_time(self, store: Store) -> None:
        clock = Clock(store)
        start = moment(clock)
        for name in ("a", "b", "c"):
            with store.run(name) as run:
                run.tool("do", str.upper, "x")
            clock.advance(10)
        since, until = start + dt.timedelta(seconds=10), start + dt.timedelta(seconds=20)
        assert [run.session_id for run in store.runs.list(since=since)] == ["c", "b"]
        assert [run.session_id for run in store.runs.list(since=since, until=until)] == ["b"]
        assert [run.session_id for run in store.runs.list(status="completed", until=until)] == ["b", "a"]

    def test_agents_and_conversations_are_listed_by_the_time_of_their_last_write(self, store: Store) -> None:
        clock = Clock(store)
        start = moment(clock)
        for name in ("a", "b", "c"):
            store.agents.save(AgentState(name, name, "model"))
            store.conversations.save(Conversation("a", id=name))
            clock.advance(10)
        store.conversations.append("a", Message.user("Again"))
        since, until = start + dt.timedelta(seconds=10), start + dt.timedelta(seconds=20)

        def agents(**filters: Any) -> list[str]:
            return [info.agent_id for info in store.agents.list(**filters)]

        def conversations(**filters: Any) -> list[str]:
            return [info.id for info in store.conversations.list("a", **filters)]

        assert (agents(since=since), conversations(since=since)) == (["c", "b"], ["a", "c", "b"])
        assert (agents(until=until), conversations(until=until)) == (["b", "a"], ["b"])
        assert agents(since=since, until=until) == conversations(since=since, until=until) == ["b"]
        (first,) = store.agents.list(since=since, limit=1)
        assert agents(since=since, after=first.cursor) == ["b"]
        first = store.conversations.list("a", since=since, limit=1)[0]
        assert conversations(since=since, until=moment(clock, 1), after=first.cursor) == ["c", "b"]

    @pytest.mark.parametrize("order", ["newest", "score"])
    def test_search_is_filtered_by_the_time_of_messages(self, store: Store, order: str) -> None:
        start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        store.conversations.save(Conversation("a", id="c"))
        for n in range(5):
            message = Message.user(f"fox {n}", timestamp=start + dt.timedelta(seconds=10 * n))
            store.conversations.append("c", message)
        since, until = start + dt.timedelta(seconds=10), start + dt.timedelta(seconds=30)
        hits = store.search("fox", since=since, until=until, order=order)
        assert [hit.snippet for hit in hits] == ["fox 2", "fox 1"]
        (first,) = store.search("fox", since=since, until=until, order=order, limit=1)
        rest = store.search("fox", since=since, until=until, order=order, after=first)
        assert [hit.snippet for hit in rest] == ["fox 1"]

    def test_activity_has_checkpoints_of_every_kind_newest_first(self, store: Store) -> None:
        clock = Clock(store)
        store.thread("t", agent="a").save({})
        clock.advance(1)
        store.agents.save(AgentState("a", "A", "model"))
        clock.advance(1)
        store.conversations.save(Conversation("b", id="c"))
        clock.advance(1)
        with store.run("r", agent="a") as run:
            run.checkpoint()
        clock.advance(1)
        store.thread("t").save({"n": 1}, label="last")
        seen = [(each.thread_id, each.step) for each in store.activity()]
        assert seen == [("t", 2), ("r", 2), ("r", 1), ("c", 1), ("a", 1), ("t", 1)]
        assert [each.thread_id for each in store.activity(agent="b")] == ["c"]
        assert [each.thread_id for each in store.activity(kind="agent")] == ["a"]
        assert [each.label for each in store.activity(limit=1)] == ["last"]

    def test_activity_keeps_rewound_checkpoints_and_drops_deleted_ones(self, store: Store) -> None:
        clock, thread = Clock(store), store.thread("t")
        for n in range(3):
            thread.save({"n": n})
            clock.advance(1)
        thread.rewind("@-")
        assert [each.step for each in store.activity()] == [3, 2, 1]
        thread.delete_checkpoint(thread.load(1))
        assert [each.step for each in store.activity()] == [3, 2]
        thread.delete()
        assert list(store.activity()) == []

    def test_activity_equals_a_sort_of_all_checkpoints(self, store: Store) -> None:
        clock, rng = Clock(store), random.Random(4)
        start = moment(clock)
        for _ in range(120):
            store.thread(f"t{rng.randrange(12)}").save({"n": rng.random()})
            clock.advance(rng.choice((0, 0, 1, 5)))
        since, until = start + (moment(clock) - start) / 4, start + (moment(clock) - start) * 3 / 4
        everything = [each for info in store.threads() for each in info_history(store, info.id)]
        wanted = sorted(everything, key=lambda each: each.created_at, reverse=True)
        given = list(store.activity())
        assert [each.created_at for each in given] == [each.created_at for each in wanted]
        assert {each.id for each in given} == {each.id for each in wanted}
        for name in {each.thread_id for each in given}:
            steps = [each.step for each in given if each.thread_id == name]
            assert all(later > earlier for later, earlier in pairwise(steps))
        assert {each.id for each in store.activity(since=since, until=until)} == {
            each.id for each in wanted if since <= each.created_at < until
        }
        assert [each.id for each in store.activity(limit=7)] == [each.id for each in given[:7]]

    @pytest.mark.parametrize("wrong", ["yesterday", dt.datetime(2026, 1, 1), 5], ids=["text", "no zone", "number"])
    def test_times_without_a_zone_are_refused(self, store: Store, wrong: Any) -> None:
        thread = store.thread("t")
        calls = (
            store.threads,
            store.activity,
            thread.history,
            store.runs.list,
            store.agents.list,
            store.conversations.list,
            lambda **more: store.search("x", **more),
        )
        for call in calls:
            for name in ("since", "until"):
                with pytest.raises(Invalid) as caught:
                    call(**{name: wrong})
                assert caught.value.code == "invalid.argument"


def info_history(store: Store, name: str) -> list[Any]:
    return list(store.thread(name).history(everything=True))
