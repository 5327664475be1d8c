"""Ctrl-C at the entry of every function that locks, begins or ends something: the interrupted code can use the store.

An interrupt is raised where a function begins, before anything in it can catch it. What has to be undone must not
depend on a function that would do it.
"""

import contextlib
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import backtrail
from backtrail import overlay, store
from backtrail import transaction as engine
from backtrail import transaction as owner
from backtrail.backends import memory
from backtrail.backends.file import backend, lock, log, storage
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.port import Batch
from backtrail.backends.postgres import backend as postgres
from backtrail.backends.postgres import commit as postgres_commit
from backtrail.backends.postgres import pool
from backtrail.backends.sql import backend as sql_backend
from backtrail.backends.sqlite import commit as sqlite_commit
from backtrail.backends.sqlite import connection
from backtrail.backends.tables import backend as table_backend
from backtrail.backends.tables import changes, tables
from tests.backends.sqlite.test_backend import append, start
from tests.support.lengths import lengths
from tests.support.servers import place

WATCHED = {
    module.__file__
    for module in (
        store,
        engine,
        owner,
        overlay,
        postgres,
        postgres_commit,
        pool,
        connection,
        sql_backend,
        sqlite_commit,
        backend,
        lock,
        log,
        storage,
        memory,
        table_backend,
        tables,
        contextlib,
    )
}


@contextlib.contextmanager
def at_call(number, action, calls):
    """Do something at the call with this number of a function that is watched."""

    def trace(frame, event, _):
        if event == "call" and frame.f_code.co_filename in WATCHED and next(calls) == number:
            sys.settrace(None)
            action()

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def interrupt():
    raise KeyboardInterrupt


def interrupt_at(number):
    """Raise KeyboardInterrupt at the call with this number of a function that is watched."""
    return at_call(number, interrupt, itertools.count(1))


def transaction(store):
    with store.transaction():
        store.thread("a").save({"n": 1})


def failed_transaction(store):
    with contextlib.suppress(ZeroDivisionError), store.transaction():
        store.thread("a").save({"n": 1 / 0})


def agent(store):
    store.agents.save(backtrail.AgentState("a", "Ada", "a-model"), replace=True)
    store.agents.checkpoint("a", "now")


def reading(store):
    store.thread("r").latest()
    list(store.thread("r").history())
    list(store.threads(prefix="r"))


def searching(store):
    store.thread("m").save({"messages": [{"role": "user", "content": "hello"}]})
    assert len(store.search("hello")) == 1


DEEDS = [transaction, failed_transaction, agent, reading, searching]


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def stores(request, tmp_path):
    """A function that opens the same store again, in memory the same one."""
    if request.param == "postgres":
        with place() as opened:
            yield opened
        return
    if request.param == "memory":
        with backtrail.open("memory://") as store:
            yield lambda: contextlib.nullcontext(store)
        return
    url = str(tmp_path / "s.db") if request.param == "sqlite" else (tmp_path / "s").as_uri()
    yield lambda: backtrail.open(url, durability="relaxed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators that are being closed
@pytest.mark.parametrize("every", lengths(3, 1))
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_store_works_after_ctrl_c_at_any_point(stores, deed, every):
    with stores() as store, stores() as other, ThreadPoolExecutor(1) as beside:
        store.thread("t").save({"n": 0})
        store.thread("r").save({"n": 0})
        deed(store)  # so that all is imported
        for number in itertools.count(1, 7 * every if deed is searching else every):  # it calls many
            interrupted = True
            with contextlib.suppress(KeyboardInterrupt), interrupt_at(number):
                deed(store)
                interrupted = False
            beside.submit(store.thread("r").load).result(20)  # at once: a later call of this thread might help
            other.thread("t").save({"n": 0})
            done = store.thread("t").save({"n": number})
            assert done.state == {"n": number}
            assert other.thread("t").load().state == {"n": number}
            other.thread("t").save({"n": -number})  # other writers are not locked out
            if not interrupted:
                break
        assert number > 3
        assert store.verify().ok


def test_interrupted_table_writes_are_rolled_back_before_reads(tmp_path):
    url = (tmp_path / "s").as_uri()
    for after in ("load", "save"):
        with backtrail.open(url) as store, backtrail.open(url) as other:
            store.thread("a").save({"n": 0})
            with store._backend._storage.lock.threads():  # as if Ctrl-C had come before anything was taken back
                store._backend._storage.tables.begin()
                store._backend._storage.tables.do(changes.SetTags(1, 1, ("never",)))
            other.thread("a").save({"n": 1})
            if after == "save":
                store.thread("b").save({"n": 0})
            assert store.thread("a").load().state == {"n": 1}
            assert store.thread("a").find(tag="never") == []


def test_interrupted_read_after_a_doubtful_write_keeps_no_lock(tmp_path):
    url = (tmp_path / "s").as_uri()
    with backtrail.open(url) as store, backtrail.open(url) as other, ThreadPoolExecutor(1) as beside:
        store.thread("r").save({"n": 0})
        files = store._backend._storage
        files.lock.wait = other._backend._storage.lock.wait = 1
        for number in itertools.count(1):
            interrupted = True
            files._log, files._in_doubt = None, True  # as after a CommitUnknown: all is read with the lock
            with contextlib.suppress(KeyboardInterrupt), interrupt_at(number):
                store.thread("r").load()
                interrupted = False
            beside.submit(store.thread("r").load).result(20)
            with other._backend._storage.locked():
                pass
            if not interrupted:
                break
        assert number > 50


@contextlib.contextmanager
def interrupt_at_line(number, function):
    """Raise KeyboardInterrupt before the line with this number of those that a function runs."""
    lines = itertools.count(1)

    def trace_lines(_, event, __):
        if event == "line" and next(lines) == number:
            sys.settrace(None)
            interrupt()
        return trace_lines

    def trace(frame, *_):
        return trace_lines if frame.f_code is function.__code__ else None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def test_interrupted_undo_is_finished_by_the_next_call():
    backend = MemoryBackend()
    no = start(backend)
    for _ in range(4):
        append(backend, no)
    backend.commit(Batch(hide=((no, 2), (no, 3)), tag=((no, 2, "kept"),)))
    before = backend.rows(no, [(1, 9)], payload=True), backend.tags(no)
    interrupted = True
    for number in itertools.count(1):
        try:
            with interrupt_at_line(number, tables.Tables.undo), backend.group():
                backend.remove_rows(no, [2, 3])
                append(backend, no)
                start(backend, "never")
                _ = 1 / 0
        except KeyboardInterrupt:
            pass
        except ZeroDivisionError:
            interrupted = False
        assert (backend.rows(no, [(1, 9)], payload=True), backend.tags(no)) == before
        assert (backend.newest(no).seq, backend.find_thread("thread", "never")) == (5, None)
        if not interrupted:
            break
    assert number > 30


HANDLED = ("load", "save")


@pytest.mark.parametrize("handled", HANDLED)
def test_signal_handler_call_is_refused_or_done(stores, handled):
    """Whenever it comes in a save of the same thread: what was acknowledged is there, what was not read is not half."""
    with stores() as store, stores() as other:
        for name in ("a", "b"):
            store.thread(name).save({"n": 0})
        acknowledged, outcomes = {"a": [0], "b": [0]}, set()

        def use(number):
            try:
                if handled == "save":
                    store.thread("b").save({"n": number})
                    acknowledged["b"].append(number)
                else:
                    assert store.thread("a").load().state["n"] in (number - 1, number)
            except backtrail.Unavailable as error:
                outcomes.add(error.code)
            else:
                outcomes.add("done")

        for number in itertools.count(1):
            calls = itertools.count(1)
            with at_call(number, partial(use, number), calls):
                store.thread("a").save({"n": number})
            acknowledged["a"].append(number)
            if next(calls) <= number:
                break
        assert outcomes <= {"unavailable.locked", "done"}
        for each in (store, other):
            for name, numbers in acknowledged.items():
                assert [found.state["n"] for found in each.thread(name).history()] == numbers
        assert store.verify().ok
