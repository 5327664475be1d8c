"""The tests of the Agent Framework adapter: `test_agent_framework.py` runs them in an environment."""

import asyncio
import contextlib
import pickle
import random
import subprocess
import sys
from dataclasses import dataclass

import pytest
from agent_framework import (
    AgentResponse,
    Content,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowEvent,
    WorkflowMessage,
    handler,
)

import backtrail
from backtrail import Invalid
from backtrail.adapters.agent_framework import BacktrailCheckpointStorage
from tests.project.test_docs import ROOT, run
from tests.support.places import in_memory
from tests.support.servers import place


@dataclass
class Trip:
    city: str
    booked: list[str]


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


def checkpoint(name="w", **fields):
    return WorkflowCheckpoint(workflow_name=name, graph_signature_hash="h", **fields)


def asked(data, response_type=str):
    return WorkflowEvent.request_info(
        request_id="r", source_executor_id="e", request_data=data, response_type=response_type
    )


def as_data(value):
    """Return a value in which the framework's objects without equality are dicts."""
    if isinstance(value, WorkflowMessage | WorkflowEvent | WorkflowCheckpoint | Message | Content | AgentResponse):
        origin = [value.origin] if isinstance(value, WorkflowEvent) else []
        return [type(value), *origin, as_data(value.to_dict())]
    if isinstance(value, dict):
        return {key: as_data(each) for key, each in value.items()}
    return [as_data(each) for each in value] if isinstance(value, list) else value


def rich():
    said = Message("user", ["hi", Content.from_function_call("c", "book", arguments={"a": [1]})], message_id="m")
    event = asked(Trip("Porto", []), Trip)
    return checkpoint(
        previous_checkpoint_id="before",
        messages={
            "a": [WorkflowMessage(said, "x", trace_contexts=[{"t": "1"}]), WorkflowMessage(Trip("Lisbon", ["f"]), "y")],
            "b": [WorkflowMessage("yes", "z", "t", original_request_info_event=event)],
        },
        state={"set": {1, 2}, "bytes": b"\0\xff", 5: (1, None), "answer": AgentResponse(messages=[said])},
        pending_request_info_events={"r": event, "s": asked("what?")},
        iteration_count=3,
        metadata={"x": 1.5},
    )


def test_everything_comes_back_equal(store):
    async def main():
        given = rich()
        name = await BacktrailCheckpointStorage(store, types=[Trip]).save(given)
        storage = BacktrailCheckpointStorage(store, types=[Trip])
        (listed,) = await storage.list_checkpoints(workflow_name="w")
        for found in (await storage.load(name), await storage.get_latest(workflow_name="w"), listed):
            assert as_data(found) == as_data(given)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_the_storage_in_memory(memory, seed):
    """500 random operations on two workflows, on both storages."""
    chance = random.Random(seed)

    async def answer(storage, kind, given):
        if kind < 0.4:
            return await storage.save(given)
        if kind < 0.5:
            try:
                return await storage.load(given.checkpoint_id)
            except WorkflowCheckpointException as error:
                return str(error)
        if kind < 0.6:
            return await storage.delete(given.checkpoint_id)
        calls = (storage.list_checkpoints, storage.list_checkpoint_ids, storage.get_latest)
        return await calls[int(kind * 100) % 3](workflow_name=given.workflow_name)

    async def main():
        both = (BacktrailCheckpointStorage(memory), InMemoryCheckpointStorage())
        names = []
        for at in range(500):
            kind = chance.random()
            name = f"c{at}" if kind < 0.4 or not names else chance.choice(names)
            names.append(name)
            given = checkpoint(f"w{chance.randrange(2)}", checkpoint_id=name, state={"n": at}, iteration_count=at)
            ours, theirs = [await answer(storage, kind, given) for storage in both]
            assert as_data(ours) == as_data(theirs)

    asyncio.run(main())


def test_a_saved_checkpoint_is_replaced_by_its_id(memory):
    async def main():
        storage = BacktrailCheckpointStorage(memory)
        for at, name in enumerate(("a", "b", "a")):
            await storage.save(checkpoint(checkpoint_id=name, iteration_count=at))
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["a", "b"]
        assert (await storage.load("a")).iteration_count == 2
        assert await storage.delete("a")
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["b"]

    asyncio.run(main())


def test_two_writers_keep_all_checkpoints(store):
    async def write(who):
        storage = BacktrailCheckpointStorage(store)
        for at in range(20):
            await storage.save(checkpoint(checkpoint_id=f"{who} {at}", state={"who": who}))

    async def main():
        await asyncio.gather(write("one"), write("two"))
        found = await BacktrailCheckpointStorage(store).list_checkpoint_ids(workflow_name="w")
        assert sorted(found) == sorted(f"{who} {at}" for who in ("one", "two") for at in range(20))
        assert [name for name in found if name.startswith("one")] == [f"one {at}" for at in range(20)]

    asyncio.run(main())


class Unknown:
    """A class that no one has named."""


@pytest.mark.parametrize(
    "wrong",
    [
        checkpoint(state={"deep": [Unknown()]}),
        checkpoint(state={"trip": Trip("Lisbon", [])}),
        checkpoint(pending_request_info_events={"r": asked("x", Unknown)}),
        checkpoint(pending_request_info_events={"r": WorkflowEvent.started()}),
        checkpoint(checkpoint_id=""),
        {"workflow_name": "w"},
        None,
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_written(memory, wrong):
    with pytest.raises(Invalid):
        asyncio.run(BacktrailCheckpointStorage(memory).save(wrong))
    assert list(memory.threads()) == []


@pytest.mark.parametrize("name", ["nothing", "", "../x", "@", "\ud800", None])
def test_a_missing_checkpoint_is_the_frameworks_error(memory, name):
    async def main():
        storage = BacktrailCheckpointStorage(memory)
        await storage.save(checkpoint())
        with pytest.raises(WorkflowCheckpointException):
            await storage.load(name)
        assert not await storage.delete(name)

    asyncio.run(main())


def test_classes_that_are_not_named_are_not_made(memory):
    """A load makes no instance of a class that its storage does not name, and unpickles nothing."""

    async def main():
        name = await BacktrailCheckpointStorage(memory, types=[Trip]).save(checkpoint(state={"t": Trip("Lisbon", [])}))
        found = await BacktrailCheckpointStorage(memory).load(name)
        assert not isinstance(found.state["t"], Trip)
        data = pickle.dumps(Trip("Lisbon", []))
        name = await BacktrailCheckpointStorage(memory).save(checkpoint(state={"__pickled__": data, "__type__": "x"}))
        found = await BacktrailCheckpointStorage(memory, types=[Trip]).load(name)
        assert found.state == {"__pickled__": data, "__type__": "x"}

    asyncio.run(main())


class Book(Executor):
    @handler
    async def book(self, trip: Trip, ctx: WorkflowContext[Trip, Trip]) -> None:
        done = Trip(trip.city, [*trip.booked, self.id])
        await (ctx.yield_output(done) if self.id == "room" else ctx.send_message(done))


def test_a_workflow_goes_on_from_any_checkpoint(store):
    def workflow():
        storage = BacktrailCheckpointStorage(store, types=[Trip])
        ferry, room = Book(id="ferry"), Book(id="room")
        builder = WorkflowBuilder(start_executor=ferry, checkpoint_storage=storage, name="trip")
        return builder.add_edge(ferry, room).build(), storage

    async def main():
        first, storage = workflow()
        assert (await first.run(Trip("Lisbon", []))).get_outputs() == [Trip("Lisbon", ["ferry", "room"])]
        names = await storage.list_checkpoint_ids(workflow_name="trip")
        assert len(names) == 3
        for name in names[:2]:
            again, _ = workflow()
            assert (await again.run(checkpoint_id=name)).get_outputs() == [Trip("Lisbon", ["ferry", "room"])]
        assert len(list(storage.thread("trip").history())) > 3

    asyncio.run(main())


def test_every_block_of_the_page_prints_what_it_says(tmp_path, monkeypatch):
    page = ROOT / "docs" / "agent-framework.md"
    for block, printed, shown in run(page, tmp_path, monkeypatch):
        assert printed == shown, f"line {block.line}"


def test_the_example_goes_on_after_a_kill():
    example = ROOT / "examples" / "agent_framework_workflow.py"
    done = subprocess.run([sys.executable, example], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "booking a ferry",
        "booking a room ... killed",
        "booking a room",
        "booked: ferry, room",
    ]
