"""Time travel: forks, rewinds, undo and redo. They move, and never destroy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conflict, Invalid, NotFound
from tests.conformance.base import Suite, fill, head, ids, messages, states, steps

if TYPE_CHECKING:
    from backtrail import Store, Thread
    from tests.conformance.base import Opener


class Forks(Suite):
    """`fork`."""

    def test_a_fork_begins_with_the_state_of_its_source(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 3)
        at = thread.save({"n": 4}, label="here", tags=["x"], metadata={"a": 1}, kind="recovery")
        thread.save({"n": 5})
        forked = thread.fork("other", at="here")
        made = head(forked)
        assert forked.id == "other"
        assert made.thread_id == "other"
        assert (made.state, made.step, made.root) == ({"n": 4}, 4, at.root)
        assert (made.label, made.tags, made.metadata, made.kind) == ("here", ("x",), {"a": 1}, "recovery")
        assert forked.current_step == 4
        assert head(store.thread("other")) == made

    def test_steps_go_on_in_both(self, thread: Thread[Any]) -> None:
        fill(thread, 3)
        forked = thread.fork("other", at=2)
        assert forked.save({"n": "x"}).step == 3
        assert thread.save({"n": 4}).step == 4
        assert states(forked.history())[-2:] == [{"n": 2}, {"n": "x"}]
        assert states(thread.history()) == [{"n": n} for n in (1, 2, 3, 4)]

    def test_fork_starts_at_the_head_without_a_ref(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        assert head(thread.fork("x")).root == c.root
        for name, ref in (("y", b), ("z", "@-"), ("w", b.id), ("v", 2)):
            assert head(thread.fork(name, at=ref)).root == b.root
        thread.rewind(a)
        assert head(thread.fork("out of view", at=c)).root == c.root

    def test_an_existing_target_is_a_conflict(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 2)
        there = store.thread("other").save({"here": 1})
        for name in ("other", "t"):
            with pytest.raises(Conflict) as caught:
                thread.fork(name)
            assert caught.value.code == "conflict.exists"
            assert "choose another id" in str(caught.value)
        assert list(store.thread("other").history()) == [there]
        assert len(thread) == 2

    def test_it_remembers_where_it_came_from(self, store: Store, thread: Thread[Any], opener: Opener) -> None:
        a, _ = fill(thread, 2)
        forked = thread.fork("other", at=a)
        assert head(forked).parent_id == a.id
        again = forked.fork("again")
        origin = head(forked).id
        again.save({"n": 9})
        store.close()
        with opener() as store:
            infos = {info.id: info.forked_from for info in store.threads()}
            assert infos == {"t": None, "other": a.id, "again": origin}
            assert next(iter(store.thread("other").history())).parent_id == a.id

    def test_the_forks_of_a_thread_are_listed_alone(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 3)
        for n, ref in enumerate(["@~2", "@", "@~1"]):
            thread.fork(f"fork {n}", at=ref).fork(f"fork of fork {n}")
        store.thread("fork 1").delete()
        store.thread("beside").save({})

        def forks(of: str, **options: Any) -> list[str]:
            return [info.id for info in store.threads(forked_from=of, **options)]

        assert forks("t") == ["fork 2", "fork 0"]
        assert forks("t", limit=1, after="fork 2") == ["fork 0"]
        assert forks("t", prefix="fork 0") == ["fork 0"]
        assert forks("fork 1") == ["fork of fork 1"]  # it was deleted; they were not
        assert forks("beside") == []
        with store.transaction():
            thread.fork("new")
            store.thread("mine").save({})
            store.thread("fork 2").delete()
            assert forks("t") == ["new", "fork 0"]
        with pytest.raises(NotFound):
            forks("nobody")
        with pytest.raises(Invalid):
            forks("")

    def test_fork_survives_deletion_of_its_source(self, store: Store, thread: Thread[Any]) -> None:
        state = {"messages": messages(300)}
        thread.save(state)
        at = thread.append("messages", "one more")
        forked = thread.fork("other")
        thread.delete()
        store.gc()
        expected = {"messages": [*messages(300), "one more"]}
        assert head(store.thread("other")).state == expected
        assert forked.append("messages", "and more").state["messages"][-1] == "and more"
        assert store.verify().ok
        assert next(info for info in store.threads()).forked_from == at.id

    def test_source_survives_deletion_of_its_fork(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(300)})
        thread.fork("other").save({"messages": messages(5)})
        store.thread("other").delete()
        store.gc()
        assert head(thread).state == {"messages": messages(300)}

    def test_it_costs_next_to_nothing(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(2000)})
        chunks = store.stats().chunks
        made = head(thread.fork("other"))
        assert store.stats().chunks == chunks
        assert made.stored < made.size / 20

    def test_writes_to_a_fork_do_not_change_its_source(self, thread: Thread[Any]) -> None:
        thread.save({"l": [1]})
        forked = thread.fork("other")
        forked.append("l", 2)
        forked.tag("@", "x")
        assert head(thread).state == {"l": [1]}
        assert head(thread).tags == ()
        thread.append("l", 3)
        assert head(forked).state == {"l": [1, 2]}

    def test_there_is_nothing_to_undo_in_a_new_fork(self, thread: Thread[Any]) -> None:
        fill(thread, 3)
        forked = thread.fork("other")
        with pytest.raises(Invalid):
            forked.undo()
        with pytest.raises(Invalid):
            forked.redo()
        forked.save({"n": 9})
        assert forked.undo().state == {"n": 3}

    def test_a_deleted_thread_can_be_a_forks_target(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 3)
        gone = store.thread("other").save({"old": 1})
        store.thread("other").delete()
        forked = thread.fork("other")
        assert states(forked.history()) == [{"n": 3}]
        assert forked.save({"n": 4}).step == 4
        assert store.checkpoint(gone.id) is None
        assert forked.undo().state == {"n": 3}
        with pytest.raises(Invalid):
            forked.undo()
        assert {info.id: info.forked_from for info in store.threads()}["other"] is not None

    def test_it_stays_with_its_sources_agent(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t", agent="planner")
        thread.save({"n": 1})
        thread.fork("other")
        store.thread("t").fork("another")
        assert {info.id for info in store.threads(agent="planner")} == {"t", "other", "another"}

    def test_missing_checkpoint_cannot_be_forked(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 1)
        with pytest.raises(NotFound):
            thread.fork("other", at="nothing")
        assert [info.id for info in store.threads()] == ["t"]


class Rewinds(Suite):
    """`rewind`, `undo` and `redo`."""

    def test_after_a_rewind_the_head_is_that_very_checkpoint(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        for ref in (b, b.id, 2, "@-"):
            thread.rewind(c)
            assert thread.rewind(ref) == b
            assert head(thread) == b
            assert head(thread).state == {"n": 2}
            assert list(thread.history()) == [a, b]
            assert thread.current_step == 2
            assert len(thread) == 2

    def test_rewound_checkpoints_are_out_of_view_and_load(self, store: Store, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.rewind(a)
        for made in (b, c):
            assert thread.load(made.id).state == made.state
            assert thread.load(made).step == made.step
            found = store.checkpoint(made.id)
            assert found is not None
            assert found.state == made.state
        store.gc()
        assert thread.load(c.id).state == {"n": 3}
        assert thread.rewind(c) == c
        assert list(thread.history()) == [a, b, c]

    def test_next_save_continues_from_the_rewound_head(self, thread: Thread[Any]) -> None:
        a, _, c = fill(thread, 3)
        thread.rewind(a)
        d = thread.save({"n": 20})
        assert (d.step, d.parent_id) == (2, a.id)
        assert list(thread.history()) == [a, d]
        e = thread.set("m", 1)
        assert (e.step, e.parent_id, e.state) == (3, d.id, {"n": 20, "m": 1})
        assert thread.load(c.id).state == {"n": 3}

    def test_every_way_back_and_forth_shows_its_own_history(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.rewind(b)
        d = thread.save({"n": 4})
        e = thread.save({"n": 5})
        thread.rewind(a)
        f = thread.save({"n": 6})
        paths = {c: [a, b, c], e: [a, b, d, e], d: [a, b, d], f: [a, f], b: [a, b], a: [a]}
        for _ in range(2):
            for target, path in paths.items():
                thread.rewind(target)
                assert list(thread.history()) == path
                assert states(thread.history()) == states(path)
                assert len(thread) == len(path)
                assert [thread.load(step) for step in steps(path)] == path
                assert thread.load(f"@~{len(path) - 1}") == a

    def test_save_after_several_rewinds_continues_that_path(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.rewind(b)
        d, e = thread.save({"n": 4}), thread.save({"n": 5})
        thread.rewind(c)
        thread.save({"n": 6})
        thread.rewind(e)
        g = thread.save({"n": 7})
        assert list(thread.history()) == [a, b, d, e, g]
        assert thread.load(g.id).state == {"n": 7}
        h = thread.save({"n": 8})
        thread.undo()
        thread.undo()
        i = thread.save({"n": 9})
        assert list(thread.history()) == [a, b, d, e, i]
        thread.rewind(h)
        assert list(thread.history()) == [a, b, d, e, g, h]
        assert [thread.load(step) for step in range(1, 7)] == [a, b, d, e, g, h]

    def test_undo_takes_back_a_save(self, thread: Thread[Any]) -> None:
        a, b, _ = fill(thread, 3)
        assert thread.undo() == b
        assert head(thread) == b
        assert thread.undo() == a
        assert list(thread.history()) == [a]
        with pytest.raises(Invalid) as caught:
            thread.undo()
        assert caught.value.code == "invalid.undo"
        assert head(thread) == a

    def test_undo_takes_back_a_rewind(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.rewind(a)
        assert thread.undo() == c
        assert list(thread.history()) == [a, b, c]
        assert thread.undo() == b

    def test_redo_takes_back_an_undo(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.undo()
        thread.undo()
        assert thread.redo() == b
        assert thread.redo() == c
        assert list(thread.history()) == [a, b, c]
        with pytest.raises(Invalid) as caught:
            thread.redo()
        assert caught.value.code == "invalid.redo"

    def test_undo_takes_back_a_redo(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.undo()
        thread.redo()
        assert thread.undo() == b
        assert thread.undo() == a
        assert thread.redo() == b
        assert thread.redo() == c
        assert thread.undo() == b

    def test_a_save_clears_redo(self, thread: Thread[Any]) -> None:
        a, b = fill(thread, 2)
        thread.undo()
        c = thread.save({"n": 3})
        with pytest.raises(Invalid):
            thread.redo()
        assert list(thread.history()) == [a, c]
        assert thread.undo() == a
        assert thread.load(b.id).state == {"n": 2}

    @pytest.mark.parametrize("write", ["append", "set", "delete_at", "step", "update", "rewind"])
    def test_every_kind_of_write_clears_redo(self, thread: Thread[Any], write: str) -> None:
        thread.save({"l": [], "n": 1})
        thread.save({"l": [1], "n": 2})
        thread.undo()
        if write == "append":
            thread.append("l", 5)
        elif write == "set":
            thread.set("n", 5)
        elif write == "delete_at":
            thread.delete_at("n")
        elif write == "step":
            with thread.step() as state:
                state["n"] = 5
        elif write == "update":
            thread.update(lambda _: {"n": 5})
        else:
            thread.rewind("@")
        with pytest.raises(Invalid):
            thread.redo()

    def test_undo_goes_through_a_long_mixture_step_by_step(self, thread: Thread[Any]) -> None:
        heads = [thread.save({"n": 0})]
        for n in range(1, 6):
            heads.append(thread.save({"n": n}))
            heads.append(thread.rewind(heads[n // 2]))
            heads.append(thread.save({"n": -n}))
        for expected in heads[-2::-1]:
            assert thread.undo() == expected
        with pytest.raises(Invalid):
            thread.undo()
        for expected in heads[1:]:
            assert thread.redo() == expected
        with pytest.raises(Invalid):
            thread.redo()

    def test_undo_and_redo_survive_closing_the_store(self, opener: Opener) -> None:
        with opener() as store:
            a, b, c = fill(store.thread("t"), 3)
            store.thread("t").rewind(a)
        with opener() as store:
            assert store.thread("t").undo() == c
        with opener() as store:
            assert store.thread("t").undo() == b
        with opener() as store:
            assert store.thread("t").redo() == c
        with opener() as store:
            assert store.thread("t").redo() == a
            assert ids(store.thread("t").history()) == [a.id]

    def test_moving_is_not_saving(self, store: Store, thread: Thread[Any]) -> None:
        a, _ = fill(thread, 2)
        before = store.stats().checkpoints
        thread.rewind(a)
        thread.undo()
        thread.redo()
        assert store.stats().checkpoints == before

    def test_moving_lets_the_same_handle_save_on(self, store: Store, thread: Thread[Any]) -> None:
        a, _ = fill(thread, 2)
        other: Thread[Any] = store.thread("t")
        other.latest()
        thread.rewind(a)
        thread.save({"n": 3})
        with pytest.raises(Conflict):
            other.save({"n": 4})
        other.undo()
        assert other.save({"n": 5}).parent_id == a.id

    def test_missing_checkpoint_cannot_become_the_head(self, thread: Thread[Any]) -> None:
        _, b = fill(thread, 2)
        with pytest.raises(NotFound):
            thread.rewind("nothing")
        assert head(thread) == b
        with pytest.raises(Invalid):
            thread.redo()
        assert thread.undo().step == 1
