"""Branching: a conversation that leaves another one at a message."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conflict, Invalid, Message, NotFound
from tests.conformance.base import Suite
from tests.support.scene import agent, contents, conversation, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Store
    from tests.conformance.base import Opener


class Branching(Suite):
    """`fork`, `edit` and `branches`."""

    @pytest.mark.parametrize("at", [0, 2, 4])
    def test_branch_has_messages_up_to_its_start(self, store: Store, at: int) -> None:
        source = store.conversations.save(conversation("c", *"abcde", title="T", tags=["x"], metadata={"k": "v"}))
        made = store.conversations.fork("c", at=f"c{at}", new_id="d")
        assert made.messages == source.messages[: at + 1]
        assert (made.id, made.agent_id, made.title, made.tags, made.metadata) == ("d", "a", "T", ("x",), {"k": "v"})
        assert (made.forked_from, made.forked_at) == ("c", f"c{at}")
        assert store.conversations.load("d") == made
        assert store.conversations.load("c") == source
        (info,) = store.conversations.branches("c")
        assert (info.id, info.forked_from, info.forked_at, info.message_count) == ("d", "c", f"c{at}", at + 1)

    def test_without_a_message_all_are_in_the_branch(self, store: Store) -> None:
        source = store.conversations.save(conversation("c", "a", "b"))
        made = store.conversations.fork("c")
        assert (made.messages, made.forked_at) == (source.messages, "c1")
        assert made.id not in ("c", "")
        store.conversations.save(conversation("empty"))
        branch = store.conversations.fork("empty", new_id="e")
        assert (branch.messages, branch.forked_from, branch.forked_at) == ((), "empty", None)

    def test_both_go_on_for_themselves(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a", "b"))
        made = store.conversations.fork("c", at="c0", new_id="d")
        store.conversations.append("c", Message.user("c only"))
        store.conversations.append("d", Message.user("d only"))
        store.conversations.update("d", title="D")
        assert (contents(store, "c"), contents(store, "d")) == (["a", "b", "c only"], ["a", "d only"])
        assert store.conversations.load("c").title is None
        with pytest.raises(Conflict):
            store.conversations.save(made)
        assert store.conversations.delete("c") is True
        store.gc()
        assert contents(store, "d") == ["a", "d only"]
        assert store.verify().ok

    def test_rewind_to_a_message_can_be_undone(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a", "b"))
        kept = Message.user("kept")
        store.conversations.append("c", kept)
        store.conversations.append("c", Message.user("later"))
        assert store.conversations.rewind("c", kept) == store.conversations.load("c")
        assert contents(store, "c") == ["a", "b", "kept"]
        store.conversations.thread("c").undo()
        assert contents(store, "c") == ["a", "b", "kept", "later"]
        with pytest.raises(NotFound, match=r"fork there: store\.conversations\.fork\('c', at='c0'\)"):
            store.conversations.rewind("c", "c0")
        with pytest.raises(NotFound, match="conversation 'd'"):
            store.conversations.rewind("d", kept.id)

    def test_missing_thread_names_the_conversation_with_its_id(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a"))
        with pytest.raises(NotFound, match=r"store\.conversations\.thread\('c'\)"):
            store.thread("c").load()
        with pytest.raises(NotFound, match="kind='conversation'"):
            store.erase("c")

    def test_edit_replaces_the_message_and_drops_later_ones(self, store: Store) -> None:
        said = Message.user("old", id="m1", tokens=3, parent_id="p", metadata={"k": 1}, raw={"x": 1}, raw_format="f")
        source = conversation("c", "a").add_message(said).add_message(Message.assistant("reply"))
        store.conversations.save(source)
        made = store.conversations.edit("c", "m1", "new", new_id="d")
        assert [message.content for message in made.messages] == ["a", "new"]
        new = made.messages[1]
        assert (new.role, new.parent_id, new.metadata) == (said.role, "p", {"k": 1})
        assert (new.raw, new.raw_format, new.tokens) == (None, None, None)
        assert new.id != "m1"
        assert (made.forked_from, made.forked_at) == ("c", "c0")
        assert store.conversations.load("c") == source
        first = store.conversations.edit("c", "c0", "", new_id="e")
        assert ([message.content for message in first.messages], first.forked_at) == ([""], None)

    def test_branch_has_the_time_of_its_last_message(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a", "b", "c"))
        made = store.conversations.fork("c", at="c0", new_id="d")
        assert made.last_message_at == made.messages[-1].timestamp
        edited = store.conversations.edit("c", "c1", "new", new_id="e")
        assert edited.last_message_at == edited.messages[-1].timestamp

    def test_branches_have_branches_and_each_lists_its_own(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a", "b", "c"))
        for new, of in (("d", "c"), ("e", "c"), ("f", "d"), ("g", "f")):
            store.conversations.fork(of, at="c1", new_id=new)
            store.conversations.append(new, Message.user(f"of {new}"))
        listed = {name: [info.id for info in store.conversations.branches(name)] for name in "cdefg"}
        assert listed == {"c": ["d", "e"], "d": ["f"], "e": [], "f": ["g"], "g": []}
        assert contents(store, "g") == ["a", "b", "of g"]
        store.conversations.delete("d")
        assert [info.id for info in store.conversations.branches("c")] == ["e"]
        store.conversations.delete("c")
        assert contents(store, "f") == ["a", "b", "of f"]
        assert store.conversations.load("f").forked_from == "d"

    def test_failed_branch_leaves_no_thread(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a", "b"))
        store.conversations.save(conversation("there", "x", agent_id="b"))
        store.conversations.fork("c", at="c0", new_id="d")
        unknown: tuple[Callable[[], object], ...] = (
            lambda: store.conversations.fork("c", at="nothing", new_id="new"),
            lambda: store.conversations.edit("c", "nothing", "x", new_id="new"),
            lambda: store.conversations.fork("d", at="c1", new_id="new"),
        )
        for call in unknown:
            with pytest.raises(NotFound):
                call()
        for taken in ("there", "c", "d"):
            with pytest.raises(Conflict):
                store.conversations.fork("c", new_id=taken)
            with pytest.raises(Conflict):
                store.conversations.edit("c", "c0", "x", new_id=taken)
        assert store.conversations.get("new") is None
        assert (contents(store, "c"), contents(store, "there")) == (["a", "b"], ["x"])

    def test_branch_point_may_be_a_message_value(self, store: Store) -> None:
        source = store.conversations.save(conversation("c", "a", "b", "c"))
        made = store.conversations.fork("c", at=source.messages[1], new_id="d")
        assert (made.messages, made.forked_at) == (source.messages[:2], "c1")
        with pytest.raises(NotFound):
            store.conversations.fork("c", at=Message.user("b"), new_id="e")

    def test_branch_with_an_unreadable_message_is_refused(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a", "b"))
        store.conversations.thread("c").append("messages", {"id": "odd", "role": "robot", "content": "x"})
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.conversations.fork("c", new_id="d"),
            lambda: store.conversations.fork("c", at="odd", new_id="d"),
            lambda: store.conversations.edit("c", "odd", "y", new_id="d"),
        )
        for call in calls:
            with pytest.raises(Invalid):
                call()
            assert [info.id for info in store.conversations.list("a")] == ["c"]
            assert store.conversations.branches("c") == []
        assert store.conversations.fork("c", at="c1", new_id="d").message_count == 2

    @pytest.mark.parametrize("content", [None, 5, b"x"])
    def test_an_edit_says_a_text(self, store: Store, content: Any) -> None:
        store.conversations.save(conversation("c", "a"))
        with pytest.raises(Invalid):
            store.conversations.edit("c", "c0", content, new_id="d")
        assert store.conversations.branches("c") == []

    def test_a_deleted_id_can_be_branched_to(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a", "b"))
        store.conversations.save(conversation("d", "x", agent_id="b"))
        store.conversations.delete("d")
        store.conversations.fork("c", at="c0", new_id="d")
        assert (contents(store, "d"), store.conversations.load("d").agent_id) == (["a"], "a")
        assert [info.id for info in store.conversations.list("a")] == ["d", "c"]
        assert store.conversations.list("b") == []

    def test_branch_shares_common_chunks(self, opener: Opener) -> None:
        texts = [random.Random(n).randbytes(500).hex() for n in range(400)]
        with opener() as store:
            store.conversations.save(conversation("c", *texts))
        with opener() as store:
            before = usage(store).payload_bytes
            assert before > 150_000
            for at in (399, 390, 200):
                store.conversations.fork("c", at=f"c{at}", new_id=f"d{at}")
            assert usage(store).payload_bytes - before < 100_000  # each may store one new chunk of some 30 KB
            for at in (399, 390, 200):
                assert contents(store, f"d{at}") == texts[: at + 1]
            store.gc()
            assert contents(store, "d200") == texts[:201]

    def test_search_finds_branch_and_source_but_not_cut_messages(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a fox", "a hen"))
        store.conversations.fork("c", at="c0", new_id="d")
        assert {hit.conversation_id for hit in store.conversations.search("fox")} == {"c", "d"}
        assert [hit.conversation_id for hit in store.conversations.search("hen")] == ["c"]
        store.conversations.edit("c", "c1", "a cow", new_id="e")
        assert [hit.conversation_id for hit in store.conversations.search("cow")] == ["e"]

    def test_branch_in_a_transaction_is_all_or_nothing(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "a", "b"))
        with pytest.raises(ZeroDivisionError), store.transaction():
            store.conversations.fork("c", at="c0", new_id="d")
            store.conversations.append("d", Message.user("x"))
            _ = 1 / 0
        assert store.conversations.get("d") is None
        with store.transaction():
            store.conversations.append("c", Message.user("c", id="late"))
            store.conversations.fork("c", at="late", new_id="d")
            store.conversations.append("d", Message.user("x"))
        assert contents(store, "d") == ["a", "b", "c", "x"]
        assert [info.id for info in store.conversations.branches("c")] == ["d"]
