"""Conversations: order of messages, headers, listings and search."""

from __future__ import annotations

import datetime as dt
import random
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backtrail import Attachment, Conflict, Conversation, Invalid, Message, NotFound, Role, Store, ToolCall
from backtrail.engine.search import search
from backtrail.validation import to_json
from tests.conformance.base import Suite, chunks_read
from tests.support.exact import same
from tests.support.scene import agent, contents, conversation, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.base import Opener

RAW = {"id": "msg_1", "content": [{"type": "text", "text": "hi"}], "usage": {"in": 3}, "none": None, "t": (1, 2.0)}


def _late(seconds: int) -> dt.datetime:
    return dt.datetime(2026, 1, 31, 12, 0, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def _at_once(calls: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Conversations(Suite):
    """`store.conversations`: save, load, append, tail, delete."""

    def test_a_conversation_comes_back_as_it_was_saved(self, opener: Opener) -> None:
        messages = [
            Message.system("Be kind."),
            Message.user(
                "Look \0", attachments=[Attachment.from_bytes("image", "x.png", "image/png", b"\x00\xff" * 9)]
            ),
            Message.assistant("", tokens=7, tool_calls=[ToolCall("find", {"q": ["x", 1]}).completed("none")]),
            Message.tool_result("call_1", "none", metadata={"k": {"deep": [True, None]}}),
            Message.assistant("Bye.", parent_id="p", raw=RAW, raw_format="acme.v1", timestamp=_late(5)),
        ]
        whole = Conversation(
            "a", id="c", title="Trip", messages=messages, metadata={"k": "v"}, archived=True, tags=["x", "y"]
        )
        with opener() as store:
            store.conversations.save(whole)
        with opener() as store:
            loaded = store.conversations.load("c")
            assert loaded == whole
            assert same(list(loaded.messages), messages)
            assert same(loaded.messages[-1].raw, RAW)
            assert loaded.messages[1].attachments[0].to_bytes() == b"\x00\xff" * 9
            assert loaded.messages[3].metadata["tool_call_id"] == "call_1"
            assert loaded.messages[1].role is Role.USER

    def test_missing_conversations_read_as_none_empty_or_not_found(self, store: Store) -> None:
        conversations = store.conversations
        assert conversations.get("x") is None
        assert conversations.list("nobody") == []
        assert conversations.branches("x") == []
        assert conversations.delete("x") is False
        assert conversations.search("x", agent_id="nobody") == []
        calls: tuple[Callable[[], object], ...] = (
            lambda: conversations.load("x"),
            lambda: conversations.append("x", Message.user("y")),
            lambda: conversations.pop("x"),
            lambda: conversations.update("x", title="y"),
            lambda: conversations.tail("x", 1),
            lambda: conversations.info("x"),
            lambda: conversations.fork("x"),
            lambda: conversations.edit("x", "m", "y"),
        )
        for call in calls:
            with pytest.raises(NotFound):
                call()
        assert list(store.threads(kind="conversation")) == []

    def test_several_messages_are_one_append(self, store: Store) -> None:
        store.conversations.save(conversation("c", "0"))
        made = store.conversations.append("c", Message.user("1"), Message.assistant("2"), Message.user("3"))
        assert made.step == 2
        assert len(store.conversations.thread("c")) == 2
        assert contents(store, "c") == ["0", "1", "2", "3"]
        bad: tuple[Any, ...] = (None, "text", {"role": "user"}, {"role": "nobody", "content": "x"}, 5)
        for message in bad:
            with pytest.raises(Invalid):
                store.conversations.append("c", Message.user("ok"), message)
        with pytest.raises(Invalid):
            store.conversations.append("c")
        with pytest.raises(Invalid):
            store.conversations.append("c", Message.user("x", metadata={"f": len}))
        assert contents(store, "c") == ["0", "1", "2", "3"]

    def test_a_message_may_be_a_dict(self, store: Store) -> None:
        store.conversations.save(conversation("c"))
        store.conversations.append("c", {"role": "user", "content": "hi"})
        store.conversations.append("c", to_json(Message.assistant("hello", id="m", timestamp=_late(1), tokens=3)))
        first, second = store.conversations.load("c").messages
        assert (first.role, first.content) == (Role.USER, "hi")
        assert second == Message.assistant("hello", id="m", timestamp=_late(1), tokens=3)

    def test_messages_of_providers_come_back_exactly(self, opener: Opener) -> None:
        function = {"name": "search", "arguments": '{"q": 1}'}
        openai: list[dict[str, Any]] = [
            {"role": "developer", "content": ({"type": "text", "text": "Be brief"},)},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "found"},
            {"type": "function_call_output", "call_id": "c", "output": "found"},
        ]
        block = {"type": "tool_use", "id": "t", "name": "search", "input": {"q": 1.5}}
        anthropic: dict[str, Any] = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}, block]}
        with opener() as store:
            made = store.conversations.append("c", *openai, anthropic, agent_id="a")
            assert made.metadata == {"formats": ["anthropic", "openai.chat", "openai.responses"]}
        with opener() as store:
            *others, last = store.conversations.load("c").messages
            assert same([message.to_openai() for message in others], openai)
            assert same(last.to_anthropic(), anthropic)
            assert [message.role for message in others] == ["system", "assistant", "tool", "tool"]
            assert [call.name for message in (*others, last) for call in message.tool_calls] == ["search", "search"]
            assert [hit.role for hit in store.search("found", kind="conversation")] == ["tool", "tool"]
            assert store.verify().ok

    def test_appends_never_conflict_and_are_ordered(self, opener: Opener) -> None:
        with opener() as store:
            store.conversations.save(conversation("c"))

            def write(writer: int) -> None:
                for at in range(10):
                    store.conversations.append("c", Message.user(f"{writer} {at}"))
                    store.conversations.update("c", metadata={"last": f"{writer} {at}"})

            threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            said = [text.split() for text in contents(store, "c")]
            assert len(said) == 30
            for writer in range(3):
                assert [int(at) for who, at in said if who == str(writer)] == list(range(10))

    def test_append_with_an_agent_starts_a_conversation(self, store: Store) -> None:
        with pytest.raises(Invalid):
            store.conversations.append("c", agent_id="a")
        with pytest.raises(Invalid):
            store.conversations.append("c", Message.user("x"), agent_id="")
        assert store.conversations.get("c") is None
        first = store.conversations.append("c", Message.user("Lisbon?"), Message.assistant("Yes."), agent_id="a")
        assert first.step == 1
        info = store.conversations.info("c")
        assert (info.agent_id, info.title, info.message_count) == ("a", "Lisbon?", 2)
        assert store.conversations.append("c", Message.user("When?"), agent_id="b").step == 2
        assert [each.id for each in store.conversations.list("a")] == ["c"]
        store.conversations.delete("c")
        store.conversations.append("c", Message.user("Again"), agent_id="a")
        assert contents(store, "c") == ["Again"]

    def test_concurrent_starts_of_a_conversation_keep_all_messages(self, opener: Opener) -> None:
        with opener() as store:
            texts = [str(n) for n in range(6)]
            append = store.conversations.append
            _at_once([partial(append, "c", Message.user(text), agent_id="a") for text in texts])
            assert sorted(contents(store, "c")) == texts

    def test_pop_removes_the_last_messages_and_undo_restores_them(self, store: Store) -> None:
        store.conversations.save(conversation("c", "0", "1", "2", "3"))
        assert [message.content for message in store.conversations.pop("c")] == ["3"]
        assert [message.content for message in store.conversations.pop("c", 2)] == ["1", "2"]
        assert contents(store, "c") == ["0"]
        store.conversations.thread("c").undo()
        assert contents(store, "c") == ["0", "1", "2"]
        assert [message.content for message in store.conversations.pop("c", 9)] == ["0", "1", "2"]
        steps = store.conversations.thread("c").current_step
        assert store.conversations.pop("c") == store.conversations.pop("c", 0) == []
        assert store.conversations.thread("c").current_step == steps
        with pytest.raises(Invalid):
            store.conversations.pop("c", -1)

    def test_no_message_is_popped_twice_or_lost(self, opener: Opener) -> None:
        with opener() as store:
            texts = [str(n) for n in range(30)]
            store.conversations.save(conversation("c", *texts))
            popped: list[str] = []

            def take() -> None:
                while found := store.conversations.pop("c"):
                    popped.append(found[0].content)

            _at_once([take] * 3)
            assert sorted(popped, key=int) == texts

    def test_tail_gives_the_last_ones_without_reading_the_rest(self, opener: Opener) -> None:
        texts = [f"{n} " + random.Random(n).randbytes(300).hex() for n in range(300)]
        with opener() as store:
            store.conversations.save(conversation("c", *texts))
        with opener() as store:
            with chunks_read(store) as read:
                assert [message.content for message in store.conversations.tail("c", 3)] == texts[-3:]
            few = len(read)
            store.conversations.load("c")
            assert store.conversations.tail("c", 0) == []
            assert [message.content for message in store.conversations.tail("c", 1000)] == texts
            assert [message.content for message in store.conversations.tail("c", 300)] == texts
        with opener() as store, chunks_read(store) as read:
            store.conversations.load("c")
            assert few < len(read) / 2
        with opener() as store:
            for bad in (-1, 1.5, None, True):
                with pytest.raises(Invalid):
                    store.conversations.tail("c", bad)  # type: ignore[arg-type]

    def test_a_deleted_conversation_is_gone_and_can_begin_again(self, store: Store) -> None:
        store.conversations.save(conversation("c", "hello"))
        assert store.conversations.delete("c") is True
        assert store.conversations.delete("c") is False
        assert store.conversations.get("c") is None
        assert store.conversations.list("a") == []
        with pytest.raises(NotFound):
            store.conversations.append("c", Message.user("x"))
        store.conversations.save(conversation("c", "again", agent_id="b"))
        assert (contents(store, "c"), store.conversations.load("c").agent_id) == (["again"], "b")
        assert [info.id for info in store.conversations.list("b")] == ["c"]
        assert store.conversations.list("a") == []

    def test_one_attachment_in_two_conversations_is_stored_once(self, store: Store) -> None:
        data = random.Random(1).randbytes(700_000)
        before = usage(store).payload_bytes
        for name in ("c", "d"):
            store.conversations.save(conversation(name, "x"))
        store.conversations.append(
            "c", Message.user("one", attachments=[Attachment.from_bytes("file", "x", "b", data)])
        )
        one = usage(store).payload_bytes - before
        assert one > 600_000
        again = Attachment.from_bytes("file", "y", "b", data)
        store.conversations.append("d", Message.user("two", attachments=[again]))
        store.conversations.append("c", Message.assistant("three", attachments=[again]))
        assert usage(store).payload_bytes - before < one + 20_000
        assert store.conversations.load("d").messages[1].attachments[0].to_bytes() == data
        assert store.conversations.delete("c") is True
        store.gc()
        assert store.conversations.load("d").messages[1].attachments[0].to_bytes() == data

    def test_a_dropped_transaction_says_nothing(self, store: Store) -> None:
        store.conversations.save(conversation("c", "0"))
        with pytest.raises(ZeroDivisionError), store.transaction():
            store.conversations.append("c", Message.user("1"))
            store.conversations.save(conversation("d", "x"))
            store.conversations.update("c", title="t")
            assert contents(store, "c") == ["0", "1"]
            assert [info.id for info in store.conversations.list("a")] == ["c", "d"]
            _ = 1 / 0
        assert contents(store, "c") == ["0"]
        assert [(info.id, info.title) for info in store.conversations.list("a")] == [("c", None)]
        with store.transaction():
            store.conversations.append("c", Message.user("1"))
            store.conversations.save(conversation("d", "x"))
        assert (contents(store, "c"), contents(store, "d")) == (["0", "1"], ["x"])


class Headers(Suite):
    """Headers of conversations: `update`, `info`, `list`."""

    def test_update_changes_only_given_fields(self, store: Store) -> None:
        store.conversations.save(conversation("c", "0", title="Old", tags=["x"], metadata={"k": "v"}))
        info = store.conversations.update("c", archived=True)
        assert (info.title, info.tags, info.archived, info.metadata) == ("Old", ("x",), True, {"k": "v"})
        info = store.conversations.update("c", title="", tags=["y", "z"], metadata={})
        loaded = store.conversations.load("c")
        assert (loaded.title, loaded.tags, loaded.archived, loaded.metadata) == (None, ["y", "z"], True, {})
        assert (info.title, info.tags, info.metadata, info.message_count) == (None, ("y", "z"), {}, 1)
        store.conversations.update("c", archived=False, tags=[])
        assert store.conversations.load("c").archived is False
        assert contents(store, "c") == ["0"]
        bad: tuple[dict[str, Any], ...] = (
            {},
            {"title": 5},
            {"tags": [1]},
            {"archived": "yes"},
            {"archived": 1},
            {"metadata": {"k": 1}},
            {"metadata": {1: "v"}},
        )
        for change in bad:
            with pytest.raises(Invalid):
                store.conversations.update("c", **change)
        assert len(store.conversations.thread("c")) == 4

    @pytest.mark.parametrize("bad", [{"tags": "work"}, {"tags": 5}, {"metadata": "x"}, {"metadata": 5}])
    def test_an_update_of_the_wrong_type_is_refused(self, store: Store, bad: dict[str, Any]) -> None:
        store.conversations.save(conversation("c"))
        with pytest.raises(Invalid):
            store.conversations.update("c", **bad)

    def test_an_update_takes_the_tags_that_a_conversation_takes(self, store: Store) -> None:
        store.conversations.save(conversation("c", tags=["@me", "x"]))
        assert store.conversations.update("c", tags=["@me"]).tags == ("@me",)

    def test_update_keeps_messages_of_other_writers(self, opener: Opener) -> None:
        with opener() as store:
            store.conversations.save(conversation("c", "0"))
            store.conversations.update("c", title="first")
            other = Store(store._backend)
            other.conversations.append("c", Message.user("1"))
            store.conversations.update("c", title="second")
            other.conversations.update("c", tags=["t"])
            store.conversations.append("c", Message.user("2"))
            loaded = store.conversations.load("c")
            assert (loaded.title, loaded.tags) == ("second", ["t"])
            assert contents(store, "c") == ["0", "1", "2"]

    def test_last_message_at_is_the_last_messages_time(self, store: Store) -> None:
        made = _late(-60)
        store.conversations.save(conversation("c", created_at=made))
        assert store.conversations.info("c").last_message_at == made
        for seconds in (9, 3):
            store.conversations.append("c", Message.user("x", timestamp=_late(seconds)))
            assert store.conversations.info("c").last_message_at == _late(seconds)
            assert store.conversations.list("a")[0].last_message_at == _late(seconds)

    def test_loaded_conversation_has_the_time_of_its_last_message(self, store: Store) -> None:
        store.conversations.save(conversation("c", created_at=_late(-60)))
        message = Message.user("x", timestamp=_late(9))
        store.conversations.append("c", message)
        assert store.conversations.load("c").last_message_at == message.timestamp

    def test_a_listing_shows_headers_newest_activity_first(self, store: Store) -> None:
        for name in "xyz":
            store.conversations.save(conversation(name, "1", "2", title=name.upper(), tags=[name, "all"]))
        store.conversations.save(conversation("other", "1", agent_id="b"))
        store.conversations.append("x", Message.user("3"))
        store.conversations.update("y", archived=True)
        infos = store.conversations.list("a")
        assert [info.id for info in infos] == ["y", "x", "z"]
        assert [info.message_count for info in infos] == [2, 3, 2]
        assert [info.title for info in infos] == ["Y", "X", "Z"]
        assert [info.agent_id for info in infos] == ["a"] * 3
        assert infos[1] == store.conversations.info("x")
        assert [info.id for info in store.conversations.list("a", archived=True)] == ["y"]
        assert [info.id for info in store.conversations.list("a", archived=False)] == ["x", "z"]
        assert [info.id for info in store.conversations.list("a", tag="z")] == ["z"]
        assert [info.id for info in store.conversations.list("a", tag="all", archived=False, limit=1)] == ["x"]
        assert [info.id for info in store.conversations.list("a", limit=2)] == ["y", "x"]
        assert store.conversations.list("a", limit=0) == []
        assert store.conversations.list("a", tag="al") == []
        bad: tuple[dict[str, Any], ...] = ({"limit": -1}, {"archived": "yes"}, {"archived": 1}, {"tag": 3})
        for options in bad:
            with pytest.raises(Invalid):
                store.conversations.list("a", **options)

    def test_a_listing_without_an_agent_is_of_all(self, store: Store) -> None:
        for name in ("x", "y"):
            store.conversations.append(f"of-{name}", Message.user("hi"), agent_id=name)
        store.conversations.update("of-x", tags=["t"])
        assert [info.id for info in store.conversations.list()] == ["of-x", "of-y"]
        assert [info.agent_id for info in store.conversations.list(tag="t")] == ["x"]
        first, *_ = store.conversations.list(limit=1)
        assert [info.id for info in store.conversations.list(after=first.cursor)] == ["of-y"]

    def test_a_listing_reads_no_messages(self, opener: Opener) -> None:
        texts = [random.Random(n).randbytes(300).hex() for n in range(300)]
        with opener() as store:
            store.conversations.save(conversation("c", *texts))
        with opener() as store:
            with chunks_read(store) as read:
                store.conversations.list("a")
            few = len(read)
        with opener() as store, chunks_read(store) as read:
            store.conversations.load("c")
            assert few < len(read) / 2

    def test_a_listing_of_many_has_them_all(self, store: Store) -> None:
        with mock.patch("backtrail.collection._PAGE", 3):
            for n in range(10):
                store.conversations.save(conversation(f"c{n}", tags=[str(n % 2)]))
                store.agents.save(agent(f"a{n}"))
            assert [info.id for info in store.conversations.list("a")] == [f"c{n}" for n in range(9, -1, -1)]
            assert [info.id for info in store.conversations.list("a", tag="0", limit=4)] == ["c8", "c6", "c4", "c2"]
            assert len(store.agents.list()) == 10

    def test_listing_during_a_delete_has_the_others(self, store: Store) -> None:
        for name in "xyz":
            store.conversations.save(conversation(name))
        backend = store._backend
        page = backend.threads

        def then_deleted(**options: Any) -> Any:
            found = page(**options)
            store.conversations.delete("y")
            return found

        with mock.patch.object(backend, "threads", then_deleted):
            assert [info.id for info in store.conversations.list("a")] == ["z", "x"]

    def test_only_conversations_are_saved_as_conversations(self, store: Store) -> None:
        values: tuple[Any, ...] = ({"id": "c"}, None, Message.user("x"))
        for value in values:
            with pytest.raises(Invalid):
                store.conversations.save(value)
        assert store.stats().checkpoints == 0

    def test_automatic_title_is_stored(self, store: Store) -> None:
        family = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
        for text in (family * 20, "e\N{COMBINING ACUTE ACCENT}" * 40, "\u05e9\u05dc\u05d5\u05dd " * 20, "x" * 50):
            said = conversation("c", text).auto_title()
            assert said.title is not None
            assert said.title == (text if len(text) <= 50 else text[:47] + "...")
            store.conversations.save(said, replace=True)
            assert store.conversations.info("c").title == said.title


class ConversationSearch(Suite):
    """`conversations.search`: one hit for each conversation, whatever its case."""

    def test_each_conversation_is_found_once_with_its_newest_message(self, store: Store) -> None:
        for name, said in (("c", ("A fox", "no", "FOXES")), ("d", ("the fox",)), ("e", ("a hen",))):
            store.conversations.save(conversation(name, *said, agent_id="b" if name == "d" else "a"))
        hits = store.conversations.search("fox")
        assert {(hit.conversation_id, hit.message_id) for hit in hits} == {("c", "c2"), ("d", "d0")}
        assert [hit.conversation_id for hit in store.conversations.search("FoX", agent_id="a")] == ["c"]
        assert [hit.conversation_id for hit in store.conversations.search("ox", contains=False)] == []
        assert len(store.conversations.search("fox", limit=1)) == 1
        assert store.conversations.search("fox", limit=0) == []
        assert store.conversations.search("cow") == []
        store.conversations.append("e", Message.user("and a fox"))
        assert len(store.conversations.search("fox")) == 3
        for bad in ("", 5):
            with pytest.raises(Invalid):
                store.conversations.search(bad)  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            store.conversations.search("fox", limit=-1)

    def test_many_hits_in_one_conversation_do_not_hide_another(self, store: Store) -> None:
        store.conversations.save(conversation("old", "fox"))
        store.conversations.save(conversation("long", *["fox"] * 3000))
        backend = store._backend
        with mock.patch.object(backend, "find", wraps=backend.find) as find:
            assert [hit.conversation_id for hit in store.conversations.search("fox")] == ["long", "old"]
        assert find.call_count <= 3

    def test_search_continues_after_a_full_page(self, store: Store) -> None:
        for n in range(7):
            store.conversations.save(conversation(f"c{n}", *["fox"] * (n % 3 + 1)))
        with mock.patch.object(search, "_PAGE", 2):
            hits = store.conversations.search("fox")
            assert [hit.conversation_id for hit in hits] == [f"c{n}" for n in range(6, -1, -1)]
            assert store.conversations.search("fox", limit=5) == hits[:5]

    def test_threads_and_agents_are_not_conversations(self, store: Store) -> None:
        store.thread("t").save({"messages": [{"role": "user", "content": "fox"}]})
        store.agents.save(replace(agent("x"), system_prompt="fox"))
        assert store.conversations.search("fox") == []
        assert len(store.search("fox")) == 1

    def test_search_follows_deleted_and_replaced_conversations(self, store: Store) -> None:
        store.conversations.save(conversation("c", "a fox"))
        assert len(store.conversations.search("fox")) == 1
        store.conversations.save(conversation("c", "a hen"), replace=True)
        assert store.conversations.search("fox") == []
        with pytest.raises(Conflict):
            store.conversations.save(conversation("c", "a fox"))
        assert store.conversations.search("fox") == []
        store.conversations.delete("c")
        assert store.conversations.search("hen") == []
