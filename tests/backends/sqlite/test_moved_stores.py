"""An SQLite file is moved, removed or replaced while a process has it open: no save is lost."""

import os
import shutil

import pytest

import backtrail
from backtrail.backends.sqlite import backend
from backtrail.errors import NotFound


def gone(path):
    path.unlink()


def moved(path):
    for each in path.parent.glob(path.name + "*"):
        each.rename(each.with_name("moved-" + each.name))


def replaced(path):
    shutil.copyfile(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def made_again(path):
    for each in path.parent.glob(path.name + "*"):
        each.unlink()
    child = os.fork()
    if child == 0:
        backtrail.open(path).close()
        os._exit(0)
    os.waitpid(child, 0)


def together(store):
    with store.transaction():
        store.thread("t").save({"n": 2})
        store.thread("list").append("n", 2)


CALLS = {
    "save": lambda store: store.thread("t").save({"n": 2}),
    "append": lambda store: store.thread("list").append("n", 2),
    "transaction": together,
    "load": lambda store: store.thread("t").load(),
    "list": lambda store: list(store.threads()),
    "search": lambda store: store.search("word"),
    "gc": lambda store: store.gc(),
    "tag": lambda store: store.thread("t").tag(1, "x"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("change", [gone, moved, replaced, made_again])
def test_store_whose_file_is_elsewhere_is_refused(tmp_path, change, call):
    path = tmp_path / "agents.db"
    store = backtrail.open(path)
    store.thread("t").save({"n": 1})
    store.thread("list").save({"n": []})
    change(path)
    with pytest.raises(NotFound) as caught:
        CALLS[call](store)
    assert caught.value.code == "not_found.store"
    store.close()


def test_store_that_is_put_back_works(tmp_path):
    path = tmp_path / "agents.db"
    with backtrail.open(path) as store:
        store.thread("t").save({"n": 1})
        moved(path)
        with pytest.raises(NotFound):
            store.thread("t").save({"n": 2})
        for each in tmp_path.glob("moved-*"):
            each.rename(each.with_name(each.name.removeprefix("moved-")))
        store.thread("t").save({"n": 3})
        assert [checkpoint.state for checkpoint in store.thread("t").history()] == [{"n": 1}, {"n": 3}]


def test_file_overwritten_while_it_is_opened_is_noticed(tmp_path, monkeypatch):
    path, other = tmp_path / "agents.db", tmp_path / "other.db"
    for each in (path, other):
        with backtrail.open(each) as store:
            store.thread("t").save({"in": each.name})
    connect = backend.open_store

    def connect_too_early(*args, **options):
        database = connect(*args, **options)
        shutil.copyfile(other, path)
        return database

    monkeypatch.setattr(backend, "open_store", connect_too_early)
    with pytest.raises(NotFound), backtrail.open(path) as store:
        store.thread("t").load()
