"""`BacktrailConversationStore` beside Pydantic AI's own store in memory, and what it adds."""

import asyncio
import builtins
import contextlib
import datetime as dt
import importlib
import math
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from pydantic_ai import Agent, conversation_store
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

import backtrail
from backtrail import Conflict, Corrupt, Invalid, Message, NotFound, aio
from backtrail.adapters.pydantic_ai import BacktrailConversationStore
from backtrail.adapters.pydantic_ai import conversation_store as adapter
from tests.support.commands import good
from tests.support.places import in_memory
from tests.support.servers import place

TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@contextlib.contextmanager
def opened(kind, tmp_path):
    if kind == "memory":
        with in_memory() as opener, opener() as store:
            yield store
    elif kind == "postgres":
        with place(durability="relaxed") as opener, opener() as store:
            yield store
    else:
        url = tmp_path / "s.db" if kind == "sqlite" else f"file://{tmp_path / 'files'}"
        with backtrail.open(url, durability="relaxed") as store:
            yield store


BACKENDS = ["memory", "files", "sqlite", "postgres"]


@pytest.fixture(params=BACKENDS)
def store(request, tmp_path):
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def memory():
    with backtrail.open("memory://") as store:
        yield store


def asked(text):
    return ModelRequest(parts=[UserPromptPart(text, timestamp=TIME)], timestamp=TIME)


def answered(text):
    return ModelResponse(parts=[TextPart(text)], timestamp=TIME, usage=RequestUsage(output_tokens=3))


async def saved(store, name, *texts, scope=None):
    """A conversation of one turn for each text, stored."""
    conversation = Conversation(conversation_id=name)
    for text in texts:
        conversation.messages += [asked(text), answered(f"to {text}")]
    await store.save(conversation, scope=scope)
    return conversation


# -- beside the framework's own store -------------------------------------------------------------------


class Clock:
    """Gives both stores the same new ids and times."""

    def __init__(self):
        self.now = 0
        self.number = 0

    def uuid7(self):
        self.number += 1
        return f"id-{self.now}-{self.number}"

    def now_utc(self):
        self.number += 1
        return TIME + dt.timedelta(seconds=self.now, microseconds=self.number)

    def __call__(self, now):
        self.now, self.number = now, 0


def timeless(answer):
    """An answer without the times that the framework took by itself."""
    if isinstance(answer, list):
        return [timeless(each) for each in answer]
    return replace(answer, updated_at=TIME) if isinstance(answer, ConversationRecord) else answer


class Pair:
    """The framework's store and ours: each operation runs on both, and must answer or fail alike."""

    def __init__(self, store, seed):
        self.stores = InMemoryConversationStore(), BacktrailConversationStore(store)
        self.random = random.Random(seed)
        self.kept = {}  # conversations that callers hold, one of each store
        self.entries = []
        self.clock = Clock()
        self.conflicts = self.steps = 0

    async def both(self, work):
        self.steps += 1
        answers = []
        for at, store in enumerate(self.stores):
            self.clock(self.steps)
            try:
                answers.append((await work(store, at), None))
            except (UserError, KeyError) as error:
                kind = KeyError if isinstance(error, KeyError) else type(error)
                answers.append((None, (kind, None if kind is KeyError else str(error))))
        (theirs, their_error), (ours, our_error) = answers
        assert our_error == their_error
        assert timeless(ours) == timeless(theirs)
        self.conflicts += their_error is not None and their_error[0] is ConversationConflict
        return theirs, ours

    def name(self):
        return f"c{self.random.randrange(8)}"

    def scope(self):
        return self.random.choice([None, None, None, "ann", "bob"])

    def message(self):
        text = f"{self.random.randrange(6)}"
        return self.random.choice([asked, answered])(text)

    async def step(self):
        operations = [
            self.turn, self.turn, self.turn, self.new, self.again, self.rewritten, self.branch, self.branch, self.fork,
            self.fork, self.delete, self.load, self.entry, self.entry, self.listing, self.stale_delete, self.bare_write,
        ]  # fmt: skip
        await self.random.choice(operations)()
        if self.steps % 20 == 0:
            await self.both(lambda store, _: store.list_conversations())

    async def load(self):
        name, limit, scope = self.name(), self.random.choice([None, None, 0, 1, 3]), self.scope()
        theirs, ours = await self.both(lambda store, _: store.load(name, limit=limit, scope=scope))
        if theirs is not None:
            self.kept[name] = [theirs, ours]
        found = await self.both(lambda store, _: store.load_entries(name, limit=limit, scope=scope))
        self.entries += [entry.id for entry in found[0] or ()]
        self.entries = self.entries[-200:]

    async def save(self, pair, scope=None):
        found = await self.both(lambda store, at: store.save(pair[at], scope=scope))
        assert pair[0].revision == pair[1].revision
        self.entries += [entry.id for entry in found[0] or ()]

    async def turn(self):
        if not self.kept:
            return await self.new()
        pair = self.kept[self.random.choice(list(self.kept))]
        new = [self.message() for _ in range(self.random.randrange(3))]
        for conversation in pair:
            conversation.messages += new
            conversation.usage.requests += 1
        return await self.save(pair, self.scope())

    async def again(self):  # without having loaded it since others may have saved
        await self.load()
        await self.turn()

    async def new(self):
        name, new = self.name(), [self.message() for _ in range(self.random.randrange(4))]
        pair = [Conversation(conversation_id=name, messages=list(new)) for _ in range(2)]
        await self.save(pair, self.scope())
        if pair[0].revision is not None:
            self.kept[name] = pair

    async def rewritten(self):
        if not self.kept:
            return
        pair = self.kept[self.random.choice(list(self.kept))]
        at, new = self.random.randrange(len(pair[0].messages) + 1), [self.message(), self.message()]
        compared = self.random.random() < 0.5
        for conversation in pair:
            conversation.messages[at:] = new
            if compared:
                conversation.new_message_index = None
        await self.save(pair)

    def some_entry(self):
        return self.random.choice([*self.entries[-60:], "no such entry"])

    def some_point(self):
        if self.random.random() < 0.5:
            return {"at": self.random.randrange(6)}
        return {"from_entry": self.some_entry()}

    async def branch(self):
        name, point, scope = self.name(), self.some_point(), self.scope()
        revision = (await self.revision(name)) if self.random.random() < 0.8 else "stale"
        theirs, ours = await self.both(
            lambda store, _: store.branch(name, **point, expected_revision=revision, scope=scope)
        )
        if theirs is not None:
            self.kept[name] = [theirs, ours]

    async def revision(self, name):
        record = (await self.both(lambda store, _: store.read_record(name)))[0]
        return None if record is None else record.revision

    async def fork(self):
        name, new, point, scope = self.name(), self.name(), self.some_point(), self.scope()
        theirs, ours = await self.both(lambda store, _: store.fork(name, **point, new_conversation_id=new, scope=scope))
        if theirs is not None:
            self.kept[new] = [theirs, ours]

    async def delete(self):
        name, scope = self.name(), self.scope()
        await self.both(lambda store, _: store.delete(name, scope=scope))
        if self.random.random() < 0.5:
            self.kept.pop(name, None)

    async def stale_delete(self):
        name = self.name()
        await self.both(lambda store, _: store.delete_record(name, expected_revision="stale"))

    async def entry(self):
        found = self.some_entry()
        await self.both(lambda store, _: store.read_entry(found))
        await self.both(lambda store, _: store.read_history(found, limit=2))

    async def listing(self):
        scope, limit = self.scope(), self.random.choice([None, 0, 1, 4])
        await self.both(lambda store, _: store.list_conversations(scope=scope, limit=limit))

    async def bare_write(self):
        """A record as another program may write it: its head may be gone, and its revision stale."""
        name, head = self.name(), self.some_entry()
        revision = self.random.choice([None, await self.revision(name), "stale"])
        record = (await self.both(lambda store, _: store.read_record(name)))[0]
        left = [] if record is None else [*record.branches, *([record.head_id] if record.head_id else [])]
        new = ConversationRecord(
            conversation_id=name, head_id=head, branches=left, revision=f"r{self.steps}",
            updated_at=TIME + dt.timedelta(seconds=self.steps),
        )  # fmt: skip
        await self.both(lambda store, _: store.write_record(new, expected_revision=revision))


def compare(store, seed, steps):
    async def main():
        pair = Pair(store, seed)
        with (
            mock.patch.object(conversation_store, "uuid7", pair.clock.uuid7),
            mock.patch.object(conversation_store, "now_utc", pair.clock.now_utc),
        ):
            while pair.steps < steps:
                await pair.step()
        return pair

    return asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_random_operations_answer_as_the_frameworks_own_store(store, seed):
    pair = compare(store, seed, 300)
    assert pair.conflicts > 10


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", BACKENDS)
def test_ten_thousand_operations_answer_as_the_frameworks_own_store(kind, tmp_path):
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        with opened(kind, tmp_path / str(seed)) as store:
            pair = compare(store, 100 + seed, 1_000)
            assert pair.conflicts > 30
            assert store.verify().ok


# -- payloads -----------------------------------------------------------------------------------------


def test_messages_come_back_equal(store):
    given = [
        ModelRequest(
            parts=[
                SystemPromptPart("be brief \0"),
                UserPromptPart(["look", BinaryContent(b"\xff\0\x01", media_type="application/pdf")]),
            ],
            instructions="be brief",
        ),
        ModelResponse(
            parts=[
                ThinkingPart("hm", signature="s"),
                TextPart("é\u2028"),
                ToolCallPart("f", '{"a": 1}', "1"),
                ToolCallPart("g", {"b": math.inf}, "2"),
            ],
            model_name="m",
        ),
        ModelRequest(parts=[ToolReturnPart("f", {"deep": [1, None, 2.5]}, "1"), ToolReturnPart("g", "text", "2")]),
    ]

    async def main():
        kept = BacktrailConversationStore(store)
        await kept.save(Conversation(conversation_id="c", messages=list(given)))
        loaded = await BacktrailConversationStore(store).load("c")
        assert loaded.messages == given
        assert loaded.messages[0].parts[1].content[1].data == b"\xff\0\x01"

    asyncio.run(main())
    roles = [(message.role, message.content) for message in store.conversations.load("c").messages]
    assert roles == [
        ("user", "be brief \0\nlook"),
        ("assistant", "hm\né\u2028"),
        ("tool", '{"deep": [1, null, 2.5]}\ntext'),
    ]
    calls = store.conversations.load("c").messages[1].tool_calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("1", "f", {"a": 1}),
        ("2", "g", {"b": math.inf}),
    ]


@pytest.mark.parametrize(
    "message",
    [
        asked("\ud800"),
        ModelRequest(parts=[ToolReturnPart("f", object(), "1")]),
        ModelRequest(parts=[SystemPromptPart(17)]),
        ModelResponse(parts=["no part"]),
        "no message",
    ],
)
def test_a_message_that_cannot_be_read_back_is_refused(memory, message):
    async def main():
        kept = BacktrailConversationStore(memory)
        with pytest.raises(Invalid, match=r"new_entries\[1\]") as refused:
            await kept.save(Conversation(conversation_id="c", messages=[asked("fine"), message]))
        assert refused.value.path == "new_entries[1].message"
        assert await kept.list_conversations() == []

    asyncio.run(main())
    assert list(memory.threads(kind="conversation")) == []


def test_wrong_arguments_are_refused(memory):
    async def main():
        kept = BacktrailConversationStore(memory)
        record = ConversationRecord(conversation_id="c", head_id=None)
        entry = ConversationEntry(parent_id=None, message=asked("a"))
        for wrong in ["", "x" * 513, 17]:
            with pytest.raises(Invalid, match="conversation's id"):
                await kept.load(wrong)
            with pytest.raises(Invalid, match="conversation's id"):
                await kept.save(Conversation(conversation_id=wrong))
        with pytest.raises(Invalid, match="ConversationRecord"):
            await kept.write_record("no record", expected_revision=None)
        with pytest.raises(Invalid, match="revision"):
            empty = ConversationRecord(conversation_id="c", head_id=None, revision="")
            await kept.write_record(empty, expected_revision=None)
        with pytest.raises(Invalid, match="one id"):
            await kept.write_record(record, new_entries=[entry, entry], expected_revision=None)
        loop = ConversationEntry(id="me", parent_id="me", message=asked("a"))
        with pytest.raises(Invalid, match="follows itself"):
            me = ConversationRecord(conversation_id="c", head_id="me")
            await kept.write_record(me, new_entries=[loop], expected_revision=None)
        with pytest.raises(Invalid, match="limit"):
            await kept.read_records(limit=-1)
        with pytest.raises(KeyError):
            await kept.read_entry("no such entry")
        with pytest.raises(NotFound):
            await kept.read_history("no such entry")
        with pytest.raises(Invalid, match="a store or its URL"):
            BacktrailConversationStore(17)
        with pytest.raises(Invalid, match="agent's id"):
            BacktrailConversationStore(memory, agent="")

    asyncio.run(main())
    assert list(memory.threads(kind="conversation")) == []


def test_entries_never_change(memory):
    async def main():
        kept = BacktrailConversationStore(memory)
        first = await saved(kept, "c", "a")
        (old, *_) = await kept.load_entries("c")
        other = ConversationEntry(id=old.id, parent_id=None, message=asked("different"))
        record = ConversationRecord(conversation_id="c", head_id=old.id)
        with pytest.raises(Invalid, match="entries never change"):
            await kept.write_record(record, new_entries=[other], expected_revision=first.revision)
        assert (await kept.load("c")).messages == first.messages

    asyncio.run(main())


def test_a_conversation_of_another_framework_is_left_alone(memory):
    memory.conversations.append("c", Message.user("mine"), agent_id="somebody")
    memory.conversations.append("d", Message.user("mine"), agent_id="pydantic-ai")

    async def main():
        kept = BacktrailConversationStore(memory)
        for name, owner in [("c", "agent 'somebody'"), ("d", "another framework")]:
            assert await kept.load(name) is None
            with pytest.raises(Conflict, match=owner):
                await saved(kept, name, "a")
            await kept.delete(name)  # there is none of this store
            with pytest.raises(ConversationConflict):
                await kept.delete_record(name, expected_revision="any")
        assert await kept.list_conversations() == []
        await saved(kept, "e", "a")
        assert await BacktrailConversationStore(memory, agent="other").load("e") is None

    asyncio.run(main())
    assert [len(memory.conversations.load(name).messages) for name in "cd"] == [1, 1]


def test_messages_of_others_are_not_part_of_the_history(memory):
    async def main():
        kept = BacktrailConversationStore(memory)
        conversation = await saved(kept, "c", "a")
        memory.conversations.append("c", Message.user("a note"))
        for limit in [None, 1, 2]:
            loaded = await kept.load("c", limit=limit)
            assert loaded.messages == conversation.messages[-(limit or 2) :]
        loaded.messages.append(asked("b"))
        await kept.save(loaded)
        assert len((await kept.load("c")).messages) == 3

    asyncio.run(main())


def test_a_damaged_record_is_named(memory):
    async def main():
        kept = BacktrailConversationStore(memory)
        await saved(kept, "c", "a")
        memory.conversations.update("c", metadata={"pydantic_ai": "{"})
        with pytest.raises(Corrupt, match="'c'"):
            await kept.load("c")

    asyncio.run(main())


# -- beside other programs -----------------------------------------------------------------------------


def test_of_two_writers_one_wins(store):
    async def main():
        one, two = BacktrailConversationStore(store), BacktrailConversationStore(aio.Store(store))
        await saved(one, "c", "start")
        for number in range(15):
            loaded = await one.load("c"), await two.load("c")
            for each, name in zip(loaded, "ab", strict=True):
                each.messages.append(asked(f"{number}{name}"))
            ends = await asyncio.gather(one.save(loaded[0]), two.save(loaded[1]), return_exceptions=True)
            assert sorted(isinstance(end, ConversationConflict) for end in ends) == [False, True]
        assert len((await one.load("c")).messages) == 17

    asyncio.run(main())


def test_of_a_writer_and_a_deleter_one_wins(store):
    async def main():
        one, two = BacktrailConversationStore(store), BacktrailConversationStore(aio.Store(store))
        for number in range(12):
            loaded = await saved(one, f"c{number}", "start")
            loaded.messages.append(asked("end"))
            work = one.save(loaded), two.delete_record(loaded.conversation_id, expected_revision=loaded.revision)
            ends = await asyncio.gather(*work, return_exceptions=True)
            assert sorted(isinstance(end, ConversationConflict) for end in ends) == [False, True]
            assert (await one.load(f"c{number}") is None) == (ends[1] is None)

    asyncio.run(main())


def test_a_save_in_the_middle_of_a_deletion_is_kept(memory, monkeypatch):
    real, calls = adapter._end, []

    async def save(conversation):
        await BacktrailConversationStore(memory).save(conversation)

    async def main():
        kept = BacktrailConversationStore(memory)
        loaded = await saved(kept, "c", "start")
        revision = loaded.revision
        loaded.messages.append(asked("meanwhile"))

        def end(*arguments):
            real(*arguments)
            if not calls:
                calls.append(arguments)
                with ThreadPoolExecutor() as pool:
                    pool.submit(asyncio.run, save(loaded)).result()

        monkeypatch.setattr(adapter, "_end", end)
        with pytest.raises(ConversationConflict):
            await kept.delete_record("c", expected_revision=revision)
        assert len((await kept.load("c")).messages) == 3

    asyncio.run(main())
    assert calls


def test_a_save_after_the_check_of_a_deletion_is_kept(memory, monkeypatch):
    real, calls = backtrail.Thread.delete, []

    async def save(conversation):
        await BacktrailConversationStore(memory).save(conversation)

    async def main():
        kept = BacktrailConversationStore(memory)
        loaded = await saved(kept, "c", "start")
        revision = loaded.revision
        loaded.messages.append(asked("meanwhile"))

        def delete(thread):
            if not calls:
                calls.append(thread)
                with ThreadPoolExecutor() as pool:  # outside of the deletion's transaction
                    pool.submit(asyncio.run, save(loaded)).result()
            return real(thread)

        monkeypatch.setattr(backtrail.Thread, "delete", delete)
        with pytest.raises(ConversationConflict):
            await kept.delete_record("c", expected_revision=revision)
        assert len((await kept.load("c")).messages) == 3

    asyncio.run(main())
    assert calls


def test_a_deletion_in_the_middle_of_a_deletion_is_a_conflict(memory, monkeypatch):
    async def main():
        kept = BacktrailConversationStore(memory)
        revision = (await saved(kept, "c", "start")).revision
        real = kept._stored_record

        def stored(thread):
            record = real(thread)
            memory.conversations.delete("c")
            return record

        monkeypatch.setattr(kept, "_stored_record", stored)
        with pytest.raises(ConversationConflict):
            await kept.delete_record("c", expected_revision=revision)

    asyncio.run(main())


def test_undo_takes_a_turn_back(memory):
    async def main():
        kept = BacktrailConversationStore(memory)
        conversation = await saved(kept, "c", "a")
        before = conversation.revision
        conversation.messages += [asked("b"), answered("c")]
        await kept.save(conversation)
        await kept.thread("c").undo()
        assert (await kept.load("c")).revision == before
        with pytest.raises(ConversationConflict):
            await kept.save(conversation)

    asyncio.run(main())


def test_entries_are_found_without_having_been_seen(memory):
    async def main():
        kept = BacktrailConversationStore(memory)
        for name in "abc":
            await saved(kept, name, name, f"{name}2")
        for name in "abc":
            entries = await BacktrailConversationStore(memory).load_entries(name)
            other = BacktrailConversationStore(memory)
            assert await other.read_entry(entries[1].id) == entries[1]
            assert await other.read_history(entries[2].id) == entries[:3]

    asyncio.run(main())


def test_search_log_and_listing_know_the_conversations(tmp_path):
    async def main():
        async with BacktrailConversationStore(tmp_path / "s.db", agent="planner") as kept:
            await saved(kept, "trip", "A ferry to Lisbon", "And back?")
            assert [hit.conversation_id for hit in await kept.store.search("ferry lisbon")] == ["trip", "trip"]

    asyncio.run(main())
    with backtrail.open(tmp_path / "s.db") as store:
        (info,) = store.conversations.list("planner")
        assert (info.title, info.message_count) == ("A ferry to Lisbon", 4)
    shown = good("log", "trip", "--store", str(tmp_path / "s.db"))
    assert "assistant: to And back?" in shown.out


def test_the_agent_restores_its_conversations(memory):
    async def main():
        kept = BacktrailConversationStore(memory, agent="planner")
        conversation = await saved(kept, "c", "a")
        checkpoint = memory.agents.checkpoint("planner", "before")
        conversation.messages.append(asked("b"))
        await kept.save(conversation)
        memory.agents.restore(checkpoint)
        assert len((await kept.load("c")).messages) == 2

    memory.agents.save(backtrail.AgentState("planner", "Planner", "chat"))
    asyncio.run(main())


def test_a_missing_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("pydantic_ai"):
            raise ImportError(name="pydantic_ai")
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith("backtrail.adapters.pydantic_ai")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'backtrail\[pydantic-ai\]'"):
        importlib.import_module("backtrail.adapters.pydantic_ai")


# -- agents -----------------------------------------------------------------------------------------------


def model(messages, _):
    """Calls the tool for a user's "weather", and answers everything else."""
    last = messages[-1].parts
    text = next((part.content for part in last if part.part_kind == "user-prompt"), None)
    if text is None:
        return ModelResponse(parts=[TextPart(f"It is {last[-1].content}.")])
    if "weather" in text:
        return ModelResponse(parts=[ToolCallPart("weather", {"city": "Lisbon"}, "call-1")])
    return ModelResponse(parts=[TextPart(f"You said {text}")])


def agent_with(weather):
    agent = Agent(FunctionModel(model))
    agent.tool_plain(weather, name="weather")
    return agent


def test_each_step_of_a_run_is_saved(store):
    seen = []

    async def main():
        kept = BacktrailConversationStore(store)

        async def weather(city: str) -> str:
            seen.append([message.kind for message in (await kept.load("c")).messages])
            return "warm"

        agent = agent_with(weather)
        conversation = Conversation(conversation_id="c")
        result = await agent.run("weather?", conversation=conversation, capabilities=[kept.saving_steps(conversation)])
        assert seen == [["request", "response"]]
        loaded = await kept.load("c")
        assert loaded.messages == result.all_messages()
        assert loaded.usage == result.usage
        assert await kept.save(result) == []  # nothing is new, and nothing conflicts
        result = await agent.run("more", conversation=result.conversation)
        assert len(await kept.save(result)) == 2
        assert (await kept.read_record("c")).branches == []

    asyncio.run(main())


def test_steps_are_saved_for_one_run_of_one_conversation(memory):
    async def main():
        kept = BacktrailConversationStore(memory)
        agent = agent_with(lambda city: "warm")
        conversation = Conversation(conversation_id="c")
        saver = kept.saving_steps(conversation)
        with pytest.raises(Invalid, match="for conversation 'c'"):
            await agent.run("hello", conversation=Conversation(conversation_id="d"), capabilities=[saver])
        result = await agent.run("hello", conversation=conversation, capabilities=[saver])
        with pytest.raises(Invalid, match="for one run"):
            await agent.run("again", conversation=result.conversation, capabilities=[saver])
        stale = kept.saving_steps(conversation)  # of before the run
        with pytest.raises(ConversationConflict):
            await agent.run("again", conversation=conversation, capabilities=[stale])
        assert len((await kept.load("c")).messages) == 2

    asyncio.run(main())


KILLED = """
import asyncio, os, signal, sys
from pydantic_ai.conversation import Conversation
from backtrail.adapters.pydantic_ai import BacktrailConversationStore
from tests.adapters.test_pydantic_ai import agent_with

async def main():
    kept = BacktrailConversationStore(sys.argv[1])

    def weather(city: str) -> str:
        os.kill(os.getpid(), signal.SIGKILL)

    agent = agent_with(weather)
    result = await agent.run("hello", conversation=Conversation(conversation_id="c"))
    await kept.save(result)
    conversation = await kept.load("c")
    await agent.run("weather?", conversation=conversation, capabilities=[kept.saving_steps(conversation)])

asyncio.run(main())
"""


def test_a_process_killed_in_a_tool_loses_only_the_call(tmp_path):
    url = str(tmp_path / "s.db")
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", KILLED, url], cwd=root, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    agent = agent_with(lambda city: "warm")

    async def main():
        async with BacktrailConversationStore(url) as kept:
            conversation = await kept.load("c")
            assert [message.kind for message in conversation.messages] == ["request", "response"] * 2
            await kept.fork("c", new_conversation_id="d")
            # make the call after all
            result = await agent.run(conversation=conversation)
            assert result.output == "It is warm."
            await kept.save(result)
            assert len((await kept.load("c")).messages) == 6
            # or tell the model that it was cut short
            other = await kept.load("d")
            other.messages = repair_messages(other.messages)
            result = await agent.run("never mind", conversation=other)
            assert result.output == "You said never mind"
            await kept.save(result)
            returned = (await kept.load("d")).messages[4].parts[0]
            assert (returned.part_kind, returned.tool_call_id) == ("tool-return", "call-1")

    asyncio.run(main())
    with backtrail.open(url) as store:
        assert store.verify().ok
