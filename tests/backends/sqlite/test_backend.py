"""Tests of the SQLite backend only: files, locks, forks, failing disks, formats."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import backtrail
from backtrail.backends.port import Batch, NewThread, Row, Stale
from backtrail.backends.sqlite import commit, schema
from backtrail.backends.sqlite import connection as sqlite_connection
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.backends.sqlite.statements import SQL
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Invalid, NotFound, Unavailable
from tests.support.lengths import lengths

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")

FORMAT = len(schema.STEPS)
NOBODY = 65534
_counter = itertools.count(1)


def row(seq, payload=b"payload", **fields):
    op_id = b"%d %d" % (os.getpid(), next(_counter))
    numbers = (1, 0, seq, seq, 0, 0, 0, 1, 0, 1000 + seq, 0)
    return Row(seq, *numbers, None, 10, 7, b"root", op_id, b"", b"check", payload, hidden=False)._replace(**fields)


def new(name, agent=None):
    return NewThread("thread", name, b"%d %d" % (os.getpid(), next(_counter)), agent, 5, None)


def start(backend, name="x", agent=None):
    (no,) = backend.commit(Batch(threads=(new(name, agent),), rows=((-1, row(1)),)))
    return no


def append(backend, no, **fields):
    """Append a row on top of whatever is there, however often others are faster, and return it."""
    while True:
        added = row(backend.newest(no).seq + 1, **fields)
        try:
            backend.commit(Batch(rows=((no, added),)))
        except Stale:
            continue
        return added


def op_ids(backend, no):
    return [found.op_id for found in backend.rows(no, [(1, 1 << 30)])]


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@contextmanager
def raises(kind, code):
    with pytest.raises(kind) as caught:
        yield
    assert caught.value.code == code


def in_child(work):
    """Run it in a forked child and return its exit status, 0 if it went well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the parent is to fail
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1]


def unprivileged(work):
    """Run it as a user to whom permissions apply."""
    if os.geteuid() != 0:
        work()
        return

    def as_nobody():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    assert in_child(as_nobody) == 0


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty") / "store"
    SqliteBackend(path).close()
    return path


@pytest.fixture
def path(tmp_path, empty_store):
    """The path of an empty store."""
    return Path(shutil.copy(empty_store, tmp_path / "store"))


@pytest.fixture
def backend(path):
    made = SqliteBackend(path, busy_timeout=5)
    yield made
    made.close()


@pytest.fixture
def quick_path(tmp_path):
    """A directory for tests that open many new files, in memory if there is such a place: each waits ten times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.fixture
def public_path(path):
    """The same, in directories that all users can enter."""
    for place in (path.parent, *itertools.islice(path.parents, 1, 4)):
        if place.owner() == path.owner() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o055)
    return path


class TestOpening:
    def test_new_store_creates_its_parent_directories(self, tmp_path):
        path = tmp_path / "a" / "b" / "store"
        SqliteBackend(path).close()
        assert [entry.name for entry in path.parent.iterdir()] == ["store"]

    def test_commits_survive_reopening(self, path):
        with_rows = SqliteBackend(path)
        no = start(with_rows)
        added = append(with_rows, no)
        with_rows.close()
        again = SqliteBackend(path)
        assert again.rows(no, [(2, 2)], payload=True) == [added]
        again.close()

    def test_file_has_the_application_id_and_format(self, backend, path):
        with backend._shared.use() as connection:
            found = {
                name: connection.pragma(name)
                for name in ("application_id", "user_version", "journal_mode", "auto_vacuum", "page_size")
            }
        assert found == {
            "application_id": 0x42545231,
            "user_version": FORMAT,
            "journal_mode": "wal",
            "auto_vacuum": 2,
            "page_size": 4096,
        }

    @pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b", "with space", "é😀", "file:x", os.fsdecode(b"\xff")])
    def test_any_file_name_will_do(self, tmp_path, name):
        made = SqliteBackend(tmp_path / name)
        start(made)
        assert {entry.name for entry in tmp_path.iterdir()} == {name, f"{name}-wal", f"{name}-shm"}
        made.close()
        reader = SqliteBackend(tmp_path / name, read_only=True)
        assert reader.find_thread("thread", "x")
        reader.close()

    def test_a_link_leads_to_the_store_itself(self, tmp_path, path):
        (tmp_path / "link").symlink_to(path)
        one, other = SqliteBackend(path), SqliteBackend(tmp_path / "link")
        no = start(one)
        assert other.newest(no) == one.newest(no)
        assert other.usage().stored_bytes == one.usage().stored_bytes
        one.close()
        other.close()

    @pytest.mark.parametrize("name", ["", ":memory:", "a\0b"])
    def test_invalid_file_name_is_refused(self, name):
        with raises(Invalid, "invalid.store"):
            SqliteBackend(name)

    @pytest.mark.parametrize("read_only", [False, True])
    def test_a_directory_is_refused(self, tmp_path, read_only):
        with raises(Invalid, "invalid.store"):
            SqliteBackend(tmp_path, read_only=read_only)
        assert list(tmp_path.iterdir()) == []

    def test_directory_with_a_file_store_is_named_as_such(self, tmp_path):
        backtrail.open(tmp_path.as_uri()).close()
        with pytest.raises(Invalid, match=f"use the URL {tmp_path.as_uri()}$"):
            SqliteBackend(tmp_path)

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize("text", [b"x", b"hello\n" * 1000, bytes(4096), b"SQLite format 3\0" + bytes(100)])
    def test_foreign_file_is_refused_and_unchanged(self, tmp_path, text, read_only):
        (tmp_path / "file").write_bytes(text)
        with raises(Invalid, "invalid.store"):
            SqliteBackend(tmp_path / "file", read_only=read_only)
        assert contents(tmp_path) == {"file": text}

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize("mode", ["wal", "delete", "persist"])
    @pytest.mark.parametrize(
        "made",
        ["CREATE TABLE t (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 1", "CREATE VIEW v AS SELECT 1"],
    )
    def test_foreign_database_is_refused_and_left_alone(self, tmp_path, made, mode, read_only):
        foreign = apsw.Connection(str(tmp_path / "file"))
        foreign.pragma("journal_mode", mode)
        foreign.execute(made)
        foreign.close()
        before = contents(tmp_path)
        with raises(Invalid, "invalid.store"):
            SqliteBackend(tmp_path / "file", read_only=read_only)
        assert contents(tmp_path) == before

    def test_foreign_database_in_its_wal_is_refused(self, tmp_path):
        foreign = apsw.Connection(str(tmp_path / "file"))
        foreign.pragma("journal_mode", "wal")
        foreign.execute("CREATE TABLE t (x)")
        with raises(Invalid, "invalid.store"):
            SqliteBackend(tmp_path / "file")
        assert foreign.execute("SELECT count(*) FROM sqlite_schema").get == 1
        foreign.close()

    @pytest.mark.parametrize("read_only", [False, True])
    def test_a_newer_format_is_refused_and_left_alone(self, path, read_only):
        newer = apsw.Connection(str(path))
        newer.pragma("user_version", FORMAT + 1)
        newer.close()
        before = contents(path.parent)
        with raises(Invalid, "invalid.format"):
            SqliteBackend(path, read_only=read_only)
        assert contents(path.parent) == before

    def test_newer_format_in_the_wal_is_refused(self, path):
        newer = apsw.Connection(str(path))
        newer.pragma("user_version", FORMAT + 1)
        with raises(Invalid, "invalid.format"):
            SqliteBackend(path)
        newer.close()

    def test_new_store_does_not_remove_a_log_without_file(self, path):
        def write_and_die():
            backend = SqliteBackend(path)
            start(backend)
            os._exit(0)

        assert in_child(write_and_die) == 0
        away = path.with_name("away")
        path.rename(away)
        before = contents(path.parent)
        with raises(Conflict, "conflict.exists"):
            SqliteBackend(path)
        assert contents(path.parent) == before
        away.rename(path)
        backend = SqliteBackend(path)
        assert backend.find_thread("thread", "x") is not None
        backend.close()

    def test_empty_log_does_not_prevent_a_new_store(self, path):
        path.unlink(missing_ok=True)
        Path(f"{path}-wal").touch()
        backend = SqliteBackend(path)
        start(backend)
        backend.close()

    def test_a_directory_that_is_a_file_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with raises(Invalid, "invalid.store"):
            SqliteBackend(tmp_path / "file" / "store")
        with raises(NotFound, "not_found.store"):
            SqliteBackend(tmp_path / "file" / "store", read_only=True)

    def test_a_fifo_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        with raises(Invalid, "invalid.store"):
            SqliteBackend(tmp_path / "fifo")

    @pytest.mark.parametrize("options", [{"durability": "none"}, {"busy_timeout": -1}, {"busy_timeout": float("nan")}])
    def test_an_option_that_means_nothing_is_refused(self, tmp_path, options):
        with raises(Invalid, "invalid.option"):
            SqliteBackend(tmp_path / "store", **options)
        assert list(tmp_path.iterdir()) == []

    def test_unwritable_file_is_refused_and_left_alone(self, public_path):
        public_path.chmod(0o444)
        before = contents(public_path.parent)

        def work():
            with raises(Unavailable, "unavailable.open"):
                SqliteBackend(public_path)

        unprivileged(work)
        assert contents(public_path.parent) == before

    def test_a_directory_that_may_not_be_written_is_refused(self, public_path):
        public_path.chmod(0o666)
        public_path.parent.chmod(0o555)

        def work():
            with raises(Unavailable, "unavailable.open"):
                SqliteBackend(public_path)
            with raises(Unavailable, "unavailable.open"):
                SqliteBackend(public_path.parent / "new")
            with raises(Unavailable, "unavailable.open"):
                SqliteBackend(public_path.parent / "directory" / "new")

        unprivileged(work)
        public_path.parent.chmod(0o755)
        assert list(contents(public_path.parent)) == [public_path.name]

    def test_creation_waits_for_another_process_and_gives_up(self, tmp_path):
        other = apsw.Connection(str(tmp_path / "store"))
        other.execute("CREATE TABLE t (x); DROP TABLE t; BEGIN")
        assert other.execute("SELECT count(*) FROM sqlite_schema").get == 0
        with raises(Unavailable, "unavailable.locked"):
            SqliteBackend(tmp_path / "store", busy_timeout=0.05)
        threading.Timer(0.05, lambda: other.execute("ROLLBACK")).start()
        SqliteBackend(tmp_path / "store").close()
        other.close()

    def test_processes_can_create_one_file_at_once(self, quick_path):
        for attempt in range(10):
            path = quick_path / str(attempt)
            gate = os.pipe()
            children = []
            for at in range(4):
                child = os.fork()
                if child == 0:
                    os.close(gate[1])
                    os.read(gate[0], 1)
                    status = 1
                    try:
                        start(SqliteBackend(path), str(at))
                        status = 0
                    finally:
                        os._exit(status)
                children.append(child)
            os.close(gate[1])  # off they go
            os.close(gate[0])
            assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
            made = SqliteBackend(path)
            assert len(made.thread_numbers(0, 99)) == 4
            made.close()


class TestReadOnly:
    def test_missing_store_is_not_found_and_not_created(self, tmp_path):
        with raises(NotFound, "not_found.store"):
            SqliteBackend(tmp_path / "a" / "store", read_only=True)
        (tmp_path / "empty").touch()
        with raises(NotFound, "not_found.store"):
            SqliteBackend(tmp_path / "empty", read_only=True)
        assert contents(tmp_path) == {"empty": b""}

    def test_read_only_store_sees_commits_and_writes_nothing(self, backend, path):
        reader = SqliteBackend(path, read_only=True)
        no = start(backend)
        assert reader.newest(no) == backend.newest(no)
        calls = [
            lambda: reader.commit(Batch()),
            lambda: reader.commit(Batch(rows=((no, row(2)),))),
            reader.next_epoch,
            lambda: reader.remove_chunks([b""], 9),
            lambda: reader.remove_rows(no, [1]),
            lambda: reader.rewrite(no, [row(1)]),
            reader.reclaim,
        ]
        for call in calls:
            with raises(Unavailable, "unavailable.read_only"):
                call()
        assert (reader.newest(no).seq, reader.usage().rows) == (1, 1)
        reader.close()

    def test_store_in_a_read_only_directory_can_be_read(self, public_path):
        made = SqliteBackend(public_path)
        no = start(made)
        made.close()
        public_path.chmod(0o644)
        public_path.parent.chmod(0o555)

        def work():
            reader = SqliteBackend(public_path, read_only=True)
            assert reader.newest(no).seq == 1
            reader.close()

        unprivileged(work)
        public_path.parent.chmod(0o755)
        assert list(contents(public_path.parent)) == [public_path.name]

    def test_wal_of_a_dead_writer_is_not_overlooked(self, public_path):
        def write_and_die():
            backend = SqliteBackend(public_path)
            start(backend)
            os._exit(0)

        assert in_child(write_and_die) == 0
        Path(f"{public_path}-shm").unlink()
        public_path.parent.chmod(0o555)

        def work():
            with raises(Unavailable, "unavailable.open"):
                SqliteBackend(public_path, read_only=True)

        unprivileged(work)
        public_path.parent.chmod(0o755)


class TestFormats:
    """The framework of migrations, with a next format made up."""

    @pytest.fixture
    def next_step(self, monkeypatch):
        def step(connection):
            connection.execute("CREATE TABLE addition (x)")
            step.failing()

        step.failing = lambda: None
        monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, step))
        monkeypatch.setattr(schema, "READABLE_FROM", FORMAT + 1)
        return step

    @staticmethod
    def look(path):
        connection = apsw.Connection(str(path))
        try:
            tables = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'addition'").get
            return connection.pragma("user_version") & 0xFF, tables
        finally:
            connection.close()

    def test_older_store_is_converted_without_loss(self, path, next_step):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "STEPS", schema.STEPS[:-1])
            old = SqliteBackend(path)
            no = start(old)
            old.close()
        converted = SqliteBackend(path)
        assert converted.newest(no).seq == 1
        converted.close()
        assert self.look(path) == (FORMAT + 1, 1)

    def test_a_new_store_takes_all_steps(self, tmp_path, next_step):
        SqliteBackend(tmp_path / "new").close()
        assert self.look(tmp_path / "new") == (FORMAT + 1, 1)

    def test_failed_migration_step_keeps_the_old_format(self, path, next_step):
        def fail():
            raise KeyboardInterrupt

        next_step.failing = fail
        with pytest.raises(KeyboardInterrupt):
            SqliteBackend(path)
        assert self.look(path) == (FORMAT, 0)
        next_step.failing = lambda: None
        SqliteBackend(path).close()
        assert self.look(path) == (FORMAT + 1, 1)

    def test_older_store_is_not_converted_by_reading(self, path, next_step):
        with raises(Unavailable, "unavailable.read_only"):
            SqliteBackend(path, read_only=True)
        assert self.look(path) == (FORMAT, 0)

    def test_format_1_is_converted_when_opened_for_writing(self, path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "STEPS", schema.STEPS[:1])
            first = path.with_name("first")
            old = SqliteBackend(first)
            no = start(old)
            old.close()
        reader = SqliteBackend(first, read_only=True)
        assert reader.newest(no).seq == 1
        reader.close()
        assert self.look(first) == (1, 0)
        SqliteBackend(first).close()
        assert self.look(first) == (FORMAT, 0)

    def test_threads_of_an_older_format_are_all_touched(self, tmp_path):
        path = tmp_path / "old"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "STEPS", schema.STEPS[:3])
            old = SqliteBackend(path)
            for name, agent in (("x", "a"), ("y", "b"), ("none", None), ("gone", "a"), ("z", "a")):
                no = start(old, name, agent=agent)
                if name == "gone":
                    old.commit(Batch(rows=((no, row(2, head=0)),)))
            old.close()
        for read_only in (True, False):
            backend = SqliteBackend(path, read_only=read_only)
            assert [stand.record.name for stand in backend.tips("a", touched=True)] == ["x", "gone", "z"]
            assert [stand.record.name for stand in backend.tips("a", touched=False)] == ["x", "gone", "z"]
            assert backend.usage().items == {}
            backend.close()

    def test_new_row_or_renewal_touches_a_thread(self, backend, path):
        no, other = start(backend, agent="a"), start(backend, "y", agent="a")
        backend.commit(Batch(untouch=((no, 1), (other, 1))))
        older = apsw.Connection(str(path))  # a version that knows nothing of it, and has the file open
        columns = ", ".join(f'"{name}"' for _, name, *_ in older.execute("PRAGMA table_info(row)") if name != "key")
        older.execute(f"INSERT INTO row (key, {columns}) SELECT key + 1, {columns} FROM row WHERE key >> 32 = ?", (no,))
        assert [stand.record.name for stand in backend.tips("a", touched=True)] == ["x"]
        older.execute("UPDATE thread SET agent = ? WHERE no = ?", (b"b", other))
        older.close()
        assert [stand.record.name for stand in backend.tips("b", touched=True)] == ["y"]

    @pytest.mark.parametrize("touched", [False, True])
    def test_standings_read_no_more_than_they_give(self, backend, touched):
        statement = SQL["touched_tips" if touched else "tips"]
        with backend._shared.use() as connection:
            plan = [step[-1] for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", (b"a",))]
        assert not [step for step in plan if "SCAN" in step or "TEMP B-TREE" in step]
        assert plan[0] in (
            "SEARCH touched USING PRIMARY KEY (agent=?)",
            "SEARCH thread USING INDEX thread_agent (agent=?)",
        )


class TestTurns:
    def test_lock_of_another_process_times_out(self, path):
        backend = SqliteBackend(path, busy_timeout=0.05)
        no = start(backend)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        calls = [
            lambda: backend.commit(Batch(rows=((no, row(2)),))),
            lambda: backend.commit(Batch(rows=((no, row(2)),), hide=((no, 1),))),
            backend.next_epoch,
        ]
        for call in calls:
            with raises(Unavailable, "unavailable.locked"):
                call()
        assert backend.newest(no).seq == 1  # readers need not wait
        other.execute("ROLLBACK")
        other.close()
        append(backend, no)
        backend.close()

    def test_a_commit_waits_until_another_process_is_done(self, backend, path):
        no = start(backend)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.05, lambda: other.execute("ROLLBACK")).start()
        append(backend, no)
        other.close()

    def test_nested_call_of_one_thread_is_locked(self, path):
        backend = SqliteBackend(path, busy_timeout=0.05)
        with backend._shared.use(), raises(Unavailable, "unavailable.locked"):
            backend.newest(1)
        assert backend.newest(1) is None
        backend.close()

    def test_a_transaction_that_an_interrupt_left_is_rolled_back(self, backend):
        no = start(backend)
        backend._shared._connection.execute("BEGIN IMMEDIATE; UPDATE row SET hidden = 1")
        assert not backend.newest(no).hidden
        assert append(backend, no).seq == 2

    def test_processes_that_race_lose_nothing(self, backend, path):
        no = start(backend)
        read, write = os.pipe()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                for _ in range(25):
                    os.write(write, append(backend, no).op_id.rjust(40))
                os._exit(0)
            children.append(child)
        os.close(write)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        with os.fdopen(read, "rb") as pipe:
            acknowledged = sorted(iter(lambda: pipe.read(40).lstrip(), b""))
        assert sorted(op_ids(backend, no)[1:]) == acknowledged
        assert len(acknowledged) == 100


class TestFork:
    def test_forked_child_refuses_a_replaced_store(self, backend, path):
        start(backend)
        (path.parent / "away").mkdir()
        for part in path.parent.glob(f"{path.name}*"):
            part.rename(path.parent / "away" / part.name)

        def work():
            with raises(NotFound, "not_found.store"):
                start(backend, "y")

        assert in_child(work) == 0
        assert not path.exists()
        SqliteBackend(path).close()
        before = contents(path.parent)
        assert in_child(work) == 0
        assert contents(path.parent) == before

    @pytest.mark.parametrize("inherited", [True, False])
    def test_a_childs_commits_survive_its_parents_close(self, backend, path, inherited):
        """The child needs its own locks; otherwise the parent deletes the child's WAL when it closes."""
        no = start(backend)
        ready, closed = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            mine = backend if inherited else SqliteBackend(path)
            append(mine, no)
            os.write(ready[1], b"x")
            os.read(closed[0], 1)
            append(mine, no)
            os._exit(0)
        os.read(ready[0], 1)
        backend.close()
        os.write(closed[1], b"x")
        assert os.waitpid(child, 0)[1] == 0
        again = SqliteBackend(path)
        assert again.newest(no).seq == 3
        again.close()

    @pytest.mark.parametrize("use", ["none", "read", "write", "close", "delete", "another"])
    def test_parent_continues_after_anything_in_a_child(self, backend, path, use):
        no = start(backend)
        append(backend, no)
        second = SqliteBackend(path)
        second.newest(no)

        def work():
            nonlocal backend
            match use:
                case "read":
                    assert backend.newest(no).seq == 2
                case "write":
                    append(backend, no)
                case "close":
                    backend.close()
                case "delete":
                    backend._shared._connection = None
                case "another":
                    other = SqliteBackend(path)
                    append(other, no)
                    other.close()

        assert in_child(work) == 0
        last = append(backend, no)
        assert second.newest(no).op_id == last.op_id
        second.close()
        again = SqliteBackend(path)
        assert again.newest(no).op_id == last.op_id
        assert len(op_ids(again, no)) == (4 if use in ("write", "another") else 3)
        again.close()

    def test_store_works_in_a_grandchild(self, backend):
        no = start(backend)

        def child():
            assert in_child(lambda: append(backend, no)) == 0
            append(backend, no)
            assert in_child(lambda: append(backend, no)) == 0

        assert in_child(child) == 0
        assert len(op_ids(backend, no)) == 4

    def test_child_that_exits_normally_leaves_its_parent_alone(self, path):
        script = f"""
            import os, sys
            from backtrail.backends.port import Batch, NewThread
            from backtrail.backends.sqlite.backend import SqliteBackend
            backend = SqliteBackend({str(path)!r})
            if os.fork() == 0:
                sys.exit()  # finalizers run
            os.wait()
            backend.commit(Batch(threads=(NewThread("thread", "x", b"uid", None, 1, None),)))
            os._exit(0)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
        again = SqliteBackend(path)
        assert again.find_thread("thread", "x")
        again.close()

    def test_child_forked_during_a_call_is_refused(self, path):
        backend = SqliteBackend(path, busy_timeout=0)
        no = start(backend)

        def work():
            for attempt in (lambda: append(backend, no), lambda: SqliteBackend(path)):
                with raises(Unavailable, "unavailable.forked"):
                    attempt()
            backend.close()

        with backend._shared.use() as connection:  # which a fork does wait for, but not for ever
            connection.execute("BEGIN IMMEDIATE")
            assert in_child(work) == 0
            connection.execute("COMMIT")
        append(backend, no)
        backend.close()

    def test_a_fork_without_pythons_hooks_is_noticed(self, backend, path, monkeypatch):
        no = start(backend)
        for hook in ("pause", "resume", "resume_in_child"):
            monkeypatch.setattr(sqlite_connection.SharedConnection, hook, lambda _: None)

        def work():
            monkeypatch.undo()
            append(backend, no)
            assert backend._shared._pid == os.getpid()

        assert in_child(work) == 0
        assert append(backend, no).seq == 3


class Disk:
    """An SQLite VFS whose writes and syncs can be counted, made to fail, or made the last thing a process does."""

    def __init__(self):
        self.calls = []
        self.before = lambda call: None

    def called(self, call):
        self.calls.append(call)
        self.before(call)

    def vfs(self):
        disk = self

        class File(apsw.VFSFile):
            def __init__(self, name, flags):
                super().__init__("unix", name, flags)
                kinds = {apsw.SQLITE_OPEN_WAL: "wal", apsw.SQLITE_OPEN_MAIN_DB: "db"}
                self.kind = next((kind for flag, kind in kinds.items() if flags[0] & flag), "other")

            def xRead(self, amount, offset):  # noqa: N802
                disk.called(f"read {self.kind}")
                return super().xRead(amount, offset)

            def xWrite(self, data, offset):  # noqa: N802
                disk.called(f"write {self.kind}")
                super().xWrite(data, offset)

            def xSync(self, flags):  # noqa: N802
                disk.called(f"sync {self.kind}")
                super().xSync(flags)

        class Vfs(apsw.VFS):
            def xOpen(self, name, flags):  # noqa: N802
                return File(name, flags)

        return Vfs("disk", "unix", makedefault=True)


@pytest.fixture
def disk():
    made = Disk()
    vfs = made.vfs()
    yield made
    vfs.unregister()


def fail(code, *calls, once=False):
    """Return a `Disk.before` that fails in these calls."""
    failed = []

    def before(call):
        if call in calls and not (once and failed):
            failed.append(call)
            raise apsw.exception_for(code)

    return before


class TestDisk:
    @pytest.mark.parametrize(("durability", "syncs"), [("full", 10), ("relaxed", 0)])
    def test_durability_says_whether_a_commit_waits_for_the_disk(self, disk, path, durability, syncs):
        backend = SqliteBackend(path, durability=durability)
        no = start(backend)
        disk.calls.clear()
        for _ in range(5):
            append(backend, no)
            backend.commit(Batch(rows=((no, row(backend.newest(no).seq + 1)),), hide=((no, 1),)))
        assert disk.calls.count("sync wal") == syncs
        backend.close()

    @pytest.mark.parametrize("call", ["write wal", "sync wal"])
    @pytest.mark.parametrize("extra", [{}, {"tag": ((1, 1, "t"),)}])
    def test_a_commit_that_failed_once_is_certainly_not_there(self, disk, path, call, extra):
        backend = SqliteBackend(path)
        no = start(backend)
        disk.before = fail(apsw.SQLITE_IOERR_FSYNC, call, once=True)
        with raises(Unavailable, "unavailable.io"):
            backend.commit(Batch(rows=((no, row(2)),), **extra))
        assert backend.newest(no).seq == 1
        # Nor is it in the files after a crash: what it left in the WAL was overwritten.
        shutil.copy(path, path.with_name("copy"))
        shutil.copy(f"{path}-wal", path.with_name("copy-wal"))
        copy = SqliteBackend(path.with_name("copy"))
        assert copy.newest(no).seq == 1
        copy.close()
        append(backend, no)
        backend.close()

    @pytest.mark.parametrize("extra", [{}, {"tag": ((1, 1, "t"),)}])
    def test_commit_with_unknown_outcome_is_commit_unknown(self, disk, path, extra):
        backend = SqliteBackend(path)
        no = start(backend)
        batch = Batch(rows=((no, row(2)),), **extra)
        disk.before = fail(apsw.SQLITE_IOERR_FSYNC, "sync wal")
        with raises(CommitUnknown, "commit_unknown.io"):
            backend.commit(batch)
        disk.before = lambda call: None
        backend.commit(batch)  # the same again settles it
        assert len(op_ids(backend, no)) == 2
        backend.close()

    def test_commit_that_happened_despite_an_error_succeeds(self, backend):
        no = start(backend)
        batch = Batch(rows=((no, row(2)),))

        class Liar:
            """A connection that commits and then says that it could not."""

            def __init__(self, connection):
                self.connection = connection
                self.lies = 1

            def __getattr__(self, name):
                return getattr(self.connection, name)

            def execute(self, statement, parameters=None):
                done = self.connection.execute(statement, parameters)
                if self.lies and ("INSERT INTO row" in statement or statement == "COMMIT"):
                    self.lies -= 1
                    raise apsw.exception_for(apsw.SQLITE_IOERR)
                return done

        with backend._shared.use() as connection:
            assert commit.commit(Liar(connection), batch) == ()
        assert len(op_ids(backend, no)) == 2

    @pytest.mark.parametrize(
        ("code", "kind", "said"),
        [
            (apsw.SQLITE_FULL, Unavailable, "unavailable.full"),
            (apsw.SQLITE_IOERR_WRITE, Unavailable, "unavailable.io"),
        ],
    )
    def test_error_before_the_commit_keeps_its_code(self, disk, path, code, kind, said):
        backend = SqliteBackend(path)
        no = start(backend)
        disk.before = fail(code, "write wal", once=True)
        with raises(kind, said):
            backend.commit(Batch(rows=((no, row(2)),)))
        disk.before = fail(code, "write wal", once=True)
        with raises(kind, said):
            backend.next_epoch()
        append(backend, no)
        backend.close()

    @pytest.mark.parametrize("every", lengths(3, 1))
    def test_killed_creation_leaves_no_store_or_a_good_one(self, disk, quick_path, every):
        SqliteBackend(quick_path / "count").close()
        total = len(disk.calls)
        assert total > 20
        for last in range(0, total, every):
            path = quick_path / str(last)

            def die(call, last=last):
                if len(disk.calls) > last:
                    os._exit(0)

            disk.calls.clear()
            disk.before = die
            assert in_child(lambda: SqliteBackend(path).close()) == 0  # noqa: B023
            disk.before = lambda call: None
            made = SqliteBackend(path)
            assert made.newest(start(made)).seq == 1
            with made._shared.use() as connection:
                assert connection.pragma("auto_vacuum") == 2
            made.close()

    @pytest.mark.parametrize("once", [True, False])
    @pytest.mark.parametrize("code", [apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_FULL])
    def test_acknowledged_rows_survive_any_failing_call(self, disk, quick_path, empty_store, once, code):
        def use(path, acknowledged, refused):
            """Open, write and close, and note what became of each row."""
            backend = SqliteBackend(path)
            try:
                no = start(backend)
                for at in range(3):
                    for extra in ({}, {"hide": ((no, 1),), "chunks": ((b"%d" % at, bytes(9000)),)}):
                        added = row(backend.newest(no).seq + 1, payload=bytes(2000))
                        try:
                            backend.commit(Batch(rows=((no, added),), **extra))
                            acknowledged.append(added.op_id)
                        except Unavailable:
                            refused.append(added.op_id)
                backend.reclaim()
            finally:
                disk.before = lambda call: None
                backend.close()

        disk.before = lambda call: None
        use(shutil.copy(empty_store, quick_path / "count"), [], [])
        total = len(disk.calls)
        assert total > 50
        fired = 0
        for failing in range(total):
            path = Path(shutil.copy(empty_store, quick_path / str(failing)))
            acknowledged, refused = [], []

            def before(call, failing=failing):
                if len(disk.calls) == failing + 1 or (len(disk.calls) > failing and not once):
                    raise apsw.exception_for(code)

            disk.calls.clear()
            disk.before = before
            try:
                use(path, acknowledged, refused)
            except (Unavailable, CommitUnknown):
                fired += 1
            fired += bool(refused)
            disk.before = lambda call: None
            again = SqliteBackend(path)
            found = again.find_thread("thread", "x")
            there = set(op_ids(again, found.no)) if found else set()
            assert there >= set(acknowledged)
            assert not there & set(refused)
            again.close()
        assert fired > total / 4

    def test_full_database_recovers_when_there_is_room(self, backend):
        no = start(backend)
        with backend._shared.use() as connection:
            connection.pragma("max_page_count", connection.pragma("page_count") + 2)
        for extra in ({}, {"chunks": ((b"digest", bytes(50_000)),)}):
            with raises(Unavailable, "unavailable.full"):
                backend.commit(Batch(rows=((no, row(2, payload=bytes(50_000))),), **extra))
        assert backend.newest(no).seq == 1
        assert backend.present([b"digest"]) == set()
        with backend._shared.use() as connection:
            connection.pragma("max_page_count", 1 << 30)
        append(backend, no, payload=bytes(50_000))

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
    def test_a_full_disk_loses_nothing_that_was_acknowledged(self, tmp_path):
        where = tmp_path / "small"
        where.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", where], check=False).returncode:
            pytest.skip("a small disk cannot be mounted here")
        try:
            backend = SqliteBackend(where / "store")
            no = start(backend)
            written = []
            with raises(Unavailable, "unavailable.full"):
                while len(written) < 1000:
                    written.append(append(backend, no, payload=os.urandom(3000)).op_id)
            assert op_ids(backend, no)[1:] == written
            backend.close()
            backend = SqliteBackend(where / "store", read_only=True)
            assert op_ids(backend, no)[1:] == written
            backend.close()
        finally:
            subprocess.run(["umount", where], check=True)

    def test_damage_is_reported_as_such(self, path):
        backend = SqliteBackend(path)
        no = start(backend)
        for _ in range(20):
            append(backend, no, payload=bytes(3000))
        with backend._shared.use() as connection:
            root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'row'").get
        backend.close()
        with path.open("r+b") as file:
            file.seek((root - 1) * 4096)
            file.write(b"\xff" * 4096)
        damaged = SqliteBackend(path)
        with raises(Corrupt, "corrupt.store"):
            damaged.rows(no, [(1, 99)], payload=True)
        damaged.close()


class TestGroup:
    """What `test_backends.py` cannot show: a disk that fails, and what others see."""

    @staticmethod
    def fill(backend, no, first):
        backend.commit(Batch(rows=((no, row(first)),)))
        backend.commit(Batch(rows=((no, row(first + 1)),), tag=((no, 1, "t"),)))

    def test_many_commits_wait_for_the_disk_once(self, disk, path):
        backend = SqliteBackend(path)
        no = start(backend)
        disk.calls.clear()
        with backend.group():
            for seq in range(2, 40):
                backend.commit(Batch(rows=((no, row(seq)),)))
        assert disk.calls.count("sync wal") == 1
        disk.calls.clear()
        with backend.group():
            backend.newest(no)
        assert not [call for call in disk.calls if not call.startswith("read")]
        backend.close()

    @pytest.mark.parametrize("call", ["write wal", "sync wal"])
    def test_one_whose_end_failed_is_certainly_not_there(self, disk, path, call):
        backend = SqliteBackend(path)
        no = start(backend)
        with raises(Unavailable, "unavailable.io"), backend.group():
            self.fill(backend, no, 2)
            disk.before = fail(apsw.SQLITE_IOERR_FSYNC, call, once=True)
        assert (backend.newest(no).seq, backend.tags(no)) == (1, {})
        shutil.copy(path, path.with_name("copy"))
        shutil.copy(f"{path}-wal", path.with_name("copy-wal"))
        copy = SqliteBackend(path.with_name("copy"))
        assert copy.newest(no).seq == 1
        copy.close()
        with backend.group():
            self.fill(backend, no, 2)
        assert backend.newest(no).seq == 3
        backend.close()

    def test_group_with_unknown_outcome_is_commit_unknown(self, disk, path):
        backend = SqliteBackend(path)
        no = start(backend)
        with raises(CommitUnknown, "commit_unknown.io"), backend.group():
            self.fill(backend, no, 2)
            disk.before = fail(apsw.SQLITE_IOERR_FSYNC, "sync wal")
        disk.before = lambda call: None
        assert backend.newest(no).seq in (1, 3)
        append(backend, no)
        backend.close()

    @pytest.mark.parametrize("removed", [False, True])
    def test_group_that_happened_despite_an_error_succeeds(self, backend, removed, monkeypatch):
        no = start(backend)
        ended = commit.end

        class Liar:
            def __init__(self, cursor):
                self.cursor = cursor
                self.connection = cursor.connection
                self.lies = 1

            def execute(self, statement, parameters=None):
                done = self.cursor.execute(statement, parameters)
                if self.lies and statement == "COMMIT":
                    self.lies -= 1
                    raise apsw.exception_for(apsw.SQLITE_IOERR)
                return done

        monkeypatch.setattr("backtrail.backends.sqlite.commit.end", lambda cursor, *rest: ended(Liar(cursor), *rest))
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)), (no, row(3))), hide=((no, 2),)))
            if removed:  # what a group wrote and took away again is no sign that it did not happen
                backend.remove_rows(no, [2])
            backend.commit(Batch(tag=((no, 1, "t"),)))
        assert backend.newest(no).seq == 3

    def test_older_batch_does_not_prove_that_a_group_happened(self, disk, path):
        backend = SqliteBackend(path)
        no = start(backend)
        old = Batch(rows=((no, row(2)),))
        backend.commit(old)
        with raises(Unavailable, "unavailable.io"), backend.group():
            backend.commit(Batch(tag=((no, 1, "t"),)))
            backend.commit(old)
            disk.before = fail(apsw.SQLITE_IOERR_FSYNC, "sync wal", once=True)
        assert backend.tags(no) == {}
        backend.close()

    def test_a_failing_disk_takes_the_whole_group(self, backend):
        no = start(backend)
        with raises(Unavailable, "unavailable.full"), backend.group():
            self.fill(backend, no, 2)
            limit = backend._shared._connection.pragma("page_count") + 2
            backend._shared._connection.pragma("max_page_count", limit)
            for _ in range(2):
                with raises(Unavailable, "unavailable.full"):
                    backend.commit(Batch(rows=((no, row(4, payload=bytes(1 << 20))),), tag=((no, 1, "t"),)))
            backend._shared._connection.pragma("max_page_count", 1 << 30)
            with raises(Unavailable, "unavailable.full"):
                backend.commit(Batch(rows=((no, row(4)),)))
        assert backend.newest(no).seq == 1
        append(backend, no)

    def test_refused_statement_fails_alone(self, backend):
        no = start(backend)
        with backend.group():
            append(backend, no)
            with raises(Unavailable, "unavailable.sqlite"):
                backend.commit(Batch(rows=((no, row(3, root="text")),)))
            with raises(Unavailable, "unavailable.sqlite"):
                backend.commit(Batch(rows=((no, row(3, root="text")),), tag=((no, 1, "t"),)))
            append(backend, no)
        assert (backend.newest(no).seq, backend.tags(no)) == (3, {})

    def test_another_process_that_writes_is_waited_for_once(self, path):
        backend = SqliteBackend(path, busy_timeout=0.2)
        no = start(backend)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with raises(Unavailable, "unavailable.locked"), backend.group():
            for _ in range(20):
                with raises(Unavailable, "unavailable.locked"):
                    backend.commit(Batch(rows=((no, row(2)),)))
            assert backend.newest(no).seq == 1  # which can be read all the same
        assert time.monotonic() - began < 2
        other.execute("ROLLBACK")
        append(backend, no)
        other.close()
        backend.close()

    def test_a_fork_waits_for_its_end(self, backend):
        no = start(backend)
        held, go_on = threading.Event(), threading.Event()

        def work():
            with backend.group():
                append(backend, no)
                held.set()
                go_on.wait(30)
                append(backend, no)

        worker = threading.Thread(target=work)
        worker.start()
        assert held.wait(30)
        threading.Timer(0.2, go_on.set).start()

        def child():
            assert backend.newest(no).seq == 3
            append(backend, no)

        assert in_child(child) == 0
        worker.join(30)
        assert append(backend, no).seq == 5

    def test_refused_beginning_leaves_no_open_connection(self, backend, monkeypatch):
        no = start(backend)

        def refuse(_):
            raise Corrupt("it is refused", code="corrupt.schema")

        monkeypatch.setattr(sqlite_connection.SharedConnection, "prepare_write", refuse)
        with backend.group():
            for _ in range(2):  # the second one, too, and not outside of a transaction
                with raises(Corrupt, "corrupt.schema"):
                    backend.commit(Batch(rows=((no, row(2)),)))
        assert backend.newest(no).seq == 1

    @pytest.mark.parametrize("deed", ["write", "read", "end", "raise"])
    def test_forked_child_does_not_end_its_parents_group(self, backend, path, deed):
        no = start(backend)
        parent = os.getpid()
        other = SqliteBackend(path)
        try:
            with backend.group():
                append(backend, no)
                child = os.fork()
                if child:
                    assert os.waitpid(child, 0)[1] == 0
                    assert other.newest(no).seq == 1
                    append(backend, no)
                elif deed == "raise":
                    _ = 1 / 0
                elif deed != "end":
                    with raises(Unavailable, "unavailable.forked"):
                        append(backend, no) if deed == "write" else backend.newest(no)
        except BaseException as error:
            if os.getpid() == parent:
                raise
            good = isinstance(error, ZeroDivisionError) or getattr(error, "code", "") == "unavailable.forked"
            os._exit(not good)
        finally:
            if os.getpid() != parent:
                os._exit(1)
        assert [found.seq for found in other.rows(no, [(1, 9)])] == [1, 2, 3]
        other.close()


class TestStatements:
    @staticmethod
    @contextmanager
    def counted(backend):
        seen = []
        with backend._shared.use() as connection:
            connection.exec_trace = lambda _, statement, __: not seen.append(statement)
        yield seen
        with backend._shared.use() as connection:
            connection.exec_trace = None

    def test_many_chunks_are_read_by_a_handful(self, backend):
        digests = [b"%032d" % at for at in range(400)]
        backend.commit(Batch(chunks=tuple((digest, b"x" * 100) for digest in digests)))
        with self.counted(backend) as seen:
            assert len(backend.chunks(digests)) == 400
            assert len(backend.present(digests)) == 400
        assert len(seen) <= 4

    def test_one_row_is_one_statement(self, backend):
        no = start(backend)
        with self.counted(backend) as seen:
            backend.commit(Batch(rows=((no, row(2)),)))
        assert len(seen) == 1

    def test_refusal_of_sqlite_is_unavailable_and_not_stale(self, backend):
        no = start(backend)
        for extra in ({}, {"hide": ((no, 1),)}):
            with raises(Unavailable, "unavailable.sqlite"):
                backend.commit(Batch(rows=((no, row(2, root=None)),), **extra))
        append(backend, no)

    def test_exception_rolls_back_and_frees_the_connection(self, backend):
        no = start(backend)
        with pytest.raises(KeyboardInterrupt):  # noqa: SIM117 - the block is interrupted
            with backend._transaction() as connection:
                connection.execute("UPDATE row SET hidden = 1")
                raise KeyboardInterrupt
        assert not backend.newest(no).hidden
        append(backend, no)


class TestSpace:
    def test_reclaiming_gives_space_back(self, backend, path):
        digests = [b"%032d" % at for at in range(600)]
        backend.commit(Batch(chunks=tuple((digest, os.urandom(5000)) for digest in digests)))
        full = backend.usage().stored_bytes
        assert full >= 600 * 5000
        backend.remove_chunks(digests, backend.next_epoch())
        backend.reclaim()
        assert backend.usage().stored_bytes < full / 20
        assert backend.usage().stored_bytes == path.stat().st_size
        assert Path(f"{path}-wal").stat().st_size == 0

    def test_removed_data_is_overwritten_with_zeros(self, backend, path):
        canary = b"the canary that is to be gone"
        no = start(backend)
        for at in range(30):
            append(backend, no, payload=b"%d %s" % (at, canary) * (at * 10 + 1))
        append(backend, no)
        backend.commit(Batch(chunks=((b"digest", canary * 1000),), hide=tuple((no, seq) for seq in range(2, 30))))
        backend.remove_rows(no, range(2, 30))
        backend.rewrite(no, [found._replace(payload=b"") for found in backend.rows(no, [(30, 31)])])
        backend.remove_chunks([b"digest"], backend.next_epoch())
        backend.reclaim()
        assert not [name for name, content in contents(path.parent).items() if canary in content]
