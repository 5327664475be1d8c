"""Upkeep: collecting takes what nothing needs and nothing else; verifying finds damage, which stays contained."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Corrupt, Invalid, NotFound, Unavailable
from tests.conformance.base import Suite, fill, head, ids, messages, states, steps
from tests.support.chunks import small_chunks

if TYPE_CHECKING:
    from backtrail import Checkpoint, Store, Thread
    from tests.conformance.base import Opener


class Collecting(Suite):
    """`gc` and `stats`."""

    def test_an_empty_store_has_nothing_to_collect(self, store: Store) -> None:
        report = store.gc()
        assert (report.rows, report.chunks, report.bytes) == (0, 0, 0)
        assert store.verify().ok

    def test_gc_keeps_chunks_in_use(self, store: Store, thread: Thread[Any]) -> None:
        for n in range(6):
            thread.save({"messages": messages(300 + n), "n": n})
        thread.rewind(3)
        thread.fork("other", at=2)
        before = {made: found.state for made in ids(thread.history()) if (found := store.checkpoint(made))}
        chunks = store.stats().chunks
        report = store.gc()
        assert (report.rows, report.chunks, report.bytes) == (0, 0, 0)
        assert store.stats().chunks == chunks
        assert {made: thread.load(made).state for made in before} == before
        assert thread.undo().state["n"] == 5

    def test_gc_removes_unused_chunks(self, store: Store, thread: Thread[Any]) -> None:
        thread.save(messages(500))
        thread.save({"messages": messages(500, start=500)})  # a different state: it shares nothing
        chunks = store.stats().chunks
        thread.delete_checkpoint(1)
        report = store.gc()
        assert report.chunks > 0
        assert report.bytes > 0
        assert store.stats().chunks == chunks - report.chunks
        assert head(thread).state == {"messages": messages(500, start=500)}
        thread.delete()
        report = store.gc()
        assert report.rows > 0
        assert store.stats().chunks == 0
        assert store.gc().chunks == 0

    def test_gc_removes_hidden_rows_and_keeps_their_children(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"l": []})
        made = [thread.append("l", n) for n in range(8)]
        roots = [checkpoint.root for checkpoint in made]
        for checkpoint in made[:6]:
            thread.delete_checkpoint(checkpoint)
        assert store.gc().rows == 6
        assert states(thread.history()) == [{"l": []}, {"l": list(range(7))}, {"l": list(range(8))}]
        assert [checkpoint.root for checkpoint in thread.history()][1:] == roots[6:]
        assert thread.append("l", 8).state == {"l": list(range(9))}
        assert store.verify().ok

    def test_a_deleted_parent_of_a_delta_is_collected(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(500)})
        thread.save({"n": 1})
        thread.delete_checkpoint(1)
        assert store.gc().rows == 1
        assert store.stats().chunks == 0
        assert states(thread.history()) == [{"n": 1}]

    def test_the_first_checkpoint_of_a_fork_can_be_pruned(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(500)})
        forked = thread.fork("other")
        forked.save({"n": 1})
        forked.prune(keep_last=1)
        thread.delete()
        store.gc()
        assert store.stats().chunks == 0
        assert states(forked.history()) == [{"n": 1}]
        with pytest.raises(Invalid):
            forked.undo()
        assert store.verify().ok

    def test_inner_nodes_keep_their_children(self, opener: Opener) -> None:
        with small_chunks():
            state = {"l": messages(150, size=30), "d": {f"key {n}": n for n in range(200)}, "t": "line\n" * 400}
            with opener() as store:
                thread: Thread[Any] = store.thread("t")
                thread.save(state)
                thread.append("l", "x")
                thread.save([1])
            with opener() as store:
                store.gc()
            with opener() as store:
                assert store.thread("t").load(1).state == state
                assert store.verify().ok
                store.thread("t").prune(keep_last=1)
                assert store.gc().chunks > 50
                assert store.stats().chunks == 0

    def test_rows_of_moves_shrink_with_their_history(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")

        def seen() -> list[Any]:
            found: list[Any] = [[list(thread.history(everything=each)) for each in (False, True)]]
            with suppress(KeyError), store.transaction():
                found += [[thread.undo().id, *ids(thread.history())] for _ in range(6)]
                raise KeyError
            return [*found, {step: thread.load(step).id for step in steps(thread.history())}]

        with store.transaction():
            thread.save({"n": 0})
            for n in range(40):
                thread.save({"n": n})
                thread.rewind("@-")
                thread.save({"n": -n}, tags=["x"] if n == 35 else [])
        thread.prune(keep_last=3)
        before = seen()
        assert store.gc().rows == 81 - 3 - 3 - 1
        record = store._backend.find_thread("thread", "t")
        assert record is not None
        rows = store._backend.rows(record.no, [(1, 1000)])
        moves = [len(row.extra) for row in rows if not row.root]
        assert (len(moves), max(moves) < 80) == (40, True)
        assert seen() == before
        with pytest.raises(NotFound):
            thread.load(2)
        assert store.verify().ok

    def test_a_handle_writes_on_after_a_collection(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(300)})
        thread.append("messages", 1)
        store.thread("t").prune(keep_last=1)
        store.gc()
        thread.append("messages", 2)
        thread.save({"messages": messages(300)})
        store.gc()
        assert states(thread.history()) == [
            {"messages": [*messages(300), 1]},
            {"messages": [*messages(300), 1, 2]},
            {"messages": messages(300)},
        ]
        assert store.verify().ok

    def test_a_collection_takes_nothing_that_a_writer_counts_on(self, opener: Opener) -> None:
        items = [f"{n} " * 60 for n in range(35)]
        with opener() as store:
            writer: Thread[Any] = store.thread("t")
            writer.save({"a": items[:-1], "b": None, "c": []})
            writer.append("a", items[-1])
            writer.set("b", items)
            store.thread("t").prune(keep_last=1)
            store.gc()
            for n in range(70):
                writer.append("c", n)
        with opener() as store:
            assert head(store.thread("t")).state == {"a": items, "b": items, "c": list(range(70))}
            assert store.verify().ok

    def test_chunk_saved_again_during_gc_is_kept(self, store: Store, opener: Opener) -> None:
        state = {"messages": messages(300)}
        store.thread("gone").save(state)
        store.thread("gone").delete()
        store.close()
        with opener() as store:
            saved: list[Checkpoint[Any]] = []

            def progress(what: str, count: int) -> None:
                if not saved:
                    assert (what, count) == ("threads", 1)
                    saved.append(store.thread("new").save(state))

            store.gc(progress=progress)
            assert saved
        with opener() as store:
            assert head(store.thread("new")).state == state
            assert store.verify().ok

    def test_a_fork_during_a_collection_keeps_its_chunks(self, store: Store, opener: Opener) -> None:
        state = {"messages": messages(300)}
        store.thread("early").save({"n": 1})
        store.thread("early").delete()
        store.thread("late").save(state)
        store.close()
        with opener() as store:
            seen: list[int] = []

            def progress(what: str, count: int) -> None:
                if (what, count) == ("threads", 1):
                    seen.append(count)
                    store.thread("late").fork("early")
                    store.thread("late").delete()

            store.gc(progress=progress)
            assert seen == [1]
        with opener() as store:
            assert head(store.thread("early")).state == state
            assert store.verify().ok

    def test_it_cannot_be_done_inside_a_transaction(self, store: Store) -> None:
        with store.transaction():
            store.thread("t").save({"n": 1})
            with pytest.raises(Unavailable):
                store.gc()
        assert len(store.thread("t")) == 1

    def test_numbers_are_measured(self, store: Store, thread: Thread[Any]) -> None:
        empty = store.stats()
        assert (empty.threads, empty.checkpoints, empty.chunks, empty.logical_bytes) == (0, 0, 0, 0)
        made = [thread.save({"messages": messages(n * 100)}) for n in (1, 2, 3)]
        store.thread("other").save({"n": 1})
        stats = store.stats()
        assert (stats.threads, stats.checkpoints) == (2, 4)
        assert stats.logical_bytes == sum(c.size for c in made) + head(store.thread("other")).size
        assert stats.chunks > 0
        assert stats.stored_bytes >= sum(c.stored for c in made)
        thread.rewind(1)
        assert store.stats().checkpoints == 4
        thread.delete()
        after = store.stats()
        assert (after.threads, after.checkpoints) == (1, 1)
        assert after.logical_bytes == head(store.thread("other")).size

    def test_gc_returns_the_freed_space(self, store: Store, thread: Thread[Any]) -> None:
        thread.save([f"{n * 7919 % 100_003} " * 3 for n in range(60_000)])
        thread.save({"n": 1})
        before = store.stats()
        thread.delete_checkpoint(1)
        store.gc()
        after = store.stats()
        assert before.payload_bytes > after.payload_bytes + 100_000
        assert before.stored_bytes - after.stored_bytes > 0.6 * (before.payload_bytes - after.payload_bytes)

    def test_bytes_in_rows_and_chunks_are_stored_once(self, store: Store, opener: Opener) -> None:
        thread: Thread[Any] = store.thread("t")
        thread.save({"messages": [], "n": 0})
        for item in _varied(150):
            thread.append("messages", item)
        before = [(made.id, made.root, made.stored, made.state) for made in thread.history()]
        size = store._backend.usage().payload_bytes
        assert store.gc().repacked > 60
        assert store._backend.usage().payload_bytes < size
        assert store.gc().repacked == 0
        store.close()
        with opener() as store:
            thread = store.thread("t")
            assert [(made.id, made.root, made.stored, made.state) for made in thread.history()] == before
            assert thread.append("messages", "on").state["messages"][-2:] == [*_varied(150)[-1:], "on"]
            assert store.verify().ok

    def test_rows_beside_a_deleted_chunk_do_not_keep_it(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": []})
        for item in _varied(150):
            thread.append("messages", item)
        assert store.gc().repacked > 60
        later = ids(thread.history())[10:]
        thread.rewind(10)
        for each in later:
            thread.delete_checkpoint(each)
        assert store.gc().repacked > 0
        assert store.stats().chunks == 0
        assert states(thread.history()) == [{"messages": _varied(n)} for n in range(10)]
        assert store.verify().ok


class Verifying(Suite):
    """`verify`, and what damage does."""

    def test_a_sound_store_is_found_sound(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 4)
        store.thread("other").save({"messages": messages(200)})
        thread.rewind(2)
        thread.delete_checkpoint(1)
        report = store.verify()
        assert report.ok
        assert (report.threads, report.checkpoints, report.damaged) == (2, 4, ())

    def test_progress_is_reported(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 3)
        told: list[tuple[str, int]] = []
        store.verify(progress=lambda what, count: told.append((what, count)))
        assert ("checkpoints", 3) in told

    def test_a_damaged_payload_leaves_the_rest_readable(self, store: Store, opener: Opener) -> None:
        thread: Thread[Any] = store.thread("t")
        thread.save({"l": ["x" * 100]})
        made = [head(thread), *(thread.append("l", n) for n in range(4))]
        expected = states(made)
        store.thread("other").save({"n": 1})
        _damage_row(store, made[2])
        store.close()
        with opener() as store:
            report = store.verify()
            assert not report.ok
            assert {damage.checkpoint_id for damage in report.damaged} == set(ids(made[2:]))
            assert all(damage.thread_id == "t" and damage.reason for damage in report.damaged)
            thread = store.thread("t")
            assert steps(thread.history()) == [1, 2, 3, 4, 5]
            assert [thread.load(checkpoint.id).state for checkpoint in made[:2]] == expected[:2]
            for checkpoint in made[2:]:
                with pytest.raises(Corrupt) as caught:
                    _ = thread.load(checkpoint.id).state
                assert caught.value.checkpoint_id == checkpoint.id
            assert head(store.thread("other")).state == {"n": 1}
            assert thread.rewind(2).state == {"l": ["x" * 100, 0]}
            assert thread.append("l", "on").state == {"l": ["x" * 100, 0, "on"]}

    def test_a_missing_chunk_is_named_and_nothing_is_collected(self, store: Store, opener: Opener) -> None:
        whole = store.thread("t").save({"messages": messages(300)})
        small = store.thread("t").save({"n": 1})
        _lose_chunk(store)
        store.close()
        with opener() as store:
            assert [damage.checkpoint_id for damage in store.verify().damaged] == [whole.id]
            with pytest.raises(Corrupt) as caught:
                _ = store.thread("t").load(whole.id).state
            assert caught.value.checkpoint_id == whole.id
            assert head(store.thread("t")) == small
            assert store.thread("t").save({"n": 2}).step == 3

    def test_a_column_that_was_changed_is_noticed(self, store: Store, opener: Opener) -> None:
        made = fill(store.thread("t"), 3)
        no, row = _row(store, made[1])
        store._backend.rewrite(no, [row._replace(step=7)])
        store.close()
        with opener() as store:
            assert [damage.checkpoint_id for damage in store.verify().damaged] == [made[1].id]
            assert head(store.thread("t")).state == {"n": 3}
            listed = list(store.thread("t").history())
            assert ids(listed) == ids(made)
            assert [checkpoint.damaged for checkpoint in listed] == [False, True, False]
            with pytest.raises(Corrupt):
                _ = listed[1].state

    def test_a_damaged_row_can_be_deleted_and_pruned(self, store: Store) -> None:
        made = fill(store.thread("t"), 4)
        _damage_row(store, made[1])
        assert store.thread("t").delete_checkpoint(made[1].id) is True
        assert store.verify().ok
        with pytest.raises(NotFound):
            store.thread("t").load(made[1].id)


def _varied(count: int) -> list[dict[str, Any]]:
    """Return messages that compression alone cannot make short."""
    return [{"content": " ".join(str(n * k * 7919 % 99_991) for k in range(7, 150))} for n in range(1, count + 1)]


def _row(store: Store, checkpoint: Checkpoint[Any]) -> tuple[int, Any]:
    backend = store._backend
    record = backend.find_thread("thread", checkpoint.thread_id)
    assert record is not None
    (row,) = backend.rows(record.no, [(checkpoint.seq, checkpoint.seq)], payload=True)
    return record.no, row


def _damage_row(store: Store, checkpoint: Checkpoint[Any]) -> None:
    no, row = _row(store, checkpoint)
    payload = bytearray(row.payload)
    payload[-1] ^= 0x40
    assert store._backend.rewrite(no, [row._replace(payload=bytes(payload))]) == 1


def _lose_chunk(store: Store) -> None:
    backend = store._backend
    ((digest, _), *_) = backend.chunk_page(b"", 1)
    assert backend.remove_chunks([digest], 1 << 40) > 0
