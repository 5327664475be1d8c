"""Plain values: what is packed at once, and what is not."""

import collections
import enum
import uuid

import ormsgpack
import pytest

from backtrail.adapters.plain_values import packed_plain, plain_data


class Text(str):
    """A string of its own class."""

    __slots__ = ()


class Level(enum.IntEnum):
    """A number of its own class."""

    HIGH = 1


@pytest.mark.parametrize("value", [{}, {"a": [1, -2.5, True, None, "é"], "b": {"c": {}}}, [], "x" * 4000])
def test_plain_data_are_packed(value):
    assert ormsgpack.unpackb(packed_plain(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        Text("a"),
        Level.HIGH,
        (1, 2),
        {1: 2},
        {Text("a"): 1},
        b"a",
        bytearray(b"a"),
        1 << 70,
        "\ud800",
        uuid.UUID(int=1),
        collections.OrderedDict(a=1),
        collections.defaultdict(dict),
        ormsgpack.Ext(1, b"a"),
        ormsgpack.Fragment(b"\x01"),
    ],
)
def test_other_values_are_not_packed(value):
    assert packed_plain(value) is None
    assert packed_plain({"a": [value]}) is None


def test_data_of_harmless_subclasses_become_plain():
    data = collections.defaultdict(dict, {Text("a"): [Text("b"), (Text("c"),)]})
    made = plain_data(data)
    assert made == data
    assert [type(each) for each in (made, *made, made["a"][0], made["a"][1][0])] == [dict, str, str, str]
