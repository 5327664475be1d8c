"""Agents: saved, loaded, listed, deleted; their versions; their names."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import backtrail
from backtrail import AgentState, Conflict, Conversation, Corrupt, Invalid, NotFound
from backtrail.engine.schema import upcast as versions
from tests.conformance.base import Suite, head
from tests.support.exact import same
from tests.support.scene import agent, contents, conversation, names, note, view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail import Store
    from tests.conformance.base import Opener

IDS = ("a", "A", "a_b", "a/b", "a.b", "a\0b", "../a", "latest", " ", "@", "%", "\N{GRINNING FACE}", "x" * 512)


class Agents(Suite):
    """`store.agents`: save, load, get, list, history, delete."""

    def test_an_agent_comes_back_as_it_was_saved(self, opener: Opener) -> None:
        whole = agent(
            "planner",
            system_prompt="You plan.\0",
            capabilities=["search", "book"],
            config={"temperature": 0.5, "stop": ["x"], "nested": {"a": (1, b"\xff")}},
            custom_state={"seen": {1, 2}, "when": dt.datetime(2026, 1, 31, tzinfo=dt.UTC), "big": 2**70},
            active_conversations=["c1", "c2"],
            version=3,
            metadata={"team": "travel"},
        )
        with opener() as store:
            assert store.agents.save(whole) == whole
        with opener() as store:
            loaded = store.agents.load("planner")
            assert loaded == whole
            for name in AgentState.__slots__:
                if name != "_saved":
                    assert same(getattr(loaded, name), getattr(whole, name)), name

    def test_missing_agent_is_none_not_found_or_empty(self, store: Store) -> None:
        assert store.agents.get("x") is None
        assert store.agents.list() == []
        assert store.agents.history("x") == []
        assert store.agents.checkpoints("x") == []
        assert store.agents.delete("x") is False
        assert store.agents.delete_checkpoint("x") is False
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.agents.load("x"),
            lambda: store.agents.checkpoint("x", "n"),
            lambda: store.agents.restore("0" * 24),
            lambda: store.agents.guard("x", "n").__enter__(),
        )
        for call in calls:
            with pytest.raises(NotFound):
                call()
        with pytest.raises(Invalid):
            store.agents.undo("x")
        assert list(store.threads(kind="agent")) == []
        assert store.stats().checkpoints == 0

    def test_the_newest_is_listed_first(self, store: Store) -> None:
        for name in "xyz":
            store.agents.save(agent(name, version=2))
        note(store, "y", "k", 1)
        infos = store.agents.list()
        assert [info.agent_id for info in infos] == ["y", "z", "x"]
        loaded = store.agents.load("y")
        first = infos[0]
        assert (first.name, first.agent_type, first.version) == ("Ada", "a-model", 2)
        assert (first.created_at, first.modified_at, first.damaged) == (loaded.created_at, loaded.modified_at, None)

    def test_history_has_changes_and_times(self, store: Store) -> None:
        made = store.agents.save(agent(custom_state={"k": 1}))
        made = store.agents.save(made.set_state("k", 2))
        store.agents.save(replace(made, name="Bea"))
        one, two, three = store.agents.history("a")
        assert (len(one.changes), [str(change.path) for change in two.changes]) == (0, ["custom_state.k"])
        assert [(c.op, str(c.path), c.old, c.new) for c in three.changes] == [("~", "name", "Ada", "Bea")]
        assert [v.state.get_state("k") for v in (one, two, three)] == [1, 2, 2]
        assert [v.step for v in (one, two, three)] == [1, 2, 3]
        assert store.agents.history("a", newest_first=True) == [three, two, one]
        assert store.agents.history("a", limit=1) == [three]
        assert store.agents.history("a", limit=2) == [two, three]
        assert store.agents.history("a", limit=0) == []
        with pytest.raises(Invalid):
            store.agents.history("a", limit=-1)

    def test_older_version_loads_by_ref(self, store: Store) -> None:
        made = store.agents.save(agent())
        store.agents.save(made.set_state("k", 1))
        first = store.agents.history("a")[0]
        for at in (first.id, 1, "@-"):
            assert store.agents.load("a", at=at) == first.state
        with pytest.raises(NotFound):
            store.agents.load("a", at=7)
        with pytest.raises(Conflict):
            store.agents.save(store.agents.load("a", at=1))

    def test_only_agents_are_saved_as_agents(self, store: Store) -> None:
        values: tuple[Any, ...] = ({"agent_id": "a"}, conversation("c"), None, "a")
        for value in values:
            with pytest.raises(Invalid):
                store.agents.save(value)
        with pytest.raises(Invalid) as caught:
            store.agents.save(agent(custom_state={"f": len}))
        assert "custom_state" in str(caught.value.path)
        assert store.agents.list() == []

    def test_a_deleted_agent_is_gone_and_can_begin_again(self, store: Store) -> None:
        store.agents.save(agent(custom_state={"k": 1}))
        store.conversations.save(conversation("c", "hello"))
        store.thread("t", agent="a").save({"n": 1})
        store.thread("u", agent="b").save({"n": 1})
        made = store.agents.checkpoint("a", "x")
        assert store.agents.delete("a") is True
        assert store.agents.delete("a") is False
        assert store.agents.get("a") is None
        assert store.conversations.get("c") is None
        assert store.conversations.list("a") == []
        assert store.agents.checkpoints("a") == []
        assert store.search("hello") == []
        assert [info.id for info in store.threads()] == ["u"]
        with pytest.raises(NotFound):
            store.agents.restore(made.id)
        store.agents.save(agent(custom_state={"k": 2}))
        assert [version.step for version in store.agents.history("a")] == [1]
        assert store.agents.checkpoint("a", "y").conversations == 0
        with pytest.raises(NotFound):
            store.agents.restore(made.id)

    def test_conversation_of_an_agent_without_state_is_allowed(self, store: Store) -> None:
        store.conversations.save(conversation("c", "hello", agent_id="later"))
        assert store.agents.get("later") is None
        assert [info.id for info in store.conversations.list("later")] == ["c"]
        assert store.agents.list() == []
        store.agents.save(agent("later"))
        assert store.agents.checkpoint("later", "x").conversations == 1
        assert store.agents.delete("later") is True
        store.conversations.save(conversation("d", agent_id="never"))
        assert store.agents.delete("never") is True
        assert store.conversations.get("d") is None

    @pytest.mark.parametrize("state", [[1, 2], "text", None, 5])
    def test_state_of_no_agent_is_corrupt_and_listed_damaged(self, store: Store, state: Any) -> None:
        store.agents.save(agent("b"))
        made = store.agents.save(agent())
        store.agents.thread("a").save(state)
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.agents.load("a"),
            lambda: store.agents.get("a"),
            lambda: store.agents.history("a"),
        )
        for call in calls:
            with pytest.raises(Corrupt) as caught:
                call()
            assert caught.value.code == "corrupt.state"
        damaged, sound = store.agents.list()
        assert (damaged.agent_id, damaged.name, damaged.damaged is None) == ("a", None, False)
        assert (sound.agent_id, sound.name, sound.damaged) == ("b", "Ada", None)
        assert store.agents.load("a", at="@-") == made

    def test_agent_started_by_its_thread_is_listed(self, store: Store) -> None:
        store.agents.save(agent("b"))
        store.agents.thread("a").save({**head(store.agents.thread("b")).state, "agent_id": "a"})
        assert store.agents.load("a").agent_id == "a"
        assert store.agents.checkpoint("a", "x").conversations == 0
        assert store.agents.delete("a") is True
        assert store.agents.get("a") is None


@contextmanager
def upcasting(*functions: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """Register upcasters of AgentState, from version 1 on, for the block."""
    known = dict(versions._UPCASTERS)
    table: Any = versions._UPCASTERS
    with mock.patch.object(versions, "_UPCASTERS", type(table)(known)):
        for at, function in enumerate(functions, 1):
            backtrail.upcast(AgentState, from_version=at)(function)
        yield
    versions._SCHEMAS.clear()


def _cities(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "custom_state": {"cities": [fields["custom_state"]["city"]]}}


def _budget(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "config": {**fields["config"], "budget": 100}}


class AgentVersions(Suite):
    """States of older versions are read as the newest."""

    def test_reading_upcasts_to_the_newest_version(self, opener: Opener) -> None:
        with opener() as store:
            store.agents.save(agent(custom_state={"city": "Lisbon"}))
        with opener() as store, upcasting(_cities, _budget):
            loaded = store.agents.load("a")
            assert (loaded.version, loaded.custom_state, loaded.config) == (3, {"cities": ["Lisbon"]}, {"budget": 100})
            assert store.agents.history("a")[0].state == loaded
            store.agents.save(loaded.set_state("k", 1))
            assert store.agents.load("a").custom_state == {"cities": ["Lisbon"], "k": 1}
            assert [version.state.version for version in store.agents.history("a")] == [3, 3]
        with opener() as store:
            assert store.agents.load("a").version == 3
            assert store.agents.load("a", at=1).custom_state == {"city": "Lisbon"}

    def test_restored_old_state_is_upcast(self, store: Store) -> None:
        store.agents.save(agent(custom_state={"city": "Lisbon"}))
        made = store.agents.checkpoint("a", "x")
        with upcasting(_cities):
            note(store, "a", "k", 1)
            assert store.agents.restore(made.id).custom_state == {"cities": ["Lisbon"]}
            undone = store.agents.undo("a")
            assert undone is not None
            assert undone.custom_state == {"cities": ["Lisbon"], "k": 1}

    def test_agent_of_a_newer_version_is_refused_and_kept(self, store: Store) -> None:
        made = store.agents.save(agent(version=5))
        with upcasting(_cities):
            with pytest.raises(Invalid):
                store.agents.load("a")
            assert [info.agent_id for info in store.agents.list()] == ["a"]
        assert store.agents.load("a") == made

    def test_an_upcaster_that_fails_is_named_and_harms_nothing(self, store: Store) -> None:
        store.agents.save(agent())
        with upcasting(_cities), pytest.raises(Invalid) as caught:
            store.agents.load("a")
        assert "from version 1" in str(caught.value)
        assert store.agents.load("a") == store.agents.history("a")[0].state

    def test_restore_to_an_unreadable_state_changes_nothing(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "old"))
        made = store.agents.checkpoint("a", "old")
        with upcasting(_cities):
            store.agents.save(agent(custom_state={"cities": []}), replace=True)
            store.conversations.save(conversation("c", "new"), replace=True)
            before = view(store, "a")
            for _ in range(2):
                with pytest.raises(Invalid) as caught:
                    store.agents.restore(made.id)
                assert "from version 1" in str(caught.value)
                assert view(store, "a") == before
            with pytest.raises(Invalid) as caught:
                store.agents.undo("a")
            assert caught.value.code == "invalid.undo"
        store.agents.restore(made.id)
        assert contents(store, "c") == ["old"]

    def test_undo_to_an_unreadable_state_changes_nothing(self, store: Store) -> None:
        with upcasting(_cities):
            store.agents.save(agent(custom_state={"cities": []}))
            made = store.agents.checkpoint("a", "new")
        store.agents.save(agent(), replace=True)
        store.conversations.save(conversation("c", "old"))
        with upcasting(_cities):
            store.agents.restore(made.id)
            before = view(store, "a")
            for force in (False, True):
                with pytest.raises(Invalid) as caught:
                    store.agents.undo("a", force=force)
                assert "from version 1" in str(caught.value)
                assert view(store, "a") == before
        store.agents.undo("a")
        assert contents(store, "c") == ["old"]

    def test_rollback_to_an_unreadable_state_raises_and_changes_nothing(self, store: Store) -> None:
        store.agents.save(agent())
        with upcasting(_cities):
            with pytest.raises(Invalid) as caught, store.agents.guard("a", "upgrade", rollback=True):
                store.agents.save(agent(custom_state={"cities": []}), replace=True)
                raise ZeroDivisionError
            assert "from version 1" in str(caught.value)
            assert store.agents.load("a").custom_state == {"cities": []}
        assert names(store.agents.checkpoints("a")) == ["upgrade"]

    def test_a_new_state_is_of_the_newest_version(self, store: Store) -> None:
        with upcasting(_cities):
            made = store.agents.save(agent(custom_state={"cities": []}))
            assert store.agents.load("a").custom_state == made.custom_state


class AgentNames(Suite):
    """Ids are data: whatever they are, they are kept apart."""

    def test_agents_and_conversations_of_any_id_are_isolated(self, opener: Opener) -> None:
        with opener() as store:
            for name in IDS:
                store.agents.save(agent(name, custom_state={"id": name}))
                store.conversations.save(conversation(name, f"I am {name}", agent_id=name))
        with opener() as store:
            assert {info.agent_id for info in store.agents.list()} == set(IDS)
            for name in IDS:
                assert store.agents.load(name).custom_state == {"id": name}
                assert [info.id for info in store.conversations.list(name)] == [name]
                assert contents(store, name) == [f"I am {name}"]

    def test_an_agents_own_thread_is_not_forked(self, store: Store) -> None:
        store.agents.save(agent("a"))
        with pytest.raises(Invalid) as error:
            store.agents.thread("a").fork("b")
        assert error.value.code == "invalid.argument"
        assert [info.id for info in store.threads(kind="agent")] == ["a"]
        assert store.agents.restore(store.agents.checkpoint("a", "x").id).agent_id == "a"

    def test_delete_keeps_other_agents(self, store: Store) -> None:
        for name in IDS:
            store.agents.save(agent(name))
            store.conversations.save(conversation(name, "x", agent_id=name))
            store.agents.checkpoint(name, "x")
        left = list(IDS)
        for name in ("a", "a/b", "a\0b", "%"):
            assert store.agents.delete(name) is True
            left.remove(name)
        store.gc()
        assert {info.agent_id for info in store.agents.list()} == set(left)
        for name in IDS:
            there = name in left
            assert (store.conversations.get(name) is not None) == there
            assert len(store.agents.checkpoints(name)) == there

    def test_agent_conversation_and_thread_may_share_a_name(self, store: Store) -> None:
        store.agents.save(agent("x", custom_state={"k": 1}))
        store.conversations.save(conversation("x", "hello", agent_id="x"))
        store.thread("x").save({"n": 1})
        store.agents.checkpoint("x", "x")
        assert store.conversations.delete("x") is True
        assert store.agents.load("x").get_state("k") == 1
        assert head(store.thread("x")).state == {"n": 1}
        store.conversations.save(conversation("x", "again", agent_id="x"))
        assert store.agents.delete("x") is True
        assert head(store.thread("x")).state == {"n": 1}

    @pytest.mark.parametrize("bad", ["", "x" * 513, 5, None, b"a"])
    def test_invalid_ids_are_refused(self, store: Store, bad: Any) -> None:
        calls: tuple[Callable[[], object], ...] = (
            lambda: agent(bad),
            lambda: conversation(bad),
            lambda: Conversation(bad),
            lambda: store.agents.load(bad),
            lambda: store.agents.get(bad),
            lambda: store.agents.delete(bad),
            lambda: store.agents.checkpoint(bad, "n"),
            lambda: store.agents.checkpoints(bad),
            lambda: store.agents.restore(bad),
            lambda: store.agents.undo(bad),
            lambda: store.agents.delete_checkpoint(bad),
            lambda: store.conversations.load(bad),
            lambda: store.conversations.delete(bad),
            lambda: store.conversations.list(bad),
            lambda: store.conversations.tail(bad, 1),
            lambda: store.conversations.fork(bad),
            lambda: store.conversations.branches(bad),
        )
        for call in calls:
            with pytest.raises(Invalid):
                call()
        assert list(store.threads(kind="agent")) == []
