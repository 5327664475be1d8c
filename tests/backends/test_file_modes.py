"""File modes: only the owner can read a new store, its copies, exports and backups, with any umask."""

import os
import stat

import pytest

import backtrail
from tests.support import servers
from tests.support.commands import good


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(place):
    """The modes of all files and directories below a place, by their names."""
    return {each.relative_to(place).as_posix(): stat.S_IMODE(each.stat().st_mode) for each in sorted(place.rglob("*"))}


def test_new_sqlite_store_is_for_its_owner(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"n": 1})
        store.search("word")
        assert modes(tmp_path) == {"s.db": 0o600, "s.db-shm": 0o600, "s.db-wal": 0o600}
        store.gc(erase=True)
        store.backup(tmp_path / "backups" / "b.db")
        store.export(tmp_path / "e")
    backtrail.copy(tmp_path / "s.db", tmp_path / "c.db")
    backtrail.restore_backup(tmp_path / "backups" / "b.db", tmp_path / "r.db")
    found = modes(tmp_path)
    assert {found[name] for name in ("s.db", "backups/b.db", "e", "c.db", "r.db")} == {0o600}


def test_new_store_in_files_is_for_its_owner(tmp_path):
    with backtrail.open((tmp_path / "s").as_uri()) as store:
        for number in range(300):
            store.thread("t").save({"n": number})
        store.gc()
        store.backup(tmp_path / "b")
        store.export(tmp_path / "e")
    backtrail.copy((tmp_path / "s").as_uri(), (tmp_path / "c").as_uri())
    backtrail.restore_backup(tmp_path / "b", (tmp_path / "r").as_uri())
    for name, mode in modes(tmp_path).items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), name


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_copies_of_other_stores_are_private(tmp_path, kind):
    place = servers.place() if kind == "postgres" else None
    with place or memory() as opener, opener() as store:
        store.thread("t").save({"n": 1})
        store.export(tmp_path / "e")
        store.backup(tmp_path / "b.db")
    assert modes(tmp_path) == {"b.db": 0o600, "e": 0o600}


class memory:  # noqa: N801 - as servers.place
    """Return a function that opens a memory store."""

    def __enter__(self):
        return lambda: backtrail.open("memory://")

    def __exit__(self, *_):
        pass


def test_existing_file_keeps_its_mode(tmp_path):
    (tmp_path / "s.db").touch(0o640)
    (tmp_path / "files").mkdir(0o750)
    for url in (tmp_path / "s.db", (tmp_path / "files").as_uri()):
        with backtrail.open(url) as store:
            store.thread("t").save({"n": 1})
    found = modes(tmp_path)
    assert (found["s.db"], found["files"], found["files/backtrail.store"]) == (0o640, 0o750, 0o600)
    with backtrail.open(tmp_path / "s.db") as store:
        store.export(tmp_path / "e")
    assert modes(tmp_path)["e"] == 0o640  # for those who may read the store


def test_command_line_makes_files_for_their_owner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with backtrail.open("s.db") as store:
        store.thread("t").save({"n": 1})
    good("export", "e", "--store", "s.db")
    good("backup", "b.db", "--store", "s.db")
    good("import", "e", "--store", "new.db")
    good("copy", "s.db", "copied.db")
    assert set(modes(tmp_path).values()) == {0o600}
