"""Tests of the test tools: servers restart after a crash with all commits, and each fault has its effect."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import psycopg
import pytest

import backtrail
from tests.support import schemas, servers
from tests.support.proxy import BEFORE, DURING, STALL, SWALLOW, Proxy

INSERT = "INSERT INTO t VALUES (%s)"


@pytest.fixture(scope="module")
def own():
    with servers.Server() as server:
        server.execute("CREATE TABLE t (n int)")
        yield server


@pytest.fixture
def table(own):
    own.execute("TRUNCATE t")
    return lambda: [n for (n,) in own.execute("SELECT n FROM t ORDER BY n")]


@pytest.fixture
def proxy(own, table):
    with Proxy(own.tcp_url) as proxy:
        yield proxy


def connect(proxy, **options):
    return psycopg.connect(proxy.url, autocommit=True, **options)


# ---- servers --------------------------------------------------------------------------------------------------------


def test_crash_keeps_exactly_the_committed_data():
    with servers.Server() as server:
        server.execute("CREATE TABLE t (n int)")
        address = server.url, server.tcp_url
        for round_ in range(3):
            with psycopg.connect(server.url) as connection:
                connection.execute(INSERT, (round_,))
                connection.commit()
                connection.execute(INSERT, (100,))
                processes = psutil.Process(connection.info.backend_pid), *psutil.Process(server._process.pid).children()
                server.kill()
                assert all(map(servers.gone, processes))
                with pytest.raises(psycopg.OperationalError):
                    connection.execute("SELECT 1")
            with pytest.raises(psycopg.OperationalError):
                server.execute("SELECT 1")
            server.start()
            assert (server.url, server.tcp_url) == address
            assert server.execute("SELECT n FROM t ORDER BY n") == [(n,) for n in range(round_ + 1)]
        assert "not properly shut down" in server.log()
        assert server.execute("SHOW fsync") == [("on",)]
        server.restart()
        assert server.execute("SELECT count(*) FROM t") == [(3,)]
    assert not server.directory.exists()


def test_guarded_roles_need_a_password(own):
    own.execute("CREATE ROLE guarded_one LOGIN PASSWORD 'right'")
    address = own.tcp_url.replace("postgres@", "guarded_one:{}@")
    psycopg.connect(address.format("right")).close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address.format("wrong"))


LEFT_ALONE = """
import os, signal, sys
sys.path[:0] = sys.argv[1:]
from tests.support import schemas
from tests.support import servers
server = servers.Server()
server.start()
print(server._process.pid, servers.home(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_process_that_was_killed():
    done = subprocess.run(
        [sys.executable, "-c", LEFT_ALONE, *sys.path, os.getcwd()],  # noqa: PTH109 - tests are run from the root
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, home = done.stdout.split()
    servers.wait_for(lambda: not os.path.exists(home))  # noqa: PTH110
    assert not psutil.pid_exists(int(pid)) or servers.gone(psutil.Process(int(pid)))


def test_schemas_of_a_place_are_dropped():
    schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
    with servers.place() as opener:
        name = opener.keywords["schema"]
        servers.server().execute(f"CREATE SCHEMA {name} CREATE TABLE t (n int)")
        assert servers.server().execute(schemas, (name,)) == [(1,)]
    assert servers.server().execute(schemas, (name,)) == [(0,)]


def everything_in(schema):
    """All rows, sequences and definitions of a schema."""
    found = {}
    listed = "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1"
    for name, kind in servers.server().execute(listed, (schema,)):
        rows = servers.server().execute(f"SELECT * FROM {schema}.{name}") if kind in "rpS" else []
        found[name] = kind, [row[::2] for row in rows] if kind == "S" else sorted(rows)  # not how far its log is ahead
    return found


@pytest.mark.parametrize("slack", [0, 1 << 30])
def test_swept_schema_equals_a_new_one(monkeypatch, slack):
    monkeypatch.setattr(schemas, "_spare", [])
    monkeypatch.setattr(schemas, "_SLACK", slack)
    with schemas.swept() as opener:
        name = opener.keywords["schema"]
        new, size = everything_in(name), schemas._size(name)
        with opener() as store:
            thread = store.thread("t", agent="a")
            thread.save({"messages": [{"content": "fox " * 3000}]}, tags=["x"])
            thread.append("messages", {"content": "dog"})
            assert len(store.search("dog")) == 1
            store.agents.save(backtrail.AgentState("a", "A", "x"))
            store.agents.delete("a")
            store.gc()
        assert everything_in(name) != new
    assert schemas._spare == [name]
    with schemas.swept() as opener:
        assert opener.keywords["schema"] == name
        assert everything_in(name) == new
        assert schemas._size(name) <= size + slack


def test_schema_in_use_is_dropped_not_swept(monkeypatch):
    monkeypatch.setattr(schemas, "_spare", [])
    with servers.server().connect(application_name="backtrail") as other:
        with schemas.swept() as opener:
            store = opener()
            store.thread("t").save(1)
            other.execute("BEGIN")
        assert schemas._spare == []
        other.execute("COMMIT")
    with pytest.raises(backtrail.Error, match="closed"):
        store.thread("t").load()


def test_reused_connection_is_like_a_new_one():
    asked = (
        "SELECT pg_backend_pid(), current_setting('lock_timeout'), (SELECT count(*) FROM pg_prepared_statements), "
        "(SELECT count(*) FROM pg_listening_channels()), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
    )
    with schemas.swept() as opener:
        seen = []
        for _ in range(2):
            with opener() as store:
                session = store._backend._pool.take()
                seen.append(session.connection.execute(asked).fetchone())
                session.script(
                    "SET lock_timeout = '7s'; LISTEN there; SELECT pg_advisory_lock(1); PREPARE p AS SELECT 1"
                )
                seen.append(session.connection.execute(asked).fetchone())
                store._backend._pool.give(session)
    new, used, again, _ = seen
    assert used == (new[0], "7s", new[2] + 1, 1, 1)
    assert again == (new[0], "0", new[2], 0, 0)


def test_busy_or_lost_connection_is_not_used_again():
    with schemas.swept() as opener:
        before = None
        for spoil in ("BEGIN", "SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1"):
            with opener() as store:
                session = store._backend._pool.take()
                assert session.connection.info.backend_pid != before
                before = session.connection.info.backend_pid
                with contextlib.suppress(psycopg.Error):
                    session.script(spoil)
                store._backend._pool.give(session)
                store.thread("t").save({})


# ---- the proxy ------------------------------------------------------------------------------------------------------


def test_without_faults_everything_passes(proxy, own):
    with connect(proxy) as connection:
        connection.execute(INSERT, (1,))
        assert connection.execute("SELECT repeat('x', 3000000)").fetchone() == ("x" * 3_000_000,)
        assert connection.execute("SELECT length(%s)", ("x" * 3_000_000,)).fetchone() == (3_000_000,)
        with connection.cursor().copy("COPY t FROM STDIN") as copy:
            for n in range(2, 5_000):
                copy.write_row((n,))
        with connection.pipeline():
            cursors = [connection.execute("SELECT %s::int", (n,)) for n in range(500)]
        assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(500)]
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (4_999,)
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        connection.execute("LISTEN word")
        own.execute("NOTIFY word, 'heard'")
        assert [n.payload for n in connection.notifies(timeout=5, stop_after=1)] == ["heard"]
        connection.cancel_safe(timeout=5)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert "LISTEN word" in proxy.seen


@pytest.mark.parametrize("prepare", [0, None])
def test_dropped_reply_follows_a_completed_statement(proxy, table, prepare):
    with connect(proxy, prepare_threshold=prepare) as connection:
        connection.execute(INSERT, (0,))
        fault = proxy.fault(SWALLOW, sql="insert", skip=1)
        connection.execute("SELECT 1")
        connection.execute(INSERT, (1,))
        assert not fault.fired
        with pytest.raises(psycopg.OperationalError):
            connection.execute(INSERT, (2,))
    assert table() == [0, 1, 2]
    assert [(f.sql, f.status, f.failed) for f in fault.fired] == [("INSERT INTO t VALUES ($1)", "I", False)]
    with connect(proxy) as connection:
        connection.execute(INSERT, (3,))
    assert table() == [0, 1, 2, 3]


def test_a_swallowed_commit_is_committed(proxy, table):
    fault = proxy.fault(SWALLOW, sql="^commit")
    connection = psycopg.connect(proxy.url)
    connection.execute(INSERT, (1,))
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert table() == [1]
    assert [f.status for f in fault.fired] == ["I"]


def test_swallowed_reply_in_a_transaction_is_an_error(proxy, table):
    fault = proxy.fault(SWALLOW, sql="insert|divided", times=2)
    for statement in ("INSERT INTO t VALUES (1)", "SELECT 1 / (SELECT count(*) FROM t) AS divided"):
        connection = psycopg.connect(proxy.url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(statement)
    assert table() == []
    assert [(f.status, f.failed) for f in fault.fired] == [("T", False), ("E", True)]


def test_connection_cut_before_a_statement_prevents_it(proxy, table):
    fault = proxy.fault(BEFORE, sql="insert")
    with connect(proxy) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute(INSERT, (1,))
    time.sleep(0.05)
    assert table() == []
    assert len(fault.fired) == 1


def test_cut_statement_still_completes_on_the_server(proxy, table):
    fault = proxy.fault(DURING, sql="insert")
    with connect(proxy) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO t SELECT 1 FROM pg_sleep(0.3)")
    assert table() == []
    servers.wait_for(lambda: table() == [1], seconds=5)
    assert len(fault.fired) == 1


def test_an_answer_is_held_back_until_it_is_released(proxy, table):
    fault = proxy.fault(STALL, sql="insert")
    with connect(proxy) as connection, connect(proxy) as other:
        done = threading.Event()
        writer = threading.Thread(target=lambda: (connection.execute(INSERT, (1,)), done.set()))
        writer.start()
        servers.wait_for(lambda: table() == [1], seconds=5)
        assert other.execute("SELECT 1").fetchone() == (1,)
        assert not done.wait(0.1)
        proxy.release()
        assert done.wait(5)
        writer.join()
    assert [f.status for f in fault.fired] == ["I"]


def test_connection_fails_while_the_server_is_away(proxy, table):
    connection = connect(proxy)
    proxy.leave()
    with pytest.raises(psycopg.OperationalError):
        connection.execute(INSERT, (1,))
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(proxy)
    proxy.come_back()
    connect(proxy).close()
    proxy.leave(0.2)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(proxy)
    time.sleep(0.3)
    with connect(proxy) as connection:
        connection.execute(INSERT, (2,))
    assert table() == [2]


def test_a_fault_may_take_all_other_connections_with_it(proxy, table):
    with connect(proxy) as connection, connect(proxy) as other:
        fault = proxy.fault(SWALLOW, sql="insert", leave=True)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(INSERT, (1,))
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(proxy)
    assert [f.status for f in fault.fired] == ["I"]
    assert table() == [1]


def test_a_cut_ends_connections_and_lets_new_ones_in(proxy):
    connection = connect(proxy)
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connect(proxy).close()


def test_faults_that_did_not_happen_can_be_taken_back(proxy, table):
    proxy.fault(BEFORE)
    proxy.disarm()
    with connect(proxy) as connection:
        connection.execute(INSERT, (1,))
    assert table() == [1]


def test_the_faults_of_several_connections_are_counted_together(proxy, table):
    fault = proxy.fault(SWALLOW, sql="insert", skip=2, times=2)
    done = []
    for n in range(5):
        with connect(proxy) as connection:
            try:
                connection.execute(INSERT, (n,))
                done.append(n)
            except psycopg.OperationalError:
                pass
    assert done == [0, 1, 4]
    assert len(fault.fired) == 2
    assert table() == [0, 1, 2, 3, 4]


# ---- PgBouncer ------------------------------------------------------------------------------------------------------


def test_bouncer_shares_connections_and_can_be_restarted(own, table):
    with servers.pgbouncer(own, pool=2) as bouncer:
        connections = [psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) for _ in range(8)]
        backends = {c.execute("SELECT pg_backend_pid()").fetchone()[0] for c in connections for _ in range(3)}
        assert len(backends) <= 2
        bouncer.restart()
        with pytest.raises(psycopg.OperationalError):
            connections[0].execute("SELECT 1")
        with psycopg.connect(bouncer.url, autocommit=True) as connection:
            connection.execute(INSERT, (1,))
        for connection in connections:
            connection.close()
    assert table() == [1]
