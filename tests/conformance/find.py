"""Hits: which messages search returns after changes of a thread, and in which order."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Invalid, Unavailable
from tests.conformance.base import SECOND, Clock, Suite, head
from tests.conformance.index import indexed
from tests.conformance.search import found, places, say

if TYPE_CHECKING:
    from backtrail import Store, Thread
    from tests.conformance.base import Opener


class Finding(Suite):
    """Search returns messages of the heads at the time of the call."""

    def test_search_finds_a_message_just_saved(self, store: Store) -> None:
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

    def test_search_finds_messages_of_other_processes(self, opener: Opener) -> None:
        with opener() as store:
            say(store, "fox")
        with opener() as store:
            assert found(store, "fox") == ["0"]
        with opener() as store:
            store.thread("t").append("messages", {"content": "a second fox", "id": "1"})
            assert found(store, "fox") == ["0", "1"]

    def test_rewound_messages_are_not_searched_until_undo(self, store: Store) -> None:
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

    def test_search_returns_a_fork_and_its_source(self, store: Store) -> None:
        thread = say(store, "fox one", "fox two")
        fork = thread.fork("u", at="@-")
        assert sorted(places(store.search("fox"))) == [("t", 0), ("t", 1), ("u", 0)]
        fork.append("messages", "fox in the fork")
        thread.rewind("@-")
        assert sorted(places(store.search("fox"))) == [("t", 0), ("u", 0), ("u", 1)]

    def test_deleted_thread_is_not_searched_until_recreated(self, store: Store) -> None:
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

    def test_pruning_does_not_change_search(self, store: Store) -> None:
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

    def test_store_with_one_checkpoint_indexes_each_message_once(self, opener: Opener) -> None:
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

    def test_repeated_messages_match_once_each(self, store: Store) -> None:
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

    def test_search_follows_replaced_lists(self, store: Store, thread: Thread[Any]) -> None:
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

    def test_a_piece_of_a_very_long_word_is_found(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": ["a" * 500 + "xyz", "b" * 450 + "qq end", "other"]})
        for piece in ("xyz", "aaxyz", "qq end", "bqq"):
            assert len(store.search(piece, contains=True)) == 1, piece
        assert len(store.search("a" * 500 + "xyz")) == 1
        assert store.search("a" * 500) == []

    def test_unreadable_message_id_is_none(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": [{"content": "hello", "id": 10**5000}, {"content": "hello", "id": 7}]})
        assert {hit.message_id for hit in store.search("hello")} == {None, "7"}

    @pytest.mark.parametrize("cursor", ["1" + "0" * 30 + ":1:0.5", "1:-1:0.5", "1:1:nan", "1:1:7", "1:1", "x", ""])
    def test_invalid_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(Invalid):
            store.search("x", after=cursor)
        assert store.search("x", limit=1 << 70) == []


class Hits(Suite):
    """The order and the fields of hits."""

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

    def test_newest_messages_come_first(self, store: Store) -> None:
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

    def test_late_indexing_keeps_arrival_times(self, opener: Opener) -> None:
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

    def test_page_continues_after_a_hit_or_cursor(self, store: Store, thread: Thread[Any]) -> None:
        thread.save({"messages": [{"content": f"fox {n}", "created_at": n // 3} for n in range(200)]})
        whole = store.search("fox", limit=1000)
        assert [hit.position for hit in whole] == list(range(199, -1, -1))
        paged, page = [], store.search("fox", limit=7)
        while page:
            paged += page
            page = store.search("fox", limit=7, after=page[-1] if len(paged) % 2 else page[-1].cursor)
        assert paged == whole
        assert store.search("fox", limit=0) == []

    def test_new_messages_do_not_disturb_paging(self, store: Store) -> None:
        thread = say(store, *[f"fox {n}" for n in range(10)])
        page = store.search("fox", limit=4)
        thread.append("messages", "fox new")
        thread.delete_at("messages[0]")
        rest = store.search("fox", limit=10, after=page[-1])
        assert [hit.message_id for hit in [*page, *rest]] == [str(n) for n in range(9, 0, -1)]

    def test_filters_narrow_a_search_down(self, store: Store) -> None:
        store.thread("a", agent="x").save({"messages": ["fox a"]})
        store.thread("b", agent="y").save({"messages": ["fox b"]})
        store.thread("c").save({"messages": ["fox c"]})
        assert [hit.snippet for hit in store.search("fox", agent="x")] == ["fox a"]
        assert [hit.snippet for hit in store.search("fox", thread="b")] == ["fox b"]
        assert store.search("fox", agent="x", thread="b") == []
        assert store.search("fox", agent="z") == store.search("fox", thread="z") == []
        assert len(store.search("fox", kind="thread")) == 3
        assert store.search("fox", kind="conversation") == []

    def test_more_occurrences_score_higher(self, store: Store) -> None:
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
    def test_snippet_shows_the_match_on_one_line(self, store: Store, before: str) -> None:
        say(store, f"{before} Needle \n {before}")
        for options in ({"query": "needle"}, {"query": "eedl", "contains": True}):
            (hit,) = store.search(**options)
            assert "Needle" in hit.snippet
            assert len(hit.snippet) <= 162
            assert "\n" not in hit.snippet
            assert hit.snippet.startswith("…") == bool(before)
            assert not hit.snippet.startswith(("…\u0301", "…\u200d"))
            assert not hit.snippet.endswith("\u200d…")
