"""Upkeep of many threads is few commits: each of them waits for the disk."""

import contextlib

import pytest

import backtrail
from backtrail.backends.port import Undone
from tests.support.servers import place

THREADS = 40


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        with place() as opener, opener() as store:
            yield store
    else:
        with backtrail.open("memory://" if request.param == "memory" else tmp_path / "s.db") as store:
            yield store


def fill(store):
    for at in range(THREADS):
        with store.transaction():
            for n in range(7):
                store.thread(f"t{at}").save({"n": n})


def test_prune_of_many_threads_is_few_commits(store, monkeypatch):
    fill(store)
    sizes = []
    commit = store._backend.commit
    monkeypatch.setattr(store._backend, "commit", lambda batch: sizes.append(len(batch.hide)) or commit(batch))
    assert store.prune(keep_last=2) == 5 * THREADS
    assert sizes == [65, 65, 65, 5]
    assert [len(store.thread(f"t{at}")) for at in range(THREADS)] == [2] * THREADS


def test_thread_that_changes_meanwhile_is_pruned_as_it_was_and_is(store):
    fill(store)

    def write(_, count):
        if count == 3:
            store.thread("t0").save({"n": 7})
            store.thread("t1").rewind(3)
            store.thread("t2").delete()

    report = store.prune(keep_last=2, progress=write)
    assert report == 5 * THREADS - 7  # of t1, the newest two in view and out of view stay; t2 has none
    assert [c.state["n"] for c in store.thread("t0").history()] == [5, 6, 7]
    assert [c.state["n"] for c in store.thread("t1").history()] == [1, 2]
    assert len(store.thread("t2")) == 0
    assert all(len(store.thread(f"t{at}")) == 2 for at in range(3, THREADS))
    assert store.verify().ok


def test_prune_keeps_what_a_rewind_brought_into_view(store, monkeypatch):
    thread = store.thread("t")
    for n in range(5):
        thread.save({"n": n})
    commit = store._backend.commit
    moves = iter(["@~3"])

    def late(batch):
        for ref in moves if batch.hide else ():
            thread.rewind(ref)
        return commit(batch)

    monkeypatch.setattr(store._backend, "commit", late)
    assert store.prune(keep_last=2) == 1
    assert [c.state["n"] for c in thread.history()] == [0, 1]


def test_gc_of_many_short_threads_is_few_commits(store, monkeypatch):
    fill(store)
    store.prune(keep_last=2)
    groups = counted_groups(store, monkeypatch)
    told = []
    assert store.gc(progress=lambda *each: told.append(each)).rows == 5 * THREADS
    assert 10 <= len(groups) <= 12  # eight threads each: removed, then packed again
    assert [count for what, count in told if what == "threads"] == list(range(1, THREADS + 1))
    assert all(len(store.thread(f"t{at}")) == 2 for at in range(THREADS))
    assert store.verify().ok


def test_gc_repeats_what_another_writer_has_undone(store, monkeypatch):
    fill(store)
    store.prune(keep_last=2)
    groups = counted_groups(store, monkeypatch, undone=True)
    assert store.gc().rows == 5 * THREADS
    assert groups
    assert all(len(store.thread(f"t{at}")) == 2 for at in range(THREADS))
    assert store.gc().rows == 0
    assert store.verify().ok


def test_gc_changes_at_most_a_slice_of_rows_in_one_commit(store, monkeypatch):
    for at in range(4):
        with store.transaction():
            for n in range(100):
                store.thread(f"t{at}").save({"n": n})
    store.thread("large").save({"text": "x" * 40_000})
    groups = counted_groups(store, monkeypatch)
    store.gc()
    assert groups == []


def counted_groups(store, monkeypatch, *, undone=False):
    groups, group = [], store._backend.group

    @contextlib.contextmanager
    def counted():
        groups.append(None)
        with group():
            yield
            if undone:
                raise Undone

    monkeypatch.setattr(store._backend, "group", counted)
    return groups
