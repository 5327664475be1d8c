"""A collection takes nothing that is needed, whatever else happens and whatever is damaged."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import backtrail
from backtrail.backends.port import Batch
from backtrail.backends.sqlite import connection
from backtrail.engine import log, throttle
from backtrail.engine.tree import chunked as spines
from backtrail.engine.tree.path import parse
from backtrail.engine.tree.tree import locate
from backtrail.maintenance import gc

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def noise(rng: random.Random, count: int, size: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": rng.randbytes(size).hex()} for _ in range(count)]


def test_chunks_shared_with_deleted_rows_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    messages = noise(rng, 150, 4_000)
    with backtrail.open(path) as store:
        gone = store.thread("t").save({"m": messages, "own": rng.randbytes(30_000).hex()})
        store.thread("t").save({"x": 1})
        kept = store.thread("u").save({"m": messages})
    mark = gc._mark_row
    with backtrail.open(path) as first, backtrail.open(path) as second:
        met: list[int] = []

        def slow(heads: Any, record: Any, row: Any, live: set[bytes]) -> None:
            if record.name == "t" and row.seq == gone.seq and not met:
                met.append(row.seq)
                second.thread("t").delete_checkpoint(gone.id)
                second.gc()
            mark(heads, record, row, live)

        monkeypatch.setattr(gc, "_mark_row", slow)
        first.gc()
        assert met
    with backtrail.open(path) as store:
        assert store.thread("u").load(kept.id).state == {"m": messages}


def test_a_hidden_base_of_a_visible_row_is_verified(path: Path) -> None:
    rng = random.Random(1)
    messages = noise(rng, 600, 200)
    with backtrail.open(path) as store:
        thread = store.thread("t")
        thread.save({"x": 0})
        hidden = thread.save({"m": messages, "own": rng.randbytes(30_000).hex()})
        kept = thread.delete_at("own")
        thread.delete_checkpoint(hidden.id)
    database = apsw.Connection(str(path))
    database.execute("UPDATE row SET label = x'41' WHERE key = (1 << 32) | 1")  # so that no row of the thread may go
    own = database.execute("SELECT digest FROM chunk ORDER BY length(payload) DESC LIMIT 1").get
    database.execute("DELETE FROM chunk WHERE digest = ?", (own,))
    database.close()
    with backtrail.open(path) as store, pytest.raises(backtrail.Corrupt, match="nothing was collected"):
        store.gc()
    with backtrail.open(path) as store:
        assert store.thread("t").load(kept.id).state == {"m": messages}


def test_row_is_detached_from_a_dead_chunk(path: Path) -> None:
    rng = random.Random(3)
    with backtrail.open(path) as store:
        thread = store.thread("t")
        thread.save({"m": []})
        first = noise(rng, 12, 150)
        for message in first:
            kept = thread.append("m", message)
        for message in noise(rng, 120, 150):
            last = thread.append("m", message)
        assert store.gc().repacked  # the first rows are stored beside a leaf of this thread now
        thread.rewind(kept.id)
        for message in noise(rng, 120, 150):
            thread.append("m", message)
        heads = store._engine.session.reader
        record = heads.backend.find_thread("thread", "t")
        assert record is not None
        for seq in range(kept.seq + 1, last.seq + 1):
            thread.delete_checkpoint(log.checkpoint_id(record.uid, seq))
        tip = heads.tip_of(record)
        assert tip is not None
        assert tip.head is not None
        tree = heads.chain(record, tip.head).tree
        spine = spines.open_rep(locate(tree, parse("m"), store._engine.types)[0], tree.nodes)
        assert spine is not None
        leaf = spines.leaves(tree.nodes, spine)[0]
        assert thread.load().state["m"][:12] == first  # the leaf of the other line is at hand now
        with apsw.Connection(str(path)) as database:
            stored = database.execute("SELECT payload FROM chunk WHERE digest = ?", (leaf.digest,)).get
            wrong = stored[:-1] + bytes([stored[-1] ^ 1])
            database.execute("UPDATE chunk SET payload = ? WHERE digest = ?", (wrong, leaf.digest))
        with backtrail.open(path) as other:
            before = {damage.checkpoint_id for damage in other.verify().damaged}
        store.gc()
    with backtrail.open(path) as store:
        assert {damage.checkpoint_id for damage in store.verify().damaged} <= before
        assert store.thread("t").load(kept.id).state == {"m": first}


def test_a_row_shown_during_a_collection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with backtrail.open("memory://") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"n": 0})
        for n in range(30):
            thread.save({"n": n})
            thread.rewind("@-")
            thread.save({"n": -n})
        early = thread.load(10)
        thread.prune(keep_last=1)
        backend: Any = store._backend
        remove, no = backend.remove_rows, backend.find_thread("thread", "t").no

        def overtaken(thread: int, seqs: list[int]) -> int:
            backend.commit(Batch(show=((no, early.seq),)))
            return int(remove(thread, seqs))

        with monkeypatch.context() as patch:
            patch.setattr(backend, "remove_rows", overtaken)
            store.gc()
        assert [c.step for c in thread.history()] == [10, 31]
        store.gc()
        assert [c.step for c in thread.history()] == [10, 31]


def test_a_returned_checkpoint_does_not_keep_its_state() -> None:
    """The newest state is cached; older states are read again."""
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        first = thread.save({"m": ["a" * 5_000]})
        second = thread.append("m", "b")
        reads: list[int] = []
        rows = store._backend.rows

        def counted(*arguments: Any, **options: Any) -> Any:
            reads.append(1)
            return rows(*arguments, **options)

        store._backend.rows = counted  # type: ignore[method-assign]
        assert second.get("m[1]") == "b"
        assert not reads
        assert first.get("m[0]") == "a" * 5_000
        assert reads


def test_upkeep_pauses_for_as_long_as_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []
    monkeypatch.setattr(throttle.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(throttle.time, "sleep", slept.append)
    paced = throttle.Upkeep()
    for took in (0.0005, 0.001, 0.001, 0.004, 0.9):  # short writes add up; no pause is long
        with paced.write():
            now[0] += took
    assert slept == pytest.approx([0.0025, 0.004, 0.02])


def test_rows_are_removed_in_slices_newest_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: list[int] = []
    removed: list[list[int]] = []
    with backtrail.open(path) as store:
        thread = store.thread("t")
        with store.transaction():
            for n in range(300):
                thread.save({"n": n})
        commit, remove = store._backend.commit, store._backend.remove_rows
        monkeypatch.setattr(store._backend, "commit", lambda b: (hidden.append(len(b.hide)), commit(b))[1])
        monkeypatch.setattr(store._backend, "remove_rows", lambda no, s: (removed.append(list(s)), remove(no, s))[1])
        thread.prune(keep_last=1)
        store.gc()
        assert hidden == [128, 128, 43]
        assert [len(part) for part in removed] == [128, 128, 43]
        assert [seq for part in removed for seq in part] == list(range(299, 0, -1))
        assert store.verify().ok


def test_a_waiting_writer_retries_often_and_gives_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    with backtrail.open(path) as store:
        thread = store.thread("t")
        thread.save({"l": []})
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 300:
                other.execute("COMMIT")

        with monkeypatch.context() as patch:
            patch.setattr(connection.time, "sleep", sleep)
            assert thread.append("l", 1).step == 2
        assert len(slept) == 300
        assert 0 < max(slept) <= 0.005  # SQLite's own way of waiting comes to 0.1
        other.execute("BEGIN IMMEDIATE")
        store._backend._shared._connection.set_busy_handler(None)
        connection.wait_for_others(store._backend._shared._connection, 0.05)
        with pytest.raises(backtrail.Unavailable):
            thread.append("l", 2)
        other.close()


def test_saves_do_not_pause_for_collected_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(throttle, "_SPELL", 0.0)
    with backtrail.open(path, max_checkpoints=2) as store:
        with monkeypatch.context() as patch:
            patch.setattr(throttle.time, "sleep", slept.append)
            for n in range(150):
                store.thread("t").save({"n": n})
        assert store.stats().checkpoints == 2
        assert set(slept) == {0.0}
        store.thread("t").prune(keep_last=1)
        with monkeypatch.context() as patch:
            patch.setattr(throttle.time, "sleep", slept.append)
            store.gc()
        assert max(slept) > 0
