"""Canonical bytes: every value has one encoding and round trips; hostile bytes only make plain data."""

import collections
import contextlib
import datetime as dt
import decimal
import enum
import io
import itertools
import math
import pathlib
import random
import struct
import subprocess
import sys
import threading
import time
import uuid
import zoneinfo
from typing import NamedTuple

import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backtrail.engine.schema.registry import Member, Record, Type, Types
from backtrail.engine.tree import decode, encode, msgpack
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.nodes import INLINE
from backtrail.errors import Corrupt, Invalid
from tests.support.lengths import lengths
from tests.support.strategies import EDGES, TYPES, form, fresh_nodes, hashable_atoms, keys, on_deep_stack, same, values


def pack(value):
    """The bytes of a value, checked to be equal in all ways of encoding."""
    return Encoder(fresh_nodes(), TYPES).rep(value)


def unpack(data):
    return decode.Unpacker(TYPES)(data)


def taken_apart(value):
    """The bytes of a value, without the fast path for the whole value."""
    encoder = Encoder(fresh_nodes(), TYPES)
    return encoder._text(value) or encoder._atom(value) or encoder._container(value)


# ---- exact ----------------------------------------------------------------------------------------------------------


@given(values)
def test_any_plain_value_comes_back_with_its_types(value):
    assert form(unpack(pack(value))) == form(value)


@given(values)
def test_decoded_values_encode_to_the_same_bytes(value):
    data = pack(value)
    assert pack(unpack(data)) == data


@given(values)
def test_fast_and_slow_path_give_equal_bytes(value):
    fast = encode.Packer(TYPES).fast(value)
    if fast is not None:
        assert fast == taken_apart(value)
        assert same(unpack(fast), value)


@given(st.one_of(values, st.lists(values, max_size=3)))
def test_packer_works_after_a_refused_value(value):
    packer = encode.Packer(TYPES)
    before = packer.fast(value)
    assert packer.fast([value, object()]) is None
    assert packer.fast(value) == before


@given(values, values)
def test_bytes_are_equal_exactly_if_values_are(one, other):
    assert (pack(one) == pack(other)) == same(one, other)


CONFUSABLE = [
    [0, 0.0, -0.0, False, decimal.Decimal(0), decimal.Decimal("-0"), decimal.Decimal("0.0"), "0", b"0", None, ""],
    [
        1,
        1.0,
        True,
        decimal.Decimal(1),
        decimal.Decimal("1.0"),
        dt.timedelta(1),
        [1],
        (1,),
        {1},
        frozenset({1}),
        {1: None},
    ],
    [[], (), set(), frozenset(), {}, "", b"", bytearray(), None],
    ["a", b"a", bytearray(b"a"), pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a"), pathlib.Path("a"), ["a"]],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}, [("a", 1), ("b", 2)], {"a": 1.0, "b": 2}, {"a": True, "b": 2}],
    [{1: 0}, {1.0: 0}, {True: 0}, {"1": 0}, {decimal.Decimal(1): 0}, {(1,): 0}, {frozenset({1}): 0}, {b"1": 0}],
    [math.nan, math.inf, -math.inf, decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("Infinity")],
    [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, float(2**63), float(2**64)],
    [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "2020-01-01"],
    [dt.time(1), dt.time(1, fold=1), dt.time(1, tzinfo=dt.UTC), dt.timedelta(hours=1)],
    [
        dt.datetime(2020, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        dt.datetime(2020, 10, 25, 2, 30, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        dt.datetime(2020, 10, 25, 2, 30, tzinfo=dt.timezone(dt.timedelta(hours=2), "CEST")),
        dt.datetime(2020, 10, 25, 2, 30, tzinfo=dt.timezone(dt.timedelta(hours=2), "UTC+02:00 ")),
    ],
    [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))],
    [uuid.UUID(int=1), uuid.UUID(int=1).bytes, str(uuid.UUID(int=1)), 1],
    ["\ud800", "\udc00", "\ud800\udc00", "\U00010000", "?", b"\xed\xa0\x80"],
    [[[1], 2], [[1, 2]], [1, [2]], [1, 2], ([1], 2), [(1,), 2]],
    [
        Record("S", 1, "dataclass", {"a": 1}),
        Record("S", 2, "dataclass", {"a": 1}),
        Record("T", 1, "dataclass", {"a": 1}),
        Record("S", 1, "namedtuple", {"a": 1}),
        {"a": 1},
    ],
    [Member("S", 1, "A", 1), Member("S", 1, "A", True), Member("S", 1, "B", 1), Member("S", 1, None, 1), 1, "A"],
]


@pytest.mark.parametrize("group", CONFUSABLE, ids=lambda group: repr(group[0]))
def test_similar_values_have_different_bytes(group):
    encoded = [pack(value) for value in group]
    assert len(set(encoded)) == len(group)
    for value, data in zip(group, encoded, strict=True):
        assert same(unpack(data), value)
        assert same(unpack(pack([value, {"k": value}])), [value, {"k": value}])


@pytest.mark.parametrize(
    "number",
    [*EDGES, *(-n for n in EDGES), 10**5000, -(10**5000)],
    ids=lambda n: f"{n:.3e}" if abs(n) < 2**200 else str(n.bit_length()),
)
def test_integers_of_any_size_come_back(number):
    assert same(unpack(pack([number])), [number])


@pytest.mark.parametrize("bits", [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 123, (0x7FF0 << 48) + 1, 1, 1 << 63])
def test_floats_come_back_bit_by_bit(bits):
    value = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    assert struct.pack(">d", unpack(pack([value]))[0]) == struct.pack(">d", value)


@given(st.sets(keys, max_size=8), st.randoms(use_true_random=False))
def test_bytes_of_a_set_do_not_depend_on_order(items, rng):
    shuffled = list(items)
    rng.shuffle(shuffled)
    again = set()
    for item in [*shuffled, *range(1000)]:  # grow and shrink the table: another order of iteration
        again.add(item)
    again -= set(range(1000)) - items
    if same(again, items):  # 1, 1.0 and True are one item: the first that came stays
        assert pack(again) == pack(items)
        assert pack(frozenset(again)) == pack(frozenset(items))


def test_several_nan_keys_and_items_round_trip():
    nans = [float("nan") for _ in range(3)]
    state = {
        "dict": {nan: i for i, nan in enumerate(nans)},
        "set": set(nans),
        "key": {(nans[0], 1): 2, (nans[1], 1): 3},
    }
    back = unpack(pack(state))
    assert (len(back["dict"]), len(back["set"]), len(back["key"])) == (3, 3, 2)
    assert same(back, state)


def test_bytes_of_a_decimal_ignore_the_context():
    value = decimal.Decimal("1.5E+900")
    plain = pack(value)
    with decimal.localcontext() as context:
        context.capitals = 0
        context.prec = 1
        context.Emax = 10
        context.traps[decimal.InvalidOperation] = False
        context.traps[decimal.FloatOperation] = True
        assert pack(value) == plain
        assert same(unpack(plain), value)


def test_bytes_of_a_zone_ignore_the_zone_cache():
    cached, alone = zoneinfo.ZoneInfo("Europe/Berlin"), zoneinfo.ZoneInfo.no_cache("Europe/Berlin")
    one, other = (dt.datetime(2021, 5, 5, 5, tzinfo=zone) for zone in (cached, alone))
    assert pack(one) == pack(other)
    assert unpack(pack(one)).tzinfo is cached


@given(hashable_atoms)
def test_an_atom_is_an_atom_in_every_place(atom):
    state = [atom, (atom,), {"k": atom}, {"set": {atom}}, {(atom, 1): frozenset([atom])}, {atom: atom}]
    assert same(unpack(pack(state)), state)


@given(values)
def test_a_container_taken_apart_can_be_put_together_again(value):
    data = pack(value)
    opened = msgpack.take_apart(data)
    if opened is not None:
        assert msgpack.inline(*opened) == data


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 255, 256, 65535, 65536])
def test_heads_of_arrays_and_maps_are_those_of_messagepack(count):
    assert msgpack.array_head(count) == ormsgpack.packb([None] * count)[: -count or None]
    listed = msgpack.inline(msgpack.DICT, None, [ormsgpack.packb(f"{n:05}") + b"\xc0" for n in range(count)])
    assert listed == ormsgpack.packb({f"{n:05}": None for n in range(count)})


# ---- or loud --------------------------------------------------------------------------------------------------------


class Str(str):
    __slots__ = ()


class Int(int):
    pass


class Float(float):
    pass


class Bytes(bytes):
    pass


class ByteArray(bytearray):
    pass


class List(list):
    pass


class Tuple(tuple):
    __slots__ = ()


class Dict(dict):
    pass


class Set(set):
    pass


class Frozen(frozenset):
    __slots__ = ()


class Zone(dt.tzinfo):
    def utcoffset(self, _):
        return dt.timedelta(0)


class NumpyLike:
    dtype = "float64"

    def __array__(self):
        return [1.0]

    def tolist(self):
        return [1.0]

    def __iter__(self):
        return iter([1.0])

    def __len__(self):
        return 1

    def __index__(self):
        return 1

    def __float__(self):
        return 1.0


class RecordChild(Record):
    __slots__ = ()


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
BERLIN_FILE = next((p for p in (pathlib.Path(base) / "Europe/Berlin" for base in zoneinfo.TZPATH) if p.exists()), None)


def unkeepable():
    """Values that would not round trip."""
    found = {
        "str": Str("a"),
        "int": Int(1),
        "float": Float(1.0),
        "bytes": Bytes(b"a"),
        "bytearray": ByteArray(b"a"),
        "list": List([1]),
        "tuple": Tuple((1,)),
        "dict": Dict(a=1),
        "set": Set({1}),
        "frozenset": Frozen({1}),
        "Record subclass": RecordChild("S", 1, "dataclass", {}),
        "defaultdict": collections.defaultdict(list),
        "OrderedDict": collections.OrderedDict(a=1),
        "Counter": collections.Counter("aab"),
        "deque": collections.deque([1]),
        "ChainMap": collections.ChainMap({}),
        "mappingproxy": type.__dict__["__dict__"].__get__(int),
        "memoryview": memoryview(b"abc"),
        "range": range(3),
        "complex": 1j,
        "Ellipsis": ...,
        "NotImplemented": NotImplemented,
        "generator": (x for x in ()),
        "function": len,
        "lambda": lambda: None,
        "module": math,
        "class": int,
        "enum class": enum.Enum,
        "object": object(),
        "file": io.BytesIO(b"abc"),
        "lock": threading.Lock(),
        "dict view": {}.keys(),
        "iterator": iter([1]),
        "numpy-like": NumpyLike(),
        "Ext": ormsgpack.Ext(msgpack.TUPLE, b"\x90"),
        "Ext REF": ormsgpack.Ext(msgpack.REF, b"\x90"),
        "Fragment": ormsgpack.Fragment(b"\x01"),
        "Fragment that is not canonical": ormsgpack.Fragment(b"\xd2\x00\x00\x00\x01"),
        "odd zone": dt.datetime(2020, 1, 1, tzinfo=Zone()),
        "odd zone of a time": dt.time(1, tzinfo=Zone()),
        "zone name with a lone surrogate": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "\ud800")),
        "zone from a file": BERLIN_FILE
        and dt.datetime(
            2020, 1, 1, tzinfo=zoneinfo.ZoneInfo.from_file(io.BytesIO(BERLIN_FILE.read_bytes()), key="Europe/Berlin")
        ),
        "hand-made schema with a lone surrogate": Record("S\ud800", 1, "dataclass", {}),
        "hand-made version of 70 bits": Record("S", 2**70, "dataclass", {}),
        "hand-made member with a lone surrogate": Member("S", 1, "\ud800", 1),
        "hand-made member of an object": Member("S", 1, "A", object()),
        "hand-made member of a bytearray": Member("S", 1, "A", bytearray(b"a")),
    }
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("name", list(unkeepable()))
@pytest.mark.parametrize("filler", [[], ["x" * 5000], [b"\xc4\xc7"]], ids=["short", "long", "suspicious"])
def test_inexact_values_are_refused_with_their_path(name, filler):
    value = unkeepable()[name]
    for state, path in (
        (value, "state"),
        ([*filler, value], f"state[{len(filler)}]"),
        ({"a": filler, "b": {"c": (1, [value])}}, "state.b.c[1][0]"),
        ({"a": Record("S", 1, "dataclass", {"f": [filler, value]})}, "state.a.f[1]"),
        ({1: {("t", 2): [value]}, 2: filler}, "state[1][('t', 2)][0]"),
        ({"a.b": {"": [value]}, "c": filler}, 'state["a.b"][""][0]'),
    ):
        with pytest.raises(Invalid) as caught:
            pack(state)
        assert caught.value.code == "invalid.value"
        assert caught.value.path == path
        assert str(caught.value).startswith(path + ": ")


def test_inexact_keys_and_set_items_are_refused():
    class Odd:
        def __repr__(self):
            raise RuntimeError("no repr")

    for state in (
        {Str("a"): 1},
        {Int(1): 1},
        {1j: 1},
        {(1, Odd()): 1},
        {Odd(): 1},
        {1j},
        {(1, Int(1))},
        {memoryview(b"a"): 1},
    ):
        with pytest.raises(Invalid) as caught:
            pack({"x": [state]})
        assert caught.value.path.startswith("state.x[0]")


def test_ext_and_fragment_are_refused_wherever_they_are():
    packer = encode.Packer(TYPES)
    assert packer.fast([1, "a"]) == b"\x92\x01\xa1a"
    for foreign in (ormsgpack.Fragment(b"\x05"), ormsgpack.Ext(msgpack.TUPLE, b"\x90")):
        for value in (foreign, [1, foreign], {"a": foreign}, (foreign,), [{"a": (1, [foreign])}], [b"", foreign]):
            assert packer.fast(value) is None
        with pytest.raises(Invalid) as caught:
            pack({"x": [1, {"y": (foreign,)}]})
        assert caught.value.path == "state.x[1].y[0]"
        assert packer.fast([1, "a"]) == b"\x92\x01\xa1a"


def test_interrupts_in_encoding_and_decoding_are_raised():
    class Point:
        pass

    def interrupted(_):
        raise KeyboardInterrupt

    types = Types([Type(Point, "Point", dump=interrupted, load=interrupted)])
    with pytest.raises(KeyboardInterrupt):
        Encoder(fresh_nodes(), types).rep([1, (2, Point())])
    with pytest.raises(KeyboardInterrupt):
        decode.Unpacker(types)(pack([(1, Record("Point", 1, "custom", {}))]))


def test_memory_error_in_decoding_is_not_damage():
    def exhausted(_):
        raise MemoryError

    with pytest.raises(MemoryError):
        decode.Unpacker(TYPES, exhausted)(msgpack.ext(msgpack.REF, b""))


def test_storage_error_in_decoding_is_raised_unchanged():
    def fails(_):
        raise Corrupt("chunk 1 is missing", code="corrupt.chunk")

    unpacker = decode.Unpacker(TYPES, fails)
    for _ in range(2):
        with pytest.raises(Corrupt, match="chunk 1 is missing") as caught:
            unpacker(b"\x91" + msgpack.ext(msgpack.TUPLE, b"\x91" + msgpack.ext(msgpack.REF, b"")))
        assert caught.value.code == "corrupt.chunk"
    assert unpacker(b"\x01") == 1


def test_unregistered_key_class_is_not_damage():
    class Point(NamedTuple):
        x: int
        y: int

    for state in ({Point(1, 2): 3}, {Point(1, 2)}, frozenset({Point(1, 2)}), {("a", Point(1, 2)): 3}):
        data = pack([state])
        with pytest.raises(Invalid, match="Point") as caught:
            unpack(data)
        assert caught.value.code == "invalid.schema"
        assert decode.Unpacker(Types([Point]))(data) == [state]


# ---- deep nesting ---------------------------------------------------------------------------------------------------

WRAPS = {
    "list": lambda v: [v],
    "dict": lambda v: {"k": v},
    "tuple": lambda v: (v,),
    "int keys": lambda v: {1: v},
    "record": lambda v: Record("S", 1, "dataclass", {"f": v}),
    "list of two": lambda v: [1, v],
    "frozenset": lambda v: frozenset({v}),
}


def nested(depth, *wraps):
    value = 7
    for at in range(depth):
        value = wraps[at % len(wraps)](value)
    return value


def flat_form(value):
    """Like form, for values that are nested too deep for it."""
    found = []
    while True:
        found.append(type(value).__name__)
        if type(value) in (list, tuple):
            value = value[-1]
        elif isinstance(value, dict):
            (value,) = value.values()
        elif type(value) is frozenset:
            (value,) = value
        else:
            return found, value


@pytest.mark.parametrize(
    "names",
    [
        *([n] for n in WRAPS if n != "frozenset"),
        ["tuple", "list"],
        ["tuple", "dict", "list", "record"],
        ["tuple", "frozenset"],
        ["list"] * 20 + ["tuple"],
        ["list"] * 150 + ["tuple"],
    ],
    ids="-".join,
)
@pytest.mark.parametrize("every", lengths(3, 1))
def test_nesting_is_exact_or_refused_at_every_depth(names, every):
    wraps = [WRAPS[name] for name in names]
    kept, refused = 0, []
    for depth in [*range(1, 12), *range(12, 260, 31), 500, 3000][::every]:
        value = nested(depth, *wraps)
        try:
            data = pack(value)
        except Invalid as error:
            refused.append(str(error))
            continue
        kept += 1
        assert flat_form(unpack(data)) == flat_form(value), depth
        assert flat_form(on_deep_stack(300, lambda data=data: unpack(data))) == flat_form(value), depth
    assert kept >= 13 // every  # 43 levels, at least
    assert all("nested" in message for message in refused)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_sixty_levels_of_anything_are_kept(wrap):
    value = nested(60, wrap)
    assert flat_form(unpack(pack(value))) == flat_form(value)


def test_a_value_that_contains_itself_is_refused():
    listed = []
    listed.append(listed)
    mapped = {}
    mapped["self"] = mapped
    twice = [1]
    twice += [twice, twice]
    mixed = {"a": [(1,)]}
    mixed["a"].append((mixed,))
    for value in (listed, mapped, twice, mixed, [listed], {"x": "y" * 5000, "z": mapped}):
        with pytest.raises(Invalid, match="contains itself"):
            pack(value)
        with pytest.raises(Invalid):
            on_deep_stack(300, lambda value=value: pack(value))


def bomb(levels, lists, code=msgpack.TUPLE):
    """Nested extensions, each inside this many lists."""
    data = b"\xc0"
    for _ in range(levels):
        data = b"\x91" * lists + msgpack.ext(code, b"\x91" + data)
    return data


@pytest.mark.parametrize(
    ("levels", "lists"), [(100, 250), (480, 1000), (3000, 0), (130, 300), (20, 1000), (900, 1), (60, 100)]
)
@pytest.mark.parametrize("stack", [None, 4096])
def test_no_bytes_overflow_the_stack(levels, lists, stack):
    """An overflow would end the process, so decode in another one."""
    code = f"""
import sys, threading
from backtrail.engine.tree import msgpack as wire
from backtrail.engine.tree.decode import Unpacker
from backtrail.engine.schema.registry import Types
from backtrail.errors import Corrupt
data = sys.stdin.buffer.read()
done = []
def decode():
    for read in (Unpacker(Types()), wire.refs_in, wire.take_apart, wire.first_in):
        try:
            read(data)
        except Corrupt:
            pass
    done.append("survived")
if {stack}:
    threading.stack_size({stack or 0} * 1024)
    thread = threading.Thread(target=decode)
    thread.start()
    thread.join()
else:
    decode()
print(*done)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], input=bomb(levels, lists), capture_output=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout) == (0, b"survived\n"), found.stderr[-500:]


# ---- hostile bytes --------------------------------------------------------------------------------------------------


def survives(data, unpacker=unpack):
    """Decode hostile bytes: a value, Corrupt or Invalid, quickly."""
    started = time.monotonic()
    for read in (
        unpacker,
        msgpack.take_apart,
        msgpack.split,
        msgpack.refs_in,
        msgpack.first_in,
        msgpack.values_in,
        msgpack.split_ext,
        msgpack.plain,
    ):
        with contextlib.suppress(Corrupt, Invalid):
            read(data)
    assert time.monotonic() - started < 5


@given(st.binary(max_size=200))
@example(b"")
def test_random_bytes_are_a_value_or_corrupt(data):
    survives(data)


@given(st.integers(-128, 127), st.binary(max_size=60))
def test_random_extensions_are_a_value_or_corrupt(code, payload):
    data = b"\xc7" + bytes([len(payload), code % 256]) + payload
    survives(data)
    survives(b"\x91" + msgpack.ext(msgpack.TUPLE, b"\x91" + data))


@given(values, st.data())
def test_mutated_encodings_are_a_value_or_corrupt(value, data):
    encoded = bytearray(pack(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        action = data.draw(st.integers(0, 3))
        if action == 0:
            encoded[at] ^= 1 << data.draw(st.integers(0, 7))
        elif action == 1:
            encoded[at] = data.draw(st.integers(0, 255))
        elif action == 2:
            del encoded[at:]
        else:
            encoded[at:at] = data.draw(st.binary(max_size=3))
        if not encoded:
            break
    survives(bytes(encoded))


def array(*parts):
    return msgpack.array_head(len(parts)) + b"".join(parts)


P = ormsgpack.packb
CRAFTED = {
    "array that says four billion": b"\xdd\xff\xff\xff\xff",
    "map that says four billion": b"\xdf\xff\xff\xff\xff",
    "str that says four billion": b"\xdb\xff\xff\xff\xff",
    "bin that says four billion": b"\xc6\xff\xff\xff\xff",
    "ext that says four billion": b"\xc9\xff\xff\xff\xff\x01",
    "arrays in arrays that say 65535": b"\xdc\xff\xff" * 1000,
    "ten thousand arrays": b"\x91" * 10_000 + b"\x01",
    "reserved byte": b"\xc1",
    "tuple of a number": msgpack.ext(msgpack.TUPLE, b"\x05"),
    "tuple of a str": msgpack.ext(msgpack.TUPLE, P("abc")),
    "tuple of a map": msgpack.ext(msgpack.TUPLE, P({"a": 1})),
    "set of lists": msgpack.ext(msgpack.SET, array(b"\x90", b"\x91\x01")),
    "set with a number twice": msgpack.ext(msgpack.SET, array(b"\x01", b"\x01")),
    "dict with a key without a value": msgpack.ext(msgpack.DICT, array(b"\x01")),
    "dict with a list as key": msgpack.ext(msgpack.DICT, array(b"\x90", b"\x01")),
    "record without a schema": msgpack.ext(msgpack.RECORD, b"\x90"),
    "record with half a schema": msgpack.ext(msgpack.RECORD, array(P("S"), P(1))),
    "record with a list as schema": msgpack.ext(msgpack.RECORD, array(b"\x90", P(1), P("dataclass"))),
    "record that names os.system": msgpack.ext(
        msgpack.RECORD, array(P("os.system"), P(1), P("custom"), P("command"), P("true"))
    ),
    "record that names builtins.eval": msgpack.ext(
        msgpack.RECORD, array(P("builtins.eval"), P(1), P("dataclass"), P("x"), P("1"))
    ),
    "record of ten thousand levels of version": msgpack.ext(
        msgpack.RECORD, array(P("S"), b"\x91" * 500 + b"\x01", P("x"))
    ),
    "member without parts": msgpack.ext(msgpack.MEMBER, b"\x90"),
    "member of too many": msgpack.ext(msgpack.MEMBER, array(*[b"\x01"] * 9)),
    "member with a map as schema": msgpack.ext(msgpack.MEMBER, array(b"\x80", b"\x01", b"\x01", b"\x01")),
    "datetime of nothing": msgpack.ext(msgpack.DATETIME, b"\x90"),
    "datetime of text": msgpack.ext(msgpack.DATETIME, P("now")),
    "datetime of year 10000": msgpack.ext(msgpack.DATETIME, P([10_000, 1, 1, 0, 0, 0, 0, 0, None])),
    "datetime with a zone outside": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, "../../etc/passwd"])),
    "datetime with an absolute zone": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, "/etc/passwd"])),
    "datetime with a directory as zone": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, "Europe"])),
    "datetime with an empty zone": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, ""])),
    "datetime with NUL in its zone": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, "Europe\0"])),
    "datetime with a file that is no zone": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, "tzdata.zi"])),
    "datetime with an unknown zone": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, "Mars/Base"])),
    "datetime with a zone of a number": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, 5])),
    "datetime with a zone of False": msgpack.ext(msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, False])),
    "datetime with an offset of a year": msgpack.ext(
        msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, [365, 0, 0, None]])
    ),
    "datetime with an offset of 2**63 days": msgpack.ext(
        msgpack.DATETIME, P([2020, 1, 1, 0, 0, 0, 0, 0, [2**63, 0, 0, None]])
    ),
    "time of too many": msgpack.ext(msgpack.TIME, P([1] * 30)),
    "date of floats": msgpack.ext(msgpack.DATE, P([1.5, 1, 1])),
    "date of a map": msgpack.ext(msgpack.DATE, P({"year": 1})),
    "timedelta of 2**63 days": msgpack.ext(msgpack.TIMEDELTA, P([2**63, 0, 0])),
    "timedelta of nan": msgpack.ext(msgpack.TIMEDELTA, P([math.nan])),
    "uuid of three bytes": msgpack.ext(msgpack.UUID, b"abc"),
    "decimal of nothing": msgpack.ext(msgpack.DECIMAL, b""),
    "decimal of words": msgpack.ext(msgpack.DECIMAL, b"one"),
    "decimal of bad utf-8": msgpack.ext(msgpack.DECIMAL, b"\xff"),
    "decimal with a huge exponent": msgpack.ext(msgpack.DECIMAL, b"1E+99999999999999999999"),
    "path of nothing": msgpack.ext(msgpack.PATH, b""),
    "path of an unknown kind": msgpack.ext(msgpack.PATH, b"\x09a"),
    "path of bad utf-8": msgpack.ext(msgpack.PATH, b"\x00\xff"),
    "text of bad utf-8": msgpack.ext(msgpack.TEXT, b"\xff\xfe"),
    "str of bad utf-8": b"\xa2\xff\xfe",
    "int of nothing": msgpack.ext(msgpack.INT, b""),
    "reference": msgpack.ext(msgpack.REF, P([0, bytes(32), 1, 1])),
    "extension of a newer version": msgpack.ext(77, b"abc"),
    "timestamp": b"\xd6\xff" + bytes(4),
    "map with a number as key": b"\x81\x01\x01",
    "map with a list as key": b"\x81\x90\x01",
    "map with a key twice": b"\x82\xa1a\x01\xa1a\x02",
    "number in five bytes that needs one": b"\xd2\x00\x00\x00\x01",
    "str in five bytes that needs one": b"\xdb\x00\x00\x00\x01a",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_bytes_are_a_value_or_corrupt(name):
    before = set(sys.modules)
    survives(CRAFTED[name])
    survives(array(b"\x01", CRAFTED[name], msgpack.ext(msgpack.TUPLE, array(CRAFTED[name]))))
    assert not {module for module in set(sys.modules) - before if not module.startswith("tzdata")}


def test_a_record_of_any_name_is_only_data():
    found = unpack(CRAFTED["record that names os.system"])
    assert type(found) is Record
    assert (found.schema, dict(found)) == ("os.system", {"command": "true"})


def test_an_unknown_zone_says_what_to_install():
    with pytest.raises(Invalid, match="tzdata") as caught:
        unpack(CRAFTED["datetime with an unknown zone"])
    assert caught.value.code == "invalid.zone"


def test_what_is_not_canonical_is_not_taken_apart():
    for name in ("map with a key twice", "number in five bytes that needs one", "str in five bytes that needs one"):
        with pytest.raises(Corrupt):
            msgpack.split(array(CRAFTED[name]))
    for data in (b"\xa0", b"\x80", b"\xc4\x00", P("ab"), P({"a": 1}), b"\x05"):
        with pytest.raises(Corrupt):
            msgpack.split(data)


def test_refs_are_listed_at_any_depth():
    ref = [msgpack.ext(msgpack.REF, bytes([n])) for n in range(4)]
    data = array(
        ref[0], msgpack.ext(msgpack.TUPLE, array(b"\x01", msgpack.ext(msgpack.DICT, array(b"\x01", array(ref[1])))))
    )
    data = array(data, b"\x81\xa1k" + ref[2], msgpack.ext(msgpack.RECORD, array(P("S"), P(1), P("x"), P("f"), ref[3])))
    assert sorted(msgpack.refs_in(data)) == [b"\0", b"\1", b"\2", b"\3"]
    assert msgpack.refs_in(pack(["\x11\x94", b"\x11\x94"])) == []


@pytest.mark.torture
@settings(max_examples=20_000, deadline=None)
@given(values)
def test_any_plain_value_comes_back_many_times(value):
    data = pack(value)
    assert same(unpack(data), value)
    assert pack(unpack(data)) == data
    assert taken_apart(value) == data


@pytest.mark.torture
def test_every_changed_byte_is_a_value_or_corrupt():
    rng = random.Random(5)
    state = [*itertools.chain.from_iterable(CONFUSABLE)]
    data = pack(state)
    assert len(data) > 2000 or len(data) <= INLINE
    for at in range(len(data)):
        for byte in rng.sample(range(256), 16):
            survives(data[:at] + bytes([byte]) + data[at + 1 :])
