"""Output of commands about agents, conversations, runs and messages, and their messages for empty lists."""

import asyncio
import json
import uuid

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

import backtrail
from backtrail import Attachment, InDoubt, Message, ToolCall
from backtrail.adapters.langgraph import BacktrailSaver
from backtrail.adapters.openai import BacktrailSession
from tests.support.commands import bad, docs, good, run

CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A store that a test fills."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKTRAIL_URL", docs.URL)
    monkeypatch.delenv("COLUMNS", raising=False)
    with backtrail.open(docs.URL) as store:
        yield store


# -- listings -------------------------------------------------------------------------------------------


def test_conversations_without_agent_lists_all(place):
    for agent in ("a", "b"):
        place.conversations.append(f"of-{agent}", Message.user("hi"), agent_id=agent)
    assert [row["id"] for row in good("conversations", "--jsonl").rows] == ["of-b", "of-a"]
    assert [line.split()[:2] for line in good("conversations").out.splitlines()[1:]] == [["of-b", "b"], ["of-a", "a"]]
    assert [row["id"] for row in good("conversations", "a", "--jsonl").rows] == ["of-a"]
    assert "AGENT" not in good("conversations", "a").out
    assert [info.id for info in place.conversations.list()] == ["of-b", "of-a"]
    assert "older" not in good("conversations", "-n", "1").out
    assert "more with -n 0" in good("conversations", "-n", "1").err


def test_agents_without_state_are_listed(place):
    place.agents.save(backtrail.AgentState("kept", "Kept", "t"))
    for name in ("x", "y"):
        place.conversations.append(name, Message.user("hi"), agent_id="named")
    place.thread("t", agent="worker").save({})
    place.thread("own", agent="kept").save({})
    listed = good("agents").out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["kept", "named", "worker"]
    assert listed[2].endswith("2 conversations")
    assert listed[3].endswith("1 thread")
    rows = good("agents", "--jsonl").rows
    assert [(row["agent_id"], row["version"]) for row in rows] == [("kept", 1), ("named", None), ("worker", None)]
    assert len(good("agents", "-n", "2").out.splitlines()) == 3
    assert "more with -n 0" in good("agents", "-n", "2").err
    told = good("agents", "named").err
    assert "has no checkpoints and no state" in told
    assert "`backtrail conversations named`" in told
    assert bad(3, "agents", "nmaed") == "backtrail: there is no agent 'nmaed'; there is 'named'"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["threads"], "there are no threads; see `backtrail agents`, `backtrail conversations`"),
        (["runs"], "there are no runs; see `backtrail agents`, `backtrail conversations`"),
        (["threads", "--kind", "run"], "there are no runs; see"),
        (
            ["conversations", "--tag", "x"],
            "no conversations with the tag 'x'; see `backtrail conversations`",
        ),
        (["conversations", "a", "--archived"], "no conversations of agent 'a' that are archived; see"),
        (["threads", "x"], "there are no threads whose ids begin with 'x'; see"),
        (["runs", "--status", "failed"], "there are no runs with status failed; see"),
    ],
)
def test_empty_listing_names_other_lists(place, words, told):
    place.conversations.append("c", Message.user("hi"), agent_id="a")
    done = good(*words)
    assert done.out == ""
    assert told in done.err
    assert good(*words, "--jsonl") == (0, "", "")


def test_empty_store_is_reported(place):
    for words in (["threads"], ["agents"], ["conversations"], ["runs"]):
        assert good(*words).err.endswith("; the store is empty\n")


# -- calls in doubt -------------------------------------------------------------------------------------


class Cut(BaseException):
    """The process ends."""


def cut_short():
    raise Cut


def begin(store):
    with pytest.raises(Cut), store.run("r", agent="a") as run:
        for _ in run.iterations():
            run.tool("pay", cut_short)


def resumed(store, calls):
    def pay():
        calls.append(1)
        return "paid again"

    given = []
    with store.run("r") as run:
        for _ in run.iterations():
            given.append(run.tool("pay", pay))
            break
    return given[0]


def test_settle_lists_calls_in_doubt(place):
    begin(place)
    assert "1.1:pay" in good("runs").out
    assert "`backtrail settle r`" in good("runs").err
    done = good("settle", "r")
    assert done.out.splitlines()[1].split()[:2] == ["1.1", "pay"]
    assert "backtrail settle r 1.1 --not-done" in done.err
    assert [(row["id"], row["name"]) for row in good("settle", "r", "--jsonl").rows] == [("1.1", "pay")]
    with pytest.raises(InDoubt):
        resumed(place, [])


def test_run_gets_the_settled_result(place):
    begin(place)
    done = good("settle", "r", "1.1", "--result", '{"paid": 3}', "--yes")
    assert 'returned {"paid": 3}' in done.err
    calls = []
    assert resumed(place, calls) == {"paid": 3}
    assert calls == []


def test_unmade_call_is_made(place):
    begin(place)
    answer = good("settle", "r", "1.1", "--not-done", "--yes", "--json").json
    assert answer == {"session_id": "r", "call": "1.1", "not_done": True, "in_doubt": 0}
    calls = []
    assert resumed(place, calls) == "paid again"
    assert calls == [1]
    assert "no call of run 'r' is in doubt" in good("settle", "r").err


def test_settle_checks_its_options(place):
    begin(place)
    bad(3, "settle", "nope")
    bad(3, "settle", "r", "9.9", "--not-done", "--yes")
    for words in ([], ["--result", "1", "--not-done"], ["--result", "no json"]):
        bad(2, "settle", "r", "1.1", *words, "--yes")
    bad(2, "settle", "r", "--not-done")
    assert run("settle", "r", "1.1", "--not-done").code == 2  # there is no terminal to ask in
    assert len(place.runs.load("r").in_doubt) == 1
    good("settle", "r", "1.1", "--result", "-", "--yes", stdin="[1]")
    bad(4, "settle", "r", "1.1", "--not-done", "--yes")


# -- transcripts and rows -------------------------------------------------------------------------------


def test_a_conversation_is_shown_as_a_transcript(place):
    call = ToolCall("search", {"q": "ferry"}, id="c1")
    picture = Attachment("image", "map.png", "image/png", "aWs=")
    place.conversations.append(
        "c",
        Message.user("Where?\n\nNow.", attachments=[picture]),
        Message.assistant("", tool_calls=[call]),
        Message.tool_result("c1", "The market"),
        Message.assistant("There.", tool_calls=[call.completed("done")]),
        {"role": "user", "name": "ann", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
        agent_id="a",
    )
    place.conversations.update("c", title="Lunch", tags=["food"])
    out = good("show", "c").out
    assert "title        Lunch\n" in out
    assert "agent        a\n" in out
    body = [line for line in out.partition("messages     5\n")[2].splitlines() if not line.startswith(("user", "tool"))]
    assert "  Where?" in body
    assert "  [image, map.png, image/png]" in body
    assert '  calls search({"q": "ferry"})' in body
    assert "  search returned done" in body
    assert "  (image_url)" in body
    assert "user ann  " in out
    assert "\ntool search  " in out
    assert "{" not in out.replace('({"q": "ferry"})', "")
    assert good("show", "c", "--json").json["state"]["messages"][0]["content"] == "Where?\n\nNow."
    assert good("show", "c", "--path", "messages[2].content").out == '"The market"\n'


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message.assistant("", tool_calls=[ToolCall("search", {"q": 1})]), 'assistant calls search({"q": 1})'),
        (Message.assistant("Wait.", tool_calls=[ToolCall("a"), ToolCall("b")]), "assistant: Wait. (calls a(), b())"),
        (Message.user("hi"), "user: hi"),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, 'assistant calls search({"q": 1})'),
        ({"role": "user", "name": "ann", "content": "hi"}, "user ann: hi"),
        ({"type": "reasoning", "id": "r", "summary": []}, "assistant: (reasoning)"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "user: (image)"),
        (Message.assistant(""), "assistant: (no text)"),
    ],
)
def test_row_shows_author_and_action(place, message, words):
    place.conversations.append("c", message, agent_id="a")
    assert good("log", "c").out.splitlines()[1].endswith(words)
    plain = message if isinstance(message, dict) else message.to_json()
    place.thread("t").save({"messages": [plain]})
    assert good("log", "t").out.splitlines()[1].endswith(words)


def test_a_row_of_a_result_names_the_tool(place):
    place.conversations.append("c", Message.assistant("", tool_calls=[ToolCall("search", id="c1")]), agent_id="a")
    place.conversations.append("c", Message.tool_result("c1", "found"))
    assert good("log", "c").out.splitlines()[1].endswith("tool search: found")
    place.thread("t").save({"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]})
    place.thread("t").append("messages", {"role": "tool", "tool_call_id": "c", "content": "found"})
    assert good("log", "t").out.splitlines()[1].endswith("tool search: found")


def test_langgraph_rows_are_short(place, monkeypatch):
    graph = StateGraph(MessagesState)
    asked = {"name": "search", "args": {"q": "x"}, "id": "c1"}
    graph.add_node("model", lambda _: {"messages": [AIMessage("", tool_calls=[asked])]})
    graph.add_node("tool", lambda _: {"messages": [ToolMessage("found", tool_call_id="c1", name="search")]})
    graph.add_edge(START, "model").add_edge("model", "tool")
    name = str(uuid.uuid4())
    config = {"configurable": {"thread_id": name}}
    graph.compile(checkpointer=BacktrailSaver(place)).invoke({"messages": [HumanMessage("hello")]}, config)
    rows = [line.partition(" B  ")[2] for line in good("log", name).out.splitlines()[1:4]]
    assert rows == ["tool search: found", 'assistant calls search({"q": "x"})', "user: hello"]
    label = good("log", name, "--jsonl").rows[0]["label"]
    assert len(label) == 36
    shown = good("log", name).out
    assert label not in shown
    assert f" {label[:13]}… " in shown
    assert '"": {' not in good("show", name).out
    assert name in good("threads").out  # for programs, that is whole
    monkeypatch.setenv("COLUMNS", "100")
    assert name not in good("threads").out
    assert f"{name[:8]}… " in good("threads").out
    for short in (name[:8], f"{name[:8]}…", name[:20]):
        assert good("log", short, "--jsonl").rows == good("log", name, "--jsonl").rows
        assert good("show", f"{short}@1", "--json").json["thread_id"] == name
    bad(3, "delete", name[:8], "--yes")
    bad(3, "delete", f"{name[:8]}@1", "--yes")
    bad(3, "log", name[:7])
    good("save", name[:8], "-", "--yes", stdin="{}")
    assert place.thread(name[:8]).load().state == {}
    assert good("log", f"{name[:8]}…").out == good("log", name).out


def test_ambiguous_prefix_is_refused(place):
    for tail in "ab":
        place.thread(f"12345678-1234-1234-1234-12345678901{tail}").save({})
    assert "2 ids begin with" in bad(1, "log", "12345678")


# -- classes --------------------------------------------------------------------------------------------


class Trip(BaseModel):
    city: str = "Lisbon"
    budget: int = 3


def test_pydantic_field_lists_are_hidden(place):
    thread = place.thread("t", types=[Trip])
    thread.save({"trip": Trip(), "": {"set": ["mine"]}})
    thread.save({"trip": Trip(budget=5), "": {"set": ["mine", "too"]}})
    assert good("diff", "t").out == '+ [""].set[1]: "too"\n~ trip.budget: 3 -> 5\n' or good("diff", "t").out == (
        '~ trip.budget: 3 -> 5\n+ [""].set[1]: "too"\n'
    )
    assert good("show", "t", "--json").json["state"]["trip"] == {"city": "Lisbon", "budget": 5}
    assert good("show", "t", "--json").json["state"][""] == {"set": ["mine", "too"]}
    whole = place.thread("w", types=[Trip])
    whole.save(Trip())
    whole.save(Trip(budget=9))
    assert good("diff", "w").out == "~ budget: 3 -> 9\n"
    assert [row["path"] for row in good("diff", "w", "--jsonl").rows] == ["budget"]
    assert '""' not in good("log", "w").out + good("show", "w").out
    assert '""' not in good("undo", "w", "--yes").err


# -- forks ----------------------------------------------------------------------------------------------


def test_a_session_forked_at_a_turn_is_drawn_there(place):
    async def talk():
        session = BacktrailSession("chat", place, agent="planner")
        for n in range(3):
            await session.add_items([{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"a{n}"}])
        await session.fork("first", at=1)
        await session.fork("second", at=2)
        await session.fork("last")

    asyncio.run(talk())
    lines = good("log", "chat", "--graph").out.splitlines()[1:]
    drawn = [line.split("fork ")[1].split(",")[0] if "fork " in line else line.split()[-1] for line in lines]
    assert drawn == ["last", "a2", "second", "a1", "first", "a0"]


def test_fork_inside_an_append_is_drawn_there(place):
    place.conversations.append("c", Message.user("1"), Message.user("2"), agent_id="a")
    place.conversations.append("c", Message.user("3"), Message.user("4"))
    place.conversations.append("c", Message.user("5"))
    third = place.conversations.load("c").messages[2]
    place.conversations.fork("c", at=third, new_id="f")
    lines = good("log", "c", "--graph").out.splitlines()[1:]
    assert [("fork f" in line) for line in lines] == [False, True, False, False]
    assert lines[2].endswith("user: 4")


def test_json_of_agents_is_documented_by_its_fields(place):
    place.conversations.append("x", Message.user("hi"), agent_id="named")
    (row,) = json.loads(good("agents", "--json").out)
    assert row.keys() == {field.name for field in backtrail.AgentInfo.__dataclass_fields__.values()}
