"""What `BacktrailSaver` keeps in memory is never older than the store: another process may have written since (I9)."""

import contextlib
import sqlite3
import uuid

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

import backtrail
from backtrail.adapters.langgraph import BacktrailSaver

THREAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def put(saver, config, value, step=0):
    """Put a checkpoint with one channel and return its config."""
    version = (step or 0) + 1
    checkpoint = empty_checkpoint() | {
        "id": f"{step:04}-{uuid.uuid4()}",
        "channel_values": {"messages": value},
        "channel_versions": {"messages": version},
    }
    metadata = {"source": "loop", "step": step, "parents": {}}
    return saver.put(config, checkpoint, metadata, {"messages": version})


def messages(saver, config=THREAD):
    found = saver.get_tuple(config)
    return None if found is None else found.checkpoint["channel_values"]["messages"]


@pytest.fixture(params=["sqlite", "file"])
def pair(request, tmp_path):
    """Two savers on one store, as two processes have them: the stores share no memory."""
    url = tmp_path / "a.db" if request.param == "sqlite" else (tmp_path / "a").as_uri()
    with contextlib.ExitStack() as stack:
        yield [BacktrailSaver(stack.enter_context(backtrail.open(url))) for _ in range(2)]


def test_checkpoint_of_another_process_is_seen(pair):
    here, there = pair
    first = put(here, THREAD, ["a"])
    assert messages(here) == ["a"]
    put(there, first, ["a", "b"], 1)
    assert messages(here) == ["a", "b"]
    latest = here.get_tuple(THREAD)
    put(here, latest.config, ["a", "b", "c"], 2)
    assert messages(there) == ["a", "b", "c"]


def test_put_on_a_checkpoint_that_another_process_replaced_conflicts(pair):
    here, there = pair
    put(here, THREAD, ["a"])
    read = here.get_tuple(THREAD).config
    put(there, there.get_tuple(THREAD).config, ["a", "b"], 1)
    with pytest.raises(backtrail.Conflict):
        put(here, read, ["a", "c"], 1)
    assert messages(here) == ["a", "b"]


def test_task_writes_of_another_process_are_seen(pair):
    here, there = pair
    config = put(here, THREAD, ["a"])
    here.put_writes(config, [("messages", "x")], "task 1")
    there.put_writes(config, [("messages", "y")], "task 2")
    assert sorted(here.get_tuple(THREAD).pending_writes) == [("task 1", "messages", "x"), ("task 2", "messages", "y")]
    put(here, config, ["a", "b"], 1)
    assert here.get_tuple(THREAD).pending_writes == []


def test_rewind_by_another_process_is_seen(pair):
    here, there = pair
    first = put(here, THREAD, ["a"])
    put(here, first, ["a", "b"], 1)
    there.store.thread("t").rewind(first["configurable"]["checkpoint_id"])
    assert messages(here) == ["a"]
    there.store.thread("t").undo()
    assert messages(here) == ["a", "b"]


def test_thread_that_another_process_deleted_is_gone(pair):
    here, there = pair
    config = put(here, THREAD, ["a"])
    here.put_writes(config, [("messages", "x")], "task")
    there.delete_thread("t")
    assert here.get_tuple(THREAD) is None
    put(there, THREAD, ["new"])
    found = here.get_tuple(THREAD)
    assert found.checkpoint["channel_values"]["messages"] == ["new"]
    assert found.pending_writes == []


def test_checkpoint_that_another_process_deleted_is_gone(pair):
    here, there = pair
    first = put(here, THREAD, ["a"])
    second = put(here, first, ["a", "b"], 1)
    there.store.thread("t").delete_checkpoint(second["configurable"]["checkpoint_id"])
    assert messages(here) == ["a"]


def test_readers_share_no_messages(pair):
    here, _ = pair
    said = [HumanMessage("a", id="1"), AIMessage("b", id="2")]
    config = put(here, THREAD, said)
    one, other = messages(here), messages(here)
    one[0].content = "changed"
    one[1].additional_kwargs["k"] = "changed"
    said[1].content = "changed, too"
    assert [message.content for message in other] == ["a", "b"]
    assert [message.content for message in messages(here)] == ["a", "b"]
    put(here, config, one, 1)
    assert messages(here) == one
    assert messages(here)[1].additional_kwargs == {"k": "changed"}


def said(count):
    kinds = (HumanMessage, AIMessage)
    return [kinds[at % 2](f"{at} " + "some words " * 60, id=f"{at}") for at in range(count)]


def changed_in_place(message):
    """Changes of a message, one after the other. Values that have no common form come last."""
    yield lambda: setattr(message, "content", message.content.replace("some", "SOME"))
    yield lambda: setattr(message, "name", "new")
    yield lambda: message.model_fields_set.discard("name")
    yield lambda: message.__pydantic_extra__.update(more=1)
    yield lambda: message.__pydantic_extra__.update(more=True)
    yield message.__pydantic_extra__.clear
    yield lambda: message.additional_kwargs.update(k=1)
    yield lambda: message.additional_kwargs.update(k=True)  # equal to 1 in Python
    yield lambda: message.additional_kwargs.update(k=1.0)
    yield lambda: message.additional_kwargs.update(k=b"bytes")
    yield lambda: message.additional_kwargs.update(k=bytearray(b"bytes"))
    yield lambda: message.response_metadata.update(deep={"list": [1]})
    yield lambda: message.response_metadata["deep"]["list"].append((2,))
    yield lambda: setattr(message, "content", [{"type": "text", "text": "a block"}])
    yield lambda: message.content[0].update(text="another")


def fields(message):
    return [(type(message), repr(message.__dict__), message.model_fields_set, repr(message.__pydantic_extra__))]


@pytest.mark.parametrize("at", [3, 70, 119], ids=["in a leaf", "in a later leaf", "at the end"])
def test_message_changed_in_place_is_saved(pair, at):
    here, there = pair
    messages_now = said(119)
    config = put(here, THREAD, messages_now)
    messages_now.append(AIMessage("the last", id="last"))
    config = put(here, config, messages_now, 1)
    for step, change in enumerate(changed_in_place(messages_now[at]), 2):
        change()
        config = put(here, config, messages_now, step)
        for saver in (here, there):
            loaded = messages(saver)
            assert [fields(each) for each in loaded] == [fields(each) for each in messages_now]
            assert loaded[at] is not messages_now[at]


@pytest.mark.parametrize("count", [2, 7, 60])
def test_two_processes_take_turns_with_messages(pair, count):
    everything = []
    for turn in range(0, count, 2):
        saver = pair[turn // 2 % 3 % 2]  # a process has sometimes two turns in a row
        found = saver.get_tuple(THREAD)
        config = THREAD if found is None else found.config
        listed = [] if found is None else found.checkpoint["channel_values"]["messages"]
        assert [fields(each) for each in listed] == [fields(each) for each in everything]
        new = said(count)[turn : turn + 2]
        config = put(saver, config, [*listed, new[0]], 2 * turn)
        saver.put_writes(config, [("messages", new[1:])], f"task {turn}")
        put(saver, config, [*listed, *new], 2 * turn + 1)
        everything += new


def test_messages_with_values_that_cannot_be_kept_are_refused(pair):
    here, there = pair
    listed = said(5)
    config = put(here, THREAD, listed)
    config = put(here, config, listed, 1)
    for wrong in (object(), ormsgpack.Ext(1, b"x"), ormsgpack.Fragment(b"\x01")):
        listed[4].additional_kwargs["k"] = wrong
        with pytest.raises(backtrail.Invalid):
            put(here, config, listed, 2)
        with pytest.raises(backtrail.Invalid):
            here.put_writes(config, [("messages", listed[4:])], "task")
    assert [fields(each) for each in messages(there)] == [fields(each) for each in said(5)]
    assert there.get_tuple(THREAD).pending_writes == []


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        bytearray(b"bytes"),
        (1, [2], {"k": (3,)}),
        {1: 2, None: [True, 1, 1.0]},
        "x" * 5_000,
        [said(1)[0], {"deep": said(2)}],
        ["y" * 3_000, "z" * 3_000],
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_task_writes_come_back_exactly(pair, value):
    here, there = pair
    config = put(here, THREAD, ["a"])
    here.put_writes(config, [("one", value), ("two", [value])], "task", "path")
    assert repr(there.get_tuple(THREAD).pending_writes) == repr([("task", "one", value), ("task", "two", [value])])


def test_damage_of_the_newest_row_is_noticed(tmp_path):
    with BacktrailSaver(tmp_path / "a.db") as saver:
        put(saver, THREAD, ["a"])
        assert messages(saver) == ["a"]
        with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
            connection.execute("UPDATE row SET size = size + 1")
        with pytest.raises(backtrail.Corrupt):
            saver.get_tuple(THREAD)


def test_write_in_a_transaction_that_is_dropped_leaves_no_trace(pair):
    here, there = pair
    config = put(here, THREAD, ["a"])
    with pytest.raises(ZeroDivisionError), here.store.transaction():
        put(here, config, ["a", "b"], 1)
        here.put_writes(config, [("messages", "x")], "task")
        assert messages(here) == ["a", "b"]
        raise ZeroDivisionError
    assert messages(here) == messages(there) == ["a"]
    assert here.get_tuple(THREAD).pending_writes == []


def test_latest_checkpoint_takes_two_statements(tmp_path):
    with BacktrailSaver(tmp_path / "a.db") as saver:
        config = put(saver, THREAD, ["a"])
        saver.put_writes(config, [("messages", "x")], "task")
        config = put(saver, config, ["a", "b"], 1)
        statements = []
        shared = saver.store._engine.backend._shared
        with shared.use() as connection:
            connection.exec_trace = lambda _, statement, __: not statements.append(statement)
        found = saver.get_tuple(THREAD)
        assert found.checkpoint["channel_values"]["messages"] == ["a", "b"]
        assert len(statements) == 2, statements
        statements.clear()
        saver.put_writes(found.config, [("messages", "y")], "task")
        put(saver, found.config, ["a", "b", "c"], 2)
        assert len(statements) == 2, statements
