"""The index of texts in PostgreSQL: the list of each thread, and how entries are found.

An entry's words are a `tsvector` without positions, which a GIN index finds; where they stand is the engine's to look
at. Parts of words are looked for among the words that there are (`vocabulary`). Statements that search are planned for
their values: whether it is better to go by the words or by the time depends on how common the words are.

A thread is marked (`dirty`) by the very statement that writes to it, and indexed under the same lock, its row.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from backtrail.backends.columns import as_record, decoded, encoded
from backtrail.backends.port import Entry, Found, Indexed
from backtrail.backends.postgres.session import Given, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import Phrase, Splice
    from backtrail.backends.postgres.session import Session

PARTS: Final = 500
"""A part of a word is looked for if no more words than these have it."""
WORD_MAX: Final = 400
"""Characters of a word that are indexed. PostgreSQL takes no more than 2,046 bytes."""
_CUT: Final = "cut short"
"""Stands among the words of an entry of which one is longer. With a space in it, it is no word itself."""
_PHRASES: Final = 32
"""So many phrases of a query, and words of a phrase, are looked for; the engine looks for all of them."""

_CLEANED: Final = 500
"""Words that are taken out of the vocabulary at once."""
_ENTRY: Final = "m.place - i.first, m.no, m.time, m.id, m.role, m.text"


def tables_1(schema: str) -> str:
    """Return the statements that make what search needs."""
    return f"""
CREATE TABLE {schema}.indexed (
    thread bigint PRIMARY KEY,
    seq    bigint NOT NULL,
    items  bigint NOT NULL,
    as_of  bigint NOT NULL,
    first  bigint NOT NULL
);
CREATE TABLE {schema}.message (
    no     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread bigint NOT NULL,
    place  bigint NOT NULL,
    time   bigint NOT NULL,
    id     bytea,
    role   bytea,
    words  tsvector NOT NULL,
    text   bytea NOT NULL
);
CREATE INDEX message_place ON {schema}.message (thread, place);
CREATE INDEX message_time ON {schema}.message (time, no);
CREATE INDEX message_words ON {schema}.message USING gin (words);
CREATE TABLE {schema}.vocabulary (word text COLLATE "C" PRIMARY KEY);
-- unindexed: whether words were taken out of the index since the vocabulary was cleaned.
INSERT INTO {schema}.meta VALUES ('unindexed', 0);

-- Change the list of a thread, if it is what it was; see the port. was and will are seq, items and as_of. An entry's
-- position in the list is its place less that of the first one: what is cut off or put in at the front moves no other.
CREATE FUNCTION {schema}.index_1(
    of_thread bigint, was bigint[], will bigint[], at bigint[], removed bigint[], added bigint[],
    entry_splice bigint[], entry_position bigint[], entry_time bigint[], entry_id bytea[], entry_role bytea[],
    entry_words text[], entry_text bytea[]
) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    start bigint;
BEGIN
    PERFORM FROM {schema}.thread WHERE no = of_thread FOR NO KEY UPDATE;
    IF was <> coalesce((SELECT array[seq, items, as_of] FROM {schema}.indexed WHERE thread = of_thread),
                       array[0, 0, 0]::bigint[]) THEN
        RETURN false;
    END IF;
    start := coalesce((SELECT first FROM {schema}.indexed WHERE thread = of_thread), 0);
    FOR n IN 1 .. cardinality(at) LOOP
        DELETE FROM {schema}.message
            WHERE thread = of_thread AND place >= start + at[n] AND place < start + at[n] + removed[n];
        IF FOUND THEN
            UPDATE {schema}.meta SET value = 1 WHERE name = 'unindexed' AND value = 0;
        END IF;
        IF at[n] = 0 THEN
            start := start + removed[n] - added[n];
        ELSIF added[n] <> removed[n] THEN
            UPDATE {schema}.message SET place = place + added[n] - removed[n]
                WHERE thread = of_thread AND place >= start + at[n] + removed[n];
        END IF;
        INSERT INTO {schema}.message (thread, place, time, id, role, words, text)
            SELECT of_thread, start + w.position, w.time, w.id, w.role, array_to_tsvector(
                array(SELECT left(word, {WORD_MAX}) FROM unnest(string_to_array(w.words, ' ')) AS word WHERE word <> ''
                      UNION SELECT '{_CUT}' FROM unnest(string_to_array(w.words, ' ')) AS word
                      WHERE length(word) > {WORD_MAX})
            ), w.text
            FROM unnest(entry_splice, entry_position, entry_time, entry_id, entry_role, entry_words, entry_text)
                AS w(splice, position, time, id, role, words, text)
            WHERE w.splice = n ORDER BY w.position;
    END LOOP;
    INSERT INTO {schema}.vocabulary
        SELECT DISTINCT left(word, {WORD_MAX}) FROM unnest(entry_words) AS w(words),
            unnest(string_to_array(w.words, ' ')) AS word
        WHERE word <> '' ORDER BY 1 ON CONFLICT DO NOTHING;
    INSERT INTO {schema}.indexed VALUES (of_thread, will[1], will[2], will[3], start)
        ON CONFLICT (thread) DO UPDATE SET seq = will[1], items = will[2], as_of = will[3], first = start;
    UPDATE {schema}.thread SET dirty = false WHERE no = of_thread AND newest = will[3] AND dirty;
    RETURN true;
END $$;
"""


class Search:
    """The statements of the index, in a schema (its quoted name)."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self.marked = Statement(
            f"SELECT no FROM {schema}.thread WHERE dirty AND no > $1 ORDER BY no LIMIT $2",
            "ii",
        )
        self.indexed = Statement(f"SELECT seq, items, as_of FROM {schema}.indexed WHERE thread = $1", "i")
        self._index = Statement(
            f"SELECT {schema}.index_1({', '.join(f'${at}' for at in range(1, 14))})", "iIIIIIIIIBBTB"
        )
        having = f"SELECT word FROM {schema}.vocabulary WHERE word LIKE $1 LIMIT {PARTS + 1}"
        self._having = Statement(having, "t")
        self.forget = (
            f"DELETE FROM {schema}.message; DELETE FROM {schema}.indexed; DELETE FROM {schema}.vocabulary;"
            f"UPDATE {schema}.thread SET dirty = true WHERE NOT dirty"
        )
        self._begin_cleaning = Statement(
            f"UPDATE {schema}.meta SET value = 0 WHERE name = 'unindexed' AND value <> 0 RETURNING value"
        )
        self._unused = Statement(
            f"""
            SELECT v.word FROM {schema}.vocabulary v EXCEPT
            SELECT s.word FROM ts_stat('SELECT words FROM {schema.replace("'", "''")}.message') s"""
        )
        # Nobody may count on a word that is about to go: so nobody indexes meanwhile.
        self._lock = f"""
            BEGIN ISOLATION LEVEL READ COMMITTED;
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE {schema}.vocabulary IN SHARE ROW EXCLUSIVE MODE"""
        self._forget_words = Statement(
            f"""
            DELETE FROM {schema}.vocabulary v WHERE v.word = ANY ($1) AND NOT EXISTS (
                SELECT FROM {schema}.message m WHERE m.words @@ quote_literal(v.word)::tsquery)""",
            "T",
        )

    def index(self, session: Session, thread: int, was: Indexed, now: Indexed, splices: Sequence[Splice]) -> bool:
        """Change a thread's list."""
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
        ((done,),) = session.run(self._index, (thread, list(was), list(now), *places, *columns))
        return bool(done)

    def clean(self, session: Session) -> None:
        """Get rid of words that no entry has any more, a few at a time; stop if others are in the way."""
        if not session.run(self._begin_cleaning):
            return
        unused = [word for (word,) in session.run(self._unused, seconds=None)]
        for start in range(0, len(unused), _CLEANED):
            try:
                session.script(self._lock)
            except psycopg.errors.LockNotAvailable:
                session.script("ROLLBACK")
                return
            session.run(self._forget_words, (unused[start : start + _CLEANED],))
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
    ) -> list[Found]:
        """Return what matches, newest first."""
        sought = [condition for phrase in phrases[:_PHRASES] for condition in self._conditions(read, phrase)]
        given = Given()
        conditions = ["true"]
        query = " & ".join(dict.fromkeys(sought))
        if query:
            conditions.append(f"m.words @@ {given('t', query)}::tsquery")
        if space is not None:
            conditions.append(f"t.space = {given('t', space)}")
        if agent is not None:
            conditions.append(f"t.agent = {given('b', encoded(agent))}")
        if threads is not None:
            conditions.append(f"m.thread = ANY ({given('I', threads)})")
        if without:
            conditions.append(f"m.thread <> ALL ({given('I', without)})")
        if after is not None:
            conditions.append(f"(m.time, m.no) < ({given('i', after[0])}, {given('i', after[1])})")
        text = f"""
            SELECT t.no, t.space, t.name, t.uid, t.agent, t.created_at, t.origin, i.seq, {_ENTRY}
            FROM {self._schema}.message m JOIN {self._schema}.thread t ON t.no = m.thread
            JOIN {self._schema}.indexed i ON i.thread = m.thread
            WHERE {" AND ".join(conditions)} ORDER BY m.time DESC, m.no DESC LIMIT {given("i", limit)}"""
        return [_found(*row) for row in read(Statement(text, given.types, named=False), *given.values)]

    def _conditions(self, read: Callable[..., list[tuple[Any, ...]]], phrase: Phrase) -> Iterator[str]:
        """Give what is to be looked for because of a phrase, as parts of a tsquery."""
        words = phrase.words[:_PHRASES]
        if phrase.open_left:
            inside = len(words) == 1 and phrase.open_right
            having = read(self._having, f"%{_escaped(words[0][:WORD_MAX])}{'%' if inside else ''}")
            if len(having) <= PARTS:
                yield f"({' | '.join(map(_quoted, [*(word for (word,) in having), _CUT]))})"
            words = words[1:]
        whole = len(phrase.words) <= _PHRASES
        for at, word in enumerate(words, 1):
            begins = whole and at == len(words) and phrase.open_right
            yield _quoted(word[:WORD_MAX]) + (":*" if begins else "")


def _found(*values: Any) -> Found:
    seq, position, no, time, message_id, role, text = values[7:]
    return Found(as_record(values[:7]), seq, position, no, Entry(time, decoded(message_id), decoded(role), "", text))


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def _escaped(part: str) -> str:
    return part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
