"""Stores that were moved, copied or restored while open; published ends; leftovers."""

import gc
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import ormsgpack
import pytest

import backtrail
from backtrail import Conversation, Message
from backtrail.backends.file import directory, frames
from backtrail.backends.file import log as file_log
from backtrail.backends.file.lock import Lock
from backtrail.backends.file.records import LIST
from backtrail.errors import Corrupt, NotFound, Unavailable
from tests.backends.file.test_crashes import FIRST, frames_of
from tests.backends.sqlite.test_backend import raises

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def opened(path, **options):
    return backtrail.open(path.as_uri(), **options)


def everything(path):
    with opened(path) as store:
        assert store.verify().faults == ()
        return {info.id: [c.state for c in store.thread(info.id).history()] for info in store.threads()}


def uid_of(path):
    generation, fd = directory.read(path)
    os.close(fd)
    return generation.uid


# ---- which store it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("deed", ["save", "gc", "load"])
def test_process_of_a_moved_store_leaves_its_successor_alone(path, deed, collected):
    old = opened(path)
    for n in range(6):
        old.thread("old").save({"n": n})
    old.thread("old").prune(keep_last=2)
    if collected:
        old.gc()
        old.thread("old").save({"n": 6})
        old.thread("old").prune(keep_last=2)
    path.rename(path.with_name("moved"))
    with opened(path) as new:
        new.thread("new").save({"x": 1})
        new.thread("new").save({"x": 2})
    for _ in range(2):
        with raises(NotFound, "not_found.store"):
            {"save": lambda: old.thread("old").save({}), "gc": old.gc, "load": lambda: old.thread("old").load()}[deed]()
        assert everything(path) == {"new": [{"x": 1}, {"x": 2}]}
    old.close()
    assert everything(path) == {"new": [{"x": 1}, {"x": 2}]}
    assert len(everything(path.with_name("moved"))["old"]) == 2


def test_collection_is_noticed_beside_hard_links(path):
    """As after `cp -al`."""
    held = opened(path)
    thread = held.thread("log")
    thread.save({"m": []})
    shutil.copytree(path, path.with_name("links"), copy_function=os.link)
    with opened(path) as other:
        for _ in range(2):
            for n in range(5):
                other.thread("t").save({"n": n})
            other.thread("t").prune(keep_last=1)
            other.gc()
        other.thread("u").save({"precious": True})
    thread.append("m", 1)
    assert held.verify(repair=True).ok
    held.close()
    found = everything(path)
    assert found["u"] == [{"precious": True}]
    assert found["log"][-1] == {"m": [1]}


@pytest.mark.parametrize("collected", [False, True])
def test_restored_copy_is_another_store_for_open_handles(path, collected):
    held = opened(path)
    thread = held.thread("t")
    thread.save({"m": []})
    shutil.copytree(path, path.with_name("copy"), ignore=lambda *_: {"backtrail.lock"})
    for n in range(3):
        thread.append("m", f"lost {n}")
    if collected:
        thread.prune(keep_last=1)
        held.gc()
    shutil.rmtree(path)
    shutil.copytree(path.with_name("copy"), path)
    with opened(path) as other:
        for n in range(3):
            other.thread("t").append("m", f"restored {n}")
    for call in (lambda: thread.append("m", "mine"), thread.load, lambda: thread.append("m", "mine")):
        with raises(NotFound, "not_found.store"):
            call()
    held.close()
    assert everything(path)["t"][-1] == {"m": ["restored 0", "restored 1", "restored 2"]}


def test_names_need_not_be_utf_8(tmp_path):
    for name in (b"\xff", b"\xfe"):
        with opened(Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))) as store:
            store.thread("t").save({"name": name})
    assert {os.fsencode(each.name) for each in tmp_path.iterdir()} == {b"\xff", b"\xfe"}
    database = f"sqlite:///{tmp_path}/%FD.db"
    backtrail.open(database).close()
    assert (tmp_path / os.fsdecode(b"\xfd.db")).exists()


# ---- snapshots of earlier versions ----------------------------------------------------------------------------------


def test_snapshot_of_an_earlier_version_is_ignored_and_removed(path):
    with opened(path) as store:
        store.thread("t").save({"n": 1})
    (path / "snapshot").write_bytes(b"BTRLSNAP" + os.urandom(100))
    (path / "snapshot.new-0123").write_bytes(b"BTRLSNAP")
    with opened(path, read_only=True) as store:
        assert store.thread("t").load().state == {"n": 1}
    assert (path / "snapshot").exists()
    assert everything(path) == {"t": [{"n": 1}]}
    assert not list(path.glob("snapshot*"))


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_all_readers_see_an_unpublished_write(path):
    with opened(path) as store:
        store.thread("t").save({"n": 1})
    stores = [opened(path, read_only=True), opened(path)]
    assert [store.thread("t").load().state["n"] for store in stores] == [1, 1]
    child = os.fork()
    if child == 0:
        store = opened(path)
        with mock.patch.object(Lock, "publish", mock.Mock(side_effect=lambda *_: os._exit(9))):
            store.thread("t").save({"n": 2})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with opened(path, read_only=True) as store:
        assert store.thread("t").load().state["n"] == 2
    assert [store.thread("t").load().state["n"] for store in stores] == [2, 2]
    for store in stores:
        store.close()


def test_reader_publishes_an_interrupted_write(path, monkeypatch):
    with opened(path) as one, opened(path) as other:
        one.thread("t").save({"n": 1})
        assert other.thread("t").load().state == {"n": 1}
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Lock, "publish", mock.Mock(side_effect=KeyboardInterrupt))
            one.thread("t").save({"n": 2})
        found = one.thread("t").load().state
        assert other.thread("t").load().state == found
        assert other._backend._storage.lock.published().number == other._backend._storage.log.number


def test_relaxed_writers_wait_for_the_disk_now_and_then(path, monkeypatch):
    monkeypatch.setattr(file_log, "SYNC_FRAMES", 10)
    with opened(path, durability="relaxed") as store:
        log = store._backend._storage.log
        ahead = []
        for n in range(35):
            store.thread("t").save({"n": n})
            ahead.append(log.number - log.synced)
        assert max(ahead) == 10
        real = file_log.time.monotonic
        with monkeypatch.context() as patch:
            patch.setattr(file_log.time, "monotonic", lambda: real() + file_log.SYNC_SECONDS)
            store.thread("t").tag("@", "x")
        assert log.number - log.synced == 1


# ---- lists ----------------------------------------------------------------------------------------------------------


def damage_first_list(file, uid):
    data = bytearray(file.read_bytes())
    for frame in frames_of(file, uid):
        at = frame.at + frames.HEADER
        while at < frame.bodies_at:
            length = int.from_bytes(data[at : at + 4], "big")
            if ormsgpack.unpackb(bytes(data[at + 8 : at + 8 + length]))[0] == LIST:
                data[at + 8 + length - 1] ^= 1
                file.write_bytes(data)
                return
            at += 8 + length
    raise AssertionError


@pytest.mark.parametrize("collected", [False, True])
def test_list_with_a_lost_part_is_rebuilt(path, collected, monkeypatch, caplog):
    monkeypatch.setattr("backtrail.backends.file.log._LIST_ENTRIES", 2)
    monkeypatch.setattr("backtrail.backends.file.log._FRAME_CHANGES", 2)
    caplog.set_level(logging.CRITICAL)
    with opened(path) as store:
        store.conversations.save(Conversation("a", id="c"))
        for when in ("early", "late"):
            for n in range(4):
                store.conversations.append("c", Message.user(f"{when}{n}"))
            assert len(store.search(f"{when}3")) == 1
        if collected:
            store.conversations.save(Conversation("a", id="d"))
            store.conversations.delete("d")
            store.gc()
    (hurt,) = path.glob("base-*") if collected else [path / FIRST]
    damage_first_list(hurt, uid_of(path))
    for _ in range(2):
        with opened(path) as store:
            for word in ("early0", "early3", "late0", "late3"):
                assert len(store.search(word)) == 1, word
            assert store.verify().misindexed == ()
            store.gc()
            assert store.verify().ok


# ---- what is left ---------------------------------------------------------------------------------------------------


def test_a_store_that_is_dropped_leaves_no_file_open(path):
    there = Path("/proc/self/fd")
    if not there.exists():
        pytest.skip("this system does not tell which files are open")
    opened(path).close()
    gc.collect()
    before = len(list(there.iterdir()))
    for n in range(5):
        store = opened(path)
        store.thread("t").save({"n": n})
        del store
        gc.collect()
    assert len(list(there.iterdir())) == before


def test_collection_without_room_writes_nothing(path, monkeypatch):
    with opened(path) as store:
        for n in range(5):
            store.thread("t").save({"n": n})
        store.thread("t").prune(keep_last=1)
        before = sorted(path.iterdir())
        full = os.statvfs_result((1,) * 10)
        with monkeypatch.context() as patch:
            patch.setattr(directory.os, "statvfs", lambda _: full)
            for _ in range(3):
                with raises(Unavailable, "unavailable.full"):
                    store.gc()
        assert sorted(path.iterdir()) == before
        store.gc()
        assert store.verify().ok


@pytest.mark.parametrize("record", [[99], [1, 2], [], 5, {"a": 1}, [0, "x"]], ids=repr)
def test_records_without_sense_are_corrupt(path, record):
    with opened(path) as store:
        store.thread("t").save({"n": 1})
    (path / "backtrail.lock").unlink()
    frame = frames.frame(uid_of(path), 2, 1, [ormsgpack.packb([15, []]), ormsgpack.packb(record)], [])
    with (path / FIRST).open("ab") as log:
        log.write(b"".join(frame))
    before = (path / FIRST).read_bytes()
    with raises(Corrupt, "corrupt.store"):
        opened(path)
    assert (path / FIRST).read_bytes() == before


def test_too_many_open_files_raise(path):
    code = (
        "import resource, sys, backtrail\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))\n"
        "try:\n    backtrail.open(sys.argv[1])\n"
        "except backtrail.Unavailable as error:\n    print(error.code, 'ulimit' in str(error))\n"
    )
    opened(path).close()
    done = subprocess.run(
        [sys.executable, "-c", "import backtrail.backends.file.backend\n" + code, path.as_uri()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "unavailable.open True\n", done.stderr
