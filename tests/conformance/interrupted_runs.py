"""Interrupted maintenance: at any point, the store is sound, and another call completes the work."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import backtrail
from backtrail import AgentState, Conversation, Invalid, Message
from backtrail.engine import manifests
from tests.conformance.base import Suite, fill, messages
from tests.conformance.repair import DAMAGE, column, loaded, payload, stored
from tests.support.sealing import open_copy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backtrail import AgentCheckpoint, Store

    Progress = Callable[[str, int], None]

ENOUGH = 60
"""No chore of this small store tells of its progress so often."""


class Stop(BaseException):
    """As a KeyboardInterrupt: no handler of exceptions stops it."""


class _Stopping:
    """Tells of progress, and stops what does at a certain call, or at one with a certain word."""

    def __init__(self, at: int, word: str = "") -> None:
        self._left = at
        self._word = word

    def __call__(self, what: str, count: int) -> None:
        assert what
        assert count >= 0
        self._left -= self._word in ("", what)
        if self._left == 0:
            raise Stop


def _verify(store: Store, _: Path, progress: Progress) -> None:
    assert store.verify(progress=progress).ok


def _repair(store: Store, _: Path, progress: Progress) -> None:
    store.verify(repair=True, progress=progress)
    assert store.verify().ok


def _gc(store: Store, _: Path, progress: Progress) -> None:
    store.gc(progress=progress)


def _prune(store: Store, _: Path, progress: Progress) -> None:
    store.prune(keep_last=3, progress=progress)


def _reindex(store: Store, _: Path, progress: Progress) -> None:
    store.reindex(progress=progress)
    assert store.search("hello")


def _migrate(store: Store, _: Path, progress: Progress) -> None:
    store.migrate(progress=progress)


def _export(store: Store, path: Path, progress: Progress) -> None:
    store.export(path / "export", progress=progress)
    (path / "export").unlink()


def _import(store: Store, path: Path, progress: Progress) -> None:
    """Add a thread that another store has."""
    file = path / "other"
    if not file.exists():
        with backtrail.open("memory://") as other:
            other.thread(f"imported {len(list(store.threads()))}").save({"messages": messages(20)})
            other.export(file)
    store.import_(file, progress=progress)
    file.unlink()


def _copy(store: Store, _: Path, progress: Progress) -> None:
    with backtrail.open("memory://") as other:
        try:
            backtrail.copy(store, other, progress=progress)
        finally:
            assert other.verify().ok
        assert loaded(other).keys() == loaded(store).keys()


def _backup(store: Store, path: Path, progress: Progress) -> None:
    """Make a backup; if that is stopped, nothing is left of it."""
    place = path / "backups"
    try:
        store.backup(place / "one", progress=progress)
    except Stop:
        assert not [*place.iterdir()]
        raise
    with open_copy(store, place / "one", read_only=True) as saved:
        assert loaded(saved).items() <= loaded(store).items()  # more may have come since
    shutil.rmtree(place)


CHORES: dict[str, Callable[[Store, Path, Progress], None]] = {
    "verify": _verify,
    "repair": _repair,
    "gc": _gc,
    "prune": _prune,
    "reindex": _reindex,
    "migrate": _migrate,
    "export": _export,
    "import": _import,
    "copy": _copy,
    "backup": _backup,
}


class Interrupting(Suite):
    """Each chore, stopped at each of its signs of life."""

    @pytest.mark.parametrize("chore", CHORES)
    def test_interrupted_maintenance_leaves_a_sound_store(self, store: Store, tmp_path: Path, chore: str) -> None:
        store.thread("t").save({"messages": messages(3)})
        store.thread("t").save({"n": 1})
        store.conversations.save(Conversation("a", id="c", messages=[Message.user("hello")]))
        stride = 4 if chore in ("copy", "backup") else 1  # of an export and an import, which are stopped everywhere
        last = next(at for at in itertools.count(1, stride) if not self._stopped(store, tmp_path, chore, at))
        assert last > 1
        assert store.verify().ok

    @pytest.mark.parametrize("chore", CHORES)
    def test_progress_callbacks_use_the_store_except_during_import(
        self, store: Store, tmp_path: Path, chore: str
    ) -> None:
        _more_to_do(store, 1)
        store.conversations.save(Conversation("a", id="c", messages=[Message.user("hello")]))
        log = store.thread("log")
        log.save({"l": []})
        kept: list[str] = []
        refused: list[str] = []

        def tell(what: str, count: int) -> None:
            uses: list[Callable[[], object]] = [
                lambda: kept.append(log.append("l", [what, count]).id),
                log.load,
                store.stats,
                store.runs.list,
            ]
            if chore == "import" and what == "rows":
                for use in (*uses, store.transaction().__enter__, store.run("r").__enter__):
                    with pytest.raises(Invalid, match="after it") as caught:
                        use()
                    refused.append(caught.value.code)
            elif len(kept) < ENOUGH:
                for use in uses:
                    use()

        if chore == "copy":
            with backtrail.open("memory://") as other:
                backtrail.copy(store, other, progress=tell)
        else:
            CHORES[chore](store, tmp_path, tell)
        assert kept
        assert [log.load(made).id for made in kept] == kept
        assert refused == ["invalid.progress"] * 6 * (chore == "import")
        assert store.verify().ok

    @pytest.mark.parametrize("chore", [*CHORES, "search"])
    def test_bad_progress_argument_is_refused_first(self, store: Store, tmp_path: Path, chore: str) -> None:
        _more_to_do(store, 1)
        store.export(tmp_path / "sound")
        store.search("hello")
        fill(store.thread("t"), 2)
        column("thread", "t")(store)
        there, before = sorted(tmp_path.iterdir()), _all_of(store)
        wrong: Any = 5
        calls: dict[str, Callable[[], object]] = {
            "verify": lambda: store.verify(progress=wrong),
            "repair": lambda: store.verify(repair=True, progress=wrong),
            "gc": lambda: store.gc(progress=wrong),
            "prune": lambda: store.prune(keep_last=1, progress=wrong),
            "reindex": lambda: store.reindex(progress=wrong),
            "migrate": lambda: store.migrate(progress=wrong),
            "export": lambda: store.export(tmp_path / "new", progress=wrong),
            "import": lambda: store.import_(tmp_path / "sound", progress=wrong),
            "copy": lambda: backtrail.copy(store, tmp_path / "copy.db", progress=wrong),
            "backup": lambda: store.backup(tmp_path / "copy.db", progress=wrong),
            "search": lambda: store.search("hello", progress=wrong),
        }
        with pytest.raises(Invalid, match="progress must be a callable") as caught:
            calls[chore]()
        assert caught.value.code == "invalid.argument"
        assert sorted(tmp_path.iterdir()) == there
        assert _all_of(store) == before

    def _stopped(self, store: Store, path: Path, chore: str, at: int) -> bool:
        """Do the chore, stopped at that sign of life; then look at the store, and do it to its end."""
        assert at < ENOUGH
        _more_to_do(store, at)
        if chore == "repair":
            DAMAGE["the head"](store)
            DAMAGE["a chunk that nothing needs"](store)
        before = loaded(store)
        try:
            CHORES[chore](store, path, _Stopping(at))
        except Stop:
            stopped = True
        else:
            stopped = False
        if chore != "repair":
            assert store.verify().ok
        now = loaded(store)
        assert now.items() <= before.items() if chore == "prune" else before.items() <= now.items()
        assert store.thread("more").append("l", at).state["l"][-1] == at
        CHORES[chore](store, path, _Stopping(-1))
        return stopped

    @pytest.mark.parametrize(
        ("done", "damage", "seq"),
        [("", payload, 2), ("checkpoint", payload, 4), ("checkpoint undo", column, 5)],
        ids=["what an undo goes back to", "behind a restore", "an undo"],
    )
    def test_stopped_repair_of_agent_checkpoints_is_resumed(
        self, store: Store, done: str, damage: Callable[[str, str, int], Callable[[Store], object]], seq: int
    ) -> None:
        for at in itertools.count(1):
            agent, first = f"agent {at}", _restored(store, f"agent {at}", done.split())
            damage(manifests.SPACE, agent, seq)(store)
            stopping = _Stopping(at, "repairs")
            try:
                told = store.verify(repair=True, progress=stopping).repairs
            except Stop:
                sound = store.verify().ok
                assert store.verify(repair=True).repaired is not sound
            else:
                assert any(agent in step and "no longer be undone" in step for step in told)
                break
            self._goes_on(store, agent, first)
        assert at > 2
        store.gc()
        assert store.verify().ok

    def _goes_on(self, store: Store, agent: str, first: AgentCheckpoint) -> None:
        """All that can be done with an agent's checkpoints is done."""
        with suppress(Invalid):  # there may be no restore any more that could be undone
            store.agents.undo(agent, force=True)
        store.conversations.append(agent, Message.user("more"))
        now = store.conversations.load(agent)
        store.agents.restore(first.id)
        assert [message.content for message in store.conversations.load(agent).messages] == ["hello"]
        store.agents.undo(agent)
        assert store.conversations.load(agent) == now
        last = store.agents.checkpoint(agent, "last")
        assert store.conversations.load(agent, at=last) == now


def _restored(store: Store, agent: str, done: list[str]) -> AgentCheckpoint:
    """Make an agent with a checkpoint, restore that, and do more; return the checkpoint."""
    store.agents.save(AgentState(agent, "Ada", "a-model"))
    store.conversations.save(Conversation(agent, id=agent, messages=[Message.user("hello")]))
    made = store.agents.checkpoint(agent, "first")
    store.conversations.append(agent, Message.user("again"))
    store.agents.restore(made.id)
    for what in done:
        if what == "checkpoint":
            store.agents.checkpoint(agent, "second")
        else:
            store.agents.undo(agent)
    return made


def _more_to_do(store: Store, at: int) -> None:
    """Add data for gc, prune and the index; the same amount each time."""
    thread: backtrail.Thread[Any] = store.thread("more")
    thread.save({"l": [], "messages": messages(3, start=at)})
    store.thread("gone").save({"messages": messages(3, start=1000 + at)})
    store.thread("gone").delete()
    thread.prune(keep_last=3)


def _all_of(store: Store) -> Any:
    """Return all rows, chunks and lists of the index."""
    backend = store._backend
    lists = {no: backend.indexed(no) for no in backend.thread_numbers(0, 100)}
    return stored(store), backend.chunk_page(b"", 100), lists, backend.unindexed(0, 100)


def _raise() -> None:
    raise Stop
