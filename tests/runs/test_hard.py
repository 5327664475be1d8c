"""Runs under hardship: code that catches all, strategies that raise, workers that were taken over, odd values."""

import asyncio
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import backtrail
from backtrail import (
    AfterToolCall,
    Conflict,
    Done,
    EveryN,
    InDoubt,
    Invalid,
    Irreversible,
    Message,
    Never,
    NotDone,
    ToolCall,
    aio,
    repaired,
)
from backtrail.engine.journal import INTENT, Journal
from backtrail.runs.lease import renewals_of


class Killed(BaseException):
    pass


class RateLimited(Exception):  # noqa: N818 - named as in a user's package
    pass


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def once(store, work, session="s", **options):
    """Work on the first iteration of a run."""
    with store.run(session, **options) as run:
        for _ in run.iterations():
            work(run)
            break
    return run


class Outside:
    """What is done outside, and dies the first time."""

    def __init__(self, error=Killed):
        self.done = []
        self._error = error

    def __call__(self, *args, **kwargs):
        self.done.append((*args, *kwargs.values()))
        if len(self.done) == 1 and self._error is not None:
            raise self._error
        return len(self.done)


# ---- doubts ---------------------------------------------------------------------------------------------------------


def test_doubt_stays_however_often_it_is_asked_for(store):
    book = Outside()

    def stubborn(run):
        for _ in range(3):
            try:
                run.tool("book", book, "Alfama")
                return
            except Exception:  # noqa: BLE001 - an ordinary retry loop
                pass

    with pytest.raises(Killed):
        once(store, stubborn)
    with pytest.raises(InDoubt):
        once(store, stubborn)
    assert book.done == [("Alfama",)]
    assert [call.id for call in store.runs.load("s").in_doubt] == ["1.1"]


@pytest.mark.parametrize("answer", [RuntimeError("no line"), "neither"])
def test_a_verify_that_does_not_answer_leaves_the_doubt(store, answer):
    book = Outside()

    def verify(_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(Killed):
        once(store, lambda run: run.tool("book", book))

    def ask_twice(run):
        for _ in range(2):
            with pytest.raises((RuntimeError, Invalid)):
                run.tool("book", book, verify=verify)

    with pytest.raises(InDoubt):
        once(store, ask_twice)
    assert len(book.done) == 1
    assert once(store, lambda run: run.tool("book", book, verify=lambda _: NotDone)).tool_calls[0].result == 2


def test_no_iteration_ends_with_a_doubt(store):
    async def pay():
        asyncio.current_task().cancel()
        await asyncio.sleep(5)

    async def main():
        async with aio.open("memory://") as opened:
            with pytest.raises(InDoubt):
                async with opened.run("s") as run:
                    async for number in run.iterations():
                        if number == 2:
                            break
                        with suppress(asyncio.CancelledError):
                            await run.tool("pay", pay, irreversible=True)
                        asyncio.current_task().uncancel()
            found = await opened.runs.load("s")
            assert ([call.name for call in found.in_doubt], found.status.name) == (["pay"], "failed")
            assert [call.ended_at for call in await opened.runs.irreversible("s")] == [None]

    asyncio.run(main())


def test_a_doubt_of_a_call_that_is_pure_is_none(store):
    look = Outside(KeyboardInterrupt)

    def careless(run):
        with pytest.raises(KeyboardInterrupt):
            run.tool("look", look, policy="pure")

    assert once(store, careless).status.name == "completed"


def test_a_worker_does_not_doubt_what_it_is_doing(store):
    def look(run):
        return run.tool("look", lambda: [*run.in_doubt])

    assert once(store, look).tool_calls[0].result == []


def test_an_idempotent_call_gets_the_key_that_was_recorded(store):
    charge = Outside()
    with pytest.raises(Killed):
        once(store, lambda run: run.tool("charge", charge, 90, policy="idempotent", key="first"))
    once(store, lambda run: run.tool("charge", charge, 90, policy="idempotent", key="second"))
    assert charge.done == [(90, "first"), (90, "first")]


def test_a_key_that_is_not_named_belongs_to_one_call(store):
    keys = []

    def charge(key):
        keys.append(key)

    for _ in range(2):
        once(store, lambda run: run.tool("charge", charge, policy="idempotent"))
        store.runs.cleanup("s")
    assert len(set(keys)) == 2


def test_verify_is_asked_whatever_the_policy(store):
    charge = Outside()
    for policy in ("pure", "idempotent"):
        charge.done.clear()
        with pytest.raises(Killed):
            once(store, lambda run: run.tool("charge", charge, policy=policy), policy)  # noqa: B023 - called at once
        run = once(store, lambda run: run.tool("charge", charge, policy=policy, verify=lambda _: Done("paid")), policy)  # noqa: B023
        assert (run.tool_calls[0].result, len(charge.done)) == ("paid", 1)


def test_retry_of_superseded_call_gives_recorded_result(store):
    book = Outside(ValueError)

    def work(run):
        for _ in range(3):
            try:
                run.tool("book", book, retry=True)
                break
            except ValueError:
                pass
        if len(store.runs.steps("s")) < 3:
            raise OSError
        run.tool("next", abs, -1)

    with pytest.raises(OSError):  # noqa: PT011
        once(store, work)
    once(store, work)
    assert len(book.done) == 2  # it failed, and it was done


# ---- results are kept, whatever else goes wrong ---------------------------------------------------------------------


class Raising:
    def should_checkpoint(self, iteration, event):
        raise ZeroDivisionError


class Unsayable(Exception):  # noqa: N818
    def __str__(self):
        raise ZeroDivisionError


def test_raising_strategy_costs_no_result_and_no_lease(store):
    book = Outside(None)
    with pytest.raises(ZeroDivisionError):
        once(store, lambda run: run.tool("book", book), strategy=Raising())
    found = store.runs.load("s")
    assert (found.in_doubt, found.owner, found.status.name) == ((), None, "failed")
    once(store, lambda run: run.tool("book", book))
    assert len(book.done) == 1


def test_a_strategy_that_raises_at_the_end_leaves_no_lease(store):
    with pytest.raises(ZeroDivisionError):
        once(store, lambda _: None, strategy=Raising())
    assert store.runs.load("s").owner is None


def test_a_class_is_no_strategy(store):
    with pytest.raises(Invalid, match=r"AfterToolCall\(\)"):
        store.run("s", strategy=AfterToolCall)


def test_exception_without_text_is_recorded(store):
    def fail():
        raise Unsayable

    for _ in range(2):
        with pytest.raises((Unsayable, backtrail.CallError)):
            once(store, lambda run: run.tool("fail", fail))
        assert (store.runs.load("s").owner, store.runs.load("s").in_doubt) == (None, ())


def test_uncopyable_state_costs_no_result(store):
    done = []

    async def main():
        async with aio.Store(store).run("s") as run:
            async for _ in run.iterations():
                run.state["lock"] = threading.Lock()
                await run.tool("book", done.append, 1)

    with pytest.raises(Invalid, match=r"state\.state\.lock|state\.lock"):
        asyncio.run(main())
    assert store.runs.load("s").in_doubt == ()
    once(store, lambda run: run.tool("book", done.append, 1))
    assert done == [1]


def holding_itself():
    value = []
    value.append({"again": value})
    return value


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


ODD = {"itself": holding_itself(), "deep": nested(100_000), "lock": threading.Lock()}


@pytest.mark.parametrize("result", ODD.values(), ids=ODD)
def test_unstorable_result_is_refused_and_not_repeated(store, result):
    calls = []

    def look():
        calls.append(1)
        return result

    with pytest.raises(Invalid, match=r"^result"):
        once(store, lambda run: run.tool("look", look))
    found = store.runs.load("s")
    assert (found.owner, found.status.name) == (None, "failed")
    with suppress(InDoubt, backtrail.CallError):
        once(store, lambda run: run.tool("look", look))
    assert calls == [1]


def test_changing_a_result_does_not_change_its_record(store):
    def work(run):
        run.tool("find", lambda: ["a", "b"]).pop()
        partial = {"n": 1}
        run.partial(partial)
        partial["n"] = 99

    run = once(store, work)
    assert (run.tool_calls[0].result, run.partial_results) == (["a", "b"], [{"n": 1}])
    assert [c.state["tool_calls"][0]["result"] for c in store.runs.steps("s")] == [["a", "b"]] * 2


def test_a_call_counts_as_being_made_while_it_is_verified(store):
    book, held, asked = Outside(), threading.Event(), threading.Event()
    with pytest.raises(Killed):
        once(store, lambda run: run.tool("book", book))

    def verify(_):
        asked.set()
        held.wait(5)
        return Done("late")

    with ThreadPoolExecutor(1) as pool, pytest.raises(Invalid, match="still in progress"), store.run("s") as run:
        iterations = run.iterations()
        next(iterations)
        late = pool.submit(run.tool, "book", book, verify=verify)
        asked.wait(5)
        try:
            next(iterations)
        finally:
            held.set()
    assert late.result() == "late"  # it is recorded, although no caller waited for it
    assert store.runs.load("s").in_doubt == ()
    assert once(store, lambda run: run.tool("book", book)).tool_calls[0].result == "late"


# ---- one worker -----------------------------------------------------------------------------------------------------


def test_a_worker_that_was_taken_over_makes_no_checkpoint(store):
    with pytest.raises(Conflict), store.run("s") as old:
        for _ in old.iterations():
            with store.run("s", takeover=True) as new:
                new.halt("mine")
            old.state["stale"] = True
            old.checkpoint("stale")
    assert [c.label for c in store.runs.steps("s")] == [None]
    assert store.runs.load("s").state == {}


def test_worker_does_not_bring_back_a_deleted_run(store):
    with pytest.raises(Conflict, match="deleted"), store.run("s", agent="a") as run:
        for _ in run.iterations():
            store.runs.cleanup("s")
            run.checkpoint("ghost")
    assert "s" not in store.runs
    assert store.runs.steps("s") == []


def test_moving_the_checkpoints_is_no_takeover(store):
    ended = threading.Event()

    def move():
        while not ended.is_set():
            store.runs.thread("s").tag("@", "seen")
            store.runs.thread("s").rewind("@")

    with store.run("s") as run:
        run.checkpoint()
        other = threading.Thread(target=move)
        other.start()
        try:
            for number in run.iterations():
                run.tool("count", abs, number)
                if number == 20:
                    break
        finally:
            ended.set()
            other.join()
    assert len(store.runs.load("s").tool_calls) == 20


def test_one_thread_renews_leases_except_of_dropped_runs(store):
    others = set(threading.enumerate())
    runs = [store.run(f"s{number}", lease=0.2).__enter__() for number in range(50)]
    begun = [each for each in threading.enumerate() if each.name == "backtrail leases" and each not in others]
    assert begun == [renewals_of(store._engine).thread]
    before = store.runs.load("s49").until
    dropped = store.runs.load("s0").until
    runs.pop(0)
    for _ in range(500):
        if store.runs.load("s49").until > before:
            break
        threading.Event().wait(0.01)
    else:
        raise AssertionError("not renewed")
    for run in reversed(runs):
        run.__exit__(None, None, None)
    assert store.runs.load("s0").until == dropped


def test_forked_process_leaves_the_run_to_its_parent(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        with store.run("s") as run:
            for _ in run.iterations():
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        with pytest.raises(Invalid, match="another process"):
                            run.tool("never", abs, -1)
                        run.__exit__(SystemExit, SystemExit(), None)
                        code = 0
                    finally:
                        os._exit(code)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                run.tool("mine", abs, -1)
                break
        assert store.runs.load("s").status.name == "completed"


def test_a_lease_without_an_end_is_refused(store):
    with pytest.raises(Invalid, match="lease"):
        store.run("s", lease=9e11)


# ---- what may not be done inside ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "deed",
    [
        lambda run: run.tool("inner", abs, -1),
        lambda run: run.llm("inner", abs, -1),
        lambda run: run.message(Message.user("inside")),
        lambda run: run.partial("inside"),
    ],
)
def test_nested_calls_and_messages_are_refused_in_calls(store, deed):
    with pytest.raises(Invalid, match="Do it after the call"):
        once(store, lambda run: run.tool("outer", lambda: deed(run)))


def test_a_call_inside_of_a_transaction_is_refused(store):
    with pytest.raises(Invalid, match="outside of a transaction"), store.run("s") as run, store.transaction():
        run.tool("late", abs, -1)


def test_halting_inside_of_a_tool_takes_the_call_back(store):
    approved = []

    def ask(run):
        if not approved:
            run.halt("please look")
        return "yes"

    run = once(store, lambda run: run.tool("ask", lambda: ask(run)))
    assert (str(run.status), store.runs.load("s").in_doubt) == ("halted(please look)", ())
    approved.append(True)
    assert once(store, lambda run: run.tool("ask", lambda: ask(run))).tool_calls[0].result == "yes"


def test_halting_in_a_group_of_tasks_halts_the_run(store):
    async def main():
        async with aio.Store(store).run("s") as run, asyncio.TaskGroup() as group:

            async def stop():
                run.halt("enough")

            group.create_task(stop())
            group.create_task(asyncio.sleep(5))
        return run

    assert str(asyncio.run(main()).status) == "halted(enough)"


# ---- values ---------------------------------------------------------------------------------------------------------


def test_messages_come_back_as_messages(store):
    def work(run):
        reply = run.llm("plan", lambda: Message.assistant("hello"))
        run.message(reply)
        run.state["last"] = reply
        if not run.resumed:
            raise OSError
        return reply

    with pytest.raises(OSError):  # noqa: PT011
        once(store, work)
    run = once(store, work)
    assert isinstance(run.messages[0], Message)
    assert store.runs.load("s").state["last"] == run.messages[0]
    assert store.runs.steps("s")[-1].state["state"]["last"] == run.messages[0]


def test_message_that_is_made_again_is_the_same_argument(store):
    asked = []

    def work(run):
        run.llm("plan", lambda messages: asked.append(len(messages)), [Message.system("Be brief"), *run.messages])
        if not run.resumed:
            raise OSError

    for _ in range(2):
        with suppress(OSError):
            once(store, work, messages=[Message.user("Go"), Message.user("on")])
    assert asked == [3]


def test_messages_of_the_run_are_not_recorded_with_every_call(store):
    with store.run("s", messages=[Message.user(f"{number}" * 100) for number in range(50)]) as run:
        run.tool("count", len, run.messages)
        run.tool("some", len, [*run.messages[3:7], Message.user("new"), run.messages[0]])
    (first,), (second,) = (call.arguments["args"] for call in run.tool_calls)
    assert first == [{"run.messages": [0, 50]}]
    assert (second[0], second[1].content, second[2]) == ({"run.messages": [3, 7]}, "new", {"run.messages": [0, 1]})
    assert [call.result for call in run.tool_calls] == [50, 6]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("full", 7),
        KeyError(("a", 1)),
        ConnectionResetError(104, "reset"),
        FileNotFoundError(2, "No such file", "plan.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        StopIteration(3),
        RateLimited("slowly", {"seconds": 3}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_as_it_was(store, error):
    def fail():
        raise error

    caught = []
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            once(store, lambda run: run.tool("fail", fail), errors=[RateLimited])
        caught.append(raised.value)
    assert caught[1] is not error
    assert (type(caught[1]), caught[1].args, str(caught[1])) == (type(error), error.args, str(error))


def test_lookalike_of_a_builtin_exception_is_not_builtin(store):
    def fail():
        raise type("ValueError", (Exception,), {"__module__": "elsewhere"})("mine")

    with pytest.raises(Exception, match="mine"):
        once(store, lambda run: run.tool("fail", fail))
    with pytest.raises(backtrail.CallError, match="ValueError: mine"):
        once(store, lambda run: run.tool("fail", fail))


def test_unsaid_messages_keep_their_place(store):
    def work(run, *words):
        for word in words:
            run.message(Message.user(word))
            run.partial(word)
        run.tool("look", abs, -1)
        if not run.resumed:
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        once(store, lambda run: work(run, "at 10:00", "same"))
    run = once(store, lambda run: work(run, "at 10:05", "same"))
    assert [message.content for message in run.messages] == ["at 10:00", "same", "at 10:05"]
    assert [message.content for message in store.runs.load("s").messages] == ["at 10:00", "same", "at 10:05"]
    assert run.partial_results == ["at 10:00", "same", "at 10:05"]


def test_arguments_may_be_called_as_ours_are(store):
    def greet(name, fn):
        return f"{name} {fn}"

    run = once(store, lambda run: run.tool("greet", greet, name="Ann", fn="f"))
    assert run.tool_calls[0].result == "Ann f"


@pytest.mark.parametrize(
    "options",
    [
        {"verify": 5},
        {"irreversible": "no"},
        {"retry": "x"},
        {"tool_call_id": 5},
        {"key": 5, "policy": "idempotent"},
        {"key": "a"},
    ],
)
def test_options_of_a_call_are_what_they_are_called(store, options):
    with pytest.raises(Invalid):
        once(store, lambda run: run.tool("t", lambda key=None: key, **options))
    assert store.runs.load("s").tool_calls == ()


@pytest.mark.parametrize(
    "options",
    [{"messages": 5}, {"messages": Message.user("x")}, {"messages": ["x"]}, {"takeover": "no"}, {"errors": [5]}],
)
def test_options_of_a_run_are_what_they_are_called(store, options):
    with pytest.raises(Invalid):
        store.run("s", **options)


def test_a_coroutine_function_belongs_to_the_other_kind(store):
    async def late():
        pass

    with pytest.raises(Invalid, match=r"backtrail\.aio"):
        once(store, lambda run: run.tool("late", late))
    with pytest.raises(Invalid, match="settle takes"):
        store.runs.settle("s", [], not_done=True)


def test_calls_beside_others_that_diverge_are_both_shown(store):
    done = []

    def work(run, day):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run.tool, "book", done.append, day).result()
        if day == "monday":
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        once(store, lambda run: work(run, "monday"))
    with pytest.raises(Invalid, match=r"book\('monday'\).*book\('tuesday'\)"):
        once(store, lambda run: work(run, "tuesday"))


def test_new_call_in_completed_run_is_refused(store):
    once(store, lambda run: run.tool("a", abs, -1))
    with pytest.raises(Invalid, match="is completed"), store.run("s") as run:
        run.tool("b", abs, -1)
    with pytest.raises(Invalid, match="is completed"), store.run("s") as run:
        run.message(Message.user("new"))
    with pytest.raises(Invalid, match="is completed"), store.run("s") as run:
        run.checkpoint()
    with pytest.raises(Invalid, match="is completed"), store.run("s") as run:
        run.state["x"] = 1


# ---- listings -------------------------------------------------------------------------------------------------------


def test_a_message_of_a_run_is_found_once(store):
    once(store, lambda run: run.tool("look", abs, -1), messages=[Message.user("a zebra")])
    assert [hit.kind for hit in store.search("zebra")] == ["run"]


def test_checkpoints_that_are_out_of_view_are_counted_and_pruned(store):
    with store.run("s", agent="a") as run:
        for number in run.iterations():
            run.tool("count", abs, number)
            if number == 4:
                break
    store.runs.thread("s").rewind(2)
    assert store.runs.prune("a", 1) == 4
    assert store.runs.cleanup("s") == 1


def test_a_damaged_run_is_named_and_the_others_are_listed(store):
    for name in ("s", "t"):
        once(store, lambda run: run.tool("look", abs, -1), name)
    backtrail.Thread(store._engine, "journal", "t").append("entries", ["r", "9.9", True, 1])
    found = {record.session_id: record for record in store.runs.list()}
    assert (found["s"].damaged, bool(found["t"].damaged)) == (None, True)
    with pytest.raises(backtrail.Corrupt):
        store.runs.load("t")


def test_fork_to_an_existing_run_is_refused(store):
    once(store, lambda run: run.tool("look", abs, -1))
    once(store, lambda _: None, "t", strategy=Never())
    with pytest.raises(Conflict):
        store.runs.thread("s").fork("t")


# ---- what cannot be undone ------------------------------------------------------------------------------------------


def paid(store):
    with store.run("s", agent="a", strategy=EveryN(1)) as run:
        for number in run.iterations():
            run.tool("pay", abs, number, irreversible=number > 1)
            if number == 3:
                break


def test_rewind_behind_irreversible_call_warns_first(store):
    paid(store)
    thread = store.runs.thread("s")
    with pytest.warns(Irreversible) as told:
        thread.rewind(1)
    assert [call.id for call in told[0].message.calls] == ["2.1", "3.1"]
    thread.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error", Irreversible)
        with pytest.raises(Irreversible):
            thread.rewind(1)
        assert thread.current_step == 3
        thread.rewind(3)  # nothing of the kind came after it
        thread.rewind("@")
        with pytest.raises(Irreversible):
            store.runs.thread("s").rewind(2)
    assert [call.id for call in store.runs.irreversible("s")] == ["2.1", "3.1"]
    assert [call.id for call in store.runs.irreversible("s", 2)] == ["3.1"]
    assert store.runs.irreversible("nobody") == []


def test_undo_behind_irreversible_call_warns(store):
    with pytest.raises(OSError), store.run("s") as run:  # noqa: PT011
        for _ in run.iterations():
            run.checkpoint()
            run.tool("pay", abs, -1, irreversible=True)
            raise OSError
    thread = store.runs.thread("s")
    thread.undo()
    with pytest.warns(Irreversible, match=r"pay \(1\.1\)"):
        thread.undo()


def test_agent_restore_warns_of_later_irreversible_calls(store):
    store.agents.save(backtrail.AgentState("a", "Ann", "model"))
    before = store.agents.checkpoint("a", "before")
    paid(store)
    after = store.agents.checkpoint("a", "after")
    assert [call.id for call in store.agents.irreversible(before)] == ["2.1", "3.1"]
    assert store.agents.irreversible(after) == []
    store.agents.restore(after)
    with pytest.warns(Irreversible, match=r"pay \(2\.1\), pay \(3\.1\)"):
        store.agents.restore(before.id)


# ---- messages without an answer -------------------------------------------------------------------------------------


def calling(*ids):
    return Message.assistant("", tool_calls=[ToolCall("look", id=each) for each in ids])


def told(messages):
    return [(str(each.role), each.metadata.get("repaired")) for each in messages]


def test_unanswerable_tool_call_gets_an_answer(store):
    first = [Message.user("?"), calling("a", "b"), Message.tool_result("b", "found"), Message.user("!")]
    with store.run("s", messages=first) as run:
        assert told(run.messages) == [
            ("user", None),
            ("assistant", None),
            ("tool", None),
            ("tool", "interrupted"),
            ("user", None),
        ]
        assert [message.metadata["tool_call_id"] for message in run.repaired] == ["a"]
        run.halt("seen")
    with store.run("s") as run:
        assert (run.repaired, len(run.messages)) == ([], 5)


def test_calls_that_are_about_to_be_made_are_left_alone(store):
    with store.run("s", messages=[calling("a", "b"), Message.tool_result("b", "found")]) as run:
        assert run.repaired == []


def test_what_is_known_of_a_call_is_its_answer(store):
    with pytest.raises(OSError), store.run("s") as run:  # noqa: PT011
        for number in run.iterations():
            if number == 1:
                run.message(calling("a"))
                run.tool("look", abs, -7, tool_call_id="a")
            else:
                run.message(Message.user("and then it forgot the answer"))
                if number == 3:
                    raise OSError
    with store.run("s") as run:
        assert [(message.content, message.metadata["repaired"]) for message in run.repaired] == [("7", "recorded")]
        assert [str(message.role) for message in run.messages] == ["assistant", "tool", "user"]


def test_messages_that_are_kept_elsewhere_are_repaired_to_the_end():
    whole = [calling("a"), Message.tool_result("a", "x"), calling("b", "c"), Message.tool_result("c", "y")]
    assert told(repaired(whole)) == [
        *[("assistant", None), ("tool", None), ("assistant", None), ("tool", None)],
        ("tool", "interrupted"),
    ]
    once_repaired = repaired(whole)
    assert repaired(once_repaired) == once_repaired
    answered = Message.assistant("", tool_calls=[ToolCall("look", id="d").completed("z")])
    assert repaired([answered]) == [answered]


# ---- decorated ------------------------------------------------------------------------------------------------------


def test_a_decorated_function_is_journaled_wherever_a_run_is(store):
    done = []

    @backtrail.tool
    def look(what):
        done.append(what)
        return what.upper()

    @backtrail.tool(name="book", irreversible=True)
    def reserve(what):
        return look(what) + "!"  # a part of this call

    @backtrail.llm(policy="pure")
    def plan():
        return "plan"

    def work(run):
        assert (look("a"), reserve("b"), plan()) == ("A", "B!", "plan")
        if not run.resumed:
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        once(store, work)
    run = once(store, work)
    assert done == ["a", "b"]
    assert [(call.tool_name, call.irreversible) for call in run.tool_calls] == [("look", False), ("book", True)]
    with pytest.raises(Invalid, match=r"look\.__wrapped__"):
        look("c")
    assert look.__wrapped__("c") == "C"


def test_a_decorated_coroutine_function_is_called_by_tasks(store):
    done = []

    @backtrail.tool
    async def look(what):
        done.append(what)
        return what.upper()

    async def main():
        async with aio.Store(store).run("s") as run:
            async for _ in run.iterations():
                found = await asyncio.gather(look("a"), look("b"))
                break
        with pytest.raises(Invalid, match="there is none here"):
            await look("c")
        return found, run

    found, run = asyncio.run(main())
    assert (found, sorted(done)) == (["A", "B"], ["a", "b"])
    assert len(run.tool_calls) == 2


def test_runs_inside_of_runs_have_their_own_calls(store):
    @backtrail.tool
    def look():
        return 1

    with store.run("outer") as outer:
        look()
        with store.run("inner") as inner:
            look()
            look()
        look()
    assert (len(outer.tool_calls), len(inner.tool_calls)) == (2, 2)


@pytest.mark.parametrize("options", [{"policy": "sometimes"}, {"policy": "idempotent"}, {"key": "k"}])
def test_bad_options_are_refused_by_the_decorator(options):
    with pytest.raises(Invalid):
        backtrail.tool(**options)(lambda: None)
    with pytest.raises(Invalid):
        backtrail.tool(5)


# ---- runs inside of runs, and beside each other ---------------------------------------------------------------------


def test_decorated_tool_belongs_to_the_inner_run(store):
    done = []

    @backtrail.tool(irreversible=True)
    def pay(amount):
        done.append(amount)

    def child():
        with store.run("child") as run:
            for number in run.iterations():
                pay(number)
                if number == 2:
                    break
                if not run.resumed:
                    raise OSError

    for _ in range(2):
        with suppress(OSError):
            once(store, lambda run: run.tool("child", child, retry=True), "parent")
    assert done == [1, 2]
    assert [call.id for call in store.runs.irreversible("child")] == ["1.1", "2.1"]


def test_doubt_of_inner_run_is_no_result(store):
    pay = Outside()

    def child():
        with store.run("child") as run:
            return run.tool("pay", pay)

    with pytest.raises(Killed):
        once(store, lambda run: run.tool("child", child, policy="pure"), "parent")
    with pytest.raises(InDoubt):
        once(store, lambda run: run.tool("child", child, policy="pure"), "parent")
    store.runs.settle("child", "0.1", result="paid")
    assert once(store, lambda run: run.tool("child", child, policy="pure"), "parent").tool_calls[0].result == "paid"


def test_halt_halts_the_run_it_was_called_on(store):
    with store.run("outer") as outer:
        with store.run("inner") as inner:
            outer.halt("all of it")
        raise AssertionError
    assert (str(outer.status), str(inner.status)) == ("halted(all of it)", "halted(all of it)")


def test_halt_in_verify_leaves_the_doubt(store):
    pay = Outside()
    with pytest.raises(Killed):
        once(store, lambda run: run.tool("pay", pay, policy="idempotent"))
    once(store, lambda run: run.tool("pay", pay, verify=lambda _: run.halt("look")))
    assert [call.id for call in store.runs.load("s").in_doubt] == ["1.1"]
    once(store, lambda run: run.tool("pay", pay, policy="idempotent"))
    assert len(set(pay.done)) == 1  # the same key


def test_group_of_halt_and_bug_is_a_bug(store):
    with pytest.raises(BaseExceptionGroup), store.run("s") as run:
        try:
            run.halt("enough")
        except BaseException as halt:  # noqa: BLE001
            raise BaseExceptionGroup("both", [halt, ValueError("a bug")]) from None
    assert str(store.runs.load("s").status).startswith("failed(ExceptionGroup: both")


def test_fork_of_another_agents_run_is_refused(store):
    once(store, lambda run: run.tool("t", abs, -1), agent="x")
    store.runs.thread("s").fork("f")
    done = []
    with pytest.raises(Conflict, match="'x'"):
        once(store, lambda run: run.tool("pay", done.append, 1), "f", agent="y")
    assert done == []
    assert [record.session_id for record in store.runs.list(agent="x")] == ["f", "s"]


# ---- messages in arguments ------------------------------------------------------------------------------------------


def test_another_question_gets_another_answer(store):
    def ask(run, question):
        run.message(Message.user(question))
        found = run.llm("ask", lambda messages: f"to {messages[-1].content}", messages=run.messages)
        run.tool("look", abs, -1)
        return found

    answers = []
    once(store, lambda run: answers.append(ask(run, "A")), messages=[Message.user("hello")])
    store.runs.thread("s").fork("t", at=1)
    once(store, lambda run: answers.append(ask(run, "B")), "t")
    store.runs.thread("s").fork("u", at=1)
    once(store, lambda run: answers.append(ask(run, "A")), "u")
    assert answers == ["to A", "to B", "to A"]


def test_repair_does_not_change_recorded_questions(store):
    def work():
        with store.run("s") as run:
            for number in run.iterations():
                if number == 1:
                    run.message(calling("c"))
                elif number == 2:
                    run.message(Message.user("are you there?"))
                else:
                    run.llm("plan", len, run.messages)
                    if not run.resumed:
                        raise OSError
                    return run
        return run

    with pytest.raises(OSError):  # noqa: PT011
        work()
    run = work()
    assert (run.status.name, len(run.repaired)) == ("completed", 1)


def test_a_message_that_is_said_twice_is_two(store):
    same = Message.user("same")

    def work(run):
        run.message(same)
        run.message(same)
        run.llm("ask", len, run.messages)
        if not run.resumed:
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        once(store, work)
    assert len(once(store, work).messages) == 2


def test_checkpoints_show_what_was_kept_without_being_said_again(store):
    def work(words, *, cut):
        with store.run("s") as run:
            for number in run.iterations():
                for word in words.get(number, ()):
                    run.message(Message.user(word))
                    run.partial(word)
                run.tool("look", abs, number)
                if cut:
                    raise OSError
                if number == 2:
                    break

    with pytest.raises(OSError):  # noqa: PT011
        work({1: ["m1"]}, cut=True)
    work({1: ["m2"], 2: ["m3"]}, cut=False)
    last = store.runs.steps("s")[-1].state
    assert [message["content"] for message in last["messages"]] == ["m1", "m2", "m3"]
    assert last["partial_results"] == ["m1", "m2", "m3"]
    assert [message.content for message in store.runs.load("s").messages] == ["m1", "m2", "m3"]


# ---- going back, further --------------------------------------------------------------------------------------------


def test_rewind_to_last_checkpoint_takes_back_later_work(store):
    with pytest.raises(OSError), store.run("s", strategy=EveryN(2)) as run:  # noqa: PT011
        for number in run.iterations():
            run.partial(number)
            if number == 4:
                run._worker.lease.is_open = False  # it dies: nothing is written
                raise OSError
    store.runs.thread("s").rewind(1)
    found = store.runs.load("s")
    assert (found.iteration, found.partial_results) == (3, (1, 2))


def test_deleting_and_pruning_leaves_a_rewound_run_where_it_is(store):
    with store.run("s", agent="x") as run:
        for number in run.iterations():
            run.tool("count", abs, number)
            if number == 4:
                break
    thread = store.runs.thread("s")
    thread.rewind(2)
    before = store.runs.load("s")
    assert (before.iteration, str(before.status)) == (2, "halted(rewound)")
    thread.delete_checkpoint("@")
    assert store.runs.load("s") == before
    assert store.runs.prune("x", 0) == 4
    assert store.runs.load("s") == before


def test_deleting_older_checkpoints_does_not_disturb_worker(store):
    with store.run("s") as run:
        for number in run.iterations():
            run.tool("count", abs, number)
            if number == 3:
                run.thread.rewind(2)
                assert run.thread.delete_checkpoint(1)
            if number == 4:
                break
    assert store.runs.load("s").status.name == "completed"


def test_a_run_that_was_rewound_stays_there_without_its_checkpoints(store):
    with store.run("s") as run:
        for number in run.iterations():
            run.tool("count", abs, number)
            if number == 4:
                break
    run.thread.rewind(2)
    before = store.runs.load("s")
    assert run.thread.delete()
    assert store.runs.load("s") == before
    assert not run.thread.delete()


def test_unopened_fork_survives_loss_of_its_checkpoints(store):
    once(store, lambda run: run.tool("t", abs, -1), agent="x")
    store.runs.thread("s").fork("f")
    store.runs.prune("x", 0)
    with store.run("f") as run:
        assert (run.resumed, run.iteration, len(run.tool_calls)) == (True, 2, 1)


def test_what_was_paid_before_a_rewind_stays_listed(store):
    paid = []

    def work(amount):
        with store.run("s", agent="x") as run:
            for number in run.iterations():
                if number == 2:
                    break
                run.tool("pay", paid.append, amount, irreversible=True)
                run.tool("look", abs, -1)

    work(90)
    store.agents.save(backtrail.AgentState("x", "Ann", "model"))
    store.runs.thread("s").rewind(1)
    work(80)
    assert paid == [90, 80]
    assert [call.arguments["args"] for call in store.runs.irreversible("s")] == [[80], [90]]
    with pytest.warns(Irreversible):
        store.runs.thread("s").rewind(1)
    assert sorted(call.arguments["args"][0] for call in store.runs.irreversible("s")) == [80, 90]


def test_a_model_that_cannot_be_undone_is_listed_too(store):
    once(store, lambda run: run.llm("post", abs, -1, irreversible=True))
    assert [call.tool_name for call in store.runs.irreversible("s")] == ["post"]


def test_worker_takes_back_a_rewind_under_it(store):
    with store.run("s", strategy=Never()) as run:
        run.checkpoint()
        for number in run.iterations():
            run.partial(number)
            if number == 2:
                store.runs.thread("s").rewind(1)
                break
    found = store.runs.load("s")
    assert (found.status.name, found.partial_results) == ("completed", (1, 2))


def test_checkpoint_that_no_run_made_does_no_harm(store):
    once(store, lambda run: run.tool("t", abs, -1))
    once(store, lambda run: run.tool("t", abs, -1), "other")
    thread = store.runs.thread("s")
    with pytest.raises(Invalid, match="made by the run"):
        thread.save({"x": 1})
    backtrail.Thread(store._engine, "run", "s").save({"x": 1})  # as older versions let one do
    thread.undo()
    thread.redo()
    assert len(store.runs.list()) == 2
    thread.undo()
    assert store.runs.load("s").status.name == "completed"


def test_agent_with_damaged_run_can_be_restored(store):
    store.agents.save(backtrail.AgentState("x", "Ann", "model"))
    before = store.agents.checkpoint("x", "before")
    once(store, lambda run: run.tool("t", abs, -1), agent="x")
    backtrail.Thread(store._engine, "journal", "s").append("entries", ["r", "9.9", True, 1])
    store.agents.restore(before)


# ---- odds and ends --------------------------------------------------------------------------------------------------


def test_answer_given_by_the_iteration_is_not_repaired(store):
    def work():
        with store.run("s") as run:
            for number in run.iterations():
                if number == 1:
                    run.message(calling("c"))
                    run.message(Message.user("well?"))
                    continue
                run.message(Message.tool_result("c", str(run.tool("look", abs, -7, tool_call_id="c"))))
                if not run.resumed:
                    raise OSError
                break
        return run

    with pytest.raises(OSError):  # noqa: PT011
        work()
    assert work().repaired == []


def test_a_decorated_tool_of_asyncio_is_not_called_elsewhere(store):
    @backtrail.tool
    def look():
        return 1

    async def main():
        async with aio.Store(store).run("s") as run:
            with pytest.raises(Invalid, match="await it"):
                await asyncio.to_thread(look)
            assert await look() == 1
            other = asyncio.new_event_loop()
            with pytest.raises(Invalid, match="another event loop"):
                await asyncio.to_thread(other.run_until_complete, run.tool("t", abs, -1))
            other.close()

    asyncio.run(main())


class Limited(Exception):  # noqa: N818
    def __init__(self, text, after=0):
        super().__init__(text)
        self.after = after


def test_an_exception_of_ones_own_keeps_its_attributes(store):
    def fail():
        raise Limited("slowly", after=30)

    for _ in range(2):
        with pytest.raises(Limited) as raised:
            once(store, lambda run: run.tool("fail", fail), errors=[Limited])
        assert (str(raised.value), raised.value.after) == ("slowly", 30)


def test_values_read_from_a_run_are_copies(store):
    def work(run):
        run.tool("find", lambda: ["a"])
        run.partial(["b"])
        run.tool_calls[0].result.append("x")
        run.partial_results[0].append("x")

    run = once(store, work)
    assert (run.tool_calls[0].result, run.partial_results) == (["a"], [["b"]])
    assert store.runs.load("s").partial_results == (["b"],)


def test_runs_without_checkpoints_are_counted(store):
    once(store, lambda _: None, strategy=Never())
    assert store.stats().runs == 1


def test_calls_alike_are_replayed_in_order():
    found = Journal([[INTENT, f"1.{n}", "tool", "t", "k", {}, "ask", False, True] for n in range(3)])
    asked = [found.ask("k").call.id for _ in range(3)]
    assert (asked, found.ask("k"), found.expected(), found.forgotten()) == (["1.0", "1.1", "1.2"], None, None, None)


WHAT_IS_KNOWN = ("status", "iteration", "messages", "tool_calls", "partial_results", "repaired", "state", "in_doubt")


@pytest.mark.parametrize("name", WHAT_IS_KNOWN)
def test_a_run_that_was_not_entered_says_so(store, name):
    with pytest.raises(Invalid, match="enter it first") as caught:
        getattr(store.run("s"), name)
    assert caught.value.code == "invalid.run"


@pytest.mark.parametrize("name", WHAT_IS_KNOWN)
def test_refused_run_says_that_it_is_not_open(store, name):
    with store.run("s"):
        refused = store.run("s")
        with pytest.raises(Conflict):
            refused.__enter__()
        with pytest.raises(Invalid, match="enter it first"):
            getattr(refused, name)


@pytest.mark.parametrize("name", WHAT_IS_KNOWN)
def test_run_can_be_read_after_its_block(store, name):
    with store.run("s") as run:
        inside = getattr(run, name)
    assert name == "status" or getattr(run, name) == inside
