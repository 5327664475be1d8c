"""What adapters of other frameworks ask for: known changes, forks by writing, names of their own, asides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import backtrail
from backtrail import MISSING, Conflict, Invalid, NotFound
from tests.conformance.base import Suite, head, states, steps

if TYPE_CHECKING:
    from backtrail import Store, Thread


@dataclass
class Box:
    """A class that is named."""

    content: Any


@dataclass
class Other:
    """A class that is not."""

    content: Any


class Adapting(Suite):
    """Saving with `changed`, `onto` and labels that are expected; all of the history; threads of certain classes."""

    def test_only_named_keys_are_compared(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        thread.save({"a": [1], "b": [1], "c": [1]})
        made = thread.save({"a": [2], "b": [2], "d": [2]}, changed=["a", "c"])
        assert head(thread).state == {"a": [2], "b": [1], "d": [2]}
        assert made.root == store.thread("other").save({"a": [2], "b": [1], "d": [2]}).root
        assert thread.save({"a": 1, "b": [1], "d": [2]}, changed={"a": True}).state["a"] == 1
        assert thread.save({"b": MISSING, "no": MISSING}, changed=()).state == {"b": [1]}
        assert thread.save({}, changed=()).state == {}

    def test_state_that_is_no_dict_is_saved_whole(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        assert thread.save({"a": 1}, changed=[]).state == {"a": 1}
        thread.save(["no dict"])
        assert thread.save({"a": 2, "b": [3]}, changed=["a"]).state == {"a": 2, "b": [3]}
        with pytest.raises(Invalid):
            thread.save(["no dict"], changed=[])

    def test_small_change_of_a_large_state_is_cheap(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        state = {f"key {n}": ["x" * 50] * n for n in range(200)}
        thread.save(state)
        state = {**state, "key 7": ["another"]}
        assert thread.save(state, changed=["key 7"]).stored < 2000
        assert head(thread).state == state

    def test_save_may_have_another_parent_than_the_head(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        for n in range(4):
            thread.save({"n": n, "l": list(range(n))}, label=f"v{n}")
        made = thread.save({"n": 9, "l": [0]}, changed=["n"], onto="v1", label="fork")
        assert (made.step, made.parent_id) == (3, thread.load("v1").id)
        assert states(thread.history()) == [{"n": 0, "l": []}, {"n": 1, "l": [0]}, {"n": 9, "l": [0]}]
        assert thread.load("v3").state == {"n": 3, "l": [0, 1, 2]}
        assert [thread.undo().label, thread.undo().label] == ["v1", "v3"]
        assert thread.save({"n": 4}, onto="@").step == 5
        assert [each.label for each in thread.history()][-2:] == ["v3", None]
        with pytest.raises(NotFound):
            thread.save({}, onto="no such label")
        with pytest.raises(NotFound):
            store.thread("new").save({}, onto="v1")
        assert len(thread) == 5

    def test_expectation_is_checked_in_any_case(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        thread.save({"n": 0}, label="v0")
        thread.save({"n": 1}, label="v1")
        store.thread("t").save({"n": 2}, label="v2")
        with pytest.raises(Conflict):
            thread.save({"n": 3}, onto="v0")
        with pytest.raises(Conflict):
            store.thread("t").save({"n": 3}, onto="v0", expect="v1")
        assert store.thread("t").save({"n": 3}, onto="v0", expect="v2").step == 2

    def test_an_expectation_may_be_the_label_of_the_head(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        with pytest.raises(Conflict):
            thread.save({"n": 0}, expect="first")
        thread.save({"n": 0}, label="first")
        made = store.thread("t").set("n", 1, expect="first", label="second")
        for expect in ("first", "third"):
            with pytest.raises(Conflict) as caught:
                store.thread("t").save({"n": 2}, expect=expect)
            assert (caught.value.expected, caught.value.actual) == (expect, made.id)

    def test_failed_save_leaves_no_move(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        thread.save({"n": 0}, label="v0")
        thread.save({"n": 1})
        with pytest.raises(Invalid):
            thread.save({"n": object()}, onto="v0")
        with pytest.raises(RuntimeError), store.transaction():
            thread.save({"n": 2}, onto="v0")
            assert head(thread).state == {"n": 2}
            raise RuntimeError
        assert states(store.thread("t").history()) == [{"n": 0}, {"n": 1}]
        with store.transaction():
            store.thread("t").save({"n": 2}, onto="v0", tags=["kept"])
        assert states(store.thread("t").history()) == [{"n": 0}, {"n": 2}]
        assert store.verify().ok

    def test_full_history_is_in_save_order(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        for n in range(40):
            thread.save(n, label=f"v{n}", metadata={"odd": n % 2})
            if n % 10 == 9:
                thread.rewind(f"v{n - 5}")
        every = [each.state for each in thread.history(everything=True)]
        assert every == list(range(40))
        assert [each.state for each in thread.history(everything=True, newest_first=True, limit=20)] == every[:19:-1]
        assert [each.state for each in thread.history(everything=True, before="v3")] == [0, 1, 2]
        odd = thread.history(everything=True, newest_first=True, metadata={"odd": 1}, limit=18)
        assert [each.state for each in odd] == every[::-2][:18]
        thread.delete_checkpoint("v7")
        assert len(list(thread.history(everything=True))) == 39
        thread.delete()
        assert list(thread.history(everything=True)) == []

    def test_prune_keeps_the_named_checkpoints(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        for n in range(1, 8):
            thread.save(n, label=f"v{n}")
        report = thread.prune(keep_last=1, keep_tagged=False, keep=["v2", thread.load(4)], dry_run=True)
        assert int(report) == 4
        thread.prune(keep_last=1, keep_tagged=False, keep=["v2", thread.load(4)])
        assert steps(thread.history()) == [2, 4, 7]
        with pytest.raises(NotFound):
            thread.prune(keep_last=1, keep=["no such label"])

    def test_closed_thread_refuses_other_classes(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t", types=[Box])
        thread.save({"a": [Box([1, {"b": Box(2)}])]})
        assert store.thread("t", types=[Box]).load().state == {"a": [Box([1, {"b": Box(2)}])]}
        for value in (Other(1), Box([{"x": Other(1)}])):
            with pytest.raises(Invalid) as caught:
                thread.set("b", value)
            assert "types=" in str(caught.value)
        with pytest.raises(Invalid) as caught:
            thread.save({"a": [1, Other(1)]})
        assert caught.value.path == "state.a[1]"
        plain = store.thread("t").load().state
        assert type(plain["a"][0]) is backtrail.Record
        assert thread.save(plain).root == thread.load(1).root

    def test_aside_thread_is_separate_from_its_thread(self, store: Store) -> None:
        thread, aside = store.thread("t"), store.thread("t", aside=True)
        aside.save({"messages": [{"content": "findable"}], "n": 1})
        assert thread.latest() is None
        assert list(store.threads()) == []
        thread.save({"n": 2})
        aside.save({"n": 3})
        assert (head(thread).state, head(aside).state, len(aside)) == ({"n": 2}, {"n": 3}, 2)
        assert [info.id for info in store.threads()] == ["t"]
        assert store.stats().checkpoints == 1
        assert aside.delete()
        assert head(thread).state == {"n": 2}

    def test_deleting_a_thread_deletes_its_aside(self, store: Store) -> None:
        thread, other = store.thread("t"), store.thread("other", aside=True)
        other.save({"n": 1})
        store.thread("t", aside=True).save({"n": 1}, label="one")
        assert thread.delete()  # there was no thread but its aside
        assert not thread.delete()
        store.thread("t").save({"n": 1})
        store.thread("t", aside=True).save({"n": 2})
        assert store.thread("t").delete()
        assert store.thread("t", aside=True).latest() is None
        assert [info.id for info in store.threads(kind="aside")] == ["other"]
        store.thread("t", agent="bob").save({"n": 1})
        store.thread("t", aside=True).save({"n": 3})
        assert store.agents.delete("bob")
        assert store.thread("t", aside=True).latest() is None
        store.gc(erase=True)
        assert list(store.thread("t", aside=True).history(everything=True)) == []
        assert head(other).state == {"n": 1}
        assert store.verify().ok

    def test_fork_copies_the_aside_rows_of_its_checkpoint(self, store: Store) -> None:
        thread, aside = store.thread("t"), store.thread("t", aside=True)
        for label in ("one", "two"):
            thread.save({"at": label}, label=label)
            aside.save({"about": label, "n": [1, (2, 3)]}, label=label, metadata={"by": "me"})
            aside.save({"more": label}, label=label)
        thread.fork("at one", at="one")
        thread.fork("latest")
        one, latest = (list(store.thread(name, aside=True).history()) for name in ("at one", "latest"))
        # what was written by the run that went on from there is used up; these rows say nothing, so they are all of one
        assert one == []
        assert [(each.state, each.label, each.metadata) for each in latest] == [
            ({"about": "two", "n": [1, (2, 3)]}, "two", {"by": "me"}),
            ({"more": "two"}, "two", {}),
        ]
        with pytest.raises(Conflict):
            thread.fork("latest")
        assert store.verify().ok

    def test_used_notes_are_not_forked(self, store: Store) -> None:
        thread, aside = store.thread("t"), store.thread("t", aside=True)
        thread.save({"n": 1}, label="one")
        aside.save({"question": 1}, label="one")
        aside.save({"answer": 1}, label="one", metadata={"__run__": "first"})
        thread.save({"n": 2}, label="two", metadata={"__run__": "first"})
        thread.fork("f", at="one")
        assert [each.state for each in store.thread("f", aside=True).history()] == [{"question": 1}]
        assert len(aside) == 2
        thread.delete_checkpoint("two")  # with it goes what was used up for it
        store.gc()
        assert [each.state for each in aside.history()] == [{"question": 1}]

    def test_gc_removes_asides_without_a_thread(self, store: Store) -> None:
        thread, aside = store.thread("t"), store.thread("t", aside=True)
        for n in range(6):
            aside.save({"about": n}, label=str(n))
            thread.save({"n": n}, label=str(n))
        aside.save({"about": "soon"}, label="soon")
        thread.prune(keep_last=2, keep_tagged=False)
        store.gc(erase=True)
        assert [each.label for each in aside.history()] == ["4", "5", "soon"]
        thread.delete_checkpoint("5")
        thread.save({"n": "again"}, label="4")
        thread.delete_checkpoint(next(each for each in thread.history() if each.label == "4"))
        aside.delete_checkpoint("soon")
        store.gc()
        assert [each.label for each in aside.history()] == ["4"]  # there is another one of this label
        assert store.verify().ok
