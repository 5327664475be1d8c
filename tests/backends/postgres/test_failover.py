"""A primary and a standby: what a writer does when the primary is gone, and the standby takes its place."""

import threading
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import backtrail
from tests.support import servers
from tests.support.proxy import STALL, Proxy

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
END_WAITING = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def primary():
    with servers.Server() as server:
        yield server


@pytest.fixture
def standby(primary):
    with servers.Standby(primary) as server:
        yield server


def url_of(*members):
    hosts = ",".join(f"127.0.0.1:{member.port}" for member in members)
    return f"postgresql://postgres@{hosts}/postgres"


def make_synchronous(primary):
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.execute("SELECT pg_reload_conf()")
    servers.wait_for(lambda: primary.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])


def in_background(work):
    """Start `work`; return its thread, and the list that gets its result or its error."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except backtrail.Error as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def writes():
    """Writes of one statement, of several rows, and of a new thread."""

    def together(store):
        with store.transaction():
            store.thread("log").append("items", "lost reply")
            store.thread("other").save({"n": 1})

    return {
        "append": lambda store: store.thread("log").append("items", "lost reply"),
        "transaction": together,
        "new thread": lambda store: store.thread("new").save({"n": 1}),
    }


@pytest.mark.parametrize("name", ["append", "transaction", "new thread"])
def test_a_write_that_got_no_reply_waits_for_the_standby(primary, standby, name):
    primary.execute("ALTER ROLE postgres SET synchronous_commit = off")  # for transactions that do not ask for more
    with backtrail.open(primary.tcp_url) as store:
        store.thread("log").save({"items": []})
        store.thread("other").save({"n": 0})
        make_synchronous(primary)
        standby.freeze()
        thread, outcome = in_background(lambda: writes()[name](store))
        servers.wait_for(lambda: primary.execute(WAITS) == [(1,)])
        primary.execute(END_WAITING)  # it is committed here, and the standby does not have it
        servers.wait_for(lambda: primary.execute(WAITS) == [(1,)])  # the writer has found it, and waits for the standby
        assert not outcome
        standby.thaw()
        thread.join(60)
        assert not isinstance(outcome[0], backtrail.Error), outcome
        primary.kill()
        standby.promote()
    with backtrail.open(standby.tcp_url) as store:
        items = store.thread("log").load().state["items"]
        assert items == ([] if name == "new thread" else ["lost reply"])
        assert store.thread("new").latest() is None or name == "new thread"


@pytest.mark.parametrize("way", ["append", "transaction", "update", "save"])
def test_a_process_does_not_go_on_from_rows_that_the_new_primary_lacks(primary, standby, way):
    """The standby was away, so it lacks a row; another process writes another row in its place."""
    with backtrail.open(url_of(primary, standby)) as store:
        log = store.thread("log")
        log.save({"items": ["kept"]})
        servers.wait_for(lambda: standby.execute("SELECT to_regclass('backtrail.row') IS NOT NULL") == [(True,)])
        servers.wait_for(lambda: standby.execute("SELECT count(*) FROM backtrail.row") == [(1,)])
        standby.stop()
        log.append("items", "lost")
        primary.kill()
        standby.start()
        standby.promote()
        with backtrail.open(standby.tcp_url) as other:
            other.thread("log").append("items", "other")
        if way == "append":
            log.append("items", "mine")
        elif way == "transaction":
            with store.transaction():
                store.thread("log").append("items", "mine")
        elif way == "update":
            log.update(lambda state: {"items": [*state["items"], "mine"]})
        else:
            with pytest.raises(backtrail.Conflict):
                log.save({"items": ["kept", "lost", "mine"]})
            log.append("items", "mine")
        assert log.load().state == {"items": ["kept", "other", "mine"]}
        assert store.verify().ok


@pytest.mark.parametrize("count", [1, 3])
def test_a_watch_goes_back_to_rows_that_replaced_lost_ones(primary, standby, count):
    """The watch has read rows that the new primary lacks; other rows have their numbers there."""
    with backtrail.open(url_of(primary, standby)) as store:
        log = store.thread("log")
        log.save({"items": []})
        one, every = log.watch(), store.watch()
        kept = log.append("items", "kept")
        servers.wait_for(lambda: standby.execute("SELECT to_regclass('backtrail.row') IS NOT NULL") == [(True,)])
        servers.wait_for(lambda: standby.execute("SELECT count(*) FROM backtrail.row") == [(2,)])
        standby.stop()
        lost = [log.append("items", f"lost {n}") for n in range(count)]
        assert [next(one) for _ in range(count + 1)] == [next(every) for _ in range(count + 1)] == [kept, *lost]
        primary.kill()
        standby.start()
        standby.promote()
        late = store.thread("log").watch(after=lost[-1].id)
        with backtrail.open(standby.tcp_url) as other:
            made = [other.thread("log").append("items", f"new {n}") for n in range(3)]
        assert made[0].id == lost[0].id
        for watch in (one, late, every):
            assert [next(watch).op_id for _ in range(3)] == [checkpoint.op_id for checkpoint in made]


def test_a_run_whose_lease_was_lost_with_the_primary_is_lost(primary, standby):
    made = []
    with backtrail.open(url_of(primary, standby)) as store:
        run = store.run("r", strategy=backtrail.AfterToolCall())
        with pytest.raises(backtrail.Conflict), run:
            servers.wait_for(lambda: standby.execute("SELECT to_regclass('backtrail.row') IS NOT NULL") == [(True,)])
            count = primary.execute("SELECT count(*) FROM backtrail.row")
            servers.wait_for(lambda: standby.execute("SELECT count(*) FROM backtrail.row") == count)
            standby.stop()
            run.tool("first", lambda: 1)
            primary.kill()
            standby.start()
            standby.promote()
            with backtrail.open(standby.tcp_url) as other, other.run("r", takeover=True) as taken:
                taken.tool("theirs", lambda: 2)
            run.tool("second", lambda: made.append(1))
    assert not made


def test_writers_go_on_after_a_switchover(primary, standby):
    with backtrail.open(url_of(primary, standby)) as store:
        log = store.thread("log")
        log.save({"items": []})
        make_synchronous(primary)
        log.append("items", 1)
        primary.stop()
        thread, outcome = in_background(lambda: log.append("items", 2))
        standby.promote()
        thread.join(60)
        assert not isinstance(outcome[0], backtrail.Error)
        assert log.load().state == {"items": [1, 2]}


def test_a_writer_waits_until_its_address_leads_to_the_primary(primary, standby):
    """A proxy leads to the standby for a moment before it is promoted."""
    with Proxy(primary.tcp_url) as proxy, backtrail.open(proxy.url) as store:
        log = store.thread("log")
        log.save({"items": []})
        make_synchronous(primary)
        log.append("items", 1)
        proxy.turn_to(standby.tcp_url)
        thread, outcome = in_background(lambda: (log.append("items", 2), log.load().state))
        servers.wait_for(lambda: "not currently accepting" in standby.log() or proxy.exchanges or not thread.is_alive())
        assert not outcome
        primary.stop()
        standby.promote()
        thread.join(60)
        assert outcome[0][1] == {"items": [1, 2]}


def test_a_session_that_becomes_read_only_is_replaced(primary):
    with backtrail.open(primary.tcp_url) as store:
        log = store.thread("log")
        log.save({"items": []})
        with psycopg.connect(primary.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            admin.execute("SELECT pg_reload_conf()")
            servers.wait_for(lambda: primary.execute("SHOW default_transaction_read_only") == [("on",)])
            thread, outcome = in_background(partial(log.append, "items", 1))
            admin.execute("SET default_transaction_read_only = off")
            admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
            admin.execute("SELECT pg_reload_conf()")
        thread.join(60)
        assert not isinstance(outcome[0], backtrail.Error)
        assert log.load().state == {"items": [1]}


def test_a_former_primary_that_comes_back_is_not_read(primary, standby):
    """A proxy leads to it again for a moment, and it takes itself for the primary still."""
    with Proxy(primary.tcp_url) as proxy, backtrail.open(proxy.url) as store:
        log = store.thread("log")
        log.save({"items": [1]})
        servers.wait_for(lambda: standby.execute("SELECT to_regclass('backtrail.row') IS NOT NULL") == [(True,)])
        servers.wait_for(lambda: standby.execute("SELECT count(*) FROM backtrail.row") == [(1,)])
        standby.promote()
        proxy.turn_to(standby.tcp_url)
        log.append("items", 2)
        proxy.turn_to(primary.tcp_url)
        before = proxy.exchanges
        thread, outcome = in_background(lambda: log.load().state)
        servers.wait_for(lambda: outcome or proxy.exchanges >= before + 12)  # more than a load of that server takes
        assert not outcome
        proxy.turn_to(standby.tcp_url)
        thread.join(60)
        assert outcome == [{"items": [1, 2]}]


def test_an_answer_of_a_former_primary_that_comes_late_is_refused(primary, standby):
    """It was on its way when another call of the process found the new primary."""
    with Proxy(primary.tcp_url) as proxy, backtrail.open(proxy.url) as store:
        log = store.thread("log")
        log.save({"items": [1]})
        servers.wait_for(lambda: standby.execute("SELECT to_regclass('backtrail.row') IS NOT NULL") == [(True,)])
        servers.wait_for(lambda: standby.execute("SELECT count(*) FROM backtrail.row") == [(1,)])
        fault = proxy.fault(STALL, sql="row")
        thread, outcome = in_background(lambda: store.thread("log").load().state)
        servers.wait_for(lambda: fault.fired)
        standby.promote()
        proxy._target = conninfo_to_dict(standby.tcp_url)  # for new connections: the old one stays
        store.thread("other").save({"n": 1})
        with backtrail.open(standby.tcp_url) as other:
            other.thread("log").append("items", 2)
        proxy.release()
        thread.join(60)
        assert outcome == [{"items": [1, 2]}]
