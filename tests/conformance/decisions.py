"""Decisions: a function decides on the current state, even if another process wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conflict, Conversation, Message, Unavailable
from tests.conformance.base import Suite, head

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import Editor, Store, Thread
    from tests.conformance.base import Opener


class _Empty(Exception):  # noqa: N818 - a program's own
    """There is nothing to take."""


def _take(taken: list[Any]) -> Callable[[Editor], None]:
    def take(editor: Editor) -> None:
        if not editor.count("items"):
            raise _Empty
        taken.append(editor.get("items[-1]"))
        editor.delete_at("items[-1]")

    return take


def _contents(found: list[Message]) -> list[str]:
    return [message.content for message in found]


class Deciding(Suite):
    """`edit`, `pop` and transactions beside another store on the same data."""

    def test_pop_removes_a_message_of_another_store(self, opener: Opener) -> None:
        with opener() as mine, opener() as theirs:
            mine.conversations.save(Conversation("a", id="c"))
            assert mine.conversations.pop("c") == []
            for n in range(3):
                theirs.conversations.append("c", Message("user", str(n)))
                assert _contents(mine.conversations.pop("c")) == [str(n)]
                assert mine.conversations.pop("c") == []

    def test_pop_after_an_empty_pop_sees_new_messages(self, opener: Opener) -> None:
        with opener() as mine, opener() as theirs:
            mine.conversations.save(Conversation("a", id="c", messages=[Message("user", "0")]))
            assert len(mine.conversations.pop("c", 5)) == 1
            theirs.conversations.append("c", Message("user", "1"), Message("user", "2"))
            assert _contents(mine.conversations.pop("c", 5)) == ["1", "2"]

    def test_edit_that_raises_saw_the_current_state(self, opener: Opener) -> None:
        with opener() as mine, opener() as theirs:
            thread, taken = mine.thread("t"), list[Any]()
            thread.save({"items": []})
            for n in range(3):
                with pytest.raises(_Empty):
                    thread.edit(_take(taken))
                theirs.thread("t").append("items", n)
                thread.edit(_take(taken))
            assert taken == [0, 1, 2]

    def test_edit_that_raises_any_error_is_asked_again(self, opener: Opener) -> None:
        with opener() as mine, opener() as theirs:
            thread = mine.thread("t")
            thread.save({"n": 0})

            def strict(editor: Editor) -> None:
                editor.set("n", 10 // editor.get("n"))

            with pytest.raises(ZeroDivisionError):
                thread.edit(strict)
            theirs.thread("t").set("n", 5)
            assert thread.edit(strict).state == {"n": 2}

    def test_edit_is_not_called_twice_on_the_same_state(self, thread: Thread[Any]) -> None:
        thread.save({"items": []})
        calls: list[int] = []

        def refuse(editor: Editor) -> None:
            calls.append(editor.count("items"))
            raise _Empty

        with pytest.raises(_Empty):
            thread.edit(refuse)
        assert calls == [0]

    def test_error_of_an_edit_keeps_its_own_cause(self, opener: Opener) -> None:
        with opener() as mine, opener() as theirs:
            thread = mine.thread("t")
            thread.save({"n": 0})
            theirs.thread("t").set("n", 1)
            cause = KeyError("cause")

            def refuse(_: Editor) -> None:
                raise _Empty from cause

            with pytest.raises(_Empty) as caught:
                thread.edit(refuse)
            assert caught.value.__cause__ is cause

    @pytest.mark.parametrize("way", ["pop", "raises", "unchanged"])
    def test_transaction_conflicts_if_its_decision_is_overtaken(self, opener: Opener, way: str) -> None:
        with opener() as mine, opener() as theirs:
            mine.conversations.save(Conversation("a", id="c"))
            mine.thread("t").save({"items": []})
            mine.thread("log").save({"idle": 0})
            with pytest.raises(Conflict) as caught, mine.transaction():
                _find_nothing(mine, way)
                theirs.conversations.append("c", Message("user", "1"))
                theirs.thread("t").append("items", 1)
                mine.thread("log").set("idle", 1)
            assert caught.value.code == "conflict.transaction"
            assert head(mine.thread("log")).state == {"idle": 0}
            assert [message.content for message in mine.conversations.pop("c")] == ["1"]

    @pytest.mark.parametrize("way", ["pop", "raises", "unchanged"])
    def test_transaction_with_a_decision_that_holds_is_written(self, store: Store, way: str) -> None:
        store.conversations.save(Conversation("a", id="c"))
        store.thread("t").save({"items": []})
        with store.transaction():
            _find_nothing(store, way)
            store.thread("log").save({"idle": 1})
            store.thread("t").append("items", 1)
            store.conversations.append("c", Message("user", "1"))
        assert head(store.thread("log")).state == {"idle": 1}
        assert head(store.thread("t")).state == {"items": [1]}

    def test_edit_that_raises_our_error_saw_the_newest_state(self, opener: Opener) -> None:
        def refuse(editor: Editor) -> None:
            raise Unavailable(f"saw {editor.get('n')}", code="unavailable.closed")

        with opener() as mine, opener() as theirs:
            thread = mine.thread("t")
            thread.save({"n": 0})
            for n in range(1, 4):
                theirs.thread("t").set("n", n)
                with pytest.raises(Unavailable, match=f"saw {n}"):
                    thread.edit(refuse)

    def test_pop_sees_appends_of_its_transaction(self, opener: Opener) -> None:
        with opener() as mine, opener() as theirs:
            mine.conversations.save(Conversation("a", id="c"))
            assert mine.conversations.pop("c") == []
            theirs.conversations.append("c", Message("user", "1"))
            with mine.transaction():
                assert _contents(mine.conversations.pop("c", 5)) == ["1"]
                mine.conversations.append("c", Message("user", "2"))
                assert _contents(mine.conversations.pop("c", 5)) == ["2"]
                assert mine.conversations.pop("c") == []
            assert mine.conversations.pop("c") == []


def _find_nothing(store: Store, way: str) -> None:
    """Decide to change nothing, in one of the possible ways."""
    if way == "pop":
        assert store.conversations.pop("c") == []
    elif way == "raises":
        with pytest.raises(_Empty):
            store.thread("t").edit(_take([]))
    else:
        store.thread("t").edit(lambda editor: editor.append("items", *editor.get("items")))
