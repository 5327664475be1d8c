"""How instances come apart into fields, and are put together again.

A *shape* is one class seen through its form: `take` reads the fields of an instance, `build` makes one of fields.

What always holds:

- `take` reads everything an instance holds, or raises `Invalid("invalid.value")` naming what would be lost. Two things
  are left behind on purpose because they are derived: the value of a `functools.cached_property`, and the
  `__orig_class__` that typing leaves on `Box[int](...)`.
- `build` gives back the very field values it was handed: nothing is validated or coerced. It runs no `__init__` and no
  `__new__`; it runs a default factory for a field that is missing, and a Struct's `__post_init__` (msgspec has no way
  around it), whose changes to fields are undone.

The field named "" is reserved, as no class can have it: a dict of what has no name of its own. A model keeps there
which fields were set ("set") and extra values whose names would collide ("extra"); a Struct, which fields are UNSET
("unset"). The extra values and private attributes of a model otherwise stand among its fields.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import operator
import types
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic

from backtrail.engine.forms import (
    DATACLASS,
    NAMEDTUPLE,
    PYDANTIC,
    STRUCT,
    form_of,
    loaded,
    missing_field,
    refuse,
    unknown_field,
    unset,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
