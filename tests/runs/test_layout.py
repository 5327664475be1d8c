"""What the two threads of a run hold: each result once, in the journal or in a checkpoint."""

import random
from contextlib import suppress

import pytest

import backtrail
from backtrail import AfterToolCall, EveryN, Message, Never
from backtrail.runs.recorder import JournalThread
from backtrail.transaction import acting
from tests.conformance.repair import payload


class Cut(Exception):  # noqa: N818
    pass


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def stored(store, space, session="s"):
    return backtrail.Thread(store._engine, space, session).load().state


def work(store, strategy, *, iterations=3, session="s", cut=None):
    with store.run(session, strategy=strategy) as run:
        run.tool("begin", lambda: "result 0")
        for number in run.iterations():
            run.message(Message.assistant(f"message {number}"))
            run.tool("look", lambda n: f"result {n}", number)
            run.partial(f"partial {number}")
            if number == cut:
                raise Cut
            if number == iterations:
                break
        run.tool("end", lambda: "result end")
    return run


def test_journal_without_checkpoints_holds_what_iterations_did_once(store):
    work(store, Never())
    text = repr(stored(store, "journal"))
    whats = [f"{what} {n}'" for what in ("result", "message", "partial") for n in (1, 2, 3)]
    assert [text.count(what) for what in whats] == [1] * 9


@pytest.mark.parametrize("strategy", [AfterToolCall(), EveryN(2)])
def test_journal_holds_nothing_that_its_checkpoint_has(store, strategy):
    with store.run("s", strategy=strategy) as run:
        for number in run.iterations():
            run.tool("look", lambda n: f"result {n}", number)
            if number == 4:
                run.checkpoint()
                run.tool("pay", abs, -1)
                point = stored(store, "journal")
                break
    assert point["entries"][0][0] == "c"
    assert "'result " not in repr(point)


@pytest.mark.parametrize("strategy", [AfterToolCall(), Never()])
def test_result_is_in_one_row(strategy):
    def rows(backend):
        for no in backend.thread_numbers(0, 10):
            yield from backend.rows(no, [(1, 1000)], payload=True)

    with (
        backtrail.open("memory://", compression=False) as store,
        suppress(Cut),
        store.run("s", strategy=strategy) as run,
    ):
        for _ in run.iterations():
            for _ in range(5):
                result = run.tool("noise", random.randbytes, 100)
                assert sum(result in row.payload for row in rows(store._backend)) == 1
            raise Cut


def test_run_without_a_worker_needs_no_checkpoint(store):
    with suppress(Cut):
        work(store, AfterToolCall(), cut=2)
    before = store.runs.load("s")
    backtrail.Thread(store._engine, "run", "s").delete()
    assert store.runs.load("s") == before
    assert work(store, AfterToolCall()).status.name == "completed"


@pytest.mark.parametrize("intent", [False, True])
def test_run_without_newest_checkpoint_continues_after_rewind(store, intent):
    """A worker that died, and damage: nothing is taken for not done, until a user says where to go on."""
    run = store.run("s", lease=0.05).__enter__()
    for number in run.iterations():
        run.tool("pay", abs, -number)
        if number == 3:
            break
    if intent:
        with suppress(KeyboardInterrupt):
            run.tool("die", interrupt)
    payload("run", "s", 3)(store)
    store.verify(repair=True)
    if intent:
        with pytest.raises(backtrail.Corrupt, match="rewind"):
            store.runs.load("s")
    store.runs.thread("s").rewind(2)
    assert store.runs.load("s").iteration == 2
    with store.run("s", takeover=True) as run:
        for number in run.iterations():
            assert run.tool("pay", (lambda n: -1) if number == 2 else abs, -number) == number
            if number == 3:
                break
    assert [call.result for call in run.tool_calls] == [1, 2, 3]


def interrupt():
    raise KeyboardInterrupt


def test_pure_call_writes_one_row_and_others_two(store):
    with store.run("s") as run:
        run.tool("first", abs, -1)  # the first checkpoint also writes to the journal
        for number in run.iterations():
            for policy, rows in (("ask", 2), ("pure", 1)):
                before = store._backend.usage().rows
                run.tool(policy, abs, -number, policy=policy)
                assert store._backend.usage().rows - before == rows
            if number == 2:
                break


def test_checkpoint_holds_each_result_once(store):
    work(store, AfterToolCall())
    for number, checkpoint in enumerate(store.runs.steps("s")[1:4], 1):
        text = repr(checkpoint.state)
        assert [text.count(f"result {n}'") for n in range(1, number + 1)] == [1] * number


@pytest.mark.parametrize("strategy", [AfterToolCall(), Never()])
@pytest.mark.parametrize("cut", [None, 1, 2])
def test_versions_that_do_not_know_this_layout_refuse_it(store, cut, strategy):
    with suppress(Cut):
        work(store, strategy, cut=cut)
    assert "calls" not in stored(store, "journal")  # those versions require it
    assert store.runs.load("s").iteration == (cut or 3)


def test_completed_run_replays_calls_behind_its_loop(store):
    before = work(store, Never())
    again = work(store, Never())
    assert [call.result for call in again.tool_calls] == [f"result {n}" for n in (0, 1, 2, 3, "end")]
    assert again.tool_calls == before.tool_calls
    with pytest.raises(backtrail.Invalid), store.run("s") as run:
        assert [*run.iterations()] == []
        run.tool("new", abs, -1)


def test_replay_in_another_order_is_what_counts(store):
    def iteration(names, *, cut=False):
        with store.run("s", strategy=Never()) as run:
            for _ in run.iterations():
                for name in names:
                    run.tool(name, name.upper)
                    run.message(Message.assistant(name))
                if cut:
                    raise Cut
                if run.iteration == 2:
                    break

    with pytest.raises(Cut):
        iteration("abc", cut=True)
    iteration("cab")
    record = store.runs.load("s")
    assert "".join(call.tool_name for call in record.tool_calls) == "cabcab"
    assert "".join(message.content for message in record.messages) == "cabcab"


@pytest.mark.parametrize("strategy", [AfterToolCall(), Never()])
def test_rewound_run_gets_the_results_of_its_checkpoint(store, strategy):
    def fail():
        raise KeyError("lost")

    def iteration(run):
        values = [run.tool("list", lambda: [1, (2, 3)]), run.llm("model", lambda: {"text": "yes"})]
        with pytest.raises(KeyError):
            run.tool("fail", fail)
        run.checkpoint("all")
        return values

    with store.run("s", strategy=strategy) as run:
        for _ in run.iterations():
            first = iteration(run)
            run.halt("here")
    before = store.runs.thread("s").load("all")
    store.runs.thread("s").rewind(before)
    store.runs.thread("s").fork("t", at=before)
    for session in ("s", "t"):
        with store.run(session, strategy=strategy) as run:
            for _ in run.iterations():
                assert iteration(run) == first
                break
        calls = store.runs.load(session).tool_calls
        assert [call.id for call in calls] == ["1.1", "1.3"]
        assert [call.ended_at for call in calls] == [call["ended_at"] for call in before.state["tool_calls"]]


@pytest.mark.parametrize("seed", range(20))
def test_run_that_is_cut_often_equals_one_that_is_not(store, seed):
    chance = random.Random(seed)
    strategies = [AfterToolCall(), EveryN(2), Never()]
    for _ in range(chance.randint(1, 6)):
        cut = chance.randint(1, 5)
        if store.runs.get("s") is None or store.runs.load("s").iteration <= cut:
            with pytest.raises(Cut):
                work(store, chance.choice(strategies), iterations=5, cut=cut)
        if chance.random() < 0.3 and store.runs.steps("s"):
            store.runs.thread("s").rewind(chance.choice(store.runs.steps("s")))
    work(store, chance.choice(strategies), iterations=5)
    work(store, Never(), iterations=5, session="t")
    one, other = store.runs.load("s"), store.runs.load("t")
    assert [m.content for m in one.messages] == [m.content for m in other.messages]
    assert [(c.id, c.result) for c in one.tool_calls] == [(c.id, c.result) for c in other.tool_calls]
    assert one.partial_results == other.partial_results
    assert work(store, Never(), iterations=5).tool_calls == [*one.tool_calls]


@pytest.mark.parametrize("joined", [False, True])
def test_stale_worker_cannot_write_a_checkpoint(store, joined):
    """A pure call writes nothing before its checkpoint: that must require the lease, too."""
    store.agents.save(backtrail.AgentState("a", "Ann", "model"))
    options = {"agent": "a", "conversation": "c"} if joined else {}
    with pytest.raises(backtrail.Conflict) as caught, store.run("s", **options) as old:
        for _ in old.iterations():
            old.tool("first", abs, -1)
            with store.run("s", takeover=True) as new:
                new.halt("mine")
            steps = len(store.runs.steps("s"))
            old.message(Message.user("late"))
            old.tool("second", abs, -2, policy="pure")
    assert caught.value.code == "conflict.lease"
    assert len(store.runs.steps("s")) == steps
    assert "second" not in repr(stored(store, "run"))
    assert store.conversations.get("c") is None


def test_deleting_a_dead_workers_checkpoint_loses_no_result(store):
    run = store.run("s", lease=0.05).__enter__()
    for number in run.iterations():
        run.tool("pay", abs, -number)
        if number == 2:
            break
    store.runs.thread("s").delete_checkpoint("@")
    assert store.runs.thread("s").delete()
    with store.run("s", takeover=True) as run:
        for number in run.iterations():
            assert run.tool("pay", lambda n: 0, -number) == number
            break
    assert [call.result for call in run.tool_calls] == [1, 2]


def test_worker_continues_after_its_newest_checkpoint_is_deleted(store):
    with store.run("s") as run:
        for number in run.iterations():
            run.tool("pay", abs, -number)
            if number == 2:
                store.runs.thread("s").delete_checkpoint("@")
            if number == 4:
                break
    assert run.status.name == "completed"
    assert [call.result for call in store.runs.load("s").tool_calls] == [1, 2, 3, 4]


@pytest.mark.parametrize("strategy", [AfterToolCall(), Never()])
def test_leaving_worker_hides_old_journal_rows(store, strategy):
    for cut in (1, 2, None):
        with suppress(Cut):
            work(store, strategy, cut=cut)
        assert len(list(backtrail.Thread(store._engine, "journal", "s").history(everything=True))) == 1


@pytest.mark.parametrize("earlier", [0, 1])
def test_takeover_sees_checkpoints_made_while_it_reads(store, monkeypatch, earlier):
    """The former worker writes a checkpoint after the new one has read the checkpoints, and before it has the lease."""
    old = store.run("s").__enter__()
    steps = old.iterations()
    next(steps)
    for number in range(earlier):
        old.tool("before", abs, -number, policy="pure")
    read = JournalThread.point

    def point(self, session, **options):
        found = read(self, session, **options)
        monkeypatch.setattr(JournalThread, "point", read)
        before, acting.caller = acting.caller, None
        old.tool("late", abs, -7, policy="pure")
        acting.caller = before
        return found

    monkeypatch.setattr(JournalThread, "point", point)
    with store.run("s", takeover=True) as new:
        for _ in new.iterations():
            for number in range(earlier):
                assert new.tool("before", abs, -number, policy="pure") == number
            assert new.tool("late", lambda n: pytest.fail("the call is repeated"), -7, policy="pure") == 7
            break
    assert new.status.name == "completed"


def test_checkpoint_tells_types_apart_that_marshal_does_not(store):
    with store.run("s") as run:
        for _ in run.iterations():
            for value in (b"ab", bytearray(b"ab"), b"ab", True, 1, 1.0):
                run.state["x"] = value
                run.tool("look", abs, -1, policy="pure")
                kept = stored(store, "run")["state"]["x"]
                assert (kept, type(kept)) == (value, type(value))
            run.state["x"] = b"ab"
            run.tool("look", abs, -1, policy="pure")
            run.state["x"] = memoryview(b"ab")
            with pytest.raises(backtrail.Invalid, match="memoryview"):
                run.tool("look", abs, -1, policy="pure")
            run.state["x"] = b"ab"
            break


@pytest.mark.parametrize("looping", [False, True])
def test_exported_run_with_settled_call_can_be_imported(store, tmp_path, looping):
    def begin(run, fn):
        if looping:
            next(run.iterations())
        return run.tool("pay", fn)

    with suppress(KeyboardInterrupt), store.run("s") as run:
        begin(run, interrupt)
    store.runs.settle("s", store.runs.load("s").in_doubt[0].id, result="paid")
    store.export(tmp_path / "runs.export")
    with backtrail.open("memory://") as other:
        other.import_(tmp_path / "runs.export")
        with other.run("s") as run:
            assert begin(run, lambda: pytest.fail("the call is repeated")) == "paid"


@pytest.mark.filterwarnings("ignore::backtrail.Irreversible")
@pytest.mark.parametrize("prune", [False, True])
def test_deleting_checkpoints_behind_a_rewind_keeps_the_irreversible_calls(store, prune):
    run = store.run("s", lease=0.05).__enter__()  # a worker that died
    for number in run.iterations():
        run.tool("pay", abs, -number, irreversible=True)
        if number == 4:
            break
    thread = store.runs.thread("s")
    thread.rewind(1)
    for checkpoint in [] if prune else [*thread.history(everything=True)][1:]:
        assert thread.delete_checkpoint(checkpoint)
    if prune:
        thread.prune(older_than=1e-6)
    store.gc(erase=True)
    assert len([*thread.history(everything=True)]) == 1
    assert {call.id for call in store.runs.irreversible("s")} == {"1.1", "2.1", "3.1", "4.1"}
