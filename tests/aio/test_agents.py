"""Agents and conversations in the async mirror: the same calls, many tasks at once, guards, the scheduler."""

import asyncio
import gc
import logging
import threading
import time
import weakref
from contextlib import contextmanager
from unittest import mock

import pytest

from backtrail import AgentState, Conflict, Conversation, Invalid, Message, NotFound, Unavailable, aio
from backtrail.agents.scheduler import LOG
from backtrail.aio import executor
from backtrail.backends.port import Undone
from tests.aio.test_aio import LOST, counted_groups, failing, held, listed


async def begin(store, *agents):
    """Make agents, each with a conversation of its name; return the state of the last one."""
    state = None
    for name in agents or ("a",):
        state = await store.agents.save(AgentState(name, f"Agent {name}", "planner"))
        await store.conversations.save(Conversation(name, id=name, messages=(Message.user("hello"),)))
    return state


async def until(true, seconds=10):
    async with asyncio.timeout(seconds):
        while not await true():  # noqa: ASYNC110 - what is waited for is in a store
            await asyncio.sleep(0.01)


async def kinds(store, agent="a"):
    return [made.kind for made in await store.agents.checkpoints(agent)]


async def said(store, id="a"):  # noqa: A002
    return [message.content for message in (await store.conversations.load(id)).messages]


@contextmanager
def unseen_errors():
    """Collect the event loop's reports of unretrieved exceptions; there should be none."""
    found = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    yield
    gc.collect()
    assert found == []


@contextmanager
def busy(store):
    """Let the threads beside the writer do nothing in the block: what is asked of them in it waits."""
    go_on, there = threading.Event(), threading.Semaphore(0)

    def wait():
        there.release()
        assert go_on.wait(30)

    for _ in range(executor._OTHERS):
        store._executor._others.put(executor.Job(wait))
    for _ in range(executor._OTHERS):
        assert there.acquire(timeout=30)
    try:
        yield
    finally:
        go_on.set()


# -- the same calls -----------------------------------------------------------------------------------


def test_the_calls_of_agents(opened):
    async def main():
        async with opened() as store:
            agents = store.agents
            assert (await agents.get("a"), await agents.list(), await agents.history("a")) == (None, [], [])
            with pytest.raises(NotFound):
                await agents.load("a")
            with pytest.raises(NotFound):
                await agents.checkpoint("a", "none")
            state = await begin(store)
            first = await agents.thread("a").load()
            assert isinstance(first, aio.Checkpoint)
            assert await first.get("name") == "Agent a"
            made = await agents.checkpoint("a", "one", description="first", keep=3)
            assert (made.name, made.description, made.kind, made.conversations) == ("one", "first", "manual", 1)
            changed = await agents.save(state.set_state("n", 1))
            assert (await agents.load("a"), await agents.get("a")) == (changed, changed)
            assert await agents.load("a", at=first) == state
            with pytest.raises(Conflict):
                await agents.save(state.set_state("n", 2))
            with pytest.raises(Conflict):
                await agents.save(AgentState("a", "Another", "planner"))
            versions = await agents.history("a", newest_first=True, limit=1)
            assert [str(version.changes) for version in versions] == ["+ custom_state.n: 1"]
            await store.conversations.append("a", Message.user("later"))
            assert await agents.restore(made.id, agent_id="a") == state
            assert await said(store) == ["hello"]
            assert await agents.undo("a", force=True) == changed
            assert await said(store) == ["hello", "later"]
            assert [each.name for each in await agents.checkpoints("a")] == ["one"]
            assert (await agents.delete_checkpoint(made.id), await agents.delete_checkpoint(made.id)) == (True, False)
            assert [info.name for info in await agents.list()] == ["Agent a"]
            assert await agents.save(AgentState("a", "Another", "planner"), replace=True)
            assert (await agents.delete("a"), await agents.delete("a")) == (True, False)
            assert (await agents.get("a"), await store.conversations.get("a")) == (None, None)

    asyncio.run(main())


def test_the_calls_of_conversations(opened):
    async def main():
        async with opened() as store:
            conversations = store.conversations
            hello, hi = Message.user("Hello there"), Message.assistant("Hi")
            saved = await conversations.save(Conversation("a", id="c", messages=(hello,)))
            with pytest.raises(NotFound):
                await conversations.append("none", hi)
            made = await conversations.append("c", hi, {"role": "user", "content": "Bye"})
            assert isinstance(made, aio.Checkpoint)
            assert (made.step, len((await made.load_state())["messages"])) == (2, 3)
            assert (await conversations.load("c")).message_count == 3
            assert await conversations.load("c", at="@-") == saved
            assert await conversations.get("none") is None
            info = await conversations.update("c", title="T", tags=(word for word in ("x", "y")), archived=True)
            assert (info.title, info.tags, info.archived, info.message_count) == ("T", ("x", "y"), True, 3)
            assert await conversations.info("c") == info
            assert [message.content for message in await conversations.tail("c", 2)] == ["Hi", "Bye"]
            assert await conversations.list("a", tag="x", archived=True, limit=1) == [info]
            assert await conversations.list("a", archived=False) == []
            assert [hit.message_id for hit in await conversations.search("ELLO")] == [hello.id]
            assert await conversations.search("ello", contains=False, agent_id="a", limit=1) == []
            thread = conversations.thread("c")
            assert isinstance(thread, aio.Thread)
            assert [checkpoint.step async for checkpoint in thread.history()] == [1, 2, 3]
            fork = await conversations.fork("c", at=hello.id, new_id="f")
            assert (fork.id, fork.messages, fork.forked_from) == ("f", (hello,), "c")
            edit = await conversations.edit("c", hi.id, "Good day")
            assert [message.content for message in edit.messages] == ["Hello there", "Good day"]
            assert [branch.id for branch in await conversations.branches("c")] == ["f", edit.id]
            assert (await conversations.delete("c"), await conversations.delete("c")) == (True, False)
            with pytest.raises(NotFound):
                await conversations.load("c")

    asyncio.run(main())


# -- many at once -------------------------------------------------------------------------------------


def test_200_coroutines_append_each_message_once_in_order(opened):
    async def main():
        async with opened() as store:
            await begin(store)

            async def agent(name):
                for n in range(3):
                    await store.conversations.append("a", Message.user(f"{name} {n}"))

            await asyncio.gather(*(agent(name) for name in range(200)))
            found = [text.split() for text in (await said(store))[1:]]
            assert len(found) == 600
            for name in range(200):
                assert [int(n) for who, n in found if who == str(name)] == [0, 1, 2]

    asyncio.run(main())


def test_what_adds_to_an_agent_shares_a_group(opened):
    async def main():
        async with opened() as store:
            state = await begin(store)
            with counted_groups(store) as groups, mock.patch.object(executor, "GROUP_SECONDS", 60):
                with held(store):
                    tasks = [
                        asyncio.create_task(work)
                        for work in (
                            *(store.conversations.append("a", Message.user(str(n))) for n in range(30)),
                            store.conversations.update("a", title="T"),
                            store.conversations.save(Conversation("a", id="new")),
                            store.agents.save(state.set_state("n", 1)),
                        )
                    ]
                    await asyncio.sleep(0)
                await asyncio.gather(*tasks)
            assert len(groups) <= 2
            assert await said(store) == ["hello", *map(str, range(30))]

    asyncio.run(main())


def test_undone_group_repeats_with_the_given_arguments(opened):
    async def main():
        async with opened() as store:
            state = await begin(store)
            with failing(store, Undone(), alone=False):
                with held(store):
                    tasks = [
                        asyncio.create_task(work)
                        for work in (
                            store.conversations.append("a", Message.user("once")),
                            store.conversations.update("a", tags=(word for word in ("x", "y"))),
                            store.agents.save(state.set_state("n", 1)),
                            store.agents.save(state.set_state("n", 2)),
                        )
                    ]
                    await asyncio.sleep(0)
                done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each).__name__ for each in done] == [
                "Checkpoint",
                "ConversationInfo",
                "AgentState",
                "Conflict",
            ]
            assert (await said(store), done[1].tags) == (["hello", "once"], ("x", "y"))
            assert (await store.agents.load("a")).get_state("n") == 1

    asyncio.run(main())


def test_a_value_knows_of_no_save_whose_group_failed(opened):
    async def main():
        async with opened() as store:
            state = (await begin(store)).set_state("n", 1)
            new = Conversation("a", id="new")
            with failing(store, LOST):
                with pytest.raises(Unavailable):
                    await store.agents.save(state)
                with pytest.raises(Unavailable):
                    async with store.transaction():
                        await store.agents.save(state)
                        await store.conversations.save(new)
            await store.agents.save(state)  # on top of what it came from, not of what never was
            await store.agents.save(state)
            await store.conversations.save(new)
            assert await store.agents.thread("a").count() == 3

    asyncio.run(main())


def test_gathered_calls_do_not_share_a_transaction(opened):
    async def main():
        async with opened() as store:
            await begin(store, "a", "b")

            async def work(n):
                made = await asyncio.gather(
                    store.agents.checkpoint("a", f"a{n}"),
                    store.conversations.append("a", Message.user(f"a{n}")),
                    store.agents.checkpoint("b", f"b{n}"),
                    store.conversations.append("b", Message.user(f"b{n}")),
                    store.conversations.save(Conversation("b", id=f"new {n}")),
                    store.agents.checkpoint("a", f"again a{n}"),
                )
                assert isinstance(made[1], aio.Checkpoint)

            for n in range(6):
                await work(n)
            await asyncio.gather(*(work(n) for n in range(6, 12)))
            assert {len(await said(store, name)) for name in ("a", "b")} == {13}
            names = [made.name for name in ("a", "b") for made in await store.agents.checkpoints(name)]
            assert sorted(names) == sorted(f"{each}{n}" for each in ("a", "again a", "b") for n in range(12))
            assert len(await store.conversations.list("b")) == 13
            assert not store._sync._engine.opened
            assert (await store.verify()).ok

    asyncio.run(main())


# -- in a transaction of the task ---------------------------------------------------------------------


def test_task_transaction_is_all_or_nothing(opened):
    async def main():
        async with opened() as store:
            state = await begin(store)
            before = await store.agents.checkpoint("a", "before")

            async def work():
                await store.agents.save(state.set_state("n", 1))
                await asyncio.gather(
                    store.conversations.append("a", Message.user("in it")),
                    store.conversations.fork("a", new_id="fork"),
                )
                await store.agents.checkpoint("a", "inside")
                await store.agents.restore(before.id)
                assert await said(store) == ["hello"]
                await store.agents.undo("a")
                await store.conversations.delete("fork")

            async def look():
                names = [made.name for made in await store.agents.checkpoints("a")]
                return names, await said(store), (await store.agents.load("a")).custom_state

            with pytest.raises(RuntimeError):
                async with store.transaction():
                    await work()
                    assert await asyncio.create_task(look()) == (["before"], ["hello"], {})  # another task
                    raise RuntimeError
            assert await look() == (["before"], ["hello"], {})
            async with store.transaction():
                await work()
            assert await look() == (["inside", "before"], ["hello", "in it"], {"n": 1})
            assert await store.conversations.get("fork") is None

    asyncio.run(main())


# -- guards -------------------------------------------------------------------------------------------


async def risky(store, started=None):
    async with store.agents.guard("a", "risky", rollback=True) as made:
        assert (made.name, made.kind) == ("risky", "pre_operation")
        await store.conversations.append("a", Message.user("too far"))
        if started is None:
            raise RuntimeError("no")
        started.set()
        await asyncio.sleep(30)


def test_guard_checkpoints_and_rolls_back_on_request(opened):
    async def main():
        async with opened() as store:
            await begin(store)
            async with store.agents.guard("a", "well", rollback=True):
                await store.conversations.append("a", Message.user("done"))
            assert await kinds(store) == ["pre_operation"]
            with pytest.raises(RuntimeError, match="no"):
                async with store.agents.guard("a", "badly"):
                    await store.conversations.append("a", Message.user("half"))
                    raise RuntimeError("no")
            assert await said(store) == ["hello", "done", "half"]
            with pytest.raises(RuntimeError, match="no"):
                await risky(store)
            assert await said(store) == ["hello", "done", "half"]
            last = (await store.agents.checkpoints("a"))[0]
            assert (last.kind, last.name, last.description) == (
                "recovery",
                "After risky",
                "rolled back: RuntimeError('no')",
            )
            with pytest.raises(NotFound):
                async with store.agents.guard("nobody", "x"):
                    raise AssertionError

    asyncio.run(main())


def test_repeatedly_cancelled_guard_is_rolled_back_first(opened):
    async def main():
        async with opened() as store:
            await begin(store)
            started = asyncio.Event()
            task = asyncio.create_task(risky(store, started))
            await started.wait()
            with busy(store):  # the rollback cannot begin
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0.01)
                assert not task.done()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await said(store) == ["hello"]
            assert await kinds(store) == ["recovery", "pre_operation"]
            started.clear()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    begun = asyncio.create_task(started.wait())
                    begun.add_done_callback(lambda _: limit.reschedule(0))
                    await risky(store, started)
            assert (await said(store), (await kinds(store))[0]) == (["hello"], "recovery")

    asyncio.run(main())


def test_guard_cancelled_at_its_start_rolls_nothing_back(opened):
    async def main():
        async with opened() as store:
            await begin(store)
            entered = False

            async def enter():
                nonlocal entered
                async with store.agents.guard("a", "risky", rollback=True):
                    entered = True

            for steps in range(4):
                task = asyncio.create_task(enter())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await store.conversations.append("a", Message.user(str(steps)))
            gc.collect()
            assert (await said(store), entered) == (["hello", "0", "1", "2", "3"], False)
            assert "recovery" not in await kinds(store)

    asyncio.run(main())


def test_dropped_guard_coroutine_is_rolled_back_without_waiting(opened):
    async def main():
        async with opened() as store:
            await begin(store)
            guard = store.agents.guard("a", "risky", rollback=True)
            await guard.__aenter__()
            await store.conversations.append("a", Message.user("too far"))
            with pytest.raises(StopIteration):  # a coroutine that is closed may not wait
                guard.__aexit__(GeneratorExit, GeneratorExit(), None).send(None)

            async def rolled_back():
                return await kinds(store) == ["recovery", "pre_operation"]

            await until(rolled_back)
            assert await said(store) == ["hello"]

    asyncio.run(main())


def test_failed_rollback_is_reported(opened):
    async def main():
        store = opened()
        await begin(store)
        with pytest.raises(Unavailable) as caught:
            async with store.agents.guard("a", "x", rollback=True):
                await store.close()
                raise RuntimeError("no")
        assert isinstance(caught.value.__context__, RuntimeError)

    asyncio.run(main())


# -- the scheduler ------------------------------------------------------------------------------------


def test_the_scheduler_makes_a_round_at_once_and_stops_promptly(opened):
    async def main():
        async with opened() as store:
            with unseen_errors():
                await begin(store)
                threads = threading.active_count()
                auto = store.agents.autocheckpoint(["a", "nobody"])
                assert auto.running
                await auto.first()
                assert await kinds(store) == ["automatic"]
                assert (await store.agents.checkpoints("a"))[0].name.startswith("Auto checkpoint 2")
                with pytest.raises(Invalid) as caught:
                    await auto.start()
                assert caught.value.code == "invalid.running"
                begun = time.monotonic()
                await auto.stop()
                await auto.stop()
                assert (auto.running, time.monotonic() - begun < 5) == (False, True)
                await auto.start()  # once more
                assert (auto.running, len(await kinds(store))) == (True, 2)
                await auto.stop()
                assert threading.active_count() <= threads + executor._OTHERS

    asyncio.run(main())


def test_scheduler_block_keeps_the_newest_checkpoints(opened):
    async def main():
        async with opened() as store:
            state = await begin(store)
            manual = await store.agents.checkpoint("a", "mine")
            rounds = 0

            async def more():
                return (await store.agents.checkpoints("a"))[0].id not in seen

            async with store.agents.autocheckpoint("a", interval=0.01, keep=2) as auto:
                seen = {made.id for made in await store.agents.checkpoints("a")}
                assert len(seen) == 2
                for _ in range(3):
                    state = await store.agents.save(state.set_state("n", rounds))
                    await until(more)
                    seen |= {made.id for made in await store.agents.checkpoints("a")}
                    rounds += 1
            assert not auto.running
            found = await store.agents.checkpoints("a")
            assert [made.kind for made in found] == ["automatic", "automatic", "manual"]
            assert found[2] == manual
            await asyncio.sleep(0.05)
            assert await store.agents.checkpoints("a") == found

    asyncio.run(main())


def test_a_scheduler_that_is_not_enabled_does_nothing(opened):
    async def main():
        async with opened() as store:
            await begin(store)
            async with store.agents.autocheckpoint("a", enabled=False, interval=0.01) as auto:
                assert not auto.running
                await auto.first()
                await asyncio.sleep(0.03)
            assert await kinds(store) == []
            for wrong in ({"interval": 0}, {"keep": 0}):
                with pytest.raises(Invalid):
                    store.agents.autocheckpoint("a", **wrong)
            with pytest.raises(Invalid):
                store.agents.autocheckpoint(["a", ""])
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(store.agents.autocheckpoint, "a")

    asyncio.run(main())


def test_scheduler_errors_reach_the_loop_and_other_agents_continue(opened, caplog):
    async def main():
        async with opened() as store:
            with unseen_errors():
                await begin(store, "a", "b")
                told = []

                def on_error(agent_id, error):
                    told.append((agent_id, error, threading.current_thread()))
                    assert asyncio.get_running_loop()
                    raise ValueError("mine")

                real = store._sync.agents.checkpoint

                def fails(agent_id, *args, **kwargs):
                    if agent_id == "a":
                        raise LOST
                    return real(agent_id, *args, **kwargs)

                with mock.patch.object(store._sync.agents, "checkpoint", fails):
                    async with store.agents.autocheckpoint(["a", "b"], on_error=on_error) as auto:
                        assert told == [("a", LOST, threading.current_thread())]
                        assert auto.running
                assert (await kinds(store, "a"), await kinds(store, "b")) == ([], ["automatic"])
                said = [record.getMessage() for record in caplog.records]
                assert said == ["the automatic checkpoint of agent 'a' failed: the disk fails", "on_error failed, too"]

    with caplog.at_level(logging.ERROR, logger="backtrail"):
        asyncio.run(main())


def test_stopped_scheduler_finishes_its_round(opened):
    async def main():
        async with opened() as store:
            await begin(store)
            for how in ("stop", "block", "close"):
                auto = store.agents.autocheckpoint("a")
                with busy(store):
                    await asyncio.sleep(0)
                    if how == "block":
                        task = asyncio.create_task(auto.__aenter__())
                        await asyncio.sleep(0)
                        task.cancel()
                        with pytest.raises(asyncio.CancelledError):
                            await task
                        assert not auto.running  # no code can stop it now
                    else:
                        task = asyncio.create_task(auto.stop() if how == "stop" else store.close())
                        await asyncio.sleep(0.01)
                        assert not task.done()
                    await asyncio.sleep(0)
                if how != "block":
                    await task
                await auto.first()
                await auto.stop()
                assert (auto.running, store._executor.bells) == (False, set())
        sync = opened()._sync
        assert len(sync.agents.checkpoints("a")) == 3
        sync.close()

    asyncio.run(main())


def test_scheduler_is_outside_of_its_makers_transaction(opened):
    async def main():
        async with opened() as store:
            await begin(store)
            with pytest.raises(RuntimeError):
                async with store.transaction():
                    await store.conversations.append("a", Message.user("never"))
                    async with store.agents.autocheckpoint("a"):
                        raise RuntimeError
            assert (await kinds(store), await said(store)) == (["automatic"], ["hello"])

    asyncio.run(main())


def test_two_schedulers_of_the_same_agents_get_along(opened):
    async def main():
        async with opened() as store:
            await begin(store, "a", "b")

            async def three():
                return [(await kinds(store, name)).count("automatic") for name in ("a", "b")] == [3, 3]

            async with (
                store.agents.autocheckpoint(["a", "b"], interval=0.01, keep=3),
                store.agents.autocheckpoint(["b", "a"], interval=0.01, keep=3),
            ):
                for n in range(20):
                    await store.agents.checkpoint("a", str(n))
                    await store.conversations.append("b", Message.user(str(n)))
                await until(three)
            assert len(await said(store, "b")) == 21
            assert (await kinds(store)).count("manual") == 20
            assert await three()
            assert (await store.verify()).ok

    asyncio.run(main())


def test_closing_the_store_stops_schedulers(opened, caplog):
    async def main():
        with unseen_errors():
            store = opened()
            await begin(store)
            sleeping = store.agents.autocheckpoint("a")
            await sleeping.first()
            beginning = store.agents.autocheckpoint("a")  # its first round has not been asked for
            await store.close()
            await until(lambda: asyncio.sleep(0, not (sleeping.running or beginning.running)))
            late = store.agents.autocheckpoint("a")
            with pytest.raises(Unavailable):
                await late.first()
            assert not late.running
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "backtrail checkpoints"]
            told = "there are no more automatic checkpoints: this store is closed: open it again"
            assert caplog.messages == [told] * 2

    with caplog.at_level(logging.ERROR, logger="backtrail"):
        asyncio.run(main())


def test_failed_scheduler_start_leaves_no_unretrieved_exception(opened, monkeypatch):
    async def main():
        store = opened()
        await store.close()
        with unseen_errors():
            auto = weakref.ref(store.agents.autocheckpoint("a"))
            await until(lambda: asyncio.sleep(0, len(asyncio.all_tasks()) == 1))
        assert auto() is None

    monkeypatch.setattr(LOG, "disabled", True)  # who listens keeps the exception
    asyncio.run(main())


def test_a_loop_ends_with_a_scheduler_that_was_not_stopped(opened, caplog):
    async def main():
        await begin(store)
        await store.agents.autocheckpoint("a", interval=0.001).first()
        store.agents.autocheckpoint("a")

    store = opened()
    asyncio.run(main())
    gc.collect()
    asyncio.run(store.close())
    assert caplog.messages == []


# -- beside synchronous code --------------------------------------------------------------------------


def test_handles_of_both_kinds_side_by_side(opened):
    async def main():
        async with opened() as store:
            sync = store._sync
            state = await begin(store)

            def work():
                for n in range(20):
                    sync.conversations.append("a", Message.user(f"thread {n}"))
                    sync.agents.checkpoint("a", f"thread {n}")

            async def task():
                for n in range(20):
                    await store.conversations.append("a", Message.user(f"task {n}"))
                    await store.agents.checkpoint("a", f"task {n}")

            await asyncio.gather(asyncio.to_thread(work), task())
            found = await said(store)
            for who in ("thread", "task"):
                assert [text for text in found if text.startswith(who)] == [f"{who} {n}" for n in range(20)]
            assert len(await store.agents.checkpoints("a")) == 40
            assert sync._engine.atomic(lambda session: session.owner()) is not asyncio.current_task()
            there = sync.agents.save(state.set_state("n", 1))  # in the event loop, as the task that it is
            with pytest.raises(Conflict):
                await store.agents.save(state)
            assert await store.agents.load("a") == there
            assert await listed(store.conversations.thread("a").history()) == [
                aio.Checkpoint(store._executor, each) for each in sync.conversations.thread("a").history()
            ]

    asyncio.run(main())
