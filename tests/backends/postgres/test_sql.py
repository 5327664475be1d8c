"""What PostgreSQL makes of it: plans that use indexes however much there is, and views that people can read."""

import itertools
import json
import os
import re
import time
import uuid
from unittest import mock

import psycopg
import pytest

import backtrail
from backtrail.backends.port import Batch, NewThread
from backtrail.backends.postgres import schema as schemas
from backtrail.backends.postgres.backend import _range
from backtrail.backends.sql.statements import statements as read_sections
from backtrail.engine import log
from tests.support.servers import place, server

ROWS = 10


@pytest.fixture
def opener():
    with place() as opener:
        yield opener


def query(store, statement, *values):
    """Run a statement with the store's schema in the place of {}, and return the rows as dicts."""
    with psycopg.connect(server().url, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute(statement.format(store._backend._schema.quoted), values).fetchall()


# -- plans --------------------------------------------------------------------------------------------


def populate(store, threads):
    """Make many threads, each a copy of one, with 10 rows."""
    model = backtrail.open("memory://")
    for n in range(ROWS):
        model.thread("t").save({"n": n, "messages": [{"role": "user", "content": f"{n} " * 20}] * n})
    template = model._backend.rows(1, [(1, ROWS)], payload=True)
    for start in range(0, threads, 1000):
        created, rows = [], []
        for at in range(start, min(start + 1000, threads)):
            uid = os.urandom(8)
            now = 1_700_000_000_000_000 + at * 977_777
            created.append(NewThread("thread", f"thread {at:06}", uid, f"agent {at % 100}", now, None))
            for row in template:
                moved = row._replace(op_id=os.urandom(16), created_at=now + row.seq)
                rows.append((-len(created), log.checked(moved, uid)))
        store._backend.commit(Batch(threads=tuple(created), rows=tuple(rows)))
    with psycopg.connect(server().url, autocommit=True) as connection:
        for table in ("thread", "row", "tag", "chunk"):
            connection.execute(f"ANALYZE {store._backend._schema.quoted}.{table}")


def plan(statement):
    """Return the nodes of the plan that PostgreSQL makes of a statement for any values of its parameters."""
    with psycopg.connect(server().url, autocommit=True) as connection:
        names = {1016: "bigint[]", 20: "bigint", 17: "bytea", 1001: "bytea[]", 25: "text", 16: "boolean"}
        types = ", ".join(names[oid] for oid in statement.oids)
        connection.execute(f"PREPARE it{f'({types})' if types else ''} AS {statement.text.decode()}")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        nulls = ", ".join(["NULL"] * len(statement.oids))
        ((found,),) = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE it{f'({nulls})' if nulls else ''}").fetchall()
    return list(_nodes(found[0]["Plan"]))


def _nodes(node):
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)


def scanned(statement):
    """Return the tables that a plan reads from end to end."""
    return {node["Relation Name"] for node in plan(statement) if node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")}


@pytest.fixture(scope="module")
def full():
    with place() as opener, opener() as store:
        populate(store, 4000)
        yield store


def statements(backend):
    for name in ("thread_by_name", "thread_by_uid", "thread_by_number", "newest_row", "count", "labelled"):
        yield name, backend._sql[name]
    for name in ("threads_named", "newest_rows_of", "rows_of", "whole_rows_of"):
        yield name, backend._sql[name]
    for name in ("append_row", "op_id"):
        yield name, backend._sql[name]
    for shape in itertools.product((True, False), repeat=4):
        yield f"rows {shape}", _range(backend._sql, *shape)
    for filters in (
        {"space": "thread"},
        {"space": "thread", "after": (1_700_000_000_000_000, 5)},
        {"space": "thread", "agent": "agent 7"},
        {"space": "thread", "agent": "agent 7", "after": (1_700_000_000_000_000, 5)},
    ):
        wanted = {"space": None, "agent": None, "prefix": None, "origin": None, "after": None, "limit": 20} | filters
        yield f"threads {filters}", backend._listing(**wanted)[0]


def test_statements_of_users_scan_no_table(full):
    found = {name: scanned(statement) for name, statement in statements(full._backend)}
    assert {name: tables for name, tables in found.items() if tables} == {}


def test_a_scan_would_be_noticed(full):
    from backtrail.backends.postgres.session import Statement

    whole = Statement(f"SELECT count(*) FROM {full._backend._schema.quoted}.thread WHERE created_at > $1", "i")
    assert scanned(whole) == {"thread"}


def test_the_newest_threads_are_listed_by_an_index(full):
    wanted = {"space": "thread", "agent": None, "prefix": None, "origin": None, "after": None, "limit": 20}
    nodes = plan(full._backend._listing(**wanted)[0])
    assert "activity_pkey" in {node.get("Index Name") for node in nodes}
    listed = [info.id for info in full.threads(limit=20)]
    assert listed == [f"thread {at:06}" for at in range(3999, 3979, -1)]


def test_tips_of_an_agent_are_read_by_indexes(full):
    backend = full._backend
    for statement, indexes in (
        (backend._sql["touched_tips"], {"thread_touched"}),
        (backend._sql["tips"], {"thread_agent"}),
    ):
        nodes = plan(statement)
        assert "Seq Scan" not in {node["Node Type"] for node in nodes}
        # No other index of threads: one that is read from end to end would be as bad as the table.
        assert {name for node in nodes if (name := node.get("Index Name", "")).startswith("thread_")} == indexes
    assert "Bitmap Heap Scan" not in {node["Node Type"] for node in plan(backend._sql["touched_tips"])}
    backend.commit(Batch(untouch=tuple((no, ROWS) for no in backend.thread_numbers(0, 4000) if no > 20)))
    for agent, touched, expected in (("agent 7", True, 1), ("agent 50", True, 0), ("agent 50", False, 40)):
        assert len(backend.tips(agent, touched=touched)) == expected


def test_only_the_first_save_after_untouching_changes_indexes(opener):
    with opener() as store:
        for agent in (None, "a"):
            store.thread(f"of {agent}", agent=agent).save({})
        store._backend.commit(Batch(untouch=((2, 1),)))
        schema = store._backend._schema.quoted
        counts = f"""
            SELECT pg_stat_get_xact_tuples_updated(no), pg_stat_get_xact_tuples_hot_updated(no)
            FROM (SELECT '{schema}.thread'::regclass::oid) AS thread(no)"""
        found = []
        for no in (1, 2, 2):
            with psycopg.connect(server().url) as connection:
                connection.execute(
                    f"UPDATE {schema}.thread SET newest = newest + 1, second = second + 1, dirty = true WHERE no = %s",
                    (no,),
                )
                found.append(connection.execute(counts).fetchone())
        assert found == [(1, 1), (2, 1), (1, 1)]
        assert query(store, "SELECT touched FROM {}.thread ORDER BY no") == [{"touched": True}] * 2


def test_save_and_indexing_write_to_no_index_of_threads(opener):
    with opener() as store:
        thread = store.thread("t", agent="a")
        thread.save({"messages": []})
        indexes = f"""
            SELECT count(*) FROM pg_index WHERE indrelid = '{store._backend._schema.quoted}.thread'::regclass
            AND (indexprs IS NOT NULL OR pg_get_indexdef(indexrelid) ~ '(newest|updated_at|second|alive|dirty)')"""
        assert server().execute(indexes) == [(0,)]
        store.search("x")
        assert query(store, "SELECT * FROM {}.unindexed") == []
        thread.append("messages", {"role": "user", "content": "x"})
        assert query(store, "SELECT * FROM {}.unindexed") == [{"thread": 1}]
        thread.delete()
        assert query(store, "SELECT * FROM {}.activity") == []


def test_activity_follows_threads(opener):
    """`check` compares `activity` and `unindexed` with the threads."""
    with opener() as store:
        for n in range(12):
            store.thread(f"{n}", agent="ab"[n % 2] if n % 3 else None).save({"n": n})
        store.thread("0").save({"n": 1})
        store.thread("1").delete()
        store.thread("2").fork("fork")
        with store.transaction():
            store.thread("3").save({"n": 2})
            store.thread("4").delete()
        backend = store._backend
        for no, row in backend.newest_of(range(1, 13)).items():  # as if written much later, in another order
            later = row._replace(seq=row.seq + 1, op_id=os.urandom(16), created_at=row.created_at + no % 5 * 10_000_000)
            backend.commit(Batch(rows=((no, later),)))
        (new,) = backend.commit(Batch(threads=(NewThread("thread", "new", os.urandom(8), None, 1, None),)))
        backend.commit(
            Batch(
                renew=((new, NewThread("thread", "new", os.urandom(8), "b", 1, None)),),
                rows=((new, row._replace(seq=1)),),
            )
        )
        assert backend.check(None) == ()
        assert query(store, "SELECT agent FROM {}.activity WHERE thread = %s", new) == [{"agent": b"b"}]
        listed = [
            record.no for record, _ in backend.threads(space="thread", agent=None, prefix=None, after=None, limit=99)
        ]
        by_name = [
            record.no for record, _ in backend.threads(space="thread", agent=None, prefix="", after=None, limit=99)
        ]
        assert listed == by_name
        server().execute(f"DELETE FROM {backend._schema.quoted}.activity WHERE thread = 1")
        server().execute(f"UPDATE {backend._schema.quoted}.activity SET second = 1 WHERE thread = 3")
        server().execute(f"INSERT INTO {backend._schema.quoted}.activity VALUES (1, 2, 'thread'), (1, 77, 'thread')")
        server().execute(f"DELETE FROM {backend._schema.quoted}.unindexed WHERE thread = 5")
        assert backend.check(None) == (
            "4 threads have a wrong time in the table for listings",
            "1 threads have a wrong mark in the table for indexing",
        )
        backend.repair()
        assert backend.check(None) == ()


@pytest.mark.parametrize("deletes", [True, False])
def test_roles_keep_their_rights_when_the_owner_converts_a_store(deletes):
    role, running = f'an "agent" {uuid.uuid4().hex}', server()
    name = '"' + role.replace('"', '""') + '"'
    with place() as opener:
        schema = opener.keywords["schema"]
        with mock.patch.object(schemas, "STEPS", schemas.STEPS[:2]), opener() as store:
            store.thread("t").save({"messages": []})
        running.execute(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {name}")
        running.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {name}")
        if deletes:
            running.execute(f"GRANT DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
        try:
            opener().close()
            with running.connect() as connection, connection.transaction(force_rollback=True):
                connection.execute(f"SET LOCAL ROLE {name}")
                connection.execute(f"UPDATE {schema}.thread SET newest = newest + 1, second = 7, dirty = NOT dirty")
                assert connection.execute(f"SELECT second FROM {schema}.activity").fetchall() == [(7,)]
                assert connection.execute(f"SELECT * FROM {schema}.unindexed").fetchall() == []
        finally:
            running.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_million_rows_in_a_hundred_thousand_threads(opener):
    with opener() as store:
        populate(store, 100_000)
        took = {}
        for name, work in {
            "list the newest 20": lambda: list(store.threads(limit=20)),
            "list 20 of an agent": lambda: list(store.threads(limit=20, agent="agent 7")),
            "load one": lambda: store.thread("thread 050000").load().state,
            "append to one": lambda: store.thread("thread 050001").append("messages", {"role": "user", "content": "x"}),
        }.items():
            work()
            began = time.perf_counter()
            for _ in range(20):
                work()
            took[name] = f"{(time.perf_counter() - began) / 20 * 1000:.2f} ms"
        print("\n" + json.dumps(took, indent=1))  # noqa: T201 - what the long run is for
        found = {name: scanned(statement) for name, statement in statements(store._backend)}
        assert {name: tables for name, tables in found.items() if tables} == {}


# -- statements and servers -----------------------------------------------------------------------------

# What would be asked of more than one server if threads were distributed by their numbers. docs/scaling.md
CROSSING = """
    thread_by_name threads_named thread_by_uid same_threads
    thread_numbers all_threads threads active_threads tip tips touched_tips newest_seqs last_thread usage
    unindexed unindexed_2 marked_threads hits remove_words clear_index
    chunks present chunk_page remove_chunks
    vacuum newest_rows begin_repair end_repair rows_without_thread rows_without_place threads_without_row
    tags_without_row lists_without_thread messages_without_list threads_that_differ threads_without_activity
    threads_without_mark
"""
TABLES = {"thread", "row", "tag", "indexed", "message", "chunk", "activity", "unindexed"}
NUMBER = r"\b(thread|no) = (\$1(?!\d)|ANY \(\$1\)|w\.(no|thread)|span\.thread)|\bt\.no = ANY"


def test_other_statements_name_the_numbers_of_their_threads():
    sections = read_sections("backtrail.backends.postgres", "statements.sql")
    texts = {name: text for name, (text, _) in sections.items() if TABLES & set(re.findall(r"\{schema\}\.(\w+)", text))}
    assert {name for name, text in texts.items() if not re.search(NUMBER, text)} == set(CROSSING.split())
    one = {name for name, text in texts.items() if re.search(r"\b(thread|no) = \$1(?!\d)", text)}
    assert {"append_row", "append_row_after", "newest_row", "rows_in_range", "op_id", "tags", "labelled"} <= one


def test_few_unique_indexes_lack_the_number_of_a_thread(opener):
    with opener() as store:
        unique = """
            SELECT c.relname AS name, array_agg(a.attname::text) AS columns
            FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            JOIN pg_class t ON t.oid = i.indrelid AND t.relkind <> 'i' AND NOT t.relispartition
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
            WHERE i.indisunique AND t.relnamespace = '{}'::regnamespace AND t.relname NOT IN ('meta', 'vocabulary')
            GROUP BY 1"""
        without = {row["name"] for row in query(store, unique) if "thread" not in row["columns"]}
        assert without == {"thread_pkey", "thread_name", "thread_uid", "tag_pkey", "message_pkey", "chunk_pkey"}


# -- views --------------------------------------------------------------------------------------------


def test_threads_and_checkpoints_read_as_the_library_tells_them(opener):
    with opener() as store:
        trip = store.thread("trip", agent="planner")
        trip.save({"n": 1}, label="first", tags=["x", "y"])
        trip.save({"n": 2}, kind="automatic")
        fork = store.thread("trip").fork("fork", at="first")
        for n in range(70):
            fork.save({"n": n})
        trip.rewind(1)
        gone = store.thread("gone")
        gone.save({})
        gone.delete()
        store.thread("a\0b\ud800").save({})
        listed = {row["id"]: row for row in query(store, "SELECT * FROM {}.threads")}
        infos = {info.id: info for info in store.threads()}
        assert set(listed) == {"trip", "fork", r"a\000b\355\240\200"}
        for name in ("trip", "fork"):
            info, row = infos[name], listed[name]
            assert (row["kind"], row["agent"], row["step"], row["head_id"], row["forked_from"]) == (
                info.kind,
                info.agent,
                info.step,
                info.head_id,
                info.forked_from,
            )
            assert (row["created_at"], row["updated_at"]) == (info.created_at, info.updated_at)
        for name in ("trip", "fork"):
            thread = store.thread(name)
            rows = query(store, "SELECT * FROM {}.checkpoints WHERE thread_id = %s ORDER BY seq", name)
            known = [store.checkpoint(row["id"]) for row in rows]
            assert [
                (
                    c.id,
                    c.seq,
                    c.step,
                    c.parent_id,
                    c.label,
                    list(c.tags),
                    c.kind,
                    c.created_at,
                    c.size,
                    c.stored,
                    c.root,
                )
                for c in known
            ] == [tuple(row[key] for key in row if key not in ("thread_id", "thread_kind", "is_head")) for row in rows]
            assert [row["id"] for row in rows if row["is_head"]] == [thread.latest().id]
        assert len(query(store, "SELECT * FROM {}.checkpoints")) == 2 + 71 + 1


def test_tags_of_the_library_itself_are_not_shown(opener):
    with opener() as store:
        store.thread("t").save({}, tags=["b@", "a"])
        store._backend.commit(Batch(tag=((1, 1, "@"), (1, 1, "@x"), (1, 1, ""), (1, 1, "\0@"))))
        assert query(store, "SELECT tags FROM {}.checkpoints") == [{"tags": ["b@", "a", "", r"\000@"]}]


@pytest.mark.parametrize("seq", [1, 2, 65535, 65536, 1 << 31, (1 << 32) - 1])
def test_ids_are_made_as_the_library_makes_them(opener, seq):
    with opener() as store:
        for uid in (bytes(8), b"\xff" * 8, os.urandom(8)):
            (row,) = query(store, "SELECT {}.checkpoint_id_1(%s, %s) AS id", uid, seq)
            assert row["id"] == log.checkpoint_id(uid, seq)
