"""Paths: printed paths parse to the same path; an error names the position."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backtrail.engine.tree.path import Path, parse
from backtrail.errors import Invalid

names = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["a.b", "a[0]", '"', "\\", "", " ", " a", "a ", "0", "-1", "\n", "é", "\ud800", "[", "]", ".", 'a"b', "\0"]
    ),
)
steps = st.lists(st.one_of(names, st.integers(-(10**30), 10**30)), max_size=6)


@given(steps)
@example([])
@example([""])
@example([0])
@example(["a", 0, "b.c", -1])
def test_a_printed_path_can_be_read_again(path):
    printed = str(Path(path))
    assert parse(printed) == tuple(path)
    assert [type(step) for step in parse(printed)] == [type(step) for step in path]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ()),
        ("messages", ("messages",)),
        ("messages[3].content", ("messages", 3, "content")),
        ("plan.days[-1].city", ("plan", "days", -1, "city")),
        ('prices["1.5"]', ("prices", "1.5")),
        ('["a"]["b"].c', ("a", "b", "c")),
        ("[0][1]", (0, 1)),
        ("with space.x", ("with space", "x")),
        ('a["\\u00e9\\n\\""]', ("a", 'é\n"')),
        ("0.1", ("0", "1")),
        ("a-b", ("a-b",)),
    ],
)
def test_paths_are_read_as_people_write_them(text, wanted):
    found = parse(text)
    assert found == wanted
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        ".",
        ".a",
        "a.",
        "a..b",
        "a[",
        "a]",
        "a[]",
        "a[x]",
        "a[1.5]",
        "a[1",
        'a["x]',
        "a['x']",
        "[0]a",
        'a["x"]b',
        'a["\\x"]',
        'a["\n"]',
        "a.[0]",
        '"a"',
        'a"b',
        "a[--1]",
        "a[1]]",
        "a[" + "9" * 5000 + "]",
        "a[0x1]",
        "a[ 1]",
        'a["\\ud8"]',
    ],
    ids=lambda text: text[:12],
)
def test_malformed_path_error_names_the_position(text):
    with pytest.raises(Invalid, match="at character") as caught:
        parse(text)
    assert caught.value.code == "invalid.path"
    assert caught.value.path == text


@given(st.text(max_size=12))
def test_any_text_is_a_path_or_invalid(text):
    try:
        found = parse(text)
    except Invalid as error:
        assert error.code == "invalid.path"  # noqa: PT017
    else:
        assert parse(str(found)) == found


@given(st.text('ab.[]"0\\', max_size=14))
def test_random_path_text_is_a_path_or_invalid(text):
    test_any_text_is_a_path_or_invalid.hypothesis.inner_test(text)


@pytest.mark.parametrize("path", [5, None, b"a", {"a": 1}, {1}, 1.5, object()])
def test_path_of_wrong_type_is_refused(path):
    with pytest.raises(Invalid) as caught:
        parse(path)
    assert caught.value.code == "invalid.path"


@given(steps)
def test_steps_are_taken_as_they_are(path):
    assert tuple(parse(path)) == tuple(parse(tuple(path))) == tuple(path)
    assert type(parse(path)) is Path


def test_keys_of_any_type_are_steps():
    path = Path(("a", (1, "b"), 1.5, None, b"x", frozenset()))
    assert str(path) == "a[(1, 'b')][1.5][None][b'x'][frozenset()]"
    assert parse(tuple(path)) == path
    assert repr(Path(("a", 0))) == "Path('a[0]')"


def test_a_path_equals_its_steps_and_its_text():
    path = Path(("a", 0, "b"))
    assert path == ("a", 0, "b") == path
    assert path == "a[0].b"
    assert path != "a[1].b"
    assert path != ["a", 0, "b"]
    assert hash(path) == hash(("a", 0, "b"))
    assert path.child("c") == "a[0].b.c"
    assert type(path.child(1)) is Path


@given(names)
def test_a_quoted_name_is_read_as_json(name):
    assert parse(f"[{json.dumps(name)}]") == (name,)
