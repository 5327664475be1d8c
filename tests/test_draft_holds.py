"""Drafts: what was kept, moved, shared or handed out behind a draft's back is saved, or refused; never lost."""

import contextlib
import copy
import dataclasses
import functools
import gc
import heapq
import itertools
import threading
import time
import weakref
from collections import UserList
from typing import Any
from unittest import mock

import msgspec
import pydantic
import pytest

import backtrail
from backtrail.engine import stepping
from backtrail.engine.marks import Node
from backtrail.engine.tracked import TrackedDict, TrackedList
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


# -- what is read without a hook ----------------------------------------------------------------------


class Msg(pydantic.BaseModel):
    text: str
    n: int = 0


class Rich(pydantic.BaseModel):
    text: str
    parts: list[Any] = []


class Talk(pydantic.BaseModel):
    messages: list[Msg | Rich]


@dataclasses.dataclass
class After:
    """Can be compared with `>` alone."""

    n: int

    def __gt__(self, other):
        return self.n > other.n


TYPES += [Msg, Rich, Talk, After]


@pytest.mark.parametrize("make", [lambda text: Msg(text=text), lambda text: Rich(text=text, parts=[{"a": 1}])])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_records_that_pydantic_read_from_a_list_are_watched_while_somebody_holds_them(thread, make, count):
    begin(thread, {"msgs": [make("a") for _ in range(count)], "n": 0})
    expected = {"msgs": [make("a") for _ in range(count)], "n": 0}
    with thread.step() as state:
        talk = Talk(messages=state["msgs"])
        talk.messages[-1].text = expected["msgs"][-1].text = "in the same step"
    assert is_saved(thread, expected)
    with thread.step() as state:
        state["n"] = expected["n"] = 1
    with thread.step() as state:
        talk.messages[0].text = expected["msgs"][0].text = "two steps later"
    assert is_saved(thread, expected)
    talk.messages[0].text = "between"
    with pytest.raises(backtrail.Invalid, match="while no step was open"), thread.step():
        pass
    assert is_saved(thread, expected)


def test_records_that_pydantic_read_from_nested_lists_and_dicts_are_watched(thread):
    def make():
        return [[[Msg(text="a") for _ in range(3)]] for _ in range(3)], {
            "d": {"x": Msg(text="a")},
            "l": [Msg(text="a")],
        }

    nested, dicts = make()
    begin(thread, {"nested": nested, "dicts": dicts})
    with thread.step() as state:
        read = pydantic.TypeAdapter(list[list[list[Msg]]]).validate_python(state["nested"])
        read[1][0][2].text = "new"
        pydantic.TypeAdapter(dict[str, Msg]).validate_python(state["dicts"]["d"])["x"].text = "new"
        pydantic.TypeAdapter(dict[str, Any]).validate_python(state["dicts"])["l"][0].text = "new"
    nested, dicts = make()
    nested[1][0][2].text = dicts["d"]["x"].text = dicts["l"][0].text = "new"
    assert is_saved(thread, {"nested": nested, "dicts": dicts})
    with thread.step() as state:
        pass
    with thread.step():
        read[0][0][0].text = nested[0][0][0].text = "later"
    assert is_saved(thread, {"nested": nested, "dicts": dicts})


def test_what_was_put_into_a_record_that_was_read_without_a_hook_is_copied(thread):
    mine = {1}
    begin(thread, {"msgs": [Rich(text="a", parts=[[1]]) for _ in range(3)]})
    with thread.step() as state:
        kept = state["msgs"][1].parts
    with thread.step() as state:
        message = Talk(messages=state["msgs"]).messages[1]
        message.parts, message.text = [mine, message.parts], "b"
    mine.add("mine")
    with thread.step():
        pass
    with thread.step():
        kept[0].append("live")
    done = [Rich(text="a", parts=[[1]]), Rich(text="b", parts=[{1}, [[1, "live"]]]), Rich(text="a", parts=[[1]])]
    assert is_saved(thread, {"msgs": done})


def test_a_field_that_was_set_to_its_default_counts_as_set(thread):
    begin(thread, {"msgs": [Msg(text="a") for _ in range(3)]})
    with thread.step() as state:
        Talk(messages=state["msgs"]).messages[1].n = 0
    assert [message.model_fields_set for message in thread.load().state["msgs"]] == [{"text"}, {"text", "n"}, {"text"}]


def test_an_iterator_from_before_there_were_records_hands_out_what_is_saved(thread):
    begin(thread, {"todo": []})
    with thread.step() as state:
        later = iter(state["todo"])
        state["todo"].extend([Leaf(1), Leaf(2), Leaf(3)])
    with thread.step():
        next(later).n = 99
    assert is_saved(thread, {"todo": [Leaf(99), Leaf(2), Leaf(3)]})


def test_heapq_may_order_records_by_greater_than(thread):
    begin(thread, {"heap": [After(1), After(5), After(9)]})
    with thread.step() as state:
        item = heapq.heappop(state["heap"])
        item.n = 0
        heapq.heappush(state["heap"], item)
    assert is_saved(thread, {"heap": [After(0), After(9), After(5)]})


@pytest.mark.parametrize("pop", [heapq.heappop, list.pop, lambda items: items.__add__([])[0]])
def test_a_record_taken_from_a_list_that_was_cut_short_is_watched(thread, pop):
    begin(thread, {"l": [Leaf(1), Leaf(2), Leaf(3)]})
    with thread.step() as state:
        del state["l"][1:]
        item = pop(state["l"])
        item.n = 99
        state["l"][:] = [item]
    assert is_saved(thread, {"l": [Leaf(99)]})


def test_records_of_many_classes_among_other_values_are_watched(thread):
    def make():
        return [1, Leaf(1), Msg(text="a"), {"a": 1}, Leaf(2, {1}), "x", Leaf(3, (1, "t")), After(1)]

    begin(thread, {"l": make()})
    expected = make()
    for at, name in ((1, "n"), (2, "text"), (4, "n"), (6, "n"), (7, "n")):
        with thread.step() as state:
            setattr(list.__getitem__(state["l"], at), name, "new")
        setattr(expected[at], name, "new")
        assert is_saved(thread, {"l": expected})
    with thread.step() as state:
        list.__getitem__(state["l"], 4).more.add(2)
        list.insert(state["l"], 0, Leaf(0))
        list.__getitem__(state["l"], 2).n = "newer"
    expected[4].more.add(2)
    expected[1].n = "newer"
    assert is_saved(thread, {"l": [Leaf(0), *expected]})
    with thread.step() as state:
        list.__getitem__(state["l"], 0).n = list.__getitem__(state["l"], 2).n = 7
    expected[1].n = 7
    assert is_saved(thread, {"l": [Leaf(7), *expected]})


# -- what was taken out, and drafts that are gone -----------------------------------------------------


def fail(thread):
    with pytest.raises(ZeroDivisionError), thread.step():
        raise ZeroDivisionError


def test_what_was_taken_out_stays_yours_when_the_draft_is_dropped(thread):
    begin(thread, {"queue": [{"args": [1]}, {"args": [2], "more": [{"deep": [3]}]}]})
    with thread.step() as state:
        args = state["queue"].pop(0)["args"]
        job = state["queue"].pop(0)
    del state
    args.append("mine")
    fail(thread)
    gc.collect()
    args.append("still mine")
    deep = job["more"][0]["deep"]
    del job
    gc.collect()
    deep.append("mine, too")
    assert (args, deep) == ([1, "mine", "still mine"], [3, "mine, too"])
    assert is_saved(thread, {"queue": []})


def test_what_was_taken_out_and_put_back_is_live_again(thread):
    begin(thread, {"queue": [{"args": [1]}]})
    with thread.step() as state:
        job = state["queue"].pop(0)
        args = job["args"]
    args.append(2)
    with thread.step() as state:
        state["queue"].append(job)
    with thread.step():
        args.append(3)
    assert is_saved(thread, {"queue": [{"args": [1, 2, 3]}]})
    with pytest.raises(backtrail.Invalid):
        args.append(4)


def test_a_part_of_a_dropped_draft_says_so_inside_a_later_step(thread):
    begin(thread, {"l": [1]})
    with thread.step() as state:
        kept = state["l"]
    fail(thread)
    with thread.step(), pytest.raises(backtrail.Invalid, match=r"dropped.*take it from this step's state"):
        kept.append(2)


@pytest.mark.parametrize("nth", range(12))
def test_an_interruption_while_marking_loses_nothing(thread, monkeypatch, nth):
    begin(thread, {"a": {"b": {"c": [1], "t": ({},)}, "l": [[1], [2]]}})
    calls = itertools.count()

    def interrupted(*args, method):
        if next(calls) == nth:
            raise KeyboardInterrupt
        return method(*args)

    with thread.step() as state:
        with monkeypatch.context() as patch:
            for cls, name in ((Node, "_mark"), (Node, "_attached"), (Node, "_value"), (TrackedList, "_lend_all")):
                patch.setattr(cls, name, functools.partialmethod(interrupted, method=getattr(cls, name)))
            for _ in range(3):
                with contextlib.suppress(KeyboardInterrupt):
                    list(state["a"]["l"]), state["a"]["b"]["c"], state["a"]["b"]["t"]
        state["a"]["b"]["c"].append(2)
        state["a"]["b"]["t"][0]["x"] = 3
        for each in state["a"]["l"]:
            list.append(each, 9)
    with thread.step() as state:
        state["a"]["n"] = 1
    assert is_saved(thread, {"a": {"b": {"c": [1, 2], "t": ({"x": 3},)}, "l": [[1, 9], [2, 9]], "n": 1}})


class Uncollected(msgspec.Struct, gc=False):
    items: list[Any]


TYPES.append(Uncollected)


def test_a_struct_that_is_not_collected_keeps_no_draft():
    def use():
        with backtrail.open("memory://", types=TYPES) as store:
            thread = store.thread("t")
            begin(thread, {"s": Uncollected([1, [2]])})
            with thread.step() as state:
                kept = state["s"].items  # noqa: F841 - held when the step ends
            return weakref.ref(thread._drafts[0]._scope)

    scope = use()
    gc.collect()
    assert scope() is None


def test_a_list_plus_what_is_no_list_is_for_the_other_to_say(thread):
    begin(thread, {"l": [1]})
    with thread.step() as state:
        assert state["l"] + UserList([2]) == UserList([1, 2])
        with pytest.raises(TypeError):
            state["l"] + (2,)


HELD_INSIDE = {
    "vars": (lambda s: vars(s["leaf"]), lambda x: x.update(n=9), lambda s: setattr(s["leaf"], "n", 9)),
    "weakref": (lambda s: weakref.ref(s["leaf"]), lambda x: setattr(x(), "n", 9), lambda s: setattr(s["leaf"], "n", 9)),
    "in a list": (lambda s: vars(s["l"][1]), lambda x: x.update(n=9), lambda s: setattr(s["l"][1], "n", 9)),
    "a record with nodes": (lambda s: vars(s["box"]), lambda x: x.update(n=9), lambda s: setattr(s["box"], "n", 9)),
    "a model": (lambda s: vars(s["msg"]), lambda x: x.update(n=9), lambda s: vars(s["msg"]).update(n=9)),
    "extra": (lambda s: s["m"].model_extra, lambda x: x.update(e=9), lambda s: s["m"].model_extra.update(e=9)),
    "set": (
        lambda s: s["msg"].model_fields_set,
        lambda x: x.add("n"),
        lambda s: s["msg"].model_fields_set.add("n"),
    ),
}


@pytest.mark.parametrize("kind", HELD_INSIDE)
def test_what_the_attributes_of_a_record_are_in_may_be_kept(thread, kind):
    def make():
        msg, boxes = Msg(text="a"), [Leaf(1), Leaf(2), Leaf(3)]
        return {"leaf": Leaf(1), "l": boxes, "box": Leaf(1, [1]), "msg": msg, "m": Extra(n=1, e=1)}

    take, change, expect = HELD_INSIDE[kind]
    begin(thread, make())
    with thread.step() as state:
        kept = take(state)
    del state
    with thread.step():
        pass
    with thread.step():
        change(kept)
    expected = make()
    expect(expected)
    assert is_saved(thread, expected)
    del kept
    with thread.step():
        pass
    assert not thread._drafts[0]._scope.marked


class Color:
    def __init__(self, shade):
        self.shade = shade


def test_a_type_that_loads_the_same_object_each_time_is_saved_at_all_its_places():
    cache = {}
    kind = backtrail.Type(
        Color,
        "color",
        dump=lambda color: {"shade": color.shade},
        load=lambda fields: cache.setdefault(fields["shade"], Color(fields["shade"])),
    )
    with backtrail.open("memory://", types=[kind]) as store:
        thread = store.thread("t")
        begin(thread, {"a": Color(1), "b": [Color(1)]})
        with thread.step() as state:
            state["a"].shade = 5
        cache.clear()
        saved = thread.load().state
    assert (saved["a"].shade, saved["b"][0].shade) == (5, 5)


def test_two_threads_may_mark_the_same_nodes(thread, monkeypatch):
    begin(thread, {"d": {"e": {"f": 0, "g": 0}}})
    shot = TrackedDict._shot

    def slow(self):
        taken = shot(self)
        if threading.current_thread() is first:
            begun.set()
            time.sleep(0.05)  # as if it were not its turn
        return taken

    with thread.step() as state, monkeypatch.context() as patch:
        patch.setattr(TrackedDict, "_shot", slow)
        begun = threading.Event()
        first = threading.Thread(target=lambda: state["d"]["e"].update(f=1))
        first.start()
        begun.wait(5)
        state["d"]["e"]["g"] = 1
        first.join()
    assert is_saved(thread, {"d": {"e": {"f": 1, "g": 1}}})


@dataclasses.dataclass(unsafe_hash=True)
class Key:
    n: int
    notes: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass
class Single:
    n: int

    def __deepcopy__(self, memo):
        return self


TYPES += [Key, Single]


def test_a_key_that_can_change_is_saved(thread):
    begin(thread, {"k": {Key(1): 1, Key(2, []): 2}, "n": 0})
    with thread.step() as state:
        one, two = state["k"]
        one.notes = "x"
        two.notes.append("y")
    assert is_saved(thread, {"k": {Key(1, "x"): 1, Key(2, ["y"]): 2}, "n": 0})
    del state
    with thread.step():
        pass
    with thread.step():
        one.notes = "z"
    assert is_saved(thread, {"k": {Key(1, "z"): 1, Key(2, ["y"]): 2}, "n": 0})


def test_a_record_that_copies_to_itself_is_handed_out_by_deepcopy(thread):
    begin(thread, {"l": [Single(1), Single(2), Single(3)], "d": {"x": Single(4)}})
    with thread.step() as state:
        copied = copy.deepcopy(state)
        copied["l"][1].n = copied["d"]["x"].n = 9
    assert is_saved(thread, {"l": [Single(1), Single(9), Single(3)], "d": {"x": Single(9)}})


# -- what it costs ------------------------------------------------------------------------------------


class Counting(dict):
    """Counts how often somebody goes over it, if it is large."""

    times = 0

    def __iter__(self):
        Counting.times += len(self) > 100
        return super().__iter__()


def test_taking_many_keys_out_looks_at_the_rest_once(thread):
    begin(thread, {"d": {f"k{n}": {"n": n} for n in range(1_000)}})
    places = stepping._places
    counted = mock.patch.object(stepping, "_places", lambda *parts: Counting(places(*parts)))
    Counting.times = 0
    with counted, thread.step() as state:
        for key, value in list(state["d"].items()):
            if value["n"] % 2:
                del state["d"][key]
    assert len(thread.load().state["d"]) == 500
    assert 0 < Counting.times < 5  # and not once for every gap


def test_a_record_that_was_put_in_is_not_marked_in_the_next_step(thread):
    begin(thread, {"l": [Msg(text="a"), Msg(text="b"), Msg(text="c")]})
    for _ in range(3):
        with thread.step() as state:
            state["l"].append(Msg(text="d"))
        del state
        with thread.step():
            pass
        assert not thread._drafts[0]._scope.marked


EDITS = {
    "window": lambda items: (items.pop(0), items.append([-1])),
    "rotated": lambda items: items.append(items.pop(0)),
    "last first": lambda items: items.insert(0, items.pop()),
    "both ends and between": lambda items: (items.pop(0), items.insert(40, [-2]), items.pop(60), items.append([-1])),
    "two swapped": lambda items: items.__setitem__(slice(None), [items[-1], *items[1:-1], items[0]]),
    "reversed": lambda items: items.reverse(),
    "cut": lambda items: items.__delitem__(slice(10, 90)),
    "twice": lambda items: items.__setitem__(slice(3, 5), [items[50], items[50], items[3]]),
    "every other": lambda items: items.__delitem__(slice(None, None, 2)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_a_list_is_saved(thread, edit):
    plain = {"l": [[n] for n in range(100)]}
    begin(thread, plain)
    with thread.step() as state:
        EDITS[edit](state["l"])
    EDITS[edit](plain["l"])
    assert is_saved(thread, plain)


def test_a_window_that_slides_is_aligned_by_looking_up_what_moved(thread, monkeypatch):
    monkeypatch.setattr(stepping.diff, "aligned", None)
    begin(thread, {"l": [{"n": n} for n in range(1_000)]})
    for n in range(1_000, 1_003):
        with thread.step() as state:
            state["l"].pop(0)
            state["l"].append({"n": n})
    assert is_saved(thread, {"l": [{"n": n} for n in range(3, 1_003)]})
