"""Tests of `SearchIndex`."""

from __future__ import annotations

from typing import Any

import pytest

from backtrail.backends.port import Batch, IndexEntry, IndexState, Phrase, Splice
from backtrail.errors import Unavailable
from backtrail.testing.base import Conformance
from backtrail.testing.samples import row, start

NONE = IndexState(0, 0, 0)


def entry(words: str, time: int = 1) -> IndexEntry:
    """Return an entry with these words."""
    return IndexEntry(time, f"id of {words}", "user", words, b"\0" + words.encode())


def put(backend: Any, no: int, *texts: str, time: int = 1) -> None:
    """Make the first list of a thread with one row."""
    entries = tuple(entry(text, time) for text in texts)
    assert backend.index(no, NONE, IndexState(1, len(texts), 1), [Splice(0, 0, entries)])


def find(backend: Any, *phrases: Phrase, **options: Any) -> list[Any]:
    """Return hits that match, as the engine checks them."""
    wanted = {"space": None, "agent": None, "threads": None, "after": None, "limit": 100} | options
    hits: list[Any] = backend.find(phrases, **wanted)
    return hits


def texts(backend: Any, *phrases: Phrase, **options: Any) -> list[str]:
    """Return the texts of hits."""
    return [hit.entry.text[1:].decode() for hit in find(backend, *phrases, **options)]


class SearchIndexConformance(Conformance):
    """Lists of entries, marks, and what phrases find."""

    # -- marks ----------------------------------------------------------------------------------------
    def test_commit_marks_threads_with_new_rows(self, backend: Any) -> None:
        first, second = start(backend), start(backend, "y")
        assert backend.unindexed(0, 9) == [first, second]
        assert backend.unindexed(first, 9) == [second]
        assert backend.unindexed(0, 1) == [first]
        put(backend, first)
        put(backend, second)
        assert backend.unindexed(0, 9) == []
        backend.commit(Batch(rows=((second, row(2)),), hide=((first, 1),), tag=((first, 1, "t"),)))
        assert backend.unindexed(0, 9) == [second]

    def test_mark_stays_if_the_list_has_an_older_row(self, backend: Any) -> None:
        no = start(backend, rows=2)
        put(backend, no, "old")
        assert backend.unindexed(0, 9) == [no]
        assert backend.index(no, IndexState(1, 1, 1), IndexState(2, 1, 2), ())
        assert backend.unindexed(0, 9) == []

    def test_dropped_group_leaves_marks_and_lists_unchanged(self, backend: Any) -> None:
        no = start(backend)
        put(backend, no, "kept")
        with pytest.raises(RuntimeError), backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            assert backend.unindexed(0, 9) == [no]
            raise RuntimeError
        assert (backend.unindexed(0, 9), texts(backend)) == ([], ["kept"])

    def test_forgotten_index_is_empty_and_all_threads_are_marked(self, backend: Any) -> None:
        numbers = [start(backend, name) for name in "xyz"]
        for no in numbers:
            put(backend, no, "fox")
        backend.clear_index()
        assert (backend.unindexed(0, 9), texts(backend)) == (numbers, [])
        assert [backend.indexed(no) for no in numbers] == [NONE] * 3
        put(backend, numbers[0], "again")
        assert texts(backend) == ["again"]

    # -- lists ----------------------------------------------------------------------------------------
    def test_list_changes_only_from_its_current_state(self, backend: Any) -> None:
        no = start(backend)
        assert backend.indexed(no) == backend.indexed(no + 9) == NONE
        put(backend, no, "fox")
        now = IndexState(1, 1, 1)
        assert backend.indexed(no) == now
        for was in (NONE, IndexState(1, 2, 1), IndexState(2, 1, 1), IndexState(1, 1, 2)):
            assert not backend.index(no, was, IndexState(3, 0, 3), [Splice(0, 1, ())])
        assert (backend.indexed(no), texts(backend)) == (now, ["fox"])

    def test_splices_apply_in_order(self, backend: Any) -> None:
        no = start(backend)
        put(backend, no, "a", "b", "c", "d")
        splices = [Splice(1, 2, (entry("x"),)), Splice(0, 0, (None, entry("y"))), Splice(4, 1, ())]
        assert backend.index(no, IndexState(1, 4, 1), IndexState(1, 4, 1), splices)
        hits = sorted(find(backend), key=lambda hit: hit.position)
        assert [(hit.position, hit.entry.text[1:]) for hit in hits] == [(1, b"y"), (2, b"a"), (3, b"x")]

    def test_entries_keep_their_numbers_and_new_ones_are_higher(self, backend: Any) -> None:
        no = start(backend)
        put(backend, no, "a", "b")
        before = {hit.entry.text: hit.no for hit in find(backend)}
        assert before[b"\0a"] < before[b"\0b"]
        splice = Splice(0, 1, (entry("x"), entry("y")))
        assert backend.index(no, IndexState(1, 2, 1), IndexState(1, 3, 1), [splice])
        after = {hit.entry.text: hit.no for hit in find(backend)}
        assert before[b"\0b"] == after[b"\0b"] < after[b"\0x"] < after[b"\0y"]

    def test_hit_has_its_thread_row_place_and_entry(self, backend: Any) -> None:
        no = start(backend, agent="a")
        put(backend, no, "one", "two words", time=7)
        (hit,) = find(backend, Phrase(("two", "words")))
        assert (hit.record, hit.seq, hit.position) == (backend.thread(no), 1, 1)
        assert hit.entry == entry("two words", 7)._replace(words="")

    # -- phrases --------------------------------------------------------------------------------------
    @pytest.mark.parametrize(
        ("phrase", "expected"),
        [
            (Phrase(("fox",)), {"red fox", "fox hen"}),
            (Phrase(("red", "fox")), {"red fox"}),
            (Phrase(("fo",), open_right=True), {"red fox", "fox hen", "fort"}),
            (Phrase(("ox",), open_left=True), {"red fox", "fox hen", "ox"}),
            (Phrase(("o",), open_left=True, open_right=True), {"red fox", "fox hen", "fort", "ox"}),
            (Phrase(("d", "f"), open_left=True, open_right=True), {"red fox"}),
            (Phrase(("%",)), set()),
        ],
    )
    def test_phrase_misses_no_entry(self, backend: Any, phrase: Phrase, expected: set[str]) -> None:
        put(backend, start(backend), "red fox", "fox hen", "fort", "ox", "hen")
        hits = set(texts(backend, phrase))
        assert expected <= hits
        assert expected == {text for text in hits if phrase.sought in f" {text} "}

    def test_all_phrases_must_match(self, backend: Any) -> None:
        put(backend, start(backend), "red fox", "red hen", "fox hen")
        assert texts(backend, Phrase(("red",)), Phrase(("hen",))) == ["red hen"]

    # -- filters and pages ----------------------------------------------------------------------------
    def test_filters_of_find_combine(self, backend: Any) -> None:
        first = start(backend, "x", agent="a")
        second = start(backend, "y", agent="b")
        third = start(backend, "z", agent="a", space="run")
        for no, text in ((first, "one"), (second, "two"), (third, "three")):
            put(backend, no, text)
        assert set(texts(backend, agent="a")) == {"one", "three"}
        assert texts(backend, agent="a", space="run") == ["three"]
        assert set(texts(backend, threads=[first, second])) == {"one", "two"}
        assert texts(backend, threads=[first, second], without=[first]) == ["two"]
        assert texts(backend, threads=[]) == []

    def test_hits_come_in_pages_newest_first(self, backend: Any) -> None:
        first, second = start(backend), start(backend, "y")
        put(backend, first, "a", "b", "c", time=5)
        put(backend, second, "d", "e", time=9)
        pages, after = [], None
        while page := find(backend, after=after, limit=2):
            pages.append([hit.entry.text[1:].decode() for hit in page])
            after = (page[-1].entry.time, page[-1].no)
        assert pages == [["e", "d"], ["c", "b"], ["a"]]

    def test_closed_backend_refuses_search(self, backend: Any) -> None:
        start(backend)
        backend.close()
        for call in (lambda: backend.unindexed(0, 1), lambda: backend.indexed(1), backend.clear_index):
            with pytest.raises(Unavailable):
                call()
