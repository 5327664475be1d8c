"""Messages of OpenAI and Anthropic: taken as they are, given back exactly, or in the other's words if it has them."""

import dataclasses
import functools
import json
import typing
from collections.abc import Iterable, Mapping

import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam, ResponseOutputMessage

import backtrail
from backtrail import Attachment, Invalid, Message, Role, ToolCall
from backtrail.conversations import convert
from tests.support.exact import same

# -- dicts that a provider's types allow ------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


DEEP = 6


@functools.cache
def typed(kind, depth=0):  # noqa: PLR0911 - one line for each kind of type
    """Return a strategy for what a type of a provider's package allows; None if it is no data."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if typing_extensions.is_typeddict(kind):
        return typed_dict(kind, depth)
    if origin in (typing.Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired):
        return typed(args[0], depth)
    if origin is typing.Annotated:
        return typed(args[0], depth)
    if origin in (typing.Literal, typing_extensions.Literal):
        return st.sampled_from(args)
    if origin is typing.Union or type(kind).__name__ == "UnionType":
        found = [each for each in (typed(arg, depth) for arg in args) if each is not None]
        return st.one_of(found) if found else None
    if origin in (list, Iterable, typing.get_origin(typing.Iterable[int]), typing.get_origin(typing.Sequence[int])):
        inner = typed(args[0], depth + 1)
        if inner is None:
            return None
        listed = st.lists(inner, max_size=2 if depth < 3 else 1)
        return listed if origin is list else listed | listed.map(tuple)
    if origin in (dict, Mapping, typing.get_origin(typing.Mapping[str, int])):
        return st.dictionaries(st.text(max_size=4), JSON, max_size=2)
    plain = {str: st.text(max_size=8), int: st.integers(), bool: st.booleans(), object: JSON, type(None): st.none()}
    plain |= {float: st.floats(allow_nan=False), typing.Any: JSON}
    return plain.get(kind)


REQUIRED = (typing.Required, typing_extensions.Required)


def typed_dict(kind, depth):
    if depth > DEEP:
        return None
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    fields = {name: typed(hint, depth + 1) for name, hint in hints.items()}
    needed = {name: fields[name] for name, hint in hints.items() if typing.get_origin(hint) in REQUIRED}
    if None in needed.values():  # it is too deep, or no data
        return None
    more = {name: field for name, field in fields.items() if name not in needed and field is not None}
    return st.fixed_dictionaries(needed, optional=more)


CHAT = st.one_of([typed(each) for each in typing.get_args(ChatCompletionMessageParam)])
ITEMS = st.one_of([typed(each) for each in typing.get_args(ResponseInputItemParam)])
SLOW = settings(suppress_health_check=list(HealthCheck), max_examples=100)


@SLOW
@given(CHAT)
def test_every_chat_message_comes_back_exactly(message):
    made = Message.from_openai(message)
    assert same(made.to_openai(), message)
    assert same(Message.from_data(made._data()).to_openai(), message)
    assert made.raw_format in (convert.CHAT, convert.RESPONSES)
    assert made.role == {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
    if isinstance(message.get("content"), str) and message["content"]:
        assert made.content == message["content"]


@SLOW
@given(ITEMS)
def test_every_responses_item_comes_back_exactly(item):
    if "type" in item and item["type"] is None:
        del item["type"]
    if "role" not in item and "type" not in item:
        return  # a reference by an id alone: nothing in it says what it is
    made = Message.from_openai(item)
    assert same(made.to_openai(), item)
    assert same(Message.from_data(made._data()).to_openai(), item)


@SLOW
@given(CHAT | ITEMS)
def test_append_takes_openai_messages(message):
    if "role" not in message and not isinstance(message.get("type"), str):
        return
    with backtrail.open("memory://") as store:
        store.conversations.append("c", message, agent_id="a")
        (kept,) = store.conversations.load("c").messages
    assert same(kept.to_openai(), message) or (kept.raw is None and kept.to_openai() == message)  # in any order


def blocks():
    """Return a strategy for Anthropic's messages from its package; skip the test if it is not installed."""
    types = pytest.importorskip("anthropic.types", reason="the package anthropic is not installed")
    return st.one_of([typed(each) for each in typing.get_args(types.MessageParam)])


def test_every_anthropic_message_comes_back_exactly():
    @SLOW
    @given(blocks())
    def check(message):
        made = Message.from_anthropic(message)
        assert same(made.to_anthropic(), message)
        with backtrail.open("memory://") as store:
            store.conversations.append("c", message, agent_id="a")
            (kept,) = store.conversations.load("c").messages
        back = kept.to_anthropic()
        assert same(back, message) or (kept.raw is None and back == message)

    check()


# -- ordinary dicts ---------------------------------------------------------------------------------------

CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "ferry"}'}}
ORDINARY = {
    "null content": ({"role": "assistant", "content": None, "tool_calls": [CALL]}, convert.CHAT, "assistant", ""),
    "content parts": (
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        convert.CHAT,
        "user",
        "Look",
    ),
    "tool_call_id": ({"role": "tool", "tool_call_id": "call_1", "content": "42"}, convert.CHAT, "tool", "42"),
    "tool_calls": ({"role": "assistant", "content": "Wait.", "tool_calls": [CALL]}, convert.CHAT, "assistant", "Wait."),
    "developer": ({"role": "developer", "content": "Be brief"}, convert.CHAT, "system", "Be brief"),
    "name": ({"role": "user", "name": "ann", "content": "Hi"}, convert.CHAT, "user", "Hi"),
    "blocks": (
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "ferry"}},
            ],
        },
        convert.ANTHROPIC,
        "assistant",
        "I look.",
    ),
    "tool result": (
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}]},
        convert.ANTHROPIC,
        "tool",
        "42",
    ),
    "image block": (
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]},
        convert.ANTHROPIC,
        "user",
        "",
    ),
    "item": (
        {"type": "function_call", "call_id": "call_1", "name": "search", "arguments": "{}"},
        convert.RESPONSES,
        "assistant",
        "",
    ),
    "output": ({"type": "function_call_output", "call_id": "call_1", "output": "42"}, convert.RESPONSES, "tool", "42"),
    "refusal": ({"role": "assistant", "content": None, "refusal": "No."}, convert.CHAT, "assistant", "No."),
}


@pytest.mark.parametrize(("message", "form", "role", "text"), ORDINARY.values(), ids=ORDINARY)
def test_append_recognises_the_format(message, form, role, text):
    before = json.dumps(message)
    with backtrail.open("memory://") as store:
        first = store.conversations.append("c", message, agent_id="a")
        again = store.conversations.append("c", message)
        assert first.metadata == again.metadata == {"formats": [form]}
        assert store.conversations.thread("c").load().metadata == {"formats": [form]}
        kept = store.conversations.load("c").messages[1]
    assert (kept.raw_format, kept.role, kept.content) == (form, role, text)
    back = kept.to_anthropic() if form == convert.ANTHROPIC else kept.to_openai()
    assert same(back, message)
    assert json.dumps(message) == before


def test_fields_are_read_for_search_titles_and_views():
    asked = Message.from_openai(ORDINARY["tool_calls"][0])
    assert [(call.id, call.name, call.arguments) for call in asked.tool_calls] == [("call_1", "search", {"q": "ferry"})]
    assert Message.from_openai(ORDINARY["tool_call_id"][0]).metadata == {"tool_call_id": "call_1"}
    assert Message.from_openai(ORDINARY["name"][0]).metadata == {"name": "ann"}
    used = Message.from_anthropic(ORDINARY["blocks"][0])
    assert [(call.id, call.name, call.arguments) for call in used.tool_calls] == [("toolu_1", "search", {"q": "ferry"})]
    assert Message.from_anthropic(ORDINARY["tool result"][0]).metadata == {"tool_call_id": "toolu_1"}
    with backtrail.open("memory://") as store:
        store.conversations.append("c", ORDINARY["content parts"][0], agent_id="a")
        store.conversations.append("c", ORDINARY["blocks"][0])
        assert store.conversations.info("c").title == "Look"
        assert [hit.role for hit in store.search("look")] == ["assistant", "user"]


def test_plain_dicts_become_plain_messages():
    with backtrail.open("memory://") as store:
        made = store.conversations.append("c", {"role": "user", "content": "hi", "tokens": 3}, agent_id="a")
        own = Message.assistant("x", tool_calls=[ToolCall("t", {"a": 1})]).to_json()
        store.conversations.append("c", own)
        first, second = store.conversations.load("c").messages
    assert (first.raw, first.tokens, made.metadata) == (None, 3, {"formats": ["backtrail"]})
    assert second.to_json() == own
    assert Message.user("hi").to_openai() == Message.user("hi").to_anthropic() == {"role": "user", "content": "hi"}


def test_mixed_formats_are_all_named():
    with backtrail.open("memory://") as store:
        made = store.conversations.append(
            "c", *(ORDINARY[name][0] for name in ("blocks", "name", "item")), Message.user("x"), agent_id="a"
        )
    assert made.metadata == {"formats": ["anthropic", "openai.chat", "openai.responses"]}


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({}, "it has no keys"),
        ({"text": "hi"}, "it has the keys 'text'"),
        ({"type": "text", "text": "hi"}, "it has the keys 'type', 'text'"),
        ({"role": "boss", "content": "hi"}, "role must be one of system, user, assistant, tool, not 'boss'"),
        ({"role": "user", "contents": "hi"}, "a Message has no field 'contents'"),
        ({"role": "user", "content": 7}, "content must be a string, not 7"),
        ({"role": "user"}, "needs 'content'"),
    ],
)
def test_unknown_dict_is_refused(bad, told):
    with backtrail.open("memory://") as store:
        with pytest.raises(Invalid) as error:
            store.conversations.append("c", {"role": "user", "content": "fine"}, bad, agent_id="a")
        assert "c" not in [info.id for info in store.threads(kind="conversation")]
    assert told in str(error.value)
    for name in ("OpenAI chat", "Responses", "Anthropic", "Message as JSON"):
        assert name in str(error.value)


def test_message_of_the_other_provider_is_refused():
    with pytest.raises(Invalid, match=r"a message of Anthropic; use Message.from_anthropic"):
        Message.from_openai(ORDINARY["blocks"][0])
    for name in ("tool_calls", "item", "developer"):
        with pytest.raises(Invalid, match=r"a message of OpenAI; use Message.from_openai"):
            Message.from_anthropic(ORDINARY[name][0])
    for make in (Message.from_openai, Message.from_anthropic):
        for bad in ({}, {"role": "user"}, {"role": "boss", "content": "x"}, [], None, "hi", 7):
            with pytest.raises(Invalid):
                make(bad)


@pytest.mark.parametrize("bad", [object(), b"x", {1, 2}, iter(()), {1: 2}])
def test_unsupported_value_in_a_message_is_refused(bad):
    with pytest.raises(Invalid) as error:
        Message.from_openai({"role": "user", "content": [{"type": "text", "text": "x", "more": bad}]})
    assert error.value.path == "message['content'][0]['more']"


# -- objects of clients -----------------------------------------------------------------------------------


def completion():
    message = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [CALL]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message, "logprobs": None}
    data = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return ChatCompletion.model_validate(data)


def test_objects_of_openais_client_are_taken():
    message = completion().choices[0].message
    with backtrail.open("memory://") as store:
        store.conversations.append("c", message, agent_id="a")
        (kept,) = store.conversations.load("c").messages
    assert kept.to_openai() == message.to_dict()
    assert [call.name for call in kept.tool_calls] == ["search"]
    assert Message.from_openai(message).to_openai() == message.to_dict()
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": "Hello", "annotations": []}]
    output = ResponseOutputMessage.model_validate(item)
    assert Message.from_openai(output).to_openai() == item
    assert (Message.from_openai(output).raw_format, Message.from_openai(output).content) == (convert.RESPONSES, "Hello")
    with backtrail.open("memory://") as store:
        plain = ChatCompletionMessage(role="assistant", content="hi")
        made = store.conversations.append("c", plain, agent_id="a")
        assert made.metadata == {"formats": ["openai.chat"]}


def test_objects_of_anthropics_client_are_taken():
    types = pytest.importorskip("anthropic.types", reason="the package anthropic is not installed")
    content = ORDINARY["blocks"][0]["content"]
    reply = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content}
    reply |= {"stop_reason": "tool_use", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 2}}
    message = types.Message.model_validate(reply)
    with backtrail.open("memory://") as store:
        store.conversations.append("c", message, {"role": "assistant", "content": message.content}, agent_id="a")
        whole, usual = store.conversations.load("c").messages
    assert whole.to_anthropic() == message.to_dict()
    assert usual.to_anthropic() == {"role": "assistant", "content": content}
    assert (
        (whole.content, whole.tool_calls[0].name) == (usual.content, usual.tool_calls[0].name) == ("I look.", "search")
    )


# -- in the words of another ------------------------------------------------------------------------------

USE = {"type": "tool_use", "id": "call_1", "name": "search", "input": {"q": "ferry"}}
PICTURE = "data:image/png;base64,iVBORw=="
PAIRS = [
    ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
    ({"role": "assistant", "content": "hi"}, {"role": "assistant", "content": "hi"}),
    ({"role": "system", "content": "hi"}, {"role": "system", "content": "hi"}),
    (
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ),
    ({"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "assistant", "content": [USE]}),
    (
        {"role": "assistant", "content": "Wait.", "tool_calls": [CALL]},
        {"role": "assistant", "content": [{"type": "text", "text": "Wait."}, USE]},
    ),
    (
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "42"}]},
    ),
    (
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            ],
        },
    ),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]},
        {
            "role": "user",
            "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}],
        },
    ),
]


@pytest.mark.parametrize(("openai", "anthropic"), PAIRS)
def test_common_messages_convert_both_ways(openai, anthropic):
    assert Message.from_openai(openai).to_anthropic() == anthropic
    assert Message.from_anthropic(anthropic).to_openai() == openai


def test_response_items_convert_to_anthropic():
    assert Message.from_openai(
        {"type": "function_call", "call_id": "call_1", "name": "search", "arguments": '{"q": "ferry"}'}
    ).to_anthropic() == {"role": "assistant", "content": [USE]}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
    assert Message.from_openai(output).to_anthropic() == PAIRS[6][1]
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
    assert Message.from_openai(said).to_anthropic() == PAIRS[3][1]


def test_conversion_drops_usage_and_cache_hints():
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "citations": None}
    reply = {
        "role": "assistant",
        "content": [text],
        "id": "msg",
        "model": "m",
        "stop_reason": "end_turn",
        "usage": {"x": 1},
    }
    assert Message.from_anthropic(reply).to_openai() == {
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}],
    }


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]}, "content[0]"),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "u"}}]}, "content[0]"),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": n, "content": "x"} for n in "ab"]},
            "content",
        ),
        ({"role": "assistant", "content": [USE, {"type": "text", "text": "after"}]}, "content"),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}],
            },
            "content[0]['is_error']",
        ),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "x", "citations": [{"a": 1}]}]},
            "content[0]['citations']",
        ),
    ],
)
def test_anthropic_parts_without_counterpart_are_refused(message, path):
    with pytest.raises(Invalid) as error:
        Message.from_anthropic(message).to_openai()
    assert error.value.path == path


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}]},
            "content[0]",
        ),
        ({"role": "user", "content": "x", "name": "ann"}, "name"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "audio"),
        ({"role": "assistant", "content": None, "refusal": "No."}, "refusal"),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "no json"}}]},
            "tool_calls[0]",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
            "tool_calls",
        ),
        ({"type": "reasoning", "id": "r", "summary": []}, "type"),
        ({"role": "function", "name": "f", "content": "x"}, "metadata['tool_call_id']"),
    ],
)
def test_openai_parts_without_counterpart_are_refused(message, path):
    with pytest.raises(Invalid) as error:
        Message.from_openai(message).to_anthropic()
    assert error.value.path == path


def test_plain_messages_convert_to_both():
    call = ToolCall("search", {"q": "ferry"}, id="call_1")
    for own, openai, anthropic in (
        (Message.assistant("Wait.", tool_calls=[call]), PAIRS[5][0], PAIRS[5][1]),
        (Message.assistant("", tool_calls=[call]), PAIRS[4][0], PAIRS[4][1]),
        (Message.tool_result("call_1", "42"), PAIRS[6][0], PAIRS[6][1]),
        (Message.user("", attachments=[Attachment("image", "n", "image/png", "iVBORw==")]), PAIRS[8][0], PAIRS[8][1]),
    ):
        assert own.to_openai() == openai
        assert own.to_anthropic() == anthropic
    for bad in (
        Message(Role.TOOL, "42"),
        Message.assistant("", tool_calls=[call.completed("42")]),
        Message.user("x", attachments=[Attachment("audio", "n", "audio/wav", "x")]),
    ):
        for to in (bad.to_openai, bad.to_anthropic):
            with pytest.raises(Invalid):
                to()


def test_changed_message_is_not_returned_as_original():
    came = Message.from_openai({"role": "user", "content": "my password is hunter2", "name": "ann"})
    changed = dataclasses.replace(came, content="[removed]")
    for to in (changed.to_openai, changed.to_anthropic):
        with pytest.raises(Invalid, match="raw=None, raw_format=None"):
            to()
    own = dataclasses.replace(changed, raw=None, raw_format=None)
    assert own.to_openai() == {"role": "user", "name": "ann", "content": "[removed]"}
    noted = dataclasses.replace(came, tokens=3, metadata={**came.metadata, "mine": 1})
    assert noted.to_openai() == came.raw


def test_returned_message_is_a_copy():
    given = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    message = Message.from_openai(given)
    given["content"][0]["text"] = "y"
    message.to_openai()["content"].clear()
    assert message.to_openai() == {"role": "user", "content": [{"type": "text", "text": "x"}]}


def test_edited_branch_is_a_plain_message():
    with backtrail.open("memory://") as store:
        store.conversations.append("c", ORDINARY["name"][0], agent_id="a")
        message = store.conversations.load("c").messages[0]
        branch = store.conversations.edit("c", message.id, "Bye")
    assert branch.messages[0].to_openai() == {"role": "user", "name": "ann", "content": "Bye"}


# -- found by review --------------------------------------------------------------------------------------------------


def test_keys_with_aliases_keep_their_names():
    from openai.types.responses import ResponseFunctionToolCall

    said = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "async": True}
    assert Message.from_openai(ResponseFunctionToolCall.model_validate(said)).to_openai() == said


@pytest.mark.parametrize("kind", ["mcp_tool_use", "compaction", "not_known_yet"])
def test_unknown_anthropic_blocks_are_kept(kind):
    said = {"role": "assistant", "content": [{"type": kind, "id": "s", "input": {}}]}
    assert Message.from_anthropic(said).to_anthropic() == said
    with backtrail.open("memory://") as store:
        made = store.conversations.append("c", said, agent_id="a")
        assert made.state["messages"][0]["raw_format"] == "anthropic"
        assert store.conversations.load("c").messages[0].to_anthropic() == said


def test_unknown_openai_parts_are_kept():
    said = {"role": "user", "content": [{"type": "not_known_yet", "x": 1}]}
    assert Message.from_openai(said).to_openai() == said


def test_metadata_of_the_caller_does_not_change_the_message():
    said = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    message = Message.from_openai(said, metadata={"name": "mine", "tool_call_id": "mine"})
    assert message.to_openai() == said
    assert message.metadata == {"name": "mine", "tool_call_id": "mine"}


@pytest.mark.parametrize("arguments", ['{"a": 1e999}', '{"a": ' + "[" * 100 + "]" * 100 + "}"])
def test_unparsable_arguments_stay_text(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    with backtrail.open("memory://") as store:
        store.conversations.append("c", said, agent_id="a")
        found = store.conversations.load("c").messages[0]
    assert found.to_openai() == said
    assert found.tool_calls[0].arguments == {"arguments": arguments}
    found.to_json()


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "cache_control"])
def test_keys_of_compatible_services_are_kept(key):
    said = {"role": "assistant", "content": "hi", key: "x"}
    with backtrail.open("memory://") as store:
        store.conversations.append("c", said, agent_id="a")
        assert store.conversations.load("c").messages[0].to_openai() == said
