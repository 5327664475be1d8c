"""`backtrail import` of another kind of file names that kind and the right command."""

import operator
import shlex
import sqlite3
from typing import Annotated, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

import backtrail
from tests.support.commands import bad, good, run


class Chat(TypedDict):
    messages: Annotated[list, operator.add]


def graph_database(path):
    """Make a database of LangGraph's with one thread."""
    graph = StateGraph(Chat).add_node("a", lambda _: {"messages": ["hi"]}).add_edge(START, "a")
    with SqliteSaver.from_conn_string(str(path)) as saver:
        graph.compile(checkpointer=saver).invoke({"messages": ["x"]}, {"configurable": {"thread_id": "t"}})


def typed(said):
    """Return the command that a message tells to type, as words."""
    return shlex.split(said.partition("`")[2].partition("`")[0])[1:]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKTRAIL_URL", "sqlite:///into.db")
    return tmp_path


@pytest.mark.parametrize("name", ["old.sqlite", "my old.db", "old"])
def test_langgraph_database_is_recognised(folder, name):
    graph_database(folder / name)
    said = bad(2, "import", name)
    assert "is a database of LangGraph's checkpoints" in said
    assert typed(said)[:4] == ["import", name, "--from", "langgraph"]
    assert not (folder / "into.db").exists()
    assert "1 thread, 3 checkpoints" in good(*typed(said)).out


def test_import_hint_names_the_store(folder):
    graph_database(folder / "old.sqlite")
    assert typed(bad(2, "import", "old.sqlite", "--store", "sqlite:///named.db"))[-2:] == [
        "--store",
        "sqlite:///named.db",
    ]


@pytest.mark.parametrize("url", ["sqlite:///{}/other.db", "file://{}/other"])
@pytest.mark.parametrize("options", [[], ["--from", "langgraph"]])
def test_a_store_is_recognised(folder, url, options):
    with backtrail.open(url.format(folder)) as store:
        store.thread("t").save({"n": 1})
    said = bad(2, "import", "other.db" if "sqlite" in url else "other", *options)
    assert "is a store, not an export" in said
    assert typed(said)[0] == "copy"
    good(*typed(said))
    with backtrail.open("sqlite:///into.db") as store:
        assert store.thread("t").load().state == {"n": 1}


def test_export_is_not_a_langgraph_database(folder):
    with backtrail.open("sqlite:///from.db") as store:
        store.thread("t").save({"n": 1})
        store.export("all.backtrail")
    said = bad(2, "import", "all.backtrail", "--from", "langgraph")
    assert "is an export, not a database" in said
    good(*typed(said))


def test_other_database_is_refused(folder):
    database = sqlite3.connect("other.sqlite")
    with database:
        database.execute("CREATE TABLE t (a)")
    database.close()
    assert "is an SQLite database, but not a store" in bad(2, "import", "other.sqlite")
    assert "not a database of LangGraph's SqliteSaver" in bad(1, "import", "other.sqlite", "--from", "langgraph")


def test_unknown_file_is_refused(folder):
    (folder / "text").write_text("SQLite format 4, or so")
    assert "is not an export of a backtrail store" in bad(1, "import", "text")
    (folder / "empty").write_bytes(b"")
    assert run("import", "empty").code == 1
    (folder / "torn.db").write_bytes(b"SQLite format 3\0" + bytes(20))
    assert "is an SQLite database, but not a store" in bad(2, "import", "torn.db")
