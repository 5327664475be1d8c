"""Several processes on one store in PostgreSQL, beside crashes, deadlocks, poolers and collections: all of it exact."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import backtrail
from backtrail.errors import Unavailable
from tests.backends.sqlite.test_backend import append, start
from tests.support import servers
from tests.support.lengths import lengths
from tests.support.processes import spawn


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
    """The same, for a block that runs at the same time; it gets a function that waits for the results."""
    pipes = [spawn.Pipe(duplex=False) for _ in jobs]
    workers = [
        spawn.Process(target=_report, args=(sender, target, job)) for (_, sender), job in zip(pipes, jobs, strict=True)
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
def test_appends_of_eight_processes_keep_each_writers_order(opener, count):
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


@pytest.mark.parametrize("level", ["read committed", "serializable"])
def test_several_may_create_the_same_store_at_once(own, level):
    role = servers.Running(f"{own.url}&options=-c%20default_transaction_isolation%3D{level.replace(' ', '%5C%20')}")
    assert role.execute("SHOW transaction_isolation") == [(level,)]
    for _ in range(5):
        with servers.place(role) as opener, ThreadPoolExecutor(8) as pool:
            together = threading.Barrier(8)

            def begin(n, opener=opener, together=together):
                together.wait()
                with opener() as store:
                    store.thread(f"t{n}").save({"n": n})

            list(pool.map(begin, range(8)))
            with opener() as store:
                assert {info.id for info in store.threads()} == {f"t{n}" for n in range(8)}


def _append_forever(opener, told):
    with opener() as store:
        for i in range(1_000_000):
            if i % 3:
                store.thread("t").append("items", (os.getpid(), i))
            else:
                with store.transaction():
                    store.thread("t").append("items", (os.getpid(), i))
                    store.thread(f"other {os.getpid()}").save({"i": i, "text": os.urandom(20_000)})
            told.send((os.getpid(), i))


def test_killed_writers_lose_no_acknowledged_write(opener):
    with opener() as store:
        store.thread("t").save({"items": []})
    acknowledged = []
    for _ in range(4):
        receiver, sender = spawn.Pipe(duplex=False)
        writer = spawn.Process(target=_append_forever, args=(opener, sender))
        writer.start()
        sender.close()
        acknowledged += [receiver.recv() for _ in range(random.randrange(20, 40))]
        writer.kill()
        with contextlib.suppress(EOFError):
            while True:
                acknowledged.append(receiver.recv())
        writer.join()
        receiver.close()
    with opener() as store:
        items = store.thread("t").load().state["items"]
        assert len(items) == len(set(items))
        assert set(acknowledged) <= set(items)
        for pid in {pid for pid, _ in items}:
            last = max(i for writer, i in items if writer == pid)
            assert store.thread(f"other {pid}").load().get("i") == last // 3 * 3
        assert store.verify().ok


# ---- crashes of the server ------------------------------------------------------------------------------------------


class Writer:
    """Appends numbered items until it gets a stop signal, and records the outcome of each."""

    def __init__(self, store, process, number, stop):
        self.store, self.process, self.stop = store, process, stop
        self.name = f"{process}.{number}"
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
        own = self.store.thread(f"own {self.name}")
        while True:
            try:
                with self.store.transaction():
                    for side in ("left", "right"):
                        self.store.thread(f"{side} {self.process}").append("items", item)
                    own.save({"item": item, "text": random.randbytes(9_000)})
                return
            except backtrail.Conflict:  # another process wrote meanwhile: nothing of it may be there
                pass
            latest = own.latest()
            assert latest is None or latest.get("item") != item, "a false conflict"


def _write_until_told_to_stop(opener, process, stop):
    with opener() as store:
        writers = [Writer(store, process, at, stop) for at in range(2)]
        threads = [threading.Thread(target=writer.run) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [(writer.acknowledged, writer.unknown, writer.refused) for writer in writers]


@pytest.mark.parametrize("kills", lengths(2, 50))
def test_server_crash_loses_no_acknowledged_write(kills):
    rng = random.Random(kills)
    stop = spawn.Event()
    sides = [f"{side} {process}" for side in ("left", "right") for process in range(3)]
    with servers.Server() as server:
        opener = partial(backtrail.open, server.url)
        with opener() as store:
            for name in ("shared", *sides):
                store.thread(name).save({"items": []})
        with running(_write_until_told_to_stop, *((opener, n, stop) for n in range(3))) as results:
            begun = "SELECT count(*) FROM backtrail.thread WHERE convert_from(name, 'UTF8') LIKE 'own %'"
            servers.wait_for(lambda: server.execute(begun) == [(6,)])
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
        assert len(acknowledged) > 5 * kills
        print(f"\n{kills} kills: {len(acknowledged)} writes acknowledged, {len(unknown)} unknown")  # noqa: T201
        with opener() as store:
            for name in ("shared", *sides):
                items = store.thread(name).load().state["items"]
                mine = f"{name.split()[-1]}." if name in sides else ""
                wanted = {
                    item for item in acknowledged if (item[1] % 5 == 0) == bool(mine) and item[0].startswith(mine)
                }
                assert [item for item, times in Counter(items).items() if times > 1] == []
                assert wanted - set(items) == set()
                assert set(items) - wanted <= unknown
                for writer in {name for name, _ in items}:
                    numbers = [i for name, i in items if name == writer]
                    assert numbers == sorted(numbers)
            assert store.verify().ok


# ---- in each other's way --------------------------------------------------------------------------------------------


def _transact(opener, writer, names, count):
    """Write to several threads at once, in the given order; return how often others were first."""
    conflicts = 0
    with opener() as store:
        for i in range(count):
            while True:
                try:
                    with store.transaction():
                        for name in names:
                            store.thread(name).append("items", (writer, i))
                    break
                except backtrail.Conflict:
                    conflicts += 1
    return conflicts


@pytest.mark.parametrize("count", lengths(30, 500))
def test_transactions_over_threads_in_opposite_orders_all_get_through(opener, count):
    names = ["a", "b", "c"]
    with opener() as store:
        for name in names:
            store.thread(name).save({"items": []})
    run(_transact, *((opener, writer, names[:: 1 if writer % 2 else -1], count) for writer in range(4)))
    with opener() as store:
        states = [store.thread(name).load().state["items"] for name in names]
        assert states[0] == states[1] == states[2]  # as if they had been one after the other
        assert sorted(states[0]) == [(writer, i) for writer in range(4) for i in range(count)]
        assert store.verify().ok


def _share_chunks(opener, writer, texts, count):
    """Save what others save at the same time, in another order, under a name of one's own."""
    rng = random.Random(writer)
    with opener() as store:
        for i in range(count):
            store.thread(f"{writer} {i % 3}").save({"texts": rng.sample(texts, len(texts)), "round": i})


@pytest.mark.parametrize("count", lengths(15, 200))
def test_writers_of_chunks_in_different_orders_succeed(opener, count):
    texts = [random.Random(at).randbytes(8_000).hex() for at in range(12)]
    run(_share_chunks, *((opener, writer, texts, count) for writer in range(4)))
    with opener() as store:
        for writer in range(4):
            for at in range(3):
                assert sorted(store.thread(f"{writer} {at}").load().state["texts"]) == sorted(texts)
        assert store.verify().ok


def test_stricter_isolation_changes_nothing():
    with servers.Server(default_transaction_isolation="serializable") as server:
        assert server.execute("SHOW transaction_isolation") == [("serializable",)]
        opener = partial(backtrail.open, server.url)
        names = ["a", "b"]
        with opener() as store:
            for name in names:
                store.thread(name).save({"items": []})
        run(_append, *((opener, writer, names, 30) for writer in range(4)))
        check_appends(opener, names, writers=4, count=30)
        with opener() as store:
            for name in names:
                store.thread(name).save({"items": []})
            store.gc()
        run(_transact, *((opener, writer, names[:: 1 if writer % 2 else -1], 15) for writer in range(4)))
        with opener() as store:
            for name in names:
                assert len(store.thread(name).load().state["items"]) == 60
            assert store.verify().ok


# ---- PgBouncer ------------------------------------------------------------------------------------------------------


def _all_kinds_of_calls(opener, writer, count):
    with opener() as store:
        for i in range(count):
            store.thread("shared").append("items", (writer, i))
            thread = store.thread(f"own {writer}")
            thread.save({"n": i, "text": "words " * 3_000})
            thread.tag("@", f"tag {i}")
            if i % 4 == 3:
                thread.undo()
                thread.redo()
                thread.fork(f"fork {writer} {i}")
                with store.transaction():
                    store.thread(f"left {writer}").save({"n": i})
                    store.thread(f"right {writer}").save({"n": i})
            assert thread.load().state["n"] == i
            assert [c.state["n"] for c in thread.history()] == list(range(i + 1))


def test_pgbouncer_in_transaction_mode_serves_more_clients_than_connections(own, opener):
    with servers.pgbouncer(own, pool=2) as bouncer:
        through = partial(backtrail.open, bouncer.url, schema=opener.keywords["schema"])
        with through() as store:
            store.thread("shared").save({"items": []})
        with running(_all_kinds_of_calls, *((through, writer, 24) for writer in range(4))) as results:
            rows = f"SELECT count(*) FROM {opener.keywords['schema']}.row"
            begun = f"SELECT count(*) FROM {opener.keywords['schema']}.thread WHERE name LIKE 'own %'"
            servers.wait_for(lambda: own.execute(begun) == [(4,)])  # a process that opens a store is not patient
            for least in (40, 120):
                servers.wait_for(lambda least=least: own.execute(rows)[0][0] > least)
                bouncer.restart()
            results()
        with through() as store:
            store.gc()
            assert sorted(store.thread("shared").load().state["items"]) == [(w, i) for w in range(4) for i in range(24)]
    with opener() as store:
        assert len(store.thread("shared")) == 4 * 24 + 1
        for writer in range(4):
            assert len(store.thread(f"own {writer}")) == 24
            assert len(store.thread(f"left {writer}")) == len(store.thread(f"right {writer}")) == 6
            assert store.thread(f"own {writer}").find(tag="tag 7")[0].state["n"] == 7
        assert store.verify().ok


# ---- fork() ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_parent_keeps_its_connections_after_a_forked_child(own, opener):
    with opener() as store:
        thread = store.thread("t")
        thread.save({"items": []})
        thread.load()
        backends = "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = 'backtrail'"
        before = set(own.execute(backends)[0][0])
        for round_ in range(3):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                code = 1
                try:
                    for i in range(5):
                        thread.append("items", ("child", round_, i))
                    if round_ == 1:
                        store.close()  # what the parent uses is not the child's to close
                    code = 0
                finally:
                    if round_ == 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    os._exit(code)
            for i in range(5):
                thread.append("items", ("parent", round_, i))
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert ended == (-signal.SIGKILL if round_ == 2 else 0)
            thread.append("items", ("parent", round_, 5))
        assert before <= set(own.execute(backends)[0][0])
        wanted = {(name, round_, i) for name in ("child", "parent") for round_ in range(3) for i in range(5)}
        found = thread.load().state["items"]
        assert set(found) == wanted | {("parent", round_, 5) for round_ in range(3)}
        assert len(found) == len(set(found))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
@pytest.mark.parametrize("kind", ["group", "snapshot"])
@pytest.mark.parametrize("deed", ["read", "write", "end"])
def test_child_leaves_a_group_or_snapshot_to_its_parent(opener, kind, deed):
    with opener() as store:
        backend = store._backend
        no = start(backend)
        parent = os.getpid()
        try:
            with getattr(backend, kind)() as view:
                used = view or backend
                append(backend, no)
                child = os.fork()
                if child:
                    assert os.waitpid(child, 0)[1] == 0
                    assert used.newest(no).seq == (2 if kind == "group" else 1)
                elif deed == "read" or (deed, kind) == ("write", "group"):
                    signal.alarm(30)
                    with pytest.raises(Unavailable, match="forked"):
                        used.newest(no) if deed == "read" else append(backend, no)
        except Unavailable as error:
            os._exit(error.code != "unavailable.forked")
        finally:
            if os.getpid() != parent:
                os._exit(kind == "group")
        assert append(backend, no).seq == 3
