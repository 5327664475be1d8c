"""Agent checkpoints: made, listed, deleted, kept; guards; and those that a scheduler makes."""

from __future__ import annotations

import datetime as dt
import logging
import random
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Invalid, Message, NotFound
from tests.conformance.base import Suite, head
from tests.conformance.restore import begun, moved_on
from tests.support.scene import agent, contents, conversation, names, note, usage, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store
    from tests.conformance.base import Opener


def _long(id: str) -> Any:  # noqa: A002
    texts = [random.Random(f"{id} {n}").randbytes(500).hex() for n in range(100)]
    return conversation(id, *texts)


class AgentCheckpoints(Suite):
    """`checkpoint`, `checkpoints`, `delete_checkpoint`."""

    def test_agent_checkpoint_has_its_fields(self, opener: Opener) -> None:
        with opener() as store:
            first = begun(store)
            made = store.agents.checkpoint("a", "Before \0", description="why", kind="pre_operation")
            assert (made.agent_id, made.name, made.description) == ("a", "Before \0", "why")
            assert (made.kind, made.checkpoint_type, made.conversations) == ("pre_operation", "pre_operation", 2)
            assert made.created_at.tzinfo is dt.UTC
            sizes = [head(store.agents.thread("a")).size]
            sizes += [head(store.conversations.thread(name)).size for name in "cd"]
            assert made.size_bytes == sum(sizes)
            assert (first.name, first.description, first.kind) == ("first", None, "manual")
            assert first.id != made.id
            assert first.checksum == made.checksum  # nothing changed in between
            note(store, "a", "n", 2)
            assert store.agents.checkpoint("a", "third").checksum != made.checksum
        with opener() as store:
            third, *others = store.agents.checkpoints("a")
            assert (third.name, others) == ("third", [made, first])

    def test_invalid_checkpoint_arguments_are_refused(self, store: Store) -> None:
        store.agents.save(agent())
        bad: tuple[Callable[[Any], object], ...] = (
            lambda agents: agents.checkpoint("a", "x", kind="odd"),
            lambda agents: agents.checkpoint("a", None),
            lambda agents: agents.checkpoint("a", "x", description=5),
            lambda agents: agents.checkpoint("a", "x", keep=0),
            lambda agents: agents.checkpoint("a", "x", keep=-1),
        )
        for call in bad:
            with pytest.raises(Invalid):
                call(store.agents)
        store.conversations.save(conversation("x", agent_id="stateless"))
        with pytest.raises(NotFound):
            store.agents.checkpoint("stateless", "x")
        assert store.agents.checkpoints("a") == store.agents.checkpoints("stateless") == []

    def test_checkpoint_cost_depends_on_changed_threads(self, store: Store) -> None:
        store.agents.save(agent())
        for n in range(60):
            store.conversations.save(conversation(f"c{n}", "x" * 50))
        store.agents.checkpoint("a", "all")
        for n in range(5):
            store.conversations.append(f"c{n * 7}", Message.user("y"))
            before = usage(store).payload_bytes
            made = store.agents.checkpoint("a", str(n))
            assert usage(store).payload_bytes - before < 400
            assert made.conversations == 60
            assert store._backend.tips("a", touched=True) == []

    @pytest.mark.parametrize("which", ["newest", "oldest", "middle"])
    def test_one_goes_and_the_others_stay(self, store: Store, which: str) -> None:
        points, views = [begun(store)], [view(store, "a")]
        moved_on(store)
        for n in range(3):
            points.append(store.agents.checkpoint("a", str(n)))
            views.append(view(store, "a"))
            store.conversations.append("c", Message.user(str(n)))
            store.conversations.save(conversation(f"f{n}", "x"))
        at = {"newest": -1, "oldest": 0, "middle": 1}[which]
        gone = points.pop(at)
        views.pop(at)
        now = view(store, "a")
        assert store.agents.delete_checkpoint(gone.id) is True
        assert store.agents.delete_checkpoint(gone.id) is False
        store.gc()
        assert store.agents.checkpoints("a") == points[::-1]
        with pytest.raises(NotFound):
            store.agents.restore(gone.id)
        for point, wanted in zip(points, views, strict=True):
            store.agents.restore(point.id)
            assert view(store, "a") == wanted
            store.agents.undo("a")
            assert view(store, "a") == now
        made = store.agents.checkpoint("a", "new")
        assert made.conversations == len(now[1])
        store.agents.restore(made.id)
        assert view(store, "a") == now

    def test_checkpoint_keeps_a_deleted_conversation_stored(self, store: Store) -> None:
        store.agents.save(agent())
        empty = usage(store).payload_bytes
        store.conversations.save(_long("c"))
        points = [store.agents.checkpoint("a", str(n)) for n in range(2)]
        full = usage(store).payload_bytes
        assert full > empty + 40_000
        store.conversations.delete("c")
        for point in points:
            store.gc()
            assert usage(store).payload_bytes > empty + 40_000
            store.agents.delete_checkpoint(point.id)
        store.gc()
        assert usage(store).payload_bytes < empty + 4_000
        assert store.conversations.get("c") is None
        assert store.agents.checkpoint("a", "x").conversations == 0

    def test_rewound_then_deleted_conversation_comes_back_after_gc(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "first"))
        early = store.agents.checkpoint("a", "early")
        store.conversations.append("c", Message.user("dropped"))
        store.agents.restore(early.id)
        store.conversations.append("c", Message.user("kept"))
        late = store.agents.checkpoint("a", "late")
        store.agents.delete_checkpoint(early.id)
        store.agents.forget_undos("a")
        store.conversations.delete("c")
        store.gc()
        store.agents.restore(late.id)
        store.gc()
        assert contents(store, "c") == ["first", "kept"]
        (there,) = store.conversations.thread("c").history()
        assert there.id == head(store.conversations.thread("c")).id
        assert store.verify().ok

    def test_gc_keeps_data_for_undo(self, store: Store) -> None:
        store.agents.save(agent())
        made = store.agents.checkpoint("a", "x")
        store.conversations.save(_long("c"))
        before = view(store, "a")
        store.agents.restore(made.id)
        store.agents.delete_checkpoint(made.id)
        store.gc()
        store.agents.undo("a")
        assert view(store, "a") == before
        store.conversations.delete("c")
        store.gc()
        assert usage(store).payload_bytes < 8_000

    def test_gc_changes_nothing_that_can_be_restored(self, store: Store) -> None:
        made = begun(store)
        first = view(store, "a")
        store.gc()
        moved_on(store)
        store.gc()
        second = view(store, "a")
        for _ in range(2):
            store.agents.restore(made.id)
            store.gc()
            assert view(store, "a") == first
            store.agents.undo("a")
            store.gc()
            assert view(store, "a") == second
        assert store.verify().ok

    def test_keep_retains_the_newest_automatic_checkpoints(self, store: Store) -> None:
        store.agents.save(agent())
        store.agents.save(agent("b"))
        store.agents.checkpoint("b", "b", kind="automatic")
        store.agents.checkpoint("a", "by hand")
        for n in range(5):
            note(store, "a", "n", n)
            store.agents.checkpoint("a", str(n), kind="automatic", keep=2)
        assert names(store.agents.checkpoints("a")) == ["4", "3", "by hand"]
        store.agents.checkpoint("a", "risky", kind="pre_operation", keep=1)
        assert names(store.agents.checkpoints("a")) == ["risky", "4", "by hand"]
        assert names(store.agents.checkpoints("b")) == ["b"]
        store.gc()
        assert store.agents.restore(store.agents.checkpoints("a")[1].id).get_state("n") == 4
        store.agents.checkpoint("a", "5", kind="automatic")
        assert len(store.agents.checkpoints("a")) == 4


class Guarding(Suite):
    """`guard`: a checkpoint before what may go wrong."""

    def test_guard_leaves_a_checkpoint_from_before_the_block(self, store: Store) -> None:
        begun(store)
        with store.agents.guard("a", "upgrade", rollback=True) as made:
            moved_on(store)
        after = view(store, "a")
        assert (made.name, made.kind) == ("upgrade", "pre_operation")
        assert names(store.agents.checkpoints("a")) == ["upgrade", "first"]
        store.agents.restore(made.id)
        assert store.agents.load("a").get_state("n") == 1
        store.agents.undo("a")
        assert view(store, "a") == after

    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
    def test_with_rollback_an_exception_takes_everything_back(self, store: Store, error: type[BaseException]) -> None:
        begun(store)
        before = view(store, "a")
        with pytest.raises(error), store.agents.guard("a", "upgrade", rollback=True):
            moved_on(store)
            after = view(store, "a")
            raise error
        assert view(store, "a") == before
        kinds = [(made.name, made.kind) for made in store.agents.checkpoints("a")]
        assert [kind for _, kind in kinds] == ["recovery", "pre_operation", "manual"]
        assert "upgrade" in kinds[0][0]
        assert error.__name__ in (store.agents.checkpoints("a")[0].description or "")
        store.agents.undo("a")
        assert view(store, "a") == after

    def test_exception_without_rollback_changes_nothing(self, store: Store) -> None:
        begun(store)
        with pytest.raises(ZeroDivisionError), store.agents.guard("a", "upgrade"):
            moved_on(store)
            _ = 1 / 0
        assert contents(store, "c") == ["c one", "c two"]
        assert [made.kind for made in store.agents.checkpoints("a")] == ["pre_operation", "manual"]

    def test_guard_raises_an_exception_with_a_long_message(self, store: Store) -> None:
        begun(store)
        before = view(store, "a")
        with pytest.raises(ZeroDivisionError), store.agents.guard("a", "upgrade", rollback=True):
            moved_on(store)
            raise ZeroDivisionError("x" * 10_000)
        assert view(store, "a") == before
        assert store.agents.checkpoints("a")[0].kind == "recovery"

    def test_guard_raises_an_exception_whose_repr_fails(self, store: Store) -> None:
        class Mute(Exception):  # noqa: N818 - it is no error of ours
            def __repr__(self) -> str:
                raise ZeroDivisionError

        begun(store)
        before = view(store, "a")
        with pytest.raises(Mute), store.agents.guard("a", "upgrade", rollback=True):
            moved_on(store)
            raise Mute
        assert view(store, "a") == before
        (made, *_) = store.agents.checkpoints("a")
        assert (made.kind, made.description) == ("recovery", "rolled back: Mute")

    def test_guard_without_checkpoint_does_not_enter_the_block(self, store: Store) -> None:
        with pytest.raises(NotFound), store.agents.guard("nobody", "x", rollback=True):
            store.agents.save(agent("b"))
        assert store.agents.get("b") is None


class Scheduling(Suite):
    """`autocheckpoint`."""

    def test_first_automatic_checkpoints_are_made_at_once(self, store: Store) -> None:
        store.agents.save(agent())
        store.agents.save(agent("b"))
        began = time.monotonic()
        with store.agents.autocheckpoint(["a", "nobody", "b"], interval=dt.timedelta(hours=1)) as running:
            for name in ("a", "b"):
                (made,) = store.agents.checkpoints(name)
                assert re.fullmatch(r"Auto checkpoint \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", made.name)
                assert (made.kind, "utomatic" in (made.description or "")) == ("automatic", True)
            with pytest.raises(Invalid):
                running.start()
        assert time.monotonic() - began < 30
        running.stop()
        assert store.agents.checkpoints("nobody") == []
        assert len(store.agents.checkpoints("a")) == 1

    def test_scheduler_repeats_keeps_the_newest_and_stops(self, store: Store) -> None:
        store.agents.save(agent())
        store.agents.checkpoint("a", "by hand")
        with store.agents.autocheckpoint("a", interval=0.005, keep=2):
            _wait(lambda: store.agents.checkpoints("a")[0].id not in seen, seen := _ids(store))
            _wait(lambda: store.agents.checkpoints("a")[0].id not in seen, seen := _ids(store))
            _wait(lambda: store.agents.checkpoints("a")[0].id not in seen, seen := _ids(store))
        made = store.agents.checkpoints("a")
        assert [point.kind for point in made] == ["automatic", "automatic", "manual"]
        time.sleep(0.03)
        assert store.agents.checkpoints("a") == made

    def test_failed_checkpoint_is_reported_and_others_are_made(
        self, store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b"):
            store.agents.save(agent(name))
        told: list[tuple[str, str]] = []
        real = store.agents.checkpoint

        def failing(agent_id: str, name: str, **options: Any) -> object:
            if agent_id == "a":
                raise OSError("the disk is full")
            return real(agent_id, name, **options)

        monkeypatch.setattr(store.agents, "checkpoint", failing)
        with (
            caplog.at_level(logging.ERROR, "backtrail"),
            store.agents.autocheckpoint(["a", "b"], on_error=lambda who, error: told.append((who, str(error)))),
        ):
            pass
        assert told == [("a", "the disk is full")]
        assert "the disk is full" in caplog.text
        assert len(store.agents.checkpoints("b")) == 1

    def test_disabled_scheduler_does_nothing(self, store: Store) -> None:
        store.agents.save(agent())
        with store.agents.autocheckpoint("a", enabled=False, interval=0.001) as idle:
            assert idle.running is False
            time.sleep(0.01)
        assert store.agents.checkpoints("a") == []

    def test_closing_a_store_stops_its_schedulers(self, opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR, "backtrail"):
            with opener() as store:
                store.agents.save(agent())
                made = store.agents.autocheckpoint("a", interval=0.001)
                running = [made.running]
            running.append(made.running)
            time.sleep(0.02)
            assert running == [True, False]
        assert caplog.messages == []

    def test_interval_may_be_longer_than_a_thread_can_wait(self, store: Store) -> None:
        store.agents.save(agent())
        began = time.monotonic()
        with store.agents.autocheckpoint("a", interval=1e10) as running:
            time.sleep(0.01)
            assert running._thread is not None
            assert running._thread.is_alive()
        assert time.monotonic() - began < 30
        assert len(store.agents.checkpoints("a")) == 1

    def test_invalid_schedules_are_refused(self, store: Store) -> None:
        store.agents.save(agent())
        bad: tuple[dict[str, Any], ...] = ({"interval": 0}, {"interval": -1}, {"keep": 0}, {"interval": "x"})
        for options in bad:
            with pytest.raises(Invalid):
                store.agents.autocheckpoint("a", **options)
        nobody: tuple[Any, ...] = (None, 5, ["a", ""], ["a", None], b"a")
        for agent_ids in nobody:
            with pytest.raises(Invalid):
                store.agents.autocheckpoint(agent_ids)
        assert store.agents.checkpoints("a") == []


def _ids(store: Store) -> set[str]:
    return {point.id for point in store.agents.checkpoints("a")}


def _wait(happened: Callable[[], bool], _: object) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.001)
