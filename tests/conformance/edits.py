"""`edit`: several changes as one checkpoint, decided on the current state; and state keys that are not fields."""

from __future__ import annotations

import datetime as dt
import threading
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import Conversation, Invalid, Message, NotFound
from backtrail.validation import to_data
from tests.conformance.base import SECOND, Clock, Suite, chunks_read, head, ids, messages

if TYPE_CHECKING:
    from backtrail import Editor, Store, Thread
    from tests.conformance.base import Opener


def _count(editor: Editor) -> None:
    """Add a number to a list, and say in a dict where it is."""
    if not editor.exists:
        editor.set((), {"items": [], "places": {}})
    at = editor.count("items")
    editor.append("items", at)
    editor.update("places", {str(at): at, "last": at})


class Editing(Suite):
    """`Thread.edit`."""

    def test_all_that_an_edit_changes_is_one_checkpoint(self, thread: Thread[Any]) -> None:
        thread.save({"a": [1], "b": {"x": 1, "y": 2}, "c": "text"})

        def change(editor: Editor) -> None:
            editor.append("a", 2, 3)
            editor.set("c", {"d": 0})
            editor.set("c.d", editor.get("a[-1]"))
            editor.update("b", {"y": 3, "z": 4})
            editor.delete_at("b.x")

        made = thread.edit(change, label="edited", tags=["t"], metadata={"m": 1}, kind="automatic")
        assert made.state == {"a": [1, 2, 3], "b": {"y": 3, "z": 4}, "c": {"d": 3}}
        assert list(made.state["b"]) == ["y", "z"]
        assert (made.step, made.label, made.tags, made.metadata, made.kind) == (
            2,
            "edited",
            ("t",),
            {"m": 1},
            "automatic",
        )
        assert head(thread) == made
        assert len(thread) == 2

    def test_edit_reads_its_own_changes(self, thread: Thread[Any]) -> None:
        thread.save({"a": [1], "b": {"x": 1}, "n": 5})
        seen: list[Any] = []

        def look(editor: Editor) -> None:
            editor.append("a", 2)
            seen.extend([editor.exists, editor.get("a"), editor.count("a"), editor.count(""), editor.count("none")])
            seen.extend([editor.get("none"), editor.get("b.none", 7)])
            with pytest.raises(Invalid, match="no parts"):
                editor.count("n")

        thread.edit(look)
        assert seen == [True, [1, 2], 2, 3, 0, None, 7]

    def test_an_edit_begins_a_thread(self, thread: Thread[Any]) -> None:
        assert [thread.edit(_count).step for _ in range(3)] == [1, 2, 3]
        assert head(thread).state == {"items": [0, 1, 2], "places": {"0": 0, "last": 2, "1": 1, "2": 2}}

    def test_an_edit_that_changes_nothing_writes_nothing(self, thread: Thread[Any]) -> None:
        saved = thread.save({"a": [1], "b": {}})

        def nothing(editor: Editor) -> None:
            editor.append("a")
            editor.update("b", {})

        assert thread.edit(nothing) == saved
        assert ids(thread.history()) == [saved.id]

    def test_edit_without_changes_saw_the_current_state(self, opener: Opener) -> None:
        def unless_there(editor: Editor) -> None:
            if not editor.count("a"):
                editor.append("a", 2)

        with opener() as store, opener() as other:
            thread = store.thread("t")
            thread.save({"a": []})
            other.thread("t").append("a", 1)
            assert thread.edit(unless_there).state == {"a": [1]}
            thread.append("a", 3)
            other.thread("t").rewind(1)
            assert thread.edit(unless_there).state == {"a": [2]}

    def test_edit_of_an_empty_thread_must_set_a_state(self, thread: Thread[Any]) -> None:
        with pytest.raises(NotFound, match="set"):
            thread.edit(lambda editor: editor.append("a", 1))
        with pytest.raises(Invalid, match="no state"):
            thread.edit(lambda _: None)
        assert thread.latest() is None

    def test_an_edit_that_fails_writes_nothing(self, thread: Thread[Any]) -> None:
        saved = thread.save({"a": [], "b": {}, "c": 1})

        def stumble(editor: Editor) -> None:
            editor.append("a", 1)
            raise RuntimeError("no")

        def unfit(editor: Editor) -> None:
            editor.append("a", 1)
            editor.update("b", {"x": [{"y": object()}]})

        with pytest.raises(RuntimeError, match="no"):
            thread.edit(stumble)
        with pytest.raises(Invalid) as caught:
            thread.edit(unfit)
        assert caught.value.path == "state.b.x[0].y"
        with pytest.raises(Invalid, match="not a dict"):
            thread.edit(lambda editor: editor.update("c", {"x": 1}))
        with pytest.raises(NotFound):
            thread.edit(lambda editor: editor.update("none", {"x": 1}))
        assert head(thread) == saved
        assert saved.state == {"a": [], "b": {}, "c": 1}

    def test_edits_do_not_show_in_the_root(self, store: Store) -> None:
        thread = store.thread("edited")
        for _ in range(300):
            thread.edit(_count)
        assert store.thread("saved").save(head(thread).state).root == head(thread).root
        many = {f"key {n}": n for n in range(2000)}
        thread.edit(lambda editor: editor.update("places", many))
        assert store.thread("saved").save(head(thread).state).root == head(thread).root

    def test_edit_with_very_many_changes_is_kept(self, opener: Opener) -> None:
        def much(editor: Editor) -> None:
            for n in range(600):
                editor.set(("d", n), n)

        with opener() as store:
            store.thread("t").save({"d": {}})
            store.thread("t").edit(much)
        with opener() as store:
            assert head(store.thread("t")).state == {"d": {n: n for n in range(600)}}

    def test_concurrent_edits_all_apply_on_current_states(self, opener: Opener) -> None:
        def work(store: Store) -> None:
            for _ in range(10):
                store.thread("t").edit(_count)

        with opener() as one, opener() as two:
            workers = [threading.Thread(target=work, args=[store]) for store in (one, one, two, two)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            state = head(one.thread("t")).state
        assert state["items"] == list(range(40))
        assert state["places"] == {"last": 39, **{str(n): n for n in range(40)}}

    def test_an_edit_in_a_transaction_goes_with_it(self, store: Store, thread: Thread[Any]) -> None:
        thread.edit(_count)
        with pytest.raises(RuntimeError), store.transaction():
            assert thread.edit(_count).state["items"] == [0, 1]
            raise RuntimeError
        with store.transaction():
            thread.edit(_count)
            thread.edit(_count)
        assert head(thread).state["items"] == [0, 1, 2]

    def test_edit_reads_only_the_chunks_it_needs(self, opener: Opener) -> None:
        with opener() as store:
            places = {f"{n * 7919 % 9973:05d}": n for n in range(3000)}
            store.thread("t").save({"items": messages(3000, size=400), "places": places})
        with opener() as store, chunks_read(store) as asked:

            def change(editor: Editor) -> None:
                assert editor.get(("places", "07919")) == 1
                assert editor.get(("places", "none")) is None
                editor.append("items", {"content": str(editor.count("items"))})
                editor.update("places", {"new": 1})

            made = store.thread("t").edit(change)
            assert len(asked) <= 12
            assert made.stored < 12_000
        with opener() as store:
            assert head(store.thread("t")).get("items[3000].content") == "3000"


class Beside(Suite):
    """What an adapter keeps in a conversation beside its fields, under keys that begin with @."""

    def test_conversation_with_adapter_keys_loads_lists_and_forks(self, store: Store) -> None:
        whole = Conversation("a", id="c", title="Trip", messages=[Message.user("one", id="1"), Message.user("two")])
        thread = store.conversations.thread("c", agent_id="a")
        thread.edit(lambda editor: editor.set((), {**to_data(whole), "@mine": {"k": "v"}}))
        assert store.conversations.load("c") == whole
        assert [(info.id, info.title) for info in store.conversations.list("a")] == [("c", "Trip")]
        assert len(store.conversations.fork("c", at="1", new_id="d").messages) == 1
        assert head(store.conversations.thread("d")).get("@mine") == {"k": "v"}
        assert store.conversations.append("c", Message.user("three")).get("@mine") == {"k": "v"}

    def test_listing_reads_no_asides(self, opener: Opener) -> None:
        with opener() as store:
            store.conversations.save(Conversation("a", id="c"))
            store.conversations.thread("c").set("@mine", {f"key {n}": n for n in range(5000)})
        with opener() as store, chunks_read(store) as asked:
            assert [info.id for info in store.conversations.list("a")] == ["c"]
            assert asked == []

    def test_conversation_started_by_its_thread_has_its_agent(self, store: Store) -> None:
        value = Conversation("a", id="c")
        store.conversations.thread("c", agent_id="a").save(to_data(value))
        assert store.conversations.info("c").agent_id == "a"
        assert store.conversations.load("c") == value

    def test_conversation_without_an_agent_is_refused(self, store: Store) -> None:
        thread = store.conversations.thread("c")
        state = to_data(Conversation("a", id="c"))
        before = store.stats().chunks
        for big in (state, {**state, "@mine": "line\n" * 5000}):
            with pytest.raises(Invalid) as error:
                thread.save(big)
            assert (error.value.code, thread.latest(), store.stats().chunks) == ("invalid.argument", None, before)
        store.conversations.thread("c", agent_id="a").save(state)
        thread.load()
        thread.save({**state, "title": "T"})
        thread.delete()
        thread.save({**state, "title": "again"})
        assert store.conversations.info("c").agent_id == "a"

    def test_listing_by_prefix_gives_matching_ids(self, store: Store) -> None:
        for name in ("a/1", "a/2", "a", "a%", "b/1", "A/1"):
            store.conversations.save(Conversation("x", id=name))
        store.conversations.save(Conversation("y", id="a/3"))
        assert {info.id for info in store.conversations.list("x", prefix="a/")} == {"a/1", "a/2"}
        assert [info.id for info in store.conversations.list("x", prefix="a/", limit=1)] == ["a/2"]
        assert len(store.conversations.list("x", prefix="")) == 6
        with pytest.raises(Invalid, match="prefix"):
            store.conversations.list("x", prefix=7)  # type: ignore[arg-type]

    def test_a_listing_says_when_each_was_last_written_to(self, store: Store) -> None:
        clock = Clock(store)
        store.conversations.save(Conversation("a", id="c", messages=[Message.user("one")]))
        first = dt.datetime.fromtimestamp(clock.now / SECOND, dt.UTC)
        clock.advance(5)
        store.conversations.append("c", Message.user("two"))
        later = first + dt.timedelta(seconds=5)
        assert [info.updated_at for info in store.conversations.list("a")] == [later]
        assert store.conversations.info("c").updated_at == later
        clock.advance(5)
        store.conversations.thread("c").rewind(1)
        assert store.conversations.info("c").updated_at == later + dt.timedelta(seconds=5)
