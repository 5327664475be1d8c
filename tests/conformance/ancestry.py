"""Forks read like branches: history, refs and diffs continue in the thread that was forked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conflict, Invalid, Message, NotFound
from tests.conformance.base import Suite, fill, ids, states, steps
from tests.support.scene import agent, conversation

if TYPE_CHECKING:
    from backtrail import Checkpoint, Store, Thread


def _lineage(store: Store) -> tuple[list[Checkpoint[Any]], Thread[Any], Thread[Any]]:
    """Make a thread with five checkpoints, a fork of the third with two more, and a fork of that with one more."""
    made = [store.thread("a").save({"n": n}, label=f"v{n}", tags=[f"t{n}"]) for n in range(1, 6)]
    second = store.thread("a").fork("b", at=made[2])
    for n in (14, 15):
        second.save({"n": n}, label=f"b{n}")
    third = second.fork("c")
    third.save({"n": 26})
    return made, second, third


class Ancestry(Suite):
    """`history(ancestors=True)`, and refs."""

    def test_history_of_a_fork_continues_in_its_source(self, store: Store) -> None:
        made, second, third = _lineage(store)
        assert states(second.history(ancestors=True)) == [{"n": n} for n in (1, 2, 3, 14, 15)]
        assert [c.thread_id for c in third.history(ancestors=True)] == ["a", "a", "b", "b", "c", "c"]
        assert states(third.history(ancestors=True)) == [{"n": n} for n in (1, 2, 3, 14, 15, 26)]
        assert steps(third.history(ancestors=True)) == [1, 2, 3, 4, 5, 6]
        assert ids(third.history(ancestors=True))[:2] == ids(made[:2])
        assert next(third.history(ancestors=True)).parent_id is None
        assert steps(third.history()) == [5, 6]

    def test_history_of_a_fork_can_be_narrowed_down(self, store: Store) -> None:
        _, _, third = _lineage(store)
        newest = steps(third.history(ancestors=True, newest_first=True))
        assert newest == [6, 5, 4, 3, 2, 1]
        for limit in range(8):
            assert steps(third.history(ancestors=True, newest_first=True, limit=limit)) == newest[:limit]
            assert steps(third.history(ancestors=True, limit=limit)) == newest[::-1][:limit]
        assert steps(third.history(ancestors=True, label="v2")) == [2]
        assert steps(third.history(ancestors=True, tag="t1")) == [1]
        for before in (2, "v2", "@~4", "t2"):
            assert steps(third.history(ancestors=True, before=before)) == [1]
        assert steps(third.history(ancestors=True, before="b14")) == [1, 2, 3]
        with pytest.raises(NotFound, match="forked from"):
            third.history(before=2)

    def test_refs_of_a_fork_go_on_into_its_source(self, store: Store) -> None:
        made, second, third = _lineage(store)
        for ref in ("@~4", "@~5", 2, 1, "v2", "t1", made[0], made[1].id, made[0].id[:12]):
            found = third.load(ref)
            assert found.thread_id == "a"
            assert found.state["n"] == found.step
        assert [third.load(f"@~{n}").step for n in range(1, 6)] == [5, 4, 3, 2, 1]
        assert third.load("b14").thread_id == "b"
        assert third.load(3).thread_id == "b"
        assert [str(change) for change in third.diff("@~5", "@")] == ["~ n: 1 -> 26"]
        assert third.fork("d", at=1).load().state == {"n": 1}
        assert second.load("@~3").step == 2

    def test_other_checkpoints_than_ancestors_are_not_found(self, store: Store) -> None:
        made, _, third = _lineage(store)
        for ref in ("@~6", 0, 7, "v4", "v5", "t4", made[3], made[4].id, made[4].id[:12], "nothing", "b99"):
            with pytest.raises(NotFound) as caught:
                third.load(ref)
            assert caught.value.code == "not_found.checkpoint"
        with pytest.raises(Invalid):
            third.load("")

    def test_ancestors_are_read_and_not_changed(self, store: Store) -> None:
        _, _, third = _lineage(store)
        for change in (third.rewind, lambda ref: third.tag(ref, "x"), lambda ref: third.save({}, onto=ref)):
            with pytest.raises(NotFound, match="which 'c' was forked from"):
                change("v2")
        assert not third.delete_checkpoint("v2")
        assert store.thread("a").load("v2").tags == ("t2",)

    def test_reading_an_ancestor_is_not_reading_the_head(self, store: Store) -> None:
        _, _, third = _lineage(store)
        mine = store.thread("c")
        mine.load()
        third.save({"n": 27})
        mine.load("v1")
        with pytest.raises(Conflict, match="has changed"):
            mine.save({"n": 28})

    def test_fork_after_a_rewind_has_its_points_ancestors(self, store: Store) -> None:
        thread = store.thread("a")
        made = fill(thread, 4)
        thread.rewind(made[1])
        thread.save({"n": 30})
        fork = thread.fork("b")
        gone = store.thread("a").fork("c", at=made[3])
        assert states(fork.history(ancestors=True)) == [{"n": 1}, {"n": 2}, {"n": 30}]
        assert states(gone.history(ancestors=True)) == [{"n": n} for n in (1, 2, 3, 4)]

    def test_a_source_that_moves_on_changes_nothing(self, store: Store) -> None:
        made, second, _ = _lineage(store)
        before = ids(second.history(ancestors=True))
        store.thread("a").rewind(made[0])
        store.thread("a").save({"n": 99})
        assert ids(second.history(ancestors=True)) == before

    @pytest.mark.parametrize("collected", [False, True])
    def test_ancestors_that_were_pruned_are_left_out(self, store: Store, collected: bool) -> None:
        made, second, third = _lineage(store)
        for each in (made[1], made[2]):
            store.thread("a").delete_checkpoint(each)
        if collected:
            store.gc()
        assert steps(second.history(ancestors=True)) == [1, 3, 4, 5]
        assert steps(third.history(ancestors=True)) == [1, 3, 4, 5, 6]
        assert third.load(1).state == third.load("@~4").state == {"n": 1}
        with pytest.raises(NotFound):
            third.load(2)

    @pytest.mark.parametrize("collected", [False, True])
    def test_a_lineage_ends_where_its_source_was_deleted(self, store: Store, collected: bool) -> None:
        made, second, third = _lineage(store)
        store.thread("a").delete()
        if collected:
            store.gc()
        oldest = next(third.history(ancestors=True))
        assert (oldest.thread_id, oldest.step, oldest.parent_id) == ("b", 3, made[2].id)
        with pytest.raises(NotFound, match=f"checkpoint {made[2].id}, was deleted"):
            third.load("@~4")
        store.thread("a").save({"n": "again"})
        assert steps(second.history(ancestors=True)) == [3, 4, 5]
        second.delete()
        if collected:
            store.gc()
        assert steps(third.history(ancestors=True)) == [5, 6]

    @pytest.mark.parametrize("collected", [False, True])
    def test_a_pruned_fork_still_has_ancestors(self, store: Store, collected: bool) -> None:
        _, _, third = _lineage(store)
        third.prune(keep_last=1, keep_tagged=False)
        if collected:
            store.gc()
        assert steps(third.history(ancestors=True)) == [1, 2, 3, 4, 6]

    @pytest.mark.parametrize("collected", [False, True])
    def test_pruned_fork_finds_an_older_ancestor_with_the_label_of_its_source(
        self, store: Store, collected: bool
    ) -> None:
        first, _ = [store.thread("a").save({"n": n}, label="same", tags=["word"]) for n in (1, 2)]
        fork = store.thread("a").fork("b")
        fork.save({"n": 3})
        fork.prune(keep_last=1, keep_tagged=False)
        if collected:
            store.gc()
        assert fork.load("same").id == fork.load("word").id == first.id

    def test_a_thread_without_a_source_is_as_it_was(self, thread: Thread[Any]) -> None:
        made = fill(thread, 3)
        assert list(thread.history(ancestors=True)) == made
        assert list(thread.history(ancestors=True, everything=True)) == made
        with pytest.raises(NotFound, match="only 3 checkpoints in view"):
            thread.load("@~3")

    def test_fork_in_a_transaction_has_its_ancestors(self, store: Store) -> None:
        fill(store.thread("a"), 3)
        with store.transaction():
            store.thread("a").save({"n": 4})
            fork = store.thread("a").fork("b")
            fork.save({"n": 5})
            assert steps(fork.history(ancestors=True)) == [1, 2, 3, 4, 5]
            assert fork.load("@~4").state == {"n": 1}
        assert steps(fork.history(ancestors=True)) == [1, 2, 3, 4, 5]

    def test_conversations_read_like_branches(self, store: Store) -> None:
        store.agents.save(agent("p"))
        store.conversations.save(conversation("c", "one", agent_id="p"))
        store.conversations.append("c", Message("user", "two"))
        store.conversations.fork("c", new_id="d")
        thread = store.conversations.thread("d")
        assert [c.thread_id for c in thread.history(ancestors=True)] == ["c", "d"]
        assert len(thread.load("@~1").state["messages"]) == 1
