"""Tests of `Reader` and `Writer`."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.backends.port import Batch, MissingChunks, Row, Stale, ThreadRecord, Vanished
from backtrail.testing.against_memory import SHARED, compare, writes
from backtrail.testing.base import Conformance
from backtrail.testing.samples import (
    HOLDERS,
    ODD_TEXTS,
    contents,
    digest,
    hidden,
    listed,
    names,
    new,
    owned,
    row,
    start,
    touched,
    untouch,
)


def refused_batches(no: int) -> dict[str, tuple[type[Exception], Batch]]:
    """Return batches that a store refuses; it has the thread `no` with rows 1 to 3, and row 2 is hidden."""
    return {
        "a row that is there": (Stale, Batch(rows=((no, row(3)),))),
        "a row too far ahead": (Stale, Batch(rows=((no, row(5)),))),
        "row zero": (Stale, Batch(rows=((no, row(0)),))),
        "the first row again": (Stale, Batch(rows=((no, row(1)),))),
        "rows in the wrong order": (Stale, Batch(rows=((no, row(5)), (no, row(4))))),
        "a gap between rows": (Stale, Batch(rows=((no, row(4)), (no, row(6))))),
        "no such thread": (Stale, Batch(rows=((no + 9, row(1)),))),
        "no such new thread": (Stale, Batch(rows=((-1, row(1)),))),
        "a new thread's second row": (Stale, Batch(threads=(new("y"),), rows=((-1, row(2)),))),
        "a taken name": (Stale, Batch(threads=(new("x"),))),
        "a name twice": (Stale, Batch(threads=(new("y"), new("y")))),
        "a uid twice": (Stale, Batch(threads=(new("y", uid=b"12345678"), new("z", uid=b"12345678")))),
        "not the newest": (Stale, Batch(newest=((no, 2),))),
        "not yet the newest": (Stale, Batch(newest=((no, 4),), rows=((no, row(4)),))),
        "newest of no such thread": (Stale, Batch(newest=((no + 9, 1),))),
        "newest of nothing": (Stale, Batch(newest=((no + 9, 0),))),
        "a hidden row": (Vanished, Batch(visible=((no, 1), (no, 2)))),
        "a missing row": (Vanished, Batch(visible=((no, 9),))),
        "a row of no such thread": (Vanished, Batch(visible=((no + 9, 1),))),
        "a row of the batch itself": (Vanished, Batch(visible=((no, 4),), rows=((no, row(4)),))),
        "a missing chunk": (MissingChunks, Batch(touch=(digest("there"), digest("gone")))),
    }


class ReaderWriterConformance(Conformance):
    """Tests of threads, rows, tags, chunks and commits."""

    # -- threads ----------------------------------------------------------------------------------

    def test_thread_keeps_all_its_fields(self, backend: Any) -> None:
        made = new("x", space="agent", uid=b"12345678", agent="a", created_at=99, origin="o")
        (no,) = backend.commit(Batch(threads=(made,)))
        record = ThreadRecord(no, "agent", "x", b"12345678", "a", 99, "o")
        assert backend.find_thread("agent", "x") == record
        assert backend.thread_with_uid(b"12345678") == record
        assert backend.thread(no) == record

    def test_absent_owner_and_origin_differ_from_empty(self, backend: Any) -> None:
        absent, empty = backend.commit(Batch(threads=(new("a"), new("b", agent="", origin=""))))
        assert backend.thread(absent)[-3::2] == (None, None)
        assert backend.thread(empty)[-3::2] == ("", "")

    def test_unknown_thread_is_none(self, backend: Any) -> None:
        start(backend)
        assert backend.find_thread("thread", "y") is None
        assert backend.find_thread("agent", "x") is None
        assert backend.thread_with_uid(b"87654321") is None
        assert [backend.thread(no) for no in (-1, 0, 2)] == [None, None, None]

    @pytest.mark.parametrize("name", ODD_TEXTS)
    def test_name_owner_and_origin_may_be_any_text(self, backend: Any, name: str) -> None:
        (no,) = backend.commit(Batch(threads=(new(name, agent=name, origin=name),), rows=((-1, row(1)),)))
        found = backend.find_thread("thread", name)
        assert (found.no, found.name, found.agent, found.origin) == (no, name, name, name)
        assert names(backend, agent=name) == names(backend, prefix=name) == [name]

    def test_name_spaces_do_not_share_names(self, backend: Any) -> None:
        made = [start(backend, "x", space=space) for space in ("thread", "agent", "conversation", "run")]
        assert len(set(made)) == 4
        assert [backend.find_thread(space, "x").no for space in ("thread", "agent", "conversation", "run")] == made

    def test_thread_numbers_follow_the_order_of_the_batch(self, backend: Any) -> None:
        first = backend.commit(Batch(threads=(new("a"), new("b"))))
        second = backend.commit(Batch(threads=(new("c"),)))
        assert list(first + second) == sorted(set(first + second))
        assert [backend.thread(no).name for no in first + second] == ["a", "b", "c"]

    def test_thread_numbers_come_in_pages_with_deleted_threads(self, backend: Any) -> None:
        made = [start(backend, str(at)) for at in range(5)]
        backend.commit(Batch(rows=((made[2], row(2, head=0)),), hide=((made[2], 1),)))
        assert backend.thread_numbers(0, 99) == made
        assert backend.thread_numbers(made[0], 2) == made[1:3]
        assert backend.thread_numbers(made[-1], 9) == []

    def test_refused_batch_creates_no_thread(self, backend: Any) -> None:
        start(backend, "taken")
        with pytest.raises(Stale):
            backend.commit(Batch(threads=(new("fresh"), new("taken"))))
        assert backend.find_thread("thread", "fresh") is None

    # -- lists of threads -------------------------------------------------------------------------

    def test_threads_come_by_newest_row_then_by_number(self, backend: Any) -> None:
        for name, created_at in (("old", 1), ("tie 1", 5), ("tie 2", 5), ("young", 9)):
            backend.commit(Batch(threads=(new(name),), rows=((-1, row(1, created_at=created_at)),)))
        assert names(backend) == ["young", "tie 2", "tie 1", "old"]
        backend.commit(Batch(rows=((backend.find_thread("thread", "old").no, row(2, created_at=7)),)))
        assert names(backend) == ["young", "old", "tie 2", "tie 1"]

    def test_listed_thread_has_its_newest_row_without_payload(self, backend: Any) -> None:
        no = start(backend, rows=3)
        ((record, newest),) = listed(backend)
        assert record == backend.thread(no)
        assert newest == backend.newest(no)
        assert (newest.seq, newest.payload) == (3, None)

    def test_only_threads_with_a_head_are_listed(self, backend: Any) -> None:
        backend.commit(Batch(threads=(new("empty"),)))
        no = start(backend, "gone")
        assert names(backend) == ["gone"]
        backend.commit(Batch(rows=((no, row(2, head=0)),)))
        assert names(backend) == []

    def test_pages_of_threads_follow_without_a_gap(self, backend: Any) -> None:
        for at in range(7):
            backend.commit(Batch(threads=(new(str(at)),), rows=((-1, row(1, created_at=at // 3)),)))
        seen, after = [], None
        while page := listed(backend, after=after, limit=2):
            assert len(page) <= 2
            seen += [record.name for record, _ in page]
            after = (page[-1][1].created_at, page[-1][0].no)
        assert seen == names(backend) == ["6", "5", "4", "3", "2", "1", "0"]

    def test_filters_of_threads_combine(self, backend: Any) -> None:
        for space, name, agent in (
            ("thread", "ab", "x"),
            ("thread", "ac", "y"),
            ("run", "ab", "x"),
            ("run", "b", None),
        ):
            start(backend, name, space=space, agent=agent)
        assert names(backend, space="thread") == ["ac", "ab"]
        assert names(backend, agent="x") == ["ab", "ab"]
        assert names(backend, space="run", agent="x") == ["ab"]
        assert names(backend, prefix="a", agent="y") == ["ac"]

    def test_prefix_is_literal_and_case_sensitive(self, backend: Any) -> None:
        for name in ("ab", "aB", "a%", "a", "b", "é", "\U0010ffffz", "\ud800x", "a\0"):
            start(backend, name)
        assert set(names(backend, prefix="a")) == {"ab", "aB", "a%", "a", "a\0"}
        assert names(backend, prefix="a%") == ["a%"]
        assert names(backend, prefix="\U0010ffff") == ["\U0010ffffz"]
        assert names(backend, prefix="\ud800") == ["\ud800x"]
        assert len(names(backend, prefix="")) == 9

    # -- rows -------------------------------------------------------------------------------------

    def test_row_keeps_all_its_fields(self, backend: Any) -> None:
        texts: dict[str, Any] = {
            "label": "l\0\ud800",
            "root": b"r\0",
            "op_id": b"o\0",
            "extra": b"e\0",
            "check": b"c\0",
            "payload": b"p\0",
        }
        numbers: dict[str, Any] = {
            field: at + (1 << 40)
            for at, field in enumerate(Row._fields)
            if field not in texts and field not in ("seq", "hidden")
        }
        written = Row(seq=2, hidden=True, **texts, **numbers)
        no = start(backend)
        backend.commit(Batch(rows=((no, written),)))
        assert backend.rows(no, [(2, 2)], payload=True) == [written]
        assert backend.rows(no, [(2, 2)]) == [written._replace(payload=None)]
        assert type(backend.newest(no).hidden) is bool

    def test_absent_payload_is_stored_as_an_empty_one(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(rows=((no, row(2, payload=None)),)))
        assert backend.rows(no, [(2, 2)], payload=True)[0].payload == b""

    def test_newest_row_may_be_hidden_and_has_no_payload(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 2),)))
        assert (backend.newest(no).seq, backend.newest(no).payload) == (2, None)

    def test_unknown_thread_has_no_newest_row(self, backend: Any) -> None:
        start(backend)
        assert [backend.newest(no) for no in (-1, 0, 2, 1 << 31, 1 << 40)] == [None] * 5

    @pytest.mark.parametrize(
        ("ranges", "seqs"),
        [
            ([(2, 4)], [2, 3, 4]),
            ([(4, 4), (1, 2)], [1, 2, 4]),
            ([(1, 3), (2, 5), (5, 6)], [1, 2, 3, 4, 5, 6]),
            ([(6, 1 << 70)], [6, 7]),
            ([(-5, 1)], [1]),
            ([(5, 4)], []),
            ([(8, 9)], []),
            ([], []),
        ],
    )
    def test_rows_of_ranges_come_once_and_in_order(self, backend: Any, ranges: Any, seqs: list[int]) -> None:
        start(backend, "before", rows=7)
        no = start(backend, rows=7)
        start(backend, "behind", rows=7)
        assert [found.seq for found in backend.rows(no, ranges)] == seqs
        assert [found.seq for found in backend.rows(no, ranges, newest_first=True)] == seqs[::-1]

    def test_limit_counts_over_all_ranges_from_the_first_row(self, backend: Any) -> None:
        no = start(backend, rows=9)
        ranges = [(1, 2), (4, 5), (8, 9)]
        assert [found.seq for found in backend.rows(no, ranges, limit=3)] == [1, 2, 4]
        assert [found.seq for found in backend.rows(no, ranges, limit=3, newest_first=True)] == [9, 8, 5]
        assert backend.rows(no, ranges, limit=0) == []
        assert len(backend.rows(no, ranges, limit=99)) == 6

    def test_visible_rows_are_checkpoints_that_are_not_hidden(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(rows=((no, row(2, root=b"")), (no, row(3)), (no, row(4))), hide=((no, 3),)))
        assert [found.seq for found in backend.rows(no, [(1, 9)], visible=True)] == [1, 4]
        assert [found.seq for found in backend.rows(no, [(1, 9)], visible=True, newest_first=True, limit=1)] == [4]
        assert [found.seq for found in backend.rows(no, [(1, 9)])] == [1, 2, 3, 4]

    def test_unknown_thread_has_no_rows(self, backend: Any) -> None:
        start(backend)
        assert [backend.rows(no, [(1, 9)]) for no in (-1, 0, 2, 1 << 40)] == [[]] * 4

    @pytest.mark.parametrize("label", ODD_TEXTS)
    def test_label_finds_rows_that_are_not_hidden(self, backend: Any, label: str) -> None:
        no, other = start(backend), start(backend, "other")
        added = tuple((no, row(seq, label=text)) for seq, text in ((2, label), (3, label), (4, "no"), (5, label)))
        backend.commit(Batch(rows=(*added, (other, row(2, label=label))), hide=((no, 3),)))
        assert backend.labelled(no, [label]) == [2, 5]
        assert backend.labelled(other, [label]) == [2]
        assert backend.labelled(no, ["nobody's"]) == []
        assert backend.labelled(no, ["no", "nobody's", label]) == [2, 4, 5]
        assert backend.labelled(no, []) == []

    # -- many threads at once ---------------------------------------------------------------------

    def test_threads_come_by_their_names(self, backend: Any) -> None:
        numbers = {name: start(backend, name) for name in ODD_TEXTS}
        start(backend, "elsewhere", space="agent")
        records = backend.threads_named("thread", [*ODD_TEXTS, "elsewhere", "nowhere", "e"])
        assert records == {name: backend.thread(no) for name, no in numbers.items()}
        assert backend.threads_named("thread", []) == backend.threads_named("nowhere", ["x"]) == {}

    def test_newest_rows_come_by_number(self, backend: Any) -> None:
        numbers = [start(backend, name, rows=rows) for name, rows in (("x", 1), ("y", 3), ("z", 2))]
        (empty,) = backend.commit(Batch(threads=(new("empty"),)))
        backend.commit(Batch(hide=((numbers[1], 3),)))
        assert backend.newest_of([*numbers, empty, 0, 99, 1 << 40]) == {no: backend.newest(no) for no in numbers}
        assert backend.newest_of(numbers[:1]) == {numbers[0]: backend.newest(numbers[0])}
        assert backend.newest_of([]) == {}

    @pytest.mark.parametrize("payload", [False, True])
    def test_spans_of_several_threads_come_in_order(self, backend: Any, payload: Any) -> None:
        x, y = start(backend, "x", rows=5), start(backend, "y", rows=3)
        backend.commit(Batch(hide=((x, 4), (x, 5))))
        spans = [(y, 2, 99), (x, 4, 5), (x, 1, 1), (x, 1, 2), (99, 1, 5), (y, 0, 1), (x, 3, 2), (1 << 40, 1, 1)]
        rows = backend.rows_of(spans, payload=payload)
        assert list(rows) == [(x, 1), (x, 2), (x, 4), (x, 5), (y, 1), (y, 2), (y, 3)]
        assert all(each == backend.rows(no, [(seq, seq)], payload=payload)[0] for (no, seq), each in rows.items())
        assert backend.rows_of([]) == {}

    def test_one_call_reads_many_threads(self, backend: Any) -> None:
        count = 600
        made = tuple(new(f"thread {at}") for at in range(count))
        numbers = backend.commit(Batch(threads=made, rows=tuple((-at, row(1)) for at in range(1, count + 1))))
        assert len(backend.threads_named("thread", [each.name for each in made])) == count
        assert len(backend.newest_of(numbers)) == len(backend.rows_of([(no, 1, 1) for no in numbers])) == count

    # -- tags -------------------------------------------------------------------------------------

    def test_tags_keep_their_order(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(tag=((no, 1, "b"), (no, 1, "a"), (no, 2, "c"))))
        backend.commit(Batch(tag=((no, 1, "c"), (no, 1, "b"))))
        assert backend.tags(no) == backend.tags(no, [2, 1]) == {1: ("b", "a", "c"), 2: ("c",)}

    def test_removed_tag_may_be_put_again(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(tag=((no, 1, "a"), (no, 1, "b"), (no, 1, "c"))))
        backend.commit(Batch(untag=((no, 1, "a"), (no, 1, "c"), (no, 1, "never"), (no, 9, "a"))))
        assert backend.tags(no) == {1: ("b",)}
        backend.commit(Batch(tag=((no, 1, "a"),)))
        assert backend.tags(no) == {1: ("b", "a")}
        backend.commit(Batch(untag=((no, 1, "a"), (no, 1, "b"))))
        assert backend.tags(no) == {}

    def test_tags_of_some_rows(self, backend: Any) -> None:
        no = start(backend, rows=1200)
        backend.commit(Batch(tag=tuple((no, seq, f"tag {seq}") for seq in range(1, 1200))))
        assert backend.tags(no, []) == {}
        assert backend.tags(no, iter([3, 1, 1, 1200, 5000])) == {1: ("tag 1",), 3: ("tag 3",)}
        assert list(backend.tags(no, range(1, 1200))) == list(range(1, 1200))

    @pytest.mark.parametrize("tag", ODD_TEXTS)
    def test_tag_finds_rows_that_are_not_hidden(self, backend: Any, tag: str) -> None:
        no, other = start(backend, rows=4), start(backend, "other", rows=4)
        backend.commit(
            Batch(tag=((no, 4, tag), (no, 3, tag), (no, 1, tag), (no, 2, "no"), (other, 2, tag)), hide=((no, 3),))
        )
        assert backend.tagged(no, tag) == [1, 4]
        assert backend.tags(no) == {1: (tag,), 2: ("no",), 3: (tag,), 4: (tag,)}

    def test_absent_row_takes_no_tag(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(tag=((no, 2, "a"), (no + 1, 1, "a"), (-1, 1, "a"))))
        backend.commit(Batch(rows=((no, row(2)),)))
        assert backend.tags(no) == {}

    # -- pins -------------------------------------------------------------------------------------

    def test_pins_keep_their_order(self, backend: Any) -> None:
        no, other = start(backend, rows=3), start(backend, "y")
        backend.commit(Batch(pin=tuple((no, 2, holder) for holder in HOLDERS)))
        backend.commit(Batch(pin=((no, 1, HOLDERS[1]), (other, 1, HOLDERS[0]), (no, 2, HOLDERS[0]))))
        assert backend.pins(no) == {1: (HOLDERS[1],), 2: tuple(HOLDERS)}
        assert backend.pins(no, [2, 3]) == {2: tuple(HOLDERS)}
        assert backend.pins(no, []) == backend.pins(99) == {}

    def test_unpinned_row_has_no_pin(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(pin=((no, 1, HOLDERS[0]), (no, 1, HOLDERS[1]))))
        backend.commit(Batch(unpin=((no, 1, HOLDERS[0]), (no, 2, HOLDERS[0]), (99, 1, HOLDERS[0]))))
        assert backend.pins(no) == {1: (HOLDERS[1],)}

    def test_absent_row_takes_no_pin(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(pin=((no, 7, HOLDERS[0]), (99, 1, HOLDERS[0]))))
        assert backend.pins(no) == backend.pins(99) == {}

    def test_pins_are_no_tags(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(tag=((no, 1, "a"),), pin=((no, 1, HOLDERS[1]),)))
        assert backend.tags(no) == backend.tags(no, [1]) == {1: ("a",)}
        assert backend.tagged(no, "@" + HOLDERS[1].hex()) == []
        backend.commit(Batch(untag=((no, 1, "a"),)))
        assert backend.tags(no) == {}
        assert backend.pins(no) == {1: (HOLDERS[1],)}

    def test_batch_pins_its_new_thread(self, backend: Any) -> None:
        (no,) = backend.commit(Batch(threads=(new("x"),), rows=((-1, row(1)),), pin=((-1, 1, HOLDERS[0]),)))
        assert backend.pins(no) == {1: (HOLDERS[0],)}

    def test_batch_requires_exact_pins(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(tag=((no, 2, "t"),), pin=((no, 1, HOLDERS[0]), (no, 2, HOLDERS[1]))))
        before = contents(backend)
        for tags, pins in (
            (((no, 1, ()),), ()),
            (((no, 1, ()),), ((no, 1, (HOLDERS[1],)),)),
            (((no, 3, ()),), ((no, 3, (HOLDERS[0],)),)),
            (((no, 2, ()),), ((no, 2, (HOLDERS[1],)),)),
        ):
            with pytest.raises(Stale):
                backend.commit(Batch(tags=tags, pins=pins, hide=((no, tags[0][1]),)))
            assert contents(backend) == before
        required = ((no, 1, (HOLDERS[0],)), (no, 2, (HOLDERS[1],)))
        backend.commit(Batch(tags=((no, 1, ()), (no, 2, ("t",))), pins=required, hide=((no, 1), (no, 2))))
        assert [each.seq for each in backend.rows(no, [(1, 9)], visible=True)] == [3]

    # -- chunks -----------------------------------------------------------------------------------

    def test_present_chunks_come_back(self, backend: Any) -> None:
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("b"), b""))))
        wanted = [digest("b"), digest("a"), digest("c"), digest("a")]
        assert backend.chunks(wanted) == {digest("a"): b"A", digest("b"): b""}
        assert backend.present(wanted) == {digest("a"), digest("b")}
        assert backend.chunks([]) == {}
        assert backend.present([]) == set()

    def test_first_bytes_of_a_chunk_stay(self, backend: Any) -> None:
        backend.commit(Batch(chunks=((digest("a"), b"first"), (digest("a"), b"twice"))))
        backend.commit(Batch(chunks=((digest("a"), b"later"),)))
        assert backend.chunks([digest("a")]) == {digest("a"): b"first"}

    @pytest.mark.parametrize("count", [7, 8, 9, 511, 512, 513, 1400])
    def test_one_batch_holds_many_chunks(self, backend: Any, count: int) -> None:
        stored = {digest(str(at)): b"%d" % at for at in range(count)}
        backend.commit(Batch(chunks=tuple(stored.items())))
        assert backend.chunks(list(stored)) == stored
        assert backend.present([*stored, digest("none")]) == set(stored)
        backend.commit(Batch(touch=tuple(stored)))

    # -- requirements of a batch --------------------------------------------------------------------

    @pytest.mark.parametrize("case", refused_batches(1))
    def test_refused_batch_writes_nothing(self, backend: Any, case: str) -> None:
        no = start(backend, rows=3)
        other = start(backend, "other", uid=b"other...")
        backend.commit(Batch(hide=((no, 2),), chunks=((digest("there"), b"there"),)))
        before = contents(backend)
        answer, refused = refused_batches(no)[case]
        # The same requirement, with something of every kind to write.
        batch = Batch(
            threads=(*refused.threads, new("bystander")),
            renew=((no, new("x", agent="renewed")),),
            rows=((other, row(2)), *refused.rows),
            chunks=((digest("new"), b"new"), (digest("there"), b"there")),
            touch=refused.touch,
            visible=refused.visible,
            newest=refused.newest,
            hide=((no, 1),),
            tag=((no, 1, "tag"),),
        )
        for one in (refused, batch) if case != "no such new thread" else (refused,):  # which `batch` would have
            with pytest.raises(answer):
                backend.commit(one)
            assert contents(backend) == before
        backend.commit(Batch(rows=((other, row(2)), (no, row(4)))))

    def test_batch_requires_exact_tags(self, backend: Any) -> None:
        no = start(backend, rows=4)
        backend.commit(Batch(tag=((no, 2, "\ud800"), (no, 2, "b"), (no, 3, "c"))))
        before = contents(backend)
        for tags in ({1: ("a",)}, {2: ()}, {2: ("b",)}, {1: (), 2: ("\ud800", "b", "c")}, {3: ("b",)}, {3: ("C",)}):
            batch = Batch(tags=tuple((no, *each) for each in tags.items()), hide=tuple((no, seq) for seq in tags))
            with pytest.raises(Stale):
                backend.commit(batch)
            assert contents(backend) == before
        required = ((no, 1, ()), (no, 2, ("b", "\ud800")), (no, 3, ()))
        batch = Batch(rows=((no, row(5)),), tags=required, hide=((no, 1), (no, 2)), untag=((no, 3, "c"),))
        backend.commit(batch)
        assert [each.seq for each in backend.rows(no, [(1, 9)], visible=True)] == [3, 4, 5]
        backend.commit(Batch(show=((no, 1),), tag=((no, 1, "later"),)))
        backend.commit(batch)  # the batch was committed, so its requirements do not matter any more
        assert [each.seq for each in backend.rows(no, [(1, 9)], visible=True)] == [1, 3, 4, 5]

    def test_rows_with_gaps_follow_the_newest(self, backend: Any) -> None:
        no, other = start(backend, rows=3), start(backend, "other", uid=b"other...")
        batch = Batch(
            threads=(new("y", agent="a", uid=b"y......."),),
            rows=((no, row(7)), (-1, row(5)), (no, row(8)), (-1, row(4_000_000_000)), (other, row(2))),
            tag=((-1, 5, "t"), (no, 8, "t")),
            hide=((no, 7), (-1, 5)),
            newest=((no, 3),),
            gaps=True,
        )
        (made,) = backend.commit(batch)
        seqs = {of: [found.seq for found in backend.rows(of, [(1, 1 << 32)])] for of in (no, made, other)}
        assert seqs == {no: [1, 2, 3, 7, 8], made: [5, 4_000_000_000], other: [1, 2]}
        assert [found.seq for found in backend.rows(no, [(2, 2), (4, 7), (9, 99)], newest_first=True)] == [7, 2]
        assert [found.seq for found in backend.rows(made, [(1, 1 << 32)], visible=True)] == [4_000_000_000]
        assert [backend.newest(of).seq for of in (no, made)] == [8, 4_000_000_000]
        assert (backend.tags(made), backend.tags(no)) == ({5: ("t",)}, {8: ("t",)})
        assert [tip.record.no for tip in backend.tips("a", touched=True)] == [made]
        assert backend.commit(batch) == (made,)  # it counts once
        backend.commit(Batch(rows=((made, row(4_000_000_001)), (no, row(9)))))
        before = contents(backend)
        for rows in (((no, row(9)),), ((no, row(5)),), ((no, row(12)), (no, row(11))), ((no + 99, row(1)),)):
            with pytest.raises(Stale):
                backend.commit(Batch(rows=rows, gaps=True, tag=((no, 8, "no"),)))
            assert contents(backend) == before
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((no, row(12)),), gaps=True, newest=((no, 8),)))
        assert contents(backend) == before
        again = Batch(rows=((no, row(12)),), gaps=True, newest=((no, 9),))
        assert [backend.commit(again), backend.commit(again)] == [(), ()]

    def test_taken_uid_is_stale(self, backend: Any) -> None:
        start(backend, uid=b"12345678")
        with pytest.raises(Stale):
            backend.commit(Batch(threads=(new("y", uid=b"12345678"),)))

    def test_vanished_names_the_row(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 2),)))
        with pytest.raises(Vanished) as caught:
            backend.commit(Batch(visible=((no, 1), (no, 2))))
        assert (caught.value.thread, caught.value.seq) == (no, 2)

    def test_missing_chunks_are_all_named(self, backend: Any) -> None:
        there = {digest(str(at)): b"" for at in range(600)}
        backend.commit(Batch(chunks=tuple(there.items())))
        gone = {digest(f"gone {at}") for at in range(600)}
        with pytest.raises(MissingChunks) as caught:
            backend.commit(Batch(touch=(*there, *gone)))
        assert caught.value.digests == gone

    def test_batch_may_touch_its_own_chunk(self, backend: Any) -> None:
        backend.commit(Batch(chunks=((digest("a"), b"A"),), touch=(digest("a"),)))
        assert backend.present([digest("a")]) == {digest("a")}

    def test_batch_whose_requirements_hold_is_written(self, backend: Any) -> None:
        no, other = start(backend, rows=2), start(backend, "other")
        backend.commit(Batch(rows=((no, row(3)),), newest=((no, 2), (other, 1)), visible=((no, 1), (other, 1))))
        assert backend.newest(no).seq == 3

    def test_thread_without_rows_has_newest_row_zero(self, backend: Any) -> None:
        (no,) = backend.commit(Batch(threads=(new("x"),)))
        backend.commit(Batch(newest=((no, 0),), rows=((no, row(1)),)))
        assert backend.newest(no).seq == 1

    # -- changes of a batch ------------------------------------------------------------------------

    def test_batch_names_new_threads_by_negative_numbers(self, backend: Any) -> None:
        first, second = backend.commit(
            Batch(
                threads=(new("a"), new("b")),
                rows=((-2, row(1)), (-1, row(1)), (-2, row(2))),
                hide=((-2, 1),),
                tag=((-2, 2, "t"), (-1, 1, "u")),
            )
        )
        assert [found.hidden for found in backend.rows(second, [(1, 9)])] == [True, False]
        assert (backend.tags(first), backend.tags(second)) == ({1: ("u",)}, {2: ("t",)})

    def test_renewed_thread_keeps_number_name_and_uid(self, backend: Any) -> None:
        no = start(backend, uid=b"12345678", agent="old", origin="o")
        renewed = new("ignored", space="run", agent="a\0", created_at=77, origin=None)
        backend.commit(Batch(renew=((no, renewed), (no + 9, renewed), (-1, renewed)), rows=((no, row(2)),)))
        assert backend.thread(no) == ThreadRecord(no, "thread", "x", b"12345678", "a\0", 77, None)
        assert backend.thread_numbers(0, 99) == [no]

    def test_rows_of_several_threads_may_alternate(self, backend: Any) -> None:
        a, b = start(backend, "a"), start(backend, "b", rows=4)
        backend.commit(Batch(rows=((a, row(2)), (b, row(5)), (a, row(3)), (b, row(6)))))
        assert (backend.newest(a).seq, backend.newest(b).seq) == (3, 6)

    def test_hiding_a_hidden_or_absent_row_is_no_error(self, backend: Any) -> None:
        no = start(backend, rows=2)
        for _ in range(2):
            backend.commit(Batch(hide=((no, 1), (no, 9), (no + 1, 1), (-1, 1))))
        assert [found.hidden for found in backend.rows(no, [(1, 9)])] == [True, False]

    def test_hidden_row_is_shown_again(self, backend: Any) -> None:
        no = start(backend, rows=4)
        backend.commit(Batch(hide=((no, 1), (no, 2), (no, 3))))
        backend.commit(Batch(show=((no, 1), (no, 3), (no, 4))))
        assert hidden(backend, no) == [2]
        assert [row.seq for row in backend.rows(no, [(1, 9)], visible=True)] == [1, 3, 4]

    def test_batch_shows_rows_beside_other_changes(self, backend: Any) -> None:
        no, other = start(backend, rows=2, agent="a"), start(backend, "y", rows=2)
        backend.commit(Batch(hide=((no, 1), (other, 1))))
        backend.commit(
            Batch(
                rows=((no, row(3, head=1, root=b"")),),
                hide=((no, 2),),
                show=((no, 1), (other, 1)),
                tag=((no, 1, "t"),),
                untouch=((no, 3),),
            )
        )
        assert (hidden(backend, no), hidden(backend, other)) == ([2], [])
        assert backend.tagged(no, "t") == [1]
        assert touched(backend) == []

    def test_showing_an_absent_row_is_refused(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 1), (no, 2))))
        for gone in ((no, 9), (no + 1, 1)):
            with pytest.raises(Vanished) as error:
                backend.commit(Batch(rows=((no, row(4)),), show=((no, 2), gone)))
            assert (error.value.thread, error.value.seq) == gone
        assert (hidden(backend, no), backend.newest(no).seq) == ([1, 2], 3)

    def test_empty_batch_changes_nothing(self, backend: Any) -> None:
        before = contents(backend)
        assert backend.commit(Batch()) == ()
        assert contents(backend) == before

    def test_only_one_of_two_writers_extends_a_row(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(rows=((no, row(2, payload=b"mine")),)))
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((no, row(2, payload=b"theirs")),)))
        assert backend.rows(no, [(2, 2)], payload=True)[0].payload == b"mine"

    def test_racing_writers_lose_nothing(self, backend: Any) -> None:
        no = start(backend)
        written = []

        def work() -> None:
            for _ in range(25):
                while True:
                    mine = row(backend.newest(no).seq + 1)
                    try:
                        backend.commit(Batch(rows=((no, mine),)))
                    except Stale:
                        continue
                    written.append((mine.seq, mine.op_id))
                    break

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(written) == [(found.seq, found.op_id) for found in backend.rows(no, [(2, 999)])]
        assert len(written) == 100

    # -- a batch that is committed twice ----------------------------------------------------------

    def test_repeated_batch_counts_once(self, backend: Any) -> None:
        no = start(backend)
        batch = Batch(rows=((no, row(2)),))
        assert backend.commit(batch) == backend.commit(batch) == ()
        assert backend.newest(no).seq == 2

    def test_repeated_batch_counts_once_after_later_rows(self, backend: Any) -> None:
        no = start(backend)
        batch = Batch(rows=((no, row(2)),))
        backend.commit(batch)
        backend.commit(Batch(rows=((no, row(3)),)))
        before = contents(backend)
        assert backend.commit(batch) == ()
        assert contents(backend) == before

    def test_repeated_batch_returns_the_same_numbers(self, backend: Any) -> None:
        batch = Batch(threads=(new("a"), new("b")), rows=((-1, row(1)), (-2, row(1))))
        made = backend.commit(batch)
        start(backend, "other")
        assert backend.commit(batch) == made
        without_rows = Batch(threads=(new("c"),))
        assert backend.commit(without_rows) == backend.commit(without_rows)

    def test_other_op_id_is_another_batch(self, backend: Any) -> None:
        no = start(backend)
        mine = row(2)
        backend.commit(Batch(rows=((no, mine),)))
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((no, mine._replace(op_id=b"another")),)))

    def test_repeated_batch_has_all_its_rows(self, backend: Any) -> None:
        a, b = start(backend, "a"), start(backend, "b")
        mine = row(2)
        backend.commit(Batch(rows=((a, mine), (b, row(2)))))
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((a, mine), (b, row(2)))))

    def test_other_uid_is_another_thread(self, backend: Any) -> None:
        mine = row(1)
        backend.commit(Batch(threads=(new("x"),), rows=((-1, mine),)))
        with pytest.raises(Stale):
            backend.commit(Batch(threads=(new("x"),), rows=((-1, mine),)))

    # -- tips: the threads of an owner ------------------------------------------------------------

    def test_row_touches_its_thread_in_any_name_space(self, backend: Any) -> None:
        start(backend, "x", agent="a")
        start(backend, "x", agent="a", space="run")
        start(backend, "other", agent="b")
        start(backend, "none")
        backend.commit(Batch(threads=(new("empty", agent="a"),)))
        found = backend.tips("a", touched=True)
        assert [(tip.record.space, tip.record.name) for tip in found] == [("thread", "x"), ("run", "x")]
        assert found == backend.tips("a", touched=False)
        assert touched(backend, "b") == ["other"]
        assert touched(backend, "") == touched(backend, "none") == []

    def test_tip_has_the_newest_row_and_the_head(self, backend: Any) -> None:
        no = start(backend, rows=3, agent="a")
        backend.commit(Batch(rows=((no, row(4, head=2, root=b"")),), hide=((no, 3), (no, 2))))
        (tip,) = backend.tips("a", touched=True)
        head, _, newest = backend.rows(no, [(2, 4)])
        assert tip == (backend.thread(no), newest, head)
        assert (tip.head.seq, tip.head.hidden, tip.head.payload, tip.newest.payload) == (2, True, None, None)
        assert backend.tips("a", touched=False) == [tip]

    def test_owners_are_compared_exactly(self, backend: Any) -> None:
        for agent in ["a", "ab", "\0", *ODD_TEXTS]:
            start(backend, f"of {agent!r}", agent=agent)
        for agent in ["a", "ab", "\0", *ODD_TEXTS]:
            assert touched(backend, agent) == owned(backend, agent) == [f"of {agent!r}"]

    def test_tips_include_threads_without_a_head(self, backend: Any) -> None:
        no = start(backend, agent="a")
        untouch(backend, no, 1)
        backend.commit(Batch(rows=((no, row(2, head=0, root=b"")),), hide=((no, 1),)))
        assert owned(backend) == ["x"]
        ((record, newest, head),) = backend.tips("a", touched=True)
        assert (record.no, newest.seq, head) == (no, 2, None)
        untouch(backend, no, 2)
        assert (touched(backend), owned(backend)) == ([], ["x"])

    def test_tips_come_by_number(self, backend: Any) -> None:
        numbers = [start(backend, str(at), agent="a") for at in range(12)]
        for no in reversed(numbers):
            untouch(backend, no, 1)
            backend.commit(Batch(rows=((no, row(2, created_at=no * 7 % 5)),)))
        for wanted in (True, False):
            assert [tip.record.no for tip in backend.tips("a", touched=wanted)] == numbers

    def test_untouched_thread_is_touched_by_its_next_row(self, backend: Any) -> None:
        first, second = start(backend, rows=2, agent="a"), start(backend, "y", agent="a")
        untouch(backend, first, 2)
        assert (touched(backend), owned(backend)) == (["y"], ["x", "y"])
        backend.commit(Batch(rows=((first, row(3)),)))
        assert touched(backend) == ["x", "y"]
        backend.commit(Batch(untouch=((first, 3), (second, 1))))
        assert (touched(backend), owned(backend)) == ([], ["x", "y"])

    def test_thread_with_a_newer_row_stays_touched(self, backend: Any) -> None:
        no = start(backend, rows=2, agent="a")
        untouch(backend, no, 1)
        untouch(backend, no, 3)
        untouch(backend, no, 0)
        assert touched(backend) == ["x"]
        backend.commit(Batch(rows=((no, row(3)),), untouch=((no, 2),)))
        assert touched(backend) == ["x"]

    def test_untouching_a_later_row_is_skipped(self, backend: Any) -> None:
        no = start(backend, agent="a")
        untouch(backend, no, 2)
        backend.commit(Batch(rows=((no, row(2)),)))
        assert touched(backend) == ["x"]

    def test_batch_untouches_after_its_own_rows(self, backend: Any) -> None:
        old = start(backend, agent="a")
        backend.commit(
            Batch(
                threads=(new("new", agent="a"), new("more", agent="a")),
                rows=((-1, row(1)), (-1, row(2)), (old, row(2)), (-2, row(1)), (-2, row(2))),
                untouch=((-1, 2), (old, 2), (-2, 1)),
            )
        )
        assert (touched(backend), owned(backend)) == (["more"], ["x", "new", "more"])

    def test_untouching_an_absent_row_is_skipped(self, backend: Any) -> None:
        no = start(backend)
        other = start(backend, "y", agent="a")
        backend.commit(Batch(untouch=((no, 1), (no + 9, 1), (-1, 1), (0, 0), (other, 1 << 40))))
        assert touched(backend) == ["y"]

    def test_refused_batch_neither_touches_nor_untouches(self, backend: Any) -> None:
        no, other = start(backend, rows=2, agent="a"), start(backend, "y", agent="a")
        untouch(backend, no, 2)
        for refused in (
            Batch(rows=((no, row(9)),), untouch=((other, 1),)),
            Batch(rows=((no, row(3)),), newest=((other, 7),), untouch=((other, 1),)),
            Batch(rows=((no, row(3)),), touch=(digest("gone"),), untouch=((other, 1),)),
            Batch(rows=((no, row(3)),), visible=((no, 8),), untouch=((other, 1),)),
        ):
            with pytest.raises((Stale, Vanished, MissingChunks)):
                backend.commit(refused)
            assert touched(backend) == ["y"]

    def test_repeated_batch_neither_touches_nor_untouches(self, backend: Any) -> None:
        no = start(backend, agent="a")
        one, both = Batch(rows=((no, row(2)),)), Batch(rows=((no, row(3)),), untouch=((no, 3),))
        backend.commit(one)
        untouch(backend, no, 2)
        backend.commit(one)
        assert touched(backend) == []
        backend.commit(both)
        assert touched(backend) == []
        backend.commit(Batch(renew=((no, new("x", agent="a")),)))
        backend.commit(both)
        assert touched(backend) == ["x"]

    def test_renewed_thread_is_touched_for_its_new_owner(self, backend: Any) -> None:
        no = start(backend, agent="a")
        for agent, seq in (("b", 2), ("b", 3), ("a", 4)):
            untouch(backend, no, seq - 1)
            backend.commit(Batch(renew=((no, new("x", agent=agent)),), rows=((no, row(seq)),)))
            others = {"a", "b"} - {agent}
            assert touched(backend, agent) == owned(backend, agent) == ["x"]
            assert [touched(backend, other) + owned(backend, other) for other in others] == [[]]
        backend.commit(Batch(renew=((no, new("x")),), rows=((no, row(5)),)))
        assert touched(backend) == owned(backend) == []
        backend.commit(Batch(renew=((no, new("x", agent="a")),), rows=((no, row(6)),), untouch=((no, 6),)))
        assert (touched(backend), owned(backend)) == ([], ["x"])

    @pytest.mark.parametrize("agent", ["a", "b", None])
    def test_renewing_touches_a_thread(self, backend: Any, agent: Any) -> None:
        no = start(backend, agent="a")
        untouch(backend, no, 1)
        backend.commit(Batch(renew=((no, new("x", agent=agent)),)))
        assert {name: touched(backend, name) for name in "ab"} == {name: ["x"] * (name == agent) for name in "ab"}
        assert {name: owned(backend, name) for name in "ab"} == {name: ["x"] * (name == agent) for name in "ab"}

    def test_tips_are_one_view_of_the_store(self, backend: Any) -> None:
        numbers = [start(backend, str(at), agent="a") for at in range(30)]
        stop = threading.Event()

        def work() -> None:
            seq = 1
            while not stop.is_set():
                seq += 1
                rows = tuple((no, row(seq, head=seq - 1)) for no in numbers)
                gone = tuple((no, seq) for no in numbers) if seq % 2 else ()
                backend.commit(Batch(rows=rows, untouch=gone))

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for at in range(60):
                found = backend.tips("a", touched=at % 2 == 0)
                assert len(found) in ((0, 30) if at % 2 == 0 else (30,))
                assert len({(tip.newest.seq, tip.newest.head, tip.head.seq) for tip in found}) <= 1
        finally:
            stop.set()
            worker.join(30)

    def test_row_during_untouching_is_not_missed(self, backend: Any) -> None:
        no = start(backend, agent="a")
        last = 150

        def work() -> None:
            for seq in range(2, last + 1):
                backend.commit(Batch(rows=((no, row(seq)),)))

        worker = threading.Thread(target=work)
        worker.start()
        seen = []
        while worker.is_alive() or touched(backend):
            for tip in backend.tips("a", touched=True):
                seen.append(tip.newest.seq)
                untouch(backend, no, tip.newest.seq)
        assert seen[-1] == last
        assert seen == sorted(set(seen))

    def test_hiding_and_tags_touch_no_thread(self, backend: Any) -> None:
        no = start(backend, rows=3, agent="a")
        untouch(backend, no, 3)
        backend.commit(Batch(hide=((no, 1),), tag=((no, 2, "t"),), chunks=((digest("a"), b"a"),), newest=((no, 3),)))
        backend.commit(Batch(untag=((no, 2, "t"),), visible=((no, 2),)))
        assert touched(backend) == []

    # -- all of it ------------------------------------------------------------------------------------
    @SHARED
    @given(actions=st.lists(writes, max_size=25))
    def test_random_batches_get_the_answers_of_memory(self, actions: list[Any]) -> None:
        with TemporaryDirectory() as folder, self.open_backend(Path(folder)) as backend:
            compare(backend, actions, contents)
