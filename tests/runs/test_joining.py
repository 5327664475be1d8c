"""Runs whose messages go to a conversation, runs by their status, and runs that were cut short."""

import asyncio
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

import backtrail
from backtrail import Conflict, Conversation, Message, NotFound, ToolCall, aio
from backtrail.runs.recorder import JournalThread


class Cut(Exception):  # noqa: N818
    pass


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def said(store, name="c"):
    return [message.content for message in store.conversations.load(name).messages]


def chat(store, session="s", cut=None, **options):
    """Say something in three iterations; `cut` says where it is cut short."""
    options = {"agent": "a", "conversation": "c", "messages": [Message.user("hello")], **options}
    with store.run(session, **options) as run:
        run.message(Message.system("rules"))
        if cut == "before":
            raise Cut
        for i in run.iterations():
            run.message(Message.assistant(f"thought {i}"))
            if cut == f"{i} unwritten":
                raise Cut
            run.tool("t", abs, -i)
            if cut == f"{i} called":
                raise Cut
            run.message(Message.assistant(f"answer {i}"))
            if cut == f"{i} said":
                raise Cut
            if i == 3:
                break
    return run


ALL = ["hello", "rules", *(f"{what} {i}" for i in (1, 2, 3) for what in ("thought", "answer"))]


# ---- conversations --------------------------------------------------------------------------------------------------


def test_replayed_message_goes_to_conversation_once(store):
    for cut in ("before", "before", "1 unwritten", "1 called", "1 said", "2 called", "2 called", "3 said"):
        with pytest.raises(Cut):
            chat(store, cut=cut)
    run = chat(store)
    assert [message.content for message in run.messages] == said(store) == ALL
    chat(store)  # it is completed
    assert said(store) == ALL
    assert [m.id for m in store.conversations.load("c").messages] == [m.id for m in run.messages]


def test_a_process_that_is_killed_leaves_each_message_once(tmp_path):
    program = textwrap.dedent(f"""
        import os, sys, backtrail
        from backtrail import Message
        store = backtrail.open("sqlite:///{tmp_path}/s.db")
        with store.run("s", agent="a", conversation="c", lease=0.05) as run:
            for i in run.iterations():
                run.message(Message.assistant(f"thought {{i}}"))
                run.tool("t", abs, -i)
                run.message(Message.assistant(f"answer {{i}}"))
                if i == int(sys.argv[1]):
                    os._exit(9)
                if i == 3:
                    break
    """)
    for at in (1, 1, 2, 3, 9):
        subprocess.run([sys.executable, "-c", program, str(at)], check=False)
        time.sleep(0.1)
    with backtrail.open(f"sqlite:///{tmp_path}/s.db") as store:
        assert store.runs.load("s").status.name == "completed"
        assert said(store) == ALL[2:]


def test_search_finds_a_message_of_both_once(store):
    chat(store)
    with store.run("alone") as run:
        run.message(Message.assistant("a thought of its own"))
    assert [(hit.kind, hit.conversation_id) for hit in store.search("answer 2")] == [("conversation", "c")]
    assert [(hit.kind, hit.conversation_id) for hit in store.search('"thought of its own"')] == [("run", "alone")]
    assert store.stats().indexed == len(ALL) + 1


def test_messages_that_the_conversation_has_are_not_added_again(store):
    history = [Message.user("one"), Message.assistant("two")]
    store.conversations.save(Conversation("a", id="c", messages=history))
    with store.run("s", conversation="c", messages=[*store.conversations.load("c").messages, Message.user("three")]):
        pass
    assert said(store) == ["one", "two", "three"]


def test_missing_conversation_begins_with_the_runs_agent(store):
    chat(store)
    assert store.conversations.load("c").agent_id == "a"
    with pytest.raises(NotFound) as error, store.run("other", conversation="nowhere"):
        pass
    assert error.value.code == "not_found.conversation"
    assert "other" not in store.runs


def test_a_resumed_run_knows_its_conversation(store):
    with pytest.raises(Cut):
        chat(store, cut="1 called")
    run = chat(store, conversation=None)
    assert run.conversation == store.runs.load("s").conversation == "c"
    assert said(store) == ALL


def test_the_conversation_of_a_run_is_not_another_one_later(store):
    with pytest.raises(Cut):
        chat(store, cut="1 called")
    with pytest.raises(Conflict) as error:
        chat(store, conversation="other")
    assert error.value.code == "conflict.conversation"
    assert said(store) == ALL[:3]


def test_a_run_joins_a_conversation_when_it_is_resumed(store):
    with pytest.raises(Cut):
        chat(store, cut="1 said", conversation=None)
    run = chat(store, conversation="c")
    assert said(store) == ALL
    assert [m.id for m in store.conversations.load("c").messages] == [m.id for m in run.messages]


@pytest.mark.parametrize("cut", ["before", "1 unwritten", "1 called", "2 said", "3 called"])
def test_a_late_join_brings_all_messages_once(store, cut):
    with pytest.raises(Cut):
        chat(store, cut=cut, conversation=None)
    assert [hit.kind for hit in store.search("hello")] == ["run"]
    with pytest.raises(Cut):
        chat(store, cut=cut)  # it joins and is cut short at once
    assert [hit.kind for hit in store.search("hello")] == ["conversation"]
    chat(store)
    assert said(store) == ALL
    assert len(store.search("thought")) == 3


def test_a_late_join_leaves_out_what_the_conversation_has(store):
    history = [Message.user("one"), Message.assistant("two")]
    store.conversations.save(Conversation("a", id="c", messages=history))
    with pytest.raises(Cut):
        chat(store, messages=[*history, Message.user("hello")], cut="1 called", conversation=None)
    store.conversations.append("c", Message.user("meanwhile"))
    chat(store)
    assert said(store) == ["one", "two", "meanwhile", *ALL]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_fork_that_joins_brings_its_messages(store, at):
    chat(store)
    store.runs.thread("s").fork("other", at=at)
    with suppress(Cut):
        chat(store, "other", conversation="d", cut="1 unwritten")
    run = chat(store, "other", conversation="d")
    assert [message.content for message in run.messages] == ALL
    assert said(store, "d") == said(store) == ALL


def test_a_run_that_is_only_looked_at_joins_nothing(store):
    with pytest.raises(Cut):
        chat(store, cut="1 called", conversation=None)
    with store.run("s", conversation="oops") as run:
        assert run.conversation == "oops"
    assert run.conversation is store.runs.load("s").conversation is store.conversations.get("oops") is None
    assert [hit.kind for hit in store.search("hello")] == ["run"]
    chat(store)
    assert said(store) == ALL


def test_a_fork_that_is_only_looked_at_joins_nothing(store):
    chat(store)
    store.runs.thread("s").fork("other", at=2)
    with store.run("other", conversation="oops"):
        pass
    assert store.runs.load("other").conversation is None
    assert store.conversations.get("oops") is None


CALL = Message.assistant("", tool_calls=[ToolCall("f", {}, id="call-1")])


def unanswered(store, session="q", call=CALL, **options):
    """Leave a run with a tool call that has no answer, and a message behind it."""
    with suppress(Cut), store.run(session, agent="a", **options) as run:
        for i in run.iterations():
            if i == 2:
                raise Cut
            run.message(call)
            run.message(Message.user("next"))


def roles(messages):
    return [message.role.value for message in messages]


@pytest.mark.parametrize("late", [False, True])
def test_a_repaired_answer_reaches_the_conversation(store, late):
    store.conversations.append("d", Message.user("hi"), agent_id="a")
    unanswered(store, **({} if late else {"conversation": "d"}))
    with store.run("q"):
        pass
    before = ["user"] if late else ["user", "assistant", "user"]
    assert roles(store.conversations.load("d").messages) == before
    for _ in range(2):
        with suppress(Cut), store.run("q", conversation="d") as run:
            assert roles(run.messages) == ["assistant", "tool", "user"]
            for _ in run.iterations():
                run.tool("t", abs, -1)
                raise Cut
    assert roles(store.conversations.load("d").messages) == ["user", "assistant", "tool", "user"]


def test_repaired_answer_follows_its_call(store):
    store.conversations.append("d", CALL, Message.user("hi"), agent_id="a")  # of another run, with the same id
    unanswered(store, conversation="d", call=replace(CALL, id="other"))
    store.conversations.append("d", replace(CALL, id="third"), Message.user("bye"))
    with store.run("q") as run:
        for _ in run.iterations():
            break
    found = roles(store.conversations.load("d").messages)
    assert found == ["assistant", "user", "assistant", "tool", "user", "assistant", "user"]


def test_a_repaired_answer_survives_a_worker_that_dies(store):
    unanswered(store, conversation="d")
    dead = store.run("q", lease=0.02)
    dead.__enter__()
    dead._worker.lease.is_open = False  # its process is gone
    time.sleep(0.05)
    with store.run("q") as run:
        for _ in run.iterations():
            break
    assert roles(store.conversations.load("d").messages) == ["assistant", "tool", "user"]


def lose(store, **options):
    """Leave a run whose conversation is gone."""
    store.conversations.append("c", Message.user("hi"), agent_id="a")
    with suppress(Cut):
        chat(store, cut="1 said", **options)
    store.conversations.delete("c")


def test_a_run_without_its_conversation_is_opened(store):
    lose(store, agent=None)
    with store.run("s") as run:
        assert run.conversation == "c"
    assert store.runs.load("s").status.name == "failed"
    with pytest.raises(NotFound, match="was deleted") as error:
        chat(store, agent=None)
    assert error.value.code == "not_found.conversation"
    assert store.runs.load("s").status.name == "failed"
    store.conversations.save(Conversation("a", id="c"))
    chat(store, agent=None)
    assert said(store) == ALL[4:]


def test_run_continues_without_its_conversation(store):
    lose(store, agent=None)
    with store.run("s") as run:
        for i in run.iterations():
            if i == 1:
                run.message(Message.assistant("thought 1"))
                run.tool("t", abs, -1)
                run.message(Message.assistant("answer 1"))
                continue
            assert run.tool("t", abs, -i) == 2
            break
    assert store.runs.load("s").status.name == "completed"


def test_an_agent_begins_its_conversation_again(store):
    lose(store)
    chat(store)
    assert said(store) == ALL[4:]
    assert store.conversations.load("c").agent_id == "a"


def test_others_may_write_to_the_conversation_meanwhile(store):
    with store.run("s", agent="a", conversation="c") as run:
        for i in run.iterations():
            run.message(Message.assistant(f"mine {i}"))
            run.tool("t", abs, -i)
            store.conversations.append("c", Message.user(f"yours {i}"))
            if i == 2:
                break
    assert said(store) == ["mine 1", "yours 1", "mine 2", "yours 2"]


def test_a_conversation_that_is_deleted_takes_no_result_with_it(store):
    with store.run("s", agent="a", conversation="c") as run:
        for i in run.iterations():
            run.message(Message.assistant(f"mine {i}"))
            run.tool("t", abs, -i)
            store.conversations.delete("c")
            if i == 2:
                break
    assert [call.result for call in run.tool_calls] == [1, 2]
    assert store.conversations.list("a") == []


def test_fork_joins_a_conversation_only_by_name(store):
    chat(store)
    store.runs.thread("s").fork("other", at=2)
    run = chat(store, "other", conversation=None)
    assert run.conversation is None
    assert said(store) == ALL


def test_a_rewound_run_keeps_its_conversation(store):
    chat(store)
    store.runs.thread("s").rewind(1)
    assert chat(store, conversation=None).conversation == "c"


def test_asyncio_too(tmp_path):
    async def main():
        async with aio.open(f"sqlite:///{tmp_path}/s.db") as store:
            for cut in (True, False):
                with suppress(Cut):
                    async with store.run("s", agent="a", conversation="c") as run:
                        async for _ in run.iterations():
                            run.message(Message.assistant("thought"))
                            await run.tool("t", abs, -1)
                            if cut:
                                raise Cut
                            break
            found = await store.conversations.load("c")
            assert [message.content for message in found.messages] == ["thought"]
            assert [hit.kind for hit in await store.search("thought")] == ["conversation"]

    asyncio.run(main())


# ---- status ---------------------------------------------------------------------------------------------------------


def make(store, name, end):
    with suppress(Cut, KeyboardInterrupt), store.run(name, state={"n": 0}, agent="a") as run:
        for i in run.iterations():
            run.tool("t", abs, -i)
            if i == 2 and end != "completed":
                if end == "halted":
                    run.halt("wait")
                raise KeyboardInterrupt if end == "interrupted" else Cut
            if i == 2:
                break


def test_runs_are_listed_by_what_they_are_now(store):
    for end in ("completed", "failed", "halted", "interrupted"):
        for what in ("", " looked at", " rewound", " undone", " edited", " forked", " resumed"):
            make(store, end + what, end)
        thread = store.runs.thread(f"{end} rewound")
        thread.rewind(1)
        thread = store.runs.thread(f"{end} undone")
        thread.rewind(1)
        thread.undo()
        store.runs.thread(f"{end} edited").set("state.n", 7)
        store.runs.thread(f"{end} forked").fork(f"{end} fork", at=1)
        with store.run(f"{end} looked at"):
            pass
        make(store, f"{end} resumed", "completed")
    with store.run("open"):
        everything = store.runs.list()
        for status in backtrail.RunState:
            assert store.runs.list(status=status) == [run for run in everything if run.status.name == status]
        assert len({run.status.name for run in everything}) == 4


def test_runs_of_other_statuses_are_not_read(store, monkeypatch):
    for n in range(30):
        make(store, f"completed {n}", "completed")
    make(store, "failed", "failed")
    reads = []
    read = JournalThread.read
    monkeypatch.setattr(JournalThread, "read", lambda work, session: reads.append(work.id) or read(work, session))
    assert [run.session_id for run in store.runs.list(status="failed")] == ["failed"]
    assert reads == ["failed"]
    assert store.runs.recover() == []
    assert reads == ["failed"]


def test_runs_of_older_versions_are_listed_by_their_status(store):
    make(store, "s", "failed")
    journal = backtrail.Thread(store._engine, "journal", "s")
    journal.save(journal.load().state, kind="automatic")  # a row that says nothing of it
    assert [run.session_id for run in store.runs.list(status="failed")] == ["s"]
    assert store.runs.list(status="halted") == store.runs.recover() == []


# ---- what was cut short ---------------------------------------------------------------------------------------------


def test_runs_that_were_cut_short_are_recovered(store):
    for end in ("completed", "failed", "halted", "interrupted"):
        make(store, end, end)
    dead = store.run("dead", agent="b", lease=0.02)
    dead.__enter__()
    next(dead.iterations())
    dead._worker.lease.is_open = False  # its process is gone
    time.sleep(0.05)
    with store.run("alive"):
        assert [run.session_id for run in store.runs.recover()] == ["dead", "interrupted"]
        assert [run.session_id for run in store.runs.recover(agent="b")] == ["dead"]
        for run in store.runs.recover():
            with run:
                for i in run.iterations():
                    if run.session_id == "interrupted":
                        run.tool("t", abs, -i)
                    break
        assert store.runs.recover() == []
    assert {run.session_id for run in store.runs.list(status="completed")} == {
        "completed",
        "dead",
        "interrupted",
        "alive",
    }


def test_recovered_run_takes_the_given_options(store):
    make(store, "s", "interrupted")
    (run,) = store.runs.recover(strategy=backtrail.Never(), errors=[Cut], types=[Message])
    assert isinstance(run.strategy, backtrail.Never)
    with run:
        assert run.resumed


def test_runs_are_recovered_in_asyncio_too(tmp_path):
    async def main():
        async with aio.open(f"sqlite:///{tmp_path}/s.db") as store:
            with suppress(asyncio.CancelledError):
                async with store.run("s") as run:
                    async for _ in run.iterations():
                        raise asyncio.CancelledError
            for run in await store.runs.recover():
                async with run:
                    async for _ in run.iterations():
                        break
            assert (await store.runs.load("s")).status.name == "completed"
            assert await store.runs.recover() == []

    asyncio.run(main())


# ---- many threads ---------------------------------------------------------------------------------------------------


def test_messages_of_many_threads_go_to_the_conversation_once(tmp_path):
    with backtrail.open(f"sqlite:///{tmp_path}/s.db", durability="relaxed") as store:
        with store.run("s", agent="a", conversation="c") as run:
            for _ in run.iterations():

                def work(n):
                    for i in range(10):
                        run.message(Message.assistant(f"{n}.{i}"))
                        run.tool("t", abs, -(10 * n + i))

                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(work, range(4)))
                break
        assert sorted(said(store)) == sorted(f"{n}.{i}" for n in range(4) for i in range(10))
        assert [message.content for message in store.runs.load("s").messages] == said(store)
