"""The fast way to encode and decode records gives the bytes and instances of the slow way."""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from unittest import mock

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backtrail
from backtrail.engine.schema import records, registry
from backtrail.engine.tree import chunked, decode, encode, msgpack
from backtrail.engine.tree.nodes import LEAF, Node
from tests.support.strategies import values as plain_values

T = TypeVar("T")


@dataclass
class Point:
    x: Any
    y: Any = None
    notes: list = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    x: Any


@dataclass
class Holder(Generic[T]):
    x: T


class Struct(msgspec.Struct):
    x: Any


class Model(pydantic.BaseModel):
    x: Any
    y: Any = None


class Twin(pydantic.BaseModel):
    x: Any
    y: Any = None


class Open(pydantic.BaseModel, extra="allow"):
    x: Any = 1


class Private(pydantic.BaseModel):
    x: Any = 1
    _seen: int = 0


Wide = pydantic.create_model("Wide", **{f"field_{n}": (Any, n) for n in range(20)})
CLASSES = [Point, Slotted, Holder, Struct, Model, Open, Private, Wide]
TYPES = registry.Types(CLASSES)


def model_of(x, how):
    made = Model(x=x) if how else Model(x=x, y=how)
    if how == 2:
        made.__dict__ = dict(reversed(made.__dict__.items()))
    return made


def later(made):
    made.y = 2
    return made


PLAIN = plain_values
INSTANCES = st.one_of(
    st.builds(Point, PLAIN, PLAIN),
    st.builds(Slotted, PLAIN),
    st.builds(Holder, PLAIN),
    st.builds(Struct, PLAIN),
    st.builds(model_of, PLAIN, st.sampled_from([0, 1, 2])),
    st.builds(lambda x: later(Model(x=x)), PLAIN),
    st.builds(lambda x, more: Open(x=x, **more), PLAIN, st.dictionaries(st.sampled_from(["a", "b"]), PLAIN)),
    st.builds(lambda x: Private(x=x), PLAIN),
    st.builds(lambda x: Wide(field_3=x), PLAIN),
)
NESTED = st.recursive(INSTANCES, lambda inner: st.builds(Point, inner | st.lists(inner)) | st.builds(Model, x=inner))


class Slow(encode.Packer):
    """A packer without the fast way."""

    def __call__(self, value):
        self._writers = dict.fromkeys(CLASSES)
        return super().__call__(value)


@settings(max_examples=40)
@given(st.lists(NESTED, min_size=1, max_size=8))
def test_quick_and_slow_ways_give_equal_bytes(values):
    values = [*values, *values]  # what was met once goes the quick way
    expected = Slow(TYPES).fast(values)
    assert encode.Packer(TYPES).fast(values) == expected
    if expected is not None:
        back = decode.Unpacker(TYPES)(expected)
        assert [type(each) for each in back] == [type(each) for each in values]
        assert Slow(TYPES).fast(back) == expected


@settings(max_examples=40)
@given(st.lists(INSTANCES, min_size=1, max_size=8), st.lists(INSTANCES, min_size=1, max_size=2))
def test_a_leaf_in_another_form_is_the_same_leaf(values, others):
    data = Slow(TYPES).fast(values)
    flat = None if data is None else records.flat_leaf(Node(LEAF, data), TYPES)
    if flat is None:
        return
    for listed in (values, others):
        held = flat.held(listed)
        if held is not None and Slow(TYPES).fast(held) == flat.data:
            assert Slow(TYPES).fast(listed) == data
    made = flat.made(decode.Unpacker(TYPES).array(flat.data))
    assert Slow(TYPES).fast(made) == data


def test_the_usual_instances_go_the_quick_way():
    for values in ([Point(1), Point(2, [3])], [Model(x=1), Model(x=2, y=3)], [Open(x=1)], [Wide()]):
        flat = records.FlatLeaf.of(encode.Packer(TYPES).fast(values), TYPES)
        assert flat is not None
        assert flat.held(values) == [vars(value) for value in values]
        assert flat.made([dict(vars(value)) for value in values]) == values


@pytest.mark.parametrize(
    "other",
    [Twin(x=1), Model(x=1, y=None), Open(x=1), Open(x=1, more=2), Point(1), 1, Private(x=1)],
    ids=repr,
)
def test_unusual_instances_are_not_compared_as_flat_leaf(other):
    flat = records.FlatLeaf.of(encode.Packer(TYPES).fast([Model(x=1)]), TYPES)
    assert flat.held([other]) is None
    assert flat.held([Model(x=1), Model(x=1)]) is None
    assert flat.held([]) is None


def test_flat_leaves_of_models_can_be_joined():
    values = [Model(x=1), Open(x=[2]), Model(x=3, y=None), Model(x=4)]
    flat, one, other = (
        records.FlatLeaf.of(encode.Packer(TYPES).fast(some), TYPES) for some in (values, values[:1], values[1:])
    )
    assert one.joined(other) == flat
    assert one.joined(records.FlatLeaf.of(encode.Packer(TYPES).fast([Point(1)]), TYPES)).held([*values[:1], Point(1)])
    made = flat.made([dict(vars(value)) for value in values])
    assert made == values
    assert [value.model_fields_set for value in made] == [{"x"}, {"x"}, {"x", "y"}, {"x"}]
    assert made[0].model_fields_set is not flat.made([{}] * 4)[0].model_fields_set


def test_open_entries_keep_their_flat_form_after_appends():
    values = [Model(x=1), Open(x=2)]
    spine = chunked.Spine(msgpack.LIST, None, ([encode.Packer(TYPES).fast(value) for value in values],))
    assert records.flat_entries(spine, TYPES).made([vars(value) for value in values]) == values
    before = spine.flat[1]
    longer = spine.with_one_more(encode.Packer(TYPES).fast(Model(x=3)))
    assert longer.flat[1] is before
    assert spine.flat is None  # only the newest spine keeps it
    assert records.flat_entries(longer, TYPES).held([*values, Model(x=3)]) is not None
    assert records.flat_entries(spine, TYPES).held(values) is not None
    mixed = longer.with_one_more(encode.Packer(TYPES).fast(4))
    assert records.flat_entries(mixed, TYPES) is None
    assert records.flat_entries(mixed.with_one_more(encode.Packer(TYPES).fast(Model(x=5))), TYPES) is None
    assert records.flat_entries(spine, registry.Types([])) is None
    assert records.flat_entries(chunked.Spine(msgpack.LIST, None, ([],)), TYPES) is None


def test_unregistered_or_changed_class_uses_the_slow_way():
    data = encode.Packer(TYPES).fast([Point(1)])
    assert records.FlatLeaf.of(data, registry.Types()) is None
    assert records.FlatLeaf.of(data, registry.Types([Model])) is None
    old = msgpack.inline(msgpack.RECORD, ("Point", 7, "dataclass"), [msgpack.pack("x") + msgpack.pack(1)])
    with pytest.raises(backtrail.Invalid):
        decode.Unpacker(TYPES)(old)


def test_new_declaration_clears_the_record_cache():
    @dataclass
    class Item:
        n: int

    with backtrail.open("memory://", types=[Item]) as store:
        thread = store.thread("t")
        for count in (3, 3000):
            thread.save({"items": [Item(n) for n in range(count)]}, label=f"{count}")
        assert all(thread.load(f"{count}").state["items"][2] == Item(2) for count in (3, 3000))

        @backtrail.upcast(Item, from_version=1)
        def doubled(fields):
            return {"n": 2 * fields["n"]}

        assert all(thread.load(f"{count}").state["items"][2] == Item(4) for count in (3, 3000))
        thread.save({"items": [Item(5)] * 3000}, label="new")
        assert thread.load("new").state["items"] == [Item(5)] * 3000


def test_record_cache_is_shared_by_decoders():
    encode.Packer(TYPES).fast([Point(b"bytes")])
    packer = encode.Packer(TYPES)
    with mock.patch.object(encode.Packer, "_extension", side_effect=AssertionError):
        data = packer.fast([Point(b"bytes")])
    assert data == Slow(TYPES).fast([Point(b"bytes")])
    decode.Unpacker(TYPES)(data)
    with mock.patch.object(registry.Types, "load", side_effect=AssertionError):
        assert decode.Unpacker(TYPES)(data) == [Point(b"bytes")]


def test_records_that_begin_alike_are_learned_once():
    types = registry.Types([Point])
    data = encode.Packer(types).fast(Point(1))
    payload = msgpack.split_ext(data)[1]
    reader = records.RecordReader(types)
    for _ in range(3):
        assert reader.meet(payload, msgpack.unpackb(payload)) is not None
    assert [len(known) for known in records.record_cache(types).variants.values()] == [1]


@pytest.mark.parametrize("change", ["value", "type", "inside", "class", "set", "order"])
def test_change_in_place_of_one_instance_is_saved(change):
    with backtrail.open("memory://", types=[Model, Open]) as store:
        values = [Model(x={"n": [n]}, y="y" * 100) for n in range(400)]
        thread = store.thread("t")
        thread.save({"l": values})
        thread.save({"l": values})
        it = values[57]
        if change == "value":
            it.x = {"n": [True]}
        elif change == "type":
            it.x["n"][0] = 57.0
        elif change == "inside":
            it.x["n"].append(1)
        elif change == "class":
            values[57] = Open(x=1)
        elif change == "set":
            it.__pydantic_fields_set__.discard("y")
        else:
            it.__dict__ = dict(reversed(it.__dict__.items()))
        thread.save({"l": values})
        assert (
            thread.latest().root
            == backtrail.open("memory://", types=[Model, Open]).thread("t").save({"l": values}).root
        )
        back = thread.load().state["l"]
        assert repr(back) == repr([*values[:57], back[57], *values[58:]])
        assert back[57] == values[57]
        assert back[57].model_fields_set == values[57].model_fields_set


class Loose(pydantic.BaseModel, extra="allow"):
    a: int = 0
    b: int = 0


@pytest.mark.parametrize("more", [0, 1, 300])
def test_extra_values_are_not_the_end_of_a_record(more):
    """A record with an extra value may have as many parts as one with a list of set fields, and the same end."""
    values = [Loose(a=1), *(Loose(a=n) for n in range(more)), Loose(a=1, b=2, reply=Loose(a=7))]
    with backtrail.open("memory://", types=[Loose]) as store:
        thread = store.thread("t")
        thread.save({"v": values, "last": values[-1]})
        for found in (store.thread("t").load().state, thread.load().state):
            assert found["v"] == values
            assert (found["v"][-1].reply, found["last"].reply) == (Loose(a=7), Loose(a=7))
            assert found["v"][-1].model_fields_set == {"a", "b", "reply"}
