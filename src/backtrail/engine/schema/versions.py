"""What is declared about a class: its schema name, its version, and the upcasters that lead to it from older versions.

A class keeps these in tables of this module, by weak reference: nothing is written on the class, and subclasses inherit
nothing. A parametrised pydantic model (`Box[int]`, a class of its own) shares what its origin has.

The name is the one declared, else the qualified name from its innermost function on. The version is the one declared,
else one more than the last upcaster starts from, else 1. So an upcaster that could never run is refused when it is
declared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar

from backtrail.engine.schema import class_forms
from backtrail.engine.schema.class_forms import Shape, shape_of
from backtrail.errors import Invalid

C = TypeVar("C", bound=type)
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
U = TypeVar("U", bound=Upcaster)


class _Declared(NamedTuple):
    name: str | None
    version: int | None


class Plan(NamedTuple):
    """What saving and loading know about a class. It does not refer to the class."""

    name: str
    version: int
    shape: Shape | None  # None: an Enum


_DECLARED: weakref.WeakKeyDictionary[type, _Declared] = weakref.WeakKeyDictionary()
_UPCASTERS: weakref.WeakKeyDictionary[type, dict[int, Upcaster]] = weakref.WeakKeyDictionary()
_PLANS: weakref.WeakKeyDictionary[type, Plan] = weakref.WeakKeyDictionary()
LEARNED: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()
"""What others have made of plans; forgotten with them."""


def schema(name: str | None = None, *, version: int | None = None) -> Callable[[C], C]:
    """Give a class a schema name of its own, a version, or both. Subclasses do not inherit them."""
    if name is not None:
        check_name(name)
    if version is not None:
        check_version(version, "version")

    def declare(cls: C) -> C:
        target = class_forms.class_of(cls)
        if target is None or class_forms.form_of(target) is None:
            raise invalid(
                f"@backtrail.schema is for dataclasses, Structs, pydantic models, named tuples and Enums, not {cls!r}: "
                "write it above @dataclass; for other classes use backtrail.Type"
            )
        check_reach(cls, version, upcasters_of(cls))
        _DECLARED[cls] = _Declared(name, version)
        _forget()
        return cls

    return declare


def upcast(cls: type, *, from_version: int) -> Callable[[U], U]:
    """Register a function that turns the fields of version `from_version` of a class into those of the next version.

    It gets a dict of its own and returns a dict. For an Enum the fields are `name` and `value`.
    """
    check_version(from_version, "from_version")
    target = class_forms.class_of(cls)
    if target is None:
        raise invalid(f"@backtrail.upcast takes a class, not {cls!r}")

    def register(function: U) -> U:
        known = _UPCASTERS.setdefault(target, {})
        other = known.get(from_version)
        if other is not None and _full_name(other) != _full_name(function):  # the same again: a module was reloaded
            raise invalid(
                f"{target.__qualname__} has an upcaster from version {from_version} already, {_full_name(other)}: "
                "keep one of them"
            )
        declared = _DECLARED.get(target)
        check_reach(target, declared.version if declared else None, {from_version: function})
        known[from_version] = function
        _forget()
        return function

    return register


def schema_of(cls: type) -> tuple[str, int]:
    """The schema name and the version that instances of a class are saved with."""
    target = class_forms.class_of(cls)
    if target is None:
        raise invalid(f"schema_of takes a class, not {cls!r}")
    return name_of(target), _version_of(target)


def name_of(cls: type) -> str:
    """The schema name of a class."""
    declared = _DECLARED.get(cls)
    if declared is not None and declared.name is not None:
        return declared.name
    origin = class_forms.generic_origin(cls)
    if origin is not None and cls.__name__.startswith(origin.__name__):
        return name_of(origin) + cls.__name__[len(origin.__name__) :]
    return cls.__qualname__.rpartition("<locals>.")[2]


def is_declared(cls: type) -> bool:
    """Tell whether a class was given its schema name with `@backtrail.schema(name=...)`."""
    found = (_DECLARED.get(each) for each in (cls, class_forms.generic_origin(cls)) if each is not None)
    return any(each is not None and each.name is not None for each in found)


def _version_of(cls: type) -> int:
    for k in (cls, class_forms.generic_origin(cls)):
        declared = _DECLARED.get(k) if k is not None else None
        if declared is not None and declared.version is not None:
            return declared.version
    return 1 + max(upcasters_of(cls), default=0)


def upcasters_of(cls: type) -> dict[int, Upcaster]:
    """The upcasters of a class, by the version they start from."""
    own, origin = _UPCASTERS.get(cls), class_forms.generic_origin(cls)
    return own or (_UPCASTERS.get(origin) if origin is not None else None) or {}


def _forget() -> None:
    _PLANS.clear()
    LEARNED.clear()


def plan_of(cls: type) -> Plan | None:
    """What saving and loading know about a class that has a form; None for one that has none."""
    plan = _PLANS.get(cls)
    if plan is None:
        form = class_forms.form_of(cls)
        if form is None:
            return None
        plan = Plan(name_of(cls), _version_of(cls), shape_of(cls))
        _PLANS[cls] = plan
    return plan


def _full_name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def upcasted(cls: type, name: str, version: int, target: int, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as the newest version has them."""
    if version == target:
        return fields
    if version > target:
        raise invalid(
            f"{name!r} was saved by newer code, at version {version}, and this code knows version {target}: "
            "update the code",
            saved=version,
            known=target,
        )
    upcasters = upcasters_of(cls)
    for step in range(version, target):
        function = upcasters.get(step)
        if function is None:
            raise invalid(
                f"{name!r} was saved at version {version}, and nothing leads from version {step} to {step + 1}: "
                f"write @backtrail.upcast({cls.__name__}, from_version={step})",
                from_version=step,
            )
        try:
            made: object = function(dict(fields))
            if not is_fields(made):
                raise TypeError(f"an upcaster returns a dict with names as keys, not {made!r:.200}")  # noqa: TRY301
        except Exception as error:
            message = f"the upcaster of {name!r} from version {step} failed: {error!r}"
            raise invalid(message, from_version=step) from error
        fields = dict(made)
    return fields


# ---- checks ---------------------------------------------------------------------------------------------------------


def is_fields(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a dict with names as keys."""
    return isinstance(value, dict) and all(type(key) is str for key in value)


def invalid(message: str, **details: Any) -> Invalid:
    """The error for a class and data that do not go together."""
    return Invalid(message, code="invalid.schema", **details)


def check_name(name: object) -> None:
    """Refuses what cannot be a schema name."""
    if not isinstance(name, str) or not name:
        raise invalid(f"a schema name is a string that is not empty, not {name!r}: write @backtrail.schema(name='...')")


def check_version(version: object, what: str) -> None:
    """Refuses what cannot be a version."""
    if type(version) is not int or version < 1:
        raise invalid(f"{what} is a whole number from 1 up, not {version!r}")


def check_reach(cls: type, version: int | None, upcasters: Mapping[int, Upcaster]) -> None:
    """Refuses an upcaster that could never run, as it leads beyond the version that was declared."""
    last = max(upcasters, default=0)
    if version is not None and last >= version:
        raise invalid(
            f"{cls.__qualname__} is declared to be at version {version}, but has an upcaster from version {last}: "
            f"declare version={last + 1}, or leave the version out"
        )
