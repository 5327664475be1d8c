"""Writes between two steps of another writer: each of these once lost or damaged data."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import backtrail
from backtrail.agents.checkpoints import Manifests
from backtrail.maintenance import gc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def between(store: backtrail.Store, method: str, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something right after the first call of one of the backend's methods."""
    original, done = getattr(store._backend, method), []

    def wrapped(*args: Any, **options: Any) -> Any:
        answer = original(*args, **options)
        if not done:
            done.append(True)
            action()
        return answer

    monkeypatch.setattr(store._backend, method, wrapped)


@pytest.mark.parametrize("both_collect", [True, False])
@pytest.mark.parametrize("method", ["newest", "rows", "thread", "thread_numbers", "chunk_page"])
def test_gc_spares_a_head_written_meanwhile(
    path: Path, method: str, both_collect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backtrail.open(path) as collector, backtrail.open(path) as writer:
        thread = writer.thread("t")
        thread.save({"l": [f"{i} " * 250 for i in range(200)]})
        thread.append("l", 1)

        def meanwhile() -> None:
            for i in range(70 if both_collect else 5):
                thread.append("l", "y" * 900 + str(i))
            thread.prune(keep_last=1)
            if both_collect:
                gc.collect_rows(writer._engine.session.reader, writer._backend.find_thread("thread", "t"))

        between(collector, method, meanwhile, monkeypatch)
        collector.gc()
        assert len(store_state(path)["l"]) == (271 if both_collect else 206)
        collector.gc()
        assert collector.verify().ok


def store_state(path: Path) -> Any:
    with backtrail.open(path) as fresh:
        return fresh.thread("t").load().state


def test_two_collections_at_once_raise_no_alarm(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with backtrail.open(path) as one, backtrail.open(path) as other:
        thread = one.thread("t")
        for i in range(3):
            thread.save({"l": [f"{i} {j} " * 200 for j in range(100)]})

        def meanwhile() -> None:
            thread.prune(keep_last=1)
            other.gc()

        between(one, "rows", meanwhile, monkeypatch)
        one.gc()
        assert one.verify().ok


def test_stored_append_is_acknowledged_beside_maintenance(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> int:
        raise backtrail.Unavailable("the disk is busy")

    monkeypatch.setattr(gc, "collect_rows", fails)
    with backtrail.open(path, max_checkpoints=2) as store:
        thread = store.thread("t")
        thread.save({"l": []})
        for i in range(130):
            thread.append("l", i)
        assert thread.load().state == {"l": list(range(130))}


def test_checkpoint_of_a_dropped_transaction_is_not_mistaken() -> None:
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save({"n": 0})
        dropped: list[backtrail.Checkpoint[Any]] = []
        with pytest.raises(RuntimeError), store.transaction():
            dropped += [thread.save({"n": "never stored"}), thread.load()]
            raise RuntimeError
        stored = store.thread("t").save({"n": 100})
        for checkpoint in dropped:
            assert checkpoint != stored
            with pytest.raises(backtrail.Conflict):
                thread.save({"n": "from it"}, expect=checkpoint)
            with pytest.raises(backtrail.NotFound):
                thread.load(checkpoint)
        with pytest.raises(backtrail.NotFound):
            dropped[1].state  # noqa: B018 - reading it is the test
        assert store.thread("t").load() == stored


def test_reads_in_a_dropped_transaction_still_count() -> None:
    with backtrail.open("memory://") as store:
        store.thread("t").save({"n": 0})
        thread = store.thread("t")
        with pytest.raises(RuntimeError), store.transaction():
            thread.load()
            raise RuntimeError
        store.thread("t").save({"n": 1})
        with pytest.raises(backtrail.Conflict):
            thread.save({"n": 10})


def test_concurrent_write_is_a_conflict_not_damage() -> None:
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save({"l": []})

        def others() -> None:
            for _ in range(3):
                store.thread("t").append("l", "theirs", label="theirs")

        with pytest.raises(backtrail.Conflict), store.transaction():
            thread.append("l", "mine")
            thread.append("l", "mine")
            worker = threading.Thread(target=others)
            worker.start()
            worker.join()
            thread.append("l", "mine")
            assert thread.load().state == {"l": ["mine"] * 3}
            assert [checkpoint.step for checkpoint in thread.history()] == [1, 2, 3, 4]
        assert thread.load().state == {"l": ["theirs"] * 3}


def test_failed_restore_leaves_nothing_in_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise backtrail.Conflict("somebody else was first")

    with backtrail.open("memory://") as store:
        store.agents.save(backtrail.AgentState("a", "A", "planner"))
        store.conversations.save(backtrail.Conversation("a", id="first"))
        made = store.agents.checkpoint("a", "before")
        monkeypatch.setattr(Manifests, "_record_after", fails)  # its last step: all the others have been taken
        with store.transaction():
            store.conversations.append("first", backtrail.Message.user("said"))
            with pytest.raises(backtrail.Conflict):
                store.agents.restore(made.id)
            assert store.conversations.info("first").message_count == 1
            store.conversations.append("first", backtrail.Message.user("said again"))
        assert store.conversations.info("first").message_count == 2
        with pytest.raises(backtrail.Invalid):
            store.agents.undo("a")
        assert store.verify().ok


def test_a_transaction_that_ends_in_another_thread_says_so() -> None:
    with backtrail.open("memory://") as store:
        transaction = store.transaction()
        transaction.__enter__()
        store.thread("t").save({"n": 1})
        raised: list[BaseException] = []

        def end() -> None:
            try:
                transaction.__exit__(None, None, None)
            except backtrail.Error as error:
                raised.append(error)

        other = threading.Thread(target=end)
        other.start()
        other.join()
        assert [type(error) for error in raised] == [backtrail.Invalid]
        assert store.thread("t").latest() is None
        with store.transaction():
            store.thread("t").save({"n": 2})
        assert store.thread("t").load().state == {"n": 2}


def test_save_after_a_delete_does_not_overwrite_a_new_thread() -> None:
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save({"n": 0})
        thread.delete()
        store.thread("t").save({"theirs": True})
        with pytest.raises(backtrail.Conflict):
            thread.save({"mine": True})


def test_undo_passes_over_what_has_outlived_its_time() -> None:
    with backtrail.open("memory://", ttl=100) as store:
        heads = store._engine.session.reader
        now = heads.clock()
        heads.clock = lambda: now
        thread = store.thread("t")
        for n in range(3):
            thread.save({"n": n})
        heads.clock = lambda: now + 200_000_000
        with pytest.raises(backtrail.Invalid):
            thread.undo()


def test_appending_to_a_long_text_rewrites_its_last_piece() -> None:
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        text = "".join(f"line {i} of a text\n" for i in range(60_000)) + "é"
        thread.save({"text": text})
        for token in (" and", " ü", "\n" * 3):
            text += token
            made = thread.append("text", token)
            assert made.stored < 100
        assert made.root == store.thread("whole").save({"text": text}).root
        assert store.thread("t").load().state == {"text": text}
        thread.append("text", "\ud800")
        assert store.thread("t").load().state == {"text": text + "\ud800"}


def test_a_long_list_of_tiny_items_has_few_open_ones() -> None:
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save({"l": list(range(100)) * 300})
        made = thread.append("l", 1)
        assert made.root == store.thread("other").save({"l": [*(list(range(100)) * 300), 1]}).root
        assert made.stored < 100
