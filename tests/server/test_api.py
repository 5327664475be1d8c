"""The HTTP API by example: reading, changing, conflicts, caching, pages, jobs, its document."""

import json
import re
import time

import jsonschema
import pytest

import backtrail
from backtrail import AgentState, Conversation, Message
from backtrail.engine.head import HeadMover
from backtrail.operations import TABLE
from backtrail.operations.answers import encode_cursor
from backtrail.server.openapi import document
from tests.support.web import client


@pytest.fixture
def store():
    with backtrail.open("memory://") as made:
        trip = made.thread("trip", agent="planner")
        for n in range(3):
            trip.save({"n": n, "days": [{"city": f"c{at}"} for at in range(3000)]})
        yield made


@pytest.fixture
def api(store):
    return client(store)


def test_state_comes_by_path_and_in_pages(api):
    whole = api.get("/api/v1/threads/trip/state").json()
    assert [(each["path"], each["type"], each["count"]) for each in whole["entries"]] == [
        ("n", "number", None),
        ("days", "array", 3000),
    ]
    assert "value" not in whole["entries"][1]
    page = api.get("/api/v1/threads/trip/state?path=days&offset=2990&limit=5").json()
    assert [each["path"] for each in page["entries"]] == [f"days[{at}]" for at in range(2990, 2995)]
    assert (page["entries"][0]["value"], page["next_offset"]) == ({"city": "c2990"}, 2995)
    assert api.get("/api/v1/threads/trip/state?path=days[7].city").json()["value"] == "c7"
    end = api.get("/api/v1/threads/trip/state?path=days&offset=2995").json()
    assert (len(end["entries"]), end["next_offset"]) == (5, None)


def test_small_part_of_a_large_state_reads_few_chunks(tmp_path, monkeypatch):
    with backtrail.open(tmp_path / "a.db") as store:
        store.thread("big").save({"list": [{"text": f"{at} " * 100, "at": at} for at in range(20_000)], "small": 1})
    with backtrail.open(tmp_path / "a.db") as store:
        read, plain = [], type(store._backend).chunks

        def chunks(backend, digests):
            read.append(len(digests))
            return plain(backend, digests)

        monkeypatch.setattr(type(store._backend), "chunks", chunks)
        answer = client(store).get("/api/v1/threads/big/state?path=list[10000].at").json()
        assert answer["value"] == 10_000
        page = client(store).get("/api/v1/threads/big/state?path=list&offset=19990").json()
        assert len(page["entries"]) == 10
        assert sum(read) < 40  # of some thousands


def test_long_text_comes_in_parts(store, api):
    store.thread("text").save({"t": "ab" * 5000})
    first = api.get("/api/v1/threads/text/state?path=t&max_bytes=100").json()
    assert (first["type"], len(first["value"]), first["next_offset"]) == ("text", 100, 100)
    last = api.get("/api/v1/threads/text/state?path=t&max_bytes=100&offset=9950").json()
    assert (last["value"], last["next_offset"]) == ("ab" * 25, None)


def test_change_with_if_match_is_compare_and_swap(store, api):
    shown = api.get("/api/v1/threads/trip")
    etag = shown.headers["etag"]
    first = api.post("/api/v1/threads/trip/rewind", json={"ref": "@-"}, headers={"If-Match": etag})
    assert (first.status_code, first.json()["step"]) == (200, 2)
    second = api.post("/api/v1/threads/trip/undo", headers={"If-Match": etag})
    assert second.status_code == 409
    assert (second.json()["expected"], second.json()["actual"]) == (
        shown.json()["head_id"],
        first.json()["checkpoint_id"],
    )
    saved = api.put("/api/v1/threads/trip/state", json={"state": 1}, headers={"If-Match": etag})
    assert (saved.status_code, saved.json()["code"]) == (409, "conflict.stale")
    assert (saved.json()["expected"], saved.json()["actual"]) == (
        shown.json()["head_id"],
        first.json()["checkpoint_id"],
    )
    again = api.put("/api/v1/threads/trip/state", json={"state": 1}, headers={"If-Match": first.headers["etag"]})
    assert again.status_code == 200
    new = api.put("/api/v1/threads/trip/state", json={"state": 1}, headers={"If-None-Match": "*"})
    assert (new.status_code, new.json()["code"]) == (409, "conflict.exists")


@pytest.mark.parametrize("kind", ["thread", "agent", "conversation", "run"])
def test_threads_of_every_kind_move_with_if_match(store, api, kind):
    for n in range(2):
        store.thread("x").save({"n": n})
        store.agents.save(AgentState("x", f"name {n}", "m"), replace=True)
        store.conversations.append("x", Message.user("hello"), agent_id="x")
    with store.run("x") as run:
        for number in run.iterations():
            run.tool("look", lambda: 1)
            if number == 3:
                break

    def move(name, **body):
        etag = api.get(f"/api/v1/threads/x?kind={kind}").headers["etag"]
        path, json = f"/api/v1/threads/x/{name}", {"kind": kind, **body}
        refused = api.post(path, json=json, headers={"If-Match": '"000000000000000000000000.0"'})
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict.stale")
        return api.post(path, json=json, headers={"If-Match": etag}).json()["step"]

    last = api.get(f"/api/v1/threads/x?kind={kind}").json()["step"]
    assert last > 1
    assert [move("rewind", ref="1"), move("undo"), move("redo")] == [1, last, 1]
    step = 1 if kind == "run" else move("label", label="named")  # a run makes its checkpoints itself
    assert move("tag", tags=["t"]) == move("untag", tags=["t"]) == step


@pytest.mark.parametrize("move", ["undo", "redo", "rewind"])
def test_writer_between_check_and_move_is_a_conflict_with_both_heads(tmp_path, monkeypatch, move):
    with backtrail.open(tmp_path / "a.db") as store, backtrail.open(tmp_path / "a.db") as other:
        trip = store.thread("trip")
        for n in range(3):
            trip.save({"n": n})
        seen, plain = trip.undo().id, getattr(HeadMover, move)

        def after_another_writer(*words):
            monkeypatch.setattr(HeadMover, move, plain)
            other.thread("trip").set("n", 9)
            other.thread("trip").set("n", 10)
            other.thread("trip").undo()
            return plain(*words)

        monkeypatch.setattr(HeadMover, move, after_another_writer)
        body = {"json": {"ref": "1"}} if move == "rewind" else {}
        answer = client(store).post(f"/api/v1/threads/trip/{move}", headers={"If-Match": f'"{seen}.0"'}, **body)
        head = other.thread("trip").load()
        assert (answer.status_code, answer.json().get("code")) == (409, "conflict.stale")
        assert (answer.json()["expected"], answer.json()["actual"]) == (seen, head.id)
        assert head.state == {"n": 9}


def test_checkpoint_is_cached_for_ever(store, api):
    head = store.thread("trip").load().id
    by_id = api.get(f"/api/v1/threads/trip/state?ref={head}")
    assert by_id.headers["cache-control"] == "private, max-age=31536000, immutable"
    again = api.get(f"/api/v1/threads/trip/state?ref={head}", headers={"If-None-Match": by_id.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert api.get("/api/v1/threads/trip/state?ref=@").headers["cache-control"] == "private, no-cache"
    entry = api.get(f"/api/v1/checkpoints/{head}")
    assert api.get(f"/api/v1/checkpoints/{head}", headers={"If-None-Match": entry.headers["etag"]}).status_code == 304
    store.thread("trip").tag(head, "x")  # its tags may change
    changed = api.get(f"/api/v1/checkpoints/{head}", headers={"If-None-Match": entry.headers["etag"]})
    assert (changed.status_code, changed.json()["tags"]) == (200, ["x"])
    same = store.thread("trip").history(newest_first=True, limit=2)
    a, b = [each.id for each in same]
    assert "immutable" in api.get(f"/api/v1/threads/trip/diff?a={a}&b={b}").headers["cache-control"]
    assert "immutable" not in api.get("/api/v1/threads/trip/diff").headers["cache-control"]


LISTS = {
    "/api/v1/threads": "threads",
    "/api/v1/threads/trip/history": "checkpoints",
    "/api/v1/threads/trip/log": "checkpoints",
    "/api/v1/activity": "checkpoints",
    "/api/v1/activity?kind=conversation&agent_id=planner": "checkpoints",
    "/api/v1/threads/trip/diff?a=1&b=@": "changes",
    "/api/v1/agents": "agents",
    "/api/v1/agents/planner/checkpoints": "checkpoints",
    "/api/v1/conversations": "conversations",
    "/api/v1/conversations/talk0/messages": "messages",
    "/api/v1/conversations/talk0/messages?newest_first=true": "messages",
    "/api/v1/conversation-search?query=hello": "hits",
    "/api/v1/search?query=hello": "hits",
    "/api/v1/search?query=hello&order=score": "hits",
    "/api/v1/runs": "runs",
}


@pytest.mark.parametrize("path", LISTS)
def test_every_list_has_cursors(store, api, path):
    trip = store.thread("trip")
    store.agents.save(AgentState("planner", "P", "m"))
    for n in range(3):
        trip.save({"n": n, **{f"k{at}": at for at in range(7)}})
        store.thread(f"other{n}").save({})
        store.agents.save(AgentState(f"agent{n}", "A", "m"))
        store.agents.checkpoint("planner", f"p{n}")
        store.conversations.save(
            Conversation("planner", id=f"talk{n}", messages=[Message.user(f"hello {at}") for at in range(5)])
        )
        with store.run(f"run{n}", agent="planner") as run:
            for _ in run.iterations():
                run.halt("x")
    join = "&" if "?" in path else "?"
    whole = api.get(f"{path}{join}limit=200").json()[LISTS[path]]
    assert len(whole) > 2
    entries, cursor = [], ""
    while True:
        answer = api.get(f"{path}{join}limit=2{cursor}").json()
        entries += answer[LISTS[path]]
        if answer["next_cursor"] is None:
            break
        assert len(answer[LISTS[path]]) == 2
        cursor = f"&cursor={answer['next_cursor']}"
    assert entries == whole


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("threads", "threads"),
        ("threads/trip/history", "checkpoints"),
        ("activity", "checkpoints"),
        ("agents", "agents"),
        ("conversations", "conversations"),
        ("runs", "runs"),
        ("search?query=soup", "hits"),
    ],
)
def test_lists_are_limited_to_a_time(store, api, path, found):
    store.agents.save(AgentState("planner", "Planner", "model"))
    store.conversations.save(Conversation("planner", id="lunch", messages=[Message.user("Soup?")]))
    with store.run("work", agent="planner"):
        pass
    path = f"/api/v1/{path}{'&' if '?' in path else '?'}"
    shown = api.get(path).json()[found]
    assert shown
    early, late = "2001-01-01T00:00:00Z", "2999-01-01T02:00:00%2B02:00"
    assert api.get(f"{path}since={early}&until={late}").json()[found] == shown
    assert api.get(f"{path}since={late}").json()[found] == []
    assert api.get(f"{path}until={early}").json()[found] == []


@pytest.mark.parametrize(
    "text",
    ["yesterday", "2026-01-31", "2026-01-31T12:00:00", "2026-02-30T12:00:00Z", "0001-01-01T00:00:00%2B14:00", ""],
)
def test_time_without_a_zone_or_meaning_is_a_bad_request(api, text):
    answer = api.get(f"/api/v1/threads?since={text}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid.argument")
    assert "such as 2026-01-31T12:00:00Z" in answer.json()["detail"]


def test_listing_goes_on_after_a_change(store, api):
    for n in range(5):
        store.thread(f"t{n}").save({})
    first = api.get("/api/v1/threads?limit=2").json()
    store.thread(first["threads"][-1]["thread_id"]).save({"moved": 1})
    store.thread(first["threads"][0]["thread_id"]).delete()
    rest = api.get(f"/api/v1/threads?cursor={first['next_cursor']}").json()["threads"]
    assert [each["thread_id"] for each in rest] == ["t2", "t1", "t0", "trip"]


def test_verify_is_a_job_with_progress(store, api):
    started = api.post("/api/v1/verify")
    assert started.status_code == 202
    place = started.headers["location"]
    while (job := api.get(place).json())["status"] == "running":
        time.sleep(0.01)
    assert (job["status"], job["result"]["ok"], job["result"]["states_read"]) == ("done", True, 3)
    assert job["progress"]
    assert client(store, scope="planner").get(place).status_code == 404
    assert api.get("/api/v1/jobs/none").status_code == 404


def test_failed_job_tells_why(store, api, monkeypatch):
    def fail(*_, **__):
        raise backtrail.Unavailable("the disk is gone", code="unavailable.io")

    monkeypatch.setattr(type(store), "verify", fail)
    place = api.post("/api/v1/verify").headers["location"]
    while (job := api.get(place).json())["status"] == "running":
        time.sleep(0.01)
    assert (job["status"], job["problem"]["code"]) == ("failed", "unavailable.io")


def test_log_has_the_unexpected_error_of_a_job(store, api, monkeypatch, caplog):
    monkeypatch.setattr(type(store), "verify", lambda *_, **__: 1 / 0)
    place = api.post("/api/v1/verify").headers["location"]
    while (job := api.get(place).json())["status"] == "running":
        time.sleep(0.01)
    assert (job["status"], job["problem"]["code"]) == ("failed", "error")
    assert "ZeroDivisionError" in caplog.text


def test_prune_shows_first_what_it_would_remove(store, api):
    plan = api.get("/api/v1/prune?keep_last=1").json()
    assert (plan["count"], plan["dry_run"], len(plan["removed"])) == (2, True, 2)
    assert api.post("/api/v1/prune", json={"keep_last": 1, "dry_run": True}).json() == plan
    assert len(store.thread("trip")) == 3
    assert api.post("/api/v1/prune", json={"keep_last": 1}).json()["count"] == 2
    assert len(store.thread("trip")) == 1
    assert api.post("/api/v1/prune", json={}).status_code == 409


def test_fork_label_tag_and_log(api):
    assert api.post("/api/v1/threads/trip/fork", json={"new_id": "cheap", "ref": "1"}).json()["thread_id"] == "cheap"
    assert api.get("/api/v1/threads/trip").json()["forks"] == ["cheap"]
    assert api.post("/api/v1/threads/trip/label", json={"label": "good"}).json()["label"] == "good"
    assert api.post("/api/v1/threads/trip/tag", json={"tags": ["x"], "ref": "good"}).json()["tags"] == ["x"]
    assert api.post("/api/v1/threads/trip/untag", json={"tags": ["x"]}).json()["tags"] == []
    api.post("/api/v1/threads/trip/rewind", json={"ref": "1"})
    log = api.get("/api/v1/threads/trip/log").json()["checkpoints"]
    assert [(each["step"], each["in_view"], each["head"]) for each in log] == [
        (4, False, False),
        (3, False, False),
        (2, False, False),
        (1, True, True),
    ]
    assert api.post("/api/v1/threads/cheap/fork", json={"new_id": "trip"}).status_code == 409
    assert api.delete("/api/v1/threads/cheap").json()["deleted"] is True


def test_head_request_has_no_body(api):
    answer = api.head("/api/v1/threads")
    assert (answer.status_code, answer.content) == (200, b"")


def test_document_describes_every_operation():
    described = document()
    jsonschema.Draft202012Validator.check_schema(described["components"]["schemas"]["Problem"])
    found = {
        each["operationId"]: f"{method.upper()} {path}"
        for path, methods in described["paths"].items()
        for method, each in methods.items()
    }
    assert found == {name: each.route for name, each in TABLE.items()} | {"job_show": "GET /jobs/{job_id}"}
    for operation in TABLE.values():
        jsonschema.Draft202012Validator.check_schema(operation.result)
        assert set(re.findall(r"{(\w+)}", operation.route)) <= set(operation.schema["required"])
        assert re.fullmatch(r"[A-Z][^\n]+\.", operation.description)
        assert json.loads(json.dumps(operation.schema)) == operation.schema
    assert len({each.route for each in TABLE.values()}) == len(TABLE)


HUGE = str(10**40)
LONG = "9" * 5_000
"""More digits than Python converts."""


@pytest.mark.parametrize(
    ("path", "operation", "place"),
    [
        ("/conversations/talk/messages", "conversation_messages", [LONG]),
        ("/runs", "run_list", ["none", LONG]),
        ("/activity", "activity", ["none", "9999-12-31T23:59:59.999999Z"]),
        ("/activity", "activity", ["none", "0001-01-01T00:00:00+23:00"]),
        ("/threads/trip/diff", "thread_diff", ["@-", "@", LONG]),
    ],
)
def test_forged_cursors_do_no_harm(store, api, path, operation, place):
    store.conversations.append("talk", Message.user("x"), agent_id="planner")
    cursor = encode_cursor(operation, *place)
    assert api.get(f"/api/v1{path}", params={"cursor": cursor}).status_code in (200, 409)


def test_message_page_of_a_forged_index_does_no_harm(store, api):
    store.conversations.append("talk", Message.user("x"), agent_id="planner")
    assert api.get(f"/conversations/talk?at={LONG}").status_code == 200
    assert api.get(f"/conversations/talk/messages/{LONG}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        f"/threads/thread/trip/words?count={LONG}",
        f"/threads/thread/trip/state?path=days&offset={LONG}",
        f"/storage?keep_last={LONG}&keep_hourly={LONG}&keep_daily={LONG}&older_than={LONG}&idle_days={LONG}",
    ],
)
def test_huge_numbers_do_no_harm_to_pages(api, path):
    assert api.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "header"),
    [
        ("DELETE", "/threads/trip", '"0123.0"'),
        ("DELETE", "/threads/trip", "*"),
        ("PUT", "/threads/new/state", "*"),
        ("PUT", "/threads/trip/state", '"0123.0", "4567.0"'),
    ],
)
def test_if_match_is_never_ignored(store, api, method, path, header):
    head = store.thread("trip").load().id
    body = {"json": {"state": 1}} if method == "PUT" else {}
    answer = api.request(method, f"/api/v1{path}", headers={"If-Match": header}, **body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid.argument")
    assert "If-Match" in answer.json()["detail"]
    assert store.thread("trip").load().id == head
    assert store.info("new") is None


def test_if_match_with_a_star_means_any_head(store, api):
    assert api.post("/api/v1/threads/trip/rewind", json={"ref": "@-"}, headers={"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        f"/api/v1/threads/trip/state?offset={HUGE}",
        f"/api/v1/threads/trip/state?path=days&offset={HUGE}",
        f"/api/v1/agents/planner?path=name&offset={HUGE}",
        f"/api/v1/conversations/talk?before={HUGE}",
        f"/api/v1/prune?keep_last={HUGE}&keep_hourly={HUGE}&keep_daily={HUGE}&keep_weekly={HUGE}",
        f"/api/v1/threads/trip/checkpoints/{HUGE}",
    ],
)
def test_huge_numbers_do_no_harm(store, api, path):
    store.agents.save(AgentState("planner", "P", "m"))
    store.conversations.append("talk", Message.user("x"), agent_id="planner")
    assert api.get(path).status_code in (200, 404, 409)


def test_erase_answers_with_its_evidence(store, api):
    store.conversations.save(Conversation("planner", id="talk", messages=[Message.user("hello")]))
    store.agents.save(AgentState("planner", "n", "t"))
    made = store.agents.checkpoint("planner", "one")
    answer = api.post("/api/v1/erase", json={"ids": ["talk"], "kind": "conversation"}).json()
    assert answer["complete"]
    assert answer["agent_checkpoints"] == [{"agent": "planner", "checkpoint": made.id}]
    assert api.get(f"/api/v1/agent-checkpoints/{made.id}").json()["erased"] == ["talk"]
    with pytest.warns(backtrail.Erased):
        restored = api.post(f"/api/v1/agent-checkpoints/{made.id}/restore", json={}).json()
    assert "1 of them were erased" in restored["message"]
    assert api.post("/api/v1/erase", json={"ids": ["none"], "kind": "run"}).status_code == 404
