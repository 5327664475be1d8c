"""Output of commands: data to stdout, messages to stderr.

Data has one of three forms: a table or text for people, one JSON document (`--json`), or one JSON value per line
(`--jsonl`). Colours and progress are for terminals only. Control characters in stored text are escaped. Widths count
terminal cells, so that wide characters line up.
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
"""The most cells of a long text if there is no terminal."""
_GAP: Final = "  "
_LEAST: Final = 12
_TICK: Final = 0.1
_AGES: Final = ((31_536_000, "y"), (604_800, "w"), (86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_UNIT: Final = 1000
_CONTROLS: Final = re.compile(
    "[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that JSON allows unescaped and terminals interpret: controls, line ends, direction marks, invisible marks.
U+200C and U+200D are excluded: words and emoji need them."""
_BAR: Final = 24
_HIDDEN: Final = ""
"""The key of a record's data that are not fields of its class."""
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. The `wide` column gets the width that the others leave.

    Without a terminal, only a column of `words` is cut. In a narrow terminal, `spare` columns are left out, those with
    the highest number first.
    """

    title: str
    style: str | None = None
    right: bool = False
    wide: bool = False
    words: bool = False
    spare: int = 0


class Output:
    """The output of a command's data, in one of the three forms."""

    def __init__(self, form: str | None = None) -> None:
        self.form = form
        self.colour = is_terminal(sys.stdout) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.room = room_of(sys.stdout)
        """The cells of a line; None without a terminal."""

    @property
    def human(self) -> bool:
        """Whether the output is for people, not for programs."""
        return self.form is None

    # -- for programs ---------------------------------------------------------------------------------

    def values(self, values: Iterable[Any]) -> None:
        """Print JSON values: a list, or one per line."""
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
        """Print one JSON value. In a terminal, long lines are folded."""
        text = as_json(value, indent=None if self.form == "jsonl" else 2)
        if self.human and is_terminal(sys.stdout) and self.room:
            text = "\n".join(_folded(each, self.room) for each in text.split("\n"))
        line(text)

    # -- for people -----------------------------------------------------------------------------------

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """Print a table without the columns that are empty in all rows."""
        cells = [[clean(cell) for cell in row] for row in rows]
        if not cells:
            return
        needs = [max(width(column.title), *(width(row[at]) for row in cells)) for at, column in enumerate(columns)]
        filled = [at for at in range(len(columns)) if any(row[at] for row in cells)]
        places = _visible(columns, needs, filled, self.room)
        visible = [columns[at] for at in places]
        widths = _fitted(visible, [needs[at] for at in places], self.room)
        titles = _parts([column.title for column in visible], visible, widths)
        line(self.paint(_GAP.join(titles).rstrip(), "dim"))
        for row in cells:
            parts = _parts([row[at] for at in places], visible, widths)
            line(_GAP.join(self.paint(p, c.style) for p, c in zip(parts, visible, strict=True)).rstrip())

    def fact(self, name: str, value: str, cells: int) -> None:
        """Print a name, padded to `cells` cells, and a value after it."""
        text = clean(value)
        parts = wrapped(text, max(self.room - cells - 1, _LEAST)) if self.room else [text]
        line(f"{self.paint(pad(name, cells), 'dim')} {parts[0]}")
        for part in parts[1:]:
            line(f"{' ' * cells} {part}")

    def tell(self, text: str) -> None:
        """Print a sentence to stdout."""
        for each in wrapped(clean(text), self.room) if self.room else [clean(text)]:
            line(each)

    def paint(self, text: str, style: str | None) -> str:
        """Return a text with the codes of a colour; unchanged if the terminal has no colours."""
        if not self.colour or style is None or not text.strip():
            return text
        return click.style(text, dim=True) if style == "dim" else click.style(text, fg=style)

    def id(self, text: str) -> str:
        """Return the id of a thread for a listing: in a terminal, only the first digits of a UUID."""
        return text if self.room is None else short(text)

    def fit(self, text: str, used: int = 0, most: int = WORDS) -> str:
        """Return a text cut to the cells that a line has left after `used` cells; to `most` without a terminal."""
        return cut(text, max(self.room - used, _LEAST) if self.room else most)


def line(text: str, *, end: str = "\n") -> None:
    """Print a line of data to stdout."""
    sys.stdout.write(text + end)


def say(text: str) -> None:
    """Print a message to stderr, after the data that was printed before. A terminal gets it wrapped.

    A command between backticks is never broken, so that users can copy it.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe stopped; the message still matters
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for each in for_stderr(text):
        click.echo(each, err=True)


def say_command(text: str, command: str) -> None:
    """Print a text and a command to stderr, the command in a separate line if both do not fit.

    The command is never broken, so that users can copy it.
    """
    room = room_of(sys.stderr)
    if room is not None and width(text) + 1 + width(command) > room:
        say(text)
        click.echo(command, err=True)
    else:
        say(f"{text} {command}")


def for_stderr(text: str, less: int = 0) -> list[str]:
    """Return the lines of a text for stderr. For a terminal, wrap it to the width of the terminal minus `less`."""
    room = room_of(sys.stderr)
    indent = text[: len(text) - len(text.lstrip(" "))]
    text = clean(text)
    return [text] if room is None else wrapped(text, room - less, indent)


def is_terminal(stream: Any) -> bool:
    """Tell whether a stream is a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # the stream is closed or missing
        return False


def can_show(text: str, stream: Any) -> bool:
    """Tell whether a stream's encoding has all characters of a text."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeError, LookupError):
        return False
    return True


def room_of(stream: Any) -> int | None:
    """Return the width of a stream's lines in cells, at least 40; None without a terminal and without $COLUMNS."""
    named = os.environ.get("COLUMNS", "")
    if is_terminal(stream) or (named.isascii() and named.isdigit() and stream is sys.stdout):
        return max(shutil.get_terminal_size().columns, 40)
    return None


# -- long lines ---------------------------------------------------------------------------------------------


_WORD: Final = re.compile(r"`[^`]*`\S*|\S+")


def wrapped(text: str, room: int, indent: str = "") -> list[str]:
    """Return a text in lines of at most `room` cells, broken between words. Lines after the first are indented."""
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
    """Return the longest prefix of a text that fits into `cells` cells, at least one character."""
    taken = 0
    for at, char in enumerate(text):
        taken += width(char)
        if taken > cells and at:
            return text[:at]
    return text


def _folded(text: str, room: int) -> str:
    """Return a line of JSON folded into several. Lines after the first are indented more."""
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


def _visible(columns: Sequence[Column], needs: Sequence[int], used: list[int], room: int | None) -> list[int]:
    """Return the positions of the columns to print. Spare columns are left out until the others fit."""
    if room is None:
        return used
    while True:
        least = sum(min(needs[at], _LEAST) for at in used) + len(_GAP) * (len(used) - 1)
        spare = max(used, key=lambda at: columns[at].spare)
        if least <= room or not columns[spare].spare:
            return used
        used = [at for at in used if at != spare]


def _fitted(columns: Sequence[Column], widths: list[int], room: int | None) -> list[int]:
    """Return the widths of columns with which a row fits: wide columns shrink first, then the longest others."""
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


def width(text: str) -> int:
    """Return the number of terminal cells of a text."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` cells. An ellipsis replaces the rest."""
    if width(text) <= most:
        return text
    chars, left = [], most - 1
    for char in text:
        left -= width(char)
        if left < 0:
            break
        chars.append(char)
    return "".join(chars).rstrip() + "…"


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """Return a text padded with blanks to `cells` cells; aligned to the right if `right`."""
    blanks = " " * max(cells - width(text), 0)
    return blanks + text if right else text + blanks


def clean(text: str) -> str:
    """Return a text as one line without control characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return " " if char in "\n\t\r " else char.encode("unicode_escape").decode()


def short(text: str, cells: int = 8) -> str:
    """Return the first digits of a UUID with an ellipsis; any other id unchanged."""
    return f"{text[:cells]}…" if _UUID.fullmatch(text) else text


def quoted(word: str) -> str:
    """Return a word quoted for a shell; a word with control characters in the $'...' form of bash and zsh."""
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
    """Return a value as JSON data. A type that JSON lacks becomes a similar one: docs/cli.md lists them."""
    if value is None or isinstance(value, bool | int | str):
        return getattr(value, "value", value)  # an Enum has a value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        if hasattr(value, "schema"):  # an instance of a class: leave out the list of its set fields
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
    """Tell whether the hidden data of an instance are only the lists of its set and unset fields."""
    return isinstance(hidden, dict) and hidden.keys() <= {"set", "unset"}


def _key(key: Any) -> str:
    data = plain(key)
    return data if isinstance(data, str) else compact(data)


def compact(value: Any) -> str:
    """Return a value as JSON in one line."""
    return as_json(value)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that stdout can encode, with characters that terminals interpret escaped."""
    data = plain(value)
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    if not can_show(text, sys.stdout):
        return json.dumps(data, indent=indent)
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}" if match[0] < "\uffff" else _pair(match[0]), text)


def _pair(char: str) -> str:
    return json.dumps(char)[1:-1]


def _indented(value: Any) -> str:
    return "\n".join(f"  {each}" for each in as_json(value, indent=2).split("\n"))


def brief(value: Any, most: int = WORDS) -> str:
    """Return the beginning of a value's text or JSON, in at most `most` cells."""
    text = value if isinstance(value, str) else compact(value)
    return cut(clean(text[: 4 * most].strip()) + ("…" if len(text) > 4 * most else ""), most)


def size(count: int) -> str:
    """Return a number of bytes with a unit, such as 1.5 MB."""
    if count < _UNIT:
        return f"{count} B"
    amount, unit = float(count), "B"
    for name in ("KB", "MB", "GB", "TB"):
        if amount < _UNIT:
            break
        amount, unit = amount / _UNIT, name
    return f"{amount:.1f} {unit}"


def age(moment: dt.datetime | None) -> str:
    """Return the time since a moment in its largest unit, such as 3h; empty for None."""
    if moment is None:
        return ""
    seconds = max(int(time.time() - moment.timestamp()), 0)
    return next((f"{seconds // length}{unit}" for length, unit in _AGES if seconds >= length), "0s")


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun in singular or plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


# -- progress --------------------------------------------------------------------------------------


class Progress:
    """A progress line on stderr, cleared at the end. Without a terminal, it prints nothing.

    `totals` returns how many of each unit, such as threads, there are about, so that a bar can be drawn. It is called
    only if stderr is a terminal.
    """

    def __init__(self, totals: Callable[[], dict[str, int]] | None = None) -> None:
        self._shown = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._totals = totals() if totals and self._shown else {}
        self._last = 0.0

    def __call__(self, what: str, number: int) -> None:
        """Show the number of finished units `what`."""
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
    """Return a progress bar with a percentage; empty if the total is unknown or exceeded."""
    if not number <= total > 0:
        return ""
    full = number * _BAR // total
    whole, empty = "█░" if can_show("█░", sys.stderr) else "#."
    return f"{whole * full}{empty * (_BAR - full)} {number * 100 // total:3}%  "


def first_items(items: Iterator[Any], most: int) -> tuple[list[Any], bool]:
    """Return the first `most` items, and whether there are more; 0 means all."""
    first: list[Any] = []
    for item in items:
        if most and len(first) == most:
            return first, True
        first.append(item)
    return first, False
