"""The state of a run, changed from outside: the run continues with it, or the change is refused."""

import asyncio
import time
from contextlib import suppress

import pytest

import backtrail
from backtrail import Conflict, EveryN, InDoubt, Invalid, Never, NotFound, aio


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def trip(store, session="s", *, end=None, at=2, **options):
    """Work on a run whose calls go by its state; `end` in iteration `at`, after its call."""
    with store.run(session, state={"city": "Lisbon", "seen": []}, **options) as run:
        for i in run.iterations():
            city = run.state["city"]
            run.state["seen"].append(run.tool("look", str.upper, city))
            if i == at and end == "halted":
                run.halt("look at it")
            if i == at and end == "failed":
                raise KeyError("a bug")
            if i == 3:
                break
    return run


@pytest.mark.parametrize("end", ["halted", "failed"])
def test_run_continues_with_a_changed_state(store, end):
    with suppress(KeyError):
        trip(store, end=end)
    status = store.runs.load("s").status
    store.runs.thread("s").set("state.city", "Porto")
    assert store.runs.load("s").state == {"city": "Porto", "seen": ["LISBON"]}
    assert store.runs.load("s").status == status
    assert trip(store).state == {"city": "Porto", "seen": ["LISBON", "PORTO", "PORTO"]}


def test_calls_that_the_changed_state_asks_for_again_are_replayed(store):
    trip(store, end="halted")
    store.runs.thread("s").append("state.seen", "by hand")
    run = trip(store)
    assert run.state["seen"] == ["LISBON", "by hand", "LISBON", "LISBON"]
    assert [call.id for call in run.tool_calls] == ["1.1", "2.1", "3.1"]


def test_key_can_be_deleted_and_the_state_replaced(store):
    trip(store, end="halted")
    thread = store.runs.thread("s")
    thread.set("state.extra", 1)
    thread.delete_at("state.extra")
    assert store.runs.load("s").state == {"city": "Lisbon", "seen": ["LISBON"]}
    thread.set("state", {"city": "Faro", "seen": []})
    assert trip(store).state["seen"] == ["FARO", "FARO"]


def test_a_rewound_run_stays_rewound_when_its_state_is_changed(store):
    trip(store, strategy=EveryN(1))
    thread = store.runs.thread("s")
    thread.rewind(1)
    thread.set("state.city", "Porto")
    found = store.runs.load("s")
    assert (found.iteration, str(found.status)) == (2, "halted(rewound)")
    assert trip(store).state["seen"] == ["LISBON", "PORTO", "PORTO"]


def test_fork_continues_with_a_changed_state(store):
    trip(store)
    fork = store.runs.thread("s").fork("other", at=2)
    fork.set("state.city", "Porto")
    assert trip(store, "other").state["seen"] == ["LISBON", "PORTO", "PORTO"]
    assert store.runs.load("s").state["seen"] == ["LISBON"] * 3


def test_a_rewind_to_a_changed_checkpoint_brings_the_change_back(store):
    trip(store, end="halted")
    thread = store.runs.thread("s")
    thread.set("state.city", "Porto", label="fixed")
    trip(store)
    thread.rewind("fixed")
    assert store.runs.load("s").state["city"] == "Porto"
    assert trip(store).state["seen"] == ["LISBON", "PORTO", "PORTO"]


def test_a_change_can_be_undone(store):
    trip(store, end="halted")
    thread = store.runs.thread("s")
    thread.set("state.city", "Porto")
    thread.undo()
    assert trip(store).state["seen"] == ["LISBON"] * 3


def test_changed_run_of_dead_worker_repeats_no_call(store):
    calls = []

    def look(i):
        calls.append(i)
        if i == 5:
            raise KeyboardInterrupt
        return i

    run = store.run("s", strategy=EveryN(2), state={"n": 0}, lease=0.01)
    run.__enter__()  # and never left: the process is gone
    with suppress(KeyboardInterrupt):
        for i in run.iterations():
            run.tool("look", look, i)
    run._worker.lease.is_open = False
    time.sleep(0.05)
    store.runs.thread("s").set("state.n", 7)
    found = store.runs.load("s")
    assert (found.iteration, found.state, [call.id for call in found.in_doubt]) == (5, {"n": 7}, ["5.1"])
    with pytest.raises(InDoubt), store.run("s") as run:
        for i in run.iterations():
            run.tool("look", look, i)
    assert calls == [1, 2, 3, 4, 5]


def test_a_completed_run_stays_completed_with_its_changed_state(store):
    trip(store)
    thread = store.runs.thread("s")
    thread.set("state.city", "Porto")
    found = store.runs.load("s")
    assert (found.status.name, found.state["city"]) == ("completed", "Porto")
    thread.rewind("@")
    with store.run("s") as run:
        for i in run.iterations():
            assert (i, run.state["city"]) == (4, "Porto")
            break


def test_irreversible_call_stays_listed_if_not_repeated(store):
    with store.run("s", state={"pay": True}) as run:
        for _ in run.iterations():
            if run.state["pay"]:
                run.tool("pay", abs, -90, irreversible=True)
            run.halt("wait")
    store.runs.thread("s").set("state.pay", False)
    with store.run("s") as run:
        for _ in run.iterations():
            assert run.state == {"pay": False}
            break
    assert [call.tool_name for call in store.runs.irreversible("s")] == ["pay"]


def test_a_run_that_is_worked_on_is_not_changed(store):
    with store.run("s", state={"n": 0}) as run:
        next(run.iterations())
        run.checkpoint()
        with pytest.raises(Conflict) as error:
            run.thread.set("state.n", 1)
        assert error.value.code == "conflict.lease"
    assert store.runs.load("s").state == {"n": 0}
    assert [each.state["state"] for each in store.runs.steps("s")] == [{"n": 0}] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda thread: thread.set("iteration", 7),
        lambda thread: thread.append("messages", {"role": "user", "content": "x"}),
        lambda thread: thread.delete_at("journal"),
        lambda thread: thread.save({"state": {}}),
        lambda thread: thread.update(lambda seen: seen["state"].clear()),
        lambda thread: thread.edit(lambda editor: editor.set("state.city", "Porto")),
        lambda thread: _step(thread),  # noqa: PLW0108 - it is defined below
    ],
    ids=["set", "append", "delete_at", "save", "update", "edit", "step"],
)
def test_other_changes_of_a_checkpoint_are_refused(store, change):
    trip(store, end="halted")
    before, steps = store.runs.load("s"), len(store.runs.steps("s"))
    with pytest.raises(Invalid, match=r'set\("state\.key", value\)') as error:
        change(store.runs.thread("s"))
    assert error.value.code == "invalid.run"
    assert (store.runs.load("s"), len(store.runs.steps("s"))) == (before, steps)


def _step(thread):
    with thread.step() as seen:
        seen["state"]["city"] = "Porto"


def test_what_was_not_there_when_the_iteration_began_is_refused(store):
    with store.run("s", state={"n": 0}) as run:
        for _ in run.iterations():
            run.state["made"] = {"n": 1}
            run.halt("wait")
    steps = len(store.runs.steps("s"))
    with pytest.raises(Invalid, match="begins iteration 1 again"):
        store.runs.thread("s").set("state.made.n", 2)
    assert len(store.runs.steps("s")) == steps
    assert store.runs.load("s").state == {"n": 0}


def test_a_run_without_checkpoints_or_no_run_is_refused(store):
    trip(store, strategy=Never())
    for name in ("s", "unknown"):
        with pytest.raises(NotFound):
            store.runs.thread(name).set("state.city", "Porto")
    assert "unknown" not in store.runs


def test_a_transaction_that_is_dropped_changes_nothing(store):
    trip(store, end="halted")
    with suppress(ZeroDivisionError), store.transaction():
        store.runs.thread("s").set("state.city", "Porto")
        raise ZeroDivisionError
    assert store.runs.load("s").state["city"] == "Lisbon"


def test_states_are_changed_from_asyncio_too(tmp_path):
    async def main():
        async with aio.open(f"sqlite:///{tmp_path}/s.db") as store:
            async with store.run("s", state={"n": 0}) as run:
                async for _ in run.iterations():
                    run.halt("wait")
            await store.runs.thread("s").set("state.n", 1)
            assert (await store.runs.load("s")).state == {"n": 1}

    asyncio.run(main())
