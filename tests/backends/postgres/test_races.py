"""What comes between two statements in PostgreSQL: locks, snapshots, collections and groups, one interleaving each."""

import contextlib
import os
import threading
import time
from unittest import mock

import psycopg
import pytest

import backtrail
from backtrail.backends.port import Batch, Undone
from backtrail.backends.postgres import commit
from backtrail.backends.postgres import schema as postgres_schema
from backtrail.testing.samples import digest, new, row, start
from tests.support.servers import place, server

LONG = 30


@pytest.fixture
def opener():
    with place() as opener:
        yield opener


@contextlib.contextmanager
def holding(statement, *values):
    """Let another connection hold the locks of a statement; yield a function that releases them."""
    with contextlib.closing(server().connect()) as connection:
        connection.execute("BEGIN")
        connection.execute(statement, values)
        yield lambda: connection.execute("ROLLBACK")


def waits(schema):
    """Wait until a statement that names the schema waits for a lock."""
    until = time.monotonic() + LONG
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    while not server().execute(query, (f"%{schema}%",))[0][0]:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_gc_spares_chunks_of_a_writer_with_older_snapshot(opener, isolation):
    schema = opener.keywords["schema"]
    blob = {"x": [os.urandom(600).hex() for _ in range(200)]}
    level = isolation.replace(" ", "%5C%20")
    url = f"{opener.args[0]}{'&' if '?' in opener.args[0] else '?'}options=-c%20default_transaction_isolation%3D{level}"
    with backtrail.open(url, schema=schema) as writer, opener() as other:
        writer.thread("a").save(blob)
        thread = writer.thread("b")
        thread.save({"x": []})
        writer.thread("a").delete()  # its chunks are not needed any more
        no = other._backend.find_thread("thread", "b").no
        with holding(f"SELECT FROM {schema}.thread WHERE no = %s FOR NO KEY UPDATE", no) as let_go:
            saving = threading.Thread(target=lambda: thread.save(blob))
            saving.start()
            waits(schema)
            collecting = threading.Thread(target=other.gc)
            collecting.start()
            collecting.join(2)  # it may have to wait for the writer
            let_go()
            saving.join(LONG)
            collecting.join(LONG)
        assert thread.load().state == blob
        assert other.verify().ok
    with opener() as fresh:
        assert fresh.thread("b").load().state == blob


def test_blocked_group_is_undone_without_waiting(opener):
    with opener() as store:
        backend = store._backend
        one, two = start(backend, "one"), start(backend, "two")
        schema = opener.keywords["schema"]
        with holding(f"SELECT FROM {schema}.thread WHERE no = %s FOR NO KEY UPDATE", two):
            with pytest.raises(Undone), backend.group():
                backend.commit(Batch(rows=((one, row(2)),)))
                backend.commit(Batch(rows=((two, row(2)),)))
            assert (backend.newest(one).seq, backend.newest(two).seq) == (1, 1)
            with backend.group():
                backend.commit(Batch(rows=((one, row(2)),)))
        assert backend.newest(one).seq == 2


def test_repeated_large_batch_marks_no_thread_again(opener, monkeypatch):
    monkeypatch.setattr(commit, "PIECE", 100)
    with opener() as store:
        backend = store._backend
        batch = Batch(
            threads=(new("x", agent="a"),),
            rows=tuple((-1, row(seq, payload=bytes(80))) for seq in range(1, 5)),
            chunks=((digest("a"), bytes(200)),),
            tag=((-1, 1, "tag"),),
            untouch=((-1, 4),),
        )
        (no,) = backend.commit(batch)
        assert (backend.tags(no), backend.tips("a", touched=True)) == ({1: ("tag",)}, [])
        backend.commit(Batch(untag=((no, 1, "tag"),), renew=((no, new("x", agent="a")),)))
        assert backend.commit(batch) == (no,)
        assert (backend.tags(no), len(backend.tips("a", touched=True))) == ({}, 1)


def test_batches_that_untouch_lock_threads_in_one_order(opener):
    with opener() as store:
        backend = store._backend
        first, second = start(backend, "first", agent="a"), start(backend, "second", agent="a")
        schema = opener.keywords["schema"]
        with holding(f"SELECT FROM {schema}.thread WHERE no = %s FOR NO KEY UPDATE", first) as let_go:
            written = []
            batch = Batch(rows=((second, row(3)),), untouch=((first, 1),))
            writing = threading.Thread(target=lambda: written.append(backend.commit(batch)))
            writing.start()
            waits(schema)
            backend.commit(Batch(rows=((second, row(2)),)))  # its turn is free
            let_go()
            writing.join(LONG)
        assert written == [()]
        assert [stand.record.no for stand in backend.tips("a", touched=True)] == [second]


def test_hiding_a_row_waits_for_its_new_tag(opener):
    with opener() as store, opener() as other:
        thread = store.thread("t")
        made = [thread.save({"n": n}) for n in range(3)]
        tags, schema = other._backend, opener.keywords["schema"]
        no = tags.find_thread("thread", "t").no
        reports = []
        with tags.group():
            tags.commit(Batch(visible=((no, 1),), tag=((no, 1, "keep"),)))
            pruning = threading.Thread(target=lambda: reports.append(thread.prune(keep_last=1)))
            pruning.start()
            waits(schema)
        pruning.join(LONG)
        assert (reports, list(thread.history())) == ([1], [made[0], made[2]])


def test_store_is_not_converted_while_others_would_wait(opener):
    schema = opener.keywords["schema"]
    with mock.patch.object(postgres_schema, "STEPS", postgres_schema.STEPS[:1]):
        opener().close()
    with holding(f"LOCK TABLE {schema}.thread IN ACCESS SHARE MODE"):
        with pytest.raises(backtrail.Unavailable) as caught:
            opener()
        assert caught.value.code == "unavailable.locked"
    with opener() as store:
        newest = len(postgres_schema.STEPS)
        assert server().execute(f"SELECT value FROM {schema}.meta WHERE name = 'format'") == [(newest,)]
        store.thread("t").save({})


def test_open_is_retried_after_a_conflict(opener):
    real, failures = postgres_schema.format_of, iter([psycopg.errors.DuplicatePreparedStatement("it exists")])

    def failing(*arguments):
        for failure in failures:
            raise failure
        return real(*arguments)

    with mock.patch.object(postgres_schema, "format_of", failing), opener() as store:
        store.thread("t").save({})


def test_gc_does_not_wait_for_indexing(opener):
    with opener() as store:
        thread = store.thread("t")
        thread.save({"messages": ["alpha beta", "gamma"]})
        assert len(store.search("alpha")) == 1
        thread.save({"messages": ["gamma"]})
        schema = opener.keywords["schema"]
        with holding(f"LOCK TABLE {schema}.vocabulary IN ROW EXCLUSIVE MODE"):
            store.gc()
        query = f"SELECT word FROM {schema}.vocabulary ORDER BY word"
        assert server().execute(query) == [("alpha",), ("beta",), ("gamma",)]
        thread.save({"messages": ["delta"]})
        store.gc()
        assert server().execute(query) == [("delta",)]
        with mock.patch.object(store._backend._sql, "text", wraps=store._backend._sql.text) as text:
            store.gc()
        assert mock.call("lock_vocabulary") not in text.mock_calls  # nothing to clean: nothing is locked


def test_undone_index_group_is_repeated_in_single_writes(opener):
    with opener() as store:
        for n in range(5):
            store.thread(f"t{n}").save({"messages": [f"fox {n}"]})

        @contextlib.contextmanager
        def undone():
            yield
            raise Undone

        with mock.patch.object(store._backend, "group", undone):
            assert len(store.search("fox")) == 5
        assert store.verify().ok
