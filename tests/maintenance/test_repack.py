"""Repacking stores once the bytes that a row and a chunk share. It changes no state, and keeps no removed chunk."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import backtrail
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.engine import compression
from backtrail.engine.tree.nodes import digest_of
from backtrail.maintenance import gc as upkeep
from tests.support.chunks import small_chunks
from tests.support.exact import same
from tests.support.lengths import lengths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = [
    f"{begin}{end}"
    for begin in ("comp", "off", "deci", "hot", "bud", "wal", "riv")
    for end in ("are", "er", "ding", "el")
]


def message(n: int, length: int = 160) -> dict[str, Any]:
    return {"role": "user", "id": f"m{n}", "content": " ".join(random.Random(n).choices(WORDS, k=length)), "n": n}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def fill(path: Path, steps: int = 120, **options: Any) -> None:
    with backtrail.open(path, durability="relaxed", **options) as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        for n in range(steps):
            thread.append("messages", message(n))


def everything(path: Path) -> dict[str, Any]:
    """All that is read of all checkpoints, in view or not."""
    with backtrail.open(path) as store:
        found = {}
        for record in upkeep.threads(store._engine.session.reader):
            for row in store._backend.rows(record.no, [(1, 1 << 30)], visible=True):
                made = store.checkpoint(backtrail.engine.log.checkpoint_id(record.uid, row.seq))
                assert made is not None
                found[made.id] = (made.root, made.stored, made.size, made.label, made.step, made.state)
        return found


def beside(path: Path) -> list[tuple[int, bool]]:
    """The rows that are stored beside chunks: (seq, whether it is a base)."""
    connection = apsw.Connection(str(path))
    query = "SELECT key & 0xffffffff, base = key & 0xffffffff FROM row WHERE substr(payload, 1, 1) = x'03' ORDER BY key"
    found = [(seq, bool(is_base)) for seq, is_base in connection.execute(query)]
    connection.close()
    return found


def payloads(path: Path) -> list[bytes]:
    connection = apsw.Connection(str(path))
    found = [payload for (payload,) in connection.execute("SELECT payload FROM row ORDER BY key")]
    connection.close()
    return found


def go_back_to_20(store: backtrail.Store) -> None:
    """Delete all behind step 20."""
    later = [checkpoint.id for checkpoint in store.thread("t").history()][20:]
    store.thread("t").rewind(20)
    assert all(store.thread("t").delete_checkpoint(each) for each in later)


def gc(path: Path, **options: Any) -> backtrail.GcReport:
    with backtrail.open(path, durability="relaxed", **options) as store:
        return store.gc()


# -- what it does -----------------------------------------------------------------------------------


def test_repacked_steps_of_1_kb_take_under_700_bytes(path: Path) -> None:
    fill(path, 2500)
    before, size = everything_but_states(path), path.stat().st_size
    report = gc(path)
    assert report.repacked > 2300
    assert path.stat().st_size < 0.75 * size
    assert path.stat().st_size / 2500 < 700
    assert everything_but_states(path) == before
    assert {is_base for _, is_base in beside(path)} == {False, True}
    with backtrail.open(path) as store:
        for step in (1, 2, 20, 700, 1251, 2499, 2501):
            expected = {"messages": [message(n) for n in range(step - 1)]}
            assert same(store.thread("t").load(step).state, expected), step


def everything_but_states(path: Path) -> list[Any]:
    with backtrail.open(path) as store:
        return [(c.id, c.root, c.stored, c.size, c.created_at) for c in store.thread("t").history()]


def test_a_second_collection_changes_nothing(path: Path) -> None:
    fill(path)
    assert gc(path).repacked > 0
    before = payloads(path)
    assert gc(path).repacked == 0
    assert payloads(path) == before


def test_rows_are_repacked_once_a_leaf_holds_them(path: Path) -> None:
    fill(path, 45)
    gc(path)
    first = len(beside(path))
    with backtrail.open(path) as store:
        for n in range(45, 90):
            store.thread("t").append("messages", message(n))
    before = everything(path)
    assert gc(path).repacked > 0
    assert len(beside(path)) > first
    assert everything(path) == before


def test_repacked_states_of_all_kinds_read_the_same(path: Path) -> None:
    with backtrail.open(path, durability="relaxed") as store:
        thread = store.thread("t")
        thread.save({"messages": [], "index": {}, "deep": {"notes": []}})
        for n in range(80):
            thread.append("messages", message(n), message(1000 + n))
            thread.set("messages[-1].status", "done")  # so its leaf does not hold what was appended
            thread.set(("index", f"key {n}"), message(2000 + n))
            if n % 9 == 0:
                thread.append("deep.notes", {"long": "a line of many words\n" * 400, "n": n})  # has a node of its own
        thread.delete_at("messages[30]")
        thread.fork("other", at=90).append("messages", message(8))
        thread.rewind(40)
        thread.append("messages", message(7))
    before = everything(path)
    assert gc(path).repacked > 100
    assert everything(path) == before
    with backtrail.open(path) as store:
        assert store.verify().ok


def test_an_edited_message_is_repacked_by_its_text(path: Path) -> None:
    with backtrail.open(path, durability="relaxed") as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        for n in range(60):
            thread.append("messages", message(n))
            thread.set("messages[-1].status", "done")
    gc(path)
    appended = [seq for seq, is_base in beside(path) if not is_base and seq % 2 == 0]
    assert len(appended) > 20


def test_progress_is_reported(path: Path) -> None:
    fill(path)
    told: list[tuple[str, int]] = []
    with backtrail.open(path) as store:
        report = store.gc(progress=lambda what, count: told.append((what, count)))
    assert ("repack", report.repacked) in told


def test_uncompressed_store_is_not_repacked(path: Path) -> None:
    fill(path, compression=False)
    before = payloads(path)
    assert gc(path, compression=False).repacked == 0
    assert payloads(path) == before


# -- what went is gone ------------------------------------------------------------------------------


def test_deleted_text_does_not_live_on_in_repacked_rows(path: Path) -> None:
    with backtrail.open(path, durability="relaxed", compression=True) as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        for n in range(70):
            thread.append("messages", message(n) if n != 25 else {"secret": os.urandom(600)})
    gc(path)
    with backtrail.open(path) as store:
        secret = store.thread("t").load().state["messages"][25]["secret"]
        before = [c.state for c in store.thread("t").history()][:20]
        chunks = store.stats().chunks
        go_back_to_20(store)
        assert len([seq for seq, _ in beside(path) if seq <= 20]) > 5  # beside the leaf that holds the secret
        report = store.gc()
        assert (report.rows > 40, report.repacked > 5, report.chunks) == (True, True, chunks)
        assert store.stats().chunks == 0
        assert [c.state for c in store.thread("t").history()] == before
        assert store.verify().ok
    assert beside(path) == []
    for file in path.parent.iterdir():
        assert secret[100:140] not in file.read_bytes()


# -- damage -----------------------------------------------------------------------------------------


def test_a_damaged_leaf_is_named_and_the_rest_loads(path: Path) -> None:
    fill(path, 80)
    gc(path)
    connection = apsw.Connection(str(path))
    rows = list(connection.execute("SELECT key & 0xffffffff, payload FROM row ORDER BY key"))
    lost = compression.stands_beside(
        next(payload for seq, payload in rows if payload[0] == compression.BESIDE and seq > 40)
    )[0]
    first = min(seq for seq, payload in rows if lost in compression.stands_beside(payload))
    with backtrail.open(path) as store:
        assert all(checkpoint.state for checkpoint in store.thread("t").history())  # so that all of it was read once
        connection.execute("UPDATE chunk SET payload = substr(payload, 1, 900) WHERE digest = ?", (lost,))
        connection.close()
        damaged = {damage.checkpoint_id for damage in store.verify().damaged}
    with backtrail.open(path) as store:
        uid = store._backend.find_thread("thread", "t").uid  # type: ignore[union-attr]
        assert damaged == {damage.checkpoint_id for damage in store.verify().damaged}
        assert damaged == {backtrail.engine.log.checkpoint_id(uid, seq) for seq in range(first, 82)}
        for step in range(1, first):
            assert len(store.thread("t").load(step).state["messages"]) == step - 1
        with pytest.raises(backtrail.Corrupt):
            store.gc()


def test_a_damaged_row_is_left_alone(path: Path) -> None:
    fill(path, 80)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE row SET step = 99 WHERE key & 0xffffffff = 10")
    connection.close()
    before = payloads(path)[9]
    assert gc(path).repacked > 0
    assert payloads(path)[9] == before
    assert 10 not in [seq for seq, _ in beside(path)]


def test_a_damaged_row_keeps_the_chunks_beside_it(path: Path) -> None:
    fill(path, 80)
    gc(path)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE row SET step = 99 WHERE key & 0xffffffff = 10")
    connection.close()
    before = payloads(path)[9]
    with backtrail.open(path) as store:
        record = store._backend.find_thread("thread", "t")
        assert record is not None
        live: set[bytes] = set()
        assert upkeep.repack(store._engine.session.reader, record, live, lambda _: None) > 0
    assert live == set(compression.stands_beside(before)) != set()
    assert payloads(path)[9] == before


def test_no_row_is_stored_beside_a_damaged_chunk(path: Path) -> None:
    fill(path, 80)
    with backtrail.open(path) as store:
        record = store._backend.find_thread("thread", "t")
        assert record is not None
        repacker = upkeep._Repacker(store._engine.session.reader, record, set(), lambda _: None)
        first, second, third = store._backend.rows(record.no, [(2, 4)], payload=True)
        ((digest, _), *_) = store._backend.chunk_page(b"", 1)
        connection = apsw.Connection(str(path))
        connection.execute("UPDATE chunk SET payload = substr(payload, 1, 900) WHERE digest = ?", (digest,))
        connection.close()
        repacker._write_later(first._replace(payload=b"alone"), ())
        repacker._write_later(second._replace(payload=b"beside"), (digest,))
        repacker._write_later(third._replace(payload=b"beside"), (bytes(32),))
        repacker.write()
        assert repacker.changed == 1
        after = [row.payload for row in store._backend.rows(record.no, [(2, 4)], payload=True)]
        assert after == [b"alone", second.payload, third.payload]


def test_repack_verifies_before_it_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 80)
    before = payloads(path)
    wrong = compression.Beside.squeeze
    monkeypatch.setattr(compression.Beside, "squeeze", lambda self, data: wrong(self, data + b"?"))
    assert gc(path).repacked == 0
    assert payloads(path) == before


LEAF = b"a leaf of many words " * 20


@pytest.mark.parametrize(
    "stored",
    [
        b"\x03",
        b"\x03\x00",
        b"\x03\x01" + bytes(31),
        b"\x03\x01" + bytes(32),
        b"\x03\x05" + bytes(200),
        b"\x03\xff" + bytes(10_000),
        b"\x03\x01" + bytes(32) + b"no frame",
        compression.Beside([bytes(32)], [LEAF]).squeeze(LEAF)[:-3],
    ],
)
def test_malformed_compressed_row_is_corrupt(stored: bytes) -> None:
    with pytest.raises(backtrail.Corrupt):
        compression.unsqueeze_beside(stored, [LEAF], limit=1 << 20)
    with pytest.raises(backtrail.Corrupt):
        compression.unsqueeze(stored, limit=1 << 20)


def test_beside_chunks_a_payload_reads_back_within_its_limit() -> None:
    digests = [digest_of(b"L", LEAF), digest_of(b"L", b"x" + LEAF)]
    data = b"op " + LEAF[40:300] + os.urandom(20) + LEAF
    stored = compression.Beside(digests, [LEAF, b"x" + LEAF]).squeeze(data)
    assert compression.stands_beside(stored) == tuple(digests)
    assert compression.unsqueeze_beside(stored, [LEAF, b"x" + LEAF], limit=len(data)) == data
    with pytest.raises(backtrail.Corrupt):
        compression.unsqueeze_beside(stored, [LEAF, b"x" + LEAF], limit=len(data) - 1)


# -- beside others ----------------------------------------------------------------------------------


def first_call(
    store: backtrail.Store, method: str, action: Callable[[], object], patch: pytest.MonkeyPatch, *, before: bool
) -> None:
    """Do something once, right before or after a call of one of the backend's methods."""
    original, done = getattr(store._backend, method), []

    def wrapped(*args: Any, **options: Any) -> Any:
        if before and not done:
            done.append(True)
            action()
        answer = original(*args, **options)
        if not done:
            done.append(True)
            action()
        return answer

    patch.setattr(store._backend, method, wrapped)


def test_a_row_that_became_a_base_meanwhile_stays_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 80)
    with backtrail.open(path) as one, backtrail.open(path) as other:
        expected = one.thread("t").load(11).state

        def meanwhile() -> None:
            for seq in range(1, 11):
                other.thread("t").delete_checkpoint(seq)
            upkeep.collect_rows(other._engine.session.reader, other._backend.find_thread("thread", "t"))  # type: ignore[arg-type]

        first_call(one, "rewrite", meanwhile, monkeypatch, before=True)
        one.gc()
    with backtrail.open(path) as store:
        assert store.thread("t").load(11).state == expected
        assert store.verify().ok


def test_repacking_puts_a_collected_chunk_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 80)
    with backtrail.open(path) as one, backtrail.open(path) as other:
        expected = [c.state for c in one.thread("t").history()][:20]

        def meanwhile() -> None:
            go_back_to_20(other)
            other.gc()

        first_call(one, "rewrite", meanwhile, monkeypatch, before=True)
        one.gc()
    with backtrail.open(path) as store:
        assert [c.state for c in store.thread("t").history()] == expected
        assert store.verify().ok
        store.gc()
        assert store.stats().chunks == 0
        assert [c.state for c in store.thread("t").history()] == expected


@pytest.mark.parametrize("collecting", [False, True])
def test_a_read_beside_a_dying_chunk_is_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, collecting: bool
) -> None:
    fill(path, 80)
    gc(path)
    with backtrail.open(path) as one, backtrail.open(path) as other:
        row = other.thread("t").load(15)
        heads = one._engine.session.reader
        record = one._backend.find_thread("thread", "t")
        assert record is not None
        (stored,) = one._backend.rows(record.no, [(15, 15)], payload=True)

        def meanwhile() -> None:
            go_back_to_20(other)
            other.gc()
            assert other.stats().chunks == 0

        if collecting:
            meanwhile()
            live: set[bytes] = set()
            upkeep._mark_row(heads, record, stored, live)  # as it was read before
        else:
            first_call(one, "rows", meanwhile, monkeypatch, before=False)
            assert heads.chain(record, stored).tree.root.hex() == row.root.removeprefix("blake3:")


class Writer:
    """Appends to its own thread, rewinds, prunes and forks, and knows the expected content."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: list[int] = []
        self._rng = random.Random(name)

    def __call__(self, store: backtrail.Store) -> None:
        thread, rng = store.thread(self.name), self._rng
        if not self.kept:
            thread.save({"messages": []})
        self.kept.append(len(self.kept))
        thread.append("messages", message(self.kept[-1], 8))
        if rng.random() < 0.1 and len(self.kept) > 3 and len(thread) > 3:
            thread.rewind("@~2")
            del self.kept[-2:]
        if rng.random() < 0.05:
            thread.prune(keep_last=rng.randrange(3, 30))
            thread.fork(f"{self.name} {rng.random()}")
        time.sleep(0.0005)


@pytest.mark.parametrize("seconds", lengths(1.5, 20))
def test_writers_and_two_collections_at_once_lose_nothing(path: Path, seconds: float) -> None:
    writers = [Writer("a"), Writer("b")]
    failed: list[BaseException] = []
    until = time.monotonic() + seconds

    def run(work: Callable[[backtrail.Store], object]) -> None:
        try:
            with backtrail.open(path, durability="relaxed") as store:
                while time.monotonic() < until and not failed:
                    work(store)
        except BaseException as error:  # noqa: BLE001 - told by the test's thread
            failed.append(error)

    with small_chunks():
        fill(path, 20)
        works = [*writers, backtrail.Store.gc, backtrail.Store.gc]
        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert failed == []
        assert len(beside(path)) > 10
        with backtrail.open(path) as store:
            assert store.verify().ok
            for writer in writers:
                assert len(writer.kept) > 10
                assert [m["n"] for m in store.thread(writer.name).load().state["messages"]] == writer.kept


KILLED = """
import os, signal, sys
import backtrail
from backtrail.backends.sqlite.backend import SqliteBackend
left = int(sys.argv[2])
rewrite = SqliteBackend.rewrite
def counted(*arguments):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rewrite(*arguments)
SqliteBackend.rewrite = counted
with backtrail.open(sys.argv[1]) as store:
    store.gc()
"""


def test_a_killed_collection_leaves_a_working_store(path: Path) -> None:
    fill(path, 600)
    before = everything_but_states(path)
    counts = []
    for left in (0, 1, 2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(left)], check=False)
        assert done.returncode == -signal.SIGKILL
        counts.append(len(beside(path)))
        assert everything_but_states(path) == before
        with backtrail.open(path) as store:
            assert store.thread("t").load(300).state == {"messages": [message(n) for n in range(299)]}
    assert counts[0] < counts[1] < counts[2]
    assert gc(path).repacked > 0
    with backtrail.open(path) as store:
        assert store.verify().ok


def test_repacking_writes_a_few_rows_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 400)
    sizes: list[int] = []
    rewrite = SqliteBackend.rewrite

    def counted(self: SqliteBackend, thread: int, rows: Any, chunks: Any = ()) -> int:
        sizes.append(len(rows))
        return rewrite(self, thread, rows, chunks)

    monkeypatch.setattr(SqliteBackend, "rewrite", counted)
    gc(path)
    assert max(sizes) <= upkeep._BATCH
    assert len(sizes) > 2
