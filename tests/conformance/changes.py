"""Changes that are named: `append`, `set`, `delete_at`, `step`, `update`; and that the way to a state does not show."""

from __future__ import annotations

import copy
import heapq
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Invalid, NotFound
from tests.conformance.base import Suite, chunks_read, head, ids, messages
from tests.support.exact import same

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store, Thread


class Changing(Suite):
    """`append`, `set`, `delete_at`, `step` and `update`: saves that name their change."""

    def test_append_adds_items_at_the_end_in_order(self, thread: Thread[Any]) -> None:
        thread.save({"messages": [1], "n": 0})
        made = thread.append("messages", 2, {"a": [3]})
        assert made.state == {"messages": [1, 2, {"a": [3]}], "n": 0}
        assert head(thread).state == made.state
        assert made.step == 2

    @pytest.mark.parametrize("path", ["plan.days[1].notes", ("plan", "days", 1, "notes"), "plan.days[-1].notes"])
    def test_a_path_leads_into_dicts_and_lists(self, thread: Thread[Any], path: Any) -> None:
        thread.save({"plan": {"days": [{"notes": []}, {"notes": ["a"]}]}})
        thread.append(path, "b")
        assert head(thread).get(path) == ["a", "b"]
        assert head(thread).get("plan.days[0].notes") == []

    def test_the_empty_path_is_the_state_itself(self, thread: Thread[Any]) -> None:
        thread.save([1])
        assert thread.append("", 2).state == [1, 2]
        assert thread.append((), 3).state == [1, 2, 3]
        assert thread.set("", {"new": 1}).state == {"new": 1}

    def test_text_is_appended_to_text(self, thread: Thread[Any]) -> None:
        thread.save({"answer": "Boo", "list": ["a"]})
        assert thread.append("answer", "ked", ".").state == {"answer": "Booked.", "list": ["a"]}
        assert thread.append("list[0]", "é\ud800").state["list"] == ["aé\ud800"]

    def test_odd_keys_are_reached_by_quotes_and_by_tuples(self, thread: Thread[Any]) -> None:
        thread.save({"1.5": {"a b": []}, 7: [], (1, 2): []})
        assert thread.append('["1.5"]["a b"]', "x").get(("1.5", "a b")) == ["x"]
        assert thread.append((7,), "y").get((7,)) == ["y"]
        assert thread.append(((1, 2),), "z").state == {"1.5": {"a b": ["x"]}, 7: ["y"], (1, 2): ["z"]}

    def test_set_replaces_values_and_appends_new_keys(self, thread: Thread[Any]) -> None:
        thread.save({"a": 1, "b": [1, 2, 3]})
        assert same(thread.set("a", value=True).state, {"a": True, "b": [1, 2, 3]})
        assert thread.set("b[1]", "two").state["b"] == [1, "two", 3]
        assert thread.set("b[-1]", {"x": None}).state["b"] == [1, "two", {"x": None}]
        assert same(thread.set("c", 1.0).state, {"a": True, "b": [1, "two", {"x": None}], "c": 1.0})
        assert thread.set("b[2].y", 5).get("b[2]") == {"x": None, "y": 5}

    def test_set_keeps_an_equal_key_like_a_dict(self, thread: Thread[Any]) -> None:
        thread.save({1: "a"})
        assert same(thread.set((True,), "b").state, {1: "b"})

    def test_delete_at_takes_out_a_key_or_an_item(self, thread: Thread[Any]) -> None:
        thread.save({"a": 1, "b": [1, 2, 3], "c": {"d": 1}})
        assert thread.delete_at("a").state == {"b": [1, 2, 3], "c": {"d": 1}}
        assert thread.delete_at("b[0]").state["b"] == [2, 3]
        assert thread.delete_at("b[-1]").state["b"] == [2]
        assert thread.delete_at("c.d").state == {"b": [2], "c": {}}

    @pytest.mark.parametrize("path", ["x", "a.x", "b[9]", "b.x", "a[0]", ("b", "0"), ("b", True)])
    def test_missing_path_raises_not_found_and_writes_nothing(self, thread: Thread[Any], path: Any) -> None:
        saved = thread.save({"a": 1, "b": [1]})
        calls: tuple[Callable[[], object], ...] = (lambda: thread.append(path, 1), lambda: thread.delete_at(path))
        for call in calls:
            with pytest.raises(NotFound):
                call()
        assert head(thread) == saved

    def test_append_requires_a_list(self, thread: Thread[Any]) -> None:
        saved = thread.save({"d": {}, "n": 1, "t": (1,), "s": "x", "set": {1}})
        for path in ("d", "n", "t", "set", "", "s"):
            with pytest.raises(Invalid):
                thread.append(path, 1)
        assert head(thread) == saved

    def test_changes_carry_labels_tags_metadata_and_kind(self, thread: Thread[Any]) -> None:
        thread.save({"l": [], "n": 0})
        options: dict[str, Any] = {"label": "x", "tags": ["y"], "metadata": {"z": 1}, "kind": "automatic"}
        with thread.step(**options) as state:
            state["n"] = 2
        made = [
            head(thread),
            thread.append("l", 1, **options),
            thread.set("n", 1, **options),
            thread.delete_at("n", **options),
        ]
        for checkpoint in made:
            loaded = thread.load(checkpoint.id)
            assert (loaded.label, loaded.tags, loaded.metadata, loaded.kind) == ("x", ("y",), {"z": 1}, "automatic")

    def test_step_saves_its_block_as_one_checkpoint(self, thread: Thread[Any]) -> None:
        thread.save({"messages": [], "budget": 120})
        with thread.step("book") as state:
            state["messages"].append("Booked.")
            state["budget"] -= 90
            state["nested"] = {"a": [1]}
            state["nested"]["a"].append(2)
        made = head(thread)
        assert made.state == {"messages": ["Booked."], "budget": 30, "nested": {"a": [1, 2]}}
        assert (made.label, made.step, len(thread)) == ("book", 2, 2)

    def test_a_step_that_fails_leaves_everything_as_it_was(self, thread: Thread[Any]) -> None:
        saved = thread.save({"messages": []})
        with pytest.raises(RuntimeError, match="no"), thread.step() as state:
            state["messages"].append(1)
            raise RuntimeError("no")
        assert head(thread) == saved
        assert head(thread).state == {"messages": []}
        with thread.step() as state:
            assert state == {"messages": []}
            state["messages"].append(2)
        assert head(thread).state == {"messages": [2]}

    def test_a_step_that_changes_nothing_is_a_checkpoint_too(self, thread: Thread[Any]) -> None:
        thread.save({"a": 1})
        with thread.step():
            pass
        assert len(thread) == 2

    def test_steps_store_the_same_states_as_saves(self, store: Store, thread: Thread[Any]) -> None:
        plain: dict[str, Any] = {"messages": messages(300), "heap": [(n, {"n": n}) for n in range(9)], "seen": {1}}
        thread.save(copy.deepcopy(plain))
        for n in range(12):
            with thread.step() as draft:
                for state in (plain, draft):
                    state["messages"].append({"n": [n]})
                    state["messages"][n * 20]["content"] += " and more"
                    state["messages"].insert(0, state["messages"].pop(n))
                    heapq.heappush(state["heap"], (-n, heapq.heappop(state["heap"])[1]))
                    state["seen"].add(n)
                    state[f"key {n}"] = state.pop(f"key {n - 1}", [])
                    state[f"key {n}"].append(n)
            assert head(thread).root == store.thread("plain").save(plain).root
            assert same(head(thread).state, plain)

    def test_step_stores_the_bytes_of_the_same_append(self, store: Store, thread: Thread[Any]) -> None:
        named = store.thread("named")
        for each in (named, thread):
            each.save({"messages": messages(2_000)})
        for n in range(10):
            with chunks_read(store) as read, thread.step() as state:
                state["messages"].append({"n": n})
            assert n == 0 or not read
            assert head(thread).stored == named.append("messages", {"n": n}).stored

    def test_step_begins_with_the_current_head(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"l": [1]})
        with thread.step() as state:
            state["l"].append(2)
        store.thread("t").append("l", 3)
        with thread.step() as state:
            state["l"].append(4)
        assert head(thread).state == {"l": [1, 2, 3, 4]}

    def test_step_refuses_values_that_cannot_be_stored(self, thread: Thread[Any]) -> None:
        saved = thread.save({"a": 1})
        with pytest.raises(Invalid), thread.step() as state:
            state["a"] = object()
        assert head(thread) == saved

    def test_update_saves_the_function_result(self, thread: Thread[Any]) -> None:
        thread.save({"n": 1})
        assert thread.update(lambda state: {"n": state["n"] + 1}).state == {"n": 2}
        assert head(thread).state == {"n": 2}

    def test_update_saves_a_state_that_was_changed_in_place(self, thread: Thread[Any]) -> None:
        thread.save({"n": 1})

        def change(state: Any) -> None:
            state["n"] = 5

        assert thread.update(change).state == {"n": 5}

    def test_update_begins_a_thread(self, thread: Thread[Any]) -> None:
        seen: list[Any] = []

        def begin(state: Any) -> dict[str, int]:
            seen.append(state)
            return {"n": 1}

        made = thread.update(begin)
        assert seen == [None]
        assert (made.step, made.state) == (1, {"n": 1})

    def test_a_function_that_fails_in_update_writes_nothing(self, thread: Thread[Any]) -> None:
        saved = thread.save({"n": 1})

        def change(state: Any) -> None:
            state["n"] = 2
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            thread.update(change)
        assert ids(thread.history()) == [saved.id]
        assert head(thread).state == {"n": 1}


class Roots(Suite):
    """The same state has the same root, however it came about."""

    def test_equal_states_have_equal_roots(self, store: Store) -> None:
        items = [{"role": "user", "content": f"message {n} " * 20} for n in range(120)]
        state = {"a": 1, "items": items, "z": {"y": [1, 2]}}
        roots = {store.thread("saved").save(copy.deepcopy(state)).root}
        appended: Thread[Any] = store.thread("appended")
        appended.save({"a": 1, "items": [], "z": {"y": [1, 2]}})
        for at in range(0, 120, 40):
            appended.append("items", *items[at : at + 40])
        roots.add(head(appended).root)
        put: Thread[Any] = store.thread("set")
        put.save({"a": 7, "items": [0, *items[::-1]]})
        put.set("items", items)
        put.set("a", 1)
        put.set("z", {"y": [1]})
        roots.add(put.append("z.y", 2).root)
        stepped: Thread[Any] = store.thread("stepped")
        stepped.save({"a": 1, "items": items[50:], "z": {"y": [1, 2]}})
        with stepped.step() as draft:
            draft["items"][:0] = items[:50]
        roots.add(head(stepped).root)
        cut: Thread[Any] = store.thread("cut")
        cut.save({"a": 1, "items": [items[5], *items], "z": {"y": [1, 2]}, "more": 1})
        cut.delete_at("items[0]")
        roots.add(cut.delete_at("more").root)
        assert len(roots) == 1

    def test_forks_and_rewinds_have_the_roots_of_their_states(self, thread: Thread[Any]) -> None:
        first = thread.save({"n": 1})
        thread.save({"n": 2})
        assert thread.rewind(first).root == first.root
        assert head(thread.fork("other")).root == first.root

    def test_type_and_order_change_the_root(self, store: Store) -> None:
        states: list[Any] = [
            *([1], [True], [1.0], (1,), {1}, frozenset({1}), {1: None}, {"1": None}, "1", b"1", bytearray(b"1")),
            *({"a": 1, "b": 2}, {"b": 2, "a": 1}, [0.0], [-0.0], [], (), {}, None, "", b""),
        ]
        roots = {store.thread(f"t{n}").save(state).root for n, state in enumerate(states)}
        assert len(roots) == len(states)
