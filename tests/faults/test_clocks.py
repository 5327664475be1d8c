"""Wrong clocks and clocks that jump: the log defines the order, and no clock changes it.

A wrong clock is one process's `time.time_ns`. That is what a machine in a cluster may have, and, for SQLite and files,
what becomes of the machine's own clock when somebody sets it.
"""

import contextlib
import itertools
import os
import signal
import time
from functools import partial
from unittest import mock

import pytest

import backtrail
from backtrail import AgentState, Conflict, Conversation, Message
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.sqlite.backend import SqliteBackend
from tests.runs.test_processes import Child
from tests.support.servers import place

HOUR = 3600
YEAR = 365 * 24 * HOUR
EACH = 6


@pytest.fixture(params=["sqlite", "file", "postgres"])
def opener(request, tmp_path):
    if request.param == "sqlite":
        yield partial(backtrail.open, tmp_path / "s.db", durability="relaxed")
    elif request.param == "file":
        yield partial(backtrail.open, (tmp_path / "s").as_uri(), durability="relaxed")
    else:
        with place(durability="relaxed") as opened:
            yield opened


@contextlib.contextmanager
def clock(*seconds):
    """A clock that is wrong by so many seconds: by the first of them, then by the next one whenever it is to jump."""
    real, wrong = time.time_ns, list(seconds)

    def told():
        return real() + int(wrong[0] * 1e9)

    with mock.patch.object(time, "time_ns", told):
        yield partial(wrong.pop, 0)


# ---- several processes ----------------------------------------------------------------------------------------------

CLOCKS = [(0, 0), (5, 5), (-5, -5), (HOUR, HOUR), (-HOUR, -HOUR), (100 * YEAR, 0), (0, -60 * YEAR), (HOUR, -HOUR)]


def test_order_follows_the_log_not_the_clocks(opener):
    with opener() as store:
        store.thread("t").save({"items": []})

    def write(wrong, number, tell):
        with clock(*wrong) as jump, opener() as other:
            for i in range(EACH):
                if i == EACH // 2:
                    jump()
                made = other.thread("t").append("items", [number, i], label="newest" if i % 3 == 0 else None)
                tell("made", id=made.id)

    with opener() as store, store.thread("t").watch(timeout=60) as watch:
        children = [Child(partial(write, wrong, number)) for number, wrong in enumerate(CLOCKS)]
        watched = list(itertools.islice(watch, EACH * len(CLOCKS)))
        said = [child.wait() for child in children]
        assert [lines[-1] for lines in said] == [{"what": "end"}] * len(CLOCKS)
        thread = store.thread("t")
        _, *history = thread.history()
        times = [checkpoint.created_at for checkpoint in history]
        assert times != sorted(times)
        assert times[0].year - min(times).year in (59, 60, 61)
        assert max(times).year - times[0].year in (99, 100, 101) or max(times) is times[0]
        assert [checkpoint.id for checkpoint in watched] == [checkpoint.id for checkpoint in history]
        assert [checkpoint.step for checkpoint in history] == list(range(2, EACH * len(CLOCKS) + 2))
        items = thread.load().state["items"]
        assert [checkpoint.tail("items", 1)[0] for checkpoint in history] == items
        for number, lines in enumerate(said):
            assert [i for writer, i in items if writer == number] == list(range(EACH))
            assert {line["id"] for line in lines[:-1]} <= {checkpoint.id for checkpoint in history}
        assert thread.latest() == history[-1]
        assert thread.load("newest") == [checkpoint for checkpoint in history if checkpoint.label][-1]
        assert thread.load("@-") == history[-2]
        assert store.verify().ok


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_worker_with_an_ended_lease_cannot_write(opener, wrong, request):
    """Where the clock is the server's, it is not ended; where it is the machine's, one of them works all the same."""
    shared = "postgres" in request.node.name

    def other(tell):
        with clock(wrong), opener() as store:
            try:
                with store.run("s", lease=60) as run:
                    tell("working")
                    run.tool("one", str, 1)
                    run.tool("two", str, 2)
            except Conflict as error:
                tell("refused", code=error.code)

    with opener() as store:
        refused = None
        try:
            with store.run("s", lease=60) as run:
                run.tool("one", str, 1)
                first, *_ = Child(other).wait()
                run.tool("three", str, 3)
        except Conflict as error:
            refused = error.code
        done = [call.tool_name for call in store.runs.load("s").tool_calls]
    if first["what"] == "refused":
        assert (first["code"], refused) == ("conflict.lease", None)
        assert done == ["one", "three"]
    else:
        assert refused == "conflict.lease"
        assert done == ["one", "two"]
    assert (first["what"] == "refused") == (shared or wrong < 0)


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_postgresql_leases_use_the_servers_clock(wrong):
    def owner(tell):
        with clock(wrong), opened() as store, store.run("s", lease=1) as run:
            run.tool("one", str, 1)
            tell("working")
            time.sleep(60)

    with place() as opened:
        opened().close()
        child = Child(owner)
        assert child.hear()["what"] == "working"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with opened() as store:
            until = time.monotonic() + 20
            while True:
                assert time.monotonic() < until
                with contextlib.suppress(Conflict), store.run("s") as run:
                    run.tool("one", str, 1)
                    break
                time.sleep(0.1)


# ---- a clock that is set back ---------------------------------------------------------------------------------------


def numbers(checkpoints):
    return [checkpoint.state["n"] for checkpoint in checkpoints]


def test_history_undo_and_refs_ignore_clock_jumps(opener):
    with clock(0, -HOUR, HOUR) as jump, opener() as store:
        thread = store.thread("t")
        for n in range(9):
            thread.save({"n": n}, label="same")
            if n in (2, 5):
                jump()
        assert numbers(thread.history()) == list(range(9))
        assert numbers(thread.history(newest_first=True)) == list(range(9))[::-1]
        assert thread.load("same").state == {"n": 8}
        assert numbers(thread.find(label="same")) == list(range(9))
        thread.rewind(2)
        assert thread.undo().state == {"n": 8}
        assert [thread.undo().state["n"] for _ in range(4)] == [7, 6, 5, 4]
        assert thread.redo().state == {"n": 5}
        assert numbers(thread.history(before=4)) == [0, 1, 2]
        thread.prune(keep_last=2, keep_tagged=False)
        assert numbers(thread.history()) == [4, 5]


def test_agent_restores_ignore_clock_jumps(opener):
    with clock(0, -HOUR, HOUR) as jump, opener() as store:
        store.agents.save(AgentState("a", "A", "planner"))
        store.conversations.save(Conversation("a", id="c"))
        made = []
        for n in range(3):
            store.conversations.append("c", Message.user(str(n)))
            made.append(store.agents.checkpoint("a", str(n), kind="automatic", keep=2))
            if n < 2:
                jump()
        assert [each.name for each in store.agents.checkpoints("a")] == ["2", "1"]
        store.agents.restore(made[1].id)
        assert [each.content for each in store.conversations.load("c").messages] == ["0", "1"]
        store.agents.undo("a")
        assert [each.content for each in store.conversations.load("c").messages] == ["0", "1", "2"]


@pytest.mark.parametrize("kind", [SqliteBackend, FileBackend])
@pytest.mark.parametrize("newest_first", [False, True])
def test_a_seeded_fault_is_found(kind, newest_first, tmp_path, monkeypatch):
    """Rows come in the order of their writers' clocks: when they are asked for from the first, or from the last one."""
    rows = kind.rows

    def by_the_clock(self, *args, **rest):
        found = rows(self, *args, **rest)
        if rest.get("newest_first", False) is newest_first:
            found = sorted(found, key=lambda row: row.created_at, reverse=newest_first)
        return found

    url = tmp_path / "s.db" if kind is SqliteBackend else (tmp_path / "s").as_uri()
    test_history_undo_and_refs_ignore_clock_jumps(partial(backtrail.open, url))
    monkeypatch.setattr(kind, "rows", by_the_clock)
    url = tmp_path / "t.db" if kind is SqliteBackend else (tmp_path / "t").as_uri()
    with pytest.raises(AssertionError):
        test_history_undo_and_refs_ignore_clock_jumps(partial(backtrail.open, url))


# ---- what goes by age -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-HOUR, 100 * YEAR])
def test_age_rules_use_created_at_and_keep_labels(opener, wrong):
    with clock(wrong, 0) as jump, opener(ttl=600) as store:
        thread = store.thread("t")
        for n in range(4):
            thread.save({"n": n}, label="kept" if n == 1 else None)
        jump()
        old = wrong < 0  # who was behind made what looks old; who was ahead made what does not get old for a while
        assert numbers(thread.history()) == ([1, 3] if old else [0, 1, 2, 3])
        thread.save({"n": 4})
        assert numbers(thread.history()) == ([1, 4] if old else [0, 1, 2, 3, 4])
        assert thread.prune(older_than=60) == 0
        assert thread.load().state == {"n": 4}


def test_fast_clock_may_hide_young_rows_but_never_heads(opener):
    with opener(ttl=600) as store:
        for n in range(3):
            store.thread("t").save({"n": n}, label="kept" if n == 0 else None)
        with clock(HOUR), opener(ttl=600) as ahead:
            assert numbers(ahead.thread("t").history()) == [0, 2]
            assert ahead.thread("t").prune(older_than=60) == 1
        assert numbers(store.thread("t").history()) == [0, 2]
        assert store.gc().rows == 1
        assert store.verify().ok


def test_clock_jump_keeps_more_automatic_checkpoints_not_fewer(opener):
    with clock(0, -24 * HOUR, 0) as jump, opener(auto_interval=12 * HOUR) as store:
        thread = store.thread("t")
        for n in range(6):
            thread.save({"n": n}, kind="automatic")
            if n in (1, 3):
                jump()
        assert numbers(thread.history()) == [1, 3, 5]


def test_pages_list_each_thread_once_despite_clock_jumps(opener):
    with clock(0, HOUR, -HOUR, 0, -5, 5, 0) as jump, opener() as store:
        for n in range(6):
            store.thread(f"t{n}").save({})
            jump()
        names = [info.id for info in store.threads()]
        assert sorted(names) == [f"t{n}" for n in range(6)]
        assert names[0] == "t1"  # by the clocks of the writers: it says that it was last
        pages, after = [], None
        while page := list(store.threads(limit=2, after=after)):
            pages += [info.id for info in page]
            after = page[-1]
        assert pages == names
