"""The search index: its costs, and how it stays current."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backtrail import Invalid, Unavailable
from backtrail.backends.port import IndexesMany, Splice
from tests.conformance.base import Suite, chunks_read, head, messages
from tests.conformance.search import found, places, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail import Store, Thread
    from tests.conformance.base import Opener


@contextmanager
def indexed(store: Store) -> Iterator[list[tuple[int, int]]]:
    """Yield a list that gets (removed, added) for each change of the index in the block."""
    seen: list[tuple[int, int]] = []
    backend = store._backend
    index = backend.index

    def counting(*arguments: Any, **options: Any) -> bool:
        seen.extend((splice.removed, len(splice.entries)) for splice in arguments[3])
        return index(*arguments, **options)

    def counting_lists(lists: Any) -> set[int]:
        seen.extend((0, len(each.entries)) for each in lists if each.entries)
        result: set[int] = index_new(lists)
        return result

    with mock.patch.object(backend, "index", counting), ExitStack() as stack:
        if isinstance(backend, IndexesMany):
            index_new = backend.index_new
            stack.enter_context(mock.patch.object(backend, "index_new", counting_lists))
        yield seen


@contextmanager
def interrupted(store: Store, at: int) -> Iterator[None]:
    """Raise KeyboardInterrupt instead of the n-th change of the index."""
    backend = store._backend
    index, calls = backend.index, []

    def counting(*arguments: Any) -> bool:
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return index(*arguments)

    with mock.patch.object(backend, "index", counting):
        yield


class Indexing(Suite):
    """The index is cheap and stays current."""

    def test_append_indexes_only_the_new_message(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(3000)})
        store.search("1")
        thread.append("messages", {"content": "the fox", "id": "new"})
        with chunks_read(store) as read, indexed(store) as seen:
            assert found(store, "fox") == ["new"]
        assert seen == [(0, 1)]
        with indexed(store) as seen:
            store.search("fox")
        assert (seen, len(read) <= 6) == ([], True)

    def test_only_changed_messages_are_indexed(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(2000)})
        store.search("1")
        changes: list[tuple[Any, list[tuple[int, int]]]] = [
            (lambda: thread.set("messages[1000].content", "fox"), [(1, 1)]),
            (lambda: thread.rewind("@-"), [(1, 1)]),
            (lambda: thread.append("messages", *messages(5, start=9000)), [(0, 5)]),
            (thread.undo, [(5, 0)]),
            (thread.redo, [(0, 5)]),
            (lambda: thread.delete_at("messages[3]"), [(1, 0)]),
            (lambda: thread.set("other", 1), []),
        ]
        for change, expected in changes:
            change()
            with indexed(store) as seen:
                store.search("1")
            assert seen == expected
        assert store.verify().ok

    def test_threads_without_messages_are_not_indexed(self, store: Store) -> None:
        for n in range(20):
            store.thread(f"t{n}").save({"n": n})
        with indexed(store) as seen:
            assert store.search("fox") == []
        assert seen == []
        assert store.stats().indexed == 0

    def test_search_indexes_only_the_threads_that_it_can_find(self, store: Store) -> None:
        for agent in ("me", "them"):
            store.thread(agent, agent=agent).save({"messages": ["a fox"]})
        say(store, "a fox", thread="t")
        with indexed(store) as seen:
            assert places(store.search("fox", agent="them")) == [("them", 0)]
            assert seen == [(0, 1)]
            assert places(store.search("fox", thread="t")) == [("t", 0)]
            assert seen == [(0, 1)] * 2
            assert places(store.search("fox", kind="run")) == []
            assert seen == [(0, 1)] * 2
            assert len(store.search("fox")) == 3
        assert seen == [(0, 1)] * 3

    def test_search_without_waiting_says_how_far_behind(self, store: Store) -> None:
        say(store, "a fox", thread="a")
        assert store.search("fox", wait=False) == []
        assert store.search("fox", wait=False).behind == 1
        assert store.index() == 1
        say(store, "a fox", thread="b")
        behind = store.search("fox", wait=False)
        assert (places(behind), behind.behind) == ([("a", 0)], 1)
        assert len(store.search("fox")) == 2
        assert store.search("fox").behind == store.index() == 0

    def test_many_new_threads_are_indexed_alike(self, store: Store) -> None:
        long = "w" * 500
        for n in range(5):
            store.thread(f"t{n}").save({"messages": [f"fox {n}", {"content": f"{long} hen", "id": str(n)}, 7]})
            store.thread(f"t{n}").append("messages", "", f"owl {n}")
        store.thread("none").save({"n": 1})
        store.thread("gone").save({"messages": ["fox"]})
        store.thread("gone").delete()
        store.thread("many").save({"messages": [f"fox m{n}" for n in range(300)]})
        assert len(store.search("fox", limit=1000)) == 305
        assert len(store.search("hen")) == len(store.search(long, limit=10)) == 5
        assert [(hit.conversation_id, hit.position) for hit in store.search('"owl 3"')] == [("t3", 4)]
        assert len(store.search("ow", contains=True)) == 5
        assert store.verify().ok

    def test_killed_catch_up_continues_where_it_ended(self, store: Store) -> None:
        store.thread("t").save({"messages": [f"fox {n}" for n in range(1000)]})
        with interrupted(store, 2), pytest.raises(KeyboardInterrupt):
            store.search("fox")
        assert 0 < store.stats().indexed < 1000
        with indexed(store) as seen:
            assert len(store.search("fox", limit=2000)) == 1000
        assert sum(added for _, added in seen) < 1000
        assert store.verify().ok

    def test_an_interrupted_list_is_brought_up_to_another_head(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": [f"fox {n}" for n in range(1000)]})
        with interrupted(store, 3), pytest.raises(KeyboardInterrupt):
            store.search("fox")
        with thread.step() as state:
            del state["messages"][900:950]
            state["messages"][600] = "hen"
            state["messages"][100] = "hen"
            del state["messages"][:10]
        hits = store.search("fox", limit=2000)
        expected = [text for text in head(thread).state["messages"] if text != "hen"]
        assert sorted(hit.snippet for hit in hits) == sorted(expected)
        assert [hit.position for hit in store.search("hen")] == [590, 90]
        assert store.verify().ok

    @pytest.mark.parametrize("at", ["indexed", "newest", "index"])
    @pytest.mark.parametrize("again", ["save", "undo", "rewind", "delete"])
    def test_slow_indexer_does_not_revert_the_index(self, store: Store, again: str, at: str) -> None:
        thread = say(store, "fox one")
        store.search("fox")
        thread.append("messages", {"content": "fox two", "id": "1"})
        backend = store._backend
        if isinstance(backend, IndexesMany):  # it reads many threads per call
            at = {"indexed": "marked", "newest": "newest_of"}.get(at, at)
        call = getattr(backend, at)
        overtook: list[str] = []
        expected = {"save": ["2"], "undo": ["0"], "rewind": ["0"], "delete": []}[again]

        def overtaken(*arguments: Any) -> Any:
            if not overtook:
                overtook.append(again)
                if again == "save":
                    thread.save({"messages": [{"content": "fox three", "id": "2"}]})
                elif again == "rewind":
                    thread.rewind("@-")
                else:
                    getattr(thread, again)()
                assert found(store, "fox") == expected
            return call(*arguments)

        with mock.patch.object(backend, "group", nullcontext), mock.patch.object(backend, at, overtaken):
            assert found(store, "fox") == expected
        assert overtook
        assert found(store, "fox") == expected
        assert store.verify().ok

    @pytest.mark.parametrize("end", ["erase", "delete"])
    def test_slow_indexer_adds_nothing_of_a_thread_that_is_gone(self, store: Store, end: str) -> None:
        thread = say(store, "fox one")
        backend = store._backend
        at = "index_new" if isinstance(backend, IndexesMany) else "index"
        call = getattr(backend, at)
        overtook: list[str] = []

        def overtaken(*arguments: Any) -> Any:
            if not overtook:
                overtook.append(end)
                getattr(thread, end)()
                store.gc()
            return call(*arguments)

        with mock.patch.object(backend, "group", nullcontext), mock.patch.object(backend, at, overtaken):
            store.index()
        assert overtook
        assert store.search("fox", wait=False) == []

    @pytest.mark.parametrize("during", [False, True], ids=["after gc", "during gc"])
    def test_slow_indexer_adds_nothing_that_gc_erased(self, store: Store, *, during: bool) -> None:
        thread = say(store, "fox one", "fox two")
        backend = store._backend
        at = "index_new" if isinstance(backend, IndexesMany) else "index"
        call, next_epoch = getattr(backend, at), backend.next_epoch
        overtook: list[int] = []

        def overtaken(*arguments: Any) -> Any:
            if overtook:
                return call(*arguments)
            overtook.append(1)
            gone = head(thread)
            thread.rewind("@-")
            thread.delete_checkpoint(gone)
            done: list[Any] = []

            def write() -> int:
                if during:
                    done.append(call(*arguments))
                return next_epoch()

            with mock.patch.object(backend, "next_epoch", write):
                assert store.gc(erase=True).rows == 1
            return done[0] if done else call(*arguments)

        with mock.patch.object(backend, "group", nullcontext), mock.patch.object(backend, at, overtaken):
            store.index()
        assert overtook
        assert store.stats().indexed == 1
        assert [hit.message_id for hit in store.search("fox", wait=False)] == ["0"]
        assert store.verify().ok

    def test_stats_tell_how_much_is_indexed(self, store: Store) -> None:
        thread = say(store, "fox one", "fox two")
        before = store.stats()
        store.search("fox")
        stats = store.stats()
        assert (before.indexed, stats.indexed) == (0, 2)
        assert before.index_bytes < stats.index_bytes < stats.stored_bytes
        thread.delete()
        store.gc()
        assert store.stats().indexed == 0

    def test_search_does_not_find_aside_threads(self, store: Store) -> None:
        say(store, "fox one")
        aside: Thread[Any] = store.thread("t", aside=True)
        aside.save({"messages": [{"content": "fox beside", "id": "aside"}]})
        assert found(store, "fox") == ["0"]
        aside.append("messages", {"content": "fox later", "id": "later"})
        assert found(store, "fox") == ["0"]
        assert (store.index(), store.verify().ok) == (0, True)

    def test_gc_does_not_index_unindexed_threads(self, store: Store) -> None:
        say(store, "fox")
        store.gc()
        assert store.stats().indexed == 0
        assert found(store, "fox") == ["0"]

    def test_verify_tells_and_reindex_mends_a_wrong_index(self, store: Store) -> None:
        say(store, "fox one", "fox two")
        say(store, "fox three", thread="u")
        assert len(store.search("fox")) == 3
        backend = store._backend
        record = backend.find_thread("thread", "t")
        assert record is not None
        was = backend.indexed(record.no)
        assert backend.index(record.no, was, was, [Splice(0, 1, (None,))])
        report = store.verify()
        assert (report.ok, report.damaged, report.misindexed) == (False, (), ("t",))
        assert len(store.search("fox")) == 2
        told: list[tuple[str, int]] = []
        store.reindex(progress=lambda what, count: told.append((what, count)))
        assert (told, store.verify().ok, len(store.search("fox"))) == ([("index", 2)], True, 3)

    def test_damaged_thread_is_skipped_by_search(self, store: Store) -> None:
        say(store, "fox one")
        thread = say(store, "fox two", thread="u")
        assert len(store.search("fox")) == 2
        thread.append("messages", "fox three")
        heads = store._engine.session.reader
        sound = heads.require_sound

        def damaged(record: Any, row: Any) -> None:
            if record.name == "u":
                raise heads.damaged(record, row.seq, "as the test says")
            sound(record, row)

        with mock.patch.object(heads, "require_sound", damaged):
            for _ in range(2):
                assert places(store.search("fox")) == [("t", 0)]
            assert store.index() == 0
        assert (store.index(), len(store.search("fox"))) == (1, 3)

    def test_read_only_search_needs_a_current_index(self, opener: Opener) -> None:
        with opener() as store:
            say(store, "fox")
            store.search("fox")
        try:
            reader = opener(read_only=True)
        except Invalid:
            return  # this kind of store has no such thing
        with reader:
            assert found(reader, "fox") == ["0"]
        with opener() as store:
            say(store, "fox", thread="u")
        with opener(read_only=True) as reader, pytest.raises(Unavailable) as caught:
            reader.search("fox")
        assert caught.value.code == "unavailable.read_only"
