"""The async mirror: what the synchronous calls promise, many coroutines at once, groups that fail, cancelling."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import apsw
import pytest

import backtrail
from backtrail import Conflict, Invalid, NotFound, Unavailable, aio
from backtrail import store as sync
from backtrail.aio import executor
from backtrail.aio.executor import Executor
from backtrail.backends.port import Undone
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.engine import throttle
from backtrail.engine.tree.tree import Tree
from tests.support.lengths import lengths


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


async def listed(items):
    return [item async for item in items]


async def state_of(thread):
    return await (await thread.load()).load_state()


# -- the same calls -----------------------------------------------------------------------------------


def test_the_calls_of_the_guide(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            assert (await thread.latest(), await thread.count(), await thread.current_step()) == (None, 0, 0)
            first = await thread.save({"n": 1, "l": []}, label="one", tags=["x"], metadata={"by": "me"})
            assert (first.step, first.label, first.tags, first.metadata) == (1, "one", ("x",), {"by": "me"})
            second = await thread.append("l", "a", "b")
            third = await thread.set("n", 2, kind="automatic")
            assert (third.kind, third.parent_id, second.parent_id) == ("automatic", second.id, first.id)
            await thread.delete_at("l[0]")
            assert await state_of(thread) == {"n": 2, "l": ["b"]}
            async with thread.step("stepped", tags=["s"]) as state:
                state["l"].append("c")
            assert (await thread.latest()).label == "stepped"
            assert await (await thread.load("s")).get("l") == ["b", "c"]
            assert await (await thread.load()).tail("l", 1) == ["c"]
            assert [c.step async for c in thread.history()] == [1, 2, 3, 4, 5]
            assert [c.step async for c in thread.history(newest_first=True, limit=2)] == [5, 4]
            assert [c.step async for c in thread.history(before=third)] == [1, 2]
            assert (await thread.find(label="one"), await thread.find(tag="nobody's")) == ([first], [])
            assert str(await thread.diff(first, second)) == "+ l[0]: 'a'\n+ l[1]: 'b'"
            other = await thread.fork("other", at=first)
            assert (other.id, await state_of(other)) == ("other", {"n": 1, "l": []})
            assert await thread.rewind(first) == first
            assert (await thread.undo()).label == "stepped"
            assert await thread.redo() == first
            assert (await thread.tag(first, "y")).tags == ("x", "y")
            assert (await thread.untag(first, "x")).tags == ("y",)
            assert (await store.checkpoint(first.id), await store.checkpoint("0" * 24)) == (first, None)
            assert {info.id async for info in store.threads()} == {"t", "other"}
            assert [info.id async for info in store.threads(prefix="o")] == ["other"]
            assert (await store.stats()).threads == 2

    asyncio.run(main())


def test_updating_pruning_deleting_and_upkeep(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            assert (await thread.update(lambda state: {"n": 0} if state is None else None)).step == 1

            async def more(state):
                await asyncio.sleep(0)
                state["n"] += 1

            for _ in range(3):
                await thread.update(more)
            assert await state_of(thread) == {"n": 3}
            report = await thread.prune(keep_last=2, dry_run=True)
            assert (len(report.removed), await thread.count()) == (2, 4)
            await store.prune(keep_last=2)
            assert await thread.count() == 2
            assert await thread.delete_checkpoint("@-") is True
            assert await thread.delete_checkpoint("nothing") is False
            told = []
            assert (await store.verify(progress=lambda *what: told.append(what))).ok
            assert (await store.gc(progress=lambda *what: told.append(what))).rows == 3
            await asyncio.sleep(0)
            assert {what for what, _ in told} >= {"checkpoints", "threads"}
            assert (await thread.delete(), await thread.delete()) == (True, False)
            assert await thread.latest() is None

    asyncio.run(main())


def test_errors_are_those_of_the_synchronous_calls(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            with pytest.raises(NotFound):
                await thread.load()
            with pytest.raises(NotFound):
                await thread.append("l", 1)
            with pytest.raises(Invalid) as caught:
                await thread.save({"x": [object()]})
            assert caught.value.path == "state.x[0]"
            with pytest.raises(Invalid):
                await thread.find()
            with pytest.raises(Invalid):
                await listed(thread.history(limit=-1))
            with pytest.raises(Invalid):
                await thread.update(lambda state: None)
            first = await thread.save({})
            with pytest.raises(Conflict):
                await thread.save({}, expect=backtrail.NEW)
            with pytest.raises(Conflict):
                await thread.fork("t", at=first)
            with pytest.raises(RuntimeError, match="mine"):
                async with thread.step():
                    raise RuntimeError("mine")
            assert await thread.count() == 1

    asyncio.run(main())


def test_a_checkpoint_goes_to_bytes_and_back(opened):
    async def main():
        async with opened() as store:
            saved = await store.thread("t").save({"n": [1, 2]})
            data = await saved.to_bytes()
        read = await aio.Checkpoint.from_bytes(data)
        assert (read, hash(read), repr(read)) == (saved, hash(saved), repr(saved))
        assert await read.load_state() == {"n": [1, 2]}

    asyncio.run(main())


def test_iterators_go_over_many_pages_without_a_gap(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            for n in range(250):
                await thread.save({"n": n})
            assert [c.step async for c in thread.history()] == list(range(1, 251))
            async for checkpoint in thread.history(newest_first=True):
                if checkpoint.step == 100:
                    break
            assert (await thread.save({"n": "next"})).step == 251
            await asyncio.gather(*(store.thread(f"t{n}").save({}) for n in range(230)))
            assert len({info.id async for info in store.threads()}) == 231

    asyncio.run(main())


@dataclass
class Plan:
    city: str
    days: int = 0


def test_typed_threads_give_their_type(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t", Plan)
            await thread.save(Plan("Lisbon"))
            async with thread.step() as plan:
                plan.days = 3
            assert await state_of(thread) == Plan("Lisbon", 3)

    asyncio.run(main())


def test_opening_is_awaited_or_a_block(path):
    async def main():
        async with aio.open(path, durability="relaxed", max_checkpoints=2) as store:
            for n in range(5):
                await store.thread("t").save({"n": n})
            assert await store.thread("t").count() == 2
        store = await aio.open(path)
        assert await state_of(store.thread("t")) == {"n": 4}
        await store.close()
        with pytest.raises(Invalid):
            await aio.open("nonsense://")

    asyncio.run(main())


# -- many at once -------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", lengths(250, 1000))
def test_concurrent_appends_lose_nothing_and_keep_order(opened, many):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"l": []})

            async def agent(name):
                for n in range(3):
                    await thread.append("l", [name, n])

            await asyncio.gather(*(agent(name) for name in range(many)))
            found = await (await thread.load()).get("l")
            assert len(found) == 3 * many
            for name in range(many):
                assert [n for who, n in found if who == name] == [0, 1, 2]
            assert await thread.current_step() == 3 * many + 1

    asyncio.run(main())


@pytest.mark.parametrize("many", lengths(250, 1000))
def test_many_coroutines_with_a_thread_each(opened, many):
    async def main():
        async with opened() as store:

            async def agent(name):
                thread = store.thread(f"t{name}")
                await thread.save({"l": []})
                for n in range(3):
                    await thread.append("l", n)
                return await state_of(thread)

            assert await asyncio.gather(*(agent(name) for name in range(many))) == [{"l": [0, 1, 2]}] * many
            assert (await store.stats()).threads == many

    asyncio.run(main())


@contextmanager
def held(store):
    """Let the writer do nothing in the block: what is asked for in it waits, and is then done together."""
    go_on, there = threading.Event(), threading.Event()

    def wait():
        there.set()
        assert go_on.wait(30)

    store._executor._writer.put(executor.Job(wait))  # it is not part of the transaction that its task may have open
    assert there.wait(30)
    try:
        with mock.patch.object(store._sync._backend, "undoes_groups", new=False):  # so that all writes wait
            yield
    finally:
        go_on.set()


@contextmanager
def counted_groups(store):
    counted, group = [], store._sync._backend.group

    @contextmanager
    def counting():
        with group():
            counted.append(1)
            yield

    with mock.patch.object(store._sync._backend, "group", counting):
        yield counted


def test_what_is_asked_for_together_is_one_group(opened):
    async def main():
        async with opened() as store:
            with counted_groups(store) as groups, mock.patch.object(executor, "GROUP_SECONDS", 60):
                with held(store):
                    tasks = [asyncio.create_task(store.thread(f"t{n}").save({"n": n})) for n in range(100)]
                    await asyncio.sleep(0)
                await asyncio.gather(*tasks)
            assert len(groups) <= 2

    asyncio.run(main())


def test_a_group_takes_no_more_than_it_may(opened):
    async def main():
        async with opened() as store:
            for name, bound, least in (("GROUP_MAX", 10, 5), ("GROUP_SECONDS", 0, 50)):
                with counted_groups(store) as groups, mock.patch.object(executor, name, bound):
                    with held(store):
                        tasks = [asyncio.create_task(store.thread(f"t{n}").save({"n": n})) for n in range(50)]
                        await asyncio.sleep(0)
                    await asyncio.gather(*tasks)
                assert len(groups) >= least

    asyncio.run(main())


def test_one_operation_of_a_group_fails_alone(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            stale = await thread.save({"n": 0, "l": []})
            await thread.append("l", 0)
            with held(store):
                tasks = [
                    asyncio.create_task(work)
                    for work in (
                        thread.append("l", 1),
                        thread.save({"n": 9}, expect=stale),
                        store.thread("none").append("l", 1),
                        thread.append("l", 2),
                        thread.append("l", object()),
                        thread.save({}, expect=backtrail.NEW),
                        thread.rewind("nowhere"),
                        thread.append("l", 3),
                        store.thread("new").save({"n": 1}),
                    )
                ]
                await asyncio.sleep(0)
            done = await asyncio.gather(*tasks, return_exceptions=True)
            kinds = [type(each) for each in done]
            assert (
                kinds
                == [aio.Checkpoint, Conflict, NotFound, aio.Checkpoint, Invalid, Conflict, NotFound]
                + [aio.Checkpoint] * 2
            )
            assert await state_of(thread) == {"n": 0, "l": [0, 1, 2, 3]}
            assert await state_of(store.thread("new")) == {"n": 1}

    asyncio.run(main())


def test_synchronous_code_works_in_other_threads(opener):
    store = aio.Store(opener())
    sync = store._sync

    def work(name):
        thread = sync.thread("t")
        for n in range(50):
            thread.append("l", [name, n])

    async def main():
        async with store:
            await store.thread("t").save({"l": []})
            workers = [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(2)]
            for worker in workers:
                worker.start()

            async def agent(name):
                for n in range(10):
                    await store.thread("t").append("l", [name, n])

            await asyncio.gather(*(agent(f"task {n}") for n in range(20)))
            await asyncio.to_thread(lambda: [worker.join(60) for worker in workers])
            found = await (await store.thread("t").load()).get("l")
            assert len(found) == 300
            for name in {who for who, _ in found}:
                assert [n for who, n in found if who == name] == list(range(50 if "thread" in name else 10))
            assert (await store.verify()).ok

    asyncio.run(main())


# -- who asks -----------------------------------------------------------------------------------------


def test_expectations_belong_to_the_task(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"n": 0})
            read, written = asyncio.Event(), asyncio.Event()

            async def slow():
                state = await state_of(thread)
                read.set()
                await written.wait()
                with pytest.raises(Conflict):
                    await thread.save(state)

            async def quick():
                await read.wait()
                await thread.load()
                await thread.save({"n": 1})
                await thread.save({"n": 2})
                written.set()

            await asyncio.gather(slow(), quick())
            assert await state_of(thread) == {"n": 2}

    asyncio.run(main())


async def waited(call):
    return await asyncio.wait_for(call, 10)


async def gathered(call):
    return (await asyncio.gather(call))[0]


async def grouped(call):
    try:
        async with asyncio.TaskGroup() as tasks:
            made = tasks.create_task(call)
    except* Conflict as conflicts:
        raise conflicts.exceptions[0] from None
    return made.result()


@pytest.mark.parametrize("how", [waited, gathered, grouped, asyncio.shield, asyncio.create_task])
def test_calling_task_is_the_caller_whichever_task_awaits(opened, how):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"n": 0})

            async def somebody_else():
                await thread.set("n", 100)

            state = await state_of(thread)
            await asyncio.create_task(somebody_else())
            with pytest.raises(Conflict):
                await how(thread.save(state | {"lost": True}))
            await thread.load()
            await how(thread.save({"n": 1}))
            await thread.save({"n": 2})  # it is the one who wrote that
            assert await state_of(thread) == {"n": 2}

    asyncio.run(main())


def test_what_a_task_gathers_in_a_transaction_is_in_it(opened):
    async def main():
        async with opened() as store:
            threads = [store.thread(f"t{n}") for n in range(20)]
            with pytest.raises(RuntimeError):
                async with store.transaction():
                    await asyncio.gather(*(thread.save({"l": []}) for thread in threads))
                    raise RuntimeError
            assert [info async for info in store.threads()] == []
            async with store.transaction():
                await asyncio.gather(*(thread.save({"l": []}) for thread in threads))
                await asyncio.gather(*(thread.append("l", n) for n in range(5) for thread in threads))
            for thread in threads:
                assert sorted((await state_of(thread))["l"]) == [0, 1, 2, 3, 4]

    asyncio.run(main())


class _Shifting(dict):
    """A dict that changes all the time: iterating over it fails."""

    def items(self):
        raise RuntimeError("dictionary changed size during iteration")


def test_transactions_of_many_tasks_end_while_others_begin(opened):
    async def main():
        async with opened() as store:

            async def one(n):
                for _ in range(3):
                    async with store.transaction():
                        await store.thread(f"a{n}").save({"n": n})
                        await store.thread(f"b{n}").save({"n": n})

            engine = store._sync._engine
            with mock.patch.object(engine, "opened", _Shifting()):
                await asyncio.gather(*(one(n) for n in range(100)))
                assert not engine.opened
            for n in (0, 99):
                assert await state_of(store.thread(f"b{n}")) == {"n": n}

    asyncio.run(main())


def test_a_block_whose_end_cannot_begin_is_over(opened):
    async def main():
        async with opened() as store:
            with pytest.raises(MemoryError), mock.patch.object(store._executor, "begin", side_effect=MemoryError):
                async with store.transaction():
                    pass
            assert not store._sync._engine.opened
            await store.thread("t").save({"n": 1})

    asyncio.run(main())


def test_all_waiters_of_a_locked_store_fail_together(path):
    backend = SqliteBackend(path, durability="relaxed", busy_timeout=0.4)
    backtrail.open(path).thread("t").save({"l": []})

    async def main():
        async with aio.Store(sync.Store(backend)) as store:
            thread = store.thread("t")
            await thread.append("l", "before")
            other = apsw.Connection(str(path))
            other.execute("BEGIN IMMEDIATE")
            begun = time.monotonic()
            outcomes = await asyncio.gather(*(thread.append("l", n) for n in range(50)), return_exceptions=True)
            assert {outcome.code for outcome in outcomes} == {"unavailable.locked"}
            assert time.monotonic() - begun < 0.4 * 25  # not one after the other
            other.close()
            await thread.append("l", "after")
            assert (await state_of(thread))["l"] == ["before", "after"]

    asyncio.run(main())


def test_worker_thread_start_is_retried_after_a_failure(opened):
    async def main():
        async with opened() as store:
            fails = mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
            with fails, pytest.raises(RuntimeError):
                await store.thread("t").save({"n": 1})
            async with asyncio.timeout(10):
                await store.thread("t").save({"n": 2})

    asyncio.run(main())


def test_a_transaction_belongs_to_the_task(opened):
    async def main():
        async with opened() as store:
            await store.thread("a").save({"n": 0})

            async def other():
                assert await state_of(store.thread("a")) == {"n": 0}
                assert await store.thread("b").latest() is None
                await store.thread("c").save({"n": "beside"})

            async with store.transaction():
                await store.thread("a").save({"n": 1})
                await store.thread("b").save({"n": 2})
                assert await state_of(store.thread("a")) == {"n": 1}
                await asyncio.create_task(other())
                with pytest.raises(Invalid):
                    async with store.transaction():
                        pass
            assert await state_of(store.thread("b")) == {"n": 2}
            with pytest.raises(RuntimeError):
                async with store.transaction():
                    await store.thread("a").save({"n": "dropped"})
                    raise RuntimeError

            async def first():
                await store.thread("a").save({"n": "first"})

            with pytest.raises(Conflict):
                async with store.transaction():
                    await store.thread("a").save({"n": "late"})
                    await asyncio.create_task(first())
            assert await state_of(store.thread("a")) == {"n": "first"}
            assert (await store.thread("a").save({"n": 3})).step == 4

    asyncio.run(main())


def test_transaction_does_not_see_an_open_group(opened):
    """A change of a row that never came to be would be kept in the transaction, though the group has failed."""

    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"l": []})
            async with store.transaction():
                with held(store):  # the writer has a group open: what is written here is not a part of it
                    async with asyncio.timeout(10):  # wait_for would be another task
                        await thread.append("l", "mine")
                        async with thread.step() as state:
                            state["l"].append("too")
            assert await state_of(thread) == {"l": ["mine", "too"]}

    asyncio.run(main())


def test_handles_of_one_thread_share_what_they_know_of_it(opened):
    async def main():
        async with opened() as store:
            one, other = store.thread("t"), store.thread("t")
            await one.save({"l": []})
            with mock.patch.object(store._sync._backend, "rows", side_effect=AssertionError):
                for n in range(3):
                    await other.append("l", n)
                    await one.append("l", n)
            assert await state_of(one) == {"l": [0, 0, 1, 1, 2, 2]}

    asyncio.run(main())


def test_steps_of_tasks_that_race_conflict_instead_of_losing_one(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"n": 0})
            done = []

            async def step():
                while True:
                    try:
                        async with thread.step() as state:
                            await asyncio.sleep(0)
                            state["n"] += 1
                    except Conflict:
                        continue
                    done.append(1)
                    return

            await asyncio.gather(*(step() for _ in range(20)))
            await asyncio.gather(*(thread.update(lambda s: {"n": s["n"] + 1}, retries=100) for _ in range(20)))
            assert await state_of(thread) == {"n": 40}

    asyncio.run(main())


# -- groups that fail ---------------------------------------------------------------------------------


@contextmanager
def failing(store, error, *, alone=True):
    """Make the ends of groups fail, once what they wrote was taken back, and, unless not, commits `alone`."""
    backend = store._sync._backend
    group, commit = backend.group, backend.commit

    @contextmanager
    def fails():
        with group(), mock.patch.object(backend, "commit", commit):
            yield
            raise error

    def fails_alone(batch):
        if alone:
            raise error
        return commit(batch)

    with mock.patch.object(backend, "group", fails), mock.patch.object(backend, "commit", fails_alone):
        yield


LOST = Unavailable("the disk fails", code="unavailable.io")


def test_operations_of_an_undone_group_are_repeated(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            first = await thread.save({"l": []})
            with failing(store, Undone(), alone=False):
                with held(store):
                    tasks = [asyncio.create_task(thread.append("l", n)) for n in range(5)]
                    tasks.append(asyncio.create_task(thread.save({}, expect=first)))
                    tasks.append(asyncio.create_task(store.thread("new").save({"n": 1})))
                    await asyncio.sleep(0)
                done = await asyncio.gather(*tasks, return_exceptions=True)
            assert list(map(type, done)) == [*[aio.Checkpoint] * 5, Conflict, aio.Checkpoint]
            assert (await state_of(thread))["l"] == [0, 1, 2, 3, 4]
            assert (await thread.count(), await store.thread("new").count()) == (6, 1)
            assert (await store.verify()).ok

    asyncio.run(main())


def test_failed_group_end_fails_all_its_operations(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"l": []})
            with failing(store, LOST):
                with held(store):
                    tasks = [
                        asyncio.create_task(work)
                        for work in (
                            thread.append("l", 1),
                            store.thread("new").save({}),
                            thread.save({}, expect=backtrail.NEW),  # its answer comes of what did not happen, too
                            thread.fork("fork"),
                        )
                    ]
                    await asyncio.sleep(0)
                done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [(type(each), each.code) for each in done] == [(Unavailable, "unavailable.io")] * 4
            assert len(set(map(id, done))) == 4
            assert [info.id async for info in store.threads()] == ["t"]
            assert await thread.count() == 1
            assert await state_of(thread) == {"l": []}
            assert (await thread.append("l", 2)).step == 2
            assert (await store.verify()).ok

    asyncio.run(main())


def test_a_handle_forgets_what_a_failed_group_wrote(opened, opener):
    """Else it would write a change of its lost row on top of another writer's row with the same seq."""

    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"l": [], "text": "x" * 300})
            with failing(store, LOST), pytest.raises(Unavailable):
                await thread.append("l", "lost")
            other = opener().thread("t")
            other.append("l", "theirs", "too")
            await asyncio.create_task(thread.append("l", "mine"))
            assert await (await thread.load()).get("l") == ["theirs", "too", "mine"]
            assert (await store.verify()).ok

    asyncio.run(main())


def test_a_task_expects_what_it_did_before_a_group_failed(opened, opener):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            read = await thread.save({"n": 1})
            with failing(store, LOST):
                with pytest.raises(Unavailable):
                    await thread.save({"n": "lost"})
                with pytest.raises(Unavailable):
                    await thread.delete()
                with pytest.raises(Unavailable):
                    async with store.transaction():
                        await thread.save({"n": "lost, too"})
            other = opener().thread("t").save({"n": "theirs"})
            with pytest.raises(Conflict) as caught:
                await thread.save({"n": 2})
            assert (caught.value.expected, caught.value.actual) == (read.id, other.id)

    asyncio.run(main())


def test_head_is_unknown_to_others_until_its_group_ends(opened):
    async def main():
        async with opened() as store:
            thread = store.thread("t")
            await thread.save({"n": 0})
            before = thread._sync._shared.tip
            known = partial(store._sync._engine.known_tip, thread._sync._shared)
            seen = []
            group = store._sync._backend.group

            @contextmanager
            def looking():
                with group():
                    yield
                    looker = threading.Thread(target=lambda: seen.append(known()))
                    looker.start()
                    looker.join()
                    seen.append(thread._sync._shared.tip)

            with mock.patch.object(store._sync._backend, "group", looking):
                await thread.save({"n": 1})
            assert seen == [before, before]
            assert known().newest.seq == 2

    asyncio.run(main())


# -- large states -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "light"),
    [
        ({"n": 1, "l": [1, 2.0, None, True, "x", b"y"]}, True),
        (Plan("x"), True),
        ("x" * 60_000, True),
        ({"messages": [{"content": "x" * 10}] * 20}, True),
        ("x" * 70_000, False),
        (["x" * 40_000, "y" * 40_000], False),
        (list(range(1000)), False),
        ({str(n): n for n in range(1000)}, False),
        (Plan("x" * 70_000), False),
        ([[["x"] * 100] * 100], False),
    ],
)
def test_light_values_are_recognized_without_a_full_scan(value, light):
    assert throttle.is_light(value) is light


def test_a_value_that_holds_itself_is_not_light():
    value = []
    value.append(value)
    assert throttle.is_light(value) is False


def test_a_large_save_does_not_hold_up_the_writer(opened):
    async def main():
        async with opened() as store:
            large, go_on, begun = {"l": list(range(5000))}, threading.Event(), threading.Event()
            encode = Tree.of

            def waiting(state, *rest):
                if state is large:
                    begun.set()
                    assert go_on.wait(30)
                return encode(state, *rest)

            with mock.patch.object(Tree, "of", waiting):
                task = asyncio.create_task(store.thread("large").save(large))
                await asyncio.to_thread(begun.wait, 30)
                await asyncio.wait_for(store.thread("small").save({"n": 1}), 10)
                go_on.set()
                assert (await task).step == 1
            assert await state_of(store.thread("large")) == large

    asyncio.run(main())


# -- cancelling ---------------------------------------------------------------------------------------


async def op_save(store, thread):
    await thread.save({"n": 1, "l": ["after"]})


async def op_append(store, thread):
    await thread.append("l", "after")


async def op_large(store, thread):
    await thread.save({"n": 1, "l": ["after"], "more": list(range(500))})


async def op_step(store, thread):
    async with thread.step() as state:
        state["l"].append("after")


async def op_transaction(store, thread):
    async with store.transaction():
        await thread.append("l", "after")
        await store.thread("beside").save({"n": 1})


async def op_fork(store, thread):
    await thread.fork("beside")


async def op_rewind(store, thread):
    await thread.rewind("first")


async def op_delete(store, thread):
    await thread.delete_checkpoint("@")


async def op_update(store, thread):
    await thread.update(lambda state: {**state, "n": 7})


async def op_history(store, thread):
    assert [c.step async for c in thread.history()] == [1, 2]


async def op_upkeep(store, thread):
    await store.gc()
    await store.verify()


OPS = [op_save, op_append, op_large, op_step, op_transaction, op_fork, op_rewind, op_delete, op_update, op_history]
OPS += [op_upkeep]


async def look(store):
    """Everything there is to be seen."""
    found = {}
    async for info in store.threads():
        history = store.thread(info.id).history()
        found[info.id] = [(c.step, await c.load_state()) async for c in history]
    return found


async def begin(store):
    thread = store.thread("t")
    await thread.save({"n": 0, "l": []}, label="first")
    await thread.append("l", "before")
    return thread


async def goes_on(store, thread):
    """The next operations work, as if nothing had happened."""
    count = await thread.count()
    await asyncio.wait_for(thread.append("l", "next"), 30)
    async with store.transaction():
        await thread.append("l", "last")
    assert (await (await thread.load()).get("l"))[-2:] == ["next", "last"]
    assert await thread.count() == count + 2
    assert await thread.load() == await thread.latest()
    await thread.save({"n": "over"})


@pytest.mark.parametrize(("each", "growth"), lengths((6, 2), (40, 8)))  # there may be thousands of steps
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_cancelled_operation_is_done_or_not_at_any_step(opened, op, each, growth):

    async def once(store, after):
        """Run the operation and cancel it that many steps later; return whether it ended by itself."""
        thread = await begin(store)
        before = await look(store)
        task = asyncio.create_task(op(store, thread))
        for _ in range(after):
            await asyncio.sleep(0)
        untouched = task.done()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert task.cancelled()
        found = await look(store)
        outcomes.add("nothing" if found == before else "done")
        assert found in (before, done)
        if not task.cancelled():
            assert found == done
        await goes_on(store, thread)
        for name in ("t", "beside"):
            await store.thread(name).delete()
        if after % 8 == 0:
            await store.gc()
        return untouched

    async def main():
        nonlocal done
        async with opened() as store:
            thread = await begin(store)
            await op(store, thread)
            done = await look(store)
            for name in ("t", "beside"):
                await store.thread(name).delete()
            steps = 0
            while not await once(store, steps):
                steps += 1 if steps < each else steps // growth
            await store.gc()
            assert (await store.verify()).ok

    done, outcomes = None, set()
    asyncio.run(main())
    assert outcomes == ({"nothing"} if op in (op_history, op_upkeep) else {"nothing", "done"})


def test_what_was_not_begun_is_withdrawn(opened):
    async def main():
        async with opened() as store:
            thread = await begin(store)
            before = await look(store)
            with held(store):
                tasks = [asyncio.create_task(op(store, thread)) for op in (op_save, op_append, op_fork, op_rewind)]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)  # before the writer continues
            assert [type(each) for each in done] == [asyncio.CancelledError] * 4
            assert await look(store) == before

    asyncio.run(main())


def test_a_transaction_or_step_whose_end_was_withdrawn_is_over(opened):
    async def main():
        async with opened() as store:
            thread = await begin(store)
            ending = asyncio.Event()

            async def work(block):
                try:
                    async with block():
                        await thread.append("l", "never") if block == store.transaction else None
                        ending.set()
                except asyncio.CancelledError:
                    return "cancelled", store._executor.in_transaction
                return None

            for block in (store.transaction, thread.step):
                ending.clear()
                with held(store):
                    task = asyncio.create_task(work(block))
                    await ending.wait()
                    await asyncio.sleep(0)
                    task.cancel()
                    assert await task == ("cancelled", False)
            assert (await state_of(thread))["l"] == ["before"]
            await goes_on(store, thread)

    asyncio.run(main())


def test_what_was_begun_is_finished_before_the_cancellation_is_raised(opened):
    async def main():
        async with opened() as store:
            thread = await begin(store)
            begun, go_on = threading.Event(), threading.Event()
            group = store._sync._backend.group

            @contextmanager
            def waiting():
                with group():
                    yield
                    begun.set()
                    assert go_on.wait(30)

            with mock.patch.object(store._sync._backend, "group", waiting):
                task = asyncio.create_task(thread.append("l", "after"))
                await asyncio.to_thread(begun.wait, 30)
                for _ in range(3):  # again and again
                    task.cancel()
                    await asyncio.sleep(0.01)
                assert not task.done()
                go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await state_of(thread))["l"] == ["before", "after"]

    asyncio.run(main())


def test_store_works_after_timeouts_and_failing_task_groups(opened):
    async def main():
        async with opened() as store:
            thread = await begin(store)
            with held(store):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await thread.append("l", "never")

                async def fail():
                    await asyncio.sleep(0.02)
                    raise RuntimeError("no")

                with pytest.raises(BaseExceptionGroup):
                    async with asyncio.TaskGroup() as group:
                        for n in range(5):
                            group.create_task(thread.append("l", n))
                        group.create_task(fail())
                still = asyncio.create_task(thread.append("l", "still"))
                with pytest.raises(RuntimeError):
                    await asyncio.gather(still, fail())  # gather leaves the others to themselves
            await still
            await goes_on(store, thread)
            found = await listed(thread.history())
            assert await found[-4].get("l") == ["before", "still"]

    asyncio.run(main())


def test_cancelled_maintenance_stops(opened):
    async def main():
        async with opened() as store:
            for n in range(50):
                await store.thread(f"t{n}").save({"n": n})
            told, reached = [], threading.Event()

            def slowly(what, count):
                told.append(count)
                reached.set()
                time.sleep(0.01)

            with mock.patch.object(asyncio.BaseEventLoop, "call_soon_threadsafe", _called(slowly)):
                task = asyncio.create_task(store.gc(progress=slowly))
                await asyncio.to_thread(reached.wait, 30)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert len(told) < 50

    asyncio.run(main())


def _called(function):
    """Return a `call_soon_threadsafe` that calls this function at once, in the thread that asks."""
    real = asyncio.BaseEventLoop.call_soon_threadsafe

    def call(self, callback, *args, context=None):
        if callback is function:
            return callback(*args)
        return real(self, callback, *args, context=context)

    return call


def test_a_coroutine_that_is_dropped_is_withdrawn(opened):
    async def main():
        async with opened() as store:
            thread = await begin(store)
            with held(store):
                dropped = thread.append("l", "never")
                dropped.send(None)
                dropped.close()
            assert (await state_of(thread))["l"] == ["before"]

    asyncio.run(main())


# -- ends and beginnings ------------------------------------------------------------------------------


def test_closing_waits_for_what_was_asked_for_and_then_refuses(opened):
    async def main():
        store = opened()
        thread = await begin(store)
        with held(store):
            tasks = [asyncio.create_task(thread.append("l", n)) for n in range(20)]
            await asyncio.sleep(0)
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0.02)
            assert not closing.done()
            with pytest.raises(Unavailable) as caught:
                await thread.append("l", "late")
            assert caught.value.code == "unavailable.closed"
        await closing
        assert len(await asyncio.gather(*tasks)) == 20
        await store.close()
        for use in (thread.latest(), thread.save({}), store.stats(), listed(thread.history())):
            with pytest.raises(Unavailable):
                await use

    asyncio.run(main())


def test_several_event_loops_share_a_store(opened):
    store = opened()
    asyncio.run(store.thread("t").save({"l": []}))
    errors = []

    async def main(name):
        async def agent(n):
            for at in range(5):
                await store.thread("t").append("l", [name, n, at])

        await asyncio.gather(*(agent(n) for n in range(10)))

    def work(name):
        try:
            asyncio.run(main(name))
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not errors

    async def end():
        assert len(await (await store.thread("t").load()).get("l")) == 150
        await store.close()

    asyncio.run(end())


def test_closing_a_busy_loop_harms_no_other_loop(opened):
    store = opened()

    async def main():
        thread = await begin(store)
        thread.append("l", "asked").send(None)  # it is not awaited

    asyncio.run(main())

    async def later():
        await store.thread("t").append("l", "next")
        assert (await (await store.thread("t").load()).get("l"))[-1] == "next"
        await store.close()

    asyncio.run(later())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this test forks")
def test_forked_child_gets_its_own_writer(path):
    async def main(store, name):
        await asyncio.gather(*(store.thread("t").append("l", [name, n]) for n in range(20)))
        return len(await (await store.thread("t").load()).get("l"))

    store = asyncio.run(_opened(path))
    assert asyncio.run(main(store, "before")) == 20
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(30)  # if it waits for a thread that it has not got
        try:
            status = 0 if asyncio.run(main(store, "child")) == 40 else 2
            asyncio.run(store.close())
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert asyncio.run(main(store, "parent")) == 60
    asyncio.run(store.close())


async def _opened(path):
    store = await aio.open(path, durability="relaxed")
    await store.thread("t").save({"l": []})
    return store


@pytest.mark.parametrize(
    "end",
    [
        "",
        "raise SystemExit(0)",
        "asyncio.get_running_loop().create_task(store.thread('t').append('l', 2)); await asyncio.sleep(0)",
    ],
)
def test_an_interpreter_ends_with_a_store_that_was_not_closed(path, end):
    code = f"""
        import asyncio
        from backtrail import aio

        async def main():
            global store
            store = await aio.open({str(path)!r})
            await store.thread("t").save({{"l": []}})
            await store.thread("t").append("l", 1)
            print("saved", flush=True)
            {end}

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "saved\n", "")
    with backtrail.open(path) as store:
        assert store.thread("t").load().get("l")[0] == 1


def test_the_threads_of_a_store_that_was_dropped_end(opened):
    def names():
        return [thread for thread in threading.enumerate() if thread.name == "backtrail writer"]

    async def main():
        store = opened()
        await store.thread("t").save({})
        await store.thread("t").latest()
        return weakref.ref(store._executor)

    before = len(names())
    executor = asyncio.run(main())
    gc.collect()
    assert executor() is None
    until = time.monotonic() + 30
    while len(names()) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(names()) <= before


def test_failed_group_start_reaches_the_waiting_tasks(opened):
    async def main():
        async with opened() as store:
            with mock.patch.object(store._sync._backend, "group", side_effect=LOST), pytest.raises(Unavailable):
                await asyncio.wait_for(store.thread("t").save({}), 10)
            await store.thread("t").save({})

    asyncio.run(main())


def test_a_crew_without_an_engine_has_no_writer():
    async def main():
        assert await Executor(None).write(lambda: threading.current_thread().name) == "backtrail"

    asyncio.run(main())


@pytest.mark.parametrize("chore", ["verify", "gc", "reindex", "migrate"])
def test_progress_that_cannot_be_called_is_refused(chore):
    async def main():
        async with aio.open("memory://") as store:
            with pytest.raises(Invalid, match="progress must be a callable"):
                await getattr(store, chore)(progress=5)
            with pytest.raises(Invalid, match="progress must be a callable"):
                await aio.copy(store, "memory://", progress=5)

    asyncio.run(main())
