"""Power cuts of encrypted stores: data and keyring are cut at the same moment, and nothing acknowledged is lost.

As tests/faults/test_crash_images.py. The key of a thread must be on the disk before the thread is.
"""

import random
import shutil
from collections import Counter

import pytest

from backtrail import urls
from backtrail.backends.file import log
from tests.support.disks import Platter, put, traced
from tests.support.disks_sqlite import traced_sqlite
from tests.support.lab import Book, Looker, quick_directory, verdict
from tests.support.sealing import KEY

KINDS = {"sqlite": traced_sqlite, "files": traced}
CHANCES = (0, 0.2, 0.5, 0.8, 1)


@pytest.fixture
def quick(tmp_path):
    with quick_directory(tmp_path) as made:
        yield made


def url_of(kind, directory):
    return str(directory / "s.db") if kind == "sqlite" else (directory / "s").as_uri()


def judged(kind, source, images):
    """Judge so many images, spread over all disk calls; return what was wrong, and how many images differed."""
    with KINDS[kind]() as disk:
        book = Book(lambda: len(disk.calls))
        book.use(url_of(kind, source), key=KEY)
        book.gather(url_of(kind, source), key=KEY)
    rng, looker, platter = random.Random(images), Looker(key=KEY), Platter()
    looked, wrong, made = {}, Counter(), 0
    target = source.with_name("crashed")
    for point, call in enumerate(disk.calls, 1):
        platter.see(call)
        while made < images * point / len(disk.calls):
            made += 1
            files = platter.image(rng, rng.choice(CHANCES))
            key = hash(tuple(sorted(files.items())))
            if key not in looked:
                put(files, source, target)
                looked[key] = looker.look(url_of(kind, target))
                shutil.rmtree(target, ignore_errors=True)
            fault = verdict(looked[key], book.done, point, "full")
            if fault is not None:
                wrong[f"{point}: {fault}"] += 1
    return wrong, len(looked)


@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_writes_survive_whole(kind, quick, monkeypatch):
    monkeypatch.setattr(log, "FILE_BYTES", 40_000)
    wrong, different = judged(kind, quick / "s", 200)
    assert not wrong
    assert different > 50


@pytest.mark.parametrize("kind", KINDS)
def test_keyring_that_is_not_durable_is_found(kind, quick, monkeypatch):
    """A seeded fault: if keys were written like data of a relaxed store, a cut would lose them."""
    at = urls.backend_at
    monkeypatch.setattr(urls, "backend_at", lambda url, **options: at(url, **options | {"durability": "relaxed"}))
    wrong, _ = judged(kind, quick / "s", 80)
    assert wrong


@pytest.mark.torture
@pytest.mark.parametrize("kind", KINDS)
def test_many_power_cuts(kind, quick, monkeypatch):
    monkeypatch.setattr(log, "FILE_BYTES", 40_000)
    wrong, different = judged(kind, quick / "s", 6000)
    assert not wrong
    print(f"{kind}, encrypted: 6,000 images, {different} different")  # noqa: T201 - for docs/reliability.md
