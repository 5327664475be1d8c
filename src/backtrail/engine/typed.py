"""Instances of classes while they are data: a `Record` of fields, a `Member` of an Enum; and `Type`, how to keep one.

Each carries the schema that it was saved with, so that it can be saved again as what it was, with or without its class.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import forms
from backtrail.engine.forms import CUSTOM, FORMS
from backtrail.engine.versions import check_name, check_version, invalid, is_fields, upcasted
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        if forms.class_of(self.cls) is not self.cls:
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
