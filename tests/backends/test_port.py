"""What the port promises, sentence by sentence, on every backend.

`test_backends_sqlite.py` has what is true of SQLite alone.
"""

import itertools
import os
import shutil
import threading
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.backends.file.backend import FileBackend
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.port import (
    Backend,
    Batch,
    Indexed,
    MissingChunks,
    NewThread,
    Row,
    Stale,
    ThreadRecord,
    Vanished,
)
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.errors import Invalid, Unavailable
from backtrail.overlay import Overlay
from tests.support.lengths import fewer
from tests.support.schemas import swept

# NUL, a lone surrogate, two of them that are not the character they would encode, wildcards, the last character.
ODD_TEXTS = ["", "a\0b", "\ud800", "\ud83d\ude00", "😀", "%", "_", "'; --", "\U0010ffff", "é"]

_counter = itertools.count(1)


def unique(size=16):
    return next(_counter).to_bytes(size, "big")


def row(seq, **fields):
    """Return a row that is a checkpoint and its thread's head, unless the fields say otherwise."""
    defaults = {
        "op": 1,
        "parent": seq - 1,
        "step": seq,
        "head": seq,
        "undo": 0,
        "redo": 0,
        "view": 0,
        "base": 1,
        "depth": 0,
        "created_at": 1000 + seq,
        "kind": 0,
        "label": None,
        "size": 10,
        "stored": 7,
        "root": b"root %d" % seq,
        "op_id": unique(),
        "extra": b"",
        "check": b"check",
        "payload": b"payload %d" % seq,
        "hidden": False,
    }
    return Row(seq=seq, **(defaults | fields))


def new(name, **fields):
    defaults = {"space": "thread", "uid": unique(8), "agent": None, "created_at": 5, "origin": None}
    return NewThread(name=name, **(defaults | fields))


def start(backend, name="x", rows=1, **fields):
    """Create a thread with that many rows and return its number."""
    batch = Batch(threads=(new(name, **fields),), rows=tuple((-1, row(seq)) for seq in range(1, rows + 1)))
    (no,) = backend.commit(batch)
    return no


def listed(backend, **filters):
    wanted = {"space": None, "agent": None, "prefix": None, "after": None, "limit": 100} | filters
    return backend.threads(**wanted)


def names(backend, **filters):
    return [record.name for record, _ in listed(backend, **filters)]


def digest(text):
    return text.encode().ljust(32, b".")


def everything(backend):
    """Return all that a backend tells of what it holds."""
    numbers = backend.thread_numbers(0, 1000)
    page = backend.chunk_page(b"", 1000)
    return {
        "threads": [backend.thread(no) for no in numbers],
        "rows": {no: backend.rows(no, [(1, 100)], payload=True) for no in numbers},
        "tags": {no: backend.tags(no) for no in numbers},
        "chunks": (page, backend.chunks([name for name, _ in page])),
        "listed": listed(backend),
        "usage": backend.usage()._replace(stored_bytes=0, index_bytes=0),
        "marked": backend.marked(0, 1000),
        "standings": [backend.standings(agent, touched=wanted) for agent in "ab" for wanted in (True, False)],
    }


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """The file of an empty store, to be copied: creating one waits for the disk ten times."""
    path = tmp_path_factory.mktemp("empty") / "store"
    SqliteBackend(path).close()
    return path


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def backend(request, tmp_path, empty_store):
    if request.param == "postgres":
        with swept() as opener, opener(durability="relaxed") as store:
            yield store._backend
        return
    made: Backend
    if request.param == "memory":
        made = MemoryBackend()
    elif request.param == "file":
        made = FileBackend(tmp_path / "files", durability="relaxed")
    else:
        made = SqliteBackend(shutil.copy(empty_store, tmp_path / "store"), durability="relaxed")
    yield made
    made.close()


class TestThreads:
    def test_a_thread_comes_back_with_all_its_fields(self, backend):
        made = new("x", space="agent", uid=b"12345678", agent="a", created_at=99, origin="o")
        (no,) = backend.commit(Batch(threads=(made,)))
        record = ThreadRecord(no, "agent", "x", b"12345678", "a", 99, "o")
        assert backend.find_thread("agent", "x") == record
        assert backend.thread_with_uid(b"12345678") == record
        assert backend.thread(no) == record

    def test_agent_and_origin_may_be_absent_which_is_not_empty(self, backend):
        absent, empty = backend.commit(Batch(threads=(new("a"), new("b", agent="", origin=""))))
        assert backend.thread(absent)[-3::2] == (None, None)
        assert backend.thread(empty)[-3::2] == ("", "")

    def test_what_is_not_there_is_none(self, backend):
        start(backend)
        assert backend.find_thread("thread", "y") is None
        assert backend.find_thread("agent", "x") is None
        assert backend.thread_with_uid(b"87654321") is None
        assert [backend.thread(no) for no in (-1, 0, 2)] == [None, None, None]

    @pytest.mark.parametrize("name", ODD_TEXTS)
    def test_any_text_is_a_name_an_agent_and_an_origin(self, backend, name):
        (no,) = backend.commit(Batch(threads=(new(name, agent=name, origin=name),), rows=((-1, row(1)),)))
        found = backend.find_thread("thread", name)
        assert (found.no, found.name, found.agent, found.origin) == (no, name, name, name)
        assert names(backend, agent=name) == names(backend, prefix=name) == [name]

    def test_a_name_space_is_its_own(self, backend):
        made = [start(backend, "x", space=space) for space in ("thread", "agent", "conversation", "run")]
        assert len(set(made)) == 4
        assert [backend.find_thread(space, "x").no for space in ("thread", "agent", "conversation", "run")] == made

    def test_numbers_count_up_and_come_in_the_order_of_the_batch(self, backend):
        first = backend.commit(Batch(threads=(new("a"), new("b"))))
        second = backend.commit(Batch(threads=(new("c"),)))
        assert list(first + second) == sorted(set(first + second))
        assert [backend.thread(no).name for no in first + second] == ["a", "b", "c"]

    def test_a_refused_batch_creates_no_thread(self, backend):
        start(backend, "taken")
        with pytest.raises(Stale):
            backend.commit(Batch(threads=(new("fresh"), new("taken"))))
        assert backend.find_thread("thread", "fresh") is None


class TestListing:
    def test_the_newest_row_decides_the_order_and_then_the_number(self, backend):
        for name, created_at in (("old", 1), ("tie 1", 5), ("tie 2", 5), ("young", 9)):
            backend.commit(Batch(threads=(new(name),), rows=((-1, row(1, created_at=created_at)),)))
        assert names(backend) == ["young", "tie 2", "tie 1", "old"]
        backend.commit(Batch(rows=((backend.find_thread("thread", "old").no, row(2, created_at=7)),)))
        assert names(backend) == ["young", "old", "tie 2", "tie 1"]

    def test_each_comes_with_its_newest_row_without_payload(self, backend):
        no = start(backend, rows=3)
        ((record, newest),) = listed(backend)
        assert record == backend.thread(no)
        assert newest == backend.newest(no)
        assert (newest.seq, newest.payload) == (3, None)

    def test_only_threads_with_a_head_are_listed(self, backend):
        backend.commit(Batch(threads=(new("empty"),)))
        no = start(backend, "gone")
        assert names(backend) == ["gone"]
        backend.commit(Batch(rows=((no, row(2, head=0)),)))
        assert names(backend) == []

    def test_pages_follow_one_another_without_a_gap(self, backend):
        for at in range(7):
            backend.commit(Batch(threads=(new(str(at)),), rows=((-1, row(1, created_at=at // 3)),)))
        seen, after = [], None
        while page := listed(backend, after=after, limit=2):
            assert len(page) <= 2
            seen += [record.name for record, _ in page]
            after = (page[-1][1].created_at, page[-1][0].no)
        assert seen == names(backend) == ["6", "5", "4", "3", "2", "1", "0"]

    def test_filters_hold_together(self, backend):
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

    def test_a_prefix_is_literal_and_case_counts(self, backend):
        for name in ("ab", "aB", "a%", "a", "b", "é", "\U0010ffffz", "\ud800x", "a\0"):
            start(backend, name)
        assert set(names(backend, prefix="a")) == {"ab", "aB", "a%", "a", "a\0"}
        assert names(backend, prefix="a%") == ["a%"]
        assert names(backend, prefix="\U0010ffff") == ["\U0010ffffz"]
        assert names(backend, prefix="\ud800") == ["\ud800x"]
        assert len(names(backend, prefix="")) == 9


class TestRows:
    def test_a_row_comes_back_with_all_its_fields(self, backend):
        texts = {
            "label": "l\0\ud800",
            "root": b"r\0",
            "op_id": b"o\0",
            "extra": b"e\0",
            "check": b"c\0",
            "payload": b"p\0",
        }
        numbers = {
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

    def test_no_payload_is_written_as_an_empty_one(self, backend):
        no = start(backend)
        backend.commit(Batch(rows=((no, row(2, payload=None)),)))
        assert backend.rows(no, [(2, 2)], payload=True)[0].payload == b""

    def test_newest_is_the_last_row_without_payload_hidden_or_not(self, backend):
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 2),)))
        assert (backend.newest(no).seq, backend.newest(no).payload) == (2, None)

    def test_newest_of_no_such_thread_is_none(self, backend):
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
    def test_rows_of_ranges_come_once_and_in_order(self, backend, ranges, seqs):
        start(backend, "before", rows=7)
        no = start(backend, rows=7)
        start(backend, "behind", rows=7)
        assert [found.seq for found in backend.rows(no, ranges)] == seqs
        assert [found.seq for found in backend.rows(no, ranges, newest_first=True)] == seqs[::-1]

    def test_a_limit_counts_over_all_ranges_from_the_end_that_comes_first(self, backend):
        no = start(backend, rows=9)
        ranges = [(1, 2), (4, 5), (8, 9)]
        assert [found.seq for found in backend.rows(no, ranges, limit=3)] == [1, 2, 4]
        assert [found.seq for found in backend.rows(no, ranges, limit=3, newest_first=True)] == [9, 8, 5]
        assert backend.rows(no, ranges, limit=0) == []
        assert len(backend.rows(no, ranges, limit=99)) == 6

    def test_visible_keeps_checkpoints_that_are_not_hidden(self, backend):
        no = start(backend)
        backend.commit(Batch(rows=((no, row(2, root=b"")), (no, row(3)), (no, row(4))), hide=((no, 3),)))
        assert [found.seq for found in backend.rows(no, [(1, 9)], visible=True)] == [1, 4]
        assert [found.seq for found in backend.rows(no, [(1, 9)], visible=True, newest_first=True, limit=1)] == [4]
        assert [found.seq for found in backend.rows(no, [(1, 9)])] == [1, 2, 3, 4]

    def test_rows_of_no_such_thread_are_none(self, backend):
        start(backend)
        assert [backend.rows(no, [(1, 9)]) for no in (-1, 0, 2, 1 << 40)] == [[]] * 4

    @pytest.mark.parametrize("label", ODD_TEXTS)
    def test_labels_find_visible_rows_of_their_thread(self, backend, label):
        no, other = start(backend), start(backend, "other")
        added = tuple((no, row(seq, label=text)) for seq, text in ((2, label), (3, label), (4, "no"), (5, label)))
        backend.commit(Batch(rows=(*added, (other, row(2, label=label))), hide=((no, 3),)))
        assert backend.labelled(no, label) == [2, 5]
        assert backend.labelled(other, label) == [2]
        assert backend.labelled(no, "nobody's") == []


class TestTags:
    def test_tags_keep_the_order_they_were_given_in(self, backend):
        no = start(backend, rows=2)
        backend.commit(Batch(tag=((no, 1, "b"), (no, 1, "a"), (no, 2, "c"))))
        backend.commit(Batch(tag=((no, 1, "c"), (no, 1, "b"))))
        assert backend.tags(no) == backend.tags(no, [2, 1]) == {1: ("b", "a", "c"), 2: ("c",)}

    def test_what_is_untagged_is_gone_and_may_come_again(self, backend):
        no = start(backend)
        backend.commit(Batch(tag=((no, 1, "a"), (no, 1, "b"), (no, 1, "c"))))
        backend.commit(Batch(untag=((no, 1, "a"), (no, 1, "c"), (no, 1, "never"), (no, 9, "a"))))
        assert backend.tags(no) == {1: ("b",)}
        backend.commit(Batch(tag=((no, 1, "a"),)))
        assert backend.tags(no) == {1: ("b", "a")}
        backend.commit(Batch(untag=((no, 1, "a"), (no, 1, "b"))))
        assert backend.tags(no) == {}

    def test_tags_of_some_rows(self, backend):
        no = start(backend, rows=1200)
        backend.commit(Batch(tag=tuple((no, seq, f"tag {seq}") for seq in range(1, 1200))))
        assert backend.tags(no, []) == {}
        assert backend.tags(no, iter([3, 1, 1, 1200, 5000])) == {1: ("tag 1",), 3: ("tag 3",)}
        assert list(backend.tags(no, range(1, 1200))) == list(range(1, 1200))

    @pytest.mark.parametrize("tag", ODD_TEXTS)
    def test_tagged_finds_visible_rows_of_the_thread(self, backend, tag):
        no, other = start(backend, rows=4), start(backend, "other", rows=4)
        backend.commit(
            Batch(tag=((no, 4, tag), (no, 3, tag), (no, 1, tag), (no, 2, "no"), (other, 2, tag)), hide=((no, 3),))
        )
        assert backend.tagged(no, tag) == [1, 4]
        assert backend.tags(no) == {1: (tag,), 2: ("no",), 3: (tag,), 4: (tag,)}

    def test_what_is_not_there_is_not_tagged(self, backend):
        no = start(backend)
        backend.commit(Batch(tag=((no, 2, "a"), (no + 1, 1, "a"), (-1, 1, "a"))))
        backend.commit(Batch(rows=((no, row(2)),)))
        assert backend.tags(no) == {}


class TestChunks:
    def test_chunks_that_are_there_come_back(self, backend):
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("b"), b""))))
        wanted = [digest("b"), digest("a"), digest("c"), digest("a")]
        assert backend.chunks(wanted) == {digest("a"): b"A", digest("b"): b""}
        assert backend.present(wanted) == {digest("a"), digest("b")}
        assert backend.chunks([]) == {}
        assert backend.present([]) == set()

    def test_the_first_to_put_a_chunk_wins(self, backend):
        backend.commit(Batch(chunks=((digest("a"), b"first"), (digest("a"), b"twice"))))
        backend.commit(Batch(chunks=((digest("a"), b"later"),)))
        assert backend.chunks([digest("a")]) == {digest("a"): b"first"}

    @pytest.mark.parametrize("count", [7, 8, 9, 511, 512, 513, 1400])
    def test_any_number_of_them(self, backend, count):
        stored = {digest(str(at)): b"%d" % at for at in range(count)}
        backend.commit(Batch(chunks=tuple(stored.items())))
        assert backend.chunks(list(stored)) == stored
        assert backend.present([*stored, digest("none")]) == set(stored)
        backend.commit(Batch(touch=tuple(stored)))


def _refused(no):
    """Batches that a store refuses which has the thread `no` with rows 1 to 3, of which 2 is hidden."""
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


class TestCommit:
    @pytest.mark.parametrize("case", _refused(1))
    def test_a_refused_batch_writes_nothing_at_all(self, backend, case):
        no = start(backend, rows=3)
        other = start(backend, "other", uid=b"other...")
        backend.commit(Batch(hide=((no, 2),), chunks=((digest("there"), b"there"),)))
        backend.next_epoch()
        before = everything(backend)
        answer, refused = _refused(no)[case]
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
            assert everything(backend) == before
        backend.commit(Batch(rows=((other, row(2)), (no, row(4)))))

    def test_tags_that_a_batch_requires_are_looked_at(self, backend):
        no = start(backend, rows=4)
        backend.commit(Batch(tag=((no, 2, "\ud800"), (no, 2, "b"), (no, 3, "c"))))
        before = everything(backend)
        for tags in ({1: ("a",)}, {2: ()}, {2: ("b",)}, {1: (), 2: ("\ud800", "b", "c")}, {3: ("b",)}, {3: ("C",)}):
            batch = Batch(tags=tuple((no, *each) for each in tags.items()), hide=tuple((no, seq) for seq in tags))
            with pytest.raises(Stale):
                backend.commit(batch)
            with pytest.raises(Stale), backend.group():
                backend.commit(batch)
            assert everything(backend) == before
        required = ((no, 1, ()), (no, 2, ("b", "\ud800")), (no, 3, ()))
        batch = Batch(rows=((no, row(5)),), tags=required, hide=((no, 1), (no, 2)), untag=((no, 3, "c"),))
        backend.commit(batch)
        assert [each.seq for each in backend.rows(no, [(1, 9)], visible=True)] == [3, 4, 5]
        backend.commit(Batch(show=((no, 1),), tag=((no, 1, "later"),)))
        backend.commit(batch)  # it is there: what it required then does not matter any more
        assert [each.seq for each in backend.rows(no, [(1, 9)], visible=True)] == [1, 3, 4, 5]

    def test_rows_with_gaps_come_behind_the_newest_one(self, backend):
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
        assert {no, made, other} <= set(backend.marked(0, 99))
        assert [stand.record.no for stand in backend.standings("a", touched=True)] == [made]
        assert backend.commit(batch) == (made,)  # it counts once
        backend.commit(Batch(rows=((made, row(4_000_000_001)), (no, row(9)))))
        before = everything(backend)
        for rows in (((no, row(9)),), ((no, row(5)),), ((no, row(12)), (no, row(11))), ((no + 99, row(1)),)):
            with pytest.raises(Stale):
                backend.commit(Batch(rows=rows, gaps=True, tag=((no, 8, "no"),)))
            assert everything(backend) == before
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((no, row(12)),), gaps=True, newest=((no, 8),)))
        assert everything(backend) == before
        again = Batch(rows=((no, row(12)),), gaps=True, newest=((no, 9),))
        assert [backend.commit(again), backend.commit(again)] == [(), ()]
        with backend.group():
            backend.commit(Batch(rows=((no, row(15)),), gaps=True))
            with pytest.raises(Stale):
                backend.commit(Batch(rows=((no, row(14)),), gaps=True))
        assert backend.newest(no).seq == 15

    def test_a_taken_uid_is_stale(self, backend):
        start(backend, uid=b"12345678")
        with pytest.raises(Stale):
            backend.commit(Batch(threads=(new("y", uid=b"12345678"),)))

    def test_vanished_says_which_row(self, backend):
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 2),)))
        with pytest.raises(Vanished) as caught:
            backend.commit(Batch(visible=((no, 1), (no, 2))))
        assert (caught.value.thread, caught.value.seq) == (no, 2)

    def test_missing_chunks_are_all_named(self, backend):
        there = {digest(str(at)): b"" for at in range(600)}
        backend.commit(Batch(chunks=tuple(there.items())))
        gone = {digest(f"gone {at}") for at in range(600)}
        with pytest.raises(MissingChunks) as caught:
            backend.commit(Batch(touch=(*there, *gone)))
        assert caught.value.digests == gone

    def test_a_chunk_of_the_batch_itself_may_be_touched(self, backend):
        backend.commit(Batch(chunks=((digest("a"), b"A"),), touch=(digest("a"),)))
        assert backend.present([digest("a")]) == {digest("a")}

    def test_what_is_required_and_holds_is_no_obstacle(self, backend):
        no, other = start(backend, rows=2), start(backend, "other")
        backend.commit(Batch(rows=((no, row(3)),), newest=((no, 2), (other, 1)), visible=((no, 1), (other, 1))))
        assert backend.newest(no).seq == 3

    def test_a_thread_without_rows_has_row_0_as_its_newest(self, backend):
        (no,) = backend.commit(Batch(threads=(new("x"),)))
        backend.commit(Batch(newest=((no, 0),), rows=((no, row(1)),)))
        assert backend.newest(no).seq == 1

    def test_new_threads_are_named_by_minus_one_and_so_on(self, backend):
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

    def test_a_renewed_thread_keeps_its_number_name_and_uid(self, backend):
        no = start(backend, uid=b"12345678", agent="old", origin="o")
        renewed = new("ignored", space="run", agent="a\0", created_at=77, origin=None)
        backend.commit(Batch(renew=((no, renewed), (no + 9, renewed), (-1, renewed)), rows=((no, row(2)),)))
        assert backend.thread(no) == ThreadRecord(no, "thread", "x", b"12345678", "a\0", 77, None)
        assert backend.thread_numbers(0, 99) == [no]

    def test_rows_of_several_threads_may_alternate(self, backend):
        a, b = start(backend, "a"), start(backend, "b", rows=4)
        backend.commit(Batch(rows=((a, row(2)), (b, row(5)), (a, row(3)), (b, row(6)))))
        assert (backend.newest(a).seq, backend.newest(b).seq) == (3, 6)

    def test_hiding_what_is_hidden_or_gone_is_not_an_error(self, backend):
        no = start(backend, rows=2)
        for _ in range(2):
            backend.commit(Batch(hide=((no, 1), (no, 9), (no + 1, 1), (-1, 1))))
        assert [found.hidden for found in backend.rows(no, [(1, 9)])] == [True, False]

    def test_an_empty_batch_is_no_error(self, backend):
        before = everything(backend)
        assert backend.commit(Batch()) == ()
        assert everything(backend) == before

    def test_of_two_writers_one_extends_a_row(self, backend):
        no = start(backend)
        backend.commit(Batch(rows=((no, row(2, payload=b"mine")),)))
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((no, row(2, payload=b"theirs")),)))
        assert backend.rows(no, [(2, 2)], payload=True)[0].payload == b"mine"

    def test_threads_that_race_lose_nothing(self, backend):
        no = start(backend)
        written = []

        def work():
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


class TestCommittedTwice:
    def test_one_row_counts_once(self, backend):
        no = start(backend)
        batch = Batch(rows=((no, row(2)),))
        assert backend.commit(batch) == backend.commit(batch) == ()
        assert backend.newest(no).seq == 2

    def test_it_counts_once_even_after_others_went_on(self, backend):
        no = start(backend)
        batch = Batch(rows=((no, row(2)),))
        backend.commit(batch)
        backend.commit(Batch(rows=((no, row(3)),)))
        before = everything(backend)
        assert backend.commit(batch) == ()
        assert everything(backend) == before

    def test_it_counts_once_even_if_what_it_required_has_changed(self, backend):
        no = start(backend, rows=2)
        backend.commit(Batch(chunks=((digest("a"), b"A"),)))
        batch = Batch(rows=((no, row(3)),), newest=((no, 2),), visible=((no, 1),), touch=(digest("a"),))
        backend.commit(batch)
        backend.commit(Batch(hide=((no, 1),)))
        backend.remove_chunks([digest("a")], backend.next_epoch())
        before = everything(backend)
        assert backend.commit(batch) == ()
        assert everything(backend) == before

    def test_it_counts_once_even_if_what_it_showed_is_gone(self, backend):
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 1),)))
        batch = Batch(threads=(new("y"),), rows=((no, row(3)), (-1, row(1))), show=((no, 1),), untouch=((no, 3),))
        made = backend.commit(batch)
        backend.commit(Batch(hide=((no, 1),)))
        backend.remove_rows(no, [1])
        before = everything(backend)
        assert backend.commit(batch) == made
        assert everything(backend) == before

    def test_the_numbers_of_its_threads_come_again(self, backend):
        batch = Batch(threads=(new("a"), new("b")), rows=((-1, row(1)), (-2, row(1))))
        made = backend.commit(batch)
        start(backend, "other")
        assert backend.commit(batch) == made
        without_rows = Batch(threads=(new("c"),))
        assert backend.commit(without_rows) == backend.commit(without_rows)

    def test_another_op_id_is_another_batch(self, backend):
        no = start(backend)
        mine = row(2)
        backend.commit(Batch(rows=((no, mine),)))
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((no, mine._replace(op_id=b"another")),)))

    def test_all_rows_must_be_the_same(self, backend):
        a, b = start(backend, "a"), start(backend, "b")
        mine = row(2)
        backend.commit(Batch(rows=((a, mine), (b, row(2)))))
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((a, mine), (b, row(2)))))

    def test_the_same_name_with_another_uid_is_another_thread(self, backend):
        mine = row(1)
        backend.commit(Batch(threads=(new("x"),), rows=((-1, mine),)))
        with pytest.raises(Stale):
            backend.commit(Batch(threads=(new("x"),), rows=((-1, mine),)))


class TestUpkeep:
    def test_thread_numbers_come_in_pages_deleted_ones_included(self, backend):
        made = [start(backend, str(at)) for at in range(5)]
        backend.commit(Batch(rows=((made[2], row(2, head=0)),), hide=((made[2], 1),)))
        assert backend.thread_numbers(0, 99) == made
        assert backend.thread_numbers(made[0], 2) == made[1:3]
        assert backend.thread_numbers(made[-1], 9) == []

    def test_commits_stamp_their_chunks_with_the_current_epoch(self, backend):
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("b"), b"B"), (digest("c"), b"C"))))
        (first,) = {epoch for _, epoch in backend.chunk_page(b"", 9)}
        second = backend.next_epoch()
        assert second > first
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("d"), b"D")), touch=(digest("b"),)))
        assert backend.chunk_page(b"", 9) == [
            (digest("a"), second),
            (digest("b"), second),
            (digest("c"), first),
            (digest("d"), second),
        ]
        assert backend.next_epoch() > second

    def test_chunks_come_in_pages_by_digest(self, backend):
        backend.commit(Batch(chunks=tuple((digest(text), b"") for text in "dbca")))
        page = [name for name, _ in backend.chunk_page(b"", 3)]
        assert page == [digest("a"), digest("b"), digest("c")]
        assert [name for name, _ in backend.chunk_page(page[-1], 3)] == [digest("d")]
        assert backend.chunk_page(digest("d"), 3) == []

    def test_only_chunks_of_older_epochs_are_removed(self, backend):
        backend.commit(Batch(chunks=((digest("old"), b"12345"), (digest("kept"), b"1"), (digest("not named"), b"1"))))
        epoch = backend.next_epoch()
        backend.commit(Batch(touch=(digest("kept"),)))
        named = [digest("old"), digest("kept"), digest("none"), digest("old")]
        assert backend.remove_chunks(named, epoch) == 5
        assert backend.present([*named, digest("not named")]) == {digest("kept"), digest("not named")}
        assert backend.remove_chunks(named, epoch) == 0

    def test_only_hidden_rows_are_removed_and_never_the_newest(self, backend):
        no, other = start(backend, rows=4), start(backend, "other", rows=2)
        every = tuple((no, seq) for seq in (1, 3, 4))
        backend.commit(Batch(hide=(*every, (other, 1)), tag=tuple((no, seq, "t") for seq in range(1, 5))))
        assert backend.remove_rows(no, [1, 2, 3, 4, 9, 1]) == 2
        assert [found.seq for found in backend.rows(no, [(1, 9)])] == [2, 4]
        assert backend.tags(no) == {2: ("t",), 4: ("t",)}
        assert backend.remove_rows(no + 9, [1]) == 0
        assert [found.seq for found in backend.rows(other, [(1, 9)])] == [1, 2]

    def test_a_removed_seq_is_not_used_again(self, backend):
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 2), (no, 3))))
        assert backend.remove_rows(no, [2, 3]) == 1
        for seq in (2, 3):
            with pytest.raises(Stale):
                backend.commit(Batch(rows=((no, row(seq)),)))
        with pytest.raises(Vanished):
            backend.commit(Batch(rows=((no, row(4)),), visible=((no, 2),)))
        backend.commit(Batch(rows=((no, row(4)),)))

    def test_rewriting_replaces_rows_that_are_still_the_same(self, backend):
        no = start(backend, rows=3)
        first, second, third = backend.rows(no, [(1, 3)], payload=True)
        changed = first._replace(base=1, depth=5, stored=1, label="l", payload=b"shorter", extra=b"e", check=b"c")
        replaced = backend.rewrite(no, [changed, second._replace(op_id=b"other", payload=b"!"), row(9)])
        assert replaced == 1
        assert backend.rows(no, [(1, 9)], payload=True) == [changed, second, third]
        assert backend.labelled(no, "l") == [1]

    def test_rewriting_makes_no_base_stand_on_another_row_again(self, backend):
        no = start(backend, rows=2)
        first, second = backend.rows(no, [(1, 2)], payload=True)
        based = second._replace(base=2, payload=b"a base")
        assert backend.rewrite(no, [based]) == 1
        assert backend.rewrite(no, [second._replace(payload=b"read before"), first._replace(base=2)]) == 0
        assert backend.rewrite(no, [based._replace(payload=b"another")]) == 1
        assert backend.rows(no, [(1, 2)], payload=True) == [first, based._replace(payload=b"another")]

    def test_rewriting_a_row_keeps_its_tags_and_it_the_newest(self, backend):
        no = start(backend, rows=2)
        backend.commit(Batch(tag=((no, 2, "x"),)))
        (newest,) = backend.rows(no, [(2, 2)], payload=True)
        assert backend.rewrite(no, [newest._replace(payload=b"other")]) == 1
        assert backend.newest(no) == newest._replace(payload=None)
        assert backend.tags(no) == {2: ("x",)}

    def test_rewriting_neither_shows_nor_hides_a_row(self, backend):
        no = start(backend, rows=2)
        first, second = backend.rows(no, [(1, 2)], payload=True)
        backend.commit(Batch(hide=((no, 1),)))
        assert backend.rewrite(no, [first, second._replace(hidden=True)]) == 2
        assert [found.hidden for found in backend.rows(no, [(1, 2)])] == [True, False]

    def test_rewriting_a_row_read_without_payload_keeps_it(self, backend):
        no = start(backend)
        (read,) = backend.rows(no, [(1, 1)])
        assert backend.rewrite(no, [read]) == 1
        assert backend.rows(no, [(1, 1)], payload=True)[0].payload == b"payload 1"

    def test_usage_counts_what_is_there(self, backend):
        empty = backend.usage()
        assert empty[:7] == ({}, 0, {}, {}, {}, 0, 0)
        no = start(backend, rows=3)
        start(backend, "y")
        start(backend, "x", space="run")
        gone = start(backend, "gone")
        backend.commit(
            Batch(
                rows=((gone, row(2, head=0, root=b"", payload=b"")), (no, row(4, size=100, payload=b"1234"))),
                hide=((gone, 1), (no, 2)),
                chunks=((digest("a"), b"12345"),),
            )
        )
        usage = backend.usage()
        assert usage.threads == {"thread": 2, "run": 1}
        assert usage.rows == 8
        assert usage.checkpoints == {"thread": 4, "run": 1}
        assert usage.logical_bytes == {"thread": 3 * 10 + 100, "run": 10}
        assert usage.chunks == 1
        assert usage.payload_bytes == 6 * len(b"payload 1") + 4 + 5
        assert usage.stored_bytes >= usage.payload_bytes

    def test_usage_counts_the_items_of_lists_that_are_up_to_date(self, backend):
        for name, space in (("a", "thread"), ("b", "thread"), ("c", "run"), ("gone", "run"), ("moved", "run")):
            no = start(backend, name, space=space)
            assert backend.index(no, Indexed(0, 0, 0), Indexed(1, 7, 1), ())
        start(backend, "unindexed", space="run")
        backend.commit(Batch(rows=((no, row(2)),)))
        gone = backend.find_thread("run", "gone").no
        backend.commit(Batch(rows=((gone, row(2, head=0, root=b"")),)))
        assert backend.index(gone, Indexed(1, 7, 1), Indexed(0, 3, 2), ())
        assert backend.usage().items == {"thread": 14, "run": 7}

    def test_reclaiming_changes_nothing_that_is_kept(self, backend):
        no = start(backend, rows=50)
        backend.commit(
            Batch(
                chunks=tuple((digest(str(at)), bytes(5000)) for at in range(50)),
                hide=tuple((no, at) for at in range(40)),
            )
        )
        backend.remove_chunks([digest(str(at)) for at in range(45)], backend.next_epoch())
        backend.remove_rows(no, range(40))
        before = everything(backend)
        backend.reclaim()
        assert everything(backend) == before
        backend.commit(Batch(rows=((no, row(51)),)))

    def test_nothing_works_after_closing_but_closing(self, backend):
        no = start(backend)
        backend.close()
        backend.close()
        calls = [
            lambda: backend.find_thread("thread", "x"),
            lambda: backend.thread_with_uid(b""),
            lambda: listed(backend),
            lambda: backend.standings("a", touched=True),
            lambda: backend.newest(no),
            lambda: backend.rows(no, [(1, 1)]),
            lambda: backend.labelled(no, "l"),
            lambda: backend.tags(no),
            lambda: backend.tagged(no, "t"),
            lambda: backend.chunks([b""]),
            lambda: backend.present([b""]),
            lambda: backend.commit(Batch()),
            lambda: backend.thread_numbers(0, 1),
            lambda: backend.thread(no),
            backend.next_epoch,
            lambda: backend.chunk_page(b"", 1),
            lambda: backend.remove_chunks([b""], 9),
            lambda: backend.remove_rows(no, [1]),
            lambda: backend.rewrite(no, [row(1)]),
            backend.reclaim,
            backend.usage,
            lambda: backend.snapshot().__enter__(),
        ]
        for call in calls:
            with pytest.raises(Unavailable) as caught:
                call()
            assert caught.value.code == "unavailable.closed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
class TestFork:
    def test_both_sides_go_on_after_a_fork_in_the_middle_of_writes(self, backend):
        no = start(backend)
        stop = threading.Event()

        def work():
            while not stop.is_set():
                backend.commit(Batch(rows=((no, row(backend.newest(no).seq + 1)),)))

        worker = threading.Thread(target=work)
        worker.start()
        children = []
        for at in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    made = start(backend, f"child {at}", uid=b"child  %d" % at)
                    status = 0 if backend.newest(made).seq == 1 else 2
                finally:
                    os._exit(status)
            children.append(child)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        stop.set()
        worker.join()
        assert statuses == [0] * 5
        seqs = [found.seq for found in backend.rows(no, [(1, 1 << 20)])]
        assert seqs == list(range(1, len(seqs) + 1))


# -- the backends against each other ----------------------------------------------------------------
_threads = st.sampled_from([-2, -1, 0, 1, 2, 3, 99])
_seqs = st.integers(0, 5)
_texts = st.sampled_from(["a", "ab", "b", "\0", "\ud800"])
_digests = st.sampled_from([digest(text) for text in "abc"])
_some = {"max_size": 2}


def _tuples(*parts):
    return st.lists(st.tuples(*parts), **_some).map(tuple)


_rows = st.builds(
    row,
    _seqs,
    label=st.none() | _texts,
    head=st.integers(0, 1),
    root=st.sampled_from([b"", b"r"]),
    created_at=st.integers(0, 3),
    op_id=st.sampled_from([b"1", b"2", b"3"]),
    hidden=st.booleans(),
)
_news = st.builds(
    new,
    _texts,
    space=st.sampled_from(["thread", "run"]),
    uid=st.sampled_from([b"1", b"2", b"3", b"4"]),
    agent=st.sampled_from([None, "a", "b"]),
)
_batches = st.builds(
    Batch,
    threads=st.lists(_news, **_some).map(tuple),
    renew=_tuples(_threads, _news),
    rows=_tuples(_threads, _rows),
    chunks=_tuples(_digests, st.binary(max_size=3)),
    touch=st.lists(_digests, max_size=1).map(tuple),
    visible=st.lists(st.tuples(_threads, _seqs), max_size=1).map(tuple),
    newest=st.lists(st.tuples(_threads, _seqs), max_size=1).map(tuple),
    tags=st.lists(st.tuples(_threads, _seqs, st.lists(_texts, max_size=1).map(tuple)), max_size=1).map(tuple),
    hide=_tuples(_threads, _seqs),
    show=st.lists(st.tuples(_threads, _seqs), max_size=1).map(tuple),
    tag=_tuples(_threads, _seqs, _texts),
    untag=_tuples(_threads, _seqs, _texts),
    untouch=_tuples(_threads, _seqs),
)
_appends = st.builds(lambda no, label: ("append", no, label), st.integers(1, 3), st.none() | _texts)
_others = st.sampled_from(["epoch", "sweep", "remove", "rewrite", "reclaim", "again"])


def _without_guesses(backend, batch):
    """Leave out what names a thread by a number that it is about to get."""
    known = {-2, -1, 0, 99, *backend.thread_numbers(0, 99)}
    return batch._replace(
        **{
            field: tuple(entry for entry in getattr(batch, field) if entry[0] in known)
            for field in ("renew", "rows", "visible", "newest", "tags", "hide", "show", "tag", "untag", "untouch")
        },
    )


def _do(backend, action, earlier):  # noqa: PLR0911 - one for each action
    """Do it and return the answer, an exception's included."""
    try:
        match action:
            case Batch():
                return backend.commit(_without_guesses(backend, action))
            case ("append", no, label, op_id):
                newest = backend.newest(no)
                added = row(newest.seq + 1 if newest else 1, label=label, op_id=op_id)
                return backend.commit(Batch(rows=((no, added),)))
            case "again":
                return backend.commit(_without_guesses(backend, earlier))
            case "epoch":
                return backend.next_epoch()
            case "sweep":
                return backend.remove_chunks([digest("a"), digest("b")], 2)
            case "remove":
                return [backend.remove_rows(no, range(6)) for no in range(4)]
            case "rewrite":
                return backend.rewrite(1, [row(seq, op_id=b"1", payload=b"rewritten") for seq in range(4)])
            case "reclaim":
                return backend.reclaim()
    except (Stale, Vanished, MissingChunks) as answer:
        return type(answer), vars(answer)


@fewer(2)
@given(actions=st.lists(_batches | _appends | _others, max_size=25))
def test_the_backends_give_the_same_answers(tmp_path_factory, empty_store, actions):
    sqlite = SqliteBackend(shutil.copy(empty_store, tmp_path_factory.mktemp("store")), durability="relaxed")
    files = FileBackend(tmp_path_factory.mktemp("files"), durability="relaxed")
    with closing(sqlite), closing(files), swept() as opener, opener(durability="relaxed") as store:
        for other in (sqlite, files, store._backend):
            _hold_against_memory(other, actions)


def _hold_against_memory(other, actions):
    memory = MemoryBackend()
    batches = [action for action in actions if isinstance(action, Batch)]
    for at, chosen in enumerate(actions):
        action = (*chosen, b"%d" % (at % 3)) if isinstance(chosen, tuple) else chosen
        earlier = batches[at % len(batches)] if batches else Batch()
        assert _do(memory, action, earlier) == _do(other, action, earlier)
        assert everything(memory) == everything(other)
    for no in range(4):
        for text in ("a", "ab", "b", "\0", "\ud800"):
            assert memory.labelled(no, text) == other.labelled(no, text)
            assert memory.tagged(no, text) == other.tagged(no, text)
            assert names(memory, prefix=text) == names(other, prefix=text)
        spans = [(3, 4), (1, 2), (2, 2)]
        for options in ({"visible": True}, {"newest_first": True, "limit": 2}):
            assert memory.rows(no, spans, **options) == other.rows(no, spans, **options)


class TestHiddenFromTheBeginning:
    def test_a_row_that_comes_hidden_is_hidden_and_can_be_removed_in_the_group_that_brought_it(self, backend):
        with backend.group():
            rows = tuple((-1, row(seq, hidden=seq < 3)) for seq in range(1, 5))
            (no,) = backend.commit(Batch(threads=(new("x"),), rows=rows, tag=((-1, 2, "t"),)))
            assert backend.remove_rows(no, [1]) == 1
        found = [(each.seq, each.hidden) for each in backend.rows(no, [(1, 9)])]
        assert found == [(2, True), (3, False), (4, False)]
        assert [found.seq for found in backend.rows(no, [(1, 9)], visible=True)] == [3, 4]
        assert backend.tags(no) == {2: ("t",)}


class TestSnapshot:
    def test_it_is_the_store_as_it_was_whatever_is_written_meanwhile(self, backend):
        no = start(backend, agent="a", rows=3)
        gone = start(backend, "gone", rows=2)
        chunk = (digest("a"), b"a")
        backend.commit(Batch(chunks=(chunk,), tag=((no, 1, "t"),), hide=((gone, 1),)))
        before = everything(backend)
        with backend.snapshot() as view:
            backend.commit(Batch(rows=((no, row(4)),), hide=((no, 1),), untag=((no, 1, "t"),)))
            backend.commit(Batch(renew=((no, new("x", agent="b")),), untouch=((no, 4),)))
            backend.rewrite(no, [backend.rows(no, [(2, 2)])[0]._replace(payload=b"other")])
            backend.remove_rows(gone, [1])
            backend.remove_chunks([digest("a")], backend.next_epoch())
            start(backend, "y")
            assert everything(backend) != before
            assert everything(view) == before
            assert view.find_thread("thread", "y") is None
            assert [found.seq for found in view.rows(no, [(1, 1), (3, 9)])] == [1, 3]
        assert everything(backend) != before

    def test_each_is_of_its_own_moment(self, backend):
        no = start(backend)
        with backend.snapshot() as first:
            backend.commit(Batch(rows=((no, row(2)),)))
            with backend.snapshot() as second:
                backend.commit(Batch(rows=((no, row(3)),)))
                assert [each.newest(no).seq for each in (first, second, backend)] == [1, 2, 3]

    def test_a_store_goes_on_after_a_block_that_failed(self, backend):
        no = start(backend)
        with pytest.raises(ZeroDivisionError), backend.snapshot():
            raise ZeroDivisionError
        backend.commit(Batch(rows=((no, row(2)),)))
        with backend.snapshot() as view:
            assert view.newest(no).seq == 2

    def test_there_is_none_inside_a_group(self, backend):
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            with pytest.raises(Invalid), backend.snapshot():
                pass
        assert backend.newest(no).seq == 2


class TestGroup:
    def test_what_was_committed_in_it_is_there_afterwards(self, backend):
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            other = start(backend, "y", rows=2)
            backend.commit(Batch(rows=((other, row(3)),), chunks=((digest("a"), b"a"),), tag=((no, 2, "t"),)))
        assert (backend.newest(no).seq, backend.newest(other).seq) == (2, 3)
        assert (backend.tags(no), backend.chunks([digest("a")])) == ({2: ("t",)}, {digest("a"): b"a"})

    def test_its_own_thread_sees_it_at_once_and_others_only_when_it_has_ended(self, backend):
        no = start(backend)
        seen = []
        other = threading.Thread(target=lambda: seen.append(backend.newest(no).seq))
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            assert backend.newest(no).seq == 2
            assert [found.seq for found in backend.rows(no, [(1, 1), (2, 9)])] == [1, 2]
            assert backend.usage().rows == 2
            other.start()
            backend.commit(Batch(rows=((no, row(3)),)))
        other.join(30)
        assert seen in ([1], [3])  # whichever way the backend keeps it apart

    def test_each_commit_is_refused_alone_and_leaves_nothing_behind(self, backend):
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            with pytest.raises(Stale):
                backend.commit(Batch(rows=((no, row(2)),)))
            with pytest.raises(Stale):
                backend.commit(Batch(rows=((no, row(3)), (no, row(5))), chunks=((digest("x"), b"x"),)))
            with pytest.raises(Stale):
                backend.commit(Batch(threads=(new("fresh"), new("x"))))
            with pytest.raises(Vanished):
                backend.commit(Batch(rows=((no, row(3)),), visible=((no, 9),)))
            with pytest.raises(MissingChunks):
                backend.commit(Batch(rows=((no, row(3)),), touch=(digest("gone"),)))
            backend.commit(Batch(rows=((no, row(3)),), newest=((no, 2),)))
        assert [found.seq for found in backend.rows(no, [(1, 9)])] == [1, 2, 3]
        assert backend.present([digest("x")]) == set()
        assert backend.find_thread("thread", "fresh") is None

    def test_an_exception_takes_all_of_it_back(self, backend):
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 1),), chunks=((digest("old"), b"old"),), tag=((no, 2, "a"), (no, 2, "b"))))
        before = everything(backend)
        with pytest.raises(RuntimeError), backend.group():
            backend.commit(Batch(rows=((no, row(4)),), hide=((no, 2),)))
            start(backend, "y")
            backend.commit(Batch(renew=((no, new("x", agent="other")),), untag=((no, 2, "a"),), tag=((no, 1, "c"),)))
            backend.next_epoch()
            backend.commit(Batch(touch=(digest("old"),), chunks=((digest("new"), b"new"),)))
            assert backend.remove_rows(no, [1, 2]) == 2
            assert backend.remove_chunks([digest("old")], 99) == 3
            assert backend.rewrite(no, [backend.rows(no, [(3, 3)])[0]._replace(payload=b"other")]) == 1
            raise RuntimeError
        assert everything(backend) == before
        backend.commit(Batch(rows=((no, row(4)),)))

    def test_the_same_batch_counts_once_inside_and_across(self, backend):
        no = start(backend)
        one = Batch(rows=((no, row(2)),))
        made = Batch(threads=(new("y"),), rows=((-1, row(1)),))
        with backend.group():
            assert backend.commit(one) == backend.commit(one) == ()
            numbers = backend.commit(made)
            assert backend.commit(made) == numbers
        with backend.group():
            assert backend.commit(made) == numbers
        assert backend.commit(one) == ()
        assert len(backend.rows(no, [(1, 9)])) == 2

    def test_one_without_a_write_keeps_nobody_out(self, backend):
        no = start(backend)
        done = threading.Event()

        def write():
            backend.commit(Batch(rows=((no, row(2)),)))
            done.set()

        with backend.group():
            assert backend.newest(no).seq == 1
            threading.Thread(target=write).start()
            assert done.wait(30)
            assert backend.newest(no).seq == 2

    def test_each_thread_has_its_own(self, backend):
        numbers = [start(backend, str(at)) for at in range(4)]

        def work(no):
            for seq in range(2, 20, 3):
                with backend.group():
                    for at in range(3):
                        backend.commit(Batch(rows=((no, row(seq + at)),)))

        workers = [threading.Thread(target=work, args=(no,)) for no in numbers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert [backend.newest(no).seq for no in numbers] == [19] * 4

    def test_what_cannot_be_a_part_of_it_is_invalid(self, backend):
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            for forbidden in (lambda: backend.group().__enter__(), backend.reclaim, backend.close):
                with pytest.raises(Invalid):
                    forbidden()
            backend.commit(Batch(rows=((no, row(3)),)))
        assert backend.newest(no).seq == 3

    def test_upkeep_may_be_a_part_of_it(self, backend):
        no = start(backend, rows=3)
        with backend.group():
            backend.commit(Batch(hide=((no, 1),)))
            assert backend.remove_rows(no, [1]) == 1
            epoch = backend.next_epoch()
            backend.commit(Batch(chunks=((digest("a"), b"a"),)))
        assert [found.seq for found in backend.rows(no, [(1, 9)])] == [2, 3]
        assert backend.chunk_page(b"", 9) == [(digest("a"), epoch)]


def touched(backend, agent="a"):
    return [stand.record.name for stand in backend.standings(agent, touched=True)]


def standing(backend, agent="a"):
    return [stand.record.name for stand in backend.standings(agent, touched=False)]


def untouch(backend, no, seq):
    backend.commit(Batch(untouch=((no, seq),)))


def hidden(backend, no):
    return [row.seq for row in backend.rows(no, [(1, 99)]) if row.hidden]


class TestShow:
    def test_what_was_hidden_is_shown_again(self, backend):
        no = start(backend, rows=4)
        backend.commit(Batch(hide=((no, 1), (no, 2), (no, 3))))
        backend.commit(Batch(show=((no, 1), (no, 3), (no, 4))))
        assert hidden(backend, no) == [2]
        assert [row.seq for row in backend.rows(no, [(1, 9)], visible=True)] == [1, 3, 4]

    def test_with_a_row_that_points_at_it_and_whatever_else(self, backend):
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

    def test_a_row_that_is_gone_refuses_the_batch(self, backend):
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 1), (no, 2))))
        backend.remove_rows(no, [1])
        for gone in ((no, 1), (no, 9), (no + 1, 1)):
            with pytest.raises(Vanished) as error:
                backend.commit(Batch(rows=((no, row(4)),), show=((no, 2), gone)))
            assert (error.value.thread, error.value.seq) == gone
        assert (hidden(backend, no), backend.newest(no).seq) == ([2], 3)

    def test_a_group_that_is_dropped_hides_it_again(self, backend):
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 1),)))
        with pytest.raises(ZeroDivisionError), backend.group():
            backend.commit(Batch(show=((no, 1),)))
            raise ZeroDivisionError
        assert hidden(backend, no) == [1]

    def test_in_a_transaction_the_last_word_counts(self, backend):
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 1), (no, 2)), tag=((no, 1, "t"),)))
        overlay = Overlay(backend)
        overlay.commit(Batch(show=((no, 1), (no, 2)), hide=((no, 3),)))
        assert (hidden(overlay, no), overlay.tagged(no, "t")) == ([3], [1])
        assert [row.seq for row in overlay.rows(no, [(1, 9)], visible=True)] == [1, 2]
        overlay.commit(Batch(hide=((no, 2),)))
        overlay.commit(Batch(show=((no, 3),)))
        with pytest.raises(Vanished):
            overlay.commit(Batch(show=((no, 4),)))
        assert hidden(overlay, no) == [2]
        overlay.finish(commit=True)
        assert hidden(backend, no) == [2]


class TestStandings:
    def test_a_row_touches_its_thread_in_any_name_space_if_it_has_an_agent(self, backend):
        start(backend, "x", agent="a")
        start(backend, "x", agent="a", space="run")
        start(backend, "other", agent="b")
        start(backend, "none")
        backend.commit(Batch(threads=(new("empty", agent="a"),)))
        found = backend.standings("a", touched=True)
        assert [(stand.record.space, stand.record.name) for stand in found] == [("thread", "x"), ("run", "x")]
        assert found == backend.standings("a", touched=False)
        assert touched(backend, "b") == ["other"]
        assert touched(backend, "") == touched(backend, "none") == []

    def test_a_stand_has_the_newest_row_and_the_head(self, backend):
        no = start(backend, rows=3, agent="a")
        backend.commit(Batch(rows=((no, row(4, head=2, root=b"")),), hide=((no, 3), (no, 2))))
        (stand,) = backend.standings("a", touched=True)
        head, _, newest = backend.rows(no, [(2, 4)])
        assert stand == (backend.thread(no), newest, head)
        assert (stand.head.seq, stand.head.hidden, stand.head.payload, stand.newest.payload) == (2, True, None, None)
        assert backend.standings("a", touched=False) == [stand]
        backend.remove_rows(no, [2])
        assert backend.standings("a", touched=True) == backend.standings("a", touched=False) == [(*stand[:2], None)]

    def test_any_agent_is_only_itself(self, backend):
        for agent in ["a", "ab", "\0", *ODD_TEXTS]:
            start(backend, f"of {agent!r}", agent=agent)
        for agent in ["a", "ab", "\0", *ODD_TEXTS]:
            assert touched(backend, agent) == standing(backend, agent) == [f"of {agent!r}"]

    def test_a_thread_without_a_head_is_listed_too(self, backend):
        no = start(backend, agent="a")
        untouch(backend, no, 1)
        backend.commit(Batch(rows=((no, row(2, head=0, root=b"")),), hide=((no, 1),)))
        assert standing(backend) == ["x"]
        ((record, newest, head),) = backend.standings("a", touched=True)
        assert (record.no, newest.seq, head) == (no, 2, None)
        untouch(backend, no, 2)
        assert (touched(backend), standing(backend)) == ([], ["x"])

    def test_threads_stand_in_the_order_of_their_numbers(self, backend):
        numbers = [start(backend, str(at), agent="a") for at in range(12)]
        for no in reversed(numbers):
            untouch(backend, no, 1)
            backend.commit(Batch(rows=((no, row(2, created_at=no * 7 % 5)),)))
        for wanted in (True, False):
            assert [stand.record.no for stand in backend.standings("a", touched=wanted)] == numbers

    def test_a_thread_is_touched_no_more_until_the_next_row(self, backend):
        first, second = start(backend, rows=2, agent="a"), start(backend, "y", agent="a")
        untouch(backend, first, 2)
        assert (touched(backend), standing(backend)) == (["y"], ["x", "y"])
        backend.commit(Batch(rows=((first, row(3)),)))
        assert touched(backend) == ["x", "y"]
        backend.commit(Batch(untouch=((first, 3), (second, 1))))
        assert (touched(backend), standing(backend)) == ([], ["x", "y"])

    def test_who_wrote_meanwhile_stays_touched(self, backend):
        no = start(backend, rows=2, agent="a")
        untouch(backend, no, 1)
        untouch(backend, no, 3)
        untouch(backend, no, 0)
        assert touched(backend) == ["x"]
        backend.commit(Batch(rows=((no, row(3)),), untouch=((no, 2),)))
        assert touched(backend) == ["x"]

    def test_untouching_counts_once_the_batch_is_written(self, backend):
        old = start(backend, agent="a")
        backend.commit(
            Batch(
                threads=(new("new", agent="a"), new("more", agent="a")),
                rows=((-1, row(1)), (-1, row(2)), (old, row(2)), (-2, row(1)), (-2, row(2))),
                untouch=((-1, 2), (old, 2), (-2, 1)),
            )
        )
        assert (touched(backend), standing(backend)) == (["more"], ["x", "new", "more"])

    def test_untouching_what_is_not_there_is_passed_over(self, backend):
        no = start(backend)
        other = start(backend, "y", agent="a")
        backend.commit(Batch(untouch=((no, 1), (no + 9, 1), (-1, 1), (0, 0), (other, 1 << 40))))
        assert touched(backend) == ["y"]

    def test_a_refused_batch_neither_touches_nor_untouches(self, backend):
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

    def test_a_batch_that_comes_again_neither_touches_nor_untouches(self, backend):
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
        with backend.group():
            backend.commit(Batch(rows=((no, row(4)),), untouch=((no, 4),)))
            assert touched(backend) == []

    def test_a_thread_that_begins_again_is_touched_under_its_new_agent_only(self, backend):
        no = start(backend, agent="a")
        for agent, seq in (("b", 2), ("b", 3), ("a", 4)):
            untouch(backend, no, seq - 1)
            backend.commit(Batch(renew=((no, new("x", agent=agent)),), rows=((no, row(seq)),)))
            others = {"a", "b"} - {agent}
            assert touched(backend, agent) == standing(backend, agent) == ["x"]
            assert [touched(backend, other) + standing(backend, other) for other in others] == [[]]
        backend.commit(Batch(renew=((no, new("x")),), rows=((no, row(5)),)))
        assert touched(backend) == standing(backend) == []
        backend.commit(Batch(renew=((no, new("x", agent="a")),), rows=((no, row(6)),), untouch=((no, 6),)))
        assert (touched(backend), standing(backend)) == ([], ["x"])

    @pytest.mark.parametrize("agent", ["a", "b", None])
    def test_to_be_renewed_is_to_be_touched(self, backend, agent):
        no = start(backend, agent="a")
        untouch(backend, no, 1)
        backend.commit(Batch(renew=((no, new("x", agent=agent)),)))
        assert {name: touched(backend, name) for name in "ab"} == {name: ["x"] * (name == agent) for name in "ab"}
        assert {name: standing(backend, name) for name in "ab"} == {name: ["x"] * (name == agent) for name in "ab"}

    def test_only_rows_and_renewing_touch(self, backend):
        no = start(backend, rows=3, agent="a")
        untouch(backend, no, 3)
        backend.commit(Batch(hide=((no, 1),), tag=((no, 2, "t"),), chunks=((digest("a"), b"a"),), newest=((no, 3),)))
        backend.commit(Batch(untag=((no, 2, "t"),), visible=((no, 2),)))
        assert backend.remove_rows(no, [1]) == 1
        assert backend.rewrite(no, [found._replace(payload=b"other") for found in backend.rows(no, [(2, 3)])]) == 2
        backend.index(no, Indexed(0, 0, 0), Indexed(3, 0, 3), ())
        backend.forget_index()
        backend.reclaim()
        assert touched(backend) == []
        backend.commit(Batch(rows=((no, row(4)),)))
        assert backend.rewrite(no, [backend.rows(no, [(4, 4)])[0]._replace(payload=b"other")]) == 1
        assert touched(backend) == ["x"]

    def test_a_group_that_fails_touches_and_untouches_nothing(self, backend):
        no, other = start(backend, agent="a"), start(backend, "y", agent="a")
        untouch(backend, no, 1)
        before = [backend.standings(agent, touched=wanted) for agent in "abc" for wanted in (True, False)]
        with pytest.raises(RuntimeError), backend.group():
            backend.commit(Batch(rows=((no, row(2)),), untouch=((other, 1),)))
            start(backend, "z", agent="a")
            start(backend, "z", agent="c", space="run")
            assert touched(backend) == ["x", "z"]
            backend.commit(Batch(renew=((no, new("x", agent="b")),)))
            backend.commit(Batch(renew=((other, new("y", agent=None)),)))
            assert (touched(backend), standing(backend), touched(backend, "b")) == (["z"], ["z"], ["x"])
            raise RuntimeError
        assert before == [backend.standings(agent, touched=wanted) for agent in "abc" for wanted in (True, False)]
        assert (touched(backend), standing(backend)) == (["y"], ["x", "y"])
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            untouch(backend, other, 1)
        assert touched(backend) == ["x"]

    def test_all_threads_are_seen_at_one_moment(self, backend):
        numbers = [start(backend, str(at), agent="a") for at in range(30)]
        stop = threading.Event()

        def work():
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
                found = backend.standings("a", touched=at % 2 == 0)
                assert len(found) in ((0, 30) if at % 2 == 0 else (30,))
                assert len({(stand.newest.seq, stand.newest.head, stand.head.seq) for stand in found}) <= 1
        finally:
            stop.set()
            worker.join(30)

    def test_a_row_that_is_written_while_a_thread_is_untouched_stays_noticed(self, backend):
        no = start(backend, agent="a")
        last = 150

        def work():
            for seq in range(2, last + 1):
                backend.commit(Batch(rows=((no, row(seq)),)))

        worker = threading.Thread(target=work)
        worker.start()
        seen = []
        while worker.is_alive() or touched(backend):
            for stand in backend.standings("a", touched=True):
                seen.append(stand.newest.seq)
                untouch(backend, no, stand.newest.seq)
        assert seen[-1] == last
        assert seen == sorted(set(seen))


class TestStandingsInATransaction:
    def test_they_are_as_the_transaction_sees_them_and_nobody_else_does(self, backend):
        old, other = start(backend, agent="a"), start(backend, "y", agent="a")
        backend.commit(Batch(untouch=((old, 1), (other, 1))))
        inside = Overlay(backend)
        assert (touched(inside), standing(inside)) == ([], ["x", "y"])
        start(inside, "new", rows=2, agent="a")
        start(inside, "newer", agent="a")
        start(inside, "none")
        inside.commit(Batch(rows=((old, row(2)),)))
        assert (touched(inside), standing(inside)) == (["x", "new", "newer"], ["x", "y", "new", "newer"])
        (stand, *_) = inside.standings("a", touched=True)
        assert (stand.newest.seq, stand.head.seq, stand.newest.payload) == (2, 2, None)
        assert (touched(backend), standing(backend)) == ([], ["x", "y"])
        inside.finish(commit=True)
        assert (touched(backend), standing(backend)) == (["x", "new", "newer"], ["x", "y", "new", "newer"])

    def test_a_head_may_be_older_than_the_transaction_and_be_hidden_by_it(self, backend):
        no = start(backend, rows=2, agent="a")
        inside = Overlay(backend)
        inside.commit(Batch(rows=((no, row(3, head=1, root=b"")),), hide=((no, 1),)))
        ((_, newest, head),) = inside.standings("a", touched=False)
        assert (newest.seq, head.seq, head.hidden, head.payload) == (3, 1, True, None)
        inside.commit(Batch(rows=((no, row(4, head=0, root=b"")),)))
        assert (inside.standings("a", touched=True)[0].head, standing(inside)) == (None, ["x"])

    def test_untouching_is_written_with_the_rest(self, backend):
        no = start(backend, agent="a")
        inside = Overlay(backend)
        made = start(inside, "new", agent="a")
        inside.commit(Batch(untouch=((no, 1), (made, 1))))
        assert touched(inside) == []
        assert touched(backend) == ["x"]
        inside.commit(Batch(rows=((made, row(2)),)))
        assert touched(inside) == ["new"]
        inside.commit(Batch(threads=(new("own", agent="a"),), rows=((-1, row(1)), (made, row(3))), untouch=((-1, 1),)))
        assert touched(inside) == ["new"]
        inside.finish(commit=True)
        assert (touched(backend), standing(backend)) == (["new"], ["x", "new", "own"])

    def test_untouching_alone_is_written_and_what_is_dropped_is_not(self, backend):
        no = start(backend, agent="a")
        for commit in (False, True):
            inside = Overlay(backend)
            untouch(inside, no, 1)
            inside.finish(commit=commit)
            assert touched(backend) == ([] if commit else ["x"])

    def test_whoever_wrote_meanwhile_stays_touched(self, backend):
        no = start(backend, agent="a")
        inside = Overlay(backend)
        untouch(inside, no, 1)
        backend.commit(Batch(rows=((no, row(2)),)))
        assert touched(inside) == ["x"]
        inside.finish(commit=True)
        assert touched(backend) == ["x"]


_deeds = st.one_of(
    st.tuples(st.just("new"), st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("row"), st.integers(0, 5), st.integers(0, 2)),
    st.tuples(st.just("renew"), st.integers(0, 5), st.sampled_from([None, "a", "b"]), st.integers(0, 1)),
    st.tuples(st.just("untouch"), st.integers(0, 5), st.integers(-1, 1)),
    st.tuples(st.just("hide"), st.integers(0, 5), st.integers(1, 3)),
)


def _do_deed(backend, numbers, deed):
    """Do it to one of the threads that there are; a row and what renews a thread may be a batch of their own."""
    kind, *values = deed
    if kind == "new":
        numbers.append(start(backend, f"made {len(numbers)}", agent=values[0]))
        return
    no = numbers[values[0] % len(numbers)]
    last = backend.newest(no).seq
    match kind, values[1:]:
        case "row", (back,):
            backend.commit(Batch(rows=((no, row(last + 1, head=last + 1 - back)),)))
        case "renew", (agent, rows):
            added = tuple((no, row(last + 1)) for _ in range(rows))
            backend.commit(Batch(renew=((no, new("x", agent=agent)),), rows=added))
        case "untouch", (off,):
            backend.commit(Batch(untouch=((no, last + off),)))
        case "hide", (seq,):
            backend.commit(Batch(hide=((no, min(seq, last)),)))


def _stands(backend, names):
    """Return how all stands, but for what is random."""
    found = [backend.find_thread("thread", name) for name in names]
    stands = [backend.standings(agent, touched=wanted) for agent in "ab" for wanted in (True, False)]
    return [
        (record.agent, backend.thread_with_uid(record.uid) == backend.thread(record.no) == record) for record in found
    ], [
        [(*stand.record[1:3], *(kept and (kept.seq, kept.head, kept.hidden) for kept in stand[1:])) for stand in each]
        for each in stands
    ]


@given(before=st.lists(_deeds, max_size=8), inside=st.lists(_deeds, max_size=12))
def test_a_transaction_stands_as_if_it_were_written_at_once_and_as_it_is_in_the_end(before, inside):
    direct, backend = MemoryBackend(), MemoryBackend()
    transaction = Overlay(backend)
    for first, second in ((direct, direct), (backend, transaction)):
        numbers = [start(first, "made 0", agent="a")]
        for deed in before:
            _do_deed(first, numbers, deed)
        for deed in inside:
            _do_deed(second, numbers, deed)
    names = [f"made {at}" for at in range(len(numbers))]
    expected = _stands(direct, names)
    assert _stands(transaction, names) == expected
    transaction.finish(commit=True)
    assert _stands(backend, names) == expected


class TestMoves:
    def test_a_mark_begins_with_nothing_and_then_tells_what_moved_and_from_where(self, backend):
        first, second = start(backend, rows=2), start(backend, "y")
        mark, news = backend.moved(None, (), None)
        assert news == {}
        third = start(backend, "z", rows=3)
        backend.commit(Batch(rows=((first, row(3)), (first, row(4)))))
        mark, news = backend.moved(mark, {first, third}, None)
        assert news == {first: 2, third: 0}
        mark, news = backend.moved(mark, (), None)
        assert news == {}
        backend.commit(Batch(rows=((second, row(2)),), hide=((first, 4),)))
        assert backend.moved(mark, {first, second}, ())[1] == {second: 1}

    def test_tags_hiding_and_upkeep_move_nothing(self, backend):
        no = start(backend, rows=3)
        mark, _ = backend.moved(None, (), None)
        backend.commit(Batch(hide=((no, 1),), tag=((no, 2, "t"),), chunks=((digest("a"), b"a"),)))
        backend.remove_rows(no, [1])
        backend.rewrite(no, [backend.rows(no, [(2, 2)])[0]._replace(payload=b"other")])
        assert backend.moved(mark, {no}, None)[1] == {}

    def test_marks_do_not_know_of_each_other(self, backend):
        no = start(backend)
        one, _ = backend.moved(None, (), None)
        backend.commit(Batch(rows=((no, row(2)),)))
        other, _ = backend.moved(None, (), None)
        backend.commit(Batch(rows=((no, row(3)),)))
        assert backend.moved(one, {no}, None)[1] == {no: 1}
        assert backend.moved(other, {no}, None)[1] == {no: 2}

    def test_a_mark_may_begin_without_a_look_at_all_threads(self, backend):
        no = start(backend, rows=2)
        mark, _ = backend.moved(None, (), ())
        made = start(backend, "y")
        mark, news = backend.moved(mark, {no, made}, ())
        assert news[made] == 0
        backend.commit(Batch(rows=((no, row(3)),)))
        assert backend.moved(mark, {no}, ())[1] == {no: 2}

    def test_whoever_listens_is_told_of_each_commit_and_its_threads(self, backend):
        no = start(backend)
        told, other = [], []
        with backend.listen(told.append) as interval, backend.listen(other.append):
            assert interval > 0
            backend.commit(Batch(rows=((no, row(2)),)))
            (made, more) = backend.commit(
                Batch(threads=(new("y"), new("z")), rows=((-1, row(1)), (-2, row(1)), (no, row(3))))
            )
            with pytest.raises(Stale):
                backend.commit(Batch(rows=((no, row(9)),)))
            written = set().union(*told)
        backend.commit(Batch(rows=((no, row(4)),)))
        assert written == {no, made, more}
        assert set().union(*told) == set().union(*other) == written

    def test_a_group_is_told_when_it_can_be_seen(self, backend):
        no = start(backend)
        mark, _ = backend.moved(None, (), None)
        found, looked = [], threading.Event()

        def look(numbers):
            def work():
                found.append(backend.moved(mark, numbers, ())[1])
                looked.set()

            threading.Thread(target=work).start()

        with backend.listen(look):
            with backend.group():
                backend.commit(Batch(rows=((no, row(2)),)))
            assert looked.wait(30)
        assert found == [{no: 1}]

    def test_a_group_that_fails_moves_nothing(self, backend):
        no = start(backend)
        mark, _ = backend.moved(None, (), None)
        with pytest.raises(RuntimeError), backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            start(backend, "y")
            raise RuntimeError
        mark, news = backend.moved(mark, {no}, None)
        assert news == {}
        backend.commit(Batch(rows=((no, row(2)),)))
        assert backend.moved(mark, {no}, None)[1] == {no: 1}

    def test_listening_may_end_after_the_backend_was_closed(self, backend):
        listening = backend.listen(lambda _: None)
        listening.__enter__()
        backend.close()
        listening.__exit__(None, None, None)
        with pytest.raises(Unavailable):
            backend.moved(None, (), None)
