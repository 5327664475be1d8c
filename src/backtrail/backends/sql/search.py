"""Split a search phrase into the terms to look up in an index of words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from backtrail.backends.port import Phrase

PARTS: Final = 500
"""The most words of the vocabulary that may contain a part of a word; with more, the index is not asked for it."""
PHRASES: Final = 32
"""The most phrases of a query, and words of a phrase, that the index is asked for; the engine checks all of them."""


class PhraseTerms(NamedTuple):
    """The terms of a phrase to look up in the index."""

    part: str | None
    """The first word of the phrase if it may be a part of a longer word, else None."""
    inside: bool
    """Whether `part` may be anywhere in the longer word; else it must be its end."""
    words: tuple[str, ...]
    """The other words of the phrase, as whole words."""
    prefix: bool
    """Whether the last of `words` may be the beginning of a longer word."""


def terms_of(phrase: Phrase) -> PhraseTerms:
    """Return the terms to look up for a phrase."""
    words = phrase.words[:PHRASES]
    prefix = phrase.open_right and len(phrase.words) <= PHRASES
    if not phrase.open_left:
        return PhraseTerms(None, inside=False, words=words, prefix=prefix)
    return PhraseTerms(words[0], inside=len(words) == 1 and phrase.open_right, words=words[1:], prefix=prefix)
