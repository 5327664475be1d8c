"""Databases of the SDK's own SQLiteSession, taken over: a session gives the items that the other gave."""

import asyncio
import contextlib
import datetime as dt
import sqlite3

import pytest
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession, EncryptedSession

import backtrail
from backtrail import Conflict, Corrupt, Invalid, NotFound
from backtrail.adapters.openai import BacktrailSession, check_database, import_database
from tests.support.commands import bad, good

CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "24 degrees \0 é"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "openai.sqlite"


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def said(text, role="user"):
    return {"role": role, "content": text}


def write(path, session_id, *items, cls=SQLiteSession, **options):
    async def main():
        session = cls(session_id=session_id, db_path=path, **options)
        for item in items:
            await session.add_items(item if isinstance(item, list) else [item])
        got = await session.get_items()
        session.close()
        return got

    return asyncio.run(main())


def items(store, session_id):
    return asyncio.run(BacktrailSession(session_id, store).get_items())


def change(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def rows(store):
    return [(each.id, each.checkpoints, each.head_id) for each in store.threads(kind="conversation")]


def test_sessions_come_over_and_nothing_twice(path, store):
    trip = write(path, "trip", said("A ferry to Lisbon"), [CALL, OUTPUT], said("Done.", "assistant"))
    other = write(path, "other", said("hello"))
    write(path, "empty", said("gone"))
    change(path, "DELETE FROM agent_messages WHERE session_id = 'empty'")
    before, counts = path.read_bytes(), []
    report = import_database(path, store, progress=lambda *what: counts.append(what))
    assert (report.sessions, report.messages, report.skipped) == (3, 5, ())
    assert counts == [("sessions", 1), ("sessions", 2), ("sessions", 3)]
    assert (items(store, "trip"), items(store, "other"), items(store, "empty")) == (trip, other, [])
    there = rows(store)
    again = import_database(path, store)
    assert (again.sessions, again.messages, again.skipped) == (3, 0, ())
    assert rows(store) == there
    assert path.read_bytes() == before
    info = store.conversations.info("trip")
    assert (info.title, info.agent_id) == ("A ferry to Lisbon", "openai-agents")
    assert len(store.search("ferry")) == 1
    trip += write(path, "trip", said("And back"))[-1:]
    assert import_database(path, store).messages == 1
    assert items(store, "trip") == trip


def test_items_keep_their_times(path, store):
    write(path, "trip", *[said(f"{number}") for number in range(4)])
    change(path, "UPDATE agent_sessions SET created_at = '2024-05-01 10:00:00'")
    for number, minute in enumerate((1, 1, 2, 3)):
        change(path, "UPDATE agent_messages SET created_at = ? WHERE id = ?", f"2024-05-01 10:0{minute}:00", number + 1)
    import_database(path, store)
    minutes = [dt.datetime(2024, 5, 1, 10, minute, tzinfo=dt.UTC) for minute in (0, 1, 1, 2, 3)]
    conversation = store.conversations.load("trip")
    assert [message.timestamp for message in conversation.messages] == minutes[1:]
    assert conversation.created_at == minutes[0]
    history = [checkpoint.created_at for checkpoint in store.conversations.thread("trip").history()]
    assert history == sorted(set(minutes))  # what was added in one second is one checkpoint
    assert store.thread("new").save({}).created_at.year >= 2026


def test_sessions_that_went_on_on_both_sides_are_skipped(path, store):
    write(path, "trip", said("one"))
    import_database(path, store)
    asyncio.run(BacktrailSession("trip", store).add_items([said("here")]))
    there = rows(store)
    assert import_database(path, store).skipped == ()  # the file has nothing new
    write(path, "trip", said("there"))
    write(path, "new", said("new"))
    report = import_database(path, store)
    assert [each.thread_id for each in report.skipped] == ["trip"]
    assert "both in the store and in the file" in report.skipped[0].reason
    assert report.messages == 1
    assert set(there) < set(rows(store))


def test_what_cannot_come_over_is_reported(path, store):
    write(path, "good", said("a"), said("b"), said("c"))
    change(path, "UPDATE agent_messages SET message_data = '{broken' WHERE id = 2")
    write(path, "x" * 600, said("a"))
    write(path, "taken", said("a"))
    store.conversations.append("taken", backtrail.Message.user("mine"), agent_id="other")

    async def encrypted():
        session = EncryptedSession("secret", SQLiteSession("secret", path), "key")
        await session.add_items([said("hidden")])

    asyncio.run(encrypted())
    report = import_database(path, store)
    reasons = {each.thread_id[:6]: each.reason for each in report.skipped}
    assert reasons.keys() == {"good", "x" * 6, "taken", "secret"}
    assert "item 2 is damaged" in reasons["good"]
    assert "encrypted" in reasons["secret"]
    assert "belongs to agent 'other'" in reasons["taken"]
    assert items(store, "good") == [said("a"), said("c")]
    assert sorted(each.id for each in store.threads(kind="conversation")) == ["good", "taken"]
    assert (report.sessions, report.messages) == (1, 2)


def test_the_main_branch_of_an_advanced_session_comes_over(path, store):
    async def main():
        session = AdvancedSQLiteSession(session_id="trip", db_path=path, create_tables=True)
        await session.add_items([said("one"), said("answer one", "assistant"), said("two"), said("more", "assistant")])
        kept = await session.get_items()
        await session.create_branch_from_turn(2, "other")
        await session.add_items([said("another way")])
        session.close()
        return kept

    kept = asyncio.run(main())
    report = import_database(path, store)
    assert items(store, "trip") == kept
    assert [(each.thread_id, each.reason) for each in report.skipped] == [
        ("trip", "branch 'other' of it is not imported")
    ]


def test_tables_and_agent_can_be_named(path, store):
    given = write(path, "trip", said("hi"), sessions_table='"my own"', messages_table="m")
    with pytest.raises(Invalid, match="tables are missing"):
        import_database(path, store)
    report = import_database(path, store, agent="planner", sessions_table="my own", messages_table="m")
    assert (report.sessions, items(store, "trip")) == (1, given)
    assert store.conversations.info("trip").agent_id == "planner"
    with pytest.raises(Invalid):
        import_database(path, store, agent="")


def test_other_files_are_refused(tmp_path, path, store):
    with pytest.raises(NotFound):
        import_database(path, store)
    path.write_text("no database" * 100)
    with pytest.raises(Invalid, match="not an SQLite file"):
        check_database(path)
    path.write_bytes(b"SQLite format 3\0" + bytes(5000))
    with pytest.raises(Corrupt):
        import_database(path, store)
    assert list(store.threads(kind="conversation")) == []


def test_a_failed_write_leaves_the_session_out(path, store, monkeypatch):
    """A session comes completely or not at all."""
    write(path, "trip", said("one"), said("two"))
    change(path, "UPDATE agent_messages SET created_at = '2024-05-01 10:00:00' WHERE id = 1")
    append = backtrail.Thread.append

    def fail(self, *given, **options):
        if given[1]["content"] == "two":
            raise Conflict("another writer was first")
        return append(self, *given, **options)

    monkeypatch.setattr(backtrail.Thread, "append", fail)
    assert [each.thread_id for each in import_database(path, store).skipped] == ["trip"]
    assert rows(store) == []


def test_the_command_line_imports_and_names_the_format(path, tmp_path, monkeypatch):
    monkeypatch.setenv("BACKTRAIL_URL", f"sqlite:///{tmp_path / 'into.db'}")
    write(path, "trip", said("A ferry"))
    assert "--from openai" in bad(2, "import", path)
    assert "--from openai" in bad(2, "import", path, "--from", "adk")
    assert not (tmp_path / "into.db").exists()
    assert "1 session, 1 message, 0 skipped" in good("import", path, "--from", "openai").out
    assert '"messages":0' in good("import", path, "--from", "openai", "--json").out.replace(" ", "")
