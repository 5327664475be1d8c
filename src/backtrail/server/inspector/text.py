"""How pages show values: stored text is only text, sizes and times are short.

`visible` is applied to everything that a template prints. Templates escape HTML; this makes characters harmless that
HTML passes on: terminal escapes, and characters that turn the direction of writing.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any, Final

from markupsafe import Markup, escape

_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB")
_AGES: Final = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (86400 * 60, 86400, "d"))
_KILO: Final = 1000
_MESSAGE: Final = re.compile(r'"role": "(?P<role>\w+)", "content": "(?P<text>(?:[^"\\]|\\.)*)')
"""In the JSON of a message, which may be cut off."""
_JOINERS: Final = "\u200c\u200d"
"""They join characters of some scripts, and parts of emoji."""


def visible(value: Any) -> Any:
    """Return a value as text in which no character is invisible, except for spaces and line ends."""
    if value is None:
        return ""
    if isinstance(value, Markup) or not isinstance(value, str) or value.isprintable():
        return value
    return "".join(char if char.isprintable() or char in "\n\t" or char in _JOINERS else _name(char) for char in value)


def _name(char: str) -> str:
    if char == "\r":
        return ""
    if char.isspace():  # such as a no-break space: not printable, but no harm
        return " "
    return f"⟨U+{ord(char):04X}⟩"


def size(count: int) -> str:
    """Return a number of bytes for people."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if abs(value) < _KILO or unit == _UNITS[-1]:
            break
        value /= _KILO
    return f"{value:.0f} {unit}" if unit == _UNITS[0] or value >= 10 else f"{value:.1f} {unit}"  # noqa: PLR2004


def number(count: int) -> str:
    """Return a number with separators."""
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time span for people."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def marked(text: str, words: str) -> Markup:
    """Return a text with the words of a query marked."""
    wanted = [re.escape(word.strip('"*')) for word in words.split() if word.strip('"*')]
    parts = re.split(f"({'|'.join(wanted)})", text, flags=re.IGNORECASE) if wanted else [text]
    shown = (escape(visible(part)) for part in parts)
    return Markup("").join(Markup("<mark>{}</mark>").format(part) if at % 2 else part for at, part in enumerate(shown))


def ago(moment: str | None) -> str:
    """Return how long ago a time in ISO 8601 was."""
    try:
        time = dt.datetime.fromisoformat(moment or "")
    except ValueError:
        return ""
    time = time if time.tzinfo else time.replace(tzinfo=dt.UTC)
    seconds = (dt.datetime.now(dt.UTC) - time).total_seconds()
    for below, unit, name in _AGES:
        if seconds < below:
            return f"{max(int(seconds / unit), 0)} {name}"
    return f"{time:%Y-%m-%d}"


def short(checkpoint_id: str) -> str:
    """Return the beginning of the id of a checkpoint, as the command line shows it."""
    return checkpoint_id[:8]


def pretty(value: Any) -> str:
    """Return JSON data as indented text; a text as itself."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def compact(value: Any, most: int = 120) -> str:
    """Return JSON data in one line of at most `most` characters."""
    if isinstance(value, dict) and value.get("truncated") is True and "preview" in value:
        return f"{compact(value['preview'], most).removesuffix('…')}…"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}…"


def signature(arguments: Any, most: int = 120) -> str:
    """Return the arguments of a call as Python writes them."""
    if not isinstance(arguments, dict) or arguments.get("truncated") is True:
        return f"({compact(arguments, most)})" if arguments else "()"
    of_run = arguments.keys() == {"args", "kwargs"}
    named = arguments["kwargs"] if of_run else arguments
    parts = [json.dumps(each, ensure_ascii=False) for each in (arguments["args"] if of_run else ())]
    parts += [f"{name}={json.dumps(each, ensure_ascii=False)}" for name, each in named.items()]
    return f"({compact(', '.join(parts), most)})"


def side(value: Any, most: int = 200) -> str:
    """Return a side of a difference in one line: a message as its role and text."""
    if isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str):
        return compact(f"{value['role']}: {value['content']}", most)
    text = compact(value, most)
    if text.startswith("{") and (found := _MESSAGE.search(text)):
        return f"{found['role']}: {found['text']}"
    return text


FILTERS: Final = {
    "size": size,
    "number": number,
    "counted": counted,
    "ago": ago,
    "short": short,
    "pretty": pretty,
    "compact": compact,
    "signature": signature,
    "side": side,
    "duration": duration,
    "marked": marked,
}
