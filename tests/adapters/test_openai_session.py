"""A session of the OpenAI Agents SDK as its protocol has it, and what becomes of odd items, callers and payloads."""

import asyncio
import builtins
import importlib
import json
import subprocess
import sys
from functools import partial
from unittest import mock

import pytest
from agents.memory import Session, SessionSettings
from hypothesis import given, settings
from hypothesis import strategies as st

import backtrail
from backtrail import Attachment, Conversation, Corrupt, Invalid, Message, NotFound, ToolCall, aio
from backtrail.adapters.openai import BacktrailSession
from backtrail.adapters.openai.items import message_of
from backtrail.conversations.items import FORMAT, items_of
from backtrail.validation import to_data
from tests.conformance.base import chunks_read
from tests.support.exact import same
from tests.support.places import in_memory
from tests.support.servers import place


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "memory":
        with in_memory() as opener, opener() as store:
            yield store
    elif request.param == "postgres":
        with place(durability="relaxed") as opener, opener() as store:
            yield store
    else:
        with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
            yield store


@pytest.fixture
def memory():
    with backtrail.open("memory://") as store:
        yield store


def user(text):
    return {"role": "user", "content": text}


def call(call_id, kind="function_call"):
    return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}"}


# -- the protocol ---------------------------------------------------------------------------------------


def test_items_of_another_process_are_seen(tmp_path):
    async def work():
        async with BacktrailSession("s", tmp_path / "s.db") as here, BacktrailSession("s", tmp_path / "s.db") as there:
            await here.add_items([user("a")])
            assert len(await here.get_items()) == 1
            await there.add_items([user("b")])
            assert await here.get_items() == [user("a"), user("b")]
            await here.add_items([user("c")])
            assert await there.get_items() == [user("a"), user("b"), user("c")]
            assert await there.pop_item() == user("c")
            assert await here.get_items() == [user("a"), user("b")]
            await there.clear_session()
            assert await here.get_items() == []

    asyncio.run(work())


def test_items_that_a_reader_changes_are_its_own(memory):
    async def work():
        session = BacktrailSession("s", memory)
        await session.add_items([user("a")])
        (await session.get_items())[0]["content"] = "changed"
        assert await session.get_items() == [user("a")]

    asyncio.run(work())


def test_it_is_a_session(memory):
    session = BacktrailSession("s", memory)
    assert isinstance(session, Session)
    assert (session.session_id, session.session_settings, session.agent) == ("s", SessionSettings(), "openai-agents")


def test_items_are_added_popped_and_cleared(store):
    async def main():
        session = BacktrailSession("s", store)
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.clear_session()
        await session.add_items([])
        assert store.conversations.get("s") is None  # nothing was written yet
        items = [user(str(n)) for n in range(7)]
        await session.add_items(items[:5])
        await session.add_items(items[5:])
        assert store.conversations.thread("s").current_step == 2  # one write each
        assert await session.get_items() == items
        assert await session.get_items(2) == items[-2:]
        assert await session.get_items(0) == []
        assert await session.get_items(100) == items
        assert await session.pop_item() == items[6]
        assert await session.pop_item() == items[5]
        await session.thread.undo()
        assert await session.get_items() == items[:6]
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.thread.undo()
        assert len(await session.get_items()) == 6

    asyncio.run(main())


def test_sessions_of_one_store_are_separate(store):
    async def main():
        names = ["a", "A", "a_b", "../x", "ü\0", "x" * 500]
        for name in names:
            await BacktrailSession(name, store).add_items([user(name)])
        for name in names:
            assert await BacktrailSession(name, aio.Store(store)).get_items() == [user(name)]

    asyncio.run(main())


def test_limit_reads_only_the_latest_items(tmp_path):
    async def fill(session):
        await session.add_items([user(f"{n} " + "word " * 200) for n in range(400)])

    with backtrail.open(tmp_path / "s.db") as store:
        asyncio.run(fill(BacktrailSession("s", store)))
    read = {}
    for limit in (3, None):
        with backtrail.open(tmp_path / "s.db") as store:
            with chunks_read(store) as chunks:
                asyncio.run(BacktrailSession("s", store).get_items(limit))
            read[limit] = len(chunks)
    assert read[3] < read[None] / 3


def test_returned_items_may_be_changed(memory):
    async def main():
        session = BacktrailSession("s", memory)
        given = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        await session.add_items([given])
        given["content"][0]["text"] = "changed"
        found = await session.get_items()
        assert found[0]["content"][0]["text"] == "hi"
        found[0]["content"].clear()
        assert (await session.get_items())[0]["content"][0]["text"] == "hi"

    asyncio.run(main())


# -- many at once ---------------------------------------------------------------------------------------


def test_twenty_concurrent_adds_lose_nothing(store):
    async def main():
        sessions = [BacktrailSession("s", store) for _ in range(4)]
        batches = [[user(f"{n}a"), user(f"{n}b"), user(f"{n}c")] for n in range(20)]
        await asyncio.gather(*(sessions[n % 4].add_items(batch) for n, batch in enumerate(batches)))
        items = await sessions[0].get_items()
        found = [items[at : at + 3] for at in range(0, 60, 3)]  # each batch in one piece
        assert sorted(found, key=str) == sorted(batches, key=str)

    asyncio.run(main())


def test_concurrent_pops_get_different_items(store):
    async def main():
        one, two = BacktrailSession("s", store), BacktrailSession("s", store)
        items = [user(str(n)) for n in range(20)]
        await one.add_items(items)
        popped = []

        async def pop(session):
            while (item := await session.pop_item()) is not None:
                popped.append(item)

        await asyncio.gather(pop(one), pop(two))
        assert sorted(popped, key=str) == sorted(items, key=str)
        assert await one.get_items() == []

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_write_completes(store, times):
    async def cancelled(work):
        task = asyncio.ensure_future(work)
        for _ in range(times):
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main():
        session = BacktrailSession("s", store)
        await session.add_items([user("0")])
        await cancelled(session.add_items([user("1"), user("2")]))
        assert await session.get_items() == [user("0"), user("1"), user("2")]
        await cancelled(session.pop_item())
        assert await session.get_items() == [user("0"), user("1")]
        await cancelled(session.clear_session())
        assert await session.get_items() == []

    asyncio.run(main())


def test_session_writes_join_the_callers_transaction(store):
    async def main():
        both = aio.Store(store)
        session = BacktrailSession("s", both)
        await session.add_items([user("0")])
        with pytest.raises(ZeroDivisionError):
            async with both.transaction():
                await session.add_items([user("1")])
                await session.pop_item()
                await session.clear_session()
                raise ZeroDivisionError
        assert await session.get_items() == [user("0")]
        async with both.transaction():
            await session.clear_session()
            await session.add_items([user("1")])
        assert await session.get_items() == [user("1")]

    asyncio.run(main())


# -- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        ({"role": "user", "content": [{"when": b"x"}]}, "items[1]['content'][0]['when']"),
        ({"role": "user", "content": float("nan")}, "items[1]['content']"),
        ({"role": "user", "content": {1: 2}}, "items[1]['content'][1]"),
        ({"role": "user", "content": ("a",)}, "items[1]['content']"),
        ({"role": "user", "content": object()}, "items[1]['content']"),
        ("hello", "items[1]"),
        (None, "items[1]"),
    ],
)
def test_values_outside_json_are_refused_with_their_path(memory, bad, path):
    session = BacktrailSession("s", memory)
    with pytest.raises(Invalid) as error:
        asyncio.run(session.add_items([user("ok"), bad]))
    assert error.value.path == path
    assert memory.conversations.get("s") is None


def test_bad_arguments_are_refused(memory, tmp_path):
    for bad in ("", "x" * 501, None, 7):
        with pytest.raises(Invalid):
            BacktrailSession(bad, tmp_path / "never.db")
    with pytest.raises(Invalid):
        BacktrailSession("s", memory, agent="")
    with pytest.raises(Invalid):
        BacktrailSession("s", 7)
    assert list(tmp_path.iterdir()) == []
    session = BacktrailSession("s", memory)

    async def main():
        for bad in (-1, 1.5, "2"):
            with pytest.raises(Invalid):
                await session.get_items(bad)
        for work in (partial(session.fork, "t"), partial(session.fork, "t", at=1)):
            with pytest.raises(NotFound):
                await work()
        await session.add_items([user("x")])
        with pytest.raises(NotFound):
            await session.fork("t", at=2)
        with pytest.raises(NotFound):
            await session.fork("t", at="nowhere")
        with pytest.raises(backtrail.Conflict):
            await session.fork("s")

    asyncio.run(main())
    assert [info.id for info in memory.threads(kind="conversation")] == ["s"]


def test_a_missing_extra_is_named():
    code = (
        "import sys; sys.modules['agents'] = None\n"
        "try: import backtrail.adapters.openai\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'backtrail[openai]'" in done.stdout


def test_session_closes_only_its_own_store(tmp_path, memory):
    async def main():
        async with BacktrailSession("s", tmp_path / "s.db") as session:
            await session.add_items([user("x")])
        with pytest.raises(backtrail.Unavailable):
            await session.get_items()
        shared = BacktrailSession("s", memory)
        shared.close()
        await shared.aclose()
        await shared.add_items([user("x")])

    asyncio.run(main())


# -- payloads -------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(["role", "type", "content", "call_id", "name", "arguments", "output", "summary", "id", "input"])
WORDS = st.sampled_from(["user", "assistant", "developer", "function_call", "function_call_output", "reasoning", "c1"])
ITEMS = st.dictionaries(KEYS | st.text(max_size=4), WORDS | JSON, max_size=6)


@settings(max_examples=20)
@given(st.lists(ITEMS, min_size=1, max_size=4))
def test_any_item_comes_back_exactly(items):
    async def main():
        with backtrail.open("memory://") as store:
            session = BacktrailSession("s", store, repair=False)
            await session.add_items(items)
            assert same(await session.get_items(), items)
            assert len(await BacktrailSession("s", store).get_items()) >= len(items)
            assert same([await session.pop_item() for _ in items], items[::-1])

    asyncio.run(main())


def test_odd_texts_come_back_exactly(store):
    async def main():
        odd = [
            user("NUL \0, lone \ud800, emoji 🧭"),
            {"type": "function_call", "call_id": "\0", "arguments": "{\ud800"},
            {"type": [], "call_id": "c", "role": {}},
        ]
        session = BacktrailSession("s", store, repair=False)
        await session.add_items(odd)
        assert same(await session.get_items(), odd)
        assert same(await BacktrailSession("s", store).get_items(), odd)  # its output may still come

    asyncio.run(main())


def test_message_fields_match_items():
    def made(**item):
        message = message_of(item, "x")
        return str(message.role), message.content, [(each.name, each.arguments) for each in message.tool_calls]

    parts = [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}, {"type": "image"}, "c"]
    assert made(role="assistant", content=parts) == ("assistant", "a\nb", [])
    assert made(role="developer", content="be kind") == ("system", "be kind", [])
    assert made(type="reasoning", summary=[{"text": "hm"}]) == ("assistant", "hm", [])
    assert made(**call("c")) == ("assistant", "", [("f", {})])
    for text in ("no json", "[1]", '{"x": NaN}', "[" * 100_000):
        assert made(type="function_call", call_id="c", name="f", arguments=text)[2] == [("f", {"arguments": text})]
    assert made(type="shell_call", call_id="c", action={"commands": []})[2] == [("shell_call", {"commands": []})]
    assert made(type="function_call_output", call_id="c", output=[{"text": "done"}]) == ("tool", "done", [])
    assert made(type="function_call", call_id="x" * 600, name="f") == ("assistant", "", [])
    assert made(anything=1) == ("assistant", "", [])


def test_foreign_conversation_is_a_session(memory):
    done = ToolCall("find", {"q": "x"}, id="c1").completed("found")
    memory.conversations.save(
        Conversation(
            "a",
            id="s",
            messages=[
                Message.system("Be kind."),
                Message.user("Hi", attachments=[Attachment("file", "x", "text/plain", "y")]),
                Message.assistant("Let me see", tool_calls=[done, ToolCall("book", id="c2")]),
                Message.tool_result("c2", "booked"),
                Message("tool", "without a call"),
                Message.assistant("Bye", raw={"anything": 1}, raw_format="acme.v1"),
            ],
        )
    )

    async def main():
        session = BacktrailSession("s", memory)
        assert await session.get_items() == [
            {"role": "system", "content": "Be kind."},
            user("Hi"),
            {"role": "assistant", "content": "Let me see"},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": "x"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "found"},
            {"type": "function_call", "call_id": "c2", "name": "book", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": "booked"},
            {"role": "assistant", "content": "without a call"},
            {"role": "assistant", "content": "Bye"},
        ]
        assert await session.pop_item() == {"role": "assistant", "content": "Bye"}
        await session.add_items([user("And now?")])
        assert len(await session.get_items(2)) == 2

    asyncio.run(main())


CRAFTED = [
    {"messages": [{"id": "m", "role": "user", "content": "x", "raw": "import os", "raw_format": FORMAT}]},
    {"messages": [{"id": "m", "role": "user", "content": "x", "raw": ["list"], "raw_format": FORMAT}]},
    {"messages": [{"raw_format": FORMAT}]},
    {"messages": [{"role": "nobody", "content": 7, "id": "m"}]},
    {"messages": ["text", 7]},
    {"messages": {"a": 1}},
    {"messages": 7},
    {"nothing": 1},
    7,
]


@pytest.mark.parametrize("state", CRAFTED, ids=repr)
def test_a_crafted_conversation_is_corrupt_and_imports_nothing(memory, state):
    memory.conversations.thread("s", agent_id="a").save(state)
    session = BacktrailSession("s", memory)
    with mock.patch.object(builtins, "__import__", side_effect=AssertionError):
        for limit in (None, 5):
            with pytest.raises(Corrupt):
                asyncio.run(session.get_items(limit))


def test_a_crafted_payload_that_names_a_class_is_plain_data(memory):
    raw = {"role": "user", "__class__": "os.system", "py/object": "subprocess.Popen", "content": "x", "$type": "X"}
    sent = Message.user("x", raw=raw, raw_format=FORMAT)
    memory.conversations.save(Conversation("a", id="s", messages=[sent]))
    assert same(asyncio.run(BacktrailSession("s", memory).get_items()), [raw])


def test_a_crafted_run_is_corrupt(memory):
    session = BacktrailSession("s", memory)
    for state in (7, {}, {"run": [], "waiting": []}, {"run": {}, "waiting": 7}):
        memory.thread("openai-run:s").save(state)
        with pytest.raises(Corrupt):
            asyncio.run(session.load_run(None))


def test_items_of_reverses_message_of():
    for item in ({"x": 1}, user("x"), call("c")):
        assert items_of(to_data(message_of(item, "x")), "x") == [item]
        assert json.loads(json.dumps(item)) == item
    public = ["BacktrailSession", "Repair", "Turn", "check_database", "import_database"]
    assert importlib.import_module("backtrail.adapters.openai").__all__ == public
