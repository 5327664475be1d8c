"""Hard cases of file stores: lost files, damage between processes, Ctrl-C, few descriptors, long waits."""

import errno
import os
import shutil
import threading
import time
import tracemalloc
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import backtrail
from backtrail.backends.file import backend as file
from backtrail.backends.file import directory as file_directory
from backtrail.backends.file import lock as file_lock
from backtrail.backends.file import log as file_log
from backtrail.backends.file import storage as file_storage
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.file.frames import HEADER
from backtrail.backends.file.storage import FileStorage
from backtrail.backends.port import Batch, Usage
from backtrail.backends.tables.backend import TableBackend
from backtrail.backends.tables.tables import Tables
from backtrail.errors import Corrupt, NotFound, Unavailable
from tests.backends.file.test_backend import seqs
from tests.backends.file.test_crashes import FIRST, frames_of
from tests.backends.sqlite.test_backend import append, contents, in_child, raises, row, start
from tests.support.disks import traced

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")


def opened(path, **options):
    return FileBackend(path, busy_timeout=5, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def disk():
    with traced() as disk:
        yield disk


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(file_log, "FILE_BYTES", 1000)


def flip(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def first_frames(path):
    generation, fd = file_directory.read(path)
    os.close(fd)
    return frames_of(path / FIRST, generation.uid)


class TestDamageBetweenProcesses:
    """Writes of other processes were on disk, too: one damaged byte does not affect later frames."""

    def look(self, path, count, hurt):
        """All threads are there, one of them damaged, and nothing is cut off."""
        size = (path / FIRST).stat().st_size
        for read_only in (True, False):
            with backtrail.open(path.as_uri(), read_only=read_only) as store:
                assert len(list(store.threads())) == count
                assert [damage.thread_id for damage in store.verify().damaged] == [hurt]
        assert (path / FIRST).stat().st_size == size

    @pytest.mark.parametrize("durability", ["full", "relaxed"])
    def test_each_opens_the_store_for_one_write(self, path, durability):
        for at in range(6):
            with backtrail.open(path.as_uri(), durability=durability) as store:
                store.thread(f"t{at}").save({"n": at})
        flip(path / FIRST, first_frames(path)[2].end - 3)
        self.look(path, 6, "t2")

    @pytest.mark.parametrize("frame", [1, 4])
    def test_two_take_turns(self, path, frame):
        with backtrail.open(path.as_uri()) as one, backtrail.open(path.as_uri()) as other:
            for at in range(6):
                (other if at % 2 else one).thread(f"t{at}").save({"n": at})
        found = first_frames(path)
        assert [each.synced for each in found] == list(range(6))
        (path / "backtrail.lock").unlink()  # the log alone must tell
        flip(path / FIRST, found[frame].end - 3)
        self.look(path, 6, f"t{frame}")

    def test_it_waits_for_the_disk_once_for_each_write(self, path, disk):
        one, other = opened(path), opened(path)
        no = start(one)
        disk.calls.clear()
        for at in range(6):
            append(other if at % 2 else one, no)
        assert disk.count("sync") == 6

    def test_missing_lock_file_causes_one_locked_read(self, path, disk):
        backend = opened(path)
        no = start(backend)
        backend.close()
        (path / "backtrail.lock").unlink()
        backend = opened(path)
        disk.calls.clear()
        append(backend, no)
        assert disk.count("sync") == 1
        assert [each.synced for each in first_frames(path)] == [0, 1]

    def test_damaged_last_frame_that_was_synced_is_kept(self, path):
        for at in range(3):
            with backtrail.open(path.as_uri()) as store:
                store.thread(f"t{at}").save({"n": at})
        last = first_frames(path)[-1]
        flip(path / FIRST, last.end - 3)
        self.look(path, 3, "t2")
        flip(path / FIRST, last.end - 3)
        flip(path / FIRST, last.at)  # only its header
        with backtrail.open(path.as_uri()) as store:
            assert store.thread("t2").load().state == {"n": 2}
            assert store.verify().faults

    def test_frames_that_are_missing_at_the_end_are_reported(self, path, caplog):
        for at in range(3):
            with backtrail.open(path.as_uri()) as store:
                store.thread(f"t{at}").save({"n": at})
        os.truncate(path / FIRST, first_frames(path)[-1].at)
        with backtrail.open(path.as_uri(), read_only=True) as store:
            assert len(list(store.threads())) == 2
            assert "frame 3 was on disk" in store.verify().faults[0]
        with backtrail.open(path.as_uri()) as store:  # as it should be with one that was restored from a copy
            store.thread("new").save({})
            assert "frame 3 was on disk" in caplog.text
        with backtrail.open(path.as_uri()) as store:
            assert store.verify().ok

    @pytest.mark.parametrize("damage", ["headers", "records and header", "zeros", "records"])
    def test_several_that_were_on_disk_are_not_cut_off(self, path, damage):
        with backtrail.open(path.as_uri()) as store:
            for n in range(6):
                store.thread("t").save({"n": n})
        log, (before, last) = path / FIRST, first_frames(path)[-2:]
        if damage == "zeros":
            log.write_bytes(log.read_bytes()[: before.at] + bytes(last.end - before.at))
        elif damage == "records":
            flip(log, last.at + HEADER + 20)
        else:
            flip(log, before.at + (8 if damage == "headers" else HEADER + 20))
            flip(log, last.at + 8)
        whole = log.read_bytes()
        left = 5 if damage == "records" else 4
        for read_only in (True, False):
            with backtrail.open(path.as_uri(), read_only=read_only) as store:
                assert store.thread("t").load().state == {"n": left - 1}
                assert "frame 6 was on disk" in store.verify().faults[0]
                if not read_only:
                    with raises(Corrupt, "corrupt.store"):
                        store.thread("t").save({})
        assert log.read_bytes() == whole
        with backtrail.open(path.as_uri()) as store:
            assert store.verify(repair=True).repaired
            store.thread("t").save({"n": "on"})
        with backtrail.open(path.as_uri()) as store:
            assert store.verify().ok
            assert len(store.thread("t")) == left + 1

    def test_the_end_of_an_older_version_is_understood(self, path):
        backend = opened(path)
        start(backend)
        before = backend._storage.lock.published()
        backend.close()
        os.truncate(path / "backtrail.lock", 28)
        reader = opened(path, read_only=True)
        assert reader._storage.lock.published() == before._replace(synced=0)
        reader.close()


def refused(path):
    """See that a store which has lost files can be opened, but not written to."""
    with backtrail.open(path.as_uri()) as store, raises(Corrupt, "corrupt.store"):
        store.thread("another").save(1)


def mended(path):
    """Check that a repair removes only lost data, and that the store can be written afterwards."""
    with backtrail.open(path.as_uri()) as store:
        left = {thread.id: store.thread(thread.id).load().state for thread in store.threads()}
        assert left
        assert store.verify(repair=True).repairs
        store.thread("another").save(1)
    with backtrail.open(path.as_uri()) as store:
        assert store.verify().ok
        assert {thread.id: store.thread(thread.id).load().state for thread in store.threads()} == {**left, "another": 1}


class TestLostFiles:
    @pytest.mark.parametrize("read_only", [False, True])
    def test_log_without_backtrail_store_is_left_alone(self, path, read_only):
        backend = opened(path)
        start(backend)
        backend.close()
        (path / "backtrail.store").unlink()
        before = contents(path)
        with raises(Corrupt, "corrupt.store"):
            opened(path, read_only=read_only)
        assert contents(path) == before

    def test_log_without_a_frame_is_made_again(self, path):
        opened(path).close()
        (path / "backtrail.store").unlink()
        backend = opened(path)
        assert seqs(backend, start(backend)) == [1]
        backend.close()

    @pytest.mark.usefixtures("small")
    def test_one_in_the_middle(self, path):
        with backtrail.open(path.as_uri()) as store:
            for at in range(30):
                store.thread(f"t{at}").save({"n": at})
        logs = sorted(path.glob("log-*"))
        assert len(logs) > 4
        logs[2].unlink()
        before = contents(path)
        refused(path)
        with backtrail.open(path.as_uri(), read_only=True) as store:
            assert {thread.id for thread in store.threads()} > {"t0", "t29"}  # before and behind it
            assert any(logs[1].name in fault and logs[3].name in fault for fault in store.verify().faults)
        assert contents(path) == before
        mended(path)

    @pytest.mark.usefixtures("small")
    def test_middle_file_and_the_seal_before_it(self, path):
        with backtrail.open(path.as_uri()) as store:
            for at in range(30):
                store.thread(f"t{at}").save({"n": at})
        (path / "backtrail.lock").unlink()
        first, second = sorted(path.glob("log-*"))[:2]
        flip(first, first_frames(path)[-1].at)  # the seal is lost
        second.unlink()
        before = contents(path)
        refused(path)
        assert contents(path).items() >= before.items()
        mended(path)

    @pytest.mark.usefixtures("small")
    def test_the_last_one(self, path):
        with backtrail.open(path.as_uri()) as store:
            for at in range(30):
                store.thread(f"t{at}").save({"n": at})
        max(path.glob("log-*")).unlink()
        refused(path)
        with backtrail.open(path.as_uri(), read_only=True) as store:
            assert store.verify().faults
        mended(path)

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize("name", ["log-*", "base-*"])
    def test_one_that_is_named(self, path, name, read_only):
        backend = opened(path)
        start(backend)
        backend.next_epoch()
        backend._storage.tables.wasted = 1
        backend.reclaim()
        backend.close()
        next(path.glob(name)).unlink()
        with raises(Corrupt, "corrupt.store"):
            opened(path, read_only=read_only)

    def test_file_with_frames_is_never_overwritten(self, path):
        backend = opened(path)
        no = start(backend)
        following = path / "log-000000000002"
        following.write_bytes(bytes(100))
        with raises(Corrupt, "corrupt.store"):
            backend._storage.log.roll()
        assert following.read_bytes() == bytes(100)
        assert seqs(backend, no) == [1]
        backend.close()


class TestAnotherStoreInItsPlace:
    @pytest.mark.parametrize("name", [file_directory.STORE, FIRST])
    @pytest.mark.parametrize("read_only", [True, False])
    @pytest.mark.parametrize("lock", [True, False])
    def test_file_of_another_store_is_refused_and_unchanged(self, path, name, read_only, lock):
        other = path.with_name("other")
        for each in (path, other):
            with backtrail.open(each.as_uri()) as store:
                store.thread("t").save({"n": 1})
        shutil.copy(other / name, path)
        if not lock:
            (path / "backtrail.lock").unlink()
        before = {each.name: each.read_bytes() for each in path.iterdir()}
        with raises(Corrupt, "corrupt.store"):
            backtrail.open(path.as_uri(), read_only=read_only)
        assert {each.name: each.read_bytes() for each in path.iterdir() if each.name in before} == before

    def test_log_file_under_another_name_is_refused(self, path, small):
        del small
        with backtrail.open(path.as_uri()) as store:
            for n in range(12):
                store.thread("t").save({"n": n})
        shutil.copy(path / "log-000000000002", path / FIRST)
        with raises(Corrupt, "corrupt.store"):
            backtrail.open(path.as_uri())

    def test_removed_store_is_not_found_and_its_successor_untouched(self, path):
        old = opened(path)
        no = start(old)
        reader = opened(path, read_only=True)
        shutil.rmtree(path)
        calls = [lambda: old.commit(Batch(rows=((no, row(2)),))), lambda: reader.newest(no), lambda: old.newest(no)]
        for call in calls:
            with raises(NotFound, "not_found.store"):
                call()
        made = opened(path)
        start(made, "new")
        before = (path / FIRST).read_bytes()
        for call in calls:
            with raises(NotFound, "not_found.store"):
                call()
        assert (path / FIRST).read_bytes() == before
        for each in (old, reader, made):
            each.close()

    def test_replaced_lock_file_is_the_one_that_counts(self, path):
        one = opened(path)
        no = start(one)
        (path / "backtrail.lock").unlink()
        other = FileBackend(path, busy_timeout=0.1)
        one._storage.lock.wait = 0.1
        with other._storage.locked(), raises(backtrail.Unavailable, "unavailable.locked"):
            append(one, no)
        append(one, no)
        assert seqs(other, no) == [1, 2]
        for each in (one, other):
            each.close()


class TestOrderOnDisk:
    def test_sealed_file_is_synced_before_the_next_begins(self, path, disk, small):
        del small

        def killed():
            backend = opened(path, durability="relaxed")
            no = start(backend)
            disk.before = lambda call: os._exit(0) if call.what == "sync" else None  # of the seal
            while True:
                append(backend, no)

        assert in_child(killed) == 0
        backend = opened(path)
        disk.calls.clear()
        backend._storage.log.synced = 0  # nor has it made sure of it when it opened the store
        append(backend, 1)
        sealed = disk.number((path / FIRST).stat())
        made = next(at for at, call in enumerate(disk.calls) if call.what == "create")
        assert any(call.what == "sync" and call.file == sealed for call in disk.calls[:made])
        backend.close()

    def test_switch_is_synced_before_old_files_go(self, path, disk):
        def killed():
            backend = opened(path)
            start(backend)
            backend._storage.tables.wasted = 1

            def before(call):
                if call.what == "sync directory" and disk.calls[-2].what == "rename":
                    os._exit(0)

            disk.before = before
            backend.reclaim()

        assert in_child(killed) == 0
        disk.calls.clear()
        opened(path).close()
        done = [call.what for call in disk.calls if call.what in ("sync directory", "unlink")]
        assert done == ["sync directory", "unlink"]


class TestInterrupted:
    @pytest.mark.parametrize("where", ["echo", "_write", "end", "settle"])
    def test_processes_agree_at_every_point_of_a_write(self, path, where, monkeypatch):
        backend, other = opened(path), opened(path)
        no = start(backend)
        owner = {"echo": file_log, "settle": Tables}.get(where, file_log.Log)
        real = getattr(owner, where)

        def interrupted(*rest, **options):
            real(*rest, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, where, interrupted)
            start(backend, "interrupted")
        append(other, no)
        start(backend, "next")
        names = ("x", "interrupted", "next")
        found = [each.find_thread("thread", name) for each in (backend, other) for name in names]
        assert found[:3] == found[3:]
        assert [record.name for record in found[:3] if record is not None] in (["x", "next"], list(names))
        assert seqs(backend, no) == seqs(other, no) == [1, 2]
        for each in (backend, other):
            each.close()

    @pytest.mark.parametrize("where", ["getpid", "flock"])
    def test_interrupt_before_a_write_releases_the_lock(self, path, where, monkeypatch):
        backend, other = opened(path), FileBackend(path, busy_timeout=0.2)
        no = start(backend)

        def interrupted(*rest):
            real(*rest)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            owner = file.os if where == "getpid" else file_lock.fcntl
            real = getattr(owner, where)
            patch.setattr(owner, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                backend.next_epoch()
        append(other, no)
        done = []
        thread = threading.Thread(target=lambda: done.append(append(backend, no)))
        thread.start()
        thread.join(2)
        assert len(done) == 1
        for each in (backend, other):
            each.close()


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it counts descriptors in /proc")
class TestFewDescriptors:
    @pytest.mark.usefixtures("small")
    def test_writes_work_again_after_too_many_open_files(self, path, disk):
        backend = opened(path)
        no = start(backend)
        log = backend._storage.log
        disk.reads = True
        refused = 0

        def clear(_):
            pass

        def fail(what, call):
            if call.what == what and call.name == str(log.name(log.file + 1)):
                disk.before = clear
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        for what in ("create", "open"):
            disk.before = partial(fail, what)
            while disk.before is not clear:
                try:
                    append(backend, no)
                except backtrail.Unavailable:
                    refused += 1
                    append(backend, no)
        assert refused == 2
        assert seqs(backend, no) == list(range(1, len(seqs(backend, no)) + 1))
        backend.close()

    @pytest.mark.parametrize("failing", range(12))
    def test_failed_collection_leaves_no_file_open(self, path, failing, monkeypatch):
        backend = opened(path)
        no = start(backend)
        backend.next_epoch()
        backend._storage.tables.wasted = 1
        backend._storage.log.roll()
        before = descriptors()
        left = [failing]

        def scarce(real):
            def call(*rest, **options):
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return real(*rest, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("open", "dup"):
                patch.setattr(os, name, scarce(getattr(os, name)))
            with suppress(backtrail.Unavailable):
                backend.reclaim()
        assert descriptors() <= before
        assert seqs(backend, no) == [1]
        append(backend, no)
        backend.close()

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize("how", ["no log", "garbage"])
    def test_a_store_that_cannot_be_opened_leaves_none_open(self, path, how, read_only):
        opened(path).close()
        if how == "no log":
            (path / FIRST).unlink()
        elif how == "garbage":
            (path / "backtrail.store").write_bytes(b"garbage")
        before = descriptors()
        for _ in range(3):
            with suppress(Corrupt):
                opened(path, read_only=read_only).close()
        assert descriptors() == before


class TestUpkeep:
    @pytest.mark.parametrize("error", [Unavailable("busy"), KeyboardInterrupt()])
    def test_a_collection_that_fails_leaves_nothing_behind(self, path, error, monkeypatch):
        with backtrail.open(path.as_uri()) as store:
            for n in range(4):
                store.thread("t").save({"n": n})
            store.thread("t").prune(keep_last=1)
            with monkeypatch.context() as patch, pytest.raises(type(error)):
                patch.setattr(FileStorage, "adopt", mock.Mock(side_effect=error))
                patch.setattr(file_directory, "switch", mock.Mock(side_effect=error))
                store.gc()
            assert {each.name[:3] for each in path.iterdir()} <= {"bac", "log"}
            assert store.thread("t").load().state == {"n": 3}
            store.gc()
        with backtrail.open(path.as_uri()) as store:
            assert store.verify().ok
            assert len(store.thread("t")) == 1

    def test_current_base_is_not_removed(self, path, monkeypatch):
        with backtrail.open(path.as_uri()) as store:
            for n in range(4):
                store.thread("t").save({"n": n})
            store.thread("t").prune(keep_last=1)
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(FileStorage, "adopt", mock.Mock(side_effect=KeyboardInterrupt))
                store.gc()
            assert store.thread("t").load().state == {"n": 3}
        with backtrail.open(path.as_uri()) as store:
            assert store.verify().ok
            assert len(store.thread("t")) == 1

    def test_new_files_get_the_mode_of_the_store(self, path):
        with backtrail.open(path.as_uri()) as store:
            for n in range(4):
                store.thread("t").save({"n": n})
            for each in path.iterdir():
                each.chmod(0o640)
            store.thread("t").prune(keep_last=1)
            store.gc()
        assert {each.stat().st_mode & 0o777 for each in path.iterdir()} == {0o640}

    def test_usage_beside_a_thread_that_loads(self, path, monkeypatch):
        backend = opened(path)
        start(backend)
        loading, go_on = threading.Event(), threading.Event()
        real = FileStorage._let_go

        def let_go(self):
            real(self)
            loading.set()
            go_on.wait(2)

        found = []
        with monkeypatch.context() as patch:
            patch.setattr(FileStorage, "_let_go", let_go)
            backend._storage._log = None
            reader = threading.Thread(target=lambda: backend.newest(1))
            patch.setattr(TableBackend, "usage", lambda _: Usage({}, 0, {}, {}, {}, 0, 0, 0, 0, 0))
            reader.start()
            assert loading.wait(2)
            asking = threading.Thread(target=lambda: found.append(backend.usage()))
            asking.start()
            go_on.set()
            reader.join()
            asking.join()
        assert len(found) == 1
        backend.close()

    def test_directory_among_leftovers_is_not_removed(self, path):
        opened(path).close()
        (path / "snapshot.new-kept").mkdir()
        (path / "snapshot.new-left").touch()
        opened(path).close()
        assert (path / "snapshot.new-kept").is_dir()
        assert not (path / "snapshot.new-left").exists()

    def test_failed_sweep_raises_a_backtrail_error(self, path, disk):
        opened(path).close()
        (path / "snapshot.new-left").touch()

        def before(call):
            if call.what == "unlink":
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.before = before
        with raises(backtrail.Unavailable, "unavailable.io"):
            opened(path)


class TestWaiting:
    """Readers wait for no process, and no process waits for readers."""

    @pytest.fixture
    def held(self, path):
        """A store with a row, whose lock another one has."""
        other = opened(path)
        no = start(other)
        with other._storage.write():
            yield no
        other.close()

    def test_thread_reads_while_another_waits_for_a_process(self, path, monkeypatch):
        backend, other = opened(path), opened(path)
        no = start(backend)
        waiting = threading.Event()
        real = file_lock.Lock._flock

        def flock(self, how):
            waiting.set()
            real(self, how)

        monkeypatch.setattr(file_lock.Lock, "_flock", flock)
        with other._storage.locked():
            waiting.clear()
            writer = threading.Thread(target=append, args=(backend, no))
            writer.start()
            assert waiting.wait(2)
            backend._storage.lock.wait = 0.1
            assert backend.newest(no).seq == 1
            assert in_child(lambda: backend.newest(no)) == 0  # nor does a fork wait for it
            backend._storage.lock.wait = 5
        writer.join()
        assert backend.newest(no).seq == 2
        for each in (backend, other):
            each.close()

    def test_read_only_open_does_not_wait_for_a_writer(self, path, held):
        reader = FileBackend(path, read_only=True, busy_timeout=0.1)
        assert seqs(reader, held) == [1]
        reader.close()

    @pytest.mark.parametrize("read_only", [False, True])
    def test_load_locks_no_writer_out(self, path, read_only, monkeypatch):
        writer = FileBackend(path, busy_timeout=0.1)
        no = start(writer)
        monkeypatch.setattr(file_storage, "_FAR", 2)
        real = file_log.Log._read_file
        written = []

        def read_file(self, *rest):
            if not written:
                written.append(append(writer, no))
            return real(self, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(file_log.Log, "_read_file", read_file)
            other = FileBackend(path, read_only=read_only, busy_timeout=0.1)
            assert written
            assert seqs(other, no) == [1, 2]
            for _ in range(4):
                append(writer, no)
            written.clear()
            if not read_only:
                append(other, no)  # first it reads what it has missed
                assert written
        assert seqs(other, no) == seqs(writer, no)
        for each in (writer, other):
            each.close()

    def test_loading_thread_does_not_block_other_processes(self, path, monkeypatch):
        backend, other = opened(path), opened(path)
        no = start(backend)
        loading, go_on = threading.Event(), threading.Event()
        real = FileStorage._load

        def load(self, *rest):
            if self is backend._storage:
                loading.set()
                assert go_on.wait(4)
            real(self, *rest)

        monkeypatch.setattr(FileStorage, "_load", load)
        backend._storage._log = None
        threads = [threading.Thread(target=backend.newest, args=(no,))]
        threads[0].start()
        assert loading.wait(2)
        threads.append(threading.Thread(target=backend.next_epoch))
        threads[1].start()
        other._storage.lock.wait = 0.5
        for _ in range(3):
            append(other, no)
        go_on.set()
        for thread in threads:
            thread.join()
        assert seqs(backend, no) == [1, 2, 3, 4]
        for each in (backend, other):
            each.close()

    @pytest.mark.torture
    @pytest.mark.parametrize("what", ["opens it read-only", "collects"])
    def test_a_writer_hardly_waits_while_another_process(self, path, what):
        store = backtrail.open(path.as_uri(), durability="relaxed")
        for at in range(20):
            with store.transaction():
                for n in range(1500):
                    store.thread(f"t{at}").save({"n": n})

        def work():
            for at in range(3):
                with backtrail.open(path.as_uri(), read_only=what != "collects") as other:
                    if what == "collects":
                        other.thread("gone").save({"n": at})
                        other.thread("gone").delete()
                        other.gc()

        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        waits = []
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            began = time.perf_counter()
            store.thread("w").save({"n": 1})
            waits.append(time.perf_counter() - began)
            time.sleep(0.002)
        store.close()
        waits.sort()
        assert len(waits) > 100
        assert waits[int(len(waits) * 0.99)] < 0.05
        if what != "collects":  # else it reads all of the files once after each collection
            assert waits[-1] < 0.5

    def test_load_overtaken_by_a_collection_starts_over(self, path, monkeypatch, caplog):
        writer = opened(path)
        no = start(writer)
        monkeypatch.setattr(file_log, "FILE_BYTES", 600)
        for _ in range(12):
            append(writer, no)
        expected = seqs(writer, no)
        real = file_log.Log._read_file
        collected = []

        def read_file(self, *rest):
            if not collected:
                collected.append(True)
                writer._storage.tables.wasted = 1
                writer.reclaim()
            return real(self, *rest)

        monkeypatch.setattr(file_log.Log, "_read_file", read_file)
        reader = opened(path, read_only=True)
        assert seqs(reader, no) == expected
        assert reader._storage.generation == writer._storage.generation
        assert not caplog.records
        for each in (writer, reader):
            each.close()

    def test_unreachable_published_end_causes_no_reloads(self, path, monkeypatch):
        backend = opened(path)
        no = start(backend)
        copy = contents(path)
        append(backend, no)
        backend.close()
        (path / FIRST).write_bytes(copy[FIRST])
        reader = opened(path, read_only=True)
        loads = []
        real = FileStorage._load
        monkeypatch.setattr(FileStorage, "_load", lambda self, *rest: loads.append(real(self, *rest)))
        for _ in range(3):
            assert seqs(reader, no) == [1]
        assert not loads
        writer = opened(path)
        append(writer, no)
        assert seqs(reader, no) == [1, 2]
        for each in (writer, reader):
            each.close()

    def test_unknown_commit_is_read_under_the_lock(self, path, disk):
        backend = opened(path)
        no = start(backend)

        def fail(call):
            if call.what in ("sync", "truncate"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.before = fail
        with pytest.raises(backtrail.CommitUnknown):
            append(backend, no)
        disk.before = lambda _: None
        assert seqs(backend, no) == [1, 2]  # as the next writer finds it
        append(backend, no)
        assert seqs(opened(path, read_only=True), no) == [1, 2, 3]
        backend.close()


class TestLargeWrites:
    def test_nothing_is_in_memory_twice(self, path):
        backend = opened(path)
        no = start(backend)
        chunks = tuple((b"%d" % at, bytes([at]) * 500_000) for at in range(24))
        tracemalloc.start()
        try:
            backend.commit(Batch(rows=((no, row(2)),), chunks=chunks))
            written = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            again = opened(path)
            read = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert written < 5_000_000  # of 12
        assert read < 5_000_000
        assert again.chunks([b"0", b"23"]) == {b"0": chunks[0][1], b"23": chunks[23][1]}
        for each in (backend, again):
            each.close()

    def test_small_bodies_are_written_together(self, path, disk):
        backend = opened(path)
        start(backend)
        disk.calls.clear()
        backend.commit(Batch(chunks=tuple((b"%d" % at, bytes(1000)) for at in range(3000))))
        assert disk.count("write") < 8
        backend.close()
        assert len(opened(path, read_only=True).present([b"%d" % at for at in range(3000)])) == 3000

    def test_a_damaged_one_is_repeated_in_short(self, path):
        backend = opened(path)
        no, other = start(backend), start(backend, "other")
        rows = [(no, row(seq)) for seq in range(2, 301)] + [(other, row(2)), (no, row(301))]
        backend.commit(Batch(rows=tuple(rows)))
        append(backend, other)
        backend.close()
        *_, damaged, repeating = first_frames(path)
        assert repeating.records < 400
        assert repeating.synced == damaged.number
        data = bytearray((path / FIRST).read_bytes())
        data[damaged.at + 60 : damaged.bodies_at] = bytes(damaged.records - 16)
        (path / FIRST).write_bytes(data)
        reader = opened(path, read_only=True)
        assert seqs(reader, no) == list(range(1, 302))
        assert seqs(reader, other) == [1, 2, 3]
        reader.close()
