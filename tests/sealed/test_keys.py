"""Keys of callers, and how an encrypted store is opened: with the right key, or not at all."""

import copy
import os
import pickle
import shutil
from pathlib import Path
from unittest import mock

import pytest

import backtrail
from backtrail import Invalid, Key, NotFound, Unavailable
from backtrail.backends.port import SEALED
from backtrail.backends.sqlite.backend import SqliteBackend
from tests.support.sealing import KEY, KINDS, sealed_at

OTHER = Key(bytes(32))
SECRET = bytes(range(32))


def files(folder):
    """All files with their bytes, without those that SQLite makes for a reader."""
    return {
        each.relative_to(folder): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file() and not each.name.endswith(("-shm", "-wal"))
    }


# -- Key ------------------------------------------------------------------------------------------------


def test_key_of_wrong_length_is_refused():
    for wrong in (b"", bytes(31), bytes(33), "x" * 32, None):
        with pytest.raises(Invalid) as caught:
            Key(wrong)
        assert caught.value.code == "invalid.key"


def test_secret_is_in_no_text():
    for key in (KEY, Key(SECRET, previous=[OTHER])):
        for text in (repr(key), str(key), key.id):
            assert SECRET.hex()[:8] not in text
            assert repr(SECRET)[2:12] not in text
    assert KEY.id == Key(SECRET).id != OTHER.id


def test_key_cannot_be_pickled_or_copied():
    for work in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            work(KEY)


def test_saved_key_is_read_again(tmp_path):
    made = Key.generate()
    made.save(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert Key.from_file(tmp_path / "key").id == made.id
    with pytest.raises(Invalid):
        Key.generate().save(tmp_path / "key")
    assert Key.from_file(tmp_path / "key").id == made.id


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604, 0o660])
def test_key_file_of_others_is_refused(tmp_path, mode):
    KEY.save(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(Invalid) as caught:
        Key.from_file(tmp_path / "key")
    assert caught.value.code == "invalid.key_file"
    assert f"chmod 600 {tmp_path / 'key'}" in str(caught.value)


@pytest.mark.parametrize("text", ["", "x", "00" * 31, "00" * 33, "zz" * 32, "\xff"])
def test_file_without_a_key_is_refused(tmp_path, text):
    (tmp_path / "key").write_text(text)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(Invalid) as caught:
        Key.from_file(tmp_path / "key")
    assert caught.value.code == "invalid.key"
    with pytest.raises(NotFound):
        Key.from_file(tmp_path / "none")
    with pytest.raises(Unavailable):
        Key.from_file(tmp_path)


def test_key_from_the_environment(monkeypatch):
    monkeypatch.setenv("MINE", SECRET.hex())
    assert Key.from_env("MINE").id == KEY.id
    monkeypatch.setenv("MINE", "no key")
    with pytest.raises(Invalid) as caught:
        Key.from_env("MINE")
    assert "no key" not in str(caught.value)
    monkeypatch.delenv("MINE")
    with pytest.raises(NotFound):
        Key.from_env("MINE")


# -- opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_store_opens_with_its_key_only(tmp_path, kind):
    with sealed_at(kind, tmp_path) as opener:
        with opener() as store:
            store.thread("t").save({"n": 1})
        before = files(tmp_path)
        for key, code in ((None, "unavailable.encrypted"), (OTHER, "unavailable.key")):
            if key is None and kind == "memory":
                continue  # a new one
            for read_only in (False, True) if kind in ("sqlite", "file") else (False,):
                with pytest.raises(Unavailable) as caught:
                    opener(key=key, read_only=read_only)
                assert caught.value.code == code
        assert files(tmp_path) == before
        with opener() as store:
            assert store.thread("t").load().state == {"n": 1}


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_plain_store_is_not_opened_with_a_key(tmp_path, kind):
    with sealed_at(kind, tmp_path) as opener:
        with opener(key=None) as store:
            store.thread("t").save({"n": 1})
        before = files(tmp_path)
        with pytest.raises(Invalid) as caught:
            opener()
        assert caught.value.code == "invalid.not_encrypted"
        assert files(tmp_path) == before
        with opener(key=None) as store:
            assert store.thread("t").load().state == {"n": 1}


def test_key_must_be_a_key(tmp_path):
    for wrong in (SECRET, "key", 1):
        with pytest.raises(Invalid) as caught:
            backtrail.open(tmp_path / "s.db", key=wrong)
        assert caught.value.code == "invalid.key"
    with pytest.raises(Invalid):
        backtrail.open(tmp_path / "s.db", keyring=tmp_path / "k.db")
    assert not files(tmp_path)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_store_without_its_keyring_is_refused(tmp_path, kind):
    with sealed_at(kind, tmp_path) as opener:
        with opener() as store:
            store.thread("t").save({"n": 1})
        (tmp_path / "store.db.keys").rename(tmp_path / "away")
        for read_only in (False, True):
            with pytest.raises(Unavailable) as caught:
                opener(read_only=read_only)
            assert caught.value.code == "unavailable.keyring"
        assert not (tmp_path / "store.db.keys").exists()
        with opener(keyring=(tmp_path / "away").as_uri() if kind == "file" else tmp_path / "away") as store:
            assert store.thread("t").load().state == {"n": 1}


def test_keyring_of_another_store_is_refused(tmp_path):
    for name in ("a", "b"):
        with backtrail.open(tmp_path / name, key=KEY) as store:
            store.thread("t").save({"n": name})
    with pytest.raises(Invalid) as caught:
        backtrail.open(tmp_path / "a", key=KEY, keyring=tmp_path / "b.keys")
    assert caught.value.code == "invalid.keyring"


def test_interrupted_creation_is_completed(tmp_path):
    """The keyring is made, then the process is killed before the store has its mark."""
    with (
        mock.patch.object(SqliteBackend, "commit", autospec=True, side_effect=_second_fails(SqliteBackend.commit)),
        pytest.raises(KeyboardInterrupt),
    ):
        backtrail.open(tmp_path / "s.db", key=KEY)
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t").save({"n": 1})
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        assert store.thread("t").load().state == {"n": 1}


def _second_fails(commit):
    calls = []

    def committing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return commit(*args)

    return committing


def test_missing_package_is_named(tmp_path, monkeypatch):
    from backtrail.sealed import keys

    keys._library.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    try:
        with pytest.raises(Unavailable) as caught:
            backtrail.open(tmp_path / "s.db", key=KEY)
    finally:
        keys._library.cache_clear()
    assert caught.value.code == "unavailable.extra"
    assert "backtrail[encryption]" in str(caught.value)


def test_backup_has_no_keys_and_opens_with_the_keyring(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t").save({"n": 1})
        store.backup(tmp_path / "backup.db")
    with pytest.raises(Unavailable):
        backtrail.open(tmp_path / "backup.db", key=KEY)
    with backtrail.open(tmp_path / "backup.db", key=KEY, keyring=tmp_path / "s.db.keys") as store:
        assert store.thread("t").load().state == {"n": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_keyring_is_backed_up_and_not_opened_as_a_store(tmp_path, kind):
    with sealed_at(kind, tmp_path) as opener, opener() as store:
        store.thread("t").save({"n": 1})
        store.backup(tmp_path / "backup")
        assert store.keys.backup(tmp_path / "keys") > 0
    copies = [each.as_uri() if each.is_dir() else each for each in (tmp_path / "backup", tmp_path / "keys")]
    with backtrail.open(copies[0], key=KEY, keyring=copies[1]) as store:
        assert store.thread("t").load().state == {"n": 1}
        store.thread("u").save({"n": 2})
        assert store.verify().ok
    with pytest.raises(Invalid) as caught:
        backtrail.open(copies[1])
    assert caught.value.code == "invalid.keyring"


def test_restored_backup_uses_the_keyring_beside_the_store(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t").save({"n": 1})
        store.backup(tmp_path / "backup.db")
        store.thread("t").save({"n": 2})
    backtrail.restore_backup(tmp_path / "backup.db", tmp_path / "s.db")
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        assert store.thread("t").load().state == {"n": 1}


@pytest.fixture(params=["sqlite", "file"])
def saved(request, tmp_path):
    """The URL of an encrypted store in which a conversation was erased after a backup of it and of its keyring."""
    url = (tmp_path / "s.db").as_uri() if request.param == "file" else str(tmp_path / "s.db")
    with backtrail.open(url, key=KEY) as store:
        store.thread("t").save({"n": 1})
        store.thread("erased").save({"n": 2})
        store.backup(tmp_path / "backup.db")
        store.keys.backup(tmp_path / "backup.db.keys")
        store.thread("erased").erase()
    return url


def removed(path):
    (shutil.rmtree if path.is_dir() else os.remove)(path)


def test_restore_keeps_the_keyring_which_knows_the_erasures(saved, tmp_path):
    backtrail.restore_backup(tmp_path / "backup.db", saved)
    with backtrail.open(saved, key=KEY) as store:
        assert store.thread("t").load().state == {"n": 1}
        with pytest.raises(backtrail.Corrupt) as caught:
            store.thread("erased").load()
        assert caught.value.code == "corrupt.erased"


def test_restore_brings_back_a_lost_keyring(saved, tmp_path):
    removed(tmp_path / "s.db.keys")
    backtrail.restore_backup(tmp_path / "backup.db", saved)
    with backtrail.open(saved, key=KEY) as store:
        assert store.thread("t").load().state == {"n": 1}
        assert store.thread("erased").load().state == {"n": 2}


def test_restore_over_another_store_takes_the_keyring_of_the_backup(saved, tmp_path):
    other = saved.replace("s.db", "other.db")
    with backtrail.open(other, key=OTHER) as store:
        store.thread("theirs").save({"n": 3})
    replaced = backtrail.restore_backup(tmp_path / "backup.db", other)
    with backtrail.open(other, key=KEY) as store:
        assert store.thread("t").load().state == {"n": 1}
    as_url = Path(replaced).as_uri() if saved.startswith("file:") else replaced
    keyring = f"{saved.replace('s.db', 'other.db.keys.replaced-1')}"
    with backtrail.open(as_url, key=OTHER, keyring=keyring) as store:
        assert store.thread("theirs").load().state == {"n": 3}


def test_restore_ignores_a_keyring_of_another_store(saved, tmp_path):
    removed(tmp_path / "s.db.keys")
    removed(tmp_path / "backup.db.keys")
    other = saved.replace("s.db", "other.db")
    with backtrail.open(other, key=KEY) as store:
        store.keys.backup(tmp_path / "backup.db.keys")
    backtrail.restore_backup(tmp_path / "backup.db", saved)
    assert not (tmp_path / "s.db.keys").exists()
    with pytest.raises(Unavailable) as caught:
        backtrail.open(saved, key=KEY)
    assert caught.value.code == "unavailable.keyring"


# -- a key management service -------------------------------------------------------------------------------


class Service:
    """A key management service that can fail."""

    def __init__(self):
        self.calls = []
        self.fails = False

    def key(self, **options):
        return Key.from_callbacks(self.wrap, self.unwrap, "service/key/1", **options)

    def wrap(self, secret):
        self._call("wrap")
        return b"wrapped" + bytes(255 - each for each in secret)

    def unwrap(self, wrapped):
        self._call("unwrap")
        return bytes(255 - each for each in wrapped.removeprefix(b"wrapped"))

    def _call(self, what):
        if self.fails:
            raise TimeoutError("the service does not answer")
        self.calls.append(what)


def test_service_is_called_once_per_opening(tmp_path):
    service = Service()
    with backtrail.open(tmp_path / "s.db", key=service.key()) as store:
        for n in range(20):
            store.thread(f"t{n}").save({"n": n})
    assert service.calls == ["wrap", "unwrap"]
    with backtrail.open(tmp_path / "s.db", key=service.key()) as store:
        assert [store.thread(f"t{n}").load().state for n in range(20)] == [{"n": n} for n in range(20)]
    assert service.calls == ["wrap", "unwrap", "unwrap"]


def test_failing_service_changes_nothing(tmp_path):
    service = Service()
    service.fails = True
    with pytest.raises(Unavailable) as caught:
        backtrail.open(tmp_path / "s.db", key=service.key())
    assert caught.value.code == "unavailable.key"
    with backtrail.open(tmp_path / "s.db") as store:  # neither encrypted nor a store with anything in it
        assert [*store.threads()] == []
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    service.fails = False
    with backtrail.open(tmp_path / "s.db", key=service.key()) as store:
        service.fails = True
        store.thread("t").save({"n": 1})  # its key needs no call
        with pytest.raises(Unavailable):
            store.keys.rotate(service.key())
        store.thread("u").save({"n": 2})
    with pytest.raises(Unavailable):
        backtrail.open(tmp_path / "s.db", key=service.key())
    service.fails = False
    with backtrail.open(tmp_path / "s.db", key=service.key()) as store:
        assert (store.thread("t").load().state, store.thread("u").load().state) == ({"n": 1}, {"n": 2})


def test_answers_of_a_service_are_checked(tmp_path):
    for answer in (None, "text"):
        with pytest.raises(Unavailable):
            backtrail.open(tmp_path / "s.db", key=Key.from_callbacks(lambda _, answer=answer: answer, bytes, "k"))
    with pytest.raises(Unavailable) as caught:
        backtrail.open(tmp_path / "s.db", key=Key.from_callbacks(bytes, lambda _: b"short", "k"))
    assert caught.value.code == "unavailable.key"
    for wrong in ((None, bytes, "k"), (bytes, None, "k"), (bytes, bytes, ""), (bytes, bytes, 1)):
        with pytest.raises(Invalid):
            Key.from_callbacks(*wrong)


# -- the rest of the store ----------------------------------------------------------------------------------


def test_export_is_plain_only_on_request(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t", agent="a").save({"n": 1})
        for each in (store, store.scoped("a"), store.scoped(read_only=True)):
            with pytest.raises(Invalid) as caught:
                each.export(tmp_path / "export")
            assert caught.value.code == "invalid.plain_export"
        assert not (tmp_path / "export").exists()
        assert store.export(tmp_path / "export", plain=True).threads == 1


def test_copy_is_plain_only_on_request(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t").save({"n": 1})
    with pytest.raises(Invalid) as caught:
        backtrail.copy(tmp_path / "s.db", tmp_path / "p.db", key=KEY)
    assert caught.value.code == "invalid.plain_copy"
    assert not (tmp_path / "p.db").exists()
    assert backtrail.copy(tmp_path / "s.db", tmp_path / "e.db", key=KEY, to_key=OTHER).checkpoints == 1
    assert backtrail.copy(tmp_path / "s.db", tmp_path / "p.db", key=KEY, plain=True).checkpoints == 1
    assert backtrail.copy(tmp_path / "p.db", tmp_path / "f.db", to_key=OTHER).checkpoints == 1
    for name, key in (("e.db", OTHER), ("p.db", None), ("f.db", OTHER)):
        with backtrail.open(tmp_path / name, key=key) as store:
            assert store.thread("t").load().state == {"n": 1}
            assert store.verify().ok


def test_scope_of_an_encrypted_store_cannot_be_backed_up_in_plain(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t", agent="a").save({"n": 1})
        with pytest.raises(Unavailable) as caught:
            store.scoped("a").backup(tmp_path / "backup")
        assert caught.value.code == "unavailable.scope"
        assert not (tmp_path / "backup").exists()


def test_child_process_uses_the_store(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        store.thread("t").save({"n": 1})
        pid = os.fork()
        if not pid:
            try:
                store.thread("t").save({"n": 2})
                store.thread("child").save({"n": 3})
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert store.thread("t").load().state == {"n": 2}
        assert store.thread("child").load().state == {"n": 3}


def test_two_processes_make_one_store(tmp_path):
    """The keyring and the mark of a new store are those of the first one; the second one reads them."""
    pids = []
    for n in range(4):
        pids.append(os.fork())
        if not pids[-1]:
            try:
                with backtrail.open(tmp_path / "s.db", key=KEY) as store:
                    store.thread(f"t{n}").save({"n": n})
                    store.thread("shared").append("list", n) if store.info("shared") else None
            except BaseException:  # noqa: BLE001 - a child must not go on as a test
                os._exit(1)
            os._exit(0)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    with backtrail.open(tmp_path / "s.db", key=KEY) as store:
        assert sorted(info.id for info in store.threads()) == ["t0", "t1", "t2", "t3"]
        assert store.verify().ok
        assert store._backend.present([SEALED])
        assert store.keys.status().threads == 4
