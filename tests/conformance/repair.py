"""Repair: each kind of damage is found and named; a repair removes lost data, and changes nothing else.

The tests do damage through the port, so every backend has the same. Tags without their rows, rows without their threads
and wrong indexes cannot be made this way: the tests of each backend show that they are found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backtrail import AgentState, Conversation, Corrupt, Diff, Invalid, Message, NotFound, Unavailable
from backtrail.backends.port import Batch, IndexState, NewThread, Splice
from backtrail.engine import log, manifests
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree.decode import Decoder
from backtrail.maintenance import gc
from tests.conformance.base import Suite, fill, head, ids, messages, states, storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store, VerifyReport
    from backtrail.backends.port import Row, ThreadRecord
    from tests.conformance.base import Opener

Place = tuple[str, str, int]
"""A row: the name space and the name of its thread, and its seq."""


def furnish(store: Store) -> None:
    """Put threads, an agent with conversations and checkpoints, a run and a thread aside into a store."""
    thread = store.thread("t")
    fill(thread, 4)
    thread.rewind(2)
    thread.save({"n": "other way"}, label="here", tags=["kept"])
    thread.save({"n": "last"})
    large = store.thread("large")
    large.save({"messages": messages(70)})
    large.save({"n": 1})
    store.thread("beside", aside=True).save({"n": 1})
    store.thread("beside", aside=True).save({"n": 2})
    store.agents.save(AgentState("a", "Ada", "a-model"))
    store.conversations.save(Conversation("a", id="c", messages=[Message.user("hello")]))
    store.conversations.save(Conversation("a", id="e", messages=[Message.user("world")]))
    store.agents.checkpoint("a", "first")
    store.conversations.append("c", Message.user("again"))
    store.agents.checkpoint("a", "second")
    with store.run("session", agent="b", state={"n": 0}) as run:
        run.tool("add", lambda: 1)
        run.checkpoint()
    assert [hit.conversation_id for hit in store.search("hello")] == ["c"]


def loaded(store: Store) -> dict[Place, Any]:
    """Return the states of all visible checkpoints that can be read."""
    heads = store._engine.direct.reader.uncached()
    found: dict[Place, Any] = {}
    for record in gc.threads(heads):
        for row in heads.backend.rows(record.no, [(1, log.MAX_SEQ)], visible=True):
            try:
                tree = heads.chain(record, row).tree
                found[record.space, record.name, row.seq] = Decoder(tree.nodes, Types()).value(tree.rep)
            except (Corrupt, NotFound):
                continue
    return found


def stored(store: Store) -> dict[Place, Row]:
    """Return all rows, as they are stored."""
    heads = store._engine.direct.reader
    return {
        (record.space, record.name, row.seq): row
        for record in gc.threads(heads)
        for row in heads.backend.rows(record.no, [(1, log.MAX_SEQ)], payload=True)
    }


# -- damage ---------------------------------------------------------------------------------------------


def _row(store: Store, space: str, name: str, seq: int = 0) -> tuple[ThreadRecord, Row]:
    backend = store._backend
    record = backend.find_thread(space, name)
    assert record is not None
    newest = backend.newest(record.no)
    assert newest is not None
    (row,) = backend.rows(record.no, [(seq or newest.seq,) * 2], payload=True)
    return record, row


def column(space: str, name: str, seq: int = 0) -> Callable[[Store], set[Place]]:
    """Damage a column of a row, by default of the newest row."""

    def damage(store: Store) -> set[Place]:
        record, row = _row(store, space, name, seq)
        assert store._backend.rewrite(record.no, [row._replace(created_at=row.created_at + 1)]) == 1
        return {(space, name, row.seq)}

    return damage


def payload(space: str, name: str, seq: int) -> Callable[[Store], set[Place]]:
    """Damage the payload of a row."""

    def damage(store: Store) -> set[Place]:
        record, row = _row(store, space, name, seq)
        broken = bytes([*(row.payload or b"")[:-1], (row.payload or b"\0")[-1] ^ 0x40])
        assert store._backend.rewrite(record.no, [row._replace(payload=broken)]) == 1
        return {(space, name, row.seq)}

    return damage


def _missing(store: Store, space: str, name: str, seq: int) -> set[Place]:
    record, _ = _row(store, space, name)
    store._backend.commit(Batch(hide=((record.no, seq),)))
    assert store._backend.remove_rows(record.no, [seq]) == 1
    return {(space, name, seq)}


def _missing_base(store: Store) -> set[Place]:
    """A row is missing that the next one was stored as a change of."""
    thread = store.thread("chain")
    thread.save({"l": ["x" * 500]})
    thread.append("l", 1)
    _missing(store, "thread", "chain", 1)
    return {("thread", "chain", 2)}


def _missing_head(store: Store) -> set[Place]:
    store.thread("t").rewind("here")
    return _missing(store, "thread", "t", 6)


def _hidden_head(store: Store) -> set[Place]:
    record, row = _row(store, "thread", "t")
    store._backend.commit(Batch(hide=((record.no, row.seq),)))
    return {("thread", "t", row.seq)}


def _damaged_move(store: Store) -> set[Place]:
    """The newest row is a rewind, and damaged."""
    store.thread("t").rewind("here")
    return column("thread", "t")(store)


def _missing_chunk(store: Store) -> set[Place]:
    ((digest, _), *_) = store._backend.chunk_page(b"", 1)
    assert store._backend.remove_chunks([digest], 1 << 40) > 0
    return {("thread", "large", 1)}


def _damaged_chunk(store: Store) -> set[Place]:
    """A chunk is damaged that no checkpoint needs, yet."""
    storage(store).commit(Batch(chunks=((bytes(32), b"\0what was never saved"),)))
    return set()


def _wrong_index(store: Store) -> set[Place]:
    backend = store._backend
    record, _ = _row(store, "conversation", "c")
    was = backend.indexed(record.no)
    assert was.items
    assert backend.index(record.no, was, was, [Splice(0, was.items, (None,) * was.items)])
    return set()


def _no_mark(store: Store) -> set[Place]:
    """The index has an older state of a thread, and the thread has no mark."""
    backend = store._backend
    record, row = _row(store, "conversation", "c")
    was = backend.indexed(record.no)
    assert backend.index(record.no, was, IndexState(0, 0, row.seq), [Splice(0, was.items, ())])
    assert backend.index(record.no, IndexState(0, 0, row.seq), IndexState(0, 0, 0), [])
    return set()


def lost_newest(store: Store) -> set[Place]:
    """The index has seen a newer row than there is."""
    backend = store._backend
    record, row = _row(store, "conversation", "c")
    was = backend.indexed(record.no)
    assert backend.index(record.no, was, was._replace(as_of=row.seq + 2), [])
    return {("conversation", "c", row.seq + 2)}


def wrong_time(store: Store) -> set[Place]:
    """The record of a thread says that it was made when nothing can have been."""
    record, _ = _row(store, "thread", "t")
    backend = store._backend
    backend.commit(Batch(renew=((record.no, NewThread(*record[1:])._replace(created_at=1 << 61)),)))
    return set()


def _no_pin(store: Store) -> set[Place]:
    backend = store._backend
    record, _ = _row(store, "conversation", "c")
    holder = _row(store, manifests.SPACE, "a")[0].uid
    backend.commit(Batch(unpin=((record.no, 1, holder),)))
    return set()


def _no_touch(store: Store) -> set[Place]:
    store.conversations.append("c", Message.user("more"))
    record, row = _row(store, "conversation", "c")
    store._backend.commit(Batch(untouch=((record.no, row.seq),)))
    return set()


def _deleted_and_pinned(store: Store) -> set[Place]:
    store.conversations.delete("c")
    return payload("conversation", "c", 1)(store)


DAMAGE: dict[str, Callable[[Store], set[Place]]] = {
    "a row": column("thread", "t", 3),
    "the head": column("thread", "t"),
    "a payload": payload("thread", "t", 1),
    "a move of the head": column("thread", "t", 5),
    "the newest move": _damaged_move,
    "a missing base": _missing_base,
    "a missing head": _missing_head,
    "a hidden head": _hidden_head,
    "a missing chunk": _missing_chunk,
    "a chunk that nothing needs": _damaged_chunk,
    "a wrong index": _wrong_index,
    "a missing mark": _no_mark,
    "a missing newest row": lost_newest,
    "the time of a thread": wrong_time,
    "a conversation": payload("conversation", "c", 1),
    "a deleted conversation that is pinned": _deleted_and_pinned,
    "the state of an agent": column("agent", "a"),
    "an agent's checkpoint": payload(manifests.SPACE, "a", 1),
    "an agent's newest checkpoint": column(manifests.SPACE, "a"),
    "a missing pin": _no_pin,
    "a missing touch": _no_touch,
    "a run": column("run", "session"),
    "what a run goes on from": column("journal", "session"),
    "a thread aside": column("aside", "beside"),
}


class Repairing(Suite):
    """`verify(repair=True)`, and what `verify` says before."""

    @pytest.mark.parametrize("what", DAMAGE)
    def test_repair_keeps_everything_that_loaded(self, store: Store, opener: Opener, what: str) -> None:
        furnish(store)
        assert store.verify().ok
        named = DAMAGE[what](store)
        before, rows = loaded(store), stored(store)
        dry = store.verify()
        assert not dry.ok
        assert dry.repairs
        assert not dry.repaired
        assert named <= _named(store, dry)
        assert (stored(store), loaded(store)) == (rows, before)  # to look changes nothing
        _can_be_read(store, before)
        made = store.verify(repair=True)
        assert made.repaired
        assert (made.damaged, made.faults, made.repairs) == (dry.damaged, dry.faults, dry.repairs)
        assert store.verify().ok
        _same(store, before, rows, named)
        store.gc()
        assert store.verify().ok
        _same(store, before, {}, named)
        for name in ("t", "large", "new"):
            assert store.thread(name).save({"messages": messages(70)}).state == {"messages": messages(70)}
        if store.agents.get("a") is None:  # it was lost
            store.agents.save(AgentState("a", "Ada", "a-model"))
        assert store.agents.checkpoint("a", "on").conversations == len(store.conversations.list("a"))
        store.close()
        with opener() as store:
            assert store.verify().ok
            assert store.thread("large").load("@").state == {"messages": messages(70)}

    @pytest.mark.parametrize(
        "damage", ["the head", "the newest move", "a missing head"], ids=lambda what: what.replace(" ", "_")
    )
    def test_a_thread_without_head_is_readable_and_not_writable(self, store: Store, damage: str) -> None:
        furnish(store)
        DAMAGE[damage](store)  # no handle is left that knows the old head
        thread = store.thread("t")
        shown = list(thread.history(newest_first=True))
        assert sum(checkpoint.damaged for checkpoint in shown) == (damage == "the head")
        assert len(thread) == len(shown)
        if damage == "a missing head":
            assert thread.find(tag="kept") == []
        else:
            assert thread.load("here").state == thread.load("kept").state == {"n": "other way"}
            assert states(thread.find(tag="kept")) == [{"n": "other way"}]
        good = shown[-1].id
        assert thread.load(good).state == {"n": 1}
        assert thread.diff(shown[-1], good) == Diff(())
        assert thread.fork("f", good).load().state == {"n": 1}
        needs_the_head: tuple[Callable[[], object], ...] = (
            thread.latest,
            thread.load,
            lambda: thread.load(1),
            lambda: thread.load("@-"),
            lambda: thread.save({"n": 0}),
            lambda: thread.rewind(good),
            thread.undo,
        )
        for call in needs_the_head:
            with pytest.raises(Corrupt, match=r"verify\(repair=True\)"):
                call()
        listed = list(store.threads())
        at = [each.id for each in listed].index("t")
        assert [each.id for each in listed if each.damaged] == ["t"]
        info = store.info("t")
        assert info is not None
        assert (info.damaged, info.head_id, info.step) == (listed[at].damaged, listed[at].head_id, listed[at].step)
        assert list(store.threads(after=listed[at])) == listed[at + 1 :]
        store.verify(repair=True)
        assert not any(each.damaged for each in store.threads())

    def test_agent_checkpoints_are_listed_beside_a_damaged_one(self, store: Store) -> None:
        furnish(store)
        second, first = store.agents.checkpoints("a")
        column(manifests.SPACE, "a")(store)
        listed = store.agents.checkpoints("a")
        assert [(each.id, each.damaged) for each in listed] == [(second.id, True), (first.id, False)]
        assert listed[1] == first
        assert store.agents.get_checkpoint(first.id) == first
        with pytest.raises(Corrupt):
            store.agents.get_checkpoint(second.id)

    def test_a_sound_store_is_not_changed(self, store: Store) -> None:
        furnish(store)
        rows, usage = stored(store), store._backend.usage()
        report = store.verify(repair=True)
        assert report.ok
        assert not report.repaired
        assert report.repairs == ()
        assert stored(store) == rows
        assert store._backend.usage()._replace(stored_bytes=0) == usage._replace(stored_bytes=0)

    @pytest.mark.parametrize("damage", [column("thread", "t", 7), payload("thread", "t", 7)], ids=["row", "payload"])
    def test_the_head_moves_to_the_newest_readable_head(
        self, store: Store, damage: Callable[[Store], set[Place]]
    ) -> None:
        thread = store.thread("t")
        made = fill(thread, 5)
        thread.rewind(2)
        thread.save({"n": "lost"})
        damage(store)
        (left,) = store.verify().salvage
        assert (left.thread_id, left.kind, left.lost, left.loads) == ("t", "thread", 1, 5)
        assert (left.head_id, left.head_lost) == (made[1].id, True)
        store.verify(repair=True)
        thread = store.thread("t")
        assert head(thread) == made[1]
        assert states(thread.history()) == [{"n": 1}, {"n": 2}]
        assert thread.save({"n": 3}).step == 3
        assert [thread.undo().state for _ in range(2)] == [{"n": 2}, {"n": 5}]

    def test_repair_keeps_the_view(self, store: Store) -> None:
        thread = store.thread("t")
        fill(thread, 4)
        thread.rewind(2)
        thread.save({"n": "a"})
        thread.rewind(1)
        made = [thread.save({"n": "b"}), thread.save({"n": "c"})]
        shown = ids(thread.history())
        column("thread", "t", 5)(store)
        column("thread", "t", 7)(store)
        store.verify(repair=True)
        assert ids(store.thread("t").history()) == shown
        assert shown[1:] == ids(made)
        aside = store.thread("t").rewind(store.thread("t").load(shown[0]))
        assert aside.state == {"n": 1}

    def test_thread_without_readable_rows_begins_again(self, store: Store) -> None:
        fill(store.thread("t"), 2)
        payload("thread", "t", 1)(store)
        column("thread", "t", 2)(store)
        assert store.verify().salvage[0].head_id is None
        store.verify(repair=True)
        assert store.thread("t").latest() is None
        assert store.verify().ok
        assert store.thread("t").save({"n": 1}).step == 1

    def test_a_chunk_is_had_back_by_saving_the_same(self, store: Store) -> None:
        whole = {"messages": messages(70)}
        store.thread("t").save(whole)
        page = [address for address, _ in store._backend.chunk_page(b"", 100)]
        store._backend.remove_chunks(page[:1], 1 << 40)
        storage(store).commit(Batch(chunks=((page[0], b"\0damaged"),)))
        report = store.verify(repair=True)
        assert report.chunks == (page[0].hex(),)
        assert store.thread("again").save(whole).state == whole
        assert store.verify().ok
        assert storage(store).present(page[:1])

    def test_agent_checkpoint_keeps_undamaged_conversations(self, store: Store) -> None:
        furnish(store)
        second, first = store.agents.checkpoints("a")
        payload("conversation", "c", 1)(store)
        named = {damage.checkpoint_id: damage.kind for damage in store.verify().damaged}
        assert named[first.id] == named[second.id] == "checkpoint"
        store.verify(repair=True)
        left = {each.id: each.conversations for each in store.agents.checkpoints("a")}
        assert left == {first.id: 1, second.id: 1}
        store.conversations.append("e", Message.user("later"))
        store.agents.restore(first.id)
        assert [message.content for message in store.conversations.load("e").messages] == ["world"]
        assert store.agents.undo("a") is not None
        assert len(store.conversations.load("e").messages) == 2
        assert store.verify().ok

    @pytest.mark.parametrize("damage", [column, payload], ids=["row", "payload"])
    @pytest.mark.parametrize("seq", [1, 3, 7], ids=["first", "middle", "newest"])
    def test_a_run_with_damaged_checkpoints_keeps_its_place(
        self, store: Store, damage: Callable[..., Callable[[Store], set[Place]]], seq: int
    ) -> None:
        made: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            _pay(store, made, 3)
        assert len(store.runs.steps("session")) == 7
        before = store.runs.load("session")
        damage("run", "session", seq)(store)
        report = store.verify(repair=True)
        assert not any("made again" in step for step in report.repairs)
        assert store.verify().ok
        assert store.runs.load("session") == before
        with pytest.raises(KeyboardInterrupt):
            _pay(store, made, 4)
        assert made == [1, 2, 3, 4]

    def test_a_run_that_lost_its_journal_is_named(self, store: Store) -> None:
        made: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            _pay(store, made, 3)
        column("journal", "session")(store)
        assert any("run 'session': calls" in step for step in store.verify(repair=True).repairs)
        assert store.verify().ok

    def test_resume_is_deprecated_and_everything_is_read(self, store: Store) -> None:
        for name in "ab":
            fill(store.thread(name), 2)

        def stop(what: str, count: int) -> None:
            if (what, count) == ("checkpoints", 4):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.verify(progress=stop)
        with pytest.warns(DeprecationWarning, match="reads everything"):
            report = store.verify(resume=True)
        assert (report.ok, report.threads, report.checkpoints, report.skipped) == (True, 2, 4, 0)

    def test_a_store_that_is_only_read_is_not_repaired(self, store: Store, opener: Opener) -> None:
        fill(store.thread("t"), 2)
        column("thread", "t")(store)
        rows = stored(store)
        try:
            reader = opener(read_only=True)
        except Invalid:
            return  # this kind of store has no such thing
        with reader:
            assert not reader.verify().ok
            with pytest.raises(Unavailable) as caught:
                reader.verify(repair=True)
            assert caught.value.code == "unavailable.read_only"
        assert stored(store) == rows

    def test_a_repair_is_not_done_inside_a_transaction(self, store: Store) -> None:
        with store.transaction(), pytest.raises(Unavailable):
            store.verify(repair=True)


def _pay(store: Store, made: list[int], until: int) -> None:
    """Let a run make a call in each iteration, and interrupt it in the one with this number."""
    with store.run("session", agent="b", state={"n": 0, "messages": messages(5)}) as run:
        for _ in run.iterations():
            run.tool("pay", lambda: made.append(len(made) + 1))
            run.state["n"] += 1
            run.checkpoint()
            if run.state["n"] == until:
                raise KeyboardInterrupt


def _can_be_read(store: Store, states: dict[Place, Any]) -> None:
    """A new handle can read undamaged data."""
    for (space, name, seq), state in states.items():
        if space in ("thread", "aside"):
            record, _ = _row(store, space, name)
            thread = store.thread(name, aside=space == "aside")
            assert thread.load(log.checkpoint_id(record.uid, seq)).state == state
    for name in ("t", "large"):
        assert len(list(store.thread(name).history())) == len(store.thread(name))
    for listing in (store.threads, store.agents.list, store.runs.list):
        list(listing())
    assert len(store.agents.checkpoints("a")) == 2
    assert len(store.conversations.list("a")) + len(store.conversations.list("a", archived=True)) >= 1


def _named(store: Store, report: VerifyReport) -> set[Place]:
    backend = store._backend
    found: set[Place] = set()
    for damage in report.damaged:
        parsed = log.parse_id(damage.checkpoint_id)
        record = backend.thread_with_uid(parsed[0]) if parsed else None
        assert parsed is not None
        assert record is not None
        assert (record.name, record.space) == (damage.thread_id, damage.kind)
        found.add((record.space, record.name, parsed[1]))
    return found


def _same(store: Store, before: dict[Place, Any], rows: dict[Place, Row], named: set[Place]) -> None:
    """All that loaded loads, and is equal; no sound row was changed, but those of agent checkpoints."""
    now = loaded(store)
    for place, state in before.items():
        if place[0] != manifests.SPACE:
            assert now[place] == state, place
    there = stored(store)
    for place, row in rows.items():
        sound = place in before or (row.op not in log.CHECKPOINTS and place not in named)
        if place[0] != manifests.SPACE and sound:
            assert there[place] == row, place
