"""Classes as data: every form round trips or is refused; loading builds registered classes alone."""

import abc
import collections
import copy
import dataclasses
import enum
import functools
import gc
import os
import pickle
import subprocess
import sys
import typing
import weakref
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Optional, Protocol, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.engine.schema.registry import FORMS, Member, Record, Type, Types, schema, schema_of, upcast
from backtrail.errors import Invalid

PYDANTIC = tuple(int(part) for part in pydantic.VERSION.split(".")[:2])
T = TypeVar("T")

# ---- one class of every kind, all with fields a, b and c -----------------------------------------------------------


@dataclass
class Plain:
    a: Any
    b: Any = None
    c: Any = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any
    c: Any


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Slotted:
    a: Any
    b: Any
    c: Any = 3


@dataclass(kw_only=True, eq=False)
class Base:
    c: Any


@dataclass(slots=True)
class HalfSlotted(Base):
    a: Any
    b: Any


class UndecoratedSubclass(Plain):
    pass


@dataclass
class Boxed(Generic[T]):
    a: T
    b: T
    c: T


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    a: Any
    b: Any
    c: Any


class Struct(msgspec.Struct):
    a: Any
    b: Any = None
    c: Any = msgspec.field(default_factory=list)


class OddStruct(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True, rename="camel", array_like=True):
    a: int
    b: str = "b"
    c: bytes


class DictStruct(msgspec.Struct, Generic[T], dict=True, weakref=True):
    a: T
    b: T
    c: T


class Model(pydantic.BaseModel):
    a: Any
    b: Any = None
    c: Any = pydantic.Field(default_factory=list)


class FrozenModel(pydantic.BaseModel, frozen=True, validate_assignment=True):
    a: int = pydantic.Field(alias="A")
    b: str
    c: float


class OpenModel(pydantic.BaseModel, extra="allow"):
    a: Any
    b: Any = 2
    c: Any = 3
    _note: Any = None
    _log: Any = pydantic.PrivateAttr(default_factory=list)
    _late: Any


class GenericModel(pydantic.BaseModel, Generic[T]):
    a: T
    b: T
    c: T


class Typed(NamedTuple):
    a: Any
    b: Any = None
    c: Any = 3


class TypedSubclass(Typed):
    pass


Bare = collections.namedtuple("Bare", "a b c", defaults=[3])  # noqa: PYI024 - this kind, too


class Color(enum.Enum):
    RED = "red"
    GREEN = ("green", 2)
    NAN = float("nan")
    CRIMSON = "red"  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Text(str, enum.Enum):  # noqa: UP042 - this kind, too
    ONE = "1"


class Perm(enum.Flag):
    R = 1
    W = 2
    RW = 3


class Bits(enum.IntFlag):
    A = 1
    B = 2


CLASSES = [
    *(Plain, Frozen, Slotted, HalfSlotted, UndecoratedSubclass, Boxed, PydanticDataclass),
    *(Struct, OddStruct, DictStruct, Model, FrozenModel, OpenModel, GenericModel, GenericModel[bytes]),
    *(Typed, TypedSubclass, Bare),
]
ENUMS = [Color, Level, Text, Perm, Bits]
ALL = Types([*CLASSES, *ENUMS])
MEMBERS = [*Color, *Level, *Text, *Perm, Perm.R | Perm.W, Perm(0), *Bits, Bits.A | Bits.B, Bits(8), Bits(0)]


def make(cls: Any, a: Any, b: Any, c: Any) -> Any:
    """An instance with these values, without validation."""
    if issubclass(cls, pydantic.BaseModel):
        made = cls.model_construct()
        made.__dict__.update(a=a, b=b, c=c)
        object.__setattr__(made, "__pydantic_fields_set__", {"a", "b", "c"})
        return made
    return cls(a=a, b=b, c=c) if cls is not PydanticDataclass else cls(a, b, c)


def sorted_dict(value: dict[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in sorted(value)}


def identical(value: Any) -> Any:
    """A value as a tree of types and parts, which are equal only for identical values."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        parts: Any = id(value) if value.name in kind.__members__ else value.value
    elif isinstance(value, list | tuple):
        parts = [identical(item) for item in value]
    elif kind is dict:
        parts = [(identical(key), identical(item)) for key, item in value.items()]
    elif isinstance(value, pydantic.BaseModel):
        private = value.__pydantic_private__
        hidden = [value.__pydantic_extra__, private and sorted_dict(private), sorted(value.__pydantic_fields_set__)]
        parts = [identical(sorted_dict(value.__dict__)), identical(hidden)]
    elif isinstance(value, msgspec.Struct):
        parts = [identical(getattr(value, name)) for name in value.__struct_fields__]
    elif dataclasses.is_dataclass(value):
        parts = [identical(getattr(value, f.name)) for f in dataclasses.fields(value)]
    else:
        parts = repr(value)
    return kind, parts


def saved(value: Any, types: Types) -> Any:
    """Dump a value and its parts, as the encoder does."""
    if type(value) in (list, tuple):
        return type(value)(saved(item, types) for item in value)
    if type(value) is dict:
        return {key: saved(item, types) for key, item in value.items()}
    dumped = types.dump(value)
    if isinstance(dumped, Record):
        return Record(dumped.schema, dumped.version, dumped.form, saved(dict(dumped), types))
    if isinstance(dumped, Member):
        return dataclasses.replace(dumped, value=saved(dumped.value, types))
    assert type(value).__module__ == "builtins", value
    return value


def loaded(value: Any, types: Types) -> Any:
    """Load the parts and then the value, as the decoder does."""
    if type(value) in (list, tuple):
        return type(value)(loaded(item, types) for item in value)
    if type(value) is dict:
        return {key: loaded(item, types) for key, item in value.items()}
    if type(value) is Record:
        return types.load(Record(value.schema, value.version, value.form, loaded(dict(value), types)))
    if type(value) is Member:
        return types.load(dataclasses.replace(value, value=loaded(value.value, types)))
    return value


def there_and_back(value: Any, types: Types = ALL) -> Any:
    return loaded(copy.deepcopy(saved(value, types)), types)


def invalid(code: str, match: str) -> Any:
    caught = pytest.raises(Invalid, match=match)
    return _Coded(caught, code)


class _Coded:
    def __init__(self, caught: Any, code: str) -> None:
        self._caught, self._code = caught, code

    def __enter__(self) -> Any:
        self._info = self._caught.__enter__()
        return self._info

    def __exit__(self, *exc: object) -> bool:
        swallowed = self._caught.__exit__(*exc)
        assert self._info.value.code == self._code
        assert self._info.value.path is None
        return swallowed


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.sampled_from(MEMBERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)
instances = st.recursive(
    plain,
    lambda inner: st.builds(make, st.sampled_from(CLASSES), inner, inner, inner),
    max_leaves=12,
)

# ---- round trips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@given(a=plain, b=plain, c=plain)
def test_any_values_in_any_form_round_trip(cls, a, b, c):
    before = make(cls, a, b, c)
    assert identical(there_and_back(before)) == identical(before)


@given(instances)
def test_instances_inside_instances_round_trip(value):
    assert identical(there_and_back(value)) == identical(value)


@pytest.mark.parametrize("member", MEMBERS, ids=repr)
def test_members_and_combinations_of_flags_come_back_as_themselves(member):
    assert there_and_back(member) is member


@given(instances)
def test_records_without_classes_are_saved_again_unchanged(value):
    data = saved(value, ALL)
    again = loaded(copy.deepcopy(data), Types())
    assert repr(again) == repr(data)
    assert repr(saved(again, Types())) == repr(data)
    assert identical(loaded(saved(again, Types()), ALL)) == identical(value)


@given(
    set_fields=st.sets(st.sampled_from("abc")),
    extra=st.dictionaries(st.sampled_from(["", "a", "x", "_x", "_note", "_late", "é"]), plain, max_size=4),
    private=st.fixed_dictionaries({"_note": plain, "_log": plain}, optional={"_late": plain}),
)
def test_model_keeps_set_fields_extras_and_privates(set_fields, extra, private):
    before = OpenModel(a=1)
    object.__setattr__(before, "__pydantic_fields_set__", set_fields | set(extra))
    object.__setattr__(before, "__pydantic_extra__", extra)
    object.__setattr__(before, "__pydantic_private__", private)
    assert identical(there_and_back(before)) == identical(before)


def test_usual_model_is_saved_as_its_fields():
    assert ALL.dump(Model(a=1, b=2, c=3)) == {"a": 1, "b": 2, "c": 3}
    assert ALL.dump(Model(a=1)) == {"a": 1, "b": None, "c": [], "": {"set": ["a"]}}
    opened = OpenModel(a=1, b=2, c=3, x=4)
    assert ALL.dump(opened) == {"a": 1, "b": 2, "c": 3, "x": 4, "_note": None, "_log": []}
    assert identical(there_and_back(opened)) == identical(opened)


@pytest.mark.skipif(PYDANTIC < (2, 12), reason="this pydantic has no extra= for one call")
def test_extra_values_that_one_call_allowed_are_kept():
    class Closed(pydantic.BaseModel):
        a: int

    before = Closed.model_validate({"a": 1, "z": 2}, extra="allow")
    after = there_and_back(before, Types([Closed]))
    assert after.__pydantic_extra__ == {"z": 2}
    assert identical(after) == identical(before)


def test_forbidden_extra_values_of_a_model_are_kept():
    before = with_attribute(Model(a=1), __pydantic_extra__={"z": 2})
    assert identical(there_and_back(before)) == identical(before)


def test_model_without_an_extra_dict_stays_without():
    before = OpenModel(a=1)
    object.__setattr__(before, "__pydantic_extra__", None)
    assert there_and_back(before).__pydantic_extra__ is None


def test_model_is_restored_without_validation_and_hooks():
    class Strict(pydantic.BaseModel):
        a: int = pydantic.Field(gt=0)

        def model_post_init(self, _context):
            self.__dict__["a"] += 1

    before = Strict.model_construct(a=1)
    assert there_and_back(before, Types([Strict])).a == before.a == 2
    before.__dict__["a"] = "not a number"
    assert there_and_back(before, Types([Strict])).a == "not a number"


def test_a_root_model_comes_back():
    class Names(pydantic.RootModel[list[str]]):
        pass

    class Noted(pydantic.RootModel[list[str]]):
        _note: str = "?"

    noted = Noted(["x"])
    noted._note = "!"
    for before in (Names(["x"]), noted):
        after = there_and_back(before, Types([Names, Noted]))
        assert after == before
        assert identical(after) == identical(before)


def test_dataclass_is_restored_without_running_its_code():
    @dataclass
    class Loud:
        a: int
        b: int = field(init=False)
        extra: InitVar[int] = 0
        kind: ClassVar[str] = "x"

        def __new__(cls, *args):
            calls.append("new")
            return super().__new__(cls)

        def __post_init__(self, extra):
            calls.append("post_init")
            self.b = extra

        def __setattr__(self, name, value):
            calls.append(name)
            super().__setattr__(name, value)

    calls: list[str] = []
    before = Loud(1, 2)
    assert calls
    calls.clear()
    assert ALL.dump(before) == {"a": 1, "b": 2}
    after = there_and_back(before, Types([Loud]))
    assert after == before
    assert calls == []


def test_class_default_of_an_init_false_field_is_saved():
    @dataclass
    class Counter:
        n: int = field(default=3, init=False)

    assert "n" not in vars(Counter())
    assert Types().dump(Counter()) == {"n": 3}


def test_a_field_behind_a_descriptor_comes_back():
    values: Any = weakref.WeakKeyDictionary()

    class Outside:
        def __get__(self, obj, owner=None):
            if obj is None:
                raise AttributeError
            return values[obj]

        def __set__(self, obj, value):
            values[obj] = value

    @dataclass(eq=False)
    class Holder:
        x: int = Outside()

    assert there_and_back(Holder(5), Types([Holder])).x == 5


def test_struct_post_init_does_not_change_loaded_fields():
    class Counting(msgspec.Struct, frozen=True):
        n: int

        def __post_init__(self):
            msgspec.structs.force_setattr(self, "n", self.n + 1)

    before = Counting(1)
    assert before.n == 2
    assert there_and_back(before, Types([Counting])).n == 2


def test_unset_fields_of_a_struct_stay_unset():
    class Patch(msgspec.Struct):
        a: int | msgspec.UnsetType = 1
        b: int | msgspec.UnsetType = msgspec.UNSET

    assert Types().dump(Patch(msgspec.UNSET)) == {"": {"unset": ["a", "b"]}}
    after = there_and_back(Patch(msgspec.UNSET), Types([Patch]))
    assert after.a is msgspec.UNSET
    assert after.b is msgspec.UNSET


def test_cached_properties_and_typing_attributes_are_not_state():
    @dataclass
    class Circle(Generic[T]):
        r: T

        @functools.cached_property
        def area(self):
            return self.r * self.r

    class CircleModel(pydantic.BaseModel):
        r: int

        @functools.cached_property
        def area(self):
            return self.r * self.r

    class CircleStruct(msgspec.Struct, dict=True):
        r: int

        @functools.cached_property
        def area(self):
            return self.r * self.r

    for circle in (Circle[int](2), CircleModel(r=2), CircleStruct(2)):
        assert circle.area == 4
        assert Types().dump(circle) == {"r": 2}
        after = there_and_back(circle, Types([type(circle)]))
        assert "area" not in vars(after)
        assert after.area == 4


def test_each_class_has_its_form():
    found = {ALL.dump(make(cls, 1, 2, 3)).form for cls in CLASSES}
    assert found == set(FORMS) - {"custom"}


# ---- what would be lost is refused ---------------------------------------------------------------------------------


def with_attribute(obj: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        (setattr if isinstance(obj, msgspec.Struct) else object.__setattr__)(obj, name, value)
    return obj


def without(obj: Any, name: str) -> Any:
    if isinstance(obj, msgspec.Struct):
        delattr(obj, name)
    else:
        object.__delattr__(obj, name)
    return obj


class SlotBase:
    __slots__ = ("hidden",)


@dataclass(slots=True)
class OnSlots(SlotBase):
    x: int = 1


class StructOnSlots(msgspec.Struct, SlotBase):
    x: int = 1


class ModelOnSlots(pydantic.BaseModel):
    __slots__ = ("hidden",)
    x: int = 1


@dataclass
class AlsoDict(dict):
    x: int = 1


@dataclass
class AlsoStr(str):  # noqa: SLOT000 - has attributes
    x: int = 1


@dataclass
class AlsoError(Exception):
    x: int = 1


@dataclass
class Inventive:
    x: int

    def __getattr__(self, name):
        return 42

    def helper(self):
        return self.x


class Lenient(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value):
        made = object.__new__(cls)
        made._name_, made._value_ = "MADE_UP", value
        return made


REFUSED = {
    "a dataclass with an attribute that is no field": (with_attribute(Plain(1), z=2), "'z'"),
    "a frozen dataclass with an attribute that is no field": (with_attribute(Frozen(1, 2, 3), z=2), "'z'"),
    "an attribute that hides a method": (with_attribute(Inventive(1), helper=2), "'helper'"),
    "an attribute beside slots": (with_attribute(make(HalfSlotted, 1, 2, 3), z=2), "'z'"),
    "a slot in a base": (with_attribute(OnSlots(), hidden=2), "'hidden'"),
    "a slot in a base of a Struct": (with_attribute(StructOnSlots(), hidden=2), "'hidden'"),
    "a slot in a model": (with_attribute(ModelOnSlots(), hidden=2), "'hidden'"),
    "a Struct with an attribute that is no field": (with_attribute(DictStruct(1, 2, 3), z=2), "'z'"),
    "a model with an attribute that is no field": (with_attribute(Model(a=1), _z=2), "'_z'"),
    "a named tuple with attributes": (with_attribute(TypedSubclass(1, 2, 3), z=2), "'z'"),
    "a dataclass with an unset field": (without(Frozen(1, 2, 3), "b"), "no value for its field 'b'"),
    "a slotted dataclass with an unset field": (without(Slotted(1, 2, 3), "b"), "no value for its field 'b'"),
    "an unset field behind __getattr__": (without(Inventive(1), "x"), "no value for its field 'x'"),
    "a Struct with an unset field": (without(Struct(1), "a"), "no value for its field 'a'"),
    "a model with an unset field": (Model.model_construct(b=1), "no value for its field 'a'"),
    "a model with an unset private attribute": (
        without(OpenModel(a=1), "__pydantic_private__"),
        "no value for its field '_",
    ),
    "a model that was never initialised": (Model.__new__(Model), "never initialised"),
    "a dataclass that is a dict": (AlsoDict(), "also a dict"),
    "a dataclass that is a str": (AlsoStr(), "also a str"),
    "a dataclass that is an exception": (AlsoError(), "also a Exception"),
    "a named tuple with too few items": (tuple.__new__(Typed, (1,)), "1 items for 3 fields"),
    "a member that the Enum does not list": (Lenient(7), "not one of the members"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_attributes_that_would_be_lost_are_refused(what):
    obj, match = REFUSED[what]
    with invalid("invalid.value", match):
        Types().dump(obj)


def test_private_attributes_that_cannot_come_back_are_refused():
    undeclared = with_attribute(OpenModel(a=1), __pydantic_private__={"_note": 1, "_log": 2, "_z": 3})
    with invalid("invalid.value", "'_z'"):
        ALL.dump(undeclared)
    deleted = with_attribute(OpenModel(a=1), __pydantic_private__={"_note": 1})
    with invalid("invalid.value", "no value for its field '_log'"):
        ALL.dump(deleted)
    with invalid("invalid.value", "'_z'"):
        ALL.dump(with_attribute(Model(a=1), __pydantic_private__={"_z": 3}))


def test_empty_slots_in_bases_lose_nothing_and_are_fine():
    types = Types([OnSlots, StructOnSlots, ModelOnSlots])
    for obj in (OnSlots(2), StructOnSlots(2), ModelOnSlots(x=2)):
        assert there_and_back(obj, types) == obj


class SubDict(dict):
    pass


@pytest.mark.parametrize(
    "obj",
    [
        *(1, "x", None, [], {}, object(), ValueError("x"), SubDict(), collections.defaultdict(list), Plain, Color, os),
        *(collections.OrderedDict(), os.stat_result(range(10)), pydantic.BaseModel, len, lambda: 1),
    ],
    ids=lambda obj: type(obj).__name__,
)
def test_class_without_fields_has_no_form(obj):
    assert ALL.dump(obj) is None


def test_dump_is_a_shallow_copy():
    inner = [Plain(1)]
    outer = Plain(inner)
    record = ALL.dump(outer)
    assert record["a"] is inner
    record["a"] = None
    assert outer.a is inner
    assert ALL.load(ALL.dump(outer)).a is inner


# ---- data is only data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["os.system", "Plain", "builtins.eval", "test_schema.Plain", "Color", ""])
@pytest.mark.parametrize("form", [*FORMS, "nonsense"])
def test_unregistered_schema_loads_as_a_record(name, form):
    types = Types([Struct, Level])
    record = Record(name, 1, form, {"a": 1})
    assert types.load(record) is record
    member = Member(name, 1, "RED", "red")
    assert types.load(member) is member


def test_loading_a_schema_named_like_a_module_imports_nothing():
    before = set(sys.modules)
    Types([Plain]).load(Record("antigravity", 1, "dataclass", {}))
    Types([Plain]).load(Record("xmlrpc.client.ServerProxy", 1, "custom", {"uri": "http://x"}))
    assert set(sys.modules) == before


def test_nested_classes_that_were_not_registered_stay_records():
    after = there_and_back(Plain(Struct(1)), Types([Plain]))
    assert type(after) is Plain
    assert type(after.a) is Record
    assert after.a.schema == "Struct"


def test_the_module_needs_neither_pydantic_nor_msgspec():
    code = (
        "import sys\n"
        "from dataclasses import dataclass\n"
        "from backtrail.engine.schema.registry import Types\n"
        "@dataclass\n"
        "class A: x: int\n"
        "types = Types().for_state(A)\n"
        "assert types.load(types.dump(A(1))) == A(1)\n"
        "assert types.dump({}) is None\n"
        "assert not {'pydantic', 'msgspec'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


# ---- records and members -------------------------------------------------------------------------------------------


def test_record_equals_a_dict_with_the_same_items():
    record = Record("A", 1, "dataclass", {"x": 1, "y": 2})
    assert record == {"y": 2, "x": 1}
    assert {"y": 2, "x": 1} == record  # noqa: SIM300 - from the other side, too
    assert record == Record("A", 1, "dataclass", {"y": 2, "x": 1})
    for other in (
        Record("B", 1, "dataclass", record),
        Record("A", 2, "dataclass", record),
        Record("A", 1, "struct", record),
        Record("A", 1, "dataclass", {"x": 1}),
        {"x": 1},
        [("x", 1), ("y", 2)],
    ):
        assert record != other
        assert not record == other  # noqa: SIM201 - both operators are under test
    with pytest.raises(TypeError, match="unhashable"):
        hash(record)


def test_repr_of_a_record_can_be_evaluated():
    record = Record("Outer.A", 2, "struct", {"x": [1]})
    assert repr(record) == "Record('Outer.A', 2, 'struct', {'x': [1]})"
    assert eval(repr(record)) == record


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, Record.copy, lambda r: pickle.loads(pickle.dumps(r))])
def test_copies_of_a_record_keep_its_schema(how):
    record = Record("A", 2, "struct", {"x": [1]})
    made = how(record)
    assert type(made) is Record
    assert made == record
    assert made is not record
    made["y"] = 1
    assert "y" not in record


@pytest.mark.parametrize("how", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_a_record_that_contains_itself_can_be_copied(how):
    record = Record("A", 2, "struct", {})
    record["self"] = record
    made = how(record)
    assert made["self"] is made
    assert made.schema == "A"


def test_member_is_frozen_and_equal_by_its_parts():
    member = Member("Color", 1, "RED", ["not", "hashable"])
    assert len({member, Member("Color", 1, "RED", ["not", "hashable"])}) == 1
    for other in (("Hue", 1, "RED", 0), ("Color", 2, "RED", 0), ("Color", 1, "BLUE", 0), ("Color", 1, "RED", 0)):
        assert member != Member(*other)
    with pytest.raises(dataclasses.FrozenInstanceError):
        member.name = "BLUE"  # type: ignore[misc]
    assert copy.deepcopy(member) == pickle.loads(pickle.dumps(member)) == member


def test_records_and_members_are_dumped_as_themselves():
    record, member = Record("A", 2, "struct", {"": {"unset": ["x"]}}), Member("Color", 1, None, 3)
    assert ALL.dump(record) is record
    assert ALL.dump(member) is member


@pytest.mark.parametrize(
    "broken",
    [
        Record("", 1, "struct", {}),
        Record(None, 1, "struct", {}),
        Record("A", 0, "struct", {}),
        Record("A", True, "struct", {}),
        Record("A", 1, "enum", {}),
        Record("A", 1, "struct", {1: 2}),
        Member("", 1, "X", 1),
        Member("A", "1", "X", 1),
    ],
    ids=repr,
)
def test_unloadable_record_made_by_hand_is_refused(broken):
    with invalid("invalid.value", "made by hand"):
        Types().dump(broken)


# ---- names and versions --------------------------------------------------------------------------------------------


class Outer:
    @dataclass
    class Inner:
        x: int = 1

    class Box(pydantic.BaseModel, Generic[T]):
        x: T


def test_schema_name_starts_at_the_innermost_function():
    @dataclass
    class Local:
        class Nested(NamedTuple):
            x: int

    assert schema_of(Plain) == ("Plain", 1)
    assert schema_of(Outer.Inner) == ("Outer.Inner", 1)
    assert schema_of(Local) == ("Local", 1)
    assert schema_of(Local.Nested) == ("Local.Nested", 1)
    assert schema_of(Boxed[int]) == ("Boxed", 1)
    assert schema_of(Outer.Box[int]) == ("Outer.Box[int]", 1)


def test_declared_name_and_version_are_not_inherited():
    @schema("executor", version=3)
    @dataclass
    class Team:
        x: int

    @dataclass
    class SubTeam(Team):
        pass

    @schema(version=2)
    class Point(NamedTuple):
        x: int

    @schema("shade")
    class Shade(enum.Enum):
        DARK = 1

    @schema("one")
    class One(msgspec.Struct):
        x: int

    assert schema_of(Team) == ("executor", 3)
    assert schema_of(SubTeam) == ("SubTeam", 1)
    assert schema_of(Point) == ("Point", 2)
    assert Types().dump(Team(1)) == Record("executor", 3, "dataclass", {"x": 1})
    assert Types().dump(Shade.DARK) == Member("shade", 1, "DARK", 1)
    types = Types([Team, Shade, One])
    for value in (Team(1), Shade.DARK, One(1)):
        assert there_and_back(value, types) == value


def test_parametrised_model_shares_upcasters_of_its_origin():
    @schema("crate")
    class Crate(pydantic.BaseModel, Generic[T]):
        x: T

    assert schema_of(Crate[int]) == ("crate[int]", 1)

    @upcast(Crate, from_version=1)
    def doubled(fields):
        return {"x": fields["x"] * 2}

    assert schema_of(Crate[int]) == ("crate[int]", 2)
    assert Types([Crate[int]]).load(Record("crate[int]", 1, "pydantic", {"x": 2})) == Crate[int](x=4)
    schema("box")(Crate[int])
    assert schema_of(Crate[int]) == ("box", 2)


@pytest.mark.parametrize("name", ["", 3, Plain])
def test_a_schema_name_has_to_be_a_string(name):
    with invalid("invalid.schema", r"@backtrail.schema\(name="):
        schema(name)


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0])
def test_version_must_be_a_positive_int(version):
    for call in (
        lambda: schema(version=version),
        lambda: upcast(Plain, from_version=version),
        lambda: Type(SubDict, "x", dump=dict, load=SubDict, version=version),
    ):
        with invalid("invalid.schema", "version must be an int"):
            call()


def test_schema_below_the_dataclass_decorator_is_refused():
    with invalid("invalid.schema", "above @dataclass"):

        @dataclass(slots=True)
        @schema("x")
        class Late:
            x: int

    with invalid("invalid.schema", r"backtrail\.Type"):
        schema("x")(int)


def test_declarations_do_not_keep_a_class_alive():
    @schema("gone")
    @dataclass
    class Gone:
        x: int = 1

    @upcast(Gone, from_version=1)
    def nothing(fields):
        return fields

    there_and_back(Gone(), Types().for_state(Gone))
    assert Types().dump(Gone()) == {"x": 1}
    ref = weakref.ref(Gone)
    del Gone
    gc.collect()
    assert ref() is None


# ---- upcasters -----------------------------------------------------------------------------------------------------


def evolved(form: str) -> tuple[Any, Types]:
    """A class of this form whose field `n` was once called `count`, and before that `number`."""
    if form == "dataclass":

        @dataclass
        class Tally:
            n: int
            by: str = "?"

    elif form == "struct":

        class Tally(msgspec.Struct):
            n: int
            by: str = "?"

    elif form == "pydantic":

        class Tally(pydantic.BaseModel):
            n: int
            by: str = "?"

    else:

        class Tally(NamedTuple):
            n: int
            by: str = "?"

    @upcast(Tally, from_version=2)
    def second(fields):
        fields["n"] = fields.pop("count")
        return fields

    @upcast(Tally, from_version=1)
    def first(fields):
        return {"count": fields["number"] + 1}

    return Tally, Types([Tally])


@pytest.mark.parametrize("form", ["dataclass", "struct", "pydantic", "namedtuple"])
def test_upcasters_run_in_order_from_the_stored_version_on(form):
    cls, types = evolved(form)
    assert schema_of(cls) == ("evolved.<locals>.Tally".rpartition(".")[2], 3)
    assert types.load(Record("Tally", 1, form, {"number": 1})) == cls(n=2)
    assert types.load(Record("Tally", 2, form, {"count": 1, "by": "me"})) == cls(n=1, by="me")
    assert types.load(Record("Tally", 3, form, {"n": 1})) == cls(n=1)
    assert types.dump(cls(n=1)).version == 3


def test_upcasters_are_not_inherited():
    cls, _ = evolved("dataclass")

    class Sub(cls):
        pass

    assert schema_of(Sub)[1] == 1


def test_an_upcaster_gets_a_dict_of_its_own():
    _, types = evolved("dataclass")
    record = Record("Tally", 2, "dataclass", {"count": 1})
    types.load(record)
    assert record == {"count": 1}


def test_upcaster_declared_after_the_registry_runs():
    @dataclass
    class Late:
        x: int

    types = Types([Late])
    assert types.dump(Late(1)).version == 1

    @upcast(Late, from_version=1)
    def negate(fields):
        return {"x": -fields["x"]}

    assert types.load(Record("Late", 1, "dataclass", {"x": 1})) == Late(-1)
    assert types.dump(Late(1)).version == 2


def test_a_missing_upcaster_is_named():
    @schema(version=4)
    @dataclass
    class Gap:
        x: int

    @upcast(Gap, from_version=1)
    def one(fields):
        return fields

    with invalid("invalid.schema", r"@backtrail.upcast\(Gap, from_version=2\)") as caught:
        Types([Gap]).load(Record("Gap", 1, "dataclass", {"x": 1}))
    assert caught.value.details["from_version"] == 2


def test_record_of_a_newer_version_is_refused():
    with invalid("invalid.schema", "saved at version 2, and this code only knows"):
        ALL.load(Record("Plain", 2, "dataclass", {"a": 1}))
    with invalid("invalid.schema", "saved at version 9, and this code only knows"):
        ALL.load(Member("Color", 9, "RED", "red"))


@pytest.mark.parametrize(
    ("function", "cause"),
    [(lambda fields: fields["gone"], KeyError), (lambda _: None, TypeError), (lambda _: {1: 2}, TypeError)],
)
def test_an_upcaster_that_fails_is_reported_with_its_cause(function, cause):
    @dataclass
    class Failing:
        x: int

    upcast(Failing, from_version=1)(function)
    with invalid("invalid.schema", "the upcaster of 'Failing' from version 1 failed") as caught:
        Types([Failing]).load(Record("Failing", 1, "dataclass", {"x": 1}))
    assert isinstance(caught.value.__cause__, cause)


def test_second_upcaster_is_refused_unless_reloaded():
    @dataclass
    class Twice:
        x: int

    def declare(amount):
        @upcast(Twice, from_version=1)
        def add(fields):
            return {"x": fields["x"] + amount}

    declare(1)
    declare(2)
    assert Types([Twice]).load(Record("Twice", 1, "dataclass", {"x": 0})) == Twice(2)
    with invalid("invalid.schema", "already"):
        upcast(Twice, from_version=1)(dict)


def test_upcaster_beyond_the_declared_version_is_refused():
    @schema(version=2)
    @dataclass
    class Fixed:
        x: int

    with invalid("invalid.schema", "version=3"):
        upcast(Fixed, from_version=2)(dict)
    upcast(Fixed, from_version=1)(dict)
    with invalid("invalid.schema", "version=2"):
        schema(version=1)(Fixed)
    assert schema_of(Fixed) == ("Fixed", 2)


def test_upcast_takes_a_class():
    with invalid("invalid.schema", "takes a class"):
        upcast("Plain", from_version=1)  # type: ignore[arg-type]
    with invalid("invalid.schema", "takes a class"):
        schema_of(int | None)  # type: ignore[arg-type]


def test_fields_added_by_an_upcaster_count_as_set():
    class Person(pydantic.BaseModel, extra="allow"):
        first: str = "?"
        last: str = "?"
        age: int = 0
        _seen: int = 0

    @upcast(Person, from_version=1)
    def split(fields):
        fields["first"], fields["last"] = fields.pop("name").split()
        fields["_seen"] = 1
        return fields

    stored = {"name": "Ada L", "age": 3, "": {"set": ["name", "z"], "extra": {"z": 1, "": 2}}}
    person = Types([Person]).load(Record("Person", 1, "pydantic", stored))
    assert (person.first, person.last, person.age, person._seen) == ("Ada", "L", 3, 1)
    assert person.model_extra == {"z": 1, "": 2}
    assert person.model_fields_set - {""} == {"first", "last", "z", "_seen"}


def test_upcaster_sees_unset_fields_of_a_struct():
    class Patch(msgspec.Struct):
        new: int | msgspec.UnsetType = 1

    @upcast(Patch, from_version=1)
    def rename(fields):
        return {"new": fields["old"]}

    after = Types([Patch]).load(Record("Patch", 1, "struct", {"": {"unset": ["old"]}}))
    assert after.new is msgspec.UNSET


# ---- fields that do not fit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Plain, Slotted, Struct, Model, Typed, Bare], ids=lambda cls: cls.__name__)
def test_missing_fields_take_their_defaults(cls):
    fields = {"a": 1} if cls not in (Slotted, Bare) else {"a": 1, "b": 2}
    assert ALL.load(Record(cls.__name__, 1, "dataclass", fields)) == cls(**fields)


def test_default_factories_make_a_new_value_for_each_instance():
    for cls in (Plain, Struct, Model):
        one, two = (ALL.load(Record(cls.__name__, 1, "struct", {"a": 1})) for _ in range(2))
        assert one.c == two.c == []
        assert one.c is not two.c


@pytest.mark.skipif(PYDANTIC < (2, 10), reason="this pydantic has no such factories")
def test_default_factory_of_a_model_gets_other_fields():
    class Derived(pydantic.BaseModel):
        a: int
        b: int = pydantic.Field(default_factory=lambda data: data["a"] + 1)

    assert Types([Derived]).load(Record("Derived", 1, "pydantic", {"a": 1})) == Derived(a=1)


def test_missing_fields_of_a_model_are_not_set():
    after = ALL.load(Record("OpenModel", 1, "pydantic", {"a": 1}))
    assert identical(after) == identical(OpenModel(a=1))


@pytest.mark.parametrize("cls", [Plain, Slotted, Struct, OddStruct, Model, Typed, Bare], ids=lambda cls: cls.__name__)
def test_missing_field_without_default_needs_an_upcaster(cls):
    with invalid("invalid.schema", r"needs a field 'a'.*upcaster") as caught:
        ALL.load(Record(cls.__name__, 1, "dataclass", {"b": 1, "c": b""}))
    assert caught.value.details["field"] == "a"


def test_keyword_only_struct_field_after_default_is_required():
    with invalid("invalid.schema", "needs a field 'c'"):
        ALL.load(Record("OddStruct", 1, "struct", {"a": 1}))


@pytest.mark.parametrize("cls", [Plain, Slotted, Struct, Model, Typed, Bare], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("extra", [{"z": 1}, {"": {"z": 1}}], ids=["field", "hidden"])
def test_an_unknown_field_asks_for_an_upcaster(cls, extra):
    with invalid("invalid.schema", "has a field '.?z'.*upcaster"):
        ALL.load(Record(cls.__name__, 1, "dataclass", {"a": 1, "b": 2, "c": 3, **extra}))


def test_reserved_field_must_be_a_dict():
    with invalid("invalid.schema", "did not write"):
        ALL.load(Record("Plain", 1, "dataclass", {"a": 1, "": 5}))


def test_class_can_change_its_form():
    for stored, cls in [(Model(a=1), Plain), (Plain(1), Struct), (Struct(1), Typed), (Typed(1), Model)]:
        record = ALL.dump(stored)
        moved = Record(cls.__name__, 1, record.form, record)
        assert ALL.load(moved).a == 1
        assert type(ALL.load(moved)) is cls


def test_error_of_a_default_factory_is_the_cause():
    @dataclass
    class Bad:
        x: int = field(default_factory=lambda: 1 // 0)

    with invalid("invalid.schema", "could not be built") as caught:
        Types([Bad]).load(Record("Bad", 1, "dataclass", {}))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_class_that_became_abstract_is_reported():
    @dataclass
    class Abstract(abc.ABC):
        x: int

        @abc.abstractmethod
        def method(self): ...

    with invalid("invalid.schema", "could not be built"):
        Types([Abstract]).load(Record("Abstract", 1, "dataclass", {"x": 1}))


# ---- Enums that changed --------------------------------------------------------------------------------------------


def test_a_member_that_is_gone_is_refused():
    with invalid("invalid.schema", "no longer has a member 'BLUE'; restore the member, or write an upcaster"):
        ALL.load(Member("Color", 1, "BLUE", "blue"))
    with invalid("invalid.schema", "no longer has a member None"):
        ALL.load(Member("Color", 1, None, "blue"))


@pytest.mark.parametrize("value", ["rot", True, None, Record("X", 1, "struct", {})])
def test_a_member_whose_value_changed_is_refused(value):
    with invalid("invalid.schema", "was saved as .*; restore the value, or write an upcaster"):
        ALL.load(Member("Color", 1, "RED", value))
    with invalid("invalid.schema", "was saved as True and is 1 now"):
        ALL.load(Member("Level", 1, "LOW", True))


def test_flags_that_are_gone_are_refused():
    with invalid("invalid.schema", "9 is no longer a combination"):
        ALL.load(Member("Perm", 1, None, 9))

    class Ejecting(enum.IntFlag, boundary=enum.EJECT):
        A = 1

    class Conforming(enum.Flag, boundary=enum.CONFORM):
        A = 1

    for cls in (Ejecting, Conforming):
        with invalid("invalid.schema", "9 is no longer a combination"):
            Types([cls]).load(Member(cls.__name__, 1, None, 9))


def test_upcasters_of_an_enum_rename_members():
    class Mood(enum.Enum):
        GLAD = "glad"

    @upcast(Mood, from_version=1)
    def rename(fields):
        assert fields == {"name": "HAPPY", "value": "happy"}
        return {"name": "GLAD"}

    types = Types([Mood])
    assert types.load(Member("Mood", 1, "HAPPY", "happy")) is Mood.GLAD
    assert types.dump(Mood.GLAD) == Member("Mood", 2, "GLAD", "glad")


@pytest.mark.parametrize("eq", [True, False])
def test_members_with_values_of_unknown_classes_load(eq):
    @dataclass(frozen=True, eq=eq)
    class Rgb:
        r: int

    class Paint(enum.Enum):
        RED = Rgb(1)

    for types in (Types([Paint]), Types().for_state(Paint)):
        assert there_and_back(Paint.RED, types) is Paint.RED
    with invalid("invalid.schema", "was saved as"):
        Types([Paint]).load(Member("Paint", 1, "RED", Record("Rgb", 1, "dataclass", {"r": 2})))


def test_class_cannot_become_an_enum_or_stop_being_one():
    with invalid("invalid.schema", "saved with fields, but Color is an Enum"):
        ALL.load(Record("Color", 1, "dataclass", {"a": 1}))
    with invalid("invalid.schema", "member of an Enum, but Plain is not an Enum"):
        ALL.load(Member("Plain", 1, "RED", "red"))


# ---- the registry --------------------------------------------------------------------------------------------------


def other_plain() -> Any:
    @dataclass
    class Plain:
        a: Any

    return Plain


def test_extended_registry_is_new_and_accepts_repeats():
    one = Types([Plain])
    two = one.extended(Struct, Plain, Boxed[int])
    assert "Struct" in repr(two)
    assert "Struct" not in repr(one)
    assert type(two.load(Record("Boxed", 1, "dataclass", {"a": 1, "b": 2, "c": 3}))) is Boxed
    assert type(one.load(Record("Struct", 1, "struct", {"a": 1}))) is Record
    assert one.extended() is one


def test_two_classes_of_one_schema_name_are_refused():
    other = other_plain()
    with invalid("invalid.schema", r"'Plain'.*other_plain.*@backtrail.schema\(name=") as caught:
        Types([Plain, other])
    assert caught.value.details["schema"] == "Plain"
    with invalid("invalid.schema", "two classes have the schema name"):
        Types([Plain]).for_state(other)
    with invalid("invalid.schema", "two classes have the schema name"):
        Types([Plain, Type(SubDict, "Plain", dump=dict, load=SubDict)])
    schema("OtherPlain")(other)
    assert there_and_back(other(1), Types([Plain, other])) == other(1)


def test_instance_with_a_foreign_schema_name_is_refused():
    with invalid("invalid.schema", "two classes have the schema name 'Plain'"):
        Types([Plain]).dump(other_plain()(1))


@pytest.mark.parametrize("item", [int, SubDict, "Plain", list[int], int | None, enum.Enum, msgspec.Struct, Plain(1)])
def test_class_without_fields_cannot_be_registered(item):
    with invalid("invalid.schema", r"backtrail\.Type\(cls, name"):
        Types([item])


def test_a_typed_dict_may_be_named_among_the_types():
    class Movie(TypedDict):
        name: str

    assert repr(Types([Movie])) == "Types()"


# ---- custom types --------------------------------------------------------------------------------------------------

COUNTER = Type(
    collections.Counter, "counter", dump=lambda c: {"items": dict(c)}, load=lambda f: collections.Counter(f["items"])
)


def test_a_custom_type_comes_back():
    types = Types([COUNTER])
    before = collections.Counter("abca")
    assert types.dump(before) == Record("counter", 1, "custom", {"items": {"a": 2, "b": 1, "c": 1}})
    after = there_and_back(before, types)
    assert type(after) is collections.Counter
    assert after == before
    assert there_and_back([before], types) == [before]
    assert types.extended(COUNTER).dump(before) == types.dump(before)


def test_a_custom_type_is_not_meant_for_subclasses():
    class Sub(collections.Counter):
        pass

    assert Types([COUNTER]).dump(Sub()) is None


def test_a_custom_type_may_use_the_reserved_name():
    types = Types([Type(SubDict, "sub", dump=lambda d: {"": list(d)}, load=lambda f: SubDict.fromkeys(f[""]))])
    assert there_and_back(SubDict(a=None), types) == {"a": None}


def test_custom_type_replaces_the_form_of_its_class():
    custom = Type(Plain, "plain", dump=lambda p: {"it": p.a}, load=lambda f: Plain(f["it"]))
    types = Types([custom, Plain])
    assert types.dump(Plain(1)) == Record("plain", 1, "custom", {"it": 1})
    assert there_and_back(Plain(1), types) == Plain(1)
    assert types.load(Record("Plain", 1, "dataclass", {"a": 1})) == Plain(1)
    assert Types([Plain, custom]).dump(Plain(1)).form == "custom"


def test_upcasters_of_a_custom_type_run():
    class Bag(dict):
        pass

    @upcast(Bag, from_version=1)
    def rename(fields):
        return {"new": fields["old"]}

    with invalid("invalid.schema", "declare version=2"):
        Types([Type(Bag, "bag", dump=dict, load=Bag)])
    types = Types([Type(Bag, "bag", dump=dict, load=Bag, version=2)])
    assert types.load(Record("bag", 1, "custom", {"old": 1})) == {"new": 1}
    assert types.load(Record("bag", 1, "dataclass", {"old": 1})) == {"new": 1}


def test_change_to_a_custom_type_needs_a_version():
    with invalid("invalid.schema", "was saved as a dataclass and is a backtrail.Type now; give the Type version=2"):
        Types([COUNTER]).load(Record("counter", 1, "dataclass", {"items": {}}))
    with invalid("invalid.schema", "was saved by a backtrail.Type and is a dataclass now"):
        ALL.load(Record("Plain", 1, "custom", {"a": 1}))


def test_error_of_a_custom_type_is_the_cause():
    def fail(_):
        raise RuntimeError("no")

    types = Types([Type(SubDict, "sub", dump=fail, load=fail)])
    with invalid("invalid.value", "dump function of 'sub' raised") as caught:
        types.dump(SubDict())
    assert isinstance(caught.value.__cause__, RuntimeError)
    with invalid("invalid.schema", "load function of 'sub' raised") as caught:
        types.load(Record("sub", 1, "custom", {}))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("result", [None, [("a", 1)], {1: 2}])
def test_dump_of_a_custom_type_must_return_fields(result):
    with invalid("invalid.value", "must return a dict"):
        Types([Type(SubDict, "sub", dump=lambda _: result, load=SubDict)]).dump(SubDict())


def test_a_custom_type_is_checked_when_it_is_made():
    for args, match in [
        ((dict, "x"), "stored as it is"),
        ((Record, "x"), "stored as it is"),
        (("SubDict", "x"), "takes a class"),
        ((list[int], "x"), "takes a class"),
        ((SubDict, ""), "schema name"),
    ]:
        with invalid("invalid.schema", match):
            Type(*args, dump=dict, load=dict)
    with invalid("invalid.schema", "needs functions"):
        Type(SubDict, "x", dump=None, load=dict)  # type: ignore[arg-type]


def test_one_class_with_two_custom_types_is_refused():
    one, two = (Type(SubDict, name, dump=dict, load=SubDict) for name in ("one", "two"))
    with invalid("invalid.schema", "two different"):
        Types([one, two])


# ---- the classes that a state names --------------------------------------------------------------------------------


@dataclass
class Leaf:
    x: int = 1


class LeafA(Leaf):
    pass


class LeafB(msgspec.Struct):
    x: int = 1


class LeafC(pydantic.BaseModel):
    x: int = 1


class LeafD(NamedTuple):
    x: int = 1


class LeafE(enum.Enum):
    X = 1


class Movie(TypedDict):
    leaf: typing.NotRequired[LeafD]


Bounded = TypeVar("Bounded", bound=LeafB)
Either = TypeVar("Either", LeafA, LeafC)
Id = typing.NewType("Id", LeafD)


@dataclass
class Node:
    children: "list[Node]"
    parent: Optional["Node"] = None
    leaf: Leaf | None = None


@pytest.mark.parametrize(
    ("annotation", "names"),
    [
        (Leaf, {"Leaf"}),
        (None, set()),
        (Any, set()),
        (int, set()),
        (dict[str, Any], set()),
        (list[LeafB], {"LeafB"}),
        (dict[LeafE, tuple[LeafA, ...]], {"LeafE", "LeafA"}),
        (Optional[LeafC], {"LeafC"}),  # noqa: UP045 - both spellings
        (LeafB | LeafD | None, {"LeafB", "LeafD"}),
        (Annotated[list[Leaf], ["unhashable"]], {"Leaf"}),
        (Literal[LeafE.X, 3], {"LeafE"}),
        (Movie, {"LeafD"}),
        (Node, {"Node", "Leaf"}),
        (Boxed[Boxed[Leaf]], {"Boxed", "Leaf"}),
        (GenericModel[Leaf], {"GenericModel[Leaf]", "Leaf"}),
        (DictStruct[LeafE], {"DictStruct", "LeafE"}),
        (list[Bounded], {"LeafB"}),  # type: ignore[valid-type]
        (list[Either], {"LeafA", "LeafC"}),  # type: ignore[valid-type]
        (Id, {"LeafD"}),
        (type[Leaf], set()),
        (typing.Callable[[Leaf], LeafB], set()),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_every_class_that_an_annotation_names_is_found(annotation, names):
    types = Types().for_state(annotation)
    assert {schema_of(cls)[0] for cls in types} == names
    assert repr(Types().for_state(annotation)) == repr(types)


@pytest.mark.parametrize("form", ["dataclass", "struct", "pydantic", "namedtuple", "typeddict"])
def test_classes_are_reachable_through_fields_of_every_form(form):
    hints = {"a": list[Leaf], "b": dict[str, LeafE | None]}
    made = {
        "dataclass": lambda: dataclasses.make_dataclass("Made", list(hints.items())),
        "struct": lambda: msgspec.defstruct("Made", list(hints.items())),
        "pydantic": lambda: pydantic.create_model("Made", **{k: (v, ...) for k, v in hints.items()}),
        "namedtuple": lambda: NamedTuple("Made", list(hints.items())),
        "typeddict": lambda: TypedDict("Made", hints),
    }[form]()
    assert {cls.__name__ for cls in Types().for_state(made)} - {"Made"} == {"Leaf", "LeafE"}


def test_private_attributes_count_and_class_variables_do_not():
    @dataclass
    class State:
        kind: ClassVar[LeafB]
        x: int

    class ModelState(pydantic.BaseModel):
        _leaf: Leaf | None = None

    assert repr(Types().for_state(State)) == "Types(State)"
    assert repr(Types().for_state(ModelState)) == "Types(ModelState, Leaf)"


def test_unresolvable_names_are_skipped():
    @dataclass
    class State:
        class Inner(NamedTuple):
            x: int

        a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821
        b: "list[Leaf | AlsoNowhere]"  # type: ignore[name-defined]  # noqa: F821
        c: "State | None"
        d: "Inner"

    assert {cls.__name__ for cls in Types().for_state(State)} == {"State", "Leaf", "Inner"}


def test_unresolvable_annotation_does_not_hide_others():
    @dataclass
    class State:
        a: "1 / 0"
        b: Leaf

    assert {cls.__name__ for cls in Types().for_state(State)} == {"State", "Leaf"}


def test_for_state_extends_the_registry():
    types = Types([COUNTER]).for_state(Node)
    state = Node([Node([], leaf=Leaf(2))], parent=Node([collections.Counter("a")]))  # type: ignore[list-item]
    assert there_and_back(state, types) == state


# ---- the state as the caller's type --------------------------------------------------------------------------------


class Sized(Protocol):
    def size(self) -> int: ...


Callback = typing.NewType("Callback", Plain)


@pytest.mark.parametrize(
    ("value", "cls"),
    [
        ({"a": 1}, None),
        ({"a": 1}, Any),
        ({"a": 1}, object),
        ({"a": 1}, T),
        ({"a": 1}, dict),
        ({"a": 1}, dict[str, Any]),
        ({"a": 1}, collections.abc.Mapping[str, int]),
        ({"name": 3}, Movie),
        ([1], list[str]),
        ((1,), tuple[int, ...]),
        (1, int),
        (1, float),
        (None, type(None)),
        (None, Optional[Plain]),  # noqa: UP045 - both spellings
        ("a", Literal["a", "b"]),
        ({"a": 1}, Plain | dict),
        (Plain(1), Plain),
        (Plain(1), Callback),
        (UndecoratedSubclass(1), Plain),
        (Boxed(1, 2, 3), Boxed[int]),
        (Plain(1), Annotated[Plain, "note"]),
        (Plain(1), int | Plain),
        (Color.RED, Color),
        (Record("Gone", 1, "dataclass", {}), dict),
        (3, Sized),
    ],
    ids=str,
)
def test_state_of_the_right_type_is_returned_unchanged(value, cls):
    assert Types().convert_root(value, cls) is value


@pytest.mark.parametrize(
    ("value", "cls"),
    [
        ([], dict),
        ({}, list[int]),
        ("1", int),
        (1.0, int),
        (None, Plain),
        ([1], Plain),
        ({1: 2}, Plain),
        ([], Movie),
        ("red", Color),
        ({"name": "RED"}, Color),
        ("c", Literal["a", "b"]),
        (True, Literal[1]),
        ([], int | Plain),
        (Record("Gone", 1, "dataclass", {}), int),
        (Member("Gone", 1, "X", 1), str),
        ({}, SubDict),
    ],
    ids=str,
)
def test_a_state_of_another_type_is_refused(value, cls):
    with invalid("invalid.schema", "the state is of type") as caught:
        Types().convert_root(value, cls)
    assert caught.value.details["wanted"]


@pytest.mark.parametrize("cls", [Plain, Slotted, Struct, Model, Typed, OpenModel], ids=lambda cls: cls.__name__)
def test_a_plain_dict_becomes_the_class(cls):
    fields = {"a": 1, "b": [2], "c": {"x": 3}}
    after = Types().convert_root(fields, cls)
    assert after == cls(**fields)
    assert type(after) is cls
    assert Types().convert_root(fields, cls | None) == after


def test_plain_dict_is_upcast_from_version_one():
    cls, _ = evolved("struct")
    assert Types().convert_root({"number": 1}, cls) == cls(n=2)


def test_a_plain_dict_that_does_not_fit_is_refused():
    for cls in (Plain, Struct, Model, OpenModel):
        with invalid("invalid.schema", "needs a field 'a'"):
            Types().convert_root({}, cls)
        with invalid("invalid.schema", "has a field ''"):
            Types().convert_root({"a": 1, "": {"set": []}}, cls)


def test_a_record_of_another_schema_is_refused_naming_both():
    with invalid("invalid.schema", "saved as 'Other', not as 'Plain'") as caught:
        Types().for_state(Plain).convert_root(Record("Other", 1, "dataclass", {"a": 1}), Plain)
    assert (caught.value.details["saved"], caught.value.details["wanted"]) == ("Other", "Plain")
    with invalid("invalid.schema", "saved as 'Other', not as 'Color'"):
        Types().convert_root(Member("Other", 1, "RED", "red"), Color)


def test_record_of_the_named_class_becomes_an_instance():
    assert Types().convert_root(Record("Plain", 1, "dataclass", {"a": 1}), Plain) == Plain(1)
    assert Types().convert_root(Member("Color", 1, "RED", "red"), Color) is Color.RED
    assert Types().convert_root(Record("Boxed", 1, "struct", {"a": 1, "b": 2, "c": 3}), Boxed[int]) == Boxed(1, 2, 3)


def test_a_union_takes_the_class_that_the_record_names():
    record = Record("Struct", 1, "struct", {"a": 1})
    assert Types().convert_root(record, Plain | Struct) == Struct(1)
    with invalid("invalid.schema", "the state is of type Gone") as caught:
        Types().convert_root(Record("Gone", 1, "struct", {"a": 1}), Plain | Struct)
    assert isinstance(caught.value.__cause__, Invalid)


def test_a_custom_type_can_be_the_state():
    types = Types([COUNTER])
    value = collections.Counter("a")
    assert types.convert_root(value, collections.Counter) is value
    assert types.convert_root(Types([COUNTER]).dump(value), collections.Counter) == value
    with invalid("invalid.schema", "of type dict, not Counter"):
        types.convert_root({"a": 1}, collections.Counter)
