"""A minute of 200 clients: nothing is lost, the memory stays flat, and a reader that does not read hurts nobody."""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

import backtrail
from tests.support import servers
from tests.support.web import TOKEN, serving

CLIENTS = 200
CONVERSATIONS = 20
SECONDS = 60
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
pytestmark = [
    pytest.mark.torture,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]


def resident(process):
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1000


def deaf(url):
    """Open a stream of events that nobody reads."""
    place = urlsplit(url)
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.connect((place.hostname, place.port))
    head = f"GET /events HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    opened.sendall(head.encode())
    return opened


async def listen(url, name, seen):
    """Note the steps of a conversation as its events come."""
    path = f"/events?kind=conversation&thread_id={name}"
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS, timeout=None) as api, api.stream("GET", path) as news:
        event = None
        async for line in news.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                seen.append("reset" if event == "reset" else json.loads(line.removeprefix("data: "))["step"])


class Crowd:
    """Clients that append to conversations and read them; what they sent, and the wrong answers."""

    def __init__(self, api):
        self._api = api
        self.sent = []
        self.wrong = []

    async def append(self, at, number):
        """Append one message; return its conversation and its text."""
        name, text = f"c{at % CONVERSATIONS}", f"{at}.{number}"
        body = {"agent_id": "a", "conversation_id": name, "messages": [{"role": "user", "content": text}]}
        answer = await self._api.post("/api/v1/conversations", json=body)
        if answer.status_code == 200:
            self.sent.append((name, text))
        else:
            self.wrong.append((answer.status_code, answer.text))
        return name, text

    async def one(self, at, end):
        """Append and read until the end."""
        number = 0
        while time.monotonic() < end:
            number += 1
            name, text = await self.append(at, number)
            page = f"/api/v1/conversations/{name}/messages?newest_first=true&limit={CLIENTS}"
            for path in (page, f"/api/v1/threads/{name}?kind=conversation", "/api/v1/conversations?limit=5"):
                answer = await self._api.get(path)
                if answer.status_code != 200 or (path == page and text not in answer.text):
                    self.wrong.append((path, answer.status_code, answer.text))


async def measure(process, memory):
    """Note the memory of a process again and again."""
    while True:
        memory.append(resident(process))
        await asyncio.sleep(2)


async def soak(url, process):
    """Let the clients work; return them, the figures of memory, and the steps of the first conversation's events."""
    memory, seen = [], []
    limits = httpx2.Limits(max_connections=CLIENTS)
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS, limits=limits, timeout=120) as api:
        crowd = Crowd(api)
        for at in range(CONVERSATIONS):
            await crowd.append(at, 0)
        tasks = [asyncio.create_task(measure(process, memory)), asyncio.create_task(listen(url, "c0", seen))]
        await asyncio.sleep(1)  # the reader is there
        end = time.monotonic() + SECONDS
        await asyncio.gather(*(crowd.one(at, end) for at in range(CLIENTS)))
        count = sum(name == "c0" for name, _ in crowd.sent)
        for _ in range(100):
            if seen and seen[-1] == count:
                break
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
    return crowd, memory, seen


def check(url, options, opened):
    with serving(url, "--write", *options) as (link, process):
        with deaf(link), deaf(link):
            crowd, memory, seen = asyncio.run(soak(link, process))
        assert process.poll() is None
    sent = crowd.sent
    assert not crowd.wrong, crowd.wrong[:5]
    with opened() as store:
        for name in {name for name, _ in sent}:
            found = [message.content for message in store.conversations.load(name).messages]
            assert sorted(found) == sorted(text for conversation, text in sent if conversation == name)
    steps = [step for step in seen if step != "reset"]
    assert steps == sorted(set(steps))
    assert "reset" in seen or steps == [*range(2, steps[-1] + 1)]
    third = len(memory) // 3
    early, late = max(memory[third : 2 * third]), max(memory[2 * third :])
    sys.stderr.write(
        f"{len(sent)} appends and {3 * len(sent)} reads of {CLIENTS} clients in {SECONDS} s; memory: "
        f"{memory[0]:.0f} MB at first, at most {early:.0f} in the middle, {late:.0f} at the end; {len(steps)} events\n"
    )
    assert late < early * 1.1 + 5


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_minute_of_200_clients(kind, tmp_path):
    if kind == "sqlite":
        backtrail.open(tmp_path / "a.db").close()
        check(tmp_path / "a.db", (), lambda: backtrail.open(tmp_path / "a.db"))
    else:
        with servers.place() as opened:
            opened().close()
            check(servers.server().url, ("--schema", opened.keywords["schema"]), opened)
