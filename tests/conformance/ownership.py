"""Restores and other agents, options of the store, pruning and deletion."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backtrail import Conflict, Message, transaction
from backtrail.engine import log, manifests, writer
from tests.conformance.base import Clock, Suite
from tests.conformance.restore import begun, moved_on
from tests.support.scene import agent, contents, conversation, names, note, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail import Store
    from backtrail.models import AgentCheckpoint
    from tests.conformance.base import Opener


@contextmanager
def impatient() -> Iterator[None]:
    """Lower the number of retries."""
    with mock.patch.object(transaction, "PATIENCE", 0.05), mock.patch.object(writer, "PATIENCE", 0.05):
        yield


class Owning(Suite):
    """Conversations whose id another agent uses now."""

    def test_other_agents_cannot_take_a_held_conversation_id(self, store: Store) -> None:
        made = begun(store)
        store.conversations.delete("c")
        store.conversations.save(conversation("of b", agent_id="b"))
        with pytest.raises(Conflict, match="of agent 'a'"):
            store.conversations.save(conversation("c", "other", agent_id="b"))
        with pytest.raises(Conflict, match="of agent 'a'"):
            store.conversations.fork("of b", new_id="c")
        assert store.conversations.get("c") is None
        store.conversations.save(conversation("c", "again"))
        store.agents.restore(made.id)
        assert contents(store, "c") == ["c one"]

    def test_unheld_conversation_id_may_be_taken(self, store: Store) -> None:
        begun(store)
        store.agents.delete("a")
        store.conversations.save(conversation("c", "other", agent_id="b"))
        store.agents.save(agent())
        assert store.agents.checkpoint("a", "second").conversations == 0
        store.conversations.delete("c")
        store.conversations.save(conversation("c", "mine"))
        made = store.agents.checkpoint("a", "third")
        assert made.conversations == 1
        store.conversations.delete("c")
        store.agents.restore(made.id)
        assert contents(store, "c") == ["mine"]

    def test_branches_lists_only_those_in_view(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "one", "two"))
        store.conversations.fork("c", at="c0", new_id="branch")
        store.conversations.save(conversation("plain", "x"))
        made = store.agents.checkpoint("a", "x")
        store.conversations.delete("branch")
        store.conversations.delete("plain")
        store.conversations.save(conversation("branch", "no branch"))
        store.conversations.fork("c", at="c0", new_id="plain")
        store.agents.restore(made.id)
        assert store.conversations.load("branch").forked_from == "c"
        assert [info.id for info in store.conversations.branches("c")] == ["branch"]

    def test_conversation_out_of_view_can_be_deleted(self, store: Store) -> None:
        made = begun(store)
        store.conversations.save(conversation("secret", "a canary " * 20))
        store.agents.restore(made.id)
        assert store.conversations.delete("secret") is True


class Keeping(Suite):
    """Store options, pruning and deletion do not break a restore."""

    def _check(self, store: Store, made: AgentCheckpoint, before: Any) -> None:
        store.gc()
        now = view(store, "a")
        store.agents.restore(made.id)
        assert view(store, "a") == before
        store.agents.undo("a")
        assert view(store, "a") == now
        assert store.verify().ok

    def test_max_checkpoints_keeps_pinned_rows(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            made = begun(store)
            before = view(store, "a")
            for n in range(70):  # now and then what is hidden is removed, too
                store.conversations.append("c", Message.user(str(n)))
                note(store, "a", "n", n)
            assert len(store.conversations.thread("c")) <= 3
            self._check(store, made, before)

    def test_ttl_keeps_pinned_rows(self, opener: Opener) -> None:
        with opener(ttl=60) as store:
            clock = Clock(store)
            store.agents.save(agent())
            store.conversations.save(conversation("c", "one"))
            clock.advance(100)
            made = store.agents.checkpoint("a", "x")
            before = view(store, "a")
            store.conversations.append("c", Message.user("two"))
            store.gc()
            store.agents.restore(made.id)
            assert view(store, "a") == before

    def test_prune_keeps_pinned_rows(self, store: Store) -> None:
        made = begun(store)
        before = view(store, "a")
        held = store.conversations.thread("c").load()
        for n in range(5):
            store.conversations.append("c", Message.user(str(n)))
            note(store, "a", "n", n)
        store.conversations.thread("c").delete_checkpoint(held)
        store.conversations.thread("c").prune(keep_last=1, keep_tagged=False)
        store.agents.thread("a").prune(keep_last=1, keep_tagged=False)
        store.conversations.thread("d").delete()
        assert len(store.conversations.thread("c")) == 1
        self._check(store, made, before)

    def test_prune_keeps_agent_checkpoints(self, store: Store) -> None:
        begun(store)
        store.agents.checkpoint("a", "second")
        store.prune(keep_last=1)
        assert names(store.agents.checkpoints("a")) == ["second", "first"]

    def test_undone_restores_and_deleted_checkpoints_leave_no_rows(self, store: Store) -> None:
        made = begun(store)
        left = []
        for rounds in (2, 20):
            for n in range(rounds):
                store.conversations.append("c", Message.user(str(n)))
                store.agents.restore(made.id)
                store.agents.undo("a")
            for n in range(rounds):
                store.agents.delete_checkpoint(store.agents.checkpoint("a", str(n)).id)
            store.gc()
            backend = store._backend
            record = backend.find_thread(manifests.SPACE, "a")
            assert record is not None
            left.append(len(backend.rows(record.no, [(1, log.MAX_SEQ)])))
        assert left[0] == left[1] <= 4

    def test_max_checkpoints_do_not_count_those_of_agents(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            begun(store)
            for n in range(4):
                store.agents.checkpoint("a", str(n))
            assert len(store.agents.checkpoints("a")) == 5

    @pytest.mark.parametrize("collect", [False, True])
    def test_undo_after_pruning_the_store(self, store: Store, *, collect: bool) -> None:
        made = begun(store)
        moved_on(store)
        before = view(store, "a")
        store.agents.restore(made.id)
        store.prune(keep_last=1)
        if collect:
            store.gc()
        store.agents.undo("a")
        assert view(store, "a") == before

    @pytest.mark.parametrize("options", [{"auto_interval": 1e9}, {"max_checkpoints": 1}])
    def test_undo_in_a_store_with_options(self, opener: Opener, options: dict[str, Any]) -> None:
        with opener(**options) as store:
            made = begun(store)
            moved_on(store)
            before = view(store, "a")
            store.agents.restore(made.id)
            store.gc()
            store.agents.undo("a")
            assert view(store, "a") == before
