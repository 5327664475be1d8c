"""The server, the inspector and MCP on an encrypted store: as on a plain one, and no key is in anything they say."""

import asyncio
import base64
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from mcp import Client, StdioServerParameters
from starlette.testclient import TestClient

import backtrail
from backtrail import Key, server
from tests.server.browser_store import fill
from tests.server.test_inspector import CHANGES, PAGES
from tests.support.commands import run as command
from tests.support.sealing import KEY

TOKEN = "token-of-the-tests"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Backtrail": "1"}
API = (
    "threads",
    "agents",
    "conversations",
    "conversations/order-4711",
    "conversations/order-4711/messages",
    "runs",
    "runs/refund-4711",
    "agents/support",
    "agents/support/checkpoints",
    "threads/trip-planner",
    "threads/trip-planner/state",
    "threads/trip-planner/history",
    "search?query=refund",
    "search?query=parc&contains=true",
    "search?query=ref*",
    "stats",
    "openapi.json",
    "nowhere",
)


@pytest.fixture
def store(tmp_path):
    with backtrail.open(tmp_path / "agents.db", key=KEY, durability="relaxed") as store:
        fill(store)
        yield store


@pytest.fixture
def secrets(store):
    """Every secret of the store, in every form that a text may have."""
    keyring = store._backend.keyring
    found = [bytes(range(32)), *keyring.store.secrets.values()]
    for uid in keyring.uids():
        found += [keyring._unwrapped(uid, *key) for key in keyring._records([uid])[uid].content[1]]
    assert len(found) > 10
    return [
        form
        for each in found
        for form in (
            each,
            each.hex().encode(),
            each.hex().upper().encode(),
            base64.b64encode(each),
            repr(each).encode(),
        )
    ]


def shown(client, path):
    """What a path says, without numbers: times and sizes differ."""
    answer = client.get(path)
    return answer.status_code, re.sub(r"[\d.,]+ ?(B|KB|MB|s|ms|min)?\b", "#", answer.text)


def test_everything_is_served_as_of_a_plain_store(store, tmp_path):
    backtrail.copy(store, tmp_path / "plain.db", plain=True)
    with backtrail.open(tmp_path / "plain.db") as plain:
        ours, theirs = (TestClient(server.app(each, write=True, tokens=TOKEN)) for each in (store, plain))
        ours.headers = theirs.headers = HEADERS | {"Accept": "text/html"}
        for path in (*PAGES, *CHANGES):
            assert shown(ours, path) == shown(theirs, path), path
            assert shown(ours, path)[0] == 200
        ours.headers = theirs.headers = HEADERS
        answers = {}
        for path in API:
            answers[path] = shown(ours, f"/api/v1/{path}")
            assert answers[path] == shown(theirs, f"/api/v1/{path}"), path
        assert [path for path, (status, _) in answers.items() if status != 200] == ["nowhere"]
        assert all(len(json.loads(ours.get(f"/api/v1/{path}").text)["hits"]) for path in API if "search" in path)


def said(url, path, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=HEADERS | headers)) as answer:
            return answer.read() + str(answer.headers).encode()
    except urllib.error.HTTPError as error:
        return error.read() + str(error.headers).encode()


def test_no_key_is_in_pages_answers_logs_and_errors(store, secrets, tmp_path):
    KEY.save(tmp_path / "key")
    words = [
        sys.executable,
        "-m",
        "backtrail",
        "serve",
        str(tmp_path / "agents.db"),
        "--key-file",
        str(tmp_path / "key"),
    ]
    options = ["--port", "0", "--token", TOKEN, "--jsonl", "--debug"]
    with subprocess.Popen([*words, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            first = process.stdout.readline()
            url = json.loads(first)["url"].partition("?")[0].rstrip("/")
            texts = [first]
            texts += [said(url, path, Accept="text/html") for path in PAGES[::3]]
            texts += [said(url, f"/api/v1/{path}") for path in API]
            assert b"refund" in b"".join(texts)
            record = store._backend.find_thread("thread", "trip-planner")
            newest = store._backend.below.newest(record.no)
            store._backend.below.rewrite(record.no, [newest._replace(root=newest.root[:-1], extra=newest.extra[:-1])])
            broken = said(url, "/api/v1/threads/trip-planner/state")
            assert b"corrupt" in broken
            texts += [broken, said(url, "/threads/thread/trip-planner", Accept="text/html")]
        finally:
            process.terminate()
            texts += process.communicate()
    everything = b"".join(texts)
    assert len(everything) > 50_000
    assert not any(secret in everything for secret in secrets)


def test_mcp_reads_and_searches_an_encrypted_store(store, secrets, tmp_path):
    KEY.save(tmp_path / "key")
    words = ["-m", "backtrail", "mcp", str(tmp_path / "agents.db"), "--key-file", str(tmp_path / "key")]

    async def main():
        async with Client(StdioServerParameters(command=sys.executable, args=words)) as client:
            calls = (
                ("search", {"query": "refund"}),
                ("conversation_load", {"conversation_id": "order-4711"}),
                ("thread_state", {"thread_id": "nowhere"}),
            )
            return [(await client.call_tool(*each)).content[0].text for each in calls]

    found, loaded, missing = asyncio.run(main())
    assert json.loads(found)["hits"]
    assert "order-4711" in loaded
    assert "not_found" in missing
    assert not any(secret in (found + loaded + missing).encode() for secret in secrets)


def test_stack_traces_have_no_key(store, secrets, tmp_path, monkeypatch):
    wrong = Key(bytes(range(1, 33)))
    monkeypatch.setenv("BACKTRAIL_KEY", wrong._secret.hex())
    done = command("threads", "--debug", "--store", str(tmp_path / "agents.db"))
    assert "Traceback" in done.err
    assert wrong._secret.hex() not in done.err
    assert not any(secret in done.err.encode() for secret in secrets)
