"""Erasing in encrypted stores: what is left in the store, in a backup from before, in the keyring, and in an export."""

from contextlib import ExitStack
from unittest import mock

import pytest

from backtrail import Corrupt, Erased, Message, copy
from backtrail.sealed import keyring as keyrings
from backtrail.sealed import rotation
from tests.support.scene import agent, contents, conversation
from tests.support.sealing import KINDS, open_copy, sealed_at

LONG = "a long text that needs chunks of its own. " * 200


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(keyrings, "FRESH", 0.0)


@pytest.fixture(params=KINDS)
def opener(request, tmp_path):
    with sealed_at(request.param, tmp_path) as opener:
        yield opener


def talk(store, n):
    """A conversation of the agent, with a text of its own and a long one that all have."""
    store.conversations.save(conversation(f"c{n}", f"canary {n}", LONG))


@pytest.fixture
def ten(opener):
    """A store with an agent and ten conversations, and a checkpoint of them."""
    with opener() as store:
        store.agents.save(agent())
        for n in range(10):
            talk(store, n)
        made = store.agents.checkpoint("a", "ten")
        yield store, made.id


def check_nine(store, checkpoint):
    """The checkpoint restores all conversations but the erased one."""
    for n in set(range(10)) - {3}:
        store.conversations.append(f"c{n}", Message.user("later"))
    with pytest.warns(Erased, match="c3"):
        store.agents.restore(checkpoint)
    for n in set(range(10)) - {3}:
        assert contents(store, f"c{n}") == [f"canary {n}", LONG]


def test_nine_of_ten_conversations_restore(ten):
    store, checkpoint = ten
    report = store.conversations.erase("c3")
    assert report.keys_destroyed == 1
    assert report.to_json()["keys_destroyed"] == 1
    check_nine(store, checkpoint)
    assert store.conversations.get("c3") is None
    assert store.search('"canary 3"') == []
    assert store.verify().ok
    talk(store, 3)
    assert contents(store, "c3") == ["canary 3", LONG]


@pytest.mark.parametrize("is_touched", [False, True])
def test_nine_of_ten_conversations_restore_from_a_backup_made_before(ten, tmp_path, is_touched):
    store, checkpoint = ten
    if is_touched:  # after the checkpoint
        store.conversations.append("c3", Message.user("canary 3 again"))
    store.backup(tmp_path / "backup")
    store.conversations.erase("c3")
    with open_copy(store, tmp_path / "backup") as backup:
        with pytest.raises(Corrupt) as caught:
            contents(backup, "c3")
        assert caught.value.code == "corrupt.erased"
        assert backup.search('"canary 3"') == []
        check_nine(backup, checkpoint)


def test_an_erased_agent_is_in_no_backup(ten, tmp_path):
    store, _ = ten
    store.agents.save(agent("other"))
    store.conversations.save(conversation("theirs", "kept", agent_id="other"))
    store.backup(tmp_path / "backup")
    report = store.agents.erase("a")
    assert report.keys_destroyed == len(report.threads) >= 12
    with open_copy(store, tmp_path / "backup") as backup:
        for n in range(10):
            with pytest.raises(Corrupt):
                contents(backup, f"c{n}")
        assert contents(backup, "theirs") == ["kept"]
    assert contents(store, "theirs") == ["kept"]
    assert store.verify().ok


def test_a_scoped_store_erases_what_is_inside(ten, tmp_path):
    store, checkpoint = ten
    store.backup(tmp_path / "backup")
    assert store.scoped(agent="a").conversations.erase("c3").keys_destroyed == 1
    check_nine(store, checkpoint)
    with open_copy(store, tmp_path / "backup") as backup, pytest.raises(Corrupt):
        contents(backup, "c3")


def test_a_mirror_destroys_the_keys_of_what_its_source_erased(ten, tmp_path):
    source, _ = ten
    with sealed_at("sqlite", tmp_path / "mirror") as opener, opener() as mirror:
        copy(source, mirror, plain=True)
        mirror.backup(tmp_path / "backup")
        source.conversations.erase("c3")
        assert copy(source, mirror, plain=True).erased == (("conversation", "c3"),)
        assert mirror.keys.status().destroyed == 1
        with open_copy(mirror, tmp_path / "backup") as backup, pytest.raises(Corrupt):
            contents(backup, "c3")


def test_an_interrupted_erasure_is_finished_by_the_next_call(ten, tmp_path, monkeypatch):
    store, checkpoint = ten
    store.backup(tmp_path / "backup")
    destroy = keyrings.Keyring.destroy

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(keyrings.Keyring, "destroy", killed)
    with pytest.raises(KeyboardInterrupt):
        store.conversations.erase("c3")
    monkeypatch.setattr(keyrings.Keyring, "destroy", destroy)
    assert store.conversations.erase("c3").keys_destroyed >= 1
    check_nine(store, checkpoint)
    with open_copy(store, tmp_path / "backup") as backup, pytest.raises(Corrupt):
        contents(backup, "c3")


# -- killed erasures --------------------------------------------------------------------------------------


class Stop(BaseException):
    """Stands for a kill."""


WRITES = ("commit", "rewrite", "remove_rows", "remove_chunks", "reclaim")


def erase_until(store, stop_at):
    """Erase a conversation, and stop before a write to the store or its keyring; tell whether it was stopped."""
    count = 0

    def stopping(method):
        def write(*args, **options):
            nonlocal count
            count += 1
            if count == stop_at:
                raise Stop
            return method(*args, **options)

        return write

    targets = (store._backend.below, store._backend.keyring.backend)
    with ExitStack() as stack:
        for target in targets:
            for name in WRITES:
                stack.enter_context(mock.patch.object(target, name, stopping(getattr(target, name))))
        try:
            store.conversations.erase("c3")
        except Stop:
            return True
    return False


def bytes_of(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("store.db.keys*") if path.is_file())


def test_gc_finishes_an_erasure_that_was_killed_at_any_write(tmp_path):
    stop_at, marked = 0, 0
    is_stopped = True
    while is_stopped:
        stop_at += 1
        folder = tmp_path / str(stop_at)
        with sealed_at("sqlite", folder) as opener:
            with opener() as store:
                for n in (2, 3):
                    store.conversations.save(conversation(f"c{n}", f"canary {n}"))
                store.backup(folder / "backup")
                uid = store._backend.find_thread("conversation", "c3").uid
                (((_, _, wrapped),),) = store._backend.keyring._records([uid])[uid].content[1:]
                is_stopped = erase_until(store, stop_at)
            with opener() as store:
                is_marked = store.conversations.get("c3") is None
                store.gc()
                assert store.verify().ok
                assert contents(store, "c2") == ["canary 2"]
                with open_copy(store, folder / "backup") as backup:
                    assert contents(backup, "c2") == ["canary 2"]
                    if is_marked:
                        with pytest.raises(Corrupt):
                            contents(backup, "c3")
                assert (wrapped in bytes_of(folder)) != is_marked
                before = store.keys.status()
                store.gc()
                assert store.keys.status() == before  # nothing is left to do
                if is_marked:
                    store.conversations.save(conversation("c3", "again"))
                    assert contents(store, "c3") == ["again"]
                marked += is_marked
    assert marked > 10


def test_gc_leaves_the_keys_of_a_finished_erasure_alone(ten):
    store, _ = ten
    store.conversations.erase("c3")
    talk(store, 3)
    before = store.keys.status()
    store.gc()
    assert store.keys.status() == before
    assert store.conversations.erase("c3") == store.conversations.erase("c3")
    assert store.keys.status().destroyed == before.destroyed + 1


def test_two_processes_finish_one_erasure(opener, monkeypatch):
    """One process is between its new key and the end, and another one does all of it meanwhile."""
    with opener() as store:
        store.conversations.save(conversation("c3", "canary 3"))
        seal = rotation._seal_rest
        calls = []

        def meanwhile(backend, threads):
            calls.append(1)
            if len(calls) == 1:
                store.gc()
            seal(backend, threads)

        monkeypatch.setattr(rotation, "_seal_rest", meanwhile)
        store.conversations.erase("c3")
        assert len(calls) == 2
        assert store.keys.status().destroyed == 1
        assert store.verify().ok
        store.conversations.save(conversation("c3", "again"))
        assert contents(store, "c3") == ["again"]
