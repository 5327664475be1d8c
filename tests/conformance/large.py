"""Large states: kept in chunks that are shared, written and read only as far as needed."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.base import Suite, chunks_read, head, messages
from tests.support.chunks import small_chunks
from tests.support.exact import same

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Checkpoint, Store, Thread
    from tests.conformance.base import Opener

LONG: dict[str, Any] = {
    "list": list(range(15_000)),
    "list of messages": messages(1500),
    "dict": {f"key {n}": n for n in range(4_000)},
    "dict with odd keys": {(n, "x"): n for n in range(4_000)},
    "text": "lorem ipsum dolor sit amet " * 12_000,
    "text with lines": "".join(f"line {n} of a long text\n" for n in range(20_000)),
    "text with surrogates": "a\ud800\n" * 60_000,
    "bytes": bytes(range(256)) * 1200,
    "bytearray": bytearray(b"\n\0x") * 70_000,
    "tuple": tuple(range(10_000)),
    "set": set(range(8_000)),
    "frozenset": frozenset(f"item {n}" for n in range(5_000)),
}


class Large(Suite):
    """States that do not fit in one row."""

    @pytest.mark.parametrize("kind", list(LONG))
    def test_long_values_come_back_exactly_at_any_depth(self, opener: Opener, kind: str) -> None:
        value = LONG[kind]
        state = {"top": value, "deep": [{"in": [1, {"a list": [value, "beside"]}]}], "n": (1, value)}
        with opener() as store:
            store.thread("t").save(copy.deepcopy(state))
        with opener() as store:
            thread: Thread[Any] = store.thread("t")
            assert same(head(thread).state, state)
            thread.append("deep[0].in[1]['a list']".replace("'", '"'), "more")
            state["deep"][0]["in"][1]["a list"].append("more")
            thread.set("n", 0)
            state["n"] = 0
            assert same(head(store.thread("t")).state, state)
            assert same(thread.load(1).get(("n", 1)), value)
            assert same(thread.load(1).get(("deep", 0, "in", 1, "a list", 0)), value)

    @pytest.mark.parametrize("kind", ["list", "dict", "text", "bytes", "tuple"])
    def test_a_long_value_can_be_the_whole_state(self, opener: Opener, kind: str) -> None:
        with opener() as store:
            store.thread("t").save(LONG[kind])
        with opener() as store:
            assert same(head(store.thread("t")).state, LONG[kind])

    def test_edits_of_a_long_list_are_exact_and_cheap(self, thread: Thread[Any]) -> None:
        items: list[Any] = messages(3000)
        whole = thread.save({"messages": items})
        expected = [copy.deepcopy(items)]
        for at in (0, 1500, 2999, 10):
            items.insert(at, {"role": "system", "content": f"inserted at {at}"})
            made = thread.save({"messages": items})
            assert made.stored < whole.stored / 8
            expected.append(copy.deepcopy(items))
        del items[1000:1010]
        thread.save({"messages": items})
        expected.append(copy.deepcopy(items))
        items[700]["content"] = "changed"
        thread.save({"messages": items})
        expected.append(copy.deepcopy(items))
        for checkpoint, kept in zip(thread.history(), expected, strict=True):
            assert same(checkpoint.state, {"messages": kept})

    def test_a_text_that_grows_and_changes_is_exact(self, thread: Thread[Any]) -> None:
        text = "".join(f"line {n} of a long text\n" for n in range(8000))
        states = [text, text + "x", "y" + text, text[:90_000] + "inserted" + text[90_000:], text[:50_000], "", text]
        for state in states:
            thread.save({"text": state})
        assert [checkpoint.state["text"] for checkpoint in thread.history()] == states
        grown = thread.append("text", "more\n")
        assert head(thread).state == {"text": text + "more\n"}
        assert grown.stored < 10_000

    def test_append_cost_does_not_grow_with_the_list(self, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(4000), "beside": {f"k{n}": n for n in range(3000)}})
        costs = [thread.append("messages", {"content": f"one more {n}"}).stored for n in range(100)]
        assert sorted(costs)[50] < 1000
        assert sum(costs) / len(costs) < 4000
        assert thread.set("beside.k1500", "changed").stored < 2000
        assert len(head(thread).state["messages"]) == 4100

    def test_thousand_appends_equal_one_save(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t")
        thread.save({"l": []})
        for n in range(1000):
            thread.append("l", f"item {n} " * 10)
        items = [f"item {n} " * 10 for n in range(1000)]
        assert head(store.thread("t")).state == {"l": items}
        assert head(thread).root == store.thread("u").save({"l": items}).root
        assert thread.load(501).state == {"l": items[:500]}

    def test_the_same_chunks_are_kept_once(self, store: Store) -> None:
        state = {"messages": messages(2000)}
        first = store.thread("a").save(state)
        chunks, size = store.stats().chunks, store._backend.usage().payload_bytes
        assert chunks > 5
        second = store.thread("b").save(state)
        third = store.thread("c").save({"wrapped": {"again": state["messages"]}})
        assert store.stats().chunks - chunks <= 2
        assert second.stored + third.stored < first.stored / 5
        assert store._backend.usage().payload_bytes < size * 1.2
        store.thread("a").delete()
        store.gc()
        assert head(store.thread("b")).state == state
        assert head(store.thread("c")).state["wrapped"]["again"] == state["messages"]

    def test_get_and_tail_read_few_chunks(self, opener: Opener) -> None:
        state = {"messages": messages(4000), "table": {f"key {n}": messages(1)[0] for n in range(3000)}, "n": 5}
        with opener() as store:
            store.thread("t").save(state)
            chunks = store.stats().chunks
        assert chunks > 20
        reads: tuple[tuple[Callable[[Checkpoint[Any]], object], object, int], ...] = (
            (lambda made: made.get("n"), 5, 2),
            (lambda made: made.tail("messages", 3), messages(3, start=3997), 5),
            (lambda made: made.get("messages[2000].role"), "user", 6),
            (lambda made: made.get(("table", "key 1500")), messages(1)[0], 6),
            (lambda made: made.get("table.nothing"), None, 6),
        )
        for read, expected, most in reads:
            with opener() as store, chunks_read(store) as asked:
                assert read(store.thread("t").load()) == expected
                assert len(set(asked)) <= most
        with opener() as store, chunks_read(store) as asked:
            assert head(store.thread("t")).state == state
            assert len(set(asked)) > chunks / 2

    def test_a_cold_append_reads_no_more_than_the_end(self, opener: Opener) -> None:
        with opener() as store:
            store.thread("t").save({"messages": messages(4000)})
            chunks = store.stats().chunks
        with opener() as store, chunks_read(store) as asked:
            store.thread("t").append("messages", "more")
            assert len(set(asked)) < chunks / 4

    def test_long_values_among_the_metadata_are_refused(self, thread: Thread[Any]) -> None:
        with pytest.raises(ValueError, match="metadata"):
            thread.save({}, metadata={"big": "x" * 100_000})
        assert thread.latest() is None

    def test_deep_nesting_comes_back(self, thread: Thread[Any]) -> None:
        state: Any = "bottom"
        for n in range(80):
            state = {"down": state} if n % 2 else [state, "x" * 100]
        thread.save(state)
        assert same(head(thread).state, state)

    def test_small_chunks_keep_the_same_promises(self, opener: Opener) -> None:
        with small_chunks():
            with opener() as store:
                thread: Thread[Any] = store.thread("t")
                state: dict[str, Any] = {
                    "l": messages(60, size=30),
                    "d": {f"k{n}": n for n in range(60)},
                    "t": "a\n" * 300,
                }
                expected = []
                for n in range(40):
                    state["l"].insert(n * 7 % len(state["l"]), n)
                    state["d"][f"k{n}"] = {"now": [n] * n}
                    state["t"] = state["t"][: n * 5] + str(n) + state["t"][n * 5 :]
                    thread.save(state)
                    expected.append(copy.deepcopy(state))
                assert store.stats().chunks > 100
                thread.prune(keep_last=20)
                store.gc()
            with opener() as store:
                for checkpoint, kept in zip(store.thread("t").history(), expected[20:], strict=True):
                    assert same(checkpoint.state, kept)
                assert store.verify().ok
