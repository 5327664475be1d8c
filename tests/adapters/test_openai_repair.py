"""Calls of tools that have no output: which of them a session answers, and how; in real runs and by themselves."""

import asyncio
from functools import partial

import pytest
from agents import MaxTurnsExceeded, Runner
from hypothesis import given, settings
from hypothesis import strategies as st

import backtrail
from backtrail import aio
from backtrail.adapters.openai import BacktrailSession, Repair
from backtrail.adapters.openai.call_repair import INTERRUPTED, unanswered_calls, with_outputs
from tests.adapters.test_openai import QUIET, agent_of, ask, run, say, seen_by, waiting


@pytest.fixture
def opener(tmp_path):
    return partial(backtrail.open, tmp_path / "s.db", durability="relaxed")


@pytest.fixture
def memory():
    with backtrail.open("memory://") as store:
        yield store


# -- in runs --------------------------------------------------------------------------------------------


def test_abandoned_call_gets_an_output_after_the_next_turn(opener):
    async def abandon(store):
        session = BacktrailSession("s", store)
        await run(waiting(), "Book me a room", session)
        assert await session.repairs() == []  # its output may still come, in this process
        assert len(await session.get_items()) == 6

    async def go_on(store):
        session = BacktrailSession("s", store)
        assert await session.repairs() == [Repair("c3", "book", '{"hotel":"Ritz"}')]
        agent = agent_of(say("As you like."))
        await run(agent, "Never mind", session)
        kinds = [item.get("type") or item["role"] for item in seen_by(agent)]
        calls, outputs = ["function_call"] * 2, ["function_call_output"] * 2
        assert kinds == ["user", calls[0], outputs[0], *calls, *outputs, "user"]
        answers = {item["call_id"]: item["output"] for item in seen_by(agent) if "output" in item}
        assert answers["c3"] == INTERRUPTED
        assert "Porto" in answers["c2"]
        exact = BacktrailSession("s", store, repair=False)
        assert len(await exact.get_items()) == len(await session.get_items()) - 1
        assert await exact.repairs() == []
        for limit in range(10):  # a shorter reading is the end of the longer one
            assert await session.get_items(limit) == (await session.get_items())[9 - limit :]
        return session

    with opener() as store:
        asyncio.run(abandon(store))
    with opener() as store:

        async def main():
            session = await go_on(store)
            await session.add_items([{"type": "function_call_output", "call_id": "c3", "output": "booked Ritz"}])
            assert await session.repairs() == []
            outputs = [item["output"] for item in await session.get_items() if "output" in item]
            assert INTERRUPTED not in outputs
            assert outputs[-1] == "booked Ritz"

        asyncio.run(main())


def test_call_is_awaited_until_the_next_user_message(memory):
    async def main():
        session, other = BacktrailSession("s", aio.Store(memory)), BacktrailSession("s", memory)
        call = {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls"}
        await session.add_items([{"role": "user", "content": "go"}, call])
        assert await other.repairs() == []
        assert (await other.get_items())[-1] == call
        await other.add_items([{"role": "user", "content": "well?"}])
        assert await session.repairs() == [Repair("c1", "shell", "ls")]
        assert (await session.get_items())[2] == {
            "type": "custom_tool_call_output",
            "call_id": "c1",
            "output": INTERRUPTED,
        }

    asyncio.run(main())


def test_run_after_max_turns_can_continue(memory):
    async def main():
        session = BacktrailSession("s", memory)
        agent = agent_of([ask("Lisbon", "c1")], [ask("Porto", "c2")], say("Warm."))
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(agent, "Where?", session=session, max_turns=1, run_config=QUIET)
        assert len(await session.get_items()) == 3
        await run(agent, "Go on", session)
        assert len(seen_by(agent)) == 6

    asyncio.run(main())


def user(text):
    return {"role": "user", "content": text}


def call(call_id, kind="function_call"):
    return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id, kind="function_call_output"):
    return {"type": kind, "call_id": call_id, "output": "x"}


# -- repair, by itself ----------------------------------------------------------------------------------


def test_calls_without_a_later_output_are_unanswered():
    items = [call("1"), output("1"), call("2"), output("2", "custom_tool_call_output"), call("1"), call("3", "x_call")]
    assert unanswered_calls(items) == [2, 4]
    assert unanswered_calls([output("1"), call("1")]) == [1]
    assert unanswered_calls([call("1"), user("x"), output("1")]) == []


def test_outputs_follow_their_batch_of_calls():
    items = [call("1"), call("2"), output("2"), call("3")]
    answer = {"type": "function_call_output", "output": INTERRUPTED}
    assert with_outputs(items, unanswered_calls(items)) == [
        call("1"),
        call("2"),
        answer | {"call_id": "1"},
        output("2"),
        call("3"),
        answer | {"call_id": "3"},
    ]


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(call, st.sampled_from("abc"))
        | st.builds(output, st.sampled_from("abc"))
        | st.just(user("x"))
        | st.just({"type": "reasoning"}),
        max_size=12,
    )
)
def test_repair_is_complete_and_idempotent(items):
    made = with_outputs(items, unanswered_calls(items))
    assert unanswered_calls(made) == []
    assert [item for item in made if item.get("output") != INTERRUPTED] == items
    assert with_outputs(made, unanswered_calls(made)) == made


def test_output_in_progress_is_awaited(tmp_path):
    async def main():
        async with aio.open(tmp_path / "s.db") as store:
            one, other = BacktrailSession("s", store), BacktrailSession("s", store)
            await one.add_items([{"type": "function_call", "call_id": "late", "name": "look", "arguments": "{}"}])
            assert await other.repairs() == []  # another session of the store has added it
            writing = asyncio.create_task(
                one.add_items([{"type": "function_call_output", "call_id": "late", "output": "found"}])
            )
            for _ in range(20):
                outputs = [item["output"] for item in await other.get_items() if "output" in item]
                assert outputs in ([], ["found"])
                await asyncio.sleep(0)
            await writing

    asyncio.run(main())


def test_concurrent_output_is_not_missing(tmp_path, monkeypatch):
    async def main():
        async with aio.open(tmp_path / "s.db") as store:
            one, other = BacktrailSession("s", store), BacktrailSession("s", store)
            await one.add_items([{"type": "function_call", "call_id": "late", "name": "look", "arguments": "{}"}])
            read = other._items

            async def slowly(limit):
                items = await read(limit)
                if len(items) == 1:
                    await one.add_items([{"type": "function_call_output", "call_id": "late", "output": "found"}])
                return items

            monkeypatch.setattr(other, "_items", slowly)
            assert [item["type"] for item in await other.get_items()] == ["function_call"]
            assert [item.get("output") for item in await other.get_items()] == [None, "found"]

    asyncio.run(main())


def test_damaged_item_is_not_popped(memory):
    async def main():
        session = BacktrailSession("s", memory)
        await session.add_items([{"role": "user", "content": "hello"}])
        await session.thread.append("messages", {"role": "user", "raw": 5, "raw_format": "openai.responses"})
        with pytest.raises(backtrail.Corrupt):
            await session.pop_item()
        assert len(await (await session.thread.latest()).get("messages")) == 2

    asyncio.run(main())
