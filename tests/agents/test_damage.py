"""Damage below an agent checkpoint: a restore detects it before it changes anything, and other data still works."""

import random
from contextlib import closing
from functools import partial

import apsw
import pytest

import backtrail
from backtrail import AgentState, Conversation, Corrupt, Message
from tests.faults.test_damage import Sqlite
from tests.support.scene import view


def said(store, name, seed):
    texts = [random.Random(f"{seed} {n}").randbytes(400).hex() for n in range(60)]
    store.conversations.save(Conversation("a", id=name, messages=[Message.user(text) for text in texts]))


@pytest.fixture
def patient(tmp_path):
    """A store with an agent, a checkpoint with a long and a short conversation, and later changes."""
    path = tmp_path / "s.db"
    opener = partial(backtrail.open, path, durability="relaxed")
    with opener() as store:
        store.agents.save(AgentState("a", "Ada", "a-model"))
        said(store, "long", 1)
        store.conversations.save(Conversation("a", id="short", messages=[Message.user("hello")]))
        store.agents.checkpoint("a", "point")
        store.conversations.append("short", Message.user("later"))
    with closing(apsw.Connection(str(path))) as connection:
        yield Sqlite(opener, lambda text, values: connection.execute(text, values).fetchall())


def refused(patient):
    """Restore the checkpoint: it must be Corrupt, and nothing may have changed. Return the error."""
    with patient.open() as store:
        (point,) = store.agents.checkpoints("a")
        short = store.conversations.load("short")
        before = patient.run("SELECT count(*), sum(hidden) FROM row", ())
        with pytest.raises(Corrupt) as caught:
            store.agents.restore(point.id)
        assert patient.run("SELECT count(*), sum(hidden) FROM row", ()) == before
        assert store.conversations.load("short") == short
        return caught.value


@pytest.mark.parametrize("deleted", [False, True])
def test_restore_names_a_damaged_conversation_and_changes_nothing(patient, deleted):
    if deleted:
        with patient.open() as store:
            store.conversations.delete("long")
            store.gc()
    for key in patient.keys("chunk"):
        with patient.damaged("chunk", key, "payload", random.Random(1)):
            assert "'long'" in str(refused(patient))
        with patient.renamed("chunk", key):
            assert "'long'" in str(refused(patient))
    with patient.open() as store:
        store.agents.restore(store.agents.checkpoints("a")[0].id)
        assert store.conversations.load("long").message_count == 60


def test_listing_marks_a_damaged_conversation(patient):
    key = patient.keys("chunk")[0]
    with patient.damaged("chunk", key, "payload", random.Random(1)), patient.open() as store:
        infos = {info.id: info for info in store.conversations.list("a")}
        assert set(infos) == {"long", "short"}
        assert infos["short"].damaged is None
        assert store.conversations.load("short").message_count == 2
        with pytest.raises(Corrupt):
            store.conversations.load("long")
        store.conversations.append("short", Message.user("still"))
        assert store.agents.checkpoint("a", "all the same").conversations == 2


def tried(store, point):
    """Return the state after a restore, then undo it; None if the restore raises Corrupt."""
    try:
        with store.transaction():
            store.agents.restore(point)
            shown = view(store, "a")
            store.agents.undo("a")
    except Corrupt:
        return None
    return shown


def test_flipped_bit_never_makes_a_wrong_restore(patient):
    """Whatever is damaged, a restore is right or it is `Corrupt` and changes nothing."""
    with patient.open() as store:
        (point,) = store.agents.checkpoints("a")
        now = view(store, "a")
        store.agents.restore(point.id)
        wanted = view(store, "a")
        store.agents.undo("a")
        assert view(store, "a") == now
    rng, found = random.Random(2), 0
    for key in patient.keys("row"):
        for column in ("head", "view", "base", "root", "op_id", "extra", "payload"):
            ((value,),) = patient.run(f'SELECT "{column}" FROM row WHERE {key[0]}', key[1])
            if value not in (None, b""):
                with patient.damaged("row", key, column, rng), patient.open() as store:
                    shown = tried(store, point.id)
                assert shown in (None, wanted), (key, column)
                found += shown is None
    assert found > 10
    with patient.open() as store:
        assert view(store, "a") == now


def test_verify_reads_deleted_conversations_that_checkpoints_hold(patient):
    with patient.open() as store:
        store.conversations.delete("long")
        store.gc()
    for key in patient.keys("chunk"):
        with patient.damaged("chunk", key, "payload", random.Random(1)), patient.open() as store:
            assert not store.verify().ok
