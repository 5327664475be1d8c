"""The life of a store in PostgreSQL: what is left of it when it is dropped, or when the interpreter ends."""

import gc
import random
import subprocess
import sys
import threading
import time
from unittest import mock

import psycopg
from psycopg import sql

from backtrail.backends.postgres import rewrite
from backtrail.backends.postgres.rewrite import TABLES, Room
from backtrail.backends.postgres.session import Statement
from tests.support.servers import place, server

LONG = 20


def connections():
    ((count,),) = server().execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'backtrail'")
    return count


def test_a_store_that_is_dropped_without_being_closed_leaves_no_thread_and_no_connection():
    with place() as opener:
        before = connections(), threading.active_count()
        for n in range(5):
            store = opener()
            store.thread("t").save({"n": n})
            list(store.thread("t").watch(timeout=0))
            del store
            gc.collect()
        until = time.monotonic() + LONG
        while (connections(), threading.active_count()) != before and time.monotonic() < until:
            time.sleep(0.05)
            gc.collect()
        assert (connections(), threading.active_count()) == before


AT_EXIT = """
import atexit, sys, backtrail
store = backtrail.open(sys.argv[1], schema=sys.argv[2])
atexit.register(lambda: print(store.thread("t").save({"last": True}).step))
store.thread("u").save({})
"""


def test_what_is_saved_while_the_interpreter_ends_is_saved():
    with place() as opener:
        where = opener.args[0], opener.keywords["schema"]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", AT_EXIT, *where],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("1\n", "")
        with opener() as store:
            assert store.thread("t").load().state == {"last": True}


def filled(store):
    """A store of about 2 MB, most of which may go."""
    with store.transaction():
        thread = store.thread("t")
        for n in range(700):
            thread.save({"n": n, "text": random.Random(n).randbytes(1500)})
    thread.prune(keep_last=3)
    return thread, store.stats().stored_bytes


def test_a_table_of_which_little_is_left_is_written_anew():
    with place() as opener, opener() as store:
        thread, before = filled(store)
        store.gc()
        assert store.stats().stored_bytes < before / 3
        assert [c.state["n"] for c in thread.history()] == [697, 698, 699]
        assert thread.save({"n": 700}).step == 701
        assert store.verify().ok


def vacuumed(monkeypatch):
    """A list of what each VACUUM is told, and of which tables."""
    told, vacuum = [], Room.vacuum

    def listed(room, session, how, tables):
        told.append((how, tables))
        vacuum(room, session, how, tables)

    monkeypatch.setattr(Room, "vacuum", listed)
    return told


def test_a_table_that_somebody_reads_is_left_as_it_is_and_nobody_waits(monkeypatch):
    with place() as opener, opener() as store:
        thread, before = filled(store)
        told = vacuumed(monkeypatch)
        schema = opener.keywords["schema"]
        with psycopg.connect(opener.args[0]) as reader:
            reader.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, "row")))
            store.gc()
            # To give back the end of a file VACUUM would wait for the reader, five seconds for each part of the table.
            rest = [name for name in TABLES if name != "row"]
            assert told == [("SKIP_LOCKED", rest), ("SKIP_LOCKED, TRUNCATE false", ["row"])]
            assert store.stats().stored_bytes > before / 2
            assert thread.save({"n": 700}).step == 701
        assert store._backend._pool.do(lambda session: session.run(Statement("SHOW lock_timeout"))) == [("0",)]
        store.gc()
        assert store.stats().stored_bytes < before / 3


def test_whoever_reads_for_a_moment_does_not_keep_space_from_being_given_back(monkeypatch):
    with place() as opener, opener() as store, psycopg.connect(opener.args[0]) as reader:
        store.thread("t").save({})
        told = vacuumed(monkeypatch)
        reader.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(opener.keywords["schema"], "row")))
        looked = mock.Mock(side_effect=lambda _: reader.rollback())
        monkeypatch.setattr(rewrite.time, "sleep", looked)
        store.gc()
        assert looked.call_count == 1
        assert told == [("SKIP_LOCKED", list(TABLES))]
