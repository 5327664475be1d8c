"""Sessions of the Claude Agent SDK: its own tests of stores, what users gain, and what is refused."""

import asyncio
import subprocess
import sys
import uuid
from collections import OrderedDict
from functools import partial
from pathlib import Path

import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk.testing import run_session_store_conformance
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail import AgentState, Conflict, Conversation, Corrupt, Invalid
from backtrail.adapters.claude import BacktrailSessionStore
from backtrail.adapters.claude.entries import owner_of
from tests.conformance.base import SECOND, Clock
from tests.support.exact import same
from tests.support.lengths import fewer
from tests.support.sessions import KEY, SUB, appended, loaded, said, somewhere


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def opener(request, tmp_path):
    with somewhere(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


# -- the protocol -----------------------------------------------------------------------------------


def test_appends_keep_call_order(opener):
    other = {**KEY, "session_id": "other"}

    async def main(store):
        sessions = BacktrailSessionStore(store)
        await asyncio.gather(
            sessions.append(KEY, [said(f"first {n}", at=n) for n in range(40)]),
            sessions.append(other, [said("elsewhere")]),
            sessions.append(KEY, [said("second")]),
            sessions.append(KEY, [said("third")]),
        )
        contents = [entry["message"]["content"] for entry in await sessions.load(KEY)]
        assert contents == [*(f"first {n}" for n in range(40)), "second", "third"]
        assert not sessions._locks

    with opener() as store:
        asyncio.run(main(store))


def test_claude_sdk_store_tests_pass(opener):
    made = []

    async def main(store):
        def make():
            for info in store.threads(kind="conversation"):
                store.conversations.delete(info.id)
            made.append(BacktrailSessionStore(store))
            return made[-1]

        await run_session_store_conformance(make)

    with opener() as store:
        asyncio.run(main(store))
    assert len(made) == 1 + 14  # the first is only read; the contract of a missing method makes none


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["user", "assistant", "tag", "summary", "x"])},
        optional={
            "uuid": JSON | st.uuids().map(str),
            "timestamp": JSON | st.just("9999-12-31T23:59:59-23:00"),
            "parentUuid": JSON,
            "customTitle": JSON,
            "aiTitle": JSON,
            "summary": JSON,
            "tag": JSON,
            "content": JSON,
            "message": JSON
            | st.fixed_dictionaries(
                {},
                optional={
                    "content": JSON
                    | st.lists(
                        st.dictionaries(
                            st.sampled_from(["type", "text", "id", "tool_use_id", "name", "input", "content"]),
                            JSON | st.sampled_from(["text", "tool_use", "tool_result"]),
                        )
                    ),
                    "usage": JSON | st.fixed_dictionaries({"output_tokens": JSON}),
                },
            ),
        },
    ),
    max_size=4,
)


@fewer(2)
@given(batches=st.lists(ENTRIES, max_size=3))
def test_any_json_entry_comes_back_unchanged(batches):
    async def main():
        async with BacktrailSessionStore("memory://") as sessions:
            for batch in batches:
                await sessions.append(KEY, batch)
            await sessions.list_session_summaries(KEY["project_key"])
            assert await sessions.store.conversations.list(KEY["project_key"]) is not None
            return await sessions.load(KEY)

    expected, seen = [], set()
    for entry in (entry for batch in batches for entry in batch):
        known = entry.get("uuid")
        if not isinstance(known, str) or not known or known not in seen:
            expected.append(entry)
            seen.add(known if isinstance(known, str) else None)
    assert same(asyncio.run(main()) or [], expected)


ODD = ["a", "a/b", "a~1b", "a~0b", "~h", "~", "/", "..", "%2F", "A", "\0", "\ud800", "😀", "x" * 160, "x" * 161]
ODD += ["x" * 512, "x" * 513, "x" * 600, "~h" + "0" * 64, "/" * 81]


def test_different_keys_have_different_conversations():
    keys = [{"project_key": p, "session_id": s} for p in ODD for s in ODD]
    keys += [{**key, "subpath": subpath} for key in keys for subpath in ODD]
    ids = [BacktrailSessionStore.conversation_id(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert all(1 <= len(name) <= 512 for name in ids)
    long = "x" * 600
    assert len({owner_of(name) for name in [*ODD, owner_of(long)]}) == len(ODD) + 1


def test_odd_names_of_sessions_and_subagents_are_listed(opener):
    async def main(sessions):
        for name in ODD:
            await sessions.append({"project_key": name, "session_id": "only"}, [said(name)])
        for name in ODD:
            await sessions.append({"project_key": "p", "session_id": name}, [said(name)])
            await sessions.append({"project_key": "p", "session_id": "a", "subpath": name}, [said(name)])
        for name in ODD:
            assert [each["session_id"] for each in await sessions.list_sessions(name)] == ["only"]
        assert sorted(each["session_id"] for each in await sessions.list_sessions("p")) == sorted(ODD)
        assert sorted(each["session_id"] for each in await sessions.list_session_summaries("p")) == sorted(ODD)
        assert sorted(await sessions.list_subkeys({"project_key": "p", "session_id": "a"})) == sorted(ODD)
        assert await sessions.list_subkeys({"project_key": "p", "session_id": "a/b"}) == []
        await sessions.delete({"project_key": "p", "session_id": "a"})
        assert len(await sessions.list_sessions("p")) == len(ODD) - 1
        assert await sessions.list_subkeys({"project_key": "p", "session_id": "a"}) == []

    with opener() as store:
        asyncio.run(main(BacktrailSessionStore(store)))


def test_fork_with_long_name_keeps_its_name(store):
    one, two = ({"project_key": "p", "session_id": letter * 200} for letter in "xy")
    sessions = BacktrailSessionStore(store)
    appended(store, said("hi"), key=one)
    store.conversations.thread(sessions.conversation_id(one)).fork(sessions.conversation_id(two))
    assert [each["session_id"] for each in asyncio.run(sessions.list_sessions("p"))] == [one["session_id"]]
    assert loaded(store, two) == loaded(store, one)


def test_mtime_is_the_write_time_in_milliseconds(store):
    clock = Clock(store, now=1_800_000_000_123_456)
    appended(store, said("hi", timestamp="2020-01-01T00:00:00Z"))
    sessions = BacktrailSessionStore(store)
    assert asyncio.run(sessions.list_sessions(KEY["project_key"]))[0]["mtime"] == 1_800_000_000_123
    clock.now += SECOND
    appended(store, said("there"))
    assert asyncio.run(sessions.list_sessions(KEY["project_key"]))[0]["mtime"] == 1_800_000_001_123
    assert asyncio.run(sessions.list_session_summaries(KEY["project_key"]))[0]["mtime"] == 1_800_000_001_123


def test_sdk_functions_work_with_the_store(opener, tmp_path):
    async def main(sessions):
        project = sdk.project_key_for_directory(tmp_path)
        key = {"project_key": project, "session_id": KEY["session_id"]}
        first, second = said("Where to?"), said("Naxos.", "assistant")
        second["parentUuid"] = first["uuid"]
        await sessions.append(key, [first, second])
        await sdk.rename_session_via_store(sessions, key["session_id"], "Islands", directory=str(tmp_path))
        await sdk.tag_session_via_store(sessions, key["session_id"], "travel", directory=str(tmp_path))
        (info,) = await sdk.list_sessions_from_store(sessions, directory=str(tmp_path))
        assert (info.summary, info.first_prompt, info.tag) == ("Islands", "Where to?", "travel")
        fork = await sdk.fork_session_via_store(sessions, key["session_id"], directory=str(tmp_path))
        found = await sdk.get_session_messages_from_store(sessions, fork.session_id, directory=str(tmp_path))
        assert [message.type for message in found] == ["user", "assistant"]
        assert len(await sdk.list_sessions_from_store(sessions, directory=str(tmp_path))) == 2
        await sdk.delete_session_via_store(sessions, key["session_id"], directory=str(tmp_path))
        (left,) = await sdk.list_sessions_from_store(sessions, directory=str(tmp_path))
        assert left.session_id == fork.session_id

    with opener() as store:
        asyncio.run(main(BacktrailSessionStore(store)))


def test_sdk_listing_loads_no_session(store, monkeypatch, tmp_path):
    sessions = BacktrailSessionStore(store)
    project = sdk.project_key_for_directory(tmp_path)
    for n in range(3):
        appended(store, said(f"prompt {n}"), key={"project_key": project, "session_id": str(uuid.uuid4())})
    monkeypatch.setattr(BacktrailSessionStore, "load", None)
    found = asyncio.run(sdk.list_sessions_from_store(sessions, directory=str(tmp_path)))
    assert sorted(each.summary for each in found) == ["prompt 0", "prompt 1", "prompt 2"]


# -- what users gain --------------------------------------------------------------------------------


def test_session_is_a_searchable_conversation(opener):
    use = {"type": "tool_use", "id": "toolu_1", "name": "ferries", "input": {"to": "Naxos"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "42 euros"}]}
    entries = [
        said("What does the ferry to Naxos cost?"),
        said("", "assistant", message={"content": [{"type": "thinking", "thinking": "secret"}, use], "usage": None}),
        said("", message={"role": "user", "content": [result]}),
        said("Some 42.", "assistant", message={"content": "Some 42.", "usage": {"output_tokens": 5}}),
        {"type": "file-history-snapshot", "snapshot": {}},
    ]
    name = BacktrailSessionStore.conversation_id(KEY)
    with opener() as store:
        for entry in entries:
            appended(store, entry)
        talk = store.conversations.load(name)
        assert [str(message.role) for message in talk.messages] == ["user", "assistant", "tool", "assistant", "system"]
        assert [message.content for message in talk.messages] == [
            "What does the ferry to Naxos cost?",
            "",
            "42 euros",
            "Some 42.",
            "",
        ]
        assert talk.messages[1].tool_calls[0].arguments == {"to": "Naxos"}
        assert (talk.messages[2].metadata["tool_call_id"], talk.messages[3].tokens) == ("toolu_1", 5)
        assert [message.raw for message in talk.messages] == entries
        (info,) = store.conversations.list(KEY["project_key"])
        assert (info.title, info.message_count) == ("What does the ferry to Naxos cost?", 5)
        assert [hit.message_id for hit in store.search("euros", agent=KEY["project_key"])] == [entries[2]["uuid"]]
        assert store.search("secret") == []
        assert "+ messages[3]" in str(store.conversations.thread(name).diff(3, 4))
        store.agents.save(AgentState(KEY["project_key"], "Trips", "claude"))
        checkpoint = store.agents.checkpoint(KEY["project_key"], "good")
        appended(store, said("bad"))
        store.agents.restore(checkpoint.id)
        assert loaded(store) == entries


@pytest.mark.parametrize(
    ("entries", "title"),
    [
        ([said("first"), said("second")], "first"),
        ([said("<command>x</command>"), said("meta", isMeta=True), said("third")], "third"),
        ([said("first"), {"type": "ai-title", "aiTitle": "by the model"}, said("second")], "by the model"),
        ([{"type": "ai-title", "aiTitle": "one"}, {"type": "ai-title", "aiTitle": "two"}], "two"),
        ([{"type": "custom-title", "customTitle": "mine"}, {"type": "ai-title", "aiTitle": "no"}], "mine"),
        ([said("x" * 60)], "x" * 47 + "..."),
        ([{"type": "mode"}], None),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_title_prefers_user_then_model_then_first_message(store, entries, title, together):
    for batch in [entries] if together else [[entry] for entry in entries]:
        appended(store, *batch)
    assert store.conversations.info(BacktrailSessionStore.conversation_id(KEY)).title == title


def test_session_tag_is_the_conversation_tag(store):
    name = BacktrailSessionStore.conversation_id(KEY)
    appended(store, said("hi"), {"type": "tag", "tag": "travel"})
    assert [info.id for info in store.conversations.list(KEY["project_key"], tag="travel")] == [name]
    appended(store, {"type": "tag", "tag": ""})
    assert store.conversations.info(name).tags == ()


def test_adapter_closes_only_its_own_store(tmp_path):
    async def main():
        async with backtrail.aio.open(tmp_path / "a.db") as given:
            async with BacktrailSessionStore(given) as sessions:
                await sessions.append(KEY, [said("hi")])
            assert len(await BacktrailSessionStore(given).load(KEY)) == 1
        async with BacktrailSessionStore(tmp_path / "a.db") as own:
            assert len(await own.load(KEY)) == 1
        with pytest.raises(backtrail.Error):
            await own.load(KEY)

    asyncio.run(main())


# -- what is refused --------------------------------------------------------------------------------

UNFIT = {
    "a tuple": ([{"type": "x", "a": [{"b": (1,)}]}], "entries[0]['a'][0]['b']"),
    "bytes": ([said("fine"), {"type": "x", "a": b""}], "entries[1]['a']"),
    "nan": ([{"type": "x", "a": float("nan")}], "entries[0]['a']"),
    "a key that is no text": ([{"type": "x", 1: 2}], "entries[0][1]"),
    "no dict": ([said("fine"), "text"], "entries[1]"),
    "a dict of another kind": ([OrderedDict(type="x")], "entries[0]"),
    "an object": ([{"type": "x", "a": object()}], "entries[0]['a']"),
}


@pytest.mark.parametrize(("entries", "path"), UNFIT.values(), ids=UNFIT)
def test_entry_that_is_not_json_is_refused(store, entries, path):
    with pytest.raises(Invalid) as caught:
        appended(store, *entries)
    assert caught.value.path == path
    assert loaded(store) is None
    assert not list(store.threads(kind="conversation"))


BAD_KEYS = [
    None,
    "p/s",
    {},
    {"project_key": "p"},
    {"session_id": "s"},
    {"project_key": "", "session_id": "s"},
    {"project_key": "p", "session_id": ""},
    {"project_key": "p", "session_id": 7},
    {"project_key": None, "session_id": "s"},
    {**KEY, "subpath": ""},
    {**KEY, "subpath": 7},
    {**KEY, "tenant": "t"},
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_malformed_key_is_refused_by_every_call(store, key):
    sessions = BacktrailSessionStore(store)
    for call in (sessions.append(key, [said("x")]), sessions.load(key), sessions.delete(key)):
        with pytest.raises(Invalid, match="key"):
            asyncio.run(call)
    with pytest.raises(Invalid, match="key"):
        asyncio.run(sessions.list_subkeys(key))
    assert not list(store.threads(kind="conversation"))


def test_other_bad_arguments_are_refused(store):
    sessions = BacktrailSessionStore(store)
    with pytest.raises(Invalid, match="entries must be a list"):
        asyncio.run(sessions.append(KEY, said("x")))
    with pytest.raises(Invalid, match="subpath"):
        asyncio.run(sessions.list_subkeys(SUB))
    with pytest.raises(Invalid, match="project_key"):
        asyncio.run(sessions.list_sessions(""))
    with pytest.raises(Invalid, match="a store or its URL"):
        BacktrailSessionStore(7)


def test_a_conversation_of_another_agent_is_not_written_to(store):
    store.conversations.save(Conversation("somebody", id=BacktrailSessionStore.conversation_id(KEY)))
    with pytest.raises(Conflict, match="somebody"):
        appended(store, said("x"))


def test_missing_extra_is_named():
    code = "import sys; sys.modules['claude_agent_sdk'] = None; import backtrail.adapters.claude"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(backtrail.__file__).parent.parent)},
    )
    assert "pip install 'backtrail[claude]'" in done.stderr.splitlines()[-1]


CRAFTED = {
    "no list of messages": lambda state: {**state, "messages": {"a": 1}},
    "no messages": lambda state: {**state, "messages": [1]},
    "an entry that is none": lambda state: {**state, "messages": [{**state["messages"][0], "raw": ["x"]}]},
    "no state": lambda _: ["x"],
}


@pytest.mark.parametrize("craft", CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_state_is_corrupt(store, craft):
    sessions = BacktrailSessionStore(store)
    thread = store.conversations.thread(sessions.conversation_id(KEY))
    appended(store, said("hi"))
    thread.save(craft(thread.load().state))
    with pytest.raises(Corrupt):
        loaded(store)
    assert len(asyncio.run(sessions.list_sessions(KEY["project_key"]))) == 1
    asyncio.run(sessions.list_session_summaries(KEY["project_key"]))


@pytest.mark.parametrize("craft", [CRAFTED["no list of messages"], CRAFTED["no state"]])
def test_a_crafted_state_is_not_appended_to(store, craft):
    thread = store.conversations.thread(BacktrailSessionStore.conversation_id(KEY))
    appended(store, said("hi"))
    before = thread.save(craft(thread.load().state))
    with pytest.raises((Corrupt, Invalid)):
        appended(store, said("x"))
    assert thread.load() == before


def _set(path, value, editor):
    editor.set(path, value)


def test_crafted_payload_and_index_are_harmless(store):
    thread = store.conversations.thread(BacktrailSessionStore.conversation_id(KEY))
    one, two = said("one"), {**said("two"), "__reduce__": ["os.system", ["false"]], "py/object": "os.system"}
    appended(store, one, two)
    for crafted in ({"uuids": {one["uuid"]: "x"}, "title": 0}, {"uuids": {one["uuid"]: 1}, "title": 0}, {"uuids": 7}):
        thread.edit(partial(_set, "@claude", crafted))
        appended(store, one, two)
        assert loaded(store) == [one, two]
    for text in ("no json", "[1]", "7"):
        thread.edit(partial(_set, ("metadata", "summary"), text))
        assert asyncio.run(BacktrailSessionStore(store).list_session_summaries(KEY["project_key"])) == []
