"""Watches across processes and in asyncio: none missed, in order; forks, signals, and the cost of a look.

The conformance suite has the tests for every backend. No test reaches its timeout, except those of 0.
"""

import asyncio
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest

import backtrail
from backtrail import Invalid, Unavailable, aio
from backtrail import watch as hubs
from backtrail.backends.sqlite import change_feed
from backtrail.backends.sqlite.backend import SqliteBackend
from tests.support.lengths import lengths
from tests.support.places import in_memory
from tests.support.schemas import swept

LONG = 60


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def opener(request, path):
    if request.param == "memory":
        with in_memory() as opener:
            yield opener
    elif request.param == "postgres":
        with swept(durability="relaxed") as opener:
            yield opener
    elif request.param == "file":
        yield partial(backtrail.open, path.with_name("files").as_uri(), durability="relaxed")
    else:
        yield partial(backtrail.open, path, durability="relaxed")


@pytest.fixture(params=["sqlite", "file", "postgres"])
def shared(request, path):
    """A shared store: a function that opens it, and the arguments for a script."""
    if request.param == "postgres":
        with swept(durability="relaxed") as opener:
            yield opener, (opener.args[0], opener.keywords["schema"])
    else:
        url = path if request.param == "sqlite" else path.with_name("files").as_uri()
        yield partial(backtrail.open, url, durability="relaxed"), (url, "")


def python(code, *args):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True)


# -- processes ----------------------------------------------------------------------------------------

WRITER = """
import sys, backtrail
with backtrail.open(sys.argv[1], schema=sys.argv[2] or None, durability="relaxed") as store:
    for n in range(int(sys.argv[3])):
        store.thread(f"t{n % int(sys.argv[4])}").save(n)
"""

FOLLOWER = """
import sys, backtrail
with backtrail.open(sys.argv[1], schema=sys.argv[2] or None, read_only=True) as store:
    watch = store.thread("t0").watch(timeout=60)
    print("watching", flush=True)
    for checkpoint in watch:
        print(checkpoint.state, flush=True)
        if checkpoint.state == 499:
            break
"""


def test_watch_yields_500_saves_of_another_process_in_order(shared):
    opener, args = shared
    with opener() as store:
        watch = store.thread("t0").watch(timeout=LONG)
        every = store.watch(timeout=LONG)
        with python(WRITER, *args, 500, 1) as writer:
            assert [next(watch).state for _ in range(500)] == list(range(500))
            assert [next(every).state for _ in range(500)] == list(range(500))
        assert writer.returncode == 0
        assert list(store.thread("t0").watch(after="@", timeout=0)) == []


def test_a_process_that_only_reads_follows_another(shared):
    opener, args = shared
    with opener() as store:
        thread = store.thread("t0")
        with python(FOLLOWER, *args) as follower:
            assert follower.stdout.readline() == "watching\n"
            for n in range(500):
                thread.save(n)
            assert [int(line) for line in follower.stdout] == list(range(500))
        assert follower.returncode == 0


def test_two_processes_and_this_one_write_to_many_threads(shared):
    opener, args = shared
    with opener() as store:
        watch = store.watch(timeout=LONG)
        with python(WRITER, *args, 200, 40), python(WRITER, *args, 200, 40):
            for n in range(100):
                store.thread(f"own {n % 7}").save(n)
            found = [next(watch) for _ in range(500)]
        for name in {c.thread_id for c in found}:
            seqs = [c.seq for c in found if c.thread_id == name]
            assert seqs == list(range(1, len(seqs) + 1)), name
        assert sum(c.thread_id.startswith("own") for c in found) == 100


def test_watch_sees_a_write_to_an_old_thread(shared, monkeypatch):
    """Each look includes the latest threads; only a full look includes the others."""
    opener, _ = shared
    monkeypatch.setattr(hubs, "_LATELY", 2)
    with opener() as store, opener() as other:
        for n in range(30):
            store.thread(f"t{n}").save(0)
        watch = store.watch(timeout=LONG)
        for n in (3, 17, 3, 29, 0, 17):
            made = other.thread(f"t{n}").save(n)
            assert next(watch) == made


def test_what_others_wrote_before_the_call_is_no_news(shared):
    opener, _ = shared
    with opener() as store, opener() as other:
        first = store.watch(timeout=0)
        for n in range(20):
            made = other.thread(f"t{n % 5}").save(n)
            assert list(store.watch(timeout=0)) == []
        assert len(list(first)) == 20
        assert list(store.thread(made.thread_id).watch(timeout=0)) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_forked_child_needs_its_own_watch(opener):
    with opener() as store:
        thread = store.thread("t")
        thread.save(0)
        before, every = thread.watch(timeout=0), store.watch(timeout=0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for watch in (before, every):
                    with pytest.raises(Unavailable) as caught:
                        next(watch)
                    assert caught.value.code == "unavailable.forked"
                    watch.close()
                own = thread.watch(timeout=LONG), store.watch(timeout=LONG)
                writer = threading.Thread(target=lambda: store.thread("t").save("child"))
                writer.start()
                assert [next(watch).state for watch in own] == ["child", "child"]
                writer.join()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        thread.latest()  # a child of a store in SQLite has written, one of a store in memory to its own copy
        thread.save("parent")
        assert list(before)[-1].state == list(every)[-1].state == "parent"


WAITER = """
import signal, sys, backtrail
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
with backtrail.open(sys.argv[1]) as store:
    watch = store.watch() if sys.argv[2] == "store" else store.thread("t").watch()
    print("waiting", flush=True)
    try:
        next(watch)
    except KeyboardInterrupt:
        store.thread("t").save("goes on")
        print(next(watch).state, flush=True)
"""


@pytest.mark.parametrize("what", ["store", "thread"])
@pytest.mark.parametrize("url", ["memory://", "sqlite"])
def test_ctrl_c_ends_the_wait_but_not_the_watch(path, what, url):
    with python(WAITER, url if url == "memory://" else path, what) as waiter:
        assert waiter.stdout.readline() == "waiting\n"
        time.sleep(0.1)  # most likely it waits by now; if not, it is interrupted before it does
        waiter.send_signal(signal.SIGINT)
        assert waiter.stdout.readline() == "goes on\n"
    assert waiter.returncode == 0


def test_interpreter_exit_does_not_wait_for_a_watch(path):
    code = "import sys, backtrail; s = backtrail.open(sys.argv[1]); w = s.watch(); v = s.thread('t').watch()"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=LONG, check=True)
    assert done.stderr == ""


# -- looking ------------------------------------------------------------------------------------------


@pytest.fixture
def two(path):
    """Two backends of one file, which has a thread."""
    with backtrail.open(path, durability="relaxed") as store:
        store.thread("t").save(0)
    one, other = SqliteBackend(path), SqliteBackend(path)
    yield one, other
    one.close()
    other.close()


def save(backend, *names):
    store = backtrail.Store(backend)
    for name in names:
        store.thread(name).save(0)
    return [backend.find_thread("thread", name).no for name in names]


def test_writes_of_other_connections_are_noticed(two):
    one, other = two
    mark, _ = one.changed_since(None, (), None)
    t, new, newer = save(other, "t", "new", "newer")
    mark, news = one.changed_since(mark, (), None)
    assert news == {t: 1, new: 0, newer: 0}
    save(other, "t", "new", "t")
    assert one.changed_since(mark, (), None)[1] == {t: 2, new: 1}


def test_only_watched_threads_are_read(two):
    one, other = two
    mark, _ = one.changed_since(None, (), None)
    t, new = save(other, "t", "new")
    mark, news = one.changed_since(mark, (), ())
    assert news == {new: 0}
    mark, news = one.changed_since(mark, (), None)  # and nothing is forgotten by that
    assert news == {t: 1}
    (new,) = save(other, "t", "new")[1:]
    mark, news = one.changed_since(mark, (), {t})
    assert news == {t: 2}
    assert one.changed_since(mark, (), None)[1] == {new: 1}


def test_no_thread_is_read_without_foreign_writes(two):
    one, _ = two
    mark, _ = one.changed_since(None, (), None)
    (t,) = save(one, "t")
    with mock.patch.object(change_feed, "_seqs") as seqs, mock.patch.object(change_feed, "fetch_each") as select:
        assert one.changed_since(mark, (), None)[1] == one.changed_since(mark, (), {t})[1] == {}
        assert not seqs.called
        assert not select.called
    assert one.changed_since(mark, {t}, None)[1] == {t: 1}


def test_a_look_that_fails_can_be_taken_again(two):
    one, other = two
    mark, _ = one.changed_since(None, (), None)
    (own,) = save(one, "own")
    t, new = save(other, "t", "new")
    with (
        mock.patch.object(change_feed, "_seqs", side_effect=Unavailable("locked")),
        pytest.raises(Unavailable),
    ):
        one.changed_since(mark, {own}, None)
    assert one.changed_since(mark, {own}, None)[1] == {own: 0, t: 1, new: 0}


def test_all_threads_are_looked_at_in_slices(two, monkeypatch):
    one, other = two
    monkeypatch.setattr(change_feed, "_SLICE", 3)
    numbers = save(other, *map(str, range(10)))
    mark, _ = one.changed_since(None, (), None)
    save(other, *map(str, range(10)))
    assert one.changed_since(mark, (), None)[1] == dict.fromkeys(numbers, 1)


# -- when something fails -----------------------------------------------------------------------------


def test_storage_error_reaches_all_watches_which_may_continue(path):
    with backtrail.open(path) as store:
        watches = [store.watch(timeout=LONG), store.thread("t").watch(timeout=LONG)]
        failing = mock.Mock(side_effect=Unavailable("the disk fails", code="unavailable.io"))
        with mock.patch.object(store._backend, "changed_since", failing):
            for watch in watches:
                with pytest.raises(Unavailable, match="the disk fails"):
                    next(watch)
        made = store.thread("t").save(1)
        assert [next(watch) for watch in watches] == [made, made]


def test_hub_retries_a_locked_store(path):
    with backtrail.open(path) as store:
        watch = store.watch(timeout=LONG)
        real, calls = store._backend.changed_since, []

        def locked(*args):
            calls.append(args)
            if len(calls) < 3:
                raise Unavailable("locked by a writer", code="unavailable.locked")
            return real(*args)

        with mock.patch.object(store._backend, "changed_since", locked):
            made = store.thread("t").save(1)
            assert next(watch) == made


def test_hub_pauses_after_a_look_at_all_threads(path):
    """The hub must not read a store of 100,000 threads all the time."""
    with backtrail.open(path, durability="relaxed") as store, backtrail.open(path, durability="relaxed") as other:
        thread = other.thread("t")
        thread.save(0)
        watch = store.watch(timeout=LONG)
        real, began, took = store._backend.changed_since, [], 0.05

        def slow(mark, told, others):
            if others is None:
                began.append(time.monotonic())
                time.sleep(took)
            return real(mark, told, others)

        with mock.patch.object(store._backend, "changed_since", slow):
            while len(began) < 3:
                thread.save(0)
                next(watch)  # without a pause: it moved lately
        assert all(later - earlier > 9 * took for earlier, later in itertools.pairwise(began))


# -- what a writer pays -------------------------------------------------------------------------------


def test_writers_report_nothing_without_watchers(path):
    with backtrail.open(path) as store, mock.patch.object(SqliteBackend, "_announce") as tell:
        store.thread("t").save(1)
        assert not tell.called
        watch = store.thread("t").watch(timeout=0)
        store.thread("t").save(2)
        assert tell.called
        watch.close()
        gc.collect()
        for each in threading.enumerate():
            if each.name == "backtrail watch":
                each.join(LONG)
        tell.reset_mock()
        store.thread("t").save(3)
        assert not tell.called


# -- asyncio --------------------------------------------------------------------------------------------


@pytest.fixture
def opened(opener):
    return lambda **options: aio.Store(opener(**options))


def test_an_async_watch_begins_with_the_call(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            one, every = thread.watch(timeout=0), store.watch(timeout=0)
            made = [await thread.save({"n": n}) for n in range(5)]
            assert [c async for c in one] == made
            assert [await c.load_state() async for c in every] == [{"n": n} for n in range(5)]
            assert [c async for c in thread.watch(after=made[2], timeout=0)] == made[3:]

    asyncio.run(main())


def test_later_calls_wait_for_the_watch_to_start(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save(0)
            join, entered, go_on = hubs.Hub.join, threading.Event(), threading.Event()

            def slow(*args, **options):
                entered.set()
                assert go_on.wait(LONG)
                join(*args, **options)

            with mock.patch.object(hubs.Hub, "join", slow):
                watch = store.watch(timeout=0)
                saving = asyncio.create_task(thread.save(1))
                await asyncio.to_thread(entered.wait, LONG)
                await asyncio.sleep(0.05)
                assert not saving.done()
                go_on.set()
                made = await saving
            assert [c async for c in watch] == [made]

    asyncio.run(main())


def test_delayed_calls_finish_before_the_store_closes(opened, opener):
    async def main():
        store = opened()
        join, entered, go_on = hubs.Hub.join, threading.Event(), threading.Event()

        def slow(*args, **options):
            entered.set()
            assert go_on.wait(LONG)
            join(*args, **options)

        with mock.patch.object(hubs.Hub, "join", slow):
            watch = store.watch()
            saving = asyncio.create_task(store.thread("t").save(1))
            await asyncio.to_thread(entered.wait, LONG)
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0.02)
            go_on.set()
            assert (await asyncio.wait_for(saving, LONG)).step == 1
            await asyncio.wait_for(closing, LONG)
        assert [c async for c in watch] == []

    asyncio.run(main())
    with opener() as store:
        assert store.thread("t").load().state == 1


@pytest.mark.parametrize("many", lengths(125, 500))
def test_many_coroutines_wait_and_no_thread_with_them(opened, many):
    async def main():
        async with opened() as store:

            async def follow(n):
                watch = store.thread(f"t{n % many}").watch(timeout=LONG)
                found = await anext(watch)
                return await found.load_state(), (await anext(watch)).step

            before = set(threading.enumerate())  # those of other tests end by and by
            tasks = [asyncio.create_task(follow(n)) for n in range(2 * many)]
            await asyncio.sleep(0)
            await store.stats()  # done after all of them have begun
            assert len(set(threading.enumerate()) - before) < 20
            await asyncio.gather(*(store.thread(f"t{n}").save(n) for n in range(many)))
            await asyncio.gather(*(store.thread(f"t{n}").save(n) for n in range(many)))
            assert await asyncio.gather(*tasks) == [(n % many, 2) for n in range(2 * many)]

    asyncio.run(main())


def test_a_wait_that_is_cancelled_has_missed_nothing(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            watch = thread.watch()
            for n in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.02)
                made = await thread.save(n)
                assert await anext(watch) == made
            task = asyncio.create_task(anext(watch))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await watch.aclose()
            assert [c async for c in watch] == []

    asyncio.run(main())


def test_cancelling_at_any_moment_loses_nothing(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            watch, found = thread.watch(), []
            for n in range(60):
                await thread.save(n)
                task = asyncio.create_task(anext(watch))
                for _ in range(n % 12):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    found.append((await task).seq)
            while len(found) < 60:
                found.append((await asyncio.wait_for(anext(watch), LONG)).seq)
            assert found == list(range(1, 61))

    asyncio.run(main())


def test_close_ends_waiting_watches(opened):
    async def main():
        store = opened()
        found = asyncio.Queue()

        async def follow(watch):
            async for checkpoint in watch:
                found.put_nowait(checkpoint.step)
            return "ended"

        tasks = [asyncio.create_task(follow(watch)) for watch in (store.thread("t").watch(), store.watch())]
        await store.thread("t").save(1)
        assert [await asyncio.wait_for(found.get(), LONG) for _ in range(2)] == [1, 1]
        await store.close()
        assert await asyncio.wait_for(asyncio.gather(*tasks), LONG) == ["ended", "ended"]
        with pytest.raises(Unavailable):
            store.watch()

    asyncio.run(main())


def test_async_bad_input_is_known_before_anything_waits(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save(1)
            with pytest.raises(Invalid):
                thread.watch(timeout=-1)
            with pytest.raises(Invalid):
                await anext(thread.watch(after="nothing"))
            async with store.transaction():
                for watch in (thread.watch, store.watch):
                    with pytest.raises(Unavailable):
                        watch()
            assert (await thread.save(2)).step == 2

    asyncio.run(main())


def test_an_async_watch_follows_another_process(shared):
    opener, args = shared

    async def main():
        async with aio.Store(opener()) as store, store.watch(prefix="t", timeout=LONG) as watch:
            writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, *map(str, args), "300", "3")
            found = [await anext(watch) for _ in range(300)]
            assert await writer.wait() == 0
            for name in ("t0", "t1", "t2"):
                assert [c.step for c in found if c.thread_id == name] == list(range(1, 101))

    asyncio.run(main())
