"""The overlay of a transaction: the port's suite where it applies, the writes at the end, and refused calls."""

from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.port import Batch, Stale, Vanished
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.errors import Conflict, Unavailable
from backtrail.overlay import Overlay
from backtrail.testing import ReaderWriterConformance
from backtrail.testing.samples import HOLDERS, hidden, listed, new, owned, row, start, touched, untouch


class TestOverlay(ReaderWriterConformance):
    @contextmanager
    def open_backend(self, folder):
        with closing(MemoryBackend()) as below:
            yield Overlay(below)

    test_random_batches_get_the_answers_of_memory = None  # its new threads have other numbers
    test_tips_are_one_view_of_the_store = None  # its callers take turns
    test_absent_row_takes_no_tag = None  # the store skips such a tag at the end
    test_absent_row_takes_no_pin = None


@pytest.fixture(params=["memory", "sqlite"])
def backend(request, tmp_path):
    made = MemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "store", durability="relaxed")
    with closing(made):
        yield made


def test_last_of_hide_and_show_counts(backend):
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


def test_tags_and_gaps_are_written_as_they_were_read(backend):
    no = start(backend)
    backend.commit(Batch(tag=((no, 1, "a"), (no, 1, "b"))))
    overlay = Overlay(backend)
    overlay.commit(Batch(tag=((no, 1, "c"), (no, 1, "a"))))
    overlay.commit(Batch(untag=((no, 1, "b"), (no, 1, "c"))))
    overlay.commit(Batch(tag=((no, 1, "d"), (no, 1, "c")), rows=((no, row(7)),), gaps=True))
    expected = overlay.tags(no), overlay.rows(no, [(1, 9)], payload=True)
    assert (expected[0], [each.seq for each in expected[1]]) == ({1: ("a", "d", "c")}, [1, 7])
    overlay.finish(commit=True)
    assert (backend.tags(no), backend.rows(no, [(1, 9)], payload=True)) == expected


def test_list_of_threads_is_paged_over_store_and_transaction(backend):
    for at in range(5):
        backend.commit(Batch(threads=(new(f"old {at}"),), rows=((-1, row(1, created_at=10 * at)),)))
    overlay = Overlay(backend)
    for at in range(3):
        overlay.commit(Batch(threads=(new(f"new {at}"),), rows=((-1, row(1, created_at=15 * at)),)))
    overlay.commit(Batch(rows=((backend.find_thread("thread", "old 0").no, row(2, created_at=99)),)))
    pages, after = [], None
    while page := listed(overlay, after=after, limit=3):
        pages.append([record.name for record, _ in page])
        after = (page[-1][1].created_at, page[-1][0].no)
    assert pages == [["old 0", "old 4", "old 3"], ["new 2", "old 2", "new 1"], ["old 1", "new 0"]]


CALLS = {
    "gc": lambda store, path: store.gc(),
    "verify": lambda store, path: store.verify(),
    "repair": lambda store, path: store.verify(repair=True),
    "search": lambda store, path: store.search("fox"),
    "search of conversations": lambda store, path: store.conversations.search("fox"),
    "reindex": lambda store, path: store.reindex(),
    "export": lambda store, path: store.export(path),
    "backup": lambda store, path: store.backup(path),
    "stats": lambda store, path: store.stats(),
    "watch": lambda store, path: next(store.watch()),
}


@pytest.mark.parametrize("call", CALLS)
def test_whole_store_calls_are_refused_in_a_transaction(call, tmp_path):
    with backtrail.open("memory://") as store:
        store.conversations.append("c", backtrail.Message.user("fox"), agent_id="a")
        with store.transaction():
            store.thread("t").save({"n": 1})
            with pytest.raises(Unavailable) as caught:
                CALLS[call](store, tmp_path / "file")
            assert caught.value.code == "unavailable.transaction"
        assert store.thread("t").load().state == {"n": 1}


class TestTips:
    def test_only_the_transaction_sees_its_tips(self, backend):
        old, other = start(backend, agent="a"), start(backend, "y", agent="a")
        backend.commit(Batch(untouch=((old, 1), (other, 1))))
        inside = Overlay(backend)
        assert (touched(inside), owned(inside)) == ([], ["x", "y"])
        start(inside, "new", rows=2, agent="a")
        start(inside, "newer", agent="a")
        start(inside, "none")
        inside.commit(Batch(rows=((old, row(2)),)))
        assert (touched(inside), owned(inside)) == (["x", "new", "newer"], ["x", "y", "new", "newer"])
        (tip, *_) = inside.tips("a", touched=True)
        assert (tip.newest.seq, tip.head.seq, tip.newest.payload) == (2, 2, None)
        assert (touched(backend), owned(backend)) == ([], ["x", "y"])
        inside.finish(commit=True)
        assert (touched(backend), owned(backend)) == (["x", "new", "newer"], ["x", "y", "new", "newer"])

    def test_transaction_may_hide_an_older_head(self, backend):
        no = start(backend, rows=2, agent="a")
        inside = Overlay(backend)
        inside.commit(Batch(rows=((no, row(3, head=1, root=b"")),), hide=((no, 1),)))
        ((_, newest, head),) = inside.tips("a", touched=False)
        assert (newest.seq, head.seq, head.hidden, head.payload) == (3, 1, True, None)
        inside.commit(Batch(rows=((no, row(4, head=0, root=b"")),)))
        assert (inside.tips("a", touched=True)[0].head, owned(inside)) == (None, ["x"])

    def test_untouching_is_written_at_the_end(self, backend):
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
        assert (touched(backend), owned(backend)) == (["new"], ["x", "new", "own"])

    def test_dropped_transaction_untouches_nothing(self, backend):
        no = start(backend, agent="a")
        for commit in (False, True):
            inside = Overlay(backend)
            untouch(inside, no, 1)
            inside.finish(commit=commit)
            assert touched(backend) == ([] if commit else ["x"])

    def test_thread_with_a_newer_row_stays_touched(self, backend):
        no = start(backend, agent="a")
        inside = Overlay(backend)
        untouch(inside, no, 1)
        backend.commit(Batch(rows=((no, row(2)),)))
        assert touched(inside) == ["x"]
        inside.finish(commit=True)
        assert touched(backend) == ["x"]


ACTIONS = st.one_of(
    st.tuples(st.just("new"), st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("row"), st.integers(0, 5), st.integers(0, 2)),
    st.tuples(st.just("renew"), st.integers(0, 5), st.sampled_from([None, "a", "b"]), st.integers(0, 1)),
    st.tuples(st.just("untouch"), st.integers(0, 5), st.integers(-1, 1)),
    st.tuples(st.just("hide"), st.integers(0, 5), st.integers(1, 3)),
)


def _do(backend, numbers, action):
    """Commit one action, on a new thread or on one that exists."""
    kind, *values = action
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


def _summary(backend, names):
    """Return owners, tips and heads, without random values."""
    records = [backend.find_thread("thread", name) for name in names]
    tips = [backend.tips(agent, touched=wanted) for agent in "ab" for wanted in (True, False)]
    return [
        (record.agent, backend.thread_with_uid(record.uid) == backend.thread(record.no) == record) for record in records
    ], [
        [(*tip.record[1:3], *(kept and (kept.seq, kept.head, kept.hidden) for kept in tip[1:])) for tip in each]
        for each in tips
    ]


@given(before=st.lists(ACTIONS, max_size=8), inside=st.lists(ACTIONS, max_size=12))
def test_transaction_reads_as_it_will_be_written(before, inside):
    direct, backend = MemoryBackend(), MemoryBackend()
    transaction = Overlay(backend)
    for first, second in ((direct, direct), (backend, transaction)):
        numbers = [start(first, "made 0", agent="a")]
        for action in before:
            _do(first, numbers, action)
        for action in inside:
            _do(second, numbers, action)
    names = [f"made {at}" for at in range(len(numbers))]
    expected = _summary(direct, names)
    assert _summary(transaction, names) == expected
    transaction.finish(commit=True)
    assert _summary(backend, names) == expected


def test_reads_of_many_threads_show_own_writes(backend):
    x, y = start(backend, "x", rows=2), start(backend, "y")
    overlay = Overlay(backend)
    (made,) = overlay.commit(Batch(threads=(new("z"),), rows=((-1, row(1)),)))
    overlay.commit(Batch(rows=((x, row(3)),), hide=((x, 1), (x, 3)), renew=((y, new("y", agent="a")),)))
    records = overlay.threads_named("thread", ["x", "y", "z", "w"])
    assert {name: (each.no, each.agent) for name, each in records.items()} == {
        "x": (x, None),
        "y": (y, "a"),
        "z": (made, None),
    }
    assert {no: each.seq for no, each in overlay.newest_of([x, y, made, 99]).items()} == {x: 3, y: 1, made: 1}
    for payload in (False, True):
        rows = overlay.rows_of([(x, 1, 9), (made, 1, 1)], payload=payload)
        expected = {(made, 1): False, (x, 1): True, (x, 2): False, (x, 3): True}
        assert {place: each.hidden for place, each in rows.items()} == expected
        assert all((each.payload is not None) is payload for each in rows.values())


def test_pins_are_written_at_the_end(backend):
    no = start(backend, rows=2)
    backend.commit(Batch(pin=((no, 1, HOLDERS[0]),)))
    overlay = Overlay(backend)
    overlay.commit(Batch(pin=((no, 2, HOLDERS[1]),), unpin=((no, 1, HOLDERS[0]),)))
    (made,) = overlay.commit(Batch(threads=(new("y"),), rows=((-1, row(1)),), pin=((-1, 1, HOLDERS[2]),)))
    assert (overlay.pins(no), overlay.pins(made)) == ({2: (HOLDERS[1],)}, {1: (HOLDERS[2],)})
    assert overlay.tags(no) == overlay.tags(made) == {}
    assert backend.pins(no) == {1: (HOLDERS[0],)}
    overlay.finish(commit=True)
    assert backend.pins(no) == {2: (HOLDERS[1],)}
    assert backend.pins(backend.find_thread("thread", "y").no) == {1: (HOLDERS[2],)}


def test_pins_are_required_at_the_end(backend):
    no = start(backend, rows=2)
    overlay = Overlay(backend)
    overlay.commit(Batch(tags=((no, 1, ()),), hide=((no, 1),)))
    backend.commit(Batch(pin=((no, 1, HOLDERS[0]),)))
    with pytest.raises(Conflict):
        overlay.finish(commit=True)
    overlay = Overlay(backend)
    with pytest.raises(Stale):
        overlay.commit(Batch(tags=((no, 1, ()),), hide=((no, 1),)))
    overlay.commit(Batch(tags=((no, 1, ()),), pins=((no, 1, (HOLDERS[0],)),), hide=((no, 1),)))
    overlay.finish(commit=True)
    assert backend.rows(no, [(1, 1)], visible=True) == []
