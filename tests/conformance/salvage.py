"""Salvage: undamaged data works, before and after a repair.

No id is given twice, and no call is made again that a checkpoint knows of. What other processes have stored again while
a repair looked for damage stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import backtrail
from backtrail import AgentState, Conversation, Message, Policy
from backtrail.backends.port import Batch, NewThread
from backtrail.engine import log
from tests.conformance.base import Suite, fill, messages, storage
from tests.conformance.repair import _row as row_of
from tests.conformance.repair import (
    column,
    furnish,
    loaded,
    lost_newest,
    payload,
    stored,
    wrong_time,
)
from tests.conformance.typed import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from backtrail import Store, Thread
    from tests.conformance.base import Opener

_LARGE = {"messages": messages(200)}


class Salvaging(Suite):
    """Readable data before and after a repair."""

    def test_prune_skips_and_names_a_thread_without_head(self, store: Store) -> None:
        for name in "abc":
            fill(store.thread(name), 4)
        column("thread", "b")(store)
        rows = {place: row for place, row in stored(store).items() if place[1] == "b"}
        for dry_run in (True, False):
            report = store.prune(Policy(keep_last=1), dry_run=dry_run)
            assert (int(report), report.damaged) == (6, ("b",))
        assert {place: row for place, row in stored(store).items() if place[1] == "b"} == rows
        store.verify(repair=True)
        report = store.prune(Policy(keep_last=1))
        assert (int(report), report.damaged) == (2, ())

    @pytest.mark.parametrize("kept", ["keep_last", "keep_daily", "older_than"])
    def test_prune_does_not_go_by_rows_that_are_damaged(self, store: Store, kept: str) -> None:
        """They stay, and take the place of none that would stay without them."""
        thread = store.thread("t")
        made = fill(thread, 5)
        record, row = row_of(store, "thread", "t", 2)
        late = row._replace(created_at=row.created_at + (1 << 53 if kept == "keep_daily" else -(1 << 45)))
        assert store._backend.rewrite(record.no, [late]) == 1
        policy = {"keep_last": Policy(keep_last=4), "keep_daily": Policy(keep_daily=1)}.get(kept, Policy(older_than=60))
        report = thread.prune(policy)
        reasons = {checkpoint_id: why for checkpoint_id, _, why in report.kept}
        assert reasons[made[1].id] == ("damaged",)
        left = {"keep_last": [0, 2, 3, 4], "keep_daily": [4], "older_than": [0, 2, 3, 4]}[kept]
        assert reasons.keys() == {made[at].id for at in left} | {made[1].id}

    @pytest.mark.parametrize("lost", [1, 2, 3, 4], ids=lambda lost: f"{lost} rows")
    def test_no_call_that_a_checkpoint_knows_is_repeated(self, store: Store, lost: int) -> None:
        made: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            _paying(store, made, 3)
        _, newest = row_of(store, "journal", "session")
        for seq in range(newest.seq - lost + 1, newest.seq + 1):
            column("journal", "session", seq)(store)
        store.verify(repair=True)
        assert store.verify().ok
        _paying(store, made, 3, ends=True)
        assert made == [1, 2, 3]

    def test_a_repaired_journal_has_no_lease(self, store: Store) -> None:
        with store.run("session") as run:
            run.tool("one", lambda: 1)
            run.tool("two", lambda: 2)
        column("journal", "session")(store)  # with it, that the run was left
        assert store.verify(repair=True).repaired
        with store.run("session") as run:
            assert run.tool("one", lambda: 0) == 1

    def test_a_journal_is_repaired_without_its_classes(self, opener: Opener) -> None:
        with opener(types=[Place]) as store, opener() as other:
            with store.run("session", state={"seen": {Place("Lisbon"), Place("Porto")}}) as run:
                for i in run.iterations():
                    run.tool("t", int, i)
                    if i == 3:
                        run.halt("enough")
            column("journal", "session")(store)
            assert [each.kind for each in other.verify().damaged] == ["journal"]
            assert other.verify(repair=True).repaired
            assert other.verify().ok
            with store.run("session") as run:
                assert run.state == {"seen": {Place("Lisbon"), Place("Porto")}}

    def test_the_id_of_a_lost_row_is_not_reused(self, store: Store) -> None:
        furnish(store)
        lost = max(seq for _, _, seq in lost_newest(store))
        store.verify(repair=True)
        assert [message.content for message in store.conversations.load("c").messages] == ["hello", "again"]
        assert store.conversations.append("c", Message.user("more")).seq > lost
        assert [hit.conversation_id for hit in store.search("more")] == ["c"]
        assert store.conversations.thread("c").undo().seq < lost
        assert store.verify().ok

    def test_repair_resets_a_damaged_creation_time(self, store: Store) -> None:
        furnish(store)
        before = store.info("t")
        wrong_time(store)
        assert store.info("t") != before
        assert store.verify().faults == ("thread 't': its creation time is damaged",)
        store.verify(repair=True)
        assert store.info("t") == before

    # -- what is in view --------------------------------------------------------------------------

    @pytest.mark.parametrize("collected", [False, True], ids=["hidden", "collected"])
    @pytest.mark.parametrize("also", [False, True], ids=["the move", "and what it went to"])
    def test_all_that_loaded_loads_without_a_lost_move(self, store: Store, *, also: bool, collected: bool) -> None:
        thread = _moved(store.thread("t"))
        first, behind, last = (checkpoint.id for checkpoint in thread.history())
        assert thread.delete_checkpoint(behind)
        if collected:
            store.gc()
        column("thread", "t", 3)(store)
        if also:
            column("thread", "t", 1)(store)
        before = loaded(store)
        dry = store.verify()
        made = store.verify(repair=True)
        assert (made.damaged, made.repairs) == (dry.damaged, dry.repairs)
        assert any("a rewind or undo is lost" in step for step in made.repairs)
        for _ in range(2):
            assert store.verify().ok
            assert loaded(store) == before
            assert store.thread("t").load().state == _words(1, 3, 4)
            assert also or store.thread("t").load(first).state == _words(1)
            assert [checkpoint.id for checkpoint in store.thread("t").history()][-1] == last
            store.gc()

    @pytest.mark.parametrize(
        "damage", [{"op_id": b"xx"}, {"op_id": b"x" * 17}, {"base": 3}], ids=["short", "long", "base"]
    )
    def test_repaired_store_can_be_exported_and_imported(
        self, store: Store, tmp_path: Path, damage: dict[str, Any]
    ) -> None:
        with backtrail.open("memory://") as other:
            _moved(other.thread("t"))
            record, _ = row_of(other, "thread", "t")
            rows = other._backend.rows(record.no, [(1, log.MAX_SEQ)], payload=True)
        rows[2] = rows[2]._replace(**damage)
        store._backend.commit(Batch(threads=(NewThread(*record[1:]),), rows=tuple((-1, row) for row in rows)))
        assert not store.verify().ok
        store.verify(repair=True)
        assert store.verify().ok
        store.export(tmp_path / "export")
        with backtrail.open("memory://") as other:
            other.import_(tmp_path / "export")
            for each in (store, other):
                left = [checkpoint.state for checkpoint in each.thread("t").history()]
                assert left == [_words(1), _words(1, 3), _words(1, 3, 4)]

    # -- beside others ------------------------------------------------------------------------------

    def test_a_chunk_that_others_put_again_is_not_removed(self, store: Store) -> None:
        store.thread("a").save(_LARGE)
        store.thread("a").delete()
        _damage_chunk(store)

        def others() -> None:
            store.gc()
            store.thread("b").save(_LARGE)

        report = store.verify(repair=True, progress=_once("chunks", others))
        assert len(report.chunks) == 1
        assert store.thread("b").load().state == _LARGE
        assert store.verify().ok

    def test_repair_keeps_a_chunk_put_after_its_last_look(self, store: Store) -> None:
        store.thread("a").save(_LARGE)
        store.thread("a").delete()
        address, sound = _damage_chunk(store)

        def others() -> None:
            storage(store).remove_chunks([address], 1 << 40)
            storage(store).commit(Batch(chunks=((address, sound),)))

        with _before_removal(store, others):
            store.verify(repair=True)
        assert storage(store).chunks([address]) == {address: sound}
        assert store.verify().ok

    def test_repair_removes_a_damaged_chunk_that_a_writer_touched(self, store: Store) -> None:
        """A checkpoint with a lost chunk is named as damaged; saving the same content repairs it."""
        store.thread("a").save(_LARGE)
        store.thread("a").delete()
        address, _ = _damage_chunk(store)
        with _before_removal(store, lambda: store.thread("b").save(_LARGE)):
            store.verify(repair=True)
        assert not storage(store).present([address])
        assert [damage.thread_id for damage in store.verify().damaged] == ["b"]
        store.thread("c").save(_LARGE)
        assert store.verify().ok
        assert store.thread("b").load().state == store.thread("c").load().state == _LARGE

    def test_a_checkpoint_that_loads_again_is_not_given_up(self, store: Store) -> None:
        thread = store.thread("a")
        made = thread.save(_LARGE)
        fill(thread, 2)
        _remove_chunk(store)
        rows = stored(store)
        report = store.verify(repair=True, progress=_once("chunks", lambda: store.thread("b").save(_LARGE)))
        assert [damage.checkpoint_id for damage in report.damaged] == [made.id]
        assert stored(store).items() >= rows.items()
        assert store.thread("a").load(made.id).state == _LARGE
        assert store.verify().ok

    def test_repair_writes_off_only_lost_data(self, store: Store) -> None:
        thread = store.thread("a")
        made = [thread.save(_LARGE), *fill(thread, 3)]
        payload("thread", "a", 3)(store)
        _remove_chunk(store)
        report = store.verify(repair=True, progress=_once("chunks", lambda: store.thread("b").save(_LARGE)))
        assert {damage.checkpoint_id for damage in report.damaged} >= {made[0].id, made[2].id}
        left = [checkpoint.id for checkpoint in store.thread("a").history()]
        assert made[0].id in left
        assert made[2].id not in left
        assert store.thread("a").load(made[0].id).state == _LARGE
        assert store.verify().ok

    def test_damage_during_a_repair_is_named_and_written_off(self, store: Store) -> None:
        furnish(store)
        store.conversations.append("c", Message.user("more"))
        column("conversation", "c")(store)
        lost = row_of(store, "conversation", "c", 1)
        report = store.verify(repair=True, progress=_once("chunks", lambda: payload("conversation", "c", 1)(store)))
        assert log.checkpoint_id(lost[0].uid, 1) in {damage.checkpoint_id for damage in report.damaged}
        assert store.verify().ok
        assert [each.conversations for each in store.agents.checkpoints("a")] == [1, 1]

    def test_agent_checkpoint_keeps_threads_that_load_again(self, store: Store) -> None:
        said = [Message.user(f"{n} {'word ' * 60}") for n in range(200)]
        store.agents.save(AgentState("a", "Ada", "a-model"))
        store.conversations.save(Conversation("a", id="c", messages=said))
        first = store.agents.checkpoint("a", "first")
        store.conversations.delete("c")
        _remove_chunk(store)
        rows = stored(store)

        def others() -> None:
            store.conversations.save(Conversation("a", id="d", messages=said))

        report = store.verify(repair=True, progress=_once("chunks", others))
        assert {damage.kind for damage in report.damaged} == {"conversation", "checkpoint"}
        assert stored(store).items() >= rows.items()
        assert store.verify().ok
        store.gc()
        store.agents.restore(first.id)
        assert store.conversations.load("c").messages == said


def _words(*numbers: int) -> dict[str, Any]:
    return {"text": "some words that are there " * 9, "l": list(numbers)}


def _moved(thread: Thread[Any]) -> Thread[Any]:
    """Save 1, append 2, go back, which is row 3, and append 3 and 4: each is stored as a change of the one before."""
    thread.save(_words(1))
    thread.append("l", 2)
    thread.rewind(1)
    thread.append("l", 3)
    thread.append("l", 4)
    return thread


def _chunk(store: Store) -> tuple[bytes, bytes]:
    ((address, _), *_) = store._backend.chunk_page(b"", 1)
    return address, storage(store).chunks([address])[address]


def _remove_chunk(store: Store) -> tuple[bytes, bytes]:
    address, sound = _chunk(store)
    assert store._backend.remove_chunks([address], 1 << 40) > 0
    return address, sound


def _damage_chunk(store: Store) -> tuple[bytes, bytes]:
    address, sound = _remove_chunk(store)
    storage(store).commit(Batch(chunks=((address, b"\0damaged"),)))
    return address, sound


def _once(when: str, others: Callable[[], object]) -> Callable[[str, int], None]:
    """Return a progress callback that acts the first time it gets this word."""
    done: list[str] = []

    def progress(what: str, _: int) -> None:
        if what == when and not done:
            done.append(what)
            others()

    return progress


def _before_removal(store: Store, others: Callable[[], object]) -> Any:
    """Let others do something just before chunks are removed, once."""
    remove, turn = store._backend.remove_chunks, _once("removal", others)

    def removing(digests: Sequence[bytes], before_epoch: int) -> int:
        turn("removal", 1)
        return remove(digests, before_epoch)

    return mock.patch.object(store._backend, "remove_chunks", removing)


def _paying(store: Store, made: list[int], until: int, *, ends: bool = False) -> None:
    """Let a run make a call in each iteration, up to this number, and interrupt it in the last one, or end it."""
    with store.run("session", agent="b", state={"n": 0, "messages": messages(5)}) as run:
        for _ in run.iterations():
            if run.state["n"] == until:
                return
            run.tool("pay", lambda: made.append(len(made) + 1))
            run.state["n"] += 1
            run.checkpoint()
            if run.state["n"] == until and not ends:
                raise KeyboardInterrupt
