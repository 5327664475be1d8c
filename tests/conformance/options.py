"""The options of a store."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import backtrail
from backtrail import Invalid, NotFound, Record, Unavailable
from tests.conformance.base import (
    Clock,
    Suite,
    before_hiding,
    fill,
    head,
    ids,
    messages,
    rows_read,
    states,
    steps,
)
from tests.support.scene import agent

if TYPE_CHECKING:
    from pathlib import Path

    from backtrail import Thread
    from tests.conformance.base import Opener


@dataclass
class Trip:
    """A class of the caller's."""

    city: str
    days: int = 1


class MaxCheckpoints(Suite):
    """`max_checkpoints`."""

    def test_without_a_maximum_everything_is_kept(self, thread: Thread[Any]) -> None:
        thread.save({"l": []})
        for n in range(150):
            thread.append("l", n)
        assert len(thread) == 151

    def test_so_many_are_kept_the_newest(self, opener: Opener) -> None:
        with opener(max_checkpoints=3) as store:
            thread: Thread[Any] = store.thread("t")
            thread.save({"l": []})
            for n in range(9):
                thread.append("l", n)
                assert len(thread) == min(n + 2, 3)
            assert steps(thread.history()) == [8, 9, 10]
            assert states(thread.history()) == [{"l": list(range(n))} for n in (7, 8, 9)]
            with pytest.raises(NotFound):
                thread.load(7)
            store.gc()
            assert states(thread.history()) == [{"l": list(range(n))} for n in (7, 8, 9)]
            assert store.stats().checkpoints == 3

    def test_one_is_enough(self, opener: Opener) -> None:
        with opener(max_checkpoints=1) as store:
            made = fill(store.thread("t"), 4)
            assert list(store.thread("t").history()) == made[3:]
            assert head(store.thread("t")).state == {"n": 4}

    def test_the_maximum_exempts_labelled_and_tagged_ones(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            thread: Thread[Any] = store.thread("t")
            thread.save({"n": 1}, label="x")
            thread.save({"n": 2}, tags=["y"])
            made = fill(thread, 5)
            assert thread.load("x").state == {"n": 1}
            assert thread.load("y").state == {"n": 2}
            assert list(thread.history())[-2:] == made[-2:]
            assert len(thread) == 4

    def test_checkpoint_tagged_during_a_save_stays(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store, opener() as other:
            thread: Thread[Any] = store.thread("t")
            a, b = fill(thread, 2)
            with before_hiding(store, lambda: other.thread("t").tag(a, "good")):
                c = thread.save({"n": 3})
            assert list(thread.history()) == [a, b, c]
            assert thread.save({"n": 4}).step == 4
            assert steps(thread.history()) == [1, 3, 4]

    def test_each_thread_has_its_own_count(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            for name in ("a", "b"):
                fill(store.thread(name), 4)
            assert [len(store.thread(name)) for name in ("a", "b")] == [2, 2]

    def test_maximum_counts_rewound_checkpoints_separately(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            thread: Thread[Any] = store.thread("t")
            a, b = fill(thread, 2)
            thread.rewind(a)
            thread.save({"n": 3})
            assert thread.load(b.id).state == {"n": 2}
            last = thread.save({"n": 4})
            assert head(thread) == last
            assert len(thread) == 2

    def test_undo_reaches_as_far_as_checkpoints_are_kept(self, opener: Opener) -> None:
        with opener(max_checkpoints=3) as store:
            thread: Thread[Any] = store.thread("t")
            *_, c, d, e = fill(thread, 6)
            assert (thread.undo(), thread.undo()) == (d, c)
            with pytest.raises(Invalid):
                thread.undo()
            assert (thread.redo(), thread.redo()) == (d, e)

    def test_a_long_life_stays_small(self, opener: Opener) -> None:
        with opener(max_checkpoints=3) as store:
            thread: Thread[Any] = store.thread("t")
            for n in range(200):
                thread.save({"n": n, "text": f"{n} " * 50})
            rows = store._backend.usage().rows
            assert rows < 120
            assert [state["n"] for state in states(thread.history())] == [197, 198, 199]

    @pytest.mark.parametrize("options", [{"max_checkpoints": 3}, {"ttl": 5}, {"max_checkpoints": 3, "ttl": 5}])
    def test_a_save_reads_few_rows_however_many_are_labelled(self, opener: Opener, options: dict[str, Any]) -> None:
        with opener(**options) as store:
            clock, thread = Clock(store), store.thread("t")
            for n in range(150):
                thread.save({"n": n}, label=f"v{n}")
                clock.advance(1)
            with rows_read(store) as counts:
                for n in range(150, 160):
                    thread.save({"n": n}, label=f"v{n}")
                    clock.advance(1)
                with store.transaction():
                    thread.save({"n": 160}, label="v160")
                thread.save({"n": 161}, label="v161")
            assert sum(counts) <= 120
            assert len(thread) == 162

    def test_new_maximum_hides_older_checkpoints(self, opener: Opener) -> None:
        with opener() as store:
            fill(store.thread("t"), 60)
            for n in range(60):
                store.thread("t").save({"n": n}, label=f"v{n}")
        with opener(max_checkpoints=4) as store:
            store.thread("t").save({"n": 0}, label="new")
            assert steps(store.thread("t").history()) == list(range(61, 122))

    def test_max_checkpoints_counts_existing_rows(self, opener: Opener) -> None:
        with opener(max_checkpoints=4) as store:
            thread: Thread[Any] = store.thread("t")
            *_, e, f, g = fill(thread, 7)
            thread.delete_checkpoint(f)
            made = fill(thread, 1)
            assert list(thread.history())[-3:] == [e, g, *made]
            assert len(thread) == 4
            thread.rewind(e)
            made = fill(thread, 3)
            assert list(thread.history()) == [e, *made]
            assert len(list(thread.history(everything=True))) == 6

    def test_maximum_removes_untagged_checkpoints(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            thread: Thread[Any] = store.thread("t")
            a, b, *_ = [thread.save({"n": n}, tags=["good"]) for n in range(5)]
            thread.untag(a, "good")
            with store.transaction():
                thread.untag(b, "good")
                thread.save({"n": 5})
            assert steps(thread.history()) == [3, 4, 5, 6]

    def test_the_maximum_holds_after_a_transaction_is_dropped(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            thread: Thread[Any] = store.thread("t")
            fill(thread, 3)
            with pytest.raises(RuntimeError), store.transaction():
                thread.save({"n": 4})
                raise RuntimeError
            with store.transaction():
                thread.save({"n": 4})
            thread.save({"n": 5})
            assert steps(thread.history()) == [4, 5]

    @pytest.mark.parametrize("number", [0, -1, True, 1.5, "3"])
    def test_it_is_a_number_above_zero(self, opener: Opener, number: Any) -> None:
        with pytest.raises(Invalid):
            opener(max_checkpoints=number)


class TimeToLive(Suite):
    """`ttl`."""

    def test_expired_checkpoints_are_hidden(self, opener: Opener) -> None:
        with opener(ttl=100) as store:
            clock = Clock(store)
            thread: Thread[Any] = store.thread("t")
            a = thread.save({"n": 1})
            clock.advance(60)
            b = thread.save({"n": 2})
            assert list(thread.history()) == [a, b]
            clock.advance(60)
            assert list(thread.history()) == [b]
            assert len(thread) == 1
            for ref in (a, a.id, 1, "@-", a.id[:10]):
                with pytest.raises(NotFound):
                    thread.load(ref)
            assert store.checkpoint(a.id) is None
            assert [info.checkpoints for info in store.threads()] == [1]

    def test_the_head_stays_however_old_it_is(self, opener: Opener) -> None:
        with opener(ttl=dt.timedelta(seconds=10)) as store:
            clock = Clock(store)
            thread: Thread[Any] = store.thread("t")
            *_, last = fill(thread, 3)
            clock.advance(1_000_000)
            assert list(thread.history()) == [last]
            assert head(thread).state == {"n": 3}
            assert thread.save({"n": 4}).step == 4

    def test_labelled_and_tagged_ones_stay(self, opener: Opener) -> None:
        with opener(ttl=10) as store:
            clock = Clock(store)
            thread: Thread[Any] = store.thread("t")
            a = thread.save({"n": 1}, label="x")
            b = thread.save({"n": 2}, tags=["y"])
            thread.save({"n": 3})
            d = thread.save({"n": 4})
            clock.advance(50)
            assert list(thread.history()) == [a, b, d]
            assert thread.load("x") == a

    def test_collecting_after_the_next_save_takes_it_away(self, opener: Opener) -> None:
        with opener(ttl=10) as store:
            clock = Clock(store)
            thread: Thread[Any] = store.thread("t")
            thread.save(messages(200))
            thread.save({"n": 1})
            clock.advance(50)
            thread.save({"n": 2})
            store.gc()
            assert store.stats().checkpoints == 1
            assert store.stats().chunks == 0
        with opener() as store:
            assert states(store.thread("t").history()) == [{"n": 2}]

    def test_gc_applies_the_ttl_to_idle_threads(self, opener: Opener) -> None:
        with opener(ttl=100) as store:
            clock = Clock(store)
            store.agents.save(agent())
            store.agents.save(agent(system_prompt="held"), replace=True)
            store.agents.checkpoint("a", "point")
            store.agents.save(agent(system_prompt="head"), replace=True)
            thread: Thread[Any] = store.thread("t")
            a = thread.save({"n": 1}, label="x")
            b = thread.save({"n": 2}, tags=["y"])
            thread.save(messages(200))
            d = thread.save({"n": 4})
            thread.save({"n": 5})
            thread.rewind(d)
            clock.advance(60)
            store.gc()
            assert store.stats().checkpoints == 8
            clock.advance(60)
            store.gc()
            assert (store.stats().checkpoints, store.stats().chunks) == (5, 0)
        with opener() as store:
            assert list(store.thread("t").history(everything=True)) == [a, b, d]
            assert [c.state["system_prompt"] for c in store.agents.thread("a").history()] == ["held", "head"]
            assert store.verify().ok

    @pytest.mark.parametrize("ttl", [0, -1, "1", True, float("nan"), float("inf"), dt.timedelta(0)])
    def test_it_is_a_duration(self, opener: Opener, ttl: Any) -> None:
        with pytest.raises(Invalid):
            opener(ttl=ttl)
        with pytest.raises(Invalid):
            opener(auto_interval=ttl)


class AutoInterval(Suite):
    """`auto_interval`: of automatic checkpoints, one for each interval is kept."""

    def test_automatic_checkpoint_replaces_the_last_in_its_interval(self, opener: Opener) -> None:
        with opener(auto_interval=60) as store:
            clock = Clock(store, now=1_700_000_040 * 1_000_000)
            thread: Thread[Any] = store.thread("t")
            for n in range(12):
                thread.save({"n": n}, kind="automatic")
                clock.advance(20)
            kept = [state["n"] for state in states(thread.history())]
            assert len(kept) <= 5
            assert kept[-1] == 11
            assert steps(thread.history())[-1] == 12

    def test_others_are_never_replaced(self, opener: Opener) -> None:
        with opener(auto_interval=3600) as store:
            Clock(store, now=1_700_000_000 * 1_000_000)
            thread: Thread[Any] = store.thread("t")
            a = thread.save({"n": 1})
            b = thread.save({"n": 2}, kind="automatic", label="keep")
            c = thread.save({"n": 3}, kind="automatic")
            d = thread.save({"n": 4}, kind="automatic")
            e = thread.save({"n": 5}, kind="pre_operation")
            assert list(thread.history()) == [a, b, d, e]
            assert c.id not in ids(thread.history())

    def test_without_it_all_automatic_ones_are_kept(self, thread: Thread[Any]) -> None:
        for n in range(5):
            thread.save({"n": n}, kind="automatic")
        assert len(thread) == 5


class Others(Suite):
    """`compression`, `types`, and options that are refused."""

    def test_uncompressed_store_reads_the_same(self, opener: Opener) -> None:
        state = {"messages": [f"{n}: " + "the same words again and again, " * 20 for n in range(300)]}
        with opener() as store:
            small = store.thread("small").save(state)
        with opener(compression=False) as store:
            state["messages"] = [message + " and other words" for message in state["messages"]]
            large = store.thread("large").save(state)
            assert large.stored > 3 * small.stored
            assert len(head(store.thread("small")).state["messages"]) == 300
        with opener() as store:
            assert head(store.thread("large")).state == state
            assert store.thread("large").append("messages", 1).state["messages"][-1] == 1
            assert store.verify().ok

    def test_compression_does_not_show_in_roots(self, opener: Opener) -> None:
        state = {"messages": messages(200)}
        with opener() as store:
            one = store.thread("a").save(state)
        with opener(compression=False) as store:
            other = store.thread("b").save(state)
        assert one.root == other.root

    def test_types_set_the_class_of_loaded_states(self, opener: Opener) -> None:
        with opener() as store:
            store.thread("t").save({"trip": Trip("Lisbon", 3)})
            plain = head(store.thread("t")).state["trip"]
            assert type(plain) is Record
            assert plain == {"city": "Lisbon", "days": 3}
        with opener(types=[Trip]) as store:
            assert head(store.thread("t")).state == {"trip": Trip("Lisbon", 3)}
            assert head(store.thread("t")).get("trip") == Trip("Lisbon", 3)
            assert head(store.thread("t")).get("trip.city") == "Lisbon"

    def test_record_is_saved_again_as_the_same_class(self, opener: Opener) -> None:
        with opener() as store:
            first = store.thread("t").save({"trip": Trip("Lisbon", 3)})
            second = store.thread("t").save(head(store.thread("t")).state)
            assert second.root == first.root
        with opener(types=[Trip]) as store:
            assert head(store.thread("t")).state == {"trip": Trip("Lisbon", 3)}

    @pytest.mark.parametrize(
        "options",
        [
            {"durability": "none"},
            {"durability": None},
            {"schema": "pg_catalog"},
            {"types": [5]},
            {"types": ["Trip"]},
            {"types": [dict]},
        ],
    )
    def test_options_that_are_nonsense_are_invalid(self, opener: Opener, options: dict[str, Any]) -> None:
        with pytest.raises(Invalid):
            opener(**options)

    def test_relaxed_durability_reads_and_writes_the_same(self, opener: Opener) -> None:
        with opener(durability="relaxed") as store:
            fill(store.thread("t"), 3)
        with opener() as store:
            assert steps(store.thread("t").history()) == [1, 2, 3]

    def test_closed_store_is_unavailable_and_closes_twice(self, opener: Opener, tmp_path: Path) -> None:
        store = opener()
        thread: Thread[Any] = store.thread("t")
        thread.save({"n": 1})
        store.close()
        store.close()
        for call in (
            lambda: thread.save({"n": 2}),
            thread.latest,
            lambda: list(store.threads()),
            store.stats,
            store.gc,
            lambda: store.export(tmp_path / "1"),
            lambda: backtrail.copy(store, "memory://"),
        ):
            with pytest.raises(Unavailable) as caught:
                call()
            assert caught.value.code == "unavailable.closed"
        assert not [*tmp_path.glob("1*"), *tmp_path.glob("*.part")]
        with opener() as again:
            assert states(again.thread("t").history()) == [{"n": 1}]
