"""The registry of classes: which classes loading may build, and how instances become data.

An instance without its class is a `Record` of its fields, or a `Member` of an Enum. Both carry the schema that they
were saved with, so they can be saved again without a loss. A `Type` says how to save a class that declares no fields.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pathlib
import types
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from backtrail.engine.schema import class_forms
from backtrail.engine.schema.annotations import reachable
from backtrail.engine.schema.class_forms import (
    CUSTOM,
    DATACLASS,
    ENUM,
    FORMS,
    HIDDEN,
    NAMEDTUPLE,
    PYDANTIC,
    STRUCT,
    Shape,
    unset_value,
)
from backtrail.engine.schema.upcast import (
    ClassSchema,
    check_name,
    check_reach,
    check_version,
    class_schema,
    invalid,
    is_fields,
    name_of,
    schema,
    schema_of,
    upcast,
    upcasted,
    upcasters_of,
)
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_PLAIN: Final = frozenset(
    {
        *(type(None), bool, int, float, str, bytes, bytearray, list, tuple, set, frozenset, dict),
        *(dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, decimal.Decimal),
        *(pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath),
        *(pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
    }
)


class Record(dict[str, Any]):
    """The fields of an instance without its class: a dict with the schema that the instance was saved with.

    It equals a Record with the same schema, version, form and items, and a plain dict with the same items.
    """

    __slots__ = ("form", "schema", "version")

    def __init__(self, schema: str, version: int, form: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.schema = schema
        self.version = version
        self.form = form

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Record):
            ours, theirs = (self.schema, self.version, self.form), (other.schema, other.version, other.form)
            return ours == theirs and dict.__eq__(self, other)
        return dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return f"Record({self.schema!r}, {self.version!r}, {self.form!r}, {dict.__repr__(self)})"

    def copy(self) -> Record:
        """Return a shallow copy with the same schema."""
        return Record(self.schema, self.version, self.form, self)

    def __reduce__(self) -> tuple[Any, ...]:  # items come last, so that a Record may contain itself
        return Record, (self.schema, self.version, self.form, {}), None, None, iter(self.items())


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an Enum without its class. A combination of flags has a value, but no name (None)."""

    schema: str
    version: int
    name: str | None
    value: Any

    def __hash__(self) -> int:  # without the value, which may be unhashable
        return hash((self.schema, self.version, self.name))


@dataclass(frozen=True)
class Type:
    """How to save instances of a class that declares no fields, such as `defaultdict`.

    `dump` returns the content of an instance as a dict, `load` makes an instance from such a dict. Instances of
    subclasses are not covered.
    """

    cls: type
    name: str
    dump: Callable[[Any], dict[str, Any]] = field(kw_only=True)
    load: Callable[[dict[str, Any]], Any] = field(kw_only=True)
    version: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if class_forms.class_of(self.cls) is not self.cls:
            raise invalid(f"backtrail.Type takes a class, not {self.cls!r}")
        if self.cls in _PLAIN or self.cls in (Record, Member):
            raise invalid(
                f"{self.cls.__name__} needs no backtrail.Type, because it is stored as it is; remove the Type"
            )
        check_name(self.name)
        check_version(self.version, "version")
        if not all(callable(function) for function in (self.dump, self.load)):
            raise invalid(f"backtrail.Type({self.cls.__name__}, ...) needs functions for dump= and load=")


@dataclass(frozen=True)
class PlainFallback:
    """How to save instances of unregistered classes, such as a subclass of str: as plain values.

    A load returns the plain value, not the instance. So this is for adapters, whose frameworks treat both alike.
    `plain` returns the plain value, or the instance itself if it has none. `unknown` is called with the schema name of
    each unregistered `Record` or `Member` that a load returns.
    """

    plain: Callable[[Any], Any]
    unknown: Callable[[str], None]


@dataclass(frozen=True)
class QualifiedClass:
    """A class that no caller registered. Its instances are saved under its module and qualified name.

    So they cannot become instances of another class with the same schema name. They load as instances of their class
    if a caller registers it.
    """

    cls: type

    @property
    def name(self) -> str:
        """The schema name of the class's instances."""
        return _full_name(self.cls)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def checked(value: Record | Member) -> Record | Member:
    """Return the value; `Invalid` if it is a Record or Member that a caller made by hand and that cannot be saved."""
    try:
        check_name(value.schema)
        check_version(value.version, "version")
    except Invalid as error:
        raise Invalid(f"a {type(value).__name__} made by hand: {error}", code="invalid.value") from error
    if isinstance(value, Record) and not (value.form in FORMS and all(type(name) is str for name in value)):
        message = f"a Record made by hand needs str keys and one of the forms {FORMS}: {value!r:.200}"
        raise Invalid(message, code="invalid.value")
    return value


def dump_custom(custom: Type, obj: object) -> Record:
    """Return the record of an instance, made by its `Type`."""
    try:
        fields: object = custom.dump(obj)
    except Exception as error:
        raise Invalid(f"the dump function of {custom.name!r} raised {error!r}", code="invalid.value") from error
    if not is_fields(fields):
        raise Invalid(
            f"the dump function of {custom.name!r} must return a dict with str keys, not {fields!r:.200}",
            code="invalid.value",
        )
    return Record(custom.name, custom.version, CUSTOM, fields)


def load_custom(custom: Type, record: Record) -> object:
    """Return an instance, made by its `Type`."""
    fields = upcasted(custom.cls, record.schema, record.version, custom.version, dict(record))
    if record.form != CUSTOM and record.version == custom.version:
        raise invalid(
            f"{record.schema!r} was saved as a {record.form} and is a backtrail.Type now; give the Type version="
            f"{custom.version + 1}, and an upcaster from version {custom.version} that returns a dict for load="
        )
    try:
        return custom.load(fields)
    except Exception as error:
        raise invalid(f"the load function of {record.schema!r} raised {error!r}") from error


__all__ = [
    "CUSTOM",
    "DATACLASS",
    "FORMS",
    "NAMEDTUPLE",
    "PYDANTIC",
    "STRUCT",
    "Member",
    "PlainFallback",
    "Record",
    "Type",
    "Types",
    "schema",
    "schema_of",
    "upcast",
]

# ---- the registry ---------------------------------------------------------------------------------------------------


class _RegisteredClass(NamedTuple):
    cls: type
    custom: Type | None


class Types:
    """The registered classes by schema name. Loading builds instances of these classes alone. Immutable.

    A *closed* registry refuses to save instances of other classes, so each saved instance loads with its class.
    """

    __slots__ = ("__weakref__", "_closed", "_customs", "_entries", "_plainly", "_qualified")

    def __init__(
        self, classes: Iterable[type | Type | PlainFallback | QualifiedClass] = (), *, closed: bool = False
    ) -> None:
        self._closed = closed
        self._entries: dict[str, _RegisteredClass] = {}
        self._plainly: PlainFallback | None = None
        self._qualified: dict[str, type] = {}
        for item in classes:
            if isinstance(item, PlainFallback):
                self._plainly = item
            elif isinstance(item, QualifiedClass):
                self._qualified[item.name] = item.cls
            else:
                _add(self._entries, item)
        self._customs = {entry.cls: entry.custom for entry in self._entries.values() if entry.custom is not None}

    @staticmethod
    def named(classes: Any) -> tuple[type | Type, ...]:
        """Return the classes of a `types=` argument as a tuple. A single class is allowed, too."""
        if isinstance(classes, type | Type):
            return (classes,)
        if classes is None or isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
            raise invalid(f"types= must be a list of classes, such as types=[Plan], not {classes!r:.100}")
        return tuple(classes)

    def __repr__(self) -> str:
        return f"Types({', '.join(self._entries)})"

    def __iter__(self) -> Iterator[type | Type]:
        return (entry.custom or entry.cls for entry in self._entries.values())

    def extended(self, *classes: type | Type) -> Types:
        """Return this registry with more classes. `Invalid` if two different classes have the same schema name."""
        return Types((*self, *classes, *self._others()), closed=self._closed) if classes else self

    def _others(self) -> tuple[PlainFallback | QualifiedClass, ...]:
        plainly = () if self._plainly is None else (self._plainly,)
        return *plainly, *map(QualifiedClass, self._qualified.values())

    def closed(self, named: Iterable[type | Type | PlainFallback | QualifiedClass]) -> Types:
        """Return a closed registry: these classes, the classes `named`, and the classes that their annotations name."""
        registry = Types((*self, *named), closed=True)
        for item in tuple(registry):
            registry = registry.for_state(item) if isinstance(item, type) else registry
        return registry

    def for_state(self, cls: type | None) -> Types:
        """Return this registry with the class of a state, and every class that its annotations name, at any depth."""
        return self.extended(*reachable(cls)) if cls is not None else self

    def fielded(self, cls: type) -> ClassSchema | None:
        """Return the schema of a registered class whose instances are saved as their fields; None for any other."""
        info = class_schema(cls)
        if info is None or info.shape is None or cls in self._customs:
            return None
        entry = self._entries.get(info.name)
        return info if entry is not None and entry.cls is cls else None

    def made_as(self, name: str, version: int, form: str) -> tuple[type, Shape] | None:
        """Return the class of a schema name, and its shape, if saved data of this version and form needs no upcast."""
        entry = self._entries.get(name)
        info = None if entry is None else self.fielded(entry.cls)
        if entry is None or info is None or info.shape is None or (info.name, info.version) != (name, version):
            return None
        return (entry.cls, info.shape) if info.shape.form == form else None

    # -- saving

    def plain(self, obj: object) -> object:
        """Return the plain value of an unregistered instance, if there is a `PlainFallback`, else the instance."""
        if self._plainly is None or type(obj) in self._customs or class_schema(type(obj)) is not None:
            return obj
        return self._plainly.plain(obj)

    def dump(self, obj: object) -> Record | Member | None:
        """Return the fields of an instance; None if its class declares none and has no `Type`."""
        cls = type(obj)
        custom = self._customs.get(cls)
        if custom is not None:
            return dump_custom(custom, obj)
        if cls is Record or cls is Member:
            return checked(obj)  # type: ignore[arg-type]
        info = class_schema(cls)
        if info is None:
            return None
        entry = self._entries.get(info.name)
        name = info.name
        if (entry is None or entry.cls is not cls) and self._qualified.get(_full_name(cls)) is cls:
            name = _full_name(cls)
        elif entry is not None and entry.cls is not cls:
            raise _clash(info.name, entry.cls, cls)
        elif entry is None and self._closed:
            raise Invalid(
                f"{cls.__module__}.{cls.__qualname__} is not registered, so it would be loaded as plain data; "
                "pass it in types=[...]",
                code="invalid.value",
            )
        if info.shape is None:
            return Member(name, info.version, *class_forms.take_member(obj))  # type: ignore[arg-type]
        return Record(name, info.version, info.shape.form, info.shape.take(obj))

    # -- loading

    def load(self, value: Record | Member) -> object:
        """Return the instance of a record or member; the value itself if its schema is not registered."""
        entry = self._entries.get(value.schema) or self._qualified_entry(value.schema)
        if entry is None:
            if self._plainly is not None:
                self._plainly.unknown(value.schema)
            return value
        if isinstance(value, Member):
            return self._load_member(entry, value)
        if entry.custom is not None:
            return load_custom(entry.custom, value)
        return _load_fields(entry.cls, value.schema, value.version, dict(value), form=value.form)

    def _qualified_entry(self, name: str) -> _RegisteredClass | None:
        if name in self._qualified:
            return _RegisteredClass(self._qualified[name], None)
        if ":" not in name:
            return None
        plain = (each for each in self._entries.values() if each.custom is None)
        return next((each for each in plain if _full_name(each.cls) == name), None)

    def _load_member(self, entry: _RegisteredClass, value: Member) -> object:
        cls = entry.cls
        info = class_schema(cls) if entry.custom is None else None
        if info is None or info.shape is not None or not issubclass(cls, enum.Enum):
            raise invalid(
                f"{value.schema!r} was saved as a member of an Enum, but {cls.__qualname__} is not an Enum; rename it"
            )
        parts = {"name": value.name, "value": value.value}
        parts = upcasted(cls, value.schema, value.version, info.version, parts)
        if parts.get("name") is None and issubclass(cls, enum.Flag):
            return class_forms.build_flags(cls, parts.get("value"))
        member = class_forms.build_member(cls, parts.get("name"))
        if "value" in parts and not self._same(member._value_, parts["value"]):
            raise invalid(
                f"{cls.__qualname__}.{member._name_} was saved as {parts['value']!r} and is {member._value_!r} now; "
                f"restore the value, or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...)",
                member=member._name_,
            )
        return member

    def _same(self, ours: object, saved: object) -> bool:
        """Tell whether the value of an Enum's member equals the saved value, which may be a Record of its fields."""
        if type(ours) is type(saved) and (ours == saved or (ours != ours and saved != saved)):  # noqa: PLR0124 - nan
            return True
        dumped = self.dump(ours)
        return dumped is not None and dumped == (saved if isinstance(saved, Record | Member) else self.dump(saved))

    # -- the state itself

    def convert_root(self, value: object, cls: type | None) -> object:
        """Return a loaded state as the type that the caller named. Only the state itself is checked, not its parts."""
        annotation = None if cls is None else _unwrapped(cls)
        if annotation is None or annotation is Any or annotation is object or isinstance(annotation, TypeVar):
            return value
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Union or origin is types.UnionType:
            return self._convert_union(value, annotation, args)
        if origin is Literal:
            if any(type(value) is type(arg) and value == arg for arg in args):
                return value
            raise _mismatch(value, annotation)
        target = class_forms.class_of(annotation)
        if target is None or _is_instance(value, target):
            return value
        return self._convert_class(value, target)

    def _convert_class(self, value: object, cls: type) -> object:
        form = class_forms.form_of(cls)
        custom = self._customs.get(cls)
        if isinstance(value, Record | Member):
            if form is None and custom is None:
                raise _mismatch(value, cls)
            names = [name for name, entry in self._entries.items() if entry.cls is cls] or [name_of(cls)]
            if value.schema not in names:
                raise invalid(
                    f"the state was saved as {value.schema!r}, not as {names[0]!r}; name the class it was saved as, "
                    f"or give yours that name with @backtrail.schema(name={value.schema!r})",
                    saved=value.schema,
                    wanted=names[0],
                )
            return self.for_state(cls).load(value)
        if is_fields(value) and form not in (None, ENUM) and custom is None:
            return _load_fields(cls, name_of(cls), 1, dict(value), form=None)
        raise _mismatch(value, cls)

    def _convert_union(self, value: object, union: object, options: tuple[Any, ...]) -> object:
        for option in options:
            target = class_forms.class_of(option)
            if target is not None and _is_instance(value, target):
                return value
        problem: Invalid | None = None
        for option in options:
            try:
                return self.convert_root(value, option)
            except Invalid as error:
                problem = problem or error
        raise _mismatch(value, union) from problem


def _add(entries: dict[str, _RegisteredClass], item: Any) -> None:
    custom = item if isinstance(item, Type) else None
    cls = custom.cls if custom is not None else class_forms.class_of(item)
    if cls is None or (custom is None and class_forms.form_of(cls) is None):
        if cls is not None and class_forms.is_typeddict(cls):
            return  # a plain dict: there is nothing to rebuild
        raise invalid(
            f"{item!r} is not a dataclass, Struct, pydantic model, named tuple or Enum, so its fields are unknown; "
            "pass backtrail.Type(cls, name, dump=..., load=...)"
        )
    name = custom.name if custom is not None else name_of(cls)
    if custom is not None:
        check_reach(cls, custom.version, upcasters_of(cls))
        for entry in entries.values():
            if entry.cls is cls and entry.custom not in (None, custom):
                raise invalid(f"{cls.__qualname__} is registered with two different backtrail.Type(...); pass one")
    known = entries.get(name)
    if known is not None and known.cls is not cls:
        raise _clash(name, known.cls, cls)
    if known is None or custom is not None:
        entries[name] = _RegisteredClass(cls, custom)


def _clash(name: str, one: type, other: type) -> Invalid:
    return invalid(
        f"two classes have the schema name {name!r}: {one.__module__}.{one.__qualname__} and "
        f"{other.__module__}.{other.__qualname__}; give one of them another with @backtrail.schema(name='...')",
        schema=name,
    )


def _unwrapped(annotation: Any) -> Any:
    """Return the type behind a NewType, a `type X = ...` and Annotated."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        inner = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
        if inner is None or isinstance(annotation, type):
            return annotation
        annotation = inner


def _is_instance(value: object, cls: type) -> bool:
    if cls is float and type(value) is int:  # as for type checkers
        return True
    try:
        return isinstance(value, dict if class_forms.is_typeddict(cls) else cls)
    except TypeError:  # a protocol that cannot be checked at run time
        return True


def _mismatch(value: object, expected: object) -> Invalid:
    saved = value.schema if isinstance(value, Record | Member) else type(value).__qualname__
    name = expected.__qualname__ if isinstance(expected, type) else str(expected)
    return invalid(f"the state is of type {saved}, not {name}; pass the type that it has", saved=saved, wanted=name)


# ---- saving and loading one instance --------------------------------------------------------------------------------


def _load_fields(cls: type, name: str, version: int, fields: dict[str, Any], *, form: str | None) -> object:
    """Return an instance from saved fields, upcast if `version` is old. `form` is None if they are a plain dict."""
    info = class_schema(cls)
    if info is None or info.shape is None:
        raise invalid(f"{name!r} was saved with fields, but {cls.__qualname__} is an Enum; rename it")
    if form == CUSTOM and version == info.version:
        raise invalid(
            f"{name!r} was saved by a backtrail.Type and is a {info.shape.form} now; register that Type again, or "
            f"write an upcaster with @backtrail.upcast({cls.__name__}, from_version={version})"
        )
    hidden: dict[str, Any] = {}
    if HIDDEN in fields and form not in (None, CUSTOM):
        hidden = _revealed(info.shape, name, fields)
    if version != info.version:
        before = set(fields)
        fields = upcasted(cls, name, version, info.version, fields)
        if "set" in hidden:  # a field that an upcaster added counts as set
            held = (*fields, *(hidden.get("extra") or ()))
            hidden["set"] = [key for key in held if key in hidden["set"] or key not in before]
    try:
        return info.shape.build(cls, fields, hidden)
    except Invalid:
        raise
    except Exception as error:
        raise invalid(f"{cls.__qualname__} could not be built from the saved data: {error!r}") from error


def _revealed(shape: Shape, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Remove the reserved field from `fields` and return its content. Its "unset" names go back into the fields."""
    hidden = fields.pop(HIDDEN)
    if not isinstance(hidden, dict):
        raise invalid(f"{name!r} has a field '' that backtrail did not write; rename it with an upcaster")
    hidden = dict(hidden)
    unset = hidden.pop("unset", ())
    if shape.form == STRUCT:
        fields.update(dict.fromkeys(unset, unset_value()))
    return hidden
