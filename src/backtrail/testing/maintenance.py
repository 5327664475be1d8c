"""Tests of `Maintenance`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.backends.port import Batch, IndexState, Stale, Vanished
from backtrail.errors import Invalid, Unavailable
from backtrail.testing.against_memory import SHARED, compare, maintenance, writes
from backtrail.testing.base import Conformance
from backtrail.testing.samples import digest, everything, hidden, new, row, start, touched, untouch

if TYPE_CHECKING:
    from collections.abc import Callable


class MaintenanceConformance(Conformance):
    """Removal, rewriting, counting."""

    # -- chunks -----------------------------------------------------------------------------------

    def test_commits_stamp_chunks_with_the_current_epoch(self, backend: Any) -> None:
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("b"), b"B"), (digest("c"), b"C"))))
        (first,) = {epoch for _, epoch in backend.chunk_page(b"", 9)}
        second = backend.next_epoch()
        assert second > first
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("d"), b"D")), touch=(digest("b"),)))
        addresses = backend.addresses([digest(name) for name in "abcd"])
        epochs = zip(addresses, (second, second, first, second), strict=True)
        assert backend.chunk_page(b"", 9) == sorted(epochs)
        assert backend.next_epoch() > second

    def test_chunks_come_in_pages_by_address(self, backend: Any) -> None:
        backend.commit(Batch(chunks=tuple((digest(text), b"") for text in "dbca")))
        addresses = sorted(backend.addresses([digest(text) for text in "abcd"]))
        page = [address for address, _ in backend.chunk_page(b"", 3)]
        assert page == addresses[:3]
        assert [address for address, _ in backend.chunk_page(page[-1], 3)] == addresses[3:]
        assert backend.chunk_page(addresses[-1], 3) == []

    def test_damaged_chunks_are_found_among_addresses(self, backend: Any) -> None:
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("b"), b"B"))))
        addresses = list(backend.addresses([digest("a"), digest("gone")]))
        assert backend.damaged_chunks(addresses, lambda name, stored: (name, stored) == (digest("a"), b"A")) == []
        assert backend.damaged_chunks([], lambda *_: False) == []

    def test_only_chunks_of_older_epochs_are_removed(self, backend: Any) -> None:
        backend.commit(Batch(chunks=((digest("old"), b"12345"), (digest("kept"), b"1"), (digest("not named"), b"1"))))
        epoch = backend.next_epoch()
        backend.commit(Batch(touch=(digest("kept"),)))
        named = [digest("old"), digest("kept"), digest("none"), digest("old")]
        assert backend.remove_chunks(backend.addresses(named), epoch) == 5
        assert backend.present([*named, digest("not named")]) == {digest("kept"), digest("not named")}
        assert backend.remove_chunks(backend.addresses(named), epoch) == 0

    # -- rows -------------------------------------------------------------------------------------

    def test_only_hidden_rows_below_the_newest_are_removed(self, backend: Any) -> None:
        no, other = start(backend, rows=4), start(backend, "other", rows=2)
        every = tuple((no, seq) for seq in (1, 3, 4))
        backend.commit(Batch(hide=(*every, (other, 1)), tag=tuple((no, seq, "t") for seq in range(1, 5))))
        assert backend.remove_rows(no, [1, 2, 3, 4, 9, 1]) == 2
        assert [found.seq for found in backend.rows(no, [(1, 9)])] == [2, 4]
        assert backend.tags(no) == {2: ("t",), 4: ("t",)}
        assert backend.remove_rows(no + 9, [1]) == 0
        assert [found.seq for found in backend.rows(other, [(1, 9)])] == [1, 2]

    def test_removed_seq_is_not_used_again(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 2), (no, 3))))
        assert backend.remove_rows(no, [2, 3]) == 1
        for seq in (2, 3):
            with pytest.raises(Stale):
                backend.commit(Batch(rows=((no, row(seq)),)))
        with pytest.raises(Vanished):
            backend.commit(Batch(rows=((no, row(4)),), visible=((no, 2),)))
        backend.commit(Batch(rows=((no, row(4)),)))

    def test_new_hidden_row_may_be_removed_in_its_group(self, backend: Any) -> None:
        with backend.group():
            rows = tuple((-1, row(seq, hidden=seq < 3)) for seq in range(1, 5))
            (no,) = backend.commit(Batch(threads=(new("x"),), rows=rows, tag=((-1, 2, "t"),)))
            assert backend.remove_rows(no, [1]) == 1
        found = [(each.seq, each.hidden) for each in backend.rows(no, [(1, 9)])]
        assert found == [(2, True), (3, False), (4, False)]
        assert [found.seq for found in backend.rows(no, [(1, 9)], visible=True)] == [3, 4]
        assert backend.tags(no) == {2: ("t",)}

    def test_rewrite_replaces_rows_with_the_same_op_id(self, backend: Any) -> None:
        no = start(backend, rows=3)
        first, second, third = backend.rows(no, [(1, 3)], payload=True)
        changed = first._replace(base=1, depth=5, stored=1, label="l", payload=b"shorter", extra=b"e", check=b"c")
        replaced = backend.rewrite(no, [changed, second._replace(op_id=b"other", payload=b"!"), row(9)])
        assert replaced == 1
        assert backend.rows(no, [(1, 9)], payload=True) == [changed, second, third]
        assert backend.labelled(no, ["l"]) == [1]

    def test_rewrite_replaces_a_base_only_by_a_base(self, backend: Any) -> None:
        no = start(backend, rows=2)
        first, second = backend.rows(no, [(1, 2)], payload=True)
        based = second._replace(base=2, payload=b"a base")
        assert backend.rewrite(no, [based]) == 1
        assert backend.rewrite(no, [second._replace(payload=b"read before"), first._replace(base=2)]) == 0
        assert backend.rewrite(no, [based._replace(payload=b"another")]) == 1
        assert backend.rows(no, [(1, 2)], payload=True) == [first, based._replace(payload=b"another")]

    def test_removed_row_takes_its_pins_along(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(pin=((no, 1, b"holder 1"),), hide=((no, 1),)))
        assert backend.remove_rows(no, [1]) == 1
        assert backend.pins(no) == {}

    def test_rewritten_row_keeps_tags_and_place(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(tag=((no, 2, "x"),)))
        (newest,) = backend.rows(no, [(2, 2)], payload=True)
        assert backend.rewrite(no, [newest._replace(payload=b"other")]) == 1
        assert backend.newest(no) == newest._replace(payload=None)
        assert backend.tags(no) == {2: ("x",)}

    def test_rewrite_neither_shows_nor_hides(self, backend: Any) -> None:
        no = start(backend, rows=2)
        first, second = backend.rows(no, [(1, 2)], payload=True)
        backend.commit(Batch(hide=((no, 1),)))
        assert backend.rewrite(no, [first, second._replace(hidden=True)]) == 2
        assert [found.hidden for found in backend.rows(no, [(1, 2)])] == [True, False]

    def test_rewrite_without_payload_keeps_the_stored_one(self, backend: Any) -> None:
        no = start(backend)
        (read,) = backend.rows(no, [(1, 1)])
        assert backend.rewrite(no, [read]) == 1
        assert backend.rows(no, [(1, 1)], payload=True)[0].payload == b"payload 1"

    # -- the rest of the port beside maintenance --------------------------------------------------

    def test_repeated_batch_counts_once_after_its_chunks_are_removed(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(chunks=((digest("a"), b"A"),)))
        batch = Batch(rows=((no, row(3)),), newest=((no, 2),), visible=((no, 1),), touch=(digest("a"),))
        backend.commit(batch)
        backend.commit(Batch(hide=((no, 1),)))
        backend.remove_chunks(backend.addresses([digest("a")]), backend.next_epoch())
        before = everything(backend)
        assert backend.commit(batch) == ()
        assert everything(backend) == before

    def test_repeated_batch_counts_once_after_its_row_is_removed(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 1),)))
        batch = Batch(threads=(new("y"),), rows=((no, row(3)), (-1, row(1))), show=((no, 1),), untouch=((no, 3),))
        made = backend.commit(batch)
        backend.commit(Batch(hide=((no, 1),)))
        backend.remove_rows(no, [1])
        before = everything(backend)
        assert backend.commit(batch) == made
        assert everything(backend) == before

    def test_group_may_include_maintenance(self, backend: Any) -> None:
        no = start(backend, rows=3)
        with backend.group():
            backend.commit(Batch(hide=((no, 1),)))
            assert backend.remove_rows(no, [1]) == 1
            epoch = backend.next_epoch()
            backend.commit(Batch(chunks=((digest("a"), b"a"),)))
        assert [found.seq for found in backend.rows(no, [(1, 9)])] == [2, 3]
        assert backend.chunk_page(b"", 9) == [(address, epoch) for address in backend.addresses([digest("a")])]

    def test_maintenance_touches_no_thread(self, backend: Any) -> None:
        no = start(backend, rows=3, agent="a")
        untouch(backend, no, 3)
        backend.commit(Batch(hide=((no, 1),)))
        assert backend.remove_rows(no, [1]) == 1
        assert backend.rewrite(no, [found._replace(payload=b"other") for found in backend.rows(no, [(2, 3)])]) == 2
        backend.index(no, IndexState(0, 0, 0), IndexState(3, 0, 3), ())
        backend.clear_index()
        backend.reclaim()
        assert touched(backend) == []
        backend.commit(Batch(rows=((no, row(4)),)))
        assert backend.rewrite(no, [backend.rows(no, [(4, 4)])[0]._replace(payload=b"other")]) == 1
        assert touched(backend) == ["x"]

    # -- counting and freeing ---------------------------------------------------------------------

    def test_usage_counts_rows_chunks_and_bytes(self, backend: Any) -> None:
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

    def test_usage_counts_items_of_current_lists(self, backend: Any) -> None:
        spaces = {"a": "thread", "b": "thread", "c": "run", "deleted": "run", "changed": "run"}
        numbers = {name: start(backend, name, space=space) for name, space in spaces.items()}
        for no in numbers.values():
            assert backend.index(no, IndexState(0, 0, 0), IndexState(1, 7, 1), ())
        start(backend, "without a list", space="run")
        backend.commit(Batch(rows=((numbers["changed"], row(2)), (numbers["deleted"], row(2, head=0, root=b"")))))
        assert backend.index(numbers["deleted"], IndexState(1, 7, 1), IndexState(0, 3, 2), ())
        assert backend.usage().items == {"thread": 14, "run": 7}

    def test_reclaim_changes_no_content(self, backend: Any) -> None:
        no = start(backend, rows=50)
        backend.commit(
            Batch(
                chunks=tuple((digest(str(at)), bytes(5000)) for at in range(50)),
                hide=tuple((no, at) for at in range(40)),
            )
        )
        backend.remove_chunks(backend.addresses([digest(str(at)) for at in range(45)]), backend.next_epoch())
        backend.remove_rows(no, range(40))
        before = everything(backend)
        backend.reclaim()
        assert everything(backend) == before
        backend.commit(Batch(rows=((no, row(51)),)))

    # -- refused, dropped, closed -----------------------------------------------------------------

    def test_refused_batch_stamps_no_chunk(self, backend: Any) -> None:
        no = start(backend)
        backend.commit(Batch(chunks=((digest("a"), b"A"), (digest("b"), b"B"))))
        backend.next_epoch()
        before = everything(backend)
        with pytest.raises(Stale):
            backend.commit(Batch(rows=((no, row(9)),), chunks=((digest("a"), b"A"),), touch=(digest("b"),)))
        assert everything(backend) == before

    def test_showing_a_removed_row_is_refused(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 1), (no, 2))))
        backend.remove_rows(no, [1])
        with pytest.raises(Vanished):
            backend.commit(Batch(rows=((no, row(4)),), show=((no, 2), (no, 1))))
        assert hidden(backend, no) == [2]

    def test_tip_of_a_removed_head_has_no_head(self, backend: Any) -> None:
        no = start(backend, rows=3, agent="a")
        backend.commit(Batch(rows=((no, row(4, head=2, root=b"")),), hide=((no, 2),)))
        backend.remove_rows(no, [2])
        (tip,) = backend.tips("a", touched=True)
        assert (tip.newest.seq, tip.head) == (4, None)

    def test_exception_drops_maintenance_in_a_group(self, backend: Any) -> None:
        no = start(backend, rows=4)
        backend.commit(Batch(hide=((no, 1), (no, 2)), chunks=((digest("old"), b"old"),)))
        before = everything(backend)
        with pytest.raises(RuntimeError), backend.group():
            backend.next_epoch()
            backend.commit(Batch(touch=(digest("old"),), chunks=((digest("new"), b"new"),)))
            assert backend.remove_rows(no, [1, 2]) == 2
            assert backend.remove_chunks(backend.addresses([digest("old")]), 99) == 3
            assert backend.rewrite(no, [backend.rows(no, [(3, 3)])[0]._replace(payload=b"other")]) == 1
            raise RuntimeError
        assert everything(backend) == before
        backend.commit(Batch(rows=((no, row(5)),)))

    def test_snapshot_does_not_see_later_maintenance(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(chunks=((digest("a"), b"a"),), hide=((no, 1),)))
        before = everything(backend)
        with backend.snapshot() as view:
            backend.rewrite(no, [backend.rows(no, [(2, 2)])[0]._replace(payload=b"other")])
            backend.remove_rows(no, [1])
            backend.remove_chunks(backend.addresses([digest("a")]), backend.next_epoch())
            assert everything(view) == before
        assert everything(backend) != before

    def test_maintenance_is_no_change_for_the_feed(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 1),)))
        mark, _ = backend.changed_since(None, (), None)
        backend.remove_rows(no, [1])
        backend.rewrite(no, [backend.rows(no, [(2, 2)])[0]._replace(payload=b"other")])
        assert backend.changed_since(mark, {no}, None)[1] == {}

    def test_reclaim_keeps_a_thread_without_rows(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(threads=(new("empty"),), hide=((no, 1),)))
        backend.remove_rows(no, [1])
        before = everything(backend)
        backend.reclaim()
        assert everything(backend) == before

    def test_reclaim_in_a_group_is_invalid(self, backend: Any) -> None:
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            with pytest.raises(Invalid):
                backend.reclaim()
        assert backend.newest(no).seq == 2

    def test_closed_backend_refuses_maintenance(self, backend: Any) -> None:
        no = start(backend)
        backend.close()
        calls: list[Callable[[], Any]] = [
            backend.next_epoch,
            lambda: backend.chunk_page(b"", 1),
            lambda: backend.remove_chunks([b""], 9),
            lambda: backend.remove_rows(no, [1]),
            lambda: backend.rewrite(no, [row(1)]),
            backend.reclaim,
            backend.usage,
        ]
        for call in calls:
            with pytest.raises(Unavailable) as caught:
                call()
            assert caught.value.code == "unavailable.closed"

    # -- all of it ------------------------------------------------------------------------------------
    @SHARED
    @given(actions=st.lists(writes | maintenance, max_size=25))
    def test_random_maintenance_gets_the_answers_of_memory(self, actions: list[Any]) -> None:
        with TemporaryDirectory() as folder, self.open_backend(Path(folder)) as backend:
            compare(backend, actions, everything)
