"""Schema names, versions and upcasters of classes.

Tables in this module hold them by weak references to the classes. The classes themselves do not change, and subclasses
inherit nothing. A parametrised pydantic model (`Box[int]`, a class of its own) shares the declarations of its origin.

The schema name of a class is the declared name, or else its qualified name without enclosing functions. Its version is
the declared version, or else the version after the last upcaster, or else 1. An upcaster that could never run is
refused when it is declared.
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


class _Declaration(NamedTuple):
    name: str | None
    version: int | None


class ClassSchema(NamedTuple):
    """The schema name, the version and the shape of a class. It does not refer to the class."""

    name: str
    version: int
    shape: Shape | None  # None: an Enum


_DECLARATIONS: weakref.WeakKeyDictionary[type, _Declaration] = weakref.WeakKeyDictionary()
_UPCASTERS: weakref.WeakKeyDictionary[type, dict[int, Upcaster]] = weakref.WeakKeyDictionary()
_SCHEMAS: weakref.WeakKeyDictionary[type, ClassSchema] = weakref.WeakKeyDictionary()
RECORD_CACHES: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()
"""Caches that depend on these tables (see `records`). A new declaration clears them."""


def schema(name: str | None = None, *, version: int | None = None) -> Callable[[C], C]:
    """Declare a schema name, a version, or both for a class. Subclasses do not inherit them."""
    if name is not None:
        check_name(name)
    if version is not None:
        check_version(version, "version")

    def declare(cls: C) -> C:
        target = class_forms.class_of(cls)
        if target is None or class_forms.form_of(target) is None:
            raise invalid(
                "@backtrail.schema takes dataclasses, Structs, pydantic models, named tuples and Enums, not "
                f"{cls!r}; write it above @dataclass, and use backtrail.Type for other classes"
            )
        check_reach(cls, version, upcasters_of(cls))
        _DECLARATIONS[cls] = _Declaration(name, version)
        _forget()
        return cls

    return declare


def upcast(cls: type, *, from_version: int) -> Callable[[U], U]:
    """Register a function that turns the fields of version `from_version` of a class into those of the next version.

    The function gets a copy of the fields as a dict and returns a dict. The fields of an Enum are `name` and `value`.
    """
    check_version(from_version, "from_version")
    target = class_forms.class_of(cls)
    if target is None:
        raise invalid(f"@backtrail.upcast takes a class, not {cls!r}")

    def register(function: U) -> U:
        known = _UPCASTERS.setdefault(target, {})
        other = known.get(from_version)
        if other is not None and _full_name(other) != _full_name(function):  # a reloaded module registers it again
            raise invalid(
                f"{target.__qualname__} already has an upcaster from version {from_version}, {_full_name(other)}; "
                "remove one of them"
            )
        declared = _DECLARATIONS.get(target)
        check_reach(target, declared.version if declared else None, {from_version: function})
        known[from_version] = function
        _forget()
        return function

    return register


def schema_of(cls: type) -> tuple[str, int]:
    """Return the schema name and the version that instances of a class are saved with."""
    target = class_forms.class_of(cls)
    if target is None:
        raise invalid(f"schema_of takes a class, not {cls!r}")
    return name_of(target), _version_of(target)


def name_of(cls: type) -> str:
    """Return the schema name of a class."""
    declared = _DECLARATIONS.get(cls)
    if declared is not None and declared.name is not None:
        return declared.name
    origin = class_forms.generic_origin(cls)
    if origin is not None and cls.__name__.startswith(origin.__name__):
        return name_of(origin) + cls.__name__[len(origin.__name__) :]
    return cls.__qualname__.rpartition("<locals>.")[2]


def is_declared(cls: type) -> bool:
    """Tell whether `@backtrail.schema(name=...)` declares the schema name of a class."""
    declarations = (_DECLARATIONS.get(each) for each in (cls, class_forms.generic_origin(cls)) if each is not None)
    return any(each is not None and each.name is not None for each in declarations)


def _version_of(cls: type) -> int:
    for k in (cls, class_forms.generic_origin(cls)):
        declared = _DECLARATIONS.get(k) if k is not None else None
        if declared is not None and declared.version is not None:
            return declared.version
    return 1 + max(upcasters_of(cls), default=0)


def upcasters_of(cls: type) -> dict[int, Upcaster]:
    """Return the upcasters of a class by the version they start from."""
    own, origin = _UPCASTERS.get(cls), class_forms.generic_origin(cls)
    return own or (_UPCASTERS.get(origin) if origin is not None else None) or {}


def _forget() -> None:
    _SCHEMAS.clear()
    RECORD_CACHES.clear()


def class_schema(cls: type) -> ClassSchema | None:
    """Return the schema of a class; None if the class has no form."""
    info = _SCHEMAS.get(cls)
    if info is None:
        form = class_forms.form_of(cls)
        if form is None:
            return None
        info = ClassSchema(name_of(cls), _version_of(cls), shape_of(cls))
        _SCHEMAS[cls] = info
    return info


def _full_name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def upcasted(cls: type, name: str, version: int, target: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in their newest version."""
    if version == target:
        return fields
    if version > target:
        raise invalid(
            f"{name!r} was saved at version {version}, and this code only knows version {target}; update the code",
            saved=version,
            known=target,
        )
    upcasters = upcasters_of(cls)
    for step in range(version, target):
        function = upcasters.get(step)
        if function is None:
            raise invalid(
                f"{name!r} was saved at version {version}, and there is no upcaster from version {step}; "
                f"write one with @backtrail.upcast({cls.__name__}, from_version={step})",
                from_version=step,
            )
        try:
            result: object = function(dict(fields))
            if not is_fields(result):
                raise TypeError(f"an upcaster must return a dict with str keys, not {result!r:.200}")  # noqa: TRY301
        except Exception as error:
            message = f"the upcaster of {name!r} from version {step} failed: {error!r}"
            raise invalid(message, from_version=step) from error
        fields = dict(result)
    return fields


# ---- checks ---------------------------------------------------------------------------------------------------------


def is_fields(value: object) -> TypeGuard[dict[str, Any]]:
    """Tell whether a value is a dict with str keys."""
    return isinstance(value, dict) and all(type(key) is str for key in value)


def invalid(message: str, **details: Any) -> Invalid:
    """Return the error for data that does not fit its class."""
    return Invalid(message, code="invalid.schema", **details)


def check_name(name: object) -> None:
    """Raise `Invalid` unless this can be a schema name."""
    if not isinstance(name, str) or not name:
        raise invalid(f"a schema name must be a non-empty str, not {name!r}; write @backtrail.schema(name='...')")


def check_version(version: object, what: str) -> None:
    """Raise `Invalid` unless this can be a version."""
    if type(version) is not int or version < 1:
        raise invalid(f"{what} must be an int of at least 1, not {version!r}")


def check_reach(cls: type, version: int | None, upcasters: Mapping[int, Upcaster]) -> None:
    """Raise `Invalid` if an upcaster starts at the declared version or later: it could never run."""
    last = max(upcasters, default=0)
    if version is not None and last >= version:
        raise invalid(
            f"{cls.__qualname__} is declared at version {version}, but has an upcaster from version {last}; "
            f"declare version={last + 1}, or leave out the version"
        )
