"""`BacktrailStore`, LangGraph's long-term memory: its interface, and the history of items."""

import asyncio
import contextlib
import datetime as dt
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

import backtrail
from backtrail import Conflict, Invalid, NotFound
from backtrail.adapters.langgraph import BacktrailStore, store_items
from backtrail.adapters.langgraph import store as store_module
from tests.support.commands import good
from tests.support.places import in_memory
from tests.support.servers import place


@pytest.fixture(params=["memory", "files", "sqlite", "postgres"])
def backing(request, tmp_path):
    if request.param == "memory":
        with in_memory() as opener, opener() as store:
            yield store
    elif request.param == "postgres":
        with place(durability="relaxed") as opener, opener() as store:
            yield store
    else:
        url = tmp_path / "s.db" if request.param == "sqlite" else f"file://{tmp_path / 'files'}"
        with backtrail.open(url, durability="relaxed") as store:
            yield store


@pytest.fixture
def memory():
    with BacktrailStore("memory://") as store:
        yield store


def values(found):
    return [item.value for item in found]


def keys(found):
    return [item.key for item in found]


# -- the interface --------------------------------------------------------------------------------------


def test_items_come_back(backing):
    store = BacktrailStore(backing)
    value = {"text": "\0 é", "n": [1, 2.5, None, True], "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "b": b"\0"}
    store.put(("users", "ann"), "home", value)
    item = store.get(("users", "ann"), "home")
    assert (item.value, item.namespace, item.key) == (value, ("users", "ann"), "home")
    assert item.created_at == item.updated_at
    store.put(("users", "ann"), "home", {"text": "new"})
    again = store.get(("users", "ann"), "home")
    assert again.value == {"text": "new"}
    assert again.created_at == item.created_at < again.updated_at
    store.delete(("users", "ann"), "home")
    assert store.get(("users", "ann"), "home") is None
    assert store.list_namespaces() == []
    store.delete(("nobody",), "nothing")
    assert store.get(("nobody",), "nothing") is None


def test_the_values_of_a_caller_are_its_own(memory):
    value = {"list": [1]}
    memory.put(("a",), "k", value)
    value["list"].append(2)
    memory.search(("a",))[0].value["list"].append(3)
    memory.search(("a",))[0].value["list"].append(4)
    memory.get(("a",), "k").value["list"].append(5)
    assert values(memory.search(("a",))) == [{"list": [1]}]
    assert memory.get(("a",), "k").value == {"list": [1]}


def test_random_operations_answer_as_their_own_store(backing):
    """All but the order of a search, which is theirs by insertion and ours by the last put."""
    import random

    choose = random.Random(7)
    ours, theirs = BacktrailStore(backing), InMemoryStore()
    namespaces = [("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("b", "c"), ("x", "b", "y")]
    for _ in range(60):
        namespace, key, number = choose.choice(namespaces), choose.choice("kln"), choose.randrange(4)
        ops = [
            PutOp(namespace, key, choose.choice([None, {"n": number}, {"n": number, "m": {"deep": "x"}}])),
            GetOp(choose.choice(namespaces), choose.choice("kln")),
            ListNamespacesOp(
                match_conditions=(
                    MatchCondition("prefix", choose.choice([(), ("a",), ("a", "*"), ("*", "b")])),
                    MatchCondition("suffix", choose.choice([(), ("b",), ("c",), ("b", "*")])),
                ),
                max_depth=choose.choice([None, 1, 2]),
                limit=choose.choice([1, 100]),
            ),
            SearchOp(
                choose.choice([(), ("a",), ("a", "b")]),
                filter=choose.choice([None, {"n": 1}, {"n": {"$gt": 1}}, {"n": {"$ne": 2}}, {"m": {"deep": "x"}}]),
                limit=100,
            ),
        ]
        results = [store.batch(ops) for store in (ours, theirs)]
        (_, got, listed, found), (_, got_there, listed_there, found_there) = results
        assert (got and got.value) == (got_there and got_there.value)
        # theirs lists namespaces whose items are all deleted; ours does not
        alive = {item.namespace for item in theirs.search((), limit=1000)} | {namespace}
        depth = ops[2].max_depth
        if ops[2].limit == 100:
            assert set(listed) <= set(listed_there)
            assert {each[:depth] for each in alive} >= set(listed)
        assert sorted((i.namespace, i.key, str(i.value)) for i in found) == sorted(
            (i.namespace, i.key, str(i.value)) for i in found_there
        )


def test_a_batch_reads_before_it_writes(memory):
    memory.put(("a",), "k", {"n": 1})
    got, _, found, _ = memory.batch(
        [GetOp(("a",), "k"), PutOp(("a",), "k", {"n": 2}), SearchOp(("a",)), PutOp(("b",), "k", {"n": 3})]
    )
    assert got.value == {"n": 1}
    assert values(found) == [{"n": 1}]
    assert values(memory.search((), limit=10)) == [{"n": 3}, {"n": 2}] or len(memory.search(())) == 2


def test_searches_page_newest_first(memory):
    for number in range(6):
        memory.put(("a", str(number % 2)), f"k{number}", {"n": number})
    assert keys(memory.search(("a",), limit=2)) == ["k5", "k4"]
    assert keys(memory.search(("a",), limit=2, offset=2)) == ["k3", "k2"]
    assert keys(memory.search(("a", "0"))) == ["k4", "k2", "k0"]
    memory.put(("a", "0"), "k0", {"n": 7})
    assert keys(memory.search(("a", "0"))) == ["k0", "k4", "k2"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"n": 1}, "a"),
        ({"n": 1.0}, "a"),
        ({"n": True}, ""),
        ({"n": {"$gte": 1, "$lt": 3}}, "ab"),
        ({"n": {"$lte": 1}}, "a"),
        ({"n": {"$ne": 1}}, "bc"),
        ({"s": {"$gt": "m"}}, "b"),
        ({"n": {"$gt": "m"}}, ""),
        ({"in": {"x": 1}}, "a"),
        ({"in.x": 1}, "a"),
        ({"in": {"$eq": {"x": 1}}}, "a"),
        ({"missing": None}, "abc"),
        ({"flag": True, "n": 2}, "b"),
        ({}, "abc"),
    ],
)
def test_filters_compare_as_json(memory, wanted, found):
    memory.put(("f",), "a", {"n": 1, "in": {"x": 1}, "s": "a"})
    memory.put(("f",), "b", {"n": 2, "flag": True, "s": "z"})
    memory.put(("f",), "c", {"n": "3", "flag": 1})
    assert "".join(sorted(keys(memory.search(("f",), filter=wanted)))) == found


def test_namespaces_are_told_apart(memory):
    odd = [("a", "b"), ("a/b",), ("a%2Fb",), ("a", "b", "c"), ("ab",), ("A", "b"), ("a*",), ("é\0"[:1], "x"), (" ",)]
    long = [("x" * 500,), ("x" * 500, "y"), ("x" * 501,)]
    for number, namespace in enumerate(odd + long):
        memory.put(namespace, "k", {"n": number})
    for number, namespace in enumerate(odd + long):
        assert memory.get(namespace, "k").value == {"n": number}
    assert sorted(memory.list_namespaces()) == sorted(odd + long)
    assert sorted(values(memory.search(("a",))), key=str) == [{"n": 0}, {"n": 3}]
    assert len(memory.search(("x" * 500,))) == 2


def test_what_another_process_puts_is_found(tmp_path):
    with BacktrailStore(tmp_path / "s.db") as here, BacktrailStore(tmp_path / "s.db") as there:
        for number in range(3):
            here.put(("a",), f"h{number}", {"n": number})
            there.put(("a",), f"t{number}", {"n": number})
            assert len(here.search(("a",))) == len(there.search(("a",))) == 2 * number + 2
        there.delete(("a",), "h0")
        assert here.get(("a",), "h0") is None
        assert len(here.search(("a",))) == 5


def test_the_asynchronous_interface_is_the_same(backing):
    async def main():
        async with BacktrailStore(backing) as store:
            await asyncio.gather(*(store.aput(("a", str(n % 3)), f"k{n}", {"n": n}) for n in range(30)))
            assert len(await store.asearch(("a",), limit=100)) == 30
            assert (await store.aget(("a", "1"), "k4")).value == {"n": 4}
            assert await store.alist_namespaces(prefix=("a",)) == [("a", "0"), ("a", "1"), ("a", "2")]
            await store.aput(("a", "1"), "k4", {"n": 5})
            assert values(await store.ahistory(("a", "1"), "k4")) == [{"n": 5}, {"n": 4}]
            assert (await store.aundo(("a", "1"), "k4")).value == {"n": 4}
            await store.adelete(("a", "1"), "k4")
            assert await store.aget(("a", "1"), "k4") is None

    asyncio.run(main())


# -- vectors ----------------------------------------------------------------------------------------------


def letters(texts):
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


@pytest.mark.parametrize("without_numpy", [False, True])
def test_the_nearest_items_come_first(monkeypatch, without_numpy):
    if without_numpy:
        monkeypatch.setitem(sys.modules, "numpy", None)
    with BacktrailStore("memory://", index={"dims": 3, "embed": letters, "fields": ["text"]}) as store:
        store.put(("v",), "a", {"text": "aaab"})
        store.put(("v",), "b", {"text": "bbb"})
        store.put(("v",), "none", {"text": "bbb"}, index=False)
        store.put(("v",), "zero", {"text": "xyz"})
        store.put(("v",), "other", {"text": "ccc", "title": "bb"}, index=["title", "text"])
        found = store.search(("v",), query="b")
        assert [(item.key, None if item.score is None else round(item.score, 3)) for item in found] == [
            ("other", 1.0),
            ("b", 1.0),
            ("a", 0.316),
            ("zero", 0.0),
            ("none", None),
        ]
        assert keys(store.search(("v",), query="b", limit=1, offset=2)) == ["a"]
        store.put(("v",), "b", {"text": "ccc"})
        assert keys(store.search(("v",), query="b"))[0] == "other"
        assert store.undo(("v",), "b").value == {"text": "bbb"}
        assert store.search(("v",), query="b", filter={"text": "bbb"})[0].score == pytest.approx(1.0)


def test_warnings_of_numpy_do_not_reach_a_search():
    numpy = pytest.importorskip("numpy")
    tiny = store_items.packed([1e-30, 0.0])
    with numpy.errstate(all="raise"):
        assert store_items.cosines([1e-30, 0.0], [tiny, tiny]) == [0.0, 0.0]


def test_vectors_of_another_size_are_named():
    store = backtrail.open("memory://")
    BacktrailStore(store, index={"dims": 3, "embed": letters}).put(("v",), "a", {"text": "a"})
    with pytest.raises(Invalid, match="3 dimensions, the query has 2"):
        BacktrailStore(store, index={"dims": 2, "embed": lambda texts: [[1.0, 2.0] for _ in texts]}).search(
            ("v",), query="x"
        )
    store.close()


# -- expiry -------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        time = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

        def __call__(self):
            return self.time

        def __iadd__(self, minutes):
            self.time += dt.timedelta(minutes=minutes)
            return self

    made = Clock()
    monkeypatch.setattr(store_module, "now", made)
    return made


def test_expired_items_are_swept(backing, clock):
    store = BacktrailStore(backing, ttl={"default_ttl": 10, "refresh_on_read": False})
    store.put(("t",), "default", {"n": 1})
    store.put(("t",), "long", {"n": 2}, ttl=30)
    store.put(("t",), "never", {"n": 3}, ttl=None)
    clock += 11
    assert keys(store.search(("t",))) == ["never", "long", "default"] or len(store.search(("t",))) == 3
    assert store.sweep_ttl() == 1
    assert store.get(("t",), "default") is None
    assert values(store.history(("t",), "default")) == [None, {"n": 1}]
    clock += 20
    assert store.sweep_ttl() == 1
    assert store.sweep_ttl() == 0
    assert keys(store.search(("t",))) == ["never"]


def test_reads_put_the_expiry_off_without_a_trace(backing, clock):
    store = BacktrailStore(backing, ttl={"default_ttl": 10, "omit_expired": True})
    store.put(("t",), "read", {"n": 1})
    store.put(("t",), "found", {"n": 2})
    store.put(("t",), "left", {"n": 3})
    for _ in range(3):
        clock += 8
        assert store.get(("t",), "read").value == {"n": 1}
        assert keys(store.search(("t",), filter={"n": 2})) == ["found"]
    assert store.get(("t",), "left") is None
    assert sorted(keys(store.search(("t",), refresh_ttl=False))) == ["found", "read"]
    assert store.thread(("t",)).current_step == 3
    assert store.sweep_ttl() == 1
    clock += 11
    assert store.search(("t",)) == []
    assert store.list_namespaces() == []
    assert store.sweep_ttl() == 2
    store.put(("t",), "read", {"n": 4})  # an old refresh does not count for a new put
    clock += 11
    assert store.get(("t",), "read") is None


def test_an_item_that_was_put_again_is_not_swept(memory, clock, monkeypatch):
    memory.put(("t",), "k", {"n": 1}, ttl=1)
    clock += 2
    real = memory._edit

    def edit(*given):
        monkeypatch.setattr(memory, "_edit", real)
        memory.put(("t",), "k", {"n": 2}, ttl=1)
        real(*given)

    monkeypatch.setattr(memory, "_edit", edit)
    memory.sweep_ttl()
    assert memory.get(("t",), "k").value == {"n": 2}


def test_the_sweeper_runs_until_it_is_stopped():
    with BacktrailStore("memory://", ttl={"default_ttl": 0.0001}) as store:
        store.put(("t",), "k", {"n": 1})
        store.start_ttl_sweeper(0.0002)
        while store.get(("t",), "k", refresh_ttl=False) is not None:
            pass
        assert store.stop_ttl_sweeper(60)
        assert store.stop_ttl_sweeper()


# -- history -------------------------------------------------------------------------------------------------


def test_each_item_can_be_taken_back(backing):
    store = BacktrailStore(backing)
    for number in (1, 2, 3):
        store.put(("h",), "k", {"n": number})
        store.put(("h",), "other", {"n": 10 * number})
    store.delete(("h",), "k")
    assert values(store.history(("h",), "k")) == [None, {"n": 3}, {"n": 2}, {"n": 1}]
    assert values(store.history(("h",), "k", limit=2)) == [None, {"n": 3}]
    assert store.undo(("h",), "k").value == {"n": 3}
    assert store.undo(("h",), "k").value == {"n": 2}
    assert store.get(("h",), "k").value == {"n": 2}
    store.put(("h",), "k", {"n": 4})
    assert store.undo(("h",), "k").value == {"n": 2}
    assert store.undo(("h",), "k").value == {"n": 1}
    assert store.undo(("h",), "k") is None
    with pytest.raises(NotFound, match="nothing to undo"):
        store.undo(("h",), "k")
    assert store.get(("h",), "other").value == {"n": 30}
    assert [change.path for change in store.thread(("h",)).diff("@-", "@")] != []


def test_undo_of_what_was_never_there_is_named(memory):
    with pytest.raises(NotFound, match="nothing to undo"):
        memory.undo(("h",), "k")


def test_a_batch_is_one_write(memory):
    many = [PutOp(("b", str(n % 3)), f"key {n} {'x' * 100}", {"n": n}) for n in range(120)]
    memory.batch(many)
    assert len(memory.search(("b",), limit=1000)) == 120
    assert values(memory.history(("b", "1"), many[1].key)) == [{"n": 1}]
    with pytest.raises(Invalid):
        memory.batch([PutOp(("b", "0"), "new", {"n": 1}), PutOp(("b", "1"), "new", {"n": object()})])
    assert memory.get(("b", "0"), "new") is None


def test_writers_of_one_namespace_do_not_conflict(backing):
    store = BacktrailStore(backing)

    def work(writer):
        for number in range(10):
            store.batch([PutOp(("w",), f"{writer}-{number}", {"n": number}), PutOp(("w", "2"), f"{writer}", {})])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(store.search(("w",), limit=1000)) == 44


def test_log_shows_the_namespace(tmp_path):
    with BacktrailStore(tmp_path / "s.db") as store:
        store.put(("users", "ann"), "home", {"text": "Lisbon"})
        store.put(("users", "ann"), "home", {"text": "Porto"})
        name = store.thread(("users", "ann")).id
    assert name == "langgraph-store:users/ann"
    assert len(good("log", name, "--store", tmp_path / "s.db").out.splitlines()) == 3
    assert "Porto" in good("diff", name, "--store", tmp_path / "s.db").out


# -- bad input --------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused(memory):
    for namespace in [(), ("a.b",), ("",), (1,), ("langgraph", "x")]:
        with pytest.raises((InvalidNamespaceError, Invalid)):
            memory.put(namespace, "k", {})
    with pytest.raises(InvalidNamespaceError):
        memory.batch([PutOp(("a.b",), "k", {})])
    for key in ["", "x" * 513]:
        with pytest.raises(Invalid, match="item's key"):
            memory.put(("a",), key, {})
    with pytest.raises(Invalid) as refused:
        memory.put(("a",), "k", {"deep": [1, {"x": object()}]})
    assert "deep" in str(refused.value)
    with pytest.raises(Invalid, match="value is a dict"):
        memory.put(("a",), "k", "text")
    with pytest.raises(Invalid, match="unknown operator"):
        memory.search(("a",), filter={"n": {"$in": [1]}})
    with pytest.raises(Invalid, match="filter is a dict"):
        memory.search(("a",), filter="n")
    with pytest.raises(Invalid, match="limit"):
        memory.search(("a",), limit=-1)
    with pytest.raises(Invalid, match="unknown operation"):
        memory.batch(["no operation"])
    with pytest.raises(Invalid, match="match type"):
        memory.put(("a",), "k", {})
        memory.batch([ListNamespacesOp((MatchCondition("middle", ("a",)),))])


def test_a_thread_of_others_is_left_alone():
    with backtrail.open("memory://") as backing:
        backing.thread(store_items.thread_id(("a",))).save({"mine": 1})
        store = BacktrailStore(backing)
        with pytest.raises(Conflict, match="not a namespace"):
            store.put(("a",), "k", {})
        assert backing.thread(store_items.thread_id(("a",))).latest().state == {"mine": 1}


# -- graphs ------------------------------------------------------------------------------------------------------


class State(TypedDict):
    text: str


KILLED = """
import os, signal, sys
from backtrail.adapters.langgraph import BacktrailStore
from tests.adapters.test_langgraph_store import remembering

def note(state, *, store):
    store.put(("notes",), "first", {"text": state["text"]})
    return state

def die(state):
    os.kill(os.getpid(), signal.SIGKILL)

with BacktrailStore(sys.argv[1]) as store:
    remembering(store, note, die).invoke({"text": "Lisbon"})
"""


def remembering(store, *nodes):
    builder = StateGraph(State)
    last = START
    for number, node in enumerate(nodes):
        builder.add_node(f"n{number}", node)
        builder.add_edge(last, f"n{number}")
        last = f"n{number}"
    return builder.compile(store=store)


def test_a_process_killed_in_a_node_leaves_what_was_put(tmp_path):
    url = str(tmp_path / "s.db")
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", KILLED, url], cwd=root, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL

    def recall(state, *, store):
        return {"text": store.get(("notes",), "first").value["text"]}

    with BacktrailStore(url) as store:
        assert remembering(store, recall).invoke({"text": ""}) == {"text": "Lisbon"}
        assert asyncio.run(remembering(store, recall).ainvoke({"text": ""})) == {"text": "Lisbon"}


# -- calls that are done together -----------------------------------------------------------------------


def test_calls_of_one_round_are_one_write(backing):
    async def main():
        store = BacktrailStore(backing)
        await asyncio.gather(*(store.aput(("a",), f"k{number}", {"n": number}) for number in range(50)))
        assert len(list(store.thread(("a",)).history())) == 1
        answers = await asyncio.gather(
            store.aput(("a",), "k1", {"n": "first"}),
            store.aget(("a",), "k1"),
            store.asearch(("a",), limit=1, filter={"n": 2}),
            store.alist_namespaces(),
            store.aput(("a",), "k1", {"n": "last"}),
            store.adelete(("a",), "k3"),
        )
        assert answers[1].value == {"n": 1}  # reads come first
        assert (keys(answers[2]), answers[3]) == (["k2"], [("a",)])
        assert store.get(("a",), "k1").value == {"n": "last"}
        assert store.get(("a",), "k3") is None
        many = await asyncio.gather(*(store.aget(("a",), f"k{number % 50}") for number in range(300)))
        assert [item and item.value["n"] for item in many[:5]] == [0, "last", 2, None, 4]

    asyncio.run(main())


def test_equal_reads_of_one_round_share_no_value(memory):
    async def main():
        await memory.aput(("a",), "k", {"list": []})
        items = await asyncio.gather(*(memory.aget(("a",), "k") for _ in range(3)), memory.asearch(("a",)))
        items[0].value["list"].append(1)
        assert [item.value for item in items[1:3]] == [{"list": []}] * 2
        assert values(items[3]) == [{"list": []}]

    asyncio.run(main())


def test_a_refused_call_does_not_harm_the_others(memory):
    async def main():
        work = [memory.aput(("a",), "good", {"n": 1}), memory.aput(("b",), "bad", {"f": object()})]
        work += [memory.aget(("a",), "x"), memory.aput(("c",), "good", {"n": 2}), memory.aput((), "k", {})]
        ends = await asyncio.gather(*work, return_exceptions=True)
        assert [isinstance(end, Exception) for end in ends] == [False, True, False, False, True]
        assert isinstance(ends[1], Invalid)
        assert memory.list_namespaces() == [("a",), ("c",)]

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_others(memory):
    async def main():
        tasks = [asyncio.create_task(memory.aput(("a",), f"k{number}", {})) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(end, BaseException) for end in ends] == [False, True, False]
        assert {"k0", "k2"} <= set(keys(memory.search(("a",))))

    asyncio.run(main())


def test_a_dropped_transaction_leaves_no_items_behind(backing):
    store = BacktrailStore(backing)
    store.put(("a",), "k", {"n": 0})

    def dropped():
        with backing.transaction():
            store.put(("a",), "k", {"n": "dropped"})
            assert values(store.search(("a",))) == [{"n": "dropped"}]
            raise KeyError

    with pytest.raises(KeyError):
        dropped()
    store.put(("a",), "k", {"n": 1})  # the checkpoint may get the number of the dropped one
    assert values(store.search(("a",))) == [{"n": 1}]

    async def main():
        with pytest.raises(KeyError):
            async with store.store.transaction():
                await store.aput(("a",), "k", {"n": "dropped"})
                assert values(await store.asearch(("a",))) == [{"n": "dropped"}]
                raise KeyError
        assert values(await store.asearch(("a",))) == [{"n": 1}]

    asyncio.run(main())


def test_searches_between_changes_find_the_same_as_a_new_store(backing):
    """A search reads only what changed since the last one: puts, deletions, undo, rewinds, pruning, edits by hand."""
    rng = random.Random(3)
    store = BacktrailStore(backing)
    thread = store.thread(("a",))
    store.batch([PutOp(("a",), f"k{number}", {"n": number}) for number in range(60)])
    for number in range(80):
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            key = f"k{rng.randrange(70)}"
            action = rng.choice(["put", "put", "put", "delete", "undo", "rewind", "prune", "by hand", "batch"])
            if action == "put":
                store.put(("a",), key, {"n": f"{number} {key}"})
            elif action == "delete":
                store.delete(("a",), key)
            elif action == "undo":
                with contextlib.suppress(NotFound):
                    store.undo(("a",), key)
            elif action == "rewind":
                thread.rewind(rng.choice(list(thread.history())[-5:]).id)
            elif action == "prune":
                thread.prune(keep_last=3)
            elif action == "by hand":
                item = thread.latest().get(("items", "k0"), None)
                if item is not None:
                    thread.edit(
                        lambda editor, item=item: editor.set(("items", "k0"), {**item, "value": {"by": "hand"}})
                    )
            else:
                store.batch([PutOp(("a",), f"k{at}", {"n": number}) for at in range(rng.choice([2, 30]))])
        fresh = BacktrailStore(backing)
        assert store.search(("a",), limit=100) == fresh.search(("a",), limit=100), number
