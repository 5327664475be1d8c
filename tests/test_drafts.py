"""Drafts: whatever a step does to its state is saved as if the whole state had been, and costs what it changed."""

import bisect
import copy
import dataclasses
import gc
import heapq
import json
import pickle
import threading
from collections import Counter
from typing import Any
from unittest import mock

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail.engine import drafts, packing
from backtrail.engine.tracked import TrackedDict, TrackedList
from backtrail.testing import exact
from backtrail.testing.chunks import small_chunks
from backtrail.testing.conformance.base import chunks_read, messages
from tests.draft_scripts import Box, Pair, value

NUMBER = st.integers(0, 10**6)
SCRIPT = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=8)


class DroppedError(Exception):
    pass


def drop():
    raise DroppedError


def run(first, steps):
    store = backtrail.open("memory://", types=[Box])
    thread, other = store.thread("draft"), store.thread("plain")
    thread.save(copy.deepcopy(first))
    other.save(first)
    pair = Pair(None, first)
    for script, fails in steps:
        before = copy.deepcopy(pair.root[1])
        refused = None
        try:
            with thread.step() as state:
                assert exact.same(copy.deepcopy(state), before)
                pair.root = state, pair.root[1]
                pair.run(script)
                if fails:
                    drop()
        except DroppedError:
            pair.root, pair.kept = (None, before), []
            assert exact.same(thread.load().state, before)
            continue
        except backtrail.Invalid as error:
            refused = error
        if refused is not None:
            with pytest.raises(backtrail.Invalid):
                other.save(pair.root[1])
            pair.root, pair.kept = (None, before), []
            continue
        saved = other.save(pair.root[1])
        assert thread.load().root == saved.root
        assert exact.same(thread.load().state, saved.state)
        assert exact.same(copy.deepcopy(pair.root[0]), saved.state)
        pair.settled(copy.deepcopy(saved.state))
    store.close()


STEPS = st.lists(st.tuples(SCRIPT, st.sampled_from([False, False, False, True])), max_size=5)
FIRST = st.lists(NUMBER, max_size=6).map(lambda numbers: {"l": [value(n) for n in numbers], "d": {}, "n": 1})


@given(FIRST, STEPS)
def test_a_draft_saves_what_a_plain_save_of_the_same_changes_saves(first, steps):
    run(first, steps)


@given(FIRST, STEPS)
def test_a_draft_saves_what_a_plain_save_saves_in_small_chunks(first, steps):
    with small_chunks():
        run(first, steps)


# -- hazards, by name ---------------------------------------------------------------------------------


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


@pytest.fixture
def thread(store):
    return store.thread("t")


def held(thread, expected):
    """The state is this, exactly, and is saved as a plain save would save it."""
    assert exact.same(thread.load().state, expected)
    with backtrail.open("memory://") as other:
        assert thread.load().root == other.thread("t").save(expected).root
    return True


def begin(thread, state):
    """Save a state and make one step, so that the next one has a draft that was kept."""
    thread.save(state)
    with thread.step():
        pass
    assert thread._drafts


def test_heapq_on_a_list_of_the_state_is_seen(thread):
    begin(thread, {"heap": [1, 5, 3], "n": 0})
    with thread.step() as state:
        heapq.heappush(state["heap"], 2)
        heapq.heappop(state["heap"])
    assert held(thread, {"heap": [2, 5, 3], "n": 0})


def test_bisect_and_unbound_methods_are_seen(thread):
    begin(thread, {"l": [1, 3], "d": {"x": 1}})
    with thread.step() as state:
        bisect.insort(state["l"], 2)
        list.append(state["l"], 4)
        dict.__setitem__(state["d"], "y", 2)
    assert held(thread, {"l": [1, 2, 3, 4], "d": {"x": 1, "y": 2}})


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_list_that_heapq_hands_out_and_heapq_changes_is_seen(thread, count):
    begin(thread, {"runs": [[n, n + 10] for n in range(count)]})
    with thread.step() as state:
        runs = state["runs"]
        order = list.copy(runs)
        first = heapq.heappop(runs)
        heapq.heappop(first)
        list.insert(first, 0, -1)
        list.__setitem__(runs, slice(None), order)  # all of them where they were
    assert held(thread, {"runs": [[-1, 10], *([n, n + 10] for n in range(1, count))]})


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_dict_in_a_tuple_that_heapq_hands_out_is_seen(thread, count):
    begin(thread, {"todo": [(n, {"tries": 0}) for n in range(count)]})
    with thread.step() as state:
        order = list.copy(state["todo"])
        job = heapq.heappop(state["todo"])
        job[1]["tries"] += 1
        list.__setitem__(state["todo"], slice(None), order)
    assert held(thread, {"todo": [(n, {"tries": int(n == 0)}) for n in range(count)]})


@dataclasses.dataclass(order=True)
class Job:
    rank: int
    note: str = ""
    log: list[str] = dataclasses.field(default_factory=list)


def test_a_record_that_heapq_hands_out_is_seen(store):
    thread = store.thread("t", list[Job])
    begin(thread, [Job(n) for n in range(5)])
    with thread.step() as jobs:
        order = list.copy(jobs)
        job = heapq.heappop(jobs)
        job.note = "seen"
        list.append(job.log, "x")
        list.__setitem__(jobs, slice(None), order)
    assert thread.load().state == [Job(0, "seen", ["x"]), *(Job(n) for n in range(1, 5))]


def test_a_dict_in_a_tuple_is_seen_also_through_a_reference_that_was_kept(thread):
    begin(thread, {"t": (1, {"a": 1})})
    with thread.step() as state:
        inner = state["t"][1]
        inner["a"] = 2
    with thread.step():
        inner["a"] = 3
    assert held(thread, {"t": (1, {"a": 3})})


def test_what_is_equal_and_not_the_same_is_a_change(thread):
    begin(thread, {"n": 1, "z": 0.0, "l": [1, 0.0], "d": [{"a": 1}]})
    with thread.step() as state:
        state["n"], state["z"] = True, -0.0
        state["l"][:] = [True, -0.0]
        state["d"][0] = {"a": True}
    assert held(thread, {"n": True, "z": -0.0, "l": [True, -0.0], "d": [{"a": True}]})


def test_a_key_that_is_equal_and_not_the_same_is_a_change(thread):
    begin(thread, {"d": {1: "a", 2: "b"}, "e": {1: "a"}})
    with thread.step() as state:
        del state["d"][1]
        state["d"][True] = "a"
        state["e"][True] = "b"  # keeps the key that is there
    assert held(thread, {"d": {2: "b", True: "a"}, "e": {1: "b"}})


def test_keys_that_are_there_twice_are_kept_apart(thread):
    one, two = float("nan"), float("nan")
    begin(thread, {"d": {one: [1], two: [2]}})
    with thread.step() as state:
        list(state["d"].values())[1].append(3)
    assert [*thread.load().state["d"].values()] == [[1], [2, 3]]


def test_the_order_of_keys_is_part_of_the_state(thread):
    begin(thread, {"a": 1, "b": [2], "c": 3})
    with thread.step() as state:
        state["a"] = state.pop("a")
        state["b"].append(4)
    assert held(thread, {"b": [2, 4], "c": 3, "a": 1})


def test_an_object_that_is_changed_after_it_was_put_in_is_saved_as_it_is_at_the_end(thread):
    begin(thread, {"x": []})
    with thread.step() as state:
        mine = {}
        state["x"].append(mine)
        state["x"].append(mine)
        mine["a"] = 1
    assert held(thread, {"x": [{"a": 1}, {"a": 1}]})


def test_what_was_put_in_is_copied_when_the_step_ends(thread):
    begin(thread, {"x": []})
    mine, ours = {"a": [1]}, {1}
    with thread.step() as state:
        state["x"] += [mine, ours]
    mine["a"].append(2)
    ours.add(2)
    with thread.step() as state:
        mine["b"] = 1
        assert state["x"] == [{"a": [1]}, {1}]
    assert held(thread, {"x": [{"a": [1]}, {1}]})


def test_a_part_in_two_places_is_one_object_until_the_step_ends_and_two_after(thread):
    begin(thread, {"a": [1], "b": None, "s": {1}, "t": None})
    with thread.step() as state:
        state["b"], state["t"] = state["a"], state["s"]
        state["b"].append(2)
        state["t"].add(2)
        assert state["a"] is state["b"]
        assert state["a"] == [1, 2]
    assert held(thread, {"a": [1, 2], "b": [1, 2], "s": {1, 2}, "t": {1, 2}})
    with thread.step() as state:
        state["b"].append(3)
        state["t"].add(3)
    assert held(thread, {"a": [1, 2], "b": [1, 2, 3], "s": {1, 2}, "t": {1, 2, 3}})


def test_a_part_of_the_state_inside_a_tuple_is_a_copy_after_the_step(thread):
    begin(thread, {"a": [1], "t": ({},)})
    with thread.step() as state:
        state["t"][0]["a"] = state["a"]
    with thread.step() as state:
        state["a"].append(2)
    assert held(thread, {"a": [1, 2], "t": ({"a": [1]},)})


def test_what_becomes_one_object_inside_tuples_is_two_after_the_step(thread):
    begin(thread, {"a": [], "t": ({"x": {}}, {}), "u": ({"x": []},)})
    with thread.step() as state:  # nothing differs, but what is the same object
        state["t"][0]["x"] = state["t"][1]
        state["u"][0]["x"] = state["a"]
    with thread.step() as state:
        state["t"][1]["k"] = 1
        state["a"].append(1)
        assert state["t"] == ({"x": {}}, {"k": 1})
        assert state["u"][0] == {"x": []}
    assert thread.load().get("t") == ({"x": {}}, {"k": 1})
    assert thread.load().get("u")[0] == {"x": []}


def test_a_part_that_moved_is_still_live_in_the_next_step(thread):
    begin(thread, {"a": {"x": [1], "y": {"z": [1]}}, "b": {}, "l": [[3], [1], [2]]})
    with thread.step() as state:
        moved, deep, item = state["a"].pop("x"), state["a"]["y"]["z"], state["l"][0]
        state["b"]["x"] = moved
        state["b"]["z"] = deep
        del state["a"]
        state["l"].sort()
    with thread.step():
        moved.append(2)
        deep.append(2)
        item.append(4)
    assert held(thread, {"b": {"x": [1, 2], "z": [1, 2]}, "l": [[1], [2], [3, 4]]})


def test_a_part_taken_out_of_what_moved_is_still_live_in_the_next_step(thread):
    begin(thread, {"a": {"p": {"n": [1]}}, "q": None})
    with thread.step() as state:
        parent = state.pop("a")
        inner = parent["p"].pop("n")
        state["b"] = parent
        state["q"] = inner
    with thread.step():
        inner.append(2)
    assert held(thread, {"q": [1, 2], "b": {"p": {}}})


def test_a_part_that_is_twice_in_what_moved_is_two_after(thread):
    begin(thread, {"a": {"k": [1], "s": {1}}})
    with thread.step() as state:
        moved = state.pop("a")
        moved["again"], moved["t"] = moved["k"], moved["s"]
        state["b"] = moved
    with thread.step() as state:
        state["b"]["again"].append(2)
        state["b"]["t"].add(2)
        assert state["b"] == {"k": [1], "s": {1}, "again": [1, 2], "t": {1, 2}}
    assert held(thread, {"b": {"k": [1], "s": {1}, "again": [1, 2], "t": {1, 2}}})


def test_a_part_that_is_taken_out_changed_without_a_hook_and_put_back_is_seen(thread):
    begin(thread, {"l": [[1], [2], [3]], "d": {"k": [1]}, "e": {"k": [1]}})
    with thread.step() as state:
        first = state["l"].pop(0)
        list.append(first, 4)
        state["l"].insert(0, first)
        value = state["d"].pop("k")
        list.append(value, 4)
        state["d"]["k"] = value
        key, value = state["e"].popitem()
        list.append(value, 4)
        state["e"][key] = value
    assert held(thread, {"l": [[1, 4], [2], [3]], "d": {"k": [1, 4]}, "e": {"k": [1, 4]}})


def test_what_a_key_of_sort_changes_is_seen(thread):
    begin(thread, {"l": [[3], [1], [2]]})
    with thread.step() as state:
        state["l"].sort(key=lambda part: list.append(part, 0) or part[0])
    assert held(thread, {"l": [[1, 0], [2, 0], [3, 0]]})
    with thread.step() as state:
        state["l"].sort(key=lambda part: list.append(part, 1) or part[0])  # none of them moves
    assert held(thread, {"l": [[1, 0, 1], [2, 0, 1], [3, 0, 1]]})


def test_what_was_taken_out_is_the_callers_own(thread):
    begin(thread, {"todo": [{"n": [1]}], "done": []})
    with thread.step() as state:
        job = state["todo"].pop()
    job["n"].append(2)
    with thread.step() as state:
        job["ok"] = True
        state["done"].append(job)
    assert held(thread, {"todo": [], "done": [{"n": [1, 2], "ok": True}]})


def test_what_was_taken_out_in_a_transaction_is_the_callers_own(store, thread):
    begin(thread, {"todo": [[1]]})
    with store.transaction(), thread.step() as state:
        job = state["todo"].pop()
    job.append(2)
    assert job == [1, 2]


def test_a_part_of_one_draft_is_copied_into_another(store):
    one, two = store.thread("one"), store.thread("two")
    for each in (one, two):
        begin(each, {"l": [[1], [2]]})
    with one.step() as here:
        taken = here["l"].pop()
    with one.step() as here, two.step() as there:
        there["l"] += [here["l"][0], taken]
    with two.step() as there:
        there["l"][2].append(3)
        there["l"][3].append(4)
    assert held(one, {"l": [[1]]})
    assert held(two, {"l": [[1], [2], [1, 3], [2, 4]]})
    with one.step() as here:
        here["l"].append(taken)
    assert held(one, {"l": [[1], [2]]})


def test_a_kept_reference_is_live_in_the_next_step(thread):
    begin(thread, {"l": [1], "d": {"s": {1}, "b": bytearray(b"a")}})
    with thread.step() as state:
        items, inner = state["l"], state["d"]
        seen, raw = inner["s"], inner["b"]
    del state
    with thread.step():
        list.append(items, 2)  # without a hook
        dict.__setitem__(inner, "k", 1)
        seen.add(2)
        raw.append(98)
    assert held(thread, {"l": [1, 2], "d": {"s": {1, 2}, "b": bytearray(b"ab"), "k": 1}})


def test_a_kept_view_and_iterator_give_live_parts(thread):
    begin(thread, {"d": {"s": {1}, "t": {2}}, "l": [{1}, {2}, {3}]})
    with thread.step() as state:
        values, items = state["d"].values(), iter(state["l"])
    with thread.step():
        [*values][1].add(5)
        next(items).add(6)
    assert held(thread, {"d": {"s": {1}, "t": {2, 5}}, "l": [{1, 6}, {2}, {3}]})


def test_after_its_step_a_draft_is_read_and_not_changed(thread):
    begin(thread, {"l": [1], "d": {"a": []}})
    with thread.step() as state:
        pass
    changes = [
        lambda: state.update(a=1),
        lambda: state["l"].append(1),
        lambda: state["l"].__iadd__([1]),
        lambda: state["d"]["a"].sort(key=str),
        lambda: state.pop("l"),
    ]
    for change in changes:
        with pytest.raises(backtrail.Invalid) as caught:
            change()
        assert caught.value.code == "invalid.draft"
    assert state == {"l": [1], "d": {"a": []}}
    with thread.step() as again:
        assert again is state
        state["l"].append(2)
    assert held(thread, {"l": [1, 2], "d": {"a": []}})


@pytest.mark.parametrize(
    "change",
    [
        lambda state: list.append(state["l"], 2),
        lambda state: heapq.heappop(state["l"]),
        lambda state: dict.__setitem__(state, "x", 2),
        lambda state: state["s"].add(2),
        lambda state: state["t"][0].update(a=1),
    ],
)
def test_a_change_outside_of_a_step_is_refused_and_dropped(thread, change):
    begin(thread, {"l": [1], "s": {1}, "t": ({},)})
    with thread.step() as state:
        pass
    change(state)
    with pytest.raises(backtrail.Invalid) as caught, thread.step():
        raise AssertionError
    assert caught.value.code == "invalid.draft"
    with thread.step() as fresh:
        assert fresh == {"l": [1], "s": {1}, "t": ({},)}


def test_a_field_that_is_set_outside_of_a_step_is_refused(store):
    thread = store.thread("t", Job)
    begin(thread, Job(1))
    with thread.step() as job:
        job.rank = 2
    job.rank = 3
    with pytest.raises(backtrail.Invalid, match="while no step was open"), thread.step():
        pass
    assert thread.load().state == Job(2)


def test_an_exception_drops_the_draft(thread):
    begin(thread, {"l": [1]})
    with pytest.raises(DroppedError), thread.step() as state:
        list.append(state["l"], 2)
        drop()
    assert not thread._drafts
    with pytest.raises(backtrail.Invalid) as caught:
        state["l"].append(3)
    assert caught.value.code == "invalid.draft"
    with thread.step() as fresh:
        assert fresh == {"l": [1]}


def test_a_conflict_drops_the_draft(store, thread):
    begin(thread, {"l": [1]})
    with pytest.raises(backtrail.Conflict), thread.step() as state:
        state["l"].append(2)
        store.thread("t").append("l", 3)
    assert not thread._drafts
    with thread.step() as state:
        state["l"].append(4)
    assert held(thread, {"l": [1, 3, 4]})


def test_what_others_wrote_between_two_steps_is_in_the_next(store, thread):
    begin(thread, {"l": [1]})
    store.thread("t").append("l", 2)
    with thread.step() as state:
        state["l"].append(3)
    assert held(thread, {"l": [1, 2, 3]})


def test_what_cannot_be_kept_is_named_and_drops_the_draft(thread):
    begin(thread, {"messages": [{"n": 0}]})
    with pytest.raises(backtrail.Invalid) as caught, thread.step() as state:
        state["messages"].append({"when": [object()]})
    assert caught.value.path == "state.messages[1].when[0]"
    with pytest.raises(backtrail.Invalid) as caught, thread.step() as state:
        state["messages"][0]["n"] = object()
    assert caught.value.path == "state.messages[0].n"
    with pytest.raises(backtrail.Invalid, match="contains itself"), thread.step() as state:
        state["messages"].append(state)
    assert held(thread, {"messages": [{"n": 0}]})


def test_steps_inside_each_other_have_drafts_of_their_own(thread):
    begin(thread, {"l": []})
    with pytest.raises(backtrail.Conflict), thread.step() as outer:
        with thread.step() as inner:
            assert inner is not outer
            inner["l"].append(1)
        assert outer == {"l": []}
        outer["l"].append(2)
    assert held(thread, {"l": [1]})


def test_threads_that_share_a_handle_have_drafts_of_their_own(thread):
    begin(thread, {"l": []})
    wins = Counter()

    def work(name):
        for n in range(30):
            try:
                with thread.step() as state:
                    state["l"].append((name, n))
            except backtrail.Conflict:
                continue
            wins[name] += 1

    workers = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert Counter(name for name, _ in thread.load().state["l"]) == wins


def test_a_step_in_a_transaction_is_written_with_it_or_not_at_all(store, thread):
    begin(thread, {"l": [1]})
    kept = list(thread._drafts)
    with store.transaction():
        with thread.step() as state:
            state["l"].append(2)
        assert thread._drafts == kept
        with thread.step() as state:
            state["l"].append(3)
    assert held(thread, {"l": [1, 2, 3]})
    with pytest.raises(DroppedError), store.transaction():
        with thread.step() as state:
            state["l"].append(4)
        drop()
    with thread.step() as state:
        state["l"].append(5)
    assert held(thread, {"l": [1, 2, 3, 5]})


def test_a_step_after_a_rewind_begins_with_what_is_there(thread):
    begin(thread, {"l": []})
    with thread.step("one") as state:
        state["l"].append(1)
    with thread.step() as state:
        state["l"].append(2)
    thread.rewind("one")
    with thread.step() as state:
        state["l"].append(3)
    assert held(thread, {"l": [1, 3]})


@pytest.mark.parametrize("state", ["text", 7, None, (1, 2), frozenset({1})])
def test_a_state_that_cannot_change_is_saved_again(thread, state):
    thread.save(state)
    for _ in range(2):
        with thread.step() as given:
            assert exact.same(given, state)
    assert len(thread) == 3
    assert held(thread, state)


def test_a_state_may_be_a_list_a_set_or_a_bytearray(store):
    for first, change, last in [
        ([1], lambda state: state.append([2]), [1, [2]]),
        ({1}, lambda state: state.add(2), {1, 2}),
        (bytearray(b"a"), lambda state: state.extend(b"b"), bytearray(b"ab")),
        ((1, [2]), lambda state: state[1].append(3), (1, [2, 3])),
    ]:
        thread = store.thread(type(first).__name__)
        begin(thread, first)
        with thread.step() as state:
            change(state)
        assert held(thread, last)


def test_a_change_far_down_is_saved(thread):
    plain = []
    for _ in range(150):
        plain = [plain, 1]
    begin(thread, copy.deepcopy(plain))
    with thread.step() as draft:
        for state in (plain, draft):
            inner = state
            while inner:
                inner = inner[0]
            inner.append("deep")
    with backtrail.open("memory://") as other:
        assert thread.load().root == other.thread("t").save(plain).root


# -- plain data to everybody else -----------------------------------------------------------------------


def test_a_draft_looks_like_plain_data(thread):
    plain = {"l": [1, {"a": 2}], "d": {"x": [3]}}
    begin(thread, plain)
    with thread.step() as state:
        assert isinstance(state, dict)
        assert isinstance(state["l"], list)
        assert state == plain
        assert plain == state
        assert (repr(state), str(state["l"]), json.dumps(state)) == (repr(plain), str(plain["l"]), json.dumps(plain))
        assert repr(state.values()) == repr(plain.values())
        assert repr(state["d"].items()) == repr(plain["d"].items())
        assert [*reversed(state.items())] == [*reversed(plain.items())]
        match state:
            case {"l": [1, {"a": int(a)}], **rest}:
                assert (a, rest) == (2, {"d": {"x": [3]}})
            case _:
                raise AssertionError
        for copied in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
            assert exact.same(copied, plain)
        outside = (
            copy.copy(state), {**state}, dict(state), state | {}, {} | state, state.copy(),
            state["l"][:], [*state["l"]], state["l"] + [], [] + state["l"], state["l"] * 1, list(state["l"]),
            copy.copy(state["l"]),
        )  # fmt: skip
        assert {type(each) for each in outside} == {dict, list}


@pytest.mark.parametrize(
    "hand_out",
    [
        lambda d: d["k"],
        lambda d: d.get("k"),
        lambda d: d.setdefault("k", None),
        lambda d: next(iter(d.values())),
        lambda d: next(iter(d.items()))[1],
        lambda d: {**d}["k"],
        lambda d: dict(d)["k"],
        lambda d: (d | {})["k"],
        lambda d: ({} | d)["k"],
        lambda d: d.copy()["k"],
        lambda d: copy.copy(d)["k"],
        lambda d: d["l"][0],
        lambda d: d["l"][-3],
        lambda d: d["l"][:1][0],
        lambda d: next(iter(d["l"])),
        lambda d: [*reversed(d["l"])][-1],
        lambda d: d["l"].copy()[0],
        lambda d: (d["l"] + [])[0],
        lambda d: ([] + d["l"])[0],
        lambda d: (d["l"] * 2)[0],
        lambda d: (2 * d["l"])[0],
        lambda d: tuple(d["l"])[0],  # noqa: RUF015 - another way through C
        lambda d: sorted(d["l"], key=len)[0],  # noqa: FURB192
        lambda d: min(d["l"], key=len),
        lambda d: d["l"].pop(0),
    ],
)
@pytest.mark.parametrize("kind", [list, set])
def test_whatever_hands_a_part_out_hands_out_a_part_that_is_watched(thread, hand_out, kind):
    begin(thread, {"k": kind(), "l": [kind(), kind("ab"), kind("abc")]})
    with thread.step() as state:
        part = hand_out(state)
        (list.append if kind is list else set.add)(part, 1)
        after = copy.deepcopy(state)
        assert str(after).count("1") == (0 if len(after["l"]) == 2 else 1)
    assert held(thread, after)


def test_a_draft_or_a_part_of_it_can_be_saved_elsewhere(store, thread):
    begin(thread, {"l": [{"a": (1,)}], "big": [[n] * 50 for n in range(300)]})
    with thread.step() as state:
        store.thread("all").save(state)
        store.thread("part").save({"in": state["l"]})
        store.thread("part").append("in", state["l"][0])
    assert exact.same(store.thread("all").load().state, thread.load().state)
    assert exact.same(store.thread("part").load().state, {"in": [{"a": (1,)}, {"a": (1,)}]})


# -- records ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Data:
    n: int
    items: list[Any]
    by: dict[str, Any]
    inner: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    items: list[Any]
    by: dict[str, Any]
    inner: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int
    items: list[Any]
    by: dict[str, Any]
    inner: Any = None


class Struct(msgspec.Struct):
    n: int
    items: list[Any]
    by: dict[str, Any]
    inner: Any = None


class FrozenStruct(msgspec.Struct, frozen=True):
    n: int
    items: list[Any]
    by: dict[str, Any]
    inner: Any = None


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_assignment=True)
    n: int
    items: list[Any]
    by: dict[str, Any]
    inner: Any = None
    other: Any = None
    _private: list[int] = pydantic.PrivateAttr(default_factory=list)


RECORDS = [Data, Frozen, Slotted, Struct, FrozenStruct, Model]


def saved_alike(store, thread, state):
    """The state is what a plain save of this one would have saved."""
    assert thread.load().state == state
    assert thread.load().root == store.thread("plain", thread._type).save(state).root


@pytest.mark.parametrize("cls", RECORDS)
def test_a_record_is_tracked_at_the_root_and_inside(store, cls):
    def make(n):
        return cls(n=n, items=[], by={})

    plain = cls(n=1, items=[make(2), [make(3)]], by={"k": make(4)}, inner=make(5))
    thread = store.thread("t", cls)
    begin(thread, copy.deepcopy(plain))
    frozen = cls in (Frozen, FrozenStruct)
    kept = []
    for step in range(3):
        with thread.step() as draft:
            assert type(draft) is cls
            assert type(draft.items) is TrackedList
            for state in (plain, draft):
                state.items.append(make(step))
                state.items[0].items.append({"step": step})
                state.items[1][0].by["step"] = [step]
                list.append(state.by["k"].items, step)
                state.inner.by[str(step)] = step
                state.inner.by.setdefault("deep", []).append(step)
                if not frozen:
                    state.n += 1
                    state.items[0].n = -step
                    state.inner.inner = {"new": [step]} if step == 1 else make(step)
            kept.append(draft.items[0].items)
        saved_alike(store, thread, plain)
        plain = copy.deepcopy(thread.load().state)
    assert kept[0] is kept[2]


@pytest.mark.parametrize("cls", [Data, Slotted, Struct, Model])
def test_a_record_that_got_a_list_is_tracked_from_then_on(store, cls):
    thread = store.thread("t", list[cls])
    begin(thread, [cls(n=0, items=[], by={}, inner=None)])
    mine = [1]
    with thread.step() as state:
        state[0].inner = mine
    mine.append(2)
    with thread.step() as state:
        state[0].inner.append(3)
    saved_alike(store, thread, [cls(n=0, items=[], by={}, inner=[1, 3])])


@dataclasses.dataclass
class Slot:
    inner: Any = None


def test_a_record_without_parts_that_got_a_list_is_tracked_from_then_on(store):
    thread = store.thread("t", list[Slot])
    begin(thread, [Slot(), Slot(), Slot()])
    mine = [1]
    with thread.step() as state:
        state[1].inner = mine
    mine.append(2)
    with thread.step() as state:
        assert type(state[1].inner) is TrackedList
        state[1].inner.append(3)
    saved_alike(store, thread, [Slot(), Slot([1, 3]), Slot()])


def test_a_record_that_moved_is_still_live_in_the_next_step(store):
    thread = store.thread("t", list[Any])
    thread.save([Job(3, "c", ["x"]), Job(1, "a", ["y"]), Slot(2), Slot(1)])
    thread = store.thread("t", list[Job | Slot])
    with thread.step() as state:
        first, last = state[0], state[3]
        state.reverse()
    with thread.step():
        first.note = "d"
        first.log.append("z")
        last.inner = 5
    saved_alike(store, thread, [Slot(5), Slot(2), Job(1, "a", ["y"]), Job(3, "d", ["x", "z"])])


def test_what_was_put_into_a_record_that_moved_is_copied_too(store):
    thread = store.thread("t", list[Slot])
    begin(thread, [Slot(), Slot(1)])
    mine = {1}
    with thread.step() as state:
        state[0].inner = [mine]
        state.reverse()
    mine.add(2)
    with thread.step() as state:
        assert state == [Slot(1), Slot([{1}])]
    saved_alike(store, thread, [Slot(1), Slot([{1}])])


def test_a_step_lets_go_of_the_records_that_it_handed_out(store):
    thread = store.thread("t", Notes)
    begin(thread, Notes([Note("a", []) for _ in range(100)]))
    (draft,) = thread._drafts
    with thread.step() as state:
        for note in state.notes:
            note.tags.append("x")
    del state, note
    with thread.step():
        pass
    assert not draft._scope.marked


def test_what_becomes_one_record_in_two_fields_is_two_after_the_step(store):
    thread = store.thread("t", Slot)
    begin(thread, Slot((Slot(Slot(1)), Slot(1))))
    with thread.step() as state:
        state.inner[0].inner = state.inner[1]  # nothing differs, but what is the same object
    with thread.step() as state:
        state.inner[1].inner = 2
    saved_alike(store, thread, Slot((Slot(Slot(1)), Slot(2))))


def test_what_a_model_says_about_its_fields_is_part_of_the_state(store):
    thread = store.thread("t", Model)
    begin(thread, Model(n=1, items=[], by={}))
    assert "inner" not in thread.load().state.model_fields_set
    with thread.step() as state:
        state.inner = None
    assert "inner" in thread.load().state.model_fields_set
    with thread.step() as state:
        state.other = None
    assert thread.load().state.model_fields_set == {"n", "items", "by", "inner", "other"}
    with thread.step() as state:
        state._private.append(1)
    assert thread.load().state._private == [1]


def test_a_state_saved_by_older_code_is_saved_as_new_by_its_first_step(store):
    store.thread("t").save({"n": 1, "items": [], "by": {}})  # plain data
    thread = store.thread("t", Data)
    with thread.step() as state:
        state.n += 1
    saved_alike(store, thread, Data(2, [], {}))
    with thread.step() as state:
        state.items.append(1)
    saved_alike(store, thread, Data(2, [1], {}))


def test_a_record_without_its_class_and_a_registered_type_are_exact(tmp_path):
    class Bag:
        def __init__(self, items):
            self.items = items

    bag = backtrail.Type(Bag, "bag", dump=lambda bag: {"items": bag.items}, load=lambda fields: Bag(fields["items"]))
    with backtrail.open(tmp_path / "x.db", types=[bag]) as store:
        store.thread("r").save({"r": Data(1, [1], {})})
        thread = store.thread("b")
        begin(thread, {"bag": Bag([1])})
        with thread.step() as state:
            items = state["bag"].items
            items.append(2)
        with thread.step():
            items.append(3)
        assert thread.load().state["bag"].items == [1, 2, 3]
    with backtrail.open(tmp_path / "x.db") as store:
        thread = store.thread("r")
        for n in range(2):
            with thread.step() as state:
                state["r"]["items"].append(n)
        assert thread.load().state["r"]["items"] == [1, 0, 1]
        assert type(thread.load().state["r"]) is type(state["r"])


# -- O(change) --------------------------------------------------------------------------------------------


@pytest.fixture
def packed():
    """How many values were packed."""
    calls = []
    fast = packing.Packer.fast

    def counting(packer, value):
        calls.append(value)
        return fast(packer, value)

    with mock.patch.object(packing.Packer, "fast", counting):
        yield calls


def test_a_step_that_appends_encodes_the_item_stores_what_append_stores_and_reads_no_chunk(store, packed):
    thread, other = store.thread("t"), store.thread("other")
    begin(thread, {"messages": messages(10_000), "n": 0})
    other.save({"messages": messages(10_000), "n": 0})
    other.append("messages", {"n": 0})
    with thread.step() as state:
        state["messages"].append({"n": 0})
    sealed = 0
    for n in range(20):
        packed.clear()
        with chunks_read(store) as read, thread.step() as state:
            state["messages"].append({"n": n})
        assert [value for value in packed if value != "messages"] == [{"n": n}]
        assert not read
        sealed += thread.load().stored != other.append("messages", {"n": n}).stored
    assert not sealed


def test_a_step_that_changes_one_field_of_one_message_encodes_that(store, packed):
    thread = store.thread("t")
    begin(thread, {"messages": messages(10_000)})
    packed.clear()
    with thread.step() as state:
        state["messages"][5_000]["content"] += " and more"
    assert len(packed) < 6
    assert thread.load().stored < 1_000


@dataclasses.dataclass
class Note:
    text: str
    tags: list[str]


@dataclasses.dataclass
class Notes:
    notes: list[Note]
    n: int = 0


def test_a_step_on_a_typed_state_costs_what_it_changes(store, packed):
    thread = store.thread("t", Notes)
    begin(thread, Notes([Note(f"note {n} " * 9, []) for n in range(10_000)]))
    deeds = [
        lambda state: state.notes.append(Note("new", ["x"])),
        lambda state: setattr(state.notes[77], "text", "changed"),
        lambda state: state.notes[78].tags.append("y"),
        lambda state: setattr(state, "n", 5),
    ]
    for deed in deeds:
        packed.clear()
        with thread.step() as state:
            deed(state)
        assert len(packed) < 12
        assert thread.load().stored < 12_000
    state = thread.load().state
    assert (state.notes[-1], state.notes[77].text, state.notes[78].tags) == (Note("new", ["x"]), "changed", ["y"])


def test_a_step_marks_only_what_it_hands_out_and_lets_go_of_it(thread):
    begin(thread, {"messages": [{"n": n, "tags": []} for n in range(1_000)]})
    (draft,) = thread._drafts
    with thread.step() as state:
        state["messages"][5]["tags"].append(1)
    assert len(draft._scope.marked) == 2  # the top and the state, which is held by its name
    del state
    with thread.step() as state:
        for message in state["messages"]:
            message["n"] += 1
    del state, message
    with thread.step():
        pass
    assert not [node for node in draft._scope.marked if type(node) is TrackedDict and "tags" in node]
    assert len(draft._scope.marked) == 0


def test_a_change_of_everything_is_saved_whole_and_tracked_on(thread):
    begin(thread, {"messages": [{"n": n} for n in range(1_000)]})
    with mock.patch.object(drafts.changes, "Replace", wraps=drafts.changes.Replace) as whole:
        with thread.step() as state:
            for message in state["messages"]:
                message["n"] += 1
            first = state["messages"][0]
        assert whole.call_count == 1
        with thread.step() as state:
            first["n"] = "x"
        assert whole.call_count == 1
    assert held(thread, {"messages": [{"n": "x"}, *({"n": n + 1} for n in range(1, 1_000))]})


def test_the_draft_of_a_large_state_is_not_kept(thread, monkeypatch):
    monkeypatch.setattr(drafts, "KEPT_MAX", 1_000)
    thread.save({"l": ["x" * 2_000]})
    for _ in range(2):
        with thread.step() as state:
            state["l"].append(1)
        assert not thread._drafts
    with pytest.raises(backtrail.Invalid, match="step has ended"):
        state["l"].append(2)
    assert thread.load().state["l"][1:] == [1, 1]


def test_a_handle_that_is_gone_leaves_no_draft_behind(store):
    before = {id(each) for each in gc.get_objects() if type(each) is drafts.Draft}
    thread = store.thread("t")
    begin(thread, {"l": [[1]]})
    with thread.step() as state:
        state["l"][0].append(2)
    del thread
    gc.collect()
    with pytest.raises(backtrail.Invalid, match="step has ended"):
        state["l"].append(2)
    del state
    gc.collect()
    assert {id(each) for each in gc.get_objects() if type(each) is drafts.Draft} <= before


@dataclasses.dataclass(eq=False)
class Own:
    """Equal to itself alone."""

    x: int


def test_a_change_at_one_of_two_keys_with_the_same_bytes_is_found_there():
    with backtrail.open("memory://", types=[Own]) as store:
        thread = store.thread("t")
        thread.save({"d": {Own(1): ["a"], Own(1): ["b"]}})
        with thread.step() as state:
            list(state["d"].values())[1].append("more")
        assert list(thread.load().state["d"].values()) == [["a"], ["b", "more"]]


def test_a_change_while_the_step_is_being_saved_is_refused_and_not_lost(thread):
    begin(thread, {"log": ["a"], "n": 0})
    written, late = thread._write, []

    def slow(*arguments, **options):
        try:
            kept.append("late")
        except backtrail.Invalid as error:
            late.append(error.code)
        return written(*arguments, **options)

    with mock.patch.object(thread, "_write", slow), thread.step() as state:
        kept = state["log"]
        kept.append("b")
    assert late == ["invalid.draft"]
    with thread.step() as state:
        state["n"] += 1
    assert thread.load().state == {"log": ["a", "b"], "n": 1}
