"""How the port's values are kept in a database's columns, whichever it is.

Text that users choose is kept as bytes: databases end text at a NUL, or refuse it, and know no lone surrogates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.backends.port import Row, ThreadRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_SEQ: Final = (1 << 32) - 1


def encoded(text: str | None) -> bytes | None:
    """Return text as it is stored: any str goes, and a prefix stays a prefix."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decoded(stored: bytes | None) -> str | None:
    """Return stored text as it was; of damaged text what can be shown, which is not what the row's checksum is of."""
    return None if stored is None else text_of(stored)


def text_of(stored: bytes) -> str:
    """Return the same of text that is there."""
    try:
        return stored.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return stored.decode("utf-8", "backslashreplace")


def as_row(values: Sequence[Any]) -> Row:
    """Return the row from its columns in the order of its fields."""
    return Row._make((*values[:12], decoded(values[12]), *values[13:20], values[20] == 1))


def as_record(values: Sequence[Any]) -> ThreadRecord:
    """Return the thread from its columns in the order of its fields."""
    no, space, name, uid, agent, created_at, origin = values
    return ThreadRecord(no, space, decoded(name) or "", uid, decoded(agent), created_at, decoded(origin))


def above(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that begin with the prefix, None if nothing is."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same seqs as ascending ranges that do not overlap."""
    result: list[tuple[int, int]] = []
    for first, last in sorted((max(first, 1), min(last, MAX_SEQ)) for first, last in ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result
