"""Keys that rotate and keys that are destroyed: what can be read afterwards, by whom, and after any interruption."""

import os
from contextlib import nullcontext
from unittest import mock

import pytest

import backtrail
from backtrail import Corrupt, Invalid, Key, Unavailable
from backtrail.sealed import keyring as keyrings
from backtrail.sealed import rotation
from backtrail.sealed.keyring import Keyring
from tests.support.lengths import lengths
from tests.support.sample_store import everything, furnish
from tests.support.sealing import KEY, KINDS, open_copy, sealed_at

NEW = Key(bytes(range(32, 64)))
LONG = {"messages": [{"role": "user", "content": f"{n} " * 100} for n in range(200)]}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(keyrings, "FRESH", 0.0)


@pytest.fixture(params=KINDS)
def opener(request, tmp_path):
    with sealed_at(request.param, tmp_path) as opener:
        yield opener


def same(store, wanted):
    """Whether all threads of `wanted` are as they were; there may be others."""
    now = everything(store)
    return {name: now.get(name) for name in wanted} == wanted


def generations(store):
    """The generations of the keys in the headers of all rows and chunks, as they are stored."""
    below = store._backend.below
    rows = [row for no in below.thread_numbers(0, 999) for row in below.rows(no, [(1, 999)], payload=True)]
    chunks = below.chunks([address for address, _ in store._backend.chunk_page(b"", 9999)]).values()
    return (
        {(row.root or row.extra)[1] for row in rows} | {row.payload[1] for row in rows} | {each[1] for each in chunks}
    )


def test_new_key_of_the_caller_opens_the_store(opener):
    with opener() as store:
        furnish(store)
        store.gc()
        wanted = everything(store)
        before = store.keys.status()
        assert before.wrapped_by == KEY.id
        assert store.keys.rotate(NEW).rows == 0
        assert store.keys.status().wrapped_by == NEW.id
        store.thread("later").save({"n": 1})
        store.thread("later").delete()
    with pytest.raises(Unavailable):
        opener()
    with opener(key=NEW) as store:
        assert same(store, wanted)
        assert store.verify().ok


def test_previous_key_opens_a_store_until_it_is_rotated(opener):
    with opener() as store:
        store.thread("t").save({"n": 1})
    with opener(key=Key(bytes(range(32, 64)), previous=[Key(bytes(32)), KEY])) as store:
        assert store.thread("t").load().state == {"n": 1}
        assert store.keys.status().wrapped_by == KEY.id
        store.keys.rotate()
        assert store.keys.status().wrapped_by == NEW.id
        with pytest.raises(Invalid):
            store.keys.rotate()
    with opener(key=NEW) as store:
        assert store.thread("t").load().state == {"n": 1}


def test_rotated_data_has_new_keys_and_the_same_contents(opener):
    with opener() as store:
        furnish(store)
        store.thread("long").save(LONG)
        store.thread("deleted").save({"n": 1})
        store.thread("deleted").delete()
        store.gc()
        wanted = everything(store)
        assert generations(store) == {1}
        seen = []
        report = store.keys.rotate(data=True, progress=lambda what, n: seen.append((what, n)))
        assert report.rows > 0
        assert report.chunks > 0
        assert report.destroyed == store.keys.status().threads
        assert ("rows", report.rows) in seen
        assert generations(store) == {2}
        assert same(store, wanted)
        assert store.verify().ok
        assert [hit.conversation_id for hit in store.search("later")] == ["c"]
        assert store.keys.status().generations == 1
        assert store.keys.status().older == 0
    with opener() as store:
        assert same(store, wanted)
        store.thread("long").append("messages", {"role": "user", "content": "more"})
        store.keys.rotate(data=True)
        assert generations(store) == {3}
        assert len(store.thread("long").load().state["messages"]) == 201


class Stop(Exception):  # noqa: N818 - nothing is wrong
    """The process is killed."""


STEPS = [
    "add_store_generation",
    "add_generation",
    "announce",
    "rewrap_threads",
    "destroy",
    "destroy_store_generations",
    "_append",
    "uids",
]


@pytest.mark.parametrize("every", lengths(2, 1))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_interrupted_rotation_loses_nothing_and_continues(tmp_path, step, after, every):
    with sealed_at("sqlite", tmp_path) as opener:
        with opener() as store:
            furnish(store)
            store.thread("long").save(LONG)
            store.gc()
            wanted = everything(store)
        method = getattr(Keyring, step)
        for stop_at in range(1, 30, every):
            with opener() as store:
                try:
                    with mock.patch.object(Keyring, step, _stopping_at(method, stop_at, after=after)):
                        store.keys.rotate(data=True)
                except Stop:
                    pass
                else:
                    break
            with opener() as store:  # another process goes on
                assert same(store, wanted)
                assert store.verify().ok
                store.thread("later").save({"n": stop_at})
                assert [hit.conversation_id for hit in store.search("later")] == ["c"]
                store.thread("later").delete()
                store.gc()
        assert stop_at > 1
        with opener() as store:
            status = store.keys.status()
            assert (status.generations, status.older) == (1, 0)
            assert same(store, wanted)


def _stopping_at(method, stop_at, *, after):
    calls = []

    def stopping(*args, **options):
        calls.append(method)
        if len(calls) == stop_at and not after:
            raise Stop
        result = method(*args, **options)
        if len(calls) == stop_at:
            raise Stop
        return result

    return stopping


def test_rotation_stopped_at_each_write_loses_nothing(tmp_path):
    with sealed_at("memory", tmp_path) as opener:
        with opener() as store:
            furnish(store)
            store.thread("long").save(LONG)
            store.gc()
            wanted = everything(store)
        stop_at = 0
        while True:
            stop_at += 1
            calls = []
            with opener() as store:
                below = store._backend.below
                for target in (below, store._backend.keyring.backend):
                    for name in ("commit", "rewrite", "remove_rows", "remove_chunks"):
                        setattr(target, name, _stopping(getattr(target, name), calls, stop_at))
                try:
                    store.keys.rotate(data=True)
                    done = True
                except Stop:
                    done = False
                finally:
                    for target in (below, store._backend.keyring.backend):
                        for name in ("commit", "rewrite", "remove_rows", "remove_chunks"):
                            delattr(target, name)
            with opener() as store:
                assert same(store, wanted)
                assert store.verify().ok
            if done:
                break
        assert stop_at > 10


def _stopping(method, calls, stop_at):
    def stopping(*args, **options):
        calls.append(method)
        if len(calls) == stop_at:
            raise Stop
        return method(*args, **options)

    return stopping


def test_open_handle_of_another_process_uses_new_keys(opener):
    with opener() as store, opener() as other:
        store.thread("t").save({"list": []})
        handle = other.thread("t")
        handle.append("list", 1)
        store.keys.rotate(data=True)
        handle.append("list", 2)
        assert generations(store) == {2}
        other.thread("u").save(LONG)
        assert store.thread("t").load().state == {"list": [1, 2]}
        assert store.thread("u").load().state == LONG
        assert next(each.state for each in other.thread("t").history()) == {"list": []}
        assert store.verify().ok


def test_row_that_waited_during_a_rotation_gets_the_new_key(tmp_path, monkeypatch):
    """A writer has sealed its row, is stopped for a while, and writes it when the rotation is nearly complete."""
    with sealed_at("sqlite", tmp_path) as opener, opener() as store, opener() as other:
        store.thread("t").save({"list": []})
        other.thread("t").append("list", 1)
        monkeypatch.setattr(keyrings, "FRESH", 3600.0)
        monkeypatch.setattr(rotation.time, "sleep", lambda _: None)
        below = other._backend.below
        commit = below.commit

        def waiting(batch):
            below.commit = commit
            store._backend.keyring.add_store_generation()
            store._backend.keyring.add_generation(store._backend.keyring.behind())
            store._backend.forget_keys()
            monkeypatch.setattr(keyrings, "FRESH", 0.0)
            return commit(batch)

        below.commit = waiting
        other.thread("t").append("list", 2)
        (row,) = below.rows(1, [(3, 3)], payload=True)
        assert (row.root[1], row.payload[1]) == (2, 2)
        store.keys.rotate(data=True)
        assert store.thread("t").load().state == {"list": [1, 2]}


def test_group_that_lasts_longer_than_a_rotation_is_refused(tmp_path):
    with sealed_at("postgres", tmp_path) as opener, opener() as store, opener() as other:
        store.thread("t").save({"list": []})
        with pytest.raises(Unavailable) as caught, other._engine.group():
            other.thread("t").append("list", 1)
            other._backend.keyring._read_at = float("inf")  # it does not look again
            store._backend.keyring.add_store_generation()
        assert caught.value.code == "unavailable.rotated"
        assert store.thread("t").load().state == {"list": []}
        with other._engine.group():
            other.thread("t").append("list", 1)
        assert store.thread("t").load().state == {"list": [1]}


def test_keys_that_a_killed_process_left_are_removed(tmp_path):
    """It has appended the record without the key, and not removed the row before it."""
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t").save({"n": 1})
        keyring = store._backend.keyring
        record = store._backend.find_thread("thread", "t")
        ((_, _, wrapped),) = keyring._records([record.uid])[record.uid].content[1]
        with mock.patch.object(keyring.backend, "remove_rows", side_effect=Stop), pytest.raises(Stop):
            keyring.destroy([record.uid], keep_newest=False)
        assert any(wrapped in each.read_bytes() for each in tmp_path.glob("s.db.keys*"))
        assert keyring.destroy([record.uid], keep_newest=False) == 0
        assert not any(wrapped in each.read_bytes() for each in tmp_path.glob("s.db.keys*"))
        with pytest.raises(Corrupt) as caught:
            store.thread("t").load()
        assert caught.value.code == "corrupt.erased"


def test_every_new_key_is_noticed_however_it_is_read(tmp_path):
    """Reading a row with a new key reads the keyring again: later writes to other threads must use new keys, too."""
    with sealed_at("sqlite", tmp_path) as opener, opener() as store, opener() as other:
        for name in "ab":
            store.thread(name).save({"list": []})
            other.thread(name).append("list", 1)
        with mock.patch.object(keyrings, "FRESH", 3600.0):
            other._backend.keyring._read_at = 0.0
            store._backend.keyring.add_store_generation()
            store._backend.keyring.add_generation(store._backend.keyring.behind())
            store._backend.forget_keys()
            store.thread("a").append("list", 2)
            assert other.thread("a").load().state == {"list": [1, 2]}
            other.thread("b").append("list", 2)
        (row,) = store._backend.below.rows(store._backend.find_thread("thread", "b").no, [(3, 3)])
        assert row.root[1] == 2


def test_destroyed_key_makes_every_copy_unreadable(opener, tmp_path):
    with opener() as store:
        for n in range(10):
            store.thread(f"t{n}").save({**LONG, "secret": f"canary {n}"})
        store.backup(tmp_path / "backup")
        record = store._backend.find_thread("thread", "t3")
        store.thread("t3").delete()
        store.gc(erase=True)
        assert rotation.destroy_keys(store._backend, [record]) == 1
        assert store.verify().ok
        assert store.thread("t3").latest() is None
        store.thread("t3").save({"n": "again"})
        assert store.thread("t3").load().state == {"n": "again"}
        assert store.keys.status().destroyed == 1
        with open_copy(store, tmp_path / "backup") as backup:
            for n in set(range(10)) - {3}:
                assert backup.thread(f"t{n}").load().state["secret"] == f"canary {n}"
            with pytest.raises(Corrupt) as caught:
                _ = backup.thread("t3").load().state
            assert caught.value.code == "corrupt.erased"
            assert backup.search("canary") == []
            assert [damage.thread_id for damage in backup.verify().damaged] == ["t3"]
            backup.gc()
            backup.verify(repair=True)
            assert backup.verify().ok


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group"])
@pytest.mark.parametrize("when", ["add_generation", "destroy"])
@pytest.mark.parametrize("before", [False, True], ids=["after it", "before it"])
def test_thread_that_starts_again_during_an_erasure_is_readable(tmp_path, monkeypatch, grouped, when, before):
    """Another process, which knows the old key, saves to the erased id at each moment of the erasure."""
    with sealed_at("sqlite", tmp_path) as opener, opener() as store, opener() as other:
        store.thread("t").save({"n": "erased"})
        assert other.thread("t").load().state == {"n": "erased"}
        monkeypatch.setattr(keyrings, "FRESH", 3600.0)  # nobody looks at the keyring by itself
        monkeypatch.setattr(rotation.time, "sleep", lambda _: monkeypatch.setattr(keyrings, "FRESH", 0.0))
        record = store._backend.find_thread("thread", "t")
        store.thread("t").delete()
        store.gc()
        method = getattr(Keyring, when)

        def save():
            with other._engine.group() if grouped else nullcontext():
                other.thread("t").save({"n": 1})
            other.thread("t").save({"n": 2})

        def interrupted(self, *args, **options):
            if before:
                save()
            result = method(self, *args, **options)
            if not before:
                save()
            return result

        with mock.patch.object(Keyring, when, interrupted):
            rotation.destroy_keys(store._backend, [record])
        other.thread("t").save({"n": 3})
    with sealed_at("sqlite", tmp_path) as opener, opener() as store:
        assert [each.state["n"] for each in store.thread("t").history()] == [1, 2, 3]
        assert store.verify().ok


def test_row_committed_while_its_key_is_replaced_is_sealed_again(tmp_path, monkeypatch):
    """It starts an erased thread again with the old key, and is committed after the erasure has sealed the rest."""
    with sealed_at("sqlite", tmp_path) as opener, opener() as store, opener() as other:
        store.thread("t").save({"n": "erased"})
        assert other.thread("t").load().state == {"n": "erased"}
        record = store._backend.find_thread("thread", "t")
        store.thread("t").delete()
        store.gc()
        monkeypatch.setattr(keyrings, "FRESH", 3600.0)
        below = other._backend.below
        commit = below.commit

        def erased_meanwhile(batch):
            below.commit = commit
            rotation.destroy_keys(store._backend, [record])
            return commit(batch)

        below.commit = erased_meanwhile
        other.thread("t").save({"n": 1})
        other.thread("t").save({"n": 2})
    with sealed_at("sqlite", tmp_path) as opener, opener() as store:
        assert [each.state["n"] for each in store.thread("t").history()] == [1, 2]
        assert store.verify().ok


def test_chunks_of_a_destroyed_thread_cannot_be_opened_with_all_other_keys(tmp_path):
    """A chunk's key needs its digest, and only rows and chunks that are unreadable now have it."""
    with sealed_at("sqlite", tmp_path) as opener, opener() as store:
        store.thread("t").save(LONG)
        store.thread("other").save({"n": 1})
        store.backup(tmp_path / "backup")
        digests = set(store._engine.reader.cache._nodes)
        record = store._backend.find_thread("thread", "t")
        store.thread("t").delete()
        store.gc(erase=True)
        rotation.destroy_keys(store._backend, [record])
        with open_copy(store, tmp_path / "backup") as backup:
            assert backup._backend.present(list(digests))  # they are still there
            rows = backup._backend.rows(record.no, [(1, 9)], payload=True)
            assert {row.payload for row in rows} == {b"\xff"}
            assert not any(digest in each for row in rows for digest in digests for each in (row.extra, row.root))


def test_shared_content_stays_readable_in_the_other_thread(opener):
    with opener() as store:
        store.thread("a").save(LONG)
        store.thread("a").fork("b")
        chunks = store.stats().chunks
        store.thread("c").save(LONG)
        assert store.stats().chunks == chunks
        record = store._backend.find_thread("thread", "a")
        store.thread("a").delete()
        store.gc()
        rotation.destroy_keys(store._backend, [record])
        assert store.thread("b").load().state == store.thread("c").load().state == LONG
        assert store.verify().ok


def test_keys_of_plain_and_scoped_stores_are_refused(tmp_path):
    with backtrail.open(tmp_path / "plain.db") as store:
        with pytest.raises(Unavailable) as caught:
            store.keys.status()
        assert caught.value.code == "unavailable.not_encrypted"
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t", agent="a").save({"n": 1})
        for scope in (store.scoped("a"), store.scoped(read_only=True)):
            with pytest.raises(Unavailable) as caught:
                scope.keys.rotate(NEW)
            assert caught.value.code == "unavailable.scope"
        with pytest.raises(Invalid):
            store.keys.rotate()
        with pytest.raises(Invalid):
            store.keys.rotate(bytes(32))
    with backtrail.open(tmp_path / "s.db", key=KEY, read_only=True) as store:
        assert store.keys.status().threads == 1
        for options in ({"key": NEW}, {"data": True}):
            with pytest.raises(Unavailable):
                store.keys.rotate(**options)


def test_destroyed_key_is_in_no_file_of_the_keyring(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t").save({"n": 1})
        keyring = store._backend.keyring
        record = store._backend.find_thread("thread", "t")
        ((_, _, wrapped),) = keyring._records([record.uid])[record.uid].content[1]
        assert any(wrapped in each.read_bytes() for each in tmp_path.glob("s.db.keys*"))
        rotation.destroy_keys(store._backend, [record])
        assert not any(wrapped in each.read_bytes() for each in tmp_path.glob("s.db.keys*"))


def test_orphan_keys_are_counted(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store._backend.keyring.ensure([os.urandom(8)])
        store.thread("t").save({"n": 1})
        assert (store.keys.status().threads, store.keys.status().orphans) == (2, 1)


def test_a_process_with_an_older_key_of_the_caller_changes_no_keys(tmp_path):
    with sealed_at("sqlite", tmp_path) as opener, opener() as store, opener() as other:
        store.thread("t").save({"n": 1})
        store.keys.rotate(NEW)
        for change in (lambda: other.keys.rotate(data=True), lambda: other.keys.rotate(KEY)):
            with pytest.raises(backtrail.Conflict) as caught:
                change()
            assert caught.value.code == "conflict.keys"
            assert NEW.id in str(caught.value)
        with opener(key=NEW) as again:
            assert again.thread("t").load().state == {"n": 1}
        with pytest.raises(Unavailable):
            opener()


def test_a_new_key_that_could_not_wrap_is_not_used_later(tmp_path):
    def failing(_):
        raise ConnectionError

    service = Key.from_callbacks(failing, lambda wrapped: wrapped, "service")
    with sealed_at("sqlite", tmp_path) as opener:
        with opener() as store:
            store.thread("t").save({"n": 1})
            with pytest.raises(Unavailable):
                store.keys.rotate(service)
            store.keys.rotate(data=True)
            assert store.keys.status().wrapped_by == KEY.id
        with opener() as store:
            assert store.thread("t").load().state == {"n": 1}
