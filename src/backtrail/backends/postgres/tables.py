"""What a store looks like in PostgreSQL: its tables and the functions that write to them, as one schema.

A thread's row in `thread` says which row of its log is the newest, so it is what writers queue for: to extend a log is
to move `newest` from seq - 1 to seq, which only one of several can do. `second`, the time of the newest row in whole
seconds, is there to be indexed: listing by activity needs an index, and an index on something that changes with every
save would make every save write to all indexes of the table.

Whoever puts or relies on chunks does so under a shared advisory lock, until the end of its transaction; a new epoch is
begun under the same lock, exclusively. So no transaction stamps chunks with an epoch that is over.

Names end in the number of the format that brought them, where a later format may need another: code of two versions
can then use a store side by side.
"""

# ruff: noqa: S608 - what the statements are made of are constants of this package, and a quoted name

from __future__ import annotations

from typing import Final

from backtrail.backends.port import Row
from backtrail.backends.postgres.search import tables_1

PARTITIONS: Final = 8

COLUMNS: Final = tuple(f'"{field}"' for field in Row._fields)
"""The columns of a row, in the order of its fields."""
THREAD: Final = "t.no, t.space, t.name, t.uid, t.agent, t.created_at, t.origin"
"""The columns of a thread t, in the order of the record's fields."""
BARE: Final = ", ".join('NULL::bytea AS "payload"' if column == '"payload"' else f"r.{column}" for column in COLUMNS)
"""The columns of a row r, without its payload."""
SECOND: Final = 1_000_000

# As in the engine's log, which these views are to agree with.
_KINDS: Final = ("manual", "automatic", "pre_operation", "recovery")
_MIX: Final = 0x9E3779B1

# The type of each column, and the letter by which `postgres_session` knows it.
_TYPES: Final = {
    "label": "bytea",
    "root": "bytea",
    "op_id": "bytea",
    "extra": "bytea",
    "check": "bytea",
    "payload": "bytea",
    "hidden": "boolean",
}
LETTERS: Final = "".join({"bytea": "b", "boolean": "o"}.get(_TYPES.get(field, "bigint"), "i") for field in Row._fields)
"""The letters of a row's columns, in the order of its fields."""

_ARRAYS: Final = {"i": "bigint[]", "b": "bytea[]", "o": "boolean[]"}
_GIVEN: Final = [f"row_{field}" for field in Row._fields]
_DECLARED: Final = ",\n    ".join(f"{name} {_ARRAYS[letter]}" for name, letter in zip(_GIVEN, LETTERS, strict=True))
COMMIT_PARAMETERS: Final = f"""durable boolean,
    thread_space text[], thread_name bytea[], thread_uid bytea[], thread_agent bytea[], thread_created_at bigint[],
    thread_origin bytea[],
    renew_thread bigint[], renew_agent bytea[], renew_created_at bigint[], renew_origin bytea[],
    row_thread bigint[],
    {_DECLARED},
    chunk_digest bytea[], chunk_payload bytea[], touched bytea[],
    visible_thread bigint[], visible_seq bigint[], newest_thread bigint[], newest_seq bigint[],
    hide_thread bigint[], hide_seq bigint[],
    tag_thread bigint[], tag_seq bigint[], tag_tag bytea[],
    untag_thread bigint[], untag_seq bigint[], untag_tag bytea[]"""
"""What `commit_1` takes."""
COMMIT_ANSWER: Final = """OUT refused text, OUT already boolean, OUT numbers bigint[], OUT missing bytea[],
    OUT gone_thread bigint, OUT gone_seq bigint"""
"""What it gives."""


def _row_table(schema: str) -> str:
    # Those of a fixed width first: then PostgreSQL finds the others without a walk, and none of them needs padding.
    order = sorted(Row._fields, key=lambda field: ("bigint", "boolean", "bytea").index(_type(field)))
    columns = ",\n    ".join(f'"{field}" {_type(field)}{"" if field == "label" else " NOT NULL"}' for field in order)
    partitions = "".join(
        f"""
CREATE TABLE {schema}.row_{at} PARTITION OF {schema}.row FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {at});
ALTER TABLE {schema}.row_{at} ALTER payload SET STORAGE EXTERNAL;"""
        for at in range(PARTITIONS)
    )
    return f"""
CREATE TABLE {schema}.row (
    thread bigint NOT NULL,
    {columns},
    PRIMARY KEY (thread, seq)
) PARTITION BY HASH (thread);
{partitions}
CREATE INDEX row_label ON {schema}.row (thread, label, seq) WHERE label IS NOT NULL;
"""


def _type(field: str) -> str:
    return _TYPES.get(field, "bigint")


def format_1(schema: str, lock: int) -> str:
    """Return the statements that make format 1; `schema` is quoted, `lock` is the number of the advisory lock."""
    return f"""
CREATE TABLE {schema}.thread (
    no         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at bigint NOT NULL,
    newest     bigint NOT NULL DEFAULT 0,
    updated_at bigint NOT NULL,
    second     bigint NOT NULL,
    alive      boolean NOT NULL DEFAULT false,
    dirty      boolean NOT NULL DEFAULT false,
    space      text NOT NULL,
    name       bytea NOT NULL,
    uid        bytea NOT NULL,
    agent      bytea,
    origin     bytea,
    CONSTRAINT thread_name UNIQUE (space, name),
    CONSTRAINT thread_uid UNIQUE (uid)
) WITH (fillfactor = 60);
CREATE INDEX thread_activity ON {schema}.thread (space, second DESC) WHERE alive;
CREATE INDEX thread_agent ON {schema}.thread (agent, space, second DESC) WHERE alive AND agent IS NOT NULL;
CREATE INDEX thread_dirty ON {schema}.thread (no) WHERE dirty;
{_row_table(schema)}
CREATE TABLE {schema}.chunk (
    epoch   bigint NOT NULL,
    digest  bytea PRIMARY KEY,
    payload bytea NOT NULL
);
ALTER TABLE {schema}.chunk ALTER payload SET STORAGE EXTERNAL;

CREATE TABLE {schema}.tag (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread bigint NOT NULL,
    seq    bigint NOT NULL,
    tag    bytea NOT NULL,
    CONSTRAINT tag_once UNIQUE (thread, seq, tag)
);
CREATE INDEX tag_tag ON {schema}.tag (thread, tag, seq);
{_functions_1(schema, lock)}
{tables_1(schema)}
{_views_1(schema)}
"""


def _views_1(schema: str) -> str:
    """Return what people see: names and times as text, ids as the library gives them, nothing that was deleted."""
    return f"""
-- Text that users chose, which may hold what text in PostgreSQL cannot.
CREATE FUNCTION {schema}.readable_1(stored bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(stored, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(stored, 'escape');
END $$;

CREATE FUNCTION {schema}.moment_1(microseconds bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT timestamptz 'epoch' + microseconds * interval '1 microsecond'
$$;

-- The id of a checkpoint, as the library makes it: the seq times {_MIX}, modulo 2^32, and the beginning of the uid.
CREATE FUNCTION {schema}.checkpoint_id_1(uid bytea, seq bigint) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT lpad(to_hex(
        (((seq & 65535) * {_MIX} + ((((seq >> 16) * {_MIX}) & 65535) << 16)) & 4294967295)
        # ('x' || encode(substring(uid FROM 1 FOR 4), 'hex'))::bit(32)::bigint & 4294967295
    ), 8, '0') || encode(uid, 'hex')
$$;

CREATE VIEW {schema}.threads AS
    SELECT {schema}.readable_1(t.name) AS id, t.space AS kind, {schema}.readable_1(t.agent) AS agent,
        {schema}.moment_1(t.created_at) AS created_at, {schema}.moment_1(t.updated_at) AS updated_at,
        r.step, {schema}.checkpoint_id_1(t.uid, r.head) AS head_id, {schema}.readable_1(t.origin) AS forked_from
    FROM {schema}.thread t JOIN {schema}.row r ON r.thread = t.no AND r.seq = t.newest WHERE t.alive;

CREATE VIEW {checkpoints_view(schema)};

CREATE VIEW {schema}.messages AS
    SELECT {schema}.readable_1(t.name) AS thread_id, t.space AS thread_kind, {schema}.readable_1(t.agent) AS agent,
        m.place - i.first AS position, {schema}.readable_1(m.id) AS id, {schema}.readable_1(m.role) AS role,
        {schema}.moment_1(m.time) AS created_at, {schema}.readable_1(substring(m.text FROM 2)) AS content,
        NOT t.dirty AS is_current
    FROM {schema}.message m JOIN {schema}.thread t ON t.no = m.thread
    JOIN {schema}.indexed i ON i.thread = m.thread WHERE t.alive;

CREATE VIEW {schema}.conversations AS
    SELECT {schema}.readable_1(t.name) AS id, {schema}.readable_1(t.agent) AS agent,
        {schema}.moment_1(t.created_at) AS created_at, {schema}.moment_1(t.updated_at) AS updated_at,
        coalesce(i.items, 0) AS messages, NOT t.dirty AS is_current,
        {schema}.checkpoint_id_1(t.uid, r.head) AS head_id, {schema}.readable_1(t.origin) AS forked_from
    FROM {schema}.thread t JOIN {schema}.row r ON r.thread = t.no AND r.seq = t.newest
    LEFT JOIN {schema}.indexed i ON i.thread = t.no WHERE t.alive AND t.space = 'conversation';
"""


def checkpoints_view(schema: str, shown: str = "") -> str:
    """Return the view of checkpoints as CREATE VIEW wants it; `shown` says which tags g are."""
    kinds = " ".join(f"WHEN {at} THEN '{kind}'" for at, kind in enumerate(_KINDS))
    return f"""{schema}.checkpoints AS
    SELECT {schema}.checkpoint_id_1(t.uid, r.seq) AS id, {schema}.readable_1(t.name) AS thread_id,
        t.space AS thread_kind, r.seq, r.step,
        CASE WHEN r.parent > 0 THEN {schema}.checkpoint_id_1(t.uid, r.parent)
            WHEN r.op = 1 THEN {schema}.readable_1(t.origin) END AS parent_id,
        {schema}.readable_1(r.label) AS label,
        array(SELECT {schema}.readable_1(g.tag) FROM {schema}.tag g
              WHERE g.thread = r.thread AND g.seq = r.seq {shown} ORDER BY g.id) AS tags,
        CASE r.kind {kinds} END AS kind,
        {schema}.moment_1(r.created_at) AS created_at, r.size, r.stored, 'blake3:' || encode(r.root, 'hex') AS root,
        r.seq = (SELECT n.head FROM {schema}.row n WHERE n.thread = t.no AND n.seq = t.newest) AS is_head
    FROM {schema}.thread t JOIN {schema}.row r ON r.thread = t.no
    WHERE t.alive AND NOT r.hidden AND r.root <> ''"""


def _functions_1(schema: str, lock: int) -> str:
    columns = ", ".join(COLUMNS)
    unnested = ", ".join(f"w.{column}" for column in COLUMNS)
    rows = f"unnest({', '.join(_GIVEN)}) AS w({columns})"
    rows_of_threads = f"unnest(row_thread, {', '.join(_GIVEN)}) AS w(thread, {columns})"
    replaced = ", ".join(
        f"{column} = w.{column}" for column in COLUMNS if column not in ('"seq"', '"op_id"', '"payload"', '"hidden"')
    )
    return f"""
-- Make the write that is under way durable, or let it be lost in a crash, whatever the role's settings are.
CREATE FUNCTION {schema}.durable_1(durable boolean) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT set_config('synchronous_commit', CASE
        WHEN NOT durable THEN 'off'
        WHEN current_setting('synchronous_commit') = 'off' THEN 'on'
        ELSE current_setting('synchronous_commit') END, true)
$$;

-- Put chunks that are not there, and stamp those and the touched ones with the current epoch; or, if touched ones are
-- gone, return which. Digests are locked in their order, or writers of the same chunks would deadlock.
CREATE FUNCTION {schema}.put_1(digests bytea[], payloads bytea[], touched bytea[]) RETURNS bytea[]
LANGUAGE plpgsql AS $$
DECLARE
    now bigint;
    missing bytea[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared({lock});
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- The snapshot may be older than the lock, and the epoch in it over: then this is a serialization failure.
        PERFORM FROM {schema}.meta WHERE name = 'epoch' FOR SHARE;
    END IF;
    SELECT value INTO now FROM {schema}.meta WHERE name = 'epoch';
    missing := array(SELECT digest FROM unnest(touched) AS w(digest) WHERE digest <> ALL (digests)
                     AND NOT EXISTS (SELECT FROM {schema}.chunk WHERE chunk.digest = w.digest));
    IF cardinality(missing) > 0 THEN
        RETURN missing;
    END IF;
    UPDATE {schema}.chunk SET epoch = now WHERE digest IN (
        SELECT digest FROM {schema}.chunk WHERE digest = ANY (digests || touched) AND epoch < now
        ORDER BY digest FOR NO KEY UPDATE);
    INSERT INTO {schema}.chunk (epoch, digest, payload)
        SELECT now, w.digest, w.payload FROM unnest(digests, payloads) AS w(digest, payload) ORDER BY w.digest
        ON CONFLICT DO NOTHING;
    IF EXISTS (SELECT FROM unnest(touched) AS w(digest)
               WHERE NOT EXISTS (SELECT FROM {schema}.chunk WHERE chunk.digest = w.digest)) THEN
        RAISE EXCEPTION 'a chunk has just been removed' USING ERRCODE = 'BT001';
    END IF;
    RETURN missing;
END $$;

-- Begin an epoch: when nobody is writing chunks; those who want to are kept from it for no longer than `patience`.
CREATE FUNCTION {schema}.next_epoch_1(patience text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now bigint;
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    PERFORM pg_advisory_xact_lock({lock});
    PERFORM set_config('lock_timeout', before, true);
    UPDATE {schema}.meta SET value = value + 1 WHERE name = 'epoch' RETURNING value INTO now;
    RETURN now;
END $$;

-- Write a batch, or say why not: 'stale', 'vanished' (and which row), 'missing' (and which chunks); or that it is there
-- already. See the port.
CREATE FUNCTION {schema}.commit_1(
    {COMMIT_PARAMETERS},
    {COMMIT_ANSWER}
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    made bigint;
BEGIN
    PERFORM {schema}.durable_1(durable);
    numbers := array[]::bigint[];
    PERFORM FROM {schema}.thread WHERE no = ANY (row_thread || newest_thread || renew_thread || hide_thread)
        ORDER BY no FOR NO KEY UPDATE;

    IF EXISTS (SELECT FROM unnest(newest_thread, newest_seq) AS w(no, seq) LEFT JOIN {schema}.thread t ON t.no = w.no
               WHERE t.newest IS DISTINCT FROM w.seq) THEN
        refused := 'stale';
    END IF;
    IF refused IS NULL AND cardinality(visible_thread) > 0 THEN
        PERFORM FROM {schema}.row r JOIN unnest(visible_thread, visible_seq) AS w(thread, seq)
            ON r.thread = w.thread AND r.seq = w.seq ORDER BY r.thread, r.seq FOR SHARE OF r;
        SELECT 'vanished', w.thread, w.seq INTO refused, gone_thread, gone_seq
            FROM unnest(visible_thread, visible_seq) WITH ORDINALITY AS w(thread, seq, at)
            WHERE NOT EXISTS (SELECT FROM {schema}.row r WHERE r.thread = w.thread AND r.seq = w.seq AND NOT r.hidden)
            ORDER BY w.at LIMIT 1;
    END IF;
    IF refused IS NULL AND cardinality(thread_uid) > 0 AND (
        EXISTS (SELECT FROM {schema}.thread t JOIN unnest(thread_space, thread_name) AS w(space, name)
                ON t.space = w.space AND t.name = w.name)
        OR EXISTS (SELECT FROM {schema}.thread t WHERE t.uid = ANY (thread_uid))
        OR (SELECT least(count(DISTINCT (w.space, w.name)), count(DISTINCT w.uid))
            FROM unnest(thread_space, thread_name, thread_uid) AS w(space, name, uid)) < cardinality(thread_uid)) THEN
        refused := 'stale';
    END IF;
    IF refused IS NULL AND EXISTS (
        SELECT FROM (SELECT w.thread, w.seq, row_number() OVER (PARTITION BY w.thread ORDER BY w.at) AS place
                     FROM unnest(row_thread, row_seq) WITH ORDINALITY AS w(thread, seq, at)) w
        LEFT JOIN {schema}.thread t ON t.no = w.thread
        WHERE w.seq IS DISTINCT FROM w.place + CASE
            WHEN w.thread < 0 AND w.thread >= -cardinality(thread_uid) THEN 0 ELSE t.newest END) THEN
        refused := 'stale';
    END IF;
    IF refused IS NULL AND cardinality(chunk_digest) + cardinality(touched) > 0 THEN
        missing := {schema}.put_1(chunk_digest, chunk_payload, touched);
        IF cardinality(missing) > 0 THEN
            refused := 'missing';
        END IF;
    END IF;

    IF refused IS NOT NULL THEN
        -- A batch that is there already is refused by its own traces: that is a success.
        IF cardinality(thread_uid) + cardinality(row_thread) = 0 THEN
            RETURN;
        END IF;
        numbers := array(
            SELECT t.no FROM unnest(thread_space, thread_name, thread_uid) WITH ORDINALITY AS w(space, name, uid, at)
            JOIN {schema}.thread t ON t.space = w.space AND t.name = w.name AND t.uid = w.uid ORDER BY w.at);
        IF cardinality(numbers) = cardinality(thread_uid) AND NOT EXISTS (
            SELECT FROM unnest(row_thread, row_seq, row_op_id) AS w(thread, seq, op_id)
            LEFT JOIN {schema}.row r ON r.seq = w.seq
                AND r.thread = CASE WHEN w.thread < 0 THEN numbers[-w.thread] ELSE w.thread END
            WHERE r.op_id IS DISTINCT FROM w.op_id) THEN
            refused := NULL;
            already := true;
        END IF;
        RETURN;
    END IF;

    FOR at IN 1 .. cardinality(thread_uid) LOOP
        INSERT INTO {schema}.thread (space, name, uid, agent, created_at, origin, updated_at, second)
            VALUES (thread_space[at], thread_name[at], thread_uid[at], thread_agent[at], thread_created_at[at],
                    thread_origin[at], thread_created_at[at], thread_created_at[at] / {SECOND})
            ON CONFLICT DO NOTHING RETURNING no INTO made;
        IF made IS NULL THEN
            RAISE EXCEPTION 'somebody else has just made this thread' USING ERRCODE = 'BT001';
        END IF;
        numbers := numbers || made;
    END LOOP;
    IF cardinality(renew_thread) > 0 THEN
        UPDATE {schema}.thread t SET agent = w.agent, created_at = w.created_at, origin = w.origin
            FROM unnest(renew_thread, renew_agent, renew_created_at, renew_origin) AS w(no, agent, created_at, origin)
            WHERE t.no = CASE WHEN w.no < 0 THEN numbers[-w.no] ELSE w.no END;
    END IF;
    IF cardinality(row_thread) > 0 THEN
        INSERT INTO {schema}.row (thread, {columns})
            SELECT CASE WHEN w.thread < 0 THEN numbers[-w.thread] ELSE w.thread END, {unnested} FROM {rows_of_threads};
        UPDATE {schema}.thread t
            SET newest = w.seq, updated_at = w.created_at, second = w.created_at / {SECOND}, alive = w.head > 0,
                dirty = true
            FROM (SELECT DISTINCT ON (thread) thread, seq, created_at, head
                  FROM unnest(row_thread, row_seq, row_created_at, row_head) AS w(thread, seq, created_at, head)
                  ORDER BY thread, seq DESC) w
            WHERE t.no = CASE WHEN w.thread < 0 THEN numbers[-w.thread] ELSE w.thread END;
    END IF;
    IF cardinality(hide_thread) > 0 THEN
        UPDATE {schema}.row r SET hidden = true FROM unnest(hide_thread, hide_seq) AS w(thread, seq)
            WHERE r.thread = CASE WHEN w.thread < 0 THEN numbers[-w.thread] ELSE w.thread END
            AND r.seq = w.seq AND NOT r.hidden;
    END IF;
    IF cardinality(tag_thread) > 0 THEN
        -- Not SELECT ... FOR KEY SHARE of all at once: tags are to be numbered in the order in which they were given.
        FOR at IN 1 .. cardinality(tag_thread) LOOP
            PERFORM FROM {schema}.row r WHERE r.seq = tag_seq[at]
                AND r.thread = CASE WHEN tag_thread[at] < 0 THEN numbers[-tag_thread[at]] ELSE tag_thread[at] END
                FOR KEY SHARE;
            IF FOUND AND NOT EXISTS (
                SELECT FROM {schema}.tag t WHERE t.seq = tag_seq[at] AND t.tag = tag_tag[at]
                AND t.thread = CASE WHEN tag_thread[at] < 0 THEN numbers[-tag_thread[at]] ELSE tag_thread[at] END) THEN
                INSERT INTO {schema}.tag (thread, seq, tag)
                    VALUES (CASE WHEN tag_thread[at] < 0 THEN numbers[-tag_thread[at]] ELSE tag_thread[at] END,
                            tag_seq[at], tag_tag[at])
                    ON CONFLICT DO NOTHING;
            END IF;
        END LOOP;
    END IF;
    IF cardinality(untag_thread) > 0 THEN
        DELETE FROM {schema}.tag t USING unnest(untag_thread, untag_seq, untag_tag) AS w(thread, seq, tag)
            WHERE t.thread = CASE WHEN w.thread < 0 THEN numbers[-w.thread] ELSE w.thread END
            AND t.seq = w.seq AND t.tag = w.tag;
    END IF;
END $$;

-- Replace rows that are still the same, and put the chunks that the new ones need; return how many were replaced.
CREATE FUNCTION {schema}.rewrite_1(
    durable boolean, of_thread bigint,
    {_DECLARED},
    chunk_digest bytea[], chunk_payload bytea[]
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    replaced bigint;
BEGIN
    PERFORM {schema}.durable_1(durable);
    IF cardinality(chunk_digest) > 0 THEN
        PERFORM {schema}.put_1(chunk_digest, chunk_payload, array[]::bytea[]);
    END IF;
    -- Whoever hid the row meanwhile is right, a row without a payload has none to give, and a base stays one.
    UPDATE {schema}.row r SET {replaced}, payload = coalesce(w.payload, r.payload) FROM {rows}
        WHERE r.thread = of_thread AND r.seq = w.seq AND r.op_id = w.op_id AND (r.base <> r.seq OR w.base = w.seq);
    GET DIAGNOSTICS replaced = ROW_COUNT;
    RETURN replaced;
END $$;
"""
