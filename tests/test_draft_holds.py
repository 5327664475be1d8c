"""Drafts: what was kept, moved, shared or handed out behind a draft's back is saved, or refused; never lost."""

import copy
import dataclasses
import time
from typing import Any

import pydantic
import pytest

import backtrail
from backtrail.testing import exact


@dataclasses.dataclass
class Leaf:
    n: Any
    more: Any = None


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    n: int = 0
    _log: list[Any] = pydantic.PrivateAttr(default_factory=list)
    _seen: set[Any] = pydantic.PrivateAttr(default_factory=set)


TYPES = [Leaf, Extra]


@pytest.fixture
def thread():
    with backtrail.open("memory://", types=TYPES) as store:
        yield store.thread("t")


def begin(thread, state):
    """Save a state and make one step, so that the next one has a draft that was kept."""
    thread.save(state)
    with thread.step():
        pass


def is_saved(thread, expected):
    """Whether the state is this, exactly, and is saved as a plain save would save it."""
    saved = thread.load()
    with backtrail.open("memory://", types=TYPES) as store:
        plain = store.thread("t").save(expected)
        return exact.same(saved.state, plain.state) and saved.root == plain.root


# -- what moved ---------------------------------------------------------------------------------------

MOVED = {
    "record": (lambda: Leaf(1), lambda x: setattr(x, "n", 99), Leaf(99)),
    "set": (lambda: {1}, lambda x: x.add(99), {1, 99}),
    "bytearray": (lambda: bytearray(b"a"), lambda x: x.append(98), bytearray(b"ab")),
    "tuple": (lambda: (1, [1]), lambda x: x[1].append(99), (1, [1, 99])),
}


@pytest.mark.parametrize("kind", MOVED)
@pytest.mark.parametrize("count", [0, 3])
def test_what_was_kept_and_moved_is_live_in_later_steps(thread, kind, count):
    make, change, changed = MOVED[kind]
    begin(thread, {"todo": [make(), make(), make()], "done": [make() for _ in range(count)]})
    with thread.step() as state:
        x = state["todo"].pop(0)
        state["done"].append(x)
    with thread.step():
        change(x)
    assert is_saved(thread, {"todo": [make(), make()], "done": [*(make() for _ in range(count)), changed]})


@pytest.mark.parametrize("kind", MOVED)
def test_what_was_kept_and_moved_into_something_new_is_live_in_later_steps(thread, kind):
    make, change, changed = MOVED[kind]
    begin(thread, {"a": {"x": make()}, "l": [1, 2, 3]})
    with thread.step() as state:
        x = state["a"].pop("x")
        state["b"] = {"in": [{"x": x}, 1, 2, 3]}
    with thread.step():
        pass
    with thread.step():
        change(x)
    assert is_saved(thread, {"a": {}, "l": [1, 2, 3], "b": {"in": [{"x": changed}, 1, 2, 3]}})


# -- one object at two places -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["record", "set", "bytearray"])
def test_a_part_put_into_a_tuple_that_is_there_is_two_after_the_step(thread, kind):
    make, change, changed = MOVED[kind]
    begin(thread, {"x": make(), "t": (["a"],)})
    with thread.step() as state:
        state["t"][0].append(state["x"])
    with thread.step() as state:
        change(state["x"])
    assert is_saved(thread, {"x": changed, "t": (["a", make()],)})


INTO = {
    "list": (lambda: ([],), lambda t, x: t[0].append(x), lambda x: ([x],)),
    "dict": (lambda: (1, {}), lambda t, x: t[1].update(x=x), lambda x: (1, {"x": x})),
    "record": (lambda: (Leaf(1),), lambda t, x: setattr(t[0], "more", x), lambda x: (Leaf(1, x),)),
    "new tuple": (lambda: ([],), lambda t, x: t[0].append((1, x)), lambda x: ([(1, x)],)),
}


@pytest.mark.parametrize("kind", INTO)
@pytest.mark.parametrize("mine", [[1], {1}, {"a": [1]}])
def test_what_is_put_into_a_tuple_is_copied_and_the_tuple_stays_live(thread, kind, mine):
    make, put, made = INTO[kind]
    begin(thread, {"t": make(), "n": 0})
    with thread.step() as state:
        kept = state["t"]
        put(kept, mine)
    expected = copy.deepcopy(mine)
    mine.clear()
    with thread.step() as state:
        assert state["t"] is kept
        state["n"] = 1
    assert is_saved(thread, {"t": made(expected), "n": 1})
    with thread.step() as state:
        put(kept, 5)
    assert thread.load().state["t"] == copy.deepcopy(kept) != made(expected)


def test_what_was_in_a_tuple_stays_live_when_it_is_put_there_twice(thread):
    begin(thread, {"t": ([1], [2]), "l": [0]})
    with thread.step() as state:
        one, two = state["t"]
        two.append(one)
        state["l"].append(one)
    with thread.step() as state:
        assert state["t"][0] is one
        one.append("first")
    assert is_saved(thread, {"t": ([1, "first"], [2, [1]]), "l": [0, [1]]})


# -- pydantic -----------------------------------------------------------------------------------------


def test_extra_and_private_values_of_a_model_are_taken_over(thread):
    begin(thread, {"m": Extra(n=1)})
    extra, log, seen = [1], [2], {3}
    with thread.step() as state:
        state["m"].more, state["m"]._log, state["m"]._seen = extra, log, seen
    extra.append("mine"), log.append("mine"), seen.add("mine")
    with thread.step() as state:
        kept = state["m"]._log
        state["m"].more.append("seen")
    with thread.step() as state:
        kept.append("seen")
    model = Extra(n=1, more=[1, "seen"])
    model._log, model._seen = [2, "seen"], {3}
    assert is_saved(thread, {"m": model})


# -- what it costs ------------------------------------------------------------------------------------


def test_taking_many_keys_out_takes_time_for_their_number(thread):
    def cpu(count):
        begin(thread, {"d": {f"k{n}": {"n": n} for n in range(count)}})
        start = time.process_time()
        with thread.step() as state:
            for key, value in list(state["d"].items()):
                if value["n"] % 2:
                    del state["d"][key]
        return time.process_time() - start

    few, many = min(cpu(1_000) for _ in range(3)), cpu(10_000)
    assert many < few * 10 * 3
