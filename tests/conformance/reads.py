"""Reading: history and its filters, refs, parts of a state, differences, and checkpoints as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backtrail import MISSING, Checkpoint, Corrupt, Invalid, NotFound
from tests.conformance.base import Clock, Suite, chunks_read, fill, head, ids, messages, steps
from tests.support.exact import same

if TYPE_CHECKING:
    from backtrail import Change, Store, Thread
    from tests.conformance.base import Opener


class History(Suite):
    """`history` and `find`."""

    def test_history_goes_from_the_root_to_the_head(self, thread: Thread[Any]) -> None:
        made = fill(thread, 5)
        assert list(thread.history()) == made
        assert steps(thread.history()) == [1, 2, 3, 4, 5]
        assert len(thread) == 5

    def test_newest_first_turns_it_round(self, thread: Thread[Any]) -> None:
        made = fill(thread, 5)
        assert list(thread.history(newest_first=True)) == made[::-1]

    @pytest.mark.parametrize("limit", [0, 1, 3, 5, 9])
    def test_a_limit_bounds_it_from_either_end(self, thread: Thread[Any], limit: int) -> None:
        made = fill(thread, 5)
        assert list(thread.history(limit=limit)) == made[:limit]
        assert list(thread.history(newest_first=True, limit=limit)) == made[::-1][:limit]

    def test_before_leaves_out_a_checkpoint_and_all_behind_it(self, thread: Thread[Any]) -> None:
        made = fill(thread, 5)
        for ref in (made[3], made[3].id, 4, "@-", "@~1"):
            assert list(thread.history(before=ref)) == made[:3]
            assert list(thread.history(before=ref, newest_first=True, limit=2)) == [made[2], made[1]]
        assert list(thread.history(before=1)) == []

    def test_before_pages_through_a_rewound_history(self, thread: Thread[Any]) -> None:
        made = fill(thread, 4)
        thread.rewind(made[1])
        later = [thread.save({"n": n}) for n in (10, 11)]
        assert list(thread.history(before=later[1])) == [*made[:2], later[0]]
        assert list(thread.history(before=later[0], newest_first=True)) == [made[1], made[0]]

    def test_filters_are_combined_with_and(self, thread: Thread[Any]) -> None:
        a = thread.save({}, label="x", tags=["t"], kind="automatic", metadata={"n": 1, "who": "me"})
        b = thread.save({}, label="x", metadata={"n": 1})
        c = thread.save({}, tags=["t", "u"], kind="recovery", metadata={"n": True})
        d = thread.save({})
        assert list(thread.history(label="x")) == [a, b]
        assert list(thread.history(tag="t")) == [a, c]
        assert list(thread.history(kind="manual")) == [b, d]
        assert list(thread.history(kind="recovery")) == [c]
        assert list(thread.history(metadata={"who": "me"})) == [a]
        assert list(thread.history(metadata={"n": 1, "who": "me"})) == [a]
        assert list(thread.history(metadata={"absent": None})) == []
        assert list(thread.history(label="x", tag="t")) == [a]
        assert list(thread.history(label="x", newest_first=True, limit=1)) == [b]
        assert list(thread.history(label="none")) == []
        assert list(thread.history(label="x", limit=1, before=b)) == [a]

    def test_history_loads_no_states(self, store: Store, opener: Opener) -> None:
        store.thread("t").save({"messages": messages(400)})
        store.close()
        with opener() as again, chunks_read(again) as asked:
            assert len(list(again.thread("t").history())) == 1
            assert asked == []

    def test_a_long_history_is_listed_whole(self, thread: Thread[Any]) -> None:
        thread.save({"l": []})
        for n in range(450):
            thread.append("l", n)
        assert steps(thread.history()) == list(range(1, 452))
        assert steps(thread.history(newest_first=True)) == list(range(451, 0, -1))
        assert len(thread) == 451
        assert thread.load(226).state == {"l": list(range(225))}

    def test_order_comes_from_the_store_and_not_from_clocks(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        made = []
        for n in range(6):
            made.append(thread.save({"n": n}, label="x"))
            clock.advance(-3600 if n % 2 else 0)
        assert list(thread.history()) == made
        assert head(thread) == made[-1]
        assert thread.load("x") == made[-1]
        assert thread.load("@~3") == made[2]
        assert thread.prune(keep_last=2, keep_tagged=False) == 4
        assert list(thread.history()) == made[4:]
        assert thread.undo() == made[4]

    def test_find_returns_the_view_oldest_first(self, thread: Thread[Any]) -> None:
        a = thread.save({}, label="x")
        b = thread.save({}, label="x", tags=["t"])
        c = thread.save({}, label="y", tags=["t"])
        assert thread.find(label="x") == [a, b]
        assert thread.find(tag="t") == [b, c]
        assert thread.find(label="x", tag="t") == [b]
        assert thread.find(label="z") == []
        assert thread.find(label="t") == []
        assert thread.find(label=["y", "x", "z"]) == [a, b, c]
        assert thread.find(label=["y", "x"], tag="t") == [b, c]
        assert thread.find(label=[]) == []
        thread.rewind(a)
        assert thread.find(label="x") == [a]
        assert thread.find(tag="t") == []

    def test_found_checkpoints_load_from_any_chain(self, thread: Thread[Any]) -> None:
        texts = [f"text {n} " * 300 for n in range(40)]
        for n in range(40):
            thread.save({"texts": texts[: n + 1]}, label=f"{n % 2}")
        found = thread.find(label=["0", "1"])
        assert [checkpoint.state["texts"] for checkpoint in found] == [texts[: n + 1] for n in range(40)]

    def test_tags_are_put_on_and_taken_off(self, store: Store, thread: Thread[Any]) -> None:
        a, b = fill(thread, 2)
        assert thread.tag(a, "x", "y", "x").tags == ("x", "y")
        assert thread.tag(a.id, "z").tags == ("x", "y", "z")
        assert thread.untag(1, "y").tags == ("x", "z")
        assert thread.untag(1, "never there").tags == ("x", "z")
        assert thread.load(b.id).tags == ()
        assert store.thread("t").find(tag="x") == [a]
        assert thread.untag(a, "x", "z").tags == ()
        assert thread.find(tag="x") == []

    def test_tagging_keeps_history_and_expectation(self, store: Store, thread: Thread[Any]) -> None:
        a, b = fill(thread, 2)
        store.thread("t").tag(a, "x")
        assert ids(thread.history()) == [a.id, b.id]
        assert thread.save({"n": 3}).step == 3
        assert thread.load(a.id).root == a.root


class Refs(Suite):
    """The ways to say which checkpoint is meant, in their order."""

    def test_every_form_leads_to_its_checkpoint(self, thread: Thread[Any]) -> None:
        made = fill(thread, 4)
        labelled = thread.save({"n": 5}, label="here", tags=["there"])
        last = thread.save({"n": 6})
        assert thread.load() == last
        assert thread.load("@") == last
        assert thread.load("@-") == labelled
        assert thread.load("@~0") == last
        assert thread.load("@~1") == labelled
        assert thread.load("@~5") == made[0]
        assert thread.load("here") == labelled
        assert thread.load("there") == labelled
        for step, checkpoint in enumerate(made, 1):
            assert thread.load(step) == checkpoint
            assert thread.load(checkpoint) == checkpoint
            assert thread.load(checkpoint.id) == checkpoint
            assert thread.load(checkpoint.id[:12]) == checkpoint

    @pytest.mark.parametrize("ref", ["@~6", "@~999999999", 0, -1, 99, 10**30, "nothing", "ffffffffffffffffffffffff"])
    def test_missing_ref_is_not_found(self, thread: Thread[Any], ref: Any) -> None:
        fill(thread, 3)
        with pytest.raises(NotFound) as caught:
            thread.load(ref)
        assert caught.value.code == "not_found.checkpoint"
        assert thread.delete_checkpoint(ref) is False

    @pytest.mark.parametrize("ref", [None, "", 1.0, True, b"x", [], object()])
    def test_invalid_ref_is_refused(self, thread: Thread[Any], ref: Any) -> None:
        fill(thread, 2)
        for call in (thread.load, thread.rewind, thread.delete_checkpoint):
            with pytest.raises(Invalid):
                call(ref)
        assert len(thread) == 2

    @pytest.mark.parametrize("ref", ["@x", "@~", "@@", "@~x", "@-1"])
    def test_text_that_only_begins_like_a_ref_is_refused(self, thread: Thread[Any], ref: str) -> None:
        fill(thread, 2)
        for call in (thread.load, thread.rewind):
            with pytest.raises((Invalid, NotFound)):
                call(ref)
        assert thread.current_step == 2

    def test_a_prefix_that_several_ids_have_is_invalid(self, thread: Thread[Any]) -> None:
        made = fill(thread, 40)
        digits = [checkpoint.id[0] for checkpoint in made]
        shared = next(digit for digit in digits if digits.count(digit) > 1)
        with pytest.raises(Invalid) as caught:
            thread.load(shared)
        assert caught.value.code == "invalid.ambiguous"
        with pytest.raises(Invalid):
            thread.delete_checkpoint(shared)
        assert len(thread) == 40

    def test_short_prefixes_differ_within_a_thread(self, thread: Thread[Any]) -> None:
        made = fill(thread, 60)
        assert len({checkpoint.id[:6] for checkpoint in made}) == 60
        assert thread.load(made[30].id[:6]) == made[30]

    def test_refs_prefer_id_then_label_then_tag_then_prefix(self, thread: Thread[Any]) -> None:
        first = thread.save({"n": 1})
        prefix = first.id[:8]
        assert thread.load(prefix) == first
        tagged = thread.save({"n": 2}, tags=[prefix, first.id])
        assert thread.load(prefix) == tagged
        labelled = thread.save({"n": 3}, label=prefix)
        assert thread.load(prefix) == labelled
        thread.save({"n": 4}, label=first.id)
        assert thread.load(first.id) == first

    def test_label_means_the_newest_in_view_first(self, thread: Thread[Any]) -> None:
        a = thread.save({"n": 1}, label="x")
        thread.save({"n": 2}, label="x")
        c = thread.save({"n": 3}, label="y")
        assert thread.load("x").step == 2
        thread.rewind(a)
        assert thread.load("x") == a
        assert thread.load("y") == c

    def test_a_step_is_one_of_the_current_path(self, thread: Thread[Any]) -> None:
        a, b, c = fill(thread, 3)
        thread.rewind(a)
        d = thread.save({"n": 20})
        assert thread.load(2) == d
        with pytest.raises(NotFound):
            thread.load(3)
        thread.rewind(c)
        assert (thread.load(2), thread.load(3)) == (b, c)

    def test_ids_of_other_threads_mean_nothing_here(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"n": 1})
        other = store.thread("other").save({"n": 2})
        for ref in (other, other.id):
            with pytest.raises(NotFound):
                thread.load(ref)
            assert thread.delete_checkpoint(ref) is False
        assert store.thread("other").load(other).state == {"n": 2}

    def test_a_store_finds_any_checkpoint_by_its_id(self, store: Store, thread: Thread[Any]) -> None:
        a, b = fill(thread, 2)
        other = store.thread("other").save({"n": 3})
        thread.rewind(a)
        for made in (a, b, other):
            found = store.checkpoint(made.id)
            assert found == made
            assert found is not None
            assert found.state == made.state
            assert found.thread_id == made.thread_id


class Parts(Suite):
    """`get`, `tail`, and bytes."""

    def test_get_returns_the_value_at_a_path(self, thread: Thread[Any]) -> None:
        made = thread.save({"a": {"b": [1, {"c": True}]}, "n": None, 5: "five"})
        assert made.get("a.b[1].c") is True
        assert made.get(("a", "b", 0)) == 1
        assert made.get("a.b[-1]") == {"c": True}
        assert made.get((5,)) == "five"
        assert made.get("") == made.state
        assert made.get("n", "default") is None
        for path in ("x", "a.x", "a.b[9]", "n.x", "a.b.x"):
            assert made.get(path) is None
            assert made.get(path, "default") == "default"
        with pytest.raises(Invalid):
            made.get("a..b")

    def test_tail_gives_the_last_items(self, thread: Thread[Any]) -> None:
        made = thread.save({"l": [1, 2, 3], "t": (1, 2), "n": 1})
        assert made.tail("l", 2) == [2, 3]
        assert made.tail("l", 0) == []
        assert made.tail("l", 9) == [1, 2, 3]
        assert made.tail("t", 1) == [2]
        with pytest.raises(NotFound):
            made.tail("x", 1)
        for path, n in (("n", 1), ("", 1), ("l", -1), ("l", True), ("l", "1")):
            with pytest.raises(Invalid):
                made.tail(path, n)  # type: ignore[arg-type]

    def test_parts_of_an_old_checkpoint_can_be_read(self, thread: Thread[Any]) -> None:
        thread.save({"l": list(range(100)), "x": 1})
        for n in range(100, 130):
            thread.append("l", n)
        thread.set("l[50]", "changed")
        old = thread.load(11)
        assert old.tail("l", 2) == [108, 109]
        assert old.get("l[50]") == 50
        assert head(thread).get("l[50]") == "changed"

    def test_bytes_hold_the_whole_checkpoint(self, thread: Thread[Any]) -> None:
        state = {"messages": messages(300), "one": [1, True, 1.0], "text": "x\n" * 50_000, "s": {1, 2}}
        thread.save({"first": 1})
        made = thread.save(state, label="é", tags=["a", "\ud800"], metadata={"n": 1}, kind="recovery")
        for checkpoint in (made, thread.load(made.id)):
            back: Checkpoint[Any] = Checkpoint.from_bytes(checkpoint.to_bytes())
            assert same(back.state, state)
            assert back == made
            assert (back.id, back.thread_id, back.step, back.seq, back.parent_id) == (
                *(made.id, "t", 2, made.seq, made.parent_id),
            )
            assert (back.label, back.tags, back.metadata, back.kind) == ("é", ("a", "\ud800"), {"n": 1}, "recovery")
            assert (back.root, back.size, back.created_at) == (made.root, made.size, made.created_at)
            assert back.tail("messages", 1) == messages(1, start=299)
            assert back.to_bytes() == checkpoint.to_bytes()

    def test_bytes_stand_alone(self, store: Store, thread: Thread[Any]) -> None:
        data = thread.save({"messages": messages(300)}).to_bytes()
        thread.delete()
        store.gc()
        assert Checkpoint.from_bytes(data).state == {"messages": messages(300)}

    def test_damaged_bytes_are_corrupt_and_foreign_ones_invalid(self, thread: Thread[Any]) -> None:
        data = thread.save({"messages": messages(40)}, tags=["x"]).to_bytes()
        start = data.index(b"\n") + 1
        for at in (*range(start, len(data), max((len(data) - start) // 60, 1)), len(data) - 1):
            broken = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
            with pytest.raises(Corrupt):
                _ = Checkpoint.from_bytes(broken).state
        for cut in (data[:start], data[: start + 5], data[:-1], data + b"x"):
            with pytest.raises(Corrupt):
                Checkpoint.from_bytes(cut)
        for foreign in (b"", b"x", "text", None, data[1:]):
            with pytest.raises(Invalid):
                Checkpoint.from_bytes(foreign)


def _shown(changes: Any) -> list[tuple[str, str, Any, Any]]:
    return [_plain(change) for change in changes]


def _plain(change: Change) -> tuple[str, str, Any, Any]:
    return change.op, str(change.path), change.old, change.new


class Differences(Suite):
    """`diff`: what changed, and nothing else."""

    def test_diff_has_additions_removals_and_changes(self, thread: Thread[Any]) -> None:
        thread.save({"budget": 120, "messages": [], "old": 1})
        thread.save({"budget": 30, "messages": ["Booked."], "new": {"a": 1}})
        assert sorted(_shown(thread.diff()), key=lambda change: change[1]) == [
            ("~", "budget", 120, 30),
            ("+", "messages[0]", MISSING, "Booked."),
            ("+", "new", MISSING, {"a": 1}),
            ("-", "old", 1, MISSING),
        ]

    def test_it_prints_one_line_for_each_change(self, thread: Thread[Any]) -> None:
        thread.save({"budget": 120, "messages": []})
        thread.save({"budget": 30, "messages": [1]})
        lines = str(thread.diff()).splitlines()
        assert lines[0] == "~ budget: 120 -> 30"
        assert lines[1].startswith("+ messages[0]")
        assert str(thread.diff("@", "@")) == "no change"

    @pytest.mark.parametrize("at", [0, 7, 250, 500])
    def test_an_insertion_is_an_insertion(self, thread: Thread[Any], at: int) -> None:
        items = messages(500)
        thread.save({"messages": items})
        thread.save({"messages": [*items[:at], "new", *items[at:]]})
        assert _shown(thread.diff()) == [("+", f"messages[{at}]", MISSING, "new")]
        assert _shown(thread.diff("@", "@-")) == [("-", f"messages[{at}]", "new", MISSING)]

    def test_insertions_in_several_places_are_insertions(self, thread: Thread[Any]) -> None:
        items = messages(500)
        thread.save({"messages": items})
        thread.save({"messages": [*items[:3], "one", *items[3:400], "two", *items[400:]]})
        assert _shown(thread.diff()) == [
            ("+", "messages[3]", MISSING, "one"),
            ("+", "messages[401]", MISSING, "two"),
        ]

    def test_a_change_deep_inside_is_shown_where_it_is(self, thread: Thread[Any]) -> None:
        items = messages(300)
        thread.save({"plan": {"days": items}})
        thread.set("plan.days[123].content", "short")
        (change,) = thread.diff()
        assert _plain(change) == ("~", "plan.days[123].content", items[123]["content"], "short")
        assert change.path == ("plan", "days", 123, "content")

    def test_types_and_key_order_are_changes(self, thread: Thread[Any]) -> None:
        thread.save({"x": 1, "y": 2})
        thread.save({"x": True, "y": 2})
        thread.save({"y": 2, "x": True})
        assert [(type(change.old), type(change.new)) for change in thread.diff(1, 2)] == [(int, bool)]
        assert len(thread.diff(2, 3)) == 1
        assert "order" in str(thread.diff(2, 3))

    def test_another_kind_of_value_is_one_change(self, thread: Thread[Any]) -> None:
        thread.save({"a": [1, 2]})
        thread.save({"a": {"0": 1}})
        thread.save("text")
        assert _shown(thread.diff(1, 2)) == [("~", "a", [1, 2], {"0": 1})]
        assert _shown(thread.diff(2, 3)) == [("~", "", {"a": {"0": 1}}, "text")]

    def test_checkpoints_of_different_threads_can_be_compared(self, store: Store, thread: Thread[Any]) -> None:
        here = thread.save({"n": 1})
        there = store.thread("other").save({"n": 2})
        assert _shown(thread.diff(here, there)) == [("~", "n", 1, 2)]

    def test_the_first_checkpoint_has_none_before_it(self, thread: Thread[Any]) -> None:
        thread.save({"n": 1})
        with pytest.raises(NotFound):
            thread.diff()

    def test_equal_parts_are_not_read(self, opener: Opener) -> None:
        with opener() as store:
            thread: Thread[Any] = store.thread("t")
            thread.save({"big": messages(3000), "small": messages(300), "n": 1})
            thread.set("n", 2)
            thread.set("small[5]", "changed")
            chunks = store.stats().chunks
        with opener() as store, chunks_read(store) as asked:
            assert _shown(store.thread("t").diff(1, 2)) == [("~", "n", 1, 2)]
            few = len(set(asked))
            assert [str(change.path) for change in store.thread("t").diff(2, 3)] == ["small[5]"]
        assert few <= 3
        assert len(set(asked)) < chunks / 3
