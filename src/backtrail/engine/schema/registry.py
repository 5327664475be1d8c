"""Instances of classes while they are data: a `Record` of fields, a `Member` of an Enum; and `Type`, how to keep one.

Each carries the schema that it was saved with, so that it can be saved again as what it was, with or without its class.
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
from backtrail.engine.schema.versions import (
    Plan,
    check_name,
    check_reach,
    check_version,
    invalid,
    is_fields,
    name_of,
    plan_of,
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
    """The fields of an instance, without its class: a dict that carries the schema it was saved with.

    It equals a Record of the same schema, version and form, and a plain dict, with the same items.
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
        """A shallow copy, schema included."""
        return Record(self.schema, self.version, self.form, self)

    def __reduce__(self) -> tuple[Any, ...]:  # the items apart, so that a Record may contain itself
        return Record, (self.schema, self.version, self.form, {}), None, None, iter(self.items())


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an Enum, without its class. A combination of flags has no name (None), only a value."""

    schema: str
    version: int
    name: str | None
    value: Any

    def __hash__(self) -> int:  # without the value, which need not be hashable
        return hash((self.schema, self.version, self.name))


@dataclass(frozen=True)
class Type:
    """How to keep instances of a class that does not say which fields it has, such as `defaultdict`.

    `dump` gives a dict of what an instance holds, `load` makes an instance of such a dict. Only instances of this very
    class are meant, not those of its subclasses.
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
            raise invalid(f"{self.cls.__name__} is kept as it is: leave out backtrail.Type({self.cls.__name__}, ...)")
        check_name(self.name)
        check_version(self.version, "version")
        if not all(callable(function) for function in (self.dump, self.load)):
            raise invalid(f"backtrail.Type({self.cls.__name__}, ...) takes functions as dump and load")


@dataclass(frozen=True)
class Plainly:
    """How to keep what no class is named for, such as a subclass of str: as the plain value that `plain` makes of it.

    Whoever reads it gets that value, not what was saved. So it is for adapters, whose frameworks hand over such values
    and take the plain ones for the same. `plain` returns what it cannot simplify as it is. `unknown` is told the schema
    names of what is loaded as a `Record` or a `Member`, because no class is named for it.
    """

    plain: Callable[[Any], Any]
    unknown: Callable[[str], None]


@dataclass(frozen=True)
class Qualified:
    """A class that no caller named: its instances are kept under its module and qualified name.

    So what was saved of one class does not become an instance of another one that happens to have its schema name.
    A caller who names the class gets them back, too.
    """

    cls: type

    @property
    def name(self) -> str:
        """The schema name that its instances have."""
        return _full_name(self.cls)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def checked(value: Record | Member) -> Record | Member:
    """A Record or Member that may have been made or changed by hand."""
    try:
        check_name(value.schema)
        check_version(value.version, "version")
    except Invalid as error:
        raise Invalid(f"a {type(value).__name__} made by hand: {error}", code="invalid.value") from error
    if isinstance(value, Record) and not (value.form in FORMS and all(type(name) is str for name in value)):
        message = f"a Record made by hand needs names as keys and one of the forms {FORMS}: {value!r:.200}"
        raise Invalid(message, code="invalid.value")
    return value


def dump_custom(custom: Type, obj: object) -> Record:
    """Take an instance apart as its `Type` says."""
    try:
        fields: object = custom.dump(obj)
    except Exception as error:
        raise Invalid(f"the dump function of {custom.name!r} raised {error!r}", code="invalid.value") from error
    if not is_fields(fields):
        raise Invalid(
            f"the dump function of {custom.name!r} has to return a dict with names as keys, not {fields!r:.200}",
            code="invalid.value",
        )
    return Record(custom.name, custom.version, CUSTOM, fields)


def load_custom(custom: Type, record: Record) -> object:
    """Make an instance as its `Type` says."""
    fields = upcasted(custom.cls, record.schema, record.version, custom.version, dict(record))
    if record.form != CUSTOM and record.version == custom.version:
        raise invalid(
            f"{record.schema!r} was saved as a {record.form} and is a backtrail.Type now: give it version="
            f"{custom.version + 1} and an upcaster from version {custom.version} that makes what load takes"
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
    "Plainly",
    "Record",
    "Type",
    "Types",
    "schema",
    "schema_of",
    "upcast",
]

# ---- the registry ---------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    cls: type
    custom: Type | None


class Types:
    """The classes that a caller named: what a schema name may become on load. Immutable.

    A *closed* one refuses to save instances of any other class: whatever is saved comes back as what it was.
    """

    __slots__ = ("__weakref__", "_closed", "_customs", "_entries", "_plainly", "_qualified")

    def __init__(self, classes: Iterable[type | Type | Plainly | Qualified] = (), *, closed: bool = False) -> None:
        self._closed = closed
        self._entries: dict[str, _Entry] = {}
        self._plainly: Plainly | None = None
        self._qualified: dict[str, type] = {}
        for item in classes:
            if isinstance(item, Plainly):
                self._plainly = item
            elif isinstance(item, Qualified):
                self._qualified[item.name] = item.cls
            else:
                _add(self._entries, item)
        self._customs = {entry.cls: entry.custom for entry in self._entries.values() if entry.custom is not None}

    @staticmethod
    def named(classes: Any) -> tuple[type | Type, ...]:
        """Return the classes that a caller names: several, or one, which may be iterable itself as Enums are."""
        if isinstance(classes, type | Type):
            return (classes,)
        if classes is None or isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
            raise invalid(f"types= takes a list of classes, such as types=[Plan], not {classes!r:.100}")
        return tuple(classes)

    def __repr__(self) -> str:
        return f"Types({', '.join(self._entries)})"

    def __iter__(self) -> Iterator[type | Type]:
        return (entry.custom or entry.cls for entry in self._entries.values())

    def extended(self, *classes: type | Type) -> Types:
        """This registry and more classes. A class may come twice; two classes of one schema name are refused."""
        return Types((*self, *classes, *self._others()), closed=self._closed) if classes else self

    def _others(self) -> tuple[Plainly | Qualified, ...]:
        plainly = () if self._plainly is None else (self._plainly,)
        return *plainly, *map(Qualified, self._qualified.values())

    def closed(self, named: Iterable[type | Type | Plainly | Qualified]) -> Types:
        """This registry and more classes, with those that their annotations name, and no other."""
        registry = Types((*self, *named), closed=True)
        for item in tuple(registry):
            registry = registry.for_state(item) if isinstance(item, type) else registry
        return registry

    def for_state(self, cls: type | None) -> Types:
        """This registry, the class of a state, and every class that its annotations name, at any depth."""
        return self.extended(*reachable(cls)) if cls is not None else self

    def fielded(self, cls: type) -> Plan | None:
        """What is known about a class that was named, and is saved as its own fields; None for any other."""
        plan = plan_of(cls)
        if plan is None or plan.shape is None or cls in self._customs:
            return None
        entry = self._entries.get(plan.name)
        return plan if entry is not None and entry.cls is cls else None

    def made_as(self, name: str, version: int, form: str) -> tuple[type, Shape] | None:
        """The class that a schema name stands for, if what was saved is as its instances are now."""
        entry = self._entries.get(name)
        plan = None if entry is None else self.fielded(entry.cls)
        if entry is None or plan is None or plan.shape is None or (plan.name, plan.version) != (name, version):
            return None
        return (entry.cls, plan.shape) if plan.shape.form == form else None

    # -- saving

    def plain(self, obj: object) -> object:
        """What an instance of a class that nobody named is kept as, if it was said how; else the instance itself."""
        if self._plainly is None or type(obj) in self._customs or plan_of(type(obj)) is not None:
            return obj
        return self._plainly.plain(obj)

    def dump(self, obj: object) -> Record | Member | None:
        """The fields of an instance, as they are; None if its class is not known to have any and not registered."""
        cls = type(obj)
        custom = self._customs.get(cls)
        if custom is not None:
            return dump_custom(custom, obj)
        if cls is Record or cls is Member:
            return checked(obj)  # type: ignore[arg-type]
        plan = plan_of(cls)
        if plan is None:
            return None
        entry = self._entries.get(plan.name)
        name = plan.name
        if (entry is None or entry.cls is not cls) and self._qualified.get(_full_name(cls)) is cls:
            name = _full_name(cls)
        elif entry is not None and entry.cls is not cls:
            raise _clash(plan.name, entry.cls, cls)
        elif entry is None and self._closed:
            raise Invalid(
                f"{cls.__module__}.{cls.__qualname__} is not among the classes that were named, and would come back as "
                "plain data: name it with types=[...]",
                code="invalid.value",
            )
        if plan.shape is None:
            return Member(name, plan.version, *class_forms.take_member(obj))  # type: ignore[arg-type]
        return Record(name, plan.version, plan.shape.form, plan.shape.take(obj))

    # -- loading

    def load(self, value: Record | Member) -> object:
        """The instance that was dumped, if its schema is in the registry; else the value itself."""
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

    def _qualified_entry(self, name: str) -> _Entry | None:
        if name in self._qualified:
            return _Entry(self._qualified[name], None)
        if ":" not in name:
            return None
        plain = (each for each in self._entries.values() if each.custom is None)
        return next((each for each in plain if _full_name(each.cls) == name), None)

    def _load_member(self, entry: _Entry, value: Member) -> object:
        cls = entry.cls
        plan = plan_of(cls) if entry.custom is None else None
        if plan is None or plan.shape is not None or not issubclass(cls, enum.Enum):
            raise invalid(f"{value.schema!r} was saved as a member of an Enum; {cls.__qualname__} is none: rename it")
        parts = {"name": value.name, "value": value.value}
        parts = upcasted(cls, value.schema, value.version, plan.version, parts)
        if parts.get("name") is None and issubclass(cls, enum.Flag):
            return class_forms.build_flags(cls, parts.get("value"))
        member = class_forms.build_member(cls, parts.get("name"))
        if "value" in parts and not self._same(member._value_, parts["value"]):
            raise invalid(
                f"{cls.__qualname__}.{member._name_} was saved as {parts['value']!r} and is {member._value_!r} now: "
                f"keep the value, or write an upcaster with @backtrail.upcast({cls.__name__}, from_version=...)",
                member=member._name_,
            )
        return member

    def _same(self, ours: object, saved: object) -> bool:
        """Whether the value of a member is what was saved, which may have lost its class on the way."""
        if type(ours) is type(saved) and (ours == saved or (ours != ours and saved != saved)):  # noqa: PLR0124 - nan
            return True
        dumped = self.dump(ours)
        return dumped is not None and dumped == (saved if isinstance(saved, Record | Member) else self.dump(saved))

    # -- the state itself

    def convert_root(self, value: object, cls: type | None) -> object:
        """A loaded state as the type that the caller named, checked on its outside only."""
        annotation = _unwrapped(cls)
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
                    f"the state was saved as {value.schema!r}, not as {names[0]!r}: name the class it was saved as, "
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


def _add(entries: dict[str, _Entry], item: Any) -> None:
    custom = item if isinstance(item, Type) else None
    cls = custom.cls if custom is not None else class_forms.class_of(item)
    if cls is None or (custom is None and class_forms.form_of(cls) is None):
        if cls is not None and class_forms.is_typeddict(cls):
            return  # a plain dict: there is nothing to rebuild
        raise invalid(
            f"{item!r} does not say which fields it has, as dataclasses, Structs, pydantic models, named tuples and "
            "Enums do: for another class pass backtrail.Type(cls, name, dump=..., load=...)"
        )
    name = custom.name if custom is not None else name_of(cls)
    if custom is not None:
        check_reach(cls, custom.version, upcasters_of(cls))
        for entry in entries.values():
            if entry.cls is cls and entry.custom not in (None, custom):
                raise invalid(f"{cls.__qualname__} is registered with two different backtrail.Type(...): pass one")
    known = entries.get(name)
    if known is not None and known.cls is not cls:
        raise _clash(name, known.cls, cls)
    if known is None or custom is not None:
        entries[name] = _Entry(cls, custom)


def _clash(name: str, one: type, other: type) -> Invalid:
    return invalid(
        f"two classes have the schema name {name!r}: {one.__module__}.{one.__qualname__} and "
        f"{other.__module__}.{other.__qualname__}; give one of them another with @backtrail.schema(name='...')",
        schema=name,
    )


def _unwrapped(annotation: Any) -> Any:
    """What is behind a NewType, a `type X = ...` and Annotated."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        inner = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
        if inner is None or isinstance(annotation, type):
            return annotation
        annotation = inner


def _is_instance(value: object, cls: type) -> bool:
    if cls is float and type(value) is int:  # as type checkers have it
        return True
    try:
        return isinstance(value, dict if class_forms.is_typeddict(cls) else cls)
    except TypeError:  # a protocol that cannot be checked at run time
        return True


def _mismatch(value: object, wanted: object) -> Invalid:
    found = value.schema if isinstance(value, Record | Member) else type(value).__qualname__
    name = wanted.__qualname__ if isinstance(wanted, type) else str(wanted)
    return invalid(f"the state is of type {found}, not {name}: name the type that it has", saved=found, wanted=name)


# ---- saving and loading one instance --------------------------------------------------------------------------------


def _load_fields(cls: type, name: str, version: int, fields: dict[str, Any], *, form: str | None) -> object:
    """An instance made of the fields of some version; `form` is None for a plain dict, which hides nothing."""
    plan = plan_of(cls)
    if plan is None or plan.shape is None:
        raise invalid(f"{name!r} was saved with fields; {cls.__qualname__} is an Enum: rename it")
    if form == CUSTOM and version == plan.version:
        raise invalid(
            f"{name!r} was saved through a backtrail.Type and is a {plan.shape.form} now: register that Type again, or "
            f"write an upcaster with @backtrail.upcast({cls.__name__}, from_version={version})"
        )
    hidden: dict[str, Any] = {}
    if HIDDEN in fields and form not in (None, CUSTOM):
        hidden = _revealed(plan.shape, name, fields)
    if version != plan.version:
        before = set(fields)
        fields = upcasted(cls, name, version, plan.version, fields)
        if "set" in hidden:  # a field that an upcaster made counts as set
            held = (*fields, *(hidden.get("extra") or ()))
            hidden["set"] = [key for key in held if key in hidden["set"] or key not in before]
    try:
        return plan.shape.build(cls, fields, hidden)
    except Invalid:
        raise
    except Exception as error:
        raise invalid(f"{cls.__qualname__} could not be made of what was saved: {error!r}") from error


def _revealed(shape: Shape, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Takes the reserved field out and returns its content, but for "unset": that goes back into the fields."""
    hidden = fields.pop(HIDDEN)
    if not isinstance(hidden, dict):
        raise invalid(f"{name!r} has a field '' that backtrail did not write: rename it with an upcaster")
    hidden = dict(hidden)
    unset = hidden.pop("unset", ())
    if shape.form == STRUCT:
        fields.update(dict.fromkeys(unset, unset_value()))
    return hidden
