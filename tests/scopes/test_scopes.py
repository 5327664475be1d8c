"""A scoped store shows what a store that holds only its agents would show, over every operation of the table."""

import asyncio
import os
import re
import warnings
from contextlib import contextmanager

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backtrail
from backtrail import AgentState, Conversation, Message, aio
from backtrail.backends.port import Batch, NewThread
from backtrail.operations import TABLE, Effect
from backtrail.scope import ReadOnlyBackend, ScopedBackend
from tests.support import servers

CHUNKS = ("chunks", "payload_bytes", "stored_bytes", "sharing")
"""Figures of chunks, which all agents of a store share."""


class _Dies(BaseException):
    pass


def die():
    raise _Dies


def run_in_doubt(store, name):
    try:
        with store.run(name, agent=name[0]) as run:
            for _ in run.iterations():
                run.tool("charge", die, irreversible=True)
    except _Dies:
        pass
    (call,) = store.runs.load(name).in_doubt
    return call.id


def story(me):
    """Every operation of the table on the things of one agent; a generator that gets each answer."""
    trip = {"thread_id": f"{me}-trip"}
    yield "agent_save", {"agent_id": me, "name": "A", "agent_type": "m", "custom_state": {"n": 1}}
    for n in range(3):
        yield "thread_save", {**trip, "agent_id": me, "state": {"n": n, "messages": [{"content": f"word{n} shared"}]}}
    point = yield "checkpoint_create", {"agent_id": me, "name": "first"}
    said = [{"role": "user", "content": f"hello shared {n}", "id": f"m{n}"} for n in range(3)]
    yield "conversation_save", {"agent_id": me, "conversation_id": f"{me}-talk", "messages": said, "tags": ["t"]}
    yield "thread_rewind", {**trip, "ref": "@-"}
    yield "thread_undo", trip
    yield "thread_redo", {**trip, "expect": "other"}
    yield "thread_redo", trip
    yield "thread_label", {**trip, "label": "named"}
    yield "thread_tag", {**trip, "tags": ["x"]}
    yield "thread_untag", {**trip, "tags": ["x"]}
    yield "thread_fork", {**trip, "new_id": f"{me}-fork", "ref": "@-"}
    call = yield "in doubt", {"run_id": f"{me}-run"}
    yield from reads(me, point.get("checkpoint_id", ""))
    yield "run_settle", {"run_id": f"{me}-run", "call_id": call, "result": 7}
    yield "checkpoint_restore", {"checkpoint_id": point.get("checkpoint_id", "")}
    yield "agent_undo", {"agent_id": me}
    yield "prune", {"keep_last": 1, "keep_labelled": False}
    yield "checkpoint_delete", {"checkpoint_id": point.get("checkpoint_id", "")}
    yield "conversation_delete", {"conversation_id": f"{me}-talk"}
    yield "erase", {"ids": [f"{me}-talk"], "kind": "conversation"}
    yield "erase", {"ids": ["b-talk"], "kind": "conversation"}
    yield "erase", {"ids": [f"{me}-run"], "kind": "run"}
    yield "thread_delete", {"thread_id": f"{me}-fork"}
    yield from reads(me, "")
    yield "agent_delete", {"agent_id": me}
    yield "erase", {"ids": ["b"], "kind": "agent"}
    yield from reads(me, "")


def reads(me, point):
    for kind in ("thread", "agent", "conversation", "run"):
        yield "thread_list", {"kind": kind}
        yield "thread_list", {"kind": kind, "limit": 1}
        yield "thread_list", {"kind": kind, "agent_id": me}
        yield "thread_list", {"kind": kind, "agent_id": "b"}
    for who in (me, "b"):
        for name, kind in ((f"{who}-trip", "thread"), (f"{who}-talk", "conversation"), (who, "agent")):
            thread = {"thread_id": name, "kind": kind}
            for operation in ("thread_show", "thread_history", "thread_log", "thread_state", "thread_diff"):
                yield operation, thread
            shown = yield "thread_checkpoint", {**thread, "ref": "@"}
            yield "checkpoint_show", {"checkpoint_id": shown.get("checkpoint_id", "0" * 24)}
        yield "agent_load", {"agent_id": who}
        yield "checkpoint_list", {"agent_id": who}
        yield "conversation_load", {"conversation_id": f"{who}-talk"}
        yield "conversation_messages", {"conversation_id": f"{who}-talk", "limit": 2}
        yield "conversation_list", {"agent_id": who}
        yield "conversation_search", {"query": "shared", "agent_id": who}
        yield "run_status", {"run_id": f"{who}-run"}
        yield "prune_plan", {"keep_last": 1, "agent_id": who}
    yield "checkpoint_info", {"checkpoint_id": point or "0" * 24}
    yield "conversation_list", {}
    yield "conversation_search", {"query": "shared"}
    yield "search", {"query": "shared"}
    yield "search", {"query": "shared", "order": "score"}
    yield "run_list", {}
    yield "activity", {}
    yield "activity", {"agent_id": "b"}
    yield "agent_list", {}
    yield "prune_plan", {"keep_last": 1}
    yield "persistence_stats", {}
    yield "verify", {}


def answer(store, name, arguments):
    if name == "in doubt":
        return run_in_doubt(store, arguments["run_id"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", backtrail.Irreversible)
            result = TABLE[name](store, arguments)
    except backtrail.Error as error:
        return {"error": error.code, "says": str(error)}
    jsonschema.validate(result, TABLE[name].result)
    return result


class Plain:
    """Answers without what differs between two stores: ids by first appearance, no times, no cursors, no chunks."""

    def __init__(self):
        self._ids = {}

    def __call__(self, value):
        if isinstance(value, dict):
            return {
                # a time takes two bytes less if its microseconds are few, so sizes differ by chance
                key: bool(each) if key.endswith(("cursor", "bytes")) or key == "size" else self(each)
                for key, each in value.items()
                if key not in CHUNKS
            }
        if isinstance(value, list):
            return [self(each) for each in value]
        if isinstance(value, str):
            value = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00)?", "TIME", value)
            value = re.sub(r"blake3:[0-9a-f]{64}", "ROOT", value)
            return re.sub(r"[0-9a-f]{24}|[0-9a-f]{16}", lambda found: self._name(found[0]), value)
        return value

    def _name(self, found):
        return self._ids.setdefault(found, f"ID{len(self._ids)}")


def told(store, steps, me):
    """Play a story on a store; give each question with its answer."""
    plain, result = Plain(), None
    while True:
        try:
            name, arguments = steps.send(result)
        except StopIteration:
            return
        result = answer(store, name, arguments)
        yield name, plain(result), plain(arguments)


@contextmanager
def stores(kind, tmp_path):
    if kind == "postgres":
        with servers.place() as opened, opened() as store:
            yield store
    else:
        url = {"memory": "memory://", "sqlite": str(tmp_path / "a.db"), "file": f"file://{tmp_path}/files"}[kind]
        with backtrail.open(url, durability="relaxed") as store:
            yield store


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.torture) for kind in ("memory", "file", "postgres"))]
)
def test_scope_shows_what_a_store_of_its_own_would(kind, tmp_path):
    with stores(kind, tmp_path) as shared, backtrail.open("memory://") as alone:
        shared.thread("unowned").save({"messages": [{"content": "shared by nobody"}]})
        others = told(shared.scoped("b"), story("b"), "b")
        for _ in range(25):  # the other agent has threads, a conversation, a run and a checkpoint from the beginning
            next(others)
        names = set()
        for mine, wanted in zip(told(shared.scoped("a"), story("a"), "a"), told(alone, story("a"), "a"), strict=True):
            names.add(mine[0])
            assert mine == wanted
            next(others, None)
        assert names - {"in doubt"} == set(TABLE)
        assert shared.thread("unowned").load().state["messages"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_two_agents_are_a_scope(kind, tmp_path):
    with stores(kind, tmp_path) as shared, backtrail.open("memory://") as alone:
        for store, agents in ((shared, "xyz"), (alone, "xy")):
            for agent in agents:
                store.agents.save(AgentState(agent, agent, "m"))
                store.conversations.append(f"{agent}-talk", Message.user("hello", id="m"), agent_id=agent)
                store.agents.checkpoint(agent, "p")
        scoped = shared.scoped(["x", "y"])
        for name in ("agent_list", "conversation_list", "persistence_stats", "thread_list"):
            assert Plain()(answer(scoped, name, {})) == Plain()(answer(alone, name, {}))
        assert Plain()(answer(scoped, "search", {"query": "hello"})) == Plain()(
            answer(alone, "search", {"query": "hello"})
        )
        assert [each["agent_id"] for each in answer(scoped, "agent_list", {"limit": 1})["agents"]] == ["y"]
        with pytest.raises(backtrail.Unavailable, match="a thread without an agent is outside"):
            scoped.thread("new").save({})
        scoped.thread("new", agent="y").save({})
        assert scoped.scoped("x").info("new") is None
        assert scoped.scoped("y").info("new") is not None


# -- what is outside cannot be touched ------------------------------------------------------------------


@pytest.fixture
def shared():
    with backtrail.open("memory://") as store:
        for agent in "ab":
            store.agents.save(AgentState(agent, agent, "m"))
            store.conversations.save(Conversation(agent, id=f"{agent}-talk", messages=[Message.user("hi", id="m")]))
            store.thread(f"{agent}-trip", agent=agent).save({"n": 1})
            store.thread(f"{agent}-trip", agent=agent).save({"n": 2})
            store.agents.checkpoint(agent, "p")
            run_in_doubt(store.scoped(agent), f"{agent}-run")
        yield store


def contents(store):
    return [
        (info.id, info.kind, info.agent, [(each.id, each.tags, each.state) for each in thread.history(everything=True)])
        for kind in ("thread", "agent", "conversation", "run")
        for info in store.threads(kind=kind, agent="b")
        for thread in [
            {"thread": store.thread, "agent": store.agents.thread, "conversation": store.conversations.thread}.get(
                kind, store.runs.thread
            )(info.id)
        ]
    ] + [each.id for each in store.agents.checkpoints("b")]


IDS = st.sampled_from(["a", "b", "a-trip", "b-trip", "a-talk", "b-talk", "a-run", "b-run", "new"])


def arguments_for(operation):
    """Random arguments of an operation that name things of both agents."""

    def one(name, schema):
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        words = {"integer": st.integers(0, 3), "boolean": st.booleans(), "object": st.just({})}
        words["array"] = st.lists(IDS, min_size=1, max_size=2)
        words["string"] = st.sampled_from(["@", "@-", "1", "hi"]) if name in ("ref", "a", "b") else IDS
        return words.get(schema.get("type"), st.just({"n": 9}))

    required = {name: one(name, operation.schema["properties"][name]) for name in operation.schema["required"]}
    rest = {
        name: one(name, schema)
        for name, schema in operation.schema["properties"].items()
        if name not in required and name not in ("messages", "cursor", "expect")
    }
    return st.fixed_dictionaries(required, optional=rest)


CALLS = st.lists(
    st.sampled_from([*TABLE.values()]).flatmap(lambda each: st.tuples(st.just(each.name), arguments_for(each))),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(calls=CALLS)
def test_no_call_in_a_scope_sees_or_changes_other_agents(calls):
    with backtrail.open("memory://") as store:
        for agent in "ab":
            store.agents.save(AgentState(agent, agent, "m"))
            store.conversations.save(Conversation(agent, id=f"{agent}-talk", messages=[Message.user("hi", id="m")]))
            store.thread(f"{agent}-trip", agent=agent).save({"n": 1, "secret": f"secret of {agent}"})
            store.thread(f"{agent}-trip", agent=agent).save({"n": 2})
            store.agents.checkpoint(agent, "p")
            run_in_doubt(store.scoped(agent), f"{agent}-run")
        points = [each.id for each in store.agents.checkpoints("b")]
        before, scoped = contents(store), store.scoped("a")
        for name, arguments in calls:
            named = {key: points[0] if key == "checkpoint_id" else value for key, value in arguments.items()}
            result = str(answer(scoped, name, named))
            assert "secret of b" not in result
        assert contents(store) == before


def test_scope_cannot_name_another_agent(shared):
    scoped = shared.scoped("a")
    (point,) = shared.agents.checkpoints("b")
    before = contents(shared)
    head = shared.thread("b-trip").latest()
    assert scoped.info("b-trip") is None
    assert scoped.checkpoint(head.id) is None
    assert scoped.agents.get_checkpoint(point.id) is None
    assert not scoped.agents.delete("b")
    assert not scoped.thread("b-trip").delete()
    assert not scoped.conversations.delete("b-talk")
    for work, code in (
        (lambda: scoped.agents.restore(point.id), "not_found.checkpoint"),
        (lambda: scoped.thread("b-trip").rewind("@-"), "not_found.thread"),
        (lambda: scoped.thread("b-trip").tag("@", "x"), "not_found.thread"),
        (lambda: scoped.thread("a-trip").load(head.id), "not_found.checkpoint"),
        (lambda: scoped.thread("b-trip").save({}), "conflict.taken"),
        (lambda: scoped.thread("new", agent="b").save({}), "unavailable.scope"),
        (lambda: scoped.agents.save(AgentState("b", "B", "m"), replace=True), "unavailable.scope"),
        (lambda: scoped.agents.save(AgentState("c", "C", "m")), "unavailable.scope"),
        (lambda: scoped.conversations.append("new", Message.user("x"), agent_id="b"), "unavailable.scope"),
        (lambda: scoped.scoped("b"), "unavailable.scope"),
        (lambda: scoped.scoped(["a", "b"]), "unavailable.scope"),
        (scoped.gc, "unavailable.scope"),
        (scoped.reindex, "unavailable.scope"),
        (lambda: shared.scoped([]), "invalid.argument"),
        (lambda: shared.scoped(7), "invalid.argument"),
    ):
        with pytest.raises(backtrail.Error) as caught:
            work()
        assert caught.value.code == code
    assert contents(shared) == before


def test_new_threads_belong_to_the_agent_of_the_scope(shared):
    scoped = shared.scoped("a")
    scoped.thread("new").save({"x": 1})
    with scoped.run("new-run") as run:
        for _ in run.iterations():
            run.tool("t", lambda: 1)
            run.halt("done")
    assert shared.info("new").agent == "a"
    assert shared.runs.load("new-run").agent == "a"


def test_deleted_id_is_taken_until_its_checkpoints_are_collected(shared, tmp_path):
    secret = os.urandom(64)  # compression leaves it as it is
    shared.thread("secret", agent="b").save({"key": secret})
    shared.export(tmp_path / "whole")
    assert secret in (tmp_path / "whole").read_bytes()
    shared.thread("secret").delete()
    with pytest.raises(backtrail.Conflict, match="taken"):  # the old rows would become rows of the new owner
        shared.scoped("a").thread("secret").save({"mine": True})
    shared.scoped("a").export(tmp_path / "before")
    shared.gc()
    shared.scoped("a").thread("secret").save({"mine": True})
    shared.scoped("a").export(tmp_path / "after")
    assert secret not in (tmp_path / "before").read_bytes() + (tmp_path / "after").read_bytes()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file", "postgres"])
@pytest.mark.parametrize("space", ["thread", "conversation"])
def test_reused_id_brings_no_rows_of_its_former_agent(kind, space, tmp_path):
    secret = os.urandom(64)

    def thread(store, agent):
        return store.thread("x", agent=agent) if space == "thread" else store.conversations.thread("x", agent_id=agent)

    def state(value):
        return {"key": value} if space == "thread" else Conversation("b", id="x", metadata={"key": value.hex()})

    with stores(kind, tmp_path) as shared, backtrail.open("memory://") as alone:
        theirs = thread(shared, "b").save(state(secret), label="theirs", tags=["theirs"])
        thread(shared, "b").save(state(secret + b"2"))
        thread(shared, "b").rewind(theirs)
        thread(shared, "b").delete()
        for store in (shared, alone):  # the whole store hands the id on before gc has run
            thread(store, "a").save(state(b"mine"))
            thread(store, "a").save(state(b"mine, too"))
            thread(store, "a").delete_checkpoint("@-")
        scoped = shared.scoped("a")
        assert Plain()(answer(scoped, "persistence_stats", {})) == Plain()(answer(alone, "persistence_stats", {}))
        backend = scoped._backend
        no = backend.find_thread(space, "x").no
        assert not backend.tags(no)
        assert theirs.id not in [each.id for each in thread(scoped, "a").history(everything=True)]
        assert [row.label for row in backend.rows(no, [(1, 99)], limit=2)] == [None, None]
        assert {row.label for row in backend.rows_of([(no, 1, 99)]).values()} == {None}
        scoped.export(tmp_path / "part")
        shared.export(tmp_path / "whole")
        needle = secret if space == "thread" else secret.hex().encode()
        assert needle not in (tmp_path / "part").read_bytes()
        with backtrail.open("memory://") as other:
            other.import_(tmp_path / "part")
            assert thread(other, "a").load().state == thread(scoped, "a").load().state
            assert other.verify().ok
        assert scoped.verify().ok


def test_own_deleted_rows_can_be_restored_in_a_scope(shared):
    scoped = shared.scoped("a")
    point = scoped.agents.checkpoint("a", "with the talk")
    scoped.conversations.delete("a-talk")
    scoped.conversations.save(Conversation("a", id="a-talk", messages=[Message.user("begun again", id="m")]))
    scoped.agents.restore(point)
    assert scoped.conversations.load("a-talk").messages[0].content == "hi"
    scoped.agents.undo("a")
    assert scoped.conversations.load("a-talk").messages[0].content == "begun again"
    scoped.agents.restore(point)
    scoped.agents.delete_checkpoint(point)
    shared.gc()
    assert scoped.conversations.load("a-talk").messages[0].content == "hi"
    assert scoped.verify().ok


def test_deleted_id_of_another_agent_cannot_spoil_its_checkpoint(shared):
    shared.conversations.save(Conversation("b", id="b-note", messages=[Message.user("hidden treasure")]))
    point = shared.agents.checkpoint("b", "with the note")
    shared.conversations.delete("b-note")
    shared.gc()
    with pytest.raises(backtrail.Conflict, match="taken"):
        shared.scoped("a").conversations.save(Conversation("a", id="b-note"))
    shared.scoped("b").agents.restore(point)
    assert shared.conversations.load("b-note").messages[0].content == "hidden treasure"


def test_deleted_id_can_be_used_by_another_agent(shared):
    shared.thread("b-trip").delete()
    shared.gc()
    made = shared.scoped("a").thread("b-trip").save({"mine": True})
    assert shared.info("b-trip").agent == "a"
    assert [each.id for each in shared.scoped("a").thread("b-trip").history(everything=True)] == [made.id]
    assert shared.scoped("b").info("b-trip") is None


def test_old_index_shows_no_message_of_a_former_agent():
    with backtrail.open("memory://") as store:
        store.conversations.append("c", backtrail.Message("user", "hidden treasure"), agent_id="b")
        store.index()
        store.conversations.delete("c")
        store.conversations.append("c", backtrail.Message("user", "another owner"), agent_id="a")
        hits = store.scoped("a").search("treasure", wait=False)
        assert ([*hits], hits.behind) == ([], 1)


def test_notes_belong_to_the_owner_of_their_thread(shared):
    scoped = shared.scoped("a")
    with pytest.raises(backtrail.Unavailable, match="scope"):  # else the notes of b would become a's to read
        scoped.thread("b-trip", agent="a", aside=True).save({"planted": True})
    shared.thread("b-trip", agent="a", aside=True).save({"note": "hidden treasure"})
    assert scoped.thread("b-trip", aside=True).latest() is None
    assert [*scoped.threads(kind="aside", agent="a", prefix="b-trip")] == []
    assert [*scoped.threads(kind="aside", prefix="b-trip")] == []
    assert shared.scoped("b").thread("b-trip", aside=True).latest() is not None


def test_notes_of_another_agent_make_an_id_taken(shared):
    shared.scoped("a").thread("later", aside=True).save({"planted": True})
    with pytest.raises(backtrail.Conflict, match="taken"):
        shared.scoped("b").thread("later").save({"n": 1})
    shared.scoped("a").thread("later").save({"n": 1})


def test_transaction_in_a_scope_stays_inside(shared):
    scoped = shared.scoped("a")
    with scoped.transaction():
        scoped.thread("a-trip").save({"n": 3})
        scoped.conversations.append("a-talk", Message.user("more"))
        assert scoped.info("b-trip") is None
    assert shared.thread("a-trip").load().state == {"n": 3}
    with pytest.raises(backtrail.Conflict), scoped.transaction():
        scoped.thread("a-trip").save({"n": 4})
        scoped.thread("b-trip").save({"n": 4})
    assert shared.thread("a-trip").load().state == {"n": 3}


def test_watch_in_a_scope_gives_its_own_news(shared):
    with shared.scoped("a").watch(timeout=0.2) as news:
        shared.thread("b-trip").save({"n": 3})
        shared.thread("a-trip").save({"n": 3})
        assert [each.thread_id for each in news] == ["a-trip"]


def test_read_only_scope_refuses_every_change(shared):
    before = contents(shared)
    for store in (shared.scoped(read_only=True), shared.scoped("a", read_only=True).scoped("a")):
        assert store.search("hi")  # messages that are not in the index yet
        assert answer(store, "persistence_stats", {})["agents"] >= 1
        for name, operation in TABLE.items():
            if operation.effect is not Effect.READ:
                arguments = {each: "a-trip" for each in operation.schema["required"] if each != "tags"}
                arguments |= {"tags": ["x"]} if "tags" in operation.schema["required"] else {}
                result = answer(store, name, arguments | ({"keep_last": 1} if name == "prune" else {}))
                assert "error" in result or not result.get("deleted", result.get("count", 0)), name
        with pytest.raises(backtrail.Unavailable, match="for reading only") as caught:
            store.thread("a-trip").save({})
        assert caught.value.code == "unavailable.read_only"
    assert contents(shared) == before
    shared.thread("a-trip").save({"n": 5})


def test_closing_a_scope_leaves_the_store_open(shared):
    shared.scoped("a").close()
    shared.scoped(read_only=True).close()
    assert shared.thread("a-trip").load().state == {"n": 2}


def test_commit_checks_every_thread_of_a_batch(shared):
    below = shared._backend
    scoped = ScopedBackend(below, ("a",))
    other = below.find_thread("thread", "b-trip")
    for batch in (
        Batch(hide=((other.no, 1),)),
        Batch(tag=((other.no, 1, "x"),)),
        Batch(untag=((other.no, 1, "x"),)),
        Batch(pin=((other.no, 1, b"12345678"),)),
        Batch(show=((other.no, 1),)),
        Batch(untouch=((other.no, 2),)),
        Batch(visible=((other.no, 2),)),
        Batch(newest=((other.no, 2),)),
        Batch(threads=(NewThread("thread", "new", b"12345678", "b", 1, None),)),
        Batch(renew=((other.no, NewThread("thread", "b-trip", b"12345678", "a", 1, None)),)),
    ):
        with pytest.raises(backtrail.Error, match=r"outside the scope|is taken"):
            scoped.commit(batch)
    for read in (scoped.rows, scoped.count):
        assert not read(other.no, [(1, 9)])
    assert scoped.newest(other.no) is None
    assert scoped.rows_of([(other.no, 1, 9)]) == {}
    assert scoped.newest_of([other.no]) == {}
    assert scoped.tags(other.no) == {}
    with pytest.raises(backtrail.Unavailable, match="for reading only"):
        ReadOnlyBackend(below).commit(Batch())


def test_async_store_has_scopes():
    async def story():
        async with aio.open("memory://") as store:
            await store.thread("theirs", agent="b").save({})
            scoped = store.scoped("a")
            await scoped.thread("mine").save({"n": 1})
            assert [info.id async for info in scoped.threads()] == ["mine"]
            assert (await store.info("mine")).agent == "a"
            with pytest.raises(backtrail.Unavailable):
                await store.scoped("a", read_only=True).thread("mine").save({})
            head = await scoped.thread("mine").load()
            assert (await head.part("n")).value == 1

    asyncio.run(story())


def test_graph_runs_in_a_scope(shared):
    from langgraph.graph import END, START, MessagesState, StateGraph

    from backtrail.adapters.langgraph import BacktrailSaver

    graph = StateGraph(MessagesState)
    graph.add_node("say", lambda state: {"messages": [("ai", f"{len(state['messages'])}")]})
    graph.add_edge(START, "say")
    graph.add_edge("say", END)
    config = {"configurable": {"thread_id": "chat"}}
    with BacktrailSaver(shared.scoped("a")) as saver:
        compiled = graph.compile(checkpointer=saver)
        compiled.invoke({"messages": [("user", "hi")]}, config)
        result = compiled.invoke({"messages": [("user", "again")]}, config)
        assert len(result["messages"]) == 4
        assert len([*compiled.get_state_history(config)]) == 6
    assert shared.info("chat").agent == "a"
    assert shared.scoped("b").info("chat") is None


def test_a_scope_erases_what_is_inside_and_nothing_else(tmp_path):
    word = "canaryofascope"
    with backtrail.open(tmp_path / "s.db", compression=False) as store:
        for me in ("a", "b"):
            store.agents.save(AgentState(me, "n", "t"))
            store.conversations.save(Conversation(me, id=f"{me}-talk", messages=[Message.user(f"{word} {me}" * 50)]))
            store.agents.checkpoint(me, "one")
        scoped = store.scoped("a")
        with pytest.raises(backtrail.NotFound):
            scoped.conversations.erase("b-talk")
        with pytest.raises(backtrail.NotFound):
            scoped.agents.erase("b")
        with pytest.raises(backtrail.Unavailable):
            store.scoped("a", read_only=True).conversations.erase("a-talk")
        assert scoped.conversations.load("a-talk").messages
        assert scoped.conversations.erase("a-talk").complete
        with pytest.warns(backtrail.Erased):
            scoped.agents.restore(scoped.agents.checkpoints("a")[0])
        assert store.conversations.load("b-talk").messages
        assert store.verify().ok
        found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert (f"{word} a".encode() in found, f"{word} b".encode() in found) == (False, True)
        assert scoped.agents.erase("a").complete
        assert store.agents.get("b") is not None


def test_a_scope_restores_what_was_erased_begun_again_and_deleted():
    with backtrail.open("memory://") as store:
        store.agents.save(AgentState("a", "n", "t"))
        scoped = store.scoped("a")
        scoped.conversations.save(Conversation("a", id="c", messages=[Message.user("one")]))
        made = scoped.agents.checkpoint("a", "one")
        scoped.conversations.erase("c")
        scoped.conversations.save(Conversation("a", id="c", messages=[Message.user("two")]))
        scoped.conversations.delete("c")
        for each in (scoped, store):
            with pytest.warns(backtrail.Erased):
                each.agents.restore(made)
        assert scoped.verify().ok
