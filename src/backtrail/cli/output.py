"""What commands print: data to stdout, talk to stderr.

Data is one of three forms: a table or a text for people, one JSON document (`--json`), or one JSON value in each line
(`--jsonl`). Colours, and news of work that goes on, are for terminals only. Whatever was stored is made harmless before
a terminal sees it: control characters are spelled out. Columns are counted in cells, so wide characters line up.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence

WORDS: Final = 60
"""Cells that a text of any length gets where no terminal says how many there are."""
_GAP: Final = "  "
_LEAST: Final = 12
_TICK: Final = 0.1
_AGES: Final = ((31_536_000, "y"), (604_800, "w"), (86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_UNIT: Final = 1000
_CONTROLS: Final = re.compile(
    "[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""What JSON allows as it is, and terminals do something with: controls, ends of lines, changes of direction, and what
takes no room but has a meaning. Not U+200C and U+200D, which words and emoji are written with."""
_BAR: Final = 24
_HIDDEN: Final = ""
"""The key under which a record keeps what is no field of its class."""
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the one that is `wide` gets what room the others leave.

    Where there is no terminal nothing is cut but the column of `words`, which are only a beginning anyway. Where there
    is little room, columns that are `spare` are left out, those with the highest number first.
    """

    title: str
    style: str | None = None
    right: bool = False
    wide: bool = False
    words: bool = False
    spare: int = 0


class Output:
    """Where a command's data goes, and in which form."""

    def __init__(self, form: str | None = None) -> None:
        self.form = form
        self.colour = is_terminal(sys.stdout) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.room = room_of(sys.stdout)
        """Cells in a line; None if nobody says."""

    @property
    def human(self) -> bool:
        """Whether people read it, not programs."""
        return self.form is None

    # -- for programs ---------------------------------------------------------------------------------

    def values(self, values: Iterable[Any]) -> None:
        """Print JSON values: a list of them, or one in each line."""
        if self.form == "jsonl":
            for value in values:
                line(compact(value))
            return
        first = True
        for value in values:
            line(("[\n" if first else ",\n") + _indented(value), end="")
            first = False
        line("[]" if first else "\n]")

    def value(self, value: Any) -> None:
        """Print one JSON value; people get it with long lines folded to the width of their terminal."""
        text = as_json(value, indent=None if self.form == "jsonl" else 2)
        if self.human and is_terminal(sys.stdout) and self.room:
            text = "\n".join(_folded(each, self.room) for each in text.split("\n"))
        line(text)

    # -- for people -----------------------------------------------------------------------------------

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """Print a table; a column that is empty in all rows is left out."""
        cells = [[clean(cell) for cell in row] for row in rows]
        if not cells:
            return
        needs = [max(width(column.title), *(width(row[at]) for row in cells)) for at, column in enumerate(columns)]
        used = _kept(columns, needs, [at for at in range(len(columns)) if any(row[at] for row in cells)], self.room)
        kept = [columns[at] for at in used]
        widths = _fitted(kept, [needs[at] for at in used], self.room)
        line(self.paint(_laid([c.title for c in kept], kept, widths), "dim"))
        for row in cells:
            parts = _parts([row[at] for at in used], kept, widths)
            line(_GAP.join(self.paint(p, c.style) for p, c in zip(parts, kept, strict=True)).rstrip())

    def fact(self, name: str, value: str, cells: int) -> None:
        """Print what something is, behind its name, which gets so many cells."""
        text = clean(value)
        parts = wrapped(text, max(self.room - cells - 1, _LEAST)) if self.room else [text]
        line(f"{self.paint(pad(name, cells), 'dim')} {parts[0]}")
        for part in parts[1:]:
            line(f"{' ' * cells} {part}")

    def tell(self, text: str) -> None:
        """Print a sentence that is data."""
        for each in wrapped(clean(text), self.room) if self.room else [clean(text)]:
            line(each)

    def paint(self, text: str, style: str | None) -> str:
        """Return a text in a colour, if there are colours."""
        if not self.colour or style is None or not text.strip():
            return text
        return click.style(text, dim=True) if style == "dim" else click.style(text, fg=style)

    def id(self, text: str) -> str:
        """Return the id of a thread as a listing shows it: in a terminal, only the beginning of a UUID."""
        return text if self.room is None else short(text)

    def fit(self, text: str, used: int = 0, most: int = WORDS) -> str:
        """Return a text cut to what is left of a line."""
        return cut(text, max(self.room - used, _LEAST) if self.room else most)


def line(text: str, *, end: str = "\n") -> None:
    """Print a line of data."""
    sys.stdout.write(text + end)


def say(text: str) -> None:
    """Tell something that is not data, behind the data that was printed before: in one line, or as many as it takes.

    A command in it, between backticks, is never broken: it is there to be copied.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the data has seen enough; what was done is done, and told
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for each in for_stderr(text):
        click.echo(each, err=True)


def say_command(text: str, command: str) -> None:
    """Tell a command, behind a text or in a line of its own: it is there to be copied, and never broken."""
    room = room_of(sys.stderr)
    if room is not None and width(text) + 1 + width(command) > room:
        say(text)
        click.echo(command, err=True)
    else:
        say(f"{text} {command}")


def for_stderr(text: str, less: int = 0) -> list[str]:
    """Return the lines that a text takes on stderr: one, unless that is a terminal which is narrower by so much."""
    room = room_of(sys.stderr)
    indent = text[: len(text) - len(text.lstrip(" "))]
    text = clean(text)
    return [text] if room is None else wrapped(text, room - less, indent)


def is_terminal(stream: Any) -> bool:
    """Tell whether somebody sits in front of it."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # it is closed, or was from the beginning
        return False


def can_show(text: str, stream: Any) -> bool:
    """Tell whether a stream's encoding has these characters."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeError, LookupError):
        return False
    return True


def room_of(stream: Any) -> int | None:
    """Return how many cells a line of a stream has; None if it is no terminal, and nobody says."""
    named = os.environ.get("COLUMNS", "")
    if is_terminal(stream) or (named.isascii() and named.isdigit() and stream is sys.stdout):
        return max(shutil.get_terminal_size().columns, 40)
    return None


# -- long lines ---------------------------------------------------------------------------------------------


_WORD: Final = re.compile(r"`[^`]*`\S*|\S+")


def wrapped(text: str, room: int, indent: str = "") -> list[str]:
    """Return a text in lines of no more cells than that, broken between words; lines behind the first are indented."""
    if width(text) <= room:
        return [text]
    indent = indent[: room // 4]
    lines, now = [], indent
    for word in _WORD.findall(text):
        joined = f"{now} {word}" if now.strip() else now + word
        if width(joined) <= room:
            now = joined
            continue
        if now.strip():
            lines.append(now)
        now = indent + word
        while width(now) > room and not word.startswith("`"):
            head = _first(now, room)
            lines.append(head)
            now = indent + now[len(head) :]
    return [*lines, now] if now.strip() or not lines else lines


def _first(text: str, cells: int) -> str:
    """Return as much of the beginning of a text as fits, at least one character."""
    taken = 0
    for at, char in enumerate(text):
        taken += width(char)
        if taken > cells and at:
            return text[:at]
    return text


def _folded(text: str, room: int) -> str:
    """Return a line of JSON in as many as it takes: those behind the first are indented a bit more."""
    if width(text) <= room:
        return text
    indent = " " * min(len(text) - len(text.lstrip(" ")) + 4, room // 2)
    first = _first(text, room)
    lines, rest = [first], text[len(first) :]
    while rest:
        part = _first(rest, room - len(indent))
        lines.append(indent + part)
        rest = rest[len(part) :]
    return "\n".join(lines)


# -- tables -----------------------------------------------------------------------------------------------


def _kept(columns: Sequence[Column], needs: Sequence[int], used: list[int], room: int | None) -> list[int]:
    """Return the places of the columns that are shown: spare ones go as long as the others would have no room."""
    if room is None:
        return used
    while True:
        least = sum(min(needs[at], _LEAST) for at in used) + len(_GAP) * (len(used) - 1)
        spare = max(used, key=lambda at: columns[at].spare)
        if least <= room or not columns[spare].spare:
            return used
        used = [at for at in used if at != spare]


def _fitted(columns: Sequence[Column], widths: list[int], room: int | None) -> list[int]:
    """Return the widths with which a row fits: wide columns give way first, then the longest others."""
    if room is None:
        return [min(w, WORDS) if c.words else w for w, c in zip(widths, columns, strict=True)]
    fitted = list(widths)
    over = sum(fitted) + len(_GAP) * (len(fitted) - 1) - room
    wide = [at for at, column in enumerate(columns) if column.wide]
    widest = sorted(range(len(fitted)), key=lambda at: -fitted[at])
    for at, least in [(at, least) for least in (_LEAST, 1) for at in (*wide, *widest)]:
        gone = max(min(over, fitted[at] - least), 0)
        fitted[at] -= gone
        over -= gone
    return fitted


def _parts(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    shown = [cut(cell, most) for cell, most in zip(cells, widths, strict=True)]
    return [pad(cell, most, right=column.right) for cell, most, column in zip(shown, widths, columns, strict=True)]


def _laid(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    return _GAP.join(_parts(cells, columns, widths)).rstrip()


def width(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, most: int) -> str:
    """Return a text that takes no more cells than that; what is left out is an ellipsis."""
    if width(text) <= most:
        return text
    kept, left = [], most - 1
    for char in text:
        left -= width(char)
        if left < 0:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "…"


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """Return a text with blanks beside it."""
    blanks = " " * max(cells - width(text), 0)
    return blanks + text if right else text + blanks


def clean(text: str) -> str:
    """Return a text as one line that does nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return " " if char in "\n\t\r " else char.encode("unicode_escape").decode()


def short(text: str, cells: int = 8) -> str:
    """Return the beginning of an id that a program made, a UUID; all of any other."""
    return f"{text[:cells]}…" if _UUID.fullmatch(text) else text


def quoted(word: str) -> str:
    """Return a word as a shell takes it; one with control characters in the form of bash and zsh."""
    if word.isprintable():
        from shlex import quote

        return quote(word)
    parts = (_escaped(char) for char in word)
    return f"$'{''.join(parts)}'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))


# -- values -----------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:  # noqa: PLR0911 - one line for each kind of value
    """Return a value as JSON has it; what JSON does not have, as the nearest thing: docs/cli.md has the table."""
    if value is None or isinstance(value, bool | int | str):
        return getattr(value, "value", value)  # of an Enum
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        if hasattr(value, "schema"):  # of an instance of a class: not what says which of its fields were set
            value = {key: part for key, part in value.items() if key != _HIDDEN or not bookkeeping(part)}
        return {key if isinstance(key, str) else _key(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, bytes | bytearray):
        import base64

        return base64.b64encode(value).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__ if not name.startswith("_")}
    return str(value)


def bookkeeping(hidden: Any) -> bool:
    """Tell whether what is kept beside the fields of an instance says only which of them were set."""
    return isinstance(hidden, dict) and hidden.keys() <= {"set", "unset"}


def _key(key: Any) -> str:
    told = plain(key)
    return told if isinstance(told, str) else compact(told)


def compact(value: Any) -> str:
    """Return a value as JSON, in one line."""
    return as_json(value)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that stdout can show; what would do something to a terminal is escaped."""
    told = plain(value)
    text = json.dumps(told, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    if not can_show(text, sys.stdout):
        return json.dumps(told, indent=indent)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}" if found[0] < "\uffff" else _pair(found[0]), text)


def _pair(char: str) -> str:
    return json.dumps(char)[1:-1]


def _indented(value: Any) -> str:
    return "\n".join(f"  {each}" for each in as_json(value, indent=2).split("\n"))


def brief(value: Any, most: int = WORDS) -> str:
    """Return the beginning of a value, for a line."""
    text = value if isinstance(value, str) else compact(value)
    return cut(clean(text[: 4 * most].strip()) + ("…" if len(text) > 4 * most else ""), most)


def size(count: int) -> str:
    """Return a number of bytes, for people."""
    if count < _UNIT:
        return f"{count} B"
    amount, unit = float(count), "B"
    for name in ("KB", "MB", "GB", "TB"):
        if amount < _UNIT:
            break
        amount, unit = amount / _UNIT, name
    return f"{amount:.1f} {unit}"


def age(moment: dt.datetime | None) -> str:
    """Return how long ago something was."""
    if moment is None:
        return ""
    seconds = max(int(time.time() - moment.timestamp()), 0)
    return next((f"{seconds // length}{unit}" for length, unit in _AGES if seconds >= length), "0s")


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number of things, in words."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


# -- work that goes on --------------------------------------------------------------------------------------


class Progress:
    """Tells how far some work is, in one line of a terminal that goes away with it; nothing elsewhere.

    `totals` returns how much of each thing there is, about: then there is a bar. It is only asked for a terminal.
    """

    def __init__(self, totals: Callable[[], dict[str, int]] | None = None) -> None:
        self._shown = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._totals = totals() if totals and self._shown else {}
        self._last = 0.0

    def __call__(self, what: str, number: int) -> None:
        """Take note of how far it is."""
        now = time.monotonic()
        if self._shown and now - self._last >= _TICK:
            self._last = now
            self._put(f"\r\x1b[K{_bar(number, self._totals.get(what, 0))}{what} {number:,} ")

    def __enter__(self) -> Callable[[str, int], None]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last:
            self._put("\r\x1b[K")

    def _put(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _bar(number: int, total: int) -> str:
    """Return a bar, filled as far as some work is; none if that is not known, or there was more than was thought."""
    if not number <= total > 0:
        return ""
    full = number * _BAR // total
    whole, empty = "█░" if can_show("█░", sys.stderr) else "#."
    return f"{whole * full}{empty * (_BAR - full)} {number * 100 // total:3}%  "


def pages(items: Iterator[Any], most: int) -> tuple[list[Any], bool]:
    """Return so many of the items, and whether there are more; 0 means all of them."""
    kept: list[Any] = []
    for item in items:
        if most and len(kept) == most:
            return kept, True
        kept.append(item)
    return kept, False
