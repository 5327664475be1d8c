"""Runs whose processes are killed, stopped and raced: no effect is lost or repeated, and each doubt is reported.

The script of a run has effects outside of the store: lines of a file. Its process kills itself at the k-th of all
points that it comes to, which are before and after each commit and each effect, and inside of transactions. It keeps
account of the call whose intent is committed and whose result is not, and says it with its last words. The next process
must find that call in doubt, and no other; it looks into the file, and settles it.
"""

import contextlib
import json
import os
import random
import signal
import time
import traceback
from functools import partial
from unittest import mock

import pytest

import backtrail
from backtrail import Conflict, InDoubt, Message
from backtrail.engine.writer import LogWriter
from backtrail.runs.strategies import AfterLlmResponse, AfterToolCall, EveryN, Never
from backtrail.transaction import Engine
from tests.support.lengths import lengths
from tests.support.servers import place

EFFECTS = ["begin", "book 1", "plan", "book 2", "goodbye"]
STRATEGIES = [AfterToolCall(), EveryN(1), AfterLlmResponse(), Never()]


@pytest.fixture(params=["sqlite", "file", "postgres"])
def opener(request, tmp_path):
    if request.param == "sqlite":
        yield partial(backtrail.open, tmp_path / "s.db", durability="relaxed")  # a kill is no power cut
        return
    if request.param == "file":
        yield partial(backtrail.open, (tmp_path / "s").as_uri(), durability="relaxed")
        return
    with place(durability="relaxed") as opened:
        yield opened


# ---- the script -----------------------------------------------------------------------------------------------------


class World:
    """What is outside of the store, the points at which the process may end, and the call that is in doubt."""

    def __init__(self, path, *, kill_at=0, doubt=None, tell=None):
        self.path = path
        self.points = 0
        self.doubt = doubt
        self.calling = None
        self.settling = False
        self._kill_at = kill_at
        self._tell = tell
        self._depth = 0

    def done(self):
        return self.path.read_text().splitlines() if self.path.exists() else []

    def effect(self, name):
        self.point(f"before {name}")
        with self.path.open("a") as file:
            file.write(f"{name}\n")  # no fsync: what a process has written stays when it is killed
        self.point(f"after {name}")
        return result(name)

    def call(self, how, kind, name):
        self.calling = name
        try:
            return how(kind, self.effect, name)
        finally:
            self.calling = None

    def point(self, name):
        self.points += 1
        if self.points == self._kill_at:
            self._tell("killed", point=name, doubt=self.doubt)
            os.kill(os.getpid(), signal.SIGKILL)

    def committed(self):
        """Take note of what a commit means for the call that is being made, or settled."""
        if self.settling:
            self.doubt = None
        elif self.calling is not None:
            self.doubt = None if self.doubt == self.calling else self.calling

    def around(self, write):
        """The same write, with points around it; one inside of a transaction is no commit."""

        def pointed(*args, **options):
            self.point(f"before {write.__qualname__}")
            self._depth += 1
            try:
                given = write(*args, **options)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self.committed()
            self.point(f"after {write.__qualname__}")
            return given

        return pointed

    @contextlib.contextmanager
    def watched(self):
        with (
            mock.patch.object(Engine, "at_once", self.around(Engine.at_once)),
            mock.patch.object(LogWriter, "save", self.around(LogWriter.save)),
        ):
            yield


def result(name):
    return {"of": name, "length": len(name)}


def script(run, world):
    """A short run: work before the loop, two iterations, and work after it."""
    tool, llm = partial(world.call, run.tool), partial(world.call, run.llm)
    run.message(Message.user(tool("begin", "begin")["of"]))
    for i in run.iterations():
        if i == 2:
            run.message(Message.assistant(llm("plan", "plan")["of"]))
        run.state["length"] += tool("book", f"book {i}")["length"]
        run.partial(i)
        if i == 2:
            break
    tool("say", "goodbye")


def go_on(opener, session, world, tell, **options):
    """Work on a run to its end; settle what is in doubt by looking at what was done."""
    with opener() as store:
        found = store.runs.get(session)
        doubted = [call.arguments["args"][0] for call in found.in_doubt] if found else []
        assert doubted == ([] if world.doubt is None else [world.doubt]), (doubted, world.doubt)
        with world.watched():
            while True:
                try:
                    with store.run(session, state={"length": 0}, takeover=True, **options) as run:
                        script(run, world)
                    break
                except InDoubt as error:
                    settle(store, world, error.details, tell)
        check(store, session, world)


def settle(store, world, doubt, tell):
    name = doubt["arguments"]["args"][0]
    assert name == world.doubt
    tell("doubt", name=name)
    world.settling = True
    if name in world.done():
        store.runs.settle(doubt["session_id"], doubt["call_id"], result=result(name))
    else:
        store.runs.settle(doubt["session_id"], doubt["call_id"], not_done=True)
    world.settling = False


def check(store, session, world):
    """Every effect happened once, and the run is as if it had not been killed."""
    assert world.done() == EFFECTS
    run = store.runs.load(session)
    assert (run.status.name, run.iteration, run.in_doubt, run.owner) == ("completed", 2, (), None)
    assert [message.content for message in run.messages] == ["begin", "plan"]
    tools = [result(name) for name in EFFECTS if name != "plan"]
    assert [call.result for call in run.tool_calls] == tools
    assert (run.partial_results, run.state) == ((1, 2), {"length": 12})
    for checkpoint in store.runs.steps(session)[-1:]:
        assert checkpoint.state["state"] == run.state
        assert [len(checkpoint.state[name]) for name in ("messages", "tool_calls")] == [2, 4]


# ---- processes ------------------------------------------------------------------------------------------------------


class Child:
    """A process that calls a function with `tell`, by which it says things, one per line."""

    def __init__(self, work):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(read)
                tell = partial(_tell, write)
                work(tell)
                tell("end")
            except BaseException as error:  # noqa: BLE001 - it is what the process says
                tell(
                    "error", error=type(error).__name__, code=getattr(error, "code", None), text=traceback.format_exc()
                )
            finally:
                os._exit(0)
        os.close(write)
        self._said = os.fdopen(read)

    def hear(self):
        """Wait for one thing that it says."""
        return json.loads(self._said.readline())

    def wait(self):
        """Wait for its end; return what it said."""
        with self._said:
            said = [json.loads(line) for line in self._said]
        os.waitpid(self.pid, 0)
        return said


def _tell(pipe, what, **more):
    os.write(pipe, json.dumps({"what": what, **more}).encode() + b"\n")


class Sessions:
    """Runs of one store, killed as they are told, and what must be true of them in the end."""

    def __init__(self, opener, directory):
        self._opener = opener
        self._directory = directory
        self._count = 0
        self.kills = []
        self.doubts = 0
        with opener() as store:  # what is imported when it is needed is imported here, not in each process
            store.run("first").__enter__().__exit__(None, None, None)

    def go(self, kill_at, **options):
        """Do one run: a process for each of `kill_at`, then one that is not killed; return the points of the last."""
        self._count += 1
        session, path = f"run {self._count}", self._directory / f"effects {self._count}"
        doubt, points = None, 0
        for at in (*kill_at, 0):
            *said, last = self._process(session, path, at, doubt, options)
            reported = [each["name"] for each in said if each["what"] == "doubt"]
            assert last["what"] in ("killed", "points"), last.get("text")
            if doubt is not None and last["what"] == "points":
                assert reported == [doubt]  # it came to its end, so it was told of the doubt
            self.doubts += len(reported)
            if last["what"] == "points":
                points = last["points"]
                break
            self.kills.append(last["point"])
            doubt = last["doubt"]
        return points

    def _process(self, session, path, at, doubt, options):
        def work(tell):
            world = World(path, kill_at=at, doubt=doubt, tell=tell)
            go_on(self._opener, session, world, tell, **options)
            tell("points", points=world.points)

        said = Child(work).wait()
        return [each for each in said if each["what"] != "end"]


# ---- kills ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", lengths(7, 1))
def test_run_killed_at_any_point_does_effects_once(opener, tmp_path, every):
    sessions = Sessions(opener, tmp_path)
    points = sessions.go([])
    assert points > 40
    for at in range(1, points + 1, every):
        sessions.go([at])
    assert len(sessions.kills) == len(range(1, points + 1, every))
    assert {"before Engine.at_once", "after LogWriter.save"} < set(sessions.kills)
    assert sessions.doubts > len(sessions.kills) // 4
    with opener() as store:
        assert store.verify().ok


@pytest.mark.parametrize("kills", lengths(6, 1000))
def test_run_killed_repeatedly_does_effects_once(opener, tmp_path, kills):
    chance = random.Random(kills)
    sessions = Sessions(opener, tmp_path)
    while len(sessions.kills) < kills:
        schedule = [chance.randint(1, 50) for _ in range(chance.randint(1, 12))]
        sessions.go(schedule, strategy=chance.choice(STRATEGIES))
    assert sessions.doubts > 0
    with opener() as store:
        assert store.verify().ok


# ---- several workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [True, False])
def test_of_several_processes_that_want_one_run_exactly_one_works(opener, tmp_path, new):
    with opener() as store:  # it is made, so that they race for the run and not for the store
        store.thread("t").save({})
        if not new:
            with store.run("s", state={"length": 0}) as run:
                run.halt("later")
    begin, go = os.pipe()
    over, end = os.pipe()

    def work(tell):
        os.close(go)
        os.close(end)
        with opener() as store:
            store.thread("t").load()
            tell("ready")
            os.read(begin, 1)  # until the other end is closed
            try:
                with store.run("s", state={"length": 0}) as run:
                    tell("working")
                    os.read(over, 1)
                    script(run, World(tmp_path / "effects"))
            except Conflict as error:
                tell("refused", code=error.code)

    children = [Child(work) for _ in range(4)]
    assert [child.hear()["what"] for child in children] == ["ready"] * 4
    os.close(go)
    first = [child.hear() for child in children]
    os.close(end)
    said = [child.wait() for child in children]
    os.close(begin)
    os.close(over)
    assert sorted(each["what"] for each in first) == ["refused"] * 3 + ["working"], first
    assert {each.get("code") for each in first} == {"conflict.lease", None}
    assert [each["what"] for lines in said for each in lines] == ["end"] * 4, said
    assert World(tmp_path / "effects").done() == EFFECTS


@pytest.mark.parametrize("takeover", [True, False])
def test_stopped_worker_writes_nothing_after_takeover(opener, tmp_path, takeover):
    world = World(tmp_path / "effects")
    stopped, go = os.pipe()

    def slow(name, tell):
        given = world.effect(name)
        tell("inside")
        os.read(stopped, 1)
        return given

    def old(tell):
        os.close(go)
        with opener() as store, store.run("s", state={"n": 0}, lease=60 if takeover else 0.4) as run:
            for _ in run.iterations():
                run.tool("a", world.effect, "a")
                run.state["n"] = 1
                try:
                    run.tool("b", partial(slow, tell=tell), "b")
                except Conflict as error:
                    tell("refused", code=error.code)
                try:
                    run.tool("c", world.effect, "old c")
                except Conflict as error:
                    tell("refused", code=error.code)
                break

    child = Child(old)
    assert child.hear()["what"] == "inside"
    os.kill(child.pid, signal.SIGSTOP)
    with opener() as store:
        if not takeover:
            time.sleep(0.5)
        with pytest.raises(InDoubt) as doubt, store.run("s", takeover=takeover) as run:
            for _ in run.iterations():
                run.tool("a", world.effect, "a")
                run.tool("b", world.effect, "b")
        store.runs.settle("s", doubt.value.details["call_id"], result=result("b"))
        with store.run("s") as run:
            for _ in run.iterations():
                run.tool("a", world.effect, "a")
                os.kill(child.pid, signal.SIGCONT)
                os.close(go)
                said = child.wait()
                os.close(stopped)
                run.tool("b", world.effect, "b")
                run.state["n"] = 2
                break
        assert [(each["what"], each.get("code")) for each in said] == [
            ("refused", "conflict.lease"),
            ("refused", "conflict.lease"),
            ("error", "conflict.lease"),
        ]
        found = store.runs.load("s")
        assert (found.status.name, found.state) == ("completed", {"n": 2})
        assert [call.tool_name for call in found.tool_calls] == ["a", "b"]
        assert world.done() == ["a", "b"]
        assert store.verify().ok
