"""`erase`: no byte of an erased thread is left, nothing brings it back, and all else stays as it was."""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import pytest

import backtrail
from backtrail import Conflict, Erased, Invalid, Message, NotFound, Unavailable
from backtrail.engine import log
from tests.conformance.base import Suite
from tests.support.lengths import lengths
from tests.support.places import in_memory
from tests.support.scene import agent, contents, conversation, note, view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from backtrail import Store
    from backtrail.models import AgentCheckpoint
    from tests.conformance.base import Opener

CANARY = "canarytobeerased"
_TEXTS = [random.Random(n).randbytes(150).hex() for n in range(40)]
_WRITES = ("commit", "remove_rows", "rewrite", "next_epoch", "remove_chunks", "index", "reclaim")


def canaries(store: Store) -> list[str]:
    """Return where a store has the word: rows, labels, metadata, tags, chunks, and the search index."""
    backend = store._backend
    found = []
    for no in backend.thread_numbers(0, 10_000):
        for row in backend.rows(no, [(1, log.MAX_SEQ)], payload=True):
            stored = (row.payload or b"") + row.extra + (row.label or "").encode()
            found += [f"row {row.seq} of thread {no}"] if CANARY.encode() in stored else []
        found += [f"tags of thread {no}" for tags in backend.tags(no).values() if CANARY in tags]
    after = b""
    while page := backend.chunk_page(after, 500):
        after = page[-1][0]
        stored_chunks = backend.chunks([digest for digest, _ in page])
        found += ["chunk" for each in stored_chunks.values() if CANARY.encode() in each]
    found += [f"index: {hit.conversation_id}" for hit in store.search(CANARY, limit=100)]
    return found


def _say(store: Store, id: str, *, agent_id: str = "a") -> None:  # noqa: A002 - as users say
    """Make a conversation with the word in every place that it can be in."""
    store.conversations.save(conversation(id, *_TEXTS, f"{CANARY} of {id}", agent_id=agent_id))
    store.conversations.append(id, Message.user(f"{CANARY} again", metadata={CANARY: CANARY}))
    thread = store.conversations.thread(id)
    thread.load()
    thread.set("title", CANARY, label=f"{CANARY} label", metadata={"by": CANARY})
    thread.tag("@", CANARY)


def _ten(store: Store) -> AgentCheckpoint:
    """Make an agent with ten conversations, of which c3 has the word, and a checkpoint of it."""
    store.agents.save(agent())
    for n in range(10):
        if n == 3:
            _say(store, "c3")
        else:
            store.conversations.save(conversation(f"c{n}", *_TEXTS[:n], f"text {n}"))
    return store.agents.checkpoint("a", "ten")


class _Killed(BaseException):
    """The end of a process."""


class _Kill:
    """Ends the process before or after the n-th write of a backend."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self.calls = 0
        self._at = at
        self._after = after
        backend = store._backend
        self._patches = [
            mock.patch.object(backend, name, self._counted(getattr(backend, name)), create=True) for name in _WRITES
        ]

    def _counted(self, write: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._at and not self._after:
                raise _Killed
            result = write(*args, **options)
            if self.calls == self._at:
                raise _Killed
            return result

        return counted

    def __enter__(self) -> Self:
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        for each in self._patches:
            each.stop()
        return kind is _Killed


@contextmanager
def _meanwhile(store: Store, deed: Callable[[], object]) -> Iterator[None]:
    """Let another process do something right before the first commit of the block."""
    commit = store._backend.commit

    def first(batch: Any) -> Any:
        patch.stop()
        deed()
        return commit(batch)

    patch = mock.patch.object(store._backend, "commit", first)
    patch.start()
    yield


class EraseConversations(Suite):
    """`conversations.erase`."""

    def test_a_pinned_conversation_leaves_no_byte(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            made = _ten(store)
            store.conversations.delete("c3")
            store.gc()
            assert canaries(store)  # the checkpoint pins it
            others = {name: value for name, value in view(store, "a")[1].items() if name != "c3"}
            assert len(others) == 9
            report = store.conversations.erase("c3")
            assert report.complete
            assert canaries(store) == []
            assert store.verify().ok
            for n in range(0, 10, 2):
                store.conversations.append(f"c{n}", Message.user("later"))
            with pytest.warns(Erased, match="'c3'") as caught:
                store.agents.restore(made)
            assert [each.message.conversations for each in caught] == [("c3",)]  # type: ignore[union-attr]
            assert view(store, "a")[1] == others
            assert store.verify().ok
            store.agents.undo("a")
            assert contents(store, "c2")[-1] == "later"
            assert store.conversations.get("c3") is None
            assert store.verify().ok

    def test_the_report_is_evidence(self, store: Store) -> None:
        made = _ten(store)
        report = store.conversations.erase("c3")
        (erased,) = report.threads
        assert (erased.kind, erased.id, erased.agent, erased.checkpoints) == ("conversation", "c3", "a", 3)
        assert report.agent_checkpoints == (("a", made.id),)
        assert (report.kept_forks, report.remains, report.complete) == ((), None, True)
        evidence = json.loads(json.dumps(report.to_json()))
        assert evidence["threads"][0]["uid"] == erased.uid
        assert evidence["agent_checkpoints"] == [{"agent": "a", "checkpoint": made.id}]
        assert store.conversations.erase("c3") == report

    def test_agent_checkpoints_name_what_was_erased(self, store: Store) -> None:
        made = _ten(store)
        assert made.erased == ()
        store.conversations.erase("c3")
        assert [each.erased for each in store.agents.checkpoints("a")] == [("c3",)]
        found = store.agents.get_checkpoint(made.id)
        assert found is not None
        assert (found.erased, found.conversations) == (("c3",), 10)
        later = store.agents.checkpoint("a", "later")
        assert (later.erased, later.conversations) == ((), 9)
        with pytest.raises(NotFound) as caught:
            store.conversations.load("c3", at=made.id)
        assert caught.value.code == "not_found.erased"
        with pytest.warns(Erased):
            store.agents.restore(made)
        after = store.agents.checkpoint("a", "after a restore")
        assert (after.erased, after.conversations) == ((), 9)
        assert store.verify().ok

    def test_an_undo_skips_what_was_erased_since_the_restore(self, store: Store) -> None:
        made = _ten(store)
        store.conversations.append("c3", Message.user("later"))
        store.conversations.append("c4", Message.user("later"))
        store.agents.restore(made)
        store.conversations.erase("c3")
        store.agents.undo("a")  # no Conflict: nothing of c3 could be overwritten
        assert contents(store, "c4")[-1] == "later"
        assert store.conversations.get("c3") is None
        assert store.verify().ok

    def test_an_undo_does_not_overwrite_a_conversation_that_began_again(self, store: Store) -> None:
        made = _ten(store)
        store.conversations.append("c4", Message.user("later"))
        store.agents.restore(made)
        store.conversations.erase("c3")
        store.conversations.save(conversation("c3", "new"))
        with pytest.raises(Conflict) as caught:
            store.agents.undo("a")
        assert caught.value.code == "conflict.moved"
        store.agents.undo("a", force=True)
        assert store.conversations.get("c3") is None
        assert store.verify().ok

    def test_forks_are_erased_and_ancestors_stay(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            store.agents.save(agent())
            store.conversations.save(conversation("root", "first"))
            store.conversations.fork("root", new_id="sibling")
            store.conversations.fork("root", new_id="c")
            store.conversations.append("c", Message.user(CANARY))
            store.conversations.fork("c", new_id="fork")
            store.conversations.fork("fork", new_id="fork of the fork")
            store.conversations.fork("c", new_id="deleted fork")
            store.agents.checkpoint("a", "all")
            store.conversations.delete("deleted fork")
            report = store.conversations.erase("c")
            assert {each.id: each.fork for each in report.threads} == {
                "c": False,
                "fork": True,
                "fork of the fork": True,
                "deleted fork": True,
            }
            assert canaries(store) == []
            assert [info.id for info in store.conversations.list("a")] == ["sibling", "root"]
            assert store.verify().ok

    def test_forks_may_stay(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            store.agents.save(agent())
            store.conversations.save(conversation("c", *_TEXTS, CANARY))
            store.conversations.append("c", Message.user("only here"))
            fork = store.conversations.fork("c", at="c40", new_id="fork")
            report = store.conversations.erase("c", forks=False)
            assert report.kept_forks == (("conversation", "fork"),)
            assert [each.id for each in report.threads] == ["c"]
            assert store.conversations.load("fork") == fork
            assert canaries(store)
            assert not store.search("only")
            assert store.verify().ok

    def test_a_fork_of_an_earlier_conversation_stays(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "one"))
        store.conversations.fork("c", new_id="kept")
        store.conversations.erase("c", forks=False)
        store.conversations.save(conversation("c", "two"))
        store.conversations.fork("c", new_id="new fork")
        report = store.conversations.erase("c")
        assert [(each.id, each.fork) for each in report.threads] == [("c", False), ("new fork", True)]
        assert contents(store, "kept") == ["one"]
        assert store.verify().ok

    def test_a_pinned_fork_under_a_reused_id_is_named(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            store.agents.save(agent())
            store.conversations.save(conversation("c", CANARY))
            store.conversations.fork("c", new_id="fork")
            made = store.agents.checkpoint("a", "with the fork")
            store.conversations.delete("fork")
            store.conversations.save(conversation("fork", "something else"))
            report = store.conversations.erase("c")
            assert report.kept_forks == (("conversation", "fork"),)
            assert not report.complete
            assert "'fork'" in str(report.remains)
            assert contents(store, "fork") == ["something else"]
            assert canaries(store)
            store.agents.delete_checkpoint(made)
            store.gc()
            assert canaries(store) == []
            assert store.conversations.erase("c").complete

    def test_an_erased_id_can_be_used_again(self, store: Store, tmp_path: Path) -> None:
        made = _ten(store)
        stale = store.conversations.load("c3")
        store.conversations.erase("c3")
        with pytest.raises(Conflict, match="was deleted"):
            store.conversations.save(stale)
        store.conversations.save(conversation("c3", "new"))
        assert contents(store, "c3") == ["new"]
        second = store.agents.checkpoint("a", "second")
        assert (second.erased, second.conversations) == ((), 10)
        with pytest.warns(Erased):
            store.agents.restore(made)
        assert store.conversations.get("c3") is None
        store.agents.restore(second)
        assert contents(store, "c3") == ["new"]
        store.conversations.delete("c3")
        store.gc()
        assert store.verify().ok
        store.export(tmp_path / "x")
        with pytest.warns(Erased):
            store.agents.restore(made)
        store.agents.restore(second)
        assert contents(store, "c3") == ["new"]

    def test_what_never_existed_cannot_be_erased(self, store: Store) -> None:
        _ten(store)
        with pytest.raises(NotFound) as caught:
            store.conversations.erase(["c1", "no such"])
        assert caught.value.code == "not_found.conversation"
        assert len(store.conversations.list("a")) == 10
        for wrong in ([], None, 3, [3], ""):
            with pytest.raises(Invalid):
                store.conversations.erase(wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="forks"):
            store.conversations.erase("c1", forks="no")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="kind"):
            store.erase("c1", kind="journal")
        with pytest.raises(Unavailable) as refused, store.transaction():
            store.conversations.erase("c1")
        assert refused.value.code == "unavailable.transaction"
        assert len(store.conversations.list("a")) == 10

    def test_several_are_erased_at_once(self, store: Store) -> None:
        _ten(store)
        report = store.conversations.erase(["c3", "c5", "c3"])
        assert [each.id for each in report.threads] == ["c3", "c5"]
        assert len(store.conversations.list("a")) == 8

    def test_handles_see_an_erasure_like_a_deletion(self, store: Store) -> None:
        _ten(store)
        handle = store.conversations.thread("c3", agent_id="a")
        loaded = handle.load()
        state = loaded.state
        unread = handle.load("@~1")
        store.conversations.erase("c3")
        with pytest.raises(NotFound):
            handle.load()
        with pytest.raises(NotFound):
            handle.append("messages", {"role": "user", "content": "late"})
        with pytest.raises(NotFound):
            store.conversations.append("c3", Message.user("late"))
        with pytest.raises(Conflict):
            handle.save(state)
        with pytest.raises(NotFound):
            handle.rewind(loaded.id)
        with pytest.raises(NotFound):
            assert unread.state
        assert store.checkpoint(loaded.id) is None
        store.conversations.append("c3", Message.user("new"), agent_id="a")
        assert contents(store, "c3") == ["new"]
        assert store.verify().ok

    def test_a_fork_made_meanwhile_is_erased_too(self, store: Store) -> None:
        _ten(store)
        with _meanwhile(store, lambda: store.conversations.fork("c3", new_id="late")):
            report = store.conversations.erase("c3")
        assert [(each.id, each.fork) for each in report.threads] == [("c3", False), ("late", True)]
        assert store.conversations.get("late") is None
        assert store.verify().ok

    def test_an_agent_checkpoint_made_meanwhile_is_named_too(self, store: Store) -> None:
        _ten(store)
        with _meanwhile(store, lambda: store.agents.checkpoint("a", "late")):
            report = store.conversations.erase("c3")
        assert len(report.agent_checkpoints) == 2
        assert [each.erased for each in store.agents.checkpoints("a")] == [("c3",), ("c3",)]
        assert store.verify().ok

    def test_the_first_agent_checkpoint_made_meanwhile_is_named_too(self, store: Store) -> None:
        store.agents.save(agent())
        _say(store, "c")
        with _meanwhile(store, lambda: store.agents.checkpoint("a", "first")):
            report = store.conversations.erase("c")
        assert len(report.agent_checkpoints) == 1
        assert [each.erased for each in store.agents.checkpoints("a")] == [("c",)]
        assert store.verify().ok

    @pytest.mark.parametrize("every", lengths(2, 1))
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_a_killed_erasure_is_finished_by_the_next(self, opener: Opener, every: int, *, after: bool) -> None:
        at = 1 - every  # a kill before the third write leaves what a kill after the second would
        with opener(compression=False) as store:
            store.agents.save(agent())
            while True:
                at += every
                store.conversations.save(conversation("stays", *_TEXTS, "stays"), replace=True)
                _say(store, "c")
                made = store.agents.checkpoint("a", "one")
                expected = view(store, "a")[1]
                with _Kill(store, at, after=after) as kill:
                    store.conversations.erase("c")
                here = store.conversations.get("c")
                assert here in (None, expected["c"])
                assert store.verify().ok
                if here is None:  # the erasure is written: nothing brings it back
                    with pytest.warns(Erased):
                        store.agents.restore(made)
                    assert view(store, "a")[1] == {"stays": expected["stays"]}
                assert store.conversations.erase("c").complete
                assert canaries(store) == []
                assert store.verify().ok
                if kill.calls < at:
                    break
        assert at > 4

    def test_storage_that_cannot_overwrite_is_reported(self, store: Store) -> None:
        _ten(store)
        refusal = Unavailable("another process reads", code="unavailable.locked")
        with mock.patch.object(store._backend, "reclaim", side_effect=refusal):
            report = store.conversations.erase("c3")
        assert not report.complete
        assert report.remains is not None
        assert "gc(erase=True)" in report.remains
        assert store.conversations.get("c3") is None
        assert store.conversations.erase("c3").complete


class EraseOthers(Suite):
    """`agents.erase`, `runs.erase`, `Thread.erase` and `store.erase`."""

    def test_an_agent_leaves_no_byte(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            store.agents.save(agent("b"))
            store.conversations.save(conversation("b1", *_TEXTS, agent_id="b"))
            store.agents.checkpoint("b", "stays")
            before = view(store, "b")
            store.agents.save(agent(custom_state={CANARY: CANARY}))
            _say(store, "c")
            store.agents.checkpoint("a", CANARY, description=CANARY)
            note(store, "a", "more", CANARY)
            store.thread("plain", agent="a").save({"text": CANARY})
            store.thread("plain").fork("of nobody")
            with store.run("r", agent="a") as run:
                run.tool("look", str.upper, CANARY)
            report = store.agents.erase("a")
            assert {(each.kind, each.id) for each in report.threads} >= {
                ("agent", "a"),
                ("checkpoint", "a"),
                ("conversation", "c"),
                ("thread", "plain"),
                ("run", "r"),
                ("journal", "r"),
                ("thread", "of nobody"),
            }
            assert canaries(store) == []
            assert store.agents.checkpoints("a") == []
            assert store.runs.list() == []
            assert view(store, "b") == before
            assert store.verify().ok
            assert store.agents.erase("a") == report
            store.agents.save(agent())
            assert store.agents.checkpoint("a", "new").conversations == 0
            with pytest.raises(NotFound):
                store.agents.erase("nobody")

    def test_a_run_leaves_no_byte(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            store.agents.save(agent())
            with store.run("r", agent="a", state={"k": CANARY}) as run:
                for number in run.iterations():
                    run.message(Message.user(f"{CANARY} {number}"))
                    run.tool("look", str.upper, f"{CANARY} {number}")
                    if number == 3:
                        break
            store.runs.thread("r").fork("forked")
            store.agents.checkpoint("a", "with a run")
            assert canaries(store)
            report = store.runs.erase("r")
            assert {(each.kind, each.id) for each in report.threads} == {
                (kind, name) for kind in ("run", "journal") for name in ("r", "forked")
            }
            assert canaries(store) == []
            assert "r" not in store.runs
            assert store.verify().ok
            with store.run("r", agent="a") as run:  # it begins anew
                assert run.tool("look", str.upper, "x") == "X"

    def test_a_run_with_a_worker_is_not_erased(self, store: Store) -> None:
        store.agents.save(agent())
        with pytest.raises(Conflict), store.run("r", agent="a") as run:
            run.tool("look", str.upper, "x")
            for refused in (
                lambda: store.runs.erase("r"),
                lambda: store.agents.erase("a"),
                lambda: store.runs.thread("r").erase(),
                lambda: store.erase("r", kind="run"),
            ):
                with pytest.raises(Conflict, match="force=True") as caught:
                    refused()
                assert caught.value.code == "conflict.lease"
            assert store.agents.get("a") is not None
            assert store.runs.erase("r", force=True).complete
            run.tool("look", str.upper, "y")
        assert "r" not in store.runs
        assert store.verify().ok

    def test_a_thread_is_erased_with_its_notes(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            thread = store.thread("t")
            thread.save({"text": CANARY})
            store.thread("t", aside=True).save({"note": CANARY})
            store.thread("other").save({"n": 1})
            report = thread.erase()
            assert [(each.kind, each.id) for each in report.threads] == [("thread", "t"), ("aside", "t")]
            assert canaries(store) == []
            assert thread.latest() is None
            thread.save({"n": 1})
            assert thread.load().step == 1
            assert [info.id for info in store.threads()] == ["t", "other"]
            assert store.erase(["t", "other"]).complete
            assert list(store.threads()) == []
            assert store.verify().ok

    def test_an_agents_thread_is_erased_with_the_agent(self, store: Store) -> None:
        store.agents.save(agent())
        with pytest.raises(Invalid, match=r"agents\.erase"):
            store.agents.thread("a").erase()
        assert store.erase("a", kind="agent").complete

    def test_a_damaged_thread_can_be_erased(self, opener: Opener) -> None:
        with opener(compression=False) as store:
            made = _ten(store)
            backend = store._backend
            record = backend.find_thread("conversation", "c3")
            assert record is not None
            newest = backend.newest(record.no)
            assert newest is not None
            (row,) = backend.rows(record.no, [(newest.seq, newest.seq)], payload=True)
            backend.rewrite(record.no, [row._replace(check=b"damaged!")])
            assert not store.verify().ok
            assert store.conversations.erase("c3").complete
            assert canaries(store) == []
            assert store.verify().ok
            with pytest.warns(Erased):
                store.agents.restore(made)

    def test_neighbours_with_the_same_content_keep_it(self, store: Store) -> None:
        store.agents.save(agent())
        for name in ("one", "two"):
            store.thread(name).save({"texts": _TEXTS * 20})
        store.thread("one").erase()
        assert store.thread("two").load().state == {"texts": _TEXTS * 20}
        assert store.verify().ok


class EraseMirrors(Suite):
    """Exports, imports, copies and backups of a store in which something was erased."""

    def test_an_export_after_the_erasure_has_no_byte(self, opener: Opener, tmp_path: Path) -> None:
        with opener(compression=False) as store:
            made = _ten(store)
            store.export(tmp_path / "before")
            store.conversations.erase("c3")
            for name, since in (("after", None), ("since", tmp_path / "before")):
                store.export(tmp_path / name, since=since)
            with in_memory() as place, place(compression=False) as new:
                new.import_(tmp_path / "after")
                assert canaries(new) == []
                assert new.verify().ok
                assert [each.erased for each in new.agents.checkpoints("a")] == [("c3",)]
                with pytest.warns(Erased):
                    new.agents.restore(made.id)
                assert new.conversations.get("c3") is None
                report = new.import_(tmp_path / "before")
                assert report.refused == (("conversation", "c3"),)
                assert canaries(new) == []

    def test_an_older_export_does_not_bring_it_back(self, store: Store, tmp_path: Path) -> None:
        _ten(store)
        store.export(tmp_path / "before")
        store.conversations.erase("c3")
        report = store.import_(tmp_path / "before")
        assert (report.refused, report.erased, report.changed) == ((("conversation", "c3"),), (), False)
        assert store.conversations.get("c3") is None
        store.conversations.save(conversation("c3", "new"))
        assert store.import_(tmp_path / "before").refused == (("conversation", "c3"),)
        assert contents(store, "c3") == ["new"]
        assert store.verify().ok

    def test_a_fork_in_an_older_export_does_not_bring_it_back(self, opener: Opener, tmp_path: Path) -> None:
        with opener(compression=False) as store, in_memory() as place, place(compression=False) as source:
            source.agents.save(agent())
            _say(source, "c")
            backtrail.copy(source, store)
            source.conversations.fork("c", new_id="fork")
            source.conversations.fork("fork", new_id="fork of the fork")
            made = source.agents.checkpoint("a", "forks")
            source.export(tmp_path / "x")
            store.conversations.erase("c")
            report = store.import_(tmp_path / "x")
            assert {name for _, name in report.refused} == {"c", "fork", "fork of the fork"}
            assert canaries(store) == []
            assert store.verify().ok
            assert [each.erased for each in store.agents.checkpoints("a")] == [("c", "fork", "fork of the fork")]
            with pytest.warns(Erased):
                store.agents.restore(made.id)
            assert store.conversations.list("a") == []

    @pytest.mark.parametrize("how", ["copy", "since", "behind"])
    def test_a_mirror_erases_its_copy(self, opener: Opener, tmp_path: Path, how: str) -> None:
        with opener(compression=False) as store, in_memory() as place, place(compression=False) as source:
            made = _ten(source)
            source.export(tmp_path / "0")
            store.import_(tmp_path / "0")
            store.search(CANARY)
            assert canaries(store)
            if how == "behind":
                source.conversations.append("c3", Message.user("more"))
            source.conversations.erase("c3")
            if how == "since":
                source.export(tmp_path / "1", since=tmp_path / "0")
                erased = store.import_(tmp_path / "1").erased
            else:
                erased = backtrail.copy(source, store).erased
            assert erased == (("conversation", "c3"),)
            assert canaries(store) == []
            assert store.verify().ok
            assert [each.erased for each in store.agents.checkpoints("a")] == [("c3",)]
            with pytest.warns(Erased):
                store.agents.restore(made.id)
            assert len(store.conversations.list("a")) == 9

    def test_a_mirror_follows_an_id_that_began_again(self, store: Store) -> None:
        with in_memory() as place, place() as source:
            _ten(source)
            backtrail.copy(source, store)
            source.conversations.erase("c3")
            source.conversations.save(conversation("c3", "new"))
            assert backtrail.copy(source, store).erased == (("conversation", "c3"),)
            assert contents(store, "c3") == ["new"]
            source.conversations.append("c3", Message.user("more"))
            assert backtrail.copy(source, store).erased == ()
            assert contents(store, "c3") == ["new", "more"]
            assert store.verify().ok

    def test_an_import_keeps_forks_that_the_source_kept(self, store: Store, tmp_path: Path) -> None:
        with in_memory() as opener, opener() as source:
            _say(source, "c")
            source.export(tmp_path / "before")
            source.conversations.fork("c", new_id="fork")
            source.conversations.erase("c", forks=False)
            source.export(tmp_path / "after")
        store.import_(tmp_path / "before")
        assert store.import_(tmp_path / "after").erased == (("conversation", "c"),)
        assert store.conversations.get("fork") is not None
        with in_memory() as opener, opener() as new:
            new.import_(tmp_path / "after")
            assert new.conversations.get("fork") is not None

    def test_an_import_brings_no_fork_of_what_is_erased_meanwhile(self, store: Store, tmp_path: Path) -> None:
        _say(store, "c")
        store.export(tmp_path / "original")
        with in_memory() as opener, opener() as other:
            other.import_(tmp_path / "original")
            other.conversations.fork("c", new_id="fork")
            other.export(tmp_path / "forked")
        group = store._backend.group

        def late() -> Any:
            patch.stop()
            store.conversations.erase("c")
            return group()

        patch = mock.patch.object(store._backend, "group", late)
        patch.start()
        report = store.import_(tmp_path / "forked")
        assert sorted(report.refused) == [("conversation", "c"), ("conversation", "fork")]
        assert store.conversations.get("fork") is None
        assert canaries(store) == []
        assert store.verify().ok

    def test_a_diverged_mirror_is_told_that_the_source_erased(self, store: Store, tmp_path: Path) -> None:
        with in_memory() as place, place() as source:
            _ten(source)
            backtrail.copy(source, store)
            store.conversations.append("c3", Message.user("here"))
            source.conversations.erase("c3")
            source.export(tmp_path / "x")
            with pytest.raises(Conflict, match="erase it here") as caught:
                store.import_(tmp_path / "x")
            assert caught.value.code == "conflict.import"
            store.conversations.erase("c3")
            assert store.import_(tmp_path / "x").refused == (("conversation", "c3"),)
            assert store.verify().ok

    def test_a_backup_after_the_erasure_has_no_byte(self, opener: Opener, tmp_path: Path) -> None:
        with opener(compression=False) as store:
            _ten(store)
            store.conversations.erase("c3")
            store.backup(tmp_path / "backup")
            files = [tmp_path / "backup"] if (tmp_path / "backup").is_file() else (tmp_path / "backup").rglob("*")
            assert not [path for path in files if path.is_file() and CANARY.encode() in path.read_bytes()]
            assert store.verify(repair=True).ok
            assert store.gc(erase=True).rows == 0
