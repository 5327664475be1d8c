"""`BacktrailSaver` by itself: LangGraph's own suite on every backend, in both colours, and what that does not ask."""

import asyncio
import collections
import contextlib
import copy
import datetime as dt
import ipaddress
import json
import pickle
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass
from enum import Enum
from unittest import mock

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core import documents, messages
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send

import backtrail
from backtrail import aio
from backtrail.adapters.langgraph import BacktrailSaver
from backtrail.adapters.langgraph.channel_values import LazyValues
from backtrail.adapters.langgraph.config import GraphNamespace, subgraph_prefix
from backtrail.engine import log
from tests.support.servers import place as in_postgres

# -- LangGraph's own suite ------------------------------------------------------------------------------------


class Twin(BacktrailSaver):
    """One whose awaited methods are the others: so that the suite, which only awaits, is one for those, too."""

    async def aget_tuple(self, *args, **options):
        return self.get_tuple(*args, **options)

    async def alist(self, *args, **options):
        for each in self.list(*args, **options):
            yield each

    async def aput(self, *args, **options):
        return self.put(*args, **options)

    async def aput_writes(self, *args, **options):
        return self.put_writes(*args, **options)

    async def adelete_thread(self, *args, **options):
        return self.delete_thread(*args, **options)

    async def adelete_for_runs(self, *args, **options):
        return self.delete_for_runs(*args, **options)

    async def acopy_thread(self, *args, **options):
        return self.copy_thread(*args, **options)

    async def aprune(self, *args, **options):
        return self.prune(*args, **options)


@contextlib.contextmanager
def opened(backend, tmp_path):
    """A function that gives a new store of a kind."""
    with contextlib.ExitStack() as stack:

        def store():
            if backend == "postgres":
                return stack.enter_context(stack.enter_context(in_postgres())())
            name = f"{uuid.uuid4()}"
            urls = {"memory": "memory://", "sqlite": tmp_path / f"{name}.db", "file": (tmp_path / name).as_uri()}
            url = urls[backend]
            return stack.enter_context(backtrail.open(url))

        yield store


@pytest.mark.parametrize("cls", [BacktrailSaver, Twin])
@pytest.mark.parametrize("backend", ["memory", "sqlite", "file", "postgres"])
def test_langgraphs_own_suite_passes_with_every_capability(backend, cls, tmp_path):
    with opened(backend, tmp_path) as store:
        shared = store()  # the suite uses new threads for each test

        @checkpointer_test(name=f"{cls.__name__} {backend}")
        async def make():
            yield cls(shared)

        report = asyncio.run(validate(make))
    assert report.passed_all(), [found.failures for found in report.results.values()]
    assert [name for name, found in report.results.items() if not found.detected] == []
    assert sum(found.tests_passed for found in report.results.values()) == 81


def test_saver_overrides_every_interface_method():
    inherited = {"config_specs", "get", "aget", "serde"}  # they call the others
    public = {name for name in vars(BaseCheckpointSaver) if not name.startswith("_")}
    assert public - inherited <= set(vars(BacktrailSaver))


# -- helpers --------------------------------------------------------------------------------------------------


@pytest.fixture
def saver():
    with BacktrailSaver("memory://", types=[Plan, Mood, Trip]) as made:
        yield made


@dataclass
class Plan:
    city: str


class Mood(Enum):
    CALM = 1


class Trip(pydantic.BaseModel):
    plan: Plan
    mood: Mood = Mood.CALM


@dataclass
class Stranger:
    name: str


def at(thread="t", ns="", **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **more}}


def checkpoint(name=None, **values):
    made = empty_checkpoint()
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, 1)
    return {**made, "id": name or made["id"]}


def put(saver, config, name=None, *, metadata=None, **values):
    made = checkpoint(name, **values)
    return saver.put(config, made, metadata or {"source": "loop", "step": 1}, made["channel_versions"])


def calls(owner, name):
    """Count the calls of a method, which does what it does."""
    real = getattr(owner, name)
    return mock.patch.object(owner, name, autospec=True, side_effect=real)


def ids(listed):
    return [each.config["configurable"]["checkpoint_id"] for each in listed]


# -- types ----------------------------------------------------------------------------------------------------

CALL = {"name": "find", "args": {"q": "x"}, "id": "c1", "type": "tool_call"}
KEPT = [
    messages.HumanMessage("hi", id="1", name="Ada", additional_kwargs={"a": [1, (2, 3)]}),
    messages.AIMessage([{"type": "text", "text": "parts"}], tool_calls=[CALL], response_metadata={"x": {"y": 1.5}}),
    messages.AIMessage("", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    messages.AIMessage("with more", extra_field={"kept": True}),
    messages.AIMessageChunk("chunk", tool_call_chunks=[]),
    messages.SystemMessage("be kind"),
    messages.ToolMessage("found", tool_call_id="c1", artifact={"raw": b"\0\xff"}, status="error"),
    messages.ChatMessage("hm", role="critic"),
    messages.FunctionMessage("f", name="find"),
    messages.RemoveMessage("1"),
    messages.HumanMessage("żółć " * 2000),
    documents.Document("text", metadata={"page": 3}),
    Send("node", {"x": Plan("Faro")}),
    Interrupt({"ask": "?"}, id="i1"),
    Command(resume={"a": 1}, goto=[Send("n", None)]),
    Overwrite([1]),
    _DeltaSnapshot([1, 2]),
    Plan("Porto"),
    Mood.CALM,
    Trip(plan=Plan("Lagos")),
    collections.deque([1, 2], maxlen=3),
    collections.defaultdict(list, {"a": [1]}),
    collections.OrderedDict(a=1),
    collections.Counter("aab"),
    ipaddress.ip_address("::1"),
    ipaddress.ip_network("10.0.0.0/8"),
    re.compile("a+", re.IGNORECASE),
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    uuid.UUID(int=7),
    (1, {2, 3}, frozenset({4}), {"a": (1, None)}),
    {1: "one", (2, 3): "pair"},
    "\0 and \ud800",
    2**80,
]


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_values_come_back_equal_with_type(value, saver):
    put(saver, at(), "1", x=value, nested={"list": [value]})
    saver.put_writes(at(checkpoint_id="1"), [("x", value)], "task")
    found = saver.get_tuple(at())
    values = found.checkpoint["channel_values"]
    for back in (values["x"], values["nested"]["list"][0], found.pending_writes[0][2]):
        assert type(back) is type(value)
        assert back == value
        if isinstance(value, pydantic.BaseModel):
            assert back.model_fields_set == value.model_fields_set
            assert back.__pydantic_extra__ == value.__pydantic_extra__


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (lambda: 1, "state.x[1].y"),
        (object(), "state.x[1].y"),
        (collections.defaultdict(lambda: 1), "state.x[1].y"),
    ],
    ids=["function", "object", "factory"],
)
def test_unsupported_value_is_refused_with_its_path(value, where, saver):
    with pytest.raises(backtrail.Invalid) as caught:
        put(saver, at(), x=[1, {"y": value}])
    assert caught.value.path == where
    with pytest.raises(backtrail.Invalid) as caught:
        saver.put_writes(at(checkpoint_id="1"), [("a", 1), ("b", [{"c": value}])], "task")
    assert caught.value.path == "writes.b[0].c"
    assert str(caught.value).startswith("writes.b[0].c: ")
    with pytest.raises(backtrail.Invalid):
        put(saver, at(), metadata={"source": "loop", "odd": [{value} if callable(value) else object()]})
    assert saver.get_tuple(at()) is None
    assert saver.store.stats().checkpoints == 0
    assert saver.store.thread("t", aside=True).latest() is None


def test_allowlist_uses_only_loaded_modules(saver):
    more = saver.with_allowlist([(__name__, "Stranger"), ("no.such.module", "X"), (__name__, "no_such_name")])
    crafted = backtrail.Record("Stranger", 1, "dataclass", {"name": "x"})
    put(more, at(), x=crafted)
    assert more.get_tuple(at()).checkpoint["channel_values"] == {"x": Stranger("x")}
    assert type(saver.get_tuple(at()).checkpoint["channel_values"]["x"]) is backtrail.Record
    assert saver.with_allowlist([(__name__, "Plan"), ("langgraph.types", "Send")]) is saver
    assert "no.such.module" not in sys.modules


def test_a_crafted_payload_is_plain_data(saver):
    """Whoever can write to the store can name any class: none is imported, none is made."""
    crafted = backtrail.Record("os.system", 1, "custom", {"command": "touch /tmp/owned"})
    lookalike = {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "x"}}
    odd = backtrail.Record("Plan", 1, "dataclass", {"no such field": 1})
    put(saver, at(), "1", x=1)
    book = saver.store.thread("t").latest().metadata
    thread = saver.store.thread("t")
    thread.save({"x": crafted, "y": lookalike}, label="2", metadata=book)
    found = saver.get_tuple(at()).checkpoint["channel_values"]
    assert found == {"x": crafted, "y": lookalike}
    assert type(found["x"]) is backtrail.Record
    thread.save({"x": odd}, label="3", metadata=book)
    with pytest.raises(backtrail.Invalid):
        saver.get_tuple(at())
    for book in ({}, [], {"rest": 1, "parent": None}, {"rest": {}, "parent": 7}, {"rest": {}, "parent": None, "id": 7}):
        thread.save({"x": 1}, metadata={"__langgraph__": book})
        with pytest.raises(backtrail.Corrupt):
            saver.get_tuple(at())
    thread.save(["no dict"], label="4", metadata={"__langgraph__": {"rest": {}, "parent": None}})
    with pytest.raises(backtrail.Corrupt):
        saver.get_tuple(at())
    saver.delete_thread("t")
    put(saver, at(), "5")
    for write in (
        {},
        {"a": 1},
        {"a": ["", 3]},
        {"a": ["", [1]]},
        {"a": ["", []], "b": ["", []]},
        [1],
        {"a": ["", [[7, 7]]], 7: 7},
    ):
        saver.store.thread("t", aside=True).save(write, label="5")
        with pytest.raises(backtrail.Corrupt):
            saver.get_tuple(at())
        saver.store.thread("t", aside=True).delete()


# -- what a config may be -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [{}, None, {"configurable": None}, {"configurable": {}}, at(""), at(ns=3), at(checkpoint_id=3)],
    ids=repr,
)
def test_a_config_that_names_no_thread_is_refused(config, saver):
    made = checkpoint(x=1)
    calls = [
        lambda: saver.get_tuple(config),
        lambda: saver.put(config, made, {}, {}),
        lambda: saver.put_writes(config, [("a", 1)], "task"),
        *([] if config is None else [lambda: list(saver.list(config))]),
    ]
    for call in calls:
        with pytest.raises(backtrail.Invalid):
            call()
    assert list(saver.store.threads()) == []


def test_thread_id_may_be_a_number(saver):
    put(saver, {"configurable": {"thread_id": 7}}, "1", x=1)
    assert saver.get_tuple(at("7")).config == at("7", checkpoint_id="1")


def test_writes_require_a_checkpoint_and_refuse_reserved_names(saver):
    with pytest.raises(backtrail.Invalid):
        saver.put_writes(at(), [("a", 1)], "task")
    with pytest.raises(backtrail.Invalid):
        put(saver, at(), __langgraph__=1)
    with pytest.raises(backtrail.Invalid):
        put(saver, at(), metadata={"__langgraph__": 1})


def test_closed_store_raises(saver):
    saver.close()
    for call in (lambda: put(saver, at()), lambda: saver.get_tuple(at()), lambda: list(saver.list(at()))):
        with pytest.raises(backtrail.Unavailable):
            call()

    async def awaited():
        async with BacktrailSaver("memory://") as other:
            await other.aput(at(), checkpoint("1", x=1), {}, {"x": 1})
        await other.aclose()
        with pytest.raises(backtrail.Unavailable):
            await other.aget_tuple(at())

    asyncio.run(awaited())


def test_callers_store_stays_open(tmp_path):
    with backtrail.open(tmp_path / "a.db") as store:
        with BacktrailSaver(store) as first:
            put(first, at(), "1", x=1)
        with BacktrailSaver(aio.Store(store)) as second:
            assert second.get_tuple(at()).checkpoint["id"] == "1"
        assert store.thread("t").latest().state == {"x": 1}
    with pytest.raises(backtrail.Invalid):
        BacktrailSaver(7)


def test_missing_langgraph_names_the_extra():
    code = "import sys; sys.modules['langgraph.checkpoint'] = None; import backtrail.adapters.langgraph"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'backtrail[langgraph]'" in done.stderr


# -- namespaces ------------------------------------------------------------------------------------------------

ODD = st.text(st.sampled_from("ab|\\#%@\0é\ud800"), max_size=6) | st.text(st.sampled_from("a|\\"), min_size=290)


@settings(max_examples=150)
@given(st.lists(st.tuples(ODD.filter(bool), ODD), min_size=2, max_size=2, unique=True))
def test_namespaces_have_distinct_threads_below_their_own(pairs):
    one, two = (GraphNamespace(*pair) for pair in pairs)
    assert one.id != two.id
    for namespace in (one, two):
        assert 0 < len(namespace.id) <= 512
        assert not namespace.is_in_id or GraphNamespace.from_id(namespace.id) == namespace
    assert two.id.startswith(subgraph_prefix(one.thread_id)) == (two.thread_id == one.thread_id and two.ns != "")


@pytest.mark.parametrize("thread", ["a", "a|b", "a\\", "a\\#", "@", "x" * 600, "é\0\ud800"])
def test_odd_ids_stay_separate(thread, saver):
    where = [at(thread), at(thread, "in|ner"), at(thread, "y" * 600), at(thread + "|in"), at("a" + thread)]
    for n, config in enumerate(where):
        put(saver, config, f"{n}", x=n)
        saver.put_writes({"configurable": {**config["configurable"], "checkpoint_id": f"{n}"}}, [("w", n)], "task")
    for n, config in enumerate(where):
        found = saver.get_tuple(config)
        assert (found.checkpoint["channel_values"], found.pending_writes) == ({"x": n}, [("task", "w", n)])
        named = found.config["configurable"]
        assert (named["thread_id"], named["checkpoint_ns"]) == tuple(config["configurable"].values())
    assert sorted(ids(saver.list({"configurable": {"thread_id": thread}}))) == ["0", "1", "2"]
    assert len(list(saver.list(None))) == 5
    saver.delete_thread(thread)
    assert sorted(ids(saver.list(None))) == ["3", "4"]
    assert [saver.get_tuple(config) for config in where[:3]] == [None] * 3
    put(saver, where[0], "0", x=0)
    assert saver.get_tuple(where[0]).pending_writes == []


@pytest.mark.parametrize("name", ["@", "@~3", "", "\\#", "x" * 600, "0", "abc", "é\0"])
def test_odd_checkpoint_ids_are_found(name, saver):
    put(saver, at(), "first", x=0)
    if name == "":
        return
    assert saver.get_tuple(at(checkpoint_id=name)) is None
    put(saver, at(checkpoint_id="first"), name, x=1)
    put(saver, at(checkpoint_id=name), "last", x=2)
    found = saver.get_tuple(at(checkpoint_id=name))
    assert (found.checkpoint["id"], found.checkpoint["channel_values"]) == (name, {"x": 1})
    assert saver.get_tuple(at()).parent_config == at(checkpoint_id=name)
    assert ids(saver.list(at())) == ["last", name, "first"]


def test_foreign_thread_is_not_written_to(saver):
    saver.store.thread("t").save({"mine": 1})
    assert list(saver.list(at())) == list(saver.list(None)) == []
    for call in (lambda: put(saver, at(), x=1), lambda: saver.get_tuple(at())):
        with pytest.raises(backtrail.Conflict):
            call()
    assert saver.store.thread("t").latest().state == {"mine": 1}


# -- parents --------------------------------------------------------------------------------------------------


def test_stale_latest_conflicts(saver):
    put(saver, at(), "1", x=1)
    read = saver.get_tuple(at()).config
    put(saver, at(checkpoint_id="1"), "2", x=2)
    with pytest.raises(backtrail.Conflict) as caught:
        put(saver, read, "3", x=3)
    assert caught.value.code == "conflict.stale"
    later = at(checkpoint_id="2", __pregel_runtime=None)  # the second step of the run
    put(saver, later, "4", x=4)
    with pytest.raises(backtrail.Conflict):
        put(saver, later, "5", x=5)
    assert ids(saver.list(at())) == ["4", "2", "1"]


def test_named_checkpoint_is_forked(saver):
    for n in range(3):
        put(saver, at(**({"checkpoint_id": str(n - 1)} if n else {})), str(n), x=n, **{f"y{n}": n})
    first = saver.get_tuple(at(checkpoint_id="0")).config
    put(saver, first, "fork", x="other")
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"x": "other"}
    assert saver.get_tuple(at()).parent_config == at(checkpoint_id="0")
    assert ids(saver.list(at())) == ["fork", "2", "1", "0"]
    assert saver.get_tuple(at(checkpoint_id="2")).checkpoint["channel_values"] == {"x": 2, "y2": 2}
    assert [each.label for each in saver.store.thread("t").history()] == ["0", "fork"]
    mine = at(checkpoint_id="fork", __pregel_runtime=None)
    put(saver, at(checkpoint_id="2"), "elsewhere", x=1)
    with pytest.raises(backtrail.Conflict):  # only its first one is a fork
        put(saver, mine, "late", x=2)


def test_deleted_parent_begins_again(saver):
    put(saver, at(checkpoint_id="never was"), "1", x=1)
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"x": 1}
    assert saver.get_tuple(at()).parent_config == at(checkpoint_id="never was")


def test_only_new_channels_are_compared(saver):
    put(saver, at(), "1", a=[1], b=[1], c=[1])
    made = checkpoint("2", a=[2], b=[2], d=[2])
    saver.put(at(checkpoint_id="1"), made, {}, {"a": 2})
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"a": [2], "b": [1], "d": [2]}


# -- listing --------------------------------------------------------------------------------------------------


@pytest.fixture
def listed(saver):
    for n in range(6):
        meta = {"source": "loop", "step": n, "a.b": n % 2, "$odd key'": {"deep": [n]}, "none": None}
        put(saver, at(**({"checkpoint_id": f"{n - 1}"} if n else {})), f"{n}", metadata=meta, x=[n])
    return saver


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"step": 3}, ["3"]),
        ({"a.b": 1}, ["5", "3", "1"]),
        ({"$odd key'": {"deep": [2]}}, ["2"]),
        ({"a.b": 1, "step": 5}, ["5"]),
        ({"a": {"b": 1}}, []),
        ({"none": None, "step": 1}, ["1"]),
        ({"no such key": None}, []),
        ({"' OR 1=1 --": 1}, []),
        ({}, ["5", "4", "3", "2", "1", "0"]),
    ],
    ids=repr,
)
def test_metadata_are_filtered_by_any_key(wanted, found, listed):
    assert ids(listed.list(at(), filter=wanted)) == found


def test_listing_respects_before_and_limit(listed):
    assert ids(listed.list(at(), limit=2)) == ["5", "4"]
    assert ids(listed.list(at(), limit=0)) == []
    assert ids(listed.list(at(), before=at(checkpoint_id="3"))) == ["2", "1", "0"]
    assert ids(listed.list(at(), before=at(checkpoint_id="2x"))) == ["2", "1", "0"]  # not one of these: by its id
    assert ids(listed.list(at(), before=at(checkpoint_id="3"), filter={"a.b": 0}, limit=1)) == ["2"]
    assert ids(listed.list(at(checkpoint_id="3"))) == ["3"]
    assert ids(listed.list(at(checkpoint_id="none"))) == []
    assert ids(listed.list(at("another"))) == []


def test_listing_loads_states_lazily(listed, monkeypatch):
    loads = []
    real = backtrail.Checkpoint.state.fget
    counted = property(lambda self: loads.append(self.label) or real(self))
    monkeypatch.setattr(backtrail.Checkpoint, "state", counted)
    found = list(listed.list(at(), limit=3))
    assert [each.metadata["step"] for each in found] == [5, 4, 3]
    assert loads == []
    assert found[1].checkpoint["channel_values"] == {"x": [4]}
    assert loads == ["4"]


def test_abandoned_listing_holds_no_resources(tmp_path):
    with BacktrailSaver(tmp_path / "a.db") as first, BacktrailSaver(tmp_path / "a.db") as second:
        put(first, at(), "1", x=1)
        put(first, at(checkpoint_id="1"), "2", x=2)
        open_listing = first.list(at())
        next(open_listing)
        put(second, at(checkpoint_id="2"), "3", x=3)
        assert ids(open_listing) == ["1"]


def test_lazy_values_behave_like_a_dict():
    def values():
        return LazyValues(lambda: {"a": 1, "b": [2]})

    whole = {"a": 1, "b": [2]}
    assert dict(values()) == {**values()} == values().copy() == values() == whole
    assert values() | {"c": 3} == {**whole, "c": 3} == {"c": 3} | values()
    assert (len(values()), "a" in values(), list(values()), values().get("b")) == (2, True, ["a", "b"], [2])
    with pytest.raises(TypeError):  # an encoder that only knows dicts says so, and does not write an empty one
        json.dumps(values())
    assert repr(values()) == repr(whole)
    for made in (copy.deepcopy(values()), copy.copy(values()), pickle.loads(pickle.dumps(values()))):
        assert type(made) is dict
        assert made == whole
    changed = values()
    changed["c"] = 3
    del changed["a"]
    assert changed == {"b": [2], "c": 3}
    merged = {}
    merged.update(values())
    assert merged == whole
    assert values() != {}
    assert bool(values())


def test_awaited_put_saves_a_snapshot(saver):
    async def script():
        seen, notes = {"a"}, collections.deque(["a"])
        made = checkpoint("1", seen=seen, deep={"list": [({"x": seen},)]}, notes=notes)
        saving = asyncio.create_task(saver.aput(at(), made, {}, made["channel_versions"]))
        writing = asyncio.create_task(saver.aput_writes(at(checkpoint_id="1"), [("c", [seen])], "task"))
        await asyncio.sleep(0)
        seen.add("b")
        notes.append("b")
        await asyncio.gather(saving, writing)
        found = await saver.aget_tuple(at())
        deep = {"list": [({"x": {"a"}},)]}
        assert found.checkpoint["channel_values"] == {"seen": {"a"}, "deep": deep, "notes": collections.deque(["a"])}
        assert found.pending_writes == [("task", "c", [{"a"}])]
        itself = []
        itself.append(itself)
        with pytest.raises(backtrail.Invalid):
            await saver.aput(at(), checkpoint("2", x=itself), {}, {"x": 1})

    asyncio.run(script())


def test_repeated_put_is_listed_once(saver):
    put(saver, at(), "1", x=1)
    put(saver, at(), "1", x=2)
    assert [each.checkpoint["channel_values"] for each in saver.list(at())] == [{"x": 2}]
    assert saver.get_tuple(at(checkpoint_id="1")).checkpoint["channel_values"] == {"x": 2}


# -- books ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 40, 400])
def test_large_headers_are_stored(nodes, saver):
    seen = {f"node number {n}": {f"branch:to:{n}": n} for n in range(nodes)}
    made = {
        **checkpoint("1", x=1),
        "versions_seen": seen,
        "channel_versions": {f"channel {n}": n for n in range(nodes)},
    }
    large = {"source": "loop", "note": "x" * (0 if nodes < 400 else 5000)}
    saver.put(at(), made, large, {"x": 1})
    saver.put(at(checkpoint_id="1"), {**made, "id": "2", "channel_values": {"x": 2}}, large, {"x": 2})
    found = saver.get_tuple(at())
    assert found.checkpoint == {**made, "id": "2", "channel_values": {"x": 2}}
    assert found.metadata["note"] == large["note"]
    assert ids(saver.list(at(), filter={"note": large["note"]})) == ["2", "1"]
    small = {**checkpoint("3", x=3), "channel_versions": {"x": 3}}
    saver.put(at(checkpoint_id="2"), small, {}, {"x": 3})
    assert saver.store.thread("t").latest().state == {"x": 3}
    assert saver.store.thread("t").load("2").stored < 2500


# -- writes ---------------------------------------------------------------------------------------------------


def test_writes_may_precede_their_checkpoint(saver):
    put(saver, at(), "0", x=0)
    later = at(checkpoint_id="1")
    saver.put_writes(later, [("b", 1), ("c", 2)], "task 2", "~path b")
    saver.put_writes(later, [("a", 3)], "task 3", "~path a")
    saver.put_writes(later, [("d", 4)], "task 1")
    assert saver.get_tuple(at()).pending_writes == []
    put(saver, at(checkpoint_id="0"), "1", x=1)
    expected = [("task 1", "d", 4), ("task 3", "a", 3), ("task 2", "b", 1), ("task 2", "c", 2)]
    assert saver.get_tuple(at()).pending_writes == expected


def test_repeated_writes_resolve_like_langgraph(saver):
    put(saver, at(), "1", x=0)
    for n in (1, 2):
        config = at(checkpoint_id="1")
        saver.put_writes(config, [("a", n), (RESUME, n), ("b", n), (INTERRUPT, n), (ERROR, ValueError(n))], "task")
    found = {channel: value for _, channel, value in saver.get_tuple(at()).pending_writes}
    assert found == {"a": 1, "b": 1, RESUME: 2, INTERRUPT: 2, ERROR: "ValueError(2)"}


def test_writes_do_not_delay_saves(saver):
    put(saver, at(), "1", x=0)
    read = saver.get_tuple(at()).config
    for n in range(100):
        saver.put_writes(at(checkpoint_id="1"), [("a", n)], f"task {n:03}")
    put(saver, read, "2", x=1)
    assert len(saver.get_tuple(at(checkpoint_id="1")).pending_writes) == 100
    assert [info.checkpoints for info in saver.store.threads()] == [2]
    assert saver.store.stats().checkpoints == 2


# -- keeping order --------------------------------------------------------------------------------------------


def test_copy_has_branches_and_writes(saver):
    for ns in ("", "in:1"):
        put(saver, at(ns=ns), "1", x=[1])
        put(saver, at(ns=ns, checkpoint_id="1"), "2", x=[1, 2])
        put(saver, at(ns=ns, checkpoint_id="1"), "3", x=[1, 3], metadata={"source": "fork", "k": "v"})
        saver.put_writes(at(ns=ns, checkpoint_id="2"), [("a", ns)], "task")
    saver.store.thread("t").rewind("2")
    long = "z" * 600
    for target in ("copy", long):
        saver.copy_thread("t", target)
        for ns in ("", "in:1"):
            old, new = list(saver.list(at(ns=ns))), list(saver.list(at(target, ns)))
            assert [each.checkpoint for each in new] == [each.checkpoint for each in old]
            assert [each.metadata for each in new] == [each.metadata for each in old]
            assert [each.pending_writes for each in new] == [each.pending_writes for each in old]
            assert {each.config["configurable"]["thread_id"] for each in new} == {target}
        assert saver.get_tuple(at(target)).checkpoint["id"] == "2"
    with pytest.raises(backtrail.Conflict):
        saver.copy_thread("t", "copy")
    saver.copy_thread("no such thread", "nothing")
    assert saver.get_tuple(at("nothing")) is None


def test_prune_keeps_ancestors_of_delta_channels(saver):
    """A delta channel is not in every checkpoint: its value is made from an older one, and the writes since then."""

    def step(n, since, **values):
        meta = {"source": "loop", "step": n, **({"counters_since_delta_snapshot": {"log": since}} if since else {})}
        config = at(**({"checkpoint_id": f"{n - 1}"} if n else {}))
        made = checkpoint(f"{n}", count=n, **values)
        saver.put(config, made, meta, made["channel_versions"])
        saver.put_writes(at(checkpoint_id=f"{n}"), [("log", [n])], "task")

    for n in range(6):
        step(n, (n % 3, n % 3) if n % 3 else None, **({} if n % 3 else {"log": _DeltaSnapshot([n])}))
    before = saver.get_delta_channel_history(config=at(), channels=["log", "other"])
    assert before["log"]["seed"] == _DeltaSnapshot([3])
    assert [write[2] for write in before["log"]["writes"]] == [[3], [4]]
    assert before["other"] == {"writes": []}
    assert saver.get_delta_channel_history(config=at(checkpoint_id="2"), channels=["log"])["log"]["writes"] == [
        ("task", "log", [0]),
        ("task", "log", [1]),
    ]
    assert saver.get_delta_channel_history(config=at(), channels=[]) == {}
    saver.prune(["t", "no such thread"])
    assert ids(saver.list(at())) == ["5", "4", "3"]
    assert saver.get_delta_channel_history(config=at(), channels=["log", "other"]) == before
    assert saver.get_tuple(at()).pending_writes == [("task", "log", [5])]
    default = BaseCheckpointSaver.get_delta_channel_history
    assert default(saver, config=at(), channels=["log", "other"]) == before
    with pytest.raises(backtrail.Invalid):
        saver.prune(["t"], strategy="keep_some")
    saver.prune(["t"], strategy="delete")
    assert list(saver.list(None)) == []


def test_delta_value_beside_counters_is_found(saver):
    for n in range(4):
        made = checkpoint(f"{n}", count=n, **({"log": [n]} if n == 1 else {}))
        config = at(**({"checkpoint_id": f"{n - 1}"} if n else {}))
        saver.put(config, made, {"counters_since_delta_snapshot": {"log": (n, n)}}, made["channel_versions"])
    assert saver.get_delta_channel_history(config=at(), channels=["log"])["log"] == {"seed": [1], "writes": []}


def test_counters_may_be_anything(saver):
    for n, counters in enumerate([None, 7, "log", ["log"], {}]):
        put(saver, at(), f"{n}", metadata={"counters_since_delta_snapshot": counters}, log=[n])
        assert saver.get_tuple(at()).metadata["counters_since_delta_snapshot"] == counters


def test_versions_continue_other_savers(saver):
    assert [saver.get_next_version(each, None) for each in (None, 1, 2.0)] == [1, 2, 3.0]
    made = saver.get_next_version("00000000000000000000000000000009.0.5", None)
    assert made > "00000000000000000000000000000009.0.5"
    assert made.startswith("00000000000000000000000000000010.")


# -- what it costs --------------------------------------------------------------------------------------------


def test_delta_channel_reads_no_needless_state(saver):
    for n in range(40):
        made = checkpoint(f"{n:02}", count=n, **({} if n else {"log": _DeltaSnapshot([0])}))
        config = at(**({"checkpoint_id": f"{n - 1:02}"} if n else {}))
        meta = {"counters_since_delta_snapshot": {"log": (n, n)}} if n else {}
        saver.put(config, made, meta, made["channel_versions"])
        saver.put_writes(at(checkpoint_id=f"{n:02}"), [("log", [n])], "task")
    with calls(backtrail.Checkpoint, "get") as get, calls(saver.store._backend, "rows") as rows:
        found = saver.get_delta_channel_history(config=at(), channels=["log"])["log"]
    assert found == {"seed": _DeltaSnapshot([0]), "writes": [("task", "log", [n]) for n in range(39)]}
    assert (get.call_count, rows.call_count < 8) == (1, True)


def test_listing_reads_only_listed_rows(saver):
    for n in range(100):
        put(saver, at(**({"checkpoint_id": f"{n - 1}"} if n else {})), f"{n}", x=n)
        saver.put_writes(at(checkpoint_id=f"{n}"), [("x", n)], "task")
    with calls(saver.store._backend, "rows") as rows, calls(log, "is_sound") as checked:
        found = list(saver.list(at(), limit=10))
    assert [each.pending_writes for each in found] == [[("task", "x", n)] for n in range(99, 89, -1)]
    assert rows.call_count <= 2
    assert checked.call_count < 50


def test_a_growing_list_costs_its_new_messages(saver):
    said = [messages.HumanMessage(f"message {n} " * 30, id=f"m{n}") for n in range(400)]
    put(saver, at(), "0", messages=said[:1])
    for n in range(1, 400):
        put(saver, at(checkpoint_id=f"{n - 1}"), f"{n}", messages=said[: n + 1])
    rows = list(saver.store.thread("t").history())
    assert sum(row.stored for row in rows) < 8 * sum(len(each.content) for each in said[-1:]) * 400
    assert saver.get_tuple(at()).checkpoint["channel_values"]["messages"] == said
