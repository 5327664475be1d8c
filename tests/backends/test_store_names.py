"""What does not name a store: each says what to write instead, and makes nothing."""

import asyncio
import os
from pathlib import Path

import pytest

import backtrail
from backtrail import aio
from backtrail.errors import Invalid
from tests.support.commands import bad

NAMES = {
    ":memory:": "memory://",
    "sqlite:///:memory:": "memory://",
    "   ": "does not name a store",
    "": "does not name a store",
    "\t\n": "does not name a store",
    "sqlite:///   ": "does not name a store",
    "file:///  ": "does not name a store",
    b"agents.db": r"not bytes: os\.fsdecode",
    5: "not int",
}


@pytest.mark.parametrize(("name", "advice"), NAMES.items(), ids=map(repr, NAMES))
def test_name_of_no_store_is_refused(name, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match=advice) as caught:
        backtrail.open(name)
    assert caught.value.code == "invalid.url"
    with pytest.raises(Invalid, match=advice):
        asyncio.run(aio.open(name).__aenter__())
    assert list(tmp_path.iterdir()) == []


class Encoded:
    def __fspath__(self):
        return b"agents.db"


def test_path_of_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match=r"not bytes: os\.fsdecode"):
        backtrail.open(Encoded())


def test_blank_environment_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKTRAIL_URL", "  ")
    with pytest.raises(Invalid, match="does not name a store"):
        backtrail.open()


@pytest.mark.parametrize("name", ["a b.db", " x.db", "memory:", "memory://", "memory:///", Path("p.db")])
def test_unusual_names_are_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with backtrail.open(name) as store:
        store.thread("t").save({"n": 1})
    assert os.fspath(name).startswith("memory") or Path(name).exists()


def test_command_line_says_what_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "memory://" in bad(2, "threads", "--store", ":memory:")
