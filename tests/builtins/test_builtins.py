"""The builtins, called as a tool-calling model calls them: by name, with JSON text, reading JSON."""

import datetime as dt
import inspect
import json
import re
from pathlib import Path

import pytest

import backtrail
from backtrail import AgentState, Conversation, Message
from backtrail.builtins import TOOLS, Builtin, call
from backtrail.operations import arguments, schema

NAMES = [
    "agent_save",
    "agent_load",
    "agent_delete",
    "agent_list",
    "conversation_save",
    "conversation_load",
    "conversation_delete",
    "conversation_list",
    "conversation_search",
    "checkpoint_create",
    "checkpoint_restore",
    "checkpoint_list",
    "checkpoint_delete",
    "persistence_stats",
]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "builtins.md").read_text()


class Model:
    """Calls tools as a loop around a model does, and notes which properties of their schemas it has used."""

    def __init__(self, store):
        self.store = store
        self.used = set()

    def __call__(self, name, /, **arguments):
        self.used |= set(used_in(TOOLS[name].schema, arguments, (name,)))
        answer = call(self.store, name, json.dumps(arguments), destructive=True)
        return json.loads(json.dumps(answer, allow_nan=False))


def used_in(schema, value, where):
    if isinstance(value, list):
        for item in value:
            yield from used_in(schema["items"], item, where)
    if isinstance(value, dict):
        for name in value.keys() & schema.get("properties", {}).keys():
            yield (*where, name)
            yield from used_in(schema["properties"][name], value[name], (*where, name))


def properties_of(schema, where):
    if "items" in schema:
        yield from properties_of(schema["items"], where)
    for name, below in schema.get("properties", {}).items():
        yield (*where, name)
        yield from properties_of(below, (*where, name))


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    url = tmp_path / "a.db" if request.param == "sqlite" else "memory://"
    with backtrail.open(url, durability="relaxed") as made:
        yield made


@pytest.fixture
def memory():
    return backtrail.open("memory://")


# -- stories: every tool and every argument, with the effects in the store -----------------------------


def agents_story(model, store):
    made = model(
        "agent_save",
        agent_id="planner",
        name="Planner",
        agent_type="some-model",
        system_prompt="Plan trips. " * 50,
        capabilities=["search", "book"],
        config={"temperature": 0.5},
        custom_state={"plan": {"days": [1, 2]}, "notes": "n" * 30_000},
        metadata={"team": "travel"},
    )
    assert made["result"] == "created"
    assert store.agents.load("planner").config == {"temperature": 0.5}

    assert model("agent_save", agent_id="planner", custom_state={"step": 3})["result"] == "updated"
    model("agent_save", agent_id="planner", capabilities=["book"], config={"top_p": 1}, metadata={"room": "7"})
    state = store.agents.load("planner")
    assert [*state.custom_state] == ["plan", "notes", "step"]
    assert (state.config, state.metadata) == ({"temperature": 0.5, "top_p": 1}, {"team": "travel", "room": "7"})
    assert (state.name, state.capabilities, state.system_prompt) == ("Planner", ["book"], "Plan trips. " * 50)
    assert state.modified_at > state.created_at

    shown = model("agent_load", agent_id="planner")
    assert shown["system_prompt"] == {"preview": ("Plan trips. " * 50)[:200], "truncated": True, "size": 600}
    assert shown["custom_state"]["plan"] == {"days": [1, 2]}
    assert shown["custom_state"]["notes"]["size"] == 30_000
    assert shown["size_bytes"] > 30_000
    assert model("agent_load", agent_id="planner", path="custom_state.plan.days[-1]")["value"] == 2
    first = model("agent_load", agent_id="planner", path="custom_state.notes")
    assert (len(first["part"]), first["truncated"], first["size"], first["next_offset"]) == (
        20_000,
        True,
        30_000,
        20_000,
    )
    rest = model("agent_load", agent_id="planner", path="custom_state.notes", offset=20_000, max_chars=15_000)
    assert (len(rest["part"]), rest["next_offset"]) == (10_000, None)

    again = model("agent_save", agent_id="planner", name="Another", agent_type="m", replace=True)
    assert again["result"] == "replaced"
    assert store.agents.load("planner").custom_state == {}

    model("agent_save", agent_id="b", name="B", agent_type="m")
    page = model("agent_list", limit=1)
    assert [(each["agent_id"], each["name"]) for each in page["agents"]] == [("b", "B")]
    rest = model("agent_list", limit=1, cursor=page["next_cursor"])
    assert ([each["agent_id"] for each in rest["agents"]], rest["next_cursor"]) == (["planner"], None)

    gone = model("agent_delete", agent_id="b")
    assert gone["deleted"]
    assert "cannot be undone" in gone["undo"]
    assert store.agents.get("b") is None
    assert model("agent_delete", agent_id="b")["deleted"] is False


def times_story(model, store):
    model("agent_save", agent_id="planner", name="Planner", agent_type="model")
    model("conversation_save", agent_id="planner", conversation_id="lunch")
    for tool, entries in (("agent_list", "agents"), ("conversation_list", "conversations")):
        everything = model(tool)[entries]
        assert len(everything) == 1
        assert model(tool, since="2001-01-01T00:00:00Z", until="2999-01-01T00:00:00Z")[entries] == everything
        assert model(tool, since="2999-01-01T00:00:00Z")[entries] == []
        assert model(tool, until="2001-01-01T00:00:00Z")[entries] == []


def conversations_story(model, store):
    said = {
        "id": "m1",
        "role": "user",
        "content": "Find me a Café in Lisbon",
        "timestamp": "2026-01-31T12:00:00Z",
        "tokens": 7,
        "parent_id": "m0",
        "metadata": {"from": "web"},
        "tool_calls": [{"id": "t", "name": "find", "arguments": {"q": 1}, "result": "r", "status": "completed"}],
        "attachments": [
            {
                "id": "a",
                "attachment_type": "image",
                "name": "n",
                "mime_type": "image/png",
                "content": "AA==",
                "size": 1,
            },
            {"attachment_type": "file", "name": "n", "mime_type": "text/plain", "url": "https://example.org"},
        ],
    }
    made = model("conversation_save", agent_id="planner", messages=[said])
    name = made["conversation_id"]
    assert (made["result"], made["message_ids"], made["message_count"]) == ("created", ["m1"], 1)
    kept = store.conversations.load(name)
    assert kept.title == "Find me a Café in Lisbon"
    assert kept.messages[0].timestamp == dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert (kept.messages[0].tokens, kept.messages[0].parent_id, kept.messages[0].metadata) == (
        7,
        "m0",
        {"from": "web"},
    )
    assert (kept.messages[0].tool_calls[0].result, kept.messages[0].tool_calls[0].status) == ("r", "completed")
    assert [part.url for part in kept.messages[0].attachments] == [None, "https://example.org"]

    reply = {"role": "assistant", "content": "x" * 1_000}
    model("conversation_save", agent_id="planner", conversation_id=name, messages=[reply, reply])
    changes = {"title": "Lisbon", "tags": ["trip"], "metadata": {"a": "1"}, "archived": True}
    told = model("conversation_save", agent_id="planner", conversation_id=name, messages=[reply], **changes)
    model("conversation_save", agent_id="planner", conversation_id=name, metadata={"b": "2"})
    assert (told["result"], told["messages_added"], told["message_count"]) == ("updated", 1, 4)
    kept = store.conversations.load(name)
    assert (kept.title, kept.tags, kept.archived, kept.metadata) == ("Lisbon", ["trip"], True, {"a": "1", "b": "2"})

    shown = model("conversation_load", conversation_id=name)
    assert [message["index"] for message in shown["messages"]] == [0, 1, 2, 3]
    assert shown["messages"][3]["content"] == {"preview": "x" * 200, "truncated": True, "size": 1_000}
    assert (shown["message_count"], shown["next_before"], shown["metadata"]) == (4, None, {"a": "1", "b": "2"})
    last = model("conversation_load", conversation_id=name, messages=1)
    assert ([message["index"] for message in last["messages"]], last["next_before"]) == ([3], 3)
    before = model("conversation_load", conversation_id=name, messages=2, before=last["next_before"])
    assert ([message["index"] for message in before["messages"]], before["next_before"]) == ([1, 2], 1)
    part = model("conversation_load", conversation_id=name, path="messages[3].content", max_chars=10, offset=995)
    assert (part["part"], part["size"], part["next_offset"]) == ("x" * 5, 1_000, None)

    model("conversation_save", agent_id="planner", conversation_id="other", title="Porto")
    listed = model("conversation_list", agent_id="planner")["conversations"]
    assert [(each["conversation_id"], each["title"]) for each in listed] == [("other", "Porto"), (name, "Lisbon")]
    first = model("conversation_list", agent_id="planner", limit=1)
    rest = model("conversation_list", agent_id="planner", limit=1, cursor=first["next_cursor"])
    assert [each["conversation_id"] for each in first["conversations"] + rest["conversations"]] == ["other", name]
    assert rest["next_cursor"] is None
    only = model("conversation_list", agent_id="planner", archived=False)["conversations"]
    assert [each["conversation_id"] for each in only] == ["other"]
    only = model("conversation_list", agent_id="planner", tag="trip")["conversations"]
    assert [each["conversation_id"] for each in only] == [name]

    (hit,) = model("conversation_search", query="caFÉ IN")["hits"]
    assert (hit["conversation_id"], hit["message_id"], hit["role"], hit["index"]) == (name, "m1", "user", 0)
    assert (hit["created_at"], "Café" in hit["snippet"]) == ("2026-01-31T12:00:00+00:00", True)
    assert model("conversation_search", query="café", agent_id="nobody")["hits"] == []
    first = model("conversation_search", query="xxx", limit=2)
    rest = model("conversation_search", query="xxx", limit=2, cursor=first["next_cursor"])
    assert [hit["index"] for hit in first["hits"] + rest["hits"]] == [3, 2, 1]
    assert rest["next_cursor"] is None

    assert model("conversation_delete", conversation_id=name)["deleted"] is True
    assert store.conversations.get(name) is None
    assert model("conversation_delete", conversation_id=name)["deleted"] is False


def checkpoints_story(model, store):
    model("agent_save", agent_id="planner", name="Planner", agent_type="m", custom_state={"step": 1})
    model("conversation_save", agent_id="planner", conversation_id="c", messages=[{"role": "user", "content": "Hi"}])
    made = model("checkpoint_create", agent_id="planner", name="before", description="d", kind="pre_operation")
    assert (made["name"], made["description"], made["kind"], made["conversations"]) == (
        "before",
        "d",
        "pre_operation",
        1,
    )
    model("agent_save", agent_id="planner", custom_state={"step": 2})
    told = model("conversation_delete", conversation_id="c")
    assert "checkpoint_restore" in told["undo"]
    model("conversation_save", agent_id="planner", conversation_id="later")
    model("checkpoint_create", agent_id="planner", name="after")

    page = model("checkpoint_list", agent_id="planner", limit=1)
    rest = model("checkpoint_list", agent_id="planner", limit=1, cursor=page["next_cursor"])
    assert [each["name"] for each in page["checkpoints"] + rest["checkpoints"]] == ["after", "before"]
    assert (rest["checkpoints"][0], rest["next_cursor"]) == (made, None)

    told = model("checkpoint_restore", checkpoint_id=made["checkpoint_id"], agent_id="planner")
    assert store.agents.load("planner").custom_state == {"step": 1}
    assert [info.id for info in store.conversations.list("planner")] == ["c"]
    assert "store.agents.undo('planner')" in told["undo"]
    eval(told["undo"].partition(", called in Python")[0], {"store": store})  # it is as the answer says
    assert store.agents.load("planner").custom_state == {"step": 2}
    assert [info.id for info in store.conversations.list("planner")] == ["later"]

    assert model("checkpoint_delete", checkpoint_id=made["checkpoint_id"])["deleted"] is True
    assert [each.name for each in store.agents.checkpoints("planner")] == ["after"]
    assert model("checkpoint_delete", checkpoint_id=made["checkpoint_id"])["deleted"] is False

    stats, measured = model("persistence_stats"), store.stats()
    assert stats["checkpoints"] == measured.checkpoints > 0
    assert stats["logical_bytes"] == measured.logical_bytes
    assert stats == {name: getattr(measured, name) for name in stats}


STORIES = [agents_story, times_story, conversations_story, checkpoints_story]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_stories_of_tool_calls_give_expected_answers(story, store):
    story(Model(store), store)


def test_stories_cover_every_tool_and_property():
    used = set()
    for story in STORIES:
        model = Model(backtrail.open("memory://"))
        story(model, model.store)
        used |= model.used
    there = {where for name, tool in TOOLS.items() for where in properties_of(tool.schema, (name,))}
    assert there - used == set()


# -- what the tools say of themselves ---------------------------------------------------------------------


def test_there_are_fourteen_builtins():
    assert [*TOOLS] == NAMES
    assert all(name == tool.name for name, tool in TOOLS.items())


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_schemas_are_valid_json_schema(tool):
    assert re.fullmatch(r"[A-Z][^\n]+\.", tool.description)
    assert json.loads(json.dumps(tool.schema)) == tool.schema
    assert tool.schema["additionalProperties"] is False
    check_schema(tool.schema)
    for below in tool.schema["properties"].values():
        assert re.fullmatch(r"[A-Z][^\n]+\.", below["description"])


KEYWORDS = {
    "string": {"enum", "format"},
    "integer": {"minimum", "maximum"},
    "boolean": set(),
    "array": {"items"},
    "object": {"properties", "required", "additionalProperties"},
}


def check_schema(schema):
    """Only keywords that `arguments` knows, each where it means something."""
    assert schema.keys() <= KEYWORDS[schema["type"]] | {"type", "description", "default", "examples"}
    if schema["type"] == "array":
        check_schema(schema["items"])
    if schema["type"] == "object":
        assert set(schema.get("required", ())) <= schema.get("properties", {}).keys()
        assert isinstance(schema["additionalProperties"], bool | dict)
        for below in schema.get("properties", {}).values():
            assert below["description"]
            check_schema(below)
    for example in [*schema.get("examples", ()), *([schema["default"]] if "default" in schema else ())]:
        arguments._check(example, schema, "example")


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_schema_matches_function_parameters(tool):
    _, *parameters = inspect.signature(tool.function).parameters.values()
    properties, named = tool.schema["properties"], [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert {each.name for each in named} <= properties.keys()
    assert len(named) < len(parameters) or {each.name for each in named} == properties.keys()
    needed = [each.name for each in named if each.default is each.empty]
    assert needed == tool.schema["required"]
    for each in named:
        if each.default not in (each.empty, None, False):
            assert each.default == properties[each.name]["default"]


def test_defaults_match_the_schema(memory):
    memory.agents.save(AgentState("a", "A", "m", custom_state={"t": "x" * 300_000}))
    memory.conversations.save(Conversation("a", id="c", messages=[Message.user("x")] * 30))
    loading = TOOLS["agent_load"].schema["properties"]
    assert (
        len(call(memory, "agent_load", {"agent_id": "a", "path": "custom_state.t"})["part"])
        == (loading["max_chars"]["default"])
    )
    shown = call(memory, "conversation_load", {"conversation_id": "c"})["messages"]
    assert len(shown) == TOOLS["conversation_load"].schema["properties"]["messages"]["default"]


def test_tools_have_provider_formats():
    tool = TOOLS["agent_delete"]
    schema = {
        "type": "object",
        "properties": {"agent_id": {"type": "string", "description": "The agent's id."}},
        "required": ["agent_id"],
        "additionalProperties": False,
    }
    told = {"name": "agent_delete", "description": tool.description}
    assert tool.openai() == {"type": "function", "function": {**told, "parameters": schema, "strict": False}}
    assert tool.anthropic() == {**told, "input_schema": schema}
    tool.openai()["function"]["parameters"].clear()
    assert tool.schema == schema


def test_a_tool_cannot_be_changed():
    with pytest.raises(AttributeError):
        TOOLS["agent_save"].name = "x"
    with pytest.raises(TypeError):
        TOOLS["x"] = Builtin("x", "X.", {})
    assert len({*TOOLS.values()}) == 14


def test_docs_page_lists_all_builtins():
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([^|]+) \| ([^|]*) \|$", PAGE)
    wanted = []
    for tool in TOOLS.values():
        needed = tool.schema["required"]
        words = [f"**{name}**" if name in needed else name for name in tool.schema["properties"]]
        wanted.append((tool.name, tool.description, ", ".join(words)))
    assert rows == wanted


def test_largest_page_matches_the_schema():
    assert TOOLS["agent_list"].schema["properties"]["limit"]["maximum"] == schema.LIMIT_MAX == 200
