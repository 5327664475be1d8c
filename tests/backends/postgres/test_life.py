"""The end of a PostgreSQL store: it is dropped without close, or the interpreter ends."""

import gc
import random
import subprocess
import sys
import threading
import time

import psycopg
from psycopg import sql

from tests.support.servers import place, server

LONG = 20


def connections():
    ((count,),) = server().execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'backtrail'")
    return count


def test_dropped_store_leaves_no_thread_and_no_connection():
    with place() as opener:
        before = connections(), threading.active_count()

        def is_left():  # what an earlier test has left may end meanwhile
            now = connections(), threading.active_count()
            return any(count > earlier for count, earlier in zip(now, before, strict=True))

        for n in range(5):
            store = opener()
            store.thread("t").save({"n": n})
            list(store.thread("t").watch(timeout=0))
            del store
            gc.collect()
        until = time.monotonic() + LONG
        while is_left() and time.monotonic() < until:
            time.sleep(0.05)
            gc.collect()
        assert not is_left()


AT_EXIT = """
import atexit, sys, backtrail
store = backtrail.open(sys.argv[1], schema=sys.argv[2])
atexit.register(lambda: print(store.thread("t").save({"last": True}).step))
store.thread("u").save({})
"""


def test_save_during_interpreter_shutdown_is_stored():
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
    """A store of about 2 MB; most of it can be collected."""
    with store.transaction():
        thread = store.thread("t")
        for n in range(700):
            thread.save({"n": n, "text": random.Random(n).randbytes(1500)})
    thread.prune(keep_last=3)
    return thread, store.stats().stored_bytes


def test_new_data_reuses_space_freed_by_gc():
    with place() as opener, opener() as store:
        thread, before = filled(store)
        store.gc()
        assert [c.state["n"] for c in thread.history()] == [697, 698, 699]
        with store.transaction():
            for n in range(700, 1200):
                thread.save({"n": n, "text": random.Random(n).randbytes(1500)})
        assert store.stats().stored_bytes < before * 1.2
        assert store.verify().ok


def test_erasing_gives_space_back_to_the_system():
    with place() as opener, opener() as store:
        thread, before = filled(store)
        store.gc(erase=True)
        assert store.stats().stored_bytes < before / 3
        assert [c.state["n"] for c in thread.history()] == [697, 698, 699]
        assert thread.save({"n": 700}).step == 701
        assert store.verify().ok


def test_gc_ends_while_another_transaction_reads():
    with place() as opener, opener() as store:
        thread, _ = filled(store)
        schema = opener.keywords["schema"]
        with psycopg.connect(opener.args[0]) as reader:
            reader.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, "row")))
            store.gc()
            assert thread.save({"n": 700}).step == 701
