"""Several processes on the agents of one store: appends are exact, checkpoints are cuts, restores are whole."""

import os
import random
import signal
import time
from functools import partial

import pytest

import backtrail
from backtrail import AgentState, Conflict, Conversation, Message, NotFound
from tests.backends.postgres.test_processes import run, running
from tests.support.agent_script import AgentScript
from tests.support.lengths import lengths
from tests.support.processes import spawn
from tests.support.scene import view
from tests.support.servers import place

FIRST, SECOND = "A", "B"


@pytest.fixture(params=["sqlite", pytest.param("file", marks=pytest.mark.torture), "postgres"])
def opener(request, tmp_path):
    if request.param == "sqlite":
        yield partial(backtrail.open, tmp_path / "s.db", durability="relaxed")
        return
    if request.param == "file":
        yield partial(backtrail.open, (tmp_path / "s").as_uri(), durability="relaxed")
        return
    with place(durability="relaxed") as opened:
        yield opened


def begin(opener, conversations=(FIRST, SECOND)):
    """Make an agent with empty conversations, and a checkpoint of that; return its id."""
    with opener() as store:
        store.agents.save(AgentState("a", "Ada", "a-model"))
        for name in conversations:
            store.conversations.save(Conversation("a", id=name))
        return store.agents.checkpoint("a", "empty").id


def told(store, name):
    """The messages of a conversation, as (writer, number)."""
    return [tuple(map(int, message.content.split())) for message in store.conversations.load(name).messages]


def numbers(messages, writer):
    return [number for who, number in messages if who == writer]


# ---- appends --------------------------------------------------------------------------------------------------------


def _append(opener, writer, count):
    with opener() as store:
        for i in range(count):
            store.conversations.append(FIRST, Message.user(f"{writer} {i}"))


@pytest.mark.parametrize("count", lengths(150, 1000))
def test_appends_of_four_processes_keep_each_writers_order(opener, count):
    begin(opener)
    run(_append, *((opener, writer, count) for writer in range(4)))
    with opener() as store:
        messages = told(store, FIRST)
        assert len(messages) == 4 * count
        for writer in range(4):
            assert numbers(messages, writer) == list(range(count))
        assert store.conversations.tail(FIRST, 1)[0].content == "{} {}".format(*messages[-1])
        assert store.conversations.info(FIRST).message_count == 4 * count
        assert store.verify().ok


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def _append_to_both(opener, writer, count, points=1):
    """Say each number in the first conversation, then in the second; begin when there are so many checkpoints."""
    with opener() as store:
        while len(store.agents.checkpoints("a")) < points:
            time.sleep(0.002)
        for i in range(count):
            for name in (FIRST, SECOND):
                store.conversations.append(name, Message.user(f"{writer} {i}"))
            if i % 10 == 0:
                time.sleep(0.02)  # so that some are made meanwhile, however slow the machine is
            if i % 20 == 0:
                store.conversations.save(Conversation("a", id=f"{writer} {i}"))


def _checkpoint(opener, stop):
    with opener() as store:
        while not stop.is_set():
            store.agents.checkpoint("a", "meanwhile")
            time.sleep(0.002)


@pytest.mark.parametrize("count", lengths(25, 1000))
def test_checkpoint_beside_writers_is_a_consistent_cut(opener, count):
    begin(opener)
    stop = spawn.Event()
    with running(_checkpoint, *[(opener, stop)] * 2) as checkpoints:
        run(_append_to_both, *((opener, writer, count, 2) for writer in range(3)))
        stop.set()
        checkpoints()
    with opener() as store:
        points = store.agents.checkpoints("a")
        assert len(points) > 3
        seen = set()
        for point in random.Random(1).sample(points, min(len(points), 30)):
            store.agents.restore(point.id)
            first, second = told(store, FIRST), told(store, SECOND)
            for writer in range(3):
                ahead, behind = numbers(first, writer), numbers(second, writer)
                assert ahead == list(range(len(ahead)))
                assert behind == list(range(len(behind)))
                assert len(behind) <= len(ahead) <= len(behind) + 1
            assert point.conversations == len(store.conversations.list("a"))
            seen.add(len(first))
        assert len(seen) > 2  # they were made meanwhile
        store.agents.restore(points[-1].id)
        assert told(store, FIRST) == []
        assert store.verify().ok


# ---- restores beside writers ----------------------------------------------------------------------------------------


def _there_and_back(opener, point, stop, *, together):
    """Restore and undo, again and again, as one or one after the other; return how often, and the conflicts."""
    done, conflicts = 0, []
    with opener() as store:
        while not stop.is_set():
            try:
                if together:
                    with store.transaction():
                        store.agents.restore(point)
                        store.agents.undo("a")
                else:
                    store.agents.restore(point)
                    store.agents.undo("a")
                done += 1
            except Conflict as error:
                conflicts.append(error.code)
    return done, conflicts


def _and_back(opener, point, stop):
    return _there_and_back(opener, point, stop, together=True)


def _then_back(opener, point, stop):
    return _there_and_back(opener, point, stop, together=False)


@pytest.mark.parametrize("count", lengths(25, 1000))
def test_restore_and_undo_in_one_transaction_change_nothing(opener, count):
    point = begin(opener)
    stop = spawn.Event()
    with running(_and_back, (opener, point, stop)) as results:
        run(_append_to_both, *((opener, writer, count) for writer in range(3)))
        stop.set()
        ((done, conflicts),) = results()
        assert done or conflicts  # where others write all the time, each of them may be a conflict
    with opener() as store:
        for name in (FIRST, SECOND):
            for writer in range(3):
                assert numbers(told(store, name), writer) == list(range(count))
        assert len(store.conversations.list("a")) == 2 + 3 * ((count + 19) // 20)


@pytest.mark.parametrize("count", lengths(25, 1000))
def test_undo_refuses_to_lose_messages_written_beside_it(opener, count):
    point = begin(opener)
    stop = spawn.Event()
    with running(_then_back, (opener, point, stop)) as results:
        made = [each for writer in run(_append_telling, *((opener, w, count) for w in range(3))) for each in writer]
        stop.set()
        ((_, conflicts),) = results()
    with opener() as store:
        messages = told(store, FIRST)
        assert len(messages) == len(set(messages))
        for writer in range(3):
            assert numbers(messages, writer) == sorted(numbers(messages, writer))
        assert set(conflicts) <= {"conflict.moved"}
        if not conflicts:
            assert len(messages) == 3 * count
        for checkpoint_id, writer, number in made:  # in view or not, what was acknowledged is there
            checkpoint = store.checkpoint(checkpoint_id)
            assert checkpoint is not None
            assert [message["content"] for message in checkpoint.tail("messages", 1)] == [f"{writer} {number}"]
        assert store.verify().ok


def _append_telling(opener, writer, count):
    with opener() as store:
        return [(store.conversations.append(FIRST, Message.user(f"{writer} {i}")).id, writer, i) for i in range(count)]


# ---- upkeep beside all of it ----------------------------------------------------------------------------------------


def _live(opener, worker, steps):
    """Do whatever can be done with agents, to some of one's own, and compare with the model after every step."""
    script = AgentScript(opener, random.Random(worker), (f"{worker} a", f"{worker} b"))
    for _ in range(steps):
        script.step()
    script.store.close()


def _collect(opener, stop):
    done = 0
    with opener() as store:
        while not stop.is_set():
            store.gc()
            done += 1
    return done


@pytest.mark.parametrize("steps", lengths(30, 1500))
def test_agents_match_the_model_beside_others_and_gc(opener, steps):
    stop = spawn.Event()
    with opener() as store:
        store.thread("t").save({})
    with running(_collect, (opener, stop)) as collections:
        run(_live, *((opener, worker, steps) for worker in range(3)))
        stop.set()
        assert collections()[0] > 0
    with opener() as store:
        assert store.verify().ok


# ---- crashes --------------------------------------------------------------------------------------------------------


def _flutter(opener, points, pipe):
    """Restore the last checkpoint, say so, then restore one after the other until the process is killed."""
    with opener() as store:
        store.agents.restore(points[-1])
        os.write(pipe, b"x")
        while True:
            for point in points:
                store.agents.restore(point)


def settled(store):
    """Return the agent's content when it has stopped changing: a server may still run statements of a killed client."""
    seen = [None, None]
    while seen[-1] is None or seen[-1] != seen[-2]:
        time.sleep(0.01)
        try:
            seen.append(view(store, "a"))
        except NotFound:  # a conversation went away between the list and the load
            seen.append(None)
    return seen[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
@pytest.mark.parametrize("kills", lengths(12, 500))
def test_killed_restore_is_whole_or_absent(opener, kills):
    names = [f"c{n}" for n in range(20)]
    empty = begin(opener, names)
    with opener() as store:
        shown = {empty: view(store, "a")}
        store.agents.save(store.agents.load("a").set_state("n", 1))
        for name in names[:15]:
            store.conversations.append(name, Message.user("x" * 100))
        store.conversations.delete("c19")
        store.conversations.save(Conversation("a", id="new"))
        shown[store.agents.checkpoint("a", "full").id] = view(store, "a")
    rng = random.Random(7)
    met = set()
    for kill in range(kills):
        points = list(shown) if kill % 2 else list(reversed(shown))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)
                _flutter(opener, points, writer)
            finally:
                os._exit(1)
        os.close(writer)
        assert os.read(reader, 1) == b"x"
        os.close(reader)
        time.sleep(rng.uniform(0.001, 0.15))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with opener() as store:
            now = settled(store)
            (which,) = [at for at, point in enumerate(shown) if shown[point] == now]
            met.add(which)
    assert met == {0, 1}
    with opener() as store:
        assert store.verify().ok
        for point, wanted in shown.items():
            store.agents.restore(point)
            assert view(store, "a") == wanted
