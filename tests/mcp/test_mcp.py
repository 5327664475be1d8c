"""The MCP server, with the SDK's own client: in process, over standard input and output, and over HTTP."""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import PromptReference, ResourceTemplateReference

import backtrail
from backtrail import AgentState, Message
from backtrail.mcp import TOOLS, server
from backtrail.operations import TABLE, Effect
from backtrail.server import app as web_app
from tests.support.lengths import lengths

HOSTILE = [
    "../x",
    "<script>alert(1)</script>",
    "a\0b",
    "\x1b]52;c;eA==\x07",
    "\ud800",
    "'; DROP TABLE row --",
    "🙂" * 60,
]


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        for agent in ("planner", "other"):
            store.agents.save(AgentState(agent, name=agent.title(), agent_type="model"))
            store.conversations.append(f"{agent}-chat", Message.user(f"hello from {agent}"), agent_id=agent)
        trip = store.thread("trip", agent="planner")
        trip.save({"city": "Lisbon", "messages": []}, label="draft")
        trip.append("messages", {"role": "user", "content": "book it"}, tags=["booked"])
        yield store


def run(main):
    return asyncio.run(main())


def with_client(made, use, **options):
    async def main():
        async with Client(made, **options) as client:
            return await use(client)

    return run(main)


def call(made, name, **arguments):
    """Call a tool; return the answer, or the error's code."""

    async def use(client):
        result = await client.call_tool(name, arguments)
        (content,) = result.content
        data = json.loads(content.text)
        if result.is_error:
            return data["error"]["code"]
        assert result.structured_content == data
        return data

    return with_client(made, use)


# -- tools --------------------------------------------------------------------------------------------


def test_erase_is_a_destructive_tool_in_its_scope(store):
    made = server(store, scope="planner", destructive=True)
    assert call(made, "erase", ids=["other-chat"], kind="conversation") == "not_found.conversation"
    answer = call(made, "erase", ids=["planner-chat"], kind="conversation")
    assert (answer["complete"], [each["id"] for each in answer["threads"]]) == (True, ["planner-chat"])
    assert store.conversations.get("planner-chat") is None
    assert store.conversations.get("other-chat") is not None


def test_tools_are_rows_of_the_table(store):
    async def use(client):
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    tools = with_client(server(store, destructive=True), use)
    assert tuple(tools) == TOOLS
    for name, tool in tools.items():
        row = TABLE[name]
        assert (tool.description, tool.input_schema) == (row.description, row.schema)
        assert tool.output_schema == {"type": "object", **row.result}
        assert tool.annotations.read_only_hint == (row.effect is Effect.READ)
        assert tool.annotations.destructive_hint == (row.effect is Effect.DESTROY)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, {Effect.DESTROY}),
        ({"destructive": True}, set()),
        ({"read_only": True}, {Effect.WRITE, Effect.DESTROY}),
        ({"read_only": True, "destructive": True}, {Effect.WRITE, Effect.DESTROY}),
    ],
)
def test_tools_that_are_off_are_neither_listed_nor_called(store, options, missing):
    made = server(store, **options)

    async def use(client):
        return [tool.name for tool in (await client.list_tools()).tools]

    assert set(with_client(made, use)) == {name for name in TOOLS if TABLE[name].effect not in missing}
    before = store.stats()
    for name in TOOLS:
        if TABLE[name].effect in missing:
            assert call(made, name, agent_id="planner", thread_id="trip", checkpoint_id="x") == "invalid.tool"
    assert store.stats() == before


def test_a_model_saves_rewinds_and_undoes(store):
    made = server(store)
    assert call(made, "thread_rewind", thread_id="trip", ref="draft")
    assert store.thread("trip").latest().state["messages"] == []
    assert call(made, "thread_undo", thread_id="trip")
    assert call(made, "thread_state", thread_id="trip", path="messages[0].content")["value"] == "book it"
    assert call(made, "search", query="hello")["hits"]


def test_a_result_that_utf_8_cannot_hold_is_sent(store):
    store.thread("odd").save({"text": "\ud800"})
    assert call(server(store), "thread_state", thread_id="odd")["value"] == {"text": "?"}


def test_arguments_and_calls_are_limited(store):
    made = server(store, max_bytes=200, max_calls=3)
    assert call(made, "agent_load", agent_id="x" * 300) == "invalid.size"
    assert [call(made, "persistence_stats") == "invalid.rate" for _ in range(4)] == [False, False, False, True]


def test_a_removed_store_names_no_place(tmp_path):
    with backtrail.open(tmp_path / "agents.db") as store:
        store.thread("trip").save({})
        made = server(store)
        for each in tmp_path.iterdir():
            each.unlink()

        async def use(client):
            return (await client.call_tool("thread_state", {"thread_id": "trip"})).content[0].text

        text = with_client(made, use)
    assert json.loads(text)["error"]["code"] == "not_found.store"
    assert str(tmp_path) not in text


def test_an_unknown_tool_is_named_with_the_tools(store):
    assert call(server(store), "agent_lod", agent_id="planner") == "invalid.tool"


def test_a_program_adds_a_tool_of_its_own(store):
    made = server(store)

    @made.tool()
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    async def use(client):
        assert "double" in {tool.name for tool in (await client.list_tools()).tools}
        return (await client.call_tool("double", {"number": 4})).structured_content

    assert with_client(made, use) == {"result": 8}


def test_a_scope_hides_all_other_agents(store):
    made = server(store, scope="planner")
    assert [each["agent_id"] for each in call(made, "agent_list")["agents"]] == ["planner"]
    assert call(made, "agent_load", agent_id="other") == "not_found.agent"
    assert call(made, "conversation_load", conversation_id="other-chat").startswith("not_found")
    assert call(made, "conversation_save", agent_id="other", messages=[]) == "unavailable.scope"
    assert {hit["thread_id"] for hit in call(made, "search", query="hello")["hits"]} == {"planner-chat"}
    assert call(made, "persistence_stats")["agents"] == 1

    async def use(client):
        return [resource.uri for resource in (await client.list_resources()).resources]

    assert not [uri for uri in with_client(made, use) if "other" in uri]


WORDS = st.sampled_from([*(word for word in HOSTILE if word != "\ud800"), "planner", "trip", "@", "x" * 513, ""])


def from_schema(schema):
    """Values that a schema of an argument describes, with the words above as texts."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "array":
        return st.lists(from_schema(schema["items"]), max_size=3)
    if schema.get("type") == "object":
        known = {name: from_schema(part) for name, part in schema.get("properties", {}).items()}
        required = {name: known.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=known)
    numbers = st.integers(schema.get("minimum"), schema.get("maximum"))
    return {"string": WORDS, "integer": numbers, "boolean": st.booleans()}.get(schema.get("type"), WORDS | st.none())


def wrong_arguments():
    """Arguments as the schemas describe them, and arguments that are wrong, hostile or huge."""
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
        lambda part: st.lists(part, max_size=3) | st.dictionaries(WORDS, part, max_size=3),
        max_leaves=6,
    )
    return st.sampled_from(TOOLS).flatmap(
        lambda name: st.tuples(
            st.just(name),
            from_schema(TABLE[name].schema)
            | st.dictionaries(st.sampled_from([*TABLE[name].schema["properties"], "odd"]), values, max_size=4),
        )
    )


@settings(suppress_health_check=list(HealthCheck))
@given(calls=st.lists(wrong_arguments(), min_size=5, max_size=5))
def test_wrong_and_hostile_arguments_get_errors_that_help(calls):
    async def use(client):
        for name, arguments in calls:
            before = store.stats()
            result = await client.call_tool(name, arguments)
            text = result.content[0].text
            assert "Traceback" not in text
            if result.is_error:
                error = json.loads(text)["error"]
                assert error["code"].split(".")[0] in ("invalid", "not_found", "conflict", "unavailable")
                assert 10 < len(error["message"]) <= 1000
                assert store.stats() == before

    with backtrail.open("memory://") as store:
        store.thread("trip", agent="planner").save({"city": "Lisbon"})
        with_client(server(store, destructive=True), use)


NOT_TEXT = [7, -1, 1.5, True, None, [], ["x"], {}, {"x": [1]}]
NOT_NUMBER = ["", "7", -1, 10**30, 1e308, True, None, [7], {}]
NOT_LIST = ["x", 7, True, {"x": 1}, [None], [7, "x"], [[[]]], [{"role": 7}], ["x" * 600]]
NOT_OBJECT = ["x", 7, True, ["x"], [{}]]
HUGE = "x" * 1_100_000
"""More than a call may have."""


def bad_values(schema):
    """Values for an argument that its schema does not describe, or that are hostile or huge."""
    kinds = {"string": NOT_TEXT, "integer": NOT_NUMBER, "array": NOT_LIST, "object": NOT_OBJECT, "boolean": ["x", 7]}
    deep = []
    for _ in range(200):
        deep = [deep]
    return [*kinds.get(schema.get("type"), ()), *HOSTILE[:4], "other", "other-chat", "other-trip", HUGE, deep]


def good_arguments(name, point):
    """Arguments that the tool accepts; of the things that the scope has."""
    known = {"agent_id": "planner", "thread_id": "trip", "conversation_id": "planner-chat", "run_id": "planner-run"}
    known |= {"checkpoint_id": point, "query": "hello", "ref": "@", "new_id": "new", "call_id": "1.1", "name": "n"}
    schema = TABLE[name].schema
    return {each: known.get(each, []) for each in schema["required"]}


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_refuses_bad_arguments_without_a_trace(name):
    secret = "the secret of the other agent"

    def contents(**options):
        kinds = ("thread", "agent", "conversation", "run")
        infos = [info for kind in kinds for info in store.threads(kind=kind, **options)]
        return sorted((info.kind, info.id, info.head_id, info.checkpoints) for info in infos)

    async def use(client):
        schema = TABLE[name].schema
        good = good_arguments(name, point.id)
        calls = [{**good, each: value} for each, part in schema["properties"].items() for value in bad_values(part)]
        calls += [{**good, "odd": 1}, {**good, "../x": HOSTILE[1]}, *({**good, each: None} for each in good)]
        calls += [{key: value for key, value in good.items() if key != each} for each in good]
        refused = 0
        for arguments in calls:
            before = contents()
            result = await client.call_tool(name, arguments)
            text = result.content[0].text
            assert secret not in text
            for trace in ("Traceback", 'File "', "site-packages", str(Path(backtrail.__file__).parent)):
                assert trace not in text
            if result.is_error:
                refused += 1
                error = json.loads(text)["error"]
                assert error["code"].split(".")[0] in ("invalid", "not_found", "conflict", "unavailable")
                assert 10 < len(error["message"]) <= 1000
                assert contents() == before
            assert contents(agent="other") == theirs
        assert refused >= 2 * len(schema["properties"]) + 2

    with backtrail.open("memory://") as store:
        for agent in ("planner", "other"):
            store.agents.save(AgentState(agent, name=agent.title(), agent_type="model"))
            text = "hello" if agent == "planner" else f"hello {secret}"
            store.conversations.append(f"{agent}-chat", Message.user(text), agent_id=agent)
            trip = store.thread("trip" if agent == "planner" else "other-trip", agent=agent)
            trip.save({"text": text})
            trip.save({"text": text, "n": 2})
            with store.run(f"{agent}-run", agent=agent, messages=[Message.user(text)]) as work:
                for _ in work.iterations():
                    work.halt("waits")
            point = store.agents.checkpoint(agent, text)
        (point,) = store.agents.checkpoints("planner")
        theirs = contents(agent="other")
        assert len(theirs) >= 3
        with_client(server(store, scope="planner", destructive=True), use)


# -- resources, completion, the prompt ------------------------------------------------------------------


def read(made, uri):
    async def use(client):
        (content,) = (await client.read_resource(uri)).contents
        assert content.mime_type == "application/json"
        return json.loads(content.text)

    return with_client(made, use)


def test_resources_are_listed_and_read(store):
    made = server(store)

    async def use(client):
        return {resource.uri for resource in (await client.list_resources()).resources}

    uris = with_client(made, use)
    assert uris >= {"backtrail://threads/trip/state", "backtrail://conversations/planner-chat"}
    for uri in uris:
        assert read(made, uri)
    assert read(made, "backtrail://threads/trip/state@draft")["value"]["messages"] == []


@pytest.mark.parametrize("name", [*HOSTILE, ".", "..", "~.", "%2E"])
def test_a_resource_of_any_id_is_read(store, name):
    store.thread(name, agent="planner").save({"mine": True})
    made = server(store)

    async def use(client):
        return [resource.uri for resource in (await client.list_resources()).resources]

    (uri,) = [uri for uri in with_client(made, use) if "threads" in uri and "trip" not in uri]
    assert uri.isascii()
    assert read(made, uri)["value"] == {"mine": True}


@pytest.mark.parametrize(
    "uri",
    ["backtrail://threads/none/state", "backtrail://odd/trip", "file:///etc/passwd", "x", "backtrail://runs/%ff"],
)
def test_a_missing_resource_is_an_error(store, uri):
    async def use(client):
        with pytest.raises(MCPError, match=r"there is no|is not a resource"):
            await client.read_resource(uri)

    with_client(server(store), use)


def test_ids_and_refs_are_completed(store):
    template = ResourceTemplateReference(uri="backtrail://threads/{thread_id}/state@{ref}")

    async def use(client):
        def complete(ref, name, value, **known):
            return client.complete(ref, {"name": name, "value": value}, context_arguments=known or None)

        asked = [
            await complete(template, "thread_id", "tr"),
            await complete(template, "thread_id", "zz"),
            await complete(template, "ref", "", thread_id="trip"),
            await complete(template, "ref", "d", thread_id="trip"),
            await complete(PromptReference(name="handoff"), "agent_id", "pl"),
        ]
        return [answer.completion.values for answer in asked]

    assert with_client(server(store), use) == [["trip"], [], ["@", "@-", "booked", "draft"], ["draft"], ["planner"]]


def test_handoff_sums_up_an_agent(store):
    async def use(client):
        (message,) = (await client.get_prompt("handoff", {"agent_id": "planner"})).messages
        with pytest.raises(MCPError):
            await client.get_prompt("handoff", {"agent_id": "nobody"})
        with pytest.raises(MCPError):
            await client.get_prompt("handoff", {})
        return message.content.text

    text = with_client(server(store), use)
    assert "hello from planner" in text
    assert "hello from other" not in text


# -- subscriptions --------------------------------------------------------------------------------------


def test_a_listener_gets_the_changes_of_its_resource(store):
    async def use(client):
        uri = "backtrail://threads/trip/state"
        async with client.listen(resource_subscriptions=[uri]) as events:
            await asyncio.to_thread(store.thread("elsewhere").save, {"x": 1})
            await asyncio.to_thread(store.thread("trip").append, "messages", {"role": "user", "content": "more"})
            with anyio.fail_after(10):
                event = await anext(aiter(events))
        return event.uri

    assert with_client(server(store), use) == "backtrail://threads/trip/state"


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
def test_a_subscriber_of_an_older_protocol_is_notified(store):
    uri = "backtrail://conversations/planner-chat"
    updated = []

    async def main():
        news = asyncio.Event()

        async def note(message):
            if "updated" in str(getattr(message, "method", "")):
                updated.append(message.params.uri)
                news.set()

        async with Client(server(store), mode="legacy", message_handler=note) as client:
            assert client.server_capabilities.resources.subscribe
            await client.subscribe_resource(uri)
            await asyncio.to_thread(store.conversations.append, "planner-chat", Message.user("again"))
            await asyncio.wait_for(news.wait(), 10)
            await client.unsubscribe_resource(uri)
            await asyncio.to_thread(store.conversations.append, "planner-chat", Message.user("unseen"))
            await client.send_ping()

    run(main)
    assert updated == [uri]


# -- processes ------------------------------------------------------------------------------------------


def command(*words):
    return StdioServerParameters(command=sys.executable, args=["-m", "backtrail", "mcp", *map(str, words)])


def test_stdio_serves_a_store(tmp_path):
    path = tmp_path / "agents.db"
    assert call(command(path), "conversation_save", agent_id="a", conversation_id="c", messages=[])
    with backtrail.open(path) as store:
        assert store.conversations.load("c").agent_id == "a"
    assert call(command(path, "--read-only"), "conversation_save", agent_id="a", messages=[]) == "invalid.tool"
    assert call(command(path, "--agent", "b"), "conversation_load", conversation_id="c").startswith("not_found")


@pytest.mark.parametrize("each", lengths(12, 125))
def test_two_processes_lose_no_write(tmp_path, each):
    path = tmp_path / "agents.db"
    backtrail.open(path).close()

    async def write(client, who):
        for at in range(each):
            message = {"role": "user", "content": f"{who} {at}"}
            arguments = {"agent_id": "a", "conversation_id": "shared", "messages": [message]}
            result = await client.call_tool("conversation_save", arguments)
            assert not result.is_error, result.content

    async def main():
        async with Client(command(path)) as one, Client(command(path)) as two, asyncio.TaskGroup() as group:
            for at in range(4):
                for name, client in (("one", one), ("two", two)):
                    group.create_task(write(client, f"{name}-{at}"))

    run(main)
    with backtrail.open(path) as store:
        texts = [message.content for message in store.conversations.load("shared").messages]
    assert len(texts) == len(set(texts)) == 8 * each


def test_a_client_that_disconnects_leaves_nothing_half_done(tmp_path):
    path = tmp_path / "agents.db"
    backtrail.open(path).close()
    message = {"role": "user", "content": "x" * 200_000}

    async def main():
        for at in range(5):
            with anyio.move_on_after(0.3 + 0.2 * at):
                async with Client(command(path)) as client:
                    for _ in range(200):
                        arguments = {"agent_id": "a", "conversation_id": "c", "messages": [message] * 3}
                        await client.call_tool("conversation_save", arguments)

    run(main)
    with backtrail.open(path) as store:
        assert store.verify().ok
        found = [each.id for each in store.conversations.list("a")]
        assert all(len(store.conversations.load(name).messages) % 3 == 0 for name in found)


SLOW_COMMIT = """
import pathlib, sys, time
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.cli.main import main
begun, go_on, path = map(pathlib.Path, sys.argv[1:])
commit = SqliteBackend.commit
def slow(backend, batch):
    begun.touch()
    while not go_on.exists():
        time.sleep(0.01)
    return commit(backend, batch)
SqliteBackend.commit = slow
sys.argv = ["backtrail", "mcp", str(path)]
main()
"""


@pytest.mark.parametrize("way", ["close", "kill"])
def test_a_connection_cut_in_a_call_leaves_nothing_half_done(tmp_path, way):
    """The client goes away while the server writes: the write is made whole, and the server ends."""
    path, begun, go_on = tmp_path / "agents.db", tmp_path / "begun", tmp_path / "go on"
    backtrail.open(path).close()
    words = [sys.executable, "-c", SLOW_COMMIT, begun, go_on, path]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(number, method, params):
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({"id": number} if number else {})
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()

    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    send(1, "initialize", client)
    assert b'"id":1' in process.stdout.readline()
    send(None, "notifications/initialized", {})
    messages = [{"role": "user", "content": f"{at} " + "x" * 100_000} for at in range(3)]
    arguments = {"agent_id": "a", "conversation_id": "c", "messages": messages}
    send(2, "tools/call", {"name": "conversation_save", "arguments": arguments})
    while not begun.exists():
        time.sleep(0.01)
    process.stdin.close()  # in the middle of the call
    process.stdout.close()
    if way == "kill":
        process.kill()
    go_on.touch()
    process.wait(60)
    with backtrail.open(path) as store:
        assert store.verify().ok
        found = [len(store.conversations.load(each.id).messages) for each in store.conversations.list("a")]
        assert found == ([] if way == "kill" else [3])
        store.conversations.append("c", Message.user("next"), agent_id="a")


@asynccontextmanager
async def http_server(*words):
    """Run `backtrail mcp --http`; yield its URL and its token."""
    words = [sys.executable, "-m", "backtrail", "mcp", *map(str, words), "--http", "--port", "0", "--json"]
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    try:
        text = b""
        while not text.endswith(b"}\n"):
            text += await asyncio.wait_for(process.stdout.readline(), 60)
        told = json.loads(text)
        yield told["url"], told["token"]
    finally:
        process.terminate()
        await process.wait()


def test_http_serves_a_store_to_those_with_the_token(tmp_path):
    async def main():
        async with http_server(tmp_path / "agents.db") as (url, token):
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                for mode in ("auto", "legacy"):
                    async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
                        arguments = {"agent_id": "a", "conversation_id": mode, "messages": []}
                        assert not (await client.call_tool("conversation_save", arguments)).is_error
            async with httpx2.AsyncClient(timeout=60) as http:
                refused = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
                assert refused.status_code == 401
                other = await http.post(url, headers={**headers, "Host": "evil.example"}, json={})
                assert other.status_code == 421
                deletion = url.replace("/mcp", "/api/v1/conversations/auto")  # this server destroys nothing
                assert (await http.delete(deletion, headers=headers)).status_code == 404

    run(main)
    with backtrail.open(tmp_path / "agents.db") as store:
        assert {each.id for each in store.conversations.list("a")} == {"auto", "legacy"}


def test_first_requests_at_once_are_all_answered(store):
    async def main():
        app = web_app(store, tokens=None, write=True)
        request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        headers = {"X-Backtrail": "1", "Accept": "application/json, text/event-stream"}
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answers = await asyncio.gather(*(http.post("/mcp", json=request, headers=headers) for _ in range(4)))
        app.close()
        return {answer.status_code for answer in answers}

    assert len(run(main)) == 1
