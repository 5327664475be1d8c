"""Values know the head that they were loaded from: they are saved on top of it, or not at all."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

import backtrail
from backtrail import AgentState, Conflict
from tests.conformance.base import Suite
from tests.support.scene import agent, contents, conversation, note

if TYPE_CHECKING:
    from backtrail import Store


class Dropped(Exception):  # noqa: N818 - it is no error
    """Drops a transaction."""


class Values(Suite):
    """A value is saved on top of the head that it was loaded from, or not at all."""

    def test_a_stale_value_is_a_conflict(self, store: Store) -> None:
        store.agents.save(agent())
        one, other = store.agents.load("a"), store.agents.load("a")
        store.agents.save(one.set_state("k", 1))
        for value in (other, other.set_state("k", 2), replace(other, name="x"), copy.deepcopy(other)):
            with pytest.raises(Conflict) as caught:
                store.agents.save(value)
            assert caught.value.code == "conflict.stale"
        assert store.agents.load("a").get_state("k") == 1
        assert store.agents.save(other, replace=True) == other
        assert store.agents.load("a").get_state("k") is None
        assert len(store.agents.history("a")) == 3

    def test_new_value_with_a_taken_id_conflicts(self, store: Store) -> None:
        store.agents.save(agent(custom_state={"k": 1}))
        with pytest.raises(Conflict) as caught:
            store.agents.save(agent())
        assert caught.value.code == "conflict.exists"
        store.conversations.save(conversation("c", "hello"))
        with pytest.raises(Conflict):
            store.conversations.save(conversation("c", "bye"))
        assert (store.agents.load("a").get_state("k"), contents(store, "c")) == (1, ["hello"])
        store.agents.save(agent(), replace=True)
        store.conversations.save(conversation("c", "bye"), replace=True)
        assert (store.agents.load("a").get_state("k"), contents(store, "c")) == (None, ["bye"])

    def test_a_value_that_was_saved_can_be_saved_again(self, store: Store) -> None:
        made = agent()
        for _ in range(3):
            store.agents.save(made)
        assert len(store.agents.history("a")) == 3
        said = conversation("c", "hello")
        for _ in range(2):
            store.conversations.save(said)
        assert len(store.conversations.thread("c")) == 2

    def test_values_derived_after_a_save_know_the_new_head(self, store: Store) -> None:
        made = agent()
        before = made.set_state("k", "before")
        store.agents.save(made)
        with pytest.raises(Conflict):
            store.agents.save(before)
        after = made.set_state("k", "after")
        store.agents.save(after)
        with pytest.raises(Conflict):
            store.agents.save(made)
        store.agents.save(replace(after, name="Bea").touch().remove_state("k"))
        assert store.agents.load("a").name == "Bea"

    def test_stored_and_new_values_are_equal(self, store: Store) -> None:
        made, said = agent(), conversation("c", "hello")
        store.agents.save(made)
        store.conversations.save(said)
        assert (store.agents.load("a"), store.conversations.load("c")) == (made, said)
        assert hash(store.agents.load("a")) == hash(made)
        assert "head" not in repr(store.agents.load("a"))

    def test_value_of_another_store_is_saved_as_new(self, store: Store) -> None:
        with backtrail.open("memory://") as other:
            other.agents.save(agent(custom_state={"from": "other"}))
            foreign = other.agents.load("a")
            store.agents.save(foreign)
            assert store.agents.load("a") == foreign
            note(store, "a", "k", 1)
            with pytest.raises(Conflict):
                store.agents.save(other.agents.load("a"))
            with pytest.raises(Conflict):
                other.agents.save(store.agents.load("a"))
        assert store.agents.load("a").get_state("k") == 1

    def test_old_value_does_not_restore_a_deleted_one(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "hello"))
        old, said = store.agents.load("a"), store.conversations.load("c")
        store.agents.delete("a")
        for _ in range(2):
            with pytest.raises(Conflict):
                store.agents.save(old.set_state("k", 1))
            with pytest.raises(Conflict):
                store.conversations.save(said)
            store.gc()
        assert (store.agents.get("a"), store.conversations.get("c")) == (None, None)
        store.agents.save(agent(custom_state={"k": "new"}))
        with pytest.raises(Conflict):
            store.agents.save(old)
        assert store.agents.load("a").get_state("k") == "new"

    def test_a_conflict_speaks_of_agents_and_conversations(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "hello"))
        old, said = store.agents.load("a"), store.conversations.load("c")
        note(store, "a", "k", 1)
        store.conversations.append("c", backtrail.Message.user("more"))
        for words in ("has changed", "was deleted"):
            with pytest.raises(Conflict, match=f"agent 'a' {words}") as first:
                store.agents.save(old)
            with pytest.raises(Conflict, match=f"conversation 'c' {words}") as second:
                store.conversations.save(said)
            assert "thread" not in f"{first.value} {second.value}"
            store.agents.delete("a")

    def test_value_rebuilt_from_fields_is_new(self, store: Store) -> None:
        state = store.agents.save(agent(custom_state={"k": 1}))
        again = AgentState(**asdict(state))
        assert again == state
        with pytest.raises(Conflict) as caught:
            store.agents.save(again)
        assert caught.value.code == "conflict.exists"
        store.agents.save(again, replace=True)
        store.agents.save(again.set_state("k", 2))
        assert store.agents.load("a").get_state("k") == 2

    def test_an_id_that_was_changed_makes_another_one(self, store: Store) -> None:
        store.agents.save(agent())
        twin = replace(store.agents.load("a"), agent_id="b")
        store.agents.save(twin)
        store.agents.save(twin.set_state("k", 1))
        assert (store.agents.load("a").get_state("k"), store.agents.load("b").get_state("k")) == (None, 1)

    def test_a_conversation_stays_with_its_agent(self, store: Store) -> None:
        store.conversations.save(conversation("c", "hello"))
        for value in (replace(store.conversations.load("c"), agent_id="b"), conversation("c", agent_id="b")):
            for over in (False, True):
                with pytest.raises(Conflict):
                    store.conversations.save(value, replace=over)
        assert store.conversations.load("c").agent_id == "a"
        assert store.conversations.list("b") == []

    def test_value_saved_in_a_dropped_transaction_is_new_again(self, store: Store) -> None:
        made = agent()
        with suppress(Dropped), store.transaction():
            store.agents.save(made)
            store.agents.save(made)
            raise Dropped
        assert store.agents.get("a") is None
        store.agents.save(made)
        loaded = store.agents.load("a")
        with suppress(Dropped), store.transaction():
            store.agents.save(loaded)
            raise Dropped
        store.agents.save(loaded)
        assert len(store.agents.history("a")) == 2

    def test_value_knows_its_head_after_a_transaction(self, store: Store) -> None:
        made = agent()
        with store.transaction():
            store.agents.save(made)
            store.agents.save(made)
        store.agents.save(made.set_state("k", 1))
        with pytest.raises(Conflict):
            store.agents.save(made)
        assert len(store.agents.history("a")) == 3

    def test_values_derived_in_a_transaction_know_its_saves(self, store: Store) -> None:
        with store.transaction():
            made = store.agents.save(agent())
            store.agents.save(made.set_state("k", 1))
        assert store.agents.load("a").get_state("k") == 1

    def test_value_can_be_changed_in_a_transaction(self, store: Store) -> None:
        store.agents.save(agent())
        with store.transaction():
            note(store, "a", "k", 1)
            note(store, "a", "l", 2)
        assert store.agents.load("a").custom_state == {"k": 1, "l": 2}

    def test_value_loaded_in_a_dropped_transaction_knows_its_head(self, store: Store) -> None:
        store.agents.save(agent())
        loaded: list[AgentState] = []
        with suppress(Dropped), store.transaction():
            loaded.append(store.agents.load("a"))
            raise Dropped
        store.agents.save(loaded[0].set_state("k", 1))
        assert store.agents.load("a").get_state("k") == 1

    def test_conversations_follow_the_same_rules(self, store: Store) -> None:
        said = store.conversations.save(conversation("c", "one"))
        stale = store.conversations.load("c")
        store.conversations.append("c", backtrail.Message.user("two"))
        for value in (said, stale, stale.add_message(backtrail.Message.user("three")), stale.auto_title()):
            with pytest.raises(Conflict):
                store.conversations.save(value)
        fresh = store.conversations.load("c").add_message(backtrail.Message.user("three"))
        store.conversations.save(fresh)
        assert contents(store, "c") == ["one", "two", "three"]
