"""Agents, conversations and messages: their fields, changes, and exact storage."""

import copy
import dataclasses
import datetime as dt
import json
import math
import pickle
import re
import uuid
import zoneinfo
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail import (
    AgentState,
    Attachment,
    AttachmentType,
    CheckpointType,
    Conversation,
    Invalid,
    Items,
    Member,
    Message,
    Record,
    Role,
    ToolCall,
    ToolStatus,
    validation,
)
from backtrail.conversations.models import Saved
from backtrail.engine.tree.encode import Packer
from backtrail.validation import to_data, to_json
from tests.support.lengths import fewer
from tests.support.strategies import TYPES, decode, encode, form, values

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def agent(**others):
    return AgentState("planner", "Planner", "gpt-5", **others)


# ---- any value ------------------------------------------------------------------------------------------------------

texts = st.one_of(st.text(max_size=6), st.sampled_from(["", "\0", "\ud800", "😀", "e\u0301", "שלום"]))
names = st.one_of(st.text(min_size=1, max_size=6), st.sampled_from(["../x", "\0", "\ud800", "x" * 512]))
times = st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5)), zoneinfo.ZoneInfo("UTC")]))
times = times.filter(lambda moment: 1 < moment.year < 9999)
sizes = st.integers(0, 2**70)
any_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)


def some(strategy):
    return st.one_of(st.none(), strategy)


def entities(plain):
    """A strategy for each class, with such values in the place of plain values."""
    mappings = st.dictionaries(texts, plain, max_size=3)
    attachments = st.builds(
        Attachment,
        st.sampled_from(AttachmentType),
        texts,
        texts,
        content=some(texts),
        url=some(texts),
        size=some(sizes),
        id=names,
    )
    calls = st.builds(ToolCall, texts, mappings, names, some(texts), st.sampled_from(ToolStatus))
    messages = st.builds(
        lambda payload, **others: Message(raw=payload, raw_format=None if payload is None else "x", **others),
        plain,
        role=st.sampled_from(Role),
        content=texts,
        id=names,
        timestamp=times,
        tokens=some(sizes),
        attachments=st.lists(attachments, max_size=2),
        tool_calls=st.lists(calls, max_size=2),
        parent_id=some(names),
        metadata=mappings,
    )
    conversations = st.builds(
        Conversation,
        names,
        id=names,
        title=some(texts),
        messages=st.lists(messages, max_size=3),
        metadata=st.dictionaries(texts, texts, max_size=2),
        created_at=times,
        last_message_at=some(times),
        archived=st.booleans(),
        tags=st.lists(texts, max_size=2),
        forked_from=some(names),
        forked_at=some(names),
    )
    agents = st.builds(
        AgentState,
        names,
        texts,
        texts,
        some(texts),
        st.lists(texts, max_size=2),
        mappings,
        mappings,
        st.lists(names, max_size=2),
        times,
        some(times),
        st.integers(1, 9),
        st.dictionaries(texts, texts, max_size=2),
    )
    return st.one_of(agents, conversations, messages, attachments, calls)


@given(entities(values))
@fewer(2)
def test_any_value_comes_back_from_its_data(value):
    again = type(value).from_data(to_data(value))
    assert form(to_data(again)) == form(to_data(value))
    assert list(map(type, vars_of(again))) == list(map(type, vars_of(value)))


@given(entities(any_json))
@fewer(2)
def test_values_round_trip_through_data_and_json(value):
    assert type(value).from_data(to_data(value)) == value
    data = value.to_json()
    assert to_json(value) == data
    assert type(value).from_json(json.loads(json.dumps(data))) == value
    assert type(value).from_json(data) == value


def vars_of(value):
    return [getattr(value, each.name) for each in dataclasses.fields(value)]


# ---- defaults and fields --------------------------------------------------------------------------------------------


def test_missing_fields_are_empty_or_none():
    before = dt.datetime.now(dt.UTC)
    state, talk, message = agent(), Conversation("planner"), Message.user("hi")
    assert (state.system_prompt, state.version, state.modified_at) == (None, 1, state.created_at)
    assert [state.capabilities, state.active_conversations] == [[], []]
    assert [state.config, state.custom_state, state.metadata] == [{}, {}, {}]
    assert (talk.title, talk.archived, talk.forked_from, talk.forked_at) == (None, False, None, None)
    assert (talk.messages, talk.tags, talk.metadata, talk.message_count) == ([], [], {}, 0)
    assert talk.last_message_at == talk.created_at
    assert (message.role, message.content) == ("user", "hi")
    assert (message.attachments, message.tool_calls, message.metadata) == ([], [], {})
    assert [message.tokens, message.parent_id, message.raw, message.raw_format] == [None] * 4
    assert (ToolCall("f").arguments, ToolCall("f").result, ToolCall("f").status) == ({}, None, "pending")
    for moment in (state.created_at, talk.created_at, message.timestamp):
        assert moment.tzinfo is dt.UTC
        assert before <= moment <= dt.datetime.now(dt.UTC)


def test_ids_are_random_uuids():
    made = [validation.new_id() for _ in range(500)]
    made += [Message.user("").id, Conversation("a").id, ToolCall("f").id, Attachment("file", "a", "b").id]
    assert len(set(made)) == len(made)
    for text in made:
        assert str(uuid.UUID(text)) == text
        assert (uuid.UUID(text).version, uuid.UUID(text).variant) == (4, uuid.RFC_4122)
    assert {text[19] for text in made} == set("89ab")


def test_the_members_of_enums_equal_their_texts():
    assert list(Role) == ["system", "user", "assistant", "tool"]
    assert list(AttachmentType) == ["image", "audio", "video", "file", "code"]
    assert list(ToolStatus) == ["pending", "running", "completed", "failed"]
    assert list(CheckpointType) == ["automatic", "manual", "pre_operation", "recovery"]


def test_constructors_of_messages():
    assert [Message.user("").role, Message.assistant("").role, Message.system("").role] == [
        "user",
        "assistant",
        "system",
    ]
    assert Message("tool", "x").role is Role.TOOL
    mine = {"a": 1}
    result = Message.tool_result("call-1", "42", metadata=mine, tokens=3)
    assert (result.role, result.content, result.tokens) == ("tool", "42", 3)
    assert result.metadata == {"a": 1, "tool_call_id": "call-1"}
    assert mine == {"a": 1}


@pytest.mark.parametrize("content", ["x" * 20_000_000, "a\0b", "\ud800", "", "e\u0301 שלום 😀"], ids=len)
def test_a_message_holds_any_text(content):
    assert Message.from_data(to_data(Message.user(content))).content == content


def test_subclasses_of_str_become_their_texts():
    class Model(StrEnum):
        FAST = "fast-1"

    state = AgentState(Model.FAST, Model.FAST, Model.FAST, capabilities=[Model.FAST])
    for text in (state.agent_id, state.name, state.agent_type, state.capabilities[0]):
        assert (text, type(text)) == ("fast-1", str)


def test_times_of_other_zones_become_utc():
    berlin = NOON.astimezone(zoneinfo.ZoneInfo("Europe/Berlin"))
    for made in (Message.user("", timestamp=berlin).timestamp, agent(created_at=berlin).created_at):
        assert (made, made.tzinfo) == (NOON, dt.UTC)


def test_values_do_not_share_arguments():
    empty, full, words = {}, {"a": 1}, ["a"]
    message = Message.user("", metadata=empty, tool_calls=(calls := [ToolCall("f", full)]))
    state = agent(config=full, custom_state=empty, capabilities=words, metadata=empty)
    talk = Conversation("a", messages=(said := [message]), tags=words)
    for held in (empty, full):
        held["b"] = "2"
    for held in (words, calls, said):
        held.append(None)
    assert (message.metadata, message.tool_calls[0].arguments, len(message.tool_calls)) == ({}, {"a": 1}, 1)
    assert (state.config, state.custom_state, state.capabilities, state.metadata) == ({"a": 1}, {}, ["a"], {})
    assert (talk.messages, talk.tags) == ([message], ["a"])


@pytest.mark.parametrize("value", [agent(), Conversation("a"), Message.user("")], ids=type)
def test_values_are_frozen_hashable_and_picklable(value):
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.metadata = {}
    for again in (
        copy.copy(value),
        copy.deepcopy(value),
        pickle.loads(pickle.dumps(value)),
        dataclasses.replace(value),
    ):
        assert again == value
        assert hash(again) == hash(value)


# ---- what is refused ------------------------------------------------------------------------------------------------

NAIVE = dt.datetime(2026, 1, 31)
BAD = [
    (lambda: Message("robot", ""), "invalid.argument", "role", "system, user, assistant, tool"),
    (lambda: Message(["user"], ""), "invalid.argument", "role", "one of"),
    (lambda: Message(None, ""), "invalid.argument", "role", "one of"),
    (lambda: Message.user(b"x"), "invalid.argument", "content", "a string"),
    (lambda: Message.user(None), "invalid.argument", "content", "a string"),
    (lambda: Message.user("", id=""), "invalid.id", "id", "1 to 512"),
    (lambda: Message.user("", id="x" * 513), "invalid.id", "id", "has 513"),
    (lambda: Message.user("", id=7), "invalid.id", "id", "a string, not int"),
    (lambda: Message.user("", parent_id=""), "invalid.id", "parent_id", "1 to 512"),
    (lambda: Message.user("", timestamp=NAIVE), "invalid.argument", "timestamp", "must have a time zone"),
    (lambda: Message.user("", timestamp="2026"), "invalid.argument", "timestamp", "a datetime"),
    (lambda: Message.user("", tokens=-1), "invalid.argument", "tokens", "0 or more"),
    (lambda: Message.user("", tokens=True), "invalid.argument", "tokens", "not True"),
    (lambda: Message.user("", tokens=-(10**5000)), "invalid.argument", "tokens", "not a int"),
    (lambda: Message.user("", attachments=["x"]), "invalid.argument", "attachments[0]", "of type Attachment"),
    (lambda: Message.user("", attachments="x"), "invalid.argument", "attachments", "a list"),
    (lambda: Message.user("", tool_calls=[ToolCall("f"), {}]), "invalid.argument", "tool_calls[1]", "of type ToolCall"),
    (lambda: Message.user("", tool_calls=7), "invalid.argument", "tool_calls", "a list"),
    (lambda: Message.user("", metadata=[]), "invalid.argument", "metadata", "a mapping"),
    (lambda: Message.user("", metadata={1: 2}), "invalid.argument", "metadata[1]", "keys must be strings"),
    (lambda: Message.user("", raw={}), "invalid.argument", "raw_format", "must be given together"),
    (lambda: Message.user("", raw_format="x"), "invalid.argument", "raw", "must be given together"),
    (lambda: Message.user("", raw=1, raw_format=1), "invalid.argument", "raw_format", "a string"),
    (lambda: Message.tool_result("", "x"), "invalid.id", "tool_call_id", "1 to 512"),
    (lambda: Attachment("movie", "a", "b"), "invalid.argument", "attachment_type", "image, audio, video, file, code"),
    (lambda: Attachment("file", 1, "b"), "invalid.argument", "name", "a string"),
    (lambda: Attachment("file", "a", 1), "invalid.argument", "mime_type", "a string"),
    (lambda: Attachment("file", "a", "b", content=b""), "invalid.argument", "content", "a string"),
    (lambda: Attachment("file", "a", "b", url=1), "invalid.argument", "url", "a string"),
    (lambda: Attachment("file", "a", "b", size=-1), "invalid.argument", "size", "0 or more"),
    (lambda: Attachment("file", "a", "b", id=""), "invalid.id", "id", "1 to 512"),
    (lambda: Attachment.from_bytes("file", "a", "b", "text"), "invalid.argument", "data", "bytes"),
    (lambda: ToolCall(None), "invalid.argument", "name", "a string"),
    (lambda: ToolCall("f", [1]), "invalid.argument", "arguments", "a mapping"),
    (lambda: ToolCall("f", id=""), "invalid.id", "id", "1 to 512"),
    (lambda: ToolCall("f", status="done"), "invalid.argument", "status", "pending, running, completed, failed"),
    (lambda: ToolCall("f").completed({}), "invalid.argument", "result", "a string"),
    (lambda: Conversation(""), "invalid.id", "agent_id", "1 to 512"),
    (lambda: Conversation("a", id=""), "invalid.id", "id", "1 to 512"),
    (lambda: Conversation("a", title=1), "invalid.argument", "title", "a string"),
    (lambda: Conversation("a", messages=["hi"]), "invalid.argument", "messages[0]", "of type Message"),
    (lambda: Conversation("a", metadata={"x": 1}), "invalid.argument", "metadata['x']", "a string"),
    (lambda: Conversation("a", created_at=NAIVE), "invalid.argument", "created_at", "must have a time zone"),
    (lambda: Conversation("a", last_message_at=NAIVE), "invalid.argument", "last_message_at", "must have a time zone"),
    (lambda: Conversation("a", archived=1), "invalid.argument", "archived", "True or False"),
    (lambda: Conversation("a", tags="ab"), "invalid.argument", "tags", "a list"),
    (lambda: Conversation("a", tags=["a", 1]), "invalid.argument", "tags[1]", "a string"),
    (lambda: Conversation("a", forked_from=""), "invalid.id", "forked_from", "1 to 512"),
    (lambda: Conversation("a", forked_at=""), "invalid.id", "forked_at", "1 to 512"),
    (lambda: Conversation("a").add_message("hi"), "invalid.argument", "messages[0]", "of type Message"),
    (lambda: AgentState("", "a", "b"), "invalid.id", "agent_id", "1 to 512"),
    (lambda: AgentState("a", None, "b"), "invalid.argument", "name", "a string"),
    (lambda: AgentState("a", "a", 1), "invalid.argument", "agent_type", "a string"),
    (lambda: agent(system_prompt=1), "invalid.argument", "system_prompt", "a string"),
    (lambda: agent(capabilities=[1]), "invalid.argument", "capabilities[0]", "a string"),
    (lambda: agent(config={1: 1}), "invalid.argument", "config[1]", "keys must be strings"),
    (lambda: agent(custom_state={None: 1}), "invalid.argument", "custom_state[None]", "keys must be strings"),
    (lambda: agent(active_conversations=["x", ""]), "invalid.id", "active_conversations[1]", "1 to 512"),
    (lambda: agent(created_at=NAIVE), "invalid.argument", "created_at", "must have a time zone"),
    (lambda: agent(modified_at=NAIVE), "invalid.argument", "modified_at", "must have a time zone"),
    (lambda: agent(version=0), "invalid.argument", "version", "1 or more"),
    (lambda: agent(metadata={"x": None}), "invalid.argument", "metadata['x']", "a string"),
    (lambda: agent().set_state(1, 1), "invalid.argument", "custom_state[1]", "keys must be strings"),
    (
        lambda: Message.user("", timestamp=dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))),
        "invalid.argument",
        "timestamp",
        "years 1 to 9999",
    ),
]


@pytest.mark.parametrize(("make", "code", "path", "says"), BAD, ids=[f"{path}-{says}" for _, _, path, says in BAD])
def test_wrong_field_is_refused_with_path_and_type(make, code, path, says):
    with pytest.raises(Invalid, match=re.escape(says)) as caught:
        make()
    assert (caught.value.code, caught.value.path) == (code, path)
    assert len(str(caught.value)) < 250


# ---- what changes returns a new value -------------------------------------------------------------------------------


def test_custom_state_is_set_read_and_removed():
    old = agent(created_at=NOON, custom_state={"a": 1})
    new = old.set_state("b", None).set_state("a", 2)
    assert (old.custom_state, new.custom_state) == ({"a": 1}, {"a": 2, "b": None})
    assert (old.modified_at, new.created_at) == (NOON, NOON)
    assert new.modified_at > NOON
    assert (new.get_state("a"), new.get_state("x"), new.get_state("x", 7), new.get_state("b", 7)) == (2, None, 7, None)
    gone = dataclasses.replace(new, modified_at=NOON).remove_state("a")
    assert (gone.custom_state, gone.modified_at > NOON) == ({"b": None}, True)
    assert gone.remove_state("a") is gone
    touched = old.touch()
    assert touched.modified_at > NOON
    assert dataclasses.replace(touched, modified_at=NOON) == old


def test_messages_are_added_in_order():
    one, two = Message.user("1", timestamp=NOON), Message.assistant("2", timestamp=NOON - dt.timedelta(days=1))
    empty = Conversation("a")
    talk = empty.add_message(one).add_message(two)
    assert (empty.messages, talk.messages, talk.message_count) == ([], [one, two], 2)
    assert talk.last_message_at == two.timestamp
    assert Conversation("a", messages=[two, one]).last_message_at == NOON
    assert Conversation("a", messages=[one], last_message_at=two.timestamp).last_message_at == one.timestamp
    assert Conversation("a", last_message_at=two.timestamp).last_message_at == two.timestamp
    assert type(talk.messages) is Items


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("", "later"),
        (" \n", "later"),
        ("x" * 50, "x" * 50),
        ("x" * 51, "x" * 47 + "..."),
        ("😀" * 50, "😀" * 50),
        ("😀" * 51, "😀" * 47 + "..."),
        ("e\u0301" * 26, "e\u0301" * 23 + "e..."),
        ("שלום " * 11, ("שלום " * 11)[:47] + "..."),
    ],
)
def test_title_is_the_first_user_message(said, title):
    talk = Conversation("a", messages=[Message.system("s"), Message.user(said), Message.user("later")])
    assert talk.auto_title().title == title
    assert talk.title is None


def test_auto_title_keeps_a_title_and_needs_a_user_message():
    titled = Conversation("a", title="mine", messages=[Message.user("other")])
    for talk in (titled, Conversation("a"), Conversation("a", messages=[Message.assistant("hello")])):
        assert talk.auto_title() is talk


def test_a_tool_call_is_completed_or_failed():
    call = ToolCall("f", {"x": 1}, status="running")
    assert call.completed("42") == ToolCall("f", {"x": 1}, call.id, "42", ToolStatus.COMPLETED)
    assert call.failed("no") == ToolCall("f", {"x": 1}, call.id, "no", ToolStatus.FAILED)
    assert (call.result, call.status) == (None, "running")


@pytest.mark.parametrize("data", [b"", b"\0\xff", bytes(range(256)) * 1000], ids=len)
def test_attached_bytes_come_back(data):
    for given_ in (data, bytearray(data), memoryview(data)):
        made = Attachment.from_bytes("image", "a.png", "image/png", given_)
        assert (made.to_bytes(), made.size, made.attachment_type) == (data, len(data), AttachmentType.IMAGE)


@pytest.mark.parametrize("content", [None, "print(1)", "é", "YQ", "YW Jj"])
def test_content_without_base64_is_refused(content):
    with pytest.raises(Invalid) as caught:
        Attachment("code", "a.py", "text/x-python", content, url="https://example.com").to_bytes()
    assert (caught.value.code, caught.value.path) == ("invalid.value", "content")


@pytest.mark.parametrize("value", [agent(), Conversation("a")], ids=["agent", "conversation"])
def test_a_derived_value_knows_the_head_as_it_was(value):
    mine = Saved("one")
    loaded = dataclasses.replace(value, _saved=mine)
    derived = [dataclasses.replace(loaded, metadata={"x": "y"})]
    derived += [loaded.set_state("x", 1), loaded.touch()] if isinstance(value, AgentState) else []
    derived += [loaded.add_message(Message.user("x"))] if isinstance(value, Conversation) else []
    mine.head = "lent"
    loaded._saved.head = "two"
    assert [each._saved.head for each in derived] == ["one"] * len(derived)
    assert (value._saved.head, loaded._saved.head) == (None, "two")
    assert loaded == value
    assert "Saved" not in repr(loaded)
    assert "_saved" not in to_data(loaded)


# ---- data -----------------------------------------------------------------------------------------------------------


def test_empty_message_fields_are_not_stored():
    bare = Message.user("", id="m", timestamp=NOON)
    assert to_data(bare) == {"id": "m", "role": "user", "content": "", "timestamp": NOON}
    assert type(to_data(bare)["role"]) is str
    full = Message.assistant(
        "x",
        id="m",
        timestamp=NOON,
        tokens=0,
        attachments=[Attachment("file", "a", "b", "", "", 0, id="t")],
        tool_calls=[ToolCall("f", {"x": (1,)}, "c", "", "failed")],
        parent_id="p",
        metadata={"z": b""},
        raw={},
        raw_format="openai",
    )
    assert form(to_data(full)) == form(
        {
            "id": "m",
            "role": "assistant",
            "content": "x",
            "timestamp": NOON,
            "tokens": 0,
            "attachments": [
                {
                    "id": "t",
                    "attachment_type": "file",
                    "name": "a",
                    "mime_type": "b",
                    "content": "",
                    "url": "",
                    "size": 0,
                }
            ],
            "tool_calls": [{"id": "c", "name": "f", "status": "failed", "arguments": {"x": (1,)}, "result": ""}],
            "parent_id": "p",
            "metadata": {"z": b""},
            "raw": {},
            "raw_format": "openai",
        }
    )
    assert Message.from_data(to_data(full)) == full


@pytest.mark.parametrize("value", [agent(capabilities=["a"]), Conversation("a", tags=["x"])], ids=["agent", "talk"])
def test_all_fields_of_agents_and_conversations_are_stored(value):
    data = to_data(value)
    assert data.keys() == {each.name for each in dataclasses.fields(value)} - {"_saved"}
    assert not [name for name, part in data.items() if isinstance(part, tuple)]
    if isinstance(value, Conversation):
        assert list(data)[-1] == "messages"


def test_data_that_says_less_reads_the_same_each_time():
    for data in ({"id": "m", "role": "user", "content": "x"}, {"id": "m", "role": Role.USER, "content": "x"}):
        assert (
            Message.from_data(data) == Message.from_data(data) == Message.user("x", id="m", timestamp=validation.EPOCH)
        )
    talk = {"id": "c", "agent_id": "a", "messages": [{"id": "m", "role": "user", "content": "x", "timestamp": NOON}]}
    assert Conversation.from_data(talk) == Conversation.from_data(talk)
    assert (Conversation.from_data(talk).created_at, Conversation.from_data(talk).last_message_at) == (
        validation.EPOCH,
        NOON,
    )
    state = AgentState.from_data({"agent_id": "a", "name": "b", "agent_type": "c"})
    assert (state.created_at, state.modified_at) == (validation.EPOCH, validation.EPOCH)


STORED = [
    (Message, {"role": "user", "content": "x"}, "invalid.schema", "id", "needs 'id'"),
    (Message, {"id": "m", "role": "user"}, "invalid.schema", "content", "needs 'content'"),
    (Message, {"id": "m", "role": "user", "content": "x", "mood": 1}, "invalid.schema", "['mood']", "newer backtrail"),
    (Message, {"id": "m", "role": "user", "content": "x", "_NEEDED": 1}, "invalid.schema", "['_NEEDED']", "no field"),
    (Message, {"id": "m", "role": "user", "content": "x", 1: 1}, "invalid.schema", "[1]", "newer backtrail"),
    (Message, ["id"], "invalid.argument", "the data of a Message", "a mapping, not list"),
    (Message, {"id": "m", "role": "x", "content": "x"}, "invalid.argument", "role", "one of"),
    (
        Message,
        {"id": "m", "role": "user", "content": "x", "tool_calls": {}},
        "invalid.argument",
        "tool_calls",
        "a list",
    ),
    (AgentState, {"name": "b", "agent_type": "c"}, "invalid.schema", "agent_id", "needs 'agent_id'"),
    (Conversation, {"agent_id": "a"}, "invalid.schema", "id", "needs 'id'"),
    (ToolCall, {"name": "a"}, "invalid.schema", "id", "needs 'id'"),
    (Attachment, {"name": "a"}, "invalid.schema", "id", "needs 'id'"),
    (
        Conversation,
        {
            "id": "c",
            "agent_id": "a",
            "messages": [{"id": "m", "role": "user", "content": "x", "tool_calls": [{"id": ""}]}],
        },
        "invalid.schema",
        "messages[0].tool_calls[0].name",
        "messages[0]: tool_calls[0]: a ToolCall needs 'name'",
    ),
    (
        Conversation,
        {"id": "c", "agent_id": "a", "messages": [{"id": "m", "role": "user", "content": "x", "mood": 1}]},
        "invalid.schema",
        "messages[0]['mood']",
        "newer backtrail",
    ),
]


@pytest.mark.parametrize(
    ("cls", "data", "code", "path", "says"), STORED, ids=[f"{s[0].__name__}-{s[3]}" for s in STORED]
)
def test_data_that_is_none_is_refused_with_its_path(cls, data, code, path, says):
    with pytest.raises(Invalid, match=re.escape(says)) as caught:
        cls.from_data(data)
    assert (caught.value.code, caught.value.path) == (code, path)


def test_only_these_values_have_data():
    for value in ("hi", {"role": "user"}, None, Role.USER):
        with pytest.raises(Invalid, match="takes an agent, conversation or message") as caught:
            to_data(value)
        assert caught.value.code == "invalid.argument"


# ---- JSON -----------------------------------------------------------------------------------------------------------


def test_json_may_say_little():
    message = Message.from_json({"role": "user", "content": "hi", "id": None, "metadata": None, "timestamp": None})
    assert (message.role, message.content, message.metadata) == (Role.USER, "hi", {})
    assert message.id != Message.from_json({"role": "user", "content": "hi"}).id
    assert abs(message.timestamp - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)
    talk = Conversation.from_json({"agent_id": "a", "messages": [{"role": "user", "content": "hi"}]})
    assert talk.messages[0].content == "hi"


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00", "2026-01-31T14:00:00+02:00"])
def test_times_are_text_in_json(text):
    message = Message.from_json({"role": "user", "content": "", "timestamp": text})
    assert (message.timestamp, message.timestamp.tzinfo) == (NOON, dt.UTC)
    assert to_json(message)["timestamp"] == "2026-01-31T12:00:00+00:00"


@pytest.mark.parametrize("time", ["2026-01-31T12:00:00", "2026-01-31", "soon", 1769860800, NOON], ids=repr)
def test_json_time_without_zone_is_refused(time):
    with pytest.raises(Invalid, match="ISO 8601 with its zone") as caught:
        Conversation.from_json({"agent_id": "a", "messages": [{"role": "user", "content": "", "timestamp": time}]})
    assert (caught.value.code, caught.value.path) == ("invalid.argument", "messages[0].timestamp")


def test_unknown_json_field_is_refused():
    with pytest.raises(Invalid, match="no field 'mood': leave it out") as caught:
        Message.from_json({"role": "user", "content": "", "mood": 1})
    assert (caught.value.code, caught.value.path) == ("invalid.schema", "['mood']")


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        (b"x", ""),
        (math.nan, ""),
        (math.inf, ""),
        (NOON, ""),
        ((1,), ""),
        ({1}, ""),
        (Items(), ""),
        (Role.USER, ""),
        (Record("A", 1, "dataclass", {}), ""),
        ({1: 2}, "[1]"),
        ([0, {"a": b""}], "[1]['a']"),
    ],
    ids=repr,
)
def test_value_without_json_form_is_refused_with_path(value, inside):
    message = Message.user("", tool_calls=[ToolCall("f", {"x": value})])
    for made, path in (
        (agent(custom_state={"x": value}), "custom_state['x']"),
        (Message.user("", raw={"x": value}, raw_format="y"), "raw['x']"),
        (Conversation("a", messages=[message, message]), "messages[0].tool_calls[0].arguments['x']"),
    ):
        with pytest.raises(Invalid, match="JSON has no value") as caught:
            to_json(made)
        assert (caught.value.code, caught.value.path) == ("invalid.value", path + inside)


def test_deeply_nested_json_is_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Invalid, match="nested too deep") as caught:
        to_json(agent(config={"x": deep}))
    assert (caught.value.code, caught.value.path) == ("invalid.value", "config")


# ---- as they are shown ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Message.user("x" * 10**6, id="m"), r"<Message user 'x{60}'\.\.\. \(1,000,000 characters\) m>"),
        (
            Message.assistant("", id="m", tool_calls=[ToolCall("t", {"q": "x" * 10**6})] * 2),
            r"<Message assistant '', 2 tool calls m>",
        ),
        (
            Conversation("a", id="c", title="T", messages=[Message.user("x")] * 1000),
            r"<Conversation 'c' of 'a' 'T', 1000 messages>",
        ),
        (
            Attachment.from_bytes("file", "f.bin", "b", b"x" * 10**6),
            r"<Attachment file 'f\.bin' b 1,000,000 bytes>",
        ),
        (Attachment("file", "f", "text/plain", "x" * 10**6), r"<Attachment file 'f' text/plain>"),
    ],
    ids=["message", "calls", "conversation", "bytes", "text"],
)
def test_repr_shortens_long_text(value, says):
    assert re.fullmatch(says, repr(value))


# ---- Items, and values in plain threads -----------------------------------------------------------------------------


def test_items_equal_tuples_and_lists():
    items = Items(["a", "b"])
    for other in (["a", "b"], ("a", "b"), Items(("a", "b"))):
        assert items == other
        assert other == items
        assert (items != other, other != items) == (False, False)
    for other in (["a"], ("a",), Items(), "ab", {"a", "b"}, None):
        assert items != other
        assert other != items
        assert (items == other, other == items) == (False, False)
    assert hash(items) == hash(("a", "b"))
    assert {items: 1}["a", "b"] == 1
    assert type(pickle.loads(pickle.dumps(items))) is type(copy.deepcopy(items)) is Items


@pytest.mark.parametrize("part", [slice(2), slice(1, None), slice(None, None, -1), slice(9, 10), slice(None)], ids=str)
def test_a_slice_of_items_equals_that_of_the_list(part):
    listed = ["a", "b", "c"]
    cut = Items(listed)[part]
    assert type(cut) is Items
    assert cut == listed[part] == list(cut)
    assert [Items(listed)[at] for at in (0, 2, -1)] == ["a", "c", "c"]


@pytest.mark.parametrize("parts", [(), ("b", "a"), ({"x": [b""]},), tuple(range(20_000)), ("x" * 5000,) * 9], ids=len)
def test_items_are_kept_as_the_tuple_they_are(parts):
    for plain, made in ((parts, Items(parts)), ([{"a": parts}], [{"a": Items(parts)}])):
        assert encode(made).rep == encode(plain).rep
        assert form(decode(encode(made))) == form(plain)


def test_items_are_packed_with_their_surroundings():
    packer = Packer(TYPES)
    assert packer.fast([{"a": Items((2, Items(), 1))}]) == packer.fast([{"a": (2, (), 1)}]) is not None


def test_items_are_keys_and_members_of_sets():
    value = {Items((1, Items())): {Items("ab")}}
    assert form(decode(encode(value))) == form({(1, ()): {("a", "b")}})


def test_bad_value_inside_items_is_refused_with_its_path():
    with pytest.raises(Invalid) as caught:
        encode({"a": Items((1, object()))})
    assert caught.value.path == "state.a[1]"


def told():
    return Message.assistant(
        "a\0\ud800",
        attachments=[Attachment.from_bytes("image", "a.png", "image/png", bytes(100_000))],
        tool_calls=[ToolCall("f", {"x": [1, (2,)]}).completed("3")],
        metadata={"x": {1}},
        raw=[b""],
        raw_format="mine",
    )


def test_message_in_a_plain_thread_comes_back_equal():
    message = told()
    with backtrail.open("memory://", types=[Message]) as store:
        thread = store.thread("t", dict)
        thread.save({"m": message})
        found = thread.load().state["m"]
        assert (found, type(found)) == (message, Message)
        assert type(found.role) is Role
        assert type(found.tool_calls[0].status) is ToolStatus
        assert form(to_data(found)) == form(to_data(message))
        thread.save({"m": message})
        assert not list(thread.diff("@-", "@"))


def test_step_stores_the_final_message():
    message = told()
    with backtrail.open("memory://", types=[Message]) as store:
        thread = store.thread("t", dict)
        thread.save({})
        with thread.step() as state:
            state["m"] = [message]
        message.tool_calls[0].arguments["x"].append("after the step")
        with thread.step() as state:
            state["m"][0].tool_calls[0].arguments["x"].append(7)
        assert thread.load().state["m"][0].tool_calls[0].arguments == {"x": [1, (2,), 7]}


def test_message_of_an_unnamed_class_is_a_readable_record():
    message = told()
    state = agent(custom_state={"x": 1}, capabilities=["a"])
    talk = Conversation("a", messages=[message])
    with backtrail.open("memory://") as store:
        thread = store.thread("t", dict)
        thread.save({"m": message, "s": state, "c": talk})
        found = thread.load().state
    assert type(found["m"]) is Record
    assert found["m"].schema == "backtrail.Message"
    assert type(found["m"]["role"]) is Member
    assert Message.from_data(found["m"]) == message
    assert AgentState.from_data(found["s"]) == state
    assert Conversation.from_data(found["c"]) == talk
