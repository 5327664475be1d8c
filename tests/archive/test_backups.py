"""Backups: what depends on the kind of store. What all of them promise is in the suite."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import backtrail
from backtrail import Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.backends.file import log as file_log
from tests.backends.file.test_crashes import FIRST, frames_of
from tests.backends.sqlite.test_backend import raises
from tests.support.disks import traced
from tests.support.sample_store import everything, furnish

# -- SQLite -----------------------------------------------------------------------------------------


def test_a_backup_is_a_store_of_one_moment(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        furnish(store)
        store.search("word")
        wanted = everything(store)
        told = []

        def meanwhile(what, count):
            told.append((what, count))
            if len(told) == 1:
                store.thread("trip").save({"after": "that"})
                with backtrail.open(tmp_path / "s.db") as other:
                    other.thread("other").save(["x" * 100_000])

        size = store.backup(tmp_path / "new" / "b.db", progress=meanwhile)
        assert size == (tmp_path / "new" / "b.db").stat().st_size
        assert told[-1] == ("pages", size // 4096)
        assert everything(store) != wanted
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["b.db"]
    with backtrail.open(tmp_path / "new" / "b.db") as store:
        assert everything(store) == wanted
        assert store.verify().ok
        assert len(store.search("another way")) == 1
        store.thread("trip").save({"goes": "on"})


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_a_backup_is_not_placed_beside_leftover_sqlite_files(tmp_path, ending):
    left = tmp_path / f"b.db{ending}"

    def meanwhile(what, count):
        left.write_bytes(b"left")

    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"n": 1})
        for _ in range(2):  # it comes while the pages are copied, and is there before
            with pytest.raises(Conflict, match=f"{left}: .* remove it") as caught:
                store.backup(tmp_path / "b.db", progress=meanwhile)
            assert caught.value.code == "conflict.exists"
            assert left.read_bytes() == b"left"
            assert not [each for each in tmp_path.iterdir() if each.name == "b.db" or each.suffix == ".part"]
        left.unlink()
        store.backup(tmp_path / "b.db")
        store.export(tmp_path / "c.db")


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_no_file_is_placed_where_sqlite_expects_its_own(tmp_path, ending):
    path = tmp_path / "s.db"
    part = tmp_path / f"s.db{ending}"
    with backtrail.open(path) as store:
        store.thread("t").save({"n": 1})
    with backtrail.open("memory://") as store, backtrail.open(f"file://{tmp_path}/f") as files:
        for call in (store.export, store.backup, files.export, files.backup):
            with pytest.raises(Conflict, match=r"take this file for a part of s\.db") as caught:
                call(part)
            assert (caught.value.code, part.exists()) == ("conflict.exists", False)
        store.export(tmp_path / f"other{ending}")
        store.export(tmp_path / ending)
        files.export(tmp_path / f"f{ending}")

        def meanwhile(what, count):
            (tmp_path / "late").touch()

        store.thread("t").save([1])
        with pytest.raises(Conflict, match="take this file for a part of late"):
            store.export(tmp_path / f"late{ending}", progress=meanwhile)


def test_a_closed_store_is_not_backed_up(tmp_path):
    store = backtrail.open(tmp_path / "s.db")
    store.thread("t").save({"n": 1})
    store.close()
    with pytest.raises(Unavailable) as caught:
        store.backup(tmp_path / "b.db")
    assert caught.value.code == "unavailable.closed"
    assert [each.name for each in tmp_path.iterdir()] == ["s.db"]


@pytest.mark.parametrize("read_only", [False, True])
def test_backup_notices_another_store_under_its_path(tmp_path, read_only):
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        store.thread("mine").save({"n": 1})
    with backtrail.open(path, read_only=read_only) as store:
        before = everything(store)
        (tmp_path / "away").mkdir()
        for part in tmp_path.glob("s.db*"):
            part.rename(tmp_path / "away" / part.name)
        calls = [lambda: store.export(tmp_path / "1"), lambda: store.backup(tmp_path / "b.db"), store.verify]
        for there in ("there is none now|store does not exist", "there is another store now: open it again"):
            for call in calls:
                with pytest.raises(NotFound, match=there) as caught:
                    call()
                assert caught.value.code == "not_found.store"
            with backtrail.open(path) as other:
                other.thread("other").save({"n": 2})
        path.unlink()
        for part in (tmp_path / "away").iterdir():
            part.rename(tmp_path / part.name)
        store.export(tmp_path / "1")
        assert everything(store) == before
    with backtrail.open("memory://") as copied:
        copied.import_(tmp_path / "1")
        assert everything(copied) == before


def test_a_backup_keeps_the_access_rights_of_the_store(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"n": 1})
        (tmp_path / "s.db").chmod(0o600)
        store.backup(tmp_path / "b.db")
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600


# -- files ------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A file store with a base and several log files; its path and its content."""
    path = tmp_path / "store"
    monkeypatch.setattr(file_log, "FILE_BYTES", 4000)
    with backtrail.open(path.as_uri()) as store:
        furnish(store)
        store.gc()
        for n in range(20):
            store.thread("more").save({"n": n, "text": os.urandom(300)})
        wanted = everything(store)
    names = [each.name for each in path.iterdir()]
    assert len([name for name in names if name.startswith("log-")]) > 2
    assert len([name for name in names if name.startswith("base-")]) == 1
    return path, wanted


def opened(path, **options):
    return backtrail.open(path.as_uri(), **options)


def test_a_backup_of_files_copies_the_files(many, tmp_path):
    path, wanted = many
    told = []
    with opened(path, read_only=True) as store:
        size = store.backup(tmp_path / "backup", progress=lambda *what: told.append(what))
    there = {each.name: each.read_bytes() for each in (tmp_path / "backup").iterdir()}
    lock = there.pop("backtrail.lock")
    assert there == {name: (path / name).read_bytes() for name in there}
    assert {each.name for each in path.iterdir()} - there.keys() <= {"backtrail.lock", "snapshot"}
    assert sum(map(len, there.values())) + len(lock) == size
    assert told[-1] == ("bytes", size - len(lock) - len(there["backtrail.store"]))
    with opened(tmp_path / "backup") as saved:
        assert everything(saved) == wanted


def test_bytes_behind_the_last_write_are_not_backed_up(tmp_path, caplog):
    with opened(tmp_path / "store") as store:
        store.thread("t").save({"n": 1})
        with (tmp_path / "store" / FIRST).open("ab") as log:
            log.write(b"somebody has begun to write")
        store.backup(tmp_path / "backup")
    caplog.clear()
    with opened(tmp_path / "backup") as saved:
        assert saved.thread("t").load().state == {"n": 1}
    assert not caplog.records


@pytest.mark.parametrize("lost", [1, 2])
def test_a_backup_of_a_damaged_store_has_the_damage(tmp_path, lost):
    path = tmp_path / "store"
    with opened(path) as store:
        for n in range(8):
            store.thread("t").save({"n": n})
        uid = store._backend._storage.generation.uid
    data = bytearray((path / FIRST).read_bytes())
    for frame in frames_of(path / FIRST, uid)[4 : 4 + lost]:  # of one the next one tells; of two it is not known
        data[frame.at : frame.end] = bytes(frame.end - frame.at)
    (path / FIRST).write_bytes(data)
    with opened(path) as store:
        told, before = store.verify(), everything(store)
        assert not told.ok
        store.backup(tmp_path / "backup")
        with opened(tmp_path / "backup") as saved:
            assert everything(saved) == before
            assert [each.replace("/backup/", "/store/") for each in saved.verify().faults] == [*told.faults]
            assert saved.verify(repair=True).repaired
            assert saved.verify().ok
        assert not store.verify().ok


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_damaged_last_write_is_backed_up(tmp_path, where):
    path = tmp_path / "store"
    with opened(path, compression=False) as store:
        store.thread("a").save({"n": 1})
        with store.transaction():
            store.thread("b").save({"n": 2})
            store.thread("c").save({"n": 3, "x": os.urandom(3000)})
        uid = store._backend._storage.generation.uid
    last = frames_of(path / FIRST, uid)[-1]
    data = bytearray((path / FIRST).read_bytes())
    data[last.at + 4 if where == "header" else last.end - 1] ^= 1
    (path / FIRST).write_bytes(data)
    with opened(path) as store:
        assert not store.verify().ok
        assert store.thread("b").load().state == {"n": 2}
        store.backup(tmp_path / "backup")
    for read_only in (True, False):
        with opened(tmp_path / "backup", read_only=read_only) as saved:
            assert not saved.verify().ok
            assert saved.thread("b").load().state == {"n": 2}


@pytest.mark.parametrize("name", ["snapshot", "log-000000000002", "deep/er"])
def test_a_backup_is_not_put_into_the_store_itself(many, name):
    path, wanted = many
    with opened(path) as store:
        with raises(Invalid, "invalid.argument"):
            store.backup(path / name)
        store.gc()
        assert everything(store) == wanted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has groups to give away")
@pytest.mark.parametrize("kind", ["files", "sqlite"])
@pytest.mark.parametrize("make", ["backup", "export"])
def test_exports_and_backups_keep_the_group_of_the_store(tmp_path, kind, make, monkeypatch):
    place = tmp_path / "store"
    store = opened(place) if kind == "files" else backtrail.open(place)
    for each in (place, *(place.iterdir() if kind == "files" else ())):
        os.chown(each, -1, 5000)
        each.chmod(0o770 if each.is_dir() else 0o660)
    getattr(store, make)(tmp_path / "one")

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    getattr(store, make)(tmp_path / "two")
    store.close()
    one, two = (tmp_path / name for name in ("one", "two"))
    if one.is_dir():
        assert (one.stat().st_gid, stat.S_IMODE(one.stat().st_mode)) == (5000, 0o770)
        assert stat.S_IMODE(two.stat().st_mode) == 0o700
        one, two = one / "backtrail.store", two / "backtrail.store"
    assert (one.stat().st_gid, stat.S_IMODE(one.stat().st_mode)) == (5000, 0o660)
    assert stat.S_IMODE(two.stat().st_mode) == 0o600


def test_a_file_truncated_during_a_backup_is_an_error(many, tmp_path):
    path, _ = many
    (last, *_) = sorted(path.glob("log-*"), reverse=True)
    with opened(path) as store, raises(Corrupt, "corrupt.store"):
        store.backup(tmp_path / "backup", progress=lambda *_: os.truncate(last, 0))
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_a_backup_of_files_keeps_the_access_rights(tmp_path):
    with opened(tmp_path / "store") as store:
        store.thread("t").save({"n": 1})
        (tmp_path / "store").chmod(0o750)
        (tmp_path / "store" / "backtrail.store").chmod(0o640)
        store.backup(tmp_path / "backup")
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "backup").iterdir()}
    assert modes == {"backtrail.store": 0o640, "backtrail.lock": 0o640, FIRST: 0o640}
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o750


def test_a_backup_is_synced_before_it_is_renamed(many, tmp_path, monkeypatch):
    path, _ = many
    with opened(path) as store, traced() as disk:
        rename, at = os.rename, []
        monkeypatch.setattr(os, "rename", lambda *names: (at.append(len(disk.calls)), rename(*names))[1])
        store.backup(tmp_path / "backup")
    before, after = disk.calls[: at[0]], disk.calls[at[0] :]
    made = {call.file: n for n, call in enumerate(before) if call.what == "create"}
    written = {call.file: n for n, call in enumerate(before) if call.what == "write"}
    synced = {call.file: n for n, call in enumerate(before) if call.what.startswith("sync")}
    assert len(made) > 3
    assert all(synced[file] > written[file] for file in made)
    part = next(call.file for call in reversed(before) if call.what == "sync directory")
    assert Path(part).suffix == ".part"
    assert synced[part] > max(made.values())
    assert [call.file for call in after if call.what == "sync directory"] == [str(tmp_path)]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_backup_raises_and_leaves_nothing(many, tmp_path, code):
    path, wanted = many
    with opened(path) as store, traced() as disk:
        disk.reads = True
        for k in range(1, 1000):
            left = k

            def fail(call):
                nonlocal left
                left -= 1
                if left == 0:
                    raise OSError(code, os.strerror(code))

            disk.before = fail
            try:
                store.backup(tmp_path / "backup")
            except Unavailable:
                disk.before = lambda _: None
                if (tmp_path / "backup").exists():  # the last sync failed: it is whole
                    break
                assert [each.name for each in tmp_path.iterdir()] == ["store"], k
            else:
                raise AssertionError(k)
        assert k > 20
        assert everything(store) == wanted
    with opened(tmp_path / "backup") as saved:
        assert everything(saved) == wanted


def test_a_killed_backup_leaves_an_unread_part(many, tmp_path):
    path, wanted = many
    script = """
        import os, signal, sys, backtrail
        with backtrail.open(sys.argv[1]) as store:
            store.backup(sys.argv[2], progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    """
    script = "\n".join(line.strip(" ") if n < 2 else line[8:] for n, line in enumerate(script.splitlines()))
    done = subprocess.run([sys.executable, "-c", script, path.as_uri(), tmp_path / "backup"], check=False)
    assert done.returncode == -signal.SIGKILL
    (part,) = (each.name for each in tmp_path.iterdir() if each.name != "store")
    assert part.startswith(".backtrail-")
    assert part.endswith(".part")
    with opened(path) as store:
        store.backup(tmp_path / "backup")
    with opened(tmp_path / "backup") as saved:
        assert everything(saved) == wanted


def test_a_closed_store_in_files_is_not_backed_up(tmp_path):
    store = opened(tmp_path / "store")
    store.close()
    with raises(Unavailable, "unavailable.closed"):
        store.backup(tmp_path / "backup")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


# -- memory -----------------------------------------------------------------------------------------


def test_an_invalid_backup_path_is_refused_before_copying(tmp_path):
    (tmp_path / "b.db").touch()
    (tmp_path / "c.db-wal").touch()
    with backtrail.open("memory://") as store:
        store.thread("t").save({"n": 1})
        told = []
        for name in ("b.db", "c.db"):
            with raises(Conflict, "conflict.exists"):
                store.backup(tmp_path / name, progress=lambda *what: told.append(what))
        assert told == []
        assert sorted(each.name for each in tmp_path.iterdir()) == ["b.db", "c.db-wal"]
