"""The search index in SQLite: the marks of threads, the index list of each thread, and the search for entries.

Entries are rows of `message`. They are found by words (`word`, an FTS5 table without texts), by parts of words (looked
up in `vocabulary`, the table of all indexed words), or by time. A query goes by words if few entries have them, and
else by time: then many entries match, and the engine checks each of them anyway.

Words consist of letters and digits of any script, and are separated by spaces. So FTS5's `ascii` tokenizer splits only
between words, and no word contains FTS5 syntax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from backtrail.backends.columns import as_hit, decoded, encoded
from backtrail.backends.port import IndexEntry, IndexHit, IndexState
from backtrail.backends.sql.search import PARTS, PHRASES, terms_of
from backtrail.backends.sqlite.commit import key_of
from backtrail.backends.sqlite.connection import one_view
from backtrail.backends.sqlite.statements import SQL, run
from backtrail.errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.backends.port import Phrase, Splice
    from backtrail.backends.sqlite.connection import SharedConnection

FEW = 5000
"""A search goes by words if at most this many entries have them, and then sorts them."""
FEW_LOOSE = 50_000
"""The same limit for queries with parts of words, for which many entries with the words do not match."""
_MERGE_PAGES = 500
TOP = (1 << 63) - 1, 0
"""A (time, number) pair above those of all entries."""


def is_there(connection: apsw.Connection) -> bool:
    """Tell whether the store has an index. A store of an older format that is opened read-only has none."""
    return bool(connection.execute(SQL["has_index"]).get)


def refuse_if_missing(connection: apsw.Connection) -> None:
    """Raise `Unavailable` if the store has no index."""
    if not is_there(connection):
        raise Unavailable(
            "this store has an older format without search: open it once for writing to convert it",
            code="unavailable.read_only",
        )


def indexed(connection: apsw.Connection, thread: int) -> IndexState:
    """Return the version of a thread's index list."""
    rows: list[Any] = connection.execute(SQL["indexed"], (thread,)).fetchall()
    return IndexState(*rows[0]) if rows else IndexState(0, 0, 0)


def index(
    connection: apsw.Connection,
    thread: int,
    was: IndexState,
    now: IndexState,
    splices: Sequence[Splice],
) -> bool:
    """Change a thread's index list in the open transaction; return False if its version is not `was`."""
    if indexed(connection, thread) != was:
        return False
    for splice in splices:
        if splice.removed:
            _remove(connection, thread, splice)
        if len(splice.entries) != splice.removed:
            shift = len(splice.entries) - splice.removed
            connection.execute(SQL["shift_messages"], (shift, thread, splice.at + splice.removed))
        for position, entry in enumerate(splice.entries, splice.at):
            if entry is not None:
                _insert(connection, thread, position, entry)
    words = {word for splice in splices for entry in splice.entries if entry for word in entry.words.split(" ")}
    connection.executemany(SQL["insert_vocabulary"], [(word.encode(),) for word in sorted(words - {""})])
    connection.execute(SQL["set_indexed"], (thread, *now))
    connection.execute(SQL["unmark_if_newest"], (thread, key_of(thread, now.as_of)))
    return True


def _remove(connection: apsw.Connection, thread: int, splice: Splice) -> None:
    place = (thread, splice.at, splice.at + splice.removed - 1)
    gone = connection.execute(SQL["messages_at"], place).fetchall()
    connection.executemany(SQL["remove_words"], gone)
    connection.executemany(SQL["remove_message"], gone)
    connection.execute(SQL["count_unindexed"], (len(gone),))


def _insert(connection: apsw.Connection, thread: int, position: int, entry: IndexEntry) -> None:
    values = (thread, position, entry.time, encoded(entry.message_id), encoded(entry.role), entry.text)
    connection.execute(SQL["insert_message"], values)
    connection.execute(SQL["insert_words"], (connection.last_insert_rowid(), entry.words))


def forget(connection: apsw.Connection) -> None:
    """Empty the index and mark all threads, in the open transaction."""
    run(connection, SQL["clear_index"])


# -- finding ------------------------------------------------------------------------------------
def find(connection: apsw.Connection, phrases: Sequence[Phrase], filters: Sequence[Any], limit: int) -> list[IndexHit]:
    """Return up to `limit` matching entries, newest first; `filters` are ?1 to ?6 of the statements."""
    try:
        with one_view(connection):
            return _hits(connection, phrases, filters, limit)
    except apsw.CorruptError as error:
        raise Corrupt(f"the search index is damaged ({error}): `reindex` rebuilds it", code="corrupt.index") from error


def _hits(connection: apsw.Connection, phrases: Sequence[Phrase], filters: Sequence[Any], limit: int) -> list[IndexHit]:
    conditions = [condition for phrase in phrases[:PHRASES] for condition in _conditions(connection, phrase)]
    if None in conditions:
        return []
    query = " AND ".join(condition for condition in conditions if condition)
    values = (*filters, limit)
    few = FEW_LOOSE if any(phrase.open_left for phrase in phrases) else FEW
    if query and connection.execute(SQL["matching"], (query, few + 1)).get <= few:
        hits = connection.execute(SQL["hits_by_words"], (*values, query))
    elif filters[2] is not None and connection.execute(SQL["items_of_threads"], filters[2:3]).get <= FEW:
        hits = connection.execute(SQL["hits_of_threads"], values)
    else:
        hits = connection.execute(SQL["hits_by_time"], values)
    return [as_hit(values) for values in hits]


def _conditions(connection: apsw.Connection, phrase: Phrase) -> Iterator[str | None]:
    """Yield the FTS5 conditions of a phrase; None for a part that no indexed word contains."""
    terms = terms_of(phrase)
    if terms.part is not None:
        statement = SQL["words_containing" if terms.inside else "words_ending_in"]
        words: list[Any] = connection.execute(statement, (encoded(terms.part), PARTS + 1)).fetchall()
        if len(words) <= PARTS:
            yield f"({' OR '.join(_quoted(decoded(word) or '') for (word,) in words)})" if words else None
    if terms.words:
        yield _quoted(" ".join(terms.words)) + (" *" if terms.prefix else "")


def _quoted(words: str) -> str:
    return f'"{words}"'


def clean(shared: SharedConnection) -> None:
    """Remove the words of removed entries from the index, in slices, so that other writers get their turn.

    FTS5 only marks an entry as removed. Merging all of its segments into one drops removed entries.
    """
    with shared.use() as connection:
        gone = connection.execute(SQL["unindexed"]).get
    if not gone:
        return
    pages = -_MERGE_PAGES  # negative: begin to merge all segments; positive: continue
    merging = True
    while merging:
        with shared.use() as connection:
            before = connection.total_changes()
            connection.execute(SQL["merge_words"], (pages,))
            merging = pages < 0 or connection.total_changes() - before > 1  # one is the statement itself
            pages = _MERGE_PAGES
    with shared.use() as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(SQL["remove_unused_words"])
        connection.execute(SQL["count_cleaned"], (gone,))
        connection.execute("COMMIT")
