"""Ctrl-C or an unavailable store inside of a run's own code, if the caller catches it: no result is lost."""

import pytest

import backtrail
from backtrail import CommitUnknown, InDoubt, Message, Unavailable
from backtrail.runs.calls import Attempt
from backtrail.runs.journal import RunJournal


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def interrupt(monkeypatch, cls, name, *, at=1):
    """Have Ctrl-C come just before a call of a method, the first one or a later one."""
    method, calls = getattr(cls, name), []

    def interrupted(self, *args):
        calls.append(name)
        if len(calls) == at:
            raise KeyboardInterrupt
        return method(self, *args)

    monkeypatch.setattr(cls, name, interrupted)


@pytest.mark.parametrize("moment", ["__exit__", "record"])
def test_an_interrupted_call_without_a_result_is_in_doubt(store, monkeypatch, moment):
    made = []
    with pytest.raises(InDoubt), store.run("s") as run:
        for _ in run.iterations():
            interrupt(monkeypatch, Attempt, moment)
            with pytest.raises(KeyboardInterrupt):
                run.tool("pay", made.append, 1)
            monkeypatch.undo()
            assert [call.name for call in run.in_doubt] == ["pay"]
            assert run.tool("look", int, 2) == 2
            run.tool("pay", made.append, 1)
    assert made == [1]


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_behind_a_write_loses_no_result(store, monkeypatch, at):
    made = []

    def work(run):
        run.message(Message("user", "hello"))
        run.tool("pay", made.append, 1)

    with pytest.raises(CommitUnknown), store.run("s") as run:
        for _ in run.iterations():
            interrupt(monkeypatch, RunJournal, "wrote", at=at)  # the intent is written first, then the result
            with pytest.raises(KeyboardInterrupt):
                work(run)
            monkeypatch.undo()
            work(run)
            break
    if at == 1:
        store.runs.settle("s", "1.1", not_done=True)
    with store.run("s") as run:
        for _ in run.iterations():
            work(run)
            break
    stored = store.runs.load("s")
    assert made == [1]
    assert ([call.tool_name for call in stored.tool_calls], len(stored.messages)) == (["pay"], 1)


def test_an_interrupt_at_the_end_of_an_iteration_loses_nothing(store, monkeypatch):
    with pytest.raises(CommitUnknown), store.run("s") as run:
        interrupt(monkeypatch, RunJournal, "end_iteration", at=2)
        with pytest.raises(KeyboardInterrupt):
            for number in run.iterations():
                run.tool("look", int, number)
        monkeypatch.undo()
    assert [call.result for call in store.runs.load("s").tool_calls] == [1]


class Away:
    """Makes the store unavailable for one commit."""

    def __init__(self, store, monkeypatch):
        backend = type(store._engine.backend)
        commit = backend.commit
        self.next = False

        def refused(backend, batch):
            if self.next:
                self.next = False
                raise Unavailable("the store is away", code="unavailable.locked")
            return commit(backend, batch)

        monkeypatch.setattr(backend, "commit", refused)

    def look(self, value, *, away=True):
        self.next = away
        return value


def test_a_result_that_was_not_written_does_not_count(store, monkeypatch):
    away = Away(store, monkeypatch)
    results = iter([(1, True), (2, False)])

    def look():
        value, is_away = next(results)
        return away.look(value, away=is_away)

    with store.run("s") as run:
        for _ in run.iterations():
            with pytest.raises(Unavailable):
                run.tool("look", look, policy="pure")
            assert run.tool("look", look, policy="pure") == 2
            break
    assert [call.result for call in run.tool_calls] == [2]
    assert list(store.runs.load("s").tool_calls) == run.tool_calls
    assert [call["result"] for call in store.runs.steps("s")[-1].state["tool_calls"]] == [2]


def test_a_retry_that_was_not_written_is_made_later(store, monkeypatch):
    def fail():
        raise ValueError

    with pytest.raises(ValueError), store.run("s") as run:  # noqa: PT011
        for _ in run.iterations():
            run.tool("look", fail)
    away = Away(store, monkeypatch)
    with store.run("s") as run:
        for _ in run.iterations():
            away.next = True
            with pytest.raises(Unavailable):
                run.tool("look", lambda: 1, retry=True)
            assert run.tool("look", lambda: 1, retry=True) == 1
            break
    assert [(call.id, call.result) for call in store.runs.load("s").tool_calls] == [("1.1", 1)]


def test_an_iteration_ends_after_its_end_was_not_written(store, monkeypatch):
    def work(run):
        run.message(Message.user("hello"))
        run.tool("look", int, 1)

    with pytest.raises(ValueError), store.run("s") as run:  # noqa: PT011
        for _ in run.iterations():
            work(run)
            raise ValueError
    away = Away(store, monkeypatch)
    with store.run("s") as run, pytest.raises(Unavailable):
        for _ in run.iterations():
            work(run)
            away.next = True
    stored = store.runs.load("s")
    assert (stored.status.name, len(stored.messages), len(stored.tool_calls)) == ("completed", 1, 1)
