"""What goes wrong with builtins: every error says what to do, nothing is written, and nothing else is raised."""

import asyncio
import json
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backtrail
from backtrail import AgentState, Conversation, Invalid, Message, aio
from backtrail.builtins import TOOLS, call, call_safely
from backtrail.operations import Effect
from backtrail.operations.answers import encode_cursor


@pytest.fixture
def memory():
    return backtrail.open("memory://")


WRONG = [
    ("agent_lod", {}, r"no builtin 'agent_lod'; the builtins are: agent_load, "),
    (7, {}, r"no builtin 7; the builtins are: "),
    ("agent_list", "[]", r"arguments of agent_list must be an object, such as {}, not a list"),
    ("agent_list", "{", r"are not JSON .*; send an object"),
    ("agent_list", '{"limit": NaN}', r"are not JSON \(JSON has no number NaN\)"),
    ("agent_list", '{"limit": ' + "1" * 5000 + "}", r"are not JSON"),
    ("agent_list", "[" * 100_000, r"are not JSON"),
    ("agent_list", None, r"must be an object, such as {}, not null"),
    ("agent_list", {"limt": 3}, r"agent_list has no 'limt'; it takes limit, since, until, cursor"),
    ("conversation_list", {"agent_id": "a", "tags": "x"}, r"has no 'tags'; it takes tag, "),
    ("persistence_stats", {"x": 1}, r"persistence_stats has no 'x'; it takes nothing"),
    ("agent_list", {3: 1}, r"agent_list has no 3; it takes"),
    ("agent_list", {"limit": "3"}, r"limit must be a whole number, such as 20, not '3'"),
    ("agent_list", {"limit": True}, r"limit must be a whole number, such as 20, not true"),
    ("agent_list", {"limit": 2.5}, r"limit must be a whole number, such as 20, not 2.5"),
    ("agent_list", {"limit": 0}, r"limit must be a whole number from 1 to 200, not 0"),
    ("agent_list", {"limit": 201}, r"limit must be a whole number from 1 to 200, not 201"),
    ("agent_list", {"limit": -(10**5000)}, r"from 1 to 200, not a number with too many digits"),
    ("conversation_load", {"conversation_id": "c", "before": -1}, r"must be a whole number of at least 0, not -1"),
    ("agent_save", {"agent_id": "a", "replace": "yes"}, r"replace must be true or false, such as true, not 'yes'"),
    ("agent_save", {"agent_id": "a", "config": []}, r'config must be an object, such as {"key": "value"}, not a list'),
    ("agent_save", {"agent_id": "a", "metadata": {"n": 1}}, r"metadata.'n' must be a text, such as \"text\", not 1"),
    ("agent_save", {"agent_id": "a", "capabilities": ["x", 1]}, r"capabilities\[1\] must be a text"),
    ("agent_save", {"agent_id": "a"}, r"nothing to save"),
    ("agent_save", {"agent_id": "new", "name": "N"}, r"no agent 'new': to create it, pass agent_type"),
    ("agent_save", {"agent_id": "a", "replace": True}, r"to replace an agent, pass name and agent_type"),
    ("agent_save", {"name": "N", "agent_type": "m"}, r"agent_id is missing: agent_save needs agent_id"),
    ("agent_save", {"agent_id": None}, r"agent_id is missing"),
    ("agent_save", {"agent_id": "", "name": "N", "agent_type": "m"}, r"1 to 512 characters"),
    ("agent_load", {"agent_id": "nobody"}, r"no agent 'nobody'"),
    ("agent_load", {"agent_id": "a", "path": "config.x"}, r"no value at config.x; agent_load without path lists"),
    ("agent_load", {"agent_id": "a", "path": "name[0]"}, r"no value at name\[0\]"),
    ("agent_load", {"agent_id": "a", "path": "config["}, r"cannot read the path"),
    ("agent_load", {"agent_id": "a", "offset": 1}, r"max_chars and offset require path"),
    ("agent_load", {"agent_id": "a", "path": "name", "offset": 9}, r"offset must be from 0 to 1, .*not 9"),
    ("checkpoint_create", {"agent_id": "a"}, r"name is missing: checkpoint_create needs agent_id and name"),
    ("checkpoint_create", {"agent_id": "nobody", "name": "n"}, r"no agent 'nobody'"),
    ("checkpoint_create", {"agent_id": "a", "name": "n", "kind": "x"}, r"must be one of automatic, manual, .* not 'x'"),
    ("checkpoint_restore", {"checkpoint_id": "00"}, r"no agent checkpoint '00'"),
    (
        "conversation_save",
        {"agent_id": "a", "messages": "Hi"},
        r'such as \[{"role": "user", "content": "Hello"}\], not',
    ),
    ("conversation_save", {"agent_id": "a", "messages": [{"role": "user"}]}, r"messages\[0\].content is missing"),
    (
        "conversation_save",
        {"agent_id": "a", "messages": [{"role": "bot", "content": "Hi"}]},
        r"messages\[0\].role must be one of system, user, assistant, tool, not 'bot'",
    ),
    (
        "conversation_save",
        {"agent_id": "a", "messages": [{"role": "user", "content": "Hi", "time": 1}]},
        r"messages\[0\] has no 'time'; it takes timestamp, ",
    ),
    (
        "conversation_save",
        {"agent_id": "a", "messages": [{"role": "user", "content": "Hi", "timestamp": "noon"}]},
        r"messages\[0\]: timestamp must be a time in ISO 8601",
    ),
    ("conversation_save", {"agent_id": "a", "conversation_id": "c"}, r"nothing to save"),
    ("conversation_save", {"agent_id": "b", "conversation_id": "c", "tags": ["x"]}, r"belongs to agent 'a'"),
    ("conversation_save", {"agent_id": "b", "conversation_id": "c", "title": "T"}, r"belongs to agent 'a', not 'b'"),
    ("conversation_load", {"conversation_id": "x"}, r"no conversation 'x'"),
    ("conversation_load", {"conversation_id": "c", "path": "messages[9]"}, r"no value at messages\[9\]"),
    ("conversation_load", {"conversation_id": "c", "path": "title", "before": 1}, r"pass one or the other"),
    ("conversation_load", {"conversation_id": "c", "max_chars": 1}, r"require path"),
    ("conversation_search", {"query": ""}, r"has no word"),
    *(
        (name, {**needed, "cursor": cursor}, rf"cursor is the next_cursor of an earlier {name}")
        for name, needed in [
            ("agent_list", {}),
            ("conversation_list", {"agent_id": "a"}),
            ("conversation_search", {"query": "x"}),
            ("checkpoint_list", {"agent_id": "a"}),
        ]
        for cursor in (
            "",
            "x",
            "é",
            "\ud800",
            "bnVsbA==",
            encode_cursor("another", "1:1"),
            encode_cursor(name, 1, 2),
        )
    ),
    ("agent_list", {"cursor": encode_cursor("agent_list", "1")}, r"cursor of an entry"),
]


@pytest.mark.parametrize(("name", "arguments", "says"), WRONG)
def test_errors_name_the_fix_and_write_nothing(name, arguments, says, memory):
    memory.agents.save(AgentState("a", "A", "m"))
    memory.conversations.save(Conversation("a", id="c", messages=[Message.user("x")]))
    before = memory.stats()
    with pytest.raises(backtrail.Error, match=says):
        call(memory, name, arguments)
    told = call_safely(memory, name, arguments)
    assert re.search(says, told["error"]["message"])
    assert told["error"]["code"].startswith(("invalid.", "not_found.", "conflict."))
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert memory.stats() == before


def test_call_refuses_an_async_store(memory):
    async def main():
        async with aio.open("memory://") as store:
            with pytest.raises(Invalid, match=r"not backtrail\.aio\..*Store; .*asyncio\.to_thread\(call, store"):
                call(store, "agent_list", {})
            assert call_safely(store, "agent_list", {})["error"]["code"] == "invalid.argument"
        return await asyncio.to_thread(call, memory, "agent_list", {})

    assert asyncio.run(main()) == {"agents": [], "next_cursor": None}
    for wrong in (None, memory.agents, "memory://"):
        with pytest.raises(Invalid, match=r"builtins take a backtrail\.Store"):
            call(wrong, "agent_list", {})


def test_a_checkpoint_of_another_agent_is_refused(memory):
    memory.agents.save(AgentState("a", "A", "m"))
    made = call(memory, "checkpoint_create", {"agent_id": "a", "name": "n"})
    told = call_safely(memory, "checkpoint_restore", {"checkpoint_id": made["checkpoint_id"], "agent_id": "b"})
    assert told["error"]["code"] == "invalid.argument"


def test_only_errors_of_backtrail_become_answers(memory, monkeypatch):
    monkeypatch.setattr(memory.agents, "list", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call_safely(memory, "agent_list", {})


def test_error_messages_are_short(memory):
    memory.agents.save(AgentState("a", "A", "m"))
    for arguments in ({"agent_id": "a", "path": "[" * 10**6}, {"agent_id": "a", "x" * 10**6: 1}):
        assert len(json.dumps(call_safely(memory, "agent_load", arguments))) < 2_000


def test_null_and_empty_text_mean_absent(memory):
    assert call(memory, "agent_list", {"limit": None, "cursor": None}) == {"agents": [], "next_cursor": None}
    assert call(memory, "agent_list", "") == call(memory, "agent_list", "{}")


# -- anything at all ----------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["a", "c", "user"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=6,
)


def arguments_of(tool):
    properties = tool.schema["properties"]
    return st.fixed_dictionaries({}, optional={name: fitting(below) | VALUES for name, below in properties.items()})


def fitting(schema):
    kinds = {
        "string": st.sampled_from(["a", "c", "messages[0]", "custom_state", ""]) | st.text(max_size=10),
        "integer": st.integers(-1, 300),
        "boolean": st.booleans(),
        "array": st.lists(fitting(schema["items"]), max_size=3) if "items" in schema else None,
        "object": st.fixed_dictionaries(
            {}, optional={name: fitting(below) for name, below in schema.get("properties", {}).items()}
        ),
    }
    return st.sampled_from(schema["enum"]) if "enum" in schema else kinds[schema["type"]]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from([*TOOLS]).flatmap(lambda n: st.tuples(st.just(n), arguments_of(TOOLS[n]))), max_size=8))
def test_any_call_returns_json(calls):
    store = backtrail.open("memory://")
    store.agents.save(AgentState("a", "A", "m", custom_state={"n": math.inf}))
    store.conversations.save(Conversation("a", id="c", messages=[Message.user("x")]))
    for name, arguments in calls:
        answer = call_safely(store, name, arguments, destructive=True)
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer
        assert len(json.dumps(answer, ensure_ascii=False)) < 20 * 1024


# -- tools that destroy data -----------------------------------------------------------------------------

DESTRUCTIVE = ["agent_delete", "conversation_delete", "checkpoint_delete"]


def test_three_builtins_destroy_data():
    assert [name for name, tool in TOOLS.items() if tool.effect is Effect.DESTROY] == DESTRUCTIVE


@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_destructive_builtins_are_off_in_a_scope(name, memory):
    memory.agents.save(AgentState("a", "A", "m"))
    memory.conversations.save(Conversation("a", id="c"))
    point = memory.agents.checkpoint("a", "p")
    arguments = {"agent_id": "a"} if name == "agent_delete" else {"conversation_id": "c"}
    arguments = {"checkpoint_id": point.id} if name == "checkpoint_delete" else arguments
    with pytest.raises(Invalid, match="pass destructive=True") as caught:
        call(memory.scoped("a"), name, arguments)
    assert caught.value.code == "invalid.destructive"
    with pytest.raises(Invalid, match="pass destructive=True"):
        call(memory, name, arguments, destructive=False)
    with pytest.warns(DeprecationWarning, match=f"{name} removes data for good"):
        assert call(memory, name, dict.fromkeys(arguments, "none"))["deleted"] is False
    assert call(memory.scoped("a"), name, arguments, destructive=True)["deleted"] is True
