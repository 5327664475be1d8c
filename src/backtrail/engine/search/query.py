"""Queries: their syntax, how well a text matches, and snippets of matches.

A query of words matches a text that holds all of them. "Words in quotes" must follow each other; a word with a star*
at its end is a prefix. There is no other syntax: a word with other characters inside, such as `don't`, is a phrase of
the words that it splits into. A query of one piece of text ignores case and accents, and nothing else.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple

from backtrail.backends.port import Phrase
from backtrail.engine.search import normalize

SNIPPET: Final = 160
"""The approximate length of a snippet, in characters."""
_BEFORE: Final = 40
"""The approximate number of characters of a snippet before the match."""
_ROUND: Final = 16
"""A snippet may be this many characters shorter, in order to start or end between two words."""
_USUAL: Final = 100
"""The usual number of words of a message. If two texts have equally many matches, the shorter one scores higher."""
_QUOTES: Final = str.maketrans("\u201c\u201d\u201e\u201f\u00ab\u00bb", '""""""')
_PARTS: Final = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_JOINER: Final = "\u200d"
_GAPS: Final = re.compile(r"\s+")


class TextMatch(NamedTuple):
    """The first match of a query in a text, and its score."""

    score: float
    text: str
    """The text in composed form."""
    word: int | None
    """The number of words before the match; None for a query of one piece."""
    place: int
    """The position of the match in the folded text, for a query of one piece."""

    @property
    def snippet(self) -> str:
        """The text around the match."""
        at = normalize.char_at(self.text, self.place) if self.word is None else normalize.word_at(self.text, self.word)
        return snippet(self.text, at)


class Query(NamedTuple):
    """A query: phrases of words, or one text that is searched as it is."""

    phrases: tuple[Phrase, ...]
    """The phrases that a text must hold."""
    piece: str | None = None
    """The folded piece of text that a text must hold; None for a query of words."""
    sought: tuple[str, ...] = ()
    """The phrases as text. Joined once, because a phrase may have thousands of words."""

    def match(self, text: str) -> TextMatch | None:
        """Return the match in a text, or None."""
        composed = normalize.composed(text)
        if self.piece is not None:
            folded = normalize.folded(composed)
            place = folded.find(self.piece)
            times = [folded.count(self.piece)]
            return (
                None if place < 0 else TextMatch(_score(times, len(normalize.words(composed))), composed, None, place)
            )
        line = f" {' '.join(normalize.words(composed))} "
        places = []
        for sought in self.sought:
            places.append(line.find(sought))
            if places[-1] < 0:
                return None
        times = [line.count(sought) for sought in self.sought]
        return TextMatch(_score(times, line.count(" ") - 1), composed, line.count(" ", 0, min(places)), 0)


def _score(times: list[int], length: int) -> float:
    """Return the score, from 0 to 1, of a text of `length` words; `times` are the occurrences of each phrase."""
    much = 0.3 + 0.9 * length / _USUAL
    return round(sum(count / (count + much) for count in times) / len(times), 6)


def words(query: str) -> Query:
    """Return a query for words."""
    parts: list[Phrase] = []
    for quoted, star, bare in _PARTS.findall(query.translate(_QUOTES)):
        cut = tuple(normalize.words(normalize.composed(quoted or bare)))
        if cut:
            parts.append(Phrase(cut, open_right=bool(star) or bare.endswith("*")))
    phrases = tuple(dict.fromkeys(parts))
    return Query(phrases, sought=tuple(phrase.sought for phrase in phrases))


def piece(query: str) -> Query:
    """Return a query for a piece of text."""
    composed = normalize.composed(query)
    cut = tuple(normalize.words(composed))
    phrases = (Phrase(cut, open_left=True, open_right=True),) if cut else ()
    return Query(phrases, normalize.folded(composed))


# -- snippets -----------------------------------------------------------------------------------------


def snippet(text: str, at: int) -> str:
    """Return the part of a text around a position, on one line, with dots where text is left out."""
    start, end = max(0, at - _BEFORE), min(len(text), max(0, at - _BEFORE) + SNIPPET)
    start = max(0, min(start, end - SNIPPET))
    if start:
        space = text.find(" ", start, min(start + _ROUND, at))
        start = _whole(text, start) if space < 0 else space + 1
    if end < len(text):
        space = text.rfind(" ", max(end - _ROUND, at + 1), end)
        end = _whole(text, end) if space < 0 else space
    shown = _GAPS.sub(" ", text[start:end]).strip()
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _whole(text: str, at: int) -> int:
    """Return the position of the first code point of the character at a position."""
    while 0 < at < len(text) and (_belongs(text[at]) or text[at - 1] == _JOINER):
        at -= 1
    return at


def _belongs(char: str) -> bool:
    """Tell whether a code point belongs to the one before it: a mark, or a joiner, variant or colour of an emoji."""
    return char == _JOINER or unicodedata.category(char)[0] == "M" or "\U0001f3fb" <= char <= "\U0001f3ff"
