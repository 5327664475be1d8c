"""A fork of a run's checkpoints is a run, too; the run continues after any change of its checkpoints."""

import threading

import pytest

import backtrail
from backtrail import Done, Message, NotDone
from backtrail.runs.lease import renewals_of


def work(store, session, *, stop, done, city="Lisbon"):
    with store.run(session, agent="a", messages=[Message.user("Go")], state={"seen": []}) as run:
        run.tool("hello", lambda: done.append("hello"))
        for number in run.iterations():
            if number > stop:
                break
            run.message(Message.assistant(f"{city} {number}"))
            run.tool("book", done.append, city)
            run.state["seen"].append(f"{city} {number}")
        return run


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def in_iteration(store, session, number):
    return next(c for c in store.runs.steps(session) if c.state["iteration"] == number)


def test_fork_of_finished_run_repeats_nothing(store):
    done = []
    work(store, "s", stop=3, done=done)
    store.runs.thread("s").fork("t", at=in_iteration(store, "s", 2))
    assert ("t" in store.runs, str(store.runs.load("t").status)) == (True, "halted(forked)")
    run = work(store, "t", stop=4, done=done)
    assert done == ["hello", "Lisbon", "Lisbon", "Lisbon", "Lisbon", "Lisbon"]  # of the fork's own, those of 3 and 4
    assert [call.iteration for call in run.tool_calls] == [0, 1, 2, 3, 4]
    assert [message.content for message in run.messages] == ["Go", *(f"Lisbon {n}" for n in (1, 2, 3, 4))]
    assert run.state == {"seen": [f"Lisbon {n}" for n in (1, 2, 3, 4)]}  # the second half of iteration 2, too
    assert (run.agent, run.resumed, run.iteration) == ("a", True, 5)


def test_fork_may_try_another_way_in_its_iteration(store):
    done = []
    work(store, "s", stop=3, done=done)
    store.runs.thread("s").fork("t", at=in_iteration(store, "s", 2))
    run = work(store, "t", stop=3, done=done, city="Porto")
    assert done == ["hello", "Lisbon", "Lisbon", "Lisbon", "Porto", "Porto"]
    assert [message.content for message in run.messages] == ["Go", "Lisbon 1", "Porto 2", "Porto 3"]
    assert run.state == {"seen": ["Lisbon 1", "Porto 2", "Porto 3"]}


def test_what_a_fork_did_itself_must_be_asked_for_again(store):
    work(store, "s", stop=3, done=[])
    store.runs.thread("s").fork("t", at=in_iteration(store, "s", 2))
    with pytest.raises(ZeroDivisionError), store.run("t") as run:
        run.tool("hello", lambda: None)
        for _ in run.iterations():
            run.tool("walk", abs, -3)
            raise ZeroDivisionError
    with pytest.raises(backtrail.Invalid, match="walk"):
        work(store, "t", stop=3, done=[])


def test_fork_of_a_run_end_begins_next_iteration(store):
    done = []
    work(store, "s", stop=2, done=done)
    store.runs.thread("s").fork("t")
    run = work(store, "t", stop=5, done=done)
    assert [call.iteration for call in run.tool_calls] == [0, 1, 2, 4, 5]  # the end was in iteration 3


def test_fork_needs_nothing_of_its_source(store):
    done = []
    work(store, "s", stop=2, done=done)
    store.runs.thread("s").fork("t", at=in_iteration(store, "s", 1))
    store.runs.cleanup("s")
    store.gc()
    work(store, "t", stop=2, done=done)
    assert done == ["hello", "Lisbon", "Lisbon", "Lisbon"]
    assert store.verify().ok


def test_a_fork_from_before_the_first_iteration(store):
    done = []
    work(store, "s", stop=1, done=done)
    store.runs.thread("s").fork("t", at=1)
    run = work(store, "t", stop=1, done=done, city="Porto")
    assert done == ["hello", "Lisbon", "Porto"]
    assert [message.content for message in run.messages] == ["Go", "Porto 1"]


def test_rewind_keeps_later_results_and_fork_calls_again(store):
    """Two calls side by side; the one that is slow is cut short, after the checkpoint of the other."""

    hold = threading.Event()
    with store.run("s") as run:
        iterations = run.iterations()
        next(iterations)
        slow = threading.Thread(target=lambda: run.tool("slow", lambda: hold.wait(5) and None))
        slow.start()
        while not store.runs.load("s").in_doubt:
            pass
        run.tool("quick", abs, -1)
        hold.set()
        slow.join()
    at = next(c for c in store.runs.steps("s") if [call["tool_name"] for call in c.state["tool_calls"]] == ["quick"])
    store.runs.thread("s").fork("t", at=at)
    with store.run("t") as fork:
        assert fork.in_doubt == []
        fork.halt("seen")
    store.runs.thread("s").rewind(at)
    assert store.runs.load("s").in_doubt == ()
    with store.run("s") as run:
        for _ in run.iterations():
            assert run.tool("slow", lambda: 1 / 0) is None
            run.halt("seen")
    with store.run("t") as fork:
        for _ in fork.iterations():
            fork.tool("quick", abs, -1)
            assert fork.tool("new", lambda: "new") == "new"
            fork.halt("cut")
    with store.run("t") as fork:  # ids of calls that were not done are not given twice
        for _ in fork.iterations():
            assert (fork.tool("quick", lambda n: 1 / 0, -1), fork.tool("new", lambda: 1 / 0)) == (1, "new")
            break


def test_the_run_that_it_comes_from_stays_as_it_was(store):
    done = []
    work(store, "s", stop=2, done=done)
    before = store.runs.load("s")
    store.runs.thread("s").fork("t", at=2)
    work(store, "t", stop=3, done=done)
    assert store.runs.load("s") == before
    assert store.runs.load("t").status.name == "completed"
    assert [c.state["session_id"] for c in store.runs.steps("t")][:2] == ["s", "t"]


def test_a_fork_is_cut_short_and_resumed_as_any_run(store):
    done = []
    work(store, "s", stop=1, done=done)
    store.runs.thread("s").fork("t", at=2)
    with pytest.raises(ZeroDivisionError), store.run("t") as run:
        run.tool("hello", lambda: done.append("hello"))
        for _ in run.iterations():
            run.tool("pay", lambda: done.append("pay"))
            raise ZeroDivisionError
    with store.run("t") as run:
        run.tool("hello", lambda: done.append("hello"))
        for _ in run.iterations():
            run.tool("pay", lambda: done.append("pay"))
            break
    assert done == ["hello", "Lisbon", "pay"]


def deleted(thread):
    for checkpoint in [*thread.history()]:
        thread.delete_checkpoint(checkpoint)


@pytest.mark.parametrize("move", [lambda thread: thread.rewind(1), lambda thread: thread.undo(), deleted])
def test_checkpoint_is_whole_after_others_moved_the_head(store, move):
    with store.run("s") as run:
        for number in run.iterations():
            run.tool("count", abs, number)
            if number == 2:
                move(run.thread)
            if number == 4:
                break
    seen = {c.state["iteration"]: [call["iteration"] for call in c.state["tool_calls"]] for c in run.thread.history()}
    assert (seen[3], seen[4]) == ([1, 2, 3], [1, 2, 3, 4])


def test_what_is_no_checkpoint_of_a_run_is_refused(store):
    backtrail.Thread(store._engine, "run", "s").save({"x": 1})  # as older versions let one do
    with pytest.raises(backtrail.Invalid, match="no checkpoint of a run"), store.run("s"):
        pass


def test_runs_go_on_after_prune_by_agent(store):
    done = []
    for session in ("s", "t"):
        with pytest.raises(ZeroDivisionError), store.run(session, agent="a") as run:
            for _ in run.iterations():
                run.tool("first", done.append, session)
                run.tool("second", done.append, session)
                raise ZeroDivisionError
    newest = store.runs.checkpoints("a")[:2]
    assert store.runs.prune("a", 2) == 4
    assert store.runs.checkpoints("a") == newest
    assert store.runs.steps("s") == []
    with store.run("s") as run:
        for _ in run.iterations():
            run.tool("first", done.append, "s")
            run.tool("second", done.append, "s")
            break
    assert done == ["s", "s", "t", "t"]
    assert len(store.runs.steps("s")[-1].state["tool_calls"]) == 2


def test_closing_the_store_ends_renewal_quietly(tmp_path):
    store = backtrail.open(tmp_path / "s.db")
    run = store.run("s", lease=0.03)
    run.__enter__()
    thread = renewals_of(store._engine).thread
    assert thread.is_alive()
    store.close()
    thread.join(5)
    assert not thread.is_alive()


def test_conflict_on_checkpoints_is_no_takeover(store, monkeypatch):
    """A conflict on the checkpoints is none of the lease: the write is done once more."""
    others = iter([lambda: backtrail.Thread(store._engine, "run", "s").save({"by": "hand"})])
    at_once = type(store._engine).at_once

    def overtaken(engine, work):
        def first(session):
            done = work(session)
            for other in others:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
            return done

        return at_once(engine, first)

    with store.run("s", state={"n": 0}) as run:
        for number in run.iterations():
            run.tool("t", lambda n: n, number)
            monkeypatch.setattr(type(store._engine), "at_once", overtaken)
            if number == 3:
                break
    assert [call.result for call in store.runs.load("s").tool_calls] == [1, 2, 3]
    assert store.runs.load("s").status.name == "completed"
    assert store.runs.steps("s")[-1].state["status"] == "completed"


@pytest.mark.parametrize(
    ("lost_at", "pure"), [*((each, False) for each in range(1, 7)), *((each, True) for each in range(1, 5))]
)
def test_run_continues_after_an_unknown_commit(store, monkeypatch, lost_at, pure):
    """Intents, results with a checkpoint, the end of an iteration and the end of the run: each was written, unseen."""
    commit, done = store._backend.commit, []

    def look(call):
        return Done() if call.arguments["args"][0] in done else NotDone

    options = {"policy": "pure"} if pure else {"verify": look}
    writes = iter(range(1, 100))

    def unsure(batch):
        made = commit(batch)
        if batch.rows and next(writes) == lost_at:
            raise backtrail.CommitUnknown("the reply was lost", code="commit_unknown.io")
        return made

    def work():
        with store.run("s", state={"n": 0}) as run:
            for number in run.iterations():
                monkeypatch.setattr(store._backend, "commit", unsure)
                run.message(Message.user(f"message {number}"))
                try:
                    run.tool("first", done.append, number, **options)
                except backtrail.CommitUnknown:
                    with pytest.raises(backtrail.CommitUnknown):  # asked for again, it is not guessed
                        run.tool("first", done.append, number, **options)
                    raise
                run.state["n"] += 1
                if number == 2:
                    break
            return run

    with pytest.raises(backtrail.CommitUnknown):
        work()
    assert store.runs.load("s").owner is None
    run = work()
    assert [message.content for message in run.messages] == ["message 1", "message 2"]
    assert len({message.id for message in run.messages}) == 2
    assert (run.state, store.runs.load("s").state) == ({"n": 2}, {"n": 2})
    assert done == [1, 2]
    assert len(store.runs.load("s").tool_calls) == 2


@pytest.mark.parametrize(
    ("fn", "args", "options", "says"),
    [
        (5, (), {}, "takes a function and its arguments"),
        (lambda: 1, (), {"policy": "idempotent"}, "does not take it"),
        (lambda x: x, (threading.Lock(),), {}, r"arguments.args\[0\]"),
    ],
)
def test_impossible_call_is_refused_before_any_write(store, fn, args, options, says):
    with store.run("s") as run:
        before = store._backend.usage().rows
        with pytest.raises(backtrail.Invalid, match=says):
            run.tool("t", fn, *args, **options)
        assert store._backend.usage().rows == before
        assert run.in_doubt == []


# ---- going back -----------------------------------------------------------------------------------------------------


def test_rewind_of_checkpoints_moves_the_run(store):
    done = []
    work(store, "s", stop=3, done=done)
    store.runs.thread("s").rewind(in_iteration(store, "s", 2))
    record = store.runs.load("s")
    assert (str(record.status), record.iteration) == ("halted(rewound)", 2)
    assert [message.content for message in record.messages] == ["Go", "Lisbon 1"]
    run = work(store, "s", stop=3, done=done, city="Porto")
    assert done == ["hello", "Lisbon", "Lisbon", "Lisbon", "Porto", "Porto"]
    assert run.state == {"seen": ["Lisbon 1", "Porto 2", "Porto 3"]}
    assert store.runs.load("s").status.name == "completed"


def test_a_rewind_that_is_undone_was_none(store):
    done = []

    def cut(session):
        with store.run(session, state={"n": 0}) as run:
            for _ in run.iterations():
                run.tool("first", done.append, 1)
                run.tool("second", done.append, 2, irreversible=False)
                if len(done) == 2:
                    raise ZeroDivisionError
                break

    with pytest.raises(ZeroDivisionError):
        cut("s")
    before = store.runs.load("s")
    store.runs.thread("s").rewind(1)
    assert store.runs.load("s") != before
    store.runs.thread("s").undo()
    assert store.runs.load("s") == before
    done.append("again")
    cut("s")
    assert done == [1, 2, "again"]


def test_rewound_run_continues_after_a_crash(store):
    done = []
    work(store, "s", stop=3, done=done)
    store.runs.thread("s").rewind(in_iteration(store, "s", 2))
    with pytest.raises(ZeroDivisionError), store.run("s", strategy=backtrail.Never()) as run:
        run.tool("hello", lambda: None)
        for number in run.iterations():
            run.tool("walk", done.append, f"walk {number}")
            if number == 3:
                raise ZeroDivisionError
    with store.run("s", strategy=backtrail.Never()) as run:
        run.tool("hello", lambda: None)
        assert run.iteration == 3
        for number in run.iterations():
            run.tool("walk", done.append, f"walk {number}")
            break
    assert done[4:] == ["walk 2", "walk 3"]


def test_the_undo_of_a_save_moves_the_run_before_it(store):
    done = []
    work(store, "s", stop=2, done=done)
    store.runs.thread("s").undo()  # the end
    assert (store.runs.load("s").status.reason, store.runs.load("s").iteration) == ("rewound", 2)
    work(store, "s", stop=2, done=done)
    assert done == ["hello", "Lisbon", "Lisbon"]


def test_a_deleted_head_moves_nothing(store):
    with pytest.raises(ZeroDivisionError), store.run("s") as run:
        for _ in run.iterations():
            run.tool("first", abs, -1)
            raise ZeroDivisionError
    before = store.runs.load("s")
    store.runs.thread("s").delete_checkpoint("@")
    assert store.runs.load("s") == before


def test_a_call_in_doubt_can_be_settled_after_a_rewind(store):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.run("s") as run:
        for _ in run.iterations():
            run.tool("first", abs, -1)
            run.checkpoint("here")
            run.tool("second", stop)
    store.runs.thread("s").rewind("@")  # the checkpoint of the interrupt, with the doubt in it
    store.runs.thread("s").rewind("here")
    assert store.runs.load("s").in_doubt == ()
    store.runs.thread("s").undo()
    assert [call.id for call in store.runs.load("s").in_doubt] == ["1.2"]
    store.runs.settle("s", "1.2", result="done")
    with store.run("s") as run:
        for _ in run.iterations():
            assert (run.tool("first", abs, -1), run.tool("second", abs)) == (1, "done")
            break
