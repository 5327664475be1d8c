"""`Checkpoint.part`: a state read in parts is the state, and what is large is not read."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail import MISSING, StatePart

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=50)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=5), inner, max_size=12),
    max_leaves=60,
)


def rebuilt(checkpoint, path=(), most=20, limit=3):
    """A value, from parts of at most `limit` entries and `most` bytes."""
    part = checkpoint.part(path, limit=limit, most=most)
    if part.value is not MISSING:
        return part.value
    if part.type not in ("object", "array"):
        return checkpoint.get(path)
    entries = list(part.entries)
    while len(entries) < part.count:
        entries += checkpoint.part(path, start=len(entries), limit=limit, most=most).entries
    values = [
        (key, rebuilt(checkpoint, (*path, key), most, limit) if each.value is MISSING else each.value)
        for key, each in entries
    ]
    return dict(values) if part.type == "object" else [value for _, value in values]


@given(VALUES)
def test_parts_make_up_the_state(state):
    with backtrail.open("memory://") as store:
        assert rebuilt(store.thread("t").save(state)) == state


@dataclasses.dataclass
class City:
    name: str
    days: list


def test_types_and_counts():
    state = {
        "list": ["x" * 50] * 10,
        "tuple": tuple(range(100)),
        "set": set(range(100)),
        "text": "é" * 5000,
        "bytes": b"x" * 5000,
        "int": 10**100,
        "float": 1.5,
        "yes": True,
        "none": None,
        "city": City("Lisbon", ["x" * 50] * 3),
    }
    with backtrail.open("memory://") as store:
        head = store.thread("t", types=[City]).save(state)
        found = store.thread("t").load().part(most=40)  # without the class
        shown = {key: (part.type, part.count, part.value is MISSING) for key, part in found.entries}
        assert shown == {
            "list": ("array", 10, True),
            "tuple": ("array", 100, True),
            "set": ("set", 100, True),
            "text": ("text", 10_000, True),
            "bytes": ("bytes", 5000, True),
            "int": ("number", None, False),
            "float": ("number", None, False),
            "yes": ("boolean", None, False),
            "none": ("null", None, False),
            "city": ("object", 2, True),
        }
        assert (found.type, found.count, found.value) == ("object", 10, MISSING)
        assert [key for key, _ in head.part("city", most=10).entries] == ["name", "days"]
        assert head.part("float") == StatePart("number", 9, None, 1.5)
        assert len(head.part("tuple", start=98, most=0).entries) == 2
        assert head.part("tuple", start=200, most=0).entries == ()
        with pytest.raises(backtrail.NotFound):
            head.part("nothing")
        with pytest.raises(backtrail.Invalid):
            head.part(start=-1)
