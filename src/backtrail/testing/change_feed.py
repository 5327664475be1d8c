"""Tests of `ChangeFeed`."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from backtrail.backends.port import Batch, Stale
from backtrail.errors import Unavailable
from backtrail.testing.base import Conformance
from backtrail.testing.samples import digest, new, row, start


class ChangeFeedConformance(Conformance):
    """Tests of listeners and of `changed_since`."""

    def test_mark_tells_which_threads_changed_since(self, backend: Any) -> None:
        first, second = start(backend, rows=2), start(backend, "y")
        mark, news = backend.changed_since(None, (), None)
        assert news == {}
        third = start(backend, "z", rows=3)
        backend.commit(Batch(rows=((first, row(3)), (first, row(4)))))
        mark, news = backend.changed_since(mark, {first, third}, None)
        assert news == {first: 2, third: 0}
        mark, news = backend.changed_since(mark, (), None)
        assert news == {}
        backend.commit(Batch(rows=((second, row(2)),), hide=((first, 4),)))
        assert backend.changed_since(mark, {first, second}, ())[1] == {second: 1}

    def test_tags_and_hiding_are_no_change(self, backend: Any) -> None:
        no = start(backend, rows=3)
        mark, _ = backend.changed_since(None, (), None)
        backend.commit(Batch(hide=((no, 1),), tag=((no, 2, "t"),), chunks=((digest("a"), b"a"),)))
        assert backend.changed_since(mark, {no}, None)[1] == {}

    def test_marks_are_independent(self, backend: Any) -> None:
        no = start(backend)
        one, _ = backend.changed_since(None, (), None)
        backend.commit(Batch(rows=((no, row(2)),)))
        other, _ = backend.changed_since(None, (), None)
        backend.commit(Batch(rows=((no, row(3)),)))
        assert backend.changed_since(one, {no}, None)[1] == {no: 1}
        assert backend.changed_since(other, {no}, None)[1] == {no: 2}

    def test_first_mark_may_skip_threads(self, backend: Any) -> None:
        no = start(backend, rows=2)
        mark, _ = backend.changed_since(None, (), ())
        made = start(backend, "y")
        mark, news = backend.changed_since(mark, {no, made}, ())
        assert news[made] == 0
        backend.commit(Batch(rows=((no, row(3)),)))
        assert backend.changed_since(mark, {no}, ())[1] == {no: 2}

    def test_listeners_hear_of_each_commit(self, backend: Any) -> None:
        no = start(backend)
        told: list[Any] = []
        other: list[Any] = []
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

    def test_listeners_hear_of_a_group_when_it_is_visible(self, backend: Any) -> None:
        no = start(backend)
        mark, _ = backend.changed_since(None, (), None)
        found, looked = [], threading.Event()

        def look(numbers: Any) -> None:
            def work() -> None:
                found.append(backend.changed_since(mark, numbers, ())[1])
                looked.set()

            threading.Thread(target=work).start()

        with backend.listen(look):
            with backend.group():
                backend.commit(Batch(rows=((no, row(2)),)))
                assert not looked.wait(0.05)
            assert looked.wait(30)
        assert found == [{no: 1}]

    def test_dropped_group_is_no_change(self, backend: Any) -> None:
        no = start(backend)
        mark, _ = backend.changed_since(None, (), None)
        with pytest.raises(RuntimeError), backend.group():
            backend.commit(Batch(rows=((no, row(2)),)))
            start(backend, "y")
            raise RuntimeError
        mark, news = backend.changed_since(mark, {no}, None)
        assert news == {}
        backend.commit(Batch(rows=((no, row(2)),)))
        assert backend.changed_since(mark, {no}, None)[1] == {no: 1}

    def test_listening_may_end_after_close(self, backend: Any) -> None:
        listening = backend.listen(lambda _: None)
        listening.__enter__()
        backend.close()
        listening.__exit__(None, None, None)
        with pytest.raises(Unavailable):
            backend.changed_since(None, (), None)
