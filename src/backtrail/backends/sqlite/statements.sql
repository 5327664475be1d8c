-- The statements of the SQLite backend. A row's key is (thread << 32) | seq; 4294967295 masks the seq.

-- name: thread_columns
no, thread.space, name, uid, agent, thread.created_at, origin

-- name: fields
"op", "parent", "step", "head", "undo", "redo", "view", "base", "depth", "created_at", "kind", "label", "size",
"stored", "root", "op_id", "extra", "check"

-- name: newest_key
-- Of the thread `no`.
(SELECT max(key) FROM row WHERE key BETWEEN no << 32 AND no << 32 | 4294967295)

-- name: with_head
-- Threads that have a head, with their newest row.
FROM thread JOIN row ON key = {newest_key} WHERE head > 0

-- Threads ------------------------------------------------------------------------------------------

-- name: thread_by_name
SELECT {thread_columns} FROM thread WHERE space = ? AND name = ?

-- name: threads_named
SELECT {thread_columns} FROM thread WHERE space = ? AND name

-- name: thread_by_uid
SELECT {thread_columns} FROM thread WHERE uid = ?

-- name: thread_by_number
SELECT {thread_columns} FROM thread WHERE no = ?

-- name: thread_numbers
SELECT no FROM thread WHERE no > ? ORDER BY no LIMIT ?

-- name: listed_columns
{thread_columns}, key & 4294967295, "op", "parent", "step", "head", "undo", "redo", "view", "base", "depth",
row.created_at, "kind", "label", "size", "stored", "root", "op_id", "extra", "check", NULL, hidden

-- name: threads
SELECT {listed_columns} {with_head}

-- name: threads_numbered
SELECT {listed_columns} FROM thread CROSS JOIN row ON key = {newest_key} WHERE no

-- name: active_threads
-- A thread whose record was lost has no head here.
SELECT activity.time, no, row.created_at, uid IS NOT NULL AND head
FROM (SELECT thread AS no, time FROM activity
WHERE space = ? AND (time, thread) < (?, ?) ORDER BY time DESC, thread DESC LIMIT ?) activity
LEFT JOIN thread USING (no) LEFT JOIN row ON key = {newest_key} ORDER BY activity.time DESC, no DESC

-- name: has_activity
SELECT count(*) FROM sqlite_schema WHERE name = 'activity'

-- name: tip
-- A CROSS JOIN is done in its order: first the threads that are wanted.
CROSS JOIN row newest ON newest.key = {newest_key}
LEFT JOIN row head ON newest.head > 0 AND head.key = no << 32 | newest.head

-- name: tip_columns
no, space, name, uid, thread.agent, thread.created_at, origin,
newest.key & 4294967295, newest."op", newest."parent", newest."step", newest."head", newest."undo", newest."redo",
newest."view", newest."base", newest."depth", newest."created_at", newest."kind", newest."label", newest."size",
newest."stored", newest."root", newest."op_id", newest."extra", newest."check", NULL, newest.hidden,
head.key & 4294967295, head."op", head."parent", head."step", head."head", head."undo", head."redo",
head."view", head."base", head."depth", head."created_at", head."kind", head."label", head."size",
head."stored", head."root", head."op_id", head."extra", head."check", NULL, head.hidden

-- name: touched_tips
SELECT {tip_columns} FROM touched CROSS JOIN thread ON no = touched.thread {tip}
WHERE touched.agent = ? ORDER BY touched.thread

-- name: tips
SELECT {tip_columns} FROM thread {tip} WHERE thread.agent = ? ORDER BY no

-- name: has_touched
SELECT count(*) FROM sqlite_schema WHERE name = 'touched'

-- Rows ---------------------------------------------------------------------------------------------

-- name: newest_row
SELECT key & 4294967295, {fields}, NULL, hidden FROM row
WHERE key BETWEEN ?1 << 32 AND ?1 << 32 | 4294967295 ORDER BY key DESC LIMIT 1

-- name: newest_rows_of
-- Of the threads in a list in JSON.
WITH wanted (no) AS (SELECT value FROM json_each(?))
SELECT no, key & 4294967295, {fields}, NULL, hidden FROM wanted CROSS JOIN row ON key = {newest_key}

-- name: spans
-- Pairs of keys, in a list in JSON.
WITH span (low, high) AS (SELECT value ->> 0, value ->> 1 FROM json_each(?))

-- name: rows_of
{spans} SELECT key >> 32, key & 4294967295, {fields}, NULL, hidden
FROM span CROSS JOIN row ON key BETWEEN low AND high

-- name: whole_rows_of
{spans} SELECT key >> 32, key & 4294967295, {fields}, payload, hidden
FROM span CROSS JOIN row ON key BETWEEN low AND high

-- name: count
{spans} SELECT count(*) FROM span CROSS JOIN row ON key BETWEEN low AND high
WHERE hidden = 0 AND length(root) > 0

-- name: labelled
SELECT key & 4294967295 FROM row WHERE key >> 32 = ? AND hidden = 0 AND label

-- name: tags
SELECT seq, tag, id FROM tag WHERE thread = ? ORDER BY seq, id

-- name: tags_of
SELECT seq, tag, id FROM tag WHERE thread = ? AND seq

-- name: tagged
SELECT seq FROM tag JOIN row ON key = thread << 32 | seq WHERE thread = ? AND tag = ? AND hidden = 0 ORDER BY seq

-- Chunks -------------------------------------------------------------------------------------------

-- name: chunks
SELECT digest, payload FROM chunk WHERE digest

-- name: present
SELECT digest FROM chunk WHERE digest

-- name: chunk_page
SELECT digest, epoch FROM chunk WHERE digest > ? ORDER BY digest LIMIT ?

-- Commits ------------------------------------------------------------------------------------------

-- name: last_key
-- The key of the newest row of the thread that ?1 belongs to; that of its row 0, which never exists, if it has no rows
-- yet; NULL if there is no such thread.
coalesce((SELECT max(key) FROM row WHERE key BETWEEN ?1 & ~4294967295 AND ?1 | 4294967295),
         (SELECT no << 32 FROM thread WHERE no = ?1 >> 32))

-- name: is_newest
SELECT {last_key} = ?1

-- name: is_above_newest
SELECT {last_key} < ?1

-- name: tags_of_row
SELECT tag FROM tag WHERE thread = ? AND seq = ?

-- name: append_row
-- Unless the predecessor is the newest row, `op` becomes NULL, which the table refuses. INSERT ... SELECT ... WHERE
-- would say the same, but since that reads the table it writes, SQLite goes through a temporary one, for 2 us in 10.
INSERT INTO row (key, {fields}, payload, hidden)
VALUES (?1, CASE WHEN {last_key} = ?1 - 1 THEN ?2 END, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
        ?17, ?18, ?19, coalesce(?20, x''), ?21)

-- name: append_row_if_newest
-- The same, if also the row with the key ?22 is the newest of its thread.
INSERT INTO row (key, {fields}, payload, hidden)
VALUES (?1, CASE WHEN {last_key} = ?1 - 1 AND ?22 = (
        SELECT max(key) FROM row WHERE key BETWEEN ?22 & ~4294967295 AND ?22 | 4294967295) THEN ?2 END,
        ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, coalesce(?20, x''), ?21)

-- name: append_row_after_gap
INSERT INTO row (key, {fields}, payload, hidden)
VALUES (?1, CASE WHEN {last_key} < ?1 THEN ?2 END, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
        ?17, ?18, ?19, coalesce(?20, x''), ?21)

-- name: append_moves
-- The same for many rows without payload and label, each the only one of its thread in the batch: moves of heads. A
-- list in JSON has their fields in order, the key in place of the seq, and bytes in hexadecimal.
INSERT INTO row (key, {fields}, payload, hidden)
SELECT value ->> 0, CASE WHEN
    coalesce((SELECT max(key) FROM row WHERE key BETWEEN (value ->> 0) & ~4294967295 AND (value ->> 0) | 4294967295),
             (SELECT no << 32 FROM thread WHERE no = (value ->> 0) >> 32)) = (value ->> 0) - 1 THEN value ->> 1 END,
    value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8, value ->> 9,
    value ->> 10, value ->> 11, NULL, value ->> 13, value ->> 14, unhex(value ->> 15), unhex(value ->> 16),
    unhex(value ->> 17), unhex(value ->> 18), x'', value ->> 20
FROM json_each(?)

-- name: create_thread
INSERT INTO thread (space, name, uid, agent, created_at, origin) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING no

-- name: renew_threads
WITH new (at, agent, created_at, origin) AS MATERIALIZED (
    SELECT value ->> 0, unhex(value ->> 1), value ->> 2, unhex(value ->> 3) FROM json_each(?))
UPDATE thread SET agent = new.agent, created_at = new.created_at, origin = new.origin
FROM new WHERE no = at >> 32

-- name: epoch
(SELECT value FROM meta WHERE name = 'epoch')

-- name: put_chunk
INSERT INTO chunk (digest, epoch, payload) VALUES (?, {epoch}, ?)
ON CONFLICT (digest) DO UPDATE SET epoch = excluded.epoch WHERE epoch < excluded.epoch

-- name: chunk_ages
SELECT digest, id, epoch < {epoch} FROM chunk WHERE digest

-- name: touch_chunk
UPDATE chunk SET epoch = {epoch} WHERE id = ?

-- name: keys
-- One statement does the same to all rows of a batch: their keys are a list in JSON.
SELECT value FROM json_each(?)

-- name: hidden
SELECT key, hidden FROM row WHERE key IN ({keys})

-- name: hide
UPDATE row SET hidden = 1 WHERE key IN ({keys}) AND hidden = 0

-- name: show
UPDATE row SET hidden = 0 WHERE key IN ({keys}) AND hidden = 1

-- name: marks
-- Keys and tags, these in hexadecimal.
WITH mark (at, tag) AS MATERIALIZED (SELECT value ->> 0, unhex(value ->> 1) FROM json_each(?))

-- name: tag
{marks} INSERT INTO tag (thread, seq, tag) SELECT key >> 32, key & 4294967295, tag FROM mark
CROSS JOIN row ON key = at WHERE true ON CONFLICT DO NOTHING

-- name: untag
{marks} DELETE FROM tag WHERE (thread, seq, tag) IN (SELECT at >> 32, at & 4294967295, tag FROM mark)

-- name: untouch_if_newest
WITH newest (at) AS MATERIALIZED (SELECT value FROM json_each(?) WHERE value =
    (SELECT max(key) FROM row WHERE key BETWEEN value & ~4294967295 AND value | 4294967295))
DELETE FROM touched WHERE (agent, thread) IN (SELECT agent, no FROM newest CROSS JOIN thread ON no = at >> 32)

-- name: same_thread
SELECT no FROM thread WHERE space = ? AND name = ? AND uid = ?

-- name: op_id
SELECT op_id FROM row WHERE key = ?

-- name: settle
UPDATE meta SET value = value + 1 WHERE name = 'settled'

-- The change feed ----------------------------------------------------------------------------------

-- name: data_version
PRAGMA data_version

-- name: last_thread
SELECT coalesce(max(no), 0) FROM thread

-- name: newest_seq
SELECT no, coalesce({newest_key} & 4294967295, 0) FROM thread

-- name: newest_seqs
-- ORDER BY keeps SQLite from going through the threads by an index, which would read the rows in a random order.
{newest_seq} WHERE no > ? ORDER BY no LIMIT ?

-- name: newest_seqs_of
{newest_seq} WHERE no

-- The index ----------------------------------------------------------------------------------------

-- name: has_index
SELECT count(*) FROM sqlite_schema WHERE name = 'message'

-- name: marked
SELECT thread FROM mark WHERE thread > ? ORDER BY thread LIMIT ?

-- name: indexed
SELECT seq, items, as_of FROM indexed WHERE thread = ?

-- name: set_indexed
INSERT INTO indexed (thread, seq, items, as_of) VALUES (?, ?, ?, ?)
ON CONFLICT (thread) DO UPDATE SET seq = excluded.seq, items = excluded.items, as_of = excluded.as_of

-- name: unmark_if_newest
DELETE FROM mark WHERE thread = ?1
AND ?2 = (SELECT max(key) FROM row WHERE key BETWEEN ?1 << 32 AND ?1 << 32 | 4294967295)

-- name: messages_at
SELECT no FROM message WHERE thread = ? AND position BETWEEN ? AND ?

-- name: remove_message
DELETE FROM message WHERE no = ?

-- name: remove_words
DELETE FROM word WHERE rowid = ?

-- name: count_unindexed
UPDATE meta SET value = value + ? WHERE name = 'unindexed'

-- name: shift_messages
UPDATE message SET position = position + ? WHERE thread = ? AND position >= ?

-- name: insert_message
INSERT INTO message (thread, position, time, id, role, text) VALUES (?, ?, ?, ?, ?, ?)

-- name: insert_words
INSERT INTO word (rowid, words) VALUES (?, ?)

-- name: insert_vocabulary
INSERT INTO vocabulary (word) VALUES (?) ON CONFLICT DO NOTHING

-- name: hits
-- A CROSS JOIN is done in its order: first the messages.
SELECT thread.no, space, name, uid, agent, thread.created_at, origin,
       seq, position, message.no, time, id, role, text
FROM message CROSS JOIN thread ON thread.no = message.thread CROSS JOIN indexed USING (thread)

-- name: filter
(?1 IS NULL OR space = ?1) AND (?2 IS NULL OR agent = ?2)
AND (?3 IS NULL OR message.thread IN (SELECT value FROM json_each(?3)))
AND (time, message.no) < (?4, ?5) AND message.thread NOT IN (SELECT value FROM json_each(?6))

-- name: hits_by_time
{hits} WHERE {filter} ORDER BY time DESC, message.no DESC LIMIT ?7

-- name: hits_of_threads
{hits} WHERE message.thread IN (SELECT value FROM json_each(?3)) AND {filter}
ORDER BY +time DESC, message.no DESC LIMIT ?7

-- name: hits_by_words
{hits} WHERE message.no IN (
    SELECT message.no FROM word JOIN message ON message.no = word.rowid JOIN thread ON thread.no = message.thread
    WHERE word MATCH ?8 AND {filter} ORDER BY time DESC, message.no DESC LIMIT ?7)
ORDER BY time DESC, message.no DESC

-- name: items_of_threads
SELECT coalesce(sum(items), 0) FROM indexed WHERE thread IN (SELECT value FROM json_each(?))

-- name: matching
SELECT count(*) FROM (SELECT rowid FROM word WHERE word MATCH ? LIMIT ?)

-- name: words_containing
SELECT word FROM vocabulary WHERE instr(word, ?1) LIMIT ?2

-- name: words_ending_in
SELECT word FROM vocabulary WHERE substr(word, -length(?1)) = ?1 LIMIT ?2

-- name: unindexed
SELECT value FROM meta WHERE name = 'unindexed'

-- name: merge_words
INSERT INTO word (word, rank) VALUES ('merge', ?)

-- name: remove_unused_words
-- FTS5 keeps no more of a word than this.
DELETE FROM vocabulary WHERE substr(word, 1, 32768) NOT IN (SELECT CAST(term AS BLOB) FROM term)

-- name: count_cleaned
UPDATE meta SET value = value - ? WHERE name = 'unindexed'

-- name: clear_index
INSERT INTO word (word) VALUES ('delete-all'); DELETE FROM message; DELETE FROM indexed; DELETE FROM vocabulary;
UPDATE meta SET value = 0 WHERE name = 'unindexed'; INSERT OR IGNORE INTO mark SELECT no FROM thread

-- Maintenance --------------------------------------------------------------------------------------

-- name: next_epoch
UPDATE meta SET value = value + 1 WHERE name = 'epoch' RETURNING value

-- name: remove_chunk
DELETE FROM chunk WHERE digest = ? AND epoch < ? RETURNING length(payload)

-- name: remove_row
DELETE FROM row WHERE key = ?1 AND hidden = 1
AND key < (SELECT max(key) FROM row WHERE key BETWEEN ?1 & ~4294967295 AND ?1 | 4294967295)

-- name: remove_tags
DELETE FROM tag WHERE thread = ? AND seq = ?

-- name: take_row_out
-- A mark that was set meanwhile stays, a row without a payload keeps the stored one, and a base stays one.
DELETE FROM row WHERE key = ?1 AND op_id = ?2 AND (base <> key & 4294967295 OR base = ?3) RETURNING hidden, payload

-- name: put_row_back
INSERT INTO row (key, {fields}, payload, hidden)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: is_marked
SELECT count(*) FROM mark WHERE thread = ?

-- name: unmark
DELETE FROM mark WHERE thread = ?

-- name: is_touched
SELECT count(*) FROM touched JOIN thread USING (agent) WHERE no = ?1 AND thread = ?1

-- name: untouch
DELETE FROM touched WHERE (agent, thread) = (SELECT agent, no FROM thread WHERE no = ?)

-- name: activity_of
-- Of one thread, or of all if ?1 is NULL.
INSERT OR REPLACE INTO activity SELECT no, space, row.created_at FROM thread JOIN row ON key = {newest_key}
WHERE ?1 IS NULL OR no = ?1

-- name: count_threads
SELECT space, count(*) {with_head} GROUP BY space

-- name: count_checkpoints
SELECT space, count(*), sum(size) FROM row JOIN thread ON no = key >> 32
WHERE hidden = 0 AND length(root) > 0 GROUP BY space

-- name: count_items
SELECT space, sum(items) FROM indexed JOIN thread ON no = indexed.thread JOIN row ON key = {newest_key}
WHERE head > 0 AND no NOT IN (SELECT thread FROM mark) GROUP BY space

-- name: count_storage
SELECT * FROM
(SELECT count(*), coalesce(sum(length(payload)), 0) FROM row),
(SELECT count(*), coalesce(sum(length(payload)), 0) FROM chunk),
(SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)

-- name: count_index
SELECT * FROM (SELECT count(*), coalesce(sum(length(text)), 0) FROM message),
(SELECT coalesce(sum(length(block)), 0) FROM word_data), (SELECT coalesce(sum(length(word)), 0) FROM vocabulary)

-- Damage -------------------------------------------------------------------------------------------

-- name: planted
SELECT type, name, sql FROM sqlite_schema WHERE type IN ('trigger', 'view') ORDER BY type, name

-- name: rows_without_thread
FROM row WHERE NOT EXISTS (SELECT 1 FROM thread WHERE no = key >> 32)

-- name: rows_without_place
FROM row WHERE key & 4294967295 = 0

-- name: threads_without_row
FROM thread WHERE NOT EXISTS (SELECT 1 FROM row WHERE key BETWEEN no << 32 | 1 AND no << 32 | 4294967295)

-- name: tags_without_row
FROM tag WHERE NOT EXISTS (SELECT 1 FROM row WHERE key = thread << 32 | seq)

-- name: threads_without_activity
FROM thread JOIN row ON key = {newest_key} WHERE NOT EXISTS
(SELECT 1 FROM activity WHERE activity.thread = no AND activity.space = thread.space
AND abs(time - row.created_at) <= 100000)

-- name: messages_without_thread
FROM message WHERE thread NOT IN (SELECT no FROM thread)

-- name: lists_without_thread
FROM indexed WHERE thread NOT IN (SELECT no FROM thread)

-- name: messages_without_list
FROM message WHERE thread NOT IN (SELECT thread FROM indexed)

-- Identity -----------------------------------------------------------------------------------------

-- name: identity
-- One statement, so that it is one moment: another process may be creating the store.
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
FROM pragma_application_id, pragma_user_version
