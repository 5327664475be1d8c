"""A backup replaces a store whose process was killed, and the old log of that process is still there.

What opens the store afterwards finds the backup, or is refused: the log is never replayed over a file that it does not
belong to. Without a restore, the log is always replayed: whatever was acknowledged is there.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import psutil
import pytest

import backtrail
from backtrail.backends.sqlite import maintenance, schema, wal_mark
from backtrail.errors import Conflict, NotFound, Unavailable
from tests.support.lengths import lengths
from tests.support.processes import spawn

WAYS = ("cp closed", "backup")


def states(path, **options):
    """All that is in the threads of a store, in order."""
    with backtrail.open(path, **options) as store:
        assert not store.verify().faults
        return {
            info.id: [checkpoint.state for checkpoint in store.thread(info.id).history()] for info in store.threads()
        }


def append(store, number):
    thread = store.thread(f"t{number % 5}")
    if number < 5:
        thread.save({"n": [number]})
    else:
        thread.append("n", f"{number} " * 400)


def work(path, backups, told, seed):
    """Write, copy the store now and then in some way, tell how far it is; until this process is killed."""
    os.setsid()
    choice = random.Random(seed)
    store = backtrail.open(path)
    store._backend._shared.log._pages = 12
    made = 0
    for number in range(10_000):
        append(store, number)
        told.value = number + 1
        if number == 7 or choice.random() < 0.1:
            way = choice.choice(WAYS)
            target = f"{backups}/{made}.part"
            if way == "cp closed":
                store.close()
                shutil.copyfile(path, target)
            else:
                store.backup(target)
            Path(target).rename(f"{backups}/{made} {way}")
            made += 1
            if way == "cp closed":
                store = backtrail.open(path)
                store._backend._shared.log._pages = 12


def killed(path, backups, seed):
    """Kill a process at a random moment; return how many of its writes were acknowledged."""
    told = spawn.Value("i", 0, lock=False)  # the killed process could keep a lock
    child = spawn.Process(target=work, args=(path, backups, told, seed))
    child.start()
    choice = random.Random(seed)
    deadline = time.monotonic() + 30
    while told.value <= 8:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(choice.random() * 0.15)
    started = psutil.Process(child.pid).children(recursive=True)
    os.killpg(child.pid, signal.SIGKILL)  # with those that it has started
    child.join()
    while any(is_alive(each) for each in started):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return told.value


def is_alive(process):
    """Whether a process still runs; one that was killed may stay a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def is_refused(path):
    try:
        backtrail.open(path).close()
    except Conflict as error:
        return error.code == "conflict.log"
    return False


@pytest.mark.parametrize("count", lengths(15, 1000))
def test_stale_log_never_changes_a_restored_backup(tmp_path, count):
    refused = 0
    for seed in range(count):
        place = tmp_path / str(seed)
        backups = place / "backups"
        backups.mkdir(parents=True)
        path = place / "agents.db"
        acknowledged = killed(path, backups, seed)
        crashed = place / "crashed"
        crashed.mkdir()
        for each in place.glob("agents.db*"):
            if not each.name.endswith("-shm"):
                shutil.copyfile(each, crashed / each.name)
        recovered = states(crashed / "agents.db")
        count_of = sum(len(history[-1]["n"]) for history in recovered.values())
        assert acknowledged <= count_of <= acknowledged + 1
        made = [each for each in backups.iterdir() if ".part" not in each.name]
        backup = random.Random(seed).choice(made)
        before = states(backup, read_only=True)
        shutil.copyfile(backup, path)
        if is_refused(path):
            refused += 1
            backtrail.restore_backup(backup, path)
        assert states(path) == before, backup
        shutil.rmtree(place)
    assert refused  # the backups that have logs of other files beside them


def run_in_child(target, *args):
    child = spawn.Process(target=target, args=args)
    child.start()
    child.join()


def crash(path, backup):
    store = backtrail.open(path)
    for number in range(7):
        append(store, number)
    store.backup(backup)
    for number in range(7, 20):
        append(store, number)
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_crash(path):
    backtrail.open(path)
    os.kill(os.getpid(), signal.SIGKILL)


def crashed_store(path):
    """Leave a store as a killed process does: with a log. Return its backup and what both hold."""
    backup = path.with_name("backup.db")
    run_in_child(crash, path, backup)
    assert Path(f"{path}-wal").stat().st_size > 0
    return backup


@pytest.mark.parametrize("read_only", [False, True])
def test_log_of_another_file_is_refused(tmp_path, read_only):
    path = tmp_path / "agents.db"
    backup = crashed_store(path)
    log = Path(f"{path}-wal").read_bytes()
    before = states(backup, read_only=True)
    shutil.copyfile(backup, path)
    for _ in range(2):
        with pytest.raises(Conflict, match="restore-backup") as caught:
            backtrail.open(path, read_only=read_only)
        assert caught.value.code == "conflict.log"
    assert Path(f"{path}-wal").read_bytes() == log
    Path(f"{path}-wal").unlink()
    assert states(path, read_only=read_only) == before


def test_log_is_replayed_into_its_moved_file(tmp_path):
    path = tmp_path / "agents.db"
    crashed_store(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for ending in ("", "-wal"):
        shutil.copyfile(f"{path}{ending}", elsewhere / f"other.db{ending}")
    assert len(states(elsewhere / "other.db")["t0"][-1]["n"]) == 4
    assert len(states(path)["t0"][-1]["n"]) == 4


def test_restore_keeps_the_replaced_store_and_its_log(tmp_path):
    path = tmp_path / "agents.db"
    backup = crashed_store(path)
    wanted = states(backup, read_only=True)
    kept = backtrail.restore_backup(backup, path)
    assert states(path) == wanted == states(backup, read_only=True)
    assert len(states(kept)["t0"][-1]["n"]) == 4
    assert not Path(f"{path}-wal").exists()
    assert backtrail.restore_backup(backup, tmp_path / "new" / "agents.db") is None
    assert states(tmp_path / "new" / "agents.db") == wanted


def restore_until(path, backup, moment):
    """Restore a backup; die at the call to the disk with this number."""
    count = 0

    def step(call):
        def stepped(*args, **kwargs):
            nonlocal count
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return stepped

    for name in ("replace", "unlink", "rename"):
        setattr(Path, name, step(getattr(Path, name)))
    os.link, os.fsync = step(os.link), step(os.fsync)
    backtrail.restore_backup(backup, path)


@pytest.mark.parametrize("moment", range(1, 9))
def test_restore_that_is_killed_leaves_one_of_the_two(tmp_path, moment):
    path = tmp_path / "agents.db"
    backup = crashed_store(path)
    wanted = states(backup, read_only=True)
    run_in_child(restore_until, path, backup, moment)
    if not is_refused(path):
        found = states(path)
        assert found == wanted or len(found["t0"][-1]["n"]) == 4
    backtrail.restore_backup(backup, path)
    assert states(path) == wanted


def test_restore_refuses_a_store_that_is_open(tmp_path):
    path = tmp_path / "agents.db"
    backup = crashed_store(path)
    with backtrail.open(path), pytest.raises(Unavailable) as caught:
        backtrail.restore_backup(backup, path)
    assert caught.value.code == "unavailable.locked"
    code = f"import backtrail, sys; s = backtrail.open({str(path)!r}); print(flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    with pytest.raises(Unavailable) as caught:
        backtrail.restore_backup(backup, path)
    assert caught.value.code == "unavailable.locked"
    other.communicate()
    backtrail.restore_backup(backup, path)
    assert states(path) == states(backup)


def test_backup_of_files_is_restored(tmp_path):
    url = (tmp_path / "store").as_uri()
    with backtrail.open(url) as store:
        append(store, 1)
        store.backup(tmp_path / "backup")
        append(store, 6)
        kept = backtrail.restore_backup(tmp_path / "backup", url)
        with pytest.raises(NotFound) as caught:
            append(store, 11)
        assert caught.value.code == "not_found.store"
    assert states(url) == {"t1": [{"n": [1]}]} == states((tmp_path / "backup").as_uri())
    assert len(states(Path(kept).as_uri())["t1"]) == 2
    assert backtrail.restore_backup(tmp_path / "backup", (tmp_path / "other").as_uri()) is None
    assert states((tmp_path / "other").as_uri()) == {"t1": [{"n": [1]}]}


@pytest.mark.parametrize(
    ("backup", "store", "code"),
    [
        ("b.db", "memory://", "invalid.argument"),
        ("b.db", "postgresql://localhost/x", "invalid.argument"),
        ("b.db", "file:///tmp/x", "invalid.argument"),
        ("b.db", "b.db", "invalid.argument"),
        ("nothing.db", "s.db", "not_found.store"),
        ("text", "s.db", "invalid.store"),
        ("b.db", "  ", "invalid.url"),
        ("b.db", "text", "invalid.store"),
    ],
)
def test_restore_refuses_wrong_backup_and_target(tmp_path, monkeypatch, backup, store, code):
    monkeypatch.chdir(tmp_path)
    backtrail.open("b.db").close()
    Path("text").write_text("so long", encoding="utf-8")
    with pytest.raises(backtrail.Error) as caught:
        backtrail.restore_backup(backup, store)
    assert caught.value.code == code
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b.db", "text"]


def test_leftover_journal_does_not_empty_a_backup(tmp_path):
    path = tmp_path / "agents.db"
    with backtrail.open(tmp_path / "backup.db") as store:
        append(store, 1)
    Path(f"{path}-journal").write_bytes(journal_of_a_new_file())
    shutil.copyfile(tmp_path / "backup.db", path)
    with pytest.raises(Conflict) as caught:
        backtrail.open(path)
    assert caught.value.code == "conflict.log"
    Path(f"{path}-journal").unlink()
    assert states(path) == {"t1": [{"n": [1]}]}


def journal_of_a_new_file():
    """Return the journal that SQLite has while it writes the first page of a file: there were no pages before."""
    page = bytearray(512)
    page[:20] = bytes.fromhex("d9d505f920a163d7") + bytes(4) + os.urandom(4) + bytes(4)
    page[20:28] = (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    return bytes(page)


@pytest.mark.parametrize("has_log", [False, True])
def test_replacement_of_an_open_file_is_not_changed(tmp_path, has_log):
    path = tmp_path / "agents.db"
    with backtrail.open(path) as store:
        append(store, 1)
    backup = tmp_path / "backup.db"
    with backtrail.open(path) as store:
        store._backend._shared.log._pages = 12
        if has_log:
            append(store, 6)
        store.backup(backup)
        wanted = states(backup, read_only=True)
        subprocess.run(["cp", backup, path], check=True)  # in the same file, as other processes see it
        with pytest.raises(backtrail.Error) as caught:
            for number in range(2, 200):
                append(store, 1 + 5 * number)
        assert caught.value.code == "not_found.store"
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    assert states(path) == wanted


def test_marks_of_a_log_follow_each_other():
    for _ in range(2000):
        before = random.getrandbits(22) << 1 | 1
        begun = wal_mark.next_mark(before)
        other = random.getrandbits(23)
        assert wal_mark.fits(before, [begun])
        assert wal_mark.fits(begun, [begun])
        assert not wal_mark.fits(before, [begun, begun | 1])
        assert wal_mark.mark_in(wal_mark.marked(4, other)) == other
        assert wal_mark.format_in(wal_mark.marked(4, other)) == 4
        assert 0 <= wal_mark.marked(4, other) < 1 << 31


def collect(path):
    with backtrail.open(path) as store:
        store.gc()


def test_collection_beside_a_vacuum_locks_out_no_process(tmp_path, monkeypatch):
    path = tmp_path / "agents.db"
    run = maintenance.run

    def after_another_collection(connection, sql):
        if sql == "VACUUM":
            run_in_child(collect, path)
        run(connection, sql)

    with backtrail.open(path) as store, backtrail.open(path) as other:
        store.thread("t").save({"m": [1]})
        other.thread("t").append("m", 2)
        monkeypatch.setattr(maintenance, "run", after_another_collection)
        store.gc(erase=True)
        other.thread("t").append("m", 3)
    assert states(path)["t"][-1] == {"m": [1, 2, 3]}


def replace_and_exit(path, backup):
    store = backtrail.open(path)
    for number in range(7):
        append(store, number)
    store.backup(backup)
    for number in range(7, 60):
        append(store, number)
    subprocess.run(["cp", backup, path], check=True)  # and end without closing the store


def test_exit_does_not_undo_a_replaced_store(tmp_path):
    path, backup = tmp_path / "agents.db", tmp_path / "backup.db"
    # a process of its own: one of multiprocessing ends without closing what it has open
    code = f"from {__name__} import replace_and_exit; replace_and_exit({str(path)!r}, {str(backup)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert is_refused(path)
    backtrail.restore_backup(backup, path)
    assert states(path) == states(backup, read_only=True)


def test_appends_beside_a_long_reader_do_not_reread_the_log(tmp_path, monkeypatch):
    path = tmp_path / "agents.db"
    with backtrail.open(path) as store:
        append(store, 1)
    reader = apsw.Connection(str(path))
    read = []
    real = wal_mark._read_marks
    monkeypatch.setattr(wal_mark, "_read_marks", lambda fd, **options: read.append(fd) or real(fd, **options))
    with backtrail.open(path) as store:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM row").fetchall()
        for number in range(2, 300):
            append(store, 1 + 5 * number)
        assert len(read) < 100
        reader.execute("COMMIT")
    reader.close()


def test_migration_that_is_killed_is_replayed(tmp_path):
    path = tmp_path / "agents.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "STEPS", schema.STEPS[:-1])
        with backtrail.open(path) as store:
            append(store, 1)
    run_in_child(open_and_crash, path)
    assert Path(f"{path}-wal").stat().st_size > 0
    assert states(path) == {"t1": [{"n": [1]}]}
