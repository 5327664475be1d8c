-- The statements of the PostgreSQL backend, in the schema {schema}. `row` stands for the types of a row's columns.

-- name: thread_columns
t.no, t.space, t.name, t.uid, t.agent, t.created_at, t.origin

-- name: fields
"seq", "op", "parent", "step", "head", "undo", "redo", "view", "base", "depth", "created_at", "kind", "label", "size",
"stored", "root", "op_id", "extra", "check", "payload", "hidden"

-- name: row_columns
r."seq", r."op", r."parent", r."step", r."head", r."undo", r."redo", r."view", r."base", r."depth", r."created_at",
r."kind", r."label", r."size", r."stored", r."root", r."op_id", r."extra", r."check", r."payload", r."hidden"

-- name: bare_columns
-- The columns of a row r without its payload.
r."seq", r."op", r."parent", r."step", r."head", r."undo", r."redo", r."view", r."base", r."depth", r."created_at",
r."kind", r."label", r."size", r."stored", r."root", r."op_id", r."extra", r."check", NULL::bytea AS "payload",
r."hidden"

-- Threads ------------------------------------------------------------------------------------------

-- name: thread_by_name (text, bytea)
SELECT {thread_columns} FROM {schema}.thread t WHERE space = $1 AND name = $2

-- name: threads_named (text, bytea[])
SELECT {thread_columns} FROM {schema}.thread t WHERE space = $1 AND name = ANY ($2)

-- name: thread_by_uid (bytea)
SELECT {thread_columns} FROM {schema}.thread t WHERE uid = $1

-- name: thread_by_number (bigint)
SELECT {thread_columns} FROM {schema}.thread t WHERE no = $1

-- name: thread_numbers (bigint, bigint)
SELECT no FROM {schema}.thread WHERE no > $1 ORDER BY no LIMIT $2

-- name: active_threads
-- In the order of `activity`. LATERAL and LIMIT 1 keep the threads from being looked for all at once.
{schema}.activity a, LATERAL (SELECT * FROM {schema}.thread t WHERE t.no = a.thread LIMIT 1) t

-- name: all_threads
{schema}.thread t

-- name: threads
SELECT {thread_columns}, r.*, t.updated_at FROM (
    SELECT t.* FROM {source} WHERE t.alive AND {conditions}
    ORDER BY {second} DESC, t.updated_at DESC, t.no DESC LIMIT {limit}) t,
LATERAL (SELECT {bare_columns} FROM {schema}.row r WHERE r.thread = t.no AND r.seq = t.newest LIMIT 1) r
ORDER BY t.second DESC, t.updated_at DESC, t.no DESC

-- name: tip
-- LATERAL and LIMIT 1 keep the rows from being looked for all at once.
CROSS JOIN LATERAL (
    SELECT {bare_columns} FROM {schema}.row r WHERE r.thread = t.no AND r.seq = t.newest LIMIT 1) newest
LEFT JOIN LATERAL (
    SELECT {bare_columns} FROM {schema}.row r WHERE r.thread = t.no AND r.seq = newest.head AND newest.head > 0
    LIMIT 1) head ON true

-- name: touched_tips (bytea)
-- The LIMIT, of which it is not known that it is none, makes a scan of the index in order more likely than a bitmap: only
-- that takes note of entries which are dead, as those of threads that were untouched are, so that the next one does not
-- look at them again.
SELECT {thread_columns}, newest.*, head.* FROM (
    SELECT * FROM {schema}.thread t WHERE t.agent = $1 AND t.touched
    ORDER BY t.no LIMIT (SELECT 9223372036854775807)) t {tip}
ORDER BY 1

-- name: tips (bytea)
SELECT {thread_columns}, newest.*, head.* FROM (SELECT * FROM {schema}.thread t WHERE t.agent = $1) t {tip}
ORDER BY 1

-- name: has_touched
SELECT count(*) FROM pg_catalog.pg_attribute WHERE attrelid = '{literal}.thread'::regclass AND attname = 'touched'

-- Rows ---------------------------------------------------------------------------------------------

-- name: newest_row (bigint)
SELECT {bare_columns} FROM {schema}.row r WHERE r.thread = $1 ORDER BY r.seq DESC LIMIT 1

-- name: rows_in_range
SELECT {columns} FROM {schema}.row r WHERE r.thread = $1 AND r.seq BETWEEN $2 AND $3 {visible}
ORDER BY r.seq {order} LIMIT $4

-- name: rows_in_ranges
-- Each range from its index, and no more of any than is asked for in all.
SELECT r.* FROM unnest($2, $3) WITH ORDINALITY AS span(low, high, at), LATERAL (
    SELECT {columns} FROM {schema}.row r WHERE r.thread = $1 AND r.seq BETWEEN span.low AND span.high {visible}
    ORDER BY r.seq {order} LIMIT $4) r
ORDER BY span.at, r.seq {order} LIMIT $4

-- name: newest_rows_of (bigint[])
SELECT w.no, r.* FROM unnest($1) AS w(no), LATERAL (
    SELECT {bare_columns} FROM {schema}.row r WHERE r.thread = w.no ORDER BY r.seq DESC LIMIT 1) r

-- name: rows_of (bigint[], bigint[], bigint[])
-- Rows of several threads. OFFSET 0 keeps each range a read of its index.
SELECT span.thread, r.* FROM unnest($1, $2, $3) WITH ORDINALITY AS span(thread, low, high, at), LATERAL (
    SELECT {bare_columns} FROM {schema}.row r
    WHERE r.thread = span.thread AND r.seq BETWEEN span.low AND span.high ORDER BY r.seq OFFSET 0) r
ORDER BY span.at, r.seq

-- name: whole_rows_of (bigint[], bigint[], bigint[])
SELECT span.thread, r.* FROM unnest($1, $2, $3) WITH ORDINALITY AS span(thread, low, high, at), LATERAL (
    SELECT {row_columns} FROM {schema}.row r
    WHERE r.thread = span.thread AND r.seq BETWEEN span.low AND span.high ORDER BY r.seq OFFSET 0) r
ORDER BY span.at, r.seq

-- name: count (bigint, bigint[], bigint[])
SELECT count(*) FROM unnest($2, $3) AS span(low, high)
JOIN {schema}.row r ON r.thread = $1 AND r.seq BETWEEN span.low AND span.high
WHERE NOT r.hidden AND r.root <> ''

-- name: labelled (bigint, bytea[])
SELECT seq FROM {schema}.row WHERE thread = $1 AND label = ANY ($2) AND NOT hidden

-- name: tags (bigint)
SELECT seq, tag, id FROM {schema}.tag WHERE thread = $1 ORDER BY seq, id

-- name: tags_of (bigint, bigint[])
SELECT seq, tag, id FROM {schema}.tag WHERE thread = $1 AND seq = ANY ($2)

-- name: tagged (bigint, bytea)
SELECT t.seq FROM {schema}.tag t JOIN {schema}.row r ON r.thread = t.thread AND r.seq = t.seq
WHERE t.thread = $1 AND t.tag = $2 AND NOT r.hidden ORDER BY t.seq

-- name: last_seq (bigint)
SELECT greatest(t.newest, i.as_of) FROM {schema}.thread t LEFT JOIN {schema}.indexed i ON i.thread = t.no
WHERE t.no = $1

-- Chunks -------------------------------------------------------------------------------------------

-- name: chunks (bytea[])
SELECT digest, payload FROM {schema}.chunk WHERE digest = ANY ($1)

-- name: present (bytea[])
SELECT digest FROM {schema}.chunk WHERE digest = ANY ($1)

-- name: chunk_page (bytea, bigint)
SELECT digest, epoch FROM {schema}.chunk WHERE digest > $1 ORDER BY digest LIMIT $2

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- Commits ------------------------------------------------------------------------------------------

-- name: append_row (bigint, row)
-- $2 is the seq, $6 the head, $12 the time.
WITH turn AS (
    UPDATE {schema}.thread SET newest = $2, updated_at = $12, second = $12 / 1000000, alive = $6 > 0, dirty = true
    WHERE no = $1 AND newest = $2 - 1 RETURNING no)
INSERT INTO {schema}.row (thread, {fields})
SELECT no, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22 FROM turn
RETURNING {schema}.durable_1({durable})

-- name: append_row_after (bigint, row, bytea)
-- The same, if the newest row has the op_id $23.
WITH turn AS (
    UPDATE {schema}.thread SET newest = $2, updated_at = $12, second = $12 / 1000000, alive = $6 > 0, dirty = true
    WHERE no = $1 AND newest = $2 - 1
        AND EXISTS (SELECT FROM {schema}.row r WHERE r.thread = $1 AND r.seq = $2 - 1 AND r.op_id = $23)
    RETURNING no)
INSERT INTO {schema}.row (thread, {fields})
SELECT no, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22 FROM turn
RETURNING {schema}.durable_1({durable})

-- name: append_rows_after_gap (bigint, bigint, bigint, bigint, bigint, row[])
-- $2 is the seq of the first row; $3 to $5 are the seq, the time and the head of the last.
WITH turn AS (
    UPDATE {schema}.thread SET newest = $3, updated_at = $4, second = $4 / 1000000, alive = $5 > 0, dirty = true
    WHERE no = $1 AND newest < $2 RETURNING no)
INSERT INTO {schema}.row (thread, {fields})
SELECT no, unnest($6), unnest($7), unnest($8), unnest($9), unnest($10), unnest($11), unnest($12), unnest($13),
    unnest($14), unnest($15), unnest($16), unnest($17), unnest($18), unnest($19), unnest($20), unnest($21),
    unnest($22), unnest($23), unnest($24), unnest($25), unnest($26)
FROM turn RETURNING {schema}.durable_1({durable})

-- name: lock_threads (bigint[])
-- Waits for writers of these threads.
SELECT no FROM {schema}.thread WHERE no = ANY ($1) ORDER BY no FOR NO KEY UPDATE

-- name: newest_op_ids (bigint[])
SELECT t.no, r.op_id FROM {schema}.thread t JOIN {schema}.row r ON r.thread = t.no AND r.seq = t.newest
WHERE t.no = ANY ($1)

-- name: settle
SELECT {schema}.durable_1({durable}), pg_logical_emit_message(true, 'backtrail', '')::text

-- name: same_threads (text[], bytea[], bytea[])
SELECT t.no FROM unnest($1, $2, $3) WITH ORDINALITY AS w(space, name, uid, at)
JOIN {schema}.thread t ON t.space = w.space AND t.name = w.name AND t.uid = w.uid ORDER BY w.at

-- name: same_rows (bigint[], bigint[], bytea[])
SELECT count(*) FROM unnest($1, $2, $3) AS w(thread, seq, op_id)
JOIN {schema}.row r ON r.thread = w.thread AND r.seq = w.seq AND r.op_id = w.op_id

-- name: tags_of_rows (bigint[], bigint[])
SELECT t.thread, t.seq, t.tag FROM unnest($1, $2) AS w(thread, seq)
JOIN {schema}.tag t ON t.thread = w.thread AND t.seq = w.seq

-- name: op_id (bigint, bigint)
SELECT op_id FROM {schema}.row WHERE thread = $1 AND seq = $2

-- name: commit (boolean, text[], bytea[], bytea[], bytea[], bigint[], bytea[],
-- bigint[], bytea[], bigint[], bytea[], bigint[], row[], bytea[], bytea[], bytea[], bigint[], bigint[], bigint[], bigint[],
-- bigint[], bigint[], bigint[], bigint[], bytea[], bigint[], bigint[], bytea[])
SELECT * FROM {schema}.commit_1({parameters})

-- name: commit_and_show (boolean, text[], bytea[], bytea[], bytea[], bigint[], bytea[],
-- bigint[], bytea[], bigint[], bytea[], bigint[], row[], bytea[], bytea[], bytea[], bigint[], bigint[], bigint[], bigint[],
-- bigint[], bigint[], bigint[], bigint[], bytea[], bigint[], bigint[], bytea[], bigint[], bigint[], bigint[], bigint[])
SELECT * FROM {schema}.commit_2({parameters})

-- name: put_chunks (bytea[], bytea[], bytea[])
SELECT * FROM {schema}.put_1({parameters})

-- name: rewrite (boolean, bigint, row[], bytea[], bytea[])
SELECT * FROM {schema}.rewrite_1({parameters})

-- name: wait_for_group (bigint)
SELECT pg_catalog.pg_advisory_xact_lock($1)

-- The change feed ----------------------------------------------------------------------------------

-- name: notify (text, text)
SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1, $2)

-- name: newest_seqs
SELECT no, newest FROM {schema}.thread

-- name: newest_seqs_of (bigint[], bigint)
SELECT no, newest FROM {schema}.thread WHERE no = ANY ($1)
UNION ALL SELECT no, newest FROM {schema}.thread WHERE no > $2

-- name: last_thread
SELECT coalesce(max(no), 0) FROM {schema}.thread

-- The index ----------------------------------------------------------------------------------------

-- name: unindexed
(SELECT thread AS no FROM {schema}.unindexed)

-- name: unindexed_2
-- In a store of an older format, which is only read.
(SELECT no FROM {schema}.thread WHERE dirty)

-- name: marked (bigint, bigint)
SELECT no FROM {marks} m WHERE no > $1 ORDER BY no LIMIT $2

-- name: indexed (bigint)
SELECT seq, items, as_of FROM {schema}.indexed WHERE thread = $1

-- name: index (bigint, bigint[], bigint[], bigint[], bigint[], bigint[],
-- bigint[], bigint[], bigint[], bytea[], bytea[], text[], bytea[])
SELECT {schema}.index_1({parameters})

-- name: marked_threads (bigint, bigint)
SELECT {thread_columns}, coalesce(i.seq, 0), coalesce(i.items, 0), coalesce(i.as_of, 0)
FROM (SELECT no FROM {marks} m WHERE no > $1 ORDER BY no LIMIT $2) m JOIN {schema}.thread t ON t.no = m.no
LEFT JOIN {schema}.indexed i ON i.thread = t.no ORDER BY t.no

-- name: index_new (bigint[], bigint[], bigint[], bigint[],
-- bigint[], bigint[], bigint[], bytea[], bytea[], text[], bytea[], text[])
-- Lists of threads that have none, as `index_1` makes them: $1 to $4 are the threads and the versions of their lists,
-- $5 to $11 the entries, $12 all words in order. A crash may lose them: then their threads are marked, too.
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
turn AS MATERIALIZED (
    SELECT t.no FROM relaxed, {schema}.thread t WHERE t.no = ANY ($1) ORDER BY t.no FOR NO KEY UPDATE OF t),
made AS (
    INSERT INTO {schema}.indexed (thread, seq, items, as_of, first)
    SELECT w.thread, w.seq, w.items, w.as_of, -w.items FROM unnest($1, $2, $3, $4) AS w(thread, seq, items, as_of)
    JOIN turn ON turn.no = w.thread ON CONFLICT (thread) DO NOTHING RETURNING thread, items, as_of),
known AS (INSERT INTO {schema}.vocabulary SELECT unnest($12) ON CONFLICT DO NOTHING),
added AS (
    INSERT INTO {schema}.message (thread, place, time, id, role, words, text)
    SELECT w.thread, w.position - made.items, w.time, w.id, w.role,
        array_to_tsvector(string_to_array(w.words, ' ')), w.text
    FROM unnest($5, $6, $7, $8, $9, $10, $11) WITH ORDINALITY
        AS w(thread, position, time, id, role, words, text, at)
    JOIN made ON made.thread = w.thread ORDER BY w.at),
current AS (
    UPDATE {schema}.thread t SET dirty = false FROM made
    WHERE t.no = made.thread AND t.newest = made.as_of AND t.dirty)
SELECT thread FROM made

-- name: words_like (text, bigint)
SELECT word FROM {schema}.vocabulary WHERE word LIKE $1 LIMIT $2

-- name: hits
SELECT {thread_columns}, i.seq, m.place - i.first, m.no, m.time, m.id, m.role, m.text
FROM {schema}.message m JOIN {schema}.thread t ON t.no = m.thread JOIN {schema}.indexed i ON i.thread = m.thread

-- name: clear_index
DELETE FROM {schema}.message; DELETE FROM {schema}.indexed; DELETE FROM {schema}.vocabulary;
UPDATE {schema}.thread SET dirty = true WHERE NOT dirty

-- name: begin_cleaning
UPDATE {schema}.meta SET value = 0 WHERE name = 'unindexed' AND value <> 0 RETURNING value

-- name: unused_words
SELECT v.word FROM {schema}.vocabulary v EXCEPT
SELECT s.word FROM ts_stat('SELECT words FROM {literal}.message') s

-- name: lock_vocabulary
-- A word that is about to go must not be relied on: so no process indexes meanwhile.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = '100ms';
LOCK TABLE {schema}.vocabulary IN SHARE ROW EXCLUSIVE MODE

-- name: remove_words (text[])
DELETE FROM {schema}.vocabulary v WHERE v.word = ANY ($1) AND NOT EXISTS (
    SELECT FROM {schema}.message m WHERE m.words @@ quote_literal(v.word)::tsquery)

-- Maintenance --------------------------------------------------------------------------------------

-- name: next_epoch (text)
SELECT {schema}.next_epoch_1($1)

-- name: remove_chunks (bytea[], bigint)
WITH gone AS (DELETE FROM {schema}.chunk WHERE digest IN (
    SELECT digest FROM {schema}.chunk WHERE digest = ANY ($1) AND epoch < $2 ORDER BY digest FOR UPDATE)
    AND epoch < $2 RETURNING octet_length(payload) AS size)
SELECT coalesce(sum(size), 0)::bigint FROM gone

-- name: remove_rows (bigint, bigint[])
WITH gone AS (DELETE FROM {schema}.row r USING {schema}.thread t
    WHERE r.thread = $1 AND t.no = $1 AND r.seq = ANY ($2) AND r.hidden AND r.seq < t.newest
    RETURNING r.seq),
untagged AS (DELETE FROM {schema}.tag USING gone WHERE tag.thread = $1 AND tag.seq = gone.seq)
SELECT count(*) FROM gone

-- name: vacuum
VACUUM ({options}) {schema}.row, {schema}.chunk, {schema}.tag, {schema}.thread, {schema}.activity,
    {schema}.unindexed, {schema}.message, {schema}.indexed, {schema}.vocabulary

-- name: usage
-- By name space, arrays: one statement sees one moment.
SELECT threads.*, checkpoints.*, items.*, rows.*, chunks.*, entries.*, (
    SELECT coalesce(sum(pg_catalog.pg_total_relation_size(c.oid)), 0)::bigint FROM pg_catalog.pg_class c
    WHERE c.relnamespace = '{literal}'::regnamespace AND c.relkind = 'r')
FROM
(SELECT coalesce(array_agg(space), '{}'), coalesce(array_agg(n), '{}') FROM (
    SELECT space, count(*) AS n FROM {schema}.thread WHERE alive GROUP BY space) s) threads,
(SELECT coalesce(array_agg(space), '{}'), coalesce(array_agg(n), '{}'), coalesce(array_agg(size), '{}') FROM (
    SELECT space, sum(n)::bigint AS n, sum(size)::bigint AS size FROM (
        SELECT thread, count(*) AS n, sum(size) AS size FROM {schema}.row
        WHERE NOT hidden AND root <> '' GROUP BY thread) r
    JOIN {schema}.thread t ON t.no = r.thread GROUP BY space) s) checkpoints,
(SELECT coalesce(array_agg(space), '{}'), coalesce(array_agg(n), '{}') FROM (
    SELECT space, sum(i.items)::bigint AS n FROM {schema}.thread t JOIN {schema}.indexed i ON i.thread = t.no
    WHERE t.alive AND NOT t.dirty GROUP BY space) s) items,
(SELECT count(*), coalesce(sum(octet_length(payload)), 0)::bigint FROM {schema}.row) rows,
(SELECT count(*), coalesce(sum(octet_length(payload)), 0)::bigint FROM {schema}.chunk) chunks,
(SELECT count(*), coalesce(sum(octet_length(text) + pg_column_size(words)), 0)::bigint FROM {schema}.message) entries

-- Damage -------------------------------------------------------------------------------------------

-- name: rows_without_thread
FROM {schema}.row x WHERE NOT EXISTS (SELECT FROM {schema}.thread t WHERE t.no = x.thread)

-- name: rows_without_place
FROM {schema}.row x WHERE x.seq NOT BETWEEN 1 AND 4294967295

-- name: threads_without_row
FROM {schema}.thread x WHERE NOT EXISTS (
    SELECT FROM {schema}.row r WHERE r.thread = x.no AND r.seq BETWEEN 1 AND 4294967295)

-- name: tags_without_row
FROM {schema}.tag x WHERE NOT EXISTS (
    SELECT FROM {schema}.row r WHERE r.thread = x.thread AND r.seq = x.seq)

-- name: lists_without_thread
FROM {schema}.indexed x WHERE NOT EXISTS (SELECT FROM {schema}.thread t WHERE t.no = x.thread)

-- name: messages_without_list
FROM {schema}.message x WHERE NOT EXISTS (SELECT FROM {schema}.indexed i WHERE i.thread = x.thread)

-- name: newest_rows
SELECT DISTINCT ON (r.thread) r.thread, r.seq, r.created_at, r.head FROM {schema}.row r
WHERE r.seq BETWEEN 1 AND 4294967295 ORDER BY r.thread, r.seq DESC

-- name: threads_that_differ
-- A thread repeats its newest row, so that threads are listed without reading rows.
FROM {schema}.thread t JOIN ({newest_rows}) n ON n.thread = t.no
WHERE (t.newest, t.updated_at, t.second, t.alive)
    IS DISTINCT FROM (n.seq, n.created_at, n.created_at / 1000000, n.head > 0)

-- name: threads_without_activity
-- A FULL JOIN finds both what is missing and what is too much.
FROM (SELECT * FROM {schema}.thread WHERE alive) t FULL JOIN {schema}.activity a ON a.thread = t.no
WHERE (a.second, a.thread, a.space, a.agent) IS DISTINCT FROM (t.second, t.no, t.space, t.agent)

-- name: threads_without_mark
FROM (SELECT * FROM {schema}.thread WHERE dirty) t FULL JOIN {schema}.unindexed u ON u.thread = t.no
WHERE u.thread IS DISTINCT FROM t.no

-- name: planted
SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) AS removal
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = '{literal}'::regnamespace AND NOT t.tgisinternal AND t.tgparentid = 0
    AND t.tgname <> 'thread_touched'
UNION ALL
SELECT format('DROP RULE %I ON %s', r.rulename, r.ev_class::regclass)
FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
WHERE c.relnamespace = '{literal}'::regnamespace AND r.rulename <> '_RETURN'

-- name: begin_repair
LOCK TABLE {schema}.thread IN SHARE ROW EXCLUSIVE MODE;
DO $planted$ DECLARE removal text; BEGIN
    FOR removal IN {planted} LOOP EXECUTE removal; END LOOP;
END $planted$

-- name: end_repair
-- A newest row that is lost, but not too far away, is replaced by one that says what the thread says of it, and is not
-- sound: `verify` reports it, as it would the lost one, and its seq is not given again.
INSERT INTO {schema}.row (thread, {fields})
SELECT t.no, t.newest, -1, 0, 0, CASE WHEN t.alive THEN t.newest ELSE 0 END, 0, 0, 0, 0, 0, t.updated_at, 0, NULL, 0, 0,
    '', '', '', '', '', false
FROM {schema}.thread t JOIN ({newest_rows}) n ON n.thread = t.no
WHERE t.newest > n.seq AND t.newest <= least(n.seq + {jump}, 4294967295);
UPDATE {schema}.thread t SET newest = n.seq, updated_at = n.created_at, second = n.created_at / 1000000,
    alive = n.head > 0
FROM ({newest_rows}) n WHERE n.thread = t.no AND (t.newest, t.updated_at, t.second, t.alive)
    IS DISTINCT FROM (n.seq, n.created_at, n.created_at / 1000000, n.head > 0);
DELETE FROM {schema}.activity;
INSERT INTO {schema}.activity SELECT second, no, space, agent FROM {schema}.thread WHERE alive;
DELETE FROM {schema}.unindexed;
INSERT INTO {schema}.unindexed SELECT no FROM {schema}.thread WHERE dirty

-- Identity -----------------------------------------------------------------------------------------

-- name: tables (text)
SELECT n.oid IS NOT NULL, array(
    SELECT c.relname::text FROM pg_catalog.pg_class c
    WHERE c.relnamespace = n.oid AND c.relname IN ('meta', 'thread', 'row', 'chunk', 'tag') ORDER BY 1)
FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1

-- name: meta
SELECT name, value FROM {schema}.meta

-- name: set_format (bigint)
UPDATE {schema}.meta SET value = $1 WHERE name = 'format'

-- name: lock_steps (bigint)
SELECT pg_catalog.pg_advisory_xact_lock($1)
