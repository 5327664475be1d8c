"""Replies that are lost and servers that stay away: every write happens once or is reported, no conflict is false."""

import asyncio
import contextlib
import itertools
import random
import threading
import time
from functools import partial

import pytest

import backtrail
import backtrail.aio
from backtrail.backends.postgres import commit
from backtrail.backends.postgres.backend import PostgresBackend
from backtrail.backends.postgres.change_feed import Notifier
from tests.support import servers
from tests.support.lengths import lengths
from tests.support.proxy import BEFORE, DURING, SWALLOW, Proxy

WRITES = r"\bcommit\b|commit_\d|insert into"
"""The exchanges that commit something."""
ALL_KINDS = pytest.mark.parametrize("kind", [SWALLOW, BEFORE, DURING])
DONE_OR_NOT = pytest.mark.parametrize("kind", [SWALLOW, BEFORE])  # what is cut during ends as one of them


@pytest.fixture(scope="module")
def own():
    with servers.Server() as server:
        yield server


@pytest.fixture
def schema(own):
    name = f"test_{time.monotonic_ns()}"
    yield name
    own.drop_schema(name)


@pytest.fixture
def direct(own, schema):
    return partial(backtrail.open, own.url, schema=schema)


@pytest.fixture
def proxy(own):
    with Proxy(own.tcp_url) as proxy:
        yield proxy


@pytest.fixture
def store(proxy, schema):
    with backtrail.open(proxy.url, schema=schema) as store:
        yield store


# ---- writes of every kind, and what has to be there after them ------------------------------------------------------


class Deeds:
    """Operations that each write a number; `check` compares the store with the acknowledged operations."""

    def __init__(self, store):
        self.store = store
        self.rng = random.Random(1)
        self.histories = {
            "doc": [],
            "left": [],
            "right": [],
            "again": [],
        }  # the states of each thread's checkpoints, in order
        self.tags = []
        self.store.thread("log").save({"items": []})
        self.histories["log"] = [{"items": []}]
        self.store.thread("moved").save({"n": None})
        self.store.thread("moved").save({"n": None})
        self.histories["moved"] = [{"n": None}, {"n": None}]

    def all(self):
        return [self.append, self.save, self.create, self.fork, self.together, self.tag, self.undo, self.again]

    def append(self, n):
        self.store.thread("log").append("items", n)
        self.histories["log"].append({"items": [*self.histories["log"][-1]["items"], n]})

    def save(self, n):
        state = {"n": n, "chunks": self.rng.randbytes(20_000)}
        self.store.thread("doc").save(state)
        self.histories["doc"].append(state)

    def create(self, n):
        self.store.thread(f"new {n}").save({"n": n}, expect=backtrail.NEW)
        self.histories[f"new {n}"] = [{"n": n}]

    def fork(self, n):
        self.store.thread("moved").fork(f"fork {n}")
        self.histories[f"fork {n}"] = self.histories["moved"][-1:]

    def together(self, n):
        with self.store.transaction():
            for name in ("left", "right"):
                self.store.thread(name).save({"n": n})
        for name in ("left", "right"):
            self.histories[name].append({"n": n})

    def tag(self, n):
        checkpoint = self.store.thread("log").tag("@", f"tag {n}")
        self.tags.append((checkpoint.id, f"tag {n}"))

    def undo(self, n):
        """Three rows of the log; done twice, an undo would show."""
        moved = self.store.thread("moved")
        moved.save({"n": n})
        assert moved.undo().state == self.histories["moved"][-1]
        assert moved.redo().state == {"n": n}
        self.histories["moved"].append({"n": n})

    def again(self, n):
        """A thread that was deleted begins again."""
        thread = self.store.thread("again")
        if self.histories["again"]:
            thread.delete()
            self.histories["again"] = []
        else:
            thread.save({"n": n})
            self.histories["again"] = [{"n": n}]

    def check(self, opener):
        with opener() as store:
            assert {info.id for info in store.threads()} == {name for name, states in self.histories.items() if states}
            for name, states in self.histories.items():
                found = list(store.thread(name).history())
                assert [checkpoint.state for checkpoint in found] == states, name
                assert all(after.step == before.step + 1 for before, after in itertools.pairwise(found))
            for id_, tag in self.tags:
                assert tag in store.thread("log").load(id_).tags
            assert store.verify().ok


@ALL_KINDS
@pytest.mark.parametrize("count", lengths(24, 1000))
def test_writes_whose_replies_are_lost_happen_once(store, proxy, direct, kind, count):
    deeds = Deeds(store)
    fired = []
    for n, deed in zip(range(count), itertools.cycle(deeds.all())):
        fault = proxy.fault(kind, sql=WRITES, skip=deeds.rng.randrange(3) if deed == deeds.undo else 0)
        deed(n)
        proxy.disarm()
        fired += fault.fired
    assert len(fired) == count
    assert not any(fired_.failed for fired_ in fired)
    if kind == SWALLOW:
        assert fired[0].status == "I"  # it was committed; after a lost reply, later writes may take several statements
    deeds.check(direct)


@DONE_OR_NOT
@pytest.mark.parametrize("every", lengths(2, 1))
def test_any_exchange_of_any_write_may_be_lost(proxy, schema, direct, kind, every):
    with direct() as store:
        deeds = Deeds(store)
    number, first = itertools.count(), itertools.count()
    for deed in deeds.all():
        for skip in itertools.count(next(first) % every, every):
            with backtrail.open(proxy.url, schema=schema) as deeds.store:  # it has read nothing yet
                fault = proxy.fault(kind, skip=skip)
                deed(next(number))
                proxy.disarm()
            if not fault.fired:
                break
        assert skip > 1
    deeds.check(direct)


@pytest.mark.parametrize("kind", [SWALLOW, DURING])
def test_lost_replies_behind_pgbouncer_write_once(own, schema, direct, kind):
    with (
        servers.pgbouncer(own, pool=2) as bouncer,
        Proxy(bouncer.url) as proxy,
        backtrail.open(proxy.url, schema=schema) as store,
    ):
        deeds = Deeds(store)
        for n, deed in enumerate(deeds.all() * 3):
            fault = proxy.fault(kind, sql=WRITES)
            deed(n)
            proxy.disarm()
            assert len(fault.fired) == 1
    deeds.check(direct)


@DONE_OR_NOT
@pytest.mark.parametrize("every", lengths(2, 1))
def test_interrupted_creation_succeeds_the_next_time(own, proxy, schema, kind, every):
    for skip in itertools.count(kind == SWALLOW, every):
        try:
            fault = proxy.fault(kind, skip=skip)
            with contextlib.suppress(backtrail.Unavailable):
                backtrail.open(proxy.url, schema=schema).close()
            proxy.disarm()
            with backtrail.open(own.url, schema=schema) as store:
                store.thread("t").save({"n": skip, "text": "x" * 10_000})
                assert store.thread("t").load().state["n"] == skip
        finally:
            own.drop_schema(schema)
        if not fault.fired:
            break
    assert skip > 6


def test_write_that_is_retried_while_under_way_happens_once(  # noqa: PLR0917 - fixtures
    store, proxy, own, direct, schema, monkeypatch
):
    deeds = Deeds(store)
    # The notifier must not use a connection: the operation would get one without prepared statements.
    monkeypatch.setattr(Notifier, "send_soon", lambda *_: None)
    store._backend._notifier.end()
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    busy = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    for n, deed in enumerate(deeds.all()):
        deeds.append(n)  # so that the statement is prepared: that would have to wait, too
        servers.wait_for(lambda: own.execute(busy) == [(0,)])  # the operation before has ended
        with own.connect() as holder, holder.transaction():
            for table in ("thread", "row", "chunk", "tag"):  # writers have to wait, readers do not
                holder.execute(f"LOCK TABLE {schema}.{table} IN SHARE MODE")
            fault = proxy.fault(DURING, sql=WRITES)
            writer = threading.Thread(target=deed, args=(n,))
            writer.start()
            servers.wait_for(lambda: own.execute(waiting)[0][0] >= 2)
        writer.join(30)
        assert not writer.is_alive()
        assert len(fault.fired) == 1
        proxy.disarm()
    deeds.check(direct)


@ALL_KINDS
@pytest.mark.parametrize("count", lengths(16, 500))
def test_awaited_writes_whose_replies_are_lost_happen_once(proxy, schema, direct, kind, count):
    rng = random.Random(count)
    fired = []

    async def run():
        async with await backtrail.aio.open(proxy.url, schema=schema) as store:
            for round_ in range(count):
                any_exchange = proxy.fault(kind, skip=rng.randrange(12)) if round_ % 2 else None
                fault = any_exchange or proxy.fault(kind, sql="^commit$")
                await asyncio.gather(
                    *(store.thread(f"t{i % 3}").append("items", (round_, i)) for i in range(6)),
                    store.thread(f"new {round_}").save({"n": round_}, expect=backtrail.NEW),
                )
                proxy.disarm()
                fired.extend(fault.fired)

    with direct() as store:
        for i in range(3):
            store.thread(f"t{i}").save({"items": []})
    asyncio.run(run())
    assert len(fired) >= count * 3 // 4
    with direct() as store:
        for i in range(3):
            found = store.thread(f"t{i}").load().state["items"]
            assert sorted(found) == [(round_, j) for round_ in range(count) for j in (i, i + 3)]
            assert len(store.thread(f"t{i}")) == 2 * count + 1
        assert [len(store.thread(f"new {n}")) for n in range(count)] == [1] * count
        assert store.verify().ok


# ---- a server that stays away ---------------------------------------------------------------------------------------


@pytest.fixture
def patience(monkeypatch):
    """Stores that are opened from now on wait for a third of a second."""
    monkeypatch.setitem(PostgresBackend.__init__.__kwdefaults__, "patience", 0.3)


@pytest.fixture
def impatient(proxy, schema, patience):
    with backtrail.open(proxy.url, schema=schema) as store:
        yield store


@pytest.mark.parametrize(("kind", "there"), [(SWALLOW, True), (BEFORE, False)])
def test_write_to_a_server_that_stays_away_is_unknown(impatient, proxy, direct, kind, there):
    thread = impatient.thread("t")
    thread.save({"items": [0]})
    proxy.fault(kind, sql=WRITES, leave=True)
    with pytest.raises(backtrail.CommitUnknown) as caught:
        thread.append("items", 1)
    assert caught.value.code == "commit_unknown.connection"
    with pytest.raises(backtrail.Unavailable) as caught:
        thread.append("items", 2)  # nothing of it was sent
    assert caught.value.code == "unavailable.connection"
    with pytest.raises(backtrail.Unavailable):
        thread.load()
    proxy.disarm()
    proxy.come_back()
    assert thread.load().state == {"items": [0, 1] if there else [0]}
    thread.append("items", 3)
    thread.save({"items": [4]})
    with direct() as store:
        assert store.thread("t").load().state == {"items": [4]}
        assert len(store.thread("t")) == 4 if there else 3


def test_transaction_with_unknown_end_is_whole_or_absent(impatient, proxy, direct):
    for name in ("a", "b"):
        impatient.thread(name).save({"items": []})
    for n, kind in enumerate((SWALLOW, BEFORE)):
        proxy.fault(kind, sql=WRITES, leave=True)
        with pytest.raises(backtrail.CommitUnknown), impatient.transaction():
            impatient.thread("a").append("items", n)
            impatient.thread("b").append("items", n)
        proxy.disarm()
        proxy.come_back()
        with direct() as store:
            assert store.thread("a").load().state == store.thread("b").load().state == {"items": [0]}


def test_restarting_server_is_waited_for(store, proxy):
    thread = store.thread("t")
    thread.save({"n": 1})
    for n in range(2, 5):
        proxy.leave(0.5)
        began = time.monotonic()
        thread.save({"n": n})
        assert time.monotonic() - began > 0.2
    proxy.leave(0.5)
    assert thread.load().state == {"n": 4}
    assert [c.state["n"] for c in thread.history()] == [1, 2, 3, 4]


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(("kind", "there"), [(SWALLOW, [0, 1, 2]), (BEFORE, [0])])
def test_async_write_without_reply_is_commit_unknown(proxy, schema, direct, kind, there):
    async def run(name):
        async with await backtrail.aio.open(proxy.url, schema=schema) as store:
            thread = store.thread(name)
            await thread.save({"items": [0]})
            fault = proxy.fault(kind, sql="^commit$", leave=True)
            outcomes = await asyncio.gather(*(thread.append("items", n) for n in (1, 2)), return_exceptions=True)
            proxy.disarm()
            proxy.come_back()
            await thread.append("items", 3)
            return fault.fired, outcomes

    for name in "abcdef":  # the first may be under way, alone, before the second comes: then there is no COMMIT
        fired, outcomes = asyncio.run(run(name))
        if fired:
            break
    assert [type(outcome) for outcome in outcomes] == [backtrail.CommitUnknown] * 2
    with direct() as store:
        assert store.thread(name).load().state == {"items": [*there, 3]}


def test_write_without_reply_is_unknown_if_reads_fail(store, own, proxy, direct, schema):
    """The server is back, and does not let us see what became of it: to say that it failed would be a guess."""
    thread = store.thread("t")
    thread.save({"n": 1})
    fault = proxy.fault(SWALLOW, sql=WRITES, leave=True)
    outcome = []

    def write():
        try:
            outcome.append(thread.set("n", 2))
        except backtrail.Error as error:
            outcome.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    servers.wait_for(lambda: fault.fired)
    own.execute("ALTER ROLE postgres SET statement_timeout = '100ms'")
    try:
        with own.connect() as holder, holder.transaction():
            holder.execute(f"LOCK TABLE {schema}.thread IN ACCESS EXCLUSIVE MODE")
            proxy.come_back()
            writer.join(120)
    finally:
        own.execute("ALTER ROLE postgres RESET statement_timeout")
    assert [type(each) for each in outcome] == [backtrail.CommitUnknown]
    assert thread.load().state == {"n": 2}


@DONE_OR_NOT
def test_write_in_pieces_survives_any_lost_exchange(proxy, schema, direct, kind, monkeypatch):
    monkeypatch.setattr(commit, "PIECE", 10_000)
    rng = random.Random(1)
    states = []
    for skip in itertools.count():
        with backtrail.open(proxy.url, schema=schema) as store:
            if states:
                store.thread("t").load()
            fault = proxy.fault(kind, skip=skip)
            states.append({"n": skip, "parts": [rng.randbytes(8_000) for _ in range(4)]})
            store.thread("t").save(states[-1])
            proxy.disarm()
        if not fault.fired:
            break
    assert skip > 6
    with direct() as store:
        assert [checkpoint.state for checkpoint in store.thread("t").history()] == states
        assert store.verify().ok
