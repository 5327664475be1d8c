"""Databases of LangGraph's SqliteSaver and PostgresSaver, taken over: what one saver gives, the other gives."""

import contextlib
import datetime as dt
import decimal
import json
import operator
import pathlib
import pickle
import re
import shutil
import sqlite3
import uuid
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypedDict

import ormsgpack
import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

import backtrail
from backtrail import Corrupt, Invalid, NotFound
from backtrail.adapters.langgraph import BacktrailSaver, check_database, import_database
from tests.support.servers import server


class Chat(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    notes: Annotated[list, operator.add]
    plan: Any


class Place(Enum):
    NORTH = "north"


class Leg(NamedTuple):
    start: str
    end: str


class Hotel(BaseModel):
    name: str
    place: Place


@dataclass
class Plan:
    city: str
    hotel: Hotel
    legs: list[Leg]


@dataclass
class Unnamed:
    x: int


@pytest.fixture
def path(tmp_path):
    return tmp_path / "langgraph.sqlite"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, path):
    """A path, or a URL whose connections use a schema of their own."""
    if request.param == "sqlite":
        yield path
        return
    schema = f"saver_{uuid.uuid4().hex[:16]}"
    server().execute(f"CREATE SCHEMA {schema}")
    url = server().url
    yield f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}"
    server().drop_schema(schema)


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


@contextlib.contextmanager
def saver_at(path):
    if isinstance(path, str):
        with PostgresSaver.from_conn_string(path) as saver:
            saver.setup()
            yield saver
        return
    with SqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


def at(thread="t", **more):
    return {"configurable": {"thread_id": thread, **more}}


def plain(found):
    """A tuple as it is to be compared: the config without what a read has left in it, the values as a dict."""
    if found is None:
        return None
    config = found.config["configurable"]
    checkpoint = {**found.checkpoint, "channel_values": dict(found.checkpoint["channel_values"])}
    parent = found.parent_config and found.parent_config["configurable"]
    return config, checkpoint, found.metadata, parent, [tuple(each) for each in found.pending_writes or ()]


def name_of(found):
    return tuple(found[0].values())


def assert_same(path, store, threads, types=()):
    """Every config of every thread gives the same with both savers."""
    ours = BacktrailSaver(store, types=types)
    with saver_at(path) as theirs:
        every = [plain(each) for each in theirs.list(None)]
        listed = [plain(each) for each in ours.list(None)]
        assert sorted(listed, key=name_of) == sorted(every, key=name_of)
        for thread in threads:
            namespaces = {each[0]["checkpoint_ns"] for each in every if each[0]["thread_id"] == thread}
            assert [plain(each) for each in ours.list(at(thread))] == [plain(each) for each in theirs.list(at(thread))]
            for ns in namespaces:
                config = at(thread, checkpoint_ns=ns)
                assert plain(ours.get_tuple(config)) == plain(theirs.get_tuple(config)) is not None
                listed = [plain(each) for each in theirs.list(config)]
                assert [plain(each) for each in ours.list(config)] == listed
                middle = {"configurable": listed[len(listed) // 2][0]}
                for given in ({"before": middle}, {"limit": 2}, {"filter": {"source": "loop"}}):
                    expected = [plain(each) for each in theirs.list(config, **given)]
                    assert [plain(each) for each in ours.list(config, **given)] == expected
            for config, *_ in [each for each in every if each[0]["thread_id"] == thread]:
                named = {"configurable": config}
                assert plain(ours.get_tuple(named)) == plain(theirs.get_tuple(named)) is not None
    return len(every)


def chat(state):
    return {"messages": [AIMessage(f"reply {len(state['messages'])}")], "notes": [len(state["messages"])]}


def chatting():
    return StateGraph(Chat).add_node("chat", chat).add_edge(START, "chat").add_edge("chat", END)


def asking():
    def ask(state):
        return {"notes": [interrupt("how many?"), interrupt({"and": "when"})]}

    def beside(state):
        return {"notes": ["beside"]}

    builder = StateGraph(Chat).add_node("ask", ask).add_node("beside", beside)
    return builder.add_edge(START, "ask").add_edge(START, "beside")


def nesting():
    inner = asking().compile()
    deeper = StateGraph(Chat).add_node("inner", inner).add_edge(START, "inner").compile()
    builder = StateGraph(Chat).add_node("chat", chat).add_node("deeper", deeper)
    return builder.add_edge(START, "chat").add_edge("chat", "deeper")


def spreading():
    def spread(state):
        return [Send("one", {"notes": [n]}) for n in range(3)]

    def one(state):
        if state["notes"] == [1]:
            raise ValueError("one fails")
        return {"notes": state["notes"]}

    builder = StateGraph(Chat).add_node("start", chat).add_node("one", one).add_edge(START, "start")
    return builder.add_conditional_edges("start", spread, ["one"])


def talk(path):
    """Fill a database as graphs do; returns its threads."""
    said = {"messages": [HumanMessage("hi")]}
    with saver_at(path) as saver:
        graph = chatting().compile(checkpointer=saver)
        for _ in range(3):
            graph.invoke(said, at("chat"))
        past = list(graph.get_state_history(at("chat")))[4]
        graph.update_state(past.config, {"notes": ["a fork"]})
        graph.invoke(None, graph.update_state(at("chat"), {"messages": [HumanMessage("on the fork")]}, as_node=START))
        graph.invoke(None, past.config)
        graph = asking().compile(checkpointer=saver)
        graph.invoke(said, at("asked"))
        graph.invoke(said, at("answered"))
        graph.invoke(Command(resume=3), at("answered"))
        graph.invoke(Command(resume="May"), at("answered"))
        graph = nesting().compile(checkpointer=saver)
        graph.invoke(said, at("nested|odd\\id"))
        graph.invoke(Command(resume=1), at("nested|odd\\id"))
        with pytest.raises(ValueError, match="one fails"):
            spreading().compile(checkpointer=saver).invoke(said, at("failed"))
    return ["chat", "asked", "answered", "nested|odd\\id", "failed"]


def contents(database):
    """All that a database holds."""
    if not isinstance(database, str):
        return database.read_bytes()
    with psycopg.connect(database) as connection:
        tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        return [connection.execute(f"SELECT t::text FROM {table} t ORDER BY 1").fetchall() for table in tables]


def rows_of(store):
    return {
        kind: [(each.id, each.checkpoints, each.head_id) for each in store.threads(kind=kind)]
        for kind in (None, "aside")
    }


def test_import_matches_their_saver_and_is_idempotent(database, tmp_path):
    threads = talk(database)
    before = contents(database)
    with backtrail.open(tmp_path / "s.db") as store:
        counts = []
        with pytest.raises(backtrail.Invalid, match="progress"):
            import_database(database, store, progress=5)
        assert list(store.threads()) == []
        report = import_database(database, store, progress=lambda what, count: counts.append((what, count)))
        assert report.skipped == ()
        assert report.threads == len(threads)
        assert counts == [("threads", n + 1) for n in range(len(threads))]
        there = rows_of(store)
        again = import_database(database, store)
        assert (again.threads, again.checkpoints, again.skipped) == (len(threads), 0, ())
        assert rows_of(store) == there
        assert contents(database) == before
        assert report.checkpoints == assert_same(database, store, threads) > 25


def test_graph_continues_after_import(database, store):
    talk(database)
    import_database(database, store)
    graph = asking().compile(checkpointer=BacktrailSaver(store))
    assert [each.interrupts[0].value for each in graph.get_state(at("asked")).tasks if each.interrupts] == ["how many?"]
    graph.invoke(Command(resume=3), at("asked"))
    assert sorted(map(str, graph.invoke(Command(resume="May"), at("asked"))["notes"])) == ["3", "May", "beside"]
    graph = nesting().compile(checkpointer=BacktrailSaver(store))
    done = graph.invoke(Command(resume="soon"), at("nested|odd\\id"))
    assert {1, "soon"} <= set(done["notes"])


def test_second_import_adds_new_checkpoints(database, store):
    threads = talk(database)
    first = import_database(database, store)
    with saver_at(database) as saver:
        chatting().compile(checkpointer=saver).invoke({"messages": [HumanMessage("more")]}, at("chat"))
        asking().compile(checkpointer=saver).invoke(Command(resume=3), at("asked"))
        chatting().compile(checkpointer=saver).invoke({"messages": [HumanMessage("new")]}, at("new"))
        second = import_database(database, store)  # what is in the WAL comes, too
    assert second.skipped == ()
    assert second.threads == len(threads) + 1
    assert first.checkpoints + second.checkpoints == assert_same(database, store, [*threads, "new"])


def test_diverged_thread_is_skipped(database, store):
    talk(database)
    import_database(database, store)
    graph = chatting().compile(checkpointer=BacktrailSaver(store))
    graph.invoke({"messages": [HumanMessage("here")]}, at("chat"))
    there = rows_of(store)
    with saver_at(database) as saver:
        saver.put_writes(saver.get_tuple(at("chat")).config, [("notes", ["late"])], "task")
    assert import_database(database, store).skipped == ()
    assert rows_of(store) == there
    with saver_at(database) as saver:
        chatting().compile(checkpointer=saver).invoke({"messages": [HumanMessage("there")]}, at("chat"))
    (skipped,) = import_database(database, store).skipped
    assert skipped.thread_id == "chat"
    assert "both in the store and in the file" in skipped.reason
    assert rows_of(store) == there


def test_values_of_all_kinds_are_imported(database, store):
    plan = Plan("Faro", Hotel(name="Sol", place=Place.NORTH), [Leg("a", "b")])
    values = {
        "plan": plan,
        "times": [dt.datetime.now(dt.UTC), dt.date(2026, 1, 2), dt.time(3, 4), dt.timedelta(5, 6)],
        "others": [uuid.uuid4(), decimal.Decimal("1.50"), {1, 2}, frozenset({3}), deque([4]), pathlib.Path("/a/b")],
        "pattern": re.compile("a+", re.IGNORECASE),
        "bytes": b"\x00\xff",
        "text": "a\x00b",
        "send": Send("node", {"x": 1}),
        "none": None,
    }
    graph = StateGraph(Chat).add_node("n", lambda _: {"plan": values}).add_edge(START, "n")
    with saver_at(database) as saver:
        graph.compile(checkpointer=saver).invoke({"messages": []}, at())
        saver.put_writes(
            saver.get_tuple(at()).config, [("plan", None), ("raw", b"raw"), ("more", bytearray(b"x"))], "task"
        )
    report = import_database(database, store, types=[Plan])  # the others are in its annotations
    assert report.skipped == ()
    assert_same(database, store, ["t"], [Plan])
    found = BacktrailSaver(store, types=[Plan]).get_tuple(at()).checkpoint["channel_values"]["plan"]
    assert found["plan"] == plan
    assert type(found["plan"].hotel) is Hotel


def test_unnamed_class_skips_only_its_thread(database, store):
    with saver_at(database) as saver:
        chatting().compile(checkpointer=saver).invoke({"messages": []}, at("good"))
        graph = StateGraph(Chat).add_node("n", lambda _: {"plan": [Unnamed(1)]}).add_edge(START, "n")
        graph.compile(checkpointer=saver).invoke({"messages": []}, at("bad"))
    report = import_database(database, store)
    assert [each.thread_id for each in report.skipped] == ["bad"]
    assert "Unnamed" in report.skipped[0].reason
    assert [each.id for each in store.threads()] == ["good"]
    assert list(store.threads(kind="aside", prefix="bad")) == []
    assert import_database(database, store, types=[Unnamed]).skipped == ()
    assert_same(database, store, ["good", "bad"], [Unnamed])


class Evil:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("evil"),)


def ext(code, *parts, name="1"):
    return ormsgpack.packb({"id": name, "channel_values": {"x": ormsgpack.Ext(code, ormsgpack.packb(parts))}})


CRAFTED = {
    "a pickle": ("pickle", pickle.dumps(Evil())),
    "a function": ("msgpack", ext(0, "os", "system", "touch evil")),
    "a method": ("msgpack", ext(3, "pathlib", "Path", "evil", "touch")),
    "an import": ("msgpack", ext(0, "antigravity", "x", 1)),
    "a class inside": ("msgpack", ext(2, "builtins", "set", {"x": ormsgpack.Ext(0, b"\x93\xa2os\xa6system\xa1x")})),
    "an array of objects": ("msgpack", ext(6, "|O", [1], "C", b"12345678")),
    "an unknown extension": ("msgpack", ext(99, "a", "b", "c")),
    "no tuple": ("msgpack", ormsgpack.packb({"id": "1", "channel_values": {"x": ormsgpack.Ext(1, b"\x01")}})),
    "cut short": ("msgpack", ormsgpack.packb({"id": "1", "channel_values": {}})[:-3]),
    "another id": ("msgpack", ormsgpack.packb({"id": "2", "channel_values": {}})),
    "no checkpoint": ("msgpack", ormsgpack.packb([1])),
    "objects as JSON": ("json", json.dumps({"id": "1", "channel_values": {"x": {"lc": 1, "id": ["os"]}}}).encode()),
    "text": ("msgpack", "text"),
    "nothing": ("msgpack", None),
    "no kind": (None, b""),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_crafted_data_is_skipped_and_runs_nothing(path, store, tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    kind, data = CRAFTED[what]
    with saver_at(path) as saver:
        chatting().compile(checkpointer=saver).invoke({"messages": []}, at("good"))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        good = ext(0, "uuid", "UUID", "0" * 32, name="0")
        db.execute("INSERT INTO checkpoints VALUES ('bad', '', '0', NULL, 'msgpack', ?, '{}')", (good,))
        db.execute("INSERT INTO checkpoints VALUES ('bad', '', '1', '0', ?, ?, '{}')", (kind, data))
    report = import_database(path, store)
    assert [each.thread_id for each in report.skipped] == ["bad"]
    assert report.skipped[0].reason.startswith("checkpoint 1: ")
    assert [each.id for each in store.threads()] == ["good"]
    assert not pathlib.Path("evil").exists()


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE checkpoints SET metadata = ? WHERE thread_id = 'bad'", b"{"),
        ("UPDATE checkpoints SET metadata = ? WHERE thread_id = 'bad'", b"[]"),
        ("UPDATE checkpoints SET checkpoint_ns = ? WHERE thread_id = 'bad'", b"\xff"),
        ("UPDATE checkpoints SET checkpoint_ns = CAST(? AS TEXT) WHERE thread_id = 'bad'", b"\xff"),
        ("UPDATE checkpoints SET parent_checkpoint_id = ? WHERE thread_id = 'bad'", b"\xff"),
        ("UPDATE writes SET value = ? WHERE thread_id = 'bad'", b"\xc1"),
        ("UPDATE writes SET type = ? WHERE thread_id = 'bad'", "pickle"),
        ("UPDATE writes SET channel = ? WHERE thread_id = 'bad'", b"x"),
    ],
)
def test_a_damaged_row_skips_its_thread(path, store, statement, value):
    with saver_at(path) as saver:
        for name in ("bad", "good"):
            asking().compile(checkpointer=saver).invoke({"messages": []}, at(name))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement, (value,)).rowcount > 0
    report = import_database(path, store)
    assert [each.thread_id for each in report.skipped] == ["bad"]
    assert [each.id for each in store.threads()] == ["good"]
    assert len(list(store.threads(kind="aside"))) == 1


def test_ids_that_are_not_text_are_reported(path, store):
    with saver_at(path) as saver:
        chatting().compile(checkpointer=saver).invoke({"messages": []}, at("good"))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for name, cast in ((b"\xff", "TEXT"), (b"blob", "BLOB")):
            copied = f"SELECT CAST(? AS {cast}), '', 'x', NULL, type, checkpoint, metadata FROM checkpoints LIMIT 1"
            db.execute(f"INSERT INTO checkpoints {copied}", (name,))
    report = import_database(path, store)
    assert [each.thread_id for each in report.skipped] == ["blob", repr(b"\xff")]
    assert report.threads == 1


def test_a_thread_that_is_not_langgraphs_is_left_alone(path, store):
    store.thread("chat").save({"mine": True})
    talk(path)
    report = import_database(path, store)
    assert [each.thread_id for each in report.skipped] == ["chat"]
    assert store.thread("chat").load().state == {"mine": True}


def test_database_without_task_paths_is_imported(path, store):
    threads = talk(path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE writes DROP COLUMN task_path")
    assert import_database(path, store).skipped == ()
    assert_same(path, store, threads)


def test_imported_checkpoint_names_its_deleted_parent(path, store):
    threads = talk(path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "DELETE FROM checkpoints WHERE thread_id = 'chat' AND checkpoint_id IN"
            " (SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'chat' ORDER BY checkpoint_id LIMIT 4)"
        )
    assert import_database(path, store).skipped == ()
    assert_same(path, store, threads)


def test_late_checkpoint_does_not_become_the_head(path, store, tmp_path):
    threads = talk(path)
    shutil.copy(path, tmp_path / "part")
    with contextlib.closing(sqlite3.connect(tmp_path / "part")) as db, db:
        first = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'chat' ORDER BY 1 LIMIT 4"
        db.execute(f"DELETE FROM checkpoints WHERE checkpoint_id IN ({first})")
    import_database(tmp_path / "part", store)
    report = import_database(path, store)
    assert (report.threads, report.checkpoints, report.skipped) == (len(threads), 4, ())
    ours = BacktrailSaver(store)
    with saver_at(path) as theirs:
        assert plain(ours.get_tuple(at("chat"))) == plain(theirs.get_tuple(at("chat")))
        assert len(list(ours.list(at("chat")))) == len(list(theirs.list(at("chat"))))


def test_other_files_are_refused(tmp_path, store):
    with pytest.raises(NotFound):
        import_database(tmp_path / "none", store)
    (tmp_path / "text").write_text("no database at all" * 100)
    with pytest.raises(Invalid):
        import_database(tmp_path / "text", store)
    (tmp_path / "cut").write_bytes(b"SQLite format 3\0" + bytes(5000))
    with pytest.raises(Corrupt):
        import_database(tmp_path / "cut", store)
    with contextlib.closing(sqlite3.connect(tmp_path / "other")) as db, db:
        db.execute("CREATE TABLE checkpoints (x)")
    with pytest.raises(Invalid):
        import_database(tmp_path / "other", store)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cut", "other", "text"]


def test_import_keeps_times(path, store):
    with saver_at(path) as saver:
        graph = chatting().compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("hi")]}, at("a"))
        graph.invoke({"messages": [HumanMessage("hi")]}, at("b"))
        early = list(graph.get_state_history(at("a")))[1]
        graph.update_state(early.config, {"notes": ["a branch"]})
    redate(path, {"a": dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC), "b": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)})
    assert import_database(path, store).skipped == ()
    for thread, year in (("a", 2025), ("b", 2024)):
        rows = list(store.thread(thread).history(everything=True))
        stamps = [dt.datetime.fromisoformat(each.checkpoint["ts"]) for each in BacktrailSaver(store).list(at(thread))]
        assert sorted(each.created_at for each in rows) == sorted(stamps)
        assert {each.created_at.year for each in rows} == {year}
        info = store.info(thread)
        assert (info.created_at.year, info.updated_at.year) == (year, year)
        assert {each.created_at.year for each in store.thread(thread, aside=True).history()} == {year}
    assert [each.id for each in store.threads()] == ["a", "b"]
    assert store.thread("new").save({"n": 1}).created_at.year >= 2026
    report = store.prune(backtrail.Policy(older_than=dt.timedelta(days=365), keep_labelled=False), dry_run=True)
    assert report.removed


def redate(path, times):
    """Write other times into a database: those of a thread, a minute apart."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for thread, first in times.items():
            found = connection.execute(
                "SELECT checkpoint_id, checkpoint FROM checkpoints WHERE thread_id = ?", (thread,)
            )
            for n, (name, data) in enumerate(found.fetchall()):
                made = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
                made["ts"] = (first + dt.timedelta(minutes=n)).isoformat()
                packed = ormsgpack.packb(made, option=ormsgpack.OPT_NON_STR_KEYS)
                connection.execute("UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?", (packed, name))


def test_checkpoint_without_time_gets_the_current_time(path, store):
    with saver_at(path) as saver:
        chatting().compile(checkpointer=saver).invoke({"messages": [HumanMessage("hi")]}, at("a"))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.create_function("without", 1, lambda data: data.replace(b"ts", b"tz"))
        connection.execute("UPDATE checkpoints SET checkpoint = without(checkpoint)")
    assert import_database(path, store).skipped == ()
    assert {each.created_at.date() for each in store.thread("a").history()} == {dt.datetime.now(dt.UTC).date()}


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_checkpoints_of_postgres_keep_their_times_and_old_sends(database, store):
    with saver_at(database) as saver:
        with pytest.raises(ValueError, match="one fails"):
            spreading().compile(checkpointer=saver).invoke({"messages": [HumanMessage("hi")]}, at())
        stamps = sorted(dt.datetime.fromisoformat(each.checkpoint["ts"]) for each in saver.list(at()))
        tip = saver.get_tuple(at())
        parent = tip.parent_config["configurable"]
        saver.put_writes({"configurable": parent}, [("__pregel_tasks", Send("one", {"notes": [7]}))], "old")
    with psycopg.connect(database) as connection:  # as LangGraph stored sends before its version 0.5
        connection.execute("""UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{v}', '3')""")
    assert import_database(database, store).skipped == ()
    assert sorted(each.created_at for each in store.thread("t").history(everything=True)) == stamps
    with saver_at(database) as saver:
        assert plain(BacktrailSaver(store).get_tuple(at())) == plain(saver.get_tuple(at()))
        assert Send("one", {"notes": [7]}) in saver.get_tuple(at()).checkpoint["channel_values"]["__pregel_tasks"]


def test_other_databases_of_postgres_are_refused(store):
    with pytest.raises(Invalid, match="tables are missing"):
        import_database(server().url, store)
    with pytest.raises(Invalid, match="tables are missing"):
        check_database(server().url)
    with pytest.raises(NotFound) as error:
        import_database("postgresql://ann:secret@127.0.0.1:1/nowhere", store)
    assert "secret" not in str(error.value)
    assert list(store.threads()) == []
