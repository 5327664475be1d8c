"""Restoring: an agent and all its conversations go back to a checkpoint, exactly, and `undo` takes that back."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from backtrail import Conflict, Invalid, Message, NotFound
from tests.conformance.base import Suite
from tests.conformance.derived_values import Dropped
from tests.support.agent_script import SAID, AgentScript
from tests.support.scene import agent, contents, conversation, names, note, usage, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store
    from backtrail.models import AgentCheckpoint
    from tests.conformance.base import Opener


def begun(store: Store) -> AgentCheckpoint:
    """Return a checkpoint of an agent that knows n = 1 and has the conversations c and d."""
    store.agents.save(agent(custom_state={"n": 1}))
    store.conversations.save(conversation("c", "c one"))
    store.conversations.save(conversation("d", "d one"))
    return store.agents.checkpoint("a", "first")


def moved_on(store: Store) -> None:
    """Let time pass after `begun`: everything is another, d is deleted, e is new."""
    note(store, "a", "n", 2)
    store.conversations.append("c", Message.user("c two"))
    store.conversations.delete("d")
    store.conversations.save(conversation("e", "e one"))


_FOLLOWING: dict[str, Callable[[Store, AgentCheckpoint], object]] = {
    "checkpoint": lambda store, _: store.agents.checkpoint("a", "again"),
    "restore": lambda store, made: store.agents.restore(made.id),
    "undo": lambda store, _: store.agents.undo("a"),
    "append": lambda store, _: store.conversations.append("d", Message.user("d two")),
    "fork": lambda store, _: store.conversations.fork("d", new_id="f"),
    "rewind": lambda store, _: store.conversations.thread("d").rewind("@"),
    "tag": lambda store, _: store.conversations.thread("d").tag("@", "x"),
    "delete": lambda store, _: store.conversations.delete("d"),
}


class Restoring(Suite):
    """`restore`."""

    def test_restore_brings_everything_back(self, opener: Opener) -> None:
        with opener() as store:
            made = begun(store)
            before = view(store, "a")
            moved_on(store)
        with opener() as store:
            assert store.agents.restore(made.id) == before[0]
            assert view(store, "a") == before
        with opener() as store:
            assert view(store, "a") == before
            assert store.verify().ok

    def test_restore_hides_later_and_shows_deleted_conversations(self, store: Store) -> None:
        made = begun(store)
        moved_on(store)
        assert store.search("e one") != []
        store.agents.restore(made.id)
        assert store.conversations.get("e") is None
        assert sorted(info.id for info in store.conversations.list("a")) == ["c", "d"]
        assert (contents(store, "c"), contents(store, "d")) == (["c one"], ["d one"])
        assert {hit.conversation_id for hit in store.conversations.search("one")} == {"c", "d"}
        assert store.search("two") == []
        with pytest.raises(NotFound):
            store.conversations.append("e", Message.user("x"))
        store.agents.undo("a")
        assert {hit.conversation_id for hit in store.conversations.search("one")} == {"c", "e"}
        assert [hit.conversation_id for hit in store.conversations.search("two")] == ["c"]

    def test_writes_go_on_after_a_restore(self, store: Store) -> None:
        made = begun(store)
        moved_on(store)
        state = store.agents.restore(made.id)
        store.agents.save(state.set_state("n", 3))
        store.conversations.append("c", Message.user("c other"))
        store.conversations.append("d", Message.user("d two"))
        store.conversations.save(conversation("e", "e anew"))
        assert [version.state.get_state("n") for version in store.agents.history("a")] == [1, 3]
        assert contents(store, "c") == ["c one", "c other"]
        assert contents(store, "e") == ["e anew"]
        later = store.agents.checkpoint("a", "later")
        after = view(store, "a")
        store.agents.restore(made.id)
        store.agents.restore(later.id)
        assert view(store, "a") == after

    def test_value_loaded_before_a_restore_is_stale(self, store: Store) -> None:
        made = begun(store)
        old = store.conversations.load("c")
        moved_on(store)
        stale, said = store.agents.load("a"), store.conversations.load("c")
        store.agents.restore(made.id)
        with pytest.raises(Conflict):
            store.agents.save(stale)
        with pytest.raises(Conflict):
            store.conversations.save(said)
        store.conversations.save(old)  # what it came from is the head again
        assert contents(store, "c") == ["c one"]

    def test_restore_leaves_other_agents_and_threads_alone(self, store: Store) -> None:
        made = begun(store)
        store.agents.save(agent("b"))
        store.conversations.save(conversation("b/c", "x", agent_id="b"))
        store.thread("t", agent="a").save({"n": 1})
        moved_on(store)
        note(store, "b", "n", 1)
        store.thread("t").save({"n": 2})
        before = view(store, "b")
        store.agents.restore(made.id)
        assert view(store, "b") == before
        assert [checkpoint.state for checkpoint in store.thread("t").history()] == [{"n": 1}, {"n": 2}]

    def test_other_checkpoint_ids_are_not_found(self, store: Store) -> None:
        made = begun(store)
        moved_on(store)
        thread = store.thread("t").save({"n": 1})
        own = store.agents.thread("a").load()
        before = view(store, "a")
        for wrong in (thread.id, own.id, made.id[:-1] + "01"[made.id[-1] == "0"], made.id[:8], "first", "nothing", "@"):
            with pytest.raises(NotFound):
                store.agents.restore(wrong)
            assert store.agents.delete_checkpoint(wrong) is False
        store.agents.save(agent("b"))
        with pytest.raises(Invalid):
            store.agents.restore(made.id, agent_id="b")
        assert view(store, "a") == before
        assert names(store.agents.checkpoints("a")) == ["first"]
        store.agents.restore(made.id, agent_id="a")

    def test_restore_copies_no_messages(self, store: Store) -> None:
        store.agents.save(agent())
        texts = [random.Random(n).randbytes(500).hex() for n in range(400)]
        for name in ("c", "d"):
            store.conversations.save(conversation(name, *texts))
            store.conversations.append(name, Message.user("before"))
        made = store.agents.checkpoint("a", "x")
        store.conversations.append("c", Message.user("after"))
        store.conversations.delete("d")
        size = usage(store).payload_bytes
        assert size > 150_000
        store.agents.restore(made.id)
        store.agents.undo("a")
        store.agents.restore(made.id)
        assert usage(store).payload_bytes - size < 4_000
        assert contents(store, "d") == contents(store, "c") == [*texts, "before"]

    @pytest.mark.parametrize("seed", [1, 2])
    def test_twenty_checkpoints_restore_and_undo_in_any_order(self, opener: Opener, seed: int) -> None:
        script = AgentScript(opener, random.Random(seed), ("a",))
        script.do_change("a")
        for _ in range(20):
            for _ in range(script.rnd.randrange(1, 6)):
                script.step((*SAID, "change"))
            script.do_checkpoint("a")
        script.step((*SAID, "change"))
        points = list(script.points)
        script.rnd.shuffle(points)
        for at, point in enumerate(points):
            script.restore(point)
            script.check("a")
            if at % 2 == 0 and seed == 1:
                script.store.gc()
                script.check("a")
            if at % 3:
                script.undo("a")
                script.check("a")
            if at % 2 and seed == 1:
                script.store.gc()
        assert script.store.verify().ok
        script.store.close()

    def test_restore_can_be_part_of_a_transaction(self, store: Store) -> None:
        made = begun(store)
        first = view(store, "a")
        moved_on(store)
        second = view(store, "a")
        with suppress(Dropped), store.transaction():
            store.agents.restore(made.id)
            assert view(store, "a") == first
            store.conversations.append("d", Message.user("d two"))
            raise Dropped
        assert view(store, "a") == second
        with pytest.raises(Invalid):
            store.agents.undo("a")
        with store.transaction():
            store.agents.restore(made.id)
            store.conversations.append("c", Message.user("c other"))
            store.conversations.save(conversation("f", "f one"))
        assert contents(store, "c") == ["c one", "c other"]
        assert sorted(info.id for info in store.conversations.list("a")) == ["c", "d", "f"]
        with pytest.raises(Conflict):
            store.agents.undo("a")
        with store.transaction():
            store.agents.undo("a", force=True)
        assert view(store, "a") == second
        with store.transaction():
            store.agents.restore(made.id)
            store.agents.undo("a")
        assert view(store, "a") == second

    @pytest.mark.parametrize("then", _FOLLOWING)
    def test_transaction_can_append_to_a_restored_conversation(self, store: Store, then: str) -> None:
        made = begun(store)
        store.conversations.delete("d")
        with store.transaction():
            store.agents.restore(made.id)
            _FOLLOWING[then](store, made)
            shown = view(store, "a")
        assert view(store, "a") == shown
        assert ("d" in shown[1]) == (then not in ("undo", "delete"))
        assert store.verify().ok

    def test_a_checkpoint_of_a_dropped_transaction_cannot_be_restored(self, store: Store) -> None:
        begun(store)
        made: list[AgentCheckpoint] = []
        with suppress(Dropped), store.transaction():
            store.conversations.append("c", Message.user("x"))
            made.append(store.agents.checkpoint("a", "inside"))
            raise Dropped
        assert names(store.agents.checkpoints("a")) == ["first"]
        with pytest.raises(NotFound):
            store.agents.restore(made[0].id)
        store.conversations.append("c", Message.user("y"))
        assert store.agents.checkpoint("a", "second").conversations == 2
        store.agents.restore(store.agents.checkpoints("a")[0].id)
        assert contents(store, "c") == ["c one", "y"]


class Undoing(Suite):
    """`undo`, and when it refuses."""

    def test_undo_brings_everything_back(self, opener: Opener) -> None:
        with opener() as store:
            made = begun(store)
            moved_on(store)
            before = view(store, "a")
            store.agents.restore(made.id)
        with opener() as store:
            assert store.agents.undo("a") == before[0]
            assert view(store, "a") == before
            with pytest.raises(Invalid):
                store.agents.undo("a")

    def test_several_restores_are_undone_one_after_the_other(self, store: Store) -> None:
        points, views = [begun(store)], [view(store, "a")]
        for n in range(2, 5):
            note(store, "a", "n", n)
            store.conversations.save(conversation(f"x{n}", str(n)))
            points.append(store.agents.checkpoint("a", str(n)))
            views.append(view(store, "a"))
        for at in (0, 2, 1, 3, 0):
            store.agents.restore(points[at].id)
            store.gc()
        for at in (3, 1, 2, 0, 3):
            store.agents.undo("a")
            store.gc()
            assert view(store, "a") == views[at]
        with pytest.raises(Invalid):
            store.agents.undo("a")

    def test_only_the_last_ten_restores_can_be_undone(self, store: Store) -> None:
        made = begun(store)
        for n in range(12):
            note(store, "a", "n", n)
            store.agents.restore(made.id)
            store.gc()
        for n in range(11, 1, -1):
            store.agents.undo("a", force=n < 11)
            assert store.agents.load("a").get_state("n") == n
        with pytest.raises(Invalid):
            store.agents.undo("a")

    def test_undo_conflict_names_changed_conversations(self, store: Store) -> None:
        made = begun(store)
        moved_on(store)
        before = view(store, "a")
        store.agents.restore(made.id)
        store.conversations.append("d", Message.user("d two"))
        with pytest.raises(Conflict) as caught:
            store.agents.undo("a")
        assert caught.value.details["conversations"] == ["d"]
        assert "'d'" in str(caught.value)
        note(store, "a", "n", 9)
        store.conversations.delete("c")
        store.conversations.save(conversation("new", "x"))
        with pytest.raises(Conflict) as caught:
            store.agents.undo("a")
        assert caught.value.details["conversations"] == ["c", "d", "new"]
        assert "state" in str(caught.value)
        assert contents(store, "d") == ["d one", "d two"]
        store.agents.undo("a", force=True)
        assert view(store, "a") == before
        assert store.conversations.get("new") is None

    def test_undo_restores_data_deleted_before_gc(self, store: Store) -> None:
        made = begun(store)
        moved_on(store)
        before = view(store, "a")
        store.agents.restore(made.id)
        store.agents.delete_checkpoint(made.id)
        for name in ("c", "d"):
            store.conversations.delete(name)
        store.agents.thread("a").prune(keep_last=0, keep_tagged=False)
        store.gc()
        store.agents.undo("a", force=True)
        assert view(store, "a") == before
        assert store.verify().ok

    def test_checkpoints_and_other_agents_do_not_block_undo(self, store: Store) -> None:
        made = begun(store)
        moved_on(store)
        before = view(store, "a")
        store.agents.restore(made.id)
        store.agents.checkpoint("a", "since")
        store.conversations.save(conversation("b/c", "x", agent_id="b"))
        store.thread("t", agent="a").save({"n": 1})
        store.agents.delete_checkpoint(made.id)
        store.gc()
        store.agents.undo("a")
        assert view(store, "a") == before
        assert contents(store, "b/c") == ["x"]

    def test_undone_restore_can_be_made_again(self, store: Store) -> None:
        made = begun(store)
        first = view(store, "a")
        moved_on(store)
        second = view(store, "a")
        for _ in range(3):
            store.agents.restore(made.id)
            assert view(store, "a") == first
            store.agents.undo("a")
            assert view(store, "a") == second
        kept = store.agents.checkpoint("a", "second")
        store.agents.restore(made.id)
        store.agents.restore(kept.id)
        assert view(store, "a") == second

    def test_undo_restores_the_absence_of_an_agent_state(self, store: Store) -> None:
        made = begun(store)
        store.agents.thread("a").delete()
        store.agents.restore(made.id)
        store.agents.undo("a")
        assert store.agents.get("a") is None
