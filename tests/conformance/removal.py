"""Removal of single checkpoints, old checkpoints and whole threads: other data stays, and nothing returns."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conflict, Invalid, NotFound
from tests.conformance.base import Clock, Suite, fill, head, ids, states, steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store, Thread
    from tests.conformance.base import Opener


class Deleting(Suite):
    """`delete_checkpoint`."""

    def test_one_from_the_middle_goes_and_the_others_stay(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"l": []})
        made = [head(thread), *(thread.append("l", n) for n in range(6))]
        assert thread.delete_checkpoint(made[3]) is True
        for _ in range(2):
            assert steps(thread.history()) == [1, 2, 3, 5, 6, 7]
            assert states(thread.history()) == [{"l": list(range(n))} for n in (0, 1, 2, 4, 5, 6)]
            assert len(thread) == 6
            assert store.checkpoint(made[3].id) is None
            with pytest.raises(NotFound):
                thread.load(4)
            store.gc()
        assert thread.append("l", 6).step == 8
        assert thread.delete_checkpoint(made[3].id) is False

    def test_a_collected_base_leaves_its_chain_readable(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"l": ["x" * 500]})
        for n in range(5):
            thread.append("l", n)
        thread.delete_checkpoint(1)
        store.gc()
        assert states(thread.history()) == [{"l": ["x" * 500, *range(n)]} for n in (1, 2, 3, 4, 5)]
        assert head(thread).state == {"l": ["x" * 500, *range(5)]}
        assert store.verify().ok

    def test_a_deleted_head_moves_to_its_nearest_ancestor(self, thread: Thread[Any]) -> None:
        a, b, c, d = fill(thread, 4)
        thread.delete_checkpoint(c)
        assert thread.delete_checkpoint("@") is True
        assert head(thread) == b
        assert thread.current_step == 2
        assert list(thread.history()) == [a, b]
        e = thread.save({"n": 5})
        assert (e.step, e.parent_id) == (3, b.id)
        for gone in (c, d):
            with pytest.raises(NotFound):
                thread.load(gone.id)

    def test_a_rewound_head_gives_way_to_its_own_ancestor(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.rewind(b)
        thread.delete_checkpoint(b)
        assert head(thread) == a
        assert thread.load(c.id).state == {"n": 3}
        assert thread.rewind(c) == c
        assert list(thread.history()) == [a, c]

    def test_undo_and_redo_skip_removed_checkpoints(self, store: Store, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.delete_checkpoint(b)
        store.gc()
        assert thread.undo() == a
        assert thread.redo() == c

    def test_undo_after_deleting_the_head_goes_further_back(self, store: Store, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.delete_checkpoint(c)
        assert head(thread) == b
        store.gc()
        assert thread.undo() == a
        with pytest.raises(Invalid):
            thread.undo()
        assert thread.redo() == b

    def test_redo_works_after_the_head_is_deleted(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.undo()
        thread.delete_checkpoint(b)
        assert head(thread) == a
        assert thread.redo() == c
        assert list(thread.history()) == [a, c]

    def test_the_last_one_leaves_no_thread(self, store: Store, thread: Thread[Any]) -> None:
        only = thread.save({"n": 1})
        assert thread.delete_checkpoint(only) is True
        assert thread.latest() is None
        assert (len(thread), thread.current_step, list(thread.history())) == (0, 0, [])
        assert list(store.threads()) == []
        with pytest.raises(NotFound):
            thread.load()
        with pytest.raises(NotFound):
            thread.undo()
        again = thread.save({"n": 2})
        assert (again.step, again.parent_id) == (1, None)
        assert again.id != only.id
        with pytest.raises(Invalid):
            thread.undo()

    def test_rewound_checkpoints_load_without_a_head(self, store: Store, thread: Thread[Any]) -> None:
        a, b = fill(thread, 2)
        thread.rewind(a)
        thread.delete_checkpoint(a)
        assert thread.latest() is None
        store.gc()
        assert thread.load(b.id).state == {"n": 2}
        found = store.checkpoint(b.id)
        assert found is not None
        assert found.state == {"n": 2}
        assert thread.rewind(b.id) == b
        assert head(thread).state == {"n": 2}

    def test_deleting_a_thread_without_a_head_removes_the_rest(self, store: Store, thread: Thread[Any]) -> None:
        a, b = fill(thread, 2)
        thread.rewind(a)
        thread.delete_checkpoint(a)
        assert thread.delete() is True
        assert store.checkpoint(b.id) is None
        assert store.stats().checkpoints == 0
        assert thread.delete() is False

    def test_its_label_and_tags_lead_nowhere(self, thread: Thread[Any]) -> None:
        a = thread.save({"n": 1}, label="x", tags=["y"])
        b = thread.save({"n": 2}, label="x", tags=["y"])
        thread.save({"n": 3})
        thread.delete_checkpoint(b)
        assert (thread.load("x"), thread.load("y")) == (a, a)
        thread.delete_checkpoint("x")
        assert thread.find(label="x") == []
        assert thread.find(tag="y") == []
        for ref in ("x", "y"):
            with pytest.raises(NotFound):
                thread.load(ref)

    def test_it_is_not_counted_any_more(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 3)
        size = store.stats().logical_bytes
        gone = thread.load(2)
        thread.delete_checkpoint(2)
        assert store.stats().checkpoints == 2
        assert store.stats().logical_bytes == size - gone.size
        assert [info.checkpoints for info in store.threads()] == [2]

    def test_a_collected_checkpoint_in_memory_is_not_found(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"l": list(range(50))})
        held = thread.append("l", 1)
        fresh = store.thread("t").load(held.id)
        thread.save("another kind of state, which stands on nothing")
        thread.delete_checkpoint(held)
        thread.delete_checkpoint(1)
        store.gc()
        with pytest.raises(NotFound):
            _ = fresh.state


class Pruning(Suite):
    """`prune`, of a thread and of a store."""

    def test_keep_last_keeps_the_newest(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"l": []})
        for n in range(9):
            thread.append("l", n)
        made = list(thread.history())
        report = thread.prune(keep_last=3)
        assert report == 7
        assert sorted(which for which, _ in report.removed) == sorted(ids(made[:7]))
        assert all(why for _, why in report.removed)
        store.gc()
        assert list(thread.history()) == made[7:]
        assert states(thread.history()) == [{"l": list(range(n))} for n in (7, 8, 9)]
        assert thread.append("l", 9).step == 11
        assert thread.prune(keep_last=3) == 1

    def test_steps_are_not_renumbered(self, thread: Thread[Any]) -> None:
        fill(thread, 5)
        thread.prune(keep_last=2)
        assert steps(thread.history()) == [4, 5]
        assert thread.load(4).state == {"n": 4}
        with pytest.raises(NotFound):
            thread.load(3)
        assert thread.load("@-").step == 4
        with pytest.raises(NotFound):
            thread.load("@~2")
        assert (len(thread), thread.current_step) == (2, 5)

    def test_a_dry_run_says_the_same_and_removes_nothing(self, thread: Thread[Any]) -> None:
        fill(thread, 5)
        dry = thread.prune(keep_last=2, dry_run=True)
        assert dry.dry_run is True
        assert (dry, len(thread)) == (3, 5)
        wet = thread.prune(keep_last=2)
        assert wet.dry_run is False
        assert wet.removed == dry.removed
        assert len(thread) == 2

    def test_the_head_stays_even_if_nothing_is_kept(self, thread: Thread[Any]) -> None:
        *_, last = fill(thread, 3)
        assert thread.prune(keep_last=0) == 2
        assert list(thread.history()) == [last]
        assert thread.prune(keep_last=0) == 0

    def test_labelled_and_tagged_ones_are_exempt_by_default(self, thread: Thread[Any]) -> None:
        a = thread.save({"n": 1}, label="x")
        b = thread.save({"n": 2}, tags=["y"])
        c = thread.save({"n": 3})
        d = thread.save({"n": 4})
        thread.tag(c, "late")
        e = thread.save({"n": 5})
        assert thread.prune(keep_last=1) == 1
        assert list(thread.history()) == [a, b, c, e]
        thread.untag(c, "late")
        assert thread.prune(keep_last=1) == 1
        assert thread.prune(keep_last=1, keep_tagged=False) == 2
        assert list(thread.history()) == [e]
        assert d.id not in ids(thread.history())

    def test_older_than_uses_age_not_count(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        made = []
        for n in range(5):
            made.append(thread.save({"n": n}))
            clock.advance(60)
        assert thread.prune(older_than=150) == 3
        assert list(thread.history()) == made[3:]
        assert thread.prune(older_than=dt.timedelta(seconds=90)) == 1
        clock.advance(10_000)
        assert thread.prune(older_than=1) == 0
        assert list(thread.history()) == made[4:]

    def test_two_limits_remove_what_neither_keeps(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        made = []
        for n in range(6):
            made.append(thread.save({"n": n}))
            clock.advance(60)
        assert thread.prune(keep_last=4, older_than=90) == 2
        assert thread.prune(keep_last=1, older_than=150) == 2
        assert list(thread.history()) == made[4:]

    def test_rewound_checkpoints_are_counted_separately(self, store: Store, thread: Thread[Any]) -> None:
        made = fill(thread, 6)
        thread.rewind(made[2])
        d = thread.save({"n": 7})
        assert thread.prune(keep_last=2) == 3
        store.gc()
        assert list(thread.history()) == [made[2], d]
        assert [thread.load(which).state for which in ids(made[4:])] == [{"n": 5}, {"n": 6}]
        for gone in (made[0], made[1], made[3]):
            with pytest.raises(NotFound):
                thread.load(gone.id)

    def test_undo_after_pruning_skips_removed_checkpoints(self, store: Store, thread: Thread[Any]) -> None:
        made = fill(thread, 5)
        thread.prune(keep_last=2)
        store.gc()
        assert thread.undo() == made[3]
        with pytest.raises(Invalid):
            thread.undo()
        assert thread.redo() == made[4]

    def test_pruning_does_not_touch_other_threads(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 4)
        fill(store.thread("t2"), 4)
        thread.prune(keep_last=1)
        assert len(store.thread("t2")) == 4

    def test_pruning_does_not_make_a_writer_conflict(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 4)
        store.thread("t").prune(keep_last=1)
        assert thread.save({"n": 5}).step == 5

    def test_a_store_prunes_each_of_its_threads(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 4)
        fill(store.thread("u"), 2)
        store.thread("u").save({}, label="x")
        fill(store.thread("gone"), 3)
        store.thread("gone").delete()
        dry = store.prune(keep_last=1, dry_run=True)
        assert (dry, len(thread)) == (5, 4)
        assert store.prune(keep_last=1) == 5
        assert (len(thread), len(store.thread("u"))) == (1, 1)
        assert store.stats().checkpoints == 2

    @pytest.mark.parametrize(
        "policy",
        [{}, {"keep_last": -1}, {"keep_last": True}, {"keep_last": 1.0}, {"older_than": 0}, {"older_than": -5}],
    )
    def test_a_policy_that_says_nothing_or_nonsense_is_invalid(
        self, store: Store, thread: Thread[Any], policy: dict[str, Any]
    ) -> None:
        fill(thread, 3)
        for prune in (thread.prune, store.prune):
            with pytest.raises(Invalid):
                prune(**policy)
        assert len(thread) == 3


class Ending(Suite):
    """`delete`: a thread goes, and stays gone."""

    def test_it_goes_and_starts_again_at_step_one(self, store: Store, thread: Thread[Any]) -> None:
        made = fill(thread, 3)
        assert thread.delete() is True
        assert thread.delete() is False
        assert list(store.threads()) == []
        again = thread.save({"n": "new"})
        assert (again.step, again.parent_id) == (1, None)
        assert states(thread.history()) == [{"n": "new"}]
        assert again.id not in ids(made)
        with pytest.raises(Invalid):
            thread.undo()
        with pytest.raises(Invalid):
            thread.redo()
        for gone in made:
            assert store.checkpoint(gone.id) is None

    def test_it_stays_gone_after_collecting_and_opening_again(self, store: Store, opener: Opener) -> None:
        made = fill(store.thread("t"), 3)
        store.thread("t").delete()
        store.gc()
        store.close()
        with opener() as store:
            assert store.thread("t").latest() is None
            again = store.thread("t").save({"n": 9})
            assert (again.step, again.id in ids(made)) == (1, False)
            assert steps(store.thread("t").history()) == [1]

    def test_delete_removes_checkpoints_out_of_view(self, store: Store, thread: Thread[Any]) -> None:
        a, b = fill(thread, 2)
        thread.rewind(a)
        thread.delete()
        assert store.checkpoint(b.id) is None
        thread.save({"n": 3})
        with pytest.raises(NotFound):
            thread.load(b.id)
        with pytest.raises(Invalid):
            thread.undo()

    def test_a_stale_writer_cannot_bring_it_back(self, store: Store, thread: Thread[Any]) -> None:
        stale: Thread[Any] = store.thread("t")
        fill(stale, 2)
        thread.delete()
        writes: tuple[Callable[[], object], ...] = (
            lambda: stale.save({"n": 3}),
            lambda: stale.set("n", 3),
            lambda: stale.delete_at("n"),
        )
        for write in writes:
            with pytest.raises((Conflict, NotFound)):
                write()
        with pytest.raises(NotFound):
            stale.append("l", 1)
        with pytest.raises(NotFound):
            stale.undo()
        assert thread.latest() is None
        store.gc()
        with pytest.raises(Conflict):
            stale.save({"n": 3})
        assert list(store.threads()) == []

    def test_a_stale_writer_cannot_write_to_its_successor(self, store: Store, thread: Thread[Any]) -> None:
        stale: Thread[Any] = store.thread("t")
        stale.save({"n": 1})
        thread.delete()
        new = thread.save({"n": "new"})
        with pytest.raises(Conflict):
            stale.save({"n": 2})
        assert list(thread.history()) == [new]

    def test_a_stale_handle_cannot_overwrite_a_new_thread(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"n": 1})
        thread.delete()
        new = store.thread("t").save({"n": "new"})
        with pytest.raises(Conflict):
            thread.save({"n": 2})
        assert list(thread.history()) == [new]

    def test_a_new_beginning_forgets_agent_origin_and_age(self, store: Store) -> None:
        clock = Clock(store)
        first: Thread[Any] = store.thread("a", agent="planner")
        first.save({"n": 1})
        first.fork("b")
        store.thread("a").delete()
        store.thread("b").delete()
        clock.advance(100)
        store.thread("a", agent="other").save({"n": 2})
        store.thread("b").save({"n": 2})
        infos = {info.id: info for info in store.threads()}
        assert (infos["a"].agent, infos["b"].agent) == ("other", None)
        assert infos["b"].forked_from is None
        assert infos["a"].created_at == infos["a"].updated_at
        assert [info.id for info in store.threads(agent="planner")] == []

    def test_others_are_not_touched(self, store: Store) -> None:
        for name in ("a", "a_b", "ab", "A"):
            store.thread(name).save({"name": name})
        assert store.thread("a").delete() is True
        store.gc()
        assert {info.id for info in store.threads()} == {"a_b", "ab", "A"}
        for name in ("a_b", "ab", "A"):
            assert head(store.thread(name)).state == {"name": name}
