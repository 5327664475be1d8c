"""The index of texts in SQLite: which threads are marked, the list of each thread, and how entries are found.

Entries are rows of `message`, found in three ways: by words (`word`, an FTS5 table that keeps no texts), by parts of
words (`vocabulary`, the words that there are: those with the part in them are looked for), and by time. A query is
answered by words if that leads to few entries, and else by time: then many entries match, and the engine looks at each
of them anyway.

Words are letters and digits of any script and stand between spaces, so that FTS5's `ascii` tokenizer cuts where they
end and nowhere else, and nothing in them means anything to FTS5.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from backtrail.backends.columns import MAX_SEQ, as_record, decoded, encoded
from backtrail.backends.port import Entry, Found, Indexed
from backtrail.backends.sqlite.values import key_of
from backtrail.errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.backends.port import Phrase, Splice
    from backtrail.backends.sqlite.connection import Guard

FEW = 5000
"""Up to so many entries are found by their words, and put in order then."""
FEW_LOOSE = 50_000
"""The same, where the words do not say all, so that many that have them do not match."""
PARTS = 500
"""A part of a word is looked for if no more words than these have it."""
_PHRASES = 32
"""So many phrases of a query, and words of a phrase, are looked for; the engine looks for all of them."""
_MERGE_PAGES = 500
TOP = (1 << 63) - 1, 0
"""A time and a number that are above all others."""

_MARKED = "SELECT thread FROM mark WHERE thread > ? ORDER BY thread LIMIT ?"
_INDEXED = "SELECT seq, items, as_of FROM indexed WHERE thread = ?"
_IS_INDEXED = """
    INSERT INTO indexed (thread, seq, items, as_of) VALUES (?, ?, ?, ?)
    ON CONFLICT (thread) DO UPDATE SET seq = excluded.seq, items = excluded.items, as_of = excluded.as_of"""
_IS_MARKED = "SELECT count(*) FROM mark WHERE thread = ?"
_UNMARK = "DELETE FROM mark WHERE thread = ?"
_UNMARK_IF_NEWEST = f"""
    DELETE FROM mark WHERE thread = ?1
    AND ?2 = (SELECT max(key) FROM row WHERE key BETWEEN ?1 << 32 AND ?1 << 32 | {MAX_SEQ})"""
_STAND_AT = "SELECT no FROM message WHERE thread = ? AND position BETWEEN ? AND ?"
_REMOVE = "DELETE FROM message WHERE no = ?"
_REMOVE_WORDS = "DELETE FROM word WHERE rowid = ?"
_REMOVED = "UPDATE meta SET value = value + ? WHERE name = 'unindexed'"
_SHIFT = "UPDATE message SET position = position + ? WHERE thread = ? AND position >= ?"
_INSERT = "INSERT INTO message (thread, position, time, id, role, text) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_WORDS = "INSERT INTO word (rowid, words) VALUES (?, ?)"
_KNOW = "INSERT INTO vocabulary (word) VALUES (?) ON CONFLICT DO NOTHING"

# A CROSS JOIN is done in its order: first the messages.
_FOUND = """
    SELECT thread.no, space, name, uid, agent, thread.created_at, origin,
           seq, position, message.no, time, id, role, text
    FROM message CROSS JOIN thread ON thread.no = message.thread CROSS JOIN indexed USING (thread)"""
_FITTING = """
    (?1 IS NULL OR space = ?1) AND (?2 IS NULL OR agent = ?2)
    AND (?3 IS NULL OR message.thread IN (SELECT value FROM json_each(?3)))
    AND (time, message.no) < (?4, ?5) AND message.thread NOT IN (SELECT value FROM json_each(?6))"""
_BY_TIME = f"{_FOUND} WHERE {_FITTING} ORDER BY time DESC, message.no DESC LIMIT ?7"
_OF_THREADS = f"""
    {_FOUND} WHERE message.thread IN (SELECT value FROM json_each(?3)) AND {_FITTING}
    ORDER BY +time DESC, message.no DESC LIMIT ?7"""
_BY_WORDS = f"""
    {_FOUND} WHERE message.no IN (
        SELECT message.no FROM word JOIN message ON message.no = word.rowid JOIN thread ON thread.no = message.thread
        WHERE word MATCH ?8 AND {_FITTING} ORDER BY time DESC, message.no DESC LIMIT ?7)
    ORDER BY time DESC, message.no DESC"""
_ITEMS = "SELECT coalesce(sum(items), 0) FROM indexed WHERE thread IN (SELECT value FROM json_each(?))"
_MATCHING = "SELECT count(*) FROM (SELECT rowid FROM word WHERE word MATCH ? LIMIT ?)"
_HAVING = {
    "inside": f"SELECT word FROM vocabulary WHERE instr(word, ?1) LIMIT {PARTS + 1}",
    "end": f"SELECT word FROM vocabulary WHERE substr(word, -length(?1)) = ?1 LIMIT {PARTS + 1}",
}

_IS_THERE = "SELECT count(*) FROM sqlite_schema WHERE name = 'message'"
_COUNT = """
    SELECT * FROM (SELECT count(*), coalesce(sum(length(text)), 0) FROM message),
    (SELECT coalesce(sum(length(block)), 0) FROM word_data), (SELECT coalesce(sum(length(word)), 0) FROM vocabulary)"""
_COUNT_ITEMS = f"""
    SELECT space, sum(items) FROM indexed JOIN thread ON no = indexed.thread
    JOIN row ON key = (SELECT max(key) FROM row WHERE key BETWEEN no << 32 AND no << 32 | {MAX_SEQ})
    WHERE head > 0 AND no NOT IN (SELECT thread FROM mark) GROUP BY space"""
_UNINDEXED = "SELECT value FROM meta WHERE name = 'unindexed'"
_MERGE = "INSERT INTO word (word, rank) VALUES ('merge', ?)"
# FTS5 keeps no more of a word than this.
_FORGET_WORDS = "DELETE FROM vocabulary WHERE substr(word, 1, 32768) NOT IN (SELECT CAST(term AS BLOB) FROM term)"
_CLEAN = "UPDATE meta SET value = value - ? WHERE name = 'unindexed'"
_FORGET = """
    INSERT INTO word (word) VALUES ('delete-all'); DELETE FROM message; DELETE FROM indexed; DELETE FROM vocabulary;
    UPDATE meta SET value = 0 WHERE name = 'unindexed'; INSERT OR IGNORE INTO mark SELECT no FROM thread"""


def is_there(connection: apsw.Connection) -> bool:
    """Tell whether there is an index: not in a store of an older format, which is only read."""
    return bool(connection.execute(_IS_THERE).get)


def marked(connection: apsw.Connection, after: int, limit: int) -> list[int]:
    """Return marked threads."""
    if not is_there(connection):
        raise Unavailable(
            "this store has an older format, which knows no search: open it once for writing, which converts it",
            code="unavailable.read_only",
        )
    return [no for (no,) in connection.execute(_MARKED, (after, limit))]


def is_marked(connection: apsw.Connection, thread: int) -> bool:
    """Tell whether a thread is marked."""
    return bool(connection.execute(_IS_MARKED, (thread,)).get)


def unmark(connection: apsw.Connection, thread: int) -> None:
    """Take the mark off a thread, as a part of the transaction that is open."""
    connection.execute(_UNMARK, (thread,))


def indexed(connection: apsw.Connection, thread: int) -> Indexed:
    """Return what a thread's list is."""
    found: list[Any] = connection.execute(_INDEXED, (thread,)).fetchall()
    return Indexed(*found[0]) if found else Indexed(0, 0, 0)


def index(
    connection: apsw.Connection,
    thread: int,
    was: Indexed,
    now: Indexed,
    splices: Sequence[Splice],
) -> bool:
    """Change a thread's list, as a part of the transaction that is open."""
    if indexed(connection, thread) != was:
        return False
    for splice in splices:
        if splice.removed:
            _remove(connection, thread, splice)
        if len(splice.entries) != splice.removed:
            connection.execute(_SHIFT, (len(splice.entries) - splice.removed, thread, splice.at + splice.removed))
        for position, entry in enumerate(splice.entries, splice.at):
            if entry is not None:
                _insert(connection, thread, position, entry)
    words = {word for splice in splices for entry in splice.entries if entry for word in entry.words.split(" ")}
    connection.executemany(_KNOW, [(word.encode(),) for word in sorted(words - {""})])
    connection.execute(_IS_INDEXED, (thread, *now))
    connection.execute(_UNMARK_IF_NEWEST, (thread, key_of(thread, now.as_of)))
    return True


def _remove(connection: apsw.Connection, thread: int, splice: Splice) -> None:
    place = (thread, splice.at, splice.at + splice.removed - 1)
    gone = connection.execute(_STAND_AT, place).fetchall()
    connection.executemany(_REMOVE_WORDS, gone)
    connection.executemany(_REMOVE, gone)
    connection.execute(_REMOVED, (len(gone),))


def _insert(connection: apsw.Connection, thread: int, position: int, entry: Entry) -> None:
    values = (thread, position, entry.time, encoded(entry.message_id), encoded(entry.role), entry.text)
    connection.execute(_INSERT, values)
    connection.execute(_INSERT_WORDS, (connection.last_insert_rowid(), entry.words))


def forget(connection: apsw.Connection) -> None:
    """Empty the index and mark all threads, as a part of the transaction that is open."""
    for _ in connection.execute(_FORGET):
        pass


# -- finding ------------------------------------------------------------------------------------
def find(connection: apsw.Connection, phrases: Sequence[Phrase], fitting: Sequence[Any], limit: int) -> list[Found]:
    """Return what matches, newest first; `fitting` says what else it has to be, as `_FITTING` takes it."""
    try:
        return _found_by(connection, phrases, fitting, limit)
    except apsw.CorruptError as error:
        raise Corrupt(
            f"the index of search is damaged ({error}): `reindex` makes it anew", code="corrupt.index"
        ) from error


def _found_by(
    connection: apsw.Connection, phrases: Sequence[Phrase], fitting: Sequence[Any], limit: int
) -> list[Found]:
    conditions = [condition for phrase in phrases[:_PHRASES] for condition in _conditions(connection, phrase)]
    if None in conditions:
        return []
    query = " AND ".join(condition for condition in conditions if condition)
    values = (*fitting, limit)
    few = FEW_LOOSE if any(phrase.open_left for phrase in phrases) else FEW
    if query and connection.execute(_MATCHING, (query, few + 1)).get <= few:
        found = connection.execute(_BY_WORDS, (*values, query))
    elif fitting[2] is not None and connection.execute(_ITEMS, fitting[2:3]).get <= FEW:
        found = connection.execute(_OF_THREADS, values)
    else:
        found = connection.execute(_BY_TIME, values)
    return [_found(*each) for each in found]


def _found(*values: Any) -> Found:
    seq, position, no, time, message_id, role, text = values[7:]
    return Found(as_record(values[:7]), seq, position, no, Entry(time, decoded(message_id), decoded(role), "", text))


def _conditions(connection: apsw.Connection, phrase: Phrase) -> Iterator[str | None]:
    """Give what FTS5 is to look for because of a phrase, None for what nothing has."""
    words = phrase.words[:_PHRASES]
    if phrase.open_left:
        how = "inside" if len(words) == 1 and phrase.open_right else "end"
        having: list[Any] = connection.execute(_HAVING[how], (encoded(words[0]),)).fetchall()
        if len(having) <= PARTS:
            yield f"({' OR '.join(_quoted(decoded(word) or '') for (word,) in having)})" if having else None
        words = words[1:]
    if words:
        yield _quoted(" ".join(words)) + (" *" if phrase.open_right and words[-1] is phrase.words[-1] else "")


def _quoted(words: str) -> str:
    return f'"{words}"'


# -- upkeep -------------------------------------------------------------------------------------
def usage(connection: apsw.Connection) -> tuple[int, int]:
    """Return how many entries there are, and their bytes."""
    if not is_there(connection):
        return 0, 0
    messages, *sizes = connection.execute(_COUNT).get
    return messages, sum(sizes)


def items(connection: apsw.Connection) -> dict[str, int]:
    """Return how many items the lists have that are up to date, by name space."""
    return dict(iter(connection.execute(_COUNT_ITEMS))) if is_there(connection) else {}


def clean(guard: Guard) -> None:
    """Get rid of the words of entries that are gone, in slices, letting others in between.

    FTS5 only notes that an entry is gone. When it merges all of its parts into one, it leaves out what is.
    """
    with guard as connection:
        gone = connection.execute(_UNINDEXED).get
    if not gone:
        return
    pages = -_MERGE_PAGES  # below zero: begin to merge all of it; above: go on
    merging = True
    while merging:
        with guard as connection:
            before = connection.total_changes()
            connection.execute(_MERGE, (pages,))
            merging = pages < 0 or connection.total_changes() - before > 1  # one is the statement itself
            pages = _MERGE_PAGES
    with guard as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_FORGET_WORDS)
        connection.execute(_CLEAN, (gone,))
        connection.execute("COMMIT")
