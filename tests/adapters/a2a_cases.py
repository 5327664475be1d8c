"""The tests of the A2A adapter: `test_a2a.py` runs them in an environment."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys

import pytest
from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import ListTasksRequest, Task, TaskState
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import encode_page_token
from google.protobuf.json_format import ParseDict
from google.protobuf.timestamp_pb2 import Timestamp

import backtrail
from backtrail import Conflict, Invalid
from backtrail.adapters.a2a import BacktrailTaskStore
from tests.project.test_docs import ROOT, run
from tests.support.places import in_memory
from tests.support.servers import place


class Named(User):
    def __init__(self, name):
        self._name = name

    @property
    def is_authenticated(self):
        return True

    @property
    def user_name(self):
        return self._name


def caller(name="ada"):
    return ServerCallContext(user=Named(name))


@pytest.fixture(params=["memory", "files", "sqlite", "postgres"])
def store(request, tmp_path):
    with contextlib.ExitStack() as stack:
        if request.param == "memory":
            opener = stack.enter_context(in_memory())
        elif request.param == "postgres":
            opener = stack.enter_context(place(durability="relaxed"))
        else:
            url = tmp_path / "s.db" if request.param == "sqlite" else f"file://{tmp_path / 'files'}"

            def opener():
                return backtrail.open(url, durability="relaxed")

        yield stack.enter_context(opener())


@pytest.fixture
def memory():
    with backtrail.open("memory://") as store:
        yield store


def task(name="t1", *texts, state="TASK_STATE_WORKING", context="c", time="2026-11-18T10:00:00.123456789Z"):
    history = [
        {"messageId": f"m{at}", "role": "ROLE_USER", "parts": [{"text": text}], "taskId": name}
        for at, text in enumerate(texts)
    ]
    status = {"state": state, **({"timestamp": time} if time else {})}
    return ParseDict({"id": name, "contextId": context, "status": status, "history": history}, Task())


RICH = {
    "id": "rich / ~ %2F é 🙂",
    "contextId": "c",
    "status": {
        "state": "TASK_STATE_INPUT_REQUIRED",
        "message": {"messageId": "q", "role": "ROLE_AGENT", "parts": [{"text": "When?"}], "metadata": {"a": [1, None]}},
        "timestamp": "2026-11-18T10:00:00.000000001Z",
    },
    "artifacts": [
        {"artifactId": "a", "name": "n", "parts": [{"raw": "AAH/", "mediaType": "x/y", "filename": "f"}]},
        {"artifactId": "b", "parts": [{"data": {"deep": [{"x": 1.5, "y": "\u0000z"}]}}, {"url": "https://x"}]},
    ],
    "history": [
        {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": ""}, {"text": "a ferry"}], "extensions": ["e"]},
        {"role": "ROLE_AGENT", "parts": [{"text": "yes"}], "referenceTaskIds": ["t0"]},
        {},
    ],
    "metadata": {"float": 1e300, "true": True, "content": "c", "id": 1},
}


def test_everything_comes_back_equal(store):
    async def main():
        tasks = BacktrailTaskStore(store)
        for given in (ParseDict(RICH, Task()), Task(id="bare"), task("x" * 600, "long id")):
            await tasks.save(given, caller())
            found = await BacktrailTaskStore(store).get(given.id, caller())
            assert found == given
            assert found.SerializeToString(deterministic=True) == given.SerializeToString(deterministic=True)

    asyncio.run(main())


def test_what_json_cannot_hold_is_kept_as_bytes(memory):
    odd = task()
    odd.metadata["not a number"] = float("nan")
    newer = Task.FromString(task("t2").SerializeToString() + b"\xfa\x3f\x03abc")  # a field of a later protocol

    async def main():
        tasks = BacktrailTaskStore(memory)
        for given in (odd, newer):
            await tasks.save(given, caller())
            found = await tasks.get(given.id, caller())
            assert found.SerializeToString(deterministic=True) == given.SerializeToString(deterministic=True)

    asyncio.run(main())


STATES = ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
TIMES = [None, *(f"2026-11-18T10:00:0{at}Z" for at in range(4))]
AT = Timestamp()
AT.FromJsonString(TIMES[2])


def random_task(chance, name):
    texts = [f"text {chance.random()}"] * chance.randrange(3)
    return task(name, *texts, state=chance.choice(STATES), context=chance.choice("cd"), time=chance.choice(TIMES))


def random_request(chance):
    wanted = ListTasksRequest(page_size=chance.choice([0, 1, 3]))
    if chance.random() < 0.4:
        wanted.context_id = chance.choice("cd")
    if chance.random() < 0.4:
        wanted.status = TaskState.Value(chance.choice(STATES))
    if chance.random() < 0.3:
        wanted.status_timestamp_after.CopyFrom(AT)
    return wanted


async def pages(tasks, wanted, user):
    request, answers = ListTasksRequest.FromString(wanted.SerializeToString()), []
    while True:
        answers.append(await tasks.list(request, user))
        request.page_token = answers[-1].next_page_token
        if not request.page_token:
            return answers


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_the_store_in_memory(memory, seed):
    """1,000 random operations of two users, on both stores."""
    chance = random.Random(seed)

    async def main():
        both = (BacktrailTaskStore(memory), InMemoryTaskStore())
        for _ in range(1_000):
            user, name, kind = caller(chance.choice("ab")), f"t{chance.randrange(12)}", chance.random()
            given, wanted = random_task(chance, name), random_request(chance)
            if kind < 0.4:
                ours, theirs = [await tasks.save(given, user) for tasks in both]
            elif kind < 0.6:
                ours, theirs = [await tasks.get(name, user) for tasks in both]
            elif kind < 0.7:
                ours, theirs = [await tasks.delete(name, user) for tasks in both]
            else:
                ours, theirs = [await pages(tasks, wanted, user) for tasks in both]
            assert ours == theirs

    asyncio.run(main())


def test_users_see_their_own_tasks_only(memory):
    async def main():
        tasks = BacktrailTaskStore(memory)
        for user in ("a", "a/b", ""):
            await tasks.save(task("t", f"of {user}"), caller(user))
            await tasks.save(task("b/t"), caller(user))
            await tasks.save(task("x" * 600), caller(user))
        for user in ("a", "a/b", ""):
            assert (await tasks.get("t", caller(user))).history[0].parts[0].text == f"of {user}"
            assert (await tasks.list(ListTasksRequest(), caller(user))).total_size == 3
        assert await tasks.get("t", caller("other")) is None
        await tasks.delete("t", caller("other"))
        assert await tasks.get("t", caller("a")) is not None

    asyncio.run(main())


def test_pages_of_older_servers_go_on(memory):
    async def main():
        tasks = BacktrailTaskStore(memory)
        for at in range(3):
            await tasks.save(task(f"t{at}"), caller())
        answer = await tasks.list(ListTasksRequest(page_token=encode_page_token("t1")), caller())
        assert [each.id for each in answer.tasks] == ["t1", "t0"]
        with pytest.raises(InvalidParamsError):
            await tasks.list(ListTasksRequest(page_token=encode_page_token("nowhere")), caller())

    asyncio.run(main())


def test_read_beside_a_save_makes_no_conflict(store, monkeypatch):
    async def main():
        keeper, loop = BacktrailTaskStore(store), asyncio.get_running_loop()
        await keeper.save(task("t", "begun"), caller())
        latest = backtrail.Thread.latest

        def then_a_save(thread):
            head = latest(thread)
            monkeypatch.setattr(backtrail.Thread, "latest", latest)
            asyncio.run_coroutine_threadsafe(keeper.save(task("t", "second"), caller()), loop).result(30)
            return head

        monkeypatch.setattr(backtrail.Thread, "latest", then_a_save)
        assert await keeper.get("t", caller()) == task("t", "begun")
        await keeper.save(task("t", "third"), caller())
        assert await keeper.get("t", caller()) == task("t", "third")

    asyncio.run(main())


def test_of_two_writers_one_gets_an_error(store):
    async def main():
        one, two = BacktrailTaskStore(store), BacktrailTaskStore(store)
        for at in range(20):
            name = f"t{at}"
            await one.save(task(name, "begun"), caller())
            mine, yours = await one.get(name, caller()), await two.get(name, caller())
            mine.status.state, yours.status.state = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_CANCELED
            done = await asyncio.gather(one.save(mine, caller()), two.save(yours, caller()), return_exceptions=True)
            assert sorted(type(each) for each in done if each) == [Conflict]
            winner = mine if done[0] is None else yours
            assert await one.get(name, caller()) == winner
            await one.save(yours, caller())  # on top of what it has read now
            assert await two.get(name, caller()) == yours

    asyncio.run(main())


def test_a_task_that_was_not_read_is_overwritten(memory):
    async def main():
        await BacktrailTaskStore(memory).save(task("t", "one"), caller())
        await BacktrailTaskStore(memory).save(task("t", "two"), caller())
        found = await BacktrailTaskStore(memory).get("t", caller())
        assert found.history[0].parts[0].text == "two"

    asyncio.run(main())


KILLED = """
import asyncio, os, signal, sys
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import Task
from backtrail.adapters.a2a import BacktrailTaskStore
async def main():
    tasks = BacktrailTaskStore(sys.argv[1])
    for at in range(5):
        await tasks.save(Task(id="t", context_id=str(at)), ServerCallContext())
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_a_killed_process_leaves_its_last_save(tmp_path):
    path = str(tmp_path / "s.db")
    ended = subprocess.run([sys.executable, "-c", KILLED, path], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL

    async def main():
        async with BacktrailTaskStore(path) as tasks:
            found = await tasks.get("t", ServerCallContext())
            assert found.context_id == "4"
            await tasks.save(Task(id="t", context_id="next"), ServerCallContext())

    asyncio.run(main())
    with backtrail.open(path) as store:
        assert store.verify().ok


def test_bad_input_is_refused_and_writes_nothing(memory):
    async def main():
        tasks = BacktrailTaskStore(memory)
        for wrong in (Task(), {"id": "t"}, None):
            with pytest.raises(Invalid):
                await tasks.save(wrong, caller())
        assert await tasks.get("", caller()) is None

    asyncio.run(main())
    assert list(memory.threads()) == []
    with pytest.raises(Invalid):
        BacktrailTaskStore(5)


def test_a_strange_thread_is_not_listed(memory):
    memory.thread("a2a:ada/t").save({"something": "else"})

    async def main():
        tasks = BacktrailTaskStore(memory)
        assert (await tasks.list(ListTasksRequest(), caller())).total_size == 0
        with pytest.raises(backtrail.Corrupt):
            await tasks.get("t", caller())

    asyncio.run(main())


def test_history_search_and_undo_know_tasks(memory):
    async def main():
        tasks = BacktrailTaskStore(memory, agent="planner")
        await tasks.save(task("t", "a ferry to Lisbon"), caller())
        await tasks.save(task("t", "a ferry to Lisbon", "and a room"), caller())
        (hit,) = memory.search("ferry")
        assert hit.conversation_id == "a2a:ada/t"
        thread = tasks.thread("t", owner="ada")
        assert len(list(thread.history())) == 2
        thread.undo()
        assert len((await tasks.get("t", caller())).history) == 1

    asyncio.run(main())


def test_a_long_history_costs_what_is_new(tmp_path):
    async def main():
        async with BacktrailTaskStore(tmp_path / "s.db") as tasks:
            texts = [f"{at} " + "x" * 1000 for at in range(300)]
            await tasks.save(task("t", *texts), caller())
            before = tasks.thread("t", owner="ada").latest()
            await tasks.save(task("t", *texts, "one more"), caller())
            after = tasks.thread("t", owner="ada").latest()
            assert before.step + 1 == after.step
            assert [str(each.path) for each in tasks.thread("t", owner="ada").diff()] == ["messages[300]"]

    asyncio.run(main())


def test_every_block_of_the_page_prints_what_it_says(tmp_path, monkeypatch):
    page = ROOT / "docs" / "a2a.md"
    for block, printed, shown in run(page, tmp_path, monkeypatch):
        assert printed == shown, f"line {block.line}"


def test_the_example_runs():
    example = ROOT / "examples" / "a2a_tasks.py"
    done = subprocess.run([sys.executable, example], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "t1: COMPLETED" in done.stdout
