"""Inspection: the content of an agent checkpoint is read without a restore."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backtrail import Conflict, Message, NotFound
from tests.conformance.base import Suite
from tests.conformance.restore import begun, moved_on
from tests.support.scene import agent, conversation, names, note, view

if TYPE_CHECKING:
    from backtrail import Store
    from tests.conformance.base import Opener


class Looking(Suite):
    """`load(at=)` with the checkpoint of an agent, and `get_checkpoint`."""

    def test_state_at_a_checkpoint_loads_without_changes(self, opener: Opener) -> None:
        with opener() as store:
            made = begun(store)
            state, said = view(store, "a")
            moved_on(store)
            now = view(store, "a")
            store.gc()
        with opener() as store:
            for at in (made, made.id):
                assert store.agents.load("a", at=at) == state
                assert store.conversations.load("c", at=at) == said["c"]
                assert store.conversations.load("d", at=at) == said["d"]  # deleted since, and collected
            assert view(store, "a") == now
            assert names(store.agents.checkpoints("a")) == ["first"]

    def test_value_loaded_at_a_checkpoint_is_stale(self, store: Store) -> None:
        made = begun(store)
        same = store.agents.load("a", at=made)
        moved_on(store)
        for call in (
            lambda: store.agents.save(store.agents.load("a", at=made)),
            lambda: store.conversations.save(store.conversations.load("c", at=made)),
            lambda: store.conversations.save(store.conversations.load("d", at=made)),
            lambda: store.agents.save(same),
        ):
            with pytest.raises(Conflict) as caught:
                call()
            assert caught.value.code == "conflict.stale"
        store.agents.restore(made)
        store.agents.save(store.agents.load("a", at=made).set_state("n", 3))

    def test_thread_outside_the_checkpoint_is_not_found(self, store: Store) -> None:
        made = begun(store)
        store.conversations.save(conversation("e"))
        store.agents.save(agent("b"))
        store.conversations.save(conversation("of b", agent_id="b"))
        theirs = store.agents.checkpoint("b", "theirs")
        gone = store.agents.checkpoint("a", "gone")
        store.agents.delete_checkpoint(gone)
        for point, agent_id, held in ((made, "b", "of b"), (theirs, "a", "c"), (gone, "a", "c")):
            for at in (point, point.id):
                with pytest.raises(NotFound):
                    store.agents.load(agent_id, at=at)
                for name in (held, "e", "never"):
                    with pytest.raises(NotFound):
                        store.conversations.load(name, at=at)

    def test_refs_resolve_as_at_the_checkpoint(self, store: Store) -> None:
        begun(store)
        first = store.conversations.thread("c").load()
        store.conversations.append("c", Message.user("c two"))
        for at in (first, first.id, 1, "@-"):
            assert store.conversations.load("c", at=at).message_count == 1
        for wrong in ("0" * 24, "nothing", 9):
            with pytest.raises(NotFound):
                store.conversations.load("c", at=wrong)

    def test_a_checkpoint_is_got_by_its_id(self, opener: Opener) -> None:
        with opener() as store:
            made = begun(store)
            newer = store.agents.checkpoint("a", "newer", description="why", kind="pre_operation")
        with opener() as store:
            for point in (made, newer):
                assert store.agents.get_checkpoint(point.id) == point
            own = store.agents.thread("a").load()
            for wrong in (own.id, "0" * 24, "first"):
                assert store.agents.get_checkpoint(wrong) is None
            store.agents.delete_checkpoint(newer.id)
            assert store.agents.get_checkpoint(newer.id) is None

    def test_a_checkpoint_is_restored_and_deleted_by_itself(self, store: Store) -> None:
        made = begun(store)
        note(store, "a", "n", 2)
        assert store.agents.restore(made).get_state("n") == 1
        assert store.agents.delete_checkpoint(made) is True
        assert store.agents.delete_checkpoint(made) is False
        assert store.agents.checkpoints("a") == []
