"""Real file systems: the power is cut, the disk is full, or can only be read."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import threading
from contextlib import contextmanager, suppress

import pytest

import backtrail
from backtrail import CommitUnknown, Unavailable
from backtrail.backends.file import log
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.sqlite import backend
from backtrail.backends.sqlite.backend import SqliteBackend
from tests.backends.sqlite.test_backend import in_child, raises
from tests.support.lab import DEEDS, Looker, picture, small_wal
from tests.support.mounts import loop, needs_root, read_only, tmpfs

KINDS = ["sqlite", "files"]
BACKENDS = {"sqlite": SqliteBackend, "files": FileBackend}


def url_of(kind, directory):
    return str(directory / "s.db") if kind == "sqlite" else (directory / "s").as_uri()


# -- power cuts ---------------------------------------------------------------------------------------


def stations():
    """Return the contents of a store after none, one, two ... of the operations."""
    with backtrail.open("memory://") as store:
        found = [picture(store, exact=False)]
        for _, deed in DEEDS:
            deed(store)
            found.append(picture(store, exact=False))
    return found


class Power:
    """What keeps a disk going."""

    def __init__(self, disk):
        self._disk = disk
        self.cutting = False

    def cut(self):
        self.cutting = True
        self._disk.shut_down()


def use(url, deeds, power, begin):
    """Do this many operations; return how many were acknowledged, in total and before the cut began.

    A sync that comes while the kernel shuts a file system down may return as if all were well. When the power is really
    cut, nobody is left to believe it.
    """
    store, done, before = None, 0, 0
    with suppress(backtrail.Error):
        store = backtrail.open(url)
        small_wal(store)
        begin()
        for _, deed in deeds:
            deed(store)
            done += 1
            before = before if power.cutting else done
    return done, before, store


def cut(kind, disk, rng, expected):
    """Use a store, cut the power while something is written or after; say what is wrong with what is left, or None."""
    url = url_of(kind, disk.where)
    power = Power(disk)
    deeds = DEEDS[: rng.randrange(1, len(DEEDS) + 1)]
    during = rng.random() < 0.7
    moment = threading.Timer(rng.uniform(0, 0.15), power.cut)
    done, before, store = use(url, deeds, power, moment.start if during else lambda: None)
    moment.join() if during else power.cut()
    if store is not None:
        with suppress(backtrail.Error):
            store.close()
    disk.unmount()
    disk.mount()
    seen = Looker(exact=False).look(url)
    for entry in disk.where.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if isinstance(seen, Exception):
        return repr(seen)
    return None if seen in expected[before : done + 2] else f"after {before} deeds: lost or half done"


def cuts(kind, system, tmp_path, times):
    rng, expected = random.Random(times), stations()
    with loop(tmp_path, system) as disk:
        return [fault for _ in range(times) if (fault := cut(kind, disk, rng, expected)) is not None]


@needs_root
@pytest.mark.parametrize("system", ["ext4", "xfs"])
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_writes_survive_a_power_cut(kind, system, tmp_path):
    assert not cuts(kind, system, tmp_path, 4)


@needs_root
@pytest.mark.torture
@pytest.mark.parametrize("system", ["ext4", "xfs"])
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_writes_survive_200_power_cuts(kind, system, tmp_path):
    assert not cuts(kind, system, tmp_path, 200)


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_power_cuts_find_a_store_that_does_not_sync(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(backend._SYNCHRONOUS, "full", "OFF")
    monkeypatch.setattr(log, "synced", lambda fd: None)
    assert len(cuts(kind, "ext4", tmp_path, 4)) >= 2


# -- full disks ---------------------------------------------------------------------------------------


def save_until_refused(store, codes):
    """Save until the disk refuses, and three times more; return the states that were acknowledged, and were not."""
    rng = random.Random(1)
    acknowledged, refused = [], []
    for at in range(400):
        state = {"at": at, "text": rng.randbytes(3000).hex()}
        try:
            store.thread("t").save(state)
            acknowledged.append(state)
        except (Unavailable, CommitUnknown) as error:
            assert error.code in codes  # noqa: PT017 - it may fail, or not
            there = isinstance(error, CommitUnknown) and store.thread("t").load().state == state
            (acknowledged if there else refused).append(state)
        if len(refused) > 3:
            break
    return acknowledged, refused


def check_full(store, make_room, codes):
    acknowledged, refused = save_until_refused(store, codes)
    assert [found.state for found in store.thread("t").history()] == acknowledged
    assert refused
    make_room()
    store.thread("t").save(refused[0])
    assert [found.state for found in store.thread("t").history()] == [*acknowledged, refused[0]]
    assert store.verify().ok


@contextmanager
def filled(kind, tmp_path):
    """Give a store on a small disk, and what makes room on it."""
    with tmpfs(tmp_path / "small", "900k") as where:
        ballast = where / "ballast"
        ballast.write_bytes(bytes(300_000))
        with backtrail.open(url_of(kind, where)) as store:
            yield store, ballast.unlink


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_store_recovers_from_a_full_disk(kind, tmp_path):
    with filled(kind, tmp_path) as (store, make_room):
        check_full(store, make_room, {"unavailable.full"})


@needs_root
@pytest.mark.parametrize("kind", [*KINDS, "memory"])
def test_backup_to_a_full_disk_fails_and_leaves_nothing(kind, tmp_path):
    url = "memory://" if kind == "memory" else url_of(kind, tmp_path)
    with tmpfs(tmp_path / "small", "100k") as where, backtrail.open(url) as store:
        store.thread("t").save({"text": random.Random(1).randbytes(100_000).hex()})
        with pytest.raises(Unavailable, match="free some space") as caught:
            store.backup(where / "copy.db")
        assert caught.value.code == "unavailable.full"
        assert list(where.iterdir()) == []


@pytest.fixture
def hushed(monkeypatch):
    """What is not written is taken for written."""
    for kind in BACKENDS.values():

        def commit(self, batch, told=kind.commit):
            try:
                return told(self, batch)
            except Unavailable:
                return tuple(range(1, len(batch.threads) + 1))

        monkeypatch.setattr(kind, "commit", commit)


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_unreported_full_disk_is_found(kind, tmp_path, hushed):
    with filled(kind, tmp_path) as (store, make_room), pytest.raises(AssertionError):
        check_full(store, make_room, {"unavailable.full"})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
@pytest.mark.parametrize("kind", KINDS)
def test_store_recovers_from_a_file_size_limit(kind, tmp_path):
    def child():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        with backtrail.open(url_of(kind, tmp_path)) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            codes = {"unavailable.full"}
            if kind == "sqlite":  # which takes it for a disk that fails
                codes = {"unavailable.io", "commit_unknown.io"}
            check_full(store, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, unlimited), codes)

    assert in_child(child) == 0


# -- disks that can only be read -------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_read_only_disk_is_read_and_refuses_writes(kind, tmp_path):
    where = tmp_path / "disk"
    where.mkdir()
    url = url_of(kind, where)
    with backtrail.open(url) as store:
        for _, deed in DEEDS:
            deed(store)
        before = picture(store)
    with read_only(where):
        with backtrail.open(url, read_only=True) as store:
            assert picture(store) == before
            assert store.verify().ok
            assert store.thread("third").load().state["n"] == 3
            with raises(Unavailable, "unavailable.read_only"):
                store.thread("t").save({})
        with pytest.raises(Unavailable) as caught:
            backtrail.open(url).thread("t").save({})
        assert caught.value.code in ("unavailable.open", "unavailable.read_only")
    with backtrail.open(url) as store:
        assert picture(store) == before
        store.thread("t").save({})


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_unreported_save_to_a_read_only_disk_is_found(kind, tmp_path, hushed):
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_read_only_disk_is_read_and_refuses_writes(kind, tmp_path)
