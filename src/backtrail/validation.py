"""Checks of callers' input: arguments of calls, and fields of agents, conversations and messages.

Each check returns the checked value, or raises `Invalid` with the path of the wrong part. The result is plain and
unshared: a subclass of str becomes a str, a list becomes `Items`, a dict is copied (its values are not).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from backtrail.engine import log
from backtrail.engine.search import query
from backtrail.errors import Invalid
from backtrail.models import Hit, Items, Period, micros

MAX_ID: Final = 512
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
"""The time of a stored value without a time. It is constant, so that each read returns the same value."""
_SHOWN: Final = 60
"""The most characters of a text that the repr of a value shows."""
_VARIANT: Final = {digit: "89ab"[at % 4] for at, digit in enumerate("0123456789abcdef")}
"""Maps each hex digit to a variant digit of RFC 9562; each variant digit is equally likely."""

M = TypeVar("M", bound=StrEnum)
E = TypeVar("E", bound="Entity")
T = TypeVar("T")


def new_id() -> str:
    """Return a new random id like `str(uuid.uuid4())`, but three times as fast."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"


def now() -> dt.datetime:
    """Return the current time in UTC."""
    return dt.datetime.now(dt.UTC)


def shortened(text: str) -> str:
    """Return the repr of a text; of a long text the first 60 characters and its length."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text):,} characters)"


def plain(text: str) -> str:
    """Return a text as a plain str: a subclass, such as a member of a StrEnum, may have its own hash."""
    return text if type(text) is str else str.__str__(text)


def check_id(text: Any, what: str) -> str:
    """Check an id: a string of 1 to 512 characters of any kind. `what` names it in the error."""
    if not isinstance(text, str):
        raise Invalid(f"{what} must be a string, not {type(text).__name__}", code="invalid.id")
    if not 0 < len(text) <= MAX_ID:
        raise Invalid(f"{what} must have 1 to {MAX_ID} characters; this one has {len(text)}", code="invalid.id")
    return plain(text)


def check_progress(progress: Callable[[str, int], None] | None) -> Callable[[str, int], None] | None:
    """Check a progress callback: a callable, or None."""
    if progress is not None and not callable(progress):
        raise refuse("progress", "a callable with a word and a count, or None", progress)
    return progress


def refuse(path: str, expected: str, value: object) -> Invalid:
    """Return the error for a field with a wrong type or value. `expected` describes a right value."""
    shown = _shown(value) if value is None or isinstance(value, str | int | float) else type(value).__name__
    return Invalid(f"{path} must be {expected}, not {shown}", code="invalid.argument", path=path)


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except Exception:  # noqa: BLE001 - such as a number of more digits than Python prints
        return f"a {type(value).__name__}"


def below(error: Invalid, path: str) -> Invalid:
    """Return the error with a longer path: `path` is the path of the part in which the error occurred."""
    inner = path if not error.path else path + error.path if error.path.startswith("[") else f"{path}.{error.path}"
    return Invalid(f"{path}: {error}", code=error.code, path=inner)


def name(value: Any, path: str) -> str:
    """Check a field that is an id."""
    if type(value) is str and 0 < len(value) <= MAX_ID:
        return value
    try:
        return check_id(value, path)
    except Invalid as error:
        raise Invalid(str(error), code=error.code, path=path) from None


def text(value: Any, path: str) -> str:
    """Check a field that is a string of any length."""
    if isinstance(value, str):
        return plain(value)
    raise refuse(path, "a string", value)


def optional(check: Callable[[Any, str], T], value: Any, path: str) -> T | None:
    """Run a check on a value unless it is None."""
    return None if value is None else check(value, path)


def size(value: Any, path: str) -> int:
    """Check a field that is a count of bytes or tokens: a whole number, 0 or more."""
    return number(value, path, 0)


def number(value: Any, path: str, least: int) -> int:
    """Check a field that is a whole number, `least` or more."""
    if type(value) is int and value >= least:
        return value
    raise refuse(path, f"a whole number, {least} or more", value)


def time(value: Any, path: str) -> dt.datetime:
    """Check a field that is a datetime with a time zone; return it in UTC."""
    if type(value) is not dt.datetime:
        raise refuse(path, "a datetime with a time zone, such as datetime.now(UTC)", value)
    if value.tzinfo is dt.UTC:
        return value
    if value.utcoffset() is None:
        raise Invalid(
            f"{path} must have a time zone: use datetime.now(UTC), or add one with .replace(tzinfo=...)",
            code="invalid.argument",
            path=path,
        )
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        raise refuse(path, "a time in the years 1 to 9999 in UTC", str(value)) from None


def member(kind: type[M], value: Any, path: str) -> M:
    """Return a member of an Enum, given as the member, its value, or a `Member` record (loaded without its class)."""
    key = value if type(value) is str else getattr(value, "value", value)
    item = kind._value2member_map_.get(key) if isinstance(key, str) else None  # faster than calling the class
    if item is None:
        raise refuse(path, f"one of {', '.join(kind)}", key)
    return cast("M", item)


def mapping(value: Any, path: str, *, texts: bool = False) -> dict[str, Any]:
    """Check a mapping with strings as keys and, with `texts`, as values; return it as a dict."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise refuse(path, "a mapping with strings as keys", value)
    result: dict[str, Any] = dict(value)
    if {*map(type, result)} <= {str} and not (texts and {*map(type, result.values())} - {str}):
        return result
    result = {}
    for key, part in value.items():
        where = f"{path}[{_shown(key)}]"
        if not isinstance(key, str):
            what = type(key).__name__
            raise Invalid(
                f"{where} has a key of type {what}; keys must be strings", code="invalid.argument", path=where
            )
        if plain(key) in result:
            raise Invalid(
                f"{where} appears twice: as {key!r} and as an equal string", code="invalid.argument", path=where
            )
        result[plain(key)] = text(part, where) if texts else part
    return result


def items(value: Any, path: str, check: Callable[[Any, str], T]) -> Items[T]:
    """Run a check on each item of a list; return the results."""
    return Items(check(part, f"{path}[{at}]") for at, part in enumerate(_as_list(value, path)))


def instances(value: Any, path: str, kind: type[T]) -> Items[T]:
    """Check a list whose items are all of exactly one class."""
    entities = value if type(value) is Items else Items(_as_list(value, path))
    if not {*map(type, entities)} <= {kind}:  # fast, without a Python call per item: there may be 100,000 messages
        at = next(at for at, part in enumerate(entities) if type(part) is not kind)
        raise refuse(f"{path}[{at}]", f"of type {kind.__name__}", entities[at])
    return entities


def _as_list(value: Any, path: str) -> Iterable[Any]:
    if isinstance(value, str):
        raise refuse(path, f"a list, such as [{_shown(value)}]", value)
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise refuse(path, "a list", value)
    return value


def json_time(value: Any, path: str) -> dt.datetime:
    """Return the time that a text in ISO 8601 names, in UTC. The text must have a time zone."""
    try:
        moment = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise refuse(path, "a time in ISO 8601 with its zone, such as '2026-01-31T12:00:00Z'", value)
    return time(moment, path)


def json_value(value: Any, path: str) -> Any:
    """Return a copy of a value; `Invalid` if JSON cannot represent it exactly."""
    try:
        return _json_value(value, path)
    except RecursionError:
        raise Invalid(f"{path} is nested too deep for JSON", code="invalid.value", path=path) from None


def _json_value(value: Any, path: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_json_value(part, f"{path}[{at}]") for at, part in enumerate(value)]
    if kind is dict:
        return {_json_key(key, path): _json_value(part, f"{path}[{_shown(key)}]") for key, part in value.items()}
    raise _no_json(value, path)


def _json_key(key: Any, path: str) -> str:
    if type(key) is str:
        return key
    raise _no_json(key, f"{path}[{_shown(key)}]")


def _no_json(value: Any, path: str) -> Invalid:
    what = repr(value) if isinstance(value, float) else f"of type {type(value).__name__}"
    return Invalid(
        f"{path}: JSON has no value that is {what}; use text, a number, a list or a dict",
        code="invalid.value",
        path=path,
    )


# ---- entities -------------------------------------------------------------------------------------------------


class Entity:
    """The base class of agents, conversations and messages: conversion from and to stored data and JSON."""

    __slots__ = ()
    _NEEDED: ClassVar[tuple[str, ...]]
    """Fields that stored data must have. An `id` among them may be left out in JSON."""
    _TIMES: ClassVar[tuple[str, ...]] = ()
    """Fields that are times. If stored data lack the first, it is EPOCH; the defaults of the others depend on it."""
    _PARTS: ClassVar[tuple[tuple[str, type[Entity]], ...]] = ()
    """Fields that are lists of other entities, each with the class of its items."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the entity that `to_data` has converted to this data."""
        fields = _keyword_arguments(cls, data, "a newer backtrail saved it; upgrade to read it")
        for name, part in cls._PARTS:
            if name in fields:
                fields[name] = _each(part, part.from_data, fields[name], name)
        for name in cls._TIMES[:1]:
            fields.setdefault(name, EPOCH)
        return _entity_of(cls, fields)

    def to_json(self) -> dict[str, Any]:
        """Return the value as new JSON data, with times as text; `Invalid` names a part that JSON cannot represent."""
        return json_fields(type(self), self._data(), "")

    def _data(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the value that `to_json` has converted to this data. A missing or null field gets its default."""
        own = "metadata" in _names(cls)  # type: ignore[arg-type]
        fields = _keyword_arguments(cls, data, "leave it out, or put it into metadata" if own else "leave it out")
        fields = {name: value for name, value in fields.items() if value is not None}
        for name, part in cls._PARTS:
            if name in fields:
                fields[name] = _each(part, part.from_json, fields[name], name)
        for name in cls._TIMES:
            if name in fields:
                fields[name] = json_time(fields[name], name)
        if "id" in cls._NEEDED:
            fields.setdefault("id", new_id())
        return _entity_of(cls, fields)


def _a(cls: type[Entity]) -> str:
    """Return the name of the class with its article."""
    return f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"


def _keyword_arguments(cls: type[Entity], data: Any, hint: str) -> dict[str, Any]:
    """Return data as keyword arguments of the class; `Invalid` for an unknown field."""
    if type(data) is not dict and not isinstance(data, Mapping):
        raise refuse(f"the data of {_a(cls)}", "a mapping", data)
    fields = dict(data)
    known = _names(cls)  # type: ignore[arg-type]  # mypy takes the __hash__ of its instances
    if not known.issuperset(fields):
        unknown = _shown(next(name for name in fields if name not in known))
        raise Invalid(f"{_a(cls)} has no field {unknown}: {hint}", code="invalid.schema", path=f"[{unknown}]")
    fields.pop("_saved", None)  # entities that were saved as states of plain threads have it
    return fields


@functools.cache
def _names(cls: Any) -> frozenset[str]:
    return frozenset(each.name for each in dataclasses.fields(cls))


def _each(kind: type[Entity], make: Callable[[Any], Any], parts: Any, name: str) -> Any:
    """Make an entity from each item of a list of data. An item that is an entity already stays."""
    if not isinstance(parts, list | tuple):
        raise refuse(name, "a list", parts)
    entities = []
    for at, part in enumerate(parts):
        try:
            entities.append(part if type(part) is kind else make(part))
        except Invalid as error:
            raise below(error, f"{name}[{at}]") from error
    return Items(entities)


def _entity_of(cls: type[E], fields: dict[str, Any]) -> E:
    for name in cls._NEEDED:
        if name not in fields:
            raise Invalid(f"{_a(cls)} needs {name!r}, which is missing or null", code="invalid.schema", path=name)
    return cls(**fields)


def json_fields(cls: type[Entity], data: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the data of an entity as JSON data. `path` is the start of the paths in errors."""
    parts = dict(cls._PARTS)
    result: dict[str, Any] = {}
    for name, value in data.items():
        where = path + name
        if name in cls._TIMES:
            result[name] = value.isoformat()
        elif name in parts:
            result[name] = [json_fields(parts[name], part, f"{where}[{at}].") for at, part in enumerate(value)]
        else:
            result[name] = json_value(value, where)
    return result


def to_data(value: Entity) -> dict[str, Any]:
    """Return an entity as plain data, to be stored. It shares dicts with the entity: do not change them."""
    if not isinstance(value, Entity):
        raise Invalid(
            f"to_data takes an agent, conversation or message, not {type(value).__name__}", code="invalid.argument"
        )
    return value._data()  # noqa: SLF001 - its other half


def to_json(value: Entity) -> dict[str, Any]:
    """Return an entity as JSON data, as its `to_json` does."""
    if not isinstance(value, Entity):
        raise Invalid(
            f"to_json takes an agent, conversation or message, not {type(value).__name__}", code="invalid.argument"
        )
    return value.to_json()


MAX_QUERY: Final = 10_000
MAX_PHRASES: Final = 256
LEASE: Final = 60.0
"""The default lease of a run, in seconds. The worker renews the lease after each third of that time."""


def check_count(value: Any, what: str, *, least: int = 0) -> int:
    """Check a whole number that is `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Invalid(f"{what} must be a whole number, {least} or more, not {value!r}", code="invalid.argument")
    return value


def check_ids(threads: Any, what: str = "threads=") -> tuple[str, ...]:
    """Check a non-empty list of thread ids; return each id once. `what` is the argument, for the error."""
    try:
        names = None if isinstance(threads, str | bytes) else tuple(threads)
    except TypeError:
        names = None
    if not names:
        raise Invalid(f"{what} must be a list of ids, not {threads!r}", code="invalid.argument")
    return tuple(dict.fromkeys(check_id(each, "a thread's id") for each in names))


def check_kind_of_ids(kind: Any, threads: Any, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of threads to look for: only `kind`, or all `kinds` if it is None."""
    if kind is None:
        return kinds
    if kind not in kinds:
        raise Invalid(f"kind must be one of {', '.join(kinds)}, not {kind!r}", code="invalid.argument")
    if threads is None:
        raise Invalid("kind= requires threads=", code="invalid.argument")
    return (plain(kind),)


def check_kind(kind: Any) -> int:
    """Return the number of a checkpoint's kind in `log.KINDS`; `Invalid` if it is not a kind."""
    if kind not in log.KINDS:
        raise Invalid(f"kind must be one of {', '.join(log.KINDS)}, not {kind!r}", code="invalid.argument")
    return log.KINDS.index(kind)


def check_label(label: Any) -> str | None:
    """Check a label, or None."""
    if label is None:
        return None
    if not isinstance(label, str) or not 0 < len(label) <= MAX_ID:
        raise Invalid(f"a label must be a string of 1 to {MAX_ID} characters, not {label!r}", code="invalid.argument")
    if label.startswith("@"):
        raise Invalid(f"a label cannot begin with @, which begins a ref: {label!r}", code="invalid.argument")
    return plain(label)


def check_tags(tags: Any, what: str = "tags") -> tuple[str, ...]:
    """Check a list of tags; return each tag once."""
    if tags == ():
        return ()
    words = check_several(tags, what)
    for word in words:
        if not isinstance(word, str) or not 0 < len(word) <= MAX_ID:
            raise Invalid(
                f"a tag must be a string of 1 to {MAX_ID} characters, not {word!r:.100}", code="invalid.argument"
            )
    if any(word.startswith("@") for word in words):
        raise Invalid(f"a tag cannot begin with @, which begins a ref: {tags!r}", code="invalid.argument")
    return tuple(dict.fromkeys(map(plain, words)))


def check_several(values: Any, what: str) -> tuple[Any, ...]:
    """Return a collection as a tuple. A string is refused, because it would become a list of letters."""
    if isinstance(values, str | bytes):
        raise Invalid(f"{what}= takes a list, not one string: write {what}=[{values!r:.100}]", code="invalid.argument")
    try:
        return tuple(values)
    except TypeError:
        raise Invalid(f"{what}= takes a list, not {values!r:.100}", code="invalid.argument") from None


def check_text(value: Any, what: str) -> str | None:
    """Check a string to compare with, or None."""
    if value is None or isinstance(value, str):
        return None if value is None else plain(value)
    raise Invalid(f"{what}= must be a string, not {value!r:.100}", code="invalid.argument")


def check_metadata(metadata: Any) -> dict[str, Any]:
    """Check metadata and return them as a dict; an empty dict for None."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise Invalid(f"metadata must be a mapping with strings as keys, not {metadata!r}", code="invalid.argument")
    return mapping(metadata, "metadata")


def check_duration(value: Any, what: str) -> int:
    """Return a duration, given as a timedelta or in seconds, in microseconds."""
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1e-6 <= seconds < 1e12:  # noqa: PLR2004
        raise Invalid(
            f"{what} must be a timedelta or a number of seconds above 0, not {value!r}", code="invalid.argument"
        )
    return int(seconds * 1_000_000)


def check_days(value: Any, what: str) -> int:
    """Return a duration, given as a timedelta or in days, in microseconds."""
    days = value.total_seconds() / 86_400 if isinstance(value, dt.timedelta) else value
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days < 1e7:  # noqa: PLR2004
        raise Invalid(f"{what} must be a timedelta or a number of days above 0, not {value!r}", code="invalid.argument")
    return max(int(days * 86_400_000_000), 1)


def check_time(value: Any, what: str) -> int | None:
    """Return a time, given as a datetime with a time zone, in microseconds since 1970; None for None."""
    if value is None:
        return None
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise Invalid(
            f"{what} must be a datetime with a time zone, such as datetime.now(UTC) - timedelta(days=1), not {value!r}",
            code="invalid.argument",
        )
    return micros(value)


def check_period(since: Any, until: Any) -> Period:
    """Return the period between two datetimes, each of which may be None."""
    return Period(check_time(since, "since"), check_time(until, "until"))


def check_timeout(value: Any) -> float | None:
    """Return a timeout, given as a timedelta or in seconds, in seconds; None: no timeout."""
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:  # noqa: PLR2004
        raise Invalid(
            f"timeout must be a timedelta, a number of seconds from 0 on, or None, not {value!r}",
            code="invalid.argument",
        )
    return float(seconds)


def check_query(text: Any, *, contains: bool) -> query.Query:
    """Return the query of a search: one piece of text with `contains`, else words and phrases."""
    if not isinstance(text, str):
        raise Invalid(f"a query must be a string, not {type(text).__name__}", code="invalid.query")
    if len(text) > MAX_QUERY:
        raise Invalid(f"a query has at most {MAX_QUERY} characters; this one has {len(text)}", code="invalid.query")
    text = plain(text)
    parsed = query.piece(text) if contains else query.words(text)
    if parsed.piece == "" or not (contains or parsed.phrases):
        hint = "" if contains else "; contains=True searches for any text"
        raise Invalid(f"the query {text!r} has no word{hint}", code="invalid.query")
    if len(parsed.phrases) > MAX_PHRASES:
        raise Invalid(
            f"a query has at most {MAX_PHRASES} different words and phrases; this one has {len(parsed.phrases)}: quote "
            "words that follow each other, or use contains=True",
            code="invalid.query",
        )
    return parsed


def check_cursor(after: Any) -> str:
    """Return the cursor of `after=`, which is a hit or a cursor."""
    cursor = after.cursor if isinstance(after, Hit) else after
    if not isinstance(cursor, str):
        raise Invalid(f"after= must be a hit of this search, or its cursor, not {after!r}", code="invalid.argument")
    return plain(cursor)
