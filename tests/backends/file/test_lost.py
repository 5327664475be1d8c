"""Stores in files after lost frames, repairs by other processes, killed collections and interrupts."""

import os
import signal
import threading
from pathlib import Path
from unittest import mock

import pytest

import backtrail
from backtrail import Conversation, Message
from backtrail.backends.file import backend as file
from backtrail.backends.file import directory
from backtrail.backends.file import log as file_log
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.tables.tables import Tables
from backtrail.errors import Corrupt, NotFound, Unavailable
from tests.backends.file.test_crashes import FIRST, frames_of
from tests.backends.sqlite.test_backend import append, in_child, raises, start

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


KILLED = 3 << 8
"""The exit status of a child that ends at once, in the middle of something."""


def killed(*_):
    os._exit(3)


def opened(path, **options):
    return backtrail.open(path.as_uri(), **options)


def numbers(store):
    return {info.id: store.thread(info.id).load().state["n"] for info in store.threads()}


class Hole:
    """A context whose writes go to a part of the log that the test then loses."""

    def __init__(self, path):
        self._log = path / FIRST

    def __enter__(self):
        self._start = self._log.stat().st_size
        return self

    def __exit__(self, *_):
        self._end = self._log.stat().st_size

    def tear(self):
        with self._log.open("r+b") as log:
            log.seek(self._start)
            log.write(bytes(self._end - self._start))


# -- frames that are lost ---------------------------------------------------------------------------


def begun_again(path, others):
    """A thread whose first frame is lost, and which was begun again when there were later ones."""
    with opened(path, durability="relaxed") as store:
        store.thread("zero").save({"n": 0})
        with Hole(path) as hole:
            store.thread("a").save({"n": 1})
            store.thread("zero").save({"n": 1})  # two: of the last one the next one would tell
        store.thread("a").delete()
        for n in range(others):
            store.thread(f"b{n}").save({"n": n})
        store.thread("a").save({"n": 2, "text": text()})
    hole.tear()


def text():
    return "".join(f"line {n * 7919 % 10007}\n" for n in range(8000))


def test_number_of_a_recovered_thread_is_not_reused(path):
    begun_again(path, 1)
    with opened(path) as store:
        assert store.thread("a").load().state["n"] == 2
        store.verify(repair=True)
        store.thread("c").save({"n": 3})
    with opened(path) as store:
        assert numbers(store) == {"zero": 0, "a": 2, "b0": 0, "c": 3}
        assert store.verify().ok


def test_a_thread_that_comes_back_is_seen_by_collections(path):
    begun_again(path, 520)  # more than one page
    with opened(path) as store:
        store.verify(repair=True)
        store.thread("b1").delete()
        store.gc()
        store.gc()
        assert store.thread("a").load().state["text"] == text()


@pytest.mark.parametrize("lock", [True, False])
@pytest.mark.parametrize("which", [1, -1])
def test_file_that_begins_with_zeros_is_read_behind_them(path, monkeypatch, which, lock):
    monkeypatch.setattr(file_log, "FILE_BYTES", 8000)
    with opened(path) as store:
        for n in range(50):
            store.thread(f"t{n}").save({"n": n, "x": os.urandom(300)})
    files = sorted(path.glob("log-*"))
    assert len(files) > 3
    with files[which].open("r+b") as log:
        log.write(bytes(900))
    if not lock:
        (path / "backtrail.lock").unlink()
    with opened(path) as store:
        left = {info.id for info in store.threads() if _loads(store, info.id)}
        assert 45 <= len(left) < 50
        assert not store.verify().ok
        with raises(Corrupt, "corrupt.store"):
            store.thread("t0").save({"n": 0})
        store.verify(repair=True)
        store.thread("t0").save({"n": 0})
        assert left <= set(numbers(store))
        assert store.verify().ok


def _loads(store, name):
    try:
        return bool(store.thread(name).load())
    except Corrupt:
        return False


def test_log_bytes_saved_as_data_are_not_frames(path):
    with opened(path, compression=False) as store:
        store.thread("big").save({"n": 0, "x": os.urandom(20_000)})
        head = (path / FIRST).read_bytes()[40:140]
        at = (path / FIRST).stat().st_size
        store.thread("copy").save({"n": 1, "log": head})
        for n in range(20):
            store.thread(f"t{n}").save({"n": n, "x": os.urandom(2000)})
    data = bytearray((path / FIRST).read_bytes())
    data[at] ^= 1  # the header of the frame that has it
    (path / FIRST).write_bytes(data)
    with opened(path) as store:
        assert not store.verify().ok
        assert len(numbers(store)) == 22
        store.verify(repair=True)
        assert len(numbers(store)) == 22


@pytest.mark.parametrize("while_open", [True, False])
@pytest.mark.parametrize("repeated", [1, 40])
def test_search_never_returns_a_damaged_text(path, while_open, repeated):
    said = "transfer 100 dollars to bob, please. " * repeated
    with opened(path, compression=repeated > 1) as store:
        store.conversations.save(Conversation("a").add_message(Message.user(said)))
        (hit,) = store.search("transfer")
    with opened(path) as store:
        place = store._backend._storage.tables.lists[1][1][0].text
        data = bytearray((path / FIRST).read_bytes())
        data[place.at + (10 if repeated == 1 else place.length // 2)] ^= 8
        (path / FIRST).write_bytes(data)
        if while_open:
            assert not store.verify().ok
            with raises(Corrupt, "corrupt.index"):
                store.search("transfer")
            store.verify(repair=True)
            assert [found.snippet for found in store.search("transfer")] == [hit.snippet]
    with opened(path) as store:
        assert [found.snippet for found in store.search("transfer")] == [hit.snippet]


# -- other processes that go on -----------------------------------------------------------------------


def repaired_by_another(path, deed):
    def child():
        with opened(path) as store:
            store.verify(repair=True)
            deed(store)

    assert in_child(child) == 0


def test_stale_handle_cannot_write_to_a_reused_number(path):
    store = opened(path)
    store.thread("zero").save({"items": [0]})
    mine = store.thread("mine")
    with Hole(path) as hole:
        mine.save({"items": ["mine"]})
        store.thread("zero").append("items", 1)
    store.thread("zero").append("items", 2)
    hole.tear()
    repaired_by_another(path, lambda other: other.thread("hers").save({"items": ["hers"]}))
    for _ in range(2):
        with raises(NotFound, "not_found.store"):
            mine.append("items", "mine, too")
    store.close()
    with opened(path) as store:
        assert store.thread("hers").load().state == {"items": ["hers"]}
        assert store.thread("mine").latest() is None
        assert store.verify().ok


def test_stale_handle_cannot_write_after_ids_are_reused(path):
    store = opened(path)
    mine = store.thread("t")
    mine.save({"items": [0]})
    store.thread("zero").save({"items": [0]})
    with Hole(path) as hole:
        mine.append("items", "mine")
        mine.append("items", "mine")
        store.thread("zero").append("items", 1)
    store.thread("zero").append("items", 2)
    hole.tear()
    repaired_by_another(path, lambda other: [other.thread("t").append("items", "hers") for _ in range(2)])
    with raises(NotFound, "not_found.store"):
        mine.append("items", "mine")
    with raises(NotFound, "not_found.store"):
        mine.load()
    store.close()
    with opened(path) as store:
        assert store.thread("t").load().state == {"items": [0, "hers", "hers"]}
        store.thread("t").append("items", "mine")
        assert store.verify().ok


@pytest.mark.parametrize("function", ["begin_file", "_begin", "switch", "sweep"])
def test_next_repair_completes_a_killed_one(path, function):
    store = opened(path)
    store.thread("a").save({"n": 0})
    with Hole(path) as hole:
        store.thread("b").save({"n": 1})
        store.thread("a").save({"n": 1})
    store.thread("a").save({"n": 2})
    store.close()
    hole.tear()
    place = {"begin_file": file, "_begin": FileBackend}.get(function, directory)

    def child():
        with opened(path) as other, mock.patch.object(place, function, killed):
            other.verify(repair=True)

    assert in_child(child) == KILLED
    with opened(path) as store:
        store.verify(repair=True)
        assert store.verify().ok
        store.thread("a").save({"n": 3})
    with opened(path) as store:
        assert numbers(store) == {"a": 3}
        store.gc()
        assert store.verify().ok
    assert len([*path.glob("log-*")]) == len([*path.glob("base-*")]) == 1


def test_torn_end_is_read_again_after_a_publish(path):
    """Its size and its time may be the same: clocks of file systems are coarse."""
    first, second = opened(path), opened(path)
    other = first.thread("other")
    other.save({"n": 0})
    first.thread("t").save({"n": 0})
    first.thread("t").save({"n": 1})
    with Hole(path) as like:
        second.thread("t").save({"n": 2})
    with (path / FIRST).open("ab") as log:
        log.write(os.urandom(like._end - like._start))
    stamp = (path / FIRST).stat().st_mtime_ns
    first.thread("t").load()
    second.thread("t").save({"n": 3})
    assert (path / FIRST).stat().st_size == 2 * like._end - like._start
    os.utime(path / FIRST, ns=(stamp, stamp))
    other.save({"n": 1})
    first.close()
    second.close()
    with opened(path) as store:
        assert numbers(store) == {"other": 1, "t": 3}


# -- a base, and what is on disk of the log behind it -------------------------------------------------


@pytest.fixture
def collected(path):
    """A store whose base has more frames than its log ever had."""
    with opened(path) as store:
        for n in range(6):
            store.thread(f"t{n}").save({"n": n, "x": os.urandom(1 << 20)})
        store.thread("gone").save({})
        store.thread("gone").delete()
        store.gc()
    with opened(path) as store:
        log = store._backend._storage.log
        assert store._backend._storage.generation.frames > log.number >= log.synced
    return path


def test_torn_write_behind_a_base_is_cut_off(collected):
    def child():
        with opened(collected) as store:
            write_at = file_log.write_at

            def half(fd, at, data):
                write_at(fd, at, data[: len(data) // 2])
                killed()

            with mock.patch.object(file_log, "write_at", half):
                store.thread("t1").save({"n": 7})

    assert in_child(child) == KILLED
    with opened(collected) as store:
        assert store.verify().ok
        store.thread("t2").save({"n": 8})
        assert numbers(store)["t1"] == 1


def test_close_syncs_relaxed_writes_behind_a_base(collected, monkeypatch):
    synced = []
    fdatasync = os.fdatasync
    with opened(collected, durability="relaxed") as store:
        store.thread("t1").save({"n": 1})
        monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), fdatasync(fd)))
        store.thread("t1").save({"n": 2})
    assert synced


# -- what was erased ----------------------------------------------------------------------------------

CANARY = b"the canary"


def found_in(path):
    return [each.name for each in path.iterdir() if CANARY in each.read_bytes()]


@pytest.fixture
def erased(path):
    store = opened(path, compression=False)
    store.thread("x").save({"secret": CANARY.decode()})
    store.thread("y").save({"n": 1})
    store.thread("x").delete()
    assert found_in(path)
    yield store
    store.close()


def test_next_collection_removes_leftovers_of_a_killed_one(path, erased):
    def child():
        with opened(path) as other, mock.patch.object(directory, "sweep", killed):
            other.gc()

    assert in_child(child) == KILLED
    assert found_in(path)
    erased.gc()
    assert found_in(path) == []


def test_next_collection_removes_leftover_files(path, erased, monkeypatch):
    unlink = Path.unlink

    def refused(self, **rest):
        if self.name.startswith("log-"):
            raise PermissionError(1, "Operation not permitted")
        unlink(self, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        with raises(Unavailable, "unavailable.open"):
            erased.gc()
    assert found_in(path)
    erased.gc()
    assert found_in(path) == []


def test_collection_erases_the_former_agent_of_a_thread(path):
    with opened(path) as store:
        store.thread("t", agent=CANARY.decode()).save({"n": 1})
        store.thread("t").delete()
        store.gc()
        store.thread("t", agent="another").save({"n": 2})
        store.gc()
        assert found_in(path) == []
        assert numbers(store) == {"t": 2}


# -- Ctrl-C -------------------------------------------------------------------------------------------


def test_ctrl_c_during_a_reload_mixes_no_generations(path, monkeypatch):
    large = {"text": text()}
    with opened(path) as store:
        store.thread("old").save(large)
        store.thread("keep").save({"n": 1})

        def child():
            with opened(path) as other:
                other.thread("old").delete()
                other.gc()

        assert in_child(child) == 0
        with monkeypatch.context() as patched:
            patched.setattr(file_log.Log, "read", lambda *_, **__: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                store.thread("keep").load()
        assert store.thread("keep").load().state == {"n": 1}
        store.thread("new").save(large)
        assert store.thread("new").load().state == large
    with opened(path) as store:
        assert store.thread("new").load().state == large
        assert store.verify().ok


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_ctrl_c_as_a_group_begins_releases_the_lock(path, kind):
    backend = FileBackend(path, busy_timeout=0.5) if kind == "files" else MemoryBackend()
    no = start(backend)
    begin = Tables.begin

    def interrupted(self):
        Tables.begin = begin
        signal.raise_signal(signal.SIGINT)

    with mock.patch.object(Tables, "begin", interrupted), pytest.raises(KeyboardInterrupt), backend.group():
        append(backend, no)
    seen = []
    other = threading.Thread(target=lambda: seen.append((append(backend, no), backend.newest(no).seq)))
    other.start()
    other.join(5)
    assert [seq for _, seq in seen] == [2]
    if kind == "files":

        def child():
            with opened(path) as store:
                store.thread("p").save({})

        assert in_child(child) == 0
    backend.close()


def test_store_can_be_closed_on_a_failing_disk(path, monkeypatch):
    store = opened(path, durability="relaxed")
    store.thread("t").save({"n": 1})

    def failing(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", failing)
        store.close()
    with raises(Unavailable, "unavailable.closed"):
        store.thread("t").load()
    with opened(path) as store:
        assert numbers(store) == {"t": 1}


# -- repairs, and processes that open the store meanwhile --------------------------------------------------


def torn(path):
    """A store that has written a thread which is lost, and has read its log again."""
    store = opened(path)
    store.thread("zero").save({"n": 0})
    lost = store.thread("a")
    with Hole(path) as hole:
        lost.save({"n": 1})
        store.thread("zero").save({"n": 1})
    store.thread("zero").save({"n": 2})
    hole.tear()
    store._backend._storage._log = None  # as after an unknown commit, or Ctrl-C
    return store, lost


def test_repairing_process_forgets_lost_numbers_too(path):
    store, lost = torn(path)
    store.verify(repair=True)
    store.thread("c").save({"n": 5})
    with raises(backtrail.Conflict, "conflict.stale"):
        lost.set("n", 2)
    assert numbers(store) == {"zero": 2, "c": 5}
    store.close()
    with opened(path) as store:
        assert numbers(store) == {"zero": 2, "c": 5}
        assert store.verify().ok


def test_nothing_is_repaired_while_transactions_are_open(path):
    store, _ = torn(path)
    begun, over = threading.Event(), threading.Event()

    def elsewhere():
        with store.transaction():
            begun.set()
            over.wait(10)

    other = threading.Thread(target=elsewhere)
    other.start()
    assert begun.wait(10)
    with raises(Unavailable, "unavailable.transaction"):
        store.verify(repair=True)
    assert not store.verify().ok
    over.set()
    other.join()
    store.verify(repair=True)
    assert store.verify().ok
    store.close()


def test_open_during_a_repair_gets_the_repaired_store(path, monkeypatch):
    torn(path)[0].close()
    read = file_log.Log.read

    def overtaken(*args, **options):
        monkeypatch.setattr(file_log.Log, "read", read)
        repaired_by_another(path, lambda other: other.thread("c").save({"n": 5}))
        return read(*args, **options)

    monkeypatch.setattr(file_log.Log, "read", overtaken)
    with opened(path, read_only=True) as store:
        assert numbers(store) == {"zero": 2, "c": 5}


@pytest.mark.parametrize("lock", [True, False])
def test_files_behind_a_gap_are_read_without_the_seal(path, monkeypatch, lock):
    monkeypatch.setattr(file_log, "FILE_BYTES", 3000)
    with opened(path) as store:
        for n in range(40):
            store.thread(f"t{n}").save({"n": n, "x": os.urandom(300)})
        uid = store._backend._storage.generation.uid
    second, third = path / "log-000000000002", path / "log-000000000003"
    lost = len(frames_of(third, uid))
    seal = frames_of(second, uid)[-1]
    with second.open("r+b") as log:
        log.seek(seal.at)
        log.write(bytes(seal.end - seal.at))
    third.unlink()
    if not lock:
        (path / "backtrail.lock").unlink()
    with opened(path) as store:
        left = {info.id for info in store.threads() if _loads(store, info.id)}
        assert len(left) >= 40 - lost
        assert not store.verify().ok
        with raises(Corrupt, "corrupt.store"):
            store.thread("t0").save({"n": 0})
        store.verify(repair=True)
        assert numbers(store).keys() == left
        assert store.verify().ok


def test_old_frames_inside_saved_data_are_not_applied(path, monkeypatch):
    with opened(path, compression=False) as store:
        store.thread("x").save({"n": 0}, label="l")
        store.thread("x").tag("l", "taken off")
        store.thread("x").untag("l", "taken off")
        store.thread("x").save({"n": 1})
        older = (path / FIRST).read_bytes()[40:]
        monkeypatch.setattr(file_log, "FILE_BYTES", 1)  # the next frame begins another file
        store.thread("copy").save({"n": 2, "log": older})
        monkeypatch.undo()
        store.thread("y").save({"n": 3})
    with (path / "log-000000000002").open("r+b") as log:
        log.write(bytes(41))
    with opened(path) as store:
        assert not store.verify().ok
        assert store.thread("x").load("l").tags == ()
        assert store.thread("y").load().state == {"n": 3}
        store.thread("y").save({"n": 4})


@pytest.mark.parametrize("k", range(1, 6))
def test_too_many_open_files_in_a_repair_raise(path, monkeypatch, k):
    torn(path)[0].close()
    with opened(path) as store:
        left = k
        real = os.open

        def refused(name, *args, **rest):
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(24, "Too many open files")
            return real(name, *args, **rest)

        begin = FileBackend._begin_store

        def begun(self, tables):
            monkeypatch.setattr(os, "open", refused)
            begin(self, tables)

        monkeypatch.setattr(FileBackend, "_begin_store", begun)
        with raises(Unavailable, "unavailable.open"):
            store.verify(repair=True)
        monkeypatch.undo()
    with opened(path) as store:
        store.verify(repair=True)
        assert store.verify().ok
        assert numbers(store) == {"zero": 2}
