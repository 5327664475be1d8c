"""Which form a class has, and what is refused.

A *form* is a family of classes that say which fields they have: dataclasses, msgspec Structs, pydantic models and named
tuples. Enums count, too: their members have a name and a value. How instances of each form come apart is in `shapes`.

Nothing is imported to find out: pydantic and msgspec are looked for among the modules that are already loaded, for an
instance cannot exist before.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from typing import Annotated, Any, Final, NoReturn, get_origin

from backtrail.errors import Invalid

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
