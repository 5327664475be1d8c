"""Tests of groups, snapshots, forks and `close`."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from backtrail.backends.port import Batch, MissingChunks, Stale, Vanished
from backtrail.errors import Invalid, Unavailable
from backtrail.testing.base import Conformance
from backtrail.testing.samples import (
    ODD_TEXTS,
    contents,
    digest,
    hidden,
    listed,
    new,
    owned,
    row,
    start,
    touched,
    untouch,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LifecycleConformance(Conformance):
    """Groups, snapshots, forks and `close`."""

    # -- groups -----------------------------------------------------------------------------------

    def test_group_keeps_its_commits(self, backend: Any) -> None:
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            other = start(backend, "y", rows=2)
            backend.commit(Batch(rows=((other, row(3)),), chunks=((digest("a"), b"a"),), tag=((no, 2, "t"),)))
        assert (backend.newest(no).seq, backend.newest(other).seq) == (2, 3)
        assert (backend.tags(no), backend.chunks([digest("a")])) == ({2: ("t",)}, {digest("a"): b"a"})

    def test_only_its_own_thread_sees_an_open_group(self, backend: Any) -> None:
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

    def test_refused_commit_leaves_the_group_intact(self, backend: Any) -> None:
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

    def test_exception_drops_the_group(self, backend: Any) -> None:
        no = start(backend, rows=3)
        backend.commit(Batch(hide=((no, 1),), chunks=((digest("old"), b"old"),), tag=((no, 2, "a"), (no, 2, "b"))))
        before = contents(backend)
        with pytest.raises(RuntimeError), backend.group():
            backend.commit(Batch(rows=((no, row(4)),), hide=((no, 2),)))
            start(backend, "y")
            backend.commit(Batch(renew=((no, new("x", agent="other")),), untag=((no, 2, "a"),), tag=((no, 1, "c"),)))
            backend.commit(Batch(touch=(digest("old"),), chunks=((digest("new"), b"new"),)))
            raise RuntimeError
        assert contents(backend) == before
        backend.commit(Batch(rows=((no, row(4)),)))

    def test_repeated_batch_counts_once_across_groups(self, backend: Any) -> None:
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

    def test_group_without_a_write_blocks_no_writer(self, backend: Any) -> None:
        no = start(backend)
        done = threading.Event()

        def write() -> None:
            backend.commit(Batch(rows=((no, row(2)),)))
            done.set()

        with backend.group():
            assert backend.newest(no).seq == 1
            threading.Thread(target=write).start()
            assert done.wait(30)
            assert backend.newest(no).seq == 2

    def test_each_thread_has_its_own_group(self, backend: Any) -> None:
        numbers = [start(backend, str(at)) for at in range(4)]

        def work(no: int) -> None:
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

    def test_group_refuses_calls_that_cannot_be_grouped(self, backend: Any) -> None:
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            for forbidden in (lambda: backend.group().__enter__(), backend.close):
                with pytest.raises(Invalid):
                    forbidden()
            backend.commit(Batch(rows=((no, row(3)),)))
        assert backend.newest(no).seq == 3

    def test_dropped_group_hides_a_shown_row_again(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(hide=((no, 1),)))
        with pytest.raises(ZeroDivisionError), backend.group():
            backend.commit(Batch(show=((no, 1),)))
            raise ZeroDivisionError
        assert hidden(backend, no) == [1]

    def test_group_refuses_stale_batches(self, backend: Any) -> None:
        no = start(backend, rows=2)
        backend.commit(Batch(tag=((no, 2, "t"),)))
        with backend.group():
            with pytest.raises(Stale):
                backend.commit(Batch(tags=((no, 2, ()),), hide=((no, 2),)))
            backend.commit(Batch(rows=((no, row(5)),), gaps=True))
            with pytest.raises(Stale):
                backend.commit(Batch(rows=((no, row(4)),), gaps=True))
        assert (backend.newest(no).seq, hidden(backend, no)) == (5, [])

    def test_group_untouches_threads(self, backend: Any) -> None:
        no = start(backend, agent="a")
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),), untouch=((no, 2),)))
            assert touched(backend) == []
        assert touched(backend) == []

    def test_dropped_group_touches_and_untouches_nothing(self, backend: Any) -> None:
        no, other = start(backend, agent="a"), start(backend, "y", agent="a")
        untouch(backend, no, 1)
        before = [backend.tips(agent, touched=wanted) for agent in "abc" for wanted in (True, False)]
        with pytest.raises(RuntimeError), backend.group():
            backend.commit(Batch(rows=((no, row(2)),), untouch=((other, 1),)))
            start(backend, "z", agent="a")
            start(backend, "z", agent="c", space="run")
            assert touched(backend) == ["x", "z"]
            backend.commit(Batch(renew=((no, new("x", agent="b")),)))
            backend.commit(Batch(renew=((other, new("y", agent=None)),)))
            assert (touched(backend), owned(backend), touched(backend, "b")) == (["z"], ["z"], ["x"])
            raise RuntimeError
        assert before == [backend.tips(agent, touched=wanted) for agent in "abc" for wanted in (True, False)]
        assert (touched(backend), owned(backend)) == (["y"], ["x", "y"])
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            untouch(backend, other, 1)
        assert touched(backend) == ["x"]

    # -- snapshots --------------------------------------------------------------------------------

    def test_snapshot_does_not_see_later_writes(self, backend: Any) -> None:
        no = start(backend, agent="a", rows=3)
        gone = start(backend, "gone", rows=2)
        chunk = (digest("a"), b"a")
        backend.commit(Batch(chunks=(chunk,), tag=((no, 1, "t"),), hide=((gone, 1),)))
        before = contents(backend)
        with backend.snapshot() as view:
            backend.commit(Batch(rows=((no, row(4)),), hide=((no, 1),), untag=((no, 1, "t"),)))
            backend.commit(Batch(renew=((no, new("x", agent="b")),), untouch=((no, 4),)))
            start(backend, "y")
            assert contents(backend) != before
            assert contents(view) == before
            assert view.find_thread("thread", "y") is None
            assert [found.seq for found in view.rows(no, [(1, 1), (3, 9)])] == [1, 3]
        assert contents(backend) != before

    def test_snapshots_differ_by_moment(self, backend: Any) -> None:
        no = start(backend)
        with backend.snapshot() as first:
            backend.commit(Batch(rows=((no, row(2)),)))
            with backend.snapshot() as second:
                backend.commit(Batch(rows=((no, row(3)),)))
                assert [each.newest(no).seq for each in (first, second, backend)] == [1, 2, 3]

    def test_store_works_after_a_failed_snapshot_block(self, backend: Any) -> None:
        no = start(backend)
        with pytest.raises(ZeroDivisionError), backend.snapshot():
            raise ZeroDivisionError
        backend.commit(Batch(rows=((no, row(2)),)))
        with backend.snapshot() as view:
            assert view.newest(no).seq == 2

    def test_snapshot_in_a_group_is_invalid(self, backend: Any) -> None:
        no = start(backend)
        with backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            with pytest.raises(Invalid), backend.snapshot():
                pass
        assert backend.newest(no).seq == 2

    # -- several handles --------------------------------------------------------------------------
    def _require_persistent(self) -> None:
        if not self.persistent:
            pytest.skip("this backend cannot be opened twice")

    def test_reopened_store_holds_everything(self, tmp_path: Path) -> None:
        self._require_persistent()
        with self.open_backend(tmp_path) as backend:
            no = start(backend, agent="a", rows=3)
            for text in ODD_TEXTS:
                other = start(backend, f"name {text}", agent="b", origin=text, rows=2)
                backend.commit(Batch(rows=((other, row(3, label=text)),), tag=((other, 2, text),), hide=((other, 1),)))
            backend.commit(Batch(chunks=((digest("a"), b"\0a"), (digest("b"), b"")), untouch=((no, 3),)))
            before = contents(backend)
        with self.open_backend(tmp_path) as backend:
            assert contents(backend) == before
            assert start(backend, "later") > no
            backend.commit(Batch(rows=((no, row(4)),), newest=((no, 3),)))

    def test_second_handle_sees_each_commit_at_once(self, tmp_path: Path) -> None:
        self._require_persistent()
        with self.open_backend(tmp_path) as first, self.open_backend(tmp_path) as second:
            no = start(first)
            for seq in range(2, 8):
                writer, reader = (first, second) if seq % 2 else (second, first)
                writer.commit(Batch(rows=((no, row(seq)),)))
                assert reader.newest(no).seq == seq
                with pytest.raises(Stale):
                    reader.commit(Batch(rows=((no, row(seq)),)))

    # -- the end, and forks -----------------------------------------------------------------------

    def test_closed_backend_refuses_calls(self, backend: Any) -> None:
        no = start(backend)
        backend.close()
        backend.close()
        calls: list[Callable[[], Any]] = [
            lambda: backend.find_thread("thread", "x"),
            lambda: backend.thread_with_uid(b""),
            lambda: listed(backend),
            lambda: backend.tips("a", touched=True),
            lambda: backend.newest(no),
            lambda: backend.rows(no, [(1, 1)]),
            lambda: backend.labelled(no, ["l"]),
            lambda: backend.tags(no),
            lambda: backend.tagged(no, "t"),
            lambda: backend.chunks([b""]),
            lambda: backend.present([b""]),
            lambda: backend.commit(Batch()),
            lambda: backend.thread_numbers(0, 1),
            lambda: backend.thread(no),
            lambda: backend.unindexed(0, 1),
            lambda: backend.changed_since(None, (), None),
            lambda: backend.snapshot().__enter__(),
        ]
        for call in calls:
            with pytest.raises(Unavailable) as caught:
                call()
            assert caught.value.code == "unavailable.closed"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_parent_and_child_write_after_a_fork(self, backend: Any) -> None:
        no = start(backend)
        stop = threading.Event()

        def work() -> None:
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
