"""Trees: equal states have equal roots; a change writes only the chunks around it."""

import contextlib
import copy
import cProfile
import random
from unittest import mock

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail.engine import compression, payload
from backtrail.engine.reader import Chain, Tip
from backtrail.engine.schema.registry import Record
from backtrail.engine.tree import chunked, edits, msgpack, nodes, text
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.path import Path, parse
from backtrail.engine.tree.tree import CUT, PATCH, SET, SPLICE, Tree, find_step, is_op, locate
from backtrail.errors import Corrupt, Error, Invalid, NotFound
from tests.support.lengths import fewer, lengths
from tests.support.strategies import (
    TYPES,
    bulky,
    decode,
    encode,
    form,
    fresh_nodes,
    keys,
    on_deep_stack,
    same,
    sizes,
    small_items,
    stored_again,
    values,
)


@pytest.fixture(params=["real", "small"], scope="module", autouse=True)
def scale(request):
    with sizes(request.param) as name:
        yield name


# ---- scripts of changes ---------------------------------------------------------------------------------------------


def places(value, path=()):
    """Every part of a state with its path."""
    yield path, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from places(part, (*path, at))


def replaced(value, path, new):
    """A copy of a state with another value at a path."""
    if not path:
        return new
    step, *rest = path
    if isinstance(value, tuple):
        return (*value[:step], replaced(value[step], rest, new), *value[step + 1 :])
    value = copy.copy(value)
    value[step] = replaced(value[step], rest, new)
    return value


def rep_in(tree, value):
    return Encoder(tree.nodes, TYPES).rep(value)


def steps_of(value, path):
    """A path in the steps of an op."""
    steps = []
    for step in path:
        steps.append(Encoder(fresh_nodes(), TYPES).key(step) if isinstance(value, dict) else step)
        value = value[step]
    return steps


class Script:
    """A state as a value and as a tree; both get the same changes and must stay equal."""

    def __init__(self, value, rng, fresh_item):
        self.value = value
        self.tree = encode(value)
        self.rng = rng
        self.item = fresh_item

    def step(self):
        path, target = self.rng.choice(list(places(self.value)))
        kinds = {list: self._list, tuple: self._tuple, dict: self._dict, Record: self._dict, str: self._text}
        change = kinds.get(type(target), self._bytes if type(target) in (bytes, bytearray) else self._set)
        self.tree = self.tree._replace(nodes=self.tree.nodes.forked())
        op, new = change(steps_of(self.value, path), target)
        assert is_op(ormsgpack.unpackb(ormsgpack.packb(op, default=bytes, option=msgpack.SUBCLASSES)))
        self.value = replaced(self.value, path, new)
        self.tree = self.tree.apply([op])
        fresh = encode(self.value)
        assert self.tree.root == fresh.root, op
        assert self.tree.size == fresh.size

    def _set(self, steps, _):
        new = self.item()
        return [SET, steps, rep_in(self.tree, new)], new

    def _span(self, length):
        start = self.rng.choice([0, length, self.rng.randint(0, length)])
        return start, self.rng.choice([start, min(start + 1, length), self.rng.randint(start, length)])

    def _list(self, steps, target):
        if target and self.rng.random() < 0.3:
            at = self.rng.randrange(len(target))
            if self.rng.random() < 0.5:
                return [CUT, [*steps, at]], target[:at] + target[at + 1 :]
            new = self.item()
            return [SET, [*steps, at], rep_in(self.tree, new)], [*target[:at], new, *target[at + 1 :]]
        start, stop = self._span(len(target))
        new = [self.item() for _ in range(self.rng.choice([0, 1, 1, 2, 12]))]
        op = [SPLICE, steps, start, stop - start, [rep_in(self.tree, item) for item in new]]
        return op, target[:start] + new + target[stop:]

    def _tuple(self, steps, target):
        op, new = self._list(steps, list(target))
        return op, tuple(new)

    def _dict(self, steps, target):
        new = copy.copy(target)
        if target and self.rng.random() < 0.4:
            key = self.rng.choice(list(target))
            if self.rng.random() < 0.5 and type(target) is dict:
                del new[key]
                return [CUT, steps_of({key: 0}, [key]) if not steps else [*steps, *steps_of({key: 0}, [key])]], new
        else:
            key = f"new{self.rng.randrange(10**6)}"
        new[key] = self.item()
        return [SET, [*steps, *steps_of({key: 0}, [key])], rep_in(self.tree, new[key])], new

    def _text(self, steps, target):
        start, stop = self._span(len(target))
        new = self.rng.choice(["", "x", "é\n", "\ud800", "line\n" * 40])
        before, gone = (part.encode("utf-8", "surrogatepass") for part in (target[:start], target[start:stop]))
        op = [PATCH, steps, len(before), len(gone), new.encode("utf-8", "surrogatepass")]
        return op, target[:start] + new + target[stop:]

    def _bytes(self, steps, target):
        start, stop = self._span(len(target))
        new = self.rng.choice([b"", b"\0", b"\n\xff", bytes(150)])
        return [PATCH, steps, start, stop - start, new], type(target)(target[:start] + new + target[stop:])


@given(bulky, st.integers(0, 2**32), st.lists(small_items, min_size=1, max_size=12))
@fewer(4)
def test_changes_give_the_root_of_a_direct_save(value, seed, items):
    rng = random.Random(seed)
    script = Script(value, rng, lambda: rng.choice(items))
    for _ in range(12):
        script.step()
    assert form(decode(script.tree)) == form(script.value)


def script_over_a_long_state(seed, steps):
    rng = random.Random(seed)

    def item():
        return rng.choice(
            [
                rng.randrange(1000),
                "w" * rng.randrange(120),
                {"k": rng.randrange(9), "v": ["z" * rng.randrange(60)]},
                None,
            ]
        )

    size = 4 * chunked.LEAF_TARGET // 60
    script = Script({"list": [item() for _ in range(size)], "dict": {str(n): item() for n in range(size)}}, rng, item)
    for _ in range(steps):
        script.step()
    assert same(decode(script.tree), script.value)
    assert same(decode(stored_again(script.tree)), script.value)


@pytest.mark.parametrize("seed", range(3))
def test_changes_of_a_long_state_give_the_root(seed, scale):
    script_over_a_long_state(seed, 150 if scale == "small" else 6)


@pytest.mark.parametrize("seed", range(30))
def test_ops_applied_at_once_give_the_tree_of_ops_one_by_one(seed):
    rng = random.Random(seed)

    def item():
        return rng.choice([rng.randrange(9), "w" * rng.randrange(60), {"k": [1]}, [], listed(40, seed)])

    script = Script({str(n): item() for n in range(rng.randrange(1, 7))}, rng, item)
    before, ops = script.tree, []
    apply = Tree.apply

    def noted(tree, some):
        ops.extend(some)
        return apply(tree, some)

    with mock.patch.object(Tree, "apply", noted):
        for _ in range(rng.randrange(2, 9)):
            script.step()
            if not isinstance(script.value, dict):  # the root was replaced: only ops below a dict are joined
                break
    after = Tree(before.rep, script.tree.nodes).apply(ops)
    assert (bytes(after.rep), after.size) == (bytes(script.tree.rep), script.tree.size)
    for wrong in ([CUT, [b"\xa4gone"]], [SPLICE, [b"\xa4gone"], 0, 0, [b"\x01"]], [SET, [0], b"\x01"]):
        with pytest.raises(Corrupt):
            Tree(before.rep, script.tree.nodes).apply([*ops[:1], wrong, *ops[1:]])


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_changes_of_a_long_state_give_the_root(seed):
    script_over_a_long_state(seed, 400)


def listed(count, seed=0):
    rng = random.Random(seed)
    return [f"{n:06} " + "word " * rng.randrange(1, 20) for n in range(count)]


@pytest.mark.parametrize("part", lengths(3, 1))
@pytest.mark.parametrize("code", [msgpack.LIST, msgpack.DICT], ids=["list", "dict"])
def test_root_does_not_depend_on_the_order_of_changes(code, scale, part):
    count = (2500 if scale == "small" else 600) // part
    rng = random.Random(7)
    items = listed(count)
    whole = items if code == msgpack.LIST else {item[:6]: item for item in items}
    entries = [rep_in(encode(0), item) for item in items]
    if code == msgpack.DICT:
        entries = [rep_in(encode(0), item[:6]) + entry for item, entry in zip(items, entries, strict=True)]
    wanted = encode(whole).root
    empty = encode([] if code == msgpack.LIST else {})
    ways = {
        "one by one": [[SPLICE, [], n, 0, [entry]] for n, entry in enumerate(entries)],
        "from the back": [[SPLICE, [], 0, 0, [entry]] for entry in reversed(entries)],
        "five at a time": [[SPLICE, [], n, 0, entries[n : n + 5]] for n in range(0, count, 5)],
        "odd ones later": [
            [SPLICE, [], 0, 0, entries[::2]],
            *([SPLICE, [], n, 0, [entries[n]]] for n in range(1, count, 2)),
        ],
        "too many, then cut": [[SPLICE, [], 0, 0, entries + entries[:50]], [SPLICE, [], count, 50, []]],
        "the front cut off": [[SPLICE, [], 0, 0, entries[-90:] + entries], [SPLICE, [], 0, 90, []]],
    }
    shuffled = list(range(count))
    rng.shuffle(shuffled)
    placed, ops = [], []
    for n in shuffled:
        at = sum(1 for other in placed if other < n)
        placed.append(n)
        ops.append([SPLICE, [], at, 0, [entries[n]]])
    ways["in any order"] = ops
    for name, way in ways.items():
        assert empty.apply(way).root == wanted, name


def test_entries_are_read_by_index_and_key():
    items = listed(3000)
    tree, mapped = encode(items), encode({item[:6]: item for item in items} | {n: n for n in range(500)})
    opened, by_key = (chunked.open_rep(t.rep, t.nodes) for t in (tree, mapped))
    decoder = Decoder(tree.nodes, TYPES)
    assert (opened.length, by_key.length) == (3000, 3500)
    for start, stop in [(0, 0), (0, 1), (2999, 3000), (1490, 1510), (0, 3000), (2990, None), (3000, None), (17, 18)]:
        assert decoder.values(chunked.entries(tree.nodes, opened, start, stop)) == items[start:stop]
    for n in random.Random(1).sample(range(3000), 60):
        assert chunked.find_key(mapped.nodes, by_key, rep_in(tree, f"{n:06}")) == n
    for n in (0, 5, 499):
        assert chunked.find_key(mapped.nodes, by_key, rep_in(tree, n)) == 3000 + n
    for missing in ("00000", "0000000", "", 500, b"000001", 1.0, True):
        assert chunked.find_key(mapped.nodes, by_key, rep_in(tree, missing)) is None


# ---- what a change touches ------------------------------------------------------------------------------------------


def new_nodes(before, after):
    """The new nodes of a change, and their bytes."""
    made = {digest: node for digest, node in after.nodes.fresh.items() if digest not in before.nodes.fresh}
    live = payload.reachable(nodes.Nodes(None, None, made), payload.refs_of(after.rep))
    return live.values()


def test_insertion_into_ten_thousand_items_makes_few_chunks(scale):
    items = listed(10_000)
    tree = encode(items)
    levels = len(chunked.open_rep(tree.rep, tree.nodes).levels)
    assert levels >= (5 if scale == "small" else 2)
    rng = random.Random(3)
    leaves, total = [], []
    for _ in range(40):
        at = rng.randrange(10_000)
        made = new_nodes(tree, tree.apply([[SPLICE, [], at, 0, [rep_in(tree, "an insertion")]]]))
        leaves.append(sum(node.kind == nodes.LEAF for node in made))
        total.append(len(made))
    assert max(leaves) <= 12
    assert sum(leaves) / len(leaves) <= 3.5
    assert sum(total) / len(total) <= 3.5 + 3 * levels


def test_an_append_touches_no_closed_chunk():
    items = listed(5000)
    tree = encode(items)
    for n in range(120):
        before = tree
        tree = tree.apply([[SPLICE, [], 5000 + n, 0, [rep_in(tree, f"appended {n} " + "x" * 40)]]])
        closed = [c for level in chunked.open_rep(before.rep, before.nodes).levels[1:] for c in level]
        now = {c for level in chunked.open_rep(tree.rep, tree.nodes).levels[1:] for c in level}
        made = new_nodes(before, tree)
        assert sum(node.kind == nodes.LEAF for node in made) == (1 if tree.sealed else 0)
        if not any(node.kind == nodes.INNER for node in made):
            assert set(closed) <= now


def test_edit_of_a_long_dict_makes_few_chunks():
    tree = encode({"big": {f"{n:05}": {"value": "x" * (n % 60)} for n in range(8000)}, "other": list(range(3000))})
    for key in ("00000", "04000", "07999"):
        steps = [rep_in(tree, "big"), rep_in(tree, key), rep_in(tree, "value")]
        made = new_nodes(tree, tree.apply([[SET, steps, rep_in(tree, "changed")]]))
        assert sum(node.kind == nodes.LEAF for node in made) <= 6


def test_insertion_into_a_long_text_makes_few_pieces(scale):
    rng = random.Random(2)
    lines = ["".join(rng.choices("abcdef ", k=rng.randrange(60))) for _ in range(16 * text.PIECE_MAX // 30)]
    tree = encode("\n".join(lines))
    pieces = []
    for _ in range(10):
        at = rng.randrange(tree.size - 10)
        pieces.append(
            sum(n.kind == nodes.TEXT for n in new_nodes(tree, tree.apply([[PATCH, [], at, 0, b"inserted\n"]])))
        )
    assert max(pieces) <= 8
    assert sum(pieces) / len(pieces) <= 3


def test_megabytes_of_zeros_or_line_ends_are_cut_quickly():
    def calls(value):
        """How many calls it takes to encode a value."""
        profile = cProfile.Profile()
        profile.runcall(encode, value)
        return sum(each.callcount for each in profile.getstats())

    usual = calls(random.Random(1).randbytes(1 << 22))
    for value in (bytes(1 << 22), "\n" * (1 << 22), "\n\0" * (1 << 21)):
        assert calls(value) < 2 * usual
        assert decode(encode(value)) == value


def test_leaf_sizes_stay_within_their_limits():
    for state in (listed(4000), {item[:6]: item for item in listed(4000)}, list(range(90_000)), [0] * 90_000):
        tree = encode(state)
        sizes_ = [len(node.data) for node in tree.nodes.fresh.values() if node.kind == nodes.LEAF]
        assert sizes_
        assert min(sizes_) >= chunked.LEAF_MIN > nodes.INLINE
        assert max(sizes_) <= chunked.LEAF_MAX + 200


# ---- through a store ------------------------------------------------------------------------------------------------


def test_five_appends_and_one_save_have_the_same_root(scale):
    items = listed(400)
    with backtrail.open("memory://") as store:
        at_once, bit_by_bit, mixed = store.thread("a"), store.thread("b"), store.thread("c")
        saved = at_once.save({"n": 1, "messages": items, "text": "abc" * 5000})
        bit_by_bit.save({"n": 0, "messages": [], "text": "abc"})
        for at in range(0, 400, 80):
            bit_by_bit.append("messages", *items[at : at + 80])
        bit_by_bit.append("text", "abc" * 4999)
        assert bit_by_bit.set("n", 1).root == saved.root
        mixed.save({"n": 1, "messages": items[::2], "text": "abc" * 5000, "gone": [1]})
        mixed.delete_at("gone")
        assert mixed.save({"n": 1, "messages": items, "text": "abc" * 5000}).root == saved.root
        for thread in (at_once, bit_by_bit, mixed):
            assert same(thread.load().state, saved.state)
        assert store.verify().ok


def test_ever_deeper_values_load_or_are_refused():
    """No small change may lead to a state that cannot be read or saved."""
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: {1: v}):
        part = 0
        for _ in range(30):
            part = wrap(part)
        path, tree = (), encode(part)
        for _ in range(200):
            path = (*path, *([0] * 30 if isinstance(part, list | tuple) else [next(iter(part))] * 30))
            tip = Tip(None, None, None, Chain(tree, 0, 0, frozenset()))
            try:
                tree = edits.Put(Path(path), part, TYPES, "t")(tip)[0]
            except Invalid:
                break
            value = on_deep_stack(200, lambda tree=tree: decode(tree))
            assert on_deep_stack(200, lambda value=value: encode(value)).root == tree.root
        else:
            pytest.fail("put 6000 levels deep")
        assert len(path) >= 60


# ---- users' paths ---------------------------------------------------------------------------------------------------


def findable(key):
    """Whether a key equals a copy of itself; a key with a NaN does not."""
    return decode(encode(key)) == key


@given(bulky)
@fewer(4)
def test_a_users_path_leads_to_every_place(value):
    tree = encode(value)
    decoder = Decoder(tree.nodes, TYPES)
    for path, target in list(places(value))[:60]:
        if not all(map(findable, path)):
            continue
        rep, steps = locate(tree, Path(path), TYPES)
        assert form(decoder.value(rep)) == form(target)
        assert len(steps) == len(path)


@given(st.dictionaries(keys, st.integers(), max_size=8))
def test_keys_are_compared_as_in_a_dict(mapping):
    tree = encode(mapping)
    opened = chunked.open_rep(tree.rep, tree.nodes)
    for at, key in enumerate(mapping):
        if findable(key):
            assert find_step(tree.nodes, opened, key, TYPES)[1] == at
    for other in (1, 1.0, True, 0, "", b"", None, (), "\ud800", [], {}):
        there = other in mapping if other.__hash__ else False
        assert (find_step(tree.nodes, opened, other, TYPES) is not None) == there


def test_key_with_lone_surrogates_can_be_edited():
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save({"\ud800": 1, "b": 2})
        assert thread.load().get(("\ud800",)) == 1
        assert thread.set(("\ud800",), 3).state == {"\ud800": 3, "b": 2}
        assert thread.delete_at(("\ud800",)).state == {"b": 2}


@pytest.mark.parametrize(
    "key", ["k" * 100_000, ("t" * 5000, 1), 2**40_000, "\ud800" * 9000, b"b" * 9000], ids=lambda k: repr(type(k))
)
def test_a_new_key_of_any_size_can_be_set(key):
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save({"a": {}})
        assert thread.set(("a", key), 1).state == {"a": {key: 1}}
        assert thread.set(("a", key), 2).root == store.thread("u").save({"a": {key: 2}}).root


def test_a_path_that_leads_nowhere_says_where_it_ends():
    tree = encode({"a": [1, {"b": {2, 3}}], "t": "text"})
    for path in ("x", "a[2]", "a[-3]", "a.b", "a[1].b[0]", "t[0]", "a[0].x", "a[1].c"):
        with pytest.raises(NotFound, match="there is nothing at"):
            locate(tree, parse(path), TYPES)


# ---- rows -----------------------------------------------------------------------------------------------------------


@given(bulky, st.booleans())
@fewer(4)
def test_base_is_read_from_its_row_and_chunks(value, compress):
    tree = encode(value)
    stored, chunks, included = payload.base(tree, frozenset(), compress=compress)
    read, inlined = payload.read_base(stored, fresh_nodes(chunks))
    assert read.root == tree.root
    assert inlined == included
    assert form(decode(read)) == form(value)


@given(bulky, bulky)
@fewer(4)
def test_delta_is_read_from_its_row_and_chunks(value, other):
    tree = encode({"a": value, "b": [1, 2]})
    source = tree.nodes.forked()
    ops = [[SET, [rep_in(tree, "c")], Encoder(source, TYPES).rep(other)], [CUT, [rep_in(tree, "b"), 0]]]
    stored, chunks, _ = payload.delta(ops, payload.packed(ops), source, compress=True)
    read = payload.read_delta(stored)
    before = fresh_nodes({**tree.nodes.fresh, **chunks})
    after = Tree(nodes.measured(bytes(tree.rep)), before).apply(read)
    assert after.root == encode({"a": value, "b": [2], "c": other}).root
    assert form(decode(after)) == form({"a": value, "b": [2], "c": other})


P = ormsgpack.packb
STATE = {"a": [1, 2, ["x"]], "t": "text", "b": b"bytes", "n": None, "s": {1, 2}, 5: (1, 2), "long": list(range(300))}
HOSTILE_OPS = [
    5,
    [],
    {},
    [5],
    [[]],
    [[0]],
    [[0, []]],
    [[0, [], 5]],
    [[0, [], [1, 2]]],
    [[0, [], {}]],
    [[0, [], "text"]],
    [[0, [], b""]],
    [[0, [], b"\xc1"]],
    [[0, [], b"\x01\x02"]],
    [[0, [], msgpack.ext(msgpack.REF, P([0, bytes(32), 1, "1"]))]],
    [[0, [], msgpack.ext(msgpack.REF, P([0, bytes(32), -1, 1]))]],
    [[0, [], msgpack.ext(msgpack.REF, b"\x94")]],
    [[0, 5, b"\x01"]],
    [[0, ["a"], b"\x01"]],
    [[0, [None], b"\x01"]],
    [[0, [1.5], b"\x01"]],
    [[0, [[]], b"\x01"]],
    [[0, [True], b"\x01"]],
    [[0, [0], b"\x01"]],
    [[0, [-1], b"\x01"]],
    [[0, [2**63], b"\x01"]],
    [[0, [b""], b"\x01"]],
    [[0, [b"\xa1"], b"\x01"]],
    [[0, [b"\xa1n", b"\xa1x"], b"\x01"]],
    [[0, [b"\xa1a", b"\xa1x"], b"\x01"]],
    [[0, [b"\xa1s", 0], b"\x01"]],
    [[0, [b"\xa1t", 0], b"\x01"]],
    [[0, [b"\xa1a"] * 500, b"\x01"]],
    [[1, []]],
    [[1, [b"\xa1x"]]],
    [[1, [b"\xa1a", 7]]],
    [[1, [b"\xa1a", -1]]],
    [[1, [b"\xa1a", 1], 5]],
    [[2, [b"\xa1a"], 0, 9, []]],
    [[2, [b"\xa1a"], -1, 0, []]],
    [[2, [b"\xa1a"], 9, 0, []]],
    [[2, [b"\xa1a"], 2, -1, []]],
    [[2, [b"\xa1a"], 0, 0, [5]]],
    [[2, [b"\xa1a"], 0, 0, [b""]]],
    [[2, [b"\xa1a"], 0, 0, "abc"]],
    [[2, [b"\xa1a"], "0", 0, []]],
    [[2, [b"\xa1a"], 0.0, 0, []]],
    [[2, [b"\xa1a"], 0, 0]],
    [[2, [], 0, 0, [b"\xa1"]]],
    [[2, [], 0, 0, [b"\x01"]]],
    [[2, [], 0, 0, [b"\xc1\x01"]]],
    [[2, [b"\xa1t"], 0, 0, []]],
    [[2, [b"\xa4long"], 299, 1, [b"\xdd\xff\xff\xff\xff"] * 99]],
    [[3, [b"\xa1t"], 0, 99, b""]],
    [[3, [b"\xa1t"], -1, 0, b""]],
    [[3, [b"\xa1t"], 0, 0, "x"]],
    [[3, [b"\xa1t"], 0, 1, b"\xff"]],
    [[3, [b"\xa1t"], None, 0, b""]],
    [[3, [b"\xa1n"], 0, 0, b"x"]],
    [[3, [b"\xa1a"], 0, 0, b"x"]],
    [[4, [], 0]],
    [[99, []]],
    [["0", [], b"\x01"]],
    [[True, [], b"\x01"]],
    [[-1, [], b"\x01"]],
]


@pytest.mark.parametrize("ops", HOSTILE_OPS, ids=lambda ops: repr(ops)[:50])
def test_hostile_ops_are_applied_or_corrupt(ops):
    tree = encode(STATE)
    with contextlib.suppress(Corrupt, Invalid):
        changed = tree.apply(payload.read_delta(compression.squeeze(P(ops))))
        assert type(changed.root) is bytes
        with contextlib.suppress(Corrupt, Invalid):
            decode(changed)


json_like = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 5), st.floats(), st.text(max_size=3), st.binary(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=12,
)
steps = st.one_of(st.integers(-1, 3), st.sampled_from([b"\xa1a", b"\xa1t", b"\xa1b", b"\x05", b"\xa4long", b"\xa1s"]))
near_ops = st.tuples(
    st.integers(0, 4),
    st.lists(steps, max_size=3),
    st.one_of(json_like, st.integers(-1, 5)),
    st.one_of(json_like, st.integers(-1, 5)),
    st.one_of(json_like, st.lists(st.binary(max_size=6), max_size=3)),
    json_like,
).flatmap(lambda parts: st.integers(1, 6).map(lambda n: list(parts[:n])))


@given(st.one_of(json_like, st.lists(near_ops, max_size=3)))
def test_random_ops_are_applied_or_corrupt(ops):
    with contextlib.suppress(Corrupt, Invalid):
        changed = encode(STATE).apply(payload.read_delta(b"\0" + P(ops)))
        assert type(changed.root) is bytes
        decode(changed)


@given(
    st.one_of(
        st.binary(max_size=40), json_like.map(P), st.tuples(st.binary(max_size=9), json_like).map(lambda v: P(list(v)))
    )
)
@fewer(2)
def test_random_rows_are_a_state_or_corrupt(row):
    for stored in (row, b"\0" + row, compression.squeeze(row)):
        for read in (
            lambda data: payload.read_base(data, fresh_nodes())[0],
            lambda data: encode(STATE).apply(payload.read_delta(data)),
        ):
            with contextlib.suppress(Corrupt, Invalid):
                tree = read(stored)
                assert type(tree.root) is bytes
                decode(tree)


@pytest.mark.parametrize(
    "row",
    [
        [b"\x01", [[10**12, b""]]],
        [b"\x01", [[b"S", 10**12]]],
        [b"\x01", [[b"S"]]],
        [b"\x01", 5],
        [b"\x01", b"abc"],
        [b"\x01", {"a": 1}],
        [b"", []],
        ["\x01", []],
        [[1], []],
        [b"\x01"],
        [msgpack.ext(msgpack.REF, P([0, bytes(32), 1, {}])), []],
        [msgpack.ext(msgpack.REF, P([0, bytes(32), 1, 1])), []],
        [msgpack.ext(msgpack.TUPLE, b"\x91" * 1100), []],
    ],
    ids=lambda row: repr(row)[:40],
)
def test_a_damaged_base_is_corrupt(row):
    with pytest.raises(Corrupt):
        decode(payload.read_base(b"\0" + P(row), fresh_nodes())[0])


def forged(kind, data, found):
    digest = nodes.digest_of(kind, data)
    found[digest] = nodes.Node(kind, data)
    return digest


@pytest.mark.parametrize("length", [0, 1, 5, 10**15])
@pytest.mark.parametrize("levels", [1, 2, 3, 39, 41, 5000])
def test_chunks_that_lie_about_themselves_are_read_or_corrupt(levels, length):
    found = {}
    digest = forged(nodes.LEAF, P(["a", "b", "c"]), found)
    for _ in range(min(levels, 60) - 1):
        digest = forged(nodes.INNER, P([[digest, length, 3, None]]), found)
    code = forged(nodes.SPINE, P([0, None, [[[digest, length, 3, None]]] + [[]] * (levels - 1), b"\x90"]), found)
    rep = bytes(nodes.encode_ref(msgpack.LIST, code, length, 3))
    for ops in ([[SPLICE, [], 0, 0, [b"\x01"]]], [[CUT, [0]]], [[SET, [2], b"\x01"]], [[SPLICE, [], 1, 2, []]], []):
        tree = Tree(nodes.measured(rep), fresh_nodes(found))
        with contextlib.suppress(Corrupt, Invalid):
            decode(tree.apply(ops))


@given(values)
@fewer(4)
def test_checkpoint_bytes_load_or_raise_an_error(value):
    with backtrail.open("memory://") as store:
        data = store.thread("t").save({"v": value}, label="é\ud800", tags=["x"], metadata={"k": (1,)}).to_bytes()
    rng = random.Random(len(data))
    assert same(backtrail.Checkpoint.from_bytes(data).state, {"v": value})
    for _ in range(20):
        changed = bytearray(data)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(Error):
            found = backtrail.Checkpoint.from_bytes(bytes(changed))
            assert same(found.state, {"v": value})
    with contextlib.suppress(Error):
        backtrail.Checkpoint.from_bytes(data[: rng.randrange(len(data))])


@pytest.mark.hypothesis
def apply_from_the_root(tree, ops, nodes=None, place=None, apply=Tree.apply):
    """Apply ops without the place that the edit has found."""
    assert place is not None
    return apply(tree, ops, nodes)


@given(
    items=st.lists(
        st.one_of(st.text(max_size=400), st.binary(max_size=3000), st.dictionaries(st.text(max_size=3), st.integers())),
        max_size=40,
    )
)
def test_appends_ops_and_saves_give_equal_trees(items):
    with backtrail.open("memory://") as store, backtrail.open("memory://") as another:
        quick, slow = store.thread("t"), another.thread("t")
        for thread in (quick, slow):
            thread.save({"a": 1, "list": ["x" * 5000], "z": {}})
        for item in items:
            made = quick.append("list", item)
            with mock.patch.object(Tree, "apply", apply_from_the_root):
                other = slow.append("list", item)
            assert (made.root, made.size, made.stored) == (other.root, other.size, other.stored)
        whole = {"a": 1, "list": ["x" * 5000, *items], "z": {}}
        assert quick.load().state == whole
        assert store.thread("whole").save(whole).root == quick.load().root
        assert store.verify().ok


def test_list_and_dict_may_share_a_leaf():
    parts = [msgpack.pack(part) for at in range(20) for part in (f"key {at}", at)]
    pairs = msgpack.pairs(parts)
    node = nodes.Node(nodes.LEAF, chunked.array_of(pairs, mapping=True))
    for _ in range(2):
        assert chunked.leaf_entries(node, mapping=True) == pairs
        assert chunked.leaf_entries(node, mapping=False) == parts
        assert chunked.leaf_entries(node, 3, 5, mapping=True) == pairs[3:5]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_changes_at_one_place_give_the_right_root(depth):
    """The containers around the place are short at first, then long, and short again."""
    path = ".".join("abc"[:depth])

    def around(value, filler):
        for key in reversed("abc"[:depth]):
            value = {"first": 1, key: value, (2, 3): None} if key == "b" else {"x": filler, key: value, "last": [1]}
        return value

    with backtrail.open("memory://") as store, backtrail.open("memory://") as whole:
        thread, again = store.thread("t"), whole.thread("t")
        filler = "f" * 1500
        items, value = [], []
        thread.save(around([], filler))
        for n in [*range(0, 400, 7), *range(1000, 1010)]:
            items = [*items, "y" * n]
            made = thread.append(path, items[-1])
            assert made.root == again.save(around(items, filler)).root
        for value in ("", "v" * 900, "w" * 2600, "v" * 3000, "short", ["l"] * 2000, None):
            made = thread.set(path, value)
            assert made.root == again.save(around(value, filler)).root
        assert store.thread("t").load().state == around(value, filler)
        assert store.verify().ok


def test_place_of_a_change_is_not_used_in_other_trees(tmp_path):
    """Another process moves the key in the dict between two appends."""
    with backtrail.open(tmp_path / "s.db") as store, backtrail.open(tmp_path / "s.db") as process:
        thread, other = store.thread("t"), process.thread("t")
        thread.save({"a": 1, "list": ["x" * 5000], "z": {}})
        thread.append("list", 1)
        other.delete_at("a")
        other.set("b", "y" * 300)
        thread.append("list", 2)
        with process.thread("t").step() as state:
            state["a"] = state.pop("list")
            state["list"] = []
        thread.append("list", 3)
        assert thread.load().state == {"z": {}, "b": "y" * 300, "a": ["x" * 5000, 1, 2], "list": [3]}


def test_an_equal_path_of_other_steps_is_another_path():
    """True is no index, but it equals 1."""
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save([[], []])
        thread.append((1,), "x")
        with pytest.raises(NotFound):
            thread.append((True,), "y")
        assert thread.load().state == [[], ["x"]]


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(3, 9))])
def test_replaced_entries_leave_the_tree_of_the_value(kind, seed):
    """Entries of any length, most of them near the limits of leaves, are replaced by shorter and longer ones."""
    rng = random.Random(seed)
    size = rng.choice((20, 60, 400))
    items = {f"key {at}": "x" * rng.randrange(size) for at in range(rng.choice((300, 1_500)))}
    state = items if kind is dict else list(items.values())
    tree = encode(state)
    for _ in range(60):
        at = rng.randrange(len(items))
        value = rng.choice("abc") * rng.choice((rng.randrange(size), rng.randrange(3_000)))
        step = f"key {at}" if kind is dict else at
        state[step] = value
        tree = tree.apply([[SET, [rep_in(tree, step) if kind is dict else at], Encoder(tree.nodes, TYPES).rep(value)]])
        assert tree.root == encode(state).root
        assert tree.size == encode(state).size
