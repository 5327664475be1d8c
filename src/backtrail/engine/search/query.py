"""What is looked for: a query taken apart, and held against a text.

A query is words, all of which must be there; "words in quotes" stand one after the other; a word with a star* at its
end is the beginning of one. Nothing else in it means anything: a word with other characters inside, such as `don't`, is
the words that it is cut into, one after the other. Or a query is one piece of text: case and accents do not count,
everything else does.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple

from backtrail.backends.port import Phrase
from backtrail.engine.search import normalize

SNIPPET: Final = 160
"""Characters of a snippet, about."""
_BEFORE: Final = 40
"""Of which so many stand before what was found, about."""
_ROUND: Final = 16
"""So many characters a snippet may be shorter to begin or end between two words."""
_USUAL: Final = 100
"""Words of a message, usually: of two texts that say a thing as often, the shorter one says it more."""
_QUOTES: Final = str.maketrans("\u201c\u201d\u201e\u201f\u00ab\u00bb", '""""""')
_PARTS: Final = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_JOINER: Final = "\u200d"
_GAPS: Final = re.compile(r"\s+")


class Match(NamedTuple):
    """Where a query was found in a text."""

    score: float
    text: str
    """Composed."""
    word: int | None
    """How many words of it come before what was found ..."""
    place: int
    """... or how many of its characters, folded."""

    @property
    def snippet(self) -> str:
        """The text around what was found."""
        at = normalize.char_at(self.text, self.place) if self.word is None else normalize.word_at(self.text, self.word)
        return snippet(self.text, at)


class Query(NamedTuple):
    """What is looked for."""

    phrases: tuple[Phrase, ...]
    """All of these must be there ..."""
    piece: str | None = None
    """... and this, folded."""
    sought: tuple[str, ...] = ()
    """What is in the words of a text if the phrases are: made once, since a phrase may have thousands of words."""

    def match(self, text: str) -> Match | None:
        """Return where it is in a text, None if it is not there."""
        composed = normalize.composed(text)
        if self.piece is not None:
            folded = normalize.folded(composed)
            place = folded.find(self.piece)
            times = [folded.count(self.piece)]
            return None if place < 0 else Match(_score(times, len(normalize.words(composed))), composed, None, place)
        line = f" {' '.join(normalize.words(composed))} "
        places = []
        for sought in self.sought:
            places.append(line.find(sought))
            if places[-1] < 0:
                return None
        times = [line.count(sought) for sought in self.sought]
        return Match(_score(times, line.count(" ") - 1), composed, line.count(" ", 0, min(places)), 0)


def _score(times: list[int], length: int) -> float:
    """Return from 0 to 1 how much a text of so many words is about what is in it so many times."""
    much = 0.3 + 0.9 * length / _USUAL
    return round(sum(count / (count + much) for count in times) / len(times), 6)


def words(query: str) -> Query:
    """Return a query for words."""
    found: list[Phrase] = []
    for quoted, star, bare in _PARTS.findall(query.translate(_QUOTES)):
        cut = tuple(normalize.words(normalize.composed(quoted or bare)))
        if cut:
            found.append(Phrase(cut, open_right=bool(star) or bare.endswith("*")))
    phrases = tuple(dict.fromkeys(found))
    return Query(phrases, sought=tuple(phrase.sought for phrase in phrases))


def piece(query: str) -> Query:
    """Return a query for a piece of text."""
    composed = normalize.composed(query)
    cut = tuple(normalize.words(composed))
    phrases = (Phrase(cut, open_left=True, open_right=True),) if cut else ()
    return Query(phrases, normalize.folded(composed))


# -- snippets -----------------------------------------------------------------------------------------


def snippet(text: str, at: int) -> str:
    """Return the part of a text around a place, on one line; dots say where it goes on."""
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
    """Return the place of the character that what is at a place belongs to."""
    while 0 < at < len(text) and (_belongs(text[at]) or text[at - 1] == _JOINER):
        at -= 1
    return at


def _belongs(char: str) -> bool:
    """Tell whether a character is a part of the one before it: a mark, or how an emoji is joined, drawn or coloured."""
    return char == _JOINER or unicodedata.category(char)[0] == "M" or "\U0001f3fb" <= char <= "\U0001f3ff"
