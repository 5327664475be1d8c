"""What tests of the storage core share: any plain value, a comparison that sees types, and trees without a store."""

import datetime as dt
import decimal
import math
import pathlib
import struct
import uuid
import zoneinfo
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from backtrail.engine import payload
from backtrail.engine.schema.registry import Member, Record, Types
from backtrail.engine.tree import chunked as spine
from backtrail.engine.tree import decode as decoding
from backtrail.engine.tree import diff, edits, nodes, scan, text, tree
from backtrail.engine.tree import encode as encoding

TYPES = Types()


# ---- trees without a store ------------------------------------------------------------------------------------------


def no_store(digests):
    """A backend that has nothing."""
    return {}


def fresh_nodes(stored=None):
    """A source of nodes; `stored` is a dict of nodes that counts as the backend."""
    if stored is None:
        return nodes.Nodes(no_store, nodes.Cache(1 << 24))
    squeezed = {digest: b"\0" + node.kind + node.data for digest, node in stored.items()}
    return nodes.Nodes(lambda digests: {d: squeezed[d] for d in digests if d in squeezed}, nodes.Cache(0))


def encode(value, source=None, types=TYPES):
    return tree.Tree.of(value, source or fresh_nodes(), types)


def decode(tree_, types=TYPES):
    return decoding.Decoder(tree_.nodes, types).value(tree_.rep)


def stored_again(tree_):
    """The same tree with all its nodes read back through a backend, checked against their digests."""
    return tree.Tree(nodes.measured(bytes(tree_.rep)), fresh_nodes(dict(tree_.nodes.fresh)))


# Sizes at which a few hundred bytes make a tree of many levels.
SMALL = {
    "INLINE": 100,
    "LEAF_TARGET": 300,
    "LEAF_MIN": 120,
    "LEAF_MAX": 800,
    "INNER_TARGET": 240,
    "INNER_MIN": 100,
    "INNER_MAX": 900,
    "INNER_WIDTH": 2,
    "PIECE_MAX": 256,
    "_PIECE_MIN": 64,
    "_PIECE_MASK": 0x03,
}


@contextmanager
def sizes(name):
    """Work with the real sizes, or with small ones in every module that knows them."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "small":
            for constant, value in SMALL.items():
                holders = [
                    m for m in (edits, encoding, diff, nodes, payload, scan, spine, text, tree) if hasattr(m, constant)
                ]
                assert holders, constant
                for module in holders:
                    patch.setattr(module, constant, value)
        yield name


def on_deep_stack(frames, function):
    """Call a function from further down the stack."""
    return function() if frames == 0 else on_deep_stack(frames - 1, function)


# ---- a comparison that sees types -----------------------------------------------------------------------------------


def _zone_form(zone):
    if isinstance(zone, zoneinfo.ZoneInfo):
        return ("ZoneInfo", zone.key)
    return None if zone is None else ("timezone", zone.utcoffset(None), zone.tzname(None))


def form(value):  # noqa: PLR0911 - one line per kind of value
    """All there is to a value, types and order included: values are the same if and only if their forms are equal."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind is float:
        return name, struct.pack(">d", value)
    if kind in (list, tuple):
        return name, *map(form, value)
    if kind in (set, frozenset):
        return name, *sorted(map(form, value), key=repr)
    if kind is dict:
        return name, *((form(key), form(part)) for key, part in value.items())
    if kind is Record:
        return name, value.schema, value.version, value.form, *((form(k), form(v)) for k, v in value.items())
    if kind is Member:
        return name, value.schema, value.version, value.name, form(value.value)
    if kind is dt.datetime or kind is dt.time:
        return name, value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone_form(value.tzinfo)
    if kind is decimal.Decimal:
        return name, value.as_tuple()
    return name, bytes(value) if kind is bytearray else value


def same(one, other):
    return form(one) == form(other)


# ---- values ---------------------------------------------------------------------------------------------------------

NAMED_ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu", "UTC", "Etc/GMT+5"]
EDGES = [2**k + d for k in (5, 7, 8, 15, 16, 31, 32, 63, 64, 65, 127, 200) for d in (-1, 0, 1)]

offsets = st.timedeltas(min_value=dt.timedelta(hours=-23, minutes=-59), max_value=dt.timedelta(hours=23, minutes=59))
zones = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.builds(dt.timezone, offsets),
    st.builds(dt.timezone, offsets, st.text(max_size=5)),
    st.sampled_from(NAMED_ZONES).map(zoneinfo.ZoneInfo),
)
integers = st.one_of(
    st.integers(-40, 300),
    st.sampled_from(EDGES),
    st.sampled_from(EDGES).map(lambda n: -n),
    st.integers(),
    st.integers(-(10**300), 10**300),
)
floats = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 5e-324]))
surrogates = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)
strings = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "\0", "a\0b", "é", "𝄞", "a" * 31, "a" * 32, "a" * 255, "a" * 256, "\x11\x94", "{}"]),
    st.builds(lambda a, b, c: a + b + c, st.text(max_size=4), surrogates, st.text(max_size=4)),
)
bytestrings = st.one_of(
    st.binary(max_size=8), st.sampled_from([b"\x11\x94", b"\xc7\x2a\x11\x94", bytes(256), b"\xd4\x01\x00"])
)
pure_paths = st.one_of(
    st.builds(pathlib.PurePosixPath, st.text(max_size=8)),
    st.builds(pathlib.PureWindowsPath, st.text(max_size=8)),
    st.builds(pathlib.Path, st.text(st.characters(exclude_characters="\0"), max_size=8)),
    st.sampled_from(
        [
            pathlib.PureWindowsPath("c:\\a"),
            pathlib.PureWindowsPath("c:a"),
            pathlib.PureWindowsPath("//server/share/x"),
            pathlib.PurePosixPath("//a/../b"),
            pathlib.Path(),
        ]
    ),
)
decimals = st.one_of(
    st.decimals().filter(lambda number: not number.is_snan()),
    st.sampled_from(["0", "-0", "0E+3", "1E+9", "1.10", "NaN", "-NaN123", "Infinity", "-Infinity", "1E-400"]).map(
        decimal.Decimal
    ),
)
hashable_atoms = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    floats,
    strings,
    bytestrings,
    st.builds(
        lambda d, t, z, f: dt.datetime.combine(d, t.replace(tzinfo=z, fold=f)),
        st.dates(),
        st.times(),
        zones,
        st.integers(0, 1),
    ),
    st.dates(),
    st.builds(lambda t, z, f: t.replace(tzinfo=z, fold=f), st.times(), zones, st.integers(0, 1)),
    st.timedeltas(),
    st.uuids(),
    st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1)),
    decimals,
    pure_paths,
)
atoms = st.one_of(hashable_atoms, hashable_atoms, st.builds(bytearray, bytestrings), st.just(decimal.Decimal("sNaN")))
keys = st.recursive(
    st.one_of(st.text(max_size=4), hashable_atoms),
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
schema_names = st.sampled_from(["State", "pkg.Message", "é"])


def _containers(inner):
    return st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.builds(
            Record,
            schema_names,
            st.integers(1, 3),
            st.sampled_from(["dataclass", "namedtuple", "custom"]),
            st.dictionaries(strings, inner, max_size=3),
        ),
        st.builds(Member, schema_names, st.integers(1, 3), st.sampled_from(["A", "B"]), st.integers(0, 3)),
    )


values = st.recursive(atoms, _containers, max_leaves=25)
"""Any plain value, small."""


def stretched(unit, length):
    """A text of exactly this length."""
    return (unit * (length // len(unit) + 1))[:length]


long_texts = st.builds(
    stretched,
    st.sampled_from(["a", "line\n", "ab\0c\n", "é", "xyz\ud800\n", b"z", b"\n", b"\0\1\2", b"\x11\x94"]),
    st.integers(0, 1200),
)
small_items = st.one_of(
    integers, st.text(max_size=60), st.builds(stretched, st.just("ab\n"), st.integers(60, 150)), values
)
"""Items that fill leaves of the small sizes quickly."""
bulky = st.recursive(
    st.one_of(small_items, long_texts, st.builds(bytearray, st.binary(max_size=300))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=40),
        st.dictionaries(st.text(max_size=6), inner, max_size=30),
        st.dictionaries(st.integers(0, 99), inner, max_size=20),
        st.lists(inner, max_size=8).map(tuple),
        st.sets(st.text(max_size=30), max_size=40),
    ),
    max_leaves=60,
)
"""Values that make trees of several levels with the small sizes."""
