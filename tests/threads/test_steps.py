"""Steps: `with thread.step() as state:` saves what a plain save of the changed state would save."""

import copy
import dataclasses
import heapq
import threading
from collections import Counter
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from tests.conformance.base import messages
from tests.support import exact
from tests.support.chunks import small_chunks
from tests.support.strategies import same, values


class DroppedError(Exception):
    pass


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


@pytest.fixture
def thread(store):
    return store.thread("t")


def assert_saved(thread, expected):
    """Check the head's state, and that a plain save of it gives the same root."""
    assert exact.same(thread.load().state, expected)
    with backtrail.open("memory://") as other:
        assert thread.load().root == other.thread("t").save(expected).root


@given(st.lists(st.lists(values, max_size=12), min_size=2, max_size=5))
def test_a_step_saves_what_a_plain_save_saves(states):
    with small_chunks(), backtrail.open("memory://") as store:
        stepped, saved = store.thread("stepped"), store.thread("saved")
        stepped.save(copy.deepcopy(states[0]))
        for new in states[1:]:
            with stepped.step() as state:
                state[:] = copy.deepcopy(new)
            made = saved.save(copy.deepcopy(new))
            assert stepped.load().root == made.root
            assert same(stepped.load().state, made.state)


def test_changes_by_any_means_are_saved(thread):
    thread.save({"heap": [1, 5, 3], "pairs": [(2, {"tries": 0})], "d": {"x": 1}, "s": {1}, "n": 0})
    with thread.step() as state:
        heapq.heappush(state["heap"], 2)
        heapq.heappop(state["heap"])
        state["pairs"][0][1]["tries"] += 1
        dict.__setitem__(state["d"], "y", 2)
        set.add(dict.get(state, "s"), 2)
        state["n"] = True
    assert_saved(
        thread, {"heap": [2, 5, 3], "pairs": [(2, {"tries": 1})], "d": {"x": 1, "y": 2}, "s": {1, 2}, "n": True}
    )


def test_the_block_gets_plain_data(thread):
    thread.save({"l": [1], "d": {"x": [2]}})
    with thread.step() as state:
        assert type(state) is dict
        assert type(state["l"]) is list
        assert type(state["d"]["x"]) is list


def test_changes_after_the_block_have_no_effect(thread):
    mine = [1]
    thread.save({"l": [0]})
    with thread.step() as state:
        state["mine"] = mine
        kept = state["l"]
    kept.append("later")
    mine.append("later")
    state["later"] = True
    with thread.step() as state:
        state["n"] = 1
    assert_saved(thread, {"l": [0], "mine": [1], "n": 1})


def test_one_object_at_two_places_becomes_two(thread):
    thread.save({})
    with thread.step() as state:
        state["a"] = state["b"] = []
    with thread.step() as state:
        state["a"].append(1)
    assert_saved(thread, {"a": [1], "b": []})


def test_a_step_without_a_change_is_a_checkpoint(thread):
    thread.save({"l": [1]})
    with thread.step("again"):
        pass
    assert len(thread) == 2
    assert thread.load().label == "again"


def test_an_exception_drops_the_changes(thread):
    thread.save({"l": [1]})
    with pytest.raises(DroppedError), thread.step() as state:
        state["l"].append(2)
        raise DroppedError
    assert len(thread) == 1
    with thread.step() as fresh:
        assert fresh == {"l": [1]}


def test_a_save_by_another_handle_is_a_conflict(store, thread):
    thread.save({"l": [1]})
    with pytest.raises(backtrail.Conflict), thread.step() as state:
        state["l"].append(2)
        store.thread("t").append("l", 3)
    with thread.step() as state:
        state["l"].append(4)
    assert_saved(thread, {"l": [1, 3, 4]})


def test_a_step_begins_with_what_others_wrote(store, thread):
    thread.save({"l": [1]})
    store.thread("t").append("l", 2)
    with thread.step() as state:
        state["l"].append(3)
    assert_saved(thread, {"l": [1, 2, 3]})


def test_a_step_after_a_rewind_begins_there(thread):
    thread.save({"l": [1]}, label="one")
    with thread.step() as state:
        state["l"].append(2)
    thread.rewind("one")
    with thread.step() as state:
        state["l"].append(3)
    assert_saved(thread, {"l": [1, 3]})


def test_what_cannot_be_kept_is_refused_with_its_path(thread):
    thread.save({"messages": [{"n": 0}]})
    with pytest.raises(backtrail.Invalid) as caught, thread.step() as state:
        state["messages"].append({"when": [object()]})
    assert caught.value.path == "state.messages[1].when[0]"
    with pytest.raises(backtrail.Invalid, match="contains itself"), thread.step() as state:
        state["messages"].append(state)
    assert_saved(thread, {"messages": [{"n": 0}]})


def test_the_outer_of_two_nested_steps_conflicts(thread):
    thread.save({"l": []})
    with pytest.raises(backtrail.Conflict), thread.step() as outer:
        with thread.step() as inner:
            inner["l"].append(1)
        assert outer == {"l": []}
        outer["l"].append(2)
    assert_saved(thread, {"l": [1]})


def test_python_threads_may_step_through_one_handle(thread):
    thread.save({"l": []})
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


def test_steps_in_a_transaction_are_written_with_it(store, thread):
    thread.save({"l": [1]})
    with store.transaction():
        for n in (2, 3):
            with thread.step() as state:
                state["l"].append(n)
    assert_saved(thread, {"l": [1, 2, 3]})
    with pytest.raises(DroppedError), store.transaction():
        with thread.step() as state:
            state["l"].append(4)
        raise DroppedError
    with thread.step() as state:
        state["l"].append(5)
    assert_saved(thread, {"l": [1, 2, 3, 5]})


@pytest.mark.parametrize(
    ("first", "change", "last"),
    [
        ([1], lambda state: state.append([2]), [1, [2]]),
        ({1}, lambda state: state.add(2), {1, 2}),
        (bytearray(b"a"), lambda state: state.extend(b"b"), bytearray(b"ab")),
        ((1, [2]), lambda state: state[1].append(3), (1, [2, 3])),
        ("text", lambda _: None, "text"),
        (None, lambda _: None, None),
    ],
)
def test_a_state_may_be_any_value(thread, first, change, last):
    thread.save(first)
    with thread.step() as state:
        change(state)
    assert_saved(thread, last)


def test_a_step_on_a_missing_thread_is_not_found(thread):
    with pytest.raises(backtrail.NotFound), thread.step():
        raise AssertionError


# -- classes ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Data:
    n: int
    items: list[Any]
    inner: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int
    items: list[Any]
    inner: Any = None


class Struct(msgspec.Struct):
    n: int
    items: list[Any]
    inner: Any = None


class Model(pydantic.BaseModel):
    n: int
    items: list[Any]
    inner: Any = None
    _private: list[int] = pydantic.PrivateAttr(default_factory=list)


@pytest.mark.parametrize("cls", [Data, Slotted, Struct, Model])
def test_instances_are_changed_in_place(store, cls):
    thread = store.thread("t", cls)
    thread.save(cls(n=1, items=[cls(n=2, items=[])]))
    for n in range(2):
        with thread.step() as state:
            assert type(state) is cls
            state.n += 1
            state.items[0].items.append(n)
            state.inner = {"n": [n]}
    expected = cls(n=3, items=[cls(n=2, items=[0, 1])], inner={"n": [1]})
    assert thread.load().state == expected
    assert thread.load().root == store.thread("plain", cls).save(expected).root


def test_set_fields_and_private_values_of_models_are_kept(store):
    thread = store.thread("t", Model)
    thread.save(Model(n=1, items=[]))
    with thread.step() as state:
        state.inner = None
        state._private.append(1)
    assert thread.load().state.model_fields_set == {"n", "items", "inner"}
    assert thread.load().state._private == [1]


def test_a_step_saves_old_plain_data_as_the_class(store):
    store.thread("t").save({"n": 1, "items": []})
    thread = store.thread("t", Data)
    with thread.step() as state:
        state.n += 1
    assert thread.load().state == Data(2, [])
    assert thread.load().root == store.thread("plain", Data).save(Data(2, [])).root


# -- what a step stores ---------------------------------------------------------------------------------


def test_a_step_stores_what_changed(thread):
    thread.save({"messages": messages(2_000)})
    with thread.step() as state:
        state["messages"].append({"n": 1})
    assert thread.load().stored < 300
    with thread.step() as state:
        state["messages"][1_000]["content"] += " and more"
    assert thread.load().stored < 1_500
