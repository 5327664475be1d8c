"""Real runs of the OpenAI Agents SDK with a session in a store: no network, the model follows a script.

What a run leaves behind is compared with what the SDK's own SQLiteSession has after the same run.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from agents import (
    Agent,
    RunConfig,
    Runner,
    SessionSettings,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
)
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.usage import Usage

import backtrail
from backtrail.adapters.openai import BacktrailSession
from tests.support.places import in_memory
from tests.support.servers import place

QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def opener(request, tmp_path):
    if request.param == "memory":
        with in_memory() as opener:
            yield opener
    elif request.param == "postgres":
        with place(durability="relaxed") as opener:
            yield opener
    else:
        url = tmp_path / "store.db" if request.param == "sqlite" else (tmp_path / "store").as_uri()
        yield partial(backtrail.open, url, durability="relaxed")


@pytest.fixture
def store(opener):
    with opener() as store:
        yield store


@pytest.fixture
def memory():
    """A store for what does not depend on where it is kept."""
    with backtrail.open("memory://") as store:
        yield store


@function_tool
def weather(city: str) -> str:
    """Say how it is."""
    return f"{city}: 24 degrees, déjà vu \0"


@function_tool(needs_approval=True)
def book(hotel: str) -> str:
    """Book it."""
    return f"booked {hotel}"


@function_tool(failure_error_function=None)
def fail(why: str) -> str:
    """Fail the whole run."""
    raise RuntimeError(why)


def agent_of(*steps, name="planner", **others):
    return Agent(name=name, model=ScriptedModel(steps), tools=[weather, book, fail], **others)


def ask(city, call_id):
    return function_call("weather", {"city": city}, call_id=call_id)


def say(text):
    return [assistant_message(text)]


async def run(agent, given, session, *, streamed=False, config=QUIET):
    if not streamed:
        return await Runner.run(agent, given, session=session, run_config=config)
    result = Runner.run_streamed(agent, given, session=session, run_config=config)
    async for _ in result.stream_events():
        pass
    return result


def seen_by(agent):
    """What the model was given last."""
    return agent.model.calls[-1].input


# -- the same as the SDK's own session ------------------------------------------------------------------


async def chat(session, streamed):
    """Two turns with tools, two of them at once, a handoff, and one that fails."""
    porto = agent_of(say("Porto it is."), name="porto")
    agent = agent_of(
        [ask("Lisbon", "c1"), ask("Porto", "c2")],
        [ask("Faro", "c3")],
        say("Faro."),
        [function_call("transfer_to_porto", {}, call_id="c4")],
        [ask("Lisbon", "c5"), function_call("fail", {"why": "no network"}, call_id="c6")],
        say("Sorry."),
        handoffs=[handoff(porto)],
    )
    await run(agent, "Where is it warm?", session, streamed=streamed)
    await run(agent, [{"role": "user", "content": [{"type": "input_text", "text": "And Porto?"}]}], session)
    with pytest.raises(UserError):
        await run(agent, "Once more", session, streamed=streamed)
    await run(agent, "And now?", session, streamed=streamed)
    return seen_by(agent)


@pytest.mark.parametrize("streamed", [False, True])
def test_run_stores_the_items_of_sqlite_session(store, streamed):
    async def both():
        theirs, ours = SQLiteSession("s"), BacktrailSession("s", store)
        assert await chat(ours, streamed) == await chat(theirs, streamed)
        assert await ours.get_items() == await theirs.get_items()
        for limit in (0, 1, 3, 1000):
            assert await ours.get_items(limit) == await theirs.get_items(limit)
        theirs.close()

    asyncio.run(both())


@pytest.fixture
def loop():
    """The event loop that `run_sync` uses, which it leaves open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


def test_run_sync_works_with_a_path(tmp_path, loop):
    session = BacktrailSession("s", tmp_path / "new" / "s.db")
    agent = agent_of([ask("Lisbon", "c1")], say("Warm."), say("Still warm."))
    assert Runner.run_sync(agent, "Lisbon?", session=session, run_config=QUIET).final_output == "Warm."
    session.close()
    again = BacktrailSession("s", f"sqlite:///{tmp_path}/new/s.db")
    assert Runner.run_sync(agent, "And now?", session=again, run_config=QUIET).final_output == "Still warm."
    assert len(seen_by(agent)) == 5
    again.close()
    again.close()


def test_settings_limit_the_model_input(memory):
    async def main():
        session = BacktrailSession("s", memory, session_settings={"limit": 2})
        agent = agent_of(*(say(str(n)) for n in range(5)))
        for n in range(4):
            await run(agent, f"question {n}", session)
        assert len(seen_by(agent)) == 3
        config = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=4))
        await run(agent, "question 4", session, config=config)
        assert len(seen_by(agent)) == 5
        assert len(await session.get_items()) == 2
        assert len(await session.get_items(100)) == 10

    asyncio.run(main())


def test_works_inside_encrypted_session(memory):
    async def main():
        session = EncryptedSession("s", BacktrailSession("s", memory), "a key of enough letters")
        await run(agent_of([ask("Lisbon", "c1")], say("Warm.")), "secret words", session)
        assert (await session.get_items())[0]["content"] == "secret words"
        assert memory.search("secret") == []
        await session.pop_item()
        assert len(await session.get_items()) == 3

    asyncio.run(main())


def test_works_inside_compaction_session(memory):
    async def main():
        inner = BacktrailSession("s", memory)
        summary = {"type": "compaction", "id": "cmp_1", "encrypted_content": "short"}
        compact = mock.AsyncMock(return_value=mock.Mock(output=[summary]))
        client = mock.Mock(responses=mock.Mock(compact=compact))
        session = OpenAIResponsesCompactionSession("s", inner, client=client)
        await run(agent_of([ask("Lisbon", "c1")], say("Warm.")), "Lisbon?", session)
        before = await inner.get_items()
        await session.run_compaction({"force": True, "compaction_mode": "input"})
        assert await inner.get_items() == [summary]
        await inner.thread.undo()
        await inner.thread.undo()
        assert await inner.get_items() == before

    asyncio.run(main())


# -- runs that wait for approval ------------------------------------------------------------------------


def waiting():
    """An agent that makes a lookup, then two calls; one of them needs an approval."""
    both = [ask("Porto", "c2"), function_call("book", {"hotel": "Ritz"}, call_id="c3")]
    return agent_of([ask("Lisbon", "c1")], both, say("Booked."))


@pytest.mark.parametrize("streamed", [False, True])
def test_paused_run_continues_in_another_process(opener, streamed):
    async def first(store):
        session = BacktrailSession("s", store, agent="planner")
        result = await run(waiting(), "Book me a room", session, streamed=streamed)
        assert [each.name for each in result.interruptions] == ["book"]
        await session.save_run(result)

    async def later(store):
        session = BacktrailSession("s", store, agent="planner")
        assert await session.repairs() == []  # it is awaited: nothing says that it was interrupted
        agent = agent_of(say("Booked."))
        state = await session.load_run(agent)
        state.approve(state.get_interruptions()[0])
        assert await session.drop_run() is True
        assert (await run(agent, state, session, streamed=streamed)).final_output == "Booked."
        assert await session.load_run(agent) is None
        return await session.get_items()

    async def theirs():
        session, agent = SQLiteSession("s"), waiting()
        state = (await run(agent, "Book me a room", session, streamed=streamed)).to_state()
        state.approve(state.get_interruptions()[0])
        await run(agent, state, session, streamed=streamed)
        items = await session.get_items()
        session.close()
        return items

    with opener() as store:
        asyncio.run(first(store))
    with opener() as store:
        assert asyncio.run(later(store)) == asyncio.run(theirs())
        assert [info.agent for info in store.threads(agent="planner")] == []


def test_one_of_two_workers_gets_a_paused_run(store):
    async def main():
        session = BacktrailSession("s", store)
        await session.save_run(await run(waiting(), "Book me a room", session))
        others = [BacktrailSession("s", store) for _ in range(5)]
        assert sorted(await asyncio.gather(*(each.drop_run() for each in others))) == [False] * 4 + [True]
        assert await session.drop_run() is False

    asyncio.run(main())


def test_concurrent_approvals_conflict(memory):
    async def main():
        session = BacktrailSession("s", memory)
        await session.save_run(await run(waiting(), "Book me a room", session))
        mine, yours = BacktrailSession("s", memory), BacktrailSession("s", memory)
        first, second = await mine.load_run(waiting()), await yours.load_run(waiting())
        await mine.save_run(first)
        with pytest.raises(backtrail.Conflict):
            await yours.save_run(second)

    asyncio.run(main())


# -- a process that is killed --------------------------------------------------------------------------


KILLED = """
import os, signal, sys
from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from backtrail.adapters.openai import BacktrailSession

@function_tool
def note(text: str) -> str:
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "noted " + text

calls = [[function_call("note", {"text": text}, call_id=text)] for text in ("one", "two", "die")]
agent = Agent(name="a", model=ScriptedModel(calls), tools=[note])
session = BacktrailSession("s", sys.argv[1])
Runner.run_sync(agent, "Take notes", session=session, run_config=RunConfig(tracing_disabled=True))
"""


def test_finished_steps_survive_a_kill_inside_a_tool(tmp_path):
    source = Path(backtrail.__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "s.db")],
        env={**os.environ, "PYTHONPATH": str(source)},
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    async def main():
        async with BacktrailSession("s", tmp_path / "s.db") as session:
            outputs = [item["output"] for item in await session.get_items() if "output" in item]
            assert outputs == ["noted one", "noted two"]
            agent = agent_of(say("Two notes."))
            assert (await run(agent, "What do you have?", session)).final_output == "Two notes."
            assert len(seen_by(agent)) == 6

    asyncio.run(main())


# -- turns ----------------------------------------------------------------------------------------------


def test_turns_have_tools_and_usage(opener):
    async def main(store):
        session = BacktrailSession("s", store)
        used = Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
        with pytest.raises(backtrail.NotFound):
            await session.store_run_usage(await run(agent_of(say("x")), "x", None))
        agent = agent_of(
            ModelStep(output=[ask("Lisbon", "c1")], usage=used), ModelStep(output=say("Warm."), usage=used), say("Bye.")
        )
        await session.store_run_usage(await run(agent, "Lisbon?", session))
        await run(agent, "Thanks", session)
        first, second = await session.turns()
        assert (first.number, first.content, first.items, first.tools) == (1, "Lisbon?", 4, ("weather",))
        assert (first.usage["requests"], first.usage["total_tokens"]) == (2, 240)
        assert (second.content, second.items, second.tools, second.usage) == ("Thanks", 2, (), None)
        assert (await session.usage())["input_tokens"] == 200
        branch = await session.fork("t", at=1)
        assert await branch.get_items() == (await session.get_items())[:4]
        await run(agent_of(say("Porto.")), "And Porto?", branch)

    async def later(store):
        session, branch = BacktrailSession("s", store), BacktrailSession("t", store)
        assert [turn.content for turn in await session.turns()] == ["Lisbon?", "Thanks"]
        assert [turn.content for turn in await branch.turns()] == ["Lisbon?", "And Porto?"]
        assert (await branch.usage())["requests"] == 2
        assert [info.id for info in await session.branches()] == ["t"]

    with opener() as store:
        asyncio.run(main(store))
    with opener() as store:
        asyncio.run(later(store))


def test_usage_reaches_its_turn_despite_concurrent_adds(memory):
    async def main():
        session = BacktrailSession("s", memory)
        result = await run(agent_of(say("x")), "x", None)
        await session.add_items([{"role": "user", "content": "Lisbon?"}])
        find = session._last_user_message

        async def and_meanwhile(head):
            found = await find(head)
            await session.add_items([{"role": "assistant", "content": "Warm."}])
            await session.get_items()
            return found

        left = [find, and_meanwhile]

        def look(head):
            return left.pop()(head)

        with mock.patch.object(session, "_last_user_message", look):
            await session.store_run_usage(result)
        assert left == []
        (turn,) = await session.turns()
        assert turn.usage["requests"] == 1
        assert (await session.get_items())[1]["role"] == "assistant"

    asyncio.run(main())


def test_session_is_found_listed_and_loaded(store):
    async def main():
        session = BacktrailSession("s", store, agent="planner")
        await run(agent_of([ask("Lisbon", "c1")], say("Warm.")), "How is Lisbon?", session)
        assert [hit.role for hit in await session.search("degrees")] == ["tool"]
        assert await BacktrailSession("other", store).search("degrees") == []

    asyncio.run(main())
    (info,) = store.conversations.list("planner")
    assert (info.title, info.message_count) == ("How is Lisbon?", 4)
    loaded = store.conversations.load("s").messages
    assert [str(message.role) for message in loaded] == ["user", "assistant", "tool", "assistant"]
    assert [(call.name, call.arguments, call.id) for call in loaded[1].tool_calls] == [
        ("weather", {"city": "Lisbon"}, "c1")
    ]
    assert loaded[2].metadata["tool_call_id"] == "c1"
    assert loaded[3].content == "Warm."
    assert json.dumps(loaded[3].raw)
