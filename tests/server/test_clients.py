"""Many clients at once, and a server that is stopped."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import requests

import backtrail
from backtrail.operations.segments import segment
from tests.support import servers
from tests.support.web import TOKEN, serving

CLIENTS = 200
ROOT = Path(__file__).resolve().parents[2]


async def crowd(url):
    """200 clients: each saves its own thread, reads it back, and appends to the one they share."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx2.Limits(max_connections=CLIENTS)
    async with httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=120) as api:

        async def one(at):
            path = f"/api/v1/threads/t{at}/state"
            saved = await api.put(path, json={"state": {"at": at}})
            shown = await api.get(path)
            body = {"agent_id": "a", "conversation_id": "shared", "messages": [{"role": "user", "content": f"m{at}"}]}
            added = await api.post("/api/v1/conversations", json=body)
            return saved.status_code, shown.json()["value"], added.status_code

        assert (await one(0))[0] == 200  # the conversation is there
        return await asyncio.gather(*(one(at) for at in range(1, CLIENTS)))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_200_clients_lose_nothing(kind, tmp_path):
    if kind == "sqlite":
        place, options = tmp_path / "a.db", ()
        backtrail.open(place).close()
        check(place, options, lambda: backtrail.open(place))
    else:
        with servers.place() as opened:
            opened().close()
            options = ("--schema", opened.keywords["schema"])
            check(servers.server().url, options, opened)


def check(url, options, opened):
    with serving(url, "--write", *options) as (link, _):
        answers = asyncio.run(crowd(link))
    assert answers == [(200, {"at": at}, 200) for at in range(1, CLIENTS)]
    with opened() as store:
        contents = [message.content for message in store.conversations.load("shared").messages]
        assert sorted(contents) == sorted(f"m{at}" for at in range(CLIENTS))


def test_ids_of_dots_are_reached_by_clients(tmp_path):
    """A client resolves the segments `.` and `..`, also as %2E, before it sends a request."""
    ids = [".", "..", "~.", "~~..", "...", "~", "%2E%2E"]
    with backtrail.open(tmp_path / "a.db") as store:
        for each in ids:
            store.thread(each).save({"id": each})
    with serving(tmp_path / "a.db", "--write") as (link, _):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for each in ids:
            url = f"{link}api/v1/threads/{segment(each)}"
            assert httpx2.get(url, headers=headers).json()["thread_id"] == each
            assert requests.get(f"{url}/state", headers=headers, timeout=30).json()["value"] == {"id": each}
            saved = httpx2.put(f"{url}/state", headers=headers, json={"state": {"id": each, "n": 2}})
            assert saved.json()["thread_id"] == each
    with backtrail.open(tmp_path / "a.db") as store:
        assert {each: store.thread(each).load().state for each in ids} == {each: {"id": each, "n": 2} for each in ids}


def test_server_ends_at_a_signal(tmp_path):
    backtrail.open(tmp_path / "a.db").close()
    for sign in (signal.SIGINT, signal.SIGTERM):
        with serving(tmp_path / "a.db") as (link, process):
            assert httpx2.get(f"{link}api/v1/threads", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
            process.send_signal(sign)
            process.wait(timeout=30)


def test_example_mounts_the_server():
    done = subprocess.run(
        [sys.executable, "examples/mount_server.py"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["the program itself: hello", "threads: ['trip']", "state: {'city': 'Lisbon'}"]
