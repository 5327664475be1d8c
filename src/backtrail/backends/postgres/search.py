"""The search index in PostgreSQL: the index list of each thread, and the search for entries.

The words of an entry are a `tsvector` without positions, with a GIN index. The engine checks the order of words. Parts
of words are looked up in `vocabulary`, the table of all indexed words. The server plans each search for its values:
whether the index of words or the index of times is faster depends on how common the words are.

The statement that writes to a thread also marks it (`dirty`). Indexing takes the same lock, on the thread's row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from backtrail.backends.columns import as_hit, encoded
from backtrail.backends.postgres.session import Parameters, Statement
from backtrail.backends.sql.search import PARTS, PHRASES, terms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import IndexEntry, IndexHit, IndexState, NewList, Phrase, Splice
    from backtrail.backends.postgres.session import PgSession
    from backtrail.backends.postgres.statements import Statements

WORD_MAX: Final = 400
"""The most characters of a word that are indexed. PostgreSQL accepts up to 2,046 bytes."""
_CUT: Final = "cut short"
"""The extra word of an entry that has a longer word. It contains a space, so it equals no real word."""
_CLEANED: Final = 500
"""How many words are removed from the vocabulary per transaction."""


class TextIndex:
    """The search index of a store."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def index(
        self, session: PgSession, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]
    ) -> bool:
        """Change a thread's index list; return False if its version is not `was`. See `SearchIndex.index`."""
        entries = [
            (n, position, entry.time, encoded(entry.message_id), encoded(entry.role), entry.words, entry.text)
            for n, splice in enumerate(splices, 1)
            for position, entry in enumerate(splice.entries, splice.at)
            if entry is not None
        ]
        columns = list(zip(*entries, strict=True)) if entries else [()] * 7
        places = (
            [splice.at for splice in splices],
            [splice.removed for splice in splices],
            [len(splice.entries) for splice in splices],
        )
        ((done,),) = session.run(self._sql["index"], (thread, list(was), list(now), *places, *columns))
        return bool(done)

    def index_new(self, session: PgSession, lists: Sequence[NewList]) -> set[int]:
        """Add lists of threads that have none; return the threads whose lists were added. See `IndexesMany`."""
        fitting = [each for each in lists if not any(_is_long(entry) for entry in each.entries if entry is not None)]
        entries = [
            (each.thread, position, entry.time, encoded(entry.message_id), encoded(entry.role), entry.words, entry.text)
            for each in fitting
            for position, entry in enumerate(each.entries)
            if entry is not None
        ]
        words = sorted({word for entry in entries for word in entry[5].split(" ") if word}, key=str.encode)
        heads = [(each.thread, *each.state) for each in fitting]
        if not fitting:
            return set()
        columns = list(zip(*entries, strict=True)) if entries else [()] * 7
        made = session.run(self._sql["index_new"], (*zip(*heads, strict=True), *columns, words))
        return {thread for (thread,) in made}

    def clean(self, session: PgSession) -> None:
        """Remove words that no entry has from the vocabulary, in slices; stop if another session has a lock on it."""
        if not session.run(self._sql["begin_cleaning"]):
            return
        unused = [word for (word,) in session.run(self._sql["unused_words"], seconds=None)]
        for start in range(0, len(unused), _CLEANED):
            try:
                session.script(self._sql.text("lock_vocabulary"))
            except psycopg.errors.LockNotAvailable:
                session.script("ROLLBACK")
                return
            session.run(self._sql["remove_words"], (unused[start : start + _CLEANED],))
            session.script("COMMIT")

    def find(
        self,
        read: Callable[..., list[tuple[Any, ...]]],
        phrases: Sequence[Phrase],
        *,
        space: str | None,
        agent: str | None,
        threads: Sequence[int] | None,
        without: Sequence[int] = (),
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[IndexHit]:
        """Return up to `limit` matching entries, newest first. See `SearchIndex.find`."""
        terms = [term for phrase in phrases[:PHRASES] for term in self._terms(read, phrase)]
        query = " & ".join(dict.fromkeys(terms))
        parameters = Parameters()
        conditions = ["true"]
        if query:
            conditions.append(f"m.words @@ {parameters.add('t', query)}::tsquery")
        if space is not None:
            conditions.append(f"t.space = {parameters.add('t', space)}")
        if agent is not None:
            conditions.append(f"t.agent = {parameters.add('b', encoded(agent))}")
        if threads is not None:
            conditions.append(f"m.thread = ANY ({parameters.add('I', threads)})")
        if without:
            conditions.append(f"m.thread <> ALL ({parameters.add('I', without)})")
        if after is not None:
            conditions.append(f"(m.time, m.no) < ({parameters.add('i', after[0])}, {parameters.add('i', after[1])})")
        text = f"""
            {self._sql.text("hits")} WHERE {" AND ".join(conditions)}
            ORDER BY m.time DESC, m.no DESC LIMIT {parameters.add("i", limit)}"""
        return [as_hit(row) for row in read(Statement(text, parameters.types, named=False), *parameters.values)]

    def _terms(self, read: Callable[..., list[tuple[Any, ...]]], phrase: Phrase) -> Iterator[str]:
        """Yield the tsquery terms of a phrase."""
        terms = terms_of(phrase)
        if terms.part is not None:
            pattern = f"%{_escaped(terms.part[:WORD_MAX])}{'%' if terms.inside else ''}"
            words = read(self._sql["words_like"], pattern, PARTS + 1)
            if len(words) <= PARTS:
                yield f"({' | '.join(map(_quoted, [*(word for (word,) in words), _CUT]))})"
        for at, word in enumerate(terms.words, 1):
            yield _quoted(word[:WORD_MAX]) + (":*" if terms.prefix and at == len(terms.words) else "")


def _is_long(entry: IndexEntry) -> bool:
    """Tell whether an entry has a word that is too long to be indexed whole."""
    return len(entry.words) > WORD_MAX and any(len(word) > WORD_MAX for word in entry.words.split(" "))


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def _escaped(part: str) -> str:
    return part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
