"""What goes wrong with PostgreSQL is one of our errors, with a code, and says what to do; nothing is half done."""

import contextlib
import os
import subprocess
import threading
import time
import traceback
import uuid
from functools import partial

import psycopg
import pytest
from click.testing import CliRunner

import backtrail
from backtrail.backends.postgres import schema as postgres_schema
from backtrail.cli.main import cli
from tests.support import servers

SECRET = "s3cret-Zq7"


@pytest.fixture(scope="module")
def own():
    with servers.Server() as server:
        yield server


@pytest.fixture
def opener(own):
    with servers.place(own) as opener:
        yield opener


@pytest.fixture
def role(own, opener):
    """A role that may do nothing yet, and a URL by which it comes in."""
    name = f"guarded_{uuid.uuid4().hex[:8]}"
    own.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    yield name
    own.execute(f"DROP OWNED BY {name}")
    own.execute(f"DROP ROLE {name}")


def url_of(own, role, password=SECRET, *, database="postgres"):
    return f"postgresql://{role}:{password}@127.0.0.1:{own.port}/{database}"


@contextlib.contextmanager
def refused(kind, code):
    """Require that the block raises this error, with a message of one or two sentences."""
    with pytest.raises(backtrail.Error) as caught:
        yield caught
    assert (type(caught.value), caught.value.code) == (kind, code), caught.value
    assert len(str(caught.value).split()) > 5


def everything_said(error):
    """All that an error shows when it is printed, logged or inspected."""
    said = []
    while error is not None:
        said += [str(error), repr(error), repr(error.args), repr(getattr(error, "details", None))]
        said += traceback.format_exception(error)
        error = error.__cause__ or error.__context__
    return "\n".join(said)


# ---- addresses and passwords ----------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_and_never_shown(own, role, caplog, capfd):
    caplog.set_level(0)
    wrong = f"{SECRET}-wrong"
    urls = [
        url_of(own, role, wrong),
        f"postgresql://{role}@127.0.0.1:{own.port}/postgres?password={wrong}",
        f"postgresql:///postgres?host=127.0.0.1&port={own.port}&user={role}&password={wrong}&connect_timeout=5",
        f"postgres://{role}:{wrong.replace('-', '%2D')}@127.0.0.1:{own.port}/postgres?pool_size=3",
    ]
    for url in urls:
        with refused(backtrail.Unavailable, "unavailable.login") as caught:
            backtrail.open(url)
        said = everything_said(caught.value)
        assert role in said
        assert SECRET not in said
        assert wrong.replace("-", "%2D") not in said
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capfd.readouterr())


def test_a_right_password_is_not_shown_either(own, role, caplog):
    caplog.set_level(0)
    own.execute(f"GRANT CREATE ON DATABASE postgres TO {role}")
    with backtrail.open(url_of(own, role), schema=f"of_{role}") as store:
        store.thread("t").save({"n": 1})
        shown = [repr(part) for part in (store, store._backend, store.thread("t"), store.thread("t").latest())]
    with pytest.raises(backtrail.Unavailable) as caught:
        store.thread("t").load()
    assert SECRET not in "\n".join([*shown, everything_said(caught.value), caplog.text])


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:port/db",
        f"postgresql://me:{SECRET}@127.0.0.1:123456/db",
        f"postgresql://me:{SECRET}@[::1/db",
        f"postgresql://me:{SECRET}%zz@127.0.0.1/db",
        f"postgresql://me:{SECRET}@127.0.0.1/db?no_such_parameter=1",
        f"postgresql://me:x@127.0.0.1/db?passwort={SECRET}",
        f"postgresql://me:x@127.0.0.1/db?{SECRET}",
        f"postgresql://me:{SECRET}",  # the host was forgotten
        f"postgresql://me:{SECRET}/db",
        f"postgresql://me:x/{SECRET}@127.0.0.1/db",  # not escaped, as all from here on
        f"postgresql://me:1/{SECRET}@127.0.0.1/db",
        f"postgresql://me:x@{SECRET}@127.0.0.1/db",
        f"postgresql://me:{SECRET}#@127.0.0.1:x/db",
        f"postgresql:/me:{SECRET}@127.0.0.1/db",
        f"postgresql:me:{SECRET}@127.0.0.1/db",
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1/db",
    ],
)
def test_malformed_url_is_refused_without_being_shown(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(backtrail.Invalid, "invalid.url") as caught:
        backtrail.open(url)
    assert SECRET not in everything_said(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_any_libpq_address_works(own):
    """Parameters with spaces in them, several hosts, and our own parameter among libpq's."""
    options = "options=-c%20jit%3Doff%20-c%20work_mem%3D4321kB"
    url = f"postgresql://postgres@127.0.0.1:{servers.free_port()},127.0.0.1:{own.port}/postgres"
    with servers.place(own) as opener:
        schema = opener.keywords["schema"]
        with backtrail.open(f"{url}?{options}&pool_size=1&connect_timeout=5", schema=schema) as store:
            store.thread("t").save({"n": 1})
            with store._backend._pool.connect() as connection:
                assert connection.execute("SHOW work_mem").fetchone() == ("4321kB",)


def test_unreachable_server_is_reported_at_once(own):
    began = time.monotonic()
    with refused(backtrail.Unavailable, "unavailable.connection") as caught:
        backtrail.open(f"postgresql://me:{SECRET}@no-such-host.invalid/db")
    assert "no-such-host.invalid" in str(caught.value)
    assert SECRET not in everything_said(caught.value)
    with refused(backtrail.Unavailable, "unavailable.connection") as caught:
        backtrail.open(f"postgresql://me:{SECRET}@127.0.0.1:{servers.free_port()}/db")
    assert SECRET not in everything_said(caught.value)
    with refused(backtrail.Unavailable, "unavailable.open") as caught:
        backtrail.open(f"postgresql://postgres@127.0.0.1:{own.port}/no_such_database")
    assert "no_such_database" in str(caught.value)
    assert time.monotonic() - began < 25


# ---- schemas --------------------------------------------------------------------------------------------------------


def test_missing_schema_is_not_created_without_the_right(own, opener, role):
    schema = opener.keywords["schema"]
    with refused(backtrail.NotFound, "not_found.store"):
        opener(read_only=True)
    with refused(backtrail.Unavailable, "unavailable.permission") as caught:
        backtrail.open(url_of(own, role), schema=schema)
    assert SECRET not in everything_said(caught.value)
    own.execute(f"CREATE SCHEMA {schema}")
    with refused(backtrail.NotFound, "not_found.store"):
        opener(read_only=True)
    with refused(backtrail.Unavailable, "unavailable.permission"):
        backtrail.open(url_of(own, role), schema=schema)
    own.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}")
    with backtrail.open(url_of(own, role), schema=schema) as store:
        store.thread("t").save({"n": 1})


TABLES = [
    "CREATE TABLE {}.row (id int)",
    "CREATE TABLE {}.meta (id int)",
    "CREATE TABLE {}.meta (name text, value bigint)",
    "CREATE TABLE {}.meta (name int, value text)",
    "CREATE VIEW {}.thread AS SELECT 1 AS n",
    "CREATE TABLE {}.meta (name text, value bigint); INSERT INTO {}.meta VALUES ('format', 1), ('backtrail', 1)",
]


@pytest.mark.parametrize("tables", TABLES)
@pytest.mark.parametrize("read_only", [False, True])
def test_foreign_schema_is_left_alone(own, opener, tables, read_only):
    schema = opener.keywords["schema"]
    own.execute(f"CREATE SCHEMA {schema}")
    for statement in tables.replace("{}", schema).split("; "):
        own.execute(statement)
    listed = f"SELECT relname, relkind FROM pg_class WHERE relnamespace = '{schema}'::regnamespace ORDER BY 1"
    before = own.execute(listed)
    with refused(backtrail.Invalid, "invalid.store"):
        opener(read_only=read_only)
    assert own.execute(listed) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_a_newer_format_is_left_alone(own, opener, read_only):
    opener().close()
    own.execute(f"UPDATE {opener.keywords['schema']}.meta SET value = 99 WHERE name = 'format'")
    with refused(backtrail.Invalid, "invalid.format"):
        opener(read_only=read_only)


@pytest.mark.parametrize(
    "name", ['Aa "b"; DROP SCHEMA public', "naïve", "a.b", "x'y", "%s", "{0}", "$1", "\\", "a" * 63]
)
def test_a_schema_may_have_any_name(own, name):
    try:
        for n in range(2):
            with backtrail.open(own.url, schema=name) as store:
                store.thread("t").append("n", n) if n else store.thread("t").save({"n": [0]})
                assert store.thread("t").load().state == {"n": list(range(n + 1))}
                assert store.gc().chunks == 0
        assert own.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", (name,)) == [(1,)]
    finally:
        own.drop_schema(name)


@pytest.mark.parametrize("name", ["", "a" * 64, "é" * 32, "pg_mine", "information_schema", "a$$b", "a\0b", "\ud800", 7])
def test_invalid_schema_name_is_refused(own, name):
    with refused(backtrail.Invalid, "invalid.argument"):
        backtrail.open(own.url, schema=name)


def test_a_server_that_is_too_old_is_refused(opener, monkeypatch):
    monkeypatch.setattr(postgres_schema, "OLDEST_SERVER", 990000)
    with refused(backtrail.Unavailable, "unavailable.server") as caught:
        opener()
    assert "99" in str(caught.value)


# ---- what may only be read ------------------------------------------------------------------------------------------


def check_read_only(opener, *, code=None):
    """The store can be read; a write is refused and changes nothing. `code`: the same without `read_only`."""
    for options in ({"read_only": True}, {})[: 1 if code is None else 2]:
        with opener(**options) as store:
            assert store.thread("t").load().state == {"n": 1, "text": "x" * 20_000}
            assert len(list(store.threads())) == 1
            assert store.verify().ok
            for write in (
                lambda store=store: store.thread("t").set("n", 2),
                lambda store=store: store.thread("new").save({"n": 2, "text": "y" * 20_000}),
                lambda store=store: store.thread("t").tag("@", "tag"),
                store.gc,
            ):
                with refused(backtrail.Unavailable, "unavailable.read_only" if options else code):
                    write()
            assert store.thread("t").load().state["n"] == 1
            assert store.thread("new").latest() is None


def a_store(opener):
    with opener() as store:
        store.thread("t").save({"n": 1, "text": "x" * 20_000})


def test_a_role_that_may_only_select_reads(own, opener, role):
    a_store(opener)
    schema = opener.keywords["schema"]
    own.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    own.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    check_read_only(partial(backtrail.open, url_of(own, role), schema=schema), code="unavailable.permission")


def test_role_without_select_gets_a_permission_error(own, opener, role):
    a_store(opener)
    own.execute(f"GRANT USAGE ON SCHEMA {opener.keywords['schema']} TO {role}")
    with refused(backtrail.Unavailable, "unavailable.permission"):
        backtrail.open(url_of(own, role), schema=opener.keywords["schema"])


def test_read_only_database_can_be_read(own, opener, role):
    a_store(opener)
    schema = opener.keywords["schema"]
    own.execute(f"GRANT ALL ON SCHEMA {schema} TO {role}")
    own.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    own.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    check_read_only(partial(backtrail.open, url_of(own, role), schema=schema))
    for name in (schema, f"{schema}_new"):
        with refused(backtrail.Unavailable, "unavailable.read_only"):
            backtrail.open(url_of(own, role), schema=name)


def test_a_hot_standby_is_read(own, opener):
    a_store(opener)
    with servers.Standby(own) as standby:
        there = f"SELECT count(*) FROM {opener.keywords['schema']}.row"
        servers.wait_for(lambda: standby.execute(there) == [(1,)])
        other = partial(backtrail.open, standby.url, schema=opener.keywords["schema"])
        check_read_only(other)
        with refused(backtrail.Unavailable, "unavailable.read_only"):
            other()
        with opener() as writer, other(read_only=True) as reader:
            writer.thread("t").set("n", 2)
            servers.wait_for(lambda: reader.thread("t").load().state["n"] == 2)


# ---- a server that cannot just now ----------------------------------------------------------------------------------


def test_error_names_a_lack_of_connections(own, opener, role):
    a_store(opener)
    own.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    own.execute(f"GRANT ALL ON SCHEMA {opener.keywords['schema']} TO {role}")
    own.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {opener.keywords['schema']} TO {role}")
    url = url_of(own, role)
    with psycopg.connect(url), refused(backtrail.Unavailable, "unavailable.connections"):
        backtrail.open(url, schema=opener.keywords["schema"])
    # The server counts a closed connection until its process has ended.
    servers.wait_for(lambda: own.execute(f"SELECT 1 FROM pg_stat_activity WHERE usename = '{role}'") == [])
    with backtrail.open(url, schema=opener.keywords["schema"]) as store:
        assert store.thread("t").load().state["n"] == 1


def test_writers_wait_for_a_server_without_free_connections():
    with servers.Server(max_connections=8, superuser_reserved_connections=0) as server:
        with backtrail.open(server.url) as store, contextlib.ExitStack() as held:
            store.thread("t").save({"items": []})
            with pytest.raises(psycopg.OperationalError):
                for _ in range(8):
                    held.enter_context(server.connect())
            with refused(backtrail.Unavailable, "unavailable.connections"):
                backtrail.open(server.url)
            store.thread("t").append("items", 1)
        with backtrail.open(server.url) as store:
            assert store.thread("t").load().state == {"items": [1]}


def test_statement_timeout_of_the_server_leaves_nothing(own, opener, role):
    a_store(opener)
    schema = opener.keywords["schema"]
    own.execute(f"GRANT ALL ON SCHEMA {schema} TO {role}")
    own.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    own.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
    own.execute(f"ALTER ROLE {role} SET statement_timeout = '100ms'")
    with backtrail.open(url_of(own, role), schema=schema) as store:
        with own.connect() as holder, holder.transaction():
            holder.execute(f"LOCK TABLE {schema}.row IN SHARE MODE")
            with refused(backtrail.Unavailable, "unavailable.cancelled"):
                store.thread("t").set("n", 2)
            with refused(backtrail.Unavailable, "unavailable.cancelled"), store.transaction():
                store.thread("t").set("n", 3)
                store.thread("new").save({"n": 3, "text": "z" * 20_000})
        assert store.thread("t").load().state["n"] == 1
        assert store.thread("new").latest() is None
        store.thread("t").set("n", 4)
    with opener() as store:
        assert [c.state["n"] for c in store.thread("t").history()] == [1, 4]


def test_saves_wait_for_a_server_that_restarts():
    with servers.Server() as server, backtrail.open(server.url) as store:
        thread = store.thread("t")
        thread.save({"n": 0, "parts": []})
        stopped, saved = threading.Event(), threading.Semaphore(0)

        def save():
            n = 0
            while not stopped.is_set():
                n += 1
                thread.save({"n": n, "parts": [os.urandom(50_000) for _ in range(40)]})
                saved.release()

        saver = threading.Thread(target=save)
        saver.start()
        for _ in range(3):
            assert saved.acquire(timeout=60)
            assert saved.acquire(timeout=60)
            server.stop()
            time.sleep(0.2)
            server.start()
        stopped.set()
        saver.join()
        numbers = [c.get("n") for c in thread.history()]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > 6
        assert store.verify().ok


@pytest.fixture
def small_disk():
    """A directory on a file system of 24 MB, on which PostgreSQL may write."""
    directory = servers.home() / f"small{uuid.uuid4().hex[:8]}"
    servers.run("mkdir", "-m", "777", directory)
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=777", "backtrail", directory]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here, which needs root: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", directory], check=True)
    directory.rmdir()


def test_full_disk_leaves_nothing_half_done(small_disk):
    space = small_disk / "space"
    servers.run("mkdir", space)
    with servers.Server(autovacuum="off") as server:
        server.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
        server.execute("ALTER DATABASE postgres SET default_tablespace = 'small'")
        with backtrail.open(server.url) as store:
            saved = []
            with refused(backtrail.Unavailable, "unavailable.full"):
                for n in range(100):
                    with store.transaction():
                        store.thread("t").save({"n": n, "parts": [os.urandom(100_000) for _ in range(10)]})
                        store.thread("u").save({"n": n})
                    saved.append(n)
            assert 3 < len(saved) < 40
            assert store.thread("t").load().state["n"] == store.thread("u").load().state["n"] == saved[-1]
            with pytest.raises(backtrail.Unavailable):
                store.thread("t").save({"parts": [os.urandom(100_000) for _ in range(100)]})
            assert [c.get("n") for c in store.thread("t").history()] == saved
            assert store.verify().ok
            subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
            store.thread("t").save({"n": "more", "parts": [os.urandom(100_000) for _ in range(100)]})
            assert store.thread("t").load().state["n"] == "more"


# ---- a store that was taken away ------------------------------------------------------------------------------------


def test_dropped_schema_is_reported_as_gone(own, opener):
    with opener() as store:
        store.thread("t").save({"n": 1})
        own.drop_schema(opener.keywords["schema"])
        with refused(backtrail.NotFound, "not_found.store"):
            store.thread("t").load()
        with refused(backtrail.NotFound, "not_found.store"):
            store.thread("t").save({"n": 2})


def test_terminated_session_reconnects(own, opener):
    with opener() as store:
        thread = store.thread("t")
        thread.save({"items": []})
        for n in range(5):
            own.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'backtrail'")
            thread.append("items", n)
        assert thread.load().state == {"items": [0, 1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:s3cret@db.example:5432/agents?sslmode=require", "postgresql://me@db.example:5432/agents"),
        ("postgresql://me@db.example/agents", "postgresql://me@db.example/agents"),
        ("postgresql:///agents?password=s3cret", "postgresql:///agents"),
        ("postgresql://me:s3cret", "postgresql://..."),
        ("postgresql://me:s3c@ret@db.example/agents", "postgresql://..."),
        ("postgresql://me:s3c/ret@db.example/agents", "postgresql://me@db.example/agents"),
        ("postgresql:me:s3cret", "postgresql://..."),
        ("sqlite:///agents.db", "sqlite:///agents.db"),
    ],
)
def test_the_command_where_shows_no_password(url, said, monkeypatch):
    monkeypatch.setenv("BACKTRAIL_URL", url)
    done = CliRunner().invoke(cli, ["where"])
    assert (done.exit_code, done.output) == (0, said + "\n")
