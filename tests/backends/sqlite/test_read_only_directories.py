"""A process that reads an SQLite store in a directory that it may not write to, while others write."""

import os
import tempfile
from pathlib import Path

import pytest

import backtrail
from backtrail.engine import compression
from backtrail.errors import Unavailable
from tests.backends.sqlite.test_backend import unprivileged


@pytest.fixture
def public_path():
    """The path of a store in a directory that all users can enter."""
    compression.dictionary1()  # which the user to whom the permissions apply may not read
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101
        yield Path(folder, "agents.db")
        os.chmod(folder, 0o755)  # noqa: PTH101


def made(place):
    """Make a store that all may read, with nothing beside it, in a directory that only its owner may write to."""
    with backtrail.open(place) as store:
        store.thread("t").save({"n": [0]})
    place.chmod(0o644)
    place.parent.chmod(0o555)


def writer(place, orders, answers):
    """Execute commands, one letter each, in another process that has write permission."""
    store = None
    while order := os.read(orders, 1):
        if order == b"o":
            store = backtrail.open(place)
        elif order == b"a":
            store.thread("t").append("n", len(store.thread("t").load().state["n"]))
        elif order == b"m":
            for number in range(400):
                store.thread("t").append("n", f"{number} " * 500)
        elif order == b"p":
            Path(f"{place}-wal").chmod(0o600)
        elif order == b"c":
            store.close()
        os.write(answers, b".")


def beside(place, read):
    """Let one process write, as root, and another read, as another user: `read(tell)` has the first do something."""
    orders, order = os.pipe()
    heard, answers = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(order)
        try:
            writer(place, orders, answers)
        finally:
            os._exit(0)
    os.close(orders)
    os.close(answers)

    def tell(letters):
        for letter in letters:
            os.write(order, letter.encode())
            assert os.read(heard, 1) == b"."

    try:
        unprivileged(lambda: read(tell))
    finally:
        os.close(order)
        os.waitpid(child, 0)


@pytest.mark.parametrize("letters", ["oa", "oac", "oamc", "oam"])
def test_reader_sees_later_writes(public_path, letters):
    made(public_path)

    def read(tell):
        with backtrail.open(public_path, read_only=True) as store:
            assert store.thread("t").load().state == {"n": [0]}
            tell(letters)
            assert store.thread("t").load().state["n"][:2] == [0, 1]
            assert len(store.thread("t").load().state["n"]) == (402 if "m" in letters else 2)
            tell("c" if letters[-1] != "c" else "")
            tell("oac")
            assert len(store.thread("t").load().state["n"]) == (403 if "m" in letters else 3)
            assert store.verify().ok

    beside(public_path, read)


def test_export_of_a_file_that_changes_meanwhile_is_refused(public_path):
    made(public_path)

    def read(tell):
        store = backtrail.open(public_path, read_only=True)
        with store._backend.snapshot() as view:
            assert view.newest(1).seq == 1
            tell("oamc")
            with pytest.raises(Unavailable) as caught:
                view.rows(1, [(1, 99)], payload=True)
            assert caught.value.code == "unavailable.locked"
        assert len(store.thread("t").load().state["n"]) == 402
        store.close()

    beside(public_path, read)


def test_log_that_may_not_be_read_is_an_error(public_path):
    made(public_path)

    def read(tell):
        with backtrail.open(public_path, read_only=True) as store:
            tell("opa")
            with pytest.raises(Unavailable) as caught:
                store.thread("t").load()
            assert caught.value.code == "unavailable.open"

    beside(public_path, read)


def test_store_without_wal_files_can_be_read(public_path):
    made(public_path)

    def read():
        with backtrail.open(public_path, read_only=True) as store:
            for _ in range(3):
                assert store.thread("t").load().state == {"n": [0]}

    unprivileged(read)
