"""The tests of the Strands adapter. Its pins conflict with ours: `test_strands.py` runs them in an environment."""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading

import pytest
from strands import Agent, tool
from strands.models import Model
from strands.session import RepositorySessionManager, SnapshotSessionManager
from strands.storage import InMemoryStorage
from strands.types.exceptions import SessionException, StorageError
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

import backtrail
from backtrail import AgentState, Conflict, Invalid, Message
from backtrail.adapters.strands import BacktrailSessionRepository, BacktrailStorage
from tests.project.test_docs import ROOT, run
from tests.support.commands import good
from tests.support.places import in_memory
from tests.support.servers import place


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


def session(name="trip"):
    return Session(session_id=name, session_type=SessionType.AGENT)


def agent(name="default", **state):
    return SessionAgent(agent_id=name, state=state, conversation_manager_state={"removed_message_count": 0})


def said(number, text="", role="user", **more):
    content = [{"text": text or f"text {number}"}, *more.pop("blocks", [])]
    return SessionMessage(message={"role": role, "content": content}, message_id=number, **more)


def texts(repository, name="trip", agent_id="default", **where):
    return [each.to_message()["content"][0]["text"] for each in repository.list_messages(name, agent_id, **where)]


def begun(store, *numbers):
    repository = BacktrailSessionRepository(store)
    repository.create_session(session())
    repository.create_agent("trip", agent())
    for number in numbers:
        repository.create_message("trip", "default", said(number))
    return repository


# -- sessions -------------------------------------------------------------------------------------------------


def test_everything_comes_back_equal(store):
    repository = BacktrailSessionRepository(store)
    given = session()
    assert repository.read_session("trip") is None
    assert repository.create_session(given) is given
    kept = agent(count=1, names=["a", "é\0"], pair=(1, 2), data=b"\xff")
    repository.create_agent("trip", kept)
    blocks = [
        {"image": {"format": "png", "source": {"bytes": b"\xff\0\x01"}}},
        {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Lisbon"}}},
    ]
    messages = [said(0), said(1, "with \0 and é", "assistant", blocks=blocks), said(2)]
    for message in messages:
        repository.create_message("trip", "default", message)
    again = BacktrailSessionRepository(store)
    assert again.read_session("trip") == given
    assert again.read_agent("trip", "default") == kept
    assert again.list_messages("trip", "default") == messages
    assert [again.read_message("trip", "default", number) for number in (0, 1, 2)] == messages
    assert again.read_message("trip", "default", 3) is None
    assert again.read_agent("trip", "other") is None


def test_pages_of_messages(memory):
    repository = begun(memory, *range(5))
    assert texts(repository, limit=2) == ["text 0", "text 1"]
    assert texts(repository, offset=3) == ["text 3", "text 4"]
    assert texts(repository, limit=2, offset=1) == ["text 1", "text 2"]
    assert texts(repository, limit=0) == texts(repository, offset=9) == []


def test_messages_are_listed_by_their_numbers(store):
    repository = begun(store, 5, 1, 3, 0)
    store.conversations.append(repository.conversation_id("trip"), Message.user("a note by hand"))
    repository.create_message("trip", "default", said(7))
    repository.create_message("trip", "default", said(6))
    assert texts(repository) == [f"text {number}" for number in (0, 1, 3, 5, 6, 7)]
    for number in (0, 5, 7):
        with pytest.raises(SessionException, match="already exists"):
            repository.create_message("trip", "default", said(number, "another"))
        assert repository.read_message("trip", "default", number).message_id == number
        repository.update_message("trip", "default", said(number, f"new {number}"))
    assert texts(repository) == ["new 0", "text 1", "text 3", "new 5", "text 6", "new 7"]


def test_updates_keep_the_time_of_creation(store):
    repository = begun(store, 0)
    before = repository.read_agent("trip", "default")
    repository.update_agent("trip", agent(count=2))
    after = repository.read_agent("trip", "default")
    assert (after.state, after.created_at) == ({"count": 2}, before.created_at)
    assert after.updated_at > before.updated_at
    first = repository.read_message("trip", "default", 0)
    redacted = said(0, redact_message={"role": "user", "content": [{"text": "[redacted]"}]})
    repository.update_message("trip", "default", redacted)
    stored = repository.read_message("trip", "default", 0)
    assert stored.created_at == first.created_at
    assert stored.to_message()["content"] == [{"text": "[redacted]"}]
    assert [hit.snippet for hit in store.search("redacted")] == ["[redacted]"]
    assert store.search("text") == []


def test_what_is_missing_or_there_already_is_an_error(store):
    repository = begun(store, 0)
    calls = [
        lambda: repository.create_session(session()),
        lambda: repository.create_agent("trip", agent()),
        lambda: repository.create_agent("nowhere", agent()),
        lambda: repository.update_agent("trip", agent("other")),
        lambda: repository.create_message("trip", "other", said(0)),
        lambda: repository.update_message("trip", "default", said(1)),
        lambda: repository.update_message("trip", "other", said(0)),
        lambda: repository.list_messages("trip", "other"),
        lambda: repository.delete_session("nowhere"),
        lambda: repository.fork("nowhere", "new"),
        lambda: repository.fork("trip", "new", agent_id="other", at=0),
        lambda: repository.fork("trip", "new", agent_id="default", at=5),
    ]
    for call in calls:
        with pytest.raises(SessionException, match=r"exist"):
            call()
    assert repository.read_session("nowhere") is None
    assert repository.read_session("new") is None
    assert texts(repository) == ["text 0"]


def test_what_cannot_be_kept_is_refused(memory):
    repository = begun(memory)
    rows = len(list(memory.activity()))
    wrong = [
        lambda: repository.create_message("trip", "default", said(0, blocks=[{"json": object()}])),
        lambda: repository.create_message("trip", "default", said(0, blocks=[{"lock": threading.Lock()}])),
        lambda: repository.create_message("trip", "default", said(-1)),
        lambda: repository.create_message("trip", "default", {"message_id": 0}),
        lambda: repository.update_agent("trip", agent(f=lambda: 1)),
        lambda: repository.create_session({"session_id": "x"}),
        lambda: repository.create_session(session("")),
        lambda: repository.create_session(session("x" * 513)),
        lambda: repository.read_session(17),
        lambda: repository.list_messages("trip", "default", limit=-1),
        lambda: repository.fork("trip", "new", at=1),
        lambda: BacktrailSessionRepository(17),
        lambda: BacktrailSessionRepository(memory, agent=""),
    ]
    for call in wrong:
        with pytest.raises(Invalid):
            call()
    assert len(list(memory.activity())) == rows


def test_sessions_and_agents_are_told_apart(memory):
    repository = BacktrailSessionRepository(memory)
    keys = [("a", "b"), ("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a", "x" * 500), ("y" * 500, "b")]
    for name in dict.fromkeys(name for name, _ in keys):
        repository.create_session(session(name))
    for number, (name, agent_id) in enumerate(keys):
        repository.create_agent(name, agent(agent_id))
        repository.create_message(name, agent_id, said(0, f"of {number}"))
    for number, (name, agent_id) in enumerate(keys):
        assert texts(repository, name, agent_id) == [f"of {number}"]
    repository.delete_session("a")
    assert [repository.read_agent(*key) is None for key in keys] == [True, False, True, False, True, False]
    repository.create_session(session("a"))
    assert repository.read_agent("a", "b") is None
    other = BacktrailSessionRepository(memory, agent="other")
    with pytest.raises(Conflict, match="belongs to agent 'strands'"):
        other.create_session(session("a/b"))


def test_of_two_writers_with_one_number_one_wins(store):
    one, two = begun(store), BacktrailSessionRepository(store)
    for number in range(30):
        barrier, ends = threading.Barrier(2), []

        def write(repository, text, number=number, barrier=barrier, ends=ends):
            barrier.wait()
            try:
                repository.create_message("trip", "default", said(number, text))
                ends.append(text)
            except SessionException:
                ends.append(None)

        workers = [threading.Thread(target=write, args=(each, name)) for each, name in ((one, "a"), (two, "b"))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len([end for end in ends if end]) == 1
        assert one.read_message("trip", "default", number).message["content"][0]["text"] in ends
    assert len(texts(one)) == 30


def test_a_fork_has_the_agent_of_its_last_message(store):
    repository = begun(store, 0)
    repository.create_agent("trip", agent("guide"))
    repository.create_message("trip", "guide", said(0, "from the guide"))
    for number in (1, 2):
        repository.update_agent("trip", agent(count=number))
        repository.create_message("trip", "default", said(number))
    repository.update_agent("trip", agent(count=9))
    forked = repository.fork("trip", "cheaper", agent_id="default", at=1)
    assert repository.read_session("cheaper") == forked
    assert texts(repository, "cheaper") == ["text 0", "text 1"]
    assert repository.read_agent("cheaper", "default").state == {"count": 2}  # set before message 2
    assert texts(repository, "cheaper", "guide") == ["from the guide"]
    repository.create_message("cheaper", "default", said(2, "another way"))
    assert texts(repository) == ["text 0", "text 1", "text 2"]
    repository.fork("trip", "whole")
    assert repository.read_agent("whole", "default").state == {"count": 9}
    with pytest.raises(SessionException):
        repository.fork("trip", "whole")
    repository.delete_session("cheaper")
    assert texts(repository) == ["text 0", "text 1", "text 2"]
    assert store.verify().ok


def test_undo_takes_a_message_back(memory):
    repository = begun(memory, 0, 1)
    repository.thread("trip").undo()
    assert texts(repository) == ["text 0"]
    repository.create_message("trip", "default", said(2))  # a manager that did not see the undo goes on
    assert texts(repository) == ["text 0", "text 2"]
    assert repository.read_message("trip", "default", 2).message_id == 2


def test_search_and_log_know_the_sessions(tmp_path):
    with BacktrailSessionRepository(tmp_path / "s.db") as repository:
        repository.create_session(session())
        repository.create_agent("trip", agent())
        result = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"json": {"sky": "blue"}}]}}
        repository.create_message("trip", "default", said(0, "A ferry to Lisbon"))
        repository.create_message("trip", "default", said(1, "and a result", blocks=[result]))
        assert [hit.snippet for hit in repository.store.search("ferry")] == ["A ferry to Lisbon"]
        assert len(repository.store.search("blue")) == 1
        (info,) = repository.store.conversations.list("strands")
        assert (info.id, info.title) == ("strands:trip/default", "A ferry to Lisbon")
        assert [each.role for each in repository.store.conversations.load(info.id).messages] == ["user", "tool"]
    assert "A ferry to Lisbon" in good("log", "strands:trip/default", "--store", tmp_path / "s.db").out


# -- storage --------------------------------------------------------------------------------------------------

VALUES = [
    b"",
    b"\xff\xfe",
    b"plain text",
    "é \0 text".encode(),
    b"{}",
    b"[1, 2]",
    b'{"a": 1}',
    b'{"a":1}',
    b'{"a": 1, "a": 2}',
    b'{"a": 1e400, "b": NaN}',
    b'{"n": 123456789012345678901234567890}',
    b'{"data": {"messages": null}}',
    b'{"data": {"messages": [], "x": 1}, "messages": [1]}',
    b'{"encoding": "text", "key": 1, "document": 2}',
    json.dumps({"b": [1.5, True, None, "é\ud800"], "a": {}}).encode(),
    json.dumps({"text": "é"}, ensure_ascii=False).encode(),
    json.dumps({"text": "é"}, indent=2).encode(),
    b"[" * 3000 + b"]" * 3000,
    b"{broken",
]


def test_bytes_come_back_equal(store):
    async def main():
        storage = BacktrailStorage(store)
        for value in VALUES:
            await storage.write("k", value)
            assert await storage.read("k") == value, value[:60]
        for number, value in enumerate(VALUES):
            await storage.write(f"many/{number}", bytearray(value))
        assert [await storage.read(f"many/{number}") for number in range(len(VALUES))] == VALUES
        again = BacktrailStorage(store)
        assert [await again.read(f"many/{number}") for number in range(len(VALUES))] == VALUES

    asyncio.run(main())
    assert store.verify().ok


def test_random_operations_give_the_answers_of_their_storage(store):
    """Keys of all kinds, in namespaces: the answers are those of `InMemoryStorage`."""

    async def answer(storage, name, *words):
        try:
            found = await getattr(storage, name)(*words)
        except StorageError:
            return "StorageError"
        return sorted((each.key, each.score) for each in found) if name == "search" else found

    async def main():
        rng = random.Random(7)
        ours, theirs = BacktrailStorage(store), InMemoryStorage()
        pairs = [(ours, theirs), (ours.namespace("a"), theirs.namespace("a"))]
        pairs.append((pairs[1][0].namespace("b/"), pairs[1][1].namespace("b/")))
        keys = ["a", "a/b", "a/b/c", "/a//b/", "b c.md", "é/%2F", "a%2Fb", "", "..", "x/../y", "back\\slash"]
        keys += ["l" * 450, "a/" + "l" * 450, "ab", "a.b"]
        for _ in range(400):
            pair, key = rng.choice(pairs), rng.choice(keys)
            name = rng.choice(["write", "write", "read", "delete", "list", "list", "search"])
            words = {"write": (key, rng.choice(VALUES[:9])), "search": (rng.choice(["plain", "text a", "the"]),)}
            both = [await answer(storage, name, *words.get(name, (key,))) for storage in pair]
            assert both[0] == both[1], (name, key)

    asyncio.run(main())


def test_a_snapshot_costs_what_changed(tmp_path):
    async def main():
        document = {"scope": "agent", "data": {"messages": [], "state": {}}, "created_at": "now"}
        async with BacktrailStorage(tmp_path / "s.db") as storage:
            for number in range(200):
                document["data"]["messages"].append({"role": "user", "content": [{"text": f"ferry {number} " * 20}]})
                await storage.write("session/x", json.dumps(document, ensure_ascii=False).encode())
            assert await storage.read("session/x") == json.dumps(document, ensure_ascii=False).encode()
            assert len(await storage.store.search('"ferry 7"')) == 1
            return (await storage.store.stats()).payload_bytes

    assert asyncio.run(main()) < 300_000  # 200 whole snapshots have 5 MB


def test_each_key_has_a_history(memory):
    async def main():
        storage = BacktrailStorage(memory)
        for text in (b"one", b"two"):
            await storage.write("notes/a.md", text)
        thread = storage.thread("notes/a.md")
        assert [checkpoint.step for checkpoint in [each async for each in thread.history()]] == [1, 2]
        await thread.undo()
        assert await storage.read("notes/a.md") == b"one"
        assert [hit.snippet for hit in memory.search("one")] == ["one"]
        await storage.delete("notes/a.md")
        assert await storage.list("") == []
        await storage.write("notes/a.md", b"three")
        assert await storage.read("notes/a.md") == b"three"

    asyncio.run(main())


def test_errors_of_the_store_are_the_frameworks(tmp_path):
    async def main():
        storage = BacktrailStorage(tmp_path / "s.db")
        await storage.write("k", b"v")
        await storage.aclose()
        for call in (storage.write("k", b"w"), storage.read("k"), storage.list(""), storage.delete("k")):
            with pytest.raises(StorageError, match="closed"):
                await call
        with pytest.raises(StorageError, match="a text"):
            await storage.read(17)

    asyncio.run(main())


# -- agents ---------------------------------------------------------------------------------------------------


class Scripted(Model):
    """Calls the tool if the user asks for the weather, and answers everything else."""

    def __init__(self):
        self.seen = []

    def get_config(self):
        return {}

    def update_config(self, **_):
        pass

    async def structured_output(self, *_, **__):
        raise NotImplementedError
        yield

    async def stream(self, messages, *_, **__):
        self.seen = messages
        last = messages[-1]["content"][-1]
        yield {"messageStart": {"role": "assistant"}}
        if "weather" in last.get("text", ""):
            call = {"toolUseId": f"t{len(messages)}", "name": "weather"}
            yield {"contentBlockStart": {"start": {"toolUse": call}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"city": "Lisbon"}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
            return
        heard = last.get("text") or last["toolResult"]["content"][0]["text"]
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"I heard {heard}"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def agent_with(manager, work=lambda: "24 degrees"):
    @tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return work()

    return Agent(model=Scripted(), tools=[weather], session_manager=manager, callback_handler=None)


def managers(store):
    return {
        "repository": lambda: RepositorySessionManager("trip", BacktrailSessionRepository(store)),
        "snapshot": lambda: SnapshotSessionManager(
            "trip", storage=BacktrailStorage(store), save_latest_on="message", snapshot_trigger=lambda **_: True
        ),
    }


@pytest.mark.parametrize("kind", ["repository", "snapshot"])
def test_an_agent_goes_on_where_it_was(store, kind):
    make = managers(store)[kind]
    first = agent_with(make())
    assert "24 degrees" in str(first("weather?"))
    first.state.set("n", [1, "é"])
    first("thanks")
    again = agent_with(make())
    assert again.messages == first.messages
    assert again.state.get() == {"n": [1, "é"]}
    assert str(again("more")).strip() == "I heard more"
    assert len(again.messages) == 8
    assert len(store.search("thanks")) >= 2


def test_snapshots_go_back_in_time(store):
    async def main():
        manager = managers(store)["snapshot"]()
        traveller = agent_with(manager)
        await traveller.invoke_async("one")
        await traveller.invoke_async("two")
        ids = await manager.list_snapshot_ids(traveller)
        assert len(ids) == 2
        assert await manager.restore_snapshot(traveller, snapshot_id=ids[0])
        assert len(traveller.messages) == 2
        await manager.delete_session()
        assert await BacktrailStorage(store).list("") == []

    asyncio.run(main())


KILLED = """
import os, signal, sys
from tests.adapters.strands_cases import agent_with, managers

agent = agent_with(managers(sys.argv[1])[sys.argv[2]](), lambda: os.kill(os.getpid(), signal.SIGKILL))
agent("hello")
agent("weather?")
"""


@pytest.mark.parametrize("kind", ["repository", "snapshot"])
@pytest.mark.parametrize("scheme", ["sqlite:///", "file://"])
def test_a_process_killed_in_a_tool_leaves_what_had_finished(tmp_path, scheme, kind):
    url = f"{scheme}{tmp_path / 'store'}"
    command = [sys.executable, "-c", KILLED, url, kind]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with backtrail.open(url) as store:
        again = agent_with(managers(store)[kind](), lambda: "warm")
        assert again.messages[3]["content"][-1]["toolUse"]["name"] == "weather"
        assert str(again("go on")).strip() == "I heard go on"
        results = [
            block["toolResult"] for each in again.model.seen for block in each["content"] if "toolResult" in block
        ]
        assert [(each["toolUseId"], each["status"]) for each in results] == [("t3", "error")]


# -- beside other frameworks ------------------------------------------------------------------------------------


def test_three_frameworks_share_a_store_and_an_agent(store):
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from backtrail.adapters.langgraph import BacktrailStore
    from backtrail.adapters.pydantic_ai import BacktrailConversationStore

    async def chat(text=None):
        conversations = BacktrailConversationStore(store, agent="planner")
        conversation = await conversations.load("chat") or Conversation(conversation_id="chat")
        if text is not None:
            conversation.messages.append(ModelRequest(parts=[UserPromptPart(text)]))
            await conversations.save(conversation)
        return len(conversation.messages)

    def manager():
        return RepositorySessionManager("trip", BacktrailSessionRepository(store, agent="planner"))

    async def kept():
        return await storage.read("notes.md")

    store.agents.save(AgentState("planner", "Planner", "chat"))
    storage, memories = BacktrailStorage(store, agent="planner"), BacktrailStore(store, agent="planner")
    agent_with(manager())("ferry one")
    asyncio.run(chat("ferry one"))
    asyncio.run(storage.write("notes.md", b"ferry one"))
    memories.put(("notes",), "n", {"text": "ferry"})
    checkpoint = store.agents.checkpoint("planner", "before")
    agent_with(manager())("ferry two")
    asyncio.run(chat("ferry two"))
    assert (len(agent_with(manager()).messages), asyncio.run(chat())) == (4, 2)
    assert len(store.search("ferry")) == 7
    store.agents.restore(checkpoint)
    assert (len(agent_with(manager()).messages), asyncio.run(chat())) == (2, 1)
    assert asyncio.run(kept()) == b"ferry one"
    assert memories.get(("notes",), "n").value == {"text": "ferry"}
    store.agents.undo("planner")
    assert (len(agent_with(manager()).messages), asyncio.run(chat())) == (4, 2)
    assert store.verify().ok


# -- the page and the example -----------------------------------------------------------------------------------


def test_every_block_of_the_page_prints_what_it_says(tmp_path, monkeypatch):
    page = ROOT / "docs" / "strands.md"
    for block, printed, shown in run(page, tmp_path, monkeypatch):
        assert printed == shown, f"line {block.line}"


def test_the_example_runs():
    example = ROOT / "examples" / "strands_session.py"
    done = subprocess.run([sys.executable, example], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "planner: As you like." in done.stdout
