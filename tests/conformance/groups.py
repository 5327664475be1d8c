"""Groups: writes that are made durable together; each one succeeds or fails alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backtrail import NEW, Conflict, Invalid, NotFound
from tests.conformance.base import Suite, fill, head, states

if TYPE_CHECKING:
    from backtrail import Store, Thread
    from tests.conformance.base import Opener


class Groups(Suite):
    """`Engine.group()`, which the async mirror writes in."""

    def test_group_writes_are_readable_in_it_and_after_it(self, store: Store, opener: Opener) -> None:
        with store._engine.group():
            thread: Thread[Any] = store.thread("t")
            fill(thread, 3)
            thread.set("l", [])
            thread.append("l", 1)
            assert head(thread).state == {"n": 3, "l": [1]}
            thread.fork("other", at=2)
            thread.rewind(1)
            assert thread.undo().state == {"n": 3, "l": [1]}
        with opener() as again:
            assert states(again.thread("t").history())[-1] == {"n": 3, "l": [1]}
            assert head(again.thread("other")).state == {"n": 2}
            assert again.verify().ok

    def test_an_operation_of_a_group_is_refused_alone(self, store: Store, thread: Thread[Any]) -> None:
        first = thread.save({"l": []})
        with store._engine.group():
            thread.append("l", 1)
            with pytest.raises(Conflict):
                thread.save({}, expect=first)
            with pytest.raises(Conflict):
                thread.save({}, expect=NEW)
            with pytest.raises(NotFound):
                store.thread("none").append("l", 1)
            with pytest.raises(Invalid):
                thread.append("l", object())
            with pytest.raises(RuntimeError), store.transaction():
                thread.append("l", "dropped")
                raise RuntimeError
            with store.transaction():
                thread.append("l", 2)
                store.thread("beside").save({})
        assert head(thread).state == {"l": [1, 2]}
        assert {info.id for info in store.threads()} == {"t", "beside"}

    def test_a_group_that_fails_leaves_handles_as_they_were(self, store: Store, thread: Thread[Any]) -> None:
        read = thread.save({"l": [], "text": "x" * 300})
        with pytest.raises(RuntimeError), store._engine.group():
            thread.append("l", "lost")
            store.thread("lost").save({})
            thread.delete()
            raise RuntimeError
        assert head(store.thread("t")) == read
        other: Thread[Any] = store.thread("t")
        theirs = other.append("l", "theirs", "too")
        with pytest.raises(Conflict) as caught:
            thread.save({"l": []})
        assert (caught.value.expected, caught.value.actual) == (read.id, theirs.id)
        thread.append("l", "mine")
        assert head(thread).get("l") == ["theirs", "too", "mine"]
        assert store.thread("lost").latest() is None
        assert store.verify().ok

    def test_a_failed_group_is_forgotten_by_its_transactions(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"l": []})
        other: Thread[Any] = store.thread("t")
        other.latest()
        with pytest.raises(RuntimeError), store._engine.group():
            thread.append("l", "lost")
            with store.transaction():
                assert head(other).get("l") == ["lost"]
            raise RuntimeError
        thread.append("l", "theirs")  # its number is that of what was lost
        other.append("l", "mine")
        with pytest.raises(Conflict):
            other.save({"l": []})
        assert head(thread).get("l") == ["theirs", "mine"]

    def test_large_states_and_prune_work_in_a_group(self, opener: Opener) -> None:
        with opener(max_checkpoints=2) as store:
            thread: Thread[Any] = store.thread("t")
            with store._engine.group():
                thread.save({"messages": [f"{n} " * 100 for n in range(500)]})
                for n in range(150):  # enough for rows that were retired to be removed
                    thread.append("messages", n)
            assert len(thread) == 2
            assert head(thread).tail("messages", 2) == [148, 149]
            store.gc()
            assert store.verify().ok
