"""A store that is opened read-only on a standby reads, lists, searches and watches, as of the standby's position."""

import threading

import pytest

import backtrail
from tests.support import servers


@pytest.fixture(scope="module")
def primary():
    with servers.Server() as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary):
    with servers.Standby(primary, max_standby_streaming_delay="0") as server:
        yield server


def catch_up(primary, standby):
    """Wait until the standby has replayed all that the primary has written."""
    ((position,),) = primary.execute("SELECT pg_current_wal_insert_lsn()::text")
    done = f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
    servers.wait_for(lambda: standby.execute(done) == [(True,)])


def test_standby_reads_lists_and_searches(primary, standby):
    with backtrail.open(primary.tcp_url, schema="reads") as store:
        store.thread("a", agent="me").save({"messages": ["a fox"]}, label="first")
        store.index()
        catch_up(primary, standby)
        with backtrail.open(standby.tcp_url, schema="reads", read_only=True) as replica:
            assert replica.thread("a").load("first").state == {"messages": ["a fox"]}
            assert [info.id for info in replica.threads(agent="me")] == ["a"]
            assert replica.stats().threads == 1
            assert replica.verify().ok
            assert [hit.conversation_id for hit in replica.search("fox")] == ["a"]
            store.thread("b").save({"messages": ["another fox"]})
            catch_up(primary, standby)
            with pytest.raises(backtrail.Unavailable) as raised:
                replica.search("fox")
            assert raised.value.code == "unavailable.read_only"
            hits = replica.search("fox", wait=False)
            assert ([hit.conversation_id for hit in hits], hits.behind) == (["a"], 1)
            store.index()
            catch_up(primary, standby)
            assert len(replica.search("fox")) == 2


def test_standby_watches(primary, standby):
    with backtrail.open(primary.tcp_url, schema="watches") as store:
        store.thread("a").save({"n": 0})
        catch_up(primary, standby)
        replica = backtrail.open(standby.tcp_url, schema="watches", read_only=True)
        with replica, replica.watch(timeout=30) as news:
            store.thread("a").set("n", 1)
            assert next(news).state == {"n": 1}
            store.thread("b").save({"n": 2})
            assert next(news).thread_id == "b"


def test_recovery_conflicts_are_retried(primary, standby):
    count = "SELECT sum(confl_lock + confl_snapshot + confl_bufferpin)::int FROM pg_stat_database_conflicts"
    with backtrail.open(primary.tcp_url, schema="conflicts") as store:
        for n in range(50):
            store.thread(f"t{n}").save({"n": n})
        catch_up(primary, standby)
        stop = threading.Event()

        def lock():
            with primary.connect() as connection:
                while not stop.wait(0.001):
                    connection.execute(
                        "BEGIN; LOCK TABLE conflicts.row, conflicts.thread IN ACCESS EXCLUSIVE MODE; COMMIT"
                    )

        locker = threading.Thread(target=lock)
        locker.start()
        try:
            with backtrail.open(standby.tcp_url, schema="conflicts", read_only=True) as replica:

                def conflicted():
                    assert len(list(replica.threads())) == 50
                    assert replica.thread("t7").latest().state == {"n": 7}
                    return standby.execute(count)[0][0] > 0

                servers.wait_for(conflicted)
        finally:
            stop.set()
            locker.join()
