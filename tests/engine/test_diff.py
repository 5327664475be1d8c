"""Differences: ops turn one state into another at the cost of the change; readable changes are complete."""

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail.engine import payload
from backtrail.engine.schema.registry import Record
from backtrail.engine.tree import diff, nodes, scan
from backtrail.engine.tree.decode import Unpacker
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import PATCH, SET, SPLICE
from tests.support.effort import at_most
from tests.support.lengths import fewer
from tests.support.strategies import (
    TYPES,
    bulky,
    decode,
    encode,
    form,
    long_texts,
    on_deep_stack,
    same,
    sizes,
    small_items,
    values,
)


@pytest.fixture(params=["real", "small"], scope="module", autouse=True)
def scale(request):
    with sizes(request.param) as name:
        yield name


def ops_between(old, new):
    """Return ops that turn one tree into another; None if the root must be replaced."""
    return [] if old.rep == new.rep else diff.Differ(old.nodes, new.nodes).inside(old.rep, new.rep, [])


def turned(old, new):
    """Apply what the diff of two trees says and check that the result is the other one; return the ops.

    What a scan of the new state says makes it, too.
    """
    found, needed = scan.changes(old, decode(new), TYPES)
    assert old._replace(nodes=needed).apply(found).root == new.root
    ops = ops_between(old, new)
    if ops is None:
        return None
    known = old.nodes.forked()
    known.fresh.update(new.nodes.fresh)
    made = old._replace(nodes=known).apply(ops)
    assert made.root == new.root
    assert made.size == new.size
    # as written to a row and read again
    stored, chunks, _ = payload.delta(ops, payload.packed(ops), known, compress=True)
    chunks = {**old.nodes.fresh, **chunks}
    read = nodes.Nodes(lambda wanted: {d: b"\0" + chunks[d].kind + chunks[d].data for d in wanted}, nodes.Cache(0))
    assert old._replace(nodes=read).apply(payload.read_delta(stored)).root == new.root
    return ops


def cost(old, new):
    """The bytes that a save of `new` on top of `old` writes: the row and new chunks."""
    ops = turned(old, new)
    stored, chunks, _ = payload.delta(ops, payload.packed(ops), new.nodes, compress=False)
    return len(stored) + sum(len(n.data) for d, n in chunks.items() if d not in old.nodes.fresh)


# ---- ops ------------------------------------------------------------------------------------------------------------


@given(values, values)
def test_ops_turn_any_value_into_any_other(one, other):
    turned(encode(one), encode(other))
    turned(encode({"k": one, "l": [one, other]}), encode({"k": other, "l": [other, other, one]}))


@given(bulky, bulky)
@fewer(4)
def test_ops_turn_any_bulky_state_into_any_other(one, other):
    turned(encode({"k": one, "x": 1}), encode({"k": other, "x": 1}))
    turned(encode([one, other]), encode([other, one]))


def edited(value, rng, items):
    """A deep copy with a few small changes anywhere."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 4)):
        target = value
        while isinstance(target, list | dict) and target and rng.random() < 0.7:
            inner = rng.choice(list(target.values()) if isinstance(target, dict) else target)
            if not isinstance(inner, list | dict):
                break
            target = inner
        item = copy.deepcopy(rng.choice(items))
        if isinstance(target, list):
            at = rng.randint(0, len(target))
            target[at : at + rng.randint(0, 2)] = rng.choice([[], [item], [item, 1]])
        elif isinstance(target, dict):
            if target and rng.random() < 0.6:
                key = rng.choice(list(target))
                moved = target.pop(key)
                if rng.random() < 0.5:
                    target[key] = rng.choice([moved, item])
            else:
                target[f"k{rng.randrange(50)}"] = item
    return value


@given(
    st.one_of(st.lists(bulky, max_size=6), st.dictionaries(st.text(max_size=3), bulky, max_size=6)),
    st.integers(),
    st.lists(small_items, min_size=1),
)
@fewer(4)
def test_ops_follow_small_edits_step_by_step(state, seed, items):
    rng = random.Random(seed)
    tree = encode(state)
    for _ in range(4):
        state = edited(state, rng, items)
        new = encode(state)
        turned(tree, new)
        tree = new
    assert form(decode(tree)) == form(state)


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=60))
def test_ops_turn_lists_that_repeat_themselves(one, other):
    turned(encode(one), encode(other))
    turned(encode([[n] for n in one]), encode([[n] for n in other]))


@given(st.permutations(list(range(30))), st.permutations(list(range(30))))
def test_ops_turn_a_dict_into_one_of_another_order(one, other):
    turned(encode({str(n): n for n in one}), encode({str(n): n for n in other}))
    turned(encode({n: [n] for n in one}), encode({n: [n, 1] if n % 5 == 0 else [n] for n in other}))


@given(long_texts, long_texts, st.integers(0, 100))
def test_ops_turn_texts(one, other, at):
    turned(encode(one), encode(other))
    joined = one[:at] + other if type(one) is type(other) else other
    turned(encode({"t": one}), encode({"t": joined}))


def test_ops_turn_a_dict_with_several_nan_keys():
    nans = [float("nan") for _ in range(4)]
    old = {nans[0]: [1], "a": 1, nans[1]: [2], (nans[2], 1): [3], (nans[3], 1): [4]}
    for changed in (nans[0], nans[1], (nans[2], 1), (nans[3], 1)):
        new = dict(old)
        new[changed] = ["new"]
        assert turned(encode(old), encode(new))
        new.pop(nans[0])
        assert turned(encode(old), encode(new))


def test_equal_states_differ_by_nothing():
    state = {"a": [1, 2, {"b": "c" * 9000}]}
    assert ops_between(encode(state), encode(copy.deepcopy(state))) == []
    assert list(diff.differences(encode(state), encode(state), None)) == []


# ---- what they cost -------------------------------------------------------------------------------------------------


def messages(count):
    rng = random.Random(5)
    return [{"role": "user", "id": n, "content": "".join(rng.choices("abcde \n", k=300))} for n in range(count)]


def test_plain_save_writes_only_changed_chunks():
    state = {
        "messages": messages(800),
        "NaN": messages(100),
        "plan": {"days": [{"city": "x" * 50} for _ in range(300)]},
        "text": "line\n" * 20_000,
    }
    old = encode(state)

    def after(change):
        new = copy.deepcopy(state)
        change(new)
        return cost(old, encode(new))

    message = {"role": "assistant", "content": "y" * 900}
    assert after(lambda s: s["messages"].append(message)) < 1100
    assert after(lambda s: s["messages"].insert(400, message)) < 1100
    assert after(lambda s: s["messages"].pop(100)) < 100
    assert after(lambda s: s["messages"][10].update(content="z" * 500)) < 700
    assert after(lambda s: s["messages"][-1].update(status="done")) < 150
    assert after(lambda s: s["messages"].__setitem__(slice(0, 300), [message])) < 1500
    assert after(lambda s: s["plan"]["days"][150].update(city="Rome")) < 150
    assert after(lambda s: s.update(text=s["text"] + "token " * 20)) < 250
    assert after(lambda s: s.update(text=s["text"][:50_000] + "token " * 20 + s["text"][50_000:])) < 250
    assert after(lambda s: s.update(n=1)) < 50
    assert after(lambda s: s["NaN"].append(message)) < 1100


@pytest.mark.parametrize("length", [40, 60, 200, 5000, 70_000])
def test_append_to_a_text_costs_one_token(length):
    for unit in ("a", "line\n", "é"):
        text = (unit * length)[:length]
        assert cost(encode({"m": [{"t": text}]}), encode({"m": [{"t": text + " token"}]})) < max(
            100, len(unit.encode()) * 48 + 60
        )


def test_nested_list_grows_at_the_cost_of_new_items():
    state = [[messages(200) for _ in range(3)] for _ in range(2)]
    old = encode(state)
    state[1][1].append({"role": "user", "content": "w" * 400})
    assert cost(old, encode(state)) < 600


# ---- what they cost -----------------------------------------------------------------------------------------------


MANY = 5_000_000
"""Calls: far fewer than there are pairs of items in these lists."""


def quickly(old, new):
    one, other = encode(old), encode(new)
    with at_most(MANY):
        found = ops_between(one, other)
    with at_most(MANY):
        list(diff.differences(one, other, Unpacker(TYPES)))
    return found


def test_alignment_is_quick_with_repeats_and_moves():
    rng = random.Random(9)
    ints = [rng.randrange(50) for _ in range(6000)]
    others = [rng.randrange(50) for _ in range(6000)]
    shuffled = [{"id": n} for n in range(3000)]
    rng.shuffle(shuffled)
    cases = {
        "two values over and over": ([0, 1] * 3000, [1, 1, 0] * 3000),
        "one value": ([0] * 9000, [0] * 8000 + [1] + [0] * 3000),
        "periods": ([n % 3 for n in range(9000)], [n % 7 for n in range(9000)]),
        "random numbers": (ints, others),
        "reversed": (list(range(6000)), list(range(6000))[::-1]),
        "shuffled": ([{"id": n} for n in range(3000)], shuffled),
        "dict reversed": ({str(n): n for n in range(6000)}, {str(n): n for n in range(6000)[::-1]}),
        "dict shuffled": ({n["id"]: n for n in sorted(shuffled, key=str)}, {n["id"]: n for n in shuffled}),
        "interleaved": ([x for n in range(3000) for x in (n, 0)], [x for n in range(3000) for x in (0, n)]),
        "sets": (set(range(0, 9000, 2)), set(range(0, 9000, 3))),
    }
    for name, (old, new) in cases.items():
        assert quickly(old, new) is not None, name


def test_save_after_scattered_changes_is_quick_and_exact():
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        state = {"messages": messages(3000)}
        thread.save(state)
        random.Random(1).shuffle(state["messages"])
        with at_most(MANY):
            saved = thread.save(state)
        assert same(thread.load().state, state)
        assert saved.root == store.thread("u").save(state).root


def test_hundreds_of_changes_are_saved_as_a_state():
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        state = {"messages": messages(1000)}
        thread.save(state)
        for message in state["messages"][::2]:
            message["id"] = -1
        thread.save(state)
        assert store._backend._storage.tables.logs[1][2].depth == 0  # not 500 ops that every load would apply
        assert same(thread.load().state, state)
        state["messages"][7]["id"] = -2
        thread.save(state)
        assert store._backend._storage.tables.logs[1][3].depth == 1


def test_comparing_deep_states_does_not_overflow_the_stack(scale):
    old, new = 1, 2
    for n in range(230 if scale == "real" else 60):
        old, new = ([old], [new]) if n % 2 else ({"k": old}, {"k": new})
    one, other = encode({"a": old, "b": 1}), encode({"a": new, "b": 1})
    on_deep_stack(300, lambda: turned(one, other))
    found = on_deep_stack(300, lambda: list(diff.differences(one, other, Unpacker(TYPES))))
    assert len(found) == 1


# ---- what people read -----------------------------------------------------------------------------------------------


def shown(old, new):
    """Changes as (sign, path) and their values."""
    one, other = encode(old), encode(new)
    found = []
    for edit in diff.differences(one, other, Unpacker(TYPES)):
        if edit.reordered:
            found.append(("order", str(edit.path)))
        else:
            before = None if edit.old is None else decode(one._replace(rep=edit.old))
            after = None if edit.new is None else decode(other._replace(rep=edit.new))
            found.append((str(edit.path), before, after))
    return found


def test_changes_have_their_paths():
    old = {"n": 1, "list": [1, 2, 3, 4], "text": "abc", "deep": {"a": [{"b": 1}]}, "gone": 0, "t": (1, 2)}
    new = {"n": True, "list": [1, 9, 3], "text": "abd", "deep": {"a": [{"b": 2}]}, "t": (1, 3), "more": [0]}
    assert sorted(shown(old, new), key=str) == sorted(
        [
            ("n", 1, True),
            ("list[1]", 2, 9),
            ("list[3]", 4, None),
            ("text", "abc", "abd"),
            ("deep.a[0].b", 1, 2),
            ("t[1]", 2, 3),
            ("more", None, [0]),
            ("gone", 0, None),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("abc", "bca"),
        ("abc", "cab"),
        ("abc", "cba"),
        ("abcdefgh", "abdcefgh"),
        ("abcdefgh", "bcdefgha"),
        ("abcdefgh", "habcdefg"),
        ("abcdefgh", "hbcdefga"),
    ],
)
def test_another_order_of_keys_is_a_change(old, new):
    assert shown(dict.fromkeys(old, 1), dict.fromkeys(new, 1)) == [("order", "")]
    assert shown({"x": {key: key for key in old}}, {"x": {key: key for key in new}}) == [("order", "x")]


def test_added_and_removed_keys_are_no_other_order():
    assert shown({"a": 1, "b": 2, "c": 3}, {"b": 2, "x": 0, "c": 3, "d": 4}) == [
        ("x", None, 0),
        ("d", None, 4),
        ("a", 1, None),
    ]
    assert shown({"a": 1, "b": 2, "c": 3}, {"a": 5, "b": 2, "c": 6}) == [("a", 1, 5), ("c", 3, 6)]


def test_records_of_one_schema_are_compared_by_field():
    old = Record("S", 1, "dataclass", {"a": 1, "b": 2})
    assert shown(old, Record("S", 1, "dataclass", {"a": 1, "b": 3})) == [("b", 2, 3)]
    assert [path for path, _, _ in shown([old], [Record("T", 1, "dataclass", {"a": 1, "b": 2})])] == ["[0]"]
    assert turned(encode([old]), encode([Record("S", 2, "dataclass", {"a": 1, "b": 2})]))
    assert turned(encode([old]), encode([{"a": 1, "b": 2}]))


def flattened(value, path=()):
    """Every leaf and every empty container of a state of lists and dicts with its path."""
    if isinstance(value, dict) and value:
        return {p: v for key, part in value.items() for p, v in flattened(part, (*path, key)).items()}
    if isinstance(value, list) and value:
        return {p: v for at, part in enumerate(value) for p, v in flattened(part, (*path, at)).items()}
    return {path: form(value)}


trees = st.recursive(
    st.one_of(st.integers(0, 5), st.text(max_size=3), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)),
    max_leaves=14,
)


def without_lists(value):
    """The value without lists, at any depth: a change in a list moves the items after it."""
    if not isinstance(value, dict):
        return value
    return {key: without_lists(part) for key, part in value.items() if not isinstance(part, list)}


@given(trees, trees)
def test_changes_exist_exactly_if_roots_differ(one, other):
    old, new = encode(one), encode(other)
    assert (list(diff.differences(old, new, Unpacker(TYPES))) == []) == (old.root == new.root)


@given(
    st.dictionaries(st.sampled_from("abcdef"), trees, max_size=5),
    st.dictionaries(st.sampled_from("abcdef"), trees, max_size=5),
)
@fewer(2)
def test_parts_without_changes_are_equal(one, other):
    """For dicts in dicts, whose paths are the same before and after."""
    only_dicts = [without_lists(state) for state in (one, other)]
    told = {tuple(edit.path) for edit in diff.differences(*map(encode, only_dicts), Unpacker(TYPES))}
    before, after = map(flattened, only_dicts)
    for path in before.keys() | after.keys():
        if before.get(path) != after.get(path):
            assert any(path[: len(above)] == above or above[: len(path)] == path for above in told), path


def test_ops_say_no_more_than_they_must():
    assert [op[0] for op in turned(encode([1, 2, 3]), encode([1, 2, 3, 4]))] == [SPLICE]
    assert [op[0] for op in turned(encode({"a": 1}), encode({"a": 2}))] == [SET]
    assert [op[0] for op in turned(encode({"a": "x" * 200}), encode({"a": "x" * 100 + "y" + "x" * 99}))] == [PATCH]
    assert ops_between(encode([1]), encode((1,))) is None
    assert ops_between(encode("a"), encode(["a"])) is None
    assert Path(("a",)) == "a"
