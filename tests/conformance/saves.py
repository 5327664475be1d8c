"""Saving and loading: what goes in comes out, whole and exact, from the newest checkpoint and from every older one."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import math
import pathlib
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

import pytest

from backtrail import NotFound
from tests.conformance.base import Suite, fill, head, steps
from tests.support.exact import same

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Checkpoint, Store, Thread
    from tests.conformance.base import Opener

PLAIN: Final[dict[str, Any]] = {
    "none": None,
    "booleans": [True, False],
    "one three times": [1, True, 1.0],
    "integers": [0, -1, 127, 128, 2**31, 2**63, -(2**63), 2**64, -(2**64), 10**100],
    "floats": [0.0, -0.0, 0.1, 1e308, 5e-324, math.inf, -math.inf, math.nan],
    "texts": ["", "a", "é", "😀", "\0", "a\nb", "x" * 70_000],
    "lone surrogates": ["\ud800", "a\udfffb", "\ud83d\ude00"],
    "bytes": [b"", b"\0\xff", bytearray(b"ab"), bytearray(), b"\x11\x94", b"y" * 70_000],
    "nested": {"a": [{"b": ({"c": []},)}], "d": {}},
    "tuples": [(), (1,), (1, (2, [3]))],
    "sets": [set(), {1, 2, 3}, frozenset({"a", "b"}), {(1, 2), frozenset({3})}],
    "keys": {"a": 1, 2: 2, 3.5: 3, None: 4, (1, "x"): 5, b"b": 6, frozenset({1}): 7, "": 8, "a.b[0]": 9},
    "key order": {"z": 1, "a": 2, "m": 3},
    "times": [
        dt.datetime(2026, 1, 31, 12, 0, 0, 123456),
        dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
        dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Lisbon"), fold=1),
        dt.date(2026, 1, 31),
        dt.time(23, 59, 59, 999999),
        dt.timedelta(days=-3, microseconds=7),
    ],
    "others": [uuid.UUID(int=1 << 100), decimal.Decimal("1.10"), decimal.Decimal("NaN"), pathlib.PurePosixPath("/a/b")],
    "a text at the root": "only this",
    "a list at the root": [1, [2, [3]]],
    "a number at the root": 5,
}


def _insert_front(state: Any) -> None:
    state["messages"].insert(0, {"role": "system", "content": "first"})


def _insert_middle(state: Any) -> None:
    state["messages"].insert(20, "in the middle")


def _change_nested(state: Any) -> None:
    state["plan"]["days"][1]["city"] = "Porto"


def _remove_key(state: Any) -> None:
    del state["plan"]["budget"]


def _one_to_true(state: Any) -> None:
    state["one"] = True


def _true_to_float(state: Any) -> None:
    state["one"] = 1.0


def _list_to_dict(state: Any) -> None:
    state["messages"] = dict(enumerate(state["messages"]))


def _reorder_keys(state: Any) -> None:
    state["plan"] = dict(reversed(state["plan"].items()))


def _move_key(state: Any) -> None:
    state["many"]["k3"] = state["many"].pop("k3")


def _change_text(state: Any) -> None:
    state["text"] = state["text"][:500] + "inserted" + state["text"][600:]


def _reverse(state: Any) -> None:
    state["numbers"].reverse()


def _empty(state: Any) -> None:
    state["numbers"].clear()


def _nothing(state: Any) -> None:
    del state


EDITS: Final[tuple[Callable[[Any], None], ...]] = (
    _insert_front,
    _insert_middle,
    _change_nested,
    _remove_key,
    _one_to_true,
    _true_to_float,
    _reverse,
    _nothing,
    _reorder_keys,
    _move_key,
    _change_text,
    _list_to_dict,
    _empty,
)


def _first() -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"message {n}"} for n in range(40)],
        "plan": {"budget": 120, "days": [{"city": "Lisbon"}, {"city": "Lisbon"}]},
        "one": 1,
        "many": {f"k{n}": n for n in range(40)},
        "numbers": list(range(300)),
        "text": "lorem ipsum dolor sit amet\n" * 60,
    }


class Saving(Suite):
    """`save`, `load`, `latest`, and the fields of a checkpoint."""

    @pytest.mark.parametrize("name", list(PLAIN))
    def test_plain_data_comes_back_exactly(self, opener: Opener, name: str) -> None:
        with opener() as store:
            saved = store.thread("t").save(copy.deepcopy(PLAIN[name]))
            assert same(saved.state, PLAIN[name])
        with opener() as store:
            assert same(head(store.thread("t")).state, PLAIN[name])

    def test_every_checkpoint_loads_as_saved_after_edits(self, opener: Opener) -> None:
        state, expected = _first(), []
        with opener() as store:
            thread: Thread[Any] = store.thread("t")
            for edit in (_nothing, *EDITS):
                edit(state)
                made = thread.save(state)
                expected.append((made.id, copy.deepcopy(state)))
                assert same(head(store.thread("t")).state, state), edit.__name__
        with opener() as store:
            for which, kept in reversed(expected):
                assert same(store.thread("t").load(which).state, kept)

    def test_each_edit_is_kept_by_new_handles_without_cache(self, opener: Opener) -> None:
        state, expected = _first(), []
        for edit in (_nothing, *EDITS):
            edit(state)
            with opener() as store:
                made: Checkpoint[Any] = store.thread("t").save(state)
                expected.append((made.id, copy.deepcopy(state)))
        with opener() as store:
            for which, kept in expected:
                assert same(store.thread("t").load(which).state, kept)

    def test_order_of_nested_dict_keys_is_kept(self, thread: Thread[Any]) -> None:
        state = {"outer": {f"key {n}": n for n in range(27)}, "other": 1}
        thread.save(copy.deepcopy(state))
        state["outer"]["key 3"] = state["outer"].pop("key 3")  # type: ignore[index, attr-defined]
        state["outer"]["key 9"] = "changed"  # type: ignore[index]
        assert same(thread.save(state).state, state)
        assert same(head(thread).state, state)

    def test_1_true_and_1_0_stay_different(self, thread: Thread[Any]) -> None:
        made = [thread.save({"x": value, "in a list": [value]}) for value in (1, True, 1.0, 1)]
        assert [type(checkpoint.state["x"]) for checkpoint in made] == [int, bool, float, int]
        loaded = [thread.load(checkpoint.id).state for checkpoint in made]
        assert [type(state["in a list"][0]) for state in loaded] == [int, bool, float, int]
        assert len({checkpoint.root for checkpoint in made}) == 3
        assert made[0].root == made[3].root

    def test_changing_a_saved_state_does_not_change_the_checkpoint(self, thread: Thread[Any]) -> None:
        state = {"messages": [1]}
        saved = thread.save(state)
        state["messages"].append(2)
        assert saved.state == {"messages": [1]}
        assert head(thread).state == {"messages": [1]}

    def test_changing_a_loaded_state_changes_no_other_load(self, thread: Thread[Any]) -> None:
        saved = thread.save({"messages": [1]})
        loaded = head(thread)
        loaded.state["messages"].append(2)
        assert thread.load(saved.id).state == {"messages": [1]}

    def test_saving_the_same_state_again_makes_another_checkpoint(self, thread: Thread[Any]) -> None:
        first, second = thread.save({"n": 1}), thread.save({"n": 1})
        assert first.id != second.id
        assert (first.step, second.step) == (1, 2)
        assert first.root == second.root
        assert len(thread) == 2

    def test_steps_count_from_1_and_parents_precede(self, thread: Thread[Any]) -> None:
        made = fill(thread, 3)
        assert steps(made) == [1, 2, 3]
        assert [checkpoint.parent_id for checkpoint in made] == [None, made[0].id, made[1].id]
        assert thread.current_step == 3

    def test_steps_continue_after_reopening(self, opener: Opener) -> None:
        with opener() as store:
            fill(store.thread("t"), 2)
        with opener() as store:
            assert store.thread("t").save({"n": 3}).step == 3
            assert steps(store.thread("t").history()) == [1, 2, 3]

    def test_checkpoint_fields_survive_reopening(self, opener: Opener) -> None:
        metadata = {"cost": 1.5, "who": "é\0", "nested": {"a": [1, True]}}
        with opener() as store:
            saved: Checkpoint[Any] = store.thread("t").save(
                {"n": 1}, label="first", tags=("b", "a"), metadata=metadata, kind="recovery"
            )
            plain: Checkpoint[Any] = store.thread("t").save({"n": 2})
        with opener() as store:
            first, second = store.thread("t").history()
        for made in (saved, first):
            assert (made.label, made.kind, made.thread_id, made.step) == ("first", "recovery", "t", 1)
            assert made.tags == ("b", "a")
            assert same(made.metadata, metadata)
        assert saved.id == first.id
        assert saved == first
        assert hash(saved) == hash(first)
        assert (plain.label, plain.tags, plain.metadata, plain.kind) == (None, (), {}, "manual")
        assert plain == second
        assert plain != first

    @pytest.mark.parametrize("kind", ["manual", "automatic", "pre_operation", "recovery"])
    def test_each_kind_is_kept(self, thread: Thread[Any], kind: str) -> None:
        thread.save({}, kind=kind)
        assert head(thread).kind == kind

    def test_checkpoint_has_time_and_size(self, thread: Thread[Any]) -> None:
        before = dt.datetime.now(dt.UTC)
        small, large = thread.save({"x": ""}), thread.save({"x": "y" * 100_000})
        after = dt.datetime.now(dt.UTC)
        assert before <= small.created_at <= large.created_at <= after
        assert small.created_at.tzinfo is not None
        assert 0 < small.size < 100
        assert 100_000 < large.size < 100_100
        assert small.stored > 0
        assert large.root.startswith("blake3:")
        assert small.seq < large.seq

    def test_metadata_given_out_is_a_copy(self, thread: Thread[Any]) -> None:
        saved = thread.save({}, metadata={"a": 1})
        saved.metadata["a"] = 2
        assert saved.metadata == {"a": 1}

    def test_new_handle_does_no_io(self, store: Store) -> None:
        store.thread("t")
        assert list(store.threads()) == []
        assert store.stats().threads == 0


class Missing(Suite):
    """Calls on a thread that does not exist."""

    def test_reading_finds_nothing(self, thread: Thread[Any]) -> None:
        assert thread.latest() is None
        assert len(thread) == 0
        assert thread.current_step == 0
        assert list(thread.history()) == []
        assert thread.find(label="x") == []
        assert thread.find(tag="x") == []
        assert bool(thread) is True

    def test_removing_removes_nothing(self, thread: Thread[Any]) -> None:
        assert thread.delete() is False
        assert thread.delete_checkpoint("@") is False
        assert thread.delete_checkpoint("nothing") is False
        assert thread.prune(keep_last=0) == 0

    @pytest.mark.parametrize(
        "call",
        [
            lambda thread: thread.load(),
            lambda thread: thread.load(1),
            lambda thread: thread.load("0123456789abcdef01234567"),
            lambda thread: thread.rewind("@"),
            lambda thread: thread.undo(),
            lambda thread: thread.redo(),
            lambda thread: thread.fork("other"),
            lambda thread: thread.diff(),
            lambda thread: thread.tag("@", "x"),
            lambda thread: thread.untag("@", "x"),
            lambda thread: thread.append("messages", 1),
            lambda thread: thread.set("a", 1),
            lambda thread: thread.delete_at("a"),
            lambda thread: thread.step().__enter__(),
        ],
    )
    def test_calls_on_a_missing_thread_are_not_found(
        self, store: Store, thread: Thread[Any], call: Callable[[Thread[Any]], object]
    ) -> None:
        with pytest.raises(NotFound) as caught:
            call(thread)
        assert caught.value.code == "not_found.thread"
        assert list(store.threads()) == []

    def test_a_deleted_thread_answers_in_the_same_way(self, store: Store, thread: Thread[Any]) -> None:
        kept = thread.save({"messages": []}, label="x", tags=["y"])
        thread.delete()
        self.test_reading_finds_nothing(thread)
        self.test_removing_removes_nothing(thread)
        for call in (thread.undo, thread.redo, thread.load, lambda: thread.load(kept.id), lambda: thread.rewind(kept)):
            with pytest.raises(NotFound):
                call()
        with pytest.raises(NotFound):
            thread.append("messages", 1)
        assert store.checkpoint(kept.id) is None

    def test_an_unknown_checkpoint_is_none(self, store: Store) -> None:
        assert store.checkpoint("0123456789abcdef01234567") is None
        assert store.checkpoint("x") is None
        assert store.checkpoint("\0" * 24) is None
