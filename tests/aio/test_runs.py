"""Runs in the async mirror: calls that are coroutines, many at once, cut short and cancelled at every point."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from unittest import mock

import pytest

from backtrail import Conflict, InDoubt, Invalid, Message, Unavailable, aio
from backtrail.runs.calls import Attempt
from backtrail.runs.strategies import Done, EveryN, Never, NotDone
from tests.aio.test_agents import busy, unseen_errors, until


class Cut(BaseException):
    """The process died."""


@asynccontextmanager
async def dying(run):
    """Run a block of a run; where it says Cut, the run ends as if its process had died."""
    try:
        async with run:
            try:
                yield run
            except Cut:
                run._worker.leave = lambda *_: False
                run._worker.lease.is_open = False
                raise
    except Cut:
        pass


class Tools:
    """Tools that take note of their calls, in which they can be stopped."""

    def __init__(self):
        self.calls = []
        self.gates = {}

    async def do(self, what):
        self.calls.append(what)
        if what in self.gates:
            await self.gates[what].wait()
        await asyncio.sleep(0)
        return f"{what} {self.calls.count(what)}"

    def plain(self, what):
        self.calls.append(what)
        return what.upper()

    async def fail(self, what):
        self.calls.append(what)
        raise ValueError(what)


@contextmanager
def held_writes(run, *, written=False):
    """Let the writes of a run wait in the block, before or after they are done; gives what tells that one waits."""
    go_on, there, real = threading.Event(), threading.Event(), run._worker.recorder.write

    def write(*args, **kwargs):
        if written:
            real(*args, **kwargs)
        there.set()
        assert go_on.wait(30)
        if not written:
            real(*args, **kwargs)

    with mock.patch.object(run._worker.recorder, "write", write):
        try:
            yield there
        finally:
            go_on.set()


async def happened(event):
    await until(lambda: asyncio.sleep(0, event.is_set()))


# -- the same calls -----------------------------------------------------------------------------------


def test_a_run_whose_calls_are_coroutines_and_plain_functions(opened):
    async def main():
        tools, tasks = Tools(), []

        async def who(key):
            tasks.append((asyncio.current_task(), key))

        async with opened() as store:
            run = store.run("s", agent="a", messages=[Message.user("go")], state={"n": 0})
            async with run as same:
                assert (same is run, run.session_id, run.agent, run.resumed, run.iteration) == (
                    True,
                    "s",
                    "a",
                    False,
                    0,
                )
                async for i in run.iterations():
                    assert i == run.iteration
                    assert await run.llm("think", tools.plain, f"think {i}") == f"THINK {i}"
                    assert run.message(Message.assistant(f"said {i}")).content == f"said {i}"
                    assert await run.tool("do", tools.do, what=f"do {i}") == f"do {i} 1"
                    await run.tool("who", who, policy="idempotent")
                    assert run.partial(i) == i
                    run.state["n"] += i
                    if i == 3:
                        run.state = {**run.state, "done": True}
                        break
                made = await run.checkpoint("mine")
                assert isinstance(made, aio.Checkpoint)
                assert await made.get("state.n") == 6
                assert (run.status.name, run.in_doubt) == ("in_progress", [])
            assert (run.status.name, run.strategy.should_checkpoint(1, "tool_call_complete")) == ("completed", True)
            assert [task for task, _ in tasks] == [asyncio.current_task()] * 3
            assert len({key for _, key in tasks}) == 3
            found = await store.runs.load("s")
            assert (found.state, found.status.name, found.iteration) == ({"n": 6, "done": True}, "completed", 3)
            assert [m.content for m in found.messages] == ["go", "said 1", "said 2", "said 3"]
            assert [m.content for m in run.messages] == ["go", "said 1", "said 2", "said 3"]
            assert found.partial_results == tuple(run.partial_results) == (1, 2, 3)
            assert [call.tool_name for call in run.tool_calls] == ["do", "who"] * 3
            assert (await run.thread.find(label="mine")) == [made]
            assert (await store.verify()).ok

    asyncio.run(main())


def test_the_calls_of_the_runs_of_a_store(opened):
    async def main():
        tools = Tools()
        async with opened() as store:
            runs = store.runs
            assert (await runs.get("s"), await runs.has("s"), await runs.list(), await runs.latest("a")) == (
                *(None, False, []),
                None,
            )
            for name in ("s", "t"):
                async with store.run(name, agent="a") as run:
                    await run.tool("do", tools.do, 1)
            assert (await runs.has("s"), await runs.has(3)) == (True, False)
            assert [found.session_id for found in await runs.list(agent="a", status="completed")] == ["t", "s"]
            steps = await runs.steps("s")
            assert [type(step) for step in steps] == [aio.Checkpoint] * 2
            assert [step.step for step in steps] == [1, 2]
            assert (await runs.latest("a")) == (await runs.steps("t"))[-1]
            assert len(await runs.checkpoints("a")) == 4
            assert (await runs.thread("s").load()) == steps[-1]
            assert await runs.prune("a", 2) == 2
            assert await runs.cleanup("t") == 2
            assert [found.session_id for found in await runs.list()] == ["s"]

    asyncio.run(main())


# -- cut short --------------------------------------------------------------------------------------------


def test_a_run_that_was_cut_short_repeats_nothing(opened):
    async def work(store, tools, *, cut):
        run = store.run("s", state={"n": 0}, strategy=EveryN(1), takeover=True)
        async with dying(run):
            await run.tool("before", tools.do, "before")
            run.message(Message.user("hello"))
            async for i in run.iterations():
                run.state["n"] += 1
                assert run.state["n"] == i
                run.message(Message.assistant(await run.llm("think", tools.do, f"think {i}")))
                with pytest.raises(ValueError, match=f"fail {i}"):
                    await run.tool("fail", tools.fail, f"fail {i}")
                if i == 2 and cut:
                    raise Cut
                await run.tool("do", tools.plain, f"do {i}")
                if i == 3:
                    return run
        return run

    async def main():
        tools = Tools()
        store = opened()
        run = await work(store, tools, cut=True)
        assert (await store.runs.load("s")).status.name == "in_progress"
        async with opened() as again:  # the first one is dropped, as it is
            run = await work(again, tools, cut=False)
            assert (run.resumed, run.status.name) == (True, "completed")
            assert tools.calls == ["before", *(f"{what} {i}" for i in (1, 2, 3) for what in ("think", "fail", "do"))]
            said = ["hello", "think 1 1", "think 2 1", "think 3 1"]
            assert [m.content for m in run.messages] == said
            assert [m.content for m in (await again.runs.load("s")).messages] == said
            assert [call.success for call in run.tool_calls] == [True, *(False, True) * 3]
        await store.close()

    asyncio.run(main())


def test_parallel_calls_find_their_own_results(opened):
    async def work(run, tools, rolls):
        async for _ in run.iterations():
            async with asyncio.TaskGroup() as group:
                named = [
                    group.create_task(run.tool("do", tools.do, name, policy="pure")) for name in ("a", "b", "c", "d")
                ]
                alike = [group.create_task(run.tool("roll", rolls)) for _ in range(6)]
            return [each.result() for each in named], [each.result() for each in alike]
        raise AssertionError

    async def main():
        first, count = Tools(), 0
        stopped = asyncio.Event()
        first.gates = {"b": stopped, "d": stopped}

        async def roll():
            nonlocal count
            count += 1
            mine = count
            for _ in range(2 * (10 - mine)):
                await asyncio.sleep(0.001)
            return mine

        async with opened() as store:
            with unseen_errors():
                run = store.run("s", strategy=Never())
                async with dying(run):
                    task = asyncio.create_task(work(run, first, roll))
                    await until(lambda: asyncio.sleep(0, len(run.tool_calls) == 8))
                    ended = [call.arguments["args"] for call in run.tool_calls if call.tool_name == "roll"]
                    assert len(ended) == 6
                    run._worker.recorder.lost = Conflict("dead", code="conflict.lease")
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    raise Cut
                assert sorted(first.calls) == ["a", "b", "c", "d"]
                results = [call.result for call in run.tool_calls if call.tool_name == "roll"]
                assert results != sorted(results)  # they ended in another order
                second = Tools()
                async with store.run("s", takeover=True) as run:
                    assert sorted(call.name for call in run.in_doubt) == ["do", "do"]
                    named, alike = await work(run, second, roll)
                assert (named, sorted(second.calls)) == (["a 1", "b 1", "c 1", "d 1"], ["b", "d"])
                assert (alike, count) == ([1, 2, 3, 4, 5, 6], 6)

    asyncio.run(main())


def test_calls_alike_are_ordered_by_their_tasks(opened):
    async def main():
        async with opened() as store:
            run = store.run("s")
            async with dying(run):
                real, begun = Attempt.begin, []

                def slowly(*args):
                    begun.append(args)
                    if len(begun) == 1:
                        time.sleep(0.1)  # the others would overtake it
                    return real(*args)

                with mock.patch.object(Attempt, "begin", slowly):
                    first = await asyncio.gather(*(run.tool("roll", lambda n=n: n) for n in range(4)))
                raise Cut
            async with store.run("s", takeover=True) as run:
                again = await asyncio.gather(*(run.tool("roll", print) for _ in range(4)))
            assert (first, again) == ([0, 1, 2, 3], [0, 1, 2, 3])

    asyncio.run(main())


def test_diverging_calls_are_refused_except_in_other_tasks(opened):
    async def main():
        tools = Tools()
        async with opened() as store:
            run = store.run("s")
            async with dying(run):
                async for _ in run.iterations():
                    await asyncio.gather(run.tool("do", tools.do, "beside"))
                    await run.tool("do", tools.do, "main")
                    raise Cut
            with pytest.raises(Invalid) as caught:
                async with store.run("s", takeover=True) as run:
                    async for _ in run.iterations():
                        await asyncio.gather(run.tool("do", tools.do, "new"), run.tool("do", tools.do, "beside"))
                        await run.tool("do", tools.do, "other")
            assert (caught.value.code, tools.calls) == ("invalid.replay", ["beside", "main", "new"])

    asyncio.run(main())


# -- in doubt -------------------------------------------------------------------------------------------


def test_cancelled_call_is_in_doubt_until_settled(opened):
    async def once(store, tools, **options):
        async with store.run("s", **options) as run:
            async for _ in run.iterations():
                return await run.tool("do", tools.do, "x")
        raise AssertionError

    async def main():
        tools, began = Tools(), asyncio.Event()

        class Gate:
            async def wait(self):
                began.set()
                await asyncio.Event().wait()

        tools.gates["x"] = Gate()
        async with opened() as store:
            working = asyncio.create_task(once(store, tools))
            await began.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert str((await store.runs.load("s")).status) == "halted(interrupted)"
            with pytest.raises(InDoubt) as caught:
                await once(store, tools)
            assert (await store.runs.load("s")).status.name == "failed"
            await store.runs.settle("s", caught.value.details["call_id"], result="settled")
            assert (await once(store, tools), tools.calls) == ("settled", ["x"])

    asyncio.run(main())


@pytest.mark.parametrize("answer", [Done("found"), NotDone, "nonsense"])
def test_verify_may_be_a_coroutine_function(opened, answer):
    async def main():
        tools, asked = Tools(), []

        async def verify(call):
            await asyncio.sleep(0)
            asked.append((call.name, call.arguments["args"], asyncio.current_task()))
            return answer

        async with opened() as store:
            run = store.run("s")
            async with dying(run):
                with mock.patch.object(tools, "do", side_effect=Cut):
                    await run.tool("do", tools.do, "x", verify=verify)
            run = store.run("s", takeover=True)
            if answer == "nonsense":
                with pytest.raises(Invalid):
                    async with run:
                        await run.tool("do", tools.do, "x", verify=verify)
                assert (await store.runs.load("s")).in_doubt
            else:
                async with run:
                    found = await run.tool("do", tools.do, "x", verify=verify)
                assert (found, tools.calls) == (("x 1", ["x"]) if answer is NotDone else ("found", []))
                assert not (await store.runs.load("s")).in_doubt
            assert asked == [("do", ["x"], asyncio.current_task())]

    asyncio.run(main())


# -- cancelling -------------------------------------------------------------------------------------------


def test_a_result_is_recorded_however_often_its_task_is_cancelled(opened):
    async def main():
        tools = Tools()
        tools.gates["x"] = asyncio.Event()
        async with opened() as store:
            run = store.run("s")

            async def work():
                async with run:
                    await run.tool("do", tools.do, "x")

            task = asyncio.create_task(work())
            await until(lambda: asyncio.sleep(0, tools.calls == ["x"]))
            with busy(store):  # nothing can be written
                tools.gates["x"].set()
                await asyncio.sleep(0.01)
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0.01)
                assert not task.done()
            with pytest.raises(asyncio.CancelledError):
                await task
            found = await store.runs.load("s")
            assert (str(found.status), found.in_doubt, found.owner) == ("halted(interrupted)", (), None)
            async with store.run("s") as again:
                assert (await again.tool("do", tools.do, "x"), tools.calls) == ("x 1", ["x"])

    asyncio.run(main())


def test_result_is_recorded_though_task_is_cancelled(opened):
    async def main():
        tools = Tools()
        tools.gates = {"x": asyncio.Event(), "y": asyncio.Event()}
        async with opened() as store:
            run = store.run("s")
            async with run:
                tasks = [asyncio.create_task(run.tool("do", tools.do, name)) for name in ("x", "y")]
                await until(lambda: asyncio.sleep(0, len(tools.calls) == 2))
                with held_writes(run) as there:
                    tools.gates["x"].set()
                    await happened(there)
                    tools.gates["y"].set()
                    await asyncio.sleep(0.01)
                    tasks[1].cancel()
                    await asyncio.sleep(0.01)
                    assert not tasks[1].done()
                assert await asyncio.gather(*tasks, return_exceptions=True) == ["x 1", mock.ANY]
                assert tasks[1].cancelled()
                assert (run.in_doubt, [call.result for call in run.tool_calls]) == ([], ["x 1", "y 1"])

    asyncio.run(main())


def test_call_cancelled_before_it_began_is_no_doubt(opened):
    async def main():
        tools = Tools()
        async with opened() as store:
            run = store.run("s")
            async with dying(run):
                for again in (False, True):
                    with held_writes(run) as there:
                        first = asyncio.create_task(run.tool("do", tools.do, "x"))
                        await happened(there)
                        waiting = asyncio.create_task(run.tool("do", tools.do, "y"))
                        await asyncio.sleep(0)
                        for _ in range(2 if again else 1):
                            first.cancel()
                            waiting.cancel()
                            await asyncio.sleep(0.01)
                    await asyncio.gather(first, waiting, return_exceptions=True)
                    assert (first.cancelled(), waiting.cancelled(), tools.calls) == (True, True, [])
                    assert run.in_doubt == []
                assert await run.tool("do", tools.do, "x") == "x 1"
                raise Cut
            assert not (await store.runs.load("s")).in_doubt
            async with store.run("s", takeover=True) as run:
                assert (await run.tool("do", tools.do, "x"), tools.calls) == ("x 1", ["x"])

    asyncio.run(main())


def test_run_cancelled_while_opening_is_released(opened):
    async def main():
        async with opened() as store:

            async def enter():
                async with store.run("s"):
                    await asyncio.Event().wait()  # the cancellation ends it, here at the latest

            for steps in range(6):
                task = asyncio.create_task(enter())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            run = store.run("s")
            with mock.patch.object(
                run._worker, "stand", side_effect=lambda data, real=run._worker.stand: slowly(real, data)
            ):
                task = asyncio.create_task(run.__aenter__())
                await asyncio.sleep(0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            found = await store.runs.load("s")
            assert (str(found.status), found.owner) == ("halted(interrupted)", None)
            assert not beating(run)

    def slowly(real, data):
        time.sleep(0.1)
        real(data)

    asyncio.run(main())


def beating(run):
    return run._worker.lease.renew() is not None


def test_a_run_whose_coroutine_is_dropped_is_halted_without_waiting(opened):
    async def main():
        async with opened() as store:
            run = store.run("s")
            await run.__aenter__()
            with pytest.raises(StopIteration):
                run.__aexit__(GeneratorExit, GeneratorExit(), None).send(None)

            async def halted():
                return str((await store.runs.load("s")).status) == "halted(interrupted)"

            await until(halted)
            assert not beating(run)

    asyncio.run(main())


def test_halt_leaves_the_block_from_any_task(opened):
    async def main():
        async with opened() as store:
            for reason in ("here", "there"):
                run = store.run("s")
                async with run:

                    async def ask(run=run, reason=reason):
                        run.halt(reason)

                    if reason == "here":
                        run.halt(reason)
                    await asyncio.gather(ask())
                    raise AssertionError
                assert str(run.status) == str((await store.runs.load("s")).status) == f"halted({reason})"
            with pytest.raises(Invalid):
                await run.tool("late", print)

    asyncio.run(main())


# -- the event loop, and others -----------------------------------------------------------------------------


def test_what_is_plain_does_not_wait_for_a_write(opened):
    async def main():
        tools = Tools()
        async with opened() as store:
            async with store.run("s", state={"n": 0}) as run:
                async for i in run.iterations():
                    with held_writes(run) as there:
                        task = asyncio.create_task(run.tool("do", tools.do, i) if i == 1 else run.checkpoint("mine"))
                        await happened(there)
                        run.message(Message.user(f"meanwhile {i}"))  # in this thread, which lets the write go on
                        run.partial(i)
                        assert (len(run.messages), run.partial_results[-1], task.done()) == (i, i, False)
                        run.state["n"] = i
                    await task
                    if i == 2:
                        break
            found = await store.runs.load("s")
            assert [m.content for m in found.messages] == ["meanwhile 1", "meanwhile 2"]
            assert found.partial_results == (1, 2)
            mine = (await store.runs.thread("s").find(label="mine"))[0]
            assert (await mine.load_state())["state"] == {"n": 1}  # as it was when it was asked for

    asyncio.run(main())


@pytest.mark.parametrize("written", [False, True])
def test_messages_during_a_write_survive_a_cut(opened, written):
    async def main():
        tools = Tools()
        async with opened() as store:
            run = store.run("s")
            async with dying(run):
                async for _ in run.iterations():
                    with held_writes(run, written=written) as there:
                        task = asyncio.create_task(run.tool("do", tools.do, 1))
                        await happened(there)
                        first = run.message(Message.user("meanwhile"))
                    await task
                    raise Cut
            async with store.run("s", takeover=True) as run:
                async for _ in run.iterations():
                    assert run.message(Message.user("meanwhile")).id == first.id
                    await asyncio.gather(run.tool("do", tools.do, 1))
                    break

    asyncio.run(main())


def test_a_result_is_written_while_other_tasks_change_the_state(opened):
    async def main():
        tools = Tools()
        tools.gates["x"] = asyncio.Event()
        async with opened() as store:
            async with store.run("s", state={}) as run:
                async for _ in run.iterations():
                    task = asyncio.create_task(run.tool("do", tools.do, "x"))
                    await until(lambda: asyncio.sleep(0, tools.calls == ["x"]))
                    run.state["before"] = 1
                    with held_writes(run) as there:
                        tools.gates["x"].set()
                        await happened(there)
                        run.state["after"] = 1
                    await task
                    break
            seen = [(await step.load_state())["state"] for step in await store.runs.steps("s")]
            assert seen == [{"before": 1}, {"before": 1, "after": 1}]

    asyncio.run(main())


def test_arguments_are_recorded_as_of_the_call(opened):
    async def main():
        async with opened() as store, store.run("s") as run:
            given = [1]
            with busy(store):
                task = asyncio.create_task(run.tool("sum", sum, given))
                await asyncio.sleep(0.01)
                given.append(2)
            await task
            assert run.tool_calls[0].arguments["args"] == [[1]]

    asyncio.run(main())


def test_an_iteration_does_not_end_before_its_calls(opened):
    async def main():
        tools = Tools()
        tools.gates["x"] = asyncio.Event()
        async with opened() as store:
            with pytest.raises(Invalid) as caught:
                async with store.run("s") as run:
                    async for _ in run.iterations():
                        late = asyncio.create_task(run.tool("do", tools.do, "x"))
                        await until(lambda: asyncio.sleep(0, tools.calls == ["x"]))
            assert caught.value.code == "invalid.run"
            tools.gates["x"].set()
            assert await late == "x 1"  # it has its place in the journal still
            found = await store.runs.load("s")
            assert (found.status.name, found.owner, found.in_doubt) == ("failed", None, ())
            with pytest.raises(Invalid):
                async with store.run("t") as run:
                    tools.gates["y"] = asyncio.Event()
                    late = asyncio.create_task(run.tool("do", tools.do, "y"))
                    await until(lambda: asyncio.sleep(0, "y" in tools.calls))
            tools.gates["y"].set()
            await late
            found = await store.runs.load("t")
            assert (found.status.name, found.owner, found.in_doubt) == ("failed", None, ())
            async with store.run("t") as run:
                assert await run.tool("do", tools.do, "y") == "y 1"

    asyncio.run(main())


def test_lease_is_renewed_while_event_loop_is_busy(opened):
    async def main():
        tools = Tools()
        async with opened() as store:
            with pytest.raises(Conflict, match="taken over"):  # at the latest when the block ends
                async with store.run("s", lease=0.6) as run:
                    before = (await store.runs.load("s")).until
                    await run.tool("busy", time.sleep, 1)
                    assert (await store.runs.load("s")).until > before
                    with pytest.raises(Conflict) as caught:
                        async with store.run("s"):
                            raise AssertionError
                    assert caught.value.code == "conflict.lease"
                    with pytest.raises(Conflict):
                        await store.runs.settle("s", "0.1", not_done=True)
                    async with store.run("s", takeover=True) as other:
                        with pytest.raises(Conflict):
                            await run.tool("stale", tools.do, "stale")
                        await other.tool("busy", time.sleep, 1)
            assert (other.status.name, tools.calls) == ("completed", [])
            assert (await store.runs.load("s")).status.name == "completed"

    asyncio.run(main())


def test_closed_store_ends_a_run_with_an_error(opened):
    async def main():
        store = opened()
        run = store.run("s")
        with pytest.raises(Unavailable):
            async with run:
                await store.close()
        assert not beating(run)

    asyncio.run(main())


# -- what both kinds share --------------------------------------------------------------------------------


def test_leaving_waits_for_a_renewal_of_the_lease(opener):
    store = opener()
    run = store.run("s", lease=0.15)
    renewed = threading.Event()
    extend = run._worker.recorder.journal.extend

    def extending(*args, **kwargs):
        if threading.current_thread().name == "backtrail leases":
            renewed.set()
            time.sleep(0.05)
        extend(*args, **kwargs)

    with run:
        run._worker.recorder.journal.extend = extending
        assert renewed.wait(5)
    found = store.runs.load("s")
    assert (found.status.name, found.owner) == ("completed", None)
    store.close()


def test_completed_run_without_iterations_only_replays(opener):
    store = opener()
    for _ in range(2):
        with store.run("s") as run:
            run.message(Message.user("once"))
            run.tool("do", str, 1)
    assert [m.content for m in run.messages] == ["once"]
    assert len(run.tool_calls) == 1
    with pytest.raises(Invalid), store.run("s") as run:
        run.tool("do", str, 2)
    assert len(store.runs.load("s").tool_calls) == 1
    store.close()


def test_a_run_that_was_not_entered_says_so(opened):
    async def main():
        async with opened() as store:
            run = store.run("s")
            for read in (lambda: run.messages, lambda: run.tool_calls, lambda: run.state, lambda: run.status):
                with pytest.raises(Invalid, match="enter it first"):
                    read()
            with pytest.raises(Invalid, match="enter it first"):
                await run.checkpoint()

    asyncio.run(main())
