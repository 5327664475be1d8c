"""What strangers, other sites, wrong requests and hostile texts get: nothing but errors and text."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import backtrail
from backtrail import AgentState, Message, server
from backtrail.operations import TABLE, Effect
from backtrail.server.access import Access
from tests.support.web import TOKEN, client

HOSTILE = "<script>alert(1)</script>\x1b]0;x\x07\"'&{{7*7}}/../\u202e"


@pytest.fixture
def store():
    with backtrail.open("memory://") as made:
        made.thread("trip").save({"n": 1})
        yield made


def bare(store, **options):
    return TestClient(server.app(store, **{"tokens": TOKEN, "write": True, **options}))


def path_of(operation):
    method, _, path = operation.route.partition(" ")
    return method, "/api/v1" + re.sub(r"{\w+}", "trip", path)


ALL = [path_of(operation) for operation in TABLE.values()] + [
    ("GET", "/"),
    ("GET", "/nowhere"),
    ("GET", "/events"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/api/v1/jobs/1"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/c"),
]


# -- tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), ALL, ids=lambda each: each)
def test_every_path_needs_a_token(store, method, path):
    api = bare(store)
    headers = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": f"x={TOKEN}"}]
    for each in headers:
        answer = api.request(method, path, headers={"X-Backtrail": "1", **each})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"]
        assert "trip" not in answer.text


def test_link_sets_a_cookie_that_lets_in(store):
    api = bare(store)
    answer = api.get(f"/?token={TOKEN}&x=1", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert api.get("/api/v1/threads").status_code == 200
    assert api.get("/?token=wrong-token", follow_redirects=False).status_code == 401


def test_without_tokens_a_random_one_is_made(store):
    one, two = server.app(store), server.app(store)
    assert one.token != two.token
    assert len(one.token) >= 32
    assert TestClient(one).get("/api/v1/threads").status_code == 401
    headers = {"Authorization": f"Bearer {one.token}"}
    assert TestClient(one, headers=headers).get("/api/v1/threads").status_code == 200
    free = TestClient(server.app(store, tokens=None))
    assert free.get("/api/v1/threads").status_code == 200
    assert free.get("/?token=any-token", follow_redirects=False).status_code == 200


@pytest.mark.parametrize("tokens", ["", "short", [], {}, ["not ascii é"], [7], {"long-enough": ["b"]}])
def test_bad_tokens_are_refused(store, tokens):
    with pytest.raises(backtrail.Invalid):
        server.app(store, tokens=tokens, scope="a")


def test_each_token_has_its_own_scope(store):
    for agent in "ab":
        store.agents.save(AgentState(agent, agent, "m"))
        store.conversations.append(f"{agent}-talk", Message.user("shared"), agent_id=agent)
    tokens = {
        "token-of-a": "a",
        "token-of-b": Access(("b",), write=True),
        "token-of-all": None,
        "token-of-reader": Access(),
    }
    app = server.app(store, tokens=tokens, write=True)
    seen = {}
    for token in tokens:
        api = TestClient(app, headers={"Authorization": f"Bearer {token}"})
        hits = api.get("/api/v1/search?query=shared").json()["hits"]
        saved = api.put("/api/v1/agents/b", json={"custom_state": {"x": 1}})
        seen[token] = {hit["agent_id"] for hit in hits}, saved.status_code
    assert seen == {
        "token-of-a": ({"a"}, 409),  # for it, there is no agent b: a new one needs a name
        "token-of-b": ({"b"}, 200),
        "token-of-all": ({"a", "b"}, 200),
        "token-of-reader": ({"a", "b"}, 403),
    }


# -- other sites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "evil.example:8765", "[::2]"])
def test_other_host_names_are_refused(store, host):
    answer = client(store).get("/api/v1/threads", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "forbidden.host")


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "LOCALHOST:1", "[::1]:8765"])
def test_loopback_names_are_accepted(store, host):
    assert client(store).get("/api/v1/threads", headers={"Host": host}).status_code == 200


def test_hosts_can_be_named(store):
    api = client(store, hosts=["store.example"])
    assert api.get("/api/v1/threads", headers={"Host": "store.example"}).status_code == 200
    assert api.get("/api/v1/threads", headers={"Host": "127.0.0.1"}).status_code == 421
    assert client(store, hosts=None).get("/api/v1/threads", headers={"Host": "any.example"}).status_code == 200


def test_a_form_of_another_site_changes_nothing(store):
    api = bare(store)
    api.get(f"/?token={TOKEN}")
    assert api.get("/api/v1/threads").status_code == 200  # the cookie is there
    for headers in (
        {},
        {"Origin": "http://evil.example"},
        {"X-Backtrail": "1", "Origin": "http://evil.example"},
        {"X-Backtrail": "1", "Sec-Fetch-Site": "cross-site"},
        {"X-Backtrail": "1", "Sec-Fetch-Site": "same-site"},
        {"X-Backtrail": "1", "Origin": "null"},
    ):
        for body in ({"data": {"ref": "@"}}, {"content": '{"ref": "@"}', "headers": {"Content-Type": "text/plain"}}):
            options = {**body, "headers": {**headers, **body.get("headers", {})}}
            assert api.post("/api/v1/threads/trip/undo", **options).status_code == 403
    good = {"X-Backtrail": "1", "Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
    assert api.post("/api/v1/threads/trip/tag", json={"tags": ["x"]}, headers=good).status_code == 200


def test_a_form_cannot_post_even_without_tokens(store):
    api = bare(store, tokens=None)
    assert api.post("/api/v1/threads/trip/undo", data={"x": "1"}).status_code == 403
    assert api.post("/api/v1/threads/trip/tag", data={"x": "1"}, headers={"X-Backtrail": "1"}).status_code == 415


def test_no_cross_origin_headers(store):
    answer = client(store).options("/api/v1/threads", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


# -- read-only ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", TABLE.values(), ids=lambda each: each.name)
def test_read_only_server_takes_no_changes(store, operation):
    method, path = path_of(operation)
    answer = client(store, write=False).request(method, path)
    assert (answer.status_code == 403) == (operation.effect is not Effect.READ)
    if answer.status_code == 403:
        assert answer.json()["code"] == "unavailable.read_only"


# -- wrong and large requests -----------------------------------------------------------------------------


def test_large_bodies_are_refused(store):
    api = client(store, body_limit=1000)
    body = {"state": {"x": "y" * 2000}}
    assert api.put("/api/v1/threads/new/state", json=body).status_code == 413
    parts = (json.dumps(body).encode()[at : at + 100] for at in range(0, 3000, 100))
    answer = api.put("/api/v1/threads/new/state", content=parts, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "invalid.size")
    assert store.info("new") is None


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/api/v1/threads/none", {}, 404, "not_found.thread"),
        ("GET", "/api/v1/threads/trip/checkpoints/none", {}, 404, "not_found.checkpoint"),
        ("GET", "/api/v1/threads/trip/state?path=none", {}, 404, "not_found.path"),
        ("GET", "/api/v1/threads/trip/state?path=%5B", {}, 409, "invalid.path"),
        ("GET", "/api/v1/threads?limit=0", {}, 400, "invalid.argument"),
        ("GET", "/api/v1/threads?limit=x", {}, 400, "invalid.argument"),
        ("GET", "/api/v1/threads?limit=1&limit=2", {}, 400, "invalid.argument"),
        ("GET", "/api/v1/threads?nothing=1", {}, 400, "invalid.argument"),
        ("GET", "/api/v1/threads?cursor=x", {}, 409, "invalid.argument"),
        ("GET", "/api/v1/threads/%FF%FE", {}, 404, "not_found.path"),
        ("GET", f"/api/v1/threads/{'x' * 600}", {}, 400, "invalid.id"),
        ("GET", "/api/v1/nothing", {}, 404, "not_found.path"),
        ("GET", "/api/v2/threads", {}, 404, "not_found.path"),
        ("GET", "/static/../__init__.py", {}, 404, "not_found.path"),
        ("GET", "/static/..%2F__init__.py", {}, 404, "not_found.path"),
        ("PATCH", "/api/v1/threads/trip", {}, 405, "invalid.method"),
        ("POST", "/api/v1/threads/trip/rewind", {"json": []}, 400, "invalid.json"),
        ("POST", "/api/v1/threads/trip/rewind", {"content": b"{"}, 415, "invalid.type"),
        ("POST", "/api/v1/threads/trip/rewind", {"json": {"ref": 7}}, 400, "invalid.argument"),
        ("POST", "/api/v1/threads/trip/rewind", {"json": {"ref": "none"}}, 404, "not_found.checkpoint"),
        ("POST", "/api/v1/threads/trip/rewind?ref=@", {}, 400, "invalid.argument"),
        ("POST", "/api/v1/threads/trip/rewind", {"json": {"ref": "@", "thread_id": "x"}}, 400, "invalid.argument"),
        ("POST", "/api/v1/threads/trip/undo", {}, 409, "invalid.undo"),
        ("GET", "/events?kind=none", {}, 400, "invalid.argument"),
        ("GET", "/events?last_event_id=x", {}, 400, "invalid.argument"),
    ],
)
def test_wrong_requests_are_problems(store, *, method, path, options, status, code):
    answer = client(store).request(method, path, **options)
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (status, status)
    assert problem["code"].startswith(code.partition(".")[0])
    assert problem["type"] == f"urn:backtrail:{problem['code']}"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "body", [b'{"state": NaN}', b'{"state": -1e400}', b"[" * 100_000, b'{"state": "\xff"}', b"\x00"]
)
def test_what_is_not_json_is_refused(store, body):
    answer = client(store).put("/api/v1/threads/new/state", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize("origin", ["http://[", "null", "", "http://testserver:1", "testserver"])
def test_strange_origins_are_foreign(store, origin):
    answer = client(store).post("/api/v1/threads/trip/undo", headers={"Origin": origin})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden.origin")


def test_mcp_without_its_extra_is_a_problem(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "backtrail.mcp.store_server", None)
    answer = client(store).post("/mcp", json={})
    assert (answer.status_code, answer.json()["code"]) == (501, "unavailable.extra")


@pytest.mark.parametrize("options", [{"scope": ""}, {"scope": ()}, {"tokens": {TOKEN: ""}}, {"tokens": {TOKEN: ()}}])
def test_wrong_agents_are_refused_at_once(store, options):
    with pytest.raises(backtrail.Invalid, match="agent"):
        server.app(store, **options)


def test_closed_store_is_unavailable(store):
    api = client(store)
    store.close()
    answer = api.get("/api/v1/threads")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable.closed")


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_removed_store_is_unavailable_and_names_no_place(kind, tmp_path, caplog):
    place = tmp_path / "stores"
    place.mkdir()
    with backtrail.open(place / "a.db" if kind == "sqlite" else f"file://{place}/a") as store:
        store.thread("trip").save({"n": 1})
        api = client(store)
        assert api.get("/api/v1/threads/trip").status_code == 200
        shutil.rmtree(place)
        for method, path in (
            ("GET", "/api/v1/threads/trip"),
            ("GET", "/api/v1/threads"),
            ("PUT", "/api/v1/threads/trip/state"),
            ("GET", "/v1/conversations/c"),
            ("GET", "/"),
        ):
            body = {"json": {"state": 2}} if method == "PUT" else {}
            answer = api.request(method, path, headers={"Accept": "text/html"}, **body)
            assert answer.status_code == 503  # 404 would say that the thread is gone
            assert "not_found.store" in answer.text
            assert str(tmp_path) not in answer.text
        assert str(tmp_path) in caplog.text


def test_log_shows_escapes_of_a_path_as_text(store, monkeypatch, caplog):
    monkeypatch.setattr(type(store), "info", lambda *_, **__: 1 / 0)
    assert client(store).get("/api/v1/threads/%1b%5D0;x%07%E2%80%AE").status_code == 500
    assert "\\x1b]0;x\\x07" in caplog.messages[0]
    assert caplog.messages[0].isprintable()


def test_unexpected_error_stays_on_the_server(store, monkeypatch, caplog):
    monkeypatch.setattr(type(store), "stats", lambda _: 1 / 0)
    answer = client(store).get("/api/v1/stats")
    assert (answer.status_code, answer.json()["code"]) == (500, "error")
    assert "division" not in answer.text
    assert "ZeroDivisionError" in caplog.text


def test_slow_body_is_a_timeout(store):
    app = server.app(store, tokens=None, write=True, time_limit=0.01)
    headers = [(b"host", b"localhost"), (b"x-backtrail", b"1")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/verify", "headers": headers, "query_string": b""}
    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["code"] == "timeout"


def test_slow_call_is_a_timeout(store, monkeypatch):
    import threading

    gate = threading.Event()
    monkeypatch.setattr(type(store), "stats", lambda _: gate.wait(60))
    try:
        answer = client(store, time_limit=0.1).get("/api/v1/stats")
        assert (answer.status_code, answer.json()["code"]) == (504, "timeout")
    finally:
        gate.set()


# -- stored text is only text -----------------------------------------------------------------------------


def test_hostile_texts_come_back_as_json_and_escaped_html(store):
    api = client(store)
    store.thread(HOSTILE).save({HOSTILE: HOSTILE}, label=HOSTILE, tags=[HOSTILE])
    name = re.sub(r".", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), HOSTILE, flags=re.DOTALL)
    shown = api.get(f"/api/v1/threads/{name}")
    assert shown.json()["thread_id"] == HOSTILE
    assert shown.headers["content-type"] == "application/json"
    assert api.get(f"/api/v1/threads/{name}/state").json()["value"] == {HOSTILE: HOSTILE}
    missing = api.get(f"/api/v1/threads/{name}x")
    assert missing.headers["content-type"] == "application/problem+json"
    page = api.get("/", headers={"Accept": "text/html"})
    assert "<script>alert" not in page.text
    assert "<script>alert" not in api.get(f"/{name}", headers={"Accept": "text/html"}).text


def test_every_page_has_a_strict_policy(store):
    api = client(store)
    for path in ("/", "/nowhere", "/api/v1/threads", "/static/none.js"):
        policy = api.get(path, headers={"Accept": "text/html"}).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy


# -- the command ------------------------------------------------------------------------------------------


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "backtrail", "serve", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_other_addresses_need_a_token(tmp_path):
    backtrail.open(tmp_path / "a.db").close()
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        done = command(str(tmp_path / "a.db"), "--host", host, "--dry-run")
        assert done.returncode == 2
        assert "pass a --token" in done.stderr
    assert command(str(tmp_path / "a.db"), "--host", "0.0.0.0", "--token", TOKEN, "--dry-run").returncode == 0
    assert command(str(tmp_path / "missing.db"), "--dry-run").returncode == 3
    assert not (tmp_path / "missing.db").exists()


def test_port_in_use_is_said_in_one_line(tmp_path):
    backtrail.open(tmp_path / "a.db").close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = command(str(tmp_path / "a.db"), "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == (
        f"backtrail: cannot listen on 127.0.0.1:{port} (address already in use): pass another --port or --host\n"
    )


def test_mounted_below_another_application(store):
    app = server.app(store, tokens=TOKEN, write=True)
    api = TestClient(Starlette(routes=[Mount("/tools/memory", app)]), headers={"Authorization": f"Bearer {TOKEN}"})
    assert api.get("/tools/memory/api/v1/threads/trip").json()["thread_id"] == "trip"
    store.thread("a/b").save({})
    assert api.get("/tools/memory/api/v1/threads/a%2Fb").json()["thread_id"] == "a/b"
    answer = api.get(f"/tools/memory/?token={TOKEN}", follow_redirects=False)
    assert answer.headers["location"] == "/tools/memory/"
    assert "path=/tools/memory" in answer.headers["set-cookie"].lower()
    assert api.get("/tools/memory/api/v1/openapi.json").json()["servers"] == [{"url": "/tools/memory/api/v1"}]
    started = api.post("/tools/memory/api/v1/verify")
    assert started.headers["location"].startswith("/tools/memory/api/v1/jobs/")
    assert api.get("/tools/memory/").status_code == 200
