"""/events: news of every thread, resumed where a reader left off, also after the server was killed."""

import http.client
import json
import signal
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

import backtrail
from backtrail import AgentState, Message, server
from backtrail.server import events
from tests.support.web import TOKEN, serving


class Stream:
    """A reader of events over a bare connection."""

    def __init__(self, url, path="/events", last_id=None, token=TOKEN):
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last_id} if last_id else {})
        self._connection.request("GET", path, headers=headers)
        self.response = self._connection.getresponse()
        if self.response.status == 200:
            assert self.response.readline() == b"retry: 2000\n"
            assert self.response.readline() == b"\n"

    def next(self):
        """The next event: its id, its name and its data."""
        fields = {}
        while True:
            line = self.response.readline().decode()
            if not line:
                raise EOFError
            if line == "\n" and fields:
                return fields["id"], fields["event"], json.loads(fields["data"])
            name, _, value = line.rstrip("\n").partition(": ")
            if name.strip(":\n"):
                fields[name] = value

    def close(self):
        self.response.close()
        self._connection.close()


@pytest.fixture
def listen():
    opened = []

    def made(*words, **options):
        opened.append(Stream(*words, **options))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "a.db"
    with backtrail.open(path) as store:
        store.thread("trip").save({"n": 0})
    return path


def test_news_of_all_kinds_arrive_in_order(place, listen):
    with serving(place) as (url, _), backtrail.open(place) as store:
        stream = listen(url)
        only = listen(url, "/events?kind=conversation&thread_id=talk")
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        for n in range(1, 4):
            store.thread("trip").save({"n": n})
        seen = [stream.next() for _ in range(3)]
        assert [(name, data["thread_id"], data["step"]) for _, name, data in seen] == [
            ("checkpoint", "trip", step) for step in (2, 3, 4)
        ]
        store.agents.save(AgentState("a", "A", "m"))
        store.conversations.append("talk", Message.user("x"), agent_id="a")
        store.thread("trip").rewind("@-")
        kinds = {(data["kind"], data["thread_id"], data["step"]) for _, _, data in [stream.next() for _ in range(3)]}
        assert kinds == {("agent", "a", 1), ("conversation", "talk", 1), ("thread", "trip", 3)}
        assert only.next()[2]["thread_id"] == "talk"


def test_reader_resumes_after_the_last_event(place, listen):
    with serving(place) as (url, _), backtrail.open(place) as store:
        stream = listen(url)
        for n in range(1, 4):
            store.thread("trip").save({"n": n})
        first = stream.next()
        stream.close()
        again = listen(url, last_id=first[0])
        assert [again.next()[2]["step"] for _ in range(2)] == [3, 4]
        store.thread("trip").save({"n": 9})
        assert again.next()[2]["step"] == 5


def test_reader_resumes_after_the_server_was_killed(place, listen):
    with serving(place) as (url, process), backtrail.open(place) as store:
        stream = listen(url)
        store.thread("trip").save({"n": 1})
        last_id = stream.next()[0]
        process.kill()
        with pytest.raises((EOFError, ConnectionError, http.client.HTTPException)):
            stream.next()
        store.thread("trip").save({"n": 2})
        store.thread("other").save({})
        store.thread("trip").save({"n": 3})
        store.thread("trip").rewind("@-")
        wanted = {("trip", 3), ("other", 1), ("trip", 4)}
        with serving(place) as (later, _):
            again = listen(later, last_id=last_id)
            seen = []
            while not wanted <= set(seen) or seen[-1] != ("trip", 3):
                data = again.next()[2]
                seen.append((data["thread_id"], data["step"]))
            assert set(seen) <= wanted | {("trip", 1), ("trip", 2)}  # those just before may come twice
            store.thread("live").save({})
            assert again.next()[2]["thread_id"] == "live"


def test_scope_gets_news_of_its_agent_only(place, listen):
    with serving(place, "--agent", "a") as (url, _), backtrail.open(place) as store:
        stream = listen(url)
        store.thread("theirs", agent="b").save({})
        store.thread("mine", agent="a").save({})
        assert stream.next()[2]["thread_id"] == "mine"
        resumed = listen(url, last_id="gone.1.1")
        assert resumed.next()[2]["thread_id"] == "mine"


def test_slow_reader_loses_only_its_own_queue():
    feed_events = [
        events.ServerEvent(n, n, {"thread_id": "t", "checkpoint_id": str(n)}) for n in range(events._QUEUE + 10)
    ]
    import asyncio

    async def story():
        slow, fast = events.EventReader(), events.EventReader()
        for event in feed_events:
            slow.put(event)
            fast.put(event)
            await asyncio.sleep(0)
            fast.events.popleft()
        return [event.data for event in slow.events], list(fast.events)

    waiting, rest = asyncio.run(story())
    assert waiting[0] is None  # a reset: look again
    assert len(waiting) == 10
    assert rest == []


def test_reader_that_does_not_read_hurts_nobody(place, listen):
    with serving(place) as (url, _), backtrail.open(place) as store, socket.socket() as deaf:
        where = urlsplit(url)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((where.hostname, where.port))
        head = f"GET /events HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        deaf.sendall(head.encode())
        stream = listen(url, "/events?thread_id=trip")
        for first in range(0, 400, 50):
            for n in range(first, first + 50):
                store.thread("trip").save({"n": n})
            for n in range(first, first + 50):
                assert stream.next()[2]["step"] == n + 2
        fresh = listen(url, "/events?thread_id=late")  # and the server still takes readers
        store.thread("late").save({})
        assert fresh.next()[2]["thread_id"] == "late"


def test_too_many_missed_events_are_a_reset(monkeypatch):
    monkeypatch.setattr(events, "_MISSED", 5)
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        for n in range(10):
            thread.save({"n": n})
        feed = events.Feed(store)
        assert [event.data for event in feed.missed("gone.1.1")] == [None]
        feed.close()


def test_watch_begins_again_after_a_failure(monkeypatch):
    monkeypatch.setattr(events, "_PAUSE", 0.01)
    with backtrail.open("memory://") as store:
        feed = events.Feed(store)
        watch, failed = store.watch, threading.Event()

        class Broken:
            def __iter__(self):
                failed.set()
                raise backtrail.Unavailable("gone", code="unavailable.io")

            def close(self):
                pass

        monkeypatch.setattr(
            store, "watch", lambda kind: Broken() if kind == "thread" and not failed.is_set() else watch(kind=kind)
        )
        feed.start()
        while not any(event.data is None for event in list(feed._last)):
            time.sleep(0.01)
        store.thread("t").save({})
        while not any(event.data for event in list(feed._last)):
            time.sleep(0.01)
        feed.close()


def test_number_of_readers_is_limited(monkeypatch):
    monkeypatch.setattr(events, "_READERS", 0)
    with backtrail.open("memory://") as store:
        app = server.app(store, tokens=TOKEN)
        from starlette.testclient import TestClient

        answer = TestClient(app).get("/events", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable.readers")
        app.close()


def test_ctrl_c_ends_the_events_of_open_pages(tmp_path):
    backtrail.open(tmp_path / "a.db").close()
    with serving(tmp_path / "a.db") as (url, process):
        connection = http.client.HTTPConnection(url.split("/")[2], timeout=60)
        connection.request("GET", "/events", headers={"Authorization": f"Bearer {TOKEN}"})
        stream = connection.getresponse()
        assert stream.readline() == b"retry: 2000\n"
        process.send_signal(signal.SIGINT)
        stream.read()  # IncompleteRead if the server breaks the connection off
        assert process.wait(60) == 0
        connection.close()
