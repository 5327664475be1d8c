"""Which form a class has, and what is refused.

A *form* is a family of classes that say which fields they have: dataclasses, msgspec Structs, pydantic models and named
tuples. Enums count, too: their members have a name and a value. How instances of each form come apart is in `shapes`.

Nothing is imported to find out: pydantic and msgspec are looked for among the modules that are already loaded, for an
instance cannot exist before.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import operator
import sys
import types
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, NoReturn, get_origin

from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable


DATACLASS: Final = "dataclass"
STRUCT: Final = "struct"
PYDANTIC: Final = "pydantic"
NAMEDTUPLE: Final = "namedtuple"
CUSTOM: Final = "custom"
FORMS: Final = (DATACLASS, STRUCT, PYDANTIC, NAMEDTUPLE, CUSTOM)
ENUM: Final = "enum"
"""Not the form of a Record: the members of an Enum are names, not fields."""

# ---- which form -----------------------------------------------------------------------------------------------------


def form_of(cls: type) -> str | None:
    """The form of a class; None if it does not say which fields it has. Enum wins over what it is mixed with."""
    mro = cls.__mro__
    if enum.Enum in mro:
        return ENUM if cls.__members__ else None  # type: ignore[attr-defined]
    for module, base, form in (("msgspec", "Struct", STRUCT), ("pydantic.main", "BaseModel", PYDANTIC)):
        found = loaded(module, base)
        if found is not None and found in mro:
            return form if cls is not found else None
    if dataclasses.is_dataclass(cls):
        return DATACLASS
    if tuple in mro and isinstance(getattr(cls, "_fields", None), tuple) and hasattr(cls, "_make"):
        return NAMEDTUPLE
    return None


def class_of(annotation: object) -> type | None:
    """The class behind `Box` and `Box[int]`; None for what is not a class, such as a union."""
    origin = get_origin(annotation)
    found = annotation if origin is None else origin
    return found if isinstance(found, type) and found not in (types.UnionType, Annotated) else None


def is_typeddict(cls: type) -> bool:
    """Whether a class is a TypedDict, of typing or of typing_extensions: a plain dict at run time."""
    return dict in cls.__mro__ and hasattr(cls, "__required_keys__") and hasattr(cls, "__total__")


def generic_origin(cls: type) -> type | None:
    """The model that a parametrised pydantic model (`Box[int]`, a class of its own) was made from."""
    found = (cls.__dict__.get("__pydantic_generic_metadata__") or {}).get("origin")
    return found if isinstance(found, type) else None


def loaded(module: str, name: str) -> Any:
    """An attribute of a module, if that is loaded."""
    return getattr(sys.modules.get(module), name, None)


# ---- members of Enums -----------------------------------------------------------------------------------------------


def take_member(obj: enum.Enum) -> tuple[str | None, object]:
    """The name and value of a member; a combination of flags has no name, only a value."""
    cls, name = type(obj), obj._name_
    if cls.__members__.get(name) is obj:
        return name, obj._value_
    if not isinstance(obj, enum.Flag):
        refuse(obj, f"is not among the members of its Enum ({name!r}): add it to the class")
    return None, obj._value_


def build_member(cls: type[enum.Enum], name: str | None) -> enum.Enum:
    """The member of this name."""
    member = cls.__members__.get(name) if isinstance(name, str) else None
    if member is None:
        raise Invalid(
            f"{cls.__qualname__} has no member {name!r} any more: keep the member, "
            f"or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...)",
            code="invalid.schema",
            member=name,
        )
    return member


def build_flags(cls: type[enum.Enum], value: object) -> enum.Enum:
    """The combination of flags that has this value."""
    try:
        member = cls(value)
    except ValueError:
        member = None
    if type(member) is not cls or member._value_ != value:
        raise Invalid(
            f"{value!r} is not a combination of the members of {cls.__qualname__} any more: keep the members, "
            f"or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...)",
            code="invalid.schema",
            member=None,
        )
    return member


# ---- refusals -------------------------------------------------------------------------------------------------------


def unknown_field(cls: type, name: str) -> NoReturn:
    """The data has a field that the class does not have."""
    raise Invalid(
        f"{cls.__qualname__} has no field {name!r}, but what was saved has: "
        f"write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...) that drops or renames it",
        code="invalid.schema",
        field=name,
    )


def missing_field(cls: type, name: str) -> NoReturn:
    """The class has a field that neither the data nor a default gives."""
    raise Invalid(
        f"{cls.__qualname__} needs a field {name!r}, which what was saved does not have: give it a default, "
        f"or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...) that adds it",
        code="invalid.schema",
        field=name,
    )


def unset(obj: object, name: str) -> NoReturn:
    """An instance has nothing in one of its fields."""
    refuse(obj, f"has no value for its field {name!r}: set it before saving")


def refuse(obj: object, why: str) -> NoReturn:
    """An instance cannot be kept."""
    raise Invalid(f"an instance of {type(obj).__qualname__} {why}", code="invalid.value")


HIDDEN: Final = ""
"""The reserved field."""

_MISSING: Final = dataclasses.MISSING
_DERIVED: Final = frozenset({"__orig_class__"})


def shape_of(cls: type) -> Shape | None:
    """A new shape of a class that has fields. It does not refer to the class, so that caches may hold it."""
    shape = {DATACLASS: _Dataclass, STRUCT: _Struct, PYDANTIC: _Model, NAMEDTUPLE: _NamedTuple}.get(form_of(cls) or "")
    return shape(cls) if shape is not None else None


def unset_value() -> object:
    """What a Struct holds for a field that is not set."""
    return loaded("msgspec", "UNSET")


class Shape:
    """One class seen through its form."""

    form: ClassVar[str]

    def __init__(self, cls: type, names: tuple[str, ...]) -> None:
        self.names = names
        self.nameset = frozenset(names)
        self.derived = _DERIVED.union(
            name for k in cls.__mro__ for name, v in vars(k).items() if isinstance(v, functools.cached_property)
        )
        self.slots = tuple(
            name
            for k in cls.__mro__
            if k is not loaded("pydantic.main", "BaseModel")
            for name, v in vars(k).items()
            if isinstance(v, types.MemberDescriptorType) and name not in self.nameset
        )

    def take(self, obj: Any) -> dict[str, Any]:
        """The fields of an instance. May be the instance's own dict: copy it, do not change it."""
        raise NotImplementedError

    def build(self, cls: type, fields: dict[str, Any], hidden: dict[str, Any]) -> object:
        """An instance of `cls` with these fields. `hidden` is the content of the reserved field, "unset" apart."""
        raise NotImplementedError

    def held(self, obj: Any) -> tuple[dict[str, Any], frozenset[str] | None] | None:  # noqa: ARG002 - see below
        """What `take` gives, in fewer steps: the instance's own dict, and which fields were set, if not all.

        None for an instance that holds anything else, or whose dict has another order.
        """
        return None

    def opener(self, was_set: frozenset[str]) -> Callable[[Any], dict[str, Any] | None] | None:  # noqa: ARG002
        """What gives an instance's own dict, in any order, if it holds nothing else, and these fields were set."""
        return None

    def maker(self, cls: Any, was_set: frozenset[str]) -> Callable[[dict[str, Any]], object] | None:  # noqa: ARG002
        """What `build` does, in fewer steps, for all fields in their order; the dict becomes the instance's own."""
        return None

    def refuse_rest(self, obj: Any) -> None:
        """Refuses an instance that holds something which is not a field."""
        held = getattr(obj, "__dict__", ())
        rest = [name for name in held if name not in self.nameset and name not in self.derived]
        rest += [name for name in self.slots if _has(obj, name)]
        if rest:
            refuse(
                obj,
                f"holds {rest[0]!r}, which is not one of its fields and would be lost: make it a field, "
                "or register the class with backtrail.Type",
            )

    def check_names(self, cls: type, fields: dict[str, Any], hidden: dict[str, Any]) -> None:
        """Refuses fields that the class does not have. What only models have is let go if it says nothing more."""
        unknown = [name for name in fields if name not in self.nameset]
        unknown += [f"{HIDDEN}.{name}" for name in hidden if name != "set"]
        if unknown:
            unknown_field(cls, unknown[0])


class _Dataclass(Shape):
    form = DATACLASS

    def __init__(self, cls: type) -> None:
        super().__init__(cls, tuple(f.name for f in dataclasses.fields(cls)))
        native = _native_base(cls)
        self.native = native.__name__ if native is not None else None
        # Fields that live in a slot or behind another descriptor: the instance's dict does not have them.
        self.described = frozenset(
            name for name in self.names if inspect.isdatadescriptor(inspect.getattr_static(cls, name, None))
        )
        alone = not self.slots and self.native is None
        self.plain = alone and not self.described
        self.generic = Generic in cls.__mro__
        self.slotted = alone and not cls.__dictoffset__ and not hasattr(cls, "__getattr__")

    def take(self, obj: Any) -> dict[str, Any]:
        if self.plain:
            held: dict[str, Any] = obj.__dict__
            if tuple(held) == self.names:
                return held
        elif self.slotted:
            with contextlib.suppress(AttributeError):
                return {name: getattr(obj, name) for name in self.names}
        if self.native is not None:
            refuse(obj, f"is a dataclass and also a {self.native}, whose content would be lost: make that a field")
        self.refuse_rest(obj)
        held = getattr(obj, "__dict__", {})
        fields = {}
        for name in self.names:
            if name in held and name not in self.described:
                fields[name] = held[name]
                continue
            try:  # past a `__getattr__`, which would invent a value; to a default that was left in the class
                fields[name] = object.__getattribute__(obj, name)
            except AttributeError:
                unset(obj, name)
        return fields

    def held(self, obj: Any) -> tuple[dict[str, Any], frozenset[str] | None] | None:
        return (obj.__dict__, None) if self.plain and tuple(obj.__dict__) == self.names else None

    def opener(self, was_set: frozenset[str]) -> Callable[[Any], dict[str, Any] | None] | None:
        return operator.attrgetter("__dict__") if self.plain and was_set == self.nameset else None

    def maker(self, cls: Any, was_set: frozenset[str]) -> Callable[[dict[str, Any]], object] | None:
        if not self.plain or self.generic or was_set != self.nameset:
            return None

        def make(held: dict[str, Any], new: Any = object.__new__, put: Any = object.__setattr__) -> object:
            obj: object = new(cls)
            put(obj, "__dict__", held)
            return obj

        return make

    def build(self, cls: type, fields: dict[str, Any], hidden: dict[str, Any]) -> object:
        if hidden or fields.keys() != self.nameset:
            self.check_names(cls, fields, hidden)
            fields = {name: fields[name] if name in fields else _dataclass_default(cls, name) for name in self.names}
        obj = _blank(cls)
        setattribute = object.__setattr__
        for name in self.names:
            setattribute(obj, name, fields[name])
        return obj


def _dataclass_default(cls: Any, name: str) -> object:
    field: dataclasses.Field[Any] = cls.__dataclass_fields__[name]
    if field.default is not _MISSING:
        return field.default
    if field.default_factory is _MISSING:
        missing_field(cls, name)
    return field.default_factory()


class _Struct(Shape):
    form = STRUCT

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, cls.__struct_fields__)
        self.bare = not self.slots and not cls.__struct_config__.dict
        self.post_init = hasattr(cls, "__post_init__")
        self.unset_value = unset_value()
        nodefault = loaded("msgspec", "NODEFAULT")
        defaults = cls.__struct_defaults__  # of the last fields; those among them that have none say NODEFAULT
        first = len(self.names) - len(defaults)
        late = tuple(n for n, d in zip(self.names[first:], defaults, strict=True) if d is nodefault)
        self.required = self.names[:first] + late

    def take(self, obj: Any) -> dict[str, Any]:
        if not self.bare:
            self.refuse_rest(obj)
        fields: dict[str, Any] = {}
        absent = []
        for name in self.names:
            try:
                value = getattr(obj, name)
            except AttributeError:
                unset(obj, name)
            if value is self.unset_value:
                absent.append(name)
            else:
                fields[name] = value
        if absent:
            fields[HIDDEN] = {"unset": absent}
        return fields

    def build(self, cls: type, fields: dict[str, Any], hidden: dict[str, Any]) -> object:
        if hidden or fields.keys() != self.nameset:
            self.check_names(cls, fields, hidden)
            for name in self.required:
                if name not in fields:
                    missing_field(cls, name)
        obj = cls(**fields)
        if self.post_init:
            force = loaded("msgspec.structs", "force_setattr")
            for name, value in fields.items():
                force(obj, name, value)
        return obj


class _Model(Shape):
    form = PYDANTIC

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, tuple(cls.model_fields))
        native = _native_base(cls)
        self.native = native.__name__ if native is not None else None
        self.root = bool(getattr(cls, "__pydantic_root_model__", False))
        if self.root:  # it has None for these in the class, and its own in its dict
            self.derived |= {"__pydantic_extra__", "__pydantic_private__"}
        self.allows = cls.model_config.get("extra") == "allow"
        self.privates: dict[str, bool] = {}  # name: whether it has a default
        for name, attribute in cls.__private_attributes__.items():
            undefined = attribute.default is loaded("pydantic_core", "PydanticUndefined")
            self.privates[name] = not undefined or attribute.default_factory is not None
        self.reserved = self.nameset | self.privates.keys() | {HIDDEN}
        self.plain = not (self.native or self.root or self.privates or self.slots or Generic in cls.__mro__)

    def take(self, obj: Any) -> dict[str, Any]:
        if self.native is not None:
            refuse(obj, f"is a model and also a {self.native}, whose content would be lost: make that a field")
        try:
            extra, was_set = obj.__pydantic_extra__, obj.__pydantic_fields_set__
        except AttributeError:
            refuse(obj, "is a model that was never initialised: make it with its constructor or model_construct")
        private = getattr(obj, "__pydantic_private__", None)  # before pydantic 2.8, model_construct may not set it
        fields, hidden = self._take_fields(obj), {}
        if extra and self.allows and self.reserved.isdisjoint(extra):
            fields.update(extra)
        elif extra or (extra is None) == self.allows:
            hidden["extra"] = extra
        if self.privates or private:
            fields.update(self._take_private(obj, private or {}))
        if was_set != (self.nameset.union(extra) if extra else self.nameset):
            hidden["set"] = sorted(was_set)
        if hidden:
            fields[HIDDEN] = hidden
        return fields

    def held(self, obj: Any) -> tuple[dict[str, Any], frozenset[str] | None] | None:
        if not self.plain:
            return None
        try:
            extra, was_set, private = obj.__pydantic_extra__, obj.__pydantic_fields_set__, obj.__pydantic_private__
        except AttributeError:
            return None
        held: dict[str, Any] = obj.__dict__
        if extra or (extra is None) == self.allows or private or tuple(held) != self.names:
            return None
        return held, None if was_set == self.nameset else frozenset(was_set)

    def opener(self, was_set: frozenset[str]) -> Callable[[Any], dict[str, Any] | None] | None:
        allows = self.allows
        if not self.plain:
            return None

        def take(obj: Any) -> dict[str, Any] | None:
            try:
                extra = obj.__pydantic_extra__
                if extra or (extra is None) == allows or obj.__pydantic_private__:
                    return None
                return obj.__dict__ if obj.__pydantic_fields_set__ == was_set else None
            except AttributeError:
                return None

        return take

    def maker(self, cls: Any, was_set: frozenset[str]) -> Callable[[dict[str, Any]], object] | None:
        allows = self.allows
        if not self.plain:
            return None
        slots = vars(loaded("pydantic.main", "BaseModel"))  # to find them by name takes longer than to fill them
        put_held, put_set = slots["__dict__"].__set__, slots["__pydantic_fields_set__"].__set__
        put_extra, put_private = slots["__pydantic_extra__"].__set__, slots["__pydantic_private__"].__set__

        def make(held: dict[str, Any], new: Any = object.__new__) -> object:
            obj: object = new(cls)
            put_held(obj, held)
            put_set(obj, set(was_set))
            put_extra(obj, {} if allows else None)
            put_private(obj, None)
            return obj

        return make

    def _take_fields(self, obj: Any) -> dict[str, Any]:
        held, fields = obj.__dict__, {}
        for name in self.names:
            if name not in held:
                unset(obj, name)
            fields[name] = held[name]
        if self.slots or len(held) != len(fields):
            self.refuse_rest(obj)
        return fields

    def _take_private(self, obj: Any, private: dict[str, Any]) -> dict[str, Any]:
        for name in private:
            if name not in self.privates:
                refuse(obj, f"holds {name!r}, which its class does not declare and would be lost")
        for name, has_default in self.privates.items():
            if has_default and name not in private:
                unset(obj, name)
        return {name: private[name] for name in self.privates if name in private}

    def build(self, cls: Any, fields: dict[str, Any], hidden: dict[str, Any]) -> object:
        rest = {name: value for name, value in fields.items() if name not in self.nameset}
        private = {name: rest.pop(name) for name in self.privates if name in rest}
        unknown = [name for name in rest if name == HIDDEN or not self.allows]
        unknown += [f"{HIDDEN}.{name}" for name in hidden if name not in ("extra", "set")]
        if unknown:
            unknown_field(cls, unknown[0])
        extra = hidden.get("extra", rest if self.allows else None)
        was_set = hidden["set"] if "set" in hidden else [*self.nameset.intersection(fields), *(extra or ())]
        held = self._build_fields(cls, fields)
        for name, has_default in self.privates.items():
            if has_default and name not in private:
                private[name] = _model_default(cls.__private_attributes__[name], {**held, **private})
        obj = _blank(cls)
        setattribute = object.__setattr__
        setattribute(obj, "__dict__", held)
        setattribute(obj, "__pydantic_fields_set__", set(was_set))
        if extra is not None or not self.root:
            setattribute(obj, "__pydantic_extra__", extra)
        if self.privates or not self.root:
            setattribute(obj, "__pydantic_private__", private if self.privates else None)
        return obj

    def _build_fields(self, cls: Any, fields: dict[str, Any]) -> dict[str, Any]:
        held: dict[str, Any] = {}
        for name in self.names:
            if name in fields:
                held[name] = fields[name]
                continue
            field = cls.model_fields[name]
            if field.is_required():
                missing_field(cls, name)
            held[name] = _model_default(field, held)
        return held


def _model_default(attribute: Any, held: dict[str, Any]) -> object:
    """The default of a field or private attribute, as pydantic makes it; `held` are the values that it may look at."""
    if attribute.default_factory is None:
        return copy.deepcopy(attribute.default)
    if getattr(attribute, "default_factory_takes_validated_data", False):
        return attribute.default_factory(held)
    return attribute.default_factory()


class _NamedTuple(Shape):
    form = NAMEDTUPLE

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, cls._fields)
        self.bare = not cls.__dictoffset__

    def take(self, obj: Any) -> dict[str, Any]:
        if not self.bare:
            self.refuse_rest(obj)
        length = tuple.__len__(obj)
        if length != len(self.names):
            refuse(obj, f"has {length} items for {len(self.names)} fields: make it with its constructor")
        return dict(zip(self.names, tuple.__iter__(obj), strict=True))

    def build(self, cls: Any, fields: dict[str, Any], hidden: dict[str, Any]) -> object:
        if hidden or fields.keys() != self.nameset:
            self.check_names(cls, fields, hidden)
            fields = {**getattr(cls, "_field_defaults", {}), **fields}
            for name in self.names:
                if name not in fields:
                    missing_field(cls, name)
        return tuple.__new__(cls, [fields[name] for name in self.names])


def _has(obj: object, name: str) -> bool:
    try:
        object.__getattribute__(obj, name)  # past a `__getattr__`, which would answer for what is not there
    except AttributeError:
        return False
    return True


def _native_base(cls: type) -> type | None:
    """The base written in C, if any, whose instances have content of their own: dict, str, Exception ..."""
    for k in cls.__mro__:
        if k is not object and k is not Generic and isinstance(vars(k).get("__new__"), types.BuiltinFunctionType):
            return k
    return None


def _blank(cls: type) -> object:
    """An instance of which nothing is set, without running a `__new__` of its class."""
    if Generic in cls.__mro__:  # written in C since Python 3.12, and then object.__new__ refuses its subclasses
        return Generic.__new__(cls)
    return object.__new__(cls)
