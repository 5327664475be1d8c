"""Text as search sees it: without case and accents, as words.

Both are done character by character, on text in Unicode's composed form (NFC), so a place in what comes out is a place
in what went in. `folded` keeps every character's meaning and drops how it is written: case, accents, width, ligatures.
`words` also cuts: what is neither a letter nor a digit ends a word. Characters of scripts that are written without
spaces are words by themselves, and so are emoji: a piece of such text is then a phrase.

What is searched and what is searched for go through the same functions, so they need not be right, only the same.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from typing import Final

# The first of each block, and the first behind it: Thai and Lao, Tibetan and Myanmar, Khmer, kana, Bopomofo, Han, Yi.
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
    """Tell whether a mark may be left out: accents of Latin, Greek, Cyrillic, and the points of Hebrew and Arabic.

    Marks of other classes, such as the vowels of Indian scripts and of Thai, make another word.
    """
    place = unicodedata.combining(char)
    return 10 <= place <= 36 or 200 <= place <= 240  # noqa: PLR2004 - the classes that Unicode numbers so


def _fold(char: str) -> str:
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return unicodedata.normalize("NFC", "".join(part for part in apart if not _is_accent(part)))


class _Folded(dict[int, str]):
    """What becomes of each character; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        found = self[code] = _fold(chr(code))
        return found


class _Cut(dict[int, str]):
    """The same, with spaces where words end."""

    def __missing__(self, code: int) -> str:
        found = self[code] = "".join(map(_cut, _fold(chr(code))))
        return found


def _cut(char: str) -> str:
    kind = unicodedata.category(char)
    if kind == "So" or (kind[0] in "LNM" and bisect_right(_SPACELESS, ord(char)) % 2):
        return f" {char} "
    if kind[0] in "LN" or kind == "Co":
        return char
    if kind[0] == "M":
        return "" if 0xFE00 <= ord(char) <= 0xFE0F else char  # noqa: PLR2004 - how an emoji is drawn says nothing
    return " "


_FOLDED: Final = _Folded()
_CUT: Final = _Cut()


def composed(text: str) -> str:
    """Return text in the form that the functions here want."""
    return unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """Return composed text without what search does not see."""
    return text.translate(_FOLDED)


def words(text: str) -> list[str]:
    """Return the words of composed text, folded."""
    return text.translate(_CUT).split()


def word_at(text: str, number: int) -> int:
    """Return where in composed text a word begins, given how many come before it."""
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
    """Return where in composed text the character is that a place in the folded text comes from."""
    length = 0
    for at, char in enumerate(text):
        length += len(_FOLDED[ord(char)])
        if length > place:
            return at
    return len(text)
