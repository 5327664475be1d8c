"""Power cuts of SQLite and file stores: acknowledged writes survive; a write in progress survives whole or not at all.

The test records all disk calls of a store. After each call, it builds the states in which a power cut may leave the
disk (see `disks.Platter`), and opens them.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

import backtrail
from backtrail.backends.file import disk as file_disk
from backtrail.backends.file import log
from backtrail.backends.port import Batch
from backtrail.backends.sqlite import backend, commit
from tests.support.disks import Platter, put, traced
from tests.support.disks_sqlite import traced_sqlite
from tests.support.lab import Book, Done, Looker, picture, quick_directory, small_wal, verdict

KINDS = {"sqlite": traced_sqlite, "files": traced}
GOLDEN = Path(__file__).parents[1] / "golden"
CHANCES = (0, 0.2, 0.5, 0.8, 1)


@pytest.fixture
def quick(tmp_path):
    with quick_directory(tmp_path) as made:
        yield made


def url_of(kind, directory):
    return str(directory / "s.db") if kind == "sqlite" else directory.as_uri()


@contextmanager
def used(kind, directory, **options):
    """Return the disk calls of a store, and when each write was acknowledged."""
    with KINDS[kind]() as disk:
        if hasattr(disk, "syncs"):
            disk.syncs = options.pop("syncs", True)
        book = Book(lambda: len(disk.calls))
        book.use(url_of(kind, directory), **options)
        if options.get("durability") != "relaxed":
            book.gather(url_of(kind, directory), **options)
    yield disk.calls, book.done


def crashed(kind, source, calls, done, images, *, durability="full", thorough=False, enough=1 << 30, first=0):
    """Judge so many images, spread over all calls from the first on.

    Returns what was wrong with how many, and how many images differed.
    """
    rng = random.Random(images)
    looker = Looker(thorough=thorough)
    looked: dict[int, object] = {}
    platter = Platter()
    wrong: Counter[str] = Counter()
    target = source.with_name("crashed")
    made = 0
    for point, call in enumerate(calls, 1):
        platter.see(call)
        while made < images * (point - first) / (len(calls) - first):
            made += 1
            files = platter.image(rng, rng.choice(CHANCES))
            key = hash(tuple(sorted(files.items())))
            if key not in looked:
                put(files, source, target)
                looked[key] = looker.look(url_of(kind, target))
                shutil.rmtree(target, ignore_errors=True)
            fault = verdict(looked[key], done, point, durability)
            if fault is not None:
                wrong[f"{point}: {fault}"] += 1
        if len(wrong) >= enough:
            break
    return wrong, len(looked)


@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_writes_survive_whole(kind, quick, monkeypatch):
    monkeypatch.setattr(log, "FILE_BYTES", 40_000)
    with used(kind, quick / "s") as (calls, done):
        wrong, different = crashed(kind, quick / "s", calls, done, 2000)
    assert not wrong
    assert different > (300 if kind == "sqlite" else 200)


@pytest.mark.parametrize("kind", KINDS)
def test_relaxed_loses_the_newest_and_never_more(kind, quick):
    with used(kind, quick / "s", durability="relaxed") as (calls, done):
        wrong, _ = crashed(kind, quick / "s", calls, done, 200, durability="relaxed")
        assert not wrong
        # It is not "full", and this is how one would know.
        lost, _ = crashed(kind, quick / "s", calls, done, 400, durability="full", enough=3)
    assert any("lost" in fault for fault in lost)


@pytest.mark.torture
@pytest.mark.parametrize("durability", ["full", "relaxed"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_power_cuts(kind, quick, durability, monkeypatch):
    monkeypatch.setattr(log, "FILE_BYTES", 40_000)
    with used(kind, quick / "s", durability=durability) as (calls, done):
        wrong, different = crashed(kind, quick / "s", calls, done, 12_000, durability=durability, thorough=True)
    print(f"{kind}, {durability}: 12,000 images, {different} different")  # noqa: T201 - for docs/reliability.md
    assert not wrong


# -- migration ----------------------------------------------------------------------------------------


def migrated(name, directory, images, *, thorough=False):
    directory.mkdir()
    path = directory / "s.db"
    shutil.copy(GOLDEN / name, path)
    with backtrail.open(path, read_only=True) as store:
        before = picture(store)
    with traced_sqlite() as disk:
        with backtrail.open(path) as store:
            small_wal(store)
            assert picture(store) == before
        calls = disk.calls
    first = [call.what for call in calls].index("sync directory") + 1  # then the golden store is on the disk
    return crashed("sqlite", directory, calls, [Done("golden", 0, 0, before)], images, thorough=thorough, first=first)


@pytest.mark.parametrize("name", ["format1.db", "format3.db"])
def test_a_migration_that_is_cut_short_loses_nothing(name, quick):
    wrong, different = migrated(name, quick / "s", 60)
    assert not wrong
    assert different > 15


@pytest.mark.torture
@pytest.mark.parametrize("name", ["format1.db", "format2.db", "format3.db"])
def test_many_migrations_that_are_cut_short(name, quick):
    assert not migrated(name, quick / "s", 500, thorough=True)[0]


# -- seeded faults: each is found --------------------------------------------------------------------


def _not_synced(patch):
    patch.setitem(backend._SYNCHRONOUS, "full", "OFF")


def _synced_now_and_then(patch):
    patch.setitem(backend._SYNCHRONOUS, "full", "NORMAL")


def _committed_in_two_halves(patch):
    whole = commit._write

    def write(connection, batch):
        numbers = whole(connection, batch._replace(rows=batch.rows[:1], tag=()))
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        for thread, row in batch.rows[1:]:
            commit._insert(connection, commit._key(thread, row.seq, numbers), row)
        whole(connection, Batch(tag=tuple((max(thread, -thread), seq, tag) for thread, seq, tag in batch.tag)))
        return numbers

    patch.setattr(commit, "_write", write)


def _log_not_synced(patch):
    patch.setattr(log, "synced", lambda fd: None)


def _directory_not_synced(patch):
    patch.setattr(file_disk.os, "fsync", lambda fd: None)


SEEDED = [
    ("sqlite", _not_synced, ""),
    ("sqlite", _synced_now_and_then, "lost"),
    ("sqlite", _committed_in_two_halves, "half done"),
    ("files", _log_not_synced, "lost"),
    ("files", _directory_not_synced, ""),
]


@pytest.mark.torture
@pytest.mark.parametrize(
    ("kind", "fault", "said"), SEEDED, ids=[f"{kind}{fault.__name__}" for kind, fault, _ in SEEDED]
)
def test_seeded_faults_are_found(kind, fault, said, quick):
    with KINDS[kind]() as disk, pytest.MonkeyPatch.context() as patch:
        fault(patch)
        book = Book(lambda: len(disk.calls))
        book.use(url_of(kind, quick / "s"))
    wrong, _ = crashed(kind, quick / "s", disk.calls, book.done, 600, enough=10)
    assert any(said in found for found in wrong)


def test_lying_disk_is_detected(quick):
    with used("sqlite", quick / "s", syncs=False) as (calls, done):
        wrong, _ = crashed("sqlite", quick / "s", calls, done, 600, enough=3)
    assert wrong
