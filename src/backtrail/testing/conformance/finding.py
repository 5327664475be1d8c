"""Finding: which messages are found after all that can happen to a thread, how hits come, and what the index costs."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backtrail import Invalid, Unavailable
from backtrail.backends.port import Splice
from backtrail.testing.conformance.base import SECOND, Clock, Suite, chunks_read, head, messages
from backtrail.testing.conformance.searching import found, places, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail import Store, Thread
    from backtrail.testing.conformance.base import Opener


@contextmanager
def indexed(store: Store) -> Iterator[list[tuple[int, int]]]:
    """Count what is indexed: gives a list of (removed, added) of all changes of the index in the block."""
    seen: list[tuple[int, int]] = []
    backend = store._backend  # noqa: SLF001 - what is indexed is seen nowhere else
    index = backend.index

    def counting(*arguments: Any, **options: Any) -> bool:
        seen.extend((splice.removed, len(splice.entries)) for splice in arguments[3])
        return index(*arguments, **options)

    with mock.patch.object(backend, "index", counting):
        yield seen


@contextmanager
def interrupted(store: Store, at: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at one of the changes of the index, counted from 1, in place of making it."""
    backend = store._backend  # noqa: SLF001 - in the middle of indexing
    index, calls = backend.index, []

    def counting(*arguments: Any) -> bool:
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return index(*arguments)

    with mock.patch.object(backend, "index", counting):
        yield


class Finding(Suite):
    """What is found: the messages of the heads, as they are when `search` is called."""

    def test_what_was_just_saved_is_found(self, store: Store) -> None:
        thread = say(store, "one fox")
        assert found(store, "fox") == ["0"]
        thread.append("messages", {"content": "two foxes", "id": "1"}, {"content": "fox three", "id": "2"})
        assert found(store, "fox") == ["0", "2"]
        thread.set("messages[1].content", "now a fox")
        assert found(store, "fox") == ["0", "1", "2"]
        assert found(store, "foxes") == []
        thread.delete_at("messages[0]")
        assert found(store, "fox") == ["1", "2"]
        with thread.step() as state:
            state["messages"].insert(0, {"content": "a fox in front", "id": "3"})
        assert found(store, "fox") == ["1", "2", "3"]
        thread.save({"messages": []})
        assert found(store, "fox") == []

    def test_what_another_process_saved_is_found(self, opener: Opener) -> None:
        with opener() as store:
            say(store, "fox")
        with opener() as store:
            assert found(store, "fox") == ["0"]
        with opener() as store:
            store.thread("t").append("messages", {"content": "a second fox", "id": "1"})
            assert found(store, "fox") == ["0", "1"]

    def test_what_is_rewound_away_is_not_found_and_undo_brings_it_back(self, store: Store) -> None:
        thread = say(store, "fox one", "fox two", "fox three")
        thread.append("messages", {"content": "hen", "id": "3"})
        assert found(store, "fox") == ["0", "1", "2"]
        thread.rewind("@~3")
        assert found(store, "fox") == ["0"]
        assert found(store, "hen") == []
        thread.undo()
        assert (found(store, "fox"), found(store, "hen")) == (["0", "1", "2"], ["3"])
        thread.undo()
        assert (found(store, "fox"), found(store, "hen")) == (["0", "1", "2"], [])
        thread.rewind("@~2")
        thread.append("messages", {"content": "another fox", "id": "9"})
        assert found(store, "fox") == ["0", "9"]

    def test_a_fork_is_found_beside_its_source(self, store: Store) -> None:
        thread = say(store, "fox one", "fox two")
        fork = thread.fork("u", at="@-")
        assert sorted(places(store.search("fox"))) == [("t", 0), ("t", 1), ("u", 0)]
        fork.append("messages", "fox in the fork")
        thread.rewind("@-")
        assert sorted(places(store.search("fox"))) == [("t", 0), ("u", 0), ("u", 1)]

    def test_a_deleted_thread_is_not_found_and_one_that_begins_again_is(self, store: Store) -> None:
        thread = say(store, "fox")
        say(store, "other fox", thread="u")
        assert len(store.search("fox")) == 2
        thread.delete()
        assert places(store.search("fox")) == [("u", 0)]
        store.gc()
        assert places(store.search("fox")) == [("u", 0)]
        say(store, "fox again")
        assert sorted(places(store.search("fox"))) == [("t", 0), ("u", 0)]

    def test_when_the_head_is_deleted_its_ancestor_is_found(self, store: Store) -> None:
        thread = say(store, "fox one", "fox two")
        assert found(store, "fox") == ["0", "1"]
        thread.delete_checkpoint("@")
        assert found(store, "fox") == ["0"]

    def test_pruning_changes_nothing_of_what_is_found(self, store: Store) -> None:
        thread = say(store, *[f"fox {n}" for n in range(8)])
        thread.prune(keep_last=1)
        assert len(found(store, "fox")) == 8
        thread.append("messages", {"content": "fox", "id": "8"})
        thread.prune(keep_last=1)
        store.gc()
        assert len(found(store, "fox")) == 9
        thread.append("messages", {"content": "fox", "id": "9"})
        assert len(found(store, "fox")) == 10
        assert store.verify().ok

    def test_a_store_that_keeps_only_one_checkpoint_finds_them_all_and_indexes_each_once(self, opener: Opener) -> None:
        with opener(max_checkpoints=1) as store:
            thread = say(store, "fox -1")
            with indexed(store) as seen:
                for n in range(200):
                    thread.append("messages", f"fox {n}")
                    if n % 70 == 0:
                        assert len(store.search("fox", limit=1000)) == n + 2
                thread.save({"messages": [*head(thread).state["messages"][100:], "last fox"]})
                assert len(store.search("fox", limit=1000)) == 102
            assert sum(added for _, added in seen) <= 202
            assert store.verify().ok

    def test_messages_that_repeat_are_each_found_once(self, store: Store) -> None:
        thread = store.thread("t")
        thread.save({"messages": ["fox"] * 5})
        assert places(store.search("fox")) == [("t", n) for n in (4, 3, 2, 1, 0)]
        thread.delete_at("messages[2]")
        thread.append("messages", "fox", "hen", "fox")
        assert sorted(places(store.search("fox"))) == [("t", n) for n in (0, 1, 2, 3, 4, 6)]

    def test_inside_a_transaction_it_is_refused(self, store: Store) -> None:
        say(store, "fox")
        with store.transaction(), pytest.raises(Unavailable) as caught:
            store.search("fox")
        assert caught.value.code == "unavailable.transaction"
        with store.transaction():
            say(store, "fox in it", thread="u")
        assert len(store.search("fox")) == 2

    def test_whole_lists_may_change_at_once(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": [f"fox {n}" for n in range(1500)]})
        assert len(store.search("fox", limit=2000)) == 1500
        thread.save({"messages": [f"hen {n}" for n in range(1400)]})
        assert (len(store.search("fox", limit=2000)), len(store.search("hen", limit=2000))) == (0, 1400)
        thread.save({"messages": [*(f"fox {n}" for n in range(700)), *(f"hen {n}" for n in range(700, 1400))]})
        with indexed(store) as seen:
            assert len(store.search("fox", limit=2000)) == 700
        assert max(added for _, added in seen) < 300  # others get their turns
        assert {(hit.snippet, hit.position) for hit in store.search("hen", limit=2000)} == {
            (f"hen {n}", n) for n in range(700, 1400)
        }
        assert store.verify().ok


class Hits(Suite):
    """How hits come."""

    def test_a_hit_says_all_that_is_known(self, store: Store) -> None:
        clock = Clock(store)
        thread = store.thread("trip", agent="planner")
        thread.save({"messages": [{"content": "no"}]})
        clock.advance(5)
        saved = thread.append("messages", {"content": "a red  fox\nruns", "role": "user", "id": "m"})
        (hit,) = store.search("fox")
        assert hit == type(hit)(
            conversation_id="trip",
            message_id="m",
            snippet="a red fox runs",
            role="user",
            created_at=saved.created_at,
            score=hit.score,
            kind="thread",
            agent="planner",
            position=1,
            checkpoint_id=saved.id,
            cursor=hit.cursor,
        )
        assert 0 < hit.score < 1
        found_again = store.checkpoint(hit.checkpoint_id)
        assert found_again is not None
        assert found_again.get(("messages", hit.position, "content")) == "a red  fox\nruns"
        assert store.search("no")[0].message_id is None

    def test_the_newest_come_first_by_what_they_say_or_when_they_were_saved(self, store: Store) -> None:
        clock = Clock(store, 1_767_225_600 * SECOND)
        first, second = store.thread("a"), store.thread("b")
        first.save({"messages": []})
        second.save({"messages": []})
        for n in range(4):
            clock.advance(60)
            (first if n % 2 else second).append("messages", f"fox {n}")
        clock.advance(60)
        first.append("messages", {"content": "old fox", "created_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "fox 4")
        first.append("messages", "fox 5")
        assert [hit.snippet for hit in store.search("fox")] == [*(f"fox {n}" for n in (5, 4, 3, 2, 1, 0)), "old fox"]

    def test_when_a_message_was_saved_is_known_however_late_it_is_indexed(self, opener: Opener) -> None:
        with opener() as store:
            clock = Clock(store)
            thread = store.thread("t")
            thread.save({"n": 0, "messages": []})
            saved = []
            for n in range(150):
                clock.advance(1)
                text = f"fox {n} " + "x" * 500
                saved.append(thread.append("messages", text).created_at)
                clock.advance(1)
                thread.set("n", n)
            thread.save({**thread.load().state, "other": 1})
            assert [hit.created_at for hit in store.search("fox", limit=200)] == saved[::-1]
            thread.rewind("@~101")
            assert [hit.created_at for hit in store.search("fox", limit=200)] == saved[99::-1]
            thread.undo()
            assert [hit.created_at for hit in store.search("fox", limit=200)] == saved[::-1]
        with opener() as store:
            store.reindex()
            assert [hit.created_at for hit in store.search("fox", limit=200)] == saved[::-1]

    def test_a_page_goes_on_behind_a_hit_or_its_cursor(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": [{"content": f"fox {n}", "created_at": n // 3} for n in range(200)]})
        whole = store.search("fox", limit=1000)
        assert [hit.position for hit in whole] == list(range(199, -1, -1))
        paged, page = [], store.search("fox", limit=7)
        while page:
            paged += page
            page = store.search("fox", limit=7, after=page[-1] if len(paged) % 2 else page[-1].cursor)
        assert paged == whole
        assert store.search("fox", limit=0) == []

    def test_what_comes_between_two_pages_is_neither_twice_nor_in_the_way(self, store: Store) -> None:
        thread = say(store, *[f"fox {n}" for n in range(10)])
        page = store.search("fox", limit=4)
        thread.append("messages", "fox new")
        thread.delete_at("messages[0]")
        rest = store.search("fox", limit=10, after=page[-1])
        assert [hit.message_id for hit in [*page, *rest]] == [str(n) for n in range(9, 0, -1)]

    def test_filters(self, store: Store) -> None:
        store.thread("a", agent="x").save({"messages": ["fox a"]})
        store.thread("b", agent="y").save({"messages": ["fox b"]})
        store.thread("c").save({"messages": ["fox c"]})
        assert [hit.snippet for hit in store.search("fox", agent="x")] == ["fox a"]
        assert [hit.snippet for hit in store.search("fox", thread="b")] == ["fox b"]
        assert store.search("fox", agent="x", thread="b") == []
        assert store.search("fox", agent="z") == store.search("fox", thread="z") == []
        assert len(store.search("fox", kind="thread")) == 3
        assert store.search("fox", kind="conversation") == []

    def test_by_score_what_says_it_more_comes_first(self, store: Store) -> None:
        say(store, "fox " * 3, "fox " + "word " * 300, "fox and hen", "hen")
        assert [hit.message_id for hit in store.search("fox", order="score")] == ["0", "2", "1"]
        hits = store.search("fox", order="score")
        assert [hit.score for hit in hits] == sorted([hit.score for hit in hits], reverse=True)
        assert store.search("fox", order="score", limit=1) == hits[:1]
        assert store.search("fox", order="score", limit=5, after=hits[0]) == hits[1:]
        assert store.search("fox", order="score", limit=5, after=hits[1].cursor) == hits[2:]

    @pytest.mark.parametrize(
        "before", ["", "word " * 100, "x" * 500, "e\u0301" * 300, "👩\u200d👩\u200d👧" * 90, "字" * 300]
    )
    def test_a_snippet_shows_what_was_found_on_a_short_line(self, store: Store, before: str) -> None:
        say(store, f"{before} Needle \n {before}")
        for options in ({"query": "needle"}, {"query": "eedl", "contains": True}):
            (hit,) = store.search(**options)
            assert "Needle" in hit.snippet
            assert len(hit.snippet) <= 162
            assert "\n" not in hit.snippet
            assert hit.snippet.startswith("…") == bool(before)
            assert not hit.snippet.startswith(("…\u0301", "…\u200d"))
            assert not hit.snippet.endswith("\u200d…")


class Indexing(Suite):
    """What the index costs, and how it is kept."""

    def test_an_append_to_many_messages_reads_and_indexes_nothing_else(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": messages(3000)})
        store.search("1")
        thread.append("messages", {"content": "the fox", "id": "new"})
        with chunks_read(store) as read, indexed(store) as seen:
            assert found(store, "fox") == ["new"]
        assert seen == [(0, 1)]
        with indexed(store) as seen:
            store.search("fox")
        assert (seen, len(read) <= 6) == ([], True)

    def test_what_differs_is_indexed_and_nothing_else(self, store: Store, thread: Thread[Any]) -> None:
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

    def test_what_was_indexed_before_a_catch_up_was_killed_is_not_indexed_again(self, store: Store) -> None:
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
    def test_one_who_is_overtaken_does_not_take_the_index_back(self, store: Store, again: str, at: str) -> None:
        thread = say(store, "fox one")
        store.search("fox")
        thread.append("messages", {"content": "fox two", "id": "1"})
        backend = store._backend  # noqa: SLF001 - between what is read and what is written
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

    def test_gc_indexes_nothing_that_nobody_looks_for(self, store: Store) -> None:
        say(store, "fox")
        store.gc()
        assert store.stats().indexed == 0
        assert found(store, "fox") == ["0"]

    def test_verify_tells_and_reindex_mends_a_wrong_index(self, store: Store) -> None:
        say(store, "fox one", "fox two")
        say(store, "fox three", thread="u")
        assert len(store.search("fox")) == 3
        backend = store._backend  # noqa: SLF001 - to make it wrong
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

    def test_a_damaged_thread_is_not_found_and_the_others_are(self, store: Store) -> None:
        say(store, "fox one")
        thread = say(store, "fox two", thread="u")
        assert len(store.search("fox")) == 2
        thread.append("messages", "fox three")
        heads = store._engine.desk.heads  # noqa: SLF001 - what cannot be read cannot be had otherwise on every backend
        sound = heads.require_sound

        def damaged(record: Any, row: Any) -> None:
            if record.name == "u":
                raise heads.damaged(record, row.seq, "as the test says")
            sound(record, row)

        with mock.patch.object(heads, "require_sound", damaged):
            for _ in range(2):
                assert places(store.search("fox")) == [("t", 0)]
        assert len(store.search("fox")) == 3

    def test_search_reads_only_and_says_so_when_it_would_have_to_write(self, opener: Opener) -> None:
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
