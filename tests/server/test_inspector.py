"""The pages of the inspector as the server makes them. test_inspector_browser.py opens them in a browser."""

import gzip
import json
import random
import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

import backtrail
from backtrail import AgentState, Conversation, Message, server
from backtrail.cli.graph import LINES, graph_lines
from backtrail.engine.graph import GraphNode
from backtrail.server import inspector
from backtrail.server.inspector import changes, graph, text
from tests.server.browser_store import HOSTILE, fill

TOKEN = "token-of-the-tests"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
PAGES = (
    "/",
    "/?kind=conversation&since=24h&agent=support",
    "/?status=halted",
    "/search",
    "/search?q=refund",
    "/search?q=parc&contains=1&kind=conversation&agent=support",
    "/threads/thread/trip-planner",
    "/threads/thread/trip-planner?ref=3&against=1",
    "/threads/thread/trip-planner?ref=flights%20found",
    "/threads/thread/trip-planner/diff?a=1&b=@",
    "/threads/thread/trip-planner-porto",
    "/threads/thread/notes?path=nested.a",
    "/threads/conversation/order-4711",
    "/threads/run/refund-4690",
    "/threads/agent/support",
    "/conversations/order-4711",
    "/conversations/order-4711?ref=3&at=1",
    "/conversations/order-4711/messages/1",
    "/runs/refund-4711",
    "/runs/refund-4690",
    "/agents/support",
    "/storage",
    "/storage?keep_last=1&rules=1",
    "/storage/threads",
)
CHANGES = (
    "/threads/thread/trip-planner/change/rewind?ref=2",
    "/threads/thread/trip-planner/change/undo",
    "/threads/thread/trip-planner/change/fork?ref=2",
    "/threads/thread/trip-planner/change/label",
    "/threads/thread/trip-planner/change/tag",
    "/threads/thread/trip-planner/change/untag?tag=agreed",
    "/threads/thread/trip-planner/change/delete",
    "/threads/conversation/order-4711/change/rewind?ref=2",
    "/agents/support/change/checkpoint",
    "/runs/refund-4711/change/settle?call=1.2",
    "/runs/refund-4711/change/settle?call=1.2&as=not_done",
    "/storage/change/prune?keep_last=1",
)


@pytest.fixture
def store(tmp_path):
    with backtrail.open(str(tmp_path / "agents.db"), durability="relaxed") as store:
        fill(store)
        yield store


@pytest.fixture
def client(store):
    return TestClient(server.app(store, write=True, tokens=TOKEN), headers=HEADERS)


def test_every_page_opens(client):
    for path in (*PAGES, *CHANGES):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.headers["content-type"].startswith("text/html")


def test_stored_text_is_only_text(client):
    odd = quote(f"odd {HOSTILE}", safe="")
    paths = (
        *PAGES,
        *CHANGES,
        f"/conversations/{odd}",
        f"/threads/conversation/{odd}",
        f"/threads/conversation/{odd}/change/fork",
        f"/threads/conversation/{odd}/change/untag?tag={quote(HOSTILE)}",
        f"/search?q={quote(HOSTILE)}",
        "/search?q=evil",
        "/threads/thread/notes?path=title",
    )
    shown = 0
    for path in paths:
        page = client.get(path).text
        assert "<script>alert" not in page, path
        assert "<b>markup" not in page, path
        assert "\x1b" not in page, path
        assert "\u202e" not in page, path
        shown += "⟨U+202E⟩" in page
    assert shown >= 5  # it is there, and visible


def test_pages_have_no_inline_code_or_style(client):
    for path in (*PAGES, *CHANGES):
        page = client.get(path).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page), path
        assert all(tag == "" for tag in re.findall(r"<script[^>]*>([^<]*)</script>", page)), path
        for address in re.findall(r'(?:src|href|action)="([^"]*)"', page):
            assert unescape(address).startswith(("/", "#", "data:image/")), (path, address)


def test_all_files_together_are_small():
    folder = Path(inspector.__file__).parent
    files = [*(folder / "static").iterdir(), *(folder / "templates").iterdir()]
    assert sum(len(gzip.compress(each.read_bytes())) for each in files) <= 60_000


def test_pages_work_under_another_path(store):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/inspect", server.app(store, write=True, tokens=TOKEN))])
    client = TestClient(outer, headers=HEADERS)
    for path in PAGES:
        page = client.get(f"/inspect{path}").text
        for address in re.findall(r'(?:src|href|action)="([^"]*)"', page):
            assert address.startswith(("/inspect/", "#", "data:image/")), (path, address)


def test_a_reader_sees_no_changes(store):
    client = TestClient(server.app(store, tokens=TOKEN), headers=HEADERS)
    for path in PAGES:
        page = client.get(path)
        assert page.status_code == 200, path
        assert "data-dialog" not in page.text, path
    assert all(client.get(path).status_code == 403 for path in CHANGES)


def test_an_error_is_a_page(client):
    page = client.get("/threads/thread/nothing")
    assert page.status_code == 404
    assert "not_found.thread" in page.text
    assert client.get("/threads/nothing/x").status_code == 404
    assert client.get("/threads/thread/notes/change/explode").status_code == 404


def test_a_checkpoint_has_a_link_of_its_own(client, store):
    head = store.conversations.thread("order-4711").load()
    answer = client.get(f"/checkpoints/{head.id}", follow_redirects=False)
    assert answer.headers["location"] == f"/threads/conversation/order-4711?ref={head.id}"


# -- the overview -----------------------------------------------------------------------------------------


def test_runs_that_need_a_person_come_first(client):
    page = client.get("/").text
    assert page.index("in doubt") < page.index("Activity</h1>")
    assert "waiting for approval" in page
    assert "refund-4690" not in page[: page.index("Activity</h1>")]


def test_filters_narrow_the_activity(client):
    page = client.get("/?kind=thread").text
    assert "trip-planner" in page
    assert "order-4711" not in page
    assert "refund-4690" not in client.get("/?status=halted").text
    assert "approve-4702" in client.get("/?status=halted").text
    assert ">notes<" not in client.get("/?agent=support").text


def test_older_pages_of_the_activity_have_titles(store, client):
    for number in range(60):
        store.conversations.save(Conversation("support", id=f"c{number}", title=f"title of {number}", messages=[]))
    page = client.get("/?kind=conversation").text
    assert "title of 59" in page
    (older,) = re.findall(r'<a href="([^"]*cursor=[^"]*)">Older', page)
    assert "title of 5 " in client.get(unescape(older)).text


# -- the graph --------------------------------------------------------------------------------------------


def branched(store, seed, steps=60):
    dice = random.Random(seed)
    thread = store.thread(f"branched-{seed}")
    thread.save({"n": 0})
    for number in range(1, steps):
        if dice.random() < 0.2:
            thread.rewind(dice.choice([*thread.history(everything=True)]))
        thread.save({"n": number})
    return thread


@pytest.mark.parametrize("seed", range(5))
def test_windows_draw_the_lanes_of_the_command_line(seed, monkeypatch):
    with backtrail.open("memory://") as store:
        thread = branched(store, seed)
        view = {each.id for each in thread.history()}
        nodes = [
            GraphNode(each.id, each.parent_id, each.id in view, each.id == thread.load().id)
            for each in thread.history(everything=True, newest_first=True)
        ]
        lanes = {node.id: place // 2 for _, node, place in graph_lines(nodes, LINES) if node}
        monkeypatch.setattr(graph, "WINDOW", 7)
        monkeypatch.setattr(graph, "_LANES", 1000)
        window = graph.newest(store, "thread", thread.id)
        rows = window.rows
        while window.older:
            window = graph.below(store, "thread", thread.id, **window.older)
            rows += window.rows
        assert [row["id"] for row in rows] == [node.id for node in nodes]
        assert {row["id"]: row["x"] for row in rows} == {node: graph._x(lane) for node, lane in lanes.items()}

        monkeypatch.setattr(graph, "_ABOVE", 3)
        for at in (0, 20, 59):
            found = graph.around(store, "thread", thread.id, rows[at]["id"])
            assert found.rows == rows[max(at - 3, 0) :][:7]
            assert found.newer == ((rows[at - 3]["id"], at - 3) if at > 3 else None)
        above = graph.above(store, "thread", thread.id, rows[20]["id"])
        assert above.rows == rows[13:20]


def test_lanes_pass_over_pruned_checkpoints(monkeypatch):
    monkeypatch.setattr(graph, "WINDOW", 4)
    with backtrail.open("memory://") as store:
        thread = branched(store, 3)
        for each in [*thread.history()][1:-1:3]:
            thread.delete_checkpoint(each)
        view = {each.id for each in thread.history()}
        window = graph.newest(store, "thread", thread.id)
        rows = window.rows
        while window.older:
            window = graph.below(store, "thread", thread.id, **window.older)
            rows += window.rows
        assert {row["id"] for row in rows if row["in_view"]} == view
        assert all((row["x"] == graph._x(0)) == row["in_view"] for row in rows)


def test_lines_of_the_graph_meet(store):
    window = graph.newest(store, "thread", "trip-planner")
    for upper, lower in zip(window.rows, window.rows[1:], strict=False):
        below = set(re.findall(r"M(\d+) (?:0|15)V30", upper["main"] + upper["side"]))
        above = set(re.findall(r"M(\d+) 0", lower["main"] + lower["side"]))
        assert below == above


def test_words_tell_the_last_message_or_the_change(store):
    words = dict(graph.words(store, "conversation", "order-4711", None, 2)).values()
    assert [*words] == [
        "assistant: Within three working days, on the card that you paid with.",
        "user: Thank you. When will the money arrive?",
    ]
    assert [*dict(graph.words(store, "thread", "trip-planner", None, 2)).values()] == ["~goal", "+steps[3]"]


# -- states, transcripts ----------------------------------------------------------------------------------


def test_long_parts_are_fetched_when_opened(client):
    page = client.get("/threads/thread/notes").text
    assert "A note with a long text" not in page
    (first, *_) = re.findall(r'data-src="([^"]*path=numbers)"', page)
    part = client.get(unescape(first)).text
    assert part.count("<li>") == 100
    (more,) = re.findall(r'data-more href="([^"]*)"', part)
    assert ">100<" in client.get(unescape(more)).text


def test_a_transcript_folds_calls_with_their_results(client):
    page = client.get("/conversations/order-4711").text
    assert page.count('class="call"') == 2
    assert re.search(r'<details class="call"[^>]* id="m3">', page)  # the result is shown with its call
    assert "rf_8812" in page
    assert page.count("<img") == 1
    assert 'src="data:image/png;base64,' in page


def test_only_pictures_are_shown_as_pictures(store, client):
    evil = "data:text/html;base64,PHNjcmlwdD4="
    parts = [
        {"type": "image_url", "image_url": {"url": evil}},
        {"type": "image_url", "image_url": {"url": "https://example.org/track.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zz4="}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
    ]
    store.conversations.save(
        Conversation("support", id="pictures", messages=[Message.from_openai({"role": "user", "content": parts})])
    )
    page = client.get("/conversations/pictures").text
    assert re.findall(r'<img src="([^"]*)"', page) == ["data:image/png;base64,aGVsbG8="]


def test_a_long_conversation_is_paged(store, client):
    messages = [Message.user(f"message {number}") for number in range(200)]
    store.conversations.save(Conversation("support", id="long", messages=messages))
    page = client.get("/conversations/long").text
    assert "message 199<" in page
    assert "message 149<" not in page
    assert "message 75<" in client.get("/conversations/long?at=75").text


def test_a_large_message_is_loaded_when_opened(store, client):
    store.conversations.save(Conversation("support", id="large", messages=[Message.user("word " * 40_000)]))
    page = client.get("/conversations/large").text
    assert len(page) < 20_000
    (more,) = re.findall(r'data-src="([^"]*)"', page)
    assert len(client.get(unescape(more)).text) > 200_000


def test_calls_of_the_current_iteration_are_shown(client):
    page = client.get("/runs/refund-4711").text
    assert "lookup_order" in page
    assert "It was not made" in page


def test_a_long_run_says_how_many_calls_it_has(store, client):
    with store.run("long", agent="support") as run:
        for number in run.iterations():
            for at in range(50):
                run.tool("look", lambda n: n, n=number * 1000 + at)
            if number == 3:
                break
    page = client.get("/runs/long").text
    shown = page.count('class="call"')
    assert shown < 150
    assert f"The newest {shown} of 150 calls." in page
    assert "<span>150 calls</span>" in page


def test_times_of_calls_are_said_to_be_between_ends(client):
    page = client.get("/runs/refund-4690").text
    assert "A run records when a call ended, not when it began" in page
    assert len(re.findall(r'title="It ended [\d.]+ m?s after the beginning of the run\.">\+', page)) == 1
    assert len(re.findall(r'title="It ended [\d.]+ m?s after the call before\.">\+', page)) == 2


# -- changes ----------------------------------------------------------------------------------------------


def test_a_trial_changes_nothing(store):
    thread = store.thread("trip-planner")
    before = [each.id for each in thread.history(everything=True)], thread.load().id
    after = changes.on_trial(store, lambda: store.thread("trip-planner").rewind("@~3"))
    assert after.step == 3
    assert ([each.id for each in thread.history(everything=True)], thread.load().id) == before


EFFECTS = {
    "/threads/thread/trip-planner/change/label": ("saved again as step 7", "Undo takes it back."),
    "/threads/thread/trip-planner/change/tag?ref=2": ("Step 2 gets a tag.", "Remove the tag to take it back."),
    "/threads/thread/trip-planner/change/untag?tag=agreed": ("loses the tag agreed", "Tag the checkpoint again"),
    "/threads/thread/trip-planner/change/fork?ref=2": ("begins with the state of step 2", "Delete the fork"),
    "/threads/run/refund-4690/change/fork": ("A new run begins with the state of step", "can delete the fork"),
    "/threads/thread/trip-planner/change/rewind?ref=2": ("from step 6 to step 2", "Undo takes it back."),
    "/threads/thread/trip-planner/change/undo": ("from step 6 to step 5", "Redo takes it back."),
    "/threads/thread/undone/change/redo": ("from step 1 to step 2", "Undo takes it back."),
    "/agents/support/change/restore?checkpoint={}": ("custom_state.policy.refund_limit", "Undo takes it back, until"),
    "/runs/refund-4711/change/settle?call=1.2": ("recorded as made, with this result", "cannot be undone"),
    "/runs/refund-4711/change/settle?call=1.2&as=not_done": ("recorded as not made", "cannot be undone"),
    "/storage/change/prune?keep_last=1": ("checkpoints are removed", "cannot be undone"),
}


@pytest.mark.filterwarnings("ignore::backtrail.Irreversible")
@pytest.mark.parametrize("path", EFFECTS)
def test_every_change_shows_its_effect_and_how_to_take_it_back(store, client, path):
    undone = store.thread("undone")
    undone.save({"n": 1})
    undone.save({"n": 2})
    undone.undo()
    (checkpoint,) = store.agents.checkpoints("support")
    before = store.stats()
    page = unescape(client.get(path.format(checkpoint.id)).text)
    effect, back = EFFECTS[path]
    assert effect in page
    assert back in page
    assert store.stats() == before


@pytest.mark.filterwarnings("ignore::backtrail.Irreversible")
@pytest.mark.parametrize("kind", ["thread", "conversation", "run", "agent"])
def test_every_change_that_a_page_offers_can_be_made(store, client, kind):
    name = {"thread": "trip-planner", "conversation": "order-4711", "run": "refund-4690", "agent": "support"}[kind]
    page = client.get(f"/threads/{kind}/{name}?ref=1").text
    offered = [unescape(each) for each in re.findall(r'data-dialog href="([^"]*)"', page)]
    assert any("/change/rewind" in each for each in offered)
    last = "/change/erase" if kind == "run" else "/change/delete"
    for path in sorted(offered, key=lambda each: last in each):
        if kind in ("thread", "conversation") and "/change/erase" in path:
            continue  # after that there is nothing to delete
        form = client.get(path)
        if "/change/redo" in path and form.status_code == 409:
            assert "nothing to redo" in form.text
            continue
        assert form.status_code == 200, (path, form.text)
        change = json.loads(unescape(re.search(r'data-change="([^"]*)"', form.text)[1]))
        fields = {"new_id": f"{kind}-fork", "label": "l", "tags": ["t"]}
        named = {each: fields[each] for each in re.findall(r'<input name="(\w+)"', form.text)}
        headers = {"If-Match": f'"{change["match"]}"'} if change["match"] else {}
        body = {"params": change["body"]} if change["method"] == "DELETE" else {"json": {**change["body"], **named}}
        answer = client.request(change["method"], change["url"], headers=headers, **body)
        assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize(("kind", "name"), [("thread", "trip-planner"), ("conversation", "order-4711")])
def test_a_thread_is_erased_from_its_page(store, client, kind, name):
    path = f"/threads/{kind}/{name}/change/erase"
    pages = (f"/threads/{kind}/{name}", *([f"/conversations/{name}"] if kind == "conversation" else []))
    assert all(path in unescape(client.get(page).text) for page in pages)
    form = client.get(path).text
    assert "What was forked from it is erased, too." in form
    change = json.loads(unescape(re.search(r'data-change="([^"]*)"', form)[1]))
    assert client.request(change["method"], change["url"], json=change["body"]).json()["complete"]
    assert store.info(name, kind=kind) is None
    assert client.get("/threads/agent/support/change/erase").status_code == 404


def test_a_change_shows_its_effect_first(client):
    page = client.get("/threads/thread/trip-planner/change/rewind?ref=2").text
    assert "The head moves from step 6 to step 2." in page
    assert "4 checkpoints go out of view." in page
    assert "three days in Porto" in page
    assert "Undo takes it back." in page


@pytest.mark.filterwarnings("ignore::backtrail.Irreversible")
def test_a_restore_is_shown_as_differences(store, client):
    (checkpoint,) = store.agents.checkpoints("support")
    page = client.get(f"/agents/support/change/restore?checkpoint={checkpoint.id}").text
    assert "custom_state.policy.refund_limit" in page
    assert "When will the money arrive" in page
    assert "send_mail" in page  # what stays done
    assert store.agents.load("support").custom_state["policy"]["refund_limit"] == 250


def test_an_agent_without_state_has_a_page(store, client):
    store.conversations.save(Conversation("nameless", id="c", messages=[Message.user("hello")]))
    assert client.get("/agents/nameless").status_code == 200
    assert client.get("/agents/nobody").status_code == 404


def test_a_scope_hides_other_agents(store):
    store.agents.save(AgentState("other", name="Other", agent_type="m"))
    app = server.app(store, write=True, tokens=TOKEN, scope="other")
    client = TestClient(app, headers=HEADERS)
    assert "trip-planner" not in client.get("/").text
    assert client.get("/threads/thread/trip-planner").status_code == 404
    assert client.get("/storage").status_code == 200


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (25_300_000, "25 MB")]
)
def test_sizes_are_short(count, shown):
    assert text.size(count) == shown


def test_no_character_is_invisible():
    assert text.visible("a\u202eb\x07c\u200b") == "a⟨U+202E⟩b⟨U+0007⟩c⟨U+200B⟩"
    assert text.visible("line\n\ttab 👩‍👩‍👧") == "line\n\ttab 👩‍👩‍👧"
