"""/v1/conversations, judged by the openai client and the Agents SDK's own session, unchanged."""

import asyncio

import openai
import pytest
from agents.memory import OpenAIConversationsSession
from openai import AsyncOpenAI, OpenAI

import backtrail
from backtrail import Conversation, Message, ToolCall
from tests.support.web import TOKEN, client, serving


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("openai") / "store.db"


@pytest.fixture(scope="module")
def link(place):
    backtrail.open(place).close()
    with serving(place, "--write") as (url, _):
        yield f"{url}v1"


@pytest.fixture
def api(link):
    with OpenAI(base_url=link, api_key=TOKEN, max_retries=0) as made:
        yield made


def message(text, role="user"):
    return {"type": "message", "role": role, "content": text}


def test_conversation_is_created_read_updated_and_deleted(api, place):
    made = api.conversations.create(metadata={"topic": "trip"}, items=[message("hello")])
    assert (made.object, made.metadata, made.id[:5]) == ("conversation", {"topic": "trip"}, "conv_")
    assert api.conversations.retrieve(made.id) == made
    changed = api.conversations.update(made.id, metadata={"topic": "train"})
    assert changed.metadata == {"topic": "train"}
    with backtrail.open(place) as store:
        stored = store.conversations.load(made.id)
        assert (stored.agent_id, stored.metadata, stored.messages[0].content) == (
            "openai-agents",
            {"topic": "train"},
            "hello",
        )
    assert api.conversations.delete(made.id).deleted is True
    with pytest.raises(openai.NotFoundError):
        api.conversations.retrieve(made.id)


def test_items_come_in_pages_both_ways(api):
    name = api.conversations.create().id
    for start in (0, 20, 40):
        added = api.conversations.items.create(
            name, items=[message(f"m{at}") for at in range(start, min(start + 20, 45))]
        )
        assert (added.data[0].content[0].text, added.has_more) == (f"m{start}", False)
    for order, wanted in (("asc", range(45)), ("desc", range(44, -1, -1))):
        for limit in (7, 20, 100):
            shown = list(api.conversations.items.list(name, order=order, limit=limit))
            assert [each.content[0].text for each in shown] == [f"m{at}" for at in wanted]
            assert len({each.id for each in shown}) == 45
    page = api.conversations.items.list(name, limit=10)
    assert (page.has_more, page.data[0].content[0].text, page.last_id) == (True, "m44", page.data[-1].id)


def test_item_is_read_and_deleted(api):
    made = api.conversations.create(items=[message("a"), message("b", "assistant")])
    first, second = api.conversations.items.list(made.id, order="asc").data
    assert (first.role, first.content[0].type) == ("user", "input_text")
    assert (second.role, second.content[0].type, second.status) == ("assistant", "output_text", "completed")
    assert api.conversations.items.retrieve(second.id, conversation_id=made.id) == second
    assert api.conversations.items.delete(first.id, conversation_id=made.id).id == made.id
    assert [each.id for each in api.conversations.items.list(made.id)] == [second.id]
    with pytest.raises(openai.NotFoundError):
        api.conversations.items.retrieve(first.id, conversation_id=made.id)


def test_calls_and_their_outputs_come_back(api):
    call = {"type": "function_call", "call_id": "c1", "name": "book", "arguments": '{"seat": 4}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "booked"}
    made = api.conversations.create(items=[call, output])
    shown = [each.model_dump(exclude_unset=True) for each in api.conversations.items.list(made.id, order="asc")]
    assert [{key: each[key] for key in given} for each, given in zip(shown, [call, output], strict=True)] == [
        call,
        output,
    ]


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda api: api.conversations.retrieve("conv_none"), openai.NotFoundError),
        (lambda api: api.conversations.delete("conv_none"), openai.NotFoundError),
        (lambda api: api.conversations.items.list("conv_none"), openai.NotFoundError),
        (lambda api: api.conversations.items.create("conv_none", items=[message("x")]), openai.NotFoundError),
        (lambda api: api.conversations.create(metadata={"k" * 65: "v"}), openai.BadRequestError),
        (lambda api: api.conversations.create(metadata={"k": "v" * 513}), openai.BadRequestError),
        (lambda api: api.conversations.create(metadata={f"k{n}": "v" for n in range(17)}), openai.BadRequestError),
        (lambda api: api.conversations.create(items=[message("x")] * 21), openai.BadRequestError),
        (lambda api: api.conversations.create(items=[{"type": 7}]), openai.BadRequestError),
        (
            lambda api: api.conversations.create(items=[{**message("x"), "id": "a"}, {**message("y"), "id": "a"}]),
            openai.BadRequestError,
        ),
        (lambda api: api.conversations.items.list(api.conversations.create().id, limit=101), openai.BadRequestError),
        (lambda api: api.conversations.items.list(api.conversations.create().id, after="x"), openai.NotFoundError),
        (lambda api: api.with_options(api_key="wrong-token").conversations.create(), openai.AuthenticationError),
    ],
)
def test_errors_are_those_of_openai(api, work, error):
    with pytest.raises(error) as caught:
        work(api)
    assert caught.value.body["message"]
    assert caught.value.body["code"]


def test_session_of_the_agents_sdk_works_unchanged(link):
    async def story():
        async with AsyncOpenAI(base_url=link, api_key=TOKEN) as api:
            session = OpenAIConversationsSession(openai_client=api)
            await session.add_items([message(f"m{at}") for at in range(45)])
            items = await session.get_items()
            assert [each["content"][0]["text"] for each in items] == [f"m{at}" for at in range(45)]
            assert [each["content"][0]["text"] for each in await session.get_items(limit=3)] == ["m42", "m43", "m44"]
            popped = await session.pop_item()
            assert popped["content"][0]["text"] == "m44"
            assert len(await session.get_items()) == 44
            await session.add_items([popped])  # with its id
            assert (await session.get_items())[-1] == popped
            name = session.session_id
            await session.clear_session()
            assert await session.get_items() == []
            assert session.session_id != name

    asyncio.run(story())


def test_messages_from_elsewhere_become_items():
    with backtrail.open("memory://") as store:
        call = ToolCall("book", {"seat": 4}, id="c1", result="booked")
        store.conversations.save(
            Conversation("a", id="c", messages=[Message.user("hi"), Message.assistant("yes", tool_calls=[call])])
        )
        api = client(store)
        data = api.get("/v1/conversations/c/items?order=asc").json()["data"]
        assert [each["type"] for each in data] == ["message", "message", "function_call", "function_call_output"]
        assert len({each["id"] for each in data}) == 4
        assert api.get("/v1/conversations/c/items?limit=2").json()["has_more"] is True
        assert api.delete(f"/v1/conversations/c/items/{data[1]['id']}").status_code == 400
        assert api.delete(f"/v1/conversations/c/items/{data[0]['id']}").status_code == 200


def test_scope_owns_new_conversations_and_hides_others():
    with backtrail.open("memory://") as store:
        store.conversations.append("other", Message.user("secret"), agent_id="b")
        api = client(store, scope="a")
        made = api.post("/v1/conversations", json={"items": [message("x")]}).json()
        assert store.conversations.info(made["id"]).agent_id == "a"
        assert api.get("/v1/conversations/other").status_code == 404
        assert api.get("/v1/conversations/other/items").status_code == 404
        assert api.delete("/v1/conversations/other").status_code == 404
        assert store.conversations.info("other").message_count == 1


def test_read_only_server_refuses_changes():
    with backtrail.open("memory://") as store:
        api = client(store, write=False)
        assert api.post("/v1/conversations", json={}).status_code == 403
