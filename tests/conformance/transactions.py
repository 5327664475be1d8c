"""Transactions: writes to several threads, all of them or none. Bulk blocks: many writes, piece by piece."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backtrail import Conflict, Invalid, NotFound, overlay
from tests.conformance.base import Opener, Suite, fill, head, states, steps

if TYPE_CHECKING:
    from backtrail import Store, Thread


class Transactions(Suite):
    """`store.transaction()`: all of it, or none."""

    def test_writes_of_a_transaction_are_atomic(self, store: Store) -> None:
        with store.transaction():
            a = store.thread("a").save({"n": 1}, label="x", tags=["y"])
            store.thread("b").save({"l": []})
            b = store.thread("b").append("l", 1)
        assert list(store.thread("a").history()) == [a]
        assert head(store.thread("b")) == b
        assert head(store.thread("b")).state == {"l": [1]}
        assert store.thread("a").find(label="x", tag="y") == [a]
        assert store.checkpoint(a.id) == a
        assert (a.state, b.state) == ({"n": 1}, {"l": [1]})

    def test_an_exception_takes_all_of_it_back(self, store: Store) -> None:
        kept = store.thread("a").save({"n": 1})
        with pytest.raises(RuntimeError, match="no"), store.transaction():
            store.thread("a").save({"n": 2})
            store.thread("b").save({"n": 3})
            store.thread("a").tag(kept, "x")
            store.thread("a").fork("c")
            raise RuntimeError("no")
        assert list(store.thread("a").history()) == [kept]
        assert store.thread("a").load(kept.id).tags == ()
        assert [info.id for info in store.threads()] == ["a"]
        assert store.stats().checkpoints == 1

    def test_only_the_transaction_reads_its_writes(self, store: Store) -> None:
        store.thread("a").save({"n": 1})
        with store.transaction(), ThreadPoolExecutor(1) as pool:
            store.thread("a").save({"n": 2}, tags=["x"])
            store.thread("b").save({"n": 3})
            assert head(store.thread("a")).state == {"n": 2}
            assert len(store.thread("a")) == 2
            assert store.thread("a").load("x").state == {"n": 2}
            assert {info.id for info in store.threads()} == {"a", "b"}
            assert pool.submit(lambda: head(store.thread("a")).state).result() == {"n": 1}
            assert pool.submit(lambda: store.thread("b").latest()).result() is None
            assert pool.submit(lambda: [info.id for info in store.threads()]).result() == ["a"]
        assert head(store.thread("a")).state == {"n": 2}

    def test_a_handle_saves_again_and_again_inside(self, thread: Thread[Any], store: Store) -> None:
        fill(thread, 2)
        with store.transaction():
            thread.save({"n": 3})
            thread.save({"n": 4})
            assert head(thread).state == {"n": 4}
            thread.set("n", 5)
        assert [state["n"] for state in states(thread.history())] == [1, 2, 3, 4, 5]
        assert thread.save({"n": 6}).step == 6

    def test_reading_inside_is_reading(self, thread: Thread[Any], store: Store) -> None:
        thread.save({"n": 1})
        store.thread("t").save({"n": 2})
        with store.transaction():
            assert head(thread).state == {"n": 2}
            thread.save({"n": 3})
        assert thread.save({"n": 4}).step == 4

    def test_a_stale_handle_conflicts_inside_too(self, thread: Thread[Any], store: Store) -> None:
        thread.save({"n": 1})
        store.thread("t").save({"n": 2})
        with pytest.raises(Conflict), store.transaction():
            store.thread("other").save({"n": 0})
            thread.save({"n": 3})
        assert store.thread("other").latest() is None
        assert len(store.thread("t")) == 2

    def test_failed_transaction_keeps_expectations(self, thread: Thread[Any], store: Store) -> None:
        read = thread.save({"n": 1})
        with pytest.raises(RuntimeError), store.transaction():
            thread.save({"n": 2})
            thread.delete()
            raise RuntimeError
        other = store.thread("t").save({"n": 3})
        with pytest.raises(Conflict) as caught:
            thread.save({"n": 4})
        assert (caught.value.expected, caught.value.actual) == (read.id, other.id)

    def test_reads_of_a_dropped_transaction_count(self, thread: Thread[Any], store: Store) -> None:
        thread.save({"n": 1})
        read = store.thread("t").save({"n": 2})
        with pytest.raises(RuntimeError), store.transaction():
            assert head(thread) == read
            raise RuntimeError
        assert thread.save({"n": 3}).parent_id == read.id

    def test_checkpoint_of_a_dropped_transaction_cannot_be_expected(self, store: Store) -> None:
        store.thread("t").save({"n": 1})
        with pytest.raises(RuntimeError), store.transaction():
            lost = store.thread("t").save({"n": "lost"})
            raise RuntimeError
        with pytest.raises(Conflict):
            store.thread("t").save({"n": 2}, expect=lost)
        kept = store.thread("t").save({"n": "kept"})
        with pytest.raises(Conflict):
            store.thread("t").save({"n": 2}, expect=lost)
        assert kept != lost
        assert head(store.thread("t")).state == {"n": "kept"}

    def test_transaction_does_not_see_later_writes_to_its_threads(self, store: Store) -> None:
        fill(store.thread("t"), 1)
        with pytest.raises(Conflict), store.transaction():
            store.thread("t").set("n", "mine")
            with ThreadPoolExecutor(1) as pool:
                pool.submit(fill, store.thread("t"), 3).result()
            assert head(store.thread("t")).state["n"] == "mine"
            assert steps(store.thread("t").history()) == [1, 2]
            store.thread("t").set("n", "mine, too")
        assert steps(store.thread("t").history()) == [1, 2, 3, 4]

    def test_concurrent_write_conflicts_at_the_transactions_end(self, store: Store) -> None:
        store.thread("a").save({"n": 1})
        before = store.stats().checkpoints
        with pytest.raises(Conflict), store.transaction(), ThreadPoolExecutor(1) as pool:
            store.thread("a").save({"n": 2})
            store.thread("b").save({"n": 3})
            pool.submit(lambda: store.thread("a").save({"n": "theirs"})).result()
        assert head(store.thread("a")).state == {"n": "theirs"}
        assert store.thread("b").latest() is None
        assert store.stats().checkpoints == before + 1

    def test_prune_conflicts_with_a_concurrent_tag(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("a")
        a, b, c = fill(thread, 3)
        with pytest.raises(Conflict), store.transaction(), ThreadPoolExecutor(1) as pool:
            assert thread.prune(keep_last=1) == 2
            pool.submit(lambda: store.thread("a").tag(b, "good")).result()
        assert list(thread.history()) == [a, b, c]
        with store.transaction():  # what it tags itself is no conflict
            thread.tag(a, "mine")
            thread.untag(b, "good")
            assert thread.prune(keep_last=1, keep_tagged=False) == 2
        assert list(thread.history()) == [c]

    def test_all_threads_are_those_made_inside_too(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("backtrail.maintenance.gc._PAGE", 2)
        for name in "abc":
            fill(store.thread(name), 3)
        with store.transaction():
            for name in "bde":
                fill(store.thread(name), 3)
            told: list[int] = []
            assert store.prune(keep_last=1, progress=lambda _, count: told.append(count)) == 2 + 5 + 2 + 2 + 2
            assert told == [1, 2, 3, 4, 5]
            assert store.migrate().threads == 5
        assert [len(store.thread(name)) for name in "abcde"] == [1] * 5

    def test_two_that_create_the_same_thread_conflict(self, store: Store) -> None:
        with pytest.raises(Conflict), store.transaction(), ThreadPoolExecutor(1) as pool:
            store.thread("a").save({"n": 1})
            pool.submit(lambda: store.thread("a").save({"n": "theirs"})).result()
        assert states(store.thread("a").history()) == [{"n": "theirs"}]

    def test_fork_conflicts_if_its_source_is_deleted(self, store: Store) -> None:
        store.thread("a").save({"n": 1})
        with pytest.raises(Conflict), store.transaction(), ThreadPoolExecutor(1) as pool:
            store.thread("a").fork("b")
            pool.submit(lambda: store.thread("a").delete()).result()
        assert list(store.threads()) == []

    def test_all_that_moves_and_removes_works_inside(self, store: Store, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        doomed: Thread[Any] = store.thread("doomed")
        doomed.save({"n": 0})
        with store.transaction():
            thread.rewind(a)
            assert thread.undo() == c
            assert thread.undo() == b
            d = thread.save({"n": 4})
            thread.delete_checkpoint(a)
            assert list(thread.history()) == [b, d]
            thread.fork("other", at=b)
            assert doomed.delete() is True
            assert doomed.latest() is None
            doomed.save({"n": "again"})
        assert list(thread.history()) == [b, d]
        assert states(store.thread("other").history()) == [{"n": 2}]
        assert steps(store.thread("doomed").history()) == [1]
        assert thread.undo() == b
        assert store.verify().ok

    def test_new_threads_can_be_forked_and_deleted_inside(self, store: Store) -> None:
        with store.transaction():
            fill(store.thread("a"), 2)
            store.thread("a").fork("b", at=1)
            store.thread("b").save({"n": "b"})
            store.thread("a").delete()
            store.thread("a").save({"n": "new"})
            store.thread("c").save({})
            store.thread("c").delete()
        assert states(store.thread("a").history()) == [{"n": "new"}]
        assert states(store.thread("b").history()) == [{"n": 1}, {"n": "b"}]
        assert store.thread("c").latest() is None
        assert store.verify().ok
        assert store.thread("a").save({"n": 2}).step == 2

    def test_a_second_one_inside_is_invalid(self, store: Store) -> None:
        with store.transaction():
            store.thread("a").save({"n": 1})
            with pytest.raises(Invalid), store.transaction():
                pass
            store.thread("a").save({"n": 2})
        assert len(store.thread("a")) == 2

    def test_an_error_that_is_handled_inside_does_no_harm(self, store: Store) -> None:
        with store.transaction():
            store.thread("a").save({"n": 1})
            with pytest.raises(Invalid):
                store.thread("a").save(object())
            with pytest.raises(NotFound):
                store.thread("b").append("l", 1)
            store.thread("b").save({"n": 2})
        assert {info.id for info in store.threads()} == {"a", "b"}

    def test_an_empty_one_writes_nothing(self, store: Store) -> None:
        with store.transaction():
            pass
        with store.transaction():
            assert store.thread("a").latest() is None
        assert list(store.threads()) == []

    def test_each_thread_has_its_own(self, store: Store) -> None:
        inside, done = threading.Event(), threading.Event()

        def work() -> None:
            with store.transaction():
                store.thread("b").save({"n": 1})
                inside.set()
                done.wait(30)

        worker = threading.Thread(target=work)
        worker.start()
        assert inside.wait(30)
        store.thread("a").save({"n": 1})
        assert head(store.thread("a")).state == {"n": 1}
        with store.transaction():
            store.thread("c").save({"n": 1})
        done.set()
        worker.join(30)
        assert {info.id for info in store.threads()} == {"a", "b", "c"}

    def test_large_states_are_written_whole(self, store: Store) -> None:
        state = {"messages": [{"content": f"{n} " * 200} for n in range(300)]}
        with store.transaction():
            store.thread("a").save(state)
            store.thread("a").append("messages", "more")
            store.thread("b").save(state)
        assert head(store.thread("a")).state == {"messages": [*state["messages"], "more"]}
        assert head(store.thread("b")).state == state
        store.gc()
        assert store.verify().ok

    def test_chunks_collected_before_commit_are_written_again(self, store: Store) -> None:
        state = {"messages": [{"content": f"{n} " * 200} for n in range(300)]}
        store.thread("a").save(state)
        store.thread("b").save({"n": 1})

        def collect() -> None:
            store.thread("a").delete()
            assert store.gc().chunks > 0

        with store.transaction():
            store.thread("b").set("n", 2)
            store.thread("c").save(state)  # what it needs is there
            with ThreadPoolExecutor(1) as others:
                others.submit(collect).result(30)
        assert head(store.thread("b")).state == {"n": 2}
        assert head(store.thread("c")).state == state
        assert store.verify().ok

    def test_history_goes_on_after_the_transaction(self, store: Store) -> None:
        with store.transaction():
            fill(store.thread("a"), 50)
            history = store.thread("a").history()
            assert next(history).step == 1
        assert steps(history) == list(range(2, 51))


class BulkWrites(Suite):
    """`store.bulk()`: written in pieces, all of it durable at the end of the block."""

    @pytest.fixture(autouse=True)
    def small_pieces(self) -> Any:
        with mock.patch.object(overlay, "PIECE_ROWS", 10):
            yield

    def test_bulk_writes_equal_single_writes(self, store: Store) -> None:
        with store.bulk():
            threads = [store.thread(f"t{n}", agent="a") for n in range(7)]
            for thread in threads:
                thread.save({"messages": []}, label="first", tags=["x"])
            for n in range(5):
                for thread in threads:
                    thread.append("messages", {"content": f"{thread.id} {n}" * 20})
            threads[0].rewind("@~2")
            threads[0].append("messages", "after the rewind")
            threads[1].fork("fork", at="@-")
        expected = [{"content": f"t6 {n}" * 20} for n in range(5)]
        assert head(store.thread("t6")).state == {"messages": expected}
        assert len(head(store.thread("t0")).state["messages"]) == 4
        assert len(head(store.thread("fork")).state["messages"]) == 4
        assert store.thread("t6").load("first").tags == ("x",)
        threads[6].append("messages", "later")
        assert steps(store.thread("t6").history()) == [1, 2, 3, 4, 5, 6, 7]
        assert store.verify().ok

    def test_full_pieces_are_stored_before_the_end(self, opener: Opener) -> None:
        with opener() as store, opener() as other:
            with store.bulk():
                log = store.thread("log")
                log.save({"l": []})
                for n in range(24):
                    log.append("l", n)
                assert head(log).state == {"l": list(range(24))}
                assert head(other.thread("log")).state == {"l": list(range(19))}
            assert head(other.thread("log")).state == {"l": list(range(24))}

    def test_an_exception_leaves_a_beginning(self, store: Store) -> None:
        log = store.thread("log")
        with pytest.raises(RuntimeError), store.bulk():
            log.save({"l": []})
            for n in range(24):
                log.append("l", n)
            raise RuntimeError
        assert head(log).state == {"l": list(range(19))}
        log.append("l", "next")
        assert head(log).state == {"l": [*range(19), "next"]}

    def test_another_writer_makes_the_piece_conflict(self, opener: Opener) -> None:
        with opener() as store, opener() as other:
            log = store.thread("log")
            log.save({"l": []})
            with pytest.raises(Conflict), store.bulk():
                for n in range(14):
                    log.append("l", n)
                other.thread("log").append("l", "theirs")
                for n in range(14, 30):
                    log.append("l", n)
            assert head(log).state == {"l": [*range(10), "theirs"]}
            with pytest.raises(Conflict) as raised, store.bulk():
                log.append("l", "mine")
                other.thread("log").append("l", "theirs, too")
            assert raised.value.code == "conflict.transaction"

    def test_refused_piece_ends_the_block(self, opener: Opener) -> None:
        with opener() as store, opener() as other, pytest.raises(Conflict), store.bulk():
            store.thread("log").save({"l": []})
            other.thread("log").save({"l": ["theirs"]})
            with pytest.raises(Conflict):
                for n in range(10):
                    store.thread("log").append("l", n)
            with pytest.raises(Conflict, match="earlier pieces were stored"):
                store.thread("b").save({})

    def test_refused_block_reads_what_is_stored(self, opener: Opener) -> None:
        with opener() as store, opener() as other, pytest.raises(Conflict), store.bulk():
            log, created = store.thread("log"), store.thread("created")
            log.save({"l": []})
            created.save({})
            other.thread("log").save({"l": ["theirs"]})
            with pytest.raises(Conflict):
                for n in range(10):
                    log.append("l", n)
            assert head(log).state == {"l": ["theirs"]}
            assert [info.id for info in store.threads()] == ["log"]
            with pytest.raises(NotFound):
                created.load()

    def test_update_reports_the_conflict_of_its_piece(self, opener: Opener) -> None:
        with opener() as store, opener() as other:
            with pytest.raises(Conflict) as raised, store.bulk():
                store.thread("log").save({"n": 0})
                other.thread("log").save({"n": -1})
                for _ in range(10):
                    store.thread("log").update(lambda state: {"n": state["n"] + 1}, retries=2)
            assert raised.value.code == "conflict.transaction"

    def test_history_goes_on_after_a_piece_was_stored(self, store: Store) -> None:
        with mock.patch.object(overlay, "PIECE_ROWS", 50), store.bulk():
            source, target = store.thread("source"), store.thread("target")
            fill(source, 45)
            for checkpoint in source.history():
                target.save(checkpoint.state)
        assert len(target) == 45

    def test_tag_removed_in_a_later_piece_lets_retention_hide(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            log = store.thread("log")
            first = log.save({"n": 0}, tags=["keep"])
            fill(log, 5)
            with store.bulk():
                fill(store.thread("other"), 15)
                log.untag(first, "keep")
            fill(log, 2)
            assert len(list(log.history(everything=True))) == 2
