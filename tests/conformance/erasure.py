"""Erasing: of an agent that was deleted and collected nothing is left, and its neighbours are untouched."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backtrail import Attachment, Invalid, Message
from backtrail.engine import log
from backtrail.overlay import Overlay
from tests.conformance.base import Suite
from tests.conformance.derived_values import Dropped
from tests.support.scene import agent, conversation, note, usage, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail import Store

_TEXTS = [random.Random(n).randbytes(400).hex() for n in range(150)]
_FILE = random.Random(-1).randbytes(200_000)


def _live(store: Store, name: str) -> None:
    """Let an agent have a life: conversations, branches, checkpoints, restores, an undo, a plain thread, tags."""
    store.agents.save(agent(name))
    first = conversation(f"{name}/1", *_TEXTS, agent_id=name)
    store.conversations.save(first)
    attached = Attachment.from_bytes("file", "x", "b", _FILE)
    store.conversations.append(f"{name}/1", Message.user(f"canary of {name}", attachments=[attached]))
    store.conversations.fork(f"{name}/1", at=first.messages[20].id, new_id=f"{name}/2")
    made = store.agents.checkpoint(name, "one")
    note(store, name, "k", 1)
    store.conversations.delete(f"{name}/2")
    store.conversations.save(conversation(f"{name}/3", "later", agent_id=name))
    store.conversations.thread(f"{name}/3").tag("@", "mine")
    store.agents.restore(made.id)
    store.agents.checkpoint(name, "two", kind="automatic")
    store.agents.undo(name)
    store.agents.restore(made.id)
    store.thread(f"{name} plain", agent=name).save({"messages": [{"role": "user", "content": f"canary of {name}"}]})


class _Counted(set[Any]):
    """A set that counts how many of its members are gone over; so do those that are made of it."""

    seen = 0

    def __or__(self, other: Any) -> Any:
        _Counted.seen += len(self)
        return _Counted(set.__or__(self, other))

    def __sub__(self, other: Any) -> Any:
        _Counted.seen += len(self)
        return _Counted(set.__sub__(self, other))

    def __iter__(self) -> Iterator[Any]:
        _Counted.seen += len(self)
        return set.__iter__(self)


class Erasing(Suite):
    """`agents.delete`, and `gc` after it."""

    def test_nothing_of_it_is_left(self, store: Store) -> None:
        _live(store, "a")
        assert len(store.search("canary")) == 2
        assert usage(store).payload_bytes > 200_000
        assert store.agents.delete("a") is True
        assert store.search("canary") == []
        store.gc()
        store.search("canary")
        backend = store._backend
        numbers = backend.thread_numbers(0, 1000)
        assert len(numbers) == 6
        for no in numbers:
            (row,) = backend.rows(no, [(1, log.MAX_SEQ)], payload=True)
            assert (row.head, row.root, row.label, row.payload or b"") == (0, b"", None, b"")
            assert backend.tags(no) == {}
        left = usage(store)
        assert (left.rows, left.chunks, left.payload_bytes, left.entries) == (6, 0, 0, 0)
        assert left.threads == left.checkpoints == left.logical_bytes == {}
        assert store.verify().ok

    def test_forget_undos_lets_gc_remove_old_data(self, store: Store) -> None:
        store.agents.save(agent())
        made = store.agents.checkpoint("a", "before")
        store.conversations.save(conversation("c", *_TEXTS))
        store.agents.restore(made.id)
        note(store, "a", "k", 1)
        store.agents.restore(made.id)
        assert store.agents.forget_undos("nobody") == 0
        store.conversations.delete("c")
        store.gc()
        assert usage(store).payload_bytes > 50_000
        assert store.agents.forget_undos("a") == 2
        assert store.agents.forget_undos("a") == 0
        store.gc()
        assert usage(store).payload_bytes < 10_000
        with pytest.raises(Invalid):
            store.agents.undo("a")
        store.agents.restore(made.id)
        assert view(store, "a")[1] == {}
        assert store.verify().ok

    def test_a_neighbour_that_shares_everything_is_untouched(self, store: Store) -> None:
        _live(store, "b")
        before, size = view(store, "b"), usage(store).payload_bytes
        _live(store, "a")
        assert usage(store).payload_bytes < size + 100_000
        assert store.agents.delete("a") is True
        store.gc()
        assert view(store, "b") == before
        assert {hit.conversation_id for hit in store.search("canary")} == {"b/1", "b plain"}
        assert store.conversations.load("b/1").messages[-1].attachments[0].to_bytes() == _FILE
        for made in store.agents.checkpoints("b"):
            store.agents.restore(made.id)
            assert sorted(view(store, "b")[1]) == ["b/1", "b/2"]
            store.agents.undo("b")
        assert view(store, "b") == before
        store.agents.undo("b")
        assert sorted(view(store, "b")[1]) == ["b/1", "b/3"]
        assert store.verify().ok

    def test_erasure_cost_depends_on_each_threads_size(self, store: Store) -> None:
        store.agents.save(agent())
        for n in range(30):
            with store.transaction():
                store.conversations.save(conversation(f"c{n}"))
                for _ in range(9):
                    store.conversations.append(f"c{n}", Message.user("x"))
        begin = Overlay.__init__

        def counted(self: Overlay, *args: Any, **options: Any) -> None:
            begin(self, *args, **options)
            self._hidden, self._shown = _Counted(), _Counted()

        _Counted.seen = 0
        with mock.patch.object(Overlay, "__init__", counted):
            assert store.agents.delete("a") is True
        assert _Counted.seen < 3 * 301  # once to write them; once for each thread were 15 times as many

    def test_it_goes_in_one_piece(self, store: Store) -> None:
        _live(store, "a")
        before = view(store, "a")
        with suppress(Dropped), store.transaction():
            assert store.agents.delete("a") is True
            assert view(store, "a") == (None, {})
            raise Dropped
        assert view(store, "a") == before
        assert len(store.agents.checkpoints("a")) == 2
        with store.transaction():
            store.agents.delete("a")
            store.agents.save(agent(custom_state={"k": "new"}))
        assert view(store, "a")[1] == {}
        assert store.agents.checkpoints("a") == []
        assert [version.step for version in store.agents.history("a")] == [1]
