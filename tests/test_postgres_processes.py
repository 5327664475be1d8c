"""Several processes on one store in PostgreSQL, beside crashes, deadlocks, poolers and collections: all of it exact."""

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from functools import partial

import pytest

import backtrail
from tests import servers
from tests.test_postgres_faults import lengths

spawn = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def own():
    with servers.Server() as server:
        yield server


@pytest.fixture
def opener(own):
    with servers.place(own) as opener:
        yield opener


def run(target, *jobs):
    """Call a function in one process per job (its arguments); return what each gave."""
    with running(target, *jobs) as results:
        return results()


@contextlib.contextmanager
def running(target, *jobs):
    """The same, for a block that goes on meanwhile; it is given a function that waits for the results."""
    pipes = [spawn.Pipe(duplex=False) for _ in jobs]
    workers = [
        spawn.Process(target=_report, args=(sender, target, job))
        for (_, sender), job in zip(pipes, jobs, strict=True)
    ]
    for worker in workers:
        worker.start()
    for _, sender in pipes:
        sender.close()

    def results():
        given = [receiver.recv() for receiver, _ in pipes]
        for worker in workers:
            worker.join()
        assert [error for error, _ in given if error] == []
        return [result for _, result in given]

    try:
        yield results
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        for receiver, _ in pipes:
            receiver.close()


def _report(pipe, target, job):
    try:
        pipe.send((None, target(*job)))
    except BaseException as error:  # noqa: BLE001 - it is the result
        pipe.send((f"{type(error).__name__}: {error}", None))


# ---- appends --------------------------------------------------------------------------------------------------------


def _append(opener, writer, names, count):
    with opener() as store:
        for i in range(count):
            store.thread(names[i % len(names)]).append("items", (writer, i))


@pytest.mark.parametrize("count", lengths(40, 1000))
def test_eight_processes_appending_to_four_threads_lose_nothing_and_keep_each_writers_order(opener, count):
    names = [f"t{at}" for at in range(4)]
    with opener() as store:
        for name in names:
            store.thread(name).save({"items": []})
    run(_append, *((opener, writer, names, count) for writer in range(8)))
    check_appends(opener, names, writers=8, count=count)


def check_appends(opener, names, *, writers, count):
    with opener() as store:
        for at, name in enumerate(names):
            items = store.thread(name).load().state["items"]
            for writer in range(writers):
                mine = [i for w, i in items if w == writer]
                assert mine == [i for i in range(count) if i % len(names) == at]
            assert len(store.thread(name)) == len(items) + 1
        assert store.verify().ok


# ---- crashes of the server ------------------------------------------------------------------------------------------


class Writer:
    """Appends numbered items until it is told to stop, and keeps what became of each."""

    def __init__(self, store, name, stop):
        self.store, self.name, self.stop = store, name, stop
        self.acknowledged, self.unknown, self.refused = [], [], []

    def run(self):
        for i in range(1_000_000):
            if self.stop.is_set():
                return
            item = (self.name, i)
            try:
                self.write(i, item)
            except backtrail.CommitUnknown:
                self.unknown.append(item)
            except backtrail.Unavailable as error:
                self.refused.append((item, error.code))
            else:
                self.acknowledged.append(item)

    def write(self, i, item):
        if i % 5:
            self.store.thread("shared").append("items", item)
            return
        while True:  # a transaction conflicts with whoever writes meanwhile
            with contextlib.suppress(backtrail.Conflict), self.store.transaction():
                self.store.thread("left").append("items", item)
                self.store.thread("right").append("items", item)
                self.store.thread(f"own {self.name}").save({"item": item, "text": random.randbytes(9_000)})
            if self.store.thread(f"own {self.name}").latest().get("item") == item:
                return


def _write_until_told_to_stop(opener, process, stop):
    with opener() as store:
        writers = [Writer(store, f"{process}.{at}", stop) for at in range(2)]
        threads = [threading.Thread(target=writer.run) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [(writer.acknowledged, writer.unknown, writer.refused) for writer in writers]


@pytest.mark.parametrize("kills", lengths(3, 50))
def test_a_server_that_crashes_under_load_loses_nothing_that_it_acknowledged(kills):
    rng = random.Random(kills)
    stop = spawn.Event()
    with servers.Server() as server:
        opener = partial(backtrail.open, server.url)
        with opener() as store:
            for name in ("shared", "left", "right"):
                store.thread(name).save({"items": []})
        with running(_write_until_told_to_stop, *((opener, n, stop) for n in range(3))) as results:
            servers.wait_for(lambda: server.execute("SELECT count(*) FROM backtrail.row")[0][0] > 100)
            for _ in range(kills):
                time.sleep(rng.uniform(0.05, 0.4))
                server.kill()
                server.start()
            time.sleep(0.2)
            stop.set()
            outcomes = [outcome for process in results() for outcome in process]
        acknowledged = {item for done, _, _ in outcomes for item in done}
        unknown = {item for _, unknown, _ in outcomes for item in unknown}
        assert [refused for _, _, refused in outcomes if refused] == []
        assert len(acknowledged) > 20 * kills
        with opener() as store:
            for name in ("left", "right", "shared"):
                items = store.thread(name).load().state["items"]
                wanted = {item for item in acknowledged if (item[1] % 5 == 0) == (name != "shared")}
                assert [item for item, times in Counter(items).items() if times > 1] == []
                assert wanted - set(items) == set()
                assert set(items) - wanted <= unknown
                for writer in {who for who, _ in items}:
                    mine = [i for who, i in items if who == writer]
                    assert mine == sorted(mine)
            assert store.verify().ok
