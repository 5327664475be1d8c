"""Hard times for a store in files: lost files, damage between processes, Ctrl-C anywhere, few descriptors, long waits."""

import os
import shutil

import pytest

import backtrail
from backtrail.backends import file_directory, file_log
from backtrail.backends.file import FileBackend
from backtrail.backends.port import Batch
from backtrail.backends.tables import Tables
from backtrail.errors import Corrupt, NotFound
from tests.disks import traced
from tests.test_backends_file import seqs
from tests.test_backends_sqlite import append, contents, in_child, raises, row, start
from tests.test_file_crashes import FIRST, frames_of

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
    """What others wrote was on disk, too: one damaged byte does not take what came after it."""

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

    def test_without_the_lock_file_it_is_made_sure_of_once(self, path, disk):
        backend = opened(path)
        no = start(backend)
        backend.close()
        (path / "backtrail.lock").unlink()
        backend = opened(path)
        disk.calls.clear()
        append(backend, no)
        assert disk.count("sync") == 1
        assert [each.synced for each in first_frames(path)] == [0, 1]

    def test_the_last_frame_is_not_cut_off_if_it_is_known_to_have_been_on_disk(self, path):
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

    def test_the_end_of_an_older_version_is_understood(self, path):
        backend = opened(path)
        start(backend)
        before = backend._turns.published()
        backend.close()
        os.truncate(path / "backtrail.lock", 28)
        reader = opened(path, read_only=True)
        assert reader._turns.published() == before._replace(synced=0)
        reader.close()


class TestLostFiles:
    @pytest.mark.parametrize("read_only", [False, True])
    def test_a_log_without_the_file_that_names_it_is_left_alone(self, path, read_only):
        backend = opened(path)
        start(backend)
        backend.close()
        (path / "backtrail.store").unlink()
        before = contents(path)
        with raises(Corrupt, "corrupt.store"):
            opened(path, read_only=read_only)
        assert contents(path) == before

    def test_a_log_without_a_frame_is_left_over_from_the_making(self, path):
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
        with raises(Corrupt, "corrupt.store"):
            backtrail.open(path.as_uri())
        with backtrail.open(path.as_uri(), read_only=True) as store:
            assert {thread.id for thread in store.threads()} > {"t0", "t29"}  # before and behind it
            assert any(logs[1].name in fault and logs[3].name in fault for fault in store.verify().faults)
        assert contents(path) == before

    @pytest.mark.usefixtures("small")
    def test_the_last_one(self, path):
        with backtrail.open(path.as_uri()) as store:
            for at in range(30):
                store.thread(f"t{at}").save({"n": at})
        max(path.glob("log-*")).unlink()
        with raises(Corrupt, "corrupt.store"):
            backtrail.open(path.as_uri())
        with backtrail.open(path.as_uri(), read_only=True) as store:
            assert store.verify().faults

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize("name", ["log-*", "base-*"])
    def test_one_that_is_named(self, path, name, read_only):
        backend = opened(path)
        start(backend)
        backend.next_epoch()
        backend._tables.wasted = 1
        backend.reclaim()
        backend.close()
        next(path.glob(name)).unlink()
        with raises(Corrupt, "corrupt.store"):
            opened(path, read_only=read_only)

    def test_a_file_that_has_frames_is_never_begun_anew(self, path):
        backend = opened(path)
        no = start(backend)
        following = path / "log-000000000002"
        following.write_bytes(bytes(100))
        with raises(Corrupt, "corrupt.store"):
            backend._at().roll()
        assert following.read_bytes() == bytes(100)
        assert seqs(backend, no) == [1]
        backend.close()


class TestAnotherStoreInItsPlace:
    def test_who_had_the_old_one_open_is_told_and_writes_nothing(self, path):
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

    def test_a_lock_file_that_was_replaced_is_the_one_that_is_locked(self, path):
        one = opened(path)
        no = start(one)
        (path / "backtrail.lock").unlink()
        other = FileBackend(path, busy_timeout=0.1)
        other._take()
        one._turns._wait = 0.1
        with raises(backtrail.Unavailable, "unavailable.locked"):
            append(one, no)
        other._give()
        append(one, no)
        assert seqs(other, no) == [1, 2]
        for each in (one, other):
            each.close()


class TestOrderOnDisk:
    def test_a_file_is_on_disk_before_the_next_one_is_begun_whoever_sealed_it(self, path, disk, small):
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
        backend._at().synced = 0  # nor has it made sure of it when it opened the store
        append(backend, 1)
        sealed = (path / FIRST).stat().st_ino
        made = next(at for at, call in enumerate(disk.calls) if call.what == "create")
        assert any(call.what == "sync" and call.file == sealed for call in disk.calls[:made])
        backend.close()

    def test_a_switch_is_on_disk_before_the_old_files_are_removed(self, path, disk):
        def killed():
            backend = opened(path)
            start(backend)
            backend._tables.wasted = 1

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
    def test_anywhere_around_a_write_all_agree_what_is_there(self, path, where, monkeypatch):
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
