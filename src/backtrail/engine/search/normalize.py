"""Text without case and accents, and as words, for search.

`folded` removes case, accents, width and ligatures of characters. `words` also splits the text: a character that is
neither a letter nor a digit ends a word. In scripts without spaces each character is a word, and so is each emoji; a
piece of such text is a phrase. Both functions work character by character on text in Unicode's composed form (NFC), so
a position in their result can be mapped to a position in the text.

Queries and texts go through the same functions. So these need not be right for every language, only consistent.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from typing import Final

# Starts and ends of blocks: Thai and Lao, Tibetan and Myanmar, Khmer, kana, Bopomofo, Han, Yi.
_SPACELESS: Final = (
    *(0x0E00, 0x10A0),
    *(0x1780, 0x1800),
    *(0x2E80, 0x3130),
    *(0x31A0, 0xA4D0),
    *(0xF900, 0xFB00),
    *(0x1B000, 0x1B170),
    *(0x20000, 0x40000),
)


def _is_accent(char: str) -> bool:
    """Tell whether search ignores a mark: accents of Latin, Greek, Cyrillic, and the points of Hebrew and Arabic.

    Marks of other classes, such as the vowels of Indian scripts and of Thai, distinguish words.
    """
    place = unicodedata.combining(char)
    return 10 <= place <= 36 or 200 <= place <= 240  # noqa: PLR2004 - Unicode's numbers of these classes


def _fold(char: str) -> str:
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return unicodedata.normalize("NFC", "".join(part for part in apart if not _is_accent(part)))


class _Folded(dict[int, str]):
    """The folded form of each character, filled on demand."""

    def __missing__(self, code: int) -> str:
        text = self[code] = _fold(chr(code))
        return text


class _Cut(dict[int, str]):
    """The folded form of each character with spaces where words end, filled on demand."""

    def __missing__(self, code: int) -> str:
        text = self[code] = "".join(map(_cut, _fold(chr(code))))
        return text


def _cut(char: str) -> str:
    kind = unicodedata.category(char)
    if kind == "So" or (kind[0] in "LNM" and bisect_right(_SPACELESS, ord(char)) % 2):
        return f" {char} "
    if kind[0] in "LN" or kind == "Co":
        return char
    if kind[0] == "M":
        return "" if 0xFE00 <= ord(char) <= 0xFE0F else char  # noqa: PLR2004 - variants of an emoji
    return " "


_FOLDED: Final = _Folded()
_CUT: Final = _Cut()


def composed(text: str) -> str:
    """Return text in composed form, which the other functions need."""
    return unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """Return composed text without case, accents, width and ligatures."""
    return text.translate(_FOLDED)


def words(text: str) -> list[str]:
    """Return the words of composed text, folded."""
    return text.translate(_CUT).split()


def word_at(text: str, number: int) -> int:
    """Return the position in composed text of a word, given how many words come before it."""
    inside, seen = False, -1
    for at, char in enumerate(text):
        for part in _CUT[ord(char)]:
            if part == " ":
                inside = False
            elif not inside:
                inside, seen = True, seen + 1
                if seen == number:
                    return at
    return len(text)


def char_at(text: str, place: int) -> int:
    """Return the position in composed text of the character at a position of the folded text."""
    length = 0
    for at, char in enumerate(text):
        length += len(_FOLDED[ord(char)])
        if length > place:
            return at
    return len(text)
