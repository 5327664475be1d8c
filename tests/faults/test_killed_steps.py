"""Migrations and imports that are killed: before every statement, every call to the disk, every exchange with a server.

What is there afterwards is the old format or the new one, whole; of an import, nothing or all. And whoever comes next
goes on from there. Versions that know only an older format refuse a newer one and leave it alone; who had the store
open before goes on beside those who have converted it.
"""

import contextlib
import itertools
import os
import shutil
import signal
from functools import partial
from unittest import mock

import apsw
import pytest
import zstandard

import backtrail
from backtrail.backends.file import directory, frames
from backtrail.backends.postgres import schema
from backtrail.backends.sqlite import schema as sqlite_schema
from backtrail.backends.sqlite.backend import SqliteBackend
from tests.backends.test_golden import DUMPS, FORMATS, GOLDEN, format_of, format_of_files
from tests.support import servers
from tests.support.disks import traced
from tests.support.lengths import lengths
from tests.support.proxy import BEFORE, SWALLOW, Proxy
from tests.support.sample_store import everything, furnish


def killed(work, arm):
    """Do work in a process that is to be killed on its way; tell whether it was. `arm(kill)` says where."""
    child = os.fork()
    if child == 0:
        try:
            with arm(lambda: os.kill(os.getpid(), signal.SIGKILL)):
                work()
            os._exit(0)
        finally:
            os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


@contextlib.contextmanager
def before_statement(number, kill, count=None):
    """Kill before SQLite runs its so many-th statement; `count` counts them."""
    count = count or itertools.count()

    def trace(_cursor, _sql, _bindings):
        if next(count) + 1 == number:
            kill()
        return True

    def hook(connection):
        connection.exec_trace = trace

    with mock.patch.object(apsw, "connection_hooks", [hook]):
        yield


@contextlib.contextmanager
def before_call(number, kill, count=None):
    """Kill before the so many-th call that changes something on disk; `count` counts them."""
    count = count or itertools.count()

    def before(_call):
        if next(count) + 1 == number:
            kill()

    with traced() as disk:
        disk.before = before
        yield


# ---- migrations -----------------------------------------------------------------------------------------------------


def tables_of(path):
    """The schema and the content of a database. FTS5's tables are rebuilt, so they are not compared."""
    with contextlib.closing(apsw.Connection(str(path))) as database:
        made = sorted(database.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'word_%'"))
        names = [name for kind, name, sql in made if kind == "table" and not sql.startswith("CREATE VIRTUAL")]
        held = {name: sorted(map(repr, database.execute(f"SELECT * FROM {name}"))) for name in names}
        return made, held, database.pragma("user_version") & 0xFF


@pytest.mark.parametrize("every", lengths(12, 1))
@pytest.mark.parametrize("golden", [None, *FORMATS[:-1]], ids=lambda path: path.stem if path else "nothing")
def test_killed_sqlite_migration_leaves_one_whole_format(golden, tmp_path, every):
    kill_migrations(golden, tmp_path, every)


def test_steps_that_are_no_transaction_would_be_found(tmp_path):
    def migrate(connection, path):
        while (found := sqlite_schema.format_of(connection, path)) < len(sqlite_schema.STEPS):
            sqlite_schema.STEPS[found](connection)
            sqlite_schema.run(connection, f"PRAGMA user_version = {found + 1}")

    with (
        mock.patch.object(sqlite_schema, "migrate", migrate),
        pytest.raises((AssertionError, backtrail.Error), match=r"At index 0 diff|already exists"),
    ):
        kill_migrations(FORMATS[0], tmp_path, 4)


def kill_migrations(golden, tmp_path, every):
    path, clean = tmp_path / "s.db", tmp_path / "clean.db"
    stages = {}
    steps = sqlite_schema.STEPS
    for newest in range(format_of(golden) if golden else 1, len(steps) + 1):
        if golden:
            shutil.copy(golden, clean)
        with mock.patch.object(sqlite_schema, "STEPS", steps[:newest]):
            backtrail.open(clean).close()
        stages[newest] = tables_of(clean)
        clean.unlink()
    seen = set()
    for number in itertools.count(1, every):
        if golden:
            shutil.copy(golden, path)
        done = not killed(lambda: backtrail.open(path).close(), partial(before_statement, number))
        if path.exists() and path.stat().st_size and (found := tables_of(path))[2]:
            assert found == stages[found[2]]
            seen.add(found[2])
            backtrail.open(path, read_only=True).close()
        with backtrail.open(path):
            pass
        assert tables_of(path) == stages[len(steps)]
        for beside in tmp_path.glob("s.db*"):
            beside.unlink()
        if done:
            break
    assert number > 12
    assert seen == set(stages) or every > 1
    assert {min(stages), max(stages)} <= seen | (set() if golden else {1})


@pytest.fixture(scope="module")
def own():
    with servers.Server() as server:
        yield server


@pytest.mark.parametrize("every", lengths(6, 1))
@pytest.mark.parametrize("kind", [BEFORE, SWALLOW])
def test_cut_postgresql_migration_leaves_one_whole_format(own, kind, every):
    dump = zstandard.ZstdDecompressor().decompress(DUMPS[0].read_bytes()).decode()
    counts = "SELECT (SELECT count(*) FROM golden.thread), (SELECT count(*) FROM golden.row)"
    columns = (
        "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = 'golden' "
        "UNION ALL SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = 'golden'::regnamespace ORDER BY 1, 2"
    )
    own.execute(dump)
    stages = {1: own.execute(columns)}
    held = own.execute(counts)
    for known in range(2, len(schema.STEPS) + 1):
        with mock.patch.object(schema, "STEPS", schema.STEPS[:known]):
            backtrail.open(own.url, schema="golden").close()
        stages[known] = own.execute(columns)
        assert stages[known] != stages[known - 1]
    seen = set()
    with Proxy(own.tcp_url) as proxy:
        for skip in itertools.count(0, every):
            own.drop_schema("golden")
            own.execute(dump)
            fault = proxy.fault(kind, skip=skip, times=3)  # it is tried again, which is to fail, too
            with contextlib.suppress(backtrail.Unavailable, backtrail.CommitUnknown):
                backtrail.open(f"{proxy.url}?connect_timeout=2", schema="golden").close()
            proxy.disarm()
            (found,) = own.execute("SELECT value FROM golden.meta WHERE name = 'format'")[0]
            assert own.execute(columns) == stages[found]
            seen.add(found)
            with backtrail.open(own.url, schema="golden") as store:
                assert store.thread("long").load("grown").step > 0
            assert (own.execute(columns), own.execute(counts)) == (stages[len(schema.STEPS)], held)
            if not fault.fired:
                break
        assert skip > 4
    own.drop_schema("golden")
    assert len(schema.STEPS) in seen
    assert 1 in seen or every > 1


# ---- imports --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """An export, and what is in a store after its import."""
    path = tmp_path_factory.mktemp("export") / "export"
    with backtrail.open("memory://") as store:
        furnish(store)
        store.export(path)
        return path, everything(store)


def check_import(opener, export, *, done):
    """Nothing of it is there, or all; and importing it again gives all."""
    path, whole = export
    with opener() as store:
        found = everything(store)
        assert found in ((whole,) if done else ({}, whole)), "a part of it"
        assert store.verify().ok
        store.import_(path)
        assert everything(store) == whole
        assert store.verify().ok
    return found == whole


@pytest.mark.parametrize("times", lengths(4, 1_000_000))
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_killed_import_is_all_or_nothing(kind, tmp_path, export, times):
    kill_imports(kind, tmp_path, export, times)


def test_an_import_that_is_no_group_would_be_found(tmp_path, export):
    with (
        mock.patch.object(SqliteBackend, "group", contextlib.nullcontext),
        pytest.raises(AssertionError, match="a part of it"),
    ):
        kill_imports("sqlite", tmp_path, export, 4)


def kill_imports(kind, tmp_path, export, times):
    """Kill imports at so many places, or at all if there are fewer."""
    at, arm = (tmp_path / "s.db", before_statement) if kind == "sqlite" else (tmp_path / "s", before_call)
    opener = partial(backtrail.open, at if kind == "sqlite" else at.as_uri())

    def work():
        with opener() as store:
            store.import_(export[0])

    def gone():
        for beside in tmp_path.glob("s*"):
            shutil.rmtree(beside) if beside.is_dir() else beside.unlink()

    count = itertools.count()
    with before_statement(0, None, count) if kind == "sqlite" else before_call(0, None, count):
        work()
    places = next(count)
    gone()
    outcomes = []
    for number in range(1, places + 1, max(places // times, 1)):
        assert killed(work, partial(arm, number))
        outcomes.append(check_import(opener, export, done=False))
        gone()
    assert not killed(work, partial(arm, places + 1))
    assert check_import(opener, export, done=True)
    assert len(outcomes) > 3
    assert not outcomes[0]


@pytest.mark.parametrize("every", lengths(60, 1))
@pytest.mark.parametrize("kind", [BEFORE, SWALLOW])
def test_cut_import_is_all_or_nothing(own, export, kind, every):
    with Proxy(own.tcp_url) as proxy:
        for skip in itertools.count(8, every):
            fault = proxy.fault(kind, skip=skip, times=1)
            with (
                contextlib.suppress(backtrail.Unavailable, backtrail.CommitUnknown),
                backtrail.open(proxy.url, schema="imported") as store,
            ):
                store.import_(export[0])
            proxy.disarm()
            check_import(partial(backtrail.open, own.url, schema="imported"), export, done=not fault.fired)
            own.drop_schema("imported")
            if not fault.fired:
                break
        assert skip > 60


# ---- versions -------------------------------------------------------------------------------------------------------


def refused(opener, formats):
    """Opening names the format of the store and the newest that is known."""
    for read_only in (False, True):
        with pytest.raises(backtrail.Invalid) as caught:
            opener(read_only=read_only)
        assert caught.value.code == "invalid.format"
        assert [f"format {formats[0]}" in str(caught.value), f"up to {formats[1]}" in str(caught.value)] == [True] * 2
        assert caught.value.details["format"] == formats[0]


@pytest.mark.parametrize("known", [1, 2, 3])
def test_older_version_refuses_sqlite_and_writes_nothing(known, tmp_path):
    path = tmp_path / "s.db"
    shutil.copy(GOLDEN / "format4.db", path)
    before = path.read_bytes()
    with mock.patch.object(sqlite_schema, "STEPS", sqlite_schema.STEPS[:known]):
        refused(partial(backtrail.open, path), (4, known))
    assert [found.name for found in tmp_path.iterdir()] == ["s.db"]
    assert path.read_bytes() == before


def test_older_version_refuses_files_and_writes_nothing(tmp_path):
    with mock.patch.object(frames, "FORMAT", 2):
        backtrail.open((tmp_path / "newer").as_uri()).close()
    assert format_of_files(tmp_path / "newer") == 2
    before = {found.name: found.read_bytes() for found in (tmp_path / "newer").iterdir()}
    refused(partial(backtrail.open, (tmp_path / "newer").as_uri()), (2, 1))
    assert {found.name: found.read_bytes() for found in (tmp_path / "newer").iterdir()} == before


def test_older_version_refuses_postgresql_and_writes_nothing():
    with servers.place() as opener:
        opener().close()
        meta = f"SELECT * FROM {opener.keywords['schema']}.meta ORDER BY name"
        before = servers.server().execute(meta)
        with mock.patch.object(schema, "STEPS", schema.STEPS[:1]):
            refused(opener, (3, 1))
        assert servers.server().execute(meta) == before


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_version_that_ignores_the_format_is_found(kind, tmp_path, monkeypatch):
    if kind == "sqlite":
        monkeypatch.setattr(sqlite_schema, "format_of", lambda connection, path: len(sqlite_schema.STEPS))
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            test_older_version_refuses_sqlite_and_writes_nothing(3, tmp_path)
    else:
        parsed = directory._parsed
        monkeypatch.setattr(directory, "_parsed", lambda said, path: parsed(said.replace("files 2", "files 1"), path))
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            test_older_version_refuses_files_and_writes_nothing(tmp_path)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_open_old_store_works_beside_a_migrated_one(kind, tmp_path):
    """What the new format keeps of every write is kept of theirs, too: by the database itself."""
    schemas = sqlite_schema if kind == "sqlite" else schema
    with contextlib.ExitStack() as stack:
        opener = (
            partial(backtrail.open, tmp_path / "s.db") if kind == "sqlite" else stack.enter_context(servers.place())
        )
        with mock.patch.object(schemas, "STEPS", schemas.STEPS[:-1]):
            old = stack.enter_context(opener())
            old.thread("t", agent="a").save({"messages": []})
        new = stack.enter_context(opener())
        for n in range(40):
            (old, new)[n % 2].thread("t", agent="a").append("messages", f"message number{n}")
        for store in (old, new):
            assert store.thread("t").load().state["messages"] == [f"message number{n}" for n in range(40)]
        old.thread("of the old", agent="a").save({"messages": ["written by the old one"]})
        assert [stand.record.name for stand in new._backend.tips("a", touched=True)] == ["t", "of the old"]
        for name in ("t", "of the old", "t"):
            new.thread(name).set("by", name)
            assert [[info.id for info in store.threads(limit=1)] for store in (old, new)] == [[name]] * 2
        assert [hit.conversation_id for hit in new.search("old", kind="thread")] == ["of the old"]
        old.thread("of the old").set("messages", ["written later"])
        assert [len(store.search("later", kind="thread")) for store in (new, old)] == [1, 1]
        assert new.verify().ok
