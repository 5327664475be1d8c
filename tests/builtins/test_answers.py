"""What builtins answer: JSON whatever a store holds, small however large it is; and what becomes of saves at once."""

import datetime as dt
import decimal
import json
import math
import threading
from functools import partial
from itertools import count

import pytest

import backtrail
from backtrail import AgentState, Conversation, Message
from backtrail.builtins import call, call_safely
from backtrail.engine.schema import upcast as versions

ODD = "naïve 東京 👩‍👩‍👧 \0 \ud800 \u202eabc"


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    url = tmp_path / "a.db" if request.param == "sqlite" else "memory://"
    with backtrail.open(url, durability="relaxed") as made:
        yield made


@pytest.fixture
def memory():
    return backtrail.open("memory://")


def asked(store, name, /, **arguments):
    return json.loads(json.dumps(call(store, name, json.dumps(arguments), destructive=True), allow_nan=False))


def size(answer):
    return len(json.dumps(answer, allow_nan=False, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@pytest.fixture(scope="module")
def large():
    made = backtrail.open("memory://")
    made.agents.save(AgentState("a", "A" * 999, "m", custom_state={f"k{n}": "東" * n for n in range(1_000)}))
    made.agents.save(made.agents.load("a").set_state("huge", "x" * 20_000_000))
    for n in range(1_500):
        made.conversations.save(Conversation("a", id=f"c{n}", title="👩‍👩‍👧" * 20, tags=["t"] * 100))
    huge = Message.user("needle " + "x" * 20_000_000, metadata={"m": "y" * 1_000_000})
    made.conversations.append("c7", *[Message.assistant("👍" * 300)] * 40, huge)
    made.conversations.append("c8", *[Message.assistant("東" * 200)] * 40)
    for n in range(100):
        made.agents.checkpoint("a", f"{n} " + "long " * 100)
    return made


def test_answers_from_a_large_store_are_small(large):
    for name, arguments in [
        ("agent_list", {}),
        ("agent_load", {"agent_id": "a"}),
        ("agent_save", {"agent_id": "a", "custom_state": {"x": "y" * 100_000}}),
        ("conversation_list", {"agent_id": "a"}),
        ("conversation_load", {"conversation_id": "c7"}),
        ("conversation_load", {"conversation_id": "c7", "path": "messages[-1].content"}),
        ("conversation_load", {"conversation_id": "c7", "path": "messages", "max_chars": 2_000}),
        ("conversation_search", {"query": "needle"}),
        ("conversation_search", {"query": "👍"}),
        (
            "conversation_save",
            {"agent_id": "a", "conversation_id": "n", "messages": [{"role": "user", "content": "x"}] * 999},
        ),
        ("checkpoint_create", {"agent_id": "a", "name": "n" * 1_000}),
        ("checkpoint_list", {"agent_id": "a"}),
        ("persistence_stats", {}),
    ]:
        assert size(call(large, name, arguments)) < 20 * 1024, name
    page = call(large, "conversation_list", {"agent_id": "a", "limit": 200})
    assert len(page["conversations"]) > 20


def test_pages_give_every_entry_once(large):
    for name, key, field, arguments in [
        ("conversation_list", "conversations", "conversation_id", {"agent_id": "a", "limit": 200}),
        ("checkpoint_list", "checkpoints", "checkpoint_id", {"agent_id": "a"}),
        ("conversation_search", "hits", "index", {"query": "👍", "limit": 7}),
    ]:
        found, cursor = [], None
        while cursor is not None or not found:
            page = call(large, name, {**arguments, "cursor": cursor})
            found += [each[field] for each in page[key]]
            cursor = page["next_cursor"]
        assert len(found) == len({*found})
        assert len(found) >= {"conversations": 1_500, "checkpoints": 100, "hits": 40}[key]


def test_message_pages_reach_the_first_message(large):
    found, before = [], {}
    while before is not None:
        page = call(large, "conversation_load", {"conversation_id": "c7", "messages": 20, **before})
        found = [message["index"] for message in page["messages"]] + found
        before = {"before": page["next_before"]} if page["next_before"] else None
    assert found == [*range(41)]


def test_message_page_reads_only_its_messages(large, monkeypatch):
    read = []
    get = backtrail.Checkpoint.get
    monkeypatch.setattr(
        backtrail.Checkpoint, "get", lambda self, path, *more: read.append(path) or get(self, path, *more)
    )
    shown = call(large, "conversation_load", {"conversation_id": "c8", "messages": 3, "before": 30})
    assert [message["content"] for message in shown["messages"]] == ["東" * 200] * 3
    assert read == [("messages", 29), ("messages", 28), ("messages", 27), ("messages", 26)]


def test_cursor_survives_concurrent_writes(store):
    for n in range(9):
        store.agents.save(AgentState(f"a{n}", "A", "m"))
        store.conversations.save(Conversation("a0", id=f"c{n}"))
    for name, key, field, arguments, disturb in [
        ("conversation_list", "conversations", "conversation_id", {"agent_id": "a0"}, store.conversations.delete),
        (
            "conversation_list",
            "conversations",
            "conversation_id",
            {"agent_id": "a0"},
            lambda name: store.conversations.update(name, title="T"),
        ),
        ("agent_list", "agents", "agent_id", {}, store.agents.delete),
    ]:
        expected = [each[field] for each in call(store, name, arguments)[key]]
        found, cursor = [], None
        while cursor is not None or not found:
            page = call(store, name, {**arguments, "limit": 2, "cursor": cursor})
            found += [each[field] for each in page[key]]
            disturb(found[-1])
            cursor = page["next_cursor"]
        assert found == expected


def test_checkpoints_can_be_deleted_page_by_page(memory):
    memory.agents.save(AgentState("a", "A", "m"))
    made = [memory.agents.checkpoint("a", f"{n}").id for n in range(7)]
    found, cursor = [], None
    while (cursor is not None or not found) and len(found) <= len(made):
        page = call(memory, "checkpoint_list", {"agent_id": "a", "limit": 2, "cursor": cursor})
        found += [each["checkpoint_id"] for each in page["checkpoints"]]
        call(
            memory, "checkpoint_delete", {"checkpoint_id": found[-1]}, destructive=True
        )  # the one that the cursor names
        cursor = page["next_cursor"]
    assert found == made[::-1]


def test_long_entries_shorten_a_page(memory):
    names = [f"{n:03d}" + "東" * 500 for n in range(30)]
    for name in names:
        memory.conversations.save(Conversation("a", id=name))
    found, cursor = [], None
    while cursor is not None or not found:
        page = call(memory, "conversation_list", {"agent_id": "a", "cursor": cursor})
        assert size(page) < 20 * 1024
        found += [each["conversation_id"] for each in page["conversations"]]
        cursor = page["next_cursor"]
    assert found == names[::-1]


def test_odd_texts_come_back_unchanged(store):
    model = partial(asked, store)
    message = {"role": "user", "content": ODD * 50, "id": ODD, "metadata": {ODD: ODD}}
    model("agent_save", agent_id=ODD, name=ODD, agent_type=ODD, custom_state={ODD: ODD}, metadata={ODD: ODD})
    made = model("conversation_save", agent_id=ODD, conversation_id=ODD, title=ODD, tags=[ODD], messages=[message])
    assert (made["conversation_id"], made["message_ids"]) == (ODD, [ODD])
    assert model("agent_load", agent_id=ODD)["custom_state"] == {ODD: ODD}
    assert model("agent_load", agent_id=ODD, path=f"custom_state[{json.dumps(ODD)}]")["value"] == ODD
    shown = model("conversation_load", conversation_id=ODD)
    assert (shown["title"], shown["tags"], shown["messages"][0]["id"]) == (ODD, [ODD], ODD)
    assert shown["messages"][0]["content"]["preview"] == (ODD * 50)[:200]
    assert model("conversation_list", agent_id=ODD, tag=ODD)["conversations"][0]["conversation_id"] == ODD
    assert model("conversation_search", query="東京", agent_id=ODD)["hits"][0]["message_id"] == ODD
    made = model("checkpoint_create", agent_id=ODD, name=ODD)
    assert model("checkpoint_list", agent_id=ODD)["checkpoints"] == [made]
    assert model("checkpoint_restore", checkpoint_id=made["checkpoint_id"])["agent_id"] == ODD
    assert model("agent_delete", agent_id=ODD)["deleted"] is True


def test_types_that_json_lacks_become_text(memory):
    held = {
        "time": dt.datetime(2026, 1, 31, tzinfo=dt.UTC),
        "nan": math.nan,
        "bytes": b"\0\1",
        "pair": (1, {2}),
        "big": 10**4_000,
        1: decimal.Decimal("1.50"),
        "role": backtrail.Role.USER,
    }
    memory.agents.save(AgentState("a", "A", "m", custom_state={"held": held}))
    shown = asked(memory, "agent_load", agent_id="a", path="custom_state.held")["value"]
    assert shown.pop("big").startswith("0x")
    assert shown == {
        "time": "2026-01-31T00:00:00+00:00",
        "nan": "nan",
        "bytes": "AAE=",
        "pair": [1, [2]],
        "1": "1.50",
        "role": "user",
    }


def test_damaged_entry_does_not_hide_the_others(memory, monkeypatch):
    for name in ("a", "b"):
        memory.agents.save(AgentState(name, "A", "m"))
        memory.conversations.save(Conversation("a", id=name))
    for collection in (memory.agents, memory.conversations):
        header = collection._header
        monkeypatch.setattr(
            collection, "_header", lambda record, header=header: "torn" if record.name == "b" else header(record)
        )
    damaged = [each.get("damaged") for each in call(memory, "agent_list", {})["agents"]]
    assert damaged == ["torn", None]
    damaged = [each.get("damaged") for each in call(memory, "conversation_list", {"agent_id": "a"})["conversations"]]
    assert damaged == ["torn", None]


def test_path_reads_the_loaded_state(memory, monkeypatch):
    memory.agents.save(AgentState("a", "A", "m", custom_state={"old": 1}))
    moved = {1: lambda fields: {**fields, "custom_state": {"new": fields["custom_state"]["old"]}}}
    monkeypatch.setitem(versions._UPCASTERS, AgentState, moved)
    assert call(memory, "agent_load", {"agent_id": "a"})["custom_state"] == {"new": 1}
    assert call(memory, "agent_load", {"agent_id": "a", "path": "custom_state.new"})["value"] == 1


# -- several at once --------------------------------------------------------------------------------------


def test_concurrent_saves_keep_all_changes(store):
    store.agents.save(AgentState("a", "A", "m"))
    store.conversations.save(Conversation("a", id="c"))
    failed, numbers = [], count()

    def work():
        for _ in range(5):
            n = str(next(numbers))
            try:
                call(store, "agent_save", {"agent_id": "a", "custom_state": {n: n}})
                message = {"role": "user", "content": n}
                given = {"agent_id": "a", "conversation_id": "c", "messages": [message], "metadata": {n: n}}
                call(store, "conversation_save", given)
            except backtrail.Error as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    wanted = {str(n) for n in range(20)}
    assert store.agents.load("a").custom_state.keys() == wanted
    kept = store.conversations.load("c")
    assert kept.metadata.keys() == wanted
    assert sorted(message.content for message in kept.messages) == sorted(wanted)


def test_concurrent_create_becomes_an_update(memory, monkeypatch):
    save = memory.agents.save
    others = iter([AgentState("a", "A", "m", custom_state={"theirs": 1})])

    def late(state, **options):
        for other in others:
            save(other)
        return save(state, **options)

    monkeypatch.setattr(memory.agents, "save", late)
    given = {"agent_id": "a", "name": "A", "agent_type": "m", "custom_state": {"ours": 2}}
    assert call(memory, "agent_save", given)["result"] == "updated"
    assert memory.agents.load("a").custom_state == {"theirs": 1, "ours": 2}


def test_messages_and_changes_are_one_write(memory, monkeypatch):
    def refuse(*_, **__):
        raise backtrail.Invalid("no", code="invalid.argument")

    memory.conversations.save(Conversation("a", id="c"))
    given = {"agent_id": "a", "conversation_id": "c", "messages": [{"role": "user", "content": "x"}]}
    monkeypatch.setattr(memory.conversations, "update", refuse)
    assert call_safely(memory, "conversation_save", {**given, "tags": ["t"]})["error"]["code"] == "invalid.argument"
    assert memory.conversations.info("c").message_count == 0


def test_builtins_take_part_in_a_transaction(memory):
    memory.conversations.save(Conversation("a", id="c"))
    given = {"agent_id": "a", "conversation_id": "c", "title": "T", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(KeyboardInterrupt), memory.transaction():
        assert call(memory, "conversation_save", given)["message_count"] == 1
        raise KeyboardInterrupt
    assert memory.conversations.info("c").message_count == 0
    with memory.transaction():
        call(memory, "conversation_save", given)
    assert memory.conversations.load("c").title == "T"
