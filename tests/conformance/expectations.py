"""Expectations: no update is lost. A save extends the head that its handle last read or wrote, or conflicts."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import NEW, Conflict, Invalid
from tests.conformance.base import Suite, head, ids, states, steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Checkpoint, Store, Thread


class Expecting(Suite):
    """What one caller's saves are held against."""

    def test_stale_save_is_a_conflict_with_both_heads(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        theirs: Thread[Any] = store.thread("t")
        read = mine.save({"n": 1})
        new = theirs.save({"n": 2})
        with pytest.raises(Conflict) as caught:
            mine.save({"n": 3})
        assert (caught.value.expected, caught.value.actual) == (read.id, new.id)
        assert caught.value.code == "conflict.stale"
        assert list(theirs.history()) == [read, new]

    @pytest.mark.parametrize(
        "write",
        [
            lambda thread: thread.save({"n": 3}),
            lambda thread: thread.set("n", 3),
            lambda thread: thread.delete_at("n"),
        ],
    )
    @pytest.mark.parametrize("read", ["latest", "load", "load by id", "load by step"])
    def test_any_read_sets_the_expectation(
        self, store: Store, read: str, write: Callable[[Thread[Any]], object]
    ) -> None:
        made = store.thread("t").save({"n": 1})
        mine: Thread[Any] = store.thread("t")
        if read == "latest":
            mine.latest()
        elif read == "load":
            mine.load()
        else:
            mine.load(made.id if read == "load by id" else 1)
        store.thread("t").save({"n": 2})
        with pytest.raises(Conflict):
            write(mine)
        assert head(store.thread("t")).state == {"n": 2}

    def test_after_a_conflict_reading_again_is_enough(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        mine.save({"n": 1})
        store.thread("t").save({"n": 2})
        with pytest.raises(Conflict):
            mine.save({"n": 3})
        with pytest.raises(Conflict):
            mine.save({"n": 3})
        mine.latest()
        assert mine.save({"n": 3}).step == 3

    def test_handle_that_reads_the_new_head_can_save(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        theirs: Thread[Any] = store.thread("t")
        mine.save({"n": 0})
        for n in range(1, 6):
            theirs.latest()
            theirs.save({"n": -n})
            assert mine.load().state == {"n": -n}
            mine.save({"n": n})
        assert len(mine) == 11

    def test_change_by_path_uses_the_current_head(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        mine.save({"n": 0})
        store.thread("t").save({"messages": [], "d": {"x": 1}})
        assert mine.append("messages", "here").state["messages"] == ["here"]
        mine.latest()
        store.thread("t").append("messages", "there")
        mine.latest()
        assert mine.set("d.y", 2).state == {"messages": ["here", "there"], "d": {"x": 1, "y": 2}}
        store.thread("t").set("d", [1])
        mine.latest()
        assert mine.delete_at("d[0]").state["d"] == []

    def test_a_first_write_expects_nothing(self, store: Store) -> None:
        first = store.thread("t").save({"n": 1})
        second = store.thread("t").save({"n": 2})
        assert second.parent_id == first.id

    def test_reading_a_missing_thread_sets_an_expectation(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        assert mine.latest() is None
        store.thread("t").save({"n": 1})
        with pytest.raises(Conflict):
            mine.save({"n": 2})
        assert states(mine.history()) == [{"n": 1}]

    def test_expecting_a_checkpoint_or_its_id(self, store: Store) -> None:
        a = store.thread("t").save({"n": 1})
        b = store.thread("t").save({"n": 2}, expect=a)
        c = store.thread("t").save({"n": 3}, expect=b.id)
        for stale in (a, a.id, b, b.id):
            with pytest.raises(Conflict) as caught:
                store.thread("t").save({"n": 4}, expect=stale)
            assert caught.value.actual == c.id
        assert len(store.thread("t")) == 3

    def test_explicit_expectation_overrides_the_last_read(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        mine.save({"n": 1})
        other = store.thread("t").save({"n": 2})
        assert mine.save({"n": 3}, expect=other).step == 3
        assert mine.save({"n": 4}).step == 4

    def test_expecting_that_it_is_new(self, store: Store) -> None:
        first = store.thread("t").save({"n": 1}, expect=NEW)
        with pytest.raises(Conflict) as caught:
            store.thread("t").save({"n": 2}, expect=NEW)
        assert caught.value.actual == first.id
        store.thread("t").delete()
        assert store.thread("t").save({"n": 3}, expect=NEW).step == 1

    def test_expecting_a_head_of_a_deleted_thread_conflicts(self, store: Store) -> None:
        gone = store.thread("t").save({"n": 1})
        store.thread("t").delete()
        with pytest.raises(Conflict):
            store.thread("t").save({"n": 2}, expect=gone)
        assert store.thread("t").latest() is None

    @pytest.mark.parametrize("expect", ["@nonsense", 5, "", True, b"x"])
    def test_expecting_nonsense_is_invalid(self, store: Store, expect: Any) -> None:
        store.thread("t").save({"l": []})
        with pytest.raises(Invalid):
            store.thread("t").save({"n": 2}, expect=expect)
        with pytest.raises(Invalid):
            store.thread("t").append("l", 2, expect=expect)
        assert len(store.thread("t")) == 1

    def test_expecting_a_checkpoint_of_another_thread_writes_nothing(self, store: Store) -> None:
        other = store.thread("other").save({"n": 1})
        store.thread("t").save({"n": 1})
        with pytest.raises((Invalid, Conflict)):
            store.thread("t").save({"n": 2}, expect=other)
        assert len(store.thread("t")) == 1

    def test_changes_by_path_can_expect_too(self, store: Store) -> None:
        a = store.thread("t").save({"l": [], "n": 1})
        b = store.thread("t").append("l", 1, expect=a)
        writes: tuple[Callable[[], object], ...] = (
            lambda: store.thread("t").append("l", 2, expect=a),
            lambda: store.thread("t").set("n", 2, expect=a.id),
            lambda: store.thread("t").delete_at("n", expect=a),
        )
        for write in writes:
            with pytest.raises(Conflict):
                write()
        assert head(store.thread("t")) == b
        assert store.thread("t").set("n", 2, expect=b).step == 3

    def test_step_conflicts_with_a_concurrent_save(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        mine.save({"n": 1})
        with pytest.raises(Conflict), mine.step() as state:
            state["n"] = 2
            store.thread("t").save({"n": 3})
        assert states(store.thread("t").history()) == [{"n": 1}, {"n": 3}]

    def test_step_starts_from_the_current_head(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        mine.save({"n": 1})
        store.thread("t").save({"n": 5})
        with mine.step() as state:
            state["n"] += 1
        assert head(mine).state == {"n": 6}

    def test_deleting_a_checkpoint_is_not_reading_the_head(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        mine.save({"n": 1})
        mine.save({"n": 2})
        store.thread("t").save({"n": "unseen"})
        mine.delete_checkpoint(1)
        with pytest.raises(Conflict):
            mine.save({"n": 3})
        store.thread("t").save({"n": "also unseen"})
        mine.delete_checkpoint("@")
        with pytest.raises(Conflict):
            mine.save({"n": 3})
        assert head(store.thread("t")).state == {"n": "unseen"}

    def test_another_agents_thread_is_a_conflict(self, store: Store) -> None:
        store.thread("t", agent="a").save({"n": 1})
        with pytest.raises(Conflict):
            store.thread("t", agent="b").save({"n": 2})
        assert store.thread("t").save({"n": 3}).step == 2
        assert store.thread("t", agent="a").save({"n": 4}).step == 3


class Appending(Suite):
    """Appends never conflict: concurrent appends are put in order."""

    def test_appends_of_two_handles_come_one_after_the_other(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        theirs: Thread[Any] = store.thread("t")
        mine.save({"l": []})
        for n in range(5):
            mine.append("l", n)
            theirs.append("l", -n)
        assert head(mine).state == {"l": [0, 0, 1, -1, 2, -2, 3, -3, 4, -4]}
        assert steps(mine.history()) == list(range(1, 12))

    def test_save_after_a_blind_append_still_conflicts(self, store: Store) -> None:
        mine: Thread[Any] = store.thread("t")
        read = mine.save({"l": [], "n": 0})
        store.thread("t").set("n", 1)
        mine.append("l", "mine")
        mine.append("l", "mine too")
        with pytest.raises(Conflict) as caught:
            mine.save({"l": ["mine", "mine too"], "n": 0})
        assert caught.value.expected == read.id
        assert head(store.thread("t")).state == {"l": ["mine", "mine too"], "n": 1}
        mine.latest()
        assert mine.save({"l": [], "n": 1}).step == 5

    def test_after_its_own_appends_a_handle_saves_without_reading(self, thread: Thread[Any]) -> None:
        thread.save({"l": []})
        thread.append("l", 1)
        assert thread.save({"l": [2]}).step == 3

    def test_appends_from_many_threads_all_arrive(self, store: Store) -> None:
        shared: Thread[Any] = store.thread("t")
        shared.save({"l": []})

        def work(who: int) -> list[str]:
            own: Thread[Any] = shared if who % 2 else store.thread("t")
            return [own.append("l", (who, n)).id for n in range(12)]

        with ThreadPoolExecutor(4) as pool:
            made = [which for listed in pool.map(work, range(4)) for which in listed]
        items = head(shared).state["l"]
        assert sorted(items) == [(who, n) for who in range(4) for n in range(12)]
        for who in range(4):
            assert [n for whose, n in items if whose == who] == list(range(12))
        assert steps(shared.history()) == list(range(1, 50))
        assert sorted(made) == sorted(ids(shared.history())[1:])

    def test_updates_from_many_threads_all_count(self, store: Store) -> None:
        store.thread("t").save({"n": 0})

        def add(state: Any) -> Any:
            return {"n": state["n"] + 1}

        def work(_: int) -> None:
            for _ in range(8):
                store.thread("t").update(add, retries=1000)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert head(store.thread("t")).state == {"n": 32}
        assert [state["n"] for state in states(store.thread("t").history())] == list(range(33))

    def test_update_retries_after_a_concurrent_save(self, store: Store) -> None:
        store.thread("t").save({"n": 1})
        seen: list[int] = []

        def change(state: Any) -> Any:
            seen.append(state["n"])
            if len(seen) < 3:
                store.thread("t").save({"n": 10 * len(seen)})
            return {"n": state["n"] + 1}

        assert store.thread("t").update(change).state == {"n": 21}
        assert seen == [1, 10, 20]

    def test_update_gives_up_after_its_retries(self, store: Store) -> None:
        store.thread("t").save({"n": 1})
        calls: list[int] = []

        def change(state: Any) -> Any:
            calls.append(1)
            store.thread("t").save({"n": 0})
            return state

        with pytest.raises(Conflict):
            store.thread("t").update(change, retries=2)
        assert len(calls) == 3

    def test_update_begins_a_thread_only_once(self, store: Store) -> None:
        def change(state: Any) -> Any:
            if state is None:
                store.thread("t").save({"n": 1})
                return {"n": "lost"}
            return {"n": state["n"] + 1}

        assert store.thread("t").update(change).state == {"n": 2}
        assert states(store.thread("t").history()) == [{"n": 1}, {"n": 2}]


class Lending(Suite):
    """A shared handle does not lend what one thread or task has read to another's write."""

    def test_reads_of_one_python_thread_do_not_help_another(self, store: Store) -> None:
        shared: Thread[Any] = store.thread("t")
        shared.save({"n": 1})
        read, moved = threading.Event(), threading.Event()
        outcome: list[object] = []

        def work() -> None:
            shared.latest()
            read.set()
            moved.wait(30)
            try:
                outcome.append(shared.save({"n": "from an old state"}))
            except Conflict as error:
                outcome.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        assert read.wait(30)
        store.thread("t").save({"n": 2})
        assert head(shared).state == {"n": 2}
        moved.set()
        worker.join(30)
        assert [type(found) for found in outcome] == [Conflict]
        assert shared.save({"n": 3}).step == 3
        assert states(shared.history()) == [{"n": 1}, {"n": 2}, {"n": 3}]

    def test_a_save_in_one_thread_makes_anothers_expectation_stale(self, store: Store) -> None:
        shared: Thread[Any] = store.thread("t")
        shared.save({"n": 1})
        worker = threading.Thread(target=lambda: [shared.latest(), shared.save({"n": 2})])
        worker.start()
        worker.join(30)
        with pytest.raises(Conflict):
            shared.save({"n": "from an old state"})
        assert states(shared.history()) == [{"n": 1}, {"n": 2}]

    def test_unread_handle_may_write_once(self, store: Store) -> None:
        shared: Thread[Any] = store.thread("t")
        shared.save({"n": 1})
        store.thread("t").save({"n": 2})
        made: list[Checkpoint[Any]] = []
        worker = threading.Thread(target=lambda: made.append(shared.save({"n": 3})))
        worker.start()
        worker.join(30)
        assert [checkpoint.step for checkpoint in made] == [3]

    def test_tasks_have_separate_expectations(self, store: Store) -> None:
        shared: Thread[Any] = store.thread("t")
        shared.save({"n": 1})

        async def slow(read: asyncio.Event, moved: asyncio.Event) -> object:
            shared.latest()
            read.set()
            await moved.wait()
            try:
                return shared.save({"n": "from an old state"})
            except Conflict as error:
                return error

        async def quick(read: asyncio.Event, moved: asyncio.Event) -> object:
            await read.wait()
            shared.latest()
            made = shared.save({"n": 2})
            moved.set()
            return made

        async def both() -> list[object]:
            events = asyncio.Event(), asyncio.Event()
            return list(await asyncio.gather(slow(*events), quick(*events)))

        outcome = asyncio.run(both())
        assert isinstance(outcome[0], Conflict)
        assert states(shared.history()) == [{"n": 1}, {"n": 2}]

    def test_exactly_one_concurrent_start_of_a_thread_wins(self, store: Store) -> None:
        barrier = threading.Barrier(4)

        def work(who: int) -> bool:
            barrier.wait(30)
            try:
                store.thread("t").save({"who": who}, expect=NEW)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(work, range(4)))
        assert won.count(True) == 1
        assert states(store.thread("t").history()) == [{"who": won.index(True)}]
