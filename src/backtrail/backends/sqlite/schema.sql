-- What each format adds to the one before. These texts are in the files of stores: sections are only ever added.

-- name: format_1
CREATE TABLE thread (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    space      TEXT NOT NULL,
    name       BLOB NOT NULL,
    uid        BLOB NOT NULL UNIQUE,
    agent      BLOB,
    created_at INTEGER NOT NULL,
    origin     BLOB,
    UNIQUE (space, name)
) STRICT;

-- key is (thread number << 32) | seq, which keeps the rows of a thread together and in order.
-- payload stands last, so that reading the rest of a row never follows its overflow pages.
CREATE TABLE row (
    key        INTEGER PRIMARY KEY,
    op         INTEGER NOT NULL,
    parent     INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    head       INTEGER NOT NULL,
    undo       INTEGER NOT NULL,
    redo       INTEGER NOT NULL,
    "view"     INTEGER NOT NULL,
    base       INTEGER NOT NULL,
    depth      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    label      BLOB,
    size       INTEGER NOT NULL,
    stored     INTEGER NOT NULL,
    root       BLOB NOT NULL,
    op_id      BLOB NOT NULL,
    extra      BLOB NOT NULL,
    "check"    BLOB NOT NULL,
    hidden     INTEGER NOT NULL,
    payload    BLOB NOT NULL
) STRICT;
CREATE INDEX row_label ON row (key >> 32, label) WHERE label IS NOT NULL;

CREATE TABLE chunk (
    id      INTEGER PRIMARY KEY,
    digest  BLOB NOT NULL UNIQUE,
    epoch   INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;

-- id gives the order in which a row's tags were given.
CREATE TABLE tag (
    id     INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    tag    BLOB NOT NULL,
    UNIQUE (thread, seq, tag)
) STRICT;
CREATE INDEX tag_tag ON tag (thread, tag, seq);

-- epoch: the current one. settled: see `commit.end`.
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 1), ('settled', 0);

PRAGMA application_id = 1112822321;

-- name: format_2
-- The tables are those of format 1. What is new is a codec that older code cannot read.

-- name: format_3
-- What search needs, all of it made from the rows. Every row that is added marks its thread, whichever version adds it.
CREATE TABLE mark (thread INTEGER PRIMARY KEY) STRICT;
INSERT INTO mark SELECT no FROM thread;
CREATE TRIGGER row_marks AFTER INSERT ON row BEGIN INSERT OR IGNORE INTO mark VALUES (new.key >> 32); END;

CREATE TABLE indexed (
    thread INTEGER PRIMARY KEY,
    seq    INTEGER NOT NULL,
    items  INTEGER NOT NULL,
    as_of  INTEGER NOT NULL
) STRICT;

CREATE TABLE message (
    no       INTEGER PRIMARY KEY AUTOINCREMENT,
    thread   INTEGER NOT NULL,
    position INTEGER NOT NULL,
    time     INTEGER NOT NULL,
    id       BLOB,
    role     BLOB,
    text     BLOB NOT NULL
) STRICT;
CREATE INDEX message_place ON message (thread, position);
CREATE INDEX message_time ON message (time);

CREATE VIRTUAL TABLE word USING fts5 (words, content = '', contentless_delete = 1, tokenize = 'ascii');
CREATE VIRTUAL TABLE term USING fts5vocab (word, 'row');
CREATE TABLE vocabulary (word BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;

-- unindexed: entries that were taken out of `word`, and are still in its pages.
INSERT INTO meta VALUES ('unindexed', 0);

-- name: format_4
-- Which threads of an agent were written to. Again, whichever version adds a row, or renews a thread.
CREATE TABLE touched (agent BLOB NOT NULL, thread INTEGER NOT NULL, PRIMARY KEY (agent, thread)) STRICT, WITHOUT ROWID;
INSERT INTO touched SELECT agent, no FROM thread WHERE agent IS NOT NULL;
CREATE INDEX thread_agent ON thread (agent) WHERE agent IS NOT NULL;

DROP TRIGGER row_marks;
CREATE TRIGGER row_marks AFTER INSERT ON row BEGIN
    INSERT OR IGNORE INTO mark VALUES (new.key >> 32);
    INSERT OR IGNORE INTO touched SELECT agent, no FROM thread WHERE no = new.key >> 32 AND agent IS NOT NULL;
END;
CREATE TRIGGER thread_renewed AFTER UPDATE OF agent ON thread BEGIN
    DELETE FROM touched WHERE agent = old.agent AND thread = old.no;
    INSERT OR IGNORE INTO touched SELECT new.agent, new.no WHERE new.agent IS NOT NULL;
END;

-- name: format_5
-- When each thread was last written to, for listings. It may differ by a tenth of a second from the time of the newest row.
CREATE TABLE activity (thread INTEGER PRIMARY KEY, space TEXT NOT NULL, time INTEGER NOT NULL) STRICT;
INSERT INTO activity SELECT no, space, row.created_at FROM thread
    JOIN row ON key = (SELECT max(key) FROM row WHERE key BETWEEN no << 32 AND no << 32 | 4294967295);
CREATE INDEX activity_time ON activity (space, time);

-- A condition that is false costs less than a statement that changes nothing.
CREATE TRIGGER row_activity AFTER INSERT ON row
WHEN NOT EXISTS (SELECT 1 FROM activity WHERE thread = new.key >> 32
    AND time BETWEEN new.created_at - 100000 AND new.created_at + 100000) BEGIN
    INSERT OR REPLACE INTO activity SELECT no, space, new.created_at FROM thread WHERE no = new.key >> 32;
END;
