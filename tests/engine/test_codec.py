"""Values of any size round trip as trees; a tree depends on its value alone."""

import contextlib
import datetime as dt
import socket
import time

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.engine.schema.registry import Record
from backtrail.engine.tree import chunked, msgpack, nodes
from backtrail.engine.tree import text as texts
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.nodes import Node, as_ref, digest_of, encode_ref
from backtrail.engine.tree.tree import Tree
from backtrail.errors import Corrupt, Error, Invalid
from tests.support.lengths import fewer, lengths
from tests.support.strategies import (
    TYPES,
    bulky,
    decode,
    encode,
    form,
    fresh_nodes,
    long_texts,
    on_deep_stack,
    same,
    sizes,
    small_items,
    stored_again,
    stretched,
    values,
)


@pytest.fixture(params=["real", "small"], scope="module", autouse=True)
def scale(request):
    with sizes(request.param) as name:
        yield name


class NeverFast(Encoder):
    """Encodes every value part by part."""

    def fast(self, _):
        return None

    inline = fast

    def short(self, values):
        return [None] * len(values)


def comes_back(value):
    made = encode(value)
    assert form(decode(made)) == form(value)
    read = stored_again(made)
    assert form(decode(read)) == form(value)
    assert read.size == made.size
    return made


# ---- exact ----------------------------------------------------------------------------------------------------------


@given(values)
def test_any_plain_value_comes_back_with_its_types(value):
    comes_back(value)


@given(bulky)
@fewer(3)
def test_a_bulky_value_comes_back_through_a_store(value):
    made = comes_back(value)
    assert encode(value).root == made.root


@given(st.lists(st.one_of(small_items, long_texts), max_size=30), values)
@fewer(3)
def test_big_part_does_not_change_the_form_of_neighbours(items, value):
    comes_back([value, *items, {"k": value, "items": tuple(items)}, value])


@given(bulky)
@fewer(3)
def test_root_does_not_depend_on_the_way_of_encoding(value):
    """Encode by the fast path, part by part, and after another value."""
    fast = encode(value)
    nodes_ = fresh_nodes()
    encoder = Encoder(nodes_, TYPES)
    encoder.rep([1, "x", {"y": b"z"}])
    encoder.__class__ = NeverFast
    slow = encoder._text(value) or encoder._atom(value) or encoder._container(value)
    assert bytes(slow) == bytes(fast.rep)
    assert nodes.size_of(slow) == fast.size


def fillers(length):
    """Values with about this many bytes."""
    yield "a" * length
    yield b"a" * length
    yield bytearray(length)
    yield "a" * (length - 3) + "\ud800"
    yield "é" * (length // 2)
    yield [0] * length
    yield (0,) * length
    yield ["a" * (length - 10), 1, 2, 3]
    yield {"k": "a" * (length - 6), "x": 1}
    yield {1: "a" * (length - 6), "x": 1}
    yield set(range(length // 2))
    yield frozenset(["a" * (length - 5), 1])
    yield Record("S", 1, "dataclass", {"f": "a" * (length - 8)})
    yield [["a" * (length - 6)], {"b": ["c" * (length - 6)]}]
    yield 2 ** (8 * length)
    yield {"a" * length: 1}
    yield {("a" * length, 1): 1}


@pytest.mark.parametrize("away", [-12, *range(-5, 6)])
def test_values_around_the_inline_limit_have_one_form(away):
    for value in fillers(nodes.INLINE + away):
        made = comes_back(value)
        slow = Encoder(fresh_nodes(), TYPES)
        slow.__class__ = NeverFast
        assert slow.rep(value) == made.rep
        comes_back({"in": [value, (value, 1)], "beside": "x"})


def test_value_is_inline_up_to_the_limit():
    def is_inline(value):
        return as_ref(encode(value).rep) is None

    fits = {
        "str": lambda n: "a" * (n - (3 if n > 258 else 2)),
        "bytes": lambda n: b"a" * (n - (3 if n > 258 else 2)),
        "bytearray": lambda n: bytearray(n - (4 if n > 258 else 3)),
        "entries of a list": lambda n: [0] * n,
        "entries of a dict": lambda n: {"k" * 20: "v" * (n - 21 - (3 if n > 280 else 2))},
        "entries of a tuple": lambda n: (0,) * n,
    }
    for name, make in fits.items():
        assert is_inline(make(nodes.INLINE)), name
        assert not is_inline(make(nodes.INLINE + 1)), name


@pytest.mark.parametrize("away", [-2, -1, 0, 1])
@pytest.mark.parametrize("unit", ["a", "line\n", "ab\0", "é\n", "\ud800\n", b"z", b"\0", b"\n\n"], ids=repr)
def test_texts_around_the_limits_of_pieces_come_back(unit, away):
    for limit in (nodes.INLINE, texts.PIECE_MAX, 2 * texts.PIECE_MAX, texts.PIECE_MAX + texts._PIECE_MIN):
        value = stretched(
            unit, (limit + away) // len(unit.encode("utf-8", "surrogatepass") if type(unit) is str else unit)
        )
        comes_back(value)
        if type(value) is bytes:
            comes_back(bytearray(value))


@pytest.mark.parametrize("away", range(-2, 3))
def test_containers_around_the_limits_of_leaves_come_back(away):
    for limit in (chunked.LEAF_MIN, chunked.LEAF_TARGET, chunked.LEAF_MAX, chunked.LEAF_MAX + chunked.LEAF_MIN):
        comes_back(["x" * (limit + away), 1])
        comes_back([f"{n:059}" for n in range((limit + away) // 61)])
        comes_back({f"{n:040}": n % 7 for n in range((limit + away) // 43)})
        comes_back(dict.fromkeys(range((limit + away) // 54), "x" * 50))
        comes_back({f"{n:051}" for n in range((limit + away) // 53)})


def test_a_key_of_any_size_comes_back():
    for length in (10, nodes.INLINE - 1, nodes.INLINE, nodes.INLINE + 1, 3 * chunked.LEAF_MAX):
        comes_back({"k" * length: 1, ("t" * length, b"b" * length): 2, 2 ** (8 * length): 3, "z": 4})
        comes_back({f"{n:03}" + "k" * (length // 50): n for n in range(80)})


def test_slow_path_keys_round_trip_at_any_size():
    for length in (1, nodes.INLINE, 3 * chunked.LEAF_MAX):
        comes_back({"\ud800" * length: 1, ("t" * length, ("\udfff", b"x" * length)): 2, frozenset(["a", "\ud800"]): 3})


def test_key_is_refused_beyond_the_deepest_nesting():
    for depth in (10, 60, 64, 100, 130, 200, 1000):
        key = "\ud800" if depth % 3 else "a"
        for _ in range(depth):
            key = (key,)
        try:
            made = encode([{key: 1}])
        except Invalid:
            assert depth > 60
            continue
        assert [*decode(made)[0]] == [key]
        assert [*on_deep_stack(300, lambda made=made: decode(made))[0]] == [key]


def test_copies_of_a_part_share_nodes():
    part = [f"{n:059}" for n in range(chunked.LEAF_MAX // 20)]
    one, many = encode({"a": part}), encode({"a": part, "b": part, "c": [part] * 9})
    assert len(many.nodes.fresh) <= len(one.nodes.fresh) + 3
    assert same(decode(many), {"a": part, "b": part, "c": [part] * 9})
    assert many.size > 9 * one.size


@pytest.mark.parametrize("value", [{"n": 2**70}, {"t": "\ud800"}, {1: "a"}, {"\ud800": 1}, {}, {"b": b"x"}], ids=ascii)
def test_short_flat_dict_comes_back_as_an_item(value):
    comes_back([value])


# ---- or loud --------------------------------------------------------------------------------------------------------


def test_socket_deep_inside_is_refused_with_its_path():
    with socket.socket() as sock:
        messages = [{"role": "user", "when": dt.datetime(2020, 1, 1), "n": n} for n in range(300)]
        messages[203]["tools"] = (1, {"conn": [None, sock]})
        with pytest.raises(Invalid) as caught:
            encode({"plan": "x", "messages": messages})
    assert caught.value.path == "state.messages[203].tools[1].conn[1]"
    assert caught.value.code == "invalid.value"
    assert "socket.socket" in str(caught.value)


@pytest.mark.parametrize("kind", [type("Text", (str,), {}), type("Number", (int,), {}), ormsgpack.Fragment, object])
def test_part_of_a_flat_dict_is_refused(kind):
    part = kind() if kind is object else kind(b"1")
    with pytest.raises(Invalid):
        Encoder(fresh_nodes(), TYPES, ("items",)).part(0, {"part": part})


@pytest.mark.parametrize("root", [("messages",), ("a", 3, "b"), (0,), ()], ids=str)
def test_path_of_an_error_starts_at_the_root_path(root):
    encoder = Encoder(fresh_nodes(), TYPES, root)
    with pytest.raises(Invalid) as caught:
        encoder.rep([1, {"x": object()}])
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*root, 1, "x"))
    assert caught.value.path == f"state{steps}"


# ---- deep nesting ---------------------------------------------------------------------------------------------------


def depth_of(value):
    found = 0
    while type(value) in (list, dict, tuple):
        value = next(iter(value.values())) if type(value) is dict else value[0]
        found += 1
    return found


@pytest.mark.parametrize("every", lengths(2, 1))
@pytest.mark.parametrize("bulk", [0, 1], ids=["alone", "each level with a node of its own"])
@pytest.mark.parametrize("wraps", ["l", "d", "t", "i", "ld", "lt", "ldti"])
def test_nesting_is_exact_or_refused_at_every_depth(wraps, bulk, every):
    filler = ["x" * (nodes.INLINE + 10)] * bulk + ["y" * (nodes.INLINE - 50), "z" * 60] * bulk
    make = {
        "l": lambda v: [v, *filler],
        "t": lambda v: (v, *filler),
        "d": lambda v: {"k": v, **{str(n): f for n, f in enumerate(filler)}},
        "i": lambda v: {1: v, **{n + 2: f for n, f in enumerate(filler)}},
    }
    kept, refused = 0, []
    for depth in [1, 7, 2, 30, 60, 63, 64, 100, 65, 128, 3000, 260][::every]:
        value = 7
        for at in range(depth):
            value = make[wraps[at % len(wraps)]](value)
        try:
            made = encode(value)
        except Invalid as error:
            refused.append((depth, str(error)))
            continue
        kept = max(kept, depth)
        for tree in (made, stored_again(made)):
            assert depth_of(decode(tree)) == depth
            again = on_deep_stack(300, lambda tree=tree: decode(tree))
            assert depth_of(again) == depth
            assert encode(again).root == made.root
    assert kept >= 60
    assert all(depth > 60 and "nested" in why for depth, why in refused)


def test_deep_value_can_be_anywhere_in_a_big_one():
    deep = 7
    for _ in range(15):
        deep = ({"k": [deep]},)
    state = {"list": [*range(9000), deep, *range(9000)], "dict": {str(n): n for n in range(5000)} | {"deep": deep}}
    comes_back(state)


def test_value_that_contains_itself_is_refused_anywhere(scale):
    loop = {"n": 1, "big": list(range(6000))}
    loop["again"] = [1, (loop,)]
    for state in (loop, [loop], {"a": {"b": [loop, loop]}}):
        with pytest.raises(Invalid, match="contains itself") as caught:
            encode(state)
        assert caught.value.path.endswith("again[1][0]")
        with pytest.raises(Invalid):
            on_deep_stack(300, lambda state=state: encode(state))
        with pytest.raises(Invalid):
            on_deep_stack(700, lambda state=state: Encoder(fresh_nodes(), TYPES, ("x",)).rep(state))


# ---- hostile nodes --------------------------------------------------------------------------------------------------

P = ormsgpack.packb


def ref(code, digest, length=10, size=100):
    return bytes(encode_ref(code, digest, length, size))


class Forge:
    """Handmade nodes with valid digests."""

    def __init__(self):
        self.nodes = {}

    def add(self, kind, data):
        digest = digest_of(kind, data)
        self.nodes[digest] = Node(kind, data)
        return digest

    def spine(self, code=msgpack.LIST, attrs=None, levels=(), tail=b"\x90"):
        return ref(code, self.add(nodes.SPINE, P([code, attrs, list(levels), tail])))

    def read(self, rep):
        started = time.monotonic()
        source = fresh_nodes(self.nodes)
        try:
            return Decoder(source, TYPES).value(rep)
        finally:
            assert time.monotonic() - started < 10


def forged_spines():  # noqa: C901 - a long list
    leaf = P(["a", "b"])
    for kind, data in ((nodes.LEAF, leaf), (nodes.TEXT, b"abc"), (nodes.INNER, P([]))):
        forge = Forge()
        digest = forge.add(kind, data)
        for code in range(-1, 22):
            for length in (0, 2, 3, texts.PIECE_MAX + 1, 2**63):
                yield f"ref {code} to {kind!r} of {length}", forge, ref(code, digest, length)
        for chunk in (
            [digest, 2, 2, None],
            [digest, 10**12, 5, b"abc"],
            [digest, -1, -1, None],
            [digest, "2", 2, None],
            [digest, 2, 2],
            [digest[:5], 2, 2, None],
            [5, 2, 2, None],
            [bytes(32), 2, 2, None],
            5,
            {},
        ):
            for levels in ([[chunk]], [[chunk], []], [[], [chunk], [], []], [chunk], [[chunk] * 50] * 3):
                for code in (msgpack.LIST, msgpack.DICT):
                    yield f"{code} {chunk!r:.40} {len(levels)}", forge, forge.spine(code, None, levels)
    forge = Forge()
    for name, parts in {
        "nothing": b"",
        "a number": P(5),
        "three": P([0, None, []]),
        "five": P([0, None, [], b"\x90", 1]),
        "levels a number": P([0, None, 5, b"\x90"]),
        "levels bytes": P([0, None, b"\x90", b"\x90"]),
        "levels a map": P([0, None, {"a": 1}, b"\x90"]),
        "tail a list": P([0, None, [], []]),
        "tail a str": P([0, None, [], "\x01"]),
        "tail a huge count": P([0, None, [], b"\xdd\xff\xff\xff\xff"]),
        "tail not an array": P([0, None, [], b"\x05"]),
        "tail an empty str": P([0, None, [], b"\xa0"]),
        "tail empty": P([0, None, [], b""]),
        "tail with a key alone": P([4, None, [], b"\x91\xa1a"]),
        "code a list": P([[], None, [], b"\x90"]),
        "code a str": P([18, None, [], b"\x90"]),
        "record without attributes": P([5, None, [], b"\x90"]),
        "record with two attributes": P([5, ["S", 1], [], b"\x90"]),
        "record with a map as schema": P([5, [{}, 1, "x"], [], b"\x90"]),
        "list with attributes": P([0, ["S", 1, "x"], [], b"\x90"]),
        "ten thousand empty levels": P([0, None, [[]] * 10_000, b"\x90"]),
        "deep": P([0, None, [], b"\x91" * 900 + b"\x01"]),
    }.items():
        digest = forge.add(nodes.SPINE, parts)
        for code in (msgpack.LIST, msgpack.DICT, msgpack.RECORD, msgpack.SET):
            yield f"spine of {name} as {code}", forge, ref(code, digest)
    for pieces in ([], 5, [[b"", 1]], [[bytes(32), 1]], [5], [[forge.add(nodes.TEXT, b"abc"), 7]], {}, [[digest, 3]]):
        digest = forge.add(nodes.PIECES, P(pieces))
        yield f"pieces {pieces!r:.30}", forge, ref(msgpack.STR, digest, texts.PIECE_MAX + 1)
    for payload in (
        b"",
        P([]),
        P([0, bytes(32), 1]),
        P([0, "x" * 32, 1, 1]),
        P([0, bytes(32), None, 1]),
        P([0, bytes(32), 1, "1"]),
    ):
        yield f"payload {payload!r:.30}", forge, msgpack.ext(msgpack.REF, payload)


def test_forged_nodes_are_a_value_or_corrupt():
    tried = 0
    for name, forge, rep in forged_spines():
        for data in (rep, b"\x91" + rep, msgpack.ext(msgpack.TUPLE, b"\x92\x01" + rep)):
            tried += 1
            try:
                forge.read(data)
            except (Corrupt, Invalid):
                continue
            except BaseException as error:  # noqa: BLE001
                pytest.fail(f"{name}: {error!r}")
    assert tried > 1000


def test_forged_nodes_have_children_or_are_corrupt():
    for name, forge, _ in forged_spines():
        for node in forge.nodes.values():
            for kind in (nodes.SPINE, nodes.LEAF, nodes.INNER, nodes.TEXT, nodes.PIECES, b"", b"?"):
                try:
                    found = Node(kind, node.data).children()
                except Corrupt:
                    continue
                assert all(type(digest) is bytes for digest in found), name


@given(st.sampled_from([b"S", b"L", b"I", b"T", b"P", b"", b"X"]), st.binary(max_size=80))
def test_random_nodes_have_children_or_are_corrupt(kind, data):
    with contextlib.suppress(Corrupt):
        Node(kind, data).children()
    forge = Forge()
    digest = forge.add(kind, data)
    for code in (msgpack.LIST, msgpack.DICT, msgpack.STR, msgpack.BYTES, msgpack.RECORD):
        for length in (3, texts.PIECE_MAX + 1):
            with contextlib.suppress(Corrupt, Invalid):
                forge.read(ref(code, digest, length))


@given(bulky, st.data())
@fewer(3)
def test_changed_byte_in_a_node_names_the_chunk(value, data):
    made = encode(value)
    if not made.nodes.fresh:
        return
    digests = sorted(made.nodes.fresh)
    digest = digests[data.draw(st.integers(0, len(digests) - 1))]
    node = made.nodes.fresh[digest]
    stored = bytearray(b"\0" + node.kind + node.data)
    stored[data.draw(st.integers(1, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    def read(wanted):
        return {
            d: bytes(stored) if d == digest else b"\0" + n.kind + n.data for d in wanted for n in [made.nodes.fresh[d]]
        }

    damaged = Tree(bytes(made.rep), nodes.Nodes(read, nodes.Cache(0)))
    with pytest.raises(Corrupt) as caught:
        decode(damaged)
    assert digest.hex()[:12] in str(caught.value)


@given(bulky, st.data())
@fewer(3)
def test_a_missing_node_is_corrupt(value, data):
    made = encode(value)
    reachable = dict(made.nodes.fresh)
    if reachable:
        del reachable[data.draw(st.sampled_from(sorted(reachable)))]
        with pytest.raises(Corrupt):
            decode(Tree(bytes(made.rep), fresh_nodes(reachable)))


def test_references_nested_deeper_than_any_value_are_corrupt():
    forge = Forge()
    rep = b"\x01"
    for _ in range(400):
        rep = forge.spine(tail=b"\x91" + rep)
    with pytest.raises(Corrupt, match="deeper"):
        forge.read(rep)


def test_a_text_whose_pieces_do_not_fit_is_corrupt():
    text = stretched("line\n", 3 * texts.PIECE_MAX)
    made = encode(text)
    found = nodes.as_ref(made.rep)
    listing = ormsgpack.unpackb(made.nodes.get(found.digest, nodes.PIECES))
    forge = Forge()
    forge.nodes.update(made.nodes.fresh)
    assert forge.read(made.rep) == text
    for bad in (
        listing[:-1],
        listing + listing[-1:],
        [[d, n + 1] for d, n in listing],
        [[found.digest, n] for _, n in listing],
    ):
        digest = forge.add(nodes.PIECES, P(bad))
        with pytest.raises(Corrupt):
            forge.read(ref(msgpack.STR, digest, found.length))


def test_every_error_of_a_load_says_what_it_is():
    forge = Forge()
    with pytest.raises(Corrupt) as caught:
        forge.read(ref(msgpack.LIST, bytes(32)))
    assert caught.value.code == "corrupt.chunk"
    assert isinstance(caught.value, Error)
