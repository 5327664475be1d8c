"""Sessions of the Claude Agent SDK: each uuid is stored once, even if several writers append it."""

import asyncio
import os
import signal
import uuid

import pytest

import backtrail
from backtrail import Message, aio
from backtrail.adapters.claude import BacktrailSessionStore
from tests.conformance.base import chunks_read
from tests.support.sessions import KEY, SUB, appended, loaded, said, somewhere


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opener(request, tmp_path):
    with somewhere(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def durable(request, tmp_path):
    with somewhere(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


# -- each uuid once ---------------------------------------------------------------------------------


def test_uuid_is_stored_once(opener):
    one, two, mode = said("one"), said("two"), {"type": "mode", "mode": "plan"}
    with opener() as store:
        appended(store, one, mode, one)
        appended(store, one, mode, two)
        appended(store, {**two, "message": "said otherwise"})
        assert loaded(store) == [one, mode, mode, two]
        assert len(store.conversations.thread(BacktrailSessionStore.conversation_id(KEY))) == 2
    with opener() as store:  # another process, which has read nothing yet
        appended(store, two, one)
        assert loaded(store) == [one, mode, mode, two]
        appended(store, two, key=SUB)
        assert loaded(store, SUB) == [two]
        assert "summary" not in store.conversations.info(BacktrailSessionStore.conversation_id(SUB)).metadata


def test_rewound_uuid_can_be_appended_again(opener):
    one, two, three = said("one"), said("two"), said("three")
    with opener() as store:
        thread = store.conversations.thread(BacktrailSessionStore.conversation_id(KEY))
        for entry in (one, two, three):
            appended(store, entry)
        thread.rewind("@-")
        assert loaded(store) == [one, two]
        appended(store, two, three)
        assert loaded(store) == [one, two, three]


def test_fork_knows_the_uuids_before_it(opener):
    entries = [said(f"{n}") for n in range(4)]
    name = BacktrailSessionStore.conversation_id
    fork, cut = {**KEY, "session_id": "fork"}, {**KEY, "session_id": "cut"}
    with opener() as store:
        appended(store, *entries)
        store.conversations.thread(name(KEY)).fork(name(fork))
        store.conversations.fork(name(KEY), at=entries[1]["uuid"], new_id=name(cut))
        appended(store, *entries[1:], key=fork)
        appended(store, *entries[1:], key=cut)
        assert loaded(store, fork) == loaded(store, cut) == loaded(store) == entries
        found = asyncio.run(BacktrailSessionStore(store).list_sessions(KEY["project_key"]))
        assert sorted(each["session_id"] for each in found) == sorted(["cut", "fork", KEY["session_id"]])


def test_missing_index_and_summary_are_rebuilt(opener):
    entries = [said(f"{n}", gitBranch=f"branch {n}") for n in range(3)]
    name = BacktrailSessionStore.conversation_id(KEY)
    with opener() as store:
        sessions = BacktrailSessionStore(store)
        appended(store, *entries[:2])
        (before,) = asyncio.run(sessions.list_session_summaries(KEY["project_key"]))
        store.conversations.save(store.conversations.load(name))  # which knows nothing of the index
        assert store.conversations.thread(name).load().get("@claude") is None
        store.conversations.update(name, metadata={"mine": "1"})
        assert asyncio.run(sessions.list_session_summaries(KEY["project_key"])) == []
        appended(store, *entries)
        assert loaded(store) == entries
        (after,) = asyncio.run(sessions.list_session_summaries(KEY["project_key"]))
        assert after["data"] == {**before["data"], "git_branch": "branch 2"}
        assert store.conversations.info(name).metadata["mine"] == "1"
        store.conversations.thread(name).edit(
            lambda editor: editor.delete_at("messages[0]")
        )  # what is behind it has moved
        appended(store, *entries)
        assert loaded(store) == [*entries[1:], entries[0]]


def test_foreign_messages_are_not_entries(store):
    one, two = said("one"), said("two")
    name = BacktrailSessionStore.conversation_id(KEY)
    appended(store, one)
    store.conversations.append(name, Message.user("a note", id=two["uuid"]))
    appended(store, two, one)
    assert loaded(store) == [one, two]
    assert [message.content for message in store.conversations.load(name).messages] == ["one", "a note", "two"]


def test_append_to_a_long_session_is_cheap(durable):
    def entry(n):  # the same each time, and with it where chunks end
        return said(
            f"{n} " + f"{n * 7919 % 9973} " * 60,
            uuid=str(uuid.UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)),
        )

    with durable() as store:
        for start in range(0, 2000, 500):
            appended(store, *map(entry, range(start, start + 500)))
    with durable() as store:
        sessions = BacktrailSessionStore(store)
        thread = store.conversations.thread(sessions.conversation_id(KEY))
        with chunks_read(store) as asked:
            appended(store, entry(2000))
        assert len(asked) <= 10
        assert thread.load().stored < 12_000
        with chunks_read(store) as asked:
            appended(store, entry(2001))
        assert asked == []
        assert thread.load().stored < 1_500


# -- several processes ------------------------------------------------------------------------------


def forked(work):
    """Run a function in a child process; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not run the rest of pytest
        os._exit(1)


def test_two_processes_store_each_uuid_once(durable):
    batches = [[said(f"{n}"), {"type": "mode", "n": n}, said(f"and {n}", "assistant")] for n in range(25)]
    ready, go = os.pipe()

    def work():
        with durable() as store:
            os.read(ready, 1)
            for batch in batches:
                appended(store, *batch)

    pids = [forked(work), forked(work)]
    os.write(go, b"..")
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    with durable() as store:
        entries = loaded(store)
        (summary,) = asyncio.run(BacktrailSessionStore(store).list_session_summaries(KEY["project_key"]))
    known = [entry for entry in entries if "uuid" in entry]
    assert known == [entry for batch in batches for entry in batch if "uuid" in entry]
    modes = [entry["n"] for entry in entries if "uuid" not in entry]
    assert sorted(modes) == sorted([*range(25), *range(25)])
    assert summary["data"]["first_prompt"] == "0"


def test_appends_survive_a_kill(durable):
    batches = [[said(f"{n}"), said(f"and {n}", "assistant")] for n in range(2000)]
    told, tell = os.pipe()

    def work():
        with durable() as store:
            for batch in batches:
                appended(store, *batch)
                os.write(tell, b".")

    pid = forked(work)
    done = 0
    while done < 20:
        done += len(os.read(told, 1))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(tell)
    while os.read(told, 1):
        done += 1
    os.close(told)
    with durable() as store:
        there = loaded(store)
        assert len(there) in (2 * done, 2 * done + 2)  # all or none of the batch that was cut short
        assert done < len(batches)
        for batch in batches[done - 2 : done + 2]:
            appended(store, *batch)
        assert loaded(store) == [entry for batch in batches[: done + 2] for entry in batch]


def test_delete_retries_after_a_concurrent_append(store, monkeypatch):
    sessions = BacktrailSessionStore(store)
    appended(store, said("main"))
    appended(store, said("sub"), key=SUB)
    real, calls = aio.conversations.Conversations.delete, []

    async def meanwhile(self, name):
        found = await real(self, name)
        calls.append(name)
        if len(calls) == 1:
            await asyncio.create_task(sessions.append(KEY, [said("late")]))  # by a task outside of the transaction
        return found

    monkeypatch.setattr(aio.conversations.Conversations, "delete", meanwhile)
    asyncio.run(sessions.delete(KEY))
    assert calls == [sessions.conversation_id(KEY), sessions.conversation_id(SUB)] * 2
    assert loaded(store) is loaded(store, SUB) is None
