"""Mirrors: a store that is fed by exports of another one keeps what agents' checkpoints hold, or refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from backtrail import Conflict
from backtrail.testing.conformance.base import Suite
from backtrail.testing.furnishing import everything
from backtrail.testing.places import in_memory
from backtrail.testing.scene import agent, contents, conversation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from backtrail import Store


class Mirroring(Suite):
    """Checkpoints of agents that come from another store."""

    @pytest.fixture
    def source(self) -> Iterator[Store]:
        with in_memory() as opener, opener() as store:
            store.agents.save(agent())
            store.conversations.save(conversation("c", "one"))
            yield store

    def test_what_comes_with_a_checkpoint_is_kept_though_nothing_of_it_is_new(
        self, store: Store, source: Store, tmp_path: Path
    ) -> None:
        first = source.agents.checkpoint("a", "first")
        source.export(tmp_path / "0")
        store.import_(tmp_path / "0")
        source.agents.delete_checkpoint(first)
        source.export(tmp_path / "1", since=tmp_path / "0")
        store.import_(tmp_path / "1")
        store.gc()  # nothing needs its pins here; there they are still on
        second = source.agents.checkpoint("a", "second")
        assert source.export(tmp_path / "2", since=tmp_path / "1").threads == 1
        store.import_(tmp_path / "2")
        assert store.verify().ok
        store.conversations.save(store.conversations.load("c").add_message(conversation("c", "", "two").messages[1]))
        store.conversations.thread("c").prune(keep_last=1)
        store.gc()
        store.agents.restore(second.id)
        assert contents(store, "c") == ["one"]

    def test_what_was_pruned_here_and_is_held_by_what_comes_is_kept_from_then_on(
        self, store: Store, source: Store, tmp_path: Path
    ) -> None:
        made = self._held_again(store, source, tmp_path)
        store.import_(tmp_path / "1")
        store.gc()
        assert store.verify().ok
        store.agents.restore(made)
        assert contents(store, "c") == ["one"]

    def test_a_checkpoint_that_holds_what_is_gone_here_is_a_conflict(
        self, store: Store, source: Store, tmp_path: Path
    ) -> None:
        self._held_again(store, source, tmp_path)
        store.gc()
        before = everything(store)
        with pytest.raises(Conflict, match="conversation 'c', which is not here any more") as caught:
            store.import_(tmp_path / "1")
        assert (caught.value.code, caught.value.details["thread"]) == ("conflict.import", "c")
        assert everything(store) == before
        assert store.verify().ok

    def test_it_is_a_conflict_also_if_it_goes_meanwhile(self, store: Store, source: Store, tmp_path: Path) -> None:
        self._held_again(store, source, tmp_path)

        backend = store._backend  # noqa: SLF001 - between its last look and its first write
        group = backend.group
        collected: list[int] = []

        def meanwhile() -> AbstractContextManager[None]:
            if not collected:
                collected.append(store.gc().rows)
            return group()

        with mock.patch.object(backend, "group", meanwhile), pytest.raises(Conflict, match="not here any more"):
            store.import_(tmp_path / "1")
        assert collected == [1]
        assert ("checkpoint", "a") not in everything(store)
        assert store.verify().ok

    def _held_again(self, store: Store, source: Store, tmp_path: Path) -> str:
        """Prune here what a checkpoint holds that comes with the next export; return its id."""
        made = source.agents.checkpoint("a", "first")
        source.conversations.save(source.conversations.load("c").add_message(conversation("c", "", "two").messages[1]))
        source.export(tmp_path / "0", threads=["c"])
        store.import_(tmp_path / "0")
        store.conversations.thread("c").prune(keep_last=1)
        source.export(tmp_path / "1", since=tmp_path / "0")
        return made.id
