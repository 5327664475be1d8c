"""What callers hand in, checked before anything else happens: each function returns the value, or raises `Invalid`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from backtrail.engine import log, query
from backtrail.errors import Invalid
from backtrail.fields import MAX_ID, mapping, plain
from backtrail.fields import check_id as check_id  # noqa: PLC0414 - handed on: it is what callers hand in, too
from backtrail.fields import check_progress as check_progress  # noqa: PLC0414
from backtrail.values import Hit

MAX_QUERY: Final = 10_000
MAX_PHRASES: Final = 256
LEASE: Final = 60.0
"""Seconds for which a worker has a run, if it does not renew its lease; it does at every third of that."""


def check_count(value: Any, what: str, *, least: int = 0) -> int:
    """Return a number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Invalid(f"{what} is a whole number, {least} or more, not {value!r}", code="invalid.argument")
    return value


def check_ids(threads: Any) -> tuple[str, ...]:
    """Return ids of threads, each once; there is at least one."""
    try:
        listed = None if isinstance(threads, str | bytes) else tuple(threads)
    except TypeError:
        listed = None
    if not listed:
        raise Invalid(f"threads= is a list of ids, not {threads!r}", code="invalid.argument")
    return tuple(dict.fromkeys(check_id(each, "a thread's id") for each in listed))


def check_kind_of_ids(kind: Any, threads: Any, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of threads that ids are ids of: the one that is named, else all of them."""
    if kind is None:
        return kinds
    if kind not in kinds:
        raise Invalid(f"kind is one of {', '.join(kinds)}, not {kind!r}", code="invalid.argument")
    if threads is None:
        raise Invalid("kind= says what the ids in threads= are ids of: say threads=, too", code="invalid.argument")
    return (plain(kind),)


def check_kind(kind: Any) -> int:
    """Return the number of a checkpoint's kind."""
    if kind not in log.KINDS:
        raise Invalid(f"kind is one of {', '.join(log.KINDS)}, not {kind!r}", code="invalid.argument")
    return log.KINDS.index(kind)


def check_label(label: Any) -> str | None:
    """Return a label, or None."""
    if label is None:
        return None
    if not isinstance(label, str) or not 0 < len(label) <= MAX_ID:
        raise Invalid(f"a label is a string of 1 to {MAX_ID} characters, not {label!r}", code="invalid.argument")
    if label.startswith("@"):
        raise Invalid(f"a label cannot begin with @, which begins a ref: {label!r}", code="invalid.argument")
    return plain(label)


def check_tags(tags: Any, what: str = "tags") -> tuple[str, ...]:
    """Return tags, each once."""
    if tags == ():
        return ()
    words = check_several(tags, what)
    for word in words:
        if not isinstance(word, str) or not 0 < len(word) <= MAX_ID:
            raise Invalid(f"a tag is a string of 1 to {MAX_ID} characters, not {word!r:.100}", code="invalid.argument")
    if any(word.startswith("@") for word in words):
        raise Invalid(f"a tag cannot begin with @, which begins a ref: {tags!r}", code="invalid.argument")
    return tuple(dict.fromkeys(map(plain, words)))


def check_several(values: Any, what: str) -> tuple[Any, ...]:
    """Return several things: a string is one, not its letters."""
    if isinstance(values, str | bytes):
        raise Invalid(f"{what}= takes a list, not one string: write {what}=[{values!r:.100}]", code="invalid.argument")
    try:
        return tuple(values)
    except TypeError:
        raise Invalid(f"{what}= takes a list, not {values!r:.100}", code="invalid.argument") from None


def check_text(value: Any, what: str) -> str | None:
    """Return a text to compare with, or None."""
    if value is None or isinstance(value, str):
        return None if value is None else plain(value)
    raise Invalid(f"{what}= is a string, not {value!r:.100}", code="invalid.argument")


def check_metadata(metadata: Any) -> dict[str, Any]:
    """Return metadata as a dict; None is an empty one."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise Invalid(f"metadata is a mapping with strings as keys, not {metadata!r}", code="invalid.argument")
    return mapping(metadata, "metadata")


def check_duration(value: Any, what: str) -> int:
    """Return a duration, given as a timedelta or in seconds, in microseconds."""
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1e-6 <= seconds < 1e12:  # noqa: PLR2004
        raise Invalid(f"{what} is a timedelta or a number of seconds above 0, not {value!r}", code="invalid.argument")
    return int(seconds * 1_000_000)


def check_days(value: Any, what: str) -> int:
    """Return a duration, given as a timedelta or in days, in microseconds."""
    days = value.total_seconds() / 86_400 if isinstance(value, dt.timedelta) else value
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days < 1e7:  # noqa: PLR2004
        raise Invalid(f"{what} is a timedelta or a number of days above 0, not {value!r}", code="invalid.argument")
    return max(int(days * 86_400_000_000), 1)


def check_timeout(value: Any) -> float | None:
    """Return how long to wait, given as a timedelta or in seconds, in seconds; None: for ever."""
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else value
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e12:  # noqa: PLR2004
        raise Invalid(
            f"timeout is a timedelta, a number of seconds from 0 on, or None, not {value!r}", code="invalid.argument"
        )
    return float(seconds)


def check_query(text: Any, *, contains: bool) -> query.Query:
    """Return what to look for: a piece of text, or words."""
    if not isinstance(text, str):
        raise Invalid(f"a query is a string, not {type(text).__name__}", code="invalid.query")
    if len(text) > MAX_QUERY:
        raise Invalid(f"a query has at most {MAX_QUERY} characters; this one has {len(text)}", code="invalid.query")
    text = plain(text)
    found = query.piece(text) if contains else query.words(text)
    if found.piece == "" or not (contains or found.phrases):
        hint = "" if contains else "; contains=True looks for any text as it is"
        raise Invalid(f"there is no word to look for in {text!r}{hint}", code="invalid.query")
    if len(found.phrases) > MAX_PHRASES:
        raise Invalid(
            f"a query has at most {MAX_PHRASES} different words and phrases; this one has {len(found.phrases)}: put "
            "words that stand one after the other in quotes, or use contains=True",
            code="invalid.query",
        )
    return found


def check_cursor(after: Any) -> str:
    """Return the cursor of a hit."""
    cursor = after.cursor if isinstance(after, Hit) else after
    if not isinstance(cursor, str):
        raise Invalid(f"after= is a hit of this search, or its cursor, not {after!r}", code="invalid.argument")
    return plain(cursor)
