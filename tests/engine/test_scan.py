"""A plain save detects every change, and reads no unchanged leaf."""

import copy
from dataclasses import dataclass, field

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import chunked, msgpack, nodes, scan
from backtrail.engine.tree import tree as tree_ops
from backtrail.engine.tree.encode import Packer
from backtrail.engine.tree.nodes import LEAF
from backtrail.errors import Corrupt, Invalid
from backtrail.store import Store
from tests.support.lengths import fewer
from tests.support.strategies import TYPES, decode, encode, same, sizes, small_items, values


@pytest.fixture(params=["real", "small"], scope="module", autouse=True)
def scale(request):
    with sizes(request.param) as name:
        yield name


def messages(count, start=0):
    return [{"role": "user", "content": f"message {at} " + "some words " * 40, "n": at} for at in range(start, count)]


def stored(tree, cache=1 << 24, reads=None):
    """A tree with all nodes in a backend; `reads` collects the digests of reads."""
    chunks = {digest: b"\0" + node.kind + node.data for digest, node in tree.nodes.fresh.items()}

    def read(digests):
        if reads is not None:
            reads.extend(digests)
        return {digest: chunks[digest] for digest in digests}

    return tree._replace(rep=nodes.measured(bytes(tree.rep)), nodes=nodes.Nodes(read, nodes.Cache(cache)))


def scanned(before, value, types=TYPES):
    """Scan a state against a tree, twice: with an empty cache, and with the cache of the first scan."""
    expected = encode(value, types=types)
    for _ in range(2):
        ops, needed = scan.changes(before, value, types)
        made = before._replace(nodes=needed).apply(ops)
        assert made.root == expected.root
        assert made.size == expected.size
    return ops


# ---- every change is found -------------------------------------------------------------------------------------------


@given(values, values)
def test_any_state_becomes_any_other(old, new):
    scanned(stored(encode(old)), new)


@st.composite
def edited(draw):
    """A long state, and the state after a few random edits."""
    items = draw(st.lists(small_items, min_size=1, max_size=30))
    repeat = draw(st.integers(1, 20))
    state = {"a": [copy.deepcopy(item) for _ in range(repeat) for item in items], "n": 1, "b": {"x": 1}}
    state["d"] = {f"key {at}": copy.deepcopy(item) for at, item in enumerate(items * repeat)}
    new = copy.deepcopy(state)
    for _ in range(draw(st.integers(0, 4))):
        where = draw(st.sampled_from(["a", "d"]))
        steps = list(range(len(new["a"]))) if where == "a" else list(new["d"])
        step = draw(st.sampled_from(steps)) if steps else None
        what = draw(st.sampled_from(["set", "cut", "put", "end", "stop", "beside"]))
        item = draw(small_items)
        if what == "beside":
            new[draw(st.sampled_from(["n", "b", "c"]))] = item
        elif what == "end" or step is None:
            new["a"].append(item)
            new["d"]["new"] = item
        elif what == "set":
            new[where][step] = item
        elif what == "cut":
            del new[where][step]
        elif what == "put" and where == "a":
            new["a"].insert(step, item)
        elif what == "put":
            new["d"][step] = new["d"].pop(step)
        elif where == "a":
            del new["a"][step:]
    return state, new


@fewer(2)
@given(edited())
def test_edits_of_long_lists_and_dicts_are_found(pair):
    old, new = pair
    scanned(stored(encode(old)), new)
    scanned(stored(encode(old), cache=0), new)


LOOKALIKES = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    (b"ab", bytearray(b"ab")),
    ((1, 2), [1, 2]),
    ({1}, frozenset({1})),
    ("a", b"a"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1: "x"}, {True: "x"}),
]


@pytest.mark.parametrize(("one", "other"), LOOKALIKES)
def test_similar_values_differ_in_cached_and_unread_leaves(one, other):
    for old, new in ((one, other), (other, one)):
        for place in (0, 17, 99):
            state = {"list": messages(100), "dict": {str(at): at for at in range(100)}, "tail": [1]}
            state["list"][place]["n"] = old
            state["dict"][str(place)] = old
            before = stored(encode(state))
            assert scanned(before, state) == []
            changed = copy.deepcopy(state)
            changed["list"][place]["n"] = new
            changed["dict"][str(place)] = new
            assert scanned(before, changed)


@pytest.mark.parametrize("make", [bytearray, memoryview])
def test_bytes_and_bytearray_are_different_values(make):
    state = [b"some bytes %d" % at for at in range(2_000)]
    before = stored(encode(state))
    scanned(before, state)
    state[3] = make(state[3])
    if make is bytearray:
        assert scanned(before, state)
    else:
        with pytest.raises(Invalid, match=r"state\[3\]"):
            scan.changes(before, state, TYPES)


def test_ext_objects_are_no_records():
    @dataclass
    class Point:
        x: int

    types = Types([Point])
    state = [Point(at) for at in range(3_000)]
    before = stored(encode(state, types=types))
    assert scan.changes(before, state, types)[0] == []
    assert scan.changes(before, state, types)[0] == []
    packed = Packer(types).fast(state[3])
    changed = [*state[:3], ormsgpack.Ext(*msgpack.split_ext(packed)), *state[4:]]
    with pytest.raises(Invalid, match=r"state\[3\]"):
        scan.changes(before, changed, types)
    everything = [ormsgpack.Ext(*msgpack.split_ext(Packer(types).fast(item))) for item in state]
    with pytest.raises(Invalid, match=r"state\[0\]"):
        scan.changes(before, everything, types)


@pytest.mark.parametrize("make", [lambda: ormsgpack.Ext(15, b"1.5"), lambda: ormsgpack.Fragment(b"\x01")])
def test_ext_and_fragment_are_refused_in_a_changed_state(make):
    state = [at if at % 2 else __import__("decimal").Decimal("1.5") for at in range(4_000)]
    before = stored(encode(state))
    scanned(before, state)
    for place in (2, 3):
        changed = list(state)
        changed[place] = make()
        with pytest.raises(Invalid, match=rf"state\[{place}\]"):
            scan.changes(before, changed, TYPES)


def test_leaf_that_is_another_kind_of_node_is_corrupt(scale):
    before = encode(messages(100))
    digest = nodes.as_ref(before.rep).digest
    chunk = nodes.Chunk.make(digest, 1, 500, None)
    forged = chunked.Spine(msgpack.LIST, None, ([], [chunk])).close(before.nodes)
    with pytest.raises(Corrupt, match="another kind"):
        scan.changes(tree_ops.Tree(forged, before.nodes), ["a"], TYPES)


def test_error_names_the_path_of_the_bad_value():
    state = {"list": messages(100), "dict": {str(at): [at] for at in range(3_000)}}
    before = stored(encode(state))
    for path, place in [("state.list[5].n", ("list", 5, "n")), ("state.list[99].n", ("list", 99, "n"))]:
        changed = copy.deepcopy(state)
        changed[place[0]][place[1]][place[2]] = object()
        with pytest.raises(Invalid) as caught:
            scan.changes(before, changed, TYPES)
        assert caught.value.path == path
    state["dict"]["7"].append(print)
    with pytest.raises(Invalid) as caught:
        scan.changes(before, state, TYPES)
    assert caught.value.path == "state.dict.7[1]"


def test_a_state_that_contains_itself_is_refused():
    state = {"list": messages(100)}
    before = stored(encode(state))
    state["list"][4]["n"] = state
    with pytest.raises(Invalid, match="contains itself"):
        scan.changes(before, state, TYPES)


@dataclass(eq=False)
class Own:
    """Equal to itself alone."""

    x: int


@pytest.mark.parametrize("count", [2, 300])
def test_change_at_one_of_two_equal_keys_is_detected(count):
    types = TYPES.for_state(Own)
    state = {"d": {Own(1): [f"value {at}"] for at in range(count)}}
    before = stored(encode(state, types=types))
    for place in (1, count - 1):
        state["d"][list(state["d"])[place]].append("more")
        assert scanned(before, state, types)


@dataclass
class Message:
    content: str
    n: int


@dataclass
class State:
    messages: list[Message] = field(default_factory=list)
    step: int = 0


def test_typed_states_are_scanned_field_by_field():
    types = TYPES.for_state(State)
    state = State([Message("some words " * 10, at) for at in range(500)])
    before = stored(encode(state, types=types))
    assert scanned(before, state, types) == []
    state.messages.append(Message("more", 500))
    state.step = 1
    kinds = [(op[0], len(op[1])) for op in scanned(before, state, types)]
    assert len(kinds) == 2
    state.messages[250].n = -1
    assert len(scanned(before, state, types)) == 3


def test_long_items_are_compared_by_their_digests():
    state = [{"content": f"{at} " + "long " * 2_000} for at in range(60)]
    reads = []
    before = stored(encode(state), reads=reads)
    assert scanned(before, state) == []
    state.append({"content": "x" * 10_000})
    assert len(scanned(before, state)) == 1


# ---- what it costs ---------------------------------------------------------------------------------------------------


def kinds_read(tree, reads):
    return {tree.nodes.fresh[digest].kind for digest in reads}


def test_a_scan_with_nothing_at_hand_reads_no_leaf():
    state = {"messages": messages(2_000), "by key": {f"key {at}": at for at in range(5_000)}}
    tree = encode(state)
    reads = []
    before = stored(tree, reads=reads, cache=0)
    state["messages"].append({"role": "user"})
    ops, _ = scan.changes(before, state, TYPES)
    assert len(ops) == 1
    assert reads
    assert LEAF not in kinds_read(tree, reads)


def test_an_edit_reads_the_leaf_that_it_is_in():
    state = {"messages": messages(2_000)}
    tree = encode(state)
    reads = []
    before = stored(tree, reads=reads)
    state["messages"][1_000]["n"] = "changed"
    ops, _ = scan.changes(before, state, TYPES)
    assert len(ops) == 1
    assert sum(tree.nodes.fresh[digest].kind == LEAF for digest in reads) == 1


# ---- dicts -----------------------------------------------------------------------------------------------------------


def records(count):
    return {f"key {at}": {"n": at, "text": f"words {at}"} for at in range(count)}


@pytest.mark.parametrize("count", [5, 100, 3_000])
def test_a_removed_key_is_one_op(count):
    before = stored(encode(records(count)))
    for at in (0, count // 2, count - 1):
        state = records(count)
        del state[f"key {at}"]
        (op,) = scanned(before, state)
        assert op in ([tree_ops.CUT, [msgpack.pack(f"key {at}")]], [tree_ops.SPLICE, [], at, 1, []])


@pytest.mark.parametrize("count", [5, 100, 3_000])
def test_new_keys_are_one_op(count):
    before = stored(encode(records(count)))
    (op,) = scanned(before, records(count + 50))
    assert op[:4] == [tree_ops.SPLICE, [], count, 0]
    assert len(op[4]) == 50


@pytest.mark.parametrize("count", [5, 100, 3_000])
def test_a_changed_value_is_one_op(count):
    before = stored(encode(records(count)))
    for at in (0, count // 2, count - 1):
        state = records(count)
        state[f"key {at}"] = "changed"
        assert scanned(before, state) == [
            [tree_ops.SET, [msgpack.pack(f"key {at}")], msgpack.pack("changed")],
        ]


@pytest.mark.parametrize("count", [5, 30, 3_000])
def test_bytes_in_a_dict_are_not_bytearrays(count):
    state = {f"key {at}": [b"bytes", at] for at in range(count)}
    before = stored(encode(state))
    assert scanned(before, state) == []
    for at in (0, count // 2, count - 1):
        changed = copy.deepcopy(state)
        changed[f"key {at}"][0] = bytearray(b"bytes")
        assert len(scanned(before, changed)) == 1


@pytest.mark.parametrize("count", [5, 30, 3_000])
@pytest.mark.parametrize("kind", [ormsgpack.Ext, ormsgpack.Fragment])
def test_objects_of_the_packer_are_refused_in_a_dict(count, kind):
    state = {f"key {at}": ([at], "tuple") for at in range(count)}
    before = stored(encode(state))
    for at in (0, count // 2, count - 1):
        packed = Packer(TYPES).fast(state[f"key {at}"])
        changed = {**state, f"key {at}": kind(*msgpack.split_ext(packed)) if kind is ormsgpack.Ext else kind(packed)}
        with pytest.raises(Invalid):
            scan.changes(before, changed, TYPES)


def test_alternating_saves_and_appends_give_equal_roots(tmp_path):
    state = {"messages": messages(300), "step": 0}
    with Store(SqliteBackend(tmp_path / "s.db")) as store:
        thread, other = store.thread("t"), store.thread("u")
        thread.save(state)
        for at in range(20):
            state["messages"] += messages(302 + at, 300 + at)
            state["step"] = at
            saved = thread.save(state)
            assert saved.root == other.save(copy.deepcopy(state)).root
            assert same(saved.state, state)


def test_a_scan_leaves_the_state_as_it_is():
    state = {"messages": messages(100)}
    before = stored(encode(state))
    kept = copy.deepcopy(state)
    scanned(before, state)
    assert same(state, kept)
    assert same(decode(before), kept)
