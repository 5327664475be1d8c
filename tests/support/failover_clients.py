"""Clients of a cluster that fails over: writers, a reader, a watcher, workers of a run, and what must be true of them.

What was acknowledged is there, once and in order; no watcher misses a checkpoint; no reader sees an older state than it
saw before; no effect of a run happens twice.
"""

import itertools
import threading
import time

import backtrail
from tests.support.servers import wait_for

WRITERS = 4
RUN = "payments"


class Client(threading.Thread):
    """Repeats `work` with a store of its own until the end."""

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


class Writer(Client):
    """Appends numbers to a thread of its own, and to one that all share."""

    def __init__(self, url, ended, name):
        super().__init__(url, ended)
        self.name_ = name
        self.numbers = itertools.count()
        self.acknowledged = {"own": {}, "shared": {}}
        """When each item was acknowledged."""

    def work(self):
        number = next(self.numbers)
        for which, thread in (("own", self.name_), ("shared", "shared")):
            item = f"{self.name_} {number}"
            try:
                self.store.thread(thread).append("items", item)
            except backtrail.CommitUnknown:
                time.sleep(0.5)
                continue  # it may be there or not, but never twice
            self.acknowledged[which][item] = time.time()


class Reader(Client):
    """Reads the shared thread; its list never becomes shorter.

    A primary that is shut down may show a row for a moment that no standby has, and that no writer was told of. So a
    checkpoint may be gone when its state is read.
    """

    def __init__(self, url, ended):
        super().__init__(url, ended)
        self.length = 0
        self.fell = []
        self.gone = []

    def work(self):
        checkpoint = self.store.thread("shared").load()
        try:
            length = len(checkpoint.state["items"])
        except backtrail.NotFound:
            self.gone.append(checkpoint.id)
            return
        if length < self.length:
            self.fell.append((self.length, length))
        self.length = length


class Watcher(Client):
    """Sees each checkpoint of the shared thread, and perhaps one that no writer was told of, like the reader."""

    def __init__(self, url, ended):
        super().__init__(url, ended)
        self.seen = []
        self.start_after = self.store.thread("shared").latest().id

    def work(self):
        after = self.seen[-1] if self.seen else self.start_after
        for checkpoint in self.store.thread("shared").watch(after=after, timeout=1):
            self.seen.append(checkpoint.id)


class Payer(Client):
    """A worker of the run: each iteration makes one payment. Two workers race for the lease."""

    def __init__(self, url, ended, payments):
        super().__init__(url, ended)
        self.payments = payments
        """The effects outside of the store, which all workers share."""

    def work(self):
        try:
            with self.store.run(RUN, lease=2) as run:
                for _ in itertools.takewhile(lambda _: not self.ended.is_set(), run.iterations()):
                    run.tool("pay", self.pay, run.iteration, verify=self.look)
                    time.sleep(0.02)
                run.halt("the test has ended")
        except (backtrail.Conflict, backtrail.CommitUnknown):
            time.sleep(0.2)  # another worker has the lease, or the store was away for too long

    def pay(self, number):
        self.payments.append(number)
        return f"paid {number}"

    def look(self, call):
        number = call.arguments["args"][0]
        return backtrail.Done(f"paid {number}") if number in self.payments else backtrail.NotDone


class Clients:
    """All clients of a cluster, which work until `stop`."""

    def __init__(self, url):
        with backtrail.open(url) as store:
            for name in ["shared", *(f"w{n}" for n in range(WRITERS))]:
                store.thread(name).save({"items": []})
        self._ended = threading.Event()
        self.writers = [Writer(url, self._ended, f"w{n}") for n in range(WRITERS)]
        self.reader, self.watcher = Reader(url, self._ended), Watcher(url, self._ended)
        self.payments = []
        self.payers = [Payer(url, self._ended, self.payments) for _ in range(2)]
        self._all = [*self.writers, self.reader, self.watcher, *self.payers]

    def start(self):
        for client in self._all:
            client.start()

    def progress(self):
        """The number of acknowledged writes of each writer."""
        return [len(writer.acknowledged["own"]) for writer in self.writers]

    def stop(self):
        wait_for(lambda: self.payments)  # a lease that a failover interrupted has to run out first
        self._ended.set()
        for client in self._all:
            client.join(90)
            assert not client.is_alive()

    def check(self, url):
        """Check what the clients saw against what the store has."""
        assert [client.errors for client in self._all] == [[] for _ in self._all]
        with backtrail.open(url) as store:
            shared = store.thread("shared").load().state["items"]
            assert len(set(shared)) == len(shared)
            for writer in self.writers:
                own = store.thread(writer.name_).load().state["items"]
                assert len(set(own)) == len(own)
                for kept, acknowledged in ((own, writer.acknowledged["own"]), (shared, writer.acknowledged["shared"])):
                    there = set(kept)
                    assert {item: at for item, at in acknowledged.items() if item not in there} == {}
                    places = [kept.index(item) for item in [*acknowledged][-200:]]
                    assert places == sorted(places)
            assert not self.reader.fell
            assert not [each for each in self.reader.gone if store.checkpoint(each) is not None]
            history = [checkpoint.id for checkpoint in store.thread("shared").history()][1:]
            self._ended.clear()
            self.watcher.work()
            seen = list(dict.fromkeys(reversed(self.watcher.seen)))[::-1]  # a row that replaced a lost one has its id
            assert seen == history
            assert self.payments == sorted(set(self.payments))
            assert self.payments
            assert store.verify().ok
        for client in self._all:
            client.store.close()
