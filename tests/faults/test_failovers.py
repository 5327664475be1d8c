"""Failovers of a primary with a synchronous standby, one after the other, beside writers, a reader and a watcher.

What was acknowledged is there, once and in order; no watcher misses a checkpoint; no reader sees an older state than it
saw before.
"""

import contextlib
import itertools
import threading
import time

import pytest

import backtrail
from tests.support import servers
from tests.support.lengths import lengths
from tests.support.proxy import Proxy

WRITERS = 4
ROUND_SECONDS = 2


class Cluster:
    """A primary and its synchronous standby. Each has an address that stays the same."""

    def __init__(self, proxy=None):
        self.primary = servers.Server()
        self.primary.start()
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.proxy = proxy
        self._join(servers.Standby(self.primary))
        self.primary.execute("SELECT pg_reload_conf()")
        self._wait_for_standby()
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        self.url = f"postgresql://postgres@{hosts}/postgres"

    def _join(self, standby):
        standby.start()
        self.standby = standby

    def _wait_for_standby(self):
        servers.wait_for(lambda: self.primary.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])

    def fail_over(self, kind):
        """Let the primary fail, and the standby take its place; then the former primary becomes its standby."""
        former = self.primary
        if kind == "kill":
            former.kill()
        elif kind == "switch":
            former.stop()
        else:
            former.freeze()
        self.standby.promote()
        self.primary = self.standby
        if self.proxy is not None:
            self.proxy.turn_to(self.primary.tcp_url)
        time.sleep(ROUND_SECONDS / 2)
        if kind == "freeze":
            former.thaw()  # it takes itself for the primary still
            time.sleep(ROUND_SECONDS / 4)
            former.kill()
        port = former.port
        former.remove()
        self._join(servers.Standby(self.primary, port=port))
        self._wait_for_standby()

    def remove(self):
        self.standby.remove()
        self.primary.remove()


class Worker(threading.Thread):
    """Repeats `work(store)` with a store of its own until the end."""

    def __init__(self, url, ended):
        super().__init__(daemon=True)
        self.store = backtrail.open(url)
        self.ended = ended
        self.errors = []

    def run(self):
        while not self.ended.is_set():
            try:
                self.work()
            except backtrail.Error as error:
                self.errors.append(error)

    def work(self):
        raise NotImplementedError


class Writer(Worker):
    """Appends numbers to a thread of its own, and to one that all share."""

    def __init__(self, url, ended, name):
        super().__init__(url, ended)
        self.name_ = name
        self.numbers = itertools.count()
        self.acknowledged = {"own": [], "shared": []}

    def work(self):
        number = next(self.numbers)
        for which, thread in (("own", self.name_), ("shared", "shared")):
            item = f"{self.name_} {number}"
            try:
                self.store.thread(thread).append("items", item)
            except backtrail.CommitUnknown:
                time.sleep(0.5)
                continue  # it may be there or not, but never twice
            self.acknowledged[which].append(item)


class Reader(Worker):
    """Reads the shared thread; its list never becomes shorter."""

    def __init__(self, url, ended):
        super().__init__(url, ended)
        self.length = 0
        self.fell = []

    def work(self):
        length = len(self.store.thread("shared").load().state["items"])
        if length < self.length:
            self.fell.append((self.length, length))
        self.length = length


class Watcher(Worker):
    """Sees each checkpoint of the shared thread."""

    def __init__(self, url, ended):
        super().__init__(url, ended)
        self.seen = []
        self.start_after = self.store.thread("shared").latest().id

    def work(self):
        after = self.seen[-1] if self.seen else self.start_after
        for checkpoint in self.store.thread("shared").watch(after=after, timeout=1):
            self.seen.append(checkpoint.id)


@pytest.mark.parametrize("way", ["hosts", "proxy"])
@pytest.mark.parametrize("rounds", lengths(2, 25))
def test_failovers_lose_nothing(way, rounds):
    with contextlib.ExitStack() as stack:
        cluster = Cluster()
        stack.callback(cluster.remove)
        url = cluster.url
        if way == "proxy":
            cluster.proxy = stack.enter_context(Proxy(cluster.primary.tcp_url))
            url = cluster.proxy.url
        ended = threading.Event()
        with backtrail.open(url) as store:
            for name in ["shared", *(f"w{n}" for n in range(WRITERS))]:
                store.thread(name).save({"items": []})
        writers = [Writer(url, ended, f"w{n}") for n in range(WRITERS)]
        reader, watcher = Reader(url, ended), Watcher(url, ended)
        workers = [*writers, reader, watcher]
        for worker in workers:
            worker.start()
        for kind in itertools.islice(itertools.cycle(["freeze", "kill", "switch"]), rounds):
            counts = [len(writer.acknowledged["own"]) for writer in writers]
            cluster.fail_over(kind)
            servers.wait_for(
                lambda counts=counts: all(len(w.acknowledged["own"]) > c for w, c in zip(writers, counts, strict=True)),
                seconds=90,
            )
        ended.set()
        for worker in workers:
            worker.join(90)
            assert not worker.is_alive()
        assert [worker.errors for worker in workers] == [[] for _ in workers]
        with backtrail.open(cluster.primary.tcp_url) as store:
            shared = store.thread("shared").load().state["items"]
            assert len(set(shared)) == len(shared)
            for writer in writers:
                own = store.thread(writer.name_).load().state["items"]
                assert len(set(own)) == len(own)
                for kept, acknowledged in ((own, writer.acknowledged["own"]), (shared, writer.acknowledged["shared"])):
                    assert set(acknowledged) <= set(kept)
                    places = [kept.index(item) for item in acknowledged[-200:]]
                    assert places == sorted(places)
            assert not reader.fell
            history = [checkpoint.id for checkpoint in store.thread("shared").history()][1:]
            watcher.ended.clear()
            watcher.work()
            assert watcher.seen == history
            assert store.verify().ok
        for worker in workers:
            worker.store.close()
