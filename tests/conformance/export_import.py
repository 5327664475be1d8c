"""Exports and imports: an export is a snapshot; an import adds all of it, once, or nothing."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import backtrail
from backtrail import Conflict, Invalid, Message, NotFound, Unavailable
from backtrail.maintenance import gc
from tests.conformance.base import Suite, changing, fill, head, ids, messages, states
from tests.support.places import in_memory
from tests.support.sample_store import everything, furnish, logs
from tests.support.scene import contents, view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from backtrail import Store, Thread
    from backtrail.backends.port import ThreadRecord
    from tests.support.sample_store import Contents


@functools.cache
def _furnished(directory: Path) -> tuple[Path, Contents]:
    """Export a memory store that has every kind of data; cached."""
    with backtrail.open("memory://") as store:
        furnish(store)
        path = directory / "furnished"
        store.export(path)
        return path, everything(store)


class _Moving(Suite):
    @pytest.fixture
    def other(self) -> Iterator[Store]:
        with in_memory() as opener, opener() as store:
            yield store

    @pytest.fixture
    def furnished(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
        return _furnished(tmp_path_factory.getbasetemp())


class Exporting(_Moving):
    """`export`: from this store into another one."""

    def test_everything_that_is_here_comes_to_another_store(self, store: Store, other: Store, tmp_path: Path) -> None:
        furnish(store)
        report = store.export(tmp_path / "one")
        made = other.import_(tmp_path / "one")
        assert everything(other) == everything(store)
        assert other.verify().ok
        assert (made.id, made.threads, made.rows) == (report.id, report.threads, report.rows)
        assert made.threads == made.created == len(everything(store))
        assert report.bytes == (tmp_path / "one").stat().st_size
        assert other.export(tmp_path / "two").checkpoints == report.checkpoints

    def test_an_export_beside_writers_is_one_moment(self, store: Store, other: Store, tmp_path: Path) -> None:
        done, meanwhile = changing(store)
        before = everything(store)
        store.export(tmp_path / "one", progress=meanwhile)
        assert done == ["threads"]
        assert everything(store) != before
        other.import_(tmp_path / "one")
        assert everything(other) == before
        assert head(other.thread("c")).state == {"messages": messages(300)}

    def test_an_export_of_named_threads_holds_only_them(self, store: Store, other: Store, tmp_path: Path) -> None:
        furnish(store)
        store.export(tmp_path / "one", threads=["trip", "session", "c"])
        other.import_(tmp_path / "one")
        wanted = {("thread", "trip"), ("aside", "trip"), ("run", "session"), ("journal", "session")}
        assert logs(other) == {
            name: log for name, log in logs(store).items() if name in {*wanted, ("conversation", "c")}
        }
        assert not [
            tag for *_, tags in everything(other).values() for words in tags.values() for tag in words if "@" in tag
        ]
        assert other.verify().ok
        other.gc()
        assert contents(other, "c") == ["hello", "world", "later"]

    def test_kind_selects_among_equal_ids(self, store: Store, other: Store, tmp_path: Path) -> None:
        furnish(store)
        fill(store.thread("c"), 2)
        fill(store.thread("session"), 1)
        whole = logs(store)
        for kind, name, wanted in (
            ("thread", "c", {("thread", "c")}),
            ("conversation", "c", {("conversation", "c")}),
            ("run", "session", {("run", "session"), ("journal", "session")}),
        ):
            store.export(tmp_path / kind, threads=[name], kind=kind)
            before = set(logs(other))
            other.import_(tmp_path / kind)
            assert set(logs(other)) - before == wanted
        assert all(whole[name] == log for name, log in logs(other).items())
        with pytest.raises(NotFound, match="no run 'c'"):
            store.export(tmp_path / "none", threads=["c"], kind="run")
        for wrong in ({"kind": "run"}, {"kind": "agent", "threads": ["a"]}, {"kind": "run", "agent": "a"}):
            options: dict[str, Any] = wrong
            with pytest.raises(Invalid):
                store.export(tmp_path / "none", **options)

    def test_an_agent_export_holds_all_that_is_its_own(self, store: Store, other: Store, tmp_path: Path) -> None:
        furnish(store)
        store.export(tmp_path / "one", agent="a")
        other.import_(tmp_path / "one")
        assert sorted(everything(other)) == [
            ("agent", "a"),
            ("checkpoint", "a"),
            ("conversation", "c"),
            ("conversation", "deleted"),
            ("journal", "session"),
            ("run", "session"),
            ("thread", "forked"),
            ("thread", "trip"),
        ]
        assert view(other, "a") == view(store, "a")
        other.gc()
        assert [made.id for made in other.agents.checkpoints("a")] == [c.id for c in store.agents.checkpoints("a")]
        other.agents.restore(other.agents.checkpoints("a")[-1].id)
        assert contents(other, "deleted") == ["this comes back"]
        assert contents(other, "c") == ["hello", "world"]

    def test_export_of_missing_ids_is_not_found(self, store: Store, tmp_path: Path) -> None:
        fill(store.thread("a"), 1)
        for wrong, error in (
            ({"threads": ["a", "b"]}, NotFound),
            ({"agent": "a"}, NotFound),
            ({"since": tmp_path / "none"}, NotFound),
            ({"since": "0" * 32}, NotFound),
            ({"threads": "a"}, Invalid),
            ({"threads": []}, Invalid),
            ({"threads": [1]}, Invalid),
            ({"agent": "a", "threads": ["a"]}, Invalid),
        ):
            options: dict[str, Any] = wrong
            with pytest.raises(error):
                store.export(tmp_path / "one", **options)
        for path in (tmp_path, "", "a\0b", 1):
            with pytest.raises(Invalid):
                store.export(path)  # type: ignore[arg-type]
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith((".backtrail", "one"))]

    def test_import_does_not_overwrite_other_threads(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "one").write_text("mine")
        with pytest.raises(Conflict) as caught:
            store.export(tmp_path / "one")
        assert caught.value.code == "conflict.exists"
        assert (tmp_path / "one").read_text() == "mine"

    def test_an_export_that_is_interrupted_leaves_nothing(self, store: Store, tmp_path: Path) -> None:
        furnish(store)

        def stop(_: str, count: int) -> None:
            if count == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.export(tmp_path / "exports" / "one", progress=stop)
        assert not [*(tmp_path / "exports").iterdir()]
        store.export(tmp_path / "exports" / "one")

    def test_chunk_saved_again_after_gc_is_exported_again(self, store: Store, other: Store, tmp_path: Path) -> None:
        _comes_back(store, other, tmp_path)

    def test_it_is_not_done_inside_a_transaction(self, store: Store, tmp_path: Path) -> None:
        store.export(tmp_path / "one")
        with store.transaction():
            for call in (store.export, store.import_, store.backup):
                with pytest.raises(Unavailable) as caught:
                    call(tmp_path / "two")
                assert caught.value.code == "unavailable.transaction"


class Importing(_Moving):
    """`import_`: into this store from another one."""

    def test_everything_that_is_elsewhere_comes_here(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        path, wanted = furnished
        seen: list[str] = []
        report = store.import_(path, progress=lambda what, _: seen.append(what))
        assert everything(store) == wanted
        assert store.verify().ok
        assert list(dict.fromkeys(seen)) == ["bytes", "threads", "rows"]
        assert report.checkpoints > 50
        assert report.changed

    def test_imported_threads_can_be_continued(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        store.import_(furnished[0])
        trip: Thread[Any] = store.thread("trip")
        assert trip.latest() == trip.load("@")
        assert len(trip.redo().state["messages"]) == 31
        assert trip.undo().state["messages"][-1]["content"] == "another way"
        assert ids(trip.find(tag="x")) == ids(c for c in trip.history() if "x" in c.tags)
        assert trip.append("messages", "one more").step == head(trip).step
        assert len(store.thread("pruned")) == 3
        assert store.thread("pruned").undo().state["n"] == 28
        assert store.thread("again").save({"n": 3}).step == 2
        assert store.thread("gone").save({"n": 2}).step == 1
        store.agents.restore(store.agents.checkpoints("a")[-1].id)
        assert contents(store, "deleted") == ["this comes back"]
        store.agents.undo("a")
        assert [hit.conversation_id for hit in store.search("later")] == ["c"]
        assert [each.state["state"] for each in store.runs.steps("session")][-1] == {"city": "CITY 3"}
        assert store.runs.load("session").status.name == "completed"
        store.gc()
        assert store.verify().ok

    def test_to_import_twice_changes_nothing(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        store.import_(furnished[0])
        before, usage = everything(store), store._backend.usage()
        report = store.import_(furnished[0])
        assert (report.created, report.extended, report.rows, report.chunks) == (0, 0, 0, 0)
        assert not report.changed
        assert everything(store) == before
        assert store._backend.usage()._replace(stored_bytes=0) == usage._replace(stored_bytes=0)

    def test_import_keeps_newer_local_rows(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        store.import_(furnished[0])
        store.thread("trip").set("n", 7)
        store.thread("forked").untag("@", "forked")
        store.thread("forked").set("n", 8)
        before = everything(store)
        assert not store.import_(furnished[0]).changed
        assert everything(store) == before

    def test_import_continues_existing_threads(self, store: Store, other: Store, tmp_path: Path) -> None:
        furnish(other)
        other.export(tmp_path / "0")
        store.import_(tmp_path / "0")
        for at, change in enumerate(_CHANGES, 1):
            change(other)
            other.export(tmp_path / f"{at}")
            store.import_(tmp_path / f"{at}")
            assert _shown(store) == _shown(other), change
            assert store.verify().ok
        store.gc()
        assert _shown(store) == _shown(other)

    def test_continuing_export_has_only_new_data(self, store: Store, other: Store, tmp_path: Path) -> None:
        furnish(other)
        last = other.export(tmp_path / "0")
        store.import_(tmp_path / "0")
        for at, change in enumerate(_CHANGES, 1):
            change(other)
            made = other.export(tmp_path / f"{at}", since=last.id if at % 2 else last.path)
            assert made.since == last.id
            assert made.bytes < 20_000
            store.import_(tmp_path / f"{at}")
            assert _shown(store) == _shown(other), change
            assert store.verify().ok
            assert not store.import_(tmp_path / f"{at}").changed
            last = made
        store.gc()
        assert _shown(store) == _shown(other)
        assert other.export(tmp_path / "none", since=last.path).threads == 0

    def test_hiding_or_tagging_alone_is_exported(self, store: Store, other: Store, tmp_path: Path) -> None:
        thread = other.thread("t")
        fill(thread, 4)
        other.export(tmp_path / "0")
        assert store.import_(tmp_path / "0").marked == 0
        thread.prune(keep_last=2)
        thread.tag("@", "new", "newer")
        other.export(tmp_path / "1", since=tmp_path / "0")
        report = store.import_(tmp_path / "1")
        assert (report.rows, report.marked, report.changed) == (0, 3, True)
        again = store.import_(tmp_path / "1")
        assert (again.marked, again.changed) == (0, False)

    def test_import_requires_the_continued_export(self, store: Store, other: Store, tmp_path: Path) -> None:
        fill(other.thread("a"), 3)
        first = other.export(tmp_path / "1")
        fill(other.thread("a"), 3)
        second = other.export(tmp_path / "2", since=first.path)
        other.thread("b").save({"n": 1})
        fill(other.thread("a"), 3)
        other.export(tmp_path / "3", since=second.path)
        with pytest.raises(NotFound, match=first.id):
            store.import_(tmp_path / "2")
        assert everything(store) == {}
        store.import_(tmp_path / "1")
        before = everything(store)
        with pytest.raises(NotFound, match=second.id) as caught:
            store.import_(tmp_path / "3")
        assert caught.value.code == "not_found.export"
        assert everything(store) == before
        store.import_(tmp_path / "2")
        store.import_(tmp_path / "3")
        assert everything(store) == everything(other)

    def test_a_continuing_file_of_new_threads_needs_its_predecessor(
        self, store: Store, other: Store, tmp_path: Path
    ) -> None:
        other.thread("a").save({"messages": messages(300)})
        first = other.export(tmp_path / "1")
        other.thread("a").append("messages", "more")
        second = other.export(tmp_path / "2", since=first.path)
        other.thread("b").save({"n": 1})
        third = other.export(tmp_path / "3", since=second.path)
        other.thread("a").fork("c")
        other.export(tmp_path / "4", since=third.path)
        for name, needs in (("3", second), ("4", third)):
            with pytest.raises(NotFound) as caught:
                store.import_(tmp_path / name)
            assert (caught.value.code, caught.value.details["needs"]) == ("not_found.export", needs.id)
        assert everything(store) == {}
        store.import_(tmp_path / "1")
        with pytest.raises(NotFound, match=second.id):
            store.import_(tmp_path / "3")
        store.import_(tmp_path / "2")
        store.import_(tmp_path / "3")
        store.thread("a").delete()
        store.gc()
        before = everything(store)
        with pytest.raises(NotFound, match="gc removed them") as caught:
            store.import_(tmp_path / "4")
        assert caught.value.code == "not_found.export"
        assert everything(store) == before

    def test_continuing_exports_survive_pruning_and_collecting(
        self, store: Store, other: Store, tmp_path: Path
    ) -> None:
        _comes_back(other, store, tmp_path)

    def test_rows_on_pruned_ones_need_a_whole_export(self, store: Store, other: Store, tmp_path: Path) -> None:
        thread: Thread[Any] = other.thread("a")
        thread.save({"messages": messages(300)})
        thread.save({"n": 1})
        first = other.export(tmp_path / "1")
        store.import_(tmp_path / "1")
        store.thread("a").prune(keep_last=1)
        store.gc()
        thread.save({"messages": messages(300)})
        other.export(tmp_path / "2", since=first.path)
        before = everything(store)
        with pytest.raises(Conflict, match="without since=") as caught:
            store.import_(tmp_path / "2")
        assert caught.value.code == "conflict.import"
        assert everything(store) == before
        other.export(tmp_path / "whole")
        store.import_(tmp_path / "whole")
        assert head(store.thread("a")).state == {"messages": messages(300)}

    def test_another_thread_under_the_same_id_is_a_conflict(
        self, store: Store, furnished: tuple[Path, Contents]
    ) -> None:
        store.thread("forked").save({"mine": True})
        before = everything(store)
        with pytest.raises(Conflict, match="forked") as caught:
            store.import_(furnished[0])
        assert caught.value.code == "conflict.exists"
        assert caught.value.details["thread"] == "forked"
        assert everything(store) == before

    def test_a_diverged_thread_is_a_conflict_that_names_it(self, store: Store, other: Store, tmp_path: Path) -> None:
        fill(other.thread("a"), 3)
        other.thread("new").save({"n": 1})
        other.export(tmp_path / "1", threads=["a"])
        store.import_(tmp_path / "1")
        store.thread("a").save({"mine": True})
        for at in (1, 2):  # as many rows as here, and more
            other.thread("a").save({"theirs": True})
            other.export(tmp_path / f"ahead {at}")
        other.thread("a").rewind(1)
        other.export(tmp_path / "moved")
        for path in ("ahead 1", "ahead 2", "moved"):
            before = everything(store)
            with pytest.raises(Conflict, match="'a'") as caught:
                store.import_(tmp_path / path)
            assert caught.value.code == "conflict.import"
            assert everything(store) == before
            store.thread("a").save({"mine": True})

    def test_deleting_a_diverged_thread_does_not_allow_its_import(
        self, store: Store, other: Store, tmp_path: Path
    ) -> None:
        fill(other.thread("a"), 1)
        other.export(tmp_path / "1")
        store.import_(tmp_path / "1")
        store.thread("a").save({"mine": True})
        other.thread("a").save({"theirs": True})
        other.export(tmp_path / "2")
        for change in (store.thread("a").delete, store.gc, store.gc):
            with pytest.raises(Conflict, match=r"import into a new store$") as caught:
                store.import_(tmp_path / "2")
            assert caught.value.code == "conflict.import"
            change()

    def test_import_does_not_restore_pruned_checkpoints(self, store: Store, other: Store, tmp_path: Path) -> None:
        thread: Thread[Any] = other.thread("a")
        thread.save({"text": "x" * 2000, "messages": []})
        for n in range(10):
            thread.append("messages", n)
        other.export(tmp_path / "1")
        store.import_(tmp_path / "1")
        store.thread("a").prune(keep_last=1)
        store.gc()
        thread.append("messages", 10)
        other.export(tmp_path / "2")
        store.import_(tmp_path / "2")
        assert [state["messages"] for state in states(store.thread("a").history())] == [[*range(10)], [*range(11)]]
        before = everything(store)
        thread.rewind(3)
        for at in (3, 4):  # the head is missing here, and then its base
            other.export(tmp_path / f"{at}")
            with pytest.raises(Conflict, match="this store removed"):
                store.import_(tmp_path / f"{at}")
            assert everything(store) == before
            thread.append("messages", "other")

    def test_a_rewind_in_the_file_shows_a_pruned_checkpoint(self, store: Store, other: Store, tmp_path: Path) -> None:
        thread: Thread[Any] = other.thread("a")
        fill(thread, 5)
        last = other.export(tmp_path / "0")
        store.import_(tmp_path / "0")
        store.thread("a").prune(keep_last=1)
        thread.save({"n": 6})
        last = other.export(tmp_path / "1", since=last.path)
        store.import_(tmp_path / "1")
        assert states(store.thread("a").history()) == [{"n": 5}, {"n": 6}]
        thread.rewind(3)
        thread.save({"n": 7})
        other.export(tmp_path / "2", since=last.path)
        store.import_(tmp_path / "2")
        assert states(store.thread("a").history()) == [{"n": 3}, {"n": 7}]
        assert store.verify().ok

    def test_an_import_that_is_interrupted_leaves_nothing(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        for phase, at in (("bytes", 0), ("threads", 3), ("rows", 0), ("rows", 60)):

            def stop(what: str, count: int, phase: str = phase, at: int = at) -> None:
                if what == phase and count >= at:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                store.import_(furnished[0], progress=stop)
            assert everything(store) == {}
            assert store.stats().chunks == 0
        store.import_(furnished[0])
        assert everything(store) == furnished[1]

    def test_an_import_does_not_overtake_a_writer(self, store: Store, other: Store, tmp_path: Path) -> None:
        fill(other.thread("a"), 2)
        other.export(tmp_path / "1")
        store.import_(tmp_path / "1")
        fill(other.thread("a"), 2)
        other.thread("b").save({"n": 1})
        other.export(tmp_path / "2")

        def meanwhile(what: str, _: int) -> None:
            if what == "threads" and len(store.thread("a")) == 2:
                store.thread("a").save({"mine": True})

        with pytest.raises(Conflict, match="'a'"):
            store.import_(tmp_path / "2", progress=meanwhile)
        assert states(store.thread("a").history())[-1] == {"mine": True}
        assert store.thread("b").latest() is None

    def test_new_head_is_not_hidden_by_an_import(self, store: Store, other: Store, tmp_path: Path) -> None:
        fill(other.thread("a"), 3)
        other.export(tmp_path / "1")
        store.import_(tmp_path / "1")
        other.thread("a").prune(keep_last=1)
        other.export(tmp_path / "2")

        def meanwhile(what: str, _: int) -> None:
            if what == "threads":
                store.thread("a").rewind(1)

        assert not store.import_(tmp_path / "2", progress=meanwhile).changed
        assert states(store.thread("a").history()) == [{"n": 1}]

    def test_a_concurrent_import_counts_once(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        done: list[str] = []

        def meanwhile(what: str, _: int) -> None:
            if what == "threads" and not done:
                done.append(what)
                store.import_(furnished[0])

        assert not store.import_(furnished[0], progress=meanwhile).changed
        assert done
        assert everything(store) == furnished[1]

    def test_a_concurrent_import_is_the_same_thread(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        backend = store._backend
        find, done = backend.threads_named, list[str]()

        def finding(space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
            found = find(space, names)
            if not done:
                done.append(space)
                store.import_(furnished[0])
            return found

        with mock.patch.object(backend, "threads_named", finding):
            assert not store.import_(furnished[0]).changed
        assert done
        assert everything(store) == furnished[1]

    def test_chunks_collected_during_import_come_from_the_file(
        self, store: Store, other: Store, tmp_path: Path
    ) -> None:
        state = {"messages": messages(300)}
        other.thread("a").save(state)
        other.export(tmp_path / "1")
        store.thread("b").save(state)
        store.thread("b").delete()

        def meanwhile(what: str, _: int) -> None:
            if what == "threads":
                store.gc()

        assert store.import_(tmp_path / "1", progress=meanwhile).chunks > 0
        store.gc()
        assert head(store.thread("a")).state == state
        assert store.verify().ok

    def test_a_collection_takes_nothing_that_comes_meanwhile(self, store: Store, other: Store, tmp_path: Path) -> None:
        state = {"messages": messages(300)}
        other.thread("a").save(state)
        other.export(tmp_path / "1")
        store.thread("b").save(state)
        store.thread("b").delete()
        came: list[int] = []

        def meanwhile(what: str, _: int) -> None:
            if what == "chunks" and not came:
                came.append(store.import_(tmp_path / "1").chunks)

        with mock.patch.object(gc, "_PAGE", 2):
            chunks = store.stats().chunks
            store.gc(progress=meanwhile)
        assert came == [2] != [chunks]  # the others were still there, and nothing led to them
        assert store.verify().ok
        assert head(store.thread("a")).state == state

    def test_watchers_see_imported_checkpoints(self, store: Store, furnished: tuple[Path, Contents]) -> None:
        with store.watch(prefix="forked", timeout=10) as watch:
            store.import_(furnished[0])
            assert next(watch).state["n"] in (0, 1)


def _comes_back(source: Store, mirror: Store, directory: Path) -> None:
    """Save large states, prune and collect them on both sides, and save them again; a mirror gets the new data."""
    large = [{"messages": messages(300)}, {"text": "a line of a large text\n" * 3000}, [messages(200), "x" * 70_000]]
    thread: Thread[Any] = source.thread("comes and goes")
    source.thread("stays").save({"messages": messages(40)})
    last: Path | None = None
    for at, state in enumerate([large[0], 1, large[0], large[1], large[2], 2, large[1], 3, large[2], large[0]]):
        thread.save(state)
        thread.prune(keep_last=1)
        if at % 3 == 1:
            source.gc()
        path = directory / f"{at}"
        source.export(path, since=last)
        mirror.import_(path)
        assert _shown(mirror) == _shown(source)
        mirror.gc()
        assert head(mirror.thread(thread.id)).state == state
        assert mirror.verify().ok
        last = path
    source.thread("stays").append("messages", "more")
    assert source.export(directory / "last", since=last).chunks == 0  # all its chunks are known
    assert mirror.import_(directory / "last").rows == 1


def _goes_on(store: Store) -> None:
    store.thread("trip").append("messages", "more")
    store.conversations.append("c", Message.user("and more", id="more"))
    store.agents.checkpoint("a", "third")
    store.thread("new").save({"text": "x" * 5000})


def _is_pruned(store: Store) -> None:
    store.thread("trip").prune(keep_last=2)
    store.thread("forked").tag("@", "tagged")
    store.thread("pruned").set("n", 99)
    store.conversations.delete("c")


def _is_collected(store: Store) -> None:
    store.gc()
    store.thread("forked").untag("@", "forked")
    store.thread("forked").set("n", 5)
    store.thread("trip").append("messages", "behind what has become a base")
    store.thread("pruned").set("n", 100)


def _is_moved(store: Store) -> None:
    store.thread("trip").rewind(store.thread("trip").load("@-"))
    store.thread("trip").append("messages", "on an older one")
    store.thread("forked").delete()
    store.thread("gone").save({"n": 3})


def _is_restored(store: Store) -> None:
    store.agents.restore(store.agents.checkpoints("a")[-1].id)
    store.thread("forked", agent="b").save({"begins": "again"})


_CHANGES = (_goes_on, _is_pruned, _is_collected, _is_moved, _is_restored)


def _shown(store: Store) -> Contents:
    """Return what can be seen of a store: of each thread its rows that are not hidden, as users know them."""
    return {
        name: (record, [(*row[:8], *row[10:18]) for row in rows if not row.hidden], tags)
        for name, (record, rows, all_tags) in everything(store).items()
        for seen in [{row.seq for row in rows if not row.hidden}]
        for tags in [{seq: sorted(words) for seq, words in all_tags.items() if seq in seen}]
    }
