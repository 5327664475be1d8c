"""Watches: each checkpoint of any writer once, in order. The timeouts here are longer than any wait."""

from __future__ import annotations

import datetime as dt
import threading
import time
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conflict, Invalid, Unavailable
from tests.conformance.base import SECOND, Clock, Suite, chunks_read, fill, head, ids, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail import Checkpoint, Store, Thread
    from tests.conformance.base import Opener

LONG = 60
"""A timeout in seconds that no test reaches."""


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Call a function in another thread during the block."""
    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        worker.join(LONG)
    assert not worker.is_alive()


def news(watch: Iterator[Checkpoint[Any]], count: int) -> list[Checkpoint[Any]]:
    """Return this many items; fail if there are fewer."""
    found = list(islice(watch, count))
    assert len(found) == count
    return found


class Watching(Suite):
    """`thread.watch()`."""

    def test_watch_yields_saves_after_the_call(self, thread: Thread[Any]) -> None:
        fill(thread, 2)
        watch = thread.watch(timeout=0)
        made = fill(thread, 3)
        assert list(watch) == made

    def test_watch_waits_for_a_save_of_another_thread(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 1)
        watch = thread.watch(timeout=LONG)

        def write() -> None:
            other: Thread[Any] = store.thread("t")
            for n in range(50):
                other.append("l", n) if n else other.save({"l": [0]})

        with meanwhile(write):
            assert [c.state["l"][-1] for c in news(watch, 50)] == list(range(50))

    def test_watch_yields_saves_of_another_handle(self, opener: Opener, thread: Thread[Any]) -> None:
        fill(thread, 1)
        watch = thread.watch(timeout=LONG)
        there = threading.Event()

        def write() -> None:
            again = opener()  # not closed before all was seen: a store in memory is closed for everybody
            fill(again.thread("t"), 20)
            there.wait(LONG)
            again.close()

        with meanwhile(write):
            assert states(news(watch, 20)) == [{"n": n} for n in range(1, 21)]
            there.set()

    def test_a_thread_that_does_not_exist_yet(self, store: Store, thread: Thread[Any]) -> None:
        watch = thread.watch(timeout=LONG)
        with meanwhile(lambda: (store.thread("other").save(0), store.thread("t").save(1))):
            assert states(news(watch, 1)) == [1]

    def test_a_fork_is_the_first_of_its_thread(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 2)
        watch = store.thread("forked").watch(timeout=LONG)
        with meanwhile(lambda: thread.fork("forked", at=1)):
            (first,) = news(watch, 1)
        assert (first.thread_id, first.state, first.parent_id) == ("forked", {"n": 1}, thread.load(1).id)

    def test_watch_yields_the_head_after_a_move(self, thread: Thread[Any]) -> None:
        made = fill(thread, 3)
        watch = thread.watch(timeout=0)
        thread.rewind(1)
        thread.undo()
        thread.redo()
        last = thread.save({"n": 9})
        thread.delete_checkpoint(last)
        expected = [made[0], made[2], made[0], made[0]]  # the save itself was deleted before the watch read it
        assert list(watch) == expected

    def test_watch_skips_deleted_checkpoints(self, thread: Thread[Any]) -> None:
        watch = thread.watch(timeout=0)
        made = fill(thread, 4)
        assert next(watch) == made[0]
        thread.delete_checkpoint(made[2])
        assert list(watch) == [made[1], made[3]]

    def test_watch_skips_removed_checkpoints(self, store: Store, thread: Thread[Any]) -> None:
        watch = thread.watch(timeout=0)
        made = fill(thread, 300)
        assert next(watch) == made[0]
        thread.prune(keep_last=2)
        store.gc()
        assert list(watch) == made[-2:]

    def test_watch_skips_expired_checkpoints(self, opener: Opener) -> None:
        with opener(ttl=10) as store:
            clock = Clock(store)
            thread: Thread[Any] = store.thread("t")
            watch = thread.watch(timeout=0)
            fill(thread, 2)
            clock.now += 11 * SECOND
            made = fill(thread, 2)
            assert list(watch) == made

    def test_watch_continues_when_a_deleted_thread_begins_again(self, thread: Thread[Any]) -> None:
        fill(thread, 2)
        watch = thread.watch(timeout=0)
        fill(thread, 2)
        thread.delete()
        made = fill(thread, 2)
        assert list(watch) == made

    def test_after_begins_behind_a_checkpoint(self, store: Store, thread: Thread[Any]) -> None:
        made = fill(thread, 3)
        thread.save({"n": 4}, label="four", tags=["even"])
        made += fill(thread, 2)
        for after in (made[2], made[2].id, made[2].id[:12], 3):
            assert list(thread.watch(after=after, timeout=0)) == [thread.load("four"), *made[3:]]
        for after in ("four", "even", "@~2"):
            assert list(thread.watch(after=after, timeout=0)) == made[3:]
        assert list(thread.watch(after="@", timeout=0)) == []
        assert ids(thread.watch(after=made[0], timeout=0)) == [c.id for c in thread.history()][1:]
        thread.prune(keep_last=1, keep_tagged=False)
        store.gc()
        assert list(thread.watch(after=made[2].id, timeout=0)) == made[-1:]  # the id is enough
        assert list(thread.watch(after=made[2], timeout=0)) == made[-1:]

    def test_watch_after_an_unknown_checkpoint_is_invalid(self, store: Store, thread: Thread[Any]) -> None:
        with pytest.raises(RuntimeError), store.transaction():
            dropped = thread.save(0)
            raise RuntimeError
        with pytest.raises(Invalid):
            thread.watch(after=dropped)
        fill(thread, 2)
        other = store.thread("other").save(1)
        beyond = store.thread("t").watch(timeout=0)
        for after in ("nothing", 7, other, other.id, dropped, "", b"x", 1.5, "0" * 24):
            with pytest.raises(Invalid):
                thread.watch(after=after)
        with pytest.raises(Invalid):
            store.thread("none").watch(after="@")
        assert list(beyond) == []

    @pytest.mark.parametrize("timeout", [-1, -0.5, float("nan"), float("inf"), "1", True, dt.timedelta(-1), [1]])
    def test_a_timeout_that_is_none_is_invalid(self, store: Store, thread: Thread[Any], timeout: Any) -> None:
        with pytest.raises(Invalid):
            thread.watch(timeout=timeout)
        with pytest.raises(Invalid):
            store.watch(timeout=timeout)

    @pytest.mark.parametrize("timeout", [0, 0.01, dt.timedelta(milliseconds=10)])
    def test_watch_ends_after_its_timeout(self, thread: Thread[Any], timeout: Any) -> None:
        watch = thread.watch(timeout=timeout)
        (made,) = fill(thread, 1)
        assert list(watch) == [made]
        fill(thread, 1)
        assert list(watch) == []  # once it has ended, it has ended

    def test_states_are_not_loaded_until_they_are_read(self, store: Store, thread: Thread[Any]) -> None:
        watch = store.thread("t").watch(timeout=LONG)
        thread.save({"text": "x" * 100_000})
        store._engine.session.reader.cache = store._engine.session.reader.uncached().cache
        with chunks_read(store) as read:
            (found,) = news(watch, 1)
            assert not read
            assert len(found.get("text")) == 100_000

    def test_watch_does_not_change_expectations(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"n": 0})
        watch = thread.watch(timeout=0)
        theirs = store.thread("t").save({"n": 1})
        assert [c.state for c in watch] == [{"n": 1}]
        with pytest.raises(Conflict) as caught:
            thread.save({"n": 2})
        assert caught.value.actual == theirs.id
        fresh: Thread[Any] = store.thread("t")
        list(fresh.watch(after=1, timeout=0))
        thread.load()
        thread.save({"n": 3})
        fresh.save({"n": 4})  # a first write expects nothing, whatever was watched
        assert head(thread).state == {"n": 4}

    def test_not_in_a_transaction(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 1)
        watch = thread.watch(timeout=LONG)
        with store.transaction():
            made = thread.save({"n": 2})
            for call in (thread.watch, store.watch, lambda: next(watch)):
                with pytest.raises(Unavailable) as caught:
                    call()
                assert caught.value.code == "unavailable.transaction"
        assert ids(news(watch, 1)) == [made.id]

    def test_watch_ignores_dropped_transactions(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 1)
        one, every = thread.watch(timeout=0), store.watch(timeout=0)
        with pytest.raises(RuntimeError), store.transaction():
            thread.save({"n": "dropped"})
            raise RuntimeError
        with pytest.raises(RuntimeError), store._engine.group():
            thread.save({"n": "dropped"})
            store.thread("dropped").save(0)
            raise RuntimeError
        with store.transaction():
            thread.save({"n": 2})
            store.thread("other").save(1)
        with store._engine.group():
            thread.save({"n": 3})
        assert states(one) == [{"n": 2}, {"n": 3}]
        assert sorted(map(str, states(every))) == ["1", "{'n': 2}", "{'n': 3}"]

    def test_closing_the_store_ends_watches(self, opener: Opener) -> None:
        store = opener()
        found: SimpleQueue[Any] = SimpleQueue()
        waiting = [store.thread("t").watch(), store.watch(), store.thread("none").watch(timeout=LONG)]

        def read(watch: Iterator[Checkpoint[Any]]) -> None:
            for checkpoint in watch:
                found.put(checkpoint.step)
            found.put("ended")

        workers = [threading.Thread(target=read, args=(watch,)) for watch in waiting]
        for worker in workers:
            worker.start()
        fill(store.thread("t"), 1)
        assert [found.get(timeout=LONG) for _ in range(2)] == [1, 1]
        store.close()
        assert [found.get(timeout=LONG) for _ in range(3)] == ["ended"] * 3
        for worker in workers:
            worker.join(LONG)
        with pytest.raises(Unavailable):
            store.watch()
        with pytest.raises(StopIteration):
            next(waiting[0])

    @pytest.mark.parametrize("all_threads", [False, True])
    def test_closing_the_watch_ends_the_wait_of_another_thread(
        self,
        store: Store,
        thread: Thread[Any],
        all_threads: bool,
    ) -> None:
        watch = store.watch() if all_threads else thread.watch()
        waiter = threading.Thread(target=lambda: list(watch))
        waiter.start()
        time.sleep(0.05)  # most likely it waits by now; if not, it need not
        watch.close()
        waiter.join(LONG)
        assert not waiter.is_alive()

    def test_closing_the_watch_ends_it(self, store: Store, thread: Thread[Any]) -> None:
        watch = thread.watch()
        fill(thread, 2)
        next(watch)
        watch.close()
        watch.close()
        assert list(watch) == []
        with store.watch() as every:
            fill(thread, 1)
            assert next(every).step == 3
        assert list(every) == []

    def test_ended_watch_leaves_no_thread(self, store: Store, thread: Thread[Any]) -> None:
        before = set(watching())
        fill(thread, 1)
        for found in thread.watch(after=1, timeout=0):
            assert found is None
        watch = store.watch()
        threads = set(watching()) - before
        assert len(threads) == 1
        thread.save(2)
        for _ in watch:
            break
        del watch
        for each in threads:
            each.join(LONG)
        assert not set(watching()) - before

    def test_when_all_have_left_another_may_come(self, store: Store, thread: Thread[Any]) -> None:
        for n in range(3):
            before = set(watching())
            for watch in (thread.watch(timeout=LONG), store.watch(timeout=LONG)):
                with watch, meanwhile(lambda n=n: store.thread("t").save(n)):  # type: ignore[misc]
                    assert states(news(watch, 1)) == [n]
            for each in set(watching()) - before:
                each.join(LONG)


def watching() -> list[threading.Thread]:
    """Return the running threads of hubs."""
    return [each for each in threading.enumerate() if each.name == "backtrail watch"]


class WatchingAll(Suite):
    """`store.watch()`."""

    def test_all_threads_new_ones_included_each_in_its_order(self, store: Store) -> None:
        fill(store.thread("old"), 3)
        watch = store.watch(timeout=LONG)

        def write(name: str) -> None:
            thread: Thread[Any] = store.thread(name)
            for n in range(30):
                thread.save({"n": n})

        with meanwhile(lambda: write("new")), meanwhile(lambda: write("old")), meanwhile(lambda: write("more")):
            found = news(watch, 90)
        for name in ("old", "new", "more"):
            assert [c.state["n"] for c in found if c.thread_id == name] == list(range(30))

    def test_store_watch_yields_saves_of_another_handle(self, opener: Opener, store: Store) -> None:
        fill(store.thread("old"), 3)
        watch = store.watch(timeout=LONG)
        there = threading.Event()

        def write() -> None:
            again = opener()
            for n in range(20):
                again.thread(f"new {n}").save(n)
                again.thread("old").save(n)
            there.wait(LONG)
            again.close()

        with meanwhile(write):
            found = [(c.thread_id, c.state) for c in news(watch, 40)]
            there.set()
        assert [state for name, state in found if name == "old"] == list(range(20))
        assert {name: state for name, state in found if name != "old"} == {f"new {n}": n for n in range(20)}

    def test_each_begins_with_its_call(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        fill(thread, 1)
        watches = []
        for n in range(4):
            watches.append(store.watch(timeout=0))
            thread.save({"n": n})
            store.thread(f"new {n}").save(n)
        for at, watch in enumerate(watches):
            found = list(watch)
            assert [c.state["n"] for c in found if c.thread_id == "t"] == list(range(at, 4))
            assert [c.state for c in found if c.thread_id != "t"] == list(range(at, 4))

    def test_filters(self, store: Store) -> None:
        by_agent = store.watch(agent="planner", timeout=0)
        by_prefix = store.watch(prefix="a", timeout=0)
        both = store.watch(prefix="b", agent="planner", timeout=0)
        by_kind = store.watch(kind="run", timeout=0)
        plain = store.watch(kind="thread", timeout=0)
        for name, agent in (("a1", "planner"), ("a2", None), ("b1", "planner"), ("A", "other"), ("b2", None)):
            store.thread(name, agent=agent).save(name)
        assert states(by_agent) == ["a1", "b1"]
        assert states(by_prefix) == ["a1", "a2"]
        assert states(both) == ["b1"]
        assert states(by_kind) == []
        assert states(plain) == ["a1", "a2", "b1", "A", "b2"]
        for wrong in ({"kind": "nothing"}, {"agent": ""}, {"prefix": 1}):
            with pytest.raises(Invalid):
                store.watch(**wrong)

    def test_moves_deletions_and_new_beginnings(self, store: Store, thread: Thread[Any]) -> None:
        made = fill(thread, 3)
        watch = store.watch(timeout=0)
        thread.rewind(1)
        assert next(watch) == made[0]
        thread.delete()
        again = thread.save({"n": "again"})
        assert list(watch) == [again]

    def test_many_watchers_beside_many_writers_miss_nothing(self, store: Store) -> None:
        watches = [store.watch(timeout=LONG) for _ in range(3)]
        watches += [store.thread(f"t{n}").watch(timeout=LONG) for n in range(3)]
        found: dict[int, list[tuple[str, int]]] = {}

        def read(at: int) -> None:
            found[at] = [(c.thread_id, c.step) for c in islice(watches[at], 120 if at < 3 else 40)]

        readers = [threading.Thread(target=read, args=(at,)) for at in range(6)]
        for reader in readers:
            reader.start()

        def write(name: str) -> None:
            thread: Thread[Any] = store.thread(name)
            for n in range(40):
                thread.save(n)

        with meanwhile(lambda: write("t0")), meanwhile(lambda: write("t1")), meanwhile(lambda: write("t2")):
            for reader in readers:
                reader.join(LONG)
        for at in range(3):
            for name in ("t0", "t1", "t2"):
                assert [step for who, step in found[at] if who == name] == list(range(1, 41))
            assert found[at + 3] == [(f"t{at}", step) for step in range(1, 41)]
