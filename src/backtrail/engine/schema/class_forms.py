"""The forms of classes, and how instances of each form become fields and back.

A *form* is a family of classes that declare their fields: dataclasses, msgspec Structs, pydantic models and named
tuples. Enums have a form, too: their members have a name and a value. A `Shape` takes the fields out of instances of
one class, and builds instances from fields.

This module does not import pydantic or msgspec. It looks for them in `sys.modules`: without them no instance exists.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import operator
import sys
import types
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, NamedTuple, NoReturn, get_origin

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
"""The form of an Enum, whose members become a `Member`, not a `Record`."""

# ---- forms ----------------------------------------------------------------------------------------------------------


def form_of(cls: type) -> str | None:
    """Return the form of a class; None if it does not declare fields. An Enum that is also a dataclass is an Enum."""
    mro = cls.__mro__
    if enum.Enum in mro:
        return ENUM if cls.__members__ else None  # type: ignore[attr-defined]
    for module, base, form in (("msgspec", "Struct", STRUCT), ("pydantic.main", "BaseModel", PYDANTIC)):
        root = loaded(module, base)
        if root is not None and root in mro:
            return form if cls is not root else None
    if dataclasses.is_dataclass(cls):
        return DATACLASS
    if tuple in mro and isinstance(getattr(cls, "_fields", None), tuple) and hasattr(cls, "_make"):
        return NAMEDTUPLE
    return None


def class_of(annotation: object) -> type | None:
    """Return the class of `Box` and `Box[int]`; None for an annotation that is not a class, such as a union."""
    origin = get_origin(annotation)
    cls = annotation if origin is None else origin
    return cls if isinstance(cls, type) and cls not in (types.UnionType, Annotated) else None


def is_typeddict(cls: type) -> bool:
    """Tell whether a class is a TypedDict, whose instances are plain dicts."""
    return dict in cls.__mro__ and hasattr(cls, "__required_keys__") and hasattr(cls, "__total__")


def generic_origin(cls: type) -> type | None:
    """Return the generic model of a parametrised pydantic model (`Box[int]`, a class of its own)."""
    origin = (cls.__dict__.get("__pydantic_generic_metadata__") or {}).get("origin")
    return origin if isinstance(origin, type) else None


def loaded(module: str, name: str) -> Any:
    """Return an attribute of a module; None if the process has not imported the module."""
    return getattr(sys.modules.get(module), name, None)


# ---- members of Enums -----------------------------------------------------------------------------------------------


def take_member(obj: enum.Enum) -> tuple[str | None, object]:
    """Return the name and value of a member; a combination of flags has no name, only a value."""
    cls, name = type(obj), obj._name_
    if cls.__members__.get(name) is obj:
        return name, obj._value_
    if not isinstance(obj, enum.Flag):
        refuse(obj, f"is not one of the members of its Enum ({name!r}); add it to the class")
    return None, obj._value_


def build_member(cls: type[enum.Enum], name: str | None) -> enum.Enum:
    """Return the member of an Enum by its name; `Invalid` if the class has no such member."""
    member = cls.__members__.get(name) if isinstance(name, str) else None
    if member is None:
        raise Invalid(
            f"{cls.__qualname__} no longer has a member {name!r}; restore the member, "
            f"or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...)",
            code="invalid.schema",
            member=name,
        )
    return member


def build_flags(cls: type[enum.Enum], value: object) -> enum.Enum:
    """Return the combination of flags with a value; `Invalid` if the class has no flags for it."""
    try:
        member = cls(value)
    except ValueError:
        member = None
    if type(member) is not cls or member._value_ != value:
        raise Invalid(
            f"{value!r} is no longer a combination of the members of {cls.__qualname__}; restore the members, "
            f"or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...)",
            code="invalid.schema",
            member=None,
        )
    return member


# ---- refusals -------------------------------------------------------------------------------------------------------


def unknown_field(cls: type, name: str) -> NoReturn:
    """Raise `Invalid`: the saved data has a field that the class does not have."""
    raise Invalid(
        f"the saved data has a field {name!r}, which {cls.__qualname__} does not have; "
        f"write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...) that drops or renames it",
        code="invalid.schema",
        field=name,
    )


def missing_field(cls: type, name: str) -> NoReturn:
    """Raise `Invalid`: a field of the class has neither saved data nor a default."""
    raise Invalid(
        f"{cls.__qualname__} needs a field {name!r}, which the saved data does not have; give it a default, "
        f"or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...) that adds it",
        code="invalid.schema",
        field=name,
    )


def unset(obj: object, name: str) -> NoReturn:
    """Raise `Invalid`: a field of an instance has no value."""
    refuse(obj, f"has no value for its field {name!r}; set it before saving")


def refuse(obj: object, reason: str) -> NoReturn:
    """Raise `Invalid`: an instance cannot be saved."""
    raise Invalid(f"an instance of {type(obj).__qualname__} {reason}", code="invalid.value")


HIDDEN: Final = ""
"""The name of the reserved field of a record. It lists the fields that were set, and holds other data of a form."""

_MISSING: Final = dataclasses.MISSING
_DERIVED: Final = frozenset({"__orig_class__"})


def shape_of(cls: type) -> Shape | None:
    """Return the shape of a class; None if it has no fields. A shape does not refer to its class: caches hold it."""
    shape = {DATACLASS: _Dataclass, STRUCT: _Struct, PYDANTIC: _Model, NAMEDTUPLE: _NamedTuple}.get(form_of(cls) or "")
    return shape(cls) if shape is not None else None


def unset_value() -> object:
    """Return the value of a Struct's field that is not set."""
    return loaded("msgspec", "UNSET")


class Shape:
    """Takes the fields out of instances of one class, and builds instances from fields."""

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
        """Return the fields of an instance. The dict may be the instance's own: the caller must not change it."""
        raise NotImplementedError

    def build(self, cls: type, fields: dict[str, Any], hidden: dict[str, Any]) -> object:
        """Return an instance of `cls` with these fields. `hidden` is the reserved field without its "unset" entry."""
        raise NotImplementedError

    def held(self, obj: Any) -> tuple[dict[str, Any], frozenset[str] | None] | None:  # noqa: ARG002 - see below
        """Return an instance's own `__dict__`, and the names of the fields that were set (None: all). A fast `take`.

        Return None if the instance has other attributes, or if its dict has another order.
        """
        return None

    def opener(self, was_set: frozenset[str]) -> Callable[[Any], dict[str, Any] | None] | None:  # noqa: ARG002
        """Return a function that returns an instance's own `__dict__`; None if the set fields are not `was_set`.

        The dict may be in any order.
        """
        return None

    def maker(self, cls: Any, was_set: frozenset[str]) -> Callable[[dict[str, Any]], object] | None:  # noqa: ARG002
        """Return a function that builds an instance from a dict of all fields in order. The instance keeps the dict."""
        return None

    def model(self, cls: Any, was_set: frozenset[str]) -> Model | None:  # noqa: ARG002
        """Return what `Models` needs to know of the instances of a class, if it is a pydantic model."""
        return None

    def refuse_rest(self, obj: Any) -> None:
        """Raise `Invalid` if an instance has an attribute that is not a field."""
        attributes = getattr(obj, "__dict__", ())
        rest = [name for name in attributes if name not in self.nameset and name not in self.derived]
        rest += [name for name in self.slots if _has(obj, name)]
        if rest:
            refuse(
                obj,
                f"holds {rest[0]!r}, which is not a field and would be lost; make it a field, "
                "or register the class with backtrail.Type",
            )

    def check_names(self, cls: type, fields: dict[str, Any], hidden: dict[str, Any]) -> None:
        """Raise `Invalid` if `fields` or `hidden` has a name that the class lacks. "set" in `hidden` is allowed."""
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
        # Fields in a slot or behind another descriptor, which the instance's dict does not have.
        self.described = frozenset(
            name for name in self.names if inspect.isdatadescriptor(inspect.getattr_static(cls, name, None))
        )
        alone = not self.slots and self.native is None
        self.plain = alone and not self.described
        self.generic = Generic in cls.__mro__
        self.slotted = alone and not cls.__dictoffset__ and not hasattr(cls, "__getattr__")

    def take(self, obj: Any) -> dict[str, Any]:
        if self.plain:
            attributes: dict[str, Any] = obj.__dict__
            if tuple(attributes) == self.names:
                return attributes
        elif self.slotted:
            with contextlib.suppress(AttributeError):
                return {name: getattr(obj, name) for name in self.names}
        if self.native is not None:
            refuse(obj, f"is a dataclass and also a {self.native}, whose content would be lost; make that a field")
        self.refuse_rest(obj)
        attributes = getattr(obj, "__dict__", {})
        fields = {}
        for name in self.names:
            if name in attributes and name not in self.described:
                fields[name] = attributes[name]
                continue
            try:  # do not call `__getattr__`, which may return anything; a default in the class counts
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

        def make(fields: dict[str, Any], new: Any = object.__new__, put: Any = object.__setattr__) -> object:
            obj: object = new(cls)
            put(obj, "__dict__", fields)
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
        defaults = cls.__struct_defaults__  # of the last fields; NODEFAULT for those without one
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


class Model(NamedTuple):
    """The instances of a pydantic model that hold nothing but their fields."""

    cls: type
    was_set: frozenset[str]
    extra: dict[str, Any] | None
    """What they have as extra fields: none, in the form of their class."""


class Models(NamedTuple):
    """The classes of several models, to make them, or take their fields, with a few calls for all of them."""

    classes: list[type]
    sets: list[frozenset[str]]
    extras: list[dict[str, Any] | None]

    @classmethod
    def of(cls, models: list[Model | None]) -> Models | None:
        """Return the classes of some instances; None if one of them is no model."""
        known = [each for each in models if each is not None]
        return cls(*map(list, zip(*known, strict=True))) if known and len(known) == len(models) else None

    def joined(self, more: Models) -> Models:
        """Return these classes and `more`."""
        return Models(self.classes + more.classes, self.sets + more.sets, self.extras + more.extras)

    def take(self, values: list[Any]) -> list[dict[str, Any]] | None:
        """Return the dicts of instances; None if one of them is not as `Shape.opener` asks."""
        if list(map(type, values)) != self.classes:
            return None
        try:
            if list(map(_set_of, values)) != self.sets or list(map(_extra_of, values)) != self.extras:
                return None
            return None if any(map(_private_of, values)) else list(map(_dict_of, values))
        except AttributeError:
            return None

    def make(self, dicts: list[dict[str, Any]]) -> list[Any]:
        """Make an instance of each class from the dict of its fields."""
        put_dict, put_set, put_extra, put_private = _model_slots()
        made: list[Any] = list(map(object.__new__, self.classes))
        _exhaust(map(put_dict, made, dicts))
        _exhaust(map(put_set, made, map(set, self.sets)))
        _exhaust(map(put_extra, made, [None if each is None else {} for each in self.extras]))
        _exhaust(map(put_private, made, itertools.repeat(None)))
        return made


_dict_of: Final = operator.attrgetter("__dict__")
_set_of: Final = operator.attrgetter("__pydantic_fields_set__")
_extra_of: Final = operator.attrgetter("__pydantic_extra__")
_private_of: Final = operator.attrgetter("__pydantic_private__")
_exhaust: Final = collections.deque[None](maxlen=0).extend


@functools.cache
def _model_slots() -> list[Callable[[Any, Any], None]]:
    """Return the functions that set a model's slots; they are faster than an attribute lookup by name."""
    slots = vars(loaded("pydantic.main", "BaseModel"))
    names = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
    return [slots[name].__set__ for name in names]


class _Model(Shape):
    form = PYDANTIC

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, tuple(cls.model_fields))
        native = _native_base(cls)
        self.native = native.__name__ if native is not None else None
        self.root = bool(getattr(cls, "__pydantic_root_model__", False))
        if self.root:  # None in the class; an instance may have its own value in its dict
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
            refuse(obj, f"is a model and also a {self.native}, whose content would be lost; make that a field")
        try:
            extra, was_set = obj.__pydantic_extra__, obj.__pydantic_fields_set__
        except AttributeError:
            refuse(obj, "is a model that was never initialised; make it with its constructor or model_construct")
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
        put_dict, put_set, put_extra, put_private = _model_slots()

        def make(fields: dict[str, Any], new: Any = object.__new__) -> object:
            obj: object = new(cls)
            put_dict(obj, fields)
            put_set(obj, set(was_set))
            put_extra(obj, {} if allows else None)
            put_private(obj, None)
            return obj

        return make

    def model(self, cls: Any, was_set: frozenset[str]) -> Model | None:
        return Model(cls, was_set, {} if self.allows else None) if self.plain else None

    def _take_fields(self, obj: Any) -> dict[str, Any]:
        values, fields = obj.__dict__, {}
        for name in self.names:
            if name not in values:
                unset(obj, name)
            fields[name] = values[name]
        if self.slots or len(values) != len(fields):
            self.refuse_rest(obj)
        return fields

    def _take_private(self, obj: Any, private: dict[str, Any]) -> dict[str, Any]:
        for name in private:
            if name not in self.privates:
                refuse(obj, f"holds {name!r}, which its class does not declare, so it would be lost; declare it")
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
        values = self._build_fields(cls, fields)
        for name, has_default in self.privates.items():
            if has_default and name not in private:
                private[name] = _model_default(cls.__private_attributes__[name], {**values, **private})
        obj = _blank(cls)
        setattribute = object.__setattr__
        setattribute(obj, "__dict__", values)
        setattribute(obj, "__pydantic_fields_set__", set(was_set))
        if extra is not None or not self.root:
            setattribute(obj, "__pydantic_extra__", extra)
        if self.privates or not self.root:
            setattribute(obj, "__pydantic_private__", private if self.privates else None)
        return obj

    def _build_fields(self, cls: Any, fields: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in self.names:
            if name in fields:
                values[name] = fields[name]
                continue
            field = cls.model_fields[name]
            if field.is_required():
                missing_field(cls, name)
            values[name] = _model_default(field, values)
        return values


def _model_default(attribute: Any, values: dict[str, Any]) -> object:
    """Return the default of a field or private attribute, as pydantic makes it; `values` are the fields before it."""
    if attribute.default_factory is None:
        return copy.deepcopy(attribute.default)
    if getattr(attribute, "default_factory_takes_validated_data", False):
        return attribute.default_factory(values)
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
            refuse(obj, f"has {length} items for {len(self.names)} fields; make it with its constructor")
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
        object.__getattribute__(obj, name)  # do not call `__getattr__`, which may return a value for any name
    except AttributeError:
        return False
    return True


def _native_base(cls: type) -> type | None:
    """Return the base class whose instances have content in C, such as dict, str or Exception; None if none has."""
    for k in cls.__mro__:
        if k is not object and k is not Generic and isinstance(vars(k).get("__new__"), types.BuiltinFunctionType):
            return k
    return None


def _blank(cls: type) -> object:
    """Return an instance without attributes, without calling the `__new__` of its class."""
    if Generic in cls.__mro__:  # C since Python 3.12, so object.__new__ refuses its subclasses
        return Generic.__new__(cls)
    return object.__new__(cls)
