"""Redaction: texts that must not be stored are replaced before anything is written.

A `Redactor` goes through a value and replaces what its rule finds in texts. It looks at every str in lists, tuples,
sets, values of dicts, fields of classes, and at instances of subclasses of str. Keys of dicts are names, and stay:
replaced, two of them might become one. Bytes and paths are not looked at. A value without such texts is returned as the
same object, so that its types stay exact; an instance in which something was replaced becomes a `Record` of its class.

A state that is loaded and saved again is redacted again. So a rule must leave texts alone that it has made.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine.schema.registry import Record
from backtrail.errors import Invalid
from backtrail.models import Items

if TYPE_CHECKING:
    from backtrail.engine.schema.registry import Types

LOG: Final = logging.getLogger("backtrail")
REDACTED: Final = "[redacted]"
SECRETS: Final = (
    r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\bgh[oprsu]_[A-Za-z0-9]{36,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{22,}",
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\bAIza[0-9A-Za-z_-]{35}",  # Google
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # JSON Web Tokens
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[\s\S]*?-----END (?:[A-Z]+ )*PRIVATE KEY-----",
    r"\b[Bb]earer [A-Za-z0-9._~+/-]{16,}=*",
)
"""Patterns of common access tokens. They find tokens by their form: other secrets need patterns of their own."""
READY: Final = {"secrets": SECRETS}
_PLAIN: Final = frozenset({int, float, bool, type(None), bytes})

Redact = Callable[[str], str] | str | re.Pattern[str] | Iterable[str | re.Pattern[str]]
"""The argument `redact=` of `open`."""


def redactor_of(rule: Any) -> Redactor | None:
    """Return the redactor for the argument `redact=` of `open`; None for None."""
    if rule is None or isinstance(rule, Redactor):
        return rule
    if callable(rule):
        return Redactor(function=rule)
    rules = [rule] if isinstance(rule, str | re.Pattern) else rule
    if not isinstance(rules, Iterable) or isinstance(rules, bytes | dict):
        raise _wrong(rule)
    patterns: list[re.Pattern[str]] = []
    for each in rules:
        if isinstance(each, re.Pattern) and isinstance(each.pattern, str):
            patterns.append(each)
        elif isinstance(each, str) and each in READY:
            patterns += map(re.compile, READY[each])
        else:
            raise _wrong(each)
    if not patterns:
        raise _wrong(rule)
    return Redactor(patterns=patterns)


def _wrong(rule: Any) -> Invalid:
    names = ", ".join(map(repr, READY))
    return Invalid(
        f"redact= takes a function from str to str, or patterns: re.compile(...) or {names}; not {rule!r:.100}",
        code="invalid.argument",
    )


class Redactor:
    """Replaces texts in values, and counts the replacements."""

    def __init__(
        self, *, function: Callable[[str], str] | None = None, patterns: Iterable[re.Pattern[str]] = ()
    ) -> None:
        self._function = function
        self._patterns = tuple(patterns)
        self._lock = threading.Lock()
        self.count = 0
        """How many replacements were made: matches of patterns, or texts that the function changed."""

    def __call__(self, value: Any, types: Types) -> Any:
        """Return the value with its texts redacted; the same object if nothing was replaced."""
        counter = [0]
        result = self._value(value, types, counter, set())
        if counter[0]:
            with self._lock:
                self.count += counter[0]
            LOG.info("redacted %d parts of a value before it was written", counter[0])
        return result

    def _text(self, value: str, counter: list[int]) -> str:
        if self._function is not None:
            made = self._function(value)
            if type(made) is not str:
                raise Invalid(f"the redact function must return a str, not {type(made).__name__}", code="invalid.value")
            if made != value:
                counter[0] += 1
            return made if made != value else value
        for pattern in self._patterns:
            value, count = pattern.subn(REDACTED, value)
            counter[0] += count
        return value

    def _value(self, value: Any, types: Types, counter: list[int], above: set[int]) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value, counter)
        if kind in _PLAIN or id(value) in above:  # a value that contains itself is refused when it is encoded
            return value
        above.add(id(value))
        before = counter[0]
        made = self._container(value, kind, types, counter, above)
        above.discard(id(value))
        return value if counter[0] == before else made

    def _container(self, value: Any, kind: type, types: Types, counter: list[int], above: set[int]) -> Any:
        if kind is dict:
            return self._mapping(value, types, counter, above)
        if isinstance(value, str):
            return self._text(str(value), counter)
        if kind in (list, tuple, set, frozenset, Items):
            return kind(self._value(each, types, counter, above) for each in value)
        try:
            plain = types.plain(value)
            dumped = types.dump(plain)
        except Invalid:
            return value  # encoding it raises the error with its path
        if type(dumped) is not Record:
            return value if plain is value else self._value(plain, types, counter, above)
        fields = self._mapping(dict(dumped), types, counter, above)
        return Record(dumped.schema, dumped.version, dumped.form, fields)

    def _mapping(self, value: dict[Any, Any], types: Types, counter: list[int], above: set[int]) -> dict[Any, Any]:
        return {key: self._value(each, types, counter, above) for key, each in value.items()}
