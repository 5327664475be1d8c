"""Crashes and damage of file stores: no acknowledged write is lost, damage is named, other data loads."""

import os
import random
import shutil
from contextlib import nullcontext

import ormsgpack
import pytest

import backtrail
from backtrail.backends.file import frames, log
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.file.records import ROW
from backtrail.backends.port import Batch
from backtrail.engine import log as rows_log
from tests.backends.file.test_backend import fill, seqs, whole
from tests.backends.sqlite.test_backend import append, contents, in_child, op_ids, raises, row, start
from tests.support.disks import crash_states, put, traced

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")

FIRST = "log-000000000001"


def opened(path, **options):
    return FileBackend(path, busy_timeout=5, **options)


def frames_of(path, uid):
    """Return the frames of a file."""
    found, at = [], frames.FILE_HEADER
    with path.open("rb") as file:
        window = frames.Window(file.fileno(), uid)
        while (frame := window.frame_at(at)) is not None:
            found.append(frame)
            at = frame.end
    return found


class TestCutShort:
    @pytest.fixture
    def made(self, tmp_path):
        """A store of two frames: its log, and where the last one begins."""
        backend = opened(tmp_path / "made")
        no = start(backend)
        begins = (tmp_path / "made" / FIRST).stat().st_size
        backend.commit(Batch(rows=((no, row(2)),), tag=((no, 1, "t"),), chunks=((b"digest", b"bytes" * 9),)))
        backend.close()
        return tmp_path / "made", begins

    @pytest.mark.parametrize("filled", [b"", b"\0", b"\xff"])
    def test_at_any_byte_of_the_last_frame(self, made, tmp_path, filled, caplog):
        path, begins = made
        data = (path / FIRST).read_bytes()
        for cut in range(begins, len(data)):
            (path / "backtrail.lock").unlink()  # it would tell that the frame was on disk
            (path / FIRST).write_bytes(data[:cut] + filled * (len(data) - cut))
            caplog.clear()
            backend = opened(path)
            assert (seqs(backend, 1), backend.tags(1), backend.present([b"digest"])) == ([1], {}, set())
            assert bool(caplog.records) == (cut > begins or filled != b"")
            backend.close()
            assert (path / FIRST).read_bytes() == data[:begins]
        backend = opened(path)
        append(backend, 1)
        backend.close()
        assert seqs(opened(path, read_only=True), 1) == [1, 2]

    def test_torn_relaxed_commit_takes_all_later_ones(self, tmp_path, caplog):
        path = tmp_path / "s"
        backend = opened(path, durability="relaxed")
        no = start(backend)
        ends = []
        for _ in range(5):
            append(backend, no)
            ends.append((path / FIRST).stat().st_size)
        os.close(backend._storage._store[0])  # it is never closed, and so never synced
        data = bytearray((path / FIRST).read_bytes())
        data[ends[1] + 60] ^= 1
        (path / FIRST).write_bytes(data)
        again = opened(path)
        assert seqs(again, no) == [1, 2, 3]
        assert "was interrupted" in caplog.text
        append(again, no)
        again.close()
        assert seqs(opened(path, read_only=True), no) == [1, 2, 3, 4]


def states(store):
    """Return the state of every checkpoint by id, or the exception that reading it raised."""
    found = {}
    for name in ("t", "other"):
        record = store._backend.find_thread("thread", name)
        if record is None:
            continue
        for seq in range(1, 12):
            identity = rows_log.checkpoint_id(record.uid, seq)
            try:
                found[identity] = store.thread(name).load(identity).state
            except backtrail.NotFound:
                continue
            except backtrail.Error as error:
                found[identity] = error
    return found


def heads(store):
    found = {}
    for name in ("t", "other"):
        try:
            latest = store.thread(name).latest()
            found[name] = latest and latest.id
        except backtrail.Corrupt as error:
            found[name] = error
    return found


def together(store, how, path):
    """Make a thread whose rows are in one frame; return the ids of its checkpoints."""
    with backtrail.open("memory://") as made:
        thread = (made if how == "import" else store).thread("t")
        with store.transaction() if how == "transaction" else nullcontext():
            given = [thread.save({"n": n}).id for n in range(1, 6)]
        if how == "import":
            made.export(path)
            store.import_(path)
    if how == "collected":
        store.thread("gone").save({"n": 0})
        store.thread("gone").delete()
        store.gc()
    return given


def damage_row(path, uid, seq):
    """Flip a bit in the record of a row of the first thread."""
    data = bytearray(path.read_bytes())
    for frame in frames_of(path, uid):
        at = frame.at + frames.HEADER
        while at < frame.bodies_at:
            length = int.from_bytes(data[at : at + 4], "big")
            fields = ormsgpack.unpackb(bytes(data[at + 8 : at + 8 + length]))
            at += 8 + length
            if fields[0] == ROW and fields[1] == 1 and fields[4] == seq:
                data[at - 3] ^= 1
                path.write_bytes(data)
                return
    raise AssertionError(seq)


class TestDamage:
    @pytest.fixture(params=["log", "files", "base"])
    def made(self, request, tmp_path, monkeypatch):
        """A small store: in one file, in several, or collected."""
        if request.param == "files":
            monkeypatch.setattr(log, "FILE_BYTES", 1500)
        rng = random.Random(3)
        path = tmp_path / "made"
        with backtrail.open(path.as_uri()) as store:
            thread = store.thread("t")
            thread.save({"messages": [], "n": 0}, label="start")
            for _ in range(2):
                thread.append("messages", *(rng.randbytes(300).hex() for _ in range(12)))
            thread.set("n", 1, tags=["tagged"])
            thread.rewind("start")
            thread.save({"messages": [], "n": 2}, label="again")
            thread.fork("other", at="tagged")
            thread.set("n", 3)
            if request.param == "base":
                thread.save({"n": 0})
                thread.delete_checkpoint("@")
                store.gc()
                thread.set("n", 4)
            thread.tag("@", "last")
        return path

    def test_any_flipped_bit_is_found_and_other_data_loads(self, made, caplog):
        self.flip(made, caplog, 24)

    @pytest.mark.torture
    def test_every_flipped_byte_is_found_and_the_rest_loads(self, made, caplog):
        self.flip(made, caplog, 1 << 30)

    @staticmethod
    def flip(made, caplog, most):
        """Flip one bit in so many bytes of all files, one after the other."""
        with backtrail.open(made.as_uri(), read_only=True) as store:
            good, stood = states(store), heads(store)
            uid = store._backend._storage.generation.uid
        assert len(good) >= 7
        names = [name for name in contents(made) if name != "backtrail.lock"]
        last = max(name for name in names if name.startswith("log"))
        torn_from = frames_of(made / last, uid)[-1].at
        rng = random.Random(5)
        places = [(name, at) for name in sorted(names) for at in range((made / name).stat().st_size)]
        rare = [(name, at) for name, at in places if name == "backtrail.store" or at % 400 < 60]
        hurt = spared = 0
        repair_every = 1 + min(most, len(places)) // 400
        for name, at in sorted({*rng.sample(places, min(most, len(places))), *rng.sample(rare, min(most, len(rare)))}):
            data = (made / name).read_bytes()
            (made / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
            caplog.clear()
            with backtrail.open(made.as_uri(), read_only=True) as store:
                found = states(store)
                wrong = {identity for identity, state in found.items() if state != good.get(identity)}
                assert all(isinstance(found[identity], backtrail.Corrupt) for identity in wrong), (name, at)
                if name == last and at >= torn_from:  # as good as cut short, and it only held a tag
                    assert caplog.records or found == good
                else:
                    assert found.keys() >= good.keys(), (name, at)  # a lost row may have been anything
                    tip = heads(store)
                    moved = {thread for thread in stood if tip[thread] != stood[thread]}
                    assert all(isinstance(tip[thread], backtrail.Corrupt) for thread in moved), (name, at)
                    assert store._backend._storage.log.fatal_damage is None
                    assert name == "backtrail.store" or at < 40 or store.verify().faults, (name, at)
                if wrong:
                    hurt += 1
                    named = {damage.checkpoint_id for damage in store.verify().damaged}
                    assert wrong & good.keys() <= named, (name, at)  # but for those that may have been lost they were
                    spared += any(identity not in wrong for identity in good)
            if wrong and hurt % repair_every == 0:
                left = {identity: state for identity, state in good.items() if identity not in wrong}
                TestDamage.repair(made, left, good.keys())
            (made / name).write_bytes(data)
        assert hurt > 15
        assert spared > hurt * 0.9

    @staticmethod
    def repair(made, left, given):
        """Repair a copy: readable data stays, and new rows get unused ids."""
        copy = made.with_name("copy")
        shutil.copytree(made, copy)
        with backtrail.open(copy.as_uri()) as store:
            store.verify(repair=True)
            assert store.verify().ok
            assert {identity: state for identity, state in states(store).items() if identity in left} == left
            for name in ("t", "other"):
                assert store.thread(name).save({"n": "new"}).id not in given
        shutil.rmtree(copy)

    @pytest.mark.parametrize("how", ["transaction", "import", "collected"])
    @pytest.mark.parametrize("lost", [1, 2, 4])
    def test_damaged_row_takes_no_other_of_its_frame(self, tmp_path, how, lost):
        path = tmp_path / "made"
        with backtrail.open(path.as_uri()) as store:
            given = together(store, how, tmp_path / "exported")
            store.thread("other").save({"n": 0})
            uid = store._backend._storage.generation.uid
        damage_row(min(path.glob("base-*" if how == "collected" else "log-*")), uid, lost)
        left = {identity: {"n": n} for n, identity in enumerate(given, 1) if n != lost}
        with backtrail.open(path.as_uri(), read_only=True) as store:
            found = states(store)
            assert isinstance(found.pop(given[lost - 1]), backtrail.Corrupt)
            assert {identity: found[identity] for identity in left} == left
            assert [damage.checkpoint_id for damage in store.verify().damaged] == [given[lost - 1]]
        self.repair(path, left, given)

    def test_undamaged_threads_can_be_written(self, made):
        with backtrail.open(made.as_uri(), read_only=True) as store:
            uid = store._backend._storage.generation.uid
        name = min(name for name in contents(made) if name.startswith(("base", "log")))
        data = bytearray((made / name).read_bytes())
        data[frames_of(made / name, uid)[0].at + 60] ^= 1
        (made / name).write_bytes(data)
        for at in range(2):
            with backtrail.open(made.as_uri()) as store:
                store.thread("fresh").save({"n": at})
        with backtrail.open(made.as_uri(), read_only=True) as store:
            assert [found.state for found in store.thread("fresh").history()] == [{"n": 0}, {"n": 1}]

    def test_a_collection_leaves_damage_behind_that_took_nothing(self, made):
        name = min(name for name in contents(made) if name.startswith(("base", "log")))
        data = bytearray((made / name).read_bytes())
        data[frames.FILE_HEADER] ^= 1  # of a header: what is behind it is whole
        (made / name).write_bytes(data)
        with backtrail.open(made.as_uri()) as store:
            found = states(store)
            assert store.verify().faults
            store.gc()
            assert store.verify().ok
            assert states(store) == found
        with backtrail.open(made.as_uri()) as store:
            assert store.verify().ok

    @pytest.mark.parametrize("made", ["log"], indirect=True)
    def test_store_with_lost_frames_can_only_be_read(self, made, caplog):
        name = min(name for name in contents(made) if name.startswith(("base", "log")))
        with backtrail.open(made.as_uri(), read_only=True) as store:
            uid = store._backend._storage.generation.uid
            good = states(store)
        data = bytearray((made / name).read_bytes())
        found = frames_of(made / name, uid)
        for frame in found[1:3]:
            data[frame.at : frame.at + 50] = bytes(50)
        (made / name).write_bytes(data)
        before = contents(made)
        with backtrail.open(made.as_uri()) as store, raises(backtrail.Corrupt, "corrupt.store"):
            store.thread("new").save({"n": 1})
        assert contents(made).items() >= before.items() - {("backtrail.lock", b"")}
        with backtrail.open(made.as_uri(), read_only=True) as store:
            assert any(state == good[identity] for identity, state in states(store).items())
            assert caplog.records
            assert not store.verify().ok

    def test_a_lost_file_is_found(self, made):
        names = sorted(name for name in contents(made) if name.startswith(("base", "log")))
        (made / names[0]).unlink()
        for read_only in (False, True):
            with pytest.raises((backtrail.Corrupt, backtrail.Unavailable)):
                backtrail.open(made.as_uri(), read_only=read_only)


class TestKilled:
    """Killed before each single call that changes something on disk."""

    @staticmethod
    def every(tmp_path, prepare, work, check):
        """Do it in a child that is killed before its k-th call, for every k; then check the store."""
        if prepare is not None:
            prepare(tmp_path / "prepared")
        status, at = 77, -1
        while status == 77:
            at += 1
            path = tmp_path / str(at)
            if prepare is not None:
                shutil.copytree(tmp_path / "prepared", path)

            def child(at=at, path=path):
                with traced() as disk:

                    def die(_):
                        if len(disk.calls) > at:
                            os._exit(77)

                    disk.before = die
                    work(path)

            status = os.waitstatus_to_exitcode(in_child(child))
            assert status in (0, 77)
            check(path, done=status == 0)
            shutil.rmtree(path, ignore_errors=True)
        return at

    def test_the_making_of_a_store(self, tmp_path):
        def check(path, *, done):
            backend = opened(path)
            assert seqs(backend, start(backend)) == [1]
            backend.close()

        assert self.every(tmp_path, None, opened, check) > 8

    def test_a_collection(self, tmp_path):
        expected = []

        def prepare(path):
            backend = opened(path)
            fill(backend)
            expected.append(whole(backend))
            backend.close()

        def check(path, *, done):
            backend = opened(path)
            assert whole(backend) == expected[0]
            append(backend, 1)
            backend.reclaim()
            assert len(contents(path)) == 4
            backend.close()

        assert self.every(tmp_path, prepare, lambda path: opened(path).reclaim(), check) > 12

    def test_log_of_several_files_survives_cuts(self, tmp_path, monkeypatch):
        monkeypatch.setattr(log, "FILE_BYTES", 1000)

        def prepare(path):
            backend = opened(path)
            start(backend)
            backend.close()

        def work(path):
            backend = opened(path, durability="relaxed")
            for _ in range(6):
                append(backend, 1, payload=bytes(300))
            backend.close()

        def check(path, *, done):
            backend = opened(path)
            before = seqs(backend, 1)
            assert before == list(range(1, len(before) + 1))
            assert not done or len(before) == 7
            append(backend, 1)
            backend.close()
            again = opened(path)
            assert len(seqs(again, 1)) == len(before) + 1
            again.close()

        assert self.every(tmp_path, prepare, work, check) > 10

    def test_killed_collection_leaves_open_stores_working(self, tmp_path):
        for at in range(0, 20, 2):
            path = tmp_path / str(at)
            backend = opened(path)
            no = fill(backend)
            expected = whole(backend)

            def child(at=at, path=path):
                with traced() as disk:
                    disk.before = lambda _: os._exit(0) if len(disk.calls) > at else None
                    opened(path).reclaim()

            assert in_child(child) == 0
            assert whole(backend) == expected
            added = append(backend, no)
            again = opened(path)
            assert op_ids(again, no)[-1] == op_ids(backend, no)[-1] == added.op_id
            for each in (backend, again):
                each.close()


class TestPowerCuts:
    """Replay every prefix of the disk calls, with unsynced calls dropped, torn or reordered."""

    @staticmethod
    def use(path, disk, durability):
        """Use a store, and return how many calls there had been when each row was acknowledged."""
        acknowledged = []

        def note(added):
            acknowledged.append((len(disk.calls), added.op_id))

        backend = opened(path, durability=durability)
        no = start(backend)
        for at in range(5):
            note(append(backend, no, payload=bytes(at * 200)))
        backend.commit(Batch(chunks=((b"digest", bytes(2000)),)))
        backend.remove_chunks([b"digest"], backend.next_epoch())
        backend.reclaim()
        for _ in range(3):
            note(append(backend, no))
        with backend.group():
            both = [append(backend, no, payload=bytes(700)) for _ in range(2)]
        for added in both:
            note(added)
        backend.close()
        return acknowledged

    @pytest.mark.parametrize("durability", ["full", "relaxed"])
    def test_acknowledged_writes_survive_whole(self, tmp_path, durability, monkeypatch):
        self.crash(tmp_path, durability, monkeypatch, 3)

    @pytest.mark.torture
    def test_acknowledged_writes_survive_any_crash(self, tmp_path, monkeypatch):
        self.crash(tmp_path, "full", monkeypatch, 80)

    def crash(self, tmp_path, durability, monkeypatch, times):
        """Crash so many times behind each call."""
        monkeypatch.setattr(log, "FILE_BYTES", 1800)
        path = tmp_path / "s"
        with traced() as disk:
            disk.calls.clear()
            acknowledged = self.use(path, disk, durability)
        order = [op_id for _, op_id in acknowledged]
        rng = random.Random(7)
        lost = made = 0
        for last in range(len(disk.calls) + 1):
            for _ in range(times):
                files = crash_states(disk.calls[:last], rng)
                target = tmp_path / "crashed"
                put(files, path, target)
                backend = opened(target, durability="relaxed")
                record = backend.find_thread("thread", "x")
                there = op_ids(backend, record.no)[1:] if record else []
                assert there == order[: len(there)], last
                due = sum(calls <= last for calls, _ in acknowledged)
                lost += len(there) < due
                made += 1
                assert durability == "relaxed" or len(there) >= due, last
                if record:
                    rows = backend.rows(record.no, [(1, 99)], payload=True)
                    assert all(len(found.payload) in {*range(0, 1000, 200), 7, 700} for found in rows)
                    append(backend, record.no)
                backend.close()
                shutil.rmtree(target)
        assert made > 100
        assert durability == "full" or lost > 0  # or the test would find nothing
