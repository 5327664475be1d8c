"""What PostgreSQL makes of it: plans that use indexes however much there is, and views that people can read."""

import itertools
import json
import os
import time

import psycopg
import pytest

import backtrail
from backtrail.backends.port import Batch, NewThread
from backtrail.backends.postgres.backend import _range
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
    assert "thread_activity" in {node.get("Index Name") for node in nodes}
    listed = [info.id for info in full.threads(limit=20)]
    assert listed == [f"thread {at:06}" for at in range(3999, 3979, -1)]


def test_tips_of_an_agent_are_read_by_indexes(full):
    backend = full._backend
    for statement, indexes in (
        (backend._sql["touched_tips"], {"thread_touched"}),
        (backend._sql["tips"], {"thread_agent", "thread_without_head"}),
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
                    f"UPDATE {schema}.thread SET newest = newest + 1, updated_at = 7 WHERE no = %s", (no,)
                )
                found.append(connection.execute(counts).fetchone())
        assert found == [(1, 1), (2, 1), (1, 1)]
        assert query(store, "SELECT touched FROM {}.thread ORDER BY no") == [{"touched": True}] * 2


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
