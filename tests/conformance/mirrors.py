"""Mirrors: a store that imports exports of another store keeps the rows of agent checkpoints, or refuses them.

Lost rows that are hidden in the other store do not prevent the import of the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from backtrail import Conflict, Corrupt
from tests.conformance.base import Suite, states
from tests.support.places import in_memory
from tests.support.sample_store import everything
from tests.support.scene import agent, contents, conversation

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

    def test_an_imported_agent_checkpoint_pins_rows_already_here(
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

    def test_imported_agent_checkpoints_pin_pruned_rows(self, store: Store, source: Store, tmp_path: Path) -> None:
        made = self._held_again(store, source, tmp_path)
        store.import_(tmp_path / "1")
        store.gc()
        assert store.verify().ok
        store.agents.restore(made)
        assert contents(store, "c") == ["one"]

    def test_an_agent_checkpoint_of_missing_rows_is_a_conflict(
        self, store: Store, source: Store, tmp_path: Path
    ) -> None:
        self._held_again(store, source, tmp_path)
        store.gc()
        before = everything(store)
        with pytest.raises(Conflict, match="conversation 'c', which this store has removed") as caught:
            store.import_(tmp_path / "1")
        assert (caught.value.code, caught.value.details["thread"]) == ("conflict.import", "c")
        assert everything(store) == before
        assert store.verify().ok

    def test_it_is_a_conflict_also_if_it_goes_meanwhile(self, store: Store, source: Store, tmp_path: Path) -> None:
        self._held_again(store, source, tmp_path)

        backend = store._backend
        group = backend.group
        collected: list[int] = []

        def meanwhile() -> AbstractContextManager[None]:
            if not collected:
                collected.append(store.gc().rows)
            return group()

        with mock.patch.object(backend, "group", meanwhile), pytest.raises(Conflict, match="this store has removed"):
            store.import_(tmp_path / "1")
        assert collected == [1]
        assert ("checkpoint", "a") not in everything(store)
        assert store.verify().ok

    def _held_again(self, store: Store, source: Store, tmp_path: Path) -> str:
        """Prune a row in the mirror that a checkpoint in the next export points at; return its id."""
        made = source.agents.checkpoint("a", "first")
        source.conversations.save(source.conversations.load("c").add_message(conversation("c", "", "two").messages[1]))
        source.export(tmp_path / "0", threads=["c"])
        store.import_(tmp_path / "0")
        store.conversations.thread("c").prune(keep_last=1)
        source.export(tmp_path / "1", since=tmp_path / "0")
        return made.id


class Losing(Suite):
    """Exports of a store in which something hidden cannot be read."""

    @pytest.mark.parametrize("repaired", [True, False])
    def test_lost_hidden_row_is_not_exported(self, store: Store, tmp_path: Path, *, repaired: bool) -> None:
        thread = store.thread("t")
        thread.save({"n": 1})
        store.export(tmp_path / "first")
        thread.save({"text": _text()})
        thread.save({"n": 3})
        store.export(tmp_path / "whole")
        _lose_chunk(store)
        if repaired:
            store.verify(repair=True)
        else:
            thread.delete_checkpoint(2)
        assert store.verify().ok
        store.export(tmp_path / "all")
        store.export(tmp_path / "later", since=tmp_path / "first")
        thread.set("n", 4)
        for before, files in {"all": ["all"], "later": ["first", "later"], "whole": ["whole", "all"]}.items():
            last = tmp_path / f"since {before}"
            store.export(last, since=tmp_path / before)
            with in_memory() as opener, opener() as mirror:
                for file in files:
                    mirror.import_(tmp_path / file)
                mirror.import_(last)
                assert states(mirror.thread("t").history()) == [{"n": 1}, {"n": 3}, {"n": 4}]
                assert mirror.gc().rows == (before == "whole")
                assert mirror.verify().ok

    def test_a_lost_hidden_base_must_be_collected_before_export(self, store: Store, tmp_path: Path) -> None:
        thread = store.thread("t")
        thread.save({"more": ["x" * 50] * 20})
        lost = thread.set("text", _text())
        thread.set("text", "short")
        _lose_chunk(store)
        store.verify(repair=True)
        with pytest.raises(Corrupt, match=r"run gc first") as caught:
            store.export(tmp_path / "1")
        assert caught.value.checkpoint_id == lost.id
        store.gc()
        store.export(tmp_path / "1")
        with in_memory() as opener, opener() as mirror:
            mirror.import_(tmp_path / "1")
            assert states(mirror.thread("t").history()) == states(thread.history())


def _text() -> str:
    """Return a text that is in chunks, no two of them the same."""
    return "".join(f"{n} squared is {n * n}\n" for n in range(20_000))


def _lose_chunk(store: Store) -> None:
    """Remove a chunk."""
    backend = store._backend
    ((digest, _),) = backend.chunk_page(b"", 1)
    assert backend.remove_chunks([digest], 1 << 40) > 0
