-- What each format adds to the one before, in the schema {schema}, with the advisory lock {lock}. Stores have these
-- functions and views as they are written here: sections are only ever added.

-- name: format_1
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

CREATE TABLE {schema}.row (
    thread bigint NOT NULL,
    "seq" bigint NOT NULL,
    "op" bigint NOT NULL,
    "parent" bigint NOT NULL,
    "step" bigint NOT NULL,
    "head" bigint NOT NULL,
    "undo" bigint NOT NULL,
    "redo" bigint NOT NULL,
    "view" bigint NOT NULL,
    "base" bigint NOT NULL,
    "depth" bigint NOT NULL,
    "created_at" bigint NOT NULL,
    "kind" bigint NOT NULL,
    "size" bigint NOT NULL,
    "stored" bigint NOT NULL,
    "hidden" boolean NOT NULL,
    "label" bytea,
    "root" bytea NOT NULL,
    "op_id" bytea NOT NULL,
    "extra" bytea NOT NULL,
    "check" bytea NOT NULL,
    "payload" bytea NOT NULL,
    PRIMARY KEY (thread, seq)
) PARTITION BY HASH (thread);

CREATE TABLE {schema}.row_0 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 0);
ALTER TABLE {schema}.row_0 ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.row_1 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 1);
ALTER TABLE {schema}.row_1 ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.row_2 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 2);
ALTER TABLE {schema}.row_2 ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.row_3 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 3);
ALTER TABLE {schema}.row_3 ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.row_4 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 4);
ALTER TABLE {schema}.row_4 ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.row_5 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 5);
ALTER TABLE {schema}.row_5 ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.row_6 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 6);
ALTER TABLE {schema}.row_6 ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE {schema}.row_7 PARTITION OF {schema}.row FOR VALUES WITH (MODULUS 8, REMAINDER 7);
ALTER TABLE {schema}.row_7 ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX row_label ON {schema}.row (thread, label, seq) WHERE label IS NOT NULL;

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

-- Begin an epoch when no transaction writes chunks; one that wants to waits for no longer than `patience`.
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
    durable boolean,
    thread_space text[], thread_name bytea[], thread_uid bytea[], thread_agent bytea[], thread_created_at bigint[],
    thread_origin bytea[],
    renew_thread bigint[], renew_agent bytea[], renew_created_at bigint[], renew_origin bytea[],
    row_thread bigint[],
    row_seq bigint[],
    row_op bigint[],
    row_parent bigint[],
    row_step bigint[],
    row_head bigint[],
    row_undo bigint[],
    row_redo bigint[],
    row_view bigint[],
    row_base bigint[],
    row_depth bigint[],
    row_created_at bigint[],
    row_kind bigint[],
    row_label bytea[],
    row_size bigint[],
    row_stored bigint[],
    row_root bytea[],
    row_op_id bytea[],
    row_extra bytea[],
    row_check bytea[],
    row_payload bytea[],
    row_hidden boolean[],
    chunk_digest bytea[], chunk_payload bytea[], touched bytea[],
    visible_thread bigint[], visible_seq bigint[], newest_thread bigint[], newest_seq bigint[],
    hide_thread bigint[], hide_seq bigint[],
    tag_thread bigint[], tag_seq bigint[], tag_tag bytea[],
    untag_thread bigint[], untag_seq bigint[], untag_tag bytea[],
    OUT refused text, OUT already boolean, OUT numbers bigint[], OUT missing bytea[],
    OUT gone_thread bigint, OUT gone_seq bigint
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
                    thread_origin[at], thread_created_at[at], thread_created_at[at] / 1000000)
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
        INSERT INTO {schema}.row (thread, "seq", "op", "parent", "step", "head", "undo", "redo", "view", "base", "depth", "created_at", "kind", "label", "size", "stored", "root", "op_id", "extra", "check", "payload", "hidden")
            SELECT CASE WHEN w.thread < 0 THEN numbers[-w.thread] ELSE w.thread END, w."seq", w."op", w."parent", w."step", w."head", w."undo", w."redo", w."view", w."base", w."depth", w."created_at", w."kind", w."label", w."size", w."stored", w."root", w."op_id", w."extra", w."check", w."payload", w."hidden" FROM unnest(row_thread, row_seq, row_op, row_parent, row_step, row_head, row_undo, row_redo, row_view, row_base, row_depth, row_created_at, row_kind, row_label, row_size, row_stored, row_root, row_op_id, row_extra, row_check, row_payload, row_hidden) AS w(thread, "seq", "op", "parent", "step", "head", "undo", "redo", "view", "base", "depth", "created_at", "kind", "label", "size", "stored", "root", "op_id", "extra", "check", "payload", "hidden");
        UPDATE {schema}.thread t
            SET newest = w.seq, updated_at = w.created_at, second = w.created_at / 1000000, alive = w.head > 0,
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
    row_seq bigint[],
    row_op bigint[],
    row_parent bigint[],
    row_step bigint[],
    row_head bigint[],
    row_undo bigint[],
    row_redo bigint[],
    row_view bigint[],
    row_base bigint[],
    row_depth bigint[],
    row_created_at bigint[],
    row_kind bigint[],
    row_label bytea[],
    row_size bigint[],
    row_stored bigint[],
    row_root bytea[],
    row_op_id bytea[],
    row_extra bytea[],
    row_check bytea[],
    row_payload bytea[],
    row_hidden boolean[],
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
    UPDATE {schema}.row r SET "op" = w."op", "parent" = w."parent", "step" = w."step", "head" = w."head", "undo" = w."undo", "redo" = w."redo", "view" = w."view", "base" = w."base", "depth" = w."depth", "created_at" = w."created_at", "kind" = w."kind", "label" = w."label", "size" = w."size", "stored" = w."stored", "root" = w."root", "extra" = w."extra", "check" = w."check", payload = coalesce(w.payload, r.payload) FROM unnest(row_seq, row_op, row_parent, row_step, row_head, row_undo, row_redo, row_view, row_base, row_depth, row_created_at, row_kind, row_label, row_size, row_stored, row_root, row_op_id, row_extra, row_check, row_payload, row_hidden) AS w("seq", "op", "parent", "step", "head", "undo", "redo", "view", "base", "depth", "created_at", "kind", "label", "size", "stored", "root", "op_id", "extra", "check", "payload", "hidden")
        WHERE r.thread = of_thread AND r.seq = w.seq AND r.op_id = w.op_id AND (r.base <> r.seq OR w.base = w.seq);
    GET DIAGNOSTICS replaced = ROW_COUNT;
    RETURN replaced;
END $$;


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
                array(SELECT left(word, 400) FROM unnest(string_to_array(w.words, ' ')) AS word WHERE word <> ''
                      UNION SELECT 'cut short' FROM unnest(string_to_array(w.words, ' ')) AS word
                      WHERE length(word) > 400)
            ), w.text
            FROM unnest(entry_splice, entry_position, entry_time, entry_id, entry_role, entry_words, entry_text)
                AS w(splice, position, time, id, role, words, text)
            WHERE w.splice = n ORDER BY w.position;
    END LOOP;
    INSERT INTO {schema}.vocabulary
        SELECT DISTINCT left(word, 400) FROM unnest(entry_words) AS w(words),
            unnest(string_to_array(w.words, ' ')) AS word
        WHERE word <> '' ORDER BY 1 ON CONFLICT DO NOTHING;
    INSERT INTO {schema}.indexed VALUES (of_thread, will[1], will[2], will[3], start)
        ON CONFLICT (thread) DO UPDATE SET seq = will[1], items = will[2], as_of = will[3], first = start;
    UPDATE {schema}.thread SET dirty = false WHERE no = of_thread AND newest = will[3] AND dirty;
    RETURN true;
END $$;


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

-- The id of a checkpoint, as the library makes it: the seq times 2654435761, modulo 2^32, and the beginning of the uid.
CREATE FUNCTION {schema}.checkpoint_id_1(uid bytea, seq bigint) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT lpad(to_hex(
        (((seq & 65535) * 2654435761 + ((((seq >> 16) * 2654435761) & 65535) << 16)) & 4294967295)
        # ('x' || encode(substring(uid FROM 1 FOR 4), 'hex'))::bit(32)::bigint & 4294967295
    ), 8, '0') || encode(uid, 'hex')
$$;

CREATE VIEW {schema}.threads AS
    SELECT {schema}.readable_1(t.name) AS id, t.space AS kind, {schema}.readable_1(t.agent) AS agent,
        {schema}.moment_1(t.created_at) AS created_at, {schema}.moment_1(t.updated_at) AS updated_at,
        r.step, {schema}.checkpoint_id_1(t.uid, r.head) AS head_id, {schema}.readable_1(t.origin) AS forked_from
    FROM {schema}.thread t JOIN {schema}.row r ON r.thread = t.no AND r.seq = t.newest WHERE t.alive;

CREATE VIEW {schema}.checkpoints AS
    SELECT {schema}.checkpoint_id_1(t.uid, r.seq) AS id, {schema}.readable_1(t.name) AS thread_id,
        t.space AS thread_kind, r.seq, r.step,
        CASE WHEN r.parent > 0 THEN {schema}.checkpoint_id_1(t.uid, r.parent)
            WHEN r.op = 1 THEN {schema}.readable_1(t.origin) END AS parent_id,
        {schema}.readable_1(r.label) AS label,
        array(SELECT {schema}.readable_1(g.tag) FROM {schema}.tag g
              WHERE g.thread = r.thread AND g.seq = r.seq  ORDER BY g.id) AS tags,
        CASE r.kind WHEN 0 THEN 'manual' WHEN 1 THEN 'automatic' WHEN 2 THEN 'pre_operation' WHEN 3 THEN 'recovery' END AS kind,
        {schema}.moment_1(r.created_at) AS created_at, r.size, r.stored, 'blake3:' || encode(r.root, 'hex') AS root,
        r.seq = (SELECT n.head FROM {schema}.row n WHERE n.thread = t.no AND n.seq = t.newest) AS is_head
    FROM {schema}.thread t JOIN {schema}.row r ON r.thread = t.no
    WHERE t.alive AND NOT r.hidden AND r.root <> '';

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

-- name: format_2
-- `thread.touched` is set by a trigger, so the saves of every version count. It is in the condition of an index, and
-- what changes that cannot be a HOT update: so a thread that is touched already is left alone, as most saves find it.
-- The view comes first: a reader of it locks it before the tables that it is made of.
-- While this waits for a long read, all other transactions would wait for it.
SET LOCAL lock_timeout = '3s';
-- Tags that begin so are the library's own.
CREATE OR REPLACE VIEW {schema}.checkpoints AS
    SELECT {schema}.checkpoint_id_1(t.uid, r.seq) AS id, {schema}.readable_1(t.name) AS thread_id,
        t.space AS thread_kind, r.seq, r.step,
        CASE WHEN r.parent > 0 THEN {schema}.checkpoint_id_1(t.uid, r.parent)
            WHEN r.op = 1 THEN {schema}.readable_1(t.origin) END AS parent_id,
        {schema}.readable_1(r.label) AS label,
        array(SELECT {schema}.readable_1(g.tag) FROM {schema}.tag g
              WHERE g.thread = r.thread AND g.seq = r.seq AND substring(g.tag FROM 1 FOR 1) <> '@' ORDER BY g.id) AS tags,
        CASE r.kind WHEN 0 THEN 'manual' WHEN 1 THEN 'automatic' WHEN 2 THEN 'pre_operation' WHEN 3 THEN 'recovery' END AS kind,
        {schema}.moment_1(r.created_at) AS created_at, r.size, r.stored, 'blake3:' || encode(r.root, 'hex') AS root,
        r.seq = (SELECT n.head FROM {schema}.row n WHERE n.thread = t.no AND n.seq = t.newest) AS is_head
    FROM {schema}.thread t JOIN {schema}.row r ON r.thread = t.no
    WHERE t.alive AND NOT r.hidden AND r.root <> '';

ALTER TABLE {schema}.thread ADD touched boolean NOT NULL DEFAULT true;
CREATE INDEX thread_touched ON {schema}.thread (agent, no) WHERE touched AND agent IS NOT NULL;
CREATE INDEX thread_without_head ON {schema}.thread (agent, no) WHERE NOT alive AND agent IS NOT NULL;

CREATE FUNCTION {schema}.touch_2() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.thread SET touched = true WHERE no = NEW.no;
    RETURN NULL;
END $$;
-- A writer that adds a row sets `newest`, and one that renews a thread sets `agent`. To ask BEFORE the update,
-- PostgreSQL would lock the row first, and log that, at each save.
CREATE TRIGGER thread_touched AFTER UPDATE OF newest, agent ON {schema}.thread FOR EACH ROW
    WHEN (NOT NEW.touched AND NEW.agent IS NOT NULL) EXECUTE FUNCTION {schema}.touch_2();

-- Write a batch as `commit_1` does, show rows again, and untouch threads. All of its threads are locked at once, in
-- their order, and then the rows, so that no transaction removes them meanwhile.
CREATE FUNCTION {schema}.commit_2(
    durable boolean,
    thread_space text[], thread_name bytea[], thread_uid bytea[], thread_agent bytea[], thread_created_at bigint[],
    thread_origin bytea[],
    renew_thread bigint[], renew_agent bytea[], renew_created_at bigint[], renew_origin bytea[],
    row_thread bigint[],
    row_seq bigint[],
    row_op bigint[],
    row_parent bigint[],
    row_step bigint[],
    row_head bigint[],
    row_undo bigint[],
    row_redo bigint[],
    row_view bigint[],
    row_base bigint[],
    row_depth bigint[],
    row_created_at bigint[],
    row_kind bigint[],
    row_label bytea[],
    row_size bigint[],
    row_stored bigint[],
    row_root bytea[],
    row_op_id bytea[],
    row_extra bytea[],
    row_check bytea[],
    row_payload bytea[],
    row_hidden boolean[],
    chunk_digest bytea[], chunk_payload bytea[], touched bytea[],
    visible_thread bigint[], visible_seq bigint[], newest_thread bigint[], newest_seq bigint[],
    hide_thread bigint[], hide_seq bigint[],
    tag_thread bigint[], tag_seq bigint[], tag_tag bytea[],
    untag_thread bigint[], untag_seq bigint[], untag_tag bytea[],
    show_thread bigint[], show_seq bigint[], untouch_thread bigint[], untouch_seq bigint[],
    OUT refused text, OUT already boolean, OUT numbers bigint[], OUT missing bytea[],
    OUT gone_thread bigint, OUT gone_seq bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM {schema}.thread
        WHERE no = ANY (row_thread || newest_thread || renew_thread || hide_thread || untouch_thread)
        ORDER BY no FOR NO KEY UPDATE;
    PERFORM FROM {schema}.row r JOIN unnest(show_thread, show_seq) AS w(thread, seq)
        ON r.thread = w.thread AND r.seq = w.seq ORDER BY r.thread, r.seq FOR NO KEY UPDATE OF r;
    SELECT 'vanished', w.thread, w.seq INTO refused, gone_thread, gone_seq
        FROM unnest(show_thread, show_seq) WITH ORDINALITY AS w(thread, seq, at)
        WHERE NOT EXISTS (SELECT FROM {schema}.row r WHERE r.thread = w.thread AND r.seq = w.seq)
        ORDER BY w.at LIMIT 1;
    IF refused IS NOT NULL THEN  -- unless it is there already, as `commit_1` tells of one that it refuses
        SELECT c.already, c.numbers INTO already, numbers FROM {schema}.commit_1(durable, thread_space, thread_name, thread_uid, thread_agent, thread_created_at, thread_origin, renew_thread, renew_agent, renew_created_at, renew_origin, row_thread, row_seq, row_op, row_parent, row_step, row_head, row_undo, row_redo, row_view, row_base, row_depth, row_created_at, row_kind, row_label, row_size, row_stored, row_root, row_op_id, row_extra, row_check, row_payload, row_hidden, chunk_digest, chunk_payload, touched, visible_thread, visible_seq, newest_thread || 0::bigint, newest_seq || -1::bigint, hide_thread, hide_seq, tag_thread, tag_seq, tag_tag, untag_thread, untag_seq, untag_tag) c;
        refused := CASE WHEN already THEN NULL ELSE 'vanished' END;
        RETURN;
    END IF;
    SELECT * INTO refused, already, numbers, missing, gone_thread, gone_seq FROM {schema}.commit_1(durable, thread_space, thread_name, thread_uid, thread_agent, thread_created_at, thread_origin, renew_thread, renew_agent, renew_created_at, renew_origin, row_thread, row_seq, row_op, row_parent, row_step, row_head, row_undo, row_redo, row_view, row_base, row_depth, row_created_at, row_kind, row_label, row_size, row_stored, row_root, row_op_id, row_extra, row_check, row_payload, row_hidden, chunk_digest, chunk_payload, touched, visible_thread, visible_seq, newest_thread, newest_seq, hide_thread, hide_seq, tag_thread, tag_seq, tag_tag, untag_thread, untag_seq, untag_tag);
    IF refused IS NULL AND already IS NULL THEN
        UPDATE {schema}.row r SET hidden = false FROM unnest(show_thread, show_seq) AS w(thread, seq)
            WHERE r.thread = w.thread AND r.seq = w.seq AND r.hidden;
        UPDATE {schema}.thread t SET touched = false FROM unnest(untouch_thread, untouch_seq) AS w(no, seq)
            WHERE t.no = CASE WHEN w.no < 0 THEN numbers[-w.no] ELSE w.no END AND t.newest = w.seq
            AND t.touched AND t.agent IS NOT NULL;
    END IF;
END $$;

-- name: format_3
-- Listings read `activity`, and the search index `unindexed`, so that no column of `thread` that a save changes is
-- indexed: its update is HOT, and writes to no index. A trigger fills both, so the saves of every version count.
SET LOCAL lock_timeout = '3s';
CREATE TABLE {schema}.activity (
    second bigint NOT NULL,
    thread bigint NOT NULL,
    space  text NOT NULL,
    agent  bytea,
    PRIMARY KEY (space, second, thread)
) WITH (fillfactor = 60);
CREATE INDEX activity_agent ON {schema}.activity (agent, space, second) WHERE agent IS NOT NULL;
CREATE TABLE {schema}.unindexed (thread bigint PRIMARY KEY);

-- The trigger has the rights of the role that saves. So roles that may use `thread` may use these as well, and roles
-- that may update it may also delete here.
DO $$
DECLARE
    allowed record;
BEGIN
    FOR allowed IN SELECT a.privilege_type AS what, a.grantee
        FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
        WHERE c.oid = '{literal}.thread'::regclass AND a.grantee <> c.relowner
        AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') LOOP
        EXECUTE format('GRANT %s ON %s.activity, %s.unindexed TO %s',
                       CASE allowed.what WHEN 'UPDATE' THEN 'UPDATE, DELETE' ELSE allowed.what END,
                       '{literal}', '{literal}',
                       CASE WHEN allowed.grantee = 0 THEN 'PUBLIC' ELSE allowed.grantee::regrole::text END);
    END LOOP;
END $$;

-- A thread without a head has no activity. Its row is found by the old second: there is no index on its number alone.
CREATE FUNCTION {schema}.follow_3() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT NEW.alive THEN
        IF OLD.alive THEN
            DELETE FROM {schema}.activity WHERE space = NEW.space AND second = OLD.second AND thread = NEW.no;
        END IF;
    ELSIF NEW.second <> OLD.second OR NOT OLD.alive OR NEW.agent IS DISTINCT FROM OLD.agent THEN
        UPDATE {schema}.activity SET second = NEW.second, agent = NEW.agent
            WHERE space = NEW.space AND second = OLD.second AND thread = NEW.no;
        IF NOT FOUND THEN
            INSERT INTO {schema}.activity (second, thread, space, agent)
                VALUES (NEW.second, NEW.no, NEW.space, NEW.agent) ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    IF NEW.dirty AND NOT OLD.dirty THEN
        INSERT INTO {schema}.unindexed VALUES (NEW.no) ON CONFLICT DO NOTHING;
    ELSIF OLD.dirty AND NOT NEW.dirty THEN
        DELETE FROM {schema}.unindexed WHERE thread = NEW.no;
    END IF;
    -- Indexing changes `dirty` alone. A thread that is renewed may stay as it is.
    IF NOT NEW.touched AND NEW.agent IS NOT NULL AND (NEW.newest <> OLD.newest OR NEW.dirty = OLD.dirty) THEN
        UPDATE {schema}.thread SET touched = true WHERE no = NEW.no;
    END IF;
    RETURN NULL;
END $$;
-- One trigger, under the name that an older version which has the store open does not take for another program's. It has
-- no WHEN: PostgreSQL reads such an expression again for each statement, and that takes longer than the function.
CREATE OR REPLACE TRIGGER thread_touched AFTER UPDATE OF newest, agent, dirty ON {schema}.thread FOR EACH ROW
    EXECUTE FUNCTION {schema}.follow_3();
INSERT INTO {schema}.activity SELECT second, no, space, agent FROM {schema}.thread WHERE alive;
INSERT INTO {schema}.unindexed SELECT no FROM {schema}.thread WHERE dirty;

DROP INDEX {schema}.thread_activity, {schema}.thread_agent, {schema}.thread_dirty, {schema}.thread_without_head;
CREATE INDEX thread_agent ON {schema}.thread (agent) WHERE agent IS NOT NULL;
