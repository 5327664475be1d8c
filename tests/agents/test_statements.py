"""How many SQL statements a checkpoint, a restore and an undo take: as many for many conversations as for a few."""

from contextlib import contextmanager

import pytest

import backtrail
from backtrail import Corrupt, Message
from tests.support.scene import agent, conversation, view

MOST = 60


@contextmanager
def counted(store):
    """Give a list of the statements that the block runs."""
    statements = []
    with store._backend._shared.use() as connection:
        connection.exec_trace = lambda _, statement, __: not statements.append(statement)
    try:
        yield statements
    finally:
        with store._backend._shared.use() as connection:
            connection.exec_trace = None


def checkpointed(store, count):
    """Make an agent whose conversations have rewinds and large states, and a checkpoint of it."""
    store.agents.save(agent())
    names = [f"c{at}" for at in range(count)]
    with store.transaction():
        for name in names:
            store.conversations.save(conversation(name, *(f"{name} {n} " + "word " * 100 for n in range(30))))
    with store.transaction():
        for name in names:
            store.conversations.append(name, Message.user("taken back"))
            store.conversations.thread(name).undo()
            store.conversations.append(name, Message.user("more"))
    return names, store.agents.checkpoint("a", "first")


def changed(store, names):
    """Append to some conversations, delete others, begin some of these again, and make new ones."""
    with store.transaction():
        for at, name in enumerate(names):
            if at % 3:
                store.conversations.append(name, Message.user("later"))
            else:
                store.conversations.delete(name)
    with store.transaction():
        for at, name in enumerate(names):
            store.conversations.save(conversation(f"new {name}"))
            if at % 6 == 0:
                store.conversations.save(conversation(name, "begun again"))


@pytest.mark.parametrize("count", [3, 100])
def test_statements_do_not_grow_with_conversations(tmp_path, count):
    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        names, first = checkpointed(store, count)
        before = view(store, "a")
        changed(store, names)
        after = view(store, "a")
        taken = {}
        with counted(store) as taken["checkpoint"]:
            second = store.agents.checkpoint("a", "second")
        for what in ("restore", "restore of what is untouched"):
            with counted(store) as taken[what]:
                store.agents.restore(first)
            assert view(store, "a") == before
            with counted(store) as taken[f"undo of {what}"]:
                store.agents.undo("a")
            assert view(store, "a") == after
        with store.transaction(), counted(store) as taken["restore in a transaction"]:
            store.agents.restore(first)
        assert view(store, "a") == before
        assert {what: len(listed) for what, listed in taken.items() if len(listed) > MOST} == {}
        assert second.conversations == len(after[1])
        assert store.verify().ok


def test_large_states_are_verified_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("backtrail.engine.bulk._PAGE_BYTES", 50_000)
    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        names, first = checkpointed(store, 10)
        before = view(store, "a")
        changed(store, names)
        store.agents.restore(first)
        assert view(store, "a") == before


def test_missing_chunk_is_named_before_anything_changes(tmp_path):
    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        names, first = checkpointed(store, 10)
        store.conversations.save(conversation("small", "of one row"))
        second = store.agents.checkpoint("a", "second")
        store.conversations.append("small", Message.user("more"))
        large = store._backend.chunk_page(b"", 1)[0][0]
        with store._backend._shared.use() as connection:
            connection.execute("DELETE FROM chunk WHERE digest = ?", (large,))
        for made in (first, second):
            with pytest.raises(Corrupt, match="nothing was changed") as caught:
                store.agents.restore(made)
            assert caught.value.code == "corrupt.chunk"
            assert caught.value.details["conversation"] in names
        assert store.conversations.tail("small", 1)[0].content == "more"
