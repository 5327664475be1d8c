"""The tests of `BacktrailSessionService`. ADK's pins conflict with ours: `test_adk.py` runs them in an environment.

The facts are those of ADK's own conformance cases for session services, in our words.
"""

import asyncio
import contextlib
import math
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent
from google.adk.cli.service_registry import get_service_registry, load_services_module
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

import backtrail
from backtrail import Invalid, Message, NotFound
from backtrail.adapters.adk import BacktrailSessionService, check_database, import_database
from tests.project.test_docs import ROOT, run
from tests.support.commands import bad, good
from tests.support.places import in_memory
from tests.support.servers import place

ANN = {"app_name": "app", "user_id": "ann"}
ONE = {**ANN, "session_id": "one"}


@pytest.fixture(params=["memory", "files", "sqlite", "postgres"])
def store(request, tmp_path):
    with contextlib.ExitStack() as stack:
        if request.param == "memory":
            opener = stack.enter_context(in_memory())
        elif request.param == "postgres":
            opener = stack.enter_context(place(durability="relaxed"))
        else:
            url = tmp_path / "s.db" if request.param == "sqlite" else f"file://{tmp_path / 'files'}"

            def opener():
                return backtrail.open(url, durability="relaxed")

        yield stack.enter_context(opener())


@pytest.fixture
def memory():
    with backtrail.open("memory://") as store:
        yield store


def said(text, author="user", **more):
    delta = more.pop("delta", {})
    content = types.Content(role=author, parts=[types.Part(text=text)])
    return Event(author=author, content=content, actions=EventActions(state_delta=delta), **more)


def texts(session):
    return [event.content.parts[0].text for event in session.events]


# -- the interface --------------------------------------------------------------------------------------


def test_sessions_are_created_found_listed_and_deleted(store):
    async def main():
        sessions = BacktrailSessionService(store)
        assert await sessions.get_session(**ONE) is None
        assert (await sessions.list_sessions(app_name="app")).sessions == []
        made = await sessions.create_session(**ANN, session_id=" one ", state={"a": 1})
        assert (made.id, made.state, made.events) == ("one", {"a": 1}, [])
        assert await sessions.get_session(**ONE) == made
        with pytest.raises(AlreadyExistsError):
            await sessions.create_session(**ONE)
        other = await sessions.create_session(**ANN)
        bob = await sessions.create_session(app_name="app", user_id="bob", session_id="one")
        await sessions.create_session(app_name="app2", user_id="ann", session_id="one")
        assert [each.id for each in (await sessions.list_sessions(**ANN)).sessions] == ["one", other.id]
        await sessions.append_event(made, said("later"))
        listed = (await sessions.list_sessions(app_name="app")).sessions
        assert [(each.user_id, each.id) for each in listed] == [("ann", other.id), ("bob", bob.id), ("ann", "one")]
        assert all(each.events == [] for each in listed)
        await sessions.delete_session(**ONE)
        await sessions.delete_session(**ONE)
        assert await sessions.get_session(**ONE) is None
        with pytest.raises(SessionNotFoundError):
            await sessions.append_event(made, said("too late"))
        assert len((await sessions.list_sessions(app_name="app2")).sessions) == 1

    asyncio.run(main())


def test_state_has_its_scopes(store):
    async def main():
        sessions = BacktrailSessionService(store)
        given = {"own": 1, "user:name": "Ann", "app:version": 1, "temp:scratch": 1}
        one = await sessions.create_session(**ONE, state=given)
        assert one.state == {"own": 1, "user:name": "Ann", "app:version": 1}
        two = await sessions.create_session(**ANN, session_id="two")
        bob = await sessions.create_session(app_name="app", user_id="bob", session_id="b")
        assert two.state == {"user:name": "Ann", "app:version": 1}
        assert bob.state == {"app:version": 1}
        event = said("hi", delta={"own": None, "user:name": "Anna", "app:version": 2, "temp:scratch": 2, "new": [1]})
        await sessions.append_event(one, event)
        assert one.state["temp:scratch"] == 2  # for the rest of the invocation
        assert "temp:scratch" not in event.actions.state_delta
        stored = await sessions.get_session(**ONE)
        assert stored.state == {"own": None, "user:name": "Anna", "app:version": 2, "new": [1]}
        assert stored.events[0].actions.state_delta == {"own": None, "user:name": "Anna", "app:version": 2, "new": [1]}
        assert (await sessions.get_session(**ANN, session_id="two")).state == {"user:name": "Anna", "app:version": 2}
        assert await sessions.get_user_state(**ANN) == {"name": "Anna"}
        assert await sessions.get_user_state(app_name="app", user_id="nobody") == {}

    asyncio.run(main())


def test_events_come_back_equal_and_in_order(store):
    async def main():
        sessions = BacktrailSessionService(store)
        session = await sessions.create_session(**ONE)
        part = types.Part(inline_data=types.Blob(data=b"\xff\0\x01", mime_type="image/png"))
        given = [said(f"{n} \0é", timestamp=100.0, invocation_id=f"i{n}") for n in range(5)]  # one time for all
        given.append(Event(author="m", content=types.Content(parts=[part]), timestamp=99.0, custom_metadata={"a": [1]}))
        for event in given:
            assert await sessions.append_event(session, event) is event
        partial = said("not kept", partial=True)
        assert await sessions.append_event(session, partial) is partial
        loaded = await BacktrailSessionService(store).get_session(**ONE)
        assert loaded.events == given == session.events
        assert loaded.last_update_time == session.last_update_time == 99.0

    asyncio.run(main())


def test_a_reader_can_ask_for_some_events(store):
    async def main():
        ours, theirs = BacktrailSessionService(store), InMemorySessionService()
        for sessions in (ours, theirs):
            session = await sessions.create_session(**ONE)
            for number, time in enumerate([1.0, 2.0, 2.0, 5.0, 3.0, 4.0]):
                await sessions.append_event(session, said(str(number), timestamp=time, id=f"e{number}"))
        for recent in (None, 0, 1, 3, 10):
            for after in (None, 0.0, 2.0, 2.5, 4.0, 9.0):
                config = GetSessionConfig(num_recent_events=recent, after_timestamp=after)
                found = await ours.get_session(**ONE, config=config)
                assert texts(found) == texts(await theirs.get_session(**ONE, config=config)), (recent, after)

    asyncio.run(main())


def test_an_event_that_is_sent_again_is_kept_once(store):
    async def main():
        sessions = BacktrailSessionService(store)
        session = await sessions.create_session(**ONE)
        event = said("hi", delta={"user:n": 1})
        await sessions.append_event(session, event)
        await sessions.append_event(session, event)
        again = (await sessions.get_session(**ONE)).model_copy(deep=True)
        await sessions.append_event(again, event.model_copy(deep=True))
        await sessions.append_event(again, said("more"))
        assert texts(await sessions.get_session(**ONE)) == ["hi", "more"]

    asyncio.run(main())


def test_of_two_writers_on_one_revision_one_wins(store):
    async def main():
        one, two = BacktrailSessionService(store), BacktrailSessionService(store)
        await one.create_session(**ONE)
        for number in range(60):
            held = await one.get_session(**ONE), await two.get_session(**ONE)
            delta = {"user:n": number} if number % 3 == 0 else {}
            events = said(f"a{number}", delta=delta, timestamp=5.0), said(f"b{number}", delta=delta, timestamp=5.0)
            work = one.append_event(held[0], events[0]), two.append_event(held[1], events[1])
            ends = await asyncio.gather(*work, return_exceptions=True)
            assert sorted(isinstance(end, StaleSessionError) for end in ends) == [False, True]
        assert len((await one.get_session(**ONE)).events) == 60

    asyncio.run(main())


def test_a_session_is_not_stale_by_the_clock_or_by_other_edits(memory):
    async def main():
        sessions = BacktrailSessionService(memory)
        session = await sessions.create_session(**ONE)
        session.last_update_time = 0.0
        await sessions.append_event(session, said("a", timestamp=50.0))
        await sessions.append_event(session, said("b", timestamp=10.0))
        memory.conversations.update(sessions.conversation_id(**ONE), tags=["x"])
        memory.conversations.append(sessions.conversation_id(**ONE), Message.user("a note"))
        await sessions.append_event(session, said("c"))
        assert texts(await sessions.get_session(**ONE)) == ["a", "b", "c"]
        recent = await sessions.get_session(**ONE, config=GetSessionConfig(num_recent_events=2))
        assert texts(recent) == ["b", "c"]

    asyncio.run(main())


# -- more than the interface ------------------------------------------------------------------------------


def test_a_fork_has_the_state_of_its_last_event(store):
    async def main():
        sessions = BacktrailSessionService(store)
        session = await sessions.create_session(**ONE, state={"n": 0, "kept": True})
        for number in (1, 2, 3):
            await sessions.append_event(session, said(str(number), delta={"n": number, "user:n": number}))
        forked = await sessions.fork(**ONE, new_session_id="two", at=session.events[1].id)
        assert (texts(forked), forked.state) == (["1", "2"], {"n": 2, "kept": True, "user:n": 3})
        await sessions.append_event(forked, said("4", delta={"n": 4}))
        assert texts(await sessions.get_session(**ONE)) == ["1", "2", "3"]
        whole = await sessions.fork(**ONE)
        assert (texts(whole), whole.state["n"]) == (["1", "2", "3"], 3)
        with pytest.raises(AlreadyExistsError):
            await sessions.fork(**ONE, new_session_id="two")
        with pytest.raises(NotFound, match="no event"):
            await sessions.fork(**ONE, at="no such event")
        with pytest.raises(SessionNotFoundError):
            await sessions.fork(**ANN, session_id="nobody")

    asyncio.run(main())


def test_undo_takes_an_event_and_its_state_back(memory):
    async def main():
        sessions = BacktrailSessionService(memory)
        session = await sessions.create_session(**ONE)
        await sessions.append_event(session, said("a", delta={"n": 1}))
        await sessions.append_event(session, said("b", delta={"n": 2}))
        await sessions.thread(**ONE).undo()
        stored = await sessions.get_session(**ONE)
        assert (texts(stored), stored.state) == (["a"], {"n": 1})
        with pytest.raises(StaleSessionError):
            await sessions.append_event(session, said("c"))
        await sessions.append_event(stored, said("c"))

    asyncio.run(main())


def test_search_and_log_know_the_sessions(tmp_path):
    async def main():
        async with BacktrailSessionService(tmp_path / "s.db") as sessions:
            session = await sessions.create_session(**ONE)
            await sessions.append_event(session, said("A ferry to Lisbon"))
            assert [hit.snippet for hit in await sessions.store.search("ferry")] == ["A ferry to Lisbon"]
            return sessions.conversation_id(**ONE)

    name = asyncio.run(main())
    assert name == "adk:app/ann/one"
    with backtrail.open(tmp_path / "s.db") as store:
        assert [info.title for info in store.conversations.list("app")] == ["A ferry to Lisbon"]
    assert "A ferry to Lisbon" in good("log", name, "--store", tmp_path / "s.db").out


def test_keys_are_told_apart(memory):
    async def main():
        sessions = BacktrailSessionService(memory)
        keys = [("a", "b", "c"), ("a", "b/c", "d"), ("a/b", "c", "d"), ("a", "b%2Fc", "d"), ("a", "x" * 500, "y")]
        for number, (app, user, name) in enumerate(keys):
            await sessions.create_session(app_name=app, user_id=user, session_id=name, state={"n": number})
        for number, (app, user, name) in enumerate(keys):
            found = await sessions.get_session(app_name=app, user_id=user, session_id=name)
            assert found.state == {"n": number}
        assert len((await sessions.list_sessions(app_name="a")).sessions) == 4

    asyncio.run(main())


def test_what_cannot_be_kept_is_refused(memory):
    async def main():
        sessions = BacktrailSessionService(memory)
        for wrong in ["", "x" * 513, 17]:
            with pytest.raises(Invalid):
                await sessions.get_session(app_name="app", user_id=wrong, session_id="s")
        with pytest.raises(Invalid, match="state"):
            await sessions.create_session(**ONE, state={"f": lambda: 1})
        assert list(memory.threads(kind="conversation")) == []
        session = await sessions.create_session(**ONE)
        for delta in ({"f": object()}, {"n": math.nan}, {"deep": [{"n": math.inf}]}, {"user:f": lambda: 1}):
            with pytest.raises(Invalid, match="state_delta"):
                await sessions.append_event(session, said("a", delta=delta))
        with pytest.raises(Invalid, match="takes an Event"):
            await sessions.append_event(session, "no event")
        assert session.events == []
        assert (await sessions.get_session(**ONE)).events == []
        with pytest.raises(Invalid, match="either"):
            BacktrailSessionService()
        with pytest.raises(Invalid, match="a store or its URL"):
            BacktrailSessionService(17)

    asyncio.run(main())


def test_services_yaml_names_the_service(tmp_path):
    (tmp_path / "services.yaml").write_text(
        "services:\n  - scheme: backtrail\n    type: session\n"
        "    class: backtrail.adapters.adk.BacktrailSessionService\n"
    )
    load_services_module(str(tmp_path))
    uri = f"backtrail:sqlite:///{tmp_path / 's.db'}"
    sessions = get_service_registry().create_session_service(uri, agents_dir=str(tmp_path))
    assert isinstance(sessions, BacktrailSessionService)

    async def main():
        await sessions.create_session(**ONE)
        await sessions.close()

    asyncio.run(main())
    assert (tmp_path / "s.db").exists()


# -- agents -------------------------------------------------------------------------------------------------


class Scripted(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        part = llm_request.contents[-1].parts[-1]
        if part.text and "weather" in part.text:
            answer = types.Part.from_function_call(name="weather", args={"city": "Lisbon"})
        else:
            answer = types.Part(text=f"I heard {part.text or part.function_response.response['result']}")
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


def runner_with(sessions, tool):
    tool.__name__ = "weather"
    agent = LlmAgent(name="planner", model=Scripted(model="scripted"), tools=[tool], output_key="last")
    return Runner(agent=agent, app_name="app", session_service=sessions)


async def say(runner, text):
    message = types.Content(role="user", parts=[types.Part(text=text)])
    return [event async for event in runner.run_async(user_id="ann", session_id="one", new_message=message)]


def test_a_runner_rewinds(store):
    async def main():
        sessions = BacktrailSessionService(store)
        await sessions.create_session(**ONE)
        runner = runner_with(sessions, lambda city: {"result": "24 degrees"})
        await say(runner, "weather?")
        second = await say(runner, "thanks")
        assert (await sessions.get_session(**ONE)).state["last"] == "I heard thanks"
        await runner.rewind_async(user_id="ann", session_id="one", rewind_before_invocation_id=second[0].invocation_id)
        assert (await sessions.get_session(**ONE)).state["last"] == "I heard 24 degrees"
        await say(runner, "and now")
        assert (await sessions.get_session(**ONE)).state["last"] == "I heard and now"

    asyncio.run(main())


KILLED = """
import asyncio, os, signal, sys
from backtrail.adapters.adk import BacktrailSessionService
from tests.adapters.adk_cases import ONE, runner_with, say

async def main():
    sessions = BacktrailSessionService(sys.argv[1])
    await sessions.create_session(**ONE)
    runner = runner_with(sessions, lambda city: os.kill(os.getpid(), signal.SIGKILL))
    await say(runner, "hello")
    await say(runner, "weather?")

asyncio.run(main())
"""


def test_a_process_killed_in_a_tool_leaves_what_had_finished(tmp_path):
    url = str(tmp_path / "s.db")
    done = subprocess.run([sys.executable, "-c", KILLED, url], cwd=ROOT, check=False, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    async def main():
        async with BacktrailSessionService(url) as sessions:
            stored = await sessions.get_session(**ONE)
            assert [event.author for event in stored.events] == ["user", "planner", "user", "planner"]
            assert stored.events[-1].content.parts[0].function_call.name == "weather"
            events = await say(runner_with(sessions, lambda city: {"result": "warm"}), "go on")
            assert events[-1].content.parts[0].text == "I heard go on"

    asyncio.run(main())


# -- imports ------------------------------------------------------------------------------------------------


def services(path):
    return {
        "database": lambda: DatabaseSessionService(f"sqlite+aiosqlite:///{path}"),
        "sqlite": lambda: SqliteSessionService(str(path)),
    }


def change(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


async def fill(theirs):
    """Fill a database as agents do."""
    state = {"own": 1, "n": 0, "user:name": "Ann", "app:version": 1}
    one = await theirs.create_session(**ONE, state=state)
    for number in range(3):
        delta = {"n": number, "user:n": number} if number else {}
        event = said(f"{number} é", delta=delta, timestamp=1_700_000_000.5 + 60 * number, id=f"e{number}")
        await theirs.append_event(one, event)
    part = types.Part(inline_data=types.Blob(data=b"\xff\0", mime_type="image/png"))
    await theirs.append_event(one, Event(author="m", content=types.Content(parts=[part]), timestamp=1_700_000_300.0))
    await theirs.create_session(app_name="app", user_id="bob", session_id="b", state={"x": [1]})
    await theirs.create_session(app_name="app/2", user_id="ann", session_id="one")


def comparable(session):
    return session.model_dump(exclude={"last_update_time"})


@pytest.mark.parametrize("kind", ["database", "sqlite"])
def test_sessions_of_their_services_come_over(tmp_path, store, kind):
    path = tmp_path / "adk.sqlite"
    make = services(path)[kind]
    keys = [ONE, {"app_name": "app", "user_id": "bob", "session_id": "b"}, {**ONE, "app_name": "app/2"}]

    async def same():
        theirs, ours = make(), BacktrailSessionService(store)
        for key in keys:
            assert comparable(await ours.get_session(**key)) == comparable(await theirs.get_session(**key))
        assert await ours.get_user_state(**ANN) == {"name": "Ann", "n": 2}

    asyncio.run(fill(make()))
    report = import_database(path, store)
    assert (report.sessions, report.messages, report.skipped) == (3, 4, ())
    asyncio.run(same())
    thread = store.conversations.thread(BacktrailSessionService.conversation_id(**ONE))
    times = [checkpoint.created_at.timestamp() for checkpoint in thread.history()]
    assert times[1:5] == [1_700_000_000.5, 1_700_000_060.5, 1_700_000_120.5, 1_700_000_300.0]
    there = len(list(store.activity()))
    again = import_database(path, store)
    assert (again.sessions, again.messages, again.skipped) == (3, 0, ())
    assert len(list(store.activity())) == there

    async def more():
        theirs, ours = make(), BacktrailSessionService(store)
        await theirs.append_event(await theirs.get_session(**ONE), said("more", delta={"n": 9}))
        assert import_database(path, store).messages == 1
        assert comparable(await ours.get_session(**ONE)) == comparable(await theirs.get_session(**ONE))
        session = await ours.get_session(**ONE)
        await ours.append_event(session, said("here"))
        forked = await ours.fork(**ONE, at="e0")
        assert (forked.state["own"], texts(forked)) == (1, ["0 é"])
        assert import_database(path, store).skipped == ()
        await theirs.append_event(await theirs.get_session(**ONE), said("there", delta={"user:n": 7}))
        skipped = import_database(path, store).skipped
        assert [each.thread_id for each in skipped] == ["app/ann/one", "the state of app and ann"]
        assert "both in the store and in the file" in skipped[0].reason
        assert (await ours.get_session(**ONE)).events[-1].content.parts[0].text == "here"

    asyncio.run(more())


def test_damaged_sessions_and_other_files_are_not_imported(tmp_path, memory):
    path = tmp_path / "adk.sqlite"
    asyncio.run(fill(services(path)["sqlite"]()))
    change(path, "UPDATE events SET event_data = '{broken' WHERE id = 'e1'")
    change(path, "UPDATE sessions SET state = '[]' WHERE id = 'b'")
    report = import_database(path, memory)
    assert sorted(each.thread_id for each in report.skipped) == ["app/ann/one", "app/bob/b"]
    assert (report.sessions, report.messages) == (1, 0)
    assert len(list(memory.threads(kind="conversation"))) == 1
    change(path, "ALTER TABLE events RENAME COLUMN event_data TO actions")
    for call in (lambda: import_database(path, memory), lambda: check_database(path)):
        with pytest.raises(Invalid, match="adk migrate session"):
            call()
    (tmp_path / "text").write_text("nothing")
    with pytest.raises(Invalid, match="not an SQLite file"):
        import_database(tmp_path / "text", memory)


def test_the_command_line_imports_and_names_the_format(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKTRAIL_URL", f"sqlite:///{tmp_path / 'into.db'}")
    asyncio.run(fill(services(tmp_path / "adk.sqlite")["database"]()))
    assert "--from adk" in bad(2, "import", tmp_path / "adk.sqlite")
    assert "3 sessions, 4 messages, 0 skipped" in good("import", tmp_path / "adk.sqlite", "--from", "adk").out


# -- the page and the example -----------------------------------------------------------------------------


def test_every_block_of_the_page_prints_what_it_says(tmp_path, monkeypatch):
    page = ROOT / "docs" / "adk.md"
    for block, printed, shown in run(page, tmp_path, monkeypatch):
        assert printed == shown, f"line {block.line}"


def test_the_example_runs():
    example = Path(ROOT / "examples" / "adk_session.py")
    done = subprocess.run([sys.executable, example], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "planner: As you like." in done.stdout
