"""What the two threads of a run hold: each result once, and lists that follow from the entries of the journal."""

import random
from contextlib import suppress

import pytest

import backtrail
from backtrail import AfterToolCall, EveryN, Message, Never


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


@pytest.mark.parametrize("strategy", [AfterToolCall(), EveryN(2), Never()])
def test_journal_holds_what_iterations_did_once(store, strategy):
    work(store, strategy)
    text = repr(stored(store, "journal"))
    whats = [f"{what} {n}'" for what in ("result", "message", "partial") for n in (1, 2, 3)]
    assert [text.count(what) for what in whats] == [1] * 9


def test_checkpoint_holds_each_result_once(store):
    work(store, AfterToolCall())
    for number, checkpoint in enumerate(store.runs.steps("s")[1:4], 1):
        text = repr(checkpoint.state)
        assert [text.count(f"result {n}'") for n in range(1, number + 1)] == [1] * number


@pytest.mark.parametrize("cut", [None, 1, 2])
def test_versions_that_do_not_know_ended_iterations_refuse_them(store, cut):
    with suppress(Cut):
        work(store, Never(), cut=cut)
    point = stored(store, "journal")
    counted = "ended" in point and point["ended"] != [0, 0]
    assert counted == (cut != 1)
    assert type(point["iteration"]) is (list if counted else int)  # those versions take a number only
    assert store.runs.load("s").iteration == (cut or 3)


def test_number_of_an_iteration_is_plain_after_a_replay(store):
    with suppress(Cut):
        work(store, Never(), cut=2)
    work(store, Never(), iterations=2)
    point = stored(store, "journal")
    assert (point["iteration"], point["ended"], len(point["tool_calls"])) == (2, [0, 0], 4)


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
