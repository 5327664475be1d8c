"""The backend of docs/backends.md passes the suite, and the page shows its current code."""

import contextlib
import importlib.util
import multiprocessing
import re
import sys
from pathlib import Path

import pytest

import backtrail
from backtrail.errors import Invalid, Unavailable
from backtrail.testing import (
    ChangeFeedConformance,
    LifecycleConformance,
    ReaderWriterConformance,
    SearchIndexConformance,
)

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "examples" / "toy_backend.py"
_spec = importlib.util.spec_from_file_location("toy_backend", TOY)
toy_backend = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toy_backend)


class TestToy(ReaderWriterConformance, LifecycleConformance, SearchIndexConformance, ChangeFeedConformance):
    def open_backend(self, folder):
        return contextlib.closing(toy_backend.ToyBackend(folder / "store.toy"))


def test_toy_is_short():
    assert len(TOY.read_text().splitlines()) < 200


def test_toy_store_passes_the_store_tests(tmp_path):
    with backtrail.Store(toy_backend.ToyBackend(tmp_path / "store.toy")) as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        for n in range(30):
            thread.append("messages", {"role": "user", "content": f"message {n}"})
        fork = thread.fork("f")
        fork.append("messages", {"role": "user", "content": "another fox"})
        assert [hit.checkpoint_id for hit in store.search("fox")] == [fork.load().id]
        assert store.verify().ok
        thread.prune(keep_last=2)
        store.gc()
        assert store.verify().ok
        assert store.stats().threads == 2
        with pytest.raises(Unavailable):
            store.gc(erase=True)
        store.export(tmp_path / "export")
        with backtrail.open("memory://") as copy:
            copy.import_(tmp_path / "export")
            assert copy.thread("f").load().state == fork.load().state


def _append(path, name):
    with backtrail.Store(toy_backend.ToyBackend(path)) as store:
        for n in range(20):
            store.thread("t").append("messages", f"{name} {n}")


def test_processes_share_a_toy_store(tmp_path):
    path = tmp_path / "store.toy"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append, args=(path, name)) for name in "ab"]
    with backtrail.Store(toy_backend.ToyBackend(path)) as store:
        store.thread("t").save({"messages": []})
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        messages = store.thread("t").load().state["messages"]
    assert sorted(messages) == sorted(f"{name} {n}" for name in "ab" for n in range(20))


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """A package that registers the scheme toy://, as pip installs it."""
    metadata = tmp_path / "site" / "toy_backend-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[backtrail.backends]\ntoy = toy_urls:open_toy\n")
    (tmp_path / "site" / "toy_urls.py").write_text(
        "import toy_backend\n\n\ndef open_toy(url, *, durability, read_only):\n"
        "    assert (durability, read_only) == ('relaxed', False)\n"
        "    return toy_backend.ToyBackend(url.removeprefix('toy://'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setitem(sys.modules, "toy_backend", toy_backend)
    yield
    sys.modules.pop("toy_urls", None)


def test_registered_scheme_opens_its_backend(tmp_path, registered):
    for _ in range(2):
        with backtrail.open(f"TOY://{tmp_path}/store.toy", durability="relaxed") as store:
            assert isinstance(store._backend, toy_backend.ToyBackend)
            store.thread("t").save({"n": 1})
    with pytest.raises(Invalid) as caught:
        backtrail.open("toys://x")
    assert caught.value.code == "invalid.url"
    with pytest.raises(Invalid):
        backtrail.open(f"toy://{tmp_path}/store.toy", schema="s")


def test_docs_page_has_the_code_of_the_toy():
    toy, page = TOY.read_text(), (ROOT / "docs" / "backends.md").read_text()
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", page)
    shown = [block for block in blocks if block in toy]
    assert len(toy) - sum(map(len, shown)) < 600  # all but the first and the last lines
